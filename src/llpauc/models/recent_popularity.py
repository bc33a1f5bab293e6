"""Recent popularity: users count less the longer ago their event was."""

from __future__ import annotations

import math

from llpauc.data.histories import before
from llpauc.data.recency import choose_recency, recent_counts
from llpauc.models.base import ConstantModel, FitData, FitResult, Training
from llpauc.models.registry import RecentPopularityOptions


class RecentPopularity(ConstantModel):
    """score(u, i) = sum over the users of item i of 0.5^(age of their latest event / half_life).

    Without `half_life`, `llpauc.data.recency.choose_recency` chooses it on the parts before the
    test part; `options` then holds the choice.

    >>> from llpauc.data.interactions import Interactions
    >>> data = Interactions.of(["a", "b", "a"], ["x", "x", "y"], timestamps=[0, 0, 60])
    >>> model = RecentPopularity(RecentPopularityOptions(half_life=20))
    >>> _ = model.fit(FitData.of(data))
    >>> model.fallback.tolist()
    [0.25, 1.0]
    """

    name = "recent_popularity"
    Options = RecentPopularityOptions

    def fit(self, data: FitData, training: Training | None = None) -> FitResult:
        if self.options.half_life is None:
            chosen = choose_recency(before(data.split, "test"))
            self.options = RecentPopularityOptions(chosen.half_life, chosen.by)
        half_life = self.options.half_life
        # An infinite half-life counts all events alike; saved events may have lost their times.
        by = None if math.isinf(half_life) else self.options.by
        self.fallback = recent_counts(data.parts, half_life, by)
        return FitResult(data.all)
