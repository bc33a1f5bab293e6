"""`llpauc --version`: what to write into a bug report. Nothing heavy is imported for it."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version

_PACKAGES = ("torch", "numpy", "numba", "scipy", "pyarrow", "duckdb")
_LIMITS = ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS")  # what torch and Numba heed at their start


def version_text() -> str:
    """llpauc, Python, its packages, the system and how many threads there may be."""
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    limits = [f", {name}={os.environ[name]}" for name in _LIMITS if name in os.environ]
    return "\n".join(
        [
            f"llpauc {version('llpauc')}",
            f"Python {platform.python_version()} on {system}",
            ", ".join(f"{name} {_installed(name)}" for name in _PACKAGES),
            f"threads: {_cores()}{''.join(limits)}",
        ]
    )


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "missing"


def _cores() -> int:
    """Those this process may use: as many threads as torch and Numba take by themselves."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
