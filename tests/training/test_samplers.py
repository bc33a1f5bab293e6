"""Samplers: which items they exclude, their distribution, and independence of threads."""

from __future__ import annotations

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from llpauc.data.interactions import Interactions
from llpauc.errors import InputError
from llpauc.training.options import SAMPLERS
from llpauc.training.samplers import collision_rate, make_sampler
from tests.datasets import random_split

TRAIN = random_split(0, n_users=40, n_items=25, events=500).train
HAS = TRAIN.matrix.toarray() > 0


def batch(size=64):
    rng = np.random.default_rng(1)
    some = rng.integers(0, len(TRAIN), size)
    return TRAIN.users[some], TRAIN.items[some]


def pairs(drawn, users):
    items = np.broadcast_to(drawn.items, (len(users), drawn.items.shape[-1]))
    keep = np.ones(items.shape, bool) if drawn.mask is None else drawn.mask
    return np.broadcast_to(users[:, None], items.shape)[keep], items[keep]


@pytest.mark.parametrize("name", [name for name in SAMPLERS if name != "uniform-with-positives"])
def test_sampler_draws_no_positives(name):
    users, positives = batch()
    for step in range(20):
        drawn = make_sampler(name, TRAIN, 30, seed=7).draw(step, users, positives)
        assert not HAS[pairs(drawn, users)].any()
    assert collision_rate(make_sampler(name, TRAIN, 10, seed=7), TRAIN) == 0.0


def test_uniform_with_positives_sampler_collision_rate_is_the_density():
    rate = collision_rate(make_sampler("uniform-with-positives", TRAIN, 10, seed=7), TRAIN)
    expected = HAS.sum(axis=1)[TRAIN.users].mean() / TRAIN.n_items
    assert rate == pytest.approx(expected, rel=0.15)


@pytest.mark.parametrize("name", ["uniform", "uniform-with-positives", "shared"])
def test_uniform_samplers_pass_a_chi_square_test(name):
    """Chi-square test over the items that one user may get."""
    user = int(np.argmax(HAS.sum(axis=1)))
    users = np.full(1 if name == "shared" else 50, user, np.int32)
    sampler = make_sampler(name, TRAIN, 10, seed=3)
    counts = np.zeros(TRAIN.n_items)
    for step in range(400):
        _, items = pairs(sampler.draw(step, users, users), users)
        np.add.at(counts, items, 1)
    allowed = np.ones(TRAIN.n_items, bool) if name == "uniform-with-positives" else ~HAS[user]
    assert not counts[~allowed].any()
    assert stats.chisquare(counts[allowed]).pvalue > 1e-4


@pytest.mark.parametrize("length", [1, 63, 64, 65, 198])
def test_uniform_sampler_excludes_histories_of_any_length(length):
    """Short histories are scanned, long ones searched: every other item is drawn, and no item of
    the history."""
    rng = np.random.default_rng(length)
    history = rng.choice(200, length, replace=False)
    data = Interactions.of(
        ["ann"] * length + ["bob"] * 200, [*map(str, history), *map(str, range(200))]
    )
    ann = np.zeros(3, np.int32)
    sampler = make_sampler("uniform", data, 401, seed=1)
    drawn = np.concatenate([sampler.draw(step, ann, ann).items.ravel() for step in range(20)])
    absent = np.setdiff1d(np.arange(200), data.items[data.users == 0])
    np.testing.assert_array_equal(np.unique(drawn), absent)


def test_popularity_sampler_draws_by_counts():
    sampler = SAMPLERS["popularity"](TRAIN, 100, 5)
    users = np.arange(TRAIN.n_users, dtype=np.int32)
    counts = np.zeros((TRAIN.n_users, TRAIN.n_items))
    for step in range(200):
        items = sampler.draw(step, users, users).items
        np.add.at(counts, (users[:, None], items), 1)
    weights = HAS.sum(axis=0) ** 0.75 * ~HAS
    expected = weights / weights.sum(axis=1, keepdims=True)
    observed = counts / counts.sum(axis=1, keepdims=True)
    assert np.abs(observed - expected).max() < 0.02


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), step=st.integers(0, 10**9), name=st.sampled_from(list(SAMPLERS)))
def test_sampler_draw_is_a_function_of_seed_and_step(seed, step, name):
    users, positives = batch(16)
    one = make_sampler(name, TRAIN, 5, seed=seed).draw(step, users, positives)
    sampler = make_sampler(name, TRAIN, 5, seed=seed)
    sampler.draw(step + 1, users, positives)  # a draw in between has no effect
    two = sampler.draw(step, users, positives)
    np.testing.assert_array_equal(one.items, two.items)


@pytest.mark.parametrize("name", ["uniform", "uniform-with-positives", "popularity"])
def test_sampler_draw_does_not_depend_on_threads(name):
    users, positives = batch()
    drawn = []
    before = numba.get_num_threads()
    try:
        for threads in {1, before}:
            numba.set_num_threads(threads)
            drawn.append(make_sampler(name, TRAIN, 30, seed=7).draw(5, users, positives).items)
    finally:
        numba.set_num_threads(before)
    np.testing.assert_array_equal(drawn[0], drawn[-1])


def test_uniform_sampler_draws_differ_by_step_and_seed():
    users, positives = batch()
    draws = [
        make_sampler("uniform", TRAIN, 30, seed=s).draw(t, users, positives).items.tobytes()
        for s, t in [(1, 1), (1, 2), (2, 1), (2, 2)]
    ]
    assert len(set(draws)) == 4


@pytest.mark.parametrize("name", ["uniform", "popularity", "shared", "all-items"])
def test_sampler_masks_users_with_every_item(name):
    data = Interactions.of(["all-items"] * 4 + ["one"], ["a", "b", "c", "d", "a"])
    users = np.array([0, 1], np.int32)
    drawn = make_sampler(name, data, 3, seed=0).draw(0, users, users)
    assert drawn.mask is not None
    assert not drawn.mask[0].any()
    assert drawn.mask[1].any()


def test_all_items_and_in_batch_samplers_mask_the_positives():
    users, positives = batch()
    for name, items in (
        ("all-items", np.arange(TRAIN.n_items)),
        ("in-batch", np.unique(positives)),
    ):
        drawn = make_sampler(name, TRAIN, 1, seed=0).draw(0, users, positives)
        np.testing.assert_array_equal(drawn.items, items)
        np.testing.assert_array_equal(drawn.mask, ~HAS[users][:, items])


def test_samplers_with_more_negatives_than_items():
    users, positives = batch()
    assert (
        make_sampler("uniform", TRAIN, 200, seed=0).draw(0, users, positives).items.shape[1] == 200
    )
    shared = make_sampler("shared", TRAIN, 200, seed=0).draw(0, users, positives)
    assert len(shared.items) == TRAIN.n_items


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("negatives", [3, 200])
def test_sampler_items_scored_bounds_the_draw(name, negatives):
    users, positives = batch()
    sampler = make_sampler(name, TRAIN, negatives, seed=0)
    scored = sampler.items_scored(len(users), negatives, TRAIN.n_items)
    assert sampler.draw(0, users, positives).items.shape[-1] <= scored
    other = make_sampler(name, TRAIN, 5, seed=0).draw(0, users, positives).items.shape[-1]
    assert sampler.uses_negatives or other == sampler.draw(0, users, positives).items.shape[-1]


def test_make_sampler_unknown_name_and_bad_number():
    with pytest.raises(InputError, match="unknown sampler 'uniforn'; choose one of: uniform,"):
        make_sampler("uniforn", TRAIN, 1, seed=0)
    with pytest.raises(InputError, match="negatives must be a whole number of at least 1, got 0"):
        make_sampler("uniform", TRAIN, 0, seed=0)
