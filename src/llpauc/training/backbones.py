"""Embedding models on a CPU: their parameters as NumPy arrays, stepped by row-Adam.

A backbone answers three calls a batch: `prepare` brings the rows that will be read up to date,
`user_rows` / `item_rows` are the tables to read, `apply` takes the gradients of the rows that were
read (`apply_pairs` the items' still in pairs). `settle` brings everything up to date, for
evaluation and saving. The parameters are the model's own memory: what is trained here is the model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
from numba import njit, prange

from llpauc.data.interactions import Indices, Interactions
from llpauc.models.embedding import EmbeddingModel, graph_weights, history_weights
from llpauc.training.batches import Pairs
from llpauc.training.kernels import item_gradients, step_items, through_unit, unit_rows
from llpauc.training.row_adam import FAST_MATH, AdamOptions, RowAdam, aligned, fill, room

Table = npt.NDArray[np.float32]


@dataclass(frozen=True)
class PairSlopes:
    """The gradient of the item rows, not yet summed up.

    Args:
        pairs: the batch's pairs by item.
        slope_of: scale times d loss / d score of each pair, in their order.
        scale: of the scores.
        read: the user rows that were read, one for each row of the batch.
    """

    pairs: Pairs
    slope_of: Table
    scale: float
    read: Table


def summed_by_item(of: PairSlopes, shape: tuple[int, int]) -> Table:
    """A gradient for each distinct item of the batch."""
    gradients = room(shape)
    item_gradients(of.read, of.pairs.ends, of.pairs.row_of, of.slope_of, of.scale, gradients)
    return gradients


class Side:
    """One table of free rows: the parameters, their Adam, and unit rows where cosine wants them.

    `rows` always belongs to the table as it is: whatever moves the one refreshes the other.
    """

    def __init__(self, table: Table, width: int, cosine: bool, options: AdamOptions) -> None:
        self.adam = RowAdam(table, options)
        self.width = width
        self.cosine = cosine
        self.rows = aligned(table.shape) if cosine else table
        self._refresh(np.arange(len(table), dtype=np.int32))

    def prepare(self, rows: Indices) -> None:
        if self.adam.catch_up(rows):
            self._refresh(rows)

    def _refresh(self, rows: Indices) -> None:
        if self.cosine:
            unit_rows(self.adam.table, rows, self.width, self.rows)

    def apply(self, rows: Indices, gradients: Table) -> None:
        if self.cosine:
            through_unit(self.adam.table, self.rows, rows, self.width, gradients)
        self.adam.advance()
        self.adam.step(rows, gradients)
        self._refresh(rows)

    def apply_pairs(self, rows: Indices, of: PairSlopes) -> None:
        adam = self.adam
        adam.advance()
        step_items(
            of.read, rows, of.pairs.ends, of.pairs.row_of, of.slope_of, of.scale,
            adam.table, self.rows, self.cosine, adam.mean, adam.square, adam.done, adam.count,
            adam.numbers(),
        )  # fmt: skip

    def settle(self) -> None:
        self.prepare(np.arange(len(self.rows), dtype=np.int32))

    def load_state(self, state: dict[str, npt.NDArray[Any]]) -> None:
        self.adam.load_state(state)
        self._refresh(np.arange(len(self.rows), dtype=np.int32))


def state_of(users: Side, items: Side) -> dict[str, npt.NDArray[Any]]:
    """Adam's state of both tables, by name."""
    return {
        f"{name}.{key}": value
        for name, side in (("users", users), ("items", items))
        for key, value in side.adam.state().items()
    }


def load_state_of(users: Side, items: Side, state: dict[str, npt.NDArray[Any]]) -> None:
    """Go on from what `state_of` gave."""
    for name, side in (("users", users), ("items", items)):
        side.load_state({key: state[f"{name}.{key}"] for key in side.adam.state()})


class Backbone:
    """MF: two sides of free rows. The other models change what the user rows are."""

    # Whether users and items are read straight from their tables, so that a cosine takes the unit
    # rows of those; what is summed or propagated first is brought to unit length afterwards.
    read_directly = (True, True)

    def __init__(self, model: EmbeddingModel, train: Interactions, options: AdamOptions) -> None:
        self.model = model
        cosine = model.options.score == "cosine"
        width = model.options.dimensions
        self._users, self._items = (
            Side(table.detach().numpy(), width, cosine and direct, options)
            for table, direct in zip(
                (model.user_table, model.item_table), self.read_directly, strict=True
            )
        )

    @property
    def user_rows(self) -> Table:
        return self._users.rows

    @property
    def item_rows(self) -> Table:
        return self._items.rows

    def prepare(self, users: Indices, items: Indices) -> None:
        self._users.prepare(users)
        self._items.prepare(items)

    def apply(self, users: Indices, of_users: Table, items: Indices, of_items: Table) -> None:
        self._apply_users(users, of_users)
        self._items.apply(items, of_items)

    def apply_pairs(
        self, users: Indices, of_users: Table, items: Indices, of_items: PairSlopes
    ) -> None:
        self._apply_users(users, of_users)
        self._items.apply_pairs(items, of_items)

    def _apply_users(self, users: Indices, of_users: Table) -> None:
        self._users.apply(users, of_users)

    def settle(self) -> None:
        self._users.settle()
        self._items.settle()

    def state(self) -> dict[str, npt.NDArray[Any]]:
        return state_of(self._users, self._items)

    def load_state(self, state: dict[str, npt.NDArray[Any]]) -> None:
        load_state_of(self._users, self._items, state)


class ItemSumBackbone(Backbone):
    """User rows are weighted sums of history rows; their gradients go back to the history."""

    read_directly = (False, True)

    def __init__(self, model: EmbeddingModel, train: Interactions, options: AdamOptions) -> None:
        super().__init__(model, train, options)
        self._history = history_weights(train)
        self._cosine = model.options.score == "cosine"
        width = model.options.dimensions
        self._sums = aligned((train.n_users, width))
        self._units = aligned(self._sums.shape) if self._cosine else self._sums

    @property
    def user_rows(self) -> Table:
        return self._units

    def _sum_up(self, users: Indices) -> None:
        h = self._history
        _weighted_sums(h.indptr, h.indices, h.data, users, self._users.rows, self._sums)
        if self._cosine:
            unit_rows(self._sums, users, self._sums.shape[1], self._units)

    def prepare(self, users: Indices, items: Indices) -> None:
        self._users.prepare(np.unique(self._history[users].indices))
        self._sum_up(users)
        self._items.prepare(items)

    def _apply_users(self, users: Indices, of_users: Table) -> None:
        if self._cosine:
            through_unit(self._sums, self._units, users, self._sums.shape[1], of_users)
        back = self._history[users].T.tocsr()
        rows = np.flatnonzero(np.diff(back.indptr)).astype(np.int32)
        of_history = room((len(rows), of_users.shape[1]))
        of_history[:] = back[rows] @ of_users
        self._users.apply(rows, of_history)

    def settle(self) -> None:
        super().settle()
        self._sum_up(np.arange(len(self._sums), dtype=np.int32))


class LightGCNBackbone(Backbone):
    """Indices are propagated over the graph before they are read, gradients on the way back.

    The operator is symmetric, so the way back is the way there. Every row has a gradient in every
    batch; Adam is dense here.

    Args:
        share: batches that read one propagation. 1 is exact; with more, a batch reads rows that are
            up to `share - 1` steps old, and the gradients of `share` batches go back together, as
            one step of Adam on their mean.
    """

    read_directly = (False, False)

    def __init__(
        self, model: EmbeddingModel, train: Interactions, options: AdamOptions, share: int = 1
    ) -> None:
        super().__init__(model, train, options)
        self._cosine = model.options.score == "cosine"
        to_users = graph_weights(train)
        to_items = to_users.T.tocsr()
        self._graph = [(_even(m), m.indptr, m.indices, m.data) for m in (to_users, to_items)]
        self._out = [aligned(side.rows.shape) for side in (self._users, self._items)]
        self._units = [aligned(t.shape) for t in self._out] if self._cosine else self._out
        self._back = [aligned(t.shape) for t in self._out]
        self._slopes = [room(t.shape) for t in self._out]
        self._work = [[aligned(t.shape) for t in self._out] for _ in range(2)]
        self._all = [np.arange(len(t), dtype=np.int32) for t in self._out]
        self._share, self._pending, self._stale = share, 0, True

    @property
    def user_rows(self) -> Table:
        return self._units[0]

    @property
    def item_rows(self) -> Table:
        return self._units[1]

    def _propagate(self, start: list[Table], out: list[Table]) -> None:
        """out = mean over layers of the propagated `start`."""
        layers = self.model.options.layers
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
            self._propagate([self._users.rows, self._items.rows], self._out)
            if self._cosine:
                for rows, table, units in zip(self._all, self._out, self._units, strict=True):
                    unit_rows(table, rows, table.shape[1], units)
            self._stale = False

    def apply(self, users: Indices, of_users: Table, items: Indices, of_items: Table) -> None:
        for side, (rows, gradients) in enumerate(((users, of_users), (items, of_items))):
            if self._cosine:
                width = gradients.shape[1]
                through_unit(self._out[side], self._units[side], rows, width, gradients)
            self._back[side][rows] += gradients
        self._pending += 1
        if self._pending >= self._share:
            self._step()

    def apply_pairs(
        self, users: Indices, of_users: Table, items: Indices, of_items: PairSlopes
    ) -> None:
        gradients = summed_by_item(of_items, (len(items), self.item_rows.shape[1]))
        self.apply(users, of_users, items, gradients)

    def _step(self) -> None:
        if not self._pending:
            return
        for table in self._back:
            table /= np.float32(self._pending)
        self._propagate(self._back, self._slopes)
        sides = (self._users, self._items)
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
        if self._share > 1:
            state |= {"pending": np.array(self._pending), **self._gathered()}
        return state

    def load_state(self, state: dict[str, npt.NDArray[Any]]) -> None:
        super().load_state(state)
        self._stale = True
        if self._share > 1:
            self._pending = int(state["pending"])
            for name, table in self._gathered().items():
                fill(table, state[name])

    def _gathered(self) -> dict[str, Table]:
        return dict(zip(("users.gathered", "items.gathered"), self._back, strict=True))


BACKBONES: dict[str, Callable[..., Backbone]] = {
    "mf": Backbone,
    "itemsum": ItemSumBackbone,
    "lightgcn": LightGCNBackbone,
}


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
