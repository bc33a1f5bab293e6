"""How an epoch scales with the data: time against interactions, memory against rows.

    python -m benchmarks.scaling [--max-events 10000000] [--out docs/results]

MF with LLPAUC, 64 dimensions, batch 1024, 100 negatives, 20 events per user. Two series: a
catalogue of 50,000 items for every number of events, and one that grows with them (200 events per
item), which outgrows the processor's caches. Each size runs in a separate process, so that its peak
memory is measured; the second epoch is timed. Up to a million
events it is the median of three runs.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

SIZES = (100_000, 300_000, 1_000_000, 3_000_000, 10_000_000)
SERIES = {"50,000 items": lambda n: 50_000, "200 events an item": lambda n: n // 200}
_SMALL = 1_000_000  # timed three times up to here


def one(n: int, n_items: int) -> dict[str, float]:
    import numpy as np

    from llpauc.data.ids import IdMap
    from llpauc.data.interactions import Interactions
    from llpauc.losses import LLPAUCLoss
    from llpauc.models.mf import MFNetwork
    from llpauc.models.registry import BiasedEmbeddingOptions
    from llpauc.training.batches import batches
    from llpauc.training.engine import CpuEngine
    from llpauc.training.options import TrainingOptions
    from llpauc.training.samplers import make_sampler

    start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    rng = np.random.default_rng(0)
    n_users = n // 20
    users = rng.integers(0, n_users, n)
    items = (n_items * rng.random(n) ** 2).astype(np.int32)
    train = Interactions(users, items, IdMap.of(range(n_users)), IdMap.of(range(n_items)))
    model = MFNetwork(train, BiasedEmbeddingOptions(), 0)
    engine = CpuEngine(
        model,
        LLPAUCLoss(0.7, 0.1),
        make_sampler("uniform", train, 100, 0),
        train,
        TrainingOptions(),
    )
    step = 0
    for _ in range(2):
        started = time.perf_counter()
        order = rng.permutation(n)
        for batch in batches(engine, train, order, 1024, step):
            engine.step(batch)
            step += 1
        engine.settle()
        seconds = time.perf_counter() - started
        if n > _SMALL:  # compilation is negligible: one epoch is enough
            break
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "events": n,
        "rows": n_users + n_items,
        "seconds": seconds,
        "microseconds": 1e6 * seconds / n,
        "peak_mb": peak / 1024,
        "peak_mb_above_start": (peak - start) / 1024,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--max-events", type=int, default=SIZES[-1])
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    parser.add_argument("--one", type=int, nargs=2, metavar=("EVENTS", "ITEMS"), help="one size")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one(*options.one)))
        return 0
    points = []
    for n in [size for size in SIZES if size <= options.max_events]:
        for series, items in SERIES.items():
            command = [sys.executable, "-m", "benchmarks.scaling", "--one", str(n), str(items(n))]
            runs = []
            for _ in range(3 if n <= _SMALL else 1):
                output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
                runs.append(json.loads(output))
            points.append(
                {"series": series, **sorted(runs, key=lambda run: run["seconds"])[len(runs) // 2]}
            )
            print(points[-1], flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "scaling.json").write_text(json.dumps(points, indent=2) + "\n")
    draw(points, options.out / "scaling.png")
    return 0


def draw(points: list[dict[str, float]], path: Path) -> None:
    import matplotlib.pyplot as plt

    from llpauc.storage.figure_files import save

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for axis, x, y, labels in (
        (axes[0], "events", "microseconds", ("interactions", "microseconds an event, one epoch")),
        (axes[1], "rows", "peak_mb_above_start", ("users + items", "memory in MB")),
    ):
        for series, marker in zip(SERIES, "os", strict=True):
            of_series = [p for p in points if p["series"] == series]
            axis.plot(
                [p[x] for p in of_series], [p[y] for p in of_series], f"{marker}-", label=series
            )
        axis.set_xlabel(labels[0])
        axis.set_ylabel(labels[1])
        axis.grid(alpha=0.3)
        axis.legend()
        axis.set_ylim(bottom=0)
    axes[0].set_xscale("log")
    axes[1].xaxis.set_major_formatter("{x:,.0f}")
    figure.suptitle("MF + LLPAUC, 64 dimensions, batch 1024, 100 negatives, two cores")
    save(figure, path)


if __name__ == "__main__":
    raise SystemExit(main())
