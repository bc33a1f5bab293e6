"""EASE: a linear item-item model in closed form, and a strong baseline."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import linalg
from threadpoolctl import threadpool_limits

from llpauc.data.interactions import Interactions
from llpauc.errors import InputError
from llpauc.evaluation.scorer import Scores, item_counts
from llpauc.models.base import Arrays, FitData, FitResult, Model, Training, check_shape
from llpauc.models.registry import EASEOptions

_MAX_BYTES = 8 << 30
_PROBE_ITEMS, _PROBE_PAIRS = 1_000, 1_000_000  # size of the probes of `fit_cost`
_PROBE_THREADS = (1, 1, None, None)  # None: all


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
        """Three items x items matrices; the time of each step at a smaller size, scaled up."""
        size = min(train.n_items, _PROBE_ITEMS)
        pairs = _pairs(train.matrix)
        sample = train.matrix[:: max(1, int(pairs // _PROBE_PAIRS))]
        times = []
        # The fastest counts: on a busy machine, threads that wait for each other take far longer.
        for threads in _PROBE_THREADS:
            with threadpool_limits(threads, "blas"):
                at = [time.perf_counter()]
                gram = np.asarray((sample.T @ sample)[:size, :size].todense(), dtype=np.float32)
                at.append(time.perf_counter())
                gram[np.diag_indices(size)] += np.float32(1.0)
                inverse = _inverse(gram)
                at.append(time.perf_counter())
                _weights(inverse)
                at.append(time.perf_counter())
            times.append(np.diff(at))
        scale = train.n_items / size
        factors = [pairs / max(_pairs(sample), 1.0), scale**3, scale**2]
        return float(np.min(times, axis=0) @ factors), 3 * 4 * train.n_items**2

    def fit(self, data: FitData, training: Training | None = None) -> FitResult:
        train = data.all
        needed = 2 * 4 * train.n_items**2
        if needed > _MAX_BYTES:
            raise InputError(
                f"EASE inverts an items x items matrix: {train.n_items:,} items would need"
                f" {needed / 2**30:.0f} GB; use itemknn, or a k-core with fewer items"
            )
        gram = np.asarray((train.matrix.T @ train.matrix).todense(), dtype=np.float32)
        gram[np.diag_indices_from(gram)] += np.float32(self.options.regularization)
        self.weights, self.fallback = _weights(_inverse(gram)), item_counts(train)
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


def _inverse(gram: Scores) -> Scores:
    """The lower triangle of the inverse of a symmetric positive definite matrix, in its place."""
    # Cholesky takes half the time of LU.
    factor, lower = linalg.cho_factor(gram, lower=True, overwrite_a=True, check_finite=False)
    inverse, info = linalg.lapack.spotri(factor, lower=lower, overwrite_c=True)
    if info:
        raise InputError("EASE cannot invert its matrix; raise regularization")
    return np.tril(inverse)


def _weights(inverse: Scores) -> Scores:
    """B of the lower triangle of P."""
    diagonal = np.diag(inverse).copy()
    weights = inverse + np.tril(inverse, -1).T
    weights /= -diagonal
    weights[np.diag_indices_from(weights)] = 0.0
    return np.ascontiguousarray(weights)


def _pairs(matrix: Any) -> float:
    """Multiplications of the product of the matrix with itself."""
    return float((np.diff(matrix.indptr).astype(np.float64) ** 2).sum())
