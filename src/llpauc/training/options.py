"""The options of training and the names of the samplers. Imports neither torch nor Numba."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from annotated_types import Ge, Gt, Le

from llpauc.options import (
    Choices,
    Count,
    Grid,
    LogRange,
    Positive,
    Registry,
    check_options,
)

if TYPE_CHECKING:
    from llpauc.training.samplers import Sampler

SAMPLERS: Registry[type[Sampler]] = Registry(
    "sampler",
    {
        "uniform": "llpauc.training.samplers:UniformSampler",
        "uniform-with-positives": "llpauc.training.samplers:UniformWithPositivesSampler",
        "popularity": "llpauc.training.samplers:PopularitySampler",
        "shared": "llpauc.training.samplers:SharedSampler",
        "all-items": "llpauc.training.samplers:AllItemsSampler",
        "in-batch": "llpauc.training.samplers:InBatchSampler",
    },
    aliases={"all": "all-items", "uniform-all": "uniform-with-positives"},
)


@dataclass(frozen=True)
class TrainingOptions:
    """How to train a model.

    Args:
        epochs: maximum number of passes over the training events.
        batch_size: positives in a batch.
        negatives: negatives for each positive, or for the whole batch where the sampler shares
            them.
        sampler: where negatives come from. uniform: items that the user does not have;
            uniform-with-positives: all items, as in the paper; popularity: by the number of events
            to the power 0.75; shared: one set for the whole batch; all-items: every item, for
            small catalogues; in-batch: the positives of the batch.
        lr: learning rate of Adam.
        decay_epochs: epochs over which the learning rate of the vectors falls linearly, to lr /
            decay_epochs in the last of them; constant by default.
        weight_decay: L2 penalty on the vectors of a batch.
        valid_metric: metric on the validation part that chooses the best epoch and stops training.
        valid_every: epochs between two validations.
        patience: validations without improvement before training stops.
        seed: of the initial vectors, the order of events and the negatives.
        device: cpu, or a device of torch such as cuda.
        half_life: age at which an event is drawn half as often: seconds where events have
            timestamps, else events; by default every event is used once per epoch.
    """

    epochs: Count = 100
    batch_size: Annotated[int, Ge(1), Grid(128, 1024)] = 128
    negatives: Annotated[int, Ge(1), Grid(30, 100, 300, 1000)] = 100
    sampler: Annotated[
        str,
        Choices("llpauc.training.options:SAMPLERS"),
        Grid("uniform", "popularity", "shared", "all-items"),
    ] = "uniform"
    lr: Annotated[float, Gt(0), LogRange(3e-4, 3e-2)] = 1e-3
    decay_epochs: Count | None = None
    weight_decay: Annotated[float, Ge(0), Grid(0.0, 1e-6, 1e-5, 1e-4, 1e-3)] = 0.0
    valid_metric: str = "ndcg@20"
    valid_every: Count = 1
    patience: Count = 5
    seed: Annotated[int, Ge(0), Le(2**63 - 1)] = 0
    device: str = "cpu"
    half_life: Positive | None = None

    def __post_init__(self) -> None:
        from llpauc.metrics import parse_metric

        object.__setattr__(self, "sampler", SAMPLERS.canonical(self.sampler))
        check_options(self)
        parse_metric(self.valid_metric)

    def lr_of(self, epoch: int) -> float:
        """The learning rate of the vectors in an epoch, counted from 1.

        >>> [round(TrainingOptions(lr=0.1, decay_epochs=4).lr_of(e), 3) for e in range(1, 6)]
        [0.1, 0.075, 0.05, 0.025, 0.025]
        """
        if self.decay_epochs is None:
            return self.lr
        return self.lr * max(self.decay_epochs - epoch + 1, 1) / self.decay_epochs
