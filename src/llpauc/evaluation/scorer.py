"""The Scorer protocol: scores of users for all items, which is all that ranking needs."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numba
import numpy as np
import numpy.typing as npt

from llpauc.data.ids import IdMap, Indices
from llpauc.data.interactions import Interactions
from llpauc.errors import InputError

Scores = npt.NDArray[np.float32]

_ITEMS_PER_PASS = 1024  # with 128 dimensions their vectors take 512 KB and stay in the cache


class Scorer(Protocol):
    """A fitted model that can rank.

    `scores_into(users, out)` fills `out` (len(users), n_items) with one row per user, higher is
    better. The row of a user must not depend on the other users of the call.
    """

    @property
    def n_items(self) -> int: ...

    def scores_into(self, users: Indices, out: Scores) -> None: ...


@runtime_checkable
class HasScorer(Protocol):
    """A fitted recommender: it makes a scorer for the ids of any data."""

    def scorer_for(self, user_ids: IdMap, item_ids: IdMap) -> Scorer: ...


class FactorScorer:
    """Scores as inner products of two tables: `user_vectors @ item_vectors.T`.

    Args:
        user_vectors: (n_users, d) float32.
        item_vectors: (n_items, d) float32. The `item_vectors` of another scorer are not copied.
    """

    def __init__(self, user_vectors: Scores, item_vectors: Scores) -> None:
        shapes = user_vectors.shape, item_vectors.shape
        if any(len(shape) != 2 for shape in shapes) or shapes[0][1] != shapes[1][1]:
            raise InputError(
                "user and item vectors must be two tables of the same width, got the shapes"
                f" {shapes[0]} and {shapes[1]}"
            )
        self.user_vectors = np.ascontiguousarray(user_vectors, dtype=np.float32)
        self.item_vectors: Scores = np.asfortranarray(item_vectors, dtype=np.float32)

    @property
    def n_items(self) -> int:
        return len(self.item_vectors)

    def scores_into(self, users: Indices, out: Scores) -> None:
        inner_products(self.user_vectors[users], self.item_vectors, out)


def inner_products(vectors: Scores, item_vectors: Scores, out: Scores) -> None:
    """out = vectors @ item_vectors.T, where a row of `out` does not depend on the other rows.

    Every score is the sum over the dimensions in their order, each step a fused multiply-add:
    ((0 + a_0 x_0) + a_1 x_1) + ... BLAS chooses the order by the shape of the matrices, so the
    score of a user could differ in the last bits between two batches.

    Args:
        vectors: (n, d) float32.
        item_vectors: (n_items, d) float32; in Fortran order it is used without a copy.
        out: (n, n_items) float32, C order.
    """
    columns = np.ascontiguousarray(item_vectors.T)
    _inner_products(np.ascontiguousarray(vectors), columns, out)


@numba.njit(nogil=True, cache=True)
def _inner_products(vectors, columns, out):
    n, n_items = len(vectors), columns.shape[1]
    by_three = n - n % 3
    for start in range(0, n_items, _ITEMS_PER_PASS):
        stop = min(start + _ITEMS_PER_PASS, n_items)
        for u in range(0, by_three, 3):
            _three_users(vectors[u : u + 3], columns, start, stop, out[u : u + 3])
        for u in range(by_three, n):
            _one_user(vectors[u], columns, start, stop, out[u])


# `contract` permits fused multiply-adds; the other flags of fastmath would reorder the sums.


@numba.njit(nogil=True, cache=True, fastmath={"contract"})
def _three_users(vectors, columns, start, stop, out):
    """Three users and four dimensions in a pass, as many as the vector registers hold."""
    d = vectors.shape[1]
    whole = d - d % 4
    p, q, r = out[0, start:stop], out[1, start:stop], out[2, start:stop]
    p[:], q[:], r[:] = 0, 0, 0
    for k in range(0, whole, 4):
        p0, p1, p2, p3 = vectors[0, k], vectors[0, k + 1], vectors[0, k + 2], vectors[0, k + 3]
        q0, q1, q2, q3 = vectors[1, k], vectors[1, k + 1], vectors[1, k + 2], vectors[1, k + 3]
        r0, r1, r2, r3 = vectors[2, k], vectors[2, k + 1], vectors[2, k + 2], vectors[2, k + 3]
        v0, v1 = columns[k, start:stop], columns[k + 1, start:stop]
        v2, v3 = columns[k + 2, start:stop], columns[k + 3, start:stop]
        for j in range(stop - start):
            x0, x1, x2, x3 = v0[j], v1[j], v2[j], v3[j]
            p[j] = (((p[j] + p0 * x0) + p1 * x1) + p2 * x2) + p3 * x3
            q[j] = (((q[j] + q0 * x0) + q1 * x1) + q2 * x2) + q3 * x3
            r[j] = (((r[j] + r0 * x0) + r1 * x1) + r2 * x2) + r3 * x3
    for k in range(whole, d):
        a, b, c, v = vectors[0, k], vectors[1, k], vectors[2, k], columns[k, start:stop]
        for j in range(stop - start):
            p[j] += a * v[j]
            q[j] += b * v[j]
            r[j] += c * v[j]


@numba.njit(nogil=True, cache=True, fastmath={"contract"})
def _one_user(vector, columns, start, stop, out):
    """One user, eight dimensions in a pass: each score is loaded and stored less often."""
    d = len(vector)
    whole = d - d % 8
    o = out[start:stop]
    o[:] = 0
    for k in range(0, whole, 8):
        a0, a1, a2, a3 = vector[k], vector[k + 1], vector[k + 2], vector[k + 3]
        a4, a5, a6, a7 = vector[k + 4], vector[k + 5], vector[k + 6], vector[k + 7]
        v0, v1 = columns[k, start:stop], columns[k + 1, start:stop]
        v2, v3 = columns[k + 2, start:stop], columns[k + 3, start:stop]
        v4, v5 = columns[k + 4, start:stop], columns[k + 5, start:stop]
        v6, v7 = columns[k + 6, start:stop], columns[k + 7, start:stop]
        for j in range(stop - start):
            s = (((o[j] + a0 * v0[j]) + a1 * v1[j]) + a2 * v2[j]) + a3 * v3[j]
            o[j] = (((s + a4 * v4[j]) + a5 * v5[j]) + a6 * v6[j]) + a7 * v7[j]
    for k in range(whole, d):
        a, v = vector[k], columns[k, start:stop]
        for j in range(stop - start):
            o[j] += a * v[j]


class HistoryScorer(Protocol):
    """A model that scores users by their items alone, so that new users need no training."""

    @property
    def n_items(self) -> int: ...

    def scores_of(self, histories: Any) -> Scores:
        """(n, n_items) scores of n users, given their items as a CSR matrix (n, n_items)."""
        ...


class Constant:
    """The same scores for every user."""

    def __init__(self, scores: Scores) -> None:
        self.scores = np.ascontiguousarray(scores, dtype=np.float32)

    @property
    def n_items(self) -> int:
        return len(self.scores)

    def scores_into(self, users: Indices, out: Scores) -> None:
        out[:] = self.scores

    def scores_of(self, histories: Any) -> Scores:
        return np.tile(self.scores, (histories.shape[0], 1))


class ByHistory:
    """Scores by the history of each user; users without a history get the fallback."""

    def __init__(self, model: HistoryScorer, histories: Any, fallback: Scores) -> None:
        self.model, self._histories, self._fallback = model, histories, fallback

    @property
    def n_items(self) -> int:
        return self.model.n_items

    def scores_into(self, users: Indices, out: Scores) -> None:
        histories = self._histories[users]
        out[:] = self.model.scores_of(histories)
        out[np.diff(histories.indptr) == 0] = self._fallback


def item_counts(train: Interactions) -> Scores:
    """The weights of each item's users added up (without weights, their number), the score of the
    popularity model."""
    pairs = train.positives
    counts = np.bincount(pairs.indices, pairs.data, minlength=train.n_items)
    return counts.astype(np.float32)
