"""Small batches: the lists of `rank`, bit for bit, whatever the batch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import sparse

from llpauc.data.interactions import Interactions
from llpauc.errors import InputError
from llpauc.evaluation.ranking import rank
from llpauc.evaluation.scorer import FactorScorer
from llpauc.models.fold_in import HistoryMap
from llpauc.recommend import Recommender
from llpauc.recommend.fitted import Fitted
from llpauc.serving.loaded_run import load_served, similar
from llpauc.serving.small_batches import multiply, rank_few, shared_columns
from tests.datasets import taste_split
from tests.server import expected, trained

N_USERS = 45


def vectors(seed: int, n_items: int, width: int, coarse: bool):
    rng = np.random.default_rng(seed)
    tables = [rng.standard_normal((n, width), dtype=np.float32) for n in (N_USERS, n_items)]
    return [np.round(table) for table in tables] if coarse else tables  # whole numbers tie


def fitted_of(people: np.ndarray, things: np.ndarray) -> Fitted:
    """Arrays as a run has them; what it is asked for here needs no more."""
    by_items = HistoryMap(things, np.zeros(things.shape[1], np.float32), things)
    data = Interactions.of([0], [0])
    return Fitted.of(data, FactorScorer(people, things), by_items, np.zeros(len(things)))


def some_hidden(seed: int, n: int, n_items: int, share: float) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [np.flatnonzero(rng.random(n_items) < share * rng.random()) for _ in range(n)]


def as_csr(hidden: list[np.ndarray], n_items: int) -> sparse.csr_matrix:
    starts = np.cumsum([0, *map(len, hidden)])
    return sparse.csr_matrix(
        (np.ones(starts[-1], np.float32), np.concatenate(hidden), starts), (len(hidden), n_items)
    )


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    n=st.integers(1, N_USERS),
    n_items=st.sampled_from([1, 7, 63, 1000, 1025, 2048, 9000, 20_011]),
    width=st.integers(1, 70),
    k=st.sampled_from([1, 5, 20, 300, 1000]),
    coarse=st.booleans(),
    share=st.sampled_from([0.0, 0.3, 1.0]),
)
def test_small_batches_are_rank_bit_for_bit(seed, n, n_items, width, k, coarse, share):
    people, things = vectors(seed, n_items, width, coarse)
    columns = shared_columns(fitted_of(people, things))
    assume(columns is not None)  # as with one item, where NumPy takes another product
    users = np.random.default_rng(seed).integers(0, N_USERS, n).astype(np.int32)
    hidden = some_hidden(seed, n, n_items, share)
    filled = people[users]

    def fill(start, stop, block):
        multiply(filled[start:stop], columns, block)

    items, scores = rank_few(fill, n_items, hidden, k)
    wanted = rank(FactorScorer(people, things), users, k, masked=as_csr(hidden, n_items))
    np.testing.assert_array_equal(items, wanted.items)
    np.testing.assert_array_equal(scores, wanted.scores)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    n_items=st.sampled_from([5, 2047, 2049, 10_000, 40_000]),
    levels=st.sampled_from([1, 2, 50, 10**6]),
    k=st.sampled_from([1, 20, 511, 512]),
)
def test_the_best_of_any_scores_are_those_of_a_full_sort(seed, n_items, levels, k):
    """Down to a single score for all, and with nothing but a few items left."""
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, levels, (3, n_items)).astype(np.float32)
    hidden = [np.zeros(0, int), np.flatnonzero(rng.random(n_items) < 0.5),
              np.arange(max(0, n_items - 30))]  # fmt: skip
    items, found = rank_few(lambda a, b, block: np.copyto(block, scores[a:b]), n_items, hidden, k)
    for own, rows, told, out in zip(scores, items, found, hidden, strict=True):
        left = np.setdiff1d(np.arange(n_items), out)
        best = left[np.lexsort((left, -own[left]))][:k]
        length = len(best)
        assert rows[:length].tolist() == best.tolist()
        assert told[:length].tolist() == own[best].tolist()
        assert (rows[length:] == -1).all()
        assert np.isneginf(told[length:]).all()


@pytest.mark.parametrize("place", [0, 4999, 5000])
@pytest.mark.parametrize("is_hidden", [True, False])
def test_a_nan_is_told(place, is_hidden):
    scores = np.zeros((1, 5001), np.float32)
    scores[0, place] = np.nan
    hidden = [np.array([place] if is_hidden else [], int)]
    with pytest.raises(InputError, match="NaN"):
        rank_few(lambda a, b, block: np.copyto(block, scores), 5001, hidden, 3)


def test_item_vectors_that_are_not_those_of_new_people_are_not_shared():
    fitted = trained().fitted
    other = HistoryMap(fitted.by_items.history_rows, fitted.by_items.base,
                       fitted.by_items.item_vectors * np.float32(1.5))  # fmt: skip
    assert shared_columns(fitted) is not None
    assert shared_columns(replace(fitted, by_items=other)) is None


def test_models_without_vectors_have_none():
    assert shared_columns(trained("popularity").fitted) is None


def test_likeness_with_an_item_bias_is_that_of_the_facade(tmp_path):
    fresh = Recommender(epochs=2, dimensions=8, hold_out=0, item_bias=True)
    served = load_served(fresh.fit(taste_split().train).save(tmp_path / "run"))
    assert served.units.shape[1] == 8
    for row, item in enumerate(served.items.outside):
        ids, scores = served.recommender.similar_items(item, 6)
        assert similar(served, row, 6) == expected(ids, scores)
