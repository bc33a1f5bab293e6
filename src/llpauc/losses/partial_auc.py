"""LLPAUC and its special cases OPAUC and AUC as losses; the equation is in `objective`."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, field
from typing import Annotated, Literal, cast

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor, nn

from llpauc.errors import InputError
from llpauc.losses.base import (
    Context,
    Loss,
    NonFiniteError,
    Prepared,
    check_shapes,
    fits_kernel,
    kernel_value,
    to_common_dtype,
)
from llpauc.losses.kernels import Kernel, LLPAUCKernel
from llpauc.losses.objective import (
    INITIAL_VARIABLES,
    Settings,
    Variables,
    counted,
    exact_saddle,
    hard_llpauc,
    llpauc_objective,
    projected,
)
from llpauc.losses.per_user import (
    MAX_SHARPNESS,
    PerUserKernel,
    hard_row_llpauc,
    per_user_objective,
)
from llpauc.metrics.partial_auc import selected_count
from llpauc.options import Aliases, Fraction, Positive

Solver = Annotated[Literal["sgda", "exact", "per-user"], Aliases({"rows": "per-user"})]


@dataclass(eq=False, repr=False)
class LLPAUCLoss(Loss):
    """Lower-left partial AUC: the best alpha of the positives against the best beta of the
    negatives. The equation, its symbols and where it departs from the paper:
    `llpauc.losses.objective`.

    | solver | method |
    |---|---|
    | sgda | five learnt variables, by gradient descent and ascent |
    | exact | thresholds by top-k selection on the batch, the rest in closed form |
    | per-user | a soft threshold for each row among its negatives, solved on the batch |

    With `solver="sgda"` it is a minimax loss. Its value moves both ways during training, and has a
    constant bias from the soft selection; `diagnose` reports what it stands for. Two of its
    variables must be maximised, and all of them projected after the step: `minimax_optimizer` does
    both. With `solver="exact"` the saddle is solved on each batch, and there is nothing to learn.
    `solver="per-user"` selects as the metric does, see `llpauc.losses.per_user`; it needs many
    negatives for each row, and a higher sharpness (about 20).

    Args:
        alpha: fraction of the positives, in (0, 1].
        beta: fraction of the negatives, in (0, 1].
        sharpness: kappa, above 0: how close softplus is to max(0, .); unused by "exact".
        gap_penalty: w, at least 0; unused by "per-user".
        solver: "sgda", "exact" or "per-user".
        neg_threshold_rate: learning rate of s- with "sgda", as a multiple of the model's; above 0.

    Shapes: pos_scores (B,), neg_scores and neg_mask (B, N); returns a scalar. float32 scores on a
    CPU go through a one-pass kernel, which has first derivatives only; others through autograd.

    Reference: Shi et al., WWW 2024, Eq. 14 and Algorithm 1.

    >>> loss = LLPAUCLoss(alpha=0.7, beta=0.1)
    >>> loss(torch.zeros(4), torch.zeros(4, 8))
    tensor(7.1174, grad_fn=<_KernelFunctionBackward>)
    """

    meaning = (
        "the minimax value, which moves both ways: at the saddle the mean over selected pairs of "
        "(1 - f_i + f_j)^2, minus 1, plus a constant bias of the soft selection that falls as "
        "sharpness grows; saddle_value is free of it, -1 at best"
    )

    alpha: Fraction
    beta: Fraction
    _: KW_ONLY
    sharpness: Annotated[float, Gt(0), Le(math.inf)] = 5.0
    gap_penalty: Annotated[float, Ge(0)] = 0.0
    solver: Solver = "sgda"
    neg_threshold_rate: Positive = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.solver == "sgda":
            for name, value in INITIAL_VARIABLES._asdict().items():
                self.register_parameter(name, nn.Parameter(torch.tensor(value)))

    @property
    def settings(self) -> Settings:
        return Settings(self.alpha, self.beta, self.sharpness, self.gap_penalty)

    @property
    def variables(self) -> Variables[Tensor]:
        """The five parameters; raises `InputError` for the other solvers, which have none."""
        if self.solver != "sgda":
            raise InputError(
                f"solver={self.solver!r} solves its variables on each batch; see diagnose()"
            )
        parameters = cast("dict[str, nn.Parameter]", self._parameters)  # fast: no lookup by name
        return Variables(*parameters.values())

    def ascent_parameters(self) -> list[nn.Parameter]:
        return self._named("gap", "pos_threshold")

    def descent_parameters(self) -> list[nn.Parameter]:
        return self._named("pos_center", "neg_center", "neg_threshold")

    def rate_factors(self) -> dict[str, float]:
        return {"gap": 2.0, "pos_threshold": 2.0, "neg_threshold": self.neg_threshold_rate}

    def _named(self, *names: str) -> list[nn.Parameter]:
        return [self.get_parameter(name) for name in names if self.solver == "sgda"]

    def _numbers(self) -> Variables[float]:
        return Variables(*(variable.item() for variable in self.variables))

    def project_(self) -> None:
        """Clip the variables to their domains, as line 9 of Algorithm 1: after the step, never in
        the forward pass, where a variable outside its domain would lose its gradient."""
        if self.solver != "sgda":
            return
        variables, numbers = self.variables, self._numbers()
        inside = projected(numbers)
        if inside == numbers:  # the usual case
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
        pos, neg = to_common_dtype(pos_scores, neg_scores)
        kernel = self.kernel() if fits_kernel(pos, neg) else None
        if kernel is not None:
            value = kernel_value(kernel, pos, neg, neg_mask, self.variables)
        else:
            value = super().forward(pos, neg, neg_mask, context=context)
        if not math.isfinite(value.item()):  # the scores have been checked
            variables = {name: variable.item() for name, variable in self.named_parameters()}
            raise NonFiniteError(f"the loss is {value.item()}: look at its variables, {variables}")
        return value

    def compute(self, pos: Tensor, neg: Tensor, mask: Tensor | None, context: Context) -> Tensor:
        if self.solver == "sgda":
            return llpauc_objective(pos, neg, self.variables, self.settings, mask)
        alpha, beta, sharpness, gap_penalty = self.settings
        if self.solver == "per-user":
            return per_user_objective(pos, neg, alpha, beta, sharpness, mask)
        return exact_saddle(pos, neg, mask, alpha=alpha, beta=beta, gap_penalty=gap_penalty).value

    def kernel(self) -> Kernel | None:
        if self.solver == "sgda" and self.sharpness < math.inf:
            return LLPAUCKernel(self._numbers(), self.settings)
        if self.solver == "per-user" and self.sharpness <= MAX_SHARPNESS:
            return PerUserKernel(self.alpha, self.beta, self.sharpness)
        return None

    def diagnostics(self, batch: Prepared) -> dict[str, float]:
        """The hard LLPAUC of the batch, the fractions it selects, its saddle value, the variables.

        `pos_fraction` and `neg_fraction` are mean weights, near alpha and beta once the thresholds
        have settled; `..._fraction_above` count scores above a threshold, fewer where kappa is
        small.
        """
        alpha, beta, sharpness, gap_penalty = self.settings
        pos, neg, mask, _ = batch
        if self.solver == "per-user":
            hard = hard_row_llpauc(pos, neg, mask, alpha, beta)
            return {**super().diagnostics(batch), "hard_row_llpauc": hard}
        saddle = exact_saddle(pos, neg, mask, alpha=alpha, beta=beta, gap_penalty=gap_penalty)
        normalised, raw = hard_llpauc(pos, neg, mask, alpha=alpha, beta=beta)
        negatives = counted(neg, mask)
        fractions = {
            "pos_fraction": selected_count(alpha, len(pos)) / len(pos),
            "neg_fraction": selected_count(beta, len(negatives)) / len(negatives),
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
            for (side, excess), fraction in zip(excesses.items(), (alpha, beta), strict=True):
                soft = (excess * sharpness).nan_to_num(nan=0.0).sigmoid()  # 0 inf is nan
                above = (excess > 0.0).double()
                selects = fraction < 1.0
                fractions[f"{side}_fraction"] = soft.mean().item() if selects else 1.0
                fractions[f"{side}_fraction_above"] = above.mean().item() if selects else 1.0
        return {
            **super().diagnostics(batch),
            "hard_llpauc": normalised,
            "hard_llpauc_raw": raw,
            **fractions,
            "saddle_value": saddle.value.item(),
            **{name: value.item() for name, value in variables._asdict().items()},
        }


@dataclass(eq=False, repr=False)
class OPAUCLoss(LLPAUCLoss):
    """One-way partial AUC (PAUCI): all positives against the best beta of the negatives.
    LLPAUCLoss(1, beta) by definition.

    Args:
        beta: fraction of the negatives, in (0, 1].

    Reference: Shao et al., NeurIPS 2022. gamma^2 enters with a minus sign, as above.
    """

    alpha: Fraction = field(init=False, default=1.0)


@dataclass(eq=False, repr=False)
class AUCLoss(LLPAUCLoss):
    """AUC with the square loss: all positives against all negatives. LLPAUCLoss(1, 1) by
    definition; nothing is selected, so there is no sharpness and no threshold."""

    alpha: Fraction = field(init=False, default=1.0)
    beta: Fraction = field(init=False, default=1.0)
    sharpness: float = field(init=False, default=5.0)
    neg_threshold_rate: float = field(init=False, default=2.0)
