"""A uniformly random order of more events than fit in memory.

Every event goes to a bucket drawn at random, every bucket is shuffled by itself in memory, and the
buckets stand behind one another. All orders are equally likely: given the buckets' sizes, who is
in which is uniform, and so is the order inside (Rao 1961, Sandelius 1962).
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from llpauc.data.preparing.columns import GrowingColumns

BUCKET = 1 << 22  # events expected in one
_MOST_BUCKETS = 500  # open files; above two billion events the buckets grow instead


class BucketShuffle:
    """Takes events in any order and gives them back in a random one.

    Args:
        folder: for the buckets.
        kind: one event as a structured type, a field a column.
        expected: about how many events will come.
        seed: of the order.
    """

    def __init__(
        self,
        folder: Path,
        kind: np.dtype[Any],
        expected: int,
        seed: list[int],
        bucket: int = BUCKET,
    ) -> None:
        count = min(max(-(-expected // bucket), 1), _MOST_BUCKETS)
        self._kind = kind
        self._rng = np.random.default_rng(seed)
        self._paths = [folder / f"bucket{number}.raw" for number in range(count)]
        with ExitStack() as stack:
            self._files: list[BinaryIO] = [
                stack.enter_context(path.open("wb")) for path in self._paths
            ]
            self._open = stack.pop_all()

    def add(self, **columns: npt.NDArray[Any]) -> None:
        n = len(next(iter(columns.values())))
        bucket = self._rng.integers(0, len(self._files), n, dtype=np.uint16)
        order = np.argsort(bucket, kind="stable")
        events = np.empty(n, self._kind)
        for name, column in columns.items():
            events[name] = column[order]
        ends = np.cumsum(np.bincount(bucket, minlength=len(self._files)))
        begin = 0
        for file, end in zip(self._files, ends.tolist(), strict=True):
            file.write(events[begin:end].data)
            begin = end

    def pour(self, into: GrowingColumns) -> None:
        """All events in their order; the buckets are gone then."""
        self._open.close()
        for path in self._paths:
            events = np.fromfile(path, self._kind)
            path.unlink()
            order = self._rng.permutation(len(events))
            into.append(**{name: events[name][order] for name in self._kind.names or ()})
