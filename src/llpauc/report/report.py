"""Everything a report holds, as plain JSON: runs, some users of theirs, a tuning."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np

from llpauc.errors import InputError, listing
from llpauc.report.people import ItemTable, View, as_json, evenly, spread_users, view_users
from llpauc.report.runs import PageRun

USERS = 200
MOST_BYTES = 1_900_000  # of the JSON, where nobody has said how many users there shall be


def report_data(
    runs: Sequence[PageRun],
    users: int | Sequence[str] | None,
    titles: Mapping[str, str],
    tuning: dict[str, Any] | None,
) -> dict[str, Any]:
    """What `document.render` takes.

    Args:
        runs: at least one; the users are those of the first.
        users: how many, spread over activity; or which, by id. None: as many of `USERS` as make a
            report of less than 2 MB.
        titles: of items, by id.
        tuning: of `tuning.read_tuning`.
    """
    ids = _chosen(runs[0], users)
    views = [_views(run, ids) for run in runs]
    while True:
        data = _data(runs, ids, views, titles, tuning)
        if users is not None or len(ids) == 1:
            return data
        size = len(json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode())
        if size <= MOST_BYTES:
            return data
        fewer = min(len(ids) - 1, int(0.95 * len(ids) * MOST_BYTES / size))
        ids = evenly(np.array(ids, dtype=object), max(1, fewer)).tolist()


def _chosen(run: PageRun, users: int | Sequence[str] | None) -> list[str]:
    known = run.fitted.user_ids
    if users is None or isinstance(users, int):
        rows = spread_users(run.fitted, USERS if users is None else users)
        chosen: list[str] = known.text.take(rows).to_pylist()
        return chosen
    ids = list(dict.fromkeys(users))
    if not ids:
        raise InputError("a report without users shows nothing; name some, or how many")
    found = known.indices(ids)
    if (found < 0).any():
        unknown = [repr(ids[place]) for place in np.flatnonzero(found < 0)]
        raise InputError(f"unknown users in {run.facts['name']}: {listing(unknown, 5)}")
    return ids


def _views(run: PageRun, ids: Sequence[str]) -> dict[str, View]:
    """The views of those users that the run knows."""
    rows = run.fitted.user_ids.indices(ids)
    known = [text for text, row in zip(ids, rows, strict=True) if row >= 0]
    return dict(zip(known, view_users(run.fitted, rows[rows >= 0]), strict=True)) if known else {}


def _data(
    runs: Sequence[PageRun],
    ids: Sequence[str],
    views: Sequence[Mapping[str, View]],
    titles: Mapping[str, str],
    tuning: dict[str, Any] | None,
) -> dict[str, Any]:
    table = ItemTable(titles)
    shown = [
        [as_json(own[text], run.fitted.item_ids, table) if text in own else None for text in ids]
        for run, own in zip(runs, views, strict=True)
    ]
    return {
        "version": version("llpauc"),
        "runs": _named_apart([run.facts for run in runs]),
        "users": list(ids),
        "views": shown,
        "items": table.entries,
        "tuning": tuning,
    }


def _named_apart(facts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Runs of one name in several folders are numbered."""
    names = [fact["name"] for fact in facts]
    told = []
    for place, fact in enumerate(facts):
        name = fact["name"]
        again = f" ({names[: place + 1].count(name)})" if names.count(name) > 1 else ""
        told.append({**fact, "name": name + again})
    return told
