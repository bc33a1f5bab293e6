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

_NAMES = {
    "checkpoint": "CheckpointFolder CheckpointSettings open_checkpoints",
    "loop": "check_feasible fit",
    "options": "SAMPLERS TrainingOptions",
    "progress": "Diverged Epoch History",
    "tables": "TrainingTables",
    "trainable": "Trainable",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = list(_MODULES)
__getattr__ = lazy_exports(__name__, _MODULES)
