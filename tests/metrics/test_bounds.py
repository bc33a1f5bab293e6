"""Theorems 1 and 2 on every ranking of small lists."""

from __future__ import annotations

import math
from functools import cache, partial
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llpauc.errors import InputError
from llpauc.metrics import llpauc_score, opauc_score, precision_bounds, recall_bounds

SIZES = [
    (n_pos, n_neg, k)
    for n_pos, n_neg in ((6, 6), (5, 7), (7, 4), (3, 8), (8, 3), (4, 4), (1, 6), (6, 1), (2, 2))
    for k in (1, 2, 3, 4, 5, 6, 9, 20)
]
inside_theorem = [size for size in SIZES if size[0] > size[2] and size[1] > size[2]]


@cache
def all_rankings(n_pos: int, n_neg: int, k: int) -> np.ndarray:
    """Every ranking as (pairs LLPAUC counts, pairs OPAUC counts, positives in the top k)."""
    rows = []
    for ranks in combinations(range(n_pos + n_neg), n_pos):
        above = [rank - place for place, rank in enumerate(ranks)]  # negatives above each positive
        won = [max(0, min(k, n_neg) - a) for a in above]
        rows.append((sum(won[:k]), sum(won), sum(rank < k for rank in ranks)))
    assert len(rows) == math.comb(n_pos + n_neg, n_pos)
    return np.array(rows)


@pytest.mark.parametrize(("n_pos", "n_neg", "k"), SIZES)
def test_recall_bounds_tight_form_is_valid_and_tight(n_pos: int, n_neg: int, k: int) -> None:
    by_llpauc, by_opauc, hits = all_rankings(n_pos, n_neg, k).T
    size = {"n_pos": n_pos, "n_neg": n_neg, "k": k}
    for pairs, bounds in ((by_llpauc, recall_bounds), (by_opauc, partial(recall_bounds, None))):
        lower, upper = bounds(pairs / (n_pos * n_neg), **size)
        for count in np.unique(pairs):
            here = pairs == count
            # Both ends occur, for every value the area can take, whatever n+, n- and K are.
            assert lower[here][0] == pytest.approx(hits[here].min() / n_pos, abs=1e-15)
            assert upper[here][0] == pytest.approx(hits[here].max() / n_pos, abs=1e-15)
    best = recall_bounds(by_llpauc / (n_pos * n_neg), by_opauc / (n_pos * n_neg), **size)
    assert np.all(best.lower <= hits / n_pos + 1e-15)
    assert np.all(best.upper >= hits / n_pos - 1e-15)


@pytest.mark.parametrize(("n_pos", "n_neg", "k"), inside_theorem)
def test_recall_bounds_printed_form_is_theorem_1(n_pos: int, n_neg: int, k: int) -> None:
    by_llpauc, _, hits = all_rankings(n_pos, n_neg, k).T
    lower, upper = recall_bounds(
        by_llpauc / (n_pos * n_neg), n_pos=n_pos, n_neg=n_neg, k=k, form="printed"
    )
    for count, low, high, i in zip(by_llpauc.tolist(), lower, upper, hits, strict=True):
        # Integer arithmetic of the printed floor and ceil, independent of floating point.
        down, rest = k, k * k - count
        root = math.isqrt(rest)
        down -= root + (root * root < rest)
        up = math.isqrt(count)
        up += up * up < count
        assert (low, high) == pytest.approx((down / n_pos, up / n_pos), abs=1e-15)
        assert low <= i / n_pos + 1e-15
        assert high >= i / n_pos - 1e-15


@pytest.mark.parametrize(("n_pos", "n_neg", "k"), [s for s in SIZES if s[1] >= s[2]])
def test_recall_bounds_printed_form_is_valid_and_never_tighter(
    n_pos: int, n_neg: int, k: int
) -> None:
    by_llpauc, by_opauc, hits = all_rankings(n_pos, n_neg, k).T
    size = {"n_pos": n_pos, "n_neg": n_neg, "k": k}
    for pairs, bounds in ((by_llpauc, recall_bounds), (by_opauc, partial(recall_bounds, None))):
        area = pairs / (n_pos * n_neg)
        tight, printed = bounds(area, **size), bounds(area, form="printed", **size)
        assert np.all(printed.lower <= tight.lower)
        assert np.all(printed.upper >= tight.upper)
        assert np.all(printed.lower <= hits / n_pos + 1e-15)
        assert np.all(printed.upper >= hits / n_pos - 1e-15)
        real = bounds(area, form="unrounded", **size)
        assert np.all(printed.lower <= real.lower + 1e-9)
        assert np.all(real.upper <= printed.upper + 1e-9)


@pytest.mark.parametrize(("n_pos", "n_neg", "k"), inside_theorem)
def test_recall_bounds_theorem_2_holds_for_upper_bounds(n_pos: int, n_neg: int, k: int) -> None:
    by_llpauc, by_opauc, _ = all_rankings(n_pos, n_neg, k).T / (n_pos * n_neg)
    for form in ("tight", "printed", "unrounded"):
        size = {"n_pos": n_pos, "n_neg": n_neg, "k": k, "form": form}
        of_llpauc, of_opauc = (
            recall_bounds(by_llpauc, **size),
            recall_bounds(None, by_opauc, **size),
        )
        assert np.all(of_llpauc.upper <= of_opauc.upper)


def test_recall_bounds_theorem_2_has_17_counterexamples_for_lower_bounds() -> None:
    by_llpauc, by_opauc, hits = all_rankings(6, 6, 4).T
    assert len(hits) == 924
    violations = {}
    for form in ("unrounded", "tight", "printed"):
        of_llpauc = recall_bounds(by_llpauc / 36, n_pos=6, n_neg=6, k=4, form=form).lower
        of_opauc = recall_bounds(None, by_opauc / 36, n_pos=6, n_neg=6, k=4, form=form).lower
        violations[form] = int(np.sum(of_opauc > of_llpauc + 1e-9))
    assert violations == {"unrounded": 17, "tight": 2, "printed": 0}


def test_recall_bounds_theorem_2_counterexample_from_scores() -> None:
    signs = "-++++++-----"
    y, s = [int(sign == "+") for sign in signs], list(range(12, 0, -1))
    llpauc = llpauc_score(y, s, alpha=4 / 6, beta=4 / 6)
    opauc = opauc_score(y, s, beta=4 / 6)
    size = {"n_pos": 6, "n_neg": 6, "k": 4}
    assert recall_bounds(llpauc, **size) == (2 / 6, 3 / 6)
    assert recall_bounds(None, opauc, **size) == (3 / 6, 4 / 6)
    assert recall_bounds(llpauc, opauc, **size) == (3 / 6, 3 / 6)
    assert precision_bounds(llpauc, opauc, **size) == (3 / 4, 3 / 4)


@given(data=st.data(), n_pos=st.integers(1, 60), n_neg=st.integers(1, 200), k=st.integers(1, 50))
@settings(max_examples=150, deadline=None)
def test_bounds_hold_for_scores_with_ties_and_few_positives(
    data: st.DataObject, n_pos: int, n_neg: int, k: int
) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 10**6)))
    y = rng.permutation([1] * n_pos + [0] * n_neg)
    s = rng.integers(0, data.draw(st.sampled_from([2, 20, 10**6])), len(y)) + y * rng.integers(3)
    llpauc = llpauc_score(y, s, alpha=min(1, k / n_pos), beta=min(1, k / n_neg))
    opauc = opauc_score(y, s, beta=min(1, k / n_neg))
    top = np.lexsort((y, -s))[:k]  # tied negatives first, as a strict count has it
    kindest = np.lexsort((-y, -s))[:k]  # tied positives first: the lower bounds hold here too
    size = {"n_pos": n_pos, "n_neg": n_neg, "k": k}
    for lower, upper in (
        recall_bounds(llpauc, **size),
        recall_bounds(None, opauc, **size),
        recall_bounds(llpauc, opauc, **size),
    ):
        assert lower - 1e-12 <= y[top].sum() / n_pos <= upper + 1e-12
        assert lower - 1e-12 <= y[kindest].sum() / n_pos
    for lower, upper in (
        precision_bounds(llpauc, **size),
        precision_bounds(None, opauc, **size),
        precision_bounds(llpauc, opauc, **size),
    ):
        assert lower - 1e-12 <= y[top].sum() / k <= upper + 1e-12


@given(k=st.integers(1, 10**7), data=st.data())
@settings(max_examples=300, deadline=None)
def test_recall_bounds_of_large_counts_round_exactly(k: int, data: st.DataObject) -> None:
    i = data.draw(st.integers(0, k))
    n_pos, n_neg = k + data.draw(st.integers(1, 10**4)), k + data.draw(st.integers(1, 10**4))
    size = {"n_pos": n_pos, "n_neg": n_neg, "k": k}
    pairs = n_pos * n_neg
    for change in (-1, 0, 1):
        if 0 <= i * i + change <= k * k:
            upper = recall_bounds((i * i + change) / pairs, **size).upper
            assert round(upper * n_pos) == math.isqrt(i * i + change)
        count = 2 * k * i - i * i + change
        if 0 <= count <= k * k:
            rest = k * k - count
            lower = recall_bounds(count / pairs, **size).lower
            assert round(lower * n_pos) == k - math.isqrt(rest)


def test_recall_bounds_of_arrays_and_undefined_users() -> None:
    bounds = recall_bounds([10 / 36, np.nan, 2 / 8], n_pos=[6, 0, 2], n_neg=[6, 5, 4], k=4)
    np.testing.assert_array_equal(bounds.lower, [2 / 6, np.nan, 1 / 2])
    np.testing.assert_array_equal(bounds.upper, [3 / 6, np.nan, 1 / 2])
    printed = recall_bounds([np.nan, 9 / 36], n_pos=[0, 6], n_neg=[0, 6], k=4, form="printed")
    np.testing.assert_array_equal(printed.lower, [np.nan, 1 / 6])
    np.testing.assert_array_equal(printed.upper, [np.nan, 3 / 6])
    bounds = precision_bounds([10 / 36, 12 / 36], n_pos=6, n_neg=6, k=4)
    np.testing.assert_array_equal(bounds.upper, [3 / 4, 3 / 4])
    assert isinstance(recall_bounds(0.0, n_pos=6, n_neg=6, k=4).lower, float)


@pytest.mark.parametrize(
    ("area", "size", "message"),
    [
        (
            0.1,
            {},
            "llpauc 0.1 times 36 pairs is not a whole number; give the raw strict area",
        ),
        ([0.0, 0.1], {}, "llpauc 0.1 times 36 pairs"),
        (-1 / 36, {}, r"outside \[0, 0.444444\]"),
        (17 / 36, {}, r"outside \[0, 0.444444\].*compute it at these fractions"),
        (0.0, {"n_pos": 0}, "n_pos must be a whole number of at least 1, got 0"),
        (0.0, {"n_neg": 0}, "n_neg must be a whole number of at least 1, got 0"),
        (0.0, {"n_pos": 2.5}, "got 2.5"),
        (0.0, {"k": 0}, "k must be a whole number of at least 1, got 0"),
        (0.0, {"form": "loose"}, "unknown form 'loose'; choose one of: tight, printed, unrounded"),
        (0.0, {"k": 7, "form": "printed"}, "need n_neg >= k, got n_neg 6 with k 7"),
    ],
)
def test_recall_bounds_bad_input_raises(
    area: object, size: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError, match=message) as caught:
        recall_bounds(area, **{"n_pos": 6, "n_neg": 6, "k": 4, **size})  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_recall_bounds_without_an_area_raises() -> None:
    with pytest.raises(InputError, match="give llpauc, opauc or both"):
        recall_bounds(n_pos=6, n_neg=6, k=4)
