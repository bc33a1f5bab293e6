"""Time: ages and weights against plain loops, the choice of a half-life, the test unseen."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llpauc.cli import main
from llpauc.data.inspection import inspect
from llpauc.data.interactions import Interactions, Split, before, join
from llpauc.data.readers import load, read_split
from llpauc.data.recency import (
    age_weights,
    choose_recency,
    clearly_better,
    event_ages,
    one_list_values,
    recent_counts,
)
from llpauc.data.splits import split_temporal
from llpauc.data.writers import write_split
from llpauc.errors import InputError
from llpauc.evaluation.full_ranking import MASKS, evaluate
from llpauc.evaluation.scorer import Constant
from llpauc.models import FitData, RecentPopularity
from llpauc.models.registry import untrained_models
from llpauc.recommend import Recommender
from llpauc.recommend.recipes import recipe
from tests.datasets import random_split, real, scorer_of


def recent_scorer(events, half_life=None, by=None) -> Constant:
    """Recent popularity of a table, or of the parts before the test."""
    parts = [events] if isinstance(events, Interactions) else list(events)
    data = FitData(Split(*parts), parts)
    return RecentPopularity.scorer_of(data, half_life=half_life, by=by)


EVENTS = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 5), st.integers(0, 50)), min_size=1, max_size=40
)


def table(events) -> Interactions:
    users, items, times = zip(*events, strict=True)
    return Interactions.of(users, items, timestamps=times)


def without_times(part: Interactions) -> Interactions:
    return replace(part, timestamps=None)


def order_of(scores) -> list[int]:
    return sorted(range(len(scores)), key=lambda item: (-scores[item], item))


def world(*, moving: bool, seed: int = 0, n_users: int = 400, news: int = 60) -> Split:
    """Users come one after the other. With drift, every user reads the news of the day."""
    rng = np.random.default_rng(seed)
    times = np.sort(rng.random(4000))
    users = (times * 0.8 * n_users).astype(int) + rng.integers(0, n_users // 5, len(times))
    items = (15 * rng.random(len(times)) ** 2).astype(int)
    if moving:
        items += (times * news).astype(int)
    data = Interactions.of(users, items, timestamps=times * 1e6)
    return split_temporal(data, valid=0.1, test=0.1)


MOVING, STILL = world(moving=True), world(moving=False)


def shuffled(part: Interactions, seed: int = 0) -> Interactions:
    return without_times(part.take(np.random.default_rng(seed).permutation(len(part))))


# --- ages and weights -----------------------------------------------------------------------------


@settings(max_examples=80, deadline=None)
@given(EVENTS, st.floats(0.5, 100))
def test_age_weights_equal_a_plain_loop(events, half_life):
    data = table(events)
    last = max(time for _, _, time in events)
    by_time = [0.5 ** ((last - time) / half_life) for _, _, time in events]
    np.testing.assert_allclose(age_weights(data, half_life), by_time, rtol=1e-12)
    by_row = [0.5 ** ((len(events) - 1 - row) / half_life) for row in range(len(events))]
    np.testing.assert_allclose(age_weights(without_times(data), half_life), by_row, rtol=1e-12)
    np.testing.assert_array_equal(
        age_weights(data, half_life, "rows"), age_weights(without_times(data), half_life)
    )


@settings(max_examples=80, deadline=None)
@given(EVENTS, st.floats(0.5, 100))
def test_recent_counts_equal_a_plain_loop_over_distinct_users(events, half_life):
    data = table(events)
    latest: dict[tuple[int, int], float] = {}
    for user, item, time in zip(data.users, data.items, data.timestamps, strict=True):
        latest[user, item] = max(time, latest.get((user, item), -math.inf))
    counts = np.zeros(data.n_items)
    for (_, item), time in latest.items():
        counts[item] += 0.5 ** ((data.timestamps.max() - time) / half_life)
    np.testing.assert_allclose(recent_counts(data, half_life), counts, rtol=1e-6)
    np.testing.assert_array_equal(
        recent_scorer(data, half_life).scores, recent_counts(data, half_life)
    )


@settings(max_examples=60, deadline=None)
@given(EVENTS, st.sampled_from(["time", "rows", "parts"]))
def test_recent_counts_with_infinite_half_life_are_popularity(events, by):
    data = table(events)
    np.testing.assert_array_equal(
        recent_scorer(data, math.inf, by).scores, scorer_of("popularity", data).scores
    )
    np.testing.assert_allclose(
        recent_scorer(data, 1e12, by).scores, scorer_of("popularity", data).scores, rtol=1e-6
    )


@settings(max_examples=60, deadline=None)
@given(EVENTS, st.floats(0.5, 100), st.sampled_from([1e-3, 60.0, 2.0**20]), st.integers(0, 10**9))
def test_age_weights_do_not_depend_on_unit_and_origin_of_time(events, half_life, scale, origin):
    data = table(events)
    moved = replace(data, timestamps=data.timestamps + origin)
    np.testing.assert_array_equal(age_weights(moved, half_life), age_weights(data, half_life))
    scaled = replace(data, timestamps=data.timestamps * scale)
    np.testing.assert_allclose(
        age_weights(scaled, half_life * scale), age_weights(data, half_life), rtol=1e-9
    )


@settings(max_examples=60, deadline=None)
@given(EVENTS, st.randoms(use_true_random=False))
def test_age_weights_of_equal_times_are_equal_in_any_order(events, random):
    data = table(events)
    order = list(range(len(events)))
    random.shuffle(order)
    weights = age_weights(data, 7.0)
    np.testing.assert_array_equal(age_weights(data.take(np.array(order)), 7.0), weights[order])
    for one, other in itertools.pairwise(events):
        if one[2] == other[2]:
            assert weights[events.index(one)] == weights[events.index(other)]


def test_event_ages_of_consecutive_parts():
    train, valid = without_times(MOVING.train), without_times(MOVING.valid)
    n, m = len(train), len(valid)
    assert event_ages([train, valid], "rows").tolist() == list(range(n + m - 1, -1, -1))
    assert event_ages([train, valid], "parts").tolist() == [1.0] * n + [0.0] * m
    joined = join([train, valid])
    assert joined.items.tolist() == train.items.tolist() + valid.items.tolist()
    assert joined.timestamps is None
    # With a half-life of a twentieth of a part, older parts only break ties.
    nearly = recent_counts([train, valid], 0.05, "parts")
    only, old = scorer_of("popularity", valid).scores, scorer_of("popularity", train).scores
    assert order_of(nearly) == sorted(range(len(only)), key=lambda i: (-only[i], -old[i], i))


def test_age_weights_with_a_missing_time_use_row_order():
    data = table([(0, 0, 5), (1, 1, 3), (2, 0, 4)])
    broken = replace(data, timestamps=np.array([5.0, np.nan, 4.0]))
    assert age_weights(broken, 1.0).tolist() == [0.25, 0.5, 1.0]
    with pytest.raises(InputError, match="age by time needs finite timestamps, got nan in event 1"):
        age_weights(broken, 1.0, "time")


@pytest.mark.parametrize("half_life", [0.0, -1.0, float("nan")])
def test_age_weights_refuses_a_half_life_of_zero_or_less(half_life):
    with pytest.raises(InputError, match="half_life must be above 0"):
        age_weights(MOVING.train, half_life)
    with pytest.raises(InputError, match="half_life must be above 0"):
        recent_scorer(MOVING.train, half_life)


def test_event_ages_error_lists_the_known_ways():
    with pytest.raises(InputError, match="choose one of: time, rows, parts"):
        age_weights(MOVING.train, 1.0, "days")


# --- one list for all -----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("mask", MASKS)
def test_one_list_values_equal_full_ranking(seed, mask):
    split = random_split(seed)
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, 8, split.n_items).astype(np.float32)  # ties everywhere
    metrics = ["ndcg@20", "recall@3", "map@500"]
    full = evaluate(Constant(scores), split, metrics=metrics, mask=mask)
    for metric in metrics:
        got = one_list_values(scores, split.test.matrix, MASKS[mask].matrix(split, "test"), metric)
        np.testing.assert_array_equal(got, full.values[metric])


def test_one_list_values_needs_a_top_k_metric():
    with pytest.raises(InputError, match="expected a top-K metric such as ndcg@20"):
        one_list_values(np.zeros(3, np.float32), None, None, "auc")


# --- choosing -------------------------------------------------------------------------------------


def test_choose_recency_is_the_best_of_its_grid_by_full_ranking():
    chosen = choose_recency(before(MOVING, "test"))
    found = {
        half_life: evaluate(
            recent_scorer(MOVING.train, half_life), MOVING, on="valid", metrics=["ndcg@20"]
        ).mean("ndcg@20")
        for half_life in chosen.values
    }
    assert math.inf in found
    assert len(found) == 11
    assert chosen.values == pytest.approx(found, abs=1e-12)
    assert chosen.half_life == max(found, key=found.get)
    span = MOVING.train.timestamps.max() - MOVING.train.timestamps.min()
    assert chosen.half_life in [span / 2**k for k in range(1, 11)]
    assert chosen.by == "time"


def test_choose_recency_with_drift_is_better_on_the_test_part():
    recent = evaluate(recent_scorer(before(MOVING, "test")), MOVING).mean("ndcg@20")
    always = evaluate(scorer_of("popularity", join(before(MOVING, "test"))), MOVING).mean("ndcg@20")
    assert recent > 2 * always


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("way", ["time", "rows", "shuffled"])
def test_choose_recency_without_drift_is_infinite(seed, way):
    change = {"time": lambda part: part, "rows": without_times, "shuffled": shuffled}[way]
    split = world(moving=False, seed=seed)
    parts = [change(part) for part in before(split, "test")]
    assert not choose_recency(parts).has_drift
    assert not choose_recency(parts[:1]).has_drift
    np.testing.assert_array_equal(
        recent_scorer(parts).scores, scorer_of("popularity", join(parts)).scores
    )


def test_choose_recency_without_times_uses_row_order():
    chosen = choose_recency([without_times(part) for part in before(MOVING, "test")])
    assert (chosen.by, chosen.has_drift) == ("rows", True)
    assert "events" in str(chosen)


def test_choose_recency_without_row_order_uses_parts():
    parts = [shuffled(part) for part in before(MOVING, "test")]
    chosen = choose_recency(parts)
    assert (chosen.by, chosen.has_drift) == ("parts", True)
    assert "half" in chosen.on
    only = evaluate(scorer_of("popularity", parts[1]), MOVING).mean("ndcg@20")
    assert evaluate(recent_scorer(parts), MOVING).mean("ndcg@20") >= 0.95 * only
    assert not choose_recency(parts[:1]).has_drift  # one part without an order has no drift
    np.testing.assert_array_equal(
        recent_scorer(parts[0], chosen.half_life, chosen.by).scores,
        scorer_of("popularity", parts[0]).scores,
    )


def test_choose_recency_by_parts_gives_no_event_weights():
    train, valid = (shuffled(part) for part in before(MOVING, "test"))
    assert choose_recency([train, valid]).by == "parts"
    assert recipe("moving", train, valid)["half_life"] is None


def test_choose_recency_by_parts_predicts_each_half_from_the_other():
    train, valid = (shuffled(part) for part in before(MOVING, "test"))
    chosen = choose_recency([train, valid])
    users = sorted(set(valid.users.tolist()))
    folds = [set(users[::2]), set(users[1::2])]
    for half_life, figure in chosen.values.items():
        values = []
        for predicted in folds:
            inside = np.array([user in predicted for user in valid.users])
            scores = 0.5 ** (1 / half_life) * train.matrix.toarray()  # of users x items
            scores = np.maximum(scores, valid.take(~inside).matrix.toarray()).sum(axis=0)
            halved = Split(train, valid.take(inside))
            one = evaluate(Constant(scores), halved, on="valid", metrics=["ndcg@20"])
            values += one.values["ndcg@20"].tolist()
        assert len(values) == len(users)
        assert figure == pytest.approx(np.mean(values), abs=1e-9)


def test_choose_recency_users_with_one_event_are_not_grouped_by_user():
    """Each is in one block, in any order."""
    train = without_times(MOVING.train)
    data = Interactions.of(range(len(train)), train.items)
    assert choose_recency([data]).has_drift


def test_choose_recency_rejects_drift_by_chance():
    """Nothing of train is left in valid but by a hair: a short half-life picks it by chance."""
    parts = [shuffled(part) for part in before(world(moving=True, news=185), "test")]
    assert choose_recency(parts).by == "parts"


@pytest.mark.parametrize("column", ["users", "items"])
def test_choose_recency_ignores_row_order_of_tables_grouped_by_id(column):
    part = without_times(MOVING.train)
    assert choose_recency([part]).has_drift
    grouped = part.take(np.argsort(getattr(part, column), kind="stable"))
    chosen = choose_recency([grouped])
    assert not chosen.has_drift
    assert chosen.values == {}


@pytest.mark.parametrize("times", [None, [1.0], [7.0] * 3])
def test_choose_recency_with_too_few_events_is_infinite(times):
    n = 1 if times is None else len(times)
    data = Interactions.of(range(n), range(n), timestamps=times)
    assert not choose_recency([data]).has_drift
    nothing = data.take(np.array([], dtype=int))
    assert not choose_recency([nothing]).has_drift
    assert choose_recency([data, nothing]) == choose_recency([data])
    assert recent_scorer(nothing).scores.tolist() == [0.0] * n


def test_before_returns_the_parts_before_the_tested_one():
    assert before(MOVING, "test") == [MOVING.train, MOVING.valid]
    assert before(MOVING, "test", "train") == [MOVING.train]
    assert before(MOVING, "valid") == [MOVING.train]
    assert before(Split(MOVING.train, None, MOVING.test), "test") == [MOVING.train]
    with pytest.raises(InputError, match="unknown history 'some'; choose one of: train, all"):
        before(MOVING, "test", "some")


def test_clearly_better_needs_errors_gain_and_users():
    rng = np.random.default_rng(0)
    old = rng.random(400)
    assert clearly_better(old * 1.06, old)
    assert not clearly_better(old * 1.04, old)  # sure, but small
    assert not clearly_better(old * 1.06, old, gain=0.5)
    noisy = old + rng.normal(0.05, 2.0, 400)
    assert not clearly_better(noisy, old)  # large, but not sure
    assert not clearly_better(old[:29] + 1, old[:29])
    assert clearly_better(old[:30] + 1, old[:30])
    assert not clearly_better(old, old + 1)
    unknown = np.where(np.arange(400) < 380, np.nan, 1.0)
    assert not clearly_better(unknown, old)


# --- at the command line --------------------------------------------------------------------------


@pytest.fixture
def run(capsys):
    def call(*words):
        code = main([str(word) for word in words])
        predicted = capsys.readouterr()
        assert code == 0, predicted.err
        return predicted

    return call


def test_main_evaluate_does_not_use_the_test_part_for_recency(run, tmp_path):
    """Another test part: other figures, the same half-life and the same fitted scores."""
    rng = np.random.default_rng(1)
    reversed_items = (MOVING.n_items - 1 - MOVING.test.items).astype(np.int32)
    other = replace(MOVING.test, users=rng.permutation(MOVING.test.users), items=reversed_items)
    predicted = []
    for name, test in (("a", MOVING.test), ("b", other)):
        write_split(Split(MOVING.train, MOVING.valid, test), tmp_path / name)
        options = (tmp_path / name, "--models", "recent_popularity", "--history", "all", "--json")
        predicted.append(json.loads(run("evaluate", *options).out))
    one, two = predicted
    assert one["recent"] == two["recent"]
    assert math.isfinite(one["recent"]["half_life"])
    assert one["results"] != two["results"]
    looked = [inspect(Split(MOVING.train, MOVING.valid, test)) for test in (MOVING.test, other)]
    drift = [{k: v for k, v in look.whole.items() if "popularity" in k} for look in looked]
    assert drift[0] == drift[1]
    assert len(drift[0]) == 2


def test_main_evaluate_on_valid_does_not_choose_on_valid(run, tmp_path):
    write_split(MOVING, tmp_path / "data")
    predicted = json.loads(run("evaluate", tmp_path / "data", "--on", "valid", "--json").out)
    again = load(tmp_path / "data")
    inside = choose_recency([again.train])
    assert predicted["recent"]["half_life"] == inside.half_life
    assert predicted["recent"]["half_life"] != choose_recency(before(again, "test")).half_life


def test_main_evaluate_history_decides_the_training_events(run, tmp_path):
    write_split(MOVING, tmp_path / "data")
    split = read_split(tmp_path / "data")
    for history in ("train", "all"):
        predicted = run("evaluate", tmp_path / "data", "--history", history, "--json")
        results = json.loads(predicted.out)["results"]
        assert set(results) == set(untrained_models())
        known = join(before(split, "test", history))
        for name in ("popularity", "itemknn", "ease"):
            parameters = {"itemknn": {"neighbours": 100, "shrinkage": 10.0}}.get(name, {})
            if name == "ease":  # it has chosen its regularization on the validation part
                chosen = Recommender("ease").fit(split).fitted_params["regularization"]
                parameters = {"regularization": chosen}
            values = evaluate(scorer_of(name, known, **parameters), split).mean("ndcg@20")
            assert results[name]["all"]["ndcg@20"] == pytest.approx(values, abs=1e-12)


def test_main_evaluate_accepts_a_half_life(run, tmp_path):
    write_split(MOVING, tmp_path / "data")
    predicted = run(
        "evaluate",
        tmp_path / "data",
        "--models",
        "recent_popularity",
        "--half-life",
        "5e4",
        "--json",
    )
    result = json.loads(predicted.out)
    assert result["recent"] == {
        "half_life": 5e4,
        "by": "time",
        "chosen on": "nothing: it was given",
    }
    split = read_split(tmp_path / "data")
    values = evaluate(recent_scorer(split.train, 5e4), split).mean("ndcg@20")
    assert result["results"]["recent_popularity"]["all"]["ndcg@20"] == pytest.approx(
        values, abs=1e-12
    )


@pytest.mark.parametrize("name", ["recent_popularity", "ease"])
def test_main_evaluate_accepts_a_run_named_like_a_model(run, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    write_split(MOVING, "data")
    Recommender(model="popularity").fit(read_split("data").train).save(name)
    predicted = run("evaluate", "data", "--models", "popularity", "--runs", name, "--json")
    results = json.loads(predicted.out)["results"]
    assert results[name]["all"] == results["popularity"]["all"]


def test_main_evaluate_warns_if_recent_popularity_beats_a_model(run, tmp_path):
    write_split(MOVING, tmp_path / "moving")
    write_split(STILL, tmp_path / "still")
    predicted = run("evaluate", tmp_path / "moving", "--models", "popularity", "--json")
    (warning,) = json.loads(predicted.out)["warnings"]
    assert warning in predicted.err
    recent = run("evaluate", tmp_path / "moving", "--models", "recent_popularity", "--json")
    figure = json.loads(recent.out)["results"]["recent_popularity"]["all"]["ndcg@20"]
    assert json.loads(recent.out)["warnings"] == []
    assert f"beats popularity: ndcg@20 {figure:.4f} against" in warning
    assert "--history all" in warning
    allowed = run("evaluate", tmp_path / "moving", "--history", "all", "--json")
    (warning,) = json.loads(allowed.out)["warnings"]
    assert "--history all" not in warning
    assert "beats" not in run("evaluate", tmp_path / "still").err
    areas = run("evaluate", tmp_path / "moving", "--models", "popularity", "--metrics", "auc")
    assert "beats" not in areas.err


@pytest.mark.parametrize("times", [True, False])
def test_inspect_reports_drift(times):
    parts = MOVING.parts if times else {k: without_times(p) for k, p in MOVING.parts.items()}
    looked = inspect(Split(**parts))
    assert "popularity changes over time" in looked.odd[-1]
    assert "llpauc evaluate --history all" in looked.odd[-1]
    chosen = choose_recency([parts["train"], parts["valid"]])
    assert looked.whole["popularity, ndcg@20"] == chosen.values[math.inf]
    assert looked.whole["recent popularity, ndcg@20"] == chosen.values[chosen.half_life]
    alone = inspect(parts["train"])
    assert "split it by time (--how temporal)" in alone.odd[-1]
    assert not any("popularity changes" in odd for odd in inspect(STILL).odd)


# --- real data ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "history", "recall", "ndcg"),
    [
        ("adressa_clean", "train", 0.5753, 0.3357),
        ("adressa_clean", "all", 0.7060, 0.4113),
        ("adressa_noise", "train", 0.5643, 0.2907),
        ("adressa_noise", "all", 0.7779, 0.4302),
    ],
)
def test_choose_recency_on_adressa(data, history, recall, ndcg):
    split = read_split(real(data))
    chosen = choose_recency(before(split, "test"))
    got = evaluate(
        recent_scorer(before(split, "test", history), chosen.half_life, chosen.by), split
    )
    assert (round(got.mean("recall@20"), 4), round(got.mean("ndcg@20"), 4)) == (recall, ndcg)


def test_choose_recency_on_shuffled_adressa_uses_parts():
    split = read_split(real("adressa_clean"))
    parts = [shuffled(part) for part in before(split, "test")]
    chosen = choose_recency(parts)
    assert chosen.by == "parts"
    got = evaluate(recent_scorer(parts, chosen.half_life, chosen.by), split)
    assert got.mean("recall@20") > 0.70
    assert got.mean("ndcg@20") > 0.40


@pytest.mark.parametrize("data", ["ml-1m_clean", "ml-1m_noisy", "amazon-health", "gowalla"])
def test_choose_recency_on_data_grouped_by_user_is_infinite(data):
    assert not choose_recency(before(read_split(real(data)), "test")).has_drift
