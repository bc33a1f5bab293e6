"""Blends of a trained model with models without training."""

import numpy as np
import pytest

from llpauc.data.interactions import Split
from llpauc.data.splits import hold_out
from llpauc.errors import InputError
from llpauc.evaluation.full_ranking import evaluate
from llpauc.models.blend import Blend, choose_weights
from llpauc.models.registry import blend_text, parse_blend
from llpauc.recommend import Recommender
from llpauc.training import Diverged
from tests.models.test_ease import random_events

QUICK = {"recipe": "none", "model": "mf", "dimensions": 8, "epochs": 2, "negatives": 4}


@pytest.fixture(scope="module")
def split() -> Split:
    return hold_out(Split(random_events(150, 40, 0.15, seed=5)), 0.2, 0)


def zscores(scores: np.ndarray) -> np.ndarray:
    scores = scores.astype(float)
    return (scores - scores.mean(axis=1, keepdims=True)) / scores.std(axis=1, keepdims=True)


def scores_of_users(model, split) -> np.ndarray:
    out = np.empty(split.train.matrix.shape, np.float32)
    model.scorer(split.train.matrix).scores_into(np.arange(split.n_users, dtype=np.int32), out)
    return out


def test_blend_scores_are_the_weighted_sum_of_standardized_scores(split):
    model = Recommender(**QUICK, blend="ease,popularity").fit(split).require_fitted().model
    assert isinstance(model, Blend)
    parts = [model.main, *model.others.values()]
    expected = sum(
        weight * zscores(scores_of_users(part, split))
        for weight, part in zip(model.weights, parts, strict=True)
    )
    assert sum(model.weights) == pytest.approx(1)
    np.testing.assert_allclose(scores_of_users(model, split), expected, atol=1e-4)


def test_blend_is_on_validation_at_least_as_good_as_each_of_its_models(split):
    model = Recommender(**QUICK, blend="ease").fit(split).require_fitted().model
    histories = split.train.matrix
    alone = Recommender("ease").fit(split).scorer()
    values = [
        evaluate(scorer, split, on="valid", metrics=["ndcg@20"]).mean("ndcg@20")
        for scorer in (model.scorer(histories), model.main.scorer(histories), alone)
    ]
    assert values[0] >= max(values[1:])


def test_blend_saved_and_loaded_gives_the_same_scores_and_can_be_updated(split, tmp_path):
    recommender = Recommender(**QUICK, blend="ease,ials").fit(split)
    users = recommender.require_fitted().user_ids.ids(np.arange(10, dtype=np.int32))
    loaded = Recommender.load(recommender.save(tmp_path / "run"))
    for before, after in zip(recommender.recommend(users), loaded.recommend(users), strict=True):
        assert before.tolist() == after.tolist()
    model, other = (r.require_fitted().model for r in (recommender, loaded))
    assert model.weights == other.weights
    again = Recommender(**loaded.fitted_params).fit(split).require_fitted().model
    assert again.weights == model.weights  # given, not chosen
    assert [o.options for o in model.others.values()] == [o.options for o in other.others.values()]
    loaded.update(random_events(155, 41, 0.02, seed=6), epochs=1)
    assert loaded.require_fitted().model.weights == model.weights


def test_blend_fold_in_uses_all_models(split):
    recommender = Recommender(**QUICK, blend="ease").fit(split)
    items, scores = recommender.fold_in([0, 1, 2], k=5)
    assert len(items) == 5
    assert np.isfinite(scores).all()


def test_blend_drops_a_model_that_does_not_help(split):
    model = Recommender(**QUICK, blend="popularity,ease").fit(split).require_fitted().model
    assert 0 not in model.weights[1:]
    assert len(model.weights) == 1 + len(model.others)


def test_blend_of_a_diverged_training_is_the_main_model(split):
    recommender = Recommender(**{**QUICK, "lr": 1e30, "loss": "bpr"}, blend="ease")
    with pytest.raises(Diverged):
        recommender.fit(split)
    assert recommender.fitted_params["blend"] is None
    assert recommender.recommend([0], k=3)[0].shape == (1, 3)


def test_blend_none_leaves_the_trained_model_alone(split):
    recommender = Recommender(model="mf", dimensions=8, epochs=2, blend="none").fit(split)
    assert recommender.require_fitted().model.name == "mf"


def test_parse_blend_is_the_inverse_of_blend_text():
    text = "ease(weight=0.3, regularization=100.0), ials(weight=0.2)"
    assert blend_text(parse_blend(text)) == text
    assert blend_text(parse_blend("ease,ials")) == "ease, ials"
    assert (
        parse_blend("recent_popularity(half_life=inf)")["recent_popularity"]["half_life"] == np.inf
    )


@pytest.mark.parametrize(
    "text",
    [
        "", "ease,ease", "mf", "easy", "ease(", "ease(100)", "ease(weigth=1)", "ease(weight=2)",
        "ease(weight=0.3),ials", "ease(weight='a')", "ease(regularization=-1)", "__import__('os')",
        "ease(weight=0.6),ials(weight=0.6)",
    ],
)  # fmt: skip
def test_parse_blend_refuses(text):
    with pytest.raises(InputError):
        Recommender(model="mf", blend=text).plan()


def test_choose_weights_has_the_best_ndcg_of_all_shares(split):
    valid = split.valid.matrix.toarray().astype(np.float32)
    noise = np.random.default_rng(0).random((2, *valid.shape)).astype(np.float32)
    scorers = [Fixed(noise[0]), Fixed(noise[1] + 0.3 * valid)]

    def value(weights) -> float:
        scores = sum(w * zscores(s.scores) for w, s in zip(weights, scorers, strict=True))
        return evaluate(Fixed(scores), split, on="valid", metrics=["ndcg@20"]).mean("ndcg@20")

    chosen = choose_weights(scorers, split)
    assert value(chosen) == pytest.approx(max(value((1 - v / 20, v / 20)) for v in range(21)))


class Fixed:
    """Scores from a matrix."""

    def __init__(self, scores: np.ndarray) -> None:
        self.scores, self.n_items = scores, scores.shape[1]

    def scores_into(self, users, out) -> None:
        out[:] = self.scores[users]
