"""Weights of events in every model, against the formulas written out."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from llpauc.data.interactions import Interactions, Split
from llpauc.losses import make_loss
from llpauc.models.base import FitData
from llpauc.models.ials import IALS
from llpauc.models.registry import trained_models, untrained_models
from llpauc.recommend import Recommender
from llpauc.training import TrainingOptions, fit
from llpauc.training.engine import CpuEngine, TorchEngine
from llpauc.training.samplers import make_sampler
from tests.datasets import new_network, score_table, scorer_of
from tests.models.test_ease import random_events
from tests.models.test_ials import OPTIONS, objective

PLAIN = random_events(40, 25, 0.2)
EVENTS = replace(PLAIN, weights=np.random.default_rng(5).integers(1, 6, len(PLAIN)).astype("f4"))
X = EVENTS.positives.toarray().astype(float)
LOSSES = {"bpr": {}, "llpauc": {"alpha": 0.7, "beta": 0.3}}
SHORT = {"epochs": 2, "dimensions": 4, "negatives": 5, "batch_size": 16, "hold_out": 0.0}


def scores_of(name: str, events: Interactions) -> np.ndarray:
    return score_table(scorer_of(name, events), events.n_users)


def trained_scores(name: str, events: Interactions) -> np.ndarray:
    model = Recommender(model=name, loss="bpr", recipe="none", **SHORT).fit(Split(events))
    return score_table(model.scorer(), events.n_users)


def test_popularity_adds_up_weights():
    np.testing.assert_allclose(scores_of("popularity", EVENTS)[0], X.sum(axis=0), rtol=1e-5)


def test_recent_popularity_adds_up_weights_and_ages():
    events = replace(EVENTS, timestamps=np.arange(len(EVENTS), dtype=float))
    found = score_table(scorer_of("recent_popularity", events, half_life=50.0), events.n_users)[0]
    ages = 0.5 ** ((len(events) - 1 - np.arange(len(events))) / 50.0)
    expected = np.bincount(events.items, ages * events.weights, events.n_items)
    np.testing.assert_allclose(found / found.sum(), expected / expected.sum(), rtol=1e-4)


def test_itemknn_is_the_cosine_of_weights():
    norms = np.sqrt((X**2).sum(axis=0))
    similar = (X.T @ X) / (np.outer(norms, norms) + 10.0)
    np.fill_diagonal(similar, 0)
    np.testing.assert_allclose(scores_of("itemknn", EVENTS), X @ similar, rtol=1e-4, atol=1e-5)


def test_ease_regresses_weights():
    found = score_table(scorer_of("ease", EVENTS, regularization=3.0), EVENTS.n_users)
    inverse = np.linalg.inv(X.T @ X + 3.0 * np.eye(X.shape[1]))
    b = -inverse / np.diag(inverse)
    np.fill_diagonal(b, 0)
    np.testing.assert_allclose(found, X @ b, rtol=1e-3, atol=1e-4)


def test_ials_minimizes_the_weighted_objective():
    model = IALS(IALS.Options(**OPTIONS, iterations=300))
    model.fit(FitData.of(EVENTS))

    def weighted(users: np.ndarray, items: np.ndarray) -> float:
        errors = (users.astype(float) @ items.T - 1) ** 2
        return objective(X, users, items) + ((X - 1) * errors)[X > 0].sum()

    best = weighted(model.user_vectors, model.item_vectors)
    rng = np.random.default_rng(0)
    for _ in range(50):
        users = model.user_vectors + 1e-2 * rng.standard_normal(model.user_vectors.shape)
        items = model.item_vectors + 1e-2 * rng.standard_normal(model.item_vectors.shape)
        assert weighted(users, items) > best


@pytest.mark.parametrize("name", [*untrained_models(), *trained_models()])
def test_models_ignore_the_unit_of_weights_and_equal_weights(name):
    scores = trained_scores if name in trained_models() else scores_of
    in_other_unit = replace(EVENTS, weights=4 * EVENTS.weights)
    equal = replace(PLAIN, weights=np.full(len(PLAIN), 4, np.float32))
    np.testing.assert_allclose(scores(name, in_other_unit), scores(name, EVENTS), rtol=1e-3)
    np.testing.assert_allclose(scores(name, equal), scores(name, PLAIN), rtol=1e-3, atol=1e-6)
    assert not np.allclose(scores(name, EVENTS), scores(name, PLAIN), rtol=1e-3)


@pytest.mark.parametrize("name", untrained_models())
def test_models_do_not_learn_from_weight_0(name):
    seen_only = EVENTS.items % 3 == 0
    zeros = replace(EVENTS, weights=np.where(seen_only, 0, EVENTS.weights).astype(np.float32))
    left, of_model = EVENTS.take(~seen_only), partial(scores_of, name)
    found, expected = (scores / scores.max() for scores in map(of_model, (zeros, left)))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", trained_models())
def test_training_draws_no_positive_of_weight_0(name, monkeypatch):
    zeros = replace(EVENTS, weights=np.where(EVENTS.items < 5, 0, EVENTS.weights).astype("f4"))
    drawn = []
    prepare = CpuEngine.prepare

    def record(self, step, users, positives, weights):
        drawn.extend(positives.tolist())
        # The items that are only seen are not negatives either.
        batch = prepare(self, step, users, positives, weights)
        assert not zeros.matrix[np.repeat(users, 5), batch.drawn.items.ravel()].any()
        return batch

    monkeypatch.setattr(CpuEngine, "prepare", record)
    network = new_network(name, zeros, 4)
    options = TrainingOptions(epochs=1, negatives=5, batch_size=16)
    fit(network, make_loss("bpr"), Split(zeros), options)
    assert min(drawn) == 5
    assert len(drawn) == int((zeros.weights > 0).sum())


@pytest.mark.parametrize("sampler", ["uniform", "all-items"])
@pytest.mark.parametrize("loss", LOSSES)
def test_engines_multiply_gradients_by_weights(sampler, loss):
    options = TrainingOptions(lr=0.01, negatives=7)
    vectors = []
    for kind in (CpuEngine, TorchEngine):
        network = new_network("mf", EVENTS, 3)
        drawn = make_sampler(sampler, EVENTS, 7, seed=3)
        parts = (network, make_loss(loss, **LOSSES[loss]), drawn)
        more = (EVENTS,) if kind is CpuEngine else ()
        engine = kind(*parts, *more, options)
        rng = np.random.default_rng(0)
        for step in range(20):
            rows = rng.permutation(len(EVENTS))[:24]
            of_rows = EVENTS.event_weights[rows]
            engine.step(engine.prepare(step, EVENTS.users[rows], EVENTS.items[rows], of_rows))
        engine.settle()
        vectors.append(network.vectors())
    for one, other in zip(*vectors, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-4)
