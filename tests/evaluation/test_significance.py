"""Bootstrap over users, Holm's correction, and ranks over data sets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llpauc.evaluation.significance import bootstrap, holm, rank_summary


def test_bootstrap_agrees_with_the_normal_interval():
    rng = np.random.default_rng(1)
    values = {"a": rng.random(4000), "b": rng.random(4000)}
    intervals, leads = bootstrap(values, seed=0)
    for name, drawn in values.items():
        error = 1.96 * drawn.std() / np.sqrt(len(drawn))
        assert intervals[name].mean == pytest.approx(drawn.mean())
        assert intervals[name].low == pytest.approx(drawn.mean() - error, abs=0.15 * error)
        assert intervals[name].high == pytest.approx(drawn.mean() + error, abs=0.15 * error)
    gap = values["a"] - values["b"]
    error = 1.96 * gap.std() / np.sqrt(len(gap))
    assert leads["b"].high - leads["b"].low == pytest.approx(2 * error, rel=0.15)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=30), st.floats(0.01, 1))
@settings(max_examples=30, deadline=None)
def test_bootstrap_constant_lead_has_no_width(values, more):
    drawn = np.array(values)
    _, leads = bootstrap({"a": drawn + more, "b": drawn}, seed=0, resamples=50)
    assert (leads["b"].low, leads["b"].high) == pytest.approx((more, more))


def test_bootstrap_p_value_of_a_real_lead_is_small_and_of_noise_is_not():
    rng = np.random.default_rng(3)
    base = rng.random(500)
    noise = rng.normal(0, 0.1, 500)
    values = {"a": base, "equal": base + noise - noise.mean(), "worse": base - 0.05 + noise}
    _, leads = bootstrap(values, seed=0)
    assert leads["worse"].p == pytest.approx(2 / 1001)
    assert leads["worse"].low > 0
    assert leads["equal"].p > 0.5


def test_holm_agrees_with_the_definition():
    p_values = {"a": 0.001, "b": 0.02, "c": 0.011, "d": 0.4}
    found = holm(p_values)
    # Sorted: 0.001 x 4, 0.011 x 3, 0.02 x 2, 0.4 x 1; each at least as large as the one before.
    assert found == pytest.approx({"a": 0.004, "c": 0.033, "b": 0.04, "d": 0.4})
    assert list(found) == list(p_values)
    assert holm({"a": 0.9, "b": 0.8}) == {"a": 1.0, "b": 1.0}


def test_rank_summary_agrees_with_the_example_of_demsar():
    """Table 6 of Demšar (2006): C4.5 and its variants on 14 data sets."""
    plain = [
        0.763,
        0.599,
        0.954,
        0.628,
        0.882,
        0.936,
        0.661,
        0.583,
        0.775,
        1,
        0.94,
        0.619,
        0.972,
        0.957,
    ]
    cut = [
        0.768,
        0.591,
        0.971,
        0.661,
        0.888,
        0.931,
        0.668,
        0.583,
        0.838,
        1,
        0.962,
        0.666,
        0.981,
        0.978,
    ]
    leaves = [
        0.771,
        0.59,
        0.968,
        0.654,
        0.886,
        0.916,
        0.609,
        0.563,
        0.866,
        1,
        0.965,
        0.614,
        0.9751,
        0.946,
    ]
    both = [
        0.798,
        0.569,
        0.967,
        0.657,
        0.898,
        0.931,
        0.685,
        0.625,
        0.875,
        1,
        0.962,
        0.669,
        0.975,
        0.970,
    ]
    found = rank_summary({"plain": plain, "cut": cut, "leaves": leaves, "both": both})
    ranks = {name: round(rank, 2) for name, rank in found.ranks.items()}
    assert ranks == {"plain": 3.14, "cut": 2.0, "leaves": 2.89, "both": 1.96}
    assert found.critical_difference == pytest.approx(1.25, abs=0.01)
    assert 0.01 < found.p < 0.05  # chi-square 9.28 with 3 degrees of freedom


def test_rank_summary_method_without_a_value_is_last():
    found = rank_summary({"a": [0.3, 0.2], "b": [0.2, -np.inf], "c": [0.1, 0.1]})
    assert found.ranks == {"a": 1.0, "b": 2.5, "c": 2.5}
