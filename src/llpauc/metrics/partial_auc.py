"""LLPAUC, OPAUC and AUC of scores, exact, per user.

Symbols used here and in the paper:

| paper | here | meaning |
|---|---|---|
| n+, n- | `n_pos`, `n_neg` | positives and negatives of a user |
| alpha, beta | `alpha`, `beta` | share of best positives, of best negatives, in (0, 1] |
| - | `k_pos`, `k_neg` | how many those are: ceil(alpha n+), ceil(beta n-), at least 1 |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, overload

import numpy as np
import numpy.typing as npt
from scipy import sparse

from llpauc.errors import InputError, choose
from llpauc.metrics.pair_counts import PairCounts, as_scores, negatives_above

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
Ties = Literal["strict", "half"]

# A share such as 20/33 times 33 may miss 20 by a rounding error; anything that close is meant.
_ROUNDING = 1e-12


@overload
def selected_count(share: float, n: int, *, name: str = ...) -> int: ...
@overload
def selected_count(share: npt.ArrayLike, n: Counts, *, name: str = ...) -> Counts: ...
def selected_count(share: npt.ArrayLike, n: int | Counts, *, name: str = "share") -> int | Counts:
    """How many of n items a share selects: ceil(share * n), at least 1, exactly K for K/n.

    Args:
        share: alpha or beta, in (0, 1]; a number, or one for each entry of `n`.
        n: number of items, >= 0; of no items, none are selected.
        name: what the share is called in an error.

    >>> selected_count(0.7, 10), selected_count(0.01, 3), selected_count(20 / 33, 33)
    (7, 1, 20)
    """
    shares = np.asarray(share, dtype=np.float64)
    wrong = shares[~((shares > 0.0) & (shares <= 1.0))]
    if len(wrong):
        raise InputError(f"{name} must be in (0, 1], got {float(wrong[0])!r}")
    if shares.ndim and shares.shape != np.shape(n):
        raise InputError(
            f"{name} must be one number, or one for each of {np.size(n)} users; got shape "
            f"{shares.shape}"
        )
    product = shares * np.asarray(n)
    nearest = np.rint(product)
    meant = np.abs(product - nearest) <= _ROUNDING * product
    count = np.where(meant, nearest, np.ceil(product)).astype(np.int64)
    count = np.clip(count, np.minimum(1, n), n)
    return int(count) if count.ndim == 0 else count


def _strict(counts: PairCounts, k_neg: Counts) -> Counts:
    twice: Counts = 2 * np.maximum(0, k_neg - counts.above - counts.tied)
    return twice


def _half(counts: PairCounts, k_neg: Counts) -> Counts:
    reached = k_neg - counts.above
    twice: Counts = np.maximum(0, reached) + np.maximum(0, reached - counts.tied)
    return twice


# Twice the pairs that each positive wins, so that half a pair is a whole number.
_TIES: Mapping[str, Callable[[PairCounts, Counts], Counts]] = {"strict": _strict, "half": _half}


def partial_auc_from_counts(
    counts: PairCounts,
    *,
    alpha: npt.ArrayLike = 1.0,
    beta: npt.ArrayLike = 1.0,
    ties: Ties = "strict",
    normalize: bool = False,
) -> Floats:
    """LLPAUC(alpha, beta) of every user from the counts of `negatives_above`.

        sum over the k+ best positives of max(0, k- - negatives above or level) / (n+ n-)

    A positive wins against the k- best negatives except those that stand above it, and all that
    stand above it are among those k- unless there are k- of them. Equal positives win equally many
    pairs, so it does not matter which of them are "among the k+ best"; likewise for negatives.

    Args:
        counts: from `negatives_above`.
        alpha: share of best positives, in (0, 1]; a number or one for each user.
        beta: share of best negatives, likewise.
        ties: "strict": a tied pair counts 0, as printed. "half": 1/2.
        normalize: divide by the largest possible value, k+ k- / (n+ n-), so that 1 can be reached.

    Returns:
        (n_users,) float64; NaN for a user without a positive or without a negative. Pairs are
        summed as integers, so the value is one division away from exact.

    A whole grid costs one pass over the scores:

    >>> counts = negatives_above([[0.9, 0.8, 0.7, 0.1]], sparse.csr_array([[1, 0, 1, 0]]))
    >>> [float(partial_auc_from_counts(counts, alpha=a)[0]) for a in (0.5, 1.0)]
    [0.5, 0.75]
    """
    n_pos, n_neg = counts.n_pos, counts.n_neg
    k_pos = selected_count(alpha, n_pos, name="alpha")
    k_neg = selected_count(beta, n_neg, name="beta")
    won = choose(_TIES, ties, "ties")(counts, k_neg[counts.owner])
    won = np.where(counts.place < k_pos[counts.owner], won, 0)
    until = np.concatenate(([0], np.cumsum(won)))
    twice = until[counts.indptr[1:]] - until[counts.indptr[:-1]]
    pairs = 2 * (k_pos * k_neg if normalize else n_pos * n_neg)
    values = np.full(len(pairs), np.nan)
    np.divide(twice, pairs, out=values, where=pairs > 0)
    return values


@overload
def llpauc_score(
    y_true: Any,
    y_score: npt.ArrayLike,
    *,
    alpha: npt.ArrayLike,
    beta: npt.ArrayLike,
    ties: Ties = ...,
    normalize: bool = ...,
    average: Literal["mean"] = ...,
) -> float: ...
@overload
def llpauc_score(
    y_true: Any,
    y_score: npt.ArrayLike,
    *,
    alpha: npt.ArrayLike,
    beta: npt.ArrayLike,
    ties: Ties = ...,
    normalize: bool = ...,
    average: None,
) -> Floats: ...
def llpauc_score(
    y_true: Any,
    y_score: npt.ArrayLike,
    *,
    alpha: npt.ArrayLike,
    beta: npt.ArrayLike,
    ties: Ties = "strict",
    normalize: bool = False,
    average: Literal["mean"] | None = "mean",
) -> float | Floats:
    """Area under the ROC curve with TPR <= alpha and FPR <= beta, per user, averaged.

        1/(n+ n-) * #{(i, j): i among the k+ best positives, j among the k- best negatives,
                              score_i > score_j}

    Its maximum is k+ k- / (n+ n-), about alpha * beta, not 1: see `normalize`.

    Args:
        y_true: 0 and 1. One user (n_items,), or users x items, dense or scipy sparse.
        y_score: scores of the same shape, higher is better; NaN is refused.
        alpha: share of best positives that count, in (0, 1]; a number or one for each user.
        beta: share of best negatives that count, likewise.
        ties: "strict": a tied pair counts 0, as printed in the paper. "half": 1/2, as in
            scikit-learn's AUC.
        normalize: divide by the maximum.
        average: "mean" over the users for whom it is defined (at least one positive and one
            negative), or None for one value a user, NaN where undefined. One user must have both.

    Reference: Shi et al., Lower-Left Partial AUC, WWW 2024, Eq. (7).
    **Departs from the paper**: Eq. (7) selects by thresholds, and with ties at a threshold more
    than a share alpha; here exactly k+ positives and k- negatives are selected.

    >>> llpauc_score([1, 0, 1, 0], [0.9, 0.8, 0.7, 0.1], alpha=0.5, beta=1.0)
    0.5
    >>> llpauc_score([1, 0, 1, 0], [0.9, 0.8, 0.7, 0.1], alpha=0.5, beta=1.0, normalize=True)
    1.0
    """
    return _score(y_true, y_score, alpha, beta, ties, normalize, average)


@overload
def opauc_score(
    y_true: Any,
    y_score: npt.ArrayLike,
    *,
    beta: npt.ArrayLike,
    ties: Ties = ...,
    normalize: bool = ...,
    average: Literal["mean"] = ...,
) -> float: ...
@overload
def opauc_score(
    y_true: Any,
    y_score: npt.ArrayLike,
    *,
    beta: npt.ArrayLike,
    ties: Ties = ...,
    normalize: bool = ...,
    average: None,
) -> Floats: ...
def opauc_score(
    y_true: Any,
    y_score: npt.ArrayLike,
    *,
    beta: npt.ArrayLike,
    ties: Ties = "strict",
    normalize: bool = False,
    average: Literal["mean"] | None = "mean",
) -> float | Floats:
    """Area under the ROC curve with FPR <= beta, per user: LLPAUC(1, beta), see `llpauc_score`.

    Reference: Eq. (5) of the LLPAUC paper.

    >>> opauc_score([1, 0, 1, 0], [0.9, 0.8, 0.7, 0.1], beta=0.5)
    0.25
    """
    return _score(y_true, y_score, 1.0, beta, ties, normalize, average)


@overload
def auc_score(
    y_true: Any, y_score: npt.ArrayLike, *, ties: Ties = ..., average: Literal["mean"] = ...
) -> float: ...
@overload
def auc_score(
    y_true: Any, y_score: npt.ArrayLike, *, ties: Ties = ..., average: None
) -> Floats: ...
def auc_score(
    y_true: Any,
    y_score: npt.ArrayLike,
    *,
    ties: Ties = "strict",
    average: Literal["mean"] | None = "mean",
) -> float | Floats:
    """Area under the whole ROC curve, per user: LLPAUC(1, 1), see `llpauc_score`.

    With ties="half" it is scikit-learn's `roc_auc_score` of each user. Its maximum is 1, so there
    is nothing to normalise.

    Reference: Eq. (3) of the LLPAUC paper.

    >>> auc_score([1, 0, 1, 0], [0.9, 0.8, 0.7, 0.1])
    0.75
    """
    return _score(y_true, y_score, 1.0, 1.0, ties, False, average)


def _score(
    y_true: Any,
    y_score: npt.ArrayLike,
    alpha: npt.ArrayLike,
    beta: npt.ArrayLike,
    ties: Ties,
    normalize: bool,
    average: Literal["mean"] | None,
) -> float | Floats:
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
