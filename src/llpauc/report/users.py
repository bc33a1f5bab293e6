"""One user on the page: history, recommendations, and the ranks of the held-out items.

AUC and its partial forms depend only on how many negatives score as high as or higher than each
positive (a tie counts as lost, as in `llpauc.metrics`). The ROC curve is drawn from these counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from scipy import sparse

from llpauc.data.ids import IdMap, Indices
from llpauc.data.interactions import without
from llpauc.evaluation.ranking import rank
from llpauc.recommend.fitted import Fitted

LIST_LENGTH = 20
MAX_SHOWN = 200  # items of a history or a held-out part; all ranks are included
_MAX_MATCHES = 12

Basis = Literal["test", "valid", "history", "nothing"]


@dataclass(frozen=True)
class UserView:
    """What the page shows of a user; items are indices.

    Without held-out events the positives are the history. The model was trained on it, so these
    values are too high.
    """

    basis: Basis  # which events are the positives
    ranks: npt.NDArray[np.int64]  # negatives with at least each positive's score, ascending
    n_neg: int
    positives: npt.NDArray[np.int64]  # at most `MAX_SHOWN`; empty where they are the history
    history: npt.NDArray[np.int64]  # at most `MAX_SHOWN` items, in no particular order
    n_history: int
    top: npt.NDArray[np.int64]  # the best `LIST_LENGTH` items the user does not have
    scores: npt.NDArray[np.float32]  # of `top`

    def as_json(self, item_ids: IdMap, table: ItemTable) -> dict[str, Any]:
        """Plain JSON: items as positions in `table`; ranks as differences, which are shorter."""
        return {
            "basis": self.basis,
            "rank_steps": np.diff(self.ranks, prepend=0).tolist(),
            "n_neg": self.n_neg,
            "positives": table.positions(item_ids, self.positives),
            "history": table.positions(item_ids, self.history),
            "n_history": self.n_history,
            "top": table.positions(item_ids, self.top),
            "scores": [float(f"{score:.6g}") for score in self.scores.tolist()],
        }


class ItemTable:
    """The items that views contain, each once: [id, title or None]."""

    def __init__(self, titles: Mapping[str, str]) -> None:
        self._titles, self._positions = titles, dict[str, int]()
        self.entries: list[list[str | None]] = []

    def positions(self, item_ids: IdMap, item_idx: npt.NDArray[Any]) -> list[int]:
        ids = id_texts(item_ids, item_idx)
        for item_id in ids:
            if item_id not in self._positions:
                self._positions[item_id] = len(self.entries)
                self.entries.append([item_id, self._titles.get(item_id)])
        return [self._positions[item_id] for item_id in ids]


def view_users(fitted: Fitted, user_idx: npt.NDArray[Any]) -> list[UserView]:
    """The views of these users."""
    users = np.asarray(user_idx, np.int32)
    histories = fitted.histories[users]
    basis, positives, masked = _positives(fitted, users)
    best = rank(fitted.scorer, users, LIST_LENGTH, masked=fitted.excluded[users])
    counts = rank(fitted.scorer, users, 1, masked=masked, positives=positives).counts
    assert counts is not None
    ordered = _best_first(fitted, users, positives)
    seen = np.split(histories.indices, histories.indptr[1:-1])
    ranks = np.split(counts.above.astype(np.int64) + counts.tied, counts.indptr[1:-1])
    views = []
    for n, part in enumerate(basis):
        listed = best.items[n] >= 0
        held_out = ordered[n] if part in ("test", "valid") else ordered[n][:0]
        views.append(
            UserView(
                basis=part,
                ranks=ranks[n],
                n_neg=int(counts.n_neg[n]),
                positives=held_out[:MAX_SHOWN],
                history=seen[n][:MAX_SHOWN],
                n_history=len(seen[n]),
                top=best.items[n][listed],
                scores=best.scores[n][listed],
            )
        )
    return views


def _positives(fitted: Fitted, users: Indices) -> tuple[list[Basis], Any, Any]:
    """For each user which events are positive, these events, and the items that are masked.

    As in `llpauc.evaluation`: train is masked, and valid too when the test part is measured.
    """
    seen, excluded = fitted.seen[users], fitted.excluded[users]
    empty = sparse.csr_matrix(seen.shape, dtype=np.float32)
    valid, test = (
        fitted.held_out[part][users] if part in fitted.held_out else empty
        for part in ("valid", "test")
    )
    before_test = excluded.maximum(valid)
    test = without(test, before_test)
    has_test = np.diff(test.indptr) > 0
    has_valid = ~has_test & (np.diff(valid.indptr) > 0)
    has_neither = ~has_test & ~has_valid
    has_nothing = has_neither & (np.diff(seen.indptr) == 0)
    positives = _select([(has_test, test), (has_valid, valid), (has_neither, seen)])
    masked = _select([(has_test, before_test), (has_valid, without(excluded, valid))])
    basis = np.select([has_test, has_valid, has_nothing], ["test", "valid", "nothing"], "history")
    return basis.tolist(), positives, masked


def _select(parts: list[tuple[npt.NDArray[np.bool_], Any]]) -> Any:
    """A CSR matrix with the chosen rows of each matrix; a row is chosen at most once."""
    matrix = sum(sparse.diags(chosen.astype(np.float32)) @ rows for chosen, rows in parts).tocsr()
    matrix.eliminate_zeros()
    matrix.sort_indices()
    return matrix


def _best_first(fitted: Fitted, users: Indices, positives: Any) -> list[npt.NDArray[np.int64]]:
    """Each user's positives by descending score."""
    scores, ordered = np.empty((1, len(fitted.item_ids)), np.float32), []
    for n, items in enumerate(np.split(positives.indices, positives.indptr[1:-1])):
        fitted.scorer.scores_into(users[n : n + 1], scores)
        ordered.append(items[np.argsort(-scores[0, items], kind="stable")])
    return ordered


def spread_users(fitted: Fitted, n: int) -> npt.NDArray[np.int64]:
    """Indices of at most n users, spread evenly from the least to the most active.

    Only users with held-out events are chosen, if there are any.
    """
    activity = np.diff(fitted.histories.indptr)
    held_out = sum(np.diff(pairs.indptr) for pairs in fitted.held_out.values())
    candidates = np.flatnonzero(held_out) if fitted.held_out else np.flatnonzero(activity)
    if not len(candidates):
        candidates = np.arange(len(activity))
    return evenly_spaced(candidates[np.argsort(activity[candidates], kind="stable")], n)


def evenly_spaced(values: npt.NDArray[Any], n: int) -> npt.NDArray[Any]:
    """At most n of the values, including the first and the last.

    >>> evenly_spaced(np.arange(10), 4).tolist()
    [0, 3, 6, 9]
    """
    if len(values) <= n:
        return values
    return values[np.linspace(0, len(values) - 1, n).round().astype(np.int64)]


def find_users(user_ids: IdMap, text: str, limit: int = _MAX_MATCHES) -> list[str]:
    """Ids that start with `text`, then ids that contain it elsewhere; case is ignored."""
    starts = pc.starts_with(user_ids.text, pattern=text, ignore_case=True)
    contains = pc.match_substring(user_ids.text, pattern=text, ignore_case=True)
    first = np.flatnonzero(starts)[:limit]
    others = np.flatnonzero(pc.and_not(contains, starts))[: limit - len(first)]
    return id_texts(user_ids, np.concatenate([first, others]))


def id_texts(ids: IdMap, indices: npt.NDArray[Any]) -> list[str]:
    """The ids of these indices as text."""
    texts: list[str] = ids.text.take(pa.array(np.asarray(indices, np.int64))).to_pylist()
    return texts
