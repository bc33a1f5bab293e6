"""Those who run a study's trials: this process, or several that it starts and looks after."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from llpauc.data.interactions import Split
from llpauc.distributed import start_worker
from llpauc.errors import check_at_least, choose
from llpauc.metrics import parse_metric
from llpauc.search.tuning.claims import BEAT, GRACE, Watch, beating, requeue
from llpauc.search.tuning.space import Point, Space, as_plain
from llpauc.search.tuning.storage import PRUNERS, open_study
from llpauc.search.tuning.trials import HIDDEN, Ended, TrialRow, row, rows_of, run_trial
from llpauc.storage.environment import cores
from llpauc.training import TrainingOptions
from llpauc.training.interrupt import StopRequest, stop_requests
from llpauc.training.loop import check_device

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial

_POLL = 0.3  # seconds between two looks at the workers
_FAREWELL = 60.0  # seconds a worker may take to stop when asked
_REPLACEMENTS = 3  # of workers that died, for each worker


class WorkersLost(RuntimeError):
    """The workers died, those that took their places too."""


@dataclass(frozen=True)
class Tuning:
    """What is to be tuned, and how.

    Args:
        space: what to search; see `llpauc.search.tuning.space`.
        points: what to try first, by name.
        only_points: try these and nothing else: a grid.
        metric: on validation; the greater the better.
        seed: of the starting vectors, the order, the negatives and the sampler.
        epochs, patience, device: of every trial; see `TrainingOptions`.
        pruner: "median", "halving" or "none".
        storage: a journal file, or the URL of a database.
        study: its name there.
        trials: most trials of the study, all workers and earlier calls together; None: no limit.
        budget: seconds from now; infinity: no limit.
        hold_out: share of each user's events to validate on where there is no validation part.
        workers: processes here, each on its share of the cores.
        beat, grace: see `llpauc.search.tuning.claims`.
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
    beat: float = BEAT
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
        """The fit options that are the same in every trial."""
        return {
            "valid_metric": parse_metric(self.metric).name, "seed": self.seed,
            "epochs": self.epochs, "patience": self.patience, "device": self.device,
        }  # fmt: skip


@dataclass(frozen=True)
class Step:
    """A trial has ended.

    Args:
        row: the trial.
        best: the best so far, or None.
        ended: trials of the study that have.
        left: seconds until the end, or None where that cannot be said yet.
    """

    row: TrialRow
    best: TrialRow | None
    ended: int
    left: float | None


def open_tuning(tuning: Tuning, data: str) -> Study:
    """The study in its storage; `data` is the fingerprint of what it is made on."""
    settings = {
        "data": data, "only_points": tuning.only_points, **tuning.fixed,
        **as_plain(tuning.space),
    }  # fmt: skip
    return open_study(tuning.storage, tuning.study, settings, tuning.seed, tuning.pruner)


def is_lost(trial: FrozenTrial) -> bool:
    return trial.state.name == "FAIL"


@dataclass(frozen=True)
class Job:
    """What a worker needs; it goes to other processes as it is."""

    tuning: Tuning
    split: Split
    data: str
    deadline: float


def work(
    study: Study, job: Job, stop: StopRequest, after: Callable[[], None] = lambda: None
) -> None:
    """Run trials until there is nothing left to do, or somebody asks to stop."""
    watch = Watch(job.tuning.grace)
    while not stop:
        requeue_lost(study, watch)
        if not _more(study, job):
            break
        stop.signal = _one_trial(study, job, stop) or stop.signal
        after()


def requeue_lost(study: Study, watch: Watch) -> list[FrozenTrial]:
    """See to the trials of those who are gone; the trials that run."""
    running = [t for t in study.get_trials(deepcopy=False) if t.state.name == "RUNNING"]
    for trial in watch.lost(running):
        requeue(study, trial)
    return running


def _more(study: Study, job: Job) -> bool:
    """Whether another trial may be begun."""
    trials = study.get_trials(deepcopy=False)
    waiting = sum(t.state.name == "WAITING" for t in trials)
    begun = sum(not is_lost(t) for t in trials) - waiting
    if job.tuning.trials is not None and begun >= job.tuning.trials:
        return False
    if job.tuning.only_points and not waiting:
        return False
    # However short the time, a study ends with one figure.
    return time.time() < job.deadline or not begun


def _one_trial(study: Study, job: Job, stop: StopRequest) -> int | None:
    """Ask for a trial, run it, tell; the signal that interrupted it, or None."""
    from optuna.exceptions import UpdateFinishedTrialError
    from optuna.trial import TrialState

    tuning = job.tuning
    trial = study.ask()
    if _too_many(study, trial.number, tuning):
        trial.set_user_attr(HIDDEN, True)
        study.tell(trial, state=TrialState.FAIL)
        return None
    needed = not any(t.state.name == "COMPLETE" for t in study.get_trials(deepcopy=False))
    try:
        with beating(trial, tuning.beat):
            ended = run_trial(
                trial, job.split, tuning.space, tuning.fixed, job.deadline, needed, stop
            )
            for name, value in asdict(ended).items():
                trial.set_user_attr(name, value)
        if ended.again:
            requeue(study, study.get_trials(deepcopy=False)[trial.number], killed=False)
        elif _is_complete(ended):
            study.tell(trial, ended.value)
        else:
            study.tell(trial, state=TrialState.PRUNED)
        return ended.signal
    except (UpdateFinishedTrialError, ValueError) as error:
        # Others took this process for dead (it was asleep), and run the trial again.
        if study.get_trials(deepcopy=False)[trial.number].state.is_finished():
            return None
        raise error


def _is_complete(ended: Ended) -> bool:
    return ended.why in ("epochs", "patience", "budget") and ended.value is not None


def _too_many(study: Study, number: int, tuning: Tuning) -> bool:
    """Whether others were faster: two workers saw room for one trial, or queued one twice."""
    trials = study.get_trials(deepcopy=False)
    before = [t for t in trials if t.number < number and not is_lost(t)]
    start = trials[number].user_attrs.get("start")
    if start is None and tuning.only_points:
        return True
    if start is not None and any(t.user_attrs.get("start") == start for t in before):
        return True
    return tuning.trials is not None and len(before) >= tuning.trials


def left_behind(study: Study, job: Job, watch: Watch, stop: StopRequest) -> bool:
    """Whether the others' trials, once all is done here, turn out to be lost and to be run."""
    while not stop and time.time() < job.deadline:
        running = requeue_lost(study, watch)
        if _more(study, job):
            return True
        if not watch.doubtful(running):
            return False
        time.sleep(_POLL)
    return False


# --- several workers ------------------------------------------------------------------------------


def work_together(
    study: Study, job: Job, stop: StopRequest, watch: Watch, look: Callable[[], None]
) -> None:
    """Keep the workers at work, and tell what they do."""
    count = job.tuning.workers
    workers = [_start(job) for _ in range(count)]
    spare = _REPLACEMENTS * count
    try:
        while not stop and any(worker.is_alive() for worker in workers):
            time.sleep(_POLL)
            look()
            requeue_lost(study, watch)
            for place, worker in enumerate(workers):
                if not worker.is_alive() and worker.exitcode and _more(study, job):
                    if not spare:
                        raise WorkersLost(
                            f"the workers died again and again, the last with exit code"
                            f" {worker.exitcode}; the same command goes on with the study"
                        )
                    workers[place], spare = _start(job), spare - 1
    finally:
        for worker in workers:
            if worker.is_alive():
                worker.terminate()  # stops after the batch under way
        for worker in workers:
            worker.join(_FAREWELL)
            if worker.is_alive():
                worker.kill()  # its trial is found lost by whoever comes next
                worker.join()


def _start(job: Job) -> Any:
    threads = max(1, cores() // job.tuning.workers)
    # spawn: a fork would share the threads of BLAS and OpenMP, which do not survive it.
    worker = multiprocessing.get_context("spawn").Process(
        target=_work_apart, args=(job, threads, os.getpid()), daemon=True
    )
    with _ignored(signal.SIGINT):  # Ctrl-C is for the parent, which asks its workers to stop
        worker.start()
    return worker


@contextmanager
def _ignored(number: int) -> Iterator[None]:
    """What a process ignores is ignored by those it starts, too."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals belong to the main thread
        return
    before = signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(number, before)


def _work_apart(job: Job, threads: int, parent: int) -> None:
    if hasattr(os, "setpgrp"):
        os.setpgrp()  # out of reach of the terminal's Ctrl-C
    start_worker(threads, parent)
    with stop_requests() as stop:
        work(open_tuning(job.tuning, job.data), job, stop)


@dataclass
class Teller:
    """Tells of each trial of the study that has ended since it last looked."""

    study: Study
    tuning: Tuning
    begun: float
    tell: Callable[[Step], None]
    told: set[int] = field(default_factory=set)
    before: int = 0

    def __post_init__(self) -> None:
        self.told = {t.number for t in self._ended()}
        self.before = len(self.told)

    def _ended(self) -> list[FrozenTrial]:
        trials = self.study.get_trials(deepcopy=False)
        return [t for t in trials if t.state.is_finished() and HIDDEN not in t.user_attrs]

    def look(self) -> None:
        ended = self._ended()
        rows = rows_of(ended)
        best = next((row for row in rows if row.counts), None)
        counted = sum(not is_lost(t) for t in ended)
        for trial in ended:
            if trial.number not in self.told:
                self.told.add(trial.number)
                self.tell(Step(row(trial), best, counted, self._left(counted)))

    def _left(self, counted: int) -> float | None:
        """By the clock, or by how long a trial has taken so far; the sooner of the two."""
        passed = time.time() - self.begun
        left = self.tuning.budget - passed
        total = self.tuning.trials
        if self.tuning.only_points:
            total = min(total or len(self.tuning.points), len(self.tuning.points))
        if total is not None and counted > self.before:
            left = min(left, passed / (counted - self.before) * max(0, total - counted))
        return max(0.0, left) if math.isfinite(left) else None
