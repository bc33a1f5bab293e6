"""Trainings by two processes, of which one is killed several times."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import numpy as np

from tests.processes import ROOT, torchrun_command, torchrun_environment

_TIMEOUT = 120.0  # seconds


def write_events(path: Path, n: int) -> None:
    rng = np.random.default_rng(0)
    users, items = rng.integers(0, n // 20 + 2, n), (rng.random(n) ** 2 * (n // 40 + 9)).astype(int)
    pairs = sorted(set(zip(users.tolist(), items.tolist(), strict=True)))
    path.write_text("user,item\n" + "".join(f"u{u},i{i}\n" for u, i in pairs))


def kill_processes(folder: Path, kills: int, *options: str, seed: int = 0) -> list[float]:
    """Train once without and once with killed processes; the seconds until training continued.

    A process is killed when a checkpoint has been written. Training has continued when the next
    one is written. The metrics of both runs must be equal, byte for byte.
    """
    write_events(folder / "events.csv", 40_000)
    rng = random.Random(seed)
    words = ["train", "--recipe=none", str(folder / "events.csv"), "--epochs", str(3 + 2 * kills),
             "--patience", "99", "--checkpoint-every", "0.2s", *options]  # fmt: skip
    whole = _start(folder, "whole", words, 0)
    assert whole.wait(600) == 0
    killed = _start(folder, "killed", words, kills + 1)
    checkpoints, seconds = folder / "killed.checkpoint", []
    seen = 0
    try:
        for _ in range(kills):
            seen = _next(checkpoints, seen, killed)
            victim = rng.choice(_children(killed.pid))
            os.kill(victim, signal.SIGKILL)
            begun = time.monotonic()
            seen = _next(checkpoints, _newest(checkpoints), killed)
            seconds.append(time.monotonic() - begun)
        assert killed.wait(600) == 0
    finally:
        killed.kill()
    a, b = ((folder / name / "metrics.jsonl").read_bytes() for name in ("whole", "killed"))
    assert a == b
    assert not checkpoints.exists()
    return seconds


def _start(folder: Path, out: str, words: list[str], restarts: int) -> subprocess.Popen[bytes]:
    launcher = ("--max-restarts", str(restarts), "--monitor-interval", "0.5")
    command = torchrun_command(2, "llpauc", *words, "--out", str(folder / out), "--resume",
                               launcher=launcher)  # fmt: skip
    log = (folder / f"{out}.log").open("wb")
    return subprocess.Popen(command, cwd=ROOT, env=torchrun_environment(), stdout=log, stderr=log)


def _newest(checkpoints: Path) -> int:
    names = [p.name for p in checkpoints.glob("*")] if checkpoints.exists() else []
    return max((int(name) for name in names if name.isdigit()), default=0)


def _next(checkpoints: Path, seen: int, job: subprocess.Popen[bytes]) -> int:
    """Wait for a checkpoint after `seen`."""
    until = time.monotonic() + _TIMEOUT
    while time.monotonic() < until:
        assert job.poll() is None, "the training ended too early"
        newest = _newest(checkpoints)
        if newest > seen:
            return newest
        time.sleep(0.05)
    raise AssertionError(f"no checkpoint after {seen} within {_TIMEOUT:.0f} s")


def _children(agent: int) -> list[int]:
    children = Path(f"/proc/{agent}/task/{agent}/children").read_text().split()
    return [int(pid) for pid in children]
