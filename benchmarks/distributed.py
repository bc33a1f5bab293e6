"""Copies against shards, one process against several: time, memory and traffic of a step.

    python -m benchmarks.distributed [--processes 1,2] [--out docs/results]

MF, 64 dimensions, 100,000 users, 50,000 items. Every line is a separate job, one thread
per process; the configurations take turns, and the median of three rounds counts.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
N_USERS, N_ITEMS, N_EVENTS, WIDTH = 100_000, 50_000, 1_000_000, 64
WORK = {
    "LLPAUC, 1,024 x 100 negatives each": ("llpauc", "uniform", 1_024, 100),
    "BPR, 1,024 x 100 negatives each": ("bpr", "uniform", 1_024, 100),
    "LLPAUC, 4,096 x 1,024 shared": ("llpauc", "shared", 4_096, 1_024),
    "SL, 4,096 x 1,024 shared": ("sl", "shared", 4_096, 1_024),
}
_WARM, _TIMED = 10, 40


def one(work: str, shard: bool, out: Path) -> None:
    """Time some steps; the first process writes the result."""
    import numba
    import numpy as np
    import torch

    from llpauc.data.ids import IdMap
    from llpauc.data.interactions import Interactions
    from llpauc.distributed import ProcessGroup, join_process_group
    from llpauc.losses import make_loss
    from llpauc.models.mf import MFNetwork, ShardedMFNetwork
    from llpauc.models.registry import BiasedEmbeddingOptions
    from llpauc.training.batches import batches
    from llpauc.training.engine import CpuEngine
    from llpauc.training.options import TrainingOptions
    from llpauc.training.samplers import make_sampler

    @dataclass(frozen=True)
    class Counting(ProcessGroup):
        """Counts the bytes that leave this process."""

        sent: list[int] = field(default_factory=list)

        def gather_all(self, arrays, lengths=None):
            self.sent.append(sum(array.nbytes for array in arrays) * (self.world_size - 1))
            return super().gather_all(arrays, lengths)

        def exchange(self, array, counts, come):
            local = array.nbytes * counts[self.index] // max(len(array), 1)
            self.sent.append(int(array.nbytes - local))
            return super().exchange(array, counts, come)

    loss_name, sampler, size, negatives = WORK[work]
    numba.set_num_threads(1)
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    users = rng.integers(0, N_USERS, N_EVENTS)
    items = (N_ITEMS * rng.random(N_EVENTS) ** 2).astype(np.int32)
    train = Interactions(users, items, IdMap.of(range(N_USERS)), IdMap.of(range(N_ITEMS)))
    with join_process_group() as group:
        processes = Counting(group.index, group.world_size)
        options = BiasedEmbeddingOptions(dimensions=WIDTH)
        if shard:
            model = ShardedMFNetwork(train, options, 0, processes)
        else:
            model = MFNetwork(train, options, 0)
        parameters = {"alpha": 0.7, "beta": 0.1} if loss_name == "llpauc" else {}
        loss = make_loss(loss_name, **parameters)
        source = make_sampler(sampler, train, negatives, 0)
        engine = CpuEngine(model, loss, source, train, TrainingOptions(), processes=processes)
        times: list[float] = []
        order = rng.permutation(N_EVENTS)[: (_WARM + _TIMED) * size]
        for place, batch in enumerate(batches(engine, train, order, size, 0)):
            if place == _WARM:
                processes.sent.clear()
            started = time.perf_counter()
            engine.step(batch)
            times.append(time.perf_counter() - started)
        rows = (N_USERS + N_ITEMS) / (processes.world_size if shard else 1)
        result = {
            "ms": 1e3 * statistics.median(times[_WARM:]),
            "sent": sum(processes.sent) / (len(times) - _WARM),
            "tables": rows * WIDTH * 4 * 3,  # weights and Adam's two moments
        }
        if processes.is_first:
            out.write_text(json.dumps(result))


def job(work: str, shard: bool, processes: int, out: Path) -> dict[str, float]:
    words = ["-m", "benchmarks.distributed", "--one", work, "--one-out", str(out)]
    words += ["--shard"] if shard else []
    if processes > 1:
        port = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]
        launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(processes), *port]
        words = [*launcher, *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": str(processes)}
    subprocess.run([sys.executable, *words], cwd=ROOT, env=environment, check=True)
    result: dict[str, float] = json.loads(out.read_text())
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--processes", default="1,2")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results")
    parser.add_argument("--one", choices=WORK)
    parser.add_argument("--one-out", type=Path)
    parser.add_argument("--shard", action="store_true")
    options = parser.parse_args()
    if options.one:
        one(options.one, options.shard, options.one_out)
        return
    counts = [int(n) for n in options.processes.split(",")]
    configurations = [
        (w, p, s) for w in WORK for p in counts for s in (False, True) if p > 1 or not s
    ]
    results_of: dict[tuple[str, int, bool], list[dict[str, float]]] = {
        key: [] for key in configurations
    }
    scratch = options.out / ".distributed.json"
    for turn in range(options.rounds):
        for work, processes, shard in configurations:
            print(f"round {turn + 1}: {work}, {processes} processes, shard {shard}", flush=True)
            results_of[work, processes, shard].append(job(work, shard, processes, scratch))
    scratch.unlink()
    (options.out / "distributed.md").write_text(report(results_of), encoding="utf-8")
    print(f"wrote {options.out / 'distributed.md'}")


def report(results_of: dict[tuple[str, int, bool], list[dict[str, float]]]) -> str:
    lines = [
        "# A step of one process and of several",
        "",
        "MF, 64 dimensions, 100,000 users, 50,000 items; one thread per process, all on one machine"
        " (gloo over loopback); the median of the rounds. *sent*: by each process, per step."
        " *memory*: weights and Adam's moments of a process.",
        "",
        "| work | processes | tables | ms a step | sent | memory |",
        "|---|---|---|---|---|---|",
    ]
    for (work, processes, shard), results in results_of.items():
        where = "alone" if processes == 1 else "shards" if shard else "copies"
        ms = statistics.median(r["ms"] for r in results)
        sent, held = results[0]["sent"] / 1e6, results[0]["tables"] / 1e6
        lines.append(
            f"| {work} | {processes} | {where} | {ms:.1f} | {sent:.2f} MB | {held:.0f} MB |"
        )
    return "\n".join([*lines, "", "Made by `python -m benchmarks.distributed`.", ""])


if __name__ == "__main__":
    main()
