"""Who runs which trial, and what becomes of the trials of those who were killed.

A trial carries who runs it (`worker`) and a number that grows as long as they live (`beat`). On the
same machine a trial is lost when its process is gone; on another when its beat has stood still for
a while, by the clock of whoever looks, since the clocks of two machines need not agree. A lost
trial is ended as failed, and its parameters wait in the queue for the next worker.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial, Trial

BEAT = 10.0  # seconds
GRACE = 60.0  # seconds without a beat
_MOST_TRIES = 3  # a trial that kills its worker each time is given up
_CARRIED = ("start",)  # attributes that a second try keeps


def here() -> str:
    """This machine and process namespace: where process numbers mean the same."""
    parts = [socket.gethostname()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip())
        parts.append(str(os.stat("/proc/self/ns/pid").st_ino))
    return "/".join(parts)


def identity() -> dict[str, Any]:
    """Who this process is; the time it was born tells it from a later one of the same number."""
    return {"place": here(), "pid": os.getpid(), "born": _born(os.getpid())}


def _born(pid: int) -> str | None:
    """In the kernel's ticks; None where the process is gone, or the system does not say."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else fields[19]  # Z: dead, and its parent has not looked yet


def alive(worker: Any) -> bool | None:
    """Whether a trial's process lives; None where that cannot be seen from here."""
    if not isinstance(worker, dict) or worker["place"] != here() or worker["born"] is None:
        return None
    return bool(_born(worker["pid"]) == worker["born"])


@contextmanager
def beating(trial: Trial, every: float = BEAT) -> Iterator[None]:
    """Say whose trial it is, and then that they live."""
    trial.set_user_attr("worker", identity())
    done = threading.Event()

    def beat() -> None:
        count = 0
        while not done.wait(every):
            count += 1
            with suppress(Exception):  # a storage out of reach is told by the trial itself
                trial.set_user_attr("beat", count)

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


class Watch:
    """Finds trials that nobody runs any more.

    Args:
        grace: seconds without a beat.
    """

    def __init__(self, grace: float = GRACE) -> None:
        self.grace = grace
        self._seen: dict[int, tuple[Any, float, bool]] = {}  # beat, since when, whether it moved

    def lost(self, running: Sequence[FrozenTrial]) -> list[FrozenTrial]:
        """Those of the running trials whose worker is gone."""
        found, now = [], time.monotonic()
        for trial in running:
            lives = alive(trial.user_attrs.get("worker"))
            beat = trial.user_attrs.get("beat")
            before, since, moved = self._seen.get(trial.number, (beat, now, False))
            if beat != before:
                since, moved = now, True
            self._seen[trial.number] = (beat, since, moved)
            if lives is False or (lives is None and now - since > self.grace):
                found.append(trial)
        return found

    def doubtful(self, running: Sequence[FrozenTrial]) -> bool:
        """Whether some trial may be lost, and time will tell."""
        return any(
            alive(trial.user_attrs.get("worker")) is None
            and not self._seen.get(trial.number, (None, 0.0, False))[2]
            for trial in running
        )


def requeue(study: Study, trial: FrozenTrial, *, killed: bool = True) -> bool:
    """End a trial as failed and queue its parameters again; False where others were faster.

    Args:
        study, trial: which.
        killed: whether its worker died; a trial that was only interrupted has all its tries.
    """
    from optuna.exceptions import UpdateFinishedTrialError
    from optuna.trial import TrialState

    try:
        study.tell(trial.number, state=TrialState.FAIL)
    except (ValueError, UpdateFinishedTrialError):
        return False
    tries = trial.user_attrs.get("tries", 0) + killed
    params = {**trial.system_attrs.get("fixed_params", {}), **trial.params}
    if params and tries < _MOST_TRIES:
        kept = {name: trial.user_attrs[name] for name in _CARRIED if name in trial.user_attrs}
        again = {**kept, "rerun_of": trial.number, "tries": tries}
        study.enqueue_trial(params, user_attrs=again)
    return True
