"""A million users x 200,000 items under `prlimit --as`: a result, or one line that names bytes.

All tables have their full size. How many of the users are ranked for does not change what is held
at once; LLPAUC_FAULT_USERS=1000000 ranks for all of them, which takes half an hour or more.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from llpauc.recommend import Recommender
from tests.recommend.test_lists import make_fitted

USERS, ITEMS = 1_000_000, 200_000
RANKED = int(os.environ.get("LLPAUC_FAULT_USERS", "2000"))
ENOUGH_MB = 4096
PATIENCE = 900 + RANKED / 50  # seconds
MB = 1 << 20
BYTES = re.compile(r"\d[\d,]* bytes|\d[\d.]* [KMGT]i?B|size \d+")

pytestmark = pytest.mark.skipif(not shutil.which("prlimit"), reason="no prlimit here")


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A run, and a split of as many users and items."""
    folder = tmp_path_factory.mktemp("million")
    recommender = Recommender("mf", recipe="none")
    recommender.fitted = make_fitted(USERS, ITEMS, seen=5)
    recommender.fitted_params = recommender.get_params()
    recommender.save(folder / "run")
    rng = np.random.default_rng(1)
    users, items = np.repeat(np.arange(USERS), 3), rng.integers(0, ITEMS, 3 * USERS)
    items[:ITEMS] = np.arange(ITEMS)  # all of them are there
    parts = {"train": (users, items), "test": (np.arange(RANKED), rng.integers(0, ITEMS, RANKED))}
    (folder / "data").mkdir()
    for name, (user_indices, item_indices) in parts.items():
        ids = pa.array([f"i{row}" for row in item_indices.tolist()])
        table = pa.table({"user": user_indices + 7, "item": ids})
        pq.write_table(table, folder / "data" / f"{name}.parquet")
    (folder / "users.txt").write_text("\n".join(str(user + 7) for user in range(RANKED)))
    return folder


def limited(megabytes: int, *words: object) -> tuple[int, str, int]:
    """The exit code, what was stderr, and the peak of resident memory in MB."""
    process = subprocess.Popen(
        ["prlimit", f"--as={megabytes * MB}", sys.executable, "-m", "llpauc", *map(str, words)],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    peak, begun = 0, time.monotonic()
    while process.poll() is None:
        with suppress(OSError, StopIteration):
            lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
            peak_line = next(line for line in lines if line.startswith("VmHWM"))
            peak = max(peak, int(peak_line.split()[1]) // 1024)
        if time.monotonic() - begun > PATIENCE:
            process.kill()
        time.sleep(0.05)
    return process.returncode, process.communicate()[1], peak


COMMANDS = {
    "recommend": lambda made, out: [
        "recommend", made / "run", "--users", f"@{made / 'users.txt'}", "--out", out / "l.parquet",
        "--memory-mb", "256",
    ],
    "evaluate": lambda made, out: [
        "evaluate", made / "data", "--models", "popularity", "--runs", made / "run",
        "--memory-mb", "256", "--per-user", out / "values.parquet",
    ],
}  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_within_the_memory_bound_give_a_result(command, made, tmp_path):
    begun = time.monotonic()
    code, stderr, peak = limited(ENOUGH_MB, *COMMANDS[command](made, tmp_path))
    print(f"{command}, {RANKED:,} of {USERS:,} users x {ITEMS:,} items under {ENOUGH_MB} MB of "
          f"addresses: peak {peak:,} MB resident, {time.monotonic() - begun:.0f} s")  # fmt: skip
    assert code == 0, stderr
    (file,) = tmp_path.iterdir()
    table = pq.read_table(file)
    models = 2 if command == "evaluate" else 20  # items a list
    assert table.num_rows == RANKED * models
    assert peak < ENOUGH_MB


@pytest.mark.parametrize("megabytes", [700, 1000, 1300, 1600, 2000, 2400])
@pytest.mark.parametrize("command", COMMANDS)
def test_commands_below_the_memory_bound_give_a_result_or_name_the_bytes(
    command, megabytes, made, tmp_path
):
    code, stderr, peak = limited(megabytes, *COMMANDS[command](made, tmp_path))
    last = stderr.splitlines()[-1] if stderr else ""
    print(f"{command} under {megabytes} MB of addresses: exit {code}, peak {peak:,} MB, {last}")
    assert "Traceback" not in stderr
    if code:
        assert code in (1, 2), stderr
        assert last.startswith("llpauc: error: ")
        assert BYTES.search(last), last
        assert list(tmp_path.iterdir()) == []


def test_train_under_a_small_memory_limit_is_a_one_line_error(made, tmp_path):
    """Tables, moments and the best weights of a million users in 64 dimensions are over a GB."""
    for megabytes in (1500, 2500):
        words = ["train", "--recipe=none", made / "data", "--out", tmp_path / "run",
                 "--epochs", "1", "--dimensions", "64", "--metrics", "recall@20"]  # fmt: skip
        code, stderr, peak = limited(megabytes, *words)
        last = stderr.splitlines()[-1] if stderr else ""
        print(f"train under {megabytes} MB of addresses: exit {code}, peak {peak:,} MB, {last}")
        assert code in (1, 2), stderr
        assert "Traceback" not in stderr
        assert last.startswith("llpauc: error: ")
        assert BYTES.search(last), last
        assert list(tmp_path.iterdir()) == []


def test_prlimit_is_effective():
    """Under a limit that no Python can start with, nothing starts: the limit does bind."""
    assert limited(20, "--version")[0] != 0
    assert resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY
