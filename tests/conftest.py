"""Settings of all tests."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

# CI judges a change, so it draws the same examples every time; at home each run draws its own.
settings.register_profile("ci", derandomize=True)
if os.environ.get("LLPAUC_CI"):
    settings.load_profile("ci")


class _Messages(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@pytest.fixture
def log_messages() -> Iterator[list[str]]:
    """The messages that llpauc logs during the test, also after a command has run."""
    logger, handler = logging.getLogger("llpauc"), _Messages()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler.messages
    logger.removeHandler(handler)
    logger.setLevel(level)
