"""Starting values from K, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from llpauc.data.interactions import IdMap, Interactions
from llpauc.errors import InputError
from llpauc.losses import LLPAUCLoss, suggest_alpha_beta


def events(counts: list[int], n_items: int) -> Interactions:
    users = np.repeat(np.arange(len(counts)), counts)
    items = np.concatenate([np.arange(n) for n in counts])
    ids = [IdMap.of([str(i) for i in range(n)]) for n in (len(counts), n_items)]
    return Interactions(users, items, ids[0], ids[1])


def test_theorem_1() -> None:
    found = suggest_alpha_beta(events([30, 50], n_items=1040), k=20)
    assert found.alpha == 20 / 40
    assert found.beta == 20 / (1040 - 40)
    assert found.beta_measured == pytest.approx(400 / 1040)
    assert found.mean_positives == found.median_positives == 40.0
    assert "0 of 2 users" in found.caveat
    LLPAUCLoss(found.alpha, found.beta)


def test_few_positives_clip_alpha_and_the_caveat_says_so() -> None:
    found = suggest_alpha_beta(events([1, 2, 3, 0], n_items=100), k=20)
    assert found.alpha == 1.0
    assert found.mean_positives == 2.0  # over the three users who have any
    assert found.beta_measured == 1.0
    assert "3 of 3 users have at most K = 20" in found.caveat


def test_duplicates_count_once_and_a_full_row_is_no_division_by_zero() -> None:
    full = events([4], n_items=4)
    twice = full.take(np.array([0, 0, 1, 2, 3]))
    found = suggest_alpha_beta(twice, k=2)
    assert (found.alpha, found.beta) == (0.5, 1.0)


def test_what_is_refused() -> None:
    with pytest.raises(InputError, match="k must be a whole number of at least 1, got 0"):
        suggest_alpha_beta(events([1], 2), k=0)
    with pytest.raises(InputError, match="no events"):
        suggest_alpha_beta(events([0], 2))
