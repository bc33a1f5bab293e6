"""Most popular: the baseline that stands in every table."""

from __future__ import annotations

from llpauc.interactions import Interactions, Rows
from llpauc.models.scorer import Scores, item_counts


class Popularity:
    """Every user gets the items with the most distinct users in training.

    >>> data = Interactions.of(["a", "b", "a"], ["x", "x", "y"])
    >>> Popularity(data).counts.tolist()
    [2.0, 1.0]
    """

    def __init__(self, train: Interactions) -> None:
        self.counts: Scores = item_counts(train)

    @property
    def n_items(self) -> int:
        return len(self.counts)

    def scores_into(self, users: Rows, out: Scores) -> None:
        out[:] = self.counts
