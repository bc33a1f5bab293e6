"""`llpauc train`: from a file to a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from llpauc.cli.console import cell, command_name, log, print_json, progress, show_table
from llpauc.cli.data_options import HeldOut, Seed, TableOptions
from llpauc.cli.system import check_folder
from llpauc.cli.training_options import CheckpointOptions, ModelOptions

if TYPE_CHECKING:
    from llpauc.data.interactions import Split
    from llpauc.distributed import ProcessGroup
    from llpauc.recommend import Recommender
    from llpauc.training import CheckpointSettings, Epoch


def train(
    path: str,
    out: str = "run",
    *,
    options: ModelOptions,
    seed: Seed = 0,
    hold_out: HeldOut = 0.1,
    refit: bool = False,
    recipe: str | None = None,
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
    the epoch; for a single file, a fraction of each user's events is held out for this. The test
    part is read once, at the end. Ctrl-C stops after the current batch and saves the best weights
    so far; the same command with --resume continues. To train with several processes, see
    docs/how-to/distributed.md.

    Args:
        path: a file of interactions, or a folder with train/valid/test files
        out: the run folder
        seed: of the initial vectors, the order of events and the negatives
        hold_out: fraction of each user's events that choose the epoch if there is no valid part
        refit: after the epoch is chosen, train again on all events before the test, for as many
            epochs
        recipe: settings for the data (auto), for data without or with a strong trend (settled,
            moving), or of the paper (paper); options that are given override it
        metrics: metrics on the test part, separated by commas
        tensorboard: log the run for TensorBoard to this folder
        mlflow: log the run to this MLflow database or server, such as sqlite:///mlflow.db
        dry_run: read the data, print what would be done, and stop
        json: print the result as JSON
    """
    from llpauc.distributed import join_process_group
    from llpauc.storage.manifest import MANIFEST

    with join_process_group() as processes:
        work = processes.call_together(
            lambda: _plan(
                path, out, options, seed, hold_out, refit, recipe, metrics,
                {"tensorboard": tensorboard, "mlflow": mlflow}, checkpoints, table,
            )
        )  # fmt: skip
        recommender, split = work.recommender, work.split
        events, users, items = len(split.train), split.n_users, split.n_items
        log.info(f"{recommender!r} on {events:,} events of {users:,} users and {items:,} items")
        if processes.world_size > 1:
            log.info(f"{processes.world_size} processes divide every batch")
        if (Path(out) / MANIFEST).exists():
            log.info(f"the run in {out} will be replaced when this one is whole")
        if dry_run:
            log.info("dry run: nothing trained, nothing written")
            if json and processes.is_first:
                would = {**recommender.get_params(), "run": out}
                print_json({**would, "events": events, "users": users, "items": items})
            return
        _train(work, out, path, json, processes)


@dataclass(frozen=True)
class _Work:
    """What is to be done, looked through."""

    recommender: Recommender
    split: Split
    metrics: list[str]
    places: dict[str, str]
    checkpoint: CheckpointSettings


def _plan(
    path: str,
    out: str,
    options: ModelOptions,
    seed: int,
    hold_out: float,
    refit: bool,
    recipe: str | None,
    metrics: str,
    boards: dict[str, str | None],
    checkpoints: CheckpointOptions,
    table: TableOptions,
) -> _Work:
    """Refuse what cannot be done before any work is; then read the data."""
    from llpauc.data.interactions import Split
    from llpauc.errors import InputError, choose
    from llpauc.metrics import parse_metric, split_names
    from llpauc.models.registry import MODELS
    from llpauc.recommend.recipes import RECIPES, with_loss, with_model
    from llpauc.recommend.sources import as_split
    from llpauc.storage.run_folder import check_replaceable
    from llpauc.training.tracking import check_trackers

    given = options.given() | {"hold_out": hold_out, **({"refit": True} if refit else {})}
    recommender = _recommender(given, seed)  # says at once what is wrong with it
    if recipe is not None:
        choose(RECIPES, recipe, "recipe")
        if not MODELS[recommender.model].trained:
            raise InputError(f"a recipe is for models that are trained; {recommender.model} is not")
    wanted = [parse_metric(name).name for name in split_names(metrics)]
    check_folder(out)
    check_replaceable(out)
    checkpoint = checkpoints.settings(out)
    places = {name: place for name, place in boards.items() if place is not None}
    check_trackers(places, run_folder=out)
    if "tensorboard" in places:
        check_folder(places["tensorboard"])
    data = table.load(path)
    split = data if isinstance(data, Split) else as_split(data.interactions)
    if recipe is not None:
        start = RECIPES[recipe](split.train, split.valid)
        if given.get("loss", start["loss"]) != start["loss"]:
            start = with_loss(start, given["loss"])
        start = with_model(start, recommender.model if "model" in given else start["model"])
        recommender = _recommender(start | given, seed)
    return _Work(recommender, split, wanted, places, checkpoint)


def _recommender(given: dict[str, Any], seed: int) -> Recommender:
    from llpauc.models.registry import MODELS
    from llpauc.recommend import Recommender

    if not MODELS[given.get("model", "mf")].trained:
        return Recommender(**{k: v for k, v in given.items() if k != "loss"})
    return Recommender(**given, seed=seed)


def _train(work: _Work, out: str, path: str, json: bool, processes: ProcessGroup) -> None:
    from llpauc.models.registry import MODELS
    from llpauc.storage.manifest import MANIFEST
    from llpauc.training import Diverged, open_checkpoints
    from llpauc.training.tracking import tracking

    recommender, split = work.recommender, work.split
    trouble, measured, learnt = None, None, False
    with (
        open_checkpoints(
            work.checkpoint if MODELS[recommender.model].trained else None
        ) as checkpoints,
        tracking(work.places if processes.is_first else {}, _settings(recommender)) as tracked,
    ):
        with _training_progress(recommender, split, tracked.epoch) as (on_batch, on_epoch):

            def after_epoch(epoch: Epoch) -> None:
                nonlocal learnt
                learnt = True
                on_epoch(epoch)

            try:
                recommender.fit(
                    split, on_batch=on_batch, on_epoch=after_epoch, checkpoint=checkpoints
                )
            except Diverged as error:
                if not learnt:  # the starting vectors are no run
                    tracked.failed(error)
                    raise
                trouble = error
        history = recommender.history
        interrupted = history is not None and history.signal is not None
        if (
            history is not None and not history.validated and not interrupted
            and recommender.hold_out
        ):  # fmt: skip
            log.info(
                "too few events to hold any out: all epochs ran, none was chosen by validation"
            )
        half = "interrupted" if interrupted else "diverged" if trouble is not None else None
        if half is not None and (Path(out) / MANIFEST).exists():
            out = f"{out}-{half}"  # half a run does not replace a whole one
        try:
            if split.test is None:
                log.info("no test part, so nothing is measured; llpauc data split makes one")
            elif half is None:
                measured = _measure(recommender, split, work.metrics, processes)
        finally:  # an impatient second Ctrl-C must not cost the run
            if processes.is_first:
                recommender.save(out, data=path, test=measured)
        tracked.end(history, None if measured is None else measured[recommender.model])
        if trouble is not None:
            tracked.failed(trouble)
    if interrupted and history is not None:
        log.info(f"interrupted: the model of epoch {history.best_epoch} is saved in {out}")
        if checkpoints is not None and checkpoints.newest is not None:
            log.info(f"to continue ({checkpoints.newest}): give the same command with --resume")
    if processes.is_first:
        _report(recommender, measured, out, json)
    if trouble is not None:
        log.info(f"what was learnt before is in {out}")
        raise trouble
    if history is not None and history.signal is not None:
        raise SystemExit(128 + history.signal)


def _measure(
    recommender: Recommender, split: Split, metrics: list[str], processes: ProcessGroup
) -> dict[str, Any] | None:
    """The test figures, of popularity too; None where another process has the model."""
    from llpauc.distributed import SINGLE_PROCESS
    from llpauc.evaluation.full_ranking import evaluate
    from llpauc.recommend import Recommender

    if recommender.fitted is None:
        return None
    together = SINGLE_PROCESS if recommender.parameters.get("shard") else processes
    popular = Recommender(model="popularity", refit=recommender.refit).fit(split)
    scorers = {"popularity": popular.scorer(), recommender.model: recommender.scorer()}
    return {
        name: evaluate(scorer, split, metrics=metrics, processes=together).summary()
        for name, scorer in scorers.items()
    }


def _settings(recommender: Recommender) -> dict[str, Any]:
    """Every hyperparameter, those left to their defaults too."""
    from llpauc.models.registry import MODELS

    if not MODELS[recommender.model].trained:
        return {"model": recommender.model, **recommender.parameters}
    return {**recommender.plan().parameters(), **recommender.get_params()}


@contextmanager
def _training_progress(
    recommender: Recommender, split: Split, track: Callable[[Epoch], None]
) -> Iterator[tuple[Callable[[int], None], Callable[[Epoch], None]]]:
    """A bar over all epochs, and a line an epoch above it; then the epoch is tracked."""
    from llpauc.models.registry import MODELS

    total = None
    if MODELS[recommender.model].trained:
        kept = 1.0 if split.valid is not None else 1.0 - recommender.hold_out
        total = round(kept * len(split.train)) * recommender.plan().training_options().epochs
    told = 0  # of the epoch under way
    with progress("training, at most", total) as advance:

        def on_batch(done: int) -> None:
            nonlocal told
            told += done
            advance(done)

        def on_epoch(epoch: Epoch) -> None:
            nonlocal told
            advance(epoch.examples - told)  # batches tell in tenths of a second, and not the rest
            told = 0
            _tell(epoch)
            track(epoch)

        yield on_batch, on_epoch


def _tell(epoch: Epoch) -> None:
    """One line an epoch: what it cost, what the loss stands for, how validation went."""
    figures = {**epoch.valid, **{k: epoch.diagnostics[k] for k in _TOLD if k in epoch.diagnostics}}
    told = "  ".join(f"{name} {cell(value)}" for name, value in figures.items())
    rate = epoch.examples / max(epoch.seconds, 1e-9)
    mark = " *" if epoch.best else ""
    log.info(f"epoch {epoch.number:3d}  loss {epoch.loss:8.4f}  {told}  {rate:,.0f} events/s{mark}")


_TOLD = ("hard_llpauc", "auc", "pos_fraction", "neg_fraction", "gap")


def _report(recommender: Recommender, measured: Any, out: str, json: bool) -> None:
    history = recommender.history
    facts: dict[str, Any] = {"run": out}
    if history is not None:
        facts |= {
            "epochs": len(history.epochs), "best epoch": history.best_epoch,
            "stopped": history.stopped, "seconds": round(history.seconds, 2),
            "negatives that are positives": history.collisions,
        }  # fmt: skip
    if json:
        print_json({**facts, "test": measured})
        return
    show_table("Training", ["", "value"], list(facts.items()))
    if measured is not None:
        some = next(iter(measured.values()))["all"]
        show_table(
            "Test, read once",
            ["model", "users", "number", *[name for name in some if name != "users"]],
            [
                [model, group, *figures.values()]
                for model, summary in measured.items()
                for group, figures in summary.items()
            ],
            left=2,
        )
        _say_if_below_popularity(recommender, measured)
    log.info(f"next: {command_name()} recommend {quote(out)} --out recommendations.tsv")


def _say_if_below_popularity(recommender: Recommender, measured: dict[str, Any]) -> None:
    own, popular = (measured[name]["all"] for name in (recommender.model, "popularity"))
    below = [name for name in own if name != "users" and own[name] < popular[name]]
    if below:
        hint = "" if recommender.parameters.get("init") else "; try --recipe auto"
        log.info(f"{recommender.model} is below popularity in {', '.join(below)}{hint}")
