"""Value and gradients of losses in one pass over the scores: float32 on a CPU, with Numba.

The equations are in plain torch (`llpauc_objective`, `bpr_loss`, `bce_loss`, `sce_loss` and
`sl_loss`); these are their derivatives written out by hand. Autograd of the LLPAUC objective makes
about 25 passes over (B, N) memory, and on a batch of 128 rows it spends ten times as long on its
graph as on the numbers. exp and log1p are polynomials (relative error below 3e-7), so that LLVM
vectorises the loops; calls of libm would keep them scalar, 13 times slower.

The order of every sum is fixed by the constants below, never by the number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit, prange

Floats = npt.NDArray[np.float32]
Keep = npt.NDArray[np.bool_]

# Sums may be re-associated into vector lanes and multiplications fused; NaN and infinity keep
# their meaning, so that invalid scores are counted. Functions with these flags are always inlined:
# of several compiled copies, which round differently, the linker would choose another one when the
# caller comes from Numba's cache.
FAST = {"reassoc", "contract", "nsz", "arcp"}
_BLOCK = 1024  # float32 sums run over this many entries before they go into a float64
_CHUNK = 32768  # entries that a thread takes at a time
MIN_PARALLEL = 65_536  # entries of a batch for which threads are worth their start

# float32 all the way: one Python float in the loop would turn it into float64.
ZERO, _HALF, ONE, _TWO = np.float32(0), np.float32(0.5), np.float32(1), np.float32(2)
LARGEST = np.float32(np.finfo(np.float32).max)
_LOWEST_EXPONENT = np.float32(-87.0)  # exp of less is subnormal
_LOG2_E = np.float32(1.4426950408889634)
_LN2_HIGH, _LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
_EXP5, _EXP4 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3)
_EXP3, _EXP2 = np.float32(8.3334519e-3), np.float32(4.1665795894e-2)
_EXP1, _EXP0 = np.float32(1.6666665459e-1), np.float32(5.0000001e-1)
_ATANH3, _ATANH5, _ATANH7 = np.float32(2 / 3), np.float32(2 / 5), np.float32(2 / 7)
_ATANH9, _ATANH11, _ATANH13 = np.float32(2 / 9), np.float32(2 / 11), np.float32(2 / 13)
_BIAS, _MANTISSA = np.int32(127), np.int32(23)


@njit(inline="always", fastmath=FAST, error_model="numpy")
def exp_below_0(x: np.float32) -> np.float32:
    """e^x for x <= 0: 2^n times a polynomial of the rest (the coefficients are Cephes' expf)."""
    x = max(x, _LOWEST_EXPONENT)
    n = np.floor(x * _LOG2_E + _HALF)
    rest = x - n * _LN2_HIGH
    rest = rest - n * _LN2_LOW
    tail = ((((_EXP5 * rest + _EXP4) * rest + _EXP3) * rest + _EXP2) * rest + _EXP1) * rest + _EXP0
    power = np.int32((np.int32(n) + _BIAS) << _MANTISSA).view(np.float32)
    value: np.float32 = (tail * rest * rest + rest + ONE) * power
    return value


@njit(inline="always", fastmath=FAST, error_model="numpy")
def log1p_to_1(q: np.float32) -> np.float32:
    """log(1 + q) for q in [0, 1], as 2 atanh(q / (2 + q)): the argument is at most 1/3."""
    s = q / (_TWO + q)
    t = s * s
    tail = _ATANH5 + t * (_ATANH7 + t * (_ATANH9 + t * (_ATANH11 + t * _ATANH13)))
    return s * (_TWO + t * (_ATANH3 + t * tail))


class KernelResult(NamedTuple):
    """The loss, its gradients, and how many scores that count are NaN or infinite.

    `d_variables` are the derivatives with respect to the variables of the loss, if it has any.
    """

    value: float
    d_pos: Floats
    d_neg: Floats
    pos_invalid: int
    neg_invalid: int
    d_variables: tuple[float, ...] = ()


Kernel = Callable[[Floats, Floats, Keep | None], KernelResult]
"""(B,) and (B, N) contiguous scores, and bool (B, N), True where a pair counts, or None for all. A
row without a pair contributes nothing."""


# --- the LLPAUC objective -----------------------------------------------------------------------
# Both sides of the objective are parabolas of f = sigmoid(score), l(f) = (f + shift)^2 + constant,
# so one loop serves the positives (sign -1) and the negatives (sign +1):
#
#     z = sharpness (sign l(f) - threshold)      w = sigmoid(z)      r = softplus(z)
#     d/dscore = weight w (f + shift) f (1 - f)
#
# Shifts: h+ = -(a + 1 + gamma) and h- = 1 + gamma - b. Constants: a^2 - h+^2 and b^2 - h-^2.


@njit(fastmath=FAST, error_model="numpy", nogil=True, forceinline=True)
def _block(x, keep, gradient, shift, weight, curve, offset):
    """Sums of r, w, w f and of invalid scores over one block; writes the gradient.

    Without selection (curve None) every w is 1, and r is (f + shift)^2.
    """
    sum_r, sum_w, sum_wf, invalid = ZERO, ZERO, ZERO, ZERO
    for j in range(x.shape[0]):
        counts = True if keep is None else keep[j]
        size = abs(x[j])
        e = exp_below_0(-size)
        part = ONE / (ONE + e)
        f = part if x[j] >= ZERO else e * part
        slope = f + shift
        if curve is None:
            w, r = ONE, slope * slope
        else:
            z = offset + curve * slope * slope
            q = exp_below_0(-abs(z))
            above = ONE / (ONE + q)
            w = above if z >= ZERO else q * above
            r = max(z, ZERO) + log1p_to_1(q)
        d = weight * w * slope * e * part * part
        sum_r += r if counts else ZERO
        sum_w += w if counts else ZERO
        sum_wf += w * f if counts else ZERO
        invalid += ONE if counts and not size <= LARGEST else ZERO
        gradient[j] = d if counts else ZERO
    return sum_r, sum_w, sum_wf, invalid


@njit(nogil=True, cache=True)
def _side(x, keep, gradient, sums, shift, weight, curve, offset, select):
    """Add the sums of all blocks to `sums`, (4,) float64."""
    shift, weight = np.float32(shift), np.float32(weight)
    curve, offset = np.float32(curve), np.float32(offset)
    for low in range(0, x.shape[0], _BLOCK):
        high = min(low + _BLOCK, x.shape[0])
        part = None if keep is None else keep[low:high]
        if select:
            block = _block(x[low:high], part, gradient[low:high], shift, weight, curve, offset)
        else:
            block = _block(x[low:high], part, gradient[low:high], shift, weight, None, None)
        for i in range(4):
            sums[i] += block[i]


@njit(nogil=True, parallel=True, cache=True)
def _side_parallel(x, keep, gradient, sums, *coefficients):
    """Write the sums of each chunk to a row of `sums`."""
    for i in prange(len(sums)):
        low = i * _CHUNK
        high = min(low + _CHUNK, x.shape[0])
        part = None if keep is None else keep[low:high]
        _side(x[low:high], part, gradient[low:high], sums[i], *coefficients)


@njit(nogil=True, cache=True)
def _coefficients(n, sign, fraction, center, shift, threshold, sharpness):
    """shift, weight, curve, offset and select of one side; without select every w is 1."""
    constant = center * center - shift * shift
    offset = sharpness * (sign * constant - threshold)
    return shift, 2.0 / (fraction * n), sign * sharpness, offset, fraction < 1.0


@njit(nogil=True, cache=True)
def _side_term(sums, n, sign, fraction, center, shift, threshold, sharpness):
    """sign +1: threshold + mean r(l - threshold) / fraction; sign -1: the same of -l, negated.

    Returns the side's term of F, the mean weight and the mean weighted f (both divided by the
    fraction), and the derivative by the threshold.
    """
    scale = 1.0 / (fraction * n)
    total, weight, weighted_f = sums[0] * scale, sums[1] * scale, sums[2] * scale
    if fraction < 1.0:
        term = sign * (threshold + total / sharpness)
        return term, weight, weighted_f, sign * (1.0 - weight)
    return total + center * center - shift * shift, weight, weighted_f, 0.0


@njit(nogil=True, cache=True)
def _with_positives(
    pos, d_pos, neg_sums, n_neg,
    a, b, gap, pos_threshold, neg_threshold, alpha, beta, sharpness, gap_penalty,
):  # fmt: skip
    """The pass over the positives, and the sum of the two sides."""
    plus = (len(pos), -1.0, alpha, a, -(a + 1.0 + gap), pos_threshold, sharpness)
    minus = (n_neg, 1.0, beta, b, 1.0 + gap - b, neg_threshold, sharpness)
    pos_sums = np.zeros(4)
    _side(pos, None, d_pos, pos_sums, *_coefficients(*plus))
    pos_term, pos_weight, pos_f, d_pos_threshold = _side_term(pos_sums, *plus)
    neg_term, neg_weight, neg_f, d_neg_threshold = _side_term(neg_sums, *minus)
    stretch = 1.0 + gap_penalty
    return (
        pos_term + neg_term - stretch * gap * gap,
        2.0 * (a * pos_weight - pos_f),
        2.0 * (b * neg_weight - neg_f),
        2.0 * (neg_f - pos_f - stretch * gap),
        d_pos_threshold,
        d_neg_threshold,
        int(pos_sums[3]),
        int(neg_sums[3]),
    )


@dataclass(frozen=True)
class LLPAUCKernel:
    """`llpauc_objective` and its first derivatives in one pass over the scores; a `Kernel`.

    Args:
        variables: a, b, gap and the two thresholds.
        settings: alpha, beta, sharpness (finite), gap_penalty.
    """

    variables: tuple[float, float, float, float, float]
    settings: tuple[float, float, float, float]

    def __call__(self, pos: Floats, neg: Floats, keep: Keep | None) -> KernelResult:
        d_pos, d_neg, n_neg = np.zeros_like(pos), np.empty_like(neg), neg.size
        rows: Any = slice(None)
        if keep is not None:
            n_neg, rows = int(keep.sum()), keep.any(axis=1)
            if n_neg == 0:
                return KernelResult(0.0, d_pos, np.zeros_like(neg), 0, 0, (0.0,) * 5)
            keep = keep.reshape(-1)
        _, b, gap, _, threshold = self.variables
        _, beta, sharpness, _ = self.settings
        side = neg.reshape(-1), keep, d_neg.reshape(-1)
        minus = _coefficients.py_func(n_neg, 1.0, beta, b, 1.0 + gap - b, threshold, sharpness)
        # Not from within a kernel: Numba confuses parallel kernels that a cached one calls.
        if neg.size < MIN_PARALLEL:
            neg_sums = np.zeros(4)
            _side(*side, neg_sums, *minus)
        else:
            sums = np.zeros((-(-neg.size // _CHUNK), 4))
            _side_parallel(*side, sums, *minus)
            neg_sums = sums.cumsum(axis=0)[-1]  # chunk after chunk
        nonempty = pos[rows]
        d_nonempty = np.empty_like(nonempty)
        value, *d_variables, pos_invalid, neg_invalid = _with_positives(
            nonempty, d_nonempty, neg_sums, n_neg, *self.variables, *self.settings
        )
        d_pos[rows] = d_nonempty
        return KernelResult(value, d_pos, d_neg, pos_invalid, neg_invalid, tuple(d_variables))


# --- losses that are means over rows ------------------------------------------------------------


@dataclass(frozen=True)
class RowKernel:
    """Value and gradient of a loss that is a mean over rows.

    Args:
        kind: the loss; "softmax" is log sum_j exp(s_j / tau) - s_i / tau.
        temperature: tau.
        with_positive: whether the positive is in the sum.
    """

    kind: Literal["bpr", "bce", "softmax"]
    temperature: float = 1.0
    with_positive: bool = False

    def __call__(self, pos: Floats, neg: Floats, keep: Keep | None) -> KernelResult:
        d_pos, d_neg = np.empty(pos.shape, np.float32), np.empty(neg.shape, np.float32)
        n_rows = len(pos) if keep is None else int(keep.any(axis=1).sum())
        sums = np.empty((len(pos), 3))  # value, invalid positive, invalid negatives of each row
        run = _rows_serial if neg.size < MIN_PARALLEL else _rows_parallel
        kind = ("bpr", "bce", "softmax").index(self.kind)
        setting = kind, self.temperature, self.with_positive, 1.0 / max(n_rows, 1)
        run(pos, neg, keep, d_pos, d_neg, sums, *setting)
        value, pos_invalid, neg_invalid = sums.cumsum(axis=0)[-1].tolist()  # row after row
        return KernelResult(value, d_pos, d_neg, int(pos_invalid), int(neg_invalid))


@njit(nogil=True, cache=True)
def _rows_serial(pos, neg, keep, d_pos, d_neg, sums, *setting):
    for b in range(len(pos)):
        part = None if keep is None else keep[b]
        d_pos[b] = _row(pos[b], neg[b], part, d_neg[b], sums[b], *setting)


@njit(nogil=True, parallel=True, cache=True)
def _rows_parallel(pos, neg, keep, d_pos, d_neg, sums, *setting):
    for b in prange(len(pos)):
        part = None if keep is None else keep[b]
        d_pos[b] = _row(pos[b], neg[b], part, d_neg[b], sums[b], *setting)


@njit(nogil=True, cache=True)
def _row(pos, neg, keep, d_neg, sums, kind, temperature, with_positive, row_weight):
    """Write the row's part of the value and its invalid scores to `sums`; return d_pos.

    `row_weight` is the weight of a row in the mean, 1 / rows.
    """
    n = len(neg)
    if keep is not None:
        n = 0
        for j in range(len(neg)):
            n += keep[j]
    if n == 0:
        d_neg[:] = ZERO
        sums[:] = 0.0
        return ZERO
    if kind == 0:
        weight = row_weight / n
        value, score_grads, invalid = _softplus_row(pos, neg, keep, np.float32(weight), d_neg)
        value, d_pos = weight * value, np.float32(-score_grads)
    elif kind == 1:
        weight = row_weight / (1 + n)
        value, _, invalid = _softplus_row(ZERO, neg, keep, np.float32(weight), d_neg)
        e = exp_below_0(-abs(pos))
        value = weight * (value + max(-pos, ZERO) + log1p_to_1(e))
        d_pos = -np.float32(weight) * (e if pos >= ZERO else ONE) / (ONE + e)
    else:
        value, d_pos, invalid = _softmax_row(
            pos, neg, keep, ONE / np.float32(temperature), with_positive,
            np.float32(row_weight), d_neg,
        )  # fmt: skip
        value *= row_weight
    sums[0] = value
    sums[1] = 0.0 if abs(pos) <= LARGEST else 1.0
    sums[2] = invalid
    return d_pos


@njit(nogil=True, cache=True)
def _softplus_row(threshold, neg, keep, weight, d_neg):
    """The sums of softplus(s_j - threshold), of its derivatives times `weight`, of invalid ones."""
    value, score_grads, invalid = 0.0, 0.0, 0.0
    for low in range(0, len(neg), _BLOCK):
        high = min(low + _BLOCK, len(neg))
        part = None if keep is None else keep[low:high]
        sums = _softplus_block(threshold, neg[low:high], part, weight, d_neg[low:high])
        value += sums[0]
        score_grads += sums[1]
        invalid += sums[2]
    return value, score_grads, invalid


@njit(fastmath=FAST, error_model="numpy", nogil=True, forceinline=True)
def _softplus_block(threshold, neg, keep, weight, d_neg):
    value, score_grads, invalid = ZERO, ZERO, ZERO
    for j in range(len(neg)):
        counts = True if keep is None else keep[j]
        x = neg[j] - threshold
        e = exp_below_0(-abs(x))
        slope = weight * (ONE if x >= ZERO else e) / (ONE + e)
        slope = slope if counts else ZERO
        term = max(x, ZERO) + log1p_to_1(e)
        value += term if counts else ZERO
        score_grads += slope
        invalid += ONE if counts and not abs(neg[j]) <= LARGEST else ZERO
        d_neg[j] = slope
    return value, score_grads, invalid


@njit(fastmath=FAST, error_model="numpy", nogil=True, forceinline=True)
def _softmax_row(pos, neg, keep, sharpness, with_positive, weight, d_neg):
    """log sum_j exp(k s_j) - k s_i with k the sharpness; the gradient times `weight`."""
    top, invalid = -LARGEST, ZERO
    for j in range(len(neg)):
        counts = True if keep is None else keep[j]
        top = max(top, neg[j] if counts else -LARGEST)
        invalid += ONE if counts and not abs(neg[j]) <= LARGEST else ZERO
    if with_positive:
        top = max(top, pos)
    total = np.float64(0)
    for j in range(len(neg)):
        counts = True if keep is None else keep[j]
        e = exp_below_0(sharpness * ((neg[j] if counts else top) - top))
        e = e if counts else ZERO
        total += e
        d_neg[j] = e
    of_pos = ZERO
    if with_positive:
        of_pos = exp_below_0(sharpness * (pos - top))
        total += of_pos
    scale = weight * sharpness
    part = scale / np.float32(total)
    for j in range(len(neg)):
        d_neg[j] *= part
    value = math.log(total) + np.float64(sharpness) * (top - pos)
    return value, of_pos * part - scale, invalid
