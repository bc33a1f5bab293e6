"""Figures of a tuning study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from llpauc.report.tuning import AlphaBeta, best_in_bins
from llpauc.storage.figure_files import plt


def alpha_beta_map(trials: Sequence[AlphaBeta], metric: str) -> Any:
    """The best value of each bin of alpha and beta, and the trials.

    Args:
        trials: at least one complete.
        metric: on validation.
    """
    alphas, betas, table = best_in_bins(trials)
    figure, axis = plt.subplots(figsize=(6.4, 4.6), layout="constrained")
    axis.set_facecolor("0.85")
    mesh = axis.pcolormesh(betas, alphas, np.ma.masked_invalid(table), cmap="viridis")
    for label, marker, colour, edge in (
        ("complete", "o", "white", "black"),
        ("pruned", "x", "0.35", "0.35"),
    ):
        shown = [t for t in trials if t.complete == (label == "complete")]
        axis.plot(
            [t.beta for t in shown], [t.alpha for t in shown], marker, color=colour, markersize=5,
            markeredgecolor=edge, clip_on=False, label=f"{label} ({len(shown)})",
        )  # fmt: skip
    best = max((t for t in trials if t.complete), key=lambda trial: trial.value)
    axis.plot(
        best.beta, best.alpha, "*", color="#D55E00", markeredgecolor="white", markersize=15,
        clip_on=False, label=f"best: alpha {best.alpha:.3g}, beta {best.beta:.3g}",
    )  # fmt: skip
    axis.set(
        xscale="log", yscale="log", xlabel="beta (fraction of negatives)",
        ylabel="alpha (fraction of positives)",
    )  # fmt: skip
    for side in (axis.xaxis, axis.yaxis):
        side.set_major_formatter("{x:g}")
    axis.yaxis.set_minor_formatter("{x:.1g}")
    axis.set_title(f"Best validation {metric} of each bin; grey: no complete trial", fontsize=10)
    figure.colorbar(mesh, ax=axis, label=f"validation {metric}")
    figure.legend(loc="outside lower center", ncols=3, fontsize=8)
    return figure


def importance_bars(importances: Mapping[str, float], metric: str, trials: int) -> Any:
    """Horizontal bars, the most important option at the top."""
    ordered = dict(sorted(importances.items(), key=lambda pair: pair[1]))
    figure, axis = plt.subplots(figsize=(6.4, 0.34 * len(ordered) + 1.5), layout="constrained")
    bars = axis.barh(list(ordered), list(ordered.values()), color="#0072B2")
    axis.bar_label(bars, [f"{value:.2f}" for value in ordered.values()], fontsize=8, padding=2)
    axis.set(xlim=(0, 1.08), xlabel="fraction of the variance of the trials' ranks explained")
    axis.set_title(f"Importance for validation {metric} in {trials} trials", fontsize=10)
    return figure
