"""Where results go: looked at before the work begins, so that none is lost to a wrong name."""

from __future__ import annotations

import os
from pathlib import Path

from llpauc.errors import InputError

CHECKPOINT = ".checkpoint"  # after the name of a run: the folder its training is kept in meanwhile


def check_file(path: str | None) -> None:
    """Refuse a file that cannot be written; None is no file, and fine."""
    if path is None:
        return
    if Path(path).is_dir():
        raise InputError(f"cannot write {path}: it is a folder; choose another name")
    _check_place(path, Path(path).absolute().parent)


def check_folder(path: str) -> None:
    """Refuse a folder that cannot be made or written into."""
    _check_place(path, Path(path).absolute())


def make_folder_of(path: str) -> None:
    Path(path).absolute().parent.mkdir(parents=True, exist_ok=True)


def _check_place(path: str, folder: Path) -> None:
    """The nearest folder that is there already must be one, and let us in."""
    there = next(place for place in (folder, *folder.parents) if place.exists())
    if not there.is_dir():
        raise InputError(f"cannot write {path}: {there} is no folder; choose another place")
    if not os.access(there, os.W_OK | os.X_OK):
        raise InputError(f"cannot write {path}: {there} is read-only for you; choose another place")
