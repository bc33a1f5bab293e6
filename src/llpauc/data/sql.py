"""Readers of databases: PostgreSQL and SQLite through ADBC drivers, DuckDB files.

The rows are streamed as Arrow batches; ids keep their types. A query can only read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import duckdb
import pyarrow as pa

from llpauc.data.locations import hide_credentials
from llpauc.data.sources import BATCH_ROWS, Source, connect
from llpauc.data.typed_tables import read_stream
from llpauc.errors import InputError, listing
from llpauc.options import import_object

_TABLES = {
    "sqlite": "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') ORDER BY name",
    "duckdb": "SELECT table_name FROM information_schema.tables ORDER BY table_name",
    "postgresql": "SELECT table_schema || '.' || table_name FROM information_schema.tables WHERE"
    " table_schema NOT IN ('pg_catalog', 'information_schema') ORDER BY 1",
}
Run = Callable[[str], pa.RecordBatchReader]


def read_postgresql(source: Source, url: str) -> None:
    """Read a query on a PostgreSQL server, which sends its rows in the format of COPY."""
    source.format_name = "postgresql"
    _read(source, lambda stack: _adbc(stack, "postgresql", url, "SET TRANSACTION READ ONLY"), url)


def read_sqlite(source: Source) -> None:
    """Read a query on an SQLite file."""
    place = f"{source.path.resolve().as_uri()}?mode=ro"
    _read(source, lambda stack: _adbc(stack, "sqlite", place, "PRAGMA query_only = 1"))


def read_duckdb(source: Source) -> None:
    """Read a query on a DuckDB file."""

    def start(stack: ExitStack) -> Run:
        connection = stack.enter_context(connect(str(source.path), read_only=True))
        return lambda query: connection.sql(query).to_arrow_reader(BATCH_ROWS)

    _read(source, start)


def _adbc(stack: ExitStack, driver: str, place: str, before: str) -> Run:
    """A function that runs a query with an ADBC driver."""
    try:
        connect_to: Any = import_object(f"adbc_driver_{driver}.dbapi:connect")
    except ModuleNotFoundError as error:
        raise InputError(
            f"reading {driver} needs {error.name}, which is not installed; pip install"
            " 'llpauc[sql]'"
        ) from None
    connection = stack.enter_context(closing(connect_to(place)))
    cursor = stack.enter_context(closing(connection.cursor()))
    cursor.execute(before)

    def run(query: str) -> pa.RecordBatchReader:
        cursor.execute(query)
        return cursor.fetch_record_batch()

    return run


def _read(source: Source, start: Callable[[ExitStack], Run], url: str = "") -> None:
    query = source.options.get("query")
    try:
        with ExitStack() as stack:
            try:
                run = start(stack)
            except _errors() as error:
                raise InputError(
                    f"{source.name}: the database cannot be opened: {_one_line(error, url)};"
                    " check the address, the credentials and whether the server runs"
                ) from None
            if query is None:
                names = run(_TABLES[source.format_name or ""]).read_all().column(0).to_pylist()
                raise InputError(
                    f"{source.name}: a database needs a query, such as query='select user_id,"
                    f" item_id from {names[0] if names else 'events'}' (--query); its tables:"
                    f" {listing(names) or 'none'}"
                )
            source.notes.append(f"{source.name}: read from {source.format_name} by the query")
            read_stream(source, _plain_batches(run(query)))
    except _errors() as error:
        raise InputError(
            f"{source.name}: the query fails: {_one_line(error, url)}; correct the query"
        ) from None


def _plain_batches(reader: pa.RecordBatchReader) -> Iterator[pa.Table]:
    """The batches with numeric as text and UUIDs as text with hyphens; one at least."""
    yield _plain(reader.schema.empty_table())
    for batch in reader:
        yield _plain(pa.Table.from_batches([batch]))


def _plain(table: pa.Table) -> pa.Table:
    for position, field in enumerate(table.schema):
        if isinstance(field.type, pa.UuidType):
            values = table.column(position).to_pylist()
            texts = pa.array([None if one is None else str(one) for one in values], pa.string())
            table = table.set_column(position, field.name, texts)
        elif isinstance(field.type, pa.BaseExtensionType):
            column = table.column(position).cast(field.type.storage_type)
            table = table.set_column(position, field.name, column)
    return table


def _errors() -> tuple[type[Exception], ...]:
    """What the drivers raise; while batches are streamed, Arrow's errors too."""
    errors: tuple[type[Exception], ...] = (duckdb.Error, pa.ArrowException, OSError)
    try:
        return (*errors, import_object("adbc_driver_manager:Error"))
    except ModuleNotFoundError:
        return errors


def _one_line(error: Exception, url: str) -> str:
    """The reason without the driver's prefix, the query and the credentials."""
    text = str(error).partition("\nLINE ")[0].partition("\n\nQuery was")[0]
    words = " ".join(text.rpartition("ERROR:")[2].rpartition("[libpq]")[2].split())
    return hide_credentials(url, words)[:300] if url else words[:300]
