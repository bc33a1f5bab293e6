"""The paper's Monte-Carlo study against the naive method: permute and sort lists of 51,000 items.

The rival draws a score for each item, sorts, and computes the same metrics from the sorted list
with NumPy (one cumulative sum per beta serves every alpha), for a small fraction of the rankings.
The seconds per ranking are compared. A check confirms that both give the same metrics.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

from benchmarks.timing import interleaved
from llpauc.research.simulation import (
    Design,
    metric_values,
    negatives_above,
    simulate,
    warm_up,
)

GOAL = 100.0


def measure_labels(labels: np.ndarray, design: Design) -> np.ndarray:
    """All metrics of one ranking, from the relevance by rank, ordered as `Design.column`."""
    ranks = np.flatnonzero(labels)
    above = ranks - np.arange(design.positives)
    lower, two_way = [], []
    for k_neg in design.k_neg:
        prefix = np.concatenate(([0], np.cumsum(np.maximum(0, k_neg - above))))
        lower.append(prefix[design.k_pos])
        two_way.append(prefix[-1] - prefix[design.positives - design.k_pos])
    hits = [np.count_nonzero(ranks < k) for k in design.ks]
    dcg = [design.gain[ranks[ranks < k]].sum() for k in design.ks]
    return np.concatenate((*lower, *two_way, hits, dcg)) * design.scale


def naive(design: Design, rng: np.random.Generator, rankings: int) -> None:
    """The rival's work per ranking; it is spared the correlation at the end."""
    relevant = np.arange(design.n_items) < design.positives
    for _ in range(rankings):
        measure_labels(relevant[np.argsort(rng.random(design.n_items))], design)


def check(design: Design) -> None:
    """Both methods give the same metrics for the same rankings."""
    ours = metric_values(design, 5, np.arange(len(design.scale)))
    for row, above in zip(ours, negatives_above(design, 5), strict=True):
        labels = np.zeros(design.n_items, bool)
        labels[above + np.arange(design.positives)] = True
        np.testing.assert_allclose(row, measure_labels(labels, design), atol=1e-12)


def run(quick: bool) -> dict[str, dict[str, Any]]:
    first_call = warm_up()
    design, rng = Design(), np.random.default_rng(0)
    check(design)
    rankings = 40 if quick else 200
    times = interleaved(
        {
            "ours": lambda: simulate(design),
            "one thread": lambda: simulate(design, threads=1),
            "naive": lambda: naive(design, rng, rankings),
        },
        3 if quick else 7,
    )
    ours, alone = (times[name] / design.rankings for name in ("ours", "one thread"))
    rival = times["naive"] / rankings
    return {
        "simulate_vs_permute_and_sort": {
            "ratio": rival / ours,
            "goal": GOAL,
            "ratio one thread": rival / alone,
            "seconds for the study": times["ours"],
            "naive seconds for the study": rival * design.rankings,
            "our microseconds a ranking": ours * 1e6,
            "naive microseconds a ranking": rival * 1e6,
            "rankings": design.rankings,
            "cells": design.n_cells,
            "K": len(design.ks),
            "first call seconds": first_call,
        }
    }


if __name__ == "__main__":
    json.dump(run("--quick" in sys.argv), sys.stdout, indent=2)
