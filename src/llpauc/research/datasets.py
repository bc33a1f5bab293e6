"""The data sets of the studies, read from the files in a data folder.

The paper's: `adressa_clean/` and `adressa_noise/` as the authors provide them, already split;
`ml-100k/u.data`; `yelp/` and `amazon-book/` with the raw files of their owners. Raw files become a
clean/noise pair by `llpauc.data.noise.clean_and_noise`; docs/explanation/paper.md says how. The
leaderboard and the noise study add folders that are already split, and files with timestamps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from llpauc.data import filters
from llpauc.data.inspection import inspect
from llpauc.data.interactions import Split
from llpauc.data.noise import clean_and_noise
from llpauc.data.readers import Reading, read_interactions, read_split
from llpauc.data.readers import load as load_folder
from llpauc.data.splits import split, split_random_per_user
from llpauc.errors import InputError, choose, listing
from llpauc.research.paper import PAPER

SEED = 2024
NOISY_BELOW = 3.0
HOLD_OUT = 0.1  # fraction for validation, and the same for test
VARIANTS = ("clean", "noise")


def _read_raw(files: Mapping[str, Path], *, variant: str, core: int = 0) -> Split:
    """The clean or the noise set, made from the first raw file."""
    name, path = next(iter(files.items()))
    reading = read_interactions(path, **PAPER["columns"][name])
    events, notes = reading.interactions, reading.notes
    if core:
        total = len(events)
        events = filters.k_core(events, core)
        notes = (*notes, f"{core}-core of all events: {len(events)} of {total} left")
    options: dict[str, Any] = {"valid": HOLD_OUT, "test": HOLD_OUT, "per_user": True, "seed": SEED}
    pair = clean_and_noise(events, threshold=NOISY_BELOW, split="temporal", **options)
    split = pair.clean if variant == "clean" else pair.noise
    return replace(split, notes=(*notes, *split.notes))


def _read_parts(files: Mapping[str, Path]) -> Split:
    train, valid, test = files.values()
    return read_split(train=train, valid=valid, test=test)


def _read_folder(files: Mapping[str, Path]) -> Split:
    split = load_folder(files[""])
    if isinstance(split, Reading):
        raise InputError(f"{files['']}: needs a train and a test file")
    return split


def _read_events(files: Mapping[str, Path]) -> Split:
    """All events of a file, split as `llpauc auto` splits them: in time."""
    events = read_interactions(next(iter(files.values()))).interactions
    return split(events, "auto", valid=0.1, test=0.2, seed=SEED)


def _read_movielens(files: Mapping[str, Path]) -> Split:
    """MovieLens-100k: ratings of at least 3, their 10-core, a fifth of each user's for the test."""
    events = read_interactions(files["u.data"]).interactions
    core = filters.k_core(filters.rated_at_least(events, 3), 10)
    return split_random_per_user(core, valid=0.0, test=0.2, seed=SEED)


@dataclass(frozen=True)
class Dataset:
    """The files of a data set, and how they are read."""

    folder: str  # below the data folder
    files: tuple[str, ...]  # a `.gz` may follow; the empty name is the folder itself
    read: Callable[[Mapping[str, Path]], Split]  # of name -> path
    source: str  # where to get the files
    any_file: bool = False  # one of the files is enough

    def find(self, data_folder: str | Path) -> dict[str, Path]:
        """Name -> path of the files; empty where the data set cannot be read."""
        paths: dict[str, Path] = {}
        for name in self.files:
            path = Path(data_folder) / self.folder / name
            options = (path, path.with_name(f"{name}.gz")) if name else (path,)
            existing = [p for p in options if (p.is_file() if name else p.is_dir())]
            if existing:
                paths[name] = existing[0]
        return paths if self.any_file or len(paths) == len(self.files) else {}


def _paper_dataset(family: str, variant: str) -> Dataset:
    declared = PAPER["datasets"][family]
    folder = declared["folder"].format(variant=variant)
    if "raw" not in declared:
        files = tuple(file.format(variant=variant) for file in declared["files"])
        return Dataset(folder, files, _read_parts, declared["source"])
    read = partial(_read_raw, variant=variant, core=declared.get("core", 0))
    return Dataset(folder, tuple(declared["raw"]), read, declared["source"], any_file=True)


_PAPER = {f"{f}-{v}": _paper_dataset(f, v) for f in PAPER["datasets"] for v in VARIANTS}
DATASETS: dict[str, Dataset] = {
    **_PAPER,
    "ml-100k": replace(_PAPER["ml-100k-clean"], read=_read_movielens),
    **{
        name: Dataset(folder, ("",), _read_folder, "its authors, split into train and test files")
        for name, folder in PAPER["split_folders"].items()
    },
    **{
        name: Dataset(Path(file).parent.name, (Path(file).name,), _read_events, "its authors")
        for name, file in PAPER["event_files"].items()
    },
}
PAPER_DATASETS: tuple[str, ...] = tuple(_PAPER)


def load(name: str, folder: str | Path) -> Split:
    """Read a data set of `DATASETS`, such as yelp-noise; the same files give the same split."""
    files = choose(DATASETS, name, "data set").find(folder)
    if not files:
        raise InputError(missing_message(name, folder))
    return DATASETS[name].read(files)


def available(folder: str | Path) -> tuple[str, ...]:
    """The names that `load` can read from this folder."""
    return tuple(name for name, dataset in DATASETS.items() if dataset.find(folder))


def missing_message(name: str, folder: str | Path) -> str:
    """One line on a missing data set: its files, where to get them, what is available."""
    dataset = DATASETS[name]
    files = (" or " if dataset.any_file else " and ").join(dataset.files)
    needs = f"needs {files} (plain or .gz)" if files else "does not exist"
    names = available(folder)
    now = f"available: {listing(names)}" if names else "no other data set is available either"
    place = Path(folder) / dataset.folder
    return f"{name}: {place} {needs}; get it from {dataset.source}; {now}"


def statistics(split: Split) -> dict[str, Any]:
    """The columns of the paper's table of data sets, and what it leaves out.

    Repeated events count, padding rows do not. Cold test users have no training event; the value
    is their fraction. A split made from a raw file has no duplicates and no leaks; its notes count
    those that were removed.
    """
    if split.test is None:
        raise InputError(f"statistics need a test part; the parts are: {listing(split.parts)}")
    parts = inspect(split).parts
    interactions = sum(len(part) for part in split.parts.values())
    return {
        "users": split.n_users,
        "items": split.n_items,
        "interactions": interactions,
        "sparsity": 1 - interactions / (split.n_users * split.n_items),
        "test users": parts["test"]["users"],
        "cold test users": parts["test"]["cold users"],
        "duplicates": {name: values["duplicates"] for name, values in parts.items()},
        "test pairs also in train": parts["test"]["also in train"],
        "also in valid": parts["test"].get("also in valid", 0),
    }
