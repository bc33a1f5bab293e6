"""Raw files of any size into prepared data (`llpauc.data.prepared`), within a stated memory.

`staging` reads the files into a DuckDB file, numbers the ids and sorts the events by user and item;
`parting` says which part each pair goes to; `shuffling` brings the training events into random
order. Everything lies in one hidden folder beside the target until it is whole.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from llpauc.data.prepared import PREPARED_DATA, check_replaceable, write_columns
from llpauc.data.preparing.columns import GrowingColumns, as_arrow
from llpauc.data.preparing.parting import Pairs, Parting, check_options, parting
from llpauc.data.preparing.shuffling import BucketShuffle
from llpauc.data.preparing.staging import Source, Stage, read_all
from llpauc.data.readers import BAD_ROWS, ReadOptions
from llpauc.errors import InputError, choose
from llpauc.storage.atomic import replace_folder, temporary_folder, write_error
from llpauc.storage.manifest import write_manifest

_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
LEAST_MEMORY = 200 * 10**6  # DuckDB's reader of text holds buffers of 64 MB

Tell = Callable[[str], None]


def memory_bytes(text: str) -> int:
    """
    >>> memory_bytes("4GB"), memory_bytes("1.5 gb")
    (4000000000, 1500000000)
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]b)\s*", text, re.IGNORECASE)
    if not found:
        raise InputError(f"memory must be a number and a unit such as 4GB, got {text!r}")
    size = int(float(found[1]) * _UNITS[found[2].upper()])
    if size < LEAST_MEMORY:
        raise InputError(f"memory must be at least {LEAST_MEMORY // 10**6}MB, got {text!r}")
    return size


def prepare(
    files: Sequence[str | PathLike[str]],
    out: str | PathLike[str],
    *,
    how: str = "random_per_user",
    seed: int = 0,
    memory: str = "4GB",
    min_rating: float | None = None,
    held_out_users: int | None = None,
    tell: Tell = lambda text: None,
    reading: ReadOptions | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Turn files of events into a folder that training maps into memory.

    Args:
        files: tables of text (gzipped or not) or Parquet files, read one behind the other.
        out: the folder; prepared data that are there are replaced, other files are not.
        how: the split, a name in `llpauc.data.splits.SPLITS`.
        seed: of the split and of the order of the training events.
        memory: what DuckDB may take; the rest of the program needs about half a gigabyte.
        min_rating: first drop events rated lower than this.
        held_out_users: hold out events of so many users only; None for all.
        tell: called with a line for people now and then.
        reading: how to read the files, as for `read_interactions`.
        options: of the split, such as valid=0.1 and test=0.2.

    Returns:
        The manifest that was written.
    """
    limit = f"{memory_bytes(memory) // 10**6}MB"
    source = _source(reading or {})
    check_options(True, how, held_out_users, **options)
    if not files:
        raise InputError("there is no file to prepare; name one or several")
    target = Path(out).resolve()
    check_replaceable(target)
    try:
        with temporary_folder(target) as work:
            (work / "set").mkdir()
            pairs, told, ids = _pairs_of(files, source, work, limit, min_rating, tell)
            rule = parting(pairs, how, seed, held_out_users, **options)
            counts, notes = _write_parts(pairs, rule, seed, work)
            manifest = write_manifest(
                work / "set",
                PREPARED_DATA,
                seed=seed,
                counts={**ids, **counts},
                rows=told["rows"],
                kinds=told["kinds"],
                notes=[*told["notes"], *notes],
            )
            for note in notes:
                tell(note)
            replace_folder(work / "set", target)
    except (duckdb.Error, pa.ArrowException, OSError) as error:
        if "Out of Memory" in str(error):  # DuckDB's; while batches are streamed it has no class
            raise InputError(
                f"memory={memory} is too little for this data; give more (--memory)"
            ) from None
        raise write_error(target, error) from None
    return manifest


def _source(reading: ReadOptions) -> Source:
    bad_rows = reading.get("bad_rows", "error")
    choose(BAD_ROWS, bad_rows, "bad_rows")
    return Source(
        wanted={
            "user": reading.get("user"),
            "item": reading.get("item"),
            "rating": reading.get("rating"),
            "timestamp": reading.get("timestamp"),
        },
        format=reading.get("format"),
        header=reading.get("header"),
        delimiter=reading.get("delimiter"),
        bad_rows=bad_rows,
    )


def _pairs_of(
    files: Sequence[str | PathLike[str]],
    source: Source,
    work: Path,
    limit: str,
    min_rating: float | None,
    tell: Tell,
) -> tuple[Pairs, dict[str, Any], dict[str, int]]:
    """The distinct pairs in files of their own; DuckDB and what it held are gone then."""
    staged = work / "stage"
    staged.mkdir()
    stage = Stage(staged, limit)
    try:
        read_all([Path(file) for file in files], source, stage, tell)
        ids = {role: stage.give_rows(role, min_rating) for role in ("user", "item")}
        for role, found in ids.items():
            write_columns(work / "set" / f"{role}s.arrow", {"id": found.ids.text})
        sizes = {f"{role}s": len(found.ids) for role, found in ids.items()}
        tell(f"{sum(stage.rows):,} events of {sizes['users']:,} users, {sizes['items']:,} items")
        timed = "timestamp" in stage.has
        kinds: dict[str, Any] = {"timestamp": np.float64} if timed else {}
        columns = GrowingColumns(work, "pairs", item=np.int32, **kinds)
        per_user = np.zeros(sizes["users"], np.int64)
        last, events = -1, 0
        for pair, times in stage.sorted_pairs(min_rating):
            new = np.diff(pair, prepend=last) != 0
            last = int(pair[-1])
            events += len(pair)
            pair = pair[new]
            if len(pair):
                first = int(pair[0] >> 32)
                here = np.bincount((pair >> 32) - first)
                per_user[first : first + len(here)] += here
                more = {} if times is None else {"timestamp": times[new]}
                columns.append(item=pair & 0xFFFFFFFF, **more)
    finally:
        stage.close()
    shutil.rmtree(staged)
    notes = list(stage.notes)
    if events < sum(stage.rows):
        notes.append(f"{sum(stage.rows) - events} events rated below {min_rating:g} dropped")
    if events > len(columns):
        kept = "earliest" if timed else "first row"
        dropped = events - len(columns)
        notes.append(f"{dropped} repeated events of a user-item pair dropped, the {kept} kept")
    told = {
        "notes": notes,
        "rows": {"read": sum(stage.rows), "rejected": stage.rejected},
        "kinds": {f"{role}s": found.ids.kind for role, found in ids.items()},
    }
    mapped = columns.mapped()
    starts = np.concatenate(([0], np.cumsum(per_user)))
    places = ids["user"].place, ids["item"].place
    pairs = Pairs(starts, mapped["item"], mapped.get("timestamp"), *places)
    return pairs, told, sizes


def _write_parts(
    pairs: Pairs, rule: Parting, seed: int, work: Path
) -> tuple[dict[str, int], list[str]]:
    """All files of the set but the ids."""
    timed = pairs.times is not None
    types: dict[str, Any] = {"user": np.int32, "item": np.int32}
    if timed:
        types["timestamp"] = np.float64
    shuffle = BucketShuffle(work, np.dtype(list(types.items())), len(pairs), [seed, len(pairs)])
    held = {1: GrowingColumns(work, "valid", **types), 2: GrowingColumns(work, "test", **types)}
    histories = GrowingColumns(work, "histories", item=np.int32)
    trained = np.zeros(len(pairs.starts) - 1, np.int64)
    testers = cold = 0
    for chunk in pairs.chunks():
        codes = rule.codes(chunk)
        columns: dict[str, npt.NDArray[Any]] = {"user": chunk.user_of, "item": chunk.items}
        if chunk.times is not None:
            columns["timestamp"] = chunk.times
        part = {code: {name: c[codes == code] for name, c in columns.items()} for code in range(3)}
        shuffle.add(**part[0])
        histories.append(item=part[0]["item"])
        for code, growing in held.items():
            growing.append(**part[code])
        n, first = len(chunk.sizes), chunk.users.start
        trained[chunk.users] = np.bincount(part[0]["user"] - first, minlength=n)
        tested = np.bincount(part[2]["user"] - first, minlength=n) > 0
        testers += int(tested.sum())
        cold += int((tested & (trained[chunk.users] == 0)).sum())
    folder = work / "set"
    counts = {"histories": len(histories)}
    for name, growing, wanted in (
        ("valid", held[1], rule.asked[0]), ("test", held[2], rule.asked[1]),
        ("train", histories, True),
    ):  # fmt: skip
        if wanted and not len(growing):
            raise InputError(
                f"the {name} part came out empty from {len(pairs)} events ({rule.notes[0]}); "
                "use more data, other shares or counts, or another kind of split"
            )
        if wanted and name != "train":
            counts[name] = len(growing)
            write_columns(folder / f"{name}.arrow", growing.arrow())
        if name != "train":
            growing.remove()
    write_columns(folder / "histories.arrow", histories.arrow())
    histories.remove()
    starts = np.concatenate(([0], np.cumsum(trained)))
    write_columns(folder / "offsets.arrow", {"start": as_arrow(starts)})
    train = GrowingColumns(work, "train", **types)
    shuffle.pour(train)
    counts["train"] = len(train)
    write_columns(folder / "train.arrow", train.arrow())
    train.remove()
    notes = list(rule.notes)
    if cold:
        notes.append(f"{cold} of {testers} test users have no training event")
    return counts, notes
