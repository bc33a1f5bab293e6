"""Data larger than memory: the cost of preparing and training per event as the data grow.

    python -m benchmarks.out_of_core [--sizes 1e6,1e7,1e8] [--out docs/results] [--place /tmp]

Events are generated: users uniform, items by a power law (fraction of the i-th about i^(-2/3)). Two
series: in one the catalogue grows with the events (20 events per user, 200 per item: at 100 million
events 5 million users and 500,000 items), in the other it has a million users and 100,000 items.
The second separates the cost of larger tables from the cost of more events.

`llpauc data prepare` and the training of a part of an epoch (MF, LLPAUC), once with 20 negatives
per positive and once with 512 shared by a batch of 4,096, run in separate processes, each limited
to 8 GB (RLIMIT_DATA). The peak resident memory includes mapped files. Seconds are wall-clock time;
CPU time is given too, because other load on the machine does not change it.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

LIMIT = 8 * 10**9
GROWING, FIXED = "growing catalogue", "fixed catalogue"
SERIES: dict[str, Callable[[int], tuple[int, int]]] = {
    GROWING: lambda n: (n // 20, n // 200),
    FIXED: lambda n: (1_000_000, 100_000),
}
DIMENSIONS = 64
SAMPLERS = {"uniform": (20, 1_024), "shared": (512, 4_096)}  # negatives, positives a batch
SLICE = 2_000_000  # events trained on
WARM = 200_000  # events before the timing starts: compilation, and the first access to the rows
ROWS_AT_ONCE = 1_000_000


def generate(path: Path, n: int, users: int, items: int) -> None:
    """A CSV file of `n` events, a million at a time."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import csv as arrow_csv

    rng = np.random.default_rng(n)
    plain = arrow_csv.WriteOptions(include_header=False, quoting_style="none")

    def named(letter: str, rows: Any) -> Any:
        return pc.binary_join_element_wise(letter, pa.array(rows).cast(pa.string()), "")

    with path.open("wb") as file:
        file.write(b"user,item,timestamp\n")
        for first in range(0, n, ROWS_AT_ONCE):
            some = min(ROWS_AT_ONCE, n - first)
            table = pa.table(
                {
                    "user": named("u", rng.integers(0, users, some)),
                    "item": named("i", (items * rng.random(some) ** 3).astype(np.int64)),
                    "timestamp": 1_500_000_000 + rng.integers(0, 10**8, some),
                }
            )
            arrow_csv.write_csv(table, file, plain)


def train(folder: Path, dimensions: int, sampled: str) -> dict[str, float]:
    """A slice of an epoch on prepared data."""
    started = time.perf_counter()
    from llpauc.data.prepared import open_prepared
    from llpauc.losses import LLPAUCLoss
    from llpauc.models.mf import MFNetwork
    from llpauc.models.registry import BiasedEmbeddingOptions
    from llpauc.training.batches import batches, epoch_order
    from llpauc.training.engine import CpuEngine
    from llpauc.training.options import TrainingOptions
    from llpauc.training.samplers import make_sampler

    imported = time.perf_counter()
    events = open_prepared(folder).train
    opened = time.perf_counter()
    model = MFNetwork(events, BiasedEmbeddingOptions(dimensions=dimensions), 0)
    negatives, size = SAMPLERS[sampled]
    sampler = make_sampler(sampled, events, negatives, 0)
    engine = CpuEngine(model, LLPAUCLoss(0.7, 0.1), sampler, events, TrainingOptions())
    made = time.perf_counter()
    done = 0
    start, cpu_start = made, time.process_time()
    order = epoch_order(events, seed=0, epoch=1)
    rounds = batches(engine, events, order, size, 0)
    warm = WARM
    for batch in rounds:
        if done >= warm:
            start, cpu_start, done, warm = time.perf_counter(), time.process_time(), 0, SLICE + 1
        engine.step(batch)
        done += len(batch.users)
        if done >= SLICE:
            break
    rounds.close()
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu_start
    start = time.perf_counter()
    engine.settle()
    return {
        "train_open_seconds": opened - imported,
        "train_start_seconds": made - opened,
        "train_import_seconds": imported - started,
        "train_events": done,
        "train_seconds": seconds,
        "train_us": 1e6 * seconds / done,
        "train_cpu_us": 1e6 * cpu / done,
        "settle_seconds": time.perf_counter() - start,
        "dimensions": dimensions,
    }


def measured(command: list[str]) -> tuple[dict[str, float], str]:
    """Run a command in a process under the limit: seconds, peak memory, and its output."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (LIMIT, LIMIT))

    started = time.perf_counter()
    with tempfile.TemporaryFile("w+") as file:
        child = subprocess.Popen(command, stdout=file, preexec_fn=limit)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.perf_counter() - started
        file.seek(0)
        output = file.read()
    if child.returncode:
        raise SystemExit(f"{' '.join(command)}: exit code {child.returncode}")
    cpu = usage.ru_utime + usage.ru_stime
    return {"seconds": seconds, "cpu_seconds": cpu, "peak_gb": usage.ru_maxrss * 1024 / 1e9}, output


def one(n: int, series: str, place: Path, memory: str, dimensions: int) -> dict[str, Any]:
    users, items = SERIES[series](n)
    me = [sys.executable, "-m", "benchmarks.out_of_core"]
    with tempfile.TemporaryDirectory(dir=place, prefix="llpauc-out-of-core-") as folder:
        raw, prepared = Path(folder) / "events.csv", Path(folder) / "prepared"
        measured([*me, "--generate", str(raw), str(n), str(users), str(items)])
        size = raw.stat().st_size
        llpauc = [sys.executable, "-m", "llpauc", "data", "prepare", str(raw)]
        cost, output = measured([*llpauc, "--out", str(prepared), "--memory", memory, "--json"])
        counts = json.loads(output)["counts"]
        raw.unlink()
        written = sum(path.stat().st_size for path in prepared.iterdir())
        trained: dict[str, Any] = {}
        for sampled in SAMPLERS:
            words = ["--train", str(prepared), "--dimensions", str(dimensions)]
            usage, output = measured([*me, *words, "--sampler", sampled])
            result = {**json.loads(output), "train_peak_gb": usage["peak_gb"]}
            short = {key.replace("train", sampled): result[key] for key in result}
            trained |= short if sampled == "shared" else result
    return {
        "series": series,
        "events": n,
        "users": counts["users"],
        "items": counts["items"],
        "train": counts["train"],
        "raw_gb": size / 1e9,
        "prepared_gb": written / 1e9,
        "prepare_seconds": cost["seconds"],
        "prepare_us": 1e6 * cost["seconds"] / n,
        "prepare_cpu_us": 1e6 * cost["cpu_seconds"] / n,
        "prepare_peak_gb": cost["peak_gb"],
        **trained,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--sizes", default="1e6,1e7,1e8")
    parser.add_argument("--series", default=f"{GROWING},{FIXED}")
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    parser.add_argument("--place", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--memory", default="4GB", help="for DuckDB")
    parser.add_argument("--dimensions", type=int, default=DIMENSIONS)
    parser.add_argument("--generate", nargs=4, metavar=("FILE", "EVENTS", "USERS", "ITEMS"))
    parser.add_argument("--train", type=Path, metavar="FOLDER")
    parser.add_argument("--sampler", choices=SAMPLERS, default="uniform")
    options = parser.parse_args()
    if options.generate:
        path, *numbers = options.generate
        generate(Path(path), *map(int, numbers))
        return 0
    if options.train:
        print(json.dumps(train(options.train, options.dimensions, options.sampler)))
        return 0
    for n in (int(float(size)) for size in options.sizes.split(",")):
        # 27 bytes an event raw, 30 in DuckDB's file, and the same again while sorting.
        free = shutil.disk_usage(options.place).free
        if free < 120 * n:
            raise SystemExit(f"{options.place}: {free:,} bytes free, {120 * n:,} needed")
        for series in options.series.split(","):
            point = one(n, series, options.place, options.memory, options.dimensions)
            print(json.dumps(point), flush=True)
            save_point(point, options.out)
    return 0


def save_point(point: dict[str, Any], out: Path) -> None:
    """Add the point to those of earlier runs, and write all of them as a page."""
    path = out / "out-of-core.csv"
    points: list[dict[str, Any]] = []
    if path.exists():
        with path.open(newline="") as file:
            points = list(csv.DictReader(file))
    same = ("series", "events")
    points = [p for p in points if any(str(p[key]) != str(point[key]) for key in same)]
    rounded = {k: round(v, 4) if isinstance(v, float) else v for k, v in point.items()}
    points = sorted([*points, rounded], key=lambda p: (p["series"], int(p["events"])))
    out.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(point), lineterminator="\n")
        writer.writeheader()
        writer.writerows(points)
    (out / "out-of-core.md").write_text(page(points), encoding="utf-8")


def page(points: list[dict[str, Any]]) -> str:
    columns: dict[str, Callable[[dict[str, Any]], str]] = {
        "events": lambda p: f"{int(p['events']):,}",
        "users": lambda p: f"{int(p['users']):,}",
        "items": lambda p: f"{int(p['items']):,}",
        "prepare, s": lambda p: f"{float(p['prepare_seconds']):,.0f}",
        "µs an event": lambda p: f"{float(p['prepare_us']):.2f}",
        "of CPU": lambda p: f"{float(p['prepare_cpu_us']):.2f}",
        "peak GB": lambda p: f"{float(p['prepare_peak_gb']):.2f}",
        "prepared GB": lambda p: f"{float(p['prepared_gb']):.2f}",
        "open, s": lambda p: f"{float(p['train_open_seconds']):.2f}",
        "20 negatives each, µs an event": lambda p: f"{float(p['train_us']):.1f}",
        "of CPU ": lambda p: f"{float(p['train_cpu_us']):.1f}",
        "shared, µs an event": lambda p: f"{float(p['shared_us']):.1f}",
        "of CPU  ": lambda p: f"{float(p['shared_cpu_us']):.1f}",
        "peak GB ": lambda p: f"{float(p['train_peak_gb']):.2f}",
    }
    lines = ["# Data larger than memory", "", *(__doc__ or "").strip().split("\n")[4:], ""]
    for series in SERIES:
        of_series = [p for p in points if p["series"] == series]
        if of_series:
            width = of_series[0]["dimensions"]
            lines += [f"## {series.capitalize()}, {width} dimensions", ""]
            lines += ["| " + " | ".join(columns) + " |", "|" + "---:|" * len(columns)]
            lines += [
                "| " + " | ".join(show(p) for show in columns.values()) + " |" for p in of_series
            ]
            lines += [""]
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
