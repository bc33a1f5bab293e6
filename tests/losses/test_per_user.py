"""LLPAUC with each row's own threshold, against another library's minimiser and against pairs."""

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

SHARES = [(0.7, 0.02), (0.5, 0.3), (1.0, 0.1), (0.6, 1.0), (1.0, 1.0)]
shares = pytest.mark.parametrize(("alpha", "beta"), SHARES)


def draw(seed, rows, n, spread=2.0):
    generator = torch.Generator().manual_seed(seed)
    pos = torch.randn(rows, generator=generator) * spread + 0.5
    return pos, torch.randn(rows, n, generator=generator) * spread - 0.5


def rows_loss(alpha, beta, sharpness=10.0):
    return LLPAUCLoss(alpha, beta, sharpness=sharpness, solver="per-user")


def soft_share(values, share, kappa):
    """min_s s + mean softplus(kappa (x - s)) / (kappa share), by golden section."""
    if share == 1.0:
        return values.mean()

    def at(s):
        return s + np.logaddexp(0.0, kappa * (values - s)).mean() / (kappa * share)

    bounds = (values.min() - 10.0, values.max() + 10.0)
    return minimize_scalar(at, bounds=bounds, method="bounded", options={"xatol": 1e-9}).fun


def by_hand(pos, neg, alpha, beta, kappa):
    f, g = (1.0 / (1.0 + np.exp(-x.double().numpy())) for x in (pos, neg))
    rows = np.array([
        soft_share((1.0 - own + others) ** 2, beta, kappa)
        for own, others in zip(f, g, strict=True)
    ])  # fmt: skip
    return -soft_share(-rows, alpha, kappa) - 1.0


@shares
@pytest.mark.parametrize("kappa", [1.0, 5.0, 30.0])
def test_value_is_that_of_a_general_minimiser(alpha, beta, kappa):
    pos, neg = draw(1, 12, 40)
    expected = by_hand(pos, neg, alpha, beta, kappa)
    for dtype in (torch.float32, torch.float64):
        found = rows_loss(alpha, beta, kappa)(pos.to(dtype), neg.to(dtype)).item()
        assert found == pytest.approx(expected, abs=1e-6)
    assert rows_loss(alpha, beta, kappa).value_and_grads(pos, neg)[0] == pytest.approx(
        expected, abs=1e-6
    )


@pytest.mark.parametrize("kappa", [1e4, 1e6, 1e11, 1e20])
def test_however_sharp_the_value_is_right(kappa):
    pos, neg = draw(3, 5, 100)
    loss = rows_loss(0.7, 0.1, kappa)
    value, _, _ = loss.value_and_grads(pos, neg, None)
    assert value == pytest.approx(loss(pos.double(), neg.double()).item(), abs=1e-5)


@pytest.mark.parametrize("kappa", [1e4, math.inf])
def test_sharp_it_is_the_mean_over_the_selected_pairs(kappa):
    pos, neg = (x.double() for x in draw(2, 10, 20))
    f, g = pos.sigmoid(), neg.sigmoid().sort(1, descending=True).values[:, :5]
    pairs = (1.0 - f[:, None] + g).square()
    best_rows = pairs.mean(1).sort().values[:6]
    found = rows_loss(0.6, 0.25, kappa)(pos, neg).item()
    assert found == pytest.approx(best_rows.mean().item() - 1.0, abs=1e-3)


def test_one_row_is_the_saddle_of_the_pooled_loss():
    pos, neg = (x.double() for x in draw(3, 1, 40))
    pooled = LLPAUCLoss(1.0, 0.25, solver="exact")(pos, neg).item()
    assert rows_loss(1.0, 0.25, math.inf)(pos, neg).item() == pytest.approx(pooled, abs=1e-6)


@shares
@given(
    seed=st.integers(0, 10_000),
    rows=st.integers(1, 9),
    n=st.sampled_from([1, 2, 7, 100, 2500]),
    spread=st.sampled_from([0.0, 0.01, 2.0, 6.0]),
    kappa=st.sampled_from([1.0, 5.0, 20.0, 100.0]),
    masked=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_kernel_equals_autograd_in_double(alpha, beta, seed, rows, n, spread, kappa, masked):
    pos, neg = draw(seed, rows, n, spread)
    mask = None
    if masked:
        mask = torch.rand(rows, n, generator=torch.Generator().manual_seed(seed)) < 0.6
        mask[0, 0] = True
    loss = rows_loss(alpha, beta, kappa)
    value, d_pos, d_neg = loss.value_and_grads(pos, neg, mask)
    wide = [x.double().requires_grad_() for x in (pos, neg)]
    expected = loss(*wide, mask)
    grads = torch.autograd.grad(expected, wide)
    assert value == pytest.approx(expected.item(), abs=1e-6)
    for found, grad in zip((d_pos, d_neg), grads, strict=True):
        # Thresholds are solved until the weights are right to 1e-4; kappa enlarges what float32
        # leaves of a row's loss.
        assert_allclose(
            found,
            grad,
            rtol=3e-3 * max(1.0, kappa / 10),
            atol=3e-4 * grad.abs().max().item() + 1e-10,
        )


@shares
def test_gradient_is_that_of_finite_differences(alpha, beta):
    wide = tuple(x.double().requires_grad_() for x in draw(5, 5, 8))
    assert torch.autograd.gradcheck(rows_loss(alpha, beta, 5.0), wide, atol=1e-6)


def test_without_a_share_of_positives_rows_do_not_see_each_other():
    """The pooled loss gives the row of high scores all of the selected negatives."""
    pos, neg = draw(6, 2, 50)
    neg[0] += 4.0
    loss = rows_loss(1.0, 0.1)
    _, _, together = loss.value_and_grads(pos, neg)
    for row in range(2):
        _, _, alone = loss.value_and_grads(pos[row : row + 1], neg[row : row + 1])
        assert_allclose(together[row], alone[0] / 2, rtol=1e-5, atol=1e-9)
    pooled = LLPAUCLoss(1.0, 0.1, solver="exact").value_and_grads(pos, neg)[2]
    assert pooled[1].abs().sum() == 0.0
    assert together[1].abs().sum() > 0.0


def test_hard_figure_by_counting():
    pos, neg = draw(7, 9, 30)
    won = []
    for own, others in zip(pos.tolist(), neg.tolist(), strict=True):
        taken = sorted(others, reverse=True)[:6]
        won.append(sum(own > other for other in taken) / 6)
    expected = np.mean(sorted(won, reverse=True)[:5])  # ceil(.5 * 9)
    assert hard_row_llpauc(pos, neg, None, 0.5, 0.2) == pytest.approx(expected)
    assert rows_loss(0.5, 0.2).diagnose(pos, neg).values["hard_row_llpauc"] == pytest.approx(
        expected
    )


def test_rows_without_a_pair_and_broken_scores():
    pos, neg = draw(8, 4, 5)
    mask = torch.ones(4, 5, dtype=torch.bool)
    mask[1] = False
    mask[2, 3] = False
    loss = rows_loss(0.7, 0.4)
    broken = pos.clone(), neg.clone()
    broken[0][1], broken[1][1], broken[1][2, 3] = float("nan"), float("inf"), float("nan")
    whole, holes = (loss.value_and_grads(*x, mask) for x in ((pos, neg), broken))
    assert whole[0] == holes[0]
    assert all(torch.equal(x, y) for x, y in zip(whole[1:], holes[1:], strict=True))
    assert whole[1][1] == 0.0
    broken[0][0] = broken[1][3, 4] = float("nan")
    with pytest.raises(InputError, match="1 of pos_scores, 1 of neg_scores are NaN"):
        loss.value_and_grads(*broken, mask)
    nothing = loss.value_and_grads(pos, neg, torch.zeros_like(mask))
    assert nothing[0] == 0.0
    assert not nothing[2].any()


def test_same_bits_on_any_number_of_threads():
    pos, neg = draw(9, 64, 2000)
    loss = rows_loss(0.7, 0.05)
    before = numba.get_num_threads()
    try:
        found = []
        for threads in (1, before):
            numba.set_num_threads(threads)
            found.append(loss.value_and_grads(pos, neg))
    finally:
        numba.set_num_threads(before)
    assert found[0][0] == found[1][0]
    assert all(torch.equal(x, y) for x, y in zip(found[0][1:], found[1][1:], strict=True))
