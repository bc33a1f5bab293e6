"""The order of an epoch's events: a function of seed and epoch, so that a resumed run has the same.

Events in memory are permuted as a whole. Prepared events lie on the disk in random order already;
there the blocks are permuted, and the events inside of each, so that an epoch walks through the
file and holds a block's permutation in memory, not one of everything.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from llpauc.data.interactions import Interactions
from llpauc.data.recency import Floats

Positions = npt.NDArray[np.int64]

BLOCK = 1 << 20  # 8 MB of rows, which a processor's cache about holds
_KEPT = 4  # permutations of blocks: threads work on neighbouring batches


def epoch_order(
    train: Interactions, seed: int, epoch: int, first: int = 0, chances: Floats | None = None
) -> Positions | BlockOrder:
    """The positions of an epoch's events, in order.

    Args:
        train: the events.
        seed, epoch: what the order is a function of.
        first: how many at the beginning are done already, and left out.
        chances: of each event, to be drawn by, with replacement; None has each event come once.
    """
    n = len(train)
    if train.shuffled and chances is None:
        return BlockOrder(n, (seed, epoch), first)
    rng = np.random.default_rng([seed, epoch])
    order = rng.permutation(n) if chances is None else rng.choice(n, n, p=chances)
    return order[first:]


class BlockOrder:
    """A permutation of 0..n-1 that is worked out block by block, when a slice asks for it.

    A slice is an array, in as much memory as it needs; threads may share an order.

    Args:
        n: how many.
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
        self._made: OrderedDict[int, Positions] = OrderedDict()

    def __len__(self) -> int:
        return max(self._n - self._first, 0)

    def __getitem__(self, where: slice) -> Positions:
        begin, end, step = where.indices(len(self))
        if step != 1:
            raise ValueError("an order of blocks is taken in one piece, without a step")
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
            if place in self._made:
                self._made.move_to_end(place)
                return self._made[place]
            block = int(self._blocks[place])
            size = min(self._block, self._n - block * self._block)
            # The entry behind sets it apart from the permutation of the blocks themselves.
            rows = np.random.default_rng([*self._seed, 1 + block]).permutation(size)
            self._made[place] = rows + block * self._block
            if len(self._made) > _KEPT:
                self._made.popitem(last=False)
            return self._made[place]
