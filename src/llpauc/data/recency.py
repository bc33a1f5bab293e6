"""The age of events, their weights, and whether recent events predict better than old ones.

An event has the weight 0.5^(age / half-life). Its age is measured in one of three ways (`AGES`):
by its timestamp, by the number of events after it, or by the number of parts of the split after
its part. The half-life is chosen on the data before the part under test, never on that part.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from llpauc.data.interactions import Interactions, join, pair_codes
from llpauc.data.splits import times_of
from llpauc.errors import InputError, choose
from llpauc.metrics import TOPK_METRICS, parse_metric

Floats = npt.NDArray[np.float64]
By = Literal["time", "rows", "parts"]
Events = Interactions | Sequence[Interactions]

AGES = {"time": "seconds", "rows": "events", "parts": "parts"}  # how age is measured -> unit
METRIC = "ndcg@20"  # by which a half-life is chosen
_HALVINGS = range(1, 11)  # half-lives tried: from 1/2 to 1/1024 of the history
_PART_HALVINGS = (1, 2, 4, 10, 20)  # per part; with the last, older parts only break ties
_TAIL = 10  # of a single part, the last tenth is predicted
_CLEAR_ERRORS, _CLEAR_GAIN, _CLEAR_USERS = 3.0, 0.05, 30
_SHUFFLES = 19  # a meaningless order is accepted in 1 of 20 cases
_CROSSED_GAIN = 0.5  # halves of one part are similar: a small gain there is not drift


def age_weights(events: Events, half_life: float, by: By | None = None) -> Floats:
    """The weight of each event, in (0, 1]: 0.5^(age / half_life), 1 for the newest.

    Args:
        events: a table, or parts in the order of time; weights of several are concatenated.
        half_life: age at which the weight is 1/2, above 0, in the unit of `by`: seconds, events
            or parts; with infinity all weights are equal.
        by: a name in `AGES`; by default time if every event has a timestamp, else rows.

    >>> data = Interactions.of(["a", "b", "c"], ["x", "y", "x"], timestamps=[0, 3600, 7200])
    >>> age_weights(data, half_life=3600).tolist()
    [0.25, 0.5, 1.0]
    """
    parts = _parts(events)
    return _weights(event_ages(parts, by or _default_by(parts)), half_life)


def event_ages(events: Events, by: By) -> Floats:
    """The age of each event, 0 for the newest.

    >>> data = Interactions.of(["a", "b", "c"], ["x", "y", "x"])
    >>> event_ages(data, "rows").tolist(), event_ages([data, data], "parts").tolist()
    ([2.0, 1.0, 0.0], [1.0, 1.0, 1.0, 0.0, 0.0, 0.0])
    """
    choose(AGES, by, "way to measure age (by)")
    parts = _parts(events)
    if by == "time":
        times = np.concatenate([times_of(part, "age by time") for part in parts])
        return np.asarray(times.max(initial=-np.inf) - times)
    sizes = [len(part) for part in parts]
    if by == "parts":
        return np.repeat(np.arange(len(parts), dtype=np.float64)[::-1], sizes)
    return np.arange(sum(sizes), dtype=np.float64)[::-1]


def recent_counts(
    events: Events, half_life: float, by: By | None = None
) -> npt.NDArray[np.float32]:
    """The users of each item, each weighted by the age of the latest event of the pair, and by the
    weights of its events.

    With an infinite half-life these are the counts of plain popularity.

    >>> data = Interactions.of(["a", "b", "c"], ["old", "old", "new"], timestamps=[0, 0, 60])
    >>> recent_counts(data, half_life=30).tolist(), recent_counts(data, math.inf).tolist()
    ([1.0, 0.5], [1.0, 2.0])
    """
    parts = _parts(events)
    ages = event_ages(parts, by or _default_by(parts))
    return _counts(*_latest(parts, ages), half_life, parts[0].n_items)


@dataclass(frozen=True)
class Recency:
    """A half-life and how it was chosen.

    Args:
        half_life: in the unit of `by`; infinity if no finite one was clearly better.
        by: how age is measured.
        metric: the metric that was compared.
        values: half-life -> mean of the metric, for every one tried; empty if there was nothing
            to choose on.
        on: the events the values were measured on, for messages.
    """

    half_life: float
    by: By
    metric: str
    values: Mapping[float, float]
    on: str

    @property
    def has_drift(self) -> bool:
        """Whether recent events predict clearly better than all events with equal weight."""
        return math.isfinite(self.half_life)

    def __str__(self) -> str:
        if not self.has_drift:
            return "no half-life: all events have the same weight"
        if self.by != "time":
            digits = f"{self.half_life:,.0f}" if self.half_life >= 10 else f"{self.half_life:.2g}"
            return f"half-life {digits} {AGES[self.by]}"
        for unit, seconds in (("days", 86400), ("hours", 3600)):
            if self.half_life >= 2 * seconds:
                return f"half-life {self.half_life / seconds:,.1f} {unit}"
        return f"half-life {self.half_life:,.3g} seconds"


def given_recency(parts: Sequence[Interactions], half_life: float, by: By | None = None) -> Recency:
    """A half-life given by the user, in the unit of `by`, or of these parts' ages."""
    return Recency(half_life, by or _default_by(parts), METRIC, {}, "nothing: it was given")


def choose_recency(parts: Sequence[Interactions], metric: str = METRIC, seed: int = 0) -> Recency:
    """Choose the half-life with which the earlier parts predict the last part best.

    Popularity is counted on the earlier parts with every half-life of a grid (their age span
    halved again and again, and infinity) and ranks the items of the last part's users. A finite
    half-life is chosen if it is `clearly_better` than infinity. If age is the order of the rows, it
    must also beat each of 19 random orders, because few hits can look like drift by chance. Of a
    single part, the last tenth is predicted.

    If there are no timestamps and the order of the rows has no effect, the parts may still differ
    in time. Then the earlier parts and half of the last part's users predict the other half, and
    vice versa, with decreasing weights of the earlier parts. This favours the last part, whose
    halves are of the same time, so a larger gain is required.

    Args:
        parts: the events before the part under test, the oldest first, with common id maps.
        metric: a top-K metric.
        seed: of the random orders.
    """
    *earlier, last = given = [part for part in parts if len(part)] or [parts[0]]
    by = _default_by(given)
    unordered = by == "rows" and any(part.shuffled for part in given)
    on = "the last part before the test"
    if not earlier:
        cut = None if unordered else _cut_tail(last, by)
        if cut is None:
            return Recency(math.inf, by, metric, {}, "nothing: too few events, or in no order")
        *earlier, last = cut
        on = f"the last {1 / _TAIL:.0%} of the events"
    ages = np.zeros(sum(map(len, earlier))) if unordered else event_ages(earlier, by)
    values = _forward(earlier, ages, last, metric)
    best = _best(values)
    if not clearly_better(values[best], values[math.inf]) or (
        by == "rows" and _by_chance(values[best].mean(), earlier, ages, last, metric, seed)
    ):
        best = math.inf
        if by == "rows" and len(given) > 1:
            crossed = _crossed(earlier, last, metric)
            within = _best(crossed)
            if clearly_better(crossed[within], crossed[math.inf], _CROSSED_GAIN):
                best, by, values = within, "parts", crossed
                on = "each half of the last part's users, predicted from the other half"
    return Recency(best, by, metric, {h: float(v.mean()) for h, v in values.items()}, on)


def clearly_better(new: Floats, old: Floats, gain: float = _CLEAR_GAIN) -> bool:
    """Whether the mean over users improves by three standard errors and by the fraction `gain`.

    The standard error is that of the users' differences; fewer than 30 users are not enough.

    >>> old = np.arange(40) % 2 / 2
    >>> clearly_better(old + 0.2, old), clearly_better(old, old)
    (True, False)
    """
    known = ~(np.isnan(new) | np.isnan(old))
    more = new[known] - old[known]
    if len(more) < _CLEAR_USERS:
        return False
    error = more.std(ddof=1) / math.sqrt(len(more))
    least = max(_CLEAR_ERRORS * error, gain * old[known].mean())
    return bool(more.mean() > 0 and more.mean() >= least)


def one_list_values(
    scores: npt.NDArray[np.float32], targets: Any, masked: Any, metric: str
) -> Floats:
    """A top-K metric of every user with a target, if all users have the same scores.

    Equals `llpauc.evaluation.evaluate` of a `Constant` scorer without scoring users x items: the
    rank of a target is its place in the one list minus the user's masked items above it.

    Args:
        scores: (n_items,); equal ones rank by item index.
        targets, masked: (n_users, n_items) CSR matrices.
        metric: such as "ndcg@20".
    """
    parsed = parse_metric(metric)
    if parsed.k is None:
        raise InputError(f"expected a top-K metric such as {METRIC}, got {metric!r}")
    width = len(scores)
    place = np.empty(width, dtype=np.int64)
    place[np.argsort(-scores, kind="stable")] = np.arange(width)
    users = np.flatnonzero(np.diff(targets.indptr))
    targets, masked = targets[users], masked[users]
    n_targets = np.diff(targets.indptr)

    def codes(matrix: Any) -> npt.NDArray[np.int64]:
        rows = np.repeat(np.arange(len(users), dtype=np.int64), np.diff(matrix.indptr))
        return np.sort(rows * width + place[matrix.indices])

    target_codes, masked_codes = codes(targets), codes(masked)
    before = np.searchsorted(masked_codes, target_codes)
    masked_above = before - np.repeat(masked.indptr[:-1], n_targets)
    rank = target_codes % width - masked_above
    k = min(parsed.k, width)
    hit = (rank < k) & ~np.isin(target_codes, masked_codes)
    hits = np.zeros((len(users), k), dtype=bool)
    hits[target_codes[hit] // width, rank[hit]] = True
    return TOPK_METRICS[parsed.family](hits, n_targets, parsed.k)


def _latest(
    parts: Sequence[Interactions], ages: Floats
) -> tuple[npt.NDArray[np.int32], Floats, Floats | None]:
    """The item and the weight of each distinct user-item pair, and the age of its latest event."""
    events = join(parts)
    newest_first = np.argsort(ages, kind="stable")
    pairs = pair_codes(events.users, events.items, events.n_items)[newest_first]
    _, first, pair_of = np.unique(pairs, return_index=True, return_inverse=True)
    latest, of_events = newest_first[first], events.event_weights
    weights = None
    if of_events is not None:
        weights = np.bincount(pair_of, of_events[newest_first], len(latest)).astype(np.float64)
    return events.items[latest], ages[latest], weights


def _counts(
    items: npt.NDArray[np.int32],
    ages: Floats,
    weights: Floats | None,
    half_life: float,
    n_items: int,
) -> npt.NDArray[np.float32]:
    of_pairs = _weights(ages, half_life) * (1 if weights is None else weights)
    return np.bincount(items, of_pairs, minlength=n_items).astype(np.float32)


def _weights(ages: Floats, half_life: float) -> Floats:
    if isinstance(half_life, bool) or not half_life > 0:
        raise InputError(f"half_life must be above 0, got {half_life!r}")
    weights: Floats = np.exp2(-ages / half_life)
    return weights


def _forward(
    earlier: Sequence[Interactions], ages: Floats, last: Interactions, metric: str
) -> dict[float, Floats]:
    """Half-life -> metric values of the last part's users, predicted from the earlier parts."""
    latest, seen = _latest(earlier, ages), join(earlier).excluded
    oldest = float(ages.max())
    grid = [math.inf, *(oldest / 2**halved for halved in _HALVINGS if oldest > 0)]
    return {
        half_life: one_list_values(
            _counts(*latest, half_life, last.n_items), last.targets, seen, metric
        )
        for half_life in grid
    }


def _by_chance(
    best: float,
    earlier: Sequence[Interactions],
    ages: Floats,
    last: Interactions,
    metric: str,
    seed: int,
) -> bool:
    """Whether one of several random orders has a half-life as good as `best`."""
    rng = np.random.default_rng(seed)
    orders = (_forward(earlier, rng.permutation(ages), last, metric) for _ in range(_SHUFFLES))
    return any(values[_best(values)].mean() >= best for values in orders)


def _crossed(
    earlier: Sequence[Interactions], last: Interactions, metric: str
) -> dict[float, Floats]:
    """Half-life in parts -> values of the last part's users, each half predicted from the other."""
    seen = join(earlier).excluded
    second = (np.cumsum(np.bincount(last.users, minlength=last.n_users) > 0) % 2 == 0)[last.users]
    values: dict[float, list[Floats]] = {}
    for predicted in (~second, second):
        parts = [*earlier, last.take(~predicted)]
        latest = _latest(parts, event_ages(parts, "parts"))
        for half_life in (math.inf, *(1 / halved for halved in _PART_HALVINGS)):
            scores = _counts(*latest, half_life, last.n_items)
            measured = one_list_values(scores, last.take(predicted).targets, seen, metric)
            values.setdefault(half_life, []).append(measured)
    return {half_life: np.concatenate(halves) for half_life, halves in values.items()}


def _best(values: Mapping[float, Floats]) -> float:
    """The half-life with the best mean; of equal ones the longest."""
    return max(values, key=lambda half_life: (float(values[half_life].mean()), half_life))


def _cut_tail(data: Interactions, by: By) -> tuple[Interactions, Interactions] | None:
    """The events before the last tenth, and the last tenth; None if there is no such cut."""
    if by == "rows" and (_is_grouped(data.users) or _is_grouped(data.items)):
        return None  # listed user by user (or item by item): the last rows are not the latest
    ages, tail = event_ages(data, by), len(data) // _TAIL
    late = ages < tail if by == "rows" else ages <= np.sort(ages)[tail : tail + 1]
    if late.all() or not late.any():
        return None
    return data.take(~late), data.take(late)


def _is_grouped(indices: npt.NDArray[np.int32]) -> bool:
    """Whether equal values are adjacent, and there are equal values."""
    blocks = int(np.count_nonzero(np.diff(indices))) + 1
    return blocks < len(indices) and blocks == len(np.unique(indices))


def check_ages_known(parts: Sequence[Interactions]) -> None:
    """Refuse parts with timestamps for some events only, or with neither timestamps nor order."""
    events = sum(map(len, parts))
    timed = sum(int(np.isfinite(p.timestamps).sum()) for p in parts if p.timestamps is not None)
    if 0 < timed < events:
        raise InputError(
            f"half_life needs a timestamp for every event or for none: {timed:,} of {events:,} "
            "have one"
        )
    if not timed and any(part.shuffled for part in parts):
        raise InputError(
            "half_life needs timestamps: prepared data without them are stored in random order"
        )


def _default_by(parts: Sequence[Interactions]) -> By:
    known = all(p.timestamps is not None and np.isfinite(p.timestamps).all() for p in parts)
    return "time" if known else "rows"


def _parts(events: Events) -> Sequence[Interactions]:
    parts = [events] if isinstance(events, Interactions) else list(events)
    if not parts:
        raise InputError("there are no events to weight; give at least one table")
    return parts
