"""`suggest_alpha_beta` against values computed by hand."""

from __future__ import annotations

import numpy as np
import pytest

from llpauc.data.ids import IdMap
from llpauc.data.interactions import Interactions
from llpauc.errors import InputError
from llpauc.losses import LLPAUCLoss, suggest_alpha_beta


def events(counts: list[int], n_items: int) -> Interactions:
    users = np.repeat(np.arange(len(counts)), counts)
    items = np.concatenate([np.arange(n) for n in counts])
    ids = [IdMap.of([str(i) for i in range(n)]) for n in (len(counts), n_items)]
    return Interactions(users, items, ids[0], ids[1])


def test_suggest_alpha_beta_follows_theorem_1() -> None:
    suggestion = suggest_alpha_beta(events([30, 50], n_items=1040), k=20)
    assert suggestion.alpha == 20 / 40
    assert suggestion.beta == 20 / (1040 - 40)
    assert suggestion.beta_measured == pytest.approx(400 / 1040)
    assert suggestion.mean_positives == suggestion.median_positives == 40.0
    assert "0 of 2 users" in suggestion.caveat
    LLPAUCLoss(suggestion.alpha, suggestion.beta)


def test_suggest_alpha_beta_few_positives_clip_alpha() -> None:
    suggestion = suggest_alpha_beta(events([1, 2, 3, 0], n_items=100), k=20)
    assert suggestion.alpha == 1.0
    assert suggestion.mean_positives == 2.0  # over the three users who have any
    assert suggestion.beta_measured == 1.0
    assert "3 of 3 users have at most K = 20" in suggestion.caveat


def test_suggest_alpha_beta_counts_duplicates_once_and_accepts_full_rows() -> None:
    full = events([4], n_items=4)
    twice = full.take(np.array([0, 0, 1, 2, 3]))
    suggestion = suggest_alpha_beta(twice, k=2)
    assert (suggestion.alpha, suggestion.beta) == (0.5, 1.0)


def test_suggest_alpha_beta_bad_input_raises() -> None:
    with pytest.raises(InputError, match="k must be a whole number of at least 1, got 0"):
        suggest_alpha_beta(events([1], 2), k=0)
    with pytest.raises(InputError, match="no events"):
        suggest_alpha_beta(events([0], 2))
