"""File formats of recommendation lists, written table after table.

Every table has the columns user, item, rank and score, and holds whole lists. JSON lines have one
line per user; the other formats have one line or row per recommendation.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from llpauc.data.ids import IdMap
from llpauc.errors import InputError, listing
from llpauc.storage.atomic import atomic_write

Write = Callable[[pa.Table], None]
Lines = Iterable[bytes | memoryview]
# Everything that a reader of TREC runs takes for the end of a field.
_SPACE = r"[\s\x0b\x1c-\x1f\x{85}\p{Z}]"


@contextmanager
def open_list_file(
    path: str | Path, tag: str = "llpauc", expected_ids: Sequence[IdMap] = ()
) -> Iterator[Write]:
    """Yield a function that writes a table of (user, item, rank, score); call it at least once.

    The file is written under a temporary name and renamed when the block ends without an
    exception. Its folder is created if it does not exist.

    Args:
        path: its suffix is the format, see `LIST_FORMATS`.
        tag: last field of a TREC run.
        expected_ids: ids that will be written; ids that the format cannot store are refused at
            once.
    """
    path, suffix = Path(path), list_format(path)
    if suffix == ".trec":
        for ids in (*expected_ids, IdMap.of([tag])):
            _check_no_space(ids.text)
    path.parent.mkdir(parents=True, exist_ok=True)
    compressed = path.suffix.lower() == ".gz"
    with (
        atomic_write(path) as temporary,
        LIST_FORMATS[suffix](temporary, compressed, tag) as write,
    ):
        yield write


def list_format(path: str | Path) -> str:
    """The suffix that is the format of a file of lists, without .gz.

    >>> list_format("lists.csv.gz")
    '.csv'
    """
    name = Path(path).name.lower()
    suffix = Path(name.removesuffix(".gz")).suffix
    if suffix not in LIST_FORMATS or name.endswith(".parquet.gz"):
        raise InputError(
            f"{path}: unknown format {Path(path).suffix!r}; choose one of: {listing(LIST_FORMATS)};"
            " text formats may end in .gz too"
        )
    return suffix


@contextmanager
def _parquet(path: Path, compressed: bool, tag: str) -> Iterator[Write]:
    writer: pq.ParquetWriter | None = None

    def write(table: pa.Table) -> None:
        nonlocal writer
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table)

    try:
        yield write
    finally:
        if writer is not None:
            writer.close()


@contextmanager
def _text(
    path: Path,
    compressed: bool,
    tag: str,
    *,
    encode: Callable[[pa.Table, str], Lines],
    header: bytes = b"",
) -> Iterator[Write]:
    with path.open("wb") as file:
        # Without name and time in the gzip header, so that equal lists give equal bytes.
        gzipped = gzip.GzipFile("", "wb", 6, file, mtime=0) if compressed else nullcontext(file)
        with gzipped as output:
            output.write(header)
            yield lambda table: output.writelines(encode(table, tag))


def _delimited_lines(table: pa.Table, tag: str, *, delimiter: str) -> Lines:
    return _join_lines([_quoted(column, delimiter) for column in table.columns], delimiter)


def _trec_lines(table: pa.Table, tag: str) -> Lines:
    user, item, rank, score = (column.cast(pa.large_string()) for column in table.columns)
    _check_no_space(user)
    _check_no_space(item)
    return _join_lines([user, _text_scalar("Q0"), item, rank, score, _text_scalar(tag)], " ")


def _json_lines(table: pa.Table, tag: str) -> Lines:
    """One line per user; users without a recommendation have none."""
    users, items, scores = (table[name].to_pylist() for name in ("user", "item", "score"))
    starts = [*np.flatnonzero(np.asarray(table["rank"]) == 1).tolist(), len(users)]
    for start, stop in pairwise(starts):
        pairs = zip(items[start:stop], scores[start:stop], strict=True)
        line = {"user": users[start], "items": [{"item": i, "score": s} for i, s in pairs]}
        yield json.dumps(line, ensure_ascii=False).encode() + b"\n"


LIST_FORMATS: dict[str, Callable[[Path, bool, str], AbstractContextManager[Write]]] = {
    ".tsv": partial(
        _text,
        encode=partial(_delimited_lines, delimiter="\t"),
        header=b"user\titem\trank\tscore\n",
    ),
    ".csv": partial(
        _text, encode=partial(_delimited_lines, delimiter=","), header=b"user,item,rank,score\n"
    ),
    ".parquet": _parquet,
    ".jsonl": partial(_text, encode=_json_lines),
    ".trec": partial(_text, encode=_trec_lines),
}


def _quoted(column: pa.ChunkedArray, delimiter: str) -> pa.ChunkedArray:
    """The column as text; only values that need quotes are quoted."""
    text = column.cast(pa.large_string())
    if not pa.types.is_large_string(column.type):
        return text
    needs_quotes = pc.match_substring_regex(text, f'[{delimiter}"\r\n]|^\\s|\\s$')
    if not pc.any(needs_quotes).as_py():
        return text
    quote, doubled = _text_scalar('"'), pc.replace_substring(text, '"', '""')
    quoted = pc.binary_join_element_wise(quote, doubled, quote, _text_scalar(""))
    return pc.if_else(needs_quotes, quoted, text)


def _join_lines(cells: Sequence[Any], delimiter: str) -> Lines:
    """The cells joined to lines, as the memory that Arrow holds them in."""
    *first, last = cells
    last = pc.binary_join_element_wise(last, _text_scalar("\n"), _text_scalar(""))
    lines = pc.binary_join_element_wise(*first, last, _text_scalar(delimiter))
    for chunk in lines.chunks if isinstance(lines, pa.ChunkedArray) else [lines]:
        if len(chunk):
            ends = np.frombuffer(chunk.buffers()[1], np.int64)[chunk.offset :][: len(chunk) + 1]
            yield memoryview(chunk.buffers()[2])[ends[0] : ends[-1]]


def _text_scalar(text: str) -> pa.Scalar:
    return pa.scalar(text, pa.large_string())


def _check_no_space(ids: pa.Array | pa.ChunkedArray) -> None:
    with_space = ids.filter(pc.match_substring_regex(ids, _SPACE))
    if len(with_space):
        raise InputError(
            f"a TREC run cannot store an id with a space, such as"
            f" {with_space[0].as_py()[:80]!r}; choose another format"
        )
