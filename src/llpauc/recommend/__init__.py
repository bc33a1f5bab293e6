"""From events to lists: fit, recommend, fold in, update, save and load.

Nothing is imported before it is used.
"""

from typing import TYPE_CHECKING

from llpauc.options import lazy_exports

if TYPE_CHECKING:
    from llpauc.recommend.lists import Recommendations
    from llpauc.recommend.recipes import RECIPES, recipe, with_loss, with_model
    from llpauc.recommend.recommender import Recommender

__all__ = ["RECIPES", "Recommendations", "Recommender", "recipe", "with_loss", "with_model"]

__getattr__ = lazy_exports(
    __name__,
    {
        "RECIPES": "recipes",
        "Recommendations": "lists",
        "Recommender": "recommender",
        "recipe": "recipes",
        "with_loss": "recipes",
        "with_model": "recipes",
    },
)
