"""Training: one loop, two engines."""

from llpauc.training.checkpoint import Checkpointing, Checkpoints
from llpauc.training.history import Diverged, Epoch, History
from llpauc.training.loop import check_feasible, fit
from llpauc.training.options import TrainingOptions

__all__ = [
    "Checkpointing",
    "Checkpoints",
    "Diverged",
    "Epoch",
    "TrainingOptions",
    "History",
    "check_feasible",
    "fit",
]
