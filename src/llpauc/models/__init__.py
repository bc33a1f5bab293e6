"""Models: what scores items for users.

`MODELS` lists them by name. Nothing is imported before it is used.
"""

from typing import TYPE_CHECKING

from llpauc.options import lazy_exports

if TYPE_CHECKING:
    from llpauc.models.base import FitData, Model, NewEvents, Training
    from llpauc.models.ease import EASE
    from llpauc.models.fism import FISM
    from llpauc.models.itemknn import ItemKNN
    from llpauc.models.lightgcn import LightGCN
    from llpauc.models.mf import MF
    from llpauc.models.popularity import Popularity
    from llpauc.models.recent_popularity import RecentPopularity
    from llpauc.models.registry import MODELS, ModelEntry

__all__ = [
    "EASE",
    "FISM",
    "FitData",
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
    "FISM": "fism",
    "FitData": "base",
    "ItemKNN": "itemknn",
    "LightGCN": "lightgcn",
    "MF": "mf",
    "MODELS": "registry",
    "Model": "base",
    "ModelEntry": "registry",
    "NewEvents": "base",
    "Popularity": "popularity",
    "RecentPopularity": "recent_popularity",
    "Training": "base",
}

__getattr__ = lazy_exports(__name__, _MODULES)
