"""The one-pass kernels against float64 autograd of their equations."""

from __future__ import annotations

import numba
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from llpauc.errors import InputError
from llpauc.losses import (
    INITIAL_VARIABLES,
    LLPAUCLoss,
    Settings,
    Variables,
    bce_loss,
    bpr_loss,
    kernels,
    llpauc_objective,
    make_loss,
    sce_loss,
    sl_loss,
)

SHARES = st.sampled_from([0.01, 0.1, 0.7, 0.999, 1.0])


def draw(seed: int, batch: int, n: int, spread: float = 2.0) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    pos = rng.normal(scale=spread, size=batch).astype(np.float32)
    neg = rng.normal(-1.0, spread, size=(batch, n)).astype(np.float32)
    return torch.tensor(pos), torch.tensor(neg)


def run_llpauc_kernel(
    pos: torch.Tensor,
    neg: torch.Tensor,
    variables: Variables[float],
    chosen: Settings,
    mask: torch.Tensor | None,
) -> kernels.KernelResult:
    keep = None if mask is None else mask.numpy()
    return kernels.LLPAUCKernel(variables, chosen)(pos.numpy(), neg.numpy(), keep)


def by_autograd(
    pos: torch.Tensor,
    neg: torch.Tensor,
    variables: Variables[float],
    chosen: Settings,
    mask: torch.Tensor | None = None,
) -> tuple[float, list[np.ndarray]]:
    leaves = [x.double().requires_grad_() for x in (pos, neg)]
    leaves += [torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in variables]
    rows = slice(None) if mask is None else mask.any(1)
    part = None if mask is None else mask[rows]
    value = llpauc_objective(leaves[0][rows], leaves[1][rows], Variables(*leaves[2:]), chosen, part)
    grads = torch.autograd.grad(value, leaves, allow_unused=True, materialize_grads=True)
    return value.item(), [g.numpy() for g in grads]


@given(
    seed=st.integers(0, 10_000),
    batch=st.integers(1, 9),
    n=st.integers(1, 40),
    spread=st.sampled_from([0.01, 2.0, 30.0]),
    alpha=SHARES,
    beta=SHARES,
    sharpness=st.sampled_from([0.5, 5.0, 100.0]),
    gap_penalty=st.sampled_from([0.0, 2.0]),
    a=st.floats(0, 1),
    b=st.floats(0, 1),
    gap=st.floats(-1, 1),
    s_pos=st.floats(-1, 4),
    s_neg=st.floats(0, 5),
    masked=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_llpauc_kernel_equals_autograd_in_float64(
    seed, batch, n, spread, alpha, beta, sharpness, gap_penalty, a, b, gap, s_pos, s_neg, masked
) -> None:  # fmt: skip
    pos, neg = draw(seed, batch, n, spread)
    mask = torch.rand(batch, n, generator=torch.Generator().manual_seed(seed)) < 0.6
    mask[0, 0] = True
    mask_or_none = mask if masked else None
    variables = Variables(a, b, gap, s_pos, s_neg)
    chosen = Settings(alpha, beta, sharpness, gap_penalty)
    value, grads = by_autograd(pos, neg, variables, chosen, mask_or_none)
    actual = run_llpauc_kernel(pos, neg, variables, chosen, mask_or_none)
    size = 1.0 / min(alpha, beta)
    assert_allclose(actual.value, value, rtol=1e-5, atol=1e-5 * size)
    # float32 scores reach z with an error of some eps times sharpness
    tolerance = 2e-5 * max(1.0, sharpness / 5.0)
    assert_allclose(actual.d_pos, grads[0], rtol=tolerance, atol=tolerance * size / batch)
    assert_allclose(actual.d_neg, grads[1], rtol=tolerance, atol=tolerance * size / (batch * n))
    assert_allclose(actual.d_variables, grads[2:], rtol=tolerance, atol=tolerance * size)


def test_llpauc_kernel_parallel_result_is_independent_of_threads() -> None:
    pos, neg = draw(1, 512, 300)  # 153,600 entries: five chunks
    assert neg.numel() >= kernels.MIN_PARALLEL
    mask = torch.rand(neg.shape, generator=torch.Generator().manual_seed(0)) < 0.9
    chosen = Settings(0.7, 0.1, 5.0, 0.0)
    for keep in (None, mask):
        value, grads = by_autograd(pos, neg, INITIAL_VARIABLES, chosen, keep)
        before = numba.get_num_threads()
        results = []
        for threads in {1, before}:
            numba.set_num_threads(threads)
            results.append(run_llpauc_kernel(pos, neg, INITIAL_VARIABLES, chosen, keep))
        numba.set_num_threads(before)
        assert_allclose(results[0].value, value, rtol=1e-6)
        assert_allclose(results[0].d_neg, grads[1], rtol=1e-5, atol=1e-10)
        assert_allclose(results[0].d_variables, grads[2:], rtol=1e-5, atol=1e-5)
        for other in results[1:]:
            assert other.value == results[0].value
            assert other.d_variables == results[0].d_variables
            assert np.array_equal(other.d_neg, results[0].d_neg)


def test_llpauc_loss_backward_agrees_with_value_and_grads_and_float64() -> None:
    pos, neg = (x.requires_grad_() for x in draw(2, 16, 30))
    loss = LLPAUCLoss(0.7, 0.1)
    loss(pos, neg).backward()
    by_backward = [parameter.grad.clone() for parameter in loss.variables]
    value, d_pos, d_neg = loss.value_and_grads(pos, neg)
    assert torch.equal(pos.grad, d_pos)
    assert torch.equal(neg.grad, d_neg)
    for parameter, expected in zip(loss.variables, by_backward, strict=True):
        assert parameter.grad.item() == pytest.approx(expected.item())
    wide = loss.value_and_grads(pos.double(), neg.double())  # no kernel: through autograd
    assert wide[0] == pytest.approx(value, rel=1e-5)
    torch.testing.assert_close(wide[2].float(), d_neg, rtol=1e-4, atol=1e-8)


def test_llpauc_loss_backward_twice_and_scaled() -> None:
    pos, neg = (x.requires_grad_() for x in draw(3, 8, 12))
    loss = LLPAUCLoss(0.7, 0.1)
    once = torch.autograd.grad(loss(pos, neg), [pos, neg, loss.gap])
    value = 3.0 * loss(pos, neg)
    for _ in range(3):  # accumulates into the same leaves, from a retained graph
        value.backward(retain_graph=True)
    for leaf, expected in zip((pos, neg, loss.gap), once, strict=True):
        torch.testing.assert_close(leaf.grad, 9.0 * expected)


def test_llpauc_loss_second_derivatives_raise_in_float32_and_work_in_float64() -> None:
    pos, neg = (x.requires_grad_() for x in draw(4, 3, 4))
    loss = LLPAUCLoss(0.7, 0.5)
    with pytest.raises(InputError, match="first derivatives only"):
        torch.autograd.grad(loss(pos, neg), pos, create_graph=True)
    wide = [x.detach().double().requires_grad_() for x in (pos, neg)]
    assert torch.autograd.gradgradcheck(lambda p, n: loss(p, n), wide)


def test_llpauc_loss_accepts_non_contiguous_scores() -> None:
    pos, neg = draw(5, 6, 10)
    loss = LLPAUCLoss(0.7, 0.3)
    transposed = neg.T.contiguous().T.requires_grad_()
    strided = torch.stack([pos, pos], 1)[:, 0].requires_grad_()
    assert not transposed.is_contiguous()
    value = loss(strided, transposed)
    expected = loss.value_and_grads(pos, neg)
    assert value.item() == pytest.approx(expected[0])
    d_pos, d_neg = torch.autograd.grad(value, [strided, transposed])
    assert torch.equal(d_pos, expected[1])
    assert torch.equal(d_neg, expected[2])


def test_llpauc_loss_gradients_of_a_row_without_pairs_are_zero() -> None:
    pos, neg = draw(6, 4, 5)
    mask = torch.ones(4, 5, dtype=torch.bool)
    mask[2] = False
    neg[2] = float("nan")
    value, d_pos, d_neg = LLPAUCLoss(0.7, 0.3).value_and_grads(pos, neg, mask)
    rest = [0, 1, 3]
    expected = LLPAUCLoss(0.7, 0.3).value_and_grads(pos[rest], neg[rest])
    assert value == pytest.approx(expected[0])
    assert d_pos[2] == 0.0
    assert torch.all(d_neg[2] == 0.0)
    torch.testing.assert_close(d_pos[rest], expected[1])
    torch.testing.assert_close(d_neg[rest], expected[2])
    _, wide_d_pos, _ = LLPAUCLoss(0.7, 0.3).value_and_grads(pos.double(), neg.double(), mask)
    torch.testing.assert_close(wide_d_pos.float(), d_pos, rtol=1e-4, atol=1e-7)


def test_llpauc_loss_of_a_batch_without_pairs_is_zero() -> None:
    pos, neg = (x.requires_grad_() for x in draw(7, 3, 4))
    nothing = torch.zeros(3, 4, dtype=torch.bool)
    for dtype in (torch.float32, torch.float64):
        loss = LLPAUCLoss(0.7, 0.3)
        value = loss(pos.to(dtype), neg.to(dtype), nothing)
        assert value.item() == 0.0
        assert all(torch.all(g == 0) for g in torch.autograd.grad(value, [pos, neg]))
        assert loss.value_and_grads(pos.to(dtype), neg.to(dtype), nothing)[0] == 0.0


def test_llpauc_loss_non_finite_variables_are_named_in_the_error() -> None:
    loss = LLPAUCLoss(0.7, 0.3)
    with torch.no_grad():
        loss.gap.fill_(float("nan"))
    for dtype in (torch.float32, torch.float64):
        with pytest.raises(InputError, match="'gap': nan"):
            loss(torch.zeros(2, dtype=dtype), torch.zeros(2, 3, dtype=dtype))


ROW_LOSSES = {
    "bpr": bpr_loss,
    "bce": bce_loss,
    "sce": sce_loss,
    "sl": lambda pos, neg, mask: sl_loss(pos, neg, mask, temperature=0.2),
}


def row_loss_by_autograd(name, pos, neg, mask=None):
    wide = [x.double().requires_grad_() for x in (pos, neg)]
    rows = slice(None) if mask is None else mask.any(1)
    value = ROW_LOSSES[name](wide[0][rows], wide[1][rows], None if mask is None else mask[rows])
    return value.item(), [g.numpy() for g in torch.autograd.grad(value, wide)]


@pytest.mark.parametrize("name", list(ROW_LOSSES))
@given(
    seed=st.integers(0, 10_000),
    batch=st.integers(1, 9),
    n=st.sampled_from([1, 2, 7, 40, 100, 2500]),
    spread=st.sampled_from([0.0, 0.01, 2.0, 30.0, 1e4]),
    masked=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_row_kernel_equals_autograd_in_float64(name, seed, batch, n, spread, masked) -> None:
    pos, neg = draw(seed, batch, n, spread)
    mask = None
    if masked:
        mask = torch.rand(batch, n, generator=torch.Generator().manual_seed(seed)) < 0.6
        mask[0, 0] = True
    loss = make_loss(name)
    assert loss.kernel() is not None
    value, d_pos, d_neg = loss.value_and_grads(pos, neg, mask)
    expected, grads = row_loss_by_autograd(name, pos, neg, mask)
    # float32 knows a score of 1e4, and so its distance to another, to 1e-3. The terms of the rows
    # can cancel, so this bounds the absolute error of the value.
    assert_allclose(value, expected, rtol=2e-6, atol=2e-6 * max(1.0, spread))
    tolerance = 3e-6 * max(1.0, spread)
    assert_allclose(d_pos, grads[0], rtol=tolerance, atol=tolerance / batch)
    assert_allclose(d_neg, grads[1], rtol=tolerance, atol=tolerance / batch)


@pytest.mark.parametrize("name", list(ROW_LOSSES))
def test_row_kernel_counts_only_unmasked_non_finite_scores(name) -> None:
    pos, neg = draw(8, 4, 5)
    mask = torch.ones(4, 5, dtype=torch.bool)
    mask[1] = False
    mask[2, 3] = False
    invalid = pos.clone(), neg.clone()
    invalid[0][1], invalid[1][1], invalid[1][2, 3] = float("nan"), float("inf"), float("nan")
    whole, with_invalid = (make_loss(name).value_and_grads(*x, mask) for x in ((pos, neg), invalid))
    assert whole[0] == with_invalid[0]
    assert all(torch.equal(x, y) for x, y in zip(whole[1:], with_invalid[1:], strict=True))
    assert whole[1][1] == 0.0
    for bad in (float("nan"), float("inf"), -float("inf")):
        invalid[0][0] = invalid[1][3, 4] = bad
        with pytest.raises(InputError, match="1 of pos_scores, 1 of neg_scores are NaN"):
            make_loss(name).value_and_grads(*invalid, mask)


@pytest.mark.parametrize("name", list(ROW_LOSSES))
def test_row_kernel_result_is_independent_of_threads(name) -> None:
    pos, neg = draw(9, 64, 1500)
    assert neg.numel() >= kernels.MIN_PARALLEL
    before = numba.get_num_threads()
    results = []
    try:
        for threads in {1, before}:
            numba.set_num_threads(threads)
            results.append(make_loss(name).value_and_grads(pos, neg))
    finally:
        numba.set_num_threads(before)
    expected, grads = row_loss_by_autograd(name, pos, neg)
    assert results[0][0] == pytest.approx(expected, rel=1e-6)
    assert_allclose(results[0][2], grads[1], rtol=1e-5, atol=1e-9)
    for other in results[1:]:
        assert other[0] == results[0][0]
        assert torch.equal(other[1], results[0][1])
        assert torch.equal(other[2], results[0][2])
