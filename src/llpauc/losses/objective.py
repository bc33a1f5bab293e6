"""The LLPAUC objective: the equation, in plain torch.

    F = -s+ - (1/alpha) mean_i r(-l+(f_i) - s+)
        + s- + (1/beta) mean_j r(l-(f_j) - s-)  -  (1 + w) gamma^2
    l+(f) = (f - a)^2 - 2 (1 + gamma) f        l-(f) = (f - b)^2 + 2 (1 + gamma) f

minimised over the scores, a, b and s-, maximised over gamma and s+.

| paper | here | meaning |
|---|---|---|
| f | sigmoid(score) | |
| alpha, beta | `alpha`, `beta` | shares of the best positives and negatives, in (0, 1] |
| r, kappa | `sharpness` | r(x) = softplus(kappa x) / kappa, max(0, x) for kappa = inf |
| w | `gap_penalty` | extra concavity in gamma, which ends at (b - a) / (1 + w) |
| a, b, gamma, s+, s- | `Variables` | see there |

**Departs from the paper.** Lemma 1 and Eq. 12 to 14 lose a factor: the proof divides the sums over
the selected items by n, not by their number, while it treats a and b as means. Each side must be
divided by its own share, as above; only then is the saddle value what it should be, the mean over
the selected pairs of (1 - f_i + f_j)^2, minus 1. At alpha = 1 (beta = 1) nothing is selected on
that side: the term is the plain mean of l+ (l-). That is the limit of max(0, .), whereas softplus
with s+ in [-1, 4] would keep a bias, and OPAUC would not be LLPAUC(1, beta). The five variables are
shared by all users and estimated over the batch, as in the paper's code; its theory is per user.
`llpauc.losses.per_row_threshold` selects by row instead.

Reference: Shi et al., Lower-left partial AUC, WWW 2024, Eq. 14 and Algorithm 1; for OPAUC Shao et
al., Asymptotically unbiased instance-wise regularized partial AUC optimization, NeurIPS 2022.
"""

from __future__ import annotations

import math

from torch import Tensor
from torch.nn.functional import relu, softplus

from llpauc.losses.exact import counted
from llpauc.losses.fused import Settings, Variables

START = Variables(pos_center=1.0, neg_center=0.0, gap=0.0, pos_threshold=0.5, neg_threshold=0.5)


def hinge(x: Tensor, sharpness: float) -> Tensor:
    """r of the top of this file."""
    return relu(x) if math.isinf(sharpness) else softplus(x, beta=sharpness)


def llpauc_objective(
    pos: Tensor,
    neg: Tensor,
    variables: Variables[Tensor],
    settings: Settings,
    mask: Tensor | None = None,
) -> Tensor:
    """F of the top of this file, in plain torch: any device, any float, any order of derivative.

    Args:
        pos: (B,) scores of the positives.
        neg: (B, N) scores of the negatives.
        variables: the five.
        settings: alpha and beta in (0, 1], sharpness above 0 (inf for max(0, .)), gap_penalty.
        mask: bool (B, N), True where a pair counts. The mean is over all pairs of the batch that
            count; every row must have one.

    Reference: Eq. 14 with the factors 1/alpha and 1/beta.

    >>> import torch
    >>> start = Variables(*(torch.tensor(v) for v in START))
    >>> pos, neg = torch.zeros(2), torch.zeros(2, 3)
    >>> llpauc_objective(pos, neg, start, Settings(1.0, 1.0, 5.0, 0.0))  # .25 - 1 + .25 + 1
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
