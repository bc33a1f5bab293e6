"""Popularity and recent popularity: the same scores for every user."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from llpauc.data.interactions import before
from llpauc.data.recency import choose_recency, recent_counts
from llpauc.evaluation.scorer import Constant, Scorer, Scores, item_counts
from llpauc.models.base import FitData, FitResult, Model, Training
from llpauc.models.registry import PopularityOptions, RecentPopularityOptions


class Popularity(Model):
    """score(u, i) = number of distinct users of item i in training.

    >>> from llpauc.data.interactions import Interactions
    >>> Popularity.scorer_of(Interactions.of(["a", "b", "a"], ["x", "x", "y"])).scores.tolist()
    [2.0, 1.0]
    """

    name = "popularity"
    is_personal = False
    Options: ClassVar[type[Any]] = PopularityOptions

    def fit(self, data: FitData, training: Training | None = None) -> FitResult:
        self.fallback = item_counts(data.all)
        return FitResult(data.all)

    def scorer(self, histories: Any) -> Scorer:
        return Constant(self.fallback)

    def scores_of(self, histories: Any) -> Scores:
        return Constant(self.fallback).scores_of(histories)


class RecentPopularity(Popularity):
    """score(u, i) = sum over the users of item i of 0.5^(age of their latest event / half_life).

    Without `half_life`, `llpauc.data.recency.choose_recency` chooses it on the parts before the
    test part; `options` then holds the choice.

    >>> from llpauc.data.interactions import Interactions
    >>> data = Interactions.of(["a", "b", "a"], ["x", "x", "y"], timestamps=[0, 0, 60])
    >>> RecentPopularity.scorer_of(data, half_life=20).scores.tolist()
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
