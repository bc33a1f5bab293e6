"""Recommendation lists as rows of (user, item, rank, score), for files and screens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from llpauc.errors import InputError, listing
from llpauc.files import atomic_write, write_text
from llpauc.interactions import IdMap, as_id_text

_DELIMITERS = {".tsv": "\t", ".csv": ","}


@dataclass(frozen=True)
class ListRows:
    """Lists of equal length, best first; an item of None is no recommendation.

    Args:
        users: outside ids, n of them.
        items: (n, k) outside ids.
        scores: (n, k).
    """

    users: Sequence[Any]
    items: npt.NDArray[Any]
    scores: npt.NDArray[np.float32]

    @cached_property
    def _there(self) -> npt.NDArray[np.bool_]:
        return np.isfinite(self.scores)

    @property
    def count(self) -> int:
        return int(self._there.sum())

    def table(self) -> pa.Table:
        """Columns user, item, rank, score; ids in the type they came in."""
        people, places = np.nonzero(self._there)
        return pa.table(
            {
                "user": _id_column(self.users).take(pa.array(people)),
                "item": _id_column(self.items[self._there]),
                "rank": places + 1,
                "score": self.scores[self._there],
            }
        )

    def head(self, rows: int) -> list[list[Any]]:
        table = self.table().slice(0, rows)
        return [
            [str(r["user"]), r["rank"], str(r["item"]), round(r["score"], 4)]
            for r in table.to_pylist()
        ]

    def as_dicts(self) -> list[dict[str, Any]]:
        return [
            {
                "user": user,
                "items": [
                    {"item": item, "score": float(score)}
                    for item, score in zip(items, scores, strict=True)
                    if np.isfinite(score)
                ],
            }
            for user, items, scores in zip(
                self.users, self.items.tolist(), self.scores, strict=True
            )
        ]


def _id_column(ids: Sequence[Any] | npt.NDArray[Any]) -> pa.Array:
    """In the type they came in, where Arrow's own guess fails on integers above 2^63."""
    return IdMap(*as_id_text(ids)).arrow()


def write_lists(lists: ListRows, path: str | Path) -> None:
    """Write to .tsv, .csv or .parquet, by a temporary name."""
    target = Path(path)
    kind = target.suffix.lower()
    if kind not in (*_DELIMITERS, ".parquet"):
        choices = listing([*_DELIMITERS, ".parquet"])
        raise InputError(f"{path}: unknown kind of file {kind!r}; choose one of: {choices}")
    target.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(target) as temporary:
        if kind == ".parquet":
            pq.write_table(lists.table(), temporary)
        else:
            write_text(lists.table(), temporary, _DELIMITERS[kind])
