"""A process that saves a run and kills itself on the way; quick to import."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import safetensors.numpy

from llpauc.storage import atomic, run_folder
from llpauc.storage.run_folder import SavedRun

_OWNERS: dict[str, Any] = {
    "os": os, "shutil": shutil, "pq": pq, "Path": Path, "atomic": atomic,
    "safetensors": safetensors.numpy,
}  # fmt: skip


def make_run(seed: int) -> SavedRun:
    vectors = np.random.default_rng(seed).standard_normal((6, 4)).astype(np.float32)
    return SavedRun({"vectors": vectors}, pa.array(["u"]), pa.array([1]), {"seed": seed}, {})


def die_at(place: str, when: str, nth: int) -> None:
    """Make the n-th call of a function kill this process, before or after the call."""
    owner, name = place.split(".")
    original, calls = getattr(_OWNERS[owner], name), 0

    def dying(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == nth and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*arguments, **options)
        if calls == nth:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(_OWNERS[owner], name, dying)


if __name__ == "__main__":
    die_at(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    run_folder.save(make_run(1), sys.argv[4])
