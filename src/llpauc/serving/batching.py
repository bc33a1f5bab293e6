"""Requests that arrive together are ranked together.

Requests that arrive while the ranking threads are busy wait, and are then ranked in one batch, so
that the item vectors are read once for all of them. Another thread starts only when enough lists
are waiting.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from llpauc.serving.loaded_run import Entry, ListRequest, LoadedRun, rank_lists
from llpauc.storage.environment import cores

T = TypeVar("T")

MAX_BATCH = 15  # lists: larger batches are not faster per list (a multiple of three, see `rank`)
_MIN_WAITING = 4  # lists: four take hardly longer than one, so fewer do not need another thread


@dataclass(frozen=True)
class _Job:
    run: LoadedRun
    requests: Sequence[ListRequest]
    answer: asyncio.Future[list[list[Entry]]]


class Batcher:
    """The ranking threads and their queue; made and used in one event loop.

    `on_batch` is called with the number of lists of each batch.
    """

    def __init__(self, on_batch: Callable[[int], None]) -> None:
        self._on_batch, self._threads = on_batch, cores()
        self._pool = ThreadPoolExecutor(self._threads, "llpauc-ranking")
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Job] = deque()
        self._lists_waiting = 0
        self._start_scheduled = False
        self._running: set[asyncio.Future[Any]] = set()
        self.is_open = True

    async def rank(self, run: LoadedRun, requests: Sequence[ListRequest]) -> list[list[Entry]]:
        """The lists of these requests, all from `run`."""
        answer: asyncio.Future[list[list[Entry]]] = self._loop.create_future()
        self._waiting.append(_Job(run, requests, answer))
        self._lists_waiting += len(requests)
        if not self._start_scheduled:  # not at once: other requests may be ready in this iteration
            self._start_scheduled = True
            self._loop.call_soon(self._start)
        return await answer

    async def call(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function in a ranking thread."""
        return await self._loop.run_in_executor(self._pool, function, *args)

    async def close(self) -> None:
        """Finish the running batches; cancel the waiting requests."""
        self.is_open = False
        for job in self._waiting:
            job.answer.cancel()
        self._waiting.clear()
        await asyncio.gather(*self._running, return_exceptions=True)
        self._pool.shutdown()

    def _start(self) -> None:
        self._start_scheduled = False
        while self._waiting and (
            not self._running
            or (len(self._running) < self._threads and self._lists_waiting >= _MIN_WAITING)
        ):
            batch = self._next_batch()
            self._on_batch(sum(len(job.requests) for job in batch))
            ranking = self._loop.run_in_executor(self._pool, _rank_batch, batch)
            self._running.add(ranking)
            ranking.add_done_callback(partial(self._answer, batch))

    def _next_batch(self) -> list[_Job]:
        batch: list[_Job] = []
        n_lists = 0
        while self._waiting and (
            not batch or n_lists + len(self._waiting[0].requests) <= MAX_BATCH
        ):
            batch.append(self._waiting.popleft())
            n_lists += len(batch[-1].requests)
        self._lists_waiting -= n_lists
        return batch

    def _answer(self, batch: Sequence[_Job], ranking: asyncio.Future[Any]) -> None:
        self._running.discard(ranking)
        self._start()  # first, so that the thread is busy again
        error = ranking.exception()
        answers = [error] * len(batch) if error is not None else ranking.result()
        for job, answer in zip(batch, answers, strict=True):
            if job.answer.done():  # the client has disconnected
                continue
            if isinstance(answer, BaseException):
                job.answer.set_exception(answer)
            else:
                job.answer.set_result(answer)


def _rank_batch(batch: Sequence[_Job]) -> list[list[list[Entry]] | Exception]:
    """The answers in the order of the jobs, each from its own run."""
    answers: dict[int, list[list[Entry]] | Exception] = {}
    runs = {id(job.run): job.run for job in batch}
    for run in runs.values():  # two of them just after a reload
        jobs = [n for n, job in enumerate(batch) if job.run is run]
        try:
            lists = iter(rank_lists(run, [one for n in jobs for one in batch[n].requests]))
            for n in jobs:
                answers[n] = [next(lists) for _ in batch[n].requests]
        except Exception as error:
            for n in jobs:  # each alone, so that one failure does not affect the others
                answers[n] = error if len(jobs) == 1 else _rank_batch([batch[n]])[0]
    return [answers[n] for n in range(len(batch))]
