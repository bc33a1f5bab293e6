"""The progress of a training: its epochs, why it ended, and what a checkpoint stores of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt
import torch

from llpauc.losses.base import Loss
from llpauc.training.checkpoint import Checkpoint, CheckpointFolder
from llpauc.training.options import TrainingOptions
from llpauc.training.trainable import Trainable


class Diverged(RuntimeError):
    """The loss or the scores are NaN or infinite. The weights are those before that step."""


@dataclass(frozen=True)
class Epoch:
    """The result of one pass over the training events.

    Args:
        number: from 1.
        loss: mean over the batches.
        seconds: of training, without validation.
        examples: positives trained on.
        diagnostics: values from `Loss.diagnose` on the last batch.
        valid: metric -> mean over all validation users; empty without a validation.
        best: whether this is the best validation so far.
    """

    number: int
    loss: float
    seconds: float
    examples: int
    diagnostics: Mapping[str, float] = field(default_factory=dict)
    valid: Mapping[str, float] = field(default_factory=dict)
    best: bool = False

    @staticmethod
    def from_json(saved: Mapping[str, Any]) -> Epoch:
        """From the JSON of `dataclasses.asdict`; "figures" is the former name of diagnostics."""
        return Epoch(**{"diagnostics" if k == "figures" else k: v for k, v in saved.items()})


@dataclass(frozen=True)
class History:
    """How a training went.

    Args:
        epochs: one entry each.
        best_epoch: the epoch whose weights the model has; the last one without validation.
        collisions: fraction of the drawn negatives that are positives.
        stopped: why it ended: "epochs", "patience" or "interrupted".
        signal: number of the signal that interrupted it, or None.
    """

    epochs: tuple[Epoch, ...]
    best_epoch: int
    collisions: float
    stopped: str
    signal: int | None = None

    @property
    def validated(self) -> bool:
        """Whether a validation chose the epoch."""
        return any(epoch.valid for epoch in self.epochs)

    @property
    def seconds(self) -> float:
        return sum(epoch.seconds for epoch in self.epochs)

    @staticmethod
    def from_json(saved: Mapping[str, Any]) -> History:
        """From the JSON of `dataclasses.asdict`."""
        return History(**{**saved, "epochs": tuple(map(Epoch.from_json, saved["epochs"]))})


@dataclass
class Progress:
    """The position of a training, apart from the weights and the state of loss and optimizer.

    Args:
        epoch: the current one, from 1.
        step: batches done in all epochs.
        batches, examples, loss, seconds: of the current epoch; the loss is a sum.
        diagnostics: of the loss at the last checkpoint of the current epoch.
        epochs: the finished ones.
        best_value, best_epoch: of the validations so far; epoch 0 is none.
        waited: validations since the best one.
    """

    epoch: int = 1
    step: int = 0
    batches: int = 0
    examples: int = 0
    loss: float = 0.0
    seconds: float = 0.0
    diagnostics: dict[str, float] = field(default_factory=dict)
    epochs: list[Epoch] = field(default_factory=list)
    best_value: float | None = None
    best_epoch: int = 0
    waited: int = 0

    @staticmethod
    def from_json(saved: Mapping[str, Any], batches_per_epoch: int) -> Progress:
        """From the JSON of `dataclasses.asdict`; values that no training has raise ValueError."""
        at = Progress(**{**saved, "epochs": [Epoch.from_json(e) for e in saved["epochs"]]})
        counts = (at.epoch, at.step, at.batches, at.examples, at.best_epoch, at.waited)
        sums = (at.loss, at.seconds, at.best_value or 0.0)
        if (
            any(type(count) is not int or count < 0 for count in counts)
            or any(type(value) not in (int, float) for value in sums)
            or not at.best_epoch < at.epoch == len(at.epochs) + 1
            or at.batches > batches_per_epoch
            or at.step != (at.epoch - 1) * batches_per_epoch + at.batches
        ):
            raise ValueError("its position is not one of this training")
        return at

    def add(self, loss: float, batches: int, examples: int) -> None:
        """Count further batches of the current epoch, with the sum of their losses."""
        self.loss += loss
        self.step += batches
        self.batches += batches
        self.examples += examples

    def finish_epoch(self, epoch: Epoch) -> None:
        """Add a finished epoch and start the next one."""
        self.epochs.append(epoch)
        self.epoch, self.batches, self.examples = self.epoch + 1, 0, 0
        self.loss, self.seconds, self.diagnostics = 0.0, 0.0, {}


@dataclass(frozen=True)
class Stage:
    """One of several trainings that share a folder of checkpoints.

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
    """Everything but the events that determines the result of a training, by name."""
    names = [name for name in vars(loss) if not name.startswith("_") and name != "training"]
    return {
        "model": model.name,
        **dataclasses.asdict(model.options),
        **dataclasses.asdict(options),
        "loss": type(loss).__name__,
        **{f"loss.{name}": repr(getattr(loss, name)) for name in names},
    }


def arrays(tensors: Mapping[str, torch.Tensor]) -> dict[str, npt.NDArray[Any]]:
    """Tensors as NumPy arrays, without a copy on the CPU."""
    return {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}


@torch.no_grad()
def fill_weights(weights: Mapping[str, torch.Tensor], saved: Mapping[str, Any]) -> None:
    """Copy saved arrays or tensors into weights of the same names and shapes."""
    for name, value in weights.items():
        if tuple(value.shape) != tuple(saved[name].shape):
            raise ValueError(f"{name} is {tuple(saved[name].shape)}, not {tuple(value.shape)}")
        value.copy_(torch.as_tensor(saved[name]))
