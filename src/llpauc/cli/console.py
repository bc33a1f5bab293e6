"""Output of the commands: tables and JSON on stdout; messages and progress on stderr."""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from llpauc.progress import DESCRIPTION, is_first_process, open_bar
from llpauc.progress import printable as printable
from llpauc.progress import progress as progress

_MAX_WIDTH = 100_000  # characters of a table


log = logging.getLogger("llpauc.cli")


class _StderrHandler(logging.Handler):
    """Messages on standard error, so that standard output holds the result alone."""

    def emit(self, record: logging.LogRecord) -> None:
        print(printable(record.getMessage()).replace("\n", " "), file=sys.stderr, flush=True)


def install_log_handler() -> None:
    """Print the messages of the library; of several processes, the first one prints."""
    logger = logging.getLogger("llpauc")
    if not any(isinstance(handler, _StderrHandler) for handler in logger.handlers):
        logger.addHandler(_StderrHandler())
    logger.setLevel(logging.INFO if is_first_process() else logging.CRITICAL)
    logger.propagate = False


def print_text(text: str) -> None:
    print(printable(text))


def print_error(message: str, prog: str = "llpauc") -> None:
    """Print an error as one line on standard error."""
    print(f"{prog}: error: {printable(' '.join(message.split()))}", file=sys.stderr)


def command_name() -> str:
    """The command to type: `llpauc` if it is on the PATH, else its path."""
    if shutil.which("llpauc"):
        return "llpauc"
    return os.path.relpath(sys.argv[0]) if sys.argv[0].endswith("llpauc") else "python -m llpauc"


def print_json(result: Any) -> None:
    """Print JSON, in the first of several processes."""
    if not is_first_process():
        return
    readable = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    text = json.dumps(_plain(result), indent=2, ensure_ascii=not readable, allow_nan=False)
    if not text.replace("\n", "").isprintable():
        text = "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)
    sys.stdout.write(text + "\n")


def _plain(value: Any) -> Any:
    """The value in JSON types; NaN and infinity become null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


class TableData(NamedTuple):
    """A table of strings and numbers; the first `left` columns are aligned to the left."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    left: int = 1


def facts_table(title: str, facts: Mapping[str, Any]) -> TableData:
    """A table with one row per name and value."""
    return TableData(title, ["", "value"], list(facts.items()))


def metrics_table(
    title: str,
    results: Mapping[str, Mapping[str, Mapping[str, float]]],
    seconds: Mapping[str, float] | None = None,
) -> TableData:
    """A table of metrics: one row per model and group of users.

    Args:
        title: of the table.
        results: model -> group -> {"users": count, metric: mean}, see `Evaluation.summary`.
        seconds: model -> time, shown in the row of all users.
    """
    metrics = [name for name in next(iter(results.values()))["all"] if name != "users"]
    rows = []
    for model, summary in results.items():
        for group, values in summary.items():
            row = [model, group, values["users"], *[values[name] for name in metrics]]
            if seconds is not None:
                row.append(f"{seconds[model]:.1f}" if group == "all" else "")
            rows.append(row)
    last = [] if seconds is None else ["seconds"]
    return TableData(title, ["model", "users", "number", *metrics, *last], rows, left=2)


def print_result(result: Any, json: bool, *tables: TableData) -> None:
    """Print the result as JSON, or as tables, in the first of several processes."""
    if json:
        print_json(result)
        return
    for table in tables if is_first_process() else ():
        show_table(*table)


def show_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], left: int = 1
) -> None:
    """Print a table, see `TableData`. It is as wide as its content: no value is cut."""
    table = Table(header_style="bold")
    for position, name in enumerate(columns):
        justify: Literal["left", "right"] = "left" if position < left else "right"
        table.add_column(Text(printable(name)), justify=justify, no_wrap=True)
    for row in rows:
        table.add_row(*[Text(printable(cell(value))) for value in row])  # Text: [/b] is not markup
    console = Console(width=_MAX_WIDTH, highlight=False)
    console.print(Text(printable(title), style="bold"))
    console.print(table)


def cell(value: Any) -> str:
    """A value as text: integers with separators, fractions with four digits."""
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
    >>> time_span(40), time_span(200), time_span(9000)
    ('40 s', '3 min', '2.5 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


@contextmanager
def search_progress() -> Iterator[Callable[[str, float], None]]:
    """A bar on stderr for a search: the callback takes a status and the fraction that is done.

    Messages are printed above the bar.
    """
    columns = (BarColumn(), TimeElapsedColumn(), DESCRIPTION)
    with open_bar(columns, "", 1.0) as (bar, task):

        def update(status: str, fraction: float) -> None:
            bar.update(task, description=printable(status), completed=fraction)

        yield update
