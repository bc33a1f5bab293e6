"""The leaderboard: our recommended setting beside the baselines, on every data set there is.

Every method chooses among a few settings on validation with the first seed. The chosen one is then
trained with every seed, refitted on all that lies before the test where that is allowed, and the
test part is read. Data without a validation part give a tenth of each user's training events to
the choice, the same for everybody.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from llpauc.data.histories import before, join
from llpauc.data.interactions import Split
from llpauc.data.splits import hold_out
from llpauc.errors import InputError, choose
from llpauc.evaluation.full_ranking import evaluate
from llpauc.recommend.lists import Recommendations, write_lists
from llpauc.recommend.recipes import recipe, with_loss
from llpauc.research.cells import Cell, Result
from llpauc.research.lab import Lab
from llpauc.research.paper.runners import Splits, fit_recommender
from llpauc.research.paper.settings import EASE_GRID, Setting
from llpauc.research.report import Report, Row, markdown_table, setting_text
from llpauc.research.spread import Spread

METRICS = ("recall@20", "ndcg@20")
CHOSEN_BY = "ndcg@20"
_HELD_OUT, _HELD_OUT_SEED = 0.1, 0

# Data set -> what a method may learn from: the paper's protocol (train alone), or all that lies
# before the test. Of data that come without a validation part, train is all there is.
BOARDS: tuple[tuple[str, str], ...] = (
    ("adressa-clean", "train"),
    ("adressa-clean", "all"),
    ("ml-100k", "all"),
    ("amazon-health", "all"),
    ("amazon-electronic", "all"),
    ("gowalla", "all"),
)

# Published or measured elsewhere on these very files: what there is to beat (Recall@20, NDCG@20).
TO_BEAT: dict[tuple[str, str], tuple[str, float, float]] = {
    ("adressa-clean", "train"): ("popularity", 0.3282, 0.1852),
    ("adressa-clean", "all"): ("popularity of the validation days", 0.7055, 0.4070),
    ("amazon-health", "all"): ("EASE", 0.1860, 0.1468),
    ("amazon-electronic", "all"): ("SL@20 / EASE", 0.0901, 0.0603),
    ("gowalla", "all"): ("SL@20, published", 0.2121, 0.1709),
}


OURS = "llpauc-auto"


def _methods(split: Split) -> dict[str, list[Setting]]:
    """Method -> the settings it may choose from."""
    paper = _without(recipe("paper", split.train), "alpha", "beta", "cold")
    auto = _without(recipe("auto", split.train, split.valid), "refit")
    return {
        "popularity": [{"model": "popularity"}],
        "recent": [{"model": "recent"}],
        "itemknn": [{"model": "itemknn", "neighbours": n} for n in (50, 100, 300)],
        "ease": [{"model": "ease", **setting} for setting in EASE_GRID],
        "bpr": [{**paper, "loss": "bpr", "lr": lr, "batch_size": 1024} for lr in (1e-3, 1e-2)],
        "sl": [with_loss(auto, "sl", temperature=t) for t in (0.1, 0.2)],
        "llpauc-published": [
            {**paper, "alpha": a, "beta": b} for a, b in ((0.7, 0.1), (0.9, 0.01))
        ],
        OURS: [auto],
    }


def _without(setting: Setting, *names: str) -> Setting:
    return {name: value for name, value in setting.items() if name not in names}


def run_recommender(
    splits: Splits, data: str, *, history: str, test: bool, seed: int, **given: Any
) -> Result:
    """Fit a recommender; its validation figure, or its test figures after a refit if allowed."""
    begun = time.perf_counter()
    split = _choosing(splits(data))
    try:
        recommender = fit_recommender(split, seed, given, refit=test and history == "all")
    except InputError as error:  # EASE on a catalogue too large for it
        return {"refused": str(error)}
    result: Result = {"seconds": time.perf_counter() - begun}
    if test:
        found = evaluate(recommender.scorer(), splits(data), metrics=METRICS)
        result["test"] = found.summary()
    else:
        found = evaluate(recommender.scorer(), split, on="valid", metrics=[CHOSEN_BY])
        result["valid"] = found.mean(CHOSEN_BY)
    return result


def _choosing(whole: Split) -> Split:
    """The split that chooses: with a validation part, if need be of train."""
    return whole if whole.valid is not None else hold_out(whole, _HELD_OUT, _HELD_OUT_SEED)


def _write_lists(lab: Lab, data: str, history: str, setting: Setting, folder: Path) -> None:
    """Lists for every test user, made anew with the first seed, for a second opinion."""
    split = _choosing(lab.split(data))
    recommender = fit_recommender(split, lab.seeds[0], setting, refit=history == "all")
    assert split.test is not None
    # What the figures mask: all that lies before the test, also where it was not learnt from.
    seen = join(before(split, "test")).matrix
    recommender.fitted = dataclasses.replace(recommender.require_fitted(), histories=seen)
    users = split.test.user_ids.ids(np.unique(split.test.users))
    lists = Recommendations(list(users), *recommender.recommend(users, k=20))
    write_lists(lists, folder / f"{data}-{history}.tsv")


def board(data: str, history: str, lab: Lab, methods: Mapping[str, Sequence[Setting]]) -> list[Row]:
    """The rows of one data set under one protocol."""
    if lab.quick:
        methods = {name: settings[:1] for name, settings in methods.items()}

    def cell(setting: Setting, seed: int, test: bool) -> Cell:
        return Cell.of("recommender", data, history=history, test=test, seed=seed, **setting)

    first = lab.seeds[0]
    asked = {
        name: [(setting, [cell(setting, first, test=False)]) for setting in settings]
        for name, settings in methods.items()
    }
    chosen = lab.best(asked)
    final = {
        name: [
            cell(setting, seed, test=True)
            for seed in (lab.seeds if "loss" in setting else lab.seeds[:1])
        ]
        for name, setting in chosen.items()
    }
    results = lab.results([c for cells in final.values() for c in cells])
    return [
        _row(data, history, name, chosen[name], methods[name], [results[c] for c in cells])
        for name, cells in final.items()
    ]


def _row(
    data: str, history: str, name: str, setting: Setting, tried: Sequence[Setting],
    found: Sequence[Result],
) -> Row:  # fmt: skip
    row: Row = {"data": data, "learns from": history, "method": name}
    refused = next((r["refused"] for r in found if "refused" in r), None)
    if refused is not None:
        figures = [m for metric in METRICS for m in (metric, f"{metric}, warm")]
        return row | dict.fromkeys([*figures, "seconds a fit"], "-") | {"chosen": refused}
    for metric in METRICS:
        for group in ("all", "warm"):
            values = [r["test"].get(group, r["test"]["all"])[metric] for r in found]
            row[metric if group == "all" else f"{metric}, {group}"] = str(Spread.of(values))
    row["seconds a fit"] = f"{sum(r['seconds'] for r in found) / len(found):.1f}"
    differs = {k: v for k, v in setting.items() if any(t.get(k) != v for t in tried)}
    row["chosen"] = setting_text(differs) or "-"
    return row


def leaderboard(
    lab: Lab,
    names: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    lists: Path | None = None,
) -> Report:
    """All data sets that are there, or those named, likewise methods; our lists go to `lists`."""
    there = [(d, h) for d, h in BOARDS if d in lab.every and (names is None or d in names)]
    # Once a data set: a recipe looks at the events, for seconds where there are many.
    settings = {data: _methods(lab.split(data)) for data in dict.fromkeys(d for d, _ in there)}
    rows: list[Row] = []
    for data, history in there:
        own = settings[data]
        named = own if methods is None else {m: choose(own, m, "method") for m in methods}
        rows += board(data, history, lab, named)
    if lists is not None:
        for data, history in there:
            _write_lists(lab, data, history, settings[data][OURS][0], lists)
    parts = [
        f"Recall@20 / NDCG@20 over all items, seen ones masked; mean ± standard deviation of seeds"
        f" {', '.join(map(str, lab.seeds))}. Settings by {CHOSEN_BY} on validation (first seed);"
        " then a refit on all that a method may learn from. *train*: the paper's protocol; *all*:"
        " everything before the test. Seconds include the choice of the epoch and the refit."
    ]
    for data, history in there:
        found = [row for row in rows if (row["data"], row["learns from"]) == (data, history)]
        hidden = ("data", "learns from")
        shown = [{k: v for k, v in row.items() if k not in hidden} for row in found]
        table = markdown_table(list(shown[0]), [list(map(str, row.values())) for row in shown])
        beat = TO_BEAT.get((data, history))
        goal = [] if beat is None else [f"To beat: {beat[0]}, {beat[1]:.4f} / {beat[2]:.4f}."]
        parts += [f"## {data}, learning from {history}", table, *goal]
    return Report("leaderboard", "Leaderboard", parts, rows)
