"""The exact reader: one row after the other, every bad one named by its line.

Slow beside DuckDB, and the judge of every file DuckDB may get wrong or cannot point into: mixed
line ends, odd quotes, a damaged row. A row's line is the line it begins on.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa

from llpauc.data.readers.columns import Roles
from llpauc.data.readers.gathering import Floats, Sink, connect, convert, holdable
from llpauc.data.readers.look import LONGEST_LINE, TOO_LONG, Layout, wide_fields
from llpauc.errors import InputError

BATCH = 100_000
REMEDY = "fix the row or pass bad_rows='skip' (--bad-rows skip)"


@dataclass(frozen=True)
class Problem:
    """Why a row cannot be used; `final` where nobody could say where the next row begins."""

    text: str
    final: bool = False


Row = tuple[int, list[str] | Problem]  # the line it begins on, and its fields


class Rejects:
    """Counts the bad rows, or refuses the first one."""

    def __init__(self, name: str, bad_rows: str) -> None:
        self.name = name
        self.skip = bad_rows == "skip"
        self.count = 0
        self.first: str | None = None

    def add(self, line: int, problem: Problem) -> None:
        if problem.final:
            raise InputError(f"{self.name}: line {line}: {problem.text}")
        if not self.skip:
            raise InputError(f"{self.name}: line {line}: {problem.text}; {REMEDY}")
        self.count += 1
        if self.first is None:
            self.first = f"line {line}: {problem.text}"


def text_lines(path: Path, name: str) -> Iterator[str]:
    """The lines of a file, each with its end; a file with one above 16 MB is refused.

    UTF-8 with bad bytes smuggled through, so that the row that has them can be named.
    """
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        longest = LONGEST_LINE + 1
        for number, line in enumerate(iter(partial(file.readline, longest), ""), start=1):
            if len(line) == longest:
                raise InputError(f"{name}: line {number}: {TOO_LONG}")
            yield line


def text_problem(text: str) -> Problem | None:
    """What keeps a row's text from being text."""
    if "\0" in text:
        return Problem("holds a NUL byte, so the file is damaged or no text")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            byte = ord(text[error.start]) - 0xDC00
            return Problem(f"not UTF-8 (byte 0x{byte:02x}): convert the file to UTF-8")
    return None


def shown(value: str) -> str:
    """A value as a message quotes it: on one line, not too long."""
    return repr(value if len(value) <= 60 else value[:57] + "...")


def read_exact(path: Path, layout: Layout, roles: Roles, rejects: Rejects, sink: Sink) -> int:
    """Hand the good rows to `sink`, the bad ones to `rejects`; how many were good."""
    read = 0
    width = len(layout.names)
    rows = _rows(path, layout, rejects.name)
    if layout.header:
        next(rows, None)
    lines: list[int] = []
    problems: list[tuple[int, Problem]] = []
    texts: dict[str, list[str]] = {role: [] for role in roles.positions}
    # Fields are taken out row by row: rows kept alive would wake the garbage collector.
    targets = [(texts[role].append, place) for role, place in roles.positions.items()]
    with connect() as connection:
        for line, row in rows:
            if isinstance(row, Problem):
                problems.append((line, row))
            # Delimiters at the end of a row that open nothing are dropped, as DuckDB does.
            elif len(row) != width and (len(row) < width or any(row[width:])):
                few = "only " if len(row) < width else ""
                problems.append((line, Problem(f"{few}{len(row)} of {width} columns")))
            else:
                lines.append(line)
                for append, place in targets:
                    append(row[place])
            if len(lines) + len(problems) == BATCH:
                read += _gather(sink, lines, texts, problems, roles, rejects, connection)
        read += _gather(sink, lines, texts, problems, roles, rejects, connection)
    return read


def _gather(
    sink: Sink,
    lines: list[int],
    texts: dict[str, list[str]],
    problems: list[tuple[int, Problem]],
    roles: Roles,
    rejects: Rejects,
    connection: duckdb.DuckDBPyConnection,
) -> int:
    """Move the good rows on, hand the bad ones to `rejects` in their order; count the good."""
    bad = _text_problems(texts)
    columns = {role: _text_column(texts[role], bad) for role in texts}
    values: dict[str, Floats] = {}
    for role in ("rating", "timestamp"):
        if role in columns:
            values[role] = convert(columns[role], roles.kind(role), connection)
            for place in np.flatnonzero(~holdable(values[role], role)).tolist():
                problem = _value_problem(role, texts[role][place], values[role][place], roles)
                bad.setdefault(place, problem)
    problems += [(lines[place], problem) for place, problem in bad.items()]
    for line, problem in sorted(problems, key=lambda pair: pair[0]):
        rejects.add(line, problem)
    good = np.ones(len(lines), dtype=bool)
    good[list(bad)] = False
    sink.add(
        columns["user"].filter(pa.array(good)),
        columns["item"].filter(pa.array(good)),
        **{role + "s": numbers[good] for role, numbers in values.items()},
    )
    lines.clear()
    problems.clear()
    for column in texts.values():
        column.clear()
    return int(good.sum())


def _text_column(texts: list[str], bad: dict[int, Problem]) -> pa.Array:
    # A row that is out already may hold what Arrow refuses to take for text.
    clean = ["" if place in bad else text for place, text in enumerate(texts)] if bad else texts
    return pa.array(clean, pa.large_string())


def _text_problems(texts: dict[str, list[str]]) -> dict[int, Problem]:
    problems: dict[int, Problem] = {}
    for role, column in texts.items():
        if text_problem("\n".join(column)) is not None:
            for place, text in enumerate(column):
                problem = text_problem(text)
                if problem is not None:
                    problems.setdefault(place, problem)
        if role in ("user", "item") and not all(column):
            for place, text in enumerate(column):
                if not text:
                    problems.setdefault(place, Problem(f"the {role} id is empty"))
    return problems


def _value_problem(role: str, text: str, value: float, roles: Roles) -> Problem:
    if np.isfinite(value):
        return Problem(f"{role} {shown(text)} is too large")
    wanted = {"number": "a number", "date": "a date like 2024-01-31 or 2024-01-31T12:00:00"}
    return Problem(f"{role} {shown(text)} is not {wanted[roles.kind(role)]}")


def _rows(path: Path, layout: Layout, name: str) -> Iterator[Row]:
    if layout.quotes:
        with wide_fields():
            yield from _quoted_rows(text_lines(path, name), layout.delimiter)
        return
    for line, text in enumerate(text_lines(path, name), start=1):
        text = text.rstrip("\r\n")
        if text:
            yield line, text.split(layout.delimiter)


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
