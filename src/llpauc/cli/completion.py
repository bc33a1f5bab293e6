"""`llpauc completion`: a script that lets a shell complete commands, options and choices.

The script is written once and holds every word, so that a TAB starts no Python. What there is
comes from the commands' own signatures, as their parsers do.
"""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal, get_args, get_origin

from llpauc.cli.console import print_json
from llpauc.cli.parser import Command, Group, flag, options_of, summary
from llpauc.errors import choose


@dataclass(frozen=True)
class Option:
    """An option as a shell sees it.

    Args:
        words: how it is written, such as -k and --k.
        takes: whether a value follows.
        choices: the values, where they are known.
        about: one line of help.
    """

    words: tuple[str, ...]
    takes: bool
    choices: tuple[str, ...]
    about: str


@dataclass(frozen=True)
class Place:
    """What may come after some words, such as `llpauc data`.

    Args:
        path: the words, `llpauc` first.
        commands: name -> one line of help; empty below a command.
        options: those of the command.
        values: choices of what the command is given without an option.
    """

    path: tuple[str, ...]
    commands: Mapping[str, str]
    options: tuple[Option, ...]
    values: tuple[str, ...]


def completion(shell: str, json: bool = False) -> None:
    """Print a script for a shell's TAB key: commands, options, and the values there are.

    To keep it for every new shell (it need not be made again until llpauc changes):

      llpauc completion bash > ~/.local/share/bash-completion/completions/llpauc
      llpauc completion zsh > ~/.llpauc.zsh, and in ~/.zshrc: source ~/.llpauc.zsh
      llpauc completion fish > ~/.config/fish/completions/llpauc.fish

    Args:
        shell: bash, zsh or fish
        json: print the words themselves as JSON, for another shell or an editor
    """
    from llpauc.cli import COMMANDS

    script = choose(_SCRIPTS, shell, "shell")
    found = list(places(COMMANDS, ("llpauc",), _known_names()))
    if json:
        print_json([asdict(place) for place in found])
    else:
        print(script(found))


def places(
    group: Group, path: tuple[str, ...], known: Mapping[str, Sequence[str]]
) -> Iterator[Place]:
    """Every place of the command line, from the outermost inwards.

    Args:
        group: the commands.
        path: the words that lead to them.
        known: choices of parameters whose annotation does not tell them, by the parameter's name
            or, where commands differ, by `COMMAND PARAMETER`.
    """
    about = {
        name: summary(found.about if isinstance(found, Group) else inspect.getdoc(found) or "")
        for name, found in group.commands.items()
    }
    own = [Option(("-h", "--help"), False, (), "what there is")]
    if len(path) == 1:
        own.append(Option(("--version",), False, (), "versions, for a bug report"))
    yield Place(path, about, tuple(own), ())
    for name, found in group.commands.items():
        if isinstance(found, Group):
            yield from places(found, (*path, name), known)
        else:
            yield _place(found, (*path, name), known)


def _place(command: Command, path: tuple[str, ...], known: Mapping[str, Sequence[str]]) -> Place:
    options = [
        Option(("-h", "--help"), False, (), "what the command takes"),
        Option(("--config",), True, (), "read options from this TOML file"),
        Option(("--print-config",), False, (), "show the options that are set as TOML"),
    ]
    values: list[str] = []
    for option in options_of(command):
        told = get_args(option.hint) if get_origin(option.hint) is Literal else ()
        named = known.get(f"{path[-1]} {option.name}", known.get(option.name, ()))
        choices = tuple(map(str, told or named))
        if option.default is inspect.Parameter.empty:
            values += choices
            continue
        short = (f"-{option.name}",) if len(option.name) == 1 else ()
        words = (*short, flag(option.name))
        options.append(Option(words, option.hint is not bool, choices, option.help))
    return Place(path, {}, tuple(options), tuple(values))


def _known_names() -> dict[str, Sequence[str]]:
    """Choices that are the keys of a dict somewhere: a new loss needs no line here."""
    from llpauc.data.readers import FORMATS
    from llpauc.losses import LOSSES
    from llpauc.models import BASELINES
    from llpauc.models.embedding import EMBEDDING_MODELS
    from llpauc.recommend.parameters import MODELS
    from llpauc.recommend.recipes import RECIPES
    from llpauc.research.paper.targets import TARGETS
    from llpauc.training.samplers import SAMPLERS

    return {
        "loss": tuple(LOSSES),
        "model": MODELS,
        "evaluate models": tuple(BASELINES),
        "tune models": tuple(EMBEDDING_MODELS),
        "sampler": tuple(SAMPLERS),
        "recipe": tuple(RECIPES),
        "format": tuple(FORMATS),
        "target": (*TARGETS, "all"),
        "shell": tuple(_SCRIPTS),
    }


# --- bash, and zsh through its own imitation of bash's completion --------------------------------

_BASH = """\
# Completion of llpauc, made by `llpauc completion {shell}`.
{first}_llpauc() {{
    local cur=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}}
    local place=llpauc offered='' values='' choices='' takes='' n=1
    # bash takes the = of --loss=bpr for a word of its own
    if [[ $cur == = ]]; then cur=''
    elif [[ $before == = ]]; then before=${{COMP_WORDS[COMP_CWORD-2]}}; fi
    while (( n < COMP_CWORD )); do
        case "$place ${{COMP_WORDS[n]}}" in
            {places}) place="$place ${{COMP_WORDS[n]}}" ;;
            *) break ;;
        esac
        n=$((n + 1))
    done
    case "$place" in
{offers}
    esac
    case " $takes " in *" $before "*) values='' offered='' ;; esac
    case "$place $before" in
{choices}
    esac
    if [[ -n $choices ]]; then COMPREPLY=($(compgen -W "$choices" -- "$cur"))
    elif [[ $cur == -* ]]; then COMPREPLY=($(compgen -W "$offered" -- "$cur"))
    else COMPREPLY=($(compgen -W "$values" -- "$cur")); fi
}}
complete -o default -F _llpauc llpauc"""


def _bash(found: Sequence[Place], shell: str = "bash", first: str = "") -> str:
    offers, choices = [], []
    for place in found:
        name = " ".join(place.path)
        words = " ".join(word for option in place.options for word in option.words)
        takes = " ".join(word for option in place.options if option.takes for word in option.words)
        values = " ".join(place.commands or place.values)
        sets = f"offered={_quoted(words)} takes={_quoted(takes)} values={_quoted(values)}"
        offers.append(f"        {_quoted(name)}) {sets} ;;")
        for option in place.options:
            if option.choices:
                pattern = " | ".join(_quoted(f"{name} {word}") for word in option.words)
                told = _quoted(" ".join(option.choices))
                choices.append(f"        {pattern}) choices={told} ;;")
    return _BASH.format(
        shell=shell,
        first=first,
        places=" | ".join(_quoted(" ".join(place.path)) for place in found[1:]),
        offers="\n".join(offers),
        choices="\n".join(choices),
    )


def _zsh(found: Sequence[Place]) -> str:
    load = "autoload -Uz compinit bashcompinit\n(( $+functions[compdef] )) || compinit\n"
    return _bash(found, "zsh", load + "bashcompinit\n")


def _quoted(text: str) -> str:
    return shlex.quote(text) if text else "''"


# --- fish ----------------------------------------------------------------------------------------

_FISH = """\
# Completion of llpauc, made by `llpauc completion fish`.
function __llpauc_at --description 'whether these are the first words after llpauc'
    set -l words (commandline -opc)
    set -e words[1]
    test (count $words) -ge (count $argv); or return 1
    for n in (seq (count $argv))
        test $words[$n] = $argv[$n]; or return 1
    end
end
function __llpauc_ends --description 'whether these are all words after llpauc'
    test (count (commandline -opc)) -eq (math (count $argv) + 1); and __llpauc_at $argv
end"""


def _fish(found: Sequence[Place]) -> str:
    lines = [_FISH]
    for place in found:
        after = " ".join(place.path[1:])
        for name, about in place.commands.items():
            ends = f"-n {_fish_quoted(f'__llpauc_ends {after}'.strip())}"
            lines.append(f"complete -c llpauc -f {ends} -a {name} -d {_fish_quoted(about)}")
        below = "__llpauc_ends" if len(place.path) == 1 else f"__llpauc_at {after}"
        for option in place.options:
            told = "".join(
                f" -l {word[2:]}" if word.startswith("--") else f" -s {word[1:]}"
                for word in option.words
            )
            if option.choices:
                told += f" -x -a {_fish_quoted(' '.join(option.choices))}"
            elif option.takes:
                told += " -r"
            about = option.about.split(";")[0]
            lines.append(
                f"complete -c llpauc -n {_fish_quoted(below)}{told} -d {_fish_quoted(about)}"
            )
        if place.values:
            words = _fish_quoted(" ".join(place.values))
            lines.append(f"complete -c llpauc -f -n {_fish_quoted(below)} -a {words}")
    return "\n".join(lines)


def _fish_quoted(text: str) -> str:
    """
    >>> print(_fish_quoted("EASE's lambda"))
    'EASE\\'s lambda'
    """
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


_SCRIPTS: dict[str, Callable[[Sequence[Place]], str]] = {
    "bash": _bash,
    "zsh": _zsh,
    "fish": _fish,
}
