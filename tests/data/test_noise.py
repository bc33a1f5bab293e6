"""The clean/noise pair: what it must keep, what the published pairs show, and its files."""

from __future__ import annotations

import csv
import gzip
import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llpauc.data import writers
from llpauc.data.interactions import Interactions, Split
from llpauc.data.noise import CleanNoisePair, clean_and_noise, write_pair
from llpauc.data.splits import split
from llpauc.data.writers import write_split
from llpauc.errors import InputError
from llpauc.storage.atomic import atomic_write

DATA = Path(os.environ.get("LLPAUC_DATA", Path(__file__).parents[3] / "shared" / "data"))

EVERY_WAY: list[tuple[str, dict[str, Any]]] = [
    ("random_per_user", {}),
    ("random", {"valid": 0.0, "test": 0.3}),
    ("temporal", {}),
    ("temporal", {"per_user": True, "valid": 0.2, "test": 0.1}),
    ("leave_k_out", {}),
    ("leave_k_out", {"by": "random"}),
]


def events_of(part: Interactions) -> list[tuple[Any, ...]]:
    columns = [
        part.user_ids.ids(part.users).tolist(),
        part.item_ids.ids(part.items).tolist(),
    ]
    columns += [column.tolist() for column in (part.ratings, part.timestamps) if column is not None]
    return list(zip(*columns, strict=True))


def pairs_of(part: Interactions | None) -> set[tuple[Any, Any]]:
    return set() if part is None else {(event[0], event[1]) for event in events_of(part)}


def raw(seed: int = 0, n: int = 3000, users: int = 80, items: int = 60) -> Interactions:
    """Ratings 1 to 5 with repeated pairs, some of them once clean and once noisy."""
    rng = np.random.default_rng(seed)
    return Interactions.of(
        [f"u{row}" for row in rng.integers(0, users, n)],
        [f"i{row}" for row in rng.integers(0, items, n)],
        ratings=rng.integers(1, 6, n),
        timestamps=rng.permutation(n),
    )


@pytest.mark.parametrize(("how", "options"), EVERY_WAY)
def test_clean_and_noise_invariants_of_every_pair(how: str, options: dict[str, Any]) -> None:
    data = raw()
    pair = clean_and_noise(data, threshold=3, split=how, seed=5, **options)
    clean, noise = pair.clean, pair.noise
    # clean is the plain split of the clean events
    assert data.ratings is not None
    plain = split(data.take(data.ratings >= 3), how, seed=5, **options)
    assert {name: events_of(part) for name, part in clean.parts.items()} == {
        name: events_of(part) for name, part in plain.parts.items()
    }
    # the same test, equal sizes
    assert list(noise.parts) == list(clean.parts)
    assert noise.test is not None
    assert events_of(noise.test) == events_of(plain.parts["test"])
    assert [len(part) for part in noise.parts.values()] == [
        len(part) for part in clean.parts.values()
    ]
    clean_pairs = set().union(*(pairs_of(part) for part in clean.parts.values()))
    raw_events = set(events_of(data))
    seen: Counter[tuple[Any, Any]] = Counter()
    for name, mask in (("train", pair.noisy_train), ("valid", pair.noisy_valid)):
        if name not in noise.parts:
            assert mask is None
            continue
        assert mask is not None
        part = noise.parts[name]
        assert part.ratings is not None
        # the mask agrees with the ratings, and some events are noisy
        np.testing.assert_array_equal(mask, part.ratings < 3)
        assert 0.1 < mask.mean() < 0.7
        assert set(events_of(part)) <= raw_events
        # clean events stay in their part; noisy ones are no pair that is clean anywhere
        assert pairs_of(part.take(~mask)) <= pairs_of(clean.parts[name])
        assert not pairs_of(part.take(mask)) & clean_pairs
        seen.update((event[0], event[1]) for event in events_of(part))
    # no pair twice, none of the test set
    assert max(seen.values()) == 1
    assert not set(seen) & pairs_of(noise.test)
    # id maps contain only the ids in use
    for made in (clean, noise):
        used = {user for part in made.parts.values() for user, _ in pairs_of(part)}
        assert set(made.user_ids) == used


def test_clean_and_noise_noisy_events_stay_in_their_period() -> None:
    pair = clean_and_noise(raw(), threshold=3, split="temporal", seed=1)
    spans = [part.timestamps for part in pair.noise.parts.values()]
    assert all(span is not None for span in spans)
    train, valid, test = (np.asarray(span) for span in spans)
    assert train.max() < valid.min()
    assert valid.max() < test.min()


def test_clean_and_noise_noisy_events_stay_in_the_period_of_their_user() -> None:
    pair = clean_and_noise(raw(), threshold=3, split="leave_k_out", k=2, valid_k=2, seed=1)
    first: dict[str, dict[str, float]] = {"valid": {}, "test": {}}
    for name, starts in first.items():
        for user, _, _, time in events_of(pair.clean.parts[name]):
            starts[user] = min(time, starts.get(user, np.inf))
    for user, _, _, time in events_of(pair.noise.train):
        assert time < first["valid"].get(user, np.inf)
    assert pair.noise.valid is not None
    for user, _, _, time in events_of(pair.noise.valid):
        assert first["valid"].get(user, -np.inf) <= time < first["test"].get(user, np.inf)


def test_clean_and_noise_keeps_clean_and_noisy_at_the_same_rate() -> None:
    """What MovieLens-1M's pair shows: the draw does not look at the kind of an event."""
    data = raw(n=20_000, users=800, items=400)
    pair = clean_and_noise(data, threshold=3, split="random", seed=2)
    clean_kept = (~pair.noisy_train).sum() / len(pair.clean.train)
    assert data.ratings is not None
    all_clean = pairs_of(data.take(data.ratings >= 3))
    only_noisy = pairs_of(data.take(data.ratings < 3)) - all_clean
    noisy_kept = pair.noisy_train.sum() / (0.7 * len(only_noisy))
    # about 8,200 clean and 5,300 noisy candidates: standard errors of 0.005 and 0.007
    assert clean_kept == pytest.approx(noisy_kept, abs=0.03)
    share = len(only_noisy) / (len(only_noisy) + len(all_clean))
    assert pair.noisy_train.mean() == pytest.approx(share, abs=0.02)
    # valid gets its portion of the noise, not that of test
    assert pair.noisy_valid is not None
    assert pair.noisy_valid.mean() == pytest.approx(share, abs=0.06)


def test_clean_and_noise_depends_on_seed_not_on_row_order() -> None:
    data = raw()
    order = np.random.default_rng(0).permutation(len(data))
    events = events_of(data)
    rows = [events[place] for place in order]
    users, items, ratings, times = (list(column) for column in zip(*rows, strict=True))
    shuffled = Interactions.of(users, items, ratings=ratings, timestamps=times)

    def made(source: Interactions, seed: int) -> dict[str, set[tuple[Any, ...]]]:
        pair = clean_and_noise(source, threshold=3, seed=seed)
        return {name: set(events_of(part)) for name, part in pair.noise.parts.items()}

    assert made(data, 1) == made(data, 1) == made(shuffled, 1)
    assert made(data, 1) != made(data, 2)


def test_clean_and_noise_core_keeps_noisy_events_of_its_users_only() -> None:
    data = raw(n=900)
    pair = clean_and_noise(data, threshold=3, core=5, seed=0)
    assert data.ratings is not None
    kept = Counter(user for part in pair.clean.parts.values() for user, _ in pairs_of(part))
    assert min(kept.values()) >= 5
    assert pair.clean.n_users < data.n_users
    assert set(pair.noise.user_ids) <= set(pair.clean.user_ids)
    assert any("5-core of the clean events" in note for note in pair.notes)
    with pytest.raises(InputError, match="50-core of the clean events is empty"):
        clean_and_noise(data, threshold=3, core=50, seed=0)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 9), st.integers(1, 5)),
        min_size=12,
        max_size=80,
    ),
    st.integers(0, 3),
)
def test_clean_and_noise_never_repeats_a_test_pair(
    rows: list[tuple[int, int, int]], seed: int
) -> None:
    data = Interactions.of(
        [row[0] for row in rows], [row[1] for row in rows], ratings=[row[2] for row in rows]
    )
    ratings = {row[2] for row in rows}
    n_clean = len({row[:2] for row in rows if row[2] >= 3})
    if min(ratings) >= 3 or max(ratings) < 3 or n_clean < 5:
        return
    pair = clean_and_noise(data, threshold=3, split="random", valid=0.2, test=0.2, seed=seed)
    noise = pair.noise
    assert not (pairs_of(noise.train) | pairs_of(noise.valid)) & pairs_of(noise.test)
    assert not pairs_of(noise.train) & pairs_of(noise.valid)
    assert len(noise.train) == len(pair.clean.train)


def test_clean_and_noise_equals_fractions_of_the_published_movielens_pair() -> None:
    """DiffRec's pair: 403,277 train events in clean, 429,993 in noise, 38.5 % of them noisy."""
    path = DATA / "ml-1m" / "ratings.dat.gz"
    if not path.exists():
        pytest.skip(f"needs {path.name} of MovieLens-1M below LLPAUC_DATA")
    with gzip.open(path, "rt", encoding="latin-1") as file:
        rows = np.array([line.split("::") for line in file], dtype=np.int64)
    data = Interactions.of(rows[:, 0], rows[:, 1], ratings=rows[:, 2], timestamps=rows[:, 3])
    pair = clean_and_noise(
        data, threshold=4, split="temporal", per_user=True, valid=0.2, test=0.1, core=10, seed=1
    )
    assert (pair.clean.n_users, pair.clean.n_items) == (5_949, 2_810)
    assert sum(len(part) for part in pair.clean.parts.values()) == 571_531
    assert len(pair.noise.train) == pytest.approx(403_277, rel=0.02)
    assert pair.noisy_train.mean() == pytest.approx(0.385, abs=0.02)
    assert pair.noise.n_users == 5_949
    assert pair.noise.n_items == pytest.approx(3_494, rel=0.02)


def test_clean_and_noise_docstring_matches_the_published_adressa_pair() -> None:
    parts = {}
    for kind in ("clean", "noise"):
        for name in ("train", "valid", "test"):
            path = DATA / f"adressa_{kind}" / f"adressa_{kind}.{name}.inter"
            if not path.exists():
                pytest.skip(f"needs {path.name} below LLPAUC_DATA")
            parts[kind, name] = [tuple(line) for line in pd.read_csv(path, sep="\t").to_numpy()]
    for name, size, noisy in (("train", 165_004, 0.605), ("valid", 17_492, 0.673)):
        clean, noise = set(parts["clean", name]), parts["noise", name]
        assert len(parts["clean", name]) == len(noise) == size
        assert np.mean([pair not in clean for pair in noise]) == pytest.approx(noisy, abs=0.0005)
    assert parts["clean", "test"] == parts["noise", "test"]


# Raw files of the four shapes, in their original layouts.


def adressa(path: Path, rng: np.random.Generator) -> Interactions:
    """user, item, seconds of reading"""
    lines = [
        f"cx:{rng.integers(40):x},{rng.integers(30):032x},{int(rng.exponential(30))}"
        for _ in range(900)
    ]
    path.write_text("\n".join(["user,item,activeTime", *lines]))
    rows = list(csv.reader(path.read_text().splitlines()))[1:]
    return Interactions.of(
        [row[0] for row in rows], [row[1] for row in rows], ratings=[float(row[2]) for row in rows]
    )


def yelp(path: Path, rng: np.random.Generator) -> Interactions:
    """One JSON object a line"""
    with path.open("w") as file:
        for number in range(900):
            review = {
                "review_id": f"r{number}",
                "user_id": f"-U_{rng.integers(40)}",
                "business_id": f"b-{rng.integers(30)}",
                "stars": float(rng.integers(1, 6)),
                "date": str(np.datetime64("2018-07-07T22:09:11") + np.timedelta64(number, "h")),
            }
            file.write(json.dumps(review) + "\n")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return Interactions.of(
        [row["user_id"] for row in rows],
        [row["business_id"] for row in rows],
        ratings=[row["stars"] for row in rows],
        timestamps=[float(np.datetime64(row["date"], "s").astype(np.int64)) for row in rows],
    )


def amazon(path: Path, rng: np.random.Generator) -> Interactions:
    """user,item,rating,timestamp without a header (the 2014 release)"""
    lines = [
        f"A{rng.integers(40)}X,{rng.integers(30):010d},{rng.integers(1, 6)}.0,{1_300_000_000 + n}"
        for n in range(900)
    ]
    path.write_text("\n".join(lines))
    rows = list(csv.reader(path.read_text().splitlines()))
    users, items, ratings, times = (list(column) for column in zip(*rows, strict=True))
    return Interactions.of(
        users, items, ratings=[float(r) for r in ratings], timestamps=[float(t) for t in times]
    )


def movielens(path: Path, rng: np.random.Generator) -> Interactions:
    """user::item::rating::timestamp"""
    lines = [
        f"{rng.integers(1, 41)}::{rng.integers(1, 31)}::{rng.integers(1, 6)}::{978_300_000 + n}"
        for n in range(900)
    ]
    path.write_text("\n".join(lines))
    rows = np.array([line.split("::") for line in path.read_text().splitlines()], dtype=np.int64)
    return Interactions.of(rows[:, 0], rows[:, 1], ratings=rows[:, 2], timestamps=rows[:, 3])


def read_back(path: Path, like: Interactions) -> list[tuple[Any, ...]]:
    """What another library reads, as tuples of id, id, rating, time."""
    if path.suffix == ".parquet":
        frame = pq.read_table(path).to_pandas()
    else:
        frame = pd.read_csv(
            path,
            sep="," if path.suffix == ".csv" else "\t",
            dtype={0: str, 1: str},
            keep_default_na=False,
        )
    ids = [
        frame.iloc[:, 0].astype(str).to_list(),
        frame.iloc[:, 1].astype(str).to_list(),
    ]
    numbers = [frame.iloc[:, place].astype(float).to_list() for place in range(2, frame.shape[1])]
    if like.ratings is not None:
        numbers[0] = np.float32(numbers[0]).tolist()
    return list(zip(*ids, *numbers, strict=True))


@pytest.mark.parametrize("format", ["tsv", "csv", "parquet", "inter"])
@pytest.mark.parametrize(
    ("shape", "threshold"), [(adressa, 10), (yelp, 3), (amazon, 3), (movielens, 4)]
)
def test_write_pair_from_raw_files(
    shape: Callable[[Path, np.random.Generator], Interactions],
    threshold: float,
    format: str,
    tmp_path: Path,
) -> None:
    data = shape(tmp_path / "raw", np.random.default_rng(1))
    how = "random_per_user" if data.timestamps is None else "temporal"
    pair = clean_and_noise(data, threshold=threshold, split=how, seed=3)
    written = write_pair(pair, tmp_path / "made", format)
    for kind, made in (("clean", pair.clean), ("noise", pair.noise)):
        names = [
            f"{kind}.{name}.inter" if format == "inter" else f"{name}.{format}"
            for name in ("train", "valid", "test")
        ]
        files = {path.name for path in (tmp_path / "made" / kind).iterdir()}
        assert files == {"manifest.json", *names}
        for name, part in made.parts.items():
            assert read_back(written[kind][name], part) == [
                (str(event[0]), str(event[1]), *event[2:]) for event in events_of(part)
            ]
    again = np.array([row[2] for row in read_back(written["noise"]["train"], data)])
    np.testing.assert_array_equal(again < threshold, pair.noisy_train)


def test_write_split_headers_are_readable(tmp_path: Path) -> None:
    only_ids = Split(Interactions.of(["1"], ["2"]))
    full = Split(Interactions.of(["1"], ["2"], ratings=[4.5], timestamps=[978300760]))
    assert write_split(only_ids, tmp_path / "a")["train"].read_text() == "user\titem\n1\t2\n"
    lines = write_split(full, tmp_path / "b", "inter")["train"].read_text().splitlines()
    assert lines[0] == "user_id:token\titem_id:token\trating:float\ttimestamp:float"
    assert lines[1] == "1\t2\t4.5\t978300760"


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\x00"), min_size=1),
        min_size=1,
        max_size=6,
    )
)
def test_write_split_csv_keeps_every_id(
    tmp_path_factory: pytest.TempPathFactory, ids: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("ids")
    data = Interactions.of(ids, list(range(len(ids))))
    for format in ("csv", "tsv", "parquet"):
        path = write_split(Split(data), folder / format, format)["train"]
        assert [row[0] for row in read_back(path, data)] == ids


def test_write_split_failure_leaves_no_partial_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = clean_and_noise(raw(), threshold=3, seed=0)
    written = write_pair(pair, tmp_path, "csv")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert before.keys() > {path for part in written.values() for path in part.values()}
    calls = []

    def fails_at_the_fifth(data: Interactions, path: Path) -> None:
        calls.append(path)
        path.write_text("half")
        if len(calls) == 5:
            raise OSError("No space left on device")

    monkeypatch.setitem(writers.WRITERS, "csv", fails_at_the_fifth)
    with pytest.raises(OSError, match="No space"):
        write_pair(pair, tmp_path, "csv")
    after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert after == before


def test_write_split_replaces_a_split_as_a_whole_and_nothing_else(tmp_path: Path) -> None:
    data, folder = Interactions.of(["a"] * 10, range(10)), tmp_path / "s"
    write_split(split(data, "random", seed=0), folder, "csv")
    with pytest.raises(InputError, match="unknown format 'xls'; choose one of: tsv, csv"):
        write_split(Split(data), folder, "xls")
    write_split(Split(data), folder, "tsv")
    assert {path.name for path in folder.iterdir()} == {"manifest.json", "train.tsv"}
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"holds notes\.txt, which its manifest does not list"):
        write_split(Split(data), folder, "csv")
    (tmp_path / "train.csv").write_text("mine")  # the name of a part, written by somebody else
    with pytest.raises(InputError, match="is not empty and is not a split written by llpauc"):
        write_split(Split(data), tmp_path, "csv")
    assert (tmp_path / "train.csv").read_text() == (folder / "notes.txt").read_text() == "mine"
    with pytest.raises(InputError, match="is not a folder"):
        write_split(Split(data), tmp_path / "train.csv")


def test_atomic_write_replaces_or_leaves_the_file(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    target.write_text("old")

    def interrupted() -> None:
        with atomic_write(target) as temporary:
            assert temporary.parent == tmp_path
            assert temporary.suffix == ".txt"
            temporary.write_text("ne")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    assert target.read_text() == "old"
    with atomic_write(target) as temporary:
        temporary.write_text("new")
        assert target.read_text() == "old"
    assert target.read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_atomic_write_errors_name_the_problem(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no folder"), atomic_write(tmp_path / "no" / "a"):
        pass
    with pytest.raises(InputError, match="it is a folder"), atomic_write(tmp_path):
        pass


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({"ratings": None}, {}, "needs ratings or dwell times and this data has none"),
        ({}, {"threshold": 0}, "no rating is below the threshold 0; ratings are 1 to 5"),
        ({}, {"threshold": 9}, "every rating is below the threshold 9; ratings are 1 to 5"),
        ({}, {"split": "dice"}, "unknown split 'dice'"),
        ({}, {"core": -1}, "core must be a whole number of at least 0, got -1"),
        ({}, {"k": 3}, "the split 'random_per_user' has no option 'k'"),
        ({"timestamps": None}, {"split": "temporal"}, "pair split by time needs timestamps"),
        ({"ratings": [np.nan, 1, 5]}, {}, "the rating of event 0 is not a number"),
    ],
)
def test_clean_and_noise_errors_name_the_problem(
    change: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    columns = {"ratings": [1, 5, 4], "timestamps": [1, 2, 3], **change}
    data = Interactions.of(["a", "b", "c"], ["x", "y", "z"], **columns)
    with pytest.raises(InputError, match=message) as caught:
        clean_and_noise(data, **{"threshold": 3, "seed": 0, **options})
    assert "\n" not in str(caught.value)


def test_clean_and_noise_threshold_is_compared_in_float32() -> None:
    data = Interactions.of(["a"] * 12, range(12), ratings=[0.7] * 10 + [0.5, 0.69])
    pair: CleanNoisePair = clean_and_noise(data, threshold=0.7, seed=0)
    assert sum(len(part) for part in pair.clean.parts.values()) == 10
