"""LLPAUC with a threshold for each row among its negatives: `LLPAUCLoss(solver="per-user")`.

The metric is computed for each user's list and averaged, whereas the paper's loss pools all users
of a batch under one threshold: a user with high scores then has most of the selected negatives, and
one with low scores has none. Here every row, a positive of a user with negatives drawn for it,
selects among its negatives:

    d_ij = (1 - f_i + f_j)^2
    L_i = min_s   s + (1/beta) mean_j r(d_ij - s)             hardest fraction beta of the row
    F   = max_t  -t - (1/alpha) mean_i r(-L_i - t)  -  1      best fraction alpha of the rows

with r(x) = softplus(kappa x) / kappa. As kappa grows, F approaches the mean over the selected pairs
of (1 - f_i + f_j)^2, minus 1: the saddle value of the pooled loss, row by row. At both thresholds
the weights r' have the mean beta (alpha). They are solved on the batch, so there is no variable to
learn, and the gradient is the partial one at the solution (envelope theorem). A fraction of 1
selects nothing: the plain mean.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from numba import njit, prange
from torch import Tensor

from llpauc.losses.base import row_mean, row_sum
from llpauc.losses.kernels import (
    FAST,
    LARGEST,
    MIN_PARALLEL,
    ONE,
    ZERO,
    Floats,
    Keep,
    KernelResult,
    exp_below_0,
    log1p_to_1,
)
from llpauc.losses.objective import hinge
from llpauc.metrics.partial_auc import selected_count

MAX_SHARPNESS = 1e6  # kappa of the kernel; above it float32 cannot resolve where a weight leaves 0
# The last Newton step in units of 1 / kappa. Weights are then exact to its square, 1e-4 (for kappa
# up to some hundreds; above, the precision of a float32 threshold decides).
_CLOSE = 0.01
_ROUNDING = 1e-6  # of the mean weight: where all weights are 0 or 1, steps are not more precise
_MAX_STEPS = 40
_BLOCK = 128  # negatives that are added in float32 before they go into a float64
_BISECTIONS = 60


def per_user_objective(
    pos: Tensor, neg: Tensor, alpha: float, beta: float, sharpness: float, mask: Tensor | None
) -> Tensor:
    """F of this module in plain torch: any device, any float type, first derivatives.

    Args:
        pos: (B,) scores of the positives.
        neg: (B, N) scores of the negatives.
        alpha, beta: fractions in (0, 1].
        sharpness: kappa, above 0; inf for max(0, .).
        mask: bool (B, N), True where a pair counts; every row must have one.

    >>> per_user_objective(torch.zeros(2), torch.zeros(2, 3), 1.0, 1.0, 5.0, None)  # 1^2 - 1
    tensor(0.)
    """
    pairs = (1.0 - pos.sigmoid()[:, None] + neg.sigmoid()).square()
    rows = _hardest(pairs, mask, beta, sharpness)
    best = -_hardest(-rows[None, :], None, alpha, sharpness)[0]
    return best - 1.0


def _hardest(values: Tensor, mask: Tensor | None, fraction: float, sharpness: float) -> Tensor:
    """(B, N) -> (B,): min_s s + mean r(x - s) / fraction of each row."""
    if fraction == 1.0:
        return row_mean(values, mask)
    with torch.no_grad():
        reach = math.log(fraction / (1.0 - fraction)) / sharpness
        low = values.amin(1) - reach  # masked values only widen the bracket
        high = values.amax(1) - reach
        for _ in range(_BISECTIONS):
            middle = 0.5 * (low + high)
            excess = values - middle[:, None]
            weights = (
                (excess > 0).to(values) if math.isinf(sharpness) else (sharpness * excess).sigmoid()
            )
            above = row_mean(weights, mask) > fraction
            low, high = torch.where(above, middle, low), torch.where(above, high, middle)
        threshold = 0.5 * (low + high)
    return threshold + row_mean(hinge(values - threshold[:, None], sharpness), mask) / fraction


@torch.no_grad()
def hard_row_llpauc(
    pos: Tensor, neg: Tensor, mask: Tensor | None, alpha: float, beta: float
) -> float:
    """The fraction of a row's best beta of negatives that are below its positive, averaged over
    the best alpha of the rows. 1 at best; ties count 0.

    >>> pos, neg = torch.tensor([2.0, 0.0]), torch.tensor([[1.0, 0.5], [1.0, -1.0]])
    >>> hard_row_llpauc(pos, neg, None, 1.0, 0.5), hard_row_llpauc(pos, neg, None, 0.5, 0.5)
    (0.5, 1.0)
    """
    counts = torch.full_like(pos, neg.shape[1]) if mask is None else mask.sum(1)
    selected = torch.tensor([selected_count(beta, int(n)) for n in counts])
    above = row_sum((neg >= pos[:, None]).to(pos), mask).cpu()  # selected first
    won = (1.0 - above / selected).clamp(min=0.0)
    return float(won.topk(selected_count(alpha, len(won))).values.mean())


@dataclass(frozen=True)
class PerUserKernel:
    """`per_user_objective` and its gradient without autograd, up to MAX_SHARPNESS.

    A `llpauc.losses.kernels.Kernel`.
    """

    alpha: float
    beta: float
    sharpness: float

    def __call__(self, pos: Floats, neg: Floats, keep: Keep | None) -> KernelResult:
        d_pos, d_neg = np.empty(pos.shape, np.float32), np.empty(neg.shape, np.float32)
        losses, thresholds = np.empty(len(pos)), np.empty(len(pos), np.float32)
        counts, invalid = np.empty(len(pos)), np.empty(len(pos))
        parallel = neg.size >= MIN_PARALLEL
        solve, grads = (_solve_parallel, _grads_parallel) if parallel else (_solve, _grads)
        settings = self.beta, self.sharpness
        solve(pos, neg, keep, d_neg, losses, thresholds, counts, invalid, *settings)
        nonempty = counts > 0
        pos_invalid = int((~np.isfinite(pos[nonempty])).sum())
        neg_invalid = int(invalid.sum())
        if pos_invalid or neg_invalid or not nonempty.any():
            zeros = np.zeros_like(pos), np.zeros_like(neg)
            return KernelResult(0.0, *zeros, pos_invalid, neg_invalid)
        value, weights = _best_rows(losses, nonempty, self.alpha, self.sharpness)
        grads(pos, neg, keep, d_pos, d_neg, weights, thresholds, counts, *settings)
        return KernelResult(value - 1.0, d_pos, d_neg, 0, 0)


def _best_rows(
    losses: npt.NDArray[np.float64], nonempty: npt.NDArray[np.bool_], alpha: float, sharpness: float
) -> tuple[float, Floats]:
    """The outer max over t, and the weight of each row in F."""
    weights = np.zeros(len(losses), np.float32)
    counted = losses[nonempty]
    if alpha == 1.0:
        weights[nonempty] = 1.0 / len(counted)
        return float(counted.mean()), weights
    reach = math.log(alpha / (1.0 - alpha)) / sharpness
    low, high = -counted.max() - reach, -counted.min() - reach
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        mean_weight = _sigmoid(sharpness * (-counted - middle)).mean()
        low, high = (middle, high) if mean_weight > alpha else (low, middle)
        if high - low < 1e-9:
            break
    excess = sharpness * (-counted - middle)
    weights[nonempty] = _sigmoid(excess) / (alpha * len(counted))
    return float(-middle - np.logaddexp(0.0, excess).mean() / (sharpness * alpha)), weights


def _sigmoid(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return 0.5 * (1.0 + np.tanh(0.5 * x))


@njit(nogil=True, cache=True)
def _solve(pos, neg, keep, f, losses, thresholds, counts, invalid, *settings):
    for i in range(len(pos)):
        part = None if keep is None else keep[i]
        losses[i], thresholds[i], counts[i], invalid[i] = _solve_row(
            pos[i], neg[i], part, f[i], *settings
        )


@njit(nogil=True, parallel=True, cache=True)
def _solve_parallel(pos, neg, keep, f, losses, thresholds, counts, invalid, *settings):
    for i in prange(len(pos)):
        part = None if keep is None else keep[i]
        losses[i], thresholds[i], counts[i], invalid[i] = _solve_row(
            pos[i], neg[i], part, f[i], *settings
        )


@njit(nogil=True, cache=True)
def _grads(pos, neg, keep, d_pos, d_neg, weights, thresholds, counts, *settings):
    for i in range(len(pos)):
        part = None if keep is None else keep[i]
        row = weights[i], thresholds[i], counts[i]
        d_pos[i] = _grads_row(pos[i], neg[i], part, d_neg[i], *row, *settings)


@njit(nogil=True, parallel=True, cache=True)
def _grads_parallel(pos, neg, keep, d_pos, d_neg, weights, thresholds, counts, *settings):
    for i in prange(len(pos)):
        part = None if keep is None else keep[i]
        row = weights[i], thresholds[i], counts[i]
        d_pos[i] = _grads_row(pos[i], neg[i], part, d_neg[i], *row, *settings)


@njit(nogil=True, cache=True)
def _solve_row(pos, neg, keep, f, beta, sharpness):
    """L_i, its threshold, the numbers of counting and of invalid negatives; writes their f."""
    rest = _sigmoid32(-pos)  # 1 - f_i, also where f_i rounds to 1
    least, most, n, invalid = _sigmoid_row(neg, keep, f)
    if n == 0 or invalid > 0:
        return 0.0, ZERO, n, invalid
    kappa = np.float32(sharpness)
    if beta == 1.0:
        return _sum_blocks(f, keep, rest, kappa, None) / n, ZERO, n, invalid
    target = beta * n
    # Every weight is at least that of the smallest pair and at most that of the largest.
    reach = math.log(beta / (1.0 - beta)) / sharpness
    low, high = (rest + least) ** 2 - reach, (rest + most) ** 2 - reach
    at = high
    for _ in range(_MAX_STEPS):
        weight, slope = _sum_weights(f, keep, rest, kappa, np.float32(at))
        weight = max(weight, 1e-30)  # all too small for float32: the threshold is far too high
        # Newton on the logarithm of the weight: one step where all weights are exponentials.
        step = math.log(weight / target) * weight / (sharpness * max(slope, 1e-30))
        if sharpness * abs(step) <= _CLOSE:
            at += step
            break
        if abs(weight - target) <= _ROUNDING * target:
            break
        if weight > target:
            low = at
        else:
            high = at
        at = at + step if low < at + step < high else 0.5 * (low + high)
    hinges = _sum_blocks(f, keep, rest, kappa, np.float32(at))
    return at + hinges / (sharpness * target), np.float32(at), n, invalid


@njit(nogil=True, cache=True)
def _grads_row(pos, neg, keep, f, weight, threshold, n, beta, sharpness):
    """The gradient by the positive; that by the negatives replaces their f."""
    if n == 0:
        f[:] = ZERO
        return ZERO
    rest = _sigmoid32(-pos)
    kappa, scale = np.float32(sharpness), np.float32(2.0 * weight / (beta * n))
    if beta == 1.0:
        total = _neg_grads(neg, f, keep, rest, kappa, None, scale)
    else:
        total = _neg_grads(neg, f, keep, rest, kappa, threshold, scale)
    return np.float32(-total * _sigmoid_slope(pos))


@njit(inline="always", fastmath=FAST, error_model="numpy")
def _sigmoid32(x):
    """sigmoid(x)."""
    e = exp_below_0(-abs(x))
    part = ONE / (ONE + e)
    return part if x >= ZERO else e * part


@njit(inline="always", fastmath=FAST, error_model="numpy")
def _sigmoid_slope(x):
    """f (1 - f), also where f rounds to 1."""
    e = exp_below_0(-abs(x))
    part = ONE / (ONE + e)
    return e * part * part


@njit(fastmath=FAST, error_model="numpy", nogil=True, forceinline=True)
def _sigmoid_row(x, keep, f):
    """Write sigmoid to `f`; smallest, largest and number of those that count, invalid scores."""
    least, most, n, invalid = ONE, ZERO, 0, ZERO
    for j in range(len(x)):
        counts = True if keep is None else keep[j]
        value = _sigmoid32(x[j])
        f[j] = value if counts else ZERO
        least = min(least, value if counts else ONE)
        most = max(most, value if counts else ZERO)
        n += 1 if counts else 0
        invalid += ONE if counts and not abs(x[j]) <= LARGEST else ZERO
    return least, most, n, invalid


@njit(fastmath=FAST, error_model="numpy", nogil=True, forceinline=True)
def _sum_weights(f, keep, rest, kappa, threshold):
    """The sum of the weights, and of w (1 - w)."""
    weight, slope = ZERO, ZERO
    for j in range(len(f)):
        counts = True if keep is None else keep[j]
        gap = rest + f[j]
        w = _sigmoid32(kappa * (gap * gap - threshold))
        w = w if counts else ZERO
        weight += w
        slope += w * (ONE - w)
    return np.float64(weight), np.float64(slope)


@njit(nogil=True, cache=True)
def _sum_blocks(f, keep, rest, kappa, threshold):
    """The sum of softplus(kappa (d - threshold)), or of d where the threshold is None, in float64
    over blocks of float32."""
    total = 0.0
    for low in range(0, len(f), _BLOCK):
        part = None if keep is None else keep[low : low + _BLOCK]
        total += _sum_block(f[low : low + _BLOCK], part, rest, kappa, threshold)
    return total


@njit(fastmath=FAST, error_model="numpy", nogil=True, forceinline=True)
def _sum_block(f, keep, rest, kappa, threshold):
    total = ZERO
    for j in range(len(f)):
        counts = True if keep is None else keep[j]
        gap = rest + f[j]
        if threshold is None:
            term = gap * gap
        else:
            z = kappa * (gap * gap - threshold)
            term = max(z, ZERO) + log1p_to_1(exp_below_0(-abs(z)))
        total += term if counts else ZERO
    return np.float64(total)


@njit(fastmath=FAST, error_model="numpy", nogil=True, forceinline=True)
def _neg_grads(x, f, keep, rest, kappa, threshold, scale):
    """Replace each f by the gradient of its score; the sum of the gradients by f is returned."""
    total = ZERO
    for j in range(len(f)):
        counts = True if keep is None else keep[j]
        gap = rest + f[j]
        by_f = scale * gap
        if threshold is not None:
            by_f = scale * _sigmoid32(kappa * (gap * gap - threshold)) * gap
        total += by_f if counts else ZERO
        f[j] = by_f * _sigmoid_slope(x[j]) if counts else ZERO
    return total
