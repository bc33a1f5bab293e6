"""Prepared data against the readers and splits in memory, and what can go wrong on the way."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llpauc.data import prepared, splits
from llpauc.data.column_files import BucketShuffle, ColumnFiles
from llpauc.data.filters import Filters, rated_at_least
from llpauc.data.interactions import Interactions, Split
from llpauc.data.out_of_core import Pairs, memory_bytes, prepare
from llpauc.data.prepared import is_prepared, open_prepared
from llpauc.data.readers import load, read_interactions
from llpauc.data.splits import nth_smallest
from llpauc.errors import InputError
from llpauc.evaluation.full_ranking import evaluate
from llpauc.losses import LLPAUCLoss
from llpauc.recommend import Recommender
from llpauc.storage.manifest import write_manifest
from llpauc.training import CheckpointSettings, TrainingOptions, fit
from llpauc.training.batches import BlockOrder, epoch_order
from llpauc.training.engine import CpuEngine
from tests.datasets import new_network

ODD_IDS = ["007", "7", "😀", "18446744073709551623", 'say "hi"', "a,b", "ø", "Ω" * 40, "-1", "1e3"]


def write_events(path: Path, n=3000, users=80, items=60, seed=0, ratings=False) -> Path:
    """Random events, some of them repeated, with odd ids and times that tie."""
    rng = np.random.default_rng(seed)

    def named(rows):
        return [ODD_IDS[r] if r < len(ODD_IDS) else f"x{r}" for r in rows.tolist()]

    columns = {
        "user": named(rng.integers(0, users, n)),
        "item": named((items * rng.random(n) ** 2).astype(int)),
        "timestamp": rng.integers(-50, 400, n) / 2,
    }
    if ratings:
        columns["rating"] = rng.integers(1, 6, n)
    write_csv(path, columns)
    return path


def write_csv(path: Path, columns) -> None:
    def field(value):
        text = str(value)
        return '"' + text.replace('"', '""') + '"' if set(text) & set(',"\n') else text

    lines = [",".join(columns)]
    lines += [",".join(map(field, row)) for row in zip(*columns.values(), strict=True)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def triples(data: Interactions) -> list[tuple]:
    """The events with their ids, in one order."""
    times = np.zeros(len(data)) if data.timestamps is None else data.timestamps
    users, items = data.user_ids.ids(data.users), data.item_ids.ids(data.items)
    return sorted(zip(users.tolist(), items.tolist(), times.tolist(), strict=True))


def all_parts(split: Split) -> list[tuple]:
    return sorted(triple for part in split.parts.values() for triple in triples(part))


def same_matrix(one, other) -> bool:
    return (
        one.shape == other.shape
        and np.array_equal(one.indptr, other.indptr)
        and np.array_equal(one.indices, other.indices)
        and np.array_equal(one.data, other.data)
    )


BY_TIME = [
    ("auto", {}),
    ("auto", {"valid": 0.3, "test": 0.0}),
    ("temporal_per_user", {}),
    ("temporal", {"valid": 0.1, "test": 0.2}),
    ("temporal", {"valid": 0.0, "test": 0.3, "per_user": False}),
    ("temporal", {"valid": 0.2, "test": 0.1, "per_user": True}),
    ("leave_k_out", {"k": 2, "valid_k": 1}),
    ("leave_k_out", {"k": 1, "valid_k": 0}),
]


@pytest.mark.parametrize(("how", "options"), BY_TIME)
def test_prepare_splits_by_time_equal_those_in_memory(tmp_path, how, options):
    file = write_events(tmp_path / "events.csv")
    reading = read_interactions(file)
    expected = splits.split(reading.interactions, how, seed=3, **options)
    manifest = prepare([file], tmp_path / "p", how=how, seed=3, memory="200MB", **options)
    got = open_prepared(tmp_path / "p")
    assert got.user_ids == expected.user_ids
    assert got.item_ids == expected.item_ids
    assert got.parts.keys() == expected.parts.keys()
    for name, part in expected.parts.items():
        assert triples(got.parts[name]) == triples(part), name
    assert same_matrix(got.train.matrix, expected.train.matrix)
    assert manifest["rows"] == {"read": 3000, "rejected": 0}
    caught = set(manifest["notes"])
    assert set(expected.notes) <= caught


def test_prepare_auto_successive_users_are_split_per_user_as_in_memory(tmp_path):
    columns = {"user": [n // 9 for n in range(180)], "item": [n % 9 for n in range(180)]}
    write_csv(tmp_path / "e.csv", columns | {"timestamp": list(range(180))})
    expected = splits.split(read_interactions(tmp_path / "e.csv").interactions, seed=3)
    assert "the last events of each user (one cut would leave 100%" in expected.notes[0]
    manifest = prepare([tmp_path / "e.csv"], tmp_path / "p", memory="200MB")
    got = open_prepared(tmp_path / "p")
    assert {name: triples(part) for name, part in got.parts.items()} == {
        name: triples(part) for name, part in expected.parts.items()
    }
    assert set(expected.notes) <= set(manifest["notes"])


RANDOM = [
    ("random_per_user", {"valid": 0.1, "test": 0.2}),
    ("random", {"valid": 0.15, "test": 0.25}),
    ("leave_k_out", {"k": 1, "valid_k": 2, "by": "random"}),
    ("random_per_user", {"valid": 0.0, "test": 0.0}),
]


@pytest.mark.parametrize(("how", "options"), RANDOM)
def test_prepare_random_splits_hold_out_as_many_events_as_in_memory(tmp_path, how, options):
    file = write_events(tmp_path / "events.csv")
    expected = splits.split(read_interactions(file).interactions, how, seed=3, **options)
    prepare([file], tmp_path / "p", how=how, seed=3, memory="200MB", **options)
    got = open_prepared(tmp_path / "p")
    assert all_parts(got) == all_parts(expected)
    assert {n: len(p) for n, p in got.parts.items()} == {
        n: len(p) for n, p in expected.parts.items()
    }
    if how != "random":
        for name, part in expected.parts.items():
            counts = [np.bincount(p.users, minlength=80) for p in (part, got.parts[name])]
            assert np.array_equal(*counts), name


def test_prepare_random_splits_depend_on_seed_not_on_row_order(tmp_path):
    file = write_events(tmp_path / "a.csv")
    header, *lines = file.read_text(encoding="utf-8").splitlines()
    other = tmp_path / "b.csv"
    other.write_text("\n".join([header, *lines[::-1]]) + "\n", encoding="utf-8")
    got = []
    for source, seed in ((file, 1), (other, 1), (file, 2)):
        prepare([source], tmp_path / "p", how="random", seed=seed, memory="200MB")
        got.append(triples(open_prepared(tmp_path / "p").test))
    assert got[0] == got[1]
    assert got[0] != got[2]


@settings(max_examples=15, deadline=None)
@given(
    pairs=st.lists(
        st.tuples(
            st.sampled_from(ODD_IDS),
            st.text("ab\"',; \tø", min_size=1, max_size=3).filter(lambda text: text.strip()),
        ),
        min_size=1,
        max_size=60,
    ),
    timed=st.booleans(),
)
def test_prepare_any_small_table_equals_read_interactions(tmp_path_factory, pairs, timed):
    folder = tmp_path_factory.mktemp("any")
    columns = {"user": [u for u, _ in pairs], "item": [i for _, i in pairs]}
    if timed:
        columns["timestamp"] = [(7 * n) % 5 for n in range(len(pairs))]
    write_csv(folder / "events.csv", columns)
    caught = {"format": "csv", "delimiter": ",", "header": True}
    expected = splits.split(
        read_interactions(folder / "events.csv", **caught).interactions,
        "random_per_user", seed=0, valid=0.0, test=0.0,
    )  # fmt: skip
    prepare(
        [folder / "events.csv"], folder / "p", memory="200MB", valid=0.0, test=0.0, reading=caught
    )
    got = open_prepared(folder / "p")
    assert (got.user_ids, got.item_ids) == (expected.user_ids, expected.item_ids)
    assert triples(got.train) == triples(expected.train)
    assert same_matrix(got.train.matrix, expected.train.matrix)


def test_prepare_several_files_equals_their_concatenation(tmp_path):
    one = write_events(tmp_path / "one.csv", seed=1)
    two = write_events(tmp_path / "two.csv", seed=2, users=150)
    whole = tmp_path / "whole.csv"
    whole.write_text(one.read_text() + two.read_text().partition("\n")[2])
    packed = tmp_path / "one.csv.gz"
    packed.write_bytes(gzip.compress(one.read_bytes()))
    prepare([packed, two], tmp_path / "p", how="temporal", memory="200MB")
    prepare([whole], tmp_path / "q", how="temporal", memory="200MB")
    got, expected = open_prepared(tmp_path / "p"), open_prepared(tmp_path / "q")
    assert got.user_ids == expected.user_ids == read_interactions(whole).interactions.user_ids
    assert got.item_ids == expected.item_ids
    assert np.array_equal(got.train.users, expected.train.users)  # the same order even
    assert triples(got.test) == triples(expected.test)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "one.csv", "one.csv.gz", "p", "q", "two.csv", "whole.csv"
    ]  # fmt: skip


def test_prepare_parquet_keeps_integer_ids(tmp_path):
    rng = np.random.default_rng(0)
    table = pa.table(
        {
            "user": pa.array(rng.integers(0, 2**63, 40).tolist() * 5, pa.uint64()),
            "item": pa.array(rng.integers(-20, 20, 200)),
            "date": pa.array(rng.integers(0, 10**9, 200) * 10**6, pa.timestamp("us")),
        }
    )
    pq.write_table(table, tmp_path / "e.parquet", row_group_size=30)
    expected = splits.split(
        read_interactions(tmp_path / "e.parquet").interactions, "temporal", seed=0
    )
    prepare([tmp_path / "e.parquet"], tmp_path / "p", how="temporal", memory="200MB")
    got = open_prepared(tmp_path / "p")
    assert (got.user_ids, got.item_ids) == (expected.user_ids, expected.item_ids)
    assert (got.user_ids.kind, got.item_ids.kind) == ("uint64", "int64")
    assert triples(got.test) == triples(expected.test)
    # A text file of the same numbers turns them into text.
    (tmp_path / "t.csv").write_text("user,item,date\n5,3,2020-01-01\n")
    prepare([tmp_path / "e.parquet", tmp_path / "t.csv"], tmp_path / "q", memory="200MB")
    assert open_prepared(tmp_path / "q").user_ids.kind == "string"


def test_prepare_min_rating_keeps_the_events_of_rated_at_least(tmp_path):
    file = write_events(tmp_path / "events.csv", ratings=True)
    kept = rated_at_least(read_interactions(file).interactions, 4)
    expected = splits.split(kept, "temporal", seed=0)
    prepare([file], tmp_path / "p", how="temporal", filters=Filters(min_rating=4), memory="200MB")
    got = open_prepared(tmp_path / "p")
    assert set(got.user_ids) == set(expected.user_ids)
    assert triples(got.test) == triples(expected.test)
    assert all_parts(got) == all_parts(expected)


BAD = "user,item,timestamp\na,x,1\n,y,2\nb,x,nan\nb,z,3\nonly\nc,x,4\n"


def test_prepare_names_or_counts_bad_rows(tmp_path):
    (tmp_path / "bad.csv").write_text(BAD)
    with pytest.raises(InputError, match=r"bad\.csv: line 3: the user id is empty"):
        prepare([tmp_path / "bad.csv"], tmp_path / "p", memory="200MB")
    assert not (tmp_path / "p").exists()
    skip = {"bad_rows": "skip"}
    manifest = prepare(
        [tmp_path / "bad.csv"], tmp_path / "p", memory="200MB", valid=0.0, test=0.0, reading=skip
    )
    assert manifest["rows"] == {"read": 3, "rejected": 3}
    expected = read_interactions(tmp_path / "bad.csv", bad_rows="skip").interactions
    assert triples(open_prepared(tmp_path / "p").train) == triples(expected)
    assert sorted(os.listdir(tmp_path)) == ["bad.csv", "p"]


def test_prepare_names_bad_rows_of_parquet_by_number(tmp_path):
    users = pa.array(["a"] * 7 + [None] + ["b"] * 2)
    pq.write_table(pa.table({"user": users, "item": list(range(10))}), tmp_path / "e.parquet")
    with pytest.raises(InputError, match="row 8: the user id is missing"):
        prepare([tmp_path / "e.parquet"], tmp_path / "p", memory="200MB")
    caught = prepare(
        [tmp_path / "e.parquet"], tmp_path / "p", memory="200MB", valid=0.0, test=0.0,
        reading={"bad_rows": "skip"},
    )  # fmt: skip
    assert caught["rows"] == {"read": 9, "rejected": 1}


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("user,item\na,x\nb,y\n", {"how": "temporal"}, "needs timestamps"),
        ("user,item\na,x\nb,y\n", {"how": "leave_k_out"}, "needs timestamps"),
        ("user,item\na,x\nb,y\n", {"how": "nosuch"}, "unknown split"),
        ("user,item\na,x\nb,y\n", {"k": 1}, "has no option 'k'"),
        ("user,item\na,x\nb,y\n", {"valid": 0.6, "test": 0.5}, "below 1"),
        ("user,item\na,x\nb,y\n", {}, "valid part is empty"),
        ("user,item\na,x\nb,y\n", {"filters": Filters(min_rating=3.0)}, "there are no ratings"),
        ("user,item\na,x\nb,y\n", {"memory": "5"}, "number and a unit"),
        ("user,item\na,x\nb,y\n", {"memory": "1MB"}, "at least 200MB"),
        ("user,item\n", {}, "no rows"),
        ('{"user": 1, "item": 2}\n', {"reading": {"format": "jsonl"}}, "cannot be prepared"),
        ("a x y z\nb x\n", {"reading": {"format": "adjacency"}}, "cannot be prepared"),
        (
            "user,item\na,x\nb,y\n",
            {"how": "random", "held_out_users": 3},
            "holds out events of all users",
        ),
    ],
)
def test_prepare_errors_are_one_line_and_leave_nothing(tmp_path, text, options, message):
    (tmp_path / "e.csv").write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        prepare([tmp_path / "e.csv"], tmp_path / "p", **{"memory": "200MB", **options})
    assert "\n" not in str(caught.value)
    assert os.listdir(tmp_path) == ["e.csv"]


def test_prepare_files_must_have_the_same_columns(tmp_path):
    (tmp_path / "a.csv").write_text("user,item,timestamp\na,x,1\n")
    (tmp_path / "b.csv").write_text("user,item\na,x\n")
    with pytest.raises(InputError, match=r"a\.csv has a timestamp and .*b\.csv has none"):
        prepare([tmp_path / "a.csv", tmp_path / "b.csv"], tmp_path / "p", memory="200MB")
    prepare(
        [tmp_path / "a.csv", tmp_path / "b.csv"], tmp_path / "p", memory="200MB",
        valid=0.0, test=0.0, reading={"timestamp": "none"},
    )  # fmt: skip
    assert open_prepared(tmp_path / "p").train.timestamps is None


def test_prepare_replaces_only_prepared_data(tmp_path):
    file = write_events(tmp_path / "events.csv")
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "letter.txt").write_text("dear")
    with pytest.raises(InputError, match="is not empty and is not prepared data"):
        prepare([file], tmp_path / "p", memory="200MB")
    (tmp_path / "p" / "letter.txt").unlink()
    prepare([file], tmp_path / "p", memory="200MB")
    prepare([file], tmp_path / "p", memory="200MB", seed=9)
    assert json.loads((tmp_path / "p" / "manifest.json").read_text())["seed"] == 9
    (tmp_path / "p" / "letter.txt").write_text("dear")
    with pytest.raises(InputError, match=r"holds letter\.txt, which its manifest does not list"):
        prepare([file], tmp_path / "p", memory="200MB")
    (tmp_path / "p" / "letter.txt").unlink()
    assert sorted(os.listdir(tmp_path)) == ["events.csv", "p"]


@pytest.mark.parametrize(
    ("how", "same"), [("auto", "temporal_per_user"), ("random_per_user", "random_per_user")]
)
def test_prepare_held_out_users_limits_the_number_of_users(tmp_path, how, same):
    file = write_events(tmp_path / "events.csv")
    prepare([file], tmp_path / "p", how=how, held_out_users=7, memory="200MB")
    got = open_prepared(tmp_path / "p")
    assert len(np.unique(got.test.users)) == 7
    assert set(got.valid.users.tolist()) <= set(got.test.users.tolist())
    prepare([file], tmp_path / "q", how=same, memory="200MB")
    all_users = open_prepared(tmp_path / "q")
    some = np.isin(all_users.test.users, got.test.users)
    assert triples(all_users.test.take(some)) == triples(got.test)


# --- the folder -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("prepared")
    file = write_events(place / "events.csv", n=6000, users=200, items=100)
    prepare([file], place / "p", memory="200MB")
    return place / "p"


def copy_of(folder: Path, target: Path) -> Path:
    target.mkdir()
    for path in folder.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    return target


def test_open_prepared_maps_columns_without_copying(folder):
    train = open_prepared(folder).train
    address = {a.__array_interface__["data"][0] for a in (train.users, train.items)}
    maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    ranges = [
        tuple(int(end, 16) for end in line[0].split("-"))
        for line in maps
        if line[-1].endswith("train.arrow")
    ]
    assert ranges
    assert all(any(low <= place < high for low, high in ranges) for place in address)
    assert train.matrix.data.strides == (0,)
    assert train.shuffled
    assert not train.take(np.arange(5)).shuffled
    assert train.take(np.arange(5)).matrix.nnz == 5


def test_open_prepared_matrix_supports_scipy_operations(folder):
    split = open_prepared(folder)
    train = split.train
    plain = Interactions(train.users, train.items, train.user_ids, train.item_ids).matrix
    lean, other = train.matrix, split.valid.matrix
    assert same_matrix(lean.maximum(other), plain.maximum(other))
    assert same_matrix(lean[3:9], plain[3:9])
    assert same_matrix(lean.T.tocsr(), plain.T.tocsr())
    assert np.array_equal((lean.T @ lean).toarray(), (plain.T @ plain).toarray())
    assert np.array_equal(lean.sum(axis=0), plain.sum(axis=0))
    assert np.array_equal(lean.toarray(), plain.toarray())
    users, items = np.array([0, 5, 7]), np.array([1, 2, 3])
    assert np.array_equal(lean[users, items], plain[users, items])
    assert lean.multiply(other).nnz == plain.multiply(other).nnz
    copy = lean.copy()
    copy.data[:] = 2.0
    assert lean.data.max() == 1.0


NAMES = ["train", "valid", "test", "histories", "offsets", "users", "items"]


def test_is_prepared_does_not_wait_for_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "manifest.json")
    program = f"from llpauc.data.prepared import is_prepared; print(is_prepared({str(tmp_path)!r}))"
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, timeout=60)
    assert done.stdout == b"False\n"


@pytest.mark.parametrize("name", [*(f"{n}.arrow" for n in NAMES), "manifest.json"])
@pytest.mark.parametrize("damage", ["missing", "cut off", "longer", "changed"])
def test_open_prepared_names_a_damaged_file_in_one_line(folder, tmp_path, name, damage):
    broken = copy_of(folder, tmp_path / "p")
    path = broken / name
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        middle = len(content) // 2
        changed = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        new = {"cut off": content[:-9], "longer": content + b"x", "changed": changed}[damage]
        path.write_bytes(new)
    if name == "manifest.json" and damage == "longer":
        path.write_bytes(content + b"{")
    assert is_prepared(broken)
    with pytest.raises(InputError, match=name.replace(".", r"\.")) as caught:
        open_prepared(broken)
    assert "\n" not in str(caught.value)


TRUNCATE = """
import os, sys
from llpauc.data.prepared import open_prepared
train = open_prepared(sys.argv[1]).train
os.truncate(f"{sys.argv[1]}/train.arrow", 4096)
print(train.users.sum(), "read")
"""


def test_open_prepared_truncated_while_mapped_is_an_error_and_no_signal(tmp_path):
    rows = [f"u{n % 97},i{n // 97}" for n in range(30_000)]
    (tmp_path / "e.csv").write_text("\n".join(["user,item", *rows]))
    prepare([tmp_path / "e.csv"], tmp_path / "p", memory="200MB")
    words = [sys.executable, "-c", TRUNCATE, tmp_path / "p"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    file = tmp_path / "p" / "train.arrow"
    assert line.startswith(f"llpauc: error: {file}: became shorter, or the disk failed, while")


def test_open_prepared_replaced_while_it_is_read_is_read_again(folder, tmp_path, monkeypatch):
    place, other = copy_of(folder, tmp_path / "p"), tmp_path / "other"
    (tmp_path / "e.csv").write_text("user,item\na,x\na,y\nb,x\nb,z\n")
    prepare([tmp_path / "e.csv"], other, memory="200MB", valid=0.0, test=0.0)
    original, calls = prepared._mapped_split, []

    def replaced(path, manifest):
        calls.append(path)
        if len(calls) == 1:
            shutil.rmtree(place)
            other.rename(place)
            return None  # in place of the files of the other folder
        return original(path, manifest)

    monkeypatch.setattr(prepared, "_mapped_split", replaced)
    assert sorted(open_prepared(place).user_ids) == ["a", "b"]
    assert len(calls) == 2


def test_open_prepared_refuses_forged_indices_that_match_the_manifest(folder, tmp_path):
    broken = copy_of(folder, tmp_path / "p")
    users = open_prepared(folder).train.users.tobytes()
    content = (broken / "train.arrow").read_bytes()
    place = content.index(users)
    wrong = np.int32(10**6).tobytes()
    (broken / "train.arrow").write_bytes(content[:place] + wrong + content[place + 4 :])
    entries = json.loads((broken / "manifest.json").read_text())
    (broken / "manifest.json").unlink()
    known = {name: entries[name] for name in ("counts", "kinds", "notes", "rows", "seed")}
    write_manifest(broken, prepared.PREPARED_DATA, **known)
    with pytest.raises(InputError, match=r"train\.arrow: users must be indices in"):
        open_prepared(broken)


def test_load_opens_prepared_data_and_refuses_read_options(folder):
    assert isinstance(load(folder), Split)
    with pytest.raises(InputError, match="user='u' is for raw files"):
        load(folder, user="u")


# --- the order ------------------------------------------------------------------------------------


def test_bucket_shuffle_gives_every_order_equally_often(tmp_path):
    kind, n, rounds = np.dtype([("a", np.int32)]), 4, 4800
    seen: dict[tuple, int] = {}
    for seed in range(rounds):
        shuffle = BucketShuffle(tmp_path, kind, n, [seed], bucket=2)
        shuffle.add(a=np.arange(2))
        shuffle.add(a=np.arange(2, 4))
        columns = ColumnFiles(tmp_path, "out", a=np.int32)
        shuffle.write_to(columns)
        order = tuple(columns.mapped()["a"].tolist())
        seen[order] = seen.get(order, 0) + 1
    expected = rounds / 24
    chi = sum((count - expected) ** 2 / expected for count in seen.values())
    assert len(seen) == 24
    assert chi < 49.7  # 23 degrees of freedom, one in a thousand


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 200), block=st.integers(1, 50), first=st.integers(0, 210),
    cuts=st.lists(st.integers(0, 220), max_size=6), seed=st.integers(0, 5),
)  # fmt: skip
def test_block_order_is_a_permutation_however_it_is_cut(n, block, first, cuts, seed):
    whole = BlockOrder(n, (seed, 1), block=block)[:n]
    assert sorted(whole.tolist()) == list(range(n))
    rest = BlockOrder(n, (seed, 1), first, block)
    assert len(rest) == max(n - first, 0)
    places = [0, *sorted(cuts), 300]
    pieces = [rest[a:b] for a, b in itertools.pairwise(places)]
    assert np.concatenate(pieces).tolist() == whole[first:].tolist()


def test_block_order_shuffles_blocks_and_their_contents_every_epoch():
    n, block = 10_000, 100
    orders = [BlockOrder(n, (0, epoch), block=block)[:n] for epoch in (1, 2)]
    blocks = [order[::block] // block for order in orders]
    assert (blocks[0] != blocks[1]).mean() > 0.9
    inside = [np.empty(n, int), np.empty(n, int)]
    for order, place in zip(orders, inside, strict=True):
        place[order] = np.arange(n) % block
    assert abs(np.corrcoef(*inside)[0, 1]) < 0.05
    for order in orders:
        assert len(np.unique(order[:block] // block)) == 1


def test_epoch_order_of_data_in_memory_is_a_seeded_permutation():
    data = Interactions.of(list("abcabc"), list("xyzyzx"))
    old = np.random.default_rng([5, 2]).permutation(6)
    assert epoch_order(data, 5, 2).tolist() == old.tolist()
    assert epoch_order(data, 5, 2, 4).tolist() == old[4:].tolist()
    chances = np.array([0.5, 0.1, 0.1, 0.1, 0.1, 0.1])
    drawn = np.random.default_rng([5, 2]).choice(6, 6, p=chances)
    assert epoch_order(data, 5, 2, 1, chances).tolist() == drawn[1:].tolist()


def test_nth_smallest_equals_sorting():
    rng = np.random.default_rng(0)
    values = rng.integers(0, 2**64, 5000, dtype=np.uint64)
    values[:2500] = rng.choice(values[2500:2520], 2500)
    chunks = np.array_split(values, 7)
    for place in (0, 1, 17, 2499, 4999):
        assert nth_smallest(lambda: iter(chunks), place) == np.sort(values)[place]


def test_pairs_chunks_contain_complete_users_and_cover_all():
    sizes = np.array([3, 1, 9, 2, 2, 0, 5])
    starts = np.concatenate(([0], np.cumsum(sizes)))
    items = np.arange(22, dtype=np.int32)
    pairs = Pairs(starts, items, None)
    chunks = list(pairs.chunks(size=5))
    assert np.concatenate([c.items for c in chunks]).tolist() == items.tolist()
    assert np.concatenate([c.sizes for c in chunks]).tolist() == sizes.tolist()
    assert max(len(c.items) for c in chunks) == 9  # one user alone has more
    users = np.concatenate([c.user_of for c in chunks])
    assert users.tolist() == np.repeat(np.arange(7), sizes).tolist()


# --- training -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def taste(tmp_path_factory) -> tuple[Path, Split]:
    """Prepared data with something to learn, and the same split in memory."""
    place = tmp_path_factory.mktemp("taste")
    rng = np.random.default_rng(0)
    users = rng.integers(0, 300, 9000)
    items = (users % 4) * 50 + rng.integers(0, 50, 9000)
    write_csv(place / "e.csv", {"user": users, "item": items, "timestamp": rng.random(9000)})
    prepare([place / "e.csv"], place / "p", how="leave_k_out", memory="200MB")
    memory = splits.split(read_interactions(place / "e.csv").interactions, "leave_k_out", seed=0)
    return place / "p", memory


OPTIONS = TrainingOptions(epochs=12, batch_size=256, negatives=20, lr=0.01)


def trained(split: Split, options=OPTIONS, **more):
    model = new_network("mf", split.train, 0, dimensions=16)
    history = fit(model, LLPAUCLoss(0.7, 0.1), split, options, **more)
    return model, history


def test_fit_on_prepared_data_learns_as_well_as_in_memory(taste):
    folder, memory = taste
    values = []
    for split in (open_prepared(folder), memory):
        model, _ = trained(split)
        values.append(evaluate(model.scorer(), split, metrics=["recall@20"]).mean("recall@20"))
    assert values[1] > 0.4  # 20 of 175 unseen items would be 0.11
    assert abs(values[0] - values[1]) < 0.05


def test_fit_on_prepared_data_resumes_bit_for_bit_within_an_epoch(taste, tmp_path, monkeypatch):
    folder, _ = taste
    whole, _ = trained(open_prepared(folder))
    step, steps = CpuEngine.step, 0

    def stopping(engine, batch):
        nonlocal steps
        steps += 1
        if steps == 60:
            os.kill(os.getpid(), signal.SIGINT)
        return step(engine, batch)

    kept = tmp_path / "kept"
    with monkeypatch.context() as patch:
        patch.setattr(CpuEngine, "step", stopping)
        _, history = trained(open_prepared(folder), checkpoint=CheckpointSettings(kept))
    assert history.stopped == "interrupted"
    assert history.epochs[-1].examples < len(open_prepared(folder).train)
    resumed, history = trained(
        open_prepared(folder), checkpoint=CheckpointSettings(kept, if_exists="resume")
    )
    assert len(history.epochs) == OPTIONS.epochs
    for one, other in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert np.array_equal(one.detach().numpy(), other.detach().numpy())


def test_recommender_fit_accepts_a_prepared_folder(taste):
    folder, _ = taste
    recommender = Recommender(recipe="none", epochs=2, dimensions=8).fit(folder)
    items, _ = recommender.recommend(["7", "11"], k=3)
    assert items.shape == (2, 3)


# --- as a command ---------------------------------------------------------------------------------


def llpauc(*words: object, **more) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "llpauc", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, **more)


@pytest.mark.slow
def test_main_data_prepare_verify_and_train(tmp_path):
    file = write_events(tmp_path / "events.csv")
    out = tmp_path / "p"
    done = llpauc("data", "prepare", file, "--out", out, "--memory", "200MB", "--json")
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)["counts"]
    assert counts["train"] == len(open_prepared(out).train)
    assert llpauc("data", "verify", out).returncode == 0
    done = llpauc(
        "train", "--recipe=none", out, "--out", tmp_path / "run", "--epochs", "1", "--json"
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["test"]["mf"]["all"]["users"] > 0
    done = llpauc("data", "prepare", file, "--out", out, "--k-core", "5")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1


def big_file(path: Path, n: int) -> Path:
    rng = np.random.default_rng(0)
    with path.open("w") as file:
        file.write("user,item,timestamp\n")
        for _ in range(0, n, 100_000):
            rows = zip(
                rng.integers(0, n // 10, 100_000).tolist(),
                rng.integers(0, n // 100, 100_000).tolist(),
                rng.integers(0, 10**6, 100_000).tolist(),
                strict=True,
            )
            file.writelines(f"customer-{u},item-number-{i},{t}\n" for u, i, t in rows)
    return path


@pytest.mark.slow
def test_prepare_above_the_memory_limit_uses_the_disk(tmp_path):
    file = big_file(tmp_path / "big.csv", 2_000_000)
    expected = splits.split(read_interactions(file).interactions, "temporal", seed=0)
    prepare([file], tmp_path / "p", how="temporal", memory="200MB")
    got = open_prepared(tmp_path / "p")
    assert got.user_ids == expected.user_ids
    assert got.item_ids == expected.item_ids
    assert same_matrix(got.train.matrix, expected.train.matrix)
    assert len(got.test) == len(expected.test)
    assert np.array_equal(np.sort(got.test.timestamps), np.sort(expected.test.timestamps))


@pytest.mark.slow
@pytest.mark.parametrize("when", ["stage", "pairs.item.raw"])
def test_main_data_prepare_ctrl_c_leaves_nothing_behind(tmp_path, when):
    file = big_file(tmp_path / "big.csv", 1_000_000)
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler);"
        "from llpauc.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    words = ["data", "prepare", str(file), "--out", str(tmp_path / "p"), "--memory", "200MB"]
    child = subprocess.Popen([sys.executable, "-c", code, *words], stderr=subprocess.PIPE)
    until = time.monotonic() + 120
    while not list(tmp_path.glob(f".p.*/{when}")) and time.monotonic() < until:
        assert child.poll() is None
        time.sleep(0.01)
    child.send_signal(signal.SIGINT)
    _, caught = child.communicate(timeout=60)
    assert child.returncode == 130, caught
    assert caught.decode().splitlines()[-1] == "llpauc: interrupted"
    assert os.listdir(tmp_path) == ["big.csv"]


def test_memory_bytes_needs_a_number_and_a_unit():
    assert memory_bytes("250mb") == 250_000_000
    for wrong in ("", "GB", "4", "-4GB", "4 G B", "4GiB"):
        with pytest.raises(InputError, match="number and a unit"):
            memory_bytes(wrong)
