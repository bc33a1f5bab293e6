"""Settings of a run as a config file, and the environment of the process that made it.

The environment names no person and no machine: no host, no user, no path outside the working
folder.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import tomli_w

_PACKAGE = Path(__file__).resolve().parents[1]
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
_LIBRARIES = ("torch", "numpy", "numba", "scipy", "pyarrow", "safetensors")


def toml_text(comment: str, options: Mapping[str, Any], loss_options: Mapping[str, Any]) -> str:
    """The text of a file for `llpauc train --config`.

    Args:
        comment: the first line.
        options: options of `llpauc train`; those that are None are left out.
        loss_options: parameters of the loss that are not options of their own.

    >>> print(toml_text("best trial", {"lr": 0.01, "layers": None}, {"rho": 2.0}), end="")
    # best trial
    lr = 0.01
    loss_options = "rho=2.0"
    """
    values = {name: _plain(value) for name, value in options.items() if value is not None}
    if loss_options:
        pairs = (f"{name}={_plain(value)}" for name, value in loss_options.items())
        values["loss_options"] = ",".join(pairs)
    return f"# {comment}\n{tomli_w.dumps(values)}"


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value  # NumPy numbers


def environment_json() -> str:
    """`environment` as the text of environment.json."""
    return json.dumps(environment(), indent=2, ensure_ascii=False) + "\n"


def environment() -> dict[str, Any]:
    """Versions, processor, threads, time and command of this process."""
    import numba
    import torch
    from threadpoolctl import threadpool_info

    blas = [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]
    return {
        "llpauc": installed_version("llpauc"),
        "git_commit": git_commit(),
        "python": platform.python_version(),
        "packages": {name: installed_version(name) for name in _LIBRARIES},
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": {"model": _processor(), "cores": cores()},
        # numba.get_num_threads() would start the threads.
        "threads": {
            "torch": torch.get_num_threads(),
            "numba": getattr(numba.config, "NUMBA_NUM_THREADS", None),
            "blas": max(blas, default=None),
            **{name: os.environ[name] for name in THREAD_VARIABLES if name in os.environ},
        },
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command(sys.argv),
    }


def installed_version(package: str) -> str | None:
    """The version of an installed package; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.M)
    except OSError:
        match = None
    return match[1].strip() if match else platform.processor() or platform.machine()


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def git_commit(package: Path = _PACKAGE) -> str | None:
    """The commit of the checkout that contains the package; None for an installed package.

    It is read from git's files without starting git. Uncommitted changes are not considered.
    """
    root = package.parents[1]
    if root / "src" / "llpauc" != package:  # a .git higher up belongs to another project
        return None
    try:
        git = root / ".git"
        if git.is_file():  # a worktree
            git = root / git.read_text(encoding="utf-8").removeprefix("gitdir:").strip()
        common = git
        if (git / "commondir").is_file():
            common = git / (git / "commondir").read_text(encoding="utf-8").strip()
        head = (git / "HEAD").read_text(encoding="utf-8").strip()
        if head.startswith("ref:"):
            head = _ref(common, head.removeprefix("ref:").strip())
    except (OSError, ValueError):
        return None
    return head if re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", head) else None


def _ref(git: Path, name: str) -> str:
    if (git / name).is_file():
        return (git / name).read_text(encoding="utf-8").strip()
    packed = (git / "packed-refs").read_text(encoding="utf-8")
    match = re.search(rf"^(\w+) {re.escape(name)}$", packed, re.M)
    return match[1] if match else ""


def command(words: Sequence[str]) -> list[str]:
    """The command line without names of persons and machines and without passwords.

    >>> command(["/home/ann/bin/llpauc", "train", "/home/ann/events.csv", "--out=../ann/run"])
    ['llpauc', 'train', 'events.csv', '--out=run']
    >>> command(["llpauc", "--mlflow", "postgresql://ann:secret@host/db", "--metrics", "recall@20"])
    ['llpauc', '--mlflow', 'postgresql://...', '--metrics', 'recall@20']
    """
    return [Path(words[0]).name, *map(_anonymous, words[1:])] if words else []


def _anonymous(word: str) -> str:
    name, equals, value = word.partition("=") if word.startswith("-") else ("", "", word)
    if scheme := re.match(r"[a-zA-Z][\w+.-]*://", value):
        value = f"{scheme[0]}..."
    elif Path(value).is_absolute() and Path(value).is_relative_to(Path.cwd()):
        value = str(Path(value).relative_to(Path.cwd()))
    elif re.search(r"(^|[/\\])(\.\.|~)|^[/\\]|^[A-Za-z]:[/\\]", value):
        value = re.split(r"[/\\]", value.rstrip("/\\"))[-1]
    return f"{name}{equals}{value}"
