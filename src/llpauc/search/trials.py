"""The trial runner of `tune` and `auto`: train a candidate, validate each epoch, stop in time."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from llpauc.data.interactions import Split
from llpauc.errors import InputError
from llpauc.recommend import Recommender
from llpauc.training import Diverged, Epoch

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}

# Called with what is being done and the fraction of the search that is done.
Progress = Callable[[str, float], None]


def no_progress(status: str, fraction: float) -> None:
    """A `Progress` that shows nothing."""


def parse_budget(text: str) -> float:
    """Seconds.

    >>> parse_budget("90s"), parse_budget("20m"), parse_budget("1.5h")
    (90.0, 1200.0, 5400.0)
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*([smh])\s*", text.lower())
    seconds = float(match[1]) * _UNITS[match[2]] if match else 0.0
    if not seconds:
        raise InputError(f"--budget must be a time such as 90s, 20m or 2h, got {text!r}")
    return seconds


@dataclass(frozen=True)
class Budget:
    """Seconds since `begun`, by `clock`; infinity is no limit."""

    seconds: float
    begun: float
    clock: Callable[[], float] = time.monotonic

    @property
    def passed(self) -> float:
        return self.clock() - self.begun

    @property
    def left(self) -> float:
        return self.seconds - self.passed


@dataclass(frozen=True)
class TrialResult:
    """How a trial ended.

    Args:
        ended: "epochs", "patience", "interrupted", "diverged", "refused" (the settings cannot be
            trained on these data), or the reason that a callback of `run_trial` gave.
        value: the best validation value, or None where no epoch was validated.
        best_epoch: the epoch of `value`.
        curve: the validation value of each epoch.
        seconds: of training and validation.
        signal: number of the signal that interrupted training, or None.
        message: text of the error, or "".
    """

    ended: str
    value: float | None = None
    best_epoch: int = 0
    curve: tuple[float, ...] = ()
    seconds: float = 0.0
    signal: int | None = None
    message: str = ""

    @property
    def sort_value(self) -> float:
        return -math.inf if self.value is None else self.value

    @property
    def value_text(self) -> str:
        return "-" if self.value is None else f"{self.value:.4f}"

    @property
    def epochs_text(self) -> str:
        return f"{self.best_epoch} of {len(self.curve)}"


class _StopTrial(Exception):
    """Raised in a callback to leave training, which restores the signal handlers on its way out."""


def run_trial(
    settings: Mapping[str, Any],
    split: Split,
    *,
    on_batch: Callable[[], str],
    on_validation: Callable[[Epoch, float], str],
    clock: Callable[[], float] = time.monotonic,
) -> TrialResult:
    """Train a candidate on `split.train` and validate it on `split.valid` after every epoch.

    Args:
        settings: parameters of `Recommender`, `valid_metric` among them.
        split: train and valid.
        on_batch: called about ten times a second; a text other than "" stops the trial and is the
            result's `ended`.
        on_validation: called with each epoch and its validation value; returns the same.
        clock: measures `seconds`.
    """
    begun = clock()
    curve: list[float] = []
    best, best_epoch = -math.inf, 0

    def stop_if(reason: str) -> None:
        if reason:
            raise _StopTrial(reason)

    def on_epoch(epoch: Epoch) -> None:
        nonlocal best, best_epoch
        for value in epoch.valid.values():  # one, or none where the epoch was interrupted
            curve.append(value)
            if value > best:
                best, best_epoch = value, epoch.number
            stop_if(on_validation(epoch, value))

    message, signal = "", None
    try:
        fitted = Recommender(**settings, recipe="none").fit(
            split, on_batch=lambda done: stop_if(on_batch()), on_epoch=on_epoch
        )
        assert fitted.history is not None
        ended, signal = fitted.history.stopped, fitted.history.signal
    except _StopTrial as stop:
        ended = str(stop)
    except Diverged as error:
        ended, message = "diverged", str(error)
    except (InputError, MemoryError) as error:
        ended, message = "refused", str(error) or "out of memory"
    except RuntimeError as error:
        if "can't allocate memory" not in str(error):  # torch has no class for this error
            raise
        ended, message = "refused", "out of memory"
    value = best if best_epoch else None
    return TrialResult(ended, value, best_epoch, tuple(curve), clock() - begun, signal, message)
