"""From a function to a command: one signature gives help, config file, overrides and errors.

A command is a plain function. Its parameters are the options (those without a default are
positional; a dataclass stands for all its fields, so that commands can share options), its
docstring the help, its annotations the checks: pydantic's `Field` bounds work.
`--config FILE.toml` sets any of them, the command line wins, `--print-config` shows the outcome.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from typing import Annotated, Any, Literal, NoReturn, get_origin, get_type_hints

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
        print(f"{self.prog}: error: {one_line(message)} (see {self.prog} --help)", file=sys.stderr)
        raise SystemExit(2)


class Help(argparse.RawDescriptionHelpFormatter):
    """Option help with its default, and no more."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30, width=96)

    def _get_help_string(self, action: argparse.Action) -> str:
        text = (action.help or "").strip()
        shown = action.default not in (None, False, argparse.SUPPRESS, [], "")
        return f"{text} [default: %(default)s]" if shown and action.option_strings else text


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
    if name in ("-h", "--help"):
        print(_overview(group, prog))
        raise SystemExit(0)
    if name not in group.commands:
        known = listing(group.commands)
        print(f"{prog}: error: unknown command {name!r}; choose one of: {known}", file=sys.stderr)
        raise SystemExit(2)
    found, rest = group.commands[name], list(words[1:])
    if isinstance(found, Group):
        return find(found, rest, f"{prog} {name}")
    return found, _parser(found, f"{prog} {name}"), rest


def _overview(group: Group, prog: str) -> str:
    names = {
        name: _summary(found.about if isinstance(found, Group) else inspect.getdoc(found) or "")
        for name, found in group.commands.items()
    }
    wide = max(len(name) for name in names)
    lines = [f"  {name:<{wide}}  {summary}" for name, summary in names.items()]
    return "\n".join(
        [f"usage: {prog} COMMAND ...", "", group.about, "", "commands:", *lines, "",
         f"{prog} COMMAND --help says what a command takes."]
    )  # fmt: skip


def _summary(text: str) -> str:
    return text.strip().split("\n")[0].rstrip(".")


def _parser(command: Command, prog: str) -> Parser:
    doc = parse_docstring(command.__doc__ or "")
    about = "\n\n".join(t for t in (doc.short_description, doc.long_description) if t)
    options = _options(command)
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
            parser.add_argument(option.name, type=option.hint, help=option.help)
        elif option.hint is bool:
            parser.add_argument(_flag(option.name), action="store_true", help=option.help)
        else:
            short = [f"-{option.name}"] if len(option.name) == 1 else []
            action = parser.add_argument(
                *short,
                _flag(option.name),
                type=option.hint,
                default=option.default,
                help=option.help,
            )
            if get_origin(option.hint) is not Literal:
                action.metavar = option.name.upper().replace("_", "-")
    for action in parser._actions:
        if "--print-config" in action.option_strings:
            action.help, action.metavar = "show all options as TOML and do nothing", ""
    return parser


@dataclass(frozen=True)
class _Option:
    name: str
    hint: Any
    default: Any
    help: str


def _options(command: Any) -> list[_Option]:
    """The parameters of a function (or a dataclass), dataclass parameters spread out flat."""
    doc = parse_docstring(command.__doc__ or "")
    told = {p.arg_name: re.sub(r"\s+", " ", p.description or "") for p in doc.params}
    hints = get_type_hints(command, include_extras=True)
    options = []
    for name, parameter in inspect.signature(command).parameters.items():
        if is_dataclass(hints[name]):
            options += _options(hints[name])
        else:
            options.append(_Option(name, hints[name], parameter.default, told[name]))
    return options


def call(command: Any, values: Mapping[str, Any]) -> Any:
    """Call a command (or make a dataclass) with flat values, folding its dataclasses up again."""
    hints = get_type_hints(command, include_extras=True)
    return command(
        **{
            name: call(hints[name], values) if is_dataclass(hints[name]) else values[name]
            for name in inspect.signature(command).parameters
        }
    )


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def one_line(message: str) -> str:
    """What jsonargparse and pydantic say in a paragraph, in a line."""
    key = re.search(r'Parser key "([^"]+)"', message)
    option = _flag(key[1].split(".")[-1]) + ": " if key else ""
    bound = re.search(r"Input should be (.+?) \[type=.*?Got value: (.*)$", message, re.S)
    if bound:
        return f"{option}should be {bound[1]}, got {bound[2].strip()!r}"
    choice = re.search(r"Expected a typing\.Literal\[(.*)\]\. Got value: (.*)$", message, re.S)
    if choice:
        return f"{option}choose one of {choice[1]}, got {choice[2].strip()!r}"
    message = re.sub(r'Parser key "[^"]+":\s*', "", message)
    return option + re.sub(r"\s+", " ", message).strip()
