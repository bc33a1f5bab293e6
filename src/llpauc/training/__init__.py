"""Training: the loop, its engines, negative samplers and checkpoints."""

from typing import TYPE_CHECKING

from llpauc.options import lazy_exports

if TYPE_CHECKING:
    from llpauc.training.checkpoint import CheckpointFolder, CheckpointSettings, open_checkpoints
    from llpauc.training.loop import check_feasible, fit
    from llpauc.training.options import SAMPLERS, TrainingOptions
    from llpauc.training.progress import Diverged, Epoch, History
    from llpauc.training.tables import TrainingTables
    from llpauc.training.trainable import Trainable

__all__ = [
    "SAMPLERS",
    "CheckpointFolder",
    "CheckpointSettings",
    "Diverged",
    "Epoch",
    "History",
    "Trainable",
    "TrainingOptions",
    "TrainingTables",
    "check_feasible",
    "fit",
    "open_checkpoints",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "SAMPLERS": "options",
        "CheckpointFolder": "checkpoint",
        "CheckpointSettings": "checkpoint",
        "Diverged": "progress",
        "Epoch": "progress",
        "History": "progress",
        "Trainable": "trainable",
        "TrainingOptions": "options",
        "TrainingTables": "tables",
        "check_feasible": "loop",
        "fit": "loop",
        "open_checkpoints": "checkpoint",
    },
)
