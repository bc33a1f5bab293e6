"""`llpauc data ...`: inspect, split and prepare interaction files."""

from __future__ import annotations

from dataclasses import replace
from json import dumps
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from llpauc.cli.console import (
    TableData,
    cell,
    command_name,
    log,
    print_json,
    print_result,
    print_text,
    progress,
)
from llpauc.cli.data_options import Events, FileFormat, SplitOptions, TableOptions
from llpauc.cli.system import check_file, check_folder, make_folder_of
from llpauc.options import Count

if TYPE_CHECKING:
    from llpauc.data.interactions import Split
    from llpauc.data.readers import Reading


def inspect(
    path: Events, *, table: TableOptions, plot: str | None = None, json: bool = False
) -> None:
    """Print statistics of a file or folder of interactions, and its problems.

    Counts, duplicates, train/test leaks, cold users and items, the long tail, and whether
    preferences change over time. A folder with train, valid and test files is inspected as a split.

    Args:
        path: a file, or a folder with train/valid/test files
        plot: write the long tail as a figure to this file, for example tail.png
        json: print the statistics as JSON
    """
    from llpauc.data import inspection
    from llpauc.data.interactions import Split
    from llpauc.storage import figure_files

    if plot is not None:
        check_file(plot, path)
        figure_files.check_kind(plot)
    data = table.load(path, min_ids=1, check_ids=False)
    inspected = inspection.inspect(data if isinstance(data, Split) else data.interactions)
    whole, parts = inspected.whole, inspected.parts
    statistics = whole if isinstance(data, Split) else {**whole, **parts["data"]}
    rows = [[name, _text(value)] for name, value in statistics.items()]
    tables = [TableData(path, ["statistic", "value"], rows)]
    if isinstance(data, Split):
        names = dict.fromkeys(name for part in parts.values() for name in part)
        rows = [[name, *[_text(part.get(name)) for part in parts.values()]] for name in names]
        tables.append(TableData("By part", ["statistic", *parts], rows))
    print_result({"whole": whole, "parts": parts, "odd": inspected.odd}, json, *tables)
    if not json:
        findings = [f"\n  - {finding}" for finding in inspected.odd]
        print_text("".join(["Unusual:", *findings]) if findings else "Nothing unusual found.")
    if plot is None:
        log.info("for a figure of the long tail: --plot tail.png")
    else:
        from llpauc.data.plots import long_tail

        log.info(f"wrote {figure_files.save(long_tail(inspected, path), plot)}")


def _text(value: Any) -> str:
    """A median of 65 events is shown as 65, not as 65.0000."""
    if isinstance(value, float) and value.is_integer() and abs(value) >= 1:
        value = int(value)
    return cell(value)


def split(
    path: str,
    out: str,
    *,
    options: SplitOptions,
    table: TableOptions,
    write: FileFormat = "tsv",
    json: bool = False,
) -> None:
    """Split a file into train, valid and test files, with a seed.

    Args:
        path: a file of interactions
        out: folder for the three files
        write: format of the three files
        json: print the counts as JSON
    """
    from llpauc.data.writers import SPLIT_FOLDER, write_split
    from llpauc.storage.manifest import check_replaceable

    check_folder(out, path)
    check_replaceable(out, SPLIT_FOLDER)
    parts = options.apply(_single(table, path))
    write_split(parts, out, format=write)
    _print_counts({"": parts}, out, json)


def clean(path: str, out: str, *, table: TableOptions, json: bool = False) -> None:
    """Drop events of a file, write the others, and report what was dropped.

    `data inspect` finds what to drop, and names the options.

    Args:
        path: a file of interactions
        out: the file to write: .csv, .tsv, .inter or .parquet; the report is next to it, in
            OUT.report.json
        json: print the report as JSON
    """
    from llpauc.data import filters
    from llpauc.data.writers import WRITERS, write_events
    from llpauc.errors import InputError, choose
    from llpauc.storage.atomic import atomic_write

    choose(WRITERS, Path(out).suffix.removeprefix("."), "format of the file")
    limits = table.filters()
    if not dict(limits.limits()):
        raise InputError(
            "nothing to drop; give an option such as --max-events-per-user 2000, which"
            " llpauc data inspect names"
        )
    report_file = f"{out}.report.json"
    for file in (out, report_file):
        check_file(file, path)
    unfiltered = replace(table, **vars(filters.Filters()))
    read = _single(unfiltered, path, warn_low_ratings=False)
    events = read.interactions
    left, dropped = filters.clean({"data": events}, limits)
    report = {
        "path": path,
        "out": out,
        "rows read": read.rows_read,
        "rows rejected": read.rows_rejected,
        "dropped": dropped,
        "events left": len(left["data"]),
        "users dropped": events.n_users - left["data"].n_users,
        "items dropped": events.n_items - left["data"].n_items,
    }
    make_folder_of(out)
    write_events(left["data"], out)
    with atomic_write(Path(report_file)) as temporary:
        temporary.write_text(dumps(report, indent=2) + "\n", encoding="utf-8")
    rows = [*dropped.items(), *((n, v) for n, v in report.items() if isinstance(v, int))]
    print_result(report, json, TableData(f"wrote {out}", ["", "count"], [list(r) for r in rows]))


def noise(
    path: str,
    out: str,
    threshold: float,
    *,
    options: SplitOptions,
    table: TableOptions,
    write: FileFormat = "tsv",
    json: bool = False,
) -> None:
    """Make the paper's pair of data sets, clean and noise, from raw ratings.

    Clean drops the noisy events, whose rating or dwell time is below the threshold, and splits the
    others, by default at random per user. Noise has the same test part, and noisy events in train
    and valid, at equal size.

    Args:
        path: a file with a rating or dwell-time column
        out: folder; the data sets are written to its subfolders clean and noise
        threshold: events with a lower rating are noise (in the paper: 3 stars, 10 seconds)
        write: format of the files
        json: print the counts as JSON
    """
    from llpauc.data.noise import clean_and_noise, write_pair
    from llpauc.errors import InputError

    if table.min_rating is not None:
        raise InputError("--min-rating would drop the noise; leave it out and give the threshold")
    check_folder(out, path)
    pair = clean_and_noise(
        _single(table, path, warn_low_ratings=False).interactions,
        threshold=threshold,
        split="random_per_user" if options.how == "auto" else options.how,
        core=options.k_core,
        seed=options.seed,
        **options.sizes,
    )
    write_pair(pair, out, format=write)
    for text in pair.notes:
        log.info(text)
    _print_counts({"clean": pair.clean, "noise": pair.noise}, out, json)


def prepare(
    files: list[str],
    *,
    out: str = "prepared",
    memory: str = "4GB",
    held_out_users: Count | None = None,
    options: SplitOptions,
    table: TableOptions,
    json: bool = False,
) -> None:
    """Prepare files larger than memory: split, shuffle and index them in a folder.

    Repeated events of a pair are dropped, events are held out as in `data split`, and the training
    events are written in random order. `llpauc train` and the other commands accept the folder,
    which is memory-mapped, in place of a file.

    Args:
        files: one or more files of interactions, folders of parts, or a database
        out: the prepared folder; needs about four times its size of free disk space
        memory: memory limit of DuckDB; the program needs about half a gigabyte more
        held_out_users: hold out events of this many users only, drawn at random
        json: print the counts as JSON
    """
    from llpauc.data.locations import without_credentials
    from llpauc.data.out_of_core import prepare as prepare_files
    from llpauc.errors import InputError

    if options.k_core > 1:
        raise InputError("--k-core needs all events in memory; use it with llpauc data split")
    for name in table.rules():
        raise InputError(
            f"--{name} is for the prepared folder; give it to llpauc train or evaluate"
        )
    check_folder(out, *map(without_credentials, files))
    with progress(f"preparing {out}"):
        manifest = prepare_files(
            files,
            out,
            how=options.how,
            seed=options.seed,
            memory=memory,
            filters=table.filters(),
            held_out_users=held_out_users,
            reading=table.reading(),
            **options.sizes,
        )
    rows = [[f"rows {name}", count] for name, count in manifest["rows"].items()]
    rows += [[name, n] for name, n in manifest["counts"].items() if name != "histories"]
    print_result(
        {"out": out, **{name: manifest[name] for name in ("rows", "counts", "notes")}},
        json,
        TableData(f"wrote {out}", ["", "count"], rows),
    )
    if not json:
        log.info(f"next: {command_name()} train {quote(out)}")


def verify(path: str, *, json: bool = False) -> None:
    """Check every byte of a prepared folder against its checksums.

    Args:
        path: a prepared folder
        json: print the result as JSON
    """
    from llpauc.data.prepared import open_prepared

    with progress(f"reading {path}"):
        split = open_prepared(path)
    if json:
        print_json({"path": path, "whole": True, "training events": len(split.train)})
    else:
        print_text(f"{path}: all files are intact, {len(split.train):,} training events")


def _single(table: TableOptions, path: str, *, warn_low_ratings: bool = True) -> Reading:
    from llpauc.data.interactions import Split
    from llpauc.errors import InputError

    data = table.load(path, warn_low_ratings=warn_low_ratings)
    if isinstance(data, Split):
        raise InputError(f"{path}: is split already into {', '.join(data.parts)}; name one file")
    return data


def _print_counts(splits: dict[str, Split], out: str, json: bool) -> None:
    counts = {
        f"{name}/{part}" if name else part: {
            "interactions": len(data),
            "users": int((data.matrix.getnnz(axis=1) > 0).sum()),
            "items": int((data.matrix.getnnz(axis=0) > 0).sum()),
        }
        for name, split in splits.items()
        for part, data in split.parts.items()
    }
    rows = [[part, *values.values()] for part, values in counts.items()]
    columns = ["part", "interactions", "users", "items"]
    result = {"out": out, "parts": counts}
    print_result(result, json, TableData(f"wrote {out}", columns, rows))
