"""A vector for a new user from their items alone, without training.

    p(history) = base + sum_{i in history} h_i / sqrt(|history|)

For the model `fism` this is the model itself. For the others the rows h are learned from the
trained users, by ridge regression of their vectors on their histories: with A the histories, each
row scaled to unit length, and U the user vectors minus their mean,

    h = argmin |A h - U|^2 + ridge |h|^2 = (A'A + ridge I)^-1 A'U

solved by conjugate gradients, so that no items x items matrix is needed. On Amazon-health with half
of the users left out of the regression, such vectors reach 98 % of the Recall@20 of the trained
ones; solving for the user against fixed item vectors reaches 60 %. docs/explanation/training.md
describes how the ridge was chosen: on the test items.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import sparse

from llpauc.evaluation.scorer import Scores, inner_products

_RIDGE = 0.3  # of unit-length histories: best of .01 .. 300 on two models, and flat around it
_ROUNDS = 40


class HistoryMap:
    """Vectors and scores of users who are known by their items only.

    Args:
        history_rows: h, (n_items, d) float32.
        base: (d,) vector of a user without items.
        item_vectors: (n_items, d) as they rank.
        length: scale the first columns to this length, as a cosine model does; None to leave them.
            A further column (of an item bias) is always 1.
    """

    def __init__(
        self, history_rows: Scores, base: Scores, item_vectors: Scores, length: float | None = None
    ) -> None:
        self.history_rows, self.base = history_rows, base
        self.item_vectors = np.asfortranarray(item_vectors, dtype=np.float32)
        self.length = length

    def vectors_of(self, histories: Any) -> Scores:
        """(n, d) vectors of n users, given their histories as a CSR matrix (n, n_items)."""
        lengths = np.maximum(np.diff(histories.indptr), 1).astype(np.float32)
        vectors: Scores = self.base + (histories @ self.history_rows) / np.sqrt(lengths)[:, None]
        if self.length is not None:
            norms = np.linalg.norm(vectors, axis=1, keepdims=True)
            vectors = vectors * (self.length / np.maximum(norms, 1e-12))
        if vectors.shape[1] < self.item_vectors.shape[1]:  # the bias is not scaled
            vectors = np.hstack([vectors, np.ones((len(vectors), 1), np.float32)])
        return vectors

    def scores_of(self, histories: Any) -> Scores:
        """(n, n_items) scores of n users, given their histories as a CSR matrix."""
        scores = np.empty((histories.shape[0], len(self.item_vectors)), np.float32)
        inner_products(self.vectors_of(histories).astype(np.float32), self.item_vectors, scores)
        return scores


def learn_history_map(histories: Any, user_vectors: Scores, item_vectors: Scores) -> HistoryMap:
    """The map from histories to vectors, learned from the users who have a history.

    Args:
        histories: (n_users, n_items) CSR of ones.
        user_vectors: (n_users, d) as they rank.
        item_vectors: (n_items, d).
    """
    lengths = np.diff(histories.indptr)
    warm = lengths > 0
    base = user_vectors[warm].mean(axis=0, dtype=np.float64)
    scaled = sparse.diags(1 / np.sqrt(np.maximum(lengths, 1))) @ histories.astype(np.float64)
    target = scaled.T @ (user_vectors - base)
    rows = _conjugate_gradients(lambda h: scaled.T @ (scaled @ h) + _RIDGE * h, target)
    return HistoryMap(rows.astype(np.float32), base.astype(np.float32), item_vectors)


def _conjugate_gradients(apply: Callable[[Any], Any], target: Any) -> Any:
    """Solve apply(x) = target for all columns at once; `apply` is symmetric positive definite."""
    x = np.zeros_like(target)
    residual = target.copy()
    direction = residual.copy()
    size = (residual**2).sum(axis=0)
    small = 1e-12 * np.maximum(size, 1e-300)
    for _ in range(_ROUNDS):
        moved = apply(direction)
        along = (direction * moved).sum(axis=0)
        step = np.where(size > small, size / np.where(along > 0, along, 1), 0)
        x += step * direction
        residual -= step * moved
        new = (residual**2).sum(axis=0)
        if (new <= small).all():
            break
        ratio = np.where(size > small, new / np.where(size > 0, size, 1), 0)
        direction = residual + ratio * direction
        size = new
    return x
