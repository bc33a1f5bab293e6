"""`llpauc evaluate`: honest numbers for models that need no training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal

from llpauc.cli.console import log, print_json, progress, show_table
from llpauc.cli.data_options import SplitOptions, TableOptions
from llpauc.cli.system import check_file, check_run_fits_memory, make_folder_of
from llpauc.options import Count, NonNegative, Positive

if TYPE_CHECKING:
    from llpauc.data.interactions import Interactions, Split
    from llpauc.data.recency import Recency
    from llpauc.evaluation.full_ranking import Evaluation
    from llpauc.evaluation.scorer import Scorer
    from llpauc.recommend.fitted import Fitted

    Fit = Callable[[], Scorer]


def evaluate(
    path: str,
    *,
    models: str | None = None,
    runs: str | None = None,
    metrics: str = "recall@20,ndcg@20",
    on: Literal["test", "valid"] = "test",
    mask: Literal["seen", "train", "paper", "none"] = "seen",
    history: Literal["train", "all"] = "train",
    half_life: Positive | None = None,
    table: TableOptions,
    options: SplitOptions,
    regularization: Positive = 200.0,
    neighbours: Count = 100,
    shrinkage: NonNegative = 10.0,
    memory_mb: Positive = 1024.0,
    threads: Count | None = None,
    per_user: str | None = None,
    lists: str | None = None,
    plot: str | None = None,
    json: bool = False,
) -> None:
    """Rank all items for every test user with each model, and measure.

    A folder with train and test files is taken as it is; a single file is split first. Users are
    shown warm (with training events), cold (without) and all together. Users without a test item
    are left out and counted. It is said when recent popularity beats a model: then time is worth
    more than what the model learns.

    Args:
        path: a file of interactions, or a folder with train/valid/test files
        models: any of popularity, recent, itemknn, ease, separated by commas; all that the data
            are not too large for unless given
        runs: run folders written by llpauc train, separated by commas, to be measured too
        metrics: any of recall@K, precision@K, ndcg@K, hit@K, mrr@K, map@K, auc, opauc(BETA),
            llpauc(ALPHA,BETA), separated by commas
        on: the part to evaluate on
        mask: items not to recommend: seen (train, and valid when testing), train, paper (as the
            reference program does: a seen item stays if it is a test item) or none
        history: what the models may learn from: train, as in the paper, or all that lies before the
            part under test (train and valid when testing); runs stay as they were trained
        half_life: age at which an event counts half in recent popularity: seconds where there are
            timestamps, else events; chosen on what lies before the part under test unless given
        regularization: EASE's lambda
        neighbours: ItemKNN's neighbours of an item
        shrinkage: ItemKNN's distrust of items with few users
        memory_mb: most memory for score blocks; does not change the result
        threads: most threads; does not change the result
        per_user: write each user's values to this Parquet file (several models: a column says
            which)
        lists: write the ranked lists to this file, tab-separated user, item, rank, score
        plot: write the comparison by the first three metrics as a picture to this file
        json: print the results as JSON
    """
    from llpauc.data import interactions, recency
    from llpauc.errors import choose
    from llpauc.evaluation import full_ranking as evaluation
    from llpauc.metrics import parse_metric, split_names
    from llpauc.models.base import FitData
    from llpauc.models.registry import MODELS, untrained_models
    from llpauc.options import options_of

    untrained = {name: MODELS[name] for name in untrained_models()}
    names = list(untrained) if models is None else [n.strip() for n in models.split(",")]
    entries = {name: choose(untrained, name, "model") for name in names}
    saved = {run: _fitted(run) for run in (runs or "").split(",") if run}
    wanted = [parse_metric(name).name for name in split_names(metrics)]
    for target in (per_user, lists, plot):
        check_file(target)
    if plot is not None:
        from llpauc.data import plots
        from llpauc.storage import figure_files

        figure_files.check_kind(plot)
    split = options.apply(table.load(path))
    parts = interactions.before(split, on, history)
    everything = interactions.before(split, on)
    if half_life is None:
        chosen = recency.choose_recency(everything)
    else:
        chosen = recency.given_recency(everything, half_life)
    parameters = {
        "half_life": chosen.half_life, "by": chosen.by, "regularization": regularization,
        "neighbours": neighbours, "shrinkage": shrinkage,
    }  # fmt: skip
    data = FitData(split, parts)
    ready: dict[str, Fit] = {}
    for name, entry in entries.items():
        chosen_by_user = {option: parameters[option] for option in options_of(entry.Options)}
        ready[name] = partial(entry.load().scorer_of, data, **chosen_by_user)
    ready |= {run: _in_place(run, fitted, split, on) for run, fitted in saved.items()}
    measure = partial(
        evaluation.evaluate, split=split, on=on, metrics=wanted, mask=mask,
        memory_mb=memory_mb, threads=threads,
    )  # fmt: skip
    ranked = len(set(split.parts[on].users.tolist())) if on in split.parts else None
    found = _measure_all(ready, measure, ranked, may_leave_out=models is None)
    one = found.any_result
    warning = _beaten_by_recent(found.results, split, parts, chosen)
    if warning is not None:
        log.info(warning)
    if json:
        print_json(
            {
                "path": path, "on": on, "mask": mask, "history": history,
                "recent": {"half_life": chosen.half_life, "by": chosen.by, "chosen on": chosen.on},
                "users left out": one.n_without_targets, "models left out": found.left_out,
                "results": found.summaries, "seconds": found.seconds,
                "warnings": [] if warning is None else [warning],
            }
        )  # fmt: skip
    else:
        _show(found, f"{path}: {on} users, full ranking of {split.n_items:,} items")
        log.info(
            f"masked: {evaluation.MASKS[mask].description};"
            f" {one.n_without_targets:,} users without a {on} item are left out"
        )
        log.info(f"learnt from: {interactions.HISTORIES[history]}")
        if "recent_popularity" in found.results:
            log.info(f"recent: {chosen}; chosen on {chosen.on}")
    if per_user is not None:
        make_folder_of(per_user)
        evaluation.write_per_user(found.results, per_user)
        log.info(f"wrote {per_user}")
    if lists is not None:
        make_folder_of(lists)
        evaluation.write_lists(found.results, split.item_ids, lists)
        log.info(f"wrote {lists}")
    if plot is not None:
        figure = plots.compare_models(found.summaries, list(one.values)[:3], f"{path}, {on} users")
        log.info(f"wrote {figure_files.save(figure, plot)}")


@dataclass(frozen=True)
class Measured:
    """Model -> its figures, the seconds it took, or why it was left out."""

    results: Mapping[str, Evaluation]
    seconds: Mapping[str, float]
    left_out: Mapping[str, str]

    @property
    def any_result(self) -> Evaluation:
        """What is the same for all: the metrics' names, users left out, the mask."""
        return next(iter(self.results.values()))

    @cached_property
    def summaries(self) -> dict[str, Any]:
        return {name: result.summary() for name, result in self.results.items()}


def _measure_all(
    ready: Mapping[str, Fit],
    measure: Callable[..., Evaluation],
    ranked: int | None,
    may_leave_out: bool,
) -> Measured:
    """Fit and measure one after another; one that cannot be fitted is left out where it may be."""
    import time

    from llpauc.errors import InputError

    results: dict[str, Evaluation] = {}
    seconds: dict[str, float] = {}
    left_out: dict[str, str] = {}
    for name, fit in ready.items():
        begun = time.perf_counter()
        try:
            with progress(f"fitting {name}"):
                scorer = fit()
        except InputError as error:
            if not may_leave_out:
                raise
            left_out[name] = str(error)
            log.info(f"without {name}: {error}")
            continue
        with progress(f"ranking with {name}", ranked) as advance:
            results[name] = measure(scorer, progress=advance)
        seconds[name] = time.perf_counter() - begun
    return Measured(results, seconds, left_out)


def _show(found: Measured, title: str) -> None:
    metrics = list(found.any_result.values)
    show_table(
        title,
        ["model", "users", "number", *metrics, "seconds"],
        [
            [name, group, figures["users"], *[figures[m] for m in metrics],
             f"{found.seconds[name]:.1f}" if group == "all" else ""]
            for name, summary in found.summaries.items()
            for group, figures in summary.items()
        ],
        left=2,
    )  # fmt: skip


def _beaten_by_recent(
    results: Mapping[str, Evaluation], split: Split, parts: Sequence[Interactions], chosen: Recency
) -> str | None:
    """A warning where recent popularity, learnt from `parts`, is clearly better than a model."""
    from llpauc.data.interactions import before
    from llpauc.data.recency import METRIC, clearly_better, one_list_values, recent_counts
    from llpauc.evaluation.full_ranking import MASKS
    from llpauc.metrics import parse_metric

    one = next(iter(results.values()))
    metric = next((m for m in (METRIC, *one.values) if m in one.values and parse_metric(m).k), None)
    if metric is None or not chosen.has_drift:
        return None
    scores = recent_counts(parts, chosen.half_life, chosen.by)
    masked = MASKS[one.mask].matrix(split, one.on)
    recent = one_list_values(scores, split.parts[one.on].matrix, masked, metric)
    beaten = [
        name
        for name, result in results.items()
        if name != "recent_popularity" and clearly_better(recent, result.values[metric])
    ]
    if not beaten:
        return None
    best = max(results[name].mean(metric) for name in beaten)
    more = len(parts) < len(before(split, one.on))
    return (
        f"recent popularity ({chosen}) beats {', '.join(beaten)}: {metric} {recent.mean():.4f}"
        f" against {best:.4f} at best; tastes move with time: weigh events by age"
        f"{', and learn from all that lies before the test (--history all)' if more else ''}"
    )


def _fitted(run: str) -> Fitted:
    from llpauc.recommend import Recommender

    check_run_fits_memory(run)
    return Recommender.load(run).require_fitted()


def _in_place(run: str, fitted: Fitted, split: Split, on: Literal["test", "valid"]) -> Fit:
    """A saved run in the place of a model to be fitted: its scores over the data's ids."""
    if on in split.parts:
        target = split.parts[on]
        told = fitted.contains(target)
        # A pair that stands in train as well is the data's own leak, not the run's.
        told &= split.train.matrix[target.users, target.items].A1 == 0
        if told.any():
            log.info(
                f"{run}: was trained on {int(told.sum()):,} of the {len(target):,} {on} events, so"
                " its figures flatter it; train on the train part alone"
            )
    return partial(fitted.scorer_for, split.user_ids, split.item_ids)
