"""`llpauc reproduce`: the paper's tables and figures, one command each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from llpauc.cli.console import note, print_json
from llpauc.cli.outputs import check_folder
from llpauc.cli.parser import Count

if TYPE_CHECKING:
    from llpauc.experiments.lab import Progress


def reproduce(
    target: str,
    *,
    data: str = "data",
    out: str = "results",
    quick: bool = False,
    seeds: str = "100,200,300",
    workers: Count | None = None,
    json: bool = False,
) -> None:
    """Make a table or figure of the paper again, from the data to Markdown, CSV and picture.

    Targets: table1 (clean), table2 (noise), table-ml100k, table-ltr, table-complexity,
    table-datasets, figure-ablation, figure-hyper, figure-robustness, figure-convergence,
    figure-noise-loss, figure-roc, figure-around-model (not in the paper), or all. Every finished
    piece is kept in OUT/cells: a run that was stopped or killed goes on where it was, and targets
    share what they have in common.

    Args:
        target: what to make; several with commas between
        data: folder with the data sets (adressa_clean, adressa_noise, ml-100k, yelp, amazon-book)
        out: folder for the results
        quick: one seed, smaller grids, fewer epochs: to see that it works
        seeds: whole numbers with commas between
        workers: trainings at a time (as many as there are cores unless given)
        json: print the rows of each target as JSON
    """
    import os
    import time
    from pathlib import Path

    from llpauc.errors import InputError, choose
    from llpauc.experiments.lab import Lab
    from llpauc.experiments.report import write_report
    from llpauc.experiments.targets import TARGETS

    wanted = list(TARGETS) if target == "all" else target.split(",")
    makers = {name: choose(TARGETS, name, "target") for name in wanted}
    if not Path(data).is_dir():
        raise InputError(f"{data}: no such folder; --data wants the one with the data sets")
    try:
        numbers = tuple(int(word) for word in seeds.split(","))
    except ValueError:
        raise InputError(f"--seeds wants whole numbers, got {seeds!r}; try 100,200,300") from None
    check_folder(out)
    words = ["llpauc reproduce", target, "--data", data, "--out", out]
    words += ["--quick"] if quick else []
    words += ["--seeds", seeds] if seeds != "100,200,300" else []
    made = {}
    for name, make in makers.items():
        begun = time.perf_counter()
        with _cells_progress(name) as tell:
            lab = Lab(
                Path(data), Path(out), numbers[:1] if quick else numbers, quick,
                workers or os.cpu_count() or 1, tell, note,
            )  # fmt: skip
            report = make(lab)
        paths = write_report(report, Path(out), " ".join(words))
        taken = time.perf_counter() - begun
        made[name] = list(report.rows)
        note(f"{name}: wrote {', '.join(map(str, paths))} ({taken:.0f} s)")
    if json:
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
                left = "" if state.left is None else f", {_span(state.left)} left"
                note(f"{name}: {state.done} of {state.total} trainings{left}: {state.cell}")

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
            left = "" if state.left is None else f"{_span(state.left)} left of this part"
            bar.update(task, total=state.total, completed=state.done, left=left)

        yield show


def _span(seconds: float) -> str:
    """
    >>> _span(40), _span(200)
    ('40 s', '3 min')
    """
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
