"""Prepared data: a folder of Arrow files that is mapped into memory, not read.

    manifest.json    format version, counts, notes; size and SHA-256 of every file, and a SHA-256
                     of the manifest
    train.arrow      user, item (int32 indices), timestamp (float64), and where events have them
                     weight (float32) and types (uint32, a bit), in random order
    histories.arrow  item: the distinct training items of user 0, sorted, then of user 1, ...;
                     weight: the sum of the weights of their events, and types, as bits
    offsets.arrow    start (int64): where the items of each user begin, and the end
    valid.arrow      the columns of train.arrow, by user; test.arrow likewise
    users.arrow      id: the id of each user index; items.arrow likewise

Each file is uncompressed Arrow IPC with one record batch, so that a column is contiguous and uses
memory only where it is accessed. docs/how-to/larger-than-memory.md describes the format.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from scipy import sparse

from llpauc.data.columns import printable
from llpauc.data.ids import IdMap
from llpauc.data.interactions import EventRules, Interactions, Split
from llpauc.errors import InputError
from llpauc.storage.manifest import FolderKind, VerifiedFolder, manifest_bytes, read_folder

_REMEDY = "prepare the data again (llpauc data prepare)"
PREPARED_DATA = FolderKind(
    kind="llpauc prepared data",
    noun="prepared data",
    formats={1: True},
    required=frozenset(
        f"{name}.arrow" for name in ("train", "histories", "offsets", "users", "items")
    ),
    remedy=_REMEDY,
)


_OPTIONAL = {"timestamp": pa.float64(), "weight": pa.float32(), "types": pa.uint32()}


def is_prepared(path: str | os.PathLike[str]) -> bool:
    """Whether a folder is, or was meant to be, prepared data."""
    folder = Path(path)
    if (folder / "train.arrow").is_file():
        return True
    try:
        return PREPARED_DATA.kind.encode() in manifest_bytes(folder)
    except OSError:
        return False


def open_prepared(path: str | os.PathLike[str]) -> Split:
    """The split in a prepared folder, its columns mapped into memory.

    The SHA-256 of every file, the counts and the range of every index are checked; an error names
    the damaged file. A file that is truncated later ends the process with a message that names it.
    """

    def read(folder: VerifiedFolder) -> Split:
        for name in folder.files:
            folder.verify(name)
        _exit_on_bus_error(folder.path / name for name in folder.files)
        split = _mapped_split(folder.path, folder.manifest)
        folder.check_in_place()
        return split

    return read_folder(path, PREPARED_DATA, read)


def _mapped_split(folder: Path, manifest: Mapping[str, Any]) -> Split:
    counts = manifest["counts"]
    ids = []
    for name in ("users", "items"):
        columns = _columns(folder / f"{name}.arrow", counts[name], id=pa.large_string())
        ids.append(IdMap(columns["id"], manifest["kinds"][name]))
    saved = manifest.get("event_rules", {})
    rules = EventRules(dict(saved.get("type_weights", ())), log=saved.get("log", False))
    parts = {
        part: replace(_events(folder / f"{part}.arrow", counts[part], *ids), rules=rules)
        for part in ("train", "valid", "test")
        if part in counts
    }
    train = parts["train"].stored_shuffled(**_by_pair(folder, counts))
    notes = tuple(f"{folder}: {note}" for note in manifest["notes"])
    return Split(train, parts.get("valid"), parts.get("test"), notes)


_BUS_ERROR = "became shorter, or the disk failed, while it was read"
# Of the handler of SIGBUS, which needs them as long as the process runs
_handlers: list[Any] = []
_mapped_files: dict[bytes, tuple[int, npt.NDArray[np.uint8]]] = {}  # path -> size, message


def _exit_on_bus_error(files: Iterable[Path]) -> None:
    """Print a line that names the file and exit with code 1 where the system would kill the
    process with SIGBUS, because one of these mapped files or of earlier ones was truncated.

    Python runs its signal handlers only after the failed instruction, so this one is compiled.
    """
    if not _handlers and signal.getsignal(signal.SIGBUS) is not signal.SIG_DFL:
        return
    import numba

    libc = ctypes.CDLL(None)
    number, address = ctypes.c_int, ctypes.c_size_t
    write, leave, install, open_file, seek = (
        getattr(libc, name) for name in ("write", "_exit", "signal", "open", "lseek")
    )
    write.argtypes, write.restype = (number, address, address), ctypes.c_long
    leave.argtypes, leave.restype = (number,), None
    install.argtypes, install.restype = (number, address), address
    open_file.argtypes, open_file.restype = (address, number), number
    seek.argtypes, seek.restype = (number, ctypes.c_long, number), ctypes.c_long

    def message(what: str) -> npt.NDArray[np.uint8]:
        return np.frombuffer(f"llpauc: error: {what} {_BUS_ERROR}; {_REMEDY}\n".encode(), np.uint8)

    for path in files:
        name = os.fsencode(path.resolve()) + b"\0"
        _mapped_files[name] = path.stat().st_size, message(f"{printable(str(path))}:")
    known = [
        (np.frombuffer(name, np.uint8).ctypes.data, size, text.ctypes.data, len(text))
        for name, (size, text) in _mapped_files.items()
    ]
    table = np.array(known, np.uint64)
    unknown = message("a file of prepared data")
    unknown_text, unknown_length = unknown.ctypes.data, len(unknown)

    @numba.cfunc("void(int32)")
    def handler(signal_number: int) -> None:
        for row in range(len(table)):
            file = open_file(table[row, 0], 0)
            if file >= 0 and seek(file, 0, 2) < table[row, 1]:
                write(2, table[row, 2], table[row, 3])
                leave(1)
        write(2, unknown_text, unknown_length)
        leave(1)

    install(signal.SIGBUS, handler.address)
    _handlers.append((handler, unknown))


def write_columns(path: Path, columns: Mapping[str, pa.Array]) -> None:
    """One Arrow file with one record batch; mapped columns are never in memory as a whole."""
    batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)


def _columns(path: Path, rows: int, **types: pa.DataType) -> dict[str, pa.Array]:
    """The mapped columns of a file; only those in `_OPTIONAL` may be missing."""
    try:
        with pa.memory_map(str(path)) as source:
            batch = pa.ipc.open_file(source).get_batch(0)
        batch.validate()
    except (pa.ArrowException, OSError) as error:
        why = " ".join(str(error).split())[:200]
        raise InputError(f"{path}: is damaged ({why}); {_REMEDY}") from None
    if batch.num_rows != rows:
        raise InputError(f"{path}: has {batch.num_rows} rows of {rows}; {_REMEDY}")
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    for name, expected in types.items():
        column = columns.get(name)
        valid = column is not None and column.type == expected and not column.null_count
        if not valid and not (column is None and name in _OPTIONAL):
            raise InputError(f"{path}: has no column {name!r} of {expected}; {_REMEDY}")
    return columns


def _mapped(column: pa.Array) -> npt.NDArray[Any]:
    return np.asarray(column.to_numpy(zero_copy_only=True))


def _events(path: Path, rows: int, user_ids: IdMap, item_ids: IdMap) -> Interactions:
    columns = _columns(path, rows, user=pa.int32(), item=pa.int32(), **_OPTIONAL)
    users, items = _mapped(columns["user"]), _mapped(columns["item"])
    timestamps, weights, types = (
        _mapped(columns[name]) if name in columns else None for name in _OPTIONAL
    )
    try:
        return Interactions(users, items, user_ids, item_ids, None, timestamps, weights, types)
    except InputError as error:
        raise InputError(f"{path}: {error}; {_REMEDY}") from None


def _by_pair(folder: Path, counts: Mapping[str, int]) -> dict[str, Any]:
    """The training matrix with mapped column indices, whose values are one number in memory; and
    the weight and the types of each pair."""
    users, items, pairs = counts["users"], counts["items"], counts["histories"]
    path = folder / "offsets.arrow"
    starts = _mapped(_columns(path, users + 1, start=pa.int64())["start"])
    if starts[0] != 0 or starts[-1] != pairs or (np.diff(starts) < 0).any():
        raise InputError(f"{path}: is not an ascending list from 0 to {pairs}; {_REMEDY}")
    path = folder / "histories.arrow"
    by_pair = _columns(path, pairs, item=pa.int32(), **_OPTIONAL)
    columns = _mapped(by_pair["item"])
    if pairs and not (columns.min() >= 0 and columns.max() < items):
        raise InputError(f"{path}: holds indices outside of the {items} items; {_REMEDY}")
    if pairs < 2**31:  # scipy needs one type for both index arrays and would copy the mapped one
        starts = starts.astype(np.int32)
    values = {"matrix": np.broadcast_to(np.float32(1), pairs)}
    if "weight" in by_pair:
        values["histories"] = _mapped(by_pair["weight"])
    found: dict[str, Any] = {}
    for name, data in values.items():
        matrix = sparse.csr_matrix((data, columns, starts), shape=(users, items), copy=False)
        matrix.has_sorted_indices = matrix.has_canonical_format = True
        found[name] = matrix
    if "types" in by_pair:
        found["pair_types"] = _mapped(by_pair["types"])
    return found
