"""Train recommenders towards their top-K lists.

What people use most can be imported from here; nothing heavy is loaded before it is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llpauc.data.ids import IdMap
    from llpauc.data.interactions import Interactions, Split
    from llpauc.data.readers import read_interactions, read_split
    from llpauc.evaluation import evaluate
    from llpauc.losses import LLPAUCLoss
    from llpauc.metrics import auc_score, llpauc_score, opauc_score
    from llpauc.recommend import Recommender

_HOMES = {
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
}

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


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'llpauc' has no attribute {name!r}")
    return getattr(import_module(f"llpauc.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
