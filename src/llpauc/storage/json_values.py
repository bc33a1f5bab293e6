"""What a run says of itself may be anything: numbers that are numbers."""

from __future__ import annotations

import math
from typing import Any


def number(value: Any) -> float | None:
    """A finite number, or None: JSON has no NaN, and its whole numbers have no end.

    >>> number(3), number(True), number(10**400), number("3")
    (3.0, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None
