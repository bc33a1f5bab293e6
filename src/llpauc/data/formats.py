"""File formats: the registry, detection, and the readers of JSON lines and adjacency lists.

To add a format, add an entry to `FORMATS`: its name, the endings of its files, a function that
recognises it by the first bytes, and a reader that adds the rows of a `Source` to its sink.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import json
import lzma
import re
import shutil
import stat
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from llpauc.data.columns import SAMPLE_ROWS, printable
from llpauc.data.locations import (
    STANDARD_INPUT,
    is_database,
    partitions_of,
    without_credentials,
)
from llpauc.data.sources import Format, ReadOptions, Sink, Source, encode_ids
from llpauc.data.sql import read_duckdb, read_postgresql, read_sqlite
from llpauc.data.text_tables import (
    MAX_LINE,
    Row,
    layout_of,
    read_rows,
    read_text_table,
    text_lines,
    text_problem,
)
from llpauc.data.typed_tables import read_arrow, read_parquet
from llpauc.errors import InputError, choose

_HEAD = 1 << 18  # bytes used for detection
_COMPRESSED: dict[bytes, tuple[str, Callable[[Path], Any]]] = {  # first bytes -> name, open
    b"\x1f\x8b": ("gzip", gzip.open),
    b"BZh": ("bzip2", bz2.open),
    b"\xfd7zXZ": ("xz", lzma.open),
    b"\x28\xb5\x2f\xfd": ("zstd", lambda path: pa.input_stream(str(path), compression="zstd")),
}
_ENDINGS = (".gz", ".bz2", ".xz", ".zst", ".zstd")
_CONTROLS = bytes([*range(9), *range(14, 27), *range(28, 32)])  # bytes that no text table has
_UNSUPPORTED = {
    b"version https://git-lfs": "a git-lfs pointer, not the data (git lfs pull fetches them)",
    b"%PDF": "a PDF",
    b"<!DOCTYPE": "an HTML page",
    b"<html": "an HTML page",
    b"<?xml": "XML",
    b"\x89PNG": "an image",
    b"\xff\xd8\xff": "an image",
    b"GIF8": "an image",
    b"\x7fELF": "a program",
    b"\x80\x04\x95": "a pickle, which is never loaded",
    b"7z\xbc\xaf": "a 7z archive",
    b"Rar!": "a RAR archive",
    b"ORC": "an ORC file",
    b"Obj\x01": "an Avro file",
    b"PK\x03\x04": "a zip archive (or a spreadsheet)",
    b"FEA1": "a Feather file of version 1",
    b"\xff\xfe": "UTF-16 text",
    b"\xfe\xff": "UTF-16 text",
}


def read_file(
    place: str,
    options: ReadOptions,
    sink: Sink,
    temporary: Path | None = None,
    is_part: bool = False,
) -> Source:
    """Read one file, standard input or a database into a sink.

    Args:
        place: a path (compressed or not), "-", or the URL of a database.
        options: as given to `read_interactions`.
        sink: where the events go.
        temporary: folder for the uncompressed content; None is the system's.
        is_part: whether it is one of several, and may be empty.
    """
    shown = "standard input" if place == STANDARD_INPUT else without_credentials(place)
    name = printable(shown)
    if is_database(place):
        source = Source(name, sink, options)
        read_postgresql(source, place)
        source.finish(is_part)
        return source
    path = Path(place)
    with uncompressed(place, name, temporary) as plain:
        source = Source(name, sink, options, plain, _read_head(plain, name), partitions_of(path))
        source.format_name, source.detected_by = _detect_format(path, source)
        source.format = FORMATS[source.format_name]
        if not (sink.in_memory or source.format.out_of_core):
            raise InputError(
                f"{name}: {source.format_name} cannot be prepared out of core; write it as CSV or "
                "Parquet with a user and an item column"
            )
        if options.get("query") is not None and not source.format.queried:
            raise InputError(f"{name}: query is for databases; leave it out (--query)")
        source.format.read(source)
    source.finish(is_part)
    return source


@contextmanager
def uncompressed(place: str, name: str, temporary: Path | None = None) -> Iterator[Path]:
    """The file itself, or its content in a temporary file if it is compressed or piped.

    Unlike DuckDB's decompression this verifies the checksum, and it allows parallel reading.
    """
    with ExitStack() as stack:

        def copy(source: Any, file_name: str) -> Path:
            folder = tempfile.TemporaryDirectory(prefix="llpauc-", dir=temporary)
            target = Path(stack.enter_context(folder)) / file_name
            with source as reader, target.open("wb") as file:
                shutil.copyfileobj(reader, file, 1 << 20)
            return target

        path = Path(place)
        try:
            if place == STANDARD_INPUT:
                path = copy(nullcontext(sys.stdin.buffer), "standard-input")
            mode = path.stat().st_mode
            if stat.S_ISDIR(mode):
                raise InputError(f"{name}: is a folder; give one file, or use read_split")
            if not stat.S_ISREG(mode):  # opening a pipe could wait forever
                raise InputError(f"{name}: not a regular file; copy it to one first")
            with path.open("rb") as file:
                head = file.read(8)
        except OSError as error:
            reason = error.strerror or str(error)
            raise InputError(f"{name}: cannot be read ({reason}); check the path") from error
        method, reader = next((c for s, c in _COMPRESSED.items() if head.startswith(s)), ("", None))
        if reader is not None:
            try:
                path = copy(reader(path), "uncompressed")
            except (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError, ValueError) as error:
                raise _cut_off(name, method, error) from error
            except OSError as error:
                if error.strerror is None:  # of bzip2 and zstd
                    raise _cut_off(name, method, error) from error
                raise InputError(f"{name}: cannot be uncompressed: {error.strerror}") from error
        yield path


def _cut_off(name: str, method: str, error: Exception) -> InputError:
    return InputError(
        f"{name}: the {method} data are cut off or damaged ({error}); fetch the file again"
    )


def _read_head(path: Path, name: str) -> bytes:
    """The first bytes, up to the end of a line; content that cannot be a table is refused."""
    with path.open("rb") as file:
        head = file.read(_HEAD)
        if not head:
            raise InputError(f"{name}: the file is empty")
        for signature, what in _UNSUPPORTED.items():
            if head.startswith(signature):
                raise InputError(f"{name}: is {what}; convert it to plain or gzipped UTF-8 text")
        if any(format.signed(head) for format in FORMATS.values()):
            return head
        controls = len(head) - len(head.translate(None, _CONTROLS))
        if 10 * head.count(0) > len(head) or (controls and not _is_utf8(head)):
            raise InputError(f"{name}: is binary, not a text table; give CSV or Parquet")
        return head + file.readline(MAX_LINE)


def _is_utf8(head: bytes) -> bool:
    try:
        codecs.utf_8_decode(head, "strict", False)  # the last character may be cut
    except UnicodeDecodeError:
        return False
    return True


def plain_name(path: str | PathLike[str]) -> str:
    """The name of a file in lower case and without the ending of a compression."""
    name = Path(path).name.lower()
    ending = next((ending for ending in _ENDINGS if name.endswith(ending)), "")
    return name.removesuffix(ending)


def _detect_format(path: Path, source: Source) -> tuple[str, str]:
    """The format's name and how it was detected: by signature, option, file name or content."""
    requested = source.options.get("format")
    if requested is not None:
        choose(FORMATS, requested, "format")
    for name, format in FORMATS.items():
        if format.signed(source.head):
            if requested not in (None, name):
                raise InputError(
                    f"{source.name}: is a {name.capitalize()} file, not {requested}; drop format"
                )
            return name, "from its first bytes"
    if requested is not None:
        detected, how = requested, "requested"
    else:
        file_name = plain_name(path)
        by_name = {e: name for name, format in FORMATS.items() for e in format.endings}
        known = by_name.get(file_name) or by_name.get(Path(file_name).suffix)
        if known is None:
            formats = reversed(FORMATS.items())
            sniffed = next(name for name, f in formats if f.sniff is not None and f.sniff(source))
            return sniffed, "from its first lines"
        detected, how = known, "from its name"
    if FORMATS[detected].signature:
        expected = FORMATS[detected].signature.decode()
        raise InputError(
            f"{source.name}: is not a {detected.capitalize()} file (does not begin with {expected})"
        )
    return detected, how


# --- JSON lines -----------------------------------------------------------------------------------


def read_json_lines(source: Source) -> None:
    """Read the needed fields of one object per line; integer ids stay integers."""
    source.notes.append(f"{source.name}: read as jsonl, one object a line ({source.detected_by})")
    sample: dict[str, list[str]] = {}  # key -> values that are text or numbers
    for _, line in zip(range(SAMPLE_ROWS), text_lines(source.path, source.name), strict=False):
        entry = _json_object(line)
        for key, value in entry.items() if isinstance(entry, dict) else ():
            if isinstance(value, (str, int, float)):
                sample.setdefault(key, []).append(str(value))
    names = list(sample)
    roles = source.detect_columns(names, list(sample.values()))
    keys = {role: names[position] for role, position in roles.positions.items()}
    integers = {"user": True, "item": True}

    def rows() -> Iterator[Row]:
        for number, line in enumerate(text_lines(source.path, source.name), start=1):
            if not line.strip():
                continue
            entry = _json_object(line)
            problem = entry if isinstance(entry, str) else _field_problem(entry, keys)
            if problem is not None or isinstance(entry, str):
                yield number, problem or ""
                continue
            for role in integers:
                value = entry[keys[role]]
                integers[role] &= type(value) is int and -(2**63) <= value < 2**63
            yield number, [str(entry[key]) for key in keys.values()]

    in_order = {role: position for position, role in enumerate(keys)}
    read_rows(source, rows(), len(keys), replace(roles, positions=in_order))
    for role, all_integers in integers.items():
        source.sink.kinds[role].add("int64" if all_integers else "string")


def _json_object(line: str) -> dict[str, Any] | str:
    """The object of a line, or why there is none."""
    problem = text_problem(line)
    if problem is not None:
        return problem
    try:
        entry = json.loads(line)
        if "\\u" in line:
            json.dumps(entry, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return "holds half a character (a lone surrogate)"
    except (ValueError, RecursionError):
        return "is not a JSON object"
    return entry if isinstance(entry, dict) else "is not a JSON object"


def _field_problem(entry: dict[str, Any], keys: dict[str, str]) -> str | None:
    for role, key in keys.items():
        value = entry.get(key)
        if value is None or value == "":
            return f"the {role} ('{key}') is missing"
        types = (str, int) if role in ("user", "item") else (str, int, float)
        if isinstance(value, bool) or not isinstance(value, types):
            return f"the {role} ('{key}') is a {type(value).__name__}, not text or a number"
    return None


# --- adjacency lists ------------------------------------------------------------------------------

_BATCH = 500_000  # items
_WORD = re.compile(r"[^ \t\r\n]+")  # str.split would also split at other Unicode blanks


def read_adjacency(source: Source) -> None:
    """Read a user and that user's items on each line, separated by blanks or tabs.

    A user without items stays in the id map.
    """
    for role, column in source.requested.items():
        if column is not None:
            raise InputError(
                f"{role}={column!r} is for tables; an adjacency list has no columns; leave it out"
            )
    if source.options.get("header"):
        raise InputError(f"{source.name}: an adjacency list has no header; leave header out")
    source.notes.append(f"{source.name}: read as adjacency ({source.detected_by})")
    users: list[str] = []
    counts: list[int] = []
    items: list[str] = []
    events = without = 0

    def add_batch() -> None:
        encoded = encode_ids(pa.array(users, pa.large_string()))
        repeated = pa.array(np.repeat(np.asarray(encoded.indices), counts))
        columns = {
            # The dictionary keeps the users without items.
            "user": pa.DictionaryArray.from_arrays(repeated, encoded.dictionary),
            "item": pa.array(items, pa.large_string()),
        }
        source.add(columns, rows=len(users))
        for batch in (users, counts, items):
            batch.clear()

    for number, line in enumerate(text_lines(source.path, source.name), start=1):
        words = _WORD.findall(line)
        if not words:
            continue
        problem = text_problem(line)
        if problem is not None:
            source.reject(f"line {number}", problem)
            continue
        users.append(words[0])
        counts.append(len(words) - 1)
        items.extend(words[1:])
        events += counts[-1]
        without += counts[-1] == 0
        if len(items) >= _BATCH:
            add_batch()
    add_batch()
    if not events:
        source.rows_read = 0
    if without:
        source.notes.append(f"{source.name}: {without} lines name a user without items")


def _is_adjacency(source: Source) -> bool:
    layout = layout_of(source)
    if layout.delimiter != " " or layout.header:
        return False
    if len(layout.widths) == 1 and layout.widths <= {3, 4}:
        raise InputError(
            f"{source.name}: {layout.widths.pop()} blank-separated columns may be a table or "
            "adjacency lists; give format='adjacency', or format='csv' and delimiter=' '"
        )
    return True


def _has(delimiter: str, **expected: Any) -> Callable[[Source], bool]:
    """Whether a text table has this delimiter and these attributes of its `Layout`."""

    def sniff(source: Source) -> bool:
        layout = layout_of(source)
        same = all(getattr(layout, name) == value for name, value in expected.items())
        return layout.delimiter == delimiter and same

    return sniff


# Content is compared from the last entry to the first; csv accepts every text.
FORMATS: dict[str, Format] = {
    "csv": Format(
        read_text_table,
        (".csv",),
        sniff=lambda source: True,
        quotes=True,
        preferred_delimiter=",",
    ),
    "tsv": Format(
        read_text_table,
        (".tsv", ".tab"),
        sniff=_has("\t"),
        delimiter="\t",
        quotes=True,
    ),
    "inter": Format(
        read_text_table, (".inter",), delimiter="\t", quotes=True, header=True, typed_names=True
    ),
    "u.data": Format(
        read_text_table,
        ("u.data",),
        sniff=_has("\t", header=False, widths={4}),
        delimiter="\t",
        header=False,
    ),
    "ratings.dat": Format(
        read_text_table,
        ("ratings.dat",),
        sniff=_has("::", header=False),
        delimiter="::",
        header=False,
    ),
    "adjacency": Format(read_adjacency, sniff=_is_adjacency, out_of_core=False),
    "parquet": Format(read_parquet, (".parquet", ".pq"), signature=b"PAR1"),
    "arrow": Format(read_arrow, (".arrow", ".feather", ".ipc"), signature=b"ARROW1"),
    "jsonl": Format(
        read_json_lines,
        (".jsonl", ".ndjson", ".json"),
        sniff=lambda source: source.head.lstrip().startswith(b'{"'),
        out_of_core=False,
    ),
    "sqlite": Format(read_sqlite, (".sqlite",), signature=b"SQLite format 3", queried=True),
    "duckdb": Format(read_duckdb, (".duckdb",), signature=b"DUCK", signature_at=8, queried=True),
}
