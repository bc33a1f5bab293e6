"""Cut one table of events into train, validation and test, and say what was decided on the way.

Rules that every split here keeps:

- A user-item pair lies in one part only. Of a pair's several events the earliest stays (the first
  row where there are no timestamps); the others are dropped, counted and noted.
- Which events a part gets depends on the ids, the timestamps and the seed, not on the order of the
  rows. (Only a pair's events of one and the same time are told apart by their order.) The rows of a
  part stay in the order they came in.
- A part that was asked for and came out empty is an error, not an empty table.
- The parts share the id maps of the data that came in.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from llpauc.data.interactions import IdMap, Interactions, Split
from llpauc.errors import InputError, check_at_least, choose, listing

Seed = int | np.random.Generator
Positions = npt.NDArray[np.int64]

# A half-up rounding that forgives the float: 0.1 * 25 is 2.5 and 0.7 * 10 is 7.
_HALF = 0.5 + 1e-9


def generator(seed: Seed) -> np.random.Generator:
    """A Generator from a whole number, or the one passed in."""
    if isinstance(seed, np.random.Generator):
        return seed
    return np.random.default_rng(check_at_least("seed", seed, 0))


def canonical_order(data: Interactions) -> Positions:
    """One position for each user-item pair, sorted by the outside ids (as text).

    Of several events of a pair the earliest is taken. Drawing by place in this order is what makes
    a seed give the same events however the rows of the file were ordered.

    >>> data = Interactions.of(["b", "a", "b"], ["x", "y", "x"], timestamps=[2, 3, 1])
    >>> canonical_order(data).tolist()
    [1, 2]
    """
    user_place, item_place = _text_place(data.user_ids), _text_place(data.item_ids)
    key = user_place[data.users] * max(data.n_items, 1) + item_place[data.items]
    order = np.argsort(key)
    key = key[order]
    again = key[1:] == key[:-1]
    if not again.any():
        return order
    twins = np.zeros(len(key), dtype=bool)
    twins[1:] |= again
    twins[:-1] |= again
    rows = order[twins]
    time = np.zeros(len(rows)) if data.timestamps is None else data.timestamps[rows]
    order[twins] = rows[np.lexsort((rows, time, key[twins]))]
    return order[np.concatenate(([True], ~again))]


def hold_out(split: Split, share: float, seed: Seed) -> Split:
    """With a share of each user's training events as the validation part; the test part stays.

    Raises:
        InputError: too few events to hold any out.
    """
    held = split_random_per_user(split.train, valid=share, test=0.0, seed=seed)
    return Split(held.train, held.valid, split.test, held.notes)


def split_random_per_user(
    data: Interactions, *, valid: float = 0.1, test: float = 0.2, seed: Seed
) -> Split:
    """Hold out the same share of every user's events, drawn at random.

    Of n events a user gives round(test n) to test and round(valid n) to validation (halves up),
    and always keeps one for training: with the default shares a user needs 3 events for a test
    event and 5 for a validation event. Users with too few stay wholly in train; this is noted.

    Args:
        data: events; duplicates of a pair are dropped first.
        valid: share for validation, at least 0; with 0 the split has no such part.
        test: share for test, likewise; valid + test < 1.
        seed: whole number >= 0, or a Generator.

    >>> data = Interactions.of(["ann"] * 10, range(10))
    >>> {name: len(part) for name, part in split_random_per_user(data, seed=1).parts.items()}
    {'train': 7, 'valid': 1, 'test': 2}
    """
    check_shares(valid, test)
    order = canonical_order(data)
    draw = generator(seed).permutation(len(order))
    head = f"random per user: valid={valid:g}, test={test:g}, {_said(seed)}"
    return _hold_out_per_user(
        data, order, draw, share_counts(valid, test), (valid > 0, test > 0), head
    )


def split_random(data: Interactions, *, valid: float = 0.1, test: float = 0.2, seed: Seed) -> Split:
    """Hold out a share of all events, drawn at random whoever their users are.

    A user may end up without a training event; such test users are counted in the notes. Args as
    in `split_random_per_user`.

    >>> data = Interactions.of(["ann", "bob"] * 5, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4])
    >>> {name: len(part) for name, part in split_random(data, seed=1).parts.items()}
    {'train': 7, 'valid': 1, 'test': 2}
    """
    check_shares(valid, test)
    order = canonical_order(data)
    n_valid, n_test = share_counts(valid, test)(np.array([len(order)]))
    draw = generator(seed).permutation(len(order))
    codes = np.zeros(len(order), dtype=np.int8)
    codes[draw < n_valid + n_test] = 1
    codes[draw < n_test] = 2
    head = f"random over all events: valid={valid:g}, test={test:g}, {_said(seed)}"
    return _assemble(data, order, codes, (valid > 0, test > 0), [head])


def split_temporal(
    data: Interactions, *, valid: float = 0.1, test: float = 0.2, per_user: bool = False
) -> Split:
    """Train on what came first, test on what came last.

    One cut in time for all users (default): every training event lies strictly before every
    validation event, and those strictly before every test event. Events of the very time at a cut
    all go to the later part, so that a held-out part is never smaller than asked for.

    With `per_user` each user's own last events are held out, as many as `split_random_per_user`
    would take; a user's events of one time are ordered by item id. Users with too few events stay
    wholly in train. This is not free of the future: one user's training may lie after another
    user's test.

    Args:
        data: events with timestamps; duplicates of a pair are dropped first, the earliest kept.
        valid: share for validation, at least 0; with 0 the split has no such part.
        test: share for test, likewise; valid + test < 1.
        per_user: cut each user's history by itself.

    >>> data = Interactions.of(list("abcde"), list("vwxyz"), timestamps=[5, 1, 4, 2, 3])
    >>> split = split_temporal(data, valid=0.2, test=0.2)
    >>> split.test.timestamps.tolist(), split.valid.timestamps.tolist()
    ([5.0], [4.0])
    """
    check_shares(valid, test)
    shares = f"valid={valid:g}, test={test:g}"
    times = times_of(data, "a temporal split")
    order = canonical_order(data)
    times = times[order]
    if per_user:
        head = f"temporal per user: {shares}; events of one time ordered by item id"
        return _hold_out_per_user(
            data, order, _places(times), share_counts(valid, test), (valid > 0, test > 0), head
        )
    n_valid, n_test = share_counts(valid, test)(np.array([len(order)]))
    in_time = np.sort(times)
    codes = np.zeros(len(order), dtype=np.int8)
    notes = [
        f"temporal, one cut for all: {shares}; events of a cut's own time go to the later part"
    ]
    for code, name, held in ((1, "valid", n_valid + n_test), (2, "test", n_test)):
        if held[0] > 0 and (valid, test)[code - 1] > 0:
            cut = in_time[len(order) - held[0]]
            codes[times >= cut] = code
            notes.append(f"{name} starts at timestamp {float(cut)!r}")
    return _assemble(data, order, codes, (valid > 0, test > 0), notes)


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
    stays wholly in train; this is noted.

    Args:
        data: events, with timestamps when by="time"; duplicates of a pair are dropped first.
        k: test events a user, at least 1.
        valid_k: validation events a user, at least 0; with 0 the split has no such part.
        by: "time" or "random".
        seed: whole number >= 0, or a Generator; needed for by="random" only.

    >>> data = Interactions.of(["ann"] * 3 + ["bob"], list("xyzx"), timestamps=[1, 3, 2, 9])
    >>> split = split_leave_k_out(data)
    >>> list(split.item_ids.ids(split.test.items)), len(split.train)
    (['y'], 2)
    """
    check_at_least("k", k, 1)
    check_at_least("valid_k", valid_k, 0)
    choose({"time": 0, "random": 0}, by, "way to leave out (by)")

    def counts(n: Positions) -> tuple[Positions, Positions]:
        enough = n > k + valid_k
        return np.where(enough, valid_k, 0), np.where(enough, k, 0)

    if by == "time":
        times = times_of(data, "a leave-k-out split by time")
        order = canonical_order(data)
        head = f"leave {k} out by time, {valid_k} for validation; one time ordered by item id"
        return _hold_out_per_user(
            data, order, _places(times[order]), counts, (valid_k > 0, True), head
        )
    if seed is None:
        raise InputError(
            "leave-k-out at random needs a seed; give a whole number such as seed=2024"
        )
    order = canonical_order(data)
    draw = generator(seed).permutation(len(order))
    head = f"leave {k} out at random, {valid_k} for validation, {_said(seed)}"
    return _hold_out_per_user(data, order, draw, counts, (valid_k > 0, True), head)


SPLITS: dict[str, Callable[..., Split]] = {
    "random_per_user": split_random_per_user,
    "random": split_random,
    "temporal": split_temporal,
    "leave_k_out": split_leave_k_out,
}


def split(data: Interactions, how: str = "random_per_user", *, seed: Seed, **options: Any) -> Split:
    """The split of that name in `SPLITS`, with that split's own options.

    The seed goes to the splits that draw; an option that the split does not have is refused.

    >>> data = Interactions.of(list("abcde"), list("vwxyz"), timestamps=[5, 1, 4, 2, 3])
    >>> len(split(data, "temporal", seed=1, valid=0.0, test=0.4).test)
    2
    """
    function = choose(SPLITS, how, "split")
    known = [name for name in inspect.signature(function).parameters if name != "data"]
    for name in options:
        if name not in known:
            takes = listing(other for other in known if other != "seed")
            raise InputError(f"the split {how!r} has no option {name!r}; it takes: {takes}")
    if "seed" in known:
        options["seed"] = seed
    return function(data, **options)


def _text_place(ids: IdMap) -> Positions:
    """Each row's place in the order of the ids' texts."""
    place = np.empty(len(ids), dtype=np.int64)
    place[np.asarray(pc.array_sort_indices(ids.text))] = np.arange(len(ids))
    return place


def _places(values: npt.NDArray[np.float64]) -> Positions:
    """Each value's place in ascending order; equal ones keep theirs."""
    place = np.empty(len(values), dtype=np.int64)
    place[np.argsort(values, kind="stable")] = np.arange(len(values))
    return place


def times_of(data: Interactions, what: str) -> npt.NDArray[np.float64]:
    """The timestamps, which `what` cannot do without."""
    if data.timestamps is None:
        raise InputError(
            f"{what} needs timestamps and this data has none; name their column or use a random one"
        )
    bad = np.flatnonzero(~np.isfinite(data.timestamps))
    if len(bad):
        raise InputError(
            f"{what} needs finite timestamps, got {data.timestamps[bad[0]]} in event {bad[0]}; "
            "drop or fill such rows"
        )
    return data.timestamps


def check_shares(valid: float, test: float) -> None:
    for name, share in (("valid", valid), ("test", test)):
        if not 0.0 <= share < 1.0:
            raise InputError(f"{name} must be a share in [0, 1), got {share!r}")
    if not valid + test < 1.0:
        raise InputError(
            f"valid + test must be below 1, got {valid!r} + {test!r}; train needs some"
        )


def share_counts(valid: float, test: float) -> Callable[[Positions], tuple[Positions, Positions]]:
    """How many of n events to hold out; one at least stays, validation gives way first."""

    def counts(n: Positions) -> tuple[Positions, Positions]:
        n_test = np.minimum(np.floor(test * n + _HALF).astype(np.int64), np.maximum(n - 1, 0))
        n_valid = np.minimum(
            np.floor(valid * n + _HALF).astype(np.int64), np.maximum(n - 1 - n_test, 0)
        )
        return n_valid, n_test

    return counts


def _said(seed: Seed) -> str:
    return "a Generator passed in" if isinstance(seed, np.random.Generator) else f"seed={seed}"


def _hold_out_per_user(
    data: Interactions,
    order: Positions,
    place: Positions,
    counts: Callable[[Positions], tuple[Positions, Positions]],
    asked: tuple[bool, bool],
    head: str,
) -> Split:
    """Hold out each user's events of the highest `place`: the top for test, the next for valid.

    `order` is canonical, so that a user's events are neighbours; `place` is a permutation.
    """
    users = data.users[order]
    starts = np.flatnonzero(np.diff(users, prepend=-1))
    sizes = np.diff(starts, append=len(users))
    n_valid, n_test = counts(sizes)
    block = np.repeat(np.arange(len(sizes)), sizes)
    # All keys differ, so that the fast, unstable sort has one answer.
    by_user = np.argsort(block * len(order) + place)
    from_end = np.repeat(starts + sizes, sizes) - np.arange(len(users))  # 1 is the last
    codes = np.zeros(len(users), dtype=np.int8)
    codes[by_user[from_end <= np.repeat(n_valid + n_test, sizes)]] = 1
    codes[by_user[from_end <= np.repeat(n_test, sizes)]] = 2
    return _assemble(data, order, codes, asked, [head, *about_whole_users(n_valid + n_test, asked)])


def about_whole_users(held: Positions, asked: tuple[bool, bool]) -> list[str]:
    """A note on users of whom nothing is held out, where something was to be."""
    whole = int(np.count_nonzero(held == 0))
    if not whole or not any(asked):
        return []
    return [
        f"{whole} of {len(held)} users have too few events to hold any out and stay wholly in train"
    ]


def _assemble(
    data: Interactions,
    order: Positions,
    codes: npt.NDArray[np.int8],
    asked: tuple[bool, bool],
    notes: list[str],
) -> Split:
    """The parts from a code (0 train, 1 valid, 2 test) for each position of the canonical order."""
    if len(order) == 0:
        raise InputError("there is no event to split; check the file and its filters")
    row_codes = np.full(len(data), -1, dtype=np.int8)
    row_codes[order] = codes
    parts = [data.take(row_codes == code) for code in range(3)]
    for part, name, wanted in zip(parts, ("train", "valid", "test"), (True, *asked), strict=True):
        if wanted and not len(part):
            raise InputError(
                f"the {name} part came out empty from {len(order)} events ({notes[0]}); "
                "use more data, other shares or counts, or another kind of split"
            )
    train, valid, test = parts
    dropped = len(data) - len(order)
    if dropped:
        kept = "first row" if data.timestamps is None else "earliest"
        notes = [*notes, f"{dropped} repeated events of a user-item pair dropped, the {kept} kept"]
    seen = np.zeros(data.n_users, dtype=bool)
    seen[train.users] = True
    testers = np.unique(test.users)
    cold = int(np.count_nonzero(~seen[testers]))
    if cold:
        notes = [*notes, f"{cold} of {len(testers)} test users have no training event"]
    return Split(train, valid if asked[0] else None, test if asked[1] else None, tuple(notes))
