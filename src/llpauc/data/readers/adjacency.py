"""Adjacency lists: a user and that user's items on each line, separated by blanks or tabs."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pyarrow as pa

from llpauc.data.interactions import Interactions
from llpauc.data.readers.gathering import Reading, code_ids, join_codes, left_out, no_rows
from llpauc.data.readers.records import Problem, Rejects, text_lines, text_problem

BATCH = 500_000
_WORD = re.compile(r"[^ \t\r\n]+")  # str.split would also cut at the blanks of other scripts


def read_adjacency(path: Path, name: str, note: str, bad_rows: str) -> Reading:
    """Read one user a line; a user without items keeps its place in the id map."""
    rejects = Rejects(name, bad_rows)
    users: list[str] = []
    counts: list[int] = []
    items: list[str] = []
    item_batches: list[pa.DictionaryArray] = []
    for number, line in enumerate(text_lines(path, name), start=1):
        words = _WORD.findall(line)
        if not words:
            continue
        problem: Problem | None = text_problem(line)
        if problem is not None:
            rejects.add(number, problem)
            continue
        users.append(words[0])
        counts.append(len(words) - 1)
        items.extend(words[1:])
        if len(items) >= BATCH:
            item_batches.append(code_ids(pa.array(items, pa.large_string())))
            items.clear()
    item_batches.append(code_ids(pa.array(items, pa.large_string())))
    if not sum(counts):
        raise no_rows(name, rejects.count, rejects.first)
    line_rows, user_ids = join_codes([code_ids(pa.array(users, pa.large_string()))])
    item_rows, item_ids = join_codes(item_batches)
    notes = [note]
    without = counts.count(0)
    if without:
        notes.append(f"{name}: {without} lines name a user without items")
    if rejects.count:
        notes.append(left_out(name, rejects.count, len(users) + rejects.count, rejects.first))
    interactions = Interactions(np.repeat(line_rows, counts), item_rows, user_ids, item_ids)
    return Reading(interactions, tuple(notes), len(users), rejects.count, "adjacency")
