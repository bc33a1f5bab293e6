"""Lists from an inverted file of faiss: some of the items are looked at, not all.

For catalogues where looking at all takes too long, and for models of vectors alone. The items are
put into cells; a user is compared with the items of the cells nearest to their vector. How many
cells: as few as find the wanted share of the exact lists for a sample of users. The share that is
told at the end is measured on other users.

Needs `pip install 'llpauc[faiss]'`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from llpauc.data.interactions import Indices, pair_codes
from llpauc.errors import InputError, check_fraction
from llpauc.evaluation.scorer import FactorScorer, Scores
from llpauc.recommend.fitted import Fitted
from llpauc.recommend.lists import UserRows, Wanted

RECALL = 0.95
_SAMPLE = 200  # users of whom the exact lists are made, once to choose and once to measure
_FOUND_BYTES = 16 << 20  # what a search may answer at once
_ITEMS_A_CELL = 40  # that train its centre; faiss warns below 39


class ApproximateRanker:
    """ProcessGroup blocks of users as `Fitted.rank_rows` does, nearly.

    Lists are ordered like exact ones, by score and then by item row. Nobody's list is shorter than
    an exact one: where the cells looked at hold too few items, the user is ranked exactly.

    Args:
        fitted: a model of vectors.
        wanted: what the lists may hold.
        recall: share of the exact lists that is to be found for the sample.
        seed: of the sample and of the cells.
    """

    def __init__(
        self, fitted: Fitted, wanted: Wanted, *, recall: float = RECALL, seed: int = 0
    ) -> None:
        faiss = _faiss()
        check_fraction("recall", recall)
        if not isinstance(fitted.scorer, FactorScorer):
            raise InputError(
                "approximate lists need a model of vectors (mf, lightgcn, itemsum);"
                " leave --approximate out"
            )
        self._fitted, self._wanted, self._scorer = fitted, wanted, fitted.scorer
        n_items = len(fitted.item_ids)
        self._is_shown = np.ones(n_items, bool)
        if wanted.hidden is not None:
            self._is_shown[wanted.hidden] = False
        shown = np.flatnonzero(self._is_shown)
        self._shown = shown.astype(np.int32)
        self._k = min(wanted.k, n_items)
        rng = np.random.default_rng(seed)
        vectors = np.ascontiguousarray(fitted.scorer.item_vectors[shown])
        self.cells = int(np.clip(4 * len(shown) ** 0.5, 1, max(len(shown) // 39, 1)))
        quantizer = faiss.IndexFlatIP(vectors.shape[1])
        self._index = faiss.IndexIVFFlat(
            quantizer, vectors.shape[1], self.cells, faiss.METRIC_INNER_PRODUCT
        )
        self._index.cp.seed = seed + 1
        some = rng.permutation(len(shown))[: _ITEMS_A_CELL * self.cells]
        self._index.train(vectors[np.sort(some)])
        self._index.add(vectors)
        people = rng.permutation(len(fitted.user_ids))[: 2 * _SAMPLE].astype(np.int64)
        half = max(len(people) // 2, 1)
        self._judges = people[half:] if len(people) > 1 else people
        self.looked_at = self._choose_cells(people[:half], recall)

    def _choose_cells(self, people: UserRows, recall: float) -> int:
        """The least number of cells, of 1, 2, 4, ... and all, that finds enough."""
        exact = self._exact(people)[0]
        looked_at = 1
        while looked_at < self.cells:
            self._index.nprobe = looked_at
            if _share_found(exact, self(people)[0]) >= recall:
                return looked_at
            looked_at *= 2
        self._index.nprobe = self.cells
        return self.cells

    def __call__(self, rows: UserRows) -> tuple[Indices, Scores]:
        items = np.full((len(rows), self._k), -1, np.int32)
        scores = np.full((len(rows), self._k), -np.inf, np.float32)
        exact = rows < 0
        known = np.flatnonzero(~exact)
        for some, need in self._searches(rows, known):
            found, lengths = self._search(rows[some], need, items, scores, some)
            exact[some] = lengths < found
        if exact.any():
            items[exact], scores[exact] = self._exact(rows[exact])
        return items, scores

    def measured_recall(self) -> tuple[float, int]:
        """Share of the exact lists that is found, and for how many users it was measured."""
        exact, found = self._exact(self._judges)[0], self(self._judges)[0]
        return _share_found(exact, found), len(self._judges)

    def _exact(self, rows: UserRows) -> tuple[Indices, Scores]:
        wanted = self._wanted
        return self._fitted.rank_rows(
            rows, self._k, wanted.exclude_seen, wanted.hidden, memory_mb=wanted.memory_mb
        )

    def _searches(
        self, rows: UserRows, known: npt.NDArray[np.int64]
    ) -> Iterator[tuple[npt.NDArray[np.int64], int]]:
        """Places of users who are searched for together, and how many items each needs.

        k and as many as the user has may be found before k new ones are. Those with long histories
        go apart, or everybody would be asked for as many items as they.
        """
        starts = self._fitted.histories.indptr
        had = (starts[rows[known] + 1] - starts[rows[known]]) * self._wanted.exclude_seen
        need = np.minimum(self._k + had, len(self._shown))
        need = np.minimum(2 ** np.ceil(np.log2(need)).astype(np.int64), len(self._shown))
        for size in np.unique(need):
            group = known[need == size]
            step = max(1, _FOUND_BYTES // (12 * int(size)))
            for start in range(0, len(group), step):
                yield group[start : start + step], int(size)

    def _search(
        self,
        rows: UserRows,
        need: int,
        items: Indices,
        scores: Scores,
        into: npt.NDArray[np.int64],
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Fill the rows `into`; how many items each list could have, and how many it has."""
        values, places = self._index.search(self._scorer.user_vectors[rows], need)
        found = np.where(places >= 0, self._shown[places], -1)
        free = places >= 0
        left = np.full(len(rows), len(self._shown))
        if self._wanted.exclude_seen:
            seen = self._fitted.histories[rows]
            whose = np.repeat(np.arange(len(rows)), np.diff(seen.indptr))
            n_items = len(self._fitted.item_ids)
            asked = pair_codes(np.arange(len(rows))[:, None], found, n_items)
            free &= ~np.isin(asked, pair_codes(whose, seen.indices, n_items))
            left -= np.bincount(whose, self._is_shown[seen.indices], len(rows)).astype(np.int64)
        values = np.where(free, values, -np.inf)
        found = np.where(free, found, len(self._fitted.item_ids))
        order = np.lexsort((found, -values), axis=1)[:, : self._k]
        wide = order.shape[1]
        best = np.take_along_axis(values, order, axis=1)
        chosen = np.take_along_axis(found, order, axis=1)
        items[into, :wide] = np.where(np.isfinite(best), chosen, -1)
        scores[into, :wide] = best
        return np.minimum(left, self._k), np.minimum(free.sum(axis=1), self._k)


def _share_found(exact: Indices, found: Indices) -> float:
    """Of the items in the exact lists, those in the others."""
    there = exact >= 0
    hits = sum(np.isin(own[own >= 0], other).sum() for own, other in zip(exact, found, strict=True))
    return float(hits / max(there.sum(), 1))


def _faiss() -> Any:
    try:
        import faiss
    except ImportError:
        raise InputError(
            "approximate lists need faiss; install it with: pip install 'llpauc[faiss]'"
        ) from None
    return faiss
