"""Where a source is: one file, several files, standard input or a database.

`SourceName` is the text that messages, configs and saved runs show. It has no credentials.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from llpauc.errors import InputError

STANDARD_INPUT = "-"
_DATABASE = re.compile(r"postgres(ql)?://", re.IGNORECASE)
_PARTITION = re.compile(r"([A-Za-z_]\w*)=(.*)")


class SourceName(str):
    """The name of a source; `places` are the paths or URLs that are read.

    >>> name = SourceName(["postgresql://ann:secret@db.example.org/shop?sslmode=require"])
    >>> name
    'postgresql://***@db.example.org/shop'
    >>> SourceName(["a.csv", "b.csv", "c.csv"])
    'a.csv and 2 more'
    """

    places: tuple[str, ...]

    def __new__(cls, places: Iterable[str | os.PathLike[str]]) -> SourceName:
        texts = tuple(os.fspath(place) for place in places)
        if not texts or not all(texts):
            raise InputError("the path is empty; give a file or a folder")
        more = f" and {len(texts) - 1} more" if len(texts) > 1 else ""
        name = super().__new__(cls, without_credentials(texts[0]) + more)
        name.places = texts
        return name

    @staticmethod
    def of(source: Any) -> SourceName | None:
        """The name of a path, a URL or a list of them; None for anything else."""
        if isinstance(source, SourceName):
            return source
        if isinstance(source, (str, os.PathLike)):
            return SourceName([source])
        several = isinstance(source, (list, tuple)) and len(source) > 0
        if several and all(isinstance(one, (str, os.PathLike)) for one in source):
            return SourceName(source)
        return None


def is_database(place: str) -> bool:
    """Whether a source is the URL of a database server."""
    return _DATABASE.match(place) is not None


def without_credentials(place: str) -> str:
    """The URL of a database without user, password and parameters; another place as it is."""
    if not is_database(place):
        return place
    # A password may contain any character, encoded or not: all up to the last @ is hidden.
    scheme, _, rest = place.partition("://")
    _, at, address = rest.rpartition("@")
    return f"{scheme}://{'***@' if at else ''}{address.partition('?')[0]}"


def hide_credentials(place: str, text: str) -> str:
    """A message about a database without any part of its credentials."""
    rest = place.partition("://")[2]
    secret, _, address = rest.rpartition("@")
    words = re.split(r"[:/?#@&=]", secret) + re.split(r"[&=]", address.partition("?")[2])
    for word in sorted({*words, *map(unquote, words), secret, unquote(secret)}, key=len)[::-1]:
        if word:
            text = text.replace(word, "***")
    return text


def matching_files(pattern: str) -> list[str] | None:
    """The files of a glob pattern, sorted; None if the place is no pattern."""
    if os.path.exists(pattern) or not glob.has_magic(pattern):
        return None
    files = [path for path in sorted(glob.glob(pattern, recursive=True)) if os.path.isfile(path)]
    if not files:
        raise InputError(f"{pattern}: matches no file; check the pattern")
    return files


def partitions_of(path: Path) -> dict[str, str]:
    """The columns in the folder names of a partitioned data set.

    >>> partitions_of(Path("events/dt=2026-01-31/country=de/part-0.parquet"))
    {'dt': '2026-01-31', 'country': 'de'}
    """
    named = (_PARTITION.fullmatch(folder) for folder in path.parts[:-1])
    return {match[1]: unquote(match[2]) for match in named if match is not None}
