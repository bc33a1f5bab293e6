"""Top-K metrics on hits per user: they return one value per user, not the mean.

All have the same three arguments:

| name | shape | meaning |
|---|---|---|
| `hits` | (n_users, n_ranks) | 1 where the item at that rank is relevant, best rank first |
| `n_relevant` | (n_users,) | all relevant items of the user, in the list or not |
| `k` | whole number >= 1 | ranks that count |

**Policies.** `hits` may have fewer columns than `k`: the missing ranks are misses (a catalogue
smaller than `k`). A user without a relevant item (`n_relevant` 0) has no value: NaN, for every
metric, so that the caller decides how to average. Gains are binary. Sums run rank by rank, so the
value of a user does not depend on the other users in the array.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np
import numpy.typing as npt

from llpauc.errors import InputError, check_at_least, choose

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
MapDenominator = Literal["relevant", "reachable"]

_MAP_DENOMINATOR: Mapping[str, Callable[[Counts, int], Counts]] = {
    "relevant": lambda n_relevant, k: n_relevant,
    "reachable": lambda n_relevant, k: np.minimum(n_relevant, k),
}


def recall(hits: npt.ArrayLike, n_relevant: npt.ArrayLike, k: int) -> Floats:
    """Fraction of the user's relevant items in the top k: hits@k / n_relevant.

    The denominator is all relevant items, so a user with more than k of them cannot reach 1.

    >>> recall([[1, 0, 1, 0]], [4], k=3).tolist()
    [0.5]
    """
    top, relevant = _checked(hits, n_relevant, k)
    return _ratio(top.sum(axis=1), relevant, relevant)


def precision(hits: npt.ArrayLike, n_relevant: npt.ArrayLike, k: int) -> Floats:
    """Fraction of the k ranks with a relevant item: hits@k / k, also where the list is shorter.

    >>> precision([[1, 0, 1, 0]], [4], k=4).tolist()
    [0.5]
    """
    top, relevant = _checked(hits, n_relevant, k)
    return _ratio(top.sum(axis=1), np.full_like(relevant, k), relevant)


def ndcg(hits: npt.ArrayLike, n_relevant: npt.ArrayLike, k: int) -> Floats:
    """Discounted gain of the list over that of the best possible list.

        DCG@k  = sum over ranks r <= k of hit_r / log2(r + 1)
        NDCG@k = DCG@k / (sum over ranks r <= min(k, n_relevant) of 1 / log2(r + 1))

    >>> ndcg([[0, 1, 0], [1, 1, 0]], [1, 2], k=3).round(4).tolist()
    [0.6309, 1.0]
    """
    top, relevant = _checked(hits, n_relevant, k)
    reachable = np.minimum(relevant, k)
    ranks = np.arange(1, max(top.shape[1], reachable.max(initial=1)) + 1)
    discounts = 1.0 / np.log2(ranks + 1.0)
    gain = _left_to_right(top * discounts[: top.shape[1]])
    best = np.concatenate(([0.0], np.cumsum(discounts)))[reachable]
    return _ratio(gain, best, relevant)


def hit_rate(hits: npt.ArrayLike, n_relevant: npt.ArrayLike, k: int) -> Floats:
    """1 where at least one relevant item is in the top k, else 0.

    >>> hit_rate([[0, 1], [0, 0]], [3, 3], k=2).tolist()
    [1.0, 0.0]
    """
    top, relevant = _checked(hits, n_relevant, k)
    return _ratio(top.max(axis=1), np.ones_like(relevant), relevant)


def mrr(hits: npt.ArrayLike, n_relevant: npt.ArrayLike, k: int) -> Floats:
    """1 over the rank of the first relevant item in the top k; 0 where there is none.

    >>> mrr([[0, 1, 1], [0, 0, 0]], [2, 1], k=3).tolist()
    [0.5, 0.0]
    """
    top, relevant = _checked(hits, n_relevant, k)
    ranks = np.arange(1, top.shape[1] + 1)
    return _ratio((top / ranks).max(axis=1), np.ones_like(relevant), relevant)


def average_precision(
    hits: npt.ArrayLike,
    n_relevant: npt.ArrayLike,
    k: int,
    *,
    denominator: MapDenominator = "relevant",
) -> Floats:
    """Precision at the rank of each hit, summed over the top k (its mean over users is MAP@k).

        AP@k = (sum over ranks r <= k of hit_r * hits@r / r) / denominator

    Args:
        hits: see the module.
        n_relevant: see the module.
        k: see the module.
        denominator: "relevant" divides by all relevant items, as TREC's `map_cut_K` does;
            "reachable" by min(k, n_relevant), so that a perfect list gets 1 for every user.
            Libraries differ here: report which one was used.

    >>> average_precision([[1, 0, 1]], [4], k=3).round(4).tolist()
    [0.4167]
    >>> average_precision([[1, 0, 1]], [4], k=3, denominator="reachable").round(4).tolist()
    [0.5556]
    """
    top, relevant = _checked(hits, n_relevant, k)
    ranks = np.arange(1, top.shape[1] + 1)
    gain = _left_to_right(top * np.cumsum(top, axis=1) / ranks)
    return _ratio(gain, choose(_MAP_DENOMINATOR, denominator, "denominator")(relevant, k), relevant)


TOPK_METRICS: dict[str, Callable[[npt.ArrayLike, npt.ArrayLike, int], Floats]] = {
    "recall": recall,
    "precision": precision,
    "ndcg": ndcg,
    "hit": hit_rate,
    "mrr": mrr,
    "map": average_precision,
}


def _checked(hits: npt.ArrayLike, n_relevant: npt.ArrayLike, k: int) -> tuple[Floats, Counts]:
    """The hits of the first k ranks as 0.0 and 1.0, at least one column wide, and the counts."""
    check_at_least("k", k, 1)
    array = np.asarray(hits)
    if array.ndim != 2:
        raise InputError(f"hits must be users x ranks (two dimensions), got shape {array.shape}")
    counts = np.asarray(n_relevant)
    if counts.shape != array.shape[:1]:
        raise InputError(
            f"n_relevant must have one entry for each of {len(array)} users, got shape "
            f"{counts.shape}"
        )
    relevant = counts.astype(np.int64)
    wrong = np.flatnonzero((relevant != counts) | (relevant < 0))
    if len(wrong):
        raise InputError(
            f"n_relevant must hold whole numbers of at least 0, got {counts[wrong[0]]} for user "
            f"{wrong[0]}"
        )
    top = np.ascontiguousarray(array[:, :k], dtype=np.float64)
    if top.shape[1] == 0:
        top = np.zeros((len(top), 1))
    wrong = np.flatnonzero(((top != 0) & (top != 1)).any(axis=1))
    if len(wrong):
        raise InputError(f"hits must be 0 or 1 (binary gain), user {wrong[0]} has another value")
    wrong = np.flatnonzero(top.sum(axis=1) > relevant)
    if len(wrong):
        raise InputError(
            f"user {wrong[0]} has {int(top[wrong[0]].sum())} hits but n_relevant "
            f"{relevant[wrong[0]]}; n_relevant counts all relevant items of the user"
        )
    return top, relevant


def _left_to_right(terms: Floats) -> Floats:
    # Not sum(): its pairing of terms depends on the array's shape and layout, and a perfect list
    # must give exactly 1.
    total: Floats = np.cumsum(terms, axis=1)[:, -1]
    return total


def _ratio(numerator: Floats, denominator: npt.NDArray[np.number], relevant: Counts) -> Floats:
    values = np.full(len(numerator), np.nan)
    np.divide(numerator, denominator, out=values, where=relevant > 0)
    return values
