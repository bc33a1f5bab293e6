"""One definition of each option: name, type, range, default, help text and search range.

An option is a field of a dataclass, or a parameter of a function. Its type annotation holds the
range, and the `Args:` section of the docstring holds the help text:

    @dataclass(frozen=True)
    class Options:
        \"\"\"Options of every embedding model.

        Args:
            dimensions: width of the vectors.
            lr: learning rate of Adam.
        \"\"\"

        dimensions: Annotated[int, Ge(1), Grid(32, 64, 128)] = 64
        lr: Annotated[float, Gt(0), LogRange(3e-4, 3e-2)] = 1e-3

        def __post_init__(self) -> None:
            check_options(self)

Command-line flags, config files, the search space of `tune`, the reference documentation and the
checks of saved parameters are all made from `options_of(Options)`. This module imports nothing
heavy, so that `--help` answers at once.
"""

from __future__ import annotations

import inspect
import math
import operator
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from importlib import import_module
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt
from docstring_parser import parse as parse_docstring

from llpauc.errors import InputError, unknown

T = TypeVar("T")

REQUIRED = MISSING  # the default of an option that has none

Fraction = Annotated[float, Gt(0), Le(1)]
Count = Annotated[int, Ge(1)]
NonNegativeInt = Annotated[int, Ge(0)]
Positive = Annotated[float, Gt(0)]
NonNegative = Annotated[float, Ge(0)]


class Grid:
    """The values that `tune` tries.

    >>> Grid(32, 64).values
    (32, 64)
    """

    def __init__(self, *values: Any) -> None:
        self.values = values


@dataclass(frozen=True)
class Choices:
    """The allowed values are the names of a registry, which is looked up when it is needed.

    Args:
        place: "package.module:attribute" of a mapping or sequence of names, or of a function that
            returns one.
        many: whether a comma-separated list of names is allowed.
    """

    place: str
    many: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        names = import_object(self.place)
        return tuple(names() if callable(names) else names)


@dataclass(frozen=True)
class Aliases:
    """Former values of an option, which saved runs may hold: former value -> value."""

    values: Mapping[str, str]


@dataclass(frozen=True)
class LogRange:
    """`tune` draws any number from `low` to `high`, uniformly by its logarithm."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.high < math.inf:
            raise InputError(f"a range needs 0 < low <= high, got {self.low!r} to {self.high!r}")


@dataclass(frozen=True)
class Option:
    """One option.

    Args:
        name: as in Python; `--batch-size` is `batch_size`.
        type: bool, int, float, str or another type, without `None` and without annotations.
        default: `REQUIRED` where there is none.
        help: text from the docstring.
        optional: whether None is allowed.
        choices: allowed values of a `Literal` or a registry; empty where any value is allowed.
        many: whether several choices may be given, separated by commas.
        bounds: `Gt`, `Ge`, `Lt` and `Le` of the annotation.
        search: what `tune` tries; None where it leaves the option alone.
        hint: the annotation as it was written, without `None`.
        aliases: former value -> value; `check` replaces the former one.
        shown_default: the default in help texts, where it is not `default`.
    """

    name: str
    type: Any
    default: Any
    help: str
    optional: bool
    choices: tuple[Any, ...]
    many: bool
    bounds: tuple[Any, ...]
    search: Grid | LogRange | None
    hint: Any
    aliases: Mapping[str, str]
    shown_default: Any = None

    @property
    def interval(self) -> str:
        """The range in words that follow "must be".

        >>> options_of(_Example)["share"].interval
        'in (0, 1]'
        """
        low = next((b for b in self.bounds if isinstance(b, (Gt, Ge))), None)
        high = next((b for b in self.bounds if isinstance(b, (Lt, Le)) and b != Le(math.inf)), None)
        least = "" if low is None else str(low.gt if isinstance(low, Gt) else low.ge)
        most = "" if high is None else str(high.lt if isinstance(high, Lt) else high.le)
        if low is not None and high is not None:
            left, right = "(["[isinstance(low, Ge)], ")]"[isinstance(high, Le)]
            return f"in {left}{least}, {most}{right}"
        if low is not None:
            return f"{'above' if isinstance(low, Gt) else 'at least'} {least}"
        return f"{'below' if isinstance(high, Lt) else 'at most'} {most}" if high else ""

    def check(self, value: Any) -> Any:
        """The value in the option's type; anything else raises `InputError`.

        >>> options_of(_Example)["share"].check(1)
        1.0
        >>> options_of(_Example)["share"].check(1.5)
        Traceback (most recent call last):
        llpauc.errors.InputError: share must be in (0, 1], got 1.5
        """
        if value is None and self.optional:
            return None
        if self.choices:
            value = self.aliases.get(value, value) if isinstance(value, str) else value
            several = self.many and isinstance(value, str)
            for name in map(str.strip, value.split(",")) if several else [value]:
                if name not in self.choices:
                    what = self.name.removesuffix("s") if self.many else self.name
                    raise unknown(what, name, self.choices)
            return value
        checked = _as_type(value, self.type)
        if checked is None or not self._in_range(checked):
            kind = {int: "a whole number", float: "a number", bool: "True or False"}
            wanted = " ".join(
                filter(None, [kind.get(self.type, str(self.type.__name__)), self.interval])
            )
            if checked is not None or self.type is float:
                wanted = self.interval or wanted
            raise InputError(f"{self.name} must be {wanted}, got {value!r}")
        return checked

    def _in_range(self, value: Any) -> bool:
        """Infinity is in the range only where it is the upper bound, `Le(math.inf)`."""
        if value == math.inf and Le(math.inf) not in self.bounds:
            return False
        return all(_holds(bound, value) for bound in self.bounds)

    def parse(self, text: str) -> Any:
        """The value that `text` stands for on a command line.

        >>> options_of(_Example)["share"].parse("0.25")
        0.25
        """
        value: Any = text
        if self.type in (int, float):
            try:
                value = self.type(text)
            except ValueError:
                value = text
        return self.check(value)


def _as_type(value: Any, kind: Any) -> Any:
    """The value as `kind`, or None where it is not one."""
    if kind is bool:
        return value if isinstance(value, bool) else None
    if isinstance(value, bool) and kind in (int, float):
        return None
    try:
        if kind is int:
            return operator.index(value)
        if kind is float:
            number = float(value) if not isinstance(value, (str, bytes)) else math.nan
            return None if math.isnan(number) else number
    except (TypeError, ValueError):
        return None
    return value if not isinstance(kind, type) or isinstance(value, kind) else None


def _holds(bound: Any, value: Any) -> bool:
    if isinstance(bound, Gt):
        return bool(value > bound.gt)
    if isinstance(bound, Ge):
        return bool(value >= bound.ge)
    return bool(value < bound.lt if isinstance(bound, Lt) else value <= bound.le)


def options_of(definition: Any) -> Mapping[str, Option]:
    """The options that a dataclass or a function defines, by name, in order.

    A parameter whose type is itself a dataclass stands for all its fields. A class that is made at
    run time holds its options in `__options__`.
    """
    if hasattr(definition, "__options__"):
        options: Mapping[str, Option] = definition.__options__
        return options
    # The docstring of a subclass describes only the fields that it adds.
    classes = reversed(definition.__mro__) if isinstance(definition, type) else [definition]
    help_texts = {
        parameter.arg_name: re.sub(r"\s+", " ", parameter.description or "")
        for described in classes
        for parameter in parse_docstring(inspect.cleandoc(described.__doc__ or "")).params
    }
    target = definition.__init__ if _is_plain_class(definition) else definition
    hints = get_type_hints(target, include_extras=True)
    found: dict[str, Option] = {}
    for name, parameter in inspect.signature(definition).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        hint = hints.get(name, Any)
        if is_dataclass(hint):
            found.update(options_of(hint))
            continue
        default = REQUIRED if parameter.default is inspect.Parameter.empty else parameter.default
        found[name] = _option(name, hint, default, help_texts.get(name, ""))
    return found


def _is_plain_class(definition: Any) -> bool:
    """Whether the parameters are those of a hand-written `__init__`."""
    if not isinstance(definition, type):
        return False
    generated = "__dataclass_params__" in vars(definition) or "__init__" not in vars(definition)
    return not (is_dataclass(definition) and generated)


def _option(name: str, hint: Any, default: Any, text: str) -> Option:
    hint, optional = _without_none(hint)
    kind: Any = hint
    notes: tuple[Any, ...] = ()
    if get_origin(hint) is Annotated:
        kind, inner = _without_none(get_args(hint)[0])
        notes = get_args(hint)[1:]
        optional = optional or inner
    names = next((note for note in notes if isinstance(note, Choices)), None)
    choices = get_args(kind) if get_origin(kind) is Literal else names.names if names else ()
    many = names is not None and names.many
    bounds = tuple(note for note in notes if isinstance(note, (Gt, Ge, Lt, Le)))
    search = next((note for note in notes if isinstance(note, (Grid, LogRange))), None)
    former = next((note.values for note in notes if isinstance(note, Aliases)), {})
    return Option(name, kind, default, text, optional, choices, many, bounds, search, hint, former)


def _without_none(hint: Any) -> tuple[Any, bool]:
    if get_origin(hint) not in (Union, UnionType):
        return hint, False
    kinds = [kind for kind in get_args(hint) if kind is not NoneType]
    optional = len(kinds) < len(get_args(hint))
    return (kinds[0] if len(kinds) == 1 else Union[tuple(kinds)]), optional  # noqa: UP007


def check_options(options: Any) -> None:
    """Check every field of a frozen dataclass; to be called from its `__post_init__`."""
    defined = options_of(type(options))
    for field in fields(options):
        checked = defined[field.name].check(getattr(options, field.name))
        object.__setattr__(options, field.name, checked)


class Registry(Mapping[str, T]):
    """Name -> object, where an object is imported when it is first used.

    Iterating over the names imports nothing.

    Args:
        kind: what the objects are, for messages: "model", "loss".
        places: name -> "package.module:attribute", or the object itself.
        aliases: former name -> name; found by `registry[former]`, never listed.

    >>> registry = Registry("codec", {"json": "json:dumps"}, aliases={"js": "json"})
    >>> list(registry), registry["js"]([1])
    (['json'], '[1]')
    """

    def __init__(
        self, kind: str, places: Mapping[str, str | T], aliases: Mapping[str, str] | None = None
    ) -> None:
        self.kind = kind
        self._places = dict(places)
        self.aliases = dict(aliases or {})

    def __getitem__(self, name: str) -> T:
        place = self._places.get(self.canonical(name))
        if place is None:
            raise unknown(self.kind, name, self)
        if isinstance(place, str):
            return import_object(place)  # type: ignore[no-any-return]
        return place

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.canonical(name) in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def canonical(self, name: str) -> str:
        """The present name of something that a saved run may call by a former one."""
        return self.aliases.get(name, name)

    def register(self, name: str, place: str | T) -> None:
        """Add an object of your own, such as a model or a loss defined in another package."""
        self._places[name] = place


def import_object(place: str) -> Any:
    """The object at "package.module:attribute"."""
    module, _, attribute = place.partition(":")
    return getattr(import_module(module), attribute)


def lazy_exports(package: str, places: Mapping[str, str]) -> Any:
    """`__getattr__` of a package whose `__init__.py` re-exports names without importing them.

    Args:
        package: its `__name__`.
        places: name -> module inside the package.
    """

    def __getattr__(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{places[name]}"), name)

    return __getattr__


@dataclass(frozen=True)
class _Example:
    """Used in the doctests above.

    Args:
        share: a fraction.
    """

    share: Fraction = 0.5
