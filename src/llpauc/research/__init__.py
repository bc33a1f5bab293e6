"""The studies: the simulation, the paper's tables and figures, the leaderboard, the noise study."""
