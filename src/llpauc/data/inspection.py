"""Statistics of a data set, and findings that may spoil training or evaluation."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt

from llpauc.data.interactions import Interactions, Split, before
from llpauc.data.recency import choose_recency

_MOST_SECONDS = 253402300799.0  # the last second of the year 9999


@dataclass(frozen=True)
class Inspection:
    """Statistics of each part and of the whole, and unusual findings.

    Args:
        parts: part name -> statistic -> value.
        whole: statistics over all parts together.
        odd: one sentence per finding.
        item_events: events of each item over all parts, descending.
        user_events: events of each user over all parts, descending.
    """

    parts: dict[str, dict[str, Any]]
    whole: dict[str, Any]
    odd: tuple[str, ...]
    item_events: npt.NDArray[np.int64]
    user_events: npt.NDArray[np.int64]


def inspect(data: Interactions | Split) -> Inspection:
    """Inspect one table, or the parts of a split."""
    parts = {"data": data} if isinstance(data, Interactions) else data.parts
    first = next(iter(parts.values()))
    pairs = reduce(operator.add, (part.matrix for part in parts.values())).nnz
    statistics: dict[str, Any] = {
        "users": first.n_users,
        "items": first.n_items,
        "interactions": sum(len(part) for part in parts.values()),
        "sparsity": 1 - int(pairs) / max(first.n_users * first.n_items, 1),
    }
    columns = [(part.users, part.items) for part in parts.values()]
    users, items = (np.concatenate(column) for column in zip(*columns, strict=True))
    user_events = -np.sort(-np.bincount(users, minlength=first.n_users))
    item_events = -np.sort(-np.bincount(items, minlength=first.n_items))
    for what, events in (("user", user_events), ("item", item_events)):
        statistics[f"events per {what}, median"] = float(np.median(events)) if len(events) else 0.0
        statistics[f"events per {what}, most"] = int(events.max(initial=0))
    for percent in (1, 10):
        top = item_events[: top_count(len(item_events), percent=percent)].sum()
        name = f"fraction of events on the top {percent}% items"
        statistics[name] = float(top / max(item_events.sum(), 1))
    statistics["Gini of the items"] = _gini(item_events)
    described = {name: _describe(part) for name, part in parts.items()}
    odd = _odd_in_parts(parts, described)
    if isinstance(data, Split):
        odd += _odd_between(data, described)
    recency = choose_recency([data] if isinstance(data, Interactions) else before(data, "test"))
    if recency.values:
        plain, recent = recency.values[math.inf], recency.values[recency.half_life]
        statistics[f"popularity, {recency.metric}"] = plain
        statistics[f"recent popularity, {recency.metric}"] = recent
    if recency.has_drift:
        remedy = "split it by time (--how temporal)"
        if isinstance(data, Split):
            remedy = "learn from all events before the test (llpauc evaluate --history all)"
        odd.append(
            f"popularity changes over time: on {recency.on} recent popularity ({recency}) has"
            f" {recency.metric} {recent:.4f}, popularity over all events {plain:.4f}; {remedy} and"
            " weight events by age"
        )
    return Inspection(described, statistics, tuple(odd), item_events, user_events)


def _describe(part: Interactions) -> dict[str, Any]:
    statistics: dict[str, Any] = {
        "interactions": len(part),
        "users": len(np.unique(part.users)),
        "items": len(np.unique(part.items)),
        "duplicates": part.duplicates,
    }
    if part.ratings is not None and len(part):
        statistics |= {
            "rating, least": float(part.ratings.min()),
            "rating, mean": float(part.ratings.mean(dtype=np.float64)),
            "rating, most": float(part.ratings.max()),
        }
    if part.timestamps is not None and len(part):
        statistics |= {
            "first event": _moment(part.timestamps.min()),
            "last event": _moment(part.timestamps.max()),
        }
    return statistics


def _moment(seconds: float) -> str:
    """A date if the number can be one, else the number."""
    if 1e8 < seconds < _MOST_SECONDS:
        return datetime.fromtimestamp(float(seconds), UTC).strftime("%Y-%m-%d %H:%M")
    return f"{seconds:.15g}"


def _odd_in_parts(
    parts: dict[str, Interactions], described: dict[str, dict[str, Any]]
) -> list[str]:
    odd: list[str] = []
    for name, part in parts.items():
        statistics = described[name]
        repeated = statistics["duplicates"]
        if repeated:
            odd.append(
                f"{name}: {repeated:,} events repeat a user-item pair ({repeated / len(part):.1%});"
                " they count once"
            )
        odd += [
            f"{name}: only one {what}" for what in ("user", "item") if statistics[f"{what}s"] == 1
        ]
        everything = int((np.diff(part.matrix.indptr) == part.n_items).sum())
        if statistics["users"] > 1 and everything:
            odd.append(f"{name}: {everything:,} users have every item; none left to recommend")
    return odd


def _odd_between(split: Split, described: dict[str, dict[str, Any]]) -> list[str]:
    odd = []
    train = split.train.matrix
    in_train = {
        "users": np.diff(train.indptr) > 0,
        "items": np.bincount(train.indices, minlength=split.n_items) > 0,
    }
    for name in ("valid", "test"):
        part = split.parts.get(name)
        if not part:
            continue
        for earlier in ("train", "valid") if name == "test" and split.valid else ("train",):
            leaks = int(part.matrix.multiply(split.parts[earlier].matrix).nnz)
            described[name][f"also in {earlier}"] = leaks
            if leaks:
                odd.append(
                    f"{name}: {leaks:,} pairs are in {earlier} too; evaluation masks them, so they"
                    " cannot be recommended"
                )
        for what, indices in (("users", part.users), ("items", part.items)):
            present = np.unique(indices)
            cold = int((~in_train[what][present]).sum())
            described[name][f"cold {what}"] = cold / len(present)
            if cold:
                remedy = (
                    "they get the fallback; compare warm and cold users separately"
                    if what == "users"
                    else "no model trained on train alone can rank them"
                )
                odd.append(
                    f"{name}: {cold:,} of {len(present):,} {what} ({cold / len(present):.0%})"
                    f" have no training event; {remedy}"
                )
    return odd


def top_count(n: int, *, percent: int) -> int:
    """The number of the top `percent` of n: rounded up, at least one, in integer arithmetic."""
    return max(1, -(-n * percent // 100))


def _gini(descending: npt.NDArray[np.int64]) -> float:
    """0 if all items have equally many events; near 1 if one item has them all."""
    n, total = len(descending), descending.sum()
    if not total:
        return 0.0
    rank = np.arange(n, 0, -1, dtype=np.float64)
    return float(2 * (rank * descending).sum() / (n * total) - (n + 1) / n)
