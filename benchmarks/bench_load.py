"""Loading 20 million rows of CSV: `read_interactions` against pandas, each in its own process.

Both give the same result: ids as text (007 stays 007) numbered by first appearance, ratings and
timestamps as numbers. Run it as a script (`--quick` for 2 million rows) or call `run`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

ROWS = {"full": 20_000_000, "quick": 2_000_000}
USERS, ITEMS = 200_000, 50_000
SECONDS_ALLOWED, MEGABYTES_ALLOWED = 60.0, 4096.0

# Each side runs in a separate process, so that peak memory and caches are separate. Imports are
# not timed.
_FRAME = """
import json, resource, sys, time
{imports}
start = time.perf_counter()
{work}
seconds = time.perf_counter() - start
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
peak_mb = peak / 1024 if sys.platform != "darwin" else peak / 1024**2
print(json.dumps(dict(seconds=seconds, peak_mb=peak_mb, rows=rows, users=users, items=items)))
"""
SIDES = {
    "llpauc": _FRAME.format(
        imports="from llpauc.data.readers import read_interactions",
        work="""
data = read_interactions(sys.argv[1]).interactions
rows, users, items = len(data), data.n_users, data.n_items
""",
    ),
    "pandas": _FRAME.format(
        imports="import pandas",
        work="""
frame = pandas.read_csv(sys.argv[1], dtype={"user": str, "item": str})
user_idx, user_ids = pandas.factorize(frame["user"])
item_idx, item_ids = pandas.factorize(frame["item"])
ratings = frame["rating"].to_numpy("float32")
times = frame["timestamp"].to_numpy("float64")
rows, users, items = len(user_idx), len(user_ids), len(item_ids)
""",
    ),
}


def write_rows(path: Path, rows: int, seed: int = 0) -> None:
    """A long-tailed file `user,item,rating,timestamp`, the same for the same seed."""
    generator = np.random.default_rng(seed)
    with path.open("w") as file:
        file.write("user,item,rating,timestamp\n")
        for start in range(0, rows, 500_000):
            count = min(500_000, rows - start)
            users = (generator.random(count) ** 2 * USERS).astype(int).tolist()
            items = (generator.random(count) ** 3 * ITEMS).astype(int).tolist()
            ratings = (generator.integers(1, 11, count) / 2).tolist()
            times = generator.integers(10**9, 17 * 10**8, count).tolist()
            file.writelines(
                f"U{user:06d},I{item},{rating},{time}\n"
                for user, item, rating, time in zip(users, items, ratings, times, strict=True)
            )


def run(quick: bool = False) -> dict[str, dict[str, Any]]:
    """Seconds and peak memory of both, interleaved; ratio = pandas' seconds / ours (median)."""
    size = "quick" if quick else "full"
    repeats = 5 if quick else 3
    measured: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory(prefix="llpauc-bench-") as folder:
        path = Path(folder) / "ratings.csv"
        write_rows(path, ROWS[size])
        megabytes = path.stat().st_size / 1e6
        for _ in range(repeats):
            for side, program in SIDES.items():
                command = [sys.executable, "-c", program, str(path)]
                result = subprocess.run(command, capture_output=True, text=True, check=True)
                measured[side].append(json.loads(result.stdout))
    counts = {(r["rows"], r["users"], r["items"]) for runs in measured.values() for r in runs}
    if len(counts) != 1:
        raise RuntimeError(f"the two sides disagree about rows, users and items: {counts}")
    seconds = {
        side: statistics.median(r["seconds"] for r in runs) for side, runs in measured.items()
    }
    peaks = {side: max(r["peak_mb"] for r in runs) for side, runs in measured.items()}
    name = f"load_{ROWS[size] // 1_000_000}m_rows"
    return {
        name: {
            "ratio": round(seconds["pandas"] / seconds["llpauc"], 2),
            "goal": 1.0,
            "rival": "pandas.read_csv with text ids, then factorize",
            "seconds": round(seconds["llpauc"], 2),
            "seconds_allowed": SECONDS_ALLOWED,
            "rival_seconds": round(seconds["pandas"], 2),
            "peak_mb": round(peaks["llpauc"]),
            "peak_mb_allowed": MEGABYTES_ALLOWED,
            "rival_peak_mb": round(peaks["pandas"]),
            "within_limits": seconds["llpauc"] <= SECONDS_ALLOWED
            and peaks["llpauc"] <= MEGABYTES_ALLOWED,
            "file_mb": round(megabytes),
            "repeats": repeats,
        }
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="2 million rows instead of 20")
    print(json.dumps(run(parser.parse_args().quick), indent=2))


if __name__ == "__main__":
    main()
