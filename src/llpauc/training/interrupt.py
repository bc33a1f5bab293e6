"""Ctrl-C and SIGTERM as a wish to stop, not as an exception in the middle of an update."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


@dataclass
class StopRequest:
    """`signal` is the number of the signal that asked for a stop, None as long as none did."""

    signal: int | None = None

    def __bool__(self) -> bool:
        return self.signal is not None


@contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """While inside, the first SIGINT or SIGTERM sets the request; a second SIGINT breaks off.

    Signals belong to the main thread: elsewhere nothing is caught, and nobody can ask.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def ask(number: int, frame: FrameType | None) -> None:
        if request and number == signal.SIGINT:
            raise KeyboardInterrupt
        request.signal = number
        if sys.stderr.isatty():
            os.write(2, b"\nstopping after this batch; Ctrl-C again breaks off and saves nothing\n")

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
