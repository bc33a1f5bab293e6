"""Settings that are good without tuning, by the shape of the data.

What they rest on is in docs/recipes.md. A recipe is a plain dict of `Recommender` parameters; what
a person sets goes over it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llpauc.errors import choose
from llpauc.interactions import Interactions
from llpauc.losses import suggest_alpha_beta

# The paper's protocol, whatever the loss. Negatives come from all items and users without a
# training event keep their random vector, as in the authors' program. That stops on Recall@50; the
# paper reports Recall@20, and so do we stop.
PAPER_PROTOCOL: dict[str, Any] = {
    "dimensions": 64, "lr": 1e-3, "batch_size": 128, "negatives": 100, "sampler": "uniform-all",
    "cold": "random", "valid_metric": "recall@20", "patience": 3,
}  # fmt: skip
_ALL_ITEMS = 3_000  # a catalogue up to this size is compared with as a whole


def auto(train: Interactions) -> dict[str, Any]:
    """LightGCN by cosine over a soft temperature, many shared negatives, refitted on everything.

    >>> events = Interactions.of(["ann", "bob"], ["x", "y"])
    >>> auto(events)["sampler"], auto(events)["beta"]
    ('all', 0.3)
    """
    small = train.n_items <= _ALL_ITEMS
    return {
        "model": "lightgcn",
        "layers": 2,
        "loss": "llpauc",
        "alpha": 0.7,
        "beta": min(0.3, suggest_alpha_beta(train).beta_measured),
        "score": "cosine",
        "temperature": 0.25,
        "dimensions": 256 if small else 128,
        "sampler": "all" if small else "shared",
        "negatives": train.n_items if small else 2_048,
        "batch_size": 1_024 if len(train) < 500_000 else 4_096,
        "lr": 0.01,
        "epochs": 100,
        "patience": 8,
        "refit": True,
    }


def paper(train: Interactions) -> dict[str, Any]:
    """The reference setting: MF by dot product, 64 dimensions, 100 negatives from all items."""
    return {"model": "mf", "loss": "llpauc", "alpha": 0.7, "beta": 0.1, **PAPER_PROTOCOL}


RECIPES: dict[str, Callable[[Interactions], dict[str, Any]]] = {"auto": auto, "paper": paper}


def recipe(name: str, train: Interactions) -> dict[str, Any]:
    """The parameters of a recipe for these events."""
    return choose(RECIPES, name, "recipe")(train)
