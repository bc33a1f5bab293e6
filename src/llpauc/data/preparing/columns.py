"""Columns on the disk: appended to, mapped, and written as Arrow without being in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa


class GrowingColumns:
    """Arrays of one type each that grow at their end, in files of their plain bytes."""

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
            kind = self._types[column]
            file.write(np.ascontiguousarray(arrays[column], dtype=kind).data)
        self._length += len(next(iter(arrays.values())))

    def mapped(self) -> dict[str, npt.NDArray[Any]]:
        """The columns, to be read; no more can be appended."""
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
    """The array's own bytes as an Arrow array, mapped where it is."""
    kind = pa.from_numpy_dtype(array.dtype)
    return pa.Array.from_buffers(kind, len(array), [None, pa.py_buffer(array)])
