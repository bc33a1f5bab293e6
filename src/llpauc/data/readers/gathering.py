"""Columns of text in, `Interactions` out: the last step that every reader shares.

Ids arrive batch by batch and are coded at once, so that a large file never stands in memory as
text. The two SQL expressions below are the one definition of what a number and a date are.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from llpauc.data.interactions import IdMap, Interactions
from llpauc.errors import InputError

ValueKind = Literal["number", "date"]
Floats = npt.NDArray[np.float64]

# A cast to TIMESTAMP would silently drop the offset of 2020-01-01T00:00:00+02:00; this one heeds
# it, and takes a date without one as UTC because the connection's time zone is UTC.
VALUE_SQL: dict[ValueKind, str] = {
    "number": "TRY_CAST({column} AS DOUBLE)",
    "date": "epoch(TRY_CAST({column} AS TIMESTAMPTZ))",
}


@dataclass(frozen=True)
class Reading:
    """What came out of a source, and what was guessed on the way.

    Args:
        interactions: the events, in the order of the source.
        notes: what was decided without being told (format, delimiter, header, columns, rows left
            out), one line each, to be said aloud.
        rows_read: rows of the source that were used: lines of an adjacency list, rows of a table.
        rows_rejected: rows left out by `bad_rows="skip"`. The two add up to all rows with data.
        format: what the source was read as: a name in `FORMATS`, "frame" or "matrix".
    """

    interactions: Interactions
    notes: tuple[str, ...]
    rows_read: int
    rows_rejected: int = 0
    format: str = ""


def connect(
    database: str = ":memory:", memory_limit: str = "2GB", temp_directory: str = ""
) -> duckdb.DuckDBPyConnection:
    """A private DuckDB that loads nothing from the network and knows only UTC.

    Args:
        database: its file; the default writes none.
        memory_limit: as DuckDB has it.
        temp_directory: where it may put what passes the limit; "" is nowhere, and an error.
    """
    connection = duckdb.connect(
        database,
        config={
            # Each thread holds buffers of tens of MB: many cores would pass the memory limit.
            "threads": min(os.cpu_count() or 1, 8),
            "memory_limit": memory_limit,
            # DuckDB's own default would be a folder beside the caller's files.
            "temp_directory": temp_directory,
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
        },
    )
    connection.execute("SET TimeZone = 'UTC'; SET enable_progress_bar = false")
    return connection


def convert(
    text: pa.Array | pa.ChunkedArray, kind: ValueKind, connection: duckdb.DuckDBPyConnection
) -> Floats:
    """Text as float64; NaN where it is no `kind`.

    >>> with connect() as connection:
    ...     numbers = convert(pa.array(["3.5", "abc", ""]), "number", connection)
    ...     dates = convert(pa.array(["1970-01-02T02:00:00+02:00"]), "date", connection)
    >>> numbers.tolist(), dates.tolist()
    ([3.5, nan, nan], [86400.0])
    """
    relation = connection.from_arrow(pa.table({"value": text}))
    column = relation.project(VALUE_SQL[kind].format(column="value")).to_arrow_table().column(0)
    return np.asarray(column.to_numpy(), dtype=np.float64)


def holdable(values: Floats, role: str) -> npt.NDArray[np.bool_]:
    """Where a value is finite in the type it will be kept in: float32 for ratings."""
    if role == "rating":
        return np.abs(values) <= np.finfo(np.float32).max  # NaN compares false
    return np.isfinite(values)


class Sink(Protocol):
    """Takes columns batch by batch; the ids are text without nulls, the values already checked."""

    def add(
        self,
        users: pa.Array,
        items: pa.Array,
        ratings: Floats | None = None,
        timestamps: Floats | None = None,
    ) -> None: ...


@dataclass
class Gathering:
    """Batches of columns on their way to `Interactions`; ids get rows in order of appearance."""

    users: list[pa.DictionaryArray] = field(default_factory=list)
    items: list[pa.DictionaryArray] = field(default_factory=list)
    ratings: list[npt.NDArray[np.float32]] = field(default_factory=list)
    timestamps: list[Floats] = field(default_factory=list)

    def add(
        self,
        users: pa.Array,
        items: pa.Array,
        ratings: Floats | None = None,
        timestamps: Floats | None = None,
    ) -> None:
        self.users.append(code_ids(users))
        self.items.append(code_ids(items))
        if ratings is not None:
            self.ratings.append(ratings.astype(np.float32))
        if timestamps is not None:
            self.timestamps.append(np.array(timestamps, dtype=np.float64))

    def finish(self) -> Interactions:
        user_rows, user_ids = join_codes(self.users)
        item_rows, item_ids = join_codes(self.items)
        return Interactions(
            user_rows,
            item_rows,
            user_ids,
            item_ids,
            np.concatenate(self.ratings) if self.ratings else None,
            np.concatenate(self.timestamps) if self.timestamps else None,
        )


def code_ids(ids: pa.Array) -> pa.DictionaryArray:
    coded = pc.dictionary_encode(ids)
    # Wide offsets on the short side only: all distinct ids together may pass 2 GB.
    return pa.DictionaryArray.from_arrays(coded.indices, coded.dictionary.cast(pa.large_string()))


def join_codes(batches: Sequence[pa.DictionaryArray]) -> tuple[npt.NDArray[np.int32], IdMap]:
    whole = pa.chunked_array(batches).unify_dictionaries()
    rows = np.concatenate([np.asarray(chunk.indices, dtype=np.int32) for chunk in whole.chunks])
    return rows, IdMap(whole.chunk(0).dictionary)


def no_rows(name: str, rejected: int, first_problem: str | None) -> InputError:
    """The error for a source that holds nothing we can use."""
    if rejected:
        return InputError(f"{name}: no usable row, all {rejected} were left out: {first_problem}")
    return InputError(f"{name}: no rows; give a file that holds at least one interaction")


def left_out(name: str, rejected: int, total: int, first_problem: str | None) -> str:
    """The note about rows that `bad_rows="skip"` left out."""
    return f"{name}: left out {rejected} of {total} rows, the first: {first_problem}"
