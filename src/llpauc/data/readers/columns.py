"""Which column is the user, the item, the rating, the timestamp: told, or guessed when obvious."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llpauc.data.readers.gathering import ValueKind
from llpauc.errors import InputError, listing

Column = str | int | None
ROLES = ("user", "item", "rating", "timestamp")

# Names as `plain` leaves them; where a file has two of them, the earlier one is meant.
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
class Roles:
    """Position of each role's column, how its values are written, and which were guessed."""

    user: int
    item: int
    rating: int | None
    timestamp: int | None
    timestamp_kind: ValueKind
    notes: tuple[str, ...]

    @property
    def positions(self) -> dict[str, int]:
        """The roles that are there, by name, user and item first."""
        named = {role: getattr(self, role) for role in ROLES}
        return {role: place for role, place in named.items() if place is not None}

    def kind(self, role: str) -> ValueKind:
        return self.timestamp_kind if role == "timestamp" else "number"


def plain(name: str) -> str:
    """A column name without case, punctuation and RecBole's type.

    >>> plain("user_id:token"), plain("movieId")
    ('userid', 'movieid')
    """
    return re.sub(r"[^a-z0-9]", "", name.split(":")[0].lower())


def tidy(name: str) -> str:
    """A name fit for a message of one line."""
    short = name if len(name) <= 200 else name[:197] + "..."
    return short if short.isprintable() else repr(short)[1:-1]


def value_kind(values: Sequence[str]) -> ValueKind | None:
    """What most of the readable values are written as; None when none can be read.

    >>> value_kind(["1", "2.5", "x"]), value_kind(["2020-01-31"]), value_kind(["x"])
    ('number', 'date', None)
    """
    numbers = sum(is_number(value) for value in values)
    dates = sum(_ISO_DATE.fullmatch(value) is not None for value in values)
    if not numbers and not dates:
        return None
    return "number" if numbers >= dates else "date"


def is_number(text: str) -> bool:
    """A finite number in ASCII digits: a guess for the sample, the cast in SQL decides.

    >>> is_number("1e3"), is_number("nan"), is_number("x")
    (True, False, False)
    """
    try:
        return text.isascii() and math.isfinite(float(text))
    except ValueError:
        return False


def choose_columns(
    name: str,
    columns: Sequence[str],
    *,
    header: bool,
    wanted: dict[str, Column],
    kind_of: Callable[[int], ValueKind | None],
) -> Roles:
    """Find the column of each role.

    Args:
        name: the source, for messages.
        columns: its column names; without a header, the positions as text.
        header: whether the names came from the source.
        wanted: what the caller asked for, by role: a name, a position from 0, or None to guess;
            "none" leaves a rating or timestamp column aside.
        kind_of: how the values at a position are written.
    """
    by_position = all(str(wanted[role]).isdecimal() for role in ("user", "item"))
    twice = [column for column in dict.fromkeys(columns) if columns.count(column) > 1]
    if header and twice and not by_position:
        raise InputError(
            f"{name}: {columns.count(twice[0])} columns are called '{tidy(twice[0])}'; rename "
            "all but one, or give the columns by position (user=0, item=1; --user 0 --item 1)"
        )
    found: dict[str, int] = {}
    for role in ROLES:
        if wanted[role] is not None and not _is_none(role, wanted[role], columns):
            found[role] = _asked(name, columns, header, role, wanted[role])
    guessed = _guessed(columns, header, wanted, found, kind_of)
    notes = []
    for role in ("rating", "timestamp"):
        # What calls itself a rating must be one: the reading will name the first row that is not.
        named = header and role == "rating"
        if role in guessed and not named and kind_of(guessed[role]) not in _FITTING[role]:
            column = _shown(columns, header, guessed.pop(role))
            notes.append(
                f"{name}: {column} left aside, its values are no {role}s we can read "
                f"({role}= picks a column)"
            )
    places = {**found, **guessed}
    for role in ("user", "item"):
        if role not in places:
            raise InputError(
                f"{name}: cannot tell which column is the {role}; the columns are: "
                f"{_listed(columns, header)}; give user= and item= by name or position "
                "(--user NAME --item NAME)"
            )
    for role, place in places.items():
        for other, same in places.items():
            if role < other and place == same:
                raise InputError(
                    f"{name}: {_shown(columns, header, place)} cannot be both {other} and {role}"
                )
    notes.insert(0, f"{name}: " + _said(columns, header, places, guessed))
    time = places.get("timestamp")
    return Roles(
        user=places["user"],
        item=places["item"],
        rating=places.get("rating"),
        timestamp=time,
        timestamp_kind="date" if time is not None and kind_of(time) == "date" else "number",
        notes=tuple(notes),
    )


_FITTING: dict[str, tuple[ValueKind, ...]] = {
    "rating": ("number",),
    "timestamp": ("number", "date"),
}


def _is_none(role: str, asked: Column, columns: Sequence[str]) -> bool:
    return asked == "none" and role in ("rating", "timestamp") and "none" not in columns


def _asked(name: str, columns: Sequence[str], header: bool, role: str, asked: Column) -> int:
    matches = [place for place, column in enumerate(columns) if column == asked]
    if isinstance(asked, str) and len(matches) == 1:
        return matches[0]
    if isinstance(asked, int) or (isinstance(asked, str) and asked.isdecimal()):
        if not isinstance(asked, bool) and 0 <= int(asked) < len(columns):
            return int(asked)
        raise InputError(
            f"{name}: no column {asked} for the {role}; positions run from 0 to {len(columns) - 1}"
        )
    if len(matches) > 1:
        raise InputError(f"{name}: {len(matches)} columns are called {asked!r}; give the position")
    there = "the columns are: " if header else "there is no header, so give a position: "
    raise InputError(
        f"{name}: no column {asked!r} for the {role}; {there}{_listed(columns, header)}"
    )


def _guessed(
    columns: Sequence[str],
    header: bool,
    wanted: dict[str, Column],
    found: dict[str, int],
    kind_of: Callable[[int], ValueKind | None],
) -> dict[str, int]:
    open_roles = [role for role in ROLES if wanted[role] is None]
    free = [place for place in range(len(columns)) if place not in found.values()]
    guessed: dict[str, int] = {}
    if header:
        single = [place for place in free if columns.count(columns[place]) == 1]
        by_name = {plain(columns[place]): place for place in reversed(single)}
        for role in open_roles:
            for known in KNOWN_NAMES[role]:
                if known in by_name:
                    guessed[role] = by_name[known]
                    break
        return guessed
    if len(columns) > 4:  # too many to be obvious
        return guessed
    for role in open_roles:
        if not free:
            break
        kind = kind_of(free[0])
        if role == "rating" and kind == "date":  # user, item, date
            continue
        guessed[role] = free.pop(0)
    return guessed


def _shown(columns: Sequence[str], header: bool, place: int) -> str:
    return f"column '{tidy(columns[place])}'" if header else f"column {place}"


def _listed(columns: Sequence[str], header: bool) -> str:
    return listing(tidy(column) for column in columns) if header else f"0 to {len(columns) - 1}"


def _said(
    columns: Sequence[str], header: bool, places: dict[str, int], guessed: dict[str, int]
) -> str:
    words = []
    for role in ROLES:
        if role in places:
            how = " (guessed)" if role in guessed else ""
            words.append(f"{role} = {_shown(columns, header, places[role])}{how}")
    return ", ".join(words)
