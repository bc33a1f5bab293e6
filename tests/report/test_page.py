"""The page's data and document: ranks equal the evaluator's figures, ids stay text, files whole."""

from __future__ import annotations

import base64
import csv
import hashlib
import html.parser
import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from llpauc.cli import main
from llpauc.data.interactions import IdMap, Interactions, Split
from llpauc.errors import InputError
from llpauc.evaluation.full_ranking import evaluate
from llpauc.recommend import Recommender
from llpauc.recommend.fitted import Fitted
from llpauc.report import report as report_module
from llpauc.report.document import policy, render
from llpauc.report.people import MOST_SHOWN, TOP, find_users, spread_users, view_users
from llpauc.report.report import report_data
from llpauc.report.runs import load_run
from llpauc.report.titles import read_titles
from llpauc.report.tuning import read_tuning
from llpauc.serving.app import Serving, make_app
from llpauc.serving.loaded_run import load_served
from llpauc.serving.page import Beside
from tests.datasets import random_split, score_table, taste_split

KEY = "k" * 20
QUICK = {"epochs": 2, "dimensions": 8, "lr": 0.01}
HOSTILE = [
    "</script><script>alert(1)</script>",
    "<!--",
    "<!-- <script ",
    "\u2028",
    '"\\',
    "$data",
    "&lt;",
    "ø",
]


def fitted_of(recommender: Recommender) -> Fitted:
    assert recommender.fitted is not None
    return recommender.fitted


def llpauc_of(ranks, n_neg: int, alpha: float, beta: float) -> float:
    """Pair by pair, as the metric is printed."""
    k_pos = max(1, int(np.ceil(round(alpha * len(ranks), 9))))
    k_neg = max(1, int(np.ceil(round(beta * n_neg, 9))))
    won = sum(j >= rank for rank in ranks[:k_pos] for j in range(k_neg))
    return won / (len(ranks) * n_neg)


# --- which events are positive, and where they stand --------------------------------------------


@pytest.mark.parametrize("model", ["mf", "popularity", "ease"])
@pytest.mark.parametrize("make", [random_split, taste_split])
def test_ranks_give_the_evaluators_figures(tmp_path, make, model):
    """Saved and loaded, against `evaluate` on the split that the run was trained on."""
    split = make(3)
    own = QUICK if model == "mf" else {}
    Recommender(model=model, **own).fit(split).save(tmp_path / "run")
    fitted = load_run(str(tmp_path / "run")).fitted
    outcome = evaluate(
        fitted.scorer, split, on="test", metrics=["auc", "llpauc(0.7,0.1)", "opauc(0.25)"]
    )
    rows = fitted.user_ids.indices(split.user_ids.text)[outcome.users]
    compared = 0
    for place, view in enumerate(view_users(fitted, rows)):
        if np.isnan(outcome.values["auc"][place]):  # every test item stands in train as well
            assert view.on != "test"
            continue
        assert view.on == "test"
        for name, (alpha, beta) in {
            "auc": (1, 1), "llpauc(0.7,0.1)": (0.7, 0.1), "opauc(0.25)": (1, 0.25),
        }.items():  # fmt: skip
            value = llpauc_of(view.ranks.tolist(), view.n_neg, alpha, beta)
            assert value == pytest.approx(outcome.values[name][place], abs=1e-12)
        compared += 1
    assert compared > 30


def test_validation_events_of_their_own_file_and_held_out_of_train():
    split = taste_split(4)
    given_valid = Recommender(**QUICK).fit(Split(split.train, split.valid))
    held = Recommender(**QUICK, hold_out=0.3).fit(split.train)
    outcome = evaluate(
        given_valid.scorer(), Split(split.train, split.valid), on="valid", metrics=["auc"]
    )
    for view, auc in zip(
        view_users(fitted_of(given_valid), outcome.users), outcome.values["auc"], strict=True
    ):
        assert view.on == "valid"
        assert llpauc_of(view.ranks.tolist(), view.n_neg, 1, 1) == pytest.approx(auc, abs=1e-12)
    fitted = fitted_of(held)
    scores = score_table(fitted.scorer, len(fitted.user_ids))
    (view,) = view_users(fitted, np.array([5]))
    own = fitted.held_out["valid"][5].indices
    trained = np.setdiff1d(fitted.histories[5].indices, own)
    negatives = np.delete(scores[5], np.concatenate([own, trained]))
    assert view.on == "valid"
    assert view.n_neg == len(negatives)
    assert sorted(view.ranks) == sorted((negatives >= scores[5][item]).sum() for item in own)
    assert scores[5][view.positives].tolist() == sorted(scores[5][own].tolist(), reverse=True)


def test_a_refit_has_seen_the_validation_events():
    split = taste_split(5)
    refitted = fitted_of(Recommender(**QUICK, refit=True).fit(split))
    assert set(refitted.held_out) == {"test"}
    without_test = fitted_of(Recommender(**QUICK, refit=True).fit(Split(split.train, split.valid)))
    assert not without_test.held_out
    (view,) = view_users(without_test, np.array([0]))
    assert view.on == "history"
    assert len(view.ranks) == view.n_history == 11
    for refit, parts in ((True, {"test"}), (False, {"valid", "test"})):
        popular = fitted_of(Recommender(model="popularity", refit=refit).fit(split))
        assert set(popular.held_out) == parts


@pytest.mark.parametrize("model", ["mf", "popularity"])
def test_what_an_update_brings_is_held_out_no_longer(model):
    split = taste_split(6)
    own = QUICK if model == "mf" else {}
    recommender = Recommender(model=model, **own).fit(split)
    assert split.test is not None
    told = split.test.take(np.arange(len(split.test)) < 30)
    new = Interactions.of(["somebody new"], ["something new"])
    recommender.update(told, epochs=1)
    recommender.update(new, epochs=0)
    fitted = fitted_of(recommender)
    assert fitted.held_out["test"].nnz == len(split.test) - 30
    assert fitted.held_out["test"].multiply(fitted.histories).nnz == 0
    assert fitted.held_out["test"].shape == (len(fitted.user_ids), len(fitted.item_ids))


def test_lists_are_those_of_recommend_and_histories_are_cut():
    users = ["many"] * 500 + ["one", "none"]
    items = [f"i{n}" for n in range(500)] + ["i3", "i4"]
    everything = Interactions.of([*users, "many"], [*items, "extra"])
    held = np.isin(everything.users, everything.user_ids.indices(["none"]))
    split = Split(everything.take(~held), test=everything.take(held))
    recommender = Recommender(model="popularity").fit(split)
    fitted = fitted_of(recommender)
    many, one, none = view_users(fitted, fitted.user_ids.indices(["many", "one", "none"]))
    assert (many.n_history, len(many.history), many.on) == (501, MOST_SHOWN, "history")
    assert len(many.ranks) == 501
    assert (many.n_neg, len(many.top)) == (0, 0)
    ids, scores = recommender.recommend(["one"], TOP)
    assert fitted.item_ids.ids(one.top).tolist() == ids[0].tolist()
    assert one.scores.tolist() == scores[0].tolist()
    assert (none.on, none.n_history, len(none.ranks)) == ("test", 0, 1)
    alone = fitted_of(Recommender(model="popularity").fit(split.train))
    assert view_users(alone, alone.user_ids.indices(["none"]))[0].on == "nothing"


def test_users_are_spread_over_activity():
    rng = np.random.default_rng(0)
    events = [(f"u{u}", f"i{i}") for u in range(50) for i in rng.permutation(60)[: u + 1]]
    fitted = fitted_of(
        Recommender(model="popularity").fit(Interactions.of(*zip(*events, strict=True)))
    )
    activity = np.diff(fitted.histories.indptr)[spread_users(fitted, 6)]
    assert activity.tolist() == [1, 11, 21, 30, 40, 50]
    assert len(spread_users(fitted, 80)) == 50


@given(
    st.lists(st.text("aAbB%_<é", min_size=1, max_size=4), min_size=1),
    st.text("aAbB%_<é", min_size=1, max_size=2),
)
def test_search_finds_beginnings_first(ids, text):
    known = IdMap.of(ids)
    wanted = text.lower()
    all_ids = known.text.to_pylist()
    first = [i for i in all_ids if i.lower().startswith(wanted)]
    then = [i for i in all_ids if wanted in i.lower() and i not in first]
    assert find_users(known, text) == [*first, *then][:12]


# --- the report ---------------------------------------------------------------------------------


class _Scripts(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[tuple[str | None, str]] = []
        self._kind: str | None = ""

    def handle_starttag(self, tag, attrs):
        if tag == "script":
            self.texts.append((dict(attrs).get("type"), ""))
            self._kind = tag

    def handle_data(self, data):
        if self._kind == "script":
            self.texts[-1] = (self.texts[-1][0], self.texts[-1][1] + data)

    def handle_endtag(self, tag):
        self._kind = ""


def embedded(page: bytes) -> dict:
    """The data of a page, by a parser of HTML that knows nothing of ours."""
    parser = _Scripts()
    parser.feed(page.decode("utf-8"))
    assert [kind for kind, _ in parser.texts] == ["application/json", None]
    assert not set(parser.texts[0][1]) & set("<>&\u2028\u2029")
    return json.loads(parser.texts[0][1])


def hostile_run(folder: Path) -> Path:
    users = [user for user in HOSTILE for _ in range(3)]
    items = [f"{item}{n}" for item in HOSTILE for n in range(3)]
    return Recommender(model="popularity").fit(Interactions.of(users, items)).save(folder)


def test_hostile_ids_come_through_a_report_and_out_of_no_script(tmp_path):
    run = load_run(str(hostile_run(tmp_path / "<b>run")))
    titles = {f"{item}{n}": item + "title" for item in HOSTILE for n in range(3)}
    data = report_data([run], None, titles, None)
    told = embedded(render(data))
    assert sorted(told["users"]) == sorted(HOSTILE)
    assert {(i, t) for i, t in told["items"]} == {(i, titles[i]) for i, _ in told["items"]}
    assert len(told["items"]) == 3 * len(HOSTILE)
    assert told["runs"][0]["name"] == "<b>run"


def test_a_lone_surrogate_in_a_setting_is_no_failure():
    page = render({"name": "\ud800"})
    assert embedded(page) == {"name": "\ud800"}


def test_the_policy_has_the_hashes_of_what_the_page_holds():
    for data in (None, {"users": []}):
        page = render(data).decode()
        rules = policy(served=data is None)
        assert f'content="{rules}"' in page
        for tag in ("style", "script"):
            text = re.search(rf"<{tag}>(.*?)</{tag}>", page, re.S)
            assert text is not None
            digest = base64.b64encode(hashlib.sha256(text[1].encode()).digest()).decode()
            assert f"{tag}-src 'sha256-{digest}'" in rules
        assert ("connect-src" in rules) == (data is None)


def test_the_page_is_small_and_makes_no_html_of_text():
    page = render()
    assert len(page) < 60_000
    text = page.decode()
    for word in (
        "innerHTML",
        "outerHTML",
        "insertAdjacent",
        "document.write",
        "eval(",
        "Function(",
    ):
        assert word not in text
    elsewhere = set(re.findall(r"(?:https?:)?//[\w.]+/[\w/.]*", re.sub(r"(?m)^\s*//.*$", "", text)))
    assert elsewhere <= {"http://www.w3.org/2000/svg"}
    assert not re.search(r"\son\w+=|style=", text.replace("xmlns", ""))


def big_run(folder: Path, n_users: int, events: int) -> Path:
    rng = np.random.default_rng(1)
    n_items = 100_000
    users = np.repeat(np.arange(n_users), events)
    items = (n_items * rng.random(len(users)) ** 2).astype(int)
    every = np.arange(n_items)
    users, items = np.append(users, every % n_users), np.append(items, every)
    return Recommender(model="popularity").fit(Interactions.of(users, items)).save(folder)


def test_200_users_of_100_000_items_take_less_than_2_mb(tmp_path):
    run = load_run(str(big_run(tmp_path / "run", 2000, 100)))
    data = report_data([run], None, {}, None)
    assert len(data["users"]) == 200
    assert len(render(data)) < 2_000_000


def test_a_report_that_would_be_too_large_has_fewer_users(tmp_path, monkeypatch):
    run = load_run(str(big_run(tmp_path / "run", 300, 50)))
    monkeypatch.setattr(report_module, "MOST_BYTES", 200_000)
    data = report_data([run], None, {}, None)
    assert 5 < len(data["users"]) < 200
    assert len(json.dumps(data, separators=(",", ":"))) <= 200_000
    activity = [view["n_history"] for view in data["views"][0]]
    assert activity == sorted(activity)
    assert activity[-1] == np.diff(run.fitted.histories.indptr).max()
    assert len(report_data([run], 200, {}, None)["users"]) == 200  # who says how many gets them


def test_runs_of_one_name_and_unknown_users(tmp_path):
    first = load_run(str(hostile_run(tmp_path / "a" / "run")))
    other = Recommender(model="popularity").fit(Interactions.of(["ø", "zoe"], ["x", "y"]))
    other.save(tmp_path / "b" / "run")
    data = report_data([first, load_run(str(tmp_path / "b" / "run"))], ["ø", "<!--"], {}, None)
    assert [run["name"] for run in data["runs"]] == ["run (1)", "run (2)"]
    assert [view is None for view in data["views"][1]] == [False, True]
    with pytest.raises(InputError, match="unknown users in run: 'zoe'"):
        report_data([first], ["zoe"], {}, None)


def test_what_a_page_says_of_a_run_has_no_path(tmp_path):
    split = taste_split(7)
    recommender = Recommender(**QUICK, alpha=0.5, beta=0.2).fit(split)
    measured = {"mf": evaluate(recommender.scorer(), split).summary()}
    run = recommender.save(tmp_path / "run", data="/home/ann/secret/films.csv", test=measured)
    facts = load_run(str(run)).facts
    assert facts["data"] == "films.csv"
    assert (facts["alpha"], facts["beta"], facts["loss"]) == (0.5, 0.2, "llpauc")
    assert facts["held_out"] == {"valid": 120, "test": 180}
    assert facts["test"]["mf"]["recall@20"] == measured["mf"]["all"]["recall@20"]
    assert recommender.history is not None
    assert [e["valid"] for e in facts["epochs"]] == [
        dict(e.valid) for e in recommender.history.epochs
    ]
    assert str(tmp_path) not in json.dumps(facts)
    assert "secret" not in json.dumps(facts)


# --- titles and tuning --------------------------------------------------------------------------


def test_titles(tmp_path):
    file = tmp_path / "items.csv"
    file.write_text(
        '\ufeffgenre,Title,item\nx,"A, B",007\ny,,8\nz,second,007\nshort\n', encoding="utf-8"
    )
    assert read_titles(str(file)) == {"007": "A, B"}
    (tmp_path / "items.tsv").write_text('item\ttitle\n7\t"Quoted"\n', encoding="utf-8")
    assert read_titles(str(tmp_path / "items.tsv")) == {"7": "Quoted"}
    assert read_titles(None) == {}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"item,name\n1,x\n", "no column title"),
        (b"", "no column item"),
        (b"item,title\n", "no row"),
        (b"item,title\n1,\xff\n", "not UTF-8"),
        (b"item,title\n1," + b"x" * 200_000 + b"\n", "no table"),
        (None, "cannot be read"),
    ],
)
def test_bad_titles_are_one_line(tmp_path, content, said):
    file = tmp_path / "items.csv"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InputError, match=said) as error:
        read_titles(str(file))
    assert "\n" not in str(error.value)


def write_trials(folder: Path, rows: list[dict]) -> Path:
    folder.mkdir()
    with (folder / "trials.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["trial", "value", "state", "alpha", "beta"])
        writer.writeheader()
        writer.writerows(rows)
    (folder / "best.toml").write_text('valid_metric = "ndcg@20"\n')
    return folder


def test_a_tuning_becomes_a_map(tmp_path):
    rows = [
        {"trial": n, "value": n / 10, "state": "complete", "alpha": alpha, "beta": beta}
        for n, (alpha, beta) in enumerate([(0.3, 0.1), (0.3, 0.4), (0.9, 0.1), (0.3, 0.1)])
    ]
    rows.append({"trial": 4, "value": 9, "state": "pruned", "alpha": 0.9, "beta": 0.4})
    rows.append({"trial": 5, "value": "", "state": "complete", "alpha": "", "beta": ""})
    told = read_tuning(str(write_trials(tmp_path / "t", rows)))
    assert told is not None
    assert told["values"] == [[0.3, 0.1], [0.2, None]]
    assert (told["alpha_values"], told["beta_values"]) == ([0.3, 0.9], [0.1, 0.4])
    assert told["best"] == {"trial": 3, "alpha": 0.3, "beta": 0.1, "value": 0.3}
    assert (told["metric"], told["trials"], told["complete"]) == ("ndcg@20", 6, 4)


def test_bad_tunings_are_one_line(tmp_path):
    with pytest.raises(InputError, match="the folder that llpauc tune wrote"):
        read_tuning(str(tmp_path))
    pruned = [{"trial": 0, "value": 1, "state": "pruned", "alpha": 0.3, "beta": 0.1}]
    with pytest.raises(InputError, match="no complete trial"):
        read_tuning(str(write_trials(tmp_path / "t", pruned)))


# --- the command --------------------------------------------------------------------------------


def test_the_command_writes_a_report(tmp_path, capsys):
    split = taste_split(8)
    for name, model in (("one", "popularity"), ("two", "ease")):
        Recommender(model=model).fit(split).save(tmp_path / name)
    out = tmp_path / "deep" / "report.html"
    runs = [str(tmp_path / name) for name in ("one", "two")]
    assert main(["report", *runs, "--out", str(out), "--users", "7", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {"out": str(out), "runs": 2, "users": 7, "bytes": out.stat().st_size}
    assert [run["model"] for run in embedded(out.read_bytes())["runs"]] == ["popularity", "ease"]
    assert main(["report", runs[0], "--out", str(out), "--users", "u3,u1"]) == 0
    assert embedded(out.read_bytes())["users"] == ["u3", "u1"]
    assert [file.name for file in out.parent.iterdir()] == ["report.html"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["{}/nowhere"], "no run folder"),
        (["{}/run", "{}/run"], "named twice"),
        (["{}/run", "--users", "0"], "users must be a whole number of at least 1"),
        (["{}/run", "--users", "nobody"], "unknown users in run: 'nobody'"),
        (["{}/run", "--items", "{}/nowhere"], "cannot be read"),
        (["{}/run", "--tuning", "{}/nowhere"], "llpauc tune"),
        (["{}/run", "--out", "{}"], "it is a folder"),
        (["{}/broken"], "damaged"),
    ],
)
def test_bad_reports_are_one_line_and_leave_the_old_one(tmp_path, capsys, words, said):
    for name in ("run", "broken"):
        Recommender(model="popularity").fit(taste_split(9)).save(tmp_path / name)
    tensors = tmp_path / "broken" / "tensors.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:-1] + b"!")
    old = tmp_path / "report.html"
    old.write_text("old")
    given_out = [] if "--out" in words else ["--out", str(old)]
    assert main(["report", *(word.format(tmp_path) for word in words), *given_out]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert old.read_text() == "old"


# --- the server's routes ------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path) -> Path:
    return Recommender(**QUICK).fit(taste_split(10)).save(tmp_path / "run")


def client_of(run: Path, key: str | None = None, beside: Beside | None = None) -> TestClient:
    serving = Serving(run, load_served(run), print)
    return TestClient(make_app(serving, key, beside), base_url="http://127.0.0.1")


def test_the_page_is_served_under_its_policy(run):
    with client_of(run) as client:
        answer = client.get("/")
    assert answer.content == render()
    assert answer.headers["content-type"].startswith("text/html")
    assert answer.headers["content-security-policy"].startswith(policy(served=True))
    assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]


def test_only_the_page_itself_goes_without_a_key(run):
    paths = ["/page/about", "/page/users?text=u1", "/page/user?id=u1"]
    with client_of(run, KEY) as client:
        assert client.get("/").status_code == 200
        for path in paths:
            assert client.get(path).status_code == 401
            assert client.get(path, headers={"x-api-key": KEY}).status_code == 200


def test_the_server_tells_what_a_report_holds(run):
    titles = {"i3": "Three"}
    with client_of(run, beside=Beside(titles, {"metric": "x"})) as client:
        about = client.get("/page/about").json()
        told = client.get("/page/user", params={"id": "u7"}).json()
        found = client.get("/page/users", params={"text": "U5"}).json()
        some = client.get("/page/users").json()
    data = report_data([load_run(str(run))], ["u7"], titles, None)
    assert told["view"] == data["views"][0][0]
    assert told["items"] == data["items"]
    assert {**data["runs"][0], "run": told["run"]} == about["runs"][0]
    assert about["tuning"] == {"metric": "x"}
    assert found["users"] == find_users(load_run(str(run)).fitted.user_ids, "u5")
    assert some["users"] == about["runs"][0]["some_users"]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/page/user", 404),
        ("/page/user?id=%00", 404),
        ("/page/user?id=" + "x" * 5000, 404),
        ("/page/users?text=" + "x" * 1001, 422),
        ("/page/users?text=%00", 200),
        ("/page/users?text=%ff%25%5B(", 200),
        ("/page/nothing", 404),
    ],
)
def test_odd_questions(run, path, status):
    with client_of(run) as client:
        answer = client.get(path)
    assert answer.status_code == status
    if status != 200:
        assert len(answer.json()["error"]) < 400
