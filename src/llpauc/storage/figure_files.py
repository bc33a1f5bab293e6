"""Writes figures to files, without a display and atomically."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import matplotlib

from llpauc.errors import InputError, listing
from llpauc.storage.atomic import atomic_write

matplotlib.use("agg")

import matplotlib.pyplot as plt

__all__ = ["KINDS", "check_kind", "plt", "save"]

KINDS = (".png", ".svg", ".pdf", ".jpg", ".webp")


def check_kind(path: str | Path) -> str:
    """The suffix of a file name; raises `InputError` unless it is one of `KINDS`.

    >>> check_kind("tail.png")
    '.png'
    """
    kind = Path(path).suffix.lower()
    if kind not in KINDS:
        raise InputError(
            f"{path}: unknown kind of picture {kind!r}; choose one of: {listing(KINDS)}"
        )
    return kind


def save(figure: Any, path: str | Path) -> Path:
    """Write a figure in the format of the file name's suffix, and close it."""
    path, kind = Path(path), check_kind(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as temporary, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # missing in the font: a box is drawn instead
        figure.savefig(temporary, format=kind.lstrip("."), dpi=144)
    plt.close(figure)
    return path
