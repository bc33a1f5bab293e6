"""Most popular: the baseline that stands in every table."""

from __future__ import annotations

from llpauc.interactions import Interactions
from llpauc.models.scorer import Constant, item_counts


class Popularity(Constant):
    """Every user gets the items with the most distinct users in training.

    >>> data = Interactions.of(["a", "b", "a"], ["x", "x", "y"])
    >>> Popularity(data).scores.tolist()
    [2.0, 1.0]
    """

    def __init__(self, train: Interactions) -> None:
        super().__init__(item_counts(train))
