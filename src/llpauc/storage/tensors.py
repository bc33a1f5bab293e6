"""Reading safetensors without a copy.

The library's own reader copies every array while it holds Python's lock, 60 ms for 50 MB: long
enough for a server's requests to feel a reload. The format: eight bytes with the header's length,
the header as JSON, then the arrays one behind the other.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import numpy.typing as npt

_DTYPES = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4",
    "U64": "<u8", "I64": "<i8", "F16": "<f2", "F32": "<f4", "F64": "<f8",
}  # fmt: skip


def read_tensors(data: bytes | memoryview) -> dict[str, npt.NDArray[Any]]:
    """The arrays of a safetensors file, as windows onto `data`; over bytes they are read-only.

    Raises:
        ValueError: where a length, an offset or a shape does not fit the file, to the byte.
    """
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > len(data) - 8:
        raise ValueError("the header is longer than the file")
    header = json.loads(bytes(data[8 : 8 + length]))
    if not isinstance(header, dict):
        raise ValueError("the header is no JSON object")
    header.pop("__metadata__", None)
    arrays, at = {}, 0
    for name, entry in sorted(header.items(), key=lambda item: _offsets(*item)):
        begin, end = _offsets(name, entry)
        shape, dtype = entry.get("shape"), _DTYPES.get(entry.get("dtype"))
        if dtype is None or not isinstance(shape, list) or not all(map(_is_size, shape)):
            raise ValueError(f"{name!r:.99} has no shape or no known type")
        count = math.prod(shape)
        if begin != at or end - begin != count * np.dtype(dtype).itemsize:
            raise ValueError(f"{name!r:.99} does not lie where and as long as its shape says")
        if end > len(data) - 8 - length:
            raise ValueError(f"{name!r:.99} reaches beyond the end of the file")
        arrays[name] = np.frombuffer(data, dtype, count, 8 + length + begin).reshape(shape)
        at = end
    if at != len(data) - 8 - length:
        raise ValueError("there are bytes that belong to no array")
    return arrays


def _offsets(name: str, entry: Any) -> tuple[int, int]:
    found = entry.get("data_offsets") if isinstance(entry, dict) else None
    if not (isinstance(found, list) and len(found) == 2 and all(map(_is_size, found))):
        raise ValueError(f"{name!r:.99} has no offsets")
    return found[0], found[1]


def _is_size(value: Any) -> bool:
    return type(value) is int and value >= 0
