"""A folder of checkpoints: all of a training in files, so that it can go on where it was.

    FOLDER/lock      held by the training under way
    FOLDER/000007/   the newest checkpoint: weights, best weights, optimizer and loss as arrays,
                     position, metrics and settings as JSON, all as `llpauc.storage.run_folder`
                     keeps files
    FOLDER/000006/   the one before
    FOLDER/000007.1/ where tables are divided among processes: the rows of rank 1, and so on

So a checkpoint is whole or refused, and the one before stays until the next is whole.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from llpauc.data.interactions import Interactions, Split
from llpauc.distributed import ProcessGroup, current_process_group
from llpauc.errors import InputError, choose
from llpauc.storage import run_folder

_LOCK = "lock"
_NUMBER = re.compile(r"\d{6,}")
_SHARE = re.compile(r"(\d{6,})\.\d+")
_HALF_WRITTEN = re.compile(r"\.\d{6,}(\.\d+)?\.[0-9a-f]+")

IfThere = Literal["refuse", "resume", "restart"]
Tensors = Mapping[str, npt.NDArray[Any]]
Runs = dict[str, list[int]]  # of "user" and "item" rows: the first, the last, and how many in all


@dataclass(frozen=True)
class Checkpointing:
    """Where and how often training is written down.

    Args:
        folder: made when it is not there; for checkpoints alone.
        every: seconds between two; 0 writes only when training is asked to stop.
        if_there: what to do with a checkpoint that is there already: "refuse", "resume" or
            "restart", which deletes it. To resume where there is none is to begin.
        tell: gets one line for people now and then, as where training goes on from.
    """

    folder: str | os.PathLike[str]
    every: float = 300.0
    if_there: IfThere = "refuse"
    tell: Callable[[str], None] = warnings.warn

    def __post_init__(self) -> None:
        if not 0 <= self.every < float("inf"):
            raise InputError(f"every must be seconds, at least 0, got {self.every!r}")
        choose({"refuse": 1, "resume": 1, "restart": 1}, self.if_there, "if_there")


@dataclass(frozen=True)
class Snapshot:
    """What a checkpoint holds.

    Args:
        tensors: arrays by group and name.
        meta: plain JSON values.
    """

    tensors: Mapping[str, Tensors] = field(default_factory=dict)
    meta: Mapping[str, Any] = field(default_factory=dict)


class Checkpoints:
    """A folder of checkpoints that is ours alone as long as it is open; see `opened`.

    Of several processes the first writes and removes. Where tables are divided among them each
    writes its share, the first one last: its folder is what makes a checkpoint of them. Any number
    of processes can go on from it.
    """

    def __init__(self, wanted: Checkpointing, processes: ProcessGroup) -> None:
        self.folder = Path(wanted.folder)
        self._ranks = processes
        self._runs: Runs = {}
        self.tell = wanted.tell
        self._every, self._if_there = wanted.every or float("inf"), wanted.if_there
        self._due = time.perf_counter() + self._every
        self._number = max((int(path.name) for path in self._all()), default=0)
        self._newest: Path | None = None
        self._of: dict[str, Any] = {}
        self._warned = False

    def find(
        self, settings: Mapping[str, Any], split: Split, shard: bool = False
    ) -> Snapshot | None:
        """The newest whole checkpoint to go on from; None to begin.

        Args:
            settings: all that decides how training goes beside the events. Those of a checkpoint
                that is there must be the same.
            split: train and valid; likewise.
            shard: whether the tables are divided among the processes; each gets its rows.

        Raises:
            InputError: for one of another training, one that nobody asked to resume, and where all
                are damaged.
        """
        plain = json.loads(json.dumps(settings, default=str))  # as a file gives it back
        self._of = {"settings": plain, "events": fingerprints(split)}
        if shard:
            sizes = {"user": split.n_users, "item": split.n_items}
            mine = {name: self._ranks.slice_of(n) for name, n in sizes.items()}
            self._runs = {name: [m.start, m.stop, sizes[name]] for name, m in mine.items()}
        if self._if_there == "restart" and self._ranks.is_first:
            self._remove(self._all())
        self._ranks.barrier()
        there = self._all()
        if not there:
            if self._if_there == "resume":
                self.tell(f"no checkpoint in {self.folder}: training begins at the beginning")
            return None
        found = self._ranks.call_together(lambda: self._newest_whole(there))
        self._ranks.check_equal("the checkpoints", str(self._newest))
        self._check_same(found.meta.get("of"))
        if self._if_there == "refuse":
            raise InputError(
                f"{self.folder} holds a checkpoint of this very training ({where(found)});"
                f" {_RESUME}, or {_RESTART}"
            )
        self.tell(f"going on from {self._newest}: {where(found)}")
        return found

    @property
    def newest(self) -> Path | None:
        """The last one known to be whole; None as long as there is none."""
        return self._newest

    def due(self, now: float) -> bool:
        """Whether it is time for the next; `now` is `time.perf_counter()`."""
        return now >= self._due

    def save(self, snapshot: Snapshot) -> bool:
        """Write the next checkpoint and drop all but the one before it; whether that went well.

        Trouble is told once and no more: training is worth more than its checkpoint.
        """
        processes, shares = self._ranks, self._ranks.world_size if self._runs else 1
        target = self.folder / f"{self._number + 1:06d}"
        meta = {**snapshot.meta, "of": self._of, "shares": shares, "runs": self._runs}
        whole = Snapshot(snapshot.tensors, meta)
        trouble = ""
        if not processes.is_first and shares > 1:
            trouble = _try_to_write(whole, target.with_name(f"{target.name}.{processes.index}"))
        trouble = next(filter(None, processes.gather_texts(trouble)), "")
        if processes.is_first and not trouble:
            trouble = _try_to_write(whole, target)
        trouble = processes.gather_texts(trouble)[0]
        if not trouble:
            before, self._newest = self._newest, target
            self._number += 1
            if processes.is_first:
                self._remove(path for path in self._all() if path not in (before, target))
        elif not self._warned:
            last = f"the last one is {self._newest}" if self._newest else "there is none so far"
            self.tell(f"no checkpoint written ({trouble}); training goes on, {last}")
            self._warned = True
        self._due = time.perf_counter() + self._every
        return not trouble

    def clear(self) -> None:
        """Remove the folder: the training is over, and its outcome is in safety."""
        self._newest = None
        if self._ranks.is_first:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _remove(self, some: Iterable[Path]) -> None:
        """These checkpoints, then the shares that belong to none."""
        for path in list(some):
            shutil.rmtree(path, ignore_errors=True)
        left = {path.name for path in self._all()}
        for path in list(self.folder.iterdir()):
            share = _SHARE.fullmatch(path.name)
            if share and share[1] not in left:
                shutil.rmtree(path, ignore_errors=True)

    def _all(self) -> list[Path]:
        """The checkpoints, oldest first, whole or not."""
        return sorted(
            (path for path in self.folder.iterdir() if _NUMBER.fullmatch(path.name)),
            key=lambda path: int(path.name),
        )

    def _newest_whole(self, there: list[Path]) -> Snapshot:
        damaged: list[str] = []
        for path in reversed(there):
            try:
                found = _read(path, self._runs)
            except InputError as error:
                damaged.append(str(error))
                continue
            self._newest = path
            for why in damaged:
                self.tell(f"{why}; the checkpoint before it is whole: {path}")
            return found
        raise InputError(f"no checkpoint can be read: {'; '.join(damaged)}; {_RESTART}")

    def _check_same(self, theirs: Any) -> None:
        theirs = theirs if isinstance(theirs, dict) else {}
        for what in ("settings", "events"):
            there, here = theirs.get(what), self._of[what]
            there = there if isinstance(there, dict) else {}
            names = [name for name in {**there, **here} if there.get(name) != here.get(name)]
            if not names:
                continue
            if what == "settings":
                told = ", ".join(
                    f"{name} is {there.get(name)!r} there and {here.get(name)!r} here"
                    for name in names
                )
            else:
                told = f"the {' and '.join(names)} events are others"
            raise InputError(
                f"{self.folder} holds a checkpoint of another training: {told};"
                f" give what it was started with, or {_RESTART}"
            )


_RESUME = "go on from it with --resume"  # in Python, if_there="resume", and likewise the other
_RESTART = "delete it and begin anew with --restart"


def where(snapshot: Snapshot) -> str:
    """Where training stands, for people."""
    progress = snapshot.meta.get("progress")
    at = progress if isinstance(progress, dict) else {}
    stage = snapshot.meta.get("stage")
    return f"{stage}, epoch {at.get('epoch')}, step {at.get('step')}"


@contextmanager
def opened(checkpoint: Checkpointing | Checkpoints | None) -> Iterator[Checkpoints | None]:
    """The folder, locked while inside; one that is open already is left to who opened it.

    A folder that is empty at the end goes. None where there is nothing to open, and where the
    folder cannot be written into: that is told, and training goes on without.
    """
    if not isinstance(checkpoint, Checkpointing):
        yield checkpoint
        return
    folder, processes = Path(checkpoint.folder), current_process_group()
    try:
        lock = processes.call_together(lambda: _locked(folder) if processes.is_first else -1)
    except OSError as error:
        why = f"{error.filename or folder}: {error.strerror or error}"
        if checkpoint.if_there == "resume":
            raise InputError(f"cannot go on from {folder}: {why}") from None
        checkpoint.tell(f"no checkpoints are written ({why}); training goes on without")
        yield None
        return
    try:
        for path in folder.iterdir() if processes.is_first else ():
            if _HALF_WRITTEN.fullmatch(path.name):  # by a process that is no more
                shutil.rmtree(path, ignore_errors=True)
        processes.barrier()
        yield Checkpoints(checkpoint, processes)
    finally:
        if processes.is_first:
            if folder.is_dir() and {path.name for path in folder.iterdir()} == {_LOCK}:
                shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def _locked(folder: Path) -> int:
    """An open lock file, ours until it is closed or the process ends, however it ends."""
    while True:
        if folder.exists() and not folder.is_dir():
            raise InputError(f"{folder} is no folder, and checkpoints need one; move it away")
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / _LOCK
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(handle).st_ino == path.stat().st_ino:
                return handle
        except BlockingIOError:
            os.close(handle)
            raise InputError(
                f"{folder} is in use by another training; wait for it, or choose another folder"
            ) from None
        except FileNotFoundError:  # removed, with its folder, before it was ours
            pass
        os.close(handle)


def _write(snapshot: Snapshot, target: Path) -> None:
    """A checkpoint as `target`, which is not there yet: whole, or not at all."""
    tensors = {
        f"{group}/{name}": array
        for group, arrays in snapshot.tensors.items()
        for name, array in arrays.items()
    }
    no_ids = pa.array([], pa.large_string())  # the events have them
    run_folder.save(run_folder.SavedRun(tensors, no_ids, no_ids, snapshot.meta, {}), target)


def _try_to_write(snapshot: Snapshot, target: Path) -> str:
    """What went wrong; nothing where it went well."""
    broken = _not_finite(snapshot.tensors)
    if broken is not None:
        return f"{broken} is not finite"
    try:
        _write(snapshot, target)
    except OSError as error:
        return f"{target}: {error.strerror or error}"
    return ""


def _read(folder: Path, wanted: Runs) -> Snapshot:
    """What was written; an InputError names the file that is not as it was.

    Args:
        folder: the first rank's.
        wanted: rows to be had of the tables; all of them where it is empty.
    """
    held = run_folder.load(folder)
    shares = held.meta.get("shares", 1)
    tensors: dict[str, dict[str, npt.NDArray[Any]]] = {}
    for rank in range(shares if isinstance(shares, int) else 1):
        share = run_folder.load(folder.with_name(f"{folder.name}.{rank}")) if rank else held
        for path, array in share.tensors.items():
            group, _, name = path.partition("/")
            into = tensors.setdefault(group, {})
            try:
                into[name] = _put_together(into.get(name), array, name, share.meta, wanted)
            except (KeyError, TypeError, ValueError) as error:
                raise InputError(f"{folder}: rows of {path} do not fit: {error}") from None
    return Snapshot(tensors, held.meta)


def _put_together(
    so_far: npt.NDArray[Any] | None,
    array: npt.NDArray[Any],
    name: str,
    meta: Mapping[str, Any],
    wanted: Runs,
) -> npt.NDArray[Any]:
    """The wanted rows of a table, as far as this share of it has any."""
    kind = name[:4]
    if kind not in ("user", "item") or not array.ndim:  # the same in every share
        return array
    there = meta.get("runs", {}).get(kind) or [0, len(array), len(array)]
    low, high, total = wanted.get(kind) or [0, there[2], there[2]]
    if total != there[2]:
        raise ValueError(f"{there[2]} rows in all, not {total}")
    if [low, high] == there[:2]:
        return array
    if so_far is None:
        so_far = np.zeros((high - low, *array.shape[1:]), array.dtype)
    begin, end = max(low, there[0]), min(high, there[1])
    if begin < end:
        so_far[begin - low : end - low] = array[begin - there[0] : end - there[0]]
    return so_far


def _not_finite(tensors: Mapping[str, Tensors]) -> str | None:
    """The name of an array with NaN or infinity in it, if there is one."""
    for group, arrays in tensors.items():
        for name, array in arrays.items():
            # NaN is the least and the greatest there is: no array of truths has to be made.
            if array.size and array.dtype.kind == "f" and not (
                np.isfinite(array.min()) and np.isfinite(array.max())
            ):  # fmt: skip
                return f"{name} of {group}"
    return None


def fingerprints(split: Split) -> dict[str, str]:
    """SHA-256 of what training learns from and is chosen by."""
    parts = {"training": split.train, "validation": split.valid}
    return {name: _fingerprint(part) for name, part in parts.items() if part is not None}


def _fingerprint(events: Interactions) -> str:
    digest = hashlib.sha256()
    for column in (events.users, events.items, events.timestamps):
        if column is not None:
            digest.update(np.ascontiguousarray(column).data)
    for ids in (events.user_ids, events.item_ids):
        digest.update(pa.record_batch([ids.arrow()], ["id"]).serialize())
    return digest.hexdigest()
