"""What is in the data, and what is odd about them: the look before anything is trained."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from llpauc.data.histories import before
from llpauc.data.interactions import Interactions, Split
from llpauc.data.recency import Recency, choose_recency

_MOST_SECONDS = 253402300799.0  # the last second of the year 9999


@dataclass(frozen=True)
class Inspection:
    """Figures by part, figures of the whole, and sentences about what is odd.

    Args:
        parts: part name -> figure name -> value.
        whole: figures over all parts together.
        odd: one sentence a finding; empty where nothing is.
        item_events: events of each item over all parts, descending (for the long-tail picture).
        user_events: events of each user over all parts, descending.
    """

    parts: dict[str, dict[str, Any]]
    whole: dict[str, Any]
    odd: tuple[str, ...]
    item_events: npt.NDArray[np.int64]
    user_events: npt.NDArray[np.int64]


def inspect(data: Interactions | Split) -> Inspection:
    """Look at one table, or at the parts of a split."""
    parts = {"data": data} if isinstance(data, Interactions) else data.parts
    whole = next(iter(parts.values()))
    events = sum(len(part) for part in parts.values())
    users = np.concatenate([part.users for part in parts.values()])
    items = np.concatenate([part.items for part in parts.values()])
    user_events = -np.sort(-np.bincount(users, minlength=whole.n_users))
    item_events = -np.sort(-np.bincount(items, minlength=whole.n_items))
    figures: dict[str, Any] = {
        "users": whole.n_users,
        "items": whole.n_items,
        "interactions": events,
        "sparsity": 1 - _pairs(parts.values()) / max(whole.n_users * whole.n_items, 1),
        "events per user, median": float(np.median(user_events)) if len(user_events) else 0.0,
        "events per user, most": int(user_events[0]) if len(user_events) else 0,
        "events per item, median": float(np.median(item_events)) if len(item_events) else 0.0,
        "events per item, most": int(item_events[0]) if len(item_events) else 0,
        "share of events on the top 1% items": _top_share(item_events, percent=1),
        "share of events on the top 10% items": _top_share(item_events, percent=10),
        "Gini of the items": _gini(item_events),
    }
    described = {name: _describe(part) for name, part in parts.items()}
    odd = [*_odd_in_parts(parts, described)]
    if isinstance(data, Split):
        odd += _odd_between(data, described)
    moving = choose_recency([data] if isinstance(data, Interactions) else before(data, "test"))
    figures |= _drift(moving)
    if moving.moves:
        odd.append(_told(moving, isinstance(data, Split)))
    return Inspection(described, figures, tuple(odd), item_events, user_events)


def _describe(part: Interactions) -> dict[str, Any]:
    figures: dict[str, Any] = {
        "interactions": len(part),
        "users": len(np.unique(part.users)),
        "items": len(np.unique(part.items)),
        "duplicates": part.duplicates,
    }
    if part.ratings is not None and len(part):
        figures |= {
            "rating, least": float(part.ratings.min()),
            "rating, mean": float(part.ratings.mean(dtype=np.float64)),
            "rating, most": float(part.ratings.max()),
        }
    if part.timestamps is not None and len(part):
        figures |= {
            "first event": _moment(part.timestamps.min()),
            "last event": _moment(part.timestamps.max()),
        }
    return figures


def _moment(seconds: float) -> str:
    """A date where the number can be one, else the number itself."""
    if 1e8 < seconds < _MOST_SECONDS:
        return datetime.fromtimestamp(float(seconds), UTC).strftime("%Y-%m-%d %H:%M")
    return f"{seconds:.15g}"


def _odd_in_parts(
    parts: dict[str, Interactions], described: dict[str, dict[str, Any]]
) -> list[str]:
    odd = []
    for name, part in parts.items():
        figures = described[name]
        if figures["duplicates"]:
            odd.append(
                f"{name}: {figures['duplicates']:,} events repeat a user-item pair"
                f" ({figures['duplicates'] / len(part):.1%}); they count once"
            )
        odd += [
            f"{name}: only one {what[:-1]}" for what in ("users", "items") if figures[what] == 1
        ]
        if len(part) and figures["users"] > 1:
            per_user = np.diff(part.matrix.indptr)
            everything = int((per_user == part.n_items).sum())
            if everything:
                odd.append(f"{name}: {everything:,} users have every item; none left to recommend")
    return odd


def _odd_between(split: Split, described: dict[str, dict[str, Any]]) -> list[str]:
    odd = []
    train = split.train.matrix
    in_train = {"users": np.diff(train.indptr) > 0, "items": np.bincount(
        train.indices, minlength=split.n_items) > 0}  # fmt: skip
    for name in ("valid", "test"):
        part = split.parts.get(name)
        if part is None or not len(part):
            continue
        for earlier in [split.train] + ([split.valid] if name == "test" and split.valid else []):
            leaks = int(part.matrix.multiply(earlier.matrix).nnz)
            described[name][f"also in {_name_of(split, earlier)}"] = leaks
            if leaks:
                odd.append(
                    f"{name}: {leaks:,} pairs stand in {_name_of(split, earlier)} too; masked in"
                    " evaluation, so they cannot be found"
                )
        for what, rows in (("users", part.users), ("items", part.items)):
            present = np.unique(rows)
            cold = int((~in_train[what][present]).sum())
            described[name][f"cold {what}"] = cold / len(present)
            if cold:
                remedy = (
                    "they get a fallback; read warm and cold users apart"
                    if what == "users"
                    else "no model trained on train alone can know them"
                )
                odd.append(
                    f"{name}: {cold:,} of {len(present):,} {what} ({cold / len(present):.0%})"
                    f" have no training event; {remedy}"
                )
    return odd


def _drift(moving: Recency) -> dict[str, Any]:
    """How well popularity of all events and of the recent ones tells what came last."""
    if not moving.figures:
        return {}
    return {
        f"popularity, {moving.metric}": moving.figures[math.inf],
        f"recent popularity, {moving.metric}": moving.figures[moving.half_life],
    }


def _told(moving: Recency, is_split: bool) -> str:
    remedy = (
        "learn from all that lies before the test (llpauc evaluate --history all)"
        if is_split
        else "split it by time (--how temporal)"
    )
    return (
        f"tastes move with time: on {moving.on} recent popularity ({moving}) gets"
        f" {moving.metric} {moving.figures[moving.half_life]:.4f}, popularity over all events"
        f" {moving.figures[math.inf]:.4f}; {remedy} and weigh events by age"
    )


def _name_of(split: Split, part: Interactions) -> str:
    return next(name for name, other in split.parts.items() if other is part)


def _pairs(parts: Iterable[Interactions]) -> int:
    """Distinct user-item pairs over all parts; repeated events make a matrix no denser."""
    first, *others = (part.matrix for part in parts)
    return int(sum(others, start=first).nnz)


def top_count(n: int, *, percent: int) -> int:
    """How many are the top `percent` of n: rounded up, one at least, in whole numbers."""
    return max(1, -(-n * percent // 100))


def _top_share(events: npt.NDArray[np.int64], *, percent: int) -> float:
    top = events[: top_count(len(events), percent=percent)]
    return float(top.sum() / max(events.sum(), 1))


def _gini(descending: npt.NDArray[np.int64]) -> float:
    """0 where every item has as many events, towards 1 where one has them all."""
    n, total = len(descending), descending.sum()
    if not total:
        return 0.0
    place = np.arange(n, 0, -1, dtype=np.float64)
    return float(2 * (place * descending).sum() / (n * total) - (n + 1) / n)
