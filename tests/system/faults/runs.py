"""Real `llpauc train` processes that are killed."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

# Kills itself before or after the n-th call of a function: `os.fsync` of a file of a checkpoint,
# `os.rename` of a checkpoint, or a training step.
_DRIVER = """
import os, signal, sys
from llpauc.cli import main

name, when, nth = sys.argv[1], sys.argv[2], int(sys.argv[3])
owner = os
if name == "step":
    from llpauc.training.engine import CpuEngine as owner
original, calls = getattr(owner, name), 0

def dying(*arguments):
    global calls
    what = arguments[0]
    path = os.readlink(f"/proc/self/fd/{what}") if isinstance(what, int) else str(what)
    calls += ".checkpoint/" in path or name == "step"
    if calls == nth and when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    result = original(*arguments)
    if calls == nth:
        os.kill(os.getpid(), signal.SIGKILL)
    return result

setattr(owner, name, dying)
sys.exit(main(sys.argv[4:]))
"""


@dataclass(frozen=True)
class FaultPoint:
    """The n-th `os.fsync` or `os.rename` of a checkpoint, or the n-th step; before or after it."""

    name: str
    when: str
    nth: int


def write_events(path: Path, users: int = 60, items: int = 150, each: int = 12) -> Path:
    rng = np.random.default_rng(3)
    pairs = [(u, i) for u in range(users) for i in rng.choice(items, each, replace=False)]
    path.write_text("user,item\n" + "".join(f"u{u},i{i}\n" for u, i in pairs), encoding="utf-8")
    return path


def words(events: Path, out: Path, *more: str) -> list[str]:
    """`train`, without early stopping and with a checkpoint every few batches."""
    return [
        "train", str(events), "--recipe=none", "--out", str(out), "--dimensions", "8",
        "--batch-size", "32", "--negatives", "9", "--patience", "99",
        "--checkpoint-every", "0.02s", *more,
    ]  # fmt: skip


def start(arguments: list[str], point: FaultPoint | None = None) -> subprocess.Popen[str]:
    """Start a process; with a fault point, it kills itself there."""
    program = ["-m", "llpauc"]
    if point is not None:
        program = ["-c", _DRIVER, point.name, point.when, str(point.nth)]
    return subprocess.Popen(
        [sys.executable, *program, *arguments],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "OMP_WAIT_POLICY": "PASSIVE"},
    )  # fmt: skip


def wait_for(process: subprocess.Popen[str], beginning: str) -> None:
    """Read stderr until a line begins with `beginning`."""
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if line.startswith(beginning):
            return
    raise AssertionError(f"no line begins with {beginning!r}: {''.join(lines)}")


def cpu_seconds(process: subprocess.Popen[str], over: bool = False) -> float:
    """CPU seconds of a process; `over` waits for its end."""
    if over:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        return used.ru_utime + used.ru_stime
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def fingerprint(run: Path) -> list[str]:
    """SHA-256 of the weights and of the metrics."""
    files = (run / name for name in ("tensors.safetensors", "metrics.jsonl"))
    return [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]
