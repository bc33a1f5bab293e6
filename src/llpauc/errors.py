"""The one error a person can mend.

Everything that is wrong with what came in (a file, a column, a parameter) raises `InputError`
with one line: what is wrong, the value or the place, and what to do. The command line prints that
line and leaves with exit code 2; anything else is a bug of ours and leaves with 1.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from typing import TypeVar

T = TypeVar("T")


class InputError(ValueError):
    """What came in cannot be used; the message is one line and names the remedy."""


class ReportedByFirstProcessError(InputError):
    """One of several processes met it, and the first of them tells it."""


def choose(choices: Mapping[str, T], name: str, what: str) -> T:
    """Look `name` up in a plain dict of choices; an unknown one is told what there is.

    >>> choose({"csv": 1, "tsv": 2}, "csv", "format")
    1
    """
    if name not in choices:
        raise InputError(f"unknown {what} {name!r}; choose one of: {listing(choices)}")
    return choices[name]


def listing(names: Iterable[object], most: int = 30) -> str:
    """Comma-separated names for a message, cut short where there are too many to read."""
    words = [str(name) for name in names]
    more = f", ... ({len(words) - most} more)" if len(words) > most else ""
    return ", ".join(words[:most]) + more


def check_fraction(name: str, value: float) -> float:
    """A share in (0, 1], as alpha and beta are.

    >>> check_fraction("alpha", 0.7)
    0.7
    """
    try:
        fits = 0.0 < value <= 1.0
    except TypeError:
        fits = False
    if not fits:
        raise InputError(f"{name} must be in (0, 1], got {value!r}")
    return float(value)


def check_at_least(name: str, value: int, least: int) -> int:
    """A whole number with a lower bound.

    >>> check_at_least("k", 20, 1)
    20
    """
    try:
        whole = least - 1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        whole = least - 1
    if whole < least:
        raise InputError(f"{name} must be a whole number of at least {least}, got {value!r}")
    return whole
