"""The entry point of `llpauc COMMAND ...`: the commands, the log handler and the exit codes.

Exit codes: 0 success, 1 failure, 2 bad input, 130 interrupted. Nothing heavy is imported before a
command runs, so that `--help` answers at once.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence

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
    sign,
    simulate,
    train,
    tune,
    update,
)
from llpauc.cli.console import install_log_handler, print_error
from llpauc.cli.parser import Group, call, find
from llpauc.cli.system import check_memory_limit, check_numba_variables, version_text
from llpauc.errors import InputError, ReportedByFirstProcessError

COMMANDS = Group(
    """Train recommenders towards their top-K lists, and measure them honestly.

  llpauc auto FILE           best recommendations within a time budget, with a report
  llpauc data inspect FILE   statistics of a file of interactions, and its problems
  llpauc evaluate FILE       metrics of popularity, ItemKNN and EASE on the data
  llpauc train FILE          train a model towards its top-K lists
  llpauc tune FILE           search for the settings with the best validation metric
  llpauc update RUN EVENTS   continue a saved run with new events
  llpauc recommend RUN       lists for all users, some users, or a new user
  llpauc serve RUN           the same over HTTP, with a web page
  llpauc report RUN...       the web page as a file
  llpauc runs FOLDER...      list and compare saved runs
  llpauc simulate            which metric correlates with Recall@K, over random rankings
  llpauc reproduce TARGET    the tables and figures of the paper""",
    {
        "data": Group(
            "Inspect, split and prepare interaction files.",
            {
                "inspect": data.inspect,
                "clean": data.clean,
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
        "sign": sign.sign,
        "simulate": simulate.simulate,
        "reproduce": reproduce.reproduce,
        "leaderboard": reproduce.leaderboard,
        "demo": demo.demo,
        "completion": completion.completion,
    },
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    install_log_handler()
    try:
        return _run(words)
    except ReportedByFirstProcessError:
        time.sleep(1)  # the first process prints the error before torchrun ends the others
        return 2
    except InputError as error:
        print_error(str(error))
        return 2
    except KeyboardInterrupt:
        print("llpauc: interrupted", file=sys.stderr)
        return 130
    except MemoryError as error:
        print_error(f"out of memory: {error}")
    except RuntimeError as error:
        if type(error).__module__.startswith("llpauc."):  # such as `Diverged`
            print_error(str(error))
        elif "can't allocate memory" in str(error):  # torch has no exception class for it
            print_error(f"out of memory: {error}")
        else:
            raise
    except OSError as error:
        path = "" if error.filename is None else f"{error.filename}: "
        print_error(f"{path}{error.strerror or error}")
    return 1


def _run(words: list[str]) -> int:
    if words == ["--version"]:
        print(version_text())
        return 0
    command, parser, rest = find(COMMANDS, words, "llpauc")
    values = parser.read(rest)
    check_memory_limit()
    check_numba_variables()
    if "WORLD_SIZE" not in os.environ:  # not started by torchrun: nothing is imported here
        call(command, values)
        return 0
    from llpauc.distributed import join_process_group

    with join_process_group():
        call(command, values)
    return 0
