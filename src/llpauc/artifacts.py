"""A folder that is whole or refused: tensors, ids and JSON under one manifest.

    manifest.json        format version, what it is, SHA-256 and size of every other file
    tensors.safetensors  arrays by name
    users.parquet        outside ids by row; items.parquet likewise
    meta.json            everything small

Everything is written into a temporary folder beside the target, flushed to the disk, and renamed.
Whoever looks sees the old folder or the new one, whole; where one replaces the other, none for the
moment between two renames. Loading takes every file into memory once, checks it against the
manifest, and reads what it has checked. No file is ever executed or unpickled.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors import SafetensorError
from safetensors.numpy import load as read_tensors
from safetensors.numpy import save_file

from llpauc.errors import InputError
from llpauc.interactions import IdMap

FORMAT = 1
MANIFEST = "manifest.json"
_KIND = "llpauc run"
_MOST_MANIFEST_BYTES = 1 << 20
_PARTS = frozenset({"tensors.safetensors", "users.parquet", "items.parquet", "meta.json"})
_PLAIN_NAME = re.compile(r"\w[\w.-]{0,99}", re.ASCII)

T = TypeVar("T")

Tensors = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Artifact:
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


def save(artifact: Artifact, folder: str | os.PathLike[str]) -> Path:
    """Write `artifact` as `folder`; one that is there and is a run of ours is replaced."""
    target = Path(folder).resolve()  # through a link, to where it points
    check_replaceable(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    work = target.with_name(f".{target.name}.{secrets.token_hex(6)}")
    try:
        work.mkdir()
        save_file({k: np.asarray(v, order="C") for k, v in artifact.tensors.items()},
                  work / "tensors.safetensors")  # fmt: skip
        for name, ids in (("users", artifact.user_ids), ("items", artifact.item_ids)):
            pq.write_table(pa.table({"id": ids.arrow()}), work / f"{name}.parquet")
        (work / "meta.json").write_text(_dumps(artifact.meta), encoding="utf-8")
        for name, text in artifact.extra.items():
            if name in _PARTS or name == MANIFEST:
                raise InputError(f"{name} is a name of the run's own; choose another for the extra")
            (work / _plain_name(name)).write_text(text, encoding="utf-8")
        files = {
            path.name: {"sha256": _digest(path), "bytes": path.stat().st_size}
            for path in sorted(work.iterdir())
        }
        manifest = {"kind": _KIND, "format": FORMAT, "files": files}
        (work / MANIFEST).write_text(_dumps(manifest), encoding="utf-8")
        # safetensors writes for its owner alone; a run's files are as readable as its manifest.
        os.chmod(work / "tensors.safetensors", (work / MANIFEST).stat().st_mode & 0o777)
        for path in work.iterdir():
            _flush(path)
        _flush(work)
        _swap(work, target)
    except SafetensorError as error:  # its own name for a full disk
        raise OSError(f"cannot write {target}: {error}") from None
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return Path(folder)


def load(folder: str | os.PathLike[str]) -> Artifact:
    """Read a run folder after checking every file against its manifest."""
    source = Path(folder)
    files = _listed_files(source / MANIFEST, _read_manifest(source))
    missing = _PARTS - set(files)
    if missing:
        raise InputError(f"{source}: the manifest does not list {', '.join(sorted(missing))}")
    # A second look at a file could find another one: the folder may be replaced at any time.
    held = {name: _checked(source, name, expected) for name, expected in files.items()}

    def parsed(name: str, read: Callable[[bytes], T]) -> T:
        try:
            return read(held.pop(name))
        except (
            SafetensorError, pa.ArrowException, OSError, ValueError, KeyError, RecursionError
        ) as error:  # fmt: skip
            why = " ".join(str(error).split())
            raise InputError(f"{source / name}: cannot be read: {why}") from None

    return Artifact(
        tensors=parsed("tensors.safetensors", read_tensors),
        user_ids=parsed("users.parquet", _read_ids),
        item_ids=parsed("items.parquet", _read_ids),
        meta=parsed("meta.json", _read_object),
        extra={name: parsed(name, lambda data: data.decode("utf-8")) for name in sorted(held)},
    )


def _read_object(data: bytes) -> dict[str, Any]:
    value = json.loads(data.decode("utf-8"))
    if not isinstance(value, dict):
        raise ValueError("it is no JSON object")
    return value


def _read_ids(data: bytes) -> IdMap:
    return IdMap.of(pq.read_table(pa.BufferReader(data))["id"])


def check_replaceable(folder: str | os.PathLike[str]) -> None:
    """Nothing but an empty folder or a run of ours makes way: other people's files are theirs.

    `save` asks this too; to be told before an hour of training, ask it first.
    """
    target = Path(folder)
    if not target.exists():
        return
    if not target.is_dir():
        raise InputError(f"{target} is no folder; choose another name for the run")
    if any(target.iterdir()):
        try:
            _read_manifest(target)
        except InputError:
            raise InputError(
                f"{target} is not empty and is no run of ours; choose another folder"
            ) from None


def _read_manifest(source: Path) -> dict[str, Any]:
    """The manifest of a run of ours, of whatever format."""
    path = source / MANIFEST
    if not path.is_file() or path.is_symlink():
        raise InputError(f"{source} is no run folder: it has no {MANIFEST}")
    if path.stat().st_size > _MOST_MANIFEST_BYTES:
        raise InputError(f"{path}: larger than a manifest can be")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        raise InputError(f"{path}: is not JSON; the folder is damaged") from None
    if not isinstance(manifest, dict) or manifest.get("kind") != _KIND:
        raise InputError(f"{path}: is not the manifest of a run")
    return manifest


def _listed_files(path: Path, manifest: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    if manifest.get("format") != FORMAT:
        raise InputError(
            f"{path}: has format {manifest.get('format')!r}, this version reads {FORMAT}"
        )
    files = manifest.get("files")
    if not isinstance(files, dict) or not all(isinstance(f, dict) for f in files.values()):
        raise InputError(f"{path}: lists no files")
    return files


def _checked(source: Path, name: str, expected: Mapping[str, Any]) -> bytes:
    """The file's content, which is what the manifest says."""
    path = source / _plain_name(name)
    if path.is_symlink() or not path.is_file():
        raise InputError(f"{path}: is missing (or is a link); the run is not whole")
    if path.stat().st_size != expected.get("bytes"):
        raise InputError(
            f"{path}: has {path.stat().st_size} bytes, the manifest says {expected.get('bytes')};"
            " the file is damaged"
        )
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != expected.get("sha256"):
        raise InputError(f"{path}: its SHA-256 is not the manifest's; the file is damaged")
    return data


def _plain_name(name: str) -> str:
    if not _PLAIN_NAME.fullmatch(name):
        raise InputError(f"{name!r} is no plain file name; the manifest is not to be trusted")
    return name


def _swap(work: Path, target: Path) -> None:
    """Put `work` in place of `target`; an old run moves aside first and is then removed."""
    aside = work.with_name(f"{work.name}.old")
    try:
        if target.exists():
            os.rename(target, aside)
        os.rename(work, target)
    except BaseException:  # Ctrl-C too: the old run is all there is until the new one is in place
        if aside.exists() and not target.exists():
            os.rename(aside, target)
        raise
    try:
        _flush(target.parent)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


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
