"""`llpauc runs`: list run folders with their metrics, or compare them."""

from __future__ import annotations

import json as json_text
import math
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llpauc.cli.console import TableData, log, print_result, printable
from llpauc.cli.system import CHECKPOINT
from llpauc.errors import InputError, listing

if TYPE_CHECKING:
    from llpauc.storage.run_folder import RunSummary

_LEVELS = 2  # folder levels below the given one that are searched
_MAX_CELL = 60  # characters of a table cell: the content of meta.json is arbitrary
_COSTS = ("epochs", "seconds", "size")  # lower is better
_SORT_KEYS = ("date", *_COSTS)  # sort keys other than metrics
_ENVIRONMENT = ("llpauc", "git_commit", "python", "packages", "cpu", "threads")


@dataclass(frozen=True)
class Run:
    """What a run folder records about itself.

    Args:
        name: its path.
        date: when it was written, ISO 8601 in UTC.
        model, loss, data: by name; the loss is None for a model that is not trained.
        valid: metric -> value in the epoch that validation chose.
        test: metric -> mean over all test users.
        best_epoch: the chosen epoch; None without validation.
        epochs, seconds: of training.
        size: of all files, in bytes.
        settings: every setting in its config.
        environment: versions and processor, such as "torch" or "cpu model".
    """

    name: str
    date: str
    model: str
    loss: str | None
    data: str | None
    valid: Mapping[str, float]
    test: Mapping[str, float]
    best_epoch: int | None
    epochs: int
    seconds: float
    size: int
    settings: Mapping[str, Any]
    environment: Mapping[str, Any]

    @property
    def metrics(self) -> dict[str, float]:
        parts = {"valid": self.valid, "test": self.test}
        return {f"{part} {name}": v for part, values in parts.items() for name, v in values.items()}


def runs(
    folders: list[str],
    *,
    sort: str = "date",
    compare: bool = False,
    verify: bool = False,
    json: bool = False,
) -> None:
    """List run folders, or compare them.

    Searches the given folders and two levels below. Weights are not read, so that many runs are
    listed quickly: large files are checked for their length, small files for their checksum.
    Broken runs are listed with the reason.

    Args:
        folders: run folders, or folders that contain run folders
        sort: sort by this, best first: a metric such as ndcg@20 (of the test part if any run has
            it, else of validation), "test ndcg@20", "valid ndcg@20", epochs, seconds, size or date
        compare: show the settings that differ and all metrics, with the differences from the
            first run
        verify: check the SHA-256 of every file; exit code 1 if a run is broken
        json: print the result as JSON
    """
    found, broken = _read_runs(folders, verify)
    if compare:
        if len(found) < 2:
            reasons = "".join(f"; {reason}" for reason in broken.values())
            raise InputError(f"a comparison needs two runs, there is {len(found)}{reasons}")
        _show_comparison(found if sort == "date" else _sorted(found, sort), broken, json)
    else:
        _show_list(_sorted(found, sort), broken, json)
    if verify and broken:
        raise SystemExit(1)


# --- finding ------------------------------------------------------------------------------------


def _read_runs(folders: Sequence[str], verify: bool) -> tuple[list[Run], dict[str, str]]:
    """The runs in these folders, and for each broken one the reason."""
    from llpauc.storage.run_folder import summarize

    found, broken, visited = [], {}, set()
    for folder in folders:
        if not Path(folder).is_dir():
            raise InputError(f"there is no folder {folder}; give a run, or a folder of runs")
        paths = list(_run_folders(Path(folder), _LEVELS))
        if not paths:
            raise InputError(f"no run in {folder}, nor {_LEVELS} levels below; train one there")
        for path in paths:
            if path.resolve() in visited:
                continue
            visited.add(path.resolve())
            try:
                found.append(describe(str(path), summarize(path, verify=verify)))
            except (InputError, OSError) as error:
                broken[str(path)] = str(error)
    return found, broken


def _run_folders(folder: Path, levels: int) -> Iterator[Path]:
    """`folder` if it is a run, else the runs below it; symbolic links are not followed.

    Two of the file names of a run are enough, so that a run that has lost a file is listed.
    """
    from llpauc.storage.manifest import MANIFEST
    from llpauc.storage.run_folder import RUN_FOLDER

    try:
        with os.scandir(folder) as entries:
            content = sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        log.info(f"{folder}: cannot be read: {error.strerror}")
        return
    if len({entry.name for entry in content} & {MANIFEST, *RUN_FOLDER.required}) >= 2:
        yield folder
        return
    for entry in content if levels else []:
        path = folder / entry.name
        if entry.name.endswith(CHECKPOINT):
            log.info(f"{path}: a checkpoint; `llpauc train --resume` continues from it")
        elif entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
            yield from _run_folders(path, levels - 1)


# --- reading ------------------------------------------------------------------------------------


def describe(name: str, summary: RunSummary) -> Run:
    """A run from its small files; what is missing or has the wrong type is left out."""
    params = summary.meta.get("params")
    if not isinstance(params, dict) or not isinstance(params.get("model"), str):
        raise InputError(f"{name}: meta.json has no params; this is not a recommender")
    (config,) = _read_extra(name, summary.extra, "config.toml")
    settings = config or params  # format 1 had no config
    environment = _flat_environment(*_read_extra(name, summary.extra, "environment.json"))
    epochs = _read_extra(name, summary.extra, "metrics.jsonl")
    (timings,) = _read_extra(name, summary.extra, "timings.json")
    best: dict[str, Any] = next(
        (epoch for epoch in reversed(epochs) if epoch.get("best") is True), {}
    )
    valid = _numbers(best.get("valid"))
    if not valid:  # `llpauc auto` records the value in meta.json
        metric = str(settings.get("valid_metric", "ndcg@20"))
        valid = _numbers({metric: summary.meta.get("valid")})
    data, loss, number = summary.meta.get("data"), settings.get("loss"), best.get("number")
    # Format 1 recorded the seconds of an epoch in metrics.jsonl.
    seconds = timings.get("seconds", [epoch.get("seconds") for epoch in epochs])
    seconds = seconds if isinstance(seconds, list) else []
    return Run(
        name=name,
        date=_date(environment.pop("time", None), summary.written),
        model=params["model"],
        loss=str(loss) if loss is not None and (epochs or "epochs" in settings) else None,
        data=os.path.basename(data.rstrip("/")) if isinstance(data, str) else None,
        valid=valid,
        test=_test_metrics(summary.meta.get("test"), params["model"]),
        best_epoch=number if isinstance(number, int) else None,
        epochs=len(epochs),
        seconds=sum(_numbers(dict(enumerate(seconds))).values(), 0.0),
        size=summary.size,
        settings=settings,
        environment=environment,
    )


def _read_extra(name: str, extra: Mapping[str, str], file: str) -> list[dict[str, Any]]:
    """The tables in a small file of the run; an empty table if the file does not exist."""
    try:
        text = extra.get(file, "")
        if file == "config.toml":
            return [tomllib.loads(text)]
        documents = text.splitlines() if file == "metrics.jsonl" else [text or "{}"]
        tables = [json_text.loads(document) for document in documents]
        if not all(isinstance(table, dict) for table in tables):
            raise ValueError("not a JSON object")
    except (ValueError, RecursionError) as error:
        raise InputError(f"{name}/{file}: cannot be read: {' '.join(str(error).split())}") from None
    return tables


def _flat_environment(environment: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {"time": environment.get("time")}
    for key in _ENVIRONMENT:
        value = environment.get(key)
        if isinstance(value, dict):
            prefix = "" if key == "packages" else f"{key} "
            flat |= {f"{prefix}{name}": item for name, item in value.items()}
        elif value is not None:
            flat[key] = value
    return flat


def _date(recorded: Any, modified: float) -> str:
    try:
        date = datetime.fromisoformat(recorded).astimezone(UTC)
    except (TypeError, ValueError, OverflowError):
        date = datetime.fromtimestamp(modified, UTC)
    return date.isoformat(timespec="seconds")


def _test_metrics(test: Any, model: str) -> dict[str, float]:
    """Means over all users, from a table by model and group, by group, or by metric."""
    for key in (model, "all"):
        if isinstance(test, dict) and isinstance(test.get(key), dict):
            test = test[key]
    return _numbers(test)


def _numbers(values: Any) -> dict[str, float]:
    from llpauc.storage.run_folder import finite_number

    pairs = values.items() if isinstance(values, dict) else ()
    numbers = {str(name): finite_number(value) for name, value in pairs if name != "users"}
    return {name: value for name, value in numbers.items() if value is not None}


# --- printing -----------------------------------------------------------------------------------


def _metric_names(found: Sequence[Run]) -> list[str]:
    """Metrics of all runs, validation first."""
    names = dict.fromkeys(name for run in found for name in run.metrics)
    return sorted(names, key=lambda name: name.startswith("test"))


def _sorted(found: Sequence[Run], key: str) -> list[Run]:
    """Best first; runs without the metric come last."""
    if key in _SORT_KEYS:
        return sorted(found, key=lambda run: getattr(run, key), reverse=key not in _COSTS)
    names = _metric_names(found)
    name = next((n for n in (key, f"test {key}", f"valid {key}") if n in names), "")
    if not name and found:
        choices = listing([*sorted(names), *_SORT_KEYS])
        raise InputError(f"no run has {key!r}; sort by one of: {choices}")
    return sorted(found, key=lambda run: run.metrics.get(name, -math.inf), reverse=True)


def _show_list(found: Sequence[Run], broken: Mapping[str, str], json: bool) -> None:
    metrics = _metric_names(found)
    rows = [
        [
            *map(_text, (run.name, run.date[:16].replace("T", " "), run.model, run.loss, run.data)),
            *[run.metrics.get(name) for name in metrics],
            run.epochs,
            f"{run.seconds:,.1f}",
            f"{run.size / 1e6:,.2f}",
        ]
        for run in found
    ]
    columns = ["run", "date (UTC)", "model", "loss", "data", *metrics, *_COSTS[:2], "MB"]
    tables = [TableData(f"Runs: {len(found):,}", columns, rows, left=5)] if rows else []
    _print({"runs": [asdict(run) for run in found]}, json, tables, broken)


def _show_comparison(found: Sequence[Run], broken: Mapping[str, str], json: bool) -> None:
    settings = _differing([run.settings for run in found])
    environment = _differing([{"data": run.data, **run.environment} for run in found])
    values: dict[str, list[Any]] = {
        name: [run.metrics.get(name) for run in found] for name in _metric_names(found)
    } | {name: [getattr(run, name) for run in found] for name in _COSTS}
    differences = {
        name: [None if None in (value, first) else value - first for value in others]
        for name, (first, *others) in values.items()
    }
    result = {
        "runs": [run.name for run in found],
        "settings": settings,
        "environment": environment,
        "metrics": values,
        "differences": differences,
    }
    names = [_text(run.name) for run in found]
    tables = []
    for title, table in (("Settings that differ", settings), ("Data and environment", environment)):
        rows = [[_text(name), *map(_text, cells)] for name, cells in table.items()]
        if rows:
            tables.append(TableData(title, ["", *names], rows))
        elif not json:
            log.info(f"{title}: none")
    columns = ["", *names, *[f"{name} - {names[0]}" for name in names[1:]]]
    metrics = [[_text(name), *values[name], *differences[name]] for name in values]
    _print(result, json, [*tables, TableData("Metrics", columns, metrics)], broken)


def _print(
    result: dict[str, Any], json: bool, tables: list[TableData], broken: Mapping[str, str]
) -> None:
    """Print the result, followed by the broken runs."""
    if broken:
        rows = [[_text(name), _text(reason, len(reason))] for name, reason in broken.items()]
        tables = [*tables, TableData(f"Broken: {len(broken):,}", ["run", "reason"], rows, left=2)]
    reasons = [{"run": name, "reason": reason} for name, reason in broken.items()]
    print_result({**result, "broken": reasons}, json, *tables)


def _differing(tables: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The entries that are not equal in all tables; None stands for a missing entry."""
    names = dict.fromkeys(name for table in tables for name in table)
    rows = {name: [table.get(name) for table in tables] for name in names}
    return {name: row for name, row in rows.items() if any(value != row[0] for value in row)}


def _text(value: Any, longest: int = _MAX_CELL) -> str:
    """One printable line."""
    text = "-" if value is None else printable(str(value)).replace("\n", "?").replace("\t", "?")
    return text if len(text) <= longest else f"{text[: longest - 3]}..."
