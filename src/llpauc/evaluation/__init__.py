"""Full-ranking evaluation: every item is scored for every user, and the top K are measured."""

from llpauc.evaluation.full_ranking import Evaluation, evaluate
from llpauc.evaluation.ranking import Ranking, rank
from llpauc.evaluation.scorer import FactorScorer, Scorer, item_counts

__all__ = ["Evaluation", "FactorScorer", "Ranking", "Scorer", "evaluate", "item_counts", "rank"]
