"""`IdMap`, `Interactions` and `Split`: ids are returned unchanged, errors name the problem."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llpauc.data.ids import IdMap, as_id_text
from llpauc.data.interactions import Interactions, Split
from llpauc.errors import InputError

TEXT = st.text(min_size=1, max_size=8)
INT64 = st.integers(-(2**63), 2**63 - 1)
UINT64 = st.integers(0, 2**64 - 1)
# Few different values, so that ids repeat and tables overlap.
FEW = st.sampled_from(
    ["007", "7", "07", "ø", "🎈", "a b", "a\tb", 'q"', "\\N", "NaN", "null", "-1"]
)
PAIRS = st.lists(st.tuples(FEW, FEW), min_size=1, max_size=30)


def table(pairs, **columns):
    users, items = zip(*pairs, strict=True)
    return Interactions.of(users, items, **columns)


def id_pairs(data):
    return list(zip(data.user_ids.ids(data.users), data.item_ids.ids(data.items), strict=True))


def first_seen(values):
    return list(dict.fromkeys(values))


def by_text(values):
    return sorted(set(values), key=str.encode)


# --- ids ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (st.lists(TEXT, max_size=20), "string"),
        (st.lists(INT64, min_size=1, max_size=20), "int64"),
        (st.lists(UINT64, max_size=20).map(lambda v: [*v, 2**64 - 1]), "uint64"),
        (st.lists(st.integers(), max_size=20).map(lambda v: [*v, -(2**70)]), "string"),
    ],
    ids=["text", "int64", "uint64", "larger"],
)
def test_idmap_returns_every_id_unchanged(values, kind):
    @given(values)
    def check(ids):
        known = IdMap.of(ids)
        assert known.kind == kind
        as_given = [str(i) for i in ids] if kind == "string" else ids
        assert list(known) == first_seen(as_given)
        assert known.ids(known.indices(ids)).tolist() == as_given
        assert known.arrow(known.indices(ids)).to_pylist() == as_given
        assert IdMap.of(known.arrow()) == known

    check()


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", "int64", "uint64"])
def test_idmap_keeps_extreme_integers(dtype):
    edge = np.iinfo(dtype)
    values = np.array([edge.max, edge.min, 1, edge.max], dtype)
    known = IdMap.of(values)
    assert list(known) == [edge.max, edge.min, 1]
    assert known.indices(values).tolist() == [0, 1, 2, 0]


def test_idmap_compares_ids_by_text():
    from_parquet, from_csv = IdMap.of([7, 8]), IdMap.of(["8", "007", "7"])
    assert from_csv.indices([7, 8, 9]).tolist() == [2, 0, -1]
    assert from_parquet.indices(["7", "07", "8"]).tolist() == [0, -1, 1]


@pytest.mark.parametrize(
    "source",
    [
        pa.array(["b", "a", "b"]),
        pa.array(["b", "a", "b"], pa.large_string()),
        pa.array(["b", "a", "b"], pa.string_view()),
        pa.array(["b", "a", "b"]).dictionary_encode(),
        pa.chunked_array([["b"], ["a", "b"]]),
        pd.Series(["b", "a", "b"], dtype="category"),
        np.array(["b", "a", "b"]),
        np.array(["b", "a", "b"], dtype=object),
        iter("bab"),
    ],
    ids=lambda source: f"{type(source).__name__} {getattr(source, 'type', '')}",
)
def test_idmap_of_accepts_every_kind_of_column(source):
    assert list(IdMap.of(source)) == ["b", "a"]


@given(st.lists(INT64, max_size=20), st.integers(0, 3))
def test_idmap_ids_keeps_the_shape_of_indices(ids, extra):
    known = IdMap.of([*ids, *range(extra), 5])
    rows = np.arange(len(known)).reshape(1, -1)
    assert known.ids(rows).shape == rows.shape
    assert known.ids(rows)[0].tolist() == list(known)


def test_idmap_indices_of_many_ids_equal_those_of_few():
    known = IdMap.of([f"u{n}" for n in range(0, 6000, 2)])
    requested = [f"u{n}" for n in range(5000)]  # above 1,000 ids another method is used
    at_once = known.indices(requested)
    in_pieces = np.concatenate([known.indices(requested[n : n + 500]) for n in range(0, 5000, 500)])
    naive = [n // 2 if n % 2 == 0 else -1 for n in range(5000)]
    assert at_once.tolist() == in_pieces.tolist() == naive


@given(st.lists(TEXT, max_size=10), st.lists(st.lists(TEXT, max_size=10), max_size=3))
def test_idmap_union_keeps_indices_and_appends_new_ids(separate, others):
    joined = IdMap.of(separate).union([IdMap.of(other) for other in others])
    assert list(joined) == first_seen([*separate, *(i for other in others for i in other)])


@pytest.mark.parametrize(
    ("one", "other", "kind"),
    [([1], [2], "int64"), ([1], ["x"], "string"), ([], [2], "int64"), ([2], [], "int64"),
     ([], [], "string"), ([2**63], [2**64 - 1], "uint64")],
)  # fmt: skip
def test_idmap_union_keeps_integers_if_all_are_integers(one, other, kind):
    joined = IdMap.of(one).union([IdMap.of(other)])
    assert joined.kind == kind
    assert list(joined) == ([str(i) for i in one + other] if kind == "string" else one + other)


def test_idmap_is_equal_by_content_and_unhashable():
    assert IdMap.of(["a", "b"]) == IdMap.of(iter("aba"))
    assert IdMap.of(["a", "b"]) != IdMap.of(["b", "a"])
    assert IdMap.of(["7"]) != IdMap.of([7])
    assert IdMap.of(["a"]) != "a"
    with pytest.raises(TypeError, match="unhashable"):
        hash(IdMap.of(["a"]))


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ("ann", "expected a list of ids, got the single value 'ann'"),
        (7, "expected a list of ids, got the single value 7"),
        (None, "expected a list of ids, got the single value None"),
        ([1.5, "a"], "ids must be text or integers, got 1.5; convert them first"),
        ([np.float64(7)], r"got np.float64\(7.0\)"),
        ([np.float32("nan")], r"got np.float32\(nan\)"),
        ([True], "got True"),
        ([np.True_], r"got np.True_"),
        ([b"ann"], "got b'ann'"),
        ([("a", "b")], r"got \('a', 'b'\)"),
        (pd.Series([1, None], dtype="Int64"), "got <NA>"),
        (pd.Series([1.0, 2.0]), "got 1.0"),
        (np.array([1.0]), "got 1.0"),
        (np.array(["2020-01-01"], "M8[D]"), "got datetime.date"),
        (np.array([[1, 2]]), r"ids must be one column, got an array of shape \(1, 2\)"),
        (np.array(5), r"one column, got an array of shape \(\)"),
        (["a", None], r"an id is missing \(null\) at position 1; drop or fill such rows"),
        (pa.array([1, None]), r"missing \(null\) at position 1"),
        (pa.array([1.5]), "ids must be text or integers, got the type double"),
        (["a", "b", ""], "an id is empty at position 2; drop or fill such rows"),
        (pa.chunked_array([["a"], [""]]), "an id is empty at position 1"),
        (["a", "\ud800"], r"no valid Unicode text: '\\ud800'"),
    ],
)
def test_idmap_refuses_invalid_ids_in_one_line(ids, message):
    with pytest.raises(InputError, match=message) as caught:
        as_id_text(ids)
    assert "\n" not in str(caught.value)


# --- interactions ---------------------------------------------------------------------------------


@given(PAIRS)
def test_interactions_of_keeps_every_event_in_order(pairs):
    data = table(pairs, ratings=range(len(pairs)), timestamps=range(len(pairs)))
    assert id_pairs(data) == pairs
    assert list(data.user_ids) == by_text(user for user, _ in pairs)
    assert list(data.item_ids) == by_text(item for _, item in pairs)
    assert (data.users.dtype, data.items.dtype) == (np.int32, np.int32)
    assert (data.ratings.dtype, data.timestamps.dtype) == (np.float32, np.float64)
    assert (len(data), data.n_users, data.n_items) == (
        len(pairs), len(data.user_ids), len(data.item_ids)
    )  # fmt: skip


@given(PAIRS, st.data())
def test_interactions_take_is_plain_indexing(pairs, data):
    places = data.draw(st.lists(st.integers(0, len(pairs) - 1), max_size=40))
    events = table(pairs, ratings=range(len(pairs)), timestamps=range(len(pairs)))
    taken = events.take(np.array(places, dtype=int))
    assert id_pairs(taken) == [pairs[place] for place in places]
    assert taken.ratings.tolist() == taken.timestamps.tolist() == places
    assert taken.user_ids is events.user_ids
    assert taken.item_ids is events.item_ids
    mask = np.isin(np.arange(len(pairs)), places)
    assert id_pairs(events.take(mask)) == [pairs[place] for place in sorted(set(places))]


@given(PAIRS, PAIRS)
def test_interactions_remap_changes_indices_only(pairs, more):
    data, other = table(pairs), table(more)
    users = other.user_ids.union([data.user_ids])
    items = other.item_ids.union([data.item_ids])
    moved = data.remap(users, items)
    assert id_pairs(moved) == pairs
    assert moved.user_ids is users
    assert moved.item_ids is items
    assert id_pairs(moved.remap(data.user_ids, data.item_ids)) == pairs


def test_interactions_remap_needs_only_used_ids():
    data = Interactions.of(["a", "b"], ["x", "y"]).take(np.array([0]))
    assert id_pairs(data.remap(IdMap.of(["a"]), IdMap.of(["x"]))) == [("a", "x")]
    with pytest.raises(InputError, match="unknown user ids: a"):
        data.remap(IdMap.of(["b"]), IdMap.of(["x"]))
    with pytest.raises(InputError, match="unknown item ids: x"):
        data.remap(IdMap.of(["a"]), IdMap.of(["y"]))


@given(PAIRS, st.data())
def test_interactions_compact_leaves_only_ids_with_events(pairs, data):
    kept = data.draw(st.lists(st.booleans(), min_size=len(pairs), max_size=len(pairs)))
    events = table(pairs).take(np.array(kept))
    small = events.compact()
    assert id_pairs(small) == id_pairs(events)
    # In the order they had, which is that of the whole table.
    used = {pair for pair, keep in zip(pairs, kept, strict=True) if keep}
    whole = by_text(user for user, _ in pairs)
    assert list(small.user_ids) == [user for user in whole if user in {u for u, _ in used}]
    whole = by_text(item for _, item in pairs)
    assert list(small.item_ids) == [item for item in whole if item in {i for _, i in used}]


def test_interactions_compact_keeps_integer_ids():
    small = Interactions.of([5, 2**62, 5], [-1, 8, 9]).take(np.array([2])).compact()
    assert id_pairs(small) == [(5, 9)]
    assert (small.user_ids.kind, small.item_ids.kind) == ("int64", "int64")


@given(PAIRS)
def test_interactions_matrix_counts_a_pair_once(pairs):
    data = table(pairs)
    naive = np.zeros((data.n_users, data.n_items), np.float32)
    for user, item in zip(data.users, data.items, strict=True):
        naive[user, item] = 1.0
    np.testing.assert_array_equal(data.matrix.toarray(), naive)
    assert data.matrix.nnz == len(set(pairs))
    assert data.matrix.dtype == np.float32
    for row in range(data.n_users):
        columns = data.matrix[row].indices.tolist()
        assert columns == sorted(set(columns))
    assert data.duplicates == sum(count - 1 for count in Counter(pairs).values())


def test_interactions_matrix_includes_users_and_items_without_events():
    data = Interactions.of(["a", "b"], ["x", "y"]).take(np.array([0]))
    assert data.matrix.shape == (2, 2)
    assert data.take(np.array([], dtype=int)).matrix.nnz == 0


def test_interactions_may_be_empty():
    data = Interactions.of([], [])
    assert (len(data), data.n_users, data.n_items, data.duplicates) == (0, 0, 0, 0)
    assert len(data.compact()) == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"users": [0, 2]}, r"users must be indices in \[0, 2\), got 0..2"),
        ({"users": [-1, 0]}, r"users must be indices in \[0, 2\), got -1..0"),
        ({"items": [0, 2**32]}, r"items must be indices in \[0, 1\), got 0..4294967296"),
        ({"users": [0.0, 0.7]}, "users must be integer indices, got float64"),
        ({"users": [True, False]}, "users must be integer indices, got bool"),
        ({"items": [0]}, "items has 1 entries, users has 2"),
        ({"ratings": np.ones(3, np.float32)}, "ratings has 3 entries, users has 2"),
        ({"timestamps": np.ones(1)}, "timestamps has 1 entries, users has 2"),
    ],
)
def test_interactions_refuses_columns_that_do_not_fit(changes, message):
    ids = {"user_ids": IdMap.of(["a", "b"]), "item_ids": IdMap.of(["x"])}
    columns = {"users": [0, 1], "items": [0, 0], **changes}
    arrays = {name: np.asarray(values) for name, values in columns.items()}
    with pytest.raises(InputError, match=message):
        Interactions(**arrays, **ids)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((["a", "b"], ["x"]), "2 users but 1 items; give one of each per event"),
        ((["a"], ["x"], {"ratings": ["good"]}), "ratings must be numbers: .*'good'"),
        ((["a"], ["x"], {"timestamps": [object()]}), "timestamps must be numbers"),
        ((["a"], ["x"], {"ratings": [1, 2]}), "ratings has 2 entries, users has 1"),
    ],
)
def test_interactions_of_refuses_columns_that_do_not_fit(arguments, message):
    users, items, *rest = arguments
    with pytest.raises(InputError, match=message):
        Interactions.of(users, items, **(rest[0] if rest else {}))


def test_interactions_are_frozen_and_compare_by_identity():
    one, other = table([("a", "x"), ("b", "y")]), table([("a", "x"), ("b", "y")])
    assert one != other  # a comparison of their arrays would be neither true nor false
    assert len({one, other}) == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.users = other.users


# --- splits ---------------------------------------------------------------------------------------


@settings(max_examples=50)
@given(PAIRS, st.none() | PAIRS, st.none() | PAIRS)
def test_split_of_joins_id_maps_and_keeps_every_event(train, valid, test):
    given_parts = {"train": train, "valid": valid, "test": test}
    split = Split.of(*(None if pairs is None else table(pairs) for pairs in given_parts.values()))
    assert list(split.parts) == [name for name, pairs in given_parts.items() if pairs is not None]
    everything = []
    for name, part in split.parts.items():
        assert id_pairs(part) == given_parts[name]
        assert part.user_ids is split.user_ids
        assert part.item_ids is split.item_ids
        everything.append([by_text(column) for column in zip(*given_parts[name], strict=True)])
    for ids, position in ((split.user_ids, 0), (split.item_ids, 1)):
        assert list(ids) == first_seen(one for part in everything for one in part[position])
    # Train's rows come first, so a matrix of train alone is a corner of the whole.
    assert split.train.users.tolist() == table(train).users.tolist()
    assert (split.n_users, split.n_items) == (len(split.user_ids), len(split.item_ids))
    assert split.train.matrix.shape == (split.n_users, split.n_items)


def test_split_refuses_parts_with_different_id_maps():
    with pytest.raises(InputError, match=r"share their id maps; use Split\.of"):
        Split(table([("a", "x")]), test=table([("a", "x")]))


def test_split_of_parts_of_one_table_keeps_notes():
    data = table([("a", "x"), ("b", "y"), ("a", "y")])
    split = Split(data.take(np.array([0, 1])), test=data.take(np.array([2])), notes=("message",))
    assert split.user_ids is data.user_ids
    assert split.notes == ("message",)
    assert split.valid is None
    assert Split.of(split.train, test=split.test, notes=("more",)).notes == ("more",)
