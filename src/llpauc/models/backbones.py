"""How FISM and LightGCN are trained on a CPU: tables whose rows are computed from other rows.

See `llpauc.training.trainable.TrainingTables` for what the methods do.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import numpy.typing as npt
from numba import njit, prange

from llpauc.data.interactions import Indices, Interactions
from llpauc.training.kernels import through_unit, unit_rows
from llpauc.training.row_adam import FAST_MATH, aligned, fill, room
from llpauc.training.tables import AdamTable, EmbeddingTables, summed_by_item
from llpauc.training.trainable import ItemGradients, Table


def history_weights(train: Interactions) -> Any:
    """Users x items CSR: 1 / sqrt(length of the history) where the user has the item."""
    weights = train.matrix.copy()
    lengths = np.diff(weights.indptr)
    weights.data = np.repeat(1 / np.sqrt(np.maximum(lengths, 1)), lengths).astype(np.float32)
    return weights


def graph_weights(train: Interactions) -> Any:
    """Users x items CSR: 1 / sqrt(degree of the user times degree of the item)."""
    weights = train.matrix.copy()
    of_users = np.diff(weights.indptr)
    of_items = np.bincount(weights.indices, minlength=train.n_items)
    degrees = np.repeat(of_users, of_users).astype(float) * of_items[weights.indices]
    weights.data = (1 / np.sqrt(degrees)).astype(np.float32)
    return weights


class ItemSumTables(EmbeddingTables):
    """User rows are weighted sums of history rows; their gradients go back to the history.

    Args:
        users: the table of history rows, without unit rows.
        items: the table of items.
        history: users x items CSR weights.
    """

    def __init__(self, users: AdamTable, items: AdamTable, history: Any) -> None:
        super().__init__(users, items)
        self._history, self._cosine = history, items.cosine
        self._sums = aligned((history.shape[0], items.width))
        self._units = aligned(self._sums.shape) if self._cosine else self._sums

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
        back = self._history[users].T.tocsr()
        rows = np.flatnonzero(np.diff(back.indptr)).astype(np.int32)
        of_history = room((len(rows), user_gradients.shape[1]))
        of_history[:] = back[rows] @ user_gradients
        self.users.apply(rows, of_history)
        self.items.apply(items, item_gradients)

    def settle(self) -> None:
        super().settle()
        self._sum_up(np.arange(len(self._sums), dtype=np.int32))


class LightGCNTables(EmbeddingTables):
    """Rows are propagated over the graph before they are read, gradients on the way back.

    The operator is symmetric, so gradients are propagated as rows are. Every row has a gradient in
    every batch; Adam is dense here.

    Args:
        users, items: both without unit rows.
        to_users: users x items CSR, the normalised graph.
        layers: number of propagations.
        cosine: whether propagated rows are read at unit length.
        interval: batches that read one propagation. 1 is exact; with more, a batch reads rows that
            are up to `interval - 1` steps old, and the gradients of `interval` batches are applied
            together, as one step of Adam on their mean.
    """

    uses_all_threads = True

    def __init__(
        self,
        users: AdamTable,
        items: AdamTable,
        to_users: Any,
        layers: int,
        cosine: bool,
        interval: int,
    ) -> None:
        super().__init__(users, items)
        self._cosine, self._layers = cosine, layers
        to_items = to_users.T.tocsr()
        self._graph = [(_even(m), m.indptr, m.indices, m.data) for m in (to_users, to_items)]
        self._out = [aligned(table.rows.shape) for table in (users, items)]
        self._units = [aligned(t.shape) for t in self._out] if self._cosine else self._out
        self._back = [aligned(t.shape) for t in self._out]
        self._slopes = [room(t.shape) for t in self._out]
        self._work = [[aligned(t.shape) for t in self._out] for _ in range(2)]
        self._all = [np.arange(len(t), dtype=np.int32) for t in self._out]
        self._interval, self._pending, self._stale = interval, 0, True

    @property
    def user_rows(self) -> Table:
        return self._units[0]

    @property
    def item_rows(self) -> Table:
        return self._units[1]

    def _propagate(self, start: list[Table], out: list[Table]) -> None:
        """out = mean over layers of the propagated `start`."""
        layers = self._layers
        weight = np.float32(1 / (1 + layers))
        here = start
        for side in range(2):
            np.multiply(start[side], weight, out=out[side])
        for layer in range(layers):
            there = self._work[layer % 2]
            _smooth(*self._graph[0], here[1], weight, there[0], out[0])
            _smooth(*self._graph[1], here[0], weight, there[1], out[1])
            here = there

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
            self._back[side][rows] += gradients
        self._pending += 1
        if self._pending >= self._interval:
            self._step()

    def _step(self) -> None:
        if not self._pending:
            return
        for table in self._back:
            table /= np.float32(self._pending)
        self._propagate(self._back, self._slopes)
        sides = (self.users, self.items)
        for side, rows, slope in zip(sides, self._all, self._slopes, strict=True):
            side.apply(rows, slope)
        for table in self._back:
            table[:] = 0
        self._pending, self._stale = 0, True

    def settle(self) -> None:
        self._step()
        super().settle()
        self.prepare(*self._all)

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """What is read between two steps follows from the tables; what was gathered does not."""
        state = super().state()
        if self._interval > 1:
            state |= {"pending": np.array(self._pending), **self._gathered()}
        return state

    def load_state(self, state: dict[str, npt.NDArray[Any]]) -> None:
        super().load_state(state)
        self._stale = True
        if self._interval > 1:
            self._pending = int(state["pending"])
            for name, table in self._gathered().items():
                fill(table, state[name])

    def _gathered(self) -> dict[str, Table]:
        return dict(zip(("users.gathered", "items.gathered"), self._back, strict=True))


@njit(parallel=True, cache=True, fastmath=FAST_MATH)
def _weighted_sums(starts, columns, weights, rows, table, out):
    """out[row] = sum of weights times table rows over a CSR row, for the rows asked for."""
    for place in prange(len(rows)):
        row = rows[place]
        total = out[row]
        total[:] = 0
        for at in range(starts[row], starts[row + 1]):
            weight, source = weights[at], table[columns[at]]
            for k in range(len(total)):
                total[k] += weight * source[k]


def _even(matrix: Any) -> npt.NDArray[np.int64]:
    """Bounds of runs of rows with as many entries each: a popular item is worth a thousand others,
    and equal numbers of rows would leave all threads but one idle."""
    work = matrix.indptr.astype(np.int64) + 4 * np.arange(len(matrix.indptr))
    runs = 8 * numba.get_num_threads()
    bounds = np.searchsorted(work, np.linspace(0, work[-1], runs + 1))
    bounds[0], bounds[-1] = 0, matrix.shape[0]
    return bounds


@njit(parallel=True, cache=True, fastmath=FAST_MATH)
def _smooth(bounds, starts, columns, weights, table, share, out, running):
    """out = CSR @ table, and running += share * out, row by row while it is in the cache."""
    width = table.shape[1]
    for run in prange(len(bounds) - 1):
        for row in range(bounds[run], bounds[run + 1]):
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
                into[k] += share * total[k]
