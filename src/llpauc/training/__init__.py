"""Training: one loop, two engines."""

from llpauc.training.checkpoint import CheckpointFolder, CheckpointSettings, open_checkpoints
from llpauc.training.history import Diverged, Epoch, History
from llpauc.training.loop import check_feasible, fit
from llpauc.training.options import TrainingOptions

__all__ = [
    "CheckpointFolder",
    "CheckpointSettings",
    "Diverged",
    "Epoch",
    "TrainingOptions",
    "History",
    "check_feasible",
    "fit",
    "open_checkpoints",
]
