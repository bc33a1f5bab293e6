"""A run as the server holds it, and many wishes ranked in one go."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from llpauc.artifacts import MANIFEST
from llpauc.errors import InputError
from llpauc.interactions import IdMap
from llpauc.models.scorer import ByHistory, Scorer
from llpauc.ranking import rank
from llpauc.recommend import Recommender, outside
from llpauc.recommend.fitted import Fitted

ItemRows = npt.NDArray[np.int64]
Entry = tuple[Any, float]  # an outside id and its score

_ATTEMPTS = 5  # where a run is being replaced, its folder is not there for a moment
_PAUSE = 0.1  # seconds between them
_LOOKED_UP_AT_ONCE = 1000  # beyond that `IdMap.rows` makes a hash of all ids, for each request


@dataclass(frozen=True)
class Served:
    """One run, whole: whoever holds it has its weights, ids and histories.

    Args:
        run: the beginning of the SHA-256 of its manifest, which has that of every file.
        recommender: what was loaded.
        fitted: its arrays.
    """

    run: str
    recommender: Recommender
    fitted: Fitted

    @property
    def about(self) -> dict[str, Any]:
        return {
            "run": self.run,
            "model": self.recommender.model,
            "users": len(self.fitted.user_ids),
            "items": len(self.fitted.item_ids),
        }

    def items_of(self, user: int) -> npt.NDArray[Any]:
        """Item rows that a known user has."""
        histories = self.fitted.histories
        mine: npt.NDArray[Any] = histories.indices[
            histories.indptr[user] : histories.indptr[user + 1]
        ]
        return mine


@dataclass(frozen=True)
class Wish:
    """One list, for a known user or for somebody known by their items.

    Args:
        k: its length.
        user: row of a known user; -1 for somebody new.
        has: item rows of somebody new.
        exclude_seen: leave out what they have.
        allow: item rows to choose from, None for all.
        deny: item rows to leave out.
    """

    k: int
    user: int = -1
    has: ItemRows | None = None
    exclude_seen: bool = True
    allow: ItemRows | None = None
    deny: ItemRows | None = None


def run_id(folder: Path) -> str | None:
    """Which run lies in `folder`; None where there is none."""
    try:
        return hashlib.sha256((folder / MANIFEST).read_bytes()).hexdigest()[:16]
    except OSError:
        return None


def load_served(folder: Path) -> Served:
    """Load the run in `folder` and make it rank once, so that no request pays for a first time.

    Raises:
        InputError: the folder holds no run, or a damaged one, or one that gives no finite scores.
    """
    for _ in range(_ATTEMPTS):
        run, trouble = run_id(folder), None
        try:
            recommender = Recommender.load(folder)
        except InputError as error:
            trouble = error
        # One run before and after, or it was being replaced meanwhile.
        if run is not None and run == run_id(folder):
            break
        time.sleep(_PAUSE)
    else:
        raise trouble or InputError(f"{folder}: keeps being replaced; try again later")
    if trouble is not None:
        raise trouble
    fitted = recommender.fitted
    assert fitted is not None
    served = Served(run, recommender, fitted)
    _check_finite(served)
    _warm_up(served)
    return served


def _check_finite(served: Served) -> None:
    for name, values in served.fitted.tensors().items():
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise InputError(f"the run's {name} are not all finite: it has diverged; train anew")


def _warm_up(served: Served) -> None:
    """Compiled kernels and the hashes of both id maps are made on first use."""
    fitted = served.fitted
    some = find_rows(fitted.item_ids, fitted.item_ids.text.slice(0, 1).to_pylist())
    find_rows(fitted.user_ids, fitted.user_ids.text.slice(0, 1).to_pylist())
    rank_wishes(served, [Wish(k=1, user=0), Wish(k=1, has=some)])


def find_rows(ids: IdMap, asked: Sequence[Any]) -> ItemRows:
    """The row of each id, -1 where it is unknown."""
    steps = range(0, len(asked), _LOOKED_UP_AT_ONCE)
    found = [ids.rows(asked[step : step + _LOOKED_UP_AT_ONCE]) for step in steps]
    return np.concatenate(found) if found else np.zeros(0, np.int64)


def rank_wishes(served: Served, wishes: Sequence[Wish]) -> list[list[Entry]]:
    """The list of each wish, best first; shorter than its k where fewer items are left."""
    fitted = served.fitted
    known = [place for place, wish in enumerate(wishes) if wish.has is None]
    new = [place for place, wish in enumerate(wishes) if wish.has is not None]
    lists: list[list[Entry]] = [[] for _ in wishes]
    if known:
        rows = np.array([wishes[place].user for place in known], np.int32)
        _rank_into(lists, known, served, fitted.scorer, rows, wishes)
    if new:
        histories = _csr([_has(served, wishes[place]) for place in new], len(fitted.item_ids))
        scorer = ByHistory(fitted.by_items, histories, fitted.fallback)
        people = np.arange(len(new), dtype=np.int32)
        _rank_into(lists, new, served, scorer, people, wishes)
    return lists


def _rank_into(
    lists: list[list[Entry]],
    places: Sequence[int],
    served: Served,
    scorer: Scorer,
    people: npt.NDArray[np.int32],
    wishes: Sequence[Wish],
) -> None:
    """Rank with the longest k and cut: a shorter list is the beginning of a longer one."""
    mine = [wishes[place] for place in places]
    hidden = _csr([_hidden(served, wish) for wish in mine], len(served.fitted.item_ids))
    ranking = rank(scorer, people, max(wish.k for wish in mine), masked=hidden)
    ids = outside(served.fitted.item_ids, ranking.items).tolist()
    finite = np.isfinite(ranking.scores).sum(axis=1).tolist()
    for place, wish, own, scores, there in zip(
        places, mine, ids, ranking.scores.tolist(), finite, strict=True
    ):
        length = min(wish.k, there)
        lists[place] = list(zip(own[:length], scores[:length], strict=True))


def _has(served: Served, wish: Wish) -> npt.NDArray[Any]:
    return served.items_of(wish.user) if wish.has is None else np.unique(wish.has)


def _hidden(served: Served, wish: Wish) -> npt.NDArray[Any]:
    """Item rows that may not be in the list, ascending."""
    seen = _has(served, wish) if wish.exclude_seen else np.zeros(0, np.int64)
    if wish.allow is None and wish.deny is None:
        return seen
    shown = np.full(len(served.fitted.item_ids), wish.allow is None)
    for rows, is_shown in ((wish.allow, True), (wish.deny, False), (seen, False)):
        if rows is not None:
            shown[rows] = is_shown
    return np.flatnonzero(~shown)


def _csr(rows: Sequence[npt.NDArray[Any]], width: int) -> sparse.csr_matrix:
    """Ones at these columns of each row."""
    starts = np.concatenate([[0], np.cumsum([len(columns) for columns in rows])])
    columns = np.concatenate(rows)
    ones = np.ones(len(columns), np.float32)
    return sparse.csr_matrix((ones, columns, starts), shape=(len(rows), width))
