"""`llpauc runs`: the run folders there are, how they did, and where they differ."""

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

from llpauc.cli.console import log, print_json, show_table
from llpauc.cli.outputs import CHECKPOINT

if TYPE_CHECKING:
    from llpauc.storage.run_folder import RunSummary

_LEVELS = 2  # of folders below the one that is given
_LONGEST = 60  # characters of a cell: what a run says of itself may be anything
_COSTS = ("epochs", "seconds", "size")  # the less the better
_OWN = ("date", *_COSTS)  # what runs are sorted by, beside metrics
_SURROUNDINGS = ("llpauc", "git_commit", "python", "packages", "cpu", "threads")


@dataclass(frozen=True)
class Run:
    """A run as it tells of itself.

    Args:
        name: its path, as found from the folder that was given.
        date: when it was written, ISO 8601 in UTC.
        model, loss, data: by name; the loss is None for a model without training.
        valid: metric -> its value in the epoch that validation chose.
        test: metric -> its mean over all test users, where it was measured.
        best_epoch: the one that was chosen; None without validation.
        epochs, seconds: of training.
        size: of all files, in bytes.
        settings: every setting that its config names.
        surroundings: versions and processor, as "torch" or "cpu model".
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
    surroundings: Mapping[str, Any]


def runs(
    folders: list[str],
    *,
    sort: str = "date",
    compare: bool = False,
    verify: bool = False,
    json: bool = False,
) -> None:
    """List the run folders found, or compare them.

    Looks in the folders given and two levels below. Weights are not read, so that many runs are
    listed at once: a run is looked at for files that are missing or of the wrong length, and its
    small files are checked against the manifest. What is broken is listed with the reason.

    Args:
        folders: run folders, or folders of them
        sort: best first by this figure: a metric such as ndcg@20 (of the test where any run has it,
            else of validation), "test ndcg@20", "valid ndcg@20", epochs, seconds, size or date
        compare: show the settings that differ and all figures side by side, with the differences
            from the first
        verify: check the SHA-256 of every file; exit code 1 where a run is broken
        json: print the outcome as JSON
    """
    from llpauc.errors import InputError

    found, broken = _look(folders, verify)
    if compare:
        if len(found) < 2:
            why = "".join(f"; {reason}" for reason in broken.values())
            raise InputError(f"to compare takes two runs, there is {len(found)}{why}")
        if sort != "date":
            found = _sorted(found, sort)
        _compare(found, broken, json)
    else:
        _list(_sorted(found, sort), broken, json)
    if verify and broken:
        raise SystemExit(1)


# --- finding ------------------------------------------------------------------------------------


def _look(folders: Sequence[str], verify: bool) -> tuple[list[Run], dict[str, str]]:
    """The runs in these folders in the order they were found, and why others are none."""
    from llpauc.errors import InputError
    from llpauc.storage.run_folder import summarize

    found, broken, known = [], {}, set()
    for folder in folders:
        if not Path(folder).is_dir():
            raise InputError(f"there is no folder {folder}; give a run, or a folder of runs")
        places = list(_run_folders(Path(folder), _LEVELS))
        if not places:
            raise InputError(f"no run in {folder}, nor {_LEVELS} levels below; train one there")
        for place in places:
            if place.resolve() in known:
                continue
            known.add(place.resolve())
            try:
                found.append(describe(str(place), summarize(place, verify=verify)))
            except (InputError, OSError) as error:  # a disk that fails is a reason too
                broken[str(place)] = str(error)
    return found, broken


def _run_folders(folder: Path, levels: int) -> Iterator[Path]:
    """`folder`, if it is a run, else those below it; links below are not followed.

    A run that has lost a file is one still: two of its names are enough.
    """
    from llpauc.storage.manifest import MANIFEST
    from llpauc.storage.run_folder import RUN_FOLDER

    try:
        with os.scandir(folder) as entries:
            there = sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        log.info(f"{folder}: not looked into: {error.strerror}")
        return
    if len({entry.name for entry in there} & {MANIFEST, *RUN_FOLDER.required}) >= 2:
        yield folder
        return
    for entry in there if levels else []:
        if entry.name.endswith(CHECKPOINT):
            log.info(
                f"{folder / entry.name}: a checkpoint; `llpauc train --resume` goes on from it"
            )
        elif entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
            yield from _run_folders(folder / entry.name, levels - 1)


# --- reading ------------------------------------------------------------------------------------


def describe(name: str, seen: RunSummary) -> Run:
    """What a summarize at a run tells; anything may be missing or odd, and is then left out."""
    from llpauc.errors import InputError

    params = seen.meta.get("params")
    if not isinstance(params, dict) or not isinstance(params.get("model"), str):
        raise InputError(f"{name}: meta.json has no params; this is no recommender")
    (config,) = _read_extra(name, seen.extra, "config.toml")
    settings = config or params  # format 1 had no config
    surroundings = _flat(*_read_extra(name, seen.extra, "environment.json"))
    epochs = _read_extra(name, seen.extra, "metrics.jsonl")
    (timings,) = _read_extra(name, seen.extra, "timings.json")
    chosen = [epoch for epoch in epochs if epoch.get("best") is True]
    valid = _figures(chosen[-1].get("valid")) if chosen else {}
    if not valid and _number(seen.meta.get("valid")) is not None:  # of `llpauc auto`
        valid = _figures({str(settings.get("valid_metric", "ndcg@20")): seen.meta["valid"]})
    data, loss = seen.meta.get("data"), settings.get("loss")
    best = chosen[-1].get("number") if chosen else None
    return Run(
        name=name,
        date=_date(surroundings.pop("time", None), seen.written),
        model=params["model"],
        loss=str(loss) if loss is not None and (epochs or "epochs" in settings) else None,
        data=os.path.basename(data.rstrip("/")) if isinstance(data, str) else None,
        valid=valid,
        test=_test(seen.meta.get("test"), params["model"]),
        best_epoch=best if isinstance(best, int) else None,
        epochs=len(epochs),
        seconds=_seconds(timings, epochs),
        size=seen.size,
        settings=settings,
        surroundings=surroundings,
    )


def _seconds(timings: Mapping[str, Any], epochs: Sequence[Mapping[str, Any]]) -> float:
    """Of training; runs of format 1 have them with the other figures of an epoch."""
    told = timings.get("seconds")
    each = told if isinstance(told, list) else [epoch.get("seconds") for epoch in epochs]
    return sum((_number(seconds) or 0.0 for seconds in each), 0.0)


def _read_extra(name: str, extra: Mapping[str, str], file: str) -> list[dict[str, Any]]:
    """The tables in a small file of the run, one or several; none where there is no such file."""
    from llpauc.errors import InputError

    try:
        text = extra.get(file, "")
        if file == "config.toml":
            return [tomllib.loads(text)]
        whole = text.splitlines() if file == "metrics.jsonl" else [text or "{}"]
        tables = [json_text.loads(part) for part in whole]
        if not all(isinstance(table, dict) for table in tables):
            raise ValueError("it is not what a run writes")
    except (ValueError, RecursionError) as error:
        raise InputError(f"{name}/{file}: cannot be read: {' '.join(str(error).split())}") from None
    return tables


def _flat(environment: Mapping[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {"time": environment.get("time")}
    for key in _SURROUNDINGS:
        value = environment.get(key)
        if isinstance(value, dict):
            prefix = "" if key == "packages" else f"{key} "
            kept |= {f"{prefix}{part}": said for part, said in value.items()}
        elif value is not None:
            kept[key] = value
    return kept


def _date(told: Any, written: float) -> str:
    try:
        when = datetime.fromisoformat(told).astimezone(UTC)
    except (TypeError, ValueError, OverflowError):
        when = datetime.fromtimestamp(written, UTC)
    return when.isoformat(timespec="seconds")


def _test(told: Any, model: str) -> dict[str, float]:
    """Means over all users: `told` has them by model and group, by group, or plainly."""
    for key in (model, "all"):
        if isinstance(told, dict) and isinstance(told.get(key), dict):
            told = told[key]
    return _figures(told)


def _figures(told: Any) -> dict[str, float]:
    pairs = told.items() if isinstance(told, dict) else ()
    numbers = {str(name): _number(value) for name, value in pairs if name != "users"}
    return {name: value for name, value in numbers.items() if value is not None}


def _number(value: Any) -> float | None:
    from llpauc.storage.run_folder import finite_number

    return finite_number(value)


# --- showing ------------------------------------------------------------------------------------


def _all_figures(run: Run) -> dict[str, float]:
    return {
        f"{part} {name}": value
        for part in ("valid", "test")
        for name, value in getattr(run, part).items()
    }


def _figure_names(found: Sequence[Run]) -> list[str]:
    """Of all runs, validation first."""
    names = dict.fromkeys(name for run in found for name in _all_figures(run))
    return sorted(names, key=lambda name: name.startswith("test"))


def _sorted(found: Sequence[Run], by: str) -> list[Run]:
    """Best first: high metrics, new dates, short times, small sizes; those without it last."""
    from llpauc.errors import InputError, listing

    if by in _OWN:
        return sorted(found, key=lambda run: getattr(run, by), reverse=by not in _COSTS)
    names = {name for run in found for name in _all_figures(run)}
    name = next((n for n in (by, f"test {by}", f"valid {by}") if n in names), None)
    if name is None and found:
        raise InputError(f"no run has {by!r}; sort by one of: {listing([*sorted(names), *_OWN])}")
    return sorted(found, key=lambda run: _all_figures(run).get(name or "", -math.inf), reverse=True)


def _list(found: Sequence[Run], broken: Mapping[str, str], json: bool) -> None:
    if json:
        print_json({"runs": [asdict(run) for run in found], "broken": _as_rows(broken)})
        return
    figures = _figure_names(found)
    if found:
        show_table(
            f"Runs: {len(found):,}",
            ["run", "date (UTC)", "model", "loss", "data", *figures, "epochs", "seconds", "MB"],
            [
                [
                    _text(run.name), run.date[:16].replace("T", " "), _text(run.model),
                    _text(run.loss), _text(run.data),
                    *[_all_figures(run).get(name) for name in figures],
                    run.epochs, f"{run.seconds:,.1f}", f"{run.size / 1e6:,.2f}",
                ]
                for run in found
            ],
            left=5,
        )  # fmt: skip
    _show_broken(broken)


def _compare(found: Sequence[Run], broken: Mapping[str, str], json: bool) -> None:
    first, *others = found
    settings = _differing([run.settings for run in found])
    around = _differing([{"data": run.data, **run.surroundings} for run in found])
    rows: dict[str, list[Any]] = {
        name: [_all_figures(run).get(name) for run in found] for name in _figure_names(found)
    } | {name: [getattr(run, name) for run in found] for name in _COSTS}
    minus = {
        name: [_minus(value, base) for value in values] for name, (base, *values) in rows.items()
    }
    if json:
        print_json({
            "runs": [run.name for run in found], "settings": settings, "surroundings": around,
            "figures": rows, "differences": minus, "broken": _as_rows(broken),
        })  # fmt: skip
        return
    heads = [_text(run.name) for run in found]
    for title, table in (("Settings that differ", settings), ("Data and surroundings", around)):
        told = [[_text(name), *map(_text, values)] for name, values in table.items()]
        if told:
            show_table(title, ["", *heads], told)
        else:
            log.info(f"{title}: none")
    show_table(
        "Figures",
        ["", *heads, *[f"{_text(run.name)} - {_text(first.name)}" for run in others]],
        [[_text(name), *rows[name], *minus[name]] for name in rows],
    )
    _show_broken(broken)


def _differing(tables: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """What is not the same in all, by name; None where it is not there."""
    names = dict.fromkeys(name for table in tables for name in table)
    rows = {name: [table.get(name) for table in tables] for name in names}
    return {name: row for name, row in rows.items() if any(value != row[0] for value in row)}


def _minus(value: float | None, other: float | None) -> float | None:
    return None if value is None or other is None else value - other


def _as_rows(broken: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"run": name, "reason": reason} for name, reason in broken.items()]


def _show_broken(broken: Mapping[str, str]) -> None:
    if broken:
        rows = [[_text(name), _text(why, len(why))] for name, why in broken.items()]
        show_table(f"Broken: {len(broken):,}", ["run", "why"], rows, left=2)


def _text(value: Any, longest: int = _LONGEST) -> str:
    """One line of characters that a terminal only shows."""
    if value is None:
        return "-"
    text = "".join(c if c.isprintable() else "?" for c in str(value))
    return text if len(text) <= longest else f"{text[: longest - 3]}..."
