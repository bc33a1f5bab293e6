"""The code blocks of a Markdown page, and what the page says about running them.

A block is fenced, or indented by four spaces and begins with a command. A comment before it may say

    <!-- not run: REASON -->             the block is excused
    <!-- needs: PACKAGE -->              the block is excused where that is not installed
    <!-- in the background -->           a server: started, and ended with the page
    <!-- in the test: OLD = NEW -->      so that it takes less time; several with semicolons

and one anywhere on the page excuses every block that begins alike:

    <!-- not run on this page, `llpauc reproduce`: REASON -->
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

KINDS = {"python": "python", "bash": "bash", "sh": "bash"}
NO_CODE = ("text", "toml", "json")  # shown, and no command
COMMANDS = ("llpauc", "python", "pip", "curl", "make", "kill", "source", "mkdocs", "torchrun")
_FENCE = re.compile(r"^```(\w*)\s*$")
_COMMENT = re.compile(r"^<!-- (.+) -->$")
_PAGE_WIDE = re.compile(r"^<!-- not run on this page, `(.+?)`: (.+) -->$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A block of code.

    Args:
        page: the file.
        line: of the block's first line of code.
        kind: python, bash, one of NO_CODE, or "" where the page does not say.
        text: the code.
        excuse: why it is not run; None where it is.
        background: whether it goes on while later blocks run.
        shortened: pairs of what to replace, by what.
    """

    page: Path
    line: int
    kind: str
    text: str
    excuse: str | None = None
    background: bool = False
    shortened: tuple[tuple[str, str], ...] = ()

    @property
    def code(self) -> str:
        """What is run. Something to shorten that is not there is a mistake of the page."""
        text = self.text
        for old, new in self.shortened:
            if old not in text:
                raise AssertionError(f"{self.where}: nothing to shorten: {old!r}")
            text = text.replace(old, new)
        return text

    @property
    def where(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """Every block of a page, in order."""
    text = page.read_text(encoding="utf-8")
    excused = _PAGE_WIDE.findall(text)
    return [_made(page, excused, *found) for found in _found(text.splitlines())]


def _found(lines: list[str]) -> Iterator[tuple[int, str, str, list[str]]]:
    """Line, kind, code and the comments before it."""
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
    while words and re.match(r"[A-Z_]+=", words[0]):  # a variable for this command
        words = words[1:]
    return line.startswith("    ") and bool(words) and words[0] in COMMANDS


def _made(
    page: Path,
    excused: list[tuple[str, str]],
    line: int,
    kind: str,
    text: str,
    comments: list[str],
) -> Block:
    reasons = [said.removeprefix("not run: ") for said in comments if said.startswith("not run: ")]
    reasons += [
        f"{package} is not installed"
        for said in comments
        if said.startswith("needs: ") and find_spec(package := said.removeprefix("needs: ")) is None
    ]
    reasons += [reason for start, reason in excused if text.startswith(start)]
    short = [
        (old.strip(), new.strip())
        for said in comments
        if said.startswith("in the test: ")
        for old, _, new in (
            p.partition(" = ") for p in said.removeprefix("in the test: ").split(";")
        )
    ]
    excuse = reasons[0] if reasons else None
    background = "in the background" in comments
    return Block(page, line, kind, text, excuse, background, tuple(short))
