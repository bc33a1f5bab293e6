"""Metrics: top-K on hits, exact partial AUCs on scores, and bounds between the two."""

from llpauc.metrics.bounds import Bounds, precision_bounds, recall_bounds
from llpauc.metrics.names import METRIC_NAMES, Metric, parse_metric, split_names
from llpauc.metrics.pair_counts import PairCounts, count_above_row, negatives_above
from llpauc.metrics.partial_auc import (
    auc_score,
    llpauc_score,
    opauc_score,
    partial_auc_from_counts,
    selected_count,
)
from llpauc.metrics.topk import (
    TOPK_METRICS,
    average_precision,
    hit_rate,
    mrr,
    ndcg,
    precision,
    recall,
)

__all__ = [
    "METRIC_NAMES",
    "TOPK_METRICS",
    "Bounds",
    "Metric",
    "PairCounts",
    "auc_score",
    "average_precision",
    "count_above_row",
    "hit_rate",
    "llpauc_score",
    "mrr",
    "ndcg",
    "negatives_above",
    "opauc_score",
    "parse_metric",
    "partial_auc_from_counts",
    "precision",
    "precision_bounds",
    "recall",
    "recall_bounds",
    "selected_count",
    "split_names",
]
