"""Prepare files of any size for training (`llpauc.data.prepared`), within a memory limit.

The readers of `llpauc.data.formats` add the events to a DuckDB file; DuckDB numbers the ids and
sorts the events by user and item; the split is made for a chunk of users at a time; the training
events are written in random order. Everything is in one hidden folder next to the target until it
is complete.
"""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from llpauc.data import splits
from llpauc.data.column_files import BucketShuffle, ColumnFiles, as_arrow
from llpauc.data.columns import EPOCH, ColumnRoles
from llpauc.data.filters import DROPPED, Filters
from llpauc.data.ids import IdMap, Indices
from llpauc.data.interactions import EventRules
from llpauc.data.locations import SourceName
from llpauc.data.prepared import PREPARED_DATA, write_columns
from llpauc.data.readers import BAD_ROWS, notes_of, read_files
from llpauc.data.sources import (
    BATCH_ROWS,
    QueryError,
    ReadOptions,
    Sink,
    common_kind,
    connect,
    event_rules,
)
from llpauc.data.splits import PartCodes, Positions, SplitRule, Values
from llpauc.errors import InputError, check_at_least, choose
from llpauc.storage.atomic import replace_folder, temporary_folder, write_error, writer_lock
from llpauc.storage.manifest import check_replaceable, write_manifest

MIN_MEMORY = 200 * 10**6  # DuckDB's text reader has buffers of 64 MB
CHUNK = 1 << 21  # pairs, unless one user has more
_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_MAX_IDS = 2**31 - 1
_TYPES = {"user": "VARCHAR", "item": "VARCHAR", "rating": "FLOAT", "timestamp": "DOUBLE"}
_TYPES |= {"weight": "FLOAT", "event_type": "UTINYINT"}
_OF_EVENTS: dict[str, Any] = {"timestamp": np.float64, "weight": np.float32, "types": np.uint32}
_CONDITIONS = {  # of the rows that a filter drops
    "min_rating": "rating < CAST({} AS FLOAT)",
    "since": '"timestamp" < {!r}',
    "until": '"timestamp" > {!r}',
    "max_events_per_user": '"user" IN (SELECT "user" {events} GROUP BY 1 HAVING count(*) > {})',
    "min_item_events": '"item" IN (SELECT "item" {events} GROUP BY 1 HAVING count(*) < {})',
    "drop_duplicates": "rowid NOT IN (SELECT min(rowid) FROM {table} GROUP BY {columns})",
}
_NEEDED = {"min_rating": "rating", "since": "timestamp", "until": "timestamp"}

T = TypeVar("T")
Floats = npt.NDArray[np.float64]
log = logging.getLogger(__name__)


def memory_bytes(text: str) -> int:
    """The number of bytes of a size such as "4GB".

    >>> memory_bytes("4GB"), memory_bytes("1.5 gb")
    (4000000000, 1500000000)
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]b)\s*", text, re.IGNORECASE)
    if not match:
        raise InputError(f"memory must be a number and a unit such as 4GB, got {text!r}")
    size = int(float(match[1]) * _UNITS[match[2].upper()])
    if size < MIN_MEMORY:
        raise InputError(f"memory must be at least {MIN_MEMORY // 10**6}MB, got {text!r}")
    return size


def prepare(
    files: Sequence[str | PathLike[str]],
    out: str | PathLike[str],
    *,
    how: str = "auto",
    seed: int = 0,
    memory: str = "4GB",
    filters: Filters | None = None,
    held_out_users: int | None = None,
    reading: ReadOptions | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Write files of events to a folder that training maps into memory.

    Messages about the progress are logged.

    Args:
        files: text tables, Parquet or Arrow files, or other sources of `read_interactions`, read
            one after another.
        out: the folder; existing prepared data are replaced, other files are not.
        how: the split, a name in `llpauc.data.splits.SPLITS`.
        seed: of the split and of the order of the training events.
        memory: limit for DuckDB; the rest of the program needs about half a gigabyte.
        filters: first drop these events; duplicates are those within one file.
        held_out_users: hold out events of this many random users only; None for all.
        reading: how to read the files, as for `read_interactions`.
        options: of the split, such as valid=0.1 and test=0.2.

    Returns:
        The manifest that was written.
    """
    limit = f"{memory_bytes(memory) // 10**6}MB"
    reading = reading or {}
    choose(BAD_ROWS, reading.get("bad_rows", "error"), "bad_rows")
    rule = splits.split_rule(how, **options)
    check_at_least("seed", seed, 0)
    if held_out_users is not None:
        check_at_least("held_out_users", held_out_users, 1)
        if rule.auto:  # one cut in time holds out events of all users
            rule = replace(splits.split_rule("temporal_per_user", **options), auto=True)
        if not rule.per_user:
            raise InputError(
                f"the split {how!r} holds out events of all users; for held_out_users use"
                " auto, temporal_per_user, random_per_user or leave_k_out"
            )
    if not files:
        raise InputError("there is no file to prepare; name one or several")
    target = Path(out).resolve()
    check_replaceable(target, PREPARED_DATA)
    try:
        with writer_lock(target), temporary_folder(target) as work:
            (work / "set").mkdir()
            pairs, manifest = _sorted_pairs(files, reading, work, limit, filters, rule)
            timed = pairs.times is not None and bool(pairs.times.min() < pairs.times.max())
            rule = rule.for_times(timed)
            if rule.by_time and pairs.times is None:
                raise InputError(
                    f"the split {how!r} needs timestamps and this data has none; name their column"
                    " (--timestamp) or use a random split"
                )
            applied = AppliedRule(rule, pairs, seed, held_out_users)
            if timed and not rule.by_time:
                applied.notes.append(splits.OPTIMISTIC)
            counts, notes = _write_parts(pairs, applied, seed, work)
            manifest["counts"] |= counts
            manifest["notes"] += notes
            manifest = write_manifest(work / "set", PREPARED_DATA, seed=seed, **manifest)
            for note in notes:
                log.info(note)
            replace_folder(work / "set", target)
    except (duckdb.Error, pa.ArrowException, OSError) as error:
        if "Out of Memory" in str(error):  # DuckDB's; raised as another class during streaming
            raise InputError(
                f"memory={memory} is too little for this data; give more (--memory)"
            ) from None
        raise write_error(target, error) from None
    return manifest


# --- events in DuckDB -----------------------------------------------------------------------------


class DiskSink(Sink):
    """A DuckDB file in `folder` with one table of events for each file that was read."""

    def __init__(self, folder: Path, memory_limit: str) -> None:
        super().__init__()
        (folder / "spill").mkdir()
        self.connection = connect(str(folder / "stage.duckdb"), memory_limit, str(folder / "spill"))
        self._queries = ThreadPoolExecutor(1, "llpauc-duckdb")
        # The file exists for minutes: compression would cost more time than it saves.
        self._execute("SET force_compression = 'uncompressed'; SET arrow_large_buffer_size = true")

    def close(self) -> None:
        self._queries.shutdown()
        self.connection.close()

    def _wait_for(self, work: Callable[[], T]) -> T:
        """Run a query in another thread, because DuckDB does not react to Ctrl-C by itself."""
        result = self._queries.submit(work)
        try:
            return result.result()
        except (KeyboardInterrupt, SystemExit):
            self.connection.interrupt()
            raise

    def _execute(self, query: str, values: Sequence[object] = ()) -> tuple[Any, ...] | None:
        """Run a query to its end; its first row, if it has any."""
        run = self.connection.execute
        rows = self._wait_for(lambda: run(query, list(values)).fetchall())
        return rows[0] if rows else None

    def _batches(self, query: str, values: Sequence[object] = ()) -> Iterator[pa.RecordBatch]:
        relation = self.connection.sql(query, params=list(values) or None)
        reader = self._wait_for(lambda: relation.to_arrow_reader(BATCH_ROWS))
        while (batch := self._wait_for(lambda: next(reader, None))) is not None:
            yield batch

    def _count(self, table: str) -> int:
        (rows,) = self._execute(f"SELECT count(*) FROM {table}") or (0,)
        return int(rows)

    def _create_table(self) -> None:
        schema = ", ".join(f'"{role}" {_TYPES[role]}' for role in self.roles)
        self._execute(f"CREATE OR REPLACE TABLE {self._table} ({schema})")

    def start(self, name: str, roles: ColumnRoles) -> None:
        super().start(name, roles)
        self._table = f"raw{len(self.names) - 1}"
        self._create_table()

    def add(self, columns: Mapping[str, Any]) -> None:
        self.connection.register("batch", pa.table({role: columns[role] for role in self.roles}))
        self.connection.execute(f"INSERT INTO {self._table} SELECT * FROM batch")
        self.connection.unregister("batch")

    def add_query(self, query: str, path: str, expected: int) -> None:
        try:
            self._execute(f"INSERT INTO {self._table} {query}", [path])
            rows = self._count(self._table)
            if rows != expected:
                raise QueryError(f"DuckDB read {rows} of {expected} rows")
        except (duckdb.OutOfMemoryException, duckdb.IOException):
            raise
        except (duckdb.Error, QueryError) as error:
            self._create_table()
            raise QueryError(str(error).partition("\n")[0]) from None

    def time_range(self) -> tuple[float, float] | None:
        size = 'abs("timestamp")'
        least, most = self._execute(
            f"SELECT min({size}), max({size}) FROM {self._table} WHERE {size} >= {EPOCH}"
        ) or (None, None)
        return None if least is None else (least, most)

    def divide_times(self, by: float) -> None:
        self._execute(f'UPDATE {self._table} SET "timestamp" = "timestamp" / {by}')

    def drop(self, filters: Filters) -> list[str]:
        """Drop events; notes on what was dropped."""
        notes = []
        columns = ", ".join(f'"{role}"' for role in self.roles)
        for name, limit in filters.limits():
            role = _NEEDED.get(name, "user")
            if role not in self.roles:
                raise InputError(
                    f"--{name.replace('_', '-')}: there are no {role}s; name their"
                    f" column (--{role})"
                )
            condition = _CONDITIONS[name]
            if "{events}" in condition:  # counts of all files, before the first row is dropped
                events = self._events("user", "item")
                self._execute(f"CREATE OR REPLACE TEMP TABLE counted AS FROM ({events})")
            dropped = 0
            for table in self._tables:
                places = {"events": "FROM counted", "table": table, "columns": columns}
                where = condition.format(limit, **places)
                (count,) = self._execute(f"DELETE FROM {table} WHERE {where}") or (0,)
                dropped += int(count)
            if not any(map(self._count, self._tables)):
                raise InputError(f"--{name.replace('_', '-')} {limit}: no event is left")
            notes.append(f"{dropped} {DROPPED[name].format(limit)} dropped")
        return notes

    def number_ids(self, role: str) -> IdMap:
        """Number the ids of "user" or "item" in the order of their text, as in memory."""
        self._execute(
            f"""CREATE TABLE {role}s AS
            SELECT id, row_number() OVER (ORDER BY id) - 1 AS idx
            FROM (SELECT "{role}" AS id FROM ({self._events(role)}) GROUP BY "{role}")"""
        )
        batches = self._batches(f"SELECT id FROM {role}s ORDER BY idx")
        texts = [batch.column(0).cast(pa.large_string()) for batch in batches]
        ids = IdMap(pa.concat_arrays(texts), common_kind(self.kinds[role]))
        if len(ids) > _MAX_IDS:
            raise InputError(f"there are {len(ids):,} {role}s; at most {_MAX_IDS:,} are supported")
        return ids

    def _events(self, *roles: str) -> str:
        """SQL for the events of all files."""
        selected = ", ".join(f'"{column}"' for column in roles)
        return " UNION ALL ".join(f"SELECT {selected} FROM {table}" for table in self._tables)

    @property
    def _tables(self) -> list[str]:
        return [f"raw{number}" for number in range(len(self.names))]

    def is_timed(self) -> bool:
        """Whether events have timestamps that differ."""
        if "timestamp" not in self.roles:
            return False
        (differ,) = self._execute(
            f"""SELECT min("timestamp") < max("timestamp") FROM ({self._events("timestamp")})"""
        ) or (False,)
        return bool(differ)

    def sorted_events(self, rules: EventRules, merge: bool) -> Iterator[dict[str, Any]]:
        """Batches of `pair`, user * 2^32 + item, and of the columns `_OF_EVENTS` that there are,
        sorted by pair and time; `number_ids` must come first.

        Args:
            rules: the weights of the event types.
            merge: whether the events of a pair become one, with the sum of their weights, all their
                types and the latest time.
        """
        values: dict[str, str] = {}
        if "timestamp" in self.roles:
            values["timestamp"] = '"timestamp"'
        if "event_type" in self.roles:
            of_types = f"CAST({list(map(float, rules.type_weights.values()))} AS FLOAT[])"
            values["weight"] = f"{of_types}[event_type]"
            values["types"] = "CAST(1 << (event_type - 1) AS UINTEGER)"
        if "weight" in self.roles:
            values["weight"] = f"weight * {values['weight']}" if "weight" in values else "weight"
        if merge:
            merged = {"timestamp": "max({})", "weight": "sum({})", "types": "bit_or({})"}
            values = {name: merged[name].format(value) for name, value in values.items()}
        selected = "".join(f', {value} AS "{name}"' for name, value in values.items())
        columns = [role for role in self.roles if role != "rating"]
        query = f"""SELECT (u.idx << 32) | i.idx AS pair {selected}
            FROM ({self._events(*columns)}) AS e
            JOIN users AS u ON e."user" = u.id JOIN items AS i ON e."item" = i.id
            {"GROUP BY pair" if merge else ""}
            ORDER BY pair {', "timestamp"' if "timestamp" in values else ""}"""
        kinds = {"pair": np.int64, **_OF_EVENTS}
        for batch in self._batches(query):
            columns_of = zip(batch.schema.names, batch.columns, strict=True)
            yield {name: np.asarray(column, dtype=kinds[name]) for name, column in columns_of}


# --- pairs on disk --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Chunk:
    """The pairs of consecutive users, sorted by user and item; where events have weights and are
    split by time, all events of the pairs."""

    users: slice  # the range of user indices
    sizes: Positions  # pairs of each user
    items: Indices
    times: Floats | None
    more: Mapping[str, npt.NDArray[Any]]  # weight and types, where events have them

    @property
    def user_of(self) -> Indices:
        """The user index of each pair."""
        indices = np.arange(self.users.start, self.users.stop, dtype=np.int32)
        return np.repeat(indices, self.sizes)


@dataclass(frozen=True)
class Pairs:
    """User-item pairs, sorted; the columns may be memory-mapped. They are distinct, unless events
    have weights and are split by time."""

    starts: Positions  # where the pairs of each user begin, and the end
    items: Indices
    times: Floats | None  # of the earliest event of each pair
    more: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)  # weight and types

    def __len__(self) -> int:
        return int(self.starts[-1])

    def chunks(self, size: int = CHUNK) -> Iterator[Chunk]:
        first = 0
        while first < len(self.starts) - 1:
            begin = self.starts[first]
            last = int(np.searchsorted(self.starts, begin + size, side="right")) - 1
            last = min(max(last, first + 1), first + size)
            end = self.starts[last]
            yield Chunk(
                slice(first, last),
                np.diff(self.starts[first : last + 1]),
                np.asarray(self.items[begin:end]),
                None if self.times is None else np.asarray(self.times[begin:end]),
                {name: np.asarray(column[begin:end]) for name, column in self.more.items()},
            )
            first = last


def _sorted_pairs(
    files: Sequence[str | PathLike[str]],
    reading: ReadOptions,
    work: Path,
    limit: str,
    filters: Filters | None,
    rule: SplitRule,
) -> tuple[Pairs, dict[str, Any]]:
    """Read the files and write their ids; returns the pairs and a part of the manifest."""
    rules = event_rules(reading)
    staged = work / "stage"
    staged.mkdir()
    sink = DiskSink(staged, limit)
    try:
        parts = read_files(SourceName(files), reading, sink, staged)
        rows = {
            "read": sum(part.rows_read for part in parts),
            "rejected": sum(part.rows_rejected for part in parts),
        }
        notes = notes_of(parts)
        for note in notes:
            log.info(note)
        notes += sink.drop(filters or Filters())
        users, items = (sink.number_ids(role) for role in ("user", "item"))
        log.info(f"{rows['read']:,} events of {len(users):,} users, {len(items):,} items")

        # Of the sorted events, keep the first of each pair: the earliest. Events with weights add
        # up: those of a pair become one, or are kept apart for a split by time.
        timed = "timestamp" in sink.roles
        weighted = not {"weight", "event_type"}.isdisjoint(sink.roles)
        merge = weighted and not rule.for_times(sink.is_timed()).by_time
        has = {"timestamp": timed, "weight": weighted, "types": "event_type" in sink.roles}
        kinds = {name: kind for name, kind in _OF_EVENTS.items() if has[name]}
        columns = ColumnFiles(work, "pairs", item=np.int32, **kinds)
        per_user = np.zeros(len(users), np.int64)
        last, events = -1, 0
        for batch in sink.sorted_events(rules, merge):
            pair = batch.pop("pair")
            new = np.diff(pair, prepend=last) != 0
            last = int(pair[-1])
            events += len(pair)
            new |= weighted
            pair = pair[new]
            if len(pair):
                first = int(pair[0] >> 32)
                counts = np.bincount((pair >> 32) - first)
                per_user[first : first + len(counts)] += counts
                kept = {name: column[new] for name, column in batch.items()}
                columns.append(item=pair & 0xFFFFFFFF, **kept)
    finally:
        sink.close()
    shutil.rmtree(staged)
    for name, ids in (("users", users), ("items", items)):
        write_columns(work / "set" / f"{name}.arrow", {"id": ids.text})
    notes += splits.dropped_note(events - len(columns), timed)
    mapped = columns.mapped()
    starts = np.concatenate(([0], np.cumsum(per_user)))
    item, times = mapped.pop("item"), mapped.pop("timestamp", None)
    pairs = Pairs(starts, item, times, mapped)
    manifest = {
        "counts": {"users": len(users), "items": len(items)},
        "rows": rows,
        "kinds": {"users": users.kind, "items": items.kind},
        "notes": notes,
    }
    if weighted:
        of_types = list(rules.type_weights.items())
        manifest["event_rules"] = {"type_weights": of_types, "log": rules.log}
    return pairs, manifest


# --- the split, a chunk of users at a time --------------------------------------------------------

_PRIORITY_BITS = 42  # next to the user's number in a chunk
_GOLDEN = 0x9E3779B97F4A7C15


def _mix(x: Values) -> Values:
    """The finalizer of splitmix64: every bit of x affects every bit of the result."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _hash_users(seed: int, users: slice) -> Values:
    start = _mix(np.array([(seed + _GOLDEN) % 2**64], np.uint64))
    indices = np.arange(users.start, users.stop, dtype=np.uint64)
    return _mix(start + (indices + np.uint64(1)) * np.uint64(_GOLDEN))


def _hash_priority(seed: int, chunk: Chunk) -> Values:
    """A hash of the seed and the indices of each pair, whatever the order of rows and chunks."""
    users = np.repeat(_hash_users(seed, chunk.users), chunk.sizes)
    items = (chunk.items + 1).astype(np.uint64) * np.uint64(_GOLDEN)
    return _mix(users + items)


class AppliedRule:
    """A split rule for pairs on disk.

    Splits by time hold out the same events as in memory. Random splits take the pairs with the
    highest hash priorities, so they differ from those in memory.
    """

    def __init__(
        self, rule: SplitRule, pairs: Pairs, seed: int, held_out_users: int | None = None
    ) -> None:
        self.rule, self._seed = rule, seed
        if not rule.per_user:
            self._cuts = splits.find_cuts(
                rule, len(pairs), lambda: map(self._values, pairs.chunks())
            )
            notes = splits.cut_notes(self._cuts) if rule.by_time else []
            if rule.auto:
                counts = (splits.cut_counts(c.user_of, self.codes(c)) for c in pairs.chunks())
                self.rule = rule = rule.for_cut(sum(counts, np.zeros(5, np.int64)))
        self.notes = [rule.note(seed)]
        if not rule.per_user:
            self.notes += notes
            return
        self._n_valid, self._n_test = rule.counts(np.diff(pairs.starts))
        held_out = self._n_valid + self._n_test
        self.notes += splits.train_only_note(held_out, rule)
        able = int(np.count_nonzero(held_out))
        if held_out_users is not None and held_out_users < able:
            priority = _hash_users(seed, slice(0, len(held_out)))
            priority[held_out == 0] = np.iinfo(np.uint64).max
            others = np.argsort(priority, kind="stable")[held_out_users:]
            self._n_valid[others] = self._n_test[others] = 0
            self.notes.append(f"events of {held_out_users} of {able} users are held out, drawn")

    def _values(self, chunk: Chunk) -> Values:
        """The values that one cut over all pairs is made in."""
        if self.rule.by_time:
            assert chunk.times is not None
            return splits.sortable(chunk.times)
        return _hash_priority(self._seed, chunk)

    def codes(self, chunk: Chunk) -> PartCodes:
        """The part of each pair of a chunk."""
        if not self.rule.per_user:
            return splits.cut_codes(self._values(chunk), self._cuts)
        user = np.repeat(np.arange(len(chunk.sizes), dtype=np.uint64), chunk.sizes)
        if self.rule.by_time:
            assert chunk.times is not None
            order = np.lexsort((chunk.times, user))  # stable: of one time by item
        else:
            priority = self._values(chunk) >> np.uint64(64 - _PRIORITY_BITS)
            order = np.argsort((user << np.uint64(_PRIORITY_BITS)) | priority, kind="stable")
        n_valid, n_test = self._n_valid[chunk.users], self._n_test[chunk.users]
        return splits.per_user_codes(order, chunk.sizes, n_valid, n_test)


def _merged(
    events: Mapping[str, npt.NDArray[Any]], more: Collection[str]
) -> Mapping[str, npt.NDArray[Any]]:
    """The distinct pairs of sorted events, with the sum of their weights and all their types."""
    if not more or not len(events["user"]):
        return events
    first = np.diff(events["user"], prepend=-1) != 0
    first |= np.diff(events["item"], prepend=-1) != 0
    starts = np.flatnonzero(first)
    merged = {name: events[name][starts] for name in ("user", "item")}
    merged["weight"] = np.add.reduceat(events["weight"], starts)
    if "types" in more:
        merged["types"] = np.bitwise_or.reduceat(events["types"], starts)
    return merged


def _write_parts(
    pairs: Pairs, applied: AppliedRule, seed: int, work: Path
) -> tuple[dict[str, int], list[str]]:
    """Write the parts and the training histories; returns their sizes and notes."""
    types: dict[str, Any] = {"user": np.int32, "item": np.int32}
    if pairs.times is not None:
        types["timestamp"] = np.float64
    by_pair = {name: _OF_EVENTS[name] for name in pairs.more}
    types |= by_pair
    shuffle = BucketShuffle(work, np.dtype(list(types.items())), len(pairs), [seed, len(pairs)])
    held = {name: ColumnFiles(work, name, **types) for name in ("valid", "test")}
    histories = ColumnFiles(work, "histories", item=np.int32, **by_pair)
    train_sizes = np.zeros(len(pairs.starts) - 1, np.int64)
    test_users = cold = 0
    for chunk in pairs.chunks():
        codes = applied.codes(chunk)
        columns: dict[str, npt.NDArray[Any]] = {"user": chunk.user_of, "item": chunk.items}
        if chunk.times is not None:
            columns["timestamp"] = chunk.times
        columns |= chunk.more
        train, valid, test = (
            {name: column[codes == code] for name, column in columns.items()} for code in range(3)
        )
        shuffle.add(**train)
        known = _merged(train, pairs.more)
        histories.append(**{name: known[name] for name in ("item", *pairs.more)})
        held["valid"].append(**valid)
        held["test"].append(**test)
        n, first = len(chunk.sizes), chunk.users.start
        train_sizes[chunk.users] = np.bincount(known["user"] - first, minlength=n)
        tested = np.bincount(test["user"] - first, minlength=n) > 0
        test_users += int(tested.sum())
        cold += int((tested & (train_sizes[chunk.users] == 0)).sum())

    folder = work / "set"
    sizes = {"train": len(histories)} | {name: len(columns) for name, columns in held.items()}
    splits.check_parts(sizes, applied.rule, applied.notes[0])
    counts = {"histories": len(histories)}
    for (name, files), requested in zip(held.items(), applied.rule.requested, strict=True):
        if requested:
            counts[name] = len(files)
            write_columns(folder / f"{name}.arrow", files.arrow())
        files.remove()
    write_columns(folder / "histories.arrow", histories.arrow())
    histories.remove()
    starts = np.concatenate(([0], np.cumsum(train_sizes)))
    write_columns(folder / "offsets.arrow", {"start": as_arrow(starts)})
    shuffled = ColumnFiles(work, "train", **types)
    shuffle.write_to(shuffled)
    counts["train"] = len(shuffled)
    write_columns(folder / "train.arrow", shuffled.arrow())
    shuffled.remove()
    return counts, [*applied.notes, *splits.cold_note(cold, test_users)]
