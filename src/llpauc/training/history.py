"""How training went: an entry for each epoch, and why it ended."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


class Diverged(RuntimeError):
    """Training met NaN or infinity. The rows are as they were before that step."""


@dataclass(frozen=True)
class Epoch:
    """What one pass over the data came to.

    Args:
        number: from 1.
        loss: mean over the batches.
        seconds: of training, without validation.
        examples: positives trained on.
        figures: what the loss stands for, on the last batch.
        valid: metric -> mean over all validation users; empty where there was no validation.
        best: whether this is the best validation so far.
    """

    number: int
    loss: float
    seconds: float
    examples: int
    figures: Mapping[str, float] = field(default_factory=dict)
    valid: Mapping[str, float] = field(default_factory=dict)
    best: bool = False


@dataclass(frozen=True)
class History:
    """How training went.

    Args:
        epochs: one entry each.
        best_epoch: whose weights the model has now; the last one without validation.
        collisions: share of drawn negatives that are positives in truth.
        stopped: why it ended: "epochs", "patience", or "interrupted".
        signal: the number of the signal that interrupted, or None.
    """

    epochs: tuple[Epoch, ...]
    best_epoch: int
    collisions: float
    stopped: str
    signal: int | None = None

    @property
    def validated(self) -> bool:
        """Whether validation has chosen the epoch."""
        return any(epoch.valid for epoch in self.epochs)

    @property
    def seconds(self) -> float:
        return sum(epoch.seconds for epoch in self.epochs)

    @staticmethod
    def from_json(saved: Mapping[str, Any]) -> History:
        """From what `dataclasses.asdict` and JSON have made of it."""
        epochs = tuple(Epoch(**epoch) for epoch in saved["epochs"])
        return dataclasses.replace(History(**saved), epochs=epochs)
