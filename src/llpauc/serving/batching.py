"""Requests that arrive together are ranked together.

What arrives while the ranking threads are at work is gathered, and then goes through one product:
the item vectors are read once for all of a batch. Another thread is set to work only where enough
lists wait to make that worth while.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from llpauc.serving.loaded_run import Entry, Served, Wish, rank_wishes
from llpauc.serving.small_batches import PEOPLE
from llpauc.storage.environment import cores

T = TypeVar("T")

_MOST_TOGETHER = PEOPLE  # lists; with more, answers would wait for each other and cost no less
_WORTH_A_THREAD = 4  # lists; four cost hardly more than one


@dataclass(frozen=True)
class _Request:
    served: Served
    wishes: Sequence[Wish]
    answer: asyncio.Future[list[list[Entry]]]


class Batcher:
    """The ranking threads and their queue; to be made and used in one event loop.

    Args:
        noticed: told the number of lists of each batch.
        threads: most that rank at once; by default one a core.
    """

    def __init__(
        self, noticed: Callable[[int], None] | None = None, threads: int | None = None
    ) -> None:
        self._noticed, self._threads = noticed, threads or cores()
        self._pool = ThreadPoolExecutor(self._threads, "llpauc-ranking")
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Request] = deque()
        self._lists_waiting = 0
        self._will_start = False
        self._under_way: set[asyncio.Future[Any]] = set()
        self._is_open = True

    @property
    def alive(self) -> bool:
        return self._is_open

    async def rank(self, served: Served, wishes: Sequence[Wish]) -> list[list[Entry]]:
        """The lists of these wishes, all from `served`."""
        answer: asyncio.Future[list[list[Entry]]] = self._loop.create_future()
        self._waiting.append(_Request(served, wishes, answer))
        self._lists_waiting += len(wishes)
        if not self._will_start:  # soon: whoever is about to ask comes along
            self._will_start = True
            self._loop.call_soon(self._start)
        return await answer

    async def call(self, work: Callable[..., T], *args: Any) -> T:
        """Any other work for a ranking thread."""
        return await self._loop.run_in_executor(self._pool, work, *args)

    async def close(self) -> None:
        """Finish what is under way; what waits is given up."""
        self._is_open = False
        for request in self._waiting:
            request.answer.cancel()
        self._waiting.clear()
        await asyncio.gather(*self._under_way, return_exceptions=True)
        self._pool.shutdown()

    def _start(self) -> None:
        self._will_start = False
        while self._waiting and (not self._under_way or self._is_worth_a_thread()):
            batch = self._take()
            if self._noticed is not None:
                self._noticed(sum(len(request.wishes) for request in batch))
            job = self._loop.run_in_executor(self._pool, _rank_together, batch)
            self._under_way.add(job)
            job.add_done_callback(partial(self._answer, batch))

    def _is_worth_a_thread(self) -> bool:
        return len(self._under_way) < self._threads and self._lists_waiting >= _WORTH_A_THREAD

    def _answer(self, batch: Sequence[_Request], job: asyncio.Future[Any]) -> None:
        self._under_way.discard(job)
        self._start()  # before anything else: the thread is to have work
        error = job.exception()
        answers = [error] * len(batch) if error is not None else job.result()
        for request, answer in zip(batch, answers, strict=True):
            if request.answer.done():  # whoever asked has left
                continue
            if isinstance(answer, BaseException):
                request.answer.set_exception(answer)
            else:
                request.answer.set_result(answer)

    def _take(self) -> list[_Request]:
        batch: list[_Request] = []
        lists = 0
        while self._waiting and (
            not batch or lists + len(self._waiting[0].wishes) <= _MOST_TOGETHER
        ):
            batch.append(self._waiting.popleft())
            lists += len(batch[-1].wishes)
        self._lists_waiting -= lists
        return batch


def _rank_together(batch: Sequence[_Request]) -> list[list[list[Entry]] | Exception]:
    """Answers in the order of the requests, each from the model it was asked of."""
    answers: list[list[list[Entry]] | Exception] = [[] for _ in batch]
    models = {id(request.served): request.served for request in batch}
    for served in models.values():  # two of them for a moment after a reload
        places = [place for place, request in enumerate(batch) if request.served is served]
        wishes = [wish for place in places for wish in batch[place].wishes]
        try:
            lists = iter(rank_wishes(served, wishes))
            for place in places:
                answers[place] = [next(lists) for _ in batch[place].wishes]
        except Exception as error:
            if len(places) == 1:
                answers[places[0]] = error
                continue
            for place in places:  # one that cannot be ranked is not to take the others along
                (answers[place],) = _rank_together([batch[place]])
    return answers
