"""Made-up tables, configs and run folders: a result or one line. `make faults` has 10,000."""

from __future__ import annotations

import pytest

from tests.system.fuzzing import CHECKS, try_many

EXAMPLES = 350  # of each


@pytest.mark.slow
@pytest.mark.parametrize("what", CHECKS)
def test_whatever_it_is_there_is_a_result_or_one_line(what):
    outcomes = try_many(*CHECKS[what], EXAMPLES)
    assert outcomes.total() >= EXAMPLES
    assert len(outcomes) == 2, outcomes  # else nothing was tried
    assert min(outcomes.values()) > EXAMPLES / 50, outcomes
