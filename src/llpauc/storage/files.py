"""Writing without halves: a file is there whole, or it is not there.

What is being written has another name in the same folder; it is forced to disk and renamed at the
end. An exception on the way (a full disk, Ctrl-C) removes it and leaves an older file untouched.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from llpauc.data.interactions import Interactions, Split
from llpauc.errors import InputError, choose


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


def write_split(
    split: Split, folder: str | os.PathLike[str], format: str = "tsv"
) -> dict[str, Path]:
    """One file a part, with the outside ids, and ratings and timestamps where there are any.

    Names are `train.tsv` and so on; RecBole's `.inter` files carry their folder's name as RecBole
    wants it (`mydata/mydata.train.inter`). All parts are written before the first is renamed. A
    folder with a part of another split that these files would not replace is refused: a reader
    would take the old part for one of these.

    Args:
        split: what to write.
        folder: made when it is not there.
        format: "tsv", "csv", "parquet" or "inter".

    Returns:
        The path of each part.

    >>> import tempfile
    >>> split = Split(Interactions.of(["007", "ø"], [1, 2]))
    >>> files = write_split(split, tempfile.mkdtemp(), "csv")
    >>> files["train"].read_text(encoding="utf-8").split()
    ['user,item', '007,1', 'ø,2']
    """
    return write_splits({Path(folder): split}, format)[0]


def write_splits(splits: Mapping[Path, Split], format: str = "tsv") -> list[dict[str, Path]]:
    """Several splits by folder as `write_split` does it: all files are written, or none."""
    write = choose(_WRITERS, format, "format")
    targets = [(split, _target_files(split, folder, format)) for folder, split in splits.items()]
    with ExitStack() as stack:
        for split, files in targets:
            for name, part in split.parts.items():
                write(part, stack.enter_context(atomic_write(files[name])))
    return [files for _, files in targets]


def _target_files(split: Split, folder: Path, format: str) -> dict[str, Path]:
    """Where each part goes; makes the folder, refuses one that would hold a mixture."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"cannot write into {folder}: it is a file; choose a folder")
    folder.mkdir(parents=True, exist_ok=True)
    prefix = f"{folder.resolve().name}." if format == "inter" else ""
    files = {name: folder / f"{prefix}{name}.{format}" for name in split.parts}
    for other in sorted(folder.iterdir()):
        if _PART_FILE.fullmatch(other.name) and other not in files.values():
            raise InputError(
                f"{folder} already holds {other.name}, a part of another split; "
                "remove it or choose another folder"
            )
    return files


Names = tuple[str, str, str, str]


def _table(data: Interactions, names: Names) -> pa.Table:
    columns = [data.user_ids.arrow(data.users), data.item_ids.arrow(data.items)]
    used = list(names[:2])
    if data.ratings is not None:
        columns.append(pa.array(data.ratings))
        used.append(names[2])
    if data.timestamps is not None:
        times = data.timestamps
        # Whole seconds are written as such; beyond 2^53 a float is no longer a count of anything.
        whole = bool(np.all((times == np.floor(times)) & (np.abs(times) < 2.0**53)))
        columns.append(pa.array(times.astype(np.int64) if whole else times))
        used.append(names[3])
    return pa.table(columns, names=used)


# What a reader would take for a part of a split that lies in the same folder.
_PART_FILE = re.compile(
    r"(train|valid|test)\.(tsv|csv|txt|parquet|inter|jsonl)(\.gz)?|[^.].*\.(train|valid|test)\.inter"
)
_PLAIN = ("user", "item", "rating", "timestamp")
_RECBOLE = ("user_id:token", "item_id:token", "rating:float", "timestamp:float")


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


_WRITERS: dict[str, Callable[[Interactions, Path], None]] = {
    "tsv": lambda data, path: write_text(_table(data, _PLAIN), path, "\t"),
    "csv": lambda data, path: write_text(_table(data, _PLAIN), path, ","),
    "inter": lambda data, path: write_text(_table(data, _RECBOLE), path, "\t"),
    "parquet": lambda data, path: pq.write_table(_table(data, _PLAIN), path),
}
