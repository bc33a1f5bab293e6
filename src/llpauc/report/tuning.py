"""The trials that `llpauc tune` leaves in a folder, as a map over alpha and beta."""

from __future__ import annotations

import csv
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from llpauc.errors import InputError

_MOST_BYTES = 64 << 20
_TRIALS = "trials.csv"
_BINS = 8  # along each axis; fewer where there are fewer values

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class AlphaBeta:
    """A trial: its alpha and beta, its validation value, and whether it was trained to the end."""

    alpha: float
    beta: float
    value: float
    complete: bool


def edges(values: Sequence[float], most: int = _BINS) -> Floats:
    """Edges of at most `most` bins on a logarithmic scale.

    Where there are few distinct values, each has its own bin, and the edges lie half-way between.

    >>> edges([0.1, 0.1, 0.4]).round(3).tolist()
    [0.05, 0.2, 0.8]
    """
    distinct: Floats = np.unique(np.log(values))
    if len(distinct) == 1:
        logs = distinct[0] + np.array([-0.1, 0.1])
    elif len(distinct) > most:
        logs = np.linspace(distinct[0] - 1e-9, distinct[-1] + 1e-9, most + 1)
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
    """Plain JSON: edges of the bins, the best value of each, the trials' places, the best trial."""
    if folder is None:
        return None
    rows = _rows(Path(folder) / _TRIALS)
    numbered = [
        (int(number), AlphaBeta(*where, row.get("state") == "complete"))
        for row in rows
        if (where := _where(row)) is not None and (number := row.get("trial", "")).isdecimal()
    ]
    complete = [(number, trial) for number, trial in numbered if trial.complete]
    if not complete:
        raise InputError(
            f"{Path(folder) / _TRIALS}: no complete trial has both alpha and beta; tune the loss"
            " llpauc, or leave --tuning away"
        )
    trials = [trial for _, trial in numbered]
    alphas, betas, table = best_in_bins(trials)
    first, best = max(complete, key=lambda pair: pair[1].value)
    return {
        "metric": _metric(Path(folder)),
        "alphas": _rounded(alphas.tolist()),
        "betas": _rounded(betas.tolist()),
        "values": [[None if math.isnan(v) else _short(v) for v in row] for row in table.tolist()],
        "alpha_values": _few([trial.alpha for trial in trials], len(alphas) - 1),
        "beta_values": _few([trial.beta for trial in trials], len(betas) - 1),
        "trials": len(rows),
        "complete": len(complete),
        "best": {
            "trial": first,
            "alpha": _short(best.alpha),
            "beta": _short(best.beta),
            "value": _short(best.value),
        },
    }


def _rows(path: Path) -> list[dict[str, str]]:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise InputError(f"{path}: is larger than any study's; it is not read")
        with path.open(encoding="utf-8", newline="") as file:
            return [
                {str(k): v for k, v in row.items() if isinstance(v, str)}
                for row in csv.DictReader(file)
            ]
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read: {error.strerror}; --tuning wants the folder that llpauc tune"
            " wrote"
        ) from None
    except (UnicodeDecodeError, csv.Error):
        raise InputError(f"{path}: is no table of trials as llpauc tune writes it") from None


def _where(row: Mapping[str, str]) -> tuple[float, float, float] | None:
    """Alpha, beta and value of a trial; None where it has not all three."""
    try:
        alpha, beta, value = (float(row.get(name, "")) for name in ("alpha", "beta", "value"))
    except ValueError:
        return None
    fits = 0 < alpha <= 1 and 0 < beta <= 1 and math.isfinite(value)
    return (alpha, beta, value) if fits else None


def _metric(folder: Path) -> str:
    """What was maximised, as best.toml has it."""
    try:
        found = tomllib.loads((folder / "best.toml").read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        found = {}
    return str(found.get("valid_metric", "figure"))[:40]


def _few(values: list[float], bins: int) -> list[float] | None:
    """The values themselves, ascending, where each has a bin of its own; else None."""
    found = sorted(set(values))
    return _rounded(found) if len(found) == bins else None


def _rounded(values: list[float]) -> list[float]:
    return [_short(value) for value in values]


def _short(value: float) -> float:
    return float(f"{value:.5g}")
