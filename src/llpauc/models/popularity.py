"""Most popular, ever and of late: the baselines that stand in every table."""

from __future__ import annotations

from collections.abc import Sequence

from llpauc.data.interactions import Interactions
from llpauc.data.recency import By, choose_recency, recent_counts
from llpauc.evaluation.scorer import Constant, item_counts


class Popularity(Constant):
    """Every user gets the items with the most distinct users in training.

    >>> data = Interactions.of(["a", "b", "a"], ["x", "x", "y"])
    >>> Popularity(data).scores.tolist()
    [2.0, 1.0]
    """

    def __init__(self, train: Interactions) -> None:
        super().__init__(item_counts(train))


class Recent(Constant):
    """Every user gets the items with the most users of late: each user weighs 0.5^(age/half_life).

    Args:
        train: a table, or the parts that lie before the test, the oldest first.
        half_life: see `llpauc.data.recency.age_weights`; chosen by `choose_recency` unless given.
        by: how age is measured, "time", "rows" or "parts"; by time where there are timestamps,
            else by rows unless given.

    >>> data = Interactions.of(["a", "b", "a"], ["x", "x", "y"], timestamps=[0, 0, 60])
    >>> Recent(data, half_life=20).scores.tolist()
    [0.25, 1.0]
    """

    def __init__(
        self,
        train: Interactions | Sequence[Interactions],
        half_life: float | None = None,
        by: By | None = None,
    ) -> None:
        if half_life is None:
            chosen = choose_recency([train] if isinstance(train, Interactions) else train)
            half_life, by = chosen.half_life, chosen.by
        super().__init__(recent_counts(train, half_life, by))
