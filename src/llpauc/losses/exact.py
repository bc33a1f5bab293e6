"""The saddle of the LLPAUC objective in closed form, and the hard LLPAUC of a batch.

For fixed scores, and with r = max(0, .), the minimax problem solves itself. l+ falls and l- rises
with f, so the best thresholds select the k+ = ceil(alpha n+) best positives and the k- best
negatives; then a and b are the means of the selected f, and what is left of F,

    Var+ + Var- + 2 (1 + gamma) (b - a) - (1 + w) gamma^2,

is largest at gamma = (b - a) / (1 + w), which lies in gamma's domain. So the saddle value is

    Var+ + Var- + 2 (b - a) + (b - a)^2 / (1 + w)

with Var the variances of the selected f; for w = 0 the mean over the selected pairs of
(1 - f_i + f_j)^2, minus 1. It comes from two means and two variances, never from pairs, and its
gradient with respect to a selected f_i is the partial one at the saddle (envelope theorem):
2 (f_i - a - 1 - gamma) / k+.

Where alpha n+ is no whole number, max(0, .) would count the last positive in part; here it counts
in full, as in the metric.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from llpauc.losses.fused import Variables
from llpauc.metrics.partial_auc import selected_count


class Saddle(NamedTuple):
    """The saddle value, and the five variables there."""

    value: Tensor
    variables: Variables[Tensor]


def select_best(scores: Tensor, share: float) -> Tensor:
    """The best-scored share of a one-dimensional tensor, in no particular order.

    Of scores that tie for the last place the first ones are taken.
    """
    n = len(scores)
    count = selected_count(share, n)
    if count == n:
        return scores
    if not scores.is_cpu:
        return scores.topk(count, sorted=False).values
    # NumPy's vectorised quickselect finds the last place ten times as fast as torch's topk.
    plain = scores.detach().numpy()
    last = np.partition(plain, n - count)[n - count]
    above = np.flatnonzero(plain > last)
    tied = np.flatnonzero(plain == last)[: count - len(above)]
    return scores.index_select(0, torch.from_numpy(np.concatenate([above, tied])))


def counted(neg: Tensor, mask: Tensor | None) -> Tensor:
    """(n-,): the negatives of the whole batch that count."""
    return neg.reshape(-1) if mask is None else neg[mask]


def exact_saddle(
    pos: Tensor,
    neg: Tensor,
    mask: Tensor | None = None,
    *,
    alpha: float,
    beta: float,
    gap_penalty: float = 0.0,
) -> Saddle:
    """The saddle of the objective over the batch, pooled; see the top of this file.

    O(B N): a selection and two moments a side.

    >>> saddle = exact_saddle(torch.zeros(2), torch.zeros(2, 3), alpha=0.5, beta=0.5)
    >>> saddle.value  # f = 1/2 throughout: (1 - 1/2 + 1/2)^2 - 1
    tensor(0.)
    """
    f_pos = select_best(pos, alpha).sigmoid()
    f_neg = select_best(counted(neg, mask), beta).sigmoid()
    a, b = f_pos.mean(), f_neg.mean()
    spread = (f_pos - a).square().mean() + (f_neg - b).square().mean()
    gap = (b - a) / (1.0 + gap_penalty)
    value = spread + 2.0 * (b - a) + (b - a) * gap
    with torch.no_grad():
        last_pos, last_neg = f_pos.min(), f_neg.min()
        pos_threshold = 2.0 * (1.0 + gap) * last_pos - (last_pos - a).square()
        neg_threshold = 2.0 * (1.0 + gap) * last_neg + (last_neg - b).square()
    variables = Variables(a.detach(), b.detach(), gap.detach(), pos_threshold, neg_threshold)
    return Saddle(value, variables)


@torch.no_grad()
def hard_llpauc(
    pos: Tensor, neg: Tensor, mask: Tensor | None = None, *, alpha: float, beta: float
) -> tuple[float, float]:
    """The metric of a batch as if it were one user: normalised to [0, 1], and the raw area.

    Positives and negatives are pooled over the rows, as the five variables are. Ties count 0.

    >>> hard_llpauc(torch.tensor([2.0, 0.0]), torch.tensor([[1.0], [-1.0]]), alpha=0.5, beta=1.0)
    (1.0, 0.5)
    """
    negatives = counted(neg, mask)
    best_pos, best_neg = select_best(pos, alpha), select_best(negatives, beta)
    below = torch.searchsorted(best_neg.sort().values, best_pos.contiguous())
    won = int(below.sum())
    raw = won / (len(pos) * len(negatives))
    return won / (len(best_pos) * len(best_neg)), raw
