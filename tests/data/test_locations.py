"""Sources that are not one plain file: parts, patterns, compression, pipes and databases."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from llpauc.cli.commands import main
from llpauc.data.locations import SourceName, hide_credentials, without_credentials
from llpauc.data.out_of_core import prepare
from llpauc.data.prepared import open_prepared
from llpauc.data.readers import load, read_interactions
from llpauc.errors import InputError

HEADER = "user_id,item_id,ts\n"
ROWS = [("007", "x", 10.0), ("b", "y", 20.0), ("007", "y", 30.0), ("c", "x", 40.0)]


def events(reading: Any) -> list[tuple[Any, ...]]:
    data = reading.interactions
    users, items = data.user_ids.ids(data.users), data.item_ids.ids(data.items)
    return list(zip(users, items, data.timestamps.tolist(), strict=True))


def csv(rows: list[tuple[Any, ...]]) -> str:
    return HEADER + "".join(f"{user},{item},{time:g}\n" for user, item, time in rows)


def zstd(content: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(content)
    return bytes(sink.getvalue())


COMPRESSIONS = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "zst": zstd}


@pytest.mark.parametrize("ending", COMPRESSIONS)
def test_read_interactions_compressed(ending: str, tmp_path: Path) -> None:
    packed = COMPRESSIONS[ending](csv(ROWS).encode())
    (tmp_path / f"e.csv.{ending}").write_bytes(packed)
    assert events(read_interactions(tmp_path / f"e.csv.{ending}")) == ROWS
    (tmp_path / f"cut.csv.{ending}").write_bytes(packed[:-5])
    with pytest.raises(InputError, match="cut off or damaged"):
        read_interactions(tmp_path / f"cut.csv.{ending}")


def test_read_interactions_of_several_files_a_pattern_and_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(csv(ROWS[:2]))
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(csv(ROWS[2:]).encode()))
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / "c.csv").touch()  # an empty part
    readings = [
        read_interactions([tmp_path / "a.csv", tmp_path / "b.csv.gz"]),
        read_interactions(f"{tmp_path}/*.csv*"),
        load(tmp_path),
    ]
    for reading in readings:
        assert events(reading) == ROWS
        assert reading.rows_read == 4
    assert "2 files from" in readings[0].notes[-1]
    with pytest.raises(InputError, match="matches no file"):
        read_interactions(f"{tmp_path}/*.tsv")


def test_read_interactions_parts_with_other_units_and_columns(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("user_id,item_id,ts\nu,x,1700000000\n")
    (tmp_path / "b.csv").write_text("ts,user_id,item_id\n1700000001000,u,y\n")  # milliseconds
    assert events(load(tmp_path)) == [("u", "x", 1.7e9), ("u", "y", 1700000001.0)]
    (tmp_path / "c.csv").write_text("user_id,item_id\nu,z\n")
    with pytest.raises(InputError, match=r"a\.csv has a timestamp and .*c\.csv has none"):
        load(tmp_path)
    (tmp_path / "c.csv").write_text("sku,price\nz,3.5\n")
    with pytest.raises(InputError, match=r"c\.csv: cannot detect which column is the user"):
        load(tmp_path)


@pytest.mark.parametrize("kind", ["parquet", "csv", "irregular"])
def test_load_hive_partitions(kind: str, tmp_path: Path) -> None:
    for day in (1, 2):
        folder = tmp_path / f"dt=2026-01-0{day}" / "country=it's"
        folder.mkdir(parents=True)
        if kind == "parquet":
            table = pa.table({"user_id": [1, 2], "sku": ["x", f"y{day}"]})
            pq.write_table(table, folder / "part-0.parquet")
        else:
            quote = '"' if kind == "irregular" else ""
            (folder / "part-0.csv").write_text(f"user_id,sku\n1,x\n2,y{day}{quote}\n")
    reading = load(tmp_path, timestamp="dt")
    users = [1, 2, 1, 2] if kind == "parquet" else ["1", "2", "1", "2"]
    assert [user for user, _, _ in events(reading)] == users
    days = [time / 86400 for _, _, time in events(reading)]
    assert days == [20454, 20454, 20455, 20455]
    by_country = load(tmp_path, timestamp="dt", item="country")
    assert {item for _, item, _ in events(by_country)} == {"it's"}


@pytest.mark.parametrize("compression", ["uncompressed", "zstd", "lz4"])
def test_read_interactions_arrow_keeps_integer_ids(compression: str, tmp_path: Path) -> None:
    table = pa.table({"user": [1, 2**62], "item": ["a", "b"], "time": [1.0, 2.0]})
    pa.feather.write_feather(table, tmp_path / "e.feather", compression=compression)
    reading = read_interactions(tmp_path / "e.feather")
    assert events(reading) == [(1, "a", 1.0), (2**62, "b", 2.0)]
    content = (tmp_path / "e.feather").read_bytes()
    (tmp_path / "cut.feather").write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError, match="Arrow data are cut off or damaged"):
        read_interactions(tmp_path / "cut.feather")


def test_read_interactions_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = gzip.compress(csv(ROWS).encode())
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(packed)))
    assert events(read_interactions("-")) == ROWS
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"")))
    with pytest.raises(InputError, match="standard input: the file is empty"):
        read_interactions("-")


def test_prepare_a_folder_of_parts(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "a.csv").write_text(csv(ROWS[:2]))
    (tmp_path / "parts" / "b.csv").write_text(csv(ROWS[2:]))
    manifest = prepare([tmp_path / "parts"], tmp_path / "set", valid=0.0, test=0.25)
    assert manifest["rows"] == {"read": 4, "rejected": 0}
    assert open_prepared(tmp_path / "set").n_items == 2


# --- databases ------------------------------------------------------------------------------------

QUERY = "select user_id, sku, day as ts from events order by day"
DAYS = [("2026-01-01", 1767225600.0), ("2026-01-02", 1767312000.0)]


@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_read_interactions_database_files(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"shop.{kind}"
    connection: Any = sqlite3.connect(path) if kind == "sqlite" else duckdb.connect(path)
    connection.execute("create table events (user_id bigint, sku varchar, day varchar)")
    for user, (day, _) in enumerate(DAYS):
        connection.execute("insert into events values (?, ?, ?)", [2**40 + user, "007", day])
    connection.commit()
    connection.close()
    reading = read_interactions(path, query=QUERY)
    expected = [(2**40 + user, "007", time) for user, (_, time) in enumerate(DAYS)]
    assert events(reading) == expected
    with pytest.raises(InputError, match=r"needs a query.*from events.*tables: events"):
        read_interactions(path)
    with pytest.raises(InputError, match=r"the query fails: .*nothing.*correct the query"):
        read_interactions(path, query="select * from nothing")
    with pytest.raises(InputError, match="the query fails"):
        read_interactions(path, query="delete from events")
    with pytest.raises(InputError, match="no rows"):
        read_interactions(path, query=f"select * from ({QUERY}) where sku = ''")
    assert events(read_interactions(path, query=QUERY)) == expected


def test_read_interactions_query_of_a_text_file(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text(csv(ROWS))
    with pytest.raises(InputError, match="query is for databases"):
        read_interactions(tmp_path / "e.csv", query="select 1")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://zoe:s3cret@127.0.0.1:1/shop",
        "postgres://zoe:s3/cr@et@127.0.0.1:1/shop",
        "postgresql://zoe:s3%20cret@127.0.0.1:1/shop?sslpassword=hidden",
        "postgresql://zoe:s3 cret@127.0.0.1:1/shop",
        "postgresql://127.0.0.1:1/shop?user=zoe&password=s3cret",
    ],
)
def test_read_interactions_unreachable_server_hides_credentials(url: str) -> None:
    pytest.importorskip("adbc_driver_postgresql")
    with pytest.raises(InputError, match="the database cannot be opened") as raised:
        read_interactions(url, query="select 1")
    message = str(raised.value) + str(SourceName([url])) + without_credentials(url)
    assert not re.search("zoe|s3|cret|hidden", message)
    assert "\n" not in str(raised.value)


def test_hide_credentials_of_every_form() -> None:
    url = "postgresql://zoe:p%40ss@host/db?password=other"
    assert hide_credentials(url, "for zoe: p@ss p%40ss other") == "for ***: *** *** ***"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a PostgreSQL server of this module, with a table of events."""
    pytest.importorskip("adbc_driver_postgresql")
    pgserver = pytest.importorskip("pgserver")
    for attempt in range(3):  # a start may take at most 10 s, which is short on a busy machine
        try:  # run by root, it changes to a user of its own
            running = pgserver.get_server(tmp_path_factory.mktemp("pg"), cleanup_mode="delete")
            break
        except (subprocess.SubprocessError, OSError, RuntimeError) as error:
            if attempt == 2:
                pytest.skip(f"PostgreSQL cannot run here: {error}")
    running.psql(
        """create table events (user_id bigint, sku text, kind text, price numeric, at timestamptz,
           session uuid);
           insert into events select 9007199254740993 + n % 30, lpad((n % 17)::text, 3, '0'),
           'view', n / 8.0, '2026-01-01T00:00:00Z'::timestamptz + n * interval '1 minute',
           ('00000000-0000-0000-0000-' || lpad(n::text, 12, '0'))::uuid
           from generate_series(0, 599) n;
           create role shopper login password 's3cret'"""
    )
    running.psql("grant select on events to shopper")
    yield running.get_uri().replace("postgres:@", "shopper:s3cret@")
    running.cleanup()


def test_read_interactions_postgresql_preserves_ids_and_types(server: str) -> None:
    query = "select user_id, sku, price as rating, at from events order by at"
    reading = read_interactions(server, query=query, timestamp="at")
    data = reading.interactions
    assert data.user_ids.kind == "int64"
    assert data.user_ids.ids(data.users)[:2].tolist() == [9007199254740993, 9007199254740994]
    assert data.item_ids.ids(data.items)[:2].tolist() == ["000", "001"]
    assert data.ratings is not None
    assert data.timestamps is not None
    assert data.ratings[:3].tolist() == [0.0, 0.125, 0.25]
    assert data.timestamps[:2].tolist() == [1767225600.0, 1767225660.0]
    by_uuid = read_interactions(server, query="select session, sku from events", user="session")
    assert by_uuid.interactions.user_ids.text[0].as_py().count("-") == 4


def test_read_interactions_postgresql_bad_queries(server: str) -> None:
    for query, problem in {
        "select nope from events": 'column "nope" does not exist',
        "delete from events": "read-only|permission denied",
        "": "needs a query|fails",
    }.items():
        with pytest.raises(InputError, match=problem) as raised:
            read_interactions(server, query=query)
        assert "s3cret" not in str(raised.value)
    with pytest.raises(InputError, match=r"needs a query.*tables: public\.events"):
        read_interactions(server)


def test_train_postgresql_saves_no_credentials(
    server: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    query = "select user_id, sku, at from events"
    run = tmp_path / "run"
    command = ["train", server, "--query", query, "--timestamp", "at", "--model", "popularity"]
    assert main([*command, "--out", str(run)]) == 0
    printed = capfd.readouterr()
    contents = b"".join(path.read_bytes() for path in run.iterdir())
    assert b"s3cret" not in contents
    assert "s3cret" not in printed.out + printed.err
    assert query.encode() in contents
    prepared = tmp_path / "prepared"
    assert main(["data", "prepare", server, "--query", query, "--out", str(prepared)]) == 0
    assert open_prepared(prepared).n_users == 30
    assert b"s3cret" not in (prepared / "manifest.json").read_bytes()
