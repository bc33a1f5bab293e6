"""Options that several commands share: how to read a file, how to split it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from annotated_types import Ge, Lt

from llpauc.cli.console import log, progress
from llpauc.data.locations import SourceName
from llpauc.options import Choices, Count, NonNegativeInt, options_of

if TYPE_CHECKING:
    from llpauc.data.filters import Filters
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
        weight: column of the weights of events, at least 0; those of repeated events add up
        event_type: column of the types of events, such as view and purchase
        event_weights: weight of an event of each type, such as view=1,cart=3,purchase=10
        log_weights: the weight of a user-item pair is log(1 + the sum of the weights of its events)
        exclude: items of a user that are left out of the list: all with an event, none, or those
            with an event of these types; by default the type with the highest weight, or all
            without types
        relevant: types, separated by commas, that count as hits in the evaluated part; by default
            every event with a weight above 0
        query: SQL that selects the events of a database
        bad_rows: what to do with a row that cannot be read: stop with an error, or skip and count
        min_rating: drop events with a lower rating; all remaining events are positives
        drop_duplicates: drop events that are equal to an earlier one in every column
        since: drop events before this time: a date such as 2026-01-31, or a number
        until: drop events after this time
        max_events_per_user: drop users with more events: bots and test accounts
        min_item_events: drop items with fewer events
    """

    format: Annotated[str, Choices("llpauc.data.columns:FORMAT_NAMES")] | None = None
    user: str | None = None
    item: str | None = None
    rating: str | None = None
    timestamp: str | None = None
    weight: str | None = None
    event_type: str | None = None
    event_weights: str | None = None
    log_weights: bool = False
    exclude: str | None = None
    relevant: str | None = None
    delimiter: str | None = None
    header: Literal["yes", "no"] | None = None
    query: str | None = None
    bad_rows: Literal["error", "skip"] = "error"
    min_rating: float | None = None
    drop_duplicates: bool = False
    since: str | None = None
    until: str | None = None
    max_events_per_user: Count | None = None
    min_item_events: Count | None = None

    def reading(self) -> ReadOptions:
        """The keyword arguments of the readers."""
        header = None if self.header is None else self.header == "yes"
        after = {"exclude", "relevant", *vars(self.filters())}  # what is done after reading
        options: Any = {n: value for n, value in vars(self).items() if n not in after}
        return cast("ReadOptions", {**options, "header": header})

    def filters(self) -> Filters:
        """Which events are dropped after reading."""
        from llpauc.data.filters import Filters

        return Filters(**{field.name: getattr(self, field.name) for field in fields(Filters)})

    def rules(self) -> dict[str, str]:
        """The rules of the events that are given."""
        given = {"exclude": self.exclude, "relevant": self.relevant}
        return {name: value for name, value in given.items() if value is not None}

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

        options, known = {} if recorded is None else recorded, options_of(TableOptions)
        if not isinstance(options, dict):
            raise InputError("meta.json of the run: reading is not a table of options")
        for name, value in options.items():
            try:
                known[name].check(value)
            except (KeyError, InputError):
                raise InputError(
                    f"meta.json of the run: reading has {name!r}: {value!r:.50}"
                ) from None
        given = {*self.changed(), "max_events_per_user", "min_item_events"}  # of a whole log
        more = {name: value for name, value in options.items() if name not in given}
        if more:
            flags = " ".join(
                f"--{k.replace('_', '-')}{'' if v is True else f' {v}'}" for k, v in more.items()
            )
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
        data = self._filter(data, path, warn_low_ratings)
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

    def _filter(self, data: Reading | Split, path: str, warn: bool) -> Reading | Split:
        """Drop events, and apply the rules of the event types."""
        from llpauc.data import filters
        from llpauc.data.interactions import Split
        from llpauc.errors import InputError

        parts = data.parts if isinstance(data, Split) else {"data": data.interactions}
        events = next(iter(parts.values()))
        limits = self.filters()
        unweighted = self.min_rating is None and self.weight is None
        if warn and unweighted and (low := filters.rated_low(events)) is not None:
            log.info(
                f"{low.events:,} of {len(events):,} events are rated below {low.middle:g}"
                f" ({low.least:g} to {low.most:g}) and count as positives; --min-rating drops"
                " such events"
            )
        if events.shuffled and (given := [name for name, _ in limits.limits()]):
            flag = given[0].replace("_", "-")
            raise InputError(f"{path}: --{flag} is for raw files; give it to llpauc data prepare")
        parts, dropped = filters.clean(parts, limits)
        for text, count in dropped.items():
            log.info(f"{path}: dropped {count:,} {text}")
        if rules := self.rules():
            parts = {name: part.with_rules(**rules) for name, part in parts.items()}
        if events.weights is not None:
            log.info(f"left out of the lists: {next(iter(parts.values())).rules.excluded_text}")
        if isinstance(data, Split):
            return Split(**parts, notes=data.notes)
        return replace(data, interactions=parts["data"])


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
