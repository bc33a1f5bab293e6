"""Models: what gives a user's items their scores.

`BASELINES` need no training loop: each is called with the training interactions and its own
parameters, and returns a `Scorer`.
"""

from __future__ import annotations

from collections.abc import Callable

from llpauc.evaluation.scorer import Constant, FactorScorer, Scorer
from llpauc.models.ease import EASE, ease
from llpauc.models.itemknn import ItemKNN, item_knn
from llpauc.models.popularity import Popularity, Recent

BASELINES: dict[str, Callable[..., Scorer]] = {
    "popularity": Popularity,
    "recent": Recent,
    "itemknn": item_knn,
    "ease": ease,
}

__all__ = [
    "BASELINES",
    "Constant",
    "EASE",
    "FactorScorer",
    "ItemKNN",
    "Popularity",
    "Recent",
    "Scorer",
]
