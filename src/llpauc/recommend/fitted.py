"""A fitted model as it answers and as it is saved: arrays, id maps, histories."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from llpauc.data.histories import without
from llpauc.data.interactions import IdMap, Indices, Interactions, Split, as_id_text
from llpauc.errors import InputError, listing
from llpauc.evaluation.ranking import rank
from llpauc.evaluation.scorer import (
    ByHistory,
    Constant,
    FactorScorer,
    HistoryScorer,
    Scorer,
    Scores,
)
from llpauc.models.ease import EASE
from llpauc.models.fold_in import HistoryMap
from llpauc.models.itemknn import ItemKNN


@dataclass(frozen=True)
class Fitted:
    """What ranks, for whom, and what they have already.

    Args:
        scorer: for the known users.
        by_items: for people known by their items alone.
        fallback: (n_items,) scores for somebody of whom nothing is known.
        histories: (n_users, n_items) CSR of what the users have.
        user_ids, item_ids: outside ids of the rows.
        held_out: part (valid, test) -> CSR of those of its pairs that were not trained on. Where
            `fit` held validation events out of train itself, they are in the histories too.
    """

    scorer: Scorer
    by_items: HistoryScorer
    fallback: Scores
    histories: Any
    user_ids: IdMap
    item_ids: IdMap
    held_out: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(seen: Interactions, scorer: Scorer, by_items: HistoryScorer, fallback: Scores) -> Fitted:
        return Fitted(scorer, by_items, fallback, seen.matrix, seen.user_ids, seen.item_ids)

    def holding_out(self, parts: Mapping[str, Any], trained: Any) -> Fitted:
        """With what `parts` (name -> CSR) have beyond the pairs that were trained on."""
        kept = {}
        for name, pairs in parts.items():
            pairs = pairs.copy()
            pairs.resize(self.histories.shape)
            if (untrained := without(pairs, trained)).nnz:
                kept[name] = untrained
        return replace(self, held_out=kept)

    def scorer_for(self, user_ids: IdMap, item_ids: IdMap) -> Scorer:
        """The model over other id maps, such as those of data read again: somebody unknown is
        scored by the fallback, an unknown item ranks last."""
        if user_ids == self.user_ids and item_ids == self.item_ids:
            return self.scorer
        return _Translated(
            self, self.user_ids.indices(user_ids.text), self.item_ids.indices(item_ids.text)
        )

    def was_given(self, events: Interactions) -> npt.NDArray[np.bool_]:
        """Whether each of these events is among those the model was trained on."""
        users = self.user_ids.indices(events.user_ids.text)[events.users]
        items = self.item_ids.indices(events.item_ids.text)[events.items]
        given = (users >= 0) & (items >= 0)
        if given.any():  # of no pair at all scipy makes a matrix that is no array
            given[given] = np.asarray(self.histories[users[given], items[given]]).ravel() > 0
        return given

    def rank_rows(
        self,
        rows: npt.NDArray[np.int64],
        k: int,
        exclude_seen: bool,
        hidden: Indices | None = None,
        **options: Any,
    ) -> tuple[Indices, Scores]:
        """(n, min(k, n_items)) item rows and scores; row -1 stands for somebody unknown. Nobody is
        recommended what is hidden."""
        known = rows >= 0
        k = min(k, len(self.item_ids))  # nobody's k costs more memory than the catalogue
        items = np.full((len(rows), k), -1, np.int32)
        scores = np.full((len(rows), k), -np.inf, np.float32)
        if known.any():
            some = rows[known].astype(np.int32)
            masked = self.histories[some] if exclude_seen else None
            ranking = rank(self.scorer, some, k, masked=masked, hidden=hidden, **options)
            items[known], scores[known] = ranking.items, ranking.scores
        if not known.all():
            ranking = rank(Constant(self.fallback), np.zeros(1, np.int32), k, hidden=hidden)
            items[~known], scores[~known] = ranking.items, ranking.scores
        return items, scores

    def rank_histories(
        self, histories: Any, k: int, exclude_seen: bool, hidden: Indices | None = None
    ) -> tuple[Indices, Scores]:
        """(n, min(k, n_items)) item rows and scores for people given by their items, a CSR of
        (n, n_items)."""
        scores = ByHistory(self.by_items, histories, self.fallback)
        people = np.arange(histories.shape[0], dtype=np.int32)
        masked = histories if exclude_seen else None
        ranking = rank(scores, people, k, masked=masked, hidden=hidden)
        return ranking.items, ranking.scores

    def known_items(self, item_ids: Iterable[Any]) -> npt.NDArray[np.int64]:
        asked, _ = as_id_text(item_ids)  # refuses a single text, which is a list of characters
        rows = self.item_ids.indices(asked)
        if (rows < 0).any():
            unknown = asked.filter(rows < 0).to_pylist()
            raise InputError(f"unknown item ids: {listing(unknown, 5)}")
        return rows

    def history(self, item_ids: Iterable[Any]) -> Any:
        """(1, n_items) CSR of what somebody has."""
        return self.history_of_rows(self.known_items(item_ids))

    def history_of_rows(self, rows: npt.NDArray[np.int64]) -> Any:
        """The same, from item rows; one that comes twice counts once."""
        rows = np.unique(rows)
        ones = np.ones(len(rows), np.float32)
        shape = (1, len(self.item_ids))
        return sparse.csr_matrix((ones, (np.zeros(len(rows), int), rows)), shape=shape)

    # --- arrays by name, and back -----------------------------------------------------------------

    def tensors(self) -> dict[str, npt.NDArray[Any]]:
        return {
            "fallback": self.fallback,
            **_csr_arrays("histories", self.histories),
            **_model_arrays(self.scorer, self.by_items),
            **{
                array: values
                for name, pairs in self.held_out.items()
                for array, values in _csr_arrays(f"held_out.{name}", pairs).items()
            },
        }

    @staticmethod
    def from_tensors(
        tensors: Mapping[str, npt.NDArray[Any]], user_ids: IdMap, item_ids: IdMap
    ) -> Fitted:
        shape = (len(user_ids), len(item_ids))
        try:
            histories = _csr(tensors, "histories", shape)
            fallback = tensors["fallback"]
            scorer, by_items = _model_from(tensors, histories, fallback, shape)
            held_out = {
                name: _csr(tensors, f"held_out.{name}", shape)
                for name in HELD_OUT
                if f"held_out.{name}.starts" in tensors
            }
        except (KeyError, ValueError, IndexError) as error:
            raise InputError(f"the saved arrays do not fit together: {error}") from None
        return Fitted(scorer, by_items, fallback, histories, user_ids, item_ids, held_out)


HELD_OUT = ("valid", "test")


def held_out_of(split: Split) -> dict[str, Any]:
    """The pairs of the parts beside train, by name."""
    return {name: split.parts[name].matrix for name in HELD_OUT if name in split.parts}


class _Translated:
    """A fitted model seen through other rows; -1 is somebody, or something, it does not know."""

    def __init__(
        self, fitted: Fitted, users: npt.NDArray[np.int64], items: npt.NDArray[np.int64]
    ) -> None:
        self._fitted, self._users = fitted, users
        self._there = np.flatnonzero(items >= 0)
        self._known_items = items[self._there]
        self.n_items = len(items)

    def scores_into(self, users: Indices, out: Scores) -> None:
        rows = self._users[users]
        own = np.empty((len(users), len(self._fitted.item_ids)), np.float32)
        self._fitted.scorer.scores_into(np.maximum(rows, 0).astype(np.int32), own)
        own[rows < 0] = self._fitted.fallback
        # Below every score there is, and finite: an unknown item may fill a list, but comes last.
        out[:] = np.finfo(np.float32).min
        out[:, self._there] = own[:, self._known_items]


def _model_arrays(scorer: Scorer, by_items: HistoryScorer) -> dict[str, npt.NDArray[Any]]:
    if isinstance(scorer, FactorScorer):
        assert isinstance(by_items, HistoryMap)
        length = np.array([] if by_items.length is None else [by_items.length], np.float32)
        return {
            "user_vectors": scorer.user_vectors,
            "item_vectors": scorer.item_vectors,
            "history_rows": by_items.history_rows,
            "history_base": by_items.base,
            "history_length": length,
        }
    if isinstance(by_items, EASE):
        return {"item_weights": by_items.weights}
    if isinstance(by_items, ItemKNN):
        return _csr_arrays("neighbours", by_items.neighbours)
    return {}


def _model_from(
    tensors: Mapping[str, npt.NDArray[Any]],
    histories: Any,
    fallback: Scores,
    shape: tuple[int, int],
) -> tuple[Scorer, HistoryScorer]:
    n_users, n_items = shape
    if fallback.shape != (n_items,):
        raise ValueError(f"fallback is {fallback.shape}, items are {n_items}")
    if "user_vectors" in tensors:
        users, items = tensors["user_vectors"], tensors["item_vectors"]
        if len(users) != n_users or len(items) != n_items:
            raise ValueError(f"{len(users)} user and {len(items)} item vectors for {shape}")
        length, rows = tensors["history_length"], tensors["history_rows"]
        if len(rows) != n_items or rows.shape[1:] != tensors["history_base"].shape:
            raise ValueError(f"history rows are {rows.shape}, items are {n_items}")
        scorer = FactorScorer(users, items)
        norm = float(length[0]) if len(length) else None
        return scorer, HistoryMap(rows, tensors["history_base"], scorer.item_vectors, norm)
    by_items: HistoryScorer
    if "item_weights" in tensors:
        by_items = EASE(tensors["item_weights"])
        if by_items.weights.shape != (n_items, n_items):
            raise ValueError(f"item weights are {by_items.weights.shape}, items are {n_items}")
    elif "neighbours.starts" in tensors:
        by_items = ItemKNN(_csr(tensors, "neighbours", (n_items, n_items)))
    else:
        constant = Constant(fallback)
        return constant, constant
    return ByHistory(by_items, histories, fallback), by_items


_CSR_PARTS = ("values", "columns", "starts")


def _csr_arrays(name: str, matrix: Any) -> dict[str, npt.NDArray[Any]]:
    return {
        f"{name}.starts": matrix.indptr.astype(np.int64),
        f"{name}.columns": matrix.indices.astype(np.int32),
        f"{name}.values": matrix.data.astype(np.float32),
    }


def _csr(tensors: Mapping[str, npt.NDArray[Any]], name: str, shape: tuple[int, int]) -> Any:
    values, columns, starts = (tensors[f"{name}.{part}"] for part in _CSR_PARTS)
    # scipy drops what the starts do not reach, and looks no further where they end below 1.
    if starts.ndim != 1 or starts[-1] != len(columns) or (np.diff(starts) < 0).any():
        raise ValueError(f"{name}.starts do not fit {len(columns)} columns")
    matrix = sparse.csr_matrix((values, columns, starts), shape=shape)
    matrix.check_format(full_check=True)
    return matrix
