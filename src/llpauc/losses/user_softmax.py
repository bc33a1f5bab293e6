"""Softmax losses with values of each user, which are computed from the scores of all items before
an epoch: SL@K, Talos and Adap-tau.

Symbols as in `softmax`; q_u is the user's K-th best score, tau_u the user's temperature.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
from annotated_types import Gt
from scipy.special import lambertw
from torch import Tensor
from torch.nn.functional import logsigmoid

from llpauc.errors import InputError, check_at_least
from llpauc.losses.base import (
    Context,
    ForAllUsers,
    Loss,
    minus_inf_where_masked,
    row_mean,
)
from llpauc.losses.softmax import Temperature, sl_rows
from llpauc.options import LogRange, NonNegativeInt

_K, _REFRESH_EPOCHS = 20, 5  # of the thresholds in the training loop
_ASSUMED_GAP = 0.7  # between the mean cosines of positives and of all pairs, until it is measured
_SMALLEST_GAP = 0.05
_LOWEST_W_ARGUMENT = -math.exp(-1.0) + 1e-9  # at -1/e itself, rounding may leave the domain of W


def sl_at_k_loss(
    pos: Tensor,
    neg: Tensor,
    mask: Tensor | None = None,
    *,
    quantiles: Tensor,
    temperature: float,
    weight_temperature: float,
) -> Tensor:
    """SL@K: softmax loss on the positives in or near the user's top K.

        sigmoid((c_i - q_u) / tau_w) * log sum_j exp((c_j - c_i) / tau)

    The weight has a gradient too, as in the authors' SL@K program (their SogSL@K detaches it); q_u
    has none.

    Args:
        quantiles: (B,), q_u of each row's user: the score of the K-th best of all items.
        temperature: tau, above 0.
        weight_temperature: tau_w, above 0.

    Reference: Yang et al., Breaking the top-K barrier, KDD 2025.

    >>> one = torch.tensor([0.0]), torch.tensor([[0.0, 0.0]])
    >>> sl_at_k_loss(*one, quantiles=torch.zeros(1), temperature=0.2, weight_temperature=1.0)
    tensor(0.3466)
    """
    weight = ((pos - quantiles) / weight_temperature).sigmoid()
    return (weight * sl_rows(pos, neg, mask, temperature)).mean()


def talos_loss(
    pos: Tensor,
    neg: Tensor,
    mask: Tensor | None = None,
    *,
    quantiles: Tensor,
    temperature: float,
) -> Tensor:
    """Talos: each score is compared with the user's threshold of the top K.

        log sum_j sigmoid(c_j - q_u)^(1 / tau) - log sigmoid(c_i - q_u)^(1 / tau)

    q_u has no gradient. Scores far above the threshold have almost none: they are in the top K.

    Args:
        quantiles: (B,), q_u of each row's user: the score of the K-th best of all items.
        temperature: tau, above 0.

    Reference: Zhang et al., Talos: optimizing top-K accuracy in recommender systems, WWW 2026.

    >>> one = torch.tensor([0.0]), torch.tensor([[0.0, 0.0]])
    >>> talos_loss(*one, quantiles=torch.zeros(1), temperature=0.2)  # log 2
    tensor(0.6931)
    """
    pos, neg = logsigmoid(pos - quantiles), logsigmoid(neg - quantiles[:, None])
    return sl_rows(pos, neg, mask, temperature).mean()


def adap_tau_loss(
    pos: Tensor,
    neg: Tensor,
    mask: Tensor | None = None,
    *,
    base_temperature: Tensor,
    user_temperatures: Tensor,
) -> Tensor:
    """Adap-tau: softmax loss with a temperature for each user.

        log sum_j exp(c_j / tau_u) - c_i / tau_0

    The temperatures have no gradient.

    Args:
        base_temperature: (B,), tau_0, above 0.
        user_temperatures: (B,), tau_u of each row's user, above 0.

    Reference: Chen et al., Adap-tau: adaptively modulating embedding magnitude for recommendation,
    WWW 2023.

    >>> half = torch.tensor([0.5])
    >>> pair = torch.tensor([0.0]), torch.tensor([[0.0, 0.0]])
    >>> adap_tau_loss(*pair, base_temperature=half, user_temperatures=half)  # log 2
    tensor(0.6931)
    """
    powers = minus_inf_where_masked(neg / user_temperatures[:, None], mask)
    return (powers.logsumexp(1) - pos / base_temperature).mean()


@torch.no_grad()
def top_k_quantiles(scores: Tensor, k: int) -> Tensor:
    """(U,): each user's K-th best score, q_u, from (U, I) scores over all items.

    With fewer than K items it is the lowest score.

    >>> top_k_quantiles(torch.tensor([[0.1, 0.9, 0.5]]), k=2)
    tensor([0.5000])
    """
    k = check_at_least("k", k, 1)
    if scores.dim() != 2 or scores.shape[1] == 0:
        raise InputError(f"scores must be (users, items), got {tuple(scores.shape)}")
    return scores.topk(min(k, scores.shape[1]), dim=1).values[:, -1]


@dataclass(eq=False, repr=False)
class _UserLoss(Loss):
    """A loss with a buffer `user_values`, (n_users, ...), which `begin_epoch` refreshes.

    The buffer is part of `state_dict`, with the size it has.
    """

    score = "cosine"
    needs = frozenset({"users"})

    user_values: Tensor = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.register_buffer("user_values", torch.empty(0))

    def begin_epoch(self, epoch: int, for_all_users: ForAllUsers) -> None:
        """Refresh the values in epochs 1, 6, 11, ..."""
        if (epoch - 1) % _REFRESH_EPOCHS == 0:
            self.set_user_values(self.new_user_values(epoch, for_all_users))

    def new_user_values(self, epoch: int, for_all_users: ForAllUsers) -> Tensor:
        """(n_users,): each user's K-th best score."""
        return for_all_users(lambda scores, _: top_k_quantiles(scores, _K))

    def set_user_values(self, values: Tensor) -> None:
        """Set the values of every user; they must be finite."""
        if not bool(values.isfinite().all()):
            raise InputError("the values of users must be finite")
        self.user_values = values.detach().to(self.user_values.device).clone()

    def values_of_rows(self, pos: Tensor, context: Context) -> Tensor:
        """(B, ...): the values of each row's user."""
        users, n_users = context.users, len(self.user_values)
        assert users is not None  # checked by `prepare`
        if n_users == 0:
            raise InputError(
                f"{type(self).__name__} has no values of users; call begin_epoch first"
            )
        lowest, highest = int(users.min()), int(users.max())
        if lowest < 0 or highest >= n_users:
            raise InputError(
                f"context.users must be in [0, {n_users}), the users of begin_epoch; got"
                f" {lowest if lowest < 0 else highest}"
            )
        return self.user_values[users].to(pos.dtype)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # The buffer's size is data: take that of the checkpoint before torch compares the two.
        stored = state_dict.get(prefix + "user_values")
        if isinstance(stored, Tensor):
            self.user_values = self.user_values.new_empty(stored.shape)
        super()._load_from_state_dict(state_dict, prefix, *args)


@dataclass(eq=False, repr=False)
class SLAtKLoss(_UserLoss):
    """`sl_at_k_loss`; `begin_epoch` computes the thresholds of all users with K = 20.

    Args:
        temperature: above 0.
        weight_temperature: above 0; the smaller, the harder the cut at the top K.

    >>> loss = SLAtKLoss()
    >>> scores, seen = torch.zeros(1, 5), torch.zeros(1, 5, dtype=torch.bool)
    >>> loss.begin_epoch(1, lambda function: function(scores, seen))
    >>> loss(torch.zeros(1), torch.zeros(1, 2), context=Context(users=torch.tensor([0])))
    tensor(0.3466)
    """

    meaning = "softmax loss on the positives in or near their user's top K"

    temperature: Temperature = 0.2
    weight_temperature: Annotated[float, Gt(0), LogRange(0.3, 3.0)] = 1.0

    def compute(self, pos: Tensor, neg: Tensor, mask: Tensor | None, context: Context) -> Tensor:
        quantiles = self.values_of_rows(pos, context)
        return sl_at_k_loss(pos, neg, mask, quantiles=quantiles, **self.option_values)


@dataclass(eq=False, repr=False)
class TalosLoss(_UserLoss):
    """`talos_loss`; `begin_epoch` computes the thresholds of all users with K = 20.

    Departs from the paper: the authors learn q_u by quantile regression on sampled items, here it
    is computed from all items in epochs 1, 6, 11, ...

    Args:
        temperature: above 0.

    >>> loss = TalosLoss()
    >>> scores, seen = torch.zeros(1, 5), torch.zeros(1, 5, dtype=torch.bool)
    >>> loss.begin_epoch(1, lambda function: function(scores, seen))
    >>> loss(torch.zeros(1), torch.zeros(1, 2), context=Context(users=torch.tensor([0])))
    tensor(0.6931)
    """

    meaning = "negatives above their user's threshold of the top K against the positive: log N"

    temperature: Temperature = 0.15

    def compute(self, pos: Tensor, neg: Tensor, mask: Tensor | None, context: Context) -> Tensor:
        quantiles = self.values_of_rows(pos, context)
        return talos_loss(pos, neg, mask, quantiles=quantiles, **self.option_values)


@dataclass(eq=False, repr=False)
class AdapTauLoss(_UserLoss):
    """`adap_tau_loss`; `begin_epoch` computes the temperatures from the scores of the model:

        tau_0 = D / log(1 / (2 p))        p: the fraction of all pairs that are positives
        tau_u = tau_0 exp(W(max(-1/e, (L_u - mean L) / user_scale)))
        L_u   = log sum_j exp(c_j) - mean_i c_i      over all items and the user's positives

    D is the mean cosine of the positives minus that of all pairs, or 0.7 in the first epochs. W is
    the Lambert function: a user with a higher loss has a higher temperature.

    Departs from the authors' program: L_u and D are computed from all items in epochs 1, 6, 11,
    ..., not from the batches of the last epoch; all users count for p and D, not only those with
    more positives than the lowest fifth; tau_0 is at most 1, and D at least 0.05.

    Args:
        user_scale: above 0; the larger, the closer each tau_u is to tau_0.
        warm_up_epochs: epochs with D = 0.7, at least 0.
    """

    meaning = "softmax loss with a temperature for each user; may be negative"

    user_scale: Annotated[float, Gt(0), LogRange(0.25, 2.0)] = 1.0
    warm_up_epochs: NonNegativeInt = 100

    def new_user_values(self, epoch: int, for_all_users: ForAllUsers) -> Tensor:
        """(n_users, 2): tau_0 and tau_u."""
        fractions, pos_means, means, log_sums = for_all_users(_user_statistics).double().unbind(1)
        known = fractions > 0  # users with positives
        # The temperature of all users.
        gap = _ASSUMED_GAP
        if epoch > self.warm_up_epochs:
            pos_mean = (fractions * pos_means).sum() / fractions.sum()
            gap = max(float(pos_mean - means[known].mean()), _SMALLEST_GAP)
        base = gap / max(-math.log(2.0 * float(fractions[known].mean())), gap)
        # The temperature of each user.
        losses = log_sums - pos_means
        excess = torch.where(known, losses - losses[known].mean(), 0.0) / self.user_scale
        roots = lambertw(excess.clamp(min=_LOWEST_W_ARGUMENT).numpy()).real
        temperatures = base * torch.from_numpy(roots).exp()
        return torch.stack([torch.full_like(temperatures, base), temperatures], 1).float()

    def compute(self, pos: Tensor, neg: Tensor, mask: Tensor | None, context: Context) -> Tensor:
        base, users = self.values_of_rows(pos, context).unbind(1)
        return adap_tau_loss(pos, neg, mask, base_temperature=base, user_temperatures=users)


def _user_statistics(scores: Tensor, positives: Tensor) -> Tensor:
    """(n, 4): the fraction of items that are positives, the mean score of these and of all items,
    and the logarithm of the sum of exp(score)."""
    pos_means = torch.where(positives.any(1), row_mean(scores, positives), 0.0)
    fractions = positives.float().mean(1)
    return torch.stack([fractions, pos_means, scores.mean(1), scores.logsumexp(1)], 1)
