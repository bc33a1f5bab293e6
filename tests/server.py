"""Shared by the tests of `llpauc serve`: small runs, a client in the process, a live server."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from io import BufferedReader
from pathlib import Path

import httpx2
import schemathesis
from hypothesis import HealthCheck, given, seed, settings
from schemathesis import checks
from schemathesis.specs.openapi import checks as openapi_checks
from starlette.testclient import TestClient

from llpauc.data.interactions import Interactions
from llpauc.recommend import Recommender
from llpauc.serving import ServingState, make_app
from tests.datasets import taste_split

KEY = "k" * 20
TIMEOUT = 120  # seconds, for a busy machine
CHECKS = [
    checks.not_a_server_error,
    openapi_checks.status_code_conformance,
    openapi_checks.content_type_conformance,
    openapi_checks.response_schema_conformance,
]


def trained(model: str = "mf", seed: int = 0, data: Interactions | None = None) -> Recommender:
    options = {}
    if model in ("mf", "fism"):
        options = {"epochs": 2, "dimensions": 8, "hold_out": 0, "seed": seed}
    return Recommender(recipe="none", model=model, **options).fit(data or taste_split().train)


def save_run_with_integer_ids(folder: Path) -> Path:
    """A run with the ids 0, 1, 2, ..., which a generator of requests is likely to produce."""
    train = taste_split().train
    data = Interactions.of(train.users.tolist(), train.items.tolist())
    return Recommender(recipe="none", epochs=1, dimensions=8, hold_out=0).fit(data).save(folder)


def client_of(folder: Path, key: str | None = None, **page_data) -> TestClient:
    app = make_app(ServingState(folder, **page_data), key)
    return TestClient(app, base_url="http://127.0.0.1")


def pairs(entries) -> list[tuple[str, float]]:
    return [(entry["item"], entry["score"]) for entry in entries]


def expected(ids, scores) -> list[tuple[str, float]]:
    return [
        (item, score)
        for item, score in zip(ids.tolist(), scores.tolist(), strict=True)
        if item is not None
    ]


def check_refused(answer, status: int, message: str) -> None:
    assert answer.status_code == status, answer.text
    body = answer.json()
    assert list(body) == ["error"]
    assert message in body["error"]
    assert len(body["error"]) < 310
    assert "\n" not in body["error"]
    assert "Traceback" not in answer.text


def replace_run(source: Path, target: Path) -> None:
    """Replace a run as `run_folder.save` does: the old folder moves away first."""
    fresh = target.with_name(".fresh")
    shutil.copytree(source, fresh)
    if target.exists():
        os.rename(target, target.with_name(".old"))
    os.rename(fresh, target)
    shutil.rmtree(target.with_name(".old"), ignore_errors=True)


def post_bytes(body: bytes, path: str = "/recommend") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    return head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body


def read_response(stream: BufferedReader) -> tuple[int, bytes]:
    """The status and the body of the next response."""
    status, length = int(stream.readline().split()[1]), 0
    while (header := stream.readline().strip().lower()) != b"":
        if header.startswith(b"content-length:"):
            length = int(header.partition(b":")[2])
    return status, stream.read(length)


class Live:
    """`llpauc serve` in its own process, on a free port of the loopback address.

    Args:
        folder: the run.
        words: further words of the command line.
        prefix: a command that starts the server, such as `prlimit`.
        environment: further variables.
    """

    def __init__(
        self, folder: Path, *words: str, prefix: Sequence[str] = (), **environment: str
    ) -> None:
        command = [sys.executable, "-m", "llpauc", "serve", str(folder), "--port", "0", *words]
        self.process = subprocess.Popen(
            [*prefix, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, **environment},
        )  # fmt: skip
        self.greeting = self.process.stderr.readline()
        assert "on http://127.0.0.1:" in self.greeting, self.greeting
        self.port = int(self.greeting.split("127.0.0.1:")[1].split(";")[0])
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Live:
        return self

    def stop(self) -> str:
        """Stop it with SIGTERM; its output after the first line."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(TIMEOUT) == -signal.SIGTERM
        return self.process.stdout.read() + self.process.stderr.read()

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.wait(TIMEOUT)
        self.process.stdout.close()
        self.process.stderr.close()


def fuzz(live: Live, cases: int) -> Counter[int]:
    """Send about `cases` valid and invalid requests that schemathesis makes from the OpenAPI.

    Returns the number of answers by status. An answer that the OpenAPI does not contain, or a
    status of 500 or above, raises.
    """
    schema = httpx2.get(f"{live.url}/openapi.json", timeout=TIMEOUT).json()
    operations = [one.ok() for one in schemathesis.openapi.from_dict(schema).get_all_operations()]
    takes_nothing = [op for op in operations if not op.body and "{" not in op.path]
    statuses: Counter[int] = Counter()

    def send(case) -> None:
        answer = case.call(base_url=live.url, timeout=TIMEOUT)
        statuses[answer.status_code] += 1
        case.validate_response(answer, checks=CHECKS)

    positive, negative = schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE
    for operation in takes_nothing:
        run = settings(max_examples=1, deadline=None, database=None, derandomize=True)
        run(given(case=operation.as_strategy(generation_mode=positive))(send))()
    # Any text can be an id, so a request without a body cannot be invalid.
    jobs = [(operation, positive) for operation in operations if operation not in takes_nothing]
    jobs += [(operation, negative) for operation, _ in jobs if operation.body]
    turn = 0
    while statuses.total() < cases:  # hypothesis may stop early
        turn += 1
        missing = -(-(cases - statuses.total()) // len(jobs))
        for operation, mode in jobs:
            run = settings(max_examples=missing, deadline=None, database=None,
                           suppress_health_check=list(HealthCheck))  # fmt: skip
            run(seed(turn)(given(case=operation.as_strategy(generation_mode=mode))(send)))()
    return statuses
