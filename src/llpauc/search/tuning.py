"""`llpauc tune`: an Optuna study over losses, models and training options, by validation only.

The test part is removed before anything else. Any number of workers, on this and on other machines,
take trials from the study in its storage until the time or the trials are used up.
"""

from __future__ import annotations

import logging
import math
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from llpauc.data.interactions import Split, fingerprint
from llpauc.data.splits import hold_out
from llpauc.distributed import start_worker
from llpauc.errors import InputError, check_at_least, choose
from llpauc.evaluation.full_ranking import evaluate
from llpauc.losses import suggest_alpha_beta
from llpauc.metrics import parse_metric
from llpauc.models import Popularity
from llpauc.search import space as spaces
from llpauc.search.space import Point, Space
from llpauc.search.study import (
    GRACE,
    HEARTBEAT,
    PRUNERS,
    LostTrials,
    check_installed,
    heartbeats,
    open_study,
    requeue,
)
from llpauc.search.trials import Budget, Progress, TrialResult, no_progress, run_trial
from llpauc.storage.environment import cores
from llpauc.training import Epoch, TrainingOptions
from llpauc.training.interrupt import StopRequest, stop_requests
from llpauc.training.loop import check_device

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial, Trial

logger = logging.getLogger(__name__)

_POLL = 0.3  # seconds between two checks of the workers
_STOP_TIMEOUT = 60.0  # seconds that a worker has to stop
_REPLACEMENTS = 3  # of killed workers, for each worker
_WITHDRAWN = "withdrawn"  # marks a trial that two workers asked for and that was not run
_STATES = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "lost"}


class WorkersLost(RuntimeError):
    """All workers and their replacements were killed."""


class NothingFound(RuntimeError):
    """No trial was validated."""


@dataclass(frozen=True)
class Tuning:
    """What to tune, and how.

    Args:
        space: what to search; see `llpauc.search.space`.
        points: what to try first, by name.
        only_points: try these and nothing else: a grid.
        metric: on validation; the larger the better.
        seed: of training and of the sampler.
        epochs, patience, device: of every trial; see `TrainingOptions`.
        pruner: "median", "halving" or "none".
        storage: a journal file, or the URL of a database.
        study: its name in the storage.
        trials: most trials of the study, of all workers and calls together; None: no limit.
        budget: seconds for this call; infinity: no limit.
        hold_out: fraction of each user's events to validate on where there is no validation part.
        workers: processes on this machine, which divide the cores among them.
        heartbeat, grace: see `llpauc.search.study`.
    """

    space: Space
    points: Mapping[str, Point]
    only_points: bool = False
    metric: str = "ndcg@20"
    seed: int = 0
    epochs: int = 100
    patience: int = 5
    device: str = "cpu"
    pruner: str = "median"
    storage: str = "study.journal"
    study: str = "llpauc"
    trials: int | None = None
    budget: float = math.inf
    hold_out: float = 0.1
    workers: int = 1
    heartbeat: float = HEARTBEAT
    grace: float = GRACE

    def __post_init__(self) -> None:
        check_at_least("workers", self.workers, 1)
        choose(dict.fromkeys(PRUNERS), self.pruner, "pruner")
        if self.trials is not None:
            check_at_least("trials", self.trials, 1)
        TrainingOptions(**self.fixed)
        check_device(self.device)

    @property
    def fixed(self) -> dict[str, Any]:
        """The training options that are the same in every trial."""
        return {
            "valid_metric": parse_metric(self.metric).name, "seed": self.seed,
            "epochs": self.epochs, "patience": self.patience, "device": self.device,
        }  # fmt: skip

    def open(self, data: str) -> Study:
        """The study in its storage; `data` is the fingerprint of the events."""
        settings = {"data": data, "only_points": self.only_points, **self.fixed}
        settings |= spaces.as_json(self.space)
        return open_study(self.storage, self.study, settings, self.seed, self.pruner)


@dataclass(frozen=True)
class TrialRecord:
    """A trial of a study.

    Args:
        number: Optuna's.
        state: complete, pruned, lost, running or waiting.
        value: the best validation value, or None.
        ended: see `TrialResult`; also "pruned", "budget" and "no time".
        best_epoch: the epoch of `value`.
        epochs: number of validated epochs.
        seconds: of training and validation.
        params: the point.
        starting_point: its name, or "".
        rerun_of: number of the trial that it repeats, or None.
        message: text of the error, or "".
    """

    number: int
    state: str
    value: float | None
    ended: str
    best_epoch: int
    epochs: int
    seconds: float
    params: Point = field(default_factory=dict)
    starting_point: str = ""
    rerun_of: int | None = None
    message: str = ""

    @property
    def is_complete(self) -> bool:
        return self.state == "complete" and self.value is not None

    @staticmethod
    def of(trial: FrozenTrial) -> TrialRecord:
        saved = trial.user_attrs
        state = _STATES.get(trial.state.name, trial.state.name.lower())
        return TrialRecord(
            trial.number, state, trial.value if state == "complete" else saved.get("value"),
            saved.get("ended", ""), saved.get("best_epoch", 0), saved.get("epochs", 0),
            saved.get("seconds", 0.0), dict(trial.params), saved.get("starting_point", ""),
            saved.get("rerun_of"), saved.get("message", ""),
        )  # fmt: skip


def records_of(trials: list[FrozenTrial]) -> list[TrialRecord]:
    """The trials that were run, best first; complete ones, then pruned ones, then the others."""
    order = {"complete": 0, "pruned": 1}
    records = [TrialRecord.of(trial) for trial in trials if _WITHDRAWN not in trial.user_attrs]

    def key(record: TrialRecord) -> tuple[int, float, int]:
        value = -math.inf if record.value is None else -record.value
        return order.get(record.state, 2), value, record.number

    return sorted((record for record in records if record.state != "waiting"), key=key)


@dataclass(frozen=True)
class TuneResult:
    """The trials of a study.

    Args:
        records: every trial, best first.
        popularity: the metric of the most popular items on the same validation events.
        seconds: duration of this call.
        signal: number of the signal that interrupted it, or None.
    """

    records: tuple[TrialRecord, ...]
    popularity: float
    seconds: float
    signal: int | None = None

    @property
    def best(self) -> TrialRecord | None:
        return next((record for record in self.records if record.is_complete), None)

    def at(self, starting_point: str) -> TrialRecord | None:
        """The complete trial of a starting point."""
        complete = (record for record in self.records if record.is_complete)
        return next((r for r in complete if r.starting_point == starting_point), None)


# --- preparation ----------------------------------------------------------------------------------


def validation_split(split: Split, fraction: float, seed: int) -> Split:
    """Train and valid only: those of the split, or held out as `Recommender.fit` does."""
    if split.valid is not None:
        if not len(split.valid):
            raise InputError("the validation part is empty; there is nothing to choose by")
        return Split(split.train, split.valid)
    if not fraction:
        raise InputError("nothing to choose by: there is no valid file, and hold_out is 0")
    try:
        return hold_out(Split(split.train), fraction, seed)
    except InputError as error:
        raise InputError(
            f"too few events to hold out {fraction:g} of each user's for validation ({error});"
            " raise --hold-out or add data"
        ) from None


def plan_space(
    split: Split,
    losses: tuple[str, ...],
    models: tuple[str, ...],
    metric: str,
    recipe: Mapping[str, Any],
    space_file: str | None = None,
) -> tuple[Space, dict[str, Point]]:
    """The space of a search, and its starting points.

    Args:
        split: train and valid.
        losses, models: names to choose from.
        metric: on validation.
        recipe: for these data, made before a random part is held out of them, which would hide how
            interests change with time.
        space_file: see `llpauc.search.space.read_space`.
    """
    spaces.check_names(losses, models)
    k = parse_metric(metric).k or 20
    space = spaces.default_space(split.train, losses, models, k)
    space = spaces.widen(space, spaces.recipe_point(recipe, losses, models))
    space = _read_changes(space, space_file)
    return space, spaces.starting_points(space, suggest_alpha_beta(split.train, k), recipe)


def plan_grid(
    name: str, losses: tuple[str, ...], models: tuple[str, ...], space_file: str | None = None
) -> tuple[Space, dict[str, Point]]:
    """The space of a named grid, and all of its points."""
    spaces.check_names(losses, models)
    space = _read_changes(spaces.grid_space(name, losses, models), space_file)
    return space, spaces.grid_points(space)


def _read_changes(space: Space, file: str | None) -> Space:
    space = space if file is None else spaces.read_space(file, space)
    spaces.check_space(space)
    return space


# --- the search -----------------------------------------------------------------------------------


def tune(split: Split, tuning: Tuning, progress: Progress = no_progress) -> TuneResult:
    """Search until the budget or the trials are used up, or until interrupted.

    Every trial that ends is logged, whichever worker ran it.

    Args:
        split: train and valid; a test part is not read.
        tuning: what and how.
        progress: called when a trial has ended.

    Raises:
        InputError: for data without validation events, a storage that cannot be used, and a study
            that was made with other settings.
        NothingFound: where no trial was validated.
    """
    check_installed()
    budget = Budget(tuning.budget, time.monotonic())
    split = validation_split(split, tuning.hold_out, tuning.seed)
    evaluation = evaluate(
        Popularity.scorer_of(split.train), split, on="valid", metrics=[tuning.metric]
    )
    popularity = evaluation.mean(next(iter(evaluation.values)))
    if math.isnan(popularity):
        raise InputError("no validation user has an item to find; there is nothing to choose by")
    data = fingerprint(split.train, split.valid)
    study = tuning.open(data)
    _enqueue(study, tuning)
    lost = LostTrials(tuning.grace)
    reporter = _Reporter(study, tuning, budget, progress)
    job = Job(tuning, split, data, budget.begun + budget.seconds)
    with stop_requests() as stop:
        while True:
            if tuning.workers == 1:
                work(study, job, stop, reporter.update)
            else:
                _run_workers(study, job, stop, lost, reporter.update)
            if stop or not _is_work_left(study, job, lost, stop):
                break
    reporter.update()
    records = tuple(records_of(study.get_trials(deepcopy=False)))
    result = TuneResult(records, popularity, budget.passed, stop.signal)
    if result.best is None and not stop:
        message = next((r.message for r in records if r.message), "none was validated")
        raise NothingFound(f"no trial of {len(records)} has a validation value: {message}")
    return result


def _enqueue(study: Study, tuning: Tuning) -> None:
    """Queue the starting points that no trial has had yet."""
    trials = study.get_trials(deepcopy=False)
    queued = {t.user_attrs.get("starting_point") for t in trials if not _is_lost(t)}
    for name, point in tuning.points.items():
        if name not in queued:
            study.enqueue_trial(dict(point), user_attrs={"starting_point": name})


def _is_lost(trial: FrozenTrial) -> bool:
    return trial.state.name == "FAIL"


@dataclass
class _Reporter:
    """Logs each trial that has ended since the last update."""

    study: Study
    tuning: Tuning
    budget: Budget
    progress: Progress

    def __post_init__(self) -> None:
        self.reported = {trial.number for trial in self._ended()}
        self.before = len(self.reported)

    def _ended(self) -> list[FrozenTrial]:
        trials = self.study.get_trials(deepcopy=False)
        return [t for t in trials if t.state.is_finished() and _WITHDRAWN not in t.user_attrs]

    def update(self) -> None:
        ended = self._ended()
        best = next((record for record in records_of(ended) if record.is_complete), None)
        count = sum(not _is_lost(trial) for trial in ended)
        left, fraction = self._left(count)
        for record in map(TrialRecord.of, ended):
            if record.number in self.reported:
                continue
            self.reported.add(record.number)
            value = "-" if record.value is None else f"{record.value:.4f}"
            line = f"trial {record.number:3d}  {value}  {record.ended or record.state:<8}"
            line += f"  {record.seconds:5.1f} s"
            line += "" if best is None else f"  best {best.value:.4f} ({best.number})"
            line += "" if left is None else f"  {left:.0f} s left"
            logger.info("%s", f"{line}  {record.message}" if record.message else line)
            self.progress("tuning", fraction)

    def _left(self, count: int) -> tuple[float | None, float]:
        """Seconds left, by the clock or by the pace of the trials, and the fraction done."""
        total, left = self.tuning.trials, self.budget.left
        if self.tuning.only_points:
            total = min(total or len(self.tuning.points), len(self.tuning.points))
        if total is not None and count > self.before:
            pace = self.budget.passed / (count - self.before)
            left = min(left, pace * max(0, total - count))
        if math.isfinite(self.budget.seconds):
            return max(0.0, left), min(1.0, self.budget.passed / self.budget.seconds)
        return max(0.0, left) if math.isfinite(left) else None, count / (total or count or 1)


# --- one worker -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """What a worker needs; it is sent to worker processes.

    Args:
        tuning: what and how.
        split: train and valid.
        data: the fingerprint of `split`.
        deadline: by `time.monotonic`, which all processes of a machine share.
    """

    tuning: Tuning
    split: Split
    data: str
    deadline: float


def work(
    study: Study, job: Job, stop: StopRequest, after_trial: Callable[[], None] = lambda: None
) -> None:
    """Run trials until there is nothing left to do, or until interrupted."""
    lost = LostTrials(job.tuning.grace)
    while not stop:
        _requeue_lost(study, lost)
        if not _may_start(study, job):
            break
        stop.signal = _run_next(study, job, stop) or stop.signal
        after_trial()


def _requeue_lost(study: Study, lost: LostTrials) -> list[FrozenTrial]:
    """Queue lost trials again; the trials that are running."""
    running = [t for t in study.get_trials(deepcopy=False) if t.state.name == "RUNNING"]
    for trial in lost.find(running):
        requeue(study, trial)
    return running


def _may_start(study: Study, job: Job) -> bool:
    """Whether another trial may be started."""
    trials = study.get_trials(deepcopy=False)
    waiting = sum(t.state.name == "WAITING" for t in trials)
    started = sum(not _is_lost(t) for t in trials) - waiting
    if job.tuning.trials is not None and started >= job.tuning.trials:
        return False
    if job.tuning.only_points and not waiting:
        return False
    # However short the budget, a study ends with one value.
    return time.monotonic() < job.deadline or not started


def _run_next(study: Study, job: Job, stop: StopRequest) -> int | None:
    """Run the next trial of the study; the signal that interrupted it, or None."""
    from optuna.exceptions import UpdateFinishedTrialError
    from optuna.trial import TrialState

    tuning = job.tuning
    trial = study.ask()
    if _is_surplus(study, trial.number, tuning):
        trial.set_user_attr(_WITHDRAWN, True)
        study.tell(trial, state=TrialState.FAIL)
        return None
    needed = not any(t.state.name == "COMPLETE" for t in study.get_trials(deepcopy=False))
    try:
        with heartbeats(trial, tuning.heartbeat):
            result = run_study_trial(
                trial, job.split, tuning.space, tuning.fixed, job.deadline, needed, stop
            )
            attributes = {
                "ended": result.ended, "value": result.value, "best_epoch": result.best_epoch,
                "epochs": len(result.curve), "seconds": result.seconds, "message": result.message,
            }  # fmt: skip
            for name, value in attributes.items():
                trial.set_user_attr(name, value)
        if result.ended in ("interrupted", "no time"):
            requeue(study, study.get_trials(deepcopy=False)[trial.number], killed=False)
        elif result.ended in ("epochs", "patience", "budget") and result.value is not None:
            study.tell(trial, result.value)
        else:
            study.tell(trial, state=TrialState.PRUNED)
        return result.signal
    except (UpdateFinishedTrialError, ValueError):
        # This process was suspended, and another one has queued its trial again.
        if study.get_trials(deepcopy=False)[trial.number].state.is_finished():
            return None
        raise


def _is_surplus(study: Study, number: int, tuning: Tuning) -> bool:
    """Whether two workers started the last trial, or the same starting point, at the same time."""
    trials = study.get_trials(deepcopy=False)
    before = [t for t in trials if t.number < number and not _is_lost(t)]
    name = trials[number].user_attrs.get("starting_point")
    if name is None and tuning.only_points:
        return True
    if name is not None and any(t.user_attrs.get("starting_point") == name for t in before):
        return True
    return tuning.trials is not None and len(before) >= tuning.trials


def run_study_trial(
    trial: Trial,
    split: Split,
    space: Space,
    fixed: Mapping[str, Any],
    deadline: float = math.inf,
    needed: bool = False,
    stop: StopRequest | None = None,
) -> TrialResult:
    """Train the point that the trial suggests; every validation is reported and may be the last.

    Args:
        trial: Optuna's.
        split: train and valid.
        space: what it may suggest.
        fixed: training options of the study: seed, epochs, patience, valid_metric, device.
        deadline: by `time.monotonic`; training stops within a batch after it, once validated.
        needed: whether the trial continues after the deadline until it has a value.
        stop: a request to stop from before training; training itself handles later signals.
    """
    values: list[float] = []

    def on_batch() -> str:
        if stop:
            return "interrupted"
        if time.monotonic() >= deadline and (values or not needed):
            return "budget" if values else "no time"
        return ""

    def on_validation(epoch: Epoch, value: float) -> str:
        values.append(value)
        trial.report(value, epoch.number)
        if not stop and trial.should_prune():
            return "pruned"
        return on_batch()

    settings = {**spaces.suggest(trial, space), **fixed}
    result = run_trial(settings, split, on_batch=on_batch, on_validation=on_validation)
    return replace(result, signal=stop.signal) if stop else result


def _is_work_left(study: Study, job: Job, lost: LostTrials, stop: StopRequest) -> bool:
    """Whether trials of other workers turn out to be lost and are to be run here."""
    while not stop and time.monotonic() < job.deadline:
        running = _requeue_lost(study, lost)
        if _may_start(study, job):
            return True
        if not lost.uncertain(running):
            return False
        time.sleep(_POLL)
    return False


# --- several workers ------------------------------------------------------------------------------


def _run_workers(
    study: Study, job: Job, stop: StopRequest, lost: LostTrials, update: Callable[[], None]
) -> None:
    """Start the workers, and replace those that are killed."""
    workers = [_start(job) for _ in range(job.tuning.workers)]
    replacements = _REPLACEMENTS * job.tuning.workers
    try:
        while not stop and any(worker.is_alive() for worker in workers):
            time.sleep(_POLL)
            update()
            _requeue_lost(study, lost)
            for index, worker in enumerate(workers):
                if worker.is_alive() or not worker.exitcode or not _may_start(study, job):
                    continue
                if not replacements:
                    raise WorkersLost(
                        f"the workers were killed repeatedly, the last with exit code"
                        f" {worker.exitcode}; run the same command to continue the study"
                    )
                workers[index], replacements = _start(job), replacements - 1
    finally:
        for worker in workers:
            if worker.is_alive():
                worker.terminate()  # it stops after the current batch
        for worker in workers:
            worker.join(_STOP_TIMEOUT)
            if worker.is_alive():
                worker.kill()  # the next call finds its trial lost
                worker.join()


def _start(job: Job) -> Any:
    threads = max(1, cores() // job.tuning.workers)
    # spawn: the threads of BLAS and OpenMP do not survive a fork.
    worker = multiprocessing.get_context("spawn").Process(
        target=_work_in_process, args=(job, threads, os.getpid()), daemon=True
    )
    with _ignored(signal.SIGINT):  # only the parent handles Ctrl-C, and stops its workers
        worker.start()
    return worker


@contextmanager
def _ignored(number: int) -> Iterator[None]:
    """Ignore a signal here and in processes started meanwhile."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread can set handlers
        return
    before = signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(number, before)


def _work_in_process(job: Job, threads: int, parent: int) -> None:
    if hasattr(os, "setpgrp"):
        os.setpgrp()  # Ctrl-C in the terminal is sent to the parent's group only
    start_worker(threads, parent)
    with stop_requests() as stop:
        work(job.tuning.open(job.data), job, stop)
