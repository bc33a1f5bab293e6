"""Starting values for a search of alpha and beta."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llpauc.data.interactions import Interactions
from llpauc.errors import InputError, check_at_least

# beta times the number of items at the best beta of two catalogues (1,200 and 8,360 items);
# published choices at 2,200 to 98,000 items give 220 to 980. Not tested on other sizes.
_ITEMS_SELECTED = 400.0


@dataclass(frozen=True)
class Suggestion:
    """Starting values and their basis.

    Args:
        alpha: K / n+ of Theorem 1, clipped to 1; n+ is the mean number of positives of a user.
        beta: K / n- of Theorem 1, clipped to 1.
        beta_measured: 400 / number of items, clipped to 1: a rule of thumb from two data sets.
        mean_positives: distinct items of a user, the mean over users who have any.
        median_positives: the median of the same.
        caveat: the limits of the suggestion.
    """

    alpha: float
    beta: float
    beta_measured: float
    mean_positives: float
    median_positives: float
    caveat: str


def suggest_alpha_beta(interactions: Interactions, k: int = 20) -> Suggestion:
    """Starting values of alpha and beta for top-K lists.

    Theorem 1 bounds Recall@K and Precision@K by LLPAUC(K / n+, K / n-). It holds per user and
    requires n+ > K, which is rare in real data; otherwise alpha is 1.

    Args:
        interactions: the training events; a pair that occurs twice counts once.
        k: length of the lists, at least 1.

    Reference: Shi et al., WWW 2024, Theorem 1.

    >>> events = Interactions.of(["ann"] * 4 + ["bob"] * 4, [*"abcd", *"efgh"])
    >>> suggestion = suggest_alpha_beta(events, k=2)
    >>> suggestion.alpha, suggestion.beta, suggestion.beta_measured
    (0.5, 0.5, 1.0)
    """
    k = check_at_least("k", k, 1)
    positives = np.diff(interactions.positives.indptr)
    positives = positives[positives > 0]
    if len(positives) == 0:
        raise InputError("no events, so no positives to set alpha from")
    mean = float(positives.mean())
    negatives = interactions.n_items - mean
    few = int((positives <= k).sum())
    caveat = (
        f"{few} of {len(positives)} users have at most K = {k} positives, where Theorem 1 does "
        "not apply and alpha is 1; its K/n- is also smaller than what trains best. Start from "
        "beta_measured, and tune alpha from 0.7 to 1 and beta by factors of 3."
    )
    return Suggestion(
        alpha=min(1.0, k / mean),
        beta=min(1.0, k / negatives) if negatives > 0.0 else 1.0,
        beta_measured=min(1.0, _ITEMS_SELECTED / interactions.n_items),
        mean_positives=mean,
        median_positives=float(np.median(positives)),
        caveat=caveat,
    )
