"""Losses that compare a positive with all its negatives at once: SCE on scores; SL, BSL and PSL on
cosines. Those with values of each user are in `user_softmax`.

Symbols: s_i, s_j scores and c_i, c_j cosines of the positive (`pos`) and its negatives (`neg`);
sums over the j that count. Every function returns the mean over rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Gt
from torch import Tensor
from torch.nn.functional import logsigmoid

from llpauc.errors import choose
from llpauc.losses.base import Loss, minus_inf_where_masked
from llpauc.losses.kernels import RowKernel
from llpauc.options import Grid, LogRange, Positive

Surrogate = Literal["tanh", "atan", "relu"]
Temperature = Annotated[float, Gt(0), LogRange(0.05, 0.5)]

# log(0) has no usable gradient; only a positive and a negative at opposite ends of the sphere come
# near this.
_SMALLEST = 1e-4


def sce_loss(pos: Tensor, neg: Tensor, mask: Tensor | None = None) -> Tensor:
    """Softmax cross-entropy: minus the log-probability of the positive among its candidates.

        log(1 + sum_j exp(s_j - s_i))

    Shapes: pos (B,), neg and mask (B, N); returns a scalar.

    Reference: Covington et al., Deep neural networks for YouTube recommendations, RecSys 2016.

    >>> sce_loss(torch.tensor([0.0]), torch.tensor([[0.0, 0.0]]))  # log 3
    tensor(1.0986)
    """
    candidates = torch.cat([pos[:, None], minus_inf_where_masked(neg, mask)], dim=1)
    return (candidates.logsumexp(1) - pos).mean()


def sl_rows(pos: Tensor, neg: Tensor, mask: Tensor | None, temperature: float) -> Tensor:
    """(B,): log sum_j exp((c_j - c_i) / tau), row by row."""
    # The positive is the same for the whole row: subtracted after the sum it costs no (B, N) pass.
    return minus_inf_where_masked(neg / temperature, mask).logsumexp(1) - pos / temperature


def sl_loss(pos: Tensor, neg: Tensor, mask: Tensor | None = None, *, temperature: float) -> Tensor:
    """Softmax loss on cosines: with a tuned temperature the strong modern baseline.

        log sum_j exp((c_j - c_i) / tau)

    The positive is not in the sum, so the value has no lower bound.

    Args:
        temperature: tau, above 0; about 0.05 to 0.3.

    Reference: Wu et al., On the effectiveness of sampled softmax loss, TOIS 2024.

    >>> sl_loss(torch.tensor([0.0]), torch.tensor([[0.0, 0.0]]), temperature=0.2)  # log 2
    tensor(0.6931)
    """
    return sl_rows(pos, neg, mask, temperature).mean()


def bsl_loss(
    pos: Tensor,
    neg: Tensor,
    mask: Tensor | None = None,
    *,
    pos_temperature: float,
    neg_temperature: float,
) -> Tensor:
    """Bilateral softmax loss: SL with a temperature for each side.

        -c_i / tau1 + (tau2 / tau1) log sum_j exp(c_j / tau2)

    tau1 = tau2 is SL. With one positive a row tau1 is a factor of the whole loss, so an optimizer
    that normalises the gradient, such as Adam, hardly reacts to it.

    Args:
        pos_temperature: tau1, above 0; a factor of the whole loss.
        neg_temperature: tau2, above 0; about 0.05 to 0.3.

    Reference: Wu et al., BSL, ICDE 2024.

    >>> one = torch.tensor([0.0]), torch.tensor([[0.0, 0.0]])
    >>> bsl_loss(*one, pos_temperature=0.2, neg_temperature=0.1)  # log 2 / 2
    tensor(0.3466)
    """
    negatives = minus_inf_where_masked(neg / neg_temperature, mask).logsumexp(1)
    return ((neg_temperature * negatives - pos) / pos_temperature).mean()


def _log_tanh(d: Tensor) -> Tensor:
    # tanh(d) + 1 = 2 sigmoid(2 d), whose logarithm stays exact where tanh(d) rounds to -1.
    return math.log(2.0) + logsigmoid(2.0 * d)


def _log_atan(d: Tensor) -> Tensor:
    return (d.atan() + 1.0).clamp(min=_SMALLEST).log()


def _log_relu(d: Tensor) -> Tensor:
    return (d + 1.0).clamp(min=_SMALLEST).log()


LOG_SURROGATES: Mapping[str, Callable[[Tensor], Tensor]] = {
    "tanh": _log_tanh,
    "atan": _log_atan,
    "relu": _log_relu,
}


def psl_loss(
    pos: Tensor,
    neg: Tensor,
    mask: Tensor | None = None,
    *,
    temperature: float,
    surrogate: Surrogate = "tanh",
    divisor: float = 2.0,
) -> Tensor:
    """Pairwise softmax loss: SL with a function that grows slower than exp: outliers weigh less.

        log sum_j g(d_j)^(1 / tau*)      d_j = (c_j - c_i) / divisor
        g(d) = tanh(d) + 1, atan(d) + 1 or relu(d + 1)

    g is clamped to at least 1e-4, where it has no gradient.

    Args:
        temperature: tau*, above 0; half of what suits SL, since the cosines are halved.
        surrogate: g: "tanh", "atan" or "relu".
        divisor: above 0; 2 keeps d within [-1, 1], the range that the authors' program assumes (its
            default is 1): atan(d) + 1 is negative below d = -1.56.

    Reference: Yang et al., PSL, NeurIPS 2024.

    >>> psl_loss(torch.tensor([0.0]), torch.tensor([[0.0, 0.0]]), temperature=0.1)  # log 2
    tensor(0.6931)
    """
    log_g = choose(LOG_SURROGATES, surrogate, "surrogate")
    powers = log_g((neg - pos[:, None]) / divisor) / temperature
    return minus_inf_where_masked(powers, mask).logsumexp(1).mean()


class SCELoss(Loss):
    meaning = "surprise at the positive among its candidates: log(1 + N) where all are equal"
    equation = staticmethod(sce_loss)

    def kernel(self) -> RowKernel:
        return RowKernel("softmax", with_positive=True)


@dataclass(eq=False, repr=False)
class SLLoss(Loss):
    score = "cosine"
    meaning = "log of the negatives' weight against the positive's: log N where all are equal"
    equation = staticmethod(sl_loss)

    temperature: Temperature = 0.2

    def kernel(self) -> RowKernel:
        return RowKernel("softmax", self.temperature)


@dataclass(eq=False, repr=False)
class BSLLoss(Loss):
    score = "cosine"
    meaning = "softmax loss in units of the positive temperature; may be negative"
    equation = staticmethod(bsl_loss)

    pos_temperature: Temperature = 0.25
    neg_temperature: Temperature = 0.2


@dataclass(eq=False, repr=False)
class PSLLoss(Loss):
    score = "cosine"
    meaning = "softmax loss with less weight on outliers: log N where all are equal"
    equation = staticmethod(psl_loss)

    temperature: Temperature = 0.1
    surrogate: Annotated[Surrogate, Grid("tanh", "atan", "relu")] = "tanh"
    divisor: Positive = 2.0
