"""The files of `llpauc tune`: tuning.md, trials.csv, two figures, and best.toml for `train`."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from scipy.stats import f_oneway, rankdata

from llpauc.options import LogRange
from llpauc.report.document import markdown_table
from llpauc.report.tuning import AlphaBeta
from llpauc.search.plots import alpha_beta_map, importance_bars
from llpauc.search.space import Space
from llpauc.search.tuning import TrialRecord, TuneResult, Tuning
from llpauc.storage.atomic import atomic_write
from llpauc.storage.figure_files import save
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

        epsilon^2 = (F - 1)(k - 1) / (F (k - 1) + n - k)

    Only trials that have the option count for it; options of fewer than eight trials are left out.
    """
    ended = [r for r in records if r.value is not None and r.state in ("complete", "pruned")]
    result = {}
    for name in dict.fromkeys(name for record in ended for name in record.params):
        having = [record for record in ended if name in record.params]
        groups = _groups([record.params[name] for record in having])
        n, k = len(having), len(set(groups))
        if n >= _LEAST_TRIALS and 1 < k < n:
            ranks = rankdata([record.value for record in having])
            if ranks.min() == ranks.max():  # all trials have the same value
                result[name] = 0.0
                continue
            by_group = [ranks[[g == group for g in groups]] for group in sorted(set(groups))]
            f = float(f_oneway(*by_group).statistic)
            # F is infinite where the option determines the rank.
            explained = (1 - 1 / f) / (1 + (n - k) / (f * (k - 1))) if f > 0 else 0.0
            result[name] = max(0.0, explained)
    return result


def _groups(values: Sequence[Any]) -> list[int]:
    distinct = sorted(set(values), key=lambda value: (str(type(value)), value))
    if len(distinct) <= 2 * _GROUPS:
        return [distinct.index(value) for value in values]
    order = rankdata(values, method="ordinal") - 1
    return [int(index) for index in order * _GROUPS // len(values)]


def config_of(best: TrialRecord, tuning: Tuning) -> dict[str, Any]:
    """Flat options that train the trial again, to the same validation value.

    A trial that the budget stopped gets the number of epochs it had.
    """
    config = {**best.params, **tuning.fixed}
    if best.ended == "budget":
        config["epochs"] = best.epochs
    return {name: value for name, value in config.items() if value is not None}


def compared_trials(result: TuneResult) -> dict[str, TrialRecord]:
    """The trials that the best one is compared with, by description."""
    records = {description: result.at(name) for name, description in COMPARED.items()}
    return {text: record for text, record in records.items() if record is not None}


def write_tuning(
    result: TuneResult, tuning: Tuning, folder: Path, config: str | None, data: str, command: str
) -> list[Path]:
    """Write all files to `folder`; their paths.

    Args:
        result, tuning: what was found, and how.
        folder: created if necessary.
        config: the text of best.toml; None without a complete trial.
        data: path of the data, for the report.
        command: that made the study.
    """
    folder.mkdir(parents=True, exist_ok=True)
    figures = _write_figures(result, tuning.metric, folder)
    texts = {"trials.csv": _csv(result.records)}
    parts = [f"# Tuning on {data}", *_summary(result, tuning)]
    if config is not None:
        texts["best.toml"] = config
        parts += [f"`llpauc train {data} --config best.toml` trains it:", f"```toml\n{config}```"]
    parts += figures.values()
    parts += ["## Trials, best first", _trial_table(result.records, tuning.metric)]
    parts += ["## Search space", _space_table(tuning.space)]
    parts += [f"Made by `{masked(command)}` with llpauc {version('llpauc')}."]
    texts["tuning.md"] = "\n\n".join(parts) + "\n"
    for name, text in texts.items():
        with atomic_write(folder / name) as temporary:
            temporary.write_text(text, encoding="utf-8")
    return [folder / name for name in (*texts, *figures)]


def _summary(result: TuneResult, tuning: Tuning) -> list[str]:
    states = [record.state for record in result.records]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    parts = [
        f"Study `{tuning.study}` in `{masked(tuning.storage)}`: {counts or 'no trial yet'};"
        f" seed {tuning.seed}, at most {tuning.epochs} epochs per trial, pruner {tuning.pruner}."
        " All values are on validation; the test part is not used."
    ]
    if (best := result.best) is not None:
        rows = [[f"trial {best.number}, the best", f"{best.value:.4f}"]]
        for text, record in compared_trials(result).items():
            rows.append([f"trial {record.number}, {text}", f"{record.value:.4f}"])
        rows.append(["the most popular items", f"{result.popularity:.4f}"])
        parts.append(markdown_table(["", f"validation {tuning.metric}"], rows))
        parts.append("The best of many trials is optimistic: expect less on new events.")
    return parts


def _write_figures(result: TuneResult, metric: str, folder: Path) -> dict[str, str]:
    """File name of each figure -> its Markdown."""
    shown = {}
    points = [
        AlphaBeta(r.params["alpha"], r.params["beta"], r.value, r.state == "complete")
        for r in result.records
        if r.value is not None and {"alpha", "beta"} <= set(r.params)
    ]
    if any(point.complete for point in points):
        save(alpha_beta_map(points, metric), folder / "alpha_beta.png")
        shown["alpha_beta.png"] = (
            "![validation over alpha and beta](alpha_beta.png)\n\nEach bin shows its best complete"
            " trial, whatever its other options."
        )
    if values := importances(result.records):
        count = sum(record.value is not None for record in result.records)
        save(importance_bars(values, metric, count), folder / "importance.png")
        shown["importance.png"] = (
            "![importance of the options](importance.png)\n\nImportance is the fraction of the"
            " variance of the trials' ranks that an option explains alone (analysis of variance on"
            " ranks, corrected for chance; numbers in four groups). It is only a hint, since the"
            " sampler does not spread its trials evenly."
        )
    return shown


def _trial_table(records: Sequence[TrialRecord], metric: str) -> str:
    reruns = {record.rerun_of: record.number for record in records}
    rows = []
    for record in records[:_MOST_ROWS]:
        notes = [record.ended or record.state]
        if record.state == "lost" and record.number in reruns:
            notes.append(f"run again as {reruns[record.number]}")
        if record.starting_point and not record.starting_point.startswith("cell"):
            notes.append(record.starting_point)
        value = "-" if record.value is None else f"{record.value:.4f}"
        epochs = f"{record.best_epoch} of {record.epochs}"
        params = ", ".join(
            str(value) if name in ("model", "loss") else f"{name} {format_value(value)}"
            for name, value in record.params.items()
        )
        seconds = f"{record.seconds:.1f}"
        rows.append([str(record.number), value, ", ".join(notes), epochs, seconds, params])
    table = markdown_table(["trial", metric, "ended", "best epoch", "s", "options"], rows)
    more = len(records) - _MOST_ROWS
    return table if more <= 0 else f"{table}\n\n{more} more in trials.csv."


def format_value(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _space_table(space: Space) -> str:
    return markdown_table(
        ["option", "values"],
        [
            [name, f"{values.low:.3g} to {values.high:.3g}, by the logarithm"]
            if isinstance(values, LogRange)
            else [name, ", ".join(map(format_value, values))]
            for name, values in space.items()
        ],
    )


def as_rows(records: Sequence[TrialRecord]) -> list[dict[str, Any]]:
    """Trials as flat dicts with the same keys, best first."""
    names = sorted({name for record in records for name in record.params})
    return [
        {
            "trial": r.number, "value": r.value, "state": r.state, "ended": r.ended,
            "best_epoch": r.best_epoch, "epochs": r.epochs, "seconds": round(r.seconds, 3),
            "starting_point": r.starting_point, "rerun_of": r.rerun_of,
            **{name: r.params.get(name) for name in names}, "message": r.message,
        }
        for r in records
    ]  # fmt: skip


def _csv(records: Sequence[TrialRecord]) -> str:
    rows = as_rows(records)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else ["trial"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
