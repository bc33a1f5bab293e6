"""FISM: a user is the sum of their items, so a new user needs no training."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange
from torch import Tensor

from llpauc.data.ids import Indices
from llpauc.data.interactions import Interactions
from llpauc.evaluation.scorer import Scores
from llpauc.models.base import NewEvents
from llpauc.models.embedding import EmbeddingModel, grown
from llpauc.models.fold_in import HistoryMap
from llpauc.models.network import EmbeddingNetwork, sparse_tensor
from llpauc.models.registry import BiasedEmbeddingOptions
from llpauc.training.kernels import through_unit, unit_rows
from llpauc.training.options import TrainingOptions
from llpauc.training.row_adam import FAST_MATH, Table, empty_table, zero_table
from llpauc.training.tables import AdamTable, ItemGradients, TrainingTables


class FISMNetwork(EmbeddingNetwork):
    """p_u = sum of h_i over the user's items / sqrt(their number), with h a second item table."""

    name = "fism"
    history: Tensor

    def __init__(self, train: Interactions, options: Any, seed: int) -> None:
        super().__init__(train, options, seed)
        self.register_buffer("history", sparse_tensor(history_weights(train)), persistent=False)

    def _user_table_size(self) -> int:
        return self.n_items  # the table is h

    def _add_spectral_rows(self, users: Tensor, items: Tensor) -> None:
        super()._add_spectral_rows(items, items)

    def base_rows(self) -> tuple[Tensor, Tensor]:
        return self.history @ self.user_table, self.item_table

    def cpu_tables(self, train: Interactions, options: TrainingOptions) -> TrainingTables:
        return FISMTables(*self.adam_tables(options, False, self.cosine), history_weights(train))


class FISMTables(TrainingTables):
    """User rows are weighted sums of history rows; their gradients go back to the history rows.

    Args:
        users: the table of history rows, without unit rows.
        items: the table of items.
        history: users x items CSR weights.
    """

    def __init__(self, users: AdamTable, items: AdamTable, history: Any) -> None:
        super().__init__(users, items)
        self._history, self._cosine = history, items.cosine
        self._sums = zero_table((history.shape[0], items.width))
        self._units = zero_table(self._sums.shape) if self._cosine else self._sums

    @property
    def user_rows(self) -> Table:
        return self._units

    def _sum_up(self, users: Indices) -> None:
        h = self._history
        _weighted_sums(h.indptr, h.indices, h.data, users, self.users.rows, self._sums)
        if self._cosine:
            unit_rows(self._sums, users, self._sums.shape[1], self._units)

    def prepare(self, users: Indices, items: Indices) -> None:
        self.users.prepare(np.unique(self._history[users].indices))
        self._sum_up(users)
        self.items.prepare(items)

    def apply(
        self, users: Indices, user_gradients: Table, items: Indices, item_gradients: ItemGradients
    ) -> None:
        if self._cosine:
            through_unit(self._sums, self._units, users, self._sums.shape[1], user_gradients)
        transposed = self._history[users].T.tocsr()
        rows = np.flatnonzero(np.diff(transposed.indptr)).astype(np.int32)
        history_gradients = empty_table((len(rows), user_gradients.shape[1]))
        history_gradients[:] = transposed[rows] @ user_gradients
        self.users.apply(rows, history_gradients)
        self.items.apply(items, item_gradients)

    def settle(self) -> None:
        super().settle()
        self._sum_up(np.arange(len(self._sums), dtype=np.int32))


@njit(parallel=True, cache=True, fastmath=FAST_MATH)
def _weighted_sums(starts, columns, weights, rows, table, out):  # type: ignore[no-untyped-def]
    """out[row] = sum of weights times table rows over a CSR row, for the given rows."""
    for place in prange(len(rows)):
        row = rows[place]
        total = out[row]
        total[:] = 0
        for at in range(starts[row], starts[row + 1]):
            weight, source = weights[at], table[columns[at]]
            for k in range(len(total)):
                total[k] += weight * source[k]


def history_weights(train: Interactions) -> Any:
    """Users x items CSR: the weight of the pair / sqrt(length of the history)."""
    weights = train.positives.copy()
    lengths = np.diff(weights.indptr)
    scale = np.repeat(1 / np.sqrt(np.maximum(lengths, 1)), lengths)
    weights.data = (weights.data * scale).astype(np.float32)
    return weights


class FISM(EmbeddingModel):
    """Factored item similarity model: p_u = sum_{i in history} h_i / sqrt(|history|).

    Reference: Kabbur et al., "FISM: Factored Item Similarity Models for Top-N Recommender
    Systems", KDD 2013.

    Departs from the paper: the exponent is fixed at 1/2, and an item is not left out of the history
    that it is scored with.
    """

    name = "fism"
    Options = BiasedEmbeddingOptions
    Network = FISMNetwork

    def _learned_history_map(
        self, network: EmbeddingNetwork, train: Interactions, users: Scores, items: Scores
    ) -> HistoryMap:
        rows = network.user_table.detach().cpu().numpy()
        base = np.zeros(rows.shape[1], np.float32)
        return HistoryMap(rows, base, items, network.scale if network.cosine else None)

    def _extended_history_map(self, new: NewEvents, users: Scores, items: Scores) -> HistoryMap:
        before = self._known_vectors().history_map
        return HistoryMap(self._extended_history_rows(new), before.base, items, before.length)

    def _extended_history_rows(self, new: NewEvents) -> Scores:
        """For each new item the mean of its users' mean history rows."""
        have = new.all.positives
        rows = grown(self._known_vectors().history_map.history_rows, new.all.n_items)
        known = rows.any(axis=1).astype(np.float32)  # new rows are still 0
        n_known = have @ known
        user_means = (have @ rows) / np.maximum(n_known, 1)[:, None]
        of_new_items = have.T.tocsr()[new.new_items]
        n_users = of_new_items @ (n_known > 0).astype(np.float32)
        rows[new.new_items] = (of_new_items @ user_means) / np.maximum(n_users, 1)[:, None]
        return rows

    def _parameters(
        self, network: EmbeddingNetwork, new: NewEvents, users: Scores, items: Scores
    ) -> tuple[Scores, Scores]:
        return self._extended_history_rows(new), items
