"""`llpauc serve`: answers equal the facade's, reloads fail nobody, errors are lines."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import numpy as np
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from prometheus_client.parser import text_string_to_metric_families
from schemathesis import checks
from schemathesis.specs.openapi import checks as openapi_checks
from starlette.testclient import TestClient

from llpauc.cli import main
from llpauc.errors import InputError
from llpauc.interactions import Interactions
from llpauc.recommend import Recommender
from llpauc.serving import app as app_module
from llpauc.serving import limits
from llpauc.serving.app import Serving, make_app
from llpauc.serving.batching import Batcher
from llpauc.serving.limits import MOST_BYTES, MOST_ITEMS, MOST_K, MOST_USERS
from llpauc.serving.metrics import Metrics
from llpauc.serving.served import Served, Wish, load_served, rank_wishes, run_id
from llpauc.serving.server import listen, read_key
from tests.data import taste_split

KEY = "k" * 20
PATIENCE = 120  # seconds, for a machine with much else to do
JSON = {"content-type": "application/json"}
CHECKS = [
    checks.not_a_server_error,
    openapi_checks.status_code_conformance,
    openapi_checks.content_type_conformance,
    openapi_checks.response_schema_conformance,
]
MODELS = ("mf", "itemsum", "popularity", "itemknn", "ease")


def trained(model: str = "mf", seed: int = 0) -> Recommender:
    if model in ("mf", "itemsum"):
        own = {"epochs": 2, "dimensions": 8, "hold_out": 0, "seed": seed}
        return Recommender(model=model, **own).fit(taste_split().train)
    return Recommender(model=model).fit(taste_split().train)


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Path]:
    """A run folder of each model, and a second mf."""
    root = tmp_path_factory.mktemp("runs")
    made = {model: trained(model).save(root / model) for model in MODELS}
    return made | {"other": trained(seed=1).save(root / "other")}


def client_of(folder: Path, key: str | None = None, log=print) -> TestClient:
    serving = Serving(folder, load_served(folder), log)
    return TestClient(make_app(serving, key), base_url="http://127.0.0.1")


@pytest.fixture(scope="module")
def client(runs):
    with client_of(runs["mf"]) as client:
        yield client


def pairs(entries) -> list[tuple[str, float]]:
    return [(entry["item"], entry["score"]) for entry in entries]


def expected(ids, scores) -> list[tuple[str, float]]:
    return [
        (item, score)
        for item, score in zip(ids.tolist(), scores.tolist(), strict=True)
        if item is not None
    ]


# --- answers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
def test_answers_are_those_of_the_facade_bit_for_bit(runs, model):
    facade = Recommender.load(runs[model])
    with client_of(runs[model]) as client:
        for seen in (True, False):
            ids, scores = facade.recommend(["u1", "u2"], 7, exclude_seen=seen)
            asked = {"users": ["u1", "u2"], "k": 7, "exclude_seen": seen}
            answer = client.post("/recommend", json=asked).json()
            for place, told in enumerate(answer["lists"]):
                assert told["user"] == ["u1", "u2"][place]
                assert pairs(told["items"]) == expected(ids[place], scores[place])
            (alone,) = client.post(
                "/recommend", json={"user": "u1", "k": 7, "exclude_seen": seen}
            ).json()["lists"]
            assert alone == answer["lists"][0]
        for items in (["i3", "i5", "i3"], []):
            (told,) = client.post("/recommend", json={"items": items, "k": 6}).json()["lists"]
            assert told["user"] is None
            assert pairs(told["items"]) == expected(*facade.fold_in(items, 6))
        told = client.post("/similar-items", json={"item": "i3", "k": 6}).json()
        assert pairs(told["items"]) == expected(*facade.similar_items("i3", 6))
        assert told["run"] == answer["run"] == run_id(runs[model])


def test_allow_and_deny_cut_the_full_list_and_nothing_else(runs):
    facade = Recommender.load(runs["mf"])
    n_items = len(facade.fitted.item_ids)
    everything = expected(*(column[0] for column in facade.recommend(["u4"], n_items)))
    allow, deny = [f"i{i}" for i in range(30)], ["i2", "i7", "i28"]
    with client_of(runs["mf"]) as client:
        for lists in ({"allow": allow}, {"deny": deny}, {"allow": allow, "deny": deny}):
            (told,) = client.post("/recommend", json={"user": "u4", "k": 5, **lists}).json()[
                "lists"
            ]
            kept = [
                (item, score)
                for item, score in everything
                if item in lists.get("allow", [item]) and item not in lists.get("deny", [])
            ]
            assert pairs(told["items"]) == kept[:5]
        (told,) = client.post("/recommend", json={"user": "u4", "allow": []}).json()["lists"]
        assert told["items"] == []


def test_a_list_ends_where_the_items_do(client):
    (told,) = client.post("/recommend", json={"user": "u1", "k": MOST_K}).json()["lists"]
    has = client.get("/users/u1").json()["items"]
    assert len(told["items"]) + len(has) == 40
    assert not {entry["item"] for entry in told["items"]} & set(has)


def test_history_in_the_ids_it_came_with(tmp_path):
    """Slashes, line breaks, question marks and whole numbers come back as they went in."""
    odd = ["a/b\nc", "x?y#z%", "ø 1", "007"]
    data = Interactions.of([*odd, odd[0]], [1, 2, 3, 4, 2**40])
    folder = Recommender(model="popularity").fit(data).save(tmp_path / "run")
    with client_of(folder) as client:
        for user, items in zip(odd, ([1, 2**40], [2], [3], [4]), strict=True):
            answer = client.get("/users/" + "".join(f"%{b:02x}" for b in user.encode()))
            assert answer.json() == {"run": run_id(folder), "user": user, "items": items}
        told = client.post("/similar-items", json={"item": "3"}).json()
        assert told["item"] == 3
        assert {type(entry["item"]) for entry in told["items"]} == {int}


# --- bad input ----------------------------------------------------------------------------------

BAD_REQUESTS = [
    ("/recommend", {"user": "nobody"}, 404, "unknown user: 'nobody'"),
    ("/recommend", {"users": ["u1", "nobody", 7]}, 404, "unknown user: 'nobody', 7"),
    ("/recommend", {"items": ["i1", "nothing"]}, 404, "unknown item: 'nothing'"),
    ("/recommend", {"user": "u1", "allow": ["nothing"]}, 404, "unknown item: 'nothing'"),
    ("/recommend", {"user": "u1", "deny": ["n" * 10_000]}, 404, "unknown item: 'nnn"),
    ("/recommend", {"user": "u1", "k": 0}, 422, "k: should be greater than or equal to 1"),
    ("/recommend", {"user": "u1", "k": 10**9}, 422, f"or equal to {MOST_K}"),
    ("/recommend", {"user": "u1", "k": -1}, 422, "k: "),
    ("/recommend", {"user": "u1", "k": 2.5}, 422, "k: should be a valid integer"),
    ("/recommend", {"user": "u1", "k": "5"}, 422, "k: should be a valid integer"),
    ("/recommend", {"user": "u1", "k": None}, 422, "k: "),
    ("/recommend", {"user": "u1", "exclude_seen": 1}, 422, "exclude_seen: "),
    ("/recommend", {"user": 1.5}, 422, "user: should be text or a whole number"),
    ("/recommend", {"user": True}, 422, "user: should be text or a whole number"),
    ("/recommend", {"user": ""}, 422, "user: "),
    ("/recommend", {"users": ["u1", {}]}, 422, "users.1: should be text or a whole number"),
    ("/recommend", {"users": "u1"}, 422, "users: should be a valid list"),
    ("/recommend", {"users": []}, 422, "users: "),
    ("/recommend", {"users": ["u1"] * (MOST_USERS + 1)}, 422, f"at most {MOST_USERS}"),
    ("/recommend", {"items": ["i1"] * (MOST_ITEMS + 1)}, 422, f"at most {MOST_ITEMS}"),
    ("/recommend", {"user": "u1", "top": 3}, 422, "top: "),
    ("/recommend", {"user": "u1", "items": ["i1"]}, 422, "give one of user, users"),
    ("/recommend", {}, 422, "give one of user, users"),
    ("/recommend", [], 422, "a JSON object is wanted"),
    ("/recommend", None, 422, "a JSON object is wanted"),
    ("/similar-items", {"item": "nothing"}, 404, "unknown item: 'nothing'"),
    ("/similar-items", {}, 422, "item: "),
]


@pytest.mark.parametrize(("path", "body", "status", "said"), BAD_REQUESTS)
def test_bad_requests_are_told_in_a_line(client, path, body, status, said):
    check_refused(client.post(path, json=body), status, said)


def check_refused(answer, status: int, said: str) -> None:
    assert answer.status_code == status, answer.text
    told = answer.json()
    assert list(told) == ["error"]
    assert said in told["error"]
    assert len(told["error"]) < 310
    assert "\n" not in told["error"]
    assert "Traceback" not in answer.text


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b'{"user": ', 400, "the body is no JSON"),
        (b"\xff\xfe\x00", 400, "the body is no JSON"),
        (b"[" * 100_000, 400, "the body is no JSON"),
        (b'{"user": ' + b"9" * 5000 + b"}", 400, "the body is no JSON"),
        (b'{"user": NaN}', 422, "user: "),
        (b'{"user": "u1", "k": Infinity}', 422, "k: "),
        (b'{"user": "\\ud800"}', 422, "user: "),
        (b'{"user": "\\u0000"}', 404, "unknown user"),
        (b"", 422, "a JSON object is wanted"),
    ],
)
def test_broken_bodies(client, body, status, said):
    check_refused(client.post("/recommend", content=body, headers=JSON), status, said)


def test_other_paths_methods_and_content_types(client):
    check_refused(client.get("/nowhere"), 404, "Not Found")
    check_refused(client.get("/users/nobody"), 404, "unknown user: 'nobody'")
    check_refused(client.get("/users/%FF%FE"), 404, "unknown user")
    check_refused(client.get("/recommend"), 405, "Method Not Allowed")
    plain = client.post("/recommend", content=b'{"user": "u1"}', headers={"content-type": "a/b"})
    check_refused(plain, 422, "Content-Type: application/json")


def test_a_long_body_is_refused_before_it_is_read(runs):
    """100 MB are promised; not a byte of them is asked for."""
    app = make_app(Serving(runs["mf"], load_served(runs["mf"]), print), None)
    asked, sent = [], []

    async def receive():
        asked.append(1)
        return {"type": "http.request", "body": b"x" * 65536, "more_body": True}

    async def send(message):
        sent.append(message)

    def post(headers):
        asked.clear()
        sent.clear()
        scope = {"type": "http", "method": "POST", "path": "/recommend", "query_string": b"",
                 "headers": [(b"host", b"localhost"), *headers]}  # fmt: skip
        asyncio.run(app(scope, receive, send))
        assert sent[0]["status"] == 413
        assert (b"connection", b"close") in sent[0]["headers"]
        assert str(MOST_BYTES) in json.loads(sent[1]["body"])["error"]

    post([(b"content-length", b"100000000")])
    assert not asked
    post([])  # in pieces, of a length that nobody has told
    assert len(asked) == MOST_BYTES // 65536 + 1


def test_a_body_that_does_not_arrive(runs, monkeypatch):
    monkeypatch.setattr(limits, "BODY_SECONDS", 0.05)
    app = make_app(Serving(runs["mf"], load_served(runs["mf"]), print), None)
    sent = []

    async def receive():
        await asyncio.sleep(60)

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/recommend", "query_string": b"",
             "headers": [(b"host", b"localhost"), (b"content-length", b"5")]}  # fmt: skip
    asyncio.run(asyncio.wait_for(app(scope, receive, send), 20))
    assert sent[0]["status"] == 408


def test_too_many_at_once(runs, monkeypatch):
    with client_of(runs["mf"]) as client:
        monkeypatch.setattr(limits, "MOST_UNDER_WAY", 0)
        check_refused(client.post("/recommend", json={"user": "u1"}), 429, "try again")
        assert client.get("/healthz").status_code == 200


def test_a_bug_of_ours_is_a_line_too(runs, monkeypatch):
    told = []
    monkeypatch.setattr(app_module, "_wishes", lambda *_: 1 / 0)
    with client_of(runs["mf"], log=told.append) as client:
        check_refused(client.post("/recommend", json={"user": "u1"}), 500, "the server failed")
        assert client.get("/users/u1").status_code == 200
    (line,) = told
    assert "ZeroDivisionError at test_serving.py:" in line


# --- who may ask --------------------------------------------------------------------------------


def test_every_route_but_health_wants_the_key(runs):
    with client_of(runs["mf"], KEY) as client:
        good = {"x-api-key": KEY}
        paths = client.get("/openapi.json", headers=good).json()["paths"]
        assert set(paths) == {"/recommend", "/similar-items", "/users/{id}", "/reload", "/healthz",
                              "/readyz", "/metrics"}  # fmt: skip
        for path, methods in {
            **paths,
            "/openapi.json": {"get": {}},
            "/nowhere": {"get": {}},
        }.items():
            for method in methods:
                for headers in ({}, {"x-api-key": KEY[1:]}, {"authorization": "Bearer no"}):
                    answer = client.request(method, path, headers=headers)
                    if path in ("/healthz", "/readyz"):
                        assert answer.status_code == 200
                    else:
                        check_refused(answer, 401, "X-API-Key")
                    assert KEY not in answer.text
        for headers in (good, {"authorization": f"Bearer {KEY}"}):
            assert client.get("/users/u1", headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [("127.0.0.1:8000", 200), ("localhost", 200), ("[::1]:80", 200), ("evil.example", 403),
     ("127.0.0.1.evil.example", 403), ("[", 403), ("", 403)],
)  # fmt: skip
def test_without_a_key_only_loopback_names_pass(client, host, status):
    assert client.get("/users/u1", headers={"host": host}).status_code == status


def test_keys_and_addresses(tmp_path, monkeypatch):
    monkeypatch.delenv("LLPAUC_API_KEY", raising=False)
    assert read_key(None) is None
    for host in ("0.0.0.0", "::"):
        with pytest.raises(InputError, match="API key is wanted"):
            listen(host, 0, None)
    with pytest.raises(InputError, match="no address"):
        listen("no such host.invalid", 0, None)
    monkeypatch.setenv("LLPAUC_API_KEY", "short")
    with pytest.raises(InputError, match="LLPAUC_API_KEY: the key has 5 characters"):
        read_key(None)
    monkeypatch.setenv("LLPAUC_API_KEY", KEY)
    assert read_key(None) == KEY
    file = tmp_path / "key"
    for text, said in ((b"", "has 0 char"), (b"k" * 9999, "has 1025"), (b"a b" * 9, "spaces"),
                       ("ø".encode() * 20, "ASCII")):  # fmt: skip
        file.write_bytes(text)
        with pytest.raises(InputError, match=said):
            read_key(str(file))
    file.write_bytes(b"  " + b"f" * 30 + b"\n")
    assert read_key(str(file)) == "f" * 30
    with pytest.raises(InputError, match="cannot be read"):
        read_key(str(tmp_path / "none"))


# --- upkeep -------------------------------------------------------------------------------------


def test_health_readiness_and_metrics(runs):
    with client_of(runs["mf"]) as client:
        assert client.get("/healthz").json() == {"status": "ok"}
        about = {"run": run_id(runs["mf"]), "model": "mf", "users": 60, "items": 40}
        assert client.get("/readyz").json() == about
        for user in ("u1", "u2", "nobody"):
            client.post("/recommend", json={"user": user})
        client.get("/users/u1")
        client.get("/some/where")
        families = {
            family.name: family
            for family in text_string_to_metric_families(client.get("/metrics").text)
        }
    counts = {
        (sample.labels["path"], sample.labels["code"]): sample.value
        for sample in families["llpauc_requests"].samples
    }
    assert counts == {("/healthz", "200"): 1, ("/readyz", "200"): 1, ("/recommend", "200"): 2,
                      ("/recommend", "404"): 1, ("/users/{id}", "200"): 1,
                      ("other", "404"): 1}  # fmt: skip
    assert families["llpauc_run_info"].samples[0].labels == {"run": about["run"], "model": "mf"}
    assert families["llpauc_run_users"].samples[0].value == 60
    lists = {sample.name: sample.value for sample in families["llpauc_batch_lists"].samples}
    assert lists["llpauc_batch_lists_sum"] == 2


def test_histogram_buckets_are_cumulative():
    metrics = Metrics()
    for seconds in (0.001, 0.002, 0.3, 99.0):
        metrics.answered("/a", 200, seconds)
    text = metrics.text({"run": "r", "model": "m", "users": 1, "items": 1})
    (family,) = [f for f in text_string_to_metric_families(text) if f.name.endswith("seconds")]
    buckets = {s.labels["le"]: s.value for s in family.samples if s.name.endswith("bucket")}
    assert [buckets[le] for le in ("0.001", "0.0025", "0.25", "0.5", "5.0", "+Inf")] == [
        1, 2, 2, 3, 3, 4,
    ]  # fmt: skip


def test_a_dead_ranking_task_is_not_ready(runs):
    serving = Serving(runs["mf"], load_served(runs["mf"]), print)
    with TestClient(make_app(serving, None), base_url="http://127.0.0.1") as client:
        serving.batcher._pump.cancel()
        time.sleep(0.05)
        check_refused(client.get("/readyz"), 503, "ranking thread")


# --- batching -----------------------------------------------------------------------------------


def test_requests_that_arrive_together_are_ranked_together_and_get_their_own(runs):
    """Other lengths, filters and models in one batch; each list is what it is alone."""
    one, two = load_served(runs["mf"]), load_served(runs["other"])
    nobody = np.zeros(0, np.int64)
    wishes = [Wish(k=1 + u % 9, user=u, exclude_seen=u % 2 == 0) for u in range(30)]
    wishes += [Wish(k=4, has=np.array([3, 5])), Wish(k=3, has=nobody),
               Wish(k=40, user=3, allow=np.array([1, 2, 9])),
               Wish(k=2, user=4, deny=np.array([0]))]  # fmt: skip
    asked = [(served, wish) for wish in wishes for served in (one, two)]
    batches = []

    async def all_at_once():
        batcher = Batcher(batches.append)
        lists = await asyncio.gather(*[batcher.rank(served, [wish]) for served, wish in asked])
        await batcher.close()
        return lists

    for (served, wish), lists in zip(asked, asyncio.run(all_at_once()), strict=True):
        assert lists == rank_wishes(served, [wish])
    assert batches == [len(asked)]


def test_batches_have_an_end_and_one_bad_request_is_alone(runs):
    served = load_served(runs["mf"])
    vectors = served.fitted.scorer.user_vectors.copy()
    sick = dataclasses.replace(served.fitted, scorer=type(served.fitted.scorer)(
        vectors, served.fitted.scorer.item_vectors))  # fmt: skip
    sick.scorer.user_vectors[7] = np.nan
    served = Served(served.run, served.recommender, sick)
    batches = []

    async def ask():
        batcher = Batcher(batches.append)
        people = [Wish(k=2, user=u) for u in range(60)]
        jobs = [batcher.rank(served, [wish]) for wish in people]
        jobs += [batcher.rank(served, people[10:60] * 5), batcher.rank(served, people[:1] * 300)]
        answers = await asyncio.gather(*jobs, return_exceptions=True)
        await batcher.close()
        return answers

    answers = asyncio.run(ask())
    assert [place for place, a in enumerate(answers) if isinstance(a, Exception)] == [7]
    assert isinstance(answers[7], InputError)
    assert [len(a) for a in answers[60:]] == [250, 300]
    assert batches == [60, 250, 300]  # no more than 256, but for one request that is larger


# --- reloading ----------------------------------------------------------------------------------


def put(source: Path, target: Path) -> None:
    """Replace a run as `artifacts.save` does: moved aside, renamed."""
    fresh = target.with_name(".fresh")
    shutil.copytree(source, fresh)
    if target.exists():
        os.rename(target, target.with_name(".old"))
    os.rename(fresh, target)
    shutil.rmtree(target.with_name(".old"), ignore_errors=True)


def test_twenty_reloads_under_eight_clients(runs, tmp_path):
    """No failed request; every answer is that of one run, whichever it says it is."""
    folder = tmp_path / "run"
    put(runs["mf"], folder)
    truth = {}
    for name in ("mf", "other"):
        facade = Recommender.load(runs[name])
        ids, scores = facade.recommend([f"u{u}" for u in range(60)], 5)
        truth[run_id(runs[name])] = [
            list(zip(*row, strict=True)) for row in zip(ids.tolist(), scores.tolist(), strict=True)
        ]
    first, second = truth.values()
    assert all(a != b for a, b in zip(first, second, strict=True))
    done = threading.Event()

    def ask(client, seed: int) -> list[str]:
        rng, seen = np.random.default_rng(seed), []
        for _ in range(3000):
            if done.is_set():
                break
            users = rng.integers(0, 60, 3)
            answer = client.post("/recommend", json={"users": [f"u{u}" for u in users], "k": 5})
            assert answer.status_code == 200, answer.text
            told = answer.json()
            for user, own in zip(users, told["lists"], strict=True):
                assert pairs(own["items"]) == truth[told["run"]][user]
            seen.append(told["run"])
        return seen

    with client_of(folder) as client, ThreadPoolExecutor(8) as pool:
        asking = [pool.submit(ask, client, seed) for seed in range(8)]
        try:
            for turn in range(20):
                name = ("other", "mf")[turn % 2]
                put(runs[name], folder)
                told = client.post("/reload")
                assert told.json()["changed"] is True, told.text
                assert told.json()["run"] == run_id(runs[name])
        finally:
            done.set()
        answered = [run for job in asking for run in job.result()]
    assert set(answered) == set(truth)
    assert len(answered) > 40


def test_a_damaged_run_is_refused_and_the_old_one_answers_on(runs, tmp_path):
    folder = tmp_path / "run"
    put(runs["mf"], folder)
    before = run_id(folder)
    with client_of(folder) as client:
        assert client.post("/reload").json()["changed"] is False

        def damage(name, change):
            put(runs["other"], folder)
            change(folder / name)
            answer = client.post("/reload")
            check_refused(answer, 409, f"run {before} answers on")
            assert name in answer.json()["error"]
            assert str(tmp_path) not in answer.text
            assert client.post("/recommend", json={"user": "u1"}).json()["run"] == before

        damage("tensors.safetensors", Path.unlink)
        damage("users.parquet", lambda path: path.write_bytes(path.read_bytes()[:50]))
        damage("items.parquet", lambda path: path.write_bytes(b"\x80\x04." + path.read_bytes()[3:]))
        damage("manifest.json", lambda path: path.write_text("{"))
        damage("manifest.json", Path.unlink)
        put(runs["other"], folder)
        assert client.post("/reload").json()["changed"] is True


def test_a_run_that_has_diverged_is_not_served(tmp_path):
    recommender = trained()
    recommender.fitted.scorer.user_vectors[3] = np.nan
    with pytest.raises(InputError, match="user_vectors are not all finite"):
        load_served(recommender.save(tmp_path / "run"))


# --- the server as people start it --------------------------------------------------------------


class Live:
    """`llpauc serve` in a process of its own, on a free port of the loopback address."""

    def __init__(self, folder: Path, *words: str, **environment: str) -> None:
        command = [sys.executable, "-m", "llpauc", "serve", str(folder), "--port", "0", *words]
        self.process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}
        )
        self.greeting = self.process.stderr.readline()
        assert "on http://127.0.0.1:" in self.greeting, self.greeting
        self.port = int(self.greeting.split("127.0.0.1:")[1].split(";")[0])
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Live:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)
        self.process.stderr.close()


@pytest.fixture(scope="module")
def live(runs):
    with Live(runs["mf"]) as live:
        yield live


def test_two_hundred_generated_requests_and_no_failure(live):
    """schemathesis makes requests of the OpenAPI, good and bad, and checks answers against it."""
    told = httpx2.get(f"{live.url}/openapi.json", timeout=PATIENCE).json()
    schema = schemathesis.openapi.from_dict(told)
    operations = [found.ok() for found in schema.get_all_operations()]
    statuses = [status for operation in operations for status in fuzz(operation, live.url)]
    assert httpx2.get(f"{live.url}/readyz", timeout=PATIENCE).status_code == 200
    assert len(operations) == 7
    assert len(statuses) >= 200
    assert {200, 404, 422} <= set(statuses)


def fuzz(operation, url: str) -> list[int]:
    """The statuses of requests made for one operation; a failed check raises."""
    modes = [schemathesis.GenerationMode.POSITIVE]
    if operation.body:  # any text may be an id: in a path there is nothing to get wrong
        modes.append(schemathesis.GenerationMode.NEGATIVE)
    takes_nothing = operation.path in ("/reload", "/healthz", "/readyz", "/metrics")
    statuses: list[int] = []

    def send(case) -> None:
        answer = case.call(base_url=url, timeout=PATIENCE)
        statuses.append(answer.status_code)
        case.validate_response(answer, checks=CHECKS)

    for mode in modes:
        cases = operation.as_strategy(generation_mode=mode)
        run = settings(max_examples=5 if takes_nothing else 45, deadline=None, derandomize=True,
                       database=None, suppress_health_check=list(HealthCheck))  # fmt: skip
        run(given(case=cases)(send))()
    return statuses


def test_sighup_reloads_and_sigterm_answers_first(runs, tmp_path):
    folder = tmp_path / "run"
    put(runs["mf"], folder)
    with Live(folder) as live, httpx2.Client(base_url=live.url, timeout=PATIENCE) as client:
        assert run_id(folder) in live.greeting
        assert "server" not in client.get("/healthz").headers
        put(runs["other"], folder)
        live.process.send_signal(signal.SIGHUP)
        assert f"now serving run {run_id(folder)}" in live.process.stderr.readline()
        (folder / "meta.json").write_text("{}")
        (folder / "manifest.json").write_text((folder / "manifest.json").read_text() + " ")
        live.process.send_signal(signal.SIGHUP)
        refused = live.process.stderr.readline()
        assert "reload refused: meta.json" in refused
        assert str(tmp_path) not in refused
        # A request is half sent when the server is told to stop: it is answered, whole.
        body = b'{"user": "u1"}'
        with socket.create_connection(("127.0.0.1", live.port), PATIENCE) as line:
            line.sendall(b"POST /recommend HTTP/1.1\r\nhost: localhost\r\ncontent-length: "
                         b"%d\r\ncontent-type: application/json\r\n\r\n" % len(body)
                         + body[:5])  # fmt: skip
            time.sleep(0.5)
            live.process.send_signal(signal.SIGTERM)
            time.sleep(0.5)
            line.sendall(body[5:])
            with line.makefile("rb") as answer:
                assert b"200 OK" in answer.readline()
                assert run_id(runs["other"]).encode() in answer.read()
        assert live.process.wait(PATIENCE) == -signal.SIGTERM
        assert "Traceback" not in live.process.stderr.read()


def test_a_hundred_megabytes_are_refused_over_the_wire(live):
    with socket.create_connection(("127.0.0.1", live.port), PATIENCE) as line:
        line.sendall(b"POST /recommend HTTP/1.1\r\nhost: localhost\r\n"
                     b"content-length: 100000000\r\n\r\n")  # fmt: skip
        with line.makefile("rb") as answer:  # answered before a byte of it is sent
            assert b" 413 " in answer.readline()
            assert b"the body is longer" in answer.read()  # and the connection ends
    assert httpx2.get(f"{live.url}/healthz", timeout=PATIENCE).status_code == 200


def one_line(capsys) -> str:
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_what_cannot_be_served_is_told_in_a_line(runs, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("LLPAUC_API_KEY", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["serve", str(runs["mf"]), "--port", port]) == 2
        assert f"cannot listen on 127.0.0.1 port {port}: " in one_line(capsys)
    assert main(["serve", str(tmp_path / "none"), "--port", "0"]) == 2
    assert "is no run folder" in one_line(capsys)
    put(runs["mf"], tmp_path / "run")
    tensors = tmp_path / "run" / "tensors.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:-1])
    assert main(["serve", str(tmp_path / "run"), "--port", "0"]) == 2
    assert "tensors.safetensors: has" in one_line(capsys)
    assert main(["serve", str(runs["mf"]), "--host", "0.0.0.0", "--port", "0"]) == 2
    assert "an API key is wanted" in one_line(capsys)
    with pytest.raises(SystemExit, match="2"):
        main(["serve", str(runs["mf"]), "--port", "70000"])
    assert "--port: should be less than or equal to 65535" in one_line(capsys)


def test_without_the_extra_it_says_what_to_install(runs, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "llpauc.serving.server", raising=False)
    assert main(["serve", str(runs["mf"])]) == 2
    assert "pip install 'llpauc[serve]'" in one_line(capsys)
