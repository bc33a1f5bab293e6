"""LLPAUC, OPAUC and AUC of scores, exact, per user.

Symbols used here and in the paper:

| paper | here | meaning |
|---|---|---|
| n+, n- | `n_pos`, `n_neg` | positives and negatives of a user |
| alpha, beta | `alpha`, `beta` | fraction of the best positives, of the best negatives, in (0, 1] |
| - | `k_pos`, `k_neg` | how many those are: ceil(alpha n+), ceil(beta n-), at least 1 |
"""

from __future__ import annotations

from typing import Any, Literal, overload

import numpy as np
import numpy.typing as npt
from scipy import sparse

from llpauc.errors import InputError
from llpauc.metrics.pair_counts import PairCounts, as_scores, negatives_above

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
Ties = Literal["strict", "half"]

# 20/33 times 33 may miss 20 by a rounding error; a product this close is taken as exact.
_ROUNDING = 1e-12


@overload
def selected_count(fraction: float, n: int, *, name: str = ...) -> int: ...
@overload
def selected_count(fraction: npt.ArrayLike, n: Counts, *, name: str = ...) -> Counts: ...
def selected_count(
    fraction: npt.ArrayLike, n: int | Counts, *, name: str = "fraction"
) -> int | Counts:
    """How many of n items a fraction selects: ceil(fraction * n), at least 1, exactly K for K/n.

    Args:
        fraction: alpha or beta, in (0, 1]; a number, or one for each entry of `n`.
        n: number of items, >= 0; of 0 items, 0 are selected.
        name: the name of the fraction in errors.

    >>> selected_count(0.7, 10), selected_count(0.01, 3), selected_count(20 / 33, 33)
    (7, 1, 20)
    """
    fractions = np.asarray(fraction, dtype=np.float64)
    wrong = fractions[~((fractions > 0.0) & (fractions <= 1.0))]
    if len(wrong):
        raise InputError(f"{name} must be in (0, 1], got {float(wrong[0])!r}")
    if fractions.ndim and fractions.shape != np.shape(n):
        raise InputError(
            f"{name} must be one number, or one for each of {np.size(n)} users; got shape "
            f"{fractions.shape}"
        )
    product = fractions * np.asarray(n)
    nearest = np.rint(product)
    exact = np.abs(product - nearest) <= _ROUNDING * product
    count = np.where(exact, nearest, np.ceil(product)).astype(np.int64)
    count = np.clip(count, np.minimum(1, n), n)
    return int(count) if count.ndim == 0 else count


def partial_auc_from_counts(
    counts: PairCounts,
    *,
    alpha: npt.ArrayLike = 1.0,
    beta: npt.ArrayLike = 1.0,
    ties: Ties = "strict",
    normalize: bool = False,
) -> Floats:
    """LLPAUC(alpha, beta) of every user from the counts of `negatives_above`.

        sum over the k+ best positives of max(0, k- - negatives above or tied) / (n+ n-)

    A positive wins against the k- best negatives except those above it. Tied positives win equally
    many pairs, so it does not matter which of them are among the k+ best; likewise for negatives.

    Args:
        counts: from `negatives_above`.
        alpha: fraction of the best positives, in (0, 1]; a number or one for each user.
        beta: fraction of the best negatives, likewise.
        ties: "strict": a tied pair counts 0, as printed. "half": 1/2.
        normalize: divide by the largest possible value, k+ k- / (n+ n-), so that 1 can be reached.

    Returns:
        (n_users,) float64; NaN for a user without a positive or without a negative. Pairs are
        summed as integers, so only the final division rounds.

    A whole grid costs one pass over the scores:

    >>> counts = negatives_above([[0.9, 0.8, 0.7, 0.1]], sparse.csr_array([[1, 0, 1, 0]]))
    >>> [float(partial_auc_from_counts(counts, alpha=a)[0]) for a in (0.5, 1.0)]
    [0.5, 0.75]
    """
    n_pos, n_neg = counts.n_pos, counts.n_neg
    k_pos = selected_count(alpha, n_pos, name="alpha")
    k_neg = selected_count(beta, n_neg, name="beta")
    if ties not in ("strict", "half"):
        raise InputError(f"unknown ties {ties!r}; choose one of: strict, half")
    # Twice the pairs that each positive wins, so that half a pair is a whole number.
    not_above = k_neg[counts.user] - counts.above
    not_tied = np.maximum(0, not_above - counts.tied)
    won = not_tied + (not_tied if ties == "strict" else np.maximum(0, not_above))
    won = np.where(counts.position < k_pos[counts.user], won, 0)
    until = np.concatenate(([0], np.cumsum(won)))
    twice = until[counts.indptr[1:]] - until[counts.indptr[:-1]]
    pairs = 2 * (k_pos * k_neg if normalize else n_pos * n_neg)
    values = np.full(len(pairs), np.nan)
    np.divide(twice, pairs, out=values, where=pairs > 0)
    return values


def llpauc_score(
    y_true: Any,
    y_score: npt.ArrayLike,
    *,
    alpha: npt.ArrayLike,
    beta: npt.ArrayLike,
    ties: Ties = "strict",
    normalize: bool = False,
    average: Literal["mean"] | None = "mean",
) -> Any:
    """Area under the ROC curve with TPR <= alpha and FPR <= beta, per user, averaged.

        1/(n+ n-) * #{(i, j): i among the k+ best positives, j among the k- best negatives,
                              score_i > score_j}

    Its maximum is k+ k- / (n+ n-), about alpha * beta, not 1: see `normalize`.

    Args:
        y_true: 0 and 1. One user (n_items,), or users x items, dense or scipy sparse.
        y_score: scores of the same shape, higher is better; NaN raises an error.
        alpha: fraction of the best positives that count, in (0, 1]; a number or one for each user.
        beta: fraction of the best negatives that count, likewise.
        ties: "strict": a tied pair counts 0, as printed in the paper. "half": 1/2, as in
            scikit-learn's AUC.
        normalize: divide by the maximum.
        average: "mean" over the users for whom it is defined (at least one positive and one
            negative), or None for one value per user, NaN where undefined. A single user must
            have both.

    Returns:
        float, or (n_users,) float64 with `average=None`.

    Reference: Shi et al., Lower-Left Partial AUC, WWW 2024, Eq. (7).
    **Departs from the paper**: Eq. (7) selects by thresholds, and with ties at a threshold more
    than a fraction alpha; here exactly k+ positives and k- negatives are selected.

    >>> llpauc_score([1, 0, 1, 0], [0.9, 0.8, 0.7, 0.1], alpha=0.5, beta=1.0)
    0.5
    >>> llpauc_score([1, 0, 1, 0], [0.9, 0.8, 0.7, 0.1], alpha=0.5, beta=1.0, normalize=True)
    1.0
    """
    if average not in ("mean", None):
        raise InputError(f"average must be 'mean' or None, got {average!r}")
    scores = as_scores(y_score)
    if scores.ndim not in (1, 2):
        raise InputError(f"y_score must be one user or users x items, got shape {scores.shape}")
    positives = _positives(y_true, scores.shape)
    counts = negatives_above(np.atleast_2d(scores), positives)
    values = partial_auc_from_counts(counts, alpha=alpha, beta=beta, ties=ties, normalize=normalize)
    defined = values[~np.isnan(values)]
    if scores.ndim == 1 and not len(defined):
        missing = "positive (1)" if counts.n_pos[0] == 0 else "negative (0)"
        raise InputError(f"y_true has no {missing}; a partial AUC needs both")
    if average is None:
        return values
    if not len(defined):
        raise InputError(f"none of {len(values)} users has both a positive and a negative")
    return float(defined.mean())


def opauc_score(
    y_true: Any,
    y_score: npt.ArrayLike,
    *,
    beta: npt.ArrayLike,
    ties: Ties = "strict",
    normalize: bool = False,
    average: Literal["mean"] | None = "mean",
) -> Any:
    """Area under the ROC curve with FPR <= beta, per user: LLPAUC(1, beta), see `llpauc_score`.

    Reference: Eq. (5) of the LLPAUC paper.

    >>> opauc_score([1, 0, 1, 0], [0.9, 0.8, 0.7, 0.1], beta=0.5)
    0.25
    """
    return llpauc_score(
        y_true, y_score, alpha=1.0, beta=beta,
        ties=ties, normalize=normalize, average=average,
    )  # fmt: skip


def auc_score(
    y_true: Any,
    y_score: npt.ArrayLike,
    *,
    ties: Ties = "strict",
    average: Literal["mean"] | None = "mean",
) -> Any:
    """Area under the whole ROC curve, per user: LLPAUC(1, 1), see `llpauc_score`.

    With ties="half" it is scikit-learn's `roc_auc_score` of each user. Its maximum is 1, so there
    is nothing to normalise.

    Reference: Eq. (3) of the LLPAUC paper.

    >>> auc_score([1, 0, 1, 0], [0.9, 0.8, 0.7, 0.1])
    0.75
    """
    return llpauc_score(y_true, y_score, alpha=1.0, beta=1.0, ties=ties, average=average)


def _positives(y_true: Any, shape: tuple[int, ...]) -> sparse.csr_array:
    """The ones of y_true as canonical CSR; refuses labels other than 0 and 1."""
    labels = y_true if sparse.issparse(y_true) else np.asarray(y_true)
    if labels.shape != shape:
        raise InputError(f"y_true has shape {labels.shape}, y_score {shape}; they must agree")
    if not sparse.issparse(labels):
        labels = np.atleast_2d(labels)
        if labels.dtype.kind not in "biuf":
            raise InputError(f"y_true must hold 0 and 1, got the type {labels.dtype}")
    positives = sparse.csr_array(labels, copy=True)
    positives.sum_duplicates()
    positives.eliminate_zeros()
    wrong = np.flatnonzero(positives.data != 1)
    if len(wrong):
        raise InputError(
            f"y_true must hold 0 (negative) and 1 (positive) only, got {positives.data[wrong[0]]}"
        )
    return positives
