"""Raw files into a DuckDB file on disk, ids to rows, and the events sorted by user and item.

What counts as a row, a column, a bad row is settled by `llpauc.data.readers`; here only the place
is another one: a table on the disk instead of arrays. DuckDB keeps to a memory limit and puts what
does not fit beside its file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from llpauc.data.interactions import IdKind, IdMap, as_id_text
from llpauc.data.readers.columns import Column, Roles, tidy
from llpauc.data.readers.frames import choose_in_parquet, open_parquet, usable_rows
from llpauc.data.readers.gathering import Floats, connect, left_out, no_rows
from llpauc.data.readers.look import Layout, guess_format, look, read_head, unpacked
from llpauc.data.readers.records import Rejects, read_exact
from llpauc.data.readers.scanning import scan
from llpauc.data.readers.tables import choose_in_layout, escape_glob, table_query
from llpauc.errors import InputError

BATCH_ROWS = 1_000_000
_MOST_IDS = 2**31 - 1

Places = npt.NDArray[np.int64]
T = TypeVar("T")


@dataclass(frozen=True)
class Source:
    """How the files are to be read; as for `read_interactions`, and the same for all of them."""

    wanted: dict[str, Column]
    format: str | None = None
    header: bool | None = None
    delimiter: str | None = None
    bad_rows: str = "error"


@dataclass(frozen=True)
class Ids:
    """Outside ids by row, in order of first appearance.

    Args:
        ids: of rows 0, 1, ...
        place: each row's place in the order of the ids' texts.
    """

    ids: IdMap
    place: Places


class Stage:
    """A DuckDB file in `folder` with one table of raw events for each file that was read."""

    def __init__(self, folder: Path, memory_limit: str) -> None:
        self._folder = folder
        spill = folder / "spill"
        spill.mkdir()
        self.connection = connect(str(folder / "stage.duckdb"), memory_limit, str(spill))
        self._queries = ThreadPoolExecutor(1, "llpauc-duckdb")
        # The file lives for minutes: to compress it costs more than to write it.
        self._execute("SET force_compression = 'uncompressed'; SET arrow_large_buffer_size = true")
        self._roles: list[tuple[str, tuple[str, ...]]] = []  # a file's name, and what it has
        self._kinds: dict[str, set[IdKind]] = {"user": set(), "item": set()}
        self.rows: list[int] = []  # read from each file
        self.rejected = 0
        self.notes: list[str] = []

    def close(self) -> None:
        self._queries.shutdown()
        self.connection.close()

    def _wait_for(self, work: Callable[[], T]) -> T:
        """Let DuckDB work in a thread of its own: it does not heed Ctrl-C by itself."""
        result = self._queries.submit(work)
        try:
            return result.result()
        except (KeyboardInterrupt, SystemExit):
            self.connection.interrupt()
            raise

    def _execute(self, query: str, values: Sequence[object] = ()) -> tuple[Any, ...] | None:
        """Run a query to its end; its first row, if it gives any."""
        run = self.connection.execute
        row: tuple[Any, ...] | None = self._wait_for(lambda: run(query, list(values)).fetchone())
        return row

    def _batches(self, query: str, values: Sequence[object] = ()) -> Iterator[pa.RecordBatch]:
        relation = self.connection.sql(query, params=list(values) or None)
        reader = self._wait_for(lambda: relation.to_arrow_reader(BATCH_ROWS))
        while (batch := self._wait_for(lambda: next(reader, None))) is not None:
            yield batch

    @property
    def has(self) -> tuple[str, ...]:
        """Which of user, item, rating and timestamp there are."""
        return self._roles[0][1]

    def read(self, path: Path, source: Source) -> None:
        """One more file, behind those before it."""
        name = tidy(str(path))
        with unpacked(path, name, self._folder) as plain:
            head = read_head(plain, name)
            found = guess_format(path, head, source.format, name)
            if found[0] == "parquet":
                self.notes.append(f"{name}: read as parquet ({found[1]})")
                self._read_parquet(plain, name, source)
                return
            if found[0] in ("adjacency", "jsonl"):
                raise _no_table(name, str(found[0]))
            asked = [str(column) for column in source.wanted.values() if isinstance(column, str)]
            layout = look(
                name,
                head,
                found=found,
                delimiter=source.delimiter,
                header=source.header,
                asked_names=asked,
            )
            if layout.format == "adjacency":
                raise _no_table(name, layout.format)
            self.notes.append(layout.note)
            self._read_text(plain, name, layout, source)

    def _read_text(self, path: Path, name: str, layout: Layout, source: Source) -> None:
        roles = choose_in_layout(name, layout, source.wanted)
        table = self._add_table(name, roles)
        scanned = scan(path, layout.delimiter if layout.quotes else None)
        rejects = Rejects(name, source.bad_rows)
        there = scanned.lines - layout.header
        oddity = scanned.oddity
        if oddity is None:
            query = table_query(layout, roles, scanned)
            oddity = self._read_fast(table, query, path, there)
        read = there
        if oddity is not None:
            self._execute(f"CREATE OR REPLACE TABLE {table} ({_schema(roles)})")
            exact = replace(layout, quotes=scanned.quotes)
            read = read_exact(path, exact, roles, rejects, _Table(self.connection, table))
            self.notes.append(f"{name}: read row by row, which is slower ({oddity})")
        self._kinds["user"].add("string")
        self._kinds["item"].add("string")
        self._count(name, read, rejects.count, rejects.first)

    def _read_fast(self, table: str, query: str, path: Path, there: int) -> str | None:
        """Let DuckDB read the whole file; why not, where a row must be named or is missing."""
        try:
            self._execute(f"INSERT INTO {table} {query}", [escape_glob(str(path.resolve()))])
        except (duckdb.OutOfMemoryException, duckdb.IOException):
            raise
        except duckdb.Error as error:
            return str(error).partition("\n")[0]
        bad = ['"user" IS NULL OR "item" IS NULL OR "user" = \'\' OR "item" = \'\'']
        values = [role for role in self.has if role not in ("user", "item")]
        bad += [f'"{role}" IS NULL OR NOT isfinite("{role}")' for role in values]
        found = self._execute(f"SELECT count(*), count(*) FILTER ({' OR '.join(bad)}) FROM {table}")
        assert found is not None
        if found[1]:
            return "bad values"
        return None if found[0] == there else f"DuckDB found {found[0]} rows of {there}"

    def _read_parquet(self, path: Path, name: str, source: Source) -> None:
        read = rejected = 0
        first = None
        with open_parquet(path, name) as file:
            roles, names = choose_in_parquet(file, name, source.wanted)
            table = _Table(self.connection, self._add_table(name, roles))
            for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=names):
                rows = pa.Table.from_batches([batch])
                columns = {
                    role: rows.column(column)
                    for role, column in zip(roles.positions, names, strict=True)
                }
                good = usable_rows(columns, name, source.bad_rows, roles, read + rejected)
                rejected += good.rejected
                read += len(good.users)
                first = first or good.problem
                users, user_kind = as_id_text(good.users)
                items, item_kind = as_id_text(good.items)
                self._kinds["user"].add(user_kind)
                self._kinds["item"].add(item_kind)
                values = {f"{role}s": numbers for role, numbers in good.values.items()}
                table.add(users, items, **values)
        self._count(name, read, rejected, first)

    def _add_table(self, name: str, roles: Roles) -> str:
        has = tuple(roles.positions)
        if self._roles and has != self.has:
            odd = sorted(set(has) ^ set(self.has))[0]
            with_it, without = (name, self._roles[0][0])
            if odd in self.has:
                with_it, without = without, with_it
            raise InputError(
                f"{with_it} has a {odd} and {without} has none; name the column, or leave it aside"
                f" with {odd}='none' (--{odd} none)"
            )
        table = f"raw{len(self._roles)}"
        self._roles.append((name, has))
        self.notes.extend(roles.notes)
        self._execute(f"CREATE TABLE {table} ({_schema(roles)})")
        return table

    def _count(self, name: str, read: int, rejected: int, first: str | None) -> None:
        if not read:
            raise no_rows(name, rejected, first)
        if rejected:
            self.notes.append(left_out(name, rejected, read + rejected, first))
        self.rows.append(read)
        self.rejected += rejected

    def give_rows(self, role: str, least_rating: float | None) -> Ids:
        """Number the ids of "user" or "item" in the order they first appear.

        With a least rating those without any event rated so well are left out; the others keep
        their order.
        """
        if least_rating is not None and "rating" not in self.has:
            raise InputError("there are no ratings to go by; name their column (--rating)")
        kept = "" if least_rating is None else "HAVING max(rating) >= CAST(? AS FLOAT)"
        values = [] if least_rating is None else [least_rating]
        self._execute(
            f"""CREATE TABLE {role}s AS
            SELECT id, row_number() OVER (ORDER BY first) - 1 AS row,
                   row_number() OVER (ORDER BY id) - 1 AS place
            FROM (SELECT "{role}" AS id, min(event) AS first FROM ({self._events(role)})
                  GROUP BY "{role}" {kept})""",
            values,
        )
        texts: list[pa.Array] = []
        places: list[npt.NDArray[np.int64]] = []
        for batch in self._batches(f"SELECT id, place FROM {role}s ORDER BY row"):
            texts.append(batch.column(0).cast(pa.large_string()))
            places.append(np.asarray(batch.column(1), dtype=np.int64))
        if not texts:
            raise InputError(f"no event is rated {least_rating:g} or better; use a lower rating")
        kinds = self._kinds[role]
        kind = next(iter(kinds)) if len(kinds) == 1 else "string"
        ids = IdMap(pa.concat_arrays(texts), kind)
        if len(ids) > _MOST_IDS:
            raise InputError(f"there are {len(ids):,} {role}s; at most {_MOST_IDS:,} have rows")
        return Ids(ids, np.concatenate(places))

    def _events(self, *roles: str) -> str:
        """All files' tables as one, each event with its place among all."""
        columns = [*roles, *(["rating"] if "rating" in self.has else [])]
        chosen = ", ".join(f'"{column}"' for column in columns)
        before = np.concatenate(([0], np.cumsum(self.rows)))
        return " UNION ALL ".join(
            f"SELECT {chosen}, rowid + {before[table]} AS event FROM raw{table}"
            for table in range(len(self.rows))
        )

    def sorted_pairs(
        self, least_rating: float | None
    ) -> Iterator[tuple[npt.NDArray[np.int64], Floats | None]]:
        """Batches of the events by user row, item row and time: user * 2^32 + item, and the time.

        `give_rows` comes first. Of a pair's several events the first is the earliest.
        """
        timed = "timestamp" in self.has
        columns = ("user", "item", *(["timestamp"] if timed else []))
        kept = "" if least_rating is None else "WHERE rating >= CAST(? AS FLOAT)"
        query = f"""SELECT (u.row << 32) | i.row AS pair {', "timestamp"' if timed else ""}
            FROM ({self._events(*columns)}) AS e
            JOIN users AS u ON e."user" = u.id JOIN items AS i ON e."item" = i.id {kept}
            ORDER BY pair {', "timestamp"' if timed else ""}"""
        for batch in self._batches(query, [] if least_rating is None else [least_rating]):
            times = np.asarray(batch.column(1), dtype=np.float64) if timed else None
            yield np.asarray(batch.column(0), dtype=np.int64), times


@dataclass(frozen=True)
class _Table:
    """A sink of the readers: batches go behind one another into a table."""

    connection: duckdb.DuckDBPyConnection
    table: str

    def add(
        self,
        users: pa.Array,
        items: pa.Array,
        ratings: Floats | None = None,
        timestamps: Floats | None = None,
    ) -> None:
        columns = {"user": users, "item": items}
        for role, values in (("rating", ratings), ("timestamp", timestamps)):
            if values is not None:
                columns[role] = pa.array(values)
        self.connection.register("batch", pa.table(columns))
        self.connection.execute(f"INSERT INTO {self.table} SELECT * FROM batch")
        self.connection.unregister("batch")


_TYPES = {"user": "VARCHAR", "item": "VARCHAR", "rating": "FLOAT", "timestamp": "DOUBLE"}


def _schema(roles: Roles) -> str:
    return ", ".join(f'"{role}" {_TYPES[role]}' for role in roles.positions)


def _no_table(name: str, format: str) -> InputError:
    return InputError(
        f"{name}: {format} cannot be prepared out of core; write it as CSV or Parquet with a user"
        " and an item column"
    )


def read_all(
    paths: Sequence[Path], source: Source, stage: Stage, tell: Callable[[str], None]
) -> None:
    """Every file into the stage, with a word about each."""
    for path in paths:
        told = len(stage.notes)
        stage.read(path, source)
        for note in stage.notes[told:]:
            tell(note)
