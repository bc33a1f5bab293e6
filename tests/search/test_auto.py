"""`llpauc auto`: the budget, the choice by validation, the test results, the report."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from llpauc.cli import main
from llpauc.data.interactions import Interactions, Split
from llpauc.data.recency import Recency
from llpauc.errors import InputError
from llpauc.evaluation.full_ranking import evaluate
from llpauc.evaluation.significance import Interval
from llpauc.models import Popularity
from llpauc.models.registry import MODELS, untrained_models
from llpauc.recommend import Recommender, recipes
from llpauc.report import document
from llpauc.search import auto_search, comparison
from llpauc.search.auto_search import AutoResult, Search, auto, run_baselines, train_candidate
from llpauc.search.candidates import (
    baselines,
    method_name,
    prepare,
    scout,
    sized_recipes,
    variants,
    work,
)
from llpauc.search.trials import Budget
from llpauc.training import Diverged
from tests.datasets import random_split, taste_split


class Ticking:
    """A clock that moves by `step` at every call."""

    def __init__(self, step: float) -> None:
        self.now, self.step = 0.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def ticking(seconds: float, step: float = 0.01) -> Budget:
    return Budget(seconds, 0.0, Ticking(step))


def timed_events(seed: int = 0, n_users: int = 60) -> Interactions:
    """Two tastes, every user active over the whole time."""
    rng = np.random.default_rng(seed)
    rows = [
        (f"u{user}", f"i{item + 20 * (user % 2)}")
        for user in range(n_users)
        for item in rng.permutation(20)[:12]
    ]
    users, items = map(list, zip(*rows, strict=True))
    return Interactions.of(users, items, timestamps=rng.permutation(len(rows)))


def write_events(data: Interactions, path: Path) -> Path:
    lines = ["user,item,time"]
    users, items = data.user_ids.ids(data.users), data.item_ids.ids(data.items)
    assert data.timestamps is not None
    lines += [f"{u},{i},{t:.0f}" for u, i, t in zip(users, items, data.timestamps, strict=True)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


# --- the split ------------------------------------------------------------------------------------


def test_prepare_with_timestamps_cuts_once_for_all_users():
    parts = prepare(timed_events(), 0).split.parts
    times = [part.timestamps for part in parts.values()]
    assert times[0].max() < times[1].min()
    assert times[1].max() < times[2].min()


def test_prepare_successive_users_are_split_per_user():
    data = timed_events()
    in_turn = Interactions(
        data.users, data.items, data.user_ids, data.item_ids,
        timestamps=data.users * 1000.0 + np.arange(len(data)),
    )  # fmt: skip
    prepared = prepare(in_turn, 0)
    assert "The last events of each user" in prepared.how
    for user in range(in_turn.n_users):
        last = [p.timestamps[p.users == user].max() for p in prepared.split.parts.values()]
        assert last == sorted(last)
    assert "One cut" in prepare(in_turn, 0, "temporal").how


def test_prepare_without_timestamps_splits_at_random_by_seed():
    data = timed_events()
    bare = Interactions(data.users, data.items, data.user_ids, data.item_ids)
    one, same, other = (prepare(bare, seed).split.test for seed in (1, 1, 2))
    assert one.items.tolist() == same.items.tolist() != other.items.tolist()
    with pytest.raises(InputError, match="needs timestamps and this data has none"):
        prepare(bare, 0, "temporal")


def test_prepare_keeps_given_parts_and_holds_out_missing_ones():
    whole = taste_split()
    assert prepare(whole, 0).split.parts == whole.parts
    held = prepare(Split(whole.train, None, whole.test), 0).split
    assert held.test is whole.test
    assert len(held.train) + len(held.valid) == len(whole.train)
    role = prepare(Split(whole.train, whole.valid), 0).split
    assert role.test is whole.valid


# --- settings -------------------------------------------------------------------------------------


def test_sized_recipes_get_cheaper_and_scout_is_the_cheapest():
    train = random_split(0).train
    costs = [work(settings, train) for settings in sized_recipes(train).values()]
    assert costs == sorted(costs, reverse=True)
    assert len(set(costs)) == len(costs)
    assert work(scout(train).settings, train) < costs[-1]


@pytest.mark.parametrize("moves", [True, False])
def test_variants_can_all_be_trained(moves):
    train = random_split(0).train
    moving = Recency(100.0 if moves else np.inf, "rows", "ndcg@20", {}, "")
    for base in sized_recipes(train).values():
        found = variants(base, train, moving)
        assert len({candidate.name for candidate in found}) == len(found) == 4 + moves
        for candidate in found:
            Recommender(recipe="none", **{**candidate.settings, "epochs": 1, "hold_out": 0.0}).fit(
                train
            )


def test_variants_of_many_events_have_no_graph(monkeypatch):
    """Beyond 5 million events the recipe is MF, so there is no variant without the graph."""
    monkeypatch.setattr(recipes, "_GRAPH_EVENTS", 0)
    train = random_split(0).train
    assert "layers" not in scout(train).settings
    for base in sized_recipes(train).values():
        assert base["model"] == "mf"
        found = variants(base, train, None)
        settings = [sorted(candidate.settings.items(), key=str) for candidate in found]
        assert all(one not in settings[:at] for at, one in enumerate(settings))
        for candidate in found:
            Recommender(recipe="none", **candidate.settings)


# --- the clock ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [12.0, 60.0])
def test_auto_keeps_the_budget(seconds, monkeypatch):
    """Every epoch takes half a second, also in the final fits; a trained model wins."""
    monkeypatch.setattr(auto_search, "run_baselines", lambda search: None)
    budget, price = ticking(seconds, 0.001), 0.5
    split = taste_split()
    fit_again = auto_search.fit_again

    def progress(text: str, fraction: float) -> None:
        budget.clock.now += price if "epoch" in text else 0.0

    def charged(trial, parts, *args, **options):
        budget.clock.now += price * trial.best_epoch * sum(map(len, parts)) / len(split.train)
        return fit_again(trial, parts, *args, **options)

    monkeypatch.setattr(auto_search, "fit_again", charged)
    result = auto(split, budget, progress=progress)
    assert result.final is not None
    assert result.final.on_all_events
    assert 0.3 * seconds < budget.passed <= 1.1 * seconds


def test_auto_without_time_delivers_a_baseline():
    result = auto(taste_split(), ticking(1e-6))
    assert result.final is not None
    assert result.final.winner.candidate.is_baseline
    assert result.final.search.best_trained is None


def test_auto_on_a_slow_machine_trains_the_smallest_candidate(monkeypatch):
    """The baselines take 71 s of 180 s, and would take longer again in the end."""
    budget = ticking(180.0)
    fit = Recommender.fit

    def slow_fit(self, *given, **options):
        budget.clock.now += 71.0 if self.model == "ease" else 0.0
        return fit(self, *given, **options)

    monkeypatch.setattr(Recommender, "fit", slow_fit)
    result = auto(taste_split(), budget)
    trained = result.final.search.best_trained
    assert trained is not None
    assert trained.best_epoch > 0
    assert budget.passed < 1.1 * 180


def test_train_candidate_out_of_time_keeps_the_best_affordable_epoch():
    split = taste_split()
    search = Search(split, ticking(12.0, 0.05))
    run_baselines(search)
    trial = train_candidate(search, scout(split.train))
    assert trial.ended == "out of time"
    assert 0 < trial.best_epoch <= len(trial.curve) < 100
    assert trial.value == max(trial.curve[: trial.best_epoch])
    assert search.end_seconds(trial) <= 12.0


def test_train_candidate_has_the_validation_value_of_a_recommender():
    split = taste_split()
    search = Search(split, ticking(1e6))
    candidate = scout(split.train)
    trial = train_candidate(search, candidate)
    again = Recommender(recipe="none", **candidate.settings, seed=0).fit(split)
    assert trial.value == evaluate(again.scorer(), split, on="valid").mean("ndcg@20")
    assert trial.best_epoch == again.history.best_epoch


def test_auto_out_of_time_delivers_the_tested_model_without_seen_items(monkeypatch):
    monkeypatch.setattr(auto_search, "run_baselines", lambda search: None)
    monkeypatch.setattr(auto_search, "search_around_best", lambda search: None)
    budget = ticking(1e4)

    def progress(text: str, fraction: float) -> None:
        if text.endswith("on all events"):
            budget.clock.now += 1e5

    split = taste_split()
    result = auto(split, budget, progress=progress)
    assert not result.final.winner.candidate.is_baseline
    assert not result.final.on_all_events
    assert no_list_contains_seen_items(result, split)


def test_auto_winner_that_cannot_be_refitted_is_replaced_by_the_next(monkeypatch):
    monkeypatch.setattr(auto_search, "search_around_best", lambda search: None)
    original, fitted = auto_search.fit_again, []

    def fit_again(trial, *rest):
        fitted.append(trial)
        if len(fitted) == 1:
            raise Diverged("as if")
        return original(trial, *rest)

    monkeypatch.setattr(auto_search, "fit_again", fit_again)
    split = taste_split()
    result = auto(split, ticking(1e6))
    first = fitted[0]
    assert result.final.winner is not first
    assert result.final.winner.value == max(trial.value for trial in result.final.finalists)
    assert "as if" in result.final.search.skipped[first.candidate.name]
    assert no_list_contains_seen_items(result, split)


def no_list_contains_seen_items(result: AutoResult, split: Split) -> bool:
    ids, _ = result.recommender.recommend(list(split.user_ids), k=5)
    has = {(u, i) for part in split.parts.values() for u, i in id_pairs(part)}
    return not any((u, i) in has for u, row in zip(split.user_ids, ids, strict=True) for i in row)


def id_pairs(part: Interactions) -> list[tuple[str, str]]:
    users, items = part.user_ids.ids(part.users), part.item_ids.ids(part.items)
    return list(zip(users, items, strict=True))


def test_auto_ctrl_c_finishes_with_the_best_so_far():
    interrupted = []

    def progress(text: str, fraction: float) -> None:
        if "epoch 3" in text and not interrupted:
            interrupted.append(text)
            os.kill(os.getpid(), signal.SIGINT)

    split = taste_split()
    result = auto(split, ticking(1e6), progress=progress)
    assert interrupted
    assert result.signal == signal.SIGINT
    assert sum(not trial.candidate.is_baseline for trial in result.final.search.trials) == 1
    assert no_list_contains_seen_items(result, split)


COMPILED = """
import sys
from numba.core.dispatcher import Dispatcher
from llpauc.search.candidates import scout, sized_recipes, variants
from llpauc.search.auto_search import warm_up
from llpauc.recommend import Recommender
from tests.datasets import random_split

def kernels():
    modules = [module for name, module in list(sys.modules.items()) if name.startswith("llpauc")]
    found = {value for module in modules for value in vars(module).values()
             if isinstance(value, Dispatcher)}
    return {(kernel.py_func.__qualname__, signature)
            for kernel in found for signature in kernel.signatures}

split = random_split(1)
warm_up(split.train)
before = kernels()
candidates = [scout(split.train)]
for base in sized_recipes(split.train).values():
    candidates += variants(base, split.train, None)
for candidate in candidates:
    Recommender(recipe="none", **{**candidate.settings, "epochs": 2}).fit(split)
print(len(before), sorted(name for name, _ in kernels() - before))
"""


def test_warm_up_compiles_the_kernels_of_every_candidate():
    done = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    compiled, missing = done.stdout.split(maxsplit=1)
    assert int(compiled) > 10
    assert missing.strip() == "[]"


# --- choice by validation -------------------------------------------------------------------------


def test_auto_trials_do_not_depend_on_the_test_part(monkeypatch):
    """Other test events of the same number give exactly the same trials."""
    monkeypatch.setattr(auto_search, "search_around_best", lambda search: None)
    split = taste_split()
    rng = np.random.default_rng(3)
    moved = Interactions(
        split.test.users, rng.permutation(split.test.items), split.user_ids, split.item_ids
    )
    found = [
        auto(Split(split.train, split.valid, test), ticking(1e6)).final.search.trials
        for test in (split.test, moved)
    ]
    first, second = (
        [(t.candidate.name, t.value, t.best_epoch) for t in trials] for trials in found
    )
    assert first == second


def test_auto_winner_has_the_best_validation_value_and_is_first():
    result = auto(taste_split(), ticking(30.0, 0.05))
    best = max(e.value for e in result.final.search.trials if e.value is not None)
    assert result.final.winner.value == best
    names = [trial.candidate.model for trial in result.final.finalists]
    assert {"popularity", "itemknn", "ease"} <= set(names)
    assert result.final.finalists[0] is result.final.winner


def test_auto_test_metrics_are_of_models_fitted_on_train_and_valid():
    split = taste_split()
    result = auto(split, ticking(1e-6))
    popular = result.final.evaluations["Popularity"]
    seen = split.train.followed_by(split.valid)
    expected = evaluate(Popularity.scorer_of(seen), Split(seen, None, split.test))
    assert popular.mean("ndcg@20") == expected.mean("ndcg@20")


# --- comparison -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_by_activity_groups_partition_the_users(seed):
    split = random_split(seed)
    result = evaluate(Popularity.scorer_of(split.train), split)
    groups = comparison.by_activity({"popularity": result}, split, "ndcg@20")
    assert sum(group.users for group in groups) == len(result.users)
    total = sum(group.users * group.means["popularity"] for group in groups)
    assert total / len(result.users) == pytest.approx(result.mean("ndcg@20"))
    assert groups[0].name.startswith("no events")
    assert groups[0].users == (~result.warm).sum()


@pytest.mark.parametrize("seed", range(3))
def test_list_content_agrees_with_a_naive_loop(seed):
    split = random_split(seed)
    result = evaluate(Popularity.scorer_of(split.train), split)
    head = comparison.popular_items(split)
    found = comparison.list_content(result, split, head)
    listed, hits, targets_of = [], {True: 0, False: 0}, {True: 0, False: 0}
    for user, row in zip(result.users, result.items, strict=True):
        targets = set(split.test.items[split.test.users == user].tolist())
        shown = [item for item in row.tolist() if item >= 0]
        listed += shown
        for item in targets:
            targets_of[bool(head.items[item])] += 1
            hits[bool(head.items[item])] += item in shown
    assert head.items.sum() == 9  # a tenth of the items
    assert found.coverage == len(set(listed)) / split.n_items
    assert found.popular == pytest.approx(np.mean([head.items[item] for item in listed]))
    assert found.popular_hits == pytest.approx(hits[True] / targets_of[True])
    assert found.other_hits == pytest.approx(hits[False] / targets_of[False])


def test_weaknesses_name_a_better_rival():
    split = taste_split()
    result = auto(split, ticking(1e-6))
    rival = result.final.finalists[0].candidate.name
    flat = result.final.comparison
    worse = {name: Interval(-0.1, -0.2, -0.05) for name in flat.leads}
    output = comparison.weaknesses(
        comparison.Comparison(flat.intervals, worse, [], flat.popular, flat.lists, flat.users, 0),
        rival, moving=True,
    )  # fmt: skip
    for name in flat.leads:
        assert any(f"{name} is clearly better" in line for line in output)
    assert any("Interests change" in line for line in output)


# --- documents ------------------------------------------------------------------------------------


class Wellformed(HTMLParser):
    """Checks that tags are nested correctly and that nothing external is loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag, attrs):
        self.seen.add(tag)
        assert not {"src", "href"} & {name for name, _ in attrs}
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def check_html(text: str) -> set[str]:
    parser = Wellformed()
    parser.feed(text)
    assert not parser.open
    assert "://" not in text
    return parser.seen


def test_as_html_and_as_markdown_escape_markup():
    hostile = "<script>alert(1)</script>|x\n# y"
    output = [
        document.Heading(hostile), document.Text(hostile), document.Bullets([hostile]),
        document.Table([hostile], [[hostile]]), document.Code("a < b"),
        document.Bars(hostile, {hostile: {hostile: (0.5, 0.4, 0.6)}}),
    ]  # fmt: skip
    assert "script" not in check_html(document.as_html(hostile, output))
    markdown = document.as_markdown(hostile, output)
    assert "<script" not in markdown
    assert "\n# y" not in markdown
    assert "\\|x" in markdown


# --- the command ----------------------------------------------------------------------------------


def test_auto_command_writes_run_lists_report_and_config(tmp_path, capsys):
    data = timed_events()
    path, out = write_events(data, tmp_path / "events.csv"), tmp_path / "out"
    assert main(["auto", str(path), "--budget", "12s", "--out", str(out), "-k", "5"]) == 0
    output = capsys.readouterr()
    assert "Popularity" in output.out
    assert "report.html" in output.err
    assert {file.name for file in out.iterdir()} == {
        "manifest.json", "run", "recommendations.parquet", "report.html", "report.md", "config.toml"
    }  # fmt: skip
    run = Recommender.load(out / "run")
    rows = pq.read_table(out / "recommendations.parquet").to_pylist()
    users = list(dict.fromkeys(row["user"] for row in rows))
    assert sorted(users) == sorted(data.user_ids)
    ids, _ = run.recommend(users, k=5)
    lists = {user: [r["item"] for r in rows if r["user"] == user] for user in users}
    assert [lists[user] for user in users] == ids.tolist()
    has = set(id_pairs(data))
    assert not any((row["user"], row["item"]) in has for row in rows)
    seen = check_html((out / "report.html").read_text(encoding="utf-8"))
    assert {"table", "svg", "h2"} <= seen
    markdown = (out / "report.md").read_text(encoding="utf-8")
    for heading in ("Test results", "By user activity", "Weaknesses", "Trials", "Next"):
        assert f"## {heading}" in markdown
    again = [
        "train",
        "--recipe=none",
        str(path),
        "--config",
        str(out / "config.toml"),
        "--out",
        str(tmp_path / "n"),
    ]
    assert main(again) == 0
    assert Recommender.load(tmp_path / "n").model == run.model


@pytest.mark.parametrize("text", ["a,x\na,y\nb,x\nb,z\nc,x\n", "a,x\nb,y\n"])
def test_auto_command_with_few_events_delivers_popularity(text, tmp_path, capsys):
    path = tmp_path / "few.csv"
    path.write_text("user,item\n" + text)
    assert main(["auto", str(path), "--budget", "9s", "--out", str(tmp_path / "out")]) == 0
    assert "too few events" in capsys.readouterr().out
    assert Recommender.load(tmp_path / "out" / "run").model == "popularity"
    check_html((tmp_path / "out" / "report.html").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        ("a,x\na,y\n", [], "only one user"),
        ("", [], "empty"),
        ("a,x\nb,y\n", ["--budget", "soon"], "90s, 20m or 2h"),
        ("a,x\nb,y\n", ["--how", "temporal"], "needs timestamps"),
    ],
)
def test_auto_command_bad_input_is_one_line(text, options, expected, tmp_path, capsys):
    path = tmp_path / "bad.csv"
    path.write_text("user,item\n" + text if text else "")
    assert main(["auto", str(path), "--out", str(tmp_path / "out"), *options]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("llpauc: error:")
    assert expected in last
    assert not (tmp_path / "out").exists()


def test_auto_command_does_not_overwrite_a_foreign_folder(tmp_path, capsys):
    path = write_events(timed_events(), tmp_path / "events.csv")
    (tmp_path / "out" / "run").mkdir(parents=True)
    (tmp_path / "out" / "run" / "mine.txt").write_text("mine")
    assert main(["auto", str(path), "--out", str(tmp_path / "out")]) == 2
    assert "is not empty and is not a folder of llpauc auto" in capsys.readouterr().err
    assert (tmp_path / "out" / "run" / "mine.txt").read_text() == "mine"


KILL = """
import importlib, os, sys
from llpauc.cli import main
module, _, name = sys.argv[1].rpartition(".")
module = importlib.import_module(module)
original, calls = getattr(module, name), []
def kill(*args, **options):
    calls.append(1)
    if len(calls) == int(sys.argv[2]):
        os.kill(os.getpid(), 9)
    return original(*args, **options)
setattr(module, name, kill)
main(sys.argv[3:])
"""


@pytest.mark.parametrize(
    ("place", "call"),
    [
        ("llpauc.search.auto_report.write_recommendations", 1),  # the run is saved
        pytest.param("llpauc.report.document.as_html", 1, marks=pytest.mark.slow),
        pytest.param("llpauc.storage.manifest.replace_folder", 2, marks=pytest.mark.slow),
    ],
)
def test_auto_command_killed_while_writing_leaves_the_old_folder(tmp_path, place, call):
    path, out = write_events(timed_events(), tmp_path / "events.csv"), tmp_path / "out"
    words = ["auto", str(path), "--budget", "1s", "--out", str(out)]
    assert main(words) == 0
    before = {file: file.read_bytes() for file in out.rglob("*") if file.is_file()}
    killed = subprocess.run(
        [sys.executable, "-c", KILL, place, str(call), *words, "-k", "3"], capture_output=True
    )
    assert killed.returncode == -9
    assert {file: file.read_bytes() for file in out.rglob("*") if file.is_file()} == before
    assert main(words) == 0
    assert sorted(file.name for file in tmp_path.iterdir()) == ["events.csv", "out"]


def test_baselines_have_a_name_and_a_description():
    assert [c.name for c in baselines("ease")] == ["EASE"]
    assert [c.name for c in baselines("itemknn")][:2] == [
        "ItemKNN, neighbours 100", "ItemKNN, neighbours 30"
    ]  # fmt: skip
    for model in untrained_models():
        assert all(candidate.description for candidate in baselines(model))


def test_method_name_of_every_model_is_readable():
    settings = {"loss": "llpauc", "dimensions": 64}
    for model in MODELS:
        name = method_name({"model": model, **settings})
        assert any(letter.isupper() for letter in name)
        assert "_" not in name
