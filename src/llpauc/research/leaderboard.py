"""The leaderboard: our recommended setting and the baselines, on every available data set.

Every method chooses among a few settings on validation with the first seed. The chosen setting is
then trained with every seed, refitted on everything before the test where that is allowed, and the
test part is evaluated. Data without a validation part hold out a tenth of each user's training
events to choose on, the same for every method.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from llpauc.data.interactions import Split, before, join
from llpauc.errors import choose
from llpauc.recommend.lists import Recommendations, write_lists
from llpauc.recommend.recipes import recipe, with_loss
from llpauc.research.cells import Result, Study
from llpauc.research.report_files import MeanSd, Report, Row, rows_table, setting_text
from llpauc.research.trainings import (
    Setting,
    choosing_split,
    fit_recommender,
    seed_values,
    seeded_cells,
)

METRICS = ("recall@20", "ndcg@20")
OURS = "default"

# Data set, and what a method may learn from: train only (the paper's protocol), or everything
# before the test. Without a validation part, that is train.
BOARDS: tuple[tuple[str, str], ...] = (
    ("adressa-clean", "train"),
    ("adressa-clean", "all"),
    ("ml-100k", "all"),
    ("amazon-health", "all"),
    ("amazon-electronic", "all"),
    ("gowalla", "all"),
    ("gowalla-lightgcn", "all"),
    ("yelp2018-lightgcn", "all"),
    ("beauty-talos", "all"),
    ("ml-1m-clean", "all"),
    ("ml-1m", "all"),
    ("amazon-games", "all"),
    ("movietweetings", "all"),
)

# Published or measured by others on the same files: method, Recall@20, NDCG@20.
TO_BEAT: dict[tuple[str, str], tuple[str, float, float]] = {
    ("adressa-clean", "train"): ("popularity", 0.3282, 0.1852),
    ("adressa-clean", "all"): ("popularity of the validation days", 0.7055, 0.4070),
    ("amazon-health", "all"): ("EASE", 0.1860, 0.1468),
    ("amazon-electronic", "all"): ("SL@20 / EASE", 0.0901, 0.0603),
    ("gowalla", "all"): ("SL@20 on LightGCN, published", 0.2128, 0.1729),
    ("gowalla-lightgcn", "all"): ("ChebyCF / NESCL, published", 0.1941, 0.1617),
    ("yelp2018-lightgcn", "all"): ("NESCL, published", 0.0743, 0.0611),
    ("beauty-talos", "all"): ("Talos on XSimGCL, published", 0.1506, 0.0858),
}


def methods_of(split: Split) -> dict[str, list[Setting]]:
    """Method -> the settings it chooses from."""
    paper = _without(recipe("paper", split.train), "alpha", "beta", "cold_users")
    default = _without(recipe("auto", split.train, split.valid), "refit")
    alone = _without(default, "blend")
    return {
        "popularity": [{"model": "popularity"}],
        "recent_popularity": [{"model": "recent_popularity"}],
        "itemknn": [{"model": "itemknn", "neighbours": n} for n in (50, 100, 300)],
        "ease": [{"model": "ease"}],  # these two choose their options by themselves
        "ials": [{"model": "ials"}],
        "bpr": [{**paper, "loss": "bpr", "lr": lr, "batch_size": 1024} for lr in (1e-3, 1e-2)],
        "sl": [with_loss(alone, "sl", temperature=t) for t in (0.1, 0.2)],
        "paper": [{**paper, "alpha": a, "beta": b} for a, b in ((0.7, 0.1), (0.9, 0.01))],
        "llpauc": [alone],
        OURS: [default],
    }


def _without(setting: Setting, *names: str) -> Setting:
    return {name: value for name, value in setting.items() if name not in names}


def board(
    data: str, history: str, study: Study, methods: Mapping[str, Sequence[Setting]]
) -> list[Row]:
    """The rows of one data set under one protocol."""
    if study.quick:
        methods = {name: settings[:1] for name, settings in methods.items()}
    chosen = study.choose_best(
        {
            name: [(s, seeded_cells(study, data, s, test=False)[:1]) for s in settings]
            for name, settings in methods.items()
        }
    )
    results = study.grouped_results(
        {
            name: seeded_cells(study, data, setting, refit=history == "all")
            for name, setting in chosen.items()
        }
    )
    return [
        {"data": data, "learns from": history, "method": name}
        | result_columns(chosen[name], methods[name], some)
        for name, some in results.items()
    ]


def result_columns(setting: Setting, tried: Sequence[Setting], results: Sequence[Result]) -> Row:
    """The test metrics, the seconds per fit, and what distinguishes the chosen setting."""
    headings = {
        (metric, group): metric if group == "all" else f"{metric}, {group}"
        for metric in METRICS
        for group in ("all", "warm")
    }
    refused = [result["refused"] for result in results if "refused" in result]
    if refused:
        return dict.fromkeys([*headings.values(), "seconds a fit"], "-") | {"chosen": refused[0]}
    row: Row = {
        heading: str(MeanSd.of(seed_values(results, metric, group)))
        for (metric, group), heading in headings.items()
    }
    row["seconds a fit"] = f"{sum(r['seconds'] for r in results) / len(results):.1f}"
    differs = {k: v for k, v in setting.items() if any(t.get(k) != v for t in tried)}
    return row | {"chosen": setting_text(differs) or "-"}


def leaderboard(
    study: Study,
    names: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    lists: Path | None = None,
) -> Report:
    """The available data sets, or the named ones, likewise methods; our lists go to `lists`."""
    boards = [(d, h) for d, h in BOARDS if d in study.available and (names is None or d in names)]
    # Once per data set: a recipe reads all events, which takes seconds where there are many.
    settings = {data: methods_of(study.split(data)) for data in dict.fromkeys(d for d, _ in boards)}
    rows: list[Row] = []
    parts = []
    for data, history in boards:
        known = settings[data]
        of_board = board(
            data,
            history,
            study,
            known if methods is None else {m: choose(known, m, "method") for m in methods},
        )
        rows += of_board
        shown = [_without(row, "data", "learns from") for row in of_board]
        parts += [f"## {data}, learning from {history}", rows_table(shown)]
        if (data, history) in TO_BEAT:
            method, recall, ndcg = TO_BEAT[data, history]
            parts.append(f"To beat: {method}, {recall:.4f} / {ndcg:.4f}.")
        if lists is not None:
            _write_lists(study, data, history, known[OURS][0], lists)
    seeds = ", ".join(map(str, study.seeds))
    return Report.of("leaderboard", parts, rows, seeds=seeds, metric=METRICS[-1])


def _write_lists(study: Study, data: str, history: str, setting: Setting, folder: Path) -> None:
    """Lists for every test user, trained with the first seed, to be evaluated by other programs."""
    split = choosing_split(study.split(data))
    recommender = fit_recommender(split, study.seeds[0], setting, refit=history == "all")
    assert split.test is not None
    # The evaluation masks everything before the test, also what was not learnt from.
    seen = join(before(split, "test")).matrix
    recommender.fitted = replace(recommender.require_fitted(), histories=seen)
    users = split.test.user_ids.ids(np.unique(split.test.users))
    lists = Recommendations(list(users), *recommender.recommend(users, k=20))
    write_lists(lists, folder / f"{data}-{history}.tsv")
