"""Writes docs/reference/options.md and docs/reference/commands.md from the definitions in the code.

    python -m docs.reference.generate

`tests/system/test_docs.py` checks that both pages are up to date.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from llpauc.cli.commands import COMMANDS
from llpauc.cli.parser import Group, summary_line
from llpauc.losses import LOSSES
from llpauc.models import MODELS
from llpauc.options import REQUIRED, Grid, LogRange, Option, options_of
from llpauc.training import TrainingOptions

FOLDER = Path(__file__).parent

OPTIONS = """# Options of training

<!-- Written by `python -m docs.reference.generate`; do not edit. -->

Every option is a parameter of [`llpauc.Recommender`](recommend.md), which adds `model`, `loss`,
`hold_out` and `refit`. On the command line `batch_size` is `--batch-size`; options of a loss other
than `alpha` and `beta` are given as `--loss-options NAME=VALUE,NAME=VALUE`.

`tuned` shows the values that `llpauc tune` tries; an empty cell means the default. The exceptions
are `alpha` and `beta`, whose range depends on the data ([tune](../how-to/tune.md)). `Recommender`
and the commands use alpha 0.7 and beta 0.1 by default; the classes in `llpauc.losses` require them.

## Training

{training}

## Models

{models}

## Losses

{losses}
"""

COMMANDS_PAGE = """# Commands

<!-- Written by `python -m docs.reference.generate`; do not edit. -->

{commands}

`llpauc COMMAND --help` lists the arguments and options of a command. All commands accept
`--config FILE.toml`, which sets any option (a flag on the command line overrides it), and
`--print-config`, which prints the resulting options. `llpauc --version` prints the versions of
llpauc and its dependencies.

| exit code | meaning |
|---|---|
| 0 | success |
| 1 | failure during the run: disk full, out of memory, divergence |
| 2 | invalid input or option; the message names the value and the remedy |
| 130, 143 | interrupted by Ctrl-C or SIGTERM |
"""


def pages() -> dict[Path, str]:
    """The text of each page."""
    models = {name: options_of(entry.Options) for name, entry in MODELS.items()}
    losses = {name: options_of(loss) for name, loss in LOSSES.items()}
    options = OPTIONS.format(
        training=_table(["option"], _by_option({"": options_of(TrainingOptions)})),
        models=_table(["option", "models"], _by_option(models)),
        losses=_table(["option", "losses"], _by_option(losses)),
    )
    rows = [f"| `{name}` | {summary} |" for name, summary in _commands(COMMANDS, "llpauc")]
    commands = "\n".join(["| command | purpose |", "|---|---|", *rows])
    return {
        FOLDER / "options.md": options,
        FOLDER / "commands.md": COMMANDS_PAGE.format(commands=commands),
    }


def _by_option(
    owners: Mapping[str, Mapping[str, Option]],
) -> Iterator[tuple[list[str], Option]]:
    """Each distinct option with the names of the models or losses that have it."""
    merged: dict[tuple[str, ...], tuple[list[str], Option]] = {}
    for owner, options in owners.items():
        for option in options.values():
            key = (option.name, *_cells(option))
            merged.setdefault(key, ([], option))[0].append(owner)
    yield from merged.values()


def _table(columns: Sequence[str], rows: Iterator[tuple[list[str], Option]]) -> str:
    head = [*columns, "type", "default", "tuned", "meaning"]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for owners, option in rows:
        shown = [f"`{option.name}`", ", ".join(owners)][: len(columns)]
        cells = [*shown, *_cells(option)]
        lines.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
    return "\n".join(lines)


def _cells(option: Option) -> tuple[str, str, str, str]:
    """Type with range, default, search range and help."""
    kind = ", ".join(filter(None, [getattr(option.type, "__name__", ""), option.interval]))
    if option.choices:
        kind = ", ".join(f"`{choice}`" for choice in option.choices)
    default = "required" if option.default is REQUIRED else f"`{option.default}`"
    tuned = ""
    if isinstance(option.search, Grid):
        tuned = ", ".join(str(value) for value in option.search.values)
    elif isinstance(option.search, LogRange):
        tuned = f"{option.search.low} to {option.search.high}"
    return kind, default, tuned, option.help.rstrip(".")


def _commands(group: Group, prefix: str) -> Iterator[tuple[str, str]]:
    for name, command in group.commands.items():
        full = f"{prefix} {name}"
        if isinstance(command, Group):
            yield from _commands(command, full)
        else:
            options = options_of(command).values()
            required = [option.name.upper() for option in options if option.default is REQUIRED]
            yield " ".join([full, *required]), summary_line(command)


def main() -> None:
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
