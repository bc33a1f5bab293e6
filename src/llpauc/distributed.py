"""Several processes that train one model together.

`torchrun` starts the processes, `torch.distributed` carries the messages (gloo between CPUs, NCCL
between GPUs). Every process calls the same methods in the same order; each call waits for all
processes. `SINGLE_PROCESS` stands for a single process: its methods return at once and do not
import torch. Messages are arrays of numbers and UTF-8 text, never pickled objects.
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
from typing import Any, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt

from llpauc.errors import InputError, ReportedByFirstProcessError

Array = npt.NDArray[Any]
T = TypeVar("T")

TIMEOUT = 300.0  # seconds to wait for the other processes


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

    def bounds(self, n: int) -> list[int]:
        """Where the slice of each process begins, then n; as torch.chunk and DTensor divide.

        >>> ProcessGroup(0, 3).bounds(7)
        [0, 3, 6, 7]
        """
        size = -(-n // self.world_size)
        return [min(index * size, n) for index in range(self.world_size + 1)]

    def slice_of(self, n: int) -> slice:
        """The slice of n elements that belongs to this process.

        >>> ProcessGroup(1, 3).slice_of(7)
        slice(3, 6, None)
        """
        return slice(*self.bounds(n)[self.index : self.index + 2])

    def barrier(self) -> None:
        """Wait for all processes."""
        self.sum([0.0])

    def sum(self, numbers: Sequence[float]) -> list[float]:
        """Sums over all processes in double precision, with the same bits in every process."""
        if self.world_size == 1:
            return list(numbers)
        # Gathered, then added in the order of the processes: an all-reduce may round differently.
        total: list[float] = self._all_gather(np.array(numbers, np.float64)).sum(axis=0).tolist()
        return total

    def gather(self, array: Array) -> Array:
        """The arrays of all processes, concatenated along the first axis; lengths may differ."""
        return self.gather_all([array])[0]

    def gather_all(self, arrays: Sequence[Array], lengths: Array | None = None) -> list[Array]:
        """As `gather`, for several arrays in one message, which saves up to a millisecond each.

        Args:
            arrays: those of this process.
            lengths: (world_size, arrays) if known; otherwise one more message gathers them.
        """
        if self.world_size == 1:
            return list(arrays)
        if lengths is None:
            lengths = self.gather_counts([len(array) for array in arrays])
        # Pack the arrays as bytes (gloo supports neither bool nor every integer width), padded to
        # the largest process.
        widths = [a.dtype.itemsize * int(np.prod(a.shape[1:], dtype=np.int64)) for a in arrays]
        ends = np.cumsum(lengths * widths, axis=1)
        packed = np.zeros(int(ends[:, -1].max()), np.uint8)
        parts = [np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays]
        np.concatenate(parts, out=packed[: int(ends[self.index, -1])])
        received = self._all_gather(packed)
        # Unpack: one piece of every process for each array.
        gathered = []
        for column, (array, width) in enumerate(zip(arrays, widths, strict=True)):
            begins = ends[:, column] - lengths[:, column] * width
            bounds = zip(received, begins, ends[:, column], strict=True)
            pieces = [row[begin:end] for row, begin, end in bounds]
            whole = np.concatenate(pieces).view(array.dtype)
            gathered.append(whole.reshape(int(lengths[:, column].sum()), *array.shape[1:]))
        return gathered

    def gather_counts(self, counts: Sequence[int] | Array) -> Array:
        """(world_size, n): the n integers of every process."""
        return self._all_gather(np.array(counts, np.int64))

    def _all_gather(self, array: Array) -> Array:
        """(world_size, n): the (n,) arrays of all processes, of equal length."""
        if self.world_size == 1 or not len(array):
            return np.repeat(array[None], self.world_size, axis=0)
        import torch

        received = torch.empty((self.world_size, len(array)), dtype=torch.from_numpy(array).dtype)
        with _lost_processes():
            torch.distributed.all_gather(list(received), torch.from_numpy(array))
        return received.numpy()

    def exchange(self, array: Array, counts: Array, incoming: Array) -> Array:
        """Send counts[p] rows to each process p, in order; the incoming[p] rows of each process."""
        if self.world_size == 1:
            return array
        import torch

        rows = torch.from_numpy(np.ascontiguousarray(array))
        received = torch.empty((int(incoming.sum()), *rows.shape[1:]), dtype=rows.dtype)
        with _lost_processes():
            torch.distributed.all_to_all_single(received, rows, incoming.tolist(), counts.tolist())
        return received.numpy()

    def gather_to_first(self, array: Array) -> Array | None:
        """As `gather` in the first process; None in the others, which need no memory for it."""
        lengths = self.gather_counts([len(array)])[:, 0]
        none = np.zeros_like(lengths)
        counts = none.copy()
        counts[0] = len(array)
        received = self.exchange(array, counts, lengths if self.is_first else none)
        return received if self.is_first else None

    def broadcast(self, array: Array) -> None:
        """Copy the array of the first process into those of the others, in place."""
        if self.world_size > 1:
            import torch

            with _lost_processes():
                torch.distributed.broadcast(torch.from_numpy(array), 0)

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
    if not _is_launched():
        yield SINGLE_PROCESS
        return
    import numba
    import torch

    threads = max(1, numba.get_num_threads() // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    numba.set_num_threads(threads)
    torch.set_num_threads(threads)
    backend = "gloo"
    if torch.cuda.is_available():
        backend = "cpu:gloo,cuda:nccl"
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    with _lost_processes():
        torch.distributed.init_process_group(backend, timeout=timedelta(seconds=timeout))
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
