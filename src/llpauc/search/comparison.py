"""The finalists of `auto` on the test part: metrics with intervals, user groups, weaknesses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from llpauc.data.inspection import top_count
from llpauc.data.interactions import Split
from llpauc.evaluation.full_ranking import Evaluation
from llpauc.evaluation.significance import Interval, bootstrap

_POPULAR = 10  # per cent of the items
_FEW_USERS = 100


@dataclass(frozen=True)
class UserGroup:
    """Test users with a similar number of events: a name, their number, method -> mean metric."""

    name: str
    users: int
    means: dict[str, float]


def by_activity(results: Mapping[str, Evaluation], split: Split, metric: str) -> list[UserGroup]:
    """Users without history, then thirds of the others by their number of events."""
    users = next(iter(results.values())).users
    events = np.diff(split.train.matrix.indptr)[users]
    groups = [("no events before the test", events == 0)]
    low = 1
    warm = events[events > 0]
    thirds = np.quantile(warm, [1 / 3, 2 / 3, 1], method="lower") if len(warm) else []
    for high in np.unique(thirds).astype(int).tolist():
        name = f"{low:,} to {high:,} events" if low < high else f"{low:,} events"
        name = "1 event" if high == 1 else name
        groups.append((name, (events >= low) & (events <= high)))
        low = high + 1
    return [
        UserGroup(
            name, int(members.sum()),
            {m: float(result.values[metric][members].mean()) for m, result in results.items()},
        )
        for name, members in groups
        if members.any()
    ]  # fmt: skip


@dataclass(frozen=True)
class PopularItems:
    """The most popular tenth of the items before the test.

    Args:
        items: (n_items,) whether an item belongs to it.
        of_events: fraction of the events before the test that are on it.
        of_test: fraction of the test events that are on it.
        unseen: fraction of the test events on items without an event before the test.
    """

    items: npt.NDArray[np.bool_]
    of_events: float
    of_test: float
    unseen: float


def popular_items(split: Split) -> PopularItems:
    assert split.test is not None
    counts = np.asarray(split.train.matrix.sum(axis=0)).ravel()
    popular = np.zeros(split.n_items, dtype=bool)
    n_popular = top_count(split.n_items, percent=_POPULAR)
    popular[np.argsort(-counts, kind="stable")[:n_popular]] = True
    targets = split.test.targets.indices
    return PopularItems(
        popular,
        float(counts[popular].sum() / max(counts.sum(), 1)),
        float(popular[targets].mean()),
        float((counts[targets] == 0).mean()),
    )


@dataclass(frozen=True)
class ListContent:
    """What a method's lists contain.

    Args:
        coverage: fraction of all items that are in at least one list.
        popular: fraction of the recommended items that are popular.
        popular_hits, other_hits: fraction of the test events on popular and on other items that
            are in the list.
    """

    coverage: float
    popular: float
    popular_hits: float
    other_hits: float


def list_content(result: Evaluation, split: Split, popular: PopularItems) -> ListContent:
    assert split.test is not None
    targets = split.test.targets[result.users]
    filled = result.items >= 0
    listed = result.items[filled]
    rows = np.repeat(np.arange(len(result.users)), filled.sum(axis=1))
    hit = np.asarray(targets[rows, listed]).ravel() > 0

    def hits(items: npt.NDArray[np.bool_]) -> float:
        total = int(items[targets.indices].sum())
        return float((hit & items[listed]).sum() / total) if total else float("nan")

    return ListContent(
        len(np.unique(listed)) / split.n_items,
        float(popular.items[listed].mean()) if len(listed) else 0.0,
        hits(popular.items),
        hits(~popular.items),
    )


@dataclass(frozen=True)
class Comparison:
    """The test results; methods in the order of the finalists, the winner first.

    Args:
        intervals: metric -> method -> interval.
        leads: of the winner over the other methods, in the first metric.
        activity: user groups by number of events.
        popular: the most popular items.
        lists: method -> content of its lists.
        users, cold: number of test users, and of those without history.
    """

    intervals: dict[str, dict[str, Interval]]
    leads: dict[str, Interval]
    activity: list[UserGroup]
    popular: PopularItems
    lists: dict[str, ListContent]
    users: int
    cold: int


def compare(
    results: Mapping[str, Evaluation], split: Split, metrics: Sequence[str], seed: int
) -> Comparison:
    drawn = [bootstrap({m: r.values[metric] for m, r in results.items()}, seed)
             for metric in metrics]  # fmt: skip
    popular = popular_items(split)
    warm = next(iter(results.values())).warm
    return Comparison(
        {metric: intervals for metric, (intervals, _) in zip(metrics, drawn, strict=True)},
        drawn[0][1],
        by_activity(results, split, metrics[0]),
        popular,
        {method: list_content(result, split, popular) for method, result in results.items()},
        len(warm),
        int((~warm).sum()),
    )


def weaknesses(comparison: Comparison, winner: str, moving: bool) -> list[str]:
    """Where the winner is weak, one sentence each."""
    lines = []
    for method, lead in comparison.leads.items():
        numbers = f"({lead.mean:+.4f}, 95 % interval {lead.low:+.4f} to {lead.high:+.4f})"
        if lead.high < 0:
            lines.append(
                f"On the test part {method} is clearly better, by {-lead.mean:.4f} NDCG@20;"
                " validation chose another method. Compare both before you decide."
            )
        elif lead.low <= 0:
            subject = "Its lead over" if lead.mean >= 0 else "Its distance behind"
            lines.append(f"{subject} {method} {numbers} may be due to chance.")
    for group in comparison.activity:
        best = max(group.means, key=lambda method: group.means[method])
        known = best == winner or comparison.leads[best].high < 0  # the latter is reported above
        if not known and group.means[best] > 1.02 * group.means[winner]:
            lines.append(
                f"For the {group.users:,} users with {group.name}, {best} is better:"
                f" {group.means[best]:.4f}, and {group.means[winner]:.4f} for {winner}."
            )
    lists, popular = comparison.lists[winner], comparison.popular
    missed = 1 - comparison.intervals["hit@20"][winner].mean
    remarks = {
        f"{comparison.cold / max(comparison.users, 1):.0%} of the test users have no history; all"
        " of them get the same list.": comparison.cold > 0,
        f"Rare items: it finds {lists.other_hits:.1%} of the test events on items outside the most"
        f" popular tenth, and {lists.popular_hits:.1%} of those inside.": (
            lists.other_hits < 0.5 * lists.popular_hits
        ),
        f"{lists.popular:.0%} of its recommendations are from the most popular tenth of the items,"
        f" and {popular.of_test:.0%} of the test events.": lists.popular > popular.of_test + 0.1,
        f"{1 - lists.coverage:.0%} of the items are in no test user's list.": lists.coverage < 0.5,
        f"{popular.unseen:.1%} of the test events are on items without earlier events, which no"
        " method here can find.": popular.unseen > 0.01,
        "Interests change with time: retrain often.": moving,
        f"{missed:.0%} of the test users have no hit among its 20 items.": True,
        f"Only {comparison.users} users were tested: the metrics are imprecise.": (
            comparison.users < _FEW_USERS
        ),
    }
    return lines + [text for text, holds in remarks.items() if holds]
