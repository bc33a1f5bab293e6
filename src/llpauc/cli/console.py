"""What a person sees: tables, notes, progress. What a program sees: JSON on stdout, all of it."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Timer
from typing import Any, Literal

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

_PROGRESS_AFTER = 1.0  # seconds: shorter work shows no bar
_WIDEST = 100_000  # characters of a table


def note(text: str) -> None:
    """A remark for people, on stderr, so that stdout stays the result alone."""
    if not _silent():
        print(text, file=sys.stderr)


def _silent() -> bool:
    """Of the processes that torchrun started, the first one talks."""
    return os.environ.get("RANK", "0") != "0"


def command_name() -> str:
    """How the reader calls this program: by its name where that is found, else by its path."""
    if shutil.which("llpauc"):
        return "llpauc"
    return os.path.relpath(sys.argv[0]) if sys.argv[0].endswith("llpauc") else "python -m llpauc"


def print_json(result: Any) -> None:
    readable = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    text = json.dumps(_plain(result), indent=2, ensure_ascii=not readable, allow_nan=False)
    sys.stdout.write(text + "\n")


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


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leave it to `main`; rich would end the process with a failure."""
        raise  # it is called while the error is being handled


def show_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], *, left: int = 1
) -> None:
    """A table of strings and numbers; the first `left` columns are names, the rest figures.

    It is as wide as it needs to be: a figure cut short is worse than a line that wraps.
    """
    table = Table(header_style="bold")
    for place, name in enumerate(columns):
        justify: Literal["left", "right"] = "left" if place < left else "right"
        table.add_column(Text(name), justify=justify, no_wrap=True)
    for row in rows:
        table.add_row(*[Text(cell(value)) for value in row])  # an id such as [/b] is no markup
    console = _Console(width=_WIDEST, highlight=False)
    console.print(Text(title, style="bold"))
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


def time_span(seconds: float) -> str:
    """
    >>> time_span(40), time_span(200)
    ('40 s', '3 min')
    """
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


@contextmanager
def progress(what: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """A bar on stderr that appears after a second and leaves no trace; nothing when piped.

    Without a total, or where nobody advances it, it says that work goes on, and for how long.
    """
    if not sys.stderr.isatty() or _silent():
        yield lambda done: None
        return
    amount = (MofNCompleteColumn(), TimeRemainingColumn()) if total else ()
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        *amount,
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    task = bar.add_task(what, total=total)
    later = Timer(_PROGRESS_AFTER, bar.start)
    later.start()
    try:
        yield lambda done: bar.advance(task, done)
    finally:
        later.cancel()
        later.join()
        if bar.live.is_started:
            bar.stop()
