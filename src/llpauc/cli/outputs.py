"""Where results go: looked at before the work begins, so that none is lost to a wrong name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llpauc.errors import InputError

if TYPE_CHECKING:
    from llpauc.cli.data_options import TableOptions

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


def train_config(settings: Mapping[str, Any], table: TableOptions, comment: str) -> str:
    """The text of a file for `llpauc train --config`.

    Args:
        settings: parameters of `Recommender`; those without an option become loss_options.
        table: how the data were read.
        comment: first line of the file.
    """
    from llpauc.cli.training_options import ModelOptions
    from llpauc.storage.environment import toml_text

    default = type(table)()
    changed = {k: v for k, v in asdict(table).items() if v != getattr(default, k)}
    config = {**settings, **changed}
    names = {field.name for kind in (ModelOptions, type(table)) for field in fields(kind)}
    names |= {"seed", "hold_out"}
    options = {name: value for name, value in config.items() if name in names}
    loss_options = {name: value for name, value in config.items() if name not in names}
    return toml_text(comment, options, loss_options)
