"""The data sets: generated raw files against plain loops, the real files by their counts."""

from __future__ import annotations

import gzip
import json
import math
from collections import Counter, defaultdict
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from llpauc.data.interactions import Interactions, Split
from llpauc.errors import InputError
from llpauc.research import datasets
from llpauc.research.paper import PAPER
from tests.datasets import SHARED, random_split, real

Event = tuple[str, str, float, int]  # user, item, stars, second
START = 1_400_000_000


def raw_events(seed: int = 7) -> list[Event]:
    """A dense core with repeated reviews, a tail outside every 10-core; all times differ."""
    rng = np.random.default_rng(seed)
    pairs = [(f"A{u:02}X", f"{i:010}") for u, i in rng.integers(0, (70, 55), (2600, 2))]
    pairs += [(f"tail{u}", f"{i:010}") for u, i in rng.integers(0, (60, 55), (560, 2))]
    pairs += [(f"A{u:02}X", f"rare{i}") for u, i in rng.integers(0, (70, 200), (400, 2))]
    stars = rng.choice([1.0, 2.0, 3.0, 4.0, 5.0], len(pairs), p=[0.12, 0.1, 0.13, 0.25, 0.4])
    stars[[user == "A69X" for user, _ in pairs]] = 1.0  # only low ratings: in the noise set only
    seconds = START + 60 * rng.permutation(len(pairs))
    return [
        (user, item, float(rating), int(second))
        for (user, item), rating, second in zip(pairs, stars, seconds, strict=True)
    ]


def write_yelp(folder: Path, events: list[Event], packed: bool = False) -> None:
    lines = [
        json.dumps({
            "review_id": str(place), "user_id": user, "business_id": item, "stars": stars,
            "useful": 0, "text": 'quoted "{x},\ny"\u00f8',
            "date": datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%d %H:%M:%S"),
        })
        for place, (user, item, stars, second) in enumerate(events)
    ]  # fmt: skip
    write(folder / "yelp" / "yelp_academic_dataset_review.json", lines, packed)


def write_amazon_ratings(folder: Path, events: list[Event], packed: bool = False) -> None:
    lines = [f"{user},{item},{stars},{second}" for user, item, stars, second in events]
    write(folder / "amazon-book" / "ratings_Books.csv", lines, packed)


def write_amazon_reviews(
    folder: Path, events: list[Event], packed: bool = False, name: str = "reviews_Books.json"
) -> None:
    lines = [
        json.dumps({
            "reviewerID": user, "asin": item, "helpful": [1, 2], "reviewText": "good, \\ bad",
            "overall": stars, "unixReviewTime": second, "reviewTime": "05 3, 2011",
        })
        for user, item, stars, second in events
    ]  # fmt: skip
    write(folder / "amazon-book" / name, lines, packed)


def write(path: Path, lines: list[str], packed: bool) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{line}\n" for line in lines).encode()
    if packed:
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(text))
    else:
        path.write_bytes(text)


WRITERS = {"yelp": write_yelp, "amazon-book": write_amazon_ratings}


def naive_core(events: list[Event], k: int) -> list[Event]:
    while True:
        items_of, users_of = defaultdict(set), defaultdict(set)
        for user, item, *_ in events:
            items_of[user].add(item)
            users_of[item].add(user)
        core = [e for e in events if len(items_of[e[0]]) >= k and len(users_of[e[1]]) >= k]
        if len(core) == len(events):
            return core
        events = core


def naive_clean(events: list[Event]) -> dict[str, set[Event]]:
    """Rated 3 or better, the earliest of a pair, each user's last tenth and the tenth before it."""
    history = defaultdict(dict)
    for event in sorted(naive_core(events, 10), key=lambda event: event[3]):
        if event[2] >= 3:
            history[event[0]].setdefault(event[1], event)
    parts = {"train": set(), "valid": set(), "test": set()}
    for of_user in history.values():
        ordered = list(of_user.values())
        tenth = math.floor(len(ordered) / 10 + 0.5)
        parts["test"] |= set(ordered[len(ordered) - tenth :])
        parts["valid"] |= set(ordered[len(ordered) - 2 * tenth : len(ordered) - tenth])
        parts["train"] |= set(ordered[: len(ordered) - 2 * tenth])
    return parts


def events_in(part: Interactions) -> set[Event]:
    columns = (
        part.user_ids.ids(part.users),
        part.item_ids.ids(part.items),
        part.ratings.tolist(),
        part.timestamps.astype(int).tolist(),
    )
    events = set(zip(*columns, strict=True))
    assert len(events) == len(part)
    return events


def parts_of(split: Split) -> dict[str, set[Event]]:
    return {name: events_in(part) for name, part in split.parts.items()}


@pytest.fixture(params=WRITERS)
def family(request, tmp_path):
    WRITERS[request.param](tmp_path, raw_events())
    return request.param


def test_load_clean_equals_plain_loops_over_the_raw_file(family, tmp_path):
    events = raw_events()
    assert 1000 < len(naive_core(events, 10)) < len(events) - 400
    expected = naive_clean(events)
    assert min(map(len, expected.values())) > 100
    assert parts_of(datasets.load(f"{family}-clean", tmp_path)) == expected


def test_load_noise_has_same_test_part_and_noisy_events_in_other_parts(family, tmp_path):
    clean = parts_of(datasets.load(f"{family}-clean", tmp_path))
    split = datasets.load(f"{family}-noise", tmp_path)
    noise = parts_of(split)
    assert noise["test"] == clean["test"]
    core = naive_core(raw_events(), 10)
    liked = {event[:2] for event in core if event[2] >= 3}
    disliked = {event for event in core if event[2] < 3}
    for part in ("train", "valid"):
        noisy = {event for event in noise[part] if event[2] < 3}
        assert len(noise[part]) == len(clean[part])
        assert noise[part] - noisy < clean[part]
        assert noisy
        assert noisy < disliked
        assert not {event[:2] for event in noisy} & liked
    assert "A69X" in list(split.user_ids)
    assert "A69X" not in list(datasets.load(f"{family}-clean", tmp_path).user_ids)


def test_load_noise_fraction_equals_that_of_the_raw_file(family, tmp_path):
    """Clean and noisy events of the training period are sampled at one rate, within chance."""
    clean = parts_of(datasets.load(f"{family}-clean", tmp_path))
    noise = parts_of(datasets.load(f"{family}-noise", tmp_path))
    begins = {}
    for user, _, _, second in clean["valid"] | clean["test"]:
        begins[user] = min(second, begins.get(user, second))
    core = naive_core(raw_events(), 10)
    liked = {event[:2] for event in core if event[2] >= 3}
    pool = {e[:2] for e in core if e[:2] not in liked and e[3] < begins.get(e[0], math.inf)}
    noisy = sum(event[2] < 3 for event in noise["train"])
    whole = len(pool) + len(clean["train"])
    mean = len(clean["train"]) * len(pool) / whole
    spread = math.sqrt(mean * (1 - len(pool) / whole) * (1 - len(clean["train"]) / (whole - 1)))
    assert abs(noisy - mean) < 5 * spread


def test_load_does_not_depend_on_row_order(family, tmp_path):
    other = tmp_path / "other"
    events = raw_events()
    WRITERS[family](
        other, [events[index] for index in np.random.default_rng(1).permutation(len(events))]
    )
    for name in (f"{family}-clean", f"{family}-noise"):
        first = parts_of(datasets.load(name, tmp_path))
        assert first == parts_of(datasets.load(name, tmp_path))
        assert first == parts_of(datasets.load(name, other))


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("variant", datasets.VARIANTS)
def test_load_amazon_ratings_and_reviews_give_the_same_split(tmp_path, variant, packed):
    name = f"amazon-book-{variant}"
    write_amazon_ratings(tmp_path / "ratings", raw_events())
    write_amazon_reviews(tmp_path / "reviews", raw_events(), packed)
    # A 5-core, as the publisher of the reviews provides it.
    write_amazon_reviews(
        tmp_path / "five", naive_core(raw_events(), 5), packed, "reviews_Books_5.json"
    )
    expected = parts_of(datasets.load(name, tmp_path / "ratings"))
    assert parts_of(datasets.load(name, tmp_path / "reviews")) == expected
    assert parts_of(datasets.load(name, tmp_path / "five")) == expected


def test_load_notes_count_core_and_noisy_events(family, tmp_path):
    notes = " | ".join(datasets.load(f"{family}-noise", tmp_path).notes)
    core = naive_core(raw_events(), 10)
    assert f"10-core of all events: {len(core)} of {len(raw_events())} left" in notes
    noisy = sum(event[2] < 3 for event in core)
    assert f"rating below 3: {noisy} of {len(core)} events" in notes


def test_available_lists_data_sets_with_all_files(tmp_path):
    assert datasets.available(tmp_path) == ()
    assert datasets.available(tmp_path / "nowhere") == ()
    write_yelp(tmp_path, raw_events(), packed=True)
    assert datasets.available(tmp_path) == ("yelp-clean", "yelp-noise")
    (tmp_path / "adressa_noise").mkdir()
    for part in ("train", "valid"):
        write_inter(tmp_path, "adressa_noise", part, [("u", "i")])
    assert "adressa-noise" not in datasets.available(tmp_path)
    write_inter(tmp_path, "adressa_noise", "test", [("u", "i")])
    assert datasets.available(tmp_path) == ("adressa-noise", "yelp-clean", "yelp-noise")


def write_inter(folder: Path, name: str, part: str, pairs: list[tuple[str, str]]) -> None:
    lines = ["user_id:token\titem_id:token", *(f"{user}\t{item}" for user, item in pairs)]
    write(folder / name / f"{name}.{part}.inter", lines, packed=False)


@pytest.mark.parametrize(
    ("name", "file", "place"),
    [
        ("adressa-noise", "adressa_noise.valid.inter", "authors"),
        ("ml-100k-clean", "u.data", "grouplens.org"),
        ("yelp-clean", "yelp_academic_dataset_review.json", "Yelp Open Dataset (yelp.com/dataset"),
        ("amazon-book-noise", "ratings_Books.csv", "jmcauley.ucsd.edu/data/amazon"),
    ],
)
def test_load_missing_files_message_names_file_and_source(tmp_path, name, file, place):
    with pytest.raises(InputError) as nothing:
        datasets.load(name, tmp_path)
    other = "amazon-book" if name.startswith("yelp") else "yelp"
    WRITERS[other](tmp_path, raw_events()[:5])
    with pytest.raises(InputError) as something:
        datasets.load(name, tmp_path)
    for error in (nothing, something):
        message = str(error.value)
        assert "\n" not in message
        for word in (name, file, place, str(tmp_path)):
            assert word in message
    assert "no other data set" in str(nothing.value)
    assert f"available: {other}-clean, {other}-noise" in str(something.value)


def test_load_unknown_name_lists_the_names(tmp_path):
    with pytest.raises(InputError, match="yelp-noise"):
        datasets.load("yelp", tmp_path)


def test_statistics_equal_counts_by_loops():
    """Duplicates, leaks, cold users and items, counted by loops over the pairs."""
    split = random_split(3)
    pairs = {
        name: list(zip(part.users.tolist(), part.items.tolist(), strict=True))
        for name, part in split.parts.items()
    }
    counts = datasets.statistics(split)
    assert counts["interactions"] == sum(map(len, pairs.values()))
    assert counts["sparsity"] == 1 - counts["interactions"] / (split.n_users * split.n_items)
    assert counts["duplicates"] == {
        name: sum(count - 1 for count in Counter(some).values()) for name, some in pairs.items()
    }
    assert counts["test pairs also in train"] == len(set(pairs["test"]) & set(pairs["train"])) > 0
    assert counts["also in valid"] == len(set(pairs["test"]) & set(pairs["valid"])) > 0
    testers = {user for user, _ in pairs["test"]}
    cold = testers - {user for user, _ in pairs["train"]}
    assert counts["test users"] == len(testers)
    assert counts["cold test users"] == len(cold) / len(testers) > 0


def test_statistics_without_test_part_raises():
    with pytest.raises(InputError, match="test part"):
        datasets.statistics(Split(Interactions.of(["a"], ["x"])))


@pytest.mark.parametrize(("variant", "leaks"), [("clean", 89), ("noise", 79)])
def test_statistics_of_adressa_equal_published_sizes_without_padding(variant, leaks):
    real(f"adressa_{variant}")
    name = f"adressa-{variant}"
    counts = datasets.statistics(datasets.load(name, SHARED))
    users, items, interactions, sparsity = PAPER["sizes"][name]
    assert (counts["users"] + 1, counts["items"] + 1) == (users, items)
    assert counts["interactions"] == interactions
    assert abs(counts["sparsity"] - sparsity) < 1e-4  # 99.896 % is printed as 99.89 %
    assert counts["duplicates"] == {"train": 0, "valid": 0, "test": 604}
    assert counts["test pairs also in train"] == leaks
    assert 0.60 < counts["cold test users"] < 0.62


def test_load_both_adressa_variants_have_the_same_test_part():
    real("adressa_noise")
    tests = [datasets.load(f"adressa-{variant}", SHARED).test for variant in datasets.VARIANTS]
    first, second = (
        list(zip(part.user_ids.ids(part.users), part.item_ids.ids(part.items), strict=True))
        for part in tests
    )
    assert first == second


def test_load_movielens_100k_equals_counts_of_its_ratings():
    lines = (real("ml-100k") / "u.data").read_text().splitlines()
    rows = [tuple(int(field) for field in line.split("\t")) for line in lines]
    liked = [row for row in rows if row[2] >= 3]
    clean, noise = (datasets.load(f"ml-100k-{variant}", SHARED) for variant in datasets.VARIANTS)
    counts = datasets.statistics(clean)
    assert counts["interactions"] == len(liked) == 82_520
    assert (counts["users"], counts["items"]) == (943, len({row[1] for row in liked}))
    tenths = Counter(row[0] for row in liked).values()
    assert len(clean.test) == sum(math.floor(n / 10 + 0.5) for n in tenths)
    assert counts["cold test users"] == 0
    last = defaultdict(int)
    for user, second in zip(clean.train.users, clean.train.timestamps, strict=True):
        last[user] = max(last[user], second)
    assert all(
        second >= last[user]
        for user, second in zip(clean.test.users, clean.test.timestamps, strict=True)
    )
    assert events_in(noise.test) == events_in(clean.test)
    assert [len(part) for part in noise.parts.values()] == [
        len(part) for part in clean.parts.values()
    ]
    assert 0.1 < (noise.train.ratings < 3).mean() < 0.2
    assert datasets.statistics(noise)["items"] > counts["items"]
