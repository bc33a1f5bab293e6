"""EASE: a linear item-item model in closed form, for small and large catalogues."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
from scipy import linalg, sparse
from threadpoolctl import threadpool_limits

from llpauc.data.interactions import Interactions, Split
from llpauc.errors import InputError
from llpauc.evaluation.scorer import Scores, item_counts
from llpauc.models.base import (
    Arrays,
    FitData,
    FitResult,
    Model,
    Training,
    check_shape,
    csr_arrays,
    csr_from_arrays,
)
from llpauc.models.choice import best_of_grids, valid_metric
from llpauc.models.registry import EASEOptions

_MAX_BYTES = 8 << 30
_FULL_ITEMS = 10_000  # items up to which every item is a neighbour by default
_NEIGHBOURS = 200  # beyond
_CHOICE_NEIGHBOURS = 100  # while the regularization is chosen
_GRID = (10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0)
_FIRST = 200.0  # of the grid, also where there is nothing to choose on
_PROBE_ITEMS, _PROBE_PAIRS = 1_000, 1_000_000  # size of the probes of `fit_cost`
_PROBE_THREADS = (1, 1, None, None)  # None: all

Weights = Any  # (n_items, n_items), dense or CSR


class EASE(Model):
    """scores = X B with B = argmin |X - X B|^2 + lambda |B|^2, diag(B) = 0.

    In closed form, with P = (X'X + lambda I)^-1:  B_ij = -P_ij / P_jj off the diagonal.

    With `neighbours` below the number of items, column j of B is zero but for the neighbours N of
    item j, those with the highest cosine of the items' user sets, and solves the smaller problem

        b = (G_NN + lambda I)^-1 G_Nj,  G = X'X

    so that no items x items matrix is inverted. On Gowalla (40,988 items) 200 neighbours are better
    than all.

    | symbol | meaning | name |
    |---|---|---|
    | X | users x items matrix of zeros and ones, or of weights | `train.positives` |
    | B | items x items weights | `weights` |
    | lambda | ridge penalty, above 0 | `regularization` |

    Without `regularization` it is chosen on the validation part; `options` then holds the choice.

    Reference: Steck, "Embarrassingly Shallow Autoencoders for Sparse Data", WWW 2019, eq. (8).
    """

    name = "ease"
    Options = EASEOptions
    choosing_fits = 3
    weights: Weights

    @classmethod
    def fit_cost(cls, train: Interactions) -> tuple[float, int]:
        """The time of each step at a smaller size, scaled up; three items x items matrices."""
        if train.n_items > _FULL_ITEMS:
            return _local_cost(train)
        size = min(train.n_items, _PROBE_ITEMS)
        pairs = _pairs(train.positives)
        sample = train.positives[:: max(1, int(pairs // _PROBE_PAIRS))]
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
                _full_weights(inverse)
                at.append(time.perf_counter())
            times.append(np.diff(at))
        scale = train.n_items / size
        factors = [pairs / max(_pairs(sample), 1.0), scale**3, scale**2]
        return (1 + cls.choosing_fits) * float(
            np.min(times, axis=0) @ factors
        ), 3 * 4 * train.n_items**2

    def fit(self, data: FitData, training: Training | None = None) -> FitResult:
        train = data.all
        if self.options.regularization is None:
            chosen = self._choose(data.split)
            self.options = dataclasses.replace(self.options, regularization=chosen)
        neighbours = self._neighbours(train.n_items)
        self.weights = item_weights(train, self.options.regularization, neighbours)
        self.fallback = item_counts(train)
        return FitResult(train)

    def _neighbours(self, n_items: int) -> int:
        default = n_items if n_items <= _FULL_ITEMS else _NEIGHBOURS
        return min(self.options.neighbours or default, n_items)

    def _choose(self, split: Split) -> float:
        """The regularization with the best metric on the validation part."""
        if split.valid is None:
            return _FIRST
        neighbours = self._neighbours(split.n_items)
        if neighbours < split.n_items:
            neighbours = min(neighbours, _CHOICE_NEIGHBOURS)

        def value(options: Mapping[str, float]) -> float:
            trial = EASE(dataclasses.replace(self.options, **options))
            trial.weights = item_weights(split.train, options["regularization"], neighbours)
            trial.fallback = item_counts(split.train)
            return valid_metric(trial.scorer(split.train.positives), split)

        first = {"regularization": _FIRST}
        return best_of_grids({"regularization": _GRID}, first, value)["regularization"]

    def scores_of(self, histories: Any) -> Scores:
        product = histories @ self.weights
        scores: Scores = product.toarray() if sparse.issparse(product) else product
        return scores

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        is_sparse = sparse.issparse(self.weights)
        weights = csr_arrays(_SAVED, self.weights) if is_sparse else {_SAVED: self.weights}
        return {**super().arrays(), **weights}

    def load_arrays(self, arrays: Arrays, n_users: int, n_items: int) -> None:
        super().load_arrays(arrays, n_users, n_items)
        if _SAVED in arrays:
            self.weights = arrays[_SAVED]
            check_shape(_SAVED, self.weights, (n_items, n_items))
        else:
            self.weights = csr_from_arrays(arrays, _SAVED, (n_items, n_items))


_SAVED = "item_weights"


def item_weights(train: Interactions, regularization: float, neighbours: int) -> Weights:
    """B of EASE, as a dense matrix if every item is a neighbour, else CSR."""
    n_items = train.n_items
    if neighbours >= n_items:
        needed = 2 * 4 * n_items**2
        if needed > _MAX_BYTES:
            raise InputError(
                f"EASE inverts an items x items matrix: {n_items:,} items would need"
                f" {needed / 2**30:.0f} GB; leave neighbours out, or set it to {_NEIGHBOURS}"
            )
        gram = np.asarray((train.positives.T @ train.positives).todense(), dtype=np.float32)
        gram[np.diag_indices_from(gram)] += np.float32(regularization)
        return _full_weights(_inverse(gram))
    needed = int(8 * min(_pairs(train.positives), float(n_items) ** 2))
    if needed > _MAX_BYTES:
        raise InputError(
            f"EASE counts the users that items have in common: these events would need up to"
            f" {needed / 2**30:.0f} GB; use itemknn, or a k-core with fewer items"
        )
    gram = (train.positives.T @ train.positives).tocsr()
    gram.sort_indices()
    starts, columns = gram.indptr.astype(np.int64), gram.indices.astype(np.int32)
    counts = gram.data.astype(np.float32)
    totals = gram.diagonal().astype(np.float32)
    chosen = np.full((n_items, neighbours), -1, np.int32)
    solved = np.zeros((n_items, neighbours), np.float32)
    _solve_all(starts, columns, counts, totals, np.float32(regularization), chosen, solved)
    # Row j of the two tables holds j's neighbours; histories need B by neighbour.
    found = chosen >= 0
    targets = np.nonzero(found)[0]
    shape = (n_items, n_items)
    return sparse.csr_matrix((solved[found], (chosen[found], targets)), shape=shape)


@numba.njit(parallel=True, cache=True, fastmath=True)
def _solve_all(starts, columns, counts, totals, regularization, chosen, solved):
    """Neighbours and weights of every item; the CSR matrix of counts has sorted columns."""
    for j in numba.prange(len(starts) - 1):
        neighbours = _nearest(
            columns[starts[j] : starts[j + 1]], counts[starts[j] : starts[j + 1]], totals, j,
            chosen.shape[1],
        )  # fmt: skip
        n = len(neighbours)
        if n == 0:
            continue
        gram = np.empty((n, n), np.float32)
        for row in range(n):
            item = neighbours[row]
            begin, end = starts[item], starts[item + 1]
            _lookup(columns[begin:end], counts[begin:end], neighbours[: row + 1], gram[row])
            gram[row, row] += regularization
        right = np.empty(n, np.float32)
        _lookup(
            columns[starts[j] : starts[j + 1]], counts[starts[j] : starts[j + 1]], neighbours, right
        )
        _cholesky_solve(gram, right)
        chosen[j, :n] = neighbours
        solved[j, :n] = right


# Inlined: as functions of their own they would be optimized in another way once they are cached.
@numba.njit(inline="always")
def _nearest(items, counts, totals, j, most):
    """The items of highest count / sqrt(total), j left out; sorted, equal ones by their index."""
    others = np.empty(len(items), np.int32)
    similarities = np.empty(len(items), np.float32)
    n = 0
    for at in range(len(items)):
        if items[at] != j:
            others[n] = items[at]
            similarities[n] = counts[at] / np.sqrt(totals[items[at]])
            n += 1
    if n <= most:
        return others[:n]
    limit = np.partition(similarities[:n], n - most)[n - most]
    equal = most  # how many items at the limit still fit
    for at in range(n):
        equal -= similarities[at] > limit
    out = np.empty(most, np.int32)
    size = 0
    for at in range(n):
        if similarities[at] > limit or (similarities[at] == limit and equal > 0):
            equal -= similarities[at] == limit
            out[size] = others[at]
            size += 1
    return out


@numba.njit(inline="always")
def _lookup(columns, values, wanted, out):
    """out[i] = value of column wanted[i], 0 where there is none; both are sorted."""
    begin = 0
    for i in range(len(wanted)):
        end = len(columns)
        while begin < end:
            middle = (begin + end) >> 1
            if columns[middle] < wanted[i]:
                begin = middle + 1
            else:
                end = middle
        found = begin < len(columns) and columns[begin] == wanted[i]
        out[i] = values[begin] if found else np.float32(0.0)


@numba.njit(inline="always", fastmath=True)
def _cholesky_solve(a, b):
    """Solve a x = b in place of b; the lower triangle of the symmetric `a` is overwritten."""
    n = len(b)
    for row in range(n):
        for column in range(row + 1):
            total = a[row, column]
            for k in range(column):
                total -= a[row, k] * a[column, k]
            if row > column:
                a[row, column] = total / a[column, column]
            else:
                a[row, row] = np.sqrt(max(total, np.float32(1e-12)))
    for row in range(n):
        total = b[row]
        for k in range(row):
            total -= a[row, k] * b[k]
        b[row] = total / a[row, row]
    for row in range(n - 1, -1, -1):
        b[row] /= a[row, row]
        value = b[row]
        for k in range(row):
            b[k] -= a[row, k] * value


def _local_cost(train: Interactions) -> tuple[float, int]:
    """Seconds of a fit with neighbours, from the items of a sample; bytes of the counts."""
    begin = time.perf_counter()
    sample = train.take(train.items < _PROBE_ITEMS // 2)
    item_weights(sample, _FIRST, _NEIGHBOURS)
    seconds = (time.perf_counter() - begin) * train.n_items / (_PROBE_ITEMS // 2)
    return 2 * seconds, int(12 * min(_pairs(train.positives), float(train.n_items) ** 2))


def _inverse(gram: Scores) -> Scores:
    """The lower triangle of the inverse of a symmetric positive definite matrix, in its place."""
    # Cholesky takes half the time of LU.
    factor, lower = linalg.cho_factor(gram, lower=True, overwrite_a=True, check_finite=False)
    inverse, info = linalg.lapack.spotri(factor, lower=lower, overwrite_c=True)
    if info:
        raise InputError("EASE cannot invert its matrix; raise regularization")
    return np.tril(inverse)


def _full_weights(inverse: Scores) -> Scores:
    """B of the lower triangle of P."""
    diagonal = np.diag(inverse).copy()
    weights = inverse + np.tril(inverse, -1).T
    weights /= -diagonal
    weights[np.diag_indices_from(weights)] = 0.0
    return np.ascontiguousarray(weights)


def _pairs(matrix: Any) -> float:
    """Multiplications of the product of the matrix with itself."""
    return float((np.diff(matrix.indptr).astype(np.float64) ** 2).sum())
