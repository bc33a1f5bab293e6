"""The commands and messages of several processes."""

from __future__ import annotations

import json
import time

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from llpauc.cli import main
from llpauc.distributed import SINGLE_PROCESS, ProcessGroup
from tests import processes as launched
from tests.system.faults.processes import kill_processes, write_events


def test_barrier_process_that_does_not_answer_raises_lost_process_error(tmp_path):
    begun = time.monotonic()
    ran = launched.torchrun(2, "not_answering", str(tmp_path), WATCHDOG="5")
    assert ran.returncode != 0
    assert "another process has ended or does not answer" in ran.stderr
    assert time.monotonic() - begun < 45


def test_train_killed_process_is_restarted_with_the_same_result(tmp_path):
    (recovery,) = kill_processes(tmp_path, kills=1)
    assert recovery < 60


def test_train_missing_file_in_one_process_is_reported_by_the_first(tmp_path):
    write_events(tmp_path / "events.csv", 200)
    ran = launched.torchrun(2, "missing_file", str(tmp_path))
    assert ran.returncode != 0
    errors = [line for line in ran.stderr.splitlines() if line.startswith("llpauc: error")]
    assert len(errors) == 1
    assert errors[0].startswith("llpauc: error: process 1: events.csv: cannot be read")


def test_train_full_disk_continues_without_checkpoints(tmp_path):
    """Files are limited to 64 KB: a checkpoint is larger, a line of metrics smaller."""
    write_events(tmp_path / "events.csv", 20_000)
    ran = launched.torchrun(2, "small_files", str(tmp_path))
    assert ran.stderr.count("no checkpoint written") == 1
    assert "File too large" in ran.stderr
    assert "epoch   2" in ran.stderr


def test_recommend_and_evaluate_two_processes_equal_one(tmp_path, capfd):
    write_events(tmp_path / "events.csv", 4_000)
    events, run = str(tmp_path / "events.csv"), str(tmp_path / "run")
    assert main(["train", events, "--recipe=none", "--epochs=1", "--out", run]) == 0
    assert main(["recommend", run, "--out", str(tmp_path / "one.tsv")]) == 0
    capfd.readouterr()
    assert main(["evaluate", events, "--models=popularity,itemknn", "--json"]) == 0
    one = json.loads(capfd.readouterr().out)
    ran = launched.torchrun(2, "lists_and_metrics", str(tmp_path))
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert (tmp_path / "two.tsv").read_bytes() == (tmp_path / "one.tsv").read_bytes()
    assert json.loads(ran.stdout)["results"] == one["results"]


@given(st.integers(0, 50), st.integers(1, 7))
def test_slice_of_divides_evenly(n, size):
    slices = [ProcessGroup(index, size).slice_of(n) for index in range(size)]
    assert [i for part in slices for i in range(n)[part]] == list(range(n))
    lengths = [part.stop - part.start for part in slices]
    assert max(lengths) - min(lengths) <= 1


def test_single_process_methods_return_their_input():
    array = np.arange(3)
    assert SINGLE_PROCESS.gather(array) is array
    assert SINGLE_PROCESS.all_gather([1.5, 2.0]).tolist() == [[1.5, 2.0]]
    assert SINGLE_PROCESS.gather_texts("x") == ["x"]
    assert SINGLE_PROCESS.slice_of(5) == slice(0, 5)
    SINGLE_PROCESS.check_equal("the events", {"a": 1})
    SINGLE_PROCESS.barrier()
