"""Write the parts of a split to a folder, which is replaced as a whole."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from llpauc.data.columns import ROLES
from llpauc.data.ids import is_text
from llpauc.data.interactions import Interactions, Split
from llpauc.errors import choose
from llpauc.storage.atomic import atomic_write, writer_lock
from llpauc.storage.manifest import FolderKind, written_folder

_RECBOLE_COLUMNS = (
    *("user_id:token", "item_id:token", "rating:float", "timestamp:float"),
    *("weight:float", "event_type:token"),
)
SPLIT_FOLDER = FolderKind(
    kind="llpauc split",
    noun="a split written by llpauc",
    formats={1: True},
    required=frozenset(),
    remedy="split the data again (llpauc data split)",
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
    """Write one file per part, with ids, and with ratings, timestamps, weights and event types if
    the data have them.

    Files are named `train.tsv`, `valid.tsv` and `test.tsv`; RecBole's `.inter` files also carry
    the name of their folder (`mydata/mydata.train.inter`). A manifest lists the files: a folder
    that holds any other file is refused, an earlier split is replaced as a whole.

    Args:
        split: the parts.
        folder: of this split alone.
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
    written = []
    with ExitStack() as stack:
        for folder, split in splits.items():
            stack.enter_context(writer_lock(folder))
            work = stack.enter_context(written_folder(folder, SPLIT_FOLDER))
            prefix = f"{folder.resolve().name}." if format == "inter" else ""
            files = {name: f"{prefix}{name}.{format}" for name in split.parts}
            for name, part in split.parts.items():
                write(part, work / files[name])
            written.append({name: folder / file for name, file in files.items()})
    return written


def _table(data: Interactions, names: Sequence[str] = ROLES) -> pa.Table:
    user, item, rating, timestamp, weight, event_type = names
    columns = {user: data.user_ids.arrow(data.users), item: data.item_ids.arrow(data.items)}
    if data.ratings is not None:
        columns[rating] = pa.array(data.ratings)
    if data.timestamps is not None:
        times = data.timestamps
        # Whole seconds are written as integers, as long as float64 is exact.
        whole = bool(np.all((times == np.floor(times)) & (np.abs(times) < 2.0**53)))
        columns[timestamp] = pa.array(times.astype(np.int64) if whole else times)
    # The columns of the source: reading multiplies the weight of an event and of its type.
    weights = data.weights
    if data.types is not None and weights is not None:
        number = np.log2(data.types).astype(np.int64)
        of_type = np.array(list(data.rules.type_weights.values()), np.float32)[number]
        weights = np.divide(weights, of_type, out=np.ones_like(weights), where=of_type > 0)
        columns[event_type] = pa.array(list(data.rules.type_weights)).take(pa.array(number))
        weights = None if (weights == 1).all() else weights
    if weights is not None:
        columns[weight] = pa.array(weights)
    return pa.table(columns)


def write_events(data: Interactions, path: str | os.PathLike[str]) -> None:
    """Write events to one file, atomically; the suffix is the format (`WRITERS`)."""
    write = choose(WRITERS, Path(path).suffix.removeprefix("."), "format of the file")
    with atomic_write(Path(path)) as temporary:
        write(data, temporary)


def write_delimited(table: pa.Table, path: Path, delimiter: str) -> None:
    """Write a table with a header line; values are quoted only where some need quotes."""
    target = str(path).replace("'", "''")
    texts = [column for column in table.columns if is_text(column.type)]
    # Readers take blanks around a field for a part of it only in quotes; DuckDB does not quote them
    blanks = any(pc.any(pc.match_substring_regex(text, r"^[ \t]|[ \t]$")).as_py() for text in texts)
    quote = ", FORCE_QUOTE *" if blanks else ""
    with duckdb.connect() as connection:  # Arrow's writer quotes all text
        connection.register("rows", table)
        try:
            connection.execute(
                f"COPY rows TO '{target}' (FORMAT csv, HEADER true, DELIMITER '{delimiter}'{quote})"
            )
        except duckdb.IOException as error:  # such as a full disk
            raise OSError(errno.EIO, str(error).splitlines()[0], str(path)) from error
