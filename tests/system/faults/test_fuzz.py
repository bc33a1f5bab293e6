"""Ten thousand made-up tables, configs and run folders, and no traceback."""

from __future__ import annotations

import time

import pytest

from tests.system.fuzzing import CHECKS, ID_TABLES, check_ids, try_many

EXAMPLES = {"tables": 4000, "configs": 2000, "runs": 4000}


@pytest.mark.parametrize("what", CHECKS)
def test_ten_thousand_in_all(what):
    begun = time.monotonic()
    outcomes = try_many(*CHECKS[what], EXAMPLES[what])
    seconds = time.monotonic() - begun
    print(f"{what}: {outcomes.total()} cases in {seconds:.0f} s, {dict(outcomes)}")
    assert outcomes.total() >= EXAMPLES[what]
    assert len(outcomes) == 2


def test_a_thousand_tables_of_any_ids():
    assert try_many(check_ids, ID_TABLES, 1000)["same"] >= 1000
