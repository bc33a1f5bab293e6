"""The spectral start against SciPy's ARPACK, and what it gives training."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse
from scipy.sparse.linalg import svds

from llpauc.data.interactions import Interactions
from llpauc.evaluation.full_ranking import evaluate
from llpauc.models.embedding import EMBEDDING_MODELS, EmbeddingOptions, graph_weights
from llpauc.models.spectral import singular_vectors, spectral_rows
from tests.datasets import taste_split


def test_singular_values_and_the_subspace_are_those_of_arpack():
    split = taste_split(1)
    weights = graph_weights(split.train)
    users, values, items = singular_vectors(weights, 5, seed=0)
    _, expected, back = svds(weights.astype(float), k=5, random_state=0)
    np.testing.assert_allclose(values, expected[::-1], rtol=2e-3)
    assert values[0] == pytest.approx(1, abs=1e-5)  # of a graph normalised like this
    np.testing.assert_allclose(users.T @ users, np.eye(5), atol=1e-5)
    np.testing.assert_allclose(items.T @ items, np.eye(5), atol=1e-5)
    # The same subspace where there is a gap behind it: the leading vector.
    assert abs(back[-1] @ items[:, 0]) == pytest.approx(1, abs=1e-3)


def test_a_matrix_of_low_rank_is_given_back_whole():
    rng = np.random.default_rng(3)
    dense = (rng.random((30, 3)) @ rng.random((3, 20))).astype(np.float32)
    users, values, items = singular_vectors(sparse.csr_matrix(dense), 3, seed=1)
    np.testing.assert_allclose((users * values) @ items.T, dense, atol=1e-4)


def test_rows_are_as_wide_as_asked_for_and_of_mean_norm_one():
    events = Interactions.of(["a", "a", "b", "c"], ["x", "y", "y", "z"])
    users, items = spectral_rows(graph_weights(events), 8, seed=0)
    assert users.shape == (3, 8)
    assert items.shape == (3, 8)
    assert np.linalg.norm(users, axis=1).mean() == pytest.approx(1)
    assert not users[:, 3:].any()


@pytest.mark.parametrize("name", sorted(EMBEDDING_MODELS))
def test_a_model_that_starts_there_ranks_before_it_is_trained(name):
    split = taste_split(2)
    found = {}
    for start in ("random", "spectral"):
        options = EmbeddingOptions(dimensions=8, score="cosine", start=start)
        model = EMBEDDING_MODELS[name](split.train, options, 0)
        same = EMBEDDING_MODELS[name](split.train, options, 0)
        for one, other in zip(model.parameters(), same.parameters(), strict=True):
            assert (one == other).all()
        found[start] = evaluate(model.scorer(), split, metrics=["ndcg@20"]).mean("ndcg@20")
    assert found["spectral"] > 1.3 * found["random"]
