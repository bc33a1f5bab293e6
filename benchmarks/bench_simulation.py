"""The paper's Monte-Carlo study against the naive way: permute and sort every list of 51,000.

The rival draws a score for each item, sorts, and reads the same metrics off the sorted list with
NumPy (a cumulative sum for each beta serves every alpha), for a small share of the rankings.
Seconds a ranking are compared. Both measure one ranking alike; this is checked.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

from benchmarks.timing import interleaved
from llpauc.research.simulation.simulate import Design, negatives_above, simulate, values, warm_up

GOAL = 100.0


def measure_labels(labels: np.ndarray, design: Design) -> np.ndarray:
    """All metrics of one ranking, 1 and 0 from the top down, in `Design.column`'s order."""
    place = np.flatnonzero(labels)
    above = place - np.arange(design.positives)
    lower, two_way = [], []
    for k_neg in design.k_neg:
        until = np.concatenate(([0], np.cumsum(np.maximum(0, k_neg - above))))
        lower.append(until[design.k_pos])
        two_way.append(until[-1] - until[design.positives - design.k_pos])
    hits = [np.count_nonzero(place < k) for k in design.ks]
    dcg = [design.gain[place[place < k]].sum() for k in design.ks]
    return np.concatenate((*lower, *two_way, hits, dcg)) * design.scale


def naive(design: Design, rng: np.random.Generator, rankings: int) -> None:
    """The rival's work for each ranking; the correlation at the end is a gift to it."""
    relevant = np.arange(design.places) < design.positives
    for _ in range(rankings):
        measure_labels(relevant[np.argsort(rng.random(design.places))], design)


def check(design: Design) -> None:
    """The two ways give the same numbers for the same rankings."""
    ours = values(design, 5, np.arange(len(design.scale)))
    for row, above in zip(ours, negatives_above(design, 5), strict=True):
        labels = np.zeros(design.places, bool)
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
            "cells": design.cells,
            "K": len(design.ks),
            "first call seconds": first_call,
        }
    }


if __name__ == "__main__":
    json.dump(run("--quick" in sys.argv), sys.stdout, indent=2)
