"""Data sets of the leaderboard: the paper's, and those other papers published figures on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from llpauc.data import filters
from llpauc.data.interactions import Split
from llpauc.data.readers import Reading, read_interactions
from llpauc.data.readers import load as load_folder
from llpauc.data.splits import split_random_per_user
from llpauc.errors import InputError, listing
from llpauc.research.paper import datasets

SEED = 2024


def _ready_made(folder: Path) -> Split:
    """Train and test as they lie there."""
    found = load_folder(folder)
    if isinstance(found, Reading):
        raise InputError(f"{folder}: wants a train and a test file")
    return found


def _movielens(folder: Path) -> Split:
    """MovieLens-100k: ratings from 3 on, their 10-core, a fifth of each user's for the test."""
    events = read_interactions(folder / "u.data").interactions
    core = filters.k_core(filters.rated_at_least(events, 3), 10)
    return split_random_per_user(core, valid=0.0, test=0.2, seed=SEED)


# name -> folder, how it is read
_OTHERS: dict[str, tuple[str, Callable[[Path], Split]]] = {
    "ml-100k": ("ml-100k", _movielens),
    "amazon-health": ("amazon-health", _ready_made),
    "amazon-electronic": ("amazon-electronic", _ready_made),
    "gowalla": ("gowalla", _ready_made),
    "ml-1m-clean": ("ml-1m_clean", _ready_made),
    "ml-1m-noise": ("ml-1m_noisy", _ready_made),
}
NAMES = (*datasets.NAMES, *_OTHERS)


def load(name: str, folder: Path) -> Split:
    """A data set by name."""
    if name not in _OTHERS:
        return datasets.load(name, folder)
    below, read = _OTHERS[name]
    if not (folder / below).is_dir():
        ready = listing(available(folder)) or "none"
        raise InputError(f"{name}: there is no folder {folder / below}; ready now: {ready}")
    return read(folder / below)


def available(folder: Path) -> tuple[str, ...]:
    """The names that can be loaded now."""
    others = [name for name, (below, _) in _OTHERS.items() if (folder / below).is_dir()]
    return (*datasets.available(folder), *others)
