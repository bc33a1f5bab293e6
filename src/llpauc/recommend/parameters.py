"""One flat set of parameters, sorted to whom they belong."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llpauc.errors import InputError, choose, listing
from llpauc.losses import LOSSES, Loss, make_loss
from llpauc.models import BASELINES
from llpauc.models.embedding import EMBEDDING_MODELS, EmbeddingOptions
from llpauc.storage.environment import toml_text
from llpauc.training import TrainingOptions

MODELS = (*EMBEDDING_MODELS, *BASELINES)

_EMBEDDING = {f.name for f in dataclasses.fields(EmbeddingOptions)}
_FIT = {f.name for f in dataclasses.fields(TrainingOptions)}
_SOFT_COSINE = 0.2  # temperature of a cosine model whose loss has none of its own
_CATCH_ALL = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_SHARES = {"alpha": 0.7, "beta": 0.1}  # the paper's choice for Adressa


@dataclass(frozen=True)
class Plan:
    """What trains an embedding model.

    Args:
        embedding: the model's options.
        fit: the loop's options.
        loss: by name.
        loss_parameters: the loss's own.
    """

    embedding: EmbeddingOptions
    fit: TrainingOptions
    loss: str
    loss_parameters: Mapping[str, Any]

    def make_loss(self) -> Loss:
        return make_loss(self.loss, **self.loss_parameters)


def plan(loss: str, parameters: Mapping[str, Any]) -> Plan:
    """Sort flat parameters; None means not given. What nobody knows is refused.

    `temperature` goes to the loss where it has one of its own (sl, psl, sl_at_k), to the model's
    cosine otherwise; `score` is what the loss is meant for unless given.

    >>> plan("sl", {"temperature": 0.1}).loss_parameters
    {'temperature': 0.1}
    >>> plan("llpauc", {"score": "cosine", "temperature": 0.25}).embedding.temperature
    0.25
    """
    accepts = inspect.signature(choose(LOSSES, loss, "loss")).parameters
    given = {name: value for name, value in parameters.items() if value is not None}
    of_model = {name: given.pop(name) for name in _EMBEDDING & set(given)}
    of_fit = {name: given.pop(name) for name in _FIT & set(given)}
    unknown = [name for name in given if name not in accepts or accepts[name].kind in _CATCH_ALL]
    if unknown:
        own = [name for name in accepts if accepts[name].kind not in _CATCH_ALL]
        raise InputError(
            f"no parameter {listing(unknown)}; the loss {loss!r} has: {listing(own) or 'none'};"
            f" the model: {listing(sorted(_EMBEDDING))}; training: {listing(sorted(_FIT))}"
        )
    of_loss = {**{name: share for name, share in _SHARES.items() if name in accepts}, **given}
    of_model.setdefault("score", LOSSES[loss].score)
    if "temperature" in accepts:
        if "temperature" in of_model:
            of_loss["temperature"] = of_model.pop("temperature")
    elif of_model["score"] == "cosine" and LOSSES[loss].score == "dot":
        of_model.setdefault("temperature", _SOFT_COSINE)
    made = Plan(EmbeddingOptions(**of_model), TrainingOptions(**of_fit), loss, of_loss)
    made.make_loss()  # refuses a value out of range
    return made


def check_baseline(model: str, parameters: Mapping[str, Any]) -> None:
    """Refuse a parameter that the baseline does not have."""
    known = [name for name in inspect.signature(BASELINES[model]).parameters if name != "train"]
    unknown = [name for name in parameters if name not in known]
    if unknown:
        raise InputError(
            f"{model} has no parameter {listing(unknown)}; it has: {listing(known) or 'none'}"
        )


_TRAIN_OPTIONS = ("alpha", "beta", "temperature")  # of the loss; options of `llpauc train` too
_NOT_TRAIN_OPTIONS = ("init_scale",)  # of the model; no options of `llpauc train`
_INFERRED = ("by",)  # inferred from the data


def config_toml(params: Mapping[str, Any], plan: Mapping[str, Any] | None) -> str:
    """The text of a file for `llpauc train DATA --config` with every setting, also the defaults.

    Args:
        params: parameters of the recommender.
        plan: a `Plan` as a dict; None for a model without training.
    """
    config = {name: params[name] for name in ("model", "hold_out", "refit") if name in params}
    loss_options: dict[str, Any] = {}
    if plan is None:
        given = {k: v for k, v in params.items() if v is not None and k not in ("loss", *config)}
        config |= _defaults(BASELINES[params["model"]]) | given
    else:
        of_loss = {**_defaults(LOSSES[plan["loss"]]), **plan["loss_parameters"]}
        config |= {"loss": plan["loss"], **plan["embedding"], **plan["fit"]}
        # `temperature` is the loss's where the loss has one.
        config |= {name: of_loss.pop(name) for name in _TRAIN_OPTIONS if name in of_loss}
        loss_options = {name: config.pop(name) for name in _NOT_TRAIN_OPTIONS} | of_loss
    options = {name: value for name, value in config.items() if name not in _INFERRED}
    return toml_text(
        "llpauc train DATA --config config.toml trains this model again", options, loss_options
    )


def _defaults(made: Any) -> dict[str, Any]:
    """Defaults of the parameters that are numbers or text."""
    parameters = inspect.signature(made).parameters.values()
    return {p.name: p.default for p in parameters if isinstance(p.default, (int, float, str))}
