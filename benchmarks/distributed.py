"""One process against several on Gowalla: time, CPU time and traffic of an epoch, and quality.

    python -m benchmarks.distributed [--processes 1,2,4,8] [--rounds 3] [--events 1.0]
    python -m benchmarks.distributed --quality amazon-electronic [--processes 1,2,4] [--seeds 3]

One thread per process. Every line is a separate job; the jobs take turns, and the median of the
rounds counts. An epoch is the second of a training, with the exchange at its end and without
validation. *CPU*: user and system time of the process with the most; processes that outnumber the
cores can be compared by it only. Data: LLPAUC_DATA, else ../shared/data.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("LLPAUC_DATA", ROOT.parent / "shared" / "data"))
_SHARED = {"sampler": "shared", "negatives": 2_048, "batch_size": 4_096, "dimensions": 128}
_LLPAUC = {"loss": "llpauc", "alpha": 0.7, "beta": 0.02, "score": "cosine", "temperature": 0.25}
WORK: dict[str, dict[str, Any]] = {
    "LLPAUC, 2,048 shared negatives": _LLPAUC | _SHARED,
    "LLPAUC per user, 2,048 shared": _LLPAUC | _SHARED | {"solver": "per-user", "sharpness": 20.0},
    "SL, 2,048 shared": {"loss": "sl", "temperature": 0.1} | _SHARED,
    "LLPAUC, 100 negatives each": _LLPAUC | {"dimensions": 64, "batch_size": 1_024},
}
QUALITY = {
    "LLPAUC": {**WORK["LLPAUC, 2,048 shared negatives"], "negatives": 1_024, "batch_size": 1_024},
    "LLPAUC per user": {**WORK["LLPAUC per user, 2,048 shared"], "batch_size": 1_024},
    "SL": {**WORK["SL, 2,048 shared"], "batch_size": 1_024},
}
_LR = 0.003


def one_epoch(work: str, fraction: float, out: Path) -> None:
    """Time the second epoch; the first process writes the result."""
    import numpy as np

    from llpauc.data.interactions import Split
    from llpauc.distributed import ProcessGroup, join_process_group
    from llpauc.recommend.parameters import plan
    from llpauc.recommend.sources import as_split
    from llpauc.training import fit

    sent = 0
    rotate, broadcast = ProcessGroup.rotate, ProcessGroup.broadcast

    def counting_rotate(group: ProcessGroup, outgoing: Any, incoming: Any) -> Any:
        nonlocal sent
        sent += outgoing.nbytes
        return rotate(group, outgoing, incoming)

    def counting_broadcast(group: ProcessGroup, array: Any, source: int = 0) -> None:
        nonlocal sent
        sent += array.nbytes * (group.world_size - 1) if source == group.index else 0
        broadcast(group, array, source)

    ProcessGroup.rotate, ProcessGroup.broadcast = counting_rotate, counting_broadcast  # type: ignore[method-assign]
    train = as_split(DATA / "gowalla").train
    chosen = np.random.default_rng(0).random(len(train)) < fraction
    settings = {name: value for name, value in WORK[work].items() if name != "loss"}
    made = plan("mf", WORK[work]["loss"], {**settings, "lr": _LR, "epochs": 2})
    marks: list[tuple[float, float, float]] = []

    def on_epoch(epoch: Any) -> None:
        marks.append((time.perf_counter(), time.process_time(), float(sent)))

    with join_process_group() as processes:
        events = train.take(np.flatnonzero(chosen))
        network, loss = made.new_network(events), made.make_loss()
        fit(network, loss, Split(events), made.training_options(), on_epoch=on_epoch)
        spent = [after - before for before, after in zip(*marks, strict=True)]
        every = processes.all_gather(spent)
        if processes.is_first:
            seconds, cpu, traffic = every.max(axis=0).tolist()
            out.write_text(json.dumps({"seconds": seconds, "cpu": cpu, "sent": traffic}))


def one_training(work: str, data: str, seed: int, epochs: int, out: Path) -> None:
    """Train with the same number of epochs, and write the value of every test user."""
    import numpy as np

    from llpauc.distributed import join_process_group
    from llpauc.evaluation import evaluate
    from llpauc.recommend import Recommender
    from llpauc.recommend.sources import as_split

    split = as_split(DATA / data)
    settings = {**QUALITY[work], "lr": _LR, "epochs": epochs, "seed": seed}
    with join_process_group() as processes:
        recommender = Recommender(model="mf", recipe="none", hold_out=0.0, **settings).fit(split)
        if processes.is_first:
            result = evaluate(recommender, split, metrics=["ndcg@20"])
            out.write_text(json.dumps({"ndcg@20": float(np.mean(result.values["ndcg@20"]))}))


def job(processes: int, out: Path, *words: str) -> dict[str, float]:
    """The result of this module with `words`, in several processes of one thread."""
    command = ["-m", "benchmarks.distributed", *words, "--one-out", str(out)]
    if processes > 1:
        port = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]
        launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(processes), *port]
        command = [*launcher, *command]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    subprocess.run([sys.executable, *command], cwd=ROOT, env=environment, check=True)
    result: dict[str, float] = json.loads(out.read_text())
    out.unlink()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--processes", default="1,2,4,8")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--events", type=float, default=1.0, help="fraction of the events")
    parser.add_argument("--work", default="", help="only the lines that contain this text")
    parser.add_argument("--quality", metavar="DATA", help="compare the quality on this data set")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results")
    parser.add_argument("--one", choices=[*WORK, *QUALITY])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--one-out", type=Path)
    options = parser.parse_args()
    if options.one and options.quality:
        one_training(options.one, options.quality, options.seed, options.epochs, options.one_out)
        return
    if options.one:
        one_epoch(options.one, options.events, options.one_out)
        return
    counts = [int(n) for n in options.processes.split(",")]
    compare = quality if options.quality else speed
    lines = compare(options, counts)
    print("\n".join(lines))
    name = "distributed-quality.md" if options.quality else "distributed.md"
    if options.events == 1.0 and not options.work:
        (options.out / name).write_text("\n".join([*lines, ""]), encoding="utf-8")


def speed(options: Any, counts: list[int]) -> list[str]:
    names = [name for name in WORK if options.work in name]
    results: dict[tuple[str, int], list[dict[str, float]]] = {
        (work, n): [] for work in names for n in counts
    }
    for turn in range(options.rounds):
        for (work, n), of_job in results.items():
            print(f"round {turn + 1}: {work}, {n} processes", file=sys.stderr, flush=True)
            words = "--one", work, "--events", str(options.events)
            of_job.append(job(n, options.out / ".distributed.json", *words))
            print(of_job[-1], file=sys.stderr, flush=True)
    lines = [
        "# An epoch of one process and of several",
        "",
        f"MF on Gowalla, {options.events:.0%} of its events; one thread per process, all on one"
        f" machine with {os.cpu_count()} cores. Median of {options.rounds} rounds. CPU: time of the"
        " process with the most; its speed-up is what as many cores would give. Sent: by a process"
        " per epoch.",
        "",
        "| work | processes | seconds | speed-up | CPU | speed-up by CPU | sent |",
        "|---|---|---|---|---|---|---|",
    ]
    for (work, n), of_job in results.items():
        medians = {k: statistics.median(r[k] for r in of_job) for k in of_job[0]}
        first = results[work, counts[0]]
        gains = {
            k: statistics.median(a[k] / b[k] for a, b in zip(first, of_job, strict=True))
            for k in ("seconds", "cpu")
        }
        lines.append(
            f"| {work} | {n} | {medians['seconds']:.1f} | {gains['seconds']:.2f} |"
            f" {medians['cpu']:.1f} s | {gains['cpu']:.2f} | {medians['sent'] / 1e6:.0f} MB |"
        )
    return [*lines, "", "Made by `python -m benchmarks.distributed`."]


def quality(options: Any, counts: list[int]) -> list[str]:
    lines = [
        "# Quality of one process and of several",
        "",
        f"MF on {options.quality}, NDCG@20 on the test part after {options.epochs} epochs; mean and"
        f" standard deviation over {options.seeds} seeds.",
        "",
        "| loss | " + " | ".join(f"{n} processes" for n in counts) + " |",
        "|---" * (1 + len(counts)) + "|",
    ]
    for work in (name for name in QUALITY if options.work in name):
        cells = []
        for n in counts:
            values = []
            for seed in range(options.seeds):
                words = ["--one", work, "--quality", options.quality, "--seed", str(seed)]
                words += ["--epochs", str(options.epochs)]
                values.append(job(n, options.out / ".quality.json", *words)["ndcg@20"])
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            cells.append(f"{statistics.mean(values):.4f} ± {spread:.4f}")
            print(work, n, cells[-1], file=sys.stderr, flush=True)
        lines.append(f"| {work} | " + " | ".join(cells) + " |")
    return [*lines, "", f"Made by `python -m benchmarks.distributed --quality {options.quality}`."]


if __name__ == "__main__":
    main()
