"""Readers of typed tables: Parquet files, pandas, Polars and Arrow frames, sparse matrices.

pandas and Polars are not imported: a frame is any object that exports an Arrow stream. Integer
ids are returned as integers (`IdMap.kind`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from llpauc.data.columns import ColumnRoles, ValueKind, detect_columns, value_kind
from llpauc.data.ids import IdMap, as_id_text, is_text
from llpauc.data.interactions import Interactions
from llpauc.data.sources import BATCH_ROWS, Floats, Source, connect, convert, is_valid
from llpauc.data.text_layout import SAMPLE_ROWS
from llpauc.data.text_tables import quoted
from llpauc.errors import InputError


def is_frame(frame: object) -> bool:
    """Whether an object exports its columns as Arrow."""
    return hasattr(frame, "__arrow_c_stream__") or hasattr(frame, "to_arrow") or _is_pandas(frame)


def _is_pandas(frame: object) -> bool:
    return type(frame).__module__.partition(".")[0] == "pandas" and hasattr(frame, "columns")


def read_frame(source: Source, frame: Any) -> None:
    """Read a pandas or Polars frame, or any other object that exports Arrow."""
    try:
        if isinstance(frame, pa.Table):
            table = frame
        elif _is_pandas(frame):
            table = pa.Table.from_pandas(frame, preserve_index=False)
        elif hasattr(frame, "__arrow_c_stream__"):
            table = pa.table(frame)
        else:
            table = frame.to_arrow()
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise InputError(f"{source.name}: {_one_line(error)}; give each column one type") from error
    roles = detect_table_columns(source, table)
    source.start(roles)
    add_table(source, table.select(list(roles.positions.values())), roles)


def read_parquet(source: Source) -> None:
    """Read the columns of a Parquet file that are needed."""
    source.notes.append(f"{source.name}: read as parquet ({source.detected_by})")
    try:
        with pq.ParquetFile(source.path) as file:
            head = next(file.iter_batches(batch_size=SAMPLE_ROWS), None)
            empty = file.schema_arrow.empty_table()
            sample = empty if head is None else pa.Table.from_batches([head])
            roles = detect_table_columns(source, sample)
            source.start(roles)
            names = [sample.column_names[position] for position in roles.positions.values()]
            for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=names):
                add_table(source, pa.Table.from_batches([batch]).select(names), roles)
    except MemoryError:  # Arrow's is an ArrowException too, but does not mean a damaged file
        raise
    except (pa.ArrowException, OSError) as error:
        raise InputError(
            f"{source.name}: the Parquet data are cut off or damaged ({_one_line(error)}); "
            "fetch the file again"
        ) from error


def read_matrix(matrix: Any) -> tuple[Interactions, list[str]]:
    """Events and notes of a sparse matrix, users by items.

    Ids are the row and column numbers, including those of empty rows and columns. Stored zeros
    are not events; the other entries are ratings unless all of them are 1.
    """
    name = f"the {type(matrix).__name__} of shape {matrix.shape[0]} x {matrix.shape[1]}"
    entries = matrix.tocsr().tocoo()
    if entries.data.dtype.kind not in "biuf":
        raise InputError(f"{name}: entries must be real numbers, got {entries.data.dtype}")
    values = entries.data.astype(np.float64)
    users, items = entries.coords
    bad = np.flatnonzero(~is_valid(values, "rating"))
    if len(bad):
        raise InputError(
            f"{name}: entry [{users[bad[0]]}, {items[bad[0]]}] is {values[bad[0]]}; "
            "entries must be finite numbers"
        )
    nonzero = values != 0
    if not nonzero.any():
        raise InputError(f"{name}: no rows; give a matrix that holds at least one interaction")
    notes = [f"{name}: rows are users, columns are items"]
    if not nonzero.all():
        notes.append(f"{name}: {int((~nonzero).sum())} stored zeros are no events")
    ratings = values[nonzero].astype(np.float32)
    user_ids, item_ids = (IdMap.of(np.arange(size)) for size in matrix.shape)
    rated = None if (ratings == 1).all() else ratings
    return Interactions(users[nonzero], items[nonzero], user_ids, item_ids, rated), notes


def detect_table_columns(source: Source, table: pa.Table) -> ColumnRoles:
    """The roles of a table's columns, by their names, types and first values."""

    def kind_of(position: int) -> ValueKind | None:
        column = _decoded(table.column(position))
        if is_text(column.type):
            return value_kind([text or "" for text in column.slice(0, SAMPLE_ROWS).to_pylist()])
        return _typed_kind(column.type)

    return detect_columns(
        source.name, table.column_names, header=True, requested=source.requested, kind_of=kind_of
    )


def _typed_kind(kind: pa.DataType) -> ValueKind | None:
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return "date"
    numeric = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_boolean)
    return "number" if any(fits(kind) for fits in numeric) else None


def add_table(source: Source, table: pa.Table, roles: ColumnRoles) -> None:
    """Check the rows of a table with one column per role, in order, and add the good ones."""
    columns = {
        role: _decoded(column) for role, column in zip(roles.positions, table.columns, strict=True)
    }
    good = np.ones(len(table), dtype=bool)
    values: dict[str, Floats] = {}
    for role, column in columns.items():
        if role in ("user", "item"):
            good &= _has_id(column, role, source.name)
        else:
            values[role] = _numbers(column, role, source.name, roles.kind(role))
            good &= is_valid(values[role], role)
    if not good.all():
        row = int(np.argmin(good))
        place = f"row {source.rows_read + source.rows_rejected + row + 1}"
        source.reject(place, _problem(columns, values, row), int((~good).sum()))
    if good.any():
        ids = {}
        for role in ("user", "item"):
            column = columns[role] if good.all() else columns[role].filter(pa.array(good))
            ids[role], kind = as_id_text(column)
            source.sink.kinds[role].add(kind)
        source.add(ids | {role: column[good] for role, column in values.items()})


def _has_id(column: pa.ChunkedArray, role: str, name: str) -> npt.NDArray[np.bool_]:
    if pa.types.is_floating(column.type):
        raise InputError(
            f"{name}: the {role} ids are floating-point numbers ({column.type}), perhaps because "
            "some are missing; drop those rows and cast the column to integers or text"
        )
    if pa.types.is_integer(column.type) or pa.types.is_null(column.type):
        present = column.is_valid()
    elif is_text(column.type):
        present = pc.fill_null(pc.greater(pc.binary_length(column), 0), False)
    else:
        raise InputError(
            f"{name}: the {role} ids have the type {column.type}; cast them to integers or text"
        )
    return np.asarray(present.to_numpy(), dtype=bool)


def _numbers(column: pa.ChunkedArray, role: str, name: str, kind: ValueKind) -> Floats:
    if is_text(column.type):
        with connect() as connection:
            return convert(column, kind, connection)
    typed = _typed_kind(column.type)
    if typed is None or (typed == "date" and role == "rating"):
        raise InputError(f"{name}: the {role} has the type {column.type}; give numbers")
    if typed == "date":
        moments = column.cast(pa.timestamp("us"), safe=False).cast(pa.int64())
        return np.asarray(moments.cast(pa.float64(), safe=False).to_numpy(), np.float64) / 1e6
    return np.asarray(column.cast(pa.float64(), safe=False).to_numpy(), dtype=np.float64)


def _problem(columns: dict[str, pa.ChunkedArray], values: dict[str, Floats], row: int) -> str:
    for role in ("user", "item"):
        if columns[role][row].as_py() in (None, ""):
            return f"the {role} id is missing"
    role = next(role for role in values if not is_valid(values[role][row : row + 1], role)[0])
    return f"{role} {quoted(str(columns[role][row].as_py()))} is not a number"


def _decoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Without dictionaries and string views, which some functions of Arrow do not support."""
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
    return pa.large_string() if is_text(kind) else kind


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
