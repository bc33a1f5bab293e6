"""The interface of every loss, and the checks they share.

    loss(pos_scores (B,), neg_scores (B, N), neg_mask=None, *, context=None) -> scalar

| argument | meaning |
|---|---|
| `pos_scores` | the score of each row's positive |
| `neg_scores` | the scores of its negatives |
| `neg_mask` | bool (B, N), True = this pair counts; False: as if the negative were absent |
| `context` | what a loss lists in `needs`: the training step, or the users of the rows |

A row without a pair that counts contributes nothing, its positive included; a batch of such rows
has the value 0 and zero gradients. Half-precision scores are computed in float32, and the loss is
then a float32 scalar; the gradient has the precision of the scores.
"""

from __future__ import annotations

import math
from abc import ABC
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from llpauc.errors import InputError, listing
from llpauc.losses.kernels import Kernel, KernelResult
from llpauc.options import options_of

Score = Literal["dot", "cosine"]
ForAllUsers = Callable[[Callable[[Tensor, Tensor], Tensor]], Tensor]  # see `Loss.begin_epoch`

_HALF = (torch.float16, torch.bfloat16)
_NEEDS = {
    "step": "the number of steps taken, e.g. Context(step=0)",
    "users": "the user index of each positive, e.g. Context(users=users)",
}


@dataclass(frozen=True)
class Context:
    """What a loss may need in addition to the scores; `Loss.needs` lists it.

    Args:
        step: optimizer steps taken so far, from 0.
        users: (B,) integers, the user index of each positive.
    """

    step: int | None = None
    users: Tensor | None = None


@dataclass(frozen=True)
class Diagnostics:
    """How to read the value of a loss.

    Args:
        value: the loss.
        meaning: one sentence on how to read it.
        values: further numbers by name; those of a partial-AUC loss are the batch's hard LLPAUC,
            the fractions it selects and its five variables.
    """

    value: float
    meaning: str
    values: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        values = ", ".join(f"{name} {value:.4g}" for name, value in self.values.items())
        return f"{self.value:.4g} ({self.meaning}) {values}"


class Prepared(NamedTuple):
    """Checked scores: float32 or float64, every row has a pair that counts, 0 where masked."""

    pos: Tensor
    neg: Tensor
    mask: Tensor | None
    context: Context


class NonFiniteError(InputError):
    """Scores or variables are NaN or infinite; training treats it as divergence."""


@dataclass(eq=False, repr=False)
class Loss(nn.Module, ABC):
    """A training loss: scores in, scalar out.

    A loss with parameters is a dataclass; its annotations hold their ranges, which are checked
    here. It either names its `equation`, whose docstring it takes unless it has one, or overrides
    `compute`.

    `score` is the score that the loss is designed for. It has no effect here: the model decides,
    and a model ranks with the score it is trained with.

    The methods after `value_and_grads` are for losses that maximise over variables or need
    statistics of the model. For all others they do nothing, so one training loop serves all.
    """

    score: ClassVar[Score] = "dot"
    needs: ClassVar[frozenset[str]] = frozenset()
    meaning: ClassVar[str]
    equation: ClassVar[Callable[..., Tensor]]

    def __init_subclass__(cls) -> None:
        if cls.__doc__ is None and "equation" in vars(cls):
            cls.__doc__ = cls.equation.__doc__

    def __post_init__(self) -> None:
        super().__init__()
        options = options_of(type(self))
        for parameter in fields(self):
            if parameter.init and parameter.name in options:
                value = options[parameter.name].check(getattr(self, parameter.name))
                setattr(self, parameter.name, value)

    @property
    def option_values(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.init}

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.option_values.items())

    def forward(
        self,
        pos_scores: Tensor,
        neg_scores: Tensor,
        neg_mask: Tensor | None = None,
        *,
        context: Context | None = None,
    ) -> Tensor:
        """The loss of a batch, a scalar."""
        batch = self.prepare(pos_scores, neg_scores, neg_mask, context)
        if len(batch.pos) == 0:
            return batch.pos.sum() + batch.neg.sum()  # 0 with zero gradients
        return self.compute(batch.pos, batch.neg, batch.mask, batch.context)

    def compute(self, pos: Tensor, neg: Tensor, mask: Tensor | None, context: Context) -> Tensor:
        """The equation, on scores that `prepare` has checked."""
        return type(self).equation(pos, neg, mask, **self.option_values)

    def prepare(
        self,
        pos_scores: Tensor,
        neg_scores: Tensor,
        neg_mask: Tensor | None,
        context: Context | None,
    ) -> Prepared:
        """Check a batch, and remove what does not count."""
        check_shapes(pos_scores, neg_scores, neg_mask)
        context = self._check_context(len(pos_scores), context or Context())
        pos, neg = to_common_dtype(pos_scores, neg_scores)
        mask = neg_mask
        if mask is not None:
            pos, neg, mask, context = drop_masked(pos, neg, mask, context)
        if not math.isfinite((pos.detach().sum() + neg.detach().sum()).item()):
            counted = neg if mask is None else torch.where(mask, neg, 0.0)
            check_finite(int((~pos.isfinite()).sum()), int((~counted.isfinite()).sum()))
        return Prepared(pos, neg, mask, context)

    def _check_context(self, rows: int, context: Context) -> Context:
        for need in sorted(self.needs):
            if getattr(context, need) is None:
                raise InputError(f"{type(self).__name__} needs context.{need}: {_NEEDS[need]}")
        users = context.users
        if "users" in self.needs and users is not None and users.shape != (rows,):
            raise InputError(f"context.users must be ({rows},), got {tuple(users.shape)}")
        return context

    def value_and_grads(
        self,
        pos_scores: Tensor,
        neg_scores: Tensor,
        neg_mask: Tensor | None = None,
        *,
        context: Context | None = None,
    ) -> tuple[float, Tensor, Tensor]:
        """The loss and its gradients with respect to the scores, without a graph.

        The gradients with respect to the variables of the loss are stored in their `grad`.
        """
        kernel = self.kernel() if fits_kernel(pos_scores, neg_scores) else None
        if kernel is not None:
            check_shapes(pos_scores, neg_scores, neg_mask)
            result = run_kernel(kernel, pos_scores, neg_scores, neg_mask)
            variables = self._parameters.values()  # faster than `parameters`
            for derivative, variable in zip(result.d_variables, variables, strict=False):
                assert variable is not None
                if variable.grad is None:
                    variable.grad = torch.zeros_like(variable)
                variable.grad.fill_(derivative)
            return result.value, torch.from_numpy(result.d_pos), torch.from_numpy(result.d_neg)
        pos, neg = (scores.detach().requires_grad_() for scores in (pos_scores, neg_scores))
        for variable in self.parameters():
            variable.grad = torch.zeros_like(variable)
        value = self(pos, neg, neg_mask, context=context)
        value.backward()
        assert pos.grad is not None
        assert neg.grad is not None
        return value.item(), pos.grad, neg.grad

    def kernel(self) -> Kernel | None:
        """A function that computes value and gradients without autograd, of float32 scores on a
        CPU; None: there is none."""
        return None

    def ascent_parameters(self) -> list[nn.Parameter]:
        """The variables over which the loss is maximised."""
        return []

    def descent_parameters(self) -> list[nn.Parameter]:
        """The variables over which the loss is minimised."""
        return []

    def rate_factors(self) -> dict[str, float]:
        """Factors of the learning rate, by the name of the variable; 1 for all others."""
        return {}

    def project_(self) -> None:
        """Bring the variables back into their domains; called after every step."""

    def begin_epoch(self, epoch: int, for_all_users: ForAllUsers) -> None:
        """Called before the first batch of each epoch.

        Args:
            epoch: counted from 1.
            for_all_users: calls a function with the scores (n, n_items) of n users and with their
                training items, bool (n, n_items), until all users are done; returns its results,
                (n_users, ...).
        """

    @torch.no_grad()
    def diagnose(
        self,
        pos_scores: Tensor,
        neg_scores: Tensor,
        neg_mask: Tensor | None = None,
        *,
        context: Context | None = None,
    ) -> Diagnostics:
        """The value of a batch, its meaning, and further values from `diagnostics`."""
        batch = self.prepare(pos_scores, neg_scores, neg_mask, context)
        if len(batch.pos) == 0:
            return Diagnostics(0.0, "no pair of this batch counts")
        value = self.compute(batch.pos, batch.neg, batch.mask, batch.context).item()
        return Diagnostics(value, self.meaning, self.diagnostics(batch))

    def diagnostics(self, batch: Prepared) -> dict[str, float]:
        """`auc`: the fraction of a row's pairs in the right order, averaged over rows."""
        return {"auc": row_mean((batch.pos[:, None] > batch.neg).float(), batch.mask).mean().item()}


def fits_kernel(pos: Tensor, neg: Tensor) -> bool:
    """Whether a kernel can read the scores: float32 on a CPU."""
    return all(scores.is_cpu and scores.dtype == torch.float32 for scores in (pos, neg))


def run_kernel(kernel: Kernel, pos: Tensor, neg: Tensor, mask: Tensor | None) -> KernelResult:
    """The result of a kernel on checked shapes; raises `NonFiniteError` for invalid scores."""
    keep = None if mask is None else mask.contiguous().numpy()
    pos, neg = pos.detach().contiguous(), neg.detach().contiguous()
    result = kernel(pos.numpy(), neg.numpy(), keep)
    check_finite(result.pos_invalid, result.neg_invalid)
    return result


class _KernelFunction(torch.autograd.Function):
    """A kernel under autograd, for first derivatives."""

    @staticmethod
    def forward(
        ctx: Any, kernel: Kernel, pos: Tensor, neg: Tensor, mask: Tensor | None, *variables: Tensor
    ) -> Tensor:
        ctx.kernel, ctx.mask = kernel, mask
        ctx.save_for_backward(pos, neg)
        ctx.variable_type = {"dtype": variables[0].dtype, "device": variables[0].device}
        ctx.result = run_kernel(kernel, pos, neg, mask)
        return torch.full((), ctx.result.value, dtype=pos.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # create_graph=True: the kernel has no second derivative
            raise InputError("float32 scores on a CPU have first derivatives only; use .double()")
        # A second pass over a retained graph computes it again: the first gave its arrays away.
        pos, neg = ctx.saved_tensors
        result: KernelResult = ctx.result or run_kernel(ctx.kernel, pos, neg, ctx.mask)
        ctx.result = None
        d_scores = torch.from_numpy(result.d_pos), torch.from_numpy(result.d_neg)
        scale = grad.item()
        if scale != 1.0:
            for gradient in d_scores:
                gradient.mul_(scale)
        d_variables = (torch.full((), scale * d, **ctx.variable_type) for d in result.d_variables)
        return (None, *d_scores, None, *d_variables)


def kernel_value(
    kernel: Kernel, pos: Tensor, neg: Tensor, mask: Tensor | None, variables: Iterable[Tensor]
) -> Tensor:
    """The value of a kernel as a scalar that is differentiable by scores and variables."""
    value: Tensor = _KernelFunction.apply(kernel, pos, neg, mask, *variables)  # type: ignore[no-untyped-call]
    return value


def row_mean(values: Tensor, mask: Tensor | None) -> Tensor:
    """(B, N) -> (B,): the mean over the entries of each row that count."""
    if mask is None:
        return values.mean(1)
    return torch.where(mask, values, 0.0).sum(1) / mask.sum(1)


def row_sum(values: Tensor, mask: Tensor | None) -> Tensor:
    """(B, N) -> (B,): the sum over the entries of each row that count."""
    return values.sum(1) if mask is None else torch.where(mask, values, 0.0).sum(1)


def minus_inf_where_masked(values: Tensor, mask: Tensor | None) -> Tensor:
    """-inf where an entry does not count, so that maxima and exponentials ignore it."""
    return values if mask is None else values.masked_fill(~mask, -math.inf)


def check_shapes(pos: Tensor, neg: Tensor, mask: Tensor | None) -> None:
    """Require (B,), (B, N) and bool (B, N) with B and N at least 1."""
    if pos.dim() != 1 or neg.dim() != 2 or len(pos) != len(neg):
        raise InputError(
            f"pos_scores must be (B,) and neg_scores (B, N), got {tuple(pos.shape)} and "
            f"{tuple(neg.shape)}"
        )
    if neg.numel() == 0:
        raise InputError(
            f"an empty batch has no loss: neg_scores is {tuple(neg.shape)}; leave it out"
        )
    if not (pos.is_floating_point() and neg.is_floating_point()):
        raise InputError(f"scores must be floating point, got {pos.dtype} and {neg.dtype}")
    if mask is not None and (mask.dtype != torch.bool or mask.shape != neg.shape):
        raise InputError(
            f"neg_mask must be bool {tuple(neg.shape)}, True where a pair counts; got "
            f"{mask.dtype} {tuple(mask.shape)}"
        )


def to_common_dtype(pos: Tensor, neg: Tensor) -> tuple[Tensor, Tensor]:
    """Both in one dtype, float32 or wider: half precision is too narrow for sums over (B, N)."""
    if pos.dtype == neg.dtype and pos.dtype not in _HALF:
        return pos, neg
    dtype = torch.promote_types(pos.dtype, neg.dtype)
    dtype = torch.float32 if dtype in _HALF else dtype
    return pos.to(dtype), neg.to(dtype)


def drop_masked(
    pos: Tensor, neg: Tensor, mask: Tensor, context: Context
) -> tuple[Tensor, Tensor, Tensor | None, Context]:
    """Remove the rows without a pair; set masked negatives to 0, even where they are NaN."""
    if bool(mask.all()):
        return pos, neg, None, context
    rows = mask.any(1)
    if not bool(rows.all()):
        pos, neg, mask = pos[rows], neg[rows], mask[rows]
        if context.users is not None:
            context = Context(context.step, context.users[rows])
    return pos, neg.masked_fill(~mask, 0.0), mask, context


def check_finite(pos_invalid: int, neg_invalid: int) -> None:
    """Raise `NonFiniteError` if any scores are NaN or infinite, given their numbers."""
    counts = {"pos_scores": pos_invalid, "neg_scores": neg_invalid}
    if any(counts.values()):
        names = listing(f"{n} of {name}" for name, n in counts.items() if n)
        raise NonFiniteError(
            f"{names} are NaN or infinite; look at the model's weights, or lower the learning rate"
        )
