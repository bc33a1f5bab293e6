"""The paper's two training settings, clean and noise, from raw ratings or dwell times.

docs/explanation/paper.md has the properties of the published pairs that are reproduced here.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from llpauc.data import filters, splits
from llpauc.data.interactions import Interactions, Split, join
from llpauc.data.writers import write_splits
from llpauc.errors import InputError, check_at_least

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class CleanNoisePair:
    """Two splits with the same test set, and which events of the second are noisy.

    `noisy_train` and `noisy_valid` mark the noisy events of `noise.train` and `noise.valid`
    (`noisy_valid` is None without a validation part). If files keep the ratings, these masks are
    `ratings < threshold`. Each split has id maps of the users and items it uses.
    """

    clean: Split
    noise: Split
    noisy_train: Mask
    noisy_valid: Mask | None
    notes: tuple[str, ...]


def clean_and_noise(
    data: Interactions,
    *,
    threshold: float,
    split: str = "random_per_user",
    core: int = 0,
    seed: splits.Seed,
    **options: Any,
) -> CleanNoisePair:
    """Make the clean and the noise setting from raw events.

    Clean: events with a rating below the threshold are noisy and dropped; the rest is split by
    `splits.split` with this seed.

    Noise: the test set stays. Train and valid are drawn again, each with the size it has in clean,
    uniformly without replacement from its clean and its noisy events together. So the fraction of
    noise in a part is that of the raw data. A noisy event belongs to a part

    - by time, if the split is by time: before the first validation event to train, before the
      first test event to valid, later ones are not used (the first event of its user, if the split
      is per user);
    - at random otherwise, in proportion to the sizes of the clean parts; those of test are unused.

    A noisy event of a pair that also has a clean event, in any part, is not used, so that no test
    pair is repeated.

    Args:
        data: raw events whose `ratings` hold the rating or the dwell time.
        threshold: events below it are noisy. The paper: 3 on ratings 1-5 (Yelp, Amazon-book),
            10 on seconds of dwell time (Adressa); DiffRec: 4 on MovieLens.
        split: a name in `splits.SPLITS` other than "auto"; `options` are those of that
            split (valid, test, k, ...).
        core: with k >= 2 the clean events are reduced to their k-core first and noisy events are
            used for its users only (DiffRec); 0 or 1 keeps all (Adressa).
        seed: integer >= 0, or a Generator.

    **Reference** Section 5.1, "Training Settings". **Departs from the paper** only where it is
    unspecific ("a similar scale"): sizes are equal, as in the authors' Adressa files; test pairs
    never recur in train or valid, while in those files 108 do.

    >>> data = Interactions.of(["ann"] * 10 + ["bob"] * 10, [*range(10)] * 2, ratings=[1, 5] * 10)
    >>> pair = clean_and_noise(data, threshold=3, valid=0.2, test=0.2, seed=0)
    >>> [len(part) for part in pair.clean.parts.values()]
    [6, 2, 2]
    >>> [len(part) for part in pair.noise.parts.values()]
    [6, 2, 2]
    >>> (pair.noise.train.ratings < 3).tolist() == pair.noisy_train.tolist()
    True
    """
    check_at_least("core", core, 0)
    rule = splits.split_rule(split, **options)
    if rule.auto:
        raise InputError("a clean/noise pair needs a fixed split, such as temporal, not 'auto'")
    if rule.by_time:
        splits.times_of(data, "a clean/noise pair split by time")
    noisy = _below(data, threshold)
    clean_data, noisy_data = data.take(~noisy), data.take(noisy)
    if core > 1:
        clean_data = clean_data.take(filters.core_mask(clean_data, core))
        if not len(clean_data):
            raise InputError(f"the {core}-core of the clean events is empty; use a smaller core")
        in_core = np.bincount(clean_data.users, minlength=data.n_users) > 0
        noisy_data = noisy_data.take(in_core[noisy_data.users])
    clean = splits.split(clean_data, split, seed=seed, **options)
    # One noisy event per pair, in canonical order, without pairs that have a clean event.
    noisy_data = noisy_data.take(splits.canonical_order(noisy_data))
    known = np.asarray(clean_data.matrix[noisy_data.users, noisy_data.items]).ravel() > 0
    noisy_data = noisy_data.take(~known)

    # The part of each noisy event, and the draw.
    rng = seed if isinstance(seed, np.random.Generator) else splits.generator(seed).spawn(1)[0]
    if rule.by_time:
        codes = _codes_by_time(noisy_data, clean, per_user=rule.per_user)
    else:
        codes = _codes_at_random(len(noisy_data), clean, rng)
    train, noisy_train = _draw(clean.train, noisy_data.take(codes == 0), rng)
    valid, noisy_valid = None, None
    if clean.valid is not None:
        valid, noisy_valid = _draw(clean.valid, noisy_data.take(codes == 1), rng)

    unused = int(np.count_nonzero(codes == 2))
    head = [
        f"noisy: rating below {threshold:g}: {int(noisy.sum())} of {len(data)} events",
        *([f"{core}-core of the clean events: {len(clean_data)} left"] if core > 1 else []),
    ]
    drawn = [
        f"noise {name}: {len(mask)} events, {100 * mask.mean():.1f} % of them noisy"
        for name, mask in (("train", noisy_train), ("valid", noisy_valid))
        if mask is not None
    ]
    rest = f"{unused} noisy events belong to the test part and are not used; test is the clean one"
    notes = (*head, *(f"clean split: {note}" for note in clean.notes), *drawn, rest)
    noise = _compact(Split(train, valid, clean.test, notes))
    clean = _compact(replace(clean, notes=(*head, *clean.notes)))
    return CleanNoisePair(clean, noise, noisy_train, noisy_valid, notes)


def write_pair(
    pair: CleanNoisePair, folder: str | os.PathLike[str], format: str = "tsv"
) -> dict[str, dict[str, Path]]:
    """Write both splits, to the subfolders `clean` and `noise`: all files or none.

    Formats and names are those of `write_split`.
    """
    named = {"clean": pair.clean, "noise": pair.noise}
    written = write_splits({Path(folder) / name: part for name, part in named.items()}, format)
    return dict(zip(named, written, strict=True))


def _below(data: Interactions, threshold: float) -> Mask:
    """Which events are noisy; none or all is an error."""
    if data.ratings is None:
        raise InputError(
            "the clean/noise pair needs ratings or dwell times and this data has none; "
            "name their column"
        )
    if not len(data):
        raise InputError("there is no event to split; check the file and its filters")
    missing = np.flatnonzero(np.isnan(data.ratings))
    if len(missing):
        raise InputError(
            f"the rating of event {missing[0]} is not a number; drop or fill such rows"
        )
    # float32 on both sides, or a rating of 0.7 would be below a threshold of 0.7
    noisy = np.asarray(data.ratings < np.float32(threshold))
    if noisy.all() or not noisy.any():
        raise InputError(
            f"{'no' if not noisy.any() else 'every'} rating is below the threshold {threshold!r}; "
            f"ratings are {data.ratings.min():g} to {data.ratings.max():g}: choose one between"
        )
    return noisy


def _codes_by_time(noisy: Interactions, clean: Split, *, per_user: bool) -> splits.PartCodes:
    """0, 1, 2 for events in the period of train, valid, test.

    A user without a held-out event has the period of train only.
    """
    assert noisy.timestamps is not None
    codes = np.zeros(len(noisy), dtype=np.int8)
    for code, part in enumerate((clean.valid, clean.test), start=1):
        if part is not None:
            assert part.timestamps is not None
            first = np.full(clean.n_users, np.inf if per_user else part.timestamps.min())
            if per_user:
                np.minimum.at(first, part.users, part.timestamps)
            codes[noisy.timestamps >= first[noisy.users]] = code
    return codes


def _codes_at_random(n: int, clean: Split, rng: np.random.Generator) -> splits.PartCodes:
    """0, 1, 2 in random order, in proportion to the sizes of the clean parts."""
    sizes = [0 if part is None else len(part) for part in (clean.train, clean.valid, clean.test)]
    ends = np.rint(n * np.cumsum(sizes) / sum(sizes)).astype(np.int64)
    return np.searchsorted(ends[:2], rng.permutation(n), side="right").astype(np.int8)


def _draw(
    clean: Interactions, noisy: Interactions, rng: np.random.Generator
) -> tuple[Interactions, Mask]:
    """As many events as `clean` has, drawn from both together, and which of them are noisy."""
    pool = join([clean, noisy])
    order = splits.canonical_order(pool)  # makes the draw independent of the order of rows
    chosen = np.sort(rng.choice(len(pool), size=len(clean), replace=False, shuffle=False))
    positions = order[chosen]
    return pool.take(positions), positions >= len(clean)


def _compact(split: Split) -> Split:
    """The same split without users and items that no part uses."""
    whole = join(list(split.parts.values())).compact()
    ids = whole.user_ids, whole.item_ids
    parts = {name: part.remap(*ids) for name, part in split.parts.items()}
    return Split(**parts, notes=split.notes)
