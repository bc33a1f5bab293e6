"""`llpauc auto`: from a raw file to the best lists that fit the budget, and a report."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields
from shlex import quote
from threading import Timer
from typing import TYPE_CHECKING, Any, Literal

from llpauc.cli.console import command_name, log, print_json, show_table, time_span
from llpauc.cli.data_options import Seed, TableOptions
from llpauc.cli.outputs import check_folder
from llpauc.options import Count

if TYPE_CHECKING:
    from llpauc.search.auto import Outcome
    from llpauc.search.auto.contest import Listener


def auto(
    path: str,
    *,
    budget: str = "10m",
    out: str = "auto",
    k: Count = 20,
    seed: Seed = 0,
    how: Literal["auto", "temporal", "per_user", "random"] = "auto",
    table: TableOptions,
    json: bool = False,
) -> None:
    """Find the best recommendations that fit the budget, for all users, with a report.

    Looks at the data, splits them by time (at random where there are no times; a folder with
    train, valid and test files is taken as it is), fits popularity, recent popularity, ItemKNN and
    EASE, trains candidates and searches on while time lasts. Validation chooses; the test part is
    read once, at the end; the winner is fitted on everything. Ctrl-C finishes with the best so far.

    Writes OUT/report.html, report.md, recommendations.parquet, run/ (for llpauc recommend) and
    config.toml (for llpauc train --config).

    Args:
        path: a file of interactions, or a folder with train/valid/test files
        budget: time for all of it, such as 90s, 10m or 2h
        out: folder for the results
        k: length of the lists
        seed: of the split and of every training
        how: to split a single file: temporal (one cut for all users), per_user (each user's own
            last events), random, or auto: by time where there are times
        json: print the outcome as JSON
    """
    from pathlib import Path

    from llpauc.data.interactions import Split
    from llpauc.search.auto import Budget, Facts, deliver, headline, run, write_report
    from llpauc.search.auto.trained import warm_up
    from llpauc.search.tuning.tune import parse_budget
    from llpauc.storage.run_folder import check_replaceable

    begun, seconds = time.monotonic(), parse_budget(budget)
    check_folder(out)
    check_replaceable(Path(out) / "run")
    data = table.load(path)
    events = data if isinstance(data, Split) else data.interactions
    begun += _seconds_of(warm_up)
    time_given = Budget(seconds, begun)
    with _telling(time_given.seconds, begun) as hear:
        outcome = run(events, time_given, k=k, seed=seed, how=how, hear=hear)
        config = _config(outcome, table, path)
        hear.status("writing")
        lists = deliver(outcome, Path(out), k=k, data=path)
        facts = Facts(
            outcome, path, data.notes, time_given, k, lists, command_name(), out, config
        )  # fmt: skip
        write_report(facts, Path(out))
    if json:
        print_json(_as_json(outcome, out, lists, time_given.passed))
    else:
        _show(outcome)
        print(headline(outcome))
    log.info(
        f"{time_span(time_given.passed)} of {time_span(time_given.seconds)}; wrote {out}/:"
        f" report.html, report.md, recommendations.parquet ({lists:,} rows), run, config.toml"
    )
    log.info(
        f"next: open {out}/report.html, or {command_name()} recommend {quote(out)}/run --users ID"
    )
    if outcome.signal is not None:
        raise SystemExit(128 + outcome.signal)


def _seconds_of(warm_up: Callable[[], None]) -> float:
    """How long it took; said aloud where that is long, as the first time after an install."""
    begun = time.monotonic()
    told = Timer(
        3.0, log.info, ["compiling, once after an install: half a minute or so, beside the budget"]
    )
    told.start()
    try:
        warm_up()
    finally:
        told.cancel()
    return time.monotonic() - begun


def _config(outcome: Outcome, table: TableOptions, path: str) -> str:
    """config.toml: what `llpauc train` needs beside the data to fit the winner again."""
    from llpauc.cli.training_options import ModelOptions
    from llpauc.search.tuning.report import toml

    usual = asdict(TableOptions())
    config = {
        **outcome.settings,
        **{name: value for name, value in asdict(table).items() if value != usual[name]},
    }
    options = {field.name for kind in (ModelOptions, TableOptions) for field in fields(kind)}
    told = f"llpauc auto on {path}"
    if outcome.finish is not None:
        winner = outcome.finish.winner
        told = f"{winner.candidate.name}: validation ndcg@20 {winner.value:.6f}; {told}"
    return toml(config, options | {"seed", "hold_out"}, told)


def _show(outcome: Outcome) -> None:
    from llpauc.search.auto.finish import METRICS

    if outcome.finish is None or outcome.measures is None:
        return
    valid = {f.entry.candidate.name: f.entry.valid for f in outcome.finish.finalists}
    figures = outcome.measures.figures
    show_table(
        f"Test, read once: {outcome.measures.users:,} users",
        ["method", "validation ndcg@20", *METRICS, "95% interval, ndcg@20"],
        [
            [
                f"{name} (chosen)" if place == 0 else name, value,
                *[figures[metric][name].mean for metric in METRICS],
                f"{figures[METRICS[0]][name].low:.4f} to {figures[METRICS[0]][name].high:.4f}",
            ]
            for place, (name, value) in enumerate(valid.items())
        ],
    )  # fmt: skip


def _as_json(outcome: Outcome, out: str, lists: int, seconds: float) -> dict[str, Any]:
    entries = [] if outcome.contest is None else outcome.contest.entries
    found = None
    if outcome.finish is not None and outcome.measures is not None:
        found = {
            finalist.entry.candidate.name: {
                metric: asdict(own[finalist.entry.candidate.name])
                for metric, own in outcome.measures.figures.items()
            }
            for finalist in outcome.finish.finalists
        }
    winner = "popularity" if outcome.finish is None else outcome.finish.winner.candidate.name
    return {
        "winner": winner, "settings": outcome.settings, "test": found,
        "tried": [
            {
                "name": entry.candidate.name, "valid": entry.valid, "ended": entry.ended,
                "best_epoch": entry.best_epoch, "seconds": round(entry.seconds, 2),
            }
            for entry in entries
        ],
        "recommendations": lists, "seconds": round(seconds, 2), "out": out,
    }  # fmt: skip


@contextmanager
def _telling(seconds: float, begun: float) -> Iterator[Listener]:
    """A line for each thing done; on a terminal a bar of the budget below them."""
    import sys

    from llpauc.search.auto.contest import Listener

    if not sys.stderr.isatty():
        yield Listener(line=log.info)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.text import Text

    console = Console(stderr=True)
    bar = Progress(
        BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False),
        console=console, transient=True,
    )  # fmt: skip
    with bar:
        task = bar.add_task("", total=seconds)

        def status(text: str) -> None:
            bar.update(task, description=text, completed=min(time.monotonic() - begun, seconds))

        yield Listener(line=lambda text: console.print(Text(text)), status=status)
