"""Promise 14: a process is killed ten times; training continues within 60 s each time."""

from __future__ import annotations

from tests.system.faults.processes import kill_processes


def test_train_recovers_from_ten_killed_processes(tmp_path):
    seconds = kill_processes(tmp_path, 10)
    print(f"\nseconds to recover: {[round(s, 1) for s in seconds]}")
    assert len(seconds) == 10
    assert max(seconds) < 60
