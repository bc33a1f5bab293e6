"""`llpauc --version`: what to write into a bug report. Nothing heavy is imported for it."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version

from llpauc.storage.environment import cores, installed_version

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
            ", ".join(f"{name} {installed_version(name) or 'missing'}" for name in _PACKAGES),
            f"threads: {cores()}{''.join(limits)}",
        ]
    )
