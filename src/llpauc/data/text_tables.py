"""Reader of text tables. Every id is read as text: 007 stays 007. Blanks and tabs around a field
are not part of it, unless the field is in quotes.

Delimiter and header are detected from the first lines; DuckDB's detection is not used, because it
drops rows of some files without an error. DuckDB reads a file that strictly follows RFC 4180,
and its rows are counted. Any other file, and one with a bad value, is read row by row, so that a
bad row can be named by its line.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from llpauc.data.columns import SAMPLE_ROWS, ColumnRoles, is_number, known_names, likely_names
from llpauc.data.sources import QueryError, Source, checked_query, connect
from llpauc.errors import InputError

MAX_LINE = 1 << 24  # bytes
TOO_LONG = "a field above 16 MB, or a quote left open; fix it"
DELIMITERS = (",", "\t", ";", "|", "::", " ")
_DELIMITER_NAMES = {"comma": ",", "tab": "\t", "\\t": "\t", "semicolon": ";", "pipe": "|"}
_DELIMITER_NAMES |= {"space": " ", "blank": " "}
_CHUNK = 1 << 22  # bytes
_BATCH = 100_000  # rows
_QUOTE, _LINE_FEED = ord('"'), ord("\n")
_QUOTED = re.compile(rb'"[^"]*(?:"|$)')
_ID_ROLES = ("user", "item")
BLANKS = " \t"


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
            f"{name}: there is only one column with the delimiter {layout.delimiter!r}; give "
            "delimiter= (--delimiter), one of: , tab ; | :: space"
        )
    width = len(names)
    values = [[row[p] for row in layout.sample if p < len(row)] for p in range(width)]
    fixed = {k: v for k, v in source.partitions.items() if layout.header and k not in names}
    names, values = (*names, *fixed), [*values, *([value] for value in fixed.values())]
    roles = source.detect_columns(names, values, header=layout.header)
    if layout.header:
        written = (*layout.first_row, *fixed)
        user, item = (written[roles.positions[role]] for role in _ID_ROLES)
        roles = replace(roles, header=(user, item))
    source.sink.kinds["user"].add("string")
    source.sink.kinds["item"].add("string")

    quotes = _quotes_allowed(source) and _can_quote(layout.delimiter)
    scanned = scan(source.path, layout.delimiter if quotes else None)
    if scanned.outer_blanks or not scanned.quotes:
        roles = replace(roles, blanks=BLANKS)
    reason = scanned.irregularity
    if reason is None:
        expected = scanned.lines - layout.header
        table = _read_csv(layout, width, scanned)
        if fixed:
            literals = (value.replace("'", "''") for value in fixed.values())
            columns = (f"'{text}' AS c{p}" for p, text in enumerate(literals, start=width))
            table = f"(SELECT *, {', '.join(columns)} FROM {table})"
        # DuckDB takes `ratings[1].csv` for a pattern and would open `ratings1.csv` instead.
        path = re.sub(r"[*?\[]", r"[\g<0>]", str(source.path.resolve()))
        try:
            source.sink.add_query(checked_query(roles, table), path, expected)
            source.rows_read += expected
            return
        except QueryError as error:
            reason = str(error)
    rows = _rows(source, layout.delimiter, scanned)
    if layout.header:
        next(rows, None)
    read_rows(source, rows, width, roles, list(fixed.values()))
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


# --- delimiter and header -------------------------------------------------------------------------


@dataclass(frozen=True)
class Layout:
    """How a text table is written."""

    delimiter: str
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
    """The layout of a source, detected once."""
    if source.layout is None:
        source.layout = _detect_layout(source)
    layout: Layout = source.layout
    return layout


def _quotes_allowed(source: Source) -> bool:
    """Whether fields can be quoted: the format decides, once it is known."""
    return source.format is None or source.format.quotes


def _detect_layout(source: Source) -> Layout:
    format, options = source.format, source.options
    text = source.head.decode("utf-8-sig", errors="replace")
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    lines = [line for line in text.split("\n")[: 5 * SAMPLE_ROWS] if line]
    if not lines:
        raise InputError(f"{source.name}: no rows; the file holds only blank lines")

    notes = []
    names = [column for column in source.requested.values() if isinstance(column, str)]
    requested = options.get("delimiter")
    if requested is not None:
        delimiter = _DELIMITER_NAMES.get(requested, requested)
        if not 1 <= len(delimiter.encode()) <= 4 or set(delimiter) & set('"\r\n\0'):
            raise InputError(
                "delimiter must be one to four bytes without quotes and line ends, got "
                f"{delimiter!r}"
            )
    elif format is not None and format.delimiter is not None and format.delimiter in lines[0]:
        delimiter = format.delimiter
    else:
        preferred = None if format is None else format.preferred_delimiter
        delimiter = _detect_delimiter(lines, names, preferred)
        notes.append(f"delimiter {delimiter!r} (detected)")

    rows = list(_split(lines, delimiter, _quotes_allowed(source)))[: SAMPLE_ROWS + 1]
    rows = [[field.strip(BLANKS) for field in row] for row in rows]
    if not rows or (len(rows[0]) == 1 and "\n" in rows[0][0].rstrip("\n")):
        raise InputError(f"{source.name}: line 1: {TOO_LONG}")
    header = options.get("header")
    if header is None and format is not None:
        header = format.header
    if header is None:
        header = _has_header(rows, names)
        notes.append(f"{'a' if header else 'no'} header (detected)")
    sample = tuple(tuple(row) for row in rows[1 if header else 0 :])
    return Layout(delimiter, header, tuple(rows[0]), sample, tuple(notes))


def _can_quote(delimiter: str) -> bool:
    return len(delimiter) == 1 and delimiter != " "


def _split(lines: Sequence[str], delimiter: str, quotes: bool) -> Iterator[list[str]]:
    if not (quotes and _can_quote(delimiter)):
        yield from (line.split(delimiter) for line in lines)
        return
    with wide_fields():
        text = [line + "\n" for line in lines]
        reader = csv.reader(text, delimiter=delimiter, skipinitialspace=True)
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
            if _is_header(rows, names):
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


def _is_header(rows: Sequence[Sequence[str]], names: Sequence[str]) -> bool:
    """Whether the first row holds requested or well-known column names, or names like those of a
    user and an item, unlike the second row."""
    first = rows[0]
    if not set(first).isdisjoint(names) or any(known_names(role, first) for role in _ID_ROLES):
        return True
    looks_named = [
        all(likely_names(role, row) for role in _ID_ROLES) and not re.search(r"\d", "".join(row))
        for row in rows[:2]
    ]
    return looks_named == [True, False]


def _has_header(rows: Sequence[Sequence[str]], names: Sequence[str]) -> bool:
    if _is_header(rows, names):
        return True
    if any(is_number(field) for field in rows[0]) or len(rows) == 1:
        return False
    columns = zip(*(row for row in rows[1:] if len(row) == len(rows[0])), strict=True)
    return any(all(is_number(value) for value in column) for column in columns)


# --- one pass over the bytes ----------------------------------------------------------------------


@dataclass(frozen=True)
class Scan:
    """What one pass over a file's bytes finds."""

    lines: int  # that are not blank; line ends inside quotes are not counted
    quotes: bool  # whether there are quotes that matter
    outer_blanks: bool  # whether there are blanks around a field, outside of such quotes
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
    quotes = inside = outer_blanks = False
    around = None
    if quoted_delimiter is not None:
        end = rb"(?:^|$|[%b\n])" % re.escape(quoted_delimiter.encode())
        blanks = b"[%b]" % BLANKS.replace(quoted_delimiter, "").encode()
        around = re.compile(end + blanks + b"|" + blanks + end)
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
            if around is not None and not outer_blanks:
                unquoted = _QUOTED.sub(b'"', b'"' + chunk if inside else chunk)
                outer_blanks = around.search(unquoted) is not None
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
                new_ends, blank = len(ends), int((text[ends - 1] == _LINE_FEED).sum())
            else:
                new_ends, blank = chunk.count(b"\n"), 0
                if chunk.startswith(b"\n") or b"\n\n" in chunk:
                    is_end = np.frombuffer(b"\n" + chunk, np.uint8) == _LINE_FEED
                    blank = int((is_end[1:] & is_end[:-1]).sum())
            line_ends += new_ends
            lines += new_ends - blank + (not chunk.endswith(b"\n"))
    if inside:
        irregularity = "a quote left open"
    if returns and not returns == pairs == line_feeds:
        irregularity = "mixed line ends"
    return Scan(lines, quotes, outer_blanks, line_ends != line_feeds, irregularity)


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

Row = tuple[int, list[str] | str]  # the line it begins on; its fields, or why it cannot be read


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


def text_problem(text: str) -> str | None:
    """Why a text is not valid: a NUL, or bytes that are not UTF-8."""
    if "\0" in text:
        return "holds a NUL byte, so the file is damaged or not text"
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            byte = ord(text[error.start]) - 0xDC00
            return f"not UTF-8 (byte 0x{byte:02x}): convert the file to UTF-8"
    return None


def _rows(source: Source, delimiter: str, scanned: Scan) -> Iterator[Row]:
    lines = text_lines(source.path, source.name)
    if scanned.quotes:
        with wide_fields():
            yield from _quoted_rows(source.name, lines, delimiter, scanned.outer_blanks)
        return
    for number, text in enumerate(lines, start=1):
        text = text.rstrip("\r\n")
        if text:
            yield number, text.split(delimiter)


def _quoted_rows(
    name: str, texts: Iterator[str], delimiter: str, outer_blanks: bool
) -> Iterator[Row]:
    """The rows of Python's csv module; raises if the start of the next row is unknown."""
    at_end = False

    def lines() -> Iterator[str]:
        nonlocal at_end
        yield from texts
        at_end = True

    reader = csv.reader(lines(), delimiter=delimiter, strict=True, skipinitialspace=outer_blanks)
    while True:
        line = reader.line_num + 1
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            if at_end:
                problem = 'a quote (") opens here and never closes; close it'
                raise InputError(f"{name}: line {line}: {problem}") from None
            if "field limit" in str(error):
                raise InputError(f"{name}: line {line}: {TOO_LONG}") from None
            yield line, 'text after a closing quote (")'
            continue
        if row:
            yield line, row


def read_rows(
    source: Source,
    rows: Iterator[Row],
    width: int,
    roles: ColumnRoles,
    fixed: Sequence[str] = (),
) -> None:
    """Check rows of `width` text fields and add the good ones, with the `fixed` fields appended."""
    lines: list[int] = []
    unreadable: dict[int, str] = {}
    columns: dict[str, list[str]] = {role: [] for role in roles.positions}
    # Fields are appended at once: rows that stay alive would trigger the garbage collector.
    targets = [(columns[role].append, position) for role, position in roles.positions.items()]

    def add_batch() -> None:
        # Arrow does not accept bytes that are not UTF-8.
        bad: dict[int, str] = {}
        for column in columns.values():
            if text_problem("\n".join(column)) is not None:
                problems = ((row, text_problem(text)) for row, text in enumerate(column))
                bad |= {row: problem for row, problem in problems if problem is not None}
        if bad:
            unreadable.update({lines[row]: problem for row, problem in bad.items()})
            good = [row for row in range(len(lines)) if row not in bad]
            lines[:] = [lines[row] for row in good]
            for column in columns.values():
                column[:] = [column[row] for row in good]
        arrays = {role: pa.array(column, pa.large_string()) for role, column in columns.items()}
        source.add_checked(connection, pa.table(arrays), roles, "line", lines, unreadable)
        lines.clear()
        unreadable.clear()
        for column in columns.values():
            column.clear()

    with connect() as connection:
        try:
            for line, row in rows:
                if isinstance(row, str):
                    unreadable[line] = row
                # Empty fields at the end of a row are dropped, as DuckDB does.
                elif len(row) != width and (len(row) < width or any(row[width:])):
                    only = "only " if len(row) < width else ""
                    unreadable[line] = f"{only}{len(row)} of {width} columns"
                else:
                    lines.append(line)
                    row = [*row[:width], *fixed] if fixed else row
                    for append, position in targets:
                        append(row[position])
                if len(lines) + len(unreadable) == _BATCH:
                    add_batch()
        except InputError:
            add_batch()  # reports a bad row before the place where `rows` failed
            raise
        add_batch()
