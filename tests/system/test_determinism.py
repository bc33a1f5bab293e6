"""Same seed, same bits, in another process too; figures and lists as others compute them.

Beside it: tests/metrics/test_topk.py (1,000 rankings against trec_eval),
tests/storage/test_run_folder.py
(artefacts kept of every format), tests/recommend/test_recommender.py (saved = in memory, one = all
at once).
"""

from __future__ import annotations

import csv
import os
import subprocess
import sys

import numpy as np
import pytest
import pytrec_eval

from llpauc.data.interactions import Split
from llpauc.data.readers import read_interactions
from llpauc.evaluation.full_ranking import evaluate
from llpauc.recommend import Recommender
from llpauc.recommend.lists import ListRequest, write_recommendations
from tests.datasets import ROOT, random_split, score_table
from tests.system.fuzzing import HOSTILE, ID_TABLES, check_ids, try_many

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
    one = Recommender(model=model, loss=loss, epochs=3, dimensions=6, batch_size=32, negatives=5)
    one.fit(events)
    one.save(folder / model)
    write_recommendations(one.fitted, folder / f"{model}.csv", ListRequest(5))
for model in ("popularity", "itemknn", "ease"):
    Recommender(model=model).fit(events).save(folder / model)
for path in sorted(folder.rglob("*")):
    if path.is_file() and path.name not in ("timings.json", "environment.json", "manifest.json"):
        made[str(path.relative_to(folder))] = hashlib.sha256(path.read_bytes()).hexdigest()
print(json.dumps(made))
"""


@pytest.mark.slow
def test_same_seed_same_bits_in_another_process_and_under_another_hash_seed(tmp_path):
    """Weights, ids, metrics, settings and lists, of six models."""
    told = []
    for seed in ("0", "4242"):
        folder = tmp_path / seed
        folder.mkdir()
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        words = [sys.executable, "-c", MAKE, str(folder)]
        told.append(subprocess.check_output(words, cwd=ROOT, env=environment, text=True))
    assert told[0].count("tensors.safetensors") == 6
    assert told[0].count(".csv") == 3
    assert told[0] == told[1]


# --- metrics --------------------------------------------------------------------------------------


def test_a_whole_evaluation_is_that_of_trec_eval():
    """From scores and events to means, not only the arithmetic of given hits."""
    split = random_split(9, n_users=300, n_items=120, events=9000)
    fitted = Recommender(model="ease").fit(Split(split.train)).fitted
    names = {"recall@20": "recall_20", "ndcg@10": "ndcg_cut_10", "precision@5": "P_5",
             "map@20": "map_cut_20", "hit@10": "success_10"}  # fmt: skip
    ours = evaluate(fitted.scorer, split, metrics=list(names), mask="seen")
    scores = score_table(fitted.scorer, split.n_users)
    seen = split.train.matrix.maximum(split.valid.matrix).toarray() > 0
    truth, run = {}, {}
    targets = split.test.matrix.toarray() > 0
    for user in ours.users.tolist():
        truth[str(user)] = {str(item): 1 for item in np.flatnonzero(targets[user]).tolist()}
        own = np.where(seen[user], -np.inf, scores[user])
        order = np.lexsort((np.arange(len(own)), -own))[: (~seen[user]).sum()]
        run[str(user)] = {str(item): float(len(order) - at) for at, item in enumerate(order)}
    wanted = {".".join(name.rsplit("_", 1)) for name in names.values()}
    theirs = pytrec_eval.RelevanceEvaluator(truth, wanted).evaluate(run)
    for name, their_name in names.items():
        expected = [theirs[str(user)][their_name] for user in ours.users.tolist()]
        np.testing.assert_allclose(ours.values[name], expected, rtol=0, atol=1e-9)


# --- lists ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["mf", "lightgcn", "popularity", "itemknn", "ease"])
def test_lists_are_an_argsort_saved_or_not_alone_or_together(model, tmp_path):
    own = {"epochs": 2, "dimensions": 8} if model in ("mf", "lightgcn") else {}
    made = Recommender(model=model, **own).fit(random_split(6).train)
    loaded = Recommender.load(made.save(tmp_path / "run"))
    fitted = made.fitted
    users = fitted.user_ids.ids(range(len(fitted.user_ids))).tolist()
    scores = score_table(fitted.scorer, len(users))
    scores[fitted.histories.toarray() > 0] = -np.inf
    order = np.argsort(-scores, axis=1, kind="stable")[:, :7]
    items, values = made.recommend(users, k=7)
    for row, user in enumerate(users):
        left = np.isfinite(scores[row, order[row]])
        best = fitted.item_ids.ids(order[row][left]).tolist()
        assert [item for item in items[row].tolist() if item is not None] == best
        assert values[row][left].tobytes() == scores[row, order[row][left]].tobytes()
        alone = made.recommend([user], k=7)
        assert alone[0].tolist() == items[row : row + 1].tolist()
        assert alone[1].tobytes() == values[row : row + 1].tobytes()
    again = loaded.recommend(users, k=7)
    assert again[0].tolist() == items.tolist()
    assert again[1].tobytes() == values.tobytes()


# --- ids ------------------------------------------------------------------------------------------


def test_tables_of_any_ids_come_out_as_they_went_in():
    """`make faults` has a thousand of them."""
    check_ids(([(a, b) for a, b in zip(HOSTILE, reversed(HOSTILE), strict=True)], "csv"))
    assert try_many(check_ids, ID_TABLES, 120)["same"] >= 120


def test_empty_ids_are_refused_and_not_made_up(tmp_path):
    path = tmp_path / "e.csv"
    path.write_text('user,item\n"",a\nb,c\n')
    reading = read_interactions(path, bad_rows="skip")
    assert (reading.rows_read, reading.rows_rejected) == (1, 1)


def test_hostile_ids_from_a_file_through_a_run_to_a_list(tmp_path):
    path, lists = tmp_path / "events.csv", tmp_path / "lists.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)
        writer.writerows([("user", "item"), *((one, one) for one in HOSTILE)])
    made = Recommender(model="popularity").fit(read_interactions(path).interactions)
    loaded = Recommender.load(made.save(tmp_path / "run"))
    write_recommendations(loaded.fitted, lists, ListRequest(len(HOSTILE)))
    with lists.open(newline="", encoding="utf-8") as file:
        rows = {(row["user"], row["item"]) for row in csv.DictReader(file)}
    assert rows == {(a, b) for a in HOSTILE for b in HOSTILE if a != b}
