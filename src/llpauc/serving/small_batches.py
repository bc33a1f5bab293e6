"""Lists for a few people at the price of a few.

`rank` computes whole tiles of users, so that a list never depends on who else is asked for: right
for all users of a run, dear for one. Here the product is our own loop: one sum an item, in the
order of the dimensions, each step a fused multiply-add, as in `evaluation.scorer.inner_products`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from llpauc.data.interactions import Indices
from llpauc.errors import InputError
from llpauc.evaluation.ranking import best_of
from llpauc.evaluation.scorer import FactorScorer, Scores
from llpauc.models.fold_in import HistoryMap
from llpauc.recommend.fitted import Fitted

PEOPLE = 16  # scored in one pass: beyond that, a person costs no less
_ITEMS = 1024  # in one pass: with 64 dimensions they stay in the processor's second cache
_GROUPS = 2048  # of items, whose highest scores are looked at first

# A fresh block each time would cost as much in page faults as the product. `append` and `pop` are
# single steps, so threads may share the list.
_free: list[Scores] = []


def rank_few(
    fill: Callable[[int, int, Scores], None],
    n_items: int,
    hidden: Sequence[npt.NDArray[Any]],
    k: int,
) -> tuple[Indices, Scores]:
    """The best k of each person, as `rank` gives them.

    Args:
        fill: called with start, stop and a block of (stop - start, n_items), writes their scores.
        n_items: number of items.
        hidden: item rows that each person may not get, ascending.
        k: length of the lists; cut to the number of items.
    """
    n, k = len(hidden), min(k, n_items)
    items, scores = np.empty((n, k), np.int32), np.empty((n, k), np.float32)
    starts = np.concatenate([[0], np.cumsum([len(rows) for rows in hidden])]).astype(np.int32)
    rows = np.concatenate(hidden).astype(np.int32)
    whole = _block(n_items)
    try:
        for start in range(0, n, PEOPLE):
            block = whole[: min(PEOPLE, n - start)]
            fill(start, start + len(block), block)
            if not _reduce(block, start, starts, rows, items, scores):
                raise InputError("the model gives NaN scores; it has diverged: train anew")
    finally:
        _free.append(whole)
    return items, scores


@numba.njit(nogil=True, cache=True)
def _reduce(
    block: Scores, first: int, starts: Indices, hidden: Indices, items: Indices, scores: Scores
) -> bool:
    """Each row's best; whether every score was a number."""
    highest = np.empty(_GROUPS, np.float32)
    not_numbers = np.empty(_GROUPS, np.int32)
    for r in range(len(block)):
        row, person, nans = block[r], first + r, 0
        for item in hidden[starts[person] : starts[person + 1]]:
            nans += row[item] != row[item]
            row[item] = -np.inf
        _look_at_groups(row, highest, not_numbers)
        if nans + not_numbers.sum() > 0:
            return False
        if 4 * items.shape[1] < _GROUPS:
            _best_of_groups(row, highest, items[person], scores[person])
        else:
            best_of(row, items[person], scores[person])
    return True


@numba.njit(nogil=True, cache=True)
def _look_at_groups(row: Scores, highest: Scores, not_numbers: Indices) -> None:
    """Of every _GROUPS-th item, the highest score, and whether there is a NaN among them."""
    highest[:] = -np.inf
    not_numbers[:] = 0
    for start in range(0, len(row), _GROUPS):
        part = row[start : min(start + _GROUPS, len(row))]
        for j in range(len(part)):  # neither sum nor maximum of a row: so it runs in vectors
            highest[j] = part[j] if part[j] > highest[j] else highest[j]
            not_numbers[j] |= np.int32(part[j] != part[j])


@numba.njit(nogil=True, cache=True)
def _best_of_groups(row: Scores, highest: Scores, items: Indices, scores: Scores) -> None:
    """`best_of` of the few items that can be among the best k.

    The highest of k groups are k scores, so what is below the lowest of them is not among the best
    k, and no item of a group whose own highest is below it.
    """
    k = len(items)
    best_of(highest, items, scores)
    enough = scores[k - 1]
    if enough == -np.inf:  # too few groups have an item left
        best_of(row, items, scores)
        return
    groups = np.flatnonzero(highest >= enough)
    rows, left = np.empty(len(groups) * (len(row) // _GROUPS + 1), np.int32), 0
    for start in range(0, len(row), _GROUPS):  # items ascending, so equal scores keep their order
        for group in groups:
            if start + group < len(row) and row[start + group] >= enough:
                rows[left] = start + group
                left += 1
    best_of(row[rows[:left]], items, scores)
    for place in range(k):
        items[place] = rows[items[place]]


def _block(n_items: int) -> Scores:
    """One that nobody uses; those of a run before, with another number of items, are let go."""
    while True:
        try:
            block = _free.pop()
        except IndexError:
            return np.empty((PEOPLE, n_items), np.float32)
        if block.shape[1] == n_items:
            return block


def shared_columns(fitted: Fitted) -> Scores | None:
    """(d, n_items) item vectors of known and of new users; None where they differ or are absent."""
    scorer, by_items = fitted.scorer, fitted.by_items
    if not isinstance(scorer, FactorScorer) or not isinstance(by_items, HistoryMap):
        return None
    shared = np.array_equal(scorer.item_vectors, by_items.item_vectors)
    return scorer.item_vectors.T if shared else None


# --- the product --------------------------------------------------------------------------------
# Contraction makes each step a fused multiply-add; the rest of fastmath would reorder the sums.


@numba.njit(nogil=True, cache=True)
def multiply(people: Scores, columns: Scores, out: Scores) -> None:
    """out = people @ columns, every element one sum in the order of the dimensions."""
    n = columns.shape[1]
    by_four = len(people) - len(people) % 4
    for start in range(0, n, _ITEMS):
        stop = min(start + _ITEMS, n)
        for p in range(0, by_four, 4):
            _four(people[p : p + 4], columns, start, stop, out[p : p + 4])
        for p in range(by_four, len(people)):
            _one(people[p], columns, start, stop, out[p])


@numba.njit(nogil=True, cache=True, fastmath={"contract"})
def _one(person: Scores, columns: Scores, start: int, stop: int, out: Scores) -> None:
    d = len(person)
    whole = d - d % 8
    o = out[start:stop]
    o[:] = 0
    for k in range(0, whole, 8):  # eight at a time: the sum stays in a register meanwhile
        a0, a1, a2, a3 = person[k], person[k + 1], person[k + 2], person[k + 3]
        a4, a5, a6, a7 = person[k + 4], person[k + 5], person[k + 6], person[k + 7]
        v0, v1 = columns[k, start:stop], columns[k + 1, start:stop]
        v2, v3 = columns[k + 2, start:stop], columns[k + 3, start:stop]
        v4, v5 = columns[k + 4, start:stop], columns[k + 5, start:stop]
        v6, v7 = columns[k + 6, start:stop], columns[k + 7, start:stop]
        for j in range(stop - start):
            s = o[j]
            s += a0 * v0[j]
            s += a1 * v1[j]
            s += a2 * v2[j]
            s += a3 * v3[j]
            s += a4 * v4[j]
            s += a5 * v5[j]
            s += a6 * v6[j]
            s += a7 * v7[j]
            o[j] = s
    for k in range(whole, d):
        a, v = person[k], columns[k, start:stop]
        for j in range(stop - start):
            o[j] += a * v[j]


@numba.njit(nogil=True, cache=True, fastmath={"contract"})
def _four(people: Scores, columns: Scores, start: int, stop: int, out: Scores) -> None:
    """Four people, four dimensions at a time: what is read of the items serves all four."""
    d = people.shape[1]
    whole = d - d % 4
    p, q, r, s = out[0, start:stop], out[1, start:stop], out[2, start:stop], out[3, start:stop]
    p[:], q[:], r[:], s[:] = 0, 0, 0, 0
    for k in range(0, whole, 4):
        p0, p1, p2, p3 = people[0, k], people[0, k + 1], people[0, k + 2], people[0, k + 3]
        q0, q1, q2, q3 = people[1, k], people[1, k + 1], people[1, k + 2], people[1, k + 3]
        r0, r1, r2, r3 = people[2, k], people[2, k + 1], people[2, k + 2], people[2, k + 3]
        s0, s1, s2, s3 = people[3, k], people[3, k + 1], people[3, k + 2], people[3, k + 3]
        v0, v1 = columns[k, start:stop], columns[k + 1, start:stop]
        v2, v3 = columns[k + 2, start:stop], columns[k + 3, start:stop]
        for j in range(stop - start):
            x0, x1, x2, x3 = v0[j], v1[j], v2[j], v3[j]
            p[j] = (((p[j] + p0 * x0) + p1 * x1) + p2 * x2) + p3 * x3
            q[j] = (((q[j] + q0 * x0) + q1 * x1) + q2 * x2) + q3 * x3
            r[j] = (((r[j] + r0 * x0) + r1 * x1) + r2 * x2) + r3 * x3
            s[j] = (((s[j] + s0 * x0) + s1 * x1) + s2 * x2) + s3 * x3
    for k in range(whole, d):
        v = columns[k, start:stop]
        for j in range(stop - start):
            p[j] += people[0, k] * v[j]
            q[j] += people[1, k] * v[j]
            r[j] += people[2, k] * v[j]
            s[j] += people[3, k] * v[j]
