"""Popularity: the baseline of every comparison."""

from __future__ import annotations

from llpauc.evaluation.scorer import item_counts
from llpauc.models.base import ConstantModel, FitData, FitResult, Training
from llpauc.models.registry import PopularityOptions


class Popularity(ConstantModel):
    """score(u, i) = number of distinct users of item i in training.

    >>> from llpauc.data.interactions import Interactions
    >>> model = Popularity()
    >>> _ = model.fit(FitData.of(Interactions.of(["a", "b", "a"], ["x", "x", "y"])))
    >>> model.fallback.tolist()
    [2.0, 1.0]
    """

    name = "popularity"
    Options = PopularityOptions

    def fit(self, data: FitData, training: Training | None = None) -> FitResult:
        self.fallback = item_counts(data.all)
        return FitResult(data.all)
