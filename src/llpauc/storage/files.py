"""Atomic writing of single files: a file is complete, or it is not there.

A file is written under a temporary name in the same folder, flushed to disk and renamed at the
end. An exception before that (a full disk, Ctrl-C) removes it and leaves an older file untouched.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pyarrow as pa

from llpauc.errors import InputError


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path to write to, which becomes `path` when the block ends well.

    The temporary name ends like `path`, so that writers which go by the ending do the right thing.

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
        yield temporary
        with temporary.open("r+b") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    if os.name == "posix":  # elsewhere a folder cannot be opened; the rename is atomic all the same
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def write_text(table: pa.Table, path: Path, delimiter: str) -> None:
    """A table with a header line, quotes where a value needs them and nowhere else."""
    target = str(path).replace("'", "''")
    with duckdb.connect() as connection:  # Arrow's own writer quotes all text
        connection.register("rows", table)
        try:
            connection.execute(
                f"COPY rows TO '{target}' (FORMAT csv, HEADER true, DELIMITER '{delimiter}')"
            )
        except duckdb.IOException as error:  # a full disk, most likely: an OSError like any other
            raise OSError(errno.EIO, str(error).splitlines()[0], str(path)) from error
