"""A study of tuning: where in (alpha, beta) it went well, and what mattered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from llpauc.report.tuning import AlphaBeta, best_in_bins
from llpauc.storage.figure_files import plt


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
