"""Compiled loops of the simulation: draw a ranking and measure it.

For every metric here, a ranking of n+ positives and n- negatives is the set of places that hold a
positive. Only these places are drawn. `above[i]`, the number of negatives above the i-th best
positive, is its place minus i. With prefix sums of `above` each cell of the (alpha, beta) grid
costs a few operations.

Every draw is a function of (seed, ranking), so the number of threads does not change the result.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit, prange

from llpauc.metrics.pair_counts import sort_descending
from llpauc.training.samplers import GOLDEN, mix

_LOW_HALF = np.uint64(0xFFFFFFFF)
_ONE, _ZERO, _ALL_BITS = np.uint64(1), np.uint64(0), np.uint64(0xFFFFFFFFFFFFFFFF)
_SMALL_MEAN = 10.0  # below this mean of a binomial, inversion is faster than rejection


@njit(inline="always")
def _uniform(state: Any) -> Any:
    """The next number of the generator, in the open interval (0, 1)."""
    state[0] += GOLDEN
    return (np.float64(mix(state[0]) >> np.uint64(11)) + 0.5) * 2.0**-53


@njit(cache=True)
def draw_uniform(state: Any, n_neg: int, above: Any) -> None:
    """Draw a ranking, every set of len(above) places equally likely.

    Distinct places are marked in a bitmap, which is then read in order. Where positives are the
    majority, the places of the negatives are drawn instead.

    Args:
        state: (1,) uint64, the generator.
        n_neg: number of negatives.
        above: output, negatives above each positive, best positive first.
    """
    n_pos = len(above)
    n = n_pos + n_neg
    flipped = n_pos > n_neg
    remaining = min(n_pos, n_neg)
    # Lemire's method for an unbiased number below n: products whose lower half is below
    # 2^32 mod n are rejected.
    bound = np.uint64(n)
    biased = (_LOW_HALF + _ONE) % bound
    bitmap = np.zeros((n + 63) // 64, np.uint64)
    position = state[0]
    while remaining > 0:
        position += GOLDEN
        number = mix(position)
        for half in (number >> np.uint64(32), number & _LOW_HALF):
            product = half * bound
            if remaining == 0 or (product & _LOW_HALF) < biased:
                continue
            place = product >> np.uint64(32)
            word, bit = place >> np.uint64(6), _ONE << (place & np.uint64(63))
            is_new = (bitmap[word] & bit) == _ZERO
            bitmap[word] |= bit
            remaining -= is_new
    state[0] = position
    # Read the set bits in order.
    count = 0
    for word in range(len(bitmap)):
        bits = bitmap[word]
        if flipped:
            bits = bits ^ _ALL_BITS
            if word == len(bitmap) - 1 and n % 64 != 0:
                bits &= (_ONE << np.uint64(n % 64)) - _ONE
        while bits != _ZERO:
            lowest = bits & (~bits + _ONE)
            place = 64 * word + math.frexp(np.float64(lowest))[1] - 1  # log2 of a power of two
            above[count] = place - count
            count += 1
            bits ^= lowest


@njit(cache=True)
def draw_normal_scores(state: Any, n_neg: int, shift: float, above: Any) -> None:
    """Draw the ranking of a scorer: negatives score N(0, 1), positives N(shift, 1), independent.

    No negative is drawn. A positive with score s has each negative above it with probability
    P(N > s); between two neighbouring positives lies a binomial number of the remaining negatives.
    A `shift` of 0 gives the uniform distribution. Arguments as in `draw_uniform`.
    """
    tails = np.empty(len(above), np.float64)
    # Normal scores by Box and Muller, as the tail probability of the negatives above them.
    for i in range(0, len(tails), 2):
        radius = math.sqrt(-2.0 * math.log(_uniform(state)))
        angle = 2.0 * math.pi * _uniform(state)
        tails[i] = shift + radius * math.cos(angle)
        if i + 1 < len(tails):
            tails[i + 1] = shift + radius * math.sin(angle)
    for i in range(len(tails)):
        tails[i] = 0.5 * math.erfc(tails[i] / math.sqrt(2.0))
    sort_descending(tails)
    count, previous = 0, 0.0
    for i, tail in enumerate(tails[::-1]):  # the smallest tail first: the best positive
        below = 1.0 - previous
        probability = min(1.0, (tail - previous) / below) if below > 0.0 else 0.0
        count += draw_binomial(state, n_neg - count, probability)
        previous = tail
        above[i] = count


@njit(cache=True)
def draw_binomial(state: Any, n: int, p: float) -> int:
    """Number of successes of n trials, each with probability p; exact.

    Reference for large means: Hörmann, The generation of binomial random variates, 1993 (BTRS).
    """
    if n == 0 or p <= 0.0:
        return 0
    if p > 0.5:
        return n - draw_binomial(state, n, 1.0 - p)
    odds = p / (1.0 - p)
    if n * p < _SMALL_MEAN:  # inversion
        probability = math.exp(n * math.log1p(-p))
        remaining = _uniform(state)
        count = 0
        while remaining > probability and count < n:
            remaining -= probability
            count += 1
            probability *= odds * (n - count + 1) / count
        return count
    # Rejection.
    deviation = math.sqrt(n * p * (1.0 - p))
    b = 1.15 + 2.53 * deviation
    a = -0.0873 + 0.0248 * b + 0.01 * p
    alpha = (2.83 + 5.1 / b) * deviation
    mode = math.floor((n + 1) * p)
    log_mode = math.lgamma(mode + 1.0) + math.lgamma(n - mode + 1.0)
    while True:
        u, v = _uniform(state) - 0.5, _uniform(state)
        edge = 0.5 - abs(u)
        count = math.floor((2.0 * a / edge + b) * u + n * p + 0.5)
        if edge >= 0.07 and v <= 0.92 - 4.2 / b:
            return int(count)
        if 0 <= count <= n:
            log_count = math.lgamma(count + 1.0) + math.lgamma(n - count + 1.0)
            log_ratio = log_mode - log_count + (count - mode) * math.log(odds)
            if math.log(v * alpha / (a / (edge * edge) + b)) <= log_ratio:
                return int(count)


@njit(cache=True)
def _measure(above: Any, k_pos: Any, k_neg: Any, ks: Any, gain: Any, out: Any) -> None:
    """The metrics of one ranking: LLPAUC areas, two-way areas, hits@k, DCG@k.

    Args:
        above: negatives above each positive, best positive first.
        k_pos, k_neg: the grid, as numbers of items; the areas are stored k_neg by k_neg.
        ks: list lengths, ascending.
        gain: (largest k,) what a hit at each rank adds to DCG.
        out: output, (2 * grid + 2 * ks,): ordered pairs, ordered pairs, hits@k, DCG@k.
    """
    n_pos, n_cells = len(above), len(k_pos) * len(k_neg)
    prefix = np.zeros(n_pos + 1, np.int64)  # sums of `above`
    for i in range(n_pos):
        prefix[i + 1] = prefix[i] + above[i]
    for b in range(len(k_neg)):
        reach = np.searchsorted(above, k_neg[b])  # positives above at least one of the k- negatives
        for a in range(len(k_pos)):
            cell = b * len(k_pos) + a
            best = min(k_pos[a], reach)
            out[cell] = k_neg[b] * best - prefix[best]
            first = min(n_pos - k_pos[a], reach)
            out[n_cells + cell] = k_neg[b] * (reach - first) - (prefix[reach] - prefix[first])
    hits, dcg = 0, 0.0
    for i in range(len(ks)):
        while hits < n_pos and above[hits] + hits < ks[i]:
            dcg += gain[above[hits] + hits]
            hits += 1
        out[2 * n_cells + i] = hits
        out[2 * n_cells + len(ks) + i] = dcg


@njit(cache=True)
def draw(seed: Any, ranking: Any, n_neg: int, shift: float, above: Any) -> None:
    """Draw one ranking; its random numbers depend on the seed and its number only."""
    state = np.empty(1, np.uint64)
    state[0] = mix(mix(seed + GOLDEN) + np.uint64(ranking + 1) * GOLDEN)
    if shift == 0.0:
        draw_uniform(state, n_neg, above)
    else:
        draw_normal_scores(state, n_neg, shift, above)


@njit(parallel=True, nogil=True, cache=True)
def measure_each(
    seed: Any, first: int, n_pos: int, n_neg: int, shift: float, grid: Any, columns: Any, out: Any
) -> None:
    """The metrics in `columns` (indices into the output of `_measure`) of successive rankings.

    Args:
        first: number of the first ranking.
        grid: (k_pos, k_neg, ks, gain), see `_measure`.
        out: output, (rankings, columns).
    """
    k_pos, k_neg, ks, gain = grid
    for row in prange(len(out)):
        above = np.empty(n_pos, np.int64)
        values = np.empty(2 * len(k_pos) * len(k_neg) + 2 * len(ks), np.float64)
        draw(seed, first + row, n_neg, shift, above)
        _measure(above, k_pos, k_neg, ks, gain, values)
        for i in range(len(columns)):
            out[row, i] = values[columns[i]]
