"""The hot path on a CPU: score a batch of pairs, and turn score gradients into row gradients.

Both run in parallel over rows that no two threads share, and every sum is taken in the order of the
batch, so the bits depend on neither the number of threads nor their speed.

An item table may be one column wider than the user table: the last column is then a bias, added to
the product as it is.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from llpauc.optim import FAST_MATH


@njit(cache=True)
def distinct(first, second, slot_of, stamp, now, rows):
    """The distinct entries of two arrays, in order of appearance; their number.

    rows[: n] takes them, slot_of[row] says where each went. `stamp` marks what was seen at `now`,
    so that nothing has to be cleared between batches.
    """
    n = 0
    for which in (first, second):
        for row in which:
            if stamp[row] != now:
                stamp[row] = now
                slot_of[row] = n
                rows[n] = row
                n += 1
    return n


@njit(parallel=True, cache=True, fastmath=FAST_MATH)
def score_pairs(user_table, item_table, users, positives, negatives, scale, pos_scores, neg_scores):
    """scores = scale <user row, item row> (+ bias) for (B,) positives and (B, N) negatives."""
    width = user_table.shape[1]
    biased = item_table.shape[1] > width
    n_neg = negatives.shape[1]
    for b in prange(len(users)):
        u = user_table[users[b]]
        v = item_table[positives[b]]
        total = np.float32(0)
        for k in range(width):
            total += u[k] * v[k]
        pos_scores[b] = scale * total + (v[width] if biased else np.float32(0))
        # Four rows at a time: the user's row is loaded once for them, the loop set up once.
        for j in range(0, n_neg - 3, 4):
            v0, v1 = item_table[negatives[b, j]], item_table[negatives[b, j + 1]]
            v2, v3 = item_table[negatives[b, j + 2]], item_table[negatives[b, j + 3]]
            t0, t1, t2, t3 = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
            for k in range(width):
                t0 += u[k] * v0[k]
                t1 += u[k] * v1[k]
                t2 += u[k] * v2[k]
                t3 += u[k] * v3[k]
            neg_scores[b, j], neg_scores[b, j + 1] = scale * t0, scale * t1
            neg_scores[b, j + 2], neg_scores[b, j + 3] = scale * t2, scale * t3
        for j in range(n_neg // 4 * 4, n_neg):
            v = item_table[negatives[b, j]]
            total = np.float32(0)
            for k in range(width):
                total += u[k] * v[k]
            neg_scores[b, j] = scale * total
        if biased:
            for j in range(n_neg):
                neg_scores[b, j] += item_table[negatives[b, j], width]


@njit(cache=True, fastmath=FAST_MATH, inline="always")
def _add_rows(into, width, table, rows, factors, first, last):
    """into += table rows times their factors, eight at a time: one pass over `into` for them."""
    for at in range(first, last - 7, 8):
        v0, v1, v2, v3 = (
            table[rows[at]], table[rows[at + 1]], table[rows[at + 2]], table[rows[at + 3]]
        )  # fmt: skip
        v4, v5, v6, v7 = (
            table[rows[at + 4]], table[rows[at + 5]], table[rows[at + 6]], table[rows[at + 7]]
        )  # fmt: skip
        f0, f1, f2, f3 = factors[at], factors[at + 1], factors[at + 2], factors[at + 3]
        f4, f5, f6, f7 = factors[at + 4], factors[at + 5], factors[at + 6], factors[at + 7]
        for k in range(width):
            into[k] += ((f0 * v0[k] + f1 * v1[k]) + (f2 * v2[k] + f3 * v3[k])) + (
                (f4 * v4[k] + f5 * v5[k]) + (f6 * v6[k] + f7 * v7[k])
            )
    for at in range(first + (last - first) // 8 * 8, last):
        row, factor = table[rows[at]], factors[at]
        for k in range(width):
            into[k] += factor * row[k]


@njit(parallel=True, cache=True, fastmath=FAST_MATH)
def scatter_gradients(
    user_table, item_table, users, positives, negatives, scale, pos_slopes, neg_slopes,
    slot_of, n_rows, shards, counts, pair_user, pair_slope, user_gradients, item_gradients,
):  # fmt: skip
    """From d loss / d scores to gradients of the user rows (a row a positive) and of the item rows.

    The pairs are sorted by item with a counting sort (each shard of the batch counts and places its
    own), so that an item's gradient is one walk over its own pairs: no two threads write one row.
    """
    width = user_table.shape[1]
    biased = item_table.shape[1] > width
    size, n_neg = negatives.shape
    for shard in prange(shards):
        count = counts[shard]
        count[:n_rows] = 0
        for b in range(shard * size // shards, (shard + 1) * size // shards):
            count[slot_of[positives[b]]] += 1
            for j in range(n_neg):
                count[slot_of[negatives[b, j]]] += 1
    place = 0
    for slot in range(n_rows):
        for shard in range(shards):
            here = counts[shard, slot]
            counts[shard, slot] = place
            place += here
    for shard in prange(shards):
        at = counts[shard]
        for b in range(shard * size // shards, (shard + 1) * size // shards):
            gradient = user_gradients[b]
            item, user = positives[b], users[b]
            v = item_table[item]
            slope = pos_slopes[b]
            for k in range(width):
                gradient[k] = slope * v[k]
            slot = slot_of[item]
            to = at[slot]
            at[slot] = to + 1
            pair_user[to], pair_slope[to] = user, slope
            _add_rows(gradient, width, item_table, negatives[b], neg_slopes[b], 0, n_neg)
            for k in range(width):
                gradient[k] *= scale
            for j in range(n_neg):
                slot = slot_of[negatives[b, j]]
                to = at[slot]
                at[slot] = to + 1
                pair_user[to], pair_slope[to] = user, neg_slopes[b, j]
    last = shards - 1
    for slot in prange(n_rows):  # each shard has moved its mark to its end
        gradient = item_gradients[slot]
        gradient[:] = 0
        begin = counts[last, slot - 1] if slot else 0
        end = counts[last, slot]
        _add_rows(gradient, width, user_table, pair_user, pair_slope, begin, end)
        for k in range(width):
            gradient[k] *= scale
        if biased:
            for pair in range(begin, end):
                gradient[width] += pair_slope[pair]


@njit(cache=True, fastmath=FAST_MATH)
def merge_rows(rows, slot_of, gradients, n_rows, merged):
    """Add gradients[b] into merged[slot_of[rows[b]]]: a row that came up twice gets one."""
    merged[:n_rows] = 0
    for b in range(len(rows)):
        into = merged[slot_of[rows[b]]]
        for k in range(gradients.shape[1]):
            into[k] += gradients[b, k]


@njit(parallel=True, cache=True, fastmath=FAST_MATH)
def unit_rows(table, rows, width, units):
    """units[row] = table[row] / |table[row]| over the first `width` columns; the rest as it is."""
    for place in prange(len(rows)):
        row = rows[place]
        total = np.float32(0)
        for k in range(width):
            total += table[row, k] * table[row, k]
        inverse = np.float32(1) / max(np.sqrt(total), np.float32(1e-12))
        for k in range(width):
            units[row, k] = table[row, k] * inverse
        for k in range(width, table.shape[1]):
            units[row, k] = table[row, k]


@njit(parallel=True, cache=True, fastmath=FAST_MATH)
def through_unit(table, units, rows, width, gradients):
    """Gradients of unit rows into gradients of the rows: (g - <g, unit> unit) / |row|, in place."""
    for place in prange(len(rows)):
        row = rows[place]
        along = np.float32(0)
        total = np.float32(0)
        for k in range(width):
            along += gradients[place, k] * units[row, k]
            total += table[row, k] * table[row, k]
        inverse = np.float32(1) / max(np.sqrt(total), np.float32(1e-12))
        for k in range(width):
            gradients[place, k] = (gradients[place, k] - along * units[row, k]) * inverse
