"""A run as the server holds it, and many wishes ranked in one go."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from llpauc.data.interactions import IdMap, Indices
from llpauc.errors import InputError
from llpauc.evaluation.ranking import rank
from llpauc.evaluation.scorer import ByHistory, FactorScorer, Scores
from llpauc.models.fold_in import HistoryMap
from llpauc.recommend import Recommender
from llpauc.recommend.fitted import Fitted
from llpauc.report.runs import run_facts
from llpauc.serving.small_batches import multiply, rank_few, shared_columns
from llpauc.storage.manifest import MANIFEST
from llpauc.storage.run_folder import load as load_artifact

ItemRows = npt.NDArray[np.int64]
Entry = tuple[Any, float]  # an outside id and its score

_ATTEMPTS = 5  # without RENAME_EXCHANGE, a run being replaced is not there for a moment
_PAUSE = 0.1  # seconds between them
_AT_ONCE = 1000  # ids turned into Python's own objects before other threads have their turn


@dataclass(frozen=True)
class Ids:
    """Outside ids as Python's own objects: a request has a few, and Arrow takes a while for one.

    Args:
        outside: the id of each row, in the type it came in.
        rows: the row of each id's text.
    """

    outside: Sequence[Any]
    rows: Mapping[str, int]

    @staticmethod
    def of(ids: IdMap) -> Ids:
        outside: list[Any] = []
        rows: dict[str, int] = {}
        for start in range(0, len(ids), _AT_ONCE):
            stop = min(start + _AT_ONCE, len(ids))
            text = ids.text.slice(start, stop - start).to_pylist()
            rows.update(zip(text, range(start, stop), strict=True))
            outside += text if ids.kind == "string" else map(int, text)
            time.sleep(0)  # requests are answered meanwhile, and wait for this lock
        return Ids(outside, rows)

    def find(self, asked: Sequence[Any]) -> ItemRows:
        """The row of each id, -1 where it is unknown; 7 and "7" are one."""
        rows = [self.rows.get(one if type(one) is str else str(one), -1) for one in asked]
        return np.array(rows, np.int64)


@dataclass(frozen=True)
class Served:
    """One run, whole: whoever holds it has its weights, ids and histories.

    Args:
        run: the beginning of the SHA-256 of its manifest, which has that of every file.
        recommender: what was loaded.
        fitted: its arrays.
        users, items: its ids.
        columns: see `shared_columns`; None where `rank` does all of the work.
        units: (n_items, d) item vectors of length 1, for likeness; None for models without any.
        facts: what the page says of it.
    """

    run: str
    recommender: Recommender
    fitted: Fitted
    users: Ids
    items: Ids
    columns: Scores | None
    units: Scores | None
    facts: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(run: str, recommender: Recommender) -> Served:
        fitted = recommender.require_fitted()
        return Served(
            run, recommender, fitted, Ids.of(fitted.user_ids), Ids.of(fitted.item_ids),
            shared_columns(fitted), recommender.item_units(),
        )  # fmt: skip

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
            artifact = load_artifact(folder)
            recommender = Recommender.of_artifact(artifact, folder)
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
    _check_finite(recommender)
    served = Served.of(run, recommender)
    served = replace(served, facts=run_facts(artifact, served.fitted, folder.resolve().name))
    _warm_up(served)
    return served


def _check_finite(recommender: Recommender) -> None:
    for name, values in recommender.require_fitted().tensors().items():
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise InputError(f"the run's {name} are not all finite: it has diverged; train anew")


def _warm_up(served: Served) -> None:
    """Kernels are compiled, or read from the cache, on first use."""
    rank_wishes(served, [Wish(k=1, user=0), Wish(k=1, has=np.zeros(1, np.int64))])
    similar(served, 0, 1)


def similar(served: Served, item: int, k: int) -> list[Entry]:
    """The k items most like the one in row `item`, as `Recommender.similar_items` has them."""
    if served.units is None:
        ids, scores = served.recommender.similar_items(served.items.outside[item], k)
        pairs = zip(ids.tolist(), scores.tolist(), strict=True)
        return [(own, score) for own, score in pairs if own is not None]
    units = served.units

    def fill(start: int, stop: int, block: Scores) -> None:
        block[0] = units @ units[item]

    ranked = rank_few(fill, len(units), [np.array([item])], k)
    return _cut(served, *ranked, [k])[0]


def rank_wishes(served: Served, wishes: Sequence[Wish]) -> list[list[Entry]]:
    """The list of each wish, best first; shorter than its k where fewer items are left."""
    known = [place for place, wish in enumerate(wishes) if wish.has is None]
    new = [place for place, wish in enumerate(wishes) if wish.has is not None]
    lists: list[list[Entry]] = [[] for _ in wishes]
    for places, ranked in ((known, _rank_known), (new, _rank_new)):
        if places:
            own = [wishes[place] for place in places]
            for place, entries in zip(places, ranked(served, own), strict=True):
                lists[place] = entries
    return lists


def _rank_known(served: Served, wishes: Sequence[Wish]) -> list[list[Entry]]:
    fitted, columns = served.fitted, served.columns
    people = np.array([wish.user for wish in wishes], np.int32)
    if columns is None:
        return _by_rank(served, fitted.scorer, people, wishes)
    assert isinstance(fitted.scorer, FactorScorer)
    vectors = fitted.scorer.user_vectors[people]
    return _by_few(served, columns, vectors, wishes)


def _rank_new(served: Served, wishes: Sequence[Wish]) -> list[list[Entry]]:
    fitted, columns = served.fitted, served.columns
    histories = _csr([_has(served, wish) for wish in wishes], len(fitted.item_ids))
    if columns is None:
        scorer = ByHistory(fitted.by_items, histories, fitted.fallback)
        return _by_rank(served, scorer, np.arange(len(wishes), dtype=np.int32), wishes)
    assert isinstance(fitted.by_items, HistoryMap)
    vectors = fitted.by_items.vectors_of(histories)
    return _by_few(served, columns, vectors, wishes, np.diff(histories.indptr) == 0)


def _by_few(
    served: Served,
    columns: Scores,
    vectors: Scores,
    wishes: Sequence[Wish],
    of_nobody: npt.NDArray[np.bool_] | None = None,
) -> list[list[Entry]]:
    """Args: of_nobody: who is known by nothing, and gets the fallback."""

    def fill(start: int, stop: int, block: Scores) -> None:
        multiply(vectors[start:stop], columns, block)
        if of_nobody is not None:
            block[of_nobody[start:stop]] = served.fitted.fallback

    hidden = [_hidden(served, wish) for wish in wishes]
    ks = [wish.k for wish in wishes]
    return _cut(served, *rank_few(fill, columns.shape[1], hidden, max(ks)), ks)


def _by_rank(
    served: Served, scorer: Any, people: npt.NDArray[np.int32], wishes: Sequence[Wish]
) -> list[list[Entry]]:
    hidden = _csr([_hidden(served, wish) for wish in wishes], len(served.fitted.item_ids))
    ks = [wish.k for wish in wishes]
    ranking = rank(scorer, people, max(ks), masked=hidden)
    return _cut(served, ranking.items, ranking.scores, ks)


def _cut(served: Served, items: Indices, scores: Scores, ks: Sequence[int]) -> list[list[Entry]]:
    """Ranked with the longest k and cut: a shorter list is the beginning of a longer one."""
    outside = served.items.outside
    lists = []
    for k, rows, own in zip(ks, items.tolist(), scores.tolist(), strict=True):
        pairs = zip(rows[:k], own[:k], strict=True)
        lists.append([(outside[row], score) for row, score in pairs if isfinite(score)])
    return lists


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
