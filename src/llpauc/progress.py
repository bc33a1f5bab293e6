"""Progress bars on standard error, of the commands and of `Recommender.fit`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import parent_process
from threading import Timer

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

DESCRIPTION = TextColumn("{task.description}", markup=False)
_PROGRESS_AFTER = 1.0  # seconds: shorter work shows no bar
_bars = 0  # that are open


def is_first_process() -> bool:
    """Whether this process may write messages: the first one of `torchrun`."""
    return os.environ.get("RANK", "0") == "0"


def printable(text: str) -> str:
    r"""The text without control characters, which a terminal would execute.

    >>> printable("a\x1b[2Jb\nc")
    'a?[2Jb\nc'
    """
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)


@contextmanager
def progress(what: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """A progress bar on stderr that appears after a second and is removed at the end.

    Without a total it shows the elapsed time.
    """
    amount = (MofNCompleteColumn(), TimeRemainingColumn()) if total else ()
    columns = (DESCRIPTION, BarColumn(), *amount, TimeElapsedColumn())
    with open_bar(columns, what, total, delay=_PROGRESS_AFTER) as (bar, task):
        yield lambda done: bar.advance(task, done)


@contextmanager
def open_bar(
    columns: Sequence[ProgressColumn], what: str, total: float | None, delay: float = 0.0
) -> Iterator[tuple[Progress, TaskID]]:
    """Nothing is shown if stderr is not a terminal, inside another bar, by worker processes, and by
    processes of `torchrun` other than the first."""
    global _bars
    shown = sys.stderr.isatty() and not _bars and is_first_process() and parent_process() is None
    bar = Progress(*columns, console=Console(stderr=True), transient=True, disable=not shown)
    task = bar.add_task(printable(what), total=total)
    timer = Timer(delay, bar.start)
    _bars += 1
    if shown:
        timer.start()
    try:
        yield bar, task
    finally:
        _bars -= 1
        if shown:
            timer.cancel()
            timer.join()
        if bar.live.is_started:
            bar.stop()
