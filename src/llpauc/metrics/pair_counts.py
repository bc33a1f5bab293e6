"""The number of negatives above each positive, from which every partial AUC follows.

One pass over the scores gives these counts; every cell of an (alpha, beta) grid then costs a few
operations per positive (`partial_auc.partial_auc_from_counts`). No row of scores is sorted.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit, prange
from scipy import sparse

from llpauc.errors import InputError

# A block of scores stays in the core's cache while every positive is compared with it.
_BLOCK = 8192


@dataclass(frozen=True)
class PairCounts:
    """For each positive, the negatives of its user that score above it, and as high as it.

    Args:
        above: negatives with a strictly greater score, int32, one entry per positive, ordered by
            user, **best positive first** within a user.
        tied: negatives with an equal score, int32, in the same order.
        indptr: where each user's positives begin, int64, (n_users + 1,).
        n_neg: negatives of each user, int64, (n_users,).
    """

    above: npt.NDArray[np.int32]
    tied: npt.NDArray[np.int32]
    indptr: npt.NDArray[np.int64]
    n_neg: npt.NDArray[np.int64]

    def __post_init__(self) -> None:
        if len(self.indptr) != len(self.n_neg) + 1:
            raise InputError(
                f"indptr has {len(self.indptr)} entries, {len(self.n_neg) + 1} are needed"
            )
        if not len(self.above) == len(self.tied) == self.indptr[-1]:
            raise InputError(
                f"above has {len(self.above)} entries and tied {len(self.tied)}; indptr needs "
                f"{self.indptr[-1]}"
            )
        next_of_same_user = self.position[1:] > 0
        for reached in (self.above, self.above + self.tied):
            wrong = np.flatnonzero(next_of_same_user & (np.diff(reached) < 0))
            if len(wrong):
                raise InputError(
                    f"the positives of user {self.user[wrong[0]]} must be ordered best first"
                )

    @property
    def n_users(self) -> int:
        return len(self.n_neg)

    @property
    def n_pos(self) -> npt.NDArray[np.int64]:
        """Positives of each user."""
        return np.diff(self.indptr)

    @cached_property
    def user(self) -> npt.NDArray[np.int64]:
        """The user of each positive."""
        return np.repeat(np.arange(self.n_users), self.n_pos)

    @cached_property
    def position(self) -> npt.NDArray[np.int64]:
        """0 for a user's best positive, 1 for the next."""
        return np.arange(len(self.above)) - self.indptr[:-1][self.user]


def negatives_above(
    scores: npt.ArrayLike, positives: sparse.csr_array, masked: sparse.csr_array | None = None
) -> PairCounts:
    """Count, for every positive of every user, the negatives above it and tied with it.

    Args:
        scores: users x items, float32 or float64 (anything else becomes float64); infinities are
            ordinary scores, NaN raises an error.
        positives: scipy CSR, users x items; its stored entries are the positives.
        masked: scipy CSR of the same shape; its stored entries are neither positive nor negative.
            No item may be in both.

    Runs on all Numba threads; the counts are integers and do not depend on their number.

    >>> counts = negatives_above([[0.9, 0.5, 0.5, 0.1]], sparse.csr_array([[0, 1, 0, 1]]))
    >>> counts.above.tolist(), counts.tied.tolist(), counts.n_neg.tolist()
    ([1, 2], [1, 0], [2])
    """
    matrix = as_scores(scores)
    if matrix.ndim != 2:
        raise InputError(f"scores must be users x items (two dimensions), got {matrix.shape}")
    pos_indptr, pos_items = _canonical(positives, matrix.shape, "positives")
    none = sparse.csr_array(matrix.shape)
    masked_indptr, masked_items = _canonical(
        none if masked is None else masked, matrix.shape, "masked"
    )
    if masked is not None:
        _check_disjoint(positives, masked)
    above = np.empty(len(pos_items), np.int32)
    tied = np.empty(len(pos_items), np.int32)
    n_neg = np.empty(len(matrix), np.int64)
    _count_users(matrix, pos_indptr, pos_items, masked_indptr, masked_items, above, tied, n_neg)
    wrong = np.flatnonzero(n_neg < 0)
    if len(wrong):
        place = int(np.flatnonzero(np.isnan(matrix[wrong[0]]))[0])
        raise InputError(
            f"the score of user {wrong[0]}, item {place} is NaN; a NaN has no rank, repair the "
            f"model or set it to -inf"
        )
    return PairCounts(above, tied, pos_indptr, n_neg)


def as_scores(scores: npt.ArrayLike) -> npt.NDArray[Any]:
    """Scores as a contiguous array: float16 and float32 as float32, all others as float64."""
    array = np.asarray(scores)
    if array.dtype.kind not in "biuf":
        raise InputError(f"scores must be numbers, got the type {array.dtype}")
    dtype = np.float32 if array.dtype in (np.float16, np.float32) else np.float64
    return np.asarray(array, dtype=dtype, order="C")


def _canonical(
    matrix: sparse.csr_array, shape: tuple[int, ...], name: str
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    if not (sparse.issparse(matrix) and matrix.format == "csr"):
        raise InputError(f"{name} must be a scipy CSR matrix, got {type(matrix).__name__}")
    if matrix.shape != shape:
        raise InputError(f"{name} must have the shape of the scores {shape}, got {matrix.shape}")
    if not matrix.has_canonical_format:
        raise InputError(
            f"{name} stores items twice or out of order; call its sum_duplicates() first"
        )
    if matrix.nnz and not (matrix.indices.min() >= 0 and matrix.indices.max() < shape[1]):
        raise InputError(f"{name} holds an item outside [0, {shape[1]})")
    return matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32)


def _check_disjoint(positives: sparse.csr_array, masked: sparse.csr_array) -> None:
    stored = [
        sparse.csr_array((np.ones(m.nnz, np.int8), m.indices, m.indptr), shape=m.shape)
        for m in (positives, masked)
    ]
    both = stored[0].multiply(stored[1]).tocoo()
    if both.nnz:
        raise InputError(
            f"item {both.col[0]} of user {both.row[0]} is both positive and masked; drop it from "
            f"one of the two"
        )


@njit(nogil=True, cache=True)
def _add_counts(values: Any, best: Any, sign: np.int32, above: Any, tied: Any) -> None:
    """Add `sign` for every value above, or equal to, each of the `best` scores (descending)."""
    for start in range(0, len(values), _BLOCK):
        block = values[start : start + _BLOCK]
        for place in range(len(best)):
            score = best[place]
            # 32-bit counters, so that a vector register holds as many counters as scores.
            greater = np.int32(0)
            equal = np.int32(0)
            for at in range(len(block)):  # by index: LLVM does not vectorise Numba's iterators
                greater = np.int32(greater + np.int32(block[at] > score))
                equal = np.int32(equal + np.int32(block[at] == score))
            above[place] += sign * greater
            tied[place] += sign * equal


@njit(nogil=True, cache=True)
def sort_descending(values: Any) -> None:
    # Shell's sort: as fast as np.sort on so few values, and compiles in a tenth of the time.
    gap = 1
    while gap < len(values) // 3:
        gap = 3 * gap + 1
    while gap > 0:
        for start in range(gap, len(values)):
            value = values[start]
            place = start
            while place >= gap and values[place - gap] < value:
                values[place] = values[place - gap]
                place -= gap
            values[place] = value
        gap //= 3


@njit(nogil=True, cache=True)
def count_above_row(scores: Any, positives: Any, masked: Any, above: Any, tied: Any) -> int:
    """One user's counts, for use inside another Numba kernel: one thread, no GIL.

    Args:
        scores: (n_items,) float32 or float64.
        positives: items of the user that are positive, each once, integers.
        masked: items that are neither positive nor negative, each once, none of them positive.
        above: out, (n_positives,) int32: negatives above each positive, **best positive first**.
        tied: out, likewise: negatives with an equal score.

    Returns:
        The user's number of negatives, or -1 where a score is NaN (`above` is then meaningless).
    """
    nans = np.int32(0)
    for item in range(len(scores)):
        nans = np.int32(nans + np.int32(scores[item] != scores[item]))
    if nans > 0:
        return -1
    # All items are counted, then the positives and masked ones subtracted: the pass over the scores
    # needs no membership test.
    others = np.empty(len(positives) + len(masked), scores.dtype)
    for place in range(len(positives)):
        others[place] = scores[positives[place]]
    for place in range(len(masked)):
        others[len(positives) + place] = scores[masked[place]]
    best = others[: len(positives)].copy()
    sort_descending(best)
    above[:] = 0
    tied[:] = 0
    _add_counts(scores, best, np.int32(1), above, tied)
    _add_counts(others, best, np.int32(-1), above, tied)
    return len(scores) - len(others)


@njit(parallel=True, nogil=True, cache=True)
def _count_users(scores, indptr, items, masked_indptr, masked_items, above, tied, n_neg):  # type: ignore[no-untyped-def]
    for user in prange(len(scores)):
        part = slice(indptr[user], indptr[user + 1])
        masked = masked_items[masked_indptr[user] : masked_indptr[user + 1]]
        n_neg[user] = count_above_row(scores[user], items[part], masked, above[part], tied[part])
