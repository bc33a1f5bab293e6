"""One trial of a study: trained with pruning and a deadline, and told to the storage."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from llpauc.data.interactions import Split
from llpauc.errors import InputError
from llpauc.recommend.parameters import plan
from llpauc.search.tuning.space import Point, Space, settings_of, suggest
from llpauc.training import Diverged, Epoch, fit
from llpauc.training.interrupt import StopRequest

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial, Trial

HIDDEN = "withdrawn"  # marks a trial that was asked for in a race and never run


@dataclass(frozen=True)
class Ended:
    """How a trial's training ended.

    Args:
        why: "epochs", "patience", "pruned", "budget", "diverged", "refused", or, where it is to be
            run again, "interrupted" or "no time".
        value: the best validation figure, or None where there is none yet.
        best_epoch: whose it is.
        epochs: whole ones.
        seconds: with validation.
        signal: that interrupted it, or None.
        told: the error's text, where there was one.
    """

    why: str
    value: float | None
    best_epoch: int
    epochs: int
    seconds: float
    signal: int | None = None
    told: str = ""

    @property
    def again(self) -> bool:
        return self.why in ("interrupted", "no time")


class _Stop(Exception):
    """Raised in a callback to leave `fit`, which hands the signals back as it unwinds. The model it
    was training is left half-way; nobody keeps it."""


def run_trial(
    trial: Trial,
    split: Split,
    space: Space,
    fixed: Mapping[str, Any],
    deadline: float = math.inf,
    needed: bool = False,
    stop: StopRequest | None = None,
) -> Ended:
    """Train what the trial suggests; every validation is reported, and may be the last.

    Args:
        trial: Optuna's.
        split: train and valid.
        space: what it may suggest.
        fixed: the study's own fit options: seed, epochs, patience, valid_metric, device.
        deadline: by `time.time`; then training stops, within a batch where a validation is done.
        needed: where no trial has a figure yet, this one goes on until it has.
        stop: a wish to stop from before training began; `fit` hears those that come later.
    """
    begun = time.perf_counter()
    best, best_epoch, epochs = -math.inf, 0, 0

    def ended(why: str, **more: Any) -> Ended:
        value = best if best_epoch else None
        return Ended(why, value, best_epoch, epochs, time.perf_counter() - begun, **more)

    def late() -> bool:
        return time.time() >= deadline

    def on_batch(done: int) -> None:
        if stop:
            raise _Stop("interrupted")
        if late() and (best_epoch or not needed):
            raise _Stop("budget" if best_epoch else "no time")

    def on_epoch(epoch: Epoch) -> None:
        nonlocal best, best_epoch, epochs
        if not epoch.valid:  # interrupted in the middle
            return
        epochs = epoch.number
        value = next(iter(epoch.valid.values()))
        if value > best:
            best, best_epoch = value, epoch.number
        trial.report(value, epoch.number)
        if stop:
            raise _Stop("interrupted")
        if trial.should_prune():
            raise _Stop("pruned")
        if late():
            raise _Stop("budget")

    try:
        point = suggest(trial, space)
        made = plan(point["model"], point["loss"], {**settings_of(point), **fixed})
        model = made.new_network(split.train)
        history = fit(
            model,
            made.make_loss(),
            split,
            made.training_options(),
            on_batch=on_batch,
            on_epoch=on_epoch,
        )
    except _Stop as why:
        return ended(str(why), signal=stop.signal if stop else None)
    except Diverged as error:
        return ended("diverged", told=str(error))
    except (InputError, MemoryError) as error:  # parameters that do not go together, or do not fit
        return ended("refused", told=str(error) or type(error).__name__)
    except RuntimeError as error:
        if "can't allocate memory" not in str(error):  # torch has no class for it
            raise
        return ended("refused", told="out of memory")
    return ended(history.stopped, signal=history.signal)


@dataclass(frozen=True)
class TrialRow:
    """A trial as reports show it.

    Args:
        number: Optuna's.
        state: complete, pruned, lost, running or waiting.
        value: the best validation figure, or None.
        why: see `Ended.why`.
        best_epoch, epochs, seconds: likewise.
        params: as suggested.
        start: what starting point it was, or "".
        rerun_of: the trial it runs again, or None.
        told: the error's text, or "".
    """

    number: int
    state: str
    value: float | None
    why: str
    best_epoch: int
    epochs: int
    seconds: float
    params: Point = field(default_factory=dict)
    start: str = ""
    rerun_of: int | None = None
    told: str = ""

    @property
    def counts(self) -> bool:
        return self.state == "complete" and self.value is not None


_STATES = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "lost"}


def row(trial: FrozenTrial) -> TrialRow:
    """What a study knows of a trial."""
    known = trial.user_attrs
    state = _STATES.get(trial.state.name, trial.state.name.lower())
    return TrialRow(
        trial.number,
        state,
        trial.value if state == "complete" else known.get("value"),
        known.get("why", ""),
        known.get("best_epoch", 0),
        known.get("epochs", 0),
        known.get("seconds", 0.0),
        dict(trial.params),
        known.get("start", ""),
        known.get("rerun_of"),
        known.get("told", ""),
    )


def rows_of(trials: list[FrozenTrial]) -> list[TrialRow]:
    """Those that were run, best first; complete ones before pruned ones, and both before lost."""
    order = {"complete": 0, "pruned": 1}
    rows = [row(trial) for trial in trials if HIDDEN not in trial.user_attrs]
    return sorted(
        (row for row in rows if row.state != "waiting"),
        key=lambda row: (
            order.get(row.state, 2), -math.inf if row.value is None else -row.value, row.number
        ),
    )  # fmt: skip
