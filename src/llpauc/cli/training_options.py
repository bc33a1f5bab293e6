"""The options of everything that trains a model, and of its checkpoints."""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Gt, Le

from llpauc.cli.outputs import CHECKPOINT
from llpauc.options import Count, Fraction, NonNegative, Positive

if TYPE_CHECKING:
    from llpauc.training import CheckpointSettings


@dataclass(frozen=True)
class ModelOptions:
    """What to train, and how. What is not given is left to the model's and the loss's defaults.

    Args:
        model: mf, lightgcn, fism, popularity, recent_popularity, itemknn or ease (mf unless given)
        loss: llpauc, opauc, auc, bpr, bce, sce, ccl, dns, softmax_v, tce, rce, lambdarank,
            ndcg_loss1, ndcg_loss2, arp_loss2, sl, bsl, psl or sl_at_k (llpauc unless given)
        alpha: llpauc: share of the best positives that count, in (0, 1]; below 1 leaves noisy ones
            out (0.7 unless given)
        beta: llpauc, opauc: share of the hardest negatives that count, in (0, 1] (0.1 unless given)
        loss_options: further parameters of the loss, as NAME=VALUE,NAME=VALUE
        dimensions: width of the vectors (64 unless given)
        score: dot or cosine (what the loss is meant for unless given)
        temperature: divides the cosine (0.2 unless given)
        item_bias: one more number an item, added to its score
        init: initial vectors: random, or spectral (singular vectors of the user-item matrix, which
            need a lower learning rate) (random unless given)
        layers: graph layers of lightgcn (2 unless given)
        cold_users: users without a training event get the mean user's vector, or a random one as
            in the paper (mean unless given)
        epochs: most passes over the training events (100 unless given)
        batch_size: positives a step (128 unless given)
        negatives: negatives for each positive, or for a batch that shares them (100 unless given)
        sampler: uniform, uniform-with-positives (the paper's way), popularity, shared, in-batch
            or all-items
        lr: learning rate of Adam (0.001 unless given)
        weight_decay: pull of a batch's rows towards zero (0 unless given)
        valid_metric: what chooses the epoch (ndcg@20 unless given)
        valid_every: epochs between validations (1 unless given)
        patience: validations without a better value before training stops (5 unless given)
        propagation_interval: batches that share one propagation of lightgcn (1 unless given)
        device: cpu, or a torch device such as cuda (cpu unless given)
        regularization: ease: lambda (200 unless given)
        neighbours: itemknn: neighbours of an item (100 unless given)
        shrinkage: itemknn: distrust of items with few users (10 unless given)
        half_life: age at which an event counts half, in seconds where there are timestamps, else
            in events; unless given, recent_popularity chooses it on validation, and other models
            weigh all events alike
        shard: under torchrun, divide the rows of mf's tables among the processes
    """

    model: str | None = None
    loss: str | None = None
    alpha: Fraction | None = None
    beta: Fraction | None = None
    loss_options: str | None = None
    dimensions: Count | None = None
    score: Literal["dot", "cosine"] | None = None
    temperature: Positive | None = None
    item_bias: bool = False
    init: Literal["random", "spectral"] | None = None
    layers: Count | None = None
    cold_users: Literal["mean", "random"] | None = None
    epochs: Count | None = None
    batch_size: Count | None = None
    negatives: Count | None = None
    sampler: str | None = None
    lr: Positive | None = None
    weight_decay: NonNegative | None = None
    valid_metric: str | None = None
    valid_every: Count | None = None
    patience: Count | None = None
    propagation_interval: Count | None = None
    device: str | None = None
    regularization: Positive | None = None
    neighbours: Count | None = None
    shrinkage: NonNegative | None = None
    half_life: Annotated[float, Gt(0), Le(math.inf)] | None = None
    shard: bool = False

    def given(self) -> dict[str, Any]:
        """What was set, as parameters of a `Recommender`."""
        given = {k: v for k, v in asdict(self).items() if v is not None and v is not False}
        extra = _pairs(given.pop("loss_options", ""))
        return {**given, **extra}


@dataclass(frozen=True)
class CheckpointOptions:
    """How training is written down on its way, into OUT.checkpoint until OUT is there.

    Args:
        checkpoint_every: time between checkpoints, such as 30s, 5m or 2h; 0 writes one only at
            Ctrl-C and SIGTERM
        resume: go on from the last checkpoint, to the very bits of a training that never stopped
        restart: delete the checkpoint that is there and begin anew
    """

    checkpoint_every: str = "5m"
    resume: bool = False
    restart: bool = False

    def beside(self, out: str) -> CheckpointSettings:
        from llpauc.errors import InputError
        from llpauc.training import CheckpointSettings

        if self.resume and self.restart:
            raise InputError("--resume goes on and --restart begins anew; give one of them")
        return CheckpointSettings(
            f"{Path(out)}{CHECKPOINT}",
            _seconds(self.checkpoint_every),
            "resume" if self.resume else "restart" if self.restart else "refuse",
        )


_UNITS = {"s": 1, "m": 60, "h": 3600}


def _seconds(text: str) -> float:
    """
    >>> _seconds("30s"), _seconds("1.5m"), _seconds("0")
    (30.0, 90.0, 0.0)
    """
    from llpauc.errors import InputError

    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text.strip().lower())
    if not found and text.strip() != "0":
        raise InputError(f"--checkpoint-every wants a time such as 30s, 5m or 2h, or 0: {text!r}")
    return float(found[1]) * _UNITS[found[2]] if found else 0.0


def _pairs(text: str) -> dict[str, Any]:
    """NAME=VALUE,NAME=VALUE; a value is a number where it reads as one."""
    from llpauc.errors import InputError

    pairs: dict[str, Any] = {}
    for part in filter(None, text.split(",")):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not equals or not name:
            raise InputError(f"--loss-options wants NAME=VALUE, got {part!r}")
        pairs[name] = value
        for number in (int, float):
            try:
                pairs[name] = number(value)
                break
            except ValueError:
                continue
    return pairs
