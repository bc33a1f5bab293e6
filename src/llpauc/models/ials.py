"""iALS: matrix factorization of all pairs by alternating least squares, without sampling."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from llpauc.data.interactions import Interactions, Split
from llpauc.evaluation.scorer import FactorScorer, Scorer, Scores, inner_products, item_counts
from llpauc.models.base import Arrays, FitData, FitResult, Model, Training, check_shape
from llpauc.models.choice import best_of_grids, valid_metric
from llpauc.models.registry import IALSOptions

_GRIDS = {  # options that validation chooses
    "regularization": (0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128),
    "unobserved_weight": (0.0125, 0.025, 0.05, 0.1, 0.2, 0.4),
}
_FIRST = {"regularization": 0.008, "unobserved_weight": 0.05}  # where there is nothing to choose on
_MULTIPLICATIONS_PER_SECOND = 2e10
_COARSE = {"dimensions": 64, "iterations": 4}  # of the fits that choose the options first
_STEPS = 3  # of conjugate gradients, each time the vectors of one side are solved for
_FOLD_IN_STEPS = 10  # for new users, who start at 0


class IALS(Model):
    """score(u, i) = <p_u, q_i>, with vectors that minimize

        sum_{(u,i) in train} w_ui (<p_u, q_i> - 1)^2 + a sum_{all u,i} <p_u, q_i>^2
        + lambda (sum_u (n_u + a n_items) |p_u|^2 + sum_i (n_i + a n_users) |q_i|^2)

    Users and items are solved for in turn. Each user is a linear system

        (a Q'Q + sum_{i of u} w_ui q_i q_i' + lambda (n_u + a n_items) I) p_u
        = sum_{i of u} w_ui q_i

    and a few steps of conjugate gradients from the previous vector are enough. A new user is solved
    for in the same way.

    | symbol | meaning | name |
    |---|---|---|
    | a | weight of every pair, observed or not | `unobserved_weight` |
    | lambda | ridge penalty, scaled with the frequencies | `regularization` |
    | w_ui | weight of a pair, 1 without weights | `train.positives` |
    | n_u, n_i | sum of the weights of a user, of an item | |

    Where `regularization` or `unobserved_weight` is not given, it is chosen on the validation part;
    `options` then holds the choice.

    Reference: Hu et al., ICDM 2008; the scaled penalty as in Rendle et al., "Revisiting the
    Performance of iALS on Item Recommendation Benchmarks", RecSys 2022; conjugate gradients as in
    Takacs et al., RecSys 2011.
    """

    name = "ials"
    Options = IALSOptions
    choosing_fits = 6
    user_vectors: Scores
    item_vectors: Scores

    @classmethod
    def fit_cost(cls, train: Interactions) -> tuple[float, int]:
        """By the multiplications of all fits that choose the options, and the two tables."""
        d, rows = cls.Options.dimensions, train.n_users + train.n_items
        steps = 2 * cls.Options.iterations * (_STEPS + 1)
        work = (1 + cls.choosing_fits) * steps * (rows * d**2 + 4 * len(train) * d)
        return work / _MULTIPLICATIONS_PER_SECOND, 8 * rows * d

    def fit(self, data: FitData, training: Training | None = None) -> FitResult:
        split, given = data.split, self.options
        asked = [name for name in _GRIDS if getattr(given, name) is None]
        self.options = dataclasses.replace(given, **{name: _FIRST[name] for name in asked})
        if asked and split.valid is not None:
            coarse = {name: min(size, getattr(given, name)) for name, size in _COARSE.items()}
            self._choose(asked, split, coarse, rounds=4)
            self._choose(asked, split, {}, rounds=1)
        self._factorize(data.all)
        return FitResult(data.all)

    def _choose(
        self, asked: Sequence[str], split: Split, size: Mapping[str, int], rounds: int
    ) -> None:
        """Set the asked options to the best ones, from those they have, by fits of this size."""

        def value(options: Mapping[str, float]) -> float:
            trial = IALS(dataclasses.replace(self.options, **size, **options))
            trial._factorize(split.train)
            return valid_metric(trial.scorer(None), split)

        grids = {name: _GRIDS[name] for name in asked}
        first = {name: getattr(self.options, name) for name in asked}
        best = best_of_grids(grids, first, value, rounds)
        self.options = dataclasses.replace(self.options, **best)

    def _factorize(self, train: Interactions) -> None:
        by_user, by_item = train.positives, train.positives.T.tocsr()
        rng = np.random.default_rng(0)
        scale = np.float32(0.1 / np.sqrt(self.options.dimensions))
        shape = (train.n_items, self.options.dimensions)
        self.item_vectors = scale * rng.standard_normal(shape, dtype=np.float32)
        self.user_vectors = np.zeros((train.n_users, shape[1]), np.float32)
        for iteration in range(self.options.iterations):
            self._solve(by_user, self.item_vectors, self.user_vectors, _STEPS)
            if iteration == 0:  # the random values would stay where no user has a component
                self.item_vectors[:] = 0
            self._solve(by_item, self.user_vectors, self.item_vectors, _STEPS)
        self._solve(by_user, self.item_vectors, self.user_vectors, _STEPS)
        self.fallback = item_counts(train)

    def _solve(self, histories: Any, others: Scores, vectors: Scores, steps: int) -> None:
        """Improve `vectors`, one per row of the CSR matrix, given the vectors of its columns."""
        weight = np.float32(self.options.unobserved_weight)
        with threadpool_limits(1, "blas"):  # its threads would change the order of the sums
            gram = weight * (others.T @ others)
        lengths = np.asarray(histories.sum(axis=1)).ravel()
        penalties = self.options.regularization * (lengths + weight * len(others))
        _conjugate_gradients(
            histories.indptr.astype(np.int64), histories.indices, histories.data, others, gram,
            penalties.astype(np.float32), vectors, steps,
        )  # fmt: skip

    def scorer(self, histories: Any) -> Scorer:
        return FactorScorer(self.user_vectors, self.item_vectors)

    def scores_of(self, histories: Any) -> Scores:
        vectors = np.zeros((histories.shape[0], self.item_vectors.shape[1]), np.float32)
        self._solve(histories, self.item_vectors, vectors, _FOLD_IN_STEPS)
        scores = np.empty(histories.shape, np.float32)
        inner_products(vectors, self.item_vectors, scores)
        return scores

    def item_units(self) -> Scores | None:
        lengths = np.linalg.norm(self.item_vectors, axis=1, keepdims=True)
        units: Scores = self.item_vectors / np.maximum(lengths, 1e-12)
        return units

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        vectors = {"user_vectors": self.user_vectors, "item_vectors": self.item_vectors}
        return {**super().arrays(), **vectors}

    def load_arrays(self, arrays: Arrays, n_users: int, n_items: int) -> None:
        super().load_arrays(arrays, n_users, n_items)
        self.user_vectors, self.item_vectors = arrays["user_vectors"], arrays["item_vectors"]
        check_shape("user_vectors", self.user_vectors, (n_users, self.options.dimensions))
        check_shape("item_vectors", self.item_vectors, (n_items, self.options.dimensions))


@numba.njit(parallel=True, cache=True, fastmath=True)
def _conjugate_gradients(starts, columns, values, others, gram, penalties, vectors, steps):
    """Solve (gram + sum of w y y' + penalty I) x = sum of w y for each row, y the vectors of its
    columns and w their values, from x as it is. A row without columns becomes 0."""
    d = others.shape[1]
    for row in numba.prange(len(vectors)):
        x = vectors[row]
        items = columns[starts[row] : starts[row + 1]]
        weights = values[starts[row] : starts[row + 1]]
        if len(items) == 0:
            x[:] = 0
            continue
        residual, image = np.zeros(d, np.float32), np.empty(d, np.float32)
        _apply(items, weights, others, gram, penalties[row], x, image)
        for i, w in zip(items, weights):  # noqa: B905, of Numba
            for k in range(d):
                residual[k] += w * others[i, k]
        size = np.float32(0)
        for k in range(d):
            residual[k] -= image[k]
            size += residual[k] * residual[k]
        direction = residual.copy()
        for _ in range(steps):
            if size < np.float32(1e-20):
                break
            _apply(items, weights, others, gram, penalties[row], direction, image)
            along = np.float32(0)
            for k in range(d):
                along += direction[k] * image[k]
            step = size / along
            new = np.float32(0)
            for k in range(d):
                x[k] += step * direction[k]
                residual[k] -= step * image[k]
                new += residual[k] * residual[k]
            ratio = new / size
            for k in range(d):
                direction[k] = residual[k] + ratio * direction[k]
            size = new


# Inlined: as a function of its own it would be optimized in another way once it is cached.
@numba.njit(inline="always", fastmath=True)
def _apply(items, weights, others, gram, penalty, x, out):
    """out = (gram + sum of w y y' + penalty I) x."""
    d = len(x)
    for k in range(d):
        out[k] = penalty * x[k]
    for k in range(d):
        for m in range(d):
            out[m] += gram[k, m] * x[k]
    for i, w in zip(items, weights):  # noqa: B905, of Numba
        product = np.float32(0)
        for k in range(d):
            product += others[i, k] * x[k]
        for k in range(d):
            out[k] += w * product * others[i, k]
