"""Spectral initial vectors against SciPy's ARPACK, and in the models."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse
from scipy.sparse.linalg import svds

from llpauc.data.interactions import Interactions
from llpauc.evaluation.full_ranking import evaluate
from llpauc.models.registry import trained_models
from llpauc.models.spectral import graph_weights, singular_vectors, spectral_rows
from tests.datasets import new_network, taste_split


def test_singular_vectors_agree_with_arpack():
    split = taste_split(1)
    weights = graph_weights(split.train)
    users, values, items = singular_vectors(weights, 5, seed=0)
    _, expected, back = svds(weights.astype(float), k=5, random_state=0)
    np.testing.assert_allclose(values, expected[::-1], rtol=2e-3)
    assert values[0] == pytest.approx(1, abs=1e-5)  # of a graph normalised like this
    np.testing.assert_allclose(users.T @ users, np.eye(5), atol=1e-5)
    np.testing.assert_allclose(items.T @ items, np.eye(5), atol=1e-5)
    # The same subspace where there is a gap behind it: two tastes, two leading vectors.
    overlap = np.linalg.svd(back[-2:] @ items[:, :2], compute_uv=False)
    np.testing.assert_allclose(overlap, 1, atol=1e-3)


def test_singular_vectors_reconstruct_a_low_rank_matrix():
    rng = np.random.default_rng(3)
    dense = (rng.random((30, 3)) @ rng.random((3, 20))).astype(np.float32)
    users, values, items = singular_vectors(sparse.csr_matrix(dense), 3, seed=1)
    np.testing.assert_allclose((users * values) @ items.T, dense, atol=1e-4)


def test_spectral_rows_have_the_requested_width_and_mean_norm_one():
    events = Interactions.of(["a", "a", "b", "c"], ["x", "y", "y", "z"])
    users, items = spectral_rows(graph_weights(events), 8, seed=0)
    assert users.shape == (3, 8)
    assert items.shape == (3, 8)
    assert np.linalg.norm(users, axis=1).mean() == pytest.approx(1)
    assert not users[:, 3:].any()


@pytest.mark.parametrize("name", trained_models())
def test_init_spectral_is_better_than_random_before_training(name):
    split = taste_split(2)
    values = {}
    for init in ("random", "spectral"):
        options = {"dimensions": 8, "score": "cosine", "init": init}
        network = new_network(name, split.train, 0, **options)
        same = new_network(name, split.train, 0, **options)
        for one, other in zip(network.parameters(), same.parameters(), strict=True):
            assert (one == other).all()
        values[init] = evaluate(network.scorer(), split, metrics=["ndcg@20"]).mean("ndcg@20")
    assert values["spectral"] > 1.3 * values["random"]
