"""One step of training: draw negatives, score, take the loss, move the rows.

Two engines with one face. `CpuEngine` runs the kernels with any loss between them; `TorchEngine` is
the plain torch way (autograd, dense torch.optim.Adam), for CUDA and as the other engine's oracle.
"""

from __future__ import annotations

from typing import Any, Protocol

import numba
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from llpauc.data.interactions import Indices, Interactions
from llpauc.distributed import SINGLE_PROCESS, ProcessGroup
from llpauc.losses.base import Context, Loss, NonFiniteError
from llpauc.losses.minimax import attach, minimax_parameter_groups
from llpauc.training.batches import Batch, Index, Indexer, Pairs
from llpauc.training.distributed_loss import Scored, finite, loss_of_all
from llpauc.training.history import Diverged
from llpauc.training.kernels import merge_rows, score_pairs, user_gradients
from llpauc.training.options import TrainingOptions
from llpauc.training.row_adam import ScalarAdam, aligned
from llpauc.training.samplers import Sampler
from llpauc.training.tables import ReplicatedTables
from llpauc.training.trainable import PairGradients, Table, Trainable, TrainingTables

# Multiplications a batch below which threads in the kernels do not pay: they gain a tenth on an
# idle machine and wait milliseconds for each other on a busy one. The bits do not depend on it.
_WORTH_THREADS = 2_000_000
FAST_RATE = 2.0  # of the gap and the thresholds, in units of the base rate: the reference setting


class Engine(Protocol):
    """What the training loop needs."""

    @property
    def helpers(self) -> int:
        """How many threads should call `prepare` ahead of `step`."""
        ...

    def prepare(self, step: int, users: Indices, positives: Indices) -> Batch:
        """The batch of step `step`, as far as the model has no part in it."""
        ...

    def step(self, batch: Batch) -> float:
        """Train on one batch; the loss."""
        ...

    def settle(self) -> None:
        """Bring every row up to date, before the model is read or saved."""
        ...

    def diagnose(self) -> dict[str, float]:
        """What the loss of the last batch stood for; nothing where there was none yet."""
        ...

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """All that a resumed run needs beside the model's and the loss's own state."""
        ...

    def load_state(self, state: dict[str, npt.NDArray[Any]]) -> None:
        """Go on from `state`, with the model and the loss as they were then."""
        ...


class CpuEngine:
    """Kernels for the pairs, torch for the loss, row-Adam for the tables.

    Args:
        model: its tables are trained in place.
        loss: any loss of the library.
        sampler: where negatives come from.
        train: the events.
        options: see `TrainingOptions`.
        processes: the processes that divide every batch among them.
    """

    def __init__(
        self,
        model: Trainable,
        loss: Loss,
        sampler: Sampler,
        train: Interactions,
        options: TrainingOptions,
        processes: ProcessGroup = SINGLE_PROCESS,
    ) -> None:
        self.model, self.loss, self.sampler, self.processes = model, loss, sampler, processes
        self.tables: TrainingTables = model.cpu_tables(train, options, processes)
        if processes.world_size > 1 and model.user_range is None:
            self.tables = ReplicatedTables(self.tables, processes)
        self.variables = ScalarAdam(_rates(loss), options.adam)
        self._index = Indexer(
            train.n_users,
            train.n_items,
            every_item=options.weight_decay == 0,
            slots_only=self.tables.by_slot,
        )
        self._memory: dict[str, Table] = {}
        self._last: Scored | None = None

    @property
    def helpers(self) -> int:
        """A quarter of the threads. None where the kernels use all of them, as the matrix products
        of shared negatives do."""
        if self.sampler.is_shared or self.tables.uses_all_threads:
            return 0
        threads: int = numba.get_num_threads()
        return min(threads - 1, max(1, threads // 4))

    def prepare(self, step: int, users: Indices, positives: Indices) -> Batch:
        mine, whole = self.processes.slice_of(len(users)), len(users)
        drawn = self.sampler.draw(step, users, positives, mine)
        users, positives = users[mine], positives[mine]
        index = self._index(users, positives, drawn.items)
        return Batch(step, users, positives, drawn, whole, index)

    def step(self, batch: Batch) -> float:
        threads = numba.get_num_threads()
        work = len(batch.users) * batch.drawn.items.shape[-1] * self.tables.user_rows.shape[1]
        spread = work >= _WORTH_THREADS or self.tables.uses_all_threads
        numba.set_num_threads(threads - self.helpers if spread else 1)
        try:
            return self._step(batch)
        finally:
            numba.set_num_threads(threads)

    def _step(self, batch: Batch) -> float:
        index = batch.index
        assert index is not None  # `prepare` has made it
        self.tables.prepare(index.users, index.items)
        if index.pairs is not None:
            value = self._rows_step(batch, index, index.pairs)
        else:
            value = self._shared_step(batch, index)
        self.variables.step()
        self.loss.project_()
        return value

    def settle(self) -> None:
        self.tables.settle()

    def diagnose(self) -> dict[str, float]:
        return _figures(self.loss, self._last)

    def _rows_step(self, batch: Batch, index: Index, pairs: Pairs) -> float:
        """Negatives of each positive's own."""
        tables, scale = self.tables, self.model.scale
        users, positives, negatives = self._places(batch, index)
        read = self._array("read", (len(positives), tables.user_rows.shape[1]))
        pos_scores = self._array("pos", positives.shape)
        neg_scores = self._array("neg", negatives.shape)
        score_pairs(
            tables.user_rows, tables.item_rows, users, positives, negatives, scale,
            read, pos_scores, neg_scores,
        )  # fmt: skip
        value, of_pos, of_neg = self._loss_and_slopes(batch, pos_scores, neg_scores)
        of_users = self._array("of_users", read.shape)
        slope_of = self._array("slope_of", pairs.row_of.shape)
        user_gradients(
            tables.item_rows, positives, negatives, scale, of_pos, of_neg, pairs.place_of,
            of_users, slope_of,
        )  # fmt: skip
        of_items = PairGradients(pairs, slope_of, scale, read)
        tables.apply(index.users, self._merged(index, of_users), index.items, of_items)
        return value

    def _shared_step(self, batch: Batch, index: Index) -> float:
        """One set of negatives for all: three matrix products."""
        users, positives, shared = self._places(batch, index)
        tables, scale = self.tables, self.model.scale
        width = tables.user_rows.shape[1]
        biased = tables.item_rows.shape[1] > width
        p, q, own = (torch.from_numpy(rows) for rows in (
            tables.user_rows[users], tables.item_rows[shared], tables.item_rows[positives],
        ))  # fmt: skip
        pos_scores = (p * own[:, :width]).sum(1) * scale
        neg_scores = torch.mm(p, q[:, :width].T).mul_(scale)
        if biased:
            pos_scores += own[:, width]
            neg_scores += q[:, width]
        value, of_pos, of_neg = self._loss_and_slopes(batch, pos_scores.numpy(), neg_scores.numpy())
        d_pos, d_neg = torch.from_numpy(of_pos), torch.from_numpy(of_neg)
        of_users = torch.mm(d_neg, q[:, :width]).addcmul_(d_pos[:, None], own[:, :width])
        of_items = torch.zeros(len(index.items), q.shape[1])
        torch.mm(d_neg.T, p, out=of_items[: len(shared), :width])
        slots = torch.from_numpy(index.positive_slots)
        of_items[:, :width].index_add_(0, slots, d_pos[:, None] * p)
        of_users *= scale
        of_items[:, :width] *= scale
        if biased:
            of_items[: len(shared), width] = d_neg.sum(0)
            of_items[:, width].index_add_(0, slots, d_pos)
        merged = self._merged(index, of_users.numpy())
        tables.apply(index.users, merged, index.items, of_items.numpy())
        return value

    def _places(self, batch: Batch, index: Index) -> tuple[Indices, Indices, Indices]:
        """Where users, positives and negatives stand in the tables."""
        if not self.tables.by_slot:
            return batch.users, batch.positives, batch.drawn.items
        slots = index.user_slots
        if slots is None:
            slots = np.arange(len(batch.users), dtype=np.int32)
        assert index.negative_slots is not None  # the indexer was asked for them
        return slots, index.positive_slots, index.negative_slots

    def _merged(self, index: Index, of_users: Table) -> Table:
        """A row of gradients for each distinct user."""
        if index.user_slots is None:
            return of_users
        merged = self._array("merged", (len(index.users), of_users.shape[1]))
        merge_rows(index.user_slots, of_users, merged)
        return merged

    def _loss_and_slopes(
        self, batch: Batch, pos_scores: Table, neg_scores: Table
    ) -> tuple[float, Table, Table]:
        pos, neg = torch.from_numpy(pos_scores), torch.from_numpy(neg_scores)
        keep = None if batch.drawn.mask is None else torch.from_numpy(batch.drawn.mask)
        context = _context(self.loss, batch)
        self._last = (pos, neg, keep, context)
        value, of_pos, of_neg = loss_of_all(self.loss, self._last, self.processes, batch.whole)
        return value, of_pos.numpy(), of_neg.numpy()

    def _array(self, name: str, shape: tuple[int, ...]) -> Table:
        """Working memory that is kept between batches."""
        held = self._memory.get(name)
        if held is None or held.shape != shape:
            held = self._memory[name] = aligned(shape)
        return held

    def state(self) -> dict[str, npt.NDArray[Any]]:
        return {**self.tables.state(), "variables": self.variables.state()}

    def load_state(self, state: dict[str, npt.NDArray[Any]]) -> None:
        self.tables.load_state(state)
        self.variables.load_state(state["variables"])


class TorchEngine:
    """The textbook way: autograd through the model, dense Adam, any device."""

    def __init__(
        self,
        model: Trainable,
        loss: Loss,
        sampler: Sampler,
        options: TrainingOptions,
        processes: ProcessGroup = SINGLE_PROCESS,
    ) -> None:
        self.device, self.processes, adam = options.device, processes, options.adam
        self.model, self.loss, self.sampler = model.to(self.device), loss.to(self.device), sampler
        groups = minimax_parameter_groups(
            model.parameters(), loss, adam.lr, fast=FAST_RATE, weight_decay=adam.weight_decay
        )
        self.optimizer = torch.optim.Adam(
            groups, lr=adam.lr, betas=(adam.decay_mean, adam.decay_square), eps=adam.eps
        )
        attach(loss, self.optimizer)
        self._last: Scored | None = None

    @property
    def helpers(self) -> int:
        return int(not self.sampler.is_shared)  # shared negatives are masked with threads

    def prepare(self, step: int, users: Indices, positives: Indices) -> Batch:
        mine, whole = self.processes.slice_of(len(users)), len(users)
        drawn = self.sampler.draw(step, users, positives, mine)
        return Batch(step, users[mine], positives[mine], drawn, whole)

    def step(self, batch: Batch) -> float:
        drawn = batch.drawn
        who, pos, neg = (self._tensor(a) for a in (batch.users, batch.positives, drawn.items))
        keep = None if drawn.mask is None else torch.from_numpy(drawn.mask).to(self.device)
        self.optimizer.zero_grad()
        pos_scores = self.model.scores(who, pos)
        neg_scores = self.model.scores(who, neg if neg.dim() == 2 else neg[None])
        context = _context(self.loss, batch)
        self._last = (pos_scores.detach(), neg_scores.detach(), keep, context)
        if self.processes.world_size > 1:
            value, of_pos, of_neg = loss_of_all(self.loss, self._last, self.processes, batch.whole)
            torch.autograd.backward([pos_scores, neg_scores], [of_pos, of_neg])
            for table in self.model.parameters():
                torch.distributed.all_reduce(table.grad)
        else:
            value = self._backward(pos_scores, neg_scores, keep, context)
        self.optimizer.step()
        return value

    def _backward(
        self, pos: Tensor, neg: Tensor, keep: Tensor | None, context: Context | None
    ) -> float:
        try:
            value = self.loss(pos, neg, keep, context=context)
        except NonFiniteError as error:
            raise Diverged(str(error)) from None
        value.backward()
        return finite(value.item())

    def _tensor(self, rows: Indices) -> Tensor:
        return torch.from_numpy(rows.astype(np.int64)).to(self.device)

    def settle(self) -> None:
        """Nothing lags behind in a dense engine."""

    def diagnose(self) -> dict[str, float]:
        return _figures(self.loss, self._last)

    def state(self) -> dict[str, npt.NDArray[Any]]:
        return {
            f"{place}.{name}": value.cpu().numpy()
            for place, parameter in enumerate(self._parameters())
            for name, value in self.optimizer.state[parameter].items()
        }

    def load_state(self, state: dict[str, npt.NDArray[Any]]) -> None:
        for place, parameter in enumerate(self._parameters()):
            if not any(name.startswith(f"{place}.") for name in state):
                continue  # it has had no gradient yet: the threshold of a share of 1 never has
            saved = {name: torch.from_numpy(state[f"{place}.{name}"].copy()) for name in _MOMENTS}
            if any(value.shape != parameter.shape for value in saved.values()):
                raise ValueError(f"the moments of parameter {place} have another shape")
            self.optimizer.state[parameter] = {
                "step": torch.from_numpy(state[f"{place}.step"].copy()),  # Adam's stays on the CPU
                **{name: value.to(self.device) for name, value in saved.items()},
            }

    def _parameters(self) -> list[Tensor]:
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]


_MOMENTS = ("exp_avg", "exp_avg_sq")


def _figures(loss: Loss, scored: Scored | None) -> dict[str, float]:
    """Of this process's share of the last batch."""
    if scored is None or not len(scored[0]):
        return {}
    pos, neg, keep, context = scored
    return dict(loss.diagnose(pos, neg, keep, context=context).values)


def _context(loss: Loss, batch: Batch) -> Context | None:
    if not loss.needs:
        return None
    return Context(step=batch.step, users=torch.from_numpy(batch.users.astype(np.int64)))


def _rates(loss: Loss) -> list[tuple[torch.nn.Parameter, float]]:
    """Each variable of the loss with its rate in units of the base rate; negative climbs."""
    fast = {id(variable) for variable in loss.fast_parameters()}
    return [
        (variable, sign * (FAST_RATE if id(variable) in fast else 1.0))
        for sign, variables in ((1, loss.descent_parameters()), (-1, loss.ascent_parameters()))
        for variable in variables
    ]
