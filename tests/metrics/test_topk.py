"""Top-K metrics against written arithmetic and an independent library, and edge cases."""

from __future__ import annotations

import math

import numpy as np
import pytest
import pytrec_eval
from hypothesis import given, settings
from hypothesis import strategies as st

from llpauc.errors import InputError
from llpauc.metrics import (
    TOPK_METRICS,
    average_precision,
    hit_rate,
    mrr,
    ndcg,
    precision,
    recall,
)


def rankings(seed: int, n_users: int, n_items: int) -> list[tuple[list[int], set[int]]]:
    """Random rankings of all items with 1..n_items relevant ones: many users have n+ < K."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(n_users):
        order = rng.permutation(n_items).tolist()
        n_relevant = min(n_items, 1 + int(rng.geometric(0.15)))
        made.append((order, set(rng.choice(n_items, n_relevant, replace=False).tolist())))
    return made


@pytest.mark.parametrize("k", [1, 5, 20, 50])
def test_topk_metrics_agree_with_trec_eval(k: int) -> None:
    made = rankings(seed=k, n_users=1000, n_items=60)
    truth = {str(u): {str(i): 1 for i in relevant} for u, (_, relevant) in enumerate(made)}
    run = {
        # ProcessGroup as unique scores: trec_eval breaks ties by name.
        str(u): {str(item): float(len(order) - rank) for rank, item in enumerate(order)}
        for u, (order, _) in enumerate(made)
    }
    cut = {user: dict(list(scores.items())[:k]) for user, scores in run.items()}
    names = {f"{name}_{k}" for name in ("ndcg_cut", "recall", "map_cut", "P", "success")}
    evaluator = pytrec_eval.RelevanceEvaluator(truth, {f"{n.rsplit('_', 1)[0]}.{k}" for n in names})
    by_user = evaluator.evaluate(run)
    first = pytrec_eval.RelevanceEvaluator(truth, {"recip_rank"}).evaluate(cut)
    hits = np.array([[item in relevant for item in order[:k]] for order, relevant in made])
    n_relevant = np.array([len(relevant) for _, relevant in made])
    for metric, name in (
        (ndcg, "ndcg_cut"),
        (recall, "recall"),
        (average_precision, "map_cut"),
        (precision, "P"),
        (hit_rate, "success"),
    ):
        expected = [by_user[str(u)][f"{name}_{k}"] for u in range(len(made))]
        np.testing.assert_allclose(metric(hits, n_relevant, k), expected, rtol=0, atol=1e-9)
    expected = [first[str(u)]["recip_rank"] for u in range(len(made))]
    np.testing.assert_allclose(mrr(hits, n_relevant, k), expected, rtol=0, atol=1e-9)


def test_topk_metrics_equal_written_arithmetic() -> None:
    hits, n_relevant = [[0, 1, 1, 0, 1]], [4]
    best = 1 / math.log2(2) + 1 / math.log2(3) + 1 / math.log2(4) + 1 / math.log2(5)
    gain = 1 / math.log2(3) + 1 / math.log2(4) + 1 / math.log2(6)
    written = {
        "recall": 3 / 4,
        "precision": 3 / 5,
        "ndcg": gain / best,
        "hit": 1.0,
        "mrr": 1 / 2,
        "map": (1 / 2 + 2 / 3 + 3 / 5) / 4,
    }
    assert written.keys() == TOPK_METRICS.keys()
    for name, value in written.items():
        assert TOPK_METRICS[name](hits, n_relevant, 5)[0] == pytest.approx(value, abs=1e-15)


def test_average_precision_has_two_denominators() -> None:
    hits, n_relevant = [[1, 1]], [10]
    assert average_precision(hits, n_relevant, 2)[0] == pytest.approx(2 / 10)
    assert average_precision(hits, n_relevant, 2, denominator="reachable")[0] == 1.0
    with pytest.raises(InputError, match="unknown denominator 'k'; choose one of: relevant, reach"):
        average_precision(hits, n_relevant, 2, denominator="k")  # type: ignore[arg-type]


users = st.lists(st.lists(st.booleans(), min_size=7, max_size=7), min_size=1, max_size=6)


@given(hits=users, more=st.integers(0, 5), k=st.integers(1, 12))
@settings(max_examples=150, deadline=None)
def test_topk_metrics_properties(hits: list[list[bool]], more: int, k: int) -> None:
    matrix = np.array(hits)
    n_relevant = matrix.sum(axis=1) + more
    for metric in TOPK_METRICS.values():
        values = metric(matrix, n_relevant, k)
        assert values.dtype == np.float64
        assert values.shape == (len(matrix),)
        np.testing.assert_array_equal(np.isnan(values), n_relevant == 0)
        known = values[n_relevant > 0]
        assert np.all((known >= 0) & (known <= 1))
        # The same bits alone, as floats, in Fortran order, and with the processes behind k cut or
        # not.
        for u in range(len(matrix)):
            np.testing.assert_array_equal(
                metric(matrix[u : u + 1], n_relevant[[u]], k), values[[u]]
            )
        np.testing.assert_array_equal(
            metric(np.asfortranarray(matrix.astype(float)), n_relevant, k), values
        )
        np.testing.assert_array_equal(metric(matrix[:, :k], n_relevant, k), values)
        # ProcessGroup that are missing are misses.
        padded = np.pad(matrix, ((0, 0), (0, 9)))
        np.testing.assert_array_equal(metric(padded, n_relevant, k), values)


@given(n_relevant=st.integers(1, 300), k=st.integers(1, 200))
@settings(max_examples=80, deadline=None)
def test_ndcg_of_a_perfect_list_is_exactly_1(n_relevant: int, k: int) -> None:
    hits = [[True] * min(n_relevant, k) + [False] * max(0, k - n_relevant)]
    assert ndcg(hits, [n_relevant], k)[0] == 1.0
    assert mrr(hits, [n_relevant], k)[0] == 1.0
    assert average_precision(hits, [n_relevant], k, denominator="reachable")[0] == 1.0


@given(hits=st.lists(st.booleans(), min_size=2, max_size=9), at=st.integers(0, 7))
@settings(max_examples=100, deadline=None)
def test_topk_metrics_never_fall_when_a_hit_moves_up(hits: list[bool], at: int) -> None:
    at %= len(hits) - 1
    if not (hits[at + 1] and not hits[at]):
        return
    better = list(hits)
    better[at], better[at + 1] = True, False
    for metric in TOPK_METRICS.values():
        for k in (1, at + 1, len(hits)):
            assert metric([better], [9], k)[0] >= metric([hits], [9], k)[0]


def test_topk_metrics_without_users_or_ranks() -> None:
    for metric in TOPK_METRICS.values():
        assert metric(np.zeros((0, 5)), np.zeros(0, int), 3).shape == (0,)
        assert metric(np.zeros((2, 0)), [1, 0], 3).tolist()[0] == 0.0
        assert math.isnan(metric(np.zeros((2, 0)), [1, 0], 3)[1])


@pytest.mark.parametrize(
    ("hits", "n_relevant", "k", "message"),
    [
        ([[1]], [1], 0, "k must be a whole number of at least 1, got 0"),
        ([1, 0], [1], 1, "two dimensions"),
        ([[1], [0]], [1], 1, "n_relevant must have one entry for each of 2 users"),
        ([[1], [0]], [1, -1], 1, "at least 0, got -1 for user 1"),
        ([[1]], [1.5], 1, "got 1.5 for user 0"),
        ([[0], [2]], [1, 3], 1, "user 1 has another value"),
        ([[float("nan")]], [1], 1, "user 0 has another value"),
        ([[1, 1]], [1], 2, "user 0 has 2 hits but n_relevant 1"),
    ],
)
def test_topk_metrics_bad_input_raises(
    hits: object, n_relevant: object, k: int, message: str
) -> None:
    for metric in TOPK_METRICS.values():
        with pytest.raises(InputError, match=message):
            metric(hits, n_relevant, k)  # type: ignore[arg-type]
