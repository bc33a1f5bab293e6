"""Figures of the studies: tables as bars, curves over a parameter, heat maps over alpha and beta.

Every function returns a matplotlib figure; `llpauc.storage.figure_files.save` writes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from llpauc.research.report_files import MeanSd
from llpauc.research.simulation_report import Spot, Summary, curves_along_beta, describe
from llpauc.storage.figure_files import plt

Floats = npt.NDArray[np.float64]
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


def _legend_below(figure: Any, axis: Any, fontsize: int = 8) -> None:
    handles, labels = axis.get_legend_handles_labels()
    place = "outside lower center"
    figure.legend(handles, labels, loc=place, ncols=len(labels), fontsize=fontsize)


def _bars(axis: Any, at: Any, values: Sequence[MeanSd], size: float = 0.8, **style: Any) -> Any:
    """Horizontal bars with error bars."""
    means, sds = [value.mean for value in values], [value.sd or 0.0 for value in values]
    return axis.barh(at, means, size, xerr=sds, capsize=2, edgecolor="white", **style)


def compare_losses(
    rows: Mapping[tuple[str, str, str], tuple[MeanSd, float | None]], title: str
) -> Any:
    """Bars of every loss, one panel per data set and backbone; a diamond is the published value.

    Args:
        rows: (data, backbone, method) -> our value and the published mean; a method with backbone
            "-" becomes a vertical line in the panels of its data set.
        title: of the figure.
    """
    panels = list(dict.fromkeys((data, backbone) for data, backbone, _ in rows if backbone != "-"))
    untrained = list(dict.fromkeys(method for _, backbone, method in rows if backbone == "-"))
    figure, axes = _axes(len(panels), min(2, len(panels)), 4.8, 3.4, title)
    for axis, (data, backbone) in zip(axes, panels, strict=True):
        values = {m: value for (d, b, m), value in rows.items() if (d, b) == (data, backbone)}
        at = np.arange(len(values), dtype=float)
        hatches = ["//" if method == "LLPAUC" else "" for method in values]
        ours = [value for value, _ in values.values()]
        _bars(axis, at, ours, color="C0", alpha=0.75, hatch=hatches, label="ours")
        published = [(p, i) for i, (_, p) in zip(at, values.values(), strict=True) if p is not None]
        if published:
            axis.plot(*zip(*published, strict=True), "D", c="black", ms=4, label="the paper")
        for (d, b, method), (value, _) in rows.items():
            if (d, b) == (data, "-"):
                style = _LINES[1 + untrained.index(method) % 3]
                axis.axvline(value.mean, linestyle=style, color="C3", label=method)
        axis.set_yticks(at, list(values), fontsize=8)
        axis.invert_yaxis()
        axis.set_title(f"{data}, {backbone}", fontsize=9)
        axis.set_xlabel("Recall@20")
    _legend_below(figure, axes[0])
    return figure


def clean_and_noise(
    panels: Mapping[str, Mapping[str, tuple[MeanSd, MeanSd, float]]], x_label: str, title: str
) -> Any:
    """Two bars per method, one panel per pair of data sets.

    Args:
        panels: pair -> method -> clean value, noise value, and the fraction lost, which is
            written next to the bars.
        x_label: what the bars measure.
        title: of the figure.
    """
    height = 0.42 * max(len(values) for values in panels.values()) + 1.6
    figure, axes = _axes(len(panels), len(panels), 5.2, height, title)
    for axis, (pair, values) in zip(axes, panels.items(), strict=True):
        at = np.arange(len(values))
        for side, name in enumerate(("clean", "noise")):
            bars = [(clean, noise)[side] for clean, noise, _ in values.values()]
            style = {"hatch": _HATCHES[side], "color": f"C{side}", "label": f"{name} training"}
            drawn = _bars(axis, at + (side - 0.5) * 0.4, bars, 0.4, alpha=0.8, **style)
        labels = [f"{-lost:+.1%}" for _, _, lost in values.values()]
        axis.bar_label(drawn, labels, fontsize=7, padding=3)
        axis.set_yticks(at, list(values), fontsize=8)
        axis.invert_yaxis()
        axis.locator_params(axis="x", nbins=5)
        axis.set_xlabel(x_label)
        axis.margins(x=0.12)
        axis.set_title(pair, fontsize=9)
    _legend_below(figure, axes[0])
    return figure


def curves(panels: Mapping[str, Curves], x_label: str, y_label: str, title: str) -> Any:
    """Lines with bands of one standard deviation, one panel per name."""
    figure, axes = _axes(len(panels), len(panels), 4.8, 3.6, title)
    for axis, (name, lines) in zip(axes, panels.items(), strict=True):
        for i, (label, (x, values)) in enumerate(lines.items()):
            means = np.array([value.mean for value in values])
            sds = np.array([value.sd or 0.0 for value in values])
            style = {"marker": _MARKERS[i % 6], "linestyle": _LINES[i % 4], "markersize": 4}
            axis.plot(x, means, label=label, **style)
            axis.fill_between(x, means - sds, means + sds, alpha=0.15)
        axis.set_title(name, fontsize=9)
        axis.set_xlabel(x_label)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    axes[0].set_ylabel(y_label)
    return figure


def grouped_bars(
    groups: Mapping[str, Mapping[str, MeanSd]], y_label: str, title: str, bottom: float = 0.0
) -> Any:
    """Vertical bars side by side, with their values: group -> name -> value."""
    names = list(next(iter(groups.values())))
    figure, axis = plt.subplots(figsize=(7.2, 3.8), layout="constrained")
    width = 0.8 / len(names)
    for i, name in enumerate(names):
        at = np.arange(len(groups)) + (i - (len(names) - 1) / 2) * width
        means = [values[name].mean for values in groups.values()]
        sds = [values[name].sd or 0.0 for values in groups.values()]
        style: dict[str, Any] = {"capsize": 2, "edgecolor": "white", "hatch": _HATCHES[i % 4]}
        drawn = axis.bar(at, means, width, yerr=sds, label=name, **style)
        axis.bar_label(drawn, [f"{mean:.4f}" for mean in means], fontsize=7, padding=2)
    axis.set_xticks(np.arange(len(groups)), list(groups))
    axis.set_ylabel(y_label)
    axis.set_ylim(bottom=bottom)
    axis.margins(y=0.15)
    axis.legend(fontsize=8, ncols=len(names), loc="lower center", bbox_to_anchor=(0.5, -0.3))
    axis.set_title(title, fontsize=10)
    return figure


def sorted_bars(values: Mapping[str, float], x_label: str, title: str) -> Any:
    """Horizontal bars with their values, the smallest first."""
    ordered = dict(sorted(values.items(), key=lambda pair: pair[1]))
    figure, axis = plt.subplots(figsize=(7.2, 0.28 * len(ordered) + 1.2), layout="constrained")
    drawn = axis.barh(list(ordered), list(ordered.values()), color="C0", alpha=0.8)
    axis.bar_label(drawn, [f"{value:.2f}" for value in ordered.values()], fontsize=7, padding=2)
    axis.invert_yaxis()
    axis.tick_params(axis="y", labelsize=8)
    axis.set_xlabel(x_label)
    axis.margins(x=0.1)
    axis.set_title(title, fontsize=10)
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
    for axis, name, right in zip(
        axes, ("whole", "left end"), (1.0, min(1.0, 2 * beta)), strict=True
    ):
        axis.plot(fpr, tpr, color="C0", drawstyle="steps-post", label="ROC curve")
        inside = np.linspace(0, beta, 2000)
        height = np.minimum(np.interp(inside, fpr, tpr), alpha)
        style = {"alpha": 0.35, "hatch": "//", "edgecolor": "C1", "color": "C1"}
        label = f"TPR ≤ {alpha:g}, FPR ≤ {beta:g}"
        axis.fill_between(inside, 0, height, label=label, **style)
        axis.axhline(alpha, linestyle="--", color="0.4", linewidth=1)
        axis.axvline(beta, linestyle=":", color="0.4", linewidth=1)
        axis.set_xlim(-0.01 * right, right)
        axis.set_ylim(0, 1.02)
        axis.set_xlabel("false positive rate")
        axis.grid(alpha=0.3)
        axis.set_title(name, fontsize=9)
    axes[0].set_ylabel("true positive rate")
    axes[0].legend(fontsize=8, loc="lower right")
    return figure


def simulation_figure(summary: Summary) -> Any:
    """A heat map of the correlation per K, and below it cuts along beta for up to three K."""
    design, findings = summary.simulation.design, summary.recall
    columns = min(3, len(findings))
    rows = -(-len(findings) // columns)
    figure: Any = plt.figure(figsize=(3 * columns + 0.6, 2.7 * rows + 3.4), layout="constrained")
    upper, lower = figure.subfigures(2, 1, height_ratios=(2.7 * rows, 2.9))
    # Heat maps.
    axes = upper.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    for axis in axes.ravel()[len(findings) :]:
        axis.set_visible(False)
    grids = summary.simulation.correlations["llpauc", "recall"]
    for axis, finding, grid in zip(axes.ravel(), findings, grids, strict=False):
        mesh = _correlation_map(axis, grid, design.alphas, design.betas, finding.llpauc)
        best = finding.llpauc
        text = "undefined" if best is None else f"maximum {best.correlation:.3f}"
        axis.set_title(f"K = {finding.k:,}: {text}", fontsize=10)
    for axis in axes[:, 0]:
        axis.set_ylabel("alpha (fraction of positives)")
    for column in axes.T:
        last = [axis for axis in column if axis.get_visible()][-1]
        last.set_xlabel("beta (fraction of negatives)")
        last.tick_params(labelbottom=True)
    upper.colorbar(mesh, ax=axes, label="correlation with Recall@K", aspect=35, pad=0.01)
    upper.suptitle(
        f"LLPAUC(alpha, beta): {describe(summary.simulation)}\nstar: maximum, at the smallest alpha"
        f" of equal ones; white line: {_CONTOUR}; top edge: OPAUC; top right: AUC",
        fontsize=9,
    )
    # Cuts along beta, of the first, the middle and the last K.
    chosen = dict.fromkeys(np.linspace(0, len(findings) - 1, columns).round().astype(int).tolist())
    cuts = lower.subplots(1, len(chosen), squeeze=False, sharey=True)[0]
    for axis, at in zip(cuts, chosen, strict=True):
        lines = curves_along_beta(summary, at)
        for (name, curve), (colour, line) in zip(lines.items(), _CUT_STYLES, strict=False):
            axis.plot(design.betas, curve, line, color=colour, label=name)
        axis.set_xscale("log")
        axis.set_title(f"K = {findings[at].k:,}", fontsize=10)
        axis.set_xlabel("beta")
        axis.grid(alpha=0.3)
    cuts[0].set_ylabel("correlation with Recall@K")
    _legend_below(lower, cuts[0], 9)
    return figure


def _correlation_map(
    axis: Any, grid: Floats, alphas: Sequence[float], betas: Sequence[float], best: Spot | None
) -> Any:
    axis.set_facecolor("0.8")  # undefined
    style = {"shading": "nearest", "cmap": "viridis", "vmin": 0, "vmax": 1}
    mesh = axis.pcolormesh(betas, alphas, grid, **style)
    axis.set_xscale("log")
    axis.set_yscale("log")
    if best is None:
        return mesh
    if min(grid.shape) > 1 and np.nanmin(grid) < _CONTOUR < best.correlation:
        axis.contour(betas, alphas, grid, levels=[_CONTOUR], colors="white", linewidths=1)
    star = {"color": "#D55E00", "markeredgecolor": "white", "markersize": 13, "clip_on": False}
    axis.plot(best.beta, best.alpha, "*", **star)
    return mesh
