"""Samplers choose the negatives: the items that a positive is compared with.

Every draw is a function of (seed, step, position in the batch). The number of threads changes
nothing, and a resumed training draws what an uninterrupted one would have drawn.

`PerRowSampler`s draw N items for each positive. `SharedSampler`s use one set of items for all
positives of a batch, and a mask that excludes the positives of each user; scoring is then one
matrix product, the cheapest way to score many pairs. A new sampler is a class here and a line in
`llpauc.training.options.SAMPLERS`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from numba import njit, prange

from llpauc.data.ids import Indices
from llpauc.data.interactions import Interactions
from llpauc.errors import InputError, check_at_least
from llpauc.training.options import SAMPLERS

Mask = npt.NDArray[np.bool_]
Counts = npt.NDArray[np.int64]

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_SHORT = 64  # a history up to this length is scanned, a longer one searched
_RETRIES = 32  # draws of an item by popularity before a uniform draw


@dataclass(frozen=True)
class Negatives:
    """The negatives of one batch.

    Args:
        items: (B, N), one row for each positive, or (M,), one set for the whole batch.
        mask: bool (B, N) or (B, M), False where the item is a positive of the user or the user has
            no negative; None where every pair counts.
    """

    items: Indices
    mask: Mask | None


class Sampler(ABC):
    """Draws the negatives of a batch.

    Args:
        train: the events, which are the positives.
        negatives: number of negatives, for each positive or for the batch.
        seed: of all draws.
        counts: number of events of each item; by default those in `train`.
    """

    is_shared: ClassVar[bool] = False  # one set of items for all positives of a batch
    uses_negatives: ClassVar[bool] = True  # whether the option `negatives` has an effect

    def __init__(
        self, train: Interactions, negatives: int, seed: int, counts: Counts | None = None
    ) -> None:
        matrix = train.matrix  # the sorted items of each user
        self.starts, self.items = matrix.indptr.astype(np.int64), matrix.indices
        self.n_items = train.n_items
        self.negatives = check_at_least("negatives", negatives, 1)
        self.seed = np.uint64(check_at_least("seed", seed, 0))

    @classmethod
    def items_scored(cls, batch_size: int, negatives: int, n_items: int) -> int:
        """How many negatives are scored for each positive, at most: the cost in memory and time."""
        return negatives

    @abstractmethod
    def draw(self, step: int, users: Indices, positives: Indices) -> Negatives:
        """The negatives of batch `step`, with one row for each positive."""


class PerRowSampler(Sampler):
    """Base class of samplers that draw items for each positive."""

    draws_positives: ClassVar[bool] = False  # whether the user's positives may be drawn

    def draw(self, step: int, users: Indices, positives: Indices) -> Negatives:
        items = np.empty((len(users), self.negatives), np.int32)
        self._fill(np.uint64(step), users, items)
        has_negative = self.starts[users + 1] - self.starts[users] < self.n_items
        if self.draws_positives or has_negative.all():
            return Negatives(items, None)
        return Negatives(items, np.broadcast_to(has_negative[:, None], items.shape).copy())

    @abstractmethod
    def _fill(self, step: np.uint64, users: Indices, items: Indices) -> None:
        """Fill (B, N) `items`, with any item if a user has all."""


class UniformSampler(PerRowSampler):
    """Uniform over the items that the user does not have, with one draw and no rejection."""

    def _fill(self, step: np.uint64, users: Indices, items: Indices) -> None:
        histories = users, self.starts, self.items, self.n_items
        _draw_uniform(self.seed, step, *histories, items)


class UniformWithPositivesSampler(PerRowSampler):
    """Uniform over all items, including the user's positives, as in the paper's program."""

    draws_positives = True

    def _fill(self, step: np.uint64, users: Indices, items: Indices) -> None:
        _draw_any(self.seed, step, self.n_items, items)


class PopularitySampler(PerRowSampler):
    """In proportion to (number of events)^0.75 as in word2vec, without the items of the user."""

    def __init__(
        self, train: Interactions, negatives: int, seed: int, counts: Counts | None = None
    ) -> None:
        super().__init__(train, negatives, seed, counts)
        if counts is None:
            counts = np.bincount(self.items, minlength=train.n_items)
        weights = counts.astype(float) ** 0.75
        self._cumulative = np.cumsum(weights / weights.sum())

    def _fill(self, step: np.uint64, users: Indices, items: Indices) -> None:
        histories = users, self.starts, self.items, self.n_items
        _draw_popular(self.seed, step, *histories, self._cumulative, items)


class SharedSampler(Sampler):
    """One uniform draw of distinct items for the whole batch; also a base class."""

    is_shared = True

    @classmethod
    def items_scored(cls, batch_size: int, negatives: int, n_items: int) -> int:
        return min(negatives, n_items)

    def draw(self, step: int, users: Indices, positives: Indices) -> Negatives:
        items = self._shared_items(step, positives)
        mask = np.ones((len(users), len(items)), np.bool_)
        column_of = np.full(self.n_items, -1, np.int32)
        column_of[items] = np.arange(len(items), dtype=np.int32)
        _mask_positives(self.starts, self.items, users, column_of, mask)
        return Negatives(items, mask)

    def _shared_items(self, step: int, positives: Indices) -> Indices:
        """Distinct items in ascending order, so that their rows are read in order."""
        rng, n = np.random.default_rng([int(self.seed), step]), self.n_items
        items = rng.choice(n, size=min(self.negatives, n), replace=False, shuffle=False)
        return np.sort(items).astype(np.int32)


class AllItemsSampler(SharedSampler):
    """Every item; for catalogues that fit into memory as (batch size, items)."""

    uses_negatives = False

    @classmethod
    def items_scored(cls, batch_size: int, negatives: int, n_items: int) -> int:
        return n_items

    def _shared_items(self, step: int, positives: Indices) -> Indices:
        return np.arange(self.n_items, dtype=np.int32)


class InBatchSampler(SharedSampler):
    """The positives of the batch, so that popular items are drawn more often."""

    uses_negatives = False

    @classmethod
    def items_scored(cls, batch_size: int, negatives: int, n_items: int) -> int:
        return min(batch_size, n_items)

    def _shared_items(self, step: int, positives: Indices) -> Indices:
        return np.unique(positives)


def make_sampler(
    name: str, train: Interactions, negatives: int, seed: int, counts: Counts | None = None
) -> Sampler:
    """A sampler by name."""
    return SAMPLERS[name](train, negatives, seed, counts)


def collision_rate(sampler: Sampler, train: Interactions, draws: int = 4096) -> float:
    """The fraction of negatives that are positives of the user, and so train the wrong way.

    Zero unless the sampler includes positives; then about the density of the user-item matrix.
    """
    if not len(train):
        raise InputError("no training events to draw negatives for")
    rng = np.random.default_rng(int(sampler.seed))
    rows = rng.integers(0, len(train), size=max(1, min(draws, len(train)) // sampler.negatives + 1))
    users, positives = train.users[rows], train.items[rows]
    drawn = sampler.draw(0, users, positives)
    items = np.broadcast_to(drawn.items, (len(users), drawn.items.shape[-1]))
    collides = np.asarray(train.matrix[np.repeat(users, items.shape[1]), items.ravel()]).ravel() > 0
    counted = np.ones_like(collides) if drawn.mask is None else drawn.mask.ravel()
    return float(collides[counted].mean()) if counted.any() else 0.0


# --- kernels --------------------------------------------------------------------------------------


@njit(inline="always")
def mix(x):
    """The finalizer of splitmix64: every bit of x affects every bit of the result."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@njit(inline="always")
def _stream(seed, step, row):
    """The random stream of one row of one batch."""
    return mix(mix(mix(seed + GOLDEN) + step * GOLDEN) + np.uint64(row + 1) * GOLDEN)


@njit(inline="always")
def _number(stream, place):
    """The 64 random bits at a place of a stream."""
    return mix(stream + np.uint64(place + 1) * GOLDEN)


@njit(inline="always")
def _below(number, bound):
    """An integer in [0, bound) from the high 32 bits of a number; bias below bound / 2^32."""
    return np.int64(((number >> np.uint64(32)) * np.uint64(bound)) >> np.uint64(32))


@njit(inline="always")
def _nth_absent(x, history):
    """The x-th item, from 0, that is not in the sorted history: a binary search."""
    low, high = 0, len(history)
    while low < high:
        middle = (low + high) >> 1
        if history[middle] - middle <= x:
            low = middle + 1
        else:
            high = middle
    return x + low


@njit(nogil=True, cache=True)
def _draw_uniform(seed, step, users, starts, items, n_items, out):
    for row in range(len(users)):
        history = items[starts[users[row]] : starts[users[row] + 1]]
        absent = n_items - len(history)
        drawn = out[row]
        if absent == 0:
            drawn[:] = 0
            continue
        stream = _stream(seed, step, row)
        for pair in range(len(drawn) // 2):  # one number for two draws
            number = _number(stream, 2 * pair)
            drawn[2 * pair] = _below(number, absent)
            drawn[2 * pair + 1] = _below(number << np.uint64(32), absent)
        if len(drawn) % 2:
            last = len(drawn) - 1
            drawn[last] = _below(_number(stream, last), absent)
        if len(history) <= _SHORT:  # most histories: all draws at once, in vector instructions
            for item in history:
                for place in range(len(drawn)):
                    drawn[place] += drawn[place] >= item
        else:
            for place in range(len(drawn)):
                drawn[place] = _nth_absent(drawn[place], history)


@njit(nogil=True, cache=True)
def _draw_any(seed, step, n_items, out):
    for row in range(len(out)):
        stream = _stream(seed, step, row)
        for place in range(out.shape[1]):
            out[row, place] = _below(_number(stream, place), n_items)


@njit(nogil=True, cache=True)
def _draw_popular(seed, step, users, starts, items, n_items, cumulative, out):
    for row in range(len(users)):
        history = items[starts[users[row]] : starts[users[row] + 1]]
        absent = n_items - len(history)
        stream = _stream(seed, step, row)
        for place in range(out.shape[1]):
            item = 0
            if absent > 0:
                accepted = False
                for attempt in range(_RETRIES):
                    number = _number(stream, place * (_RETRIES + 1) + attempt)
                    quantile = np.float64(number >> np.uint64(11)) * 2.0**-53
                    item = min(np.searchsorted(cumulative, quantile, side="right"), n_items - 1)
                    at = np.searchsorted(history, item)
                    accepted = at == len(history) or history[at] != item
                    if accepted:
                        break
                if not accepted:
                    number = _number(stream, place * (_RETRIES + 1) + _RETRIES)
                    item = _nth_absent(_below(number, absent), history)
            out[row, place] = item


@njit(parallel=True, cache=True)
def _mask_positives(starts, items, users, column_of, mask):
    for row in prange(len(users)):
        for at in range(starts[users[row]], starts[users[row] + 1]):
            column = column_of[items[at]]
            if column >= 0:
                mask[row, column] = False
