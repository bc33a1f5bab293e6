"""Recommendation lists as tables of (user, item, rank, score).

`write_recommendations` ranks and writes in blocks of users, so that a million lists take no more
memory than one block. `write_lists` writes lists that are in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from llpauc.data.ids import IdMap, Indices, as_id_text
from llpauc.distributed import current_process_group
from llpauc.errors import InputError, check_at_least
from llpauc.evaluation.ranking import THREAD_BYTES, available_address_space, tile_bytes
from llpauc.evaluation.scorer import Scores
from llpauc.recommend.fitted import Fitted
from llpauc.recommend.list_files import open_list_file
from llpauc.recommend.rules import GroupLimit

UserIndices = npt.NDArray[np.int64]
Ranker = Callable[[UserIndices], tuple[Indices, Scores]]

MEMORY_MB = 1024.0
_MAX_LIST_BYTES = 64 << 20
_WRITER_BYTES = 8 << 20  # pages of a Parquet file, and memory that Arrow's pool holds


@dataclass(frozen=True)
class Recommendations:
    """Lists of equal length in memory, best first; places without a recommendation are None.

    Args:
        users: n user ids.
        items: (n, k) item ids.
        scores: (n, k), -inf where there is no recommendation.
    """

    users: Sequence[Any]
    items: npt.NDArray[Any]
    scores: npt.NDArray[np.float32]

    @cached_property
    def _is_filled(self) -> npt.NDArray[np.bool_]:
        return np.isfinite(self.scores)

    @property
    def count(self) -> int:
        """The number of recommendations."""
        return int(self._is_filled.sum())

    def table(self) -> pa.Table:
        """Columns user, item, rank, score; ids in their original type."""
        users, items = (
            IdMap(*as_id_text(ids)) for ids in (self.users, self.items[self._is_filled])
        )
        return _table(users.arrow(), items.arrow(), self._is_filled, self.scores)

    def rows(self) -> list[list[Any]]:
        """[user, item, rank, score] for a table on the screen."""
        return [
            [str(row["user"]), str(row["item"]), row["rank"], round(row["score"], 4)]
            for row in self.table().to_pylist()
        ]

    def as_dicts(self) -> list[dict[str, Any]]:
        """One dict per user, also for users without a recommendation."""
        lists = zip(self.users, self.items.tolist(), self.scores, strict=True)
        return [
            {
                "user": user,
                "items": [
                    {"item": item, "score": float(score)}
                    for item, score in zip(items, scores, strict=True)
                    if np.isfinite(score)
                ],
            }
            for user, items, scores in lists
        ]


def _table(
    users: pa.Array, items: pa.Array, is_filled: npt.NDArray[np.bool_], scores: Scores
) -> pa.Table:
    """`users` are n ids, `items` one id per True in the (n, k) mask `is_filled`."""
    user, place = np.nonzero(is_filled)
    columns = [users.take(pa.array(user)), items, place + 1, scores[is_filled]]
    return pa.table(columns, names=["user", "item", "rank", "score"])


def write_lists(lists: Recommendations, path: str | Path) -> None:
    """Write lists atomically; the suffix is the format (see `LIST_FORMATS`)."""
    with open_list_file(path) as write:
        write(lists.table())


@dataclass(frozen=True)
class ListUsers:
    """The users that get lists.

    Args:
        indices: in the fitted model, -1 for users that it does not know.
        ids: their ids, in the order of `indices`.
    """

    indices: UserIndices
    ids: IdMap

    @staticmethod
    def all_of(fitted: Fitted) -> ListUsers:
        return ListUsers(np.arange(len(fitted.user_ids)), fitted.user_ids)

    @staticmethod
    def given(fitted: Fitted, ids: Sequence[Any]) -> ListUsers:
        """Users in the given order; ids in the type of the model's ids if all of them fit it."""
        text, _ = as_id_text(ids)
        requested = IdMap(text, fitted.user_ids.kind)
        try:
            fits = requested.arrow().cast(pa.large_string()).equals(text)
        except pa.ArrowInvalid:  # text ids for a model with integer ids
            fits = False
        return ListUsers(fitted.user_ids.indices(text), requested if fits else IdMap(text))

    @property
    def n_unknown(self) -> int:
        return int((self.indices < 0).sum())


@dataclass(frozen=True)
class ListRequest:
    """What a list may hold, and how much memory may be used.

    Args:
        k: length of the lists, at least 1; at most the number of items is used.
        exclude_seen: leave out items of the user's history.
        hidden: indices of items that are not recommended.
        limit: on the items of a group.
        memory_mb: memory besides the model: scores, a block of lists, and its rows as written.
    """

    k: int = 20
    exclude_seen: bool = True
    hidden: Indices | None = None
    memory_mb: float = MEMORY_MB
    limit: GroupLimit | None = None


@dataclass(frozen=True)
class WriteSummary:
    """Counts of a written file.

    Args:
        users: requested.
        empty: users without any item left to recommend.
        rows: recommendations.
        block: users whose lists were in memory at the same time.
    """

    users: int
    empty: int
    rows: int
    block: int


def hidden_items(
    n_items: int, *allowed: npt.ArrayLike | None, deny: npt.ArrayLike | None = None
) -> Indices | None:
    """Indices of the items that are not recommended, ascending: denied ones and those that are not
    in every given set of allowed ones.

    >>> hidden_items(5, [1, 2, 3], None, deny=[2])
    array([0, 2, 4], dtype=int32)
    """
    sets = [np.asarray(one, np.int64) for one in allowed if one is not None]
    if not sets and deny is None:
        return None
    shown = np.ones(n_items, bool)
    for one in sets:
        shown &= np.isin(np.arange(n_items), one)
    if deny is not None:
        shown[np.asarray(deny, np.int64)] = False
    if not shown.any():
        raise InputError("no item is left to recommend; allow more, or deny fewer")
    return np.flatnonzero(~shown).astype(np.int32)


def users_per_block(fitted: Fitted, users: ListUsers, request: ListRequest) -> tuple[int, float]:
    """The number of users whose lists are in memory at the same time, and the MB for scores."""
    k = min(check_at_least("k", request.k, 1), len(fitted.item_ids))
    id_bytes = 8 * 2 + _longest(users.ids) + _longest(fitted.item_ids)
    # An item, a score and their places; then a row of a table; then a line or a page of the file.
    row = 48 + 3 * (id_bytes + 16)
    history = 16 * fitted.histories.nnz // max(len(fitted.user_ids), 1)
    one = k * row + (history if request.exclude_seen else 0)
    least = tile_bytes(len(fitted.item_ids))
    memory, remedy = int(request.memory_mb * 2**20), "raise memory_mb (--memory-mb)"
    available = available_address_space()
    if available is not None and available - THREAD_BYTES < memory:
        memory, remedy = max(available - THREAD_BYTES, 0), "raise the limit on memory (ulimit -v)"
    if least + one + _WRITER_BYTES > memory:
        raise InputError(
            f"a list of {k:,} items takes {one:,} bytes, the scores to choose them from {least:,}"
            f" and writing {_WRITER_BYTES:,}, but only {memory:,} are allowed; {remedy}"
        )
    lists = max(one, min(_MAX_LIST_BYTES, (memory - least - _WRITER_BYTES) // 2))
    return lists // one, (memory - lists) / 2**20


def _longest(ids: IdMap) -> int:
    return (pc.max(pc.binary_length(ids.text)).as_py() or 0) if len(ids) else 0


def write_recommendations(
    fitted: Fitted,
    path: str | Path,
    request: ListRequest,
    users: ListUsers | None = None,
    *,
    ranker: Ranker | None = None,
    tag: str = "llpauc",
    progress: Callable[[int], None] | None = None,
) -> WriteSummary:
    """Rank users block by block and write their lists atomically.

    Several processes divide each block, and the first one writes.

    Args:
        fitted: the model.
        path: its suffix is the format, see `LIST_FORMATS`.
        request: what lists may hold, and the memory.
        users: all users of the model by default.
        ranker: ranks a block instead of the exact ranking.
        tag: last field of a TREC run, the name of the method.
        progress: called with the number of users done since the last call.
    """
    users = ListUsers.all_of(fitted) if users is None else users
    processes = current_process_group()
    block, score_mb = users_per_block(fitted, users, request)
    block = int(processes.all_gather([block]).min())
    # The exact ranking reports progress by itself, of the users that it knows.
    reported_here = np.ones(len(users.indices), bool) if ranker is not None else users.indices < 0
    if ranker is None:
        ranker = partial(
            fitted.rank_users,
            k=request.k,
            exclude_seen=request.exclude_seen,
            hidden=request.hidden,
            limit=request.limit,
            memory_mb=score_mb,
            progress=progress,
        )
    item_ids = fitted.item_ids
    if request.hidden is not None:
        shown = np.setdiff1d(np.arange(len(item_ids)), request.hidden)
        item_ids = IdMap(item_ids.text.take(pa.array(shown)), item_ids.kind)
    rows = empty = 0
    opened: AbstractContextManager[Callable[[Any], None]] = nullcontext(lambda table: None)
    if processes.is_first:
        opened = open_list_file(path, tag, expected_ids=(users.ids, item_ids))
    with opened as write:
        for start in range(0, max(len(users.indices), 1), block):
            in_block = slice(start, start + block)
            indices = users.indices[in_block]
            ranked = ranker(indices[processes.slice_of(len(indices))])
            items, scores = map(processes.gather, ranked)
            is_filled = items >= 0
            user_ids = users.ids.arrow(np.arange(start, start + len(items)))
            write(_table(user_ids, fitted.item_ids.arrow(items[is_filled]), is_filled, scores))
            rows += int(is_filled.sum())
            empty += int((~is_filled.any(axis=1)).sum())
            if progress is not None:
                progress(int(reported_here[in_block].sum()))
    return WriteSummary(len(users.indices), empty, rows, block)
