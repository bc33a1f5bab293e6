"""Reader of text tables. Every id is read as text: 007 stays 007.

DuckDB reads a file that strictly follows RFC 4180, and its rows are counted. Any other file, and
one with a bad value, is read row by row, so that a bad row can be named by its line.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from llpauc.data.columns import ColumnRoles, detect_columns, value_kind
from llpauc.data.sources import (
    QueryError,
    Source,
    checked_columns,
    checked_query,
    connect,
    invalid_role,
)
from llpauc.data.text_layout import MAX_LINE, TOO_LONG, Layout, layout_of, wide_fields
from llpauc.errors import InputError

_CHUNK = 1 << 22  # bytes
_BATCH = 100_000  # rows
_QUOTE, _LINE_FEED = ord('"'), ord("\n")


def read_text_table(source: Source) -> None:
    """Read a text table whose format is known."""
    layout, name = layout_of(source), source.name
    note = f"{name}: read as {source.format_name} ({source.detected_by})"
    source.notes.append(", ".join([note, *layout.notes]))
    names = layout.first_row if layout.header else tuple(map(str, range(len(layout.first_row))))
    if source.format is not None and source.format.typed_names:
        names = tuple(column.split(":")[0] for column in names)
    if len(names) < 2:
        raise InputError(
            f"{name}: only one column is found with the delimiter {layout.delimiter!r}; give "
            "delimiter= (--delimiter), one of: , tab ; | :: space"
        )
    roles = detect_columns(
        name,
        names,
        header=layout.header,
        requested=source.requested,
        kind_of=lambda place: value_kind([r[place] for r in layout.sample if place < len(r)]),
    )
    source.start(roles)
    source.sink.kinds["user"].add("string")
    source.sink.kinds["item"].add("string")

    scanned = scan(source.path, layout.delimiter if layout.quotes else None)
    reason = scanned.irregularity
    if reason is None:
        expected = scanned.lines - layout.header
        table = _read_csv(layout, len(names), scanned)
        path = _escape_glob(str(source.path.resolve()))
        try:
            source.sink.add_query(checked_query(roles, table), path, expected)
            source.rows_read += expected
            return
        except QueryError as error:
            reason = str(error)
    rows = _rows(source, replace(layout, quotes=scanned.quotes))
    if layout.header:
        next(rows, None)
    read_rows(source, rows, len(names), roles)
    source.notes.append(f"{name}: read row by row, which is slower ({reason})")


def _read_csv(layout: Layout, width: int, scanned: Scan) -> str:
    """DuckDB's table function for a file; its one parameter is the path."""
    schema = ", ".join(f"'c{position}': 'VARCHAR'" for position in range(width))
    quote = '"' if scanned.quotes else ""
    options = {
        "columns": f"{{{schema}}}",
        "auto_detect": "false",
        "strict_mode": "true",  # the lax mode turns "5" pipe into 5 pip
        "delim": "'" + layout.delimiter.replace("'", "''") + "'",
        "quote": f"'{quote}'",
        "escape": f"'{quote}'",
        "header": str(layout.header).lower(),
        # Parallel readers report false errors at quoted line ends.
        "parallel": str(not scanned.quoted_line_ends).lower(),
        "compression": "'none'",  # the file is uncompressed, even if its name ends in .gz
        "max_line_size": str(MAX_LINE),
        "buffer_size": str(4 * MAX_LINE),
    }
    return f"read_csv(?, {', '.join(f'{option}={value}' for option, value in options.items())})"


def _escape_glob(path: str) -> str:
    """DuckDB takes `ratings[1].csv` for a pattern and would open `ratings1.csv` instead."""
    return re.sub(r"[*?\[]", lambda match: f"[{match[0]}]", path)


# --- one pass over the bytes ----------------------------------------------------------------------


@dataclass(frozen=True)
class Scan:
    """What one pass over a file's bytes finds."""

    lines: int  # that are not blank; line ends inside quotes are not counted
    quotes: bool  # whether there are quotes that matter
    quoted_line_ends: bool  # whether some of them contain line ends
    irregularity: str | None  # why DuckDB must not read this file


def scan(path: Path, quoted_delimiter: str | None) -> Scan:
    """Count the rows of a text table and look for what DuckDB would misread.

    Compared with Python's csv module on random bytes, DuckDB 2.0 in strict mode drops blanks
    outside quotes (`"a" ,b`), loses a byte after a lone carriage return, takes a blank first line
    for the header, and can leave out a last row whose quote is not closed, all without an error.
    A pass takes about a second per 600 MB.

    Args:
        path: an uncompressed file.
        quoted_delimiter: its delimiter if fields can be quoted, else None.
    """
    quotes = inside = False
    irregularity = None
    lines = line_feeds = line_ends = returns = pairs = 0
    with path.open("rb") as file:
        if file.read(4).removeprefix(b"\xef\xbb\xbf")[:1] in (b"\r", b"\n"):
            irregularity = "a blank first line"
        file.seek(0)
        # Each chunk ends with a line, so that no pair of bytes is cut in two.
        while chunk := file.read(_CHUNK) + (rest := file.readline(MAX_LINE)):
            if len(rest) == MAX_LINE and not (b"\n" in rest or b"\r" in rest):
                irregularity, quotes = "a line above 16 MB", quoted_delimiter is not None
                break
            if b"\0" in chunk:
                irregularity = "NUL bytes"
            line_feeds += chunk.count(b"\n")
            if b"\r" in chunk:
                returns += chunk.count(b"\r")
                pairs += chunk.count(b"\r\n")
                chunk = chunk.replace(b"\r\n", b"\n")
            if quoted_delimiter is not None and (inside or b'"' in chunk):
                quotes = True
                text = np.frombuffer(b"\n" + chunk + b"\n", np.uint8)
                positions = np.flatnonzero(text == _QUOTE)
                if not _follows_rfc4180(text, positions, inside, quoted_delimiter):
                    irregularity = "quotes that do not follow RFC 4180"
                ends = np.flatnonzero(text == _LINE_FEED)[1:-1]
                ends = ends[(np.searchsorted(positions, ends) + inside) % 2 == 0]
                inside = (inside + len(positions)) % 2 == 1
                # A line end directly after another is never separated from it by a quote.
                found, blank = len(ends), int((text[ends - 1] == _LINE_FEED).sum())
            else:
                found, blank = chunk.count(b"\n"), 0
                if chunk.startswith(b"\n") or b"\n\n" in chunk:
                    is_end = np.frombuffer(b"\n" + chunk, np.uint8) == _LINE_FEED
                    blank = int((is_end[1:] & is_end[:-1]).sum())
            line_ends += found
            lines += found - blank + (not chunk.endswith(b"\n"))
    if inside:
        irregularity = "a quote left open"
    if returns and not returns == pairs == line_feeds:
        irregularity = "mixed line ends"
    return Scan(lines, quotes, line_ends != line_feeds, irregularity)


def _follows_rfc4180(
    text: npt.NDArray[np.uint8], positions: npt.NDArray[np.int64], inside: bool, delimiter: str
) -> bool:
    """Whether every quote opens at a field's start or closes at its end (a doubled one: both)."""
    encoded = delimiter.encode()
    may_precede = np.isin(np.arange(256), [*b'\r\n"', encoded[-1]])
    may_follow = np.isin(np.arange(256), [*b'\r\n"', encoded[0]])
    opening, closing = positions[int(inside) :: 2], positions[1 - int(inside) :: 2]
    return bool(may_precede[text[opening - 1]].all() and may_follow[text[closing + 1]].all())


# --- row by row -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Problem:
    """Why a row cannot be used; `final` if the start of the next row is unknown."""

    text: str
    final: bool = False


Row = tuple[int, list[str] | Problem]  # the line it begins on, and its fields


def text_lines(path: Path, name: str) -> Iterator[str]:
    """The lines of a file with their ends; one above 16 MB raises `InputError`.

    Bytes that are not UTF-8 become surrogates, so that the row can be named.
    """
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        longest = MAX_LINE + 1
        for number, line in enumerate(iter(partial(file.readline, longest), ""), start=1):
            if len(line) == longest:
                raise InputError(f"{name}: line {number}: {TOO_LONG}")
            yield line


def text_problem(text: str) -> Problem | None:
    """A NUL or bytes that are not UTF-8."""
    if "\0" in text:
        return Problem("holds a NUL byte, so the file is damaged or not text")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            byte = ord(text[error.start]) - 0xDC00
            return Problem(f"not UTF-8 (byte 0x{byte:02x}): convert the file to UTF-8")
    return None


def quoted(value: str) -> str:
    """A value as messages show it: on one line, not too long."""
    return repr(value if len(value) <= 60 else value[:57] + "...")


def _rows(source: Source, layout: Layout) -> Iterator[Row]:
    lines = text_lines(source.path, source.name)
    if layout.quotes:
        with wide_fields():
            yield from _quoted_rows(lines, layout.delimiter)
        return
    for number, text in enumerate(lines, start=1):
        text = text.rstrip("\r\n")
        if text:
            yield number, text.split(layout.delimiter)


def _quoted_rows(texts: Iterator[str], delimiter: str) -> Iterator[Row]:
    at_end = False

    def lines() -> Iterator[str]:
        nonlocal at_end
        yield from texts
        at_end = True

    reader = csv.reader(lines(), delimiter=delimiter, strict=True)
    while True:
        line = reader.line_num + 1
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            if at_end:
                yield line, Problem('a quote (") opens here and never closes; close it', final=True)
            elif "field limit" in str(error):
                yield line, Problem(TOO_LONG, final=True)
            else:
                yield line, Problem('text after a closing quote (")')
            continue
        if row:
            yield line, row


def read_rows(source: Source, rows: Iterator[Row], width: int, roles: ColumnRoles) -> None:
    """Check rows of `width` text fields and add the good ones."""
    lines: list[int] = []
    problems: list[tuple[int, Problem]] = []
    texts: dict[str, list[str]] = {role: [] for role in roles.positions}
    # Fields are appended at once: rows that stay alive would trigger the garbage collector.
    targets = [(texts[role].append, position) for role, position in roles.positions.items()]
    with connect() as connection:
        for line, row in rows:
            if isinstance(row, Problem):
                problems.append((line, row))
            # Empty fields at the end of a row are dropped, as DuckDB does.
            elif len(row) != width and (len(row) < width or any(row[width:])):
                only = "only " if len(row) < width else ""
                problems.append((line, Problem(f"{only}{len(row)} of {width} columns")))
            else:
                lines.append(line)
                for append, position in targets:
                    append(row[position])
            if len(lines) + len(problems) == _BATCH:
                _add_texts(source, lines, texts, problems, roles, connection)
        _add_texts(source, lines, texts, problems, roles, connection)


def _add_texts(
    source: Source,
    lines: list[int],
    texts: dict[str, list[str]],
    problems: list[tuple[int, Problem]],
    roles: ColumnRoles,
    connection: duckdb.DuckDBPyConnection,
) -> None:
    """Check one batch, add its valid rows, reject the others in order, and clear the lists."""
    # Arrow does not accept bytes that are not UTF-8, so such rows are emptied first.
    bad: dict[int, Problem] = {}
    for column in texts.values():
        if text_problem("\n".join(column)) is not None:
            found = ((row, text_problem(text)) for row, text in enumerate(column))
            bad = {row: problem for row, problem in found if problem is not None} | bad
    arrays = {
        role: pa.array(
            ["" if row in bad else text for row, text in enumerate(column)] if bad else column,
            pa.large_string(),
        )
        for role, column in texts.items()
    }
    columns, valid = checked_columns(connection, pa.table(arrays), roles)
    for row in np.flatnonzero(~valid).tolist():
        problem = bad.get(row) or _problem(texts, columns, row, roles)
        problems.append((lines[row], problem))
    for line, problem in sorted(problems, key=lambda pair: pair[0]):
        source.reject(f"line {line}", problem.text, final=problem.final)
    if valid.any():
        mask = pa.array(valid)
        source.add({role: column.filter(mask) for role, column in columns.items()})
    lines.clear()
    problems.clear()
    for column in texts.values():
        column.clear()


def _problem(
    texts: dict[str, list[str]],
    columns: dict[str, pa.ChunkedArray],
    row: int,
    roles: ColumnRoles,
) -> Problem:
    role = invalid_role(columns, row)
    if role in ("user", "item"):
        return Problem(f"the {role} id is empty")
    text, value = quoted(texts[role][row]), columns[role][row].as_py()
    if value is not None and np.isfinite(value):
        return Problem(f"{role} {text} is too large")
    kinds = {"number": "a number", "date": "a date like 2024-01-31 or 2024-01-31T12:00:00"}
    return Problem(f"{role} {text} is not {kinds[roles.kind(role)]}")
