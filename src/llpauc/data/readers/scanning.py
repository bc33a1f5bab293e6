"""One pass over a file's bytes: how many rows it must give, and what DuckDB would misread.

Held against Python's csv module on random bytes, DuckDB 2.0 in strict mode drops blanks outside of
quotes (`"a" ,b`), loses a byte after a stray carriage return, takes a blank first line for the
header, and can leave out a last row whose quote stays open. None of that raises an error, so only
a file that keeps to RFC 4180 to the letter goes to DuckDB, and its rows are counted here as well.
A pass costs about a second per 600 MB.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from llpauc.data.readers.look import LONGEST_LINE

CHUNK = 1 << 22
_QUOTE, _LINE_FEED = ord('"'), ord("\n")


@dataclass(frozen=True)
class Scan:
    """What the bytes tell.

    Args:
        lines: lines that are not blank, a line end inside of quotes not counted.
        quotes: whether there are quotes that matter.
        quoted_line_ends: whether some of them hold line ends.
        oddity: why DuckDB should not read this file, or None.
    """

    lines: int
    quotes: bool
    quoted_line_ends: bool
    oddity: str | None


def scan(path: Path, quoted_by: str | None) -> Scan:
    """Look through a text table; `quoted_by` is its delimiter where quotes have a meaning."""
    quotes = inside = False
    oddity = None
    lines = line_feeds = ended = returns = pairs = 0
    with path.open("rb") as file:
        if file.read(4).removeprefix(b"\xef\xbb\xbf")[:1] in (b"\r", b"\n"):
            oddity = "a blank first line"
        file.seek(0)
        # Each chunk ends with a line, so that no pair of bytes we look for is cut in two.
        while chunk := file.read(CHUNK) + (rest := file.readline(LONGEST_LINE)):
            if len(rest) == LONGEST_LINE and not (b"\n" in rest or b"\r" in rest):
                oddity, quotes = "a line above 16 MB", quoted_by is not None
                break
            if b"\0" in chunk:
                oddity = "NUL bytes"
            line_feeds += chunk.count(b"\n")
            if b"\r" in chunk:
                returns += chunk.count(b"\r")
                pairs += chunk.count(b"\r\n")
                chunk = chunk.replace(b"\r\n", b"\n")
            if quoted_by is not None and (inside or b'"' in chunk):
                quotes = True
                text = np.frombuffer(b"\n" + chunk + b"\n", np.uint8)
                places = np.flatnonzero(text == _QUOTE)
                if not _keeps_the_rules(text, places, inside, quoted_by):
                    oddity = "quotes that are not as RFC 4180 has them"
                ends = _line_ends(text, places, inside)
                inside = (inside + len(places)) % 2 == 1
            else:
                ends = None
            found, blank = _count(chunk, ends)
            ended += found
            lines += found - blank + (not chunk.endswith(b"\n"))
    if inside:
        oddity = "a quote left open"
    if returns and not returns == pairs == line_feeds:
        oddity = "mixed line ends"
    return Scan(lines, quotes, ended != line_feeds, oddity)


def _keeps_the_rules(
    text: npt.NDArray[np.uint8], places: npt.NDArray[np.int64], inside: bool, delimiter: str
) -> bool:
    """Every quote opens at a field's start or closes at its end; a doubled one does both."""
    encoded = delimiter.encode()
    may_precede = np.isin(np.arange(256), [*b'\r\n"', encoded[-1]])
    may_follow = np.isin(np.arange(256), [*b'\r\n"', encoded[0]])
    opening, closing = places[int(inside) :: 2], places[1 - int(inside) :: 2]
    return bool(may_precede[text[opening - 1]].all() and may_follow[text[closing + 1]].all())


def _line_ends(
    text: npt.NDArray[np.uint8], places: npt.NDArray[np.int64], inside: bool
) -> npt.NDArray[np.int64]:
    """Where lines end outside of quotes; `text` has one line end more on either side."""
    ends = np.flatnonzero(text == _LINE_FEED)[1:-1]
    outside: npt.NDArray[np.int64] = ends[(np.searchsorted(places, ends) + inside) % 2 == 0]
    return outside


def _count(chunk: bytes, ends: npt.NDArray[np.int64] | None) -> tuple[int, int]:
    """Line ends outside of quotes, and those among them that end a blank line."""
    if ends is not None:
        # A line end right behind another is never parted from it by a quote.
        padded = np.frombuffer(b"\n" + chunk, np.uint8)
        return len(ends), int((padded[ends - 1] == _LINE_FEED).sum())
    found = chunk.count(b"\n")
    if not (chunk.startswith(b"\n") or b"\n\n" in chunk):
        return found, 0
    text = np.frombuffer(b"\n" + chunk, np.uint8)
    return found, int(((text[1:] == _LINE_FEED) & (text[:-1] == _LINE_FEED)).sum())
