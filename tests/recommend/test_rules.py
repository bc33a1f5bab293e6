"""Rules for lists: conditions on the catalogue and limits per group, in Python, CLI and server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest

from llpauc.cli.commands import main
from llpauc.data.interactions import Interactions
from llpauc.errors import InputError
from llpauc.evaluation.ranking import rank
from llpauc.evaluation.scorer import Constant
from llpauc.recommend import Recommender
from llpauc.recommend.rules import GroupLimit
from tests.server import client_of

N_ITEMS = 40
CATEGORIES = ["shoes", "bags", "hats", None]


def catalogue() -> pa.Table:
    """Items in the order of their popularity; most are shoes."""
    category = [CATEGORIES[0 if n < 25 else n % 4] for n in range(N_ITEMS)]
    ids = [f"i{n:02}" for n in range(N_ITEMS)]
    stock = [n % 2 == 0 for n in range(N_ITEMS)]
    return pa.table({"item_id": ids, "category": category, "in_stock": stock})


@pytest.fixture(scope="module")
def recommender() -> Recommender:
    pairs = [(f"u{u}", f"i{i:02}") for i in range(N_ITEMS) for u in range(50 - i)]
    events = Interactions.of(*zip(*pairs, strict=True))
    return Recommender(model="popularity").fit(events, items=catalogue())


@pytest.fixture(scope="module")
def run(recommender: Recommender, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recommender.save(tmp_path_factory.mktemp("rules") / "run")


def test_group_limit_apply_is_the_greedy_list() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        n_items, k, at_most = int(rng.integers(5, 60)), int(rng.integers(1, 12)), 2
        groups = rng.integers(-1, 4, n_items)
        scores = rng.permutation(n_items).astype(np.float32)

        def ranked(some: Any, width: int, scores: Any = scores) -> Any:
            found = rank(Constant(scores), np.zeros(len(some), np.int32), width)
            return found.items, found.scores

        items, values = GroupLimit(at_most, groups).apply(ranked, 3, k)
        expected, counts = [], dict.fromkeys(range(4), 0)
        for item in np.argsort(-scores).tolist():
            group = int(groups[item])
            if group >= 0 and counts[group] == at_most:
                continue
            if group >= 0:
                counts[group] += 1
            expected.append(item)
        expected = expected[:k]
        assert items[2, : len(expected)].tolist() == expected
        assert (items[2, len(expected) :] == -1).all()
        assert values[2, : len(expected)].tolist() == scores[expected].tolist()


def test_recommend_where_and_at_most_give_k_items(recommender: Recommender) -> None:
    rows = {row["item_id"]: row for row in catalogue().to_pylist()}
    lists = [
        recommender.recommend(["new", "u0"], 8, where="in_stock", exclude_seen=False)[0],
        recommender.fold_in(["i01"], 8, where="in_stock")[0][None],
        recommender.recommend(["u45"], 6, where="in_stock", at_most=3, per="category")[0],
    ]
    for items in (row for block in lists for row in block.tolist()):
        assert None not in items
        assert all(rows[item]["in_stock"] for item in items)
    categories = [rows[item]["category"] for item in lists[-1][0]]
    assert max(categories.count(name) for name in ("shoes", "bags", "hats")) == 3
    denied = recommender.recommend(["u45"], 2, where="in_stock", deny=["i06"], allow=["i06", "i08"])
    assert denied[0].tolist() == [["i08", None]]
    with pytest.raises(InputError, match="belong together"):
        recommender.recommend(["u0"], at_most=3)
    with pytest.raises(InputError, match="unknown column 'colour'; choose one of: item_id"):
        recommender.recommend(["u0"], at_most=3, per="colour")
    small = Recommender(model="popularity").fit(Interactions.of(["a", "b"], ["x", "y"]))
    with pytest.raises(InputError, match="there is no catalogue"):
        small.recommend(["a"], where="x")


def test_save_keeps_the_catalogue(recommender: Recommender, run: Path) -> None:
    loaded = Recommender.load(run)
    asked: Any = {"where": "category = 'hats' or in_stock", "at_most": 1, "per": "category"}
    assert (
        loaded.recommend(["u45"], 3, **asked)[0] == recommender.recommend(["u45"], 3, **asked)[0]
    ).all()
    new = catalogue().set_column(2, "in_stock", pa.array([n == 39 for n in range(N_ITEMS)]))
    assert loaded.set_items(new).recommend(["u45"], 1, where="in_stock")[0].tolist() == [["i39"]]


def test_recommend_command_where_and_at_most(
    run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    asked = ["--where", "in_stock", "--at-most", "2", "--per", "category", "-k", "4"]
    assert main(["recommend", str(run), "--users", "u45", *asked, "--json"]) == 0
    items = [one["item"] for one in json.loads(capfd.readouterr().out)[0]["items"]]
    assert items == ["i06", "i08", "i26", "i30"]
    out = tmp_path / "lists.csv"
    assert main(["recommend", str(run), "--users", "u45,u49", *asked, "--out", str(out)]) == 0
    assert pyarrow.csv.read_csv(out)["item"].to_pylist()[:4] == items
    other = tmp_path / "other.csv"
    pyarrow.csv.write_csv(catalogue().slice(30), other)
    assert (
        main(
            [
                "recommend",
                str(run),
                "--users",
                "u49",
                "--items",
                str(other),
                "--where",
                "in_stock",
                "--json",
            ]
        )
        == 0
    )
    found = json.loads(capfd.readouterr().out)
    assert {one["item"] for one in found[-1]["items"]} == {f"i{n}" for n in range(30, 40, 2)}
    assert main(["recommend", str(run), "--where", "in_stok"]) == 2
    assert "did you mean in_stock?" in capfd.readouterr().err


def test_serve_where_and_at_most(run: Path) -> None:
    with client_of(run) as client:
        body: Any = {"user": "u45", "k": 4, "where": "in_stock", "at_most": 2, "per": "category"}
        answer = client.post("/recommend", json=body)
        assert answer.status_code == 200
        items = [one["item"] for one in answer.json()["lists"][0]["items"]]
        assert len(items) == 4
        assert all(int(item[1:]) % 2 == 0 for item in items)
        new = client.post("/recommend", json={**body, "user": None, "items": ["i02"]}).json()
        assert len(new["lists"][0]["items"]) == 4
        for wrong in (
            {"where": "in_stok"},
            {"where": "read_text('/etc/passwd') = ''"},
            {"where": "true; select 1"},
            {"where": ""},
            {"where": 1},
            {"where": "x" * 5000},
            {"per": "nothing"},
            {"at_most": 0},
            {"per": None},
        ):
            refused = client.post("/recommend", json={**body, **wrong})
            assert refused.status_code == 422, wrong
            assert (
                "/etc/" not in refused.json()["error"] or "not allowed" in refused.json()["error"]
            )
