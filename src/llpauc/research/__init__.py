"""Studies: the simulation, and the paper reproduced."""
