"""Write the parts of a split to files: all files are written, or none."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from llpauc.data.columns import ROLES
from llpauc.data.interactions import Interactions, Split
from llpauc.errors import InputError, choose
from llpauc.storage.atomic import atomic_write

_RECBOLE_COLUMNS = ("user_id:token", "item_id:token", "rating:float", "timestamp:float")
# Files that a reader would take for a part of the split in the same folder.
_PART_FILE = re.compile(
    r"(train|valid|test)\.(tsv|csv|txt|parquet|inter|jsonl)(\.gz)?|[^.].*\.(train|valid|test)\.inter"
)

WRITERS: dict[str, Callable[[Interactions, Path], None]] = {
    "tsv": lambda data, path: write_delimited(_table(data), path, "\t"),
    "csv": lambda data, path: write_delimited(_table(data), path, ","),
    "inter": lambda data, path: write_delimited(_table(data, _RECBOLE_COLUMNS), path, "\t"),
    "parquet": lambda data, path: pq.write_table(_table(data), path),
}


def write_split(
    split: Split, folder: str | os.PathLike[str], format: str = "tsv"
) -> dict[str, Path]:
    """Write one file per part, with ids, and with ratings and timestamps if the data have them.

    Files are named `train.tsv`, `valid.tsv` and `test.tsv`; RecBole's `.inter` files also carry
    the name of their folder (`mydata/mydata.train.inter`). All parts are written before the first
    is renamed. A folder that holds a part of another split under another file name is refused,
    because a reader would mix the two splits.

    Args:
        split: the parts.
        folder: created if it does not exist.
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
    """Write several splits, each to its folder, as `write_split` does: all files, or none."""
    write = choose(WRITERS, format, "format")
    targets = [(split, _target_files(split, folder, format)) for folder, split in splits.items()]
    with ExitStack() as stack:
        for split, files in targets:
            for name, part in split.parts.items():
                write(part, stack.enter_context(atomic_write(files[name])))
    return [files for _, files in targets]


def _target_files(split: Split, folder: Path, format: str) -> dict[str, Path]:
    """The file of each part; creates the folder and refuses one with parts of another split."""
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


def _table(data: Interactions, names: Sequence[str] = ROLES) -> pa.Table:
    user, item, rating, timestamp = names
    columns = {user: data.user_ids.arrow(data.users), item: data.item_ids.arrow(data.items)}
    if data.ratings is not None:
        columns[rating] = pa.array(data.ratings)
    if data.timestamps is not None:
        times = data.timestamps
        # Whole seconds are written as integers, as long as float64 is exact.
        whole = bool(np.all((times == np.floor(times)) & (np.abs(times) < 2.0**53)))
        columns[timestamp] = pa.array(times.astype(np.int64) if whole else times)
    return pa.table(columns)


def write_delimited(table: pa.Table, path: Path, delimiter: str) -> None:
    """Write a table with a header line; only values that need quotes are quoted."""
    target = str(path).replace("'", "''")
    with duckdb.connect() as connection:  # Arrow's writer quotes all text
        connection.register("rows", table)
        try:
            connection.execute(
                f"COPY rows TO '{target}' (FORMAT csv, HEADER true, DELIMITER '{delimiter}')"
            )
        except duckdb.IOException as error:  # such as a full disk
            raise OSError(errno.EIO, str(error).splitlines()[0], str(path)) from error
