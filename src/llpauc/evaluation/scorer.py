"""What ranking needs of a model: scores of some users for all items, and nothing else."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from llpauc.data.interactions import Indices, Interactions
from llpauc.errors import InputError

Scores = npt.NDArray[np.float32]


class Scorer(Protocol):
    """A fitted model, seen from the ranking side.

    `scores_into(users, out)` fills `out` (len(users), n_items) with one row a user, higher is
    better. A user's row must not depend on which other users are asked for with it.
    """

    @property
    def n_items(self) -> int: ...

    def scores_into(self, users: Indices, out: Scores) -> None: ...


class FactorScorer:
    """Scores as inner products of two tables: `user_vectors @ item_vectors.T`.

    Args:
        user_vectors: (n_users, d) float32.
        item_vectors: (n_items, d) float32.
    """

    def __init__(self, user_vectors: Scores, item_vectors: Scores) -> None:
        if user_vectors.shape[1] != item_vectors.shape[1]:
            raise InputError(
                f"user and item vectors must have one width, got {user_vectors.shape[1]}"
                f" and {item_vectors.shape[1]}"
            )
        self.user_vectors = np.ascontiguousarray(user_vectors, dtype=np.float32)
        # Items lie along the rows of the product, so that BLAS streams them: measured 2x on
        # blocks of 32 users against a transposed view.
        self._items_by_column = np.ascontiguousarray(item_vectors.T, dtype=np.float32)

    @property
    def n_items(self) -> int:
        return int(self._items_by_column.shape[1])

    @property
    def item_vectors(self) -> Scores:
        return self._items_by_column.T

    def scores_into(self, users: Indices, out: Scores) -> None:
        rows = self.user_vectors[users]
        if self.n_items == 1:  # BLAS's matrix-vector path, whose last bits change by the call
            np.sum(rows * self.item_vectors, axis=1, keepdims=True, out=out)
        elif len(users) == 1:
            # One row would take BLAS's matrix-vector path, whose last bits differ from the
            # matrix-matrix path: ask for two, so that batch = single.
            out[:] = (np.repeat(rows, 2, axis=0) @ self._items_by_column)[:1]
        else:
            np.matmul(rows, self._items_by_column, out=out)


class HistoryScorer(Protocol):
    """A model that can score somebody by their items alone: a new user needs no training."""

    @property
    def n_items(self) -> int: ...

    def scores_of(self, histories: Any) -> Scores:
        """(n, n_items) scores of n people, given what they have as a CSR matrix (n, n_items)."""
        ...


class Constant:
    """Everybody gets the same scores."""

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
    """Known users scored by their histories; those without one by the fallback."""

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
    """Distinct users of each item: what popularity ranks by."""
    counts = np.bincount(train.matrix.indices, minlength=train.n_items)
    return counts.astype(np.float32)
