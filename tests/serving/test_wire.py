"""`llpauc serve` as people start it, over sockets: hostile bytes, keys, signals, what it says."""

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
from llpauc.serving import limits
from llpauc.serving.loaded_run import run_id
from tests.server import KEY, PATIENCE, Live, fuzz, put, trained, with_small_numbers

DOCS = Path(__file__).parents[2] / "docs" / "how-to" / "serve.md"


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("runs")
    films = Recommender(model="popularity").fit(demo_data().split.train)
    made = {"mf": trained(), "other": trained(start=1), "films": films}
    saved = {name: recommender.save(root / name) for name, recommender in made.items()}
    return saved | {"numbers": with_small_numbers(root / "numbers")}


@pytest.fixture(scope="module")
def live(runs):
    with Live(runs["numbers"]) as live:
        yield live


def post(body: bytes, *headers: str, length: int | None = None) -> bytes:
    """A request for lists; `length` is what it says, where that is not so."""
    size = f"content-length: {len(body) if length is None else length}"
    head = ["POST /recommend HTTP/1.1", "host: localhost", "content-type: application/json"]
    own = [size] if not any("chunked" in header for header in headers) else []
    return "\r\n".join([*head, *own, *headers, "", ""]).encode() + body


def chunked(size: int) -> bytes:
    piece = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    return post(piece * (size // 65536) + b"0\r\n\r\n", "transfer-encoding: chunked")


def send(live: Live, data: bytes) -> tuple[int, bytes]:
    """The status and the body that come back, even where the server stops listening early."""
    with socket.create_connection(("127.0.0.1", live.port), PATIENCE) as line:
        with suppress(OSError):  # the answer is there all the same, or there is none
            line.sendall(data)
        return read_answer(line)


def read_answer(line: socket.socket) -> tuple[int, bytes]:
    with line.makefile("rb") as answer:
        status = int(answer.readline().split()[1])
        length = 0
        while (header := answer.readline().strip().lower()) != b"":
            if header.startswith(b"content-length:"):
                length = int(header.partition(b":")[2])
        return status, answer.read(length)


DEEP = 100_000
HOSTILE = {
    "10 MB, as it says": (lambda: post(b" " * 10_000_000), 413),
    "10 MB, in pieces": (lambda: chunked(10_000_000), 413),
    "100 MB, as it says": (lambda: post(b" " * 100_000_000), 413),
    "a length of 10^40": (lambda: post(b"{}", length=10**40), 400),
    "a negative length": (lambda: post(b"{}", length=-5), 400),
    "no UTF-8": (lambda: post(b'{"user": "\xff\xfe"}'), 400),
    "UTF-16": (lambda: post('{"user": "u1"}'.encode("utf-16")), 400),
    "deep lists": (lambda: post(b"[" * DEEP + b"]" * DEEP), 400),
    "deep objects": (lambda: post(b'{"user":' * DEEP + b"1" + b"}" * DEEP), 400),
    "deep in a field": (lambda: post(b'{"user": ' + b"[" * DEEP + b"]" * DEEP + b"}"), 400),
    "broken JSON": (lambda: post(b'{"user": "u1", '), 400),
    "two answers in one": (lambda: post(b'{"user": "u1"} {"user": "u2"}'), 400),
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
    "nothing": (lambda: post(b""), 422),
    "an id of 900 KB": (lambda: post(b'{"user": "' + b"u" * 900_000 + b'"}'), 404),
    "a header of 1 MB": (lambda: post(b"{}", "x-much: " + "x" * 1_000_000), 431),
    "100,000 headers": (lambda: post(b"{}", *["x-much: x"] * 100_000), 431),
    "a path of 1 MB": (lambda: b"GET /" + b"x" * 1_000_000 + b" HTTP/1.1\r\n\r\n", 431),
    "a path that is no text": (lambda: b"GET /users/\xff\xfe HTTP/1.1\r\n\r\n", 400),
    "another protocol": (lambda: b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 50, 400),
    "no such method": (lambda: b"BREW /recommend HTTP/1.1\r\nhost: localhost\r\n\r\n", 400),
}


@contextmanager
def watched_health(live: Live):
    """Seconds that /healthz took, one after the other, for as long as the block runs."""
    times: list[float] = []
    over = threading.Event()

    def watch() -> None:
        with httpx2.Client(base_url=live.url, timeout=PATIENCE) as client:
            while not over.wait(0.02):
                begun = time.perf_counter()
                assert client.get("/healthz").status_code == 200
                times.append(time.perf_counter() - begun)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield times
    finally:
        over.set()
        watcher.join()


def test_hostile_bytes_get_a_4xx_and_health_stays_quick(live):
    slow = [socket.create_connection(("127.0.0.1", live.port), PATIENCE) for _ in range(40)]
    begun = time.monotonic()
    with watched_health(live) as times:
        for place, line in enumerate(slow):  # a head, or a body, that never ends
            line.sendall(b"GET /readyz HTTP/1.1\r\nx: " if place % 2 else post(b"{", length=50))
        for name, (make, wanted) in HOSTILE.items():
            status, told = send(live, make())
            assert status == wanted, (name, status, told[:200])
            assert b"Traceback" not in told, name
            assert len(told) < 400, name
        while time.monotonic() - begun < limits.HEAD_SECONDS - 1:
            for line in slow[1::2]:
                line.sendall(b"x")
            time.sleep(0.5)
        answers = [read_answer(line) for line in slow]
    for line in slow:
        line.close()
    assert {status for status, _ in answers} == {408}
    assert {json.loads(told)["error"].split()[1] for _, told in answers} == {"body", "headers"}
    assert len(times) > 20
    # The promise is for a machine of its own: of one that is busy, all but the worst.
    assert sorted(times)[int(0.9 * len(times))] < 0.1
    assert send(live, post(b'{"user": 1}'))[0] == 200


def test_two_hundred_generated_requests_and_no_failure(live):
    """schemathesis makes requests of the OpenAPI; tests/system/faults has two thousand."""
    statuses = fuzz(live, 200)
    assert sum(statuses.values()) >= 200
    assert min(statuses[status] for status in (200, 404, 422)) >= 5
    assert httpx2.get(f"{live.url}/readyz", timeout=PATIENCE).status_code == 200


def test_a_key_opens_and_nothing_is_given_away(runs, tmp_path):
    """Every route of the OpenAPI; no path, key, id or trace in answers or in what is said."""
    folder = tmp_path / "run"
    put(runs["mf"], folder)
    with (
        Live(folder, LLPAUC_API_KEY=KEY) as live,
        httpx2.Client(base_url=live.url, timeout=PATIENCE) as client,
    ):
        said = live.greeting
        good = {"x-api-key": KEY}
        paths = client.get("/openapi.json", headers=good).json()["paths"]
        answers = []
        for path, methods in {**paths, "/openapi.json": ["get"], "/no": ["get"]}.items():
            for method in methods:
                for headers in ({}, {"x-api-key": KEY[:-1]}, {"x-api-key": KEY + "k"}):
                    answers.append(client.request(method, path, headers=headers))
                    is_open = path in ("/healthz", "/readyz")
                    assert answers[-1].status_code == (200 if is_open else 401), path
                asked = path.replace("{id}", "secret-user")
                body = {"user": "secret-user"} if method == "post" else None
                answers.append(client.request(method, asked, headers=good, json=body))
                assert answers[-1].status_code < 500
        (folder / "tensors.safetensors").write_bytes(b"broken")
        (folder / "manifest.json").write_text((folder / "manifest.json").read_text() + " ")
        for body in ({}, {"folder": str(runs["other"])}, {"run": "/etc"}):
            answers.append(client.post("/reload", headers=good, json=body))
            assert answers[-1].status_code == 409
        answers.append(client.post(f"/reload?folder={runs['other']}", headers=good))
        assert answers[-1].status_code == 409
        assert client.get("/readyz").json()["run"] == run_id(runs["mf"])
        live.process.send_signal(signal.SIGHUP)
        said += live.process.stderr.readline()
        said += live.stop()
    assert "reload refused" in said
    given = "".join(answer.text + str(answer.headers) for answer in answers)
    for secret in (KEY, str(tmp_path), str(Path.home()), "site-packages", "Traceback"):
        assert secret not in given
        assert secret not in said
    assert "secret-user" not in said


def test_docs_then_sighup_then_sigterm(runs, tmp_path):
    """One server: the requests of the docs, a reload, and requests under way at its end."""
    folder = tmp_path / "run"
    put(runs["films"], folder)
    with Live(folder) as live:
        assert run_id(folder) in live.greeting
        ask_as_the_docs_do(live, run_id(folder))
        put(runs["other"], folder)
        live.process.send_signal(signal.SIGHUP)
        assert f"now serving run {run_id(folder)}" in live.process.stderr.readline()
        # Requests are half sent when the server is told to stop: they are answered, whole.
        lines = [socket.create_connection(("127.0.0.1", live.port), PATIENCE) for _ in range(8)]
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
        assert {json.loads(told)["run"] for _, told in answers} == {run_id(runs["other"])}
        assert live.process.wait(PATIENCE) == -signal.SIGTERM
        assert live.process.stderr.read() == ""


def ask_as_the_docs_do(live: Live, run: str) -> None:
    """Word for word, but for the port: 8000 may be in use."""
    asked = re.findall(r"^curl .*$", DOCS.read_text(), re.MULTILINE)
    assert any("/recommend" in command for command in asked)
    for command in asked:
        there = command.replace("localhost:8000", f"localhost:{live.port}")
        told = json.loads(subprocess.check_output(["bash", "-c", there], timeout=PATIENCE))
        assert told["run"] == run, told
