"""Splits against naive loops, and the rules that every split keeps."""

from __future__ import annotations

import gzip
import os
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llpauc.data.filters import k_core
from llpauc.data.interactions import Interactions, Split
from llpauc.data.splits import (
    OPTIMISTIC,
    SPLITS,
    TooFewEvents,
    canonical_order,
    hold_out,
    split,
    split_auto,
    split_leave_k_out,
    split_random,
    split_random_per_user,
    split_temporal,
)
from llpauc.errors import InputError

DATA = Path(os.environ.get("LLPAUC_DATA", Path(__file__).parents[3] / "shared" / "data"))

Event = tuple[Any, Any, float]

EVERY_WAY: list[tuple[str, dict[str, Any]]] = [
    ("auto", {}),
    ("temporal_per_user", {}),
    ("random_per_user", {}),
    ("random", {}),
    ("temporal", {}),
    ("temporal", {"per_user": True}),
    ("leave_k_out", {}),
    ("leave_k_out", {"by": "random", "k": 2, "valid_k": 0}),
]


def events_of(part: Interactions) -> list[Event]:
    times = np.zeros(len(part)) if part.timestamps is None else part.timestamps
    return list(
        zip(
            part.user_ids.ids(part.users).tolist(),
            part.item_ids.ids(part.items).tolist(),
            times.tolist(),
            strict=True,
        )
    )


def as_sets(parts: Split) -> dict[str, set[Event]]:
    return {name: set(events_of(part)) for name, part in parts.parts.items()}


def table(n_users: int = 40, n_items: int = 30, n: int = 600, seed: int = 0) -> Interactions:
    """Random events with repeated pairs and times that tie."""
    rng = np.random.default_rng(seed)
    return Interactions.of(
        [f"u{row}" for row in rng.integers(0, n_users, n)],
        [f"i{row}" for row in rng.integers(0, n_items, n)],
        timestamps=rng.integers(0, 200, n),
    )


def earliest(data: Interactions) -> set[Event]:
    """The events that stay when each pair keeps its earliest, by a plain loop."""
    best: dict[tuple[Any, Any], float] = {}
    for user, item, time in events_of(data):
        best[user, item] = min(time, best.get((user, item), np.inf))
    return {(user, item, time) for (user, item), time in best.items()}


@pytest.mark.parametrize(("how", "options"), EVERY_WAY)
def test_split_puts_every_pair_in_one_part_with_its_earliest_event(
    how: str, options: dict[str, Any]
) -> None:
    data = table()
    parts = split(data, how, seed=3, **options)
    everything = [event for part in parts.parts.values() for event in events_of(part)]
    assert Counter(everything) == Counter(earliest(data))
    assert any("repeated events" in note for note in parts.notes)
    assert parts.train.user_ids is data.user_ids


@pytest.mark.parametrize(("how", "options"), EVERY_WAY)
def test_split_does_not_depend_on_row_order(how: str, options: dict[str, Any]) -> None:
    data = table()
    # Through ids, so that the rows of the id maps change as well.
    shuffled = np.random.default_rng(5).permutation(len(data))
    events = events_of(data)
    rows = [events[place] for place in shuffled]
    again = Interactions.of(
        [row[0] for row in rows], [row[1] for row in rows], timestamps=[row[2] for row in rows]
    )
    one, other = split(data, how, seed=3, **options), split(again, how, seed=3, **options)
    assert as_sets(one) == as_sets(other)


@pytest.mark.parametrize(("how", "options"), EVERY_WAY)
def test_split_parts_keep_the_order_of_rows(how: str, options: dict[str, Any]) -> None:
    data = table()
    places = {event: place for place, event in reversed(list(enumerate(events_of(data))))}
    for part in split(data, how, seed=3, **options).parts.values():
        found = [places[event] for event in events_of(part)]
        assert found == sorted(found)


@pytest.mark.parametrize("how", ["random_per_user", "random"])
def test_split_depends_on_the_seed(how: str) -> None:
    data = table()
    assert as_sets(split(data, how, seed=1)) == as_sets(split(data, how, seed=1))
    assert as_sets(split(data, how, seed=1)) != as_sets(split(data, how, seed=2))
    passed_in = split(data, how, seed=np.random.default_rng(1))
    assert as_sets(split(data, how, seed=1)) == as_sets(passed_in)


def test_split_random_per_user_counts_written_out() -> None:
    # events: 1 -> 0 held; 2 -> .4, .2; 3 -> .6, .3; 5 -> 1, .5 (half up); 10 -> 2, 1; 15 -> 3, 1.5
    expected = {1: (0, 0), 2: (0, 0), 3: (0, 1), 5: (1, 1), 10: (1, 2), 15: (2, 3)}
    users = [f"has{n}" for n in expected for _ in range(n)]
    items = [item for n in expected for item in range(n)]
    parts = split_random_per_user(Interactions.of(users, items), seed=9)
    assert parts.valid is not None
    assert parts.test is not None
    for n, (valid, test) in expected.items():
        counts = [
            [event[0] for event in events_of(part)].count(f"has{n}")
            for part in (parts.train, parts.valid, parts.test)
        ]
        assert counts == [n - valid - test, valid, test]
    assert "2 of 6 users have too few events to hold any out" in " ".join(parts.notes)


def test_split_random_per_user_keeps_one_training_event() -> None:
    data = Interactions.of(["a"] * 3 + ["b"] * 20, [*range(3), *range(20)])
    parts = split_random_per_user(data, valid=0.45, test=0.5, seed=0)
    # a: round(1.5) = 2 to test; validation would take round(1.35) = 1 and gives way
    assert [user for user, _, _ in events_of(parts.train)].count("a") == 1
    assert parts.valid is not None
    assert [user for user, _, _ in events_of(parts.valid)].count("a") == 0


def test_split_random_per_user_is_uniform_over_items() -> None:
    data = Interactions.of(["a"] * 10, range(10))
    tested = Counter(
        event[1]
        for seed in range(600)
        for event in events_of(split_random_per_user(data, seed=seed).parts["test"])
    )
    # 1,200 draws over 10 items: 120 each, standard deviation sqrt(600 * .2 * .8) = 9.8
    assert all(abs(tested[item] - 120) < 45 for item in range(10))


def test_split_random_counts_and_cold_note() -> None:
    data = Interactions.of([f"u{row}" for row in range(50)], [row % 7 for row in range(50)])
    parts = split_random(data, seed=4)
    assert [len(part) for part in parts.parts.values()] == [35, 5, 10]
    # one event a user: each test user is cold
    assert "10 of 10 test users have no training event" in parts.notes


def test_split_temporal_is_strict_and_ties_go_later() -> None:
    #                      sorted: 1 2 2 2 3 4 4 5 5 6; 2 for test from the end: 5 is its first time
    times = [2, 5, 1, 2, 4, 3, 5, 2, 6, 4]
    data = Interactions.of(["u"] * 10, range(10), timestamps=times)
    parts = split_temporal(data, valid=0.2, test=0.2)
    assert parts.valid is not None
    assert parts.test is not None
    assert sorted(time for *_, time in events_of(parts.test)) == [5, 5, 6]
    assert sorted(time for *_, time in events_of(parts.valid)) == [4, 4]
    assert sorted(time for *_, time in events_of(parts.train)) == [1, 2, 2, 2, 3]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(0, 30)),
        min_size=1,
        max_size=80,
    ),
    st.sampled_from([(0.1, 0.2), (0.0, 0.3), (0.3, 0.3), (0.25, 0.0)]),
)
def test_split_temporal_equals_a_loop(
    rows: list[tuple[int, int, int]], shares: tuple[float, float]
) -> None:
    data = Interactions.of(
        [row[0] for row in rows], [row[1] for row in rows], timestamps=[row[2] for row in rows]
    )
    valid, test = shares
    events = earliest(data)
    in_time = sorted(time for *_, time in events)
    n = len(events)
    n_test = min(int(n * test + 0.5 + 1e-9), n - 1)
    n_valid = min(int(n * valid + 0.5 + 1e-9), n - 1 - n_test)
    test_from = in_time[n - n_test] if n_test else np.inf
    valid_from = in_time[n - n_test - n_valid] if valid and n_test + n_valid else test_from
    expected = {
        "train": {event for event in events if event[2] < valid_from},
        "valid": {event for event in events if valid_from <= event[2] < test_from},
        "test": {event for event in events if event[2] >= test_from},
    }
    for name, share in (("valid", valid), ("test", test)):
        if share == 0:
            del expected[name]
    if all(expected.values()):
        assert as_sets(split_temporal(data, valid=valid, test=test)) == expected
    else:
        with pytest.raises(InputError, match="part is empty"):
            split_temporal(data, valid=valid, test=test)


def naive_leave_last(data: Interactions, k: int, valid_k: int) -> dict[str, set[Event]]:
    histories: dict[Any, list[Event]] = defaultdict(list)
    for event in earliest(data):
        histories[event[0]].append(event)
    parts: dict[str, set[Event]] = {"train": set(), "valid": set(), "test": set()}
    for history in histories.values():
        history.sort(key=lambda event: (event[2], event[1]))
        if len(history) < k + valid_k + 1:
            parts["train"].update(history)
            continue
        cut = len(history) - k
        parts["train"].update(history[: cut - valid_k])
        parts["valid"].update(history[cut - valid_k : cut])
        parts["test"].update(history[cut:])
    return parts


@pytest.mark.parametrize(("k", "valid_k"), [(1, 1), (3, 2), (2, 0), (9, 1)])
def test_split_leave_k_out_by_time_equals_a_loop(k: int, valid_k: int) -> None:
    data = table(n=400)
    expected = naive_leave_last(data, k, valid_k)
    if valid_k == 0:
        del expected["valid"]
    parts = split_leave_k_out(data, k=k, valid_k=valid_k)
    assert as_sets(parts) == expected


def test_split_temporal_per_user_equals_a_loop() -> None:
    data = table(n=400)
    parts = split_temporal(data, per_user=True)
    histories: dict[Any, list[Event]] = defaultdict(list)
    for event in sorted(earliest(data), key=lambda event: (event[2], event[1])):
        histories[event[0]].append(event)
    expected: dict[str, set[Event]] = {"train": set(), "valid": set(), "test": set()}
    for history in histories.values():
        n = len(history)
        test, valid = int(n * 0.2 + 0.5 + 1e-9), int(n * 0.1 + 0.5 + 1e-9)
        expected["test"].update(history[n - test :])
        expected["valid"].update(history[n - test - valid : n - test])
        expected["train"].update(history[: n - test - valid])
    assert as_sets(parts) == expected


def test_split_leave_k_out_at_random_takes_k_of_each_user() -> None:
    data = table()
    parts = split_leave_k_out(data, k=2, valid_k=3, by="random", seed=1)
    sizes = Counter(user for user, _, _ in earliest(data))
    for name, expected in (("test", 2), ("valid", 3)):
        counts = Counter(user for user, _, _ in events_of(parts.parts[name]))
        assert counts == {user: expected for user, size in sizes.items() if size >= 6}


def naive_core(pairs: set[tuple[int, int]], k: int) -> set[tuple[int, int]]:
    while True:
        users, items = Counter(u for u, _ in pairs), Counter(i for _, i in pairs)
        left = {(u, i) for u, i in pairs if users[u] >= k and items[i] >= k}
        if left == pairs:
            return left
        pairs = left


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), min_size=1, max_size=60),
    st.integers(1, 4),
)
def test_k_core_equals_a_loop(pairs: list[tuple[int, int]], k: int) -> None:
    data = Interactions.of([u for u, _ in pairs], [i for _, i in pairs])
    expected = naive_core(set(pairs), k)
    if not expected:
        with pytest.raises(InputError, match="core of these"):
            k_core(data, k)
        return
    core = k_core(data, k)
    assert [event[:2] for event in events_of(core)] == [pair for pair in pairs if pair in expected]
    assert core.n_users == len({u for u, _ in expected})
    assert core.n_items == len({i for _, i in expected})


def test_k_core_of_movielens_is_the_published_one() -> None:
    path = DATA / "ml-1m" / "ratings.dat.gz"
    if not path.exists():
        pytest.skip(f"needs {path.name} of MovieLens-1M below LLPAUC_DATA")
    with gzip.open(path, "rt", encoding="latin-1") as file:
        rows = np.array([line.split("::") for line in file], dtype=np.int64)
    liked = rows[rows[:, 2] >= 4]
    core = k_core(Interactions.of(liked[:, 0], liked[:, 1]), 10)
    assert (len(core), core.n_users, core.n_items) == (571_531, 5_949, 2_810)


def test_canonical_order_without_times_keeps_the_first_row() -> None:
    data = Interactions.of(["b", "a", "b", "b"], ["x", "x", "x", "a"], ratings=[1, 2, 3, 4])
    assert canonical_order(data).tolist() == [1, 3, 0]


def test_split_empty_parts_and_zero_fractions() -> None:
    data = Interactions.of(["a"] * 4, range(4), timestamps=[1, 1, 1, 1])
    with pytest.raises(InputError, match="train part is empty, out of 4 events"):
        split_temporal(data)
    with pytest.raises(InputError, match="test part is empty"):
        split_random_per_user(Interactions.of(["a"], ["x"]), valid=0, test=0.2, seed=0)
    assert list(split_random(data, valid=0, test=0.5, seed=0).parts) == ["train", "test"]
    assert list(split_random(data, valid=0, test=0, seed=0).parts) == ["train"]
    with pytest.raises(InputError, match="no event to split"):
        split_random(data.take(np.zeros(4, dtype=bool)), seed=0)


@pytest.mark.parametrize(
    ("how", "options", "message"),
    [
        ("random", {"valid": -0.1}, r"valid must be a fraction in \[0, 1\), got -0.1"),
        ("random", {"test": 1.0}, r"test must be a fraction in \[0, 1\), got 1.0"),
        ("random", {"test": float("nan")}, "got nan"),
        ("random_per_user", {"valid": 0.5, "test": 0.5}, r"valid \+ test must be below 1"),
        ("temporal", {"k": 1}, "the split 'temporal' has no option 'k'; it takes: valid, test"),
        ("temporal", {}, "the split 'one cut in time.*' needs timestamps and this"),
        ("auto", {"k": 1}, "the split 'auto' has no option 'k'"),
        ("leave_k_out", {}, "the split 'leave 1 out by time' needs timestamps"),
        ("leave_k_out", {"k": 0}, "k must be a whole number of at least 1, got 0"),
        ("leave_k_out", {"by": "size"}, "unknown order \\(by\\) 'size'; choose one of: time"),
        ("by_luck", {}, "unknown split 'by_luck'; choose one of: auto, temporal"),
    ],
)
def test_split_errors_name_bad_options(how: str, options: dict[str, Any], message: str) -> None:
    data = Interactions.of(["a"] * 20, range(20))
    with pytest.raises(InputError, match=message) as caught:
        split(data, how, seed=1, **options)
    assert "\n" not in str(caught.value)


def test_split_errors_name_bad_seeds_and_times() -> None:
    data = Interactions.of(["a"] * 3, range(3), timestamps=[1, np.nan, 2])
    with pytest.raises(InputError, match="finite timestamps, got nan in event 1"):
        split_temporal(data)
    with pytest.raises(InputError, match="seed must be a whole number of at least 0, got -1"):
        split_random(data, seed=-1)
    with pytest.raises(InputError, match="at random' needs a seed"):
        split_leave_k_out(data, by="random")


def in_turn() -> Interactions:
    """One user after another: after a cut in time, most held-out users have no history."""
    return Interactions.of(np.repeat(range(20), 10), [*range(10)] * 20, timestamps=range(200))


@pytest.mark.parametrize(
    ("data", "how", "words"),
    [
        (table(), "temporal", "one cut in time for all users: 10% for validation, 20% for the"),
        (in_turn(), "temporal_per_user", "one cut would leave 100% of the held-out users without"),
        # All events of one day: the part of one cut is empty.
        (
            Interactions.of(np.repeat(range(9), 9), [*range(9)] * 9, timestamps=[1] * 80 + [2]),
            "temporal_per_user",
            "one cut would leave a part empty",
        ),
        (Interactions.of(["a"] * 20, range(20)), "random_per_user", "random per user"),
        (Interactions.of(["a"] * 9, range(9), timestamps=[7] * 9), "random_per_user", "random"),
        (
            Interactions.of(["a"] * 9, range(9), timestamps=[np.inf, *range(8)]),
            "random_per_user",
            "random",
        ),
    ],
)
def test_split_auto_chooses_by_times_and_cold_users(
    data: Interactions, how: str, words: str
) -> None:
    parts = split_auto(data, seed=3)
    assert words in parts.notes[0]
    assert as_sets(parts) == as_sets(split(data, how, seed=3))


def test_split_random_with_timestamps_is_noted_as_optimistic() -> None:
    data = table()
    bare = Interactions(data.users, data.items, data.user_ids, data.item_ids)
    for how, options in EVERY_WAY:
        at_random = how.startswith("random") or options.get("by") == "random"
        assert (OPTIMISTIC in split(data, how, seed=1, **options).notes) == at_random
    assert OPTIMISTIC not in split(bare, "random", seed=1).notes


def test_hold_out_takes_the_last_training_events() -> None:
    whole = split_temporal(table(), valid=0.0, test=0.2)
    held = hold_out(whole, 0.1, seed=0)
    assert held.test is whole.test
    assert held.train.timestamps is not None
    assert held.valid is not None
    assert held.valid.timestamps is not None
    assert held.train.timestamps.max() < held.valid.timestamps.min()
    assert OPTIMISTIC in hold_out(whole, 0.1, seed=0, how="random_per_user").notes
    with pytest.raises(TooFewEvents):
        hold_out(Split(Interactions.of(["a"], ["x"])), 0.1, seed=0)


def test_splits_registry_is_covered_by_these_tests() -> None:
    assert {how for how, _ in EVERY_WAY} == set(SPLITS)
