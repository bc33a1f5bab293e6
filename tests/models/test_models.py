"""The models without training against plain NumPy, the registry, and the Model protocol."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from llpauc.data.ids import IdMap
from llpauc.data.interactions import Interactions
from llpauc.errors import InputError
from llpauc.models import EASE, MODELS, FitData, ItemKNN, Model, ModelEntry, Popularity, ease
from llpauc.models.registry import trained_models, untrained_models
from llpauc.options import options_of
from llpauc.recommend import Recommender
from tests.datasets import random_split, score_table, scorer_of

SPLIT = random_split(11)
TRAIN = SPLIT.train
X = TRAIN.matrix.toarray().astype(np.float64)
COLD = X.sum(axis=1) == 0


def fitted(model: type[Model], data: Interactions = TRAIN, **options) -> Model:
    made = model(model.Options(**options))
    made.fit(FitData.of(data))
    return made


# --- models ---------------------------------------------------------------------------------------


def test_popularity_counts_distinct_users():
    np.testing.assert_array_equal(fitted(Popularity).fallback, X.sum(axis=0))
    assert TRAIN.duplicates > 0


@pytest.mark.parametrize("regularization", [0.5, 100.0])
def test_ease_weights_are_the_closed_form(regularization):
    p = np.linalg.inv(X.T @ X + regularization * np.eye(X.shape[1]))
    b = -p / np.diag(p)
    np.fill_diagonal(b, 0)
    model = fitted(EASE, regularization=regularization)
    np.testing.assert_allclose(model.weights, b, atol=2e-6)
    np.testing.assert_allclose(model.scores_of(TRAIN.matrix), X @ b, atol=1e-5)


def test_ease_weights_minimise_the_objective():
    """No feasible change of the weights lowers the objective."""
    b = fitted(EASE, regularization=10.0).weights.astype(np.float64)

    def objective(w):
        return ((X - X @ w) ** 2).sum() + 10.0 * (w**2).sum()

    rng = np.random.default_rng(0)
    for _ in range(20):
        step = 1e-3 * rng.standard_normal(b.shape)
        np.fill_diagonal(step, 0)
        assert objective(b + step) > objective(b)


@pytest.mark.parametrize(("neighbours", "shrinkage"), [(3, 0.0), (10, 5.0), (10_000, 1.0)])
def test_itemknn_scores_are_sums_over_the_best_neighbours(neighbours, shrinkage):
    together = X.T @ X
    norm = np.sqrt(X.sum(axis=0))
    scale = np.outer(norm, norm) + shrinkage
    similar = np.divide(together, scale, out=np.zeros_like(together), where=scale > 0)
    np.fill_diagonal(similar, 0)
    for i in range(len(similar)):  # item i keeps its best neighbours, ties with the last included
        if neighbours < len(similar) - 1:
            last = np.sort(similar[i].astype(np.float32))[-neighbours]
            similar[i, similar[i].astype(np.float32) < last] = 0
    model = fitted(ItemKNN, neighbours=neighbours, shrinkage=shrinkage)
    np.testing.assert_allclose(model.scores_of(TRAIN.matrix), X @ similar.T, atol=1e-5)


@pytest.mark.parametrize("name", ["ease", "itemknn"])
def test_scorer_of_users_without_history_is_popularity(name):
    scores = score_table(scorer_of(name, TRAIN), len(X))
    assert COLD.any()
    np.testing.assert_array_equal(scores[COLD], np.tile(X.sum(axis=0), (COLD.sum(), 1)))


def test_ease_fit_cost_scales_the_fastest_probe(monkeypatch):
    """An inverse takes (items / 1000)^3 s, and the first probe ten times that."""
    now, probes = [0.0], []
    real = ease._inverse

    def inverse(gram):
        probes.append(len(gram))
        now[0] += (len(gram) / 1000) ** 3 * (10 if len(probes) == 1 else 1)
        return real(gram)

    monkeypatch.setattr(ease, "_inverse", inverse)
    monkeypatch.setattr(ease.time, "perf_counter", lambda: now[0])
    rng = np.random.default_rng(0)
    train = Interactions.of(rng.integers(0, 50, 3000), np.arange(3000))
    seconds, size = EASE.fit_cost(train)
    assert set(probes) == {1000}
    assert seconds == pytest.approx((1 + EASE.choosing_fits) * 27.0)
    assert size == 12 * 3000**2


def test_ease_too_many_items_raises_before_allocating():
    many = IdMap.of(np.arange(60_000))
    few = Interactions(np.zeros(1, int), np.zeros(1, int), IdMap.of(["u"]), many)
    with pytest.raises(InputError, match=r"60,000 items would need 27 GB"):
        fitted(EASE, few, neighbours=60_000)


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("ease", {"regularization": 0.0}, "regularization must be above 0, got 0.0"),
        ("ease", {"regularization": float("nan")}, "regularization must be above 0"),
        ("itemknn", {"neighbours": 0}, "neighbours must be at least 1, got 0"),
        ("itemknn", {"neighbours": 2.5}, "neighbours must be a whole number at least 1"),
        ("itemknn", {"shrinkage": -1.0}, "shrinkage must be at least 0"),
        ("recent_popularity", {"half_life": 0.0}, "half_life must be above 0, got 0.0"),
    ],
)
def test_options_out_of_range_are_refused(name, parameters, message):
    with pytest.raises(InputError, match=message):
        scorer_of(name, TRAIN, **parameters)


# --- the registry ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_models_entry_agrees_with_its_class(name):
    entry = MODELS[name]
    model = entry.load()
    assert issubclass(model, Model)
    assert (model.name, model.Options) == (name, entry.Options)
    assert (name in trained_models()) == entry.trained == (name not in untrained_models())
    assert entry.Options() == model().options


@pytest.mark.parametrize("name", MODELS)
def test_models_options_have_help_texts(name):
    for option in options_of(MODELS[name].Options).values():
        assert len(option.help) > 10, option.name


def test_models_registry_does_not_import_torch():
    code = (
        "import sys; from llpauc.models.registry import MODELS;"
        "from llpauc.options import options_of;"
        "[options_of(entry.Options) for entry in MODELS.values()]; print('torch' in sys.modules)"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert printed.stdout.strip() == "False"


def test_models_former_names_are_aliases():
    assert MODELS["itemsum"] is MODELS["fism"]
    assert MODELS["recent"] is MODELS["recent_popularity"]
    with pytest.raises(InputError, match="unknown model 'nmf'; choose one of: mf, lightgcn, fism"):
        MODELS["nmf"]


class Rarity(Popularity):
    """Every user gets the least popular items."""

    name = "rarity"

    def fit(self, data, training=None):
        result = super().fit(data)
        self.fallback = -self.fallback
        return result


def test_models_register_adds_a_model_to_the_recommender(tmp_path, monkeypatch):
    monkeypatch.setattr(MODELS, "_places", dict(MODELS._places))
    MODELS.register("rarity", ModelEntry(Rarity, Rarity.Options))
    made = Recommender(recipe="none", model="rarity").fit(TRAIN)
    _, scores = Recommender.load(made.save(tmp_path / "run")).recommend(["?"], 3)
    np.testing.assert_array_equal(scores[0], -np.sort(X.sum(axis=0))[:3])
    made.update(Interactions.of(["new"], ["item"]))
    assert made.fitted.fallback[-1] == -1
