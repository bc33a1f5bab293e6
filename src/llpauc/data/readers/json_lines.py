"""JSON lines, one object a line, as Yelp and newer Amazon reviews come."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from llpauc.data.readers.columns import Column
from llpauc.data.readers.frames import choose_in_table, read_columns
from llpauc.data.readers.gathering import Reading, left_out, no_rows
from llpauc.data.readers.look import SAMPLE_ROWS
from llpauc.data.readers.records import Problem, Rejects, text_lines, text_problem


def read_json_lines(
    path: Path, name: str, note: str, wanted: dict[str, Column], bad_rows: str
) -> Reading:
    """Read the fields we need of each object; integer ids stay integers outside."""
    rejects = Rejects(name, bad_rows)
    sample = _sample(path, name)
    roles = choose_in_table(sample, name, wanted)
    keys = {role: sample.column_names[place] for role, place in roles.positions.items()}
    values: dict[str, list[Any]] = {role: [] for role in keys}
    for number, line in enumerate(text_lines(path, name), 1):
        if not line.strip():
            continue
        entry = _object(line)
        problem = entry if isinstance(entry, Problem) else _missing(entry, keys)
        if problem is not None:
            rejects.add(number, problem)
            continue
        assert isinstance(entry, dict)
        for role, key in keys.items():
            values[role].append(entry[key])
    total = len(values["user"]) + rejects.count
    if not values["user"]:
        raise no_rows(name, rejects.count, rejects.first)
    columns = {role: pa.chunked_array([_array(column)]) for role, column in values.items()}
    reading = read_columns(columns, name, bad_rows, roles)
    notes = [note, *reading.notes]
    if rejects.count:
        notes.append(left_out(name, rejects.count, total, rejects.first))
    rejected = reading.rows_rejected + rejects.count
    return replace(reading, notes=tuple(notes), rows_rejected=rejected, format="jsonl")


def _sample(path: Path, name: str) -> pa.Table:
    """The simple fields of the first objects, as columns; what is no object is met later."""
    found: dict[str, list[str]] = {}
    for _, line in zip(range(SAMPLE_ROWS), text_lines(path, name), strict=False):
        entry = _object(line)
        if isinstance(entry, dict):
            for key, value in entry.items():
                if isinstance(value, (str, int, float)):
                    found.setdefault(key, []).append(str(value))
    longest = max((len(column) for column in found.values()), default=0)
    filled = {key: column + [""] * (longest - len(column)) for key, column in found.items()}
    return pa.table({key: pa.array(column, pa.large_string()) for key, column in filled.items()})


def _object(line: str) -> dict[str, Any] | Problem:
    problem = text_problem(line)
    if problem is not None:
        return problem
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return Problem("is not a JSON object")
    if "\\u" in line and not _is_text(entry):
        return Problem("holds half a character (a surrogate alone)")
    return entry if isinstance(entry, dict) else Problem("is not a JSON object")


def _is_text(entry: Any) -> bool:
    try:
        json.dumps(entry, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _missing(entry: dict[str, Any], keys: dict[str, str]) -> Problem | None:
    for role, key in keys.items():
        value = entry.get(key)
        if value is None or value == "":
            return Problem(f"the {role} ('{key}') is missing")
        plain = (str, int) if role in ("user", "item") else (str, int, float)
        if isinstance(value, bool) or not isinstance(value, plain):
            return Problem(
                f"the {role} ('{key}') is a {type(value).__name__}, not text or a number"
            )
    return None


def _array(values: list[Any]) -> pa.Array:
    """Integers where all are and fit, else text: ids keep what they were."""
    if all(type(value) is int and -(2**63) <= value < 2**63 for value in values):
        return pa.array(values, pa.int64())
    return pa.array([str(value) for value in values], pa.large_string())
