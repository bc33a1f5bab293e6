"""`llpauc train`: from a file to a model."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from llpauc.cli.console import cell, command_name, note, print_json, progress, show_table
from llpauc.cli.options import HeldOut, Seed, TableOptions
from llpauc.cli.outputs import CHECKPOINT, check_folder
from llpauc.cli.parser import Count, NotNegative, Positive, Share

if TYPE_CHECKING:
    from llpauc.interactions import Split
    from llpauc.recommend import Recommender
    from llpauc.training import Checkpointing, Epoch


@dataclass(frozen=True)
class ModelOptions:
    """What to train, and how. What is not given is left to the model's and the loss's defaults.

    Args:
        model: mf, lightgcn, itemsum, popularity, recent, itemknn or ease (mf unless given)
        loss: llpauc, opauc, auc, bpr, bce, sce, ccl, dns, softmax_v, tce, rce, lambdarank,
            ndcg_loss1, ndcg_loss2, arp_loss2, sl, bsl, psl or sl_at_k (llpauc unless given)
        alpha: llpauc: share of the best positives that count, in (0, 1]; below 1 leaves noisy ones
            out (0.7 unless given)
        beta: llpauc, opauc: share of the hardest negatives that count, in (0, 1] (0.1 unless given)
        loss_options: further parameters of the loss, as NAME=VALUE,NAME=VALUE
        dimensions: width of the vectors (64 unless given)
        score: dot or cosine (what the loss is meant for unless given)
        temperature: divides the cosine (0.2 unless given)
        item_bias: one more number an item, added to its score
        start: vectors to start from: random, or spectral (singular vectors of who has what; quick
            and good with a lower rate) (random unless given)
        layers: graph layers of lightgcn (2 unless given)
        cold: users without a training event get the mean user's vector, or a random one as in the
            paper (mean unless given)
        epochs: most passes over the training events (100 unless given)
        batch_size: positives a step (128 unless given)
        negatives: negatives for each positive, or for a batch that shares them (100 unless given)
        sampler: uniform, uniform-all (the paper's way), popularity, shared, in-batch or all
        lr: learning rate of Adam (0.001 unless given)
        weight_decay: pull of a batch's rows towards zero (0 unless given)
        valid_metric: what chooses the epoch (ndcg@20 unless given)
        valid_every: epochs between validations (1 unless given)
        patience: validations without a better value before training stops (5 unless given)
        share: batches that share one propagation of lightgcn (1 unless given)
        device: cpu, or a torch device such as cuda (cpu unless given)
        regularization: ease: lambda (200 unless given)
        neighbours: itemknn: neighbours of an item (100 unless given)
        shrinkage: itemknn: distrust of items with few users (10 unless given)
        half_life: age at which an event counts half, in seconds where there are timestamps, else
            in events; recent chooses it on validation, other models weigh all alike, unless given
    """

    model: str | None = None
    loss: str | None = None
    alpha: Share | None = None
    beta: Share | None = None
    loss_options: str | None = None
    dimensions: Count | None = None
    score: Literal["dot", "cosine"] | None = None
    temperature: Positive | None = None
    item_bias: bool = False
    start: Literal["random", "spectral"] | None = None
    layers: Count | None = None
    cold: Literal["mean", "random"] | None = None
    epochs: Count | None = None
    batch_size: Count | None = None
    negatives: Count | None = None
    sampler: str | None = None
    lr: Positive | None = None
    weight_decay: NotNegative | None = None
    valid_metric: str | None = None
    valid_every: Count | None = None
    patience: Count | None = None
    share: Count | None = None
    device: str | None = None
    regularization: Positive | None = None
    neighbours: Count | None = None
    shrinkage: NotNegative | None = None
    half_life: Positive | None = None

    def given(self) -> dict[str, Any]:
        """What was set, as parameters of a `Recommender`."""
        given = {k: v for k, v in asdict(self).items() if v is not None and v is not False}
        extra = _pairs(given.pop("loss_options", ""))
        return {**given, **extra}


@dataclass(frozen=True)
class CheckpointOptions:
    """How training is written down on its way, into OUT.checkpoint until OUT is there.

    Args:
        checkpoint_every: time between checkpoints, such as 30s, 5m or 2h; 0 writes one only at
            Ctrl-C and SIGTERM
        resume: go on from the last checkpoint, to the very bits of a training that never stopped
        restart: delete the checkpoint that is there and begin anew
    """

    checkpoint_every: str = "5m"
    resume: bool = False
    restart: bool = False

    def beside(self, out: str) -> Checkpointing:
        from llpauc.errors import InputError
        from llpauc.training import Checkpointing

        if self.resume and self.restart:
            raise InputError("--resume goes on and --restart begins anew; give one of them")
        return Checkpointing(
            f"{Path(out)}{CHECKPOINT}",
            _seconds(self.checkpoint_every),
            "resume" if self.resume else "restart" if self.restart else "refuse",
            note,
        )


_UNITS = {"s": 1, "m": 60, "h": 3600}


def _seconds(text: str) -> float:
    """
    >>> _seconds("30s"), _seconds("1.5m"), _seconds("0")
    (30.0, 90.0, 0.0)
    """
    from llpauc.errors import InputError

    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text.strip().lower())
    if not found and text.strip() != "0":
        raise InputError(f"--checkpoint-every wants a time such as 30s, 5m or 2h, or 0: {text!r}")
    return float(found[1]) * _UNITS[found[2]] if found else 0.0


def _recommender(given: dict[str, Any], seed: int) -> Recommender:
    from llpauc.models import BASELINES
    from llpauc.recommend import Recommender

    if given.get("model") in BASELINES:
        return Recommender(**{k: v for k, v in given.items() if k != "loss"})
    return Recommender(**given, seed=seed)


def _pairs(text: str) -> dict[str, Any]:
    """NAME=VALUE,NAME=VALUE; a value is a number where it reads as one."""
    from llpauc.errors import InputError

    pairs: dict[str, Any] = {}
    for part in filter(None, text.split(",")):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not equals or not name:
            raise InputError(f"--loss-options wants NAME=VALUE, got {part!r}")
        pairs[name] = value
        for number in (int, float):
            try:
                pairs[name] = number(value)
                break
            except ValueError:
                continue
    return pairs


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

    A folder with train, valid and test files is taken as it is: valid chooses the epoch, test is
    read once, at the end. Of a single file a part of each user's events is held out to choose the
    epoch. Ctrl-C stops after the batch under way and saves the best weights so far; the same
    command with --resume goes on from there.

    Args:
        path: a file of interactions, or a folder with train/valid/test files
        out: the run folder
        seed: of the starting vectors, the order and the negatives
        hold_out: share of each user's events that choose the epoch where there is no valid file
        refit: when the epoch is chosen, train anew on all events before the test, as many epochs
        recipe: start from settings that suit the data (auto), data whose tastes are settled or
            moving (settled, moving), or the paper's (paper); options that are given go over it
        metrics: what to measure on the test part, where there is one
        tensorboard: track the run for TensorBoard in this folder
        mlflow: track the run in this MLflow database or server, such as sqlite:///mlflow.db
        dry_run: read the data, say what would be done, and stop
        json: print the outcome as JSON
    """
    from llpauc.artifacts import MANIFEST, check_replaceable
    from llpauc.errors import choose
    from llpauc.evaluation import evaluate
    from llpauc.interactions import Split
    from llpauc.metrics import parse_metric, split_names
    from llpauc.models import BASELINES
    from llpauc.recommend import Recommender, as_split
    from llpauc.recommend.recipes import RECIPES
    from llpauc.tracking import check_trackers, tracking
    from llpauc.training import Diverged
    from llpauc.training.checkpoint import opened

    given = options.given() | {"hold_out": hold_out, **({"refit": True} if refit else {})}
    recommender = _recommender(given, seed)  # says at once what is wrong with it
    if recipe is not None:
        choose(RECIPES, recipe, "recipe")
    wanted = [parse_metric(name).name for name in split_names(metrics)]
    check_folder(out)
    check_replaceable(out)
    checkpoint = checkpoints.beside(out)
    boards = {"tensorboard": tensorboard, "mlflow": mlflow}
    places = {name: place for name, place in boards.items() if place is not None}
    check_trackers(places, apart_from=out)
    if tensorboard is not None:
        check_folder(tensorboard)
    data = table.load(path)
    split = data if isinstance(data, Split) else as_split(data.interactions)
    if recipe is not None:
        recommender = _recommender(RECIPES[recipe](split.train, split.valid) | given, seed)
    events, users, items = len(split.train), split.n_users, split.n_items
    note(f"{recommender!r} on {events:,} events of {users:,} users and {items:,} items")
    if dry_run:
        note("dry run: nothing trained, nothing written")
        if json:
            would = {**recommender.get_params(), "run": out}
            print_json({**would, "events": events, "users": users, "items": items})
        return
    trouble, measured = None, None
    with (
        opened(None if recommender.model in BASELINES else checkpoint) as kept,
        tracking(places, _settings(recommender), note) as tracked,
    ):
        with _training_progress(recommender, split, tracked.epoch) as (on_batch, on_epoch):
            try:
                recommender.fit(split, on_batch=on_batch, on_epoch=on_epoch, checkpoint=kept)
            except Diverged as error:
                trouble = error
        history = recommender.history
        interrupted = history is not None and history.signal is not None
        if history is not None and not history.validated and not interrupted and hold_out:
            note("too few events to hold any out: all epochs ran, none was chosen by validation")
        if interrupted and (Path(out) / MANIFEST).exists():
            out = f"{out}-interrupted"  # half a run does not replace a whole one
        elif (Path(out) / MANIFEST).exists():
            note(f"replacing the run in {out}")
        try:
            if split.test is None:
                note("no test part, so nothing is measured; llpauc data split makes one")
            elif not interrupted:
                popular = Recommender(model="popularity", refit=recommender.refit).fit(split)
                scorers = {
                    "popularity": popular.scorer(), recommender.model: recommender.scorer()
                }  # fmt: skip
                measured = {
                    name: evaluate(scorer, split, metrics=wanted).summary()
                    for name, scorer in scorers.items()
                }
        finally:  # an impatient second Ctrl-C must not cost the run
            recommender.save(out, data=path, test=measured)
        tracked.end(history, None if measured is None else measured[recommender.model])
        if trouble is not None:
            tracked.failed(trouble)
        elif kept is not None and not interrupted:
            kept.clear()
    if interrupted and history is not None:
        note(f"interrupted: the model of epoch {history.best_epoch} is saved in {out}")
        if kept is not None and kept.newest is not None:
            note(f"to go on ({kept.newest}): give the same command with --resume")
    _report(recommender, measured, out, json)
    if trouble is not None:
        raise trouble
    if history is not None and history.signal is not None:
        raise SystemExit(128 + history.signal)


def _settings(recommender: Recommender) -> dict[str, Any]:
    """Every hyperparameter, those left to their defaults too."""
    from llpauc.models import BASELINES

    if recommender.model in BASELINES:
        return {"model": recommender.model, **recommender.parameters}
    plan = recommender.plan()
    defaults = {**asdict(plan.embedding), **asdict(plan.fit), **plan.loss_parameters}
    return {**defaults, **recommender.get_params()}


@contextmanager
def _training_progress(
    recommender: Recommender, split: Split, track: Callable[[Epoch], None]
) -> Iterator[tuple[Callable[[int], None], Callable[[Epoch], None]]]:
    """A bar over all epochs, and a line an epoch above it; then the epoch is tracked."""
    from llpauc.models import BASELINES

    total = None
    if recommender.model not in BASELINES:
        kept = 1.0 if split.valid is not None else 1.0 - recommender.hold_out
        total = round(kept * len(split.train)) * recommender.plan().fit.epochs
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
    figures = {**epoch.valid, **{k: epoch.figures[k] for k in _TOLD if k in epoch.figures}}
    told = "  ".join(f"{name} {cell(value)}" for name, value in figures.items())
    rate = epoch.examples / max(epoch.seconds, 1e-9)
    mark = " *" if epoch.best else ""
    note(f"epoch {epoch.number:3d}  loss {epoch.loss:8.4f}  {told}  {rate:,.0f} events/s{mark}")


_TOLD = ("hard_llpauc", "auc", "pos_share", "neg_share", "gap")


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
    note(f"next: {command_name()} recommend {out} --out recommendations.tsv")
