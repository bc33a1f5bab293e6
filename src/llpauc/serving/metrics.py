"""Counts and times in Prometheus' text format. All of it is touched by the event loop alone."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_LISTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class _Histogram:
    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def lines(self, name: str, labels: Mapping[str, str]) -> Iterator[str]:
        total = 0
        for bound, count in zip([*self._bounds, "+Inf"], self._counts, strict=True):
            total += count
            yield _line(f"{name}_bucket", {**labels, "le": str(bound)}, total)
        yield _line(f"{name}_sum", labels, self._sum)
        yield _line(f"{name}_count", labels, total)


class Metrics:
    """What has happened since the server started."""

    def __init__(self) -> None:
        self.under_way = 0
        self._requests: Counter[tuple[str, int]] = Counter()
        self._seconds: dict[str, _Histogram] = {}
        self._lists = _Histogram(_LISTS)
        self._reloads: Counter[str] = Counter({"loaded": 0, "unchanged": 0, "refused": 0})

    def answered(self, path: str, status: int, seconds: float) -> None:
        """`path` is a route's pattern, not what was asked for: that has no end of values."""
        self._requests[path, status] += 1
        self._seconds.setdefault(path, _Histogram(_SECONDS)).add(seconds)

    def ranked(self, lists: int) -> None:
        self._lists.add(lists)

    def reloaded(self, outcome: str) -> None:
        self._reloads[outcome] += 1

    def text(self, about: Mapping[str, Any]) -> str:
        """Everything, with what `Served.about` says of the run."""
        return "\n".join(self._lines(about)) + "\n"

    def _lines(self, about: Mapping[str, Any]) -> Iterator[str]:
        yield from _head("llpauc_requests_total", "counter", "Answers by route and status.")
        for (path, status), count in sorted(self._requests.items()):
            yield _line("llpauc_requests_total", {"path": path, "code": str(status)}, count)
        yield from _head("llpauc_request_seconds", "histogram", "From request to answer.")
        for path, seconds in sorted(self._seconds.items()):
            yield from seconds.lines("llpauc_request_seconds", {"path": path})
        yield from _head("llpauc_batch_lists", "histogram", "Lists ranked together.")
        yield from self._lists.lines("llpauc_batch_lists", {})
        yield from _head("llpauc_reloads_total", "counter", "Reloads by outcome.")
        for outcome, count in sorted(self._reloads.items()):
            yield _line("llpauc_reloads_total", {"outcome": outcome}, count)
        yield from _head("llpauc_requests_under_way", "gauge", "Requests not answered yet.")
        yield _line("llpauc_requests_under_way", {}, self.under_way)
        yield from _head("llpauc_run_info", "gauge", "The run that answers now.")
        yield _line("llpauc_run_info", {name: str(about[name]) for name in ("run", "model")}, 1)
        for name in ("users", "items"):
            yield from _head(f"llpauc_run_{name}", "gauge", f"Number of {name} the run knows.")
            yield _line(f"llpauc_run_{name}", {}, about[name])


def _head(name: str, kind: str, help_text: str) -> Iterator[str]:
    yield f"# HELP {name} {help_text}"
    yield f"# TYPE {name} {kind}"


def _line(name: str, labels: Mapping[str, str], value: float) -> str:
    """
    >>> _line("seen_total", {"path": "/a"}, 2)
    'seen_total{path="/a"} 2'
    """
    told = ",".join(f'{label}="{text}"' for label, text in labels.items())
    return f"{name}{{{told}}} {value}" if told else f"{name} {value}"
