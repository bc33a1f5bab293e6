"""The facade: fit on a file, recommend by outside ids, save, load.

recommender = Recommender(model="mf", loss="llpauc", alpha=0.7, beta=0.1).fit("events.csv")
ids, scores = recommender.recommend(["ann", "bob"], k=20)
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from llpauc.data.histories import before, join
from llpauc.data.interactions import IdMap, Indices, Interactions, Split
from llpauc.data.recency import check_ages_known, choose_recency
from llpauc.data.splits import hold_out
from llpauc.errors import InputError, check_at_least, choose
from llpauc.evaluation.scorer import ByHistory, Constant, FactorScorer, Scorer, Scores, item_counts
from llpauc.models import BASELINES
from llpauc.models.embedding import EmbeddingModel
from llpauc.models.fold_in import HistoryMap, learn_history_map
from llpauc.recommend.fitted import Fitted, held_out_of
from llpauc.recommend.parameters import MODELS, Plan, check_baseline, config_toml, plan
from llpauc.recommend.sources import as_split
from llpauc.recommend.training import Training, train
from llpauc.recommend.update import (
    EPOCHS,
    Arrivals,
    arrivals,
    check_ages,
    go_on,
    history_map,
    start,
)
from llpauc.storage import run_folder
from llpauc.storage.environment import environment_json
from llpauc.training import CheckpointFolder, CheckpointSettings, Epoch, History
from llpauc.training.loop import without_empty_valid


class Recommender:
    """A model, a loss and how to train it, behind fit and recommend.

    Args:
        model: mf, lightgcn, itemsum, popularity, recent, itemknn or ease.
        loss: a name of `llpauc.losses.LOSSES`; models without training ignore it.
        hold_out: share of each user's events that choose the epoch when `fit` is given no
            validation events, in [0, 1); 0 trains on everything for all epochs.
        refit: once validation has chosen the epoch, train anew on all events, those held out or
            given for validation too, for as many epochs.
        parameters: fields of `EmbeddingOptions` and `TrainingOptions`, the loss's own parameters
            (llpauc: alpha 0.7 and beta 0.1 unless given), or the baseline's. See
            `llpauc.recommend.parameters.plan` for who gets which.

    >>> data = Interactions.of(["a", "a", "b", "b", "c"], ["x", "y", "x", "z", "x"])
    >>> ids, scores = Recommender(model="popularity").fit(data).recommend(["c", "new"], k=2)
    >>> ids.tolist()
    [['y', 'z'], ['x', 'y']]
    """

    def __init__(
        self,
        model: str = "mf",
        loss: str = "llpauc",
        *,
        hold_out: float = 0.1,
        refit: bool = False,
        **parameters: Any,
    ) -> None:
        self.model, self.loss, self.hold_out, self.refit = model, loss, hold_out, refit
        self.parameters = parameters
        self._check()
        self.fitted: Fitted | None = None
        self.fitted_params: dict[str, Any] = {}  # those of `fit`, whatever set_params does later
        self.history: History | None = None

    _OWN = ("model", "loss", "hold_out", "refit")  # all other parameters are the model's

    # --- parameters, as scikit-learn has them ---------------------------------------------------

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in self._OWN}
        return {**own, **self.parameters}

    def set_params(self, **params: Any) -> Recommender:
        checked = Recommender(**{**self.get_params(), **params})  # refused: nothing has changed
        for name in (*self._OWN, "parameters"):
            setattr(self, name, getattr(checked, name))
        return self

    def __repr__(self) -> str:
        told = ", ".join(f"{name}={value!r}" for name, value in self.get_params().items())
        return f"Recommender({told})"

    def _check(self) -> None:
        choose(dict.fromkeys(MODELS), self.model, "model")
        if not 0 <= self.hold_out < 1:
            raise InputError(f"hold_out must be in [0, 1), got {self.hold_out!r}")
        if self.model in BASELINES:
            check_baseline(self.model, self.parameters)
        elif self.plan().fit.shard and self.model != "mf":
            raise InputError(f"shard is for mf; {self.model} needs the whole tables everywhere")

    def plan(self) -> Plan:
        """Who gets which parameter, defaults filled in; for models that are trained."""
        return plan(self.loss, self.parameters)

    # --- training -------------------------------------------------------------------------------

    def fit(
        self,
        data: Any,
        valid: Any = None,
        *,
        on_batch: Callable[[int], None] | None = None,
        on_epoch: Callable[[Epoch], None] | None = None,
        checkpoint: CheckpointSettings | CheckpointFolder | None = None,
    ) -> Recommender:
        """Train.

        Args:
            data: a path, a pandas, Polars or Arrow frame, a scipy CSR matrix, `Interactions`, or
                a `Split` (whose test part is not looked at).
            valid: events that choose the epoch, of any of these kinds.
            on_batch, on_epoch, checkpoint: see `llpauc.training.fit`.

        Raises:
            llpauc.training.Diverged: on NaN; the recommender then has the last good weights.

        With `shard`, of several processes the first one is fitted, the others stay unfitted.
        """
        split = without_empty_valid(as_split(data, valid))
        if self.parameters.get("half_life") is not None:
            check_ages_known(before(split, "test"))
        parts = before(split, "test", "all" if self.refit else "train")
        if self.model in BASELINES:
            given = {name: value for name, value in self.parameters.items() if value is not None}
            if self.model == "recent" and "half_life" not in given:
                chosen = choose_recency(before(split, "test"))
                given |= {"half_life": chosen.half_life, "by": chosen.by}
            made = _fit_baseline(self.model, parts, given)
            self._keep(made.holding_out(held_out_of(split), made.histories))
            self.fitted_params |= given
            return self
        plan, seen = self.plan(), join(parts)
        if split.valid is None and self.hold_out:
            with suppress(InputError):  # too little to share: all epochs on all events
                split = hold_out(split, self.hold_out, plan.fit.seed)

        def keep(model: EmbeddingModel, trained: Split) -> None:  # what was learnt before trouble
            with np.errstate(all="ignore"):  # good may still be huge; the error says the rest
                self._keep(_fitted_embedding(model, trained, seen))

        training = Training(
            self.model, plan, self.refit, self.hold_out, on_batch, on_epoch, on_trouble=keep
        )
        model, trained, history = train(training, split, seen, checkpoint)
        return self._keep(_fitted_embedding(model, trained, seen), history)

    def update(
        self,
        events: Any,
        *,
        epochs: int = EPOCHS,
        lr: float | None = None,
        weight_decay: float | None = None,
        seed: int | None = None,
        device: str | None = None,
        on_batch: Callable[[int], None] | None = None,
        on_epoch: Callable[[Epoch], None] | None = None,
    ) -> Arrivals:
        """Go on from here with new events; ids may be new. See `llpauc.recommend.update`.

        Models without training are fitted anew, on the old pairs and the new ones.

        Args:
            events: of any kind that `fit` takes; pairs the model has already are passed over.
            epochs: passes over all pairs, old and new; 0 gives new ids a start and trains nothing.
            lr, weight_decay, seed, device: those of the last `fit` unless given.
            on_batch, on_epoch: see `llpauc.training.fit`.

        Returns:
            What was new. Where no pair was, nothing has changed.

        Raises:
            llpauc.training.Diverged: on NaN; the recommender is then as it was before.
        """
        check_at_least("epochs", epochs, 0)
        fitted, params = self.require_fitted(), dict(self.fitted_params)
        check_ages(params)
        came = arrivals(fitted, join(before(as_split(events), "test")))
        if not len(came.new):
            return came
        name, seen, history = params["model"], came.all, None
        own = {k: v for k, v in params.items() if k not in self._OWN and v is not None}
        if name in BASELINES:
            self.fitted = _fit_baseline(name, [seen], {k: own[k] for k in own if k != "by"})
        else:
            plans = plan(params["loss"], own)
            begin = start(fitted, came, name, plans.embedding)
            if epochs:
                changed = {"lr": lr, "weight_decay": weight_decay, "seed": seed, "device": device}
                model, history = go_on(
                    begin, seen, name, plans, {"epochs": epochs, **changed}, on_batch, on_epoch
                )
                after = _fitted_embedding(model, Split(seen), seen)
                assert after is not None  # one process has the whole model
                self.fitted = after
            else:
                by_items = history_map(begin, fitted, seen)
                self.fitted = _fitted_vectors(begin.users, begin.items, by_items, seen, seen)
        self.fitted = self.fitted.holding_out(fitted.held_out, self.fitted.histories)
        self.history = history
        return came

    def _keep(self, fitted: Fitted | None, history: History | None = None) -> Recommender:
        """All at once: a fit that is refused leaves the one before whole."""
        self.fitted, self.history, self.fitted_params = fitted, history, self.get_params()
        return self

    # --- asking ---------------------------------------------------------------------------------

    def recommend(
        self, user_ids: Iterable[Any], k: int = 20, *, exclude_seen: bool = True
    ) -> tuple[npt.NDArray[Any], Scores]:
        """The best k items of each user: (n, k) outside ids and (n, k) scores, best first.

        Unknown users get what a user without history gets. Where fewer than k items are left, the
        rest is None with score -inf.
        """
        fitted = self.require_fitted()
        rows = fitted.user_ids.indices(user_ids)
        k = check_at_least("k", k, 1)
        return _answer(fitted, *fitted.rank_rows(rows, k, exclude_seen), k)

    def fold_in(
        self, item_ids: Iterable[Any], k: int = 20, *, exclude_seen: bool = True
    ) -> tuple[npt.NDArray[Any], Scores]:
        """The best k items for somebody new who has these: (k,) ids and (k,) scores, filled up
        as `recommend` does."""
        fitted = self.require_fitted()
        k = check_at_least("k", k, 1)
        ranked = fitted.rank_histories(fitted.history(item_ids), k, exclude_seen)
        ids, scores = _answer(fitted, *ranked, k)
        return ids[0], scores[0]

    def similar_items(self, item_id: Any, k: int = 20) -> tuple[npt.NDArray[Any], Scores]:
        """The k items most like this one, (k,) ids and scores: by the cosine of their vectors; of
        a model without vectors, what it recommends to somebody with this item alone."""
        fitted = self.require_fitted()
        k = check_at_least("k", k, 1)
        history = fitted.history([item_id])
        units = self.item_units()
        if units is not None:
            like = Constant(units @ units[history.indices[0]])
            fitted = dataclasses.replace(fitted, by_items=like)
        ids, scores = _answer(fitted, *fitted.rank_histories(history, k, exclude_seen=True), k)
        return ids[0], scores[0]

    def item_units(self) -> Scores | None:
        """The items' vectors at length one, rows as in the id map; None of a model without."""
        scorer = self.require_fitted().scorer
        if not isinstance(scorer, FactorScorer):
            return None
        vectors = scorer.item_vectors
        if self.fitted_params.get("item_bias"):
            vectors = vectors[:, :-1]  # the bias says how popular an item is, not what it is
        units: Scores = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return units

    def scorer(self) -> Scorer:
        """What ranks the known users: for `llpauc.evaluation.full_ranking.evaluate`."""
        return self.require_fitted().scorer

    def require_fitted(self) -> Fitted:
        """What was fitted; an error that says so where nothing was."""
        if self.fitted is None:
            raise InputError("this recommender is not fitted yet; call fit(data) first")
        return self.fitted

    # --- keeping --------------------------------------------------------------------------------

    def save(self, folder: str | os.PathLike[str], **meta: Any) -> Path:
        """Write a run folder, whole or not at all; `meta` goes into its meta.json."""
        fitted, made = self.require_fitted(), Recommender(**self.fitted_params)
        epochs = self.history.epochs if self.history is not None else ()
        lines = [dataclasses.asdict(epoch) for epoch in epochs]
        # Apart: all else about an epoch is the same whenever and wherever it is trained again.
        timings = {"seconds": [line.pop("seconds") for line in lines]}
        plan = None if made.model in BASELINES else dataclasses.asdict(made.plan())
        known = {"params": self.fitted_params, **meta}
        extra = {"metrics.jsonl": "".join(_line(epoch) for epoch in lines),
                 "timings.json": json.dumps(timings) + "\n",
                 "environment.json": environment_json(),
                 "config.toml": config_toml(self.fitted_params, plan)}  # fmt: skip
        ids = fitted.user_ids.arrow(), fitted.item_ids.arrow()
        return run_folder.save(run_folder.SavedRun(fitted.tensors(), *ids, known, extra), folder)

    @staticmethod
    def load(folder: str | os.PathLike[str]) -> Recommender:
        """Read a run folder; a file that does not match the manifest is refused by name."""
        return Recommender.of_artifact(run_folder.load(folder), folder)

    @staticmethod
    def of_artifact(artifact: run_folder.SavedRun, folder: str | os.PathLike[str]) -> Recommender:
        """What was read from `folder`, which is named where it does not fit together."""
        params = artifact.meta.get("params")
        if not isinstance(params, dict):
            raise InputError(f"{folder}: meta.json has no params; this is no recommender")
        try:
            recommender = Recommender(**params)
            recommender.fitted = Fitted.from_tensors(
                artifact.tensors, IdMap.of(artifact.user_ids), IdMap.of(artifact.item_ids)
            )
        except (InputError, TypeError) as error:
            raise InputError(f"{folder}: {error}") from None
        recommender.fitted_params = params
        return recommender


def _line(epoch: dict[str, Any]) -> str:
    """Sorted: what went through a checkpoint has lost its order, and is to have the same bytes."""
    return json.dumps(epoch, sort_keys=True) + "\n"


def outside(ids: IdMap, rows: Indices) -> npt.NDArray[Any]:
    """Outside ids of rows; None where a row is -1."""
    there = rows >= 0
    if there.all():
        return ids.ids(rows)
    out = np.full(rows.shape, None, dtype=object)
    out[there] = ids.ids(rows[there])
    return out


def _answer(
    fitted: Fitted, items: Indices, scores: Scores, k: int
) -> tuple[npt.NDArray[Any], Scores]:
    """Outside ids and scores, k wide even where there are fewer items."""
    wider = ((0, 0), (0, k - items.shape[1]))
    items = np.pad(items, wider, constant_values=-1)
    return outside(fitted.item_ids, items), np.pad(scores, wider, constant_values=-np.inf)


def _fit_baseline(name: str, parts: Sequence[Interactions], given: dict[str, Any]) -> Fitted:
    train = join(parts)
    scorer = BASELINES[name](parts if name == "recent" else train, **given)
    if isinstance(scorer, ByHistory):
        return Fitted.of(train, scorer, scorer.model, item_counts(train))
    assert isinstance(scorer, Constant)
    return Fitted.of(train, scorer, scorer, scorer.scores)


def _fitted_embedding(model: EmbeddingModel, split: Split, seen: Interactions) -> Fitted | None:
    """`seen` is train and what was held out of it: nobody wants recommended what they have."""
    users, items = model.vectors()
    if not len(users):  # the first of several processes has them
        return None
    if model.name == "itemsum":
        cosine = model.options.score == "cosine"
        rows = model.user_table.detach().cpu().numpy()
        base = np.zeros(rows.shape[1], np.float32)
        by_items = HistoryMap(rows, base, items, model.scale if cosine else None)
    else:
        by_items = learn_history_map(split.train.matrix, users, items)
    fitted = _fitted_vectors(users, items, by_items, seen, split.train)
    return fitted.holding_out(held_out_of(split), split.train.matrix)


def _fitted_vectors(
    users: Scores, items: Scores, by_items: HistoryMap, seen: Interactions, train: Interactions
) -> Fitted:
    """The vectors as they rank, and the mean user's for somebody of whom nothing is known."""
    warm = np.diff(train.matrix.indptr) > 0
    mean = users[warm].mean(axis=0, dtype=np.float64).astype(np.float32)
    return Fitted.of(seen, FactorScorer(users, by_items.item_vectors), by_items, items @ mean)
