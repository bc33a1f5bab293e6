"""The untrained models against plain NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from llpauc.data.interactions import IdMap, Interactions
from llpauc.errors import InputError
from llpauc.models import BASELINES, EASE, ItemKNN, Popularity
from tests.datasets import random_split, score_table

SPLIT = random_split(11)
TRAIN = SPLIT.train
X = TRAIN.matrix.toarray().astype(np.float64)
COLD = X.sum(axis=1) == 0


def test_popularity_counts_distinct_users():
    np.testing.assert_array_equal(Popularity(TRAIN).scores, X.sum(axis=0))
    assert TRAIN.duplicates > 0


@pytest.mark.parametrize("regularization", [0.5, 100.0])
def test_ease_is_the_closed_form(regularization):
    p = np.linalg.inv(X.T @ X + regularization * np.eye(X.shape[1]))
    b = -p / np.diag(p)
    np.fill_diagonal(b, 0)
    np.testing.assert_allclose(EASE.fit(TRAIN, regularization).weights, b, atol=2e-6)
    np.testing.assert_allclose(
        EASE.fit(TRAIN, regularization).scores_of(TRAIN.matrix), X @ b, atol=1e-5
    )


def test_ease_is_the_minimum_it_claims():
    """No feasible change of the weights lowers the objective."""
    b = EASE.fit(TRAIN, 10.0).weights.astype(np.float64)

    def objective(w):
        return ((X - X @ w) ** 2).sum() + 10.0 * (w**2).sum()

    rng = np.random.default_rng(0)
    for _ in range(20):
        step = 1e-3 * rng.standard_normal(b.shape)
        np.fill_diagonal(step, 0)
        assert objective(b + step) > objective(b)


@pytest.mark.parametrize(("neighbours", "shrinkage"), [(3, 0.0), (10, 5.0), (10_000, 1.0)])
def test_itemknn_is_a_sum_over_the_best_neighbours(neighbours, shrinkage):
    together = X.T @ X
    norm = np.sqrt(X.sum(axis=0))
    scale = np.outer(norm, norm) + shrinkage
    similar = np.divide(together, scale, out=np.zeros_like(together), where=scale > 0)
    np.fill_diagonal(similar, 0)
    for i in range(len(similar)):  # item i keeps its best neighbours, ties with the last included
        if neighbours < len(similar) - 1:
            last = np.sort(similar[i].astype(np.float32))[-neighbours]
            similar[i, similar[i].astype(np.float32) < last] = 0
    got = ItemKNN.fit(TRAIN, neighbours, shrinkage).scores_of(TRAIN.matrix)
    np.testing.assert_allclose(got, X @ similar.T, atol=1e-5)


@pytest.mark.parametrize("name", ["ease", "itemknn"])
def test_users_without_a_training_row_get_popularity(name):
    scores = score_table(BASELINES[name](TRAIN), len(X))
    assert COLD.any()
    np.testing.assert_array_equal(scores[COLD], np.tile(X.sum(axis=0), (COLD.sum(), 1)))


def test_ease_refuses_what_would_not_fit_in_memory():
    many = IdMap.of(np.arange(60_000))
    few = Interactions(np.zeros(1, int), np.zeros(1, int), IdMap.of(["u"]), many)
    with pytest.raises(InputError, match=r"60,000 items would need 27 GB"):
        EASE.fit(few)


@pytest.mark.parametrize(
    ("name", "parameters", "said"),
    [
        ("ease", {"regularization": 0.0}, "regularization must be above 0, got 0.0"),
        ("ease", {"regularization": float("nan")}, "regularization must be above 0"),
        ("itemknn", {"neighbours": 0}, "neighbours must be a whole number of at least 1"),
        ("itemknn", {"shrinkage": -1.0}, "shrinkage must be at least 0"),
        ("recent", {"half_life": 0.0}, "half_life must be above 0, got 0.0"),
    ],
)
def test_bad_parameters(name, parameters, said):
    with pytest.raises(InputError, match=said):
        BASELINES[name](TRAIN, **parameters)
