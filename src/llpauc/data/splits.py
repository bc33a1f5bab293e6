"""Divide events into train, validation and test parts.

Every split follows these rules:

- A user-item pair is in one part only. Of several events of a pair the earliest is kept (of one
  time the lowest rated); the others are dropped, counted and noted.
- The events of a part depend on the events and the seed, not on the order of the rows. A part
  keeps the order of the rows.
- A part that was requested and is empty raises an error.
- The parts share the id maps of the data.

`SplitRule` is the definition of a split. It is applied in memory here, and out of core by
`llpauc.data.out_of_core`, which draws random events in another way.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from llpauc.data.ids import IdMap
from llpauc.data.interactions import Interactions, Split, pair_codes, sorted_rows
from llpauc.errors import InputError, check_at_least, choose, listing

Seed = int | np.random.Generator
Positions = npt.NDArray[np.int64]
PartCodes = npt.NDArray[np.int8]  # 0 train, 1 valid, 2 test
Values = npt.NDArray[np.uint64]

# Rounds halves up in spite of floating-point error: 0.1 * 25 is 2.5 and 0.7 * 10 is 7.
_HALF = 0.5 + 1e-9
MOST_COLD = 0.5  # with more cold held-out users, one cut in time would test the fallback only
OPTIMISTIC = (
    "the events have timestamps, but this split is random: models learn from events that are later"
    " than those they are tested on, so the values are optimistic; --how auto splits in time"
)


class TooFewEvents(InputError):
    """A part that was requested is empty."""


def generator(seed: Seed) -> np.random.Generator:
    """A Generator from an integer, or the one passed in."""
    if isinstance(seed, np.random.Generator):
        return seed
    return np.random.default_rng(check_at_least("seed", seed, 0))


# --- the rules ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SplitRule:
    """What a split holds out."""

    title: str  # in notes
    by_time: bool  # the latest events are held out; otherwise events are drawn at random
    per_user: bool  # events of every user are held out; otherwise one cut is made over all events
    valid: float  # size of the validation part; 0 if there is none
    test: float
    counted: bool = False  # whether sizes are numbers of events; otherwise they are fractions
    auto: bool = False  # `for_times` and `for_cut` choose by the data

    def for_times(self, usable: bool) -> SplitRule:
        """The rule for events with or without usable times."""
        if not self.auto or usable:
            return self
        return split_rule("random_per_user", valid=self.valid, test=self.test)

    def for_cut(self, counts: Positions) -> SplitRule:
        """The rule for events that one cut in time would divide so; `counts` as `cut_counts`."""
        cold, held_out, *sizes = counts.tolist()
        if not self.auto or self.per_user:
            return self
        asked = True, *self.requested
        if any(part and not size for part, size in zip(asked, sizes, strict=True)):
            reason = "one cut would leave a part empty"
        elif cold > MOST_COLD * held_out:
            reason = (
                f"one cut would leave {cold / held_out:.0%} of the held-out users without history;"
                " --how temporal does that"
            )
        else:
            return self
        rule = split_rule("temporal_per_user", valid=self.valid, test=self.test)
        return replace(rule, title=f"{rule.title} ({reason})")

    @property
    def requested(self) -> tuple[bool, bool]:
        """Whether there is to be a validation part, and a test part."""
        return self.valid > 0, self.test > 0

    def counts(self, n: Positions) -> tuple[Positions, Positions]:
        """Of n events, how many are for validation and for test."""
        if self.counted:
            enough = n > self.valid + self.test
            return np.where(enough, int(self.valid), 0), np.where(enough, int(self.test), 0)
        # Rounded fractions; at least one event stays in train, validation is reduced first.
        n_test = np.floor(self.test * n + _HALF).astype(np.int64)
        n_test = np.minimum(n_test, np.maximum(n - 1, 0))
        n_valid = np.floor(self.valid * n + _HALF).astype(np.int64)
        return np.minimum(n_valid, np.maximum(n - 1 - n_test, 0)), n_test

    def note(self, seed: Seed | None) -> str:
        """One line that describes the split."""
        fractions = {"validation": self.valid, "the test": self.test}
        sizes = ", ".join(f"{100 * n:g}% for {part}" for part, n in fractions.items() if n)
        sizes = f": {sizes or 'nothing held out'}"
        if self.counted:
            sizes = f", {self.valid} for validation"
        if not self.by_time:
            given = isinstance(seed, np.random.Generator)
            return f"{self.title}{sizes}, {'a given Generator' if given else f'{seed=}'}"
        ties = (
            "of one time ordered by item id" if self.per_user else "at a cut go to the later part"
        )
        return f"{self.title}{sizes}; events {ties}"


def split_rule(how: str, **options: Any) -> SplitRule:
    """The rule of the split of that name in `SPLITS`.

    Args:
        how: its name.
        options: of that split, without the seed; an unknown one raises `InputError`.
    """
    parameters = inspect.signature(choose(SPLITS, how, "split")).parameters
    known = {n: p.default for n, p in parameters.items() if n not in ("data", "seed")}
    for name in options:
        if name not in known:
            raise InputError(
                f"the split {how!r} has no option {name!r}; it takes: {listing(known)}"
            )
    given = known | options
    if how == "leave_k_out":
        k = check_at_least("k", given["k"], 1)
        valid_k = check_at_least("valid_k", given["valid_k"], 0)
        by = choose({"time": "by time", "random": "at random"}, given["by"], "order (by)")
        return SplitRule(f"leave {k} out {by}", by == "by time", True, valid_k, k, counted=True)
    valid, test = given["valid"], given["test"]
    for name, fraction in (("valid", valid), ("test", test)):
        if not 0.0 <= fraction < 1.0:
            raise InputError(f"{name} must be a fraction in [0, 1), got {fraction!r}")
    if not valid + test < 1.0:
        raise InputError(
            f"valid + test must be below 1, got {valid!r} + {test!r}; train needs some events"
        )
    if how in ("auto", "temporal", "temporal_per_user"):
        per_user = bool(given.get("per_user"))
        title = "the last events of each user" if per_user else "one cut in time for all users"
        return SplitRule(title, True, per_user, valid, test, auto=how == "auto")
    title = "random per user" if how == "random_per_user" else "random over all events"
    return SplitRule(title, False, how == "random_per_user", valid, test)


def per_user_codes(
    order: Positions, sizes: Positions, n_valid: Positions, n_test: Positions
) -> PartCodes:
    """Hold out the last events of each user.

    Args:
        order: positions of the events, sorted by user and then in the order they are held out.
        sizes: events of each user.
        n_valid, n_test: how many of them to hold out; the last ones go to test.
    """
    from_end = np.repeat(np.cumsum(sizes), sizes) - np.arange(len(order))  # 1 is the last
    codes = np.zeros(len(order), np.int8)
    codes[order[from_end <= np.repeat(n_valid + n_test, sizes)]] = 1
    codes[order[from_end <= np.repeat(n_test, sizes)]] = 2
    return codes


def find_cuts(
    rule: SplitRule, n: int, values: Callable[[], Iterable[Values]]
) -> dict[int, np.uint64]:
    """Part code -> the value from which events belong to that part or a later one.

    Args:
        rule: a split that is not per user.
        n: number of events.
        values: iterates over the values of all events in chunks, the same at each call.
    """
    n_valid, n_test = (int(count[0]) for count in rule.counts(np.array([n])))
    held = {1: n_valid + n_test, 2: n_test}
    return {
        code: nth_smallest(values, n - count)
        for code, count in held.items()
        if count > 0 and rule.requested[code - 1]
    }


def cut_codes(values: Values, cuts: dict[int, np.uint64]) -> PartCodes:
    codes = np.zeros(len(values), np.int8)
    for code, cut in cuts.items():
        codes[values >= cut] = code
    return codes


def cut_counts(users: npt.NDArray[np.integer[Any]], codes: PartCodes) -> Positions:
    """Cold held-out users, all held-out users, and the events of train, valid and test."""
    train, held_out = np.unique(users[codes == 0]), np.unique(users[codes > 0])
    cold = len(np.setdiff1d(held_out, train, assume_unique=True))
    return np.array([cold, len(held_out), *np.bincount(codes, minlength=3)])


def cut_notes(cuts: dict[int, np.uint64]) -> list[str]:
    """Notes about the times of the cuts of a temporal split."""
    notes = []
    for code, cut in cuts.items():
        top = np.uint64(1 << 63)  # the inverse of `sortable`
        time = np.array([cut ^ top if cut & top else ~cut], np.uint64).view(np.float64)[0]
        notes.append(f"{('valid', 'test')[code - 1]} starts at timestamp {float(time)!r}")
    return notes


def sortable(times: npt.NDArray[np.float64]) -> Values:
    """Unsigned integers in the order of the times."""
    bits = (times + 0.0).view(np.uint64)  # -0.0 + 0.0 is 0.0
    negative = bits >> np.uint64(63) == 1
    return np.where(negative, ~bits, bits | np.uint64(1 << 63))


def nth_smallest(chunks: Callable[[], Iterable[Values]], n: int) -> np.uint64:
    """The value at position `n` (from 0) of all values in ascending order, in four passes.

    >>> int(nth_smallest(lambda: iter([np.array([7, 5], np.uint64), np.array([6], np.uint64)]), 1))
    6
    """
    prefix = 0
    for shift in (48, 32, 16, 0):
        digits = np.zeros(1 << 16, np.int64)
        for values in chunks():
            rest = values >> np.uint64(shift)
            if shift < 48:
                rest = rest[rest >> np.uint64(16) == prefix]
            digits += np.bincount((rest & np.uint64(0xFFFF)).astype(np.int64), minlength=1 << 16)
        up_to = np.cumsum(digits)
        digit = int(np.searchsorted(up_to, n, side="right"))
        n -= int(up_to[digit] - digits[digit])
        prefix = (prefix << 16) | digit
    return np.uint64(prefix)


def train_only_note(held_out: Positions, rule: SplitRule) -> list[str]:
    """A note on users without a held-out event, from the number held out of each."""
    without = int(np.count_nonzero(held_out == 0))
    if not without or not any(rule.requested):
        return []
    return [
        f"{without} of {len(held_out)} users have too few events to hold any out; all of theirs "
        "are in train"
    ]


def dropped_note(dropped: int, timed: bool) -> list[str]:
    """A note on repeated events of a pair."""
    kept = "the earliest" if timed else "one"
    text = f"{dropped} repeated events of a user-item pair dropped, {kept} kept"
    return [text] if dropped else []


def cold_note(cold: int, n_users: int) -> list[str]:
    """A note on test users without a training event."""
    return [f"{cold} of {n_users} test users have no training event"] if cold else []


def check_parts(sizes: dict[str, int], rule: SplitRule, note: str) -> None:
    """Raise `InputError` if a requested part is empty."""
    for part, requested in zip(("train", "valid", "test"), (True, *rule.requested), strict=True):
        if requested and not sizes[part]:
            raise TooFewEvents(
                f"the {part} part is empty, out of {sum(sizes.values())} events ({note}); use more "
                "data, other fractions or counts, or another kind of split"
            )


# --- in memory ------------------------------------------------------------------------------------


def canonical_order(data: Interactions, repeated_too: bool = False) -> Positions:
    """One position for each user-item pair, sorted by the ids (as text).

    Of several events of a pair the earliest is taken, or with `repeated_too` all of them. Random
    draws are made in this order, so that a seed gives the same events whatever the order of the
    rows.

    >>> data = Interactions.of(["b", "a", "b"], ["x", "y", "x"], timestamps=[2, 3, 1])
    >>> canonical_order(data).tolist()
    [1, 2]
    """
    user_place, item_place = _text_order(data.user_ids), _text_order(data.item_ids)
    keys = pair_codes(user_place[data.users], item_place[data.items], data.n_items)
    order = sorted_rows(keys, data.timestamps, data.ratings, data.types, data.weights)
    if repeated_too:
        return order
    first: npt.NDArray[np.bool_] = np.diff(keys[order], prepend=-1) != 0
    return order[first]


def _text_order(ids: IdMap) -> Positions:
    """The position of each index in the order of the ids' text."""
    return _inverse(np.asarray(pc.array_sort_indices(ids.text)))


def _inverse(permutation: npt.NDArray[Any]) -> Positions:
    inverse = np.empty(len(permutation), dtype=np.int64)
    inverse[permutation] = np.arange(len(permutation))
    return inverse


def has_times(data: Interactions) -> bool:
    """Whether every event has a timestamp, and they differ."""
    times = data.timestamps
    if times is None or not len(times):
        return False
    return bool(np.isfinite(times).all() and times.min() < times.max())


def times_of(data: Interactions, purpose: str) -> npt.NDArray[np.float64]:
    """The timestamps, or an error if there are none or some are not finite."""
    if data.timestamps is None:
        raise InputError(
            f"{purpose} needs timestamps and this data has none; name their column (--timestamp) "
            "or use a random split"
        )
    bad = np.flatnonzero(~np.isfinite(data.timestamps))
    if len(bad):
        raise InputError(
            f"{purpose} needs finite timestamps, got {data.timestamps[bad[0]]} in event {bad[0]}; "
            "drop or fill such rows"
        )
    return data.timestamps


def _apply(data: Interactions, rule: SplitRule, seed: Seed | None) -> Split:
    """Split the events in memory."""
    timed = has_times(data)
    rule = rule.for_times(timed)
    if rule.by_time:
        times = times_of(data, f"the split '{rule.title}'")
    elif seed is None:
        raise InputError(
            f"the split '{rule.title}' needs a seed; give an integer such as seed=2024"
        )
    # Events with weights add up, also where the pair is in an earlier part. At random, the events
    # of a pair stay together.
    weighted = data.weights is not None
    order = canonical_order(data, repeated_too=weighted and rule.by_time)
    n = len(order)
    if not n:
        raise TooFewEvents("there is no event to split; check the file and its filters")

    # The order in which events are held out: by time, or a random permutation.
    place = (
        _inverse(np.argsort(times[order], kind="stable"))
        if rule.by_time
        else generator(seed or 0).permutation(n)
    )
    users, more_notes = data.users[order], []
    if not rule.per_user:
        values = sortable(times[order]) if rule.by_time else (n - 1 - place).astype(np.uint64)
        cuts = find_cuts(rule, n, lambda: [values])
        codes = cut_codes(values, cuts)
        more_notes = cut_notes(cuts) if rule.by_time else []
        rule = rule.for_cut(cut_counts(users, codes))
    if rule.per_user:
        sizes = np.diff(np.flatnonzero(np.diff(users, prepend=-1)), append=n)
        n_valid, n_test = rule.counts(sizes)
        # All keys differ, so that the fast, unstable sort has one result.
        by_user = np.argsort(np.repeat(np.arange(len(sizes)), sizes) * n + place)
        codes = per_user_codes(by_user, sizes, n_valid, n_test)
        more_notes = train_only_note(n_valid + n_test, rule)
    notes = [rule.note(seed), *more_notes]
    if timed and not rule.by_time:
        notes.append(OPTIMISTIC)

    # The parts, with their rows in the order of the data.
    row_codes = np.full(len(data), -1, dtype=np.int8)
    row_codes[order] = codes
    if weighted and not rule.by_time:
        all_rows = canonical_order(data, repeated_too=True)
        pairs = pair_codes(data.users[all_rows], data.items[all_rows], data.n_items)
        row_codes[all_rows] = codes[np.cumsum(np.diff(pairs, prepend=-1) != 0) - 1]
    train, valid, test = (data.take(row_codes == code) for code in range(3))
    check_parts({"train": len(train), "valid": len(valid), "test": len(test)}, rule, notes[0])
    if weighted:
        notes.append(f"{data.duplicates} repeated events of a user-item pair add up")
    else:
        notes += dropped_note(len(data) - n, data.timestamps is not None)
    in_train = np.zeros(data.n_users, dtype=bool)
    in_train[train.users] = True
    test_users = np.unique(test.users)
    notes += cold_note(int(np.count_nonzero(~in_train[test_users])), len(test_users))
    has_valid, has_test = rule.requested
    return Split(train, valid if has_valid else None, test if has_test else None, tuple(notes))


def split_auto(
    data: Interactions, *, valid: float = 0.1, test: float = 0.2, seed: Seed | None = None
) -> Split:
    """Split in time where every event has a timestamp, otherwise at random per user.

    In time means one cut for all users; or the last events of each user, where one cut would leave
    a part empty, or more than half of the held-out users without a training event. The notes name
    the choice. All commands split like this unless another split is requested. Args as in
    `split_random_per_user`; the seed is for events without timestamps.

    >>> data = Interactions.of(["ann", "bob"] * 5, range(10), timestamps=range(10))
    >>> split_auto(data).test.timestamps.tolist()
    [8.0, 9.0]
    """
    return _apply(data, split_rule("auto", valid=valid, test=test), seed)


def split_random_per_user(
    data: Interactions, *, valid: float = 0.1, test: float = 0.2, seed: Seed
) -> Split:
    """Hold out the same fraction of every user's events, drawn at random.

    Of n events a user gives round(test n) to test and round(valid n) to validation (halves up),
    and always keeps one for training: with the default fractions a user needs 3 events for a test
    event and 5 for a validation event. Users with fewer stay in train; this is noted.

    Args:
        data: events; duplicates of a pair are dropped first.
        valid: fraction for validation, at least 0; with 0 the split has no such part.
        test: fraction for test, likewise; valid + test < 1.
        seed: integer >= 0, or a Generator.

    >>> data = Interactions.of(["ann"] * 10, range(10))
    >>> {name: len(part) for name, part in split_random_per_user(data, seed=1).parts.items()}
    {'train': 7, 'valid': 1, 'test': 2}
    """
    return _apply(data, split_rule("random_per_user", valid=valid, test=test), seed)


def split_random(data: Interactions, *, valid: float = 0.1, test: float = 0.2, seed: Seed) -> Split:
    """Hold out a fraction of all events, drawn at random regardless of their users.

    A user may have no training event; such test users are counted in the notes. Args as in
    `split_random_per_user`.

    >>> data = Interactions.of(["ann", "bob"] * 5, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4])
    >>> {name: len(part) for name, part in split_random(data, seed=1).parts.items()}
    {'train': 7, 'valid': 1, 'test': 2}
    """
    return _apply(data, split_rule("random", valid=valid, test=test), seed)


def split_temporal(
    data: Interactions, *, valid: float = 0.1, test: float = 0.2, per_user: bool = False
) -> Split:
    """Train on the earliest events, test on the latest.

    One cut in time for all users (default): every training event is strictly before every
    validation event, and those are strictly before every test event. Events at the time of a cut
    go to the later part, so that a held-out part is never smaller than requested.

    With `per_user` the last events of each user are held out, as many as `split_random_per_user`
    takes; events of one user and time are ordered by item id. Users with too few events stay in
    train. One user's training events may then be later than another user's test events.

    Args:
        data: events with timestamps; duplicates of a pair are dropped first, the earliest kept.
        valid, test: fractions, as in `split_random_per_user`.
        per_user: cut the history of each user separately.

    >>> data = Interactions.of(list("abcde"), list("vwxyz"), timestamps=[5, 1, 4, 2, 3])
    >>> split = split_temporal(data, valid=0.2, test=0.2)
    >>> split.test.timestamps.tolist(), split.valid.timestamps.tolist()
    ([5.0], [4.0])
    """
    return _apply(data, split_rule("temporal", valid=valid, test=test, per_user=per_user), None)


def split_leave_k_out(
    data: Interactions,
    *,
    k: int = 1,
    valid_k: int = 1,
    by: Literal["time", "random"] = "time",
    seed: Seed | None = None,
) -> Split:
    """Hold out k events of every user for test and `valid_k` for validation.

    By time the last k are tested and the `valid_k` before them validated (events of one time in
    the order of item ids); at random they are drawn. A user with fewer than k + valid_k + 1 events
    stays in train; this is noted.

    Args:
        data: events, with timestamps if by="time"; duplicates of a pair are dropped first.
        k: test events per user, at least 1.
        valid_k: validation events per user, at least 0; with 0 the split has no such part.
        by: "time" or "random".
        seed: integer >= 0, or a Generator; needed for by="random" only.

    >>> data = Interactions.of(["ann"] * 3 + ["bob"], list("xyzx"), timestamps=[1, 3, 2, 9])
    >>> split = split_leave_k_out(data)
    >>> list(split.item_ids.ids(split.test.items)), len(split.train)
    (['y'], 2)
    """
    return _apply(data, split_rule("leave_k_out", k=k, valid_k=valid_k, by=by), seed)


SPLITS: dict[str, Callable[..., Split]] = {
    "auto": split_auto,
    "temporal": split_temporal,
    "temporal_per_user": partial(split_temporal, per_user=True),
    "random_per_user": split_random_per_user,
    "random": split_random,
    "leave_k_out": split_leave_k_out,
}


def split(data: Interactions, how: str = "auto", *, seed: Seed, **options: Any) -> Split:
    """The split of that name in `SPLITS`, with the options of that split.

    The seed is used by random splits only; an unknown option raises `InputError`.

    >>> data = Interactions.of(list("abcde"), list("vwxyz"), timestamps=[5, 1, 4, 2, 3])
    >>> len(split(data, "temporal", seed=1, valid=0.0, test=0.4).test)
    2
    """
    return _apply(data, split_rule(how, **options), seed)


def hold_out(data: Split, fraction: float, seed: Seed, how: str = "auto") -> Split:
    """A fraction of the training events becomes the validation part.

    Args:
        data: a split; its validation part is replaced.
        fraction: of its training events.
        seed: of a random split.
        how: a name in `SPLITS`; by default in time where there are timestamps.

    Raises:
        TooFewEvents: there are too few events to hold any out.
    """
    held = split(data.train, how, seed=seed, valid=fraction, test=0.0)
    return Split(held.train, held.valid, data.test, held.notes)


def sample_users(part: Interactions, most: int, seed: int) -> Interactions:
    """The events of at most this many users, drawn at random."""
    users = np.unique(part.users)
    if len(users) <= most:
        return part
    drawn = np.random.default_rng(seed).choice(users, most, replace=False)
    return part.take(np.isin(part.users, drawn))
