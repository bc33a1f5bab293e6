"""The simulation: heat maps of correlation over (alpha, beta), and what a wrong beta costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from llpauc.storage.figure_files import plt

Floats = npt.NDArray[np.float64]

_COLUMNS = 3
_HIGH = 0.9  # a line is drawn where the correlation reaches this
# Colours of Okabe and Ito, told apart by line style too.
_STYLES = (("#D55E00", "-"), ("#0072B2", "--"), ("#666666", "-."), ("black", ":"))


@dataclass(frozen=True)
class Panel:
    """One K.

    Args:
        k: the K.
        grid: (alphas, betas) correlations, NaN where undefined.
        best: alpha, beta and correlation of the maximum, or None.
        curves: name -> correlation at every beta.
    """

    k: int
    grid: Floats
    best: tuple[float, float, float] | None
    curves: Mapping[str, Floats]


def heat_maps(
    panels: Sequence[Panel], alphas: Sequence[float], betas: Sequence[float], title: str
) -> Any:
    """A heat map a K, below it three of them cut along beta.

    Args:
        panels: one for each K.
        alphas, betas: the grid, upwards.
        title: what was drawn.
    """
    columns = min(_COLUMNS, len(panels))
    lines = -(-len(panels) // columns)
    chosen = _spread(panels, columns)
    figure: Any = plt.figure(figsize=(3 * columns + 0.6, 2.7 * lines + 3.4), layout="constrained")
    upper, lower = figure.subfigures(2, 1, height_ratios=(2.7 * lines, 2.9))
    axes = upper.subplots(lines, columns, squeeze=False, sharex=True, sharey=True)
    for axis in axes.ravel()[len(panels) :]:
        axis.set_visible(False)
    for axis, panel in zip(axes.ravel(), panels, strict=False):
        mesh = _heat_map(axis, panel, alphas, betas)
    for axis in axes[:, 0]:
        axis.set_ylabel("alpha (share of positives)")
    for column in range(columns):
        last = [axis for axis in axes[:, column] if axis.get_visible()][-1]
        last.set_xlabel("beta (share of negatives)")
        last.tick_params(labelbottom=True)
    upper.colorbar(mesh, ax=axes, label="correlation with Recall@K", aspect=35, pad=0.01)
    upper.suptitle(
        f"LLPAUC(alpha, beta): {title}\n"
        f"star: maximum, at the smallest alpha of equals; white line: {_HIGH}; top edge: OPAUC; "
        "top right: AUC",
        fontsize=9,
    )
    cuts = lower.subplots(1, len(chosen), squeeze=False, sharey=True)[0]
    for axis, panel in zip(cuts, chosen, strict=True):
        for (name, curve), (colour, line) in zip(panel.curves.items(), _STYLES, strict=False):
            axis.plot(betas, curve, line, color=colour, label=name)
        axis.set_xscale("log")
        axis.set_title(f"K = {panel.k:,}", fontsize=10)
        axis.set_xlabel("beta")
        axis.grid(alpha=0.3)
    cuts[0].set_ylabel("correlation with Recall@K")
    lower.legend(
        *cuts[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(_STYLES),
        fontsize=9,
    )  # fmt: skip
    return figure


def _heat_map(axis: Any, panel: Panel, alphas: Sequence[float], betas: Sequence[float]) -> Any:
    axis.set_facecolor("0.8")  # undefined
    mesh = axis.pcolormesh(
        betas, alphas, panel.grid, shading="nearest", cmap="viridis", vmin=0, vmax=1
    )
    axis.set_xscale("log")
    axis.set_yscale("log")
    if panel.best is None:
        axis.set_title(f"K = {panel.k:,}: undefined", fontsize=10)
        return mesh
    alpha, beta, correlation = panel.best
    if min(panel.grid.shape) > 1 and np.nanmin(panel.grid) < _HIGH < correlation:
        axis.contour(betas, alphas, panel.grid, levels=[_HIGH], colors="white", linewidths=1)
    axis.plot(beta, alpha, "*", color="#D55E00", markeredgecolor="white", markersize=13,
              clip_on=False)  # fmt: skip
    axis.set_title(f"K = {panel.k:,}: maximum {correlation:.3f}", fontsize=10)
    return mesh


def _spread(panels: Sequence[Panel], most: int) -> list[Panel]:
    """The first, the last, and what lies evenly between."""
    places = np.linspace(0, len(panels) - 1, most).round().astype(int)
    return [panels[place] for place in dict.fromkeys(places.tolist())]
