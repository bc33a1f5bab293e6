"""`llpauc.runtime`: settings of Numba that are made before it is loaded."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import llpauc
from llpauc import runtime

PACKAGE = Path(llpauc.__file__).parent


@pytest.fixture
def unwritable_package(tmp_path):
    """A copy of the package whose cache folders cannot be created, for root either."""
    copy = tmp_path / "src" / "llpauc"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for folder in [copy, *(path for path in copy.rglob("*") if path.is_dir())]:
        (folder / "__pycache__").touch()
    return copy.parent


def test_prepare_unwritable_package_and_home_compiles_in_the_temporary_folder(
    unwritable_package, tmp_path
):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(unwritable_package), "HOME": "/dev/null"}
    environment |= {"TMPDIR": str(temporary)}
    for name in ("XDG_CACHE_HOME", "NUMBA_CACHE_DIR"):
        environment.pop(name, None)
    program = (
        "import numpy as np, llpauc.training.row_adam, llpauc.evaluation.scorer as s;"
        "import os; print(os.environ['NUMBA_CACHE_DIR'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(temporary / f"llpauc-{os.getuid()}")


def test_private_folder_is_not_shared_with_other_users(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    first = runtime._private_folder()
    assert first == str(tmp_path / f"llpauc-{os.getuid()}") == runtime._private_folder()
    assert stat.S_IMODE(os.stat(first).st_mode) == 0o700
    os.chmod(first, 0o777)  # prepared by another user
    other = runtime._private_folder()
    assert other != first
    assert stat.S_IMODE(os.stat(other).st_mode) == 0o700


def test_prepare_leaves_a_given_folder_alone(monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", "/given")
    runtime.prepare()
    assert os.environ["NUMBA_CACHE_DIR"] == "/given"


FORK = """
import multiprocessing, sys
import numpy as np
from scipy.sparse import csr_matrix
from llpauc import Recommender
from llpauc.errors import InputError

def fit(seed):
    events = csr_matrix(np.random.default_rng(0).random((60, 40)) < 0.2)
    try:
        return Recommender(recipe="none", epochs=2, seed=seed).fit(events).history.stopped
    except InputError as error:
        return str(error)

if __name__ == "__main__":
    print(fit(0))
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print(*pool.map(fit, [1, 2]), sep="\\n")
"""


def test_fit_in_a_forked_process_is_refused_and_does_not_hang(tmp_path):
    """GNU OpenMP ends such a process with SIGTERM, which a training takes as a request to stop."""
    (tmp_path / "fork.py").write_text(FORK)
    done = subprocess.run(
        [sys.executable, "fork.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    first, *others = done.stdout.splitlines()
    assert first == "epochs", done.stderr
    assert len(others) == 2
    assert all("forked after a training" in line for line in others), done.stdout


def test_prepare_lets_waiting_threads_sleep_unless_the_policy_is_given(monkeypatch):
    program = "import os, llpauc; print(os.environ['OMP_WAIT_POLICY'])"
    for given, expected in ((None, "PASSIVE"), ("ACTIVE", "ACTIVE")):
        environment = {k: v for k, v in os.environ.items() if k != "OMP_WAIT_POLICY"}
        environment |= {} if given is None else {"OMP_WAIT_POLICY": given}
        words = [sys.executable, "-c", program]
        done = subprocess.run(words, env=environment, capture_output=True, text=True)
        assert done.stdout.strip() == expected
