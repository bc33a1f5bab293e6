"""Generated tables, configs and run folders; `make faults` runs 10,000 of them."""

from __future__ import annotations

import pytest

from tests.system.fuzzing import CHECKS, count_outcomes

EXAMPLES = 350  # of each


@pytest.mark.slow
@pytest.mark.parametrize("kind", CHECKS)
def test_fuzzed_input_gives_a_result_or_a_one_line_error(kind):
    outcomes = count_outcomes(*CHECKS[kind], EXAMPLES)
    assert outcomes.total() >= EXAMPLES
    assert len(outcomes) == 2, outcomes  # both outcomes occur
    assert min(outcomes.values()) > EXAMPLES / 50, outcomes
