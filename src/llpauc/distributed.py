"""Several processes that train one model together: who is who, and what they tell each other.

`torchrun` starts the processes and `torch.distributed` carries the messages (gloo between CPUs,
NCCL between GPUs). All processes call the same methods in the same order; each call is a message
that
waits for all. `SINGLE_PROCESS` is a single process: every method then answers at once, by itself,
and torch
is not even imported.

Messages are arrays of numbers and UTF-8 text, never pickled objects.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt

from llpauc.errors import InputError, ReportedByFirstProcessError

Array = npt.NDArray[Any]
Made = TypeVar("Made")

WATCHDOG = 300.0  # seconds a rank waits for the others before it gives up


class LostProcessError(RuntimeError):
    """Another rank is gone or does not answer."""


@dataclass(frozen=True)
class ProcessGroup:
    """This process among all that train together.

    Args:
        rank: its number, from 0.
        size: how many there are.
    """

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """Whether this is the one that writes files and talks to people."""
        return self.rank == 0

    def share(self, n: int) -> slice:
        """This rank's part of n things, in order."""
        return slice(*self.bounds(n)[self.rank : self.rank + 2])

    def bounds(self, n: int) -> list[int]:
        """Where the shares of n things begin, and n: as torch.chunk and DTensor divide.

        >>> ProcessGroup(0, 3).bounds(7)
        [0, 3, 6, 7]
        """
        each = -(-n // self.size)
        return [min(rank * each, n) for rank in range(self.size + 1)]

    def wait(self) -> None:
        """Until all processes are here."""
        if self.size > 1:
            self.sum([0.0])

    def sum(self, numbers: Sequence[float]) -> list[float]:
        """The sums over all processes, in double precision, the same bits everywhere."""
        if self.size == 1:
            return list(numbers)
        # Gathered and added up in the order of the processes: what an all-reduce rounds to is its
        # own.
        one_each = np.ones((self.size, 1), np.int64)
        (rows,) = self.gather_all([np.array([numbers], np.float64)], one_each)
        total: list[float] = rows.sum(axis=0).tolist()
        return total

    def gather(self, array: Array) -> Array:
        """All processes' arrays, one behind the other along the first axis; lengths may differ."""
        return self.gather_all([array])[0]

    def gather_all(self, arrays: Sequence[Array], lengths: Array | None = None) -> list[Array]:
        """As `gather`, of several arrays in one message: each costs a good part of a millisecond.

        Args:
            arrays: this rank's.
            lengths: (processes, arrays), where they are known; to ask costs a message more.
        """
        if self.size == 1:
            return list(arrays)
        import torch

        if lengths is None:
            lengths = self.lengths([len(array) for array in arrays])
        # As bytes: gloo knows neither truth values nor all widths of numbers.
        widths = [a.dtype.itemsize * int(np.prod(a.shape[1:], dtype=np.int64)) for a in arrays]
        sizes = (lengths * widths).sum(axis=1)
        mine = np.zeros(int(sizes.max()), np.uint8)
        parts = [np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays]
        np.concatenate(parts, out=mine[: int(sizes[self.rank])])
        came = torch.empty(self.size * len(mine), dtype=torch.uint8)
        if len(mine):
            with _listening():
                torch.distributed.all_gather(list(came.chunk(self.size)), torch.from_numpy(mine))
        of_rank = came.numpy().reshape(self.size, len(mine))
        ends = np.cumsum(lengths * widths, axis=1)
        gathered = []
        for place, (array, width) in enumerate(zip(arrays, widths, strict=True)):
            begins = ends[:, place] - lengths[:, place] * width
            pieces = [of_rank[rank, begins[rank] : ends[rank, place]] for rank in range(self.size)]
            whole = np.concatenate(pieces).view(array.dtype)
            gathered.append(whole.reshape(int(lengths[:, place].sum()), *array.shape[1:]))
        return gathered

    def exchange(self, array: Array, counts: Array, come: Array) -> Array:
        """Give counts[r] rows to each rank r, in order; what came, come[r] rows from each."""
        if self.size == 1:
            return array
        import torch

        rows = torch.from_numpy(np.ascontiguousarray(array))
        into = torch.empty((int(come.sum()), *rows.shape[1:]), dtype=rows.dtype)
        with _listening():
            torch.distributed.all_to_all_single(into, rows, come.tolist(), counts.tolist())
        return into.numpy()

    def collect(self, array: Array) -> Array | None:
        """As `gather`, on the first rank alone: the others get None, and need no room for it."""
        if self.size == 1:
            return array
        import torch

        lengths = self.lengths([len(array)])[:, 0].tolist()
        mine = torch.from_numpy(np.ascontiguousarray(array))
        with _listening():
            if not self.first:
                if len(mine):
                    torch.distributed.send(mine, 0)
                return None
            whole = torch.empty((sum(lengths), *mine.shape[1:]), dtype=mine.dtype)
            parts = torch.split(whole, lengths)
            parts[0].copy_(mine)
            for rank, part in enumerate(parts):
                if rank and len(part):
                    torch.distributed.recv(part, rank)
        return whole.numpy()

    def spread(self, array: Array) -> None:
        """The first rank's array into everybody's, in place."""
        if self.size > 1:
            import torch

            with _listening():
                torch.distributed.broadcast(torch.from_numpy(array), 0)

    def texts(self, text: str) -> list[str]:
        """What every rank says."""
        if self.size == 1:
            return [text]
        coded = np.frombuffer(text.encode(), np.uint8)
        lengths = self.lengths([len(coded)])
        parts = np.split(self.gather_all([coded], lengths)[0], np.cumsum(lengths)[:-1])
        return [bytes(part).decode() for part in parts]

    def together(self, make: Callable[[], Made]) -> Made:
        """What `make` gives, where no rank was refused; one rank's InputError is everybody's.

        To be used where processes may fare differently, as with files: one that stops alone would
        leave
        the others waiting.
        """
        if self.size == 1:
            return make()
        made: Made | None = None
        trouble = ""
        try:
            made = make()
        except InputError as error:
            trouble = str(error)
        except OSError as error:
            trouble = f"{error.filename or 'a file'}: {error.strerror or error}"
        told = self.texts(trouble)
        for rank, text in enumerate(told):
            if text:
                alone = any(other != text for other in told)  # else it is everybody's own
                self._refuse(f"rank {rank}: {text}" if alone else text)
        return made  # type: ignore[return-value]

    def _refuse(self, why: str) -> NoReturn:
        """An error of all processes, which the first one tells."""
        raise InputError(why) if self.first else ReportedByFirstProcessError(why)

    def check_same(self, what: str, value: Any) -> None:
        """Refuse to go on where processes have different values of something they must share."""
        if self.size == 1:
            return
        told = self.texts(json.dumps(value, default=str, sort_keys=True))
        for rank, text in enumerate(told):
            if text != told[0]:
                self._refuse(
                    f"{what} of rank {rank} are not those of rank 0; give every process the same"
                    " command and the same files"
                )

    def lengths(self, mine: Sequence[int] | Array) -> Array:
        """(processes, n): every rank's n whole numbers."""
        numbers = np.array(mine, np.int64)
        if self.size == 1:
            return numbers[None]
        import torch

        came = torch.empty(self.size * len(numbers), dtype=torch.int64)
        with _listening():
            torch.distributed.all_gather(list(came.chunk(self.size)), torch.from_numpy(numbers))
        return came.numpy().reshape(self.size, len(numbers))


SINGLE_PROCESS = ProcessGroup()


def launched() -> bool:
    """Whether a launcher such as torchrun started this process as one of several."""
    return "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


def current() -> ProcessGroup:
    """This process, if `joined` is under way among others; else alone."""
    if not launched():
        return SINGLE_PROCESS
    import torch

    if not torch.distributed.is_initialized():
        return SINGLE_PROCESS
    return ProcessGroup(torch.distributed.get_rank(), torch.distributed.get_world_size())


@contextmanager
def joined(watchdog: float = WATCHDOG) -> Iterator[ProcessGroup]:
    """While inside, one of those that torchrun started, with a fair share of the cores.

    Args:
        watchdog: seconds to wait for a rank that does not answer, before giving up.
    """
    if not launched():
        yield SINGLE_PROCESS
        return
    import numba
    import torch

    gpus = torch.cuda.is_available()
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    threads = max(1, numba.get_num_threads() // here)
    numba.set_num_threads(threads)
    torch.set_num_threads(threads)
    if gpus:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    with _listening():
        torch.distributed.init_process_group(
            "cpu:gloo,cuda:nccl" if gpus else "gloo", timeout=timedelta(seconds=watchdog)
        )
    try:
        yield current()
    finally:
        torch.distributed.destroy_process_group()


@contextmanager
def _listening() -> Iterator[None]:
    """Trouble between processes as one line."""
    try:
        yield
    except RuntimeError as error:
        said = re.sub(r"^\[[^]]*\] *", "", str(error))  # the place in gloo's own source
        why = re.split(r"\. |\n", said)[0] if said else type(error).__name__
        raise LostProcessError(
            f"another process is gone or does not answer ({why}); --resume goes on from the last"
            " checkpoint, and torchrun does so by itself with --max-restarts"
        ) from None


def start_worker(threads: int, parent: int) -> None:
    """Limit a worker process to `threads` threads, and end it when its parent process ends.

    Args:
        threads: of Numba and torch.
        parent: process id of the parent.
    """
    import numba
    import torch

    numba.set_num_threads(min(threads, numba.get_num_threads()))
    torch.set_num_threads(threads)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
