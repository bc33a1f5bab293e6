"""Full-ranking evaluation of Gowalla's size against plain NumPy.

Rival: `scores = users @ items.T` in blocks, training items to -inf, a full `argsort` of every row,
hits by `np.isin`: what most evaluation scripts do. A check confirms that both agree.
"""

from __future__ import annotations

import json
import sys
import time
import tracemalloc

import numpy as np

from benchmarks.timing import interleaved
from llpauc.data.ids import IdMap
from llpauc.data.interactions import Interactions, Split
from llpauc.evaluation.full_ranking import evaluate
from llpauc.evaluation.scorer import FactorScorer

CAP_MB = 256


def random_data(n_users: int, n_items: int, width: int) -> tuple[FactorScorer, Split]:
    rng = np.random.default_rng(0)
    users = np.repeat(np.arange(n_users), rng.geometric(1 / 34, n_users) + 9)
    items = (n_items * rng.random(len(users)) ** 2).astype(np.int32)
    data = Interactions(users, items, IdMap.of(range(n_users)), IdMap.of(range(n_items)))
    tested = rng.random(len(data)) < 0.2
    vectors = [rng.standard_normal((n, width), dtype=np.float32) for n in (n_users, n_items)]
    return FactorScorer(*vectors), Split(data.take(~tested), None, data.take(tested))


def plain_numpy(scorer: FactorScorer, split: Split, users: np.ndarray, k: int = 20) -> np.ndarray:
    recall = []
    for start in range(0, len(users), 256):
        block = users[start : start + 256]
        scores = scorer.user_vectors[block] @ scorer.item_vectors.T
        for row, user in enumerate(block):
            scores[row, split.train.matrix[user].indices] = -np.inf
        order = np.argsort(-scores, axis=1)
        for row, user in enumerate(block):
            relevant = split.test.matrix[user].indices
            recall.append(np.isin(order[row, :k], relevant).sum() / len(relevant))
    return np.array(recall)


def run(quick: bool) -> dict[str, dict[str, object]]:
    scorer, split = random_data(*((3_000, 8_000, 64) if quick else (29_858, 40_988, 64)))
    evaluate(scorer, split, memory_mb=CAP_MB)  # compiles
    tracemalloc.start()
    got = evaluate(scorer, split, memory_mb=CAP_MB)
    peak = tracemalloc.get_traced_memory()[1] / 2**20
    tracemalloc.stop()
    sample = got.users[:: 10 if quick else 40]  # the rival sorts a part of the users
    same = np.isin(got.users, sample)
    rival = plain_numpy(scorer, split, sample)
    np.testing.assert_allclose(rival, got.values["recall@20"][same], atol=1e-9)
    times = interleaved(
        {
            "ours": lambda: evaluate(scorer, split, memory_mb=CAP_MB),
            "numpy": lambda: plain_numpy(scorer, split, sample),
        },
        3,
    )
    started = time.perf_counter()
    evaluate(scorer, split, metrics=["recall@20", "auc", "llpauc(0.7,0.1)"], memory_mb=CAP_MB)
    with_areas = time.perf_counter() - started
    ours, theirs = times["ours"] / len(got.users), times["numpy"] / len(sample)
    return {
        "evaluate_full_ranking": {
            "ratio": theirs / ours,
            "goal": 10.0,
            "seconds for all users": times["ours"],
            "seconds with AUC and LLPAUC": with_areas,
            "numpy seconds for all users": theirs * len(got.users),
            "users": len(got.users),
            "items": split.n_items,
            "memory cap in MB": CAP_MB,
            "peak of allocated MB": peak,
        }
    }


if __name__ == "__main__":
    json.dump(run("--quick" in sys.argv), sys.stdout, indent=2)
