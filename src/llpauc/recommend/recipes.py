"""Settings that are good without tuning, chosen by the shape of the data.

docs/recipes.md has the measurements. A recipe is a dict of `Recommender` parameters;
parameters that the user sets replace those of the recipe.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from llpauc.data.interactions import Interactions
from llpauc.data.recency import choose_recency
from llpauc.errors import choose, listing
from llpauc.losses import LOSSES, LLPAUCLoss, suggest_alpha_beta
from llpauc.models.registry import parse_blend
from llpauc.options import options_of
from llpauc.recommend.parameters import foreign_options

# The paper's protocol for all losses. As in the authors' program, negatives are drawn from all
# items and users without training events keep their random vector. Their program stops on
# Recall@50; the paper reports Recall@20, which is used here.
PAPER_PROTOCOL: dict[str, Any] = {
    "dimensions": 64,
    "lr": 1e-3,
    "batch_size": 128,
    "negatives": 100,
    "sampler": "uniform-with-positives",
    "cold_users": "random",
    "valid_metric": "recall@20",
    "patience": 3,
}
# The values of alpha and beta that the paper tries.
PAPER_GRID: dict[str, tuple[float, ...]] = {
    "alpha": (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
    "beta": (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 0.7, 0.9),
}
_SMALL_CATALOGUE = 3_000  # items up to which every item is a negative
_LARGE_CATALOGUE = 20_000  # items beyond which the sigmoid is sharper
_EVENTS_PER_SIZE = 128  # batches are the power of 2 next to the events over this, 1,024 to 4,096
_PROPAGATION = 5.0  # time of a multiplication of a propagation, relative to one of the loss
_GRAPH_EVENTS = 5_000_000  # beyond, the graph is left out
_HUGE_EVENTS = 20_000_000  # beyond, a spectral init and a blend need too much memory
_WORK = 8e12  # multiplications of a training at most, where that is at least 8 epochs
_NEWS_GAIN = 1.5  # ratio of recent popularity to popularity from which `moving` is recommended

Recipe = Callable[[Interactions, Interactions | None], dict[str, Any]]


def auto(train: Interactions, valid: Interactions | None = None) -> dict[str, Any]:
    """`settled`; recent popularity joins its blend where recent events predict better."""
    settings = settled(train, valid)
    recency = choose_recency([train] if valid is None else [train, valid])
    if "blend" in settings and recency.has_drift and recency.by != "parts":
        settings["blend"] = f"recent_popularity,{settings['blend']}"
    return settings


def single(train: Interactions, valid: Interactions | None = None) -> dict[str, Any]:
    """The settings of one trained model, without a blend: `moving` where recent events predict far
    better than old ones, as with news; else `settled`."""
    recency = choose_recency([train] if valid is None else [train, valid])
    if recency.has_drift and recency.by != "parts":
        gain = recency.values[recency.half_life] / max(recency.values[math.inf], 1e-9)
        if gain >= _NEWS_GAIN:
            return moving(train, valid, recency.half_life)
    return settled(train, valid) | {"blend": "none"}


def settled(train: Interactions, valid: Interactions | None = None) -> dict[str, Any]:
    """Cosine scores, spectral initial vectors, many shared negatives, then a refit.

    LightGCN, or MF where there are very many events. Thresholds are per user, or pooled in a
    catalogue of medium size, where both are equally good and pooled is faster.

    >>> events = Interactions.of(["ann", "bob"], ["x", "y"])
    >>> settled(events)["sampler"], settled(events)["beta"]
    ('all-items', 0.1)
    """
    small = train.n_items <= _SMALL_CATALOGUE
    large = train.n_items > _LARGE_CATALOGUE
    beta = suggest_alpha_beta(train).beta_measured
    per_user = {"solver": "per-user", "temperature": 0.3}
    if small:
        of_loss = {**per_user, "sharpness": 5.0, "beta": min(0.1, beta)}
    elif large:
        of_loss = {**per_user, "sharpness": 20.0, "beta": beta}
    else:
        of_loss = {"temperature": 0.25, "beta": 2 * beta}
    dimensions, negatives = (256, train.n_items) if small else (128, 2_048)
    batch_size = 2 ** min(max(round(math.log2(max(len(train), 1) / _EVENTS_PER_SIZE)), 10), 12)
    # So many batches share a propagation over the graph that it takes about as long as the loss.
    propagation = 8 * len(train) + 20 * (train.n_users + train.n_items)
    interval = round(_PROPAGATION * propagation / (3 * batch_size * negatives))
    interval = min(max(interval, 1), 8)
    graph = {"model": "lightgcn", "layers": 2, "propagation_interval": interval}
    epochs = int(min(max(_WORK / (3 * len(train) * negatives * dimensions), 8), 100))
    return {
        **({"model": "mf"} if len(train) > _GRAPH_EVENTS else graph),
        "loss": "llpauc",
        "alpha": 0.7,
        **of_loss,
        "score": "cosine",
        "init": "spectral" if len(train) <= _HUGE_EVENTS else "random",
        "dimensions": dimensions,
        "sampler": "all-items" if small else "shared",
        "negatives": negatives,
        "batch_size": batch_size,
        "lr": round(0.003 * (batch_size * interval / 1_024) ** (1 / 3), 4),
        "decay_epochs": epochs,
        "epochs": epochs,
        "patience": 4,
        **({"blend": "itemknn,ease,ials"} if len(train) <= _HUGE_EVENTS else {}),
        "refit": True,
    }


def moving(
    train: Interactions, valid: Interactions | None = None, half_life: float | None = None
) -> dict[str, Any]:
    """MF with an item bias that starts at recent popularity, and events drawn by their age."""
    if half_life is None:
        recency = choose_recency([train] if valid is None else [train, valid])
        # Training weights events by time or by rows: ages in parts are equal within a part.
        half_life = math.inf if recency.by == "parts" else recency.half_life
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


def description(settings: Mapping[str, Any], train: Interactions) -> list[str]:
    """What settings of a recipe mean, in a few lines.

    >>> events = Interactions.of(["ann", "bob"], ["x", "y"])
    >>> print("\\n".join(description(settled(events), events)))
    model lightgcn: a graph model, for up to 5,000,000 events; 256 dimensions
    loss llpauc, against all 2 items
    blend: itemknn, ease, ials are added with the weights that are best on validation
    refit: trained again on all events before the test, for the chosen number of epochs
    """
    graph = "layers" in settings
    size = "up to" if len(train) <= _GRAPH_EVENTS else "more than"
    kind = "a graph model" if graph else "matrix factorization"
    half_life = settings.get("half_life")
    recent = "" if half_life is None else ", recent events first (they predict far better here)"
    negatives = settings["negatives"]
    drawn = f"all {negatives:,} items" if negatives >= train.n_items else f"{negatives:,} negatives"
    lines = [
        f"model {settings['model']}: {kind}, for {size} {_GRAPH_EVENTS:,} events;"
        f" {settings['dimensions']} dimensions",
        f"loss {settings['loss']}, against {drawn}{recent}",
    ]
    if settings.get("blend") not in (None, "none"):
        added = listing(parse_blend(settings["blend"]))
        lines.append(f"blend: {added} are added with the weights that are best on validation")
    if settings.get("refit"):
        lines.append(
            "refit: trained again on all events before the test, for the chosen number of epochs"
        )
    return lines


def with_loss(setting: Mapping[str, Any], loss: str, **loss_parameters: Any) -> dict[str, Any]:
    """The setting with another loss. Parameters of LLPAUC that the loss does not have are removed.

    The temperature of LLPAUC's cosine is removed too where the loss is meant for cosines.

    >>> llpauc = {"loss": "llpauc", "alpha": 0.7, "beta": 0.1, "temperature": 0.3}
    >>> with_loss(llpauc, "sl", temperature=0.1)
    {'loss': 'sl', 'temperature': 0.1}
    >>> with_loss(llpauc, "opauc")
    {'loss': 'opauc', 'beta': 0.1, 'temperature': 0.3}
    """
    accepted = set(options_of(choose(LOSSES, loss, "loss")))
    removed = set(options_of(LLPAUCLoss)) - accepted
    if LOSSES[loss].score == "cosine":
        removed.add("temperature")
    rest = {name: value for name, value in setting.items() if name not in removed}
    return {**rest, "loss": loss, **loss_parameters}


def with_model(setting: Mapping[str, Any], model: str) -> dict[str, Any]:
    """The setting with another trained model. Options that the model does not have are removed.

    >>> with_model({"model": "lightgcn", "layers": 2, "lr": 0.003}, "mf")
    {'model': 'mf', 'lr': 0.003}
    """
    removed = foreign_options(model)
    rest = {name: value for name, value in setting.items() if name not in removed}
    return {**rest, "model": model}


def none(train: Interactions, valid: Interactions | None = None) -> dict[str, Any]:
    """The defaults of the options."""
    return {"model": "mf", "loss": "llpauc"}


RECIPES: dict[str, Recipe] = {
    "auto": auto,
    "single": single,
    "settled": settled,
    "moving": moving,
    "paper": paper,
    "none": none,
}


def recipe(name: str, train: Interactions, valid: Interactions | None = None) -> dict[str, Any]:
    """The parameters of a recipe for these events; `valid` comes between train and test."""
    return choose(RECIPES, name, "recipe")(train, valid)
