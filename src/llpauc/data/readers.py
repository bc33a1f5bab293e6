"""Read interactions from files, folders, frames and matrices.

A file passes through `formats` (which format) and the format's reader (`text_tables`,
`typed_tables`), which detects the columns (`columns`), checks the rows and adds them to a sink
(`sources`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal, Unpack

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv
from scipy import sparse

from llpauc.data.columns import Column, known_names, likely_names, printable
from llpauc.data.formats import FORMATS, plain_name, read_file
from llpauc.data.ids import IdMap
from llpauc.data.interactions import EventRules, Interactions, Split
from llpauc.data.locations import STANDARD_INPUT, SourceName, is_database, matching_files
from llpauc.data.prepared import is_prepared, open_prepared
from llpauc.data.sources import InMemorySink, ReadOptions, Sink, Source, event_rules
from llpauc.data.text_tables import BLANKS
from llpauc.data.typed_tables import is_frame, read_frame, read_matrix
from llpauc.errors import InputError, choose, listing

BAD_ROWS = {"error": "refuse the source", "skip": "leave the row out and count it"}

_PART_WORDS = {
    "train": ("train", "training"),
    "valid": ("valid", "val", "validation", "dev"),
    "test": ("test", "testing"),
}
_DATA_ENDINGS = {".txt", ".data", ".dat"}.union(*(format.endings for format in FORMATS.values()))
_MAIN_FILES = ("u.data", "ratings.dat", "ratings.csv")  # of the MovieLens folders
_ID_TABLES = {".csv": ",", ".tsv": "\t", ".parquet": None}  # suffix -> delimiter
_NOT_DATA = {"readme", "license", "licence", "notes"}


@dataclass(frozen=True)
class Reading:
    """The events of a source.

    Args:
        interactions: the events, in the order of the source.
        notes: what was detected (format, delimiter, header, columns) and left out, one line each.
        rows_read: rows of the source that were used: lines of an adjacency list, rows of a table.
        rows_rejected: rows left out by `bad_rows="skip"`. The two add up to all rows with data.
        format: a name in `FORMATS`, "frame" or "matrix".
    """

    interactions: Interactions
    notes: tuple[str, ...]
    rows_read: int
    rows_rejected: int = 0
    format: str = ""


def read_interactions(
    source: Any,
    *,
    format: str | None = None,
    user: Column = None,
    item: Column = None,
    rating: Column = None,
    timestamp: Column = None,
    weight: Column = None,
    event_type: Column = None,
    event_weights: Mapping[str, float] | str | None = None,
    log_weights: bool = False,
    header: bool | None = None,
    delimiter: str | None = None,
    query: str | None = None,
    bad_rows: str = "error",
) -> Reading:
    """Read user-item events from files, a database, a frame or a sparse matrix.

    Format and columns are detected automatically; the choice is recorded in the notes. Ids of text
    files are text: `007` stays `007`. Ids are numbered in the order of their text. Events keep
    their order and their duplicates.

    Args:
        source: a path (also compressed with gzip, bzip2, xz or zstd), a pattern such as
            `events/*.csv`, a folder of parts (`dt=2026-01-31/part-0.parquet` has the column `dt`),
            a list of paths, "-" for standard input, the URL of a PostgreSQL server, a pandas or
            Polars frame, a pyarrow Table, a scipy sparse matrix (users by items), or
            `Interactions`, which are returned as they are.
        format: csv, tsv, inter (RecBole), u.data and ratings.dat (MovieLens), adjacency
            (`user item item ...`), parquet, arrow (Feather), jsonl, sqlite, duckdb; None detects it
            by name, then by content.
        user: column of the users, by name or by position from 0; None detects it.
        item: column of the items, likewise.
        rating: column of the ratings (or of dwell times), likewise; "none" ignores it.
        timestamp: column of seconds or ISO dates, likewise; dates become seconds since 1970 (UTC).
        weight: column of the weights of events, at least 0; by default every event has the weight
            1. The weights of repeated events of a pair add up. An event of weight 0 is seen, but
            not a positive.
        event_type: column of the types of events, such as view and purchase.
        event_weights: the weight of an event of each type, as a dict or as "view=1,purchase=10";
            with `weight`, the two are multiplied.
        log_weights: the weight of a pair is log(1 + the sum of the weights of its events).
        header: whether the first row holds names; None detects it.
        delimiter: one to four characters, or comma, tab, semicolon, pipe, space; None detects it.
        query: SQL that selects the events of a database.
        bad_rows: "error" raises an error that names the row, "skip" leaves such rows out.

    >>> from scipy.sparse import csr_matrix
    >>> reading = read_interactions(csr_matrix([[0, 5], [3, 0]]))
    >>> reading.interactions.ratings.tolist(), reading.rows_read
    ([5.0, 3.0], 2)
    """
    choose(BAD_ROWS, bad_rows, "bad_rows")
    columns = {"user": user, "item": item, "rating": rating, "timestamp": timestamp}
    columns |= {"weight": weight, "event_type": event_type}
    more = {"event_weights": event_weights, "log_weights": log_weights, "bad_rows": bad_rows}
    for_text = {"format": format, "header": header, "delimiter": delimiter, "query": query}
    options: ReadOptions = {**for_text, **columns, **more}  # type: ignore[typeddict-item]
    rules = event_rules(options)
    sink = InMemorySink()
    if (name := SourceName.of(source)) is not None:
        parts = read_files(name, options, sink)
        return _reading(parts, sink, parts[0].format_name or "", rules)
    _refuse(for_text, "is for files and databases")
    if isinstance(source, Interactions) or sparse.issparse(source):
        _refuse(columns, f"is for tables, and a {type(source).__name__} has no named columns")
        if isinstance(source, Interactions):
            return Reading(source, (), len(source))
        events, notes = read_matrix(source)
        return Reading(events, tuple(notes), len(events), format="matrix")
    if is_frame(source):
        kind = type(source)
        frame = Source(f"the {kind.__module__.partition('.')[0]} {kind.__name__}", sink, options)
        read_frame(frame, source)
        frame.finish()
        return _reading([frame], sink, "frame", rules)
    raise InputError(
        f"cannot read interactions from a {type(source).__name__}; give a path, a pandas or Polars "
        "frame, a pyarrow Table or a scipy sparse matrix"
    )


def _reading(
    parts: Sequence[Source], sink: InMemorySink, format: str, rules: EventRules
) -> Reading:
    counts = sum(part.rows_read for part in parts), sum(part.rows_rejected for part in parts)
    return Reading(sink.interactions(rules), tuple(notes_of(parts)), *counts, format)


def read_files(
    source: SourceName, options: ReadOptions, sink: Sink, temporary: Path | None = None
) -> list[Source]:
    """Read every file of a source into a sink, one after another; see `read_file`."""
    places = [file for place in source.places for file in _files_of(place)]
    several = len(places) > 1
    if several:
        places = [p for p in places if not os.path.isfile(p) or os.path.getsize(p)] or places[:1]
    parts = [read_file(place, options, sink, temporary, several) for place in places]
    if not any(part.rows_read for part in parts):
        parts[0].finish()  # raises
    return parts


def _files_of(place: str) -> list[str]:
    """The place itself, the files of a pattern, or the parts in a folder."""
    if is_database(place) or place == STANDARD_INPUT:
        return [place]
    if (matching := matching_files(place)) is not None:
        return matching
    return [str(path) for path in _parts(Path(place))] if os.path.isdir(place) else [place]


def notes_of(parts: Sequence[Source]) -> list[str]:
    """The notes of the first part, and those of the others that differ."""
    first = parts[0]
    notes = [*first.notes]
    for part in parts[1:]:
        same = {note.replace(first.name, part.name) for note in first.notes}
        notes += [note for note in part.notes if note not in same]
    if len(parts) > 1:
        notes.append(f"{len(parts):,} files from {first.name} to {parts[-1].name}")
    return notes


def _refuse(options: Mapping[str, Any], why: str) -> None:
    for option, value in options.items():
        if value is not None:
            raise InputError(f"{option}={value!r} {why}; leave it out")


def load(path: Any, **options: Unpack[ReadOptions]) -> Split | Reading:
    """Read a `Split` from a folder with a train file or prepared data, else one `Reading`.

    Args:
        path: a file, or another source of `read_interactions`; a folder with train and test files
            or with parts of one table; or prepared data, which are memory-mapped.
        options: as for `read_interactions`.
    """
    name = SourceName.of(path)
    path = Path("" if name is None or len(name.places) > 1 else name.places[0])
    if name is None or len(name.places) > 1 or not path.is_dir():
        return read_interactions(path if name is None else name, **options)
    if is_prepared(path):
        given = {
            name: None if value is False else value
            for name, value in options.items()
            if name != "bad_rows"
        }
        _refuse(given, "is for raw files, not for prepared data")
        return open_prepared(path)
    if (path / "tensors.safetensors").is_file():
        raise InputError(
            f"{printable(str(path))} is a run, not data; give the events here (and llpauc evaluate"
            " the run as --runs)"
        )
    if "train" in find_parts(path):
        return read_split(path, **options)
    return read_interactions(name, **options)


def read_ids(path: str | Path, role: Literal["user", "item"]) -> list[Any]:
    """The ids in a text file, one per line, or in a column of a table, without blanks at the ends
    of text.

    Args:
        path: a table (.csv, .tsv or .parquet) or a text file.
        role: which column of a table to read; it is detected by its name.
    """
    path = Path(path)
    delimiter = _ID_TABLES.get(path.suffix.lower(), "")
    try:
        if delimiter is None:
            name = _id_column(path, pq.read_schema(path).names, role)
            column = pq.read_table(path, columns=[name])[name]
        elif delimiter:
            parsing = csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
            with csv.open_csv(path, parse_options=parsing) as table:
                name = _id_column(path, table.schema.names, role)
            as_text = csv.ConvertOptions(
                include_columns=[name], column_types={name: pa.large_string()}
            )
            column = csv.read_csv(path, parse_options=parsing, convert_options=as_text)[name]
            column = pc.utf8_trim(column, BLANKS)
        else:
            lines = path.read_text(encoding="utf-8").split("\n")
            return [line for line in (line.strip(BLANKS + "\r") for line in lines) if line]
    except UnicodeDecodeError:
        raise InputError(f"{path}: is not UTF-8 text; write one id per line") from None
    except FileNotFoundError:
        raise InputError(f"{path}: cannot be read: No such file or directory") from None
    except (pa.ArrowInvalid, OSError) as error:
        problem = "cannot be read" if delimiter == "" else "is no table that can be read"
        raise InputError(f"{path}: {problem}: {str(error).partition(chr(10))[0]}") from None
    return list(IdMap.of(column))


def _id_column(path: Path, names: Sequence[str], role: str) -> str:
    likely = known_names(role, names)[:1] or likely_names(role, names)
    if len(likely) == 1:
        return likely[0]
    raise InputError(
        f"{path}: has no column of {role} ids; name it {role!r}, or write one id per line in a"
        " .txt file"
    )


def read_split(
    path: str | Path | None = None,
    *,
    train: Any = None,
    valid: Any = None,
    test: Any = None,
    **options: Unpack[ReadOptions],
) -> Split:
    """Read files that are already split; no event is moved, dropped or deduplicated.

    Args:
        path: a folder whose files are called train, valid (val, dev, validation) and test, as in
            `train.tsv.gz` or `news.train.inter`; or None, and the parts one by one.
        train: the training source if `path` is None.
        valid: the validation source, or None.
        test: the test source, or None.
        options: as for `read_interactions`, for all parts.
    """
    given = {"train": train, "valid": valid, "test": test}
    sources = {part: source for part, source in given.items() if source is not None}
    if path is not None:
        if sources:
            raise InputError("give a folder or train=, valid= and test=, not both")
        sources = dict(find_parts(Path(path)))
        if "train" not in sources:
            raise InputError(
                f"{printable(str(path))}: no train file is in this folder, only: "
                f"{_names(_data_files(Path(path)))}; give the parts as train=, valid=, test="
            )
    elif train is None:
        raise InputError("a split needs a train part; give train= or a folder that has one")
    readings: dict[str, Reading] = {}
    for part, source in sources.items():
        # Adjacency lists of equal length look like a table; the train file decides.
        after_lists = part != "train" and readings["train"].format == "adjacency"
        same = all(isinstance(one, (str, PathLike)) for one in (source, sources["train"]))
        if after_lists and same and _ending(source) == _ending(sources["train"]):
            options = {**options, "format": "adjacency"}
        readings[part] = read_interactions(source, **options)
    notes = tuple(note for reading in readings.values() for note in reading.notes)
    return Split.of(**{p: reading.interactions for p, reading in readings.items()}, notes=notes)


def find_parts(folder: Path) -> dict[str, Path]:
    """The files of a folder whose names contain train, valid or test.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "news.train.inter").touch()
    ...     _ = (Path(folder) / "news.test.inter").touch()
    ...     {part: path.name for part, path in find_parts(Path(folder)).items()}
    {'train': 'news.train.inter', 'test': 'news.test.inter'}
    """
    parts: dict[str, Path] = {}
    for part, words in _PART_WORDS.items():
        files = [path for path in _data_files(folder) if not _words(path).isdisjoint(words)]
        if len(files) > 1:
            raise InputError(
                f"{printable(str(folder))}: {len(files)} files could be the {part} part: "
                f"{_names(files)}; give the parts as train=, valid=, test="
            )
        if files:
            parts[part] = files[0]
    return parts


def _parts(folder: Path) -> list[Path]:
    """The file of events in a folder, or several files of one table."""
    files = _data_files(folder)
    main = [path for path in files if plain_name(path) in _MAIN_FILES]
    recbole = [path for path in files if _ending(path) == ".inter"]
    for candidates in (main, recbole):
        if len(candidates) == 1:
            return candidates
    if not files:
        raise InputError(f"{printable(str(folder))}: no data file is in this folder")
    if len({_ending(path) for path in files}) > 1:
        raise InputError(
            f"{printable(str(folder))}: {len(files)} data files of several formats and none is"
            f" called train: {_names(files)}; give one of them, or a pattern such as '*.csv'"
        )
    return files


def _data_files(folder: Path) -> list[Path]:
    """The data files in a folder and in the folders of its partitions."""
    try:
        paths = sorted(folder.iterdir())
    except OSError as error:
        raise InputError(f"{printable(str(folder))}: cannot be read: {error.strerror}") from error
    part_words = {word for words in _PART_WORDS.values() for word in words}
    files = [
        path
        for path in paths
        if _ending(path) in _DATA_ENDINGS
        # Another .json file most likely holds the settings of some tool.
        and (_ending(path) != ".json" or not _words(path).isdisjoint(part_words))
        and path.is_file()
        and not path.name.startswith((".", "_"))
        and _words(path).isdisjoint(_NOT_DATA)
    ]
    partitions = [path for path in paths if "=" in path.name and path.is_dir()]
    return files + [file for path in partitions for file in _data_files(path)]


def _ending(path: str | PathLike[str]) -> str:
    return Path(plain_name(path)).suffix


def _words(path: Path) -> set[str]:
    return set(re.split(r"[^a-z0-9]+", plain_name(path)))


def _names(paths: Sequence[Path]) -> str:
    return listing(printable(path.name) for path in paths) or "nothing"
