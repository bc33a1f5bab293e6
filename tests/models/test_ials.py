"""iALS against its objective, written out."""

import numpy as np

from llpauc.data.interactions import Interactions, Split
from llpauc.data.splits import hold_out
from llpauc.models.base import FitData
from llpauc.models.ials import IALS
from tests.models.test_ease import random_events

OPTIONS = {"dimensions": 6, "unobserved_weight": 0.1, "regularization": 0.02}


def objective(x: np.ndarray, users: np.ndarray, items: np.ndarray) -> float:
    """The three sums of the class's docstring."""
    scores = users.astype(float) @ items.T
    weight, penalty = OPTIONS["unobserved_weight"], OPTIONS["regularization"]
    of_users = (x.sum(axis=1) + weight * x.shape[1]) @ (users.astype(float) ** 2).sum(axis=1)
    of_items = (x.sum(axis=0) + weight * x.shape[0]) @ (items.astype(float) ** 2).sum(axis=1)
    observed = ((scores - 1) ** 2)[x > 0].sum()
    return observed + weight * (scores**2).sum() + penalty * (of_users + of_items)


def fitted(train: Interactions, iterations: int) -> IALS:
    model = IALS(IALS.Options(**OPTIONS, iterations=iterations))
    model.fit(FitData.of(train))
    return model


def test_ials_reaches_a_minimum_of_its_objective():
    train = random_events(40, 25, 0.2)
    x = train.matrix.toarray()
    model = fitted(train, 300)
    best = objective(x, model.user_vectors, model.item_vectors)
    rng = np.random.default_rng(0)
    for _ in range(50):
        users = model.user_vectors + 1e-2 * rng.standard_normal(model.user_vectors.shape)
        items = model.item_vectors + 1e-2 * rng.standard_normal(model.item_vectors.shape)
        assert objective(x, users, items) > best


def test_ials_iterations_lower_the_objective():
    train = random_events(40, 25, 0.2)
    x = train.matrix.toarray()
    values = [
        objective(x, model.user_vectors, model.item_vectors)
        for model in (fitted(train, n) for n in (1, 3, 10))
    ]
    assert values[0] > values[1] > values[2]


def test_ials_scores_of_a_history_are_those_of_a_user_with_it():
    train = random_events(40, 25, 0.2)
    model = fitted(train, 50)
    out = np.empty(train.matrix.shape, np.float32)
    model.scorer(None).scores_into(np.arange(train.n_users, dtype=np.int32), out)
    np.testing.assert_allclose(model.scores_of(train.matrix), out, atol=2e-3)


def test_ials_user_vectors_solve_their_linear_systems():
    train = random_events(40, 25, 0.2)
    model, x = fitted(train, 50), train.matrix.toarray().astype(float)
    q, weight = model.item_vectors.astype(float), OPTIONS["unobserved_weight"]
    for user in range(5):
        mine = q[x[user] > 0]
        penalty = OPTIONS["regularization"] * (len(mine) + weight * len(q))
        left = weight * q.T @ q + mine.T @ mine + penalty * np.eye(q.shape[1])
        expected = np.linalg.solve(left, mine.sum(axis=0))
        np.testing.assert_allclose(model.user_vectors[user], expected, atol=1e-3)


def test_ials_chooses_its_options_on_validation():
    split = hold_out(Split(random_events(200, 40, 0.15, seed=3)), 0.2, 0)
    model = IALS(IALS.Options(dimensions=8))
    model.fit(FitData.of(split))
    assert model.options.regularization is not None
    assert model.options.unobserved_weight is not None
