"""Statistics of a data set, and findings that may spoil training or evaluation."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt

from llpauc.data.columns import EPOCH
from llpauc.data.filters import is_duplicate
from llpauc.data.interactions import Interactions, Split, before
from llpauc.data.recency import choose_recency

_MOST_SECONDS = 253402300799.0  # the last second of the year 9999
_DAY = 86400.0
_MANY_EVENTS, _MANY_MEDIANS = 200, 50  # events of a probable bot: at least, and times the median
_EVENTS_PER_DAY, _OF_CATALOGUE = 1000, 0.5  # likewise, on active days; of at least this many items:
_CATALOGUE = 500
_SINGLE_FRACTION, _SINGLE_ITEMS = 0.2, 100  # of the items that have one event; in a catalogue of
_GAP_DAYS, _GAP_RATIO, _GAP_EVENTS = 7, 5, 1000  # times the second longest; between so many events


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
    odd += [*_odd_users(parts), *_odd_items(item_events), *_odd_times(parts)]
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
            count = "they count once" if part.weights is None else "their weights add up"
            equal = int(is_duplicate(part).sum()) if part.timestamps is not None else 0
            more = f"; {equal:,} are equal to another in every column (--drop-duplicates)"
            odd.append(
                f"{name}: {repeated:,} events repeat a user-item pair ({repeated / len(part):.1%});"
                f" {count}{more if equal else ''}"
            )
        odd += [
            f"{name}: only one {what}" for what in ("user", "item") if statistics[f"{what}s"] == 1
        ]
        everything = int((np.diff(part.matrix.indptr) == part.n_items).sum())
        if statistics["users"] > 1 and everything:
            odd.append(f"{name}: {everything:,} users have every item; none left to recommend")
    return odd


def _odd_users(parts: dict[str, Interactions]) -> Iterator[str]:
    """Probable bots and test accounts."""
    first = next(iter(parts.values()))
    users = np.concatenate([part.users for part in parts.values()])
    events = np.bincount(users, minlength=first.n_users)
    items = np.diff(reduce(operator.add, (part.matrix for part in parts.values())).indptr)
    median = float(np.median(events[events > 0])) if len(users) else 0.0
    many = events > max(_MANY_EVENTS, _MANY_MEDIANS * median)
    of_catalogue = items / max(first.n_items, 1)
    if first.n_items >= _CATALOGUE:
        many |= of_catalogue > _OF_CATALOGUE
    times = _dates(parts)
    days = np.ones(first.n_users)
    if times is not None:
        active = np.unique(np.stack([users, (times // _DAY).astype(np.int64)]), axis=1)[0]
        days = np.maximum(np.bincount(active, minlength=first.n_users), 1)
        many |= events / days > _EVENTS_PER_DAY
    if not many.any() or many.all():
        return
    most = int(np.argmax(np.where(many, events, -1)))
    rate = "" if times is None else f", {events[most] / days[most]:,.0f} per active day"
    yield (
        f"{int(many.sum()):,} users may be bots or test accounts, such as"
        f" {first.user_ids.ids(np.array([most]))[0]!r}: {events[most]:,} events{rate},"
        f" {of_catalogue[most]:.0%} of the items; the median user has {median:,.0f} events"
        f" (--max-events-per-user {int(events[~many].max())})"
    )


def _odd_items(item_events: npt.NDArray[np.int64]) -> Iterator[str]:
    single, n = int((item_events == 1).sum()), len(item_events)
    if n >= _SINGLE_ITEMS and single >= _SINGLE_FRACTION * n:
        yield (
            f"{single:,} of {n:,} items ({single / n:.0%}) have one event, from which little can be"
            " learned (--min-item-events 5)"
        )


def _odd_times(parts: dict[str, Interactions]) -> Iterator[str]:
    """Events in the future, timestamps that are no dates, and gaps."""
    times = _dates(parts)
    if times is None:
        return
    now = datetime.now(UTC)
    future = times > now.timestamp()
    if future.any():
        yield (
            f"{int(future.sum()):,} events are in the future, the last on {_moment(times.max())}"
            f" (--until {now:%Y-%m-%d})"
        )
    is_date = times >= EPOCH
    if not is_date.all():
        yield (
            f"{int((~is_date).sum()):,} timestamps are not dates, such as {times[~is_date][0]:.15g}"
            f" (--since {_moment(times[is_date].min())[:10]})"
        )
    times = np.sort(times[is_date & ~future])
    gaps = np.diff(times)
    if len(gaps) < _GAP_EVENTS:
        return
    second, longest = np.partition(gaps, len(gaps) - 2)[-2:]
    if longest >= _GAP_DAYS * _DAY and longest >= _GAP_RATIO * second:
        at = int(np.argmax(gaps))
        yield (
            f"no event from {_moment(times[at])} to {_moment(times[at + 1])}"
            f" ({longest / _DAY:,.0f} days; every other gap is at most {second / _DAY:,.1f} days):"
            f" events may be missing (--since {_moment(times[at + 1])[:10]})"
        )


def _dates(parts: dict[str, Interactions]) -> npt.NDArray[np.float64] | None:
    """The timestamps of all events; None where some have none, or most are not dates."""
    given = [part.timestamps for part in parts.values() if part.timestamps is not None]
    if len(given) < len(parts):
        return None
    times = np.concatenate(given)
    return times if len(times) and np.isfinite(times).all() and np.median(times) >= EPOCH else None


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
