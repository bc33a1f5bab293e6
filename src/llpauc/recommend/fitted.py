"""A fitted model with the ids and histories of its users: it ranks, and is saved as arrays."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from llpauc.data.catalogue import Catalogue
from llpauc.data.features import feature_names, item_features
from llpauc.data.ids import IdMap, Indices, as_id_text
from llpauc.data.interactions import EventRules, Interactions, select_pairs, without
from llpauc.errors import InputError, listing
from llpauc.evaluation.ranking import rank
from llpauc.evaluation.scorer import ByHistory, Constant, HistoryScorer, Scorer, Scores
from llpauc.models.base import Arrays, Model, check_shape, csr_arrays, csr_from_arrays
from llpauc.models.cold_items import ColdItems, similar_items
from llpauc.recommend.rules import CatalogueRules, GroupLimit

log = logging.getLogger(__name__)

HELD_OUT_PARTS = ("valid", "test")
_TYPES = "histories.types"


@dataclass(frozen=True)
class Fitted:
    """A fitted model, its users and their histories.

    Args:
        model: the model.
        scorer: its scorer of the known users.
        histories: (n_users, n_items) CSR of the users' items: the sum of the weights of a pair's
            events, 1 without weights, 0 for an item that was only seen.
        user_ids, item_ids: the ids by index.
        held_out: part (valid, test) -> CSR of its pairs that the model was not trained on.
            Validation events that `fit` held out of train are also in `histories`.
        types: the types of the events of each pair in `histories`, as bits; None without types.
        rules: of the types; which of a user's items are not recommended again.
        catalogue: properties of the items, for rules and features.
        features: the chosen columns of the catalogue; None where they are detected.
    """

    model: Model
    scorer: Scorer
    histories: Any
    user_ids: IdMap
    item_ids: IdMap
    held_out: Mapping[str, Any] = field(default_factory=dict)
    types: npt.NDArray[np.uint32] | None = None
    rules: EventRules = field(default_factory=EventRules)
    catalogue: Catalogue | None = None
    features: Sequence[str] | None = None

    @cached_property
    def catalogue_rules(self) -> CatalogueRules:
        """Conditions on the catalogue."""
        return CatalogueRules(self.catalogue, self.item_ids)

    @staticmethod
    def of(model: Model, seen: Interactions) -> Fitted:
        """A model whose users have the events `seen`."""
        ids, types = (seen.user_ids, seen.item_ids), seen.pair_types
        scorer = model.scorer(seen.positives)
        return Fitted(model, scorer, seen.histories, *ids, types=types, rules=seen.rules)

    @cached_property
    def excluded(self) -> Any:
        """(n_users, n_items) CSR of the items that are not recommended to a user again."""
        return self.rules.excluded(self.seen, self.types)

    @cached_property
    def seen(self) -> Any:
        """(n_users, n_items) CSR of ones where a user has an event with the item."""
        if (self.histories.data == 1).all():
            return self.histories
        return select_pairs(self.histories, np.ones(self.histories.nnz, bool))

    def excluding(self, exclude: str | None) -> Fitted:
        """With another rule of what is not recommended again; None keeps that of `fit`."""
        return (
            self if exclude is None else replace(self, rules=replace(self.rules, exclude=exclude))
        )

    def holding_out(self, parts: Mapping[str, Any], trained: Any) -> Fitted:
        """With the pairs of `parts` (name -> CSR) that are not among the `trained` pairs."""
        held_out = {}
        for name in HELD_OUT_PARTS:
            if name in parts:
                pairs = resized(parts[name], self.histories.shape)
                if (untrained := without(pairs, trained)).nnz:
                    held_out[name] = untrained
        return replace(self, held_out=held_out)

    # --- items without events -------------------------------------------------------------------

    def without_features(self) -> Fitted:
        """Only the items that the model knows by their events."""
        model = self.model.without_features
        if model is self.model:
            return self
        n_items = model.n_items
        histories = self.histories[:, :n_items].tocsr()
        held_out = {name: pairs[:, :n_items].tocsr() for name, pairs in self.held_out.items()}
        item_ids = self.item_ids.take(np.arange(n_items))
        return replace(
            self, model=model, scorer=model.scorer(self.rules.positives(histories)),
            histories=histories, item_ids=item_ids, held_out=held_out, features=None,
        )  # fmt: skip

    def with_catalogue(
        self,
        catalogue: Catalogue,
        features: str | Sequence[str] | None = None,
        boost: float | None = None,
    ) -> Fitted:
        """With all items of a catalogue; those without events are scored by their features.

        Args:
            catalogue: of the items.
            features: its columns that describe items; see `llpauc.data.features.feature_names`.
            boost: of items without events; by default that of this model.
        """
        base = self.without_features()
        log.info(catalogue.check_known(base.item_ids, "the run"))
        names = feature_names(features)
        encoded = item_features(catalogue, names)
        if names == []:
            return replace(base, catalogue=catalogue, features=names)
        for note in encoded.notes:
            log.info(note)
        n_known = len(base.item_ids)
        item_ids = extended(base.item_ids, catalogue.ids)
        matrix = encoded.of(catalogue.ids.indices(item_ids.text))
        has_events = np.zeros(len(item_ids), bool)
        has_events[base.histories.indices] = True
        has_features = np.diff(matrix.indptr) > 0
        warm = np.flatnonzero(has_events).astype(np.int32)
        new = np.arange(len(item_ids)) >= n_known
        cold = np.flatnonzero(~has_events & (has_features | new)).astype(np.int32)
        log.info(f"{len(cold):,} items without events are scored by their features")
        weights = similar_items(matrix, cold, warm, n_known)
        model = ColdItems(base.model, cold, weights, self.model.boost if boost is None else boost)
        shape = (len(base.user_ids), len(item_ids))
        histories = resized(base.histories, shape)
        held_out = {name: resized(pairs, shape) for name, pairs in base.held_out.items()}
        return replace(
            base, model=model, scorer=model.scorer(self.rules.positives(histories)),
            histories=histories, item_ids=item_ids, held_out=held_out, catalogue=catalogue,
            features=names,
        )  # fmt: skip

    @property
    def fallback(self) -> Scores:
        """(n_items,) scores for users of whom nothing is known."""
        return self.model.fallback

    # --- ranking --------------------------------------------------------------------------------

    def rank_users(
        self,
        users: npt.NDArray[np.int64],
        k: int,
        exclude_seen: bool,
        hidden: Indices | None = None,
        limit: GroupLimit | None = None,
        **options: Any,
    ) -> tuple[Indices, Scores]:
        """(n, min(k, n_items)) item indices and scores of users, best first.

        Args:
            users: (n,) indices; -1 stands for an unknown user.
            k: length of the lists.
            exclude_seen: leave out the items in `excluded`.
            hidden: items that are left out for all users.
            limit: on the items of a group.
            options: of `llpauc.evaluation.ranking.rank`.
        """
        known = users >= 0
        k = min(k, len(self.item_ids))  # a larger k would only cost memory
        if limit is not None:
            report = options.pop("progress", None) or (lambda users: None)
            ranked = limit.apply(
                lambda some, width: self.rank_users(
                    users[some], width, exclude_seen, hidden, **options
                ),
                len(users),
                k,
            )
            report(int(known.sum()))
            return ranked
        items = np.full((len(users), k), -1, np.int32)
        scores = np.full((len(users), k), -np.inf, np.float32)
        if known.any():
            some = users[known].astype(np.int32)
            masked = self.excluded[some] if exclude_seen else None
            ranking = rank(self.scorer, some, k, masked=masked, hidden=hidden, **options)
            items[known], scores[known] = ranking.items, ranking.scores
        if not known.all():
            ranking = rank(Constant(self.fallback), np.zeros(1, np.int32), k, hidden=hidden)
            items[~known], scores[~known] = ranking.items, ranking.scores
        return items, scores

    def rank_histories(
        self,
        histories: Any,
        k: int,
        exclude_seen: bool,
        hidden: Indices | None = None,
        model: HistoryScorer | None = None,
        limit: GroupLimit | None = None,
    ) -> tuple[Indices, Scores]:
        """The same for new users, given their histories as a CSR matrix (n, n_items); scored by
        `model` where it is given."""
        if limit is not None:
            return limit.apply(
                lambda some, width: self.rank_histories(
                    histories[some], width, exclude_seen, hidden, model
                ),
                histories.shape[0],
                min(k, len(self.item_ids)),
            )
        scorer = ByHistory(model or self.model, histories, self.fallback)
        users = np.arange(histories.shape[0], dtype=np.int32)
        masked = histories if exclude_seen else None
        ranking = rank(scorer, users, k, masked=masked, hidden=hidden)
        return ranking.items, ranking.scores

    def item_indices(self, item_ids: Iterable[Any]) -> npt.NDArray[np.int64]:
        """Indices of item ids; unknown ones raise `InputError`."""
        ids, _ = as_id_text(item_ids)  # refuses a single text, which is a list of characters
        indices = self.item_ids.indices(ids)
        if (indices < 0).any():
            unknown = ids.filter(indices < 0).to_pylist()
            raise InputError(f"unknown item ids: {listing(unknown, 5)}")
        return indices

    def history(self, item_ids: Iterable[Any]) -> Any:
        """(1, n_items) CSR of a new user with these items."""
        return self.history_of(self.item_indices(item_ids))

    def history_of(self, items: npt.NDArray[np.int64]) -> Any:
        """The same from item indices; repeated ones count once."""
        items = np.unique(items)
        ones, rows = np.ones(len(items), np.float32), np.zeros(len(items), int)
        return sparse.csr_matrix((ones, (rows, items)), shape=(1, len(self.item_ids)))

    # --- other data -----------------------------------------------------------------------------

    def scorer_for(self, user_ids: IdMap, item_ids: IdMap) -> Scorer:
        """The scorer over other id maps, such as those of data that were read again. Unknown users
        get the fallback, unknown items rank last."""
        if user_ids == self.user_ids and item_ids == self.item_ids:
            return self.scorer
        return _ReindexedScorer(
            self, self.user_ids.indices(user_ids.text), self.item_ids.indices(item_ids.text)
        )

    def contains(self, events: Interactions) -> npt.NDArray[np.bool_]:
        """Whether each of these events is in the histories."""
        users = self.user_ids.indices(events.user_ids.text)[events.users]
        items = self.item_ids.indices(events.item_ids.text)[events.items]
        known = (users >= 0) & (items >= 0)
        if known.any():  # scipy does not return an array for an empty selection
            known[known] = np.asarray(self.seen[users[known], items[known]]).ravel() > 0
        return known

    # --- saving ---------------------------------------------------------------------------------

    def tensors(self) -> dict[str, npt.NDArray[Any]]:
        """All arrays by name."""
        arrays = {**csr_arrays("histories", self.histories), **self.model.arrays()}
        for name, pairs in self.held_out.items():
            arrays |= csr_arrays(f"held_out.{name}", pairs)
        return arrays if self.types is None else arrays | {_TYPES: self.types}

    @staticmethod
    def from_tensors(
        model: Model,
        tensors: Arrays,
        user_ids: IdMap,
        item_ids: IdMap,
        rules: EventRules | None = None,
    ) -> Fitted:
        """The inverse of `tensors`; `model` takes over its arrays."""
        shape, rules = (len(user_ids), len(item_ids)), rules or EventRules()
        try:
            histories = csr_from_arrays(tensors, "histories", shape)
            types = tensors.get(_TYPES)
            if types is not None:
                check_shape(_TYPES, types, (histories.nnz,))
                types = types.astype(np.uint32)
            model = ColdItems.load(model, tensors, *shape)
            held_out = {
                name: csr_from_arrays(tensors, f"held_out.{name}", shape)
                for name in HELD_OUT_PARTS
                if f"held_out.{name}.starts" in tensors
            }
        except (KeyError, ValueError, IndexError) as error:
            raise InputError(f"the saved arrays do not fit together: {error}") from None
        scorer = model.scorer(rules.positives(histories))
        return Fitted(model, scorer, histories, user_ids, item_ids, held_out, types, rules)


def resized(pairs: Any, shape: tuple[int, int]) -> Any:
    """A CSR matrix with more columns or rows."""
    pairs = pairs.copy()
    pairs.resize(shape)
    return pairs


class _ReindexedScorer:
    """The scorer of a fitted model over other indices; -1 is an unknown user or item."""

    def __init__(
        self, fitted: Fitted, users: npt.NDArray[np.int64], items: npt.NDArray[np.int64]
    ) -> None:
        self._fitted, self._users = fitted, users
        self._known = np.flatnonzero(items >= 0)
        self._known_items = items[self._known]
        self.n_items = len(items)

    def scores_into(self, users: Indices, out: Scores) -> None:
        indices = self._users[users]
        scores = np.empty((len(users), len(self._fitted.item_ids)), np.float32)
        self._fitted.scorer.scores_into(np.maximum(indices, 0).astype(np.int32), scores)
        scores[indices < 0] = self._fitted.fallback
        # Finite and below every score: an unknown item may fill a list, but comes last.
        out[:] = np.finfo(np.float32).min
        out[:, self._known] = scores[:, self._known_items]


def extended(known: IdMap, more: IdMap) -> IdMap:
    """Known ids followed by new ones. Integer ids stay integers where the new ones are integers,
    even if they were read as text."""
    both = known.union([more])
    if both.kind == known.kind:
        return both
    typed = IdMap(both.text, known.kind)
    try:
        same = typed.arrow().cast(both.text.type).equals(both.text)  # 007 is not 7
    except ValueError:
        same = False
    return typed if same else both


def ids_or_none(id_map: IdMap, indices: Indices) -> npt.NDArray[Any]:
    """Ids of indices; None where an index is -1."""
    known = indices >= 0
    if known.all():
        return id_map.ids(indices)
    out = np.full(indices.shape, None, dtype=object)
    out[known] = id_map.ids(indices[known])
    return out
