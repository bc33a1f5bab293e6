"""Run folders: the arrays, ids and metadata of a trained model.

    manifest.json        kind, format version, SHA-256 and size of every file; see `manifest`
    tensors.safetensors  arrays by name
    users.parquet        user ids by index; items.parquet likewise
    meta.json            parameters and other small values
    catalogue.parquet    properties of the items, where there are any
    metrics.jsonl, ...   further text files

A run folder is written atomically and verified when it is loaded. Nothing in it is executed or
unpickled. docs/reference/run-folders.md describes the format.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import safetensors.numpy
from safetensors import SafetensorError

from llpauc.errors import InputError
from llpauc.storage import manifest
from llpauc.storage.atomic import write_error
from llpauc.storage.manifest import MANIFEST, FolderKind, VerifiedFolder, read_folder

_CATALOGUE = "catalogue.parquet"
_LARGE_FILES = frozenset({"tensors.safetensors", "users.parquet", "items.parquet"})
RUN_FOLDER = FolderKind(
    kind="llpauc run",
    noun="a run folder",
    formats={1: False, 2: True},
    required=_LARGE_FILES | {"meta.json"},
    remedy="restore the run from a copy, or train it again",
)

_ID_TYPES = (pa.types.is_integer, pa.types.is_string, pa.types.is_large_string)
_ID_CODECS = {"SNAPPY", "UNCOMPRESSED"}
_MAX_ID_RATIO = 21  # ids per byte of their file: Snappy compresses no better

T = TypeVar("T")


@dataclass(frozen=True)
class SavedRun:
    """The content of a run folder.

    Args:
        tensors: arrays by name.
        user_ids, item_ids: ids by index, as Arrow arrays of text or integers.
        meta: plain JSON values.
        extra: further text files by name, such as metrics.jsonl.
        catalogue: properties of the items, see `llpauc.data.catalogue`.
    """

    tensors: Mapping[str, npt.NDArray[Any]]
    user_ids: pa.Array
    item_ids: pa.Array
    meta: Mapping[str, Any]
    extra: Mapping[str, str]
    catalogue: pa.Table | None = None


@dataclass(frozen=True)
class RunSummary:
    """The content of a run folder without arrays and ids.

    Args:
        meta, extra: see `SavedRun`.
        size: bytes of all files that the manifest lists.
        written: when the folder was written, in seconds since 1970.
    """

    meta: Mapping[str, Any]
    extra: Mapping[str, str]
    size: int
    written: float


def save(run: SavedRun, folder: str | os.PathLike[str]) -> Path:
    """Write `run` as `folder`; an existing run folder is replaced.

    Raises:
        OSError: on a full disk or a read-only folder; an existing run stays as it was.
    """
    try:
        with manifest.written_folder(folder, RUN_FOLDER) as work:
            _write_files(run, work)
    except SafetensorError as error:
        raise write_error(Path(folder).resolve(), error) from None
    return Path(folder)


def _write_files(run: SavedRun, folder: Path) -> None:
    tensors = {name: np.asarray(array, order="C") for name, array in run.tensors.items()}
    safetensors.numpy.save_file(tensors, folder / "tensors.safetensors")
    for name, ids in (("users", run.user_ids), ("items", run.item_ids)):
        pq.write_table(pa.table({"id": ids}), folder / f"{name}.parquet")
    meta = json.dumps(run.meta, indent=2, ensure_ascii=False, sort_keys=True, default=_as_json)
    (folder / "meta.json").write_text(meta + "\n", encoding="utf-8")
    for name, text in run.extra.items():
        if name in RUN_FOLDER.required or name in (MANIFEST, _CATALOGUE):
            raise InputError(f"{name} is a reserved file name; choose another one for the extra")
        (folder / manifest.check_plain_name(name)).write_text(text, encoding="utf-8")
    if run.catalogue is not None:
        pq.write_table(run.catalogue, folder / _CATALOGUE, compression="NONE", use_dictionary=False)
    # safetensors makes its file readable for its owner only.
    os.chmod(folder / "tensors.safetensors", (folder / "meta.json").stat().st_mode & 0o777)


def _as_json(value: Any) -> Any:
    """NumPy numbers and paths as JSON values."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise InputError(f"a run cannot store {value!r}; give text, numbers, lists or dicts")


def load(folder: str | os.PathLike[str], *, signing_key: str | None = None) -> SavedRun:
    """Read a run folder after checking every file against the manifest, and the manifest against
    the signature if a key is given."""
    return read_folder(folder, RUN_FOLDER, _load, signing_key)


def sign(folder: str | os.PathLike[str], key: str) -> None:
    """Add a signature to a run folder after checking every file; see `storage.signing`."""
    read_folder(folder, RUN_FOLDER, lambda verified: verified.sign(key))


def _load(folder: VerifiedFolder) -> SavedRun:
    # All files are read before the first is parsed: the folder can be replaced at any moment.
    data = {name: folder.read(name) for name in folder.files}
    has_catalogue = _CATALOGUE in data
    catalogue = _parse(folder, data, _CATALOGUE, _parse_catalogue) if has_catalogue else None
    return SavedRun(
        catalogue=catalogue,
        tensors=_parse(folder, data, "tensors.safetensors", safetensors.numpy.load),
        user_ids=_parse(folder, data, "users.parquet", _parse_ids),
        item_ids=_parse(folder, data, "items.parquet", _parse_ids),
        meta=_parse(folder, data, "meta.json", _parse_object),
        extra={name: _parse(folder, data, name, bytes.decode) for name in sorted(data)},
    )


def summarize(folder: str | os.PathLike[str], *, verify: bool = False) -> RunSummary:
    """Read a run folder without its arrays and ids, whose size is checked only.

    Args:
        folder: a run folder.
        verify: check the SHA-256 of arrays and ids too.
    """

    def read(folder: VerifiedFolder) -> RunSummary:
        large = {name for name in folder.files if name in _LARGE_FILES or name == _CATALOGUE}
        data = {name: folder.read(name) for name in folder.files if name not in large}
        for name in large:
            folder.verify(name, checksum=verify)
        return RunSummary(
            meta=_parse(folder, data, "meta.json", _parse_object),
            extra={name: _parse(folder, data, name, bytes.decode) for name in sorted(data)},
            size=sum(expected["bytes"] for expected in folder.files.values()),
            written=folder.modified,
        )

    return read_folder(folder, RUN_FOLDER, read)


def check_replaceable(folder: str | os.PathLike[str]) -> None:
    """Refuse a folder that `save` would refuse to replace, before a long training."""
    manifest.check_replaceable(folder, RUN_FOLDER)


def _parse(
    folder: VerifiedFolder, data: dict[str, bytes], name: str, parse: Callable[[bytes], T]
) -> T:
    try:
        return parse(data.pop(name))
    except MemoryError:  # Arrow's is an ArrowException too
        raise
    except (
        SafetensorError,
        pa.ArrowException,
        OSError,
        ValueError,
        KeyError,
        RecursionError,
    ) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{folder.path / name}: cannot be read: {reason}") from None


def _parse_object(data: bytes) -> dict[str, Any]:
    value = json.loads(data.decode())
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")
    return value


def _parse_ids(data: bytes) -> pa.Array:
    """Unique ids, in memory that the size of the file bounds: repeated values would need more."""
    id_type = pq.read_schema(pa.BufferReader(data)).field("id").type
    if not any(is_type(id_type) for is_type in _ID_TYPES):
        raise ValueError(f"ids must be text or integers, not {id_type}")
    # Texts as references to a dictionary; Arrow then refuses the encodings that share prefixes.
    file = pq.ParquetFile(pa.BufferReader(data), read_dictionary=["id"])
    groups = [file.metadata.row_group(n) for n in range(file.num_row_groups)]
    columns = [group.column(n) for group in groups for n in range(group.num_columns)]
    if (
        {column.compression for column in columns} - _ID_CODECS
        or sum(column.total_compressed_size for column in columns) > len(data)
        or sum(group.num_rows for group in groups) > _MAX_ID_RATIO * len(data)
    ):
        raise ValueError("it is compressed in a way that this program does not write")
    ids = file.read(["id"])["id"]
    if pa.types.is_dictionary(ids.type):
        for chunk in ids.chunks:
            if len(chunk.indices.unique()) < len(chunk):
                raise ValueError("an id occurs more than once")
    ids = ids.cast(id_type).combine_chunks()
    if ids.null_count:
        raise ValueError("an id is missing (null)")
    return ids


def _parse_catalogue(data: bytes) -> pa.Table:
    """A table in memory that the size of the file bounds."""
    file = pq.ParquetFile(pa.BufferReader(data))
    groups = [file.metadata.row_group(n) for n in range(file.num_row_groups)]
    columns = [group.column(n) for group in groups for n in range(group.num_columns)]
    if (
        {column.compression for column in columns} - {"UNCOMPRESSED"}
        or {encoding for column in columns for encoding in column.encodings} - {"PLAIN", "RLE"}
        or file.metadata.num_rows > len(data)
    ):
        raise ValueError("it is compressed in a way that this program does not write")
    return file.read()


def finite_number(value: Any) -> float | None:
    """A JSON value as a finite number, else None.

    >>> finite_number(3), finite_number(True), finite_number(10**400), finite_number("3")
    (3.0, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None
