"""A source of events while it is read, and the sinks its events can go to.

A format's reader checks the rows of a `Source` and adds them batch by batch to a sink: arrays in
memory (`InMemorySink`), or a table on disk (`llpauc.data.out_of_core`). The SQL expressions below
are the only definition of a readable number and date, and of a valid row.
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypedDict

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from llpauc.data.columns import (
    EPOCH,
    ROLES,
    Column,
    ColumnRoles,
    Sample,
    ValueKind,
    detect_columns,
    is_number,
)
from llpauc.data.ids import IdKind, IdMap, Indices, number_by_text
from llpauc.data.interactions import EventRules, Interactions
from llpauc.errors import InputError

BATCH_ROWS = 1_000_000
_FLOAT32_MAX = float(np.finfo(np.float32).max)
_TIME_UNITS = ("seconds", "milliseconds", "microseconds", "nanoseconds")  # a factor of 1,000 each

# A cast to TIMESTAMP would drop the offset of 2020-01-01T00:00:00+02:00 without an error. This
# one applies it, and takes a date without an offset as UTC, the time zone of the connection.
_VALUE_SQL: dict[ValueKind, str] = {
    "number": "TRY_CAST({column} AS DOUBLE)",
    "date": "epoch(TRY_CAST({column} AS TIMESTAMPTZ))",
}
_VALID_SQL = {
    "user": "\"user\" <> ''",
    "item": "\"item\" <> ''",
    "rating": f"abs(rating) <= {_FLOAT32_MAX!r}",
    "timestamp": 'isfinite("timestamp")',
    "weight": f"weight >= 0 AND weight <= {_FLOAT32_MAX!r}",
    "event_type": "event_type > 0",
}
_DTYPES: dict[str, Any] = {"rating": np.float32, "timestamp": np.float64, "weight": np.float32}
_DTYPES |= {"event_type": np.uint8}


def connect(
    database: str = ":memory:",
    memory_limit: str = "2GB",
    temp_directory: str = "",
    read_only: bool = False,
) -> duckdb.DuckDBPyConnection:
    """A private DuckDB that loads nothing from the network and uses UTC.

    Args:
        database: its file; the default writes none.
        memory_limit: such as "2GB".
        temp_directory: where data above the limit go; with "" they raise an error instead.
        read_only: whether the file cannot be changed.
    """
    connection = duckdb.connect(
        database,
        read_only=read_only,
        config={
            # Each thread holds buffers of tens of MB: many cores would pass the memory limit.
            "threads": min(os.cpu_count() or 1, 8),
            "memory_limit": memory_limit,
            "temp_directory": temp_directory,
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
        },
    )
    connection.execute("SET TimeZone = 'UTC'; SET enable_progress_bar = false")
    return connection


def _checked_sql(roles: ColumnRoles, table: str, columns: Sequence[str]) -> str:
    """SQL of a table with one column per role, and `invalid`: the first role with a bad value."""
    text = "CAST({column} AS VARCHAR)"
    if roles.blanks:
        text = f"trim({text}, '{roles.blanks}')"
    known = ", ".join("'" + name.replace("'", "''") + "'" for name in roles.event_types)
    # The number of the type, from 1
    by_role = {"user": text, "item": text, "event_type": f"list_position([{known}], {text})"}
    converted = {
        role: (by_role.get(role) or _VALUE_SQL[roles.kind(role)]).replace("{column}", column)
        for role, column in zip(roles.positions, columns, strict=True)
    }
    selected = ", ".join(f'{column} AS "{role}"' for role, column in converted.items())
    cases = " ".join(f"WHEN ({_VALID_SQL[role]}) IS NOT TRUE THEN '{role}'" for role in converted)
    if roles.header is not None:
        user, item = ("'" + name.replace("'", "''") + "'" for name in roles.header)
        mark = "chr(65279)"  # files with a byte order mark, one after another
        cases = f"""WHEN "item" = {item} AND "user" IN ({user}, {mark} || {user}) THEN 'header'
            {cases}"""
    return f"SELECT *, CASE {cases} END AS invalid FROM (SELECT {selected} FROM {table})"


def checked_query(roles: ColumnRoles, table: str) -> str:
    """SQL that selects the columns of all roles from the columns c0, c1, ... of a table,
    and raises an error at the first row that is not valid."""
    checked = _checked_sql(roles, table, [f"c{place}" for place in roles.positions.values()])
    valid = "CASE WHEN invalid IS NULL THEN true ELSE error('bad values') END"
    return f"SELECT * EXCLUDE (invalid) FROM ({checked}) WHERE {valid}"


class ReadOptions(TypedDict, total=False):
    """The keyword arguments of `read_interactions`."""

    format: str | None
    user: Column
    item: Column
    rating: Column
    timestamp: Column
    weight: Column
    event_type: Column
    event_weights: Mapping[str, float] | str | None
    log_weights: bool
    header: bool | None
    delimiter: str | None
    query: str | None
    bad_rows: str


class QueryError(Exception):
    """DuckDB could not read a file exactly; it must be read row by row."""


class Sink(ABC):
    """Takes the valid events of one or several sources.

    `add` takes role -> array, with ids as text; `kinds` are those of the ids, by role.
    """

    in_memory = False

    def __init__(self) -> None:
        self.kinds: dict[str, set[IdKind]] = {"user": set(), "item": set()}
        self.names: list[str] = []  # of the sources
        self.roles: tuple[str, ...] = ()  # the columns of every source

    def start(self, name: str, roles: ColumnRoles) -> None:
        """Another source follows, with these columns."""
        has = tuple(roles.positions)
        if self.names and has != self.roles:
            role = sorted(set(has) ^ set(self.roles))[0]
            one, other = (name, self.names[0]) if role in has else (self.names[0], name)
            raise InputError(
                f"{one} has a {role} and {other} has none; name the column, or ignore it with"
                f" {role}='none' (--{role} none)"
            )
        self.roles = has
        self.names.append(name)

    @abstractmethod
    def add(self, columns: Mapping[str, Any]) -> None:
        """Add rows."""

    @abstractmethod
    def add_query(self, query: str, path: str, expected: int) -> None:
        """Add the rows of a query on a file, or none and raise `QueryError`."""

    @abstractmethod
    def time_range(self) -> tuple[float, float] | None:
        """The least and the largest timestamp of this source that can be a date, without sign."""

    @abstractmethod
    def divide_times(self, by: float) -> None:
        """Divide the timestamps of this source."""


class InMemorySink(Sink):
    """Collects the events of all sources as `Interactions`.

    Ids are dictionary-encoded batch by batch, so that a large file is never in memory as text.
    """

    in_memory = True

    def __init__(self) -> None:
        super().__init__()
        self._batches: dict[str, list[Any]] = {role: [] for role in ROLES}
        self._first = 0  # the first batch of the current source

    def start(self, name: str, roles: ColumnRoles) -> None:
        super().start(name, roles)
        self._first = len(self._batches["user"])

    def add(self, columns: Mapping[str, Any]) -> None:
        for role, column in columns.items():
            if role in self.kinds:
                self._batches[role].append(encode_ids(column))
            else:  # copied: a column of DuckDB's would keep the text of its batch in memory
                self._batches[role].append(np.array(column, _DTYPES[role]))

    def add_query(self, query: str, path: str, expected: int) -> None:
        rows = 0
        try:
            with connect() as connection:
                for batch in connection.sql(query, params=[path]).to_arrow_reader(BATCH_ROWS):
                    self.add(dict(zip(batch.schema.names, batch.columns, strict=True)))
                    rows += batch.num_rows
            if rows != expected:
                raise QueryError(f"DuckDB read {rows} of {expected} rows")
        # While batches are streamed, DuckDB's errors arrive as OSError.
        except (duckdb.Error, pa.ArrowException, OSError, QueryError) as error:
            for batches in self._batches.values():
                del batches[self._first :]
            raise QueryError(str(error).partition("\n")[0]) from None

    def time_range(self) -> tuple[float, float] | None:
        sizes = [np.abs(batch) for batch in self._batches["timestamp"][self._first :]]
        dates = [size[size >= EPOCH] for size in sizes if size.max() >= EPOCH]
        return (min(map(np.min, dates)), max(map(np.max, dates))) if dates else None

    def divide_times(self, by: float) -> None:
        batches = self._batches["timestamp"]
        batches[self._first :] = [batch / by for batch in batches[self._first :]]

    def interactions(self, rules: EventRules) -> Interactions:
        (users, user_ids), (items, item_ids) = self._indexed("user"), self._indexed("item")
        ratings, timestamps, weights, numbers = (
            np.concatenate(batches) if (batches := self._batches[role]) else None
            for role in ROLES[2:]
        )
        types = None
        if numbers is not None:
            of_types = np.array(list(rules.type_weights.values()), np.float32)[numbers - 1]
            weights = of_types if weights is None else weights * of_types
            types = np.uint32(1) << (numbers - 1).astype(np.uint32)
        events = Interactions(users, items, user_ids, item_ids, ratings, timestamps, weights, types)
        return replace(events, rules=rules)

    def _indexed(self, role: str) -> tuple[Indices, IdMap]:
        encoded = pa.chunked_array(self._batches[role])
        return number_by_text(encoded, common_kind(self.kinds[role]))


def encode_ids(ids: pa.Array | pa.ChunkedArray) -> pa.DictionaryArray:
    """Ids as a dictionary of the distinct ones and indices into it."""
    ids = ids.combine_chunks() if isinstance(ids, pa.ChunkedArray) else ids
    encoded = ids if pa.types.is_dictionary(ids.type) else pc.dictionary_encode(ids)
    # Wide offsets for the dictionary only: all distinct ids together may exceed 2 GB.
    dictionary = encoded.dictionary.cast(pa.large_string())
    return pa.DictionaryArray.from_arrays(encoded.indices, dictionary)


def common_kind(kinds: set[IdKind]) -> IdKind:
    return next(iter(kinds)) if len(kinds) == 1 else "string"


@dataclass(frozen=True)
class Format:
    """How files of one format are recognised and read; None is detected."""

    read: Callable[[Source], None]  # checks the rows of a source and adds them to its sink
    endings: tuple[str, ...] = ()  # of file names, or whole file names
    signature: bytes = b""  # in the first bytes, which count more than the name
    signature_at: int = 0  # where
    sniff: Callable[[Source], bool] | None = None  # used if name and signature are unknown
    delimiter: str | None = None  # of a text table
    preferred_delimiter: str | None = None  # if several are possible
    quotes: bool = False
    header: bool | None = None
    typed_names: bool = False  # whether column names end in a type, as in `user_id:token`
    out_of_core: bool = True  # whether the format can be prepared out of core
    queried: bool = False  # whether it is a database, read by a query

    def signed(self, head: bytes) -> bool:
        """Whether these first bytes have the signature."""
        return bool(self.signature) and head.startswith(self.signature, self.signature_at)


@dataclass
class Source:
    """One file or frame while it is read.

    `path` is the uncompressed file and `head` its first bytes; `partitions` are columns in the
    names of its folders; `detected_by` is how the format was detected. Rows are counted in
    `rows_read` or, if bad_rows="skip", in `rows_rejected`.
    """

    name: str
    sink: Sink
    options: ReadOptions
    path: Path = field(default_factory=Path)
    head: bytes = b""
    partitions: Mapping[str, str] = field(default_factory=dict)
    format_name: str | None = None
    format: Format | None = None
    detected_by: str = ""
    layout: Any = None
    notes: list[str] = field(default_factory=list)
    numeric_times: bool = False
    rows_read: int = 0
    rows_rejected: int = 0
    first_problem: str | None = None

    @property
    def requested(self) -> dict[str, Column]:
        """Role -> requested column."""
        options: Mapping[str, Any] = self.options
        return {role: options.get(role) for role in ROLES}

    def detect_columns(
        self,
        columns: Sequence[str],
        values: Sequence[Sequence[str]],
        *,
        header: bool = True,
        kinds: Sequence[ValueKind | None] | None = None,
    ) -> ColumnRoles:
        """Detect and announce the columns; the arguments are those of `columns.Sample`."""
        sample = Sample(self.name, columns, values, header, kinds)
        roles = detect_columns(sample, self.requested)
        roles = replace(roles, event_types=tuple(event_rules(self.options).type_weights))
        self.start(roles)
        return roles

    def start(self, roles: ColumnRoles) -> None:
        """Announce the columns of the rows that follow."""
        self.notes.extend(roles.notes)
        self.numeric_times = "timestamp" in roles.positions and roles.timestamp_kind == "number"
        self.sink.start(self.name, roles)

    def add(self, columns: Mapping[str, Any], rows: int | None = None) -> None:
        """Add valid events, which `rows` rows of the source hold; by default one each."""
        self.sink.add(columns)
        self.rows_read += len(columns["user"]) if rows is None else rows

    def add_checked(
        self,
        connection: duckdb.DuckDBPyConnection,
        table: pa.Table,
        roles: ColumnRoles,
        unit: str,
        numbers: Sequence[int],
        unreadable: Mapping[int, str] | None = None,
    ) -> None:
        """Check the rows of a table with one column per role; add the valid, reject the others.

        Args:
            connection: of `connect`, to check with.
            table: the values as they are in the source.
            roles: of its columns.
            unit: what the numbers count, "line" or "row".
            numbers: the number of each row in the source.
            unreadable: number -> problem of the rows that are not in the table.
        """
        connection.register("raw", table.rename_columns(list(roles.positions)))
        query = _checked_sql(roles, "raw", [f'"{role}"' for role in roles.positions])
        checked = connection.sql(query).to_arrow_table()
        connection.unregister("raw")

        valid = checked.column("invalid").is_null()
        invalid_rows = np.flatnonzero(~np.asarray(valid, dtype=bool))
        problems = dict(unreadable or {})
        count = len(problems) + len(invalid_rows)
        if len(invalid_rows):
            row = int(invalid_rows[0])
            role = checked.column("invalid")[row].as_py()
            problems[numbers[row]] = "repeats the header"
            if role != "header":
                given = table.column(list(roles.positions).index(role))[row].as_py()
                value = checked.column(role)[row].as_py()
                problems[numbers[row]] = _problem(role, given, value, roles.kind(role))
        if problems:
            first = min(problems)
            self.reject(f"{unit} {first}", problems[first], count)
        if len(invalid_rows):
            checked = checked.filter(valid)
        if len(checked):
            self.add({role: checked.column(role) for role in roles.positions})

    def reject(self, place: str, problem: str, count: int = 1) -> None:
        """Count bad rows, of which the first is at `place` ("line 3"), or raise an error."""
        if self.options.get("bad_rows", "error") != "skip":
            remedy = "fix the row or pass bad_rows='skip' (--bad-rows skip)"
            raise InputError(f"{self.name}: {place}: {problem}; {remedy}")
        self.rows_rejected += count
        self.first_problem = self.first_problem or f"{place}: {problem}"

    def finish(self, is_part: bool = False) -> None:
        """Check that there were rows, note those that were left out, convert times to seconds.

        A part of several may be empty.
        """
        if not self.rows_read and not is_part:
            why = "no rows; give a file that holds at least one interaction"
            if self.rows_rejected:
                why = f"no usable row, all {self.rows_rejected} were left out: {self.first_problem}"
            raise InputError(f"{self.name}: {why}")
        if self.rows_rejected:
            total = self.rows_read + self.rows_rejected
            self.notes.append(
                f"{self.name}: left out {self.rows_rejected} of {total} rows, the first: "
                f"{self.first_problem}"
            )
        if self.numeric_times and (dates := self.sink.time_range()) is not None:
            unit, largest = (
                min(int(math.log10(size / EPOCH) / 3), len(_TIME_UNITS) - 1) for size in dates
            )
            if unit != largest:
                raise InputError(
                    f"{self.name}: the timestamps have different units: {dates[0]:.15g} is in"
                    f" {_TIME_UNITS[unit]}, {dates[1]:.15g} in {_TIME_UNITS[largest]}; convert them"
                    " to seconds, or ignore them with timestamp='none' (--timestamp none)"
                )
            stored = ", stored as seconds" if unit else ""
            self.notes.append(f"{self.name}: the timestamps are in {_TIME_UNITS[unit]}{stored}")
            if unit:
                self.sink.divide_times(1000.0**unit)


def event_rules(options: ReadOptions) -> EventRules:
    """The rules of the event types; `EventRules` without types if there is no such column.

    >>> event_rules({"event_type": "kind", "event_weights": "view=1,buy=10"}).type_weights
    {'view': 1.0, 'buy': 10.0}
    """
    column, weights = options.get("event_type"), options.get("event_weights")
    log = bool(options.get("log_weights"))
    if log and column is None and options.get("weight") is None:
        raise InputError("log_weights (--log-weights) is for events with weights; give --weight")
    if (column is None) != (weights is None):
        raise InputError(
            "event_type names a column and event_weights the weight of each type in it; give both"
            " (--event-type COLUMN --event-weights view=1,purchase=10)"
        )
    if isinstance(weights, str):
        pairs = [pair.rpartition("=") for pair in weights.split(",")]
        bad = next((p for p in pairs if not (p[0].strip() and is_number(p[2].strip()))), None)
        if bad is not None or len({name.strip() for name, _, _ in pairs}) < len(pairs):
            reason = "a type occurs twice" if bad is None else f"got {''.join(bad)!r}"
            raise InputError(f"event_weights must be TYPE=WEIGHT,TYPE=WEIGHT,...; {reason}")
        weights = {name.strip(): float(weight) for name, _, weight in pairs}
    return EventRules(dict(weights or {}), log=log)


def _problem(role: str, given: object, value: Any, kind: ValueKind) -> str:
    """Why the value of a role is not valid, as `given` in the source and after conversion."""
    if role in ("user", "item"):
        return f"the {role} id is {'missing' if value is None else 'empty'}"
    text = str(given)
    shown = repr(text if len(text) <= 60 else text[:57] + "...")
    if role == "event_type":
        return f"the event type {shown} has no weight; add it to event_weights (--event-weights)"
    if role == "weight" and value is not None and value < 0:
        return f"weight {shown} is negative"
    if value is not None and np.isfinite(value):
        return f"{role} {shown} is too large"
    expected = "a number" if kind == "number" else "a date like 2024-01-31 or 2024-01-31T12:00:00"
    return f"{role} {shown} is not {expected}"
