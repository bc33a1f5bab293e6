"""Which column holds the users, items, ratings and timestamps: requested, or detected.

A column is detected by a well-known name, by a name that begins or ends with a word such as `user`
or `product`, by e-mail addresses as values (users), or by position in a file of up to four columns
without a header. The choice is recorded in the notes; where several columns are equally likely, the
error shows the first rows and the options to type.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from llpauc.errors import InputError, listing

Column = str | int | None
ValueKind = Literal["number", "date"]
# The names in `llpauc.data.formats.FORMATS`, for help texts: that module takes long to import.
FORMAT_NAMES = (
    *("csv", "tsv", "inter", "u.data", "ratings.dat", "adjacency", "parquet", "arrow", "jsonl"),
    *("sqlite", "duckdb"),
)
ROLES = ("user", "item", "rating", "timestamp", "weight", "event_type")
_DETECTED = ROLES[:4]  # the others are used only if they are requested
SAMPLE_ROWS = 200  # that are used for detection
EPOCH = 1e8  # seconds: larger numbers are dates after March 1973, smaller ones may be anything

# Names as `normalized_name` returns them. If a file has several of a role, the first here counts.
_KNOWN_NAMES = {
    "user": "user userid uid useridx username reviewerid reviewer customerid customer memberid"
    " visitorid accountid profileid email emailaddress sessionid",
    "item": "item itemid iid itemidx movieid movie parentasin asin businessid productid product"
    " bookid isbn songid trackid artistid videoid newsid articleid gameid venueid sku",
    "rating": "rating ratings stars star score overall dwell dwelltime",
    "timestamp": "timestamp ts time unixtime unixreviewtime datetime date eventtime occurredat"
    " createdat reviewdate reviewtime",
}
KNOWN_NAMES = {role: names.split() for role, names in _KNOWN_NAMES.items()}
# Words at the end or the beginning of other names: `product_user` is a user.
_ROLE_WORDS = {
    "user": "user customer member visitor account session reviewer buyer shopper client subscriber"
    " viewer email uid",
    "item": "item product sku movie film article track song asin video business book venue iid",
    "rating": "rating stars score",
    "timestamp": "timestamp datetime date time",
}
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_ID_ENDING = re.compile(
    r"(?<=...)(ids?|idx|index|no|nr|num|number|key|code|hash|uuid|guid|procid|token)$"
)
# Words of names that describe a user or an item, and are not ids.
_DESCRIPTIVE = re.compile(
    r"age|agent|amount|balance|brand|category|city|class|color|comment|count|country|desc|"
    r"description|device|domain|duration|event|gender|genres?|group|image|ing|ip|kind|lang|language|"
    r"lat|length|level|list|location|lon|order|os|position|price|quantity|rank|ratings?|region|"
    r"review|score|segment|ship|since|size|stars?|state|status|summary|tags?|text|tier|total|type|"
    r"url|version|views|weight|year|zip"
)
_TYPE_NAMES = {"eventtype", "event", "type", "action", "kind", "behavior", "behaviour"}
_WEIGHT_NAMES = {"weight", "quantity", "qty", "count", "plays", "playcount", "listens"}
_TITLE = re.compile(r"name|title")
_NOT_EVENTS = re.compile(r"birth|release|publish|expir|signup|regist|join|deliver|ship|due")
_ISO_DATE = re.compile(r"\d{4}-\d{1,2}-\d{1,2}([T ]\d{1,2}:\d{2}.*)?")
_EMAIL = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+")


@dataclass(frozen=True)
class ColumnRoles:
    """The position of each role's column.

    Args:
        positions: role -> position, user and item first; a role without a column is missing.
        timestamp_kind: how the timestamps are written.
        notes: what was detected.
        header: the user's and the item's field in the header of a text table.
        blanks: characters that are no part of an id at its ends.
        event_types: the types that have a weight.
    """

    positions: Mapping[str, int]
    timestamp_kind: ValueKind
    notes: tuple[str, ...]
    header: tuple[str, str] | None = None
    blanks: str = ""
    event_types: tuple[str, ...] = ()

    def kind(self, role: str) -> ValueKind:
        return self.timestamp_kind if role == "timestamp" else "number"


def normalized_name(name: str) -> str:
    """A column name without case, punctuation and RecBole's type.

    >>> normalized_name("user_id:token"), normalized_name("movieId")
    ('userid', 'movieid')
    """
    return re.sub(r"[^a-z0-9]", "", name.split(":")[0].lower())


def printable(name: str) -> str:
    """A name shortened and escaped for a message of one line."""
    short = name if len(name) <= 200 else name[:197] + "..."
    return short if short.isprintable() else repr(short)[1:-1]


def value_kind(values: Sequence[str]) -> ValueKind | None:
    """How most of the values are written; None if none is a number or a date.

    >>> value_kind(["1", "2.5", "x"]), value_kind(["2020-01-31"]), value_kind(["x"])
    ('number', 'date', None)
    """
    numbers = sum(is_number(value) for value in values)
    dates = sum(_ISO_DATE.fullmatch(value) is not None for value in values)
    if not numbers and not dates:
        return None
    return "number" if numbers >= dates else "date"


def is_number(text: str) -> bool:
    """Whether a sampled value is a finite number; for reading, the cast in SQL decides.

    >>> is_number("1e3"), is_number("nan"), is_number("x")
    (True, False, False)
    """
    try:
        return text.isascii() and math.isfinite(float(text))
    except ValueError:
        return False


@dataclass(frozen=True)
class Sample:
    """The names and the first values of a source's columns.

    Args:
        source: its name, for messages.
        columns: the names; without a header, the positions as text.
        values: the first values of each column as text.
        header: whether the names come from the source.
        kinds: how the values are written if their type says so; by default the text decides.
    """

    source: str
    columns: Sequence[str]
    values: Sequence[Sequence[str]]
    header: bool = True
    kinds: Sequence[ValueKind | None] | None = None

    def kind(self, position: int) -> ValueKind | None:
        return value_kind(self.values[position]) if self.kinds is None else self.kinds[position]

    def holds_moments(self, position: int) -> bool:
        """Whether the values are dates, or numbers so large that they can be."""
        if self.kind(position) == "date":
            return True
        numbers = [float(value) for value in self.values[position] if is_number(value)]
        return bool(numbers) and self.kind(position) == "number" and min(numbers) >= EPOCH

    def holds_emails(self, position: int) -> bool:
        given = [value for value in self.values[position] if value]
        return bool(given) and all(_EMAIL.fullmatch(value) for value in given)

    def label(self, position: int) -> str:
        name = f"'{printable(self.columns[position])}'" if self.header else position
        return f"column {name}"

    @property
    def available(self) -> str:
        if not self.header:
            return f"0 to {len(self.columns) - 1}"
        return listing(printable(column) for column in self.columns)

    @property
    def first_rows(self) -> str:
        """The first two rows, shortened, for a message."""
        rows = zip(*(values[:2] for values in self.values[:8]), strict=False)
        shown = (", ".join(printable(value[:15]) for value in row) for row in rows)
        return " | ".join(shown)


def detect_columns(sample: Sample, requested: Mapping[str, Column]) -> ColumnRoles:
    """Find the column of each role.

    Args:
        sample: of the source.
        requested: role -> name, position from 0, or None to detect; "none" ignores a rating or
            timestamp column. Weights may be in the column of the ratings.
    """
    name, columns = sample.source, sample.columns

    # Requested columns, then the others.
    by_position = all(str(requested[role]).isdecimal() for role in ("user", "item"))
    repeated = [column for column in columns if columns.count(column) > 1]
    if sample.header and repeated and not by_position:
        raise InputError(
            f"{name}: {columns.count(repeated[0])} columns are called '{printable(repeated[0])}'; "
            "rename all but one, or give the columns by position (user=0, item=1; "
            "--user 0 --item 1)"
        )
    given: dict[str, int] = {}
    for role, column in requested.items():
        ignored = column == "none" and role in ("rating", "timestamp") and "none" not in columns
        if column is not None and not ignored:
            given[role] = _position_of(sample, role, column)
    open_roles = [role for role in _DETECTED if requested[role] is None]
    detect = _detect_by_name if sample.header else _detect_by_position
    taken = {position for role, position in given.items() if role != "weight"}
    detected = detect(sample, open_roles, taken)

    # Values of detected columns that cannot be read; missing and repeated roles.
    notes = []
    for role, kinds in (("rating", ("number",)), ("timestamp", ("number", "date"))):
        # A column named like a rating is one: reading names the first row that is not a number.
        by_name = sample.header and role == "rating"
        if role in detected and not by_name and sample.kind(detected[role]) not in kinds:
            notes.append(
                f"{name}: {sample.label(detected.pop(role))} ignored, its values are not readable"
                f" as {role}s ({role}= picks a column)"
            )
    positions = {role: {**given, **detected}[role] for role in ROLES if role in given | detected}
    for role in ("user", "item"):
        if role not in positions:
            raise InputError(
                f"{name}: cannot detect which column is the {role}; the columns are: "
                f"{sample.available}; the first rows: {sample.first_rows}; give user= and item= by "
                "name or position (--user NAME --item NAME)"
            )
    role_of: dict[int, str] = {}
    for role, position in positions.items():
        if position in role_of and (role_of[position], role) != ("rating", "weight"):
            raise InputError(
                f"{name}: {sample.label(position)} cannot be both {role_of[position]} and {role}"
            )
        role_of[position] = role
    choice = ", ".join(
        f"{role} = {sample.label(position)}{' (detected)' if role in detected else ''}"
        for role, position in positions.items()
    )
    notes += [f"{name}: {text}" for text in _unused(sample, set(role_of))]
    dated = "timestamp" in positions and sample.kind(positions["timestamp"]) == "date"
    return ColumnRoles(positions, "date" if dated else "number", (f"{name}: {choice}", *notes))


def _unused(sample: Sample, used: set[int]) -> Iterator[str]:
    """Notes on columns without a role that look like event types or weights."""
    for position, column in enumerate(sample.columns if sample.header else ()):
        name, kind, option = normalized_name(column), sample.kind(position), printable(column)
        if position in used:
            continue
        if name in _TYPE_NAMES and kind is None:
            types = dict.fromkeys(value for value in sample.values[position] if value)
            yield (
                f"{sample.label(position)} ({listing(map(printable, types), 3)}) is not used;"
                f" --event-type {option} --event-weights TYPE=WEIGHT,... reads event types"
            )
        elif name in _WEIGHT_NAMES and kind == "number":
            yield f"{sample.label(position)} is not used; --weight {option} reads weights"


def _position_of(sample: Sample, role: str, column: str | int) -> int:
    """The position of a requested column."""
    columns = sample.columns
    if isinstance(column, str) and columns.count(column) == 1:
        return columns.index(column)
    remedy = f"the columns are: {sample.available}"
    if isinstance(column, int) or column.isdecimal():
        if not isinstance(column, bool) and 0 <= int(column) < len(columns):
            return int(column)
        column = int(column)
        remedy = f"positions are 0 to {len(columns) - 1}"
    elif not sample.header:
        remedy = f"there is no header, so give a position: {sample.available}"
    raise InputError(f"{sample.source}: no column {column!r} for the {role}; {remedy}")


def _detect_by_name(sample: Sample, roles: Sequence[str], taken: set[int]) -> dict[str, int]:
    """Role -> position, by well-known names, then by the words in the names."""
    columns = sample.columns
    free = [p for p in range(len(columns)) if p not in taken and columns.count(columns[p]) == 1]
    names = {columns[position]: position for position in free}
    detected: dict[str, int] = {}
    for role in roles:
        found = [names[name] for name in known_names(role, names)]
        if role == "timestamp":
            found = [position for position in found if sample.kind(position)] or found
        likely = [names[name] for name in likely_names(role, names)] if not found else found[:1]
        if role == "timestamp" and not found:
            likely = [position for position in likely if sample.holds_moments(position)]
        elif role == "rating" and not found:
            likely = [position for position in likely if sample.kind(position) == "number"]
            likely = likely if len(likely) == 1 else []  # ratings are not needed
        elif role == "user" and not likely:
            likely = [position for position in free if sample.holds_emails(position)]
        if len(likely) > 1:
            options = [f"--{role} {printable(columns[position])}" for position in likely[:4]]
            raise InputError(
                f"{sample.source}: several columns may be the {role}; the first rows: "
                f"{sample.first_rows}; give {' or '.join(options)} ({role}= in Python)"
            )
        if likely:
            detected[role] = likely[0]
    return detected


def _detect_by_position(sample: Sample, roles: Sequence[str], taken: set[int]) -> dict[str, int]:
    """Role -> position in a file without a header: user, item, then rating and timestamp."""
    if len(sample.columns) > 4:  # the order of more columns is not obvious
        return {}
    free = [position for position in range(len(sample.columns)) if position not in taken]
    detected: dict[str, int] = {}
    dates = [position for position in free if sample.kind(position) == "date"]
    emails = [position for position in free if sample.holds_emails(position)]
    if "timestamp" in roles and dates:
        detected["timestamp"] = dates[0]
    if "user" in roles and len(emails) == 1:
        detected["user"] = emails[0]
    free = [position for position in free if position not in detected.values()]
    for role in roles:
        if role not in detected and free:
            # Ids may be large numbers, ratings are not: this column is the time.
            if role == "rating" and "timestamp" in roles and sample.holds_moments(free[0]):
                detected.setdefault("timestamp", free.pop(0))
            if free:
                detected[role] = free.pop(0)
    return detected


def known_names(role: str, names: Iterable[str]) -> list[str]:
    """The names that are well known for a role, the best first.

    >>> known_names("item", ["asin", "userId", "parent_asin"])
    ['parent_asin', 'asin']
    """
    order = KNOWN_NAMES[role]
    known = [name for name in names if normalized_name(name) in order]
    return sorted(known, key=lambda name: order.index(normalized_name(name)))


def likely_names(role: str, names: Iterable[str]) -> list[str]:
    """The names whose words fit a role; a name or title of an item only if there is no id.

    >>> likely_names("item", ["product_title", "product_no", "product_price", "id_member"])
    ['product_no']
    """
    likely = [name for name in names if _role_by_words(name) == role]
    return [name for name in likely if not _TITLE.search(name.lower())] or likely


def _role_by_words(name: str) -> str | None:
    """The role of a column by the word its name ends with, else by the one it begins with."""
    words = [word.lower() for word in _WORD.findall(name.split(":")[0])]
    text = "".join(words)
    if any(text in known for known in KNOWN_NAMES.values()):
        return None
    stem = _ID_ENDING.sub("", _ID_ENDING.sub("", text))
    roles = {word: role for role, known in _ROLE_WORDS.items() for word in known.split()}
    last = [word for word in roles if stem.endswith(word) or text.endswith(word)]
    first = [word for word in roles if stem.startswith(word)]
    ids = [word for word in (*last, *first) if roles[word] in ("user", "item")]
    in_time = {"at", "on", "ts", "dt", "when"}.intersection(words[-1:])
    if in_time or (last and roles[last[0]] == "timestamp"):
        # The date of a user or an item is not the time of an event.
        return None if ids or _NOT_EVENTS.search(text) else "timestamp"
    if not last and not first:
        return None
    word = max(last or first, key=len)
    rest = {*words, stem.removesuffix(word) if last else stem.removeprefix(word)} - {word}
    if roles[word] in ("user", "item") and any(map(_DESCRIPTIVE.fullmatch, rest)):
        return None
    return roles[word]
