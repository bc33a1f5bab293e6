"""The LLPAUC objective, its saddle in closed form, and the metric of a batch.

    F = -s+ - (1/alpha) mean_i r(-l+(f_i) - s+)
        + s- + (1/beta) mean_j r(l-(f_j) - s-)  -  (1 + w) gamma^2
    l+(f) = (f - a)^2 - 2 (1 + gamma) f        l-(f) = (f - b)^2 + 2 (1 + gamma) f

minimised over the scores, a, b and s-, maximised over gamma and s+.

| paper | here | meaning |
|---|---|---|
| f | sigmoid(score) | |
| alpha, beta | `alpha`, `beta` | fractions of the best positives and negatives, in (0, 1] |
| r, kappa | `sharpness` | r(x) = softplus(kappa x) / kappa, max(0, x) for kappa = inf |
| w | `gap_penalty` | extra concavity in gamma, which ends at (b - a) / (1 + w) |
| a, b, gamma, s+, s- | `Variables` | see below |

**Departs from the paper.** Lemma 1 and Eq. 12 to 14 lose a factor: the proof divides the sums over
the selected items by n, not by their number, while it treats a and b as means. Each side must be
divided by its fraction, as above; only then is the saddle value what it should be, the mean over
the selected pairs of (1 - f_i + f_j)^2, minus 1. At alpha = 1 (beta = 1) nothing is selected on
that side: the term is the plain mean of l+ (l-). That is the limit of max(0, .), whereas softplus
with s+ in [-1, 4] would keep a bias, and OPAUC would not be LLPAUC(1, beta). The five variables are
shared by all users and estimated over the batch, as in the paper's code; its theory is per user.
`llpauc.losses.per_user` selects by row instead.

**Saddle.** For fixed scores and r = max(0, .), the minimax problem has a closed solution. l+ falls
and l- rises with f, so the best thresholds select the k+ = ceil(alpha n+) best positives and the k-
best negatives; a and b are then the means of the selected f, and the rest of F,

    Var+ + Var- + 2 (1 + gamma) (b - a) - (1 + w) gamma^2,

is largest at gamma = (b - a) / (1 + w), which is in gamma's domain. So the saddle value is

    Var+ + Var- + 2 (b - a) + (b - a)^2 / (1 + w)

with Var the variances of the selected f; for w = 0 the mean over the selected pairs of
(1 - f_i + f_j)^2, minus 1. It needs two means and two variances, no pairs, and its gradient with
respect to a selected f_i is the partial one at the saddle (envelope theorem):
2 (f_i - a - 1 - gamma) / k+. Where alpha n+ is not a whole number, max(0, .) would count the last
positive in part; here it counts in full, as in the metric.

Reference: Shi et al., Lower-left partial AUC, WWW 2024, Eq. 14 and Algorithm 1; for OPAUC Shao et
al., Asymptotically unbiased instance-wise regularized partial AUC optimization, NeurIPS 2022.
"""

from __future__ import annotations

import math
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import relu, softplus

from llpauc.metrics.partial_auc import selected_count

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


INITIAL_VARIABLES = Variables(1.0, 0.0, 0.0, 0.5, 0.5)


class Settings(NamedTuple):
    """The constants of the objective: alpha, beta, kappa and w of the paper."""

    alpha: float
    beta: float
    sharpness: float
    gap_penalty: float


def projected(variables: Variables[float]) -> Variables[float]:
    """The nearest point of the domains (see `Variables`), a and b first; NaN stays NaN.

    >>> projected(Variables(1.5, 0.2, -3.0, 9.0, 0.5))
    Variables(pos_center=1.0, neg_center=0.2, gap=-0.8, pos_threshold=4.0, neg_threshold=0.5)
    """

    def clip(x: float, low: float, high: float) -> float:
        return low if x < low else high if x > high else x

    a, b = clip(variables.pos_center, 0.0, 1.0), clip(variables.neg_center, 0.0, 1.0)
    gap = clip(variables.gap, max(-a, b - 1.0), 1.0)
    s_pos, s_neg = clip(variables.pos_threshold, -1.0, 4.0), clip(variables.neg_threshold, 0.0, 5.0)
    return Variables(a, b, gap, s_pos, s_neg)


def hinge(x: Tensor, sharpness: float) -> Tensor:
    """r of this module."""
    return relu(x) if math.isinf(sharpness) else softplus(x, beta=sharpness)


def counted(neg: Tensor, mask: Tensor | None) -> Tensor:
    """(n-,): the negatives of the whole batch that count."""
    return neg.reshape(-1) if mask is None else neg[mask]


def llpauc_objective(
    pos: Tensor,
    neg: Tensor,
    variables: Variables[Tensor],
    settings: Settings,
    mask: Tensor | None = None,
) -> Tensor:
    """F of this module in plain torch: any device, any float type, any order of derivative.

    Args:
        pos: (B,) scores of the positives.
        neg: (B, N) scores of the negatives.
        variables: the five.
        settings: alpha and beta in (0, 1], sharpness above 0 (inf for max(0, .)), gap_penalty.
        mask: bool (B, N), True where a pair counts. The mean is over all pairs of the batch that
            count; every row must have one.

    Reference: Eq. 14 with the factors 1/alpha and 1/beta.

    >>> variables = Variables(*(torch.tensor(v) for v in INITIAL_VARIABLES))
    >>> pos, neg = torch.zeros(2), torch.zeros(2, 3)
    >>> llpauc_objective(pos, neg, variables, Settings(1.0, 1.0, 5.0, 0.0))  # .25 - 1 + .25 + 1
    tensor(0.5000)
    """
    a, b, gap, pos_threshold, neg_threshold = variables
    f_pos, f_neg = pos.sigmoid(), counted(neg, mask).sigmoid()
    pos_loss = (f_pos - a).square() - 2.0 * (1.0 + gap) * f_pos
    neg_loss = (f_neg - b).square() + 2.0 * (1.0 + gap) * f_neg
    if settings.alpha < 1.0:
        excess = hinge(-pos_loss - pos_threshold, settings.sharpness).mean()
        pos_term = -pos_threshold - excess / settings.alpha
    else:
        pos_term = pos_loss.mean()
    if settings.beta < 1.0:
        excess = hinge(neg_loss - neg_threshold, settings.sharpness).mean()
        neg_term = neg_threshold + excess / settings.beta
    else:
        neg_term = neg_loss.mean()
    return pos_term + neg_term - (1.0 + settings.gap_penalty) * gap.square()


class Saddle(NamedTuple):
    """The saddle value, and the five variables at the saddle."""

    value: Tensor
    variables: Variables[Tensor]


def select_best(scores: Tensor, fraction: float) -> Tensor:
    """The best-scored fraction of a one-dimensional tensor, in no particular order.

    Of scores that tie for the last place the first ones are taken.
    """
    n = len(scores)
    count = selected_count(fraction, n)
    if count == n:
        return scores
    if not scores.is_cpu:
        return scores.topk(count, sorted=False).values
    # NumPy's vectorised quickselect is ten times as fast as torch's topk.
    plain = scores.detach().numpy()
    last = np.partition(plain, n - count)[n - count]
    above = np.flatnonzero(plain > last)
    tied = np.flatnonzero(plain == last)[: count - len(above)]
    return scores.index_select(0, torch.from_numpy(np.concatenate([above, tied])))


def exact_saddle(
    pos: Tensor,
    neg: Tensor,
    mask: Tensor | None = None,
    *,
    alpha: float,
    beta: float,
    gap_penalty: float = 0.0,
) -> Saddle:
    """The saddle of the objective over the batch, pooled; see this module.

    O(B N): a selection and two moments for each side.

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
