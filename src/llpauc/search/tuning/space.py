"""What a study may try: a plain dict from a parameter's name to its values.

A tuple is a list of choices (one alone: fixed); a `Range` is any number between two, drawn by its
logarithm. A parameter that means nothing beside the others (a temperature without a cosine, the
number of negatives where all items are) is left out of the trial: see `applies`.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llpauc.data.interactions import Interactions
from llpauc.errors import InputError, choose, listing
from llpauc.losses import LOSSES, Suggestion, suggest_alpha_beta
from llpauc.models.registry import MODELS, trained_models
from llpauc.options import options_of
from llpauc.recommend.parameters import foreign_options, plan
from llpauc.recommend.recipes import PAPER_GRID, with_loss
from llpauc.training import TrainingOptions


@dataclass(frozen=True)
class Range:
    """Any number from `low` to `high`, drawn by its logarithm; 0 < low <= high."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.high < float("inf"):
            raise InputError(f"a range needs 0 < low <= high, got {self.low!r} to {self.high!r}")


Values = Range | tuple[Any, ...]
Space = dict[str, Values]
Point = dict[str, Any]

OF_ALL: Space = {
    "dimensions": (32, 64, 128, 256),
    "score": ("dot", "cosine"),
    "temperature": Range(0.05, 0.5),
    "batch_size": (128, 1024),
    "lr": Range(3e-4, 3e-2),
    "weight_decay": (0.0, 1e-6, 1e-5, 1e-4, 1e-3),
    "sampler": ("uniform", "popularity", "shared", "all-items"),
    "negatives": (30, 100, 300, 1000),
}
OF_LOSSES: Space = {  # alpha and beta come from the data
    "margin": (0.4, 0.6, 0.8, 0.9),
    "neg_weight": (1.0, 10.0, 100.0, 300.0),
    "hardest": (2, 5, 20),
    "rho": Range(0.1, 10.0),
    "max_dropped": (0.05, 0.1, 0.2),
    "power": (0.1, 0.2, 0.5),
    "pos_temperature": Range(0.05, 0.5),
    "neg_temperature": Range(0.05, 0.5),
    "surrogate": ("tanh", "atan", "relu"),
    "weight_temperature": Range(0.3, 3.0),
}
OF_LIGHTGCN: Space = {"layers": (1, 2, 3)}

GRIDS: dict[str, Space] = {"paper": dict(PAPER_GRID)}

_ALL_ITEMS_UP_TO = 5000  # items; beyond, scoring all of them at every step is too slow to search
_AROUND = 3.0  # a range of shares goes by this factor beyond its starting points
_NO_NEGATIVES = ("all-items", "in-batch")  # samplers that draw none
_GENERAL = {
    name
    for definition in (*(MODELS[model].Options for model in trained_models()), TrainingOptions)
    for name in options_of(definition)
}
_OF_THE_STUDY = ("seed", "device", "valid_metric", "valid_every", "epochs", "patience")


def usual_space(
    train: Interactions, losses: Sequence[str], models: Sequence[str], k: int = 20
) -> Space:
    """What is searched unless somebody says otherwise.

    Args:
        train: alpha and beta are searched around what `suggest_alpha_beta` says of it.
        losses, models: to choose from.
        k: length of the lists that matter.
    """
    space: Space = {"model": tuple(models), "loss": tuple(losses), **OF_ALL}
    if train.n_items > _ALL_ITEMS_UP_TO:
        space["sampler"] = tuple(name for name in OF_ALL["sampler"] if name != "all-items")  # type: ignore[union-attr]
    if "lightgcn" in models:
        space |= OF_LIGHTGCN
    own = {**_shares(train, k), **OF_LOSSES}
    return space | {n: own[n] for n in own if any(n in _parameters(loss) for loss in losses)}


def _shares(train: Interactions, k: int) -> Space:
    """alpha and beta: from a third of the least starting point to three times the greatest."""
    found, usual = suggest_alpha_beta(train, k), plan("mf", "llpauc", {}).loss_parameters
    starts = {
        "alpha": (usual["alpha"], found.alpha),
        "beta": (usual["beta"], found.beta, found.beta_measured),
    }
    one_item = 1 / train.n_items
    return {
        name: Range(max(min(values) / _AROUND, one_item), min(max(values) * _AROUND, 1.0))
        for name, values in starts.items()
    }


def recipe_point(recipe: Mapping[str, Any], losses: Sequence[str], models: Sequence[str]) -> Point:
    """What is searched of a recipe, with a loss and a model of those to choose from."""
    found = dict(recipe) if recipe["loss"] in losses else with_loss(recipe, losses[0])
    if found["model"] not in models:
        found["model"] = models[0]
    return {n: v for n, v in found.items() if n not in _OF_THE_STUDY and applies(n, found)}


def holding(space: Space, point: Point) -> Space:
    """The space, widened where it does not hold the point.

    >>> holding({"lr": Range(0.1, 0.2), "negatives": (30,)}, {"lr": 0.4, "negatives": 100})
    {'lr': Range(low=0.1, high=0.4), 'negatives': (30, 100)}
    """
    wider = dict(space)
    for name, value in point.items():
        held = space.get(name)
        if held is None:
            held = (_default(name, {"model": point["model"], "loss": point["loss"]}),)
        if isinstance(held, Range):
            wider[name] = Range(min(held.low, value), max(held.high, value))
        else:
            wider[name] = held if value in held else (*held, value)
    return wider


def check_names(losses: Sequence[str], models: Sequence[str]) -> None:
    """Refuse a loss there is not, and a model that is not trained."""
    for loss in losses:
        choose(LOSSES, loss, "loss")
    for model in models:
        if model not in MODELS or not MODELS[model].trained:
            raise InputError(
                f"no model {model!r} that can be tuned; choose of: {listing(trained_models())}"
                " (llpauc evaluate measures those without training)"
            )


def grid_space(name: str, losses: Sequence[str], models: Sequence[str]) -> Space:
    """A grid by name, for each loss and model; all else stays at its defaults."""
    values = choose(GRIDS, name, "grid")
    for loss in losses:
        missing = [param for param in values if param not in _parameters(loss)]
        if missing:
            raise InputError(
                f"the grid {name!r} is one of {listing(values)}, and the loss {loss!r} has no"
                f" {listing(missing)}; leave --grid out"
            )
    return {"model": tuple(models), "loss": tuple(losses), **values}


def read_space(path: str | Path, space: Space) -> Space:
    """The space with what a TOML file says of some parameters.

    name = 64                             fixed
    name = [32, 64]                       choices
    name = { low = 0.001, high = 0.01 }   a range
    """
    try:
        given = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"--space: {path}: cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"--space: {path}: is no TOML: {error}") from None
    changed = dict(space)
    for name, values in given.items():
        if name in ("model", "loss", *_OF_THE_STUDY):
            raise InputError(f"--space: {path}: {name} is an option of its own, and not searched")
        try:
            changed[name] = _values(values)
        except InputError as error:
            raise InputError(f"--space: {path}: {name}: {error}") from None
    return changed


def _values(said: Any) -> Values:
    if isinstance(said, dict):
        if set(said) != {"low", "high"}:
            raise InputError(f"a range has low and high, got: {listing(said) or 'nothing'}")
        numbers = list(said.values())
        if not all(type(number) in (int, float) for number in numbers):
            raise InputError(f"low and high are numbers, got {numbers}")
        return Range(float(said["low"]), float(said["high"]))
    values = tuple(said) if isinstance(said, list) else (said,)
    if not values or not all(isinstance(value, (bool, int, float, str)) for value in values):
        raise InputError(f"numbers or names are wanted, got {said!r}")
    return values


def check_space(space: Space) -> None:
    """Refuse a parameter nobody has, and a value that is out of its parameter's range."""
    for loss, model in itertools.product(_choices(space, "loss"), _choices(space, "model")):
        start = usual_point(space, model=model, loss=loss)
        plan(model, loss, settings_of(start))
        for name, values in space.items():
            if name in start:
                ends = (values.low, values.high) if isinstance(values, Range) else values
                for value in ends:
                    point = {**start, name: value}
                    kept = {n: v for n, v in point.items() if n == name or applies(n, point)}
                    plan(kept["model"], kept["loss"], settings_of(kept))
    known = _GENERAL.union(*(_parameters(loss) for loss in _choices(space, "loss")))
    unknown = [name for name in space if name not in known | {"model", "loss"}]
    if unknown:
        raise InputError(
            f"nothing to search has a parameter {listing(unknown)};"
            f" there are: {listing(sorted(known - set(_OF_THE_STUDY)))}"
        )


def _choices(space: Space, name: str) -> tuple[Any, ...]:
    values = space[name]
    assert isinstance(values, tuple)
    return values


def _parameters(loss: str) -> dict[str, inspect.Parameter]:
    given = inspect.signature(LOSSES[loss]).parameters
    catch_all = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {name: spec for name, spec in given.items() if spec.kind not in catch_all}


def applies(name: str, chosen: Mapping[str, Any]) -> bool:
    """Whether a parameter means something beside those chosen already."""
    loss = chosen.get("loss")
    if loss is None or name in ("model", "loss"):
        return True
    meant_for = LOSSES[loss].score
    if name == "score":
        return meant_for == "dot"  # losses of cosines are trained and ranked by cosines
    if name == "temperature":
        soft = meant_for == "dot" and chosen.get("score", meant_for) == "cosine"
        return soft or name in _parameters(loss)
    if name == "negatives":
        return chosen.get("sampler") not in _NO_NEGATIVES
    if name in foreign_options(chosen["model"]):
        return False
    return name in _GENERAL or name in _parameters(loss)


def settings_of(point: Mapping[str, Any]) -> Point:
    """A point without its model and loss: what `plan` takes."""
    return {name: value for name, value in point.items() if name not in ("model", "loss")}


def suggest(trial: Any, space: Space) -> Point:
    """Ask an Optuna trial for every parameter that applies."""
    point: Point = {}
    for name in _in_order(space):
        if applies(name, point):
            values = space[name]
            if isinstance(values, Range):
                point[name] = trial.suggest_float(name, values.low, values.high, log=True)
            else:
                point[name] = trial.suggest_categorical(name, list(values))
    return point


def _in_order(space: Space) -> list[str]:
    """What others depend on comes first."""
    first = [name for name in ("model", "loss", "score", "sampler") if name in space]
    return first + [name for name in space if name not in first]


def usual_point(space: Space, **given: Any) -> Point:
    """The library's defaults, with `given` instead of some; the nearest where the space does not
    hold a value."""
    point: Point = {}
    for name in _in_order(space):
        if applies(name, point):
            point[name] = _nearest(space[name], given.get(name, _default(name, point)))
    return point


def _default(name: str, point: Point) -> Any:
    if "loss" not in point:
        return None
    own = _parameters(point["loss"])
    made = plan(point["model"], point["loss"], {"score": point.get("score")})
    if name in made.loss_parameters:
        return made.loss_parameters[name]
    if name in own:
        return own[name].default
    return made.parameters().get(name)


def _nearest(values: Values, wanted: Any) -> Any:
    if isinstance(values, Range):
        number = values.low if wanted is None else float(wanted)
        return min(max(number, values.low), values.high)
    if wanted in values:
        return wanted
    numbers = [v for v in values if isinstance(v, (int, float)) and not isinstance(v, bool)]
    if isinstance(wanted, (int, float)) and len(numbers) == len(values):
        return min(numbers, key=lambda value: abs(value - wanted))
    return values[0]


def starting_points(
    space: Space, suggestion: Suggestion, recipe: Mapping[str, Any]
) -> dict[str, Point]:
    """What is tried before the sampler has a say, by what it is.

    The defaults; the recipe for such data, or what the space holds nearest to it; alpha and beta as
    `suggest_alpha_beta` has them, with the dot product and the cosine; then the defaults of each
    further loss and model.
    """
    losses, models = _choices(space, "loss"), _choices(space, "model")
    first = {"model": models[0], "loss": losses[0]}
    named = {"defaults": usual_point(space, **first)}
    own = recipe_point(recipe, losses, models)
    near = usual_point(space, **own)
    wanted = {**own, "model": recipe["model"], "loss": recipe["loss"]}
    named["recipe" if wanted.items() <= near.items() else "near the recipe"] = near
    shares = {"alpha": suggestion.alpha, "beta": suggestion.beta_measured}
    if "beta" in named["defaults"]:
        named["suggested alpha and beta"] = usual_point(space, **first, **shares)
    if "score" in named["defaults"]:
        cosine = {**first, **shares, "score": "cosine"}
        named["suggested, by cosine"] = usual_point(space, **cosine)
    for loss in losses[1:]:
        named[f"defaults of {loss}"] = usual_point(space, model=models[0], loss=loss)
    for model in models[1:]:
        named[f"defaults of {model}"] = usual_point(space, model=model, loss=losses[0])
    points: dict[str, Point] = {}
    for name, point in named.items():
        if point not in points.values():
            points[name] = point
    return points


def grid_points(space: Space) -> dict[str, Point]:
    """Every cell of a space of choices, once."""
    endless = [name for name, values in space.items() if isinstance(values, Range)]
    if endless:
        raise InputError(f"a grid wants lists of values, not a range, for {listing(endless)}")
    cells = list(dict.fromkeys(tuple(cell.items()) for cell in _cells(space)))
    return {f"cell {place}": dict(cell) for place, cell in enumerate(cells)}


def _cells(space: Space) -> Iterator[Point]:
    names = _in_order(space)
    for values in itertools.product(*(_choices(space, name) for name in names)):
        point: Point = {}
        for name, value in zip(names, values, strict=True):
            if applies(name, point):
                point[name] = value
        yield point


def as_plain(space: Space) -> dict[str, Any]:
    """For JSON: {"low", "high"} or a list."""
    return {
        name: dataclasses.asdict(values) if isinstance(values, Range) else list(values)
        for name, values in space.items()
    }
