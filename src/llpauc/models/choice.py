"""Choosing an option of a model on the validation part."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from llpauc.data.interactions import Split
from llpauc.data.splits import sample_users
from llpauc.evaluation.full_ranking import evaluate
from llpauc.evaluation.scorer import Scorer

METRIC = "ndcg@20"
_USERS = 5_000  # validation users that decide


def sampled_valid(split: Split) -> Split:
    """The split with at most 5,000 validation users."""
    assert split.valid is not None
    return dataclasses.replace(split, valid=sample_users(split.valid, _USERS, seed=0))


def valid_metric(scorer: Scorer, split: Split) -> float:
    """NDCG@20 on the validation part, of at most 5,000 users."""
    return evaluate(scorer, sampled_valid(split), on="valid", metrics=[METRIC]).mean(METRIC)


def best_of_grids(
    grids: Mapping[str, Sequence[float]],
    first: Mapping[str, float],
    value: Callable[[Mapping[str, float]], float],
    rounds: int = 4,
) -> dict[str, float]:
    """The entries of several grids with the highest value, found by steps uphill in one grid after
    the other, again while that changes something.

    >>> grids = {"x": [1.0, 2.0, 3.0, 4.0], "y": [1.0, 2.0, 3.0]}
    >>> best_of_grids(grids, {"x": 1.0, "y": 1.0}, lambda at: at["x"] * at["y"] - at["x"] ** 2)
    {'x': 1.0, 'y': 3.0}
    """
    values: dict[tuple[float, ...], float] = {}

    def known(at: Mapping[str, float]) -> float:
        key = tuple(at.values())
        if key not in values:
            values[key] = value(at)
        return values[key]

    best = dict(first)
    for _ in range(rounds):
        before = dict(best)
        for name, grid in grids.items():
            for step in (1, -1):
                at = grid.index(best[name]) + step
                while 0 <= at < len(grid) and known({**best, name: grid[at]}) > known(best):
                    best[name] = grid[at]
                    at += step
        if best == before:
            break
    return best
