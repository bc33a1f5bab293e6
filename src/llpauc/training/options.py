"""How to train."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from llpauc.errors import InputError, check_at_least, choose
from llpauc.metrics import parse_metric
from llpauc.training.samplers import SAMPLERS

_MOST_SEED = 2**63 - 1  # torch takes no more


@dataclass(frozen=True)
class AdamOptions:
    """Adam's usual numbers.

    Args:
        lr: learning rate, above 0.
        decay_mean, decay_square: b1 and b2, in [0, 1).
        eps: added to the root, above 0.
        weight_decay: pulls the rows of a batch (and only those) towards zero, at least 0. Indices
            outside the batch are left alone, as recommenders usually regularise.
    """

    lr: float = 1e-3
    decay_mean: float = 0.9
    decay_square: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        for name, held, least in (
            ("lr", self.lr > 0, "above 0"),
            ("decay_mean", 0 <= self.decay_mean < 1, "in [0, 1)"),
            ("decay_square", 0 <= self.decay_square < 1, "in [0, 1)"),
            ("eps", self.eps > 0, "above 0"),
            ("weight_decay", self.weight_decay >= 0, "at least 0"),
        ):
            if not (held and math.isfinite(getattr(self, name))):
                raise InputError(f"{name} must be {least}, got {getattr(self, name)!r}")


@dataclass(frozen=True)
class TrainingOptions:
    """How to train.

    Args:
        epochs: most passes over the training events, at least 1.
        batch_size: positives a step, at least 1.
        negatives: negatives for each positive; for the batch where the sampler shares them.
        sampler: uniform, uniform-all (the paper's way), popularity, shared, in-batch or all.
        lr: Adam's rate.
        weight_decay: pull of the rows in a batch towards zero.
        valid_metric: what chooses the best epoch and stops; the one that is reported.
        valid_every: epochs between two validations.
        patience: validations without a better value before training stops.
        seed: of the starting vectors, the order and the negatives.
        device: "cpu", or a torch device such as "cuda".
        share: batches that share one propagation of lightgcn; more is faster and a bit stale.
        half_life: age at which an event comes up half as often (see
            `llpauc.data.recency.age_weights`);
            None: every event once an epoch.
        shard: divide the rows of the tables among the processes of torchrun, in place of a copy in
            each; mf on CPUs.
    """

    epochs: int = 100
    batch_size: int = 128
    negatives: int = 100
    sampler: str = "uniform"
    lr: float = 1e-3
    weight_decay: float = 0.0
    valid_metric: str = "ndcg@20"
    valid_every: int = 1
    patience: int = 5
    seed: int = 0
    device: str = "cpu"
    share: int = 1
    half_life: float | None = None
    shard: bool = False

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "negatives", "valid_every", "patience", "share"):
            check_at_least(name, getattr(self, name), 1)
        if check_at_least("seed", self.seed, 0) > _MOST_SEED:
            raise InputError(f"seed must be at most {_MOST_SEED}, got {self.seed!r}")
        if self.half_life is not None and not 0 < self.half_life < math.inf:
            raise InputError(f"half_life must be above 0, got {self.half_life!r}")
        if self.shard and self.device != "cpu":
            raise InputError(f"shard divides tables among CPUs, and device is {self.device!r}")
        parse_metric(self.valid_metric)
        choose(SAMPLERS, self.sampler, "sampler")

    def deciding(self) -> dict[str, Any]:
        """All that decides what comes out; not where the tables lie."""
        return {name: value for name, value in asdict(self).items() if name != "shard"}

    @property
    def adam(self) -> AdamOptions:
        return AdamOptions(lr=self.lr, weight_decay=self.weight_decay)
