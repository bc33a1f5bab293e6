"""Where a training stands, and what tells it from another."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt
import torch

from llpauc.losses.base import Loss
from llpauc.training.checkpoint import Checkpoint, CheckpointFolder
from llpauc.training.history import Epoch
from llpauc.training.options import TrainingOptions
from llpauc.training.trainable import Trainable


@dataclass
class Progress:
    """Where training stands, beside the model, the loss and the engine.

    Args:
        epoch: the one under way, from 1.
        step: batches done in all epochs.
        batches, examples, loss, seconds: of the epoch under way; the loss is a sum.
        figures: what the loss stood for when this was last written down.
        epochs: those that are over.
        best_value, best_epoch: of validation so far; epoch 0 is none.
        waited: validations since.
    """

    epoch: int = 1
    step: int = 0
    batches: int = 0
    examples: int = 0
    loss: float = 0.0
    seconds: float = 0.0
    figures: dict[str, float] = field(default_factory=dict)
    epochs: list[Epoch] = field(default_factory=list)
    best_value: float | None = None
    best_epoch: int = 0
    waited: int = 0

    @staticmethod
    def from_json(saved: Mapping[str, Any]) -> Progress:
        """From what `dataclasses.asdict` and JSON have made of it."""
        return Progress(**{**saved, "epochs": [Epoch(**epoch) for epoch in saved["epochs"]]})

    def close(self, epoch: Epoch) -> None:
        """Put an epoch on the list and turn to the next."""
        self.epochs.append(epoch)
        self.epoch, self.batches, self.examples = self.epoch + 1, 0, 0
        self.loss, self.seconds, self.figures = 0.0, 0.0, {}


@dataclass(frozen=True)
class Stage:
    """One training of those that a folder of checkpoints covers.

    Args:
        checkpoints: the folder.
        name: of the stage, such as "training" or "refit".
        resume_from: the checkpoint to continue from; None to start from the beginning.
        earlier: the result of earlier stages, written into every checkpoint.
    """

    checkpoints: CheckpointFolder
    name: str = "training"
    resume_from: Checkpoint | None = None
    earlier: Checkpoint = field(default_factory=Checkpoint)


def settings(model: Trainable, loss: Loss, options: TrainingOptions) -> dict[str, Any]:
    """All that decides how training goes, by name."""
    own = [name for name in vars(loss) if not name.startswith("_") and name != "training"]
    return {
        "model": model.name,
        **dataclasses.asdict(model.options),
        **options.deciding(),
        "loss": type(loss).__name__,
        **{f"loss.{name}": repr(getattr(loss, name)) for name in own},
    }


def fill_weights(into: Mapping[str, torch.Tensor], saved: Mapping[str, npt.NDArray[Any]]) -> None:
    """Weights as they were saved into those of a model, by name."""
    with torch.no_grad():
        for name, value in into.items():
            if value.shape != saved[name].shape:
                raise ValueError(f"{name} is {saved[name].shape}, not {tuple(value.shape)}")
            value.copy_(torch.from_numpy(saved[name]))


def arrays(tensors: Mapping[str, torch.Tensor]) -> dict[str, npt.NDArray[Any]]:
    """As they are in memory."""
    return {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}
