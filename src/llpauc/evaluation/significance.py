"""Whether methods differ: intervals over users, corrected tests, ranks over data sets.

References: Demšar, Statistical Comparisons of Classifiers over Multiple Data Sets, JMLR 2006;
Holm, A Simple Sequentially Rejective Multiple Test Procedure, 1979.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

Floats = npt.NDArray[np.float64]
RESAMPLES = 1000


@dataclass(frozen=True)
class Interval:
    """A mean over users and the 95 % interval of its bootstrap.

    Args:
        mean, low, high: the values.
        p: probability of a mean this far from 0 if the true one is 0; two-sided.
    """

    mean: float
    low: float
    high: float
    p: float = math.nan

    def __str__(self) -> str:
        return f"{self.mean:.4f} ({self.low:.4f} to {self.high:.4f})"


def bootstrap(
    values: Mapping[str, Floats], seed: int, resamples: int = RESAMPLES
) -> tuple[dict[str, Interval], dict[str, Interval]]:
    """Intervals of each method's mean, and of the lead of the first method over each other.

    Users are resampled with replacement, the same ones for all methods: the leads are paired.

    Args:
        values: method -> one value per user, the same users in the same order.
        seed: of the resampling.
        resamples: how many; a p value is at least 2 / (resamples + 1).
    """
    table = np.array(list(values.values()))
    n = table.shape[1]
    rng = np.random.default_rng(seed)
    means = np.empty((resamples, len(table)))
    for index in range(resamples):
        counts = np.bincount(rng.integers(n, size=n), minlength=n)
        means[index] = table @ counts / n

    def interval(exact: float, resampled: Floats) -> Interval:
        low, high = np.quantile(resampled, [0.025, 0.975])
        tail = min((resampled <= 0).sum(), (resampled >= 0).sum()) + 1
        p = min(1.0, 2 * float(tail) / (resamples + 1))
        return Interval(float(exact), float(low), float(high), p)

    exact = table.mean(axis=1)
    intervals = {name: interval(exact[m], means[:, m]) for m, name in enumerate(values)}
    leads = {
        name: interval(exact[0] - exact[m], means[:, 0] - means[:, m])
        for m, name in enumerate(values)
        if m
    }
    return intervals, leads


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """P values corrected for their number by Holm's method.

    >>> holm({"a": 0.01, "b": 0.04, "c": 0.03})
    {'a': 0.03, 'b': 0.06, 'c': 0.06}
    """
    corrected, largest = {}, 0.0
    for tests_before, name in enumerate(sorted(p_values, key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - tests_before) * p_values[name]))
        corrected[name] = largest
    return {name: corrected[name] for name in p_values}


@dataclass(frozen=True)
class RankSummary:
    """Methods over several data sets.

    Args:
        ranks: method -> mean rank, 1 is best; equal values share their ranks.
        p: of Friedman's test that all methods are equal; NaN for fewer than three methods.
        critical_difference: mean ranks that differ by less are not distinguished (Nemenyi, 5 %).
    """

    ranks: Mapping[str, float]
    p: float
    critical_difference: float


def rank_summary(values: Mapping[str, Sequence[float]]) -> RankSummary:
    """Friedman's test and Nemenyi's critical difference.

    Args:
        values: method -> one value per data set, larger is better; -inf where it has none.
    """
    table = np.array(list(values.values()))
    methods, sets = table.shape
    ranks = stats.rankdata(-table, axis=0).mean(axis=1)
    p = float(stats.friedmanchisquare(*table).pvalue) if methods > 2 else math.nan
    quantile = stats.studentized_range.ppf(0.95, methods, np.inf) / math.sqrt(2)
    difference = float(quantile * math.sqrt(methods * (methods + 1) / (6 * sets)))
    return RankSummary(dict(zip(values, ranks.tolist(), strict=True)), p, difference)
