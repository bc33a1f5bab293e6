"""Raw files of the shapes the paper's data come in, JSON lines among them."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest

from llpauc.data.noise import clean_and_noise
from llpauc.data.readers import read_interactions
from llpauc.errors import InputError

REVIEWS = [
    {"review_id": "r1", "user_id": "ü-1", "business_id": "007", "stars": 5.0, "useful": 0,
     "text": "good\nvery", "date": "2018-07-07 22:09:11"},
    {"review_id": "r2", "user_id": "ü-1", "business_id": "7", "stars": 1.0, "useful": 2,
     "text": "{bad}", "date": "2018-07-08 00:00:00"},
    {"review_id": "r3", "user_id": "zoë", "business_id": "007", "stars": 4.0, "useful": 0,
     "text": "", "date": "1970-01-01 00:00:01"},
]  # fmt: skip


def write(path, objects):
    text = "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in objects)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("name", ["review.json", "review.jsonl", "reviews.txt"])
def test_read_interactions_detects_yelp_reviews(tmp_path, name):
    reading = read_interactions(write(tmp_path / name, REVIEWS))
    data = reading.interactions
    assert list(data.user_ids) == ["zoë", "ü-1"]  # in the order of UTF-8
    assert list(data.item_ids) == ["007", "7"]
    assert data.ratings.tolist() == [5.0, 1.0, 4.0]
    assert data.timestamps.tolist() == [1531001351.0, 1531008000.0, 1.0]
    assert (reading.rows_read, reading.rows_rejected, reading.format) == (3, 0, "jsonl")


def test_read_interactions_jsonl_gzipped_keeps_integer_ids(tmp_path):
    rows = [{"user": 2**53 + 1, "item": -1, "rating": 3}, {"user": 5, "item": 8, "rating": 4.5}]
    path = tmp_path / "r.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    data = read_interactions(path).interactions
    assert list(data.user_ids) == [5, 2**53 + 1]  # as text
    assert list(data.item_ids) == [-1, 8]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{broken", "line 2: is not a JSON object"),
        ("[1, 2]", "line 2: is not a JSON object"),
        ('{"user": "a"}', r"line 2: the item \('item'\) is missing"),
        ('{"user": "", "item": "x"}', r"line 2: the user \('user'\) is missing"),
        ('{"user": {"id": 1}, "item": "x"}', r"the user \('user'\) is a dict"),
        ('{"user": 1.5, "item": "x"}', r"the user \('user'\) is a float"),
        ('{"user": true, "item": "x"}', r"the user \('user'\) is a bool"),
    ],
)
def test_read_interactions_jsonl_names_or_counts_a_broken_line(tmp_path, line, message):
    good = '{"user": "a", "item": "x"}'
    path = tmp_path / "r.jsonl"
    path.write_text(f"{good}\n{line}\n\n{good}\n")
    with pytest.raises(InputError, match=message):
        read_interactions(path)
    reading = read_interactions(path, bad_rows="skip")
    assert (reading.rows_read, reading.rows_rejected) == (2, 1)


def test_read_interactions_jsonl_with_broken_lines_only_is_an_error(tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_text("{\n{\n")
    with pytest.raises(InputError):
        read_interactions(path, bad_rows="skip")


@pytest.mark.parametrize("shape", ["adressa", "yelp", "amazon", "movielens"])
def test_clean_and_noise_from_every_raw_layout(tmp_path, shape):
    rng = np.random.default_rng(0)
    pairs = sorted({(int(u), int(i)) for u, i in zip(rng.integers(0, 30, 900),
                    rng.integers(0, 40, 900), strict=True)})  # fmt: skip
    stars = rng.integers(1, 6, len(pairs))
    options: dict[str, str] = {}
    if shape == "adressa":  # dwell time in seconds
        path, threshold = tmp_path / "clicks.csv", 10
        lines = ["user,item,dwell_time"]
        lines += [f"u{u},n{i},{6 * s}" for (u, i), s in zip(pairs, stars, strict=True)]
        path.write_text("\n".join(lines) + "\n")
        options = {"rating": "dwell_time"}
    elif shape == "yelp":
        path, threshold = tmp_path / "review.json", 3
        write(path, [{"user_id": f"u{u}", "business_id": f"b{i}", "stars": float(s),
                      "date": "2020-01-01 10:00:00"}
                     for (u, i), s in zip(pairs, stars, strict=True)])  # fmt: skip
    elif shape == "amazon":  # ratings only, no header
        path, threshold = tmp_path / "ratings_Books.csv", 3
        path.write_text("".join(
            f"A{u:08d},{i:010d},{s}.0,{1_300_000_000 + u}\n"
            for (u, i), s in zip(pairs, stars, strict=True)))  # fmt: skip
    else:
        path, threshold = tmp_path / "ratings.dat", 3
        path.write_text("".join(f"{u}::{i}::{s}::{9 * u + i}\n"
                                for (u, i), s in zip(pairs, stars, strict=True)))  # fmt: skip
    data = read_interactions(path, **options).interactions
    pair = clean_and_noise(data, threshold=threshold, valid=0.1, test=0.2, seed=0)
    assert len(data) == len(pairs)
    kept = int((data.ratings >= threshold).sum())
    assert sum(len(part) for part in pair.clean.parts.values()) == kept
    for part in ("train", "valid"):
        assert len(pair.noise.parts[part]) == len(pair.clean.parts[part])
    assert pair.noisy_train.any()
    one, two = (
        sorted(zip(s.user_ids.ids(s.test.users), s.item_ids.ids(s.test.items), strict=True))
        for s in (pair.clean, pair.noise)
    )
    assert one == two
