"""Columns on disk that grow at their end, and a random order of more events than fit in memory."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa

BUCKET = 1 << 22  # expected events
_MAX_BUCKETS = 500  # open files; above two billion events the buckets grow instead


class ColumnFiles:
    """Arrays that grow at their end, each in a file of its bytes.

    Args:
        folder: for the files.
        name: how their names begin.
        types: column -> NumPy type.
    """

    def __init__(self, folder: Path, name: str, **types: type[np.generic]) -> None:
        self._types = {column: np.dtype(kind) for column, kind in types.items()}
        self._paths = {column: folder / f"{name}.{column}.raw" for column in types}
        self._files: dict[str, BinaryIO] = {
            column: path.open("wb") for column, path in self._paths.items()
        }
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def append(self, **arrays: npt.NDArray[Any]) -> None:
        for column, file in self._files.items():
            file.write(np.ascontiguousarray(arrays[column], dtype=self._types[column]).data)
        self._length += len(next(iter(arrays.values())))

    def mapped(self) -> dict[str, npt.NDArray[Any]]:
        """The memory-mapped columns; nothing can be appended afterwards."""
        self._close()
        return {
            column: np.memmap(path, self._types[column], "r")
            if self._length
            else np.empty(0, self._types[column])
            for column, path in self._paths.items()
        }

    def arrow(self) -> dict[str, pa.Array]:
        return {column: as_arrow(array) for column, array in self.mapped().items()}

    def remove(self) -> None:
        self._close()
        for path in self._paths.values():
            path.unlink(missing_ok=True)

    def _close(self) -> None:
        for file in self._files.values():
            file.close()


def as_arrow(array: npt.NDArray[Any]) -> pa.Array:
    """An Arrow array of the same memory, or of the same mapped file."""
    kind = pa.from_numpy_dtype(array.dtype)
    return pa.Array.from_buffers(kind, len(array), [None, pa.py_buffer(array)])


class BucketShuffle:
    """A uniformly random order of events on disk.

    Every event goes to a random bucket, every bucket is shuffled in memory, and the buckets are
    concatenated. All orders are equally likely: given the sizes of the buckets, their contents are
    uniform, and so is the order inside each (Rao 1961, Sandelius 1962).

    Args:
        folder: for the buckets.
        kind: one event as a structured type, one field per column.
        expected: approximate number of events.
        seed: of the order.
        bucket: expected number of events in a bucket.
    """

    def __init__(
        self,
        folder: Path,
        kind: np.dtype[Any],
        expected: int,
        seed: list[int],
        bucket: int = BUCKET,
    ) -> None:
        count = min(max(-(-expected // bucket), 1), _MAX_BUCKETS)
        self._kind = kind
        self._rng = np.random.default_rng(seed)
        self._paths = [folder / f"bucket{number}.raw" for number in range(count)]
        self._open = ExitStack()
        self._files = [self._open.enter_context(path.open("wb")) for path in self._paths]

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

    def write_to(self, columns: ColumnFiles) -> None:
        """Append all events in random order, and remove the buckets."""
        self._open.close()
        for path in self._paths:
            events = np.fromfile(path, self._kind)
            path.unlink()
            order = self._rng.permutation(len(events))
            columns.append(**{name: events[name][order] for name in self._kind.names or ()})
