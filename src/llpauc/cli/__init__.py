"""The command line: `llpauc COMMAND ...`.

Exit codes: 0 done, 1 failure, 2 bad input, 130 interrupted. Nothing heavy is imported before a
command runs, so that `--help` answers at once.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from io import TextIOWrapper

from llpauc.cli import (
    auto,
    completion,
    data,
    demo,
    evaluate,
    recommend,
    report,
    reproduce,
    runs,
    serve,
    simulate,
    train,
    tune,
    update,
)
from llpauc.cli.memory_limit import check_limit
from llpauc.cli.parser import Group, call, find
from llpauc.cli.version import version_text
from llpauc.errors import InputError, ReportedByFirstProcessError

COMMANDS = Group(
    """Train recommenders towards their top-K lists, and measure them honestly.

  llpauc auto FILE           from a file to the best lists that fit a budget, with a report
  llpauc data inspect FILE   what is in a file of interactions, and what is odd
  llpauc evaluate FILE       how well popularity, ItemKNN and EASE do on it
  llpauc train FILE          train a model towards its top-K lists
  llpauc tune FILE           search for the setting that validates best
  llpauc update RUN EVENTS   go on from a saved run with new events
  llpauc recommend RUN       lists for all users, some, or somebody new
  llpauc serve RUN           the same over HTTP, and a page to look at
  llpauc report RUN...       that page as a file
  llpauc runs FOLDER...      which runs there are, and how they compare
  llpauc simulate            which metric follows Recall@K, over random rankings
  llpauc reproduce TARGET    the paper's tables and figures, one by one""",
    {
        "data": Group(
            "Look at, split and prepare interaction files.",
            {
                "inspect": data.inspect,
                "split": data.split,
                "noise": data.noise,
                "prepare": data.prepare,
                "verify": data.verify,
            },
        ),
        "auto": auto.auto,
        "evaluate": evaluate.evaluate,
        "train": train.train,
        "tune": tune.tune,
        "update": update.update,
        "recommend": recommend.recommend,
        "report": report.report,
        "runs": runs.runs,
        "serve": serve.serve,
        "simulate": simulate.simulate,
        "reproduce": reproduce.reproduce,
        "leaderboard": reproduce.leaderboard,
        "demo": demo.demo,
        "completion": completion.completion,
    },
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # an id that a terminal cannot show is no failure
            stream.reconfigure(errors="backslashreplace")
    try:
        try:
            return _run(words)
        finally:
            sys.stdout.flush()  # what cannot be written is to be told here, not at the very end
    except ReportedByFirstProcessError:
        time.sleep(1)  # for the first rank to tell it, before torchrun ends us all
        return 2
    except InputError as error:
        return _tell(str(error), 2)
    except KeyboardInterrupt:
        print("llpauc: interrupted", file=sys.stderr)
        return 130
    except RuntimeError as error:
        if type(error).__module__.startswith("llpauc."):  # training diverged: said in one line
            return _tell(str(error), 1)
        if "can't allocate memory" in str(error):  # torch has no class for it
            return _tell(f"out of memory: {error}", 1)
        raise
    except MemoryError as error:
        return _tell(f"out of memory: {error}", 1)
    except BrokenPipeError:  # the reader of our output has left: nobody to tell
        _leave_stdout()
        return 0
    except OSError as error:
        if error.filename is None:
            _leave_stdout()
        place = "" if error.filename is None else f"{error.filename}: "
        return _tell(f"{place}{error.strerror or error}", 1)


def _run(words: list[str]) -> int:
    if words == ["--version"]:
        print(version_text())
        return 0
    command, parser, rest = find(COMMANDS, words, "llpauc")
    given = parser.read(rest)
    check_limit()
    call(command, given)
    return 0


def _tell(message: str, code: int) -> int:
    print(f"llpauc: error: {' '.join(message.split())}", file=sys.stderr)
    return code


def _leave_stdout() -> None:
    """What is still in the buffer has nowhere to go; Python would try once more at the end."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
