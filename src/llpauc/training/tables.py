"""Tables of vectors on a CPU, trained by Adam.

`TrainingTables` is what `CpuEngine` trains: the parameters of a model as NumPy arrays that share
memory with it. A batch makes three calls. `prepare` brings the rows to be read up to date; the
scores are computed from `user_rows` and `item_rows`; `apply` takes the gradients of the rows that
were read. Models whose vectors are computed from other rows, as those of LightGCN, subclass it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from llpauc.data.ids import Indices
from llpauc.training.batches import Pairs
from llpauc.training.kernels import (
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


class AdamTable:
    """A table of parameters that Adam changes in place (see `row_adam`).

    Call `prepare(rows)` before rows are read, and then `apply` for one step. Both expect distinct
    rows.

    Args:
        table: the parameters.
        options: learning rate and weight decay.
        width: columns of the vectors; a further column is a bias.
        cosine: whether `rows` are the rows of the table at unit length.
        moments: the initial moments; by default zero.
        interval: how many steps `apply` advances. Above 1 where other processes take the other
            steps, in which these rows have no gradient.

    Attributes:
        rows: what to read.
        mean, square: the moments.
        done: for each row, the step up to which it is up to date.
        count: number of steps done.
        lr: learning rate; it may change when all rows are up to date.
    """

    def __init__(
        self,
        table: Table,
        options: TrainingOptions,
        width: int,
        cosine: bool = False,
        moments: tuple[Table, Table] | None = None,
        interval: int = 1,
    ) -> None:
        self.table, self.width, self.cosine = table, width, cosine
        self.rows = zero_table(table.shape) if cosine else table
        self.mean, self.square = moments or (zero_table(table.shape), zero_table(table.shape))
        self.done = np.zeros(len(table), np.int64)
        self.count, self._interval = 0, interval
        self.lr, self._weight_decay = options.lr, options.weight_decay
        self._all = np.arange(len(table), dtype=np.int32)
        self._refresh(self._all)

    def prepare(self, rows: Indices) -> None:
        """Replay the steps that `rows` have missed before the next one."""
        self._replay(rows, self.count + self._interval - 1)

    def _replay(self, rows: Indices, count: int) -> None:
        state = self.mean, self.square, self.done
        if catch_up(self.table, *state, rows, count, self.lr):
            self._refresh(rows)

    def _refresh(self, rows: Indices) -> None:
        if self.cosine:
            unit_rows(self.table, rows, self.width, self.rows)

    def apply(self, rows: Indices, gradients: ItemGradients) -> None:
        """One step of Adam, in which the other rows have no gradient."""
        self.count += self._interval
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
        self._replay(self._all, self.count)

    def continue_from(self, count: int) -> None:
        """Count from `count` on, at which every row is up to date."""
        self.count = count
        self.done[:] = count

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
        uses_all_threads: whether `prepare` and `apply` keep every thread busy.
    """

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
