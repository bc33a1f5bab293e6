"""The data of the page, its HTML, `llpauc report`, and the routes of the page."""

from __future__ import annotations

import base64
import csv
import hashlib
import html.parser
import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llpauc.cli import main
from llpauc.data.catalogue import read_catalogue
from llpauc.data.ids import IdMap
from llpauc.data.interactions import Interactions, Split
from llpauc.errors import InputError
from llpauc.evaluation.full_ranking import evaluate
from llpauc.recommend import Recommender
from llpauc.recommend.fitted import Fitted
from llpauc.report import page_data
from llpauc.report.document import page_policy, render_page
from llpauc.report.page_data import load_page_run, read_titles, report_data
from llpauc.report.tuning import read_tuning
from llpauc.report.users import LIST_LENGTH, MAX_SHOWN, find_users, spread_users, view_users
from tests.datasets import random_split, score_table, taste_split
from tests.server import KEY, client_of

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
    """Pair by pair, as in the definition."""
    k_pos = max(1, int(np.ceil(round(alpha * len(ranks), 9))))
    k_neg = max(1, int(np.ceil(round(beta * n_neg, 9))))
    won = sum(j >= rank for rank in ranks[:k_pos] for j in range(k_neg))
    return won / (len(ranks) * n_neg)


# --- views of users -----------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["mf", "popularity", "ease"])
@pytest.mark.parametrize("make", [random_split, taste_split])
def test_view_users_ranks_give_the_metrics_of_evaluate(tmp_path, make, model):
    """On a saved and loaded run, with the split that it was trained on."""
    split = make(3)
    options = QUICK if model == "mf" else {}
    Recommender(recipe="none", model=model, **options).fit(split).save(tmp_path / "run")
    fitted = load_page_run(str(tmp_path / "run")).fitted
    outcome = evaluate(
        fitted.scorer, split, on="test", metrics=["auc", "llpauc(0.7,0.1)", "opauc(0.25)"]
    )
    rows = fitted.user_ids.indices(split.user_ids.text)[outcome.users]
    compared = 0
    for n, view in enumerate(view_users(fitted, rows)):
        if np.isnan(outcome.values["auc"][n]):  # every test item is also in train
            assert view.basis != "test"
            continue
        assert view.basis == "test"
        for name, (alpha, beta) in {
            "auc": (1, 1), "llpauc(0.7,0.1)": (0.7, 0.1), "opauc(0.25)": (1, 0.25),
        }.items():  # fmt: skip
            value = llpauc_of(view.ranks.tolist(), view.n_neg, alpha, beta)
            assert value == pytest.approx(outcome.values[name][n], abs=1e-12)
        compared += 1
    assert compared > 30


def test_view_users_measures_on_validation_events():
    split = taste_split(4)
    given_valid = Recommender(recipe="none", **QUICK).fit(Split(split.train, split.valid))
    held = Recommender(recipe="none", **QUICK, hold_out=0.3).fit(split.train)
    outcome = evaluate(
        given_valid.scorer(), Split(split.train, split.valid), on="valid", metrics=["auc"]
    )
    for view, auc in zip(
        view_users(fitted_of(given_valid), outcome.users), outcome.values["auc"], strict=True
    ):
        assert view.basis == "valid"
        assert llpauc_of(view.ranks.tolist(), view.n_neg, 1, 1) == pytest.approx(auc, abs=1e-12)
    fitted = fitted_of(held)
    scores = score_table(fitted.scorer, len(fitted.user_ids))
    (view,) = view_users(fitted, np.array([5]))
    valid = fitted.held_out["valid"][5].indices
    trained = np.setdiff1d(fitted.histories[5].indices, valid)
    negatives = np.delete(scores[5], np.concatenate([valid, trained]))
    assert view.basis == "valid"
    assert view.n_neg == len(negatives)
    assert sorted(view.ranks) == sorted((negatives >= scores[5][item]).sum() for item in valid)
    assert scores[5][view.positives].tolist() == sorted(scores[5][valid].tolist(), reverse=True)


def test_view_users_after_refit_excludes_validation_events():
    split = taste_split(5)
    refitted = fitted_of(Recommender(recipe="none", **QUICK, refit=True).fit(split))
    assert set(refitted.held_out) == {"test"}
    without_test = fitted_of(
        Recommender(recipe="none", **QUICK, refit=True).fit(Split(split.train, split.valid))
    )
    assert not without_test.held_out
    (view,) = view_users(without_test, np.array([0]))
    assert view.basis == "history"
    assert len(view.ranks) == view.n_history == 11
    for refit, parts in ((True, {"test"}), (False, {"valid", "test"})):
        popular = fitted_of(Recommender(model="popularity", refit=refit).fit(split))
        assert set(popular.held_out) == parts


@pytest.mark.parametrize("model", ["mf", "popularity"])
def test_update_removes_its_events_from_held_out(model):
    split = taste_split(6)
    options = QUICK if model == "mf" else {}
    recommender = Recommender(recipe="none", model=model, **options).fit(split)
    assert split.test is not None
    events = split.test.take(np.arange(len(split.test)) < 30)
    new = Interactions.of(["new user"], ["new item"])
    recommender.update(events, epochs=1)
    recommender.update(new, epochs=0)
    fitted = fitted_of(recommender)
    assert fitted.held_out["test"].nnz == len(split.test) - 30
    assert fitted.held_out["test"].multiply(fitted.histories).nnz == 0
    assert fitted.held_out["test"].shape == (len(fitted.user_ids), len(fitted.item_ids))


def test_view_users_lists_equal_recommend_and_histories_are_truncated():
    users = ["many"] * 500 + ["one", "none"]
    items = [f"i{n}" for n in range(500)] + ["i3", "i4"]
    everything = Interactions.of([*users, "many"], [*items, "extra"])
    held = np.isin(everything.users, everything.user_ids.indices(["none"]))
    split = Split(everything.take(~held), test=everything.take(held))
    recommender = Recommender(model="popularity").fit(split)
    fitted = fitted_of(recommender)
    many, one, none = view_users(fitted, fitted.user_ids.indices(["many", "one", "none"]))
    assert (many.n_history, len(many.history), many.basis) == (501, MAX_SHOWN, "history")
    assert len(many.ranks) == 501
    assert (many.n_neg, len(many.top)) == (0, 0)
    ids, scores = recommender.recommend(["one"], LIST_LENGTH)
    assert fitted.item_ids.ids(one.top).tolist() == ids[0].tolist()
    assert one.scores.tolist() == scores[0].tolist()
    assert (none.basis, none.n_history, len(none.ranks)) == ("test", 0, 1)
    alone = fitted_of(Recommender(model="popularity").fit(split.train))
    assert view_users(alone, alone.user_ids.indices(["none"]))[0].basis == "nothing"


def test_spread_users_chooses_evenly_by_activity():
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
def test_find_users_returns_prefix_matches_first(ids, text):
    known = IdMap.of(ids)
    query = text.lower()
    all_ids = known.text.to_pylist()
    first = [i for i in all_ids if i.lower().startswith(query)]
    then = [i for i in all_ids if query in i.lower() and i not in first]
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
    """The data embedded in a page, read with an independent HTML parser."""
    parser = _Scripts()
    parser.feed(page.decode("utf-8"))
    assert [kind for kind, _ in parser.texts] == ["application/json", None]
    assert not set(parser.texts[0][1]) & set("<>&\u2028\u2029")
    return json.loads(parser.texts[0][1])


def hostile_run(folder: Path) -> Path:
    users = [user for user in HOSTILE for _ in range(3)]
    items = [f"{item}{n}" for item in HOSTILE for n in range(3)]
    return Recommender(model="popularity").fit(Interactions.of(users, items)).save(folder)


def test_render_page_embeds_hostile_ids_as_data(tmp_path):
    run = load_page_run(str(hostile_run(tmp_path / "<b>run")))
    titles = {f"{item}{n}": item + "title" for item in HOSTILE for n in range(3)}
    data = report_data([run], None, titles, None)
    content = embedded(render_page(data))
    assert sorted(content["users"]) == sorted(HOSTILE)
    assert {(i, t) for i, t in content["items"]} == {(i, titles[i]) for i, _ in content["items"]}
    assert len(content["items"]) == 3 * len(HOSTILE)
    assert content["runs"][0]["name"] == "<b>run"


def test_render_page_accepts_lone_surrogate():
    page = render_page({"name": "\ud800"})
    assert embedded(page) == {"name": "\ud800"}


def test_page_policy_contains_hashes_of_style_and_script():
    for data in (None, {"users": []}):
        page = render_page(data).decode()
        rules = page_policy(served=data is None)
        assert f'content="{rules}"' in page
        for tag in ("style", "script"):
            text = re.search(rf"<{tag}>(.*?)</{tag}>", page, re.S)
            assert text is not None
            digest = base64.b64encode(hashlib.sha256(text[1].encode()).digest()).decode()
            assert f"{tag}-src 'sha256-{digest}'" in rules
        assert ("connect-src" in rules) == (data is None)


def test_render_page_is_small_and_creates_no_html_from_text():
    page = render_page()
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


def test_report_data_of_200_users_and_100_000_items_is_below_2_mb(tmp_path):
    run = load_page_run(str(big_run(tmp_path / "run", 2000, 100)))
    data = report_data([run], None, {}, None)
    assert len(data["users"]) == 200
    assert len(render_page(data)) < 2_000_000


def test_report_data_that_is_too_large_has_fewer_users(tmp_path, monkeypatch):
    run = load_page_run(str(big_run(tmp_path / "run", 300, 50)))
    monkeypatch.setattr(page_data, "MAX_BYTES", 200_000)
    data = report_data([run], None, {}, None)
    assert 5 < len(data["users"]) < 200
    assert len(json.dumps(data, separators=(",", ":"))) <= 200_000
    activity = [view["n_history"] for view in data["views"][0]]
    assert activity == sorted(activity)
    assert activity[-1] == np.diff(run.fitted.histories.indptr).max()
    assert len(report_data([run], 200, {}, None)["users"]) == 200  # as many as requested


def test_report_data_numbers_equal_names_and_refuses_unknown_users(tmp_path):
    first = load_page_run(str(hostile_run(tmp_path / "a" / "run")))
    other = Recommender(model="popularity").fit(Interactions.of(["ø", "zoe"], ["x", "y"]))
    other.save(tmp_path / "b" / "run")
    data = report_data([first, load_page_run(str(tmp_path / "b" / "run"))], ["ø", "<!--"], {}, None)
    assert [run["name"] for run in data["runs"]] == ["run (1)", "run (2)"]
    assert [view is None for view in data["views"][1]] == [False, True]
    with pytest.raises(InputError, match="unknown users in run: 'zoe'"):
        report_data([first], ["zoe"], {}, None)


def test_run_summary_contains_no_path(tmp_path):
    split = taste_split(7)
    recommender = Recommender(recipe="none", **QUICK, alpha=0.5, beta=0.2).fit(split)
    measured = {"mf": evaluate(recommender.scorer(), split).summary()}
    run = recommender.save(tmp_path / "run", data="/home/ann/secret/films.csv", test=measured)
    summary = load_page_run(str(run)).summary
    assert summary["data"] == "films.csv"
    assert (summary["alpha"], summary["beta"], summary["loss"]) == (0.5, 0.2, "llpauc")
    assert summary["held_out"] == {"valid": 120, "test": 180}
    assert summary["test"]["mf"]["recall@20"] == measured["mf"]["all"]["recall@20"]
    assert recommender.history is not None
    assert [e["valid"] for e in summary["epochs"]] == [
        dict(e.valid) for e in recommender.history.epochs
    ]
    assert str(tmp_path) not in json.dumps(summary)
    assert "secret" not in json.dumps(summary)


# --- titles and tuning --------------------------------------------------------------------------


def test_read_titles_reads_csv_and_tsv(tmp_path):
    file = tmp_path / "items.csv"
    file.write_text(
        '\ufeffgenre,Title,item\nx,"A, B",007\ny,,8\nz,second,007\nshort\n', encoding="utf-8"
    )
    assert read_titles(str(file)) == {"007": "A, B"}
    (tmp_path / "items.tsv").write_text('item\ttitle\n7\t"Quoted"\n', encoding="utf-8")
    assert read_titles(str(tmp_path / "items.tsv")) == {"7": "Quoted"}
    assert read_titles(None) == {}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"item,name\n1,x\n", "no column title"),
        (b"", "no column item"),
        (b"item,title\n", "no row"),
        (b"item,title\n1,\xff\n", "not UTF-8"),
        (b"item,title\n1," + b"x" * 200_000 + b"\n", "not a table"),
        (None, "cannot be read"),
    ],
)
def test_read_titles_refuses_bad_file_in_one_line(tmp_path, content, message):
    file = tmp_path / "items.csv"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InputError, match=message) as error:
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


def test_read_tuning_bins_trials_by_alpha_and_beta(tmp_path):
    rows = [
        {"trial": n, "value": n / 10, "state": "complete", "alpha": alpha, "beta": beta}
        for n, (alpha, beta) in enumerate([(0.3, 0.1), (0.3, 0.4), (0.9, 0.1), (0.3, 0.1)])
    ]
    rows.append({"trial": 4, "value": 9, "state": "pruned", "alpha": 0.9, "beta": 0.4})
    rows.append({"trial": 5, "value": "", "state": "complete", "alpha": "", "beta": ""})
    tuning = read_tuning(str(write_trials(tmp_path / "t", rows)))
    assert tuning is not None
    assert tuning["values"] == [[0.3, 0.1], [0.2, None]]
    assert (tuning["alpha_values"], tuning["beta_values"]) == ([0.3, 0.9], [0.1, 0.4])
    assert tuning["best"] == {"trial": 3, "alpha": 0.3, "beta": 0.1, "value": 0.3}
    assert (tuning["metric"], tuning["trials"], tuning["complete"]) == ("ndcg@20", 6, 4)


def test_read_tuning_refuses_bad_folder(tmp_path):
    with pytest.raises(InputError, match="the folder that llpauc tune wrote"):
        read_tuning(str(tmp_path))
    pruned = [{"trial": 0, "value": 1, "state": "pruned", "alpha": 0.3, "beta": 0.1}]
    with pytest.raises(InputError, match="no complete trial"):
        read_tuning(str(write_trials(tmp_path / "t", pruned)))


# --- the command --------------------------------------------------------------------------------


def test_report_command_writes_one_file(tmp_path, capsys):
    split = taste_split(8)
    for name, model in (("one", "popularity"), ("two", "ease")):
        Recommender(recipe="none", model=model).fit(split).save(tmp_path / name)
    out = tmp_path / "deep" / "report.html"
    runs = [str(tmp_path / name) for name in ("one", "two")]
    assert main(["report", *runs, "--out", str(out), "--users", "7", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary == {"out": str(out), "runs": 2, "users": 7, "bytes": out.stat().st_size}
    assert [run["model"] for run in embedded(out.read_bytes())["runs"]] == ["popularity", "ease"]
    assert main(["report", runs[0], "--out", str(out), "--users", "u3,u1"]) == 0
    assert embedded(out.read_bytes())["users"] == ["u3", "u1"]
    assert [file.name for file in out.parent.iterdir()] == ["report.html"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["{}/nowhere"], "not a run folder"),
        (["{}/run", "{}/run"], "given twice"),
        (["{}/run", "--users", "0"], "users must be a whole number of at least 1"),
        (["{}/run", "--users", "unknown"], "unknown users in run: 'unknown'"),
        (["{}/run", "--items", "{}/nowhere"], "cannot be read"),
        (["{}/run", "--tuning", "{}/nowhere"], "llpauc tune"),
        (["{}/run", "--out", "{}"], "it is a folder"),
        (["{}/broken"], "damaged"),
    ],
)
def test_report_command_error_is_one_line_and_keeps_the_old_file(tmp_path, capsys, words, message):
    for name in ("run", "broken"):
        Recommender(model="popularity").fit(taste_split(9)).save(tmp_path / name)
    tensors = tmp_path / "broken" / "tensors.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:-1] + b"!")
    old = tmp_path / "report.html"
    old.write_text("old")
    given_out = [] if "--out" in words else ["--out", str(old)]
    assert main(["report", *(word.format(tmp_path) for word in words), *given_out]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert old.read_text() == "old"


# --- the server's routes ------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path) -> Path:
    return Recommender(recipe="none", **QUICK).fit(taste_split(10)).save(tmp_path / "run")


def test_page_route_sends_the_page_and_its_policy(run):
    with client_of(run) as client:
        answer = client.get("/")
    assert answer.content == render_page()
    assert answer.headers["content-type"].startswith("text/html")
    assert answer.headers["content-security-policy"].startswith(page_policy(served=True))
    assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]


def test_page_routes_require_the_key_except_the_page(run):
    paths = ["/page/about", "/page/users?text=u1", "/page/user?id=u1"]
    with client_of(run, KEY) as client:
        assert client.get("/").status_code == 200
        for path in paths:
            assert client.get(path).status_code == 401
            assert client.get(path, headers={"x-api-key": KEY}).status_code == 200


def test_page_routes_return_the_data_of_a_report(run):
    titles = {"i3": "Three"}
    catalogue = read_catalogue(pa.table({"item": list(titles), "title": list(titles.values())}))
    with client_of(run, catalogue=catalogue, tuning={"metric": "x"}) as client:
        about = client.get("/page/about").json()
        user = client.get("/page/user", params={"id": "u7"}).json()
        matches = client.get("/page/users", params={"text": "U5"}).json()
        suggested = client.get("/page/users").json()
    data = report_data([load_page_run(str(run))], ["u7"], titles, None)
    assert user["view"] == data["views"][0][0]
    assert user["items"] == data["items"]
    assert {**data["runs"][0], "run": user["run"]} == about["runs"][0]
    assert about["tuning"] == {"metric": "x"}
    assert matches["users"] == find_users(load_page_run(str(run)).fitted.user_ids, "u5")
    assert suggested["users"] == about["runs"][0]["suggested_users"]


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
def test_page_routes_handle_unusual_queries(run, path, status):
    with client_of(run) as client:
        answer = client.get(path)
    assert answer.status_code == status
    if status != 200:
        assert len(answer.json()["error"]) < 400
