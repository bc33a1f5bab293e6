"""EASE: a linear item-item model in closed form, and a strong baseline."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import linalg

from llpauc.data.interactions import Interactions
from llpauc.errors import InputError
from llpauc.evaluation.scorer import Scores, item_counts
from llpauc.models.base import Arrays, FitData, FitResult, Model, Training, check_shape
from llpauc.models.registry import EASEOptions

_MAX_BYTES = 8 << 30


class EASE(Model):
    """scores = X B with B = argmin |X - X B|^2 + lambda |B|^2, diag(B) = 0.

    In closed form, with P = (X'X + lambda I)^-1:  B_ij = -P_ij / P_jj off the diagonal.

    | symbol | meaning | name |
    |---|---|---|
    | X | users x items matrix of zeros and ones | `train.matrix` |
    | B | items x items weights | `weights` |
    | lambda | ridge penalty, above 0 | `regularization` |

    Reference: Steck, "Embarrassingly Shallow Autoencoders for Sparse Data", WWW 2019, eq. (8).
    """

    name = "ease"
    Options = EASEOptions
    weights: Scores

    @classmethod
    def fit_cost(cls, train: Interactions) -> tuple[float, int]:
        """Three items x items matrices; the time of a small inverse, scaled by the cube."""
        size = 400
        small = np.eye(size, dtype=np.float32) * 2 + np.float32(1e-3)
        seconds = []
        for _ in range(3):
            begun = time.perf_counter()
            np.linalg.inv(small)
            seconds.append(time.perf_counter() - begun)
        return min(seconds) * float(train.n_items / size) ** 3, 3 * 4 * train.n_items**2

    def fit(self, data: FitData, training: Training | None = None) -> FitResult:
        train = data.all
        needed = 2 * 4 * train.n_items**2
        if needed > _MAX_BYTES:
            raise InputError(
                f"EASE inverts an items x items matrix: {train.n_items:,} items would need"
                f" {needed / 2**30:.0f} GB; use itemknn, or a k-core with fewer items"
            )
        penalty = np.float32(self.options.regularization)
        gram = np.asarray((train.matrix.T @ train.matrix).todense(), dtype=np.float32)
        gram[np.diag_indices_from(gram)] += penalty
        # X'X + lambda I is symmetric positive definite: Cholesky takes half the time of LU.
        factor, lower = linalg.cho_factor(gram, lower=True, overwrite_a=True, check_finite=False)
        inverse, info = linalg.lapack.spotri(factor, lower=lower, overwrite_c=True)
        if info:
            raise InputError(f"EASE cannot invert its matrix; raise regularization above {penalty}")
        inverse = np.tril(inverse)
        diagonal = np.diag(inverse).copy()
        weights = inverse + np.tril(inverse, -1).T
        weights /= -diagonal
        weights[np.diag_indices_from(weights)] = 0.0
        self.weights, self.fallback = np.ascontiguousarray(weights), item_counts(train)
        return FitResult(train)

    def scores_of(self, histories: Any) -> Scores:
        scores: Scores = histories @ self.weights
        return scores

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        return {**super().arrays(), "item_weights": self.weights}

    def load_arrays(self, arrays: Arrays, n_users: int, n_items: int) -> None:
        super().load_arrays(arrays, n_users, n_items)
        self.weights = arrays["item_weights"]
        check_shape("item_weights", self.weights, (n_items, n_items))
