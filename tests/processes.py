"""Trains small models in one or several processes: `python -m tests.processes ACTION FOLDER`.

Every case is trained on the same small events, and the results are saved as arrays. A test runs the
cases in this process and under torchrun, and compares the results.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from llpauc.cli import main
from llpauc.data.interactions import Interactions, Split
from llpauc.data.splits import split_random_per_user
from llpauc.distributed import ProcessGroup, current_process_group, join_process_group
from llpauc.evaluation.full_ranking import evaluate
from llpauc.losses import make_loss
from llpauc.models.mf import ShardedMFNetwork
from llpauc.models.registry import MODELS
from llpauc.training import CheckpointSettings, TrainingOptions, fit
from llpauc.training.engine import TorchEngine
from llpauc.training.samplers import make_sampler

BATCH = 97
ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Case:
    """A model, a loss and their options."""

    model: str = "mf"
    loss: str = "llpauc"
    loss_options: dict[str, Any] = field(default_factory=dict)
    model_options: dict[str, Any] = field(default_factory=dict)
    training_options: dict[str, Any] = field(default_factory=dict)
    shard: bool = False


_LLPAUC = {"alpha": 0.7, "beta": 0.1}
_PER_USER = {**_LLPAUC, "solver": "per-user"}
_COSINE = {"score": "cosine", "temperature": 0.25}
CASES = {
    "llpauc": Case(loss_options=_LLPAUC),
    "llpauc, shards": Case(loss_options=_LLPAUC, shard=True),
    "per-user, shared": Case(
        loss_options=_PER_USER, model_options=_COSINE, training_options={"sampler": "shared"}
    ),
    "per-user, shared, shards": Case(
        loss_options=_PER_USER,
        model_options=_COSINE,
        training_options={"sampler": "shared"},
        shard=True,
    ),
    "exact, all items": Case(
        loss_options={**_LLPAUC, "solver": "exact"}, training_options={"sampler": "all-items"}
    ),
    "bpr, biased, shards": Case(loss="bpr", model_options={"item_bias": True}, shard=True),
    "tce, popularity": Case(loss="tce", training_options={"sampler": "popularity"}),
    "sl@k, shards": Case(
        loss="sl_at_k",
        model_options={"score": "cosine"},
        training_options={"sampler": "shared"},
        shard=True,
    ),
    "bce, decay, uniform-with-positives": Case(
        loss="bce", training_options={"sampler": "uniform-with-positives", "weight_decay": 0.01}
    ),
    "lightgcn, sl, in-batch": Case(
        "lightgcn",
        "sl",
        model_options={"score": "cosine", "propagation_interval": 2},
        training_options={"sampler": "in-batch"},
    ),
    "fism, llpauc": Case("fism", loss_options=_LLPAUC),
}


def events() -> Split:
    """Numbers of users and items that are not multiples of 2 or 3; one user has nearly every item.

    The last batch of an epoch has one row, so that all processes but one have an empty part of it.
    """
    rng = np.random.default_rng(0)
    users, items = rng.integers(0, 151, 2_500), (rng.random(2_500) ** 2 * 103).astype(int)
    users = np.concatenate([users, np.full(97, 150)])
    items = np.concatenate([items, np.arange(97)])
    split = split_random_per_user(
        Interactions.of(users.tolist(), items.tolist()), valid=0.1, test=0.1, seed=0
    )
    rows = np.arange(len(split.train) // BATCH * BATCH + 1)
    return Split(split.train.take(rows), split.valid, split.test)


def train(
    case: Case, processes: ProcessGroup, split: Split, epochs: int,
    checkpoint: CheckpointSettings | None = None,
    stop_after: int | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Train; metrics of every epoch and, in the first process, the vectors."""
    options = MODELS[case.model].Options(dimensions=16, **case.model_options)
    if case.shard:
        model = ShardedMFNetwork(split.train, options, 3, processes)
    else:
        model = MODELS[case.model].load().Network(split.train, options, 3)
    loss = make_loss(case.loss, **case.loss_options)
    training_options = TrainingOptions(
        epochs=epochs, batch_size=BATCH, negatives=20, lr=0.01, seed=1, shard=case.shard,
        **case.training_options,
    )  # fmt: skip

    def on_epoch(epoch: Any) -> None:
        if epoch.number == stop_after:
            raise StoppedError

    history = fit(model, loss, split, training_options, on_epoch=on_epoch, checkpoint=checkpoint)
    test = evaluate(model.scorer(), split, processes=processes, local_users=model.user_range)
    users, items = model.vectors()
    variables = np.array([p.item() for p in loss.parameters()])
    gathered = processes.gather(variables[None])
    return {
        "users": users, "items": items, "variables": variables,
        "variables range": np.ptp(gathered, axis=0),
        "valid": np.array([next(iter(e.valid.values())) for e in history.epochs]),
        "loss": np.array([e.loss for e in history.epochs]),
        "test": np.array([test.mean(name) for name in test.values]),
        "lists": test.items,
    }  # fmt: skip


class StoppedError(Exception):
    """Simulates a crash."""


def torchrun(
    processes: int, *words: str, launcher: tuple[str, ...] = (), **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run `python -m tests.processes WORDS` in several processes."""
    return subprocess.run(
        torchrun_command(processes, "tests.processes", *words, launcher=launcher),
        cwd=ROOT, env=torchrun_environment() | environment, text=True,
        capture_output=True, timeout=300, check=False,
    )  # fmt: skip


def torchrun_command(
    processes: int, module: str, *words: str, launcher: tuple[str, ...] = ()
) -> list[str]:
    options = ["--nproc-per-node", str(processes), "--master-port", "0", "--rdzv-backend", "c10d"]
    options += ["--rdzv-endpoint", "127.0.0.1:0", *launcher, "-m", module]
    return [sys.executable, "-m", "torch.distributed.run", *options, *words]


def torchrun_environment() -> dict[str, str]:
    settings = {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    return {**os.environ, **settings, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}


def save(results: dict[str, dict[str, Any]], out: Path) -> None:
    np.savez(out, **{f"{case}|{key}": v for case, of in results.items() for key, v in of.items()})


def load(out: Path) -> dict[str, dict[str, Any]]:
    results: dict[str, dict[str, Any]] = {}
    with np.load(out) as arrays:
        for name, array in arrays.items():
            case, _, key = name.partition("|")
            results.setdefault(case, {})[key] = array
    return results


def all_cases(out: Path, epochs: int = 3) -> None:
    processes, split = current_process_group(), events()
    results = {name: train(case, processes, split, epochs) for name, case in CASES.items()}
    if processes.is_first:
        save(results, out)


def plain_torch(out: Path) -> None:
    """Twenty steps of `TorchEngine` on CPUs."""
    processes, split, results = current_process_group(), events(), {}
    for name in ("llpauc", "lightgcn, sl, in-batch"):
        case = CASES[name]
        options = MODELS[case.model].Options(dimensions=16, **case.model_options)
        model = MODELS[case.model].load().Network(split.train, options, 3)
        sampler = make_sampler(case.training_options.get("sampler", "uniform"), split.train, 20, 1)
        loss = make_loss(case.loss, **case.loss_options)
        engine = TorchEngine(model, loss, sampler, TrainingOptions(lr=0.01), processes=processes)
        values = []
        for step in range(20):
            rows = np.arange(step * 7, step * 7 + 61) % len(split.train)
            batch = engine.prepare(step, split.train.users[rows], split.train.items[rows])
            values.append(engine.step(batch))
        users, items = model.vectors()
        results[name] = {"users": users, "items": items, "loss": np.array(values)}
    if processes.is_first:
        save(results, out)


def stop_early(out: Path) -> None:
    """Stop some cases in their third epoch, with a checkpoint of the second."""
    processes, split = current_process_group(), events()
    for name in RESUMED:
        checkpoint = CheckpointSettings(out / name.replace(" ", "-"), 1e-9, "resume")
        try:
            train(CASES[name], processes, split, 5, checkpoint, stop_after=3)
        except StoppedError:
            processes.barrier()


def resume(out: Path) -> None:
    """Resume the cases that `stop_early` stopped, with any number of processes."""
    processes, split = current_process_group(), events()
    results = {}
    for name in RESUMED:
        checkpoint = CheckpointSettings(out / name.replace(" ", "-"), 300.0, "resume")
        results[name] = train(CASES[name], processes, split, 5, checkpoint)
    if processes.is_first:
        save(results, out / "resumed.npz")


def unequal_events(out: Path) -> None:
    """Process 1 has one event less."""
    processes, split = current_process_group(), events()
    if not processes.is_first:
        split = Split(split.train.take(np.arange(1, len(split.train))), split.valid, split.test)
    train(CASES["llpauc"], processes, split, 1)


def not_answering(out: Path) -> None:
    """Process 1 does not answer."""
    import time

    if not current_process_group().is_first:
        time.sleep(60)
    current_process_group().barrier()


def missing_file(folder: Path) -> None:
    """Process 1 runs in a folder without the file."""
    os.chdir(folder if os.environ["RANK"] == "0" else folder.parent)
    sys.exit(
        main(
            ["train", "--recipe=none", "events.csv", "--out", str(folder / "run"), "--epochs", "1"]
        )
    )


def small_files(folder: Path, *words: str) -> None:
    import resource
    import signal

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # raise an error instead of ending the process
    resource.setrlimit(resource.RLIMIT_FSIZE, (65_536, 65_536))
    more = ["--epochs", "2", "--checkpoint-every", "0.1s", *words]
    sys.exit(
        main(
            [
                "train",
                "--recipe=none",
                str(folder / "events.csv"),
                "--out",
                str(folder / "run"),
                *more,
            ]
        )
    )


RESUMED = ("llpauc", "llpauc, shards", "per-user, shared, shards", "lightgcn, sl, in-batch")
ACTIONS = {
    f.__name__: f
    for f in (all_cases, plain_torch, stop_early, resume, unequal_events, not_answering)
}
COMMANDS = {
    f.__name__: f for f in (missing_file, small_files)
}  # these call join_process_group themselves

if __name__ == "__main__":
    action, folder = sys.argv[1], Path(sys.argv[2])
    if action in COMMANDS:
        COMMANDS[action](folder, *sys.argv[3:])
    with join_process_group(timeout=float(os.environ.get("WATCHDOG", "120"))):
        ACTIONS[action](folder)
