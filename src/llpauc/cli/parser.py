"""From a function to a command: one signature gives help, config file, overrides and errors.

A command is a plain function. Its parameters are the options (those without a default are
positional; a dataclass stands for all its fields, so that commands can share options), its
docstring the help, its annotations the checks: pydantic's `Field` bounds work.
`--config FILE.toml` sets any of them, the command line wins wherever the file is named,
`--print-config` shows the outcome.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

from docstring_parser import parse as parse_docstring
from jsonargparse import ArgumentParser
from pydantic import Field

from llpauc.errors import listing

Command = Callable[..., None]

Share = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=1)]
Whole = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]


class Parser(ArgumentParser):
    """jsonargparse, with errors in one line and help without type machinery."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        positional = [action.dest for action in self._actions if not action.option_strings]
        said = one_line(message, positional)
        print(f"{self.prog}: error: {said} (see {self.prog} --help)", file=sys.stderr)
        raise SystemExit(2)

    def read(self, words: Sequence[str]) -> dict[str, Any]:
        """The options by name. Config files come first, so that the words beside them win."""
        configs, rest = _take_configs(words)
        for path in configs:
            self._check_config(path)
        values: dict[str, Any] = self.parse_args(
            [*(f"--config={path}" for path in configs), *rest]
        ).as_dict()
        return values

    def _check_config(self, path: str) -> None:
        """jsonargparse takes a name that is no file for TOML itself, and names none in errors."""
        try:
            keys = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            self.error(f"--config: {path}: cannot be read: {error.strerror}")
        except UnicodeDecodeError:
            self.error(f"--config: {path}: is not UTF-8 text, so it is no TOML file")
        except tomllib.TOMLDecodeError as error:
            self.error(f"--config: {path}: is no TOML: {error}")
        known = [action.dest for action in self._actions if action.dest not in _NOT_IN_CONFIGS]
        for key in keys:
            if key.replace("-", "_") not in known:
                choices = listing(known, len(known))
                self.error(f"--config: {path}: unknown key {key!r}; choose one of: {choices}")


_NOT_IN_CONFIGS = ("help", "config", "print_config")


def _take_configs(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The files named by --config, and all other words."""
    configs, rest = [], []
    queue = iter(words)
    for word in queue:
        name, equals, value = word.partition("=")
        path = (value if equals else next(queue, None)) if name == "--config" else None
        if path is None:
            rest.append(word)
        else:
            configs.append(path)
    return configs, rest


class Help(argparse.RawDescriptionHelpFormatter):
    """Option help with its default, and no more."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30, width=96)

    def _get_help_string(self, action: argparse.Action) -> str:
        text = (action.help or "").strip()
        # 0 is a default worth showing, and equal to False.
        hidden = isinstance(action.default, bool) or action.default in (
            None, argparse.SUPPRESS, [], ""
        )  # fmt: skip
        return text if hidden or not action.option_strings else f"{text} [default: %(default)s]"


@dataclass(frozen=True)
class Group:
    """Commands under one name.

    Args:
        about: what `--help` says above the list.
        commands: name -> function, or a group again.
    """

    about: str
    commands: Mapping[str, Command | Group]


def find(group: Group, words: Sequence[str], prog: str) -> tuple[Command, Parser, list[str]]:
    """Walk down the groups: the command, its parser, and the words that are left for it.

    Only the parser of the command that was asked for is built, so the rest costs nothing.
    """
    name = words[0] if words else "--help"
    if name in ("-h", "--help", "help"):
        print(_overview(group, prog))
        raise SystemExit(0)
    if name not in group.commands:
        near = get_close_matches(name, group.commands, n=1)
        known = f"did you mean {near[0]}?" if near else f"choose one of: {listing(group.commands)}"
        print(f"{prog}: error: unknown command {name!r}; {known}", file=sys.stderr)
        raise SystemExit(2)
    found, rest = group.commands[name], list(words[1:])
    if isinstance(found, Group):
        return find(found, rest, f"{prog} {name}")
    return found, _parser(found, f"{prog} {name}"), rest


def _overview(group: Group, prog: str) -> str:
    names = {
        name: summary(found.about if isinstance(found, Group) else inspect.getdoc(found) or "")
        for name, found in group.commands.items()
    }
    wide = max(len(name) for name in names)
    lines = [f"  {name:<{wide}}  {summary}" for name, summary in names.items()]
    return "\n".join(
        [f"usage: {prog} COMMAND ...", "", group.about, "", "commands:", *lines, "",
         f"{prog} COMMAND --help says what a command takes."]
    )  # fmt: skip


def summary(text: str) -> str:
    return text.strip().split("\n")[0].rstrip(".")


def _parser(command: Command, prog: str) -> Parser:
    doc = parse_docstring(command.__doc__ or "")
    about = "\n\n".join(t for t in (doc.short_description, doc.long_description) if t)
    options = options_of(command)
    positional = [option.name for option in options if option.default is inspect.Parameter.empty]
    parser = Parser(
        prog=prog,
        usage=" ".join([prog, *positional, "[options]"]),
        description=about,
        formatter_class=Help,
        parser_mode="toml",
        print_config="--print-config",
    )
    parser.add_argument("--config", action="config", help="read options from this TOML file")
    for option in options:
        if option.default is inspect.Parameter.empty:
            kind, more = option.hint, dict[str, Any]()
            if get_origin(kind) is list:  # one or several
                (kind,), more = get_args(kind), {"nargs": "+", "metavar": option.name}
            parser.add_argument(option.name, type=kind, help=option.help, **more)
        elif option.hint is bool:
            parser.add_argument(flag(option.name), action="store_true", help=option.help)
        else:
            short = [f"-{option.name}"] if len(option.name) == 1 else []
            action = parser.add_argument(
                *short,
                flag(option.name),
                type=option.hint,
                default=option.default,
                help=option.help,
            )
            if get_origin(option.hint) is not Literal:
                action.metavar = option.name.upper().replace("_", "-")
    for action in parser._actions:
        if "--print-config" in action.option_strings:
            action.help = "show the options that are set as TOML, for --config, and do nothing"
            action.metavar = ""
    return parser


@dataclass(frozen=True)
class _Option:
    name: str
    hint: Any
    default: Any
    help: str


def options_of(command: Any) -> list[_Option]:
    """The parameters of a function (or a dataclass), dataclass parameters spread out flat."""
    doc = parse_docstring(command.__doc__ or "")
    told = {p.arg_name: re.sub(r"\s+", " ", p.description or "") for p in doc.params}
    hints = get_type_hints(command, include_extras=True)
    options = []
    for name, parameter in inspect.signature(command).parameters.items():
        if is_dataclass(hints[name]):
            options += options_of(hints[name])
        else:
            options.append(_Option(name, _given(hints[name]), parameter.default, told[name]))
    return options


def _given(hint: Any) -> Any:
    """`X | None` is X where it is given: then `null` is a user's name, and errors are short."""
    if get_origin(hint) not in (Union, UnionType):
        return hint
    (only,) = (kind for kind in get_args(hint) if kind is not NoneType)
    return only


def call(command: Any, values: Mapping[str, Any]) -> Any:
    """Call a command (or make a dataclass) with flat values, folding its dataclasses up again."""
    hints = get_type_hints(command, include_extras=True)
    return command(
        **{
            name: call(hints[name], values) if is_dataclass(hints[name]) else values[name]
            for name in inspect.signature(command).parameters
        }
    )


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def one_line(message: str, positional: Sequence[str] = ()) -> str:
    """What jsonargparse and pydantic say in a paragraph, in a line.

    >>> one_line('Parser key "lr": Input should be greater than 0 [type=x]. Got value: -1')
    "--lr: should be greater than 0, got '-1'"
    """
    key = re.search(r'Parser key "([^"]+)"', message)
    option = ""
    if key:
        option = (key[1] if key[1] in positional else flag(key[1])) + ": "
    value = re.search(r"Got value: (.*)$", message, re.S)
    for pattern, said in _SAID:
        found = re.search(pattern, message, re.S)
        if found and value:
            wanted = said.format(*found.groups())
            return f"{option}{wanted}, got {value[1].strip()!r}"
    message = re.sub(r'Parser key "[^"]+":\s*', "", message)
    return option + re.sub(r"\s+", " ", message).strip()


_SAID = (
    (r"Expected a typing\.Literal\[(.*)\]\.", "choose one of {}"),
    (r"Expected a <class 'float'>|Input should be a valid number", "should be a number"),
    (r"Expected a <class 'int'>|Input should be a valid integer", "should be a whole number"),
    (r"Expected a <class 'bool'>", "should be true or false"),
    (r"Expected a <class 'str'>", "should be text"),
    (r"Input should be (.+?) \[type=", "should be {}"),
)
