"""How good the winner is, for whom, and where it is weak: figures over users, with their doubt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from llpauc.data.inspection import top_count
from llpauc.data.interactions import Split
from llpauc.evaluation.full_ranking import Evaluation

Floats = npt.NDArray[np.float64]
RESAMPLES = 1000
_HEAD = 10  # per cent of the items


@dataclass(frozen=True)
class Interval:
    """A mean over users and the 95 % interval of its bootstrap."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.4f} ({self.low:.4f} to {self.high:.4f})"


def bootstrap(
    values: Mapping[str, Floats], seed: int, resamples: int = RESAMPLES
) -> tuple[dict[str, Interval], dict[str, Interval]]:
    """Intervals of each method's mean, and of the first's lead over each other.

    Users are drawn again with replacement, the same ones for all methods, so that the leads are
    paired: what is hard for all is hard in every draw.

    Args:
        values: method -> one value a user, the same users in the same order.
        seed: of the draws.
        resamples: how many.
    """
    table = np.array(list(values.values()))
    n = table.shape[1]
    rng = np.random.default_rng(seed)
    means = np.empty((resamples, len(table)))
    for draw in range(resamples):
        counts = np.bincount(rng.integers(n, size=n), minlength=n)
        means[draw] = table @ counts / n

    def interval(exact: float, drawn: Floats) -> Interval:
        low, high = np.quantile(drawn, [0.025, 0.975])
        return Interval(exact, float(low), float(high))

    exact = table.mean(axis=1)
    own = {m: interval(float(exact[at]), means[:, at]) for at, m in enumerate(values)}
    leads = {
        method: interval(float(exact[0] - exact[at]), means[:, 0] - means[:, at])
        for at, method in enumerate(values)
        if at
    }
    return own, leads


@dataclass(frozen=True)
class Group:
    """Test users of one kind.

    Args:
        name: such as "1 to 12 events".
        users: how many.
        means: method -> mean of the metric.
    """

    name: str
    users: int
    means: dict[str, float]


def by_activity(results: Mapping[str, Evaluation], split: Split, metric: str) -> list[Group]:
    """Users without history, then thirds of the others by how many events they have."""
    some = next(iter(results.values()))
    events = np.diff(split.train.matrix.indptr)[some.users]
    warm = events[events > 0]
    found = [("no events before the test", events == 0)]
    if len(warm):
        cuts = np.unique(np.quantile(warm, [1 / 3, 2 / 3, 1], method="lower"))
        low = 1
        for high in cuts:
            name = f"{low:,} to {high:,} events" if low < high else f"{low:,} events"
            name = "1 event" if low == high == 1 else name
            found.append((name, (events >= low) & (events <= high)))
            low = int(high) + 1
    return [
        Group(
            name, int(members.sum()),
            {m: float(result.values[metric][members].mean()) for m, result in results.items()},
        )
        for name, members in found
        if members.any()
    ]  # fmt: skip


@dataclass(frozen=True)
class Reach:
    """What the lists are made of.

    Args:
        coverage: share of all items that stand in somebody's list.
        head_share: share of the recommended items that belong to the head.
        head_found, tail_found: share of the test events on head and on other items that are found.
    """

    coverage: float
    head_share: float
    head_found: float
    tail_found: float


@dataclass(frozen=True)
class Head:
    """The most popular tenth of the items before the test.

    Args:
        items: (n_items,) whether an item belongs to it.
        of_events: share of the events before the test that are on it.
        of_test: share of the test events.
        unseen: share of the test events on items nobody had before.
    """

    items: npt.NDArray[np.bool_]
    of_events: float
    of_test: float
    unseen: float


def head_of(split: Split) -> Head:
    counts = np.asarray(split.train.matrix.sum(axis=0)).ravel()
    head = np.zeros(split.n_items, dtype=bool)
    head[np.argsort(-counts, kind="stable")[: top_count(split.n_items, percent=_HEAD)]] = True
    assert split.test is not None
    asked = split.test.matrix.indices
    return Head(
        head,
        float(counts[head].sum() / max(counts.sum(), 1)),
        float(head[asked].mean()),
        float((counts[asked] == 0).mean()),
    )


def reach(result: Evaluation, split: Split, head: Head) -> Reach:
    assert split.test is not None
    targets = split.test.matrix[result.users]
    listed = result.items[result.items >= 0]
    rows = np.repeat(np.arange(len(result.users)), (result.items >= 0).sum(axis=1))
    hit = np.asarray(targets[rows, listed]).ravel() > 0
    asked = targets.indices

    def found(which: npt.NDArray[np.bool_]) -> float:
        total = int(which[asked].sum())
        return float((hit & which[listed]).sum() / total) if total else float("nan")

    return Reach(
        len(np.unique(listed)) / split.n_items,
        float(head.items[listed].mean()) if len(listed) else 0.0,
        found(head.items),
        found(~head.items),
    )


@dataclass(frozen=True)
class Measures:
    """All that the report says of the test part; methods in the finalists' order, winner first.

    Args:
        figures: metric -> method -> interval.
        leads: of the winner, on the first metric.
        activity: groups by how many events a user had.
        head: of the catalogue.
        reach: method -> what its lists are made of.
        users, cold: test users; those without history.
    """

    figures: dict[str, dict[str, Interval]]
    leads: dict[str, Interval]
    activity: list[Group]
    head: Head
    reach: dict[str, Reach]
    users: int
    cold: int


def measure(
    results: Mapping[str, Evaluation], split: Split, metrics: Sequence[str], seed: int
) -> Measures:
    figures, leads = {}, {}
    for place, metric in enumerate(metrics):
        own, more = bootstrap({m: r.values[metric] for m, r in results.items()}, seed)
        figures[metric] = own
        if not place:
            leads = more
    head = head_of(split)
    some = next(iter(results.values()))
    return Measures(
        figures, leads, by_activity(results, split, metrics[0]), head,
        {method: reach(result, split, head) for method, result in results.items()},
        len(some.users), int((~some.warm).sum()),
    )  # fmt: skip


_FEW_USERS = 100


def weaknesses(measures: Measures, winner: str, moving: bool) -> list[str]:
    """Where the winner is weak, in plain sentences; each is a finding of these figures."""
    told = []
    for method, lead in measures.leads.items():
        if lead.high < 0:
            told.append(
                f"On the test part {method} is clearly better, by {-lead.mean:.4f} NDCG@20:"
                " validation chose another. Look at both before you decide."
            )
        elif lead.low <= 0:
            ahead = f"Its lead over {method}" if lead.mean >= 0 else f"That it is behind {method}"
            told.append(
                f"{ahead} ({lead.mean:+.4f}, 95 % interval {lead.low:+.4f} to {lead.high:+.4f})"
                " may be chance."
            )
    for group in measures.activity:
        own = group.means[winner]
        best = max(group.means, key=lambda method: group.means[method])
        clearly = best != winner and measures.leads[best].high < 0  # said already
        if best != winner and not clearly and group.means[best] > 1.02 * own:
            told.append(
                f"For users with {group.name} ({group.users:,} of them) {best} does better:"
                f" {group.means[best]:.4f} against {own:.4f}."
            )
    if measures.cold:
        share = measures.cold / measures.users
        told.append(
            f"{share:.0%} of the test users had no history; all of them get one and the same list."
        )
    lists, head = measures.reach[winner], measures.head
    if lists.tail_found < 0.5 * lists.head_found:
        told.append(
            f"Rare items: it finds {lists.tail_found:.1%} of the test events on items outside the"
            f" most popular tenth, {lists.head_found:.1%} of those inside."
        )
    if lists.head_share > head.of_test + 0.1:
        told.append(
            f"{lists.head_share:.0%} of what it recommends is from the most popular tenth of the"
            f" items; people's own choices in the test are {head.of_test:.0%}."
        )
    if lists.coverage < 0.5:
        told.append(f"{1 - lists.coverage:.0%} of the items stand in no test user's list.")
    if head.unseen > 0.01:
        told.append(
            f"{head.unseen:.1%} of the test events are on items that nobody had before: no method"
            " here can find them."
        )
    if moving:
        told.append("Tastes move with time here: fit anew often, or the lists grow old.")
    missed = 1 - measures.figures["hit@20"][winner].mean
    told.append(f"{missed:.0%} of the test users find nothing they took among its 20.")
    if measures.users < _FEW_USERS:
        told.append(f"Only {measures.users} users were tested: all figures here are rough.")
    return told
