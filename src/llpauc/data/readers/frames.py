"""Typed tables: Parquet files, pandas, Polars and Arrow frames, sparse matrices.

No pandas or Polars is imported here; a frame is whatever hands out an Arrow stream. Integer id
columns stay integers outside, in the id map's `kind`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from llpauc.data.interactions import IdMap, Interactions
from llpauc.data.readers.columns import Column, Roles, choose_columns, value_kind
from llpauc.data.readers.gathering import (
    Floats,
    Reading,
    ValueKind,
    connect,
    convert,
    holdable,
    left_out,
    no_rows,
)
from llpauc.data.readers.look import SAMPLE_ROWS
from llpauc.data.readers.records import REMEDY, shown
from llpauc.errors import InputError


def is_frame(source: object) -> bool:
    """Whether it hands out its columns as Arrow, by the protocol or by a method."""
    return any(hasattr(source, way) for way in ("__arrow_c_stream__", "to_arrow")) or _is_pandas(
        source
    )


def _is_pandas(source: object) -> bool:
    return type(source).__module__.partition(".")[0] == "pandas" and hasattr(source, "columns")


def read_frame(source: Any, wanted: dict[str, Column], bad_rows: str) -> Reading:
    """Read a pandas or Polars frame, or anything else that speaks Arrow."""
    name = f"the {type(source).__module__.partition('.')[0]} {type(source).__name__}"
    try:
        if isinstance(source, pa.Table):
            table = source
        elif _is_pandas(source):
            table = pa.Table.from_pandas(source, preserve_index=False)
        elif hasattr(source, "__arrow_c_stream__"):
            table = pa.table(source)
        else:
            table = source.to_arrow()
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise InputError(f"{name}: {_one_line(error)}; give each column one type") from error
    roles = choose_in_table(table, name, wanted)
    columns = {role: table.column(place) for role, place in roles.positions.items()}
    return read_columns(columns, name, bad_rows, roles)


def read_parquet(
    path: Path, name: str, note: str, wanted: dict[str, Column], bad_rows: str
) -> Reading:
    """Read the columns we need of a Parquet file."""
    with open_parquet(path, name) as file:
        roles, names = choose_in_parquet(file, name, wanted)
        table = file.read(columns=names)
    columns = {
        role: table.column(column) for role, column in zip(roles.positions, names, strict=True)
    }
    reading = read_columns(columns, name, bad_rows, roles)
    return replace(reading, notes=(note, *reading.notes), format="parquet")


@contextmanager
def open_parquet(path: Path, name: str) -> Iterator[pq.ParquetFile]:
    """The file; what goes wrong with its bytes while it is open is told as damage."""
    try:
        with pq.ParquetFile(path) as file:
            yield file
    except MemoryError:  # Arrow's own is an ArrowException too, and says nothing about the file
        raise
    except (pa.ArrowException, OSError) as error:
        raise InputError(
            f"{name}: the Parquet data are cut off or damaged ({_one_line(error)}); "
            "fetch the file again"
        ) from error


def choose_in_parquet(
    file: pq.ParquetFile, name: str, wanted: dict[str, Column]
) -> tuple[Roles, list[str]]:
    """The roles, and the names of their columns."""
    head = next(file.iter_batches(batch_size=SAMPLE_ROWS), None)
    empty = file.schema_arrow.empty_table()
    sample = empty if head is None else pa.Table.from_batches([head])
    roles = choose_in_table(sample, name, wanted)
    return roles, [sample.column_names[place] for place in roles.positions.values()]


def read_matrix(matrix: Any) -> Reading:
    """Read a sparse matrix, users by items: ids are its row and column numbers, all of them kept.

    Entries that are zero are no events; the others are ratings unless all of them are one.
    """
    name = f"the {type(matrix).__name__} of shape {matrix.shape[0]} x {matrix.shape[1]}"
    entries = matrix.tocsr().tocoo()
    if entries.data.dtype.kind not in "biuf":
        raise InputError(f"{name}: entries must be real numbers, got {entries.data.dtype}")
    values = entries.data.astype(np.float64)
    users, items = entries.coords
    bad = np.flatnonzero(~holdable(values, "rating"))
    if len(bad):
        place = bad[0]
        raise InputError(
            f"{name}: entry [{users[place]}, {items[place]}] is {values[place]}; "
            "entries must be finite numbers"
        )
    there = values != 0
    if not there.any():
        raise no_rows(name, 0, None)
    notes = [f"{name}: rows are users, columns are items"]
    if not there.all():
        notes.append(f"{name}: {int((~there).sum())} stored zeros are no events")
    ratings = values[there].astype(np.float32)
    interactions = Interactions(
        users[there],
        items[there],
        _numbered(matrix.shape[0]),
        _numbered(matrix.shape[1]),
        None if (ratings == 1).all() else ratings,
    )
    return Reading(interactions, tuple(notes), len(interactions), format="matrix")


def _numbered(count: int) -> IdMap:
    return IdMap(pa.array(np.arange(count)).cast(pa.large_string()), "int64")


def choose_in_table(table: pa.Table, name: str, wanted: dict[str, Column]) -> Roles:
    """Which column of a table plays which role, by its names and first values."""

    def kind_of(place: int) -> ValueKind | None:
        column = _decoded(table.column(place))
        if _is_text(column.type):
            return value_kind([text or "" for text in column.slice(0, SAMPLE_ROWS).to_pylist()])
        return _typed_kind(column.type)

    return choose_columns(name, table.column_names, header=True, wanted=wanted, kind_of=kind_of)


def _typed_kind(kind: pa.DataType) -> ValueKind | None:
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return "date"
    numeric = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_boolean)
    return "number" if any(fits(kind) for fits in numeric) else None


def read_columns(
    columns: dict[str, pa.ChunkedArray], name: str, bad_rows: str, roles: Roles
) -> Reading:
    """Interactions from the columns of each role."""
    total = len(columns["user"])
    there = usable_rows(columns, name, bad_rows, roles)
    if there.rejected == total:
        raise no_rows(name, there.rejected, there.problem)
    notes = list(roles.notes)
    if there.rejected:
        notes.append(left_out(name, there.rejected, total, there.problem))
    interactions = Interactions.of(
        there.users,
        there.items,
        ratings=there.values.get("rating"),
        timestamps=there.values.get("timestamp"),
    )
    return Reading(interactions, tuple(notes), total - there.rejected, there.rejected, "frame")


@dataclass(frozen=True)
class Usable:
    """The rows of a typed table that can be used, and what was wrong with the first other one."""

    users: pa.ChunkedArray
    items: pa.ChunkedArray
    values: dict[str, Floats]
    rejected: int
    problem: str | None


def usable_rows(
    columns: dict[str, pa.ChunkedArray], name: str, bad_rows: str, roles: Roles, before: int = 0
) -> Usable:
    """Check the columns of each role; `before` rows of the source came before these."""
    columns = {role: _decoded(column) for role, column in columns.items()}
    good = np.ones(len(columns["user"]), dtype=bool)
    values: dict[str, Floats] = {}
    for role, column in columns.items():
        if role in ("user", "item"):
            good &= _ids_there(column, role, name)
        else:
            values[role] = _numbers(column, role, name, roles.kind(role))
            good &= holdable(values[role], role)
    rejected = int(len(good) - good.sum())
    problem = _first_problem(columns, values, good, before) if rejected else None
    if rejected and bad_rows != "skip":
        raise InputError(f"{name}: {problem}; {REMEDY}")
    if rejected:
        columns = {role: columns[role].filter(pa.array(good)) for role in ("user", "item")}
        values = {role: column[good] for role, column in values.items()}
    return Usable(columns["user"], columns["item"], values, rejected, problem)


def _ids_there(column: pa.ChunkedArray, role: str, name: str) -> npt.NDArray[np.bool_]:
    if pa.types.is_floating(column.type):
        raise InputError(
            f"{name}: the {role} ids are floating-point numbers ({column.type}), perhaps because "
            "some are missing; drop those rows and cast the column to integers or text"
        )
    if pa.types.is_integer(column.type) or pa.types.is_null(column.type):
        there = column.is_valid()
    elif _is_text(column.type):
        there = pc.fill_null(pc.greater(pc.binary_length(column), 0), False)
    else:
        raise InputError(
            f"{name}: the {role} ids have the type {column.type}; cast them to integers or text"
        )
    return np.asarray(there.to_numpy(), dtype=bool)


def _numbers(column: pa.ChunkedArray, role: str, name: str, kind: ValueKind) -> Floats:
    if _is_text(column.type):
        with connect() as connection:
            return convert(column, kind, connection)
    typed = _typed_kind(column.type)
    if typed is None or (typed == "date" and role == "rating"):
        raise InputError(f"{name}: the {role} has the type {column.type}; give numbers")
    if typed == "date":
        moments = column.cast(pa.timestamp("us"), safe=False).cast(pa.int64())
        return np.asarray(moments.cast(pa.float64(), safe=False).to_numpy(), np.float64) / 1e6
    return np.asarray(column.cast(pa.float64(), safe=False).to_numpy(), dtype=np.float64)


def _first_problem(
    columns: dict[str, pa.ChunkedArray],
    values: dict[str, Floats],
    good: npt.NDArray[np.bool_],
    before: int,
) -> str:
    place = int(np.argmin(good))
    row = before + place + 1
    for role in ("user", "item"):
        if not columns[role][place].as_py() and columns[role][place].as_py() != 0:
            return f"row {row}: the {role} id is missing"
    role = next(role for role in values if not holdable(values[role][place : place + 1], role)[0])
    return f"row {row}: {role} {shown(str(columns[role][place].as_py()))} is not a number"


def _decoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Without dictionaries and string views, for which Arrow lacks some functions."""
    if pa.types.is_dictionary(column.type):
        values = _plain_type(column.type.value_type)
        chunks = [
            pa.DictionaryArray.from_arrays(
                chunk.indices, chunk.dictionary.cast(values)
            ).dictionary_decode()
            for chunk in column.chunks
        ]
        return pa.chunked_array(chunks, values)
    return column.cast(_plain_type(column.type))


def _plain_type(kind: pa.DataType) -> pa.DataType:
    return pa.large_string() if _is_text(kind) else kind


def _is_text(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
