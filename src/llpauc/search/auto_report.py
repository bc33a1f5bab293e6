"""The files of `llpauc auto`: the run, the recommendations, report.html, report.md, config.toml."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from llpauc.data.interactions import EventRules
from llpauc.errors import listing
from llpauc.evaluation.significance import RESAMPLES
from llpauc.recommend import Recommender
from llpauc.recommend.fitted import Fitted
from llpauc.recommend.lists import ListRequest, hidden_items, write_recommendations
from llpauc.report import document
from llpauc.report.document import Bars, Block, Bullets, Code, Heading, Table, Text
from llpauc.report.users import spread_users
from llpauc.search.auto_search import METRICS, VALID_USERS, AutoResult, Final, Search
from llpauc.search.candidates import METRIC
from llpauc.search.comparison import weaknesses
from llpauc.search.trials import Budget
from llpauc.storage.manifest import FolderKind, written_folder
from llpauc.storage.run_folder import RUN_FOLDER

AUTO_FOLDER = FolderKind(
    kind="llpauc auto",
    noun="a folder of llpauc auto",
    formats={1: True},
    required=frozenset({"recommendations.parquet", "config.toml", "report.html", "report.md"}),
    remedy="run llpauc auto again",
    folders={"run": RUN_FOLDER},
)

_MOST_ROWS = 40
_FEW_USERS = 30
_SAMPLE_USERS, _SAMPLE_ITEMS = 5, 5
_CLOSE = 0.98  # of the winner's validation value
_METRIC_NOTES = (
    "NDCG@20: quality of the list of 20; 1 if all items of the test are at the top",
    "Recall@20: fraction of a user's test items that are among the 20",
    "Hit@20: fraction of users with at least one test item among the 20",
)
_ENDED = {
    "patience": "no further improvement", "epochs": "all epochs", "fitted": "no training",
    "behind": "stopped: behind", "out of time": "stopped: out of time",
}  # fmt: skip


def write_results(
    result: AutoResult, folder: Path, *, data: str, record: Mapping[str, Any],
    notes: Sequence[str], budget: Budget, k: int, config: str, command: str,
    where: str | None = None,
) -> int:  # fmt: skip
    """Write the run, the recommendations, the report and config.toml; the number of list rows.

    `folder` is replaced as a whole. `record` is what the run records about its data, `notes` what
    was detected on reading them, `config` the text of config.toml, `command` how the user calls
    the program, and `where` a condition on the catalogue.
    """
    fitted = result.recommender.require_fitted()
    hidden = hidden_items(len(fitted.item_ids), fitted.catalogue_rules.allowed(where))
    with written_folder(folder, AUTO_FOLDER) as work:
        request = ListRequest(k, hidden=hidden)
        rows = _write_lists(result, work, request, data=data, **record)
        samples = _sample_blocks(fitted, request, where)
        texts = _texts(result, folder, rows, data, notes, budget, k, config, command, samples)
        for name, text in texts.items():
            (work / name).write_text(text, encoding="utf-8")
    return rows


def _write_lists(result: AutoResult, folder: Path, request: ListRequest, **meta: Any) -> int:
    """Save the run and write the lists; the number of their rows."""
    if result.final is not None:
        winner = result.final.winner
        test = result.final.evaluations[winner.candidate.name].summary()
        meta |= {"valid": winner.value, "test": test}
    result.recommender.save(folder / "run", **meta)
    path = folder / "recommendations.parquet"
    return write_recommendations(result.recommender.require_fitted(), path, request).rows


def _sample_blocks(fitted: Fitted, request: ListRequest, where: str | None) -> list[Block]:
    """The beginning of some lists, with titles; nothing without a catalogue."""
    if fitted.catalogue is None:
        return []
    titles = fitted.catalogue.titles()

    def names(items: Iterable[int]) -> str:
        ids = fitted.item_ids.ids([item for item in items if item >= 0])
        return "; ".join(titles.get(str(item), str(item))[:60] for item in ids)

    users = spread_users(fitted, _SAMPLE_USERS)
    lists, _ = fitted.rank_users(users, _SAMPLE_ITEMS, True, request.hidden)
    histories = [fitted.histories[user].indices[-_SAMPLE_ITEMS:] for user in users]
    rows = [
        [str(user), names(history.tolist()), names(items.tolist())]
        for user, history, items in zip(fitted.user_ids.ids(users), histories, lists, strict=True)
    ]
    blocks: list[Block] = [Heading("Sample lists")]
    if where is not None:
        blocks.append(Text(f"Only items for which this holds: {where}"))
    return [*blocks, Table(["user", "items of the user", "first recommendations"], rows, left=3)]


def _texts(
    result: AutoResult, folder: Path, rows: int, data: str, notes: Sequence[str], budget: Budget,
    k: int, config: str, command: str, samples: Sequence[Block],
) -> dict[str, str]:  # fmt: skip
    """The text files by name; see `write_results`."""
    blocks: list[Block] = [Text(headline(result), strong=True), *samples]
    events = "all events"
    if (final := result.final) is not None:
        blocks += [*_test_blocks(final), *_weakness_blocks(final), *_trial_blocks(final.search)]
        if not final.on_all_events:
            events = "the events before the test (there was no time for the last fit)"
    blocks += [
        *_data_blocks(result, notes),
        Heading("Files"),
        Bullets(
            [
                f"recommendations.parquet: {rows:,} rows user, item, rank, score: the top"
                f" {k} of every user, without {_left_out(result.recommender)}",
                f"run/: the model, fitted on {events}, for llpauc recommend and Recommender.load",
                "config.toml: the winner's settings, for llpauc train --config",
                f"this report: {budget.passed:.0f} s of {budget.seconds:.0f} s used;"
                f" llpauc {version('llpauc')}",
            ]
        ),
        Code(config.strip()),
        Heading("Next"),
        Code(
            f"{command} recommend {folder}/run --users ID,ID      # lists of some users\n"
            f"{command} recommend {folder}/run --history ID,ID    # for a new user\n"
            f"{command} train {data} --config {folder}/config.toml --out new-run"
            "      # train again on newer data\n"
            f"{command} auto {data} --budget 1h      # search longer"
        ),
    ]
    title = f"Recommendations for {data}"
    return {
        "config.toml": config,
        "report.md": document.as_markdown(title, blocks),
        "report.html": document.as_html(title, blocks),
    }


def _left_out(recommender: Recommender) -> str:
    """Which items are not in the lists."""
    rules = recommender.require_fitted().rules
    return "the items they have" if rules == EventRules() else rules.excluded_text


def headline(result: AutoResult) -> str:
    """The result in two or three sentences."""
    if result.final is None:
        return (
            "There are too few events to hold any out, so nothing could be compared: every user"
            " gets the most popular items they do not have yet."
        )
    winner, candidate = result.final.winner, result.final.winner.candidate
    intervals = result.final.comparison.intervals[METRIC]
    leads = [
        f"{lead.mean / intervals[method].mean:+.0%} compared with {method}"
        for method, lead in result.final.comparison.leads.items()
        if intervals[method].mean > 0
    ]
    text = (
        f"Chosen on validation: {candidate.name} ({candidate.description}). Its NDCG@20 on the test"
        f" part is {intervals[candidate.name].mean:.4f}{': ' * bool(leads)}{', '.join(leads)}."
    )
    trained = result.final.search.best_trained
    if candidate.is_baseline and trained is not None:
        text += (
            " No trained model was better on validation; the best of them was"
            f" {trained.candidate.name} ({trained.value_text}; the winner has {winner.value_text})."
        )
    elif candidate.is_baseline:
        text += " There was no time to train a model; a larger budget may find a better one."
    return text


def _test_blocks(final: Final) -> list[Block]:
    names, comparison = list(final.evaluations), final.comparison
    intervals = comparison.intervals[METRIC]
    rows = []
    for name in names:
        lead = comparison.leads.get(name)
        rows.append(
            [
                name, str(intervals[name]),
                *[f"{comparison.intervals[metric][name].mean:.4f}" for metric in METRICS[1:]],
                "-" if lead is None else f"{lead.mean:+.4f} ({lead.low:+.4f} to {lead.high:+.4f})",
            ]
        )  # fmt: skip
    groups = comparison.activity
    return [
        Heading("Test results"),
        Text(
            f"{comparison.users:,} test users, {comparison.cold:,} of them without history. Every"
            " method was fitted on all events before the test and ranked all items, without"
            f" {_left_out(final.recommender)}. The intervals are from a bootstrap over users"
            f" ({RESAMPLES:,} samples)."
        ),
        Table(
            ["method", "NDCG@20 (95 % interval)", "Recall@20", "Hit@20", "winner's lead, NDCG@20"],
            rows, marked=0,
        ),
        Bullets(_METRIC_NOTES),
        Bars(
            "NDCG@20 on the test part; the line is the 95 % interval.",
            {"": {n: (intervals[n].mean, intervals[n].low, intervals[n].high) for n in names}},
        ),
        Heading("By user activity"),
        Text("NDCG@20 by the number of events that a user had before the test."),
        Table(
            ["users with", "users", *names],
            [[g.name, f"{g.users:,}", *[f"{g.means[n]:.4f}" for n in names]] for g in groups],
        ),
        Bars(
            "NDCG@20 by the number of events that a user had before the test.",
            {
                f"{g.name} ({g.users:,} users)": {n: (g.means[n], None, None) for n in names}
                for g in groups
            },
        ),
        Heading("Content of the lists"),
        Text(
            "The most popular tenth of the items has"
            f" {comparison.popular.of_events:.0%} of the events before the test and"
            f" {comparison.popular.of_test:.0%} of the test events. Coverage counts the items in at"
            " least one test user's list of 20."
        ),
        Table(
            ["method", "coverage", "from the popular tenth", "popular items found",
             "other items found"],
            [
                [name, *["-" if np.isnan(value) else f"{value:.1%}" for value in
                 (lists.coverage, lists.popular, lists.popular_hits, lists.other_hits)]]
                for name, lists in comparison.lists.items()
            ],
            marked=0,
        ),
    ]  # fmt: skip


def _weakness_blocks(final: Final) -> list[Block]:
    search = final.search
    moving = search.recency is not None and search.recency.has_drift
    lines = weaknesses(final.comparison, final.winner.candidate.name, moving)
    if search.n_valid_users < _FEW_USERS:
        lines.append(f"Only {search.n_valid_users} users to validate on: the choice is unreliable.")
    return [Heading("Weaknesses"), Bullets(lines)]


def _trial_blocks(search: Search) -> list[Block]:
    ranked = sorted(search.trials, key=lambda trial: -trial.sort_value)
    rows = [
        [
            trial.candidate.name, trial.candidate.description,
            _ENDED.get(trial.ended, trial.ended), trial.value_text,
            trial.epochs_text if trial.curve else "-", f"{trial.seconds:.1f}",
        ]
        for trial in ranked[:_MOST_ROWS]
    ]  # fmt: skip
    sampled = " (a random sample)" if search.n_valid_users == VALID_USERS else ""
    content: list[Block] = [
        Heading("Trials"),
        Text(
            f"Chosen by validation {METRIC} of {search.n_valid_users:,} users{sampled}. The best"
            " of many trials is optimistic on validation; the test results above are not."
        ),
        Table(
            ["method", "description", "ended", f"validation {METRIC}", "best epoch", "seconds"],
            rows, left=3, marked=0,
        ),
    ]  # fmt: skip
    if len(ranked) > _MOST_ROWS:
        content.append(Text(f"{len(ranked) - _MOST_ROWS} more were worse."))
    close = [t.candidate.name for t in ranked[1:] if t.sort_value >= _CLOSE * ranked[0].sort_value]
    if close:
        content.append(
            Text(f"Within {1 - _CLOSE:.0%} of the winner on validation: {listing(close, 8)}.")
        )
    if search.skipped:
        content.append(Bullets([f"{name}: skipped; {why}" for name, why in search.skipped.items()]))
    return content


def _data_blocks(result: AutoResult, notes: Sequence[str]) -> list[Block]:
    prepared, inspection = result.prepared, result.inspection
    facts = {**inspection.whole, **inspection.parts.get("data", {})}
    sizes = [f"{name} {len(part):,}" for name, part in prepared.split.parts.items()]
    content: list[Block] = [
        Heading("Data"),
        Text(f"{prepared.how} Events: {', '.join(sizes)}."),
    ]
    if inspection.odd:
        content += [Text("Unusual:"), Bullets(inspection.odd)]
    content.append(Table(["statistic", "value"], [[n, _format(v)] for n, v in facts.items()]))
    if notes:
        content += [Text("Detected on reading:"), Bullets(notes)]
    return content


def _format(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if value.is_integer() and abs(value) >= 1 else f"{value:.4f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
