"""Folders whose files are listed in a manifest and verified when they are read.

    {"kind": "llpauc run", "format": 2, ...,
     "files": {NAME: {"sha256": ..., "bytes": ...}},
     "sha256": checksum of all the other entries}

A folder is read through its file descriptor and without following links, so that all files come
from one folder even while another takes its name.
docs/reference/run-folders.md describes the format.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import Any, TypeVar

from llpauc.errors import InputError, listing
from llpauc.storage.atomic import flush, replace_folder, temporary_folder, write_error
from llpauc.storage.signing import SIGNATURE, is_signed, signature

MANIFEST = "manifest.json"
_CHECKSUM = "sha256"  # the manifest's entry about itself
_MAX_MANIFEST_BYTES = 1 << 20
_MAX_ATTEMPTS = 20  # to read a folder that is replaced while it is read
_PLAIN_NAME = re.compile(r"\w[\w.-]{0,99}", re.ASCII)

T = TypeVar("T")


@dataclass(frozen=True)
class FolderKind:
    """A kind of folder.

    Args:
        kind: the manifest's entry "kind".
        noun: what messages call such a folder, such as "a run folder".
        formats: format versions that can be read -> whether their manifest has a checksum; the
            last one is written.
        required: files that every folder of this kind has.
        remedy: what to do about a damaged or missing folder, as the end of messages.
        folders: subfolders, which have a manifest of their own, by name.
    """

    kind: str
    noun: str
    formats: Mapping[int, bool]
    required: frozenset[str]
    remedy: str
    folders: Mapping[str, FolderKind] = field(default_factory=dict)


def write_manifest(folder: Path, kind: FolderKind, **entries: Any) -> dict[str, Any]:
    """List every file of `folder` in a manifest; flush files, manifest and folder to the disk."""
    files = {
        path.name: {"sha256": file_checksum(path), "bytes": path.stat().st_size}
        for path in sorted(folder.iterdir())
        if path.name not in kind.folders
    }
    manifest: dict[str, Any] = {"kind": kind.kind, "format": max(kind.formats), **entries}
    manifest["files"] = files
    manifest[_CHECKSUM] = _manifest_checksum(manifest)
    (folder / MANIFEST).write_text(_as_text(manifest), encoding="utf-8")
    for path in folder.iterdir():
        flush(path)
    flush(folder)
    return manifest


def _as_text(manifest: Mapping[str, Any]) -> str:
    return json.dumps(manifest, indent=2, ensure_ascii=False, sort_keys=True) + "\n"


@contextmanager
def written_folder(folder: str | os.PathLike[str], kind: FolderKind) -> Iterator[Path]:
    """Yield an empty folder that gets a manifest and replaces `folder` at the end of the block.

    Raises:
        InputError: for a folder that holds anything else; see `check_replaceable`.
        OSError: on a full disk or a read-only folder; an existing folder stays as it was.
    """
    target = Path(folder).resolve()  # a link is followed, its target is replaced
    check_replaceable(target, kind)
    try:
        with temporary_folder(target) as work:
            yield work
            write_manifest(work, kind)
            replace_folder(work, target)
    except OSError as error:
        raise write_error(target, error) from None


def file_checksum(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _manifest_checksum(manifest: Mapping[str, Any]) -> str:
    entries = {key: value for key, value in manifest.items() if key != _CHECKSUM}
    return hashlib.sha256(json.dumps(entries, sort_keys=True).encode("ascii")).hexdigest()


class VerifiedFolder:
    """An open folder whose manifest has been verified; see `read_folder`.

    Args:
        path: of the folder, for messages.
        handle: its file descriptor.
        kind: what it must be.
        signing_key: the key that it must be signed with; None for any folder.

    Attributes:
        manifest: all entries of the manifest.
        files: size and checksum by file name.
    """

    def __init__(
        self, path: Path, handle: int, kind: FolderKind, signing_key: str | None = None
    ) -> None:
        self.path, self._handle, self._kind = path, handle, kind
        self.manifest = _read_manifest(path, handle, kind)
        if signing_key is not None and not is_signed(self.manifest, signing_key):
            signed = SIGNATURE in self.manifest
            problem = "its signature does not match the key" if signed else "it is not signed"
            raise InputError(f"{path}: {problem}; if you trust it, sign it (llpauc sign)")
        self.files: dict[str, dict[str, Any]] = self.manifest["files"]
        for name in self.files:
            check_plain_name(name)
        if missing := kind.required - set(self.files):
            raise InputError(
                f"{path}: the manifest does not list {listing(sorted(missing))}; {kind.remedy}"
            )
        # Names that begin with a dot belong to the system (.DS_Store, .nfs...) and are not read.
        names = {name for name in os.listdir(handle) if not name.startswith(".")}
        if unlisted := names - set(self.files) - {MANIFEST}:
            raise InputError(
                f"{path}: holds {min(unlisted)!r}, which is not in the manifest; move it away"
            )

    @property
    def modified(self) -> float:
        """When the last file was added, in seconds since 1970."""
        return os.fstat(self._handle).st_mtime

    def read(self, name: str) -> bytes:
        """The content of a file, after checking its size and SHA-256."""
        with self._open(name) as file:
            data = file.read(self.files[name]["bytes"])
        self._check(name, hashlib.sha256(data).hexdigest())
        return data

    def verify(self, name: str, checksum: bool = True) -> None:
        """Check the size of a file and, if `checksum` is set, its SHA-256."""
        with self._open(name) as file:
            if checksum:
                self._check(name, hashlib.file_digest(file, "sha256").hexdigest())

    def sign(self, key: str) -> None:
        """Verify every file and add the signature to the manifest, in place of an earlier one."""
        for name in self.files:
            self.verify(name)
        manifest = {**self.manifest, SIGNATURE: signature(self.manifest, key)}
        if _CHECKSUM in manifest:
            manifest[_CHECKSUM] = _manifest_checksum(manifest)
        # In the folder that was verified, even if another has taken its name
        temporary, handle = f".{secrets.token_hex(6)}.{MANIFEST}", self._handle
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        try:
            with os.fdopen(
                os.open(temporary, flags, 0o666, dir_fd=handle), "w", encoding="utf-8"
            ) as file:
                file.write(_as_text(manifest))
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, MANIFEST, src_dir_fd=handle, dst_dir_fd=handle)
            os.fsync(handle)
        except OSError as error:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=handle)
            raise write_error(self.path / MANIFEST, error) from None

    def check_in_place(self) -> None:
        """Refuse a folder that was replaced since it was opened; `read_folder` reads the new one.

        For files that were opened by their path.
        """
        if _is_replaced(self.path, self._handle):
            raise InputError(f"{self.path} was replaced while it was read; {self._kind.remedy}")

    def _open(self, name: str) -> BufferedReader:
        path, expected = self.path / name, self.files[name].get("bytes")
        try:
            file = _open_plain(name, self._handle)
        except PermissionError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror}") from None
        except OSError:
            raise InputError(f"{path}: is missing (or is a link); {self._kind.remedy}") from None
        size = os.fstat(file.fileno()).st_size
        if type(expected) is not int or size != expected:
            file.close()
            raise InputError(
                f"{path}: has {size} bytes, the manifest says {expected!r:.50}; the file is"
                f" damaged; {self._kind.remedy}"
            )
        return file

    def _check(self, name: str, checksum: str) -> None:
        if checksum != self.files[name].get("sha256"):
            raise InputError(
                f"{self.path / name}: its SHA-256 is not the manifest's; the file is damaged or"
                f" belongs to another folder; {self._kind.remedy}"
            )


def read_folder(
    path: str | os.PathLike[str],
    kind: FolderKind,
    read: Callable[[VerifiedFolder], T],
    signing_key: str | None = None,
) -> T:
    """Open a folder, verify its manifest and return `read(folder)`; see `VerifiedFolder`.

    A folder that is replaced while it is read is read again.

    Raises:
        InputError: names the file and says what is wrong with it.
    """
    path = Path(path)
    for attempt in range(_MAX_ATTEMPTS):
        try:
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except (FileNotFoundError, ValueError):
            raise InputError(
                f"{path} is not {kind.noun}: it does not exist; check the path"
            ) from None
        except NotADirectoryError:
            raise InputError(f"{path} is not {kind.noun}: it is a file; check the path") from None
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror}") from None
        try:
            return read(VerifiedFolder(path, handle, kind, signing_key))
        except InputError:
            if attempt == _MAX_ATTEMPTS - 1 or not _is_replaced(path, handle):
                raise
        finally:
            os.close(handle)
    raise AssertionError("unreachable")


def _is_replaced(path: Path, handle: int) -> bool:
    try:
        return not os.path.samestat(os.stat(path), os.fstat(handle))
    except OSError:
        return False


def manifest_bytes(folder: Path) -> bytes:
    """The manifest of a folder, or the beginning of one that is too large.

    Raises:
        OSError: there is none, or it is a link or a pipe.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with _open_plain(MANIFEST, handle) as file:
            return file.read(_MAX_MANIFEST_BYTES + 1)
    finally:
        os.close(handle)


def check_no_manifest(path: Path) -> None:
    """Refuse a path that is, or is inside, a folder with a manifest: loading that would fail."""
    path = path.resolve()
    for folder in (path, *path.parents):
        with suppress(OSError):
            if b'"kind": "llpauc ' in manifest_bytes(folder):
                raise InputError(
                    f"cannot write into {folder}: its {MANIFEST} lists all its files; choose"
                    " another place"
                )


def check_replaceable(path: str | os.PathLike[str], kind: FolderKind) -> None:
    """Refuse a folder that holds anything but files listed by a manifest of this kind."""
    path = Path(path)
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise InputError(f"{str(path)!r} is not UTF-8; choose another name") from None
    if not path.exists():
        return
    if not path.is_dir():
        raise InputError(f"{path} is not a folder; choose another name")
    names = set(os.listdir(path))
    if not names:
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        files = _parse_manifest(path, handle, kind).get("files")
    except InputError:
        raise InputError(
            f"{path} is not empty and is not {kind.noun}; choose another folder"
        ) from None
    finally:
        os.close(handle)
    for name, other in kind.folders.items():
        check_replaceable(path / name, other)
    known = {MANIFEST, *kind.folders, *(files if isinstance(files, dict) else ())}
    if unlisted := names - known:
        raise InputError(
            f"{path} holds {listing(sorted(unlisted), 3)}, which its manifest does not list and"
            " which would be lost; move it away or choose another folder"
        )


def _parse_manifest(folder: Path, handle: int, kind: FolderKind) -> dict[str, Any]:
    """The manifest of a folder of this kind, of any format; nothing else is verified."""
    path = folder / MANIFEST
    try:
        with _open_plain(MANIFEST, handle) as file:
            data = file.read(_MAX_MANIFEST_BYTES + 1)
    except OSError as error:
        reason = f" ({error.strerror})" if isinstance(error, PermissionError) else ""
        raise InputError(
            f"{folder} is not {kind.noun}: it has no {MANIFEST}{reason}; check the path"
        ) from None
    if len(data) > _MAX_MANIFEST_BYTES:
        raise InputError(f"{path}: is larger than a manifest can be; {kind.remedy}")
    try:
        manifest = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):
        raise InputError(f"{path}: is not JSON; the file is damaged; {kind.remedy}") from None
    if not isinstance(manifest, dict) or manifest.get("kind") != kind.kind:
        raise InputError(f"{path}: is not the manifest of {kind.noun}; check the path")
    return manifest


def _read_manifest(folder: Path, handle: int, kind: FolderKind) -> dict[str, Any]:
    """The manifest, after checking its format, its list of files and its checksum."""
    manifest, path = _parse_manifest(folder, handle, kind), folder / MANIFEST
    format, files = manifest.get("format"), manifest.get("files")
    if type(format) is not int or format not in kind.formats:
        newer = type(format) is int and format > max(kind.formats)
        remedy = "update llpauc, a newer version wrote it" if newer else kind.remedy
        raise InputError(
            f"{path}: has format {format!r:.50}, this version reads"
            f" {listing(kind.formats)}; {remedy}"
        )
    if not isinstance(files, dict) or not all(isinstance(f, dict) for f in files.values()):
        raise InputError(f"{path}: lists no files; {kind.remedy}")
    if not _matches_checksum(manifest, kind.formats[format]):
        raise InputError(
            f"{path}: does not match its own SHA-256; the file is damaged; {kind.remedy}"
        )
    return manifest


def _matches_checksum(manifest: Mapping[str, Any], has_checksum: bool) -> bool:
    if not has_checksum:
        return _CHECKSUM not in manifest
    try:
        return bool(manifest.get(_CHECKSUM) == _manifest_checksum(manifest))
    except RecursionError:
        return False


def _open_plain(name: str, handle: int) -> BufferedReader:
    """Open a regular file of the folder: links and pipes are refused."""
    file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=handle)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise FileNotFoundError(errno.ENOENT, "not a regular file", name)
    return os.fdopen(file, "rb")


def check_plain_name(name: str) -> str:
    """Refuse a file name that could lead out of its folder."""
    if not _PLAIN_NAME.fullmatch(name):
        raise InputError(f"{name!r:.99} is not a plain file name; do not trust this folder")
    return name
