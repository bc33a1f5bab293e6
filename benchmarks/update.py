"""New events: a stale model, an updated one, and one trained again, on real data.

    python -m benchmarks.update [--epochs 5] [--seed 0] [NAME ...]

Part of train is held back as new: a random fifth, the last fifth of the file (whose order is that
of time on Adressa), or every event of a tenth of the users and of a tenth of the items. The test
part evaluates all models, with old and new events masked. Seconds are CPU time, which other work on
the machine does not change; set OMP_NUM_THREADS=1 NUMBA_NUM_THREADS=1, or waiting threads count
too. Data: LLPAUC_DATA, else ../shared/data.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from llpauc.data.interactions import Interactions, Split
from llpauc.evaluation.full_ranking import Evaluation, evaluate
from llpauc.evaluation.scorer import Scorer, Scores
from llpauc.models import NewEvents
from llpauc.recommend import Recommender
from llpauc.recommend.fitted import Fitted
from llpauc.recommend.sources import as_split
from llpauc.recommend.update import new_events

DATA = Path(os.environ.get("LLPAUC_DATA", Path(__file__).parents[2] / "shared" / "data"))
METRICS = ["recall@20", "ndcg@20"]
SETTING: dict[str, Any] = {
    "model": "mf",
    "score": "cosine",
    "temperature": 0.25,
    "dimensions": 48,
    "beta": 0.1,
    "sampler": "shared",
    "negatives": 600,
    "lr": 0.01,
    "hold_out": 0.0,
}
Mask = npt.NDArray[np.bool_]


def random_fifth(train: Interactions, rng: np.random.Generator) -> Mask:
    return rng.random(len(train)) < 0.2


def last_fifth(train: Interactions, rng: np.random.Generator) -> Mask:
    return np.arange(len(train)) >= 0.8 * len(train)


def whole_ids(train: Interactions, rng: np.random.Generator) -> Mask:
    users, items = rng.random(train.n_users) < 0.1, rng.random(train.n_items) < 0.1
    late: Mask = users[train.users] | items[train.items]
    return late


@dataclass(frozen=True)
class Case:
    """Data, which events are new, and options for its size."""

    data: str
    late: Callable[[Interactions, np.random.Generator], Mask]
    batch_size: int
    epochs: int


CASES = {
    "health, a random fifth": Case("amazon-health", random_fifth, 512, 15),
    "health, a tenth of all ids": Case("amazon-health", whole_ids, 512, 15),
    "adressa, the last fifth": Case("adressa_clean", last_fifth, 2048, 8),
}


class KnownItems:
    """Vectors of the items that a stale model knows; the others rank last."""

    def __init__(self, users: Scores, items: Scores, n_items: int) -> None:
        self._users, self._items, self.n_items = users, items, n_items

    def scores_into(self, users: npt.NDArray[np.int32], out: Scores) -> None:
        out[:] = np.finfo(np.float32).min
        out[:, : len(self._items)] = self._users[users] @ self._items.T


def folded_in(stale: Fitted, came: NewEvents, tested: Split) -> KnownItems:
    """Users with new events by their whole history of known items, other known users as before,
    users without events as the mean user. Indices are those of `tested`: the run's first."""
    vectors = stale.model.vectors
    assert vectors is not None
    users = vectors.history_map.vectors_of(tested.train.matrix[:, : len(stale.item_ids)])
    same = np.setdiff1d(np.arange(len(stale.user_ids)), came.new.users)
    users[same] = vectors.user_vectors[same]
    return KnownItems(users, vectors.item_vectors, tested.n_items)


def new_item_recall(result: Evaluation, test: Interactions, new_items: npt.ArrayLike) -> float:
    """Fraction of the test events with new items that are in their user's list of 20."""
    is_new = np.isin(np.arange(test.n_items), new_items)
    pairs = test.matrix[result.users].tocoo()
    rows, items = pairs.row[is_new[pairs.col]], pairs.col[is_new[pairs.col]]
    if not len(rows):
        return float("nan")
    return float((result.items[rows] == items[:, None]).any(axis=1).mean())


def run(case: Case, epochs: int, seed: int) -> None:
    split = as_split(DATA / case.data)
    assert split.test is not None
    train, rng = split.train, np.random.default_rng(seed)
    late = case.late(train, rng)
    old = train.take(~late).compact()
    new = train.take(late)
    settings = SETTING | {"batch_size": case.batch_size, "epochs": case.epochs, "seed": seed}
    stale = completed(Recommender(**settings).fit(old))
    before = stale.fitted
    assert before is not None
    came = new_events(before, new)
    tested = Split.of(came.all, None, split.test)
    print(f"\n{came}; {case.epochs} epochs before the update\n")
    print("| | NDCG@20 | Recall@20 | Recall@20 of new items | CPU seconds |\n|---|---|---|---|---|")

    def report(name: str, scorer: Scorer, seconds: float) -> None:
        result = evaluate(scorer, tested, metrics=METRICS)
        of_new = new_item_recall(result, tested.parts["test"], came.new_items)
        metrics = [result.mean("ndcg@20"), result.mean("recall@20"), of_new]
        values = " | ".join("-" if np.isnan(f) else f"{f:.4f}" for f in metrics)
        print(f"| {name} | {values} | {seconds:.2f} |", flush=True)

    def over_test(model: Recommender) -> Scorer:
        assert model.fitted is not None
        return model.fitted.scorer_for(tested.user_ids, tested.item_ids)

    report("stale", over_test(stale), 0.0)
    started = time.process_time()
    folded = folded_in(before, came, tested)
    seconds = time.process_time() - started
    report("(a) stale, new events folded in", folded, seconds)
    with tempfile.TemporaryDirectory() as folder:
        stale.save(Path(folder) / "run")
        for passes in (0, epochs):
            started = time.process_time()
            updated = Recommender.load(Path(folder) / "run")
            updated.update(new, epochs=passes)
            seconds = time.process_time() - started
            report(f"(b) update, {passes} epochs", over_test(completed(updated)), seconds)
    started = time.process_time()
    full = completed(Recommender(**settings).fit(train))
    report("(c) trained again", over_test(full), time.process_time() - started)
    cold_users(full, split)
    milliseconds = 1000 * fold_in_seconds(full, train)
    print(f"\none user folded in, 20 items out: {milliseconds:.2f} ms (median, CPU)")


def completed(model: Recommender) -> Recommender:
    """Exit if the training was interrupted by a signal: a partial training is no result."""
    if model.history is not None and model.history.signal is not None:
        raise SystemExit(128 + model.history.signal)
    return model


def cold_users(full: Recommender, split: Split) -> None:
    """The fallback of users without history, against popularity."""
    popular = Recommender(model="popularity").fit(Split(split.train))
    groups = {
        name: evaluate(model.scorer(), split, metrics=METRICS).summary()
        for name, model in (("popularity", popular), ("trained again", full))
    }
    if "cold" not in next(iter(groups.values())):
        return
    print("\n| test users | number | model | Recall@20 | NDCG@20 |\n|---|---|---|---|---|")
    for group in ("all", "warm", "cold"):
        for name, summary in groups.items():
            of = summary[group]
            values = f"{of['recall@20']:.4f} | {of['ndcg@20']:.4f}"
            print(f"| {group} | {of['users']:,} | {name} | {values} |")


def fold_in_seconds(model: Recommender, train: Interactions, calls: int = 200) -> float:
    times = []
    for row in np.flatnonzero(np.diff(train.matrix.indptr))[:calls]:
        items = train.item_ids.ids(train.matrix[row].indices)
        started = time.process_time()
        model.fold_in(items, k=20)
        times.append(time.process_time() - started)
    return statistics.median(times)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of: {'; '.join(CASES)}")
    parser.add_argument("--epochs", type=int, default=5, help="of the update")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    unknown = set(options.names) - set(CASES)
    if unknown:
        parser.error(f"unknown case {', '.join(unknown)}; choose from: {', '.join(CASES)}")
    for name in options.names or CASES:
        print(f"\n## {name}", flush=True)
        if (DATA / CASES[name].data).exists():
            run(CASES[name], options.epochs, options.seed)
        else:
            print(f"no {CASES[name].data} in {DATA}; set LLPAUC_DATA to the folder that has it")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
