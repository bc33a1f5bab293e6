"""Models with vectors: how they are trained, extended with new events, saved and loaded.

A run folder holds the vectors as they rank, and a map from histories to user vectors. It holds
neither the state of Adam, nor the variables of the loss, nor the times and the order of the events.
Training on new events therefore starts Adam and the loss again, from these vectors:

| user or item | initial vector |
|---|---|
| known | the saved vector |
| new user | folded in from their known items; without any, the mean user |
| new item | folded in from its known users; without any, the mean item |

`llpauc.models.fold_in` learns both maps, the second with users and items exchanged.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import torch

from llpauc.data.interactions import Interactions, Split
from llpauc.distributed import current_process_group
from llpauc.errors import InputError
from llpauc.evaluation.scorer import Scorer, Scores
from llpauc.models.base import (
    Arrays,
    FitData,
    FitResult,
    Model,
    NewEvents,
    Training,
    Vectors,
    check_shape,
)
from llpauc.models.fold_in import HistoryMap, learn_history_map
from llpauc.models.network import EmbeddingNetwork
from llpauc.training import Diverged, History, TrainingOptions, check_feasible
from llpauc.training.checkpoint import Checkpoint, CheckpointFolder, open_checkpoints
from llpauc.training.loop import fit_stage
from llpauc.training.progress import Stage, arrays, fill_weights

_FIRST, _REFIT = "training", "refit"  # the two stages that share a folder of checkpoints


class EmbeddingModel(Model):
    """A model whose scores are inner products of user and item vectors.

    Subclasses set `Network`, the trainable parameters behind the vectors.
    """

    Network: ClassVar[type[EmbeddingNetwork]]

    # --- fitting --------------------------------------------------------------------------------

    def fit(self, data: FitData, training: Training | None = None) -> FitResult:
        """Train, and with `data.refit` train again on all events for the chosen number of epochs.

        Raises:
            llpauc.training.Diverged: on NaN; the model then has the last good weights.
        """
        if training is None:
            raise InputError(f"{self.name} is trained with a loss; use llpauc.Recommender")
        with open_checkpoints(training.checkpoint) as folder:
            saved = None
            if folder is not None:
                saved = folder.load_newest(dict(training.settings), data.split)
            result = self._train(data, training, folder, saved)
            if folder is not None and result.history is not None and result.history.signal is None:
                folder.finish()
        return result

    def _train(
        self,
        data: FitData,
        training: Training,
        folder: CheckpointFolder | None,
        saved: Checkpoint | None,
    ) -> FitResult:
        # First stage: validation chooses the epoch. A checkpoint of the refit holds its outcome.
        split, options = data.split, training.options
        in_refit = saved is not None and saved.meta.get("stage") == _REFIT
        refit_checkpoint = saved if in_refit else None
        if refit_checkpoint is None:
            stage = None if folder is None else Stage(folder, _FIRST, saved)
            network, history = self._train_stage(split, training, options, stage)
        else:
            network, history = self._first_stage_of(refit_checkpoint, split, training)
        if not data.refit or split.valid is None or history.signal is not None:
            result = self._finish(network, split.train, history)
            if history.signal is None:
                self._on_chosen(training)
            return result

        # Second stage: the same number of epochs on all events. Where it diverges or is
        # interrupted, the network of the first stage is the result.
        stage = None
        if folder is not None:
            weights = arrays(network.weights())
            outcome = Checkpoint({"chosen": weights}, {"chosen": dataclasses.asdict(history)})
            stage = Stage(folder, _REFIT, refit_checkpoint, outcome)
        options = dataclasses.replace(options, epochs=history.best_epoch)
        try:
            refit_network, refitted = self._train_stage(Split(data.all), training, options, stage)
        except Diverged:
            self._finish(network, split.train)
            raise
        epochs = history.epochs + refitted.epochs
        history = dataclasses.replace(history, epochs=epochs, signal=refitted.signal)
        if refitted.signal is not None:
            return self._finish(network, split.train, history)
        if training.on_chosen is not None:
            self._finish(network, split.train)
            self._on_chosen(training)
        return self._finish(refit_network, data.all, history)

    def _on_chosen(self, training: Training) -> None:
        if training.on_chosen is not None and self.is_fitted:
            training.on_chosen()

    def _train_stage(
        self,
        split: Split,
        training: Training,
        options: TrainingOptions,
        stage: Stage | None,
    ) -> tuple[EmbeddingNetwork, History]:
        check_feasible(split.train, self.options.dimensions, options)
        network = self.new_network(split.train, options)
        try:
            history = fit_stage(
                network, training.make_loss(), split, options, stage,
                on_batch=training.on_batch, on_epoch=training.on_epoch,
            )  # fmt: skip
        except Diverged:
            self._finish(network, split.train)
            raise
        return network, history

    def _first_stage_of(
        self, refit: Checkpoint, split: Split, training: Training
    ) -> tuple[EmbeddingNetwork, History]:
        """The network that validation chose, from a checkpoint of the refit."""
        network = self.new_network(split.train, training.options)
        try:
            history = History.from_json(refit.meta["chosen"])
            fill_weights(network.weights(), refit.tensors["chosen"])
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"the checkpoint does not fit this training: {error}") from None
        if training.on_epoch is not None:
            for epoch in history.epochs:
                training.on_epoch(epoch)
        return network, history

    def new_network(self, train: Interactions, options: TrainingOptions) -> EmbeddingNetwork:
        """The network with its initial parameters."""
        return self.Network(train, self.options, options.seed)

    def _finish(
        self, network: EmbeddingNetwork, train: Interactions, history: History | None = None
    ) -> FitResult:
        """Take over the vectors of a network that was trained on `train`, in the first process."""
        if current_process_group().is_first:
            users, items = network.vectors()
            with np.errstate(all="ignore"):  # weights before divergence may be very large
                history_map = self._learned_history_map(network, train, users, items)
                self.set_vectors(users, items, history_map, train)
        return FitResult(train, history)

    def _learned_history_map(
        self, network: EmbeddingNetwork, train: Interactions, users: Scores, items: Scores
    ) -> HistoryMap:
        return learn_history_map(train.positives, users, items)

    def set_vectors(
        self, users: Scores, items: Scores, history_map: HistoryMap, train: Interactions
    ) -> None:
        """Take over vectors; a user without history gets the scores of the mean warm user."""
        warm = np.diff(train.positives.indptr) > 0
        self.fallback = items @ _mean(users[warm])
        self.vectors = Vectors(users, items, history_map)

    @classmethod
    def from_vectors(
        cls,
        users: Scores,
        items: Scores,
        history_map: HistoryMap,
        fallback: Scores,
        options: Any = None,
    ) -> Self:
        """A fitted model from vectors that were trained elsewhere."""
        model = cls(cls.Options(dimensions=items.shape[1]) if options is None else options)
        model.vectors, model.fallback = Vectors(users, items, history_map), fallback
        return model

    # --- scoring --------------------------------------------------------------------------------

    def scorer(self, histories: Any) -> Scorer:
        return self._known_vectors()

    def scores_of(self, histories: Any) -> Scores:
        return self._known_vectors().history_map.scores_of(histories)

    def _known_vectors(self) -> Vectors:
        assert self.vectors is not None, "the model is not fitted"
        return self.vectors

    def item_units(self) -> Scores | None:
        """(n_items, d) item vectors at length one, without the bias."""
        vectors = self._known_vectors().item_vectors[:, : self.options.dimensions]
        units: Scores = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return units

    # --- new events -----------------------------------------------------------------------------

    def extend(self, new: NewEvents, training: Training | None = None) -> tuple[Model, FitResult]:
        users, items = self._extended_vectors(new)
        model = type(self)(self.options)
        if training is None:
            history_map = self._extended_history_map(new, users, items)
            model.set_vectors(users, items, history_map, new.all)
            return model, FitResult(new.all)
        check_feasible(new.all, self.options.dimensions, training.options)
        network = self.resumed_network(new, users, items)
        history = fit_stage(
            network, training.make_loss(), Split(new.all), training.options, None,
            on_batch=training.on_batch, on_epoch=training.on_epoch,
        )  # fmt: skip
        return model, model._finish(network, new.all, history)

    def _extended_vectors(self, new: NewEvents) -> tuple[Scores, Scores]:
        """Vectors of known and new users and items, as the table above says."""
        known = self._known_vectors()
        n_users, n_items = len(known.user_vectors), len(known.item_vectors)
        have, had = new.all.positives, new.old.positives[:n_users, :n_items]
        users = grown(known.user_vectors, new.all.n_users)
        items = grown(known.item_vectors, new.all.n_items)

        # New users, by the items that the run knows
        warm_users, warm_items = np.diff(had.indptr) > 0, np.diff(had.tocsc().indptr) > 0
        histories = have[new.new_users][:, :n_items]
        folded = known.history_map.vectors_of(histories)
        folded[histories @ warm_items == 0] = _mean(known.user_vectors[warm_users])
        if self.options.score == "cosine":
            folded = _as_long_as(folded, known.user_vectors, self.options.dimensions)
        users[new.new_users] = folded

        # New items, by the users that the run knows. A mean vector is short, and stays short: a
        # longer one would score like a popular item.
        item_map = learn_history_map(had.T.tocsr(), known.item_vectors, known.user_vectors)
        items[new.new_items] = item_map.vectors_of(have.T.tocsr()[new.new_items][:, :n_users])
        return users, items

    def _extended_history_map(self, new: NewEvents, users: Scores, items: Scores) -> HistoryMap:
        return learn_history_map(new.all.positives, users, items)

    def resumed_network(self, new: NewEvents, users: Scores, items: Scores) -> EmbeddingNetwork:
        """A network with these vectors, to be trained on all events.

        A cosine ignores the lengths of its rows: they start at length 1, those of new items too.
        The scores of known users and items stay as they are, but for fism, whose users change with
        their histories.
        """
        # The initial parameters are overwritten: take those that cost nothing to compute.
        options = dataclasses.replace(self.options, init="random")
        network = self.Network(new.all, options, seed=0)
        tables = self._parameters(network, new, users, items)
        with torch.no_grad():
            for parameter, table in zip(
                (network.user_table, network.item_table), tables, strict=True
            ):
                parameter.copy_(torch.from_numpy(np.ascontiguousarray(table)))
        return network

    def _parameters(
        self, network: EmbeddingNetwork, new: NewEvents, users: Scores, items: Scores
    ) -> tuple[Scores, Scores]:
        """The user and item tables whose vectors are `users` and `items`."""
        return users[:, : self.options.dimensions] / np.float32(network.scale), items

    # --- saving ---------------------------------------------------------------------------------

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        vectors = self._known_vectors()
        by_history = vectors.history_map
        length = np.array([] if by_history.length is None else [by_history.length], np.float32)
        return {
            **super().arrays(),
            "user_vectors": vectors.user_vectors,
            "item_vectors": vectors.item_vectors,
            "history_rows": by_history.history_rows,
            "history_base": by_history.base,
            "history_length": length,
        }

    def load_arrays(self, arrays: Arrays, n_users: int, n_items: int) -> None:
        super().load_arrays(arrays, n_users, n_items)
        users, items = arrays["user_vectors"], arrays["item_vectors"]
        check_shape("user_vectors", users, (n_users, *users.shape[1:]))
        check_shape("item_vectors", items, (n_items, *items.shape[1:]))
        rows, base, length = (arrays[f"history_{name}"] for name in ("rows", "base", "length"))
        check_shape("history_rows", rows, (n_items, *base.shape))
        history_map = HistoryMap(rows, base, items, float(length[0]) if len(length) else None)
        self.vectors = Vectors(users, history_map.item_vectors, history_map)


def grown(table: Scores, n: int) -> Scores:
    """The table with zero rows appended, up to n rows."""
    out = np.zeros((n, table.shape[1]), np.float32)
    out[: len(table)] = table
    return out


def _mean(rows: Scores) -> Scores:
    mean: Scores = rows.mean(axis=0, dtype=np.float64).astype(np.float32)
    return mean


def _as_long_as(rows: Scores, known: Scores, width: int) -> Scores:
    """The first `width` columns scaled to the median length of the known ones; a bias stays."""
    out = rows.copy()
    length, lengths = (np.linalg.norm(t[:, :width], axis=1, keepdims=True) for t in (known, rows))
    out[:, :width] *= np.median(length) / np.maximum(lengths, 1e-12)
    return out
