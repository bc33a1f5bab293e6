"""ItemKNN: neighbours by the cosine of the items' user sets."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from llpauc.data.interactions import Interactions
from llpauc.errors import InputError, check_at_least
from llpauc.evaluation.scorer import ByHistory, Scorer, Scores, item_counts

_BLOCK = 512  # items whose similarities are held dense at once


class ItemKNN:
    """score(u, i) = sum over the user's items j of sim(j, i), each i keeping its best neighbours.

    sim(j, i) = |U_j and U_i| / (sqrt(|U_j| |U_i|) + shrinkage)

    Reference: Sarwar et al., WWW 2001; shrinkage as in Dacrema et al., RecSys 2019.

    Args:
        neighbours: sim as a CSR matrix, row j, column i; `ItemKNN.fit` finds it.
    """

    def __init__(self, neighbours: Any) -> None:
        self.neighbours = neighbours

    @classmethod
    def fit(cls, train: Interactions, neighbours: int = 100, shrinkage: float = 10.0) -> ItemKNN:
        """Compare every two items.

        Args:
            train: who has what.
            neighbours: how many similar items each item keeps, at least 1.
            shrinkage: >= 0; larger values trust items with few users less.
        """
        check_at_least("neighbours", neighbours, 1)
        if not shrinkage >= 0:
            raise InputError(f"shrinkage must be at least 0, got {shrinkage!r}")
        by_item = train.matrix.T.tocsr()
        norms = np.sqrt(np.diff(by_item.indptr)).astype(np.float32)
        blocks = []
        for start in range(0, train.n_items, _BLOCK):
            together = (by_item[start : start + _BLOCK] @ train.matrix).toarray()
            scale = norms[start : start + _BLOCK, None] * norms[None, :] + np.float32(shrinkage)
            # Items without users have no norm; their row is zero whatever it is divided by.
            similar = np.divide(together, scale, out=np.zeros_like(together), where=scale > 0)
            rows = np.arange(len(similar))
            similar[rows, start + rows] = 0.0
            if neighbours < train.n_items - 1:
                weakest = np.partition(similar, -neighbours, axis=1)[:, -neighbours, None]
                similar[similar < weakest] = 0.0
            blocks.append(sp.csr_matrix(similar))
        # Row i of the stack holds i's neighbours j; histories need it by j.
        return cls(sp.vstack(blocks).T.tocsr())

    @property
    def n_items(self) -> int:
        return int(self.neighbours.shape[1])

    def scores_of(self, histories: Any) -> Scores:
        scores: Scores = (histories @ self.neighbours).toarray()
        return scores


def item_knn(train: Interactions, neighbours: int = 100, shrinkage: float = 10.0) -> Scorer:
    """ItemKNN over the training histories, with popularity for users without one."""
    return ByHistory(ItemKNN.fit(train, neighbours, shrinkage), train.matrix, item_counts(train))
