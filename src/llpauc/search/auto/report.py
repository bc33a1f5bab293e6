"""What the report says: chosen what, why, how good, for whom not, and what to do next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version

import numpy as np

from llpauc.errors import listing
from llpauc.report.document import Bars, Block, Bullets, Code, Heading, Table, Text
from llpauc.search.auto.contest import VALID_USERS, Contest
from llpauc.search.auto.finish import METRICS, Finish
from llpauc.search.auto.measures import RESAMPLES, Interval, Measures, weaknesses
from llpauc.search.auto.plan import METRIC, Budget
from llpauc.search.auto.running import Outcome

_MOST_ROWS = 40
_FEW_JUDGES = 30
_CLOSE = 0.98  # of the winner's validation figure: hardly told apart
_UNITS = {
    "ndcg@20": "NDCG@20: what the list of 20 is worth, 1 if all that could be found stands on top",
    "recall@20": "Recall@20: share of what a user went on to take that stands among the 20",
    "hit@20": "Hit@20: share of users for whom at least one of the 20 was right",
}


@dataclass(frozen=True)
class Facts:
    """What a report is made of.

    Args:
        outcome: what came of it.
        path: the data's name, for people.
        notes: what was guessed on reading.
        budget: how long it might take, and has taken.
        k: length of the lists.
        lists: rows of recommendations written.
        command: how people call the program.
        out: the folder.
        config: the winner's TOML.
    """

    outcome: Outcome
    path: str
    notes: Sequence[str]
    budget: Budget
    k: int
    lists: int
    command: str
    out: str
    config: str


def headline(outcome: Outcome) -> str:
    """The outcome in two or three sentences."""
    if outcome.finish is None or outcome.measures is None or outcome.contest is None:
        return (
            "There are too few events to hold any out, so nothing could be compared: everybody gets"
            " the most popular items they do not have yet."
        )
    winner = outcome.finish.winner
    own = outcome.measures.figures[METRIC]
    name = winner.candidate.name
    beside = [
        f"{lead.mean / own[method].mean:+.0%} on {method}"
        for method, lead in outcome.measures.leads.items()
        if own[method].mean > 0
    ]
    told = (
        f"Chosen on validation: {name} ({winner.candidate.why}). On the test part, read once, its"
        f" NDCG@20 is {own[name].mean:.4f}"
    )
    told += f": {', '.join(beside)}." if beside else "."
    trained = outcome.contest.best_trained
    if winner.candidate.is_baseline and trained is not None:
        told += (
            " No trained model did better on validation; the best of them was"
            f" {trained.candidate.name} ({trained.value:.4f} against {winner.value:.4f})."
        )
    elif winner.candidate.is_baseline:
        told += " There was no time to train a model; a larger budget may find a better one."
    return told


def blocks(facts: Facts) -> list[Block]:
    made: list[Block] = [Text(headline(facts.outcome), strong=True)]
    outcome = facts.outcome
    if outcome.contest and outcome.finish and outcome.measures:
        made += _test(outcome.measures, outcome.finish)
        made += _weak(outcome.measures, outcome.contest, outcome.finish)
        made += _tried(outcome.contest)
    made += _data(facts)
    made += _run(facts)
    return made


def _test(measures: Measures, finish: Finish) -> list[Block]:
    names = [finalist.entry.candidate.name for finalist in finish.finalists]
    header = ["method", "NDCG@20 (95 % interval)", "Recall@20", "Hit@20", "winner's lead, NDCG@20"]
    rows = [
        [
            name, str(measures.figures[METRIC][name]),
            *[f"{measures.figures[metric][name].mean:.4f}" for metric in METRICS[1:]],
            _lead(measures.leads.get(name)),
        ]
        for name in names
    ]  # fmt: skip
    figures = measures.figures[METRIC]
    bars = {name: (figures[name].mean, figures[name].low, figures[name].high) for name in names}
    made: list[Block] = [
        Heading("How good it is"),
        Text(
            f"{measures.users:,} test users, {measures.cold:,} of them without history. Every"
            " method learnt from all that lies before the test and ranked all items; what a user"
            " had already is left out. The intervals come from drawing the users again"
            f" {RESAMPLES:,} times; a lead whose interval stays clear of 0 is hardly chance."
        ),
        Table(header, rows, marked=0),
        Bullets(list(_UNITS.values())),
        Bars("NDCG@20 on the test part; the line is the 95 % interval.", {"": bars}),
        Heading("For whom"),
        Text("NDCG@20 by how many events a user had before the test."),
        Table(
            ["users with", "users", *names],
            [
                [group.name, f"{group.users:,}", *[f"{group.means[name]:.4f}" for name in names]]
                for group in measures.activity
            ],
        ),
        Bars(
            "NDCG@20 by how many events a user had before the test.",
            {
                f"{group.name} ({group.users:,} users)": {
                    name: (group.means[name], None, None) for name in names
                }
                for group in measures.activity
            },
        ),
        Heading("What the lists are made of"),
        Text(
            f"The most popular tenth of the items has {measures.head.of_events:.0%} of the events"
            f" before the test and {measures.head.of_test:.0%} of the test events. Coverage counts"
            " the items that stand in at least one test user's list of 20."
        ),
        Table(
            ["method", "coverage", "from the popular tenth", "popular ones found", "others found"],
            [
                [name, *[_percent(value) for value in
                 (own.coverage, own.head_share, own.head_found, own.tail_found)]]
                for name, own in measures.reach.items()
            ],
            marked=0,
        ),
    ]  # fmt: skip
    return made


def _percent(share: float) -> str:
    return "-" if np.isnan(share) else f"{share:.1%}"


def _lead(lead: Interval | None) -> str:
    return "-" if lead is None else f"{lead.mean:+.4f} ({lead.low:+.4f} to {lead.high:+.4f})"


def _weak(measures: Measures, contest: Contest, finish: Finish) -> list[Block]:
    moving = contest.moving is not None and contest.moving.has_drift
    told = weaknesses(measures, finish.winner.candidate.name, moving)
    if contest.judges < _FEW_JUDGES:
        told.append(
            f"Only {contest.judges} users were there to validate on: the choice is half a guess."
        )
    return [Heading("Where it is weak"), Bullets(told)]


def _tried(contest: Contest) -> list[Block]:
    ranked = sorted(contest.entries, key=lambda entry: -entry.value)
    shown = ranked[:_MOST_ROWS]
    more = len(ranked) - len(shown)
    ended = {
        "patience": "ended by itself", "epochs": "all epochs", "fitted": "no training",
        "behind": "stopped: behind", "out of time": "stopped: its time was out",
    }  # fmt: skip
    rows = [
        [
            entry.candidate.name, entry.candidate.why, ended.get(entry.ended, entry.ended),
            "-" if entry.valid is None else f"{entry.valid:.4f}",
            f"{entry.best_epoch} of {len(entry.curve)}" if entry.curve else "-",
            f"{entry.seconds:.1f}",
        ]
        for entry in shown
    ]  # fmt: skip
    header = ["method", "what it is", "ended", f"validation {METRIC}", "best epoch", "seconds"]
    judges = f"{contest.judges:,} users"
    if contest.judges == VALID_USERS:
        judges += " (drawn at random)"
    made: list[Block] = [
        Heading("What was tried"),
        Text(
            f"Validation {METRIC} over {judges} chose, and nothing else. The best of many flatters"
            " itself a little; the test figures above do not."
        ),
        Table(header, rows, left=3, marked=0),
    ]
    if more > 0:
        made.append(Text(f"{more} more did worse."))
    close = [e.candidate.name for e in ranked[1:] if e.value >= _CLOSE * ranked[0].value]
    if close:
        made.append(
            Text(f"Within {1 - _CLOSE:.0%} of the winner on validation: {listing(close, 8)}.")
        )
    if contest.left_out:
        made.append(Bullets([f"{name}: left out; {why}" for name, why in contest.left_out.items()]))
    return made


def _data(facts: Facts) -> list[Block]:
    whole = {**facts.outcome.looked.whole, **facts.outcome.looked.parts.get("data", {})}
    rows = [[name, _figure(value)] for name, value in whole.items()]
    sizes = [f"{name} {len(part):,}" for name, part in facts.outcome.prepared.split.parts.items()]
    made: list[Block] = [
        Heading("The data"),
        Text(f"{facts.outcome.prepared.how} Events: {', '.join(sizes)}."),
    ]
    if facts.outcome.looked.odd:
        made += [Text("What is odd:"), Bullets(facts.outcome.looked.odd)]
    made.append(Table(["figure", "value"], rows))
    if facts.notes:
        made += [Text("Guessed on reading:"), Bullets(facts.notes)]
    return made


def _figure(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if value.is_integer() and abs(value) >= 1 else f"{value:.4f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _run(facts: Facts) -> list[Block]:
    finish, out, program = facts.outcome.finish, facts.out, facts.command
    learnt = "all events"
    if finish is not None and not finish.on_everything:
        learnt = "the events before the test (the time did not suffice for the last fit)"
    made: list[Block] = [
        Heading("What lies here"),
        Bullets(
            [
                f"recommendations.parquet: {facts.lists:,} rows user, item, rank, score: the top"
                f" {facts.k} of every user, without what they have",
                f"run/: the model, learnt from {learnt}; llpauc recommend and Recommender.load"
                " take it",
                "config.toml: the winner's settings, for llpauc train --config",
                f"this report: {facts.budget.passed:.0f} s of {facts.budget.seconds:.0f} s used;"
                f" llpauc {version('llpauc')}",
            ]
        ),
        Code(facts.config.strip()),
        Heading("Next"),
        Code(
            "\n".join(
                [
                    f"{program} recommend {out}/run --users ID,ID      # lists for some users",
                    f"{program} recommend {out}/run --items ID,ID      # for somebody new",
                    f"{program} train {facts.path} --config {out}/config.toml --out new-run"
                    "      # the same again, on newer data",
                    f"{program} auto {facts.path} --budget 1h      # look longer",
                ]
            )
        ),
    ]
    return made
