"""Approximate lists from an inverted file index of faiss.

The items are assigned to cells, and a user is compared with the items of the cells nearest to the
user's vector. The number of cells is the smallest one that finds the requested fraction of the
exact lists of a sample of users. The fraction that is reported is measured on other users.

For models with vectors and more than half a million items. Needs `pip install 'llpauc[faiss]'`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from llpauc.data.ids import Indices
from llpauc.data.interactions import pair_codes
from llpauc.errors import InputError, check_fraction
from llpauc.evaluation.scorer import Scores
from llpauc.recommend.fitted import Fitted
from llpauc.recommend.lists import ListRequest, UserIndices

RECALL = 0.95
_SAMPLE = 200  # users whose exact lists are computed, to choose and again to measure
_SEARCH_BYTES = 16 << 20  # of the result of one search
_ITEMS_PER_CELL = 40  # used to train the cells; faiss warns below 39

Positions = npt.NDArray[np.int64]


class ApproximateRanker:
    """Ranks a block of users approximately; a `Ranker` for `write_recommendations`.

    Lists are ordered like exact ones, by score and then by item index. No list is shorter than the
    exact one: a user for whom the searched cells hold too few items is ranked exactly.

    Args:
        fitted: a model with vectors.
        request: what the lists may hold.
        recall: fraction of the exact lists to find for the sample, in (0, 1].
        seed: of the sample and of the cells.

    Attributes:
        cells: number of cells.
        searched_cells: number of cells that are searched for each user.
    """

    def __init__(
        self, fitted: Fitted, request: ListRequest, *, recall: float = RECALL, seed: int = 0
    ) -> None:
        faiss = _faiss()
        check_fraction("recall", recall)
        scorer = fitted.model.vectors
        if scorer is None:
            raise InputError(
                f"approximate lists need a model with vectors, and {fitted.model.name} has none;"
                " leave --approximate out"
            )
        self._fitted, self._request, self._scorer = fitted, request, scorer
        self._k = min(request.k, len(fitted.item_ids))
        self._is_shown = np.ones(len(fitted.item_ids), bool)
        if request.hidden is not None:
            self._is_shown[request.hidden] = False
        self._shown = np.flatnonzero(self._is_shown).astype(np.int32)
        # Train the cells on a sample of the items, then add all items.
        rng, n_shown = np.random.default_rng(seed), len(self._shown)
        vectors = np.ascontiguousarray(scorer.item_vectors[self._shown])
        width = vectors.shape[1]
        self.cells = int(np.clip(4 * n_shown**0.5, 1, max(n_shown // 39, 1)))
        self._index = faiss.IndexIVFFlat(
            faiss.IndexFlatIP(width), width, self.cells, faiss.METRIC_INNER_PRODUCT
        )
        self._index.cp.seed = seed + 1
        sample = rng.permutation(n_shown)[: _ITEMS_PER_CELL * self.cells]
        self._index.train(vectors[np.sort(sample)])
        self._index.add(vectors)
        # Half of the sampled users choose the number of cells, the others measure the recall.
        users = rng.permutation(len(fitted.user_ids))[: 2 * _SAMPLE].astype(np.int64)
        half = max(len(users) // 2, 1)
        self._measured_users = users[half:] if len(users) > 1 else users
        self.searched_cells = self._choose_cells(users[:half], recall)

    def _choose_cells(self, users: UserIndices, recall: float) -> int:
        """The smallest number of 1, 2, 4, ... and all cells that reaches the recall."""
        exact = self._rank_exactly(users)[0]
        searched = 1
        while searched < self.cells:
            self._index.nprobe = searched
            if _recall(exact, self(users)[0]) >= recall:
                return searched
            searched *= 2
        self._index.nprobe = self.cells
        return self.cells

    def __call__(self, users: UserIndices) -> tuple[Indices, Scores]:
        items = np.full((len(users), self._k), -1, np.int32)
        scores = np.full((len(users), self._k), -np.inf, np.float32)
        needs_exact = users < 0
        for positions, n_candidates in self._searches(users, np.flatnonzero(~needs_exact)):
            needs_exact[positions] = self._search(users, n_candidates, items, scores, positions)
        if needs_exact.any():
            items[needs_exact], scores[needs_exact] = self._rank_exactly(users[needs_exact])
        return items, scores

    def measured_recall(self) -> tuple[float, int]:
        """Fraction of the exact lists that is found, and the number of users it is measured on."""
        users = self._measured_users
        return _recall(self._rank_exactly(users)[0], self(users)[0]), len(users)

    def _rank_exactly(self, users: UserIndices) -> tuple[Indices, Scores]:
        request = self._request
        return self._fitted.rank_users(
            users, self._k, request.exclude_seen, request.hidden, memory_mb=request.memory_mb
        )

    def _searches(self, users: UserIndices, known: Positions) -> Iterator[tuple[Positions, int]]:
        """Positions of users that are searched together, and the number of candidates for each.

        Up to as many candidates as the user's history is long may be seen items. Users with long
        histories are searched apart from the others, who need fewer candidates.
        """
        starts = self._fitted.excluded.indptr
        n_seen = (starts[users[known] + 1] - starts[users[known]]) * self._request.exclude_seen
        needed = np.minimum(self._k + n_seen, len(self._shown))
        needed = np.minimum(2 ** np.ceil(np.log2(needed)).astype(np.int64), len(self._shown))
        for size in np.unique(needed):
            group = known[needed == size]
            step = max(1, _SEARCH_BYTES // (12 * int(size)))
            for start in range(0, len(group), step):
                yield group[start : start + step], int(size)

    def _search(
        self,
        users: UserIndices,
        n_candidates: int,
        items: Indices,
        scores: Scores,
        positions: Positions,
    ) -> npt.NDArray[np.bool_]:
        """Fill the lists at `positions`; True for lists that are shorter than they could be."""
        users, n_items = users[positions], len(self._fitted.item_ids)
        values, found = self._index.search(self._scorer.user_vectors[users], n_candidates)
        allowed = found >= 0
        candidates = np.where(allowed, self._shown[found], -1)
        n_left = np.full(len(users), len(self._shown))
        # Leave out seen items.
        if self._request.exclude_seen:
            seen = self._fitted.excluded[users]
            row = np.repeat(np.arange(len(users)), np.diff(seen.indptr))
            codes = pair_codes(np.arange(len(users))[:, None], candidates, n_items)
            allowed &= ~np.isin(codes, pair_codes(row, seen.indices, n_items))
            n_left -= np.bincount(row, self._is_shown[seen.indices], len(users)).astype(np.int64)
        # Sort by score, then by item index.
        values = np.where(allowed, values, -np.inf)
        candidates = np.where(allowed, candidates, n_items)
        order = np.lexsort((candidates, -values), axis=1)[:, : self._k]
        best, width = np.take_along_axis(values, order, axis=1), order.shape[1]
        chosen = np.take_along_axis(candidates, order, axis=1)
        items[positions, :width] = np.where(np.isfinite(best), chosen, -1)
        scores[positions, :width] = best
        too_short: npt.NDArray[np.bool_] = allowed.sum(axis=1) < np.minimum(n_left, self._k)
        return too_short


def _recall(exact: Indices, approximate: Indices) -> float:
    """The fraction of the items in the exact lists that are in the approximate ones."""
    pairs = zip(exact, approximate, strict=True)
    hits = sum(np.isin(one[one >= 0], other).sum() for one, other in pairs)
    return float(hits / max((exact >= 0).sum(), 1))


def _faiss() -> Any:
    try:
        import faiss
    except ImportError:
        raise InputError(
            "approximate lists need faiss; install it with: pip install 'llpauc[faiss]'"
        ) from None
    return faiss
