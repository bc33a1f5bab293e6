"""The splits of `llpauc.data.splits` over pairs on disk, a chunk of whole users at a time.

The rules are the same. Splits by time hold out the very same events. Random ones draw otherwise:
a pair's luck is a hash of the seed and of the places of its two ids in the order of all ids, so
that it depends neither on the rows' order nor on the chunks.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from llpauc.data.splits import SPLITS, about_whole_users, check_shares, share_counts
from llpauc.errors import InputError, check_at_least, choose, listing

CHUNK = 1 << 21  # pairs at a time, unless one user alone has more
_LUCK_BITS = 42  # beside the user's number in a chunk

Codes = npt.NDArray[np.int8]  # 0 train, 1 valid, 2 test
Whole = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]
Counts = Callable[[Whole], tuple[Whole, Whole]]


@dataclass(frozen=True)
class Chunk:
    """The pairs of some neighbouring users, by user and item.

    Args:
        users: the range of user rows.
        sizes: pairs of each.
        items, times: of each pair.
    """

    users: slice
    sizes: Whole
    items: npt.NDArray[np.int32]
    times: npt.NDArray[np.float64] | None

    @property
    def user_of(self) -> npt.NDArray[np.int32]:
        """The user row of each pair."""
        rows = np.arange(self.users.start, self.users.stop, dtype=np.int32)
        return np.repeat(rows, self.sizes)


@dataclass(frozen=True)
class Pairs:
    """Distinct user-item pairs, sorted; columns may be mapped.

    Args:
        starts: where each user's begin, and the end.
        items: item rows.
        times: of the earliest event of each pair, or None.
        user_place, item_place: each row's place in the order of the ids' texts.
    """

    starts: Whole
    items: npt.NDArray[np.int32]
    times: npt.NDArray[np.float64] | None
    user_place: Whole
    item_place: Whole

    def __len__(self) -> int:
        return int(self.starts[-1])

    def chunks(self, size: int = CHUNK) -> Iterator[Chunk]:
        first = 0
        while first < len(self.starts) - 1:
            begin = self.starts[first]
            last = int(np.searchsorted(self.starts, begin + size, side="right")) - 1
            last = min(max(last, first + 1), first + size)
            end = self.starts[last]
            yield Chunk(
                slice(first, last),
                np.diff(self.starts[first : last + 1]),
                np.asarray(self.items[begin:end]),
                None if self.times is None else np.asarray(self.times[begin:end]),
            )
            first = last


@dataclass(frozen=True)
class Parting:
    """How pairs are parted.

    Args:
        codes: which part each pair of a chunk goes to.
        asked: whether there is to be a validation part, and a test part.
        notes: what was decided, for people.
    """

    codes: Callable[[Chunk], Codes]
    asked: tuple[bool, bool]
    notes: tuple[str, ...]


def parting(
    pairs: Pairs, how: str, seed: int, held_out_users: int | None = None, **options: Any
) -> Parting:
    """The split of that name in `llpauc.data.splits.SPLITS`.

    Args:
        pairs: what is to be parted.
        how: its name.
        seed: of what is drawn.
        held_out_users: hold out events of so many users, drawn at random; None for all.
        options: as the split itself has them.
    """
    check_options(pairs.times is not None, how, held_out_users, **options)
    check_at_least("seed", seed, 0)
    known = inspect.signature(SPLITS[how]).parameters
    given = {name: parameter.default for name, parameter in known.items()} | options
    if how == "leave_k_out":
        k, valid_k = given["k"], given["valid_k"]
        by_time = given["by"] == "time"
        way = "by time" if by_time else "at random"
        more = "; one time ordered by item id" if by_time else f", seed={seed}"
        head = f"leave {k} out {way}, {valid_k} for validation{more}"
        return _per_user(
            pairs, _leave(k, valid_k), (valid_k > 0, True), head, by_time, seed, held_out_users
        )
    valid, test = given["valid"], given["test"]
    counts, asked = share_counts(valid, test), (valid > 0, test > 0)
    shares = f"valid={valid:g}, test={test:g}"
    if how == "random_per_user":
        head = f"random per user: {shares}, seed={seed}"
        return _per_user(pairs, counts, asked, head, False, seed, held_out_users)
    if how == "temporal" and given["per_user"]:
        head = f"temporal per user: {shares}; events of one time ordered by item id"
        return _per_user(pairs, counts, asked, head, True, seed, held_out_users)
    if how == "random":
        head = f"random over all events: {shares}, seed={seed}"
        return _by_cuts(pairs, counts, asked, head, lambda chunk: _luck(pairs, seed, chunk))
    head = f"temporal, one cut for all: {shares}; events of a cut's own time go to the later part"
    return _by_cuts(pairs, counts, asked, head, lambda chunk: _ascending(chunk.times))


def check_options(timed: bool, how: str, held_out_users: int | None, **options: Any) -> None:
    """Say what is wrong with a split before hours are spent on what comes before it."""
    known = inspect.signature(choose(SPLITS, how, "split")).parameters
    takes = [name for name in known if name not in ("data", "seed")]
    for name in options:
        if name not in takes:
            raise InputError(
                f"the split {how!r} has no option {name!r}; it takes: {listing(takes)}"
            )
    given = {name: parameter.default for name, parameter in known.items()} | options
    if how == "leave_k_out":
        check_at_least("k", given["k"], 1)
        check_at_least("valid_k", given["valid_k"], 0)
        choose({"time": 0, "random": 0}, given["by"], "way to leave out (by)")
    else:
        check_shares(given["valid"], given["test"])
    if held_out_users is not None:
        check_at_least("held_out_users", held_out_users, 1)
        if how == "random" or (how == "temporal" and not given["per_user"]):
            raise InputError(
                f"the split {how!r} holds out events of everybody; for held_out_users take"
                " random_per_user or leave_k_out"
            )
    if not timed and (how == "temporal" or given.get("by") == "time"):
        raise InputError(
            f"the split {how!r} needs timestamps and this data has none; name their column"
            " (--timestamp) or use a random one"
        )


def _leave(k: int, valid_k: int) -> Counts:
    def counts(n: Whole) -> tuple[Whole, Whole]:
        enough = n > k + valid_k
        return np.where(enough, valid_k, 0), np.where(enough, k, 0)

    return counts


def _per_user(
    pairs: Pairs,
    counts: Counts,
    asked: tuple[bool, bool],
    head: str,
    by_time: bool,
    seed: int,
    held_out_users: int | None,
) -> Parting:
    """Hold out each user's last pairs in the order of time, or of luck."""
    sizes = np.diff(pairs.starts)
    n_valid, n_test = counts(sizes)
    notes = [head, *about_whole_users(n_valid + n_test, asked)]
    able = int(np.count_nonzero(n_valid + n_test))
    if held_out_users is not None and held_out_users < able:
        luck = _hash(seed, pairs.user_place)
        luck[n_valid + n_test == 0] = np.iinfo(np.uint64).max
        spared = np.argsort(luck, kind="stable")[held_out_users:]
        n_valid[spared] = n_test[spared] = 0
        notes.append(f"events of {held_out_users} users are held out, drawn of {able}")

    def codes(chunk: Chunk) -> Codes:
        n = len(chunk.items)
        local = np.repeat(np.arange(len(chunk.sizes), dtype=np.uint64), chunk.sizes)
        if by_time:
            assert chunk.times is not None
            order = np.lexsort((pairs.item_place[chunk.items], chunk.times, local))
        else:
            luck = _luck(pairs, seed, chunk) >> np.uint64(64 - _LUCK_BITS)
            order = np.argsort((local << np.uint64(_LUCK_BITS)) | luck, kind="stable")
        from_end = np.repeat(np.cumsum(chunk.sizes), chunk.sizes) - np.arange(n)  # 1 is the last
        test, valid = n_test[chunk.users], n_valid[chunk.users]
        out = np.zeros(n, np.int8)
        out[order[from_end <= np.repeat(valid + test, chunk.sizes)]] = 1
        out[order[from_end <= np.repeat(test, chunk.sizes)]] = 2
        return out

    return Parting(codes, asked, tuple(notes))


def _by_cuts(
    pairs: Pairs,
    counts: Counts,
    asked: tuple[bool, bool],
    head: str,
    value_of: Callable[[Chunk], Hashes],
) -> Parting:
    """One cut for all: the pairs of the highest values are tested, the next ones validated."""
    n = len(pairs)
    n_valid, n_test = (int(count[0]) for count in counts(np.array([n])))
    notes = [head]
    cuts: list[tuple[int, np.uint64]] = []
    for code, name, held in ((1, "valid", n_valid + n_test), (2, "test", n_test)):
        if held > 0 and asked[code - 1]:
            cut = smallest(lambda: map(value_of, pairs.chunks()), n - held)
            cuts.append((code, cut))
            if head.startswith("temporal"):
                notes.append(f"{name} starts at timestamp {_time(cut)!r}")

    def codes(chunk: Chunk) -> Codes:
        values = value_of(chunk)
        out = np.zeros(len(values), np.int8)
        for code, cut in cuts:
            out[values >= cut] = code
        return out

    return Parting(codes, asked, tuple(notes))


def smallest(passes: Callable[[], Iterator[Hashes]], place: int) -> np.uint64:
    """The value at `place` (from 0) of all values in ascending order: four passes, no sorting.

    >>> int(smallest(lambda: iter([np.array([7, 5], np.uint64), np.array([6], np.uint64)]), 1))
    6
    """
    found = 0
    for shift in (48, 32, 16, 0):
        digits = np.zeros(1 << 16, np.int64)
        for values in passes():
            rest = values >> np.uint64(shift)
            if shift < 48:
                rest = rest[rest >> np.uint64(16) == found]
            part = (rest & np.uint64(0xFFFF)).astype(np.int64)
            digits += np.bincount(part, minlength=1 << 16)
        up_to = np.cumsum(digits)
        digit = int(np.searchsorted(up_to, place, side="right"))
        place -= int(up_to[digit] - digits[digit])
        found = (found << 16) | digit
    return np.uint64(found)


def _ascending(times: npt.NDArray[np.float64] | None) -> Hashes:
    """Whole numbers in the order of the times."""
    assert times is not None
    bits = (times + 0.0).view(np.uint64)  # there is one zero only
    negative = bits >> np.uint64(63) == 1
    return np.where(negative, ~bits, bits | np.uint64(1 << 63))


def _time(ascending: np.uint64) -> float:
    top = np.uint64(1 << 63)
    bits = ascending ^ top if ascending & top else ~ascending
    return float(np.array([bits], np.uint64).view(np.float64)[0])


_GOLDEN = 0x9E3779B97F4A7C15


def _mixed(x: Hashes) -> Hashes:
    """splitmix64's finalizer: every bit of x decides every bit of the outcome."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _hash(seed: int, place: Whole) -> Hashes:
    start = _mixed(np.array([(seed + _GOLDEN) % 2**64], np.uint64))
    return _mixed(start + (place + 1).astype(np.uint64) * np.uint64(_GOLDEN))


def _luck(pairs: Pairs, seed: int, chunk: Chunk) -> Hashes:
    of_users = np.repeat(_hash(seed, pairs.user_place[chunk.users]), chunk.sizes)
    of_items = (pairs.item_place[chunk.items] + 1).astype(np.uint64) * np.uint64(_GOLDEN)
    return _mixed(of_users + of_items)
