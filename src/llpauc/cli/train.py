"""`llpauc train`: train a model on interactions and save it as a run folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from time import perf_counter
from typing import TYPE_CHECKING, Any

from llpauc.cli.console import (
    cell,
    command_name,
    facts_table,
    log,
    metrics_table,
    print_json,
    print_result,
    progress,
    time_span,
)
from llpauc.cli.data_options import Events, HeldOut, HoldOutRule, Seed, TableOptions
from llpauc.cli.system import check_folder, check_free_space
from llpauc.cli.training_options import CheckpointOptions, ModelOptions, RecipeName

if TYPE_CHECKING:
    from llpauc.data.catalogue import Catalogue
    from llpauc.data.interactions import Split
    from llpauc.distributed import ProcessGroup
    from llpauc.recommend import Recommender
    from llpauc.training import CheckpointSettings, Diverged, Epoch, History

_PROBE_SECONDS = 1.0  # of batches, for an estimate
_SHOWN_DIAGNOSTICS = ("hard_llpauc", "auc", "pos_fraction", "neg_fraction", "gap")


def train(
    path: Events,
    out: str = "run",
    *,
    options: ModelOptions,
    seed: Seed = 0,
    hold_out: HeldOut = 0.1,
    how: HoldOutRule = "auto",
    refit: bool = False,
    recipe: RecipeName = "auto",
    items: str | None = None,
    features: str | None = None,
    metrics: str = "recall@20,ndcg@20",
    tensorboard: str | None = None,
    mlflow: str | None = None,
    checkpoints: CheckpointOptions,
    table: TableOptions,
    dry_run: bool = False,
    json: bool = False,
) -> None:
    """Train a model on a file of interactions and save it as a run folder.

    The data is a folder with train, valid and test files, or a single file. The valid part chooses
    the epoch; for a single file, the last events are held out for this (random ones without
    timestamps). The test part is read once, at the end. Ctrl-C stops after the current batch and
    saves the best weights so far; the same command with --resume continues. To train with several
    processes, see docs/how-to/distributed.md.

    Args:
        path: a file of interactions (or several, a pattern, a folder of parts, - for standard
            input, a database), or a folder with train/valid/test files
        out: the run folder
        seed: of the initial vectors, the order of events and the negatives
        hold_out: fraction of the events that choose the epoch if there is no valid part
        how: which events to hold out, as for llpauc data split
        refit: after the epoch is chosen, train again on all events before the test, for as many
            epochs; the recipe auto does
        recipe: settings where no option is given: good ones for the data (auto), for data without
            or with a strong trend (settled, moving), of the paper (paper), or the defaults of the
            options (none)
        items: the catalogue, a table with a column of item ids; it is saved with the run, for the
            conditions of llpauc recommend --where, and its items without events are recommended by
            their features
        features: columns of the catalogue that describe items, separated by commas; by default all
            whose kind is detected; none leaves out items without events
        metrics: metrics on the test part, separated by commas
        tensorboard: log the run for TensorBoard to this folder
        mlflow: log the run to this MLflow database or server, such as sqlite:///mlflow.db
        dry_run: read the data, print what would be done, and stop
        json: print the result as JSON
    """
    from llpauc.data.catalogue import read_catalogue
    from llpauc.data.features import feature_names, item_features
    from llpauc.distributed import current_process_group
    from llpauc.errors import InputError
    from llpauc.metrics import parse_metric, split_names
    from llpauc.recommend.recipes import description
    from llpauc.storage.atomic import writer_lock
    from llpauc.storage.run_folder import check_replaceable
    from llpauc.training import check_feasible
    from llpauc.training.loop import without_empty_valid
    from llpauc.training.tracking import check_trackers

    boards = {"tensorboard": tensorboard, "mlflow": mlflow}
    trackers = {name: place for name, place in boards.items() if place is not None}

    def prepare() -> _Job:
        # Check all options before a file is read
        given = options.given() | {"hold_out": hold_out, "how": how}
        given |= {"refit": True} if refit else {}
        recommender = _recommender(given, seed, recipe)
        names = [parse_metric(name).name for name in split_names(metrics)]
        check_folder(out)
        check_replaceable(out)
        checkpoint = checkpoints.settings(out)
        check_trackers(trackers, run_folder=out)
        if tensorboard is not None:
            check_folder(tensorboard, replaced=False)
        if processes.is_first and not dry_run:
            lock.enter_context(writer_lock(out))
        # Read the data, on which the settings of a recipe depend
        split = table.load_split(path)
        catalogue = None if items is None else read_catalogue(items)
        if catalogue is not None:
            catalogue.check_known(split.item_ids, path)
            item_features(catalogue, feature_names(features))
        elif features is not None:
            raise InputError("--features are columns of the catalogue; give it (--items FILE)")
        recommender = recommender.for_data(without_empty_valid(split))
        plan = recommender.plan()
        width = getattr(plan.model_options, "dimensions", 0)
        if plan.training is not None:
            check_feasible(split.train, width, plan.training)
        check_free_space(out, 4 * (len(split.train) + width * (split.n_users + split.n_items)))
        record = table.record(split)
        return _Job(
            path, out, recommender, split, names, trackers, checkpoint, record, catalogue, features
        )

    processes = current_process_group()
    with ExitStack() as lock:
        job = processes.call_together(prepare)
        counts = {
            "events": len(job.split.train),
            "users": job.split.n_users,
            "items": job.split.n_items,
        }
        n_events, n_users, n_items = counts.values()
        log.info(
            f"{job.recommender!r} on {n_events:,} events of {n_users:,} users and {n_items:,} items"
        )
        if job.recommender.plan().training is not None and recipe != "none":
            log.info(f"recipe {recipe} (options that are given override it):")
            for line in description(job.recommender.get_params(), job.split.train):
                log.info(f"  {line}")
        if processes.world_size > 1:
            log.info(f"{processes.world_size} processes train on their own users; items rotate")
        if _is_run(out):
            log.info(f"the run in {out} is replaced at the end")
        if not dry_run:
            _run(job, json, processes)
            return
        log.info("dry run: nothing trained, nothing written")
        if json and processes.is_first:
            print_json({**job.recommender.get_params(), "run": out, **counts})


@dataclass(frozen=True)
class _Job:
    """What to train, on which data, and where the results go."""

    path: str
    out: str
    recommender: Recommender
    split: Split
    metrics: list[str]
    trackers: Mapping[str, str]
    checkpoint: CheckpointSettings
    record: Mapping[str, Any]  # of the data, see `TableOptions.record`
    catalogue: Catalogue | None
    features: str | None


def _recommender(settings: dict[str, Any], seed: int, recipe: str) -> Recommender:
    """Models without training have no seed."""
    from llpauc.models.registry import MODELS
    from llpauc.recommend import Recommender

    if MODELS[settings.get("model", "mf")].trained:
        settings = {**settings, "seed": seed}
    return Recommender(**settings, recipe=recipe)


def _run(job: _Job, json: bool, processes: ProcessGroup) -> None:
    """Train, measure on the test part, and save."""
    from llpauc.training import Diverged, open_checkpoints
    from llpauc.training.tracking import tracking

    recommender, split, plan = job.recommender, job.split, job.recommender.plan()
    trackers = job.trackers if processes.is_first else {}
    settings = {"model": recommender.model, **recommender.parameters}
    epochs_at_most, total = 0, None
    if plan.training is not None:
        settings = {**plan.parameters(), **recommender.get_params()}
        trained_fraction = 1.0 if split.valid is not None else 1.0 - recommender.hold_out
        stages = [round(trained_fraction * len(split.train))]
        stages += [len(split.train) + len(split.valid or ())] if recommender.refit else []
        epochs_at_most = plan.training.epochs * len(stages)
        total = plan.training.epochs * sum(stages)
    diverged: Diverged | None = None
    test = None
    with (
        open_checkpoints(None if plan.training is None else job.checkpoint) as checkpoints,
        tracking(trackers, settings) as tracked,
    ):
        # Train; after an epoch there are weights to save, even if training diverges later
        epochs: list[Epoch] = []
        title = "training, at most"
        with training_progress(title, epochs_at_most, total) as (on_batch, log_epoch):

            def on_epoch(epoch: Epoch) -> None:
                epochs.append(epoch)
                log_epoch(epoch)
                tracked.epoch(epoch)

            try:
                recommender.fit(
                    split,
                    items=job.catalogue,
                    features=job.features,
                    on_batch=on_batch,
                    on_epoch=on_epoch,
                    checkpoint=checkpoints,
                )
            except Diverged as error:
                if not epochs:
                    tracked.failed(error)
                    raise
                diverged = error
        history = recommender.history
        interrupted = history is not None and history.signal is not None
        if history is not None and recommender.hold_out and not (history.validated or interrupted):
            log.info("too few events to hold any out: all epochs ran, validation chose none")
        # An incomplete run does not replace a complete one
        reason = "interrupted" if interrupted else "diverged" if diverged is not None else None
        out = job.out if reason is None else incomplete_folder(job.out, reason)
        # Measure and save; the run is saved even if a second Ctrl-C ends the evaluation
        try:
            if split.test is None:
                log.info("no test part, so nothing is measured; llpauc data split makes one")
            elif reason is None and processes.is_first:
                test = _test_metrics(recommender, split, job.metrics)
        finally:
            if processes.is_first:
                recommender.save(out, data=job.path, test=test, **job.record)
        tracked.end(history, None if test is None else test[str(recommender.model)])
        if diverged is not None:
            tracked.failed(diverged)
    if interrupted and history is not None:
        log.info(f"interrupted: the model of epoch {history.best_epoch} is saved in {out}")
        if checkpoints is not None and checkpoints.newest is not None:
            log.info(f"to continue ({checkpoints.newest}): give the same command with --resume")
    if processes.is_first:
        _print_summary(recommender, test, out, json)
    if diverged is not None:
        log.info(f"the model before the divergence is saved in {out}")
        raise diverged
    exit_if_interrupted(history)


def _test_metrics(recommender: Recommender, split: Split, metrics: list[str]) -> dict[str, Any]:
    """The test metrics of the model and of popularity."""
    from llpauc.evaluation.full_ranking import evaluate
    from llpauc.recommend import Recommender

    popularity = Recommender(model="popularity", refit=recommender.refit).fit(split)
    scorers = {"popularity": popularity, str(recommender.model): recommender}
    return {
        name: evaluate(scorer, split, metrics=metrics).summary() for name, scorer in scorers.items()
    }


def _print_summary(recommender: Recommender, test: Any, out: str, json: bool) -> None:
    history = recommender.history
    facts: dict[str, Any] = {"run": out}
    if recommender.fitted is not None:
        facts["model"] = recommender.fitted.model.description
    if history is not None:
        facts |= {
            "epochs": len(history.epochs),
            "best epoch": history.best_epoch,
            "stopped": history.stopped,
            "seconds": round(history.seconds, 2),
            "negatives that are positives": history.collisions,
        }
    tables = [] if test is None else [metrics_table("Test, read once", test)]
    print_result({**facts, "test": test}, json, facts_table("Training", facts), *tables)
    if json:
        return
    if test is not None:
        values, popularity = (test[name]["all"] for name in (str(recommender.model), "popularity"))
        lower = [name for name in values if name != "users" and values[name] < popularity[name]]
        if lower:
            log.info(f"{recommender.model} is below popularity in {', '.join(lower)}")
    log_next_command(out)


# --- shared with `llpauc update` ----------------------------------------------------------------


@contextmanager
def training_progress(
    title: str, epochs: int, total: int | None
) -> Iterator[tuple[Callable[[int], None], Callable[[Epoch], None]]]:
    """A progress bar over all epochs, a line per epoch, and estimates of the time: from the first
    batches, and from the first epoch.

    Yields the callbacks `on_batch` and `on_epoch` of a fit.

    Args:
        title: of the bar.
        epochs: that are trained at most.
        total: examples of all these epochs.
    """
    in_epoch = 0  # examples that the current epoch has reported
    measured = 0  # examples since the first report; the batches before it may include compilation
    begun: float | None = None  # the time of the first report
    estimates = {"batches", "epoch"}  # that are still to be printed
    with progress(title, total) as advance:

        def on_batch(examples: int) -> None:
            nonlocal in_epoch, measured, begun
            in_epoch += examples
            advance(examples)
            now = perf_counter()
            if begun is None:
                begun = now
                return
            measured += examples
            if total and "batches" in estimates and now - begun >= _PROBE_SECONDS:
                estimates.remove("batches")
                most = time_span(total * (now - begun) / measured)
                log.info(f"about {most} at most for {epochs} epochs, by the first batches")

        def on_epoch(epoch: Epoch) -> None:
            nonlocal in_epoch
            advance(epoch.examples - in_epoch)  # the last batches may not have been reported
            in_epoch = 0
            _log_epoch(epoch)
            if "epoch" in estimates and epochs > epoch.number:
                estimates.clear()
                seconds = max(epoch.seconds, perf_counter() - (begun or perf_counter()))
                left = (epochs - epoch.number) * seconds
                end = time.strftime("%a %H:%M", time.localtime(time.time() + left))
                log.info(
                    f"{seconds:.1f} s for this epoch and its validation: about {time_span(left)} at"
                    f" most for the other epochs, until {end}"
                )

        yield on_batch, on_epoch


def _log_epoch(epoch: Epoch) -> None:
    shown = {name: epoch.diagnostics.get(name) for name in _SHOWN_DIAGNOSTICS}
    values = {**epoch.valid, **{name: value for name, value in shown.items() if value is not None}}
    text = "".join(f"  {name} {cell(value)}" for name, value in values.items())
    speed = epoch.examples / max(epoch.seconds, 1e-9)
    mark = " *" if epoch.best else ""
    log.info(f"epoch {epoch.number:3d}  loss {epoch.loss:8.4f}{text}  {speed:,.0f} events/s{mark}")


def incomplete_folder(out: str, reason: str) -> str:
    """Where to save an incomplete run: not in the folder of an existing run."""
    return f"{out}-{reason}" if _is_run(out) else out


def _is_run(folder: str) -> bool:
    from llpauc.storage.manifest import MANIFEST

    return (Path(folder) / MANIFEST).exists()


def exit_if_interrupted(history: History | None) -> None:
    """End with the exit code of the signal that stopped the training."""
    if history is not None and history.signal is not None:
        raise SystemExit(128 + history.signal)


def log_next_command(run: str) -> None:
    log.info(f"next: {command_name()} recommend {quote(run)} --out recommendations.tsv")
