"""HTML files that load nothing else, and Markdown.

`render_page` makes the interactive page of a run. `as_html` and `as_markdown` make the same static
document from a list of blocks (headings, paragraphs, tables, bar charts).

A Content-Security-Policy allows only the embedded style and script, by their SHA-256. Text from the
user's data (ids, titles) therefore cannot run, even if it is inserted as HTML by mistake.
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
from typing import Any

_HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
{icon}
<style>{style}</style>
</head>
<body>
"""
_ICON = (
    '<link rel="icon" href="data:image/svg+xml,%3Csvg xmlns=\'http://www.w3.org/2000/svg\''
    " viewBox='0 0 16 16'%3E%3Crect width='16' height='16' rx='3' fill='%230b5c96'/%3E%3Cpath"
    " d='M3 13V9h2V6h3V4h5' fill='none' stroke='white' stroke-width='1.6'/%3E%3C/svg%3E\">"
)


def html_document(
    title: str, body: str, style: str, script: str = "", *, connect: bool = False
) -> str:
    """A whole HTML document.

    In `body`, all text from data is escaped. With `connect`, the script may send requests to the
    server of the document.
    """
    policy = content_security_policy(style, script, connect=connect)
    icon = _ICON if script else ""  # only pages are served, and browsers request an icon
    head = _HEAD.format(policy=policy, title=escape(title), icon=icon, style=style)
    end = f"<script>{script}</script>\n" if script else ""
    return f"{head}{body}\n{end}</body>\n</html>\n"


def content_security_policy(style: str, script: str = "", *, connect: bool = False) -> str:
    """The policy that allows this style and this script, and nothing else."""
    rules = ["default-src 'none'", f"style-src {_hash(style)}", "img-src data:"]
    if script:
        rules.append(f"script-src {_hash(script)}")
    if connect:
        rules.append("connect-src 'self'")
    return "; ".join([*rules, "base-uri 'none'", "form-action 'none'"])


def render_page(data: dict[str, Any] | None = None) -> bytes:
    """The page as UTF-8.

    Args:
        data: from `report_data`; None for the page of a server, which requests its data.
    """
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":  # could end a script element or begin a comment
        text = text.replace(character, f"\\u{ord(character):04x}")
    embedded = f'<script type="application/json" id="data">{text}</script>'
    body = f"{page_part('page.html')}\n{embedded}"
    style, script = page_part("page.css"), page_part("page.js")
    page = html_document("llpauc", body, style, script, connect=data is None)
    # A lone surrogate cannot be encoded as UTF-8; \udXXX is valid JSON, and it occurs only there.
    return page.encode("utf-8", "backslashreplace")


def page_policy(*, served: bool) -> str:
    """The Content-Security-Policy of the page, for the header of a server."""
    return content_security_policy(page_part("page.css"), page_part("page.js"), connect=served)


@cache
def page_part(name: str) -> str:
    """The text of page.html, page.css or page.js."""
    return files("llpauc.report").joinpath(name).read_text(encoding="utf-8").strip()


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
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
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int = 1  # how many columns, from the first, are aligned to the left
    marked: int | None = None  # index of a highlighted row


@dataclass(frozen=True)
class Code:
    text: str
    language: str = ""


@dataclass(frozen=True)
class Bars:
    """A horizontal bar chart; HTML only, since a table has the same values."""

    caption: str
    values: Mapping[str, Mapping[str, tuple[float, float | None, float | None]]]
    """Group -> name -> (value, low, high); low and high are None without an interval."""


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
        case Code(text, language):
            return f"```{language}\n{text}\n```"
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
    body = "\n".join([f"<h1>{escape(title)}</h1>", *map(_html, blocks)])
    return html_document(title, body, page_part("document.css"))


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
