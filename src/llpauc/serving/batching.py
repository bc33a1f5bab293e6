"""Requests that arrive together are ranked together.

One thread ranks. What arrives while it is at work is gathered, and then goes through one product
and one pass for the best K. `rank` computes whole tiles of users whatever is asked (so that batch =
single, bit for bit): a request that is ranked alone pays for a tile, those that share one share the
price.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from llpauc.serving.served import Entry, Served, Wish, rank_wishes

T = TypeVar("T")

_MOST_TOGETHER = 256  # lists ranked at once: some tiles, which `rank` spreads over the cores


@dataclass(frozen=True)
class _Request:
    served: Served
    wishes: Sequence[Wish]
    answer: asyncio.Future[list[list[Entry]]]


class Batcher:
    """The ranking thread and its queue; to be made and used in one event loop.

    Args:
        noticed: told the number of lists of each batch.
    """

    def __init__(self, noticed: Callable[[int], None] | None = None) -> None:
        self._noticed = noticed
        self._thread = ThreadPoolExecutor(1, "llpauc-ranking")
        self._waiting: deque[_Request] = deque()
        self._arrived = asyncio.Event()
        self._pump = asyncio.create_task(self._work())

    @property
    def alive(self) -> bool:
        return not self._pump.done()

    async def rank(self, served: Served, wishes: Sequence[Wish]) -> list[list[Entry]]:
        """The lists of these wishes, all from `served`."""
        answer: asyncio.Future[list[list[Entry]]] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Request(served, wishes, answer))
        self._arrived.set()
        return await answer

    async def call(self, work: Callable[..., T], *args: Any) -> T:
        """Any other work for the ranking thread, after what it is doing."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *args)

    async def close(self) -> None:
        self._pump.cancel()
        await asyncio.gather(self._pump, return_exceptions=True)
        for request in self._waiting:
            request.answer.cancel()
        self._thread.shutdown()

    async def _work(self) -> None:
        while True:
            await self._arrived.wait()
            await asyncio.sleep(0)  # whoever is about to ask comes along; waiting longer only cost
            batch = self._take()
            if self._noticed is not None:
                self._noticed(sum(len(request.wishes) for request in batch))
            try:
                answers = await self.call(_rank_together, batch)
            except Exception as error:
                answers = [error] * len(batch)
            for request, answer in zip(batch, answers, strict=True):
                if request.answer.done():  # whoever asked has left
                    continue
                if isinstance(answer, Exception):
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
        if not self._waiting:
            self._arrived.clear()
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
