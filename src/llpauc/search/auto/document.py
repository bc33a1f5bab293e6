"""A text with tables and bars, once as Markdown and once as a single HTML file.

The HTML needs nothing from elsewhere: its style is in it, its pictures are SVG in the colours of
the page, so that they follow the reader's light or dark setting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from llpauc.research.report import bullet_list, markdown_table


@dataclass(frozen=True)
class Heading:
    text: str


@dataclass(frozen=True)
class Text:
    """A paragraph; `strong` is one that must not be missed."""

    text: str
    strong: bool = False


@dataclass(frozen=True)
class Bullets:
    lines: Sequence[str]


@dataclass(frozen=True)
class Table:
    """Cells are text; the first `left` columns are names. `marked` is a row that stands out."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int = 1
    marked: int | None = None


@dataclass(frozen=True)
class Code:
    text: str


@dataclass(frozen=True)
class Bars:
    """Bars across, in HTML alone: the numbers stand in a table beside it.

    Args:
        caption: what is shown.
        values: group -> name -> (value, low, high); low and high are None without an interval.
    """

    caption: str
    values: Mapping[str, Mapping[str, tuple[float, float | None, float | None]]]


Block = Heading | Text | Bullets | Table | Code | Bars


def as_markdown(title: str, blocks: Sequence[Block]) -> str:
    parts = [f"# {_plain(title)}"]
    for block in blocks:
        if isinstance(block, Heading):
            parts.append(f"## {_plain(block.text)}")
        elif isinstance(block, Text):
            text = _plain(block.text)
            parts.append(f"**{text}**" if block.strong else text)
        elif isinstance(block, Bullets):
            parts.append(bullet_list([_plain(line) for line in block.lines]))
        elif isinstance(block, Table):
            rows = [
                [f"**{_cell(c)}**" if at == block.marked else _cell(c) for c in row]
                for at, row in enumerate(block.rows)
            ]
            parts.append(markdown_table([_cell(name) for name in block.header], rows))
        elif isinstance(block, Code):
            parts.append(f"```\n{block.text}\n```")
    return "\n\n".join(parts) + "\n"


def _plain(text: str) -> str:
    """One line, in which a file's or an item's name is no markup."""
    return " ".join(text.split()).replace("<", "&lt;")


def _cell(text: str) -> str:
    return _plain(text).replace("|", "\\|")


_STYLE = """
:root { color-scheme: light dark; --ink: #1c2330; --soft: #5b6472; --line: #d9dee6;
  --page: #ffffff; --mark: #eef4ff; --bar: #3b6fd4; --other: #a9b4c4; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ef; --soft: #9aa4b2; --line: #333b47;
  --page: #14181f; --mark: #1d2a44; --bar: #6f9bf0; --other: #566172; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.2rem 1rem 4rem; max-width: 56rem; color: var(--ink);
  background: var(--page); font: 16px/1.55 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.25; } h2 { font-size: 1.2rem; margin: 2.2rem 0 .6rem; }
.strong { padding: .8rem 1rem; background: var(--mark); border-left: 4px solid var(--bar);
  font-size: 1.05rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: .92rem; }
th, td { padding: .3rem .7rem; border-bottom: 1px solid var(--line); text-align: right;
  font-variant-numeric: tabular-nums; overflow-wrap: normal; }
th { color: var(--soft); font-weight: 600; vertical-align: bottom; }
.name { text-align: left; } tr.marked td { background: var(--mark); font-weight: 600; }
pre { padding: .8rem 1rem; border: 1px solid var(--line); overflow-x: auto; font-size: .88rem; }
figure { margin: 1rem 0; } figcaption { color: var(--soft); font-size: .9rem; }
svg { width: 100%; height: auto; max-width: 44rem; font: 13px system-ui, sans-serif; }
svg text { fill: var(--ink); } svg .group { font-weight: 600; }
svg .bar { fill: var(--other); } svg .first { fill: var(--bar); }
svg .doubt { stroke: var(--ink); stroke-width: 1.5; }
"""


def as_html(title: str, blocks: Sequence[Block]) -> str:
    head = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body>"
    )
    parts = [head, f"<h1>{escape(title)}</h1>", *map(_html, blocks), "</body></html>\n"]
    return "\n".join(parts)


def _html(block: Block) -> str:
    if isinstance(block, Heading):
        return f"<h2>{escape(block.text)}</h2>"
    if isinstance(block, Text):
        return f"<p{_kind('strong', block.strong)}>{escape(block.text)}</p>"
    if isinstance(block, Bullets):
        return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in block.lines) + "</ul>"
    if isinstance(block, Table):
        return _html_table(block)
    if isinstance(block, Code):
        return f"<pre>{escape(block.text)}</pre>"
    return f"<figure>{_svg(block)}<figcaption>{escape(block.caption)}</figcaption></figure>"


def _kind(name: str, applies: bool) -> str:
    return f' class="{name}"' if applies else ""


def _html_table(table: Table) -> str:
    def row(cells: Sequence[str], tag: str) -> str:
        return "".join(
            f"<{tag}{_kind('name', place < table.left)}>{escape(text)}</{tag}>"
            for place, text in enumerate(cells)
        )

    lines = [
        f"<tr{_kind('marked', at == table.marked)}>{row(cells, 'td')}</tr>"
        for at, cells in enumerate(table.rows)
    ]
    header = f"<thead><tr>{row(table.header, 'th')}</tr></thead>"
    return f'<div class="wide"><table>{header}<tbody>{"".join(lines)}</tbody></table></div>'


_NAMES, _WIDTH, _STEP, _ROOM = 190, 640, 22, 60  # of a picture, in units of its own


def _svg(bars: Bars) -> str:
    most = max(
        (high if high is not None else value for own in bars.values.values()
         for value, _, high in own.values()), default=0.0,
    ) or 1.0  # fmt: skip
    length = _WIDTH - _NAMES - _ROOM
    drawn, top = [], 4
    for group, own in bars.values.items():
        if group:
            drawn.append(f'<text class="group" x="0" y="{top + 15}">{escape(group)}</text>')
            top += _STEP
        for place, (name, (value, low, high)) in enumerate(own.items()):
            wide, kind = length * max(value, 0.0) / most, "bar first" if not place else "bar"
            end = wide
            drawn.append(f'<text x="0" y="{top + 15}">{escape(_short(name))}</text>')
            drawn.append(
                f'<rect class="{kind}" x="{_NAMES}" y="{top + 3}" width="{wide:.1f}" height="16"/>'
            )
            if low is not None and high is not None:
                ends = [_NAMES + length * max(x, 0.0) / most for x in (low, high)]
                drawn.append(
                    f'<line class="doubt" x1="{ends[0]:.1f}" x2="{ends[1]:.1f}" y1="{top + 11}"'
                    f' y2="{top + 11}"/>'
                )
                end = ends[1] - _NAMES
            drawn.append(f'<text x="{_NAMES + end + 6:.1f}" y="{top + 15}">{value:.4f}</text>')
            top += _STEP
        top += 6
    told = escape(bars.caption, quote=True)
    return (
        f'<svg viewBox="0 0 {_WIDTH} {top}" role="img" aria-label="{told}">{"".join(drawn)}</svg>'
    )


def _short(name: str, most: int = 26) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"
