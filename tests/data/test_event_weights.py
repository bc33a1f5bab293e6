"""Weights and types of events: pairs, rules, readers, splits, prepared data, filters."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from llpauc.data.filters import Filters, clean
from llpauc.data.interactions import EventRules, Interactions, fingerprint
from llpauc.data.out_of_core import prepare
from llpauc.data.prepared import open_prepared
from llpauc.data.readers import load, read_interactions
from llpauc.data.splits import split, split_random_per_user, split_temporal
from llpauc.data.writers import write_split
from llpauc.errors import InputError

WEIGHTS = {"view": 1.0, "cart": 3.0, "buy": 10.0}
LOG = pd.DataFrame(
    [
        ("ann", "x", "view", 1, 1),
        ("ann", "x", "view", 2, 1),
        ("ann", "y", "view", 3, 1),
        ("ann", "y", "buy", 4, 2),
        ("bob", "x", "cart", 5, 1),
        ("bob", "z", "view", 6, 0),
    ],
    columns=["user", "item", "kind", "timestamp", "quantity"],
)
TYPED = {"event_type": "kind", "event_weights": WEIGHTS}


def read(**options):
    return read_interactions(LOG, **options).interactions


def by_id(events, matrix):
    """(user id, item id) -> value, entries of 0 included."""
    pairs = matrix.tocoo()
    users, items = events.user_ids.ids(pairs.row), events.item_ids.ids(pairs.col)
    return dict(zip(zip(users, items, strict=True), pairs.data.tolist(), strict=True))


def random_log(seed, n=400):
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "user": rng.integers(0, 30, n),
            "item": rng.integers(0, 20, n),
            "kind": rng.choice(list(WEIGHTS), n, p=[0.7, 0.2, 0.1]),
            "timestamp": rng.integers(0, 1000, n),
            "quantity": rng.integers(0, 4, n),
        }
    )


# --- pairs and rules ------------------------------------------------------------------------------


def test_histories_are_the_sums_of_the_weights_of_a_pair():
    events = read(**TYPED, weight="quantity")
    expected = {("ann", "x"): 2, ("ann", "y"): 21, ("bob", "x"): 3, ("bob", "z"): 0}
    assert by_id(events, events.histories) == expected
    # Weight 0 is seen, but not a positive; the mean weight of the positives is 1.
    mean = (2 + 21 + 3) / 3
    positives = {pair: w / mean for pair, w in expected.items() if w}
    assert by_id(events, events.positives) == pytest.approx(positives)
    assert ("bob", "z") in by_id(events, events.matrix)
    assert ("bob", "z") not in by_id(events, events.targets)


def test_log_weights_apply_to_the_sum_of_a_pair():
    events = read(**TYPED, log_weights=True)
    logs = {("ann", "x"): np.log1p(2), ("ann", "y"): np.log1p(11), ("bob", "x"): np.log1p(3)}
    logs |= {("bob", "z"): np.log1p(1)}
    mean = sum(logs.values()) / 4
    assert by_id(events, events.positives) == pytest.approx({p: w / mean for p, w in logs.items()})
    # The events of a pair together have the weight of the pair.
    weights = events.event_weights / events.event_weights.sum() * sum(logs.values())
    assert weights[[0, 1]].tolist() == pytest.approx([np.log1p(2) / 2] * 2)
    assert weights[[2, 3]].tolist() == pytest.approx([np.log1p(11) / 11, np.log1p(11) * 10 / 11])


@pytest.mark.parametrize(
    ("exclude", "left_out"),
    [
        (None, {("ann", "y")}),
        ("buy", {("ann", "y")}),
        ("cart,buy", {("ann", "y"), ("bob", "x")}),
        ("all", {("ann", "x"), ("ann", "y"), ("bob", "x"), ("bob", "z")}),
        ("none", set()),
    ],
)
def test_excluded_pairs_follow_the_rule(exclude, left_out):
    events = read(**TYPED).with_rules(exclude=exclude)
    assert set(by_id(events, events.excluded)) == left_out


def test_excluded_without_types_is_everything_seen():
    events = read(weight="quantity")
    assert events.excluded is events.matrix
    assert events.with_rules(exclude="none").excluded.nnz == 0


def test_targets_are_the_relevant_types():
    events = read(**TYPED).with_rules(relevant="buy,cart")
    assert set(by_id(events, events.targets)) == {("ann", "y"), ("bob", "x")}


def test_followed_by_events_without_weights_have_the_weight_1():
    weighted = Interactions.of(["a"], ["x"], weights=[5])
    plain = replace(weighted, weights=None)
    assert weighted.followed_by(plain).weights.tolist() == [5, 1]


def test_fingerprint_depends_on_weights_and_types():
    digests = {
        fingerprint(read()),
        fingerprint(read(weight="quantity")),
        fingerprint(read(**TYPED)),
    }
    assert len(digests) == 3


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"exclude": "sold"}, "--exclude: unknown event type 'sold'; one of: all, none, view"),
        ({"relevant": "all"}, "--relevant: unknown event type 'all'; one of: view, cart, buy"),
        ({"type_weights": {"view": -1}}, "the weight of event type 'view' must be >= 0, got -1"),
        ({"type_weights": {str(n): 1 for n in range(33)}}, "33 event types have a weight"),
    ],
)
def test_event_rules_refuse_bad_values(rules, message):
    with pytest.raises(InputError) as error:
        EventRules(**{"type_weights": WEIGHTS, **rules})
    assert str(error.value).startswith(message)


def test_interactions_refuse_a_negative_weight():
    with pytest.raises(InputError, match=r"weights must be >= 0, got -1.0 in event 1; drop"):
        Interactions.of(["a", "b"], ["x", "y"], weights=[1, -1])


# --- reading --------------------------------------------------------------------------------------


def test_read_interactions_formats_give_the_same_weights(tmp_path):
    options = {**TYPED, "event_weights": "view=1,cart=3,buy=10", "weight": "quantity"}
    expected = read(**options)
    LOG.to_csv(tmp_path / "log.csv", index=False)
    LOG.to_parquet(tmp_path / "log.parquet")
    LOG.to_json(tmp_path / "log.jsonl", orient="records", lines=True)
    for file in ("log.csv", "log.parquet", "log.jsonl"):
        events = read_interactions(tmp_path / file, **options).interactions
        assert events.weights.tolist() == expected.weights.tolist() == [1, 1, 1, 20, 3, 0]
        assert events.types.tolist() == expected.types.tolist() == [1, 1, 1, 4, 2, 1]


def test_read_interactions_weight_may_be_the_rating(tmp_path):
    (tmp_path / "ratings.csv").write_text("user,item,rating\na,x,5\nb,y,2\n")
    events = read_interactions(tmp_path / "ratings.csv", weight="rating").interactions
    assert events.ratings.tolist() == events.weights.tolist() == [5, 2]


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("a,x,-1", {"weight": "w"}, "line 2: weight '-1' is negative; fix the row or pass"),
        ("a,x,many", {"weight": "w"}, "line 2: weight 'many' is not a number; fix"),
        ("a,x,nan", {"weight": "w"}, "line 2: weight 'nan' is not a number; fix"),
        (
            "a,x,sold",
            {"event_type": "w", "event_weights": "view=1"},
            "line 2: the event type 'sold' has no weight; add it to event_weights",
        ),
        ("a,x,1", {"weight": "v"}, "no column 'v' for the weight; the columns are: user, item, w"),
        ("a,x,1", {"event_type": "w"}, "event_type names a column and event_weights the weight"),
        ("a,x,1", {"event_weights": "v=1"}, "event_type names a column and event_weights"),
        ("a,x,1", {"log_weights": True}, "log_weights (--log-weights) is for events with weights"),
        (
            "a,x,v",
            {"event_type": "w", "event_weights": "v=1,cart"},
            "event_weights must be TYPE=WEIGHT,TYPE=WEIGHT,...; got 'cart'",
        ),
        (
            "a,x,v",
            {"event_type": "w", "event_weights": "v=1,v=2"},
            "event_weights must be TYPE=WEIGHT,TYPE=WEIGHT,...; a type occurs twice",
        ),
    ],
)
def test_read_interactions_refuses_bad_weights(tmp_path, text, options, message):
    (tmp_path / "log.csv").write_text(f"user,item,w\n{text}\n")
    with pytest.raises(InputError) as error:
        read_interactions(tmp_path / "log.csv", **options)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_read_interactions_names_unused_columns_with_their_options():
    notes = "\n".join(read_interactions(LOG).notes)
    assert (
        "column 'kind' (view, buy, cart) is not used; --event-type kind"
        " --event-weights TYPE=WEIGHT,... reads event types"
    ) in notes
    assert "column 'quantity' is not used; --weight quantity reads weights" in notes
    assert "not used" not in "\n".join(read_interactions(LOG, **TYPED, weight="quantity").notes)


# --- splits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_split_by_time_keeps_repeated_events_with_weights(seed):
    events = read_interactions(random_log(seed), **TYPED).interactions
    parts = split_temporal(events, valid=0.2, test=0.2)
    assert sum(map(len, parts.parts.values())) == len(events)
    assert parts.train.timestamps.max() < parts.valid.timestamps.min()
    assert parts.valid.timestamps.max() < parts.test.timestamps.min()
    # A pair can be in several parts: viewed in train, and bought in the test.
    assert parts.train.matrix.multiply(parts.test.matrix).nnz
    assert "repeated events of a user-item pair add up" in " ".join(parts.notes)


@pytest.mark.parametrize("seed", range(3))
def test_split_at_random_keeps_the_events_of_a_pair_together(seed):
    events = read_interactions(random_log(seed), **TYPED).interactions
    parts = split_random_per_user(events, seed=seed)
    assert sum(map(len, parts.parts.values())) == len(events)
    assert not parts.train.matrix.multiply(parts.test.matrix).nnz
    unweighted = split_random_per_user(replace(events, weights=None, types=None), seed=seed)
    for name, part in parts.parts.items():
        assert (part.matrix != unweighted.parts[name].matrix).nnz == 0


@pytest.mark.parametrize(
    "options", [TYPED, {**TYPED, "weight": "quantity"}, {"weight": "quantity"}]
)
@pytest.mark.parametrize("format", ["tsv", "parquet", "inter"])
def test_write_split_writes_the_columns_that_were_read(tmp_path, options, format):
    parts = split_temporal(read(**options), valid=0.0, test=0.4)
    write_split(parts, tmp_path / "parts", format)
    again = load(
        tmp_path / "parts",
        **({"weight": "weight"} if "weight" in options else {}),
        **({**TYPED, "event_type": "event_type"} if "event_type" in options else {}),
    )
    for name, part in parts.parts.items():
        assert by_id(again.parts[name], again.parts[name].histories) == by_id(part, part.histories)
        assert again.parts[name].rules.type_weights == part.rules.type_weights


# --- prepared data --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [TYPED, {**TYPED, "weight": "quantity"}, {"weight": "quantity"}]
)
def test_prepare_by_time_holds_the_weights_and_types_of_a_split_in_memory(tmp_path, options):
    file = tmp_path / "log.parquet"
    random_log(7).to_parquet(file)
    expected = split(read_interactions(file, **options).interactions, "temporal", seed=0)
    prepare([file], tmp_path / "set", how="temporal", reading=options, memory="200MB")
    found = open_prepared(tmp_path / "set")
    for name, part in expected.parts.items():
        same = found.parts[name]
        assert by_id(same, same.histories) == by_id(part, part.histories)
        assert by_id(same, same.excluded) == by_id(part, part.excluded)
        assert sorted(same.weights.tolist()) == sorted(part.weights.tolist())
    bought = found.with_rules(exclude="buy").train if "event_type" in options else found.train
    assert bought.shuffled
    assert bought.matrix is found.train.matrix


def test_prepare_at_random_merges_the_events_of_a_pair(tmp_path):
    file = tmp_path / "log.parquet"
    random_log(8).to_parquet(file)
    events = read_interactions(file, **TYPED).interactions
    options = {"how": "random_per_user", "reading": {**TYPED, "log_weights": True}}
    prepare([file], tmp_path / "set", memory="200MB", **options)
    found = open_prepared(tmp_path / "set")
    assert found.train.rules.log
    sums = {}
    for part in found.parts.values():
        assert part.duplicates == 0
        sums |= by_id(part, part.histories)
    assert sums == by_id(events, events.histories)


# --- filters --------------------------------------------------------------------------------------

FILTERS = [
    Filters(since="500"),
    Filters(until="1970-01-01T00:08:20"),
    Filters(max_events_per_user=12),
    Filters(min_item_events=22),
    Filters(drop_duplicates=True),
    Filters(drop_duplicates=True, since="100", max_events_per_user=12, min_item_events=10),
]


def filtered_rows(log, filters):
    """An oracle: the filters in plain pandas."""
    if filters.drop_duplicates:
        log = log.drop_duplicates(["user", "item", "timestamp"])
    if filters.since is not None:
        log = log[log.timestamp >= float(filters.since)]
    if filters.until is not None:
        log = log[log.timestamp <= 500]
    if filters.max_events_per_user is not None:
        log = log[log.groupby("user").user.transform("size") <= filters.max_events_per_user]
    if filters.min_item_events is not None:
        log = log[log.groupby("item").item.transform("size") >= filters.min_item_events]
    return log


@pytest.mark.parametrize("filters", FILTERS)
def test_clean_and_prepare_drop_what_pandas_drops(tmp_path, filters):
    log = pd.concat([random_log(9), random_log(9).head(5)])
    expected = sorted(filtered_rows(log, filters)[["user", "item", "timestamp"]].values.tolist())
    left, dropped = clean({"data": read_interactions(log).interactions}, filters)
    events = left["data"]
    users, items = events.user_ids.ids(events.users), events.item_ids.ids(events.items)
    rows = zip(users.tolist(), items.tolist(), events.timestamps.tolist(), strict=True)
    assert sorted(map(list, rows)) == expected
    assert sum(dropped.values()) == len(log) - len(expected) > 0

    log.to_parquet(tmp_path / "log.parquet")
    manifest = prepare(
        [tmp_path / "log.parquet"], tmp_path / "set", filters=filters, memory="200MB", valid=0.0
    )
    pairs = {(user, item) for user, item, _ in expected}
    assert manifest["counts"]["train"] + manifest["counts"]["test"] == len(pairs)
    assert json.dumps(manifest["notes"]).count("dropped") >= len(dropped)


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        (Filters(since="soon"), "since must be a date such as 2026-01-31, or a number, got 'soon'"),
        (Filters(since="2030-01-01"), "--since 1893456000.0: no event is left; use another value"),
        (Filters(min_rating=3), "there are no ratings; name their column (--rating)"),
    ],
)
def test_clean_refuses_bad_filters(filters, message):
    with pytest.raises(InputError) as error:
        clean({"data": read()}, filters)
    assert str(error.value) == message
