"""The Optuna study behind `tune`: its storage, its sampler, and which of its trials are alive.

A study is stored in a journal file or an SQL database that several processes and machines share.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from llpauc.errors import InputError
from llpauc.training.tracking import masked, reason

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler
    from optuna.storages import BaseStorage
    from optuna.study import Study
    from optuna.trial import FrozenTrial, Trial

PRUNERS = ("median", "halving", "none")
HEARTBEAT = 10.0  # seconds between two heartbeats of a trial
GRACE = 60.0  # seconds without a heartbeat after which a trial is lost
_MOST_ATTEMPTS = 3  # a trial whose worker is killed that often is not run again
_FIRST_PRUNED_EPOCH = 3  # earlier epochs depend mostly on the learning rate and the dimensions
_LOCK_GRACE = 10  # seconds after which the journal lock of a killed process is removed
_SQLITE_TIMEOUT = 60  # seconds to wait for the write of another process


# --- storage --------------------------------------------------------------------------------------


def check_installed() -> None:
    if find_spec("optuna") is None:
        raise InputError("tuning needs Optuna, which is not installed; pip install 'llpauc[tune]'")


def check_storage(storage: str) -> None:
    """Raise `InputError` where the storage cannot be created or contains something else."""
    if "://" in storage:
        _check_database(storage)
    else:
        _check_journal(Path(storage))


def _check_file(path: Path, storage: str) -> None:
    if not path.absolute().parent.is_dir():
        folder = path.absolute().parent
        raise InputError(f"--storage {storage}: there is no folder {folder}; create it first")
    if path.is_dir():
        raise InputError(f"--storage {storage}: is a folder; give a file in it")


def _check_journal(path: Path) -> None:
    _check_file(path, str(path))
    try:
        if not path.exists() or not path.stat().st_size:
            return
        with path.open("rb") as file:
            entry = json.loads(file.readline())
        is_journal = isinstance(entry, dict) and "op_code" in entry
    except OSError as error:
        raise InputError(f"--storage {path}: cannot be read: {error.strerror}") from None
    except ValueError:
        is_journal = False
    if not is_journal:
        raise InputError(f"--storage {path}: is not a study; give the name of a new file")
    for wait in (1, 0):  # another process may be writing the last line
        with path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            if file.read() == b"\n":
                return
        time.sleep(wait)
    raise InputError(f"--storage {path}: its last line is cut off; delete that line")


def _check_database(url: str) -> None:
    import sqlalchemy

    try:
        parsed = sqlalchemy.make_url(url)
        if parsed.get_backend_name() == "sqlite" and parsed.database:
            _check_file(Path(parsed.database), url)
        engine = sqlalchemy.create_engine(parsed)
        try:
            tables = sqlalchemy.inspect(engine).get_table_names()
        finally:
            engine.dispose()
    except InputError:
        raise
    except Exception as error:  # of the database, or of its missing driver
        raise InputError(
            f"--storage {masked(url)}: cannot be used: {reason(error)};"
            " give FILE.journal or a database such as sqlite:///study.db"
        ) from None
    if tables and "studies" not in tables:
        raise InputError(f"--storage {masked(url)}: has other tables; give a new database")


def open_storage(storage: str) -> BaseStorage:
    """A journal file by its path, or a database by its URL."""
    import optuna
    from optuna.storages import JournalStorage, RDBStorage
    from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    check_storage(storage)
    try:
        if "://" not in storage:
            # Optuna looks for the file through its link, from another folder than this process.
            lock = JournalFileSymlinkLock(os.path.abspath(storage), _LOCK_GRACE)
            return JournalStorage(JournalFileBackend(storage, lock))
        waits = {"timeout": _SQLITE_TIMEOUT} if storage.startswith("sqlite") else {}
        return RDBStorage(storage, engine_kwargs={"connect_args": waits})
    except Exception as error:  # whatever a broken file makes Optuna raise
        raise InputError(
            f"--storage {masked(storage)}: cannot be used: {reason(error)}; give a new one"
        ) from None


def open_study(
    storage: str, name: str, settings: Mapping[str, Any], seed: int, pruner: str
) -> Study:
    """The study of that name, created where there is none; other settings raise `InputError`."""
    import optuna
    from optuna.pruners import MedianPruner, NopPruner, SuccessiveHalvingPruner

    pruners = {
        "median": MedianPruner(n_startup_trials=5, n_warmup_steps=_FIRST_PRUNED_EPOCH),
        "halving": SuccessiveHalvingPruner(min_resource=_FIRST_PRUNED_EPOCH),
        "none": NopPruner(),
    }
    study = optuna.create_study(
        storage=open_storage(storage), study_name=name, direction="maximize", load_if_exists=True,
        sampler=make_sampler(seed), pruner=pruners[pruner],
    )  # fmt: skip
    expected = json.loads(json.dumps(settings))
    saved = study.user_attrs.get("settings")
    if saved is None:
        if study.get_trials(deepcopy=False):
            raise InputError(
                f"the study {name!r} in {masked(storage)} is not a study of llpauc;"
                " give another --study"
            )
        study.set_user_attr("settings", expected)
        return study
    for key in {**saved, **expected}:
        if saved.get(key) != expected.get(key):
            old, new = (f"{json.dumps(s.get(key)):.60}" for s in (saved, expected))
            raise InputError(
                f"the study {name!r} in {masked(storage)} was made with {key} {old}, not {new};"
                " give another --out, --storage or --study for a new one"
            )
    return study


def make_sampler(seed: int) -> BaseSampler:
    """TPE whose draws depend on the seed, the trial's number and the trials before it only.

    One random generator for the study would restart when the study is resumed, and would be the
    same in every worker: points would be drawn twice.
    """
    from optuna.exceptions import ExperimentalWarning
    from optuna.samplers import TPESampler

    # group: options that only some trials have are modelled too; constant_liar: what other workers
    # are trying counts as bad, so that it is not tried twice.
    options: Any = {"multivariate": True, "group": True, "constant_liar": True}

    class SeededByNumber(TPESampler):
        def before_trial(self, study: Any, trial: Any) -> None:
            mixed = int(np.random.SeedSequence([seed, trial.number]).generate_state(1)[0])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ExperimentalWarning)
                super().__init__(seed=mixed, **options)
            super().before_trial(study, trial)

    return SeededByNumber()


# --- lost trials ----------------------------------------------------------------------------------
#
# Optuna has heartbeats for SQL databases only (`RDBStorage`), not for journal files, and finds the
# trial of a killed process only after the grace period. So trials carry their own: the process that
# runs a trial (`worker`), and a counter that increases while it runs (`heartbeat`). On this machine
# a trial is lost once its process is gone; on another machine, once the counter has not changed for
# a while, measured by the observer's clock.


def current_worker() -> dict[str, Any]:
    """This process; the start time distinguishes it from a later process with the same id."""
    return {"machine": machine(), "pid": os.getpid(), "started": process_start(os.getpid())}


def machine() -> str:
    """This machine and process namespace, within which a process id is unique."""
    parts = [socket.gethostname()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip())
        parts.append(str(os.stat("/proc/self/ns/pid").st_ino))
    return "/".join(parts)


def process_start(pid: int) -> str | None:
    """Start time in kernel ticks; None where the process has ended or the system has no /proc."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else fields[19]  # Z, X: ended, and not yet waited for


def is_alive(worker: Any) -> bool | None:
    """Whether a trial's process is running; None where this machine cannot know."""
    if not isinstance(worker, dict) or worker["machine"] != machine() or worker["started"] is None:
        return None
    return bool(process_start(worker["pid"]) == worker["started"])


@contextmanager
def heartbeats(trial: Trial, interval: float = HEARTBEAT) -> Iterator[None]:
    """Record the process that runs the trial, and that it is running."""
    trial.set_user_attr("worker", current_worker())
    done = threading.Event()

    def beat() -> None:
        count = 0
        while not done.wait(interval):
            count += 1
            with suppress(Exception):  # the trial itself reports a storage that is unreachable
                trial.set_user_attr("heartbeat", count)

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


class LostTrials:
    """Finds running trials whose worker has ended, or has had no heartbeat for `grace` seconds."""

    def __init__(self, grace: float = GRACE) -> None:
        self.grace = grace
        self._seen: dict[int, tuple[Any, float, bool]] = {}  # heartbeat, since when, has it changed

    def find(self, running: Sequence[FrozenTrial]) -> list[FrozenTrial]:
        lost, now = [], time.monotonic()
        for trial in running:
            alive = is_alive(trial.user_attrs.get("worker"))
            heartbeat = trial.user_attrs.get("heartbeat")
            before, since, changed = self._seen.get(trial.number, (heartbeat, now, False))
            if heartbeat != before:
                since, changed = now, True
            self._seen[trial.number] = (heartbeat, since, changed)
            if alive is False or (alive is None and now - since > self.grace):
                lost.append(trial)
        return lost

    def uncertain(self, running: Sequence[FrozenTrial]) -> bool:
        """Whether a trial on another machine has not had a heartbeat yet since `find` saw it."""
        return any(
            is_alive(trial.user_attrs.get("worker")) is None
            and not self._seen.get(trial.number, (None, 0.0, False))[2]
            for trial in running
        )


def requeue(study: Study, trial: FrozenTrial, *, killed: bool = True) -> bool:
    """Mark a trial as failed and queue its point again; False where another process has done so.

    A trial whose worker was killed counts as an attempt; an interrupted one does not.
    """
    from optuna.exceptions import UpdateFinishedTrialError
    from optuna.trial import TrialState

    try:
        study.tell(trial.number, state=TrialState.FAIL)
    except (ValueError, UpdateFinishedTrialError):
        return False
    attempts = trial.user_attrs.get("attempts", 0) + killed
    point = {**trial.system_attrs.get("fixed_params", {}), **trial.params}
    if point and attempts < _MOST_ATTEMPTS:
        attributes = {"rerun_of": trial.number, "attempts": attempts}
        if "starting_point" in trial.user_attrs:
            attributes["starting_point"] = trial.user_attrs["starting_point"]
        study.enqueue_trial(point, user_attrs=attributes)
    return True
