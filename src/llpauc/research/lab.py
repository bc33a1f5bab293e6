"""Where cells are run: those that are missing, several at a time, each kept as soon as it is done.

A study asks `Lab.results` for cells and goes on when it has them. Killed in the middle and started
again, it asks for the same cells, and finds those that were done.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from statistics import fmean
from typing import TypeVar

from llpauc.data.fingerprint import fingerprint
from llpauc.data.interactions import Split
from llpauc.distributed import start_worker
from llpauc.errors import check_at_least
from llpauc.research import collection
from llpauc.research.cells import Cell, Result
from llpauc.research.paper import datasets
from llpauc.research.paper.settings import SEEDS
from llpauc.research.store import Store
from llpauc.storage.environment import cores

Chosen = TypeVar("Chosen")


@dataclass(frozen=True)
class Progress:
    """Where a batch of cells stands.

    Args:
        done, total: cells of this batch that had to be run.
        left: seconds until the end, or None before the first is done.
        cell: the one just done, or None at the start.
    """

    done: int
    total: int
    left: float | None
    cell: Cell | None


@dataclass(frozen=True)
class Lab:
    """Data, a results folder, and hands to work.

    Args:
        data: the folder with the data sets.
        out: the results folder; cells lie in its subfolder `cells`.
        seeds: of every trained cell.
        quick: fewer seeds, grids and epochs, where a study has them.
        workers: cells run at a time, each on its share of the cores.
        tell: called with every step forward.
        warn: called with a line about a broken result file.
    """

    data: Path
    out: Path
    seeds: tuple[int, ...] = SEEDS
    quick: bool = False
    workers: int = 1
    tell: Callable[[Progress], None] = field(default=lambda progress: None)
    warn: Callable[[str], None] = field(default=lambda line: None)

    def __post_init__(self) -> None:
        check_at_least("workers", self.workers, 1)
        for seed in self.seeds:
            check_at_least("seed", seed, 0)

    @cached_property
    def available(self) -> tuple[str, ...]:
        """The paper's data sets that can be run with what is on disk."""
        return datasets.available(self.data)

    @cached_property
    def every(self) -> tuple[str, ...]:
        """Those, and the other sets of the leaderboard."""
        return collection.available(self.data)

    def split(self, name: str) -> Split:
        return load_split(name, str(self.data))

    def results(self, cells: Sequence[Cell]) -> dict[Cell, Result]:
        """Every cell's result; those that are missing or broken are run."""
        wanted = list(dict.fromkeys(cells))
        store = Store(self.out / "cells", {c.data: _digest(c.data, str(self.data)) for c in wanted})
        found = {cell: _stored(store, cell) for cell in wanted}
        missing = [cell for cell, result in found.items() if result is None]
        for cell in missing:
            if store.broken(cell):
                self.warn(f"{store.path(cell)} is broken or edited: {cell} is run again")
        if missing:
            self._run(missing, store)
            found |= {cell: store.get(cell) for cell in missing}
        return {cell: result for cell, result in found.items() if result is not None}

    def best(
        self, asked: Mapping[str, Sequence[tuple[Chosen, Sequence[Cell]]]], finalists: int = 4
    ) -> dict[str, Chosen]:
        """For each name the candidate whose cells validate best on average.

        Where there are more candidates than `finalists`, the first cell of each decides who the
        finalists are. A single candidate need not be run.
        """
        large = {name: some for name, some in asked.items() if len(some) > finalists}
        first = self._by_validation({n: [(c, c[1][:1]) for c in s] for n, s in large.items()})
        rest = {**asked, **{name: order[:finalists] for name, order in first.items()}}
        return {name: order[0] for name, order in self._by_validation(rest).items()}

    def _by_validation(
        self, asked: Mapping[str, Sequence[tuple[Chosen, Sequence[Cell]]]]
    ) -> dict[str, list[Chosen]]:
        """Each name's candidates, the best mean validation figure first."""
        runs = [c for some in asked.values() if len(some) > 1 for _, cells in some for c in cells]
        results = self.results(runs)

        def figure(cells: Sequence[Cell]) -> float:
            return fmean(results[cell].get("valid", -math.inf) for cell in cells)

        return {
            name: [
                candidate for candidate, cells in sorted(some, key=lambda pair: -figure(pair[1]))
            ]
            if len(some) > 1
            else [some[0][0]]
            for name, some in asked.items()
        }

    def result(self, cell: Cell) -> Result:
        return self.results([cell])[cell]

    def _run(self, cells: list[Cell], store: Store) -> None:
        begun, total = time.perf_counter(), len(cells)
        self.tell(Progress(0, total, None, None))
        # Timings want the machine for themselves.
        alone = [cell for cell in cells if cell.kind == "step-time"]
        together = [cell for cell in cells if cell.kind != "step-time"]
        done = 0

        def finished(cell: Cell) -> None:
            nonlocal done
            done += 1
            each = (time.perf_counter() - begun) / done
            self.tell(Progress(done, total, each * (total - done), cell))

        workers = min(self.workers, len(together))
        if workers > 1:
            self._run_together(together, store, workers, finished)
        else:
            alone = together + alone
        for cell in alone:
            store.put(cell, run(cell, str(self.data)))
            finished(cell)

    def _run_together(
        self, cells: list[Cell], store: Store, workers: int, finished: Callable[[Cell], None]
    ) -> None:
        threads = max(1, cores() // workers)
        # spawn: a fork would share the threads of BLAS and OpenMP, which do not survive it.
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(workers, context, start_worker, (threads, os.getpid()))
        with pool:
            running: dict[Future[None], Cell] = {
                pool.submit(_run_and_put, cell, str(self.data), store): cell for cell in cells
            }
            try:
                while running:
                    ready, _ = wait(running, return_when=FIRST_COMPLETED)
                    for future in ready:
                        cell = running.pop(future)
                        future.result()
                        finished(cell)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                for worker in multiprocessing.active_children():
                    worker.terminate()  # a cell under way is lost, as after kill -9
                raise


def run(cell: Cell, data: str) -> Result:
    """Run one cell here and now."""
    from llpauc.research.paper.targets import RUNNERS

    options = dict(cell.options)
    return RUNNERS[cell.kind](lambda name: load_split(name, data), cell.data, **options)


def _stored(store: Store, cell: Cell) -> Result | None:
    """A cell's result; one that reads no test figures is answered by its twin that does."""
    found = store.get(cell)
    if found is None and dict(cell.options).get("test") is False:
        twin = store.get(cell.but(test=True))
        found = twin if twin is not None and "valid" in twin else None
    return found


def _run_and_put(cell: Cell, data: str, store: Store) -> None:
    store.put(cell, run(cell, data))


@lru_cache(maxsize=4)
def load_split(name: str, data: str) -> Split:
    return collection.load(name, Path(data))


@lru_cache(maxsize=64)
def _digest(name: str, data: str) -> str:
    split = load_split(name, data)
    return fingerprint(split.train, split.valid, split.test)
