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
from llpauc.research import collection, leaderboard
from tests.datasets import random_split, real

QUICK = {"model": "mf", "loss": "bpr", "epochs": 3, "dimensions": 4, "negatives": 5}


def two_parts(seed: int = 1) -> Split:
    split = random_split(seed)
    return Split(split.train.followed_by(split.valid), None, split.test)


def test_choosing_reads_no_test_part_and_testing_refits_on_everything():
    split = two_parts()
    blind = replace(split, test=None)
    asked = {"history": "all", "seed": 3, **QUICK}
    chosen = leaderboard.run_recommender(lambda name: blind, "d", test=False, **asked)
    assert set(chosen) == {"seconds", "valid"}
    tested = leaderboard.run_recommender(lambda name: split, "d", test=True, **asked)
    popular = leaderboard.run_recommender(
        lambda name: split, "d", history="all", test=True, seed=0, model="popularity"
    )
    by_hand = evaluate(Popularity(split.train), split).summary()  # of all events, held out or not
    assert popular["test"]["all"] == by_hand["all"]
    assert tested["test"]["all"]["users"] == by_hand["all"]["users"]


def test_learning_from_train_leaves_validation_out():
    split = random_split(1)
    for history, known in (("train", split.train), ("all", split.train.followed_by(split.valid))):
        found = leaderboard.run_recommender(
            lambda name: split, "d", history=history, test=True, seed=0, model="popularity"
        )
        expected = evaluate(Popularity(known), split).summary()
        assert found["test"]["all"] == expected["all"]


def test_every_method_is_a_recommender(monkeypatch):
    split = two_parts()
    for name, settings in leaderboard._methods(split).items():
        assert 1 <= len(settings) <= 4, name
        for setting in settings:
            Recommender(**setting)


def test_a_model_that_refuses_the_data_says_so(monkeypatch):
    split = two_parts()

    def refuse(*_, **__):
        raise InputError("too large")

    monkeypatch.setattr(Recommender, "fit", refuse)
    found = leaderboard.run_recommender(
        lambda name: split, "d", history="all", test=True, seed=0, model="ease"
    )
    assert found == {"refused": "too large"}
    row = leaderboard._row("d", "all", "ease", {}, [{}], [found])
    assert (row["recall@20"], row["chosen"]) == ("-", "too large")


def test_the_command_makes_the_table(tmp_path, monkeypatch, capsys):
    write_split(two_parts(), tmp_path / "data" / "amazon-health")
    small = {
        "popularity": [{"model": "popularity"}],
        "ease": [{"model": "ease", "regularization": w} for w in (1.0, 100.0)],
        leaderboard.OURS: [QUICK],
    }
    monkeypatch.setattr(leaderboard, "_methods", lambda split: small)
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
    """Recall of the written lists, counted by hand, is that of the first seed's cell."""
    with path.open(newline="") as file:
        lists: dict[str, list[str]] = {}
        for row in csv.DictReader(file, delimiter="\t"):
            lists.setdefault(row["user"], []).append(row["item"])
    wanted: dict[str, set[str]] = {}
    with (folder / "data" / "amazon-health" / "test.tsv").open(newline="") as file:
        for user, item, *_ in list(csv.reader(file, delimiter="\t"))[1:]:
            wanted.setdefault(user, set()).add(item)
    assert set(lists) == set(wanted)
    recall = np.mean([len(set(lists[u]) & items) / len(items) for u, items in wanted.items()])
    cells = [json.loads(p.read_text()) for p in (folder / "out" / "cells").glob("[!.]*.json")]
    (told,) = [
        cell["result"]["test"]["all"]["recall@20"]
        for cell in cells
        if cell["asked"]["options"]["model"] == "mf"
        and cell["asked"]["options"]["test"]
        and cell["asked"]["options"]["seed"] == 1
    ]
    assert recall == pytest.approx(told)


def test_movielens_is_a_core_with_a_fifth_for_the_test():
    split = collection.load("ml-100k", real("ml-100k").parent)
    assert (split.n_users, split.n_items) == (939, 1016)  # as in the figures to beat
    assert split.valid is None
    share = len(split.test) / (len(split.train) + len(split.test))
    assert share == pytest.approx(0.2, abs=0.01)
    assert (np.bincount(split.train.users) > 0).all()


def test_a_set_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match="gowalla: there is no folder"):
        collection.load("gowalla", tmp_path)
    assert collection.available(tmp_path) == ()
