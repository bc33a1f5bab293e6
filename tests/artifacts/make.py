"""Write run folders of the current format: python tests/artifacts/make.py format-3

Run it once for each new format. The saved folders are never written again: they test that runs of
earlier versions still load.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from llpauc.data.interactions import Interactions
from llpauc.recommend import Recommender

HERE = Path(__file__).resolve().parent
QUICK = {
    "epochs": 3, "dimensions": 4, "negatives": 3, "batch_size": 8, "init_scale": 0.3, "lr": 0.05
}  # fmt: skip
RUNS = {
    "mf": QUICK | {"item_bias": True},
    "lightgcn": QUICK | {"loss": "bpr"},
    "ease": {"regularization": 20.0},
}
K = 4
HISTORY = [100, 103]


def make(prefix: str) -> None:
    rng = np.random.default_rng(11)
    drawn = zip(rng.integers(0, 9, 55).tolist(), rng.integers(0, 12, 55).tolist(), strict=True)
    pairs = sorted(set(drawn))
    data = Interactions.of([f"user {u} ø" for u, _ in pairs], [100 + i for _, i in pairs])
    users = [*(f"user {u} ø" for u in range(9)), "new user"]
    for model, params in RUNS.items():
        recommender = Recommender(recipe="none", model=model, **params).fit(data)
        folder = HERE / f"{prefix}-{model}"
        folder.mkdir()
        test = {model: {"all": {"users": 9, "ndcg@20": 0.25}}}
        recommender.save(folder / "run", data="events.csv", test=test)
        items, scores = recommender.recommend(users, k=K)
        new_items, new_scores = recommender.fold_in(HISTORY, k=K)
        expected = {
            "users": users, "items": items.tolist(), "scores": scores.tolist(),
            "fold_in": {"has": HISTORY, "items": new_items.tolist(), "scores": new_scores.tolist()},
        }  # fmt: skip
        text = json.dumps(expected, ensure_ascii=False).replace("], ", "],\n")
        (folder / "expected.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    make(sys.argv[1])
