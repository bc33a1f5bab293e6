"""The ranking engine against brute force, and against itself with other chunks and threads."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from llpauc.errors import InputError
from llpauc.models import FactorScorer
from llpauc.ranking import rank, tile_users


class Table:
    """Scores that are simply given."""

    def __init__(self, scores: np.ndarray) -> None:
        self.scores = scores.astype(np.float32)
        self.n_items = scores.shape[1]

    def scores_into(self, users: np.ndarray, out: np.ndarray) -> None:
        out[:] = self.scores[users]


def brute_force(scores: np.ndarray, masked: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Sort everything: by score down, then by item up; -1 where only masked items are left."""
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
def test_lists_equal_a_full_sort(seed, n_users, n_items, k, levels, hidden):
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


def test_threads_and_memory_do_not_change_a_bit():
    scorer = factors(333, 7001)
    users = np.arange(333, dtype=np.int32)
    one = rank(scorer, users, 50, threads=1, memory_mb=tile_users(7001) * 7001 * 4 / 2**20 + 0.01)
    many = rank(scorer, users, 50, threads=5, memory_mb=4096)
    np.testing.assert_array_equal(one.items, many.items)
    assert one.scores.tobytes() == many.scores.tobytes()


@pytest.mark.parametrize("n_items", [5, 7001])
def test_a_user_alone_gets_what_the_batch_gives(n_items):
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


def test_too_little_memory_says_what_is_needed():
    with pytest.raises(InputError, match=r"takes \d+ MB but only 0.5 MB are allowed"):
        rank(factors(3, 50_000), np.arange(3, dtype=np.int32), 10, memory_mb=0.5)


def test_nan_scores_name_the_user():
    scores = np.zeros((3, 4), np.float32)
    scores[2, 1] = np.nan
    with pytest.raises(InputError, match="NaN scores for user row 2"):
        rank(Table(scores), np.arange(3, dtype=np.int32), 2)


def test_progress_counts_every_user_once():
    seen: list[int] = []
    rank(factors(130, 9), np.arange(130, dtype=np.int32), 3, progress=seen.append)
    assert sum(seen) == 130
    assert len(seen) > 1
