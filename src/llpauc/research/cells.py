"""A cell: one piece of a study that can be run alone, kept, and shared by several studies.

A cell is its kind, its data set and its options, and nothing else: the same cell gives the same
numbers. Tables and figures ask for cells; `llpauc.research.lab` runs those that are missing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Result = dict[str, Any]  # plain JSON


@dataclass(frozen=True)
class Cell:
    """One piece of work.

    Args:
        kind: a name of `llpauc.research.paper.targets.RUNNERS`.
        data: a name of `llpauc.research.collection`.
        options: sorted (name, value) pairs; values as JSON has them.
    """

    kind: str
    data: str
    options: tuple[tuple[str, Any], ...]

    @staticmethod
    def of(kind: str, data: str, **options: Any) -> Cell:
        """
        >>> Cell.of("train", "adressa-clean", seed=100, loss="bpr").options
        (('loss', 'bpr'), ('seed', 100))
        """
        return Cell(kind, data, tuple(sorted(options.items())))

    def __getitem__(self, name: str) -> Any:
        return dict(self.options)[name]

    def but(self, **options: Any) -> Cell:
        """The same cell with some options changed or added."""
        return Cell.of(self.kind, self.data, **{**dict(self.options), **options})

    @property
    def spec(self) -> dict[str, Any]:
        return {"kind": self.kind, "data": self.data, "options": dict(self.options)}

    def __str__(self) -> str:
        """For progress: what is being run, in short."""
        told = dict(self.options)
        words = [str(told[name]) for name in ("model", "loss") if name in told]
        if "seed" in told:
            words.append(f"seed {told['seed']}")
        return " ".join([self.data, *(words or [self.kind])])


def digest(value: Mapping[str, Any]) -> str:
    """SHA-256 of a JSON value in one fixed spelling."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
