"""A first look at a file: what it is, how its fields are separated, whether it has a header.

The name is asked first, then the first lines. Bytes beat the name where they are unmistakable
(gzip, Parquet). DuckDB's own sniffer is never asked: it has swallowed rows.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import shutil
import stat
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from llpauc.data.readers.columns import KNOWN_NAMES, is_number, plain
from llpauc.errors import InputError, choose

HEAD = 1 << 18  # bytes looked at
LONGEST_LINE = 1 << 24  # a row above 16 MB is an open quote or no table
TOO_LONG = "a field above 16 MB, or a quote left open; mend it"
SAMPLE_ROWS = 200

DELIMITERS = (",", "\t", ";", "|", "::", " ")
DELIMITER_WORDS = {
    "comma": ",",
    "tab": "\t",
    "\\t": "\t",
    "semicolon": ";",
    "pipe": "|",
    "space": " ",
    "blank": " ",
}


@dataclass(frozen=True)
class Format:
    """What a format's name settles; None is left to the first lines."""

    delimiter: str | None = None
    quotes: bool = False
    header: bool | None = None


FORMATS: dict[str, Format] = {
    "csv": Format(quotes=True),
    "tsv": Format(delimiter="\t", quotes=True),
    "inter": Format(delimiter="\t", quotes=True, header=True),
    "u.data": Format(delimiter="\t", header=False),
    "ratings.dat": Format(delimiter="::", header=False),
    "adjacency": Format(delimiter=" ", header=False),
    "parquet": Format(header=True),
    "jsonl": Format(header=True),
}
_BY_NAME = {"u.data": "u.data", "ratings.dat": "ratings.dat"}
BY_SUFFIX = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".inter": "inter",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
}
_GZIP = b"\x1f\x8b"
_PARQUET = b"PAR1"
_FOREIGN = {
    b"PK\x03\x04": "a zip archive (or a spreadsheet)",
    b"\x28\xb5\x2f\xfd": "compressed with zstd",
    b"BZh": "compressed with bzip2",
    b"\xfd7zXZ": "compressed with xz",
    b"ARROW1": "an Arrow/Feather file",
    b"\xff\xfe": "UTF-16 text",
    b"\xfe\xff": "UTF-16 text",
}


@dataclass(frozen=True)
class Layout:
    """How a text table is laid out; `names` are positions where there is no header."""

    format: str
    delimiter: str
    quotes: bool
    header: bool
    names: tuple[str, ...]
    sample: tuple[tuple[str, ...], ...]
    note: str

    def values(self, place: int) -> list[str]:
        """The sample's values at a position."""
        return [row[place] for row in self.sample if place < len(row)]


@contextmanager
def unpacked(path: Path, name: str, into: Path | None = None) -> Iterator[Path]:
    """The file itself, or its content in a temporary place (below `into`) where it is gzipped.

    Unpacking ourselves checks the checksum, which DuckDB does not, and lets it read in parallel.
    """
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise InputError(
                f"{name}: is a folder; give one file, or let read_split find its parts"
            )
        if not stat.S_ISREG(mode):  # opening a pipe could wait for ever
            raise InputError(f"{name}: not a regular file; copy it to one first")
        with path.open("rb") as file:
            magic = file.read(2)
    except OSError as error:
        raise InputError(f"{name}: cannot be read ({error.strerror}); check the path") from error
    if magic != _GZIP:
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="llpauc-", dir=into) as folder:
        plain_file = Path(folder) / "unpacked"
        try:
            with gzip.open(path) as packed, plain_file.open("wb") as file:
                shutil.copyfileobj(packed, file, 1 << 20)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise InputError(
                f"{name}: the gzip data are cut off or damaged ({error}); fetch the file again"
            ) from error
        except OSError as error:
            raise InputError(f"{name}: cannot be unpacked: {error.strerror}") from error
        yield plain_file


def read_head(path: Path, name: str) -> bytes:
    """The first bytes, up to a line's end; refuses what cannot be a table."""
    with path.open("rb") as file:
        head = file.read(HEAD)
        if not head:
            raise InputError(f"{name}: the file is empty")
        for magic, what in _FOREIGN.items():
            if head.startswith(magic):
                raise InputError(f"{name}: is {what}; convert it to plain or gzipped UTF-8 text")
        if head.startswith(_PARQUET):
            return head
        if 10 * head.count(0) > len(head) or (b"\0" in head and not _is_utf8(head)):
            raise InputError(f"{name}: is binary, not a table of text; give CSV or Parquet")
        return head + file.readline(LONGEST_LINE)


def _is_utf8(head: bytes) -> bool:
    try:
        codecs.utf_8_decode(head, "strict", False)  # the last character may be cut
    except UnicodeDecodeError:
        return False
    return True


def guess_format(path: Path, head: bytes, asked: str | None, name: str) -> tuple[str | None, str]:
    """The format and where the knowledge comes from; None when only the lines can tell."""
    if head.startswith(_PARQUET):
        if asked not in (None, "parquet"):
            raise InputError(f"{name}: is a Parquet file, not {asked}; leave format out")
        return "parquet", "from its first bytes"
    if asked is not None:
        choose(FORMATS, asked, "format")
        found, source = asked, "as told"
    else:
        stem = path.name.lower().removesuffix(".gz")
        by_name = _BY_NAME.get(stem) or BY_SUFFIX.get(Path(stem).suffix)
        if by_name is None and head.lstrip().startswith(b'{"'):
            return "jsonl", "from its first bytes"
        if by_name is None:
            return None, "from its first lines"
        found, source = by_name, "from its name"
    if found == "parquet":
        raise InputError(f"{name}: is not a Parquet file (its first bytes are not PAR1)")
    return found, source


def look(
    name: str,
    head: bytes,
    *,
    found: tuple[str | None, str],
    delimiter: str | None,
    header: bool | None,
    asked_names: Sequence[str],
) -> Layout:
    """Guess what was not told about a text table from its first lines.

    Args:
        name: the file, for messages.
        head: its first bytes.
        found: what `guess_format` says.
        delimiter: as told, or None.
        header: as told, or None.
        asked_names: the column names the caller uses; a first row that has them is a header.
    """
    lines = _lines(head)
    if not lines:
        raise InputError(f"{name}: no rows; the file holds only blank lines")
    known, source = found
    settled = FORMATS[known or "csv"]
    said = []
    if delimiter is not None:
        separator = check_delimiter(delimiter)
    elif settled.delimiter is not None and settled.delimiter in lines[0]:
        separator = settled.delimiter
    elif known == "adjacency":
        separator = " "
    else:
        separator = _guess_delimiter(lines, asked_names, "," if known == "csv" else None)
        said.append(f"delimiter {separator!r} (guessed)")
    rows = list(_split(lines, separator, settled.quotes))[: SAMPLE_ROWS + 1]
    if not rows or (len(rows[0]) == 1 and "\n" in rows[0][0].rstrip("\n")):
        raise InputError(f"{name}: line 1: {TOO_LONG}")
    if header is None:
        header = settled.header
    if header is None:
        header = _has_header(rows, asked_names)
        said.append(f"{'a' if header else 'no'} header (guessed)")
    kind = known or _format_of_lines(name, rows, separator, header)
    if kind == "adjacency" and header:
        raise InputError(f"{name}: an adjacency list has no header; leave header out")
    names = rows[0] if header else [str(place) for place in range(len(rows[0]))]
    if kind == "inter":
        names = [column.split(":")[0] for column in names]
    if len(names) < 2 and kind != "adjacency":
        raise InputError(
            f"{name}: only one column is found with the delimiter {separator!r}; give delimiter= "
            "(--delimiter), one of: , tab ; | :: space"
        )
    return Layout(
        format=kind,
        delimiter=separator,
        quotes=FORMATS[kind].quotes and _can_quote(separator),
        header=header,
        names=tuple(names),
        sample=tuple(tuple(row) for row in rows[1 if header else 0 :]),
        note=", ".join([f"{name}: read as {kind} ({source})", *said]),
    )


def _can_quote(separator: str) -> bool:
    return len(separator) == 1 and separator != " "


def check_delimiter(delimiter: str) -> str:
    """A delimiter we can work with, given as it is or as a word (tab, comma, blank ...)."""
    delimiter = DELIMITER_WORDS.get(delimiter, delimiter)
    if not 1 <= len(delimiter.encode()) <= 4 or any(bad in delimiter for bad in '\r\n"\0'):
        raise InputError(
            f"delimiter must be one to four bytes without quotes and line ends, got {delimiter!r}"
        )
    return delimiter


def _lines(head: bytes) -> list[str]:
    text = head.decode("utf-8-sig", errors="replace").replace("\r\n", "\n").replace("\r", "\n")
    return [line for line in text.split("\n")[: 5 * SAMPLE_ROWS] if line]


def _split(lines: Sequence[str], separator: str, quotes: bool) -> Iterator[list[str]]:
    if not (quotes and _can_quote(separator)):
        yield from (line.split(separator) for line in lines)
        return
    with wide_fields():
        reader = csv.reader([line + "\n" for line in lines], delimiter=separator)
        try:
            yield from (row for row in reader if row)
        except csv.Error:  # a damaged row: the sample ends here, the reading will name it
            return


@contextmanager
def wide_fields() -> Iterator[None]:
    """Let Python's csv module take fields as long as DuckDB does; its limit is a global."""
    before = csv.field_size_limit(LONGEST_LINE)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _guess_delimiter(lines: Sequence[str], asked: Sequence[str], preferred: str | None) -> str:
    counts: dict[str, list[int]] = {}
    for separator in DELIMITERS:
        rows = list(_split(lines[:SAMPLE_ROWS], separator, quotes=True))
        # A user without items may stand on the first line of an adjacency list.
        if rows and (max(map(len, rows)) if separator == " " else len(rows[0])) > 1:
            if _known(rows[0], asked):
                return separator
            counts[separator] = [len(row) for row in rows]
    steady = [separator for separator, widths in counts.items() if len(set(widths)) == 1]
    for candidates in (steady, list(counts)):
        visible = [separator for separator in candidates if separator != " "] or candidates
        if preferred in visible:
            return preferred or ","
        if visible:
            return max(visible, key=lambda separator: counts[separator][0])
    return preferred or ","


def _known(row: Sequence[str], asked: Sequence[str]) -> bool:
    """Whether a first row is made of column names."""
    names = {plain(field) for field in row}
    if any(field in asked for field in row):
        return True
    return any(names & set(KNOWN_NAMES[role]) for role in ("user", "item"))


def _has_header(rows: Sequence[Sequence[str]], asked: Sequence[str]) -> bool:
    if _known(rows[0], asked):
        return True
    if any(is_number(field) for field in rows[0]) or len(rows) == 1:
        return False
    columns = zip(*(row for row in rows[1:] if len(row) == len(rows[0])), strict=True)
    return any(all(is_number(value) for value in column) for column in columns)


def _format_of_lines(name: str, rows: Sequence[list[str]], separator: str, header: bool) -> str:
    widths = {len([field for field in row if field]) for row in rows}
    if separator == " " and not header:
        if len(widths) == 1 and widths <= {3, 4}:
            raise InputError(
                f"{name}: {widths.pop()} blank-separated columns may be a table or adjacency lists"
                "; give format='adjacency', or format='csv' and delimiter=' '"
            )
        return "adjacency"
    if separator == "::" and not header:
        return "ratings.dat"
    if separator == "\t":
        return "u.data" if not header and widths == {4} else "tsv"
    return "csv"
