"""Recommendation lists: file formats against brute force, filters, memory, interruptions."""

from __future__ import annotations

import csv
import dataclasses
import gzip
import json
import os
import resource
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import sparse

from llpauc.cli import main
from llpauc.data.ids import IdMap
from llpauc.data.interactions import Interactions
from llpauc.data.readers import read_interactions
from llpauc.errors import InputError
from llpauc.evaluation.ranking import tile_bytes
from llpauc.models import MF
from llpauc.models.fold_in import HistoryMap
from llpauc.recommend import Recommender
from llpauc.recommend.fitted import Fitted
from llpauc.recommend.list_files import LIST_FORMATS
from llpauc.recommend.lists import (
    ListRequest,
    ListUsers,
    WriteSummary,
    hidden_items,
    users_per_block,
    write_recommendations,
)
from tests.datasets import score_table

SUFFIXES = [*LIST_FORMATS, ".csv.gz", ".jsonl.gz", ".trec.gz"]


def make_fitted(
    n_users: int, n_items: int, *, width: int = 8, seen: int = 6, seed: int = 0, levels: int = 0
) -> Fitted:
    """A model with vectors; `levels` gives small integers, so that scores tie and are exact."""
    rng = np.random.default_rng(seed)
    tables = [
        (rng.integers(0, levels, (n, width)) if levels else rng.standard_normal((n, width)))
        for n in (n_users, n_items)
    ]
    users, items = (table.astype(np.float32) for table in tables)
    rows = np.repeat(np.arange(n_users), seen)
    columns = rng.integers(0, n_items, len(rows))
    has = sparse.csr_matrix((np.ones(len(rows), np.float32), (rows, columns)), (n_users, n_items))
    has.data[:] = 1
    history_map = HistoryMap(items, np.zeros(width, np.float32), items)
    model = MF.from_vectors(users, items, history_map, items @ users.mean(axis=0))
    return Fitted(
        model,
        model.scorer(has),
        has,
        IdMap.of(np.arange(n_users) + 7),
        IdMap.of([f"i{n}" for n in range(n_items)]),
    )


def brute_force(fitted: Fitted, k: int, *, seen: bool = True, hidden=None) -> list[tuple]:
    """Sort all scores of all users: (user, item, rank, score), equal scores by item row."""
    rows = []
    users, items = list(fitted.user_ids), list(fitted.item_ids)
    for user, scores in enumerate(score_table(fitted.scorer, len(users))):
        left = np.ones(len(items), bool)
        left[[] if hidden is None else hidden] = False
        left[fitted.histories[user].indices if seen else []] = False
        order = np.argsort(-scores, kind="stable")
        order = order[left[order]][:k].tolist()
        rows += [(users[user], items[i], r, scores[i]) for r, i in enumerate(order, 1)]
    return rows


def read(path: Path) -> list[tuple]:
    """(user, item, rank, score) as text, by readers that share nothing with the writers."""
    name = path.name.removesuffix(".gz")
    if name.endswith(".parquet"):
        rows = [tuple(row.values()) for row in pq.read_table(path).to_pylist()]
        return [(str(u), i, r, np.float32(s)) for u, i, r, s in rows]
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8", newline="") as file:
        if name.endswith(".jsonl"):
            entries = [json.loads(line) for line in file]
            return [
                (str(e["user"]), i["item"], rank, np.float32(i["score"]))
                for e in entries
                for rank, i in enumerate(e["items"], 1)
            ]
        if name.endswith(".trec"):
            words = [line.split() for line in file]
            assert {(w[1], w[5], len(w)) for w in words} <= {("Q0", "llpauc", 6)}
            return [(w[0], w[2], int(w[3]), np.float32(w[4])) for w in words]
        delimiter = "\t" if name.endswith(".tsv") else ","
        head, *found = csv.reader(file, delimiter=delimiter)
        assert head == ["user", "item", "rank", "score"]
        return [(u, i, int(r), np.float32(s)) for u, i, r, s in found]


def as_text(rows: list[tuple]) -> list[tuple]:
    return [(str(u), i, r, s) for u, i, r, s in rows]


# --- file formats -------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_write_recommendations_every_format_equals_brute_force(suffix, tmp_path, monkeypatch):
    monkeypatch.setattr("llpauc.recommend.lists._MAX_LIST_BYTES", 40_000)
    fitted = make_fitted(150, 70)
    path = tmp_path / "new" / f"lists{suffix}"
    summary = write_recommendations(fitted, path, ListRequest(5))
    assert summary == WriteSummary(150, 0, 750, summary.block)
    assert 1 <= summary.block < 75  # several blocks, or nothing is shown
    assert read(path) == as_text(brute_force(fitted, 5))
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    before = path.read_bytes()
    write_recommendations(fitted, path, ListRequest(5))
    assert path.read_bytes() == before


@settings(max_examples=30, deadline=None)
@example(seed=1, n_users=3, n_items=1, k=1, levels=0, seen=False, fraction=1.0)
@given(
    seed=st.integers(0, 2**32 - 1), n_users=st.integers(1, 90), n_items=st.integers(1, 40),
    k=st.integers(1, 60), levels=st.sampled_from([0, 2, 5]), seen=st.booleans(),
    fraction=st.floats(0.1, 1),
)  # fmt: skip
def test_write_recommendations_any_shape_and_filter_equals_brute_force(
    tmp_path_factory, seed, n_users, n_items, k, levels, seen, fraction
):
    fitted = make_fitted(n_users, n_items, seed=seed, levels=levels)
    rng = np.random.default_rng(seed)
    allowed = np.flatnonzero(rng.random(n_items) < fraction)
    denied = np.flatnonzero(rng.random(n_items) > fraction)
    try:
        hidden = hidden_items(n_items, allowed, deny=denied)
    except InputError:
        assert not set(allowed) - set(denied)
        return
    assert set(range(n_items)) - set(hidden.tolist()) == set(allowed) - set(denied)
    path = tmp_path_factory.mktemp("lists") / "lists.parquet"
    summary = write_recommendations(fitted, path, ListRequest(k, seen, hidden))
    rows = brute_force(fitted, k, seen=seen, hidden=hidden)
    assert read(path) == as_text(rows)
    assert summary.rows == len(rows)
    assert summary.empty == n_users - len({row[0] for row in rows})


def test_write_recommendations_blocks_and_recommend_agree_bit_for_bit(tmp_path, monkeypatch):
    fitted = make_fitted(130, 300)
    write_recommendations(fitted, tmp_path / "all.parquet", ListRequest(9))
    monkeypatch.setattr("llpauc.recommend.lists._MAX_LIST_BYTES", 1)
    summary = write_recommendations(fitted, tmp_path / "one.parquet", ListRequest(9))
    assert summary.block == 1
    tables = [pq.read_table(tmp_path / name) for name in ("all.parquet", "one.parquet")]
    assert tables[0].equals(tables[1])
    recommender = Recommender(recipe="none")
    recommender.fitted = fitted
    ids, scores = recommender.recommend(list(fitted.user_ids), 9)
    assert tables[0]["item"].to_pylist() == ids.ravel().tolist()
    assert np.asarray(tables[0]["score"]).tobytes() == scores.tobytes()


HOSTILE = [
    "a,b",
    "tab\there",
    'say "hi"',
    "007",
    "7",
    "line\nline",
    " sp ",
    "ø\u2003",
    "NaN",
    '"',
    "\r",
]


@pytest.mark.parametrize("suffix", [".tsv", ".csv", ".parquet", ".jsonl", ".csv.gz"])
def test_write_recommendations_hostile_ids_round_trip(suffix, tmp_path):
    data = Interactions.of(HOSTILE, HOSTILE)
    fitted = Recommender("popularity").fit(data).fitted
    path = tmp_path / f"lists{suffix}"
    write_recommendations(fitted, path, ListRequest(20))
    rows = read(path)
    assert {(u, i) for u, i, *_ in rows} == {(u, i) for u in HOSTILE for i in HOSTILE if u != i}
    if suffix != ".jsonl":  # whose lines are lists, not events
        again = read_interactions(path, user="user", item="item", rating="none").interactions
        assert set(again.user_ids) == set(HOSTILE) == set(again.item_ids)


@pytest.mark.parametrize("odd", ["a b", "tab\t", "x\u2003y", "x\x85y", "\x1c"])
def test_write_recommendations_trec_refuses_an_id_with_a_space_before_ranking(odd, tmp_path):
    for users, items in ((["u", odd], ["i", "j"]), (["u", "v"], ["i", odd])):
        fitted = Recommender("popularity").fit(Interactions.of(users, items)).fitted
        with pytest.raises(InputError, match="cannot store an id with a space") as error:
            write_recommendations(fitted, tmp_path / "r.trec", ListRequest(), ranker=pytest.fail)
        assert repr(odd) in str(error.value)
    hidden = hidden_items(
        2, deny=fitted.item_ids.indices([odd])
    )  # what is not recommended does no harm
    write_recommendations(fitted, tmp_path / "r.trec", ListRequest(hidden=hidden))
    assert [row[:2] for row in read(tmp_path / "r.trec")] == [("v", "i")]


@pytest.mark.parametrize("kind", ["int64", "uint64", "string"])
def test_write_recommendations_keeps_the_type_of_ids(kind, tmp_path):
    top = 2**64 - 1 if kind == "uint64" else 99
    ids = [1, 2, top] if kind != "string" else ["1", "2", "99"]
    fitted = Recommender("popularity").fit(Interactions.of(ids, ids)).fitted
    wide = {"int64": pa.int64(), "uint64": pa.uint64(), "string": pa.large_string()}[kind]
    asked = {"all": None, "some": ["2", "1"], "stranger": ["2", "5"], "name": ["2", "bob"]}
    for name, given_ids in asked.items():
        users = None if given_ids is None else ListUsers.given(fitted, given_ids)
        write_recommendations(fitted, tmp_path / "r.parquet", ListRequest(1), users)
        table = pq.read_table(tmp_path / "r.parquet")
        assert table.schema.field("item").type == wide
        named = name == "name" and kind != "string"
        assert table.schema.field("user").type == (pa.large_string() if named else wide)
        expected = given_ids or sorted(map(str, ids))
        assert [str(u) for u in table["user"].to_pylist()] == expected


# --- edge cases ---------------------------------------------------------------------------------


def test_write_recommendations_all_seen_large_k_and_no_users(tmp_path):
    data = Interactions.of(["all", "all", "one"], ["x", "y", "x"])
    fitted = Recommender("popularity").fit(data).fitted
    summary = write_recommendations(fitted, tmp_path / "r.tsv", ListRequest(10**9))
    assert (summary.users, summary.empty, summary.rows) == (2, 1, 1)
    assert read(tmp_path / "r.tsv") == [("one", "y", 1, 1.0)]
    some_unknown = ListUsers.given(fitted, ["ghost", "one", "spectre"])
    assert some_unknown.n_unknown == 2
    counted: list[int] = []
    write_recommendations(
        fitted, tmp_path / "r.tsv", ListRequest(1), some_unknown, progress=counted.append
    )
    assert [row[:2] for row in read(tmp_path / "r.tsv")] == [
        ("ghost", "x"), ("one", "y"), ("spectre", "x")
    ]  # fmt: skip
    assert sum(counted) == 3
    no_users = ListUsers.given(fitted, [])
    for suffix in SUFFIXES:
        summary = write_recommendations(fitted, tmp_path / f"r{suffix}", ListRequest(1), no_users)
        assert (summary.users, summary.rows, read(tmp_path / f"r{suffix}")) == (0, 0, [])


def test_write_recommendations_one_user_and_one_item(tmp_path):
    fitted = Recommender("popularity").fit(Interactions.of(["a"], ["x"])).fitted
    assert write_recommendations(fitted, tmp_path / "r.csv", ListRequest()).empty == 1
    write_recommendations(fitted, tmp_path / "r.csv", ListRequest(exclude_seen=False))
    assert read(tmp_path / "r.csv") == [("a", "x", 1, 1.0)]


# --- memory -------------------------------------------------------------------------------------


def test_users_per_block_shrinks_with_memory_k_and_long_ids():
    fitted = make_fitted(40, 1000)
    users = ListUsers.all_of(fitted)

    def block(**options) -> int:
        return users_per_block(fitted, users, ListRequest(**options))[0]

    assert block(memory_mb=10) < block(memory_mb=64)
    assert block(k=1000) < block(k=10)
    long_names = ListUsers(users.indices, IdMap.of([str(n) * 5000 for n in range(40)]))
    assert users_per_block(fitted, long_names, ListRequest())[0] < block() / 10


def test_write_recommendations_too_little_memory_names_the_bytes(tmp_path):
    fitted = make_fitted(3, 50_000)
    with pytest.raises(InputError) as error:
        write_recommendations(fitted, tmp_path / "r.tsv", ListRequest(memory_mb=1))
    assert f"{tile_bytes(50_000):,}" in str(error.value)
    assert "1,048,576 are allowed; raise memory_mb (--memory-mb)" in str(error.value)
    assert list(tmp_path.iterdir()) == []


MEASURE = """
import sys
from llpauc.recommend import Recommender
from llpauc.recommend.lists import ListRequest, write_recommendations

def kilobytes(name):
    with open("/proc/self/status") as lines:
        return next(int(l.split()[1]) for l in lines if l.startswith(name))

fitted = Recommender.load(sys.argv[1]).fitted
for path in sys.argv[3:]:
    write_recommendations(fitted, path, ListRequest(2, memory_mb=16))  # libraries start up
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak is from now on
    before = kilobytes("VmRSS")
    summary = write_recommendations(fitted, path, ListRequest(150, memory_mb=float(sys.argv[2])))
    print(summary.block, kilobytes("VmHWM") - before)
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    recommender = Recommender("mf", recipe="none")
    recommender.fitted, recommender.fitted_params = (
        make_fitted(3000, 5000),
        recommender.get_params(),
    )
    return recommender.save(tmp_path_factory.mktemp("runs") / "a run")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc")
def test_write_recommendations_peak_memory_stays_within_the_limit(saved, tmp_path):
    """450,000 rows, about 75 MB in total, within 24 MB."""
    paths = [tmp_path / f"r{suffix}" for suffix in LIST_FORMATS]
    words = [sys.executable, "-c", MEASURE, saved, "24", *paths]
    process = subprocess.run(words, capture_output=True, text=True, check=True)
    measured = [tuple(map(int, line.split())) for line in process.stdout.splitlines()]
    assert len(measured) == len(LIST_FORMATS)
    for block, extra in measured:
        assert block < 600  # of 3,000: several blocks
        assert extra < 24 * 1024


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS and /proc")
def test_recommend_under_a_memory_limit_writes_or_names_the_bytes(saved, tmp_path):
    """A result or a one-line error, and no partial file."""
    code = (
        "import sys; from llpauc.recommend.recommender import Recommender;"
        "import llpauc.recommend.lists;"
        "import resource; from llpauc.evaluation.ranking import available_address_space;"
        "now = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize();"
        "limit = now + (int(sys.argv[1]) << 20);"
        "resource.setrlimit(resource.RLIMIT_AS, (limit, limit));"
        "from llpauc.cli import main; sys.exit(main(sys.argv[2:]))"
    )
    ends = {}
    for megabytes in (40, 1500):
        out = tmp_path / f"{megabytes}.parquet"
        words = [sys.executable, "-c", code, str(megabytes), "recommend", saved, "--out", out]
        process = subprocess.run(words, capture_output=True, text=True, timeout=100)
        ends[megabytes] = process.returncode
        assert out.exists() == (process.returncode == 0)
        if process.returncode:
            assert len(process.stderr.splitlines()) == 1
            assert "bytes, the limit on this process's memory leaves" in process.stderr
    assert ends == {40: 2, 1500: 0}
    assert [p.name for p in tmp_path.iterdir()] == ["1500.parquet"]


# --- interruptions --------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("trouble", [KeyboardInterrupt, MemoryError])
def test_write_recommendations_interrupted_keeps_the_old_file(
    suffix, trouble, tmp_path, monkeypatch
):
    monkeypatch.setattr("llpauc.recommend.lists._MAX_LIST_BYTES", 40_000)
    fitted = make_fitted(150, 70)
    path = tmp_path / f"r{suffix}"
    path.write_text("old")
    calls = []

    def stumble(rows):
        calls.append(len(rows))
        if len(calls) == 2:
            raise trouble
        return fitted.rank_users(rows, 5, True)

    with pytest.raises(trouble):
        write_recommendations(fitted, path, ListRequest(5), ranker=stumble)
    assert len(calls) == 2
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [(path.name, "old")]


@pytest.mark.slow
@pytest.mark.parametrize(("suffix", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_recommend_killed_leaves_no_partial_file(saved, suffix, code, tmp_path):
    slow = (
        "import sys, time; from llpauc.recommend import lists; from llpauc.cli import main;"
        "lists._MAX_LIST_BYTES = 1 << 20; old = lists._table;"
        "lists._table = lambda *a: (time.sleep(0.2), old(*a))[1];"
        "sys.exit(main(sys.argv[1:]))"
    )
    words = [sys.executable, "-c", slow, "recommend", saved, "--out", tmp_path / "lists.csv"]
    # Background processes of a shell ignore SIGINT, and so would their children.
    heed = partial(signal.signal, signal.SIGINT, signal.default_int_handler)
    command = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, preexec_fn=heed)
    for _ in range(600):
        if any(tmp_path.iterdir()):
            break
        time.sleep(0.1)
    os.kill(command.pid, suffix)
    _, stderr = command.communicate(timeout=60)
    assert command.returncode == code
    assert "Traceback" not in stderr
    assert not (tmp_path / "lists.csv").exists()
    if suffix == signal.SIGINT:
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["r.parquet", "r.csv", "r.jsonl", "r.trec.gz"])
def test_recommend_on_a_full_disk_is_a_one_line_error(saved, name, tmp_path, capsys):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        code, _, stderr = command(capsys, "recommend", saved, "--out", tmp_path / name)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert code == 1
    assert len(stderr.splitlines()) == 1
    assert f"{tmp_path / name}: cannot be written: File too large" in stderr
    assert list(tmp_path.iterdir()) == []


# --- the command --------------------------------------------------------------------------------


def command(capsys, *words: object) -> tuple[int, str, str]:
    code = main([str(word) for word in words])
    output = capsys.readouterr()
    return code, output.out, output.err


def test_recommend_allow_and_deny_from_option_text_and_table(saved, tmp_path, capsys):
    fitted = Recommender.load(saved).fitted
    (tmp_path / "some.txt").write_text("i5\r\ni6\n\nghost\ni7\ni8\n")
    (tmp_path / "some.csv").write_text("n,item_id\n1,i5\n2,i6\n3,i7\n4,ghost\n5,i5\n6,i8\n")
    pq.write_table(pa.table({"sku": ["i5", "i6", "ghost", "i7", "i8"]}), tmp_path / "some.parquet")
    hidden = hidden_items(5000, [5, 6, 8])
    expected = as_text(brute_force(fitted, 3, hidden=hidden))
    out = tmp_path / "lists.tsv"
    for allowed in (
        "i5,i6,i7,ghost,i8",
        *(f"@{tmp_path}/some.{s}" for s in ("txt", "csv", "parquet")),
    ):
        words = ("recommend", saved, "-k", 3, "--out", out, "--allow", allowed, "--deny", "i7,x,y")
        code, _, stderr = command(capsys, *words)
        assert code == 0
        assert "unknown items in --allow: 1 of 5" in stderr
        assert "unknown items in --deny: 2 of 3" in stderr
        assert read(out) == expected


def test_recommend_counts_users_without_a_list(saved, tmp_path, capsys):
    fitted = Recommender.load(saved).fitted
    item = int(fitted.histories[0].indices[0])
    have_it = int((fitted.histories[:, item] > 0).sum())
    words = ("recommend", saved, "--allow", f"i{item}", "--out", tmp_path / "r.jsonl", "--json")
    code, out, stderr = command(capsys, *words)
    assert code == 0
    assert f"users with no item left to recommend: {have_it}" in stderr
    counts = json.loads(out)
    assert counts["recommendations"] == 3000 - have_it == len(read(tmp_path / "r.jsonl"))
    assert counts["users_without"] == have_it


def test_recommend_trec_tag_is_the_name_of_the_run(saved, tmp_path, capsys):
    assert command(capsys, "recommend", saved, "-k", 1, "--out", tmp_path / "r.trec")[0] == 0
    tags = {line.split()[5] for line in (tmp_path / "r.trec").read_text().splitlines()}
    assert tags == {"a-run"}


BAD = [
    (["--allow", "ghost"], ["no item of the run", "--allow @FILE"]),
    (["--allow", "i1", "--deny", "i1"], ["no item is left"]),
    (["--deny", "@no.csv"], ["no.csv: cannot be read: No such file"]),
    (["--deny", "@no.parquet"], ["no.parquet: cannot be read: No such file"]),
    (["--deny", "@odd.csv"], ["odd.csv: has no column of item ids"]),
    (["--users", "@odd.csv"], ["odd.csv: has no column of user ids"]),
    (["--deny", "@odd.parquet"], ["odd.parquet: is no table that can be read"]),
    (["--approximate", "--history", "i1"], ["--approximate is for many users"]),
    (["--out", "r.gz"], ["r.gz: unknown format", ".tsv, .csv, .parquet, .jsonl, .trec"]),
    (["--out", "r.parquet.gz"], ["unknown format"]),
    (["--memory-mb", "1", "--out", "r.tsv"], ["--memory-mb"]),
]


@pytest.mark.parametrize(("words", "parts"), BAD, ids=[" ".join(words) for words, _ in BAD])
def test_recommend_bad_input_is_a_one_line_error(
    saved, tmp_path, capsys, monkeypatch, words, parts
):
    monkeypatch.chdir(tmp_path)
    for name in ("odd.csv", "odd.parquet"):
        Path(name).write_text("a,b\n1,2\n")
    code, out, stderr = command(capsys, "recommend", saved, *words)
    assert (code, out) == (2, "")
    assert len(stderr.splitlines()) == 1
    for part in parts:
        assert part in stderr
    assert len(list(tmp_path.iterdir())) == 2


# --- approximate --------------------------------------------------------------------------------


def clustered(n_users: int = 300, n_items: int = 6000, **options) -> Fitted:
    """Users and items in clusters."""
    rng = np.random.default_rng(1)
    fitted = make_fitted(n_users, n_items, width=16, **options)
    centres = 3 * rng.standard_normal((40, 16)).astype(np.float32)
    users = centres[rng.integers(0, 40, n_users)] + rng.standard_normal((n_users, 16))
    items = centres[rng.integers(0, 40, n_items)] + rng.standard_normal((n_items, 16))
    model = MF.from_vectors(
        users.astype(np.float32), items.astype(np.float32),
        fitted.model.vectors.history_map, fitted.fallback,
    )  # fmt: skip
    return dataclasses.replace(fitted, model=model, scorer=model.scorer(fitted.histories))


@pytest.mark.parametrize("seen", [0, 30, 700])
def test_approximate_ranker_respects_filters_and_measures_recall(seen):
    pytest.importorskip("faiss")
    from llpauc.recommend.approximate import ApproximateRanker

    fitted = clustered(seen=seen)
    hidden = hidden_items(6000, deny=np.arange(0, 6000, 3))
    request = ListRequest(10, hidden=hidden)
    ranker = ApproximateRanker(fitted, request, recall=0.9)
    assert ranker.searched_cells < ranker.cells  # else nothing is tested
    rows = np.append(np.arange(300), -1)
    items, scores = ranker(rows)
    exact, _ = fitted.rank_users(rows, 10, True, hidden)
    table = score_table(fitted.scorer, 300)
    found = []
    for user in range(300):
        chosen = items[user]
        assert (chosen >= 0).all()
        assert len(set(chosen.tolist())) == 10
        assert not set(chosen.tolist()) & set(fitted.histories[user].indices.tolist())
        assert not (chosen % 3 == 0).any()
        np.testing.assert_allclose(scores[user], table[user, chosen], rtol=1e-5)
        assert (np.diff(scores[user]) <= 0).all()
        found.append(len(set(chosen.tolist()) & set(exact[user].tolist())) / 10)
    assert items[300].tolist() == exact[300].tolist()  # an unknown user: the fallback, exactly
    recall, users = ranker.measured_recall()
    assert users == 150
    assert recall == pytest.approx(np.mean(found), abs=0.05)
    assert recall > 0.85
    whole = ApproximateRanker(fitted, request, recall=1.0)
    if whole.searched_cells == whole.cells:
        np.testing.assert_array_equal(whole(rows)[0], exact)


def test_approximate_ranker_lists_are_exact_if_cells_hold_too_few_items():
    pytest.importorskip("faiss")
    from llpauc.recommend.approximate import ApproximateRanker

    fitted = clustered(n_items=400, seen=40)
    ranker = ApproximateRanker(fitted, ListRequest(390), recall=0.01)
    rows = np.arange(300)
    items, _ = ranker(rows)
    exact, _ = fitted.rank_users(rows, 390, True)
    np.testing.assert_array_equal(np.sort(items), np.sort(exact))


def test_recommend_approximate_reports_recall_and_refuses_models_without_vectors(
    saved, tmp_path, capsys
):
    pytest.importorskip("faiss")
    out = tmp_path / "r.parquet"
    code, stdout, stderr = command(
        capsys, "recommend", saved, "--out", out, "--approximate", "--json"
    )
    assert code == 0
    recall = json.loads(stdout)["recall"]
    assert recall > 0.85
    assert (
        f"approximate: {recall:.1%} of the exact lists found, for a sample of 200 users" in stderr
    )
    assert len(read(out)) == 3000 * 20
    Recommender("popularity").fit(Interactions.of(["a", "b"], ["x", "y"])).save(tmp_path / "p")
    code, _, stderr = command(capsys, "recommend", tmp_path / "p", "--approximate")
    assert code == 2
    assert "approximate lists need a model with vectors" in stderr


def test_recommend_approximate_without_faiss_names_the_remedy(saved, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    code, _, stderr = command(capsys, "recommend", saved, "--approximate")
    assert code == 2
    assert "pip install 'llpauc[faiss]'" in stderr
