"""`rank` against brute force, and against itself with other batches, threads and memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from llpauc.errors import InputError
from llpauc.evaluation.ranking import rank, tile_users
from llpauc.evaluation.scorer import FactorScorer, inner_products


class Table:
    """A scorer that reads its scores from a matrix."""

    def __init__(self, scores: np.ndarray) -> None:
        self.scores = scores.astype(np.float32)
        self.n_items = scores.shape[1]

    def scores_into(self, users: np.ndarray, out: np.ndarray) -> None:
        out[:] = self.scores[users]


def brute_force(scores: np.ndarray, masked: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Sort by descending score, then ascending item; -1 where only masked items are left."""
    items = np.full((len(scores), k), -1)
    best = np.full((len(scores), k), -np.inf, dtype=np.float32)
    for row, (values, hidden) in enumerate(zip(scores, masked, strict=True)):
        order = [i for i in np.lexsort((np.arange(len(values)), -values)) if not hidden[i]][:k]
        items[row, : len(order)] = order
        best[row, : len(order)] = values[order]
    return items, best


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    n_users=st.integers(1, 70),
    n_items=st.integers(1, 40),
    k=st.integers(1, 45),
    levels=st.integers(1, 30),
    hidden=st.floats(0, 1),
)
def test_rank_equals_a_full_sort(seed, n_users, n_items, k, levels, hidden):
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, levels, (n_users, n_items)).astype(np.float32)  # many ties
    masked = rng.random((n_users, n_items)) < hidden
    users = np.arange(n_users, dtype=np.int32)
    got = rank(Table(scores), users, k, masked=sparse.csr_matrix(masked.astype(np.float32)))
    items, best = brute_force(scores, masked, min(k, n_items))
    np.testing.assert_array_equal(got.items, items)
    np.testing.assert_array_equal(got.scores, best)


def factors(n_users: int, n_items: int, width: int = 24) -> FactorScorer:
    rng = np.random.default_rng(5)
    return FactorScorer(
        rng.standard_normal((n_users, width), dtype=np.float32),
        rng.standard_normal((n_items, width), dtype=np.float32),
    )


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(1, 11),
    n_items=st.sampled_from([1, 2, 7, 31, 64, 1023, 1024, 1025, 2500]),
    width=st.integers(1, 70),
)
def test_inner_products_of_a_user_do_not_depend_on_the_batch(seed, n, n_items, width):
    rng = np.random.default_rng(seed)
    users = rng.standard_normal((n, width), dtype=np.float32)
    items = rng.standard_normal((n_items, width), dtype=np.float32)
    together = np.empty((n, n_items), np.float32)
    inner_products(users, items, together)
    np.testing.assert_allclose(together, users @ items.T, rtol=1e-4, atol=1e-4)
    for start in range(n):
        for stop in range(start + 1, n + 1):
            part = np.empty((stop - start, n_items), np.float32)
            inner_products(users[start:stop], items, part)
            assert part.tobytes() == together[start:stop].tobytes()
    some_items = np.empty((n, n_items // 2 + 1), np.float32)
    inner_products(users, items[n_items - len(some_items[0]) :], some_items)
    assert some_items.tobytes() == together[:, n_items - len(some_items[0]) :].tobytes()


def test_inner_products_sum_over_the_dimensions_in_order():
    """Small terms between two large ones that cancel: any other order gives another sum."""
    large = np.float32(2**25)
    items = np.array([[large, 1, 1, 1, 1, 1, 1, 1, 1, 1, -large, 3]], np.float32)
    for n in (1, 2, 3, 4):
        out = np.empty((n, 1), np.float32)
        inner_products(np.ones((n, 12), np.float32), items, out)
        assert (out == 3).all()


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    n_items=st.sampled_from([5, 2047, 2049, 10_000, 40_000]),
    levels=st.sampled_from([1, 2, 50, 10**6]),
    k=st.sampled_from([1, 20, 511, 512]),
)
def test_rank_many_items_equals_a_full_sort(seed, n_items, levels, k):
    """Also where all scores are equal, and where few items are left."""
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, levels, (3, n_items)).astype(np.float32)
    masked = np.zeros((3, n_items), bool)
    masked[1] = rng.random(n_items) < 0.5
    masked[2, : max(0, n_items - 30)] = True
    got = rank(
        Table(scores), np.arange(3, dtype=np.int32), k,
        masked=sparse.csr_matrix(masked.astype(np.float32)),
    )  # fmt: skip
    items, best = brute_force(scores, masked, min(k, n_items))
    np.testing.assert_array_equal(got.items, items)
    np.testing.assert_array_equal(got.scores, best)


@pytest.mark.parametrize("item", [0, 4999, 5000])
@pytest.mark.parametrize("is_masked", [True, False])
def test_rank_nan_score_of_any_item_raises(item, is_masked):
    scores = np.zeros((1, 5001), np.float32)
    scores[0, item] = np.nan
    hidden = np.array([item] if is_masked else [], np.int32)
    with pytest.raises(InputError, match="NaN scores for user index 0"):
        rank(Table(scores), np.zeros(1, np.int32), 3, hidden=hidden)


def test_rank_result_is_independent_of_threads_and_memory():
    scorer = factors(333, 7001)
    users = np.arange(333, dtype=np.int32)
    one = rank(scorer, users, 50, threads=1, memory_mb=tile_users(7001) * 7001 * 4 / 2**20 + 0.01)
    many = rank(scorer, users, 50, threads=5, memory_mb=4096)
    np.testing.assert_array_equal(one.items, many.items)
    assert one.scores.tobytes() == many.scores.tobytes()


@pytest.mark.parametrize("n_items", [5, 7001])
def test_rank_of_one_user_equals_the_batch(n_items):
    scorer = factors(150, n_items)
    users = np.arange(150, dtype=np.int32)
    batch = rank(scorer, users, 20)
    for user in (0, 17, 149):
        alone = rank(scorer, users[user : user + 1], 20)
        np.testing.assert_array_equal(alone.items[0], batch.items[user])
        assert alone.scores[0].tobytes() == batch.scores[user].tobytes()
        direct = np.empty((1, n_items), np.float32)
        scorer.scores_into(users[user : user + 1], direct)
        assert direct[0, alone.items[0]].tobytes() == alone.scores[0].tobytes()


@pytest.mark.parametrize("n_users", [1, 200])
def test_rank_hidden_items_are_in_no_list(n_users):
    scorer, users = factors(n_users, 90), np.arange(n_users, dtype=np.int32)
    hidden = np.arange(0, 90, 4, dtype=np.int32)
    mask = np.zeros((n_users, 90), np.float32)
    mask[:, hidden] = 1
    masked = rank(scorer, users, 40, masked=sparse.csr_matrix(mask))
    got = rank(scorer, users, 40, hidden=hidden)
    np.testing.assert_array_equal(got.items, masked.items)
    assert got.scores.tobytes() == masked.scores.tobytes()
    assert not np.isin(got.items, hidden).any()


def test_rank_concurrent_calls_share_the_threads():
    scorer, users = factors(900, 3001), np.arange(900, dtype=np.int32)
    alone = rank(scorer, users, 10)
    with ThreadPoolExecutor(6) as callers:
        results = list(callers.map(lambda _: rank(scorer, users, 10), range(24)))
    assert all(result.items.tobytes() == alone.items.tobytes() for result in results)
    started = [t for t in threading.enumerate() if t.name.startswith("rank")]
    assert len(started) <= (os.cpu_count() or 1)


class FailingTable(Table):
    def scores_into(self, users: np.ndarray, out: np.ndarray) -> None:
        if 500 in users:
            raise MemoryError("no more")
        super().scores_into(users, out)


def test_rank_error_in_a_tile_is_raised_and_the_next_call_works():
    users = np.arange(900, dtype=np.int32)
    for _ in range(3):
        with pytest.raises(MemoryError, match="no more"):
            rank(FailingTable(np.zeros((900, 5))), users, 2)
    got = rank(Table(np.zeros((900, 5))), users, 2)
    assert (got.items == [0, 1]).all()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_rank_works_in_a_forked_child():
    scorer, users = factors(300, 2001), np.arange(300, dtype=np.int32)
    rank(scorer, users, 5)
    child = os.fork()
    if child == 0:
        signal.alarm(30)  # a child that waits for threads of its parent would never end
        rank(Table(np.zeros((300, 5))), users, 2)
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_rank_too_little_memory_raises_with_the_need():
    with pytest.raises(InputError, match=r"takes \d+ MB but only 0.5 MB are allowed"):
        rank(factors(3, 50_000), np.arange(3, dtype=np.int32), 10, memory_mb=0.5)


def test_rank_nan_scores_name_the_user():
    scores = np.zeros((3, 4), np.float32)
    scores[2, 1] = np.nan
    with pytest.raises(InputError, match="NaN scores for user index 2"):
        rank(Table(scores), np.arange(3, dtype=np.int32), 2)


def test_rank_progress_counts_every_user_once():
    seen: list[int] = []
    rank(factors(130, 9), np.arange(130, dtype=np.int32), 3, progress=seen.append)
    assert sum(seen) == 130
    assert len(seen) > 1


INTERRUPTED = """
import os, signal, sys, threading, time
import numpy as np
from llpauc.evaluation.scorer import FactorScorer
from llpauc.evaluation.ranking import rank

real = threading.Thread.start

def start(self):
    real(self)
    if self.name.startswith("rank"):
        raise KeyboardInterrupt  # before the pool has registered the thread

class Slow(FactorScorer):
    interrupted = False

    def scores_into(self, users, out):
        if not Slow.interrupted:
            Slow.interrupted = True
            time.sleep(0.2)
            os.kill(os.getpid(), signal.SIGINT)  # while other tiles wait in the queue
        time.sleep(0.2)
        super().scores_into(users, out)

rng = np.random.default_rng(1)
users, items = (rng.random((n, 4), dtype=np.float32) for n in (20_000, 500))
signal.signal(signal.SIGINT, signal.default_int_handler)
kind = FactorScorer
if sys.argv[1] == "starting":
    threading.Thread.start = start
else:
    kind = Slow
try:
    rank(kind(users, items), np.arange(20_000, dtype=np.int32), 5, memory_mb=2, threads=2)
except KeyboardInterrupt:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    print("interrupted")
"""


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one core ranks without threads")
@pytest.mark.parametrize("when", ["starting", "ranking"])
def test_rank_interrupted_does_not_block_the_exit(when):
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, when], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "interrupted\n", done.stderr
