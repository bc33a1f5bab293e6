"""The training loop. There is one, and it can be read from top to bottom."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np
import torch

from llpauc.errors import InputError, check_at_least, choose
from llpauc.evaluation import Evaluation, evaluate
from llpauc.interactions import Interactions, Split
from llpauc.losses.interface import Loss
from llpauc.losses.softmax import SLAtKLoss
from llpauc.metrics import parse_metric
from llpauc.models.embedding import EmbeddingModel
from llpauc.optim import AdamOptions
from llpauc.ranking import rank
from llpauc.recency import Floats, age_weights
from llpauc.sampling import SAMPLERS, collision_rate, make_sampler
from llpauc.training.batches import batches
from llpauc.training.engine import CpuEngine, Diverged, Engine, TorchEngine
from llpauc.training.interrupt import stop_requests

_QUANTILE_EPOCHS = 5  # SL@K's quantiles are taken anew this often
_UNSEEN = 0.05  # events an item is credited with, so that one without any has a logarithm


@dataclass(frozen=True)
class FitOptions:
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
        half_life: age at which an event comes up half as often (see `llpauc.recency.age_weights`);
            None: every event once an epoch.
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

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "negatives", "valid_every", "patience", "share"):
            check_at_least(name, getattr(self, name), 1)
        check_at_least("seed", self.seed, 0)
        if self.half_life is not None and not 0 < self.half_life < math.inf:
            raise InputError(f"half_life must be above 0, got {self.half_life!r}")
        parse_metric(self.valid_metric)
        choose(SAMPLERS, self.sampler, "sampler")

    @property
    def adam(self) -> AdamOptions:
        return AdamOptions(lr=self.lr, weight_decay=self.weight_decay)


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


def fit(
    model: EmbeddingModel,
    loss: Loss,
    split: Split,
    options: FitOptions,
    *,
    on_batch: Callable[[int], None] | None = None,
    on_epoch: Callable[[Epoch], None] | None = None,
) -> History:
    """Train `model` in place on split.train; split.valid, where there is one, picks the epoch.

    The test part is never looked at. Ctrl-C (or SIGTERM) ends training after the batch under way;
    the model then has the best weights so far.

    Args:
        model: its parameters are changed.
        loss: likewise, where it has variables.
        split: train, and perhaps valid.
        options: see `FitOptions`.
        on_batch: called with the number of positives done, about ten times a second.
        on_epoch: called after each epoch.

    Raises:
        Diverged: on NaN or infinity. The model has the best weights so far; without a validation
            yet, those of the last whole epoch, or of the start.
    """
    train = split.train
    check_feasible(train, model.options.dimensions, options)
    check_device(options.device)
    weights = None if options.half_life is None else age_weights(train, options.half_life)
    chances = None if weights is None else weights / weights.sum()
    if model.options.item_bias:
        _start_bias(model, train, weights)
    sampler = make_sampler(options.sampler, train, options.negatives, options.seed)
    engine: Engine
    if options.device == "cpu":
        engine = CpuEngine(model, loss, sampler, train, options.adam, options.share)
    else:
        engine = TorchEngine(model, loss, sampler, options.adam, options.device)
    epochs: list[Epoch] = []
    best_value, best_epoch = -math.inf, 0
    kept = _copy(model)  # the best weights so far; without validation, those of the last epoch
    waited, step, stopped = 0, 0, "epochs"
    with stop_requests() as stop:
        for number in range(1, options.epochs + 1):
            if isinstance(loss, SLAtKLoss) and (number - 1) % _QUANTILE_EPOCHS == 0:
                engine.settle()
                _refresh_quantiles(model, loss)
            # The order of an epoch is a function of seed and epoch: a resumed run has the same.
            rng = np.random.default_rng([options.seed, number])
            if chances is None:
                order = rng.permutation(len(train))
            else:
                order = rng.choice(len(train), len(train), p=chances)
            begun = told = time.perf_counter()
            total, n_batches, done, untold = 0.0, 0, 0, 0
            made = batches(engine, train, order, options.batch_size, step)
            try:
                with closing(made):
                    for batch in made:
                        total += engine.step(batch)
                        step, n_batches, done = step + 1, n_batches + 1, done + len(batch.users)
                        untold += len(batch.users)
                        if on_batch is not None and time.perf_counter() - told > 0.1:
                            on_batch(untold)
                            told, untold = time.perf_counter(), 0
                        if stop:
                            break
            except Diverged as error:
                _restore(model, kept)
                raise Diverged(_why(error, number, n_batches + 1, options)) from None
            seconds = time.perf_counter() - begun
            engine.settle()

            valid: dict[str, float] = {}
            better = False
            if split.valid is not None and not stop and number % options.valid_every == 0:
                valid = validate(model, split, options.valid_metric)
                value = next(iter(valid.values()))
                better = value > best_value
                if better:
                    best_value, best_epoch, kept = value, number, _copy(model)
                waited = 0 if better else waited + 1
            elif split.valid is None:
                kept = _copy(model)
            epochs.append(
                Epoch(number, total / n_batches, seconds, done, engine.diagnose(), valid, better)
            )
            if on_epoch is not None:
                on_epoch(epochs[-1])
            if stop:
                stopped = "interrupted"
                break
            if waited >= options.patience:
                stopped = "patience"
                break
    if best_epoch:
        _restore(model, kept)
    collisions = collision_rate(sampler, train)
    return History(tuple(epochs), best_epoch or len(epochs), collisions, stopped, stop.signal)


def _start_bias(model: EmbeddingModel, train: Interactions, weights: Floats | None) -> None:
    """A bias that is still zero starts at the log of the item's events, weighed by their age.

    So training begins where (recent) popularity stands, and not below it.
    """
    bias = model.item_table[:, model.options.dimensions]
    if not bias.any():
        counts = np.bincount(train.items, weights, train.n_items)
        with torch.no_grad():
            bias.copy_(torch.from_numpy(np.log(counts + _UNSEEN)))


def validate(model: EmbeddingModel, split: Split, metric: str) -> dict[str, float]:
    """The metric over all validation users, first of all; then the warm ones apart."""
    result: Evaluation = evaluate(model.scorer(), split, on="valid", metrics=[metric])
    name = next(iter(result.values))
    means = {name: result.mean(name)}
    if not result.warm.all():
        means[f"{name} (warm)"] = result.mean(name, "warm")
    return means


def check_feasible(train: Interactions, dimensions: int, options: FitOptions) -> None:
    """Say before anything is made, not in the middle of it, that there are no events to train on,
    or not enough memory."""
    if not len(train):
        raise InputError("there are no training events")
    tables = (train.n_users + train.n_items) * dimensions * 4
    columns = options.negatives
    if SAMPLERS[options.sampler].shape == "shared":
        columns = train.n_items if options.sampler == "all" else min(columns, train.n_items)
    # Weights, Adam's two moments and the best weights; scores and gradients of a batch, and what is
    # made ahead for the next ones.
    needed = tables * 4 + options.batch_size * columns * 4 * 15
    free = available_memory()
    if free is not None and needed > free:
        raise InputError(
            f"training needs about {needed / 2**30:.1f} GB, {free / 2**30:.1f} GB are free;"
            f" lower dimensions ({dimensions}), batch_size ({options.batch_size})"
            f" or negatives ({options.negatives})"
        )


def check_device(device: str) -> None:
    """Refuse a device that torch does not have here."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        why = str(error).splitlines()[0]
        raise InputError(f"device {device!r} cannot be used here ({why}); use cpu") from None


def available_memory() -> int | None:
    """Bytes that can be had without swapping; None where the system does not say."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


def _refresh_quantiles(model: EmbeddingModel, loss: SLAtKLoss, k: int = 20) -> None:
    users = np.arange(model.n_users, dtype=np.int32)
    best = rank(model.scorer(), users, k).scores
    loss.set_quantiles(torch.from_numpy(best[:, -1].copy()))


def _copy(model: EmbeddingModel) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in model.named_parameters()}


def _restore(model: EmbeddingModel, weights: dict[str, torch.Tensor]) -> None:
    with torch.no_grad():
        for name, value in model.named_parameters():
            value.copy_(weights[name])


def _why(error: Diverged, epoch: int, batch: int, options: FitOptions) -> str:
    return (
        f"training diverged in epoch {epoch}, batch {batch}: {error}; most likely the learning"
        f" rate ({options.lr:g}) is too high; the last good weights are kept"
    )
