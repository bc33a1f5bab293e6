"""Counts and times for Prometheus."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, generate_latest

# The media type of `generate_latest`; prometheus_client names a later version of the same format.
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_LISTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """The metrics of one application, in a registry of its own."""

    def __init__(self) -> None:
        self.in_progress = 0  # requests, counted by the event loop alone
        self._registry = registry = CollectorRegistry()
        self._requests = Counter(
            "llpauc_requests_total", "Answers by route and status.", ("path", "code"),
            registry=registry,
        )  # fmt: skip
        self._seconds = Histogram(
            "llpauc_request_seconds", "From request to answer.", ("path",),
            buckets=_SECONDS, registry=registry,
        )  # fmt: skip
        self.lists = Histogram(
            "llpauc_batch_lists", "Lists ranked together.", buckets=_LISTS, registry=registry
        )
        self.reloads = Counter(
            "llpauc_reloads_total", "Reloads by outcome.", ("outcome",), registry=registry
        )
        for outcome in ("loaded", "unchanged", "refused"):
            self.reloads.labels(outcome)
        under_way = Gauge(
            "llpauc_requests_under_way", "Requests not answered yet.", registry=registry
        )
        under_way.set_function(lambda: self.in_progress)
        self._run = Info("llpauc_run", "The loaded run.", registry=registry)
        self._sizes = {
            name: Gauge(f"llpauc_run_{name}", f"Number of {name} in the run.", registry=registry)
            for name in ("users", "items")
        }

    def answered(self, path: str, status: int, seconds: float) -> None:
        """`path` is the pattern of a route, since the number of paths is not bounded."""
        self._requests.labels(path, status).inc()
        self._seconds.labels(path).observe(seconds)

    def text(self, about: Mapping[str, Any]) -> bytes:
        """All metrics in Prometheus' text format, with `LoadedRun.about`."""
        self._run.info({name: str(about[name]) for name in ("run", "model")})
        for name, gauge in self._sizes.items():
            gauge.set(about[name])
        return generate_latest(self._registry)
