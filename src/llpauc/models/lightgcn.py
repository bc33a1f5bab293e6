"""LightGCN: vectors smoothed over the graph of users and items."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import numpy.typing as npt
from numba import njit, prange
from torch import Tensor

from llpauc.data.ids import Indices
from llpauc.data.interactions import Interactions
from llpauc.evaluation.scorer import Scores
from llpauc.models.base import NewEvents
from llpauc.models.embedding import EmbeddingModel
from llpauc.models.network import EmbeddingNetwork, sparse_tensor
from llpauc.models.registry import LightGCNOptions
from llpauc.models.spectral import graph_weights
from llpauc.training.kernels import through_unit, unit_rows
from llpauc.training.options import TrainingOptions
from llpauc.training.row_adam import FAST_MATH, Table, empty_table, fill, zero_table
from llpauc.training.tables import AdamTable, ItemGradients, TrainingTables, summed_by_item

_INVERSION_ROUNDS = 20  # each leaves at most 3/4 of the error with 2 layers


class LightGCNNetwork(EmbeddingNetwork):
    """E^(l+1) = D^-1/2 A D^-1/2 E^(l);  the vectors are the mean of E^(0) .. E^(L)."""

    name = "lightgcn"
    to_users: Tensor
    to_items: Tensor

    def __init__(self, train: Interactions, options: Any, seed: int) -> None:
        super().__init__(train, options, seed)
        weights = graph_weights(train)
        self.register_buffer("to_users", sparse_tensor(weights), persistent=False)
        self.register_buffer("to_items", sparse_tensor(weights.T.tocsr()), persistent=False)

    def base_rows(self) -> tuple[Tensor, Tensor]:
        users: Tensor = self.user_table
        items: Tensor = self.item_table
        user_sum, item_sum = users, items
        for _ in range(self.options.layers):
            users, items = self.to_users @ items, self.to_items @ users
            user_sum, item_sum = user_sum + users, item_sum + items
        return user_sum / (1 + self.options.layers), item_sum / (1 + self.options.layers)

    def cpu_tables(self, train: Interactions, options: TrainingOptions) -> TrainingTables:
        tables = self.adam_tables(options, False, False)
        return LightGCNTables(*tables, graph_weights(train), self.options)


class LightGCNTables(TrainingTables):
    """Rows are propagated over the graph before they are read, and so are their gradients.

    The operator is symmetric, so gradients are propagated as rows are. Every row has a gradient in
    every batch; Adam is dense here. With a propagation interval of n, a batch reads rows that are
    up to n - 1 steps old, and the gradients of n batches are applied as one Adam step on their
    mean.

    Args:
        users, items: both without unit rows.
        to_users: users x items CSR, the normalised graph.
        options: of the model.
    """

    uses_all_threads = True

    def __init__(
        self, users: AdamTable, items: AdamTable, to_users: Any, options: LightGCNOptions
    ) -> None:
        super().__init__(users, items)
        self._cosine, self._layers = options.score == "cosine", options.layers
        self._interval, self._pending, self._stale = options.propagation_interval, 0, True
        to_items = to_users.T.tocsr()
        self._graph = [(_balanced(m), m.indptr, m.indices, m.data) for m in (to_users, to_items)]
        self._out = [zero_table(table.rows.shape) for table in (users, items)]
        self._units = [zero_table(t.shape) for t in self._out] if self._cosine else self._out
        self._accumulated = [zero_table(t.shape) for t in self._out]
        self._gradients = [empty_table(t.shape) for t in self._out]
        self._work = [[zero_table(t.shape) for t in self._out] for _ in range(2)]
        self._all = [np.arange(len(t), dtype=np.int32) for t in self._out]

    @property
    def user_rows(self) -> Table:
        return self._units[0]

    @property
    def item_rows(self) -> Table:
        return self._units[1]

    def _propagate(self, rows: list[Table], out: list[Table]) -> None:
        """out = mean over layers of the propagated `rows`."""
        weight = np.float32(1 / (1 + self._layers))
        for side in range(2):
            np.multiply(rows[side], weight, out=out[side])
        for layer in range(self._layers):
            result = self._work[layer % 2]
            _smooth(*self._graph[0], rows[1], weight, result[0], out[0])
            _smooth(*self._graph[1], rows[0], weight, result[1], out[1])
            rows = result

    def prepare(self, users: Indices, items: Indices) -> None:
        if self._stale:
            self._propagate([self.users.rows, self.items.rows], self._out)
            if self._cosine:
                for rows, table, units in zip(self._all, self._out, self._units, strict=True):
                    unit_rows(table, rows, table.shape[1], units)
            self._stale = False

    def apply(
        self, users: Indices, user_gradients: Table, items: Indices, item_gradients: ItemGradients
    ) -> None:
        summed = summed_by_item(item_gradients, len(items), self.item_rows.shape[1])
        for side, (rows, gradients) in enumerate(((users, user_gradients), (items, summed))):
            if self._cosine:
                width = gradients.shape[1]
                through_unit(self._out[side], self._units[side], rows, width, gradients)
            self._accumulated[side][rows] += gradients
        self._pending += 1
        if self._pending >= self._interval:
            self._step()

    def _step(self) -> None:
        if not self._pending:
            return
        for table in self._accumulated:
            table /= np.float32(self._pending)
        self._propagate(self._accumulated, self._gradients)
        for side, adam_table in enumerate((self.users, self.items)):
            adam_table.apply(self._all[side], self._gradients[side])
        for accumulated in self._accumulated:
            accumulated[:] = 0
        self._pending, self._stale = 0, True

    def settle(self) -> None:
        self._step()
        super().settle()
        self.prepare(*self._all)

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Adam's state, and the gradients that are not applied yet."""
        state = super().state()
        if self._interval > 1:
            state |= {"pending": np.array(self._pending), **self._accumulated_by_name()}
        return state

    def load_state(self, state: dict[str, npt.NDArray[Any]]) -> None:
        super().load_state(state)
        self._stale = True
        if self._interval > 1:
            self._pending = int(state["pending"])
            for name, table in self._accumulated_by_name().items():
                fill(table, state[name])

    def _accumulated_by_name(self) -> dict[str, Table]:
        return dict(zip(("users.gathered", "items.gathered"), self._accumulated, strict=True))


def _balanced(matrix: Any) -> npt.NDArray[np.int64]:
    """Bounds of ranges of rows with about equal numbers of entries.

    Popular items have a thousand times the entries of others: ranges with equal numbers of rows
    would leave all threads but one idle.
    """
    work = matrix.indptr.astype(np.int64) + 4 * np.arange(len(matrix.indptr))
    ranges = 8 * numba.get_num_threads()
    bounds = np.searchsorted(work, np.linspace(0, work[-1], ranges + 1))
    bounds[0], bounds[-1] = 0, matrix.shape[0]
    return bounds


@njit(parallel=True, cache=True, fastmath=FAST_MATH)
def _smooth(bounds, starts, columns, weights, table, layer_weight, out, running):  # type: ignore[no-untyped-def]
    """out = CSR @ table, and running += layer_weight * out, row by row while it is in the cache."""
    width = table.shape[1]
    for part in prange(len(bounds) - 1):
        for row in range(bounds[part], bounds[part + 1]):
            total = out[row]
            for k in range(width):
                total[k] = 0
            first, last = starts[row], starts[row + 1]
            for at in range(first, last - 3, 4):
                w0, w1, w2, w3 = weights[at], weights[at + 1], weights[at + 2], weights[at + 3]
                t0, t1 = table[columns[at]], table[columns[at + 1]]
                t2, t3 = table[columns[at + 2]], table[columns[at + 3]]
                for k in range(width):
                    total[k] += (w0 * t0[k] + w1 * t1[k]) + (w2 * t2[k] + w3 * t3[k])
            for at in range(first + (last - first) // 4 * 4, last):
                weight, source = weights[at], table[columns[at]]
                for k in range(width):
                    total[k] += weight * source[k]
            into = running[row]
            for k in range(width):
                into[k] += layer_weight * total[k]


class LightGCN(EmbeddingModel):
    """Light graph convolution network.

    E^(l+1) = D^-1/2 A D^-1/2 E^(l),   E = mean_l E^(l)

    | symbol | meaning |
    |---|---|
    | A | adjacency matrix of the graph of users and items |
    | D | diagonal matrix of the degrees |
    | E^(0) | the parameters; E holds the vectors of users and items |

    Reference: He et al., "LightGCN", SIGIR 2020, eqs. (3), (4) with equal layer weights.
    """

    name = "lightgcn"
    Options = LightGCNOptions
    Network = LightGCNNetwork

    def _parameters(
        self, network: EmbeddingNetwork, new: NewEvents, users: Scores, items: Scores
    ) -> tuple[Scores, Scores]:
        """Parameters that the propagation P over the graph of all events turns into these vectors.

        P is symmetric with eigenvalues in [0, 1], so x <- x + (target - P x) converges. The part of
        the target outside the range of P, which an odd number of layers can have, is lost.
        """
        users, items = super()._parameters(network, new, users, items)
        to_users = graph_weights(new.all)
        to_items = to_users.T.tocsr()
        weight = np.float32(1 / (1 + self.options.layers))
        x, y = users, items
        for _ in range(_INVERSION_ROUNDS):
            x_layer, y_layer, x_sum, y_sum = x, y, x, y
            for _ in range(self.options.layers):
                x_layer, y_layer = to_users @ y_layer, to_items @ x_layer
                x_sum, y_sum = x_sum + x_layer, y_sum + y_layer
            x, y = x + users - weight * x_sum, y + items - weight * y_sum
        return x, y
