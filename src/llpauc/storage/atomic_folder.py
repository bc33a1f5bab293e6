"""Putting a folder where it belongs, in one step where the system can."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def workplace(target: Path) -> Iterator[Path]:
    """A new folder beside `target` to write into; what is left under its name goes at the end.

    It is locked meanwhile. One that is not is what a killed process has left, and goes too.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(target)
    work, lock = _locked_folder(target)
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)  # where it has changed places, the old run
        os.close(lock)


def _locked_folder(target: Path) -> tuple[Path, int]:
    while True:
        work = target.with_name(f".{target.name}.{secrets.token_hex(6)}")
        work.mkdir()
        with suppress(FileNotFoundError):
            lock = os.open(work, os.O_RDONLY)
            with suppress(OSError):  # a file system without locks: then nobody tidies up there
                fcntl.flock(lock, fcntl.LOCK_EX)
            if work.exists():
                return work, lock
            os.close(lock)
        # Somebody tidied up before it was locked: once more.


def _remove_leftovers(target: Path) -> None:
    name = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]{{12}}")
    try:
        there = os.listdir(target.parent)
    except PermissionError:  # a folder one may write into and not look into
        return
    for left in (target.with_name(other) for other in there if name.fullmatch(other)):
        with suppress(OSError):  # in use by a process that lives, no folder, not ours to remove
            lock = os.open(left, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(lock)


def put_in_place(work: Path, target: Path) -> None:
    """`work` gets the name `target`; an old run there changes places with it, or is deleted."""
    if not target.exists():
        os.rename(work, target)
    elif not _exchange(work, target):
        _rename_twice(work, target)


_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # from Linux's headers
_NOT_HERE = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM)


def _exchange(one: Path, other: Path) -> bool:
    """Let two folders change places in one step; False where the system cannot."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:  # not Linux, or an old C library
        return False
    paths = os.fsencode(one), os.fsencode(other)
    if renameat2(_AT_FDCWD, paths[0], _AT_FDCWD, paths[1], _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in _NOT_HERE:
        return False
    raise OSError(code, os.strerror(code), str(other))


def _rename_twice(work: Path, target: Path) -> None:
    """The old run moves aside first: for a moment there is none."""
    aside = work.with_name(f"{work.name}.old")
    try:
        os.rename(target, aside)
        os.rename(work, target)
    except BaseException:  # Ctrl-C too: the old run is all there is until the new one is in place
        if aside.exists() and not target.exists():
            os.rename(aside, target)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def cannot_write(target: Path, error: Exception) -> OSError:
    """In one line and with the run's name, which a full disk's own error does not give."""
    code = getattr(error, "errno", None)
    if code is None and (told := re.search(r"os error (\d+)", str(error))):  # safetensors's way
        code = int(told[1])
    why = " ".join(str(error).split()) if code is None else os.strerror(code)
    if code == errno.ENOSPC:
        there = next(place for place in target.parents if place.exists())
        why += f": {shutil.disk_usage(there).free:,} bytes are free in {there}"
    return OSError(errno.EIO if code is None else code, f"cannot be written: {why}", str(target))


def flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
