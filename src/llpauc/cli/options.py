"""Options that several commands share."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from pydantic import Field

from llpauc.cli.console import note, progress

if TYPE_CHECKING:
    from llpauc.data.interactions import Split
    from llpauc.data.readers import Reading, ReadOptions

HeldOut = Annotated[float, Field(ge=0, lt=1)]
Seed = Annotated[int, Field(ge=0)]
How = Literal["random_per_user", "random", "temporal", "leave_k_out"]
FileFormat = Literal["tsv", "csv", "parquet", "inter"]


@dataclass(frozen=True)
class TableOptions:
    """How to read the interactions; all of it is guessed and said aloud where it is not given.

    Args:
        format: csv, tsv, parquet, inter, u.data, ratings.dat, adjacency or jsonl
        user: column of the user ids, by name or 0-based position
        item: column of the item ids
        rating: column of the ratings (or dwell times)
        timestamp: column of the times: seconds, or ISO dates
        delimiter: what stands between the columns: one to four characters, or comma, tab,
            semicolon, pipe or space
        header: whether the first row holds the names of the columns, "yes" or "no"
        bad_rows: what to do with a row that cannot be read, "error" or "skip" (and count)
        min_rating: drop events rated lower than this; all that are left count as positives
    """

    format: str | None = None
    user: str | None = None
    item: str | None = None
    rating: str | None = None
    timestamp: str | None = None
    delimiter: str | None = None
    header: Literal["yes", "no"] | None = None
    bad_rows: Literal["error", "skip"] = "error"
    min_rating: float | None = None

    def reading(self) -> ReadOptions:
        """As the readers take them."""
        header = None if self.header is None else self.header == "yes"
        told: Any = {**asdict(self), "header": header}
        del told["min_rating"]
        return cast("ReadOptions", told)

    def load(self, path: str, *, least: int = 2, noise: bool = False) -> Reading | Split:
        """Read a file, or a folder of train/valid/test files; guesses go to stderr.

        Args:
            path: what to read.
            least: users and items there must be, each. To rank takes two.
            noise: low ratings are wanted: nothing is said of them.
        """
        from llpauc.data.interactions import Split
        from llpauc.data.readers import load
        from llpauc.errors import InputError

        with progress(f"reading {path}"):
            data = load(path, **self.reading())
        for text in data.notes:
            note(text)
        data = data if noise else self._liked(data)
        found = data.train if isinstance(data, Split) else data.interactions
        for what, ids in (("user", found.user_ids), ("item", found.item_ids)):
            if len(ids) < least:
                raise InputError(
                    f"{path}: there is only one {what}, {next(iter(ids))!r}, and nothing to rank;"
                    f" is another column the {what}? (--{what} NAME)"
                )
        return data

    def _liked(self, data: Reading | Split) -> Reading | Split:
        """Without the events rated too low; where that was not asked for, how many there may be."""
        from llpauc.data import filters
        from llpauc.data.interactions import Split

        if self.min_rating is None:
            events = data.train if isinstance(data, Split) else data.interactions
            if (low := filters.rated_low(events)) is not None:
                note(
                    f"{low.events:,} of {len(events):,} events are rated below {low.middle:g}"
                    f" ({low.least:g} to {low.most:g}) and count as positives; --min-rating drops"
                    " such events"
                )
            return data
        if isinstance(data, Split):
            parts = {n: filters.rated_at_least(p, self.min_rating) for n, p in data.parts.items()}
            return Split.of(**parts, notes=data.notes)
        liked = filters.rated_at_least(data.interactions, self.min_rating)
        return replace(data, interactions=liked)


@dataclass(frozen=True)
class SplitOptions:
    """How to split a file that is not split yet.

    Args:
        how: how to split a single file: "random_per_user", "random", "temporal" or "leave_k_out"
        valid: share of the events for validation
        test: share of the events for the test
        leave: events each user leaves out for the test, and for validation (leave_k_out)
        k_core: first drop users and items with fewer events than this, until none is left
        seed: same seed, same split
    """

    how: How = "random_per_user"
    valid: HeldOut = 0.1
    test: HeldOut = 0.2
    leave: Annotated[int, Field(ge=1)] = 1
    k_core: Annotated[int, Field(ge=1)] = 1
    seed: Seed = 0

    @property
    def shares(self) -> dict[str, Any]:
        """The chosen split's own options."""
        if self.how == "leave_k_out":
            return {"k": self.leave, "valid_k": self.leave}
        return {"valid": self.valid, "test": self.test}

    def apply(self, data: Reading | Split) -> Split:
        """Pre-split data as they are; a single table is filtered and split as asked."""
        from llpauc.data import filters, splits
        from llpauc.data.interactions import Split

        if isinstance(data, Split):
            return data
        events = data.interactions
        if self.k_core > 1:
            events = filters.k_core(events, self.k_core)
            note(f"{self.k_core}-core: {len(events):,} events left")
        split = splits.split(events, self.how, seed=self.seed, **self.shares)
        for text in split.notes:
            note(text)
        return split
