"""Losses: LLPAUC and every rival behind one interface.

loss = LLPAUCLoss(alpha=0.7, beta=0.1)
loss(pos_scores, neg_scores, neg_mask)  # (B,), (B, N), bool (B, N) or None -> scalar
"""

from __future__ import annotations

import inspect
from typing import Any

from llpauc.errors import InputError, choose, listing
from llpauc.losses.base import Context, Diagnostics, Loss
from llpauc.losses.exact import exact_saddle, hard_llpauc
from llpauc.losses.fused import Settings, ValueAndGrads, Variables
from llpauc.losses.lambdaloss import (
    ARPLoss2,
    LambdaRankLoss,
    NDCGLoss1,
    NDCGLoss2,
    candidate_ranks,
    lambda_loss,
)
from llpauc.losses.minimax import attach, minimax_optimizer, minimax_parameter_groups
from llpauc.losses.objective import START, llpauc_objective
from llpauc.losses.pairwise import (
    BPRLoss,
    DNSLoss,
    SoftmaxVLoss,
    bpr_loss,
    dns_loss,
    softmax_v_loss,
)
from llpauc.losses.partial_auc import AUCLoss, LLPAUCLoss, OPAUCLoss, llpauc_value_and_grads
from llpauc.losses.pointwise import (
    BCELoss,
    CCLLoss,
    RCELoss,
    TCELoss,
    bce_loss,
    ccl_loss,
    rce_loss,
    tce_loss,
)
from llpauc.losses.softmax import (
    BSLLoss,
    PSLLoss,
    SCELoss,
    SLAtKLoss,
    SLLoss,
    bsl_loss,
    psl_loss,
    sce_loss,
    sl_at_k_loss,
    sl_loss,
    top_k_quantiles,
)
from llpauc.losses.suggest import Suggestion, suggest_alpha_beta

LOSSES: dict[str, type[Loss]] = {
    "llpauc": LLPAUCLoss,
    "opauc": OPAUCLoss,
    "auc": AUCLoss,
    "bpr": BPRLoss,
    "bce": BCELoss,
    "sce": SCELoss,
    "ccl": CCLLoss,
    "dns": DNSLoss,
    "softmax_v": SoftmaxVLoss,
    "tce": TCELoss,
    "rce": RCELoss,
    "lambdarank": LambdaRankLoss,
    "ndcg_loss1": NDCGLoss1,
    "ndcg_loss2": NDCGLoss2,
    "arp_loss2": ARPLoss2,
    "sl": SLLoss,
    "bsl": BSLLoss,
    "psl": PSLLoss,
    "sl_at_k": SLAtKLoss,
}


def make_loss(name: str, **params: Any) -> Loss:
    """The loss of that name; an unknown name or parameter is told what there is.

    >>> make_loss("llpauc", alpha=0.7, beta=0.1)
    LLPAUCLoss(alpha=0.7, beta=0.1, sharpness=5, gap_penalty=0, solver='sgda')
    """
    kind = choose(LOSSES, name, "loss")
    accepted = inspect.signature(kind).parameters if kind.__init__ is not Loss.__init__ else {}
    unknown = [param for param in params if param not in accepted]
    if unknown:
        choices = listing(accepted) or "none"
        raise InputError(f"loss {name!r} has no parameter {listing(unknown)}; it has: {choices}")
    missing = [
        param
        for param, spec in accepted.items()
        if spec.default is inspect.Parameter.empty and param not in params
    ]
    if missing:
        raise InputError(f"loss {name!r} needs {listing(missing)}")
    return kind(**params)


__all__ = [
    "ARPLoss2",
    "AUCLoss",
    "BCELoss",
    "BPRLoss",
    "BSLLoss",
    "CCLLoss",
    "Context",
    "DNSLoss",
    "Diagnostics",
    "LLPAUCLoss",
    "LOSSES",
    "LambdaRankLoss",
    "Loss",
    "NDCGLoss1",
    "NDCGLoss2",
    "OPAUCLoss",
    "PSLLoss",
    "RCELoss",
    "SCELoss",
    "SLAtKLoss",
    "SLLoss",
    "START",
    "Settings",
    "SoftmaxVLoss",
    "Suggestion",
    "TCELoss",
    "ValueAndGrads",
    "Variables",
    "attach",
    "bce_loss",
    "bpr_loss",
    "bsl_loss",
    "candidate_ranks",
    "ccl_loss",
    "dns_loss",
    "exact_saddle",
    "hard_llpauc",
    "lambda_loss",
    "llpauc_objective",
    "llpauc_value_and_grads",
    "make_loss",
    "minimax_optimizer",
    "minimax_parameter_groups",
    "psl_loss",
    "rce_loss",
    "sce_loss",
    "sl_at_k_loss",
    "sl_loss",
    "softmax_v_loss",
    "suggest_alpha_beta",
    "tce_loss",
    "top_k_quantiles",
]
