"""New events for a fitted model: ids grow, new rows get a start, training goes on from there.

A run folder keeps the vectors as they rank and who has what; it keeps neither Adam's moments, nor
the loss's variables, nor the times and the order of its events. So Adam and the loss begin anew.

| row | starts as |
|---|---|
| known user or item | the saved vector, found by its id |
| new user | folded in by the known items they have; the mean user without any |
| new item | folded in by the known users who have it; the mean item without any |

`models.fold_in` learns both maps, the second with users and items changing places. Known is who
had an event in the run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from llpauc.data.interactions import IdMap, Indices, Interactions, Split, pair_codes
from llpauc.errors import InputError
from llpauc.evaluation.scorer import FactorScorer, Scores
from llpauc.models.backbones import graph_weights
from llpauc.models.embedding import EMBEDDING_MODELS, EmbeddingModel, EmbeddingOptions
from llpauc.models.fold_in import HistoryMap, learn_history_map
from llpauc.recommend.fitted import Fitted
from llpauc.recommend.parameters import Plan
from llpauc.training import Epoch, History, check_feasible, fit

EPOCHS = 5  # what they reach: docs/how-to/new-events.md
_ROUNDS = 20  # of undoing lightgcn's propagation: each leaves at most 3/4 of the error, 2 layers


@dataclass(frozen=True)
class Arrivals:
    """What a run has and what comes, over one pair of id maps; the run's rows come first.

    Args:
        old: the pairs of the run.
        new: the pairs that the run does not have, each once.
        new_users, new_items: rows that have their first event now.
    """

    old: Interactions
    new: Interactions
    new_users: Indices
    new_items: Indices

    @cached_property
    def all(self) -> Interactions:
        return self.old.followed_by(self.new)

    def __str__(self) -> str:
        return (
            f"{len(self.new):,} new pairs, {len(self.new_users):,} new users and"
            f" {len(self.new_items):,} new items, beside {len(self.old):,} known pairs"
        )


def arrivals(fitted: Fitted, events: Interactions) -> Arrivals:
    """Sort events into what is known and what is new."""
    events = events.compact()
    user_ids = _extended(fitted.user_ids, events.user_ids)
    item_ids = _extended(fitted.item_ids, events.item_ids)
    pairs = fitted.histories.tocoo()
    old = Interactions(pairs.row, pairs.col, user_ids, item_ids)
    given = events.remap(user_ids, item_ids)
    first = np.sort(np.unique(_codes(given), return_index=True)[1])
    given = given.take(first)
    new = given.take(~np.isin(_codes(given), _codes(old)))
    return Arrivals(
        old,
        new,
        np.setdiff1d(new.users, old.users).astype(np.int32),
        np.setdiff1d(new.items, old.items).astype(np.int32),
    )


def _codes(events: Interactions) -> npt.NDArray[np.int64]:
    return pair_codes(events.users, events.items, events.n_items)


def _extended(known: IdMap, more: IdMap) -> IdMap:
    """Known ids and then new ones. Ids that were integers stay so where the new ones are integers
    too, if only read from text."""
    both = known.union([more])
    if both.kind == known.kind:
        return both
    typed = IdMap(both.text, known.kind)
    try:
        same = typed.arrow().cast(both.text.type).equals(both.text)  # 007 is not 7
    except ValueError:
        same = False
    return typed if same else both


def check_ages(params: dict[str, Any]) -> None:
    """Refuse a run that weighs its events by age: nobody knows their ages any more."""
    half_life = params.get("half_life")
    if half_life is not None and np.isfinite(half_life):
        raise InputError(
            f"this {params['model']} run weighs events by age (half_life {half_life:g}), and a run"
            " keeps no times; train anew on all events (llpauc train)"
        )


@dataclass(frozen=True)
class Start:
    """The extended model before it is trained on.

    Args:
        users, items: vectors as they rank.
        history_rows: of itemsum, whose users are made of them; None for the others.
    """

    users: Scores
    items: Scores
    history_rows: Scores | None = None


def start(fitted: Fitted, came: Arrivals, model: str, options: EmbeddingOptions) -> Start:
    """Known rows as they were saved, new rows as the table above says."""
    assert isinstance(fitted.scorer, FactorScorer)
    assert isinstance(fitted.by_items, HistoryMap)
    have = came.all.matrix
    known_users, known_items = fitted.scorer.user_vectors, fitted.scorer.item_vectors
    users = _grown(known_users, have.shape[0])
    items = _grown(known_items, have.shape[1])
    width, cosine = options.dimensions, options.score == "cosine"

    had = fitted.histories
    warm_users, warm_items = np.diff(had.indptr) > 0, np.diff(had.tocsc().indptr) > 0
    theirs = have[came.new_users][:, : len(known_items)]
    folded = fitted.by_items.vectors_of(theirs)
    folded[theirs @ warm_items == 0] = _mean(known_users[warm_users])
    users[came.new_users] = _as_long_as(folded, known_users, width) if cosine else folded

    back = learn_history_map(had.T.tocsr(), known_items, known_users)
    takers = have.T.tocsr()[came.new_items]
    folded = back.vectors_of(takers[:, : len(known_users)])
    items[came.new_items] = folded  # a mean item is short, and must not pass for a popular one

    if model == "itemsum":
        rows = _grown(fitted.by_items.history_rows, len(items))
        rows[came.new_items] = _mean_of_neighbours(takers, have, rows)
        return Start(users, items, rows)
    return Start(users, items)


def history_map(begin: Start, fitted: Fitted, seen: Interactions) -> HistoryMap:
    """For people known by their items, where `begin` is all that is done."""
    if begin.history_rows is None:
        return learn_history_map(seen.matrix, begin.users, begin.items)
    assert isinstance(fitted.by_items, HistoryMap)
    before = fitted.by_items
    return HistoryMap(begin.history_rows, before.base, begin.items, before.length)


def go_on(
    begin: Start,
    seen: Interactions,
    name: str,
    plan: Plan,
    changed: Mapping[str, Any],
    on_batch: Callable[[int], None] | None = None,
    on_epoch: Callable[[Epoch], None] | None = None,
) -> tuple[EmbeddingModel, History]:
    """Train on `seen` from `begin`, as planned but for the fit options in `changed` that are not
    None. Every epoch runs: there is no validation part to choose one."""
    given = {option: value for option, value in changed.items() if value is not None}
    options = dataclasses.replace(plan.fit, **given)
    check_feasible(seen, plan.embedding.dimensions, options)
    model = resumed(begin, seen, name, plan.embedding)
    loss = plan.make_loss()
    history = fit(model, loss, Split(seen), options, on_batch=on_batch, on_epoch=on_epoch)
    return model, history


def resumed(
    begin: Start, seen: Interactions, name: str, options: EmbeddingOptions
) -> EmbeddingModel:
    """A model at `begin`, ready to be trained on `seen`.

    A cosine forgets how long its rows were: they start at length 1, those of new items too.
    LightGCN's own rows are found by undoing the propagation over the graph of `seen`. Both leave
    the scores of known rows as they are; itemsum alone moves at once, a user being what they have.
    """
    # Its own start is written over below: the one that costs nothing will do.
    model = EMBEDDING_MODELS[name](seen, dataclasses.replace(options, start="random"), 0)
    width = options.dimensions
    users, items = begin.users[:, :width] / np.float32(model.scale), begin.items
    if begin.history_rows is not None:
        users = begin.history_rows
    elif name == "lightgcn":
        users, items = _before_propagation(users, items, seen, options.layers)
    with torch.no_grad():
        model.user_table.copy_(torch.from_numpy(np.ascontiguousarray(users)))
        model.item_table.copy_(torch.from_numpy(np.ascontiguousarray(items)))
    return model


def _before_propagation(
    users: Scores, items: Scores, seen: Interactions, layers: int
) -> tuple[Scores, Scores]:
    """Indices that LightGCN's propagation turns into these.

    Its matrix is symmetric with eigenvalues in [0, 1], so that x <- x + (target - P x) settles; the
    part of the target that P cannot make (there is one with an odd number of layers) is left.
    """
    to_users = graph_weights(seen)
    to_items = to_users.T.tocsr()
    x, y = users, items
    for _ in range(_ROUNDS):
        of_users, of_items, sum_users, sum_items = x, y, x, y
        for _ in range(layers):
            of_users, of_items = to_users @ of_items, to_items @ of_users
            sum_users, sum_items = sum_users + of_users, sum_items + of_items
        share = np.float32(1 / (1 + layers))
        x, y = x + users - share * sum_users, y + items - share * sum_items
    return x, y


def _grown(table: Scores, n: int) -> Scores:
    out = np.zeros((n, table.shape[1]), np.float32)
    out[: len(table)] = table
    return out


def _mean(rows: Scores) -> Scores:
    mean: Scores = rows.mean(axis=0, dtype=np.float64).astype(np.float32)
    return mean


def _as_long_as(rows: Scores, known: Scores, width: int) -> Scores:
    """The first `width` columns brought to the length of the known ones; a bias stays."""
    out = rows.copy()
    length, lengths = (np.linalg.norm(t[:, :width], axis=1, keepdims=True) for t in (known, rows))
    out[:, :width] *= np.median(length) / np.maximum(lengths, 1e-12)
    return out


def _mean_of_neighbours(takers: Any, have: Any, rows: Scores) -> Scores:
    """For each new item the mean row of what its takers have beside, every taker counting alike."""
    known = rows.any(axis=1).astype(np.float32)  # new ones are still 0
    n_known = have @ known
    per_taker = (have @ rows) / np.maximum(n_known, 1)[:, None]
    n_takers = takers @ (n_known > 0).astype(np.float32)
    means: Scores = (takers @ per_taker) / np.maximum(n_takers, 1)[:, None]
    return means
