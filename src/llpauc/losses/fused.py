"""Value and gradients of the LLPAUC objective without autograd: float32 scores on a CPU.

`llpauc.losses.objective` holds the equation. The algebra: with
f = sigmoid(score) both losses are parabolas with the same leading term,

    l+(f) = (f + h+)^2 + c+,  h+ = -(a + 1 + gamma),  c+ = a^2 - h+^2
    l-(f) = (f + h-)^2 + c-,  h- = 1 + gamma - b,     c- = b^2 - h-^2

so one pass over a side yields its gradient, and four sums of it all the rest.
"""

from __future__ import annotations

from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from llpauc.errors import InputError
from llpauc.losses.base import refuse_broken
from llpauc.losses.kernels import objective

Number = TypeVar("Number", float, Tensor)


class Variables(NamedTuple, Generic[Number]):
    """The five variables of the minimax problem, or the gradient with respect to them.

    | paper | here | meaning at the saddle | domain |
    |---|---|---|---|
    | a | `pos_center` | mean f of the selected positives | [0, 1] |
    | b | `neg_center` | mean f of the selected negatives | [0, 1] |
    | gamma | `gap` | b - a | [max(-a, b - 1), 1] |
    | s+ | `pos_threshold` | -l+ of the last positive selected | [-1, 4] |
    | s- | `neg_threshold` | l- of the last negative selected | [0, 5] |
    """

    pos_center: Number
    neg_center: Number
    gap: Number
    pos_threshold: Number
    neg_threshold: Number


class ValueAndGrads(NamedTuple):
    """The objective and its derivatives: scores' as tensors, the variables' as numbers."""

    value: float
    d_pos: Tensor
    d_neg: Tensor
    d_variables: Variables[float]


def projected(variables: Variables[float]) -> Variables[float]:
    """The nearest point of the domains (see `Variables`), a and b first; NaN stays NaN.

    >>> projected(Variables(1.5, 0.2, -3.0, 9.0, 0.5))
    Variables(pos_center=1.0, neg_center=0.2, gap=-0.8, pos_threshold=4.0, neg_threshold=0.5)
    """

    def clip(x: float, low: float, high: float) -> float:
        return low if x < low else high if x > high else x

    a, b = clip(variables.pos_center, 0.0, 1.0), clip(variables.neg_center, 0.0, 1.0)
    return Variables(
        a,
        b,
        clip(variables.gap, max(-a, b - 1.0), 1.0),
        clip(variables.pos_threshold, -1.0, 4.0),
        clip(variables.neg_threshold, 0.0, 5.0),
    )


class Settings(NamedTuple):
    """What is fixed for the life of the loss: alpha, beta, kappa and w of the paper."""

    alpha: float
    beta: float
    sharpness: float
    gap_penalty: float


def fused_value_and_grads(
    pos: Tensor,
    neg: Tensor,
    variables: Variables[float],
    settings: Settings,
    neg_mask: Tensor | None = None,
) -> ValueAndGrads:
    """`llpauc_objective` and its gradient in one pass over the scores.

    Args:
        pos: (B,) float32 on a CPU, without a graph.
        neg: (B, N) likewise.
        variables: the five, as numbers.
        settings: alpha, beta, sharpness (finite), gap_penalty.
        neg_mask: bool (B, N), True where a pair counts, or None.
    """
    rows, n_neg, keep = None, neg.numel(), None
    if neg_mask is not None:
        keep = neg_mask.contiguous().numpy()
        n_neg = int(keep.sum())
        if n_neg == 0:
            none = Variables(0.0, 0.0, 0.0, 0.0, 0.0)
            return ValueAndGrads(0.0, torch.zeros_like(pos), torch.zeros_like(neg), none)
        rows = neg_mask.any(1)
        rows = None if bool(rows.all()) else rows
    kept = (pos.contiguous() if rows is None else pos[rows]).numpy()
    d_kept, d_neg = np.empty(kept.shape, np.float32), np.empty(neg.shape, np.float32)
    value, *d_variables, pos_broken, neg_broken = objective(
        kept, neg.contiguous().numpy(), keep, n_neg, d_kept, d_neg, variables, settings
    )
    if pos_broken or neg_broken:
        refuse_broken(pos_broken, neg_broken)
    d_pos = torch.from_numpy(d_kept)
    if rows is not None:
        d_pos = torch.zeros_like(pos).masked_scatter_(rows, d_pos)
    return ValueAndGrads(value, d_pos, torch.from_numpy(d_neg), Variables(*d_variables))


class _FusedObjective(torch.autograd.Function):
    """`fused_value_and_grads` under autograd."""

    @staticmethod
    def forward(
        ctx: Any,
        pos: Tensor,
        neg: Tensor,
        mask: Tensor | None,
        settings: Settings,
        *variables: Tensor,
    ) -> Tensor:
        ctx.save_for_backward(pos, neg)
        numbers = Variables(*(variable.item() for variable in variables))
        ctx.rest = numbers, settings, mask
        ctx.kind = {"dtype": variables[0].dtype, "device": variables[0].device}
        ctx.result = fused_value_and_grads(pos.detach(), neg.detach(), numbers, settings, mask)
        return torch.full((), ctx.result.value, dtype=pos.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # create_graph=True: the kernel has no second derivative
            raise InputError("float32 scores on a CPU have first derivatives only; use .double()")
        result: ValueAndGrads = ctx.result
        if result is None:  # a second pass over a retained graph: the first took the arrays along
            pos, neg = ctx.saved_tensors
            result = fused_value_and_grads(pos.detach(), neg.detach(), *ctx.rest)
        ctx.result = None
        scale = grad.item()
        if scale != 1.0:
            result.d_pos.mul_(scale)
            result.d_neg.mul_(scale)
        d_variables = (torch.full((), scale * d, **ctx.kind) for d in result.d_variables)
        return (result.d_pos, result.d_neg, None, None, *d_variables)


def fused_objective(
    pos: Tensor,
    neg: Tensor,
    neg_mask: Tensor | None,
    settings: Settings,
    variables: Variables[Tensor],
) -> Tensor:
    """`fused_value_and_grads` as a differentiable scalar."""
    value: Tensor = _FusedObjective.apply(pos, neg, neg_mask, settings, *variables)  # type: ignore[no-untyped-call]
    return value
