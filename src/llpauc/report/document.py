"""HTML files that load nothing else, and Markdown.

`render` makes the interactive page of a run. `as_html` and `as_markdown` make the same static
document from a list of blocks (headings, paragraphs, tables, bar charts).

A Content-Security-Policy with the SHA-256 of the style and the script prevents anything else from
being executed: an id or a title that contains HTML is shown as text.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from string import Template
from typing import Any


def render(data: dict[str, Any] | None = None) -> bytes:
    """The page as UTF-8.

    Args:
        data: of `report.report_data`; None for the page of a server, which asks it for data.
    """
    style, script = _part("page.css"), _part("page.js")
    page = Template(_part("page.html")).substitute(
        policy=policy(served=data is None), style=style, script=script, data=_embedded(data)
    )
    # Half a surrogate pair has no UTF-8; as \udXXX it is JSON again, and it is nowhere else.
    return page.encode("utf-8", "backslashreplace")


def policy(*, served: bool) -> str:
    """The Content-Security-Policy of the page, with the hashes of its style and script."""
    connect = "connect-src 'self'; " if served else ""
    return (
        f"default-src 'none'; script-src {_hash('page.js')}; style-src {_hash('page.css')}; "
        f"img-src data:; {connect}base-uri 'none'; form-action 'none'"
    )


def _embedded(data: dict[str, Any] | None) -> str:
    """JSON in which no character can end a script element or begin a comment."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


@cache
def _part(name: str) -> str:
    return files("llpauc.report").joinpath(name).read_text(encoding="utf-8").strip()


def _hash(name: str) -> str:
    digest = hashlib.sha256(_part(name).encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


# --- static documents -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Heading:
    text: str


@dataclass(frozen=True)
class Text:
    """A paragraph; `strong` highlights it."""

    text: str
    strong: bool = False


@dataclass(frozen=True)
class Bullets:
    lines: Sequence[str]


@dataclass(frozen=True)
class Table:
    """A table of text cells.

    Args:
        header: column names.
        rows: one cell per column.
        left: how many columns, from the first, are aligned to the left.
        marked: index of a highlighted row, or None.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int = 1
    marked: int | None = None


@dataclass(frozen=True)
class Code:
    text: str


@dataclass(frozen=True)
class Bars:
    """A horizontal bar chart; HTML only, since a table has the same values.

    Args:
        caption: what is shown.
        values: group -> name -> (value, low, high); low and high are None without an interval.
    """

    caption: str
    values: Mapping[str, Mapping[str, tuple[float, float | None, float | None]]]


Block = Heading | Text | Bullets | Table | Code | Bars


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """
    >>> print(markdown_table(["a", "b"], [["1", "2"]]))
    | a | b |
    |---|---|
    | 1 | 2 |
    """
    lines = ["| " + " | ".join(cells) + " |" for cells in (header, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(header), *lines[1:]])


def bullet_list(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def as_markdown(title: str, blocks: Sequence[Block]) -> str:
    """The blocks as Markdown; text in them is never read as markup."""
    parts = [f"# {_one_line(title)}", *filter(None, map(_markdown, blocks))]
    return "\n\n".join(parts) + "\n"


def _markdown(block: Block) -> str:
    match block:
        case Heading(text):
            return f"## {_one_line(text)}"
        case Text(text, strong):
            return f"**{_one_line(text)}**" if strong else _one_line(text)
        case Bullets(lines):
            return bullet_list([_one_line(line) for line in lines])
        case Code(text):
            return f"```\n{text}\n```"
        case Table(header, rows, marked=marked):
            cells = [
                [f"**{_cell(text)}**" if index == marked else _cell(text) for text in row]
                for index, row in enumerate(rows)
            ]
            return markdown_table([_cell(name) for name in header], cells)
        case Bars():
            return ""


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("<", "&lt;")


def _cell(text: str) -> str:
    return _one_line(text).replace("|", "\\|")


def as_html(title: str, blocks: Sequence[Block]) -> str:
    """The blocks as one HTML file, in the reader's light or dark colours."""
    return Template(_part("document.html")).substitute(
        policy=f"default-src 'none'; style-src {_hash('document.css')}; base-uri 'none'",
        style=_part("document.css"), title=escape(title), body="\n".join(map(_html, blocks)),
    )  # fmt: skip


def _html(block: Block) -> str:
    match block:
        case Heading(text):
            return f"<h2>{escape(text)}</h2>"
        case Text(text, strong):
            return f"<p{_class('strong', strong)}>{escape(text)}</p>"
        case Bullets(lines):
            return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"
        case Code(text):
            return f"<pre>{escape(text)}</pre>"
        case Table(header, rows, left, marked):
            head = _html_row(header, "th", left)
            body = "".join(
                f"<tr{_class('marked', index == marked)}>{_html_row(cells, 'td', left)}</tr>"
                for index, cells in enumerate(rows)
            )
            return (
                f'<div class="wide"><table><thead><tr>{head}</tr></thead>'
                f"<tbody>{body}</tbody></table></div>"
            )
        case Bars(caption):
            return f"<figure>{_svg(block)}<figcaption>{escape(caption)}</figcaption></figure>"


def _html_row(cells: Sequence[str], tag: str, left: int) -> str:
    return "".join(
        f"<{tag}{_class('name', column < left)}>{escape(text)}</{tag}>"
        for column, text in enumerate(cells)
    )


def _class(name: str, applies: bool) -> str:
    return f' class="{name}"' if applies else ""


_WIDTH, _LABELS, _NUMBERS, _STEP = 640, 190, 60, 22  # SVG units: all, left, right, a line
_LONGEST_LABEL = 26  # characters


def _svg(bars: Bars) -> str:
    drawn, top = [], 4

    def text(x: float, label: str, kind: str = "") -> str:
        return f'<text{_class(kind, bool(kind))} x="{x:.1f}" y="{top + 15}">{escape(label)}</text>'

    values = [value for group in bars.values.values() for value in group.values()]
    largest = max((value if high is None else high for value, _, high in values), default=0.0)
    unit = (_WIDTH - _LABELS - _NUMBERS) / (largest or 1.0)
    for group, named in bars.values.items():
        if group:
            drawn.append(text(0, group, "group"))
            top += _STEP
        for index, (name, (value, low, high)) in enumerate(named.items()):
            width, kind = unit * max(value, 0.0), "bar" if index else "bar first"
            end = _LABELS + width
            short = name if len(name) <= _LONGEST_LABEL else f"{name[: _LONGEST_LABEL - 1]}…"
            drawn.append(text(0, short))
            drawn.append(
                f'<rect class="{kind}" x="{_LABELS}" y="{top + 3}" width="{width:.1f}"'
                ' height="16"/>'
            )
            if low is not None and high is not None:
                start, end = (_LABELS + unit * max(bound, 0.0) for bound in (low, high))
                y = top + 11
                drawn.append(
                    f'<line class="interval" x1="{start:.1f}" x2="{end:.1f}" y1="{y}" y2="{y}"/>'
                )
            drawn.append(text(end + 6, f"{value:.4f}"))
            top += _STEP
        top += 6
    label = escape(bars.caption, quote=True)
    return (
        f'<svg viewBox="0 0 {_WIDTH} {top}" role="img" aria-label="{label}">{"".join(drawn)}</svg>'
    )
