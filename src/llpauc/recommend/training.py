"""Training a recommender's model: once, or once more on all events, with one set of checkpoints."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llpauc.data.interactions import Interactions, Split
from llpauc.distributed import current_process_group
from llpauc.errors import InputError
from llpauc.models.embedding import EMBEDDING_MODELS, EmbeddingModel
from llpauc.models.sharded import ShardedMF
from llpauc.recommend.parameters import Plan
from llpauc.training import Diverged, Epoch, History, check_feasible
from llpauc.training.checkpoint import (
    Checkpoint,
    CheckpointFolder,
    CheckpointSettings,
    open_checkpoints,
)
from llpauc.training.loop import fit_stage
from llpauc.training.progress import Stage, arrays, fill_weights

_FIRST, _REFIT = "training", "refit"


@dataclass(frozen=True)
class Training:
    """What is to be trained, and who hears of it.

    Args:
        name: of the model.
        plan: its options, the loss and the loop's.
        refit: once validation has chosen the epoch, train anew on all events.
        hold_out: the share of events that was held out; it tells one training from another.
        on_batch, on_epoch: see `llpauc.training.fit`.
        on_trouble: gets the last good model and what it was trained on when training diverges.
    """

    name: str
    plan: Plan
    refit: bool
    hold_out: float
    on_batch: Callable[[int], None] | None
    on_epoch: Callable[[Epoch], None] | None
    on_trouble: Callable[[EmbeddingModel, Split], None]

    def settings(self) -> dict[str, Any]:
        """All that decides how training goes beside the events, by name."""
        own = {"model": self.name, "refit": self.refit, "hold_out": self.hold_out}
        plan = self.plan
        of_loss = {f"loss.{name}": value for name, value in plan.loss_parameters.items()}
        options = dataclasses.asdict(plan.embedding) | plan.fit.deciding()
        return {**own, **options, "loss": plan.loss, **of_loss}

    def new_model(self, split: Split) -> EmbeddingModel:
        if self.plan.fit.shard:
            return ShardedMF(
                split.train, self.plan.embedding, self.plan.fit.seed, current_process_group()
            )
        return EMBEDDING_MODELS[self.name](split.train, self.plan.embedding, self.plan.fit.seed)


def train(
    training: Training,
    split: Split,
    seen: Interactions,
    checkpoint: CheckpointSettings | CheckpointFolder | None,
) -> tuple[EmbeddingModel, Split, History]:
    """The model, what it was trained on, and how that went.

    Args:
        training: see `Training`.
        split: train, and perhaps valid.
        seen: what a refit trains on.
        checkpoint: see `llpauc.training.fit`.
    """
    with open_checkpoints(checkpoint) as folder:
        saved = None
        if folder is not None:
            saved = folder.load_newest(training.settings(), split, training.plan.fit.shard)
        outcome = _train(training, split, seen, folder, saved)
        if folder is not None and outcome[2].signal is None:
            folder.finish()
    return outcome


def _train(
    training: Training,
    split: Split,
    seen: Interactions,
    folder: CheckpointFolder | None,
    saved: Checkpoint | None,
) -> tuple[EmbeddingModel, Split, History]:
    again = saved if saved is not None and saved.meta.get("stage") == _REFIT else None
    if again is None:
        stage = None if folder is None else Stage(folder, _FIRST, saved)
        model, history = _train_once(training, split, stage)
    else:
        model, history = _chosen(training, split, again)
    if not training.refit or split.valid is None or history.signal is not None:
        return model, split, history
    everything = Split(seen, test=split.test)
    fit = dataclasses.replace(training.plan.fit, epochs=history.best_epoch)
    second = dataclasses.replace(
        training,
        plan=dataclasses.replace(training.plan, fit=fit),
        on_trouble=lambda *_: training.on_trouble(model, split),  # what validation chose is better
    )
    stage = None
    if folder is not None:
        weights = arrays(model.local_parameters())
        earlier = Checkpoint({"chosen": weights}, {"chosen": dataclasses.asdict(history)})
        stage = Stage(folder, _REFIT, again, earlier)
    whole, refitted = _train_once(second, everything, stage)
    epochs = history.epochs + refitted.epochs
    history = dataclasses.replace(history, epochs=epochs, signal=refitted.signal)
    if refitted.signal is not None:  # the model that validation chose is the better one
        return model, split, history
    return whole, everything, history


def _train_once(
    training: Training, split: Split, stage: Stage | None
) -> tuple[EmbeddingModel, History]:
    plan = training.plan
    check_feasible(split.train, plan.embedding.dimensions, plan.fit)
    model = training.new_model(split)
    try:
        history = fit_stage(
            model, plan.make_loss(), split, plan.fit, stage,
            on_batch=training.on_batch, on_epoch=training.on_epoch,
        )  # fmt: skip
    except Diverged:  # what was learnt before trouble came is kept
        training.on_trouble(model, split)
        raise
    return model, history


def _chosen(
    training: Training, split: Split, checkpoint: Checkpoint
) -> tuple[EmbeddingModel, History]:
    """The model that validation chose, from a checkpoint of its refit."""
    model = training.new_model(split)
    try:
        history = History.from_json(checkpoint.meta["chosen"])
        fill_weights(model.local_parameters(), checkpoint.tensors["chosen"])
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"the checkpoint does not fit this training: {error}") from None
    if training.on_epoch is not None:
        for epoch in history.epochs:
            training.on_epoch(epoch)
    return model, history
