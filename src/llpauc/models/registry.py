"""The models by name, and their options.

This module imports neither torch nor the models themselves, so that the command line can list the
models and their options at once. `MODELS[name].load()` imports a model.

To add a model, write a subclass of `llpauc.models.base.Model` and add an entry here, or register it
from your own package:

    MODELS.register("mine", ModelEntry("my_package.my_model:MyModel", MyOptions))
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Ge, Gt, Le

from llpauc.errors import InputError, choose, listing
from llpauc.options import (
    Count,
    Grid,
    LogRange,
    NonNegative,
    Positive,
    Registry,
    check_options,
    import_object,
    options_of,
)

if TYPE_CHECKING:
    from llpauc.models.base import Model

ScoreKind = Literal["dot", "cosine"]
ColdUsers = Literal["mean", "random"]
AgeUnit = Literal["time", "rows", "parts"]


@dataclass(frozen=True)
class EmbeddingOptions:
    """Options of every model with user and item vectors.

    Args:
        dimensions: width of the vectors.
        score: dot product or cosine; by default the one that the loss is meant for.
        temperature: divides the cosine; 0.2 by default where the loss has no temperature of its
            own. A loss that has one takes it instead.
        init: initial vectors: random, or spectral (the leading singular vectors of the user-item
            matrix plus small random values), which needs fewer epochs and a lower learning rate.
        init_scale: standard deviation of the random initial vectors.
        cold_users: vector of a user without training events: mean (the mean user vector, close to
            popularity) or random (the untrained vector, as in the paper).
        blend: models without training whose scores are added, separated by commas, such as
            ease,ials, or none. Their weights and options are chosen on the validation part where
            they are not given, as in ease(weight=0.3,regularization=100).
    """

    dimensions: Annotated[int, Ge(1), Grid(32, 64, 128, 256)] = 64
    score: Annotated[ScoreKind, Grid("dot", "cosine")] = "dot"
    temperature: Annotated[float, Gt(0), LogRange(0.05, 0.5)] = 1.0
    init: Literal["random", "spectral"] = "random"
    init_scale: Positive = 0.01
    cold_users: ColdUsers = "mean"
    blend: str | None = None

    def __post_init__(self) -> None:
        check_options(self)
        parse_blend(self.blend)
        if self.score == "dot" and self.temperature != 1.0:
            raise InputError(
                f"temperature ({self.temperature!r}) divides a cosine, and score is 'dot';"
                " set score='cosine' or leave temperature out"
            )


@dataclass(frozen=True)
class BiasedEmbeddingOptions(EmbeddingOptions):
    """Options of mf and fism.

    Args:
        item_bias: add a learned bias to each item's score. Training starts it at the logarithm of
            the item's popularity, weighted by age where events have a half-life.
    """

    item_bias: bool = False


@dataclass(frozen=True)
class LightGCNOptions(EmbeddingOptions):
    """Options of lightgcn.

    Args:
        layers: graph layers.
        propagation_interval: batches that share one propagation over the graph; 1 is exact, larger
            values are faster and use vectors that are a few steps old.
    """

    layers: Annotated[int, Ge(1), Grid(1, 2, 3)] = 2
    propagation_interval: Count = 1


@dataclass(frozen=True)
class EASEOptions:
    """Options of ease.

    Args:
        regularization: ridge penalty lambda; chosen on the validation part by default.
        neighbours: most similar items that may have a weight in the score of an item; by default
            all in catalogues of up to 10,000 items, else 200.
    """

    regularization: Annotated[float, Gt(0)] | None = None
    neighbours: Annotated[int, Ge(1)] | None = None

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True)
class IALSOptions:
    """Options of ials.

    Args:
        dimensions: width of the vectors.
        unobserved_weight: weight of a pair without an event, relative to one with an event; chosen
            on the validation part by default.
        regularization: ridge penalty lambda; chosen on the validation part by default.
        iterations: times that all users and all items are solved for.
    """

    dimensions: Count = 256
    unobserved_weight: Positive | None = None
    regularization: Positive | None = None
    iterations: Count = 8

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True)
class ItemKNNOptions:
    """Options of itemknn.

    Args:
        neighbours: similar items that each item keeps.
        shrinkage: added to the denominator of the similarity; larger values lower the similarity
            of items with few users.
    """

    neighbours: Annotated[int, Ge(1), Grid(30, 300)] = 100
    shrinkage: NonNegative = 10.0

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True)
class PopularityOptions:
    """Popularity has no options."""


@dataclass(frozen=True)
class RecentPopularityOptions:
    """Options of recent_popularity.

    Args:
        half_life: age at which an event counts half, in the unit of `by`; chosen on the validation
            part by default. Infinity counts all events alike.
        by: unit of the age: time (seconds), rows (events) or parts; by default time where every
            event has a timestamp, else rows.
    """

    half_life: Annotated[float, Gt(0), Le(math.inf)] | None = None
    by: AgeUnit | None = None

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True)
class ModelEntry:
    """What is known about a model before it is imported.

    Args:
        place: "package.module:Class", or the class.
        Options: the dataclass of its options.
        trained: whether it is trained in epochs with a loss.
        blendable: whether `auto` adds it to a trained model.
        summary: a short description for reports.
        title: its name in reports; by default the name in `MODELS`.
    """

    place: str | type[Model]
    Options: type[Any]
    trained: bool = False
    blendable: bool = False
    summary: str = ""
    title: str = ""

    def load(self) -> type[Model]:
        """The model's class."""
        if not isinstance(self.place, str):
            return self.place
        model: type[Model] = import_object(self.place)
        return model

    def make(self, options: Any) -> Model:
        """A model with these options; a `Blend` where they name further models."""
        model = self.load()(options)
        blended = parse_blend(getattr(options, "blend", None))
        if not blended:
            return model
        weights = {name: given.pop("weight", None) for name, given in blended.items()}
        others = {n: MODELS[n].make(MODELS[n].Options(**given)) for n, given in blended.items()}
        blend: Model = import_object("llpauc.models.blend:Blend")(model, others, weights)
        return blend


MODELS: Registry[ModelEntry] = Registry(
    "model",
    {
        "mf": ModelEntry(
            "llpauc.models.mf:MF",
            BiasedEmbeddingOptions,
            trained=True,
            title="Matrix factorization",
        ),
        "lightgcn": ModelEntry(
            "llpauc.models.lightgcn:LightGCN", LightGCNOptions, trained=True, title="LightGCN"
        ),
        "fism": ModelEntry(
            "llpauc.models.fism:FISM", BiasedEmbeddingOptions, trained=True, title="FISM"
        ),
        "popularity": ModelEntry(
            "llpauc.models.popularity:Popularity",
            PopularityOptions,
            summary="the same list for all users: the items with the most users",
            title="Popularity",
        ),
        "recent_popularity": ModelEntry(
            "llpauc.models.popularity:RecentPopularity",
            RecentPopularityOptions,
            blendable=True,
            summary="the same list for all users, with a higher weight for recent events",
            title="Recent popularity",
        ),
        "itemknn": ModelEntry(
            "llpauc.models.itemknn:ItemKNN",
            ItemKNNOptions,
            blendable=True,
            summary="items similar to those of the user",
            title="ItemKNN",
        ),
        "ease": ModelEntry(
            "llpauc.models.ease:EASE",
            EASEOptions,
            blendable=True,
            summary="a linear item-item model in closed form",
            title="EASE",
        ),
        "ials": ModelEntry(
            "llpauc.models.ials:IALS",
            IALSOptions,
            blendable=True,
            summary="matrix factorization of all pairs by alternating least squares",
            title="iALS",
        ),
    },
    aliases={"itemsum": "fism", "recent": "recent_popularity"},
)


def trained_models() -> list[str]:
    """Names of the models that are trained in epochs with a loss."""
    return [name for name, entry in MODELS.items() if entry.trained]


def untrained_models() -> list[str]:
    """Names of the models that are fitted at once, without a loss."""
    return [name for name, entry in MODELS.items() if not entry.trained]


def parse_blend(text: str | None) -> dict[str, dict[str, Any]]:
    """The models that the option `blend` names, with their weights and options where given.

    >>> parse_blend("ease(regularization=100), ials")
    {'ease': {'regularization': 100}, 'ials': {}}
    >>> parse_blend("none")
    {}
    """
    if text is None or text.strip() == "none":
        return {}
    try:
        tree: Any = ast.parse(f"[{text}]", mode="eval").body
        calls: list[Any] = [
            e if isinstance(e, ast.Call) else ast.Call(e, [], []) for e in tree.elts
        ]
        blended = {
            call.func.id: {str(k.arg): _constant(k.value) for k in call.keywords}
            for call in calls
            if not call.args
        }
    except (AttributeError, SyntaxError, ValueError):
        blended, calls = {}, []
    if not blended or len(blended) < len(calls):
        raise InputError(
            f"blend must name different models, such as ease,ials or ease(weight=0.3), got {text!r}"
        )
    weights = [given["weight"] for given in blended.values() if "weight" in given]
    for name, given in blended.items():
        if choose(MODELS, name, "model of blend").trained:
            names = listing(untrained_models())
            raise InputError(
                f"blend cannot contain {name}, which is trained; it can contain: {names}"
            )
        options = options_of(MODELS[name].Options)
        if unknown := given.keys() - options.keys() - {"weight"}:
            raise InputError(f"blend: {name} has no option {listing(sorted(unknown))}")
        MODELS[name].Options(**{k: v for k, v in given.items() if k != "weight"})
    is_number = all(isinstance(w, int | float) and 0 < w <= 1 for w in weights)
    if len(weights) not in (0, len(blended)) or not is_number or sum(weights) > 1 + 1e-6:
        raise InputError(
            f"blend: give a weight above 0 to every model or to none, with a sum of at most 1 (the"
            f" rest is the trained model's), got {text!r}"
        )
    return blended


def _constant(node: Any) -> Any:
    """A number or text; `inf` is a number too, such as the half-life without drift."""
    return math.inf if isinstance(node, ast.Name) and node.id == "inf" else node.value


def blend_text(blended: Mapping[str, Mapping[str, Any]]) -> str | None:
    """The value of the option `blend`, the inverse of `parse_blend`; None for no models."""
    given = {n: ", ".join(f"{k}={v!r}" for k, v in o.items()) for n, o in blended.items()}
    return ", ".join(f"{n}({text})" if text else n for n, text in given.items()) or None
