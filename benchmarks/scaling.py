"""How an epoch grows with the data: time against interactions, memory against rows.

    python -m benchmarks.scaling [--most 10000000] [--out docs/results]

MF with LLPAUC, 64 dimensions, batch 1024, 100 negatives; 20 events a user, 200 an item. Each size
runs in a process of its own, so that peak memory is its own; the second epoch is timed.
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


def one(n: int) -> dict[str, float]:
    import numpy as np

    from llpauc.interactions import IdMap, Interactions
    from llpauc.losses import LLPAUCLoss
    from llpauc.models.embedding import MF, EmbeddingOptions
    from llpauc.optim import AdamOptions
    from llpauc.sampling import make_sampler
    from llpauc.training.batches import batches
    from llpauc.training.engine import CpuEngine

    start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    rng = np.random.default_rng(0)
    n_users, n_items = n // 20, n // 200
    users = rng.integers(0, n_users, n)
    items = (n_items * rng.random(n) ** 2).astype(np.int32)
    train = Interactions(users, items, IdMap.of(range(n_users)), IdMap.of(range(n_items)))
    model = MF(train, EmbeddingOptions(), 0)
    engine = CpuEngine(
        model, LLPAUCLoss(0.7, 0.1), make_sampler("uniform", train, 100, 0), train, AdamOptions()
    )
    step = 0
    for _ in range(2):
        begun = time.perf_counter()
        order = rng.permutation(n)
        for batch in batches(engine, train, order, 1024, step):
            engine.step(batch)
            step += 1
        engine.settle()
        seconds = time.perf_counter() - begun
        if n > 1_000_000:  # compiled long ago: one epoch tells as much as two
            break
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"events": n, "rows": n_users + n_items, "seconds": seconds,
            "peak_mb": peak / 1024, "peak_mb_above_start": (peak - start) / 1024}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--most", type=int, default=SIZES[-1])
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    parser.add_argument("--one", type=int, help="run one size and print it")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one(options.one)))
        return 0
    points = []
    for n in [size for size in SIZES if size <= options.most]:
        command = [sys.executable, "-m", "benchmarks.scaling", "--one", str(n)]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        points.append(json.loads(told))
        print(points[-1], flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "scaling.json").write_text(json.dumps(points, indent=2) + "\n")
    draw(points, options.out / "scaling.png")
    return 0


def draw(points: list[dict[str, float]], path: Path) -> None:
    import matplotlib.pyplot as plt

    from llpauc import plots

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for axis, x, y, labels in (
        (axes[0], "events", "seconds", ("interactions", "seconds an epoch")),
        (axes[1], "rows", "peak_mb_above_start", ("users + items", "memory in MB")),
    ):
        xs, ys = [p[x] for p in points], [p[y] for p in points]
        axis.loglog(xs, ys, "o-", label="measured")
        axis.loglog(xs, [ys[-1] * v / xs[-1] for v in xs], ":", color="0.4", label="linear")
        axis.set_xlabel(labels[0])
        axis.set_ylabel(labels[1])
        axis.grid(alpha=0.3)
        axis.legend()
    figure.suptitle("MF + LLPAUC, 64 dimensions, batch 1024, 100 negatives, two cores")
    plots.save(figure, path)


if __name__ == "__main__":
    raise SystemExit(main())
