"""The contest: baselines, then trained candidates, each measured on validation while time lasts.

Nothing is begun that cannot end in time. At every batch it is asked whether what is left still
covers the end: the best candidate's fits for the test and for delivery, the baselines' beside it,
lists for everybody, the report. An epoch counts only if those fits can be paid for.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from llpauc.data.interactions import Split
from llpauc.data.recency import Recency
from llpauc.search.auto.plan import Budget, Candidate, some_users, work
from llpauc.training.interrupt import StopRequest

VALID_USERS, TEST_USERS = 20_000, 50_000  # more say no more, and cost
SAFETY = 1.25  # on the seconds that the end is thought to take
TURN = 0.5  # share of the contest's remaining time that one candidate may take
_WRITING = 1.0  # seconds for the run, the report and the rest
_WRITTEN_A_SECOND = 2e6  # rows of recommendations


@dataclass(frozen=True)
class Entry:
    """A candidate and how it did.

    Args:
        candidate: its settings hold what was chosen on the way (a half-life).
        valid: the metric on validation, or None where there is none.
        ended: fitted, epochs, patience, out of time, behind, interrupted, diverged, or refused.
        seconds: in the contest.
        fit_seconds: to fit it once more on as many events.
        rank_seconds: to rank all items for one user.
        best_epoch: of the validation figure; 0 for a baseline.
        curve: validation after each epoch.
        told: the error's text, or a remark.
    """

    candidate: Candidate
    valid: float | None
    ended: str
    seconds: float
    fit_seconds: float = 0.0
    rank_seconds: float = 0.0
    best_epoch: int = 0
    curve: tuple[float, ...] = ()
    told: str = ""

    @property
    def value(self) -> float:
        return -math.inf if self.valid is None else self.valid


@dataclass(frozen=True)
class Listener:
    """Who hears how it goes: `line` once for each thing done, `status` as often as it changes."""

    line: Callable[[str], None] = lambda text: None
    status: Callable[[str], None] = lambda text: None


@dataclass
class Contest:
    """Where it stands.

    Args:
        split: train, valid and test; the test part is counted and not looked at.
        budget: the clock.
        k: length of the lists in the end.
        seed: of every training.
        stop: a wish to end.
        hear: who is told.
        moving: whether recent events tell more; None before that is known.
        entries: in the order they ran.
        left_out: name -> why it was not begun.
    """

    split: Split
    budget: Budget
    k: int
    seed: int
    stop: StopRequest
    hear: Listener
    moving: Recency | None = None
    entries: list[Entry] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert self.split.valid is not None
        valid = some_users(self.split.valid, VALID_USERS, self.seed)
        self.judged = Split(self.split.train, valid)
        self.judges = len(np.unique(valid.users))

    @property
    def best(self) -> Entry | None:
        return max(self.entries, key=lambda entry: entry.value, default=None)

    @property
    def best_trained(self) -> Entry | None:
        own = [e for e in self.entries if not e.candidate.is_baseline and e.valid is not None]
        return max(own, key=lambda entry: entry.value, default=None)

    @property
    def best_baselines(self) -> list[Entry]:
        """The best of each kind, in the order they ran."""
        best: dict[str, Entry] = {}
        for entry in self.entries:
            model = entry.candidate.model
            if entry.candidate.is_baseline and entry.valid is not None:
                best[model] = max(best.get(model, entry), entry, key=lambda e: e.value)
        return list(best.values())

    def add(self, entry: Entry) -> None:
        self.entries.append(entry)
        value = "   -  " if entry.valid is None else f"{entry.valid:.4f}"
        epochs = f", epoch {entry.best_epoch} of {len(entry.curve)}" if entry.curve else ""
        told = f": {entry.told}" if entry.told else ""
        mark = " *" if entry is self.best and entry.valid is not None else ""
        self.hear.line(
            f"{self.budget.passed:6.0f} s  {value}  {entry.candidate.name}"
            f"  ({entry.ended}{epochs}, {entry.seconds:.1f} s{told}){mark}"
        )


def growth(split: Split) -> tuple[float, float]:
    """How many times train's events the fit for the test has, and the one for delivery."""
    events = [len(part) for part in split.parts.values()]
    return sum(events[:2]) / events[0], sum(events) / events[0]


def reserve(contest: Contest, winner: Entry | None, trained: Entry | None = None) -> float:
    """Seconds that the end takes if `winner` wins, and `trained` is tested beside the baselines."""
    split = contest.split
    assert split.test is not None
    for_test, for_all = growth(split)
    test_users = min(len(np.unique(split.test.users)), TEST_USERS)
    seconds = _WRITING + split.n_users * contest.k / _WRITTEN_A_SECOND
    for entry in contest.best_baselines:
        seconds += entry.fit_seconds * for_test + entry.rank_seconds * test_users
    if winner is not None:
        seconds += winner.fit_seconds * for_all + winner.rank_seconds * split.n_users
    if trained is not None:
        seconds += trained.fit_seconds * for_test + trained.rank_seconds * test_users
    return SAFETY * seconds


def spare(contest: Contest) -> float:
    """Seconds left for the contest."""
    return contest.budget.left - reserve(contest, contest.best, contest.best_trained)


def affordable(contest: Contest, candidate: Candidate, epochs: int) -> bool:
    """Whether there is time for so many epochs, and to fit them for the test and for delivery."""
    paces = [
        entry.fit_seconds / entry.best_epoch / work(entry.candidate.settings, contest.split.train)
        for entry in contest.entries
        if entry.best_epoch
    ]
    if not paces:
        return False
    one = float(np.median(paces)) * work(candidate.settings, contest.split.train)
    again = SAFETY * sum(growth(contest.split))
    if one * epochs > TURN * spare(contest):
        return False
    return one * epochs * (1 + again) <= contest.budget.left - reserve(contest, None)
