"""Whatever `fit` accepts, as a split."""

from __future__ import annotations

from typing import Any

from llpauc.data.interactions import Interactions, Split
from llpauc.data.locations import SourceName
from llpauc.data.readers import Reading, load, read_interactions
from llpauc.errors import InputError


def as_split(data: Any, valid: Any = None, **columns: Any) -> Split:
    """A split from a path, a frame, a matrix, `Interactions` or a `Split`.

    Args:
        data: the events, or a split of them.
        valid: validation events, which replace those of `data`.
        columns: of a file or frame: user, item, rating, timestamp, weight, event_type,
            event_weights, log_weights, and the query of a database, as for `read_interactions`; and
            the rules exclude and relevant, see `EventRules`.
    """
    columns = {name: value for name, value in columns.items() if value not in (None, False)}
    rules = {name: columns.pop(name) for name in ("exclude", "relevant") if name in columns}
    split = _as_split(data, valid, columns)
    return split.with_rules(**rules) if rules else split


def _as_split(data: Any, valid: Any, columns: dict[str, Any]) -> Split:
    split = _read(data, columns)
    if valid is None:
        return split if isinstance(split, Split) else Split(split)
    train = split.train if isinstance(split, Split) else split
    other = _read(valid, columns)
    return Split.of(train, other.train if isinstance(other, Split) else other)


def _read(data: Any, columns: dict[str, Any]) -> Interactions | Split:
    if isinstance(data, Split):
        if columns:
            raise InputError(f"{', '.join(columns)}: a Split has no named columns; leave them out")
        return data
    if (name := SourceName.of(data)) is not None:
        read = load(name, **columns)
        return read.interactions if isinstance(read, Reading) else read
    return read_interactions(data, **columns).interactions
