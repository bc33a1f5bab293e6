"""Features of items from the columns of a catalogue: one sparse row of unit length per item.

| kind | detected by | features |
|---|---|---|
| list | several values in a cell, separated by one character; lists of text | its values |
| text | several words in a cell, most cells different | its words |
| category | any other text, and true/false | the value |
| number | numbers and dates | the range it is in, of 8 and of 32 with equally many items |
| vector | a column of lists of numbers, such as precomputed embeddings | the numbers |

A feature counts by its inverse document frequency log((1 + n) / (1 + df)) + 1; one that a single
item has relates it to no other item and is left out. Every column counts the same: its part of a
row is scaled to unit length, then the row.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from scipy import sparse

from llpauc.data.catalogue import Catalogue
from llpauc.data.ids import is_text
from llpauc.errors import InputError, listing, unknown

_SEPARATORS = ("|", ";", ",", "/")
_WORD = re.compile(r"\w+")
_RANGES = (8, 32)
_SAMPLE = 5000  # values that decide the kind of a column
_MANY = 0.5  # fraction of different values above which a column is text, or no feature


@dataclass(frozen=True)
class ItemFeatures:
    """Args:
    matrix: (rows of the catalogue, features) CSR float32, rows of unit length or empty.
    notes: the kind of each column, for messages.
    """

    matrix: Any
    notes: tuple[str, ...]

    def of(self, rows: npt.NDArray[np.int64]) -> Any:
        """The features of these rows of the catalogue; an empty row for -1."""
        matrix = sparse.diags((rows >= 0).astype(np.float32)) @ self.matrix[np.maximum(rows, 0)]
        matrix = matrix.tocsr()
        matrix.eliminate_zeros()
        return matrix


def feature_names(features: str | Sequence[str] | None) -> list[str] | None:
    """The names of chosen columns; None detects them, and "none" chooses none.

    >>> feature_names("title, genres"), feature_names("none"), feature_names(None)
    (['title', 'genres'], [], None)
    """
    if features is None:
        return None
    if isinstance(features, str):
        return [name.strip() for name in features.split(",") if name.strip()] * (features != "none")
    return list(features)


def item_features(catalogue: Catalogue, columns: Sequence[str] | None = None) -> ItemFeatures:
    """The features of all items of a catalogue.

    Args:
        catalogue: of the items.
        columns: which columns to use; None takes all whose kind is detected.

    >>> kinds = ["shoe", "shoe", "bag", "bag"]
    >>> table = pa.table({"item": list("abcd"), "kind": kinds, "size": [1, 1, 9, 9]})
    >>> from llpauc.data.catalogue import read_catalogue
    >>> print(*item_features(read_catalogue(table)).notes)
    features: kind (category), size (number)
    """
    for name in columns or ():
        if name not in catalogue.columns:
            raise unknown("feature", name, catalogue.columns)
    blocks, kinds, unused = [], [], []
    for name in catalogue.columns if columns is None else columns:
        values = catalogue.table.column(name)
        kind, separator = _kind(values)
        block = None if kind is None else _block(values, kind, separator)
        if block is not None and block.nnz:
            blocks.append(_unit_rows(block))
            kinds.append(f"{name} ({kind}{f' separated by {separator}' if separator else ''})")
        elif columns is not None:
            different = len(set(map(str, values.drop_null().to_pylist())))
            raise InputError(
                f"{catalogue.name}: the feature {name!r} has {different:,} different values in"
                f" {len(values):,} rows, and relates no two items; leave it out of features"
            )
        else:
            unused.append(name)
    notes = [f"features: {', '.join(kinds) or 'none'}"]
    if unused:
        notes.append(f"not used as features, since no two items share a value: {listing(unused)}")
    if not blocks:
        return ItemFeatures(sparse.csr_matrix((len(catalogue), 0), dtype=np.float32), tuple(notes))
    matrix = _unit_rows(sparse.hstack(blocks).tocsr()).astype(np.float32)
    return ItemFeatures(matrix, tuple(notes))


def _kind(column: pa.ChunkedArray) -> tuple[str | None, str]:
    """The kind of a column, and the separator of a list."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return ("list" if is_text(kind.value_type) else "vector"), ""
    if pa.types.is_boolean(kind):
        return "category", ""
    if not is_text(kind):
        return (None if pa.types.is_nested(kind) or pa.types.is_binary(kind) else "number"), ""
    values = [value for value in column.drop_null().slice(0, _SAMPLE).to_pylist() if value.strip()]
    different = set(values)
    if len(different) < 2:
        return None, ""
    for separator in _SEPARATORS:
        split = sum(separator in value for value in values) > 0.2 * len(values)
        parts = {part.strip() for value in different for part in value.split(separator)}
        if split and (separator in "|;" or len(parts) <= _MANY * len(different)):
            return "list", separator
    words = sum(len(_WORD.findall(value)) for value in values) / len(values)
    if len(different) > _MANY * len(values):
        return ("text", "") if words >= 1.5 else (None, "")
    return ("text", "") if words >= 2.5 else ("category", "")


def _block(column: pa.ChunkedArray, kind: str, separator: str) -> Any:
    """(rows, features of one column) CSR, weighted by inverse document frequency."""
    if kind == "vector":
        return _vectors(column)
    if kind == "number":
        return _idf(_ranges(column))
    values = column.to_pylist()
    tokens: Iterable[list[str]]
    if kind == "text":
        tokens = (_WORD.findall(value.lower()) if value else [] for value in values)
    elif kind == "list" and separator:
        tokens = ([part.strip() for part in (value or "").split(separator)] for value in values)
    elif kind == "list":
        tokens = ([part for part in value or () if part] for value in values)
    else:
        tokens = ([] if value in (None, "") else [str(value)] for value in values)
    index: dict[str, int] = {}
    rows, columns, counts = [], [], []
    for row, words in enumerate(tokens):
        for word, count in Counter(filter(None, words)).items():
            rows.append(row)
            columns.append(index.setdefault(word, len(index)))
            counts.append(1 + np.log(count))
    return _idf(sparse.csr_matrix((counts, (rows, columns)), shape=(len(values), len(index))))


def _ranges(column: pa.ChunkedArray) -> Any:
    """One-hot rows of the quantile ranges of numbers and dates."""
    if pa.types.is_temporal(column.type):
        column = column.cast(pa.timestamp("s")).cast(pa.int64())
    values = np.asarray(pc.fill_null(column.cast(pa.float64()), np.nan))
    given = np.flatnonzero(np.isfinite(values))
    blocks = []
    for number in _RANGES if len(given) else ():
        bounds = np.unique(np.quantile(values[given], np.linspace(0, 1, number + 1)[1:-1]))
        ranges = np.searchsorted(bounds, values[given], side="right")
        ones, shape = np.ones(len(given)), (len(values), len(bounds) + 1)
        blocks.append(sparse.csr_matrix((ones, (given, ranges)), shape=shape))
    return sparse.hstack(blocks).tocsr() if blocks else sparse.csr_matrix((len(values), 0))


def _vectors(column: pa.ChunkedArray) -> Any:
    rows = column.to_pylist()
    width = max((len(row) for row in rows if row), default=0)
    wrong = next((n for n, row in enumerate(rows) if row and len(row) != width), None)
    if wrong is not None:
        raise InputError(
            f"row {wrong + 1} has a vector of {len(rows[wrong])} numbers, others have {width}; give"
            " all vectors the same length"
        )
    dense = np.array([row or [0.0] * width for row in rows], np.float64).reshape(len(rows), width)
    return sparse.csr_matrix(np.nan_to_num(dense))


def _idf(matrix: Any) -> Any:
    """The matrix with its columns weighted; columns with one entry become zero."""
    n, frequency = matrix.shape[0], np.diff(matrix.tocsc().indptr)
    weights = np.where(frequency > 1, np.log((1 + n) / (1 + frequency)) + 1, 0.0)
    weighted = (matrix @ sparse.diags(weights)).tocsr()
    weighted.eliminate_zeros()
    return weighted


def _unit_rows(matrix: Any) -> Any:
    lengths = np.sqrt(np.asarray(matrix.multiply(matrix).sum(axis=1)).ravel())
    return (sparse.diags(1 / np.maximum(lengths, 1e-12)) @ matrix).tocsr()
