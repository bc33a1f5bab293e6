"""A folder that is whole or refused: tensors, ids and JSON under one manifest.

    manifest.json        format version, what it is, SHA-256 and size of every other file, and
                         a SHA-256 of all this
    tensors.safetensors  arrays by name
    users.parquet        outside ids by row; items.parquet likewise
    meta.json            everything small

Everything is written into a temporary folder beside the target, flushed to the disk, and put in
place in one step: whoever looks sees the old folder or the new one, whole. Loading takes every file
into memory once, checks it against the manifest, and reads what it has checked. No file is ever
executed or unpickled. docs/artifacts.md has the format.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors import SafetensorError
from safetensors.numpy import save_file

from llpauc.data.interactions import IdMap
from llpauc.errors import InputError, listing
from llpauc.storage.atomic_folder import cannot_write, put_in_place, workplace
from llpauc.storage.atomic_folder import flush as _flush
from llpauc.storage.checksums import SEAL, is_sealed, seal
from llpauc.storage.checksums import digest as _digest
from llpauc.storage.tensors import read_tensors

FORMAT = 2
MANIFEST = "manifest.json"
_KIND = "llpauc run"
_KEYS = {1: {"kind", "format", "files"}, 2: {"kind", "format", "files", SEAL}}  # 1 had no seal
_MOST_MANIFEST_BYTES = 1 << 20
_LARGE = frozenset({"tensors.safetensors", "users.parquet", "items.parquet"})
PARTS = _LARGE | {"meta.json"}  # what every run has, beside the manifest
_ATTEMPTS = 20  # to read a run that is replaced again and again meanwhile
_PLAIN_NAME = re.compile(r"\w[\w.-]{0,99}", re.ASCII)

T = TypeVar("T")

Tensors = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class SavedRun:
    """What a run folder holds.

    Args:
        tensors: arrays by name.
        user_ids, item_ids: the outside ids of the rows.
        meta: plain JSON values.
        extra: further text files by name, such as metrics.jsonl.
    """

    tensors: Tensors
    user_ids: IdMap
    item_ids: IdMap
    meta: Mapping[str, Any]
    extra: Mapping[str, str]


@dataclass(frozen=True)
class RunSummary:
    """What a run folder tells without its arrays and ids.

    Args:
        meta, extra: as an `SavedRun` has them.
        size: bytes of all files that the manifest lists.
        written: when the last file came into the folder, in seconds since 1970.
    """

    meta: Mapping[str, Any]
    extra: Mapping[str, str]
    size: int
    written: float


def save(artifact: SavedRun, folder: str | os.PathLike[str]) -> Path:
    """Write `artifact` as `folder`; one that is there and is a run of ours is replaced.

    Raises:
        OSError: a full disk, a folder that is read-only; what was there before is still there.
    """
    target = Path(folder).resolve()  # through a link, to where it points
    check_replaceable(target)
    try:
        with workplace(target) as work:
            _write_files(artifact, work)
            put_in_place(work, target)
            _flush(target.parent)
    except (OSError, SafetensorError) as error:
        raise cannot_write(target, error) from None
    return Path(folder)


def _write_files(artifact: SavedRun, work: Path) -> None:
    """All files into the folder `work`, and from memory to the disk."""
    save_file({k: np.asarray(v, order="C") for k, v in artifact.tensors.items()},
              work / "tensors.safetensors")  # fmt: skip
    for name, ids in (("users", artifact.user_ids), ("items", artifact.item_ids)):
        pq.write_table(pa.table({"id": ids.arrow()}), work / f"{name}.parquet")
    (work / "meta.json").write_text(_dumps(artifact.meta), encoding="utf-8")
    for name, text in artifact.extra.items():
        if name in PARTS or name == MANIFEST:
            raise InputError(f"{name} is a name of the run's own; choose another for the extra")
        (work / _plain_name(name)).write_text(text, encoding="utf-8")
    files = {
        path.name: {"sha256": _digest(path), "bytes": path.stat().st_size}
        for path in sorted(work.iterdir())
    }
    manifest: dict[str, Any] = {"kind": _KIND, "format": FORMAT, "files": files}
    manifest[SEAL] = seal(manifest)
    (work / MANIFEST).write_text(_dumps(manifest), encoding="utf-8")
    # safetensors writes for its owner alone; a run's files are as readable as its manifest.
    os.chmod(work / "tensors.safetensors", (work / MANIFEST).stat().st_mode & 0o777)
    for path in work.iterdir():
        _flush(path)
    _flush(work)


def load(folder: str | os.PathLike[str]) -> SavedRun:
    """Read a run folder after checking every file against its manifest."""
    return _steadily(Path(folder), _load)


def summarize(folder: str | os.PathLike[str], *, verify: bool = False) -> RunSummary:
    """Look at a run folder; of the large files only whether they are there and as long as they
    should be.

    Args:
        folder: a run folder.
        verify: check the SHA-256 of the large ones too.
    """
    return _steadily(Path(folder), lambda source, handle: _glance(source, handle, verify))


def _steadily(source: Path, read: Callable[[Path, int], T]) -> T:
    """`read` a folder by its handle, which stays that of one folder whatever takes its name.

    A folder that is replaced is deleted under its readers' eyes; they start again with the new one.
    """
    for attempt in range(_ATTEMPTS):
        try:
            handle = os.open(source, os.O_RDONLY | os.O_DIRECTORY)
        except (FileNotFoundError, ValueError):
            raise InputError(
                f"{source} is no run folder: there is nothing of that name; llpauc runs lists"
                " those there are"
            ) from None
        except NotADirectoryError:
            raise InputError(
                f"{source} is no run folder but a file; llpauc train makes a run of events"
            ) from None
        except OSError as error:
            raise InputError(f"{source}: cannot be read: {error.strerror}") from None
        try:
            return read(source, handle)
        except InputError:
            if attempt == _ATTEMPTS - 1 or not _is_replaced(source, handle):
                raise
        finally:
            os.close(handle)
    raise AssertionError("unreachable")


def _is_replaced(source: Path, handle: int) -> bool:
    try:
        return not os.path.samestat(os.stat(source), os.fstat(handle))
    except OSError:
        return False


def _load(source: Path, handle: int) -> SavedRun:
    # A second look at a file could find another one, so each is held from its check on.
    files = _files_of(source, handle)
    held = {name: _checked(source, name, files[name], handle) for name in files}
    return SavedRun(
        tensors=_parsed(source, held, "tensors.safetensors", read_tensors),
        user_ids=_parsed(source, held, "users.parquet", _read_ids),
        item_ids=_parsed(source, held, "items.parquet", _read_ids),
        meta=_parsed(source, held, "meta.json", _read_object),
        extra={name: _parsed(source, held, name, _read_text) for name in sorted(held)},
    )


def _glance(source: Path, handle: int, verify: bool) -> RunSummary:
    written, files, held = os.fstat(handle).st_mtime, _files_of(source, handle), {}
    for name, expected in files.items():
        if name not in _LARGE:
            held[name] = _checked(source, name, expected, handle)
            continue
        with _open(source, name, expected, handle) as file:
            if verify:
                _check_digest(source / name, hashlib.file_digest(file, "sha256"), expected)
    return RunSummary(
        meta=_parsed(source, held, "meta.json", _read_object),
        extra={name: _parsed(source, held, name, _read_text) for name in sorted(held)},
        size=sum(expected["bytes"] for expected in files.values()),
        written=written,
    )


def _parsed(
    source: Path, held: dict[str, memoryview], name: str, read: Callable[[memoryview], T]
) -> T:
    try:
        return read(held.pop(name))
    except MemoryError:  # Arrow's own is an ArrowException too
        raise
    except (
        SafetensorError, pa.ArrowException, OSError, ValueError, KeyError, RecursionError
    ) as error:  # fmt: skip
        why = " ".join(str(error).split())
        raise InputError(f"{source / name}: cannot be read: {why}") from None


def _read_text(data: memoryview) -> str:
    return str(data, "utf-8")


def _read_object(data: memoryview) -> dict[str, Any]:
    value = json.loads(_read_text(data))
    if not isinstance(value, dict):
        raise ValueError("it is no JSON object")
    return value


def _read_ids(data: memoryview) -> IdMap:
    return IdMap.of(pq.read_table(pa.BufferReader(pa.py_buffer(data)))["id"])


def check_replaceable(folder: str | os.PathLike[str]) -> None:
    """Nothing but an empty folder or a run of ours makes way: other people's files are theirs.

    `save` asks this too; to be told before an hour of training, ask it first.
    """
    target = Path(folder)
    if not target.exists():
        return
    if not target.is_dir():
        raise InputError(f"{target} is no folder; choose another name for the run")
    there = set(os.listdir(target))
    if not there:
        return
    handle = os.open(target, os.O_RDONLY)
    try:
        files = _read_manifest(target, handle).get("files")
    except InputError:
        raise InputError(
            f"{target} is not empty and is no run of ours; choose another folder"
        ) from None
    finally:
        os.close(handle)
    if others := there - {MANIFEST} - set(files if isinstance(files, dict) else ()):
        raise InputError(
            f"{target} holds {listing(sorted(others), 3)}, which the run there does not list and"
            " which would be lost; move it away or choose another folder"
        )


def _read_manifest(source: Path, handle: int) -> dict[str, Any]:
    """The manifest of a run of ours, of whatever format."""
    path = source / MANIFEST
    try:
        with _open_plain(path, handle) as file:
            data = file.read(_MOST_MANIFEST_BYTES + 1)
    except OSError as error:
        why = f": {error.strerror}" if isinstance(error, PermissionError) else ""
        raise InputError(f"{source} is no run folder: it has no {MANIFEST}{why}") from None
    if len(data) > _MOST_MANIFEST_BYTES:
        raise InputError(f"{path}: larger than a manifest can be")
    try:
        manifest = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):
        raise InputError(f"{path}: is not JSON; the file is damaged") from None
    if not isinstance(manifest, dict) or manifest.get("kind") != _KIND:
        raise InputError(f"{path}: is not the manifest of a run")
    return manifest


def _files_of(source: Path, handle: int) -> dict[str, dict[str, Any]]:
    """What the manifest lists, once it is seen to be sound and nothing else lies there."""
    path, manifest = source / MANIFEST, _read_manifest(source, handle)
    files = _listed_files(path, manifest)
    sealed = SEAL not in manifest or is_sealed(manifest)
    if set(manifest) != _KEYS[manifest["format"]] or not sealed:
        raise InputError(f"{path}: does not match its own SHA-256; the file is damaged")
    for name in files:
        _plain_name(name)
    if missing := PARTS - set(files):
        raise InputError(f"{source}: the manifest does not list {', '.join(sorted(missing))}")
    # What begins with a dot is the system's (Finder's notes, NFS's leftovers), and never read.
    others = {name for name in os.listdir(handle) if not name.startswith(".")}
    if others := others - set(files) - {MANIFEST}:
        raise InputError(
            f"{source}: holds {min(others)!r}, which is not in the manifest and no part of the"
            " run; move it away"
        )
    return files


def _listed_files(path: Path, manifest: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    format, files = manifest.get("format"), manifest.get("files")
    if type(format) is not int or format not in _KEYS:
        newer = type(format) is int and format > FORMAT
        raise InputError(
            f"{path}: has format {format!r:.50}, this version reads {listing(_KEYS)}"
            + ("; a newer llpauc wrote it, and reads it" if newer else "")
        )
    if not isinstance(files, dict) or not all(isinstance(f, dict) for f in files.values()):
        raise InputError(f"{path}: lists no files")
    return files


def _checked(source: Path, name: str, expected: Mapping[str, Any], handle: int) -> memoryview:
    """The file's content, which is what the manifest says; `handle` is the open folder's."""
    with _open(source, name, expected, handle) as file:
        # Nobody fills it with zeros first, which would hold up a server's requests for 30 ms.
        data = np.empty(expected["bytes"], np.uint8).data
        file.readinto(data)
    _check_digest(source / name, hashlib.sha256(data), expected)
    return data


def _open(source: Path, name: str, expected: Mapping[str, Any], handle: int) -> BufferedReader:
    """A listed file, as long as the manifest says."""
    path, size = source / _plain_name(name), expected.get("bytes")
    try:
        file = _open_plain(path, handle)
    except PermissionError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    except OSError:
        raise InputError(f"{path}: is missing (or is a link); the run is not whole") from None
    found = os.fstat(file.fileno()).st_size
    if type(size) is not int or found != size:
        file.close()
        raise InputError(
            f"{path}: has {found} bytes, the manifest says {size!r:.50}; the file is damaged"
        )
    return file


def _open_plain(path: Path, handle: int) -> BufferedReader:
    """A file in the folder: no link, no pipe that would keep us waiting, no folder."""
    found = os.open(path.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=handle)
    if not stat.S_ISREG(os.fstat(found).st_mode):
        os.close(found)
        raise FileNotFoundError(errno.ENOENT, "no plain file", str(path))
    return os.fdopen(found, "rb")


def _check_digest(path: Path, found: hashlib._Hash, expected: Mapping[str, Any]) -> None:
    if found.hexdigest() != expected.get("sha256"):
        raise InputError(
            f"{path}: its SHA-256 is not the manifest's; the file is damaged or of another run"
        )


def _plain_name(name: str) -> str:
    if not _PLAIN_NAME.fullmatch(name):
        raise InputError(f"{name!r:.99} is no plain file name; the manifest is not to be trusted")
    return name


def _dumps(value: Any) -> str:
    text = json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True, default=_as_json)
    return text + "\n"


def _as_json(value: Any) -> Any:
    """NumPy's numbers (a grid search hands them out) and paths as JSON has them."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise InputError(f"a run cannot keep {value!r}; give text, numbers, lists or dicts")
