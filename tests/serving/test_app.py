"""`llpauc serve`: answers equal those of `Recommender`, reloads and errors."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from llpauc.cli import main
from llpauc.data.interactions import Interactions
from llpauc.errors import InputError
from llpauc.recommend import Recommender
from llpauc.serving import ServingState, limits, load_run, make_app, schemas
from llpauc.serving import app as app_module
from llpauc.serving.batching import MAX_BATCH, Batcher
from llpauc.serving.limits import MAX_BODY_BYTES, MAX_ITEMS, MAX_K, MAX_USERS
from llpauc.serving.loaded_run import ListRequest, current_run_id, rank_lists, similar_items
from llpauc.serving.metrics import Metrics
from llpauc.serving.server import KEY_VARIABLE, listen
from llpauc.storage import run_folder
from llpauc.storage.signing import read_key
from tests.datasets import taste_split
from tests.server import (
    KEY,
    TIMEOUT,
    check_refused,
    client_of,
    expected,
    pairs,
    replace_run,
    trained,
)

JSON = {"content-type": "application/json"}
MODELS = ("mf", "fism", "popularity", "itemknn", "ease")


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Path]:
    """A run folder of each model, and a second mf."""
    root = tmp_path_factory.mktemp("runs")
    made = {model: trained(model).save(root / model) for model in MODELS}
    return made | {"other": trained(seed=1).save(root / "other")}


@pytest.fixture(scope="module")
def client(runs):
    with client_of(runs["mf"]) as client:
        yield client


# --- answers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
def test_recommend_answers_equal_recommender_exactly(runs, model):
    recommender = Recommender.load(runs[model])
    with client_of(runs[model]) as client:
        for seen in (True, False):
            ids, scores = recommender.recommend(["u1", "u2"], 7, exclude_seen=seen)
            body = {"users": ["u1", "u2"], "k": 7, "exclude_seen": seen}
            answer = client.post("/recommend", json=body).json()
            for n, entry in enumerate(answer["lists"]):
                assert entry["user"] == ["u1", "u2"][n]
                assert pairs(entry["items"]) == expected(ids[n], scores[n])
            (alone,) = client.post(
                "/recommend", json={"user": "u1", "k": 7, "exclude_seen": seen}
            ).json()["lists"]
            assert alone == answer["lists"][0]
        for items in (["i3", "i5", "i3"], []):
            (result,) = client.post("/recommend", json={"items": items, "k": 6}).json()["lists"]
            assert result["user"] is None
            assert pairs(result["items"]) == expected(*recommender.fold_in(items, 6))
        result = client.post("/similar-items", json={"item": "i3", "k": 6}).json()
        assert pairs(result["items"]) == expected(*recommender.similar_items("i3", 6))
        assert result["run"] == answer["run"] == current_run_id(runs[model])


def test_recommend_allow_and_deny_filter_the_full_list(runs):
    recommender = Recommender.load(runs["mf"])
    n_items = len(recommender.fitted.item_ids)
    everything = expected(*(column[0] for column in recommender.recommend(["u4"], n_items)))
    allow, deny = [f"i{i}" for i in range(30)], ["i2", "i7", "i28"]
    with client_of(runs["mf"]) as client:
        for lists in ({"allow": allow}, {"deny": deny}, {"allow": allow, "deny": deny}):
            (result,) = client.post("/recommend", json={"user": "u4", "k": 5, **lists}).json()[
                "lists"
            ]
            filtered = [
                (item, score)
                for item, score in everything
                if item in lists.get("allow", [item]) and item not in lists.get("deny", [])
            ]
            assert pairs(result["items"]) == filtered[:5]
        (result,) = client.post("/recommend", json={"user": "u4", "allow": []}).json()["lists"]
        assert result["items"] == []


def test_recommend_list_contains_all_unseen_items_when_k_is_larger(client):
    (result,) = client.post("/recommend", json={"user": "u1", "k": MAX_K}).json()["lists"]
    history = client.get("/users/u1").json()["items"]
    assert len(result["items"]) + len(history) == 40
    assert not {entry["item"] for entry in result["items"]} & set(history)


def test_user_history_returns_ids_with_special_characters_and_integers_unchanged(tmp_path):
    odd = ["a/b\nc", "x?y#z%", "ø 1", "007"]
    data = Interactions.of([*odd, odd[0]], [1, 2, 3, 4, 2**40])
    folder = Recommender(model="popularity").fit(data).save(tmp_path / "run")
    with client_of(folder) as client:
        for user, items in zip(odd, ([1, 2**40], [2], [3], [4]), strict=True):
            answer = client.get("/users/" + "".join(f"%{b:02x}" for b in user.encode()))
            assert answer.json() == {"run": current_run_id(folder), "user": user, "items": items}
        result = client.post("/similar-items", json={"item": "3"}).json()
        assert result["item"] == 3
        assert {type(entry["item"]) for entry in result["items"]} == {int}


# --- bad input ----------------------------------------------------------------------------------

BAD_REQUESTS = [
    ("/recommend", {"user": "unknown"}, 404, "unknown user: 'unknown'"),
    ("/recommend", {"users": ["u1", "unknown", 7]}, 404, "unknown user: 'unknown', 7"),
    ("/recommend", {"items": ["i1", "nothing"]}, 404, "unknown item: 'nothing'"),
    ("/recommend", {"user": "u1", "allow": ["nothing"]}, 404, "unknown item: 'nothing'"),
    ("/recommend", {"user": "u1", "deny": ["n" * 10_000]}, 404, "unknown item: 'nnn"),
    ("/recommend", {"user": "u1", "k": 0}, 422, "k: should be greater than or equal to 1"),
    ("/recommend", {"user": "u1", "k": 10**9}, 422, f"or equal to {MAX_K}"),
    ("/recommend", {"user": "u1", "k": -1}, 422, "k: "),
    ("/recommend", {"user": "u1", "k": 2.5}, 422, "k: should be a valid integer"),
    ("/recommend", {"user": "u1", "k": "5"}, 422, "k: should be a valid integer"),
    ("/recommend", {"user": "u1", "k": None}, 422, "k: "),
    ("/recommend", {"user": "u1", "exclude_seen": 1}, 422, "exclude_seen: "),
    ("/recommend", {"user": 1.5}, 422, "user: should be text or a whole number"),
    ("/recommend", {"user": True}, 422, "user: should be text or a whole number"),
    ("/recommend", {"user": ""}, 422, "user: "),
    ("/recommend", {"users": ["u1", {}]}, 422, "users.1: should be text or a whole number"),
    ("/recommend", {"users": "u1"}, 422, "users: should be a valid array"),
    ("/recommend", {"users": []}, 422, "users: "),
    ("/recommend", {"users": ["u1"] * (MAX_USERS + 1)}, 422, f"at most {MAX_USERS}"),
    ("/recommend", {"items": ["i1"] * (MAX_ITEMS + 1)}, 422, f"at most {MAX_ITEMS}"),
    ("/recommend", {"user": "u1", "top": 3}, 422, "top: "),
    ("/recommend", {"user": "u1", "items": ["i1"]}, 422, "give one of user, users"),
    ("/recommend", {}, 422, "give one of user, users"),
    ("/recommend", [], 422, "must be a JSON object"),
    ("/recommend", None, 422, "must be a JSON object"),
    ("/similar-items", {"item": "nothing"}, 404, "unknown item: 'nothing'"),
    ("/similar-items", {}, 422, "item: "),
]


@pytest.mark.parametrize(("path", "body", "status", "message"), BAD_REQUESTS)
def test_routes_refuse_invalid_requests_with_one_line(client, path, body, status, message):
    check_refused(client.post(path, json=body), status, message)


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b'{"user": ', 400, "the body is not valid JSON"),
        (b"\xff\xfe\x00", 400, "the body is not valid JSON"),
        (b"[" * 100_000, 400, "the body is not valid JSON"),
        (b'{"user": ' + b"9" * 5000 + b"}", 400, "the body is not valid JSON"),
        (b'{"user": NaN}', 422, "user: "),
        (b'{"user": "u1", "k": Infinity}', 422, "k: "),
        (b'{"user": "\\ud800"}', 400, "the body is not valid JSON"),
        (b'{"user": "\\u0000"}', 404, "unknown user"),
        (b"", 422, "must be a JSON object"),
    ],
)
def test_routes_refuse_malformed_bodies(client, body, status, message):
    check_refused(client.post("/recommend", content=body, headers=JSON), status, message)


def test_routes_refuse_unknown_paths_methods_and_content_types(client):
    check_refused(client.get("/nowhere"), 404, "Not Found")
    check_refused(client.get("/users/unknown"), 404, "unknown user: 'unknown'")
    check_refused(client.get("/users/%FF%FE"), 404, "unknown user")
    check_refused(client.get("/recommend"), 405, "Method Not Allowed")
    plain = client.post("/recommend", content=b'{"user": "u1"}', headers={"content-type": "a/b"})
    check_refused(plain, 422, "Content-Type: application/json")


def test_request_limits_refuse_long_body_before_reading_it(runs):
    """The Content-Length is 100 MB; no byte of the body is received."""
    app = make_app(ServingState(runs["mf"]), None)
    received, sent = [], []

    async def receive():
        received.append(1)
        return {"type": "http.request", "body": b"x" * 65536, "more_body": True}

    async def send(message):
        sent.append(message)

    def post(headers):
        received.clear()
        sent.clear()
        scope = {"type": "http", "method": "POST", "path": "/recommend", "query_string": b"",
                 "headers": [(b"host", b"localhost"), *headers]}  # fmt: skip
        asyncio.run(app(scope, receive, send))
        assert sent[0]["status"] == 413
        assert (b"connection", b"close") in sent[0]["headers"]
        assert str(MAX_BODY_BYTES) in json.loads(sent[1]["body"])["error"]

    post([(b"content-length", b"100000000")])
    assert not received
    post([])  # in parts, without a Content-Length
    assert len(received) == MAX_BODY_BYTES // 65536 + 1


def test_request_limits_refuse_body_that_does_not_arrive(runs, monkeypatch):
    monkeypatch.setattr(limits, "BODY_SECONDS", 0.05)
    app = make_app(ServingState(runs["mf"]), None)
    sent = []

    async def receive():
        await asyncio.sleep(60)

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/recommend", "query_string": b"",
             "headers": [(b"host", b"localhost"), (b"content-length", b"5")]}  # fmt: skip
    asyncio.run(asyncio.wait_for(app(scope, receive, send), 20))
    assert sent[0]["status"] == 408


def test_request_limits_refuse_too_many_requests_in_progress(runs, monkeypatch):
    with client_of(runs["mf"]) as client:
        monkeypatch.setattr(limits, "MAX_IN_PROGRESS", 0)
        answer = client.post("/recommend", json={"user": "u1"})
        check_refused(answer, 429, "try again")
        assert answer.headers["retry-after"] == "1"
        for path in ("/healthz", "/readyz", "/metrics"):
            assert client.get(path).status_code == 200


def test_request_limits_answer_500_without_trace_on_unexpected_exception(runs, monkeypatch, caplog):
    monkeypatch.setattr(app_module, "_list_requests", lambda *_: 1 / 0)
    with client_of(runs["mf"]) as client:
        check_refused(client.post("/recommend", json={"user": "u1"}), 500, "the server failed")
        assert client.get("/users/u1").status_code == 200
    (record,) = [record for record in caplog.records if record.name.startswith("llpauc")]
    assert "ZeroDivisionError at test_app.py:" in record.getMessage()
    assert record.exc_info is None


# --- keys and addresses -------------------------------------------------------------------------


def test_request_limits_require_the_key_on_every_route_but_health(runs):
    with client_of(runs["mf"], KEY) as client:
        good = {"x-api-key": KEY}
        paths = client.get("/openapi.json", headers=good).json()["paths"]
        assert {"/recommend", "/users/{id}", "/reload", "/healthz", "/metrics"} <= set(paths)
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
def test_request_limits_without_key_accept_only_loopback_hosts(client, host, status):
    assert client.get("/users/u1", headers={"host": host}).status_code == status


def test_read_key_and_listen_refuse_unsafe_values(tmp_path, monkeypatch):
    monkeypatch.delenv("LLPAUC_API_KEY", raising=False)
    assert read_key(None, KEY_VARIABLE) is None
    for host in ("0.0.0.0", "::"):
        with pytest.raises(InputError, match="API key is required"):
            listen(host, 0, None)
    with pytest.raises(InputError, match="not an address"):
        listen("no such host.invalid", 0, None)
    monkeypatch.setenv("LLPAUC_API_KEY", "short")
    with pytest.raises(InputError, match="LLPAUC_API_KEY: the key has 5 characters"):
        read_key(None, KEY_VARIABLE)
    monkeypatch.setenv("LLPAUC_API_KEY", KEY)
    assert read_key(None, KEY_VARIABLE) == KEY
    file = tmp_path / "key"
    for text, message in ((b"", "has 0 char"), (b"k" * 9999, "has 1025"), (b"a b" * 9, "spaces"),
                       ("ø".encode() * 20, "ASCII")):  # fmt: skip
        file.write_bytes(text)
        with pytest.raises(InputError, match=message):
            read_key(str(file), KEY_VARIABLE)
    file.write_bytes(b"  " + b"f" * 30 + b"\n")
    assert read_key(str(file), KEY_VARIABLE) == "f" * 30
    with pytest.raises(InputError, match="cannot be read"):
        read_key(str(tmp_path / "none"), KEY_VARIABLE)


# --- operation ----------------------------------------------------------------------------------


def test_healthz_readyz_and_metrics_describe_the_run(runs):
    with client_of(runs["mf"]) as client:
        assert client.get("/healthz").json() == {"status": "ok"}
        about = {"run": current_run_id(runs["mf"]), "model": "mf", "users": 60, "items": 40}
        assert client.get("/readyz").json() == about
        for user in ("u1", "u2", "unknown"):
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


def test_metrics_histogram_buckets_are_cumulative():
    metrics = Metrics()
    for seconds in (0.001, 0.002, 0.3, 99.0):
        metrics.answered("/a", 200, seconds)
    text = metrics.text({"run": "r", "model": "m", "users": 1, "items": 1}).decode()
    (family,) = [f for f in text_string_to_metric_families(text) if f.name.endswith("seconds")]
    buckets = {s.labels["le"]: s.value for s in family.samples if s.name.endswith("bucket")}
    assert [buckets[le] for le in ("0.001", "0.0025", "0.25", "0.5", "5.0", "+Inf")] == [
        1, 2, 2, 3, 3, 4,
    ]  # fmt: skip


def test_readyz_is_503_without_ranking_threads(runs):
    state = ServingState(runs["mf"])
    with TestClient(make_app(state, None), base_url="http://127.0.0.1") as client:
        client.portal.call(state.batcher.close)
        check_refused(client.get("/readyz"), 503, "ranking threads")


def test_openapi_has_valid_examples_of_every_route(client):
    schema = client.get("/openapi.json").json()
    parts = schema["components"]["schemas"]
    for name, part in parts.items():
        for example in part.get("examples", []):
            getattr(schemas, name).model_validate(example)

    def has_example(content) -> bool:
        (kind,) = content.values()
        name = kind.get("schema", {}).get("$ref", "").rpartition("/")[2]
        return "example" in kind or bool(parts.get(name, {}).get("examples"))

    remedy = "give the model in schemas.py an example with _examples"
    for path, methods in schema["paths"].items():
        for operation in methods.values():
            assert has_example(operation["responses"]["200"]["content"]), f"{path}: {remedy}"
            if "requestBody" in operation:
                assert has_example(operation["requestBody"]["content"]), f"{path}: {remedy}"
            for parameter in operation.get("parameters", []):
                assert parameter["schema"].get("examples") or parameter.get("examples"), path


# --- batching -----------------------------------------------------------------------------------


def test_batcher_ranks_simultaneous_requests_together_with_the_lists_of_single_requests(runs):
    """Different lengths, filters and runs in one batch."""
    one, two = load_run(runs["mf"]), load_run(runs["other"])
    empty = np.zeros(0, np.int64)
    requests = [ListRequest(k=1 + u % 9, user_idx=u, exclude_seen=u % 2 == 0) for u in range(30)]
    requests += [ListRequest(k=4, history=np.array([3, 5])), ListRequest(k=3, history=empty),
               ListRequest(k=40, user_idx=3, allow=np.array([1, 2, 9])),
               ListRequest(k=2, user_idx=4, deny=np.array([0]))]  # fmt: skip
    jobs = [(run, request) for request in requests for run in (one, two)]
    batches = []

    async def all_at_once():
        batcher = Batcher(batches.append)
        lists = await asyncio.gather(*[batcher.rank(run, [request]) for run, request in jobs])
        await batcher.close()
        return lists

    for (run, request), lists in zip(jobs, asyncio.run(all_at_once()), strict=True):
        assert lists == rank_lists(run, [request])
    assert sum(batches) == len(jobs)
    assert max(batches) == MAX_BATCH


def test_batcher_limits_batches_and_isolates_a_failing_request(runs):
    run = load_run(runs["mf"])
    run.fitted.scorer.user_vectors[7] = np.nan
    batches = []

    async def ask():
        batcher = Batcher(batches.append)
        requests = [ListRequest(k=2, user_idx=u) for u in range(60)]
        jobs = [batcher.rank(run, [request]) for request in requests]
        jobs += [batcher.rank(run, requests[10:60] * 5), batcher.rank(run, requests[:1] * 300)]
        answers = await asyncio.gather(*jobs, return_exceptions=True)
        await batcher.close()
        return answers

    answers = asyncio.run(ask())
    assert [n for n, a in enumerate(answers) if isinstance(a, Exception)] == [7]
    assert isinstance(answers[7], InputError)
    assert [len(a) for a in answers[60:]] == [250, 300]
    assert batches == [15, 15, 15, 15, 250, 300]  # at most 15, unless one request has more


# --- reloading ----------------------------------------------------------------------------------


def test_reload_20_times_under_8_clients_fails_no_request(runs, tmp_path):
    """Every answer is entirely from the run that it names."""
    folder = tmp_path / "run"
    replace_run(runs["mf"], folder)
    expected_lists = {}
    for name in ("mf", "other"):
        recommender = Recommender.load(runs[name])
        ids, scores = recommender.recommend([f"u{u}" for u in range(60)], 5)
        expected_lists[current_run_id(runs[name])] = [
            list(zip(*row, strict=True)) for row in zip(ids.tolist(), scores.tolist(), strict=True)
        ]
    first, second = expected_lists.values()
    assert all(a != b for a, b in zip(first, second, strict=True))
    done = threading.Event()

    def send_requests(client, seed: int) -> list[str]:
        rng, seen = np.random.default_rng(seed), []
        for _ in range(3000):
            if done.is_set():
                break
            users = rng.integers(0, 60, 3)
            answer = client.post("/recommend", json={"users": [f"u{u}" for u in users], "k": 5})
            assert answer.status_code == 200, answer.text
            result = answer.json()
            for user, entry in zip(users, result["lists"], strict=True):
                assert pairs(entry["items"]) == expected_lists[result["run"]][user]
            seen.append(result["run"])
        return seen

    with client_of(folder) as client, ThreadPoolExecutor(8) as pool:
        sending = [pool.submit(send_requests, client, seed) for seed in range(8)]
        try:
            for turn in range(20):
                name = ("other", "mf")[turn % 2]
                replace_run(runs[name], folder)
                result = client.post("/reload")
                assert result.json()["changed"] is True, result.text
                assert result.json()["run"] == current_run_id(runs[name])
        finally:
            done.set()
        answered = [run for job in sending for run in job.result()]
    assert set(answered) == set(expected_lists)
    assert len(answered) > 40


def test_reload_refuses_damaged_run_and_serves_the_previous_one(runs, tmp_path):
    folder = tmp_path / "run"
    replace_run(runs["mf"], folder)
    before = current_run_id(folder)
    with client_of(folder) as client:
        assert client.post("/reload").json()["changed"] is False

        def damage(name, change):
            replace_run(runs["other"], folder)
            change(folder / name)
            answer = client.post("/reload")
            check_refused(answer, 409, f"run {before} is still served")
            assert name in answer.json()["error"]
            assert str(tmp_path) not in answer.text
            assert client.post("/recommend", json={"user": "u1"}).json()["run"] == before

        damage("tensors.safetensors", Path.unlink)
        damage("users.parquet", lambda path: path.write_bytes(path.read_bytes()[:50]))
        damage("items.parquet", lambda path: path.write_bytes(b"\x80\x04." + path.read_bytes()[3:]))
        damage("manifest.json", lambda path: path.write_text("{"))
        damage("manifest.json", Path.unlink)
        replace_run(runs["other"], folder)
        assert client.post("/reload").json()["changed"] is True


def test_reload_refuses_vectors_with_three_dimensions(runs, tmp_path):
    folder = tmp_path / "run"
    replace_run(runs["mf"], folder)
    saved = run_folder.load(runs["mf"])
    with client_of(folder) as client:
        for name in ("user_vectors", "item_vectors"):
            tensors = {**saved.tensors, name: saved.tensors[name][..., None]}
            run_folder.save(replace(saved, tensors=tensors), folder)
            check_refused(client.post("/reload"), 409, "two tables of the same width")
        assert client.get("/users/u1").status_code == 200


def test_reload_refuses_a_run_without_the_signature(runs, tmp_path):
    folder, key = tmp_path / "run", "s" * 32
    replace_run(runs["mf"], folder)
    with pytest.raises(InputError, match="it is not signed; if you trust it, sign it"):
        ServingState(folder, signing_key=key)
    run_folder.sign(folder, key)
    with client_of(folder, signing_key=key) as client:
        first = client.get("/readyz").json()["run"]
        replace_run(runs["other"], folder)
        check_refused(client.post("/reload"), 409, "it is not signed")
        run_folder.sign(folder, "t" * 32)
        check_refused(client.post("/reload"), 409, "its signature does not match the key")
        assert client.get("/readyz").json()["run"] == first
        run_folder.sign(folder, key)
        assert client.post("/reload").json()["run"] != first


def make_large(path):
    path.touch()
    os.truncate(path, 3 << 30)


@pytest.mark.parametrize("make", [os.mkfifo, make_large])
def test_reload_refuses_a_manifest_that_is_a_pipe_or_too_large(runs, tmp_path, make):
    folder = tmp_path / "run"
    replace_run(runs["mf"], folder)
    with client_of(folder) as client, ThreadPoolExecutor() as pool:
        (folder / "manifest.json").unlink()
        make(folder / "manifest.json")
        answer = pool.submit(client.post, "/reload")
        try:
            check_refused(answer.result(TIMEOUT), 409, "manifest")
        except TimeoutError:
            os.close(os.open(folder / "manifest.json", os.O_RDWR))  # ends the waiting thread
            raise
        assert client.get("/users/u1").status_code == 200


def test_load_run_refuses_values_that_are_not_finite(tmp_path):
    recommender = trained()
    recommender.fitted.scorer.user_vectors[3] = np.nan
    with pytest.raises(InputError, match="user_vectors are not all finite"):
        load_run(recommender.save(tmp_path / "run"))


def test_similar_items_with_item_bias_equal_recommender(tmp_path):
    recommender = Recommender(recipe="none", epochs=2, dimensions=8, hold_out=0, item_bias=True)
    run = load_run(recommender.fit(taste_split().train).save(tmp_path / "run"))
    assert run.item_units.shape[1] == 8
    for item_idx, item in enumerate(run.items.ids):
        ids, scores = run.recommender.similar_items(item, 6)
        assert similar_items(run, item_idx, 6) == expected(ids, scores)


def one_line(capsys) -> str:
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_serve_reports_problems_in_one_line(runs, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("LLPAUC_API_KEY", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["serve", str(runs["mf"]), "--port", port]) == 2
        assert f"cannot listen on 127.0.0.1 port {port}: " in one_line(capsys)
    assert main(["serve", str(tmp_path / "none"), "--port", "0"]) == 2
    assert "is not a run folder" in one_line(capsys)
    replace_run(runs["mf"], tmp_path / "run")
    tensors = tmp_path / "run" / "tensors.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:-1])
    assert main(["serve", str(tmp_path / "run"), "--port", "0"]) == 2
    assert "tensors.safetensors: has" in one_line(capsys)
    assert main(["serve", str(runs["mf"]), "--host", "0.0.0.0", "--port", "0"]) == 2
    assert "an API key is required" in one_line(capsys)
    with pytest.raises(SystemExit, match="2"):
        main(["serve", str(runs["mf"]), "--port", "70000"])
    assert "--port must be in [0, 65535], got 70000" in one_line(capsys)


def test_serve_without_the_extra_names_the_package_to_install(runs, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "llpauc.serving.server", raising=False)
    assert main(["serve", str(runs["mf"])]) == 2
    assert "pip install 'llpauc[serve]'" in one_line(capsys)
