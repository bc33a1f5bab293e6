"""`llpauc serve`: answers equal the facade's, reloads fail nobody, errors are lines."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from llpauc.cli import main
from llpauc.data.interactions import Interactions
from llpauc.errors import InputError
from llpauc.recommend import Recommender
from llpauc.serving import app as app_module
from llpauc.serving import limits, schemas
from llpauc.serving.app import Serving, make_app
from llpauc.serving.batching import Batcher
from llpauc.serving.limits import MOST_BYTES, MOST_ITEMS, MOST_K, MOST_USERS
from llpauc.serving.loaded_run import Wish, load_served, rank_wishes, run_id
from llpauc.serving.metrics import Metrics
from llpauc.serving.server import listen, read_key
from llpauc.serving.shortcut import Shortcut
from tests.server import KEY, check_refused, client_of, expected, pairs, put, trained

JSON = {"content-type": "application/json"}
MODELS = ("mf", "itemsum", "popularity", "itemknn", "ease")


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Path]:
    """A run folder of each model, and a second mf."""
    root = tmp_path_factory.mktemp("runs")
    made = {model: trained(model).save(root / model) for model in MODELS}
    return made | {"other": trained(start=1).save(root / "other")}


@pytest.fixture(scope="module")
def client(runs):
    with client_of(runs["mf"]) as client:
        yield client


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
    ("/recommend", {"users": "u1"}, 422, "users: should be a valid array"),
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


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b'{"user": ', 400, "the body is no JSON"),
        (b"\xff\xfe\x00", 400, "the body is no JSON"),
        (b"[" * 100_000, 400, "the body is no JSON"),
        (b'{"user": ' + b"9" * 5000 + b"}", 400, "the body is no JSON"),
        (b'{"user": NaN}', 422, "user: "),
        (b'{"user": "u1", "k": Infinity}', 422, "k: "),
        (b'{"user": "\\ud800"}', 400, "the body is no JSON"),
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


def test_without_ranking_threads_it_is_not_ready(runs):
    serving = Serving(runs["mf"], load_served(runs["mf"]), print)
    with TestClient(make_app(serving, None), base_url="http://127.0.0.1") as client:
        client.portal.call(serving.batcher.close)
        check_refused(client.get("/readyz"), 503, "ranking threads")


def test_every_route_has_examples_and_they_are_true(client):
    """Of what it takes and what it gives; the models themselves take them."""
    told = client.get("/openapi.json").json()
    parts = told["components"]["schemas"]
    for name, part in parts.items():
        for example in part.get("examples", []):
            getattr(schemas, name).model_validate(example)

    def has_example(content) -> bool:
        (kind,) = content.values()
        name = kind.get("schema", {}).get("$ref", "").rpartition("/")[2]
        return "example" in kind or bool(parts.get(name, {}).get("examples"))

    for path, methods in told["paths"].items():
        for operation in methods.values():
            assert has_example(operation["responses"]["200"]["content"]), path
            if "requestBody" in operation:
                assert has_example(operation["requestBody"]["content"]), path
            for parameter in operation.get("parameters", []):
                assert parameter["schema"].get("examples") or parameter.get("examples"), path


def test_the_quick_way_and_that_of_fastapi_answer_alike(runs):
    """The same function and the same model of the body: what the OpenAPI says is true of both."""
    serving = Serving(runs["mf"], load_served(runs["mf"]), print)
    quick, slow = make_app(serving, None), make_app(serving, None)
    slow.user_middleware = [m for m in slow.user_middleware if m.cls is not Shortcut]
    assert len(slow.user_middleware) == len(quick.user_middleware) - 1
    asked = [("/recommend", {"user": "u1", "k": 3}), ("/recommend", {"items": ["i3"]}),
             ("/recommend", {"user": "nobody"}), ("/recommend", {"user": "u1", "k": 0}),
             ("/recommend", {"user": 1.5}), ("/recommend", {"top": 1}), ("/recommend", []),
             ("/similar-items", {"item": "i3", "k": 4}), ("/similar-items", {})]  # fmt: skip
    answers = []
    for app in (quick, slow):
        with TestClient(app, base_url="http://127.0.0.1") as client:
            told = [client.post(path, json=body) for path, body in asked]
            answers.append([(answer.status_code, answer.json()) for answer in told])
    assert answers[0] == answers[1]
    assert {status for status, _ in answers[0]} == {200, 404, 422}


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
    assert sum(batches) == len(asked)
    assert max(batches) == 16


def test_batches_have_an_end_and_one_bad_request_is_alone(runs):
    served = load_served(runs["mf"])
    vectors = served.fitted.scorer.user_vectors.copy()
    sick = dataclasses.replace(served.fitted, scorer=type(served.fitted.scorer)(
        vectors, served.fitted.scorer.item_vectors))  # fmt: skip
    sick.scorer.user_vectors[7] = np.nan
    served = dataclasses.replace(served, fitted=sick)
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
    assert batches == [16, 16, 16, 12, 250, 300]  # no more than 16 unless one request has them


# --- reloading ----------------------------------------------------------------------------------


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
    assert "is not a run folder" in one_line(capsys)
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
