"""Broken and unusual files, each with its expected outcome.

One table: the bytes of a file, then either the (user, item) pairs that come out or the words the
one-line error must contain. The name of a case states what it tests.
"""

from __future__ import annotations

import csv
import gzip
import io
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from llpauc.data.readers import read_interactions
from llpauc.data.text_tables import wide_fields
from llpauc.errors import InputError


def parquet(**columns: Any) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer)
    return buffer.getvalue()


@dataclass(frozen=True)
class Case:
    content: bytes
    pairs: list[tuple[Any, Any]] | None = None
    error: tuple[str, ...] = ()
    name: str = "events.csv"
    options: dict[str, Any] = field(default_factory=dict)
    rejected: int = 0


SKIP = {"bad_rows": "skip"}
HEAD = b"user,item\n"
RATED = b"user,item,rating\n"
MANY = b"".join(b"u%d,i%d,%d\n" % (row, row % 7, row % 5) for row in range(30_000))
PACKED = gzip.compress(HEAD + MANY.replace(b",0\n", b"\n"))
TYPED = parquet(user=[1, 2], item=["a", "b"])

CASES: dict[str, Case] = {
    # Missing content.
    "empty file": Case(b"", error=("the file is empty",)),
    "only blank lines": Case(b"\n\r\n\n", error=("no rows",)),
    "only a header": Case(HEAD, error=("no rows",)),
    "only a header without a line end": Case(b"user,item", error=("no rows",)),
    "only a BOM": Case(b"\xef\xbb\xbf", error=("no rows",)),
    "one column": Case(b"user\n1\n2\n", error=("only one column", "--delimiter")),
    "no user column": Case(
        b"who,item\na,b\n", error=("which column is the user", "who, item", "--user NAME")
    ),
    "a column that does not exist": Case(
        HEAD + b"1,2\n", error=("no column 'usr'", "user, item"), options={"user": "usr"}
    ),
    "a position that does not exist": Case(
        HEAD + b"1,2\n", error=("no column 7", "0 to 1"), options={"user": 7}
    ),
    "a name without a header": Case(
        b"1,2\n3,4\n", error=("no header", "0 to 1"), options={"user": "who", "header": False}
    ),
    "one column for both": Case(
        HEAD + b"1,2\n", error=("cannot be both",), options={"user": 0, "item": 0}
    ),
    "two columns of one name": Case(b"user,item,item\n1,2,3\n", error=("2 columns", "'item'")),
    "two columns of one name, by position": Case(
        b"user,item,item\n1,2,3\n", [("1", "3")], options={"user": 0, "item": "2"}
    ),
    # Indices that are too long, too short, or end oddly.
    "a column too few in the last row": Case(
        RATED + b"1,2,3\n4,5\n", error=("line 3", "only 2 of 3 columns", "--bad-rows skip")
    ),
    "a column too many in the last row": Case(
        RATED + b"1,2,3\n4,5,6,7", error=("line 3", "4 of 3 columns")
    ),
    "a column too few, skipped": Case(
        RATED + b"1,2,3\n4,5\n6,7,8\n", [("1", "2"), ("6", "7")], options=SKIP, rejected=1
    ),
    "a column too many in the last row, skipped": Case(
        RATED + b"1,2,3\n4,5,6,7", [("1", "2")], options=SKIP, rejected=1
    ),
    "a delimiter too many that opens nothing": Case(
        HEAD + b"1,2,\n3,4\n", [("1", "2"), ("3", "4")]
    ),
    "no line end at the end": Case(HEAD + b"1,2\n3,4", [("1", "2"), ("3", "4")]),
    "blank lines in between": Case(HEAD + b"\n1,2\n\n\n3,4\n\n", [("1", "2"), ("3", "4")]),
    "a blank first line": Case(b"\n" + HEAD + b"1,2\n", [("1", "2")]),
    "CRLF": Case(b"user,item\r\n1,2\r\n3,4\r\n", [("1", "2"), ("3", "4")]),
    "CR alone": Case(b"user,item\r1,2\r3,4\r", [("1", "2"), ("3", "4")]),
    "all line ends mixed": Case(
        b"user,item\r\n1,2\n3,4\r5,6\r\n", [("1", "2"), ("3", "4"), ("5", "6")]
    ),
    "a bad row behind mixed line ends": Case(
        b"user,item,rating\r\n1,2,3\n3,4,x\r5,6,7\r\n", error=("line 3", "rating 'x'")
    ),
    # Quotes.
    "quoted delimiter, quote and line end": Case(
        HEAD + b'"a,b","c""d"\n"e\nf",g\n', [("a,b", 'c"d'), ("e\nf", "g")]
    ),
    "a bad row behind a quoted line end": Case(
        RATED + b'"e\nf",g,1\nh,i,x\n', error=("line 4", "rating 'x'")
    ),
    "a quoted CRLF in a file of LF": Case(HEAD + b'"e\r\nf",g\n', [("e\r\nf", "g")]),
    "a quote that never closes": Case(HEAD + b'1,2\n"3,4\n5,6\n', error=("line 3", "never closes")),
    "a quote that never closes cannot be skipped": Case(
        HEAD + b'1,2\n"3,4\n5,6\n', error=("line 3", "never closes"), options=SKIP
    ),
    "text behind a closing quote": Case(
        HEAD + b'1,2\n"5" inch,4\n', error=("line 3", "closing quote")
    ),
    "text behind a closing quote, skipped": Case(
        HEAD + b'1,2\n"5" inch,4\n7,8\n', [("1", "2"), ("7", "8")], options=SKIP, rejected=1
    ),
    "a quote inside of a field": Case(HEAD + b'5" pipe,2\n', [('5" pipe', "2")]),
    "a blank before a quote": Case(HEAD + b'a, "b,c"\n', [("a", "b,c")]),
    "a quote in a file without quoting": Case(
        b'1::"a::5::9\n2::b"::4::8\n', [("1", '"a'), ("2", 'b"')], name="ratings.dat"
    ),
    # Ids that look like something else.
    "leading zeros": Case(HEAD + b"007,7\n7,07\n", [("007", "7"), ("7", "07")]),
    "1.0 is not 1": Case(HEAD + b"1.0,1\n1,1e0\n", [("1.0", "1"), ("1", "1e0")]),
    "more than 64 bits, and negative": Case(
        HEAD + b"18446744073709551623,-1\n9223372036854775808,-0\n",
        [("18446744073709551623", "-1"), ("9223372036854775808", "-0")],
    ),
    "words for nothing are ids": Case(
        HEAD + b"NaN,null\nNA,None\nNULL,\\N\ntrue,inf\n",
        [("NaN", "null"), ("NA", "None"), ("NULL", "\\N"), ("true", "inf")],
    ),
    "blanks around ids": Case(HEAD + b" a ,b \n", [("a", "b")]),
    "blanks after commas": Case(b"user, item\na, b\nc d,\te\n", [("a", "b"), ("c d", "e")]),
    "blanks around ids next to quoted fields": Case(HEAD + b'"a,b", c\n', [("a,b", "c")]),
    "blanks in quotes": Case(HEAD + b'" a "," b"\n"c, d",e\n', [(" a ", " b"), ("c, d", "e")]),
    "an id of blanks": Case(HEAD + b"a,b\nc,  \n", error=("line 3: the item id is empty",)),
    "blanks around tabs": Case(b"user\titem\na \t b\n", [("a", "b")], name="events.tsv"),
    "a formula": Case(HEAD + b"=cmd(),+1\n@x,-2\n", [("=cmd()", "+1"), ("@x", "-2")]),
    "emoji, combining and right to left": Case(
        HEAD + "👩‍👩‍👧,e\u0301\nשלום,é\n".encode(), [("👩‍👩‍👧", "e\u0301"), ("שלום", "é")]
    ),
    "line ends of other alphabets": Case(
        HEAD + "a\u2028b,c\u0085d\n".encode(), [("a\u2028b", "c\u0085d")]
    ),
    "an id of 10,000 characters": Case(HEAD + b"x" * 10_000 + b",2\n", [("x" * 10_000, "2")]),
    "a field of 10 MB": Case(
        b"user,item,text\n1,2," + b"x" * 10_000_000 + b"\n3,4,y\n", [("1", "2"), ("3", "4")]
    ),
    "a field of 10 MB in the first row": Case(
        b"1,2," + b"x" * 10_000_000 + b"\n3,4,y\n", [("1", "2"), ("3", "4")]
    ),
    "a first quote that stays open": Case(b'"' + b"x,y\n" * 9, error=("line 1", "quote left open")),
    "a first field of 17 MB": Case(b'"' + b"x" * 17_000_000 + b'",2\n', error=("line 1", "16 MB")),
    "a row of 17 MB": Case(
        HEAD + b"1,2\n3," + b"x" * 17_000_000 + b"\n", error=("line 3", "16 MB")
    ),
    "a row of 17 MB cannot be skipped": Case(
        HEAD + b"1,2\n3," + b"x" * 17_000_000 + b"\n", error=("line 3", "16 MB"), options=SKIP
    ),
    "21 MB without a line feed, but with returns": Case(
        b"user,item\r" + (b"1," + b"x" * 1000 + b"\r") * 21_000, [("1", "x" * 1000)] * 21_000
    ),
    "an adjacency list with a line of 17 MB": Case(
        b"1 2 3\n4 " + b"5 " * 8_500_000 + b"\n", error=("line 2", "16 MB"), name="e.txt"
    ),
    "a quoted field of 17 MB": Case(
        HEAD + b'1,2\n3,"' + b"x" * 17_000_000 + b'"\n', error=("line 3", "16 MB")
    ),
    "duplicates stay": Case(HEAD + b"1,2\n1,2\n", [("1", "2"), ("1", "2")]),
    "an empty user": Case(HEAD + b"1,2\n,3\n", error=("line 3", "user id is empty")),
    "an empty quoted item": Case(HEAD + b'1,2\n3,""\n', error=("line 3", "item id is empty")),
    "empty ids, skipped": Case(
        HEAD + b'1,2\n,3\n4,""\n5,6\n', [("1", "2"), ("5", "6")], options=SKIP, rejected=2
    ),
    "nothing but bad rows": Case(
        HEAD + b",3\n4,\n", error=("no usable row", "all 2", "line 2"), options=SKIP
    ),
    # Values.
    "a rating that is no number": Case(
        RATED + b"1,2,3\n1,2,abc\n", error=("events.csv: line 3: rating 'abc' is not a number",)
    ),
    "a rating that is no number far down": Case(
        RATED + MANY + b"1,2,abc\n", error=("line 30002: rating 'abc'", "--bad-rows skip")
    ),
    "an empty rating": Case(RATED + b"1,2,3\n1,2,\n", error=("line 3", "rating ''")),
    "NaN for a rating": Case(RATED + b"1,2,3\n1,2,NaN\n", error=("line 3", "rating 'NaN'")),
    "a rating float32 cannot hold": Case(RATED + b"1,2,1e39\n", error=("line 2", "too large")),
    "the only rating is no number": Case(RATED + b"1,2,good\n", error=("line 2", "rating 'good'")),
    "bad ratings, skipped": Case(
        RATED + b"1,2,3\n1,2,x\n4,5,inf\n6,7,1\n",
        [("1", "2"), ("6", "7")],
        options=SKIP,
        rejected=2,
    ),
    "a date among seconds": Case(
        b"user,item,time\n1,2,100\n1,3,200\n1,4,2020-01-01\n", error=("line 4", "'2020-01-01'")
    ),
    "a date that is none": Case(
        b"user,item,date\n1,2,2020-01-01\n1,3,2020-02-30\n", error=("line 3", "not a date")
    ),
    "timestamps before 1970": Case(
        b"user,item,timestamp\n1,2,-5\n1,3,-2208988800\n", [("1", "2"), ("1", "3")]
    ),
    "a timestamp that is infinite": Case(
        b"user,item,timestamp\n1,2,5\n1,3,-inf\n", error=("line 3", "timestamp '-inf'")
    ),
    # Bytes that are no text.
    "BOM": Case(b"\xef\xbb\xbf" + HEAD + b"1,2\n", [("1", "2")]),
    "latin-1": Case(HEAD + b"1,2\n\xe9t\xe9,3\n", error=("line 3", "not UTF-8", "0xe9")),
    "latin-1, skipped": Case(
        HEAD + b"1,2\n\xe9t\xe9,3\n4,5\n", [("1", "2"), ("4", "5")], options=SKIP, rejected=1
    ),
    "UTF-16": Case("user,item\n1,2\n".encode("utf-16"), error=("UTF-16", "convert")),
    "a NUL in an id": Case(HEAD + b"1,2\n3\x00,4\n", error=("line 3", "NUL")),
    "UTF-16 without a mark": Case("user,item\n1,2\n".encode("utf-16-le"), error=("binary",)),
    "a binary file": Case(bytes(range(256)) * 40, error=("binary",)),
    "zeros": Case(b"\0" * 5000, error=("binary",)),
    "a zip archive": Case(b"PK\x03\x04" + b"x" * 100, error=("zip", "convert")),
    "truncated gzip": Case(PACKED[: len(PACKED) // 2], error=("gzip", "cut off"), name="e.csv.gz"),
    "gzip with a flipped bit": Case(
        PACKED[:-6] + bytes([PACKED[-6] ^ 1]) + PACKED[-5:], error=("gzip",), name="e.csv.gz"
    ),
    "gzip with garbage behind it": Case(PACKED + b"garbage", error=("gzip",), name="e.csv.gz"),
    "gzip of nothing": Case(gzip.compress(b""), error=("the file is empty",), name="e.csv.gz"),
    "gzip in two members": Case(
        gzip.compress(HEAD + b"1,2\n") + gzip.compress(b"3,4\n"), [("1", "2"), ("3", "4")]
    ),
    "gzip without its name": Case(gzip.compress(HEAD + b"1,2\n"), [("1", "2")]),
    "the name of gzip without it": Case(HEAD + b"1,2\n", [("1", "2")], name="e.csv.gz"),
    "a name that is a pattern": Case(HEAD + b"1,2\n", [("1", "2")], name="e[1]*?.csv"),
    "a name with a quote": Case(HEAD + b"1,2\n", [("1", "2")], name="e'; DROP--.csv"),
    # Parquet.
    "Parquet called CSV": Case(TYPED, [(1, "a"), (2, "b")]),
    "CSV called Parquet": Case(HEAD + b"1,2\n", error=("not a Parquet file",), name="e.parquet"),
    "truncated Parquet": Case(TYPED[:-20], error=("cut off or damaged",), name="e.parquet"),
    "Parquet without a middle": Case(
        TYPED[:4] + TYPED[40:], error=("cut off or damaged",), name="e.parquet"
    ),
    "Parquet with a missing id": Case(
        parquet(user=[1, None], item=[3, 4]),
        error=("row 2", "user id is missing"),
        name="e.parquet",
    ),
    "Parquet with a missing id, skipped": Case(
        parquet(user=[1, None, 0], item=[3, 4, 5]),
        [(1, 3), (0, 5)],
        name="e.parquet",
        options=SKIP,
        rejected=1,
    ),
    "Parquet with an empty id": Case(
        parquet(user=["a", ""], item=[3, 4]), error=("row 2", "user id"), name="e.parquet"
    ),
    "Parquet with ids that are floats": Case(
        parquet(user=[1.0, 2.0], item=[3, 4]), error=("floating-point", "cast"), name="e.parquet"
    ),
    "Parquet with a missing rating": Case(
        parquet(user=[1, 2], item=[3, 4], rating=[1.0, None]),
        error=("row 2", "rating"),
        name="e.parquet",
    ),
    "Parquet without rows": Case(
        parquet(user=pa.array([], pa.int64()), item=pa.array([], pa.int64())),
        error=("no rows",),
        name="e.parquet",
    ),
    # JSON lines.
    "JSON lines with a broken one": Case(
        b'{"user": 1, "item": 2}\n{"user": 1,\n', error=("line 2",), name="e.jsonl"
    ),
    "JSON lines with broken ones, skipped": Case(
        b'{"user": 1, "item": 2}\n{"user": 1,\n\n[1]\n{"user": 3}\n{"user": 3, "item": 4}\n',
        [(1, 2), (3, 4)],
        name="e.jsonl",
        options=SKIP,
        rejected=3,
    ),
    "JSON lines nested 100,000 deep": Case(
        b'{"user": 1, "item": 2}\n' + b"[" * 100_000 + b"\n", error=("line 2",), name="e.jsonl"
    ),
    "JSON lines with a number of 5,000 digits": Case(
        b'{"user": 1, "item": 2}\n{"user": ' + b"9" * 5000 + b', "item": 2}\n',
        error=("line 2",),
        name="e.jsonl",
    ),
    "JSON lines with half a surrogate": Case(
        b'{"user": "a", "item": "b"}\n{"user": "\\ud800", "item": "b"}\n',
        error=("line 2",),
        name="e.jsonl",
    ),
    "JSON on one line of 17 MB": Case(
        b'{"user": 1, "item": 2, "text": "' + b"x" * 17_000_000 + b'"}\n',
        error=("line 1", "16 MB"),
        name="e.jsonl",
    ),
    # Other formats.
    "adjacency lists of one length": Case(
        b"1 2 3\n4 5 6\n", error=("format='adjacency'",), name="e.txt"
    ),
    "adjacency lists by format": Case(
        b"1 2 3\n4 5 6\n",
        [("1", "2"), ("1", "3"), ("4", "5"), ("4", "6")],
        name="e.txt",
        options={"format": "adjacency"},
    ),
    "an adjacency list with blanks and empty users": Case(
        b"0\n1  2\t3 \r\n\n4 \n5 6", [("1", "2"), ("1", "3"), ("5", "6")], name="e.txt"
    ),
    "an adjacency list of users only": Case(
        b"1\n2\n", error=("no rows",), name="e.txt", options={"format": "adjacency"}
    ),
    "an adjacency list that is not UTF-8": Case(
        b"1 2\n3 \xe9 5\n6 7 8\n", error=("line 2", "not UTF-8"), name="e.txt"
    ),
    "an adjacency list that is not UTF-8, skipped": Case(
        b"1 2\n3 \xe9 5\n6 7\n", [("1", "2"), ("6", "7")], name="e.txt", options=SKIP, rejected=1
    ),
    "an unknown format": Case(HEAD + b"1,2\n", error=("csv, tsv",), options={"format": "xls"}),
    "an unknown way with bad rows": Case(
        HEAD + b"1,2\n", error=("error, skip",), options={"bad_rows": "drop"}
    ),
    "a delimiter that cannot be": Case(HEAD, error=("delimiter",), options={"delimiter": "\n"}),
    "u.data with a short row": Case(
        b"1\t2\t3\t4\n1\t2\t3\n", error=("line 2", "only 3 of 4 columns"), name="u.data"
    ),
}


@pytest.mark.parametrize("title", CASES)
def test_read_interactions_of_a_broken_file_has_the_listed_outcome(
    title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[title]
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.chdir(folder)
    Path(case.name).write_bytes(case.content)
    if case.pairs is None:
        with pytest.raises(InputError) as caught:
            read_interactions(case.name, **case.options)
        message = str(caught.value)
        assert "\n" not in message
        assert len(message) < 500
        assert all(word in message for word in case.error), message
        if not {"format", "bad_rows", "delimiter"} & set(case.options):
            assert message.startswith(f"{case.name}: "), message
    else:
        reading = read_interactions(case.name, **case.options)
        events = reading.interactions
        users, items = events.user_ids.ids(events.users), events.item_ids.ids(events.items)
        assert list(zip(users, items, strict=True)) == case.pairs
        assert reading.rows_rejected == case.rejected
        assert any("left out" in note for note in reading.notes) == (case.rejected > 0)
    assert [path.name for path in folder.iterdir()] == [case.name]  # nothing is left behind
    assert Path(case.name).read_bytes() == case.content


def count_rows(case: Case) -> int:
    """Counted without the readers: by Python's csv module, by lines, by Parquet's metadata."""
    content = case.content
    if content[:2] == b"\x1f\x8b":
        content = gzip.decompress(content)
    if content[:4] == b"PAR1":
        return pq.read_metadata(io.BytesIO(content)).num_rows
    text = content.removeprefix(b"\xef\xbb\xbf").decode("latin-1")
    lines = [line for line in re.split(r"\r\n|\r|\n", text) if line.strip(" \t")]
    if case.name.endswith((".txt", ".dat", ".data", ".jsonl")):
        return len(lines)
    with wide_fields():
        delimiter = "\t" if case.name.endswith(".tsv") else ","
        read = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
        rows = [row for row in read if row]
    return len(rows) - any(word in rows[0] for word in ("user", "item"))


@pytest.mark.parametrize("title", CASES)
def test_read_interactions_rows_read_plus_rejected_is_all_rows(title: str, tmp_path: Path) -> None:
    case = CASES[title]
    path = tmp_path / case.name.replace("'; DROP--", "")
    path.write_bytes(case.content)
    try:
        reading = read_interactions(path, **{**case.options, "bad_rows": "skip"})
    except InputError:
        assert case.pairs is None
        return
    assert reading.rows_read + reading.rows_rejected == count_rows(case)
    if "bad_rows" not in case.options:
        assert (reading.rows_rejected > 0) == (case.pairs is None)


def test_cases_cover_at_least_25_errors_and_25_successes() -> None:
    assert len(CASES) >= 25
    refused = sum(case.pairs is None for case in CASES.values())
    assert refused >= 25
    assert len(CASES) - refused >= 25


@pytest.mark.parametrize("ending", [".csv", ".jsonl", ".txt"])
def test_read_interactions_refuses_a_line_of_100_million_characters(
    ending: str, tmp_path: Path
) -> None:
    """`make faults` has a billion, in seconds and bounded memory."""
    path = write_long_line(tmp_path / f"long{ending}", 10**8)
    with pytest.raises(InputError, match="line 2: a field above 16 MB"):
        read_interactions(path)


def write_long_line(path: Path, characters: int) -> Path:
    beginnings = {
        ".csv": b"user,item\n1,",
        ".jsonl": b'{"user": 1, "item": 2}\n{"user": "',
        ".txt": b"1 2\n4 ",
    }
    with path.open("wb") as file:
        file.write(beginnings[path.suffix])
        for _ in range(characters // 10**6):
            file.write(b"x" * 10**6)
        file.write(b"\n3,4\n")
    return path


def test_read_interactions_takes_a_glob_pattern_literally(tmp_path: Path) -> None:
    (tmp_path / "e1.csv").write_bytes(HEAD + b"wrong,wrong\n")
    (tmp_path / "e[1].csv").write_bytes(HEAD + b"right,right\n")
    reading = read_interactions(tmp_path / "e[1].csv")
    assert list(reading.interactions.user_ids) == ["right"]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda folder: folder / "missing.csv", ("missing.csv", "No such file")),
        (lambda folder: folder, ("no data file is in this folder",)),
        (lambda folder: os.mkfifo(folder / "pipe") or folder / "pipe", ("not a regular file",)),
        (lambda folder: [1, 2], ("cannot read interactions from a list", "pandas")),
        (lambda folder: None, ("NoneType",)),
    ],
)
def test_read_interactions_refuses_paths_and_objects_that_are_no_source(
    make: Any, words: tuple[str, ...], tmp_path: Path
) -> None:
    with pytest.raises(InputError) as caught:
        read_interactions(make(tmp_path))
    assert all(word in str(caught.value) for word in words)
