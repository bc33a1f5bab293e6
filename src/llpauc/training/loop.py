"""The training loop, to be read from top to bottom: `fit`, `fit_stage`, then `_Run`."""

from __future__ import annotations

import dataclasses
import logging
import math
import signal
import time
from collections.abc import Callable, Generator
from contextlib import closing
from functools import partial
from importlib.metadata import version

import numpy as np
import torch

from llpauc.data.interactions import Interactions, Split, fingerprint, pair_codes, sorted_rows
from llpauc.data.recency import age_weights
from llpauc.distributed import SINGLE_PROCESS, ProcessGroup, current_process_group
from llpauc.errors import InputError
from llpauc.evaluation.full_ranking import evaluate
from llpauc.evaluation.ranking import tile_users
from llpauc.losses.base import Loss
from llpauc.runtime import forked_with_threads
from llpauc.training.batches import Batch, batches, epoch_order
from llpauc.training.checkpoint import (
    Checkpoint,
    CheckpointFolder,
    CheckpointSettings,
    open_checkpoints,
)
from llpauc.training.engine import CpuEngine, Engine, TorchEngine
from llpauc.training.interrupt import StopRequest, stop_requests
from llpauc.training.options import SAMPLERS, TrainingOptions
from llpauc.training.partition import Partition, check_partition
from llpauc.training.progress import (
    Diverged,
    Epoch,
    History,
    Progress,
    Stage,
    arrays,
    fill_weights,
    settings,
)
from llpauc.training.samplers import collision_rate, make_sampler
from llpauc.training.trainable import Trainable

_UNSEEN = 0.05  # added to the number of events of each item, so that all have a logarithm
_REPORT_SECONDS = 0.1  # between two calls of on_batch
_SLOW = 1.5  # times the others' time from which a process is reported as slow

log = logging.getLogger(__name__)


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
    """Train `model` in place on split.train; split.valid, if given, chooses the best epoch.

    The test part is not used. Ctrl-C or SIGTERM ends training after the current batch, with the
    best weights so far. Processes inside `join_process_group` all call it and train together, as
    `llpauc.training.partition` describes it.

    Args:
        model: its parameters are changed.
        loss: its variables are changed, if it has any.
        split: train, and perhaps valid.
        options: see `TrainingOptions`.
        on_batch: called with the number of positives since the last call, about ten times a second.
        on_epoch: called after each epoch; on resuming also for each earlier epoch.
        checkpoint: where the state of the training is saved, to resume it bit for bit. The folder
            is removed at the end as `open_checkpoints` describes it.

    Raises:
        Diverged: on NaN or infinity. The model has the best weights so far; before the first
            validation those of the last complete epoch, or the initial ones.
    """
    with open_checkpoints(checkpoint) as folder:
        stage = None
        if folder is not None:
            saved = folder.load_newest(settings(model, loss, options), split)
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
    """`fit` as one of several trainings that share a folder of checkpoints."""
    # Fail before memory is allocated or time is spent.
    if forked_with_threads():
        raise InputError(
            "cannot train in a process that was forked after a training: its threads are missing;"
            ' start processes with multiprocessing.get_context("spawn")'
        )
    check_feasible(split.train, model.options.dimensions, options)
    check_device(options.device)
    run = _Run(model, loss, without_empty_valid(split), options, stage)

    # Continue from a checkpoint, and report the work that was done before it.
    if stage is not None and stage.resume_from is not None:
        run.restore(stage.resume_from)
    progress = run.progress
    if on_epoch is not None:
        for epoch in progress.epochs:
            on_epoch(epoch)
    if on_batch is not None and progress.examples:
        on_batch(progress.examples)

    # Train epoch by epoch, until the last one, until patience runs out, or until a signal.
    with stop_requests() as stop:
        while (stopped := _reason_to_end(progress, options)) is None:
            try:
                run.train_batches(stop, on_batch)
            except Diverged as error:
                fill_weights(model.weights(), run.best)
                raise Diverged(
                    f"training diverged in epoch {progress.epoch}, batch {progress.batches + 1}:"
                    f" {error}; most likely the learning rate ({options.lr:g}) is too high; the"
                    " last good weights are kept"
                ) from None
            interrupted = run.stop_requested
            if interrupted:  # save before the epoch ends, so that a resumed training finishes it
                run.save()
            run.end_epoch(validate=not interrupted)
            if on_epoch is not None:
                on_epoch(progress.epochs[-1])
            if run.synchronize(stop):
                if not interrupted:
                    run.save()
                stopped = "interrupted"
                break
            if run.save_is_due:
                run.save()

    # The model gets the weights of the best epoch.
    if progress.best_epoch:
        fill_weights(model.weights(), run.best)
    best_epoch = progress.best_epoch or len(progress.epochs)
    collisions = collision_rate(run.sampler, run.events)
    received = stop.signal or (signal.SIGTERM if stopped == "interrupted" else None)
    return History(tuple(progress.epochs), best_epoch, collisions, stopped, received)


def without_empty_valid(split: Split) -> Split:
    """The split without its validation part, if that is empty."""
    empty = split.valid is not None and not len(split.valid)
    return dataclasses.replace(split, valid=None) if empty else split


def _reason_to_end(progress: Progress, options: TrainingOptions) -> str | None:
    if progress.waited >= options.patience:
        return "patience"
    return "epochs" if progress.epoch > options.epochs else None


class _Run:
    """A training in progress: its state, one epoch of it, and its checkpoints."""

    def __init__(
        self,
        model: Trainable,
        loss: Loss,
        split: Split,
        options: TrainingOptions,
        stage: Stage | None,
    ) -> None:
        train = split.train
        self.processes = current_process_group()
        _check_processes(model, loss, split, options, self.processes)
        self.model, self.loss, self.split, self.options = model, loss, split, options
        self.stop_requested = self.save_is_due = False
        self._stage = stage

        # Events of weight 0 are no positives. Older events are drawn less often. Both ages and
        # weights count for the initial bias of an item: the logarithm of its popularity, from which
        # training starts.
        ages = None if options.half_life is None else age_weights(train, options.half_life)
        self.events = train
        has_zeros = train.weights is not None and not train.weights.all()
        if has_zeros or not train.shuffled:
            # Batches are drawn by position; the order of rows must not count
            keys = pair_codes(train.users, train.items, train.n_items)
            rows = sorted_rows(keys, ages, train.weights)
            rows = rows if train.weights is None else rows[train.weights[rows] > 0]
            self.events = train.take(rows)
            ages = None if ages is None else ages[rows]
        self._weights = self.events.event_weights
        self._chances = None if ages is None else ages / ages.sum()
        given = [array for array in (ages, self._weights) if array is not None]
        counts = np.bincount(self.events.items, math.prod(given) if given else None, train.n_items)
        model.init_item_bias(np.log(counts + _UNSEEN))

        self.sampler = make_sampler(options.sampler, train, options.negatives, options.seed)
        self.engine: Engine | None = None
        self._partition: Partition | None = None
        if self.processes.world_size > 1:
            of_events = self._chances, self.processes, self._weights
            self._partition = Partition(model, loss, self.events, options, *of_events)
        elif options.device == "cpu":
            self.engine = CpuEngine(model, loss, self.sampler, train, options)
        else:
            self.engine = TorchEngine(model, loss, self.sampler, options)
        self.progress = Progress()
        self.best = self._copy_weights()  # without validation, those of the last epoch

    def train_batches(self, stop: StopRequest, on_batch: Callable[[int], None] | None) -> None:
        """Train on the rest of the current epoch, or until a stop is requested."""
        progress, options, events = self.progress, self.options, self.events
        if not progress.batches:
            self.loss.begin_epoch(progress.epoch, self._for_all_users)
        if self._partition is not None:
            self._train_rounds(self._partition, stop, on_batch)
            return
        assert self.engine is not None
        self.engine.set_lr(options.lr_of(progress.epoch))
        done = progress.batches * options.batch_size
        order = epoch_order(events, options.seed, progress.epoch, done, self._chances)
        begun = time.perf_counter()
        made = batches(self.engine, events, order, options.batch_size, progress.step, self._weights)
        with closing(_steps(self.engine, made, on_batch)) as steps:
            for value, examples in steps:
                progress.add(value, 1, examples)
                if self.synchronize(stop):
                    break
                if self.save_is_due:
                    progress.seconds += time.perf_counter() - begun
                    self.save()
                    begun = time.perf_counter()
        progress.seconds += time.perf_counter() - begun

    def _train_rounds(
        self, partition: Partition, stop: StopRequest, on_batch: Callable[[int], None] | None
    ) -> None:
        """`train_batches` of several processes, which stop and save between two rounds."""
        progress, size = self.progress, self.processes.world_size
        partition.begin_epoch(progress.epoch, progress.batches // partition.batches)
        seconds = np.zeros(size)
        while partition.round < partition.rounds:
            begun = time.perf_counter()
            engine, events, order = partition.open_round(progress.epoch, progress.step)
            self.engine, batch_size = engine, max(1, -(-len(order) // partition.batches))
            engine.set_lr(self.options.lr_of(progress.epoch))
            made = batches(engine, events, order, batch_size, size * progress.step, events.weights)
            loss, n_batches, examples, problem = 0.0, 0, 0, ""
            try:
                with closing(_steps(engine, made, on_batch, size)) as steps:
                    for value, positives in steps:
                        loss, n_batches = loss + value, n_batches + 1
                        examples += positives
                engine.settle()
            except Diverged as error:
                problem = str(error)
            used = time.perf_counter() - begun
            of_all = partition.average([loss, n_batches, examples, bool(problem), used])
            loss, n_batches, examples, diverged, _ = of_all.sum(axis=0).tolist()
            if diverged:
                partition.gather()  # waits for blocks that are on their way
                raise Diverged(next(filter(None, self.processes.gather_texts(problem))))
            progress.add(loss * partition.batches / n_batches, partition.batches, int(examples))
            progress.seconds += time.perf_counter() - begun
            seconds += of_all[:, -1]
            if self.synchronize(stop):
                return
            if self.save_is_due:
                self.save()
            partition.close_round()
        slowest = int(seconds.argmax())
        others = np.delete(seconds, slowest).max()
        if seconds[slowest] > max(_SLOW * others, others + 1):
            log.warning(
                "process %d is slow: it needed %.1f s for epoch %d, the others at most %.1f s",
                slowest, seconds[slowest], progress.epoch, others,
            )  # fmt: skip

    def synchronize(self, stop: StopRequest) -> bool:
        """Whether a stop was requested in any process. Sets `save_is_due` if the first process is
        due to save."""
        folder = None if self._stage is None else self._stage.checkpoints
        due = self.processes.is_first and folder is not None and folder.is_due(time.perf_counter())
        self.stop_requested, self.save_is_due = bool(stop), due
        if self.processes.world_size > 1:
            stops, dues = self.processes.all_gather([bool(stop), due]).sum(axis=0)
            self.stop_requested, self.save_is_due = bool(stops), bool(dues)
        return self.stop_requested

    def _settle(self) -> None:
        """Bring the tables of the model up to date."""
        if self._partition is not None:
            self._partition.gather()
        elif self.engine is not None:
            self.engine.settle()

    def _diagnostics(self) -> dict[str, float]:
        values = {} if self.engine is None else self.engine.diagnose()
        return values or self.progress.diagnostics

    def end_epoch(self, validate: bool) -> None:
        """Validate, remember the best weights, and move on to the next epoch."""
        progress, split, options = self.progress, self.split, self.options
        self._settle()
        valid: dict[str, float] = {}
        is_best = False
        if split.valid is None:
            self.best = self._copy_weights()
        elif validate and progress.epoch % options.valid_every == 0:
            valid = validation_metrics(self.model, split, options.valid_metric, self.processes)
            value = next(iter(valid.values()))
            is_best = value > (-math.inf if progress.best_value is None else progress.best_value)
            if is_best:
                progress.best_value, progress.best_epoch = value, progress.epoch
                self.best = self._copy_weights()
            progress.waited = 0 if is_best else progress.waited + 1
        progress.finish_epoch(
            Epoch(
                progress.epoch,
                loss=progress.loss / progress.batches,
                seconds=progress.seconds,
                examples=progress.examples,
                diagnostics=self._diagnostics(),
                valid=valid,
                best=is_best,
            )
        )

    def save(self) -> None:
        """Write a checkpoint of the state as it is: rows that are not up to date stay so."""
        stage, progress = self._stage, self.progress
        if stage is None:
            return
        if self._partition is not None:
            self._partition.gather()
        if progress.batches:
            progress.diagnostics = self._diagnostics()
        tensors = {
            "weights": arrays(self.model.weights()),
            "best": arrays(self.best),
            "optimizer": self._optimizer.state(),
            "loss": arrays(self.loss.state_dict()),
            **stage.earlier.tensors,
        }
        meta = {"stage": stage.name, "progress": dataclasses.asdict(progress)}
        stage.checkpoints.save(Checkpoint(tensors, {**meta, **stage.earlier.meta}))

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue from a checkpoint of the same training."""
        tensors = checkpoint.tensors
        try:
            fill_weights(self.model.weights(), tensors["weights"])
            fill_weights(self.best, tensors["best"])
            saved = tensors.get("loss", {})  # a loss without variables has no arrays
            self.loss.load_state_dict({name: torch.from_numpy(a) for name, a in saved.items()})
            self._optimizer.load_state(dict(tensors["optimizer"]))
            per_epoch = -(-len(self.events) // self.options.batch_size)
            if self._partition is not None:
                per_epoch = self._partition.rounds * self._partition.batches
            self.progress = Progress.from_json(checkpoint.meta["progress"], per_epoch)
        except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
            reason = " ".join(str(error).split())
            raise InputError(f"the checkpoint does not fit this training: {reason}") from None

    @property
    def _optimizer(self) -> Engine | Partition:
        """What holds the state of the optimizer."""
        optimizer = self._partition or self.engine
        assert optimizer is not None
        return optimizer

    def _copy_weights(self) -> dict[str, torch.Tensor]:
        return {name: value.clone() for name, value in self.model.weights().items()}

    def _for_all_users(
        self, function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    ) -> torch.Tensor:
        """(n_users, ...): a function of the scores of all items and of the training items, called
        for blocks of users."""
        self._settle()
        scorer, train = self.model.scorer(), self.split.train
        users = np.arange(train.n_users, dtype=np.int32)[self.processes.slice_of(train.n_users)]
        results = []
        for block in np.array_split(users, len(users) // tile_users(train.n_items) + 1):
            scores = np.empty((len(block), train.n_items), np.float32)
            scorer.scores_into(block, scores)
            positives = train.positives[block].toarray() != 0
            results.append(function(torch.from_numpy(scores), torch.from_numpy(positives)).numpy())
        return torch.from_numpy(self.processes.gather(np.concatenate(results)))


def _steps(
    engine: Engine,
    made: Generator[Batch],
    on_batch: Callable[[int], None] | None,
    processes: int = 1,
) -> Generator[tuple[float, int]]:
    """Train on batches; the loss and the number of positives of each."""
    reported, unreported = time.perf_counter(), 0
    with closing(made):
        for batch in made:
            value = engine.step(batch)
            unreported += len(batch.users) * processes
            now = time.perf_counter()
            if on_batch is not None and now - reported > _REPORT_SECONDS:
                on_batch(unreported)
                reported, unreported = now, 0
            yield value, len(batch.users)


def validation_metrics(
    model: Trainable, split: Split, metric: str, processes: ProcessGroup = SINGLE_PROCESS
) -> dict[str, float]:
    """The metric over all validation users, then over the warm ones if some are cold."""
    result = evaluate(
        model.scorer(),
        split,
        on="valid",
        metrics=[metric],
        processes=processes,
    )
    name = next(iter(result.values))
    means = {name: result.mean(name)}
    if not result.warm.all():
        means[f"{name} (warm)"] = result.mean(name, "warm")
    return means


def _check_processes(
    model: Trainable, loss: Loss, split: Split, options: TrainingOptions, processes: ProcessGroup
) -> None:
    """All processes must have the same settings and events; their models get equal weights."""
    if processes.world_size == 1:
        return
    check = partial(check_partition, model, split.train, options, processes.world_size)
    processes.call_together(check)
    versions = {name: version(name) for name in ("llpauc", "numpy", "torch")}
    processes.check_equal("the versions", versions)
    processes.check_equal("the settings", settings(model, loss, options))
    processes.check_equal("the events", fingerprint(split.train, split.valid))
    for table in model.weights().values():
        processes.broadcast(table.numpy())


def check_feasible(train: Interactions, dimensions: int, options: TrainingOptions) -> None:
    """Raise an error if there are no training events or not enough memory."""
    if not train.positives.nnz:
        raise InputError("there are no training events with a weight above 0")
    tables = (train.n_users + train.n_items) * dimensions * 4
    sampler = SAMPLERS[options.sampler]
    columns = sampler.items_scored(options.batch_size, options.negatives, train.n_items)
    # Weights, two moments of Adam and the best weights; scores, gradients and prepared batches.
    needed = tables * 4 + options.batch_size * columns * 4 * 15
    free = available_memory()
    if free is not None and needed > free:
        raise InputError(
            f"training needs about {needed / 2**30:.1f} GB, {free / 2**30:.1f} GB are free;"
            f" lower dimensions ({dimensions}), batch_size ({options.batch_size})"
            f" or negatives ({options.negatives})"
        )


def check_device(device: str) -> None:
    """Raise an error if torch cannot use the device."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"device {device!r} cannot be used here ({reason}); use cpu") from None


def available_memory() -> int | None:
    """Bytes available without swapping; None where the system does not report it."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None
