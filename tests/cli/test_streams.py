"""Work does not depend on the readers of standard output and standard error."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from llpauc import progress
from llpauc.cli import main

LLPAUC = Path(sys.executable).with_name("llpauc")


@pytest.fixture(scope="module")
def events(tmp_path_factory) -> Path:
    rng, path = random.Random(0), tmp_path_factory.mktemp("events") / "events.csv"
    rows = [f"u{u},i{i},{1000 + u}" for u in range(40) for i in rng.sample(range(30), 8)]
    path.write_text("\n".join(["user,item,timestamp", *rows, ""]))
    return path


def _start(words, folder, stdout="pipe", stderr="pipe") -> subprocess.CompletedProcess:
    """Run a command whose streams are pipes, or "gone", "full" or "closed"."""
    opened, closed = {}, []
    for number, (name, state) in enumerate((("stdout", stdout), ("stderr", stderr)), 1):
        if state == "gone":
            reading, opened[name] = os.pipe()
            os.close(reading)
        elif state == "full":
            opened[name] = os.open("/dev/full", os.O_WRONLY)
        elif state == "closed":
            closed.append(number)
    streams = {name: opened.get(name, subprocess.PIPE) for name in ("stdout", "stderr")}
    shell = "exec " + " ".join(f"{number}>&-" for number in closed) + '; exec "$0" "$@"'
    done = subprocess.run(
        ["bash", "-c", shell, LLPAUC, *map(str, words)],
        cwd=folder, text=True, timeout=180, **streams,
    )  # fmt: skip
    for file in opened.values():
        os.close(file)
    return done


COMMANDS = {
    "train": (["train", "--recipe=none", "E", "--out", "r", "--epochs", "1"], "r/manifest.json"),
    "update": (["update", "RUN", "E2", "--out", "r", "--epochs", "1"], "r/manifest.json"),
    "data split": (["data", "split", "E", "s"], "s/train.tsv"),
    "data prepare": (["data", "prepare", "E", "--out", "p"], "p/manifest.json"),
    "tune": (["tune", "E", "--out", "t", "--trials", "1", "--epochs", "1"], "t/best.toml"),
    "auto": (["auto", "E", "--out", "a", "--budget", "3s"], "a/report.html"),
    "evaluate": (["evaluate", "E", "--models", "popularity", "--lists", "l.tsv"], "l.tsv"),
}


def _words(name, events, folder):
    extra = folder / "more.csv"
    extra.write_text("user,item,timestamp\nu1,new,5000\nnewcomer,i3,5000\n")
    places = {"E": events, "E2": extra}
    if name == "update":
        places["RUN"] = folder / "old"
        assert (
            main(
                [
                    "train",
                    "--recipe=none",
                    str(events),
                    "--out",
                    str(folder / "old"),
                    "--epochs",
                    "1",
                ]
            )
            == 0
        )
    words, result = COMMANDS[name]
    return [places.get(word, word) for word in words], folder / result


@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("train", "gone"),
        ("train", "full"),
        ("train", "closed"),
        ("update", "gone"),
        ("data split", "gone"),
        ("data prepare", "gone"),
        pytest.param("tune", "gone", marks=pytest.mark.slow),
        pytest.param("auto", "gone", marks=pytest.mark.slow),
    ],
)
def test_commands_finish_without_a_reader_of_stderr(events, tmp_path, name, state):
    words, result = _words(name, events, tmp_path)
    done = _start(words, tmp_path, stderr=state)
    assert done.returncode == 0
    assert result.exists()
    assert "rror" not in done.stdout


@pytest.mark.parametrize(
    ("name", "state", "code"),
    [
        ("train", "gone", 0),
        ("train", "closed", 0),
        ("train", "full", 1),
        ("evaluate", "gone", 0),
        ("evaluate", "full", 1),
    ],
)
def test_commands_finish_without_a_reader_of_stdout(events, tmp_path, name, state, code):
    words, result = _words(name, events, tmp_path)
    done = _start(words, tmp_path, stdout=state)
    assert "Traceback" not in done.stderr
    assert done.returncode == code, done.stderr
    assert result.exists()
    if state == "full":
        last = done.stderr.splitlines()[-1]
        assert last == "llpauc: error: standard output: No space left on device"


def test_main_closed_streams_never_receive_a_data_file(events, tmp_path):
    """A file that is opened as descriptor 1 or 2 would receive the messages."""
    words, result = _words("data split", events, tmp_path)
    for _ in range(2):
        done = _start(words, tmp_path, stdout="closed", stderr="closed")
        assert done.returncode == 0
        assert result.read_text().startswith("user\titem")


def test_runs_verify_reports_a_broken_run_without_a_reader_of_stdout(events, tmp_path):
    assert (
        main(["train", "--recipe=none", str(events), "--out", str(tmp_path / "r"), "--epochs", "1"])
        == 0
    )
    with (tmp_path / "r" / "meta.json").open("a") as file:
        file.write(" ")
    done = _start(["runs", "r", "--verify"], tmp_path, stdout="gone")
    assert done.returncode == 1


# --- control characters ---------------------------------------------------------------------------

ESCAPES = "\x1b[2J\x9b31m\x07"  # clears the screen, changes the colour, rings the bell


@pytest.fixture
def hostile(tmp_path, monkeypatch):
    """A file of interactions whose name and ids hold control characters."""
    monkeypatch.chdir(tmp_path)
    rng, path = random.Random(0), Path(f"events{ESCAPES}.csv")
    rows = [f"u{u}{ESCAPES},i{i}{ESCAPES}" for u in range(20) for i in rng.sample(range(9), 5)]
    path.write_text("\n".join(["user,item", *rows, rows[0], ""]))
    return str(path)


@pytest.mark.parametrize(
    "words",
    [
        ["data", "inspect", "E"],
        ["data", "inspect", "E", "--json"],
        ["evaluate", "E", "--models", "popularity"],
        ["train", "--recipe=none", "E", "--out", f"run{ESCAPES}", "--epochs", "1"],
        ["data", "split", "E", f"split{ESCAPES}"],
        ["data", "inspect", f"missing{ESCAPES}"],
        ["data", "inspect", "E", f"--x{ESCAPES}"],
        ["data", "inspect", "E", "--user", ESCAPES],
        ["train", "--recipe=none", "E", "--model", ESCAPES],
        ["recommend", f"run{ESCAPES}"],
        ["recommend", f"run{ESCAPES}", "--users", f"u1{ESCAPES}", "--json"],
        ["recommend", f"run{ESCAPES}", "--history", f"unknown{ESCAPES}"],
        ["runs", "."],
        [ESCAPES],
    ],
)
def test_commands_print_no_control_characters(hostile, capsys, words):
    words = [hostile if word == "E" else word for word in words]
    if words[0] in ("recommend", "runs"):
        main(["train", "--recipe=none", hostile, "--out", f"run{ESCAPES}", "--epochs", "1"])
        capsys.readouterr()
    with suppress(SystemExit):
        main(words)
    output = "".join(capsys.readouterr())
    assert output
    assert [c for c in output if not (c.isprintable() or c == "\n")] == []


def test_progress_removes_control_characters_from_the_description(monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with progress.open_bar((), f"reading {ESCAPES}", 1) as (bar, task):
        assert bar.tasks[task].description == "reading ?[2J?31m?"


@pytest.mark.parametrize(
    "words",
    [
        ["train", "--recipe=none", ""],
        ["train", "--recipe=none", "E", "--out", ""],
        ["recommend", ""],
        ["runs", ""],
    ],
)
def test_main_refuses_an_empty_path(hostile, capsys, words):
    """It would be the current folder."""
    with pytest.raises(SystemExit, match="2"):
        main([hostile if word == "E" else word for word in words])
    assert " is empty; give a file or a folder" in capsys.readouterr().err


def test_main_refuses_a_nul_character_in_a_path(hostile, capsys):
    Path("config.toml").write_text('out = "a\\u0000b"\n')
    with pytest.raises(SystemExit, match="2"):
        main(["train", "--recipe=none", hostile, "--config", "config.toml"])
    assert "out contains a NUL character" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["train", "--recipe=none", "E", "--out", "bad\udcff"],
        ["data", "split", "E", "\udcff"],
        ["train", "--recipe=none", "\udcff"],
    ],
)
def test_main_refuses_a_path_that_is_not_utf8(hostile, capsys, words):
    """As Python passes on the byte 0xff: Arrow and DuckDB cannot open such a path."""
    with pytest.raises(SystemExit, match="2"):
        main([hostile if word == "E" else word for word in words])
    assert " is not UTF-8 text; choose another name" in capsys.readouterr().err
    assert os.listdir() == [hostile]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NUMBA_NUM_THREADS", "0"),
        ("NUMBA_NUM_THREADS", "two"),
        ("NUMBA_THREADING_LAYER", "tbb"),
        ("NUMBA_THREADING_LAYER", "unknown"),
    ],
)
def test_main_reports_unusable_numba_variables_in_one_line(events, tmp_path, name, value):
    done = subprocess.run(
        [LLPAUC, "evaluate", events, "--models", "popularity"],
        capture_output=True, text=True, cwd=tmp_path, env={**os.environ, name: value},
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith(f"llpauc: error: {name}")
    assert len(done.stderr.splitlines()) == 1
