"""`llpauc evaluate`: test metrics of models without training, and of saved runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from llpauc.cli.console import log, metrics_table, print_result, progress
from llpauc.cli.data_options import Events, SplitOptions, TableOptions
from llpauc.cli.system import check_file, load_run, make_folder_of
from llpauc.cli.training_options import BaselineOptions
from llpauc.options import Choices, Count, Positive

if TYPE_CHECKING:
    from llpauc.data.interactions import Interactions, Part, Split
    from llpauc.data.recency import Recency
    from llpauc.evaluation.full_ranking import Evaluation
    from llpauc.evaluation.scorer import Scorer
    from llpauc.recommend.fitted import Fitted


def evaluate(
    path: Events,
    *,
    models: Annotated[str, Choices("llpauc.models.registry:untrained_models", many=True)]
    | None = None,
    runs: str | None = None,
    metrics: str = "recall@20,ndcg@20",
    on: Literal["test", "valid"] = "test",
    mask: Literal["seen", "train", "paper", "none"] = "seen",
    history: Literal["train", "all"] = "train",
    table: TableOptions,
    options: SplitOptions,
    baselines: BaselineOptions,
    memory_mb: Positive = 1024.0,
    threads: Count | None = None,
    per_user: str | None = None,
    lists: str | None = None,
    plot: str | None = None,
    json: bool = False,
) -> None:
    """Rank all items for every test user with each model, and measure.

    A folder with train and test files is used as it is; a single file is split first. Metrics are
    shown for warm users (with training events), cold users (without) and all users. Users without
    a test item are left out and counted. A warning is printed if recent popularity beats a model:
    then recent events predict better than what the model learns. Processes that torchrun started
    divide the users among them.

    Args:
        path: a file of interactions (or several, a pattern, a folder of parts, - for standard
            input, a database), or a folder with train/valid/test files
        models: models to fit, separated by commas; by default all that can handle data of this size
        runs: run folders written by llpauc train, separated by commas, which are measured too
        metrics: any of recall@K, precision@K, ndcg@K, hit@K, mrr@K, map@K, auc, opauc(BETA),
            llpauc(ALPHA,BETA), separated by commas
        on: the part to evaluate on
        mask: items that are not recommended: seen (train, and valid when testing), train, paper (as
            seen, but a test item is never masked, as in the reference program) or none
        history: events that the models learn from: train, as in the paper, or all events before the
            evaluated part (train and valid when testing); runs are not changed
        memory_mb: memory limit for blocks of scores; does not change the result
        threads: number of threads; does not change the result
        per_user: write the values of each user to this Parquet file
        lists: write the ranked lists to this file, tab-separated user, item, rank, score
        plot: write a figure that compares the first three metrics to this file
        json: print the results as JSON
    """
    from llpauc.data.interactions import HISTORIES, before, fingerprint
    from llpauc.data.known_ids import check_parts
    from llpauc.data.recency import choose_recency, given_recency
    from llpauc.distributed import current_process_group
    from llpauc.evaluation import full_ranking
    from llpauc.metrics import parse_metric, split_names
    from llpauc.models.base import FitData
    from llpauc.models.registry import MODELS, untrained_models
    from llpauc.options import options_of
    from llpauc.storage.figure_files import check_kind

    # Check all options before the data are read
    names = untrained_models() if models is None else [n.strip() for n in models.split(",")]
    fitted_runs = {run: load_run(run) for run in (runs or "").split(",") if run}
    metric_names = [parse_metric(name).name for name in split_names(metrics)]
    for file in (per_user, lists, plot):
        check_file(file, path, *fitted_runs)
    if plot is not None:
        check_kind(plot)

    # Read the data, and choose the half-life on the events before the evaluated part
    split = options.apply(table.load(path, check_ids=False))
    for text in check_parts(split):
        log.info(text)
    parts, earlier = before(split, on, history), before(split, on)
    processes = current_process_group()
    if processes.world_size > 1:
        processes.check_equal("the events", fingerprint(*split.parts.values()))
    given = baselines.given()
    if "half_life" in given:
        recency = given_recency(earlier, given["half_life"], given.get("by"))
    else:
        recency = choose_recency(earlier)
    given |= {"half_life": recency.half_life, "by": recency.by}
    using_recency = [n for n in names if "half_life" in options_of(MODELS[n].Options)]

    # Fit and measure
    fits: dict[str, Callable[[], Scorer]] = {}
    for name in names:
        entry = MODELS[name]
        settings = {k: value for k, value in given.items() if k in options_of(entry.Options)}
        fits[name] = partial(entry.load().scorer_of, FitData(split, parts), **settings)
    for run, fitted in fitted_runs.items():
        _check_run(run, fitted, split, on)
        fits[run] = partial(fitted.scorer_for, split.user_ids, split.item_ids)
    measure = partial(
        full_ranking.evaluate,
        split=split,
        on=on,
        metrics=metric_names,
        mask=mask,
        memory_mb=memory_mb,
        threads=threads,
        processes=processes,
    )
    n_users = len(set(split.parts[on].users.tolist())) if on in split.parts else None
    results, seconds, left_out = _measure_all(fits, measure, n_users, skip=models is None)
    summaries = {name: result.summary() for name, result in results.items()}
    first = next(iter(results.values()))
    compared = {name: result for name, result in results.items() if name not in using_recency}
    warning = _warning_if_recent_is_better(compared, split, parts, recency)

    # Print and write the results
    if not processes.is_first:
        return
    if warning is not None:
        log.info(warning)
    print_result(
        {
            "path": path,
            "on": on,
            "mask": mask,
            "exclude": split.train.rules.excluded_types,
            "relevant": split.train.rules.relevant or "all",
            "history": history,
            "recent": {"half_life": recency.half_life, "by": recency.by, "chosen on": recency.on},
            "users left out": first.n_without_targets,
            "models left out": left_out,
            "results": summaries,
            "seconds": seconds,
            "warnings": [] if warning is None else [warning],
        },
        json,
        metrics_table(
            f"{path}: {on} users, full ranking of {split.n_items:,} items", summaries, seconds
        ),
    )
    if not json:
        log.info(
            f"masked: {full_ranking.MASKS[mask].description}{_types_text(split)};"
            f" {first.n_without_targets:,} users without a {on} item are left out"
        )
        log.info(f"the models learned from: {HISTORIES[history]}")
        if using_recency:
            log.info(f"{', '.join(using_recency)}: {recency}; chosen on {recency.on}")
    if per_user is not None:
        make_folder_of(per_user)
        full_ranking.write_per_user(results, per_user)
        log.info(f"wrote {per_user}")
    if lists is not None:
        make_folder_of(lists)
        full_ranking.write_lists(results, split.item_ids, lists)
        log.info(f"wrote {lists}")
    if plot is not None:
        from llpauc.data.plots import compare_models
        from llpauc.storage.figure_files import save

        figure = compare_models(summaries, list(first.values)[:3], f"{path}, {on} users")
        log.info(f"wrote {save(figure, plot)}")


def _types_text(split: Split) -> str:
    """What the event types change in an evaluation, or ""."""
    rules = split.train.rules
    if not rules.type_weights:
        return ""
    relevant = rules.relevant or "every event with a weight above 0"
    return f" (exclude: {rules.excluded_types}); relevant: {relevant}"


def _measure_all(
    fits: Mapping[str, Callable[[], Scorer]],
    measure: Callable[..., Evaluation],
    n_users: int | None,
    skip: bool,
) -> tuple[dict[str, Evaluation], dict[str, float], dict[str, str]]:
    """Fit and measure one model after another.

    Args:
        fits: name -> function that fits the model.
        measure: evaluates a scorer.
        n_users: evaluated users, for the progress bar.
        skip: whether to skip a model that cannot be fitted to these data.

    Returns:
        Name -> result, name -> seconds, and name of a skipped model -> reason.
    """
    from llpauc.errors import InputError

    results, seconds, left_out = {}, {}, {}
    for name, fit in fits.items():
        start = time.perf_counter()
        try:
            with progress(f"fitting {name}"):
                scorer = fit()
        except InputError as error:
            if not skip:
                raise
            left_out[name] = str(error)
            log.info(f"without {name}: {error}")
            continue
        with progress(f"ranking with {name}", n_users) as advance:
            results[name] = measure(scorer, progress=advance)
        seconds[name] = time.perf_counter() - start
    return results, seconds, left_out


def _warning_if_recent_is_better(
    results: Mapping[str, Evaluation], split: Split, parts: Sequence[Interactions], recency: Recency
) -> str | None:
    """A warning if recent popularity, learned from `parts`, is clearly better than a model."""
    from llpauc.data.interactions import before
    from llpauc.data.recency import METRIC, clearly_better, one_list_values, recent_counts
    from llpauc.evaluation.full_ranking import MASKS
    from llpauc.metrics import parse_metric

    if not results or not recency.has_drift:
        return None
    first = next(iter(results.values()))
    topk = [name for name in first.values if parse_metric(name).k]
    if not topk:
        return None
    metric = METRIC if METRIC in topk else topk[0]
    scores = recent_counts(parts, recency.half_life, recency.by)
    masked = MASKS[first.mask].matrix(split, first.on)
    recent = one_list_values(scores, split.parts[first.on].targets, masked, metric)
    beaten = [name for name, r in results.items() if clearly_better(recent, r.values[metric])]
    if not beaten:
        return None
    best = max(results[name].mean(metric) for name in beaten)
    more = len(parts) < len(before(split, first.on))
    return (
        f"recent popularity ({recency}) beats {', '.join(beaten)}: {metric} {recent.mean():.4f}"
        f" against {best:.4f} at best; preferences change over time: weight events by age"
        f"{', and learn from all events before the test (--history all)' if more else ''}"
    )


def _check_run(run: str, fitted: Fitted, split: Split, on: Part) -> None:
    """Refuse a run that has other ids, and warn if it was trained on evaluated events, except
    those that are also in train."""
    from llpauc.data.known_ids import check_known, ids_with_events

    if on not in split.parts:
        return
    target = split.parts[on]
    known = {"user": fitted.user_ids.text, "item": fitted.item_ids.text}
    for text in check_known(ids_with_events(target), known, on, run, required={"item"}):
        log.info(text)
    leaked: Any = fitted.contains(target)
    leaked &= split.train.matrix[target.users, target.items].A1 == 0
    if leaked.any():
        log.info(
            f"{run}: was trained on {int(leaked.sum()):,} of the {len(target):,} {on} events, so"
            " its metrics are too optimistic; train on the train part only"
        )
