"""Weights and types of events in recommenders, run folders, updates and the server."""

from __future__ import annotations

import json

import numpy as np
import pytest

from llpauc.data.interactions import EventRules, Interactions
from llpauc.data.readers import read_interactions
from llpauc.data.splits import split_temporal
from llpauc.errors import InputError
from llpauc.evaluation import evaluate
from llpauc.recommend import Recommender
from tests.datasets import SHOP_WEIGHTS, shop_log

LOG = shop_log()
TYPED = {"event_type": "event_type", "event_weights": SHOP_WEIGHTS}
EQUAL = {"event_type": "event_type", "event_weights": dict.fromkeys(SHOP_WEIGHTS, 1.0)}
SETTINGS = {
    "itemknn": {"model": "itemknn"},
    "ease": {"model": "ease"},
    "mf": {
        "model": "mf",
        "loss": "sl",
        "score": "cosine",
        "dimensions": 16,
        "lr": 0.005,
        "sampler": "all-items",
        "batch_size": 512,
        "epochs": 6,
        "recipe": "none",
    },
}


def purchase_recall(settings, reading, exclude) -> float:
    """Recall@20 on the purchases of the last days."""
    events = read_interactions(LOG, **reading).interactions
    split = split_temporal(events).with_rules(exclude=exclude, relevant="purchase")
    model = Recommender(**settings).fit(split)
    return evaluate(model.scorer(), split, metrics=["recall@20"]).mean("recall@20")


@pytest.mark.parametrize("name", SETTINGS)
def test_event_weights_and_exclude_purchase_raise_recall_on_purchases(name):
    settings = SETTINGS[name]
    weighted = purchase_recall(settings, TYPED, "purchase")
    assert weighted > 1.15 * purchase_recall(settings, EQUAL, "purchase")
    assert weighted > 1.15 * purchase_recall(settings, TYPED, "all")


def has(user: int, *types: str) -> set[int]:
    chosen = (LOG.user == user) & LOG.event_type.isin(types)
    return set(LOG[chosen].item)


def test_recommend_leaves_out_what_the_rule_excludes(tmp_path):
    fitted = Recommender(model="ease").fit(LOG, **TYPED)
    fitted.save(tmp_path / "run")
    loaded = Recommender.load(tmp_path / "run")
    assert loaded.fitted.rules == fitted.fitted.rules == EventRules(SHOP_WEIGHTS)
    assert list(loaded.fitted.rules.type_weights) == list(SHOP_WEIGHTS)
    n_items = LOG.item.nunique()
    for model in (fitted, loaded):
        for exclude, left_out in (
            (None, has(7, "purchase")),
            ("cart", has(7, "cart")),
            ("all", has(7, *SHOP_WEIGHTS)),
            ("none", set()),
        ):
            ids, scores = model.recommend([7], k=n_items, exclude=exclude)
            assert set(ids[0][np.isfinite(scores[0])]) == set(LOG.item) - left_out
    np.testing.assert_array_equal(
        fitted.recommend([1, 2], k=10)[1], loaded.recommend([1, 2], k=10)[1]
    )
    with pytest.raises(InputError, match="--exclude: unknown event type 'sold'"):
        loaded.recommend([7], exclude="sold")


def test_fit_exclude_is_saved_with_the_run(tmp_path):
    model = Recommender(model="popularity").fit(LOG, **TYPED, exclude="none", log_weights=True)
    model.save(tmp_path / "run")
    assert Recommender.load(tmp_path / "run").fitted.rules.exclude == "none"
    assert Recommender.load(tmp_path / "run").fitted.rules.log
    # A run without weights records nothing about them.
    Recommender(model="popularity").fit(LOG).save(tmp_path / "plain")
    assert "event_rules" not in json.loads((tmp_path / "plain" / "meta.json").read_text())


@pytest.mark.parametrize("rules", [[1], {"type_weights": 3}, {"type_weights": [], "exclude": 5}])
def test_from_run_refuses_damaged_rules(tmp_path, rules):
    model = Recommender(model="popularity").fit(LOG, **TYPED)
    model.save(tmp_path / "run", event_rules=rules)
    with pytest.raises(InputError, match=str(tmp_path)):
        Recommender.load(tmp_path / "run")


@pytest.mark.parametrize("name", ["ease", "mf"])
def test_update_adds_weights_to_known_pairs(tmp_path, name):
    half = len(LOG) // 2
    both = [read_interactions(part, **TYPED).interactions for part in (LOG[:half], LOG[half:])]
    whole = read_interactions(LOG, **TYPED).interactions
    Recommender(**SETTINGS[name]).fit(both[0]).save(tmp_path / "run")
    model = Recommender.load(tmp_path / "run")
    model.update(both[1], epochs=1)
    fitted = model.fitted
    same = Interactions(*fitted.histories.nonzero(), fitted.user_ids, fitted.item_ids).remap(
        whole.user_ids, whole.item_ids
    )
    found = dict(zip(zip(same.users, same.items, strict=True), fitted.histories.data, strict=True))
    expected = whole.histories.tocoo()
    pairs = zip(expected.row, expected.col, strict=True)
    assert found == pytest.approx(dict(zip(pairs, expected.data, strict=True)))
    assert int(np.sum(fitted.types >= 4)) == int(np.sum(whole.pair_types >= 4))
    with pytest.raises(InputError, match="the events of this run have weights, and the new ones"):
        model.update(LOG)


def test_rank_lists_of_a_server_exclude_by_type(tmp_path):
    loaded_run = pytest.importorskip("llpauc.serving.loaded_run")
    Recommender(model="ease").fit(LOG, **TYPED).save(tmp_path / "run")
    n_items = LOG.item.nunique()
    for exclude, left_out in ((None, has(7, "purchase")), ("all", has(7, *SHOP_WEIGHTS))):
        run = loaded_run.load_run(tmp_path / "run", exclude=exclude)
        request = loaded_run.ListRequest(n_items, int(run.users.indices([7])[0]))
        (entries,) = loaded_run.rank_lists(run, [request])
        assert {item for item, _ in entries} == set(LOG.item) - left_out
