"""Pairwise losses weighted by the effect of a swap on a ranking metric: the LambdaLoss family.

    sum_j weight(r_i, r_j) softplus(s_j - s_i)

r is the rank in the candidate list, the positive and its negatives together, 1 the best; the
weights are constants to the gradient. D(r) = log2(1 + r) is the discount of DCG.

| loss | weight |
|---|---|
| LambdaRank | abs(1/D(r_i) - 1/D(r_j)) |
| NDCG-Loss1 | 1/D(r_i) |
| NDCG-Loss2 | abs(1/D(d) - 1/D(d + 1)) with d = abs(r_i - r_j) |
| ARP-Loss2 | 1 |

Ties: the positive is ranked after every negative that ties with it, and tied negatives have the
best of their ranks. So ranks do not depend on the order of the negatives, no positive has the rank
of a negative (d is at least 1), and a batch of equal scores still has a gradient.

Reference: Burges, From RankNet to LambdaRank to LambdaMART, 2010; Wang et al., The LambdaLoss
framework, CIKM 2018. **Departs from the latter**: natural logarithm instead of base 2, one
positive in each list, and no division by the ideal DCG, which is then 1.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import softplus

from llpauc.losses.base import Context, Loss, minus_inf_where_masked, row_sum

Weight = Callable[[Tensor, Tensor], Tensor]


@torch.no_grad()
def candidate_ranks(pos: Tensor, neg: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Ranks (B, 1) of the positives and (B, N) of the negatives, as floats.

    >>> candidate_ranks(torch.tensor([2.0]), torch.tensor([[3.0, 2.0, 1.0, 1.0]]))
    (tensor([[3.]]), tensor([[1., 2., 4., 4.]]))
    """
    counted = minus_inf_where_masked(neg, mask).contiguous()
    ascending = counted.sort(1).values
    better = neg.shape[1] - torch.searchsorted(ascending, counted, right=True)
    pos_rank = 1 + (counted >= pos[:, None]).sum(1, keepdim=True)
    neg_rank = 1 + better + (pos[:, None] > counted)
    return pos_rank.to(pos.dtype), neg_rank.to(pos.dtype)


def gain(rank: Tensor) -> Tensor:
    """1 / D(r) = 1 / log2(1 + r).

    >>> gain(torch.tensor([1.0, 3.0]))
    tensor([1.0000, 0.5000])
    """
    return 1.0 / torch.log2(1.0 + rank)


def lambda_loss(pos: Tensor, neg: Tensor, mask: Tensor | None = None, *, weight: Weight) -> Tensor:
    """The sum over pairs of this module, averaged over rows.

    Shapes: pos (B,), neg and mask (B, N); returns a scalar.

    >>> lambda_loss(torch.tensor([1.0]), torch.tensor([[1.0, 1.0]]), weight=ARPLoss2.weight)
    tensor(1.3863)
    """
    weights = weight(*candidate_ranks(pos, neg, mask))
    return row_sum(weights * softplus(neg - pos[:, None]), mask).mean()


class LambdaLoss(Loss):
    """Base of the four losses, which differ in `weight`: ranks (B, 1) and (B, N) -> (B, N)."""

    @staticmethod
    @abstractmethod
    def weight(pos_rank: Tensor, neg_rank: Tensor) -> Tensor:
        """The weight of each pair."""

    def compute(self, pos: Tensor, neg: Tensor, mask: Tensor | None, context: Context) -> Tensor:
        return lambda_loss(pos, neg, mask, weight=self.weight)


class LambdaRankLoss(LambdaLoss):
    """Pairs weighted by the change of DCG if they swapped.

    >>> LambdaRankLoss()(torch.tensor([0.0]), torch.tensor([[0.0]]))  # (1 - 1/log2(3)) log 2
    tensor(0.2558)
    """

    meaning = "DCG at stake in the wrongly ordered pairs, summed over a row"

    @staticmethod
    def weight(pos_rank: Tensor, neg_rank: Tensor) -> Tensor:
        return (gain(pos_rank) - gain(neg_rank)).abs()


class NDCGLoss1(LambdaLoss):
    """All pairs of a positive weighted by its discount.

    >>> NDCGLoss1()(torch.tensor([0.0]), torch.tensor([[0.0]]))  # log 2 / log2(3)
    tensor(0.4373)
    """

    meaning = "log 2 times a loose bound on the NDCG that is missing, summed over a row"

    @staticmethod
    def weight(pos_rank: Tensor, neg_rank: Tensor) -> Tensor:
        return gain(pos_rank).expand_as(neg_rank)


class NDCGLoss2(LambdaLoss):
    """Pairs weighted by the distance of their ranks.

    >>> NDCGLoss2()(torch.tensor([0.0]), torch.tensor([[0.0]]))  # (1 - 1/log2(3)) log 2
    tensor(0.2558)
    """

    meaning = "log 2 times a tight bound on the NDCG that is missing, summed over a row"

    @staticmethod
    def weight(pos_rank: Tensor, neg_rank: Tensor) -> Tensor:
        distance = (pos_rank - neg_rank).abs()
        return (gain(distance) - gain(distance + 1.0)).abs()


class ARPLoss2(LambdaLoss):
    """All pairs with the same weight: N times BPR.

    >>> ARPLoss2()(torch.tensor([0.0]), torch.tensor([[0.0, 0.0]]))  # 2 log 2
    tensor(1.3863)
    """

    meaning = "log 2 times a bound on the number of negatives above the positive"

    @staticmethod
    def weight(pos_rank: Tensor, neg_rank: Tensor) -> Tensor:
        return torch.ones_like(neg_rank)
