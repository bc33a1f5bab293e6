"""Time: how old an event is, what an old event still weighs, and whether tastes move at all.

An event weighs 0.5^(age / half-life). Its age is measured in one of three ways (`AGES`): by its
timestamp, by the events that stand after it, or by the parts of the split that come after its own.
The half-life is chosen on what lies just before the part under test, never on that part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from llpauc.data.histories import join
from llpauc.data.interactions import Interactions, pair_codes
from llpauc.data.splits import times_of
from llpauc.errors import InputError, choose
from llpauc.metrics import TOPK_METRICS, parse_metric

Floats = npt.NDArray[np.float64]
By = Literal["time", "rows", "parts"]
Events = Interactions | Sequence[Interactions]

METRIC = "ndcg@20"  # what a half-life is chosen by
_HALVINGS = range(1, 11)  # half-lives tried: a half to a thousandth of the history
_PART_HALVINGS = (1, 2, 4, 10, 20)  # of an event one part older; the last leaves it to break ties
_TAIL = 10  # without a part to choose on, the last tenth is one
_CLEAR_ERRORS, _CLEAR_GAIN, _CLEAR_USERS = 3.0, 0.05, 30
_SHUFFLES = 19  # an order that tells nothing passes for one that does in 1 case of 20
_CROSSED_GAIN = 0.5  # halves of one time flatter each other: a small gain there is no drift


def age_weights(events: Events, half_life: float, by: By | None = None) -> Floats:
    """What each event weighs, in (0, 1]: 0.5^(age / half_life), the newest 1.

    Args:
        events: a table, or parts in the order of time; weights of several come one after another.
        half_life: age at which an event weighs half, above 0, in the unit of `by`: seconds, events
            or parts; infinity weighs all alike.
        by: a way of `AGES`; by default time where every event has a timestamp, else rows.

    >>> data = Interactions.of(["a", "b", "c"], ["x", "y", "x"], timestamps=[0, 3600, 7200])
    >>> age_weights(data, half_life=3600).tolist()
    [0.25, 0.5, 1.0]
    """
    parts = _parts(events)
    return _weights(event_ages(parts, by or _natural(parts)), half_life)


def event_ages(events: Events, by: By) -> Floats:
    """The age of each event, 0 for the newest.

    >>> data = Interactions.of(["a", "b", "c"], ["x", "y", "x"])
    >>> event_ages(data, "rows").tolist(), event_ages([data, data], "parts").tolist()
    ([2.0, 1.0, 0.0], [1.0, 1.0, 1.0, 0.0, 0.0, 0.0])
    """
    _, measured = choose(AGES, by, "way to measure age (by)")
    return measured(_parts(events))


def _by_time(parts: Sequence[Interactions]) -> Floats:
    times = np.concatenate([times_of(part, "age by time") for part in parts])
    ages: Floats = times.max(initial=-np.inf) - times
    return ages


def _by_rows(parts: Sequence[Interactions]) -> Floats:
    return np.arange(sum(map(len, parts)), dtype=np.float64)[::-1]


def _by_parts(parts: Sequence[Interactions]) -> Floats:
    from_end = np.arange(len(parts), dtype=np.float64)[::-1]
    return np.repeat(from_end, [len(part) for part in parts])


AGES: dict[str, tuple[str, Callable[[Sequence[Interactions]], Floats]]] = {
    "time": ("seconds", _by_time),
    "rows": ("events", _by_rows),
    "parts": ("parts", _by_parts),
}


def recent_counts(
    events: Events, half_life: float, by: By | None = None
) -> npt.NDArray[np.float32]:
    """Each item's users, each weighed by the age of their latest event with it.

    With an infinite half-life these are the counts of plain popularity.

    >>> data = Interactions.of(["a", "b", "c"], ["old", "old", "new"], timestamps=[0, 0, 60])
    >>> recent_counts(data, half_life=30).tolist(), recent_counts(data, math.inf).tolist()
    ([0.5, 1.0], [2.0, 1.0])
    """
    parts = _parts(events)
    ages = event_ages(parts, by or _natural(parts))
    return _counts(_latest(parts, ages), half_life, parts[0].n_items)


@dataclass(frozen=True)
class Recency:
    """The half-life that was chosen, and what it was chosen by.

    Args:
        half_life: in the unit of `by`; infinity where no finite one was clearly better.
        by: how age is measured.
        metric: the name of what was compared.
        figures: half-life -> the metric's mean, for every one tried by this way; empty where there
            was nothing to choose on.
        on: what the figures were measured on, for people.
    """

    half_life: float
    by: By
    metric: str
    figures: Mapping[float, float]
    on: str

    @property
    def moves(self) -> bool:
        """Whether recent events tell clearly more than all events alike."""
        return math.isfinite(self.half_life)

    def __str__(self) -> str:
        if not self.moves:
            return "no half-life: all events weigh alike"
        if self.by != "time":
            digits = f"{self.half_life:,.0f}" if self.half_life >= 10 else f"{self.half_life:.2g}"
            return f"half-life {digits} {AGES[self.by][0]}"
        for unit, seconds in (("days", 86400), ("hours", 3600)):
            if self.half_life >= 2 * seconds:
                return f"half-life {self.half_life / seconds:,.1f} {unit}"
        return f"half-life {self.half_life:,.3g} seconds"


def given_recency(parts: Sequence[Interactions], half_life: float) -> Recency:
    """A half-life that somebody else chose, in the unit these parts' ages have."""
    return Recency(half_life, _natural(parts), METRIC, {}, "nothing: it was given")


def choose_recency(parts: Sequence[Interactions], metric: str = METRIC, seed: int = 0) -> Recency:
    """Choose the half-life by which the parts before the last tell most about the last.

    The earlier parts are counted at every half-life of a grid (theirs or their span's size halved
    again and again, and infinity), ages taken from their end, and the last part's users are ranked
    by them. A finite half-life is taken where it is `clearly_better` than infinity. The order of
    rows must also do better than every one of 19 random orders: where popularity finds little, a
    handful of lucky rows looks like news. A single part is cut: its last tenth is what the rest
    must tell.

    Where there are no timestamps and the order of the rows tells nothing, the parts may still lie
    apart in time. Then half of the last part's users join the earlier parts to tell the other
    half, and the other way round, with the earlier parts weighed less and less. This flatters the
    last part (its halves are of one time), so it comes second and must gain half as much again.

    Args:
        parts: what lies before the part under test, the oldest first, over common id maps.
        metric: a top-K metric.
        seed: of the random orders.
    """
    *earlier, last = given = [part for part in parts if len(part)] or [parts[0]]
    by = _natural(given)
    in_no_order = by == "rows" and any(part.shuffled for part in given)
    on = "the last part before the test"
    if not earlier:
        cut = None if in_no_order else _cut_tail(last, by)
        if cut is None:
            return Recency(math.inf, by, metric, {}, "nothing: too few events, or in no order")
        *earlier, last = cut
        on = f"the last {1 / _TAIL:.0%} of the events"
    ages = np.zeros(sum(map(len, earlier))) if in_no_order else event_ages(earlier, by)
    values = _forward(earlier, ages, last, metric)
    best = _best(values)
    if not clearly_better(values[best], values[math.inf]) or (
        by == "rows" and _lucky(values[best].mean(), earlier, ages, last, metric, seed)
    ):
        best = math.inf
        if by == "rows" and len(given) > 1:
            crossed = _crossed(earlier, last, metric)
            within = _best(crossed)
            if clearly_better(crossed[within], crossed[math.inf], _CROSSED_GAIN):
                best, by, values = within, "parts", crossed
                on = "each half of the last part's users, told by the other half"
    return Recency(best, by, metric, {h: float(v.mean()) for h, v in values.items()}, on)


def clearly_better(new: Floats, old: Floats, gain: float = _CLEAR_GAIN) -> bool:
    """Whether the mean over users is better: by three standard errors, and by the share `gain`.

    The errors are those of the users' differences; fewer than 30 users prove nothing.

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
    """A top-K metric of every user with a target, where all are ranked by the same scores.

    What `llpauc.evaluation.full_ranking.evaluate` gives for a `Constant`, without scoring users x
    items: a
    target's rank is its place in the one list less the user's masked items above it.

    Args:
        scores: (n_items,); equal ones rank by item row.
        targets, masked: (n_users, n_items) CSR matrices.
        metric: such as "ndcg@20".
    """
    wanted = parse_metric(metric)
    if wanted.k is None:
        raise InputError(f"a top-K metric such as {METRIC} is wanted here, got {metric!r}")
    width = len(scores)
    place = np.empty(width, dtype=np.int64)
    place[np.argsort(-scores, kind="stable")] = np.arange(width)
    users = np.flatnonzero(np.diff(targets.indptr))
    targets, masked = targets[users], masked[users]
    n_targets = np.diff(targets.indptr)

    def codes(matrix: Any) -> npt.NDArray[np.int64]:
        rows = np.repeat(np.arange(len(users), dtype=np.int64), np.diff(matrix.indptr))
        return np.sort(rows * width + place[matrix.indices])

    asked, hidden = codes(targets), codes(masked)
    if len(hidden):
        at = np.searchsorted(hidden, asked)
        shown = hidden[np.minimum(at, len(hidden) - 1)] != asked
        above = at - np.repeat(masked.indptr[:-1], n_targets)
        asked, rank = asked[shown], (asked % width - above)[shown]
    else:
        rank = asked % width
    k = min(wanted.k, width)
    hits = np.zeros((len(users), k), dtype=bool)
    hits[asked[rank < k] // width, rank[rank < k]] = True
    return TOPK_METRICS[wanted.family](hits, n_targets, wanted.k)


# --- choosing -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Pairs:
    """Distinct user-item pairs: the item, and the age of the latest event."""

    items: npt.NDArray[np.int32]
    ages: Floats


def _latest(parts: Sequence[Interactions], ages: Floats) -> _Pairs:
    users = np.concatenate([part.users for part in parts])
    items = np.concatenate([part.items for part in parts])
    newest_first = np.argsort(ages, kind="stable")
    pairs = pair_codes(users, items, parts[0].n_items)[newest_first]
    _, first = np.unique(pairs, return_index=True)
    kept = newest_first[first]
    return _Pairs(items[kept], ages[kept])


def _counts(pairs: _Pairs, half_life: float, n_items: int) -> npt.NDArray[np.float32]:
    weights = _weights(pairs.ages, half_life)
    return np.bincount(pairs.items, weights, minlength=n_items).astype(np.float32)


def _weights(ages: Floats, half_life: float) -> Floats:
    if isinstance(half_life, bool) or not half_life > 0:
        raise InputError(f"half_life must be above 0, got {half_life!r}")
    weights: Floats = np.exp2(-ages / half_life)
    return weights


def _forward(
    earlier: Sequence[Interactions], ages: Floats, last: Interactions, metric: str
) -> dict[float, Floats]:
    """Half-life -> values of the last part's users, ranked by what came before."""
    pairs, seen = _latest(earlier, ages), join(earlier).matrix
    oldest = float(ages.max())
    grid = [math.inf, *(oldest / 2**halved for halved in _HALVINGS if oldest > 0)]
    return {
        half_life: one_list_values(
            _counts(pairs, half_life, last.n_items), last.matrix, seen, metric
        )
        for half_life in grid
    }


def _lucky(
    best: float,
    earlier: Sequence[Interactions],
    ages: Floats,
    last: Interactions,
    metric: str,
    seed: int,
) -> bool:
    """Whether a random order finds a half-life as good as `best`."""
    rng = np.random.default_rng(seed)
    for _ in range(_SHUFFLES):
        by_chance = _forward(earlier, rng.permutation(ages), last, metric)
        if by_chance[_best(by_chance)].mean() >= best:
            return True
    return False


def _crossed(
    earlier: Sequence[Interactions], last: Interactions, metric: str
) -> dict[float, Floats]:
    """Half-life in parts -> values of the last part's users, each half told by the other."""
    seen = join(earlier).matrix
    second = (np.cumsum(np.bincount(last.users, minlength=last.n_users) > 0) % 2 == 0)[last.users]
    values: dict[float, list[Floats]] = {}
    for told in (~second, second):
        parts = [*earlier, last.take(~told)]
        pairs = _latest(parts, event_ages(parts, "parts"))
        for half_life in (math.inf, *(1 / halved for halved in _PART_HALVINGS)):
            scores = _counts(pairs, half_life, last.n_items)
            measured = one_list_values(scores, last.take(told).matrix, seen, metric)
            values.setdefault(half_life, []).append(measured)
    return {half_life: np.concatenate(halves) for half_life, halves in values.items()}


def _best(values: Mapping[float, Floats]) -> float:
    """The half-life with the best mean; of equals the longest."""
    return max(values, key=lambda half_life: (float(values[half_life].mean()), half_life))


def _cut_tail(data: Interactions, by: By) -> tuple[Interactions, Interactions] | None:
    """The events before the last tenth, and the last tenth; None where there is no such cut."""
    ages = event_ages(data, by)
    if by == "rows" and (_in_blocks(data.users) or _in_blocks(data.items)):
        return None  # listed one user (or item) after the other: the last rows are not the latest
    late = ages <= np.sort(ages)[len(ages) // _TAIL] if len(ages) else ages > 0
    if by == "rows":
        late = ages < len(ages) // _TAIL
    if late.all() or not late.any():
        return None
    return data.take(~late), data.take(late)


def _in_blocks(rows: npt.NDArray[np.int32]) -> bool:
    """Whether equal values stand together, and there are equal values."""
    blocks = int(np.count_nonzero(np.diff(rows))) + 1
    return blocks < len(rows) and blocks == len(np.unique(rows))


def check_ages_known(parts: Sequence[Interactions]) -> None:
    """Refuse parts of which only some events have a time, or that have neither time nor order."""
    events = sum(map(len, parts))
    timed = sum(int(np.isfinite(p.timestamps).sum()) for p in parts if p.timestamps is not None)
    if 0 < timed < events:
        raise InputError(
            f"half_life wants a time for every event or for none: {timed:,} of {events:,} have one"
        )
    if not timed and any(part.shuffled for part in parts):
        raise InputError(
            "half_life wants times: prepared data without them lie in random order, so that no"
            " event is older than another"
        )


def _natural(parts: Sequence[Interactions]) -> By:
    known = all(p.timestamps is not None and np.isfinite(p.timestamps).all() for p in parts)
    return "time" if known else "rows"


def _parts(events: Events) -> Sequence[Interactions]:
    parts = [events] if isinstance(events, Interactions) else list(events)
    if not parts:
        raise InputError("there is no part to weigh; give at least one table of events")
    return parts
