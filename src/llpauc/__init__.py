"""Train recommenders towards their top-K lists.

The most used names can be imported from here. Nothing is imported before it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from llpauc.options import lazy_exports
from llpauc.runtime import prepare

if TYPE_CHECKING:
    from llpauc.data.ids import IdMap
    from llpauc.data.interactions import Interactions, Split
    from llpauc.data.readers import read_interactions, read_split
    from llpauc.evaluation import evaluate
    from llpauc.losses import LLPAUCLoss
    from llpauc.metrics import auc_score, llpauc_score, opauc_score
    from llpauc.recommend import Recommender

__all__ = [
    "IdMap",
    "Interactions",
    "LLPAUCLoss",
    "Recommender",
    "Split",
    "auc_score",
    "evaluate",
    "llpauc_score",
    "opauc_score",
    "read_interactions",
    "read_split",
]

prepare()

__getattr__ = lazy_exports(
    __name__,
    {
        "IdMap": "data.ids",
        "Interactions": "data.interactions",
        "LLPAUCLoss": "losses",
        "Recommender": "recommend",
        "Split": "data.interactions",
        "auc_score": "metrics",
        "evaluate": "evaluation",
        "llpauc_score": "metrics",
        "opauc_score": "metrics",
        "read_interactions": "data.readers",
        "read_split": "data.readers",
    },
)


def __dir__() -> list[str]:
    return sorted(__all__)
