"""The paper's data sets, by what is on disk.

Below the data folder: `adressa_clean/` and `adressa_noise/` as the authors give them, split;
`ml-100k/u.data`; `yelp/` and `amazon-book/` with the raw files of their owners. The raw ones become
a clean/noise pair here, by `llpauc.data.noise.clean_and_noise`.

What the paper says (Section 5.1, appendix): a rating below 3 is noisy. Clean drops the noisy events
and splits the rest. Noise keeps clean's test and mixes noisy events into train and valid, "on a
similar scale". MovieLens-100k: "the same settings as the other datasets".

What it leaves open, and what we decided:

- **The split**: each user's own events by time, 8:1:1. The paper prints no shares and no rule; it
  follows DiffRec, which goes by time. Adressa's files are cut 82 : 8.7 : 9.3. On MovieLens-100k
  the printed figures fit this split and threshold, and no other that we tried (Recall@20 / NDCG@20;
  the paper's row is the range over its losses, MF; ours is closed-form EASE, regularization 200):

  | | clean | noise |
  |---|---|---|
  | the paper | .190 to .205 / .128 to .141 | .166 to .182 / .103 to .118 |
  | by time and user, below 3 is noisy | .188 / .133 | .165 / .102 |
  | by time and user, below 4 is noisy | .184 / .111 | .143 / .071 |
  | at random by user, below 3 is noisy | .381 / .315 | .346 / .258 |
  | one cut in time, below 3 is noisy | .126 / .256 | .122 / .244 |

- **The core**: 10, of Yelp and Amazon-book only, taken over all events before any is called noisy.
  The paper prints none. That noise has users whom clean has not (Yelp 45,549 against 45,542) shows
  that it was not taken over the clean events, as that of DiffRec is. MovieLens-100k has 20 events
  a user as it comes.
- **Sizes**: train and valid of noise are exactly as large as those of clean, as in the authors'
  Adressa files. The share of noise is the share it has in the raw data.
- **Repeated events** of a pair: the earliest stays. The authors' Adressa keeps them in test.
- **The release**: Yelp's file grows from year to year and the paper does not date its own, so the
  sizes will differ from `llpauc.research.paper.published.SIZES`.
- **The seed** of the draw into noise: `SEED`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from llpauc.data import filters
from llpauc.data.inspection import inspect
from llpauc.data.interactions import Split
from llpauc.data.noise import clean_and_noise
from llpauc.data.readers import read_interactions, read_split
from llpauc.data.sources import ReadOptions
from llpauc.errors import InputError, choose, listing

SEED = 2024
NOISY_BELOW = 3.0
HELD_OUT = 0.1  # for validation, and again for test

VARIANTS = ("clean", "noise")


@dataclass(frozen=True)
class _Source:
    """A family of data sets: where it comes from, and how its raw file is read.

    Args:
        folder: below the data folder; of a family that comes split, without its variant.
        get_it: where to get it, for the message about a missing file.
        raw: name of each raw file that will do -> how to read it, the best first; a .gz may follow
            the name. Empty where the family comes split.
        core: k of the k-core of all events; 0 keeps all.
    """

    folder: str
    get_it: str
    raw: Mapping[str, ReadOptions]
    core: int = 0

    def below(self, variant: str) -> str:
        """The folder's name."""
        return self.folder if self.raw else f"{self.folder}_{variant}"

    def files(self, variant: str) -> dict[str, str]:
        """Part -> file, or the raw files by their own names."""
        if self.raw:
            return {file: file for file in self.raw}
        return {part: f"{self.below(variant)}.{part}.inter" for part in ("train", "valid", "test")}


_TABLE: ReadOptions = {"user": 0, "item": 1, "rating": 2, "timestamp": 3, "header": False}
_YELP: ReadOptions = {
    "user": "user_id", "item": "business_id", "rating": "stars", "timestamp": "date",
}  # fmt: skip
_AMAZON: ReadOptions = {
    "user": "reviewerID", "item": "asin", "rating": "overall", "timestamp": "unixReviewTime",
}  # fmt: skip

_SOURCES: dict[str, _Source] = {
    "adressa": _Source(
        "adressa", "the authors' repository (GitHub, swt-user/LLPAUC, its folder dataset)", {}
    ),
    "ml-100k": _Source(
        "ml-100k", "GroupLens (grouplens.org/datasets/movielens, ml-100k.zip)", {"u.data": _TABLE}
    ),
    "yelp": _Source(
        "yelp",
        "the Yelp Open Dataset (yelp.com/dataset, its JSON download)",
        {"yelp_academic_dataset_review.json": _YELP},
        core=10,
    ),
    # The 10-core of the 5-core is the 10-core. Reviews are read, but cost far more than ratings.
    "amazon-book": _Source(
        "amazon-book",
        "Amazon product data of 2014 (jmcauley.ucsd.edu/data/amazon, Books, ratings only)",
        {
            "ratings_Books.csv": _TABLE,
            "reviews_Books_5.json": _AMAZON,
            "reviews_Books.json": _AMAZON,
        },
        core=10,
    ),
}

_BY_NAME: dict[str, tuple[_Source, str]] = {
    f"{family}-{variant}": (source, variant)
    for family, source in _SOURCES.items()
    for variant in VARIANTS
}
NAMES: tuple[str, ...] = tuple(_BY_NAME)


@dataclass(frozen=True)
class DatasetFacts:
    """The paper's table of data sets, and what it leaves out.

    Args:
        users: distinct users over all parts, no padding row.
        items: distinct items, likewise.
        interactions: events over all parts, repeated ones included, as the paper counts.
        sparsity: 1 - interactions / (users items).
        test_users: users with a test event.
        cold_test_users: share of them without a training event.
        duplicates: part -> events beyond the first of their pair.
        in_train: distinct test pairs that stand in train too.
        in_valid: distinct test pairs that stand in valid too.
    """

    users: int
    items: int
    interactions: int
    sparsity: float
    test_users: int
    cold_test_users: float
    duplicates: dict[str, int]
    in_train: int
    in_valid: int


def load(name: str, folder: str | Path) -> Split:
    """The data set of that name from the data folder; the same files give the same split.

    Args:
        name: one of `NAMES`, such as adressa-clean or yelp-noise.
        folder: where the folders of the data sets lie.
    """
    source, variant = choose(_BY_NAME, name, "data set")
    found = _find(source, variant, Path(folder))
    if not found:
        raise InputError(missing(name, folder))
    if not source.raw:
        return read_split(train=found["train"], valid=found["valid"], test=found["test"])
    raw, path = next(iter(found.items()))
    reading = read_interactions(path, **source.raw[raw])
    events, notes = reading.interactions, reading.notes
    if source.core:
        whole = len(events)
        events = filters.k_core(events, source.core)
        notes = (*notes, f"{source.core}-core of all events: {len(events)} of {whole} left")
    pair = clean_and_noise(
        events, threshold=NOISY_BELOW, split="temporal", per_user=True,
        valid=HELD_OUT, test=HELD_OUT, seed=SEED,
    )  # fmt: skip
    split = pair.clean if variant == "clean" else pair.noise
    return replace(split, notes=(*notes, *split.notes))


def available(folder: str | Path) -> tuple[str, ...]:
    """The names that `load` can load from this folder now."""
    return tuple(name for name, known in _BY_NAME.items() if _find(*known, Path(folder)))


def missing(name: str, folder: str | Path) -> str:
    """One line for a data set that is not there: the file, where to get it, what can be run."""
    source, variant = choose(_BY_NAME, name, "data set")
    below = Path(folder) / source.below(variant)
    files = (" or " if source.raw else " and ").join(source.files(variant).values())
    ready = available(folder)
    now = f"ready now: {listing(ready)}" if ready else "no other data set lies there either"
    return f"{name}: {below} needs {files} (plain or .gz); get it from {source.get_it}; {now}"


def both_sides(families: Sequence[str], there: Collection[str], folder: str | Path) -> list[str]:
    """The families of whose sets both the clean and the noisy one are `there`; one must be."""
    found = [f for f in families if {f"{f}-clean", f"{f}-noise"} <= set(there)]
    if not found:
        side = "noise" if f"{families[0]}-clean" in there else "clean"
        raise InputError(missing(f"{families[0]}-{side}", folder))
    return found


def facts(split: Split) -> DatasetFacts:
    """Count what the paper's table has and what it leaves out.

    A split that `load` makes from a raw file has no duplicates and no leaks: they were dropped, and
    its notes say how many.
    """
    if split.test is None:
        raise InputError(f"the facts need a test part; there is only: {listing(split.parts)}")
    parts = inspect(split).parts
    interactions = sum(len(part) for part in split.parts.values())
    return DatasetFacts(
        users=split.n_users,
        items=split.n_items,
        interactions=interactions,
        sparsity=1 - interactions / (split.n_users * split.n_items),
        test_users=parts["test"]["users"],
        cold_test_users=parts["test"]["cold users"],
        duplicates={name: figures["duplicates"] for name, figures in parts.items()},
        in_train=parts["test"]["also in train"],
        in_valid=parts["test"].get("also in valid", 0),
    )


def _find(source: _Source, variant: str, folder: Path) -> dict[str, Path]:
    """All parts of a family that comes split, or the raw files there are; empty: not there."""
    found: dict[str, Path] = {}
    wanted = source.files(variant)
    for key, file in wanted.items():
        plain = folder / source.below(variant) / file
        there = [path for path in (plain, plain.with_name(f"{file}.gz")) if path.is_file()]
        if there:
            found[key] = there[0]
    return found if source.raw or len(found) == len(wanted) else {}
