"""Pictures of the paper's tables and figures, made again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from llpauc.storage.figure_files import plt

_MARKS = ("o", "s", "^", "D", "v", "P")
_LINES = ("-", "--", "-.", ":")


class Spread(Protocol):
    """A mean over seeds, and its standard deviation where there are several."""

    @property
    def mean(self) -> float: ...

    @property
    def sd(self) -> float | None: ...


def compare_losses(
    rows: Mapping[tuple[str, str, str], tuple[Spread, float | None]], title: str
) -> Any:
    """Bars of every loss, a panel a data set and backbone; a diamond is the printed figure.

    Args:
        rows: (data, backbone, method) -> our spread and the printed mean; backbone "-" is a line
            across the panels of its data set.
        title: stands above.
    """
    panels = list(dict.fromkeys((data, back) for data, back, _ in rows if back != "-"))
    across = list(dict.fromkeys(method for _, back, method in rows if back == "-"))
    columns = min(2, len(panels))
    lines = -(-len(panels) // columns)
    figure, axes = plt.subplots(
        lines, columns, figsize=(4.8 * columns, 3.4 * lines), layout="constrained", squeeze=False
    )
    for axis in axes.ravel()[len(panels) :]:
        axis.set_visible(False)
    for axis, (data, back) in zip(axes.ravel(), panels, strict=False):
        own = {m: found for (d, b, m), found in rows.items() if (d, b) == (data, back)}
        at = np.arange(len(own))
        means = [ours.mean for ours, _ in own.values()]
        spreads = [ours.sd or 0.0 for ours, _ in own.values()]
        hatches = ["//" if method == "LLPAUC" else "" for method in own]
        axis.barh(at, means, xerr=spreads, color="C0", alpha=0.75, hatch=hatches, capsize=2,
                  edgecolor="white", label="ours")  # fmt: skip
        printed = [(place, value) for place, (_, value) in zip(at, own.values(), strict=True)
                   if value is not None]  # fmt: skip
        if printed:
            axis.plot([v for _, v in printed], [p for p, _ in printed], "D", color="black",
                      markersize=4, label="the paper")  # fmt: skip
        for (d, b, method), (ours, _) in rows.items():
            if (d, b) == (data, "-"):
                style = _LINES[1 + across.index(method) % 3]
                axis.axvline(ours.mean, linestyle=style, color="C3", label=method)
        axis.set_yticks(at, list(own), fontsize=8)
        axis.invert_yaxis()
        axis.set_title(f"{data}, {back}", fontsize=9)
        axis.set_xlabel("Recall@20")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=8)
    figure.suptitle(title, fontsize=10)
    return figure


def curves(
    panels: Mapping[str, Mapping[str, tuple[Sequence[float], Sequence[Spread]]]],
    x_label: str,
    y_label: str,
    title: str,
) -> Any:
    """Lines with bands of a standard deviation: panel -> name -> (x, spreads)."""
    figure, axes = plt.subplots(
        1, len(panels), figsize=(4.8 * len(panels), 3.6), layout="constrained", squeeze=False
    )
    for axis, (name, lines) in zip(axes[0], panels.items(), strict=True):
        for place, (label, (x, spreads)) in enumerate(lines.items()):
            means = np.array([s.mean for s in spreads])
            sds = np.array([s.sd or 0.0 for s in spreads])
            axis.plot(x, means, label=label, marker=_MARKS[place % len(_MARKS)], markersize=4,
                      linestyle=_LINES[place % len(_LINES)])  # fmt: skip
            axis.fill_between(x, means - sds, means + sds, alpha=0.15)
        axis.set_title(name, fontsize=9)
        axis.set_xlabel(x_label)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    axes[0][0].set_ylabel(y_label)
    figure.suptitle(title, fontsize=10)
    return figure


def bars(
    groups: Mapping[str, Mapping[str, Spread]], y_label: str, title: str, lowest: float = 0.0
) -> Any:
    """Bars side by side: group -> name -> spread, with their values written above."""
    names = list(next(iter(groups.values())))
    figure, axis = plt.subplots(figsize=(7.2, 3.8), layout="constrained")
    width = 0.8 / len(names)
    hatches = ("", "//", "..", "xx")
    for place, name in enumerate(names):
        at = np.arange(len(groups)) + (place - (len(names) - 1) / 2) * width
        means = [own[name].mean for own in groups.values()]
        sds = [own[name].sd or 0.0 for own in groups.values()]
        drawn = axis.bar(at, means, width, yerr=sds, label=name, capsize=2, edgecolor="white",
                         hatch=hatches[place % len(hatches)])  # fmt: skip
        axis.bar_label(drawn, [f"{m:.4f}" for m in means], fontsize=7, padding=2)
    axis.set_xticks(np.arange(len(groups)), list(groups))
    axis.set_ylabel(y_label)
    axis.set_ylim(bottom=lowest)
    axis.margins(y=0.15)
    axis.legend(fontsize=8, ncols=len(names), loc="lower center", bbox_to_anchor=(0.5, -0.3))
    axis.set_title(title, fontsize=10)
    return figure


def heat_maps(
    tables: Mapping[str, npt.NDArray[np.float64]],
    alphas: Sequence[float],
    betas: Sequence[float],
    title: str,
    unit: str = "normalised: worst 0, best 1",
) -> Any:
    """One map a metric over alpha (up) and beta (right); a cross marks the best cell."""
    figure, axes = plt.subplots(
        1, len(tables), figsize=(3.6 * len(tables), 3.7), layout="constrained", squeeze=False
    )
    for axis, (name, values) in zip(axes[0], tables.items(), strict=True):
        image = axis.imshow(values, origin="lower", cmap="viridis", vmin=0, vmax=1, aspect="auto")
        best = np.unravel_index(int(np.nanargmax(values)), values.shape)
        axis.plot(best[1], best[0], "x", color="red", markersize=10, markeredgewidth=2)
        axis.set_xticks(range(len(betas)), [f"{b:g}" for b in betas], fontsize=7, rotation=60)
        axis.set_yticks(range(len(alphas)), [f"{a:g}" for a in alphas], fontsize=7)
        axis.set_xlabel("beta (FPR at most)")
        axis.set_title(name, fontsize=9)
    axes[0][0].set_ylabel("alpha (TPR at most)")
    figure.colorbar(image, ax=axes[0].tolist(), label=unit, shrink=0.9)
    figure.suptitle(title, fontsize=10)
    return figure


def roc(
    fpr: npt.NDArray[np.float64],
    tpr: npt.NDArray[np.float64],
    alpha: float,
    beta: float,
    areas: Mapping[str, float],
    title: str,
) -> Any:
    """A ROC curve whole and its lower left corner, the region of LLPAUC shaded."""
    figure, axes = plt.subplots(1, 2, figsize=(8.4, 3.9), layout="constrained")
    for axis, right in zip(axes, (1.0, min(1.0, 2 * beta)), strict=True):
        axis.plot(fpr, tpr, color="C0", drawstyle="steps-post", label="ROC curve")
        inside = np.linspace(0, beta, 2000)
        height = np.minimum(np.interp(inside, fpr, tpr), alpha)
        axis.fill_between(inside, 0, height, alpha=0.35, hatch="//", edgecolor="C1", color="C1",
                          label=f"TPR ≤ {alpha:g}, FPR ≤ {beta:g}")  # fmt: skip
        axis.axhline(alpha, linestyle="--", color="0.4", linewidth=1)
        axis.axvline(beta, linestyle=":", color="0.4", linewidth=1)
        axis.set_xlim(-0.01 * right, right)
        axis.set_ylim(0, 1.02)
        axis.set_xlabel("false positive rate")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("true positive rate")
    axes[0].legend(fontsize=8, loc="lower right")
    axes[0].set_title("whole", fontsize=9)
    told = ", ".join(f"{name} {value:.4f}" for name, value in areas.items())
    axes[1].set_title("its left end", fontsize=9)
    figure.suptitle(f"{title}\n{told}", fontsize=10)
    return figure


def bars_across(values: Mapping[str, float], x_label: str, title: str) -> Any:
    """Horizontal bars, one a name, shortest first, each with its value."""
    ordered = dict(sorted(values.items(), key=lambda pair: pair[1]))
    figure, axis = plt.subplots(figsize=(7.2, 0.28 * len(ordered) + 1.2), layout="constrained")
    drawn = axis.barh(list(ordered), list(ordered.values()), color="C0", alpha=0.8)
    axis.bar_label(drawn, [f"{v:.2f}" for v in ordered.values()], fontsize=7, padding=2)
    axis.invert_yaxis()
    axis.tick_params(axis="y", labelsize=8)
    axis.set_xlabel(x_label)
    axis.margins(x=0.1)
    axis.set_title(title, fontsize=10)
    return figure
