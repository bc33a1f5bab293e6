"""The trials of `llpauc tune`, as a map over alpha and beta."""

from __future__ import annotations

import csv
import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from llpauc.errors import InputError

_MAX_BYTES = 64 << 20
_BINS = 8  # along each axis; fewer where there are fewer values

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class AlphaBeta:
    """A trial: its alpha and beta, its validation value, and whether it was trained to the end."""

    alpha: float
    beta: float
    value: float
    complete: bool


def edges(values: Sequence[float], max_bins: int = _BINS) -> Floats:
    """Edges of at most `max_bins` bins on a logarithmic scale.

    Where there are few distinct values, each has its own bin, and the edges lie half-way between.

    >>> edges([0.1, 0.1, 0.4]).round(3).tolist()
    [0.05, 0.2, 0.8]
    """
    distinct: Floats = np.unique(np.log(values))
    if len(distinct) == 1:
        logs = distinct[0] + np.array([-0.1, 0.1])
    elif len(distinct) > max_bins:
        logs = np.linspace(distinct[0] - 1e-9, distinct[-1] + 1e-9, max_bins + 1)
    else:
        middle = (distinct[1:] + distinct[:-1]) / 2
        logs = np.array([2 * distinct[0] - middle[0], *middle, 2 * distinct[-1] - middle[-1]])
    return np.asarray(np.exp(logs), np.float64)


def best_in_bins(trials: Sequence[AlphaBeta]) -> tuple[Floats, Floats, Floats]:
    """Edges of alpha, edges of beta, and the best complete value of each bin; NaN in empty bins."""
    alphas, betas = edges([t.alpha for t in trials]), edges([t.beta for t in trials])
    table = np.full((len(alphas) - 1, len(betas) - 1), np.nan)
    for trial in trials:
        if trial.complete:
            row, column = _bin(alphas, trial.alpha), _bin(betas, trial.beta)
            table[row, column] = np.fmax(table[row, column], trial.value)
    return alphas, betas, table


def _bin(edges: Floats, value: float) -> int:
    return int(np.clip(np.searchsorted(edges, value, "right") - 1, 0, len(edges) - 2))


def read_tuning(folder: str | None) -> dict[str, Any] | None:
    """The trials of a folder written by `llpauc tune`, as plain JSON for the page.

    It contains the edges of the bins, the best value of each bin and the best trial.
    """
    if folder is None:
        return None
    path = Path(folder) / "trials.csv"
    rows = _rows(path)
    numbered = [(row.get("trial", ""), _trial(row)) for row in rows]
    trials = [(int(n), trial) for n, trial in numbered if trial is not None and n.isdecimal()]
    complete = [(n, trial) for n, trial in trials if trial.complete]
    if not complete:
        raise InputError(
            f"{path}: no complete trial has both alpha and beta; tune the loss llpauc, or omit"
            " --tuning"
        )
    points = [trial for _, trial in trials]
    alphas, betas, table = best_in_bins(points)
    number, best = max(complete, key=lambda pair: pair[1].value)
    alpha, beta, value = _round([best.alpha, best.beta, best.value])
    return {
        "metric": _metric(Path(folder)),
        "alphas": _round(alphas),
        "betas": _round(betas),
        "values": [_round(row) for row in table],
        "alpha_values": _distinct([point.alpha for point in points], len(alphas) - 1),
        "beta_values": _distinct([point.beta for point in points], len(betas) - 1),
        "trials": len(rows),
        "complete": len(complete),
        "best": {"trial": number, "alpha": alpha, "beta": beta, "value": value},
    }


def _rows(path: Path) -> list[dict[str, str]]:
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise InputError(f"{path}: is larger than {_MAX_BYTES >> 20} MB, so it is not read")
        with path.open(encoding="utf-8", newline="") as file:
            return [
                {str(k): v for k, v in row.items() if isinstance(v, str)}
                for row in csv.DictReader(file)
            ]
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read: {error.strerror}; --tuning needs the folder that llpauc tune"
            " wrote"
        ) from None
    except (UnicodeDecodeError, csv.Error):
        raise InputError(f"{path}: is not a table of trials written by llpauc tune") from None


def _trial(row: Mapping[str, str]) -> AlphaBeta | None:
    """None if alpha, beta or the value is missing or out of range."""
    try:
        alpha, beta, value = (float(row.get(name, "")) for name in ("alpha", "beta", "value"))
    except ValueError:
        return None
    if not (0 < alpha <= 1 and 0 < beta <= 1 and math.isfinite(value)):
        return None
    return AlphaBeta(alpha, beta, value, row.get("state") == "complete")


def _metric(folder: Path) -> str:
    """The metric that was maximised, from best.toml."""
    try:
        best = tomllib.loads((folder / "best.toml").read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        best = {}
    return str(best.get("valid_metric", "metric"))[:40]


def _distinct(values: list[float], n_bins: int) -> list[float | None] | None:
    """The distinct values if each has its own bin, else None."""
    distinct = sorted(set(values))
    return _round(distinct) if len(distinct) == n_bins else None


def _round(values: Iterable[float]) -> list[float | None]:
    """Five digits; None for NaN."""
    return [None if math.isnan(value) else float(f"{value:.5g}") for value in values]
