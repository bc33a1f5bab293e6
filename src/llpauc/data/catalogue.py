"""The catalogue: one row per item with its properties, and conditions on them.

    catalogue = read_catalogue("catalogue.csv")
    catalogue.matching("in_stock and category in ('shoes', 'bags')")   # positions of rows

A condition is parsed by DuckDB and checked before it runs, because a server takes it from requests:
it may compare columns and constants, but holds no subquery, no statement and no function outside of
`FUNCTIONS`. It runs in a database in memory that cannot open files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv
from pyarrow import json as arrow_json

from llpauc.data.columns import known_names, likely_names, printable
from llpauc.data.formats import plain_name, uncompressed
from llpauc.data.ids import IdMap, as_id_text
from llpauc.data.known_ids import likely_cause
from llpauc.data.sources import connect
from llpauc.data.typed_tables import as_table, is_frame
from llpauc.errors import InputError, listing, unknown

Positions = npt.NDArray[np.int64]

MAX_CONDITION = 2000  # characters
FUNCTIONS = {
    *("~~", "~~*", "!~~", "!~~*", "+", "-", "*", "/", "%", "||", "abs", "round", "trunc"),
    *("lower", "upper", "trim", "length", "contains", "starts_with", "prefix", "ends_with"),
    *("suffix", "list_contains", "list_has_any", "list_value", "year", "month", "day", "to_days"),
}
_EXPRESSIONS = {
    *("COLUMN_REF", "CONSTANT", "COMPARISON", "CONJUNCTION", "OPERATOR", "BETWEEN", "CAST", "CASE"),
    *("TYPE", "FUNCTION"),
}
_QUERY = "SELECT ({}\n) AS chosen FROM items ORDER BY rowid"  # the line end ends a comment
_FEW = 0.05  # fraction of the items in the catalogue below which the ids do not meet
_MASKS = 32  # conditions whose result is kept


class Catalogue:
    """Properties of items.

    Args:
        table: one row per item.
        id_column: the name of the column of item ids; every id is there once.
        name: for messages.
    """

    def __init__(self, table: pa.Table, id_column: str, name: str = "the catalogue") -> None:
        repeated = [column for column in table.column_names if table.column_names.count(column) > 1]
        if repeated:
            raise InputError(f"{name}: two columns are called {repeated[0]!r}; rename one")
        self.table, self.id_column, self.name = table, id_column, name
        try:
            text, kind = as_id_text(table.column(id_column))
        except InputError as error:
            raise InputError(f"{name}: column {id_column!r}: {error}") from None
        self.ids = IdMap(text, kind)
        if len(pc.unique(text)) < len(text):
            encoded = np.asarray(pc.dictionary_encode(text).indices)
            first = np.unique(encoded, return_index=True)[1]
            row = int(np.setdiff1d(np.arange(len(encoded)), first)[0])
            raise InputError(
                f"{name}: row {row + 1}: the item {text[row].as_py()!r:.80} is there twice, first"
                f" in row {int(first[encoded[row]]) + 1}; keep one of the rows"
            )
        self.matching = lru_cache(_MASKS)(self._matching)

    def __len__(self) -> int:
        return len(self.table)

    @property
    def columns(self) -> list[str]:
        """The names of the properties."""
        return [name for name in self.table.column_names if name != self.id_column]

    def saved(self) -> pa.Table:
        """The table with the name of its id column, for `from_saved`."""
        return self.table.replace_schema_metadata({"id_column": self.id_column})

    @staticmethod
    def from_saved(table: pa.Table) -> Catalogue:
        """The inverse of `saved`."""
        column = (table.schema.metadata or {}).get(b"id_column", b"").decode()
        return Catalogue(table, _id_column("the catalogue", table.column_names, column))

    def check_known(self, item_ids: IdMap, what: str) -> str:
        """How many items of a run or a log are in the catalogue; an error where almost none is."""
        known = int((self.ids.indices(item_ids.text) >= 0).sum())
        message = f"{self.name}: {known:,} of {len(item_ids):,} items of {what} are in it"
        if known >= _FEW * len(item_ids):
            return message
        cause = likely_cause(item_ids.text, self.ids.text, self.name)
        if cause is None and not known:
            one, other = next(iter(item_ids)), next(iter(self.ids), None)
            cause = f"{one!r:.80} against {other!r:.80}; if another column is the id, call it item"
        if cause is not None:
            raise InputError(f"{message}: {cause}")
        return message

    def titles(self) -> dict[str, str]:
        """Item id -> title, where the catalogue has a column of titles or names."""
        named = [name for name in self.columns if name.lower() in ("title", "name")]
        named += [name for name in self.columns if name.lower().endswith(("title", "name"))]
        if not named:
            return {}
        texts = self.table.column(named[0]).cast(pa.string()).to_pylist()
        pairs = zip(self.ids.text.to_pylist(), texts, strict=True)
        return {item: " ".join(text.split())[:200] for item, text in pairs if text and text.strip()}

    def groups(self, column: str) -> npt.NDArray[np.int64]:
        """A number for each row that is the same for equal values of a column; -1 for no value."""
        self._check_column(column)
        encoded = pc.dictionary_encode(self.table.column(column).combine_chunks())
        return np.asarray(pc.fill_null(encoded.indices, -1), np.int64)

    # --- conditions -----------------------------------------------------------------------------

    def _matching(self, condition: str) -> Positions:
        """The rows for which a condition is true, ascending."""
        if len(condition) > MAX_CONDITION:
            raise _refused(condition, f"is longer than {MAX_CONDITION} characters; shorten it")
        with self._database.cursor() as cursor:
            self._check(cursor, condition)
            try:
                chosen = cursor.sql(_QUERY.format(condition))
                if [str(kind) for kind in chosen.types] != ["BOOLEAN"]:
                    raise _refused(
                        condition, f"is {chosen.types[0]}, not true or false; compare it"
                    )
                values = chosen.to_arrow_table().column(0)
            except duckdb.Error as error:
                raise _refused(condition, f"cannot be computed: {_one_line(error)}") from None
        positions: Positions = np.flatnonzero(np.asarray(pc.fill_null(values, False), bool))
        if not len(positions):
            raise InputError(f"where {condition!r:.100} is true for no item of {self.name}")
        return positions

    @cached_property
    def _database(self) -> duckdb.DuckDBPyConnection:
        connection = connect(memory_limit="1GB")
        connection.register("given", self.table)
        connection.execute("CREATE TABLE items AS SELECT * FROM given")
        connection.unregister("given")
        connection.execute(
            "SET python_enable_replacements = false; SET enable_external_access = false;"
            " SET lock_configuration = true"
        )
        return connection

    def _check(self, cursor: Any, condition: str) -> None:
        """Refuse everything but an expression of columns, constants and harmless functions."""
        parsed, expected = (_parsed(cursor, text) for text in (condition, "true"))
        if parsed["error"]:
            reason = " ".join(parsed["error_message"].split())
            raise _refused(condition, f"cannot be parsed: {reason}")
        statements = [_without_places(one["statements"]) for one in (parsed, expected)]
        found, _ = (one[0]["node"].get("select_list", [None]).pop(0) for one in statements)
        if statements[0] != statements[1]:
            raise _refused(condition, "is more than a condition; remove what is not part of it")
        for node in _nodes(found):
            kind, function = node["class"], node.get("function_name")
            if kind == "COLUMN_REF":
                self._check_column(".".join(node["column_names"]))
            elif kind not in _EXPRESSIONS:
                raise _refused(condition, f"contains a {kind.lower()}, which is not allowed")
            elif kind == "FUNCTION" and (function not in FUNCTIONS or node["schema"]):
                raise _refused(condition, f"calls {function}, which is not allowed")

    def _check_column(self, name: str) -> None:
        if name.lower() not in {column.lower() for column in self.table.column_names}:
            raise unknown("column", name, self.table.column_names)


def _parsed(cursor: Any, condition: str) -> Any:
    query = _QUERY.format(condition)
    ((text,),) = cursor.execute("SELECT json_serialize_sql(?)", [query]).fetchall()
    return json.loads(text)


def _without_places(tree: Any) -> Any:
    """A syntax tree without the places of its nodes in the text."""
    if isinstance(tree, dict):
        return {k: _without_places(v) for k, v in tree.items() if "query_location" not in k}
    return [_without_places(one) for one in tree] if isinstance(tree, list) else tree


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """The expressions in a syntax tree."""
    if isinstance(tree, dict):
        if "class" in tree:
            yield tree
        tree = list(tree.values())
    for one in tree if isinstance(tree, list) else ():
        yield from _nodes(one)


def _refused(condition: str, why: str) -> InputError:
    return InputError(f"where {condition!r:.100} {why}")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).partition("LINE 1")[0].split())[:200]


# --- reading --------------------------------------------------------------------------------------


def read_catalogue(source: Any, item: str | None = None) -> Catalogue:
    """Read a catalogue: one row per item, with a column of item ids.

    Ids of text files are text (`007` stays `007`); the types of the other columns are detected.

    Args:
        source: a CSV, TSV, Parquet, Arrow or JSON lines file, compressed or not, a pandas, Polars
            or Arrow frame, or a `Catalogue`, which is returned as it is.
        item: the column of the item ids; None detects it by its name.

    >>> table = pa.table({"sku": ["a", "b"], "price": [3, 40]})
    >>> read_catalogue(table).matching("price < 10").tolist()
    [0]
    """
    if isinstance(source, Catalogue):
        return source
    if is_frame(source):
        table, name = as_table(source, "the catalogue"), "the catalogue"
        return Catalogue(table, _id_column(name, table.column_names, item), name)
    name = printable(str(source))
    try:
        with uncompressed(str(source), name) as path:
            return _read_file(path, plain_name(source), name, item)
    except (pa.ArrowException, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{name}: is no table that can be read: {reason}") from None


def _read_file(path: Path, file_name: str, name: str, item: str | None) -> Catalogue:
    with path.open("rb") as file:
        head = file.read(1 << 16)
    if head.startswith(b"PAR1"):
        table = pq.read_table(path)
    elif head.startswith(b"ARROW1"):
        table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    elif file_name.endswith((".jsonl", ".ndjson", ".json")):
        table = arrow_json.read_json(path)
    else:
        first = head.decode("utf-8-sig", errors="replace").splitlines()[:1] or [""]
        delimiter = max(",\t;|", key=first[0].count)
        parsing = csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
        with csv.open_csv(path, parse_options=parsing) as reader:
            column = _id_column(name, reader.schema.names, item)
        as_text = csv.ConvertOptions(column_types={column: pa.string()}, strings_can_be_null=True)
        table = csv.read_csv(path, parse_options=parsing, convert_options=as_text)
    return Catalogue(table, _id_column(name, table.column_names, item), name)


def _id_column(name: str, columns: list[str], item: str | None) -> str:
    """The column of the item ids: the named one, or one that is called like an item, or `id`."""
    if item is not None:
        if item not in columns:
            raise unknown("column", item, columns)
        return item
    plain = [column for column in columns if column.lower() == "id"]
    likely = known_names("item", columns)[:1] or plain or likely_names("item", columns)
    if len(likely) != 1:
        raise InputError(
            f"{name}: has no column of item ids; the columns are: {listing(columns)}; call the"
            " column item_id"
        )
    return likely[0]
