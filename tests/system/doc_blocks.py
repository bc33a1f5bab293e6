"""The code blocks of a Markdown page, and the comments that control how they are run.

A block is fenced, or it is indented by four spaces and starts with a command. Comments before it:

    <!-- not run: REASON -->             the block is skipped
    <!-- needs: PACKAGE -->              the block is skipped if the package is not installed
    <!-- in the background -->           a server: started here, terminated at the end of the page
    <!-- in the test: OLD = NEW -->      replacements that save time, separated by semicolons

A comment anywhere on the page skips every block that starts with the given text:

    <!-- not run on this page, `llpauc reproduce`: REASON -->
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

KINDS = {"python": "python", "bash": "bash", "sh": "bash"}
NO_CODE = ("text", "toml", "json")  # shown, not run
COMMANDS = ("llpauc", "python", "pip", "curl", "make", "kill", "source", "mkdocs", "torchrun")
_FENCE = re.compile(r"^```(\w*)\s*$")
_COMMENT = re.compile(r"^<!-- (.+) -->$")
_PAGE_WIDE = re.compile(r"^<!-- not run on this page, `(.+?)`: (.+) -->$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A block of code.

    Args:
        page: the file.
        line: number of the first line of code.
        kind: python, bash, one of NO_CODE, or "" if the page does not name a language.
        text: the code.
        skip_reason: why it is not run; None if it is run.
        background: whether it keeps running while later blocks run.
        replacements: (old, new) pairs that are replaced before the block is run.
    """

    page: Path
    line: int
    kind: str
    text: str
    skip_reason: str | None = None
    background: bool = False
    replacements: tuple[tuple[str, str], ...] = ()

    @property
    def code(self) -> str:
        """The code that is run. A replacement that does not apply is an error of the page."""
        text = self.text
        for old, new in self.replacements:
            if old not in text:
                raise AssertionError(f"{self.where}: nothing to replace: {old!r}")
            text = text.replace(old, new)
        return text

    @property
    def where(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """Every block of a page, in order."""
    text = page.read_text(encoding="utf-8")
    skipped = _PAGE_WIDE.findall(text)
    return [_block(page, skipped, *parts) for parts in _raw_blocks(text.splitlines())]


def _raw_blocks(lines: list[str]) -> Iterator[tuple[int, str, str, list[str]]]:
    """Line, kind, code and preceding comments of each block."""
    comments: list[str] = []
    number = 0
    while number < len(lines):
        line = lines[number]
        start = number + 1
        if (fence := _FENCE.match(line)) is not None:
            end = next(n for n in range(start, len(lines)) if lines[n].startswith("```"))
            yield start + 1, KINDS.get(fence[1], fence[1]), "\n".join(lines[start:end]), comments
            number, comments = end, []
        elif _is_command(line) and (number == 0 or not lines[number - 1].strip()):
            end = number
            while end < len(lines) and lines[end].startswith("    "):
                end += 1
            code = "\n".join(line[4:] for line in lines[number:end])
            yield start, "bash", code, comments
            number, comments = end - 1, []
        elif (comment := _COMMENT.match(line)) is not None:
            comments = [*comments, comment[1]]
        elif line.strip():
            comments = []
        number += 1


def _is_command(line: str) -> bool:
    words = line.split()
    while words and re.match(r"[A-Z_]+=", words[0]):  # environment variables of the command
        words = words[1:]
    return line.startswith("    ") and bool(words) and words[0] in COMMANDS


def _block(
    page: Path,
    skipped: list[tuple[str, str]],
    line: int,
    kind: str,
    text: str,
    comments: list[str],
) -> Block:
    reasons = _values(comments, "not run: ")
    reasons += [
        f"{package} is not installed"
        for package in _values(comments, "needs: ")
        if find_spec(package) is None
    ]
    reasons += [reason for start, reason in skipped if text.startswith(start)]
    replacements = []
    for value in _values(comments, "in the test: "):
        for pair in value.split(";"):
            old, _, new = pair.partition(" = ")
            replacements.append((old.strip(), new.strip()))
    skip_reason = reasons[0] if reasons else None
    background = "in the background" in comments
    return Block(page, line, kind, text, skip_reason, background, tuple(replacements))


def _values(comments: list[str], key: str) -> list[str]:
    """What follows the key, for each comment that starts with it."""
    return [comment.removeprefix(key) for comment in comments if comment.startswith(key)]
