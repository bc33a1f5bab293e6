"""Recommendation lists as rows of (user, item, rank, score), for files and screens.

`write_recommendations` ranks and writes in blocks of users, so that a million lists take no more
memory than a block of them. `write_lists` writes lists that are there already.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from llpauc.data.interactions import IdMap, Indices, as_id_text
from llpauc.errors import InputError, check_at_least
from llpauc.evaluation.ranking import THREAD_BYTES, address_room, tile_bytes
from llpauc.evaluation.scorer import Scores
from llpauc.recommend.fitted import Fitted
from llpauc.recommend.list_files import open_lists

UserRows = npt.NDArray[np.int64]
Ranker = Callable[[UserRows], tuple[Indices, Scores]]

_MOST_LIST_BYTES = 64 << 20
_WRITER_BYTES = 8 << 20  # pages of a Parquet file, and what Arrow's pool keeps in hand
MEMORY_MB = 1024.0


# --- lists that are there ------------------------------------------------------------------------


@dataclass(frozen=True)
class ListRows:
    """Lists of equal length, best first; an item of None is no recommendation.

    Args:
        users: outside ids, n of them.
        items: (n, k) outside ids.
        scores: (n, k).
    """

    users: Sequence[Any]
    items: npt.NDArray[Any]
    scores: npt.NDArray[np.float32]

    @cached_property
    def _there(self) -> npt.NDArray[np.bool_]:
        return np.isfinite(self.scores)

    @property
    def count(self) -> int:
        return int(self._there.sum())

    def table(self) -> pa.Table:
        """Columns user, item, rank, score; ids in the type they came in."""
        items = _id_column(self.items[self._there])
        return _table(_id_column(self.users), items, self._there, self.scores)

    def head(self, rows: int) -> list[list[Any]]:
        table = self.table().slice(0, rows)
        return [
            [str(r["user"]), r["rank"], str(r["item"]), round(r["score"], 4)]
            for r in table.to_pylist()
        ]

    def as_dicts(self) -> list[dict[str, Any]]:
        return [
            {
                "user": user,
                "items": [
                    {"item": item, "score": float(score)}
                    for item, score in zip(items, scores, strict=True)
                    if np.isfinite(score)
                ],
            }
            for user, items, scores in zip(
                self.users, self.items.tolist(), self.scores, strict=True
            )
        ]


def _id_column(ids: Sequence[Any] | npt.NDArray[Any]) -> pa.Array:
    """In the type they came in, where Arrow's own guess fails on integers above 2^63."""
    return IdMap(*as_id_text(ids)).arrow()


def _table(users: pa.Array, items: pa.Array, there: npt.NDArray[np.bool_], scores: Scores) -> Any:
    """`users` are n, `items` and the rows of the table as many as are `there`, an (n, k) mask."""
    people, places = np.nonzero(there)
    return pa.table(
        {
            "user": users.take(pa.array(people)),
            "item": items,
            "rank": places + 1,
            "score": scores[there],
        }
    )


def write_lists(lists: ListRows, path: str | Path) -> None:
    """Write to a file whose ending says how (`list_files.KINDS`), by a temporary name."""
    with open_lists(path) as write:
        write(lists.table())


# --- lists that are made on the way ---------------------------------------------------------------


@dataclass(frozen=True)
class People:
    """Whom the lists are for.

    Args:
        rows: of the fitted model, -1 for somebody it does not know.
        ids: their outside ids, one a row of `rows`, in that order.
    """

    rows: UserRows
    ids: IdMap

    @staticmethod
    def all_of(fitted: Fitted) -> People:
        return People(np.arange(len(fitted.user_ids)), fitted.user_ids)

    @staticmethod
    def given(fitted: Fitted, ids: Sequence[Any]) -> People:
        """These, in this order; in the type of the model's ids where all of them fit it."""
        text, _ = as_id_text(ids)
        asked = IdMap(text, fitted.user_ids.kind)
        try:
            fits = asked.arrow().cast(pa.large_string()).equals(text)
        except pa.ArrowInvalid:  # a model of numbers, asked for a name
            fits = False
        return People(fitted.user_ids.indices(text), asked if fits else IdMap(text))

    @property
    def unknown(self) -> int:
        return int((self.rows < 0).sum())


@dataclass(frozen=True)
class Wanted:
    """What a list may hold, and what making it may cost.

    Args:
        k: length of the lists, at least 1; all items where there are fewer.
        exclude_seen: nobody is recommended what they have.
        hidden: item rows that nobody is recommended.
        memory_mb: most memory beside the model: scores under way, a block of lists, its rows as
            they are written.
    """

    k: int = 20
    exclude_seen: bool = True
    hidden: Indices | None = None
    memory_mb: float = MEMORY_MB


@dataclass(frozen=True)
class Written:
    """Figures of a file of lists.

    Args:
        users: asked for.
        empty: of them, those with no item left to recommend.
        rows: recommendations in all.
        block: users whose lists were held at once.
    """

    users: int
    empty: int
    rows: int
    block: int


def hide(n_items: int, allow: npt.ArrayLike | None, deny: npt.ArrayLike | None) -> Indices | None:
    """Item rows that nobody gets, ascending: all but those allowed, and those denied."""
    if allow is None and deny is None:
        return None
    shown = np.full(n_items, allow is None)
    if allow is not None:
        shown[np.asarray(allow, np.int64)] = True
    if deny is not None:
        shown[np.asarray(deny, np.int64)] = False
    if not shown.any():
        raise InputError("no item is left to recommend; allow more, or deny fewer")
    return np.flatnonzero(~shown).astype(np.int32)


def users_at_once(fitted: Fitted, people: People, wanted: Wanted) -> tuple[int, float]:
    """Users in a block, and the MB that are left for scores.

    Args:
        fitted: the model.
        people: whom the lists are for.
        wanted: k and the memory allowed.
    """
    k = min(check_at_least("k", wanted.k, 1), len(fitted.item_ids))
    texts = 8 * 2 + _longest(people.ids) + _longest(fitted.item_ids)
    # A row is an item, a score, their places, then a row of a table, then a line or a page of it.
    row = 48 + 3 * (texts + 16)
    history = 16 * fitted.histories.nnz // max(len(fitted.user_ids), 1)
    one = k * row + (history if wanted.exclude_seen else 0)
    least = tile_bytes(len(fitted.item_ids))
    memory, remedy = int(wanted.memory_mb * 2**20), "raise memory_mb (--memory-mb)"
    room = address_room()
    if room is not None and room - THREAD_BYTES < memory:
        memory, remedy = max(room - THREAD_BYTES, 0), "raise the limit on memory (ulimit -v)"
    if least + one + _WRITER_BYTES > memory:
        raise InputError(
            f"a list of {k:,} items takes {one:,} bytes, the scores to choose them from {least:,}"
            f" and writing {_WRITER_BYTES:,}, but only {memory:,} are allowed; {remedy}"
        )
    lists = max(one, min(_MOST_LIST_BYTES, (memory - least - _WRITER_BYTES) // 2))
    return lists // one, (memory - lists) / 2**20


def _longest(ids: IdMap) -> int:
    return (pc.max(pc.binary_length(ids.text)).as_py() or 0) if len(ids) else 0


def write_recommendations(
    fitted: Fitted,
    path: str | Path,
    wanted: Wanted,
    people: People | None = None,
    *,
    ranker: Ranker | None = None,
    tag: str = "llpauc",
    progress: Callable[[int], None] | None = None,
) -> Written:
    """Rank, and write as it goes; the file is there when all of it is.

    Args:
        fitted: the model.
        path: its ending says what is written, see `list_files.KINDS`.
        wanted: what lists may hold, and the memory.
        people: all users of the model unless given.
        ranker: another way to rank a block than the exact one.
        tag: last field of a TREC run, the name of the method.
        progress: called with the number of users done since the last call.
    """
    people = People.all_of(fitted) if people is None else people
    block, score_mb = users_at_once(fitted, people, wanted)
    if ranker is None:
        ranker = partial(
            fitted.rank_rows, k=wanted.k, exclude_seen=wanted.exclude_seen, hidden=wanted.hidden,
            memory_mb=score_mb, progress=progress,
        )  # fmt: skip
        # The ranking tells of the users it knows.
        told = people.rows < 0
    else:
        told = np.ones(len(people.rows), bool)
    written = empty = 0
    with open_lists(path, tag, check=(people.ids, _shown(fitted.item_ids, wanted.hidden))) as write:
        for start in range(0, max(len(people.rows), 1), block):
            some = slice(start, start + block)
            items, scores = ranker(people.rows[some])
            there = items >= 0
            place = np.arange(start, start + len(items))
            write(
                _table(people.ids.arrow(place), fitted.item_ids.arrow(items[there]), there, scores)
            )
            written += int(there.sum())
            empty += int((~there.any(axis=1)).sum())
            if progress is not None:
                progress(int(told[some].sum()))
    return Written(len(people.rows), empty, written, block)


def _shown(ids: IdMap, hidden: Indices | None) -> IdMap:
    if hidden is None:
        return ids
    return IdMap(ids.text.take(pa.array(np.setdiff1d(np.arange(len(ids)), hidden))), ids.kind)
