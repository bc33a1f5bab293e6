"""`demo_data` has the properties that the demo shows."""

from __future__ import annotations

import time

import numpy as np
import numpy.typing as npt
import pytest

from llpauc.data.demo import GENRES, DemoData, demo_data
from llpauc.data.interactions import Interactions


@pytest.fixture(scope="module")
def demo() -> DemoData:
    return demo_data()


def pairs(part: Interactions | None) -> set[tuple[int, int]]:
    assert part is not None
    return set(zip(part.users.tolist(), part.items.tolist(), strict=True))


def recall_at_20(demo: DemoData, scores: npt.NDArray[np.float64]) -> float:
    """Mean over the test users, by a plain loop; events of train and valid are excluded."""
    hidden = {"train": pairs(demo.split.train), "valid": pairs(demo.split.valid)}
    targets: dict[int, set[int]] = {}
    for user, item in pairs(demo.split.test):
        targets.setdefault(user, set()).add(item)
    known: dict[int, list[int]] = {}
    for user, item in hidden["train"] | hidden["valid"]:
        known.setdefault(user, []).append(item)
    recalls = []
    for user, items in targets.items():
        row = scores[user].copy()
        row[known.get(user, [])] = -np.inf
        top = np.argsort(-row, kind="stable")[:20]
        recalls.append(len(items & set(top.tolist())) / len(items))
    return float(np.mean(recalls))


def test_demo_data_sizes_and_ids(demo: DemoData) -> None:
    split = demo.split
    assert (split.n_users, split.n_items) == (2_000, 600)
    assert 35_000 < sum(len(part) for part in split.parts.values()) < 45_000
    assert split.user_ids.ids([42])[0] == "u0042"
    assert split.item_ids.ids([137])[0] == "i0137"


def test_demo_data_oracle_beats_popularity(demo: DemoData) -> None:
    split = demo.split
    popularity = np.bincount(split.train.items, minlength=split.n_items).astype(float)
    popular = recall_at_20(demo, np.tile(popularity, (split.n_users, 1)))
    oracle = recall_at_20(demo, demo.tastes[:, demo.genres] * demo.appeal)
    assert 0.15 < popular < 0.35
    assert oracle > 1.8 * popular


def test_demo_data_ease_beats_popularity(demo: DemoData) -> None:
    """EASE in closed form, with lambda 300."""
    split = demo.split
    seen = np.zeros((split.n_users, split.n_items))
    seen[split.train.users, split.train.items] = 1.0
    inverse = np.linalg.inv(seen.T @ seen + 300.0 * np.eye(split.n_items))
    weights = -inverse / np.diag(inverse)
    np.fill_diagonal(weights, 0.0)
    popularity = np.tile(seen.sum(axis=0), (split.n_users, 1))
    assert recall_at_20(demo, seen @ weights) > 1.4 * recall_at_20(demo, popularity)


def test_demo_data_items_have_a_long_tail(demo: DemoData) -> None:
    counts = np.sort(np.bincount(demo.split.train.items, minlength=600))[::-1]
    assert counts[:60].sum() > 0.4 * counts.sum()
    assert counts[300:].sum() < 0.2 * counts.sum()


def test_demo_data_has_cold_test_users(demo: DemoData) -> None:
    split = demo.split
    assert split.valid is not None
    assert split.test is not None
    test_users = set(split.test.users.tolist())
    cold = test_users - set(split.train.users.tolist())
    assert 0.07 < len(cold) / len(test_users) < 0.10
    assert not cold & set(split.valid.users.tolist())


def test_demo_data_noisy_events_follow_appeal_and_not_taste(demo: DemoData) -> None:
    train, noisy = demo.split.train, demo.noisy
    assert len(noisy) == len(train)
    assert 0.10 < noisy.mean() < 0.15
    liked = demo.tastes[train.users, demo.genres[train.items]]
    # Ten genres: a click that ignores taste has a mean taste of about 0.1.
    assert liked[noisy].mean() < 0.15
    assert liked[~noisy].mean() > 0.35
    popular = demo.appeal >= np.sort(demo.appeal)[-60]
    assert popular[train.items[noisy]].mean() > 0.3


def test_demo_data_parts_are_disjoint_and_ordered_by_time(demo: DemoData) -> None:
    split = demo.split
    assert split.valid is not None
    assert split.test is not None
    part_pairs = [pairs(part) for part in split.parts.values()]
    n_pairs = sum(len(distinct) for distinct in part_pairs)
    assert n_pairs == len(set().union(*part_pairs))
    assert n_pairs == sum(len(part) for part in split.parts.values())
    ends = np.full((3, split.n_users, 2), np.nan)
    for number, part in enumerate((split.train, split.valid, split.test)):
        assert part.timestamps is not None
        assert np.all(np.diff(part.timestamps) >= 0)
        for user, moment in zip(part.users, part.timestamps, strict=True):
            ends[number, user] = (
                np.nanmin([ends[number, user, 0], moment]),
                np.nanmax([ends[number, user, 1], moment]),
            )
    warm = ~np.isnan(ends[0, :, 0])
    assert np.all(ends[0, warm, 1] <= ends[1, warm, 0])
    assert np.all(ends[1, warm, 1] <= ends[2, warm, 0])


def test_demo_data_titles_contain_the_genre(demo: DemoData) -> None:
    titles = list(demo.titles.values())
    assert list(demo.titles) == list(demo.split.item_ids)
    assert len(set(titles)) == 600
    last_words: dict[str, set[int]] = {}
    for title, genre in zip(titles, demo.genres, strict=True):
        assert title.startswith("The ")
        assert len(title.split()) == 3
        last_words.setdefault(title.split()[-1], set()).add(int(genre))
    assert all(len(genres) == 1 for genres in last_words.values())
    assert set(demo.genres.tolist()) == set(range(len(GENRES)))


def test_demo_data_same_seed_gives_the_same_data(demo: DemoData) -> None:
    again, other = demo_data(2024), demo_data(7)
    for name, part in demo.split.parts.items():
        np.testing.assert_array_equal(part.items, again.split.parts[name].items)
        np.testing.assert_array_equal(part.timestamps, again.split.parts[name].timestamps)
    np.testing.assert_array_equal(demo.noisy, again.noisy)
    assert demo.titles == again.titles
    assert pairs(demo.split.train) != pairs(other.split.train)


def test_demo_data_takes_less_than_1500_ms_of_cpu() -> None:
    # CPU time, since the machine may be shared; 0.3 s on an idle machine.
    start = time.process_time()
    demo_data(1)
    assert time.process_time() - start < 1.5
