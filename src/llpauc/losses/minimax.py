"""The minimax step for anybody's optimizer.

A loss such as `LLPAUCLoss` is minimised over the model and some variables of its own, and maximised
over the others; all of its variables are brought back into their domains after the step. In a loop
of your own one line does it all, and works for every other loss too:

    optimizer = minimax_optimizer(torch.optim.Adam, model.parameters(), loss, lr=1e-3)

after which `optimizer.step()` is all there is to call.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from llpauc.errors import InputError
from llpauc.losses.base import Loss, check_above_zero


def minimax_parameter_groups(
    model_params: Iterable[nn.Parameter], loss: Loss, lr: float, fast: float = 2.0, **options: Any
) -> list[dict[str, Any]]:
    """Parameter groups for any `torch.optim` class: the model, then the loss's own variables.

    The variables never get weight decay: their domains are known, and 0 is not where they belong.

    Args:
        model_params: what the loss is minimised over.
        loss: any loss; one without variables adds no group.
        lr: the base rate, above 0.
        fast: factor of it for `loss.fast_parameters()`; 2 in the reference setting.
        options: further options of every group, such as betas or weight_decay.

    >>> from llpauc.losses import LLPAUCLoss
    >>> groups = minimax_parameter_groups([nn.Parameter()], LLPAUCLoss(0.7, 0.1), lr=0.1)
    >>> [(len(group["params"]), group["lr"], group["maximize"]) for group in groups]
    [(1, 0.1, False), (2, 0.1, False), (1, 0.2, False), (2, 0.2, True)]
    """
    lr, fast = check_above_zero("lr", lr), check_above_zero("fast", fast)
    groups = [{"maximize": False, **options, "params": list(model_params), "lr": lr}]
    is_fast = {id(parameter) for parameter in loss.fast_parameters()}
    for maximize, parameters in (
        (False, loss.descent_parameters()),
        (True, loss.ascent_parameters()),
    ):
        for rate, wanted in ((lr, False), (lr * fast, True)):
            members = [p for p in parameters if (id(p) in is_fast) == wanted]
            if members:
                own = {"params": members, "lr": rate, "maximize": maximize, "weight_decay": 0.0}
                groups.append({**options, **own})
    return groups


def attach(loss: Loss, optimizer: Optimizer) -> RemovableHandle:
    """Have `loss.project_()` called after every step of an optimizer; the handle undoes it.

    Refuses an optimizer that would move one of the loss's variables the wrong way, or not at all.
    """
    if loss.ascent_parameters() and "maximize" not in optimizer.defaults:
        raise InputError(f"{type(optimizer).__name__} cannot maximise; use Adam, SGD or the like")
    directions = {
        id(parameter): bool(group.get("maximize"))
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    names = {id(parameter): name for name, parameter in loss.named_parameters()}
    for maximize, parameters in (
        (False, loss.descent_parameters()),
        (True, loss.ascent_parameters()),
    ):
        for parameter in parameters:
            name = names[id(parameter)]
            if id(parameter) not in directions:
                raise InputError(f"{name} is in no group; use minimax_parameter_groups")
            if directions[id(parameter)] != maximize:
                wanted = "maximize=True" if maximize else "maximize=False"
                raise InputError(f"{name} is in a group without {wanted}")
    return optimizer.register_step_post_hook(lambda *_: loss.project_())


def minimax_optimizer(
    kind: type[Optimizer],
    model_params: Iterable[nn.Parameter],
    loss: Loss,
    lr: float,
    fast: float = 2.0,
    **options: Any,
) -> Optimizer:
    """An optimizer of the model and the loss's variables that also projects: the one line.

    Args:
        kind: a `torch.optim` class that knows `maximize`, e.g. torch.optim.Adam.
        model_params, loss, lr, fast, options: as in `minimax_parameter_groups`.

    >>> import torch
    >>> from llpauc.losses import LLPAUCLoss
    >>> loss = LLPAUCLoss(alpha=0.7, beta=0.1)
    >>> scores = nn.Parameter(torch.zeros(4))
    >>> optimizer = minimax_optimizer(torch.optim.SGD, [scores], loss, lr=100.0)
    >>> loss(scores, torch.zeros(4, 8)).backward()
    >>> optimizer.step()
    >>> loss.neg_threshold.item()  # a step of 200 times its slope, and back into its domain
    5.0
    """
    optimizer = kind(minimax_parameter_groups(model_params, loss, lr, fast, **options))  # type: ignore[call-arg]
    attach(loss, optimizer)
    return optimizer
