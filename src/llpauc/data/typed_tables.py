"""Readers of typed tables: Parquet and Arrow files, frames, streams, sparse matrices.

pandas and Polars are not imported: a frame is any object that exports an Arrow stream. Integer
ids are returned as integers (`IdMap.kind`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from llpauc.data.columns import SAMPLE_ROWS, ValueKind, value_kind
from llpauc.data.ids import IdKind, IdMap, is_text
from llpauc.data.interactions import Interactions
from llpauc.data.sources import BATCH_ROWS, Source, connect
from llpauc.errors import InputError


def is_frame(frame: object) -> bool:
    """Whether an object exports its columns as Arrow."""
    return hasattr(frame, "__arrow_c_stream__") or hasattr(frame, "to_arrow") or _is_pandas(frame)


def _is_pandas(frame: object) -> bool:
    return type(frame).__module__.partition(".")[0] == "pandas" and hasattr(frame, "columns")


def as_table(frame: Any, name: str) -> pa.Table:
    """A pandas or Polars frame, or any other object that exports Arrow, as an Arrow table."""
    try:
        if isinstance(frame, pa.Table):
            return frame
        if _is_pandas(frame):
            return pa.Table.from_pandas(frame, preserve_index=False)
        return pa.table(frame) if hasattr(frame, "__arrow_c_stream__") else frame.to_arrow()
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise InputError(f"{name}: {_one_line(error)}; give each column one type") from error


def read_frame(source: Source, frame: Any) -> None:
    """Read a pandas or Polars frame, or any other object that exports Arrow."""
    table = as_table(frame, source.name)
    starts = range(0, len(table), BATCH_ROWS)
    _read_batches(
        source,
        table,
        lambda positions: (table.select(positions).slice(start, BATCH_ROWS) for start in starts),
    )


def read_parquet(source: Source) -> None:
    """Read the columns of a Parquet file that are needed."""
    source.notes.append(f"{source.name}: read as parquet ({source.detected_by})")
    try:
        with pq.ParquetFile(source.path) as file:
            head = next(file.iter_batches(batch_size=SAMPLE_ROWS), None)
            empty = file.schema_arrow.empty_table()
            sample = empty if head is None else pa.Table.from_batches([head])

            def batches(positions: list[int]) -> Iterator[pa.Table]:
                names = [sample.column_names[position] for position in positions]
                unique = not any(sample.column_names.count(name) > 1 for name in names)
                columns = names if unique else None  # columns of one name differ by position only
                for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=columns):
                    table = pa.Table.from_batches([batch])
                    yield table.select(names if unique else positions)

            _read_batches(source, sample, batches)
    except MemoryError:  # Arrow's is an ArrowException too, but does not mean a damaged file
        raise
    except (pa.ArrowException, OSError) as error:
        raise _damaged(source, error) from error


def read_arrow(source: Source) -> None:
    """Read an Arrow IPC file (Feather version 2)."""
    source.notes.append(f"{source.name}: read as arrow ({source.detected_by})")
    try:
        with pa.memory_map(str(source.path)) as file:
            reader = pa.ipc.open_file(file)
            batches = (reader.get_batch(n) for n in range(reader.num_record_batches))
            tables = (pa.Table.from_batches([batch]) for batch in batches)
            read_stream(source, chain([reader.schema.empty_table()], tables))
    except MemoryError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise _damaged(source, error) from error


def _damaged(source: Source, error: Exception) -> InputError:
    kind = (source.format_name or "").capitalize()
    return InputError(
        f"{source.name}: the {kind} data are cut off or damaged ({_one_line(error)}); "
        "fetch the file again"
    )


def read_stream(source: Source, tables: Iterator[pa.Table]) -> None:
    """Read tables with the same columns, each of which is read once."""
    head = next(tables)
    for table in tables:  # the first ones may be empty
        head = pa.concat_tables([head, table])
        if len(head):
            break

    def batches(positions: list[int]) -> Iterator[pa.Table]:
        for table in chain([head], tables):
            for start in range(0, len(table), BATCH_ROWS):
                yield table.select(positions).slice(start, BATCH_ROWS)

    _read_batches(source, head, batches)


def _read_batches(
    source: Source, sample: pa.Table, batches: Callable[[list[int]], Iterable[pa.Table]]
) -> None:
    """Detect the columns by their names, types and first values; check and add the batches.

    Args:
        source: of the table.
        sample: its first rows.
        batches: returns all rows, given the positions of the columns that are needed.
    """
    width = sample.num_columns
    fixed = {k: v for k, v in source.partitions.items() if k not in sample.column_names}
    for name, value in fixed.items():
        sample = sample.append_column(name, pa.array([value] * len(sample), pa.string()))
    head = sample.slice(0, SAMPLE_ROWS)
    values = [[str(v) for v in column.to_pylist() if v is not None] for column in head.columns]
    kinds = [
        value_kind(texts) if is_text(_value_type(kind)) else _typed_kind(kind)
        for texts, kind in zip(values, head.schema.types, strict=True)
    ]
    roles = source.detect_columns(head.column_names, values, kinds=kinds)
    for role, position in roles.positions.items():
        kind = _check_type(source.name, role, _value_type(sample.schema.types[position]))
        if kind is not None:
            source.sink.kinds[role].add(kind)
    positions = list(roles.positions.values())
    with connect() as connection:
        for table in batches([position for position in positions if position < width]):
            for place, position in enumerate(positions):
                if position >= width:
                    name = sample.column_names[position]
                    values = pa.repeat(fixed[name], len(table))
                    table = table.add_column(place, name, values)
            first = source.rows_read + source.rows_rejected + 1
            numbers = range(first, first + len(table))
            source.add_checked(connection, table, roles, "row", numbers)


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
    bad = np.flatnonzero(~(np.abs(values) <= np.finfo(np.float32).max))
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


def _value_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _typed_kind(kind: pa.DataType) -> ValueKind | None:
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return "date"
    numeric = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_boolean)
    return "number" if any(fits(kind) for fits in numeric) else None


def _check_type(name: str, role: str, kind: pa.DataType) -> IdKind | None:
    """Refuse a type that cannot play the role; the kind of ids."""
    if role not in ("user", "item"):
        typed = "number" if role == "event_type" else _typed_kind(kind)
        if not is_text(kind) and (typed is None or (typed == "date" and role != "timestamp")):
            raise InputError(f"{name}: the {role} has the type {kind}; give numbers")
        return None
    if pa.types.is_integer(kind):
        return "uint64" if kind == pa.uint64() else "int64"
    if is_text(kind) or pa.types.is_null(kind):
        return "string"
    floating = " (floating-point numbers, perhaps because some ids are missing: drop those rows)"
    raise InputError(
        f"{name}: the {role} ids have the type {kind}"
        f"{floating if pa.types.is_floating(kind) else ''}; cast them to integers or text"
    )


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
