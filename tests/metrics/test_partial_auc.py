"""Partial AUCs against brute force, the ROC curve itself, and scikit-learn."""

from __future__ import annotations

import math
from fractions import Fraction

import numba
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn.metrics import roc_auc_score

from llpauc.errors import InputError
from llpauc.metrics import (
    PairCounts,
    auc_score,
    count_above_row,
    llpauc_score,
    negatives_above,
    opauc_score,
    partial_auc_from_counts,
    selected_count,
)

Labels = list[int]
Scores = list[float]


def brute_force(y: Labels, s: Scores, k_pos: int, k_neg: int, tie: Fraction) -> Fraction:
    """The definition, pair by pair."""
    positives = sorted((v for v, label in zip(s, y, strict=True) if label), reverse=True)
    negatives = sorted((v for v, label in zip(s, y, strict=True) if not label), reverse=True)
    won = Fraction(0)
    for i in positives[:k_pos]:
        for j in negatives[:k_neg]:
            won += 1 if i > j else tie if i == j else 0
    return won / (len(positives) * len(negatives))


# Few distinct scores: ties everywhere, among positives, among negatives and between them.
lists = st.lists(
    st.tuples(st.integers(0, 1), st.sampled_from([-1.5, 0.0, 0.25, 0.5, 3.0, 1e30, -math.inf])),
    min_size=2,
    max_size=14,
)
fraction = st.one_of(st.floats(0.01, 1.0), st.sampled_from([0.1, 0.3, 0.5, 0.7, 1.0]))


def two_columns(pairs: list[tuple[int, float]]) -> tuple[Labels, Scores]:
    y, s = [p[0] for p in pairs], [p[1] for p in pairs]
    assume(0 < sum(y) < len(y))
    return y, s


def ceil_fraction(value: float, n: int) -> int:
    return max(1, math.ceil(Fraction(value).limit_denominator(10**9) * n))


@given(pairs=lists, alpha=fraction, beta=fraction)
@settings(max_examples=300, deadline=None)
def test_llpauc_score_equals_its_definition(
    pairs: list[tuple[int, float]], alpha: float, beta: float
) -> None:
    y, s = two_columns(pairs)
    n_pos, n_neg = sum(y), len(y) - sum(y)
    k_pos, k_neg = ceil_fraction(alpha, n_pos), ceil_fraction(beta, n_neg)
    for ties, tie in (("strict", Fraction(0)), ("half", Fraction(1, 2))):
        expected = brute_force(y, s, k_pos, k_neg, tie)
        for dtype in (np.float32, np.float64):
            got = llpauc_score(y, np.array(s, dtype), alpha=alpha, beta=beta, ties=ties)
            assert got == float(expected)
        most = Fraction(k_pos * k_neg, n_pos * n_neg)
        got = llpauc_score(y, s, alpha=alpha, beta=beta, ties=ties, normalize=True)
        assert got == float(expected / most)
        assert 0 <= got <= 1


@given(pairs=lists, beta=fraction)
@settings(max_examples=100, deadline=None)
def test_opauc_score_and_auc_score_equal_their_definitions(
    pairs: list[tuple[int, float]], beta: float
) -> None:
    y, s = two_columns(pairs)
    n_pos, n_neg = sum(y), len(y) - sum(y)
    for ties, tie in (("strict", Fraction(0)), ("half", Fraction(1, 2))):
        expected = brute_force(y, s, n_pos, ceil_fraction(beta, n_neg), tie)
        assert opauc_score(y, s, beta=beta, ties=ties) == float(expected)
        assert opauc_score(y, s, beta=beta, ties=ties) == llpauc_score(
            y, s, alpha=1.0, beta=beta, ties=ties
        )
        expected = brute_force(y, s, n_pos, n_neg, tie)
        assert auc_score(y, s, ties=ties) == float(expected)
        assert auc_score(y, s, ties=ties) == llpauc_score(y, s, alpha=1, beta=1, ties=ties)


@given(pairs=lists, alpha=fraction, beta=fraction)
@settings(max_examples=100, deadline=None)
def test_llpauc_score_is_the_area_under_the_clipped_roc_curve(
    pairs: list[tuple[int, float]], alpha: float, beta: float
) -> None:
    """Summed over negatives: a step of width 1/n- at the height min(TPR, k+/n+)."""
    y, s = two_columns(pairs)
    n_pos, n_neg = sum(y), len(y) - sum(y)
    k_pos, k_neg = ceil_fraction(alpha, n_pos), ceil_fraction(beta, n_neg)
    positives = [v for v, label in zip(s, y, strict=True) if label]
    negatives = sorted((v for v, label in zip(s, y, strict=True) if not label), reverse=True)
    area = sum(
        Fraction(1, n_neg) * Fraction(min(k_pos, sum(v > j for v in positives)), n_pos)
        for j in negatives[:k_neg]
    )
    assert llpauc_score(y, s, alpha=alpha, beta=beta) == float(area)


@given(pairs=lists, alpha=fraction, beta=fraction)
@settings(max_examples=100, deadline=None)
def test_llpauc_score_depends_only_on_the_order_of_scores(
    pairs: list[tuple[int, float]], alpha: float, beta: float
) -> None:
    y, s = two_columns(pairs)
    places = {value: place for place, value in enumerate(sorted(set(s)))}
    for transform in (lambda v: 7.0 * places[v] - 3, lambda v: math.exp(places[v])):
        for ties in ("strict", "half"):
            assert llpauc_score(
                y, [transform(v) for v in s], alpha=alpha, beta=beta, ties=ties
            ) == llpauc_score(y, s, alpha=alpha, beta=beta, ties=ties)
    # Nor does the order of the items.
    turned = llpauc_score(y[::-1], s[::-1], alpha=alpha, beta=beta)
    assert turned == llpauc_score(y, s, alpha=alpha, beta=beta)


@given(pairs=lists, at=st.integers(0, 13), fractions=st.lists(fraction, min_size=4, max_size=4))
@settings(max_examples=150, deadline=None)
def test_llpauc_score_is_monotone_in_alpha_and_beta(
    pairs: list[tuple[int, float]], at: int, fractions: list[float]
) -> None:
    y, s = two_columns(pairs)
    small, large = sorted(fractions[:2]), sorted(fractions[2:])
    for ties in ("strict", "half"):
        values = [
            llpauc_score(y, s, alpha=a, beta=b, ties=ties)
            for a, b in ((small[0], large[0]), (small[1], large[0]), (small[1], large[1]))
        ]
        assert values == sorted(values)  # a larger corner of the ROC space holds more area
        # A positive raised, or a negative lowered, never lowers it.
        better = list(s)
        better[at % len(s)] += 1.0 if y[at % len(s)] else -1.0
        assert llpauc_score(y, better, alpha=small[0], beta=large[0], ties=ties) >= values[0]
    strict, half = (auc_score(y, s, ties=ties) for ties in ("strict", "half"))
    assert strict <= half


@given(pairs=lists)
@settings(max_examples=150, deadline=None)
def test_auc_score_equals_scikit_learn(pairs: list[tuple[int, float]]) -> None:
    y, s = two_columns([(label, max(value, -1e30)) for label, value in pairs])
    assert auc_score(y, s, ties="half") == pytest.approx(roc_auc_score(y, s), abs=1e-12)


@given(seed=st.integers(0, 10**6), n_pos=st.integers(1, 20), n_neg=st.integers(2, 30))
@settings(max_examples=60, deadline=None)
def test_opauc_score_equals_scikit_learn_before_mcclish_correction(
    seed: int, n_pos: int, n_neg: int
) -> None:
    """scikit-learn gives (1 + (area - b^2/2) / (b - b^2/2)) / 2 with b = max_fpr."""
    rng = np.random.default_rng(seed)
    s = rng.permutation(n_pos + n_neg).astype(float)
    y = rng.permutation([1] * n_pos + [0] * n_neg)
    b = int(rng.integers(1, n_neg)) / n_neg
    standard = roc_auc_score(y, s, max_fpr=b)
    area = (2 * standard - 1) * (b - b * b / 2) + b * b / 2
    assert opauc_score(y, s, beta=b) == pytest.approx(area, abs=1e-12)


def random_users(
    seed: int, n_users: int, n_items: int, n_values: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores with ties, positives and masked items; some users have none, some have only those."""
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, n_values, (n_users, n_items)).astype(np.float32)
    role = rng.random((n_users, n_items)) + rng.normal(0, 0.3, (n_users, 1))
    return scores, role < 0.25, role > 0.85


@pytest.mark.parametrize("n_values", [1, 3, 1000])
@pytest.mark.parametrize("n_items", [1, 5, 60, 1600])  # 1600: beyond what is compared one by one
def test_negatives_above_equals_counts_by_hand(n_items: int, n_values: int) -> None:
    scores, positive, masked = random_users(n_items + n_values, 23, n_items, n_values)
    positive[0], masked[1] = False, False
    positive[2], masked[2] = True, False
    counts = negatives_above(scores, sparse.csr_array(positive), sparse.csr_array(masked))
    for u in range(len(scores)):
        negatives = scores[u][~positive[u] & ~masked[u]]
        best = np.sort(scores[u][positive[u]])[::-1]
        here = slice(counts.indptr[u], counts.indptr[u + 1])
        assert counts.n_neg[u] == len(negatives)
        assert counts.above[here].tolist() == [int((negatives > v).sum()) for v in best]
        assert counts.tied[here].tolist() == [int((negatives == v).sum()) for v in best]


def test_negatives_above_of_a_long_row_crosses_blocks() -> None:
    rng = np.random.default_rng(3)
    scores = rng.random((2, 20_001))
    positive = rng.random(scores.shape) < 0.001
    counts = negatives_above(scores, sparse.csr_array(positive))
    for u in range(2):
        best = np.sort(scores[u][positive[u]])[::-1]
        above = [int((scores[u][~positive[u]] > v).sum()) for v in best]
        assert counts.above[counts.indptr[u] : counts.indptr[u + 1]].tolist() == above


def test_count_above_row_from_inside_another_kernel() -> None:
    @numba.njit(nogil=True)
    def caller(scores, positives, masked, above, tied):  # type: ignore[no-untyped-def]
        return count_above_row(scores[1], positives, masked, above, tied)

    scores = np.array([[0, 0, 0, 0, 0], [0.1, 0.9, 0.5, 0.5, 0.7]], np.float32)
    above, tied = np.empty(2, np.int32), np.empty(2, np.int32)
    items = np.array([0, 3]), np.array([4])
    assert caller(scores, *items, above, tied) == 2
    assert (above.tolist(), tied.tolist()) == ([1, 2], [1, 0])
    scores[1, 4] = np.nan
    assert caller(scores, *items, above, tied) == -1


def test_negatives_above_is_independent_of_threads_and_chunks() -> None:
    scores, positive, masked = random_users(5, 700, 300, 40)  # enough for the parallel kernel
    positives, hidden = sparse.csr_array(positive), sparse.csr_array(masked)
    threads = numba.get_num_threads()
    results = []
    try:
        for count in (1, threads):
            numba.set_num_threads(count)
            results.append(negatives_above(scores, positives, hidden))
    finally:
        numba.set_num_threads(threads)
    for start in (0, 300):  # few enough for one thread
        rows = slice(start, start + 300)
        part = negatives_above(scores[rows], positives[rows], hidden[rows])
        for whole in results:
            here = slice(whole.indptr[rows.start], whole.indptr[rows.stop])
            np.testing.assert_array_equal(part.above, whole.above[here])
            np.testing.assert_array_equal(part.tied, whole.tied[here])
            np.testing.assert_array_equal(part.n_neg, whole.n_neg[rows])
    for field in ("above", "tied", "indptr", "n_neg"):
        np.testing.assert_array_equal(getattr(results[0], field), getattr(results[1], field))


@given(seed=st.integers(0, 10**6), alpha=fraction, beta=fraction)
@settings(max_examples=40, deadline=None)
def test_llpauc_score_treats_users_independently_and_averages(
    seed: int, alpha: float, beta: float
) -> None:
    scores, positive, _ = random_users(seed, 6, 9, 4)
    positive[0], positive[1] = False, True
    positive[2, :2] = [True, False]  # at least one user is defined
    y = positive.astype(int)
    by_user = llpauc_score(y, scores, alpha=alpha, beta=beta, average=None)
    for u in range(len(y)):
        if 0 < y[u].sum() < y.shape[1]:
            assert by_user[u] == llpauc_score(y[u], scores[u], alpha=alpha, beta=beta)
        else:
            assert math.isnan(by_user[u])
    mean = llpauc_score(y, scores, alpha=alpha, beta=beta)
    assert mean == pytest.approx(np.nanmean(by_user), abs=1e-15)
    truth = sparse.csr_array(y)
    assert llpauc_score(truth, scores, alpha=alpha, beta=beta) == mean


def test_llpauc_score_accepts_one_fraction_per_user() -> None:
    y, s = [[1, 0, 1, 0], [1, 1, 0, 1]], [[4, 3, 2, 1], [1, 2, 3, 4]]
    fractions = {"alpha": np.array([1 / 2, 2 / 3]), "beta": np.array([1.0, 1.0])}
    got = llpauc_score(y, s, average=None, **fractions)
    assert got.tolist() == [2 / 4, 1 / 3]
    assert np.array_equal(
        got, [llpauc_score(y[u], s[u], alpha=fractions["alpha"][u], beta=1.0) for u in range(2)]
    )


@given(n=st.integers(1, 10**7), data=st.data())
@settings(max_examples=300, deadline=None)
def test_selected_count_of_k_over_n_is_exactly_k(n: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, n))
    assert selected_count(k / n, n) == k
    if k < n:
        assert selected_count((k + 0.5) / n, n) == k + 1


def test_selected_count_equals_written_arithmetic() -> None:
    assert [selected_count(0.1, n) for n in (1, 9, 10, 11, 20, 21, 30)] == [1, 1, 1, 2, 2, 3, 3]
    assert selected_count(0.7, 10) == 7  # 0.7 * 10 is 7.000000000000001 in some orders
    assert selected_count(0.1 + 0.2, 10) == 3
    assert selected_count(1.0, 0) == 0
    assert selected_count(0.5, np.array([0, 1, 2, 3])).tolist() == [0, 1, 1, 2]


def test_llpauc_score_does_not_modify_its_inputs() -> None:
    y, s = sparse.csr_array([[1, 0, 0], [0, 1, 1]]), np.array([[0.3, 0.2, 0.1], [1, 2, 3]])
    y_before, s_before = y.toarray(), s.copy()
    auc_score(y, s)
    assert np.array_equal(y.toarray(), y_before)
    assert np.array_equal(s, s_before)


@pytest.mark.parametrize(
    ("y", "s", "options", "message"),
    [
        ([0, 0], [1, 2], {}, r"y_true has no positive \(1\)"),
        ([1, 1], [1, 2], {}, r"y_true has no negative \(0\)"),
        ([1, 1], [1, 2], {"average": None}, r"y_true has no negative \(0\)"),
        ([], [], {}, "no positive"),
        ([[0, 0], [1, 1]], [[1, 2], [1, 2]], {}, "none of 2 users"),
        ([1, 0], [1, float("nan")], {}, "score of user 0, item 1 is NaN"),
        ([1, 0, 1], [1, 2], {}, r"y_true has shape \(3,\), y_score \(2,\)"),
        ([1, 2], [1, 2], {}, r"only, got 2"),
        ([1, -1], [1, 2], {}, r"only, got -1"),
        ([float("nan"), 1], [1, 2], {}, r"only, got nan"),
        (["a", "b"], [1, 2], {}, "y_true must hold 0 and 1"),
        ([1, 0], ["a", "b"], {}, "scores must be numbers"),
        (1, 2, {}, "one user or users x items"),
        ([1, 0], [1, 2], {"alpha": 1.1}, r"alpha must be in \(0, 1\], got 1.1"),
        ([1, 0], [1, 2], {"beta": 0.0}, r"beta must be in \(0, 1\], got 0.0"),
        ([1, 0], [1, 2], {"beta": float("nan")}, r"beta must be in \(0, 1\], got nan"),
        ([1, 0], [1, 2], {"alpha": [0.5, 0.5]}, "one for each of 1 users"),
        ([1, 0], [1, 2], {"ties": "no"}, "unknown ties 'no'; choose one of: strict, half"),
        ([1, 0], [1, 2], {"average": "macro"}, "average must be 'mean' or None, got 'macro'"),
    ],
)
def test_llpauc_score_bad_input_raises(
    y: object, s: object, options: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        llpauc_score(y, s, **{"alpha": 0.5, "beta": 0.5, **options})  # type: ignore[call-overload]


def test_negatives_above_bad_input_raises() -> None:
    scores, one = np.zeros((1, 3)), sparse.csr_array([[0, 1, 0]])
    with pytest.raises(InputError, match="item 1 of user 0 is both positive and masked"):
        negatives_above(scores, one, one)
    with pytest.raises(InputError, match="masked must have the shape of the scores"):
        negatives_above(scores, one, sparse.csr_array((1, 4)))
    with pytest.raises(InputError, match="positives must be a scipy CSR matrix, got list"):
        negatives_above(scores, [[0, 1, 0]])
    with pytest.raises(InputError, match="two dimensions"):
        negatives_above(scores[0], one)
    twice = sparse.csr_array((np.ones(2), np.array([1, 1]), np.array([0, 2])), shape=(1, 3))
    with pytest.raises(InputError, match="items twice or out of order"):
        negatives_above(scores, twice)
    invalid = sparse.csr_array((np.ones(1), np.array([1]), np.array([0, 1])), shape=(1, 3))
    invalid.indices[0] = 3
    with pytest.raises(InputError, match=r"positives holds an item outside \[0, 3\)"):
        negatives_above(scores, invalid)
    with pytest.raises(InputError, match="user 1 must be ordered best first"):
        PairCounts(
            np.array([5, 2, 1], np.int32),
            np.zeros(3, np.int32),
            np.array([0, 1, 3]),
            np.array([9, 9]),
        )
    with pytest.raises(InputError, match="indptr needs 2"):
        PairCounts(np.zeros(3, np.int32), np.zeros(3, np.int32), np.array([0, 2]), np.array([9]))


def test_partial_auc_from_counts_computes_a_grid_from_one_pass() -> None:
    scores, positive, masked = random_users(8, 30, 40, 12)
    counts = negatives_above(scores, sparse.csr_array(positive), sparse.csr_array(masked))
    for alpha in (0.1, 0.5, 0.9, 1.0):
        for beta in (0.01, 0.2, 1.0):
            got = partial_auc_from_counts(counts, alpha=alpha, beta=beta)
            for u in range(len(scores)):
                seen = ~masked[u]
                y, s = positive[u][seen].astype(int).tolist(), scores[u][seen].tolist()
                if not 0 < sum(y) < len(y):
                    assert math.isnan(got[u])
                    continue
                k_pos, k_neg = ceil_fraction(alpha, sum(y)), ceil_fraction(beta, len(y) - sum(y))
                assert got[u] == float(brute_force(y, s, k_pos, k_neg, Fraction(0)))
