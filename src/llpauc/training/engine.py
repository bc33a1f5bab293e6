"""One step of training: draw negatives, score, compute the loss, update the rows.

`CpuEngine` computes scores and gradients in Numba kernels, with any loss of the library between
them. `TorchEngine` uses autograd and the dense Adam of torch; it serves other devices such as CUDA,
and the tests compare `CpuEngine` with it.

Several processes divide each batch. Losses that average over rows are computed per process and
averaged. A loss that needs the whole batch, as LLPAUC does for its thresholds, gets the scores of
all processes in every process; its variables then take the same steps everywhere.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from itertools import pairwise
from typing import Any, NamedTuple

import numba
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from llpauc.data.ids import Indices
from llpauc.data.interactions import Interactions
from llpauc.distributed import SINGLE_PROCESS, ProcessGroup
from llpauc.losses.base import Context, Loss, NonFiniteError
from llpauc.losses.minimax import attach, minimax_parameter_groups
from llpauc.training.batches import Batch, Index, Indexer, Pairs, Slots
from llpauc.training.kernels import merge_rows, score_pairs, user_gradients
from llpauc.training.options import TrainingOptions
from llpauc.training.progress import Diverged
from llpauc.training.row_adam import ScalarAdam, Table, zero_table
from llpauc.training.samplers import Sampler
from llpauc.training.tables import (
    ItemGradients,
    PairGradients,
    merged_gradients,
    summed_by_item,
)
from llpauc.training.trainable import Trainable

# Multiplications per batch below which threads in the kernels do not pay: they save a tenth of the
# time on an idle machine, and wait milliseconds for each other on a busy one. The result is the
# same bits in either case.
_MIN_WORK_FOR_THREADS = 2_000_000
_MOMENTS = ("exp_avg", "exp_avg_sq")


class Scored(NamedTuple):
    """Scores of a batch: (B,) positives, (B, N) negatives, bool (B, N) mask, context."""

    pos: Tensor
    neg: Tensor
    mask: Tensor | None
    context: Context | None


class Engine(ABC):
    """Trains a model on batches.

    Args:
        model: trained in place.
        loss: any loss of the library; its variables are trained in place.
        sampler: draws the negatives.
        options: see `TrainingOptions`.
        processes: the processes that divide every batch among them.
    """

    def __init__(
        self,
        model: Trainable,
        loss: Loss,
        sampler: Sampler,
        options: TrainingOptions,
        processes: ProcessGroup = SINGLE_PROCESS,
    ) -> None:
        self.model, self.loss, self.sampler = model, loss, sampler
        self.processes, self.device = processes, options.device
        self._indexer: Indexer | None = None
        self._last: Scored | None = None

    @property
    @abstractmethod
    def helpers(self) -> int:
        """How many threads should call `prepare` ahead of `step`."""

    @abstractmethod
    def set_lr(self, lr: float) -> None:
        """Set the learning rate of the vectors, between two epochs."""

    def prepare(self, step: int, users: Indices, positives: Indices) -> Batch:
        """The batch of step `step`, as far as it does not depend on the model."""
        part = self.processes.slice_of(len(users))
        drawn = self.sampler.draw(step, users, positives, part)
        rows = users[part], positives[part]
        index = None if self._indexer is None else self._indexer(*rows, drawn.items)
        return Batch(step, *rows, drawn, len(users), index)

    @abstractmethod
    def step(self, batch: Batch) -> float:
        """Train on one batch and return its loss."""

    @abstractmethod
    def settle(self) -> None:
        """Bring every row up to date, before the model is evaluated or saved."""

    @abstractmethod
    def state(self) -> dict[str, npt.NDArray[Any]]:
        """What a resumed training needs in addition to the state of the model and the loss."""

    @abstractmethod
    def load_state(self, state: dict[str, npt.NDArray[Any]]) -> None:
        """Continue from `state`, with the model and the loss as they were then."""

    def diagnose(self) -> dict[str, float]:
        """Values that explain the loss of the last batch, from the rows of this process."""
        if self._last is None or not len(self._last.pos):
            return {}
        pos, neg, mask, context = self._last
        return dict(self.loss.diagnose(pos, neg, mask, context=context).values)

    def _scored(self, batch: Batch, pos: Tensor, neg: Tensor) -> Scored:
        """Scores with their mask and what the loss needs to know; kept for `diagnose`."""
        mask, context = batch.drawn.mask, None
        if self.loss.needs:
            users = torch.from_numpy(batch.users.astype(np.int64))
            context = Context(step=batch.step, users=users)
        on_device = None if mask is None else torch.from_numpy(mask).to(self.device)
        self._last = Scored(pos.detach(), neg.detach(), on_device, context)
        return self._last


class CpuEngine(Engine):
    """Kernels for the scores and gradients, `row_adam` for the tables.

    Args:
        model, loss, sampler, options, processes: see `Engine`.
        train: the events.
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
        super().__init__(model, loss, sampler, options, processes)
        self.tables = model.cpu_tables(train, options, processes)
        self._is_replicated = processes.world_size > 1 and model.user_range is None
        self._user_slots, self._item_slots = Slots(train.n_users), Slots(train.n_items)
        # The variables of the loss, with their learning rates as factors; negative ones ascend.
        groups = minimax_parameter_groups([], loss, lr=1.0)
        rates = [
            (variable, -group["lr"] if group["maximize"] else group["lr"])
            for group in groups
            for variable in group["params"]
        ]
        self.variables = ScalarAdam(rates, options.lr)
        self._indexer = Indexer(
            train.n_users, train.n_items, options.weight_decay == 0, self.tables.by_slot
        )
        self._memory: dict[str, Table] = {}

    def set_lr(self, lr: float) -> None:
        self.tables.users.lr = self.tables.items.lr = lr

    @property
    def helpers(self) -> int:
        """A quarter of the threads; none where the kernels use all threads, as the matrix products
        of shared negatives do."""
        if self.sampler.is_shared or self.tables.uses_all_threads:
            return 0
        threads: int = numba.get_num_threads()
        return min(threads - 1, max(1, threads // 4))

    def step(self, batch: Batch) -> float:
        index, threads = batch.index, numba.get_num_threads()
        assert index is not None  # made by `prepare`
        work = len(batch.users) * batch.drawn.items.shape[-1] * self.tables.user_rows.shape[1]
        parallel = work >= _MIN_WORK_FOR_THREADS or self.tables.uses_all_threads
        numba.set_num_threads(threads - self.helpers if parallel else 1)
        try:
            self.tables.prepare(index.users, index.items)
            if index.pairs is not None:
                value = self._step_rows(batch, index, index.pairs)
            else:
                value = self._step_shared(batch, index)
            self.variables.step()
            self.loss.project_()
            return value
        finally:
            numba.set_num_threads(threads)

    def _step_rows(self, batch: Batch, index: Index, pairs: Pairs) -> float:
        """Each positive has its own negatives."""
        tables, scale = self.tables, self.model.scale
        users, positives, negatives = self._table_rows(batch, index)
        # Scores.
        user_rows = self._array("user_rows", (len(positives), tables.user_rows.shape[1]))
        pos, neg = self._array("pos", positives.shape), self._array("neg", negatives.shape)
        score_pairs(
            tables.user_rows, tables.item_rows, users, positives, negatives, scale,
            user_rows, pos, neg,
        )  # fmt: skip
        # Loss and its gradients with respect to the scores.
        value, d_pos, d_neg = self._loss(batch, pos, neg)
        # Gradients of the rows, and one step of Adam.
        user_grads = self._array("user_grads", user_rows.shape)
        score_grads = self._array("score_grads", pairs.row_of.shape)
        user_gradients(
            tables.item_rows, positives, negatives, scale, d_pos, d_neg, pairs.place_of,
            user_grads, score_grads,
        )  # fmt: skip
        item_grads = PairGradients(pairs, score_grads, scale, user_rows)
        self._apply(index, user_grads, item_grads)
        return value

    def _step_shared(self, batch: Batch, index: Index) -> float:
        """One set of negatives for all positives: three matrix products."""
        tables, scale = self.tables, self.model.scale
        width = tables.user_rows.shape[1]
        has_bias = tables.item_rows.shape[1] > width
        users, positives, shared = self._table_rows(batch, index)
        # Scores.
        p = torch.from_numpy(tables.user_rows[users])
        q_pos = torch.from_numpy(tables.item_rows[positives])
        q_neg = torch.from_numpy(tables.item_rows[shared])
        pos = (p * q_pos[:, :width]).sum(1) * scale
        neg = torch.mm(p, q_neg[:, :width].T).mul_(scale)
        if has_bias:
            pos += q_pos[:, width]
            neg += q_neg[:, width]
        # Loss and its gradients with respect to the scores.
        value, *grads = self._loss(batch, pos.numpy(), neg.numpy())
        d_pos, d_neg = map(torch.from_numpy, grads)
        # Gradients of the rows, and one step of Adam.
        user_grads = torch.mm(d_neg, q_neg[:, :width]).addcmul_(d_pos[:, None], q_pos[:, :width])
        item_grads = torch.zeros(len(index.items), q_neg.shape[1])
        torch.mm(d_neg.T, p, out=item_grads[: len(shared), :width])
        slots = torch.from_numpy(index.positive_slots)
        item_grads[:, :width].index_add_(0, slots, d_pos[:, None] * p)
        user_grads *= scale
        item_grads[:, :width] *= scale
        if has_bias:
            item_grads[: len(shared), width] = d_neg.sum(0)
            item_grads[:, width].index_add_(0, slots, d_pos)
        self._apply(index, user_grads.numpy(), item_grads.numpy())
        return value

    def _table_rows(self, batch: Batch, index: Index) -> tuple[Indices, Indices, Indices]:
        """The rows of users, positives and negatives in the tables."""
        if not self.tables.by_slot:
            return batch.users, batch.positives, batch.drawn.items
        users = index.user_slots
        if users is None:
            users = np.arange(len(batch.users), dtype=np.int32)
        assert index.negative_slots is not None  # made for tables that are read by slot
        return users, index.positive_slots, index.negative_slots

    def _apply(self, index: Index, user_grads: Table, item_grads: ItemGradients) -> None:
        """Update the rows of the batch, of all processes where each has the whole tables."""
        users, items, tables = index.users, index.items, self.tables
        if index.user_slots is not None:  # sum the gradients of users that occur more than once
            merged = self._array("merged", (len(users), user_grads.shape[1]))
            merge_rows(index.user_slots, user_grads, merged)
            user_grads = merged
        if self._is_replicated:
            item_grads = summed_by_item(item_grads, len(items), tables.item_rows.shape[1])
            gathered = self.processes.gather_all([users, user_grads, items, item_grads])
            users, user_grads = merged_gradients(self._user_slots, *gathered[:2])
            items, item_grads = merged_gradients(self._item_slots, *gathered[2:])
            tables.prepare(users, items)  # rows that only other processes have read
        tables.apply(users, user_grads, items, item_grads)

    def _loss(self, batch: Batch, pos: Table, neg: Table) -> tuple[float, Table, Table]:
        scored = self._scored(batch, torch.from_numpy(pos), torch.from_numpy(neg))
        value, d_pos, d_neg = batch_loss(self.loss, scored, self.processes, batch.size)
        return value, d_pos.numpy(), d_neg.numpy()

    def _array(self, name: str, shape: tuple[int, ...]) -> Table:
        """Working memory that is reused by the next batch."""
        array = self._memory.get(name)
        if array is None or array.shape != shape:
            array = self._memory[name] = zero_table(shape)
        return array

    def settle(self) -> None:
        self.tables.settle()

    def state(self) -> dict[str, npt.NDArray[Any]]:
        return {**self.tables.state(), "variables": self.variables.state()}

    def load_state(self, state: dict[str, npt.NDArray[Any]]) -> None:
        self.tables.load_state(state)
        self.variables.load_state(state["variables"])


class TorchEngine(Engine):
    """Autograd through the model and dense Adam, on any device."""

    def __init__(
        self,
        model: Trainable,
        loss: Loss,
        sampler: Sampler,
        options: TrainingOptions,
        processes: ProcessGroup = SINGLE_PROCESS,
    ) -> None:
        device = options.device
        super().__init__(model.to(device), loss.to(device), sampler, options, processes)
        groups = minimax_parameter_groups(
            model.parameters(), loss, options.lr, weight_decay=options.weight_decay
        )
        self.optimizer = torch.optim.Adam(groups, lr=options.lr)
        attach(loss, self.optimizer)

    def set_lr(self, lr: float) -> None:
        self.optimizer.param_groups[0]["lr"] = lr

    @property
    def helpers(self) -> int:
        return 0 if self.sampler.is_shared else 1  # shared negatives are masked with all threads

    def step(self, batch: Batch) -> float:
        users, positives, negatives = (
            torch.from_numpy(rows.astype(np.int64)).to(self.device)
            for rows in (batch.users, batch.positives, batch.drawn.items)
        )
        self.optimizer.zero_grad()
        pos = self.model.scores(users, positives)
        neg = self.model.scores(users, negatives if negatives.dim() == 2 else negatives[None])
        scored = self._scored(batch, pos, neg)
        value, d_pos, d_neg = batch_loss(self.loss, scored, self.processes, batch.size)
        torch.autograd.backward([pos, neg], [d_pos, d_neg])
        if self.processes.world_size > 1:
            for table in self.model.parameters():
                torch.distributed.all_reduce(table.grad)
        self.optimizer.step()
        return value

    def settle(self) -> None:
        """A dense optimizer keeps all rows up to date."""

    def state(self) -> dict[str, npt.NDArray[Any]]:
        return {
            f"{place}.{name}": value.cpu().numpy()
            for place, parameter in enumerate(self._parameters())
            for name, value in self.optimizer.state[parameter].items()
        }

    def load_state(self, state: dict[str, npt.NDArray[Any]]) -> None:
        for place, parameter in enumerate(self._parameters()):
            saved = {name: torch.from_numpy(state[f"{place}.{name}"].copy()) for name in _MOMENTS}
            if any(value.shape != parameter.shape for value in saved.values()):
                raise ValueError(f"the moments of parameter {place} have another shape")
            self.optimizer.state[parameter] = {
                "step": torch.from_numpy(state[f"{place}.step"].copy()),  # always on the CPU
                **{name: value.to(self.device) for name, value in saved.items()},
            }

    def _parameters(self) -> list[Tensor]:
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]


# --- the loss of a batch that several processes have scored ---------------------------------------


def batch_loss(
    loss: Loss, scored: Scored, processes: ProcessGroup, size: int
) -> tuple[float, Tensor, Tensor]:
    """The loss of the whole batch, and its gradients for the rows of this process.

    Args:
        loss: any loss of the library.
        scored: the rows of this process.
        processes: the processes.
        size: rows of the whole batch.

    Raises:
        Diverged: on NaN or infinity in any process, in all processes at the same step.
    """
    if processes.world_size == 1:
        return _value_and_grads(loss, scored)
    if loss.needs_whole_batch:
        value, d_pos, d_neg = _value_and_grads(loss, _gather_scores(scored, processes, size))
        part = processes.slice_of(size)
        return value, d_pos[part], d_neg[part]
    rows = len(scored.pos) if scored.mask is None else int(scored.mask.any(1).sum())
    value, d_pos, d_neg = 0.0, torch.zeros_like(scored.pos), torch.zeros_like(scored.neg)
    problem = ""
    if rows:
        try:
            value, d_pos, d_neg = _value_and_grads(loss, scored)
        except Diverged as error:
            problem = str(error)
    total, all_rows, diverged = processes.sum([value * rows, rows, bool(problem)])
    if diverged:
        raise Diverged(next(filter(None, processes.gather_texts(problem))))
    weight = rows / max(all_rows, 1)
    return total / max(all_rows, 1), d_pos * weight, d_neg * weight


def _value_and_grads(loss: Loss, scored: Scored) -> tuple[float, Tensor, Tensor]:
    pos, neg, mask, context = scored
    try:
        value, d_pos, d_neg = loss.value_and_grads(pos, neg, mask, context=context)
    except NonFiniteError as error:
        raise Diverged(str(error)) from None
    if not math.isfinite(value):
        raise Diverged(f"the loss is {value}")
    return value, d_pos, d_neg


def _gather_scores(scored: Scored, processes: ProcessGroup, size: int) -> Scored:
    """The scores of all processes."""
    pos, neg, mask, context = scored
    lengths = [end - begin for begin, end in pairwise(processes.bounds(size))]

    def gather(*tensors: Tensor) -> list[Tensor]:
        arrays = [tensor.detach().cpu().numpy() for tensor in tensors]
        known = np.repeat(np.reshape(lengths, (-1, 1)), len(arrays), axis=1)
        return [torch.from_numpy(a).to(pos.device) for a in processes.gather_all(arrays, known)]

    # A process whose users all have negatives has no mask.
    has_mask = torch.full((len(pos),), mask is not None)
    users = [] if context is None or context.users is None else [context.users]
    all_pos, all_neg, any_mask, *all_users = gather(pos, neg, has_mask, *users)
    if any_mask.any():
        (mask,) = gather(torch.ones_like(neg, dtype=torch.bool) if mask is None else mask)
    if context is not None and all_users:
        context = Context(context.step, all_users[0])
    return Scored(all_pos, all_neg, mask, context)
