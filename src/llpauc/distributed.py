"""Several processes that train one model together.

`torchrun` starts the processes, `torch.distributed` carries the messages with gloo. Every process
calls the same methods in the same order; each call waits for all processes. `SINGLE_PROCESS` stands
for a single process: its methods return at once and do not import torch. Messages are arrays of
numbers and UTF-8 text, never pickled objects.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from typing import Any, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt

from llpauc.errors import InputError, ReportedByFirstProcessError

Array = npt.NDArray[Any]
T = TypeVar("T")

TIMEOUT = 1800.0  # seconds to wait for the other processes, which may be slower


class LostProcessError(RuntimeError):
    """Another process has ended or does not answer."""


@dataclass(frozen=True)
class ProcessGroup:
    """This process and the number of processes that train together.

    Args:
        index: number of this process, from 0.
        world_size: number of processes.
    """

    index: int = 0
    world_size: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes files and prints messages."""
        return self.index == 0

    def slice_of(self, n: int) -> slice:
        """The slice of n elements that belongs to this process.

        >>> ProcessGroup(1, 3).slice_of(7)
        slice(2, 4, None)
        """
        return slice(n * self.index // self.world_size, n * (self.index + 1) // self.world_size)

    def barrier(self) -> None:
        """Wait for all processes."""
        self.all_gather([0.0])

    def all_gather(self, numbers: Sequence[float] | Array) -> Array:
        """(world_size, n): the n numbers of every process, in double precision."""
        array = np.array(numbers, np.float64)
        if self.world_size == 1 or not len(array):
            return np.repeat(array[None], self.world_size, axis=0)
        import torch

        received = torch.empty((self.world_size, len(array)), dtype=torch.float64)
        with _lost_processes():
            torch.distributed.all_gather(list(received), torch.from_numpy(array))
        return received.numpy()

    def gather(self, array: Array) -> Array:
        """The arrays of all processes, concatenated along the first axis; lengths may differ."""
        if self.world_size == 1:
            return array
        ends = np.cumsum(self.all_gather([len(array)])[:, 0].astype(np.int64)).tolist()
        whole = np.empty((ends[-1], *array.shape[1:]), array.dtype)
        whole[ends[self.index] - len(array) : ends[self.index]] = array
        self.share(whole, [0, *ends])
        return whole

    def share(self, array: Array, bounds: Sequence[int]) -> None:
        """Fill in the rows of the other processes, in place.

        Args:
            array: rows bounds[p] to bounds[p + 1] are those of process p.
            bounds: world_size + 1 positions.
        """
        for source, (begin, end) in enumerate(pairwise(bounds)):
            self.broadcast(array[begin:end], source)

    def broadcast(self, array: Array, source: int = 0) -> None:
        """Copy the contiguous array of one process into those of the others, in place."""
        if self.world_size > 1 and array.size:
            import torch

            # As bytes: gloo supports neither bool nor every integer width.
            flat = torch.from_numpy(array.reshape(-1).view(np.uint8))
            with _lost_processes():
                torch.distributed.broadcast(flat, source)

    def rotate(self, outgoing: Array, incoming: Array) -> Callable[[], None]:
        """Start to send an array to the previous process and to receive one from the next.

        Returns:
            A function that waits for both.
        """
        import torch

        before, after = ((self.index + step) % self.world_size for step in (-1, 1))
        with _lost_processes():
            sent = torch.distributed.isend(torch.from_numpy(outgoing), before)
            received = torch.distributed.irecv(torch.from_numpy(incoming), after)

        def wait() -> None:
            with _lost_processes():
                for work in (sent, received):
                    assert work is not None
                    work.wait()

        return wait

    def gather_texts(self, text: str) -> list[str]:
        """The text of every process."""
        encoded = np.frombuffer(text.encode() + b"\0", np.uint8)
        return bytes(self.gather(encoded)).decode().split("\0")[:-1]

    def call_together(self, function: Callable[[], T]) -> T:
        """The result of `function`; an `InputError` or `OSError` in one process is raised in all.

        For calls that may fail in some processes only, as reading files: a process that stopped
        alone would leave the others waiting.
        """
        if self.world_size == 1:
            return function()
        result: T | None = None
        problem = ""
        try:
            result = function()
        except InputError as error:
            problem = str(error)
        except OSError as error:
            problem = f"{error.filename or 'a file'}: {error.strerror or error}"
        problems = self.gather_texts(problem)
        for index, text in enumerate(problems):
            if text:
                self._fail(text if len(set(problems)) == 1 else f"process {index}: {text}")
        return result  # type: ignore[return-value]

    def check_equal(self, what: str, value: Any) -> None:
        """Raise an error unless all processes have the same value."""
        values = self.gather_texts(json.dumps(value, default=str, sort_keys=True))
        for index, text in enumerate(values):
            if text != values[0]:
                self._fail(
                    f"{what} of process {index} differ from those of process 0; give every process"
                    " the same command and the same files"
                )

    def _fail(self, message: str) -> NoReturn:
        """Raise an error in all processes, which the first one reports."""
        raise InputError(message) if self.is_first else ReportedByFirstProcessError(message)


SINGLE_PROCESS = ProcessGroup()


def current_process_group() -> ProcessGroup:
    """The group inside `join_process_group`; `SINGLE_PROCESS` elsewhere."""
    if not _is_launched():
        return SINGLE_PROCESS
    import torch

    if not torch.distributed.is_initialized():
        return SINGLE_PROCESS
    return ProcessGroup(torch.distributed.get_rank(), torch.distributed.get_world_size())


def _is_launched() -> bool:
    """Whether a launcher such as torchrun started this process as one of several."""
    return "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


@contextmanager
def join_process_group(timeout: float = TIMEOUT) -> Iterator[ProcessGroup]:
    """Join the processes that torchrun started; the cores of a machine are divided among them.

    Args:
        timeout: seconds to wait for a process that does not answer before raising an error.
    """
    joined = current_process_group()
    if joined.world_size > 1 or not _is_launched():
        yield joined
        return
    import numba
    import torch

    threads = max(1, numba.get_num_threads() // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    numba.set_num_threads(threads)
    torch.set_num_threads(threads)
    with _lost_processes():
        torch.distributed.init_process_group("gloo", timeout=timedelta(seconds=timeout))
    try:
        yield current_process_group()
    finally:
        torch.distributed.destroy_process_group()


@contextmanager
def _lost_processes() -> Iterator[None]:
    """Errors of torch.distributed as a `LostProcessError` of one line."""
    try:
        yield
    except RuntimeError as error:
        # The frames below hold the process group, whose threads must end before the interpreter.
        traceback.clear_frames(error.__traceback__)
        text = re.sub(r"^\[[^]]*\] *", "", str(error))  # the place in the source of gloo
        reason = re.split(r"\. |\n", text)[0] if text else type(error).__name__
        raise LostProcessError(
            f"another process has ended or does not answer ({reason}); continue from the last"
            " checkpoint with --resume, or let torchrun do so with --max-restarts"
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
