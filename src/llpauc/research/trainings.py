"""The paper's protocol, the grids of every loss, and the functions that cells run.

The paper tunes every loss on validation. It prints the grid of alpha and beta, but neither the
grids of the other losses nor the chosen values. Our grids are small; OPAUC has every beta of
LLPAUC. Of a larger grid, the first seed's validation value determines four finalists, and the mean
over the seeds chooses among them: the choice of a single seed would be mostly noise. The test part
is never used to choose.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from llpauc.data.ids import Indices
from llpauc.data.interactions import Interactions, Split, pair_codes, pairs_before, without
from llpauc.data.splits import hold_out
from llpauc.errors import InputError
from llpauc.evaluation.full_ranking import evaluate
from llpauc.evaluation.ranking import rank
from llpauc.evaluation.scorer import FactorScorer
from llpauc.models.network import EmbeddingNetwork
from llpauc.recommend import Recommender
from llpauc.recommend.parameters import plan
from llpauc.recommend.recipes import PAPER_GRID, PAPER_PROTOCOL
from llpauc.research.cells import Cell, Load, Result, Study
from llpauc.research.paper import PAPER, expand
from llpauc.research.report_files import MeanSd
from llpauc.training import Epoch, History, fit
from llpauc.training.samplers import make_sampler

Setting = dict[str, Any]

PROTOCOL: Setting = {**PAPER_PROTOCOL, "epochs": 100}
METRICS = ("recall@20", "ndcg@20", "recall@50", "recall@100")

BACKBONES: dict[str, Setting] = PAPER["backbones"]
ALPHA_BETA: dict[str, Setting] = PAPER["alpha_beta"]  # the paper's choice for its data sets
GRIDS: dict[str, list[Setting]] = {
    **{name: expand(grid) for name, grid in PAPER["grids"].items()},
    "opauc": expand({"beta": PAPER_GRID["beta"]}),
    "llpauc": expand(PAPER_GRID),
}

GROUPS = {  # heading -> (key of the result, group of users)
    "all users": ("test", "all"),
    "warm users": ("test", "warm"),
    "all users, mean vector for cold users": ("test_mean_vector", "all"),
}


def published_alpha_beta(data: str) -> Setting | None:
    """The paper's alpha and beta for a data set such as adressa-clean, where it prints them."""
    return ALPHA_BETA.get(data.rsplit("-", 1)[0])


def training(
    data: str, loss: str, seed: int, backbone: str = "mf", *, test: bool = True, **setting: Any
) -> Cell:
    """A cell of the paper's protocol; `setting` overrides it."""
    options = {**PROTOCOL, **BACKBONES[backbone], **setting}
    return Cell.of(run_training, data, loss=loss, seed=seed, test=test, **options)


def training_cells(
    study: Study, data: str, loss: str, backbone: str = "mf", *, test: bool = True, **setting: Any
) -> list[Cell]:
    """The cells of `training`, one per seed."""
    return [training(data, loss, seed, backbone, test=test, **setting) for seed in study.seeds]


def baseline(data: str, model: str, *, test: bool = True, **setting: Any) -> Cell:
    """A model without training, evaluated as in the paper's protocol."""
    options = {"metric": PROTOCOL["valid_metric"], "mask": "paper", "seed": 0, **setting}
    return Cell.of(run_recommender, data, model=model, test=test, **options)


def choose_settings(study: Study, data: str, losses: Sequence[str]) -> dict[str, Setting]:
    """The setting of each loss (with MF) and of EASE with the best mean validation value."""
    cells: dict[str, list[tuple[Setting, list[Cell]]]] = {}
    for loss in losses:
        grid = GRIDS[loss][len(GRIDS[loss]) // 2 :][:1] if study.quick else GRIDS[loss]
        cells[loss] = [(s, training_cells(study, data, loss, test=False, **s)) for s in grid]
    ease = [(s, [baseline(data, "ease", test=False, **s)]) for s in GRIDS["ease"]]
    return study.choose_best({**cells, "ease": ease})


def seeded_cells(
    study: Study, data: str, setting: Setting, *, test: bool = True, refit: bool = False
) -> list[Cell]:
    """The cells of a `Recommender`, one per seed; one in all for a model without training."""
    seeds = study.seeds if "loss" in setting else study.seeds[:1]
    return [
        Cell.of(run_recommender, data, seed=seed, test=test, refit=refit, **setting)
        for seed in seeds
    ]


def seed_values(
    results: Sequence[Result], metric: str, group: str = "all", key: str = "test"
) -> list[float]:
    """A test metric, one value per seed; without cold users, warm users are all users."""
    for result in results:
        if "refused" in result:
            raise InputError(result["refused"])
    groups = [result[key if key in result else "test"] for result in results]
    return [by_group.get(group, by_group["all"])[metric] for by_group in groups]


def seed_mean(results: Sequence[Result], metric: str, heading: str = "all users") -> MeanSd:
    """Mean and deviation of a test metric over the seeds, for a group of `GROUPS`."""
    key, group = GROUPS[heading]
    return MeanSd.of(seed_values(results, metric, group, key))


# --- functions of cells ---------------------------------------------------------------------------


def run_training(
    load: Load, data: str, *, model: str, loss: str, test: bool, **setting: Any
) -> Result:
    """Train, choose the epoch by validation, and measure the test part if `test`.

    The test metrics are computed for two treatments of the users without a training event: their
    untrained random vector, as in the paper ("test"), and the mean of the trained users' vectors
    ("test_mean_vector"). The training is the same.
    """
    split = load(data)
    trained, history = _train(split, model, loss, setting)
    curve = [next(iter(epoch.valid.values()), None) for epoch in history.epochs]
    result: Result = {
        "valid": max((value for value in curve if value is not None), default=None),
        "curve": curve,
        "best_epoch": history.best_epoch,
        "seconds": history.seconds,
        "collisions": history.collisions,
    }
    if test:
        measure = partial(evaluate, split=split, metrics=METRICS, mask="paper")
        result["test"] = measure(trained.scorer()).summary()
        trained.options = dataclasses.replace(trained.options, cold_users="mean")
        result["test_mean_vector"] = measure(trained.scorer()).summary()
    return result


def run_recommender(
    load: Load,
    data: str,
    *,
    seed: int,
    test: bool,
    refit: bool = False,
    metric: str = "ndcg@20",
    mask: str = "seen",
    **setting: Any,
) -> Result:
    """Fit a `Recommender`; its validation value unless it is refitted, its test metrics if `test`.

    Args:
        refit: train again on train and valid before the test part is measured.
        metric: of validation.
        mask: see `llpauc.evaluation.full_ranking.evaluate`.
    """
    split = choosing_split(load(data))
    started = time.perf_counter()
    try:
        recommender = fit_recommender(split, seed, setting, refit=refit)
    except InputError as error:  # EASE on a catalogue that is too large for it
        return {"refused": str(error)}
    result: Result = {"seconds": time.perf_counter() - started}
    scorer, history = recommender.scorer(), recommender.history
    if not refit:
        result["valid"] = evaluate(scorer, split, on="valid", metrics=[metric]).mean(metric)
    if test:
        result["test"] = evaluate(scorer, load(data), metrics=METRICS, mask=mask).summary()
    if history is not None:
        result["best_epoch"] = history.best_epoch
    return result


def choosing_split(split: Split) -> Split:
    """The split; where it has no validation part, a tenth of each user's training events is."""
    return split if split.valid is not None else hold_out(split, 0.1, 0, "random_per_user")


def fit_recommender(
    split: Split, seed: int, setting: Mapping[str, Any], refit: bool = False
) -> Recommender:
    """A fitted recommender; the seed is passed to those that are trained."""
    seeded: Setting = {"seed": seed} if "loss" in setting else {}
    recommender = Recommender(**setting, **seeded, refit=refit, recipe="none").fit(split)
    if recommender.history is not None and recommender.history.signal is not None:
        raise KeyboardInterrupt  # a partial training is no result
    return recommender


def run_step_time(
    load: Load, data: str, *, losses: str, batches: int, rounds: int, seed: int, **setting: Any
) -> Result:
    """Seconds of one training step of each loss: medians over rounds in which all take turns."""
    train = load(data).train
    order = np.random.default_rng(seed).permutation(len(train))
    part = Split(train.take(order[: batches * setting["batch_size"]]))
    steps = -(-len(part.train) // setting["batch_size"])
    seconds: dict[str, list[float]] = {name: [] for name in losses.split(",")}
    for turn in range(rounds + 1):
        for name, times in seconds.items():
            _, history = _train(part, "mf", name, {**setting, "seed": seed, "epochs": 1})
            if turn:  # the first turn compiles and warms the caches
                times.append(history.seconds / steps)
    return {name: float(np.median(times)) for name, times in seconds.items()}


def run_noise_loss(
    load: Load, data: str, *, clean: str, loss: str, epochs: int, seed: int, **setting: Any
) -> Result:
    """The mean BPR loss of the noisy and of the clean training events, before and after each epoch.

    An event is noisy if it is in the noisy training part and in neither the training nor the
    validation part of the clean data set. Every event is compared with the same hundred items.
    """
    split = load(data)
    noisy = noisy_events(split.train, load(clean))
    if not noisy.any() or noisy.all():
        raise InputError(f"{data} and {clean} do not distinguish noisy events from clean ones")
    rng = np.random.default_rng(seed)
    sample = rng.choice(len(split.train), min(20_000, len(split.train)), replace=False)
    users, items, noisy_sample = split.train.users[sample], split.train.items[sample], noisy[sample]
    negatives = make_sampler("uniform", split.train, 100, seed + 1).draw(0, users, items).items
    points: list[list[float]] = []

    def measure(model: EmbeddingNetwork) -> None:
        losses = _bpr_losses(model, users, items, negatives)
        points.append([float(losses[part].mean()) for part in (noisy_sample, ~noisy_sample)])

    options = {**setting, "epochs": epochs, "seed": seed}
    _train(dataclasses.replace(split, valid=None), "mf", loss, options, measure)
    batches = -(-len(split.train) // setting["batch_size"])
    return {
        "iterations": [number * batches for number in range(len(points))],
        "noisy": [point[0] for point in points],
        "clean": [point[1] for point in points],
        "noisy_fraction": float(noisy.mean()),
    }


def run_roc(load: Load, data: str, *, model: str, loss: str, **setting: Any) -> Result:
    """The ROC curve of the warm test user with most test items, under a trained model."""
    split = load(data)
    assert split.test is not None
    trained, _ = _train(split, model, loss, setting)
    seen, relevant = pairs_before(split, "test"), split.test.matrix
    n_relevant = np.diff(without(relevant, seen).indptr)
    warm = np.diff(split.train.matrix.indptr) > 0
    user = np.array([np.argmax(np.where(warm, n_relevant, 0))], np.int32)
    ranked = rank(trained.scorer(), user, split.n_items, masked=seen[user]).items[0]
    hits = np.isin(ranked[ranked >= 0], relevant[user].indices)
    return {
        "user": str(split.user_ids.ids(user)[0]),
        "hits": np.flatnonzero(hits).tolist(),
        "items": len(hits),
    }


def run_perturbed_models(
    load: Load,
    data: str,
    *,
    loss: str,
    metrics: str,
    models: int,
    max_noise: float,
    max_users: int,
    seed: int,
    **setting: Any,
) -> Result:
    """Metrics of models made from a trained one by adding noise to its vectors.

    Args:
        metrics: names separated by semicolons.
        models: their number n; model i gets i/n of the noise.
        max_noise: the most noise, in units of the vectors' root mean square.
        max_users: the metrics are means over at most this many test users with training events.
    """
    split = load(data)
    assert split.test is not None
    trained, _ = _train(split, "mf", loss, {**setting, "seed": seed})
    warm = np.diff(split.train.matrix.indptr) > 0
    users = np.unique(split.test.users[warm[split.test.users]])
    users = np.random.default_rng(seed).permutation(users)[:max_users]
    sample = dataclasses.replace(split, test=split.test.take(np.isin(split.test.users, users)))
    tables, names = trained.vectors(), metrics.split(";")
    sizes = [float(np.sqrt(np.mean(table**2))) for table in tables]
    rng = np.random.default_rng(seed)
    means = []
    for model in range(1, models + 1):
        noise = max_noise * model / models
        perturbed = [
            table + np.float32(noise * size) * rng.standard_normal(table.shape, np.float32)
            for table, size in zip(tables, sizes, strict=True)
        ]
        evaluation = evaluate(FactorScorer(*perturbed), sample, metrics=names)
        means.append([evaluation.mean(name) for name in evaluation.values])
    return {"means": means, "users": len(users)}


def _train(
    split: Split,
    model: str,
    loss: str,
    setting: Mapping[str, Any],
    measure: Callable[[EmbeddingNetwork], None] | None = None,
) -> tuple[EmbeddingNetwork, History]:
    """A trained model, its epoch chosen by validation; measured before and after each epoch."""
    options = plan(model, loss, setting)
    trained = cast(EmbeddingNetwork, options.new_network(split.train))

    def on_epoch(_: Epoch | None = None) -> None:
        if measure is not None:
            measure(trained)

    on_epoch()
    history = fit(
        trained, options.make_loss(), split, options.training_options(), on_epoch=on_epoch
    )
    if history.signal is not None:
        raise KeyboardInterrupt  # a partial training is no result
    return trained, history


def noisy_events(train: Interactions, clean: Split) -> npt.NDArray[np.bool_]:
    """Which events of `train` are in neither the clean training nor the clean validation part."""
    parts = [part for part in (clean.train, clean.valid) if part is not None]
    users = clean.user_ids.indices(train.user_ids.ids(train.users))
    items = clean.item_ids.indices(train.item_ids.ids(train.items))
    known = np.concatenate([pair_codes(part.users, part.items, clean.n_items) for part in parts])
    in_clean = np.isin(pair_codes(users, items, clean.n_items), known)
    return ~(in_clean & (users >= 0) & (items >= 0))


def _bpr_losses(
    model: EmbeddingNetwork, users: Indices, items: Indices, negatives: Indices
) -> npt.NDArray[np.float64]:
    """mean_j softplus(s_j - s_i) of each event."""
    p, q = model.vectors()
    positives = np.einsum("bd,bd->b", p[users], q[items])
    losses = np.empty(len(users))
    for start in range(0, len(users), 1024):  # bounded memory
        rows = slice(start, start + 1024)
        scores = np.einsum("bd,bnd->bn", p[users[rows]], q[negatives[rows]])
        losses[rows] = np.logaddexp(0, scores - positives[rows, None]).mean(1)
    return losses
