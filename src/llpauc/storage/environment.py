"""What made a run: its settings as a config file, and what they ran on.

Nothing here names a person or a machine: no host, no user, no path outside the working folder.
"""

from __future__ import annotations

import inspect
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

_PACKAGE = Path(__file__).resolve().parent
_PACKAGES = ("torch", "numpy", "numba", "scipy", "pyarrow", "safetensors")
_SHARES = ("alpha", "beta", "temperature")  # of the loss, and options of `llpauc train` themselves
_NO_OPTIONS = ("init_scale",)  # of the model, and none
_FOUND_OUT = ("by",)  # `recent` sees by the data whether ages are times


def config_toml(params: Mapping[str, Any], plan: Mapping[str, Any] | None) -> str:
    """A file for `llpauc train DATA --config` that says every setting, defaults too.

    Args:
        params: those of the recommender.
        plan: `llpauc.recommend.parameters.Plan` as a dict; None for a model without training.
    """
    from llpauc.losses import LOSSES
    from llpauc.models import BASELINES

    own = {name: params[name] for name in ("model", "hold_out", "refit") if name in params}
    loss_options: dict[str, Any] = {}
    if plan is None:
        given = {k: v for k, v in params.items() if v is not None and k not in ("loss", *own)}
        config = {**own, **_defaults(BASELINES[params["model"]]), **given}
    else:
        of_loss = {**_defaults(LOSSES[plan["loss"]]), **plan["loss_parameters"]}
        config = {**own, "loss": plan["loss"], **plan["embedding"], **plan["fit"]}
        # One `temperature` for two: it is the loss's wherever that has one.
        config |= {name: of_loss.pop(name) for name in _SHARES if name in of_loss}
        loss_options = {name: config.pop(name) for name in _NO_OPTIONS} | of_loss
    set_to = {k: v for k, v in config.items() if v is not None and k not in _FOUND_OUT}
    comment = "llpauc train DATA --config config.toml trains it again"
    return toml_text(comment, set_to, loss_options)


def toml_text(comment: str, options: Mapping[str, Any], loss_options: Mapping[str, Any]) -> str:
    """A file for `llpauc train --config`: its own options, and those that it hands to the loss.

    >>> print(toml_text("found", {"lr": 0.01}, {"rho": 2.0}), end="")
    # found
    lr = 0.01
    loss_options = "rho=2.0"
    """
    lines = [f"# {comment}", *(f"{name} = {_toml(value)}" for name, value in options.items())]
    if loss_options:
        words = [f"{name}={_plain(value)}" for name, value in loss_options.items()]
        lines.append(f"loss_options = {_toml(','.join(words))}")
    return "\n".join(lines) + "\n"


def _defaults(made: Any) -> dict[str, Any]:
    """Parameters that are numbers or names unless given."""
    parameters = inspect.signature(made).parameters.values()
    return {p.name: p.default for p in parameters if isinstance(p.default, (int, float, str))}


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value  # NumPy's, from a grid search


def _toml(value: Any) -> str:
    value = _plain(value)
    return repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


def environment_json() -> str:
    """Versions, processor, threads, time and command, as a run keeps them."""
    return json.dumps(environment(), indent=2, ensure_ascii=False) + "\n"


def environment() -> dict[str, Any]:
    """What the program runs on, now."""
    import numba
    import torch

    return {
        "llpauc": installed_version("llpauc"),
        "git_commit": git_commit(),
        "python": platform.python_version(),
        "packages": {name: installed_version(name) for name in _PACKAGES},
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": {"model": _processor(), "cores": cores()},
        # Numba's own question for the number in use would start the threads.
        "threads": {
            "torch": torch.get_num_threads(),
            "numba": getattr(numba.config, "NUMBA_NUM_THREADS", None),
        },
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command(sys.argv),
    }


def installed_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.M)
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or platform.machine()


def cores() -> int:
    """Those this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def git_commit(package: Path = _PACKAGE) -> str | None:
    """The commit of the checkout that the package runs from; None where it is installed.

    Read from git's own files, so that nothing is started. It says nothing of uncommitted edits.
    """
    root = package.parents[1]
    if root / "src" / "llpauc" != package:  # a .git further up would be another project's
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
    found = re.search(rf"^(\w+) {re.escape(name)}$", packed, re.M)
    return found[1] if found else ""


def command(words: Sequence[str]) -> list[str]:
    """The command line, without what names a person, a machine or a password.

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
