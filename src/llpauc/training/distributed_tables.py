"""The tables of several processes: a copy in each, or a share of the rows in each.

Both are backbones (see `training.backbones`): a step reads rows and gives gradients back.

| | `Copies` | `Shards` |
|---|---|---|
| held by a process | all rows | 1/P of the rows, with their Adam |
| read | from its own copy | fetched from who has them |
| after a step | every process hears the gradients of all | gradients go to who has the row |

Every row's gradient is added up in the order of the processes, then takes one step of Adam: what
one
process would have done with the whole batch, but for the last bits of a sum.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from llpauc.data.interactions import Indices
from llpauc.distributed import ProcessGroup
from llpauc.models.sharded import ShardedMF
from llpauc.training.backbones import (
    Backbone,
    PairSlopes,
    Side,
    Table,
    load_state_of,
    state_of,
    summed_by_item,
)
from llpauc.training.batches import Slots
from llpauc.training.kernels import merge_rows
from llpauc.training.row_adam import AdamOptions, room


class Copies:
    """A backbone of which every process has its own, kept equal."""

    def __init__(self, own: Backbone, processes: ProcessGroup) -> None:
        self._own, self._ranks = own, processes
        self._slots = Slots(own.model.n_users), Slots(own.model.n_items)

    @property
    def user_rows(self) -> Table:
        return self._own.user_rows

    @property
    def item_rows(self) -> Table:
        return self._own.item_rows

    def prepare(self, users: Indices, items: Indices) -> None:
        self._own.prepare(users, items)

    def apply(self, users: Indices, of_users: Table, items: Indices, of_items: Table) -> None:
        heard = self._ranks.gather_all([users, of_users, items, of_items])
        all_users, all_of_users = _merged(self._slots[0], *heard[:2])
        all_items, all_of_items = _merged(self._slots[1], *heard[2:])
        self._own.prepare(all_users, all_items)  # those of the others
        self._own.apply(all_users, all_of_users, all_items, all_of_items)

    def apply_pairs(
        self, users: Indices, of_users: Table, items: Indices, of_items: PairSlopes
    ) -> None:
        gradients = summed_by_item(of_items, (len(items), self.item_rows.shape[1]))
        self.apply(users, of_users, items, gradients)

    def settle(self) -> None:
        self._own.settle()

    def state(self) -> dict[str, npt.NDArray[Any]]:
        return self._own.state()

    def load_state(self, state: dict[str, npt.NDArray[Any]]) -> None:
        self._own.load_state(state)


class Shards:
    """MF whose rows are divided among the processes.

    `user_rows` and `item_rows` hold the rows of the batch alone, in the order they were asked for.
    """

    def __init__(self, model: ShardedMF, options: AdamOptions, processes: ProcessGroup) -> None:
        self._ranks = processes
        cosine, width = model.options.score == "cosine", model.options.dimensions
        self._users, self._items = (
            _SharedSide(Side(share, width, cosine, options), n, processes)
            for share, n in zip(model.shares(), (model.n_users, model.n_items), strict=True)
        )

    @property
    def user_rows(self) -> Table:
        return self._users.read

    @property
    def item_rows(self) -> Table:
        return self._items.read

    def prepare(self, users: Indices, items: Indices) -> None:
        asked = [self._users.ask(users), self._items.ask(items)]
        told = self._ranks.lengths(np.concatenate(asked))  # everybody's questions to everybody
        for side, came in zip((self._users, self._items), np.split(told, 2, axis=1), strict=True):
            side.fetch(came[:, self._ranks.rank])

    def apply(self, users: Indices, of_users: Table, items: Indices, of_items: Table) -> None:
        self._users.give(of_users)
        self._items.give(of_items)

    def apply_pairs(
        self, users: Indices, of_users: Table, items: Indices, of_items: PairSlopes
    ) -> None:
        gradients = summed_by_item(of_items, (len(items), self.item_rows.shape[1]))
        self.apply(users, of_users, items, gradients)

    def settle(self) -> None:
        self._users.side.settle()
        self._items.side.settle()

    def state(self) -> dict[str, npt.NDArray[Any]]:
        return state_of(self._users.side, self._items.side)

    def load_state(self, state: dict[str, npt.NDArray[Any]]) -> None:
        load_state_of(self._users.side, self._items.side, state)


class _SharedSide:
    """One table of which this process has a run of rows."""

    def __init__(self, side: Side, n: int, processes: ProcessGroup) -> None:
        self.side, self._ranks = side, processes
        self._bounds = np.array(processes.bounds(n))
        self._first = self._bounds[processes.rank]
        self._slots = Slots(len(side.rows))
        self.read: Table = side.rows[:0]

    def ask(self, rows: Indices) -> npt.NDArray[np.int64]:
        """How many of `rows` each rank has."""
        owners = np.searchsorted(self._bounds, rows, side="right") - 1
        self._order = np.argsort(owners, kind="stable")
        self._asked = rows[self._order]
        self._counts = np.bincount(owners, minlength=self._ranks.size)
        return self._counts

    def fetch(self, asked_by: npt.NDArray[np.int64]) -> None:
        """What was asked for, to `read`, one row for each; and as many as `asked_by` to others."""
        self._asked_by, exchange = asked_by, self._ranks.exchange
        wanted = exchange(self._asked, self._counts, asked_by)
        self._own = (wanted - self._first).astype(np.int32)  # of mine, by me and by the others
        self.side.prepare(self._slots.fill(self._own, self._own[:0]))
        came = exchange(self.side.rows[self._own], asked_by, self._counts)
        self.read = room((len(came), came.shape[1]))
        self.read[self._order] = came

    def give(self, gradients: Table) -> None:
        """Gradients of the rows last fetched go to who has them, and move them."""
        came = self._ranks.exchange(gradients[self._order], self._counts, self._asked_by)
        self.side.apply(*_merged(self._slots, self._own, came))


def _merged(slots: Slots, rows: Indices, gradients: Table) -> tuple[Indices, Table]:
    """Distinct rows, and the sum of the gradients of each, added up in order."""
    distinct = slots.fill(rows, rows[:0])
    merged = room((len(distinct), gradients.shape[1]))
    merge_rows(slots.slot_of[rows], gradients, merged)
    return distinct, merged
