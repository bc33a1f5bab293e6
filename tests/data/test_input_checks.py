"""Input that would silently give wrong results: units of time, repeated headers, binary files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from llpauc.data.out_of_core import prepare
from llpauc.data.prepared import open_prepared
from llpauc.data.readers import load, read_interactions
from llpauc.errors import InputError


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


UNITS = {"seconds": 1, "milliseconds": 10**3, "microseconds": 10**6, "nanoseconds": 10**9}


@pytest.mark.parametrize("unit", UNITS)
def test_read_interactions_stores_times_of_every_unit_as_seconds(tmp_path: Path, unit: str) -> None:
    times = [1_600_000_000 + 3600 * n for n in range(6)]
    rows = [f"u{n % 2},i{n},{time * UNITS[unit]}" for n, time in enumerate(times)]
    path = write(tmp_path / "e.csv", "user,item,ts", *rows)
    reading = read_interactions(path)
    assert reading.interactions.timestamps is not None
    assert reading.interactions.timestamps.tolist() == times
    assert any(f"the timestamps are in {unit}" in note for note in reading.notes)
    frame = pd.DataFrame(
        {"user": [1, 2], "item": [3, 4], "ts": [t * UNITS[unit] for t in times[:2]]}
    )
    typed = read_interactions(frame).interactions.timestamps
    assert typed is not None
    assert typed.tolist() == times[:2]
    prepare([path], tmp_path / "p", how="temporal", valid=0.0, test=0.4, memory="200MB")
    test = open_prepared(tmp_path / "p").test
    assert test is not None
    assert test.timestamps is not None
    assert sorted(test.timestamps) == times[-2:]


def test_read_interactions_refuses_times_of_different_units(tmp_path: Path) -> None:
    path = write(tmp_path / "e.csv", "user,item,ts", "a,x,1600000000", "b,y,1600000000000")
    with pytest.raises(InputError, match="1600000000 is in seconds, 1600000000000 in milliseconds"):
        read_interactions(path)
    with pytest.raises(InputError, match="different units"):
        prepare([path], tmp_path / "p", memory="200MB")
    assert read_interactions(path, timestamp="none").interactions.timestamps is None


@pytest.mark.parametrize("times", [["0", "5", "7"], ["0", "1600000000000", "3"], ["-20", "1", "2"]])
def test_read_interactions_small_times_fit_every_unit(tmp_path: Path, times: list[str]) -> None:
    rows = [f"u{n},i{n},{time}" for n, time in enumerate(times)]
    events = read_interactions(write(tmp_path / "e.csv", "user,item,ts", *rows)).interactions
    scale = 1000 if max(map(int, times)) > 10**9 else 1
    assert events.timestamps is not None
    assert events.timestamps.tolist() == [int(time) / scale for time in times]


@pytest.mark.parametrize("name", ["e.csv", "e.inter"])
def test_read_interactions_names_a_repeated_header(tmp_path: Path, name: str) -> None:
    typed = ":token" if name == "e.inter" else ""
    header = f"user_id{typed}\titem_id{typed}"
    path = write(tmp_path / name, header, "a\tx", "b\ty", header, "c\tz")
    with pytest.raises(InputError, match=r"line 4: repeats the header.*bad-rows skip"):
        read_interactions(path)
    reading = read_interactions(path, bad_rows="skip")
    assert list(reading.interactions.user_ids) == ["a", "b", "c"]
    assert reading.rows_rejected == 1
    path.write_bytes(path.read_bytes().replace(b"y\n", b"y\n\xef\xbb\xbf"))
    with pytest.raises(InputError, match="line 4: repeats the header"):
        read_interactions(path)


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935\nsize 12345\n"
BINARY = {
    "git-lfs": LFS,
    "PDF": b"%PDF-1.4\n1 0 obj\n<< /Type /Catalog >>\nendobj\n",
    "HTML": b"<!DOCTYPE html>\n<html><body>log in, please</body></html>\n",
    "image": b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR",
    "SQLite": b"SQLite format 3\x00" + bytes(100),
    "pickle": b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00]\x94(K\x01K\x02e.",
    "binary": bytes([7, 200, 3, 44, 150, 10, 1, 44, 255, 10]) * 20,
}


@pytest.mark.parametrize("what", BINARY)
@pytest.mark.parametrize("name", ["events.csv", "events.txt", "events"])
def test_read_interactions_refuses_files_that_are_no_tables(
    tmp_path: Path, what: str, name: str
) -> None:
    (tmp_path / name).write_bytes(BINARY[what])
    with pytest.raises(InputError, match=what):
        read_interactions(tmp_path / name)


@pytest.mark.parametrize("read", [load, read_interactions])
def test_load_refuses_an_empty_path(
    read: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "events.csv", "user,item", "a,x", "b,y")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="the path is empty"):
        read("")
    assert np.all(load(".").interactions.users == [0, 1])  # type: ignore[union-attr]
