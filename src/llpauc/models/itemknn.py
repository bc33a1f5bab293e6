"""ItemKNN: nearest neighbours by the cosine of the items' user sets."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from llpauc.data.interactions import Interactions
from llpauc.evaluation.scorer import Scores, item_counts
from llpauc.models.base import (
    Arrays,
    FitData,
    FitResult,
    Model,
    Training,
    csr_arrays,
    csr_from_arrays,
)
from llpauc.models.registry import ItemKNNOptions

_BLOCK = 512  # items whose similarities are held dense at once


class ItemKNN(Model):
    """score(u, i) = sum over the user's items j of sim(j, i), each i keeping its best neighbours.

    sim(j, i) = |U_j and U_i| / (sqrt(|U_j| |U_i|) + shrinkage)

    U_i are the users of item i; where events have weights, sim is the cosine of the weights of the
    items' users, and j counts with its weight. After `fit`, `neighbours` is sim as a CSR matrix,
    row j, column i.

    Reference: Sarwar et al., WWW 2001; shrinkage as in Dacrema et al., RecSys 2019.
    """

    name = "itemknn"
    Options = ItemKNNOptions
    neighbours: Any

    @classmethod
    def fit_cost(cls, train: Interactions) -> tuple[float, int]:
        pairs = float((np.diff(train.positives.indptr).astype(np.float64) ** 2).sum())
        return pairs / 2e7 + float(train.n_items) ** 2 * 2e-8, 0

    def fit(self, data: FitData, training: Training | None = None) -> FitResult:
        train, most = data.all, self.options.neighbours
        by_user = train.positives
        by_item = by_user.T.tocsr()
        norms = np.sqrt(np.bincount(by_user.indices, by_user.data**2.0, train.n_items))
        norms = norms.astype(np.float32)
        shrinkage = np.float32(self.options.shrinkage)
        blocks = []
        for start in range(0, train.n_items, _BLOCK):
            together = (by_item[start : start + _BLOCK] @ by_user).toarray()
            scale = norms[start : start + _BLOCK, None] * norms[None, :] + shrinkage
            # Items without users have no norm; their row is zero whatever it is divided by.
            similar = np.divide(together, scale, out=np.zeros_like(together), where=scale > 0)
            rows = np.arange(len(similar))
            similar[rows, start + rows] = 0.0
            if most < train.n_items - 1:
                weakest = np.partition(similar, -most, axis=1)[:, -most, None]
                similar[similar < weakest] = 0.0
            blocks.append(sp.csr_matrix(similar))
        # Row i of the stack holds i's neighbours j; histories need it by j.
        self.neighbours, self.fallback = sp.vstack(blocks).T.tocsr(), item_counts(train)
        return FitResult(train)

    def scores_of(self, histories: Any) -> Scores:
        scores: Scores = (histories @ self.neighbours).toarray()
        return scores

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        return {**super().arrays(), **csr_arrays("neighbours", self.neighbours)}

    def load_arrays(self, arrays: Arrays, n_users: int, n_items: int) -> None:
        super().load_arrays(arrays, n_users, n_items)
        self.neighbours = csr_from_arrays(arrays, "neighbours", (n_items, n_items))
