"""One step of training: draw negatives, score, compute the loss, update the rows.

`CpuEngine` computes scores and gradients in Numba kernels, with any loss of the library between
them. `TorchEngine` uses autograd and the dense Adam of torch; it serves other devices such as CUDA,
and the tests compare `CpuEngine` with it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numba
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from llpauc.data.ids import Indices
from llpauc.data.interactions import Interactions
from llpauc.losses.base import Context, Loss, NonFiniteError
from llpauc.losses.minimax import attach, minimax_parameter_groups
from llpauc.training.batches import Batch, Index, Indexer, Pairs
from llpauc.training.kernels import merge_rows, score_pairs, user_gradients
from llpauc.training.options import TrainingOptions
from llpauc.training.progress import Diverged
from llpauc.training.row_adam import ScalarAdam, Table, zero_table
from llpauc.training.samplers import Sampler
from llpauc.training.tables import ItemGradients, PairGradients, TrainingTables
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
    """

    def __init__(
        self, model: Trainable, loss: Loss, sampler: Sampler, options: TrainingOptions
    ) -> None:
        self.model, self.loss, self.sampler = model, loss, sampler
        self.device = options.device
        self._indexer: Indexer | None = None
        self._first_user = 0
        self._last: Scored | None = None

    @property
    @abstractmethod
    def helpers(self) -> int:
        """How many threads should call `prepare` ahead of `step`."""

    @abstractmethod
    def set_lr(self, lr: float) -> None:
        """Set the learning rate of the vectors, between two epochs."""

    def prepare(
        self, step: int, users: Indices, positives: Indices, weights: Table | None = None
    ) -> Batch:
        """The batch of step `step`, as far as it does not depend on the model."""
        drawn = self.sampler.draw(step, users, positives)
        index = None if self._indexer is None else self._indexer(users, positives, drawn.items)
        return Batch(step, users, positives, drawn, index, weights)

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
        """Values that explain the loss of the last batch."""
        if self._last is None:
            return {}
        pos, neg, mask, context = self._last
        return dict(self.loss.diagnose(pos, neg, mask, context=context).values)

    def _scored(self, batch: Batch, pos: Tensor, neg: Tensor) -> Scored:
        """Scores with their mask and what the loss needs to know; kept for `diagnose`."""
        mask, context = batch.drawn.mask, None
        if self.loss.needs:
            users = torch.from_numpy(batch.users.astype(np.int64) + self._first_user)
            context = Context(step=batch.step, users=users)
        on_device = None if mask is None else torch.from_numpy(mask).to(self.device)
        self._last = Scored(pos.detach(), neg.detach(), on_device, context)
        return self._last


class CpuEngine(Engine):
    """Kernels for the scores and gradients, `row_adam` for the tables.

    Args:
        model, loss, sampler, options: see `Engine`.
        train: the events.
        tables: what is trained, by default the tables of the model.
        variables: the optimizer of the loss's variables; by default a new one.
        first_user: the index in the model of the first user of `train`.
    """

    def __init__(
        self,
        model: Trainable,
        loss: Loss,
        sampler: Sampler,
        train: Interactions,
        options: TrainingOptions,
        tables: TrainingTables | None = None,
        variables: ScalarAdam | None = None,
        first_user: int = 0,
    ) -> None:
        super().__init__(model, loss, sampler, options)
        self.tables = tables or model.cpu_tables(train, options)
        self.variables = variables or loss_variables(loss, options.lr)
        self._indexer = Indexer(train.n_users, train.n_items, options.weight_decay == 0)
        self._first_user = first_user
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
        users, positives, negatives = batch.users, batch.positives, batch.drawn.items
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
        users, positives, shared = batch.users, batch.positives, batch.drawn.items
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

    def _apply(self, index: Index, user_grads: Table, item_grads: ItemGradients) -> None:
        """Update the rows of the batch."""
        if index.user_slots is not None:  # sum the gradients of users that occur more than once
            merged = self._array("merged", (len(index.users), user_grads.shape[1]))
            merge_rows(index.user_slots, user_grads, merged)
            user_grads = merged
        self.tables.apply(index.users, user_grads, index.items, item_grads)

    def _loss(self, batch: Batch, pos: Table, neg: Table) -> tuple[float, Table, Table]:
        scored = self._scored(batch, torch.from_numpy(pos), torch.from_numpy(neg))
        value, *grads = _value_and_grads(self.loss, scored)
        d_pos, d_neg = _weighted(batch, *grads)
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
        self, model: Trainable, loss: Loss, sampler: Sampler, options: TrainingOptions
    ) -> None:
        device = options.device
        super().__init__(model.to(device), loss.to(device), sampler, options)
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
        value, *grads = _value_and_grads(self.loss, scored)
        torch.autograd.backward([pos, neg], _weighted(batch, *grads))
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


def loss_variables(loss: Loss, lr: float, interval: int = 1) -> ScalarAdam:
    """An optimizer of the variables of a loss, each with its factor of the learning rate."""
    groups = minimax_parameter_groups([], loss, lr=1.0)
    rates = [
        (variable, -group["lr"] if group["maximize"] else group["lr"])
        for group in groups
        for variable in group["params"]
    ]
    return ScalarAdam(rates, lr, interval)


def _weighted(batch: Batch, d_pos: Tensor, d_neg: Tensor) -> list[Tensor]:
    """The gradients of each positive's scores, times the weight of the positive."""
    if batch.weights is None:
        return [d_pos, d_neg]
    weights = torch.from_numpy(batch.weights).to(d_pos.device)
    return [d_pos * weights, d_neg * weights[:, None]]


def _value_and_grads(loss: Loss, scored: Scored) -> tuple[float, Tensor, Tensor]:
    pos, neg, mask, context = scored
    try:
        value, d_pos, d_neg = loss.value_and_grads(pos, neg, mask, context=context)
    except NonFiniteError as error:
        raise Diverged(str(error)) from None
    if not math.isfinite(value):
        raise Diverged(f"the loss is {value}")
    return value, d_pos, d_neg
