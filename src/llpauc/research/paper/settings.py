"""The paper's protocol, and what it leaves to be chosen.

The paper tunes every loss on validation; it prints the grid of alpha and beta, and neither the
rivals' grids nor their choices. Ours are small; OPAUC has every beta of LLPAUC. The first seed's
validation figure chooses four finalists of a larger grid, the mean over the seeds the one that is
used: the first seed alone would choose by luck (its best is often the others' average). The test
part has no say in it.
"""

from __future__ import annotations

from typing import Any

from llpauc.recommend.recipes import PAPER_GRID, PAPER_PROTOCOL

Setting = dict[str, Any]

SEEDS = (100, 200, 300)

PAPER: Setting = {**PAPER_PROTOCOL, "epochs": 100}

# A LightGCN step costs the same at batch 128 as at 2048, where an epoch takes 4 s and not 60. The
# rate goes with the batch.
BACKBONES: dict[str, Setting] = {
    "mf": {"model": "mf"},
    "lightgcn": {"model": "lightgcn", "layers": 2, "batch_size": 2048, "lr": 1e-2},
}

# Chosen by the paper for its data sets.
ALPHA_BETA: dict[str, Setting] = {
    "adressa": {"alpha": 0.7, "beta": 0.1},
    "yelp": {"alpha": 0.9, "beta": 0.01},
    "amazon-book": {"alpha": 0.9, "beta": 0.01},
}

ALPHAS, BETAS = PAPER_GRID["alpha"], PAPER_GRID["beta"]

GRIDS: dict[str, list[Setting]] = {
    "auc": [{}],
    "bpr": [{}],
    "bce": [{}],
    "sce": [{}],
    "lambdarank": [{}],
    "ndcg_loss1": [{}],
    "ndcg_loss2": [{}],
    "arp_loss2": [{}],
    "ccl": [{"margin": m, "neg_weight": w} for m in (0.4, 0.8) for w in (10.0, 100.0)],
    "dns": [{"hardest": m} for m in (2, 5, 20)],
    "softmax_v": [{"rho": rho} for rho in (0.1, 1.0, 10.0)],
    "opauc": [{"beta": beta} for beta in BETAS],
    "tce": [{"max_dropped": share} for share in (0.05, 0.1, 0.2)],
    "rce": [{"power": power} for power in (0.1, 0.2, 0.5)],
    "llpauc": [{"alpha": a, "beta": b} for a in ALPHAS for b in BETAS],
}

EASE_GRID: list[Setting] = [{"regularization": weight} for weight in (100.0, 200.0, 500.0, 2000.0)]


def printed_setting(data: str) -> Setting | None:
    """The paper's alpha and beta for a data set such as adressa-clean, where it prints them."""
    return ALPHA_BETA.get(data.rsplit("-", 1)[0])
