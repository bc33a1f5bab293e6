"""Settings that are good without tuning, by the shape of the data.

What they rest on is in docs/recipes.md. A recipe is a plain dict of `Recommender` parameters; what
a person sets goes over it.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

from llpauc.data.interactions import Interactions
from llpauc.data.recency import choose_recency
from llpauc.errors import choose
from llpauc.losses import LOSSES, LLPAUCLoss, suggest_alpha_beta

# The paper's protocol, whatever the loss. Negatives come from all items and users without a
# training event keep their random vector, as in the authors' program. That stops on Recall@50; the
# paper reports Recall@20, and so do we stop.
PAPER_PROTOCOL: dict[str, Any] = {
    "dimensions": 64, "lr": 1e-3, "batch_size": 128, "negatives": 100, "sampler": "uniform-all",
    "cold": "random", "valid_metric": "recall@20", "patience": 3,
}  # fmt: skip
# The values of alpha and beta that the paper tries.
PAPER_GRID: dict[str, tuple[float, ...]] = {
    "alpha": (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
    "beta": (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 0.7, 0.9),
}
_ALL_ITEMS = 3_000  # a catalogue up to this size is compared with as a whole
_LARGE_CATALOGUE = 20_000  # items beyond which a row's best are told apart more sharply
_MANY_EVENTS = 500_000  # beyond which propagation costs more than it brings
_OF_LLPAUC = frozenset(inspect.signature(LLPAUCLoss).parameters)
_NEWS = 1.5  # what recent popularity must be worth against popularity for time to come first

Recipe = Callable[[Interactions, Interactions | None], dict[str, Any]]


def auto(train: Interactions, valid: Interactions | None = None) -> dict[str, Any]:
    """`moving` where yesterday tells most about tomorrow, as with news; else `settled`."""
    parts = [train] if valid is None else [train, valid]
    found = choose_recency(parts)
    if found.has_drift and found.by != "parts":
        gain = found.values[found.half_life] / max(found.values[math.inf], 1e-9)
        if gain >= _NEWS:
            return moving(train, valid, found.half_life)
    return settled(train, valid)


def settled(train: Interactions, valid: Interactions | None = None) -> dict[str, Any]:
    """Cosine over a soft temperature from a spectral start, many shared negatives, then a refit.

    LightGCN, or MF where there are many events. Thresholds by row, or pooled in a catalogue of
    middle size, where neither is ahead and pooled is faster.

    >>> events = Interactions.of(["ann", "bob"], ["x", "y"])
    >>> settled(events)["sampler"], settled(events)["beta"]
    ('all', 0.1)
    """
    small = train.n_items <= _ALL_ITEMS
    large = train.n_items > _LARGE_CATALOGUE
    many = len(train) > _MANY_EVENTS
    beta = suggest_alpha_beta(train).beta_measured
    by_row = {"solver": "per-user", "temperature": 0.3}
    if small:
        of_loss = {**by_row, "sharpness": 5.0, "beta": min(0.1, beta)}
    elif large:
        of_loss = {**by_row, "sharpness": 20.0, "beta": beta}
    else:
        of_loss = {"temperature": 0.25, "beta": 2 * beta}
    return {
        **({"model": "mf"} if many else {"model": "lightgcn", "layers": 2}),
        "loss": "llpauc",
        "alpha": 0.7,
        **of_loss,
        "score": "cosine",
        "start": "spectral",
        "dimensions": 256 if small else 128,
        "sampler": "all" if small else "shared",
        "negatives": train.n_items if small else 2_048,
        "batch_size": 4_096 if many else 1_024,
        "lr": 0.003,
        "epochs": 12 if many else 100,
        "patience": 4,
        "refit": True,
    }


def moving(
    train: Interactions, valid: Interactions | None = None, half_life: float | None = None
) -> dict[str, Any]:
    """MF on top of recent popularity: an item bias that starts there, events drawn by their age."""
    if half_life is None:
        found = choose_recency([train] if valid is None else [train, valid])
        # Training weighs events by time or by rows: an age in parts says nothing within one.
        half_life = math.inf if found.by == "parts" else found.half_life
    return {
        "model": "mf",
        "loss": "llpauc",
        "alpha": 0.7,
        "beta": 0.1,
        "item_bias": True,
        "half_life": half_life if math.isfinite(half_life) else None,
        "dimensions": 64,
        "negatives": 100,
        "batch_size": 256,
        "lr": 1e-3,
        "epochs": 20,
        "patience": 3,
        "refit": True,
    }


def paper(train: Interactions, valid: Interactions | None = None) -> dict[str, Any]:
    """The reference setting: MF by dot product, 64 dimensions, 100 negatives from all items."""
    return {"model": "mf", "loss": "llpauc", "alpha": 0.7, "beta": 0.1, **PAPER_PROTOCOL}


def with_loss(setting: Mapping[str, Any], loss: str, **own: Any) -> dict[str, Any]:
    """The setting with another loss and its parameters: what it does not share with LLPAUC goes.

    A temperature of the loss's own is another thing than that of LLPAUC's cosine.

    >>> llpauc = {"loss": "llpauc", "alpha": 0.7, "beta": 0.1, "temperature": 0.3}
    >>> with_loss(llpauc, "sl", temperature=0.1)
    {'loss': 'sl', 'temperature': 0.1}
    >>> with_loss(llpauc, "opauc")
    {'loss': 'opauc', 'beta': 0.1, 'temperature': 0.3}
    """
    accepted = set(inspect.signature(choose(LOSSES, loss, "loss")).parameters)
    gone = (_OF_LLPAUC - accepted) | ({"temperature"} & accepted)
    kept = {name: value for name, value in setting.items() if name not in gone}
    return {**kept, "loss": loss, **own}


RECIPES: dict[str, Recipe] = {"auto": auto, "settled": settled, "moving": moving, "paper": paper}


def recipe(name: str, train: Interactions, valid: Interactions | None = None) -> dict[str, Any]:
    """The parameters of a recipe for these events; `valid` lies between train and the test."""
    return choose(RECIPES, name, "recipe")(train, valid)
