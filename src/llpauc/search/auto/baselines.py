"""Models without training: each is fitted, measured and timed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from llpauc.data.histories import before
from llpauc.data.interactions import Interactions, Split
from llpauc.data.recency import choose_recency
from llpauc.errors import InputError
from llpauc.evaluation.full_ranking import evaluate
from llpauc.recommend import Recommender
from llpauc.search.auto.contest import Contest, Entry
from llpauc.search.auto.plan import METRIC, Candidate, baseline, further_baselines
from llpauc.training.loop import available_memory

_CHEAP = 0.02  # share of the budget below which a baseline is tried with further parameters
_BASELINE_SHARE = 0.2  # of what is left, beyond which a baseline is not begun


def run_baselines(contest: Contest) -> None:
    """Popularity always; the others where time and memory allow."""
    contest.hear.status("baselines")
    _warm_up()
    contest.add(_run_baseline(contest, baseline("popularity")))
    contest.moving = choose_recency(before(contest.split, "test"))
    asked = ["itemknn", "ease"]
    if contest.split.train.timestamps is not None or contest.moving.has_drift:
        asked.insert(0, "recent_popularity")
    else:
        contest.left_out["recent_popularity"] = (
            "the data have no times, and their order tells nothing"
        )
    for model in asked:
        if contest.stop:
            return
        refusal = _refusal(contest, model)
        if refusal:
            contest.left_out[model] = refusal
            contest.hear.line(f"{contest.budget.passed:6.0f} s     -    {model}  ({refusal})")
            continue
        contest.hear.status(model)
        entry = _run_baseline(contest, baseline(model))
        contest.add(entry)
        for candidate in further_baselines(model):
            if entry.seconds > _CHEAP * contest.budget.seconds or contest.stop:
                break
            contest.add(_run_baseline(contest, candidate))


def _warm_up() -> None:
    """The first ranking compiles or loads its kernels; no estimate should count that."""
    tiny = Recommender(model="popularity").fit(_tiny())
    evaluate(tiny.scorer(), _tiny(), on="valid", metrics=[METRIC])


def _tiny() -> Split:
    return Split.of(
        Interactions.of(["a", "b"], ["x", "y"]), Interactions.of(["a", "b"], ["y", "x"])
    )


def _run_baseline(contest: Contest, candidate: Candidate) -> Entry:
    clock = contest.budget.clock
    begun = clock()
    try:
        fitted = Recommender(**candidate.settings).fit(contest.judged)
        ready = clock()
        found = evaluate(fitted.scorer(), contest.judged, on="valid", metrics=[METRIC])
    except (InputError, MemoryError) as error:
        return Entry(candidate, None, "refused", clock() - begun, told=str(error))
    ended = clock()
    chosen = {k: v for k, v in fitted.fitted_params.items() if k in ("half_life", "by")}
    told = ""
    if candidate.model == "recent_popularity" and contest.moving is not None:
        told = str(contest.moving)
        if not contest.moving.has_drift:
            candidate = replace(candidate, why="recent events tell no more here: as popularity")
    return Entry(
        replace(candidate, settings={**candidate.settings, **chosen}), found.mean(METRIC), "fitted",
        ended - begun, ready - begun, (ended - ready) / contest.judges, told=told,
    )  # fmt: skip


def _refusal(contest: Contest, model: str) -> str:
    """Why a baseline is not begun; "" where it may."""
    seconds = _EXPECTED[model](contest.split) if model in _EXPECTED else 0.0
    left = max(contest.budget.left, 0.0)
    if seconds > _BASELINE_SHARE * left:
        return f"it would take about {seconds:.1f} s of the {left:.1f} s left"
    items = contest.split.n_items
    free = available_memory()
    if model == "ease" and free is not None and 3 * 4 * items**2 > free:
        return f"{items:,} items: its matrix does not fit into memory"
    return ""


def _ease_seconds(split: Split) -> float:
    """By the time a small matrix takes; the cube of the items is what counts."""
    size = 400
    small = np.eye(size, dtype=np.float32) * 2 + np.float32(1e-3)
    taken = []
    for _ in range(3):
        begun = time.perf_counter()
        np.linalg.inv(small)
        taken.append(time.perf_counter() - begun)
    return min(taken) * float(split.n_items / size) ** 3


def _knn_seconds(split: Split) -> float:
    pairs = float((np.diff(split.train.matrix.indptr).astype(np.float64) ** 2).sum())
    return pairs / 2e7 + float(split.n_items) ** 2 * 2e-8


_EXPECTED: dict[str, Callable[[Split], float]] = {"ease": _ease_seconds, "itemknn": _knn_seconds}
