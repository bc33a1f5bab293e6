"""Clean training beside noise training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from llpauc.research.plots.paper import Spread
from llpauc.storage.figure_files import plt


def clean_against_noise(
    panels: Mapping[str, Mapping[str, tuple[Spread, Spread, float]]], x_label: str, title: str
) -> Any:
    """Two bars a method, one panel a pair of data sets.

    Args:
        panels: heading -> method -> clean, noise, and the share lost, which is written beside.
        x_label: what the bars measure.
        title: stands above.
    """
    most = max(len(own) for own in panels.values())
    figure, axes = plt.subplots(
        1, len(panels), figsize=(5.2 * len(panels), 0.42 * most + 1.6), layout="constrained",
        squeeze=False,
    )  # fmt: skip
    for axis, (heading, own) in zip(axes[0], panels.items(), strict=True):
        at = np.arange(len(own))
        sides = [clean for clean, _, _ in own.values()], [noise for _, noise, _ in own.values()]
        for place, (name, hatch) in enumerate((("clean", ""), ("noise", "//"))):
            spreads = sides[place]
            drawn = axis.barh(
                at + (place - 0.5) * 0.4, [s.mean for s in spreads], 0.4,
                xerr=[s.sd or 0.0 for s in spreads], capsize=2, hatch=hatch, color=f"C{place}",
                alpha=0.8, edgecolor="white", label=f"{name} training",
            )  # fmt: skip
        lost = [f"{-share:+.1%}" for _, _, share in own.values()]
        axis.bar_label(drawn, lost, fontsize=7, padding=3)
        axis.set_yticks(at, list(own), fontsize=8)
        axis.invert_yaxis()
        axis.locator_params(axis="x", nbins=5)
        axis.set_xlabel(x_label)
        axis.margins(x=0.12)
        axis.set_title(heading, fontsize=9)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=8)
    figure.suptitle(title, fontsize=10)
    return figure
