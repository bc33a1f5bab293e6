"""The command line: `llpauc COMMAND ...`.

Exit codes: 0 done, 1 failure, 2 bad input, 130 interrupted. Nothing heavy is imported before a
command runs, so that `--help` answers at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.metadata import version

from llpauc.cli import data, demo, evaluate, train
from llpauc.cli.parser import Group, call, find
from llpauc.errors import InputError

COMMANDS = Group(
    """Train recommenders towards their top-K lists, and measure them honestly.

  llpauc data inspect FILE   what is in a file of interactions, and what is odd
  llpauc evaluate FILE       how well popularity, ItemKNN and EASE do on it
  llpauc train FILE          train a model towards its top-K lists
  llpauc recommend RUN       lists for all users, some, or somebody new""",
    {
        "data": Group(
            "Look at, split and prepare interaction files.",
            {"inspect": data.inspect, "split": data.split, "noise": data.noise},
        ),
        "evaluate": evaluate.evaluate,
        "train": train.train,
        "recommend": train.recommend,
        "demo": demo.demo,
    },
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words == ["--version"]:
        print(f"llpauc {version('llpauc')}")
        return 0
    command, parser, rest = find(COMMANDS, words, "llpauc")
    options = parser.parse_args(rest).as_dict()
    try:
        call(command, options)
    except InputError as error:
        print(f"llpauc: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("llpauc: interrupted", file=sys.stderr)
        return 130
    except RuntimeError as error:
        if type(error).__module__.startswith("llpauc."):  # training diverged: said in one line
            print(f"llpauc: error: {error}", file=sys.stderr)
            return 1
        raise
    except MemoryError as error:
        print(f"llpauc: error: out of memory: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader of our output has left: nobody to tell
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        print(f"llpauc: error: {error.filename or ''}: {error.strerror or error}", file=sys.stderr)
        return 1
    return 0
