"""Folders and pre-split files: find the parts by name and take them as they are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Unpack

from llpauc.data.interactions import Split
from llpauc.data.prepared import is_prepared, open_prepared
from llpauc.data.readers.columns import tidy
from llpauc.data.readers.gathering import Reading
from llpauc.data.readers.look import BY_SUFFIX
from llpauc.data.readers.reading import ReadOptions, read_interactions
from llpauc.errors import InputError, listing

PART_WORDS = {
    "train": ("train", "training"),
    "valid": ("valid", "val", "validation", "dev"),
    "test": ("test", "testing"),
}
_ALL_WORDS = tuple(word for words in PART_WORDS.values() for word in words)
_DATA_SUFFIXES = (*BY_SUFFIX, ".txt", ".data", ".dat")
# The one file of interactions among several in the folders that MovieLens hands out.
_MAIN_FILES = ("u.data", "ratings.dat", "ratings.csv")
_NO_DATA = ("readme", "license", "licence", "notes")


def load(path: str | Path, **options: Unpack[ReadOptions]) -> Split | Reading:
    """Read what is there: a `Split` from a folder with a train file, else one `Reading`.

    Args:
        path: a file; a folder with train and test files; a folder with one file of events; or
            prepared data, which are mapped and not read.
        options: as for `read_interactions`.
    """
    path = Path(path)
    if not path.is_dir():
        return read_interactions(path, **options)
    if is_prepared(path):
        _refuse(options)
        return open_prepared(path)
    if (path / "tensors.safetensors").is_file():
        raise InputError(
            f"{tidy(str(path))} is a run, not data; give the events here (and llpauc evaluate the"
            " run as --runs)"
        )
    if find_parts(path).get("train"):
        return read_split(path, **options)
    return read_interactions(_only_file(path), **options)


def _refuse(options: ReadOptions) -> None:
    for name, value in options.items():
        if value is not None and name != "bad_rows":
            raise InputError(
                f"{name}={value!r} is for raw files, not for prepared data; leave it out"
            )


def read_split(
    path: str | Path | None = None,
    *,
    train: Any = None,
    valid: Any = None,
    test: Any = None,
    **options: Unpack[ReadOptions],
) -> Split:
    """Read pre-split files as they are: nothing is moved, dropped or deduplicated.

    Args:
        path: a folder whose files are called train, valid (val, dev, validation) and test, as in
            `train.tsv.gz` or `news.train.inter`; or None, and the parts one by one.
        train: the training source, where `path` is None.
        valid: the validation source, or None.
        test: the test source, or None.
        options: as for `read_interactions`, for all parts.
    """
    if path is not None:
        if not (train is None and valid is None and test is None):
            raise InputError("give a folder or train=, valid= and test=, not both")
        sources: dict[str, Any] = dict(find_parts(Path(path)))
        if "train" not in sources:
            raise InputError(
                f"{tidy(str(path))}: no train file is in this folder, only: "
                f"{_names(_files(Path(path)))}; give the parts as train=, valid=, test="
            )
    else:
        given = {"train": train, "valid": valid, "test": test}
        sources = {part: source for part, source in given.items() if source is not None}
        if train is None:
            raise InputError("a split needs a train part; give train= or a folder that has one")
    readings: dict[str, Reading] = {"train": read_interactions(sources["train"], **options)}
    for part in ("valid", "test"):
        if part in sources:
            if _also_lists(readings["train"], sources["train"], sources[part]):
                options = {**options, "format": "adjacency"}
            readings[part] = read_interactions(sources[part], **options)
    notes = _told_once([reading.notes for reading in readings.values()])
    parts = {part: reading.interactions for part, reading in readings.items()}
    return Split.of(parts["train"], parts.get("valid"), parts.get("test"), notes)


def _told_once(notes: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """The notes of all parts; of one that was read just as the first, that alone.

    >>> _told_once([["train: a header", "train: tabs"], ["test: a header", "test: tabs"]])
    ('train: a header', 'train: tabs', 'test: likewise')
    """
    first, *others = ([note.partition(": ")[::2] for note in some] for some in notes)
    said = list(notes[0])
    alike = []
    for own, some in zip(others, notes[1:], strict=True):
        if own and [text for _, text in own] == [text for _, text in first]:
            alike.append(own[0][0])
        else:
            said += some
    return (*said, f"{', '.join(alike)}: likewise") if alike else tuple(said)


def find_parts(folder: Path) -> dict[str, Path]:
    """The files of a folder that call themselves train, valid or test.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "news.train.inter").touch()
    ...     _ = (Path(folder) / "news.test.inter").touch()
    ...     {part: path.name for part, path in find_parts(Path(folder)).items()}
    {'train': 'news.train.inter', 'test': 'news.test.inter'}
    """
    parts: dict[str, Path] = {}
    for part, words in PART_WORDS.items():
        found = [path for path in _files(folder) if _is_part(path, words)]
        if len(found) > 1:
            raise InputError(
                f"{tidy(str(folder))}: {len(found)} files could be the {part} part: "
                f"{_names(found)}; give the parts as train=, valid=, test="
            )
        if found:
            parts[part] = found[0]
    return parts


def _also_lists(train: Reading, train_source: Any, other: Any) -> bool:
    """Lists of equal length look like a table; a train file of the same kind settles it."""
    if train.format != "adjacency" or not isinstance(other, (str, PathLike)):
        return False
    return _suffix(Path(train_source)) == _suffix(Path(other))


def _only_file(folder: Path) -> Path:
    files = _files(folder)
    main = [path for path in files if path.name.lower().removesuffix(".gz") in _MAIN_FILES]
    events = [path for path in files if _suffix(path) == ".inter"]
    for found in (main, events, files):
        if len(found) == 1:
            return found[0]
    if not files:
        raise InputError(f"{tidy(str(folder))}: no data file is in this folder")
    raise InputError(
        f"{tidy(str(folder))}: {len(files)} data files and none is called train: "
        f"{_names(files)}; give one of them"
    )


def _files(folder: Path) -> list[Path]:
    try:
        paths = sorted(folder.iterdir())
    except OSError as error:
        raise InputError(f"{tidy(str(folder))}: cannot be read: {error.strerror}") from error
    return [
        path
        for path in paths
        if _suffix(path) in _DATA_SUFFIXES
        and (_suffix(path) != ".json" or _is_part(path))  # else some tool's settings, most likely
        and path.is_file()
        and not path.name.startswith(".")
        and not set(_NO_DATA) & set(_words(path))
    ]


def _suffix(path: Path) -> str:
    return Path(path.name.lower().removesuffix(".gz")).suffix


def _is_part(path: Path, words: Sequence[str] = _ALL_WORDS) -> bool:
    return not set(words).isdisjoint(_words(path))


def _words(path: Path) -> list[str]:
    return re.split(r"[^a-z0-9]+", path.name.lower().removesuffix(".gz"))


def _names(paths: Sequence[Path]) -> str:
    return listing(tidy(path.name) for path in paths) or "nothing"
