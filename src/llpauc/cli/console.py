"""What a person sees: tables, notes, progress. What a program sees: JSON on stdout, all of it."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

_PROGRESS_AFTER = 1.0  # seconds: shorter work shows no bar


def note(text: str) -> None:
    """A remark for people, on stderr, so that stdout stays the result alone."""
    print(text, file=sys.stderr)


def print_json(result: Any) -> None:
    json.dump(_plain(result), sys.stdout, indent=2, ensure_ascii=False, allow_nan=False)
    sys.stdout.write("\n")


def _plain(value: Any) -> Any:
    """JSON's own types; a number that is none (NaN, infinity) becomes null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def show_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], *, left: int = 1
) -> None:
    """A table of strings and numbers; the first `left` columns are names, the rest figures."""
    table = Table(title=title, title_justify="left", title_style="bold", header_style="bold")
    for place, name in enumerate(columns):
        table.add_column(name, justify="left" if place < left else "right", no_wrap=True)
    for row in rows:
        table.add_row(*[cell(value) for value in row])
    # A pipe has no width: cutting columns there would lose what a program reads.
    console = Console(width=None if sys.stdout.isatty() else 200, highlight=False)
    console.print(table)


def cell(value: Any) -> str:
    """A number as people read it: counts with separators, shares with four digits."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4f}" if abs(value) < 100 else f"{value:,.1f}"
    return str(value)


@contextmanager
def progress(what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A bar on stderr that appears after a second and leaves no trace; nothing when piped."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    import time

    begun = time.monotonic()
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(compact=True),
        console=Console(stderr=True),
        transient=True,
    )
    task = bar.add_task(what, total=total)
    shown = False

    def advance(done: int) -> None:
        nonlocal shown
        bar.advance(task, done)
        if not shown and time.monotonic() - begun > _PROGRESS_AFTER:
            bar.start()
            shown = True

    try:
        yield advance
    finally:
        if shown:
            bar.stop()
