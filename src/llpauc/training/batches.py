"""Batches: the order of the events, and batches prepared ahead of their use.

The order of an epoch is a function of seed and epoch. The rows of a batch, its negatives and its
pairs by item are functions of seed and step. None depends on the model. So helper threads prepare
the next batches, in kernels that release the GIL, while the current batch is trained on.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from llpauc.data.ids import Indices
from llpauc.data.interactions import Interactions
from llpauc.data.recency import Floats
from llpauc.training.kernels import distinct, sort_pairs
from llpauc.training.samplers import Negatives

Positions = npt.NDArray[np.int64]
Table = npt.NDArray[np.float32]

BLOCK = 1 << 20  # events in a block of `BlockOrder`: 8 MB, about the size of a processor's cache
_CACHED_BLOCKS = 4  # threads work on neighbouring batches
# A hand-over between threads takes about 50 microseconds: small batches are handed over in groups.
_POSITIVES_AT_ONCE = 1024


@dataclass(frozen=True)
class Pairs:
    """The pairs of a batch in the order of their items' slots; see `kernels.sort_pairs`."""

    ends: Indices
    row_of: Indices
    place_of: Indices


@dataclass(frozen=True)
class Index:
    """The distinct rows of a batch.

    Args:
        users: distinct users.
        user_slots: (B,) position in `users`; None where all users of the batch are distinct.
        items: distinct items; the position of an item here is its slot.
        positive_slots: (B,) slots of the positives.
        pairs: None where the negatives are shared.
    """

    users: Indices
    user_slots: Indices | None
    items: Indices
    positive_slots: Indices
    pairs: Pairs | None


@dataclass(frozen=True)
class Batch:
    """Positives and their negatives.

    Args:
        step: number of the batch, from 0.
        users, positives: (B,) indices.
        drawn: the negatives.
        index: for the kernels; None for plain torch.
        weights: (B,) by which the gradients of each positive's scores are multiplied; None where
            all are equal.
    """

    step: int
    users: Indices
    positives: Indices
    drawn: Negatives
    index: Index | None = None
    weights: Table | None = None


class Indexer:
    """Makes the index of a batch; safe to use from several threads.

    Args:
        n_users, n_items: rows of the tables.
        every_item: whether a batch with at least as many pairs as there are items counts as having
            all of them. Items without a pair then take a step with a zero gradient, as a replay
            would do later. Must be False with weight decay, which applies to rows of the batch.
    """

    def __init__(self, n_users: int, n_items: int, every_item: bool) -> None:
        self._sizes = n_users, n_items
        self._every_item = np.arange(n_items, dtype=np.int32) if every_item else None
        self._local = threading.local()

    def __call__(self, users: Indices, positives: Indices, negatives: Indices) -> Index:
        if not hasattr(self._local, "slots"):
            self._local.slots = [Slots(n) for n in self._sizes]
        user_slots, item_slots = self._local.slots
        distinct_users = user_slots.fill(users)
        all_distinct = len(distinct_users) == len(users)
        slot_of, is_shared = item_slots.slot_of, negatives.ndim == 1
        if is_shared:  # the shared negatives get slots 0..M-1
            items = item_slots.fill(negatives, positives)
        elif self._every_item is not None and negatives.size >= self._sizes[1]:
            items = slot_of = self._every_item
        else:
            items = item_slots.fill(positives, negatives.ravel())
        return Index(
            users=distinct_users,
            user_slots=None if all_distinct else user_slots.slot_of[users],
            items=items,
            positive_slots=slot_of[positives],
            pairs=None if is_shared else _pairs(positives, negatives, slot_of, len(items)),
        )


class Slots:
    """Finds the distinct rows of a batch, without clearing memory between batches."""

    def __init__(self, n: int) -> None:
        self.slot_of = np.zeros(n, np.int32)
        self._stamp = np.zeros(n, np.int64)
        self._now = 0

    def fill(self, first: Indices, second: Indices | None = None) -> Indices:
        """The distinct rows in order of appearance; `slot_of` then has their positions."""
        second = first[:0] if second is None else second
        self._now += 1
        rows = np.empty(min(len(first) + len(second), len(self.slot_of)), np.int32)
        n = distinct(first, second, self.slot_of, self._stamp, self._now, rows)
        return rows[:n]


def _pairs(positives: Indices, negatives: Indices, slot_of: Indices, slots: int) -> Pairs:
    size, n_neg = negatives.shape
    pairs = Pairs(
        ends=np.empty(slots, np.int32),
        row_of=np.empty(size * (n_neg + 1), np.int32),
        place_of=np.empty((size, n_neg + 1), np.int32),
    )
    sort_pairs(positives, negatives, slot_of, pairs.ends, pairs.row_of, pairs.place_of)
    return pairs


class BlockOrder:
    """A permutation of 0..n-1 that is computed block by block when a slice needs it.

    Args:
        n: length of the permutation.
        seed: of the permutation.
        first: how many entries at the beginning are left out.
        block: how many neighbours stay together.

    >>> order = BlockOrder(10, (0, 1), block=4)
    >>> sorted(order[:10].tolist()) == list(range(10)), len(order[3:5])
    (True, 2)
    """

    def __init__(self, n: int, seed: Sequence[int], first: int = 0, block: int = BLOCK) -> None:
        self._n, self._seed, self._first, self._block = n, list(seed), first, block
        self._blocks = np.random.default_rng(self._seed).permutation(-(-n // block))
        self._ends = np.cumsum(np.minimum(block, n - self._blocks * block))
        self._lock = threading.Lock()
        self._cache: OrderedDict[int, Positions] = OrderedDict()

    def __len__(self) -> int:
        return max(self._n - self._first, 0)

    def __getitem__(self, where: slice) -> Positions:
        begin, end, step = where.indices(len(self))
        if step != 1:
            raise ValueError("a slice of BlockOrder has no step")
        if end <= begin:
            return np.empty(0, np.int64)
        begin, end = begin + self._first, end + self._first
        first, last = np.searchsorted(self._ends, (begin, end - 1), side="right").tolist()
        pieces = []
        for place in range(first, last + 1):
            rows = self._rows_of(place)
            start = int(self._ends[place]) - len(rows)
            pieces.append(rows[max(begin - start, 0) : end - start])
        return np.concatenate(pieces)

    def _rows_of(self, place: int) -> Positions:
        with self._lock:
            if place not in self._cache:
                block = int(self._blocks[place])
                size = min(self._block, self._n - block * self._block)
                # The last entry of the seed separates it from that of the order of the blocks.
                rows = np.random.default_rng([*self._seed, 1 + block]).permutation(size)
                self._cache[place] = rows + block * self._block
                if len(self._cache) > _CACHED_BLOCKS:
                    self._cache.popitem(last=False)
            self._cache.move_to_end(place)
            return self._cache[place]


Order = Positions | BlockOrder


def epoch_order(
    train: Interactions, seed: int, epoch: int, first: int = 0, chances: Floats | None = None
) -> Order:
    """The positions of an epoch's events, in order.

    Events in memory are permuted as a whole. Prepared events are in random order on disk already;
    there the blocks are permuted, and the events inside each block, so that an epoch reads the file
    block by block and holds the permutations of a few blocks only.

    Args:
        train: the events.
        seed, epoch: determine the order.
        first: how many events at the beginning are done already, and left out.
        chances: of each event, to draw with replacement; None uses each event once.
    """
    n = len(train)
    if train.shuffled and chances is None:
        return BlockOrder(n, (seed, epoch), first)
    rng = np.random.default_rng([seed, epoch])
    order = rng.permutation(n) if chances is None else rng.choice(n, n, p=chances)
    return order[first:]


class BatchMaker(Protocol):
    """The part of an engine that prepares batches; threads may call `prepare` concurrently."""

    @property
    def helpers(self) -> int: ...

    def prepare(
        self, step: int, users: Indices, positives: Indices, weights: Table | None
    ) -> Batch: ...


def batches(
    engine: BatchMaker,
    train: Interactions,
    order: Order,
    size: int,
    first_step: int,
    weights: Table | None = None,
) -> Generator[Batch]:
    """The batches of one epoch, in order. Close it to end it early (`contextlib.closing`).

    Args:
        engine: prepares the batches, in `engine.helpers` threads.
        train: the events.
        order: of the events.
        size: positives in a batch.
        first_step: number of the first batch.
        weights: of the events, float32; None where all are equal.
    """

    def make(places: Sequence[int]) -> list[Batch]:
        made = []
        for place in places:
            rows = order[place * size : (place + 1) * size]
            of_rows = None if weights is None else weights[rows]
            events = train.users[rows], train.items[rows], of_rows
            made.append(engine.prepare(first_step + place, *events))
        return made

    places, helpers = range(-(-len(order) // size)), engine.helpers
    if not helpers:
        for place in places:
            yield from make([place])
        return
    at_once = max(1, _POSITIVES_AT_ONCE // size)
    pending: deque[Future[list[Batch]]] = deque()
    pool = ThreadPoolExecutor(helpers, "llpauc-batches")
    try:
        for first in places[::at_once]:
            pending.append(pool.submit(make, places[first : first + at_once]))
            if len(pending) > helpers:
                yield from pending.popleft().result()
        while pending:
            yield from pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
