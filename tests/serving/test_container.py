"""`llpauc serve` as in a container: process 1, read-only root, no HOME, uid 65534; and its signals
while it starts."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from tests.server import TIMEOUT, trained

ROOT = Path(__file__).parents[2]
UNSHARE = ["unshare", "--pid", "--mount", "--fork", "--mount-proc"]
# The run is in a folder that only its owner can enter, and so may be the interpreter's.
SCRIPT = """
mount --bind "$1" /mnt && mount -o remount,ro,bind /mnt && mount -o remount,ro,bind / || exit 9
shift
exec setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=+dac_read_search \
  --ambient-caps=+dac_read_search --bounding-set=-all,+dac_read_search "$@"
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    return trained().save(tmp_path_factory.mktemp("container") / "run")


@contextmanager
def container(run: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The process of unshare, and the pid of the server outside its namespace."""
    allowed = shutil.which("unshare") and shutil.which("setpriv")
    if not allowed or subprocess.run([*UNSHARE, "true"], capture_output=True).returncode:
        pytest.skip("unshare is not permitted here")
    python = [sys.executable, "-m", "llpauc", "serve", "/mnt", "--port", "0"]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "src")}
    with subprocess.Popen(
        [*UNSHARE, "sh", "-c", SCRIPT, "sh", str(run), *python], stderr=subprocess.PIPE, text=True,
        env=environment, cwd="/",
    ) as process:  # fmt: skip
        try:
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
            until = time.monotonic() + TIMEOUT
            while not (pids := children.read_text().split()):
                assert time.monotonic() < until
                time.sleep(0.02)
            yield process, int(pids[0])
        finally:
            process.kill()
            if process.poll() is None:
                process.wait(TIMEOUT)


def wait_until_loading(pid: int) -> None:
    """The server has begun to import its libraries."""
    until = time.monotonic() + TIMEOUT
    while "numpy" not in Path(f"/proc/{pid}/maps").read_text():
        assert time.monotonic() < until
        time.sleep(0.02)


def stopped_within(process: subprocess.Popen[str], pid: int, seconds: float) -> bool:
    os.kill(pid, signal.SIGTERM)
    try:
        return process.wait(seconds) == 143
    except subprocess.TimeoutExpired:
        os.kill(pid, signal.SIGKILL)
        return False


def test_serve_in_container_answers_and_stops_on_sigterm(run):
    with container(run) as (process, pid):
        greeting = process.stderr.readline()
        assert "serving run" in greeting, greeting + process.stderr.read()
        status = Path(f"/proc/{pid}/status").read_text()
        assert "\nUid:\t65534" in status
        assert status.split("NSpid:")[1].split("\n")[0].split()[-1] == "1"
        url = "http://" + greeting.split("http://")[1].split(";")[0]
        answer = httpx2.post(f"{url}/recommend", json={"user": "u1", "k": 3}, timeout=TIMEOUT)
        assert len(answer.json()["lists"][0]["items"]) == 3
        assert stopped_within(process, pid, 5)
        assert process.stderr.read() == ""


def test_serve_in_container_stops_on_sigterm_while_loading(run):
    with container(run) as (process, pid):
        wait_until_loading(pid)
        assert stopped_within(process, pid, 5)
        assert process.stderr.read() == ""


def test_serve_survives_sighup_while_loading(run):
    command = [sys.executable, "-m", "llpauc", "serve", str(run), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        wait_until_loading(process.pid)
        until = time.monotonic() + TIMEOUT
        while not select.select([process.stderr], [], [], 0.05)[0]:
            assert time.monotonic() < until
            process.send_signal(signal.SIGHUP)
        assert "serving run" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT) == -signal.SIGTERM
