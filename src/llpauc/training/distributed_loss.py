"""The loss of a batch whose rows several processes have scored, each its share."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from llpauc.distributed import ProcessGroup
from llpauc.losses.base import Context, Loss, NonFiniteError
from llpauc.training.history import Diverged

Scored = tuple[Tensor, Tensor, Tensor | None, Context | None]  # pos, neg, keep, context


def loss_of_all(
    loss: Loss, scored: Scored, processes: ProcessGroup, whole: int
) -> tuple[float, Tensor, Tensor]:
    """The loss of the whole batch, and its slopes for the rows of this process.

    Where rows are worth something each by itself, every process takes the loss of its own, and the
    mean is put together. A loss that looks at all rows at once, as LLPAUC does for its thresholds,
    gets the scores of all; its variables then move alike everywhere.

    Args:
        loss: any loss of the library.
        scored: what this process has.
        processes: the processes.
        whole: rows of the whole batch.

    Raises:
        Diverged: on NaN or infinity on any of them, and on all of them at the same step.
    """
    if processes.world_size == 1:
        return _value_and_slopes(loss, scored)
    if loss.needs_whole_batch:
        value, of_pos, of_neg = _value_and_slopes(loss, _gathered(scored, processes, whole))
        mine = processes.slice_of(whole)
        return value, of_pos[mine], of_neg[mine]
    pos, neg, keep, _ = scored
    rows = len(pos) if keep is None else int(keep.any(1).sum())
    value, of_pos, of_neg = 0.0, torch.zeros_like(pos), torch.zeros_like(neg)
    trouble = ""
    if rows:
        try:
            value, of_pos, of_neg = _value_and_slopes(loss, scored)
        except Diverged as error:
            trouble = str(error)
    total, all_rows, broken = processes.sum([value * rows, rows, bool(trouble)])
    if broken:
        told = next(text for text in processes.gather_texts(trouble) if text)
        raise Diverged(told)
    weight = rows / max(all_rows, 1)
    return total / max(all_rows, 1), of_pos * weight, of_neg * weight


def finite(value: float) -> float:
    if not math.isfinite(value):
        raise Diverged(f"the loss is {value}")
    return value


def _value_and_slopes(loss: Loss, scored: Scored) -> tuple[float, Tensor, Tensor]:
    pos, neg, keep, context = scored
    try:  # the loss looks at its scores
        value, of_pos, of_neg = loss.value_and_grads(pos, neg, keep, context=context)
    except NonFiniteError as error:
        raise Diverged(str(error)) from None
    return finite(value), of_pos, of_neg


def _gathered(scored: Scored, processes: ProcessGroup, whole: int) -> Scored:
    pos, neg, keep, context = scored
    bounds = processes.bounds(whole)
    lengths = [end - begin for begin, end in pairwise(bounds)]

    def of_all(*tensors: Tensor) -> list[Tensor]:
        arrays = [tensor.detach().cpu().numpy() for tensor in tensors]
        known = np.repeat(np.reshape(lengths, (-1, 1)), len(arrays), axis=1)
        found = processes.gather_all(arrays, known)
        return [torch.from_numpy(array).to(pos.device) for array in found]

    masked = torch.full((len(pos),), keep is not None)  # a rank without a sated user has no mask
    everything = [pos, neg, masked]
    if context is not None and context.users is not None:
        everything.append(context.users)
    all_pos, all_neg, any_masked, *users = of_all(*everything)
    if any_masked.any():
        (keep,) = of_all(torch.ones_like(neg, dtype=torch.bool) if keep is None else keep)
    if context is not None and users:
        context = Context(context.step, users[0])
    return all_pos, all_neg, keep, context
