"""Whether the ids of one table meet those of another: metrics on ids that do not mean nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from llpauc.data.interactions import Interactions, Split
from llpauc.errors import InputError

Ids = Mapping[str, pa.LargeStringArray]  # "user" and "item" -> distinct ids

_FEW = 0.05  # fraction of known ids below which something is wrong
_EXPLAINED = 0.5  # fraction of known ids after the correction of a likely cause
_MANY = 10  # ids that are all unknown for one reason; a few new ones are normal in an update
_CHUNK = 1 << 22
_TRIED: dict[str, Callable[[pa.Array], pa.Array]] = {
    "spaces around the ids": pc.utf8_trim_whitespace,
    "quotes around the ids": lambda ids: pc.utf8_trim(ids, "\"'"),
    "ids written as decimal numbers": lambda ids: pc.replace_substring_regex(ids, r"\.0+$", ""),
    "leading zeros": lambda ids: pc.replace_substring_regex(ids, r"^0+([0-9])", r"\1"),
    "upper and lower case": pc.utf8_lower,
}


def check_parts(split: Split) -> list[str]:
    """How many ids of valid and test are in train, and warnings, one line each.

    Raises:
        InputError: if almost no item of a part is in train, or almost no user for a likely cause.
    """
    messages: list[str] = []
    known = ids_with_events(split.train)
    for name in ("valid", "test"):
        part = split.parts.get(name)
        if not part:
            continue
        messages += check_known(ids_with_events(part), known, name, "train", required={"item"})
        # Such an event of train is masked when a model is evaluated.
        repeated = int(np.count_nonzero(split.train.excluded[part.users, part.items]))
        if repeated:
            remedy = "drop them from one of the parts"
            remedy = remedy if part.types is None else "--exclude chooses what is masked"
            messages.append(
                f"{name}: {repeated:,} of {len(part):,} events are in train too; they are masked"
                f" and count as not found; {remedy}"
            )
    return messages


def ids_with_events(events: Interactions) -> Ids:
    """The ids of the users and items that have events."""
    ids = {}
    columns = {"user": (events.users, events.user_ids), "item": (events.items, events.item_ids)}
    for role, (indices, id_map) in columns.items():
        present = np.zeros(len(id_map), bool)
        for start in range(0, len(indices), _CHUNK):  # a mapped column is never copied as a whole
            present[indices[start : start + _CHUNK]] = True
        ids[role] = id_map.text if present.all() else id_map.text.filter(pa.array(present))
    return ids


def check_known(
    ids: Ids, known: Ids, name: str, source: str, required: Collection[str] = ()
) -> list[str]:
    """How many of `ids` are known, and warnings.

    Args:
        ids: what is evaluated, for example.
        known: what a model was trained on.
        name, source: what messages call the two.
        required: roles of which almost no known id is an error even without a likely cause.
    """
    counts = {role: _count(ids[role], known[role]) for role in ids}
    messages = [
        f"{name}: {counts['user']:,} of {len(ids['user']):,} users and {counts['item']:,} of"
        f" {len(ids['item']):,} items are in {source}"
    ]
    for role, other in (("user", "item"), ("item", "user")):
        total = len(ids[role])
        if counts[role] >= _FEW * total or (total < _MANY and not required):
            continue
        problem = f"{name}: only {counts[role]:,} of {total:,} {role}s are in {source}"
        cause = _exchanged(ids[role], known[other]) or likely_cause(ids[role], known[role], source)
        if cause is None and role in required:
            cause = "these are not the files of one data set, or another column holds the ids"
        if cause is not None:
            raise InputError(f"{problem}: {cause}")
        if required:
            messages.append(
                f"{problem}; the others get the list of a user without history, which the metrics"
                " then describe"
            )
    return messages


def _count(ids: pa.Array, known: pa.Array) -> int:
    return int(pc.sum(pc.is_in(ids, value_set=known)).as_py() or 0)


def _exchanged(ids: pa.Array, others: pa.Array) -> str | None:
    if _count(ids, others) < _EXPLAINED * len(ids):
        return None
    return "the columns of users and items are exchanged; name them (--user, --item)"


def likely_cause(ids: pa.Array, known: pa.Array, source: str) -> str | None:
    """How ids are written differently from the known ones of `source`; None if that is not it."""
    needed = _EXPLAINED * len(ids)
    changed, changed_known = ids, known
    for cause, change in _TRIED.items():
        changed, changed_known = change(changed), change(changed_known)
        if _count(changed, changed_known) >= needed:
            places: Any = pc.index_in(changed, value_set=changed_known)
            first = pc.index(pc.is_valid(places), True).as_py()
            one, other = ids[first].as_py(), known[places[first].as_py()].as_py()
            return f"{cause}: {one!r:.80}, in {source} {other!r:.80}; write them in the same way"
    return None
