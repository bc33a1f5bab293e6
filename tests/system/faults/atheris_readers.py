"""Readers and run folders under atheris, which looks for new ways through the code by itself.

By hand, where atheris can be installed (Linux, Python 3.11 to 3.13):

    pip install atheris
    python -m tests.system.faults.atheris_readers -max_total_time=600

It ends with the bytes in a file `crash-...` where something else than an InputError came.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris
import safetensors.numpy
from safetensors import SafetensorError

with atheris.instrument_imports(include=["llpauc"]):
    from llpauc.data.readers import read_interactions
    from llpauc.errors import InputError

NAMES = ("e.csv", "e.tsv", "e.txt", "e.inter", "u.data", "ratings.dat", "e.jsonl", "e.parquet")


def try_one(data: bytes) -> None:
    """The first byte says what the rest is."""
    kind, content = data[0] if data else 0, data[1:]
    if kind >= 200:
        try:
            safetensors.numpy.load(content)
        except (SafetensorError, KeyError, ValueError):
            return
        return
    with tempfile.TemporaryDirectory(
        dir="/dev/shm" if Path("/dev/shm").is_dir() else None
    ) as place:
        path = Path(place) / NAMES[kind % len(NAMES)]
        path.write_bytes(content)
        try:
            read_interactions(path, bad_rows="skip" if kind % 2 else "error")
        except InputError:
            return


if __name__ == "__main__":
    atheris.Setup(sys.argv, try_one)
    atheris.Fuzz()
