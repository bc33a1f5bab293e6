"""`llpauc serve` under wrk against the bare work: one user's scores, seen items out, the best 20.

100,000 items, 64 dimensions, known users at random, one wrk thread on the same machine, so that it
uses a part of the two cores too (which is reported). Bare is NumPy with one BLAS thread, in the
benchmark's process: a user at a time (`V @ u`, `argpartition`), and 32 at a time (one product).
The rounds alternate; each ratio is the median over rounds of served / bare of the same round. CPU
is what the server's process uses per request, as counted by the kernel; wall is one over requests
per second.

The last entry is the 99th percentile of 8 clients while the run is replaced 20 times, against the
same clients before and after.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from llpauc.data.ids import IdMap
from llpauc.data.interactions import Interactions
from llpauc.models import MF
from llpauc.models.fold_in import HistoryMap
from llpauc.recommend import Recommender
from llpauc.recommend.fitted import Fitted

K, WIDTH, USERS, SEEN, TOGETHER = 20, 64, 2000, 50, 32
RELOADS = 20
WRK_SCRIPT = """
math.randomseed(%d)
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
request = function()
  return wrk.format(nil, "/recommend", nil, '{"user":"u' .. math.random(0, %d) .. '","k":%d}')
end
"""


def make_run(folder: Path, n_items: int, seed: int) -> Recommender:
    rng = np.random.default_rng(seed)
    users = np.repeat(np.arange(USERS), SEEN)
    items = np.concatenate([rng.choice(n_items, SEEN, replace=False) for _ in range(USERS)])
    ids = [IdMap.of([f"{kind}{i}" for i in range(n)]) for kind, n in (("u", USERS), ("i", n_items))]
    data = Interactions(users, items, *ids)
    user_vectors, item_vectors = (
        rng.standard_normal((n, WIDTH), dtype=np.float32) for n in (USERS, n_items)
    )
    recommender = Recommender(dimensions=WIDTH)
    by_items = HistoryMap(item_vectors.copy(), np.zeros(WIDTH, np.float32), item_vectors)
    fallback = item_vectors @ user_vectors.mean(axis=0)
    model = MF.from_vectors(user_vectors, item_vectors, by_items, fallback)
    recommender.fitted = Fitted.of(model, data)
    recommender.fitted_params = recommender.get_params()
    recommender.save(folder)
    return recommender


class Bare:
    """The work itself, in this process."""

    def __init__(self, recommender: Recommender) -> None:
        fitted = recommender.fitted
        self.user_vectors = fitted.scorer.user_vectors
        self.item_vectors = np.ascontiguousarray(fitted.scorer.item_vectors)
        self.columns = np.ascontiguousarray(self.item_vectors.T)
        starts, columns = fitted.histories.indptr, fitted.histories.indices
        self.seen = [columns[starts[u] : starts[u + 1]] for u in range(USERS)]
        self.block = np.empty((TOGETHER, len(self.item_vectors)), np.float32)

    def one(self, user: int) -> np.ndarray:
        scores = self.item_vectors @ self.user_vectors[user]
        scores[self.seen[user]] = -np.inf
        best = np.argpartition(scores, -K)[-K:]
        return best[np.argsort(-scores[best])]

    def together(self, users: np.ndarray) -> np.ndarray:
        scores = np.matmul(self.user_vectors[users], self.columns, out=self.block[: len(users)])
        for row, user in zip(scores, users, strict=True):
            row[self.seen[user]] = -np.inf
        best = np.argpartition(scores, -K, axis=1)[:, -K:]
        order = np.argsort(-np.take_along_axis(scores, best, 1), axis=1)
        return np.take_along_axis(best, order, 1)


def timed(work: Callable[[], object], requests: int) -> dict[str, float]:
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return {"cpu": cpu / requests, "wall": wall / requests}


class Server:
    """`llpauc serve` on a free port."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "llpauc", "serve", str(folder), "--port", "0"]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        greeting = self.process.stderr.readline()
        self.url = greeting.split(" on ")[1].split(";")[0]

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.terminate()
        self.process.wait(60)

    def cpu(self) -> float:
        """Seconds of all of its threads, user and kernel."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(") ")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def post(self, path: str, body: object = None) -> dict[str, object]:
        data = b"" if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(self.url + path, data, headers, method="POST")
        with urllib.request.urlopen(request, timeout=60) as response:
            answer: dict[str, object] = json.load(response)
        return answer


def load(server: Server, connections: int, seconds: float, script: Path) -> dict[str, float]:
    """Measurements of wrk with `connections` clients that send requests without pause."""
    command = [
        "wrk",
        "-t1",
        f"-c{connections}",
        f"-d{seconds:g}s",
        "--latency",
        "--timeout",
        "30s",
        "-s",
        str(script),
        server.url,
    ]
    before, wrk_before = server.cpu(), resource.getrusage(resource.RUSAGE_CHILDREN)
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    spent, after = server.cpu() - before, resource.getrusage(resource.RUSAGE_CHILDREN)
    lines = [line.split() for line in output.splitlines() if line.strip()]
    failed = [line for line in output.splitlines() if "Non-2xx" in line or "Socket errors" in line]
    if failed:
        raise RuntimeError(f"requests failed: {failed}")
    requests = next(int(line[0]) for line in lines if line[1:3] == ["requests", "in"])
    measured = {line[0]: line[1] for line in lines if len(line) == 2}
    rate = float(measured["Requests/sec:"])
    wrk = after.ru_utime + after.ru_stime - wrk_before.ru_utime - wrk_before.ru_stime
    return {
        "requests/s": rate,
        "wall": 1 / rate,
        "cpu": spent / requests,
        "wrk": wrk / requests,
        "p50 ms": milliseconds(measured["50%"]),
        "p99 ms": milliseconds(measured["99%"]),
    }


def milliseconds(text: str) -> float:
    """The units of wrk.

    >>> milliseconds("812.00us"), milliseconds("1.5ms"), milliseconds("2.00s")
    (0.812, 1.5, 2000.0)
    """
    for unit, factor in (("us", 1e-3), ("ms", 1.0), ("s", 1e3)):
        if text.endswith(unit):
            return float(text.removesuffix(unit)) * factor
    raise ValueError(text)


def check(server: Server, bare: Bare) -> None:
    """Both return the same items, one by one and together."""
    users = np.arange(TOGETHER)
    answer = server.post("/recommend", {"users": [f"u{u}" for u in users], "k": K})["lists"]
    lists = [[int(entry["item"][1:]) for entry in entries["items"]] for entries in answer]
    assert lists == [bare.one(u).tolist() for u in users]
    assert lists == bare.together(users).tolist()


def run(quick: bool) -> dict[str, dict[str, object]]:
    if shutil.which("wrk") is None:
        print("  skipped: wrk is not installed (apt-get install wrk)")
        return {}
    n_items, rounds, seconds = (20_000, 2, 1.0) if quick else (100_000, 5, 3.0)
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        bare = Bare(make_run(root / "run", n_items, 0))
        script = root / "ask.lua"
        script.write_text(WRK_SCRIPT % (1, USERS - 1, K))
        with Server(root / "run") as server, threadpool_limits(1, user_api="blas"):
            check(server, bare)
            results = compare(server, bare, script, rounds, seconds)
            make_run(root / "other", n_items, 1)
            results |= reloads(server, root, script, 5.0 if quick else 20.0)
    return results


def compare(
    server: Server, bare: Bare, script: Path, rounds: int, seconds: float
) -> dict[str, dict[str, object]]:
    rng = np.random.default_rng(0)
    turns: dict[object, list[dict[str, float]]] = {}
    for turn in range(rounds + 1):
        users = rng.integers(0, USERS, 10 * TOGETHER)
        measured: dict[object, dict[str, float]] = {
            "one": timed(lambda users=users: [bare.one(u) for u in users], len(users)),
            "together": timed(
                lambda users=users: [bare.together(u) for u in users.reshape(-1, TOGETHER)],
                len(users),
            ),
        }
        measured |= {c: load(server, c, seconds, script) for c in (1, 8, 64)}
        if turn:  # the first is a warm-up
            for name, values in measured.items():
                turns.setdefault(name, []).append(values)

    def middle(name: object, field: str) -> float:
        return statistics.median(values[field] for values in turns[name])

    def ratio(connections: int, field: str, rival: str) -> float:
        pairs = zip(turns[connections], turns[rival], strict=True)
        return statistics.median(served[field] / bare[field] for served, bare in pairs)

    results: dict[str, dict[str, object]] = {}
    for c in (1, 8, 64):
        details = {field: middle(c, field) for field in ("requests/s", "p50 ms", "p99 ms")}
        for kind, unit in (("cpu", "CPU ms"), ("wall", "wall ms")):
            results[f"serve_{kind}_{c}_connections"] = {
                "ratio": ratio(c, kind, "one"),
                "goal": 1.5,
                "smaller is better": True,
                f"{unit} a request": 1e3 * middle(c, kind),
                f"bare {unit}, one at a time": 1e3 * middle("one", kind),
                f"bare {unit}, {TOGETHER} together": 1e3 * middle("together", kind),
                "ratio to bare together": ratio(c, kind, "together"),
                **(details if kind == "wall" else {"wrk's CPU ms": 1e3 * middle(c, "wrk")}),
            }
    return results


def reloads(
    server: Server, root: Path, script: Path, seconds: float
) -> dict[str, dict[str, object]]:
    """8 clients before, while and after two runs replace each other in the folder."""
    before = load(server, 8, 5, script)["p99 ms"]
    done, times, clients = 0, [], {}
    clients_thread = threading.Thread(
        target=lambda: clients.update(load(server, 8, seconds, script)), daemon=True
    )
    clients_thread.start()
    started = time.perf_counter()
    while done < RELOADS and clients_thread.is_alive():
        time.sleep(max(0.0, 0.5 + done * (seconds - 1) / RELOADS - (time.perf_counter() - started)))
        for name, other in (("run", "spare"), ("other", "run"), ("spare", "other")):
            os.rename(root / name, root / other)
        sent = time.perf_counter()
        assert server.post("/reload")["changed"] is True
        times.append(time.perf_counter() - sent)
        done += 1
    clients_thread.join()
    quiet = statistics.mean([before, load(server, 8, 5, script)["p99 ms"]])
    return {
        "serve_p99_under_reloads": {
            "ratio": clients["p99 ms"] / quiet,
            "goal": 2.0,
            "smaller is better": True,
            "p99 ms": clients["p99 ms"],
            "quiet p99 ms": quiet,
            "reloads": done,
            "seconds a reload": statistics.median(times),
            "requests/s": clients["requests/s"],
            "failed requests": 0,
        }
    }


if __name__ == "__main__":
    json.dump(run("--quick" in sys.argv), sys.stdout, indent=2)
