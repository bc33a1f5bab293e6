"""From a function to a command: one signature gives flags, help, config file and checks.

A command is a plain function. Parameters without a default are positional; a parameter that is a
dataclass stands for all its fields, so that commands share options. The docstring is the help, the
annotations are the checks (see `llpauc.options`). `--config FILE.toml` sets any option, a flag on
the command line overrides it, and `--print-config` prints the result.
"""

from __future__ import annotations

import argparse
import inspect
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn, get_args, get_origin, get_type_hints

import tomli_w
from docstring_parser import parse as parse_docstring

from llpauc.cli.console import print_error
from llpauc.data.locations import SourceName
from llpauc.errors import InputError, listing, unknown
from llpauc.options import REQUIRED, Option, options_of

Command = Callable[..., None]

_WIDTH = 96  # characters of a help line


@dataclass(frozen=True)
class Group:
    """Commands under one name.

    Args:
        description: text above the list of commands in `--help`.
        commands: name -> function, or another group.
    """

    description: str
    commands: Mapping[str, Command | Group]


class Parser(argparse.ArgumentParser):
    """The parser of one command; every error is one line."""

    def __init__(self, command: Command, prog: str) -> None:
        doc = parse_docstring(command.__doc__ or "")
        paragraphs = (doc.short_description, doc.long_description)
        self.options = options_of(command)
        positional = [name for name, option in self.options.items() if option.default is REQUIRED]
        super().__init__(
            prog=prog,
            usage=" ".join([prog, *positional, "[options]"]),
            description="\n\n".join(text for text in paragraphs if text),
            formatter_class=_HelpFormatter,
            argument_default=argparse.SUPPRESS,
            allow_abbrev=False,
        )
        self.add_argument("--config", action="append", help="read options from this TOML file")
        self.add_argument(
            "--print-config", action="store_true", help="print all options as TOML, and exit"
        )
        for option in self.options.values():
            self._add_option(option)

    def _add_option(self, option: Option) -> None:
        shown: dict[str, Any] = {"help": _help_text(option).replace("%", "%%")}
        listed = get_origin(option.type) is list
        literal = option.choices and not option.many and not isinstance(option.type, type)
        if option.choices:
            shown["choices"] = option.choices
        if option.default is REQUIRED:
            # A positional argument may come from the config file, so argparse does not require it.
            many = "*" if listed or _is_source(option) else "?"
            self.add_argument(option.name, nargs=many, metavar=option.name, **shown)
        elif option.type is bool:
            self.add_argument(flag(option.name), action="store_true", help=shown["help"])
        else:
            if not literal:
                shown["metavar"] = option.name.upper().replace("_", "-")
            short = [f"-{option.name}"] if len(option.name) == 1 else []
            self.add_argument(*short, flag(option.name), dest=option.name, **shown)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Values are checked by `Option.check`, those from config files too."""

    def error(self, message: str) -> NoReturn:
        words = message.removeprefix("unrecognized arguments: ").split()
        flags = [word.split("=")[0] for word in words if word.startswith("-")]
        if message.startswith("unrecognized arguments: ") and flags:
            similar = get_close_matches(flags[0], self._option_string_actions, n=1)
            hint = f"; did you mean {similar[0]}?" if similar else ""
            message = f"unknown option {flags[0]}{hint}"
        fail(f"{message} (see {self.prog} --help)", self.prog)

    def read(self, words: Sequence[str]) -> dict[str, Any]:
        """The value of every option. The command line overrides config files."""
        given = vars(self.parse_args(words))
        configs, print_config = given.pop("config", []), given.pop("print_config", False)
        values: dict[str, Any] = {}
        try:
            for path in configs:
                values.update(self._read_config(path))
            for name, text in given.items():
                values[name] = _parse(self.options[name], text)
            for name, value in values.items():
                if value in ("", [""]) and (
                    name == "out" or self.options[name].default is REQUIRED
                ):
                    raise InputError(f"{name} is empty; give a file or a folder (. for this one)")
                text = "".join(map(str, value)) if isinstance(value, (str, list)) else ""
                if "\0" in text:
                    raise InputError(f"{name} contains a NUL character; remove it")
                if any("\ud800" <= c <= "\udfff" for c in text):  # how Python marks such bytes
                    raise InputError(f"{name} is not UTF-8 text; choose another name")
            missing = [
                name
                for name, option in self.options.items()
                if option.default is REQUIRED and values.get(name, []) == []
            ]
            if missing:
                raise InputError(f"required: {listing(missing)}")
        except InputError as error:
            self.error(str(error))
        values = {name: values.get(name, option.default) for name, option in self.options.items()}
        for name, option in self.options.items():
            if _is_source(option):
                given = values[name]
                values[name] = SourceName([given] if isinstance(given, str) else given)
        if print_config:
            print(tomli_w.dumps({k: v for k, v in values.items() if v is not None}), end="")
            raise SystemExit(0)
        return values

    def _read_config(self, path: str) -> dict[str, Any]:
        try:
            table = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise InputError(f"--config: {path}: cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise InputError(f"--config: {path}: is not UTF-8 text, so it is not TOML") from None
        except tomllib.TOMLDecodeError as error:
            raise InputError(f"--config: {path}: is not valid TOML: {error}") from None
        if "model" in self.options and "loss" in self.options:
            from llpauc.recommend.parameters import current_names

            table = current_names({key.replace("-", "_"): table[key] for key in table})
        values = {}
        for key, value in table.items():
            name = key.replace("-", "_")
            if name not in self.options:
                raise InputError(f"--config: {path}: {unknown('key', key, self.options)}")
            option = self.options[name]
            several = _is_source(option) and isinstance(value, list)
            values[name] = value if several else _checked(option, option.check, value)
        return values


def _is_source(option: Option) -> bool:
    """Whether the value may be several paths, and becomes a `SourceName`."""
    return SourceName in get_args(option.hint)


def _parse(option: Option, text: Any) -> Any:
    if option.type is bool:
        return text
    if isinstance(text, list):
        return [*text]
    return _checked(option, option.parse, text)


def _checked(option: Option, check: Callable[[Any], Any], value: Any) -> Any:
    """The checked value; an error calls the option by its flag."""
    try:
        return check(value)
    except InputError as error:
        prefix = f"{option.name} must be "
        message = str(error)
        if option.default is not REQUIRED and message.startswith(prefix):
            message = f"{flag(option.name)} must be {message.removeprefix(prefix)}"
        raise InputError(message) from None


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30, width=_WIDTH)


def _help_text(option: Option) -> str:
    text = option.help.strip().rstrip(".")
    if not all(str(choice) in text for choice in option.choices) and isinstance(option.type, type):
        names = listing(option.choices, len(option.choices))
        text += f"; {'any' if option.many else 'one'} of: {names}"
    default = option.default if option.shown_default is None else option.shown_default
    # 0 is a default worth showing, and equal to False.
    hidden = isinstance(default, bool) or default in (None, REQUIRED, "", [])
    return text if hidden or "by default" in text else f"{text} [default: {default}]"


def find(group: Group, words: Sequence[str], prog: str) -> tuple[Command, Parser, list[str]]:
    """The requested command, its parser, and the remaining words.

    Only the parser of the requested command is built.
    """
    name = words[0] if words else "--help"
    if name in ("-h", "--help", "help"):
        print(_overview(group, prog))
        raise SystemExit(0)
    if name not in group.commands:
        fail(str(unknown("command", name, group.commands)), prog)
    command, rest = group.commands[name], list(words[1:])
    if isinstance(command, Group):
        return find(command, rest, f"{prog} {name}")
    return command, Parser(command, f"{prog} {name}"), rest


def fail(message: str, prog: str = "llpauc") -> NoReturn:
    """Print a usage error and exit with code 2."""
    print_error(message, prog)
    raise SystemExit(2)


def _overview(group: Group, prog: str) -> str:
    width = max(len(name) for name in group.commands)
    lines = [
        f"  {name:<{width}}  {summary_line(command)}" for name, command in group.commands.items()
    ]
    head = [f"usage: {prog} COMMAND ...", "", group.description, "", "commands:"]
    return "\n".join([*head, *lines, "", f"{prog} COMMAND --help lists the options of a command."])


def summary_line(command: Command | Group) -> str:
    """The first line of a command's help."""
    text = command.description if isinstance(command, Group) else inspect.getdoc(command) or ""
    return text.strip().split("\n")[0].rstrip(".")


def call(command: Any, values: Mapping[str, Any]) -> Any:
    """Call a command (or create a dataclass) from flat values."""
    hints = get_type_hints(command, include_extras=True)
    return command(
        **{
            name: call(hints[name], values) if is_dataclass(hints[name]) else values[name]
            for name in inspect.signature(command).parameters
        }
    )


def flag(name: str) -> str:
    """
    >>> flag("batch_size")
    '--batch-size'
    """
    return "--" + name.replace("_", "-")


def argparse_tree(group: Group, prog: str = "llpauc") -> argparse.ArgumentParser:
    """All commands as one argparse parser with subparsers, for shell completion."""
    parser = argparse.ArgumentParser(prog=prog, description=group.description.split("\n")[0])
    children = parser.add_subparsers()
    for name, command in group.commands.items():
        if isinstance(command, Group):
            child = argparse_tree(command, f"{prog} {name}")
        else:
            child = Parser(command, f"{prog} {name}")
        children._name_parser_map[name] = child
        text = summary_line(command)
        children._choices_actions.append(children._ChoicesPseudoAction(name, (), text))
    return parser
