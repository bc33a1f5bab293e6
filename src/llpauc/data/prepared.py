"""Prepared data: a folder of Arrow files that is mapped into memory, not read.

    manifest.json    format version, counts, where it came from; size and SHA-256 of every file,
                     and a SHA-256 of all this
    train.arrow      user, item (int32) and timestamp (float64), in random order
    histories.arrow  item: the distinct training items of user 0, sorted, then of user 1, ...
    offsets.arrow    start (int64): where each user's begin, and the end
    valid.arrow      user, item, timestamp, by user; test.arrow likewise
    users.arrow      id: the outside ids of rows 0, 1, ...; items.arrow likewise

Each file is uncompressed Arrow IPC with one record batch: a column is one piece of the file, and
what is mapped costs memory only where it is looked at.
docs/how-to/larger-than-memory.md has the format.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from scipy import sparse

from llpauc.data.ids import IdMap
from llpauc.data.interactions import Interactions, Split
from llpauc.errors import InputError
from llpauc.storage.manifest import MANIFEST, FolderKind, VerifiedFolder, read_folder

_AGAIN = "prepare the data again (llpauc data prepare)"
PREPARED_DATA = FolderKind(
    kind="llpauc prepared data",
    noun="prepared data",
    formats={1: True},
    required=frozenset(
        f"{name}.arrow" for name in ("train", "histories", "offsets", "users", "items")
    ),
    remedy=_AGAIN,
)
_INT32_MOST = 2**31 - 1

Columns = dict[str, pa.Array]


def is_prepared(path: str | os.PathLike[str]) -> bool:
    """Whether a folder is, or was meant to be, prepared data."""
    folder = Path(path)
    if (folder / "train.arrow").is_file():
        return True
    try:
        with (folder / MANIFEST).open("rb") as file:
            return PREPARED_DATA.kind.encode() in file.read(1 << 20)
    except OSError:
        return False


def open_prepared(path: str | os.PathLike[str], *, verify: bool = False) -> Split:
    """The split in a prepared folder, its columns mapped into memory.

    Sizes, counts and the range of every row are checked; a file that is not as it was written is
    named.

    Args:
        path: the folder.
        verify: check the SHA-256 of every file too, which reads all of it.
    """
    folder = Path(path)
    manifest = read_manifest(folder, verify=verify)
    counts = manifest["counts"]
    ids = {what: _ids(folder, what, counts[what], manifest["kinds"]) for what in _IDS}
    parts = {}
    for part in ("train", "valid", "test"):
        if part in counts:
            parts[part] = _events(folder, part, counts[part], ids)
    matrix = _matrix(folder, counts)
    train = parts.pop("train").stored_shuffled(matrix)
    notes = tuple(f"{folder}: {note}" for note in manifest["notes"])
    return Split(train, parts.get("valid"), parts.get("test"), notes)


_IDS = ("users", "items")


def read_manifest(path: str | os.PathLike[str], *, verify: bool = False) -> dict[str, Any]:
    """The manifest, after checking the sizes of all files, and with `verify` their SHA-256."""

    def read(folder: VerifiedFolder) -> dict[str, Any]:
        for name in folder.files:
            folder.verify(name, checksum=verify)
        return folder.manifest

    return read_folder(path, PREPARED_DATA, read)


def write_columns(path: Path, columns: Mapping[str, pa.Array]) -> None:
    """One Arrow file with one record batch; mapped columns are never in memory as a whole."""
    batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)


def _columns(path: Path, rows: int) -> Columns:
    """The columns of a file as they lie on the disk; None of it is read here."""
    try:
        with pa.memory_map(str(path)) as source:
            batch = pa.ipc.open_file(source).get_batch(0)
        batch.validate()
    except (pa.ArrowException, OSError) as error:
        why = " ".join(str(error).split())[:200]
        raise InputError(f"{path}: is damaged ({why}); {_AGAIN}") from None
    if batch.num_rows != rows:
        raise InputError(f"{path}: has {batch.num_rows} rows of {rows}; {_AGAIN}")
    return dict(zip(batch.schema.names, batch.columns, strict=True))


def _numbers(path: Path, columns: Columns, name: str, kind: pa.DataType) -> npt.NDArray[Any]:
    column = columns.get(name)
    if column is None or column.type != kind or column.null_count:
        raise InputError(f"{path}: has no column {name!r} of {kind}; {_AGAIN}")
    return np.asarray(column.to_numpy(zero_copy_only=True))


def _ids(folder: Path, what: str, rows: int, kinds: Mapping[str, Any]) -> IdMap:
    path = folder / f"{what}.arrow"
    column = _columns(path, rows).get("id")
    if column is None or column.type != pa.large_string() or column.null_count:
        raise InputError(f"{path}: has no column 'id' of text; {_AGAIN}")
    return IdMap(column, kinds[what])


def _events(folder: Path, part: str, rows: int, ids: Mapping[str, IdMap]) -> Interactions:
    path = folder / f"{part}.arrow"
    columns = _columns(path, rows)
    times = None
    if "timestamp" in columns:
        times = _numbers(path, columns, "timestamp", pa.float64())
    try:
        return Interactions(
            _numbers(path, columns, "user", pa.int32()),
            _numbers(path, columns, "item", pa.int32()),
            ids["users"],
            ids["items"],
            timestamps=times,
        )
    except InputError as error:
        raise InputError(f"{path}: {error}; {_AGAIN}") from None


def _matrix(folder: Path, counts: Mapping[str, int]) -> sparse.csr_matrix:
    """The training matrix, its column indices mapped; all its ones are one number in memory."""
    path = folder / "offsets.arrow"
    users, items, pairs = counts["users"], counts["items"], counts["histories"]
    starts = _numbers(path, _columns(path, users + 1), "start", pa.int64())
    if starts[0] != 0 or starts[-1] != pairs or (np.diff(starts) < 0).any():
        raise InputError(f"{path}: does not lead through the {pairs} pairs; {_AGAIN}")
    path = folder / "histories.arrow"
    columns = _numbers(path, _columns(path, pairs), "item", pa.int32())
    if pairs and not (columns.min() >= 0 and columns.max() < items):
        raise InputError(f"{path}: names items beyond the {items} there are; {_AGAIN}")
    if pairs <= _INT32_MOST:  # scipy wants both of one type, and would widen the mapped one
        starts = starts.astype(np.int32)
    ones = np.broadcast_to(np.float32(1), pairs)
    matrix = sparse.csr_matrix((ones, columns, starts), shape=(users, items), copy=False)
    matrix.has_sorted_indices = matrix.has_canonical_format = True
    return matrix
