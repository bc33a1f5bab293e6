"""Fair timing on a noisy machine: rivals take turns, the median of several rounds counts."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping


def interleaved(rivals: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median seconds of each rival over `rounds` turns, after one turn each that does not count."""
    taken: dict[str, list[float]] = {name: [] for name in rivals}
    for turn in range(rounds + 1):
        for name, work in rivals.items():
            begun = time.perf_counter()
            work()
            if turn:
                taken[name].append(time.perf_counter() - begun)
    return {name: statistics.median(times) for name, times in taken.items()}
