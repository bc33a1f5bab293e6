"""`InputError`, raised for problems that the user can fix, and small checks that raise it.

The message is one line: what is wrong, the value or the place, and the remedy. The command line
prints it and exits with code 2; any other exception is a bug and exits with code 1.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from typing import TypeVar

T = TypeVar("T")


class InputError(ValueError):
    """The input cannot be used; the message is one line and names the remedy."""


class ReportedByFirstProcessError(InputError):
    """An error of one of several processes, which the first process prints."""


def choose(choices: Mapping[str, T], name: str, kind: str) -> T:
    """The choice of that name; the error for an unknown name lists the choices.

    >>> choose({"csv": 1, "tsv": 2}, "csv", "format")
    1
    """
    if name not in choices:
        raise unknown(kind, name, choices)
    return choices[name]


def unknown(kind: str, name: object, choices: Iterable[object]) -> InputError:
    """The error for a name that is not among the choices, with the most similar one.

    >>> str(unknown("format", "cvs", ["csv", "tsv"]))
    "unknown format 'cvs'; choose one of: csv, tsv; did you mean csv?"
    """
    from difflib import get_close_matches

    names = [str(choice) for choice in choices]
    similar = "".join(
        f"; did you mean {match}?" for match in get_close_matches(str(name), names, 1)
    )
    return InputError(f"unknown {kind} {name!r}; choose one of: {listing(names, 100)}{similar}")


def listing(names: Iterable[object], limit: int = 30) -> str:
    """Comma-separated names for a message, shortened after `limit` names."""
    words = [str(name) for name in names]
    more = f", ... ({len(words) - limit} more)" if len(words) > limit else ""
    return ", ".join(words[:limit]) + more


def check_fraction(name: str, value: float) -> float:
    """A number in (0, 1], such as alpha and beta.

    >>> check_fraction("alpha", 0.7)
    0.7
    """
    try:
        is_fraction = 0.0 < value <= 1.0
    except TypeError:
        is_fraction = False
    if not is_fraction:
        raise InputError(f"{name} must be in (0, 1], got {value!r}")
    return float(value)


def check_at_least(name: str, value: int, minimum: int) -> int:
    """A whole number with a lower bound.

    >>> check_at_least("k", 20, 1)
    20
    """
    try:
        number = minimum - 1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = minimum - 1
    if number < minimum:
        raise InputError(f"{name} must be a whole number of at least {minimum}, got {value!r}")
    return number
