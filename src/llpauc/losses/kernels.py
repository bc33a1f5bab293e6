"""One pass over the scores of a partial-AUC loss: value, gradient and sums, on a CPU in float32.

The equation itself is `llpauc.losses.objective.llpauc_objective`, in plain torch; this is its
derivative written out by hand, because plain autograd of it makes some 25 passes over (B, N)
memory where one will do. exp and log1p are polynomials (relative error below 3e-7), so that LLVM
turns the loop into vector instructions; libm calls would keep it scalar, 13 times slower.

Both sides of the loss are parabolas of f = sigmoid(score), l(f) = (f + shift)^2 + constant, so one
loop serves the positives (sign -1) and the negatives (sign +1):

    z = sharpness (sign l(f) - threshold)      w = sigmoid(z)      r = softplus(z)
    d/dscore = weight w (f + shift) f (1 - f)

The order of every sum is fixed by BLOCK and CHUNK, never by the number of threads: same bits.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit, prange

Floats = npt.NDArray[np.float32]
Keep = npt.NDArray[np.bool_]

# Sums may be re-associated into vector lanes and multiplications fused; NaN and infinity keep
# their meaning, or broken scores would go unseen.
FAST = {"reassoc", "contract", "nsz", "arcp"}
_BLOCK = 1024  # float32 sums run over this many entries before they go into a float64
_CHUNK = 32768  # entries a thread takes at a time

# float32 all the way: one Python float in the loop would turn it into float64.
ZERO, _HALF, ONE, _TWO = np.float32(0), np.float32(0.5), np.float32(1), np.float32(2)
LARGEST = np.float32(np.finfo(np.float32).max)
_LOWEST_EXPONENT = np.float32(-87.0)  # exp of less is subnormal
_LOG2_E = np.float32(1.4426950408889634)
_LN2_HIGH, _LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
_EXP5, _EXP4, _EXP3 = (
    np.float32(1.9875691500e-4),
    np.float32(1.3981999507e-3),
    np.float32(8.3334519e-3),
)
_EXP2, _EXP1, _EXP0 = (
    np.float32(4.1665795894e-2),
    np.float32(1.6666665459e-1),
    np.float32(5.0000001e-1),
)
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


@njit(fastmath=FAST, error_model="numpy", nogil=True, cache=True)
def _soft_block(x, keep, gradient, shift, weight, curve, offset):  # type: ignore[no-untyped-def]
    """Sums of r, w, w f and of broken scores over one block; the gradient goes into its array."""
    sum_r, sum_w, sum_wf, broken = ZERO, ZERO, ZERO, ZERO
    for j in range(x.shape[0]):
        counts = True if keep is None else keep[j]
        size = abs(x[j])
        e = exp_below_0(-size)
        part = ONE / (ONE + e)
        f = part if x[j] >= ZERO else e * part
        slope = f + shift
        z = offset + curve * slope * slope
        q = exp_below_0(-abs(z))
        share = ONE / (ONE + q)
        w = share if z >= ZERO else q * share
        r = max(z, ZERO) + log1p_to_1(q)
        d = weight * w * slope * e * part * part
        sum_r += r if counts else ZERO
        sum_w += w if counts else ZERO
        sum_wf += w * f if counts else ZERO
        broken += ONE if counts and not size <= LARGEST else ZERO
        gradient[j] = d if counts else ZERO
    return sum_r, sum_w, sum_wf, broken


@njit(fastmath=FAST, error_model="numpy", nogil=True, cache=True)
def _plain_block(x, keep, gradient, shift, weight):  # type: ignore[no-untyped-def]
    """The same without selection: every w is 1; sums of (f + shift)^2, 1, f and broken scores."""
    sum_square, count, sum_f, broken = ZERO, ZERO, ZERO, ZERO
    for j in range(x.shape[0]):
        counts = True if keep is None else keep[j]
        size = abs(x[j])
        e = exp_below_0(-size)
        part = ONE / (ONE + e)
        f = part if x[j] >= ZERO else e * part
        slope = f + shift
        d = weight * slope * e * part * part
        sum_square += slope * slope if counts else ZERO
        count += ONE if counts else ZERO
        sum_f += f if counts else ZERO
        broken += ONE if counts and not size <= LARGEST else ZERO
        gradient[j] = d if counts else ZERO
    return sum_square, count, sum_f, broken


@njit(nogil=True, cache=True)
def _serial(x, keep, gradient, shift, weight, curve, offset, select):  # type: ignore[no-untyped-def]
    shift, weight = np.float32(shift), np.float32(weight)
    curve, offset = np.float32(curve), np.float32(offset)
    a, b, c, broken = 0.0, 0.0, 0.0, 0.0
    for low in range(0, x.shape[0], _BLOCK):
        high = min(low + _BLOCK, x.shape[0])
        kept = None if keep is None else keep[low:high]
        if select:
            sums = _soft_block(x[low:high], kept, gradient[low:high], shift, weight, curve, offset)
        else:
            sums = _plain_block(x[low:high], kept, gradient[low:high], shift, weight)
        a += sums[0]
        b += sums[1]
        c += sums[2]
        broken += sums[3]
    return a, b, c, broken


@njit(nogil=True, parallel=True, cache=True)
def _parallel(x, keep, gradient, shift, weight, curve, offset, select):  # type: ignore[no-untyped-def]
    chunks = (x.shape[0] + _CHUNK - 1) // _CHUNK
    sums = np.empty((chunks, 4))
    for i in prange(chunks):
        low = i * _CHUNK
        high = min(low + _CHUNK, x.shape[0])
        kept = None if keep is None else keep[low:high]
        a, b, c, broken = _serial(
            x[low:high], kept, gradient[low:high], shift, weight, curve, offset, select
        )
        sums[i, 0], sums[i, 1], sums[i, 2], sums[i, 3] = a, b, c, broken
    a, b, c, broken = 0.0, 0.0, 0.0, 0.0
    for i in range(chunks):
        a += sums[i, 0]
        b += sums[i, 1]
        c += sums[i, 2]
        broken += sums[i, 3]
    return a, b, c, broken


@njit(nogil=True, cache=True)
def _coefficients(
    n: int,
    sign: float,
    share: float,
    center: float,
    shift: float,
    threshold: float,
    sharpness: float,
) -> tuple[float, float, float, float, bool]:
    """shift, weight, curve, offset and select of one side's pass; select = False leaves out r and
    w: every entry counts in full."""
    constant = center * center - shift * shift
    offset = sharpness * (sign * constant - threshold)
    return shift, 2.0 / (share * n), sign * sharpness, offset, share < 1.0


@njit(nogil=True, cache=True)
def _side(sums, n, sign, share, center, shift, threshold, sharpness):  # type: ignore[no-untyped-def]
    """sign +1: threshold + mean r(l - threshold) / share; sign -1: the same of -l, negated.

    What the side adds to F, the mean weight and the mean weighted f (both divided by the share),
    the derivative by the threshold.
    """
    scale = 1.0 / (share * n)
    total, weight, weighted_f = sums[0] * scale, sums[1] * scale, sums[2] * scale
    if share < 1.0:
        term = sign * (threshold + total / sharpness)
        return term, weight, weighted_f, sign * (1.0 - weight)
    return total + center * center - shift * shift, weight, weighted_f, 0.0


@njit(nogil=True, cache=True)
def _with_positives(  # type: ignore[no-untyped-def]
    pos, d_pos, neg_sums, n_neg,
    a, b, gap, pos_threshold, neg_threshold, alpha, beta, sharpness, gap_penalty,
):  # fmt: skip
    """The pass over the positives, and the two sides put together."""
    plus = (len(pos), -1.0, alpha, a, -(a + 1.0 + gap), pos_threshold, sharpness)
    minus = (n_neg, 1.0, beta, b, 1.0 + gap - b, neg_threshold, sharpness)
    pos_sums = _serial(pos, None, d_pos, *_coefficients(*plus))
    pos_term, pos_weight, pos_f, d_pos_threshold = _side(pos_sums, *plus)
    neg_term, neg_weight, neg_f, d_neg_threshold = _side(neg_sums, *minus)
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


def objective(
    pos: Floats,
    neg: Floats,
    keep: Keep | None,
    n_neg: int,
    d_pos: Floats,
    d_neg: Floats,
    variables: tuple[float, float, float, float, float],
    settings: tuple[float, float, float, float],
) -> tuple[float, float, float, float, float, float, int, int]:
    """F and its gradient; that of the scores goes into d_pos and d_neg, 0 where a pair is left out.

    Args:
        pos, neg: (B,) and (B, N), contiguous.
        keep: (B, N), which negatives count, or None for all; others may be NaN.
        n_neg: how many count.
        d_pos, d_neg: written to.
        variables: a, b, gap and the two thresholds.
        settings: alpha, beta, sharpness, gap_penalty.

    Returns:
        F, its derivatives by the five variables, the numbers of NaN or infinite scores on both
        sides.
    """
    _, b, gap, _, threshold = variables
    _, beta, sharpness, _ = settings
    # Not from within a kernel: Numba mixes up parallel ones that are called by a cached one.
    run = _serial if neg.size < 2 * _CHUNK else _parallel
    neg_sums = run(
        neg.reshape(-1), None if keep is None else keep.reshape(-1), d_neg.reshape(-1),
        *_coefficients.py_func(n_neg, 1.0, beta, b, 1.0 + gap - b, threshold, sharpness),
    )  # fmt: skip
    result: tuple[float, float, float, float, float, float, int, int] = _with_positives(
        pos, d_pos, neg_sums, n_neg, *variables, *settings
    )
    return result
