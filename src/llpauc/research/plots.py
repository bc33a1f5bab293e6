"""Figures of the studies: bars, curves, heat maps over alpha and beta, a ROC curve.

Every function returns a matplotlib figure; `llpauc.storage.figure_files.save` writes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from llpauc.research.report_files import MeanSd
from llpauc.research.simulation_report import Summary, curves_along_beta, describe
from llpauc.storage.figure_files import plt

Floats = npt.NDArray[np.float64]
Values = Mapping[str, MeanSd]  # by name
Curves = Mapping[str, tuple[Sequence[float], Sequence[MeanSd]]]  # name -> x, means over seeds

_MARKERS = ("o", "s", "^", "D", "v", "P")
_LINES = ("-", "--", "-.", ":")
_HATCHES = ("", "//", "..", "xx")
_CONTOUR = 0.9  # correlation at which the simulation's heat maps have a line
# Colours of Okabe and Ito; the line styles differ too.
_CUT_STYLES = (("#D55E00", "-"), ("#0072B2", "--"), ("#666666", "-."), ("black", ":"))


def _axes(count: int, columns: int, width: float, height: float, title: str) -> tuple[Any, Any]:
    """A figure with `count` axes in rows of `columns`."""
    rows = -(-count // columns)
    size = (width * columns, height * rows)
    figure, axes = plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
    for axis in axes.ravel()[count:]:
        axis.set_visible(False)
    figure.suptitle(title, fontsize=10)
    return figure, axes.ravel()[:count]


def _legend_below(figure: Any, axis: Any) -> None:
    handles, labels = axis.get_legend_handles_labels()
    if labels:
        style = {"loc": "outside lower center", "ncols": len(labels), "fontsize": 8}
        figure.legend(handles, labels, **style)


def bars(
    panels: Mapping[str, Mapping[str, Values]],
    x_label: str,
    title: str,
    *,
    texts: Mapping[str, Sequence[str]] | None = None,
    published: Mapping[str, Mapping[str, float]] | None = None,
    lines: Mapping[str, Mapping[str, float]] | None = None,
    left: float = 0.0,
) -> Any:
    """Horizontal bars with standard deviations.

    Args:
        panels: panel -> series -> name -> value; the series of a panel have the same names.
        x_label: what the bars measure.
        title: of the figure.
        texts: panel -> text next to each bar of the last series.
        published: panel -> name -> value of the paper, drawn as a diamond.
        lines: panel -> name -> value, drawn as a vertical line.
        left: start of the x axis.
    """
    n_bars = max(sum(map(len, series.values())) for series in panels.values())
    figure, axes = _axes(len(panels), min(2, len(panels)), 5.2, 0.25 * n_bars + 1.6, title)
    for axis, (panel, series) in zip(axes, panels.items(), strict=True):
        names = list(next(iter(series.values())))
        at, size = np.arange(len(names)), 0.8 / len(series)
        for i, (label, values) in enumerate(series.items()):
            means, sds = zip(*((v.mean, v.sd or np.nan) for v in values.values()), strict=True)
            style = {"hatch": _HATCHES[i], "color": f"C{i}", "alpha": 0.8, "edgecolor": "white"}
            place = at + (i - (len(series) - 1) / 2) * size
            drawn = axis.barh(place, means, size, xerr=sds, capsize=2, label=label, **style)
        if texts is not None:
            axis.bar_label(drawn, texts[panel], fontsize=7, padding=3)
        diamonds = (published or {}).get(panel, {})
        if diamonds:
            places = [names.index(name) for name in diamonds]
            axis.plot(list(diamonds.values()), places, "D", c="black", ms=4, label="the paper")
        for i, (name, value) in enumerate((lines or {}).get(panel, {}).items()):
            axis.axvline(value, linestyle=_LINES[1 + i % 3], color="C3", label=name)
        axis.set_yticks(at, names, fontsize=8)
        axis.invert_yaxis()
        axis.margins(x=0.12)
        axis.set_xlim(left=left)
        axis.set_xlabel(x_label)
        axis.set_title(panel, fontsize=9)
    _legend_below(figure, axes[0])
    return figure


def curves(panels: Mapping[str, Curves], x_label: str, y_label: str, title: str) -> Any:
    """Lines with bands of one standard deviation, one panel per name."""
    figure, axes = _axes(len(panels), len(panels), 4.8, 3.6, title)
    for axis, (name, lines) in zip(axes, panels.items(), strict=True):
        for i, (label, (x, values)) in enumerate(lines.items()):
            means, sds = np.array([(value.mean, value.sd or 0.0) for value in values]).T
            style = {"marker": _MARKERS[i % 6], "linestyle": _LINES[i % 4], "markersize": 4}
            axis.plot(x, means, label=label, **style)
            axis.fill_between(x, means - sds, means + sds, alpha=0.15)
        axis.set_title(name, fontsize=9)
        axis.set_xlabel(x_label)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    axes[0].set_ylabel(y_label)
    return figure


def heat_maps(
    grids: Mapping[str, Floats],
    alphas: Sequence[float],
    betas: Sequence[float],
    title: str,
    unit: str = "normalized: worst 0, best 1",
) -> Any:
    """One map per metric over alpha (vertical) and beta (horizontal); a cross marks the best."""
    figure, axes = _axes(len(grids), len(grids), 3.6, 3.7, title)
    for axis, (name, values) in zip(axes, grids.items(), strict=True):
        image = axis.imshow(values, origin="lower", cmap="viridis", vmin=0, vmax=1, aspect="auto")
        best = np.unravel_index(int(np.nanargmax(values)), values.shape)
        axis.plot(best[1], best[0], "x", color="red", markersize=10, markeredgewidth=2)
        axis.set_xticks(range(len(betas)), [f"{beta:g}" for beta in betas], fontsize=7, rotation=60)
        axis.set_yticks(range(len(alphas)), [f"{alpha:g}" for alpha in alphas], fontsize=7)
        axis.set_xlabel("beta (FPR at most)")
        axis.set_title(name, fontsize=9)
    axes[0].set_ylabel("alpha (TPR at most)")
    figure.colorbar(image, ax=axes.tolist(), label=unit, shrink=0.9)
    return figure


def roc_curve(fpr: Floats, tpr: Floats, alpha: float, beta: float, title: str) -> Any:
    """A ROC curve and its lower-left corner, with the region of LLPAUC shaded."""
    figure, axes = _axes(2, 2, 4.2, 3.9, title)
    inside = np.linspace(0, beta, 2000)
    height = np.minimum(np.interp(inside, fpr, tpr), alpha)
    style = {"alpha": 0.35, "hatch": "//", "edgecolor": "C1", "color": "C1"}
    label = f"TPR ≤ {alpha:g}, FPR ≤ {beta:g}"
    for axis, name, right in zip(
        axes, ("whole", "left end"), (1.0, min(1.0, 2 * beta)), strict=True
    ):
        axis.plot(fpr, tpr, color="C0", drawstyle="steps-post", label="ROC curve")
        axis.fill_between(inside, 0, height, label=label, **style)
        axis.axhline(alpha, linestyle="--", color="0.4", linewidth=1)
        axis.axvline(beta, linestyle=":", color="0.4", linewidth=1)
        axis.set(xlim=(-0.01 * right, right), ylim=(0, 1.02), xlabel="false positive rate")
        axis.grid(alpha=0.3)
        axis.set_title(name, fontsize=9)
    axes[0].set_ylabel("true positive rate")
    axes[0].legend(fontsize=8, loc="lower right")
    return figure


def simulation_figure(summary: Summary) -> Any:
    """A heat map of the correlation per K, and below them cuts along beta for up to three K."""
    design, findings = summary.simulation.design, summary.recall
    columns = min(3, len(findings))
    rows = -(-len(findings) // columns)
    size = (3.2 * columns + 0.8, 2.8 * (rows + 1) + 0.8)
    figure: Any = plt.figure(figsize=size, layout="constrained")
    axes = figure.subplots(rows + 1, columns, squeeze=False, sharex=True, sharey="row")
    figure.suptitle(
        f"LLPAUC(alpha, beta): {describe(summary.simulation)}\nstar: maximum, at the smallest alpha"
        f" of equal ones; white line: {_CONTOUR}; top edge: OPAUC; top right: AUC",
        fontsize=9,
    )
    # Heat maps.
    maps, cuts = axes[:-1], axes[-1]
    for axis in maps.ravel()[len(findings) :]:
        axis.set_visible(False)
    grids = summary.simulation.correlations["llpauc", "recall"]
    style = {"shading": "nearest", "cmap": "viridis", "vmin": 0, "vmax": 1}
    star = {"color": "#D55E00", "markeredgecolor": "white", "markersize": 13, "clip_on": False}
    for axis, finding, grid in zip(maps.ravel(), findings, grids, strict=False):
        axis.set_facecolor("0.8")  # undefined
        mesh = axis.pcolormesh(design.betas, design.alphas, grid, **style)
        axis.set(xscale="log", yscale="log")
        best = finding.llpauc
        text = "undefined" if best is None else f"maximum {best.correlation:.3f}"
        axis.set_title(f"K = {finding.k:,}: {text}", fontsize=10)
        if best is None:
            continue
        axis.plot(best.beta, best.alpha, "*", **star)
        if min(grid.shape) > 1 and np.nanmin(grid) < _CONTOUR < best.correlation:
            line = {"levels": [_CONTOUR], "colors": "white", "linewidths": 1}
            axis.contour(design.betas, design.alphas, grid, **line)
    for axis in maps[:, 0]:
        axis.set_ylabel("alpha (fraction of positives)")
    figure.colorbar(mesh, ax=maps, label="correlation with Recall@K", aspect=35, pad=0.01)
    # Cuts along beta, of the first, the middle and the last K.
    chosen = np.linspace(0, len(findings) - 1, columns).round().astype(int).tolist()
    for axis, at in zip(cuts, chosen, strict=True):
        lines = curves_along_beta(summary, at)
        for (name, curve), (colour, line_style) in zip(lines.items(), _CUT_STYLES, strict=False):
            axis.plot(design.betas, curve, line_style, color=colour, label=name)
        axis.set_title(f"K = {findings[at].k:,}", fontsize=10)
        axis.set_xlabel("beta (fraction of negatives)")
        axis.grid(alpha=0.3)
    cuts[0].set_ylabel("correlation with Recall@K")
    _legend_below(figure, cuts[0])
    return figure
