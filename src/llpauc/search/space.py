"""The search space of `tune`: a dict from option name to the values to try.

A tuple lists the values; a single one is fixed. A `LogRange` is any number between two bounds,
drawn uniformly by its logarithm. The values are those of the `Grid` and `LogRange` annotations in
the options of the models, of training and of the losses. An option that has no effect in a trial,
such as a temperature without a cosine, is not part of that trial: see `applies`.
"""

from __future__ import annotations

import dataclasses
import itertools
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from llpauc.data.interactions import Interactions, Split
from llpauc.errors import InputError, choose, listing
from llpauc.losses import LOSSES, Suggestion, suggest_alpha_beta
from llpauc.metrics import parse_metric
from llpauc.models.registry import MODELS, trained_models
from llpauc.options import Grid, LogRange, Option, options_of
from llpauc.recommend.parameters import plan
from llpauc.recommend.recipes import PAPER_GRID, with_loss
from llpauc.training.options import SAMPLERS, TrainingOptions

Values = LogRange | tuple[Any, ...]
Space = dict[str, Values]
Point = dict[str, Any]

GRIDS: dict[str, Space] = {"paper": dict(PAPER_GRID)}

_MOST_ITEMS_SCORED = 5000  # a larger catalogue is never scored as a whole at every step
_WIDENING = 3.0  # the ranges of alpha and beta exceed their starting points by this factor
_FIXED = ("seed", "device", "valid_metric", "valid_every", "epochs", "patience")  # not searched
_DECIDED_FIRST = ("model", "loss", "score", "sampler")  # other options depend on these


def _model_options(model: str) -> Mapping[str, Option]:
    return options_of(MODELS[model].Options)


def _training_options() -> Mapping[str, Option]:
    options = dict(options_of(TrainingOptions))
    negatives = options.pop("negatives")  # last: whether it applies depends on the sampler
    return {**options, "negatives": negatives}


def _loss_options(loss: str) -> Mapping[str, Option]:
    return options_of(LOSSES[loss])


def check_names(losses: Sequence[str], models: Sequence[str]) -> None:
    """Raise `InputError` for an unknown loss and for a model that is not trained."""
    for loss in losses:
        choose(LOSSES, loss, "loss")
    for model in models:
        if model not in MODELS or not MODELS[model].trained:
            raise InputError(
                f"the model {model!r} is not trained and cannot be tuned; choose of:"
                f" {listing(trained_models())} (llpauc evaluate measures the others)"
            )


# --- spaces ---------------------------------------------------------------------------------------


def plan_space(
    split: Split,
    losses: Sequence[str],
    models: Sequence[str],
    metric: str,
    recipe: Mapping[str, Any],
    space_file: str | None = None,
) -> tuple[Space, dict[str, Point]]:
    """The space of a search, and its starting points.

    `recipe` is made for these data before a random part is held out of them, which would hide how
    interests change with time.
    """
    check_names(losses, models)
    k = parse_metric(metric).k or 20
    space = default_space(split.train, losses, models, k)
    space = widen(space, recipe_point(recipe, losses, models))
    space = read_space(space_file, space)
    return space, starting_points(space, suggest_alpha_beta(split.train, k), recipe)


def plan_grid(
    name: str, losses: Sequence[str], models: Sequence[str], space_file: str | None = None
) -> tuple[Space, dict[str, Point]]:
    """The space of a named grid, and all of its points; other options keep their defaults."""
    check_names(losses, models)
    values = choose(GRIDS, name, "grid")
    for loss in losses:
        missing = [option for option in values if option not in _loss_options(loss)]
        if missing:
            raise InputError(
                f"the grid {name!r} needs {listing(values)}, and the loss {loss!r} has no"
                f" {listing(missing)}; leave --grid out"
            )
    space = {"model": tuple(models), "loss": tuple(losses), **values}
    space = read_space(space_file, space)
    return space, grid_points(space)


def default_space(
    train: Interactions, losses: Sequence[str], models: Sequence[str], k: int = 20
) -> Space:
    """What is searched by default, for lists of k items."""
    space: Space = {"model": tuple(models), "loss": tuple(losses)}
    ranges = _alpha_beta_ranges(train, k)
    common = set.intersection(*(set(_model_options(model)) for model in trained_models()))
    of_models = {name: o for model in models for name, o in _model_options(model).items()}
    groups = [
        {name: option for name, option in of_models.items() if name in common},
        _training_options(),
        {name: option for name, option in of_models.items() if name not in common},
        *map(_loss_options, losses),
    ]
    for name, option in itertools.chain.from_iterable(group.items() for group in groups):
        search = ranges.get(name, option.search)
        if search is not None and name not in space:
            space[name] = search.values if isinstance(search, Grid) else search
    space["sampler"] = tuple(
        name
        for name in _choices(space, "sampler")
        if SAMPLERS[name].items_scored(1, 1, train.n_items) <= _MOST_ITEMS_SCORED
    )
    return space


def _alpha_beta_ranges(train: Interactions, k: int) -> dict[str, LogRange]:
    """alpha and beta: from a third of the smallest starting point to three times the largest."""
    suggested, default = suggest_alpha_beta(train, k), plan("mf", "llpauc", {}).loss_parameters
    starts = {
        "alpha": (default["alpha"], suggested.alpha),
        "beta": (default["beta"], suggested.beta, suggested.beta_measured),
    }
    one_item = 1 / train.n_items
    return {
        name: LogRange(max(min(values) / _WIDENING, one_item), min(max(values) * _WIDENING, 1.0))
        for name, values in starts.items()
    }


def widen(space: Space, point: Point) -> Space:
    """The space, extended so that it contains the point.

    >>> widen({"lr": LogRange(0.1, 0.2), "negatives": (30,)}, {"lr": 0.4, "negatives": 100})
    {'lr': LogRange(low=0.1, high=0.4), 'negatives': (30, 100)}
    """
    wider = dict(space)
    for name, value in point.items():
        values = space.get(name)
        if values is None:
            values = (_default(name, {"model": point["model"], "loss": point["loss"]}),)
        if isinstance(values, LogRange):
            wider[name] = LogRange(min(values.low, value), max(values.high, value))
        else:
            wider[name] = values if value in values else (*values, value)
    return wider


def read_space(path: str | Path | None, space: Space) -> Space:
    """The space with the changes of a TOML file, if there is one; its values are checked.

    name = 64                             fixed
    name = [32, 64]                       choices
    name = { low = 0.001, high = 0.01 }   a range
    """
    changed = dict(space)
    try:
        given = {} if path is None else tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"--space: {path}: cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"--space: {path}: is not valid TOML: {error}") from None
    for name, values in given.items():
        if name in ("model", "loss", *_FIXED):
            raise InputError(
                f"--space: {path}: {name} is an option of the command and is not searched"
            )
        try:
            changed[name] = _parse_values(values)
        except InputError as error:
            raise InputError(f"--space: {path}: {name}: {error}") from None
    check_space(changed)
    return changed


def _parse_values(given: Any) -> Values:
    if isinstance(given, dict):
        if set(given) != {"low", "high"}:
            raise InputError(f"a range has low and high, got: {listing(given) or 'nothing'}")
        if not all(type(number) in (int, float) for number in given.values()):
            raise InputError(f"low and high must be numbers, got {list(given.values())}")
        return LogRange(float(given["low"]), float(given["high"]))
    values = tuple(given) if isinstance(given, list) else (given,)
    if not values or not all(isinstance(value, (bool, int, float, str)) for value in values):
        raise InputError(f"expected numbers or names, got {given!r}")
    return values


def check_space(space: Space) -> None:
    """Raise `InputError` for an unknown option and for a value out of its option's range."""
    losses, models = _choices(space, "loss"), _choices(space, "model")
    for loss, model in itertools.product(losses, models):
        start = default_point(space, model=model, loss=loss)
        plan(model, loss, without_names(start))
        for name, values in space.items():
            if name not in start:
                continue
            for value in (values.low, values.high) if isinstance(values, LogRange) else values:
                point = {**start, name: value}
                active = {n: v for n, v in point.items() if n == name or applies(n, point)}
                plan(active["model"], active["loss"], without_names(active))
    known = set(_training_options()).union(
        *map(_model_options, trained_models()), *map(_loss_options, losses)
    )
    unknown = [name for name in space if name not in known | {"model", "loss"}]
    if unknown:
        raise InputError(
            f"there is no option {listing(unknown)} to search;"
            f" there are: {listing(sorted(known - set(_FIXED)))}"
        )


def _choices(space: Space, name: str) -> tuple[Any, ...]:
    values = space[name]
    assert isinstance(values, tuple)
    return values


def as_json(space: Space) -> dict[str, Any]:
    """Each option as {"low", "high"} or as a list."""
    return {
        name: dataclasses.asdict(values) if isinstance(values, LogRange) else list(values)
        for name, values in space.items()
    }


# --- points ---------------------------------------------------------------------------------------


def applies(name: str, chosen: Mapping[str, Any]) -> bool:
    """Whether an option has an effect together with those chosen already."""
    loss = chosen.get("loss")
    if loss is None or name in ("model", "loss"):
        return True
    of_loss = _loss_options(loss)
    loss_score = LOSSES[loss].score
    if name == "score":
        return loss_score == "dot"  # losses of cosines are trained and ranked by cosines
    if name == "temperature":
        return name in of_loss or (loss_score == "dot" and chosen.get("score") == "cosine")
    if name == "negatives":
        sampler = chosen.get("sampler")
        return sampler is None or SAMPLERS[sampler].uses_negatives
    return name in of_loss or name in _training_options() or name in _model_options(chosen["model"])


def without_names(point: Mapping[str, Any]) -> Point:
    """A point without its model and loss."""
    return {name: value for name, value in point.items() if name not in ("model", "loss")}


def suggest(trial: Any, space: Space) -> Point:
    """The values of an Optuna trial, for every option that applies."""
    point: Point = {}
    for name in _in_order(space):
        if applies(name, point):
            values = space[name]
            if isinstance(values, LogRange):
                point[name] = trial.suggest_float(name, values.low, values.high, log=True)
            else:
                point[name] = trial.suggest_categorical(name, list(values))
    return point


def _in_order(space: Space) -> list[str]:
    """Option names; those that others depend on come first."""
    first = [name for name in _DECIDED_FIRST if name in space]
    return first + [name for name in space if name not in first]


def default_point(space: Space, **given: Any) -> Point:
    """The point of the space that is closest to the defaults, with `given` in place of some."""
    point: Point = {}
    for name in _in_order(space):
        if applies(name, point):
            target = given[name] if name in given else _default(name, point)
            point[name] = _closest(space[name], target)
    return point


def _default(name: str, point: Point) -> Any:
    if "loss" not in point:
        return None
    planned = plan(point["model"], point["loss"], {"score": point.get("score")})
    of_loss = _loss_options(point["loss"])
    if name in planned.loss_parameters:
        return planned.loss_parameters[name]
    if name in of_loss:
        return of_loss[name].default
    return planned.parameters().get(name)


def _closest(values: Values, target: Any) -> Any:
    if isinstance(values, LogRange):
        number = values.low if target is None else float(target)
        return min(max(number, values.low), values.high)
    if target in values:
        return target
    numbers = [v for v in values if isinstance(v, (int, float)) and not isinstance(v, bool)]
    if isinstance(target, (int, float)) and len(numbers) == len(values):
        return min(numbers, key=lambda value: abs(value - target))
    return values[0]


def recipe_point(recipe: Mapping[str, Any], losses: Sequence[str], models: Sequence[str]) -> Point:
    """The searched options of a recipe, with a loss and a model of those to choose from."""
    point = dict(recipe) if recipe["loss"] in losses else with_loss(recipe, losses[0])
    if point["model"] not in models:
        point["model"] = models[0]
    unused = (*_FIXED, "blend")  # a trial has the value of the main model only
    return {n: v for n, v in point.items() if n not in unused and applies(n, point)}


def starting_points(
    space: Space, suggestion: Suggestion, recipe: Mapping[str, Any]
) -> dict[str, Point]:
    """The points that are tried before the sampler draws any, by name.

    The defaults; the recipe for such data, or the closest point to it in the space; alpha and beta
    of `suggest_alpha_beta`, with the dot product and with the cosine; then the defaults of each
    further loss and model.
    """
    losses, models = _choices(space, "loss"), _choices(space, "model")
    first = {"model": models[0], "loss": losses[0]}
    named = {"defaults": default_point(space, **first)}
    searched = recipe_point(recipe, losses, models)
    closest = default_point(space, **searched)
    exact = {**searched, "model": recipe["model"], "loss": recipe["loss"]}.items()
    named["recipe" if exact <= closest.items() else "near the recipe"] = closest
    suggested = {**first, "alpha": suggestion.alpha, "beta": suggestion.beta_measured}
    if "beta" in named["defaults"]:
        named["suggested alpha and beta"] = default_point(space, **suggested)
    if "score" in named["defaults"]:
        named["suggested, cosine"] = default_point(space, **suggested, score="cosine")
    for loss in losses[1:]:
        named[f"defaults of {loss}"] = default_point(space, model=models[0], loss=loss)
    for model in models[1:]:
        named[f"defaults of {model}"] = default_point(space, model=model, loss=losses[0])
    distinct = {tuple(point.items()): name for name, point in reversed(named.items())}
    return {name: point for name, point in named.items() if name in distinct.values()}


def grid_points(space: Space) -> dict[str, Point]:
    """Every distinct point of a space without ranges."""
    ranges = [name for name, values in space.items() if isinstance(values, LogRange)]
    if ranges:
        raise InputError(f"a grid needs lists of values, not a range, for {listing(ranges)}")
    names = _in_order(space)
    product = itertools.product(*(_choices(space, name) for name in names))
    points = (default_point(space, **dict(zip(names, values, strict=True))) for values in product)
    distinct = dict.fromkeys(tuple(point.items()) for point in points)
    return {f"cell {index}": dict(items) for index, items in enumerate(distinct)}
