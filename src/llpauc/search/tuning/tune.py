"""`llpauc tune`: an Optuna study over losses, models and how they are trained, on validation alone.

The test part is taken off before anything else happens. A study lies in a storage; any number of
workers, here or on other machines, ask it for trials until the time or the trials are used up.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llpauc.data.fingerprint import fingerprint
from llpauc.data.interactions import Split
from llpauc.data.splits import hold_out
from llpauc.errors import InputError
from llpauc.evaluation.full_ranking import evaluate
from llpauc.losses import suggest_alpha_beta
from llpauc.metrics import parse_metric
from llpauc.models import Popularity
from llpauc.search.tuning import space as spaces
from llpauc.search.tuning.claims import Watch
from llpauc.search.tuning.space import Point, Space
from llpauc.search.tuning.storage import check_installed
from llpauc.search.tuning.trials import TrialRow, rows_of
from llpauc.search.tuning.workers import (
    Job,
    Step,
    Teller,
    Tuning,
    is_lost,
    left_behind,
    open_tuning,
    work,
    work_together,
)
from llpauc.training.interrupt import stop_requests

if TYPE_CHECKING:
    from optuna.study import Study

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


class NothingFound(RuntimeError):
    """No trial has come to a validation figure."""


def parse_budget(text: str) -> float:
    """Seconds.

    >>> parse_budget("90s"), parse_budget("20m"), parse_budget("1.5h")
    (90.0, 1200.0, 5400.0)
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*([smh])\s*", text.lower())
    seconds = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if not seconds:
        raise InputError(f"--budget wants a time such as 90s, 20m or 2h, got {text!r}")
    return seconds


@dataclass(frozen=True)
class Outcome:
    """What a study has found.

    Args:
        rows: every trial, best first.
        popularity: the metric of the most popular items on the same validation events.
        seconds: this call took.
        signal: that interrupted it, or None.
    """

    rows: tuple[TrialRow, ...]
    popularity: float
    seconds: float
    signal: int | None = None

    @property
    def best(self) -> TrialRow | None:
        return next((row for row in self.rows if row.counts), None)

    def start(self, name: str) -> TrialRow | None:
        """The trial of a starting point, where it came to an end."""
        return next((row for row in self.rows if row.counts and row.start == name), None)


def validation_split(split: Split, share: float, seed: int) -> Split:
    """Train and validation alone: the split's own, or held out as `Recommender.fit` does it."""
    if split.valid is not None:
        if not len(split.valid):
            raise InputError("the validation part is empty; there is nothing to choose by")
        return Split(split.train, split.valid)
    if not share:
        raise InputError("nothing to choose by: there is no valid file, and hold_out is 0")
    try:
        return hold_out(Split(split.train), share, seed)
    except InputError as error:
        raise InputError(
            f"too few events to hold {share:g} of each user's out for validation ({error});"
            " raise --hold-out or bring more data"
        ) from None


def plan_space(
    split: Split,
    losses: tuple[str, ...],
    models: tuple[str, ...],
    metric: str,
    recipe: Mapping[str, Any],
    space_file: str | None = None,
) -> tuple[Space, dict[str, Point]]:
    """The space of a search, and what is tried first.

    Args:
        split: train and valid.
        losses, models: to choose from.
        metric: on validation.
        recipe: for such data. It is asked for before anything is held out of them: a random tenth
            says nothing of how tastes move.
        space_file: see `llpauc.search.tuning.space.read_space`.
    """
    spaces.check_names(losses, models)
    k = parse_metric(metric).k or 20
    usual = spaces.usual_space(split.train, losses, models, k)
    wider = spaces.holding(usual, spaces.recipe_point(recipe, losses, models))
    space = _changed(wider, space_file)
    return space, spaces.starting_points(space, suggest_alpha_beta(split.train, k), recipe)


def plan_grid(
    name: str, losses: tuple[str, ...], models: tuple[str, ...], space_file: str | None = None
) -> tuple[Space, dict[str, Point]]:
    """The space of a grid by its name, and all of its cells."""
    spaces.check_names(losses, models)
    space = _changed(spaces.grid_space(name, losses, models), space_file)
    return space, spaces.grid_points(space)


def _changed(space: Space, file: str | None) -> Space:
    changed = space if file is None else spaces.read_space(file, space)
    spaces.check_space(changed)
    return changed


def tune(split: Split, tuning: Tuning, tell: Callable[[Step], None] = lambda step: None) -> Outcome:
    """Search until the budget or the trials are used up, or somebody asks to stop.

    Args:
        split: train and valid; a test part is not looked at.
        tuning: what and how.
        tell: called when a trial of the study has ended, whoever ran it.

    Raises:
        InputError: on data that cannot be validated on, a storage that cannot be used, a study
            that was made with other settings.
        NothingFound: where no trial came to a figure.
    """
    check_installed()
    begun = time.time()
    split = validation_split(split, tuning.hold_out, tuning.seed)
    popularity = evaluate(
        Popularity.scorer_of(split.train), split, on="valid", metrics=[tuning.metric]
    )
    baseline = popularity.mean(next(iter(popularity.values)))
    if math.isnan(baseline):
        raise InputError(
            "no validation user has an item to be found; there is nothing to choose by"
        )
    data = fingerprint(split.train, split.valid)
    study = open_tuning(tuning, data)
    _enqueue(study, tuning)
    watch = Watch(tuning.grace)
    teller = Teller(study, tuning, begun, tell)
    job = Job(tuning, split, data, begun + tuning.budget)
    with stop_requests() as stop:
        while True:
            if tuning.workers == 1:
                work(study, job, stop, teller.look)
            else:
                work_together(study, job, stop, watch, teller.look)
            if stop or not left_behind(study, job, watch, stop):
                break
    teller.look()
    rows = tuple(rows_of(study.get_trials(deepcopy=False)))
    outcome = Outcome(rows, baseline, time.time() - begun, stop.signal)
    if outcome.best is None and not stop:
        told = next((row.told for row in rows if row.told), "none came to its first validation")
        raise NothingFound(f"no trial of {len(rows)} came to a figure: {told}")
    return outcome


def _enqueue(study: Study, tuning: Tuning) -> None:
    """Queue the starting points that no trial has had yet."""
    had = {t.user_attrs.get("start") for t in study.get_trials(deepcopy=False) if not is_lost(t)}
    for name, point in tuning.points.items():
        if name not in had:
            study.enqueue_trial(dict(point), user_attrs={"start": name})
