"""Ctrl-C and SIGTERM as a request to stop, not as an exception in the middle of an update."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType


@dataclass
class StopRequest:
    """True once a stop was requested; `signal` is the number of the signal."""

    signal: int | None = None

    def __bool__(self) -> bool:
        return self.signal is not None


@contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Inside, the first SIGINT or SIGTERM sets the request; a second SIGINT raises an exception.

    Python delivers signals to the main thread; in other threads no request is ever set.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if request and number == signal.SIGINT:
            raise KeyboardInterrupt
        request.signal = number
        if sys.stderr.isatty():
            with suppress(OSError):  # the terminal may be gone
                os.write(2, b"\nstopping after this batch; Ctrl-C again aborts without saving\n")

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
