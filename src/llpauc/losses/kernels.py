"""One pass over the scores of a partial-AUC loss: value, gradient and sums, on a CPU in float32.

The equation itself is `llpauc.losses.partial_auc.llpauc_objective`, in plain torch; this is its
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
Sums = tuple[float, float, float, float]

# Sums may be re-associated into vector lanes and multiplications fused; NaN and infinity keep
# their meaning, or broken scores would go unseen.
_FAST = {"reassoc", "contract", "nsz", "arcp"}
_BLOCK = 1024  # float32 sums run over this many entries before they go into a float64
_CHUNK = 32768  # entries a thread takes at a time

# float32 all the way: one Python float in the loop would turn it into float64.
_ZERO, _HALF, _ONE, _TWO = np.float32(0), np.float32(0.5), np.float32(1), np.float32(2)
_LARGEST = np.float32(np.finfo(np.float32).max)
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


@njit(inline="always", fastmath=_FAST, error_model="numpy")
def _exp(x: np.float32) -> np.float32:
    """e^x for x <= 0: 2^n times a polynomial of the rest (the coefficients are Cephes' expf)."""
    x = max(x, _LOWEST_EXPONENT)
    n = np.floor(x * _LOG2_E + _HALF)
    rest = x - n * _LN2_HIGH
    rest = rest - n * _LN2_LOW
    tail = ((((_EXP5 * rest + _EXP4) * rest + _EXP3) * rest + _EXP2) * rest + _EXP1) * rest + _EXP0
    power = np.int32((np.int32(n) + _BIAS) << _MANTISSA).view(np.float32)
    value: np.float32 = (tail * rest * rest + rest + _ONE) * power
    return value


@njit(inline="always", fastmath=_FAST, error_model="numpy")
def _log1p(q: np.float32) -> np.float32:
    """log(1 + q) for q in [0, 1], as 2 atanh(q / (2 + q)): the argument is at most 1/3."""
    s = q / (_TWO + q)
    t = s * s
    tail = _ATANH5 + t * (_ATANH7 + t * (_ATANH9 + t * (_ATANH11 + t * _ATANH13)))
    return s * (_TWO + t * (_ATANH3 + t * tail))


@njit(fastmath=_FAST, error_model="numpy", nogil=True, cache=True)
def _soft_block(x, keep, gradient, shift, weight, curve, offset):  # type: ignore[no-untyped-def]
    """Sums of r, w, w f and of broken scores over one block; the gradient goes into its array."""
    sum_r, sum_w, sum_wf, broken = _ZERO, _ZERO, _ZERO, _ZERO
    for j in range(x.shape[0]):
        counts = True if keep is None else keep[j]
        size = abs(x[j])
        e = _exp(-size)
        part = _ONE / (_ONE + e)
        f = part if x[j] >= _ZERO else e * part
        slope = f + shift
        z = offset + curve * slope * slope
        q = _exp(-abs(z))
        share = _ONE / (_ONE + q)
        w = share if z >= _ZERO else q * share
        r = max(z, _ZERO) + _log1p(q)
        d = weight * w * slope * e * part * part
        sum_r += r if counts else _ZERO
        sum_w += w if counts else _ZERO
        sum_wf += w * f if counts else _ZERO
        broken += _ONE if counts and not size <= _LARGEST else _ZERO
        gradient[j] = d if counts else _ZERO
    return sum_r, sum_w, sum_wf, broken


@njit(fastmath=_FAST, error_model="numpy", nogil=True, cache=True)
def _plain_block(x, keep, gradient, shift, weight):  # type: ignore[no-untyped-def]
    """The same without selection: every w is 1; sums of (f + shift)^2, 1, f and broken scores."""
    sum_square, count, sum_f, broken = _ZERO, _ZERO, _ZERO, _ZERO
    for j in range(x.shape[0]):
        counts = True if keep is None else keep[j]
        size = abs(x[j])
        e = _exp(-size)
        part = _ONE / (_ONE + e)
        f = part if x[j] >= _ZERO else e * part
        slope = f + shift
        d = weight * slope * e * part * part
        sum_square += slope * slope if counts else _ZERO
        count += _ONE if counts else _ZERO
        sum_f += f if counts else _ZERO
        broken += _ONE if counts and not size <= _LARGEST else _ZERO
        gradient[j] = d if counts else _ZERO
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


def parabola_pass(
    x: Floats,
    keep: Keep | None,
    gradient: Floats,
    *,
    shift: float,
    weight: float,
    curve: float,
    offset: float,
    select: bool,
) -> Sums:
    """One side of the loss in one pass.

    Args:
        x: scores, one-dimensional and contiguous.
        keep: which of them count, or None for all; one that does not count may be NaN.
        gradient: written to, of the shape of `x`; 0 where an entry does not count.
        shift: the parabola's shift.
        weight: factor of the gradient.
        curve: sign times sharpness, the factor of (f + shift)^2 in z.
        offset: the constant of z.
        select: False leaves out r and w: every entry counts in full.

    Returns:
        Sums over the entries that count. With selection: r, w, w f; without: (f + shift)^2, 1, f.
        The fourth is the number of NaN or infinite scores.
    """
    run = _serial if x.shape[0] < 2 * _CHUNK else _parallel
    sums: Sums = run(x, keep, gradient, shift, weight, curve, offset, select)
    return sums
