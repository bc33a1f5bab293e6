"""The look at the data: every figure against plain Python, every oddity made on purpose."""

from __future__ import annotations

import math
import statistics
from collections import Counter

import matplotlib.image
import matplotlib.pyplot as plt
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llpauc.data import plots
from llpauc.data.inspection import inspect, top_count
from llpauc.data.interactions import Interactions, Split
from llpauc.errors import InputError
from llpauc.storage import figure_files
from tests.datasets import random_split


def events_of(users, items, **columns):
    return Interactions.of([f"u{u}" for u in users], [f"i{i}" for i in items], **columns)


def pairs_of(part):
    return list(zip(part.users.tolist(), part.items.tolist(), strict=True))


# --- statistics -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_inspect_whole_equals_plain_counting(seed):
    split = random_split(seed)
    inspected = inspect(split)
    pairs = [pair for part in split.parts.values() for pair in pairs_of(part)]
    of_user, of_item = Counter(u for u, _ in pairs), Counter(i for _, i in pairs)
    per_user = [of_user[u] for u in range(split.n_users)]
    per_item = [of_item[i] for i in range(split.n_items)]
    whole = inspected.whole
    assert (whole["users"], whole["items"]) == (split.n_users, split.n_items)
    assert whole["interactions"] == len(pairs) == 900
    assert whole["sparsity"] == pytest.approx(
        1 - len(set(pairs)) / (split.n_users * split.n_items), abs=1e-15
    )
    assert whole["events per user, median"] == statistics.median(per_user)
    assert whole["events per item, median"] == statistics.median(per_item)
    assert whole["events per user, most"] == max(per_user)
    assert whole["events per item, most"] == max(per_item)
    best = sorted(per_item, reverse=True)
    for percent in (1, 10):
        top = math.ceil(percent * split.n_items / 100)
        assert whole[f"fraction of events on the top {percent}% items"] == sum(best[:top]) / 900
    # The definition of Gini: the mean difference between two items over twice the mean.
    difference = sum(abs(a - b) for a in per_item for b in per_item) / len(per_item) ** 2
    gini = difference / (2 * statistics.mean(per_item))
    assert whole["Gini of the items"] == pytest.approx(gini, abs=1e-12)
    assert inspected.item_events.tolist() == best
    assert inspected.user_events.tolist() == sorted(per_user, reverse=True)


@pytest.mark.parametrize("seed", range(4))
def test_inspect_parts_leaks_and_cold_fractions_equal_plain_sets(seed):
    split = random_split(seed)
    inspected = inspect(split)
    pairs = {name: pairs_of(part) for name, part in split.parts.items()}
    sets = {name: set(p) for name, p in pairs.items()}
    warm = {u for u, _ in pairs["train"]}, {i for _, i in pairs["train"]}
    for name, values in inspected.parts.items():
        present = {u for u, _ in pairs[name]}, {i for _, i in pairs[name]}
        assert values["interactions"] == len(pairs[name])
        assert (values["users"], values["items"]) == (len(present[0]), len(present[1]))
        assert values["duplicates"] == len(pairs[name]) - len(sets[name])
        if name == "train":
            assert not any(key.startswith(("cold", "also")) for key in values)
            continue
        assert values["cold users"] == len(present[0] - warm[0]) / len(present[0])
        assert values["cold items"] == len(present[1] - warm[1]) / len(present[1])
        assert values["also in train"] == len(sets[name] & sets["train"])
    assert inspected.parts["test"]["also in valid"] == len(sets["test"] & sets["valid"])
    assert "also in valid" not in inspected.parts["valid"]
    # What was counted is text: this data has all of it.
    leaks = len(sets["test"] & sets["train"])
    text = "\n".join(inspected.odd)
    assert f"test: {leaks} pairs are in train too" in text
    cold = len({u for u, _ in pairs["test"]} - warm[0])
    assert f"test: {cold} of {inspected.parts['test']['users']} users" in text
    again = inspected.parts["train"]["duplicates"]
    assert f"train: {again} events repeat a user-item pair" in text


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=40))
def test_inspect_fractions_are_between_0_and_1(pairs):
    inspected = inspect(events_of(*zip(*pairs, strict=True)))
    for name in ("sparsity", "Gini of the items", "fraction of events on the top 10% items"):
        assert 0 <= inspected.whole[name] <= 1
    assert inspected.parts["data"]["duplicates"] == len(pairs) - len(set(pairs))


@pytest.mark.parametrize(
    ("n", "percent", "count"),
    [(700, 1, 7), (701, 1, 8), (30, 10, 3), (5, 10, 1), (1, 1, 1), (0, 10, 1), (290, 10, 29)],
)
def test_top_count_uses_integer_arithmetic(n, percent, count):
    assert top_count(n, percent=percent) == count  # 0.01 * 700 is 7.000000000000001


def test_inspect_gini_of_equal_and_of_concentrated_items():
    equal = inspect(events_of([0, 1, 2, 3], [0, 1, 2, 3])).whole
    assert equal["Gini of the items"] == pytest.approx(0, abs=1e-15)
    assert equal["fraction of events on the top 10% items"] == 0.25
    known = events_of(range(10), range(10))  # ten items, and then events on one of them alone
    one = inspect(known.take(np.array([3, 3, 3]))).whole
    assert one["Gini of the items"] == pytest.approx(0.9, abs=1e-15)
    assert one["fraction of events on the top 1% items"] == 1


def test_inspect_describes_ratings_and_times_if_present():
    data = events_of(
        [0, 1, 2], [0, 1, 1], ratings=[1, 2.5, 4], timestamps=[0.0, 1_600_000_000, 1_600_000_060]
    )
    statistics = inspect(data).parts["data"]
    assert (statistics["rating, least"], statistics["rating, most"]) == (1, 4)
    assert statistics["rating, mean"] == 2.5
    assert statistics["first event"] == "0"  # not a date: too early to be one
    assert statistics["last event"] == "2020-09-13 12:27"
    milliseconds = events_of([0, 1], [0, 1], timestamps=[1588687728923, 1588687728924])
    assert inspect(milliseconds).parts["data"]["last event"] == "1588687728924"
    plain = inspect(events_of([0, 1], [0, 1])).parts["data"]
    assert not any("rating" in name or "event" in name for name in plain)


# --- oddities -------------------------------------------------------------------------------------


def test_inspect_of_clean_data_finds_nothing_odd():
    data = events_of([0, 0, 1, 1, 2, 2], [0, 1, 1, 2, 2, 0])
    split = Split(data.take(np.array([0, 2, 4])), test=data.take(np.array([1, 3, 5])))
    assert inspect(data).odd == ()
    assert inspect(split).odd == ()


@pytest.mark.parametrize(
    ("users", "items", "odd"),
    [
        ([0, 0], [0, 1], ["data: only one user"]),
        ([0, 1], [0, 0], ["data: only one item",
                          "data: 2 users have every item; none left to recommend"]),
        ([0], [0], ["data: only one user", "data: only one item"]),
        ([0, 0, 1], [0, 1, 1], ["data: 1 users have every item; none left to recommend"]),
        ([0, 1, 1, 1], [0, 1, 1, 1],
         ["data: 2 events repeat a user-item pair (50.0%); they count once"]),
    ],
)  # fmt: skip
def test_inspect_odd_findings_of_a_table(users, items, odd):
    assert list(inspect(events_of(users, items)).odd) == odd


def test_inspect_odd_findings_between_parts_name_part_and_remedy():
    data = events_of([0, 1, 0, 2, 1, 0], [0, 1, 0, 1, 2, 1])
    split = Split(
        data.take(np.array([0, 1])), data.take(np.array([2])), data.take(np.array([2, 3, 4]))
    )
    assert [o for o in inspect(split).odd if "only one" not in o] == [
        "valid: 1 pairs are in train too; evaluation masks them, so they cannot be recommended",
        "test: 1 pairs are in train too; evaluation masks them, so they cannot be recommended",
        "test: 1 pairs are in valid too; evaluation masks them, so they cannot be recommended",
        "test: 1 of 3 users (33%) have no training event; they get the fallback; compare warm"
        " and cold users separately",
        "test: 1 of 3 items (33%) have no training event; no model trained on train alone can rank"
        " them",
    ]


def test_inspect_accepts_an_empty_part():
    data = events_of([0, 1], [0, 1])
    nothing = data.take(np.array([], dtype=int))
    inspected = inspect(Split(data, nothing, nothing))
    assert inspected.parts["test"]["interactions"] == 0
    assert inspect(Interactions.of([], [])).whole["interactions"] == 0


# --- pictures -------------------------------------------------------------------------------------


@pytest.mark.parametrize("title", ["plain", "no formula: $\\foo$ [/b]", "films 🎈 ø"])
def test_long_tail_is_a_readable_png_for_any_title(tmp_path, title, recwarn):
    path = tmp_path / "deep" / "tail.png"
    assert figure_files.save(plots.long_tail(inspect(random_split(1)), title), path) == path
    pixels = matplotlib.image.imread(path)
    height, width = pixels.shape[:2]
    assert width > height > 400
    assert 0.01 < (pixels[..., :3].min(axis=2) < 0.9).mean() < 0.5  # ink, and paper around it
    assert [file.name for file in path.parent.iterdir()] == ["tail.png"]
    assert not [str(w.message) for w in recwarn if "Glyph" in str(w.message)]


def test_long_tail_shows_the_fraction_of_inspect():
    inspected = inspect(random_split(2))
    figure = plots.long_tail(inspected, "title")
    share = inspected.whole["fraction of events on the top 10% items"]
    assert f"{share:.0%} of events" in figure.axes[0].get_title()
    (line, *_) = figure.axes[0].get_lines()
    assert line.get_ydata().tolist() == [n for n in inspected.item_events.tolist() if n]
    plt.close(figure)


@pytest.mark.parametrize("kind", figure_files.KINDS)
def test_save_writes_every_kind_of_figure(tmp_path, kind):
    figure = plots.compare_models({"a": {"all": {"m": 0.5}}}, ["m"], "one model, one metric")
    path = figure_files.save(figure, tmp_path / f"picture{kind.upper()}")
    starts = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF", ".jpg": b"\xff\xd8",
              ".webp": b"RIFF"}  # fmt: skip
    assert path.read_bytes().startswith(starts[kind])


@pytest.mark.parametrize("name", ["tail.xyz", "tail", "png"])
def test_save_refuses_an_unknown_kind_and_writes_nothing(tmp_path, name):
    figure = plots.compare_models({"a": {"all": {"m": 0.5}}}, ["m"], "title")
    with pytest.raises(InputError, match=r"unknown kind of picture .*; choose one of: \.png"):
        figure_files.save(figure, tmp_path / name)
    assert list(tmp_path.iterdir()) == []
    plt.close(figure)


def test_compare_models_bars_equal_the_given_values():
    results = {
        "popularity": {"all": {"recall@20": 0.3, "ndcg@20": 0.1}},
        "ease": {group: {"recall@20": 0.2, "ndcg@20": 0.4} for group in ("all", "warm", "cold")},
    }
    figure = plots.compare_models(results, ["recall@20", "ndcg@20"], "title")
    assert [axis.get_ylabel() for axis in figure.axes] == ["recall@20", "ndcg@20"]
    heights = [[bar.get_height() for bar in group] for group in figure.axes[1].containers]
    np.testing.assert_array_equal(heights, [[0.1, 0.4], [np.nan, 0.4], [np.nan, 0.4]])
    plt.close(figure)
