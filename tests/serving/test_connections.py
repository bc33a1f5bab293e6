"""Connections that cost the server memory, descriptors or log lines."""

from __future__ import annotations

import json
import socket
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx2
import pytest

from llpauc.serving.limits import MAX_K, MAX_USERS
from tests.datasets import taste_split
from tests.server import TIMEOUT, Live, post_bytes, read_response, trained

ITEMS = 1000


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """600 users and 1,000 items, so that an answer with many lists has megabytes."""
    data = taste_split(n_users=600, n_items=ITEMS).train
    return trained(data=data).save(tmp_path_factory.mktemp("connections") / "run")


def connect(live: Live, stack: ExitStack) -> socket.socket:
    return stack.enter_context(socket.create_connection(("127.0.0.1", live.port), TIMEOUT))


def resident_megabytes(live: Live, field: str = "VmRSS") -> float:
    for line in Path(f"/proc/{live.process.pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1024
    raise AssertionError(field)


def check_healthy(live: Live, attempts: int = 3) -> None:
    """New connections are answered soon. Each may be closed by a race with hostile ones."""
    for attempt in range(attempts):
        with suppress(httpx2.HTTPError):
            started = time.monotonic()
            assert httpx2.get(f"{live.url}/healthz", timeout=5).status_code == 200
            assert time.monotonic() - started < 5
            return
        time.sleep(0.1 * attempt)
    raise AssertionError("no answer to a health check")


def test_connection_limit_keeps_server_healthy_and_log_short(run):
    """200 silent connections and 128 file descriptors."""
    with Live(run, prefix=("prlimit", "--nofile=128:128")) as live, ExitStack() as stack:
        until = time.monotonic() + 6
        for _ in range(200):
            connect(live, stack)
        while time.monotonic() < until:
            check_healthy(live)
            time.sleep(0.2)
        messages = live.stop()
    assert len(messages.splitlines()) <= 5, messages[:1000]
    assert "Traceback" not in messages


def test_connection_limit_closes_the_longest_waiting_connection(run):
    """Also where all connections have sent a part of a request."""
    with Live(run, prefix=("prlimit", "--nofile=128:128")) as live, ExitStack() as stack:
        head = b"POST /recommend HTTP/1.1\r\nhost: localhost\r\ncontent-length: 50\r\n\r\n"
        lines = [connect(live, stack) for _ in range(64)]
        for line in lines:
            line.sendall(head)
        time.sleep(0.5)
        check_healthy(live)
        lines[0].settimeout(5)
        with suppress(ConnectionResetError):
            assert lines[0].recv(100) == b""
        lines[-1].settimeout(0.5)
        with pytest.raises(TimeoutError):
            lines[-1].recv(100)


def test_log_of_invalid_requests_is_short(run):
    with Live(run) as live:
        for _ in range(300):
            with socket.create_connection(("127.0.0.1", live.port), TIMEOUT) as line:
                line.sendall(b"nonsense\r\n\r\n")
                assert line.recv(12) == b"HTTP/1.1 400"
        upgrade = {"connection": "upgrade", "upgrade": "websocket"}
        for _ in range(100):
            assert httpx2.get(f"{live.url}/healthz", headers=upgrade).status_code == 200
        messages = live.stop()
    assert len(messages.splitlines()) <= 10, messages[:1000]


def test_unread_answers_are_limited_in_memory_and_time(run):
    """40 clients send requests for megabytes and never read."""
    request = post_bytes(json.dumps({"users": ["u1"] * MAX_USERS, "k": MAX_K}).encode())
    with Live(run) as live, ExitStack() as stack:
        line = connect(live, stack)
        line.sendall(request)
        with line.makefile("rb") as answers:
            megabytes = len(read_response(answers)[1]) / 2**20
        assert megabytes > 8
        before = resident_megabytes(live)
        lines = [connect(live, stack) for _ in range(40)]
        for line in lines:
            line.sendall(request * 3)  # the second while the first is not read
        until = time.monotonic() + TIMEOUT
        while client_count(live) and time.monotonic() < until:
            check_healthy(live)
            time.sleep(0.3)
        assert client_count(live) == 0
        peak = resident_megabytes(live, "VmHWM") - before
        check_healthy(live)
    # One answer per client would be 40 times its size, and one more is being made.
    assert peak < 60 * megabytes


def client_count(live: Live) -> int:
    """Connections that the server holds open, apart from the listening socket."""
    port, count = f":{live.port:04X}", 0
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, _, state, _ = line.split()[:5]
        count += local.endswith(port) and state == "01"
    return count


def test_slow_reader_receives_the_whole_answer(run):
    """An answer of megabytes that is read slowly, but steadily, is complete."""
    request = post_bytes(json.dumps({"users": ["u1"] * 100, "k": MAX_K}).encode())
    with Live(run) as live, ExitStack() as stack:
        line = stack.enter_context(socket.socket())
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        line.settimeout(TIMEOUT)
        line.connect(("127.0.0.1", live.port))
        line.sendall(request * 2)
        with line.makefile("rb") as answers:
            for _ in range(2):
                time.sleep(1)
                status, body = read_response(answers)
                assert status == 200
                assert len(json.loads(body)["lists"]) == 100


@pytest.mark.parametrize(
    "endless",
    [b"x-a: y\r\n" * 1000, b"x" * 10_000],
    ids=["many trailers", "one long trailer"],
)
@pytest.mark.parametrize("path", ["/recommend", "/healthz"])
def test_endless_trailers_are_refused(run, live, endless, path):
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    start = head.encode() + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
    before = resident_megabytes(live)
    with socket.create_connection(("127.0.0.1", live.port), TIMEOUT) as line:
        line.sendall(start)
        sent, until = 0, time.monotonic() + 3
        with suppress(ConnectionError):
            while time.monotonic() < until:
                line.sendall(endless)
                sent += len(endless)
            raise AssertionError(f"the server accepted {sent:,} bytes")
    assert sent < 20_000_000
    assert resident_megabytes(live) - before < 20
    check_healthy(live)


@pytest.fixture(scope="module")
def live(run):
    with Live(run) as live:
        yield live


def test_many_small_chunks_are_accepted(live):
    """A body of 60,000 bytes in chunks of 100."""
    body = json.dumps({"items": [], "deny": [f"i{i % ITEMS}" for i in range(7000)]}).encode()
    pieces = (body[n : n + 100] for n in range(0, len(body), 100))
    headers = {"content-type": "application/json"}
    answer = httpx2.post(f"{live.url}/recommend", content=pieces, headers=headers, timeout=TIMEOUT)
    assert answer.status_code == 200


def test_pipelined_requests_are_answered_in_order(live):
    bodies = [json.dumps({"user": f"u{u}", "k": 3}).encode() for u in range(20)]
    stream = b"".join(map(post_bytes, bodies))
    with socket.create_connection(("127.0.0.1", live.port), TIMEOUT) as line:
        threading.Thread(target=line.sendall, args=(stream,)).start()
        with line.makefile("rb") as answers:
            for user in range(20):
                status, body = read_response(answers)
                assert status == 200
                (entry,) = json.loads(body)["lists"]
                assert entry["user"] == f"u{user}"
