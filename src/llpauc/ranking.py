"""Exact full ranking in bounded memory: every item scored for every user, the best K kept.

Users are taken in tiles of a fixed size that depends on nothing but the number of items. A
tile's scores are computed, masked and reduced by one thread while the others work on their own,
so neither the number of threads nor the memory allowed changes a bit of the result: they only
decide how many tiles are under way at once.

Order: by descending score; equal scores by ascending item row. Masked items never appear; where
fewer than K items are left, the rest of the row is -1 (score -inf).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import numba
import numpy as np
from scipy import sparse
from threadpoolctl import threadpool_limits

from llpauc.errors import InputError, check_at_least
from llpauc.interactions import Rows
from llpauc.metrics.pair_counts import PairCounts, count_above_row
from llpauc.models.scorer import Scorer, Scores

_TILE_BYTES = 16 << 20
_TILE_USERS = (16, 64)


@dataclass(frozen=True)
class Ranking:
    """The best K of each user, and, where positives were given, where each of them stands.

    Args:
        items: (n, K) item rows, best first, -1 beyond the last candidate.
        scores: (n, K) their scores.
        counts: how many negatives stand above each positive, which is all that AUC and its
            partial forms need; None where no positives were given.
    """

    items: Rows
    scores: Scores
    counts: PairCounts | None


def tile_users(n_items: int) -> int:
    """Users in a tile: as many as fill 16 MB of scores, between 16 and 64."""
    least, most = _TILE_USERS
    return int(np.clip(_TILE_BYTES // (4 * max(n_items, 1)) // least * least, least, most))


def rank(
    scorer: Scorer,
    users: Rows,
    k: int,
    *,
    masked: sparse.csr_matrix | None = None,
    positives: sparse.csr_matrix | None = None,
    memory_mb: float = 1024,
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Ranking:
    """Rank all items for `users`.

    Args:
        scorer: gives the scores.
        users: rows of the users to rank for, (n,).
        k: length of the lists, at least 1.
        masked: (n, n_items) CSR; the items in row r may not be recommended to users[r].
        positives: (n, n_items) CSR, none of them masked; where given, their place among the
            negatives is counted.
        memory_mb: most that the tiles under way may take. The lists themselves come on top.
        threads: at most this many; by default one a core.
        progress: called with the number of users done since the last call.
    """
    n_items = scorer.n_items
    k = min(check_at_least("k", k, 1), n_items)
    tile = tile_users(n_items)
    workers = _workers(tile * n_items * 4, memory_mb, threads)
    none = sparse.csr_matrix((len(users), n_items), dtype=np.float32)
    masked = none if masked is None else _sorted(masked)
    wanted = none if positives is None else _sorted(positives)

    n = len(users)
    items, scores = np.empty((n, k), np.int32), np.empty((n, k), np.float32)
    above, tied = np.zeros(wanted.nnz, np.int32), np.zeros(wanted.nnz, np.int32)
    n_negatives = np.zeros(n, np.int64)
    # Blocks are handed round: a fresh one a tile would cost as much in page faults as the product.
    blocks: SimpleQueue[Scores] = SimpleQueue()
    for _ in range(workers):
        blocks.put(np.empty((tile, n_items), np.float32))

    def rank_tile(start: int) -> int:
        stop = min(start + tile, n)
        # The last tile is filled up, so that every matrix product has the same shape.
        asked = users[np.minimum(np.arange(start, start + tile), n - 1)]
        block = blocks.get()
        scorer.scores_into(asked, block)
        bad = _rank_rows(
            block[: stop - start], start,
            masked.indptr, masked.indices, wanted.indptr, wanted.indices,
            items, scores, above, tied, n_negatives,
        )  # fmt: skip
        blocks.put(block)
        if bad >= 0:
            raise InputError(
                f"the model gives NaN scores for user row {users[bad]}; it has diverged:"
                " train with a smaller learning rate"
            )
        return stop - start

    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(workers) as pool:
        for done in pool.map(rank_tile, range(0, n, tile)):
            if progress is not None:
                progress(done)
    counts = None
    if positives is not None:
        counts = PairCounts(above, tied, wanted.indptr.astype(np.int64), n_negatives)
    return Ranking(items, scores, counts)


def _workers(tile_bytes: int, memory_mb: float, threads: int | None) -> int:
    fit = int(memory_mb * 2**20 // tile_bytes)
    if fit < 1:
        raise InputError(
            f"a tile of scores takes {tile_bytes / 2**20:.0f} MB but only {memory_mb:g} MB are"
            " allowed; raise memory_mb (--memory-mb)"
        )
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(fit, threads or cores or 1)


def _sorted(matrix: Any) -> Any:
    if not matrix.has_sorted_indices:
        matrix = matrix.sorted_indices()
    return matrix


@numba.njit(nogil=True, cache=True)
def _rank_rows(
    block, first, mask_ptr, mask_items, pos_ptr, pos_items, items, scores, above, tied, n_negatives
):
    """Reduce a tile of scores, row by row; the index of a row with a NaN, or -1."""
    for r in range(block.shape[0]):
        row = block[r]
        u = first + r
        nans = np.int32(0)
        for score in row:  # counted, not left at the first: so the loop runs in vectors
            nans = np.int32(nans + np.int32(score != score))
        if nans > 0:
            return u
        hidden = mask_items[mask_ptr[u] : mask_ptr[u + 1]]
        begin, end = pos_ptr[u], pos_ptr[u + 1]
        if end > begin:
            n_negatives[u] = count_above_row(
                row, pos_items[begin:end], hidden, above[begin:end], tied[begin:end]
            )
        for item in hidden:
            row[item] = -np.inf
        _best(row, items[u], scores[u])
    return -1


@numba.njit(nogil=True, cache=True)
def _best(row, items, scores):
    """The best len(items) of `row` in order, by a heap whose root is the worst one kept."""
    k = len(items)
    size = 0
    for item in range(len(row)):
        score = row[item]
        if size < k:
            if score > -np.inf:
                size += 1
                _sift_up(items, scores, size - 1, item, score)
        elif score > scores[0]:  # an equal score loses: its item row is higher
            _sift_down(items, scores, k, item, score)
    for last in range(size - 1, 0, -1):  # heap sort, worst to the back
        item, score = items[last], scores[last]
        items[last], scores[last] = items[0], scores[0]
        _sift_down(items, scores, last, item, score)
    for rest in range(size, k):
        items[rest], scores[rest] = -1, -np.inf


@numba.njit(nogil=True, inline="always")
def _worse(score, item, other_score, other_item):
    return score < other_score or (score == other_score and item > other_item)


@numba.njit(nogil=True, cache=True)
def _sift_up(items, scores, place, item, score):
    while place > 0:
        parent = (place - 1) >> 1
        if not _worse(score, item, scores[parent], items[parent]):
            break
        items[place], scores[place] = items[parent], scores[parent]
        place = parent
    items[place], scores[place] = item, score


@numba.njit(nogil=True, cache=True)
def _sift_down(items, scores, size, item, score):
    place = 0
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        if child + 1 < size and _worse(
            scores[child + 1], items[child + 1], scores[child], items[child]
        ):
            child += 1
        if not _worse(scores[child], items[child], score, item):
            break
        items[place], scores[place] = items[child], scores[child]
        place = child
    items[place], scores[place] = item, score
