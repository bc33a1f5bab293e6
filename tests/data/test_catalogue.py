"""The catalogue: reading, conditions that are safe to take from requests, groups."""

from __future__ import annotations

import gzip
from pathlib import Path

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from llpauc.data.catalogue import MAX_CONDITION, Catalogue, read_catalogue
from llpauc.data.ids import IdMap
from llpauc.errors import InputError

TEXT = """sku,title,category,in_stock,price,added
007,Red shoe,shoes,true,10.5,2024-01-02
8,Bag,bags,false,20,2024-02-02
9,,,true,,2025-01-01
"""


@pytest.fixture
def catalogue(tmp_path: Path) -> Catalogue:
    (tmp_path / "catalogue.csv").write_text(TEXT)
    return read_catalogue(tmp_path / "catalogue.csv")


def test_read_catalogue_of_every_source(catalogue: Catalogue, tmp_path: Path) -> None:
    assert list(catalogue.ids) == ["007", "8", "9"]
    assert catalogue.titles() == {"007": "Red shoe", "8": "Bag"}
    pq.write_table(catalogue.table, tmp_path / "c.parquet")
    (tmp_path / "c.tsv.gz").write_bytes(gzip.compress(TEXT.replace(",", "\t").encode()))
    frames = [
        pd.read_csv(tmp_path / "catalogue.csv", dtype={"sku": str}),
        pl.from_arrow(catalogue.table),
    ]
    for source in [tmp_path / "c.parquet", tmp_path / "c.tsv.gz", *frames]:
        assert read_catalogue(source).matching("in_stock").tolist() == [0, 2]
    saved = Catalogue.from_saved(catalogue.saved())
    assert saved.id_column == "sku"
    integers = read_catalogue(pa.table({"id": [5, 6], "price": [1.0, 2.0]}))
    assert list(integers.ids) == [5, 6]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("name,price\na,1\n", "no column of item ids; the columns are: name, price"),
        ("item,price\na,1\nb,2\na,3\n", "row 3: the item 'a' is there twice, first in row 1"),
        ("item,price\na,1\n,2\n", "position 1"),
        ("item,price\na,1,2\n", "is no table that can be read.*Expected 2 columns, got 3"),
        ("", "is no table|empty"),
        ("item,price,price\na,1,2\n", "two columns are called 'price'"),
    ],
)
def test_read_catalogue_refuses_bad_tables(text: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text(text)
    with pytest.raises(InputError, match=problem) as raised:
        read_catalogue(tmp_path / "c.csv")
    assert "\n" not in str(raised.value)


def test_check_known_explains_ids_that_do_not_meet(catalogue: Catalogue) -> None:
    assert "2 of 4 items of the log are in it" in catalogue.check_known(
        IdMap.of(["007", "8", "x", "y"]), "the log"
    )
    with pytest.raises(InputError, match="leading zeros: '7'"):
        read_catalogue(pa.table({"item": ["007", "008"]})).check_known(IdMap.of([7, 8]), "the log")
    with pytest.raises(InputError, match="'a' against '007'"):
        catalogue.check_known(IdMap.of(["a", "b"]), "the log")


@pytest.mark.parametrize(
    ("condition", "rows"),
    [
        ("in_stock", [0, 2]),
        ("in_stock = true and category in ('shoes', 'bags')", [0]),
        ("title like '%shoe%' or IN_STOCK = false", [0, 1]),
        ("added > date '2024-06-01'", [2]),
        ("price * 2 between 20 and 30", [0]),
        ("category is null", [2]),
        ("coalesce(price, 0) < 1 and not starts_with(lower(sku), 'x')", [2]),
        ("case when price > 15 then true else false end", [1]),
        ("in_stock -- a comment", [0, 2]),
    ],
)
def test_matching_conditions(condition: str, rows: list[int], catalogue: Catalogue) -> None:
    assert catalogue.matching(condition).tolist() == rows


@pytest.mark.parametrize(
    ("condition", "problem"),
    [
        ("prise < 10", "unknown column 'prise'; choose one of: sku, title.*did you mean price"),
        ("items.price < 10", "unknown column 'items.price'"),
        ("rowid = 1", "unknown column 'rowid'"),
        ("price", "is DOUBLE, not true or false"),
        ("price = (select 1)", "contains a subquery"),
        ("exists (from read_text('/etc/passwd'))", "contains a subquery"),
        ("sku in (select content from read_text('/etc/passwd'))", "contains a subquery"),
        ("read_text('/etc/passwd') = 'x'", "calls read_text"),
        ("getenv('HOME') = 'x'", "calls getenv"),
        ("current_setting('memory_limit') = 'x'", "calls current_setting"),
        ("main.lower(title) = 'x'", "calls lower"),
        ("repeat('a', 1000000000) = title", "calls repeat"),
        ("sum(price) > 1", "calls sum"),
        ("row_number() over () < 2", "contains a window"),
        ("price > ?", "more than a condition"),
        ("true; drop table items", "cannot be parsed"),
        ("true) union select (true", "more than a condition"),
        ("true) as a, (true", "more than a condition"),
        ("true) -- ", "cannot be parsed"),
        ("true) as chosen from items, range(1000000000000) -- ", "cannot be parsed|more than"),
        ("true /*", "cannot be parsed"),
        ("", "calls row"),
        ("cast(title as integer) = 1", "cannot be computed"),
        ("category = 'hats'", "is true for no item"),
        ("true and " * MAX_CONDITION + "true", "is longer than"),
    ],
)
def test_matching_refuses_everything_else(
    condition: str, problem: str, catalogue: Catalogue
) -> None:
    try:
        with pytest.raises(InputError, match=problem) as raised:
            catalogue.matching(condition)
        assert "\n" not in str(raised.value)
    finally:
        assert catalogue.matching("in_stock").tolist() == [0, 2]


def test_matching_runs_without_access_to_files(catalogue: Catalogue) -> None:
    database = catalogue._database
    for query in ("FROM read_text('/etc/hostname')", "SET enable_external_access = true"):
        with pytest.raises(Exception, match=r"disabled|locked|Cannot"):
            database.execute(query)
