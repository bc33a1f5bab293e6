"""Checkpoints: the whole state of a training in files, from which it continues bit for bit.

    FOLDER/lock      held by the process that trains
    FOLDER/000007/   the newest checkpoint: weights, best weights, optimizer and loss as arrays;
                     position, metrics and settings as JSON. A folder as `run_folder` writes it.
    FOLDER/000006/   the previous checkpoint

A checkpoint is complete or refused, and the previous one stays until the next one is complete.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import filelock
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from llpauc.data.interactions import Split, fingerprint
from llpauc.distributed import ProcessGroup, current_process_group
from llpauc.errors import InputError, choose
from llpauc.storage import run_folder

log = logging.getLogger(__name__)

_LOCK = "lock"
_NUMBER = re.compile(r"\d{6,}")
_TEMPORARY = re.compile(r"\.\d{6,}\.[0-9a-f]+")
_NO_IDS = pa.array([], pa.large_string())
_RESTART = "delete it and start again with --restart (if_exists='restart')"

IfExists = Literal["refuse", "resume", "restart"]
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class CheckpointSettings:
    """Where and how often a training is saved.

    Args:
        folder: holds checkpoints only; created if it does not exist.
        every: seconds between checkpoints, at least 0; 0 saves only when training is interrupted.
        if_exists: what to do with an existing checkpoint: "refuse", "resume", or "restart", which
            deletes it. "resume" starts from the beginning if there is none.
    """

    folder: str | os.PathLike[str]
    every: float = 300.0
    if_exists: IfExists = "refuse"

    def __post_init__(self) -> None:
        if not 0 <= self.every < float("inf"):
            raise InputError(f"every must be seconds, at least 0, got {self.every!r}")
        choose({"refuse": 1, "resume": 1, "restart": 1}, self.if_exists, "if_exists")


@dataclass(frozen=True)
class Checkpoint:
    """The content of a checkpoint.

    Args:
        tensors: arrays by group and name.
        meta: plain JSON values.
    """

    tensors: Mapping[str, Mapping[str, Array]] = field(default_factory=dict)
    meta: Mapping[str, Any] = field(default_factory=dict)

    @property
    def position(self) -> str:
        """Stage, epoch and step, for messages."""
        progress = self.meta.get("progress")
        at = progress if isinstance(progress, dict) else {}
        return f"{self.meta.get('stage')}, epoch {at.get('epoch')}, step {at.get('step')}"


@contextmanager
def open_checkpoints(
    checkpoints: CheckpointSettings | CheckpointFolder | None,
) -> Iterator[CheckpointFolder | None]:
    """Open and lock a folder of checkpoints.

    The block that opened the folder closes it: a folder that is passed in open stays open. On
    closing it is removed if it holds no checkpoint, or if the training has finished (see
    `CheckpointFolder.finish`) and no exception was raised. So a caller that opens the folder and
    saves the model inside the block keeps the checkpoints until the model is saved.

    Yields None for None, and if the folder cannot be written: training continues without
    checkpoints, and a warning is logged.
    """
    if not isinstance(checkpoints, CheckpointSettings):
        yield checkpoints
        return
    path, processes = Path(checkpoints.folder), current_process_group()
    lock = filelock.FileLock(path / _LOCK, blocking=False)
    try:
        processes.call_together(lambda: _acquire(lock, path) if processes.is_first else None)
    except OSError as error:
        reason = f"{error.filename or path}: {error.strerror or error}"
        if checkpoints.if_exists == "resume":
            raise InputError(f"cannot resume from {path}: {reason}") from None
        log.warning("no checkpoints are written (%s); training continues without", reason)
        yield None
        return
    try:
        if processes.is_first:
            _remove(p for p in path.iterdir() if _TEMPORARY.fullmatch(p.name))
        processes.barrier()
        folder = CheckpointFolder(checkpoints, processes)
        yield folder
        if folder.finished and processes.is_first:
            _remove([path])
    finally:
        if processes.is_first:
            if path.is_dir() and os.listdir(path) == [_LOCK]:
                _remove([path])
            lock.release()


def _acquire(lock: filelock.BaseFileLock, folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is not a folder; move it away, checkpoints are stored there")
    try:
        lock.acquire()
    except filelock.Timeout:
        raise InputError(
            f"{folder} is in use by another training; wait for it, or choose another folder"
        ) from None


class CheckpointFolder:
    """An open folder of checkpoints; see `open_checkpoints`.

    Of several processes the first one writes and removes, and all read.

    Attributes:
        newest: the last checkpoint known to be complete, or None.
        finished: whether the training is over.
    """

    def __init__(self, settings: CheckpointSettings, processes: ProcessGroup) -> None:
        self.path = Path(settings.folder)
        self.newest: Path | None = None
        self.finished = False
        self._processes = processes
        self._every, self._if_exists = settings.every or float("inf"), settings.if_exists
        self._due = time.perf_counter() + self._every
        self._number = max((int(path.name) for path in self._checkpoints()), default=0)
        self._training: dict[str, Any] = {}
        self._warned = False

    def load_newest(self, settings: Mapping[str, Any], split: Split) -> Checkpoint | None:
        """The newest complete checkpoint to resume from, or None to start from the beginning.

        Args:
            settings: everything but the events that determines the result of the training. An
                existing checkpoint must have been made with the same settings.
            split: train and valid, which must be the same as well.

        Raises:
            InputError: for a checkpoint of another training, for an existing one if `if_exists` is
                "refuse", and if all are damaged.
        """
        parts = {"training": split.train, "validation": split.valid}
        if self._processes.world_size > 1:
            settings = {**settings, "processes": self._processes.world_size}
        self._training = {
            "settings": json.loads(json.dumps(settings, default=str)),  # as a file returns it
            "events": {name: fingerprint(part) for name, part in parts.items() if part is not None},
        }
        if self._if_exists == "restart" and self._processes.is_first:
            _remove(self._checkpoints())
        self._processes.barrier()
        if not self._checkpoints():
            if self._if_exists == "resume":
                log.info("no checkpoint in %s: training starts from the beginning", self.path)
            return None
        checkpoint = self._processes.call_together(self._read_newest)
        self._processes.check_equal("the checkpoints", str(self.newest))
        self._check_same_training(checkpoint.meta.get("training"))
        if self._if_exists == "refuse":
            raise InputError(
                f"{self.path} holds a checkpoint of this training ({checkpoint.position}); continue"
                f" from it with --resume (if_exists='resume'), or {_RESTART}"
            )
        log.info("resuming from %s: %s", self.newest, checkpoint.position)
        return checkpoint

    def is_due(self, now: float) -> bool:
        """Whether it is time for the next checkpoint; `now` is `time.perf_counter()`."""
        return now >= self._due

    def save(self, checkpoint: Checkpoint) -> bool:
        """Write the next checkpoint and remove all but the previous one.

        Returns:
            Whether it was written. A failure is logged once, and training continues.
        """
        target = self.path / f"{self._number + 1:06d}"
        meta = {**checkpoint.meta, "training": self._training}
        is_first, problem = self._processes.is_first, ""
        if is_first:
            problem = _write(Checkpoint(checkpoint.tensors, meta), target)
        problem = self._processes.gather_texts(problem)[0]
        if not problem:
            previous, self.newest = self.newest, target
            self._number += 1
            if is_first:
                _remove(set(self._checkpoints()) - {previous, target})
        elif not self._warned:
            last = f"the last one is {self.newest}" if self.newest else "there is none so far"
            log.warning("no checkpoint written (%s); training continues, %s", problem, last)
            self._warned = True
        self._due = time.perf_counter() + self._every
        return not problem

    def finish(self) -> None:
        """Mark the training as over: the folder is removed when it is closed."""
        self.finished = True

    def _checkpoints(self) -> list[Path]:
        """The checkpoints, oldest first, complete or not."""
        paths = (path for path in self.path.iterdir() if _NUMBER.fullmatch(path.name))
        return sorted(paths, key=lambda path: int(path.name))

    def _read_newest(self) -> Checkpoint:
        problems: list[str] = []
        for path in reversed(self._checkpoints()):
            try:
                checkpoint = _read(path)
            except InputError as error:
                problems.append(str(error))
                continue
            self.newest = path
            for problem in problems:
                log.warning("%s; the previous checkpoint is complete: %s", problem, path)
            return checkpoint
        raise InputError(f"no checkpoint can be read: {'; '.join(problems)}; {_RESTART}")

    def _check_same_training(self, saved: Any) -> None:
        saved = saved if isinstance(saved, dict) else {}
        for what, now in self._training.items():
            before = saved.get(what)
            before = before if isinstance(before, dict) else {}
            names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
            if not names:
                continue
            difference = f"the {' and '.join(names)} events differ"
            if what == "settings":
                pairs = ((name, before.get(name), now.get(name)) for name in names)
                difference = ", ".join(
                    f"{name} was {old!r}, is {new!r}" for name, old, new in pairs
                )
            raise InputError(
                f"{self.path} holds a checkpoint of another training: {difference}; use the same"
                f" settings and data, or {_RESTART}"
            )


def _remove(paths: Iterable[Path]) -> None:
    for path in list(paths):
        shutil.rmtree(path, ignore_errors=True)


def _write(checkpoint: Checkpoint, target: Path) -> str:
    """Write a checkpoint atomically; the reason if that fails, else ""."""
    tensors = {
        f"{group}/{name}": array
        for group, arrays in checkpoint.tensors.items()
        for name, array in arrays.items()
    }
    for name, array in tensors.items():
        # min and max of an array with NaN are NaN: no array of booleans is needed.
        is_float = array.size and array.dtype.kind == "f"
        if is_float and not (np.isfinite(array.min()) and np.isfinite(array.max())):
            return f"{name} is not finite"
    run = run_folder.SavedRun(tensors, _NO_IDS, _NO_IDS, checkpoint.meta, {})
    try:
        run_folder.save(run, target)
    except OSError as error:
        return f"{target}: {error.strerror or error}"
    return ""


def _read(folder: Path) -> Checkpoint:
    """Read and verify a checkpoint."""
    saved = run_folder.load(folder)
    tensors: dict[str, dict[str, Array]] = {}
    for path, array in saved.tensors.items():
        group, _, name = path.partition("/")
        tensors.setdefault(group, {})[name] = array
    return Checkpoint(tensors, saved.meta)
