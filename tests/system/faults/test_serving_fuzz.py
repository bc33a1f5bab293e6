"""2,000 requests that schemathesis makes of the OpenAPI: no 5xx, no answer beside the OpenAPI."""

from __future__ import annotations

import httpx2

from tests.server import TIMEOUT, Live, fuzz, save_run_with_integer_ids


def test_two_thousand_cases(tmp_path):
    with Live(save_run_with_integer_ids(tmp_path / "run")) as live:
        statuses = fuzz(live, 2000)
        print(f"{sum(statuses.values())} requests: {dict(statuses)}")
        assert sum(statuses.values()) >= 2000
        assert max(statuses) < 500
        assert min(statuses[status] for status in (200, 400, 404, 422)) >= 20
        assert httpx2.get(f"{live.url}/readyz", timeout=TIMEOUT).status_code == 200
        assert live.stop() == ""  # nothing was said
