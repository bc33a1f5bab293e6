"""Figures of a data set and of several models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from llpauc.data.inspection import Inspection, top_count
from llpauc.storage.figure_files import plt


def long_tail(inspection: Inspection, title: str) -> Any:
    """Events per item and per user, in descending order, on logarithmic axes."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained", sharey=True)
    for axis, events, what in (
        (axes[0], inspection.item_events, "items"),
        (axes[1], inspection.user_events, "users"),
    ):
        events = events[events > 0]
        axis.loglog(np.arange(1, len(events) + 1), events, drawstyle="steps-post")
        tenth = top_count(len(events), percent=10)
        axis.axvline(tenth, linestyle=":", color="0.4")
        fraction = events[:tenth].sum() / max(events.sum(), 1)
        axis.set_title(
            f"the top 10% {what} (left of the dots): {fraction:.0%} of events", fontsize=9
        )
        axis.set_xlabel(f"{what}, by number of events")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("events")
    figure.suptitle(title, parse_math=False)  # a path may contain $
    return figure


def compare_models(
    results: Mapping[str, Mapping[str, Mapping[str, float]]], metrics: Sequence[str], title: str
) -> Any:
    """Bars of each metric by model and user group.

    Args:
        results: model -> group ("all", "warm", "cold") -> metric -> value.
        metrics: one panel each.
        title: of the figure.
    """
    figure, axes = plt.subplots(
        1, len(metrics), figsize=(4.5 * len(metrics), 4), layout="constrained", squeeze=False
    )
    groups = [g for g in ("all", "warm", "cold") if any(g in r for r in results.values())]
    hatches = {"all": "", "warm": "//", "cold": ".."}
    for axis, metric in zip(axes[0], metrics, strict=True):
        width = 0.8 / len(groups)
        for position, group in enumerate(groups):
            values = [result.get(group, {}).get(metric, np.nan) for result in results.values()]
            at = np.arange(len(results)) + (position - (len(groups) - 1) / 2) * width
            style = {"hatch": hatches[group], "edgecolor": "white"}
            bars = axis.bar(at, values, width, label=f"{group} users", **style)
            axis.bar_label(bars, [f"{v:.3f}" for v in values], fontsize=7, padding=2)
        axis.set_xticks(np.arange(len(results)), list(results))
        axis.set_ylabel(metric)
        axis.margins(y=0.15)
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    figure.suptitle(title, parse_math=False)  # a path may contain $
    return figure
