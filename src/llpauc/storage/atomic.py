"""Atomic writes: a file or a folder is complete under its name, or it does not exist.

Data is written under a temporary name next to the target, flushed to the disk and then renamed. An
exception on the way (a full disk, Ctrl-C) removes the temporary data and leaves the target as it
was. `writer_lock` keeps a second writer out while a folder is read, changed and written.
"""

from __future__ import annotations

import csv
import ctypes
import errno
import fcntl
import io
import os
import re
import secrets
import shutil
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from llpauc.errors import InputError


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path that is renamed to `path` when the block ends without an exception.

    The temporary name has the suffix of `path`, for writers that choose a format by the suffix.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with atomic_write(folder / "note.txt") as temporary:
    ...     _ = temporary.write_text("done")
    >>> [file.name for file in folder.iterdir()]
    ['note.txt']
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise InputError(f"cannot write {path}: there is no folder {path.parent}; make it first")
    if path.is_dir():
        raise InputError(f"cannot write {path}: it is a folder; choose another name")
    temporary = path.parent / f".{secrets.token_hex(6)}.{path.name}"
    try:
        with named_errors(path):
            yield temporary
        flush(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    flush(path.parent)


def write_text(path: Path, text: str) -> None:
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def csv_text(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    table = io.StringIO()
    writer = csv.DictWriter(table, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return table.getvalue()


_LOCK_FILES: dict[Path, tuple[int, int]] = {}  # held by this process: target -> (handle, blocks)
_LOCK_FILES_GUARD = threading.Lock()


@contextmanager
def writer_lock(folder: str | os.PathLike[str], wait: float = 0.0) -> Iterator[None]:
    """Hold the lock of a folder that is written; refuse it if another process holds the lock.

    The lock is the file `.FOLDER.lock` next to the real folder, links resolved, because the folder
    itself is replaced. It ends with the process. Blocks of one process may overlap.

    Args:
        folder: exists or not.
        wait: seconds to wait for another process.
    """
    target = Path(folder).resolve()
    path, deadline = target.with_name(f".{target.name}.lock"), time.monotonic() + wait
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        while not _acquire(target, path):
            if time.monotonic() >= deadline:
                raise InputError(
                    f"{folder} is in use: another command writes to it; wait for it, or choose"
                    " another folder"
                )
            time.sleep(0.05)
    except OSError as error:
        raise write_error(target, error) from None
    try:
        yield
    finally:
        with _LOCK_FILES_GUARD:
            handle, blocks = _LOCK_FILES.pop(target)
            if blocks > 1:
                _LOCK_FILES[target] = handle, blocks - 1
            else:
                path.unlink(missing_ok=True)
                os.close(handle)


def _acquire(target: Path, path: Path) -> bool:
    with _LOCK_FILES_GUARD:
        if target in _LOCK_FILES:
            handle, blocks = _LOCK_FILES[target]
            _LOCK_FILES[target] = handle, blocks + 1
            return True
        while True:
            handle = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW, 0o666)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(handle)
                return False
            except OSError:  # a file system without locks
                pass
            if os.fstat(handle).st_nlink:
                _LOCK_FILES[target] = handle, 1
                return True
            os.close(handle)  # its holder has removed the file: lock a new one


@contextmanager
def named_errors(path: Path) -> Iterator[None]:
    """Name `path` in the errors of writes to open files, such as that of a full disk."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            raise write_error(path, error) from None
        raise


@contextmanager
def temporary_folder(target: Path) -> Iterator[Path]:
    """Yield a new folder next to `target`, named ".TARGET.<hex>"; it is removed at the end.

    The folder is locked while the block runs. Unlocked folders of such a name were left by killed
    processes and are removed first.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(target)
    folder, lock = _locked_folder(target)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # after an exchange, the replaced folder
        os.close(lock)


def _locked_folder(target: Path) -> tuple[Path, int]:
    while True:
        folder = target.with_name(f".{target.name}.{secrets.token_hex(6)}")
        folder.mkdir()
        with suppress(FileNotFoundError):
            lock = os.open(folder, os.O_RDONLY)
            with suppress(OSError):  # file systems without locks: leftovers are not removed there
                fcntl.flock(lock, fcntl.LOCK_EX)
            if folder.exists():
                return folder, lock
            os.close(lock)
        # Another process removed the folder before it was locked: try again.


def _remove_leftovers(target: Path) -> None:
    name = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]{{12}}")
    try:
        names = os.listdir(target.parent)
    except PermissionError:  # a folder can be writable without being readable
        return
    for leftover in (target.with_name(other) for other in names if name.fullmatch(other)):
        with suppress(OSError):  # locked by a running process, not a folder, or not removable
            lock = os.open(leftover, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(leftover, ignore_errors=True)
            finally:
                os.close(lock)


def replace_folder(folder: Path, target: Path) -> None:
    """Rename `folder` to `target` and flush the parent folder.

    An existing `target` is exchanged with `folder` in one step where the system supports it.
    Otherwise it is moved away first and deleted, and for a moment there is no `target`.
    """
    if not (_rename_to_new(folder, target) or _exchange(folder, target)):
        _rename_twice(folder, target)
    flush(target.parent)


def _rename_to_new(folder: Path, target: Path) -> bool:
    """Rename unless there is a `target`, also if another writer creates it at the same time."""
    if target.exists():
        return False
    try:
        os.rename(folder, target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False
    return True


_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # constants of Linux's headers
_UNSUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two folders in one step; False where the system does not support it."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:  # not Linux, or an old C library
        return False
    paths = os.fsencode(one), os.fsencode(other)
    if renameat2(_AT_FDCWD, paths[0], _AT_FDCWD, paths[1], _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in _UNSUPPORTED:
        return False
    raise OSError(code, os.strerror(code), str(other))


def _rename_twice(folder: Path, target: Path) -> None:
    replaced = folder.with_name(f"{folder.name}.old")
    try:
        os.rename(target, replaced)
        os.rename(folder, target)
    except BaseException:  # also Ctrl-C
        if replaced.exists() and not target.exists():
            os.rename(replaced, target)
        raise
    shutil.rmtree(replaced, ignore_errors=True)


_UNWRITTEN = "cannot be written"


def write_error(target: Path, error: Exception) -> OSError:
    """The error as one that names `target` and, for a full disk, the free bytes."""
    code = getattr(error, "errno", None)
    if code is None and (match := re.search(r"os error (\d+)", str(error))):  # from safetensors
        code = int(match[1])
    text = getattr(error, "strerror", None) or str(error)
    if text.startswith(_UNWRITTEN):  # of a folder in this folder
        return OSError(code, text, getattr(error, "filename", str(target)))
    reason = " ".join(text.split()) if code in (None, errno.EIO) else os.strerror(code)
    if code == errno.ENOSPC:
        existing = next(folder for folder in target.parents if folder.exists())
        reason += f": {shutil.disk_usage(existing).free:,} bytes are free in {existing}"
    return OSError(errno.EIO if code is None else code, f"{_UNWRITTEN}: {reason}", str(target))


def flush(path: Path) -> None:
    """Force a file or a folder to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
