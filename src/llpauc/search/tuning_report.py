"""The files of `llpauc tune`: tuning.md, trials.csv, two figures, and best.toml for `train`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata

from llpauc.options import LogRange
from llpauc.report.document import Block, Code, Heading, Table, Text, as_markdown
from llpauc.report.tuning import AlphaBeta, best_in_bins
from llpauc.search.tuning import TrialRecord, TuneResult, Tuning
from llpauc.storage.atomic import csv_text, write_text
from llpauc.storage.figure_files import plt, save
from llpauc.training.tracking import masked

_GROUPS = 4  # of a number's values, with equally many trials each
_LEAST_TRIALS = 8  # for an importance
_MOST_ROWS = 200
# Starting points that the best trial is compared with -> their description.
COMPARED = {
    "defaults": "the defaults",
    "recipe": "the recipe for such data",
    "near the recipe": "the closest to the recipe",
}


def importances(records: Sequence[TrialRecord]) -> dict[str, float]:
    """The fraction of the variance of the trials' ranks that each option explains, in [0, 1].

    One-way analysis of variance on ranks. Trials are grouped by the option's value; numbers with
    many values by quartile. For n trials in k groups, the fraction is corrected for chance:

        epsilon^2 = 1 - (n - 1) / (n - k) * (variance within groups) / (variance of all)

    Only trials that have the option count for it; options of fewer than eight trials are left out.
    """
    ended = [r for r in records if r.value is not None and r.state in ("complete", "pruned")]
    result = {}
    for name in dict.fromkeys(name for record in ended for name in record.params):
        having = [record for record in ended if name in record.params]
        groups = _groups([record.params[name] for record in having])
        n, k = len(having), len(np.unique(groups))
        if n >= _LEAST_TRIALS and 1 < k < n:
            ranked = rankdata([record.value for record in having])
            within = sum(sum(groups == g) * ranked[groups == g].var() for g in np.unique(groups))
            total = n * ranked.var()  # 0 where all trials have the same value
            result[name] = max(0.0, 1 - (n - 1) / (n - k) * within / total) if total else 0.0
    return result


def _groups(values: Sequence[Any]) -> npt.NDArray[Any]:
    distinct = sorted(set(values), key=lambda value: (str(type(value)), value))
    if len(distinct) <= 2 * _GROUPS:
        return np.array([distinct.index(value) for value in values])
    return np.asarray((rankdata(values, method="ordinal") - 1) * _GROUPS // len(values))


def config_of(best: TrialRecord, tuning: Tuning) -> dict[str, Any]:
    """Flat options that train the trial again, to the same validation value.

    A trial that the budget stopped gets the number of epochs it had.
    """
    config = {**best.params, **tuning.fixed}
    if best.ended == "budget":
        config["epochs"] = len(best.curve)
    return {name: value for name, value in config.items() if value is not None}


def compared_trials(result: TuneResult) -> dict[str, TrialRecord]:
    """The complete trials that the best one is compared with, by name of their starting point."""
    complete = {r.starting_point: r for r in reversed(result.records) if r.is_complete}
    return {name: complete[name] for name in COMPARED if name in complete}


def write_tuning(
    result: TuneResult, tuning: Tuning, folder: Path, config: str | None, data: str, command: str
) -> list[Path]:
    """Write all files to `folder`; their paths. `config` is the text of best.toml."""
    folder.mkdir(parents=True, exist_ok=True)
    figures = _figures(result, tuning.metric)
    for name, (figure, _) in figures.items():
        save(figure, folder / name)
    rows = as_rows(result.records)
    texts = {"trials.csv": csv_text(rows, list(rows[0]) if rows else ["trial"])}
    blocks = _summary(result, tuning)
    if config is not None:
        texts["best.toml"] = config
        blocks.append(Text(f"`llpauc train {data} --config best.toml` trains it:"))
        blocks.append(Code(config.strip(), "toml"))
    for name, (_, caption) in figures.items():
        blocks += [Text(f"![{name.removesuffix('.png')}]({name})"), Text(caption)]
    blocks += _trial_blocks(result.records, tuning.metric)
    space = [
        [name, f"{values.low:.3g} to {values.high:.3g}, by the logarithm"]
        if isinstance(values, LogRange)
        else [name, ", ".join(map(format_value, values))]
        for name, values in tuning.space.items()
    ]
    blocks += [Heading("Search space"), Table(["option", "values"], space)]
    blocks += [Text(f"Made by `{masked(command)}` with llpauc {version('llpauc')}.")]
    texts["tuning.md"] = as_markdown(f"Tuning on {data}", blocks)
    for name, text in texts.items():
        write_text(folder / name, text)
    return [folder / name for name in (*texts, *figures)]


def _summary(result: TuneResult, tuning: Tuning) -> list[Block]:
    states = [record.state for record in result.records]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    text = (
        f"Study `{tuning.study}` in `{masked(tuning.storage)}`: {counts or 'no trial yet'};"
        f" seed {tuning.seed}, at most {tuning.epochs} epochs per trial, pruner {tuning.pruner}."
        " All values are on validation; the test part is not used."
    )
    if result.best is None:
        return [Text(text)]
    rows = [[f"trial {result.best.number}, the best", result.best.value_text]]
    for name, record in compared_trials(result).items():
        rows.append([f"trial {record.number}, {COMPARED[name]}", record.value_text])
    rows.append(["the most popular items", f"{result.popularity:.4f}"])
    return [
        Text(text),
        Table(["", f"validation {tuning.metric}"], rows),
        Text("The best of many trials is optimistic: expect less on new events."),
    ]


def _figures(result: TuneResult, metric: str) -> dict[str, tuple[Any, str]]:
    """File name -> figure and caption, as far as there are enough trials."""
    figures = {}
    points = [
        AlphaBeta(r.params["alpha"], r.params["beta"], r.value, r.state == "complete")
        for r in result.records
        if r.value is not None and {"alpha", "beta"} <= set(r.params)
    ]
    if any(point.complete for point in points):
        caption = "Each bin shows its best complete trial, whatever its other options."
        figures["alpha_beta.png"] = alpha_beta_map(points, metric), caption
    if values := importances(result.records):
        count = sum(record.value is not None for record in result.records)
        caption = (
            "Importance is the fraction of the variance of the trials' ranks that an option"
            " explains alone (analysis of variance on ranks, corrected for chance; numbers in four"
            " groups). It is only a hint, since the sampler does not spread its trials evenly."
        )
        figures["importance.png"] = importance_bars(values, metric, count), caption
    return figures


def _trial_blocks(records: Sequence[TrialRecord], metric: str) -> list[Block]:
    reruns = {record.rerun_of: record.number for record in records}
    rows = []
    for r in records[:_MOST_ROWS]:
        notes = [r.ended or r.state]
        if r.state == "lost" and r.number in reruns:
            notes.append(f"run again as {reruns[r.number]}")
        if r.starting_point and not r.starting_point.startswith("cell"):
            notes.append(r.starting_point)
        params = ", ".join(
            str(value) if name in ("model", "loss") else f"{name} {format_value(value)}"
            for name, value in r.params.items()
        )
        rows.append([str(r.number), r.value_text, ", ".join(notes), r.epochs_text])
        rows[-1] += [f"{r.seconds:.1f}", params]
    table = Table(["trial", metric, "ended", "best epoch", "s", "options"], rows)
    more = len(records) - _MOST_ROWS
    rest = [Text(f"{more} more in trials.csv.")] if more > 0 else []
    return [Heading("Trials, best first"), table, *rest]


def format_value(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def as_rows(records: Sequence[TrialRecord]) -> list[dict[str, Any]]:
    """Trials as flat dicts with the same keys, best first."""
    names = sorted({name for record in records for name in record.params})
    return [
        {
            "trial": r.number, "value": r.value, "state": r.state, "ended": r.ended,
            "best_epoch": r.best_epoch, "epochs": len(r.curve), "seconds": round(r.seconds, 3),
            "starting_point": r.starting_point, "rerun_of": r.rerun_of,
            **{name: r.params.get(name) for name in names}, "message": r.message,
        }
        for r in records
    ]  # fmt: skip


# --- figures --------------------------------------------------------------------------------------


def alpha_beta_map(trials: Sequence[AlphaBeta], metric: str) -> Any:
    """The best value of each bin of alpha and beta, and the trials; at least one is complete."""
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
