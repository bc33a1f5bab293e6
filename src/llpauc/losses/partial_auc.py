"""LLPAUC, and its special cases OPAUC and AUC, as losses; the equation is in `objective`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, Literal, cast

import torch
from torch import Tensor, nn

from llpauc.errors import InputError, check_fraction, choose
from llpauc.losses.base import (
    Context,
    Loss,
    Prepared,
    as_computed,
    check_finite,
    check_not_below_zero,
    check_shapes,
    leave_out,
)
from llpauc.losses.exact import counted, exact_saddle, hard_llpauc
from llpauc.losses.fused import (
    Settings,
    ValueAndGrads,
    Variables,
    fused_objective,
    fused_value_and_grads,
    projected,
)
from llpauc.losses.objective import START, llpauc_objective
from llpauc.losses.per_row_threshold import SHARPEST, OwnRowsKernel, hard_row_llpauc, row_objective
from llpauc.losses.row_kernels import Kernel
from llpauc.metrics.partial_auc import selected_count

Solver = Literal["sgda", "exact", "rows"]

_SOLVERS: Mapping[str, str] = {
    "sgda": "five learnt variables: gradient descent and ascent",
    "exact": "thresholds by top-k selection on the batch, the rest in closed form",
    "rows": "each row's own threshold among its negatives, soft, solved on the batch",
}


def _fits_kernel(pos: Tensor, settings: Settings) -> bool:
    return pos.is_cpu and pos.dtype == torch.float32 and not math.isinf(settings.sharpness)


def llpauc_value_and_grads(
    pos: Tensor,
    neg: Tensor,
    variables: Variables[float],
    settings: Settings,
    neg_mask: Tensor | None = None,
) -> ValueAndGrads:
    """F and all its first derivatives, without a graph: for an engine that drives its own updates.

    float32 on a CPU takes one pass over the scores; anything else goes through autograd.

    Args:
        pos: (B,) scores.
        neg: (B, N) scores.
        variables: the five, as numbers.
        settings: alpha, beta, sharpness, gap_penalty.
        neg_mask: bool (B, N), True where a pair counts; a row without one contributes nothing.

    >>> grads = llpauc_value_and_grads(
    ...     torch.zeros(2), torch.zeros(2, 3), START, Settings(1.0, 1.0, 5.0, 0.0)
    ... )
    >>> grads.value, grads.d_variables.gap  # the gap wants to go to b - a = -1/2 + 1/2
    (0.5, 0.0)
    """
    check_shapes(pos, neg, neg_mask)
    pos, neg = as_computed(pos.detach(), neg.detach())
    if _fits_kernel(pos, settings):
        return fused_value_and_grads(pos, neg, variables, settings, neg_mask)
    with torch.enable_grad():
        leaves = [pos.clone().requires_grad_(), neg.clone().requires_grad_()]
        leaves += [torch.tensor(v, dtype=pos.dtype, device=pos.device) for v in variables]
        for leaf in leaves[2:]:
            leaf.requires_grad_()
        kept_pos, kept_neg, mask = leaves[0], leaves[1], neg_mask
        if neg_mask is not None:
            kept_pos, kept_neg, mask, _ = leave_out(kept_pos, kept_neg, neg_mask, Context())
        check_finite(kept_pos, kept_neg, mask)
        if len(kept_pos) == 0:
            value = kept_pos.sum() + kept_neg.sum()
        else:
            value = llpauc_objective(kept_pos, kept_neg, Variables(*leaves[2:]), settings, mask)
        grads = torch.autograd.grad(value, leaves, allow_unused=True, materialize_grads=True)
    d_variables = Variables(*(grad.item() for grad in grads[2:]))
    return ValueAndGrads(value.item(), grads[0], grads[1], d_variables)


class LLPAUCLoss(Loss):
    """Lower-left partial AUC: the best alpha of the positives against the best beta of the
    negatives. The equation, its symbols and where it departs from the paper:
    `llpauc.losses.objective`.

    With `solver="sgda"` it is a minimax loss. Its value moves both ways while it learns, and holds
    a constant bias of the soft selection; `diagnose` says what it stands for. Two of its variables
    must be maximised, and all of them projected after the step: `minimax_optimizer` sees to both.
    With `solver="exact"` the saddle is solved on each batch, and there is nothing to learn.
    With `solver="rows"` each row has its own threshold among its negatives, as the metric has: see
    `llpauc.losses.per_row_threshold`. It wants many negatives a row, and a higher sharpness (20 or
    so).

    Args:
        alpha: share of positives, in (0, 1].
        beta: share of negatives, in (0, 1].
        sharpness: kappa, above 0: how close softplus is to max(0, .); unused by "exact".
        gap_penalty: w, at least 0; unused by "rows".
        solver: "sgda", "exact" or "rows".

    Shapes: pos_scores (B,), neg_scores and neg_mask (B, N); a scalar comes back. Scores in float32
    on a CPU go through a one-pass kernel, which has first derivatives only; anything else through
    plain autograd.

    Reference: Shi et al., WWW 2024, Eq. 14 and Algorithm 1.

    >>> loss = LLPAUCLoss(alpha=0.7, beta=0.1)
    >>> loss(torch.zeros(4), torch.zeros(4, 8))
    tensor(7.1174, grad_fn=<_FusedObjectiveBackward>)
    """

    meaning = (
        "the minimax value, which moves both ways: at the saddle the mean over selected pairs of "
        "(1 - f_i + f_j)^2, minus 1, plus a constant bias of the soft selection that falls as "
        "sharpness grows; saddle_value is free of it, -1 at best"
    )
    variable_names: ClassVar[tuple[str, ...]] = Variables._fields
    pos_center: nn.Parameter
    neg_center: nn.Parameter
    gap: nn.Parameter
    pos_threshold: nn.Parameter
    neg_threshold: nn.Parameter

    def __init__(
        self,
        alpha: float,
        beta: float,
        *,
        sharpness: float = 5.0,
        gap_penalty: float = 0.0,
        solver: Solver = "sgda",
    ) -> None:
        super().__init__()
        if not sharpness > 0.0:
            raise InputError(f"sharpness must be above 0, got {sharpness!r}")
        choose(_SOLVERS, solver, "solver")
        self.solver = solver
        self.settings = Settings(
            check_fraction("alpha", alpha),
            check_fraction("beta", beta),
            float(sharpness),
            check_not_below_zero("gap_penalty", gap_penalty),
        )
        if solver == "sgda":
            for name, value in zip(self.variable_names, START, strict=True):
                self.register_parameter(name, nn.Parameter(torch.tensor(value)))

    @property
    def variables(self) -> Variables[Tensor]:
        """The five parameters; an error for the other solvers, which have none."""
        if self.solver != "sgda":
            raise InputError(
                f"solver={self.solver!r} solves its variables on each batch; see diagnose()"
            )
        own = cast("dict[str, nn.Parameter]", self._parameters)  # the hot path: no lookup by name
        return Variables(*own.values())

    @property
    def pools_rows(self) -> bool:
        """The best positives are chosen among those of the batch, and, but for solver "rows", the
        hardest negatives too."""
        return self.solver != "rows" or self.settings.alpha < 1

    def ascent_parameters(self) -> list[nn.Parameter]:
        return self._named("gap", "pos_threshold")

    def descent_parameters(self) -> list[nn.Parameter]:
        return self._named("pos_center", "neg_center", "neg_threshold")

    def fast_parameters(self) -> list[nn.Parameter]:
        return self._named("gap", "pos_threshold", "neg_threshold")

    def _named(self, *names: str) -> list[nn.Parameter]:
        return [] if self.solver != "sgda" else [getattr(self, name) for name in names]

    def project_(self) -> None:
        """Clip the variables to their domains, as line 9 of Algorithm 1: after the step, never in
        the forward pass, where it would kill the gradient of one that has left its domain."""
        if self.solver != "sgda":
            return
        variables = self.variables
        numbers = Variables(*(variable.item() for variable in variables))
        inside = projected(numbers)
        if inside == numbers:  # the usual case: this stands after every batch
            return
        with torch.no_grad():
            for variable, old, new in zip(variables, numbers, inside, strict=True):
                if new != old:
                    variable.fill_(new)

    def forward(
        self,
        pos_scores: Tensor,
        neg_scores: Tensor,
        neg_mask: Tensor | None = None,
        *,
        context: Context | None = None,
    ) -> Tensor:
        if self.solver != "sgda":
            return super().forward(pos_scores, neg_scores, neg_mask, context=context)
        check_shapes(pos_scores, neg_scores, neg_mask)
        pos, neg = as_computed(pos_scores, neg_scores)
        value: Tensor
        if _fits_kernel(pos, self.settings):
            value = fused_objective(pos, neg, neg_mask, self.settings, self.variables)
        else:
            value = super().forward(pos, neg, neg_mask, context=context)
        if not math.isfinite(value.item()):  # the scores are known to be finite by now
            figures = {name: getattr(self, name).item() for name in self.variable_names}
            raise InputError(f"the loss is {value.item()}: look at its variables, {figures}")
        return value

    def compute(self, pos: Tensor, neg: Tensor, mask: Tensor | None, context: Context) -> Tensor:
        if self.solver == "sgda":
            return llpauc_objective(pos, neg, self.variables, self.settings, mask)
        alpha, beta, sharpness, gap_penalty = self.settings
        if self.solver == "rows":
            return row_objective(pos, neg, alpha, beta, sharpness, mask)
        return exact_saddle(pos, neg, mask, alpha=alpha, beta=beta, gap_penalty=gap_penalty).value

    def value_and_all_grads(
        self, pos_scores: Tensor, neg_scores: Tensor, neg_mask: Tensor | None = None
    ) -> ValueAndGrads:
        """`llpauc_value_and_grads` at the variables as they are; solver "sgda" only."""
        numbers = Variables(*(variable.item() for variable in self.variables))
        return llpauc_value_and_grads(pos_scores, neg_scores, numbers, self.settings, neg_mask)

    def value_and_grads(
        self,
        pos_scores: Tensor,
        neg_scores: Tensor,
        neg_mask: Tensor | None = None,
        *,
        context: Context | None = None,
    ) -> tuple[float, Tensor, Tensor]:
        if self.solver != "sgda":
            return super().value_and_grads(pos_scores, neg_scores, neg_mask, context=context)
        result = self.value_and_all_grads(pos_scores, neg_scores, neg_mask)
        for variable, slope in zip(self.variables, result.d_variables, strict=True):
            if variable.grad is None:
                variable.grad = torch.zeros_like(variable)
            variable.grad.fill_(slope)
        d_pos, d_neg = result.d_pos.to(pos_scores.dtype), result.d_neg.to(neg_scores.dtype)
        return result.value, d_pos, d_neg

    def kernel(self) -> Kernel | None:
        alpha, beta, sharpness, _ = self.settings
        if self.solver != "rows" or sharpness > SHARPEST:
            return None
        return OwnRowsKernel(alpha, beta, sharpness)

    def figures(self, batch: Prepared) -> dict[str, float]:
        """The hard LLPAUC of the batch, the shares it selects, its saddle value, the variables.

        `pos_share` and `neg_share` are mean weights, near alpha and beta once the thresholds have
        settled; `..._share_above` count what lies above a threshold, less where kappa is small.
        """
        alpha, beta, sharpness, gap_penalty = self.settings
        pos, neg, mask, _ = batch
        if self.solver == "rows":
            hard = hard_row_llpauc(pos, neg, mask, alpha, beta)
            return {**super().figures(batch), "hard_row_llpauc": hard}
        saddle = exact_saddle(pos, neg, mask, alpha=alpha, beta=beta, gap_penalty=gap_penalty)
        normalised, raw = hard_llpauc(pos, neg, mask, alpha=alpha, beta=beta)
        negatives = counted(neg, mask)
        shares = {
            "pos_share": selected_count(alpha, len(pos)) / len(pos),
            "neg_share": selected_count(beta, len(negatives)) / len(negatives),
        }
        variables = saddle.variables
        if self.solver == "sgda":
            variables = self.variables
            a, b, gap, pos_threshold, neg_threshold = variables
            f_pos, f_neg = pos.sigmoid(), negatives.sigmoid()
            excesses = {
                "pos": 2.0 * (1.0 + gap) * f_pos - (f_pos - a).square() - pos_threshold,
                "neg": 2.0 * (1.0 + gap) * f_neg + (f_neg - b).square() - neg_threshold,
            }
            for (side, excess), share in zip(excesses.items(), (alpha, beta), strict=True):
                soft = (excess * sharpness).nan_to_num(nan=0.0).sigmoid()  # 0 inf is nan
                shares[f"{side}_share"] = soft.mean().item() if share < 1.0 else 1.0
                above = (excess > 0.0).double().mean().item()
                shares[f"{side}_share_above"] = above if share < 1.0 else 1.0
        return {
            **super().figures(batch),
            "hard_llpauc": normalised,
            "hard_llpauc_raw": raw,
            **shares,
            "saddle_value": saddle.value.item(),
            **{name: value.item() for name, value in variables._asdict().items()},
        }

    def extra_repr(self) -> str:
        words = ", ".join(f"{name}={value:g}" for name, value in self.settings._asdict().items())
        return f"{words}, solver={self.solver!r}"


class OPAUCLoss(LLPAUCLoss):
    """One-way partial AUC (PAUCI): all positives against the best beta of the negatives.
    LLPAUCLoss(1, beta) by definition.

    Args:
        beta: share of negatives, in (0, 1].
        sharpness, gap_penalty, solver: as in `LLPAUCLoss`.

    Reference: Shao et al., NeurIPS 2022. gamma^2 enters with a minus sign, as above.
    """

    def __init__(
        self,
        beta: float,
        *,
        sharpness: float = 5.0,
        gap_penalty: float = 0.0,
        solver: Solver = "sgda",
    ) -> None:
        super().__init__(1.0, beta, sharpness=sharpness, gap_penalty=gap_penalty, solver=solver)


class AUCLoss(LLPAUCLoss):
    """AUC with the square loss: all positives against all negatives. LLPAUCLoss(1, 1) by
    definition; nothing is selected, so there is no sharpness.

    Args:
        gap_penalty, solver: as in `LLPAUCLoss`.
    """

    def __init__(self, *, gap_penalty: float = 0.0, solver: Solver = "sgda") -> None:
        super().__init__(1.0, 1.0, gap_penalty=gap_penalty, solver=solver)
