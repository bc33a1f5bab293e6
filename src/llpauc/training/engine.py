"""One step of training: draw negatives, score, take the loss, move the rows.

Two engines with one face. `CpuEngine` runs the kernels with any loss between them; `TorchEngine` is
the plain torch way (autograd, dense torch.optim.Adam), for CUDA and as the other engine's oracle.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import numba
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from llpauc.errors import InputError
from llpauc.interactions import Interactions, Rows
from llpauc.losses.interface import Context, Loss
from llpauc.losses.minimax import attach, minimax_parameter_groups
from llpauc.models.embedding import EmbeddingModel
from llpauc.optim import AdamOptions, ScalarAdam
from llpauc.sampling import Negatives, Sampler
from llpauc.training.backbones import BACKBONES, Backbone
from llpauc.training.kernels import distinct, merge_rows, scatter_gradients, score_pairs

Table = npt.NDArray[np.float32]

# Multiplications a batch below which threads do not pay: they gain a tenth on an idle machine and
# wait milliseconds for each other on a busy one. The bits do not depend on it.
_WORTH_THREADS = 2_000_000
FAST_RATE = 2.0  # of the gap and the thresholds, in units of the base rate: the reference setting


class Diverged(RuntimeError):
    """Training met NaN or infinity. The rows are as they were before that step."""


class Engine(Protocol):
    """What the training loop needs."""

    def step(self, step: int, users: Rows, positives: Rows) -> float:
        """Train on one batch; the loss."""
        ...

    def settle(self) -> None:
        """Bring every row up to date, before the model is read or saved."""
        ...

    def diagnose(self) -> dict[str, float]:
        """What the loss of the last batch stood for."""
        ...


class CpuEngine:
    """Kernels for the pairs, torch for the loss, row-Adam for the tables.

    Args:
        model: its tables are trained in place.
        loss: any loss of the library.
        sampler: where negatives come from.
        train: the events.
        adam: rates and decays.
        share: batches that share one propagation (lightgcn).
    """

    def __init__(
        self,
        model: EmbeddingModel,
        loss: Loss,
        sampler: Sampler,
        train: Interactions,
        adam: AdamOptions,
        share: int = 1,
    ) -> None:
        self.model, self.loss, self.sampler = model, loss, sampler
        extra = {"share": share} if model.name == "lightgcn" else {}
        self.backbone: Backbone = BACKBONES[model.name](model, train, adam, **extra)
        self.variables = ScalarAdam(_rates(loss), adam)
        self._decays = adam.weight_decay > 0
        self._item_slots, self._user_slots = _Slots(train.n_items), _Slots(train.n_users)
        self._memory: dict[str, npt.NDArray[Any]] = {}
        self._last: _Batch | None = None

    def step(self, step: int, users: Rows, positives: Rows) -> float:
        threads = numba.get_num_threads()
        pairs = len(users) * self.sampler.negatives
        if pairs * self.model.options.dimensions < _WORTH_THREADS:
            numba.set_num_threads(1)
        try:
            return self._step(step, users, positives)
        finally:
            numba.set_num_threads(threads)

    def _step(self, step: int, users: Rows, positives: Rows) -> float:
        drawn = self.sampler.draw(step, users, positives)
        user_rows = self._user_slots.fill(users)
        if drawn.items.ndim == 2:
            value, of_users, items, of_items = self._rows_step(step, users, positives, drawn)
        else:
            value, of_users, items, of_items = self._shared_step(step, users, positives, drawn)
        if len(user_rows) < len(users):
            merged = self._array("merged", (len(user_rows), of_users.shape[1]))
            merge_rows(users, self._user_slots.slot_of, of_users, len(user_rows), merged)
            of_users = merged
        self.backbone.apply(user_rows, of_users, items, of_items)
        self.variables.step()
        self.loss.project_()
        return value

    def settle(self) -> None:
        self.backbone.settle()

    def diagnose(self) -> dict[str, float]:
        return _figures(self.loss, self._last)

    def _rows_step(
        self, step: int, users: Rows, positives: Rows, drawn: Negatives
    ) -> tuple[float, Table, Rows, Table]:
        """Negatives of each positive's own."""
        negatives, size = drawn.items, drawn.items.size
        if size >= self.model.n_items and not self._decays:
            # Nearly every item comes up: all of them step, those without a pair by a gradient of
            # zero, which is what a replay would do later. (Not with weight decay: that is for
            # the rows of a batch alone.)
            items = self._item_slots.all()
        else:
            items = self._item_slots.fill(positives, negatives.ravel())
        back = self.backbone
        back.prepare(self._user_slots.rows, items)
        scale = np.float32(self.model.scale)
        pos_scores = self._array("pos", (len(users),))
        neg_scores = self._array("neg", negatives.shape)
        score_pairs(
            back.user_rows, back.item_rows, users, positives, negatives, scale,
            pos_scores, neg_scores,
        )  # fmt: skip
        value, of_pos, of_neg = self._loss_and_slopes(step, users, pos_scores, neg_scores, drawn)
        shards = numba.get_num_threads()
        of_users = self._array("of_users", (len(users), back.user_rows.shape[1]))
        of_items = self._array("of_items", (len(items), back.item_rows.shape[1]))
        scatter_gradients(
            back.user_rows, back.item_rows, users, positives, negatives, scale, of_pos, of_neg,
            self._item_slots.slot_of, len(items), shards,
            self._array("counts", (shards, len(items)), np.int32),
            self._array("pair_user", (size + len(users),), np.int32),
            self._array("pair_slope", (size + len(users),)), of_users, of_items,
        )  # fmt: skip
        return value, of_users, items, of_items

    def _shared_step(
        self, step: int, users: Rows, positives: Rows, drawn: Negatives
    ) -> tuple[float, Table, Rows, Table]:
        """One set of negatives for all: three matrix products."""
        shared = drawn.items
        items = self._item_slots.fill(shared, positives)  # the shared ones take slots 0..M-1
        back, width = self.backbone, self.model.options.dimensions
        back.prepare(self._user_slots.rows, items)
        scale = self.model.scale
        p, q, own = (torch.from_numpy(rows) for rows in (
            back.user_rows[users], back.item_rows[shared], back.item_rows[positives]))  # fmt: skip
        pos_scores = (p * own[:, :width]).sum(1) * scale
        neg_scores = torch.mm(p, q[:, :width].T).mul_(scale)
        if self.model.options.item_bias:
            pos_scores += own[:, width]
            neg_scores += q[:, width]
        value, of_pos, of_neg = self._loss_and_slopes(
            step, users, pos_scores.numpy(), neg_scores.numpy(), drawn
        )
        d_pos, d_neg = torch.from_numpy(of_pos), torch.from_numpy(of_neg)
        of_users = torch.mm(d_neg, q[:, :width]).addcmul_(d_pos[:, None], own[:, :width])
        of_items = torch.zeros(len(items), q.shape[1])
        torch.mm(d_neg.T, p, out=of_items[: len(shared), :width])
        slots = torch.from_numpy(self._item_slots.slot_of[positives].astype(np.int64))
        of_items[:, :width].index_add_(0, slots, d_pos[:, None] * p)
        of_users *= scale
        of_items[:, :width] *= scale
        if self.model.options.item_bias:
            of_items[: len(shared), width] = d_neg.sum(0)
            of_items[:, width].index_add_(0, slots, d_pos)
        return value, of_users.numpy(), items, of_items.numpy()

    def _loss_and_slopes(
        self, step: int, users: Rows, pos_scores: Table, neg_scores: Table, drawn: Negatives
    ) -> tuple[float, Table, Table]:
        pos, neg = torch.from_numpy(pos_scores), torch.from_numpy(neg_scores)
        keep = None if drawn.keep is None else torch.from_numpy(drawn.keep)
        context = _context(self.loss, step, users)
        self._last = (pos, neg, keep, context)
        try:  # the loss looks at its scores
            value, of_pos, of_neg = self.loss.value_and_slopes(pos, neg, keep, context=context)
        except InputError as error:
            raise Diverged(str(error)) from None
        if not math.isfinite(value):
            raise Diverged(f"the loss is {value}")
        return value, of_pos.numpy(), of_neg.numpy()

    def _array(self, name: str, shape: tuple[int, ...], dtype: Any = np.float32) -> Any:
        """Working memory that is kept between batches."""
        size = math.prod(shape)
        held = self._memory.get(name)
        if held is None or held.size < size:
            held = self._memory[name] = np.empty(size, dtype)
        return held[:size].reshape(shape)

    def state(self) -> dict[str, npt.NDArray[Any]]:
        return {**self.backbone.state(), "variables": self.variables.state()}

    def load_state(self, state: dict[str, npt.NDArray[Any]]) -> None:
        self.backbone.load_state(state)
        self.variables.load_state(state["variables"])


class _Slots:
    """The distinct rows of a batch, without clearing anything in between."""

    def __init__(self, n: int) -> None:
        self.slot_of = np.zeros(n, np.int32)
        self._stamp = np.zeros(n, np.int64)
        self._now, self._holds_all = 0, False
        self._rows = np.empty(n, np.int32)
        self.rows = self._rows[:0]

    def all(self) -> Rows:
        """Every row, in a slot of its own number."""
        if not self._holds_all:
            self._rows[:] = self.slot_of[:] = np.arange(len(self._rows), dtype=np.int32)
            self.rows, self._holds_all = self._rows, True
        return self.rows

    def fill(self, first: Rows, second: Rows | None = None) -> Rows:
        self._now, self._holds_all = self._now + 1, False
        second = first[:0] if second is None else second
        n = distinct(first, second, self.slot_of, self._stamp, self._now, self._rows)
        self.rows = self._rows[:n]
        return self.rows


class TorchEngine:
    """The textbook way: autograd through the model, dense Adam, any device."""

    def __init__(
        self,
        model: EmbeddingModel,
        loss: Loss,
        sampler: Sampler,
        adam: AdamOptions,
        device: str = "cpu",
    ) -> None:
        self.model, self.loss, self.sampler = model.to(device), loss.to(device), sampler
        self.device = device
        groups = minimax_parameter_groups(
            model.parameters(), loss, adam.lr, fast=FAST_RATE, weight_decay=adam.weight_decay
        )
        self.optimizer = torch.optim.Adam(
            groups, lr=adam.lr, betas=(adam.decay_mean, adam.decay_square), eps=adam.eps
        )
        attach(loss, self.optimizer)
        self._last: _Batch | None = None

    def step(self, step: int, users: Rows, positives: Rows) -> float:
        drawn = self.sampler.draw(step, users, positives)
        who, pos, neg = (self._tensor(a) for a in (users, positives, drawn.items))
        keep = None if drawn.keep is None else torch.from_numpy(drawn.keep).to(self.device)
        self.optimizer.zero_grad()
        pos_scores = self.model.scores(who, pos)
        neg_scores = self.model.scores(who, neg if neg.dim() == 2 else neg[None])
        context = _context(self.loss, step, users)
        self._last = (pos_scores.detach(), neg_scores.detach(), keep, context)
        try:
            value = self.loss(pos_scores, neg_scores, keep, context=context)
        except InputError as error:
            raise Diverged(str(error)) from None
        value.backward()
        number: float = value.item()
        if not math.isfinite(number):
            raise Diverged(f"the loss is {number}")
        self.optimizer.step()
        return number

    def _tensor(self, rows: Rows) -> Tensor:
        return torch.from_numpy(rows.astype(np.int64)).to(self.device)

    def settle(self) -> None:
        """Nothing lags behind in a dense engine."""

    def diagnose(self) -> dict[str, float]:
        return _figures(self.loss, self._last)


_Batch = tuple[Tensor, Tensor, Tensor | None, Context | None]


def _figures(loss: Loss, batch: _Batch | None) -> dict[str, float]:
    if batch is None:
        return {}
    pos, neg, keep, context = batch
    return dict(loss.diagnose(pos, neg, keep, context=context).figures)


def _context(loss: Loss, step: int, users: Rows) -> Context | None:
    if not loss.needs:
        return None
    return Context(step=step, users=torch.from_numpy(users.astype(np.int64)))


def _rates(loss: Loss) -> list[tuple[torch.nn.Parameter, float]]:
    """Each variable of the loss with its rate in units of the base rate; negative climbs."""
    fast = {id(variable) for variable in loss.fast_parameters()}
    return [
        (variable, sign * (FAST_RATE if id(variable) in fast else 1.0))
        for sign, variables in ((1, loss.descent_parameters()), (-1, loss.ascent_parameters()))
        for variable in variables
    ]
