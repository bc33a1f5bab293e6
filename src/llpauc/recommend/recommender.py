"""The facade: fit on events, recommend by ids, update, save and load.

recommender = Recommender(model="mf", loss="llpauc", alpha=0.7, beta=0.1).fit("events.csv")
ids, scores = recommender.recommend(["ann", "bob"], k=20)
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any
from warnings import warn

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from llpauc.data.catalogue import Catalogue, read_catalogue
from llpauc.data.columns import Column
from llpauc.data.features import feature_names, item_features
from llpauc.data.ids import IdMap, Indices, as_id_text
from llpauc.data.interactions import EventRules, Interactions, Split, before, join
from llpauc.data.recency import check_ages_known
from llpauc.data.splits import split_rule
from llpauc.distributed import current_process_group
from llpauc.errors import InputError, check_at_least, choose, listing
from llpauc.evaluation.scorer import Constant, Scorer, Scores
from llpauc.models.base import FitData, Model, NewEvents, Training
from llpauc.models.cold_items import choose_boost
from llpauc.models.registry import MODELS, trained_models
from llpauc.progress import progress
from llpauc.recommend.fitted import Fitted, ids_or_none
from llpauc.recommend.lists import hidden_items
from llpauc.recommend.parameters import Plan, config_toml, current_names, foreign_options, plan
from llpauc.recommend.recipes import RECIPES, with_loss, with_model
from llpauc.recommend.sources import as_split
from llpauc.recommend.update import EPOCHS, check_no_half_life, new_events
from llpauc.storage import run_folder
from llpauc.storage.atomic import writer_lock
from llpauc.storage.environment import environment_json
from llpauc.training import CheckpointFolder, CheckpointSettings, Diverged, Epoch, History
from llpauc.training.loop import without_empty_valid

log = logging.getLogger(__name__)
Lists = tuple[npt.NDArray[Any], Scores]


class Recommender:
    """A model, a loss and training options, behind `fit` and `recommend`.

    Args:
        model: a name of `llpauc.models.MODELS`; by default that of the recipe.
        loss: a name of `llpauc.losses.LOSSES`; by default that of the recipe. Models without
            training have none.
        recipe: a name of `llpauc.recommend.recipes.RECIPES`, whose settings are used where none
            are given: auto (good for the data), paper (as in the paper), or none (the defaults of
            the options). Models without training have no recipe.
        hold_out: fraction of the events that choose the epoch where `fit` is given no validation
            events, in [0, 1); 0 trains all epochs on all events.
        how: which events are held out, a name of `llpauc.data.SPLITS`: by default the last ones
            where there are timestamps.
        refit: train again on all events, including those of validation, for the number of epochs
            that validation has chosen; by default as the recipe says.
        parameters: options of the model, of training (`TrainingOptions`) and of the loss. See
            `llpauc.recommend.parameters.plan`.

    >>> data = Interactions.of(["a", "a", "b", "b", "c"], ["x", "y", "x", "z", "x"])
    >>> ids, scores = Recommender(model="popularity").fit(data).recommend(["c", "new"], k=2)
    >>> ids.tolist()
    [['y', 'z'], ['x', 'y']]
    """

    _FACADE = ("model", "loss", "recipe", "hold_out", "how", "refit")  # others are in `parameters`

    def __init__(
        self,
        model: str | None = None,
        loss: str | None = None,
        *,
        recipe: str = "auto",
        hold_out: float = 0.1,
        how: str = "auto",
        refit: bool | None = None,
        **parameters: Any,
    ) -> None:
        self.model, self.loss, self.recipe, self.how = model, loss, recipe, how
        self.hold_out, self.refit, self.parameters = hold_out, refit, parameters
        choose(RECIPES, recipe, "recipe")
        if recipe == "none":
            self.model, self.refit = model or "mf", bool(refit)
        if self.model is not None and not MODELS[self.model].trained:
            for name, value in (("loss", loss), ("recipe", recipe)):
                if value not in (None, "auto", "none"):
                    raise InputError(
                        f"{model} has no {name}, got {name}={value!r}; leave it out, or choose a"
                        f" trained model: {listing(trained_models())}"
                    )
        elif recipe == "none":
            self.loss = loss or "llpauc"
        if not 0 <= hold_out < 1:
            raise InputError(f"hold_out must be in [0, 1), got {hold_out!r}")
        split_rule(how, valid=hold_out, test=0.0)
        self.plan()  # refuses unknown names and values out of range
        self.fitted: Fitted | None = None
        self.fitted_params: dict[str, Any] = {}  # those of `fit`; set_params does not change them
        self.history: History | None = None

    # --- parameters, as in scikit-learn ---------------------------------------------------------

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        return {**{name: getattr(self, name) for name in self._FACADE}, **self.parameters}

    def set_params(self, **params: Any) -> Recommender:
        if not MODELS[params.get("model") or "mf"].trained:
            params = {"loss": None, **params}
        checked = Recommender(**{**self.get_params(), **params})
        for name in (*self._FACADE, "parameters"):
            setattr(self, name, getattr(checked, name))
        return self

    def __repr__(self) -> str:
        params = ", ".join(f"{name}={value!r}" for name, value in self.get_params().items())
        return f"Recommender({params})"

    def plan(self) -> Plan:
        """The parameters sorted by purpose, with the defaults of the options."""
        return plan(self._model("mf"), self.loss or "llpauc", self.parameters)

    def _model(self, preferred: str) -> str:
        """The given model; else the preferred one, or with a recipe one with the given options."""
        if self.model is not None or self.recipe == "none":
            return self.model or preferred
        names = [preferred, *trained_models()]
        fitting = [name for name in names if not foreign_options(name) & set(self.parameters)]
        return (fitting or names)[0]

    def for_data(self, split: Split) -> Recommender:
        """This recommender with the settings of its recipe for these events, where none are given;
        its recipe is then none."""
        if self.recipe == "none" or (self.model is not None and not MODELS[self.model].trained):
            settings: dict[str, Any] = {"model": self._model("mf"), "loss": self.loss}
        else:
            settings = RECIPES[self.recipe](split.train, split.valid)
            if self.loss not in (None, settings["loss"]):
                settings = with_loss(settings, str(self.loss))
            # Several processes train mf only
            several = current_process_group().world_size > 1
            settings = with_model(settings, self._model("mf" if several else settings["model"]))
        given = {name: value for name, value in self.get_params().items() if value is not None}
        return Recommender(**{"refit": False, **settings, **given, "recipe": "none"})

    # --- fitting --------------------------------------------------------------------------------

    def fit(
        self,
        data: Any,
        valid: Any = None,
        *,
        user: Column = None,
        item: Column = None,
        rating: Column = None,
        timestamp: Column = None,
        weight: Column = None,
        event_type: Column = None,
        event_weights: Mapping[str, float] | str | None = None,
        log_weights: bool = False,
        exclude: str | None = None,
        relevant: str | None = None,
        query: str | None = None,
        items: Any = None,
        features: str | Sequence[str] | None = None,
        on_batch: Callable[[int], None] | None = None,
        on_epoch: Callable[[Epoch], None] | None = None,
        checkpoint: CheckpointSettings | CheckpointFolder | None = None,
    ) -> Recommender:
        """Fit the model. Without callbacks, a progress bar is shown if stderr is a terminal.

        Args:
            data: a path or another source of `llpauc.data.read_interactions`, a pandas, Polars or
                Arrow frame, a scipy CSR matrix, `Interactions`, or a `Split`, whose test part is
                not used.
            valid: events that choose the epoch, of any of these types.
            user, item, rating, timestamp: columns of a file or frame, by name or by position from
                0; None detects them.
            weight, event_type, event_weights, log_weights: how much events count; see
                `llpauc.data.read_interactions`.
            exclude, relevant: which items of a user are left out of the list, and which event types
                validation counts; see `llpauc.data.EventRules`.
            query: SQL that selects the events of a database.
            items: the catalogue, a source of `llpauc.data.read_catalogue`; it is saved with the
                run, for the rules of `recommend`. Items of it without events are recommended by
                their features, see `llpauc.models.cold_items`.
            features: names of the catalogue's columns that describe items, in a list or separated
                by commas; None detects them, "none" leaves out items without events.
            on_batch, on_epoch, checkpoint: see `llpauc.training.fit`.

        Raises:
            llpauc.training.Diverged: on NaN; the recommender then has the last good weights.

        Of several processes inside `llpauc.distributed.join_process_group`, the first is fitted.
        """
        columns: dict[str, Any] = {
            "user": user,
            "item": item,
            "rating": rating,
            "timestamp": timestamp,
            "query": query,
        }
        columns |= {"weight": weight, "event_type": event_type, "event_weights": event_weights}
        columns |= {"log_weights": log_weights, "exclude": exclude, "relevant": relevant}
        split = without_empty_valid(as_split(data, valid, **columns))
        catalogue = None if items is None else read_catalogue(items)
        if catalogue is not None:
            log.info(catalogue.check_known(split.item_ids, "the events"))
            encoded = item_features(catalogue, feature_names(features))
        chosen = self.for_data(split)
        plan, refit = chosen.plan(), bool(chosen.refit)
        if chosen.parameters.get("half_life") is not None:
            check_ages_known(before(split, "test"))
        model = MODELS[plan.model].make(plan.model_options)
        seed = 0 if plan.training is None else plan.training.seed
        data, training = FitData.of(split, refit, self.hold_out, seed, self.how), None
        boost = 0.0

        def choose_by(fitted: Model) -> None:
            nonlocal boost
            if catalogue is not None and data.split.valid is not None and fitted.is_fitted:
                rows = catalogue.ids.indices(data.split.item_ids.text)
                boost = choose_boost(fitted, data.split, encoded.of(rows))

        on_chosen = None if catalogue is None else lambda: choose_by(model)

        if plan.training is not None:
            if data.split is not split:
                log.info("validation events: %s", "; ".join(data.split.notes))
            settings = {**plan.settings(), "refit": refit, "hold_out": self.hold_out}
            training = Training(
                plan.make_loss, plan.training, settings, on_batch, on_epoch, checkpoint, on_chosen
            )
        shown: AbstractContextManager[Any] = nullcontext(on_batch)
        if on_batch is None and on_epoch is None:
            epochs = 0 if plan.training is None else plan.training.epochs
            shown = progress(f"fitting {plan.model}", epochs * len(data.split.train) or None)
        # The last bits of LAPACK, as in the spectral initialization, depend on its threads
        blas_threads = None if training is None else 1
        try:
            with shown as report, threadpool_limits(blas_threads, "blas"):
                result = model.fit(
                    data, training and dataclasses.replace(training, on_batch=report)
                )
        except Diverged:
            self._set_fitted(model, data, data.split.train, None, chosen, catalogue)
            raise
        self._set_fitted(model, data, result.events, result.history, chosen, catalogue)
        if catalogue is not None and self.fitted is not None:
            if training is None and data.split.valid is not None:
                on_train = MODELS[plan.model].make(model.options)
                on_train.fit(FitData(data.split, [data.split.train]))
                choose_by(on_train)
            self.fitted = self.fitted.with_catalogue(catalogue, features, boost)
        return self

    def set_items(self, items: Any, features: str | Sequence[str] | None = None) -> Recommender:
        """Replace the catalogue; items of it that are new can be recommended at once.

        Args:
            items: a source of `llpauc.data.read_catalogue`.
            features: as in `fit`; by default those of the last catalogue.
        """
        fitted = self.require_fitted()
        chosen = fitted.features if features is None else features
        self.fitted = fitted.with_catalogue(read_catalogue(items), chosen)
        return self

    def _set_fitted(
        self,
        model: Model,
        data: FitData,
        trained: Interactions,
        history: History | None,
        chosen: Recommender,
        catalogue: Catalogue | None,
    ) -> None:
        """Set everything at once: a fit that is refused leaves the previous one unchanged."""
        fitted = None
        if model.is_fitted:
            parts = {name: part.targets for name, part in data.split.parts.items()}
            fitted = Fitted.of(model, data.all).holding_out(parts, trained.excluded)
            fitted = dataclasses.replace(fitted, catalogue=catalogue)
        # Options that the model has chosen by the data
        used = dataclasses.asdict(model.options)
        asked = dataclasses.asdict(chosen.plan().model_options)
        by_model = {name: used[name] for name in used if used[name] != asked[name]}
        self.fitted, self.history = fitted, history
        self.fitted_params = chosen.get_params() | by_model

    def update(
        self,
        events: Any,
        *,
        items: Any = None,
        epochs: int = EPOCHS,
        lr: float | None = None,
        weight_decay: float | None = None,
        seed: int | None = None,
        device: str | None = None,
        on_batch: Callable[[int], None] | None = None,
        on_epoch: Callable[[Epoch], None] | None = None,
    ) -> NewEvents:
        """Continue with new events; users and items may be new. See `llpauc.models.embedding`.

        Models without training are fitted again, on the old and the new pairs.

        Args:
            events: of any type that `fit` accepts; pairs that the model already has are ignored.
                Where events have weights, read them with the columns of `fit`
                (`llpauc.data.read_interactions`); all of them are added to the known weights.
            items: a new catalogue, which may have further items; by default that of the last `fit`.
            epochs: passes over all pairs, old and new; 0 gives vectors to new users and items, and
                trains nothing.
            lr, weight_decay, seed, device: by default those of the last `fit`.
            on_batch, on_epoch: see `llpauc.training.fit`.

        Returns:
            What was new. Without a new pair, nothing has changed.

        Raises:
            llpauc.training.Diverged: on NaN; the recommender is then unchanged.
        """
        check_at_least("epochs", epochs, 0)
        current, params = self.require_fitted(), self.fitted_params
        check_no_half_life(params)
        fitted = current.without_features()
        new = new_events(fitted, join(before(as_split(events), "test")))
        if not len(new.new):
            if items is not None:
                self.set_items(items)
            return new
        plan, training = Recommender(**params).plan(), None
        if plan.training is not None and epochs:
            options = plan.training_options(
                epochs=epochs, lr=lr, weight_decay=weight_decay, seed=seed, device=device
            )
            training = Training(plan.make_loss, options, {}, on_batch, on_epoch)
        with threadpool_limits(None if training is None else 1, "blas"):
            model, result = fitted.model.extend(new, training)
        updated = Fitted.of(model, new.all)
        updated = updated.holding_out(fitted.held_out, new.all.excluded)
        self.fitted = dataclasses.replace(updated, catalogue=fitted.catalogue)
        catalogue = fitted.catalogue if items is None else read_catalogue(items)
        if catalogue is not None:
            self.fitted = self.fitted.with_catalogue(
                catalogue, current.features, current.model.boost
            )
        self.history = result.history
        return new

    # --- recommending ---------------------------------------------------------------------------

    def recommend(
        self,
        user_ids: Iterable[Any],
        k: int = 20,
        *,
        exclude_seen: bool = True,
        exclude: str | None = None,
        allow: Iterable[Any] | None = None,
        deny: Iterable[Any] | None = None,
        where: str | None = None,
        at_most: int | None = None,
        per: str | None = None,
    ) -> Lists:
        """The best k items of each user: (n, k) item ids and (n, k) scores, best first.

        Unknown users get the list of a user without history, with a warning that names them. Where
        fewer than k items are left, the rest is None with score -inf.

        Args:
            user_ids: whom to recommend to.
            k: length of the lists.
            exclude_seen: leave out the items of a user's history.
            exclude: which of them: "all", "none" or event types; by default those of `fit`.
            allow: item ids to choose from; None for all.
            deny: item ids to leave out.
            where: a condition on the catalogue, such as "in_stock and price < 20"; see
                `llpauc.data.read_catalogue`.
            at_most: number of items in a list with the same value of the catalogue's column `per`;
                items without a value are not limited.
            per: that column.
        """
        fitted = self.require_fitted().excluding(exclude)
        ids, _ = as_id_text(user_ids)
        users = fitted.user_ids.indices(ids)
        if (users < 0).any():
            unknown = listing(ids.filter(users < 0).to_pylist(), 5)
            warn(f"unknown user ids, which get the default list: {unknown}", stacklevel=2)
        k = check_at_least("k", k, 1)
        hidden, limit = (
            _hidden(fitted, allow, deny, where),
            fitted.catalogue_rules.limit(at_most, per),
        )
        return _lists(fitted, *fitted.rank_users(users, k, exclude_seen, hidden, limit), k)

    def fold_in(
        self,
        item_ids: Iterable[Any],
        k: int = 20,
        *,
        exclude_seen: bool = True,
        allow: Iterable[Any] | None = None,
        deny: Iterable[Any] | None = None,
        where: str | None = None,
        at_most: int | None = None,
        per: str | None = None,
    ) -> Lists:
        """The best k items for a new user who has these items: (k,) ids and (k,) scores, filled up
        as by `recommend`, with the same options."""
        fitted = self.require_fitted()
        k = check_at_least("k", k, 1)
        hidden, limit = (
            _hidden(fitted, allow, deny, where),
            fitted.catalogue_rules.limit(at_most, per),
        )
        history = fitted.history(item_ids)
        ranked = fitted.rank_histories(history, k, exclude_seen, hidden, limit=limit)
        ids, scores = _lists(fitted, *ranked, k)
        return ids[0], scores[0]

    def similar_items(self, item_id: Any, k: int = 20) -> Lists:
        """The k items most similar to this one, (k,) ids and scores: by the cosine of their
        vectors; for a model without vectors, the list of a new user who has this item only."""
        fitted = self.require_fitted()
        k = check_at_least("k", k, 1)
        history = fitted.history([item_id])
        units = fitted.model.item_units()
        similarity = None if units is None else Constant(units @ units[history.indices[0]])
        ranked = fitted.rank_histories(history, k, exclude_seen=True, model=similarity)
        ids, scores = _lists(fitted, *ranked, k)
        return ids[0], scores[0]

    def scorer(self) -> Scorer:
        """The scorer of the known users."""
        return self.require_fitted().scorer

    def scorer_for(self, user_ids: IdMap, item_ids: IdMap) -> Scorer:
        """The scorer over the ids of other data; `llpauc.evaluation.evaluate` uses it."""
        return self.require_fitted().scorer_for(user_ids, item_ids)

    def require_fitted(self) -> Fitted:
        """The fitted model; an error where there is none."""
        if self.fitted is None:
            raise InputError("this recommender is not fitted yet; call fit(data) first")
        return self.fitted

    # --- saving ---------------------------------------------------------------------------------

    def save(self, folder: str | os.PathLike[str], **meta: Any) -> Path:
        """Write a run folder, completely or not at all; `meta` is added to its meta.json."""
        fitted = self.require_fitted()
        epochs = self.history.epochs if self.history is not None else ()
        lines = [dataclasses.asdict(epoch) for epoch in epochs]
        # In a file of their own: everything else is the same in every repetition.
        timings = {"seconds": [line.pop("seconds") for line in lines]}
        texts = {
            # Sorted: epochs that went through a checkpoint have another order of keys.
            "metrics.jsonl": "".join(json.dumps(line, sort_keys=True) + "\n" for line in lines),
            "timings.json": json.dumps(timings) + "\n",
            "environment.json": environment_json(),
            "config.toml": config_toml(self.fitted_params, meta.get("reading")),
        }
        ids = fitted.user_ids.arrow(), fitted.item_ids.arrow()
        known = {"params": self.fitted_params, **_rules_json(fitted.rules), **meta}
        if fitted.features is not None:
            known["features"] = list(fitted.features)
        catalogue = None if fitted.catalogue is None else fitted.catalogue.saved()
        run = run_folder.SavedRun(fitted.tensors(), *ids, known, texts, catalogue)
        with writer_lock(folder, wait=10.0):
            return run_folder.save(run, folder)

    @staticmethod
    def load(folder: str | os.PathLike[str]) -> Recommender:
        """Read a run folder; a file that does not match the manifest raises `InputError`."""
        return Recommender.from_run(run_folder.load(folder), folder)

    @staticmethod
    def from_run(run: run_folder.SavedRun, folder: str | os.PathLike[str]) -> Recommender:
        """The recommender of a run that was read from `folder`, which errors name."""
        params = run.meta.get("params")
        if not isinstance(params, dict):
            raise InputError(f"{folder}: meta.json has no params; this is not a recommender")
        try:
            params = current_names(params)
            recommender = Recommender(**{"recipe": "none", **params})
            plan = recommender.plan()
            model = MODELS[plan.model].make(plan.model_options)
            ids = IdMap.of(run.user_ids), IdMap.of(run.item_ids)
            fitted = Fitted.from_tensors(model, run.tensors, *ids, _rules_of(run.meta))
            catalogue = None if run.catalogue is None else Catalogue.from_saved(run.catalogue)
            features = run.meta.get("features")
            chosen = features if isinstance(features, list) else None
            recommender.fitted = dataclasses.replace(fitted, catalogue=catalogue, features=chosen)
        except (AttributeError, InputError, TypeError, ValueError) as error:
            raise InputError(f"{folder}: {error}") from None
        recommender.fitted_params = params
        return recommender


def _rules_json(rules: EventRules) -> dict[str, Any]:
    """What meta.json records about the rules; the weights as a list, in their order."""
    if rules == EventRules():
        return {}
    return {"event_rules": {**vars(rules), "type_weights": list(rules.type_weights.items())}}


def _rules_of(meta: Mapping[str, Any]) -> EventRules:
    """The inverse of `_rules_json`."""
    saved = meta.get("event_rules")
    if saved is None:
        return EventRules()
    return EventRules(**{**saved, "type_weights": dict(saved["type_weights"])})


def _hidden(
    fitted: Fitted,
    allow: Iterable[Any] | None,
    deny: Iterable[Any] | None,
    where: str | None,
) -> Indices | None:
    """Indices of the items that are not recommended; unknown ids raise `InputError`."""
    allowed, denied = (None if ids is None else fitted.item_indices(ids) for ids in (allow, deny))
    return hidden_items(
        len(fitted.item_ids), allowed, fitted.catalogue_rules.allowed(where), deny=denied
    )


def _lists(fitted: Fitted, items: Indices, scores: Scores, k: int) -> Lists:
    """Item ids and scores, k wide even where there are fewer items."""
    missing = ((0, 0), (0, k - items.shape[1]))
    items = np.pad(items, missing, constant_values=-1)
    return ids_or_none(fitted.item_ids, items), np.pad(scores, missing, constant_values=-np.inf)
