"""One flat set of parameters, sorted into options of the model, the training and the loss."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from llpauc.data.interactions import Interactions
from llpauc.errors import InputError, choose, listing
from llpauc.losses import LOSSES, Loss, make_loss
from llpauc.models.registry import MODELS
from llpauc.options import options_of
from llpauc.storage.environment import toml_text
from llpauc.training import SAMPLERS, TrainingOptions
from llpauc.training.trainable import Trainable

_COSINE_TEMPERATURE = 0.2  # of a cosine model whose loss has no temperature
_DEFAULT_FRACTIONS = {"alpha": 0.7, "beta": 0.1}  # the paper's choice for Adressa

# Names in run folders and config files of earlier versions
_FORMER_OPTIONS = {"start": "init", "cold": "cold_users", "share": "propagation_interval"}
_FORMER_VALUES: dict[str, Mapping[str, str]] = {
    "model": MODELS.aliases,
    "sampler": SAMPLERS.aliases,
    "solver": {"rows": "per-user"},
}


@dataclass(frozen=True)
class Plan:
    """A model with all its settings.

    Args:
        model: name of the model.
        model_options: an instance of its `Options`.
        training: how it is trained; None for a model without training, as `loss`.
        loss: name of the loss.
        loss_parameters: parameters of the loss.
    """

    model: str
    model_options: Any
    training: TrainingOptions | None = None
    loss: str | None = None
    loss_parameters: Mapping[str, Any] = field(default_factory=dict)

    def make_loss(self) -> Loss:
        """The loss, with fresh variables."""
        assert self.loss is not None, f"{self.model} has no loss"
        return make_loss(self.loss, **self.loss_parameters)

    def training_options(self, **changes: Any) -> TrainingOptions:
        """The training options with those `changes` that are not None."""
        assert self.training is not None, f"{self.model} is not trained"
        given = {name: value for name, value in changes.items() if value is not None}
        return dataclasses.replace(self.training, **given)

    def new_network(self, train: Interactions) -> Trainable:
        """The parameters with their initial values, for `llpauc.training.fit`."""
        model = MODELS[self.model].load()(self.model_options)
        return model.new_network(train, self.training_options())

    def parameters(self) -> dict[str, Any]:
        """All parameters in one flat dict, with defaults."""
        training = {} if self.training is None else dataclasses.asdict(self.training)
        return dataclasses.asdict(self.model_options) | training | dict(self.loss_parameters)

    def settings(self) -> dict[str, Any]:
        """Every setting that affects the result, by name."""
        training = {} if self.training is None else dataclasses.asdict(self.training)
        of_loss = {f"loss.{name}": value for name, value in self.loss_parameters.items()}
        options = dataclasses.asdict(self.model_options)
        return {"model": self.model, **options, **training, "loss": self.loss, **of_loss}


def plan(model: str, loss: str, parameters: Mapping[str, Any]) -> Plan:
    """Sort flat parameters; None means not given. Unknown parameters are refused.

    `temperature` belongs to the loss where it has one (sl, psl, sl_at_k), otherwise to the model's
    cosine. The default of `score` is the one that the loss is meant for.

    >>> plan("mf", "sl", {"temperature": 0.1}).loss_parameters
    {'temperature': 0.1}
    >>> plan("mf", "llpauc", {"score": "cosine", "temperature": 0.25}).model_options.temperature
    0.25
    >>> plan("ease", "llpauc", {"regularization": 50.0})
    Plan(model='ease', model_options=EASEOptions(regularization=50.0, neighbours=None), \
training=None, loss=None, loss_parameters={})
    """
    entry = MODELS[model]
    model_names = options_of(entry.Options)
    given = {name: value for name, value in parameters.items() if value is not None}
    of_model = {name: given.pop(name) for name in model_names if name in given}
    if not entry.trained:
        if given:
            known = listing(model_names) or "none"
            raise InputError(f"{model} has no parameter {listing(given)}; it has: {known}")
        return Plan(model, entry.Options(**of_model))

    loss_names = options_of(choose(LOSSES, loss, "loss"))
    training_names = options_of(TrainingOptions)
    of_training = {name: given.pop(name) for name in training_names if name in given}
    unknown = [name for name in given if name not in loss_names]
    if unknown:
        raise InputError(
            f"no parameter {listing(unknown)}; the loss {loss} has:"
            f" {listing(loss_names) or 'none'}; the model {model}: {listing(sorted(model_names))};"
            f" training: {listing(sorted(training_names))}"
        )
    of_loss = {name: value for name, value in _DEFAULT_FRACTIONS.items() if name in loss_names}
    of_loss |= given
    of_model.setdefault("score", LOSSES[loss].score)
    if "temperature" in loss_names:
        if "temperature" in of_model:
            of_loss["temperature"] = of_model.pop("temperature")
    elif of_model["score"] == "cosine" and LOSSES[loss].score == "dot":
        of_model.setdefault("temperature", _COSINE_TEMPERATURE)
    training = TrainingOptions(**of_training)
    made = Plan(model, entry.Options(**of_model), training, loss, of_loss)
    made.make_loss()  # refuses values out of range
    return made


def current_names(params: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters of a run or config of any version, in the names of this version.

    Options of other models, which earlier versions accepted and ignored, are left out.

    >>> current_names({"model": "itemsum", "start": "spectral", "layers": 2})
    {'model': 'fism', 'init': 'spectral'}
    """
    renamed = {}
    for former, value in params.items():
        name = _FORMER_OPTIONS.get(former, former)
        renamed[name] = value
        if isinstance(value, str):
            renamed[name] = _FORMER_VALUES.get(name, {}).get(value, value)
    model = renamed.get("model", "mf")
    if model not in MODELS:
        return renamed
    foreign = foreign_options(model) if MODELS[model].trained else {"loss"}
    return {k: v for k, v in renamed.items() if k not in foreign or (k == "loss" and v is None)}


def foreign_options(model: str) -> set[str]:
    """Options that other trained models have, and this one has not."""
    options = {
        name for entry in MODELS.values() if entry.trained for name in options_of(entry.Options)
    }
    return options - set(options_of(MODELS[model].Options))


_TRAIN_OPTIONS = ("alpha", "beta", "temperature")  # of the loss; options of `llpauc train` too
_NOT_TRAIN_OPTIONS = ("init_scale",)  # of the model; no options of `llpauc train`
_INFERRED = ("by",)  # inferred from the data


def config_toml(params: Mapping[str, Any], reading: Mapping[str, Any] | None = None) -> str:
    """The text of a file for `llpauc train DATA --config` with every setting, also the defaults.

    Args:
        params: parameters of a `Recommender`.
        reading: options of `llpauc train` with which the data were read.
    """
    config = {
        name: params[name] for name in ("model", "hold_out", "how", "refit") if name in params
    }
    flat = {k: v for k, v in params.items() if k not in ("loss", "recipe", *config)}
    made = plan(params["model"], params.get("loss") or "llpauc", flat)
    config |= dataclasses.asdict(made.model_options)
    loss_options: dict[str, Any] = {}
    if made.training is not None and made.loss is not None:
        config |= {"recipe": "none", "loss": made.loss, **dataclasses.asdict(made.training)}
        defaults = {
            name: option.default
            for name, option in options_of(LOSSES[made.loss]).items()
            if isinstance(option.default, (int, float, str))
        }
        of_loss = {**defaults, **made.loss_parameters}
        config |= {name: of_loss.pop(name) for name in _TRAIN_OPTIONS if name in of_loss}
        loss_options = {name: config.pop(name) for name in _NOT_TRAIN_OPTIONS} | of_loss
    options = {name: value for name, value in config.items() if name not in _INFERRED}
    options |= reading or {}
    return toml_text(
        "llpauc train DATA --config config.toml trains this model again", options, loss_options
    )
