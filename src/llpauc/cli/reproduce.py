"""`llpauc reproduce` and `llpauc leaderboard`: studies of many trainings, which can be resumed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llpauc.cli.console import log, print_json, time_span
from llpauc.cli.system import check_folder
from llpauc.options import Count

if TYPE_CHECKING:
    from llpauc.research.cells import Progress
    from llpauc.research.targets import Target


@dataclass(frozen=True)
class StudyOptions:
    """How a study is run.

    Args:
        data: folder with the data sets
        out: folder for the results
        quick: one seed, smaller grids, fewer epochs, to check that everything works
        seeds: whole numbers, separated by commas
        workers: number of trainings at the same time (default: the number of cores)
        json: print the rows as JSON
    """

    data: str = "data"
    out: str = "results"
    quick: bool = False
    seeds: str = "100,200,300"
    workers: Count | None = None
    json: bool = False


def reproduce(target: str, *, options: StudyOptions) -> None:
    """Reproduce a table or figure of the paper as Markdown, CSV and PNG.

    Targets: table1 (clean), table2 (noise), table-ml100k, table-ltr, table-complexity,
    table-datasets, figure-ablation, figure-hyper, figure-robustness, figure-convergence,
    figure-noise-loss, figure-roc; not in the paper: figure-around-model, table-noise-gap; or all.
    The data folder holds adressa_clean, adressa_noise, ml-100k, ml-1m_clean, ml-1m_noisy, yelp,
    amazon-book, or some of them. Every finished training is saved in OUT/cells: an interrupted run
    continues, and targets share common trainings.

    Args:
        target: what to make; several are separated by commas
    """
    from llpauc.research.targets import TARGETS

    names = list(TARGETS) if target == "all" else target.split(",")
    _run({name: TARGETS[name] for name in names}, f"llpauc reproduce {target}", options)


def leaderboard(
    *,
    only: str | None = None,
    methods: str | None = None,
    lists: str | None = None,
    options: StudyOptions,
) -> None:
    """Compare the default of `llpauc train` with other methods, on every available data set.

    Validation chooses each method's setting; the test part is evaluated once, with three seeds.
    Every finished training is saved: an interrupted run continues.

    Args:
        only: data sets, separated by commas; by default all that are available
        methods: popularity, recent_popularity, itemknn, ease, ials, bpr, sl, paper (LLPAUC as
            published), llpauc (the default without its blend), default, or some of them, separated
            by commas; by default all
        lists: a folder for our lists of the first seed, to evaluate them with another program
    """
    from functools import partial
    from pathlib import Path

    from llpauc.errors import choose
    from llpauc.research.leaderboard import BOARDS
    from llpauc.research.leaderboard import leaderboard as make

    names = None if only is None else only.split(",")
    for name in names or ():
        choose(dict(BOARDS), name, "data set")
    command = "llpauc leaderboard" + ("" if only is None else f" --only {only}")
    command += "" if methods is None else f" --methods {methods}"
    if lists is not None:
        check_folder(lists, replaced=False)
    target = partial(
        make,
        names=names,
        methods=None if methods is None else methods.split(","),
        lists=None if lists is None else Path(lists),
    )
    _run({"leaderboard": target}, command, options)


def _run(targets: Mapping[str, Target], command: str, options: StudyOptions) -> None:
    """Make and write the reports one after another; they name the `command`."""
    import time
    from pathlib import Path

    from llpauc.errors import InputError
    from llpauc.research.cells import Study
    from llpauc.research.report_files import write_report
    from llpauc.storage.environment import cores

    data, out = Path(options.data), Path(options.out)
    if not data.is_dir():
        raise InputError(f"{data}: no such folder; --data needs the folder with the data sets")
    try:
        seeds = tuple(int(word) for word in options.seeds.split(","))
    except ValueError:
        message = f"--seeds needs whole numbers, got {options.seeds!r}; try 100,200,300"
        raise InputError(message) from None
    check_folder(options.out, replaced=False)
    words = [command, "--data DATA"]  # the reports do not name folders of this machine
    words += ["--quick"] if options.quick else []
    words += ["--seeds", options.seeds] if options.seeds != StudyOptions.seeds else []
    rows = {}
    for name, target in targets.items():
        started = time.perf_counter()
        with _show_progress(name) as on_progress:
            used_seeds, workers = seeds[:1] if options.quick else seeds, options.workers or cores()
            study = Study(data, out, used_seeds, options.quick, workers, on_progress)
            report = target(study)
        paths = write_report(report, out, " ".join(words))
        rows[name] = list(report.rows)
        seconds = time.perf_counter() - started
        log.info(f"{name}: wrote {', '.join(map(str, paths))} ({seconds:.0f} s)")
    if options.json:
        print_json(rows)


@contextmanager
def _show_progress(name: str) -> Iterator[Callable[[Progress], None]]:
    """On a terminal, a progress bar for each batch of cells; otherwise one line per cell."""
    import sys

    from rich.progress import BarColumn, MofNCompleteColumn, TimeElapsedColumn

    from llpauc.progress import DESCRIPTION, open_bar

    def remaining(state: Progress) -> str:
        return "" if state.remaining is None else f"{time_span(state.remaining)} left"

    if not sys.stderr.isatty():

        def print_line(state: Progress) -> None:
            if state.cell is not None:
                done = f"{state.done} of {state.total} trainings, {remaining(state)}"
                log.info(f"{name}: {done}: {state.cell}")

        yield print_line
        return
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), DESCRIPTION)
    with open_bar(columns, name, None) as (bar, task):

        def update_bar(state: Progress) -> None:
            text = f"{name} {remaining(state)}"
            bar.update(task, total=state.total, completed=state.done, description=text)

        yield update_bar
