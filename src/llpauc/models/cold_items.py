"""Items without events: their scores follow from the scores of items with similar features.

    s_ui = m_u + b d_u + sum over the most similar items j of w_ij (s_uj - m_u)
    w_ij = c_ij / (sum over j of c_ij + shrinkage)

m_u and d_u are the mean and the standard deviation of the scores of user u over the items with
events, and c_ij is the squared cosine of the features of two items. The boost b says how much new
items are wanted in this data; it is chosen on the validation part. In a model with vectors, item i
gets the weighted mean of the vectors of the items j; every other model and blends are treated in
the same way. The scores of items with events do not change.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from scipy import sparse

from llpauc.data.ids import Indices
from llpauc.data.interactions import Split
from llpauc.evaluation.scorer import Scorer, Scores
from llpauc.models.base import (
    Arrays,
    FitData,
    FitResult,
    Model,
    NewEvents,
    Training,
    csr_arrays,
    csr_from_arrays,
)
from llpauc.models.choice import valid_metric

NEIGHBOURS = 50
SHRINKAGE = 0.1
_BOOSTS = (0.0, 2.0, 4.0, 6.0, 8.0, 11.0)
_ROWS = 1024  # items whose similarities are in memory at the same time
_NAME = "cold_items"  # of the arrays that are saved


def similar_items(features: Any, cold: Indices, warm: Indices, n_known: int) -> Any:
    """w, (len(cold), n_known) CSR.

    Args:
        features: (n_items, n_features) CSR, rows of unit length or empty.
        cold: items without events.
        warm: items with events, all below `n_known`.
        n_known: items that the model knows.
    """
    of_warm = features[warm].T.tocsc()
    rows, columns, values = [], [], []
    for start in range(0, len(cold), _ROWS):
        cosines = (features[cold[start : start + _ROWS]] @ of_warm).tocsr()
        for row in range(cosines.shape[0]):
            part = slice(*cosines.indptr[row : row + 2])
            found, items = cosines.data[part], cosines.indices[part]
            best = np.lexsort((items, -found))[:NEIGHBOURS]
            weights = np.maximum(found[best], 0) ** 2
            rows.append(np.full(len(best), start + row))
            columns.append(warm[items[best]])
            values.append(weights / (weights.sum() + SHRINKAGE))
    joined = (np.concatenate(parts) if parts else np.zeros(0) for parts in (values, rows, columns))
    data, row_idx, column_idx = joined
    places = row_idx.astype(np.int64), column_idx.astype(np.int64)
    shape = (len(cold), n_known)
    return sparse.csr_matrix((data.astype(np.float32), places), shape=shape)


class ColdItems(Model):
    """A fitted model, and items without events that it scores by their features.

    Args:
        model: knows the first items.
        cold: indices of the items that are scored by others; all further items are among them.
        weights: w, (len(cold), items of the model) CSR.
        boost: b.
    """

    name: ClassVar[str] = "cold_items"

    def __init__(self, model: Model, cold: Indices, weights: Any, boost: float = 0.0) -> None:
        self.model, self.cold, self.weights, self.boost = model, cold, weights, boost
        self._warm = np.setdiff1d(np.arange(model.n_items), cold)
        n_items = model.n_items + int((cold >= model.n_items).sum())
        self.fallback = np.empty(n_items, np.float32)
        self._fill(model.fallback[None], self.fallback[None])

    @property
    def options(self) -> Any:
        return self.model.options

    @property
    def description(self) -> str:
        return (
            f"{self.model.description}, {len(self.cold):,} items without events by their features"
        )

    @property
    def without_features(self) -> Model:
        return self.model

    def fit(self, data: FitData, training: Training | None = None) -> FitResult:
        return self.model.fit(data, training)

    def scores_of(self, histories: Any) -> Scores:
        known = self._known(histories)
        out = np.empty((histories.shape[0], len(self.fallback)), np.float32)
        self._fill(np.asarray(self.model.scores_of(known), np.float32), out)
        return out

    def _known(self, histories: Any) -> Any:
        """The histories with the most similar item in place of an item without events."""
        known, cold = histories[:, : self.model.n_items].tocsr(), histories[:, self.cold]
        if not cold.nnz:
            return known
        nearest = np.asarray(self.weights.argmax(axis=1)).ravel()
        similar = np.diff(self.weights.indptr) > 0
        shape = self.weights.shape
        stands_for = sparse.csr_matrix((similar * 1.0, (np.arange(shape[0]), nearest)), shape=shape)
        replaced = known.maximum(cold @ stands_for).tocsr().astype(np.float32)
        replaced.eliminate_zeros()
        replaced.data[:] = 1.0
        return replaced

    def scorer(self, histories: Any) -> Scorer:
        return _ColdScorer(self, self.model.scorer(histories[:, : self.model.n_items].tocsr()))

    def _fill(self, scores: Scores, out: Scores) -> None:
        """out = the scores of the model, and those of the items without events."""
        out[:, : scores.shape[1]] = scores
        warm = np.ascontiguousarray(scores[:, self._warm])
        mean = warm.mean(axis=1, dtype=np.float64).astype(np.float32)[:, None]
        weighted = (self.weights @ (scores - mean).T).T
        deviation = warm.std(axis=1, dtype=np.float64).astype(np.float32)[:, None]
        out[:, self.cold] = mean + self.boost * deviation + weighted

    def item_units(self) -> Scores | None:
        known = self.model.item_units()
        if known is None:
            return None
        units = np.zeros((len(self.fallback), known.shape[1]), np.float32)
        units[: len(known)] = known
        units[self.cold] = self.weights @ known
        units /= np.maximum(np.linalg.norm(units, axis=1, keepdims=True), 1e-12)
        return units

    def extend(self, new: NewEvents, training: Training | None = None) -> tuple[Model, FitResult]:
        return self.model.extend(new, training)

    # --- saving ---------------------------------------------------------------------------------

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        return {
            **self.model.arrays(),
            f"{_NAME}.items": self.cold,
            f"{_NAME}.known": np.array([self.model.n_items]),
            f"{_NAME}.boost": np.array([self.boost]),
            **csr_arrays(_NAME, self.weights),
        }

    @staticmethod
    def load(model: Model, arrays: Arrays, n_users: int, n_items: int) -> Model:
        """The model with its saved arrays, and the items without events if there are any."""
        cold = arrays.get(f"{_NAME}.items")
        if cold is None:
            model.load_arrays(arrays, n_users, n_items)
            return model
        if len(cold) and (cold.min() < 0 or cold.max() >= n_items or (np.diff(cold) <= 0).any()):
            raise ValueError("cold_items.items are not ascending indices of items")
        n_known = int(arrays[f"{_NAME}.known"].item())
        if not 0 < n_known <= n_items or not np.isin(np.arange(n_known, n_items), cold).all():
            raise ValueError(f"cold_items.known is {n_known} of {n_items} items")
        model.load_arrays(arrays, n_users, n_known)
        weights = csr_from_arrays(arrays, _NAME, (len(cold), n_known))
        return ColdItems(model, cold, weights, float(arrays[f"{_NAME}.boost"].item()))


def choose_boost(model: Model, split: Split, features: Any) -> float:
    """The boost of the best validation metric; 0 where no validation event has a new item.

    Args:
        model: fitted on the train part.
        split: with a valid part.
        features: (items of the split, n_features) CSR, rows of unit length or empty.
    """
    events = np.bincount(split.train.matrix.indices, minlength=split.n_items)
    cold = np.flatnonzero((events == 0) & (np.diff(features.indptr) > 0)).astype(np.int32)
    warm = np.flatnonzero(events).astype(np.int32)
    if split.valid is None or not np.isin(split.valid.items, cold).any():
        return 0.0
    weights, histories = similar_items(features, cold, warm, split.n_items), split.train.matrix

    def value(boost: float) -> float:
        return valid_metric(ColdItems(model, cold, weights, boost).scorer(histories), split)

    return max(_BOOSTS, key=value)  # of equal ones the first


class _ColdScorer:
    def __init__(self, model: ColdItems, scorer: Scorer) -> None:
        self._model, self._scorer = model, scorer

    @property
    def n_items(self) -> int:
        return self._model.n_items

    def scores_into(self, users: Indices, out: Scores) -> None:
        scores = np.empty((len(users), self._scorer.n_items), np.float32)
        self._scorer.scores_into(users, scores)
        self._model._fill(scores, out)
