"""The heart: F's saddle is the mean over selected pairs of (1 - f_i + f_j)^2, minus 1."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from llpauc.errors import InputError
from llpauc.losses import (
    AUCLoss,
    LLPAUCLoss,
    OPAUCLoss,
    Settings,
    Variables,
    exact_saddle,
    hard_llpauc,
    llpauc_objective,
)
from llpauc.metrics import selected_count

SHARES = (0.2, 0.5, 0.8, 1.0)  # of 10 positives and 20 negatives: whole numbers


def scores(seed: int, shift: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    return torch.tensor(rng.normal(size=10)), torch.tensor(rng.normal(size=(10, 2)) - shift)


def f_of(x: torch.Tensor) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-x.numpy().ravel()))


def pairs(pos: torch.Tensor, neg: torch.Tensor, alpha: float, beta: float) -> np.ndarray:
    """(1 - f_i + f_j)^2 of every selected pair, by sorting and a loop."""
    best_pos = sorted(f_of(pos), reverse=True)[: math.ceil(round(alpha * pos.numel(), 9))]
    best_neg = sorted(f_of(neg), reverse=True)[: math.ceil(round(beta * neg.numel(), 9))]
    return np.array([(1.0 - i + j) ** 2 for i in best_pos for j in best_neg])


def nested_search(
    pos: torch.Tensor, neg: torch.Tensor, alpha: float, beta: float, gap_penalty: float = 0.0
) -> tuple[float, Variables[float]]:
    """max over gamma of min over a, b; s+ and s- by trying every kink of the hinges.

    Knows nothing of top-k selection, means or variances.
    """
    f_pos, f_neg = f_of(pos), f_of(neg)

    def plus(a: float, gap: float) -> tuple[float, float]:
        gain = -((f_pos - a) ** 2 - 2 * (1 + gap) * f_pos)
        values = -gain - np.maximum(gain[None] - gain[:, None], 0).mean(1) / alpha
        return values.max(), gain[values.argmax()]

    def minus(b: float, gap: float) -> tuple[float, float]:
        cost = (f_neg - b) ** 2 + 2 * (1 + gap) * f_neg
        values = cost + np.maximum(cost[None] - cost[:, None], 0).mean(1) / beta
        return values.min(), cost[values.argmin()]

    def least(part, gap: float) -> float:
        options = {"xatol": 1e-10}
        return minimize_scalar(
            lambda x: part(x, gap)[0], bounds=(0, 1), method="bounded", options=options
        ).x

    def inner(gap: float) -> float:
        a, b = least(plus, gap), least(minus, gap)
        return plus(a, gap)[0] + minus(b, gap)[0] - (1 + gap_penalty) * gap**2

    gap = minimize_scalar(
        lambda g: -inner(g), bounds=(-1, 1), method="bounded", options={"xatol": 1e-10}
    ).x
    a, b = least(plus, gap), least(minus, gap)
    return inner(gap), Variables(a, b, gap, plus(a, gap)[1], minus(b, gap)[1])


@pytest.mark.parametrize(("alpha", "beta"), list(itertools.product(SHARES, SHARES)))
def test_llpauc_objective_saddle_is_the_mean_over_selected_pairs(alpha: float, beta: float) -> None:
    pos, neg = scores(seed=int(100 * alpha + 10 * beta))
    expected = pairs(pos, neg, alpha, beta).mean() - 1.0
    searched, at = nested_search(pos, neg, alpha, beta)
    assert searched == pytest.approx(expected, abs=1e-6)
    exact = exact_saddle(pos, neg, alpha=alpha, beta=beta)
    assert exact.value.item() == pytest.approx(expected, abs=1e-12)
    # and F itself, as the library writes it, has that value at the point that the search returned
    hinged = Settings(alpha, beta, math.inf, 0.0)
    here = Variables(*(torch.tensor(v, dtype=torch.float64) for v in at))
    assert llpauc_objective(pos, neg, here, hinged).item() == pytest.approx(expected, abs=1e-6)
    solved = llpauc_objective(pos, neg, exact.variables, hinged)
    assert solved.item() == pytest.approx(expected, abs=1e-12)
    for name in ("pos_center", "neg_center", "gap"):
        actual, expected_value = getattr(exact.variables, name).item(), getattr(at, name)
        assert actual == pytest.approx(expected_value, abs=1e-5), name


def test_llpauc_objective_without_the_factors_misses_the_saddle_value() -> None:
    """Eq. 14 as printed does not divide each side by its fraction; its saddle value differs."""
    pos, neg = scores(seed=3)
    alpha, beta = 0.5, 0.2
    a, b, gap, s_pos, s_neg = exact_saddle(pos, neg, alpha=alpha, beta=beta).variables
    f_pos, f_neg = pos.sigmoid(), neg.sigmoid()
    l_pos = (f_pos - a).square() - 2 * (1 + gap) * f_pos
    l_neg = (f_neg - b).square() + 2 * (1 + gap) * f_neg
    printed = (-alpha * s_pos - (-l_pos - s_pos).relu()).mean()
    printed = printed + (beta * s_neg + (l_neg - s_neg).relu()).mean() - gap.square()
    assert abs(printed.item() - (pairs(pos, neg, alpha, beta).mean() - 1.0)) > 0.05


@pytest.mark.parametrize("gap_penalty", [0.5, 3.0])
def test_exact_saddle_gap_penalty_shrinks_the_gap(gap_penalty: float) -> None:
    pos, neg = scores(seed=5)
    searched, at = nested_search(pos, neg, 0.5, 0.5, gap_penalty)
    exact = exact_saddle(pos, neg, alpha=0.5, beta=0.5, gap_penalty=gap_penalty)
    assert exact.value.item() == pytest.approx(searched, abs=1e-6)
    a, b = exact.variables.pos_center, exact.variables.neg_center
    assert exact.variables.gap.item() == pytest.approx((b - a).item() / (1 + gap_penalty))
    assert exact.variables.gap.item() == pytest.approx(at.gap, abs=1e-5)


@pytest.mark.parametrize(("alpha", "beta"), [(0.5, 0.2), (0.8, 1.0), (1.0, 0.5)])
def test_llpauc_objective_tends_to_the_saddle_as_sharpness_grows(alpha: float, beta: float) -> None:
    pos, neg = scores(seed=8)
    exact = exact_saddle(pos, neg, alpha=alpha, beta=beta)
    misses = [
        abs(
            llpauc_objective(
                pos, neg, exact.variables, Settings(alpha, beta, sharpness, 0.0)
            ).item()
            - exact.value.item()
        )
        for sharpness in (5.0, 50.0, 500.0, 5000.0)
    ]
    assert misses == sorted(misses, reverse=True)
    assert misses[0] > 1e-3 > 1e-4 > misses[-1]


def value_and_gradient(loss: LLPAUCLoss, dtype: torch.dtype) -> tuple[float, list[torch.Tensor]]:
    pos, neg = (x.to(dtype).requires_grad_() for x in scores(seed=2))
    value = loss(pos, neg)
    return value.item(), list(torch.autograd.grad(value, [pos, neg]))


@pytest.mark.parametrize("solver", ["sgda", "exact", "per-user"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_opauc_and_auc_loss_equal_llpauc_loss(solver: str, dtype: torch.dtype) -> None:
    for one, other in (
        (LLPAUCLoss(1.0, 0.2, solver=solver), OPAUCLoss(0.2, solver=solver)),
        (LLPAUCLoss(1.0, 1.0, solver=solver), AUCLoss(solver=solver)),
        (OPAUCLoss(1.0, solver=solver), AUCLoss(solver=solver)),
    ):
        value, gradient = value_and_gradient(one, dtype)
        same_value, same_gradient = value_and_gradient(other, dtype)
        assert value == same_value
        assert all(torch.equal(x, y) for x, y in zip(gradient, same_gradient, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_llpauc_loss_infinite_sharpness_is_the_hinge(dtype: torch.dtype) -> None:
    pos, neg = (x.to(dtype) for x in scores(seed=9))
    loss, saddle = (
        LLPAUCLoss(0.5, 0.2, sharpness=math.inf),
        exact_saddle(pos, neg, alpha=0.5, beta=0.2),
    )
    with torch.no_grad():
        for variable, solved in zip(loss.variables, saddle.variables, strict=True):
            variable.copy_(solved)
    assert loss(pos, neg).item() == pytest.approx(saddle.value.item(), abs=1e-5)
    assert loss.diagnose(pos, neg).values["pos_fraction"] == pytest.approx(0.5, abs=0.1)


def test_auc_loss_is_the_square_loss_of_all_pairs() -> None:
    pos, neg = scores(seed=4)
    assert AUCLoss(solver="exact")(pos, neg).item() == pytest.approx(
        pairs(pos, neg, 1.0, 1.0).mean() - 1.0
    )


@given(
    n_pos=st.integers(1, 12),
    n_neg=st.integers(1, 9),
    alpha=st.sampled_from([0.01, 0.3, 0.5, 0.77, 1.0]),
    beta=st.sampled_from([0.01, 0.3, 0.5, 0.77, 1.0]),
    seed=st.integers(0, 1000),
    ties=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_exact_saddle_value_and_gradient_equal_pairs(
    n_pos: int, n_neg: int, alpha: float, beta: float, seed: int, ties: bool
) -> None:
    rng = np.random.default_rng(seed)
    draw = rng.normal(size=n_pos * (n_neg + 1)).round(0 if ties else 12)
    pos = torch.tensor(draw[:n_pos]).requires_grad_()
    neg = torch.tensor(draw[n_pos:].reshape(n_pos, n_neg)).requires_grad_()
    value = LLPAUCLoss(alpha, beta, solver="exact")(pos, neg)
    expected = pairs(pos.detach(), neg.detach(), alpha, beta).mean() - 1.0
    assert value.item() == pytest.approx(expected, abs=1e-10)
    if not ties:
        d_pos, d_neg = torch.autograd.grad(value, [pos, neg])
        f_pos, f_neg = pos.sigmoid(), neg.sigmoid().reshape(-1)
        top_pos = f_pos.topk(math.ceil(alpha * n_pos)).values
        top_neg = f_neg.topk(math.ceil(beta * n_pos * n_neg)).values
        direct = (1 - top_pos[:, None] + top_neg).square().mean()
        for actual, expected_value in zip(
            (d_pos, d_neg), torch.autograd.grad(direct, [pos, neg]), strict=True
        ):
            torch.testing.assert_close(actual, expected_value)


@given(k=st.integers(1, 5000), extra=st.integers(0, 100_000))
def test_selected_count_of_k_over_n_is_exactly_k(k: int, extra: int) -> None:
    assert selected_count(k / (k + extra), k + extra) == k


def test_selected_count_rounds_up() -> None:
    assert [selected_count(s, 10) for s in (1e-9, 0.1, 0.11, 0.7, 0.99, 1.0)] == [
        1,
        1,
        2,
        7,
        10,
        10,
    ]


@pytest.mark.parametrize(("alpha", "beta"), list(itertools.product((0.3, 1.0), (0.25, 1.0))))
def test_hard_llpauc_equals_counting_pairs(alpha: float, beta: float) -> None:
    rng = np.random.default_rng(1)
    pos, neg = torch.tensor(rng.normal(size=10)), torch.tensor(rng.normal(size=(10, 4)).round(1))
    pos[0] = neg[0, 0]  # a tie counts 0
    best_pos = sorted(pos.tolist(), reverse=True)[: math.ceil(10 * alpha)]
    best_neg = sorted(neg.ravel().tolist(), reverse=True)[: math.ceil(40 * beta)]
    won = sum(i > j for i in best_pos for j in best_neg)
    normalised, raw = hard_llpauc(pos, neg, alpha=alpha, beta=beta)
    assert normalised == pytest.approx(won / (len(best_pos) * len(best_neg)))
    assert raw == pytest.approx(won / 400)


def test_llpauc_loss_diagnostics_report_fractions_and_saddle_value() -> None:
    pos, neg = scores(seed=6, shift=3.0)
    loss = LLPAUCLoss(0.5, 0.2)
    result = loss.diagnose(pos, neg)
    assert result.value == pytest.approx(loss(pos, neg).item())
    hard, raw = hard_llpauc(pos, neg, alpha=0.5, beta=0.2)
    assert (result.values["hard_llpauc"], result.values["hard_llpauc_raw"]) == (hard, raw)
    assert result.values["gap"] == 0.0
    assert result.values["saddle_value"] == pytest.approx(pairs(pos, neg, 0.5, 0.2).mean() - 1.0)
    f = pos.sigmoid()
    excess = -((f - 1.0).square() - 2 * f) - 0.5
    assert result.values["pos_fraction"] == pytest.approx((5.0 * excess).sigmoid().mean().item())
    assert result.values["pos_fraction_above"] == pytest.approx((excess > 0).double().mean().item())
    exact = LLPAUCLoss(0.5, 0.2, solver="exact").diagnose(pos, neg)
    assert exact.value == exact.values["saddle_value"]
    assert (exact.values["pos_fraction"], exact.values["neg_fraction"]) == (0.5, 0.2)
    assert "hard_llpauc" in str(exact)
    assert OPAUCLoss(0.2).diagnose(pos, neg).values["pos_fraction"] == 1.0


@pytest.mark.parametrize("value", [0.0, -0.1, 1.1, float("nan"), float("inf")])
def test_llpauc_loss_fraction_out_of_range_raises(value: float) -> None:
    with pytest.raises(InputError, match=r"alpha must be in \(0, 1\], got"):
        LLPAUCLoss(value, 0.1)
    with pytest.raises(InputError, match=r"beta must be in \(0, 1\], got"):
        OPAUCLoss(value)


def test_llpauc_loss_bad_parameter_raises() -> None:
    with pytest.raises(InputError, match="sharpness must be above 0, got 0"):
        LLPAUCLoss(0.5, 0.5, sharpness=0)
    with pytest.raises(InputError, match=r"gap_penalty must be at least 0, got -1"):
        LLPAUCLoss(0.5, 0.5, gap_penalty=-1)
    with pytest.raises(InputError, match="'newton'; choose one of: sgda, exact, per-user"):
        LLPAUCLoss(0.5, 0.5, solver="newton")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="diagnose"):
        _ = LLPAUCLoss(0.5, 0.5, solver="exact").variables
