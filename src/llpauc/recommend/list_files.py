"""Kinds of files that hold recommendation lists, written table after table.

Every table has the columns user, item, rank, score, and whole lists; only JSON lines keep a list
together on one line.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from llpauc.data.interactions import IdMap
from llpauc.errors import InputError, listing
from llpauc.storage.atomic import atomic_write

Write = Callable[[pa.Table], None]


@contextmanager
def open_lists(
    path: str | Path, tag: str = "llpauc", check: Sequence[IdMap] = ()
) -> Iterator[Write]:
    """A function that takes table after table of (user, item, rank, score), at least one.

    The file has another name until the block ends well. A folder that is not there is made.

    Args:
        path: its ending says what is written, see `KINDS`.
        tag: last field of a TREC run.
        check: ids that will come; those that the kind of file cannot hold are refused at once.
    """
    target, kind, packed = Path(path), *kind_of(path)
    if kind == ".trec":
        for ids in (*check, IdMap.of([tag])):
            _check_no_space(ids.text)
    target.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(target) as temporary, KINDS[kind](temporary, packed, tag) as write:
        yield write


def kind_of(path: str | Path) -> tuple[str, bool]:
    """The ending that says how lists are written, and whether they are packed by gzip."""
    name = Path(path).name.lower()
    packed = name.endswith(".gz")
    kind = Path(name.removesuffix(".gz")).suffix
    if kind not in KINDS or (packed and kind == ".parquet"):  # which packs by itself
        raise InputError(
            f"{path}: unknown kind of file {Path(path).suffix!r};"
            f" choose one of: {listing(KINDS)}; text may end in .gz too"
        )
    return kind, packed


@contextmanager
def _parquet(path: Path, packed: bool, tag: str) -> Iterator[Write]:
    writer: pq.ParquetWriter | None = None

    def write(table: pa.Table) -> None:
        nonlocal writer
        if writer is None:
            writer = pq.ParquetWriter(path, table.schema)
        writer.write_table(table)

    try:
        yield write
    finally:
        if writer is not None:
            writer.close()


@contextmanager
def _delimited(path: Path, packed: bool, tag: str, *, delimiter: str) -> Iterator[Write]:
    with _open(path, packed) as file:
        file.write(delimiter.join(("user", "item", "rank", "score")).encode() + b"\n")

        def write(table: pa.Table) -> None:
            cells = [_quoted(column, delimiter) for column in table.columns]
            _write_lines(file, cells, delimiter)

        yield write


@contextmanager
def _trec(path: Path, packed: bool, tag: str) -> Iterator[Write]:
    with _open(path, packed) as file:

        def write(table: pa.Table) -> None:
            user, item, rank, score = (c.cast(pa.large_string()) for c in table.columns)
            _check_no_space(user)
            _check_no_space(item)
            fixed = [pa.scalar(word, pa.large_string()) for word in ("Q0", tag)]
            _write_lines(file, [user, fixed[0], item, rank, score, fixed[1]], " ")

        yield write


@contextmanager
def _json_lines(path: Path, packed: bool, tag: str) -> Iterator[Write]:
    """A line a user, as `--json` has them; somebody without a recommendation has no line."""
    with _open(path, packed) as file:

        def write(table: pa.Table) -> None:
            users, items, scores = (table[c].to_pylist() for c in ("user", "item", "score"))
            starts = [*np.flatnonzero(np.asarray(table["rank"]) == 1).tolist(), len(users)]
            for start, stop in pairwise(starts):
                pairs = zip(items[start:stop], scores[start:stop], strict=True)
                line = {"user": users[start], "items": [{"item": i, "score": s} for i, s in pairs]}
                file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")

        yield write


KINDS: dict[str, Callable[[Path, bool, str], AbstractContextManager[Write]]] = {
    ".tsv": partial(_delimited, delimiter="\t"),
    ".csv": partial(_delimited, delimiter=","),
    ".parquet": _parquet,
    ".jsonl": _json_lines,
    ".trec": _trec,
}


@contextmanager
def _open(path: Path, packed: bool) -> Iterator[IO[bytes]]:
    with path.open("wb") as file:
        if not packed:
            yield file
            return
        # Neither name nor time: the same lists are the same bytes.
        with gzip.GzipFile("", "wb", 6, file, mtime=0) as zipped:
            yield zipped  # type: ignore[misc]  # an IO[bytes] in all but name


def _quoted(column: pa.ChunkedArray, delimiter: str) -> pa.ChunkedArray:
    """As text, in quotes where a value needs them and nowhere else."""
    numbers = not pa.types.is_large_string(column.type)
    text = column.cast(pa.large_string())
    if numbers:
        return text
    odd = pc.match_substring_regex(text, f'[{delimiter}"\r\n]|^\\s|\\s$')
    if not pc.any(odd).as_py():
        return text
    quote = pa.scalar('"', pa.large_string())
    doubled = pc.replace_substring(text, '"', '""')
    empty = pa.scalar("", pa.large_string())
    return pc.if_else(odd, pc.binary_join_element_wise(quote, doubled, quote, empty), text)


def _write_lines(file: IO[bytes], cells: Sequence[Any], delimiter: str) -> None:
    *first, last = cells
    end, between, nothing = (pa.scalar(s, pa.large_string()) for s in ("\n", delimiter, ""))
    last = pc.binary_join_element_wise(last, end, nothing)
    lines = pc.binary_join_element_wise(*first, last, between)
    for chunk in lines.chunks if isinstance(lines, pa.ChunkedArray) else [lines]:
        if len(chunk):
            ends = np.frombuffer(chunk.buffers()[1], np.int64)[chunk.offset :][: len(chunk) + 1]
            file.write(memoryview(chunk.buffers()[2])[ends[0] : ends[-1]])


# All that any reader of runs takes for the end of a field: Python's, trec_eval's, Unicode's.
_SPACE = r"[\s\x0b\x1c-\x1f\x{85}\p{Z}]"


def _check_no_space(ids: pa.Array | pa.ChunkedArray) -> None:
    spaced = ids.filter(pc.match_substring_regex(ids, _SPACE))
    if len(spaced):
        raise InputError(
            f"a TREC run has no room for an id with a space in it, such as"
            f" {spaced[0].as_py()[:80]!r}; choose another kind of file"
        )
