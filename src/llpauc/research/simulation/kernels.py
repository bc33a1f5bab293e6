"""The simulation's inner loops: draw where the positives stand, measure, add up the moments.

A ranking of n+ positives and n- negatives is, for every metric here, the set of places that hold a
positive. So only those are drawn, and `above[i]`, the negatives above the i-th best positive, is
its place less i. With prefix sums of `above` each cell of the grid of areas costs a few operations.

Every draw is a function of (seed, ranking): threads and blocks change nothing.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit, prange

from llpauc.metrics.pair_counts import sort_descending
from llpauc.training.samplers import GOLDEN, mix

_HALF = np.uint64(0xFFFFFFFF)
_ONE, _ZERO, _ALL = np.uint64(1), np.uint64(0), np.uint64(0xFFFFFFFFFFFFFFFF)
# A de Bruijn sequence: times a power of two, its six upper bits tell which power it was.
_DE_BRUIJN = 0x03F79D71B4CB0A89
_BIT_OF = np.empty(64, np.int64)
for _bit in range(64):
    _BIT_OF[((_DE_BRUIJN << _bit) & 0xFFFFFFFFFFFFFFFF) >> 58] = _bit
_SEQUENCE = np.uint64(_DE_BRUIJN)
_FEW = 10.0  # a binomial's mean up to which counting through its probabilities is the quicker way


@njit(cache=True)
def _begin(seed: Any, ranking: Any, state: Any) -> None:
    """Set the generator to where the numbers of one ranking begin."""
    state[0] = mix(mix(seed + GOLDEN) + np.uint64(ranking + 1) * GOLDEN)


@njit(inline="always")
def _share(state: Any) -> Any:
    """A number in (0, 1), never an end."""
    state[0] += GOLDEN
    return (np.float64(mix(state[0]) >> np.uint64(11)) + 0.5) * 2.0**-53


@njit(cache=True)
def draw_uniform(state: Any, n_neg: int, taken: Any, above: Any) -> None:
    """Every set of len(above) places equally likely: distinct draws marked in a bitmap, then read.

    Where positives are the majority the negatives' places are drawn instead.

    Args:
        state: (1,) uint64, the generator.
        n_neg: number of negatives.
        taken: scratch, uint64, a bit for each place.
        above: out, negatives above each positive, best positive first.
    """
    n_pos = len(above)
    n = n_pos + n_neg
    flipped = n_pos > n_neg
    left = min(n_pos, n_neg)
    # Lemire's way to a number below n without bias: the first 2^32 mod n of the products' lower
    # halves are drawn again.
    bound = np.uint64(n)
    biased = (_HALF + _ONE) % bound
    taken[:] = _ZERO
    at = state[0]
    while left > 0:
        at += GOLDEN
        number = mix(at)
        for half in (number >> np.uint64(32), number & _HALF):
            product = half * bound
            if left == 0 or (product & _HALF) < biased:
                continue
            place = product >> np.uint64(32)
            word, bit = place >> np.uint64(6), _ONE << (place & np.uint64(63))
            fresh = (taken[word] & bit) == _ZERO
            taken[word] |= bit
            left -= fresh
    state[0] = at
    found = 0
    for word in range(len(taken)):
        bits = taken[word]
        if flipped:
            bits = bits ^ _ALL
            if word == len(taken) - 1 and n % 64 != 0:
                bits &= (_ONE << np.uint64(n % 64)) - _ONE
        while bits != _ZERO:
            lowest = bits & (~bits + _ONE)
            place = 64 * word + _BIT_OF[(lowest * _SEQUENCE) >> np.uint64(58)]
            above[found] = place - found
            found += 1
            bits ^= lowest


@njit(cache=True)
def draw_around(state: Any, n_neg: int, lead: float, heights: Any, above: Any) -> None:
    """As a scorer would rank them: negatives score N(0, 1), positives N(lead, 1), all independent.

    No negative is drawn. A positive with score s has each negative above it with probability
    P(N > s); between two neighbouring positives lies a binomial number of those still left.

    Args:
        state: (1,) uint64, the generator.
        n_neg: number of negatives.
        lead: how far positives lie above negatives; 0 is the uniform law.
        heights: scratch, float64, one for each positive.
        above: out, negatives above each positive, best positive first.
    """
    for at in range(0, len(heights), 2):
        radius = math.sqrt(-2.0 * math.log(_share(state)))
        angle = 2.0 * math.pi * _share(state)
        heights[at] = _beaten_by(lead + radius * math.cos(angle))
        if at + 1 < len(heights):
            heights[at + 1] = _beaten_by(lead + radius * math.sin(angle))
    sort_descending(heights)
    counted, passed = 0, 0.0
    for at in range(len(heights)):  # the smallest share first: the best positive
        height = heights[len(heights) - 1 - at]
        among = 1.0 - passed
        share = min(1.0, (height - passed) / among) if among > 0.0 else 0.0
        counted += draw_binomial(state, n_neg - counted, share)
        passed = height
        above[at] = counted


@njit(cache=True)
def _beaten_by(score: float) -> float:
    """The share of a standard normal population above `score`."""
    return 0.5 * math.erfc(score / math.sqrt(2.0))


@njit(cache=True)
def draw_binomial(state: Any, n: int, p: float) -> int:
    """How many of n succeed, each with probability p; exact.

    Reference for large means: Hörmann, The generation of binomial random variates, 1993 (BTRS).
    """
    if n == 0 or p <= 0.0:
        return 0
    flipped = p > 0.5
    if flipped:
        p = 1.0 - p
    if p == 0.0:
        count = 0
    elif n * p < _FEW:
        count = _binomial_by_counting(state, n, p)
    else:
        count = _binomial_by_rejection(state, n, p)
    return n - count if flipped else count


@njit(cache=True)
def _binomial_by_counting(state: Any, n: int, p: float) -> int:
    odds = p / (1.0 - p)
    chance = math.exp(n * math.log1p(-p))
    left = _share(state)
    count = 0
    while left > chance and count < n:
        left -= chance
        count += 1
        chance *= odds * (n - count + 1) / count
    return count


@njit(cache=True)
def _binomial_by_rejection(state: Any, n: int, p: float) -> int:
    spread = math.sqrt(n * p * (1.0 - p))
    b = 1.15 + 2.53 * spread
    a = -0.0873 + 0.0248 * b + 0.01 * p
    centre = n * p + 0.5
    accepted = 0.92 - 4.2 / b
    alpha = (2.83 + 5.1 / b) * spread
    mode = math.floor((n + 1) * p)
    while True:
        u, v = _share(state) - 0.5, _share(state)
        edge = 0.5 - abs(u)
        count = math.floor((2.0 * a / edge + b) * u + centre)
        if edge >= 0.07 and v <= accepted:
            return int(count)
        if count < 0 or count > n:
            continue
        height = (
            math.lgamma(mode + 1.0)
            + math.lgamma(n - mode + 1.0)
            - math.lgamma(count + 1.0)
            - math.lgamma(n - count + 1.0)
            + (count - mode) * math.log(p / (1.0 - p))
        )
        if math.log(v * alpha / (a / (edge * edge) + b)) <= height:
            return int(count)


@njit(cache=True)
def _measure(above: Any, until: Any, k_pos: Any, k_neg: Any, ks: Any, gain: Any, out: Any) -> None:
    """One ranking's metrics, in `out`: areas of LLPAUC, then two-way areas, then the top-K ones.

    Args:
        above: negatives above each positive, best positive first.
        until: scratch, (n+ + 1,) int64, prefix sums of `above`.
        k_pos, k_neg: the grid, as numbers of items; areas are stored k_neg by k_neg.
        ks: lengths of list, upwards.
        gain: (largest k,) what a hit at each rank adds to DCG.
        out: (2 * grid + 2 * ks,): pairs won, pairs won, hits@k, DCG@k.
    """
    n_pos, cells = len(above), len(k_pos) * len(k_neg)
    until[0] = 0
    for i in range(n_pos):
        until[i + 1] = until[i] + above[i]
    for b in range(len(k_neg)):
        reach = np.searchsorted(above, k_neg[b])  # positives that beat one of the k- at least
        for a in range(len(k_pos)):
            at = b * len(k_pos) + a
            some = min(k_pos[a], reach)
            out[at] = k_neg[b] * some - until[some]
            first = min(n_pos - k_pos[a], reach)
            out[cells + at] = k_neg[b] * (reach - first) - (until[reach] - until[first])
    hits, dcg = 0, 0.0
    for at in range(len(ks)):
        while hits < n_pos and above[hits] + hits < ks[at]:
            dcg += gain[above[hits] + hits]
            hits += 1
        out[2 * cells + at] = hits
        out[2 * cells + len(ks) + at] = dcg


@njit(cache=True)
def _draw(state: Any, n_neg: int, lead: float, taken: Any, heights: Any, above: Any) -> None:
    if lead == 0.0:
        draw_uniform(state, n_neg, taken, above)
    else:
        draw_around(state, n_neg, lead, heights, above)


@njit(parallel=True, nogil=True, cache=True)
def add_moments(
    seed: Any, rankings: int, n_pos: int, n_neg: int, lead: float, k_pos: Any, k_neg: Any,
    ks: Any, gain: Any, centre: Any, sums: Any, squares: Any, products: Any,
) -> None:  # fmt: skip
    """Sums, squares and products of all metrics' deviations from `centre`, block by block.

    Which rankings a block holds depends on the number of blocks alone, so adding the blocks up in
    order gives the same bits with any number of threads.

    Args:
        centre: (M,) values near the means, so that nothing cancels.
        sums, squares: out, (blocks, M), zeros at first.
        products: out, (blocks, targets, areas), zeros at first.
    """
    blocks, targets, areas = products.shape
    for block in prange(blocks):
        state = np.empty(1, np.uint64)
        taken = np.empty((n_pos + n_neg + 63) // 64, np.uint64)
        heights = np.empty(n_pos, np.float64)
        above = np.empty(n_pos, np.int64)
        until = np.empty(n_pos + 1, np.int64)
        values = np.empty(areas + targets, np.float64)
        own = products[block]
        for ranking in range(block * rankings // blocks, (block + 1) * rankings // blocks):
            _begin(seed, ranking, state)
            _draw(state, n_neg, lead, taken, heights, above)
            _measure(above, until, k_pos, k_neg, ks, gain, values)
            for at in range(areas + targets):
                values[at] -= centre[at]
                sums[block, at] += values[at]
                squares[block, at] += values[at] * values[at]
            for target in range(targets):
                far = values[areas + target]
                for at in range(areas):
                    own[target, at] += far * values[at]


@njit(parallel=True, nogil=True, cache=True)
def measure_each(
    seed: Any, n_pos: int, n_neg: int, lead: float, k_pos: Any, k_neg: Any, ks: Any, gain: Any,
    wanted: Any, out: Any,
) -> None:  # fmt: skip
    """The metrics in `wanted` (places in `_measure`'s out) of the first len(out) rankings."""
    areas = 2 * len(k_pos) * len(k_neg)
    blocks = min(32, len(out))
    for block in prange(blocks):
        state = np.empty(1, np.uint64)
        taken = np.empty((n_pos + n_neg + 63) // 64, np.uint64)
        heights = np.empty(n_pos, np.float64)
        above = np.empty(n_pos, np.int64)
        until = np.empty(n_pos + 1, np.int64)
        values = np.empty(areas + 2 * len(ks), np.float64)
        for row in range(block * len(out) // blocks, (block + 1) * len(out) // blocks):
            _begin(seed, row, state)
            _draw(state, n_neg, lead, taken, heights, above)
            _measure(above, until, k_pos, k_neg, ks, gain, values)
            for at in range(len(wanted)):
                out[row, at] = values[wanted[at]]


@njit(parallel=True, nogil=True, cache=True)
def draw_each(seed: Any, n_neg: int, lead: float, out: Any) -> None:
    """(rankings, n+) negatives above each positive, best positive first."""
    n_pos = out.shape[1]
    for ranking in prange(len(out)):
        state = np.empty(1, np.uint64)
        taken = np.empty((n_pos + n_neg + 63) // 64, np.uint64)
        heights = np.empty(n_pos, np.float64)
        _begin(seed, ranking, state)
        _draw(state, n_neg, lead, taken, heights, out[ranking])
