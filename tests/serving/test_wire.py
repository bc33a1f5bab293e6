"""`llpauc serve` as a process, over sockets: invalid bytes, keys, signals, messages."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx2
import pytest

from llpauc.data.demo import demo_data
from llpauc.recommend import Recommender
from llpauc.serving import connections
from llpauc.serving.loaded_run import current_run_id
from tests.server import (
    KEY,
    TIMEOUT,
    Live,
    fuzz,
    read_response,
    replace_run,
    save_run_with_integer_ids,
    trained,
)

DOCS = Path(__file__).parents[2] / "docs" / "how-to" / "serve.md"


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("runs")
    films = Recommender(model="popularity").fit(demo_data().split.train)
    made = {"mf": trained(), "other": trained(seed=1), "films": films}
    saved = {name: recommender.save(root / name) for name, recommender in made.items()}
    return saved | {"numbers": save_run_with_integer_ids(root / "numbers")}


@pytest.fixture(scope="module")
def live(runs):
    with Live(runs["numbers"]) as live:
        yield live


def post(body: bytes, *headers: str, length: int | None = None) -> bytes:
    """A request for lists; `length` is a wrong Content-Length."""
    size = f"content-length: {len(body) if length is None else length}"
    head = ["POST /recommend HTTP/1.1", "host: localhost", "content-type: application/json"]
    sizes = [size] if not any("chunked" in header for header in headers) else []
    return "\r\n".join([*head, *sizes, *headers, "", ""]).encode() + body


def chunked(size: int) -> bytes:
    piece = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    return post(piece * (size // 65536) + b"0\r\n\r\n", "transfer-encoding: chunked")


def send(live: Live, data: bytes) -> tuple[int, bytes]:
    """The status and the body of the answer, even if the server stops reading early."""
    with socket.create_connection(("127.0.0.1", live.port), TIMEOUT) as line:
        with suppress(OSError):  # the answer may have been sent before
            line.sendall(data)
        return read_answer(line)


def read_answer(line: socket.socket) -> tuple[int, bytes]:
    with line.makefile("rb") as stream:
        return read_response(stream)


DEEP = 100_000
INVALID = {
    "10 MB with Content-Length": (lambda: post(b" " * 10_000_000), 413),
    "10 MB in chunks": (lambda: chunked(10_000_000), 413),
    "100 MB with Content-Length": (lambda: post(b" " * 100_000_000), 413),
    "a length of 10^40": (lambda: post(b"{}", length=10**40), 400),
    "a negative length": (lambda: post(b"{}", length=-5), 400),
    "invalid UTF-8": (lambda: post(b'{"user": "\xff\xfe"}'), 400),
    "UTF-16": (lambda: post('{"user": "u1"}'.encode("utf-16")), 400),
    "deep lists": (lambda: post(b"[" * DEEP + b"]" * DEEP), 400),
    "deep objects": (lambda: post(b'{"user":' * DEEP + b"1" + b"}" * DEEP), 400),
    "deep in a field": (lambda: post(b'{"user": ' + b"[" * DEEP + b"]" * DEEP + b"}"), 400),
    "broken JSON": (lambda: post(b'{"user": "u1", '), 400),
    "two objects": (lambda: post(b'{"user": "u1"} {"user": "u2"}'), 400),
    "a NUL": (lambda: post(b'{"user": "\x00"}'), 400),
    "k = -1": (lambda: post(b'{"user": "u1", "k": -1}'), 422),
    "k = 0": (lambda: post(b'{"user": "u1", "k": 0}'), 422),
    "k = 10^9": (lambda: post(b'{"user": "u1", "k": 1000000000}'), 422),
    "k = 1e9": (lambda: post(b'{"user": "u1", "k": 1e9}'), 422),
    "k of 5,000 digits": (lambda: post(b'{"user": "u1", "k": ' + b"9" * 5000 + b"}"), 400),
    "k is text": (lambda: post(b'{"user": "u1", "k": "20"}'), 422),
    "user is a list": (lambda: post(b'{"user": ["u1"]}'), 422),
    "user is true": (lambda: post(b'{"user": true}'), 422),
    "a list": (lambda: post(b"[]"), 422),
    "null": (lambda: post(b"null"), 422),
    "empty body": (lambda: post(b""), 422),
    "an id of 900 KB": (lambda: post(b'{"user": "' + b"u" * 900_000 + b'"}'), 404),
    "a header of 1 MB": (lambda: post(b"{}", "x-much: " + "x" * 1_000_000), 431),
    "100,000 headers": (lambda: post(b"{}", *["x-much: x"] * 100_000), 431),
    "a path of 1 MB": (lambda: b"GET /" + b"x" * 1_000_000 + b" HTTP/1.1\r\n\r\n", 431),
    "a path that is not UTF-8": (lambda: b"GET /users/\xff\xfe HTTP/1.1\r\n\r\n", 400),
    "another protocol": (lambda: b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 50, 400),
    "unknown method": (lambda: b"BREW /recommend HTTP/1.1\r\nhost: localhost\r\n\r\n", 400),
}


@contextmanager
def health_check_times(live: Live):
    """Seconds that each request to /healthz took while the block ran."""
    times: list[float] = []
    stop = threading.Event()

    def watch() -> None:
        with httpx2.Client(base_url=live.url, timeout=TIMEOUT) as client:
            while not stop.wait(0.02):
                started = time.perf_counter()
                assert client.get("/healthz").status_code == 200
                times.append(time.perf_counter() - started)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield times
    finally:
        stop.set()
        watcher.join()


def test_server_answers_invalid_bytes_with_4xx_and_healthz_stays_fast(live):
    slow = [socket.create_connection(("127.0.0.1", live.port), TIMEOUT) for _ in range(40)]
    started = time.monotonic()
    with health_check_times(live) as times:
        for n, line in enumerate(slow):  # headers, or a body, that do not end
            line.sendall(b"GET /readyz HTTP/1.1\r\nx: " if n % 2 else post(b"{", length=50))
        for name, (make, expected) in INVALID.items():
            status, body = send(live, make())
            assert status == expected, (name, status, body[:200])
            assert b"Traceback" not in body, name
            assert len(body) < 400, name
        while time.monotonic() - started < connections.HEADER_SECONDS - 1:
            for line in slow[1::2]:
                line.sendall(b"x")
            time.sleep(0.5)
        answers = [read_answer(line) for line in slow]
    for line in slow:
        line.close()
    assert {status for status, _ in answers} == {408}
    assert {json.loads(body)["error"].split()[1] for _, body in answers} == {"body", "headers"}
    assert len(times) > 20
    # On a busy machine some requests take longer, so the slowest tenth does not count.
    assert sorted(times)[int(0.9 * len(times))] < 0.1
    assert send(live, post(b'{"user": 1}'))[0] == 200


def test_server_answers_200_generated_requests_without_failure(live):
    """schemathesis generates them from the OpenAPI; tests/system/faults sends 2,000."""
    statuses = fuzz(live, 200)
    assert sum(statuses.values()) >= 200
    assert min(statuses[status] for status in (200, 404, 422)) >= 5
    assert httpx2.get(f"{live.url}/readyz", timeout=TIMEOUT).status_code == 200


def test_server_with_key_discloses_no_key_path_or_trace(runs, tmp_path):
    """On every route of the OpenAPI, in answers and in messages; no user id in messages."""
    folder = tmp_path / "run"
    replace_run(runs["mf"], folder)
    with (
        Live(folder, LLPAUC_API_KEY=KEY) as live,
        httpx2.Client(base_url=live.url, timeout=TIMEOUT) as client,
    ):
        messages = live.greeting
        good = {"x-api-key": KEY}
        paths = client.get("/openapi.json", headers=good).json()["paths"]
        answers = []
        for path, methods in {**paths, "/openapi.json": ["get"], "/no": ["get"]}.items():
            for method in methods:
                for headers in ({}, {"x-api-key": KEY[:-1]}, {"x-api-key": KEY + "k"}):
                    answers.append(client.request(method, path, headers=headers))
                    is_open = path in ("/healthz", "/readyz")
                    assert answers[-1].status_code == (200 if is_open else 401), path
                filled = path.replace("{id}", "secret-user")
                body = {"user": "secret-user"} if method == "post" else None
                answers.append(client.request(method, filled, headers=good, json=body))
                assert answers[-1].status_code < 500
        (folder / "tensors.safetensors").write_bytes(b"broken")
        (folder / "manifest.json").write_text((folder / "manifest.json").read_text() + " ")
        for body in ({}, {"folder": str(runs["other"])}, {"run": "/etc"}):
            answers.append(client.post("/reload", headers=good, json=body))
            assert answers[-1].status_code == 409
        answers.append(client.post(f"/reload?folder={runs['other']}", headers=good))
        assert answers[-1].status_code == 409
        assert client.get("/readyz").json()["run"] == current_run_id(runs["mf"])
        live.process.send_signal(signal.SIGHUP)
        messages += live.process.stderr.readline()
        messages += live.stop()
    assert "reload refused" in messages
    text = "".join(answer.text + str(answer.headers) for answer in answers)
    for secret in (KEY, str(tmp_path), str(Path.home()), "site-packages", "Traceback"):
        assert secret not in text
        assert secret not in messages
    assert "secret-user" not in messages


def test_server_answers_docs_requests_reloads_on_sighup_and_finishes_requests_on_sigterm(
    runs, tmp_path
):
    folder = tmp_path / "run"
    replace_run(runs["films"], folder)
    with Live(folder) as live:
        assert current_run_id(folder) in live.greeting
        check_requests_of_docs(live, current_run_id(folder))
        replace_run(runs["other"], folder)
        live.process.send_signal(signal.SIGHUP)
        assert f"now serving run {current_run_id(folder)}" in live.process.stderr.readline()
        # Requests that are half sent when the server is stopped are answered.
        lines = [socket.create_connection(("127.0.0.1", live.port), TIMEOUT) for _ in range(8)]
        body = b'{"user": "u1"}'
        for line in lines:
            line.sendall(post(body)[: -len(body) + 5])
        time.sleep(0.5)
        live.process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        for line in lines:
            line.sendall(body[5:])
        answers = [read_answer(line) for line in lines]
        for line in lines:
            line.close()
        assert {status for status, _ in answers} == {200}
        assert {json.loads(body)["run"] for _, body in answers} == {current_run_id(runs["other"])}
        assert live.process.wait(TIMEOUT) == -signal.SIGTERM
        assert live.process.stderr.read() == ""


def check_requests_of_docs(live: Live, run: str) -> None:
    """The commands of docs/serving.md with another port, since 8000 may be in use."""
    commands = re.findall(r"^curl .*$", DOCS.read_text(), re.MULTILINE)
    assert any("/recommend" in command for command in commands)
    for command in commands:
        with_port = command.replace("localhost:8000", f"localhost:{live.port}")
        answer = json.loads(subprocess.check_output(["bash", "-c", with_port], timeout=TIMEOUT))
        assert answer["run"] == run, answer
