"""A folder that is whole or refused: tensors, ids and JSON under one manifest.

    manifest.json        format version, what it is, SHA-256 and size of every other file
    tensors.safetensors  arrays by name
    users.parquet        outside ids by row; items.parquet likewise
    meta.json            everything small

Everything is written into a temporary folder beside the target, flushed to the disk, and renamed:
whoever looks sees the old folder or the new one. Loading checks every file against the manifest
before anything is read from it. No file is ever executed or unpickled.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from llpauc.errors import InputError
from llpauc.interactions import IdMap

FORMAT = 1
MANIFEST = "manifest.json"
_KIND = "llpauc run"
_MOST_MANIFEST_BYTES = 1 << 20

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
    target = Path(folder)
    if target.exists() and not (target / MANIFEST).is_file() and any(target.iterdir()):
        raise InputError(f"{target} is not empty and is no run of ours; choose another folder")
    target.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        save_file({k: np.ascontiguousarray(v) for k, v in artifact.tensors.items()},
                  work / "tensors.safetensors")  # fmt: skip
        for name, ids in (("users", artifact.user_ids), ("items", artifact.item_ids)):
            pq.write_table(pa.table({"id": ids.arrow()}), work / f"{name}.parquet")
        (work / "meta.json").write_text(_dumps(artifact.meta), encoding="utf-8")
        for name, text in artifact.extra.items():
            (work / _plain_name(name)).write_text(text, encoding="utf-8")
        files = {
            path.name: {"sha256": _digest(path), "bytes": path.stat().st_size}
            for path in sorted(work.iterdir())
        }
        manifest = {"kind": _KIND, "format": FORMAT, "files": files}
        (work / MANIFEST).write_text(_dumps(manifest), encoding="utf-8")
        for path in work.iterdir():
            _flush(path)
        _flush(work)
        os.chmod(work, 0o755)  # mkdtemp keeps others out; a run is for sharing
        _swap(work, target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target


def load(folder: str | os.PathLike[str]) -> Artifact:
    """Read a run folder after checking every file against its manifest."""
    source = Path(folder)
    manifest = _read_manifest(source)
    for name, expected in manifest["files"].items():
        _check(source, name, expected)
    missing = {"tensors.safetensors", "users.parquet", "items.parquet", "meta.json"} - set(
        manifest["files"]
    )
    if missing:
        raise InputError(f"{source}: the manifest does not list {', '.join(sorted(missing))}")
    try:
        tensors = load_file(source / "tensors.safetensors")
        user_ids, item_ids = (
            IdMap.of(pq.read_table(source / f"{name}.parquet")["id"]) for name in ("users", "items")
        )
        meta = json.loads((source / "meta.json").read_text(encoding="utf-8"))
    except (SafetensorError, pa.ArrowException, ValueError, KeyError) as error:
        raise InputError(f"{source}: cannot be read: {' '.join(str(error).split())}") from None
    rest = set(manifest["files"]) - {"tensors.safetensors", "users.parquet", "items.parquet",
                                     "meta.json"}  # fmt: skip
    extra = {name: (source / name).read_text(encoding="utf-8") for name in sorted(rest)}
    return Artifact(tensors, user_ids, item_ids, meta, extra)


def _read_manifest(source: Path) -> dict[str, Any]:
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
    if manifest.get("format") != FORMAT:
        raise InputError(
            f"{path}: has format {manifest.get('format')!r}, this version reads {FORMAT}"
        )
    files = manifest.get("files")
    if not isinstance(files, dict) or not all(isinstance(f, dict) for f in files.values()):
        raise InputError(f"{path}: lists no files")
    return manifest


def _check(source: Path, name: str, expected: Mapping[str, Any]) -> None:
    path = source / _plain_name(name)
    if path.is_symlink() or not path.is_file():
        raise InputError(f"{path}: is missing (or is a link); the run is not whole")
    if path.stat().st_size != expected.get("bytes"):
        raise InputError(
            f"{path}: has {path.stat().st_size} bytes, the manifest says {expected.get('bytes')};"
            " the file is damaged"
        )
    if _digest(path) != expected.get("sha256"):
        raise InputError(f"{path}: its SHA-256 is not the manifest's; the file is damaged")


def _plain_name(name: str) -> str:
    if name != Path(name).name or name in ("", ".", ".."):
        raise InputError(f"{name!r} is no plain file name; the manifest is not to be trusted")
    return name


def _swap(work: Path, target: Path) -> None:
    """Put `work` in place of `target`; an old run moves aside first and is then removed."""
    aside = None
    if target.exists():
        aside = Path(tempfile.mkdtemp(prefix=f".{target.name}.old.", dir=target.parent))
        os.rename(target, aside / "run")
    try:
        os.rename(work, target)
    except OSError:
        if aside is not None:
            os.rename(aside / "run", target)
        raise
    finally:
        if aside is not None:
            shutil.rmtree(aside, ignore_errors=True)
    _flush(target.parent)


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
    return json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True) + "\n"
