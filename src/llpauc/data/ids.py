"""Ids in the user's data and the indices 0..n-1 that stand for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from types import NoneType
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from llpauc.errors import InputError

Indices = npt.NDArray[np.int32]
IdKind = Literal["string", "int64", "uint64"]
IdValues: TypeAlias = Iterable[Any] | pa.Array | pa.ChunkedArray


@dataclass(frozen=True)
class IdMap:
    """A vocabulary: ids <-> indices 0..n-1.

    Ids are stored as text: `007` and `7` are different ids, and 2^64+7 is a valid one. `kind`
    records that a typed source had integers; they are then returned as integers. The text decides
    equality: user `7` of an integer Parquet column and user `"7"` of a CSV file are the same user.

    >>> ids = IdMap.of(["007", "7", "ø"])
    >>> ids.indices(["7", "unknown", "007"]).tolist()
    [1, -1, 0]
    >>> list(ids.ids([2, 0]))
    ['ø', '007']
    """

    text: pa.LargeStringArray
    kind: IdKind = "string"

    @staticmethod
    def of(values: IdValues) -> IdMap:
        """The distinct `values` in order of first appearance."""
        text, kind = as_id_text(values)
        return IdMap(pc.unique(text), kind)

    def __len__(self) -> int:
        return len(self.text)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.ids(np.arange(len(self))))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IdMap) and self.kind == other.kind and self.text.equals(other.text)

    __hash__ = None  # type: ignore[assignment]  # holds arrays

    @cached_property
    def _index_of(self) -> dict[str, int]:
        return {text: index for index, text in enumerate(self.text.to_pylist())}

    def indices(self, ids: IdValues) -> npt.NDArray[np.int64]:
        """The index of each id, -1 for an unknown id."""
        text, _ = as_id_text(ids)
        if len(text) <= 1000:  # pc.index_in hashes the whole vocabulary at each call
            known = self._index_of
            return np.array([known.get(t, -1) for t in text.to_pylist()], dtype=np.int64)
        return np.asarray(pc.fill_null(pc.index_in(text, value_set=self.text), -1), dtype=np.int64)

    def take(self, indices: npt.ArrayLike) -> IdMap:
        """The map of the ids at `indices`, which must be distinct."""
        return IdMap(self.text.take(pa.array(np.asarray(indices, np.int64))), self.kind)

    def arrow(self, indices: npt.ArrayLike | None = None) -> pa.Array:
        """The ids at `indices` (default: all) in the type of the source."""
        text = self.text if indices is None else self.take(indices).text
        return text if self.kind == "string" else text.cast(self.kind)

    def ids(self, indices: npt.ArrayLike) -> npt.NDArray[Any]:
        """The ids at `indices`: an object array of str, or an integer array."""
        indices = np.asarray(indices)
        flat = self.arrow(indices.ravel())
        if self.kind == "string":
            ids = np.empty(len(flat), dtype=object)
            ids[:] = flat.to_pylist()
        else:
            ids = np.asarray(flat)
        return ids.reshape(indices.shape)

    def union(self, others: Iterable[IdMap]) -> IdMap:
        """This map followed by the new ids of `others`; existing indices do not change."""
        maps = [self, *others]
        text = pc.unique(pa.chunked_array([m.text for m in maps], type=pa.large_string()))
        kinds = {m.kind for m in maps if len(m)} or {self.kind}
        return IdMap(text, kinds.pop() if len(kinds) == 1 else "string")


def number_by_text(encoded: pa.ChunkedArray, kind: IdKind = "string") -> tuple[Indices, IdMap]:
    """The index of each dictionary-encoded id, and the map of the ids in the order of their text.

    Equal scores are ranked by index, and vectors are initialized by index: with the order of first
    appearance, the order of the rows of a file would change the results.
    """
    encoded = encoded.unify_dictionaries()
    ids = encoded.chunk(0).dictionary
    by_text = pc.array_sort_indices(ids)
    index = np.empty(len(ids), np.int32)
    index[np.asarray(by_text)] = np.arange(len(ids))
    indices = np.concatenate([index[np.asarray(chunk.indices)] for chunk in encoded.chunks])
    return indices, IdMap(ids.take(by_text), kind)


def as_id_text(values: IdValues) -> tuple[pa.LargeStringArray, IdKind]:
    """Ids as text, and their kind. Null, float and empty ids raise `InputError`."""
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise InputError(f"expected a list of ids, got the single value {values!r}")
    if not isinstance(values, (pa.Array, pa.ChunkedArray)):
        values = _id_array(values if isinstance(values, np.ndarray) else list(values))
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
        if isinstance(values, pa.ChunkedArray):  # empty, or too large for one chunk of its type
            values = pa.concat_arrays(
                [chunk.cast(pa.large_string()) for chunk in values.chunks]
                or [pa.array([], pa.large_string())]
            )
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if values.null_count:
        position = int(np.flatnonzero(np.asarray(values.is_null()))[0])
        raise InputError(f"an id is missing (null) at position {position}; drop or fill such rows")
    kind: IdKind = "string"
    if pa.types.is_integer(values.type):
        kind = "uint64" if values.type == pa.uint64() else "int64"
    elif not is_text(values.type):
        raise InputError(f"ids must be text or integers, got the type {values.type}")
    text = values.cast(pa.large_string())
    if kind == "string" and len(text) and pc.min(pc.binary_length(text)).as_py() == 0:
        position = pc.index(text, "").as_py()
        raise InputError(f"an id is empty at position {position}; drop or fill such rows")
    return text, kind


def is_text(kind: pa.DataType) -> bool:
    """Whether an Arrow type is one of the string types."""
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def _id_array(values: list[Any] | npt.NDArray[Any]) -> pa.Array:
    if isinstance(values, np.ndarray):
        if values.ndim != 1:
            raise InputError(f"ids must be one column, got an array of shape {values.shape}")
        if values.dtype.kind in "iu":
            return pa.array(values)
        values = values.tolist()
    kinds = {type(v) for v in values}
    # str(v) would accept anything: 7.0, True, pandas' <NA>.
    refused = {k for k in kinds if k is bool or not issubclass(k, (str, int, np.integer, NoneType))}
    if refused:
        bad = next(v for v in values if type(v) in refused)
        raise InputError(f"ids must be text or integers, got {bad!r}; convert them first")
    if kinds and all(issubclass(kind, (int, np.integer)) for kind in kinds):
        integers = [int(v) for v in values]
        if min(integers) >= -(2**63) and max(integers) < 2**63:
            return pa.array(integers, pa.int64())
        if min(integers) >= 0 and max(integers) < 2**64:
            return pa.array(integers, pa.uint64())
    try:
        return pa.array([None if v is None else str(v) for v in values], pa.large_string())
    except UnicodeEncodeError as error:
        raise InputError(f"an id is no valid Unicode text: {error.object!r}") from None
