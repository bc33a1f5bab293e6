"""Losses: LLPAUC and its rivals behind one interface.

loss = LLPAUCLoss(alpha=0.7, beta=0.1)
loss(pos_scores, neg_scores, neg_mask)  # (B,), (B, N), bool (B, N) or None -> scalar

Everything but `LOSSES` and `make_loss` is imported on first use, so that listing the names of the
losses does not import torch.
"""

from typing import TYPE_CHECKING

from llpauc.losses.registry import LOSSES, make_loss
from llpauc.options import lazy_exports

if TYPE_CHECKING:
    from llpauc.losses.base import *
    from llpauc.losses.kernels import Kernel, KernelResult, RowKernel
    from llpauc.losses.lambdaloss import *
    from llpauc.losses.minimax import *
    from llpauc.losses.objective import *
    from llpauc.losses.pairwise import *
    from llpauc.losses.partial_auc import *
    from llpauc.losses.pointwise import *
    from llpauc.losses.softmax import *
    from llpauc.losses.suggest import *
    from llpauc.losses.user_softmax import *

_NAMES = {
    "base": "Context Diagnostics Loss row_mean row_sum",
    "kernels": "Kernel KernelResult RowKernel",
    "lambdaloss": "ARPLoss2 LambdaRankLoss NDCGLoss1 NDCGLoss2 candidate_ranks lambda_loss",
    "minimax": "attach minimax_optimizer minimax_parameter_groups",
    "objective": "INITIAL_VARIABLES Settings Variables exact_saddle hard_llpauc llpauc_objective",
    "pairwise": "BPRLoss DNSLoss SoftmaxVLoss bpr_loss dns_loss softmax_v_loss",
    "partial_auc": "AUCLoss LLPAUCLoss OPAUCLoss",
    "pointwise": "BCELoss CCLLoss RCELoss TCELoss bce_loss ccl_loss rce_loss tce_loss",
    "softmax": "BSLLoss PSLLoss SCELoss SLLoss bsl_loss psl_loss sce_loss sl_loss",
    "suggest": "Suggestion suggest_alpha_beta",
    "user_softmax": "AdapTauLoss SLAtKLoss TalosLoss adap_tau_loss sl_at_k_loss talos_loss"
    " top_k_quantiles",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = ["LOSSES", "make_loss", *_MODULES]
__getattr__ = lazy_exports(__name__, _MODULES)
