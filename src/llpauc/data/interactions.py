"""The data as every later part sees it: rows 0..n-1 inside, the outside world's ids at the edge.

`users` and `items` are always rows; `user_ids` and `item_ids` always the outside ids. There is no
padding row. The objects are frozen and hold plain NumPy arrays; nothing here reads a file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import NoneType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from scipy import sparse

from llpauc.errors import InputError, listing

Indices = npt.NDArray[np.int32]
IdKind = Literal["string", "int64", "uint64"]

_ARROW_TYPE: dict[str, pa.DataType] = {
    "string": pa.large_string(),
    "int64": pa.int64(),
    "uint64": pa.uint64(),
}


@dataclass(frozen=True)
class IdMap:
    """A vocabulary: outside ids <-> rows 0..n-1, in the order they were first seen.

    Ids are held as text, so that `007` and `7` stay two ids and 2^64+7 is one; `kind` remembers
    that a typed source had integers, and gives them back as integers. Because the text decides,
    a user `7` of an integer Parquet column and a user `"7"` of a CSV file are the same user.

    >>> ids = IdMap.of(["007", "7", "ø"])
    >>> ids.indices(["7", "nobody", "007"]).tolist()
    [1, -1, 0]
    >>> list(ids.ids([2, 0]))
    ['ø', '007']
    """

    text: pa.LargeStringArray
    kind: IdKind = "string"

    @staticmethod
    def of(values: Iterable[Any] | pa.Array | pa.ChunkedArray) -> IdMap:
        """The distinct `values` in order of first appearance."""
        text, kind = as_id_text(values)
        return IdMap(pc.unique(text), kind)

    def __len__(self) -> int:
        return len(self.text)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.ids(np.arange(len(self))))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IdMap) and self.kind == other.kind and self.text.equals(other.text)

    __hash__ = None  # type: ignore[assignment]  # holds arrays; equal, never a key

    @cached_property
    def _row_of(self) -> dict[str, int]:
        return {text: row for row, text in enumerate(self.text.to_pylist())}

    def indices(self, ids: Iterable[Any] | pa.Array | pa.ChunkedArray) -> npt.NDArray[np.int64]:
        """The row of each id, -1 where the id is unknown."""
        text, _ = as_id_text(ids)
        if len(text) <= 1000:  # a request, not a table: a hash of everything would cost more
            known = self._row_of
            return np.array([known.get(t, -1) for t in text.to_pylist()], dtype=np.int64)
        found = pc.fill_null(pc.index_in(text, value_set=self.text), -1)
        return np.asarray(found, dtype=np.int64)

    def arrow(self, rows: npt.ArrayLike | None = None) -> pa.Array:
        """The outside ids of `rows` (all of them by default) in the type they came in."""
        text = self.text if rows is None else self.text.take(pa.array(np.asarray(rows, np.int64)))
        return text if self.kind == "string" else text.cast(_ARROW_TYPE[self.kind])

    def ids(self, indices: npt.ArrayLike) -> npt.NDArray[Any]:
        """The ids at `indices`: an object array of str, or an integer array."""
        indices = np.asarray(indices)
        flat = self.arrow(indices.ravel())
        if self.kind == "string":
            ids = np.empty(len(flat), dtype=object)
            ids[:] = flat.to_pylist()
        else:
            ids = np.asarray(flat)
        return ids.reshape(indices.shape)

    def union(self, others: Iterable[IdMap]) -> IdMap:
        """This map with the new ids of `others` behind its own: old rows keep their place."""
        maps = [self, *others]
        text = pc.unique(pa.chunked_array([m.text for m in maps], type=pa.large_string()))
        kinds = {m.kind for m in maps if len(m)} or {self.kind}
        return IdMap(text, kinds.pop() if len(kinds) == 1 else "string")


def as_id_text(
    values: Iterable[Any] | pa.Array | pa.ChunkedArray,
) -> tuple[pa.LargeStringArray, IdKind]:
    """Ids as text, and the kind they came as. Refuses what is no id: null, float, empty text."""
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise InputError(f"a list of ids is wanted, got the single value {values!r}")
    if not isinstance(values, (pa.Array, pa.ChunkedArray)):
        values = _id_array(values if isinstance(values, np.ndarray) else list(values))
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
        if isinstance(values, pa.ChunkedArray):  # nothing in it, or too much for one chunk
            values = pa.concat_arrays(
                [chunk.cast(pa.large_string()) for chunk in values.chunks]
                or [pa.array([], pa.large_string())]
            )
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if values.null_count:
        place = int(np.flatnonzero(np.asarray(values.is_null()))[0])
        raise InputError(f"an id is missing (null) at position {place}; drop or fill such rows")
    kind: IdKind = "string"
    if pa.types.is_integer(values.type):
        kind = "uint64" if values.type == pa.uint64() else "int64"
    elif not (
        pa.types.is_string(values.type)
        or pa.types.is_large_string(values.type)
        or pa.types.is_string_view(values.type)
    ):
        raise InputError(f"ids must be text or integers, got the type {values.type}")
    text = values.cast(pa.large_string())
    if kind == "string" and len(text) and pc.min(pc.binary_length(text)).as_py() == 0:
        place = pc.index(text, "").as_py()
        raise InputError(f"an id is empty at position {place}; drop or fill such rows")
    return text, kind


def _id_array(values: list[Any] | npt.NDArray[Any]) -> pa.Array:
    if isinstance(values, np.ndarray):
        if values.ndim != 1:
            raise InputError(f"ids must be one column, got an array of shape {values.shape}")
        if values.dtype.kind in "iu":
            return pa.array(values)
        values = values.tolist()
    kinds = {type(v) for v in values}
    # str(v) would make an id of anything: of 7.0, of True, of pandas' <NA>.
    odd = {k for k in kinds if k is bool or not issubclass(k, (str, int, np.integer, NoneType))}
    if odd:
        bad = next(v for v in values if type(v) in odd)
        raise InputError(f"ids must be text or integers, got {bad!r}; convert them first")
    if kinds and all(issubclass(kind, (int, np.integer)) for kind in kinds):
        whole = [int(v) for v in values]
        if min(whole) >= -(2**63) and max(whole) < 2**63:
            return pa.array(whole, pa.int64())
        if min(whole) >= 0 and max(whole) < 2**64:
            return pa.array(whole, pa.uint64())
    try:
        return pa.array([None if v is None else str(v) for v in values], pa.large_string())
    except UnicodeEncodeError as error:
        raise InputError(f"an id is no valid Unicode text: {error.object!r}") from None


@dataclass(frozen=True, eq=False)  # columns of arrays have no truth value; each is itself alone
class Interactions:
    """User-item events: one entry a row, with a rating and a timestamp where the source has them.

    Args:
        users: row of each event's user, int32.
        items: row of each event's item, int32.
        user_ids: outside ids of the users; may hold users without an event here.
        item_ids: outside ids of the items, likewise.
        ratings: float32, or None.
        timestamps: seconds as float64, or None. Only their order and differences matter.
        shuffled: whether the events lie in random order, as prepared data do; never passed in.
    """

    users: Indices
    items: Indices
    user_ids: IdMap
    item_ids: IdMap
    ratings: npt.NDArray[np.float32] | None = None
    timestamps: npt.NDArray[np.float64] | None = None
    # What is made from such events (a part, a remapping) starts out without the mark.
    shuffled: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        for name, most in (("users", len(self.user_ids)), ("items", len(self.item_ids))):
            rows = np.asarray(getattr(self, name))
            # Before int32 makes 0 of 2^32, and of 0.7.
            if len(rows) and rows.dtype.kind not in "iu":
                raise InputError(f"{name} must be rows, whole numbers, got {rows.dtype}")
            if len(rows) and not (rows.min() >= 0 and rows.max() < most):
                raise InputError(
                    f"{name} must be rows in [0, {most}), got {rows.min()}..{rows.max()}"
                )
            object.__setattr__(self, name, np.ascontiguousarray(rows, dtype=np.int32))
        for name in ("items", "ratings", "timestamps"):
            column = getattr(self, name)
            if column is not None and len(column) != len(self.users):
                raise InputError(f"{name} has {len(column)} entries, users has {len(self.users)}")

    def __len__(self) -> int:
        return len(self.users)

    @property
    def n_users(self) -> int:
        return len(self.user_ids)

    @property
    def n_items(self) -> int:
        return len(self.item_ids)

    @staticmethod
    def of(
        users: Iterable[Any],
        items: Iterable[Any],
        *,
        ratings: npt.ArrayLike | None = None,
        timestamps: npt.ArrayLike | None = None,
    ) -> Interactions:
        """From two columns of outside ids.

        >>> data = Interactions.of(["ann", "bob", "ann"], [10, 10, 20])
        >>> data.n_users, data.n_items, data.users.tolist()
        (2, 2, [0, 1, 0])
        """
        columns = []
        for values in (users, items):
            text, kind = as_id_text(values)
            coded = pc.dictionary_encode(text)
            columns.append((np.asarray(coded.indices), IdMap(coded.dictionary, kind)))
        (user_rows, user_ids), (item_rows, item_ids) = columns
        if len(user_rows) != len(item_rows):
            raise InputError(f"{len(user_rows)} users but {len(item_rows)} items; one each a row")
        return Interactions(
            user_rows,
            item_rows,
            user_ids,
            item_ids,
            None if ratings is None else _numbers("ratings", ratings, np.float32),
            None if timestamps is None else _numbers("timestamps", timestamps, np.float64),
        )

    def take(self, where: npt.NDArray[Any]) -> Interactions:
        """The events at these positions (or under this mask), with the id maps unchanged."""
        return replace(
            self,
            users=self.users[where],
            items=self.items[where],
            ratings=None if self.ratings is None else self.ratings[where],
            timestamps=None if self.timestamps is None else self.timestamps[where],
        )

    def followed_by(self, later: Interactions) -> Interactions:
        """These events and then those, which have the same id maps; a column that either lacks is
        left out."""
        if self.user_ids != later.user_ids or self.item_ids != later.item_ids:
            raise InputError("only parts with the same ids can follow each other; use Split.of")

        def joined(name: str) -> Any:
            columns = getattr(self, name), getattr(later, name)
            return None if any(c is None for c in columns) else np.concatenate(columns)

        names = ("users", "items", "ratings", "timestamps")
        return replace(self, **{name: joined(name) for name in names})

    def remap(self, user_ids: IdMap, item_ids: IdMap) -> Interactions:
        """The same events against other id maps, which must know every id used here."""
        rows = {}
        for what, old, new, used in (
            ("user", self.user_ids, user_ids, self.users),
            ("item", self.item_ids, item_ids, self.items),
        ):
            if old is new:
                rows[what] = used
                continue
            place = new.indices(old.text)
            unknown = np.unique(used[place[used] < 0])
            if len(unknown):
                raise InputError(f"unknown {what} ids: {listing(old.ids(unknown), 3)}")
            rows[what] = place[used].astype(np.int32)
        return replace(
            self, users=rows["user"], items=rows["item"], user_ids=user_ids, item_ids=item_ids
        )

    def compact(self) -> Interactions:
        """Without the users and items that have no event here."""
        user_rows, users = np.unique(self.users, return_inverse=True)
        item_rows, items = np.unique(self.items, return_inverse=True)
        taken = [
            IdMap(ids.text.take(pa.array(rows.astype(np.int64))), ids.kind)
            for ids, rows in ((self.user_ids, user_rows), (self.item_ids, item_rows))
        ]
        return replace(
            self,
            users=users.astype(np.int32),
            items=items.astype(np.int32),
            user_ids=taken[0],
            item_ids=taken[1],
        )

    @cached_property
    def matrix(self) -> sparse.csr_matrix:
        """Users x items, 1.0 where there is an event: duplicates count once, columns sorted."""
        ones = np.ones(len(self), dtype=np.float32)
        matrix = sparse.csr_matrix(
            (ones, (self.users, self.items)), shape=(self.n_users, self.n_items)
        )
        matrix.data[:] = 1.0  # scipy has summed the duplicates
        matrix.sort_indices()
        return matrix

    def stored_shuffled(self, matrix: sparse.csr_matrix) -> Interactions:
        """These events marked as lying in random order, with a `matrix` that is known already."""
        marked = replace(self)
        object.__setattr__(marked, "shuffled", True)
        marked.__dict__["matrix"] = matrix  # where cached_property keeps it
        return marked

    @property
    def duplicates(self) -> int:
        """Events beyond the first of their user-item pair."""
        return len(self) - int(self.matrix.nnz)


def pair_codes(
    users: npt.NDArray[Any], items: npt.NDArray[Any], n_items: int
) -> npt.NDArray[np.int64]:
    """One number for each pair of a user's and an item's row."""
    codes: npt.NDArray[np.int64] = users.astype(np.int64) * n_items + items
    return codes


def _numbers(name: str, values: npt.ArrayLike, kind: type[Any]) -> npt.NDArray[Any]:
    try:
        return np.asarray(values, dtype=kind)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must be numbers: {error}") from None


@dataclass(frozen=True)
class Split:
    """Train, validation and test events over one pair of id maps.

    `notes` say what was decided on the way here (guessed columns, the split's seed), for people.
    """

    train: Interactions
    valid: Interactions | None = None
    test: Interactions | None = None
    notes: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        for part in self.parts.values():
            if part.user_ids is not self.train.user_ids or part.item_ids is not self.train.item_ids:
                raise InputError("the parts of a split must share their id maps; use Split.of")

    @staticmethod
    def of(
        train: Interactions,
        valid: Interactions | None = None,
        test: Interactions | None = None,
        notes: tuple[str, ...] = (),
    ) -> Split:
        """Bring parts that were read apart onto common id maps; train's rows come first."""
        given = [part for part in (train, valid, test) if part is not None]
        user_ids = train.user_ids.union(part.user_ids for part in given[1:])
        item_ids = train.item_ids.union(part.item_ids for part in given[1:])
        parts = [
            None if part is None else part.remap(user_ids, item_ids)
            for part in (train, valid, test)
        ]
        assert parts[0] is not None
        return Split(parts[0], parts[1], parts[2], notes)

    @property
    def parts(self) -> dict[str, Interactions]:
        """The parts that are there, by name, train first."""
        named = {"train": self.train, "valid": self.valid, "test": self.test}
        return {name: part for name, part in named.items() if part is not None}

    @property
    def user_ids(self) -> IdMap:
        return self.train.user_ids

    @property
    def item_ids(self) -> IdMap:
        return self.train.item_ids

    @property
    def n_users(self) -> int:
        return self.train.n_users

    @property
    def n_items(self) -> int:
        return self.train.n_items
