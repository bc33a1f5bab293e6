"""Exact full ranking in bounded memory: every item scored for every user, the best K kept.

Users are taken in tiles of a fixed size that depends on nothing but the number of items. A
tile's scores are computed, masked and reduced by one thread while the others work on their own,
so neither the number of threads nor the memory allowed changes a bit of the result: they only
decide how many tiles are under way at once. The threads are those of one pool a process.

Order: by descending score; equal scores by ascending item row. Masked items never appear; where
fewer than K items are left, the rest of the row is -1 (score -inf).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from queue import SimpleQueue
from threading import Lock
from typing import Any

import numba
import numpy as np
from scipy import sparse
from threadpoolctl import ThreadpoolController

from llpauc.data.interactions import Indices
from llpauc.errors import InputError, check_at_least
from llpauc.evaluation.scorer import Scorer, Scores
from llpauc.metrics.pair_counts import PairCounts, count_above_row
from llpauc.storage.environment import cores

_TILE_BYTES = 16 << 20
_TILE_USERS = (16, 64)
THREAD_BYTES = 128 << 20  # address space of a thread: its stack, malloc's arena, BLAS's buffer


@dataclass(frozen=True)
class Ranking:
    """The best K of each user, and, where positives were given, where each of them stands.

    Args:
        items: (n, K) item rows, best first, -1 beyond the last candidate.
        scores: (n, K) their scores.
        counts: how many negatives stand above each positive, which is all that AUC and its
            partial forms need; None where no positives were given.
    """

    items: Indices
    scores: Scores
    counts: PairCounts | None


def tile_users(n_items: int) -> int:
    """Users in a tile: as many as fill 16 MB of scores, between 16 and 64."""
    least, most = _TILE_USERS
    return int(np.clip(_TILE_BYTES // (4 * max(n_items, 1)) // least * least, least, most))


def tile_bytes(n_items: int) -> int:
    """What the scores of a tile take; no ranking does with less."""
    return 4 * n_items * tile_users(n_items)


def address_room() -> int | None:
    """Bytes that a limit on this process's memory (ulimit -v, prlimit --as) leaves; None: no limit.

    To be asked before memory is: libraries that get none end the process, or hang.
    """
    try:
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit == resource.RLIM_INFINITY:
            return None
        with open("/proc/self/statm", encoding="ascii") as file:
            taken = int(file.read().split()[0]) * resource.getpagesize()
    except (ImportError, OSError):  # no such limit, or no way to tell what is left of it
        return None
    return max(limit - taken, 0)


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
        scorer: gives the scores.
        users: rows of the users to rank for, (n,).
        k: length of the lists, at least 1.
        masked: (n, n_items) CSR; the items in row r may not be recommended to users[r].
        hidden: item rows that may be recommended to nobody. They still count as negatives.
        positives: (n, n_items) CSR, none of them masked; where given, their place among the
            negatives is counted.
        memory_mb: most that the tiles under way may take. The lists themselves come on top.
        threads: at most this many; by default one a core.
        progress: called with the number of users done since the last call.
    """
    n_items = scorer.n_items
    k = min(check_at_least("k", k, 1), n_items)
    tile = tile_users(n_items)
    workers = _workers(tile_bytes(n_items), memory_mb, threads)
    nowhere = np.zeros(0, np.int32) if hidden is None else np.asarray(hidden, np.int32)
    none = sparse.csr_matrix((len(users), n_items), dtype=np.float32)
    masked = none if masked is None else _sorted(masked)
    wanted = none if positives is None else _sorted(positives)

    n = len(users)
    items, scores = np.empty((n, k), np.int32), np.empty((n, k), np.float32)
    above, tied = np.zeros(wanted.nnz, np.int32), np.zeros(wanted.nnz, np.int32)
    n_negatives = np.zeros(n, np.int64)
    # Blocks are handed round: a fresh one a tile would cost as much in page faults as the product.
    blocks: SimpleQueue[Scores] = SimpleQueue()
    starts = range(0, n, tile)
    for _ in range(min(workers, len(starts))):
        blocks.put(np.empty((tile, n_items), np.float32))

    def rank_tile(start: int) -> int:
        stop = min(start + tile, n)
        # The last tile is filled up, so that every matrix product has the same shape.
        asked = users[np.minimum(np.arange(start, start + tile), n - 1)]
        block = blocks.get()
        try:
            scorer.scores_into(asked, block)
            bad = _rank_rows(
                block[: stop - start], start, nowhere,
                masked.indptr, masked.indices, wanted.indptr, wanted.indices,
                items, scores, above, tied, n_negatives,
            )  # fmt: skip
        finally:
            blocks.put(block)
        if bad >= 0:
            raise InputError(
                f"the model gives NaN scores for user row {users[bad]}; it has diverged:"
                " train with a smaller learning rate"
            )
        return stop - start

    with _one_blas_thread():
        for done in _each(rank_tile, starts, workers):
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
    room = address_room()
    if room is not None:
        one = tile_bytes + THREAD_BYTES
        if room < one:
            raise InputError(
                f"ranking needs {one:,} bytes, the limit on this process's memory leaves {room:,};"
                " raise it (ulimit -v)"
            )
        fit = min(fit, room // one)
    return min(fit, threads or cores(), cores())


@cache
def _pool() -> ThreadPoolExecutor:
    """Threads are started once: a served request would wait for new ones as long as for scores."""
    return ThreadPoolExecutor(cores(), thread_name_prefix="rank")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # a child has no threads but its own


def _each(work: Callable[[int], int], starts: range, workers: int) -> Iterator[int]:
    """What `work` gives for each start, in order. Whoever stops early leaves nothing running."""
    if workers == 1 or len(starts) == 1:  # no thread would be any help
        yield from map(work, starts)
        return
    jobs: list[Future[int]] = []
    pool = _pool()
    try:
        jobs.extend(pool.submit(work, start) for start in starts)
        for job in jobs:
            yield job.result()
    except KeyboardInterrupt:
        # It may have struck between a thread's start and its entry in the pool's books; nobody
        # would wake that thread at the end, and the process would wait for it. Shutting down does;
        # what waits in the queue stays there to be told that it is cancelled.
        pool.shutdown(wait=False)
        _pool.cache_clear()
        raise
    finally:
        for job in jobs:
            job.cancel()
        wait(jobs)


_controller = cache(ThreadpoolController)  # looking for libraries takes a millisecond
_blas_lock = Lock()
_blas_users: list[Any] = []


@contextmanager
def _one_blas_thread() -> Iterator[None]:
    """Tiles are the threads. Calls may overlap: the last to leave gives BLAS its threads back."""
    with _blas_lock:
        if not _blas_users:
            _blas_users.append(_controller().limit(limits=1, user_api="blas"))
        _blas_users.append(None)
    try:
        yield
    finally:
        with _blas_lock:
            _blas_users.pop()
            if len(_blas_users) == 1:
                _blas_users.pop().restore_original_limits()


def _sorted(matrix: Any) -> Any:
    if not matrix.has_sorted_indices:
        matrix = matrix.sorted_indices()
    return matrix


@numba.njit(nogil=True, cache=True)
def _rank_rows(
    block, first, nowhere, mask_ptr, mask_items, pos_ptr, pos_items,
    items, scores, above, tied, n_negatives,
):  # fmt: skip
    """Reduce a tile of scores, row by row; the index of a row with a NaN, or -1."""
    for r in range(block.shape[0]):
        row = block[r]
        u = first + r
        nans = np.int32(0)
        for j in range(len(row)):  # counted, not left at the first: so the loop runs in vectors
            nans = np.int32(nans + np.int32(row[j] != row[j]))
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
        for item in nowhere:
            row[item] = -np.inf
        best_of(row, items[u], scores[u])
    return -1


@numba.njit(nogil=True, cache=True)
def best_of(row, items, scores):
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
