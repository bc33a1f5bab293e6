"""Options that several commands share: how to read a file, how to split it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from annotated_types import Ge, Lt

from llpauc.cli.console import log, progress
from llpauc.data.locations import SourceName
from llpauc.options import Choices, Count, NonNegativeInt

if TYPE_CHECKING:
    from llpauc.data.interactions import Split
    from llpauc.data.readers import Reading
    from llpauc.data.sources import ReadOptions

Events = Annotated[str, SourceName]  # one or several paths, or a database
HeldOut = Annotated[float, Ge(0), Lt(1)]
Seed = NonNegativeInt
HoldOutRule = Literal["auto", "temporal", "temporal_per_user", "random_per_user", "random"]
SplitRule = Literal[HoldOutRule, "leave_k_out"]
FileFormat = Literal["tsv", "csv", "parquet", "inter"]

_UNIQUE_FRACTION = 0.9  # more ids per event than this: the column numbers the events
_MIN_EVENTS = 50  # fewer events can have different users and items by chance


@dataclass(frozen=True)
class TableOptions:
    """How to read the interactions. What is not given is detected, and the choice is printed.

    Args:
        format: format of the files
        user: column of the user ids, by name or 0-based position
        item: column of the item ids
        rating: column of the ratings (or dwell times)
        timestamp: column of the timestamps: seconds, or ISO dates
        delimiter: column separator: one to four characters, or comma, tab, semicolon, pipe or space
        header: whether the first row holds the column names
        query: SQL that selects the events of a database
        bad_rows: what to do with a row that cannot be read: stop with an error, or skip and count
        min_rating: drop events with a lower rating; all remaining events are positives
    """

    format: Annotated[str, Choices("llpauc.data.columns:FORMAT_NAMES")] | None = None
    user: str | None = None
    item: str | None = None
    rating: str | None = None
    timestamp: str | None = None
    delimiter: str | None = None
    header: Literal["yes", "no"] | None = None
    query: str | None = None
    bad_rows: Literal["error", "skip"] = "error"
    min_rating: float | None = None

    def reading(self) -> ReadOptions:
        """The keyword arguments of the readers."""
        header = None if self.header is None else self.header == "yes"
        options: Any = {**asdict(self), "header": header}
        del options["min_rating"]
        return cast("ReadOptions", options)

    def changed(self) -> dict[str, Any]:
        """The options that differ from their defaults."""
        default = asdict(TableOptions())
        changed = {name: value for name, value in asdict(self).items() if value != default[name]}
        changed.pop("query", None)  # it belongs to one database, not to the events of an update
        return changed

    def record(self, split: Split) -> dict[str, Any]:
        """What a run records about its data: these options, and a SHA-256 of each part."""
        from llpauc.data.interactions import fingerprint

        digests = {name: fingerprint(part) for name, part in split.parts.items()}
        query = {} if self.query is None else {"query": self.query}
        return {"reading": self.changed(), "digests": digests, **query}

    def or_else(self, recorded: Any) -> TableOptions:
        """With the options of a run, from its meta.json, where none is given."""
        from llpauc.errors import InputError
        from llpauc.storage.run_folder import finite_number

        options = {} if recorded is None else recorded
        if not isinstance(options, dict):
            raise InputError("meta.json of the run: reading is not a table of options")
        for name, value in options.items():
            is_number, is_text = finite_number(value) is not None, isinstance(value, str)
            if name not in asdict(self) or not (is_number if name == "min_rating" else is_text):
                raise InputError(f"meta.json of the run: reading has {name!r}: {value!r:.50}")
        given = self.changed()
        more = {name: value for name, value in options.items() if name not in given}
        if more:
            flags = " ".join(f"--{k.replace('_', '-')} {v}" for k, v in more.items())
            log.info(f"read as the data of the run: {flags}")
        return replace(self, **more)

    def load(
        self,
        path: str,
        *,
        min_ids: int = 2,
        warn_low_ratings: bool = True,
        check_ids: bool = True,
    ) -> Reading | Split:
        """Read a file, or a folder of train/valid/test files.

        Args:
            path: file or folder.
            min_ids: smallest number of users and of items; ranking needs two.
            warn_low_ratings: whether to warn that low ratings count as positives.
            check_ids: whether to refuse parts whose ids do not meet those of train.
        """
        from llpauc.data.interactions import Split
        from llpauc.data.known_ids import check_parts
        from llpauc.data.readers import load
        from llpauc.errors import InputError

        with progress(f"reading {path}"):
            data = load(path, **self.reading())
        for text in data.notes:
            log.info(text)
        data = self._filter_ratings(data, warn_low_ratings)
        events = data.train if isinstance(data, Split) else data.interactions
        for kind, ids in (("user", events.user_ids), ("item", events.item_ids)):
            if len(ids) < min_ids:
                raise InputError(
                    f"{path}: there is only one {kind}, {next(iter(ids))!r}, and nothing to rank;"
                    f" is another column the {kind}? (--{kind} NAME)"
                )
            if len(ids) > _UNIQUE_FRACTION * len(events) and len(events) >= _MIN_EVENTS:
                log.warning(
                    f"{path}: {len(ids):,} different {kind}s in {len(events):,} events, such as"
                    f" {next(iter(ids))!r}: lists cannot be learned from {kind}s with one event; is"
                    f" another column the {kind}? (--{kind} NAME)"
                )
        if check_ids and isinstance(data, Split):
            for text in check_parts(data):
                log.info(text)
        return data

    def load_split(self, path: str, *, min_ids: int = 2) -> Split:
        """As `load`; a single file becomes the train part."""
        from llpauc.data.interactions import Split

        data = self.load(path, min_ids=min_ids)
        return data if isinstance(data, Split) else Split(data.interactions)

    def _filter_ratings(self, data: Reading | Split, warn: bool) -> Reading | Split:
        from llpauc.data import filters
        from llpauc.data.interactions import Split

        if self.min_rating is None:
            events = data.train if isinstance(data, Split) else data.interactions
            if warn and (low := filters.rated_low(events)) is not None:
                log.info(
                    f"{low.events:,} of {len(events):,} events are rated below {low.middle:g}"
                    f" ({low.least:g} to {low.most:g}) and count as positives; --min-rating drops"
                    " such events"
                )
            return data
        if isinstance(data, Split):
            parts = {n: filters.rated_at_least(p, self.min_rating) for n, p in data.parts.items()}
            return Split.of(**parts, notes=data.notes)
        filtered = filters.rated_at_least(data.interactions, self.min_rating)
        return replace(data, interactions=filtered)


@dataclass(frozen=True)
class SplitOptions:
    """How to split a single file.

    Args:
        how: split of a single file: temporal (one cut in time for all users), temporal_per_user
            (the last events of each user), random_per_user, random (over all events), leave_k_out,
            or auto: one of the first two where there are timestamps, else random_per_user
        valid: fraction of the events for validation
        test: fraction of the events for the test
        leave: events of each user held out for the test, and as many for validation (leave_k_out)
        k_core: first drop users and items with fewer events than this, until none is left
        seed: same seed, same split
    """

    how: SplitRule = "auto"
    valid: HeldOut = 0.1
    test: HeldOut = 0.2
    leave: Count = 1
    k_core: Count = 1
    seed: Seed = 0

    @property
    def sizes(self) -> dict[str, Any]:
        """The size options of the chosen split rule."""
        if self.how == "leave_k_out":
            return {"k": self.leave, "valid_k": self.leave}
        return {"valid": self.valid, "test": self.test}

    def apply(self, data: Reading | Split) -> Split:
        """Split a single table; data that is split already stays as it is."""
        from llpauc.data import filters, splits
        from llpauc.data.interactions import Split

        if isinstance(data, Split):
            return data
        events = data.interactions
        if self.k_core > 1:
            events = filters.k_core(events, self.k_core)
            log.info(f"{self.k_core}-core: {len(events):,} events left")
        split = splits.split(events, self.how, seed=self.seed, **self.sizes)
        for text in split.notes:
            log.info(text)
        return split
