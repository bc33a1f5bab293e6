"""What `auto` decides before anything runs: the split, and the settings worth trying."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llpauc.data import splits
from llpauc.data.interactions import Interactions, Split
from llpauc.data.recency import Recency
from llpauc.models.registry import MODELS, ModelEntry
from llpauc.options import Grid, Option, options_of
from llpauc.recommend.recipes import moving, recipe, with_loss, with_model
from llpauc.training.options import SAMPLERS, TrainingOptions

METRIC = "ndcg@20"  # on validation: it makes every choice
VALID, TEST = 0.1, 0.2  # fractions that are held out
_EPOCHS, _PATIENCE = 100, 8


@dataclass(frozen=True)
class Prepared:
    """A split, and how it was made.

    Args:
        split: train, valid and test; train alone where there are too few events.
        how: sentences for the report.
    """

    split: Split
    how: str

    @property
    def is_measurable(self) -> bool:
        return self.split.valid is not None and self.split.test is not None


def prepare(data: Interactions | Split, seed: int, how: str = "auto") -> Prepared:
    """Train, valid and test: given parts, or events held out by time or at random.

    Args:
        data: a table, or parts; a missing part is held out of train.
        seed: of a random split.
        how: a name in `llpauc.data.SPLITS`, with fractions as options.
    """
    if isinstance(data, Interactions):
        split, text = _hold_out(data, VALID, TEST, seed, how)
        return Prepared(split or Split(data), text)
    valid, test = (p if p is not None and len(p) else None for p in (data.valid, data.test))
    given = "The parts of the folder."
    if test is None and valid is not None:
        valid, test = None, valid
        given = "The folder has no test part: its valid part is the test."
    if valid is None:
        split, text = _hold_out(data.train, VALID, 0.0 if test is not None else TEST, seed, how)
        if split is None:
            return Prepared(Split(data.train, None, test), f"{given} {text}")
        given = f"{given} Held out of train: {text[0].lower()}{text[1:]}"
        return Prepared(Split(split.train, split.valid, test or split.test), given)
    return Prepared(Split(data.train, valid, test), given)


def _hold_out(
    data: Interactions, valid: float, test: float, seed: int, how: str
) -> tuple[Split | None, str]:
    """The split, or None where there are too few events; and sentences about it."""
    try:
        split = splits.split(data, how, seed=seed, valid=valid, test=test)
    except splits.TooFewEvents:
        return None, "There are too few events to hold any out."
    return split, " ".join(f"{note[0].upper()}{note[1:]}." for note in split.notes)


# --- settings -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Candidate:
    """Settings with a name.

    Args:
        id: short, for programs.
        name: as reports show it; see `method_name`.
        settings: parameters of `Recommender`.
        description: for the report.
    """

    id: str
    name: str
    settings: Mapping[str, Any]
    description: str

    @property
    def model(self) -> str:
        return str(self.settings["model"])

    @property
    def title(self) -> str:
        """The name of its model in reports."""
        return MODELS[self.model].title or self.model

    @property
    def is_baseline(self) -> bool:
        return not MODELS[self.model].trained


def method_name(settings: Mapping[str, Any], *details: str) -> str:
    """A name for reports.

    >>> method_name({"model": "itemknn", "neighbours": 30})
    'ItemKNN, neighbours 30'
    >>> method_name({"model": "lightgcn", "loss": "llpauc", "dimensions": 128}, "temperature 0.2")
    'LightGCN + LLPAUC, 128 dimensions, temperature 0.2'
    """
    entry = MODELS[settings["model"]]
    title = entry.title or str(settings["model"])
    if entry.trained:
        words = [f"{title} + {settings['loss'].upper()}", f"{settings['dimensions']} dimensions"]
    else:
        words = [title, *(f"{n} {settings.get(n, o.default):g}" for n, o in _searched(entry))]
    return ", ".join([*words, *details])


def _searched(entry: ModelEntry) -> list[tuple[str, Option]]:
    """The options of a model without training that are worth several trials."""
    options = options_of(entry.Options).items()
    return [(name, option) for name, option in options if isinstance(option.search, Grid)]


def baselines(model: str) -> list[Candidate]:
    """A model without training: its defaults, then the other values of each searched option."""
    entry = MODELS[model]
    changes: dict[str, dict[str, Any]] = {model: {}}
    for name, option in _searched(entry):
        assert isinstance(option.search, Grid)
        others = [value for value in option.search.values if value != option.default]
        changes |= {f"{model}-{name}-{value:g}": {name: value} for value in others}
    settings = {id: {"model": model, **change} for id, change in changes.items()}
    return [Candidate(id, method_name(s), s, entry.summary) for id, s in settings.items()]


# Smaller versions of a recipe, for short budgets.
_SIZES: dict[str, dict[str, Any]] = {
    "full": {},
    "medium": {"dimensions": 128, "sampler": "shared", "negatives": 1024},
    "small": {"dimensions": 64, "sampler": "shared", "negatives": 256},
}


def sized_recipes(train: Interactions) -> dict[str, dict[str, Any]]:
    """The recipe `settled` in full and in smaller versions, as far as each is cheaper.

    >>> events = Interactions.of(["ann", "bob"], ["x", "y"])
    >>> [settings["dimensions"] for settings in sized_recipes(events).values()]
    [256, 128, 64]
    """
    full = recipe("settled", train) | {"epochs": _EPOCHS, "patience": _PATIENCE}
    full.pop("refit")  # only the winner is fitted again
    full.pop("blend", None)  # the models of the blend are candidates of their own
    recipes: dict[str, dict[str, Any]] = {}
    for name, smaller in _SIZES.items():
        settings = {**full, **smaller}
        settings["negatives"] = min(settings["negatives"], train.n_items)
        if not recipes or work(settings, train) < min(work(s, train) for s in recipes.values()):
            recipes[name] = settings
    return recipes


def scout(train: Interactions) -> Candidate:
    """The cheapest trained candidate; its pace predicts the time of the others."""
    settings = with_model(list(sized_recipes(train).values())[-1], "mf")
    text = "the cheapest trained model, which sets the pace"
    return Candidate("scout", method_name(settings), settings, text)


def variants(
    base: Mapping[str, Any], train: Interactions, recency: Recency | None
) -> list[Candidate]:
    """The recipe at one size, and copies of it with one change each."""
    found = {"recipe": (dict(base), "the recommended settings for such data")}
    if recency is not None and recency.has_drift and recency.by != "parts":
        aged = moving(train, half_life=recency.half_life)
        aged.pop("refit")
        found["recent"] = aged, f"on top of recent popularity, events weighted by age ({recency})"
    if "layers" in base:
        found["mf"] = with_model(base, "mf"), "the recommended settings without the graph"
    softmax = with_loss(base, "sl", temperature=0.2)
    found["softmax"] = softmax, "the recommended settings with the softmax loss"
    cooler = {**base, "temperature": 0.2}
    found["temperature"] = cooler, "the recommended settings with a lower temperature"
    details = {"recent": ["recent events first"], "temperature": ["temperature 0.2"]}
    return [
        Candidate(id, method_name(settings, *details.get(id, [])), settings, text)
        for id, (settings, text) in found.items()
    ]


def work(settings: Mapping[str, Any], train: Interactions) -> float:
    """Multiplications per epoch to leading order; used for ratios only."""
    sampler = SAMPLERS[settings.get("sampler", TrainingOptions.sampler)]
    negatives = sampler.items_scored(settings["batch_size"], settings["negatives"], train.n_items)
    dimensions = int(settings["dimensions"])
    total: float = len(train) * (negatives + 2.0) * dimensions
    if "layers" in settings:
        # Each batch propagates over all edges, forward and backward, at half the speed.
        steps = math.ceil(len(train) / settings["batch_size"]) / settings.get(
            "propagation_interval", 1
        )
        total += 2 * steps * settings["layers"] * 4.0 * len(train) * dimensions
    return total
