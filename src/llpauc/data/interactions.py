"""User-item events and their division into train, validation and test parts.

`users` and `items` are indices 0..n-1; `user_ids` and `item_ids` map them to the ids of the
source. There is no padding index. The objects are frozen and hold NumPy arrays.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from scipy import sparse

from llpauc.data.ids import IdMap, Indices, as_id_text, number_by_text
from llpauc.errors import InputError, choose, listing

_COLUMNS = ("users", "items", "ratings", "timestamps", "weights", "types")
_MOST_TYPES = 32  # bits of a pair's types
History = Literal["train", "all"]
Part = Literal["valid", "test"]

HISTORIES: dict[str, str] = {
    "train": "the train part only, as in the paper",
    "all": "all events before the part under test: train, and valid when testing",
}


@dataclass(frozen=True)
class EventRules:
    """How the events of different types count.

    Args:
        type_weights: event type -> weight of an event; empty where events have no types.
        exclude: which items of a user are left out of the list: "all" that the user has an event
            with, "none", or those with an event of these types, separated by commas. None is the
            type with the highest weight, or all where there are no types.
        relevant: the types, separated by commas, that are targets in an evaluated part; None is
            every event with a weight above 0.
        log: the weight of a pair is log(1 + the sum of the weights of its events), not the sum.
    """

    type_weights: Mapping[str, float] = field(default_factory=dict)
    exclude: str | None = None
    relevant: str | None = None
    log: bool = False

    def __post_init__(self) -> None:
        if len(self.type_weights) > _MOST_TYPES:
            raise InputError(
                f"{len(self.type_weights)} event types have a weight, at most {_MOST_TYPES} can"
            )
        for name, weight in self.type_weights.items():
            if isinstance(weight, bool) or not 0 <= weight < np.inf:
                raise InputError(f"the weight of event type {name!r} must be >= 0, got {weight!r}")
        if self.relevant is not None:
            self._bits("relevant", self.relevant)
        if self.exclude not in (None, "all", "none"):
            self._bits("exclude", str(self.exclude))

    @property
    def excluded_types(self) -> str:
        """all, none, or the types that are left out of the lists."""
        if self.exclude is not None or not self.type_weights:
            return self.exclude or "all"
        most = max(self.type_weights.values())
        return ",".join(name for name, weight in self.type_weights.items() if weight == most)

    @property
    def excluded_text(self) -> str:
        """Which items are left out of a user's list, for messages."""
        texts = {"all": "all items that the user has an event with", "none": "no item"}
        types = self.excluded_types
        return texts.get(types, f"items that the user has an event of type {types} with")

    @property
    def exclude_bits(self) -> int | None:
        """The types that are left out of the lists, as bits; None is every event."""
        types = self.excluded_types
        return None if types == "all" else 0 if types == "none" else self._bits("exclude", types)

    @property
    def relevant_bits(self) -> int | None:
        """The types that are targets, as bits; None is every event with a weight above 0."""
        return None if self.relevant is None else self._bits("relevant", self.relevant)

    def _bits(self, option: str, types: str) -> int:
        """
        >>> EventRules({"view": 1, "cart": 3}, exclude="cart").exclude_bits
        2
        """
        names = [name.strip() for name in types.split(",")]
        unknown = [name for name in names if name not in self.type_weights]
        if unknown:
            known = listing([*(["all", "none"] if option == "exclude" else []), *self.type_weights])
            remedy = f"one of: {known}" if known else "name the types with --event-type"
            raise InputError(f"--{option}: unknown event type {unknown[0]!r}; {remedy}")
        order = list(self.type_weights)
        return sum(1 << order.index(name) for name in set(names))

    def positives(self, histories: sparse.csr_matrix) -> sparse.csr_matrix:
        """The pairs of a weight above 0, from the sum of the weights of each pair's events. The
        mean weight is 1, so that options of models mean the same whatever the unit of weights."""
        if (histories.data == 1).all():
            return histories
        weights = np.log1p(histories.data) if self.log else histories.data
        kept = select_pairs(histories, weights > 0)
        weights = weights[weights > 0].astype(np.float64)
        kept.data = (weights / weights.mean()).astype(np.float32) if len(weights) else weights
        return kept

    def excluded(self, histories: Any, types: npt.NDArray[np.uint32] | None) -> Any:
        """The pairs that are left out of the lists, given all pairs and the types of each."""
        bits = self.exclude_bits
        if bits is None or (types is None and bits):
            return histories
        keep = np.zeros(histories.nnz, bool) if types is None else types & np.uint32(bits) != 0
        return select_pairs(histories, keep)


@dataclass(frozen=True, eq=False)
class Interactions:
    """User-item events, with a rating and a timestamp each if the source has them.

    Args:
        users: index of each event's user, int32.
        items: index of each event's item, int32.
        user_ids: ids of the users; may contain users without an event here.
        item_ids: ids of the items, likewise.
        ratings: float32, or None.
        timestamps: seconds as float64, or None. Only their order and differences matter.
        weights: float32, at least 0, or None where all are 1. The weights of repeated events of a
            pair add up. An event of weight 0 is seen, but not a positive.
        types: the type of each event as a bit, 1 << its position in `rules.type_weights`, or None.
        rules: how the types count.
        shuffled: whether the events are stored in random order, as in prepared data; set by
            `stored_shuffled` only. Events derived from these are not marked.
    """

    users: Indices
    items: Indices
    user_ids: IdMap
    item_ids: IdMap
    ratings: npt.NDArray[np.float32] | None = None
    timestamps: npt.NDArray[np.float64] | None = None
    weights: npt.NDArray[np.float32] | None = None
    types: npt.NDArray[np.uint32] | None = None
    rules: EventRules = field(default_factory=EventRules)
    shuffled: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        for name, size in (("users", self.n_users), ("items", self.n_items)):
            indices = np.asarray(getattr(self, name))
            # Checked before the cast to int32, which would turn 2^32 and 0.7 into 0.
            if len(indices) and indices.dtype.kind not in "iu":
                raise InputError(f"{name} must be integer indices, got {indices.dtype}")
            if len(indices) and not (indices.min() >= 0 and indices.max() < size):
                raise InputError(
                    f"{name} must be indices in [0, {size}), got {indices.min()}..{indices.max()}"
                )
            object.__setattr__(self, name, np.ascontiguousarray(indices, dtype=np.int32))
        for name in _COLUMNS[1:]:
            column = getattr(self, name)
            if column is not None and len(column) != len(self.users):
                raise InputError(f"{name} has {len(column)} entries, users has {len(self.users)}")
        if self.weights is not None and len(bad := np.flatnonzero(~(self.weights >= 0))):
            raise InputError(
                f"weights must be >= 0, got {self.weights[bad[0]]} in event {bad[0]}; drop such"
                " events, or give them the weight 0"
            )

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
        weights: npt.ArrayLike | None = None,
    ) -> Interactions:
        """Events from two columns of ids, which are numbered in the order of their text.

        >>> data = Interactions.of(["ann", "bob", "ann"], [10, 10, 20])
        >>> data.n_users, data.n_items, data.users.tolist()
        (2, 2, [0, 1, 0])
        """
        (user_idx, user_ids), (item_idx, item_ids) = _encode(users), _encode(items)
        if len(user_idx) != len(item_idx):
            raise InputError(
                f"{len(user_idx)} users but {len(item_idx)} items; give one of each per event"
            )
        numbers: dict[str, Any] = {}
        given = {"ratings": ratings, "timestamps": timestamps, "weights": weights}
        for name, values in given.items():
            try:
                kind = np.float64 if name == "timestamps" else np.float32
                numbers[name] = None if values is None else np.asarray(values, dtype=kind)
            except (TypeError, ValueError) as error:
                raise InputError(f"{name} must be numbers: {error}") from None
        return Interactions(user_idx, item_idx, user_ids, item_ids, **numbers)

    def take(self, where: npt.NDArray[Any]) -> Interactions:
        """The events at these positions (or under this mask), with the same id maps."""
        columns: dict[str, Any] = {name: getattr(self, name) for name in _COLUMNS}
        given = {name: column[where] for name, column in columns.items() if column is not None}
        return replace(self, **given)

    def followed_by(self, later: Interactions) -> Interactions:
        """These events, then `later`, which must have the same id maps.

        A rating or timestamp column that one of the two lacks is left out; events without a weight
        have the weight 1.
        """
        if self.user_ids != later.user_ids or self.item_ids != later.item_ids:
            raise InputError("only events with the same id maps can be joined; use Split.of")

        columns: dict[str, Any] = {}
        missing = {"weights": np.float32(1), "types": np.uint32(0)}
        for name in _COLUMNS:
            both = [getattr(part, name) for part in (self, later)]
            if name in missing and not all(column is None for column in both):
                both = [
                    np.full(len(part), missing[name]) if column is None else column
                    for part, column in zip((self, later), both, strict=True)
                ]
            columns[name] = None if any(c is None for c in both) else np.concatenate(both)
        return replace(self, **columns)

    def with_rules(self, **changes: Any) -> Interactions:
        """The same events with other rules (`EventRules.exclude` and `relevant`)."""
        changed = replace(self, rules=replace(self.rules, **changes))
        changed.__dict__.update({name: self.__dict__[name] for name in _BY_PAIR & {*self.__dict__}})
        object.__setattr__(changed, "shuffled", self.shuffled)
        return changed

    def remap(self, user_ids: IdMap, item_ids: IdMap) -> Interactions:
        """The same events with other id maps, which must contain every id used here."""
        users = _reindex("user", self.users, self.user_ids, user_ids)
        items = _reindex("item", self.items, self.item_ids, item_ids)
        return replace(self, users=users, items=items, user_ids=user_ids, item_ids=item_ids)

    def compact(self) -> Interactions:
        """The same events without the users and items that have no event."""
        used_users, users = np.unique(self.users, return_inverse=True)
        used_items, items = np.unique(self.items, return_inverse=True)
        return replace(
            self,
            users=users.astype(np.int32),
            items=items.astype(np.int32),
            user_ids=self.user_ids.take(used_users),
            item_ids=self.item_ids.take(used_items),
        )

    @cached_property
    def matrix(self) -> sparse.csr_matrix:
        """Users x items, 1.0 for each distinct pair with an event; columns sorted."""
        ones = np.ones(len(self), dtype=np.float32)
        matrix = sparse.csr_matrix(
            (ones, (self.users, self.items)), shape=(self.n_users, self.n_items)
        )
        matrix.data[:] = 1.0  # scipy has summed the duplicates
        matrix.sort_indices()
        return matrix

    @cached_property
    def histories(self) -> sparse.csr_matrix:
        """The pairs of `matrix` with the sum of the weights of their events."""
        if self.weights is None:
            return self.matrix
        return self._sums(self.weights)

    def _sums(self, values: npt.NDArray[np.float32]) -> sparse.csr_matrix:
        """The pairs of `matrix` with the sum of the values of their events."""
        pairs = (self.users, self.items)
        sums = sparse.csr_matrix((values, pairs), shape=(self.n_users, self.n_items))
        sums.sort_indices()
        return sums

    @cached_property
    def pair_types(self) -> npt.NDArray[np.uint32] | None:
        """The types of the events of each pair of `matrix` as bits; None without types."""
        if self.types is None:
            return None
        types = np.zeros(self.matrix.nnz, np.uint32)
        for bit in np.uint32(1) << np.arange(len(self.rules.type_weights), dtype=np.uint32):
            types[self._sums((self.types & bit != 0).astype(np.float32)).data > 0] |= bit
        return types

    @property
    def _pair_of_event(self) -> npt.NDArray[np.int64]:
        """The position of each event's pair in `matrix`."""
        rows = np.repeat(np.arange(self.n_users), np.diff(self.matrix.indptr))
        pairs = pair_codes(rows, self.matrix.indices, self.n_items)
        return np.searchsorted(pairs, pair_codes(self.users, self.items, self.n_items))

    @cached_property
    def positives(self) -> sparse.csr_matrix:
        """Users x items, the weight of each pair that is a positive; all 1.0 without weights."""
        return self.matrix if self.weights is None else self.rules.positives(self.histories)

    @property
    def event_weights(self) -> npt.NDArray[np.float32] | None:
        """The weight of each event where pairs have the weights of `positives`, with the mean 1;
        None if all are equal."""
        if self.weights is None:
            return None
        weights = self.weights.astype(np.float64)
        if self.rules.log:
            sums = np.maximum(self.histories.data, np.finfo(np.float32).tiny).astype(np.float64)
            weights *= (np.log1p(sums) / sums)[self._pair_of_event]
        weights /= max(weights.mean(), np.finfo(np.float32).tiny)
        return weights.astype(np.float32)

    @cached_property
    def excluded(self) -> Any:
        """The pairs that are left out of the lists, as a CSR matrix."""
        return self.rules.excluded(self.matrix, self.pair_types)

    @cached_property
    def targets(self) -> Any:
        """The pairs that are targets where these events are evaluated, as a CSR matrix."""
        bits, types = self.rules.relevant_bits, self.pair_types
        if bits is not None and types is not None:
            return select_pairs(self.matrix, types & np.uint32(bits) != 0)
        return (
            self.matrix
            if self.weights is None
            else select_pairs(self.matrix, self.histories.data > 0)
        )

    def stored_shuffled(self, **by_pair: Any) -> Interactions:
        """These events marked as stored in random order, with their known `matrix`, and with
        `histories` and `pair_types` where there are weights and types."""
        marked = replace(self)
        object.__setattr__(marked, "shuffled", True)
        marked.__dict__.update(by_pair)  # fills the cached properties
        return marked

    @property
    def duplicates(self) -> int:
        """Number of events after the first of their user-item pair."""
        return len(self) - int(self.matrix.nnz)


_BY_PAIR = {"matrix", "histories", "pair_types"}  # do not depend on the rules of exclusion


def select_pairs(pairs: Any, keep: npt.NDArray[np.bool_]) -> sparse.csr_matrix:
    """The entries of a CSR matrix for which `keep` is true; all values are 1.

    >>> select_pairs(sparse.csr_matrix([[1, 1]]), np.array([False, True])).toarray().tolist()
    [[0.0, 1.0]]
    """
    starts = np.concatenate(([0], np.cumsum(keep)))[pairs.indptr]
    ones = np.ones(int(starts[-1]), np.float32)
    return sparse.csr_matrix((ones, pairs.indices[keep], starts), pairs.shape)


def pair_codes(
    users: npt.NDArray[Any], items: npt.NDArray[Any], n_items: int
) -> npt.NDArray[np.int64]:
    """One integer for each pair of a user index and an item index."""
    codes: npt.NDArray[np.int64] = users.astype(np.int64) * n_items + items
    return codes


def sorted_rows(
    keys: npt.NDArray[np.int64], *columns: npt.NDArray[Any] | None
) -> npt.NDArray[np.int64]:
    """Positions in the order of the keys; equal keys in the order of the columns, the first first.

    >>> sorted_rows(np.array([7, 3, 7]), np.array([2.0, 0.0, 1.0])).tolist()
    [1, 2, 0]
    """
    order: npt.NDArray[np.int64] = np.argsort(keys)
    equal = np.diff(keys[order]) == 0
    repeated = np.zeros(len(keys), dtype=bool)
    repeated[1:] |= equal
    repeated[:-1] |= equal
    rows = order[repeated]
    by = [column[rows] for column in columns if column is not None]
    order[repeated] = rows[np.lexsort((rows, *reversed(by), keys[rows]))]
    return order


def _reindex(what: str, indices: Indices, old: IdMap, new: IdMap) -> Indices:
    if old is new:
        return indices
    new_index = new.indices(old.text)
    unknown = np.unique(indices[new_index[indices] < 0])
    if len(unknown):
        raise InputError(f"unknown {what} ids: {listing(old.ids(unknown), 3)}")
    return new_index[indices].astype(np.int32)


def _encode(ids: Iterable[Any]) -> tuple[Indices, IdMap]:
    text, kind = as_id_text(ids)
    return number_by_text(pa.chunked_array([pc.dictionary_encode(text)]), kind)


@dataclass(frozen=True)
class Split:
    """Train, validation and test events with common id maps.

    `notes` are messages about how the parts were made: detected columns, the rule of the split.
    """

    train: Interactions
    valid: Interactions | None = None
    test: Interactions | None = None
    notes: tuple[str, ...] = ()

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
        """Give parts that were read separately common id maps; the indices of train stay."""
        given = [part for part in (train, valid, test) if part is not None]
        user_ids = train.user_ids.union(part.user_ids for part in given[1:])
        item_ids = train.item_ids.union(part.item_ids for part in given[1:])
        valid, test = (
            None if part is None else part.remap(user_ids, item_ids) for part in (valid, test)
        )
        return Split(train.remap(user_ids, item_ids), valid, test, notes)

    @property
    def parts(self) -> dict[str, Interactions]:
        """The parts that exist, by name, train first."""
        named = {"train": self.train, "valid": self.valid, "test": self.test}
        return {name: part for name, part in named.items() if part is not None}

    def with_rules(self, **changes: Any) -> Split:
        """The same events with other rules; see `Interactions.with_rules`."""
        parts: dict[str, Any] = {
            name: part.with_rules(**changes) for name, part in self.parts.items()
        }
        return replace(self, **parts)

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


def before(split: Split, on: Part, history: History = "all") -> list[Interactions]:
    """The parts a model may learn from before it is tested on `on`, the oldest first.

    The parts of a split follow each other in time: train, valid, test.
    """
    choose(HISTORIES, history, "history")
    if history == "all" and on == "test" and split.valid is not None and len(split.valid):
        return [split.train, split.valid]
    return [split.train]


def join(parts: Sequence[Interactions]) -> Interactions:
    """The parts of a split as one table, one after another."""
    return reduce(Interactions.followed_by, parts)


def pairs_before(split: Split, on: Part) -> Any:
    """The user-item pairs before `on` that are left out of the lists, as a CSR matrix.

    >>> train, valid = ([(0, 1)], [(0, 0)])
    >>> split = Split.of(*(Interactions.of(*zip(*part)) for part in (train, valid, valid)))
    >>> pairs_before(split, "test").nnz, pairs_before(split, "valid").nnz
    (2, 1)
    """
    return reduce(lambda one, other: one.maximum(other), [p.excluded for p in before(split, on)])


def without(pairs: Any, others: Any) -> Any:
    """The pairs of a CSR matrix that are not in another one.

    >>> from scipy.sparse import csr_matrix
    >>> without(csr_matrix([[1, 1]]), csr_matrix([[0, 1]])).toarray().tolist()
    [[1, 0]]
    """
    left = (pairs - pairs.multiply(others)).tocsr()
    left.eliminate_zeros()
    left.sort_indices()
    return left


def fingerprint(*parts: Interactions | None) -> str:
    """SHA-256 of users, items, timestamps, weights, types and ids of the parts, in order; None is
    no part.

    It detects that a checkpoint, a study or a result belongs to other data.

    >>> train = Interactions.of(["ann", "bob"], [1, 2])
    >>> fingerprint(train) == fingerprint(Interactions.of(["ann", "bob"], [1, 2]))
    True
    >>> fingerprint(train) == fingerprint(train, train)
    False
    """
    digest = hashlib.sha256()
    for position, part in enumerate(parts):
        if part is None:
            continue
        if position:
            digest.update(b"part %d" % position)
        for column in (part.users, part.items, part.timestamps, part.weights, part.types):
            if column is not None:
                digest.update(np.ascontiguousarray(column).data)
        for ids in (part.user_ids, part.item_ids):
            digest.update(pa.record_batch([ids.arrow()], ["id"]).serialize())
    return digest.hexdigest()
