"""Which column holds the users, items, ratings and timestamps: requested, or detected.

Columns are detected by well-known names, or by position in a file of up to four columns without a
header. What was detected is recorded in the notes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from llpauc.errors import InputError, listing

Column = str | int | None
ValueKind = Literal["number", "date"]
# The names in `llpauc.data.formats.FORMATS`, for help texts: that module takes long to import.
FORMAT_NAMES = ("csv", "tsv", "inter", "u.data", "ratings.dat", "adjacency", "parquet", "jsonl")
ROLES = ("user", "item", "rating", "timestamp")
SAMPLE_ROWS = 200  # that are used for detection

# Names as `normalized_name` returns them. If a file has several of a role, the first here counts.
KNOWN_NAMES: dict[str, tuple[str, ...]] = {
    "user": (
        *("user", "userid", "uid", "useridx", "username", "reviewerid", "reviewer"),
        *("customerid", "customer", "memberid", "visitorid", "accountid", "profileid"),
    ),
    "item": (
        *("item", "itemid", "iid", "itemidx", "movieid", "movie", "parentasin", "asin"),
        *("businessid", "productid", "product", "bookid", "isbn", "songid", "trackid"),
        *("artistid", "videoid", "newsid", "articleid", "gameid", "venueid", "sku"),
    ),
    "rating": ("rating", "ratings", "stars", "star", "score", "overall", "dwell", "dwelltime"),
    "timestamp": (
        *("timestamp", "ts", "time", "unixtime", "unixreviewtime", "datetime", "date"),
        *("eventtime", "createdat", "reviewdate", "reviewtime"),
    ),
}
_ISO_DATE = re.compile(r"\d{4}-\d{1,2}-\d{1,2}([T ]\d{1,2}:\d{2}.*)?")


@dataclass(frozen=True)
class ColumnRoles:
    """The position of each role's column.

    Args:
        positions: role -> position, user and item first; a role without a column is missing.
        timestamp_kind: how the timestamps are written.
        notes: what was detected.
    """

    positions: Mapping[str, int]
    timestamp_kind: ValueKind
    notes: tuple[str, ...]

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


def detect_columns(
    name: str,
    columns: Sequence[str],
    *,
    header: bool,
    requested: Mapping[str, Column],
    kind_of: Callable[[int], ValueKind | None],
) -> ColumnRoles:
    """Find the column of each role.

    Args:
        name: the source, for messages.
        columns: its column names; without a header, the positions as text.
        header: whether the names come from the source.
        requested: role -> name, position from 0, or None to detect; "none" ignores a rating or
            timestamp column.
        kind_of: how the values at a position are written.
    """

    available = (
        listing(printable(column) for column in columns) if header else f"0 to {len(columns) - 1}"
    )

    def label(position: int) -> str:
        return f"column '{printable(columns[position])}'" if header else f"column {position}"

    def position_of(role: str, column: str | int) -> int:
        if isinstance(column, str) and columns.count(column) == 1:
            return columns.index(column)
        remedy = f"the columns are: {available}"
        if isinstance(column, int) or column.isdecimal():
            if not isinstance(column, bool) and 0 <= int(column) < len(columns):
                return int(column)
            column = int(column)
            remedy = f"positions are 0 to {len(columns) - 1}"
        elif not header:
            remedy = f"there is no header, so give a position: {available}"
        raise InputError(f"{name}: no column {column!r} for the {role}; {remedy}")

    # Requested columns, then the others.
    by_position = all(str(requested[role]).isdecimal() for role in ("user", "item"))
    repeated = [column for column in columns if columns.count(column) > 1]
    if header and repeated and not by_position:
        raise InputError(
            f"{name}: {columns.count(repeated[0])} columns are called '{printable(repeated[0])}'; "
            "rename all but one, or give the columns by position (user=0, item=1; "
            "--user 0 --item 1)"
        )
    given: dict[str, int] = {}
    for role, column in requested.items():
        ignored = column == "none" and role in ("rating", "timestamp") and "none" not in columns
        if column is not None and not ignored:
            given[role] = position_of(role, column)
    detected = _detect(columns, header, requested, given, kind_of)

    # Values of detected columns that cannot be read; missing and repeated roles.
    notes = []
    for role, kinds in (("rating", ("number",)), ("timestamp", ("number", "date"))):
        # A column named like a rating is one: reading names the first row that is not a number.
        by_name = header and role == "rating"
        if role in detected and not by_name and kind_of(detected[role]) not in kinds:
            notes.append(
                f"{name}: {label(detected.pop(role))} ignored, its values are not readable as "
                f"{role}s ({role}= picks a column)"
            )
    positions = {role: {**given, **detected}[role] for role in ROLES if role in given | detected}
    for role in ("user", "item"):
        if role not in positions:
            raise InputError(
                f"{name}: cannot detect which column is the {role}; the columns are: {available}; "
                "give user= and item= by name or position (--user NAME --item NAME)"
            )
    role_of: dict[int, str] = {}
    for role, position in positions.items():
        if position in role_of:
            raise InputError(
                f"{name}: {label(position)} cannot be both {role_of[position]} and {role}"
            )
        role_of[position] = role
    choice = ", ".join(
        f"{role} = {label(position)}{' (detected)' if role in detected else ''}"
        for role, position in positions.items()
    )
    dated = "timestamp" in positions and kind_of(positions["timestamp"]) == "date"
    return ColumnRoles(positions, "date" if dated else "number", (f"{name}: {choice}", *notes))


def _detect(
    columns: Sequence[str],
    header: bool,
    requested: Mapping[str, Column],
    given: Mapping[str, int],
    kind_of: Callable[[int], ValueKind | None],
) -> dict[str, int]:
    """Role -> position of the roles that were not requested."""
    open_roles = [role for role in ROLES if requested[role] is None]
    free = [position for position in range(len(columns)) if position not in given.values()]
    detected: dict[str, int] = {}
    if header:
        unique = [position for position in free if columns.count(columns[position]) == 1]
        by_name = {normalized_name(columns[position]): position for position in reversed(unique)}
        for role in open_roles:
            matches = [by_name[known] for known in KNOWN_NAMES[role] if known in by_name]
            detected |= {role: matches[0]} if matches else {}
    elif len(columns) <= 4:  # the order of more columns is not obvious
        for role in open_roles:
            # A date in the place of the rating: the columns are user, item, date.
            if free and not (role == "rating" and kind_of(free[0]) == "date"):
                detected[role] = free.pop(0)
    return detected
