"""How each kind of cell is run: from a split and options to plain numbers."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from llpauc.data.histories import pairs_before, without
from llpauc.data.interactions import Indices, Interactions, Split, pair_codes
from llpauc.errors import InputError
from llpauc.evaluation.full_ranking import evaluate
from llpauc.evaluation.ranking import rank
from llpauc.evaluation.scorer import Scorer
from llpauc.losses import Loss
from llpauc.models import BASELINES
from llpauc.models.embedding import EMBEDDING_MODELS, ColdUsers, EmbeddingModel
from llpauc.recommend import Recommender
from llpauc.recommend.parameters import Plan, plan
from llpauc.research.cells import Result
from llpauc.training import Epoch, History, fit
from llpauc.training.samplers import make_sampler

Splits = Callable[[str], Split]  # by the data set's name
METRICS = ("recall@20", "ndcg@20", "recall@50", "recall@100")


def run_train(
    splits: Splits, data: str, *, model: str, loss: str, test: bool, **given: Any
) -> Result:
    """Train, choose the epoch by validation, and read the test part where that is asked for.

    The test figures come in two readings of the users without a training event: their untrained
    random vector, as in the paper ("random"), and the mean user's ("mean"). Training is the same.
    """
    split, made = splits(data), plan(loss, given)
    trained, loss_module = _start(split, model, made)
    history = _fit(trained, loss_module, split, made)
    curve = [next(iter(epoch.valid.values()), None) for epoch in history.epochs]
    result: Result = {
        "valid": max((value for value in curve if value is not None), default=None),
        "curve": curve,
        "best_epoch": history.best_epoch,
        "seconds": history.seconds,
        "collisions": history.collisions,
    }
    if test:
        readings: tuple[ColdUsers, ...] = ("random", "mean")
        result["test"] = {
            cold: _measure(_with_cold(trained, cold).scorer(), split) for cold in readings
        }
    return result


def run_baseline(
    splits: Splits, data: str, *, model: str, test: bool, metric: str, **given: Any
) -> Result:
    """Fit a model without training; its validation figure, and its test figures if asked for."""
    split = splits(data)
    begun = time.perf_counter()
    scorer = BASELINES[model](split.train, **given)
    result: Result = {"seconds": time.perf_counter() - begun}
    result["valid"] = evaluate(scorer, split, on="valid", metrics=[metric]).mean(metric)
    if test:
        figures = _measure(scorer, split)
        result["test"] = {"random": figures, "mean": figures}  # it has no vectors for cold users
    return result


def run_step_time(
    splits: Splits, data: str, *, losses: str, batches: int, rounds: int, seed: int, **given: Any
) -> Result:
    """Seconds of one training step of each loss: medians over rounds in which all take turns."""
    split = splits(data)
    taken: dict[str, list[float]] = {name: [] for name in losses.split(",")}
    for turn in range(rounds + 1):
        for name, times in taken.items():
            made = plan(name, {**given, "seed": seed, "epochs": 1})
            some = slice(0, batches * made.fit.batch_size)
            part = split.train.take(np.random.default_rng(seed).permutation(len(split.train))[some])
            trained, loss = _start(Split(part), "mf", made)
            history = _fit(trained, loss, Split(part), made)
            if turn:  # the first turn compiles and warms the caches
                times.append(history.seconds / -(-len(part) // made.fit.batch_size))
    return {name: float(np.median(times)) for name, times in taken.items()}


def run_noise_loss(
    splits: Splits, data: str, *, clean: str, loss: str, epochs: int, seed: int, **given: Any
) -> Result:
    """The mean loss of the noisy and of the clean training events, before and after each epoch.

    Noisy is what stands in the noisy training set and in neither training nor validation set of
    the clean one. Every event is compared with the same hundred items at all times.
    """
    split = splits(data)
    made = plan(loss, {**given, "epochs": epochs, "seed": seed})
    trained, loss_module = _start(split, "mf", made)
    noisy = _noisy_events(split.train, splits(clean))
    if not noisy.any() or noisy.all():
        raise InputError(f"{data} and {clean} do not tell noisy events from clean ones")
    rng = np.random.default_rng(seed)
    some = rng.choice(len(split.train), min(20_000, len(split.train)), replace=False)
    users, items = split.train.users[some], split.train.items[some]
    fixed = make_sampler("uniform", split.train, 100, seed + 1).draw(0, users, items)
    points: list[list[float]] = []

    def look(_: Epoch | None = None) -> None:
        each = _bpr_of_each(trained, users, items, fixed.items)
        mask = noisy[some]
        points.append([float(each[mask].mean()), float(each[~mask].mean())])

    look()
    _fit(trained, loss_module, dataclasses.replace(split, valid=None), made, look)
    batches = -(-len(split.train) // made.fit.batch_size)
    return {
        "iterations": [number * batches for number in range(len(points))],
        "noisy": [point[0] for point in points],
        "clean": [point[1] for point in points],
        "noisy_share": float(noisy.mean()),
    }


def run_roc(splits: Splits, data: str, *, model: str, loss: str, **given: Any) -> Result:
    """The ROC curve of the warm test user with most test items, under a trained model."""
    split = splits(data)
    if split.test is None:
        raise InputError(f"{data} has no test part")
    trained = train_once(split, model, loss, given)
    seen, wanted = pairs_before(split, "test"), split.test.matrix
    sizes = np.diff(without(wanted, seen).indptr)
    sizes = np.where(np.diff(split.train.matrix.indptr) > 0, sizes, 0)
    user = int(np.argmax(sizes))
    scores = trained.scorer()
    ranked = rank(scores, np.array([user], np.int32), split.n_items, masked=seen[[user]]).items[0]
    hits = np.isin(ranked[ranked >= 0], wanted[[user]].indices)
    return {
        "user": str(split.user_ids.ids(np.array([user]))[0]),
        "hits": np.flatnonzero(hits).tolist(),
        "items": len(hits),
    }


def _start(split: Split, model: str, made: Plan) -> tuple[EmbeddingModel, Loss]:
    trained = EMBEDDING_MODELS[model](split.train, made.embedding, made.fit.seed)
    return trained, made.make_loss()


def _fit(
    model: EmbeddingModel,
    loss: Loss,
    split: Split,
    made: Plan,
    on_epoch: Callable[[Epoch], None] | None = None,
) -> History:
    """Train to the end; half a training is no result, so an interrupt goes on upwards."""
    history = fit(model, loss, split, made.fit, on_epoch=on_epoch)
    if history.signal is not None:
        raise KeyboardInterrupt
    return history


def _with_cold(model: EmbeddingModel, cold: ColdUsers) -> EmbeddingModel:
    model.options = dataclasses.replace(model.options, cold=cold)
    return model


def _measure(scorer: Scorer, split: Split) -> Mapping[str, Mapping[str, float]]:
    """Group -> metric -> value, seen items masked as the reference program does it."""
    return evaluate(scorer, split, metrics=METRICS, mask="paper").summary()


def _noisy_events(train: Interactions, clean: Split) -> npt.NDArray[np.bool_]:
    """Which events of `train` stand in neither the clean training nor validation part."""
    parts = [part for part in (clean.train, clean.valid) if part is not None]
    users = clean.user_ids.indices(train.user_ids.ids(train.users))
    items = clean.item_ids.indices(train.item_ids.ids(train.items))
    known = np.concatenate([pair_codes(part.users, part.items, clean.n_items) for part in parts])
    there = np.isin(pair_codes(users, items, clean.n_items), known)
    return ~(there & (users >= 0) & (items >= 0))


def _bpr_of_each(
    model: EmbeddingModel, users: Indices, items: Indices, negatives: Indices
) -> npt.NDArray[np.float64]:
    """mean_j softplus(s_j - s_i) of each event."""
    p, q = model.vectors()
    own = np.einsum("bd,bd->b", p[users], q[items])
    each = np.empty(len(users))
    for low in range(0, len(users), 1024):  # bounded memory
        rows = slice(low, low + 1024)
        others = np.einsum("bd,bnd->bn", p[users[rows]], q[negatives[rows]])
        each[rows] = np.logaddexp(0, others - own[rows, None]).mean(1)
    return each


def fit_recommender(
    split: Split, seed: int, given: Mapping[str, Any], refit: bool = False
) -> Recommender:
    """A fitted recommender; the seed is for those that are trained. An interrupted one is none."""
    seeded: Mapping[str, Any] = {} if given["model"] in BASELINES else {"seed": seed}
    recommender = Recommender(**given, **seeded, refit=refit).fit(split)
    if recommender.history is not None and recommender.history.signal is not None:
        raise KeyboardInterrupt
    return recommender


def train_once(split: Split, model: str, loss: str, given: Mapping[str, Any]) -> EmbeddingModel:
    """A trained model, its epoch chosen by validation."""
    made = plan(loss, given)
    trained, loss_module = _start(split, model, made)
    _fit(trained, loss_module, split, made)
    return trained
