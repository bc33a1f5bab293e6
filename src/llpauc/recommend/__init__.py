"""From events to lists: fit, recommend, fold in, update, save and load."""

from llpauc.recommend.recommender import Recommender

__all__ = ["Recommender"]
