"""The way in: one source in any of the shapes we know, out come `Interactions`."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any, TypedDict

from scipy import sparse

from llpauc.data.interactions import Interactions
from llpauc.data.readers.adjacency import read_adjacency
from llpauc.data.readers.columns import Column, tidy
from llpauc.data.readers.frames import is_frame, read_frame, read_matrix, read_parquet
from llpauc.data.readers.gathering import Reading
from llpauc.data.readers.json_lines import read_json_lines
from llpauc.data.readers.look import guess_format, look, read_head, unpacked
from llpauc.data.readers.tables import read_table
from llpauc.errors import InputError, choose

BAD_ROWS = {"error": "refuse the source", "skip": "leave the row out and count it"}


class ReadOptions(TypedDict, total=False):
    """The keywords of `read_interactions`, for those who pass them on."""

    format: str | None
    user: Column
    item: Column
    rating: Column
    timestamp: Column
    header: bool | None
    delimiter: str | None
    bad_rows: str


def read_interactions(
    source: Any,
    *,
    format: str | None = None,
    user: Column = None,
    item: Column = None,
    rating: Column = None,
    timestamp: Column = None,
    header: bool | None = None,
    delimiter: str | None = None,
    bad_rows: str = "error",
) -> Reading:
    """Read user-item events from a file, a frame or a sparse matrix.

    What is not told is guessed when it is obvious, and said in the notes. Ids of text files are
    text, whatever they look like: `007` stays `007`. Events keep their order and their duplicates.

    Args:
        source: a path (gzipped or not), a pandas or Polars frame, a pyarrow Table, a scipy sparse
            matrix (users by items), or `Interactions`, which pass through.
        format: csv, tsv, inter (RecBole), u.data and ratings.dat (MovieLens), adjacency
            (`user item item ...`), parquet, jsonl; None asks the name, then the first lines.
        user: column of the users, by name or by position from 0; None guesses.
        item: column of the items, likewise.
        rating: column of the ratings (or of dwell times), likewise; "none" leaves it aside.
        timestamp: column of seconds or ISO dates, likewise; dates become seconds since 1970 (UTC).
        header: whether the first row holds names; None guesses.
        delimiter: one to four characters, or comma, tab, semicolon, pipe, space; None guesses.
        bad_rows: "error" refuses the source and names the row, "skip" leaves such rows out.

    >>> from scipy.sparse import csr_matrix
    >>> reading = read_interactions(csr_matrix([[0, 5], [3, 0]]))
    >>> reading.interactions.ratings.tolist(), reading.rows_read
    ([5.0, 3.0], 2)
    """
    choose(BAD_ROWS, bad_rows, "bad_rows")
    wanted = {"user": user, "item": item, "rating": rating, "timestamp": timestamp}
    for_files = {"format": format, "header": header, "delimiter": delimiter}
    if isinstance(source, (str, PathLike)):
        return _read_file(Path(source), wanted, format, header, delimiter, bad_rows)
    _refuse(for_files, "is for text files")
    if isinstance(source, Interactions) or sparse.issparse(source):
        _refuse(wanted, f"is for tables, and a {type(source).__name__} has no named columns")
        if isinstance(source, Interactions):
            return Reading(source, (), len(source))
        return read_matrix(source)
    if is_frame(source):
        return read_frame(source, wanted, bad_rows)
    raise InputError(
        f"cannot read interactions from a {type(source).__name__}; give a path, a pandas or Polars "
        "frame, a pyarrow Table or a scipy sparse matrix"
    )


def _refuse(options: dict[str, Any], why: str) -> None:
    for option, value in options.items():
        if value is not None:
            raise InputError(f"{option}={value!r} {why}; leave it out")


def _read_file(
    path: Path,
    wanted: dict[str, Column],
    asked_format: str | None,
    header: bool | None,
    delimiter: str | None,
    bad_rows: str,
) -> Reading:
    name = tidy(str(path))
    with unpacked(path, name) as plain_path:
        head = read_head(plain_path, name)
        found = guess_format(path, head, asked_format, name)
        if found[0] == "parquet":
            note = f"{name}: read as parquet ({found[1]})"
            return read_parquet(plain_path, name, note, wanted, bad_rows)
        if found[0] == "jsonl":
            note = f"{name}: read as jsonl, one object a line ({found[1]})"
            return read_json_lines(plain_path, name, note, wanted, bad_rows)
        layout = look(
            name,
            head,
            found=found,
            delimiter=delimiter,
            header=header,
            asked_names=[str(column) for column in wanted.values() if isinstance(column, str)],
        )
        if layout.format == "adjacency":
            _refuse(wanted, "is for tables; an adjacency list has no columns")
            return read_adjacency(plain_path, name, layout.note, bad_rows)
        return read_table(plain_path, name, layout, wanted, bad_rows)
