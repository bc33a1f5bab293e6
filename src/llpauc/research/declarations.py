"""Read `paper.toml`, which declares data sets, grids, tables and the texts of the reports."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

PAPER: dict[str, Any] = tomllib.loads(
    Path(__file__).with_name("paper.toml").read_text(encoding="utf-8")
)


def expand(grid: Mapping[str, Any]) -> list[dict[str, Any]]:
    """All combinations of the lists of a grid, the last list varying fastest.

    >>> expand({"alpha": [0.5, 1.0], "loss": "llpauc"})
    [{'alpha': 0.5, 'loss': 'llpauc'}, {'alpha': 1.0, 'loss': 'llpauc'}]
    """
    values = [value if isinstance(value, (list, tuple)) else [value] for value in grid.values()]
    return [dict(zip(grid, combination, strict=True)) for combination in product(*values)]
