"""The minimax step for any torch optimizer.

`LLPAUCLoss` is minimised over the model and some of its variables, and maximised over the others;
after each step the variables are brought back into their domains. One line does it, for every loss:

    optimizer = minimax_optimizer(torch.optim.Adam, model.parameters(), loss, lr=1e-3)

Then call `optimizer.step()` as usual.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from llpauc.errors import InputError
from llpauc.losses.base import Loss


def minimax_parameter_groups(
    model_params: Iterable[nn.Parameter], loss: Loss, lr: float, **options: Any
) -> list[dict[str, Any]]:
    """Parameter groups for any `torch.optim` class: the model, then the variables of the loss.

    The variables never have weight decay: it would pull them to 0, away from their optimum.

    Args:
        model_params: minimised.
        loss: any loss; one without variables adds no group.
        lr: the rate of the model, above 0; those of the variables are multiples of it, see
            `Loss.rate_factors`.
        options: further options of every group, such as betas or weight_decay.

    >>> from llpauc.losses import LLPAUCLoss
    >>> groups = minimax_parameter_groups([nn.Parameter()], LLPAUCLoss(0.7, 0.1), lr=0.1)
    >>> [(len(group["params"]), group["lr"], group["maximize"]) for group in groups]
    [(1, 0.1, False), (2, 0.1, False), (1, 0.2, False), (2, 0.2, True)]
    """
    if not (lr > 0.0 and math.isfinite(lr)):
        raise InputError(f"lr must be above 0, got {lr!r}")
    groups = [{"maximize": False, **options, "params": list(model_params), "lr": float(lr)}]
    named, factors = loss.rate_factors(), {}
    for name, parameter in loss.named_parameters():
        factors[id(parameter)] = named.get(name, 1.0)
    for maximize, parameters in _variables(loss):
        for factor in sorted({factors[id(p)] for p in parameters}):
            members = [p for p in parameters if factors[id(p)] == factor]
            group = {"params": members, "lr": lr * factor, "maximize": maximize}
            groups.append({**options, **group, "weight_decay": 0.0})
    return groups


def _variables(loss: Loss) -> list[tuple[bool, list[nn.Parameter]]]:
    """Whether they are maximised, and the variables."""
    return [(False, loss.descent_parameters()), (True, loss.ascent_parameters())]


def attach(loss: Loss, optimizer: Optimizer) -> RemovableHandle:
    """Call `loss.project_()` after every step of an optimizer, until the handle is removed.

    Raises `InputError` if the optimizer would move a variable the wrong way, or not at all.
    """
    if loss.ascent_parameters() and "maximize" not in optimizer.defaults:
        raise InputError(f"{type(optimizer).__name__} cannot maximise; use Adam, SGD or the like")
    directions = {
        id(parameter): bool(group.get("maximize"))
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    names = {id(parameter): name for name, parameter in loss.named_parameters()}
    for maximize, parameters in _variables(loss):
        for parameter in parameters:
            name = names[id(parameter)]
            if id(parameter) not in directions:
                raise InputError(f"{name} is in no group; use minimax_parameter_groups")
            if directions[id(parameter)] != maximize:
                raise InputError(f"{name} is in a group without maximize={maximize}")
    return optimizer.register_step_post_hook(lambda *_: loss.project_())


def minimax_optimizer(
    kind: type[Optimizer],
    model_params: Iterable[nn.Parameter],
    loss: Loss,
    lr: float,
    **options: Any,
) -> Optimizer:
    """An optimizer of the model and the variables of the loss, which also projects them.

    Args:
        kind: a `torch.optim` class with the option `maximize`, e.g. torch.optim.Adam.
        model_params, loss, lr, options: as in `minimax_parameter_groups`.

    >>> import torch
    >>> from llpauc.losses import LLPAUCLoss
    >>> loss = LLPAUCLoss(alpha=0.7, beta=0.1)
    >>> scores = nn.Parameter(torch.zeros(4))
    >>> optimizer = minimax_optimizer(torch.optim.SGD, [scores], loss, lr=100.0)
    >>> loss(scores, torch.zeros(4, 8)).backward()
    >>> optimizer.step()
    >>> loss.neg_threshold.item()  # a step of 200 times its gradient, then projected
    5.0
    """
    optimizer = kind(minimax_parameter_groups(model_params, loss, lr, **options))  # type: ignore[call-arg]
    attach(loss, optimizer)
    return optimizer
