"""The data of the page as plain JSON: runs, some of their users, item titles, a tuning study.

It contains no path: a report may be given to others, and a server does not disclose its folders.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from llpauc.errors import InputError, listing
from llpauc.models.registry import MODELS
from llpauc.recommend import Recommender
from llpauc.recommend.fitted import Fitted
from llpauc.report.users import (
    ItemTable,
    UserView,
    evenly_spaced,
    id_texts,
    spread_users,
    view_users,
)
from llpauc.storage import run_folder
from llpauc.storage.run_folder import finite_number

USERS = 200
MAX_BYTES = 1_900_000  # of the JSON, unless the number of users is given
_SUGGESTED_USERS = 12
_MAX_EPOCHS = 2000
_MAX_TEXT = 200  # characters of a title or of a parameter's value


class PageRun(NamedTuple):
    fitted: Fitted
    summary: dict[str, Any]  # from `run_summary`


def load_page_run(folder: str) -> PageRun:
    """Read a run folder; `InputError` where it is none, or a file in it is damaged."""
    saved = run_folder.load(folder)
    fitted = Recommender.from_run(saved, folder).require_fitted()
    return PageRun(fitted, run_summary(saved, fitted, Path(folder).resolve().name))


# --- runs ---------------------------------------------------------------------------------------


def run_summary(saved: run_folder.SavedRun, fitted: Fitted, name: str) -> dict[str, Any]:
    """Parameters, counts, epochs and test metrics of a run.

    meta.json and metrics.jsonl may have been edited: values of an unexpected type are left out.
    """
    params = saved.meta.get("params")
    params = params if isinstance(params, Mapping) else {}
    model, updates = str(params.get("model", "")), saved.meta.get("updates")
    trained = model not in MODELS or MODELS[model].trained
    hidden = {"model", "loss"} | (set() if trained else {"hold_out", "how", "refit"})
    data = saved.meta.get("data")
    return {
        "name": name,
        "model": model,
        "loss": str(params.get("loss", "")) if trained else None,
        "parameters": {
            name: _parameter(value)
            for name, value in params.items()
            if name not in hidden and value is not None
        },
        "alpha": _fraction(params.get("alpha")),
        "beta": _fraction(params.get("beta")),
        "data": Path(data).name[:_MAX_TEXT] if isinstance(data, str) else None,
        "users": len(fitted.user_ids),
        "items": len(fitted.item_ids),
        "events": int(fitted.histories.nnz),
        "held_out": {part: int(pairs.nnz) for part, pairs in fitted.held_out.items()},
        "updates": len(updates) if isinstance(updates, list) else 0,
        "epochs": _epochs(saved.extra.get("metrics.jsonl", "")),
        "test": _test_metrics(saved.meta.get("test"), model),
        "suggested_users": id_texts(fitted.user_ids, spread_users(fitted, _SUGGESTED_USERS)),
    }


def _epochs(lines: str) -> list[dict[str, Any]]:
    """Number, loss and validation metrics of each epoch; a refit continues the numbering."""
    epochs: list[dict[str, Any]] = []
    for line in lines.splitlines()[:_MAX_EPOCHS]:
        try:
            epoch = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(epoch, dict):
            loss, valid = finite_number(epoch.get("loss")), _metrics(epoch.get("valid"))
            best = epoch.get("best") is True
            epochs.append({"number": len(epochs) + 1, "loss": loss, "valid": valid, "best": best})
    return epochs


def _test_metrics(test: Any, model: str) -> dict[str, dict[str, float | None]]:
    """Model -> metric -> its mean over all test users."""
    if not isinstance(test, Mapping):
        return {}
    if "all" in test:  # `llpauc demo` saves the metrics of its model only
        test = {model: test}
    return {
        str(name): _metrics(groups["all"])
        for name, groups in test.items()
        if isinstance(groups, Mapping) and isinstance(groups.get("all"), Mapping)
    }


def _metrics(values: Any) -> dict[str, float | None]:
    metrics = values if isinstance(values, Mapping) else {}
    return {str(name): finite_number(value) for name, value in metrics.items()}


def _fraction(value: Any) -> float | None:
    fraction = finite_number(value)
    return fraction if fraction is not None and 0 < fraction <= 1 else None


def _parameter(value: Any) -> str | float | bool:
    if isinstance(value, bool):
        return value
    as_number = finite_number(value)
    return str(value)[:_MAX_TEXT] if as_number is None else as_number


# --- a report -----------------------------------------------------------------------------------


def report_data(
    runs: Sequence[PageRun],
    users: int | Sequence[str] | None,
    titles: Mapping[str, str],
    tuning: dict[str, Any] | None,
) -> dict[str, Any]:
    """The argument of `render_page`.

    Args:
        runs: at least one; the users are those of the first.
        users: how many, spread over activity; or their ids. None: at most `USERS`, fewer where the
            report would exceed 2 MB.
        titles: item id -> title.
        tuning: from `read_tuning`.
    """
    ids = _chosen_users(runs[0], users)
    views: list[dict[str, UserView]] = []
    for run in runs:
        user_idx = run.fitted.user_ids.indices(ids)
        known = [ids[n] for n in np.flatnonzero(user_idx >= 0).tolist()]
        of_run = view_users(run.fitted, user_idx[user_idx >= 0]) if known else []
        views.append(dict(zip(known, of_run, strict=True)))
    while True:
        data = _as_json(runs, ids, views, titles, tuning)
        if users is not None or len(ids) == 1:
            return data
        size = len(json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode())
        if size <= MAX_BYTES:
            return data
        fewer = min(len(ids) - 1, int(0.95 * len(ids) * MAX_BYTES / size))
        ids = evenly_spaced(np.array(ids, dtype=object), max(1, fewer)).tolist()


def _chosen_users(run: PageRun, users: int | Sequence[str] | None) -> list[str]:
    user_ids = run.fitted.user_ids
    if users is None or isinstance(users, int):
        return id_texts(user_ids, spread_users(run.fitted, USERS if users is None else users))
    ids = list(dict.fromkeys(users))
    if not ids:
        raise InputError("a report needs at least one user; give ids or a number of users")
    unknown = [repr(ids[n]) for n in np.flatnonzero(user_ids.indices(ids) < 0)]
    if unknown:
        raise InputError(f"unknown users in {run.summary['name']}: {listing(unknown, 5)}")
    return ids


def _as_json(
    runs: Sequence[PageRun],
    ids: Sequence[str],
    views: Sequence[Mapping[str, UserView]],
    titles: Mapping[str, str],
    tuning: dict[str, Any] | None,
) -> dict[str, Any]:
    table = ItemTable(titles)
    names = [run.summary["name"] for run in runs]
    summaries = []
    for n, run in enumerate(runs):  # runs with the same folder name are numbered
        suffix = f" ({names[: n + 1].count(names[n])})" if names.count(names[n]) > 1 else ""
        summaries.append({**run.summary, "name": names[n] + suffix})
    return {
        "version": version("llpauc"),
        "runs": summaries,
        "users": list(ids),
        "views": [
            [by_id[i].as_json(run.fitted.item_ids, table) if i in by_id else None for i in ids]
            for run, by_id in zip(runs, views, strict=True)
        ],
        "items": table.entries,
        "tuning": tuning,
    }


# --- titles -------------------------------------------------------------------------------------


def read_titles(path: str | None) -> dict[str, str]:
    """Item id -> title, from a CSV or TSV file with the columns item and title.

    The first title of an item counts. Items without a title are left out.
    """
    if path is None:
        return {}
    titles: dict[str, str] = {}
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            header = file.readline()
            delimiter = "\t" if "\t" in header else ","
            names = next(csv.reader([header], delimiter=delimiter), [])
            names = [name.strip().lower() for name in names]
            for column in ("item", "title"):
                if column not in names:
                    raise InputError(
                        f"{path}: has no column {column}; its header must name item and title, got:"
                        f" {listing([name[:40] for name in names], 10)}"
                    )
            item, title = names.index("item"), names.index("title")
            for row in csv.reader(file, delimiter=delimiter):
                if len(row) > max(item, title) and row[item] and row[title].strip():
                    titles.setdefault(row[item], " ".join(row[title].split())[:_MAX_TEXT])
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: is not UTF-8 text; save it as UTF-8") from None
    except csv.Error as error:
        raise InputError(f"{path}: is not a table of items and titles: {error}") from None
    if not titles:
        raise InputError(f"{path}: has no row with an item and a title")
    return titles
