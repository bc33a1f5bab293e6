"""Interactions in: files, frames and matrices of user-item events become `Interactions`.

The walk of a text file: `reading` (what kind of source), `look` (format, delimiter, header),
`columns` (which column is what), `tables` (DuckDB, checked by `scanning`) or `records` (row by row)
or `adjacency` or `json_lines`, and `gathering` (ids to rows). Typed sources go through `frames`,
folders and split files through `folders`.
"""

from __future__ import annotations

from llpauc.data.readers.folders import find_parts, load, read_split
from llpauc.data.readers.gathering import Reading
from llpauc.data.readers.look import FORMATS
from llpauc.data.readers.reading import BAD_ROWS, ReadOptions, read_interactions

__all__ = [
    "BAD_ROWS",
    "FORMATS",
    "ReadOptions",
    "Reading",
    "find_parts",
    "load",
    "read_interactions",
    "read_split",
]
