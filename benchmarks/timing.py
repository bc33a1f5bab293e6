"""Timing on a noisy machine: rivals take turns, and the median of several rounds counts."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping


def interleaved(rivals: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median seconds of each rival over `rounds` turns, after one turn each for warm-up."""
    seconds: dict[str, list[float]] = {name: [] for name in rivals}
    for turn in range(rounds + 1):
        for name, work in rivals.items():
            started = time.perf_counter()
            work()
            if turn:
                seconds[name].append(time.perf_counter() - started)
    return {name: statistics.median(times) for name, times in seconds.items()}
