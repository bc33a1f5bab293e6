"""A study of tuning: where in (alpha, beta) it went well, and what mattered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from llpauc.storage.figure_files import plt

Floats = npt.NDArray[np.float64]

_BINS = 8  # a side; fewer where there are fewer values


@dataclass(frozen=True)
class AlphaBeta:
    """A trial in the plane: where, how good, and whether it came to its end."""

    alpha: float
    beta: float
    value: float
    complete: bool


def edges(values: Sequence[float], most: int = _BINS) -> Floats:
    """Edges of bins by the logarithm: half-way between neighbours where there are few values.

    >>> edges([0.1, 0.1, 0.4]).round(3).tolist()
    [0.05, 0.2, 0.8]
    """
    found: Floats = np.unique(np.log(values))
    if len(found) == 1:
        logs = found[0] + np.array([-0.1, 0.1])
    elif len(found) > most:
        logs = np.linspace(found[0] - 1e-9, found[-1] + 1e-9, most + 1)
    else:
        middle = (found[1:] + found[:-1]) / 2
        logs = np.array([2 * found[0] - middle[0], *middle, 2 * found[-1] - middle[-1]])
    made: Floats = np.exp(logs)
    return made


def best_in_bins(trials: Sequence[AlphaBeta]) -> tuple[Floats, Floats, Floats]:
    """Edges of alpha and of beta, and the best complete value of each bin; NaN where there is
    none."""
    alphas, betas = edges([t.alpha for t in trials]), edges([t.beta for t in trials])
    table = np.full((len(alphas) - 1, len(betas) - 1), np.nan)
    for trial in trials:
        if trial.complete:
            row, column = _bin(alphas, trial.alpha), _bin(betas, trial.beta)
            table[row, column] = np.fmax(table[row, column], trial.value)
    return alphas, betas, table


def _bin(edges: Floats, value: float) -> int:
    return int(np.clip(np.searchsorted(edges, value, "right") - 1, 0, len(edges) - 2))


def alpha_beta_map(trials: Sequence[AlphaBeta], metric: str) -> Any:
    """The best trial of each bin; dots are complete trials, crosses pruned ones, the star the best.

    Args:
        trials: at least one complete.
        metric: on validation.
    """
    alphas, betas, table = best_in_bins(trials)
    figure, axis = plt.subplots(figsize=(6.4, 4.6), layout="constrained")
    axis.set_facecolor("0.85")  # nothing tried
    mesh = axis.pcolormesh(betas, alphas, np.ma.masked_invalid(table), cmap="viridis")
    for complete, mark, colour in ((True, "o", "white"), (False, "x", "0.35")):
        own = [t for t in trials if t.complete is complete]
        axis.plot(
            [t.beta for t in own], [t.alpha for t in own], mark, color=colour, markersize=5,
            markeredgecolor="black" if complete else colour, clip_on=False,
            label=f"{'complete' if complete else 'pruned'} ({len(own)})",
        )  # fmt: skip
    best = max((t for t in trials if t.complete), key=lambda trial: trial.value)
    axis.plot(
        best.beta, best.alpha, "*", color="#D55E00", markeredgecolor="white", markersize=15,
        clip_on=False, label=f"best: alpha {best.alpha:.3g}, beta {best.beta:.3g}",
    )  # fmt: skip
    axis.set_xscale("log")
    axis.set_yscale("log")
    for side in (axis.xaxis, axis.yaxis):
        side.set_major_formatter("{x:g}")
    axis.yaxis.set_minor_formatter("{x:.1g}")
    axis.set_xlabel("beta (share of negatives)")
    axis.set_ylabel("alpha (share of positives)")
    axis.set_title(f"Best validation {metric} of each bin; grey: nothing complete", fontsize=10)
    figure.colorbar(mesh, ax=axis, label=f"validation {metric}")
    figure.legend(loc="outside lower center", ncols=3, fontsize=8)
    return figure


def importance_bars(shares: Mapping[str, float], metric: str, trials: int) -> Any:
    """Horizontal bars, the most important above."""
    ordered = dict(sorted(shares.items(), key=lambda pair: pair[1]))
    figure, axis = plt.subplots(figsize=(6.4, 0.34 * len(ordered) + 1.5), layout="constrained")
    drawn = axis.barh(list(ordered), list(ordered.values()), color="#0072B2")
    axis.bar_label(drawn, [f"{share:.2f}" for share in ordered.values()], fontsize=8, padding=2)
    axis.set_xlim(0, 1.08)
    axis.set_xlabel("share of the spread of the trials' ranks that it explains alone")
    axis.set_title(f"What mattered to validation {metric} in {trials} trials", fontsize=10)
    return figure
