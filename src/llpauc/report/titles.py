"""Names of items, from a file with the columns item and title."""

from __future__ import annotations

import csv
from pathlib import Path

from llpauc.errors import InputError, listing

_LONGEST = 200  # characters of a title that are shown


def read_titles(path: str | None) -> dict[str, str]:
    """Item id -> title, from a CSV or TSV file with a header; of several titles the first.

    Items without a title are left out: they go by their id.
    """
    if path is None:
        return {}
    titles: dict[str, str] = {}
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            head = file.readline()
            delimiter = "\t" if "\t" in head else ","
            columns = [
                name.strip().lower() for name in next(csv.reader([head], delimiter=delimiter), [])
            ]
            item, title = _columns(columns, path)
            for row in csv.reader(file, delimiter=delimiter):
                if len(row) > max(item, title) and row[item] and row[title].strip():
                    titles.setdefault(row[item], " ".join(row[title].split())[:_LONGEST])
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: is not UTF-8 text; save it as UTF-8") from None
    except csv.Error as error:
        raise InputError(f"{path}: is no table of items and titles: {error}") from None
    if not titles:
        raise InputError(f"{path}: has no row with an item and a title")
    return titles


def _columns(names: list[str], path: str) -> tuple[int, int]:
    for wanted in ("item", "title"):
        if wanted not in names:
            told = listing([name[:40] for name in names], 10)
            raise InputError(
                f"{path}: has no column {wanted}; its header must name item and title, got: {told}"
            )
    return names.index("item"), names.index("title")
