"""Promise 14: a rank killed ten times, ten recoveries under 60 s each."""

from __future__ import annotations

import pytest

from tests.system.faults.processes import kill_ranks


@pytest.mark.parametrize("options", [(), ("--shard",)], ids=["copies", "shards"])
def test_ten_kills_ten_recoveries(tmp_path, options):
    seconds = kill_ranks(tmp_path, 10, *options)
    print(f"\nseconds to recover: {[round(s, 1) for s in seconds]}")
    assert len(seconds) == 10
    assert max(seconds) < 60
