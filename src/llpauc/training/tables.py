"""Tables of vectors on a CPU, trained by Adam.

`TrainingTables` is what `CpuEngine` trains: the parameters of a model as NumPy arrays that share
memory with it. A batch makes three calls. `prepare` brings the rows to be read up to date; the
scores are computed from `user_rows` and `item_rows`; `apply` takes the gradients of the rows that
were read. Models whose vectors are computed from other rows, as those of LightGCN, subclass it.

`ShardedTables` divides the rows among several processes. The gradients of a row are summed in the
order of the processes, followed by one step of Adam: the result is that of one process with the
whole batch, up to rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from llpauc.data.ids import Indices
from llpauc.distributed import ProcessGroup
from llpauc.training.batches import Pairs, Slots
from llpauc.training.kernels import (
    merge_rows,
    step_items,
    sum_item_gradients,
    through_unit,
    unit_rows,
)
from llpauc.training.options import TrainingOptions
from llpauc.training.row_adam import (
    Table,
    catch_up,
    empty_table,
    fill,
    step_constants,
    step_rows,
    zero_table,
)


@dataclass(frozen=True)
class PairGradients:
    """The gradient of the item rows, one entry per (user, item) pair, not yet summed by item.

    Args:
        pairs: the pairs of the batch, grouped by item.
        score_grads: scale times d loss / d score of each pair, in the order of `pairs`.
        scale: factor between the product of two rows and the score.
        user_rows: the user rows that were read, one for each positive of the batch.
    """

    pairs: Pairs
    score_grads: Table
    scale: float
    user_rows: Table


ItemGradients = Table | PairGradients


def summed_by_item(gradients: ItemGradients, n_items: int, width: int) -> Table:
    """A gradient for each distinct item of the batch."""
    if isinstance(gradients, np.ndarray):
        return gradients
    summed, pairs = empty_table((n_items, width)), gradients.pairs
    sum_item_gradients(
        gradients.user_rows,
        pairs.ends,
        pairs.row_of,
        gradients.score_grads,
        gradients.scale,
        summed,
    )
    return summed


def merged_gradients(slots: Slots, rows: Indices, gradients: Table) -> tuple[Indices, Table]:
    """The distinct rows and, for each, its gradients summed in order."""
    distinct = slots.fill(rows)
    merged = empty_table((len(distinct), gradients.shape[1]))
    merge_rows(slots.slot_of[rows], gradients, merged)
    return distinct, merged


class AdamTable:
    """A table of parameters that Adam changes in place (see `row_adam`).

    Call `prepare(rows)` before rows are read, and then `apply` for one step. Both expect distinct
    rows.

    Args:
        table: the parameters.
        options: learning rate and weight decay.
        width: columns of the vectors; a further column is a bias.
        cosine: whether `rows` are the rows of the table at unit length.

    Attributes:
        rows: what to read.
        mean, square: the moments.
        done: for each row, the step up to which it is up to date.
        count: number of steps begun.
        lr: learning rate; it may change when all rows are up to date.
    """

    def __init__(
        self, table: Table, options: TrainingOptions, width: int, cosine: bool = False
    ) -> None:
        self.table, self.width, self.cosine = table, width, cosine
        self.rows = zero_table(table.shape) if cosine else table
        self.mean, self.square = zero_table(table.shape), zero_table(table.shape)
        self.done = np.zeros(len(table), np.int64)
        self.count = 0
        self.lr, self._weight_decay = options.lr, options.weight_decay
        self._all = np.arange(len(table), dtype=np.int32)
        self._refresh(self._all)

    def prepare(self, rows: Indices) -> None:
        """Replay the steps that `rows` have missed."""
        state = self.mean, self.square, self.done
        if catch_up(self.table, *state, rows, self.count, self.lr):
            self._refresh(rows)

    def _refresh(self, rows: Indices) -> None:
        if self.cosine:
            unit_rows(self.table, rows, self.width, self.rows)

    def apply(self, rows: Indices, gradients: ItemGradients) -> None:
        """One step of Adam, in which the other rows have no gradient."""
        self.count += 1
        state = self.mean, self.square, self.done
        constants = step_constants(self.count, self.lr, self._weight_decay)
        if isinstance(gradients, np.ndarray):
            if self.cosine:
                through_unit(self.table, self.rows, rows, self.width, gradients)
            step_rows(self.table, *state, rows, gradients, self.count, constants)
            self._refresh(rows)
            return
        pairs = gradients.pairs
        step_items(
            gradients.user_rows, rows, pairs.ends, pairs.row_of, gradients.score_grads,
            gradients.scale,
            self.table, self.rows, self.cosine, *state, self.count, constants,
        )  # fmt: skip

    def settle(self) -> None:
        """Bring every row up to date."""
        self.prepare(self._all)

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """The state without the table; the arrays are not copied.

        Missed steps stay missed: replaying in two parts rounds differently than at once.
        """
        moments = {"mean": self.mean, "square": self.square}
        return {**moments, "done": self.done, "count": np.array(self.count)}

    def load_state(self, state: dict[str, npt.NDArray[Any]]) -> None:
        """Continue from `state`, with the table as it was then."""
        for name in ("mean", "square", "done"):
            fill(getattr(self, name), state[name])
        self.count = int(state["count"])
        if (self.done < 0).any() or (self.done > self.count).any():
            raise ValueError("the steps of its rows are not those of a training")
        self._refresh(self._all)


class TrainingTables:
    """A table of users and a table of items, read as they are; the base class of all others.

    Attributes:
        by_slot: whether `user_rows` and `item_rows` hold the rows of the prepared batch only, in
            its order.
        uses_all_threads: whether `prepare` and `apply` keep every thread busy.
    """

    by_slot = False
    uses_all_threads = False

    def __init__(self, users: AdamTable, items: AdamTable) -> None:
        self.users, self.items = users, items

    @property
    def user_rows(self) -> Table:
        """The user vectors to read."""
        return self.users.rows

    @property
    def item_rows(self) -> Table:
        """The item vectors to read; one more column than `user_rows` is a bias."""
        return self.items.rows

    def prepare(self, users: Indices, items: Indices) -> None:
        """Bring these distinct rows up to date."""
        self.users.prepare(users)
        self.items.prepare(items)

    def apply(
        self, users: Indices, user_gradients: Table, items: Indices, item_gradients: ItemGradients
    ) -> None:
        """One step of Adam with a gradient for each distinct user and item; those of the items may
        still be by pair (see `summed_by_item`)."""
        self.users.apply(users, user_gradients)
        self.items.apply(items, item_gradients)

    def settle(self) -> None:
        """Bring every row up to date, before the model is evaluated or saved."""
        self.users.settle()
        self.items.settle()

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """The state of the optimizer, by name."""
        return {
            f"{name}.{key}": value
            for name, table in (("users", self.users), ("items", self.items))
            for key, value in table.state().items()
        }

    def load_state(self, state: dict[str, npt.NDArray[Any]]) -> None:
        """Continue from `state`, with the parameters as they were then."""
        for name, table in (("users", self.users), ("items", self.items)):
            table.load_state({key: state[f"{name}.{key}"] for key in table.state()})


class ShardedTables(TrainingTables):
    """Tables whose rows are divided among the processes.

    `user_rows` and `item_rows` hold the rows of the prepared batch only, in its order.

    Args:
        users, items: the rows of this process.
        n_users, n_items: rows of all processes.
        processes: the processes.
    """

    by_slot = True

    def __init__(
        self,
        users: AdamTable,
        items: AdamTable,
        n_users: int,
        n_items: int,
        processes: ProcessGroup,
    ) -> None:
        super().__init__(users, items)
        self._processes = processes
        self._user_shards = _ShardedTable(users, n_users, processes)
        self._item_shards = _ShardedTable(items, n_items, processes)

    @property
    def user_rows(self) -> Table:
        return self._user_shards.rows

    @property
    def item_rows(self) -> Table:
        return self._item_shards.rows

    def prepare(self, users: Indices, items: Indices) -> None:
        counts = [self._user_shards.request(users), self._item_shards.request(items)]
        size, index = self._processes.world_size, self._processes.index
        requests = self._processes.gather_counts(np.concatenate(counts)).reshape(size, 2, size)
        self._user_shards.fetch(requests[:, 0, index])
        self._item_shards.fetch(requests[:, 1, index])

    def apply(
        self, users: Indices, user_gradients: Table, items: Indices, item_gradients: ItemGradients
    ) -> None:
        summed = summed_by_item(item_gradients, len(items), self.item_rows.shape[1])
        self._user_shards.send_gradients(user_gradients)
        self._item_shards.send_gradients(summed)


class _ShardedTable:
    """One table of which this process holds a range of rows."""

    def __init__(self, table: AdamTable, n: int, processes: ProcessGroup) -> None:
        self._table, self._processes = table, processes
        self._bounds = np.array(processes.bounds(n))
        self._first = self._bounds[processes.index]
        self._slots = Slots(len(table.rows))
        self.rows: Table = table.rows[:0]

    def request(self, rows: Indices) -> npt.NDArray[np.int64]:
        """Plan to fetch `rows`; how many of them each process holds."""
        holders = np.searchsorted(self._bounds, rows, side="right") - 1
        self._order = np.argsort(holders, kind="stable")
        self._requested = rows[self._order]
        self._counts = np.bincount(holders, minlength=self._processes.world_size)
        return self._counts

    def fetch(self, incoming: npt.NDArray[np.int64]) -> None:
        """Fetch the requested rows; send incoming[p] rows to each process p."""
        self._incoming, exchange = incoming, self._processes.exchange
        sent = exchange(self._requested, self._counts, incoming)
        self._sent = (sent - self._first).astype(np.int32)  # rows of this process, by any process
        self._table.prepare(self._slots.fill(self._sent))
        received = exchange(self._table.rows[self._sent], incoming, self._counts)
        self.rows = empty_table((len(received), received.shape[1]))
        self.rows[self._order] = received

    def send_gradients(self, gradients: Table) -> None:
        """Send the gradients of the fetched rows to their processes; apply those received."""
        received = self._processes.exchange(gradients[self._order], self._counts, self._incoming)
        self._table.apply(*merged_gradients(self._slots, self._sent, received))
