"""Delimiter and header of a text table, detected from its first lines.

DuckDB's own detection is not used: it drops rows of some files without an error.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from llpauc.data.columns import KNOWN_NAMES, is_number, normalized_name
from llpauc.data.sources import Source
from llpauc.errors import InputError

MAX_LINE = 1 << 24  # bytes
TOO_LONG = "a field above 16 MB, or a quote left open; fix it"
SAMPLE_ROWS = 200
DELIMITERS = (",", "\t", ";", "|", "::", " ")
_DELIMITER_NAMES = {
    "comma": ",",
    "tab": "\t",
    "\\t": "\t",
    "semicolon": ";",
    "pipe": "|",
    "space": " ",
    "blank": " ",
}


@dataclass(frozen=True)
class Layout:
    """How a text table is written."""

    delimiter: str
    quotes: bool  # whether a field can be quoted
    header: bool  # whether the first row holds names
    first_row: tuple[str, ...]
    sample: tuple[tuple[str, ...], ...]  # the first rows with data
    notes: tuple[str, ...]  # what was detected

    @property
    def widths(self) -> set[int]:
        """The numbers of fields that are not empty, over the sampled rows and the header."""
        rows = [self.first_row, *self.sample] if self.header else self.sample
        return {sum(map(bool, row)) for row in rows}


def layout_of(source: Source) -> Layout:
    """The layout of a source, detected once.

    While the format is unknown, quotes are taken into account; the format then decides.
    """
    if source.layout is None:
        source.layout = _detect(source)
    layout: Layout = source.layout
    quotes = source.format is None or source.format.quotes
    return replace(layout, quotes=quotes and _can_quote(layout.delimiter))


def _detect(source: Source) -> Layout:
    format, options = source.format, source.options
    quotes = format is None or format.quotes
    text = source.head.decode("utf-8-sig", errors="replace")
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    lines = [line for line in text.split("\n")[: 5 * SAMPLE_ROWS] if line]
    if not lines:
        raise InputError(f"{source.name}: no rows; the file holds only blank lines")

    notes = []
    names = [column for column in source.requested.values() if isinstance(column, str)]
    requested = options.get("delimiter")
    if requested is not None:
        delimiter = check_delimiter(requested)
    elif format is not None and format.delimiter is not None and format.delimiter in lines[0]:
        delimiter = format.delimiter
    else:
        preferred = None if format is None else format.preferred_delimiter
        delimiter = _detect_delimiter(lines, names, preferred)
        notes.append(f"delimiter {delimiter!r} (detected)")

    rows = list(_split(lines, delimiter, quotes))[: SAMPLE_ROWS + 1]
    if not rows or (len(rows[0]) == 1 and "\n" in rows[0][0].rstrip("\n")):
        raise InputError(f"{source.name}: line 1: {TOO_LONG}")
    header = options.get("header")
    if header is None and format is not None:
        header = format.header
    if header is None:
        header = _has_header(rows, names)
        notes.append(f"{'a' if header else 'no'} header (detected)")
    sample = tuple(tuple(row) for row in rows[1 if header else 0 :])
    return Layout(delimiter, quotes, header, tuple(rows[0]), sample, tuple(notes))


def check_delimiter(delimiter: str) -> str:
    """A delimiter given as it is or by its name (tab, comma, space ...)."""
    delimiter = _DELIMITER_NAMES.get(delimiter, delimiter)
    if not 1 <= len(delimiter.encode()) <= 4 or set(delimiter) & set('"\r\n\0'):
        raise InputError(
            f"delimiter must be one to four bytes without quotes and line ends, got {delimiter!r}"
        )
    return delimiter


def _can_quote(delimiter: str) -> bool:
    return len(delimiter) == 1 and delimiter != " "


def _split(lines: Sequence[str], delimiter: str, quotes: bool) -> Iterator[list[str]]:
    if not (quotes and _can_quote(delimiter)):
        yield from (line.split(delimiter) for line in lines)
        return
    with wide_fields():
        reader = csv.reader([line + "\n" for line in lines], delimiter=delimiter)
        try:
            yield from (row for row in reader if row)
        except csv.Error:  # a damaged row ends the sample; reading will name it
            return


@contextmanager
def wide_fields() -> Iterator[None]:
    """Let Python's csv module accept fields as long as DuckDB does; its limit is a global."""
    before = csv.field_size_limit(MAX_LINE)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _detect_delimiter(lines: Sequence[str], names: Sequence[str], preferred: str | None) -> str:
    """The delimiter that gives a known header, else one constant number of columns."""
    widths: dict[str, list[int]] = {}
    for delimiter in DELIMITERS:
        rows = list(_split(lines[:SAMPLE_ROWS], delimiter, quotes=True))
        # The first line of an adjacency list may be a user without items.
        if rows and (max(map(len, rows)) if delimiter == " " else len(rows[0])) > 1:
            if _is_header(rows[0], names):
                return delimiter
            widths[delimiter] = [len(row) for row in rows]
    constant = [delimiter for delimiter, counts in widths.items() if len(set(counts)) == 1]
    for candidates in (constant, list(widths)):
        visible = [delimiter for delimiter in candidates if delimiter != " "] or candidates
        if preferred in visible:
            return preferred or ","
        if visible:
            return max(visible, key=lambda delimiter: widths[delimiter][0])
    return preferred or ","


def _is_header(row: Sequence[str], names: Sequence[str]) -> bool:
    """Whether a first row holds requested or well-known column names."""
    known = {*KNOWN_NAMES["user"], *KNOWN_NAMES["item"]}
    return any(field in names or normalized_name(field) in known for field in row)


def _has_header(rows: Sequence[Sequence[str]], names: Sequence[str]) -> bool:
    if _is_header(rows[0], names):
        return True
    if any(is_number(field) for field in rows[0]) or len(rows) == 1:
        return False
    columns = zip(*(row for row in rows[1:] if len(row) == len(rows[0])), strict=True)
    return any(all(is_number(value) for value in column) for column in columns)
