"""EASE with all items and with neighbours, and the choice of its regularization."""

import numpy as np
import pytest

from llpauc.data.interactions import Interactions, Split
from llpauc.data.splits import hold_out
from llpauc.errors import InputError
from llpauc.models import ease
from llpauc.models.base import FitData
from llpauc.models.choice import valid_metric
from llpauc.models.ease import EASE, item_weights


def random_events(n_users=60, n_items=30, density=0.3, seed=0) -> Interactions:
    rng = np.random.default_rng(seed)
    users, items = np.nonzero(rng.random((n_users, n_items)) < density)
    return Interactions.of(users, items)


def column_by_definition(train: Interactions, j: int, regularization: float, neighbours) -> dict:
    """b = (G_NN + lambda I)^-1 G_Nj with numpy, in float64."""
    x = train.matrix.toarray().astype(float)
    gram = x.T @ x
    chosen = sorted(neighbours)
    left = gram[np.ix_(chosen, chosen)] + regularization * np.eye(len(chosen))
    return dict(zip(chosen, np.linalg.solve(left, gram[chosen, j]), strict=True))


def nearest_by_definition(train: Interactions, j: int, most: int) -> list[int]:
    x = train.matrix.toarray().astype(float)
    gram = x.T @ x
    cosine = gram[j] / np.sqrt(np.diag(gram) * gram[j, j])
    others = [i for i in range(len(gram)) if i != j and gram[i, j] > 0]
    return sorted(others, key=lambda i: (-np.float32(cosine[i] * np.sqrt(gram[j, j])), i))[:most]


def test_item_weights_with_all_items_solve_the_ridge_problem_of_each_column():
    train = random_events()
    weights = item_weights(train, 7.0, train.n_items)
    assert (np.diag(weights) == 0).all()
    for j in range(train.n_items):
        expected = column_by_definition(train, j, 7.0, set(range(train.n_items)) - {j})
        np.testing.assert_allclose(weights[list(expected), j], list(expected.values()), atol=1e-5)


@pytest.mark.parametrize("most", [1, 5, 29])
def test_item_weights_with_neighbours_solve_the_smaller_problem(most):
    train = random_events(density=0.15, seed=1)
    weights = item_weights(train, 3.0, most).toarray()
    for j in range(train.n_items):
        expected = column_by_definition(train, j, 3.0, nearest_by_definition(train, j, most))
        assert set(np.flatnonzero(weights[:, j])) <= set(expected)
        np.testing.assert_allclose(weights[list(expected), j], list(expected.values()), atol=1e-5)


def test_item_weights_with_neighbours_equal_those_with_all_items_where_all_meet():
    train = random_events(density=0.6)
    full = item_weights(train, 5.0, train.n_items)
    np.testing.assert_allclose(
        item_weights(train, 5.0, train.n_items - 1).toarray(), full, atol=1e-5
    )


def test_ease_uses_neighbours_in_a_large_catalogue(monkeypatch):
    train = random_events()
    monkeypatch.setattr(ease, "_FULL_ITEMS", 10)
    monkeypatch.setattr(ease, "_NEIGHBOURS", 4)
    model = EASE()
    model.fit(FitData.of(train))
    assert np.diff(model.weights.tocsc().indptr).max() == 4
    loaded = EASE(model.options)
    loaded.load_arrays(model.arrays(), train.n_users, train.n_items)
    assert (loaded.scores_of(train.matrix) == model.scores_of(train.matrix)).all()


def test_ease_neighbours_beyond_memory_is_refused(monkeypatch):
    monkeypatch.setattr(ease, "_MAX_BYTES", 100)
    with pytest.raises(InputError, match="would need up to"):
        item_weights(random_events(), 1.0, 3)


def test_ease_chooses_the_regularization_on_validation():
    split = hold_out(Split(random_events(200, 40, 0.15, seed=3)), 0.2, 0)
    model = EASE()
    model.fit(FitData.of(split))

    def value(regularization: float) -> float:
        return valid_metric(EASE.scorer_of(split, regularization=regularization), split)

    grid = ease._GRID
    at = grid.index(model.options.regularization)
    assert value(grid[at]) >= max(value(grid[max(at - 1, 0)]), value(grid[min(at + 1, 8)]))


def test_ease_fit_cost_of_neighbours_is_positive(monkeypatch):
    monkeypatch.setattr(ease, "_FULL_ITEMS", 10)
    seconds, size = EASE.fit_cost(random_events())
    assert seconds > 0
    assert size > 0
