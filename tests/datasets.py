"""Real data, if available, and small generated data for the tests."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from llpauc.data.interactions import Interactions, Split
from llpauc.evaluation.scorer import Scorer
from llpauc.models.network import EmbeddingNetwork
from llpauc.models.registry import MODELS
from llpauc.options import options_of

ROOT = Path(__file__).resolve().parents[1]
SHARED = Path(os.environ.get("LLPAUC_DATA", ROOT.parent / "shared" / "data"))


def real(name: str) -> Path:
    """A folder of the shared data; skips the test if it is missing."""
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"no {name} in the shared data folder; set LLPAUC_DATA to its folder")
    return path


@contextmanager
def mounted(folder: Path, size: str = "1m") -> Iterator[Path]:
    """A small separate file system; skips the test if mounting is not allowed."""
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if os.geteuid() or not shutil.which("mount") or subprocess.run(words).returncode:
        pytest.skip("mounting is not allowed")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def random_split(seed: int, n_users: int = 60, n_items: int = 90, events: int = 900) -> Split:
    """Random events with a long tail, duplicates, leaks, cold users and unseen items."""
    rng = np.random.default_rng(seed)
    users = rng.integers(0, n_users, events)
    items = (n_items * rng.random(events) ** 2).astype(int)
    part = rng.choice(3, events, p=[0.7, 0.1, 0.2])
    part[users % 7 == 3] = 2  # these users are never seen in training
    data = Interactions.of([f"u{u}" for u in users], [f"i{i}" for i in items])
    return Split(*[data.take(part == which) for which in range(3)])


def taste_split(seed: int = 1, n_users: int = 60, n_items: int = 40, cold: bool = False) -> Split:
    """Two groups of users, each of which likes one half of the items.

    With `cold`, a tenth of the users has no training event.
    """
    rng = np.random.default_rng(seed)
    parts: dict[str, list[tuple[str, str]]] = {"train": [], "valid": [], "test": []}
    for user in range(n_users):
        items_of_user = rng.permutation(np.arange(n_items // 2) + (user % 2) * (n_items // 2))[:14]
        for place, item in enumerate(items_of_user):
            part = "test" if place < 3 else "valid" if place < 5 else "train"
            if part == "train" and cold and user % 10 == 9:
                continue
            parts[part].append((f"u{user}", f"i{item}"))
    interactions = [Interactions.of(*map(list, zip(*rows, strict=True))) for rows in parts.values()]
    return Split.of(*interactions)


def score_table(scorer: Scorer, n_users: int) -> np.ndarray:
    """Every score, (n_users, n_items)."""
    out = np.empty((n_users, scorer.n_items), np.float32)
    scorer.scores_into(np.arange(n_users, dtype=np.int32), out)
    return out


def new_network(model: str, train: Interactions, seed: int = 0, **options) -> EmbeddingNetwork:
    """The trainable part of a model; options that the model does not have are ignored."""
    entry = MODELS[model]
    known = options_of(entry.Options)
    given = {name: value for name, value in options.items() if name in known}
    return entry.load().Network(train, entry.Options(**given), seed)


def scorer_of(model: str, data: object, **options) -> Scorer:
    """The scorer of a model without training."""
    return MODELS[model].load().scorer_of(data, **options)


SHOP_WEIGHTS = {"view": 1.0, "cart": 3.0, "purchase": 10.0}


def shop_log(seed: int = 0, n_users: int = 700, n_items: int = 400) -> pd.DataFrame:
    """A shop's events over 100 days: views follow fashion, purchases follow taste.

    A user views items in proportion to their fashion, which is the same for all users, and buys
    items of one taste, each after a view some days before.
    """
    rng, tastes = np.random.default_rng(seed), 8
    taste_of_user, taste_of_item = rng.integers(tastes, size=n_users), np.arange(n_items) % tastes
    fashion = rng.pareto(1.0, n_items) + 0.05
    rows: list[tuple[int, int, str, float]] = []
    for user in range(n_users):
        viewed = rng.choice(n_items, rng.poisson(25) + 3, p=fashion / fashion.sum())
        rows += [(user, item, "view", rng.uniform(0, 100)) for item in viewed]
        liked = np.flatnonzero(taste_of_item == taste_of_user[user])
        for item in rng.choice(liked, min(rng.poisson(5) + 1, len(liked)), replace=False):
            day, before = rng.uniform(0, 100), rng.exponential(8.0)
            rows.append((user, item, "view", max(day - before, 0.0)))
            if rng.random() < 0.5:
                rows.append((user, item, "cart", max(day - before / 2, 0.0)))
            rows.append((user, item, "purchase", day))
    log = pd.DataFrame(rows, columns=["user", "item", "event_type", "timestamp"])
    log["timestamp"] = 1.7e9 + 86400 * log["timestamp"].round(3)
    return log.sort_values("timestamp", ignore_index=True)
