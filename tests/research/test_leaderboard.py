"""The leaderboard: choices on validation, refits, and what a method may learn from."""

from __future__ import annotations

import csv
import json
from dataclasses import replace

import numpy as np
import pytest

from llpauc.cli import main
from llpauc.data.interactions import Split
from llpauc.data.writers import write_split
from llpauc.errors import InputError
from llpauc.evaluation.full_ranking import evaluate
from llpauc.models import Popularity
from llpauc.recommend import Recommender
from llpauc.research import datasets, leaderboard
from llpauc.research.trainings import METRICS, run_recommender
from tests.datasets import random_split, real

QUICK = {"model": "mf", "loss": "bpr", "epochs": 3, "dimensions": 4, "negatives": 5}


def two_parts(seed: int = 1) -> Split:
    split = random_split(seed)
    return Split(split.train.followed_by(split.valid), None, split.test)


def test_run_recommender_validation_needs_no_test_part_and_refit_uses_all_events():
    split = two_parts()
    blind = replace(split, test=None)
    options = {"seed": 3, **QUICK}
    chosen = run_recommender(lambda name: blind, "d", test=False, **options)
    assert set(chosen) == {"seconds", "valid", "best_epoch"}
    tested = run_recommender(lambda name: split, "d", test=True, refit=True, **options)
    popular = run_recommender(
        lambda name: split, "d", refit=True, test=True, seed=0, model="popularity"
    )
    by_hand = evaluate(Popularity.scorer_of(split.train), split, metrics=METRICS).summary()
    assert popular["test"]["all"] == by_hand["all"]
    assert tested["test"]["all"]["users"] == by_hand["all"]["users"]


def test_run_recommender_without_refit_learns_from_train_only():
    split = random_split(1)
    for refit, known in ((False, split.train), (True, split.train.followed_by(split.valid))):
        found = run_recommender(
            lambda name: split, "d", refit=refit, test=True, seed=0, model="popularity"
        )
        expected = evaluate(Popularity.scorer_of(known), split, metrics=METRICS).summary()
        assert found["test"]["all"] == expected["all"]


def test_methods_of_are_valid_recommenders():
    split = two_parts()
    for name, settings in leaderboard.methods_of(split).items():
        assert 1 <= len(settings) <= 4, name
        for setting in settings:
            Recommender(recipe="none", **setting)


def test_result_columns_of_a_refused_model_show_the_message(monkeypatch):
    split = two_parts()

    def refuse(*_, **__):
        raise InputError("too large")

    monkeypatch.setattr(Recommender, "fit", refuse)
    found = run_recommender(lambda name: split, "d", refit=True, test=True, seed=0, model="ease")
    assert found == {"refused": "too large"}
    row = leaderboard.result_columns({}, [{}], [found])
    assert (row["recall@20"], row["chosen"]) == ("-", "too large")


def test_leaderboard_command_writes_table_and_lists(tmp_path, monkeypatch, capsys):
    write_split(two_parts(), tmp_path / "data" / "amazon-health")
    small = {
        "popularity": [{"model": "popularity"}],
        "ease": [{"model": "ease", "regularization": w} for w in (1.0, 100.0)],
        leaderboard.OURS: [QUICK],
    }
    monkeypatch.setattr(leaderboard, "methods_of", lambda split: small)
    words = ["leaderboard", "--data", str(tmp_path / "data"), "--out", str(tmp_path / "out"),
             "--workers", "1", "--seeds", "1,2", "--lists", str(tmp_path / "lists")]  # fmt: skip
    assert main(words) == 0, capsys.readouterr().err
    text = (tmp_path / "out" / "leaderboard.md").read_text()
    assert "amazon-health, learning from all" in text
    assert "To beat: EASE, 0.1860 / 0.1468." in text
    with (tmp_path / "out" / "leaderboard.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["method"] for row in rows] == ["popularity", "ease", leaderboard.OURS]
    assert rows[1]["chosen"].startswith("regularization")
    assert "±" in rows[2]["recall@20"]
    _check_lists(tmp_path / "lists" / "amazon-health-all.tsv", tmp_path)
    assert main([*words, "--methods", "ease"]) == 0
    assert (tmp_path / "out" / "leaderboard.csv").read_text().count("\n") == 2
    assert main([*words, "--methods", "magic"]) == 2
    assert "magic" in capsys.readouterr().err
    assert main([*words, "--only", "nothing"]) == 2
    assert "nothing" in capsys.readouterr().err


def _check_lists(path, folder):
    """Recall of the written lists, computed by loops, equals that of the first seed's cell."""
    with path.open(newline="") as file:
        lists: dict[str, list[str]] = {}
        for row in csv.DictReader(file, delimiter="\t"):
            lists.setdefault(row["user"], []).append(row["item"])
    relevant: dict[str, set[str]] = {}
    with (folder / "data" / "amazon-health" / "test.tsv").open(newline="") as file:
        for user, item, *_ in list(csv.reader(file, delimiter="\t"))[1:]:
            relevant.setdefault(user, set()).add(item)
    assert set(lists) == set(relevant)
    recall = np.mean([len(set(lists[u]) & items) / len(items) for u, items in relevant.items()])
    cells = [json.loads(p.read_text()) for p in (folder / "out" / "cells").glob("[!.]*.json")]
    (saved,) = [
        cell["result"]["test"]["all"]["recall@20"]
        for cell in cells
        if cell["cell"]["options"]["model"] == "mf"
        and cell["cell"]["options"]["test"]
        and cell["cell"]["options"]["seed"] == 1
    ]
    assert recall == pytest.approx(saved)


def test_load_movielens_core_has_a_fifth_in_test():
    split = datasets.load("ml-100k", real("ml-100k").parent)
    assert (split.n_users, split.n_items) == (939, 1016)  # as in the values to beat
    assert split.valid is None
    fraction = len(split.test) / (len(split.train) + len(split.test))
    assert fraction == pytest.approx(0.2, abs=0.01)
    assert (np.bincount(split.train.users) > 0).all()


def test_load_missing_folder_is_named(tmp_path):
    with pytest.raises(InputError, match=r"gowalla: .* does not exist"):
        datasets.load("gowalla", tmp_path)
    assert datasets.available(tmp_path) == ()
