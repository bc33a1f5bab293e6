"""Every writer locks the real folder that it writes."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from llpauc.cli import main
from llpauc.errors import InputError
from llpauc.storage.atomic import writer_lock

HOLD = """
import sys
from llpauc.storage.atomic import writer_lock
with writer_lock(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""
COUNT = """
import json, sys
from pathlib import Path
from llpauc.storage.atomic import writer_lock
path = Path(sys.argv[1])
for n in range(50):
    with writer_lock(path.parent, wait=60):
        path.write_text(json.dumps([*json.loads(path.read_text()), n]))
"""
# Two updates of one run at the same time, again and again; prints their exit codes.
UPDATE = """
import json, os, sys
from pathlib import Path
from llpauc.cli import main
import llpauc.recommend.recommender, llpauc.models.popularity, duckdb
def update(user):
    file = Path(f"{user}.csv")
    file.write_text("user,item\\n" + "".join(f"{user},i{item}\\n" for item in range(3)))
    pid = os.fork()
    if not pid:
        os._exit(main(["update", "r", str(file)]))
    return pid
codes = {}
for n in range(int(sys.argv[1])):
    pids = {user: update(user) for user in (f"a{n}", f"b{n}")}
    codes |= {u: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for u, pid in pids.items()}
print(json.dumps(codes))
"""


@contextmanager
def held(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process holds the lock of `folder`."""
    words = [sys.executable, "-c", HOLD, str(folder)]
    process = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=folder.parent
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    try:
        yield process
    finally:
        process.communicate("")


def test_writer_lock_refuses_a_second_process_also_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "link").symlink_to("run")
    with held(tmp_path / "link"):
        for name in ("run", "link"):
            with pytest.raises(InputError, match=f"{name} is in use: another command writes"):
                writer_lock(tmp_path / name).__enter__()
        with writer_lock(tmp_path / "other"):
            pass
    with writer_lock(tmp_path / "run"), writer_lock(tmp_path / "link"):
        assert (tmp_path / ".run.lock").exists()
    assert sorted(os.listdir(tmp_path)) == ["link", "run"]


def test_writer_lock_ends_with_a_killed_process(tmp_path: Path) -> None:
    with held(tmp_path / "run") as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
        with writer_lock(tmp_path / "run"):
            pass
    assert os.listdir(tmp_path) == []


def test_writer_lock_waiting_writers_lose_no_change(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "numbers.json"
    path.parent.mkdir()
    path.write_text("[]")
    processes = [subprocess.Popen([sys.executable, "-c", COUNT, path]) for _ in range(3)]
    assert [process.wait(timeout=120) for process in processes] == [0, 0, 0]
    assert sorted(json.loads(path.read_text())) == sorted([*range(50)] * 3)


@pytest.fixture
def events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    rng = random.Random(0)
    rows = [f"u{u},i{i},{1000 + u}" for u in range(30) for i in rng.sample(range(20), 8)]
    Path("e.csv").write_text("\n".join(["user,item,timestamp", *rows, ""]))
    return "e.csv"


@pytest.mark.parametrize(
    "words",
    [
        ["train", "--recipe=none", "e.csv", "--out", "busy", "--epochs", "1"],
        ["train", "--recipe=none", "e.csv", "--out", "link", "--epochs", "1"],
        ["train", "e.csv", "--out", "busy", "--model", "popularity"],
        ["update", "busy", "e.csv"],
        ["update", "link", "e.csv"],
        ["update", "r", "e.csv", "--out", "busy"],
        ["auto", "e.csv", "--out", "busy", "--budget", "3s"],
        ["data", "prepare", "e.csv", "--out", "busy"],
        ["data", "split", "e.csv", "busy"],
        ["data", "noise", "e.csv", "out", "1010", "--rating", "timestamp"],
    ],
)
def test_commands_refuse_a_folder_that_another_process_writes(
    events: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path("out/clean" if "noise" in words else "busy")
    folder.parent.mkdir(exist_ok=True)
    Path("link").symlink_to("busy")
    if words[0] == "update":
        run = words[1] if "--out" in words else "busy"
        assert main(["train", events, "--out", run, "--model", "popularity"]) == 0
    before = sorted(os.listdir(folder)) if folder.exists() else None
    with held(folder.resolve()):
        assert main(words) == 2
    assert "is in use: another command writes to it" in capsys.readouterr().err
    assert (sorted(os.listdir(folder)) if folder.exists() else None) == before


def test_update_command_two_at_once_lose_no_event(events: str) -> None:
    assert main(["train", events, "--out", "r", "--model", "popularity"]) == 0
    words = [sys.executable, "-c", UPDATE, os.environ.get("LLPAUC_ROUNDS", "4")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    codes = json.loads(done.stdout.splitlines()[-1])
    from llpauc.recommend import Recommender

    known = set(Recommender.load("r").require_fitted().user_ids)
    assert set(codes.values()) <= {0, 2}
    assert {user for user in codes if user in known} == {u for u, code in codes.items() if not code}
    assert sum(not code for code in codes.values()) >= len(codes) / 2
