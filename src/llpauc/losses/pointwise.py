"""Losses of single scores: BCE, TCE and RCE on logits, CCL on cosines.

Symbols: s_i (`pos`) the positive's score, s_j (`neg`) those of its negatives, f = sigmoid(s), c a
cosine, n the number of negatives of the row that count. Every function returns the mean over rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Le, Lt
from torch import Tensor
from torch.nn.functional import logsigmoid, relu, softplus

from llpauc.errors import check_at_least
from llpauc.losses.base import Context, Loss, row_mean, row_sum
from llpauc.losses.kernels import RowKernel
from llpauc.options import Count, Grid


def _counts(neg: Tensor, mask: Tensor | None) -> Tensor | int:
    return neg.shape[1] if mask is None else mask.sum(1)


def bce_loss(pos: Tensor, neg: Tensor, mask: Tensor | None = None) -> Tensor:
    """Binary cross-entropy over the positive and its negatives.

        (softplus(-s_i) + sum_j softplus(s_j)) / (1 + n)

    Shapes: pos (B,), neg and mask (B, N); returns a scalar.

    Reference: He et al., Neural collaborative filtering, WWW 2017.

    >>> bce_loss(torch.tensor([0.0]), torch.tensor([[0.0, 0.0]]))  # log 2
    tensor(0.6931)
    """
    total = softplus(-pos) + row_sum(softplus(neg), mask)
    return (total / (1 + _counts(neg, mask))).mean()


def tce_loss(pos: Tensor, neg: Tensor, mask: Tensor | None = None, *, dropped: float) -> Tensor:
    """Truncated cross-entropy: BCE without the positives that fit worst, assumed to be noise.

        (keep_i softplus(-s_i) + sum_j softplus(s_j)) / (keep_i + n)

    keep_i is 0 for the floor(dropped B) positives of the largest loss, and 1 for the others.

    Args:
        dropped: fraction of the batch's positives, in [0, 1].

    Reference: Wang et al., Denoising implicit feedback, WSDM 2021. **Departs from the paper**,
    which drops a fraction of all samples, though only positives can be dropped; this is a fraction
    of the positives, whose meaning does not depend on the number of negatives.

    >>> tce_loss(torch.tensor([0.0, -9.0]), torch.tensor([[0.0], [0.0]]), dropped=0.5)
    tensor(0.6931)
    """
    n_dropped = math.floor(dropped * len(pos) + 1e-9)  # 0.29 * 100 is 28.999999999999996
    keep = torch.ones_like(pos)
    keep[torch.argsort(pos.detach(), stable=True)[:n_dropped]] = 0.0
    total = keep * softplus(-pos) + row_sum(softplus(neg), mask)
    return (total / (keep + _counts(neg, mask))).mean()


def rce_loss(pos: Tensor, neg: Tensor, mask: Tensor | None = None, *, power: float) -> Tensor:
    """Reweighted cross-entropy: BCE in which samples that fit badly weigh less.

        (f_i^p softplus(-s_i) + sum_j (1 - f_j)^p softplus(s_j)) / (1 + n)

    The weights are constants to the gradient.

    Args:
        power: p, at least 0; the larger, the less a badly fitting sample weighs; 0 is BCE.

    Reference: Wang et al., Denoising implicit feedback, WSDM 2021.

    >>> rce_loss(torch.tensor([0.0]), torch.tensor([[0.0]]), power=1.0)  # log 2 / 2
    tensor(0.3466)
    """
    pos_weight = (power * logsigmoid(pos.detach())).exp()
    neg_weight = (power * logsigmoid(-neg.detach())).exp()
    total = pos_weight * softplus(-pos) + row_sum(neg_weight * softplus(neg), mask)
    return (total / (1 + _counts(neg, mask))).mean()


def ccl_loss(
    pos: Tensor, neg: Tensor, mask: Tensor | None = None, *, margin: float, neg_weight: float
) -> Tensor:
    """Cosine contrastive loss: positives towards 1, negatives below a margin.

        max(0, 1 - c_i) + w mean_j max(0, c_j - margin)

    Args:
        margin: in [-1, 1]; negatives below it contribute nothing.
        neg_weight: w, at least 0.

    Reference: Mao et al., SimpleX, CIKM 2021, where it is trained and ranked by cosine.

    >>> ccl_loss(torch.tensor([0.5]), torch.tensor([[0.9, 0.0]]), margin=0.5, neg_weight=1.0)
    tensor(0.7000)
    """
    return (relu(1.0 - pos) + neg_weight * row_mean(relu(neg - margin), mask)).mean()


class BCELoss(Loss):
    meaning = "cross-entropy of yes or no: log 2 = 0.69 where the model knows nothing"
    equation = staticmethod(bce_loss)

    def kernel(self) -> RowKernel:
        return RowKernel("bce")


@dataclass(eq=False, repr=False)
class TCELoss(Loss):
    """`tce_loss` whose dropped fraction grows linearly from 0 at step 0 to `max_dropped`.

    Args:
        max_dropped: fraction of the positives that is dropped in the end, in [0, 1).
        ramp_steps: steps until then, at least 1.
    """

    needs = frozenset({"step"})
    meaning = "cross-entropy without the worst-fitting positives"

    max_dropped: Annotated[float, Ge(0), Lt(1), Grid(0.05, 0.1, 0.2)] = 0.1
    ramp_steps: Count = 10_000

    def dropped(self, step: int) -> float:
        """The fraction that is dropped at a step.

        >>> TCELoss(max_dropped=0.2, ramp_steps=100).dropped(50)
        0.1
        """
        return self.max_dropped * min(check_at_least("context.step", step, 0) / self.ramp_steps, 1)

    def compute(self, pos: Tensor, neg: Tensor, mask: Tensor | None, context: Context) -> Tensor:
        assert context.step is not None  # checked by `prepare`
        return tce_loss(pos, neg, mask, dropped=self.dropped(context.step))


@dataclass(eq=False, repr=False)
class RCELoss(Loss):
    meaning = "cross-entropy with little weight on what fits badly; not comparable across powers"
    equation = staticmethod(rce_loss)

    power: Annotated[float, Ge(0), Grid(0.1, 0.2, 0.5)] = 0.2


@dataclass(eq=False, repr=False)
class CCLLoss(Loss):
    score = "cosine"
    meaning = "distance of positives from cosine 1, plus that of negatives above the margin"
    equation = staticmethod(ccl_loss)

    margin: Annotated[float, Ge(-1), Le(1), Grid(0.4, 0.6, 0.8, 0.9)] = 0.4
    neg_weight: Annotated[float, Ge(0), Grid(1.0, 10.0, 100.0, 300.0)] = 1.0
