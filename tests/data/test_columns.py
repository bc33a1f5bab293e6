"""Detection of columns: headers and their outcome, files without a header, ambiguous names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from llpauc.data.readers import read_ids, read_interactions
from llpauc.errors import InputError

# Header -> the columns of user, item, rating and timestamp ("-" for none), or words of the error.
# The values follow from the names: @date, @epoch, @stars, @email, @text; other columns hold ids.
HEADERS: dict[str, str] = {
    # well-known names
    "user,item": "user item - -",
    "user_id,item_id,rating@stars,timestamp@epoch": "user_id item_id rating timestamp",
    "userId,movieId,rating@stars,timestamp@epoch": "userId movieId rating timestamp",
    "UserID,ItemID": "UserID ItemID - -",
    "USER_ID,ITEM_ID": "USER_ID ITEM_ID - -",
    "uid,iid,ts@epoch": "uid iid - ts",
    "item_id,user_id": "user_id item_id - -",
    "reviewerID,asin,overall@stars,unixReviewTime@epoch": "reviewerID asin overall unixReviewTime",
    "parent_asin,asin,user_id": "user_id parent_asin - -",
    "business_id,user_id,stars@stars,date@date": "user_id business_id stars date",
    "username,isbn": "username isbn - -",
    # names that begin with a word
    "user_procid,item_procid": "user_procid item_procid - -",
    "userHash,productCode": "userHash productCode - -",
    "customer_no,product_no": "customer_no product_no - -",
    "customer_number,sku_number": "customer_number sku_number - -",
    "member_key,article_key": "member_key article_key - -",
    "visitor_uuid,product_uuid": "visitor_uuid product_uuid - -",
    "account_guid,video_guid": "account_guid video_guid - -",
    "session_token,track_token": "session_token track_token - -",
    "session_id,item_id": "session_id item_id - -",
    "uid_hash,asin_code": "uid_hash asin_code - -",
    "client_nr,film_nr": "client_nr film_nr - -",
    "users,items": "users items - -",
    "useridx,itemidx": "useridx itemidx - -",
    # names that end with a word
    "id_user,id_item": "id_user id_item - -",
    "anonymous_user,viewed_product": "anonymous_user viewed_product - -",
    "my_uid,my_iid": "my_uid my_iid - -",
    "shop_customer_id,shop_sku": "shop_customer_id shop_sku - -",
    "fk_member,fk_movie": "fk_member fk_movie - -",
    "product_user_id,product_id": "product_user_id product_id - -",
    "registered_visitor,read_article": "registered_visitor read_article - -",
    # e-mail addresses
    "email,product_id": "email product_id - -",
    "customer_email@email,sku": "customer_email sku - -",
    "e_mail@email,track": "e_mail track - -",
    "contact@email,sku": "contact sku - -",
    # a well-known name counts more, descriptions are no ids
    "user_id,session_id,item_id": "user_id item_id - -",
    "user_id,user_agent@text,item_id,item_category@text": "user_id item_id - -",
    "customer_no,product_no,product_price@stars,product_name@text": "customer_no product_no - -",
    "buyer,movie_title@text": "buyer movie_title - -",
    "visitor_no,item_no,user_rating@stars": "visitor_no item_no user_rating -",
    # times
    "user_id,item_id,occurred_at@date": "user_id item_id - occurred_at",
    "user_id,item_id,created_at@epoch": "user_id item_id - created_at",
    "user_id,item_id,createdAt@date": "user_id item_id - createdAt",
    "user_id,item_id,event_time@date": "user_id item_id - event_time",
    "user_id,item_id,purchase_date@date": "user_id item_id - purchase_date",
    "user_id,item_id,clicked_on@date": "user_id item_id - clicked_on",
    "user_id,item_id,at@epoch": "user_id item_id - at",
    "user_id,item_id,dt@date": "user_id item_id - dt",
    "user_id,item_id,when@date": "user_id item_id - when",
    "user_id,item_id,dt@stars": "user_id item_id - -",
    "user_id,item_id,event_ts@epoch": "user_id item_id - event_ts",
    "user_id,item_id,last_seen_timestamp@epoch": "user_id item_id - last_seen_timestamp",
    "user_id,item_id,date@date,time@text": "user_id item_id - date",
    "user_id,item_id,watch_time@stars": "user_id item_id - -",
    "user_id,item_id,birth_date@date": "user_id item_id - -",
    "user_id,item_id,item_created_at@date": "user_id item_id - -",
    "user_id,item_id,time_zone@text": "user_id item_id - -",
    # errors
    "who,what,n@stars": "error: which column is the user; who, what; first rows; --user NAME",
    "customer_no,thing,n@stars": "error: which column is the item",
    "user_id,product_no,product_code": "error: --item product_no or --item product_code; id-0",
    "buyer_no,customer_no,item": "error: --user buyer_no or --user customer_no",
    "user_id,item_id,paid_at@date,ordered_at@date": "error: --timestamp paid_at or --timestamp",
    "user_id,item_id,item_id": "error: 2 columns are called 'item_id'",
}
VALUES = {
    "date": ["2024-01-31", "2024-02-01 12:00:00", "2024-03-01T00:00:00Z"],
    "epoch": ["1700000000", "1700000001", "1700000002"],
    "stars": ["3", "4.5", "5"],
    "email": ["ann@example.org", "bob@example.org", "cy@example.org"],
    "text": ["x y", "z", "w"],
}


def table_of(header: str) -> tuple[list[str], list[list[str]]]:
    """The names of the columns, and three rows."""
    names = [column.partition("@")[0] for column in header.split(",")]
    columns = [
        VALUES[kind] if (kind := column.partition("@")[2]) else [f"id-{row}{n}" for row in range(3)]
        for n, column in enumerate(header.split(","))
    ]
    return names, [list(row) for row in zip(*columns, strict=True)]


def choice(reading: Any, names: list[str]) -> str:
    """The chosen columns as in `HEADERS`, from the note."""
    note = next(note for note in reading.notes if "user = column" in note)
    roles = ("user", "item", "rating", "timestamp")
    found = (next((n for n in names if f"{role} = column '{n}'" in note), "-") for role in roles)
    return " ".join(found)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("header", HEADERS)
def test_detect_columns_of_a_header_has_the_listed_outcome(
    header: str, kind: str, tmp_path: Path
) -> None:
    names, rows = table_of(header)
    path = tmp_path / f"events.{kind}"
    if kind == "csv":
        path.write_text("\n".join(",".join(row) for row in [names, *rows]) + "\n")
    else:
        arrays = [pa.array(column) for column in zip(*rows, strict=True)]
        pq.write_table(pa.Table.from_arrays(arrays, names), path)
    expected = HEADERS[header]
    if expected.startswith("error: "):
        with pytest.raises(InputError) as caught:
            read_interactions(path)
        message = str(caught.value)
        assert all(words in message for words in expected[7:].split("; ")), message
        assert "\n" not in message
        assert len(message) < 500
        return
    reading = read_interactions(path)
    assert choice(reading, names) == expected
    assert len(reading.interactions) == 3  # the header is not an event


@pytest.mark.parametrize(
    ("rows", "users", "ratings", "times"),
    [
        (["a,x", "b,y"], ["a", "b"], None, None),
        (["1,2", "3,4"], ["1", "3"], None, None),
        (["a,x,3", "b,y,4"], ["a", "b"], [3, 4], None),
        (["a,x,1700000000", "b,y,1700000060"], ["a", "b"], None, [1700000000, 1700000060]),
        (["a,x,5,1700000000", "b,y,3,1700000060"], ["a", "b"], [5, 3], [1700000000, 1700000060]),
        (["a,x,1700000000,5", "b,y,1700000060,3"], ["a", "b"], [5, 3], [1700000000, 1700000060]),
        (["a,x,1970-01-02,5", "b,y,1970-01-03,3"], ["a", "b"], [5, 3], [86400, 172800]),
        (["1970-01-02,a,x", "1970-01-03,b,y"], ["a", "b"], None, [86400, 172800]),
        (["x,a@b.org", "y,c@d.org"], ["a@b.org", "c@d.org"], None, None),
        (["user_1,item_7", "user_2,item_8"], ["user_1", "user_2"], None, None),
        (["userann,itembook", "userbob,itempen"], ["userann", "userbob"], None, None),
    ],
)
def test_detect_columns_without_a_header_uses_positions_and_values(
    tmp_path: Path, rows: list[str], users: list[str], ratings: Any, times: Any
) -> None:
    path = tmp_path / "events.csv"
    path.write_text("\n".join(rows) + "\n")
    events = read_interactions(path).interactions
    assert list(events.user_ids) == users
    for found, expected in ((events.ratings, ratings), (events.timestamps, times)):
        assert (None if found is None else found.tolist()) == expected


def test_read_interactions_parquet_with_two_columns_of_one_name(tmp_path: Path) -> None:
    arrays = [pa.array(values) for values in (["a", "b"], ["x", "y"], ["v", "w"])]
    pq.write_table(pa.Table.from_arrays(arrays, ["user", "item", "item"]), tmp_path / "e.parquet")
    for item, expected in ((1, ["x", "y"]), (2, ["v", "w"])):
        events = read_interactions(tmp_path / "e.parquet", user=0, item=item).interactions
        assert list(events.item_ids) == expected
    with pytest.raises(InputError, match="2 columns are called 'item'"):
        read_interactions(tmp_path / "e.parquet")


def test_read_ids_detects_columns_like_the_readers(tmp_path: Path) -> None:
    (tmp_path / "ids.csv").write_text("customer_no,age\n7,30\n8,40\n")
    assert read_ids(tmp_path / "ids.csv", "user") == ["7", "8"]


def test_detect_columns_large_ids_are_not_times(tmp_path: Path) -> None:
    ids = np.arange(1_700_000_000, 1_700_000_005)
    (tmp_path / "e.csv").write_text("".join(f"{n},{n + 7}\n" for n in ids))
    events = read_interactions(tmp_path / "e.csv").interactions
    assert events.timestamps is None
    assert len(events) == 5
