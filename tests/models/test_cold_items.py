"""Items without events: features of a catalogue, scores by similar items, new catalogues."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from llpauc.data.catalogue import read_catalogue
from llpauc.data.features import item_features
from llpauc.data.interactions import Interactions
from llpauc.errors import InputError
from llpauc.models.cold_items import NEIGHBOURS, SHRINKAGE, choose_boost, similar_items
from llpauc.recommend import Recommender

FAST: dict[str, dict[str, Any]] = {
    "mf": {"recipe": "none", "epochs": 4, "lr": 0.05},
    "lightgcn": {"recipe": "none", "epochs": 4, "lr": 0.05},
    "blend": {"model": "mf", "recipe": "none", "epochs": 4, "lr": 0.05, "blend": "ease"},
    "ease": {},
}
KNOWN, COLD = 30, 6  # items of each of the two tastes


def events() -> Interactions:
    """Users of two tastes; items a00... and b00..., in this order of time."""
    rng = np.random.default_rng(0)
    pairs = [
        (f"u{user}", f"{'ab'[user % 2]}{item:02}")
        for user in range(120)
        for item in rng.choice(KNOWN, 8, replace=False)
    ]
    return Interactions.of(*zip(*pairs, strict=True))


def catalogue(n: int = KNOWN + COLD) -> pa.Table:
    ids = [f"{taste}{item:02}" for taste in "ab" for item in range(n)]
    return pa.table(
        {
            "item": ids,
            "title": [f"{'Red shoe' if i[0] == 'a' else 'Blue hat'} number {i[1:]}" for i in ids],
            "tags": ["x|y" if i[0] == "a" else "y|z" for i in ids],
            "size": [float(ord(i[0])) for i in ids],
            "code": [f"K{n:05}" for n in range(len(ids))],
        }
    )


def test_item_features_detects_kinds() -> None:
    table = catalogue().append_column("vector", pa.array([[1.0, 2.0]] * 72))
    features = item_features(read_catalogue(table))
    assert features.notes[0] == (
        "features: title (text), tags (list separated by |), size (number), vector (vector)"
    )
    assert "code" in features.notes[1]
    lengths = np.asarray(features.matrix.multiply(features.matrix).sum(axis=1))
    np.testing.assert_allclose(lengths, 1, rtol=1e-5)
    chosen = item_features(read_catalogue(table), ["tags"]).matrix
    assert chosen.shape[1] == 3
    with pytest.raises(InputError, match="unknown feature 'colour'; choose one of: title"):
        item_features(read_catalogue(table), ["colour"])
    with pytest.raises(InputError, match="'code' has 72 different values in 72 rows"):
        item_features(read_catalogue(table), ["code"])


def test_similar_items_are_weighted_means_by_the_squared_cosine() -> None:
    features = item_features(read_catalogue(catalogue()), ["title", "tags"]).matrix
    cold, warm = np.array([3, 70], np.int32), np.arange(4, 60, dtype=np.int32)
    weights = similar_items(features, cold, warm, 60).toarray()
    cosines = (features[cold] @ features[warm].T).toarray() ** 2
    for row, expected in zip(weights, cosines, strict=True):
        best = np.argsort(-expected, kind="stable")[:NEIGHBOURS]
        expected = expected * np.isin(np.arange(len(warm)), best)
        np.testing.assert_allclose(row[4:], expected / (expected.sum() + SHRINKAGE), rtol=1e-4)


@pytest.mark.parametrize("name", FAST)
def test_fit_recommends_items_without_events(name: str, tmp_path: Path) -> None:
    settings = {"model": name, **FAST[name]}
    plain = Recommender(**settings).fit(events())
    recommender = Recommender(**settings).fit(events(), items=catalogue())
    new = [f"{taste}{item}" for taste in "ab" for item in range(KNOWN, KNOWN + COLD)]
    lists = recommender.recommend(["u0", "u1"], COLD, allow=new)[0]
    assert {item[0] for item in lists[0]} == {"a"}
    assert {item[0] for item in lists[1]} == {"b"}

    # Items with events keep their scores, bit for bit
    known = [i for i in plain.require_fitted().item_ids if i is not None]
    for user in ("u0", "u7"):
        with_features = recommender.recommend([user], 10, allow=known)
        for one, other in zip(with_features, plain.recommend([user], 10), strict=True):
            assert one.tolist() == other.tolist()

    # Histories, similar items, runs
    assert recommender.fold_in(["a31", "a02"], 3, allow=new)[0][0][0] == "a"
    folder = recommender.save(tmp_path / "run")
    loaded = Recommender.load(folder)
    asked = ["u0", "u1"], 20
    for one, other in zip(loaded.recommend(*asked), recommender.recommend(*asked), strict=True):
        assert one.tolist() == other.tolist()

    # A catalogue with further items, with and without new events
    larger = loaded.set_items(catalogue(KNOWN + COLD + 1))
    assert larger.recommend(["u1"], 1, allow=["a36", "b36"])[0].tolist() == [["b36"]]
    loaded.update(Interactions.of(["u0", "u2"], ["a30", "a30"]), epochs=1)
    model = loaded.require_fitted().model
    assert model.without_features.n_items == 2 * KNOWN + 1
    assert model.n_items == 2 * (KNOWN + COLD + 1)


def test_fit_features_none_leaves_out_items_without_events() -> None:
    recommender = Recommender(model="ease").fit(events(), items=catalogue(), features="none")
    assert len(recommender.require_fitted().item_ids) == 2 * KNOWN
    chosen = Recommender(model="ease").fit(events(), items=catalogue(), features="title,tags")
    assert chosen.require_fitted().features == ["title", "tags"]
    with pytest.raises(InputError, match="unknown feature 'nothing'"):
        Recommender(model="ease").fit(events(), items=catalogue(), features="nothing")


def test_choose_boost_follows_the_validation_events() -> None:
    from llpauc.data.interactions import Split
    from llpauc.models.base import FitData
    from llpauc.models.popularity import Popularity

    old = [(f"u{user}", f"c{item:02}") for user in range(60) for item in range(25) if user % 3]
    old += [
        (f"u{user}", f"a{item:02}") for user in range(60) for item in range(20) if user % 6 == 1
    ]
    old += [(f"u{user}", "b00") for user in range(60)]
    boosts = {}
    for wanted in ("a25", "c05"):  # a new item, or a known one
        valid = [(f"u{user}", wanted) for user in range(0, 60, 3)]
        train, part = (Interactions.of(*zip(*rows, strict=True)) for rows in (old, valid))
        split = Split.of(train, part)
        source = read_catalogue(catalogue())
        features = item_features(source).of(source.ids.indices(split.item_ids.text))
        model = Popularity()
        model.fit(FitData(split, [split.train]))
        boosts[wanted] = choose_boost(model, split, features)
    assert boosts["a25"] > 0
    assert boosts["c05"] == 0
