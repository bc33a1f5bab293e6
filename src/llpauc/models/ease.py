"""EASE: a linear item-item model in closed form, and a hard one to beat."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import linalg

from llpauc.data.interactions import Interactions
from llpauc.errors import InputError
from llpauc.evaluation.scorer import ByHistory, Scorer, Scores, item_counts

_MOST_BYTES = 8 << 30


class EASE:
    """scores = X B with B = argmin |X - X B|^2 + lambda |B|^2, diag(B) = 0.

    In closed form, with P = (X'X + lambda I)^-1:  B_ij = -P_ij / P_jj off the diagonal.

    Reference: Steck, "Embarrassingly Shallow Autoencoders for Sparse Data", WWW 2019, eq. (8).

    Args:
        weights: B, items x items; `EASE.fit` finds it.
    """

    def __init__(self, weights: Scores) -> None:
        self.weights = weights

    @classmethod
    def fit(cls, train: Interactions, regularization: float = 200.0) -> EASE:
        """Solve for B.

        Args:
            train: who has what.
            regularization: lambda > 0. 100 to 500 suits data of some ten thousand interactions,
                more of them want more of it.
        """
        if not regularization > 0:
            raise InputError(f"regularization must be above 0, got {regularization!r}")
        needed = 2 * 4 * train.n_items**2
        if needed > _MOST_BYTES:
            raise InputError(
                f"EASE inverts an items x items matrix: {train.n_items:,} items would need"
                f" {needed / 2**30:.0f} GB; use itemknn, or a k-core with fewer items"
            )
        gram = np.asarray((train.matrix.T @ train.matrix).todense(), dtype=np.float32)
        gram[np.diag_indices_from(gram)] += np.float32(regularization)
        # X'X + lambda I is symmetric positive definite: Cholesky is half the work of an LU.
        factor, lower = linalg.cho_factor(gram, lower=True, overwrite_a=True, check_finite=False)
        inverse, info = linalg.lapack.spotri(factor, lower=lower, overwrite_c=True)
        if info:
            raise InputError(
                f"EASE cannot invert its matrix; raise regularization above {regularization}"
            )
        inverse = np.tril(inverse)
        diagonal = np.diag(inverse).copy()
        weights = inverse + np.tril(inverse, -1).T
        weights /= -diagonal
        weights[np.diag_indices_from(weights)] = 0.0
        return cls(np.ascontiguousarray(weights))

    @property
    def n_items(self) -> int:
        return len(self.weights)

    def scores_of(self, histories: Any) -> Scores:
        scores: Scores = histories @ self.weights
        return scores


def ease(train: Interactions, regularization: float = 200.0) -> Scorer:
    """EASE over the training histories, with popularity for users without one."""
    return ByHistory(EASE.fit(train, regularization), train.matrix, item_counts(train))
