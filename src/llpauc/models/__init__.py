"""Models: what scores items for users.

`MODELS` lists them by name. Nothing is imported before it is used.
"""

from typing import TYPE_CHECKING

from llpauc.options import lazy_exports

if TYPE_CHECKING:
    from llpauc.models.base import FitData, FitResult, Model, NewEvents, Training
    from llpauc.models.ease import EASE
    from llpauc.models.embedding import EmbeddingModel
    from llpauc.models.fism import FISM
    from llpauc.models.itemknn import ItemKNN
    from llpauc.models.lightgcn import LightGCN
    from llpauc.models.mf import MF
    from llpauc.models.network import EmbeddingNetwork
    from llpauc.models.popularity import Popularity, RecentPopularity
    from llpauc.models.registry import MODELS, EmbeddingOptions, ModelEntry

__all__ = [
    "EASE",
    "EmbeddingModel",
    "EmbeddingNetwork",
    "EmbeddingOptions",
    "FISM",
    "FitData",
    "FitResult",
    "ItemKNN",
    "LightGCN",
    "MF",
    "MODELS",
    "Model",
    "ModelEntry",
    "NewEvents",
    "Popularity",
    "RecentPopularity",
    "Training",
]

_MODULES = {
    "EASE": "ease",
    "EmbeddingModel": "embedding",
    "EmbeddingNetwork": "network",
    "EmbeddingOptions": "registry",
    "FISM": "fism",
    "FitData": "base",
    "FitResult": "base",
    "ItemKNN": "itemknn",
    "LightGCN": "lightgcn",
    "MF": "mf",
    "MODELS": "registry",
    "Model": "base",
    "ModelEntry": "registry",
    "NewEvents": "base",
    "Popularity": "popularity",
    "RecentPopularity": "popularity",
    "Training": "base",
}

__getattr__ = lazy_exports(__name__, _MODULES)
