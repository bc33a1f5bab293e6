"""Items without events: lists by features next to popularity, content-kNN and LightFM.

    python -m benchmarks.cold_items [DATA SET ...] [MODEL ...]

The events are split at one moment, so that 10 to 20 % of the test events have items that are not in
the train part. Recall@20 and NDCG@20 are means over at most 3,000 users with such events: of cold
items among the cold ones, of warm items among the warm ones, and of all items among all. Models:
popularity, ease, ials, mf, lightgcn, default. LightFM takes part if it is installed.
"""

from __future__ import annotations

import csv
import gzip
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from scipy import sparse

from llpauc.data.catalogue import Catalogue, read_catalogue
from llpauc.data.features import item_features
from llpauc.data.interactions import Interactions, Split
from llpauc.data.readers import read_interactions
from llpauc.evaluation.full_ranking import _hits
from llpauc.evaluation.ranking import rank
from llpauc.metrics import TOPK_METRICS
from llpauc.recommend import Recommender

DATA = Path(os.environ.get("LLPAUC_DATA", Path(__file__).parents[2] / "shared" / "data"))
MOMENTS = {"amazon-games": 0.9, "movietweetings": 0.8}  # fraction of the events before the test
TRAINED = {"recipe": "none", "loss": "llpauc", "score": "cosine", "temperature": 0.2, "epochs": 15}
N_USERS, K = 3000, 20


def catalogue_of(name: str) -> Catalogue:
    """The items in random order, so that no order of the file helps equal scores."""
    rows: list[tuple[Any, ...]] = []
    if name == "amazon-games":
        with gzip.open(DATA / name / "items.csv.gz", "rt", encoding="utf-8") as file:
            rows = [(row["item"], row["title"], None, None) for row in csv.DictReader(file)]
    else:
        with gzip.open(DATA / name / "movies.dat.gz", "rt", encoding="utf-8") as file:
            for line in file:
                item, title, genres = line.rstrip("\n").split("::")
                year = re.search(r"\((\d{4})\)$", title)
                rows.append((item, None, genres or None, int(year[1]) if year else None))
    order = np.random.default_rng(0).permutation(len(rows))
    columns = list(zip(*(rows[n] for n in order), strict=True))
    names = ("item", "title", "genres", "year")
    given = {n: c for n, c in zip(names, columns, strict=True) if any(v is not None for v in c)}
    return read_catalogue(pa.table(given))


def split_of(name: str) -> Split:
    """Train and test events, the test of users with train events; items in random order."""
    folder = DATA / name
    path = next(p for p in folder.iterdir() if p.name.startswith(("events", "ratings")))
    events = read_interactions(path).interactions
    assert events.timestamps is not None
    order = np.random.default_rng(1).permutation(events.n_items)
    events = events.remap(events.user_ids, events.item_ids.take(order))
    is_test = events.timestamps >= np.quantile(events.timestamps, MOMENTS[name])
    train = events.take(~is_test)
    known = np.bincount(train.users, minlength=events.n_users) > 0
    return Split(train, None, events.take(is_test & known[events.users]))


class Benchmark:
    """One data set: its users, targets and candidates."""

    def __init__(self, name: str) -> None:
        self.split, self.catalogue = split_of(name), catalogue_of(name)
        assert self.split.test is not None
        self.warm = np.bincount(self.split.train.items, minlength=self.split.n_items) > 0
        users = np.flatnonzero(np.diff(self.split.test.matrix.indptr))
        chosen = np.random.default_rng(2).permutation(users)[:N_USERS]
        self.users = np.sort(chosen).astype(np.int32)
        rows = self.catalogue.ids.indices(self.split.item_ids.text)
        self.features = item_features(self.catalogue).of(rows)
        cold = float((~self.warm[self.split.test.items]).mean())
        print(
            f"\n{name}: {len(self.split.train):,} train and {len(self.split.test):,} test events,"
        )
        print(
            f"{cold:.1%} of the test events on {int((~self.warm).sum()):,} items without events\n"
        )
        print("| model | seconds | cold recall | cold ndcg | warm recall | warm ndcg | all recall |"
              " all ndcg |\n|---|---|---|---|---|---|---|---|")  # fmt: skip

    def show(self, name: str, scorer: Any, seconds: float) -> None:
        values = []
        for candidates in (~self.warm, self.warm, np.ones_like(self.warm)):
            assert self.split.test is not None
            targets = self.split.test.matrix[self.users] @ sparse.diags(candidates.astype(float))
            targets.eliminate_zeros()
            targets.sort_indices()
            has = np.flatnonzero(np.diff(targets.indptr))
            hidden = np.flatnonzero(~candidates).astype(np.int32)
            masked = self.split.train.matrix[self.users[has]]
            lists = rank(scorer, self.users[has], K, masked=masked, hidden=hidden).items
            hits, n_targets = _hits(lists, targets[has]), np.diff(targets[has].indptr)
            values += [TOPK_METRICS[m](hits, n_targets, K).mean() for m in ("recall", "ndcg")]
        cells = " | ".join(f"{value:.4f}" for value in values)
        print(f"| {name} | {seconds:.0f} | {cells} |", flush=True)


class ContentKNN:
    """The sum of the similarities to the items of a user, by the same features."""

    def __init__(self, train: Interactions, features: Any) -> None:
        self._profiles, self._features = (train.matrix @ features).tocsr(), features
        self.n_items = train.n_items

    def scores_into(self, users: Any, out: Any) -> None:
        out[:] = (self._profiles[users] @ self._features.T).toarray()


def lightfm_scorer(benchmark: Benchmark) -> Any:
    """LightFM with item ids and features, WARP loss; None if it is not installed."""
    try:
        from lightfm import LightFM
    except ImportError:
        return None
    train = benchmark.split.train
    features = sparse.hstack([sparse.eye(train.n_items), benchmark.features]).tocsr()
    features = features.astype(np.float32)
    model = LightFM(no_components=64, loss="warp", learning_rate=0.05, random_state=0)
    model.fit(train.matrix.tocoo(), item_features=features, epochs=15)
    item_bias, items = model.get_item_representations(features)
    _, users = model.get_user_representations()

    class Scorer:
        n_items = train.n_items

        def scores_into(self, some: Any, out: Any) -> None:
            out[:] = users[some] @ items.T + item_bias

    return Scorer()


def recommender_of(name: str) -> Recommender:
    if name == "default":
        return Recommender()
    return Recommender(model=name, **(TRAINED if name in ("mf", "lightgcn") else {}))


def main(words: list[str]) -> None:
    sets = [word for word in words if word in MOMENTS] or list(MOMENTS)
    models = [word for word in words if word not in MOMENTS] or ["popularity", "ials", "mf"]
    for name in sets:
        benchmark = Benchmark(name)
        split = benchmark.split
        train = Split(split.train)
        knn = ContentKNN(split.train, benchmark.features)
        benchmark.show("content-kNN", knn, 0)
        begun = time.perf_counter()
        scorer = lightfm_scorer(benchmark)
        if scorer is not None:
            benchmark.show("LightFM", scorer, time.perf_counter() - begun)
        for model in models:
            begun = time.perf_counter()
            fitted = recommender_of(model).fit(train, items=benchmark.catalogue)
            seconds = time.perf_counter() - begun
            without = fitted.require_fitted().without_features()
            ids = split.user_ids, split.item_ids
            benchmark.show(f"{model}, no features", without.scorer_for(*ids), seconds)
            boost = fitted.require_fitted().model.boost
            benchmark.show(f"{model}, features, boost {boost:g}", fitted.scorer_for(*ids), seconds)


if __name__ == "__main__":
    main(sys.argv[1:])
