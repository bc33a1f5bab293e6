"""Means and spreads over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation over seeds; no deviation from a single one.

    >>> print(Spread.of([0.2, 0.22, 0.24]))
    .2200 ± .0200
    """

    mean: float
    sd: float | None

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        sd = float(np.std(values, ddof=1)) if len(values) > 1 else None
        return Spread(float(np.mean(values)), sd)

    def __str__(self) -> str:
        return short(self.mean) + ("" if not self.sd else f" ± {short(self.sd)}")


def short(value: float) -> str:
    """
    >>> short(0.2166), short(1.5), short(-0.01)
    ('.2166', '1.5000', '-.0100')
    """
    return f"{value:.4f}".replace("0.", ".", 1) if abs(value) < 1 else f"{value:.4f}"
