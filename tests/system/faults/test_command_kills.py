"""kill -9 at ten moments of each long command; part of `make faults`, as it takes minutes.

The moments are fractions of the time that the same command needs uninterrupted, most of them late,
where results are written. Every kill starts from the same files. `tune` and `leaderboard`, which
continue, are instead killed again and again in one folder, each time at a change of its files.
"""

from __future__ import annotations

import csv
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import optuna
import pyarrow.parquet as pq
import pytest

from llpauc.data.prepared import open_prepared
from llpauc.data.writers import write_split
from llpauc.recommend import Recommender
from llpauc.search.study import open_storage
from tests.datasets import taste_split
from tests.system.faults.runs import fingerprint, words

FRACTIONS = (0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.88, 0.94, 0.97, 0.99)
_TIMEOUT = 600.0  # seconds, for a busy machine
_ENVIRONMENT = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "1"}


def write_events(path: Path, users: int = 60, seed: int = 3) -> None:
    rng = np.random.default_rng(seed)
    rows = [
        f"u{user},i{item},{1_700_000_000 + 1000 * user + place}\n"
        for user in range(users)
        for place, item in enumerate(rng.choice(80, 12, replace=False))
    ]
    path.write_text("user,item,timestamp\n" + "".join(rows), encoding="utf-8")


class Killed:
    """A command that is killed at ten moments.

    Args:
        folder: the files before the command.
        arguments: of `llpauc`, relative to the folder.
        has_begun: whether the work has begun, given the folder; by default when a message appears.
    """

    def __init__(
        self, folder: Path, arguments: list[str], has_begun: Callable[[Path], object] | None = None
    ) -> None:
        self.folder, self.arguments, self._has_begun = folder, arguments, has_begun
        self.work = folder.with_name("work")
        self._fresh()
        process, begun = self._start()
        self.check_ended(process)
        self.seconds = time.monotonic() - begun
        self.whole = self.work.rename(folder.with_name("whole"))

    def states(self) -> Iterator[float]:
        """Kill the command at every moment; yields the fraction with the files as they are left."""
        for fraction in FRACTIONS:
            while True:
                self._fresh()
                process, begun = self._start()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(fraction * self.seconds)
                process.kill()
                process.wait()
                if process.returncode == -signal.SIGKILL:
                    break
                self.check_ended(process)  # it was faster than before
                self.seconds = min(self.seconds, time.monotonic() - begun)
            yield fraction

    def states_of_one_folder(self, name: str) -> Iterator[int]:
        """Kill the command ten times in one folder, after more and more changes of its files; once
        it has reached its end, again from few changes on, which are then the last ones. Yields the
        number of changes."""
        self._fresh()
        target, kills, until = self.work / name, 0, 1
        while kills < len(FRACTIONS):
            process, _ = self._start()
            sizes, changes = _sizes(target), 0
            while process.poll() is None and changes < until:
                time.sleep(0.002)
                now = _sizes(target)
                changes, sizes = changes + (now != sizes), now
            process.kill()
            process.wait()
            if process.returncode == -signal.SIGKILL:
                kills, until = kills + 1, until + 3
                yield changes
            else:
                self.check_ended(process)
                until = 1

    def finish(self, *more: str) -> None:
        """Run the same command to its end."""
        self.check_ended(self._start(*more)[0])

    def check_ended(self, process: subprocess.Popen[bytes]) -> None:
        assert process.wait(_TIMEOUT) == 0, self.messages

    @property
    def messages(self) -> str:
        return self.folder.with_name("messages").read_text()

    def _fresh(self) -> None:
        shutil.rmtree(self.work, ignore_errors=True)
        shutil.copytree(self.folder, self.work)

    def _start(self, *more: str) -> tuple[subprocess.Popen[bytes], float]:
        """The process, and when its work has begun."""
        log = self.folder.with_name("messages")
        with log.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "llpauc", *self.arguments, *more],
                cwd=self.work, stdout=subprocess.DEVNULL, stderr=file, env=_ENVIRONMENT,
            )  # fmt: skip
        until = time.monotonic() + _TIMEOUT
        while process.poll() is None and time.monotonic() < until:
            if self._has_begun(self.work) if self._has_begun else log.stat().st_size:
                break
            time.sleep(0.005)
        return process, time.monotonic()


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "files"
    folder.mkdir()
    write_events(folder / "events.csv")
    return folder


def _sizes(folder: Path) -> dict[Path, int]:
    """The files of a folder, also hidden ones that are being written, and their sizes."""
    sizes = {}
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            sizes[path] = path.stat().st_size
    return sizes


def check_complete(folder: Path) -> int:
    """Check that no file is cut off, and return their number; hidden ones are temporary."""
    ends = {".png": b"IEND\xaeB`\x82", ".csv": b"\n", ".md": b"\n", ".json": b"}\n", ".toml": b"\n"}
    files = [path for path in folder.rglob("[!.]*") if path.suffix in ends]
    for path in files:
        assert path.read_bytes().endswith(ends[path.suffix]), path
    return len(files)


def content(folder: Path) -> dict[str, str]:
    """SHA-256 of all files by their path."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def report(name: str, killed: Killed, outcomes: list[str]) -> None:
    counts = {outcome: outcomes.count(outcome) for outcome in dict.fromkeys(outcomes)}
    print(f"{name}: {len(outcomes)} kills in {killed.seconds:.1f} s of work: {counts}")


TRAININGS = {
    "lambdarank": ["--loss", "lambdarank", "--epochs", "12"],
    "recipe": ["--recipe", "auto", "--refit", "--epochs", "8"],
}


@pytest.mark.parametrize("name", TRAININGS)
def test_train_killed_at_ten_moments_keeps_the_old_run_and_resumes_to_the_same_bits(name, files):
    write_events(files / "old.csv", users=20)
    Recommender(recipe="none", epochs=1, dimensions=4).fit(str(files / "old.csv")).save(
        files / "run"
    )
    old = fingerprint(files / "run")
    arguments = words(Path("events.csv"), Path("run"))
    if name == "recipe":
        arguments = [
            "train",
            "events.csv",
            "--out",
            "run",
            "--checkpoint-every",
            "0.02s",
        ]
    killed = Killed(files, [*arguments, *TRAININGS[name], "--resume"])
    new, outcomes = fingerprint(killed.whole / "run"), []
    assert new != old
    for _ in killed.states():
        Recommender.load(killed.work / "run")
        assert fingerprint(killed.work / "run") in (old, new)
        outcomes.append("new" if fingerprint(killed.work / "run") == new else "old")
        killed.finish()
        outcomes[-1] += ", resumed" * ("resuming from" in killed.messages)
        assert fingerprint(killed.work / "run") == new
        assert sorted(os.listdir(killed.work)) == ["events.csv", "old.csv", "run"]
    report(name, killed, outcomes)
    assert "old, resumed" in outcomes


def test_update_killed_at_ten_moments_leaves_the_old_run_or_the_new_one(files):
    Recommender(recipe="none", epochs=2, dimensions=8).fit(str(files / "events.csv")).save(
        files / "run"
    )
    write_events(files / "more.csv", users=90, seed=4)
    killed = Killed(files, ["update", "run", "more.csv", "--epochs", "20"])
    old, new, outcomes = fingerprint(files / "run"), fingerprint(killed.whole / "run"), []
    for _ in killed.states():
        Recommender.load(killed.work / "run")
        assert fingerprint(killed.work / "run") in (old, new)
        outcomes.append("new" if fingerprint(killed.work / "run") == new else "old")
        killed.finish()
        assert fingerprint(killed.work / "run") == new
        assert sorted(os.listdir(killed.work)) == ["events.csv", "more.csv", "run"]
    report("update", killed, outcomes)


def test_data_prepare_killed_at_ten_moments_leaves_the_old_data_or_the_new(files):
    write_events(files / "old.csv", users=20)
    subprocess.run(
        [sys.executable, "-m", "llpauc", "data", "prepare", "old.csv", "--out", "data"],
        cwd=files, env=_ENVIRONMENT, check=True, capture_output=True,
    )  # fmt: skip
    write_events(files / "events.csv", users=5000)
    killed = Killed(
        files,
        ["data", "prepare", "events.csv", "--out", "data"],
        lambda work: list(work.glob(".data.*")),
    )
    old, new, outcomes = content(files / "data"), content(killed.whole / "data"), []
    for _ in killed.states():
        open_prepared(killed.work / "data")
        assert content(killed.work / "data") in (old, new)
        outcomes.append("new" if content(killed.work / "data") == new else "old")
        killed.finish()
        assert content(killed.work / "data") == new
        assert sorted(os.listdir(killed.work)) == ["data", "events.csv", "old.csv"]
    report("data prepare", killed, outcomes)


def _trials(folder: Path) -> dict[int, tuple[str, float | None]]:
    """Settings and value of the finished trials."""
    if not (folder / "study.journal").exists():
        return {}
    try:
        storage = open_storage(str(folder / "study.journal"))
        study = optuna.load_study(study_name="llpauc", storage=storage)
    except KeyError:
        return {}
    finished = [trial for trial in study.get_trials() if "ended" in trial.user_attrs]
    return {trial.number: (repr(sorted(trial.params.items())), trial.value) for trial in finished}


def test_tune_killed_at_ten_moments_keeps_every_finished_trial(files):
    arguments = ["tune", "events.csv", "--out", "tuned", "--models", "mf", "--epochs", "2"]
    arguments += ["--trials", "3", "--budget", "30m", "--pruner", "none"]
    killed = Killed(files, arguments)
    results, outcomes, trials = set(os.listdir(killed.whole / "tuned")), [], {}
    tuned = killed.work / "tuned"
    for _ in killed.states_of_one_folder("tuned"):
        written = check_complete(tuned)
        now = _trials(tuned)
        assert {number: now[number] for number in trials} == trials
        trials = now
        outcomes.append(f"{len(trials)} trials, {written} results")
    killed.finish()
    after = _trials(tuned)
    assert {number: after[number] for number in trials} == trials
    assert sum(value is not None for _, value in after.values()) >= 3
    assert {name for name in os.listdir(tuned) if not name.startswith(".")} == results
    report("tune", killed, outcomes)


def test_auto_killed_at_ten_moments_leaves_one_complete_result(files):
    """The lists are those of the run next to them, and all files are of one result."""
    write_events(files / "old.csv", users=30)
    subprocess.run(
        [sys.executable, "-m", "llpauc", "auto", "old.csv", "--out", "auto", "--budget", "1s"],
        cwd=files, env=_ENVIRONMENT, check=True, capture_output=True,
    )  # fmt: skip
    killed = Killed(files, ["auto", "events.csv", "--out", "auto", "--budget", "2s", "-k", "7"])
    names = ("report.html", "report.md", "recommendations.parquet", "run/manifest.json")
    old, outcomes = content(files / "auto"), []
    for _ in killed.states():
        found = content(killed.work / "auto")
        are_old = {found[name] == old[name] for name in names}
        assert len(are_old) == 1, found
        outcomes.append("old" if are_old.pop() else "new")
        _check_lists(killed.work / "auto")
    killed.finish()
    _check_lists(killed.work / "auto")
    left = [name for name in os.listdir(killed.work) if name.startswith(".auto.")]
    assert left == []
    report("auto", killed, outcomes)


def _check_lists(folder: Path) -> None:
    table = pq.read_table(folder / "recommendations.parquet").to_pydict()
    recommender = Recommender.load(folder / "run")
    users = list(dict.fromkeys(table["user"]))
    assert len(users) == len(recommender.require_fitted().user_ids)
    ids, _ = recommender.recommend(users, max(table["rank"]))
    expected = [(u, i) for u, row in zip(users, ids.tolist(), strict=True) for i in row if i]
    assert list(zip(table["user"], table["item"], strict=True)) == expected


def _table(folder: Path) -> list[dict[str, str]]:
    """The rows of the leaderboard without times."""
    with (folder / "leaderboard.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [{name: row[name] for name in row if "second" not in name} for row in rows]


def test_leaderboard_killed_at_ten_moments_gives_the_same_table(files):
    write_split(taste_split(1), files / "data" / "amazon-health")
    arguments = ["leaderboard", "--data", "data", "--out", "out", "--only", "amazon-health"]
    arguments += ["--methods", "popularity,itemknn,bpr", "--quick", "--seeds", "1,2"]
    killed = Killed(files, [*arguments, "--workers", "1"])
    expected, outcomes, cells = _table(killed.whole / "out"), [], {}
    out = killed.work / "out"
    for _ in killed.states_of_one_folder("out"):
        written = check_complete(out)
        assert {path: path.read_bytes() for path in cells} == cells  # nothing was run twice
        cells = {path: path.read_bytes() for path in (out / "cells").glob("[!.]*.json")}
        assert not (out / "leaderboard.csv").exists() or _table(out) == expected
        outcomes.append(f"{len(cells)} cells, {written - len(cells)} results")
    killed.finish()
    assert {path: path.read_bytes() for path in cells} == cells
    assert _table(out) == expected
    report("leaderboard", killed, outcomes)
