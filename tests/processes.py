"""Trains small models in one or several processes: `python -m tests.processes ACTION FOLDER`.

A test starts an action under torchrun and reads the arrays that it saves.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from llpauc.cli import main
from llpauc.data.interactions import Interactions, Split
from llpauc.data.splits import split_random_per_user
from llpauc.distributed import current_process_group, join_process_group
from llpauc.errors import InputError
from llpauc.evaluation.full_ranking import evaluate
from llpauc.losses import make_loss
from llpauc.models.registry import MODELS
from llpauc.training import CheckpointSettings, TrainingOptions, fit
from llpauc.training.partition import Partition

ROOT = Path(__file__).resolve().parents[1]
EPOCHS = 16


@dataclass(frozen=True)
class Case:
    """A loss and the options of model, loss and training."""

    loss: str = "llpauc"
    loss_options: dict[str, Any] = field(default_factory=dict)
    model_options: dict[str, Any] = field(default_factory=dict)
    training_options: dict[str, Any] = field(default_factory=dict)
    model: str = "mf"


_LLPAUC = {"alpha": 0.7, "beta": 0.1}
_SHARED = {"sampler": "shared"}
CASES = {
    "llpauc": Case(loss_options=_LLPAUC),
    "llpauc, shared": Case(loss_options=_LLPAUC, training_options=_SHARED),
    "per-user, shared": Case(
        loss_options={**_LLPAUC, "solver": "per-user"},
        model_options={"score": "cosine", "temperature": 0.25},
        training_options=_SHARED,
    ),
    "exact, all items": Case(
        loss_options={**_LLPAUC, "solver": "exact"}, training_options={"sampler": "all-items"}
    ),
    "tce, popularity": Case("tce", training_options={"sampler": "popularity"}),
    "bpr, biased, decay": Case(
        "bpr", model_options={"item_bias": True}, training_options={"weight_decay": 1e-4}
    ),
    "sl, in-batch": Case(
        "sl", model_options={"score": "cosine"}, training_options={"sampler": "in-batch"}
    ),
    "sl@k, half-life": Case(
        "sl_at_k",
        model_options={"score": "cosine"},
        training_options={**_SHARED, "half_life": 5_000.0},
    ),
}


def events() -> Split:
    """Users prefer one of eight groups of items. The numbers are not multiples of 2 or 3."""
    rng = np.random.default_rng(0)
    n = 12_000
    users = rng.integers(0, 601, n)
    items = 8 * (rng.random(n) ** 2 * 50).astype(int) + (users + (rng.random(n) < 0.2)) % 8
    return split_random_per_user(
        Interactions.of(users.tolist(), items.tolist()), valid=0.1, test=0.1, seed=0
    )


def train(case: Case, checkpoint: CheckpointSettings | None = None) -> dict[str, Any]:
    """Train; metrics of every epoch, and the vectors."""
    split = events()
    options = MODELS[case.model].Options(dimensions=16, **case.model_options)
    model = MODELS[case.model].load().Network(split.train, options, 3)
    loss = make_loss(case.loss, **case.loss_options)
    training_options = TrainingOptions(
        epochs=EPOCHS, batch_size=97, negatives=20, lr=0.01, seed=1, **case.training_options
    )
    history = fit(model, loss, split, training_options, checkpoint=checkpoint)
    test = evaluate(model.scorer(), split, metrics=["ndcg@20"])
    users, items = model.vectors()
    return {
        "users": users, "items": items,
        "variables": np.array([p.item() for p in loss.parameters()]),
        "valid": np.array([epoch.valid["ndcg@20"] for epoch in history.epochs]),
        "loss": np.array([epoch.loss for epoch in history.epochs]),
        "examples": np.array([epoch.examples for epoch in history.epochs]),
        "test": test.values["ndcg@20"],
    }  # fmt: skip


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


def all_cases(out: Path) -> None:
    """Train the cases; of the first one also a second time, and with a crash in epoch 2.

    Three processes train two cases only.
    """
    processes = current_process_group()
    names = list(CASES)[: 2 if processes.world_size == 3 else None]
    results = {name: train(CASES[name]) for name in names}
    results["again"] = train(CASES[names[0]])
    folder, calls = out.with_suffix(".checkpoint"), iter(range(99))
    close_round = Partition.close_round

    def crash(partition: Partition) -> None:
        if next(calls) == partition.rounds + 1:
            partition.gather()  # waits for all messages
            raise ZeroDivisionError
        close_round(partition)

    with patch.object(Partition, "close_round", crash), suppress(ZeroDivisionError):
        train(CASES[names[0]], CheckpointSettings(folder, 1e-9))
    processes.barrier()
    results["resumed"] = train(CASES[names[0]], CheckpointSettings(folder, 300.0, "resume"))
    for arrays in results.values():  # the largest difference between two processes
        flat = np.concatenate([array.ravel().astype(np.float64) for array in arrays.values()])
        arrays["range"] = np.ptp(processes.gather(flat[None]), axis=0).max()
    if processes.is_first:
        save(results, out)


def refused(out: Path) -> None:
    """Print the errors of trainings that several processes refuse."""
    processes, whole = current_process_group(), events()
    fewer = Split(whole.train.take(np.arange(processes.index, len(whole.train))))
    tiny = Split(Interactions.of(["a", "b"], ["x", "y"]))
    for name, split in (("lightgcn", whole), ("mf", fewer), ("mf", tiny)):
        model = MODELS[name].load().Network(split.train, MODELS[name].Options(dimensions=4), 3)
        try:
            fit(model, make_loss("bpr"), split, TrainingOptions(epochs=1))
        except InputError as error:
            if processes.is_first:
                print(error)


def not_answering(out: Path) -> None:
    """Process 1 does not answer."""
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


def small_files(folder: Path) -> None:
    import resource
    import signal

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # raise an error instead of ending the process
    resource.setrlimit(resource.RLIMIT_FSIZE, (65_536, 65_536))
    more = ["--epochs", "2", "--checkpoint-every", "0.1s"]
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


def lists_and_metrics(folder: Path) -> None:
    events, run, out = (str(folder / name) for name in ("events.csv", "run", "two.tsv"))
    assert main(["recommend", run, "--out", out]) == 0
    assert main(["evaluate", events, "--models=popularity,itemknn", "--json"]) == 0


ACTIONS = {f.__name__: f for f in (all_cases, refused, not_answering, lists_and_metrics)}
COMMANDS = {
    f.__name__: f for f in (missing_file, small_files)
}  # these call join_process_group themselves

if __name__ == "__main__":
    action, folder = sys.argv[1], Path(sys.argv[2])
    if action in COMMANDS:
        COMMANDS[action](folder)
    with join_process_group(timeout=float(os.environ.get("WATCHDOG", "120"))):
        ACTIONS[action](folder)
