"""The readers: formats, frames, requested and detected columns, split files, the real data."""

from __future__ import annotations

import csv
import gzip
import io
import os
import re
import tempfile
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from scipy import sparse

from llpauc.data.columns import FORMAT_NAMES, ColumnRoles
from llpauc.data.formats import FORMATS
from llpauc.data.interactions import Interactions, Split
from llpauc.data.out_of_core import prepare
from llpauc.data.prepared import open_prepared
from llpauc.data.readers import Reading, load, read_ids, read_interactions, read_split
from llpauc.data.sources import Format, Source, connect
from llpauc.errors import InputError

DATA = Path(os.environ.get("LLPAUC_DATA", Path(__file__).parents[3] / "shared" / "data"))
SLOW_WAY = "row by row"


def events(interactions: Interactions) -> list[tuple[Any, ...]]:
    """The events with their ids."""
    users = interactions.user_ids.ids(interactions.users)
    items = interactions.item_ids.ids(interactions.items)
    values = [v for v in (interactions.ratings, interactions.timestamps) if v is not None]
    return list(zip(users, items, *(column.tolist() for column in values), strict=True))


def read(tmp_path: Path, name: str, text: str | bytes, **options: Any) -> Reading:
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_interactions(path, **options)


PLAIN = [("a", "x", 3.0, 10.0), ("b", "x", 4.5, -20.0), ("a", "y", 1.0, 30.0)]
FILES = {
    "e.csv": "user_id,item_id,rating,timestamp\na,x,3,10\nb,x,4.5,-20\na,y,1,30\n",
    "swapped.csv": "ts,Stars,movieId,userId\n10,3,x,a\n-20,4.5,x,b\n30,1,y,a\n",
    "semicolon.csv": "user;item;rating;time\na;x;3;10\nb;x;4.5;-20\na;y;1;30\n",
    "tab.csv": "user\titem\trating\ttime\na\tx\t3\t10\nb\tx\t4.5\t-20\na\ty\t1\t30\n",
    "e.tsv": "user\titem\trating\ttime\na\tx\t3\t10\nb\tx\t4.5\t-20\na\ty\t1\t30\n",
    "comma.tsv": "user,item,rating,time\na,x,3,10\nb,x,4.5,-20\na,y,1,30\n",
    "pipe.txt": "uid|iid|score|date\na|x|3|10\nb|x|4.5|-20\na|y|1|30\n",
    "blank.txt": "user item rating time\na x 3 10\nb x 4.5 -20\na y 1 30\n",
    "bare.csv": "a,x,3,10\nb,x,4.5,-20\na,y,1,30\n",
    "e.inter": "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"
    "a\tx\t3\t10\nb\tx\t4.5\t-20\na\ty\t1\t30\n",
    "u.data": "a\tx\t3\t10\nb\tx\t4.5\t-20\na\ty\t1\t30\n",
    "ratings.dat": "a::x::3::10\nb::x::4.5::-20\na::y::1::30\n",
    "noname": "a::x::3::10\nb::x::4.5::-20\na::y::1::30\n",
}
READ_AS = {"e.tsv": "tsv", "comma.tsv": "tsv", "e.inter": "inter", "u.data": "u.data"} | {
    "ratings.dat": "ratings.dat",
    "noname": "ratings.dat",
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", FILES)
def test_read_interactions_detects_formats(name: str, packed: bool, tmp_path: Path) -> None:
    content = FILES[name].encode()
    name_on_disk = name + ".gz" if packed else name
    reading = read(tmp_path, name_on_disk, gzip.compress(content) if packed else content)
    assert events(reading.interactions) == PLAIN
    assert (reading.rows_read, reading.rows_rejected) == (3, 0)
    assert reading.format == READ_AS.get(name, "csv")
    assert not any(SLOW_WAY in note for note in reading.notes)
    assert any(f"read as {reading.format}" in note for note in reading.notes)
    assert any("user = column" in note and "(detected)" in note for note in reading.notes)


def test_read_interactions_accepts_a_requested_format(tmp_path: Path) -> None:
    reading = read(tmp_path, "x", FILES["u.data"], format="u.data")
    assert events(reading.interactions) == PLAIN
    assert set(FORMATS) >= {
        *("csv", "tsv", "inter", "u.data", "ratings.dat", "adjacency", "parquet", "jsonl"),
    }


def test_format_names_are_those_of_formats() -> None:
    assert tuple(FORMATS) == FORMAT_NAMES


def test_formats_entry_is_all_a_new_format_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One entry is enough for the ending, the sniffing, the option and for prepared data."""

    def read_pairs(source: Source) -> None:
        roles = ColumnRoles({"user": 0, "item": 1}, "number", (f"{source.name}: two letters",))
        source.start(roles)
        lines = source.path.read_text().split()[1:]
        source.add(
            {"user": pa.array([x[0] for x in lines]), "item": pa.array([x[1] for x in lines])}
        )

    pairs = Format(read_pairs, (".pairs",), sniff=lambda source: source.head.startswith(b"PAIRS"))
    monkeypatch.setitem(FORMATS, "pairs", pairs)
    expected = [("a", "x"), ("b", "y"), ("a", "y")]
    for name, options in (("e.pairs", {}), ("noname", {}), ("e.csv", {"format": "pairs"})):
        reading = read(tmp_path, name, "PAIRS ax by ay", **options)
        assert events(reading.interactions) == expected
        assert (reading.format, reading.rows_read) == ("pairs", 3)
    prepare([tmp_path / "e.pairs"], tmp_path / "p", memory="200MB", valid=0.0, test=0.0)
    assert sorted(events(open_prepared(tmp_path / "p").train)) == sorted(expected)


def test_read_interactions_notes_list_detected_choices_only(tmp_path: Path) -> None:
    requested = read(
        tmp_path,
        "e.csv",
        FILES["e.csv"],
        format="csv",
        delimiter=",",
        header=True,
        user="user_id",
        item=1,
        rating="rating",
        timestamp="3",
    )
    assert not any("detected" in note for note in requested.notes)
    guessed = " ".join(read(tmp_path, "e.csv", FILES["e.csv"]).notes)
    for word in ("delimiter ','", "a header", "user = column 'user_id'", "timestamp = column"):
        assert word in guessed


def test_read_interactions_columns_by_name_and_by_position(tmp_path: Path) -> None:
    text = "who,what,3,dwell\na,x,7,5\nb,y,8,6\n"
    by_name = read(tmp_path, "e.csv", text, user="who", item="what", rating="dwell")
    assert events(by_name.interactions) == [("a", "x", 5.0), ("b", "y", 6.0)]
    # "3" is a column's name here, so it is not a position; 3 is.
    named = read(tmp_path, "e.csv", text, user=0, item="1", rating="3")
    assert events(named.interactions) == [("a", "x", 7.0), ("b", "y", 8.0)]
    placed = read(tmp_path, "e.csv", text, user=0, item="1", rating=3, header=True)
    assert events(placed.interactions) == [("a", "x", 5.0), ("b", "y", 6.0)]


def test_read_interactions_columns_of_a_file_without_header(tmp_path: Path) -> None:
    amazon = "x,a,3,10\nx,b,4.5,-20\ny,a,1,30\n"
    reading = read(tmp_path, "e.csv", amazon, user=1, item=0)
    assert events(reading.interactions) == PLAIN
    assert events(read(tmp_path, "p.csv", "1,2\n3,4\n").interactions) == [("1", "2"), ("3", "4")]
    dated = read(tmp_path, "d.csv", "1,2,1970-01-01\n3,4,1970-01-02\n").interactions
    assert dated.ratings is None
    assert dated.timestamps is not None
    assert dated.timestamps.tolist() == [0.0, 86400.0]
    wide = "1,2,3,4,5\n6,7,8,9,0\n"
    with pytest.raises(InputError, match="cannot detect which column"):
        read(tmp_path, "w.csv", wide)
    assert events(read(tmp_path, "w.csv", wide, user=4, item=0).interactions) == [
        ("5", "1"),
        ("0", "6"),
    ]


@pytest.mark.parametrize(
    ("text", "header"),
    [
        ("user,item\na,b\n", True),
        ("a,b\nc,d\n", False),
        ("1,2\n3,4\n", False),
        ("who,points\nann,1\nbob,2\n", True),
        ("u1,1\nu2,2\n", False),
    ],
)
def test_read_interactions_detects_headers(text: str, header: bool, tmp_path: Path) -> None:
    reading = read(tmp_path, "e.csv", text, user=0, item=1)
    assert len(reading.interactions) == text.count("\n") - header
    word = "a header (detected)" if header else "no header (detected)"
    assert any(word in note for note in reading.notes)


def test_read_interactions_requested_name_makes_the_first_row_a_header(tmp_path: Path) -> None:
    reading = read(tmp_path, "e.csv", "left,right\na,b\n", user="left", item="right")
    assert events(reading.interactions) == [("a", "b")]


def test_read_interactions_ignores_columns_on_request(tmp_path: Path) -> None:
    reading = read(tmp_path, "e.csv", FILES["e.csv"], rating="none")
    assert reading.interactions.ratings is None
    assert reading.interactions.timestamps is not None
    text = "user,item,date\na,b,03 12 2013\n"
    odd = read(tmp_path, "d.csv", text)
    assert odd.interactions.timestamps is None
    assert any("'date' ignored" in note for note in odd.notes)


def test_read_interactions_dates_become_seconds(tmp_path: Path) -> None:
    texts = ["2020-01-31", "2020-01-31 12:30:00", "2020-01-31T12:30:00.25Z", "1960-05-01"]
    texts += ["2020-01-31T12:30:00+02:00", "2020-01-31T12:30:00-0730"]
    rows = "".join(f"u,i,{text}\n" for text in texts)
    found = read(tmp_path, "e.csv", "user,item,datetime\n" + rows).interactions.timestamps
    moments = [datetime.fromisoformat(text) for text in texts]
    expected = [(m if m.tzinfo else m.replace(tzinfo=UTC)).timestamp() for m in moments]
    assert found is not None
    assert found.tolist() == expected


def test_read_interactions_prefers_the_first_known_name(tmp_path: Path) -> None:
    text = "asin,parent_asin,user_id\np,q,a\n"
    assert events(read(tmp_path, "e.csv", text).interactions) == [("a", "q")]


def test_read_interactions_adjacency_lists(tmp_path: Path) -> None:
    reading = read(tmp_path, "e.txt", "7 1 2 3\n8\n9 2\n7 4\n")
    data = reading.interactions
    assert events(data) == [("7", "1"), ("7", "2"), ("7", "3"), ("9", "2"), ("7", "4")]
    assert list(data.user_ids) == ["7", "8", "9"]  # a user without items keeps a place
    assert (reading.format, reading.rows_read) == ("adjacency", 4)
    with pytest.raises(InputError, match="no columns"):
        read(tmp_path, "e.txt", "7 1 2 3\n8 4\n", rating="x")


def test_read_interactions_keeps_the_order_of_many_rows(tmp_path: Path) -> None:
    """More than one batch and one thread; ids numbered by their text."""
    rng = np.random.default_rng(0)
    users, items = rng.integers(0, 5000, 400_000), rng.integers(0, 900, 400_000)
    rows = zip(users.tolist(), items.tolist(), strict=True)
    lines = "".join(f"{user},i{item},{row}\n" for row, (user, item) in enumerate(rows))
    reading = read(tmp_path, "e.csv", "user,item,time\n" + lines)
    data = reading.interactions
    assert not any(SLOW_WAY in note for note in reading.notes)
    assert np.array_equal(data.timestamps, np.arange(400_000))
    assert np.array_equal(data.user_ids.ids(data.users).astype(int), users)
    assert list(data.user_ids) == sorted(map(str, set(users.tolist())))
    # Every line quoted, some line ends inside: the same from another way of reading.
    quoted = re.sub(r"^(\d+),", r'"\1",', lines, flags=re.MULTILINE).replace('"7",', '"7\n",')
    again = read(tmp_path, "q.csv", "user,item,time\n" + quoted)
    assert not any(SLOW_WAY in note for note in again.notes)
    assert np.array_equal(again.interactions.users, data.users)
    assert "7\n" in list(again.interactions.user_ids)


ids = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=12
) | st.sampled_from(["007", "7", "-1", str(2**64 + 7), "NaN", "null", '"', "\n", "\r\n", " ", "'"])


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    pairs=st.lists(st.tuples(ids, ids), min_size=1, max_size=12),
    delimiter=st.sampled_from(",;|\t"),
    line_end=st.sampled_from(["\n", "\r\n"]),
)
@example(pairs=[('a\n"b",c', "\ufeff")], delimiter=",", line_end="\n")
def test_read_interactions_any_id_round_trips(
    pairs: list[tuple[str, str]], delimiter: str, line_end: str, tmp_path: Path
) -> None:
    path = tmp_path / "e.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        # Blanks around an id belong to it only in quotes.
        writer = csv.writer(
            file, delimiter=delimiter, lineterminator=line_end, quoting=csv.QUOTE_ALL
        )
        writer.writerow(["user", "item"])
        writer.writerows(pairs)
    data = read_interactions(path).interactions
    assert events(data) == pairs
    assert len(data.user_ids) == len({user for user, _ in pairs})


def by_the_csv_module(content: bytes, width: int) -> list[tuple[str, ...]] | None:
    """What Python's csv module reads from a file with a header; None if it raises.

    Without blanks at the ends of fields if there are any outside of quotes.
    """
    try:
        text = io.StringIO(content.decode("utf-8-sig"), newline="")
        unquoted = re.sub(r'"[^"]*("|$)', '"', text.getvalue())
        blanks = re.search(r"(^|[,\r\n]) | ([,\r\n]|$)", unquoted) is not None
        reader = csv.reader(text, strict=True, skipinitialspace=blanks)
        rows = [[f.strip(" ") if blanks else f for f in row] for row in reader if row][1:]
    except (csv.Error, UnicodeDecodeError):
        return None
    if not rows or "\0" in text.getvalue():
        return None
    for row in rows:
        if len(row) < width or any(row[width:]) or not all(row[:width]):
            return None
    return [tuple(row[:width]) for row in rows]


PIECES = ["a", '"', ",", "\n", "\r", "\r\n", " ", "b,c\n", '"x",', '""', "é", '"q\nr",s\n', "1,2\n"]


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(pieces=st.lists(st.sampled_from(PIECES), max_size=10))
@example(pieces=['"" "",x\n'])
@example(pieces=['a,b\n"'])
@example(pieces=['a"b,c"d\n'])
@example(pieces=['"a" ,b\n'])
def test_read_interactions_reads_irregular_bytes_like_the_csv_module(
    pieces: list[str], tmp_path: Path
) -> None:
    content = ("user,item\n" + "".join(pieces)).encode()
    expected = by_the_csv_module(content, 2)
    if expected is None:
        with pytest.raises(InputError):
            read(tmp_path, "e.csv", content)
    else:
        assert events(read(tmp_path, "e.csv", content).interactions) == expected


ROWS = {"1,2,3\n": True, "4,5,1e3\n": True, '"6\n",7,0\n': True} | dict.fromkeys(
    [",2,3\n", "1,,3\n", "1,2,x\n", "1,2\n", "1,2,3,4\n", "1,2,\n", '"1"x,2,3\n'], False
)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(rows=st.lists(st.sampled_from(list(ROWS)), min_size=1, max_size=30))
def test_read_interactions_reads_or_counts_every_row(rows: list[str], tmp_path: Path) -> None:
    good = [row for row in rows if ROWS[row]]
    content = "user,item,rating\n" + "".join(rows)
    if not good:
        with pytest.raises(InputError, match="no usable row"):
            read(tmp_path, "e.csv", content, bad_rows="skip")
        return
    reading = read(tmp_path, "e.csv", content, bad_rows="skip")
    assert reading.rows_read == len(reading.interactions) == len(good)
    assert reading.rows_read + reading.rows_rejected == len(rows)
    if len(good) < len(rows):
        first = next(place for place, row in enumerate(rows) if not ROWS[row])
        line = 2 + "".join(rows[:first]).count("\n")
        with pytest.raises(InputError, match=f"line {line}: "):
            read(tmp_path, "e.csv", content)


FRAME = {"user": [5, 7, 5], "item": ["x", "y", "y"], "rating": [1.5, 2.0, 3.0]}
TIMES = [datetime(2020, 1, 1), datetime(2020, 1, 2), datetime(1960, 1, 1)]
SECONDS = [datetime(2020, 1, 1, tzinfo=UTC).timestamp() + 86400.0 * day for day in (0, 1)]
SECONDS.append(datetime(1960, 1, 1, tzinfo=UTC).timestamp())


@pytest.mark.parametrize(
    "make",
    [
        pd.DataFrame,
        pl.DataFrame,
        pa.table,
        lambda columns: pd.DataFrame(columns).set_index(pd.Index([9, 9, 8], name="k")),
        lambda columns: pl.DataFrame(columns).with_columns(pl.col("item").cast(pl.Categorical)),
        lambda columns: pd.DataFrame(columns).astype({"item": "category", "user": "uint64"}),
    ],
    ids=["pandas", "polars", "arrow", "pandas with an index", "categorical", "pandas categories"],
)
def test_read_interactions_frames(make: Any) -> None:
    reading = read_interactions(make({**FRAME, "timestamp": TIMES}))
    data = reading.interactions
    assert events(data) == list(zip(*FRAME.values(), SECONDS, strict=True))
    assert data.user_ids.kind in ("int64", "uint64")
    assert data.item_ids.kind == "string"
    assert (reading.format, reading.rows_read) == ("frame", 3)


@pytest.mark.parametrize(
    ("values", "seconds"),
    [
        (pa.array([date(1970, 1, 2)]), 86400.0),
        (pa.array([1_500_000_001], pa.timestamp("ns")), 1.5),
        (pa.array([3600], pa.timestamp("s", tz="Europe/Oslo")), 3600.0),
        (pa.array([1_700_000_000], pa.int32()), 1.7e9),
        (pa.array(["1970-01-02"]), 86400.0),
        (pa.array(["12.5"]), 12.5),
    ],
)
def test_read_interactions_typed_times(values: pa.Array, seconds: float) -> None:
    table = pa.table({"user": ["a"], "item": ["b"], "time": values})
    times = read_interactions(table).interactions.timestamps
    assert times is not None
    assert times.tolist() == [seconds]


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (pd.DataFrame({"user": [1, None], "item": [1, 2]}), "floating-point"),
        (pd.DataFrame({"user": ["a", None], "item": [1, 2]}), "row 2: the user id is missing"),
        (pd.DataFrame({"user": ["a", 1], "item": [1, 2]}), "one type"),
        (pd.DataFrame([[1, 2, 3]], columns=["user", "item", "item"]), "item"),
        (pl.DataFrame({"user": ["a", ""], "item": [1, 2]}), "row 2: the user id is empty"),
        (pl.DataFrame({"user": [True], "item": [1]}), "type bool"),
        (pl.DataFrame({"a": [1], "b": [1]}), "the columns are: a, b"),
        (pl.DataFrame({"user": [1], "item": [1], "rating": ["x"]}), "row 1: rating 'x'"),
        (pl.DataFrame({"user": [1], "item": [1], "rating": [[1]]}), "rating has the type"),
        (pa.table({"user": pa.array([], pa.int64()), "item": pa.array([], pa.int64())}), "no rows"),
    ],
)
def test_read_interactions_refuses_bad_frames(frame: Any, words: str) -> None:
    with pytest.raises(InputError) as caught:
        read_interactions(frame)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_read_interactions_keeps_big_integers(tmp_path: Path) -> None:
    users = [2**64 - 1, 2**63, 0]
    table = pa.table({"user": pa.array(users, pa.uint64()), "item": [-1, -(2**63), 7]})
    pq.write_table(table, tmp_path / "e.parquet")
    for source in (table, tmp_path / "e.parquet"):
        data = read_interactions(source).interactions
        assert events(data) == list(zip(users, [-1, -(2**63), 7], strict=True))
        assert (data.user_ids.kind, data.item_ids.kind) == ("uint64", "int64")


def test_read_interactions_parquet_reads_needed_columns(tmp_path: Path) -> None:
    table = pa.table({"text": ["t"] * 3, **FRAME, "timestamp": TIMES, "list": [[1], [2], []]})
    pq.write_table(table, tmp_path / "e.pq", row_group_size=2)
    reading = read_interactions(tmp_path / "e.pq")
    assert events(reading.interactions) == list(zip(*FRAME.values(), SECONDS, strict=True))
    assert reading.format == "parquet"
    other = read_interactions(tmp_path / "e.pq", user="text", item=1, rating="none")
    assert other.interactions.ratings is None
    assert list(other.interactions.item_ids) == [5, 7]


def test_read_interactions_sparse_matrices() -> None:
    dense = np.array([[0, 2, 0], [0, 0, 0], [1, 0, 3]])
    for make in (sparse.csr_matrix, sparse.csr_array, sparse.coo_matrix, sparse.csc_array):
        data = read_interactions(make(dense)).interactions
        assert events(data) == [(0, 1, 2.0), (2, 0, 1.0), (2, 2, 3.0)]
        assert (data.n_users, data.n_items) == (3, 3)  # the empty row keeps its place
    assert read_interactions(sparse.csr_matrix(dense > 0)).interactions.ratings is None
    stored_zero = sparse.csr_matrix(([0.0, 5.0], ([0, 1], [0, 1])), shape=(2, 2))
    reading = read_interactions(stored_zero)
    assert events(reading.interactions) == [(1, 1, 5.0)]
    assert any("1 stored zeros" in note for note in reading.notes)
    for bad, words in (
        (sparse.csr_matrix((2, 2)), "no rows"),
        (sparse.csr_matrix([[0.0, np.nan]]), r"\[0, 1\] is nan"),
        (sparse.csr_matrix([[1j]]), "real numbers"),
    ):
        with pytest.raises(InputError, match=words):
            read_interactions(bad)


def test_read_interactions_returns_interactions_unchanged() -> None:
    data = Interactions.of([1, 2], ["a", "b"])
    assert read_interactions(data).interactions is data
    with pytest.raises(InputError, match="leave it out"):
        read_interactions(data, user="x")
    with pytest.raises(InputError, match="for files and databases"):
        read_interactions(pd.DataFrame(FRAME), header=True)


def make_files(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)
    return folder


@pytest.mark.parametrize(
    "names",
    [
        ("train.csv", "valid.csv", "test.csv"),
        ("training.csv", "val.csv", "testing.csv"),
        ("news.train.inter", "news.validation.inter", "news.test.inter"),
        ("My-Train_2.tsv", "dev.csv", "TEST.txt"),
    ],
)
def test_read_split_finds_parts_by_name(names: tuple[str, ...], tmp_path: Path) -> None:
    texts = ["user\titem\na\tx\nb\ty\n", "user\titem\nb\tx\n", "user\titem\nc\tz\na\tx\na\tx\n"]
    for name, text in zip(names, texts, strict=True):
        (tmp_path / name).write_text(text)
    (tmp_path / "README.md").write_text("train and test")
    for split in (read_split(tmp_path), load(tmp_path)):
        assert isinstance(split, Split)
        assert split.valid is not None
        assert split.test is not None
        assert events(split.train) == [("a", "x"), ("b", "y")]
        assert events(split.valid) == [("b", "x")]
        assert events(split.test) == [("c", "z"), ("a", "x"), ("a", "x")]
        assert list(split.user_ids) == ["a", "b", "c"]
        for name in names:  # each file is spoken of, those read alike in one line
            assert any(name in note for note in split.notes)
        assert len(set(split.notes)) == len(split.notes)


def test_load_folder_of_json_lines(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text(
        '{"user": "a", "item": "x"}\n{"user": "b", "item": "y"}\n'
    )
    (tmp_path / "test.json").write_text('{"user": "b", "item": "x"}\n')
    (tmp_path / "settings.json").write_text('{"seed": 1}\n')  # neither a part nor data
    split = load(tmp_path)
    assert isinstance(split, Split)
    assert events(split.train) == [("a", "x"), ("b", "y")]
    assert split.test is not None
    assert events(split.test) == [("b", "x")]
    (tmp_path / "train.jsonl").rename(tmp_path / "events.ndjson")
    (tmp_path / "test.json").unlink()
    assert len(load(tmp_path).interactions) == 2


def test_read_split_parts_given_one_by_one(tmp_path: Path) -> None:
    (tmp_path / "one.csv").write_text("a,x\nb,y\n")
    test = pl.DataFrame({"user": ["c"], "item": ["y"]})
    split = read_split(train=tmp_path / "one.csv", test=test)
    assert split.valid is None
    assert split.test is not None
    assert events(split.test) == [("c", "y")]
    for arguments, words in (
        ({}, "needs a train part"),
        ({"path": tmp_path, "train": test}, "not both"),
        ({"path": tmp_path}, "no train file"),
        ({"path": tmp_path / "nothing"}, "nothing: cannot be read"),
    ):
        with pytest.raises(InputError, match=words):
            read_split(**arguments)


def test_load_refuses_two_train_files(tmp_path: Path) -> None:
    make_files(tmp_path, train__csv="a,b\n", train__tsv="a\tb\n", test__csv="a,b\n")
    with pytest.raises(InputError, match=r"train part: train\.csv, train\.tsv"):
        load(tmp_path)


def test_read_split_adjacency_lists_follow_the_train_file(tmp_path: Path) -> None:
    make_files(tmp_path, train__txt="1 2 3\n4 5\n", test__txt="1 6 7\n4 6 7\n")
    split = read_split(tmp_path)
    assert split.test is not None
    assert events(split.test) == [("1", "6"), ("1", "7"), ("4", "6"), ("4", "7")]


def test_load_folder_with_one_file_of_events(tmp_path: Path) -> None:
    for folder, files in {
        "alone": {"what__csv": "user,item\na,x\n", "README__txt": "read me"},
        "movielens": {"ratings__csv": "user,item\na,x\n", "movies__csv": "item,title\nx,X\n"},
        "recbole": {"m__inter": "user_id:token\titem_id:token\na\tx\n", "m__csv": "x\n"},
    }.items():
        (tmp_path / folder).mkdir()
        reading = load(make_files(tmp_path / folder, **files))
        assert isinstance(reading, Reading)
        assert events(reading.interactions) == [("a", "x")]
    reading = load(tmp_path / "alone" / "what.csv")
    assert isinstance(reading, Reading)
    (tmp_path / "none").mkdir()
    with pytest.raises(InputError, match="no data file"):
        load(tmp_path / "none")
    make_files(tmp_path / "none", a__csv="1,2\n", b__tsv="1\t2\n")
    with pytest.raises(InputError, match=r"2 data files of several formats.* a\.csv, b\.tsv"):
        load(tmp_path / "none")


def test_connect_duckdb_uses_no_network_and_no_temporary_folder() -> None:
    with connect() as connection:
        names = ["temp_directory", "autoinstall_known_extensions", "autoload_known_extensions"]
        query = ", ".join(f"current_setting('{name}')::VARCHAR" for name in names)
        assert connection.sql(f"SELECT {query}").fetchall() == [("", "false", "false")]


def test_read_interactions_removes_uncompressed_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    packed = gzip.compress(FILES["e.csv"].encode())
    assert len(read(tmp_path, "e.csv.gz", packed).interactions) == 3
    with pytest.raises(InputError):
        read(tmp_path, "e.csv.gz", packed[:-9])
    assert list((tmp_path / "temporary").iterdir()) == []


# Users, items and events as the data's README counts them; and the sizes of the parts, if any.
REAL = {
    "adressa_clean": (87_416, 2_221, 201_128),
    "adressa_noise": (122_577, 3_370, 201_128),
    "ml-100k": (943, 1_682, 100_000),
    "ml-1m": (6_040, 3_706, 1_000_209),
    "ml-1m_clean": (5_949, 2_810, 571_531),
    "ml-1m_noisy": (5_949, 3_494, 618_297),
    "amazon-health": (1_974, 1_200, 48_189),
    "amazon-electronic": (13_455, 8_360, 234_521),
    "gowalla": (29_858, 40_988, 1_027_464),
}


@pytest.mark.parametrize("name", REAL)
def test_load_real_data_without_options(name: str) -> None:
    if not (DATA / name).is_dir():
        pytest.skip(f"{name} is not in LLPAUC_DATA or ../shared/data")
    data = load(DATA / name)
    parts = [data.interactions] if isinstance(data, Reading) else list(data.parts.values())
    counts = (parts[0].n_users, parts[0].n_items, sum(len(part) for part in parts))
    assert counts == REAL[name]
    assert isinstance(data, Reading) == (name in ("ml-100k", "ml-1m"))
    assert not any(SLOW_WAY in note for note in data.notes)
    if isinstance(data, Reading):
        assert data.interactions.ratings is not None
        assert data.interactions.timestamps is not None
        assert set(data.interactions.ratings.tolist()) == {1.0, 2.0, 3.0, 4.0, 5.0}


def test_load_adressa_keeps_known_duplicates_and_leaks() -> None:
    for name, leaks in (("adressa_clean", 89), ("adressa_noise", 79)):
        if not (DATA / name).is_dir():
            pytest.skip(f"{name} is not in LLPAUC_DATA or ../shared/data")
        split = load(DATA / name)
        assert isinstance(split, Split)
        assert split.test is not None
        assert split.test.duplicates == 604
        train = set(zip(split.train.users.tolist(), split.train.items.tolist(), strict=True))
        test = set(zip(split.test.users.tolist(), split.test.items.tolist(), strict=True))
        assert len(train & test) == leaks


def test_read_ids_reads_lines_and_id_columns(tmp_path: Path) -> None:
    (tmp_path / "ids.txt").write_text("007\r\n\n 7\n7\t\n")
    (tmp_path / "ids.csv").write_text("n,Item_ID\n1,007\n2, 7\n3,7 \n")
    pq.write_table(pa.table({"sku": [7, 8]}), tmp_path / "ids.parquet")
    assert read_ids(tmp_path / "ids.txt", "item") == ["007", "7", "7"]
    assert read_ids(tmp_path / "ids.csv", "item") == ["007", "7"]
    assert read_ids(tmp_path / "ids.parquet", "item") == [7, 8]
    with pytest.raises(InputError, match="no column of user ids"):
        read_ids(tmp_path / "ids.csv", "user")
