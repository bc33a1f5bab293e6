"""What a study leaves behind: tuning.md, trials.csv, two pictures, and best.toml for `train`."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata

from llpauc.report.document import markdown_table
from llpauc.report.tuning import AlphaBeta
from llpauc.search import plots as pictures
from llpauc.search.tuning.space import Range, Space
from llpauc.search.tuning.trials import TrialRow
from llpauc.search.tuning.tune import Outcome
from llpauc.search.tuning.workers import Tuning
from llpauc.storage import figure_files as plots
from llpauc.storage.atomic import atomic_write
from llpauc.storage.environment import toml_text
from llpauc.training.tracking import masked

_GROUPS = 4  # of a number's values, equally many trials in each
_LEAST = 8  # trials that importance is worth saying of
_MOST_ROWS = 200
# Starting points that the best trial is shown beside -> what people call them.
BESIDE = {
    "defaults": "the library's defaults",
    "recipe": "the recipe for such data",
    "near the recipe": "the nearest to the recipe",
}


def importances(rows: Sequence[TrialRow]) -> dict[str, float]:
    """How much of the spread of the trials' ranks each parameter explains by itself, in [0, 1].

    One-way analysis of variance on ranks: trials fall into groups by their choice (numbers into
    four groups of equal size), and the share of the variance that lies between the groups is
    corrected for chance (epsilon squared), so that a parameter without effect is near 0. Only
    trials that have the parameter count for it; those with fewer than eight are left out.
    """
    ended = [row for row in rows if row.value is not None and row.state in ("complete", "pruned")]
    names = dict.fromkeys(name for row in ended for name in row.params)
    found = {}
    for name in names:
        own = [row for row in ended if name in row.params]
        groups = _groups([row.params[name] for row in own])
        if len(own) >= _LEAST and 1 < len(set(groups)) < len(own):
            found[name] = _epsilon_squared(rankdata([row.value for row in own]), groups)
    return found


def _groups(values: Sequence[Any]) -> list[int]:
    distinct = sorted(set(values), key=lambda value: (str(type(value)), value))
    if len(distinct) <= 2 * _GROUPS:
        return [distinct.index(value) for value in values]
    places = rankdata(values, method="ordinal") - 1
    return [int(place) for place in places * _GROUPS // len(values)]


def _epsilon_squared(ranks: npt.NDArray[np.float64], groups: Sequence[int]) -> float:
    labels = np.asarray(groups)
    total = float(((ranks - ranks.mean()) ** 2).sum())
    if not total:
        return 0.0
    kinds = np.unique(labels)
    inside = sum(
        float(((own - own.mean()) ** 2).sum()) for own in (ranks[labels == k] for k in kinds)
    )
    chance = (len(kinds) - 1) * inside / (len(ranks) - len(kinds))
    return max(0.0, (total - inside - chance) / total)


def config_of(best: TrialRow, tuning: Tuning) -> dict[str, Any]:
    """The flat parameters that train the trial again, to the same validation figure.

    A trial that the budget cut short is given the epochs it had.
    """
    fixed = dict(tuning.fixed)
    if best.why == "budget":
        fixed["epochs"] = best.epochs
    return {name: value for name, value in {**best.params, **fixed}.items() if value is not None}


def toml(config: Mapping[str, Any], options: Collection[str], comment: str) -> str:
    """A file for `llpauc train --config`; what is no option of its own goes to loss_options.

    >>> print(toml({"lr": 0.01, "rho": 2.0}, ["lr"], "found"), end="")
    # found
    lr = 0.01
    loss_options = "rho=2.0"
    """
    own = {name: value for name, value in config.items() if name in options}
    others = {name: value for name, value in config.items() if name not in options}
    return toml_text(comment, own, others)


def write_tuning(
    outcome: Outcome, tuning: Tuning, folder: Path, config: str | None, data: str, source: str
) -> list[Path]:
    """Everything into `folder`.

    Args:
        outcome: what was found.
        tuning: how.
        folder: made where it is not there.
        config: the text of best.toml; None where no trial is best.
        data: its name, for people.
        source: the command that does it again.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shown = _pictures(outcome, tuning.metric, folder)
    texts = {"trials.csv": _csv(outcome.rows)}
    if config is not None:
        texts["best.toml"] = config
    parts = [f"# Tuning on {data}", *_summary(outcome, tuning)]
    if config is not None:
        parts += [f"`llpauc train {data} --config best.toml` trains it:", f"```toml\n{config}```"]
    parts += [text for text in shown.values() if text]
    parts += ["## Trials, best first", _trial_table(outcome.rows, tuning.metric)]
    parts += ["## What was searched", _space_table(tuning.space)]
    parts += [f"Made by `{masked(source)}` with llpauc {version('llpauc')}."]
    texts["tuning.md"] = "\n\n".join(parts) + "\n"
    for name, text in texts.items():
        with atomic_write(folder / name) as temporary:
            temporary.write_text(text, encoding="utf-8")
    return [folder / name for name in (*texts, *shown)]


def beside(outcome: Outcome) -> dict[str, TrialRow]:
    """The trials that the best one is shown beside, by what people call them."""
    rows = {told: outcome.start(name) for name, told in BESIDE.items()}
    return {told: row for told, row in rows.items() if row is not None}


def _summary(outcome: Outcome, tuning: Tuning) -> list[str]:
    counts = {
        state: sum(row.state == state for row in outcome.rows)
        for state in ("complete", "pruned", "lost", "running")
    }
    told = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    study = f"Study `{tuning.study}` in `{masked(tuning.storage)}`: {told or 'no trial yet'};"
    how = f"seed {tuning.seed}, at most {tuning.epochs} epochs a trial, pruner {tuning.pruner}."
    parts = [f"{study} {how} All figures are on validation; the test part has no say here."]
    best = outcome.best
    if best is not None:
        figures = [[f"trial {best.number}, the best", f"{best.value:.4f}"]]
        for told, row in beside(outcome).items():
            figures.append([f"trial {row.number}, {told}", f"{row.value:.4f}"])
        figures.append(["the most popular items", f"{outcome.popularity:.4f}"])
        parts.append(markdown_table(["", f"validation {tuning.metric}"], figures))
        parts.append(
            "The best of many trials on the same events flatters itself a little: expect less on"
            " new ones."
        )
    return parts


def _pictures(outcome: Outcome, metric: str, folder: Path) -> dict[str, str]:
    """Name of each picture -> how the report shows it."""
    shown = {}
    plane = [
        AlphaBeta(row.params["alpha"], row.params["beta"], row.value, row.state == "complete")
        for row in outcome.rows
        if row.value is not None and {"alpha", "beta"} <= set(row.params)
    ]
    if any(trial.complete for trial in plane):
        plots.save(pictures.alpha_beta_map(plane, metric), folder / "alpha_beta.png")
        shown["alpha_beta.png"] = (
            "![validation over alpha and beta](alpha_beta.png)\n\nEvery bin shows its best complete"
            " trial, whatever else that trial had chosen."
        )
    shares = importances(outcome.rows)
    if shares:
        count = sum(row.value is not None for row in outcome.rows)
        plots.save(pictures.importance_bars(shares, metric, count), folder / "importance.png")
        shown["importance.png"] = (
            "![what mattered](importance.png)\n\nImportance is the share of the spread of the"
            " trials' ranks that a parameter explains alone (analysis of variance on ranks,"
            " corrected for chance; numbers in four groups). Trials are not spread evenly: the"
            " sampler looks longer where it found more, so take it for a hint."
        )
    return shown


def _trial_table(rows: Sequence[TrialRow], metric: str) -> str:
    lines = [
        [
            str(row.number), "-" if row.value is None else f"{row.value:.4f}", _fate(row, rows),
            f"{row.best_epoch} of {row.epochs}", f"{row.seconds:.1f}", _params(row.params),
        ]
        for row in rows[:_MOST_ROWS]
    ]  # fmt: skip
    table = markdown_table(["trial", metric, "ended", "best epoch", "s", "parameters"], lines)
    more = len(rows) - _MOST_ROWS
    return table if more <= 0 else f"{table}\n\n{more} more in trials.csv."


def _fate(row: TrialRow, rows: Sequence[TrialRow]) -> str:
    """In words: how it ended, what it started from, who runs it again."""
    words = [row.why or row.state]
    again = next((other.number for other in rows if other.rerun_of == row.number), None)
    if row.state == "lost":
        words = ["lost" if row.why in ("", "lost") else row.why]
        words += [f"run again as {again}"] if again is not None else []
    words += [row.start] if row.start and not row.start.startswith("cell") else []
    return ", ".join(words)


def _params(params: Mapping[str, Any]) -> str:
    return ", ".join(
        str(value) if name in ("model", "loss") else f"{name} {number(value)}"
        for name, value in params.items()
    )


def number(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _space_table(space: Space) -> str:
    lines = []
    for name, values in space.items():
        if isinstance(values, Range):
            text = f"{values.low:.3g} to {values.high:.3g}, by the logarithm"
        else:
            text = ", ".join(map(number, values))
        lines.append([name, text])
    return markdown_table(["parameter", "values"], lines)


def as_records(rows: Sequence[TrialRow]) -> list[dict[str, Any]]:
    """Trials as flat records with the same keys, best first."""
    names = sorted({name for row in rows for name in row.params})
    return [
        {
            "trial": row.number, "value": row.value, "state": row.state, "why": row.why,
            "best_epoch": row.best_epoch, "epochs": row.epochs, "seconds": round(row.seconds, 3),
            "starting_point": row.start, "rerun_of": row.rerun_of,
            **{name: row.params.get(name) for name in names}, "told": row.told,
        }
        for row in rows
    ]  # fmt: skip


def _csv(rows: Sequence[TrialRow]) -> str:
    records = as_records(rows)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(records[0]) if records else ["trial"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()
