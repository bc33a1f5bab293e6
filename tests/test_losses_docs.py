"""The examples on the losses page run and print what the page says; its table is the registry."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

from llpauc.losses import LOSSES

PAGE = Path(__file__).resolve().parents[1] / "docs" / "losses.md"


def test_the_page_runs() -> None:
    failed, tried = doctest.testfile(str(PAGE), module_relative=False)
    assert tried >= 12
    assert failed == 0


def test_the_table_lists_every_loss_with_its_score() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (dot|cosine) \|", PAGE.read_text(), re.MULTILINE))
    assert rows == {name: kind.score for name, kind in LOSSES.items()}
