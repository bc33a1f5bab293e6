"""A line of a billion characters is refused in seconds and bounded memory."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from tests.data.test_broken_tables import write_long_line

READ = """
import sys
from llpauc.errors import InputError
from llpauc.data.readers import read_interactions
try:
    read_interactions(sys.argv[1])
except InputError as error:
    print(error)
with open("/proc/self/status") as lines:
    print(next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM")))
"""


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".txt"])
def test_read_interactions_refuses_a_line_of_a_billion_characters(suffix, tmp_path):
    path = write_long_line(tmp_path / f"long{suffix}", 10**9)
    begun = time.monotonic()
    process = subprocess.run(
        [sys.executable, "-c", READ, path], capture_output=True, text=True, timeout=300
    )
    seconds = time.monotonic() - begun
    path.unlink()
    line, peak = process.stdout.splitlines()
    print(f"{suffix}: refused after {seconds:.1f} s, Python's start included; peak {peak} MB")
    assert line.endswith("line 2: a field above 16 MB, or a quote left open; fix it")
    assert int(peak) < 500
    assert seconds < 60
