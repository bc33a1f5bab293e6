"""CPU kernels: score the pairs of a batch, and turn gradients of scores into gradients of rows.

Kernels that depend on the batch only (`distinct`, `sort_pairs`) release the GIL, so that a helper
thread can run them ahead. The others run in parallel over rows that no two threads share, and every
sum is taken in the order of the batch: the bits do not depend on the number of threads.

An item table may be one column wider than the user table: the last column is then a bias, which is
added to the scaled product. Indices are cast to np.uint32, which avoids the test for negative ones.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from llpauc.training.row_adam import FAST_MATH, PADDING, adam_row

_BLOCK = 64  # rows that share one gradient in working memory


@njit(nogil=True, cache=True)
def distinct(first, second, slot_of, stamp, now, rows):
    """Find the n distinct entries of two arrays, in order of appearance, and return n.

    They are written to rows[:n], and their positions to slot_of[row]. `stamp` marks the entries
    seen at `now`, so that nothing has to be cleared between batches.
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


@njit(nogil=True, cache=True)
def sort_pairs(positives, negatives, slot_of, ends, row_of, place_of):
    """A counting sort of the batch's pairs by the slot of their item.

    ends[slot] is the end of the pairs of a slot, row_of the batch row of each pair in sorted order,
    place_of[b, 0] the position of the positive of row b in that order, and place_of[b, 1 + j] the
    position of its negative j.
    """
    ends[:] = 0
    n_neg = negatives.shape[1]
    for b in range(len(positives)):
        ends[np.uint32(slot_of[np.uint32(positives[b])])] += 1
        for j in range(n_neg):
            ends[np.uint32(slot_of[np.uint32(negatives[b, j])])] += 1
    begin = 0
    for each in range(len(ends)):
        count = ends[each]
        ends[each] = begin
        begin += count
    for b in range(len(positives)):
        places = place_of[b]
        for j in range(-1, n_neg):
            item = positives[b] if j < 0 else negatives[b, j]
            slot = np.uint32(slot_of[np.uint32(item)])
            place = ends[slot]
            ends[slot] = place + 1
            row_of[np.uint32(place)] = b
            places[j + 1] = place


@njit(parallel=True, nogil=True, cache=True, fastmath=FAST_MATH, error_model="numpy")
def score_pairs(
    user_table, item_table, users, positives, negatives, scale, read, pos_scores, neg_scores
):
    """scores = scale <user row, item row> (+ bias) for (B,) positives and (B, N) negatives.

    `read` gets a copy of the user rows of the batch: in contiguous memory they stay in the nearest
    cache for the gradients of the items.
    """
    width = user_table.shape[1]
    biased = item_table.shape[1] > width
    n_neg = negatives.shape[1]
    scale = np.float32(scale)
    for b in prange(len(users)):
        u, row = read[b], user_table[np.uint32(users[b])]
        v = item_table[np.uint32(positives[b])]
        total = np.float32(0)
        for k in range(width):
            u[k] = row[k]
            total += row[k] * v[k]
        pos_scores[b] = scale * total + (v[width] if biased else np.float32(0))
        items, scores = negatives[b], neg_scores[b]
        # Four rows at a time: the user row is loaded once for them.
        for j in range(0, n_neg - 3, 4):
            v0, v1 = item_table[np.uint32(items[j])], item_table[np.uint32(items[j + 1])]
            v2, v3 = item_table[np.uint32(items[j + 2])], item_table[np.uint32(items[j + 3])]
            t0, t1, t2, t3 = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
            for k in range(width):
                t0 += u[k] * v0[k]
                t1 += u[k] * v1[k]
                t2 += u[k] * v2[k]
                t3 += u[k] * v3[k]
            scores[j], scores[j + 1] = scale * t0, scale * t1
            scores[j + 2], scores[j + 3] = scale * t2, scale * t3
        for j in range(n_neg // 4 * 4, n_neg):
            v = item_table[np.uint32(items[j])]
            total = np.float32(0)
            for k in range(width):
                total += u[k] * v[k]
            scores[j] = scale * total
        if biased:
            for j in range(n_neg):
                scores[j] += item_table[np.uint32(items[j]), width]


@njit(inline="always")
def _add_rows(into, width, table, rows, factors, first, last):
    """into += sum of table rows times their factors, eight rows at a time."""
    for at in range(first, last - 7, 8):
        v0, v1 = table[np.uint32(rows[at])], table[np.uint32(rows[at + 1])]
        v2, v3 = table[np.uint32(rows[at + 2])], table[np.uint32(rows[at + 3])]
        v4, v5 = table[np.uint32(rows[at + 4])], table[np.uint32(rows[at + 5])]
        v6, v7 = table[np.uint32(rows[at + 6])], table[np.uint32(rows[at + 7])]
        f0, f1, f2, f3 = factors[at], factors[at + 1], factors[at + 2], factors[at + 3]
        f4, f5, f6, f7 = factors[at + 4], factors[at + 5], factors[at + 6], factors[at + 7]
        for k in range(width):
            into[k] += ((f0 * v0[k] + f1 * v1[k]) + (f2 * v2[k] + f3 * v3[k])) + (
                (f4 * v4[k] + f5 * v5[k]) + (f6 * v6[k] + f7 * v7[k])
            )
    rest = first + (last - first) // 8 * 8
    if last - rest >= 4:
        v0, v1 = table[np.uint32(rows[rest])], table[np.uint32(rows[rest + 1])]
        v2, v3 = table[np.uint32(rows[rest + 2])], table[np.uint32(rows[rest + 3])]
        f0, f1, f2, f3 = factors[rest], factors[rest + 1], factors[rest + 2], factors[rest + 3]
        for k in range(width):
            into[k] += (f0 * v0[k] + f1 * v1[k]) + (f2 * v2[k] + f3 * v3[k])
        rest += 4
    for at in range(rest, last):
        row, factor = table[np.uint32(rows[at])], factors[at]
        for k in range(width):
            into[k] += factor * row[k]


@njit(parallel=True, nogil=True, cache=True, fastmath=FAST_MATH, error_model="numpy")
def user_gradients(
    item_table, positives, negatives, scale, pos_grads, neg_grads, place_of, gradients, slope_of
):
    """The gradient of the user row of each positive, from d loss / d scores. `slope_of` gets these
    derivatives times the scale, in the order of `sort_pairs`."""
    width = gradients.shape[1]
    n_neg = negatives.shape[1]
    scale = np.float32(scale)
    for b in prange(len(positives)):
        into, places = gradients[b], place_of[b]
        v, slope, score_grads = item_table[np.uint32(positives[b])], pos_grads[b], neg_grads[b]
        for k in range(width):
            into[k] = slope * v[k]
        _add_rows(into, width, item_table, negatives[b], score_grads, 0, n_neg)
        for k in range(width):
            into[k] *= scale
        slope_of[np.uint32(places[0])] = scale * slope
        for j in range(n_neg):
            slope_of[np.uint32(places[j + 1])] = scale * score_grads[j]


@njit(inline="always")
def _item_gradient(into, read, row_of, slope_of, begin, end, scale):
    """The gradient of one item, summed over its pairs."""
    width = read.shape[1]
    for k in range(len(into)):
        into[k] = np.float32(0)
    _add_rows(into, width, read, row_of, slope_of, begin, end)
    if len(into) > width:
        total = np.float32(0)  # a sum in a register always has the same order
        for pair in range(begin, end):
            total += slope_of[pair] / scale
        into[width] = total


@njit(parallel=True, nogil=True, cache=True, fastmath=FAST_MATH, error_model="numpy")
def sum_item_gradients(read, ends, row_of, slope_of, scale, gradients):
    """The gradient of each slot; `read` holds the user rows of the batch."""
    scale = np.float32(scale)
    for slot in prange(len(ends)):
        begin = ends[slot - 1] if slot else 0
        _item_gradient(gradients[slot], read, row_of, slope_of, begin, ends[slot], scale)


@njit(parallel=True, nogil=True, cache=True, fastmath=FAST_MATH, error_model="numpy")
def step_items(
    read, rows, ends, row_of, slope_of, scale,
    table, units, cosine, mean, square, done, count, constants,
):  # fmt: skip
    """`sum_item_gradients`, `through_unit`, a step of Adam and `unit_rows` in one pass: each row
    stays in the cache. `units` is `table` itself where there is no cosine."""
    width = read.shape[1]
    scale = np.float32(scale)
    for block in prange((len(rows) + _BLOCK - 1) // _BLOCK):
        gradient = np.empty(table.shape[1] + 2 * PADDING, np.float32)[PADDING:-PADDING]
        for slot in range(block * _BLOCK, min((block + 1) * _BLOCK, len(rows))):
            begin = ends[slot - 1] if slot else 0
            _item_gradient(gradient, read, row_of, slope_of, begin, ends[slot], scale)
            row = rows[slot]
            done[row] = count
            if cosine:
                _row_through_unit(table[row], units[row], width, gradient)
            adam_row(table[row], mean[row], square[row], gradient, constants)
            if cosine:
                _unit_row(table[row], width, units[row])


@njit(cache=True, fastmath=FAST_MATH)
def merge_rows(slots, gradients, merged):
    """merged[slot] = sum of the gradients[b] with slots[b] == slot."""
    merged[:] = 0
    for b in range(len(slots)):
        into = merged[slots[b]]
        for k in range(gradients.shape[1]):
            into[k] += gradients[b, k]


@njit(inline="always")
def _unit_row(row, width, unit):
    total = np.float32(0)
    for k in range(width):
        total += row[k] * row[k]
    inverse = np.float32(1) / max(np.sqrt(total), np.float32(1e-12))
    for k in range(width):
        unit[k] = row[k] * inverse
    for k in range(width, len(row)):
        unit[k] = row[k]


@njit(inline="always")
def _row_through_unit(row, unit, width, gradient):
    along = np.float32(0)
    total = np.float32(0)
    for k in range(width):
        along += gradient[k] * unit[k]
        total += row[k] * row[k]
    inverse = np.float32(1) / max(np.sqrt(total), np.float32(1e-12))
    for k in range(width):
        gradient[k] = (gradient[k] - along * unit[k]) * inverse


@njit(parallel=True, nogil=True, cache=True, fastmath=FAST_MATH, error_model="numpy")
def unit_rows(table, rows, width, units):
    """units[row] = table[row] / |table[row]| over the first `width` columns; a bias is copied."""
    for place in prange(len(rows)):
        _unit_row(table[rows[place]], width, units[rows[place]])


@njit(parallel=True, nogil=True, cache=True, fastmath=FAST_MATH, error_model="numpy")
def through_unit(table, units, rows, width, gradients):
    """Gradients of unit rows to gradients of rows, in place: (g - <g, unit> unit) / |row|."""
    for place in prange(len(rows)):
        row = rows[place]
        _row_through_unit(table[row], units[row], width, gradients[place])
