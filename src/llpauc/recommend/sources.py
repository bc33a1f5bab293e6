"""Whatever `fit` accepts, as a split."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from llpauc.data.interactions import Interactions, Split
from llpauc.data.readers import Reading, load, read_interactions


def as_split(data: Any, valid: Any = None) -> Split:
    """A split from a path, a frame, a matrix, `Interactions` or a `Split`.

    Args:
        data: the events, or a split of them.
        valid: validation events, which replace those of `data`.
    """
    split = data if isinstance(data, Split) else _read(data)
    if valid is None:
        return split if isinstance(split, Split) else Split(split)
    train = split.train if isinstance(split, Split) else split
    other = _read(valid)
    return Split.of(train, other.train if isinstance(other, Split) else other)


def _read(data: Any) -> Interactions | Split:
    if isinstance(data, Interactions):
        return data
    if isinstance(data, (str, os.PathLike)):
        read = load(Path(data))
        return read.interactions if isinstance(read, Reading) else read
    return read_interactions(data).interactions
