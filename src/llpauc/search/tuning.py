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
from llpauc.data.splits import TooFewEvents, hold_out
from llpauc.distributed import start_worker
from llpauc.errors import InputError, check_at_least, choose
from llpauc.evaluation.full_ranking import evaluate
from llpauc.metrics import parse_metric
from llpauc.models import Popularity
from llpauc.search.space import Point, Space, as_json, suggest
from llpauc.search.study import (
    GRACE,
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
_WITHDRAWN = "withdrawn"  # marks a trial that two workers started and that was not run
_STATES = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "lost"}
_SAVED = ("ended", "value", "best_epoch", "seconds", "message")  # in the storage, of a TrialResult
_STATE_ORDER = ("complete", "pruned", "lost", "running")  # in tables


class WorkersLost(RuntimeError):
    """All workers and their replacements were killed."""


class NothingFound(RuntimeError):
    """No trial was validated."""


@dataclass(frozen=True)
class Tuning:
    """What to tune, and how."""

    space: Space
    points: Mapping[str, Point]  # tried first, by name
    only_points: bool = False  # try these and nothing else: a grid
    metric: str = "ndcg@20"  # on validation
    seed: int = 0  # of training and of the sampler
    epochs: int = 100
    patience: int = 5
    device: str = "cpu"
    pruner: str = "median"
    storage: str = "study.journal"  # or the URL of a database
    study: str = "llpauc"  # its name in the storage
    trials: int | None = None  # most trials of the study, of all workers and calls together
    budget: float = math.inf  # seconds for this call
    hold_out: float = 0.1  # of each user's events, where there is no validation part
    workers: int = 1  # processes on this machine, which divide the cores among them
    grace: float = GRACE  # seconds without a heartbeat until a trial elsewhere is lost

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
        settings |= as_json(self.space)
        return open_study(self.storage, self.study, settings, self.seed, self.pruner)


@dataclass(frozen=True, kw_only=True)
class TrialRecord(TrialResult):
    """A trial of a study; it may also have ended as "pruned", "budget" or "no time"."""

    number: int  # Optuna's
    state: str  # complete, pruned, lost, running or waiting
    params: Point = field(default_factory=dict)
    starting_point: str = ""  # its name
    rerun_of: int | None = None  # number of the trial that it repeats

    @property
    def is_complete(self) -> bool:
        return self.state == "complete" and self.value is not None

    @staticmethod
    def of(trial: FrozenTrial) -> TrialRecord:
        names = (*_SAVED, "starting_point", "rerun_of")
        saved = {name: trial.user_attrs[name] for name in names if name in trial.user_attrs}
        state = _STATES.get(trial.state.name, trial.state.name.lower())
        saved = {"ended": "", **saved, **({"value": trial.value} if state == "complete" else {})}
        curve = tuple(trial.intermediate_values.values())
        return TrialRecord(
            number=trial.number, state=state, params=dict(trial.params), curve=curve, **saved
        )


def records_of(trials: list[FrozenTrial]) -> list[TrialRecord]:
    """The trials that were run, best first; complete ones, then pruned ones, then the others."""
    records = [TrialRecord.of(trial) for trial in trials if _WITHDRAWN not in trial.user_attrs]
    return sorted(
        (record for record in records if record.state in _STATE_ORDER),
        key=lambda r: (min(_STATE_ORDER.index(r.state), 2), -r.sort_value, r.number),
    )


@dataclass(frozen=True)
class TuneResult:
    """The trials of a study."""

    records: tuple[TrialRecord, ...]  # best first
    popularity: float  # the metric of the most popular items on the same validation events
    seconds: float
    signal: int | None = None  # that interrupted the call

    @property
    def best(self) -> TrialRecord | None:
        return next((record for record in self.records if record.is_complete), None)


def validation_split(split: Split, fraction: float, seed: int, how: str = "auto") -> Split:
    """Train and valid only: those of the split, or held out as `Recommender.fit` does."""
    if split.valid is not None:
        if not len(split.valid):
            raise InputError("the validation part is empty; there is nothing to choose by")
        return Split(split.train, split.valid)
    if not fraction:
        raise InputError("nothing to choose by: there is no valid file, and hold_out is 0")
    try:
        return hold_out(Split(split.train), fraction, seed, how)
    except TooFewEvents as error:
        raise InputError(
            f"too few events to hold out {fraction:g} of them for validation ({error});"
            " raise --hold-out or add data"
        ) from None


def tune(split: Split, tuning: Tuning, progress: Progress = no_progress) -> TuneResult:
    """Search until the budget or the trials are used up, or until interrupted.

    Every trial that ends is logged, whichever worker ran it, and `progress` is called. A test part
    is not read.

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
    with stop_requests() as stop:
        data = fingerprint(split.train, split.valid)
        worker = Worker(tuning, split, data, budget.begun + budget.seconds, stop)
        _enqueue(worker.study, tuning.points)
        reporter = _Reporter(worker.study, tuning, budget, progress)
        while True:
            if tuning.workers == 1:
                worker.run(reporter.update)
            else:
                _run_processes(worker, reporter.update)
            if stop or not worker.wait_for_others():
                break
    reporter.update()
    records = tuple(records_of(worker.study.get_trials(deepcopy=False)))
    result = TuneResult(records, popularity, budget.passed, stop.signal)
    if result.best is None and not stop:
        message = next((r.message for r in records if r.message), "none was validated")
        raise NothingFound(f"no trial of {len(records)} has a validation value: {message}")
    return result


def _enqueue(study: Study, points: Mapping[str, Point]) -> None:
    """Queue the starting points that no trial has had yet."""
    trials = study.get_trials(deepcopy=False)
    queued = {t.user_attrs.get("starting_point") for t in trials if not _is_lost(t)}
    for name, point in points.items():
        if name not in queued:
            study.enqueue_trial(dict(point), user_attrs={"starting_point": name})


def _is_lost(trial: FrozenTrial) -> bool:
    return trial.state.name == "FAIL"


class _Reporter:
    """Logs each trial that has ended since the last update."""

    def __init__(self, study: Study, tuning: Tuning, budget: Budget, progress: Progress) -> None:
        self.study, self.tuning, self.budget, self.progress = study, tuning, budget, progress
        self.reported = {record.number for record in self._ended()}
        self.before = len(self.reported)

    def _ended(self) -> list[TrialRecord]:
        records = records_of(self.study.get_trials(deepcopy=False))
        return [record for record in records if record.state != "running"]

    def update(self) -> None:
        ended = self._ended()
        left, fraction = self._left(sum(record.state != "lost" for record in ended))
        complete = [record for record in ended if record.is_complete]
        best = f"  best {complete[0].value:.4f} ({complete[0].number})" if complete else ""
        for record in sorted(ended, key=lambda record: record.number):
            if record.number in self.reported:
                continue
            self.reported.add(record.number)
            ended_as = record.ended or record.state
            line = f"trial {record.number:3d}  {record.value_text}  {ended_as:<8}"
            line += f"  {record.seconds:5.1f} s{best}"
            line += f"  {left:.0f} s left" if math.isfinite(left) else ""
            logger.info("%s", f"{line}  {record.message}" if record.message else line)
            self.progress("tuning", fraction)

    def _left(self, count: int) -> tuple[float, float]:
        """Seconds left, by the clock or by the pace of the trials, and the fraction done."""
        total = math.inf if self.tuning.trials is None else self.tuning.trials
        if self.tuning.only_points:
            total = min(total, len(self.tuning.points))
        left = self.budget.left
        if count > self.before and math.isfinite(total):
            pace = self.budget.passed / (count - self.before)
            left = min(left, pace * max(0, total - count))
        if math.isfinite(self.budget.seconds):
            return max(0.0, left), min(1.0, self.budget.passed / self.budget.seconds)
        return max(0.0, left), count / total


# --- one worker -----------------------------------------------------------------------------------


class Worker:
    """Runs trials of a study until `deadline`, by the clock that its processes share."""

    def __init__(
        self, tuning: Tuning, split: Split, data: str, deadline: float, stop: StopRequest
    ) -> None:
        self.job = tuning, split, data, deadline  # for the worker processes
        self.tuning, self.split, self.deadline, self.stop = tuning, split, deadline, stop
        self.study = tuning.open(data)
        self.lost = LostTrials(tuning.grace)

    def run(self, after_trial: Callable[[], None] = lambda: None) -> None:
        """Run trials until there is nothing left to do, or until interrupted."""
        while not self.stop:
            self.requeue_lost()
            if not self.may_start():
                break
            self._run_next()
            after_trial()

    def requeue_lost(self) -> list[FrozenTrial]:
        """Queue lost trials again; the trials that are running."""
        running = [t for t in self.study.get_trials(deepcopy=False) if t.state.name == "RUNNING"]
        for trial in self.lost.find(running):
            requeue(self.study, trial)
        return running

    def may_start(self) -> bool:
        """Whether another trial may be started."""
        trials = self.study.get_trials(deepcopy=False)
        waiting = sum(t.state.name == "WAITING" for t in trials)
        started = sum(not _is_lost(t) for t in trials) - waiting
        if self.tuning.trials is not None and started >= self.tuning.trials:
            return False
        if self.tuning.only_points and not waiting:
            return False
        # However short the budget, a study ends with one value.
        return time.monotonic() < self.deadline or not started

    def wait_for_others(self) -> bool:
        """Wait until trials of other workers end or are lost; whether there is work to do here."""
        while not self.stop and time.monotonic() < self.deadline:
            running = self.requeue_lost()
            if self.may_start():
                return True
            if not self.lost.uncertain(running):
                return False
            time.sleep(_POLL)
        return False

    def _run_next(self) -> None:
        """Run the next trial of the study."""
        from optuna.exceptions import UpdateFinishedTrialError
        from optuna.trial import TrialState

        study, tuning = self.study, self.tuning
        trial = study.ask()
        trials = study.get_trials(deepcopy=False)
        if is_surplus(trials, trial.number, tuning):
            trial.set_user_attr(_WITHDRAWN, True)
            study.tell(trial, state=TrialState.FAIL)
            return
        needed = not any(t.state.name == "COMPLETE" for t in trials)
        try:
            with heartbeats(trial):
                result = run_study_trial(
                    trial, self.split, tuning.space, tuning.fixed, self.deadline, needed, self.stop
                )
                for name in _SAVED:
                    trial.set_user_attr(name, getattr(result, name))
            if result.ended in ("interrupted", "no time"):
                requeue(study, study.get_trials(deepcopy=False)[trial.number], killed=False)
            elif result.ended in ("epochs", "patience", "budget") and result.value is not None:
                study.tell(trial, result.value)
            else:
                study.tell(trial, state=TrialState.PRUNED)
            self.stop.signal = result.signal or self.stop.signal
        except (UpdateFinishedTrialError, ValueError):
            # This process was suspended, and another one has queued its trial again.
            if not study.get_trials(deepcopy=False)[trial.number].state.is_finished():
                raise


def is_surplus(trials: list[FrozenTrial], number: int, tuning: Tuning) -> bool:
    """Whether two workers started the last trial, or the same starting point, at the same time."""
    before = [t for t in trials if t.number < number and not _is_lost(t)]
    name = trials[number].user_attrs.get("starting_point")
    same_point = any(t.user_attrs.get("starting_point") == name for t in before)
    repeated = tuning.only_points if name is None else same_point
    return repeated or (tuning.trials is not None and len(before) >= tuning.trials)


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

    settings = {**suggest(trial, space), **fixed}
    result = run_trial(settings, split, on_batch=on_batch, on_validation=on_validation)
    return replace(result, signal=stop.signal) if stop else result


# --- several workers ------------------------------------------------------------------------------


def _run_processes(worker: Worker, update: Callable[[], None]) -> None:
    """Start the worker processes, and replace those that are killed."""
    processes = [_start(worker) for _ in range(worker.tuning.workers)]
    replacements = _REPLACEMENTS * len(processes)
    try:
        while not worker.stop and any(process.is_alive() for process in processes):
            time.sleep(_POLL)
            update()
            worker.requeue_lost()
            for index, process in enumerate(processes):
                if process.is_alive() or not process.exitcode or not worker.may_start():
                    continue
                if not replacements:
                    raise WorkersLost(
                        f"the workers were killed repeatedly, the last with exit code"
                        f" {process.exitcode}; run the same command to continue the study"
                    )
                processes[index], replacements = _start(worker), replacements - 1
    finally:
        for process in processes:
            if process.is_alive():
                process.terminate()  # it stops after the current batch
        for process in processes:
            process.join(_STOP_TIMEOUT)
            if process.is_alive():
                process.kill()  # the next call finds its trial lost
                process.join()


def _start(worker: Worker) -> Any:
    threads = max(1, cores() // worker.tuning.workers)
    # spawn: the threads of BLAS and OpenMP do not survive a fork.
    process = multiprocessing.get_context("spawn").Process(
        target=_run_in_process, args=(worker.job, threads, os.getpid()), daemon=True
    )
    with _ignored(signal.SIGINT):  # only the parent handles Ctrl-C, and stops its workers
        process.start()
    return process


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


def _run_in_process(job: tuple[Tuning, Split, str, float], threads: int, parent: int) -> None:
    os.setpgrp()  # Ctrl-C in the terminal is sent to the parent's group only
    start_worker(threads, parent)
    with stop_requests() as stop:
        Worker(*job, stop).run()
