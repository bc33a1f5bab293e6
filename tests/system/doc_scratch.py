"""Creates the folder that pages are run in: small files with the names that the pages use."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from llpauc.data.interactions import Interactions, Split
from llpauc.data.writers import write_split
from llpauc.recommend import Recommender

USERS, ITEMS, EVENTS_PER_USER = 120, 80, 12
SMALL = {"epochs": 2, "dimensions": 8}


def make(folder: Path) -> None:
    """Write a table of events, parts of it, titles, and runs trained on them."""
    folder.mkdir()
    rows = _rows()
    _write(folder / "events.csv", rows[:-40])
    for name in ("new-events.csv", "EVENTS"):
        _write(folder / name, [*rows[-40:], ("new-user", "i0001", 5, 1_800_000_000)])
    _write(folder / "events-2023.csv", rows[:600])
    with gzip.open(folder / "events-2023.csv.gz", "wb") as packed:
        packed.write((folder / "events-2023.csv").read_bytes())
    names = ("user", "item", "rating", "timestamp")
    later = pa.table(dict(zip(names, zip(*rows[600:], strict=True), strict=True)))
    pq.write_table(later, folder / "events-2024.parquet")
    titles = [(item, f"Film {item[1:]}") for item in sorted({row[1] for row in rows})]
    for name in ("items.csv", "titles.csv"):
        with (folder / name).open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("item", "title"), *titles])
    split = _split(rows)
    write_split(split, folder / "DATA", format="csv")
    trained = Recommender(recipe="none", **SMALL).fit(split)
    for name in ("RUN", "A", "FOLDER/one", "demo/run", "mf"):
        (folder / name).parent.mkdir(exist_ok=True)
        trained.save(folder / name)
    bpr = Recommender(recipe="none", loss="bpr", **SMALL).fit(split)
    for name in ("B", "FOLDER/two", "bpr"):
        bpr.save(folder / name)
    (folder / "KEY").write_text("k" * 20, encoding="utf-8")
    (folder / "users.txt").write_text("ann\nbob\n", encoding="utf-8")
    (folder / "in-stock.csv").write_text(
        "item\n" + "".join(f"{item}\n" for item, _ in titles[:30]), encoding="utf-8"
    )


Row = tuple[str, str, int, int]


def _rows() -> list[Row]:
    """Users of two groups, each of which likes one half of the films; ordered by time."""
    rng = np.random.default_rng(0)
    rows: list[Row] = []
    for user in range(USERS):
        films = np.unique(
            (ITEMS * rng.random(EVENTS_PER_USER) ** 2).astype(int) // 2 * 2 + user % 2
        )
        if user < 2:  # the pages use these films
            films = np.unique([*films, 7, 12])
        name = {0: "ann", 1: "bob"}.get(user, f"u{user:04d}")
        moments = 1_700_000_000 + rng.integers(0, 365 * 86_400, len(films))
        rows += [
            (name, f"i{film:04d}", int(rng.integers(1, 6)), int(moment))
            for film, moment in zip(films, moments, strict=True)
        ]
    return sorted(rows, key=lambda row: row[3])


def _split(rows: list[Row]) -> Split:
    data = Interactions.of([row[0] for row in rows], [row[1] for row in rows])
    part = np.random.default_rng(1).choice(3, len(data), p=[0.7, 0.1, 0.2])
    return Split(*[data.take(part == which) for which in range(3)])


def _write(path: Path, rows: list[Row]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("user", "item", "rating", "timestamp"), *rows])


if __name__ == "__main__":
    make(Path("scratch"))
