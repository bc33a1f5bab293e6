"""The training loop. There is one, and it can be read from top to bottom."""

from __future__ import annotations

import dataclasses
import math
import signal
import time
from collections.abc import Callable
from contextlib import closing

import numpy as np
import numpy.typing as npt
import torch

from llpauc.data.fingerprint import fingerprint
from llpauc.data.interactions import Interactions, Split
from llpauc.data.recency import age_weights
from llpauc.distributed import SINGLE_PROCESS, ProcessGroup, current_process_group
from llpauc.errors import InputError
from llpauc.evaluation.full_ranking import Evaluation, evaluate
from llpauc.evaluation.ranking import rank
from llpauc.losses.base import Loss
from llpauc.losses.softmax import SLAtKLoss
from llpauc.training.batches import batches
from llpauc.training.checkpoint import (
    Checkpoint,
    CheckpointFolder,
    CheckpointSettings,
    open_checkpoints,
)
from llpauc.training.engine import CpuEngine, Engine, TorchEngine
from llpauc.training.history import Diverged, Epoch, History
from llpauc.training.interrupt import StopRequest, stop_requests
from llpauc.training.options import SAMPLERS, TrainingOptions
from llpauc.training.order import BlockOrder, epoch_order
from llpauc.training.progress import Progress, Stage, arrays, fill_weights, settings
from llpauc.training.samplers import collision_rate, make_sampler
from llpauc.training.trainable import Trainable

_QUANTILE_EPOCHS = 5  # SL@K's quantiles are taken anew this often
_UNSEEN = 0.05  # events an item is credited with, so that one without any has a logarithm


def fit(
    model: Trainable,
    loss: Loss,
    split: Split,
    options: TrainingOptions,
    *,
    on_batch: Callable[[int], None] | None = None,
    on_epoch: Callable[[Epoch], None] | None = None,
    checkpoint: CheckpointSettings | CheckpointFolder | None = None,
) -> History:
    """Train `model` in place on split.train; split.valid, where there is one, picks the epoch.

    The test part is never looked at. Ctrl-C (or SIGTERM) ends training after the batch under way;
    the model then has the best weights so far. Processes inside `join_process_group` all call it
    and divide every batch among them.

    Args:
        model: its parameters are changed.
        loss: likewise, where it has variables.
        split: train, and perhaps valid.
        options: see `TrainingOptions`.
        on_batch: called with the number of positives done, about ten times a second.
        on_epoch: called after each epoch; for those before a resumed checkpoint at once.
        checkpoint: where the state of the training is saved, to resume it bit for bit. The folder
            is removed at the end as `open_checkpoints` describes it.

    Raises:
        Diverged: on NaN or infinity. The model has the best weights so far; without a validation
            yet, those of the last whole epoch, or of the start.
    """
    with open_checkpoints(checkpoint) as folder:
        stage = None
        if folder is not None:
            saved = folder.load_newest(settings(model, loss, options), split, options.shard)
            stage = Stage(folder, resume_from=saved)
        history = fit_stage(
            model, loss, split, options, stage, on_batch=on_batch, on_epoch=on_epoch
        )
        if folder is not None and history.signal is None:
            folder.finish()
    return history


def fit_stage(
    model: Trainable,
    loss: Loss,
    split: Split,
    options: TrainingOptions,
    stage: Stage | None,
    *,
    on_batch: Callable[[int], None] | None = None,
    on_epoch: Callable[[Epoch], None] | None = None,
) -> History:
    """`fit`, one among others that share a folder of checkpoints."""
    check_feasible(split.train, model.options.dimensions, options)
    check_device(options.device)
    split = without_empty_valid(split)
    run = _Run(model, loss, split, options, stage, current_process_group())
    if stage is not None and stage.resume_from is not None:
        run.restore(stage.resume_from)
    progress = run.progress
    if on_epoch is not None:
        for epoch in progress.epochs:
            on_epoch(epoch)
    if on_batch is not None and progress.examples:
        on_batch(progress.examples)
    with stop_requests() as stop:
        while (stopped := _why_over(progress, options)) is None:
            try:
                run.train_batches(stop, on_batch)
            except Diverged as error:
                _restore(model, run.best)
                where = progress.epoch, progress.batches + 1
                raise Diverged(_why(error, *where, options)) from None
            cut_short = run.asked_to_stop
            if cut_short:  # before the epoch is ended: a resumed run does that when it is over
                run.save()
            run.end_epoch(validated=not cut_short)
            if on_epoch is not None:
                on_epoch(progress.epochs[-1])
            if run.agree(stop):
                if not cut_short:
                    run.save()
                stopped = "interrupted"
                break
            run.save_if_due()
    if progress.best_epoch:
        _restore(model, run.best)
    epochs = tuple(progress.epochs)
    collisions = collision_rate(run.sampler, split.train)
    asked = stop.signal or (signal.SIGTERM if stopped == "interrupted" else None)
    return History(epochs, progress.best_epoch or len(epochs), collisions, stopped, asked)


def without_empty_valid(split: Split) -> Split:
    """An empty validation part chooses nothing, as none."""
    empty = split.valid is not None and not len(split.valid)
    return dataclasses.replace(split, valid=None) if empty else split


def _why_over(progress: Progress, options: TrainingOptions) -> str | None:
    if progress.waited >= options.patience:
        return "patience"
    return "epochs" if progress.epoch > options.epochs else None


class _Run:
    """A training under way: what moves, and how it is written down and read back."""

    def __init__(
        self,
        model: Trainable,
        loss: Loss,
        split: Split,
        options: TrainingOptions,
        stage: Stage | None,
        processes: ProcessGroup = SINGLE_PROCESS,
    ) -> None:
        train = split.train
        self.processes, self.asked_to_stop, self._save_is_due = processes, False, False
        _check_alike(model, loss, split, options, processes)
        self.model, self.loss, self.split, self.options = model, loss, split, options
        weights = None if options.half_life is None else age_weights(train, options.half_life)
        self._chances = None if weights is None else weights / weights.sum()
        # An item bias that is still zero starts at the log of the item's events, so that training
        # begins at (recent) popularity and not below it.
        counts = np.bincount(train.items, weights, train.n_items)
        model.init_item_bias(np.log(counts + _UNSEEN))
        self.sampler = make_sampler(options.sampler, train, options.negatives, options.seed)
        self.engine: Engine
        if options.device == "cpu":
            self.engine = CpuEngine(model, loss, self.sampler, train, options, processes)
        else:
            self.engine = TorchEngine(model, loss, self.sampler, options, processes)
        self.progress = Progress()
        self.best = _copy(model)  # so far; without validation, the weights of the last epoch
        self._stage = stage

    def train_batches(self, stop: StopRequest, on_batch: Callable[[int], None] | None) -> None:
        """The rest of the epoch under way, unless a stop is asked for."""
        progress, size, train = self.progress, self.options.batch_size, self.split.train
        if not progress.batches:
            self._begin_epoch()
        rest = self._order(progress.batches * size)
        begun = told = time.perf_counter()
        untold = 0
        made = batches(self.engine, train, rest, size, progress.step)
        with closing(made):
            for batch in made:
                progress.loss += self.engine.step(batch)
                n = batch.whole
                progress.step += 1
                progress.batches += 1
                progress.examples += n
                untold += n
                now = time.perf_counter()
                if on_batch is not None and now - told > 0.1:
                    on_batch(untold)
                    told, untold = now, 0
                if self.agree(stop):
                    break
                if self._save_is_due:
                    progress.seconds += now - begun
                    self.save()
                    begun = time.perf_counter()
        progress.seconds += time.perf_counter() - begun

    def agree(self, stop: StopRequest) -> bool:
        """Whether any process was asked to stop; and whether the first wants to save by now."""
        folder = None if self._stage is None else self._stage.checkpoints
        due = self.processes.is_first and folder is not None and folder.is_due(time.perf_counter())
        stops, dues = self.processes.sum([bool(stop), due])
        self.asked_to_stop, self._save_is_due = bool(stops), bool(dues)
        return self.asked_to_stop

    def _begin_epoch(self) -> None:
        if isinstance(self.loss, SLAtKLoss) and (self.progress.epoch - 1) % _QUANTILE_EPOCHS == 0:
            self.engine.settle()
            _refresh_quantiles(self.model, self.loss, self.processes)

    def _order(self, first: int) -> npt.NDArray[np.int64] | BlockOrder:
        """What is left of the epoch under way, after its first `first` events."""
        seed, epoch = self.options.seed, self.progress.epoch
        return epoch_order(self.split.train, seed, epoch, first, self._chances)

    def end_epoch(self, validated: bool) -> None:
        progress, split, options = self.progress, self.split, self.options
        self.engine.settle()
        valid: dict[str, float] = {}
        better = False
        if split.valid is None:
            self.best = _copy(self.model)
        elif validated and progress.epoch % options.valid_every == 0:
            valid = validate(self.model, split, options.valid_metric, self.processes)
            value = next(iter(valid.values()))
            better = value > (-math.inf if progress.best_value is None else progress.best_value)
            if better:
                progress.best_value, progress.best_epoch = value, progress.epoch
                self.best = _copy(self.model)
            progress.waited = 0 if better else progress.waited + 1
        mean = progress.loss / progress.batches
        figures = self.engine.diagnose() or progress.figures
        progress.close(
            Epoch(progress.epoch, mean, progress.seconds, progress.examples, figures, valid, better)
        )

    def save_if_due(self) -> None:
        if self._save_is_due:
            self.save()

    def save(self) -> None:
        """Write all of it down, as it is: rows that lag behind stay there."""
        stage = self._stage
        if stage is None:
            return
        if self.progress.batches:
            self.progress.figures = self.engine.diagnose() or self.progress.figures
        tensors = {
            "weights": arrays(self.model.local_parameters()),
            "best": arrays(self.best),
            "optimizer": self.engine.state(),
            "loss": arrays(self.loss.state_dict()),
            **stage.earlier.tensors,
        }
        progress = {"stage": stage.name, "progress": dataclasses.asdict(self.progress)}
        stage.checkpoints.save(Checkpoint(tensors, {**progress, **stage.earlier.meta}))

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue from a checkpoint of the same training."""
        try:
            for name, into in (
                ("weights", self.model.local_parameters()),
                ("best", self.best),
            ):
                fill_weights(into, checkpoint.tensors[name])
            saved = checkpoint.tensors.get("loss", {})  # a loss without variables leaves no trace
            loss = {name: torch.from_numpy(a) for name, a in saved.items()}
            self.loss.load_state_dict(loss)
            self.engine.load_state(dict(checkpoint.tensors["optimizer"]))
            self.progress = Progress.from_json(checkpoint.meta["progress"])
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            why = " ".join(str(error).split())
            raise InputError(f"the checkpoint does not fit this training: {why}") from None


def validate(
    model: Trainable, split: Split, metric: str, processes: ProcessGroup = SINGLE_PROCESS
) -> dict[str, float]:
    """The metric over all validation users, first of all; then the warm ones apart."""
    result: Evaluation = evaluate(
        model.scorer(),
        split,
        on="valid",
        metrics=[metric],
        processes=processes,
        own_users=model.user_range,
    )
    name = next(iter(result.values))
    means = {name: result.mean(name)}
    if not result.warm.all():
        means[f"{name} (warm)"] = result.mean(name, "warm")
    return means


def check_feasible(train: Interactions, dimensions: int, options: TrainingOptions) -> None:
    """Say before anything is made, not in the middle of it, that there are no events to train on,
    or not enough memory."""
    if not len(train):
        raise InputError("there are no training events")
    tables = (train.n_users + train.n_items) * dimensions * 4
    if options.shard:
        tables //= current_process_group().world_size
    sampler = SAMPLERS[options.sampler]
    columns = sampler.items_scored(options.batch_size, options.negatives, train.n_items)
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


def _refresh_quantiles(
    model: Trainable, loss: SLAtKLoss, processes: ProcessGroup, k: int = 20
) -> None:
    users = np.arange(model.n_users, dtype=np.int32)[processes.slice_of(model.n_users)]
    best = rank(model.scorer(), users, k).scores
    loss.set_quantiles(torch.from_numpy(processes.gather(best[:, -1].copy())))


def _check_alike(
    model: Trainable,
    loss: Loss,
    split: Split,
    options: TrainingOptions,
    processes: ProcessGroup,
) -> None:
    """Processes that train together have one setting, the same events, and begin at one place."""
    if processes.world_size == 1:
        return
    processes.check_equal("the settings", settings(model, loss, options))
    processes.check_equal("the events", fingerprint(split.train, split.valid))
    if model.user_range is None:
        for table in model.parameters():
            processes.broadcast(table.detach().numpy())


def _copy(model: Trainable) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.local_parameters().items()}


def _restore(model: Trainable, weights: dict[str, torch.Tensor]) -> None:
    with torch.no_grad():
        for name, value in model.local_parameters().items():
            value.copy_(weights[name])


def _why(error: Diverged, epoch: int, batch: int, options: TrainingOptions) -> str:
    return (
        f"training diverged in epoch {epoch}, batch {batch}: {error}; most likely the learning"
        f" rate ({options.lr:g}) is too high; the last good weights are kept"
    )
