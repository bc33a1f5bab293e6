"""LLPAUC with a threshold per row, against a general minimiser and against counting pairs."""

from __future__ import annotations

import math

import numba
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.optimize import minimize_scalar

from llpauc.errors import InputError
from llpauc.losses import LLPAUCLoss
from llpauc.losses.per_user import hard_row_llpauc

FRACTIONS = [(0.7, 0.02), (0.5, 0.3), (1.0, 0.1), (0.6, 1.0), (1.0, 1.0)]
fractions = pytest.mark.parametrize(("alpha", "beta"), FRACTIONS)


def draw(seed, rows, n, spread=2.0):
    generator = torch.Generator().manual_seed(seed)
    pos = torch.randn(rows, generator=generator) * spread + 0.5
    return pos, torch.randn(rows, n, generator=generator) * spread - 0.5


def per_user_loss(alpha, beta, sharpness=10.0):
    return LLPAUCLoss(alpha, beta, sharpness=sharpness, solver="per-user")


def soft_mean(values, fraction, kappa):
    """min_s s + mean softplus(kappa (x - s)) / (kappa fraction), by golden section."""
    if fraction == 1.0:
        return values.mean()

    def at(s):
        return s + np.logaddexp(0.0, kappa * (values - s)).mean() / (kappa * fraction)

    bounds = (values.min() - 10.0, values.max() + 10.0)
    return minimize_scalar(at, bounds=bounds, method="bounded", options={"xatol": 1e-9}).fun


def by_hand(pos, neg, alpha, beta, kappa):
    f, g = (1.0 / (1.0 + np.exp(-x.double().numpy())) for x in (pos, neg))
    rows = np.array([
        soft_mean((1.0 - f_pos + others) ** 2, beta, kappa)
        for f_pos, others in zip(f, g, strict=True)
    ])  # fmt: skip
    return -soft_mean(-rows, alpha, kappa) - 1.0


@fractions
@pytest.mark.parametrize("kappa", [1.0, 5.0, 30.0])
def test_per_user_loss_equals_a_general_minimiser(alpha, beta, kappa):
    pos, neg = draw(1, 12, 40)
    expected = by_hand(pos, neg, alpha, beta, kappa)
    for dtype in (torch.float32, torch.float64):
        result = per_user_loss(alpha, beta, kappa)(pos.to(dtype), neg.to(dtype)).item()
        assert result == pytest.approx(expected, abs=1e-6)
    assert per_user_loss(alpha, beta, kappa).value_and_grads(pos, neg)[0] == pytest.approx(
        expected, abs=1e-6
    )


@pytest.mark.parametrize("kappa", [1e4, 1e6, 1e11, 1e20])
def test_per_user_loss_equals_a_general_minimiser_at_any_sharpness(kappa):
    pos, neg = draw(3, 5, 100)
    loss = per_user_loss(0.7, 0.1, kappa)
    value, _, _ = loss.value_and_grads(pos, neg, None)
    assert value == pytest.approx(loss(pos.double(), neg.double()).item(), abs=1e-5)


@pytest.mark.parametrize("kappa", [1e4, math.inf])
def test_per_user_loss_with_high_sharpness_is_the_mean_over_selected_pairs(kappa):
    pos, neg = (x.double() for x in draw(2, 10, 20))
    f, g = pos.sigmoid(), neg.sigmoid().sort(1, descending=True).values[:, :5]
    pairs = (1.0 - f[:, None] + g).square()
    best_rows = pairs.mean(1).sort().values[:6]
    result = per_user_loss(0.6, 0.25, kappa)(pos, neg).item()
    assert result == pytest.approx(best_rows.mean().item() - 1.0, abs=1e-3)


def test_per_user_loss_of_one_row_is_the_saddle_of_the_pooled_loss():
    pos, neg = (x.double() for x in draw(3, 1, 40))
    pooled = LLPAUCLoss(1.0, 0.25, solver="exact")(pos, neg).item()
    assert per_user_loss(1.0, 0.25, math.inf)(pos, neg).item() == pytest.approx(pooled, abs=1e-6)


@fractions
@given(
    seed=st.integers(0, 10_000),
    rows=st.integers(1, 9),
    n=st.sampled_from([1, 2, 7, 100, 2500]),
    spread=st.sampled_from([0.0, 0.01, 2.0, 6.0]),
    kappa=st.sampled_from([1.0, 5.0, 20.0, 100.0]),
    masked=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_per_user_kernel_equals_autograd_in_float64(
    alpha, beta, seed, rows, n, spread, kappa, masked
):
    pos, neg = draw(seed, rows, n, spread)
    mask = None
    if masked:
        mask = torch.rand(rows, n, generator=torch.Generator().manual_seed(seed)) < 0.6
        mask[0, 0] = True
    loss = per_user_loss(alpha, beta, kappa)
    value, d_pos, d_neg = loss.value_and_grads(pos, neg, mask)
    wide = [x.double().requires_grad_() for x in (pos, neg)]
    expected = loss(*wide, mask)
    grads = torch.autograd.grad(expected, wide)
    assert value == pytest.approx(expected.item(), abs=1e-6)
    for result, grad in zip((d_pos, d_neg), grads, strict=True):
        # Thresholds are solved until the weights are right to 1e-4; kappa enlarges what float32
        # leaves of a row's loss.
        assert_allclose(
            result,
            grad,
            rtol=3e-3 * max(1.0, kappa / 10),
            atol=3e-4 * grad.abs().max().item() + 1e-10,
        )


@fractions
def test_per_user_loss_passes_gradcheck(alpha, beta):
    wide = tuple(x.double().requires_grad_() for x in draw(5, 5, 8))
    assert torch.autograd.gradcheck(per_user_loss(alpha, beta, 5.0), wide, atol=1e-6)


def test_per_user_loss_with_alpha_1_treats_rows_independently():
    """The pooled loss gives the row of high scores all of the selected negatives."""
    pos, neg = draw(6, 2, 50)
    neg[0] += 4.0
    loss = per_user_loss(1.0, 0.1)
    _, _, together = loss.value_and_grads(pos, neg)
    for row in range(2):
        _, _, alone = loss.value_and_grads(pos[row : row + 1], neg[row : row + 1])
        assert_allclose(together[row], alone[0] / 2, rtol=1e-5, atol=1e-9)
    pooled = LLPAUCLoss(1.0, 0.1, solver="exact").value_and_grads(pos, neg)[2]
    assert pooled[1].abs().sum() == 0.0
    assert together[1].abs().sum() > 0.0


def test_hard_row_llpauc_equals_counting():
    pos, neg = draw(7, 9, 30)
    won = []
    for f_pos, others in zip(pos.tolist(), neg.tolist(), strict=True):
        selected = sorted(others, reverse=True)[:6]
        won.append(sum(f_pos > other for other in selected) / 6)
    expected = np.mean(sorted(won, reverse=True)[:5])  # ceil(.5 * 9)
    assert hard_row_llpauc(pos, neg, None, 0.5, 0.2) == pytest.approx(expected)
    assert per_user_loss(0.5, 0.2).diagnose(pos, neg).values["hard_row_llpauc"] == pytest.approx(
        expected
    )


def test_per_user_kernel_empty_rows_and_non_finite_scores():
    pos, neg = draw(8, 4, 5)
    mask = torch.ones(4, 5, dtype=torch.bool)
    mask[1] = False
    mask[2, 3] = False
    loss = per_user_loss(0.7, 0.4)
    invalid = pos.clone(), neg.clone()
    invalid[0][1], invalid[1][1], invalid[1][2, 3] = float("nan"), float("inf"), float("nan")
    whole, with_invalid = (loss.value_and_grads(*x, mask) for x in ((pos, neg), invalid))
    assert whole[0] == with_invalid[0]
    assert all(torch.equal(x, y) for x, y in zip(whole[1:], with_invalid[1:], strict=True))
    assert whole[1][1] == 0.0
    invalid[0][0] = invalid[1][3, 4] = float("nan")
    with pytest.raises(InputError, match="1 of pos_scores, 1 of neg_scores are NaN"):
        loss.value_and_grads(*invalid, mask)
    nothing = loss.value_and_grads(pos, neg, torch.zeros_like(mask))
    assert nothing[0] == 0.0
    assert not nothing[2].any()


def test_per_user_kernel_result_is_independent_of_threads():
    pos, neg = draw(9, 64, 2000)
    loss = per_user_loss(0.7, 0.05)
    before = numba.get_num_threads()
    try:
        result = []
        for threads in (1, before):
            numba.set_num_threads(threads)
            result.append(loss.value_and_grads(pos, neg))
    finally:
        numba.set_num_threads(before)
    assert result[0][0] == result[1][0]
    assert all(torch.equal(x, y) for x, y in zip(result[0][1:], result[1][1:], strict=True))
