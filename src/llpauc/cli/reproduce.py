"""`llpauc reproduce` and `llpauc leaderboard`: studies of many trainings, resumable."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llpauc.cli.console import log, print_json, time_span
from llpauc.cli.outputs import check_folder
from llpauc.options import Count

if TYPE_CHECKING:
    from llpauc.research.lab import Lab, Progress
    from llpauc.research.report import Report


@dataclass(frozen=True)
class StudyOptions:
    """How a study is run.

    Args:
        data: folder with the data sets
        out: folder for the results
        quick: one seed, smaller grids, fewer epochs: to see that it works
        seeds: whole numbers with commas between
        workers: trainings at a time (as many as there are cores unless given)
        json: print the rows as JSON
    """

    data: str = "data"
    out: str = "results"
    quick: bool = False
    seeds: str = "100,200,300"
    workers: Count | None = None
    json: bool = False


def reproduce(target: str, *, options: StudyOptions) -> None:
    """Make a table or figure of the paper again, from the data to Markdown, CSV and picture.

    Targets: table1 (clean), table2 (noise), table-ml100k, table-ltr, table-complexity,
    table-datasets, figure-ablation, figure-hyper, figure-robustness, figure-convergence,
    figure-noise-loss, figure-roc; not in the paper: figure-around-model, table-noise-gap; or all.
    The data folder holds adressa_clean, adressa_noise, ml-100k, ml-1m_clean, ml-1m_noisy, yelp,
    amazon-book, or some of them. Every finished piece is kept in OUT/cells: a run that was stopped
    or killed goes on where it was, and targets share what they have in common.

    Args:
        target: what to make; several with commas between
    """
    from llpauc.errors import choose
    from llpauc.research.paper.targets import TARGETS

    wanted = list(TARGETS) if target == "all" else target.split(",")
    makers = {name: choose(TARGETS, name, "target") for name in wanted}
    _study(makers, f"llpauc reproduce {target}", options)


def leaderboard(
    *,
    only: str | None = None,
    methods: str | None = None,
    lists: str | None = None,
    options: StudyOptions,
) -> None:
    """Compare our recommended setting with the baselines, on every data set there is.

    Popularity, recent popularity, ItemKNN, EASE, BPR, SL and LLPAUC as published, on Adressa,
    MovieLens-100k, Amazon-health, Amazon-electronic and Gowalla, as far as they are in the data
    folder. Validation chooses each method's setting, three seeds, the test is read once.
    Every finished piece is kept: a run that was stopped goes on where it was.

    Args:
        only: data sets, with commas between; all that are there unless given
        methods: popularity, recent, itemknn, ease, bpr, sl, llpauc-published, llpauc-auto, or some
            of them, with commas between; all unless given
        lists: a folder for our own lists of the first seed, for another program to score
    """
    from functools import partial
    from pathlib import Path

    from llpauc.errors import choose
    from llpauc.research.leaderboard import BOARDS
    from llpauc.research.leaderboard import leaderboard as make

    names = None if only is None else only.split(",")
    for name in names or ():
        choose({data: 1 for data, _ in BOARDS}, name, "data set")
    chosen = None if methods is None else methods.split(",")
    command = "llpauc leaderboard" + ("" if only is None else f" --only {only}")
    command += "" if methods is None else f" --methods {methods}"
    if lists is not None:
        check_folder(lists)
    folder = None if lists is None else Path(lists)
    _study(
        {"leaderboard": partial(make, names=names, methods=chosen, lists=folder)}, command, options
    )


def _study(
    makers: Mapping[str, Callable[[Lab], Report]], command: str, options: StudyOptions
) -> None:
    """Make the reports one after another; `command` is how it was asked for."""
    import time
    from pathlib import Path

    from llpauc.errors import InputError
    from llpauc.research.lab import Lab
    from llpauc.research.report import write_report
    from llpauc.storage.environment import cores

    data, out, seeds = Path(options.data), Path(options.out), options.seeds
    if not data.is_dir():
        raise InputError(f"{data}: no such folder; --data wants the one with the data sets")
    try:
        numbers = tuple(int(word) for word in seeds.split(","))
    except ValueError:
        raise InputError(f"--seeds wants whole numbers, got {seeds!r}; try 100,200,300") from None
    check_folder(options.out)
    words = [command, "--data DATA"]  # where it lies is nobody's business but this machine's
    words += ["--quick"] if options.quick else []
    words += ["--seeds", seeds] if seeds != StudyOptions.seeds else []
    made = {}
    for name, make in makers.items():
        begun = time.perf_counter()
        with _cells_progress(name) as tell:
            lab = Lab(
                data, out, numbers[:1] if options.quick else numbers, options.quick,
                options.workers or cores(), tell, log.info,
            )  # fmt: skip
            report = make(lab)
        paths = write_report(report, out, " ".join(words))
        taken = time.perf_counter() - begun
        made[name] = list(report.rows)
        log.info(f"{name}: wrote {', '.join(map(str, paths))} ({taken:.0f} s)")
    if options.json:
        print_json(made)


@contextmanager
def _cells_progress(name: str) -> Iterator[Callable[[Progress], None]]:
    """On a terminal a bar for each batch of cells; elsewhere a line when a cell is done."""
    import sys

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    if not sys.stderr.isatty():

        def say(state: Progress) -> None:
            if state.cell is not None:
                left = "" if state.left is None else f", {time_span(state.left)} left"
                log.info(f"{name}: {state.done} of {state.total} trainings{left}: {state.cell}")

        yield say
        return
    bar = Bar(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}", markup=False),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        task = bar.add_task(name, total=None, left="")

        def show(state: Progress) -> None:
            left = "" if state.left is None else f"{time_span(state.left)} left of this part"
            bar.update(task, total=state.total, completed=state.done, left=left)

        yield show
