"""What every loss looks like from outside, and the checks they share.

    loss(pos_scores (B,), neg_scores (B, N), neg_mask=None, *, context=None) -> scalar

| argument | meaning |
|---|---|
| `pos_scores` | the score of each row's positive |
| `neg_scores` | the scores of its negatives |
| `neg_mask` | bool (B, N), True = this pair counts; False leaves it out, as if it were not there |
| `context` | what a loss asks for in `needs`: the training step, or the users of the rows |

A row without a single pair that counts contributes nothing, its positive included; a batch of such
rows is worth 0 and has zero gradients. Half-precision scores are computed in float32, and the loss
is then a float32 scalar; the gradient comes back in the precision of the scores.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from llpauc.errors import InputError, listing
from llpauc.losses.row_kernels import Kernel

Score = Literal["dot", "cosine"]

_HALF = (torch.float16, torch.bfloat16)
_NEEDS = {
    "step": "the number of steps taken, e.g. Context(step=0)",
    "users": "the user row of each positive, e.g. Context(users=users)",
}


@dataclass(frozen=True)
class Context:
    """What a loss may want to know beyond the scores; `Loss.needs` says which of it.

    Args:
        step: optimizer steps taken so far, from 0.
        users: (B,) integers, the user row of each positive.
    """

    step: int | None = None
    users: Tensor | None = None


@dataclass(frozen=True)
class Diagnostics:
    """What a loss value stands for.

    Args:
        value: the loss.
        meaning: one sentence on how to read it.
        figures: further numbers by name; those of a partial-AUC loss are the batch's hard LLPAUC,
            the shares it selects and its five variables.
    """

    value: float
    meaning: str
    figures: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        figures = ", ".join(f"{name} {value:.4g}" for name, value in self.figures.items())
        return f"{self.value:.4g} ({self.meaning}) {figures}"


class Prepared(NamedTuple):
    """Checked scores: float32 or float64, each row with a pair that counts, 0 where none does."""

    pos: Tensor
    neg: Tensor
    mask: Tensor | None
    context: Context


class Loss(nn.Module, ABC):
    """A training loss: scores in, scalar out. `score` and `needs` are what it asks of the caller.

    `score` says which score the loss is meant for. It changes nothing here: the model decides, and
    a model ranks with the score it is trained with.

    The methods below `forward` exist for the losses that maximise over variables of their own; for
    every other loss they are empty, so that one loop serves all.
    """

    score: ClassVar[Score] = "dot"
    needs: ClassVar[frozenset[str]] = frozenset()
    meaning: ClassVar[str]

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
            return batch.pos.sum() + batch.neg.sum()  # 0, and its gradients too
        return self.compute(batch.pos, batch.neg, batch.mask, batch.context)

    @abstractmethod
    def compute(self, pos: Tensor, neg: Tensor, mask: Tensor | None, context: Context) -> Tensor:
        """The equation, on scores that `prepare` has checked."""

    def prepare(
        self,
        pos_scores: Tensor,
        neg_scores: Tensor,
        neg_mask: Tensor | None,
        context: Context | None,
    ) -> Prepared:
        """Refuse what is no batch; bring the rest into the form that `compute` may rely on."""
        check_shapes(pos_scores, neg_scores, neg_mask)
        context = check_needs(self, len(pos_scores), context)
        pos, neg = as_computed(pos_scores, neg_scores)
        mask = neg_mask
        if mask is not None:
            pos, neg, mask, context = leave_out(pos, neg, mask, context)
        check_finite(pos, neg, mask)
        return Prepared(pos, neg, mask, context)

    def value_and_grads(
        self,
        pos_scores: Tensor,
        neg_scores: Tensor,
        neg_mask: Tensor | None = None,
        *,
        context: Context | None = None,
    ) -> tuple[float, Tensor, Tensor]:
        """The loss and its gradients with respect to the scores, for an engine that goes on by
        itself; those of the loss's own variables are left in their `grad`."""
        kernel = self.kernel()
        if kernel is not None and _is_plain(pos_scores) and _is_plain(neg_scores):
            check_shapes(pos_scores, neg_scores, neg_mask)
            keep = None if neg_mask is None else neg_mask.contiguous().numpy()
            found = kernel(pos_scores.numpy(), neg_scores.numpy(), keep)
            if found.pos_broken or found.neg_broken:
                refuse_broken(found.pos_broken, found.neg_broken)
            return found.value, torch.from_numpy(found.d_pos), torch.from_numpy(found.d_neg)
        pos, neg = (scores.detach().requires_grad_() for scores in (pos_scores, neg_scores))
        self.zero_grad()
        value = self(pos, neg, neg_mask, context=context)
        value.backward()
        assert pos.grad is not None
        assert neg.grad is not None
        return value.item(), pos.grad, neg.grad

    @property
    def pools_rows(self) -> bool:
        """Whether rows are looked at together, so that the loss of a batch is not the mean of the
        losses of its rows."""
        return False

    def kernel(self) -> Kernel | None:
        """What computes value and slopes without autograd, where there is such a thing."""
        return None

    def ascent_parameters(self) -> list[nn.Parameter]:
        """The variables the loss is maximised over."""
        return []

    def descent_parameters(self) -> list[nn.Parameter]:
        """The variables the loss is minimised over."""
        return []

    def fast_parameters(self) -> list[nn.Parameter]:
        """Those of both that want a higher rate than the model, twice in the reference setting."""
        return []

    def project_(self) -> None:
        """Bring the variables back into their domains; to be called after every step."""

    def begin_epoch(self, epoch: int, user_quantiles: Callable[[int], Tensor]) -> None:
        """Called before the first batch of each epoch.

        Args:
            epoch: counted from 1.
            user_quantiles: K -> (n_users,), each user's K-th best score over all items; computed
                only when called.
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
        """The value, what it means, and the share of pairs that are ordered rightly."""
        batch = self.prepare(pos_scores, neg_scores, neg_mask, context)
        if len(batch.pos) == 0:
            return Diagnostics(0.0, "no pair of this batch counts")
        value = self.compute(batch.pos, batch.neg, batch.mask, batch.context).item()
        return Diagnostics(value, self.meaning, self.figures(batch))

    def figures(self, batch: Prepared) -> dict[str, float]:
        """Numbers beside the value: `auc`, the mean over rows of the share of pairs in order."""
        return {"auc": row_mean((batch.pos[:, None] > batch.neg).float(), batch.mask).mean().item()}


def _is_plain(scores: Tensor) -> bool:
    """What a kernel can take as it is."""
    return (
        scores.dtype == torch.float32
        and scores.is_cpu
        and not scores.requires_grad
        and scores.is_contiguous()
    )


def row_mean(values: Tensor, mask: Tensor | None) -> Tensor:
    """(B, N) -> (B,): the mean over the entries of each row that count."""
    if mask is None:
        return values.mean(1)
    return torch.where(mask, values, 0.0).sum(1) / mask.sum(1)


def row_sum(values: Tensor, mask: Tensor | None) -> Tensor:
    """(B, N) -> (B,): the sum over the entries of each row that count."""
    return values.sum(1) if mask is None else torch.where(mask, values, 0.0).sum(1)


def lowest_where_masked(values: Tensor, mask: Tensor | None) -> Tensor:
    """-inf where an entry does not count, so that maxima and exponentials pass it by."""
    return values if mask is None else values.masked_fill(~mask, -math.inf)


def check_shapes(pos: Tensor, neg: Tensor, mask: Tensor | None) -> None:
    """(B,), (B, N) and bool (B, N) with B and N at least 1, or an error that names the shapes."""
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


def check_needs(loss: Loss, rows: int, context: Context | None) -> Context:
    """The context, with everything in it that the loss needs."""
    context = context or Context()
    for need in sorted(loss.needs):
        if getattr(context, need) is None:
            raise InputError(f"{type(loss).__name__} needs context.{need}: {_NEEDS[need]}")
    users = context.users
    if "users" in loss.needs and users is not None and users.shape != (rows,):
        raise InputError(f"context.users must be ({rows},), got {tuple(users.shape)}")
    return context


def as_computed(pos: Tensor, neg: Tensor) -> tuple[Tensor, Tensor]:
    """Both in one dtype, float32 at least: sums over (B, N) have no place in half precision."""
    if pos.dtype == neg.dtype and pos.dtype not in _HALF:
        return pos, neg
    dtype = torch.promote_types(pos.dtype, neg.dtype)
    dtype = torch.float32 if dtype in _HALF else dtype
    return pos.to(dtype), neg.to(dtype)


def leave_out(
    pos: Tensor, neg: Tensor, mask: Tensor, context: Context
) -> tuple[Tensor, Tensor, Tensor | None, Context]:
    """Without the rows that have no pair; 0 in place of what does not count, whatever it was."""
    if bool(mask.all()):
        return pos, neg, None, context
    rows = mask.any(1)
    if not bool(rows.all()):
        pos, neg, mask = pos[rows], neg[rows], mask[rows]
        if context.users is not None:
            context = Context(context.step, context.users[rows])
    return pos, neg.masked_fill(~mask, 0.0), mask, context


def check_finite(pos: Tensor, neg: Tensor, mask: Tensor | None = None) -> None:
    """No NaN, no infinity. One sum a tensor: only where that is not finite is there a search."""
    if math.isfinite((pos.detach().sum() + neg.detach().sum()).item()):
        return
    refuse_broken(
        int((~pos.isfinite()).sum()),
        int((~(neg if mask is None else torch.where(mask, neg, 0.0)).isfinite()).sum()),
    )


class BrokenScoresError(InputError):
    """Scores that are no numbers: what training takes for divergence."""


def refuse_broken(pos_broken: int, neg_broken: int) -> None:
    """The error for so many NaN or infinite scores, if there are any."""
    counts = {"pos_scores": pos_broken, "neg_scores": neg_broken}
    if any(counts.values()):
        names = listing(f"{n} of {name}" for name, n in counts.items() if n)
        raise BrokenScoresError(
            f"{names} are NaN or infinite; look at the model's weights, or lower the learning rate"
        )


def check_above_zero(name: str, value: float) -> float:
    """A number above 0, as temperatures are.

    >>> check_above_zero("temperature", 0.2)
    0.2
    """
    if not (value > 0.0 and math.isfinite(value)):
        raise InputError(f"{name} must be above 0, got {value!r}")
    return float(value)


def check_not_below_zero(name: str, value: float) -> float:
    """A number of at least 0, as weights are.

    >>> check_not_below_zero("gap_penalty", 0.0)
    0.0
    """
    if not (value >= 0.0 and math.isfinite(value)):
        raise InputError(f"{name} must be at least 0, got {value!r}")
    return float(value)
