"""Losses of the difference between a positive and each of its negatives: BPR, DNS, Softmax_v.

Symbols: s_i (`pos`) the positive score, s_j (`neg`) those of its negatives, mean and sum over the j
that count. Every row must have a pair that counts; every function returns the mean over rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Gt
from torch import Tensor
from torch.nn.functional import softplus

from llpauc.losses.base import Loss, minus_inf_where_masked, row_mean, row_sum
from llpauc.losses.kernels import RowKernel
from llpauc.options import Grid, LogRange


def bpr_loss(pos: Tensor, neg: Tensor, mask: Tensor | None = None) -> Tensor:
    """Bayesian personalised ranking: a smooth count of the pairs in the wrong order.

        mean_j softplus(s_j - s_i)

    Shapes: pos (B,), neg and mask (B, N); returns a scalar.

    Reference: Rendle et al., BPR, UAI 2009.

    >>> bpr_loss(torch.tensor([1.0]), torch.tensor([[1.0, 1.0]]))  # log 2
    tensor(0.6931)
    """
    pairs = softplus(neg - pos[:, None])
    return pairs.mean() if mask is None else row_mean(pairs, mask).mean()


def dns_loss(pos: Tensor, neg: Tensor, mask: Tensor | None = None, *, hardest: int) -> Tensor:
    """Dynamic negative sampling DNS(M, N): BPR on the M best-scored of the N given negatives.

        mean over the M largest s_j of softplus(s_j - s_i)

    A row with fewer than M negatives that count uses all of them.

    Args:
        hardest: M, how many of the given negatives, the best-scored, are used; at least 1.

    Reference: Shi et al., On the theories behind hard negative sampling, WWW 2023.

    >>> dns_loss(torch.tensor([1.0]), torch.tensor([[1.0, -9.0]]), hardest=1)
    tensor(0.6931)
    """
    scores = minus_inf_where_masked(neg.detach(), mask)
    top = scores.topk(min(hardest, neg.shape[1]), dim=1).indices
    counted = None if mask is None else mask.gather(1, top)
    return bpr_loss(pos, neg.gather(1, top), counted)


def softmax_v_loss(pos: Tensor, neg: Tensor, mask: Tensor | None = None, *, rho: float) -> Tensor:
    """Softmax_v(rho, N): BPR in which the worst pairs weigh most, controlled by rho.

        Z_j = softplus(s_j - s_i)      tau = sqrt(Var_j(Z) / (2 rho))
        sum_j softmax(Z / tau)_j Z_j

    The weights and tau are constants to the gradient. Var is the mean squared deviation; where it
    is 0 all weights are equal.

    Args:
        rho: above 0; the larger, the more the worst pairs weigh.

    Reference: Shi et al., On the theories behind hard negative sampling, WWW 2023.

    >>> softmax_v_loss(torch.tensor([1.0]), torch.tensor([[1.0, 1.0]]), rho=1.0)
    tensor(0.6931)
    """
    pairs = softplus(neg - pos[:, None])
    with torch.no_grad():
        centered = pairs - row_mean(pairs, mask)[:, None]
        spread = (row_mean(centered.square(), mask) / (2.0 * rho)).sqrt()
        floor = torch.finfo(pairs.dtype).tiny ** 0.5
        scaled = centered / spread.clamp(min=floor)[:, None]
        weights = minus_inf_where_masked(scaled, mask).softmax(1)
    return row_sum(weights * pairs, mask).mean()


class BPRLoss(Loss):
    meaning = "BPR: log 2 = 0.69 where all scores are equal, towards 0 as positives win"
    equation = staticmethod(bpr_loss)

    def kernel(self) -> RowKernel:
        return RowKernel("bpr")


@dataclass(eq=False, repr=False)
class DNSLoss(Loss):
    meaning = "BPR against the hardest negatives only: 0.69 where all scores are equal"
    equation = staticmethod(dns_loss)

    hardest: Annotated[int, Ge(1), Grid(2, 5, 20)] = 5


@dataclass(eq=False, repr=False)
class SoftmaxVLoss(Loss):
    meaning = "BPR with most weight on the pairs in the worst order: at least the BPR value"
    equation = staticmethod(softmax_v_loss)

    rho: Annotated[float, Gt(0), LogRange(0.1, 10.0)] = 1.0
