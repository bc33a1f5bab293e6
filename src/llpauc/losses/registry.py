"""The losses by name. Importing this module does not import torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llpauc.errors import InputError, listing
from llpauc.options import REQUIRED, Registry, options_of

if TYPE_CHECKING:
    from llpauc.losses.base import Loss

LOSSES: Registry[type[Loss]] = Registry(
    "loss",
    {
        "llpauc": "llpauc.losses.partial_auc:LLPAUCLoss",
        "opauc": "llpauc.losses.partial_auc:OPAUCLoss",
        "auc": "llpauc.losses.partial_auc:AUCLoss",
        "bpr": "llpauc.losses.pairwise:BPRLoss",
        "bce": "llpauc.losses.pointwise:BCELoss",
        "sce": "llpauc.losses.softmax:SCELoss",
        "ccl": "llpauc.losses.pointwise:CCLLoss",
        "dns": "llpauc.losses.pairwise:DNSLoss",
        "softmax_v": "llpauc.losses.pairwise:SoftmaxVLoss",
        "tce": "llpauc.losses.pointwise:TCELoss",
        "rce": "llpauc.losses.pointwise:RCELoss",
        "lambdarank": "llpauc.losses.lambdaloss:LambdaRankLoss",
        "ndcg_loss1": "llpauc.losses.lambdaloss:NDCGLoss1",
        "ndcg_loss2": "llpauc.losses.lambdaloss:NDCGLoss2",
        "arp_loss2": "llpauc.losses.lambdaloss:ARPLoss2",
        "sl": "llpauc.losses.softmax:SLLoss",
        "bsl": "llpauc.losses.softmax:BSLLoss",
        "psl": "llpauc.losses.softmax:PSLLoss",
        "sl_at_k": "llpauc.losses.user_softmax:SLAtKLoss",
        "talos": "llpauc.losses.user_softmax:TalosLoss",
        "adap_tau": "llpauc.losses.user_softmax:AdapTauLoss",
    },
)


def make_loss(name: str, **params: Any) -> Loss:
    """The loss of that name; raises `InputError` for an unknown name or parameter.

    >>> make_loss("llpauc", alpha=0.7, beta=0.1)
    LLPAUCLoss(alpha=0.7, beta=0.1, sharpness=5.0, gap_penalty=0.0, solver='sgda', \
neg_threshold_rate=2.0)
    """
    kind = LOSSES[name]
    accepted = options_of(kind)
    unknown = [param for param in params if param not in accepted]
    if unknown:
        choices = listing(accepted) or "none"
        raise InputError(f"loss {name!r} has no parameter {listing(unknown)}; it has: {choices}")
    missing = [
        param
        for param, option in accepted.items()
        if option.default is REQUIRED and param not in params
    ]
    if missing:
        raise InputError(f"loss {name!r} needs {listing(missing)}")
    return kind(**params)
