"""Training by several processes that share no row, in the manner of PyTorch-BigGraph.

Each of P processes has a range of the users. The items are divided at random into 2 P blocks, in
every epoch again. An epoch has 2 P rounds. In round r, process p trains on the events between its
users and the items of block (2 p + r) mod 2 P, with negatives from that block. Then it sends the
block, with Adam's moments, to process p - 1, which needs it two rounds later: the message travels
during the next round. The variables of the loss are averaged after each round. Nothing else is
exchanged within an epoch; at its end every process gets the whole tables.

A row has as many gradients per epoch as in a training by one process, but in fewer steps, since P
processes take their steps at the same time. A step of a process therefore counts as P steps of Adam
for its users, and as 2 P steps for the items of its block, which rest in every second round, in
which these rows have one gradient. For the variables of the loss, which have a gradient in every
step, it counts as P steps with that gradient.

Reference: Lerer et al., PyTorch-BigGraph: a large-scale graph embedding system, SysML 2019.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from llpauc.data.ids import Indices
from llpauc.data.interactions import Interactions
from llpauc.data.recency import Floats
from llpauc.distributed import ProcessGroup
from llpauc.errors import InputError
from llpauc.losses.base import Loss
from llpauc.training.batches import Order
from llpauc.training.engine import CpuEngine, loss_variables
from llpauc.training.options import TrainingOptions
from llpauc.training.row_adam import Table, empty_table, fill, zero_table
from llpauc.training.samplers import make_sampler
from llpauc.training.tables import AdamTable, TrainingTables
from llpauc.training.trainable import Trainable

_BLOCKS = 2  # per process: one in use, one on its way
_MIN_ITEMS = 50  # of a block
_MIN_USERS = 50  # of a process


def check_partition(
    model: Trainable, train: Interactions, options: TrainingOptions, processes: int
) -> None:
    """Raise an error if several processes cannot train this model."""
    if not model.is_partitionable:
        raise InputError(
            f"{model.name} is trained by one process, since its vectors depend on the rows of other"
            " users and items; leave out torchrun, or use model mf"
        )
    if options.device != "cpu":
        raise InputError(f"several processes train on CPUs, not on {options.device!r}")
    most = min(train.n_users // _MIN_USERS, train.n_items // (_BLOCKS * _MIN_ITEMS))
    if processes > most:
        raise InputError(
            f"{processes} processes are too many for {train.n_users:,} users and"
            f" {train.n_items:,} items; use at most {max(most, 1)}"
        )


class Partition:
    """The users of this process and the blocks of items that it holds.

    Args:
        model: whole tables, which `gather` fills.
        loss: its variables are averaged by `average`.
        train: the events.
        options: of the training.
        chances: of each event, to draw with replacement; None uses each event once.
        processes: at least two.
        weights: of each event, with the mean 1; None where all are equal.

    Attributes:
        rounds: in an epoch.
        batches: in a round.
        round: the current one, from 0.
    """

    def __init__(
        self,
        model: Trainable,
        loss: Loss,
        train: Interactions,
        options: TrainingOptions,
        chances: Floats | None,
        processes: ProcessGroup,
        weights: Table | None = None,
    ) -> None:
        self._model, self._loss, self._train, self._options = model, loss, train, options
        self._processes, size = processes, processes.world_size
        self.rounds, self.round = _BLOCKS * size, 0
        self.batches = -(-len(train) // (size * self.rounds * options.batch_size))
        # The users of this process: a range with its fraction of the events.
        starts = train.matrix.indptr
        inner = np.searchsorted(starts, np.linspace(0, starts[-1], size + 1)[1:-1])
        self._bounds = [0, *inner.tolist(), train.n_users]
        self._first, end = self._bounds[processes.index : processes.index + 2]
        mine = np.flatnonzero((train.users >= self._first) & (train.users < end))
        self._event_users, self._event_items = train.users[mine] - self._first, train.items[mine]
        self._chances = None if chances is None else chances[mine]
        self._weights = None if weights is None else weights[mine]
        self._counts = np.bincount(train.matrix.indices, minlength=train.n_items)
        self._user_ids = train.user_ids.take(np.arange(self._first, end))
        # Tables: of these users, and of all items with Adam's moments.
        tables = model.weights()
        self._all_users, items = tables["user_table"].numpy(), tables["item_table"].numpy()
        self._users = self._adam_table(self._all_users[self._first : end], None, size)
        self._items: list[Table] = [items, zero_table(items.shape), zero_table(items.shape)]
        self._variables = loss_variables(loss, options.lr, size)
        self._blocks: list[npt.NDArray[np.int64]] = []
        self._held: dict[int, Table] = {}  # block -> (3, n, width) parameters and moments
        self._arrivals: dict[int, Callable[[], None]] = {}  # round -> wait for its block
        self._is_gathered = True

    def _adam_table(
        self, table: Table, moments: tuple[Table, Table] | None, interval: int
    ) -> AdamTable:
        model, width = self._model, self._model.options.dimensions
        return AdamTable(table, self._options, width, model.cosine, moments, interval)

    def _block(self, process: int, number: int) -> int:
        return (_BLOCKS * process + number) % self.rounds

    def _held_rounds(self) -> range:
        """The rounds whose blocks every process holds in the current round."""
        first = min(self.round, self.rounds - _BLOCKS)
        return range(first, first + _BLOCKS)

    def begin_epoch(self, epoch: int, first_round: int) -> None:
        """Divide the items into blocks, and take those of the first rounds."""
        self.round = first_round
        rng = np.random.default_rng([self._options.seed, epoch])
        parts = np.array_split(rng.permutation(self._train.n_items), self.rounds)
        self._blocks = [np.sort(part) for part in parts]
        self._held = {}
        for number in self._held_rounds():
            block = self._block(self._processes.index, number)
            self._held[block] = self._empty(block)
            for rows, table in zip(self._held[block], self._items, strict=True):
                rows[:] = table[self._blocks[block]]

    def _empty(self, block: int) -> Table:
        return empty_table((len(self._items), len(self._blocks[block]), self._items[0].shape[1]))

    def open_round(self, epoch: int, step: int) -> tuple[CpuEngine, Interactions, Order]:
        """The engine of the current round, its events and their order.

        Args:
            epoch: the current one.
            step: number of batches before this round, in a process.
        """
        self._wait_for(self.round)
        self._is_gathered = False
        size, index, options = self._processes.world_size, self._processes.index, self._options
        block = self._block(index, self.round)
        # The events between these users and the items of the block.
        slots = np.full(self._train.n_items, -1, np.int32)
        slots[self._blocks[block]] = np.arange(len(self._blocks[block]), dtype=np.int32)
        items: Indices = slots[self._event_items]
        where = np.flatnonzero(items >= 0)
        item_ids = self._train.item_ids.take(self._blocks[block])
        events = Interactions(
            self._event_users[where], items[where], self._user_ids, item_ids,
            weights=None if self._weights is None else self._weights[where],
        )  # fmt: skip
        rng = np.random.default_rng([options.seed, epoch, self.round, index])
        order = rng.permutation(len(events))
        if self._chances is not None:
            chances = self._chances[where]
            total = chances.sum()
            order = rng.choice(len(events), round(total * len(self._train)), p=chances / total)
        # Tables that count the steps of all processes.
        table, mean, square = self._held[block]
        tables = TrainingTables(self._users, self._adam_table(table, (mean, square), self.rounds))
        for side in (tables.users, tables.items):
            side.continue_from(size * step)
        seed = int(rng.integers(2**62))
        counts = self._counts[self._blocks[block]]
        sampler = make_sampler(options.sampler, events, options.negatives, seed, counts)
        model, loss, first = self._model, self._loss, self._first
        engine = CpuEngine(model, loss, sampler, events, options, tables, self._variables, first)
        return engine, events, order

    def close_round(self) -> None:
        """Start to send the block to the process that needs it, if any; go to the next round."""
        following = self.round + _BLOCKS
        if following < self.rounds:
            index = self._processes.index
            block = self._block(index, following)
            self._held[block] = self._empty(block)
            outgoing = self._held.pop(self._block(index, self.round))
            self._arrivals[following] = self._processes.rotate(outgoing, self._held[block])
        self.round += 1

    def _wait_for(self, *rounds: int) -> None:
        """Wait for the blocks of these rounds, if they are on their way."""
        for number in rounds:
            if number in self._arrivals:
                self._arrivals.pop(number)()

    def average(self, numbers: Sequence[float]) -> npt.NDArray[np.float64]:
        """Average the variables of the loss; (processes, n): the numbers of every process."""
        variables, state = list(self._loss.parameters()), self._variables.state()
        values = [variable.item() for variable in variables]
        gathered = self._processes.all_gather([*numbers, *values, *state.ravel()])
        means = gathered[:, len(numbers) :].mean(axis=0)
        with torch.no_grad():
            for variable, mean in zip(variables, means, strict=False):
                variable.fill_(mean)
        self._variables.load_state(means[len(variables) :].reshape(state.shape))
        return gathered[:, : len(numbers)]

    def gather(self) -> None:
        """Bring the tables of the model up to date, in every process."""
        if self._is_gathered:
            return
        self._wait_for(*list(self._arrivals))
        for process in range(self._processes.world_size):
            for number in self._held_rounds():
                block = self._block(process, number)
                packed = self._held[block] if block in self._held else self._empty(block)
                self._processes.broadcast(packed, process)
                for table, rows in zip(self._items, packed, strict=True):
                    table[self._blocks[block]] = rows
        self._processes.share(self._all_users, self._bounds)
        self._is_gathered = True

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """The state of the optimizers after `gather`, by name."""
        state: dict[str, npt.NDArray[Any]] = {"variables": self._variables.state()}
        for name, mine, items in zip(
            ("mean", "square"), (self._users.mean, self._users.square), self._items[1:], strict=True
        ):
            whole = zero_table(self._all_users.shape)
            whole[self._first : self._first + len(mine)] = mine
            self._processes.share(whole, self._bounds)
            state |= {f"users.{name}": whole, f"items.{name}": items}
        return state

    def load_state(self, state: dict[str, npt.NDArray[Any]]) -> None:
        """Continue from `state`, with the model and the loss as they were then."""
        for table, name in zip(self._items[1:], ("mean", "square"), strict=True):
            fill(table, state[f"items.{name}"])
        mine = slice(self._first, self._first + len(self._users.table))
        moments = {name: state[f"users.{name}"][mine] for name in ("mean", "square")}
        self._users.load_state({**self._users.state(), **moments})
        self._variables.load_state(state["variables"])
