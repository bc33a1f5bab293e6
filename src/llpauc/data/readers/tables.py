"""Text tables through DuckDB: explicit schema, every id as text, so that 007 stays 007.

DuckDB reads a file whole or not at all. Where it stumbles, where a value is bad, where it did not
find as many rows as `scanning` counted and where it is known to misread, `records` reads the file
row by row and names the line.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa

from llpauc.data.interactions import Interactions
from llpauc.data.readers.columns import Column, Roles, choose_columns, value_kind
from llpauc.data.readers.gathering import (
    VALUE_SQL,
    Floats,
    Gathering,
    Reading,
    connect,
    holdable,
    left_out,
    no_rows,
)
from llpauc.data.readers.look import LONGEST_LINE, Layout
from llpauc.data.readers.records import Rejects, read_exact
from llpauc.data.readers.scanning import Scan, scan

BATCH_ROWS = 1_000_000


def read_table(
    path: Path, name: str, layout: Layout, wanted: dict[str, Column], bad_rows: str
) -> Reading:
    """Read a text table whose layout is known."""
    roles = choose_in_layout(name, layout, wanted)
    notes = [layout.note, *roles.notes]
    rejects = Rejects(name, bad_rows)
    scanned = scan(path, layout.delimiter if layout.quotes else None)
    interactions: Interactions | None = None
    oddity = scanned.oddity
    if oddity is None:
        try:
            with connect() as connection:
                interactions = _read_fast(connection, path, layout, roles, scanned)
            read = 0 if interactions is None else len(interactions)
        except (duckdb.Error, pa.ArrowException, OSError, _BadValueError) as error:
            # DuckDB's own errors come as OSError while its batches are streamed.
            oddity = str(error).partition("\n")[0]
    if oddity is not None:
        gathered = Gathering()
        exact = replace(layout, quotes=scanned.quotes)
        read = read_exact(path, exact, roles, rejects, gathered)
        interactions = gathered.finish() if read else None
        notes.append(f"{name}: read row by row, which is slower ({oddity})")
    if interactions is None:
        raise no_rows(name, rejects.count, rejects.first)
    if rejects.count:
        notes.append(left_out(name, rejects.count, read + rejects.count, rejects.first))
    return Reading(interactions, tuple(notes), read, rejects.count, layout.format)


def choose_in_layout(name: str, layout: Layout, wanted: dict[str, Column]) -> Roles:
    """Which column of a text table plays which role, by its names and first values."""
    return choose_columns(
        name,
        layout.names,
        header=layout.header,
        wanted=wanted,
        kind_of=lambda place: value_kind(layout.values(place)),
    )


class _BadValueError(Exception):
    """What DuckDB read cannot be taken: the row must be named, or read another way."""


def _read_fast(
    connection: duckdb.DuckDBPyConnection,
    path: Path,
    layout: Layout,
    roles: Roles,
    scanned: Scan,
) -> Interactions | None:
    gathered = Gathering()
    count = 0
    relation = connection.sql(
        table_query(layout, roles, scanned), params=[escape_glob(str(path.resolve()))]
    )
    for batch in relation.to_arrow_reader(BATCH_ROWS):
        columns = dict(zip(roles.positions, batch.columns, strict=True))
        values: dict[str, Floats] = {
            role: np.asarray(columns[role].to_numpy(zero_copy_only=False), dtype=np.float64)
            for role in ("rating", "timestamp")
            if role in columns
        }
        if columns["user"].null_count or columns["item"].null_count:
            raise _BadValueError("empty ids")
        if not all(holdable(column, role).all() for role, column in values.items()):
            raise _BadValueError("bad values")
        gathered.add(
            columns["user"],
            columns["item"],
            **{role + "s": column for role, column in values.items()},
        )
        count += batch.num_rows
    if count != scanned.lines - layout.header:
        raise _BadValueError(f"DuckDB found {count} rows of {scanned.lines - layout.header}")
    return gathered.finish() if count else None


def table_query(layout: Layout, roles: Roles, scanned: Scan) -> str:
    """SQL for the columns of `roles.positions`, in that order; its one parameter is the path."""
    chosen = []
    for role, place in roles.positions.items():
        column = f"c{place}"
        chosen.append(
            column
            if role in ("user", "item")
            else VALUE_SQL[roles.kind(role)].format(column=column)
        )
    schema = ", ".join(f"'c{place}': 'VARCHAR'" for place in range(len(layout.names)))
    quote = '"' if scanned.quotes else ""
    options = {
        "columns": f"{{{schema}}}",
        "auto_detect": "false",
        "strict_mode": "true",  # the lax mode turns "5" pipe into 5 pip
        "delim": "'" + layout.delimiter.replace("'", "''") + "'",
        "quote": f"'{quote}'",
        "escape": f"'{quote}'",
        "header": str(layout.header).lower(),
        # Parallel readers lose their place in quoted line ends and report false errors.
        "parallel": str(not scanned.quoted_line_ends).lower(),
        "compression": "'none'",  # unpacked already; a name that ends in .gz proves nothing
        "max_line_size": str(LONGEST_LINE),
        "buffer_size": str(4 * LONGEST_LINE),
    }
    settings = ", ".join(f"{option}={value}" for option, value in options.items())
    return f"SELECT {', '.join(chosen)} FROM read_csv(?, {settings})"


def escape_glob(path: str) -> str:
    """DuckDB takes `ratings[1].csv` for a pattern and would open `ratings1.csv` instead."""
    return re.sub(r"[*?\[]", lambda match: f"[{match[0]}]", path)
