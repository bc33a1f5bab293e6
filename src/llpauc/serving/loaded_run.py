"""A run as the server holds it, and the ranking of several requested lists in one call."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from llpauc.data.catalogue import Catalogue
from llpauc.data.ids import IdMap, Indices
from llpauc.errors import InputError
from llpauc.evaluation.ranking import rank
from llpauc.evaluation.scorer import ByHistory, Constant, Scorer, Scores
from llpauc.recommend import Recommender
from llpauc.recommend.fitted import Fitted
from llpauc.recommend.rules import GroupLimit
from llpauc.report.page_data import run_summary
from llpauc.storage import run_folder
from llpauc.storage.manifest import manifest_bytes

ItemIndices = npt.NDArray[np.int64]
Entry = tuple[Any, float]  # an item id and its score

_ATTEMPTS = 5  # while a run is replaced, its folder may be missing for a moment
_PAUSE = 0.1  # seconds between attempts
_CHUNK = 1000  # ids converted before other threads can run


class IdTable:
    """Ids as Python objects: for the few ids of a request, a dict is faster than Arrow."""

    def __init__(self, id_map: IdMap) -> None:
        self.ids: list[Any] = []  # in the type of the data
        self._indices: dict[str, int] = {}
        for start in range(0, len(id_map), _CHUNK):
            texts = id_map.text.slice(start, _CHUNK).to_pylist()
            self._indices.update(zip(texts, range(start, start + len(texts)), strict=True))
            self.ids += texts if id_map.kind == "string" else map(int, texts)
            time.sleep(0)  # release the interpreter lock, so that requests are still answered

    def indices(self, ids: Sequence[Any]) -> ItemIndices:
        """The index of each id, -1 if it is unknown; 7 and "7" are the same id."""
        return np.array([self._indices.get(str(one), -1) for one in ids], np.int64)


@dataclass(frozen=True)
class LoadedRun:
    """A complete run: model, ids and histories."""

    run_id: str  # of the manifest, which contains the SHA-256 of every other file
    recommender: Recommender
    users: IdTable
    items: IdTable
    item_units: Scores | None  # item vectors of length 1; None for models without item vectors
    summary: Mapping[str, Any] = field(default_factory=dict)  # from `run_summary`, for the page
    titles: Mapping[str, str] = field(default_factory=dict)  # item id -> title, for the page

    @property
    def fitted(self) -> Fitted:
        return self.recommender.require_fitted()

    @property
    def about(self) -> dict[str, Any]:
        return {
            "run": self.run_id,
            "model": self.recommender.model,
            "users": len(self.users.ids),
            "items": len(self.items.ids),
        }

    def history(self, user_idx: int) -> npt.NDArray[Any]:
        """Item indices of a user."""
        return _row(self.fitted.histories, user_idx)


@dataclass(frozen=True)
class ListRequest:
    """One list, for a known user or for a new user with a history; items are indices."""

    k: int
    user_idx: int = -1  # -1 for a new user
    history: ItemIndices | None = None  # of a new user
    exclude_seen: bool = True  # leave out the items of the history, as the rules of the run say
    allow: ItemIndices | None = None  # choose from these only
    deny: ItemIndices | None = None  # leave these out
    limit: GroupLimit | None = None  # on the items of a group


# --- loading ------------------------------------------------------------------------------------


def current_run_id(folder: Path) -> str | None:
    """The id of the run in `folder`; None if there is none."""
    try:
        return hashlib.sha256(manifest_bytes(folder)).hexdigest()[:16]
    except OSError:
        return None


def load_run(
    folder: Path,
    signing_key: str | None = None,
    exclude: str | None = None,
    catalogue: Catalogue | None = None,
) -> LoadedRun:
    """Load the run in `folder` and rank once, so that the first request is not slow.

    `exclude` replaces the rule of the run, see `Fitted.excluding`; a given catalogue replaces that
    of the run.

    Raises:
        InputError: the folder contains no run, or a damaged one, or values that are not finite, or
            it is not signed with the key.
    """
    for _ in range(_ATTEMPTS):
        run_id, problem = current_run_id(folder), None
        try:
            saved = run_folder.load(folder, signing_key=signing_key)
            recommender = Recommender.from_run(saved, folder)
        except InputError as error:
            problem = error
        if run_id is not None and run_id == current_run_id(folder):  # not replaced meanwhile
            break
        time.sleep(_PAUSE)
    else:
        raise problem or InputError(f"{folder}: is being replaced again and again; try again later")
    if problem is not None:
        raise problem
    if catalogue is not None:
        recommender.set_items(catalogue)
    recommender.fitted = fitted = recommender.require_fitted().excluding(exclude)
    for name, values in fitted.tensors().items():
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise InputError(f"the run's {name} are not all finite: it has diverged; train again")
    users, items = IdTable(fitted.user_ids), IdTable(fitted.item_ids)
    summary = run_summary(saved, fitted, folder.resolve().name)
    titles = {} if fitted.catalogue is None else fitted.catalogue.titles()
    run = LoadedRun(run_id, recommender, users, items, fitted.model.item_units(), summary, titles)
    # The first use compiles the kernels.
    rank_lists(run, [ListRequest(k=1, user_idx=0), ListRequest(k=1, history=np.zeros(1, np.int64))])
    similar_items(run, 0, 1)
    return run


# --- ranking ------------------------------------------------------------------------------------


def rank_lists(run: LoadedRun, requests: Sequence[ListRequest]) -> list[list[Entry]]:
    """The list of each request, best first; shorter than k if fewer items are left."""
    fitted = run.fitted
    known = [request for request in requests if request.history is None]
    new = [request for request in requests if request.history is not None]
    user_idx = np.array([request.user_idx for request in known], np.int32)
    histories = _csr([_history(run, request) for request in new], len(run.items.ids))
    by_history = ByHistory(fitted.model, histories, fitted.fallback)
    known_lists = iter(_rank(run, fitted.scorer, user_idx, known))
    new_lists = iter(_rank(run, by_history, np.arange(len(new), dtype=np.int32), new))
    return [next(known_lists if one.history is None else new_lists) for one in requests]


def similar_items(run: LoadedRun, item_idx: int, k: int) -> list[Entry]:
    """The k most similar items, as in `Recommender.similar_items`."""
    request = ListRequest(k, history=np.array([item_idx]))
    if run.item_units is None:
        return rank_lists(run, [request])[0]
    cosines = Constant(run.item_units @ run.item_units[item_idx])
    return _rank(run, cosines, np.zeros(1, np.int32), [request])[0]


def _rank(
    run: LoadedRun,
    scorer: Scorer,
    user_idx: npt.NDArray[np.int32],
    requests: Sequence[ListRequest],
) -> list[list[Entry]]:
    """Ranks with the largest k and cuts: a shorter list is the beginning of a longer one."""
    if not requests:
        return []
    ids = run.items.ids
    masked = _csr([_masked_items(run, request) for request in requests], len(ids))
    ranking = rank(scorer, user_idx, max(request.k for request in requests), masked=masked)
    lists = []
    rows = zip(requests, ranking.items.tolist(), ranking.scores.tolist(), strict=True)
    for place, (request, items, scores) in enumerate(rows):
        if request.limit is not None:
            one = slice(place, place + 1)

            def limited(_: Any, width: int, one: slice = one) -> tuple[Indices, Scores]:
                ranked = rank(scorer, user_idx[one], width, masked=masked[one])
                return ranked.items, ranked.scores

            found = request.limit.apply(limited, 1, min(request.k, len(ids)))
            items, scores = found[0][0].tolist(), found[1][0].tolist()
        pairs = zip(items[: request.k], scores[: request.k], strict=True)
        lists.append([(ids[item], score) for item, score in pairs if isfinite(score)])
    return lists


def _history(run: LoadedRun, request: ListRequest) -> npt.NDArray[Any]:
    return run.history(request.user_idx) if request.history is None else np.unique(request.history)


def _row(matrix: Any, user_idx: int) -> npt.NDArray[Any]:
    start, stop = matrix.indptr[user_idx : user_idx + 2]
    items: npt.NDArray[Any] = matrix.indices[start:stop]
    return items


def _masked_items(run: LoadedRun, request: ListRequest) -> npt.NDArray[Any]:
    """Item indices that may not be in the list, ascending."""
    seen: npt.NDArray[Any] = np.zeros(0, np.int64)
    if request.exclude_seen and request.history is None:
        seen = _row(run.fitted.excluded, request.user_idx)
    elif request.exclude_seen:
        seen = _history(run, request)
    if request.allow is None and request.deny is None:
        return seen
    allowed = np.full(len(run.items.ids), request.allow is None)
    for items, value in ((request.allow, True), (request.deny, False), (seen, False)):
        if items is not None:
            allowed[items] = value
    return np.flatnonzero(~allowed)


def _csr(rows: Sequence[npt.NDArray[Any]], n_columns: int) -> sparse.csr_matrix:
    """A matrix with ones in these columns of each row."""
    starts = np.cumsum([0, *map(len, rows)])
    columns = np.concatenate([np.zeros(0, np.int64), *rows])
    ones = np.ones(len(columns), np.float32)
    return sparse.csr_matrix((ones, columns, starts), shape=(len(rows), n_columns))
