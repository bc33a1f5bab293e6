"""Value and gradient of the losses that are means over rows, in one pass: float32 on a CPU.

The equations are `bpr_loss`, `bce_loss`, `sce_loss` and `sl_loss`, in plain torch; this is their
derivative written out by hand. On a batch of 128 rows autograd spends ten times as long on making
and walking its graph as the numbers take.

Every row is summed in its own order and the rows one after the other: the bits do not depend on the
number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numba import njit, prange

from llpauc.losses.kernels import FAST, LARGEST, ONE, ZERO, Floats, Keep, exp_below_0, log1p_to_1

WORTH_THREADS = 65_536  # entries
_BLOCK = 1024  # float32 sums run over this many entries before they go into a float64


class RowResult(NamedTuple):
    """The loss, its gradients, and how many scores that count are NaN or infinite."""

    value: float
    d_pos: Floats
    d_neg: Floats
    pos_broken: int
    neg_broken: int


Kernel = Callable[[Floats, Floats, Keep | None], RowResult]
"""(B,) and (B, N) contiguous scores, and bool (B, N), True where a pair counts, or None for all. A
row without a pair contributes nothing."""


@dataclass(frozen=True)
class RowKernel:
    """Which loss, and its setting; called, the loss of a batch.

    Args:
        kind: the softmax ones are log sum_j exp(s_j / tau) - s_i / tau.
        temperature: tau.
        with_positive: whether the positive is in the sum.
    """

    kind: Literal["bpr", "bce", "softmax"]
    temperature: float = 1.0
    with_positive: bool = False

    def __call__(self, pos: Floats, neg: Floats, keep: Keep | None) -> RowResult:
        d_pos, d_neg = np.empty(pos.shape, np.float32), np.empty(neg.shape, np.float32)
        rows = len(pos) if keep is None else int(keep.any(axis=1).sum())
        values = np.empty((len(pos), 3))
        run = _serial if neg.size < WORTH_THREADS else _parallel
        value, pos_broken, neg_broken = run(
            _KINDS[self.kind], self.temperature, self.with_positive,
            pos, neg, keep, 1.0 / max(rows, 1), d_pos, d_neg, values,
        )  # fmt: skip
        return RowResult(value, d_pos, d_neg, int(pos_broken), int(neg_broken))


_KINDS = {"bpr": 0, "bce": 1, "softmax": 2}


@njit(nogil=True, cache=True)
def _serial(kind, temperature, with_positive, pos, neg, keep, share, d_pos, d_neg, values):  # type: ignore[no-untyped-def]
    for b in range(len(pos)):
        kept = None if keep is None else keep[b]
        d_pos[b] = _row(
            kind, temperature, with_positive, pos[b], neg[b], kept, share, d_neg[b], values[b]
        )
    return _total(values)


@njit(nogil=True, parallel=True, cache=True)
def _parallel(kind, temperature, with_positive, pos, neg, keep, share, d_pos, d_neg, values):  # type: ignore[no-untyped-def]
    for b in prange(len(pos)):
        kept = None if keep is None else keep[b]
        d_pos[b] = _row(
            kind, temperature, with_positive, pos[b], neg[b], kept, share, d_neg[b], values[b]
        )
    return _total(values)


@njit(nogil=True, cache=True)
def _total(values):  # type: ignore[no-untyped-def]
    value, pos_broken, neg_broken = 0.0, 0.0, 0.0
    for b in range(len(values)):
        value += values[b, 0]
        pos_broken += values[b, 1]
        neg_broken += values[b, 2]
    return value, pos_broken, neg_broken


@njit(nogil=True, cache=True)
def _row(kind, temperature, with_positive, pos, neg, keep, share, d_neg, out):  # type: ignore[no-untyped-def]
    """The row's part of the value and its broken scores into `out`; the gradient by its positive.

    `share` is the row's weight in the mean, 1 / rows.
    """
    n = len(neg)
    if keep is not None:
        n = 0
        for j in range(len(neg)):
            n += keep[j]
    if n == 0:
        d_neg[:] = ZERO
        out[:] = 0.0
        return ZERO
    if kind == 0:
        weight = share / n
        value, slopes, broken = _soft_pluses(pos, neg, keep, np.float32(weight), d_neg)
        value, d_pos = weight * value, np.float32(-slopes)
    elif kind == 1:
        weight = share / (1 + n)
        value, _, broken = _soft_pluses(ZERO, neg, keep, np.float32(weight), d_neg)
        e = exp_below_0(-abs(pos))
        value = weight * (value + max(-pos, ZERO) + log1p_to_1(e))
        d_pos = -np.float32(weight) * (e if pos >= ZERO else ONE) / (ONE + e)
    else:
        value, d_pos, broken = _softmax(
            pos, neg, keep, ONE / np.float32(temperature), with_positive, np.float32(share), d_neg
        )
        value *= share
    out[0] = value
    out[1] = 0.0 if abs(pos) <= LARGEST else 1.0
    out[2] = broken
    return d_pos


@njit(nogil=True, cache=True)
def _soft_pluses(threshold, neg, keep, weight, d_neg):  # type: ignore[no-untyped-def]
    """The sum of softplus(s_j - threshold); that of its slopes times `weight`; broken scores."""
    value, slopes, broken = 0.0, 0.0, 0.0
    for low in range(0, len(neg), _BLOCK):
        high = min(low + _BLOCK, len(neg))
        kept = None if keep is None else keep[low:high]
        sums = _soft_block(threshold, neg[low:high], kept, weight, d_neg[low:high])
        value += sums[0]
        slopes += sums[1]
        broken += sums[2]
    return value, slopes, broken


@njit(fastmath=FAST, error_model="numpy", nogil=True, cache=True)
def _soft_block(threshold, neg, keep, weight, d_neg):  # type: ignore[no-untyped-def]
    value, slopes, broken = ZERO, ZERO, ZERO
    for j in range(len(neg)):
        counts = True if keep is None else keep[j]
        x = neg[j] - threshold
        e = exp_below_0(-abs(x))
        slope = weight * (ONE if x >= ZERO else e) / (ONE + e)
        slope = slope if counts else ZERO
        term = max(x, ZERO) + log1p_to_1(e)
        value += term if counts else ZERO
        slopes += slope
        broken += ONE if counts and not abs(neg[j]) <= LARGEST else ZERO
        d_neg[j] = slope
    return value, slopes, broken


@njit(fastmath=FAST, error_model="numpy", nogil=True, cache=True)
def _softmax(pos, neg, keep, sharpness, with_positive, weight, d_neg):  # type: ignore[no-untyped-def]
    """log sum_j exp(k s_j) - k s_i with k the sharpness; the gradient times `weight`."""
    top, broken = -LARGEST, ZERO
    for j in range(len(neg)):
        counts = True if keep is None else keep[j]
        top = max(top, neg[j] if counts else -LARGEST)
        broken += ONE if counts and not abs(neg[j]) <= LARGEST else ZERO
    if with_positive:
        top = max(top, pos)
    total = np.float64(0)
    for j in range(len(neg)):
        counts = True if keep is None else keep[j]
        e = exp_below_0(sharpness * ((neg[j] if counts else top) - top))
        e = e if counts else ZERO
        total += e
        d_neg[j] = e
    own = ZERO
    if with_positive:
        own = exp_below_0(sharpness * (pos - top))
        total += own
    scale = weight * sharpness
    part = scale / np.float32(total)
    for j in range(len(neg)):
        d_neg[j] *= part
    value = math.log(total) + np.float64(sharpness) * (top - pos)
    return value, own * part - scale, broken
