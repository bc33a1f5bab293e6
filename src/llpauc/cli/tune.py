"""`llpauc tune`: search for the best setting, on validation alone."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields
from shlex import quote
from typing import TYPE_CHECKING, Any, Literal

from llpauc.cli.console import cell, command_name, log, print_json, show_table, time_span
from llpauc.cli.data_options import HeldOut, Seed, TableOptions
from llpauc.cli.outputs import check_folder
from llpauc.options import Count

if TYPE_CHECKING:
    from llpauc.search.tuning.tune import Outcome
    from llpauc.search.tuning.workers import Step, Tuning

_USUAL_BUDGET = "20m"


def tune(
    path: str,
    out: str = "tuning",
    *,
    loss: str = "llpauc",
    models: str | None = None,
    metric: str = "ndcg@20",
    budget: str | None = None,
    trials: Count | None = None,
    space: str | None = None,
    grid: Literal["paper"] | None = None,
    pruner: Literal["median", "halving", "none"] = "median",
    epochs: Count = 100,
    patience: Count = 5,
    storage: str | None = None,
    study: str = "llpauc",
    workers: Count = 1,
    seed: Seed = 0,
    hold_out: HeldOut = 0.1,
    device: str = "cpu",
    table: TableOptions,
    json: bool = False,
) -> None:
    """Search for the loss parameters, model and training that validate best.

    Writes OUT/tuning.md (the trials, best first, with pictures), OUT/trials.csv and OUT/best.toml,
    which llpauc train takes as --config. The test part of a folder has no say. The same command
    goes on with the study after Ctrl-C or a kill; several of them, on machines that share
    --storage, work on it together.

    Args:
        path: a file of interactions, or a folder with train/valid/test files
        out: folder for the results, and for the study where --storage is not given
        loss: losses to choose from, separated by commas
        models: of mf, lightgcn and fism, separated by commas (mf and the recipe's own unless
            given; mf for a grid)
        metric: what to maximise on validation
        budget: time for this call, such as 90s, 20m or 2h (20m unless this or trials is given)
        trials: most trials of the study, earlier calls and other workers included
        space: TOML file that changes what is searched: NAME = value, list or {low, high}
        grid: paper tries alpha 0.1 to 0.9 and beta 0.01 to 0.9 at the paper's 72 pairs, no more
        pruner: how hopeless trials are stopped early: median, halving or none
        epochs: most passes over the training events in a trial
        patience: validations without a better value before a trial ends
        storage: FILE.journal, or a database such as sqlite:///study.db, shared by all workers
        study: name of the study in the storage
        workers: processes at a time, each on its share of the cores
        seed: of the search and of every training
        hold_out: share of each user's events to validate on where there is no valid file
        device: cpu, or a torch device such as cuda
        json: print the trials as JSON
    """
    given = dict(locals())
    from pathlib import Path

    from llpauc.data.interactions import Split
    from llpauc.metrics import parse_metric
    from llpauc.recommend.recipes import recipe
    from llpauc.recommend.sources import as_split
    from llpauc.search.tuning.space import check_names
    from llpauc.search.tuning.storage import check_installed, check_place
    from llpauc.search.tuning.tune import parse_budget, plan_grid, plan_space, validation_split
    from llpauc.search.tuning.tune import tune as search
    from llpauc.search.tuning.workers import Tuning

    check_installed()
    seconds = float("inf")
    if budget is not None or (trials is None and grid is None):
        seconds = parse_budget(budget or _USUAL_BUDGET)
    losses, chosen = _words(loss), _words(models or "mf")
    check_names(losses, chosen)
    wanted = parse_metric(metric).name
    check_folder(out)
    if storage is not None:
        check_place(storage)
    data = table.load(path)
    whole = data if isinstance(data, Split) else as_split(data.interactions)
    held = whole.valid is None
    split = validation_split(whole, hold_out, seed)
    if grid is None:
        own = recipe("auto", whole.train, whole.valid)
        if models is None:
            chosen = tuple(dict.fromkeys((*chosen, own["model"])))
        searched, points = plan_space(split, losses, chosen, wanted, own, space)
    else:
        searched, points = plan_grid(grid, losses, chosen, space)
    del data, whole  # from here on there is no test part
    Path(out).mkdir(parents=True, exist_ok=True)
    tuning = Tuning(
        searched, points, grid is not None, wanted, seed, epochs, patience, device, pruner,
        storage or str(Path(out) / "study.journal"), study, trials, seconds, hold_out, workers,
    )  # fmt: skip
    valid = 0 if split.valid is None else len(split.valid)
    log.info(
        f"tuning {wanted} on {valid:,} validation events, {len(split.train):,} to train on,"
        f" {split.n_users:,} users, {split.n_items:,} items"
    )
    with _trials_progress(tuning) as tell:
        outcome = search(split, tuning, tell)
    config = _config(outcome, tuning, table, hold_out if held else None, path)
    _write(outcome, tuning, out, config, path, _command(given))
    if json:
        print_json(_as_json(outcome, tuning, out))
    else:
        _show(outcome, tuning)
    if outcome.signal is not None:
        log.info("interrupted: the same command goes on with the study")
        raise SystemExit(128 + outcome.signal)
    log.info(f"next: {command_name()} train {quote(path)} --config {quote(out)}/best.toml")


def _command(given: dict[str, Any]) -> str:
    """What to say to get the same again: the options that are not the usual ones."""
    options = {**given, **asdict(given["table"])}
    usual = {
        **{name: spec.default for name, spec in inspect.signature(tune).parameters.items()},
        **asdict(TableOptions()),
    }
    words = [
        f"--{name.replace('_', '-')} {value}"
        for name, value in options.items()
        if name not in ("path", "table", "json") and value != usual[name]
    ]
    return " ".join([f"llpauc tune {given['path']}", *words])


def _words(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word.strip() for word in text.split(",")))


def _config(
    outcome: Outcome, tuning: Tuning, table: TableOptions, hold_out: float | None, path: str
) -> str | None:
    """best.toml: all that `llpauc train` needs beside the data to come to the same figure."""
    from llpauc.cli.training_options import ModelOptions
    from llpauc.search.tuning.report import config_of, toml

    best = outcome.best
    if best is None:
        return None
    config = config_of(best, tuning)
    if hold_out is not None:
        config["hold_out"] = hold_out
    usual = asdict(TableOptions())
    config |= {name: value for name, value in asdict(table).items() if value != usual[name]}
    options = {field.name for kind in (ModelOptions, TableOptions) for field in fields(kind)}
    told = f"trial {best.number}: validation {tuning.metric} {best.value!r} at epoch"
    return toml(config, options | {"seed", "hold_out"}, f"{told} {best.best_epoch}, {path}")


def _write(
    outcome: Outcome, tuning: Tuning, out: str, config: str | None, path: str, source: str
) -> None:
    from pathlib import Path

    from llpauc.search.tuning.report import write_tuning

    for written in write_tuning(outcome, tuning, Path(out), config, path, source):
        log.info(f"wrote {written}")


def _as_json(outcome: Outcome, tuning: Tuning, out: str) -> dict[str, Any]:
    from llpauc.search.tuning.report import BESIDE, as_records, config_of

    best = outcome.best
    beside = {name: outcome.start(name) for name in BESIDE}
    return {
        "metric": tuning.metric,
        "best": None if best is None else {
            "trial": best.number, "value": best.value, "epoch": best.best_epoch,
            "config": config_of(best, tuning),
        },
        **{name: None if row is None else row.value for name, row in beside.items()},
        "popularity": outcome.popularity,
        "seconds": round(outcome.seconds, 2),
        "out": out,
        "trials": as_records(outcome.rows),
    }  # fmt: skip


_ROWS_ON_SCREEN = 10


def _show(outcome: Outcome, tuning: Tuning) -> None:
    from llpauc.search.tuning.report import beside, number

    shown = [
        [
            str(row.number), row.why or row.state,
            ", ".join(f"{name} {number(value)}" for name, value in row.params.items()),
            row.value, row.best_epoch,
        ]
        for row in outcome.rows[:_ROWS_ON_SCREEN]
    ]  # fmt: skip
    columns = ["trial", "ended", "parameters", f"validation {tuning.metric}", "best epoch"]
    title = f"Trials, the best {len(shown)} of {len(outcome.rows)}"
    show_table(title, columns, shown, left=3)
    figures = {told: row.value for told, row in beside(outcome).items()}
    figures["the most popular items"] = outcome.popularity
    print(f"beside it: {', '.join(f'{told} {cell(value)}' for told, value in figures.items())}")


@contextmanager
def _trials_progress(tuning: Tuning) -> Iterator[Callable[[Step], None]]:
    """A line a trial; on a terminal a bar below them."""
    import math
    import sys
    import time

    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.text import Text

    def line(step: Step) -> str:
        row = step.row
        value = "-" if row.value is None else f"{row.value:.4f}"
        how = row.why or row.state
        best = "" if step.best is None else f"  best {step.best.value:.4f} ({step.best.number})"
        left = "" if step.left is None else f"  {time_span(step.left)} left"
        why = f"  {row.told}" if row.told else ""
        return f"trial {row.number:3d}  {value}  {how:<8}  {row.seconds:5.1f} s{best}{left}{why}"

    if not sys.stderr.isatty():
        yield lambda step: log.info(line(step))
        return
    console = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn(),
        TextColumn("{task.fields[left]}", markup=False), console=console, transient=True,
    )  # fmt: skip
    begun = time.time()
    timed = math.isfinite(tuning.budget)
    total = tuning.budget if timed else tuning.trials or len(tuning.points)
    with bar:
        task = bar.add_task("tuning", total=total, left="")

        def show(step: Step) -> None:
            console.print(Text(line(step)))
            done = time.time() - begun if timed else step.ended
            left = "" if step.left is None else f"{time_span(step.left)} left"
            bar.update(task, completed=done, left=left)

        yield show
