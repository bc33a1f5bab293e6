"""Time and memory from a laptop to a billion interactions, by a model fitted to measurements.

    python -m benchmarks.plan [--points docs/results/out-of-core.csv] [--out docs/results/plan.md]

The points are those of `benchmarks.out_of_core` (its growing catalogue: 20 events per user, 200 per
item). Fitted: seconds to prepare = a + b events; memory = a + b rows; microseconds to train on an
event = a + b log10(rows of the tables) with shared negatives, and a x^b with separate negatives,
where x is the number of distinct rows that a batch touches per event. Computed: x, and the bytes
sent per epoch.
"""

from __future__ import annotations

import argparse
import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

SIZES = (10**5, 10**6, 10**7, 10**8, 10**9)
WIDTH = 64
SHARED, SEPARATE = 512, 20  # negatives: per batch, or per positive
LINK = 10e9 / 8  # bytes a second: 10 Gbit/s
PROCESSES = (2, 8, 64)
_ROW = 4 * WIDTH  # bytes of one row

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Line:
    """y = start + slope x, by least squares of the relative errors."""

    start: float
    slope: float

    @staticmethod
    def through(x: Floats, y: Floats) -> Line:
        design = np.stack([np.ones_like(x), x], axis=1) / y[:, None]
        start, slope = np.linalg.lstsq(design, np.ones_like(y), rcond=None)[0]
        return Line(float(start), float(slope))

    def __call__(self, x: float) -> float:
        return self.start + self.slope * x


def rows_of(events: float) -> float:
    return events / 20 + events / 200


def distinct(draws: float, among: float) -> float:
    """Expected number of distinct values of uniform draws."""
    return among * -np.expm1(-draws / among)


def touched_by(events: float) -> float:
    """Distinct rows for each event, in a batch as it was measured: 1,024 with 20 negatives each."""
    return 1 + float(distinct(1_024 * (1 + SEPARATE), events / 200)) / 1_024


def sent(events: float, processes: int) -> float:
    """Bytes that a process sends per epoch: items with two moments twice, its users once."""
    users, items = events / 20, events / 200
    return (1 - 1 / processes) * (6 * items + users) * _ROW


def span(seconds: float) -> str:
    """
    >>> span(5), span(600), span(90_000)
    ('5 s', '10 min', '25 h')
    """
    for limit, unit, text in ((100, 1, "s"), (6_000, 60, "min"), (float("inf"), 3_600, "h")):
        if seconds < limit:
            return f"{seconds / unit:.0f} {text}"
    raise AssertionError


def page(points: list[dict[str, str]]) -> str:
    growing = [p for p in points if p["series"].startswith("growing")]
    events = np.array([float(p["events"]) for p in growing])
    rows = np.array([float(p["users"]) + float(p["items"]) for p in growing])

    def column(name: str) -> Floats:
        return np.array([float(p[name]) for p in growing])

    prepare = Line.through(events, column("prepare_seconds"))
    memory = Line.through(rows, column("train_peak_gb"))
    disk = Line.through(events, column("prepared_gb"))
    shared = Line.through(np.log10(rows), column("shared_us"))
    touched = np.log([touched_by(n) for n in events])
    power, start = np.polyfit(touched, np.log(column("train_us")), 1)
    step = {
        "train": lambda n: float(np.exp(start) * touched_by(n) ** power),
        "shared": lambda n: shared(np.log10(rows_of(n))),
    }
    lines = [
        "# A plan by size",
        "",
        f"MF, {WIDTH} dimensions, 20 events per user, 200 per item, on two cores as in the"
        " measurements. Fitted to the growing catalogue of [out of core](out-of-core.md)"
        f" ({', '.join(f'{n:.0e}' for n in events)} events); values beyond the last point are"
        " extrapolated.",
        "",
        f"- prepare, seconds: {prepare.start:.1f} + {1e6 * prepare.slope:.2f} a million events",
        f"- an event in training, microseconds: {np.exp(start):.2f} x^{power:.2f} with {SEPARATE}"
        f" negatives each, {shared.start:.1f} + {shared.slope:.1f} log10(rows) with {SHARED}"
        " shared",
        f"- memory of training, GB: {memory.start:.2f} + {1e6 * memory.slope:.2f} a million rows;"
        f" the best weights so far take {1e6 * _ROW / 1e9:.2f} more a million rows",
        "",
        "| events | rows | prepare | prepared | epoch, separate negatives | epoch, shared | memory,"
        " one process |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for n in SIZES:
        r = rows_of(n)
        tables = memory.slope * r + r * _ROW / 1e9
        took = {name: n * cost(n) / 1e6 for name, cost in step.items()}
        lines.append(
            f"| {n:,} | {r:,.0f} | {span(prepare(n))} | {disk(n):.2f} GB | {span(took['train'])} |"
            f" {span(took['shared'])} | {memory.start + tables:.1f} GB |"
        )
    lines += [
        "",
        "## Traffic per epoch",
        "",
        "By each process; in brackets the time on a link of 10 Gbit/s. Measured on one machine:"
        " [an epoch of several processes](distributed.md).",
        "",
        "| events | " + " | ".join(f"{processes} processes" for processes in PROCESSES) + " |",
        "|---:" * (1 + len(PROCESSES)) + "|",
    ]
    for n in SIZES[2:]:
        sizes = [sent(n, processes) for processes in PROCESSES]
        cells = " | ".join(f"{b / 1e6:,.0f} MB ({b / LINK:.1f} s)" for b in sizes)
        lines.append(f"| {n:,} | {cells} |")
    return "\n".join([*lines, "", "Made by `python -m benchmarks.plan`.", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--points", type=Path, default=Path("docs/results/out-of-core.csv"))
    parser.add_argument("--out", type=Path, default=Path("docs/results/plan.md"))
    options = parser.parse_args()
    with options.points.open(newline="") as file:
        options.out.write_text(page(list(csv.DictReader(file))), encoding="utf-8")
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
