"""`llpauc data ...`: look at, split and prepare interaction files."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING, Any

from llpauc.cli.console import cell, command_name, log, print_json, progress, show_table
from llpauc.cli.data_options import FileFormat, SplitOptions, TableOptions
from llpauc.cli.system import check_file, check_folder
from llpauc.options import Count

if TYPE_CHECKING:
    from llpauc.data.interactions import Split
    from llpauc.data.readers import Reading


def inspect(path: str, *, table: TableOptions, plot: str | None = None, json: bool = False) -> None:
    """Say what is in a file or folder of interactions, and what is odd.

    Counts, duplicates, train/test leaks, cold users and items, the long tail, and whether tastes
    move with time. A folder with train, valid and test files is looked at as a split.

    Args:
        path: a file, or a folder with train/valid/test files
        plot: write the long tail as a picture to this file, for example tail.png
        json: print the figures as JSON
    """
    from llpauc.data import inspection
    from llpauc.data.interactions import Split

    if plot is not None:
        from llpauc.data import plots
        from llpauc.storage import figure_files

        check_file(plot)
        figure_files.check_kind(plot)
    data = table.load(path, min_ids=1)
    looked = inspection.inspect(data if isinstance(data, Split) else data.interactions)
    if json:
        print_json({"whole": looked.whole, "parts": looked.parts, "odd": looked.odd})
    else:
        whole = looked.whole
        if not isinstance(data, Split):  # one part is the whole
            whole = {**whole, **looked.parts["data"]}
        show_table(path, ["figure", "value"], [[n, _figure(v)] for n, v in whole.items()])
        if isinstance(data, Split):
            names = list(dict.fromkeys(key for part in looked.parts.values() for key in part))
            show_table(
                "By part",
                ["figure", *looked.parts],
                [[n, *[_figure(p.get(n)) for p in looked.parts.values()]] for n in names],
            )
        print("What is odd:" if looked.odd else "Nothing odd found.")
        for finding in looked.odd:
            print(f"  - {finding}")
    if plot is None:
        log.info("for a picture of the long tail: --plot tail.png")
    else:
        log.info(f"wrote {figure_files.save(plots.long_tail(looked, path), plot)}")


def _figure(value: Any) -> str:
    """A median of 65 events is 65, not 65.0000."""
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
        write: format of the three files: tsv, csv, parquet or inter
        json: print the counts as JSON
    """
    from llpauc.data.writers import write_split

    check_folder(out)
    parts = options.apply(_single(table, path))
    write_split(parts, out, format=write)
    _report_splits({"": parts}, out, json)


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
    """Make the paper's pair of data sets from raw ratings: clean, and noise.

    Clean drops the noisy events (rated, or dwelt on, below the threshold) and splits the rest.
    Noise keeps clean's test part and mixes noisy events into train and valid, at equal size.

    Args:
        path: a file with a rating or dwell-time column
        out: folder; the pair goes to its subfolders clean and noise
        threshold: events rated below this are noise (the paper: 3 stars, 10 seconds)
        write: format of the files: tsv, csv, parquet or inter
        json: print the counts as JSON
    """
    from llpauc.data.noise import clean_and_noise, write_pair
    from llpauc.errors import InputError

    if table.min_rating is not None:
        raise InputError("--min-rating would drop the noise itself; the threshold marks it")
    check_folder(out)
    pair = clean_and_noise(
        _single(table, path, warn_low_ratings=False).interactions,
        threshold=threshold,
        split=options.how,
        core=options.k_core,
        seed=options.seed,
        **options.sizes,
    )
    write_pair(pair, out, format=write)
    for text in pair.notes:
        log.info(text)
    _report_splits({"clean": pair.clean, "noise": pair.noise}, out, json)


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
    """Turn files larger than memory into a folder that training maps, split and shuffled.

    Ids become rows, repeated events of a pair are dropped, each user's events are held out as
    `data split` does it, and the training events are written in random order. `llpauc train` and
    the other commands take the folder as they take a file.

    Args:
        files: one or several files of interactions: tables of text, gzipped or not, or Parquet
        out: the prepared folder; space for about four times its size is needed beside it
        memory: what DuckDB may take; the program itself needs about half a gigabyte more
        held_out_users: hold out events of so many users only, drawn at random
        json: print the counts as JSON
    """
    from llpauc.data.out_of_core import prepare as prepare_files
    from llpauc.errors import InputError

    if options.k_core > 1:
        raise InputError("--k-core needs all events in memory; use it with llpauc data split")
    check_folder(out)
    with progress(f"preparing {out}"):
        manifest = prepare_files(
            files, out, how=options.how, seed=options.seed, memory=memory,
            min_rating=table.min_rating, held_out_users=held_out_users,
            reading=table.reading(), **options.sizes,
        )  # fmt: skip
    if json:
        told = {name: manifest[name] for name in ("rows", "counts", "notes")}
        print_json({"out": out, **told})
        return
    counts = {"rows " + name: n for name, n in manifest["rows"].items()} | {
        name: n for name, n in manifest["counts"].items() if name != "histories"
    }
    show_table(f"wrote {out}", ["", "count"], [[name, n] for name, n in counts.items()])
    log.info(f"next: {command_name()} train {quote(out)}")


def verify(path: str, *, json: bool = False) -> None:
    """Check every byte of a prepared folder against its checksums.

    Args:
        path: a prepared folder
        json: print the outcome as JSON
    """
    from llpauc.data.prepared import open_prepared

    with progress(f"reading {path}"):
        split = open_prepared(path, verify=True)
    if json:
        print_json({"path": path, "whole": True, "training events": len(split.train)})
    else:
        print(f"{path}: whole, {len(split.train):,} training events")


def _single(table: TableOptions, path: str, *, warn_low_ratings: bool = True) -> Reading:
    from llpauc.data.interactions import Split
    from llpauc.errors import InputError

    data = table.load(path, warn_low_ratings=warn_low_ratings)
    if isinstance(data, Split):
        raise InputError(f"{path}: is split already into {', '.join(data.parts)}; name one file")
    return data


def _report_splits(splits: dict[str, Split], out: str, json: bool) -> None:
    counts = {
        f"{name}/{part}" if name else part: {
            "interactions": len(data),
            "users": int((data.matrix.getnnz(axis=1) > 0).sum()),
            "items": int((data.matrix.getnnz(axis=0) > 0).sum()),
        }
        for name, split in splits.items()
        for part, data in split.parts.items()
    }
    if json:
        print_json({"out": out, "parts": counts})
    else:
        show_table(
            f"wrote {out}",
            ["part", "interactions", "users", "items"],
            [[part, *figures.values()] for part, figures in counts.items()],
        )
