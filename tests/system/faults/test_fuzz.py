"""Ten thousand generated tables, configs and run folders; none causes a traceback."""

from __future__ import annotations

import time

import pytest

from tests.system.fuzzing import CHECKS, ID_TABLES, check_ids, count_outcomes

EXAMPLES = {"tables": 4000, "configs": 2000, "runs": 4000}


@pytest.mark.parametrize("kind", CHECKS)
def test_fuzzed_input_ten_thousand_examples(kind):
    begun = time.monotonic()
    outcomes = count_outcomes(*CHECKS[kind], EXAMPLES[kind])
    seconds = time.monotonic() - begun
    print(f"{kind}: {outcomes.total()} cases in {seconds:.0f} s, {dict(outcomes)}")
    assert outcomes.total() >= EXAMPLES[kind]
    assert len(outcomes) == 2


def test_check_ids_thousand_tables():
    assert count_outcomes(check_ids, ID_TABLES, 1000)["same"] >= 1000
