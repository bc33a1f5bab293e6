"""Options of the commands that train a model, generated from the definitions in the library."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, make_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from llpauc.cli.system import CHECKPOINT
from llpauc.errors import InputError
from llpauc.models.registry import MODELS, ModelEntry
from llpauc.options import Choices, Fraction, Option, options_of
from llpauc.training.options import TrainingOptions

if TYPE_CHECKING:
    from llpauc.cli.data_options import TableOptions
    from llpauc.training import CheckpointSettings


# The names of `llpauc.recommend.recipes.RECIPES`, which imports torch
RecipeName = Literal["auto", "single", "settled", "moving", "paper", "none"]
_DEFAULTS = {"model": "mf", "loss": "llpauc", "alpha": 0.7, "beta": 0.1}  # of `Recommender`


@dataclass(frozen=True)
class _GivenOptions:
    def given(self) -> dict[str, Any]:
        """The options that were set, as parameters of a `Recommender`."""
        return {k: v for k, v in asdict(self).items() if v is not None and v is not False}


@dataclass(frozen=True)
class _LossOptions(_GivenOptions):
    """Model and loss.

    Args:
        model: the model
        loss: the loss
        alpha: llpauc: fraction of the best positives that count; below 1 reduces the influence of
            noisy events
        beta: llpauc, opauc: fraction of the hardest negatives that count
        loss_options: other parameters of the loss, as NAME=VALUE,NAME=VALUE
    """

    model: Annotated[str, Choices("llpauc.models.registry:MODELS")] | None = None
    loss: Annotated[str, Choices("llpauc.losses.registry:LOSSES")] | None = None
    alpha: Fraction | None = None
    beta: Fraction | None = None
    loss_options: str | None = None

    def given(self) -> dict[str, Any]:
        values = super().given()
        pairs = _parse_pairs(values.pop("loss_options", ""))
        return {**values, **pairs}


def _as_flag(option: Option, prefix: str = "") -> Option:
    """The option with None (or False) as its default, which means that it was not given."""
    return replace(
        option,
        help=prefix + option.help,
        default=False if option.type is bool else None,
        optional=True,
        shown_default=option.default,
    )


def _model_flags(models: Mapping[str, ModelEntry]) -> dict[str, Option]:
    """The options of these models; the help names the models, unless all trained ones have it."""
    options: dict[str, Option] = {}
    owners: dict[str, list[str]] = {}
    for model, entry in models.items():
        for name, option in options_of(entry.Options).items():
            options.setdefault(name, option)
            owners.setdefault(name, []).append(model)
    trained = {name for name in models if models[name].trained}
    return {
        name: _as_flag(
            option,
            "" if trained and trained <= set(owners[name]) else f"{', '.join(owners[name])}: ",
        )
        for name, option in options.items()
    }


def _training_flags() -> dict[str, Option]:
    """Every option of a loss, of a model or of training."""
    flags = {
        name: replace(option, shown_default=_DEFAULTS.get(name))
        for name, option in options_of(_LossOptions).items()
    }
    flags |= _model_flags(MODELS)
    for name, option in options_of(TrainingOptions).items():
        if name in flags:  # half_life: an option of training and of a model
            text = f"{option.help.rstrip('.')}. {flags[name].help}"
            flags[name] = replace(flags[name], help=text)
        else:
            flags[name] = _as_flag(option)
    del flags["seed"]  # defined by each command
    return flags


def _flags_dataclass(name: str, flags: dict[str, Option], base: type) -> Any:
    """A dataclass with one field for each flag, such as `dimensions` for `--dimensions`."""
    return make_dataclass(
        name,
        [(flag, Any, option.default) for flag, option in flags.items()],
        bases=(base,),
        namespace={"__options__": flags},
        frozen=True,
    )


_UNTRAINED = {name: entry for name, entry in MODELS.items() if not entry.trained}
ModelOptions: Any = _flags_dataclass("ModelOptions", _training_flags(), _LossOptions)
BaselineOptions: Any = _flags_dataclass("BaselineOptions", _model_flags(_UNTRAINED), _GivenOptions)


@dataclass(frozen=True)
class CheckpointOptions:
    """Checkpoints are written to OUT.checkpoint until the run is saved.

    Args:
        checkpoint_every: time between checkpoints, such as 30s, 5m or 2h; 0 writes one only at
            Ctrl-C and SIGTERM
        resume: continue from the last checkpoint; the result is the same, bit for bit
        restart: delete the existing checkpoint and start again
    """

    checkpoint_every: str = "5m"
    resume: bool = False
    restart: bool = False

    def settings(self, out: str) -> CheckpointSettings:
        """The settings for the run folder `out`."""
        from llpauc.training import CheckpointSettings

        if self.resume and self.restart:
            raise InputError("--resume continues and --restart starts again; give one of them")
        return CheckpointSettings(
            f"{Path(out)}{CHECKPOINT}",
            _seconds(self.checkpoint_every),
            "resume" if self.resume else "restart" if self.restart else "refuse",
        )


_UNITS = {"s": 1, "m": 60, "h": 3600}


def _seconds(text: str) -> float:
    """
    >>> _seconds("30s"), _seconds("1.5m"), _seconds("0")
    (30.0, 90.0, 0.0)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text.strip().lower())
    if not match and text.strip() != "0":
        raise InputError(
            f"--checkpoint-every must be a time such as 30s, 5m or 2h, or 0, got {text!r}"
        )
    return float(match[1]) * _UNITS[match[2]] if match else 0.0


def _parse_pairs(text: str) -> dict[str, Any]:
    """
    >>> _parse_pairs("margin=0.5,hardest=3,surrogate=tanh")
    {'margin': 0.5, 'hardest': 3, 'surrogate': 'tanh'}
    """
    pairs: dict[str, Any] = {}
    for pair in filter(None, text.split(",")):
        name, equals, value = (word.strip() for word in pair.partition("="))
        if not equals or not name:
            raise InputError(f"--loss-options must be NAME=VALUE, got {pair!r}")
        pairs[name] = value
        for number in (float, int):
            try:
                pairs[name] = number(value)
            except ValueError:
                continue
    return pairs


def train_config(settings: Mapping[str, Any], table: TableOptions, comment: str) -> str:
    """The text of a file for `llpauc train --config`.

    Args:
        settings: parameters of `Recommender`; those without an option become loss_options.
        table: how the data were read.
        comment: first line of the file.
    """
    from llpauc.storage.environment import toml_text

    config = {"recipe": "none", **settings, **table.changed()}
    names = {field.name for kind in (ModelOptions, type(table)) for field in fields(kind)}
    names |= {"seed", "hold_out", "how", "recipe"}
    options = {name: value for name, value in config.items() if name in names}
    loss_options = {name: value for name, value in config.items() if name not in names}
    return toml_text(comment, options, loss_options)
