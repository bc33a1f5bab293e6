"""`llpauc tune`: search for the best setting, on validation alone."""

from __future__ import annotations

import inspect
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Literal

from llpauc.cli.console import (
    cell,
    command_name,
    log,
    print_json,
    print_text,
    search_progress,
    show_table,
)
from llpauc.cli.data_options import Events, HeldOut, HoldOutRule, Seed, TableOptions
from llpauc.cli.system import check_folder
from llpauc.cli.training_options import train_config
from llpauc.options import Count

if TYPE_CHECKING:
    from llpauc.search.tuning import TuneResult, Tuning

_DEFAULT_BUDGET = "20m"
_ROWS_SHOWN = 10


def tune(
    path: Events,
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
    how: HoldOutRule = "auto",
    device: str = "cpu",
    table: TableOptions,
    json: bool = False,
) -> None:
    """Search for the loss options, model and training options with the best validation value.

    Writes OUT/tuning.md (the trials, best first, with figures), OUT/trials.csv and OUT/best.toml,
    which llpauc train takes as --config. The test part of a folder is not used. The same command
    continues the study after Ctrl-C or a kill; several of them, on machines that share --storage,
    work on the same study.

    Args:
        path: a file of interactions (or several, a pattern, a folder of parts, - for standard
            input, a database), or a folder with train/valid/test files
        out: folder for the results, and for the study where --storage is not given
        loss: losses to choose from, separated by commas
        models: models to choose from, separated by commas (by default mf and the model of the
            recipe; mf for a grid)
        metric: what to maximise on validation
        budget: time for this call, such as 90s, 20m or 2h (20m if neither this nor trials is given)
        trials: most trials of the study, including earlier calls and other workers
        space: TOML file that changes the search space: NAME = value, list or {low, high}
        grid: paper tries only the paper's 72 pairs of alpha (0.1 to 0.9) and beta (0.01 to 0.9)
        pruner: how trials without prospects are stopped early
        epochs: most passes over the training events in a trial
        patience: validations without a better value before a trial ends
        storage: FILE.journal, or a database such as sqlite:///study.db, shared by all workers
        study: name of the study in the storage
        workers: number of processes, which divide the cores among them
        seed: of the search and of every training
        hold_out: fraction of the events to validate on where there is no valid file
        how: which events to hold out, as for llpauc data split
        device: cpu, or a torch device such as cuda
        json: print the trials as JSON
    """
    given = dict(locals())
    from llpauc.data.interactions import Split
    from llpauc.metrics import parse_metric
    from llpauc.recommend.recipes import recipe
    from llpauc.recommend.sources import as_split
    from llpauc.search import tuning as search
    from llpauc.search.space import check_names, plan_grid, plan_space
    from llpauc.search.study import check_installed, check_storage
    from llpauc.search.trials import parse_budget
    from llpauc.search.tuning_report import config_of, write_tuning
    from llpauc.storage.atomic import named_errors, writer_lock

    # Check every option before the data are read.
    check_installed()
    seconds = float("inf")
    if budget is not None or (trials is None and grid is None):
        seconds = parse_budget(budget or _DEFAULT_BUDGET)
    losses, model_names = _words(loss), _words(models or "mf")
    check_names(losses, model_names)
    metric = parse_metric(metric).name
    check_folder(out, path, *([] if space is None else [space]), replaced=False)
    if storage is not None:
        check_storage(storage)

    # Plan the search; the test part is not used from here on.
    data = table.load(path)
    whole = data if isinstance(data, Split) else as_split(data.interactions)
    split = search.validation_split(whole, hold_out, seed, how)
    for text in split.notes:
        log.info(text)
    if grid is None:
        settings = recipe("single", whole.train, whole.valid)
        if models is None:
            model_names = tuple(dict.fromkeys((*model_names, settings["model"])))
        searched, points = plan_space(split, losses, model_names, metric, settings, space)
    else:
        searched, points = plan_grid(grid, losses, model_names, space)
    held_out = {"hold_out": hold_out, "how": how} if whole.valid is None else {}
    del data, whole
    Path(out).mkdir(parents=True, exist_ok=True)
    tuning = search.Tuning(
        searched, points, grid is not None, metric, seed, epochs, patience, device, pruner,
        storage or str(Path(out) / "study.journal"), study, trials, seconds, hold_out, workers,
    )  # fmt: skip
    log.info(
        f"tuning {metric} on {len(split.valid or ()):,} validation events and"
        f" {len(split.train):,} training events, {split.n_users:,} users, {split.n_items:,} items"
    )

    # Search, and write the results.
    with search_progress() as progress, named_errors(Path(out)):
        result = search.tune(split, tuning, progress)
    config, best = None, result.best
    if best is not None:
        comment = f"trial {best.number}: validation {metric} {best.value!r} at epoch"
        comment += f" {best.best_epoch}, {path}"
        config = train_config({**config_of(best, tuning), **held_out}, table, comment)
    with writer_lock(out, wait=60.0):  # several commands may work on one study
        files = write_tuning(result, tuning, Path(out), config, path, _command(given))
    for written in files:
        log.info(f"wrote {written}")
    if json:
        print_json(_as_json(result, tuning, out))
    else:
        _show(result, tuning)
    if result.signal is not None:
        log.info("interrupted: run the same command to continue the study")
        raise SystemExit(128 + result.signal)
    log.info(f"next: {command_name()} train {quote(path)} --config {quote(out)}/best.toml")


def _command(given: dict[str, Any]) -> str:
    """The command line with the options that differ from their defaults."""
    options = {**given, **asdict(given["table"])}
    parameters = inspect.signature(tune).parameters.items()
    defaults = {name: parameter.default for name, parameter in parameters}
    defaults |= asdict(TableOptions())
    words = [
        f"--{name.replace('_', '-')} {value}"
        for name, value in options.items()
        if name not in ("path", "table", "json") and value != defaults[name]
    ]
    return " ".join([f"llpauc tune {given['path']}", *words])


def _words(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word.strip() for word in text.split(",")))


def _as_json(result: TuneResult, tuning: Tuning, out: str) -> dict[str, Any]:
    from llpauc.search.tuning_report import COMPARED, as_rows, compared_trials, config_of

    best, compared = result.best, compared_trials(result)
    return {
        "metric": tuning.metric,
        "best": None if best is None else {
            "trial": best.number, "value": best.value, "epoch": best.best_epoch,
            "config": config_of(best, tuning),
        },
        **{name: compared[name].value if name in compared else None for name in COMPARED},
        "popularity": result.popularity,
        "seconds": round(result.seconds, 2),
        "out": out,
        "trials": as_rows(result.records),
    }  # fmt: skip


def _show(result: TuneResult, tuning: Tuning) -> None:
    from llpauc.search.tuning_report import COMPARED, compared_trials, format_value

    rows = [
        [
            str(record.number), record.ended or record.state,
            ", ".join(f"{name} {format_value(value)}" for name, value in record.params.items()),
            record.value, record.best_epoch,
        ]
        for record in result.records[:_ROWS_SHOWN]
    ]  # fmt: skip
    columns = ["trial", "ended", "options", f"validation {tuning.metric}", "best epoch"]
    show_table(f"Trials, the best {len(rows)} of {len(result.records)}", columns, rows, left=3)
    values = {COMPARED[name]: record.value for name, record in compared_trials(result).items()}
    values["the most popular items"] = result.popularity
    compared = ", ".join(f"{text} {cell(value)}" for text, value in values.items())
    print_text(f"compared with: {compared}")
