"""Saving a picture: without a screen, in the format its name says, whole or not at all."""

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
    """The ending of a picture's name, where it is one that can be drawn.

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
    """Write a figure in the format its name says, by a temporary name."""
    path, kind = Path(path), check_kind(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as temporary, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # a box stands for a letter the font lacks
        figure.savefig(temporary, format=kind.lstrip("."), dpi=144)
    plt.close(figure)
    return path
