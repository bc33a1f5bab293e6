"""The same seed gives the same bits; metrics and lists equal those of independent programs.

See also tests/metrics/test_topk.py (1,000 rankings against trec_eval),
tests/storage/test_run_folder.py (saved runs of every format) and
tests/recommend/test_recommender.py (saved and unsaved runs, one user and many users).
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import pytrec_eval

from llpauc.data.interactions import Split
from llpauc.data.readers import read_interactions
from llpauc.data.splits import split
from llpauc.evaluation.full_ranking import evaluate
from llpauc.recommend import Recommender
from llpauc.recommend.lists import ListRequest, write_recommendations
from tests.datasets import ROOT, random_split, score_table
from tests.system.fuzzing import HOSTILE, ID_TABLES, check_ids, count_outcomes

# --- bits -----------------------------------------------------------------------------------------

MAKE = """
import hashlib, json, sys
from llpauc.recommend import Recommender
from llpauc.recommend.lists import ListRequest, write_recommendations
from tests.datasets import random_split
from pathlib import Path

folder, made = Path(sys.argv[1]), {}
events = random_split(4, n_users=40, n_items=70, events=700)
for model, loss in (("mf", "llpauc"), ("lightgcn", "bpr"), ("fism", "bce")):
    settings = {"model": model, "loss": loss, "epochs": 3, "dimensions": 6, "batch_size": 32}
    one = Recommender(recipe="none", negatives=5, **settings)
    one.fit(events)
    one.save(folder / model)
    write_recommendations(one.fitted, folder / f"{model}.csv", ListRequest(5))
for model in ("popularity", "itemknn", "ease"):
    Recommender(recipe="none", model=model).fit(events).save(folder / model)
for path in sorted(folder.rglob("*")):
    if path.is_file() and path.name not in ("timings.json", "environment.json", "manifest.json"):
        made[str(path.relative_to(folder))] = hashlib.sha256(path.read_bytes()).hexdigest()
print(json.dumps(made))
"""


@pytest.mark.slow
def test_fit_same_seed_gives_the_same_bits_in_another_process(tmp_path):
    """Weights, ids, metrics, settings and lists of six models, with other hash seeds."""
    outputs = []
    for seed in ("0", "4242"):
        folder = tmp_path / seed
        folder.mkdir()
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        words = [sys.executable, "-c", MAKE, str(folder)]
        outputs.append(subprocess.check_output(words, cwd=ROOT, env=environment, text=True))
    assert outputs[0].count("tensors.safetensors") == 6
    assert outputs[0].count(".csv") == 3
    assert outputs[0] == outputs[1]


THREADS = """
import hashlib, json, sys
from pathlib import Path
from llpauc.recommend import Recommender
from tests.datasets import random_split
split = random_split(3, n_users=900, n_items=1500, events=60_000)
trained = {"epochs": 1, "dimensions": 64, "batch_size": 4096, "init": "spectral", "refit": True}
for model in ("mf", "lightgcn", "fism", "itemknn", "popularity"):
    options = trained if model in ("mf", "lightgcn", "fism") else {}
    one = Recommender(recipe="none", model=model, **options).fit(split)
    folder = one.save(Path(sys.argv[1]) / model)
    print(model, hashlib.sha256((folder / "tensors.safetensors").read_bytes()).hexdigest())
"""


@pytest.mark.slow
def test_fit_same_seed_gives_the_same_bits_with_any_number_of_threads(tmp_path):
    """Also the spectral initialization, which uses LAPACK, and the refit."""
    outputs, threads = [], []
    for number in ("1", "2"):
        environment = {**os.environ, "OMP_NUM_THREADS": number, "NUMBA_NUM_THREADS": number}
        words = [sys.executable, "-c", THREADS, str(tmp_path / number)]
        outputs.append(subprocess.check_output(words, cwd=ROOT, env=environment, text=True))
        recorded = json.loads((tmp_path / number / "mf" / "environment.json").read_text())
        threads.append(recorded["threads"])
    assert len(outputs[0].splitlines()) == 5
    assert outputs[0] == outputs[1]
    assert [recorded["blas"] for recorded in threads] == [1, 2]
    assert [recorded["OMP_NUM_THREADS"] for recorded in threads] == ["1", "2"]


ROW_ORDER_MODELS = {
    "popularity": {},
    "recent_popularity": {},
    "itemknn": {},
    "ease": {},
    "ease with neighbours": {"neighbours": 20},
    "ials": {"dimensions": 8, "iterations": 3},
    "mf": {"epochs": 3, "dimensions": 8, "batch_size": 64, "half_life": 3000.0},
    "lightgcn": {"epochs": 2, "dimensions": 8, "batch_size": 64, "loss": "bpr"},
    "default": {"epochs": 2},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ROW_ORDER_MODELS)
def test_fit_the_order_of_the_rows_of_a_file_changes_no_bit(name, tmp_path):
    """With many equal scores, repeated events of a pair and equal timestamps."""
    rng = np.random.default_rng(8)
    drawn = rng.integers(0, [40, 60, 200], (800, 3)).tolist()
    rows = [f"u{user},i{item},{1_600_000_000 + 50 * time}\n" for user, item, time in drawn]
    options = dict(ROW_ORDER_MODELS[name])
    if name != "default":
        options |= {"model": name.split()[0], "recipe": "none"}
    outputs = []
    for order in (np.arange(800), np.arange(800)[::-1], rng.permutation(800)):
        path = tmp_path / "events.csv"
        path.write_text("user,item,timestamp\n" + "".join(rows[row] for row in order))
        events = split(read_interactions(path).interactions, "random_per_user", seed=5)
        recommender = Recommender(**options).fit(Split(events.train, events.valid))
        fitted = recommender.fitted
        folder = recommender.save(tmp_path / "run")
        result = evaluate(fitted.scorer, events)
        write_recommendations(fitted, tmp_path / "lists.csv", ListRequest(7))
        outputs.append(
            (
                (folder / "tensors.safetensors").read_bytes(),
                list(fitted.user_ids),
                list(fitted.item_ids),
                {metric: values.tobytes() for metric, values in result.values.items()},
                (tmp_path / "lists.csv").read_bytes(),
            )
        )
    assert outputs[0] == outputs[1] == outputs[2]


# --- metrics --------------------------------------------------------------------------------------


def test_evaluate_equals_trec_eval():
    """From scores and events to means."""
    split = random_split(9, n_users=300, n_items=120, events=9000)
    fitted = Recommender(model="ease").fit(Split(split.train)).fitted
    names = {"recall@20": "recall_20", "ndcg@10": "ndcg_cut_10", "precision@5": "P_5",
             "map@20": "map_cut_20", "hit@10": "success_10"}  # fmt: skip
    result = evaluate(fitted.scorer, split, metrics=list(names), mask="seen")
    scores = score_table(fitted.scorer, split.n_users)
    seen = split.train.matrix.maximum(split.valid.matrix).toarray() > 0
    truth, run = {}, {}
    targets = split.test.matrix.toarray() > 0
    for user in result.users.tolist():
        truth[str(user)] = {str(item): 1 for item in np.flatnonzero(targets[user]).tolist()}
        row = np.where(seen[user], -np.inf, scores[user])
        order = np.lexsort((np.arange(len(row)), -row))[: (~seen[user]).sum()]
        run[str(user)] = {str(item): float(len(order) - at) for at, item in enumerate(order)}
    measures = {".".join(name.rsplit("_", 1)) for name in names.values()}
    trec = pytrec_eval.RelevanceEvaluator(truth, measures).evaluate(run)
    for name, trec_name in names.items():
        expected = [trec[str(user)][trec_name] for user in result.users.tolist()]
        np.testing.assert_allclose(result.values[name], expected, rtol=0, atol=1e-9)


# --- lists ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["mf", "lightgcn", "popularity", "itemknn", "ease"])
def test_recommend_equals_argsort_for_saved_runs_and_single_users(model, tmp_path):
    options = {"epochs": 2, "dimensions": 8} if model in ("mf", "lightgcn") else {}
    recommender = Recommender(recipe="none", model=model, **options).fit(random_split(6).train)
    loaded = Recommender.load(recommender.save(tmp_path / "run"))
    fitted = recommender.fitted
    users = fitted.user_ids.ids(range(len(fitted.user_ids))).tolist()
    scores = score_table(fitted.scorer, len(users))
    scores[fitted.histories.toarray() > 0] = -np.inf
    order = np.argsort(-scores, axis=1, kind="stable")[:, :7]
    items, values = recommender.recommend(users, k=7)
    for row, user in enumerate(users):
        left = np.isfinite(scores[row, order[row]])
        best = fitted.item_ids.ids(order[row][left]).tolist()
        assert [item for item in items[row].tolist() if item is not None] == best
        assert values[row][left].tobytes() == scores[row, order[row][left]].tobytes()
        alone = recommender.recommend([user], k=7)
        assert alone[0].tolist() == items[row : row + 1].tolist()
        assert alone[1].tobytes() == values[row : row + 1].tobytes()
    again = loaded.recommend(users, k=7)
    assert again[0].tolist() == items.tolist()
    assert again[1].tobytes() == values.tobytes()


# --- ids ------------------------------------------------------------------------------------------


def test_write_split_and_read_split_preserve_ids():
    """`make faults` runs a thousand tables."""
    check_ids(([(a, b) for a, b in zip(HOSTILE, reversed(HOSTILE), strict=True)], "csv"))
    assert count_outcomes(check_ids, ID_TABLES, 120)["same"] >= 120


def test_read_interactions_rejects_empty_ids(tmp_path):
    path = tmp_path / "e.csv"
    path.write_text('user,item\n"",a\nb,c\n')
    reading = read_interactions(path, bad_rows="skip")
    assert (reading.rows_read, reading.rows_rejected) == (1, 1)


def test_write_recommendations_preserves_unusual_ids(tmp_path):
    path, lists = tmp_path / "events.csv", tmp_path / "lists.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)
        writer.writerows([("user", "item"), *((one, one) for one in HOSTILE)])
    recommender = Recommender(model="popularity").fit(read_interactions(path).interactions)
    loaded = Recommender.load(recommender.save(tmp_path / "run"))
    write_recommendations(loaded.fitted, lists, ListRequest(len(HOSTILE)))
    with lists.open(newline="", encoding="utf-8") as file:
        rows = {(row["user"], row["item"]) for row in csv.DictReader(file)}
    assert rows == {(a, b) for a in HOSTILE for b in HOSTILE if a != b}
