"""Exact full ranking in bounded memory: score every item for every user, return the best K.

Users are processed in tiles. One thread computes, masks and reduces the scores of a tile; a list
depends neither on the other users nor on the number of threads. Memory and threads only limit the
number of tiles in progress. All calls of a process share one thread pool.

Order: by descending score; equal scores by ascending item index. Masked items never appear; where
fewer than K items are left, the rest of the row is -1 (score -inf).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import cache
from queue import SimpleQueue
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
from scipy import sparse

from llpauc.data.ids import Indices
from llpauc.errors import InputError, check_at_least
from llpauc.evaluation.scorer import Scorer, Scores
from llpauc.metrics.pair_counts import PairCounts, count_above_row
from llpauc.storage.environment import cores

_TILE_BYTES = 16 << 20
_TILE_USERS = (15, 63)  # multiples of the three users that are scored in one pass
_GROUPS = 2048  # of items, whose highest scores are compared first
THREAD_BYTES = 128 << 20  # address space of a thread: its stack and malloc's arena


@dataclass(frozen=True)
class Ranking:
    """The best K items of each user.

    Args:
        items: (n, K) item indices, best first, -1 beyond the last candidate.
        scores: (n, K) their scores.
        counts: the number of negatives above each positive, from which AUC and its partial forms
            are computed; None where no positives were given.
    """

    items: Indices
    scores: Scores
    counts: PairCounts | None


def tile_users(n_items: int) -> int:
    """Users in a tile: as many as fill 16 MB of scores, between 15 and 63."""
    return int(np.clip(_TILE_BYTES // (4 * max(n_items, 1)) // 3 * 3, *_TILE_USERS))


def tile_bytes(n_items: int) -> int:
    """Memory of the scores of a tile."""
    return 4 * n_items * tile_users(n_items)


def available_address_space() -> int | None:
    """Bytes left by a limit on the process memory (ulimit -v, prlimit --as); None: no limit.

    Check it before allocating: some libraries end the process or hang without memory.
    """
    try:
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit == resource.RLIM_INFINITY:
            return None
        with open("/proc/self/statm", encoding="ascii") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
    except (ImportError, OSError):  # not supported on this system
        return None
    return max(limit - used, 0)


def rank(
    scorer: Scorer,
    users: Indices,
    k: int,
    *,
    masked: sparse.csr_matrix | None = None,
    hidden: Indices | None = None,
    positives: sparse.csr_matrix | None = None,
    memory_mb: float = 1024,
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Ranking:
    """Rank all items for `users`.

    Args:
        scorer: computes the scores.
        users: user indices, (n,).
        k: length of the lists, at least 1.
        masked: (n, n_items) CSR; the items in row r are not recommended to users[r].
        hidden: item indices that are recommended to no user. They still count as negatives.
        positives: (n, n_items) CSR, none of them masked; if given, the negatives above each of
            them are counted.
        memory_mb: limit on the memory of the tiles in progress. The lists are not included.
        threads: maximum number; by default one per core.
        progress: called with the number of users done since the last call.
    """
    n, n_items = len(users), scorer.n_items
    k = min(check_at_least("k", k, 1), n_items)
    tile = min(tile_users(n_items), max(n, 1))
    workers = _workers(4 * n_items * tile, memory_mb, threads)
    excluded = np.zeros(0, np.int32) if hidden is None else np.asarray(hidden, np.int32)
    mask_starts, mask_items = _sorted_rows(masked, n)
    pos_starts, pos_items = _sorted_rows(positives, n)

    items, scores = np.empty((n, k), np.int32), np.empty((n, k), np.float32)
    above, tied = np.zeros(len(pos_items), np.int32), np.zeros(len(pos_items), np.int32)
    n_negatives = np.zeros(n, np.int64)
    # Blocks are reused: a new one for each tile would cost as much in page faults as the product.
    blocks: SimpleQueue[Scores] = SimpleQueue()
    starts = range(0, n, tile)
    for _ in range(min(workers, len(starts))):
        blocks.put(np.empty((tile, n_items), np.float32))

    def rank_tile(start: int) -> int:
        stop = min(start + tile, n)
        whole = blocks.get()
        try:
            block = whole[: stop - start]
            scorer.scores_into(users[start:stop], block)
            with_nan = _rank_block(
                block, start, excluded, mask_starts, mask_items, pos_starts, pos_items,
                items, scores, above, tied, n_negatives,
            )  # fmt: skip
        finally:
            blocks.put(whole)
        if with_nan >= 0:
            raise InputError(
                f"the model gives NaN scores for user index {users[with_nan]}; it has diverged:"
                " train with a smaller learning rate"
            )
        return stop - start

    for done in _each(rank_tile, starts, workers):
        if progress is not None:
            progress(done)
    counts = None
    if positives is not None:
        counts = PairCounts(above, tied, pos_starts.astype(np.int64), n_negatives)
    return Ranking(items, scores, counts)


def _workers(tile_bytes: int, memory_mb: float, threads: int | None) -> int:
    fit = int(memory_mb * 2**20 // tile_bytes)
    if fit < 1:
        raise InputError(
            f"a tile of scores takes {tile_bytes / 2**20:.0f} MB but only {memory_mb:g} MB are"
            " allowed; raise memory_mb (--memory-mb)"
        )
    available = available_address_space()
    if available is not None:
        needed = tile_bytes + THREAD_BYTES
        if available < needed:
            raise InputError(
                f"ranking needs {needed:,} bytes, the limit on this process's memory leaves"
                f" {available:,}; raise it (ulimit -v)"
            )
        fit = min(fit, available // needed)
    return min(fit, threads or cores(), cores())


@cache
def _pool() -> ThreadPoolExecutor:
    """Threads are started once: starting them would double the time of a served request."""
    return ThreadPoolExecutor(cores(), thread_name_prefix="rank")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # a forked child has none of the threads


def _each(work: Callable[[int], int], starts: range, workers: int) -> Iterator[int]:
    """Yield `work(start)` for each start, in order; nothing keeps running after an early stop."""
    if workers == 1 or len(starts) == 1:
        yield from map(work, starts)
        return
    jobs: list[Future[int]] = []
    pool = _pool()
    try:
        jobs.extend(pool.submit(work, start) for start in starts)
        for job in jobs:
            yield job.result()
    except KeyboardInterrupt:
        # The signal may have arrived between the start of a thread and its registration in the
        # pool; the process would wait forever for that thread at exit. Shutting down wakes it.
        pool.shutdown(wait=False)
        _pool.cache_clear()
        raise
    finally:
        for job in jobs:
            job.cancel()
        wait(jobs)


def _sorted_rows(matrix: Any, n: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Starts and item indices of a CSR matrix with sorted rows; n empty rows for None."""
    if matrix is None:
        return np.zeros(n + 1, np.int32), np.zeros(0, np.int32)
    if not matrix.has_sorted_indices:
        matrix = matrix.sorted_indices()
    return matrix.indptr, matrix.indices


@numba.njit(nogil=True, cache=True)
def _rank_block(
    block, first, excluded, mask_starts, mask_items, pos_starts, pos_items,
    items, scores, above, tied, n_negatives,
):  # fmt: skip
    """Reduce the scores of a tile, user by user; the index of a user with a NaN, or -1."""
    maxima = np.empty(_GROUPS, np.float32)
    nans = np.empty(_GROUPS, np.int32)
    for r in range(len(block)):
        row, u = block[r], first + r
        masked = mask_items[mask_starts[u] : mask_starts[u + 1]]
        begin, end = pos_starts[u], pos_starts[u + 1]
        if end > begin:
            n_negatives[u] = count_above_row(
                row, pos_items[begin:end], masked, above[begin:end], tied[begin:end]
            )
        masked_nans = _exclude(row, masked) + _exclude(row, excluded)
        _group_maxima(row, maxima, nans)
        if masked_nans + nans.sum() > 0:
            return u
        if 4 * items.shape[1] < _GROUPS < len(row):
            _best_of_groups(row, maxima, items[u], scores[u])
        else:
            best_of(row, items[u], scores[u])
    return -1


@numba.njit(nogil=True, cache=True)
def _exclude(row, removed):
    """Set the scores of some items to -inf; how many of them were NaN."""
    nans = 0
    for item in removed:
        nans += row[item] != row[item]
        row[item] = -np.inf
    return nans


@numba.njit(nogil=True, cache=True)
def _group_maxima(row, maxima, nans):
    """Group g is the items g, g + _GROUPS, ...: its highest score, and whether it has a NaN."""
    maxima[:] = -np.inf
    nans[:] = 0
    for start in range(0, len(row), _GROUPS):
        part = row[start : min(start + _GROUPS, len(row))]
        for j in range(len(part)):  # no reduction within the loop, so it is vectorised
            maxima[j] = part[j] if part[j] > maxima[j] else maxima[j]
            nans[j] |= np.int32(part[j] != part[j])


@numba.njit(nogil=True, cache=True)
def _best_of_groups(row, maxima, items, scores):
    """`best_of`, applied only to the items that can be among the best k.

    The k highest maxima are k scores, so an item below the lowest of them is not among the best k,
    nor is any item of a group whose maximum is below it.
    """
    k = len(items)
    best_of(maxima, items, scores)
    bound = scores[k - 1]
    if bound == -np.inf:  # fewer than k groups have an item left
        best_of(row, items, scores)
        return
    groups = np.flatnonzero(maxima >= bound)
    candidates, n = np.empty(len(groups) * (len(row) // _GROUPS + 1), np.int32), 0
    for start in range(0, len(row), _GROUPS):  # ascending, so equal scores keep their order
        for group in groups:
            if start + group < len(row) and row[start + group] >= bound:
                candidates[n] = start + group
                n += 1
    best_of(row[candidates[:n]], items, scores)
    for position in range(k):
        items[position] = candidates[items[position]]


@numba.njit(nogil=True, cache=True)
def best_of(row, items, scores):
    """The best len(items) of `row` in order, by a heap whose root is the worst of them."""
    k = len(items)
    size = 0
    for item in range(len(row)):
        score = row[item]
        if size < k:
            if score > -np.inf:
                size += 1
                _sift_up(items, scores, size - 1, item, score)
        elif score > scores[0]:  # an equal score loses: its item index is higher
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
def _sift_up(items, scores, slot, item, score):
    while slot > 0:
        parent = (slot - 1) >> 1
        if not _worse(score, item, scores[parent], items[parent]):
            break
        items[slot], scores[slot] = items[parent], scores[parent]
        slot = parent
    items[slot], scores[slot] = item, score


@numba.njit(nogil=True, cache=True)
def _sift_down(items, scores, size, item, score):
    slot = 0
    while True:
        child = 2 * slot + 1
        if child >= size:
            break
        if child + 1 < size and _worse(
            scores[child + 1], items[child + 1], scores[child], items[child]
        ):
            child += 1
        if not _worse(scores[child], items[child], score, item):
            break
        items[slot], scores[slot] = items[child], scores[child]
        slot = child
    items[slot], scores[slot] = item, score
