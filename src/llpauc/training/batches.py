"""Batches, made ahead of their use.

Which rows a batch has, its negatives and the order of its pairs by item depend on the seed and the
step, not on the model. So a helper thread works them out for the batches to come, in kernels that
let go of the GIL, while the batch before is trained on.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from llpauc.data.interactions import Indices, Interactions
from llpauc.training.kernels import distinct, sort_pairs
from llpauc.training.samplers import Negatives

# A hand-over between threads costs some 50 microseconds: small batches change hands in groups.
_POSITIVES_AT_ONCE = 1024


@dataclass(frozen=True)
class Pairs:
    """The batch's pairs in the order of their items' slots; see `kernels.sort_pairs`."""

    ends: Indices
    row_of: Indices
    place_of: Indices


@dataclass(frozen=True)
class Index:
    """The distinct rows of a batch.

    Args:
        users: distinct user rows.
        user_slots: (B,) where in `users` each one is; None where all of the batch are distinct.
        items: distinct item rows; an item's place in it is its slot.
        positive_slots: (B,) the slots of the positives.
        negative_slots: (B, N) or (M,) those of the negatives; None where nobody asks.
        pairs: where each positive has negatives of its own.
    """

    users: Indices
    user_slots: Indices | None
    items: Indices
    positive_slots: Indices
    negative_slots: Indices | None
    pairs: Pairs | None


@dataclass(frozen=True)
class Batch:
    """Positives and their negatives.

    Args:
        step: its number, from 0.
        users, positives: (B,) rows; where several processes divide a batch, those of this one.
        drawn: the negatives.
        whole: positives of the whole batch, over all processes.
        index: what the kernels need beside them; None for plain torch.
    """

    step: int
    users: Indices
    positives: Indices
    drawn: Negatives
    whole: int
    index: Index | None = None


class Indexer:
    """Makes the index of a batch; threads may share it.

    Args:
        n_users, n_items: rows of the tables.
        every_item: whether a batch with more pairs than there are items may count as having all of
            them. Nearly every item comes up then, and those without a pair step by a gradient of
            zero, which is what a replay would do later. Not with weight decay: that is for the rows
            of a batch alone.
        slots_only: whether tables will be read by slot, not by row.
    """

    def __init__(
        self, n_users: int, n_items: int, every_item: bool, slots_only: bool = False
    ) -> None:
        self._sizes, self._slots_only = (n_users, n_items), slots_only
        self._every_item = np.arange(n_items, dtype=np.int32) if every_item else None
        self._own = threading.local()

    def __call__(self, users: Indices, positives: Indices, negatives: Indices) -> Index:
        if not hasattr(self._own, "slots"):
            self._own.slots = [Slots(n) for n in self._sizes]
        of_users, of_items = self._own.slots
        user_rows = of_users.fill(users, users[:0])
        user_slots = of_users.slot_of[users] if len(user_rows) < len(users) else None
        rows_apart = negatives.ndim == 2
        if rows_apart and self._every_item is not None and negatives.size >= self._sizes[1]:
            items = slot_of = self._every_item
        elif rows_apart:
            items, slot_of = of_items.fill(positives, negatives.ravel()), of_items.slot_of
        else:  # the shared ones take slots 0..M-1
            items, slot_of = of_items.fill(negatives, positives), of_items.slot_of
        pairs = _pairs(positives, negatives, slot_of, len(items)) if rows_apart else None
        drawn = slot_of[negatives] if self._slots_only else None
        return Index(user_rows, user_slots, items, slot_of[positives], drawn, pairs)


class Slots:
    """The distinct rows of a batch, without clearing anything in between."""

    def __init__(self, n: int) -> None:
        self.slot_of = np.zeros(n, np.int32)
        self._stamp = np.zeros(n, np.int64)
        self._now = 0

    def fill(self, first: Indices, second: Indices) -> Indices:
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


class Order(Protocol):
    """Positions of events; slices are arrays. Threads may share it."""

    def __len__(self) -> int: ...

    def __getitem__(self, where: slice, /) -> npt.NDArray[np.int64]: ...


class Maker(Protocol):
    """The part of an engine that makes batches; threads may call `prepare` at once."""

    @property
    def helpers(self) -> int: ...

    def prepare(self, step: int, users: Indices, positives: Indices) -> Batch: ...


def batches(
    engine: Maker, train: Interactions, order: Order, size: int, first_step: int
) -> Generator[Batch]:
    """The batches of one epoch, in order. Close it to end it early (`contextlib.closing`).

    Args:
        engine: makes them.
        train: the events.
        order: of the events.
        size: positives a batch.
        first_step: the number of the first batch.
    """
    helpers = engine.helpers

    def make(places: Sequence[int]) -> list[Batch]:
        made = []
        for place in places:
            rows = order[place * size : (place + 1) * size]
            made.append(engine.prepare(first_step + place, train.users[rows], train.items[rows]))
        return made

    places = range(-(-len(order) // size))
    if not helpers:
        for place in places:
            yield from make([place])
        return
    at_once = max(1, _POSITIVES_AT_ONCE // size)
    waiting: deque[Future[list[Batch]]] = deque()
    pool = ThreadPoolExecutor(helpers, "llpauc-batches")
    try:
        for first in places[::at_once]:
            waiting.append(pool.submit(make, places[first : first + at_once]))
            if len(waiting) > helpers:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
