"""LLPAUC with each row's own threshold among its negatives: `LLPAUCLoss(solver="rows")`.

The metric is one of each user's own list, averaged; the paper's loss pools all users of a batch
under one threshold. A user whose scores are high altogether then takes most of the selected
negatives, and one whose scores are low takes none. Here a row, a positive of a user with negatives
drawn for it, selects among its own negatives:

    d_ij = (1 - f_i + f_j)^2
    L_i = min_s   s + (1/beta) mean_j r(d_ij - s)             the row's hardest share beta
    F   = max_t  -t - (1/alpha) mean_i r(-L_i - t)  -  1      the best share alpha of the rows

with r(x) = softplus(kappa x) / kappa. As kappa grows, F goes to the mean over the selected pairs of
(1 - f_i + f_j)^2, minus 1: the saddle value of the pooled loss, row by row. Both thresholds are
where the weights r' have the mean beta (alpha); they are solved on the batch, so there is nothing
to learn and nothing to ascend, and the gradient is the partial one at the solution (envelope
theorem). A share of 1 selects nothing: the plain mean.
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
from llpauc.losses.kernels import FAST, LARGEST, ONE, ZERO, Floats, Keep, exp_below_0, log1p_to_1
from llpauc.losses.objective import hinge
from llpauc.losses.row_kernels import WORTH_THREADS, RowResult
from llpauc.metrics.partial_auc import selected_count

SHARPEST = 1e6  # kappa of the kernel; beyond it float32 cannot tell where a weight leaves 0
# Of 1 / kappa, the last step: weights are then right to its square, 1e-4 (up to a kappa of some
# hundreds; beyond, what float32 leaves of the threshold decides).
_CLOSE = 0.01
_ROUNDING = 1e-6  # of the mean weight; where all weights are 0 or 1 a step says no more than this
_MOST_STEPS = 40
_BLOCK = 128  # negatives that are added in float32 before they go into a float64
_HALVINGS = 60


def row_objective(
    pos: Tensor, neg: Tensor, alpha: float, beta: float, sharpness: float, mask: Tensor | None
) -> Tensor:
    """F of the top of this file in plain torch: any device, any float, first derivatives.

    Args:
        pos: (B,) scores of the positives.
        neg: (B, N) scores of the negatives.
        alpha, beta: shares in (0, 1].
        sharpness: kappa, above 0; inf for max(0, .).
        mask: bool (B, N), True where a pair counts; every row must have one.

    >>> row_objective(torch.zeros(2), torch.zeros(2, 3), 1.0, 1.0, 5.0, None)  # 1^2 - 1
    tensor(0.)
    """
    pairs = (1.0 - pos.sigmoid()[:, None] + neg.sigmoid()).square()
    rows = _hardest(pairs, mask, beta, sharpness)
    best = -_hardest(-rows[None, :], None, alpha, sharpness)[0]
    return best - 1.0


def _hardest(values: Tensor, mask: Tensor | None, share: float, sharpness: float) -> Tensor:
    """(B, N) -> (B,): min_s s + mean r(x - s) / share of each row."""
    if share == 1.0:
        return row_mean(values, mask)
    with torch.no_grad():
        reach = math.log(share / (1.0 - share)) / sharpness
        low = values.amin(1) - reach  # what does not count only widens the bracket
        high = values.amax(1) - reach
        for _ in range(_HALVINGS):
            middle = 0.5 * (low + high)
            excess = values - middle[:, None]
            over = (
                (excess > 0).to(values) if math.isinf(sharpness) else (sharpness * excess).sigmoid()
            )
            above = row_mean(over, mask) > share
            low, high = torch.where(above, middle, low), torch.where(above, high, middle)
        threshold = 0.5 * (low + high)
    return threshold + row_mean(hinge(values - threshold[:, None], sharpness), mask) / share


@torch.no_grad()
def hard_row_llpauc(
    pos: Tensor, neg: Tensor, mask: Tensor | None, alpha: float, beta: float
) -> float:
    """The best share alpha of the rows: how much of a row's best share beta of negatives lies
    below its positive, on average. 1 at best; ties count 0.

    >>> pos, neg = torch.tensor([2.0, 0.0]), torch.tensor([[1.0, 0.5], [1.0, -1.0]])
    >>> hard_row_llpauc(pos, neg, None, 1.0, 0.5), hard_row_llpauc(pos, neg, None, 0.5, 0.5)
    (0.5, 1.0)
    """
    counts = torch.full_like(pos, neg.shape[1]) if mask is None else mask.sum(1)
    taken = torch.tensor([selected_count(beta, int(n)) for n in counts])
    above = row_sum((neg >= pos[:, None]).to(pos), mask).cpu()  # they come first among the taken
    won = (1.0 - above / taken).clamp(min=0.0)
    return float(won.topk(selected_count(alpha, len(won))).values.mean())


@dataclass(frozen=True)
class OwnRowsKernel:
    """`row_objective` and its gradient without autograd: float32, on a CPU, up to SHARPEST.

    See `llpauc.losses.row_kernels.Kernel`.
    """

    alpha: float
    beta: float
    sharpness: float

    def __call__(self, pos: Floats, neg: Floats, keep: Keep | None) -> RowResult:
        d_pos, d_neg = np.empty(pos.shape, np.float32), np.empty(neg.shape, np.float32)
        losses, thresholds = np.empty(len(pos)), np.empty(len(pos), np.float32)
        counts, broken = np.empty(len(pos)), np.empty(len(pos))
        spread = neg.size >= WORTH_THREADS
        solve, slope = (_solve_parallel, _slope_parallel) if spread else (_solve, _slope)
        own = self.beta, self.sharpness
        solve(pos, neg, keep, *own, d_neg, losses, thresholds, counts, broken)
        there = counts > 0
        pos_broken = int((~np.isfinite(pos[there])).sum())
        neg_broken = int(broken.sum())
        if pos_broken or neg_broken or not there.any():
            return RowResult(0.0, np.zeros_like(pos), np.zeros_like(neg), pos_broken, neg_broken)
        value, weights = _best_rows(losses, there, self.alpha, self.sharpness)
        slope(pos, neg, keep, *own, weights, thresholds, counts, d_pos, d_neg)
        return RowResult(value - 1.0, d_pos, d_neg, 0, 0)


def _best_rows(
    losses: npt.NDArray[np.float64], there: npt.NDArray[np.bool_], alpha: float, sharpness: float
) -> tuple[float, Floats]:
    """The outer max over t, and the weight of each row in F."""
    weights = np.zeros(len(losses), np.float32)
    own = losses[there]
    if alpha == 1.0:
        weights[there] = 1.0 / len(own)
        return float(own.mean()), weights
    reach = math.log(alpha / (1.0 - alpha)) / sharpness
    low, high = -own.max() - reach, -own.min() - reach
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        share = _sigmoid(sharpness * (-own - middle))
        low, high = (middle, high) if share.mean() > alpha else (low, middle)
        if high - low < 1e-9:
            break
    excess = sharpness * (-own - middle)
    weights[there] = _sigmoid(excess) / (alpha * len(own))
    return float(-middle - np.logaddexp(0.0, excess).mean() / (sharpness * alpha)), weights


def _sigmoid(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return 0.5 * (1.0 + np.tanh(0.5 * x))


@njit(nogil=True, cache=True)
def _solve(pos, neg, keep, beta, sharpness, f, losses, thresholds, counts, broken):  # type: ignore[no-untyped-def]
    for i in range(len(pos)):
        kept = None if keep is None else keep[i]
        losses[i], thresholds[i], counts[i], broken[i] = _solve_row(
            pos[i], neg[i], kept, beta, sharpness, f[i]
        )


@njit(nogil=True, parallel=True, cache=True)
def _solve_parallel(pos, neg, keep, beta, sharpness, f, losses, thresholds, counts, broken):  # type: ignore[no-untyped-def]
    for i in prange(len(pos)):
        kept = None if keep is None else keep[i]
        losses[i], thresholds[i], counts[i], broken[i] = _solve_row(
            pos[i], neg[i], kept, beta, sharpness, f[i]
        )


@njit(nogil=True, cache=True)
def _slope(pos, neg, keep, beta, sharpness, weights, thresholds, counts, d_pos, d_neg):  # type: ignore[no-untyped-def]
    for i in range(len(pos)):
        kept = None if keep is None else keep[i]
        d_pos[i] = _slope_row(
            pos[i], neg[i], kept, beta, sharpness, weights[i], thresholds[i], counts[i], d_neg[i]
        )


@njit(nogil=True, parallel=True, cache=True)
def _slope_parallel(pos, neg, keep, beta, sharpness, weights, thresholds, counts, d_pos, d_neg):  # type: ignore[no-untyped-def]
    for i in prange(len(pos)):
        kept = None if keep is None else keep[i]
        d_pos[i] = _slope_row(
            pos[i], neg[i], kept, beta, sharpness, weights[i], thresholds[i], counts[i], d_neg[i]
        )


@njit(nogil=True, cache=True)
def _solve_row(pos, neg, keep, beta, sharpness, f):  # type: ignore[no-untyped-def]
    """L_i, its threshold, the negatives that count and those broken; their f goes into `f`."""
    rest = _squash(-pos)  # 1 - f_i, also where f_i rounds to 1
    least, most, n, broken = _squash_row(neg, keep, f)
    if n == 0 or broken > 0:
        return 0.0, ZERO, n, broken
    if beta == 1.0:
        return _sum_of_squares(f, keep, rest) / n, ZERO, n, broken
    kappa = np.float32(sharpness)
    wanted = beta * n
    # Every weight is at least that of the least pair and at most that of the greatest.
    reach = math.log(beta / (1.0 - beta)) / sharpness
    low, high = (rest + least) ** 2 - reach, (rest + most) ** 2 - reach
    at = high
    for _ in range(_MOST_STEPS):
        weight, slope = _weigh(f, keep, rest, kappa, np.float32(at))
        weight = max(weight, 1e-30)  # all of them too small for float32: far too high
        # Newton on the logarithm of the weight: one step where all weights are exponentials.
        step = math.log(weight / wanted) * weight / (sharpness * max(slope, 1e-30))
        if sharpness * abs(step) <= _CLOSE:
            at += step
            break
        if abs(weight - wanted) <= _ROUNDING * wanted:
            break
        if weight > wanted:
            low = at
        else:
            high = at
        at = at + step if low < at + step < high else 0.5 * (low + high)
    hinges = _hinges(f, keep, rest, kappa, np.float32(at))
    return at + hinges / (sharpness * wanted), np.float32(at), n, broken


@njit(nogil=True, cache=True)
def _slope_row(pos, neg, keep, beta, sharpness, weight, threshold, n, f):  # type: ignore[no-untyped-def]
    """The gradient by the positive; that by the negatives goes over their f."""
    if n == 0:
        f[:] = ZERO
        return ZERO
    rest = _squash(-pos)
    scale = np.float32(2.0 * weight / (beta * n))
    if beta == 1.0:
        total = _plain_slopes(neg, f, keep, rest, scale)
    else:
        total = _slopes(neg, f, keep, rest, np.float32(sharpness), threshold, scale)
    return np.float32(-total * _slope_of_squash(pos))


@njit(inline="always", fastmath=FAST, error_model="numpy")
def _squash(x):  # type: ignore[no-untyped-def]
    """sigmoid(x)."""
    e = exp_below_0(-abs(x))
    part = ONE / (ONE + e)
    return part if x >= ZERO else e * part


@njit(inline="always", fastmath=FAST, error_model="numpy")
def _slope_of_squash(x):  # type: ignore[no-untyped-def]
    """f (1 - f), also where f rounds to 1."""
    e = exp_below_0(-abs(x))
    part = ONE / (ONE + e)
    return e * part * part


@njit(fastmath=FAST, error_model="numpy", nogil=True, cache=True)
def _squash_row(x, keep, f):  # type: ignore[no-untyped-def]
    """sigmoid into `f`; least and greatest of those that count, their number, the broken ones."""
    least, most, n, broken = ONE, ZERO, 0, ZERO
    for j in range(len(x)):
        counts = True if keep is None else keep[j]
        own = _squash(x[j])
        f[j] = own if counts else ZERO
        least = min(least, own if counts else ONE)
        most = max(most, own if counts else ZERO)
        n += 1 if counts else 0
        broken += ONE if counts and not abs(x[j]) <= LARGEST else ZERO
    return least, most, n, broken


@njit(fastmath=FAST, error_model="numpy", nogil=True, cache=True)
def _weigh(f, keep, rest, kappa, threshold):  # type: ignore[no-untyped-def]
    """The sum of the weights, and of w (1 - w)."""
    weight, slope = ZERO, ZERO
    for j in range(len(f)):
        counts = True if keep is None else keep[j]
        gap = rest + f[j]
        w = _squash(kappa * (gap * gap - threshold))
        w = w if counts else ZERO
        weight += w
        slope += w * (ONE - w)
    return np.float64(weight), np.float64(slope)


@njit(nogil=True, cache=True)
def _hinges(f, keep, rest, kappa, threshold):  # type: ignore[no-untyped-def]
    """The sum of softplus(kappa (d - threshold)); float32 alone would round it over a long row."""
    total = 0.0
    for low in range(0, len(f), _BLOCK):
        kept = None if keep is None else keep[low : low + _BLOCK]
        total += _hinge_block(f[low : low + _BLOCK], kept, rest, kappa, threshold)
    return total


@njit(fastmath=FAST, error_model="numpy", nogil=True, cache=True)
def _hinge_block(f, keep, rest, kappa, threshold):  # type: ignore[no-untyped-def]
    total = ZERO
    for j in range(len(f)):
        counts = True if keep is None else keep[j]
        gap = rest + f[j]
        z = kappa * (gap * gap - threshold)
        hinge = max(z, ZERO) + log1p_to_1(exp_below_0(-abs(z)))
        total += hinge if counts else ZERO
    return np.float64(total)


@njit(nogil=True, cache=True)
def _sum_of_squares(f, keep, rest):  # type: ignore[no-untyped-def]
    """The sum of d, where nothing is selected."""
    total = 0.0
    for low in range(0, len(f), _BLOCK):
        kept = None if keep is None else keep[low : low + _BLOCK]
        total += _square_block(f[low : low + _BLOCK], kept, rest)
    return total


@njit(fastmath=FAST, error_model="numpy", nogil=True, cache=True)
def _square_block(f, keep, rest):  # type: ignore[no-untyped-def]
    total = ZERO
    for j in range(len(f)):
        counts = True if keep is None else keep[j]
        gap = rest + f[j]
        total += gap * gap if counts else ZERO
    return np.float64(total)


@njit(fastmath=FAST, error_model="numpy", nogil=True, cache=True)
def _slopes(x, f, keep, rest, kappa, threshold, scale):  # type: ignore[no-untyped-def]
    """Each f makes way for its score's gradient; the sum of those by f comes back."""
    total = ZERO
    for j in range(len(f)):
        counts = True if keep is None else keep[j]
        gap = rest + f[j]
        by_f = scale * _squash(kappa * (gap * gap - threshold)) * gap
        total += by_f if counts else ZERO
        f[j] = by_f * _slope_of_squash(x[j]) if counts else ZERO
    return total


@njit(fastmath=FAST, error_model="numpy", nogil=True, cache=True)
def _plain_slopes(x, f, keep, rest, scale):  # type: ignore[no-untyped-def]
    """The same where nothing is selected."""
    total = ZERO
    for j in range(len(f)):
        counts = True if keep is None else keep[j]
        by_f = scale * (rest + f[j])
        total += by_f if counts else ZERO
        f[j] = by_f * _slope_of_squash(x[j]) if counts else ZERO
    return total
