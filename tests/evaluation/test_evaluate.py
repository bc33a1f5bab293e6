"""`evaluate` against known values on real data, a naive loop, and a second program."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pyarrow.parquet
import pytest

from llpauc.data.readers import read_split
from llpauc.errors import InputError
from llpauc.evaluation.full_ranking import MASKS, evaluate, write_lists, write_per_user
from llpauc.evaluation.scorer import FactorScorer
from llpauc.metrics import llpauc_score
from llpauc.models.registry import untrained_models
from tests.datasets import ROOT, random_split, real, score_table, scorer_of


def naive(scores, split, on, masked_pairs, k=5):
    """Recall and NDCG with Python sets, a user at a time."""
    targets = {}
    for u, i in zip(split.parts[on].users.tolist(), split.parts[on].items.tolist(), strict=True):
        targets.setdefault(u, set()).add(i)
    recall, ndcg = {}, {}
    for u, expected in targets.items():
        order = sorted(range(split.n_items), key=lambda i: (-scores[u, i], i))
        ranked = [i for i in order if (u, i) not in masked_pairs][:k]
        recall[u] = sum(i in expected for i in ranked) / len(expected)
        gain = sum(1 / math.log2(r + 2) for r, i in enumerate(ranked) if i in expected)
        ndcg[u] = gain / sum(1 / math.log2(r + 2) for r in range(min(k, len(expected))))
    return recall, ndcg


@pytest.mark.parametrize("on", ["valid", "test"])
@pytest.mark.parametrize("mask", list(MASKS))
@pytest.mark.parametrize("seed", [0, 1])
def test_evaluate_equals_a_naive_loop_under_every_mask(seed, mask, on):
    split = random_split(seed)
    rng = np.random.default_rng(seed)
    scorer = FactorScorer(
        rng.standard_normal((split.n_users, 4)), rng.standard_normal((split.n_items, 4))
    )
    pairs = {name: set(zip(p.users.tolist(), p.items.tolist(), strict=True))
             for name, p in split.parts.items()}  # fmt: skip
    seen = pairs["train"] | (pairs["valid"] if on == "test" else set())
    masked = {"seen": seen, "train": pairs["train"], "paper": seen - pairs[on], "none": set()}[mask]
    recall, ndcg = naive(score_table(scorer, split.n_users), split, on, masked)
    got = evaluate(scorer, split, on=on, mask=mask, metrics=["recall@5", "ndcg@5"])
    assert got.users.tolist() == sorted(recall)
    assert got.n_without_targets == split.n_users - len(recall)
    np.testing.assert_allclose(got.values["recall@5"], [recall[u] for u in got.users], rtol=1e-12)
    np.testing.assert_allclose(got.values["ndcg@5"], [ndcg[u] for u in got.users], rtol=1e-12)


def test_evaluate_partial_auc_uses_candidates_only():
    split = random_split(3)
    scorer = scorer_of("ease", split.train, regularization=5.0)
    got = evaluate(scorer, split, metrics=["llpauc(0.5,0.2)", "auc"])
    scores = score_table(scorer, split.n_users)
    seen = split.train.matrix.maximum(split.valid.matrix).toarray() > 0
    targets = split.test.matrix.toarray() > 0
    for user, value in zip(got.users, got.values["llpauc(0.5,0.2)"], strict=True):
        free = ~seen[user]
        if not targets[user, free].any():
            assert np.isnan(value)
            continue
        expected = llpauc_score(targets[user, free], scores[user, free], alpha=0.5, beta=0.2)
        assert value == pytest.approx(expected, abs=1e-12)


def test_evaluate_warm_and_cold_users_make_up_all():
    split = random_split(2)
    got = evaluate(scorer_of("popularity", split.train), split)
    summary = got.summary()
    assert summary["warm"]["users"] + summary["cold"]["users"] == summary["all"]["users"]
    assert summary["cold"]["users"] > 0
    trained = np.unique(split.train.users)
    np.testing.assert_array_equal(got.warm, np.isin(got.users, trained))
    mixed = sum(summary[g]["users"] * summary[g]["recall@20"] for g in ("warm", "cold"))
    assert mixed / summary["all"]["users"] == pytest.approx(summary["all"]["recall@20"])


def test_evaluate_result_is_independent_of_memory_and_threads():
    split = random_split(4, n_users=300, n_items=500, events=6000)
    scorer = scorer_of("ease", split.train, regularization=5.0)
    metrics = ["recall@20", "ndcg@20", "map@50", "auc", "opauc(0.1)", "llpauc(0.7,0.1)"]
    one = evaluate(scorer, split, metrics=metrics, threads=1, memory_mb=1)
    two = evaluate(scorer, split, metrics=metrics, threads=4, memory_mb=1000)
    for name in one.values:
        assert one.values[name].tobytes() == two.values[name].tobytes()


@pytest.mark.parametrize(
    ("data", "model", "parameters", "recall", "ndcg"),
    [
        ("adressa_clean", "popularity", {}, 0.3282, 0.1852),
        ("adressa_noise", "popularity", {}, 0.3216, 0.1822),
        ("amazon-health", "ease", {"regularization": 100.0}, 0.1836, 0.1458),
        ("amazon-health", "ease", {"regularization": 200.0}, 0.1860, 0.1468),
    ],
)
def test_evaluate_reproduces_known_values_on_real_data(data, model, parameters, recall, ndcg):
    split = read_split(real(data))
    got = evaluate(scorer_of(model, split.train, **parameters), split)
    assert round(got.mean("recall@20"), 4) == recall
    assert round(got.mean("ndcg@20"), 4) == ndcg


def test_write_lists_scored_by_a_second_program(tmp_path):
    folder = real("adressa_clean")
    second = ROOT.parent / "shared" / "tools" / "score.py"
    if not second.exists():
        pytest.skip("the second opinion, tools/score.py, is not beside the checkout")
    split = read_split(folder)
    got = evaluate(scorer_of("popularity", split.train), split)
    write_lists({"popularity": got}, split.item_ids, tmp_path / "lists.tsv")
    files = {
        part: str(folder / f"adressa_clean.{part}.inter") for part in ("train", "valid", "test")
    }
    message = subprocess.run(
        [sys.executable, second, tmp_path / "lists.tsv", files["test"], "--seen", files["train"],
         files["valid"]], capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert f"Recall@20 {got.mean('recall@20'):.4f}  NDCG@20 {got.mean('ndcg@20'):.4f}" in message


def test_write_per_user_to_parquet_with_ids(tmp_path):
    split = random_split(5)
    results = {name: evaluate(scorer_of(name, split.train), split) for name in untrained_models()}
    write_per_user(results, tmp_path / "users.parquet")
    table = pyarrow.parquet.read_table(tmp_path / "users.parquet").to_pylist()
    assert len(table) == sum(len(r.users) for r in results.values())
    row = next(r for r in table if r["model"] == "ease" and r["user_id"] == "u3")
    place = results["ease"].users.tolist().index(split.user_ids.indices(["u3"])[0])
    assert row["recall@20"] == results["ease"].values["recall@20"][place]
    assert row["warm"] is False
    assert [p.name for p in tmp_path.iterdir()] == ["users.parquet"]


def test_evaluate_k_above_the_number_of_items():
    split = random_split(6)
    got = evaluate(
        scorer_of("popularity", split.train), split, metrics=["recall@5000"], mask="none"
    )
    np.testing.assert_array_equal(got.values["recall@5000"], 1.0)


def test_evaluate_bad_input_raises_in_one_line():
    split = random_split(7)
    scorer = scorer_of("popularity", split.train)
    for call, message in [
        ({"on": "valid", "metrics": []}, "no metric given"),
        ({"metrics": ["recal@20"]}, "unknown metric 'recal@20'"),
        ({"mask": "some"}, "unknown mask 'some'; choose one of: seen, train, paper, none"),
    ]:
        with pytest.raises(InputError, match=message):
            evaluate(scorer, split, **call)
    with pytest.raises(InputError, match="no valid part"):
        evaluate(scorer, type(split)(split.train, None, split.test), on="valid")
