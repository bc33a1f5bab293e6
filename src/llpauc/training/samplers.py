"""Negatives: which items a positive is compared with.

Every draw is a function of (seed, step, position), not of a state that threads share, so that the
number of threads changes nothing and a resumed run draws what the unbroken one would have drawn.

Two shapes: `rows` samplers draw N items for each positive; `shared` samplers one set of items for
all positives of a batch, with a mask for those that are a user's own positives. Shared negatives
turn scoring into one matrix product, the cheapest pairs there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from numba import njit, prange

from llpauc.data.interactions import Indices, Interactions
from llpauc.errors import InputError, check_at_least, choose

Mask = npt.NDArray[np.bool_]

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_SHORT = 64  # a history of at most so many items is walked, a longer one searched
WHOLE = slice(0, None)  # every row of a batch
_RETRIES = 32  # redraws of a popular item that is the user's own, before a uniform draw


@dataclass(frozen=True)
class Negatives:
    """The negatives of one batch.

    Args:
        items: (B, N) one row a positive, or (M,) one set for the whole batch.
        keep: same shape as the pairs, (B, N) or (B, M): False where the pair is really a positive
            or the user has no negative at all; None where every pair counts.
    """

    items: Indices
    keep: Mask | None


@dataclass(frozen=True)
class Histories:
    """Each user's training items, sorted, as plain arrays for the kernels."""

    starts: npt.NDArray[np.int64]
    items: Indices
    n_items: int

    @staticmethod
    def of(train: Interactions) -> Histories:
        matrix = train.matrix
        return Histories(matrix.indptr.astype(np.int64), matrix.indices, train.n_items)


class Sampler:
    """Draws the negatives of a batch.

    Args:
        train: what counts as a positive.
        negatives: N, the draws for each positive (or M, for the batch, when shared).
        seed: of all draws.
    """

    shape: Literal["rows", "shared"] = "rows"

    def __init__(self, train: Interactions, negatives: int, seed: int) -> None:
        self.histories = Histories.of(train)
        self.negatives = check_at_least("negatives", negatives, 1)
        self.seed = np.uint64(check_at_least("seed", seed, 0))

    def draw(
        self, step: int, users: Indices, positives: Indices, share: slice = WHOLE
    ) -> Negatives:
        """The negatives of step `step`, whose positives are (users, positives); of a share of
        them where several processes divide the batch: the same as if one had drawn them all."""
        raise TypeError(f"{type(self).__name__} does not draw")

    def _without_the_sated(self, users: Indices, items: Indices) -> Negatives:
        """Indices of users who have every item are masked: there is no negative for them."""
        h = self.histories
        full = np.diff(h.starts)[users] == h.n_items
        return Negatives(items, np.broadcast_to(~full[:, None], items.shape).copy())


class Uniform(Sampler):
    """Uniform over the items that are not the user's: one draw each, no rejection.

    The x-th item outside a sorted history is found by a binary search, so a user with nearly all
    items costs what any other costs; a user with all of them has no negative, and is masked.
    """

    def draw(
        self, step: int, users: Indices, positives: Indices, share: slice = WHOLE
    ) -> Negatives:
        h, first, users = self.histories, share.start or 0, users[share]
        items = np.empty((len(users), self.negatives), np.int32)
        without = _draw_outside(
            self.seed, np.uint64(step), first, users, h.starts, h.items, h.n_items, items
        )
        return self._without_the_sated(users, items) if without else Negatives(items, None)


class UniformOverAll(Sampler):
    """Uniform over all items, the user's own included: the reference program's way."""

    def draw(
        self, step: int, users: Indices, positives: Indices, share: slice = WHOLE
    ) -> Negatives:
        items = np.empty((len(users[share]), self.negatives), np.int32)
        _draw_any(self.seed, np.uint64(step), share.start or 0, self.histories.n_items, items)
        return Negatives(items, None)


class Popular(Sampler):
    """In proportion to the items' training counts to a power, the user's own left out.

    Args:
        power: 1 draws by popularity, 0 uniformly; 0.75 is word2vec's habit.
    """

    def __init__(self, train: Interactions, negatives: int, seed: int, power: float = 0.75) -> None:
        super().__init__(train, negatives, seed)
        weights = np.bincount(train.matrix.indices, minlength=train.n_items).astype(float) ** power
        self._cumulative = np.cumsum(weights / weights.sum())

    def draw(
        self, step: int, users: Indices, positives: Indices, share: slice = WHOLE
    ) -> Negatives:
        h, first, users = self.histories, share.start or 0, users[share]
        items = np.empty((len(users), self.negatives), np.int32)
        without = _draw_popular(
            self.seed, np.uint64(step), first, users, h.starts, h.items, h.n_items,
            self._cumulative, items,
        )  # fmt: skip
        return self._without_the_sated(users, items) if without else Negatives(items, None)


class Shared(Sampler):
    """One uniform draw of distinct items for the whole batch; own positives masked."""

    shape = "shared"

    def draw(
        self, step: int, users: Indices, positives: Indices, share: slice = WHOLE
    ) -> Negatives:
        n = self.histories.n_items
        rng = np.random.default_rng([int(self.seed), step])
        some = rng.choice(n, size=min(self.negatives, n), replace=False, shuffle=False)
        items = np.sort(some).astype(np.int32)  # sorted: masks by a merge, rows by a walk
        return Negatives(items, keep_mask(self.histories, users[share], items))


class AllItems(Sampler):
    """Every item is a negative of every user who has not got it; for catalogues that fit."""

    shape = "shared"

    def draw(
        self, step: int, users: Indices, positives: Indices, share: slice = WHOLE
    ) -> Negatives:
        items = np.arange(self.histories.n_items, dtype=np.int32)
        return Negatives(items, keep_mask(self.histories, users[share], items))


class InBatch(Sampler):
    """The batch's own positive items serve all its users: popular items come up more often."""

    shape = "shared"

    def draw(
        self, step: int, users: Indices, positives: Indices, share: slice = WHOLE
    ) -> Negatives:
        items = np.unique(positives)
        return Negatives(items, keep_mask(self.histories, users[share], items))


SAMPLERS: dict[str, type[Sampler]] = {
    "uniform": Uniform,
    "uniform-all": UniformOverAll,
    "popularity": Popular,
    "shared": Shared,
    "all": AllItems,
    "in-batch": InBatch,
}


def make_sampler(name: str, train: Interactions, negatives: int, seed: int) -> Sampler:
    """A sampler by name."""
    return choose(SAMPLERS, name, "sampler")(train, negatives, seed)


def keep_mask(histories: Histories, users: Indices, items: Indices) -> Mask:
    """(B, M): True where items[m] (sorted, distinct) is not in the history of users[b]."""
    keep = np.ones((len(users), len(items)), np.bool_)
    place = np.full(histories.n_items, -1, np.int32)
    place[items] = np.arange(len(items), dtype=np.int32)
    _unmark(histories.starts, histories.items, users, place, keep)
    return keep


def collision_rate(sampler: Sampler, train: Interactions, draws: int = 4096) -> float:
    """The share of drawn pairs that are really positives and not masked: what trains the wrong way.

    Zero for every sampler but `uniform-all`, where it is about the density of the user's row.
    """
    if not len(train):
        raise InputError("no training interactions to draw negatives for")
    rng = np.random.default_rng(int(sampler.seed))
    some = rng.integers(0, len(train), size=max(1, min(draws, len(train)) // sampler.negatives + 1))
    users, positives = train.users[some], train.items[some]
    drawn = sampler.draw(0, users, positives)
    items = np.broadcast_to(drawn.items, (len(users), drawn.items.shape[-1]))
    own = np.asarray(train.matrix[np.repeat(users, items.shape[1]), items.ravel()]).ravel() > 0
    counted = np.ones_like(own) if drawn.keep is None else drawn.keep.ravel()
    return float(own[counted].mean()) if counted.any() else 0.0


# --- kernels --------------------------------------------------------------------------------------


@njit(inline="always")
def mix(x):
    """splitmix64's finalizer: every bit of x decides every bit of the outcome."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@njit(inline="always")
def _stream(seed, step, row):
    """Where the numbers of one row of one step begin."""
    return mix(mix(mix(seed + GOLDEN) + step * GOLDEN) + np.uint64(row + 1) * GOLDEN)


@njit(inline="always")
def _number(stream, place):
    return mix(stream + np.uint64(place + 1) * GOLDEN)


@njit(inline="always")
def _below(half, bound):
    """A whole number in [0, bound) from 32 random bits; bias below bound / 2^32."""
    return np.int64((half * np.uint64(bound)) >> np.uint64(32))


@njit(inline="always")
def _high(number):
    return number >> np.uint64(32)


@njit(inline="always")
def _low(number):
    return number & np.uint64(0xFFFFFFFF)


@njit(inline="always")
def _outside(x, own):
    """The x-th (from 0) item that is not in the sorted `own`."""
    low, high = 0, len(own)
    while low < high:
        middle = (low + high) >> 1
        if own[middle] - middle <= x:
            low = middle + 1
        else:
            high = middle
    return x + low


@njit(nogil=True, cache=True)
def _draw_outside(seed, step, first, users, starts, items, n_items, out):
    without = 0
    for row in range(len(users)):
        own = items[starts[users[row]] : starts[users[row] + 1]]
        free = n_items - len(own)
        drawn = out[row]
        if free == 0:
            without += 1
            drawn[:] = 0
            continue
        stream = _stream(seed, step, first + row)
        for pair in range(len(drawn) // 2):  # one number serves two draws
            number = _number(stream, 2 * pair)
            drawn[2 * pair] = _below(_high(number), free)
            drawn[2 * pair + 1] = _below(_low(number), free)
        if len(drawn) % 2:
            last = len(drawn) - 1
            drawn[last] = _below(_high(_number(stream, last)), free)
        if len(own) <= _SHORT:  # most histories: whole rows at once, in vector instructions
            for item in own:
                for place in range(len(drawn)):
                    drawn[place] += drawn[place] >= item
        else:
            for place in range(len(drawn)):
                drawn[place] = _outside(drawn[place], own)
    return without


@njit(nogil=True, cache=True)
def _draw_any(seed, step, first, n_items, out):
    for row in range(len(out)):
        stream = _stream(seed, step, first + row)
        for place in range(out.shape[1]):
            out[row, place] = _below(_high(_number(stream, place)), n_items)


@njit(nogil=True, cache=True)
def _draw_popular(seed, step, first, users, starts, items, n_items, cumulative, out):
    without = 0
    for row in range(len(users)):
        own = items[starts[users[row]] : starts[users[row] + 1]]
        free = n_items - len(own)
        without += free == 0
        stream = _stream(seed, step, first + row)
        for place in range(out.shape[1]):
            item = 0
            if free > 0:
                found = False
                for attempt in range(_RETRIES):
                    number = _number(stream, place * (_RETRIES + 1) + attempt)
                    share = np.float64(number >> np.uint64(11)) * 2.0**-53
                    item = min(np.searchsorted(cumulative, share, side="right"), n_items - 1)
                    at = np.searchsorted(own, item)
                    found = at == len(own) or own[at] != item
                    if found:
                        break
                if not found:
                    number = _number(stream, place * (_RETRIES + 1) + _RETRIES)
                    item = _outside(_below(_high(number), free), own)
            out[row, place] = item
    return without


@njit(parallel=True, cache=True)
def _unmark(starts, items, users, place, keep):
    for row in prange(len(users)):
        for at in range(starts[users[row]], starts[users[row] + 1]):
            column = place[items[at]]
            if column >= 0:
                keep[row, column] = False
