"""Choosing an option of a model on the validation part."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

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


def best_of_grid(grid: Sequence[float], first: float, value: Callable[[float], float]) -> float:
    """The entry of the grid with the highest value, found by steps from `first` uphill.

    >>> best_of_grid([1.0, 2.0, 3.0, 4.0], 2.0, lambda x: -((x - 3.1) ** 2))
    3.0
    """
    values = {first: value(first)}

    def known(at: int) -> float:
        if grid[at] not in values:
            values[grid[at]] = value(grid[at])
        return values[grid[at]]

    best = grid.index(first)
    for step in (1, -1):
        while 0 <= best + step < len(grid) and known(best + step) > known(best):
            best += step
    return grid[best]
