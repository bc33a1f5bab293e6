"""One user: what they have, what they are recommended, and where their held-out items stand.

All that AUC and its partial forms need is how many negatives stand above or level with each
positive (a tie counts as lost, as the metric has it); the ROC curve is drawn from the same numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from scipy import sparse

from llpauc.data.histories import without
from llpauc.data.interactions import IdMap, Indices
from llpauc.evaluation.ranking import rank, tile_users
from llpauc.recommend.fitted import Fitted

TOP = 20
MOST_SHOWN = 200  # items of a history, or of those held out; ranks are kept of all
_MOST_FOUND = 12

On = Literal["test", "valid", "history", "nothing"]


@dataclass(frozen=True)
class View:
    """A user as a page shows them; items are rows.

    Args:
        on: which events are the positives: test, valid, or, where none were held out, the user's
            own history, on which every model looks better than it is.
        ranks: of each positive the negatives that score as high or higher, best positive first.
        n_neg: number of negatives.
        positives: items of `ranks`, at most `MOST_SHOWN`; empty where they are the history.
        history: at most `MOST_SHOWN` items the user has, in no order of time.
        n_history: how many there are.
        top: the best `TOP` items the user does not have.
        scores: of `top`.
    """

    on: On
    ranks: npt.NDArray[np.int64]
    n_neg: int
    positives: npt.NDArray[np.int64]
    history: npt.NDArray[np.int64]
    n_history: int
    top: npt.NDArray[np.int64]
    scores: npt.NDArray[np.float32]


def view_users(fitted: Fitted, rows: npt.NDArray[Any]) -> list[View]:
    """The views of these users, by row."""
    users = np.asarray(rows, np.int32)
    histories = fitted.histories[users]
    on, positives, masked = _positives(fitted, users)
    best = rank(fitted.scorer, users, TOP, masked=histories)
    counts = rank(fitted.scorer, users, 1, masked=masked, positives=positives).counts
    assert counts is not None
    ordered = _best_first(fitted, users, positives)
    seen = np.split(histories.indices, histories.indptr[1:-1])
    reached = np.split(counts.above.astype(np.int64) + counts.tied, counts.indptr[1:-1])
    made = []
    for place, part in enumerate(on):
        there = best.items[place] >= 0
        shown = ordered[place] if part in ("test", "valid") else ordered[place][:0]
        made.append(
            View(
                part,
                reached[place],
                int(counts.n_neg[place]),
                shown[:MOST_SHOWN],
                seen[place][:MOST_SHOWN],
                len(seen[place]),
                best.items[place][there],
                best.scores[place][there],
            )
        )
    return made


def _positives(fitted: Fitted, users: Indices) -> tuple[list[On], Any, Any]:
    """Of each user: which events are positive, those events, and what is neither.

    As `evaluation` masks "seen": train, and validation events too when testing.
    """
    seen = fitted.histories[users]
    empty = sparse.csr_matrix(seen.shape, dtype=np.float32)
    valid, test = (
        fitted.held_out[part][users] if part in fitted.held_out else empty
        for part in ("valid", "test")
    )
    before = seen.maximum(valid)
    test = without(test, before)
    by_test = np.diff(test.indptr) > 0
    by_valid = ~by_test & (np.diff(valid.indptr) > 0)
    by_history = ~by_test & ~by_valid
    nothing = by_history & (np.diff(seen.indptr) == 0)
    positives = _rows(by_test, test) + _rows(by_valid, valid) + _rows(by_history, seen)
    masked = _rows(by_test, before) + _rows(by_valid, without(seen, valid))
    kinds = np.select([by_test, by_valid, nothing], ["test", "valid", "nothing"], "history")
    return kinds.tolist(), _tidy(positives), _tidy(masked)


def _rows(kept: npt.NDArray[np.bool_], matrix: Any) -> Any:
    return sparse.diags(kept.astype(np.float32)) @ matrix


def _tidy(matrix: Any) -> Any:
    made = matrix.tocsr()
    made.eliminate_zeros()
    made.sort_indices()
    return made


def _best_first(fitted: Fitted, users: Indices, positives: Any) -> list[npt.NDArray[np.int64]]:
    """Each user's positives by descending score."""
    tile = tile_users(len(fitted.item_ids))
    block = np.empty((tile, len(fitted.item_ids)), np.float32)
    ordered = []
    for start in range(0, len(users), tile):
        stop = min(start + tile, len(users))
        # Whole tiles, as `rank` takes them: the scores are the same to the bit.
        fitted.scorer.scores_into(
            users[np.minimum(np.arange(start, start + tile), len(users) - 1)], block
        )
        for place in range(start, stop):
            own = positives.indices[positives.indptr[place] : positives.indptr[place + 1]]
            ordered.append(own[np.argsort(-block[place - start][own], kind="stable")])
    return ordered


class ItemTable:
    """The items that views name, each once: [id, title or None].

    Args:
        titles: by id.
    """

    def __init__(self, titles: Mapping[str, str]) -> None:
        self._titles, self._place = titles, dict[str, int]()
        self.entries: list[list[str | None]] = []

    def places(self, ids: IdMap, rows: npt.NDArray[Any]) -> list[int]:
        return [self._add(text) for text in _texts(ids, rows)]

    def _add(self, text: str) -> int:
        if text not in self._place:
            self._place[text] = len(self.entries)
            self.entries.append([text, self._titles.get(text)])
        return self._place[text]


def as_json(view: View, ids: IdMap, table: ItemTable) -> dict[str, Any]:
    """Plain JSON with places in `table` for items; ranks as differences, which are short."""
    return {
        "on": view.on,
        "steps": np.diff(view.ranks, prepend=0).tolist(),
        "n_neg": view.n_neg,
        "positives": table.places(ids, view.positives),
        "history": table.places(ids, view.history),
        "n_history": view.n_history,
        "top": table.places(ids, view.top),
        "scores": [float(f"{score:.6g}") for score in view.scores.tolist()],
    }


def spread_users(fitted: Fitted, n: int) -> npt.NDArray[np.int64]:
    """Indices of at most n users, evenly from the least to the most active.

    Those with held-out events alone, where there are any.
    """
    activity = np.diff(fitted.histories.indptr)
    held = sum(np.diff(pairs.indptr) for pairs in fitted.held_out.values())
    pool = np.flatnonzero(held) if fitted.held_out else np.flatnonzero(activity)
    if not len(pool):
        pool = np.arange(len(activity))
    ordered = pool[np.argsort(activity[pool], kind="stable")]
    return evenly(ordered, n)


def evenly(values: npt.NDArray[Any], n: int) -> npt.NDArray[Any]:
    """At most n of the values, first and last among them.

    >>> evenly(np.arange(10), 4).tolist()
    [0, 3, 6, 9]
    """
    if len(values) <= n:
        return values
    return values[np.linspace(0, len(values) - 1, n).round().astype(np.int64)]


def find_users(ids: IdMap, text: str, most: int = _MOST_FOUND) -> list[str]:
    """Users whose id begins with `text`, then those that have it elsewhere; case is one."""
    begins = pc.starts_with(ids.text, pattern=text, ignore_case=True)
    has = pc.match_substring(ids.text, pattern=text, ignore_case=True)
    first = np.flatnonzero(begins)[:most]
    then = np.flatnonzero(pc.and_not(has, begins))[: most - len(first)]
    return _texts(ids, np.concatenate([first, then]))


def _texts(ids: IdMap, rows: Sequence[int] | npt.NDArray[Any]) -> list[str]:
    told: list[str] = ids.text.take(pa.array(np.asarray(rows, np.int64))).to_pylist()
    return told
