"""What is to be done before anything runs: the clock, the split, the settings worth trying."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from llpauc.data.interactions import Interactions, Split
from llpauc.data.recency import Recency
from llpauc.data.splits import split_random_per_user, split_temporal
from llpauc.errors import InputError, choose
from llpauc.models.registry import MODELS
from llpauc.recommend.recipes import moving, recipe, with_loss

METRIC = "ndcg@20"  # on validation: it chooses everything
VALID, TEST = 0.1, 0.2  # shares that are held out
_MOST_COLD = 0.5  # held-out users without history beyond which one cut in time tests the fallback
_EPOCHS, _PATIENCE = 100, 8


@dataclass(frozen=True)
class Budget:
    """Seconds from `begun` on, by `clock`."""

    seconds: float
    begun: float
    clock: Callable[[], float] = time.monotonic

    @property
    def passed(self) -> float:
        return self.clock() - self.begun

    @property
    def left(self) -> float:
        return self.seconds - self.passed


@dataclass(frozen=True)
class Prepared:
    """The parts, and how they came about.

    Args:
        split: train, valid and test; train alone where there are too few events to hold any out.
        how: a sentence for people.
    """

    split: Split
    how: str

    @property
    def measurable(self) -> bool:
        return self.split.valid is not None and self.split.test is not None


def prepare(data: Interactions | Split, seed: int, how: str = "auto") -> Prepared:
    """Train, valid and test: those that are there, or cut by time, or drawn at random.

    Args:
        data: a table, or parts that are taken as they are; a missing one is held out of train.
        seed: of what is drawn.
        how: a way of `WAYS`.
    """
    choose(WAYS, how, "way to split (how)")
    if isinstance(data, Interactions):
        found, told = _cut(data, VALID, TEST, seed, how)
        return Prepared(found or Split(data), told)
    valid, test = (part if part is not None and len(part) else None for part in
                   (data.valid, data.test))  # fmt: skip
    own = "The folder's own parts."
    if test is None and valid is not None:
        valid, test = None, valid
        own = "The folder has no test part: its valid part is the test."
    if valid is not None:
        return Prepared(Split(data.train, valid, test), own)
    found, told = _cut(data.train, VALID, 0.0 if test is not None else TEST, seed, how)
    if found is None:
        return Prepared(Split(data.train, None, test), f"{own} {told}")
    return Prepared(
        Split(found.train, found.valid, test or found.test),
        f"{own} Held out of train: {told[0].lower()}{told[1:]}",
    )


WAYS = {
    "auto": "by time where there are times, else at random",
    "temporal": "one cut in time for all users",
    "per_user": "each user's own last events",
    "random": "at random, of each user's events",
}


def _cut(
    data: Interactions, valid: float, test: float, seed: int, how: str
) -> tuple[Split | None, str]:
    shares = " and ".join(
        f"{share:.0%} for {what}"
        for what, share in (("validation", valid), ("the test", test))
        if share
    )
    times = None if how == "random" else data.timestamps
    known = times is not None and np.isfinite(times).all() and len(np.unique(times)) > 1
    if how in ("temporal", "per_user") and not known:
        raise InputError(f"--how {how} needs a time for every event; leave it out, or use random")
    try:
        if known:
            return _cut_by_time(data, valid, test, shares, how)
        found = split_random_per_user(data, valid=valid, test=test, seed=seed)
        return found, f"At random, {shares} of each user's events."
    except InputError:
        return None, "There are too few events to hold any out."


def _cut_by_time(
    data: Interactions, valid: float, test: float, shares: str, how: str
) -> tuple[Split, str]:
    why = ""
    if how != "per_user":
        found = split_temporal(data, valid=valid, test=test)
        cold = cold_share(found)
        if how == "temporal" or cold <= _MOST_COLD:
            return found, f"One cut in time for all users: the last {shares}."
        why = (
            f" (with one cut for all, {cold:.0%} of the held-out users would have no history, and"
            " the fallback would be tested, not the lists; --how temporal does that)"
        )
    own = split_temporal(data, valid=valid, test=test, per_user=True)
    return own, f"By time, each user's own last events: {shares}{why}."


def cold_share(split: Split) -> float:
    """Users with held-out events and no training event, as a share of those with held-out ones."""
    known = np.diff(split.train.matrix.indptr) > 0
    rows = [part.users for name, part in split.parts.items() if name != "train"]
    held = np.unique(np.concatenate(rows)) if rows else np.empty(0, int)
    return float((~known[held]).mean()) if len(held) else 0.0


def some_users(part: Interactions, most: int, seed: int) -> Interactions:
    """The events of at most this many users, drawn at random: a figure needs no more of them."""
    there = np.unique(part.users)
    if len(there) <= most:
        return part
    kept = np.random.default_rng(seed).choice(there, most, replace=False)
    return part.take(np.isin(part.users, kept))


# --- settings -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Candidate:
    """A setting with a name.

    Args:
        name: as tables show it.
        settings: parameters of `Recommender`.
        why: what it is there for.
    """

    name: str
    settings: Mapping[str, Any]
    why: str

    @property
    def model(self) -> str:
        return str(self.settings["model"])

    @property
    def is_baseline(self) -> bool:
        return not MODELS[self.model].trained


BASELINE_WHY = {
    "popularity": "the same list for all: the items with the most users",
    "recent_popularity": "the same, recent events weighing more",
    "itemknn": "items like those a user has",
    "ease": "a linear item-item model in closed form",
}
_FURTHER: dict[str, list[dict[str, Any]]] = {
    "itemknn": [{"neighbours": 30}, {"neighbours": 300}],
    "ease": [{"regularization": weight} for weight in (50.0, 1000.0, 4000.0)],
}


def baseline(model: str) -> Candidate:
    return Candidate(model, {"model": model}, BASELINE_WHY[model])


def further_baselines(model: str) -> list[Candidate]:
    """The same baseline with other parameters, for where it is cheap."""
    return [
        Candidate(
            f"{model}, {next(iter(given))} {next(iter(given.values())):g}",
            {"model": model, **given},
            BASELINE_WHY[model],
        )
        for given in _FURTHER.get(model, [])
    ]


# What a recipe is cut down to where the time is short: vectors and negatives.
_SIZES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("", {}),
    ("medium", {"dimensions": 128, "sampler": "shared", "negatives": 1024}),
    ("small", {"dimensions": 64, "sampler": "shared", "negatives": 256}),
)


def sized_recipes(train: Interactions) -> dict[str, dict[str, Any]]:
    """The recipe `settled` in full and cut down, the largest first; what gets no smaller is left
    out.

    >>> events = Interactions.of(["ann", "bob"], ["x", "y"])
    >>> [settings["dimensions"] for settings in sized_recipes(events).values()]
    [256, 128, 64]
    """
    full = recipe("settled", train) | {"epochs": _EPOCHS, "patience": _PATIENCE}
    full.pop("refit")  # done here, once, for the winner
    made: dict[str, dict[str, Any]] = {}
    for name, smaller in _SIZES:
        settings = {**full, **smaller}
        settings["negatives"] = min(settings["negatives"], train.n_items)
        if not made or work(settings, train) < min(work(s, train) for s in made.values()):
            made[name] = settings
    return made


def scout(train: Interactions) -> Candidate:
    """The cheapest setting that is worth having; its pace tells what else there is time for."""
    settings = _without_graph(list(sized_recipes(train).values())[-1])
    return Candidate("MF, small", settings, "the cheapest trained model: it sets the pace")


def _without_graph(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key != "layers"} | {"model": "mf"}


def variants(
    name: str, base: Mapping[str, Any], train: Interactions, moves: Recency | None
) -> list[Candidate]:
    """The recipe at one size, and one thing changed at a time."""
    size = f", {name}" if name else ""
    found = [
        Candidate(f"recipe auto{size}", dict(base), "LLPAUC, the recommended start"),
        Candidate(
            f"softmax loss{size}", with_loss(base, "sl", temperature=0.2),
            "the recipe with SL instead of LLPAUC",
        ),
        Candidate(
            f"temperature 0.2{size}", {**base, "temperature": 0.2}, "the recipe, scores spread more"
        ),
    ]  # fmt: skip
    if base["model"] != "mf":
        told = "the recipe without the graph"
        found.insert(1, Candidate(f"MF{size}", _without_graph(base), told))
    if moves is not None and moves.has_drift and moves.by != "parts":
        aged = moving(train, half_life=moves.half_life)
        aged.pop("refit")
        why = f"MF on top of recent popularity, events drawn by age ({moves})"
        found.insert(1, Candidate("recipe moving", aged, why))
    return found


def work(settings: Mapping[str, Any], train: Interactions) -> float:
    """Multiplications of an epoch, to the leading terms: good for ratios of settings."""
    columns = settings["negatives"]
    if settings.get("sampler") in ("all-items", "shared"):
        columns = (
            train.n_items if settings["sampler"] == "all-items" else min(columns, train.n_items)
        )
    dims = int(settings["dimensions"])
    total: float = len(train) * (columns + 2.0) * dims
    if settings["model"] == "lightgcn":
        # Each batch propagates over all edges, forth and back; sparse products run at half speed.
        steps = math.ceil(len(train) / settings["batch_size"]) / settings.get(
            "propagation_interval", 1
        )
        total += 2 * steps * settings["layers"] * 4.0 * len(train) * dims
    return total
