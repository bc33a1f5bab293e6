"""`llpauc auto`: from a file to the best recommendations that fit the budget, and a report."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from threading import Timer
from typing import TYPE_CHECKING, Any

from llpauc.cli.console import (
    command_name,
    log,
    print_json,
    print_text,
    search_progress,
    show_table,
    time_span,
)
from llpauc.cli.data_options import Events, HoldOutRule, Seed, TableOptions
from llpauc.cli.system import check_folder
from llpauc.cli.training_options import train_config
from llpauc.options import Count

if TYPE_CHECKING:
    from llpauc.data.interactions import Interactions
    from llpauc.search.auto_search import AutoResult


def auto(
    path: Events,
    *,
    budget: str = "10m",
    out: str = "auto",
    k: Count = 20,
    seed: Seed = 0,
    how: HoldOutRule = "auto",
    items: str | None = None,
    where: str | None = None,
    table: TableOptions,
    json: bool = False,
) -> None:
    """Find the best recommendations that fit the budget, for all users, with a report.

    Inspects the data, splits them by time (at random without timestamps; a folder with train, valid
    and test files is used as it is), fits popularity, recent popularity, ItemKNN and EASE, trains
    candidates and searches while there is time. Validation makes every choice; the test part is
    read once, at the end; the winner is fitted on all events. Ctrl-C finishes with the best so far.

    Writes OUT/report.html, report.md, recommendations.parquet, run/ (for llpauc recommend) and
    config.toml (for llpauc train --config).

    Args:
        path: a file of interactions (or several, a pattern, a folder of parts, - for standard
            input, a database), or a folder with train/valid/test files
        budget: time for everything, such as 90s, 10m or 2h
        out: folder for the results
        k: length of the lists
        seed: of the split and of every training
        how: split of a single file, as for llpauc data split
        items: the catalogue, a table with a column of item ids: titles in the report, columns for
            --where, and features of items without events
        where: recommend only items for which this condition on the catalogue is true, such as
            "in_stock"
        json: print the result as JSON
    """
    from llpauc.data.catalogue import read_catalogue
    from llpauc.data.interactions import Split
    from llpauc.errors import InputError
    from llpauc.search import auto_search
    from llpauc.search.auto_report import AUTO_FOLDER, headline, write_results
    from llpauc.search.trials import Budget, parse_budget
    from llpauc.storage.atomic import writer_lock
    from llpauc.storage.manifest import check_replaceable

    begun, seconds = time.monotonic(), parse_budget(budget)
    check_folder(out, path)
    check_replaceable(out, AUTO_FOLDER)
    data = table.load(path)
    catalogue = None if items is None else read_catalogue(items)
    if where is not None and catalogue is None:
        raise InputError("--where is a condition on the catalogue; give it (--items FILE)")
    if catalogue is not None:
        ids = data.item_ids if isinstance(data, Split) else data.interactions.item_ids
        log.info(catalogue.check_known(ids, path))
        if where is not None:
            catalogue.matching(where)
    events = data if isinstance(data, Split) else data.interactions
    record = table.record(events if isinstance(events, Split) else Split(events))
    train = events.train if isinstance(events, Split) else events
    limit = Budget(seconds, begun + _warm_up_seconds(train))
    with writer_lock(out), search_progress() as progress:
        result = auto_search.auto(events, limit, k=k, seed=seed, how=how, progress=progress)
        progress("writing", 1.0)
        if catalogue is not None:
            result.recommender.set_items(catalogue)
        rows = write_results(
            result, Path(out), data=path, record=record, notes=data.notes, budget=limit, k=k,
            config=_config(result, table, path), command=command_name(), where=where,
        )  # fmt: skip
    if json:
        print_json(_as_json(result, out, rows, limit.passed))
    else:
        _show(result)
        print_text(headline(result))
    log.info(
        f"{time_span(limit.passed)} of {time_span(limit.seconds)}; wrote {out}/: report.html,"
        f" report.md, recommendations.parquet ({rows:,} rows), run, config.toml"
    )
    log.info(
        f"next: open {out}/report.html, or {command_name()} recommend {quote(out)}/run --users ID"
    )
    if result.signal is not None:
        raise SystemExit(128 + result.signal)


def _warm_up_seconds(train: Interactions) -> float:
    """Compile the kernels for these events, outside the budget; the seconds that it took."""
    from llpauc.search.auto_search import warm_up

    begun = time.monotonic()
    message = "compiling, once after installation: some 15 s, not part of the budget"
    timer = Timer(3.0, log.info, [message])
    timer.start()
    try:
        warm_up(train)
    finally:
        timer.cancel()
    return time.monotonic() - begun


def _config(result: AutoResult, table: TableOptions, path: str) -> str:
    comment = f"llpauc auto on {path}"
    if result.final is not None:
        winner = result.final.winner
        comment = f"{winner.candidate.name}: validation ndcg@20 {winner.sort_value:.6f}; {comment}"
    return train_config(result.settings, table, comment)


def _show(result: AutoResult) -> None:
    from llpauc.search.auto_search import METRICS

    if result.final is None:
        return
    intervals = result.final.comparison.intervals
    rows = []
    for position, trial in enumerate(result.final.finalists):
        name = trial.candidate.name
        first = intervals[METRICS[0]][name]
        means = [intervals[metric][name].mean for metric in METRICS]
        label = name if position else f"{name} (chosen)"
        rows.append([label, trial.value, *means, f"{first.low:.4f} to {first.high:.4f}"])
    show_table(
        f"Test part, read once: {result.final.comparison.users:,} users",
        ["method", "validation ndcg@20", *METRICS, "95% interval, ndcg@20"],
        rows,
    )


def _as_json(result: AutoResult, out: str, rows: int, seconds: float) -> dict[str, Any]:
    winner, test, trials = result.recommender.model, None, []
    if result.final is not None:
        winner, trials = result.final.winner.candidate.name, result.final.search.trials
        test = {
            name: {
                metric: asdict(intervals[name])
                for metric, intervals in result.final.comparison.intervals.items()
            }
            for name in result.final.evaluations
        }
    return {
        "winner": winner, "settings": result.settings, "test": test,
        "tried": [
            {
                "id": trial.candidate.id, "name": trial.candidate.name,
                "valid": trial.value, "ended": trial.ended, "best_epoch": trial.best_epoch,
                "seconds": round(trial.seconds, 2),
            }
            for trial in trials
        ],
        "recommendations": rows, "seconds": round(seconds, 2), "out": out,
    }  # fmt: skip
