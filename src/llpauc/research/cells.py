"""Cells: the trainings and measurements of a study, each run once and saved.

A cell is a function, a data set and options; the same cell gives the same numbers. Tables and
figures request cells from a `Study`, which runs the missing ones and saves each result as soon as
it is done. A study that was killed requests the same cells again and continues.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import multiprocessing
import os
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, TypeVar

from llpauc.data.interactions import Split, fingerprint
from llpauc.distributed import start_worker
from llpauc.errors import InputError, check_at_least
from llpauc.research import datasets
from llpauc.research.datasets import VARIANTS
from llpauc.storage.atomic import write_text
from llpauc.storage.environment import cores

logger = logging.getLogger(__name__)

Result = dict[str, Any]  # JSON values
Load = Callable[[str], Split]  # by the name of a data set
T = TypeVar("T")


@dataclass(frozen=True)
class Cell:
    """One piece of work."""

    function: Callable[..., Result]  # of a `Load`, the data set's name and the options
    data: str  # a name of `llpauc.research.datasets.DATASETS`
    options: tuple[tuple[str, Any], ...]  # sorted (name, value) pairs of JSON values

    @staticmethod
    def of(function: Callable[..., Result], data: str, **options: Any) -> Cell:
        """
        >>> Cell.of(print, "adressa-clean", seed=100, loss="bpr").options
        (('loss', 'bpr'), ('seed', 100))
        """
        return Cell(function, data, tuple(sorted(options.items())))

    def __getitem__(self, name: str) -> Any:
        return dict(self.options)[name]

    def replace(self, **options: Any) -> Cell:
        """The same cell with some options changed or added."""
        return Cell.of(self.function, self.data, **{**dict(self.options), **options})

    @property
    def spec(self) -> dict[str, Any]:
        kind = self.function.__name__
        return {"kind": kind, "data": self.data, "options": dict(self.options)}

    def __str__(self) -> str:
        """A short description for progress messages."""
        options = dict(self.options)
        words = [str(options[name]) for name in ("model", "loss") if name in options]
        if "seed" in options:
            words.append(f"seed {options['seed']}")
        return " ".join([self.data, *(words or [self.function.__name__])])


def digest(value: Mapping[str, Any]) -> str:
    """SHA-256 of a JSON value in canonical form."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class CellStore:
    """The saved results of a folder, one small file per cell, written atomically.

    The file name is the digest of the cell, the events of its data set and the version of the
    library, so that other data or another version are other cells. The file contains a digest of
    its contents, so that a broken or edited file is detected.
    """

    folder: Path
    data: Mapping[str, str]  # name of a data set -> digest of its events

    def path(self, cell: Cell) -> Path:
        return self.folder / f"{digest(self._key(cell))[:24]}.json"

    def _key(self, cell: Cell) -> Result:
        return {**cell.spec, "events": self.data[cell.data], "version": version("llpauc")}

    def get(self, cell: Cell) -> Result | None:
        """The result of a cell; None where there is no file, or a broken one."""
        path, key = self.path(cell), self._key(cell)
        try:
            saved = json.loads(path.read_text(encoding="utf-8"))
            result: Result = saved["result"]
            if saved["cell"] == key and saved["sha256"] == digest({"cell": key, "result": result}):
                return result
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError):
            pass
        logger.warning("%s is broken or edited: %s is run again", path, cell)
        return None

    def put(self, cell: Cell, result: Result) -> None:
        content = {"cell": self._key(cell), "result": result}
        text = json.dumps({**content, "sha256": digest(content)}, indent=1)
        self.folder.mkdir(parents=True, exist_ok=True)
        write_text(self.path(cell), text + "\n")


class Progress(NamedTuple):
    """Progress of a batch of cells."""

    done: int
    total: int
    remaining: float | None  # seconds; None before the first cell is done
    cell: Cell | None  # the one just done


@dataclass(frozen=True)
class Study:
    """A data folder, a results folder, and how to run cells."""

    data: Path
    out: Path  # cells are in its subfolder `cells`
    seeds: tuple[int, ...] = (100, 200, 300)
    quick: bool = False  # fewer seeds, smaller grids and fewer epochs, where a study supports it
    workers: int = 1  # cells run at the same time, each on its part of the cores
    on_progress: Callable[[Progress], None] = field(default=lambda progress: None)

    def __post_init__(self) -> None:
        check_at_least("workers", self.workers, 1)
        for seed in self.seeds:
            check_at_least("seed", seed, 0)

    @cached_property
    def available(self) -> tuple[str, ...]:
        """The data sets in the data folder."""
        return datasets.available(self.data)

    def require(self, names: Sequence[str]) -> list[str]:
        """Those of the data sets that are available; at least one is required."""
        present = [name for name in names if name in self.available]
        if not present:
            raise InputError(datasets.missing_message(names[0], self.data))
        return present

    def require_pairs(self, families: Sequence[str]) -> list[str]:
        """The families with both a clean and a noise set; at least one is required."""
        complete = [f for f in families if all(f"{f}-{v}" in self.available for v in VARIANTS)]
        if not complete:
            side = "noise" if f"{families[0]}-clean" in self.available else "clean"
            raise InputError(datasets.missing_message(f"{families[0]}-{side}", self.data))
        return complete

    def split(self, name: str) -> Split:
        return load_split(name, str(self.data))

    def result(self, cell: Cell) -> Result:
        return self.results([cell])[cell]

    def results(self, cells: Sequence[Cell]) -> dict[Cell, Result]:
        """Every cell's result; missing and broken ones are run."""
        events = {name: _events_digest(name, str(self.data)) for name in {c.data for c in cells}}
        store = CellStore(self.out / "cells", events)
        saved = {cell: store.get(cell) for cell in dict.fromkeys(cells)}
        for cell, result in saved.items():  # the same cell with test metrics answers one without
            if result is None and dict(cell.options).get("test") is False:
                with_test = store.get(cell.replace(test=True))
                saved[cell] = with_test if with_test and "valid" in with_test else None
        missing = [cell for cell, result in saved.items() if result is None]
        if missing:
            self._run(missing, store)
            saved |= {cell: store.get(cell) for cell in missing}
        return {cell: result for cell, result in saved.items() if result is not None}

    def grouped_results(self, groups: Mapping[T, Sequence[Cell]]) -> dict[T, list[Result]]:
        """The results of groups of cells, such as the seeds of a method; all run in one batch."""
        results = self.results([cell for cells in groups.values() for cell in cells])
        return {name: [results[cell] for cell in cells] for name, cells in groups.items()}

    def choose_best(
        self, candidates: Mapping[str, Sequence[tuple[T, Sequence[Cell]]]], finalists: int = 4
    ) -> dict[str, T]:
        """For each name, the candidate whose cells have the best mean validation value.

        Where there are more than `finalists`, the first cell of each candidate determines the
        finalists. A single candidate is not run.
        """
        many = {
            name: [(candidate, candidate[1][:1]) for candidate in some]
            for name, some in candidates.items()
            if len(some) > finalists
        }
        ordered = self._by_validation(many)
        final = {**candidates, **{name: order[:finalists] for name, order in ordered.items()}}
        return {name: order[0] for name, order in self._by_validation(final).items()}

    def _by_validation(
        self, candidates: Mapping[str, Sequence[tuple[T, Sequence[Cell]]]]
    ) -> dict[str, list[T]]:
        """Each name's candidates, the best mean validation value first."""
        several = [some for some in candidates.values() if len(some) > 1]
        results = self.results([cell for some in several for _, cells in some for cell in cells])

        def value(candidate: tuple[T, Sequence[Cell]]) -> float:
            return fmean(results.get(cell, {}).get("valid", -math.inf) for cell in candidate[1])

        return {
            name: [candidate for candidate, _ in sorted(some, key=value, reverse=True)]
            for name, some in candidates.items()
        }

    def _run(self, cells: list[Cell], store: CellStore) -> None:
        started, total = time.perf_counter(), len(cells)
        self.on_progress(Progress(0, total, None, None))
        with closing(self._run_each(cells, store)) as finished:
            for done, cell in enumerate(finished, 1):
                remaining = (time.perf_counter() - started) / done * (total - done)
                self.on_progress(Progress(done, total, remaining, cell))

    def _run_each(self, cells: list[Cell], store: CellStore) -> Generator[Cell, None, None]:
        """Run the cells; each is yielded when its result is saved."""
        workers = min(self.workers, len(cells))
        if workers == 1:
            for cell in cells:
                yield _run_and_save(cell, str(self.data), store)
            return
        # spawn: a fork would copy the thread pools of BLAS and OpenMP in an unusable state.
        context = multiprocessing.get_context("spawn")
        threads = max(1, cores() // workers)
        with ProcessPoolExecutor(workers, context, start_worker, (threads, os.getpid())) as pool:
            futures = [pool.submit(_run_and_save, cell, str(self.data), store) for cell in cells]
            try:
                for future in as_completed(futures):
                    yield future.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                for worker in multiprocessing.active_children():
                    worker.terminate()  # running cells are lost, as after kill -9
                raise


def run_cell(cell: Cell, data: str) -> Result:
    """Run one cell in this process."""
    return cell.function(lambda name: load_split(name, data), cell.data, **dict(cell.options))


def _run_and_save(cell: Cell, data: str, store: CellStore) -> Cell:
    store.put(cell, run_cell(cell, data))
    return cell


@lru_cache(maxsize=4)
def load_split(name: str, data: str) -> Split:
    return datasets.load(name, Path(data))


@lru_cache(maxsize=64)
def _events_digest(name: str, data: str) -> str:
    split = load_split(name, data)
    return fingerprint(split.train, split.valid, split.test)
