"""The examples on the metrics page run and print what the page says."""

from __future__ import annotations

import doctest
from pathlib import Path


def test_the_page_runs() -> None:
    page = Path(__file__).resolve().parents[1] / "docs" / "metrics.md"
    failed, tried = doctest.testfile(str(page), module_relative=False)
    assert tried >= 8
    assert failed == 0
