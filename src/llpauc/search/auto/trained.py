"""Candidates that are trained: begun where there is time, stopped when it is out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from llpauc.data.interactions import Interactions, Split
from llpauc.data.splits import hold_out
from llpauc.errors import InputError
from llpauc.recommend import Recommender
from llpauc.search.auto.contest import TURN, Contest, Entry, affordable, reserve
from llpauc.search.auto.plan import METRIC, Candidate, sized_recipes, variants
from llpauc.training import Diverged, Epoch

_LEAST_EPOCHS = 5  # a candidate with time for fewer is not begun
_FULL_EPOCHS = 15  # a recipe's size is affordable with time for so many
_HOPELESS = 0.85  # of the leader's best by the same epoch, from the fifth epoch on


def begin(contest: Contest, candidate: Candidate) -> Entry | None:
    """Train a candidate if there is time for it; None if not."""
    if not affordable(contest, candidate, _LEAST_EPOCHS):
        contest.left_out[candidate.name] = "it could not have ended in time"
        return None
    entry = train_candidate(contest, candidate)
    contest.add(entry)
    return entry


def affordable_variants(contest: Contest, tried: Candidate) -> Iterator[Candidate]:
    """The variants of the largest recipe there is time for; the size is chosen anew each time."""
    done: set[str] = set()
    sizes = sized_recipes(contest.split.train)
    smallest = list(sizes)[-1]
    while True:
        for size, base in sizes.items():
            named = variants(size, base, contest.split.train, contest.moving)
            if affordable(contest, named[0], _FULL_EPOCHS) or size == smallest:
                break
        left = [c for c in named if _kind(c) not in done and c.settings != tried.settings]
        if not left:
            return
        done.add(_kind(left[0]))
        yield left[0]


def warm_up() -> None:
    """Train a moment of everything on made-up events, so that what is compiled once after an
    install is compiled before the clock runs."""
    people = np.arange(40, dtype=np.int32)
    events = Interactions.of(np.repeat(people, 4), (people[:, None] + np.arange(4)).ravel() % 30)
    held = hold_out(Split(events), 0.25, seed=0)
    moment = {"epochs": 1, "dimensions": 8, "valid_metric": METRIC}
    for size, base in sized_recipes(events).items():
        pooled = Candidate("pooled", {**base, "solver": "sgda"}, "catalogues of middle size")
        for candidate in (*variants(size, base, events, None), pooled):
            Recommender(**{**candidate.settings, **moment}).fit(held)


def _kind(candidate: Candidate) -> str:
    return candidate.name.split(",")[0]


def _better(one: Entry | None, other: Entry) -> Entry:
    return other if one is None or other.value > one.value else one


class _Enough(Exception):
    """Leaves training, which hands the signals back as it unwinds."""


def train_candidate(contest: Contest, candidate: Candidate) -> Entry:
    """Train on train, validate each epoch, stop in time; the best epoch that can be paid for."""
    clock, budget = contest.budget.clock, contest.budget
    begun = last = clock()
    leader = contest.best_trained
    needed = reserve(contest, contest.best, leader)
    turn_ends = begun + TURN * max(budget.left - needed, 0.0)
    walls: list[float] = []
    curve: list[float] = []
    kept = Entry(candidate, None, "out of time", 0.0)

    def late() -> bool:
        return budget.left <= needed or clock() >= turn_ends

    def on_batch(done: int) -> None:
        if contest.stop:
            raise _Enough("interrupted")
        if late():
            raise _Enough("out of time")

    def on_epoch(epoch: Epoch) -> None:
        nonlocal last, kept, needed
        if not epoch.valid:  # interrupted in the middle
            return
        now = clock()
        walls.append(now - last)
        ranking, last = max(walls[-1] - epoch.seconds, 0.0) / contest.judges, now
        curve.append(next(iter(epoch.valid.values())))
        pace = float(np.median(walls[1:] or walls))  # the first epoch may have compiled kernels
        made = replace(
            kept, valid=curve[-1], best_epoch=epoch.number,
            fit_seconds=pace * epoch.number, rank_seconds=ranking,
        )  # fmt: skip
        price = reserve(contest, _better(contest.best, made), _better(leader, made))
        if made.value > kept.value and price <= budget.left:
            kept, needed = made, max(needed, price)
        contest.hear.status(
            f"{candidate.name}: epoch {epoch.number}, validation {METRIC} {curve[-1]:.4f}"
        )
        if contest.stop:
            raise _Enough("interrupted")
        if price > budget.left or late():
            raise _Enough("out of time")
        if leader is not None and epoch.number >= _LEAST_EPOCHS:
            then = max(leader.curve[: epoch.number])
            if max(curve) < _HOPELESS * then:
                raise _Enough("behind")

    def ended(why: str, told: str = "") -> Entry:
        return replace(kept, ended=why, seconds=clock() - begun, curve=tuple(curve), told=told)

    contest.hear.status(candidate.name)
    try:
        made = Recommender(**candidate.settings, seed=contest.seed, valid_metric=METRIC)
        made.fit(contest.judged, on_batch=on_batch, on_epoch=on_epoch)
    except _Enough as why:
        return ended(str(why))
    except Diverged as error:
        return ended("diverged", str(error))
    except (InputError, MemoryError) as error:
        return ended("refused", str(error) or "out of memory")
    assert made.history is not None
    if made.history.signal is not None:
        contest.stop.signal = made.history.signal
    return ended(made.history.stopped)
