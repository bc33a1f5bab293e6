"""`llpauc auto`: the clock is kept, validation alone chooses, the figures are what they say."""

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
from hypothesis import given, settings
from hypothesis import strategies as st

from llpauc.cli import main
from llpauc.data.interactions import Interactions, Split
from llpauc.data.recency import Recency
from llpauc.errors import InputError
from llpauc.evaluation.full_ranking import evaluate
from llpauc.models import Popularity
from llpauc.recommend import Recommender, recipes
from llpauc.report import document
from llpauc.search.auto import Budget, Outcome, finish, measures, running
from llpauc.search.auto.baselines import run_baselines
from llpauc.search.auto.contest import Contest, Listener, reserve
from llpauc.search.auto.plan import baseline, prepare, scout, sized_recipes, variants, work
from llpauc.search.auto.trained import train_candidate
from llpauc.training import Diverged
from llpauc.training.interrupt import StopRequest
from tests.datasets import random_split, taste_split


class Ticking:
    """A clock that moves by `step` whenever somebody looks at it."""

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


def contest_on(split: Split, budget: Budget) -> Contest:
    return Contest(split, budget, 20, 0, StopRequest(), Listener())


# --- the split ------------------------------------------------------------------------------------


def test_events_with_times_are_cut_once_for_all():
    parts = prepare(timed_events(), 0).split.parts
    times = [part.timestamps for part in parts.values()]
    assert times[0].max() < times[1].min()
    assert times[1].max() < times[2].min()


def test_users_who_come_one_after_another_are_cut_each_by_themselves():
    data = timed_events()
    in_turn = Interactions(
        data.users, data.items, data.user_ids, data.item_ids,
        timestamps=data.users * 1000.0 + np.arange(len(data)),
    )  # fmt: skip
    prepared = prepare(in_turn, 0)
    assert "each user's own last events" in prepared.how
    for user in range(in_turn.n_users):
        last = [p.timestamps[p.users == user].max() for p in prepared.split.parts.values()]
        assert last == sorted(last)
    assert "One cut" in prepare(in_turn, 0, "temporal").how


def test_events_without_times_are_drawn_with_the_seed():
    data = timed_events()
    bare = Interactions(data.users, data.items, data.user_ids, data.item_ids)
    one, same, other = (prepare(bare, seed).split.test for seed in (1, 1, 2))
    assert one.items.tolist() == same.items.tolist() != other.items.tolist()
    with pytest.raises(InputError, match="--how temporal needs a time"):
        prepare(bare, 0, "temporal")


def test_a_folder_is_taken_as_it_is_and_what_is_missing_is_held_out_of_train():
    whole = taste_split()
    assert prepare(whole, 0).split.parts == whole.parts
    held = prepare(Split(whole.train, None, whole.test), 0).split
    assert held.test is whole.test
    assert len(held.train) + len(held.valid) == len(whole.train)
    role = prepare(Split(whole.train, whole.valid), 0).split
    assert role.test is whole.valid


# --- settings -------------------------------------------------------------------------------------


def test_sizes_get_cheaper_and_the_scout_is_the_cheapest():
    train = random_split(0).train
    costs = [work(settings, train) for settings in sized_recipes(train).values()]
    assert costs == sorted(costs, reverse=True)
    assert len(set(costs)) == len(costs)
    assert work(scout(train).settings, train) < costs[-1]


@pytest.mark.parametrize("moves", [True, False])
def test_every_variant_is_a_setting_that_can_be_trained(moves):
    train = random_split(0).train
    moving = Recency(100.0 if moves else np.inf, "rows", "ndcg@20", {}, "")
    for size, base in sized_recipes(train).items():
        found = variants(size, base, train, moving)
        assert len({candidate.name for candidate in found}) == len(found) == 4 + moves
        for candidate in found:
            Recommender(**{**candidate.settings, "epochs": 1, "hold_out": 0.0}).fit(train)


def test_many_events_have_a_recipe_without_a_graph(monkeypatch):
    """Beyond half a million events the recipe is MF: there is no graph to leave out."""
    monkeypatch.setattr(recipes, "_MANY_EVENTS", 0)
    train = random_split(0).train
    assert "layers" not in scout(train).settings
    for size, base in sized_recipes(train).items():
        assert base["model"] == "mf"
        found = variants(size, base, train, None)
        settings = [sorted(candidate.settings.items(), key=str) for candidate in found]
        assert all(one not in settings[:at] for at, one in enumerate(settings))
        for candidate in found:
            Recommender(**candidate.settings)


# --- the clock ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [12.0, 60.0])
def test_the_budget_is_kept(seconds, monkeypatch):
    """Every epoch costs half a second, in the contest and in the fits at the end, and a trained
    model wins."""
    monkeypatch.setattr(running, "run_baselines", lambda contest: None)
    budget, price = ticking(seconds, 0.001), 0.5
    split = taste_split()
    fit_on = finish.fit_on

    def status(text: str) -> None:
        budget.clock.now += price if "epoch" in text else 0.0

    def charged(entry, parts, *args, **options):
        budget.clock.now += price * entry.best_epoch * sum(map(len, parts)) / len(split.train)
        return fit_on(entry, parts, *args, **options)

    monkeypatch.setattr(finish, "fit_on", charged)
    outcome = running.run(split, budget, hear=Listener(status=status))
    assert outcome.finish is not None
    assert outcome.finish.on_everything
    assert 0.3 * seconds < budget.passed <= 1.1 * seconds


def test_no_time_at_all_still_gives_lists():
    outcome = running.run(taste_split(), ticking(1e-6))
    assert outcome.finish is not None
    assert outcome.finish.winner.candidate.is_baseline
    assert outcome.contest.best_trained is None


def test_a_candidate_whose_time_is_out_keeps_the_best_epoch_it_can_pay_for():
    split = taste_split()
    contest = contest_on(split, ticking(6.0, 0.05))
    run_baselines(contest)
    entry = train_candidate(contest, scout(split.train))
    assert entry.ended == "out of time"
    assert 0 < entry.best_epoch <= len(entry.curve) < 100
    assert entry.valid == max(entry.curve[: entry.best_epoch])
    assert reserve(contest, entry, entry) <= 6.0


def test_a_candidate_validates_as_a_recommender_does():
    split = taste_split()
    contest = contest_on(split, ticking(1e6))
    candidate = scout(split.train)
    entry = train_candidate(contest, candidate)
    again = Recommender(**candidate.settings, seed=0).fit(split)
    assert entry.valid == evaluate(again.scorer(), split, on="valid").mean("ndcg@20")
    assert entry.best_epoch == again.history.best_epoch


def test_the_last_fit_is_given_up_when_time_is_out_and_nobody_gets_what_they_have(monkeypatch):
    monkeypatch.setattr(running, "run_baselines", lambda contest: None)
    monkeypatch.setattr(running, "search", lambda contest: None)
    budget = ticking(1e4)

    def status(text: str) -> None:
        if text.endswith("on everything"):
            budget.clock.now += 1e5

    split = taste_split()
    outcome = running.run(split, budget, hear=Listener(status=status))
    assert not outcome.finish.winner.candidate.is_baseline
    assert not outcome.finish.on_everything
    assert no_list_holds_what_its_user_has(outcome, split)


def test_a_winner_that_cannot_be_fitted_again_leaves_its_place_to_the_next(monkeypatch):
    monkeypatch.setattr(running, "search", lambda contest: None)
    real_fit, fitted = finish.fit_on, []

    def fit_on(entry, *rest):
        fitted.append(entry)
        if len(fitted) == 1:
            raise Diverged("as if")
        return real_fit(entry, *rest)

    monkeypatch.setattr(finish, "fit_on", fit_on)
    split = taste_split()
    outcome = running.run(split, ticking(1e6))
    first = fitted[0]
    assert outcome.finish.winner is not first
    assert outcome.finish.winner.value == max(f.entry.value for f in outcome.finish.finalists)
    assert "as if" in outcome.contest.left_out[first.candidate.name]
    assert no_list_holds_what_its_user_has(outcome, split)


def no_list_holds_what_its_user_has(outcome: Outcome, split: Split) -> bool:
    ids, _ = outcome.delivered.recommend(list(split.user_ids), k=5)
    has = {(u, i) for part in split.parts.values() for u, i in outside_pairs(part)}
    return not any((u, i) in has for u, row in zip(split.user_ids, ids, strict=True) for i in row)


def outside_pairs(part: Interactions) -> list[tuple[str, str]]:
    users, items = part.user_ids.ids(part.users), part.item_ids.ids(part.items)
    return list(zip(users, items, strict=True))


def test_ctrl_c_finishes_with_the_best_so_far():
    heard = []

    def status(text: str) -> None:
        if "epoch 3" in text and not heard:
            heard.append(text)
            os.kill(os.getpid(), signal.SIGINT)

    split = taste_split()
    outcome = running.run(split, ticking(1e6), hear=Listener(status=status))
    assert heard
    assert outcome.signal == signal.SIGINT
    assert sum(not entry.candidate.is_baseline for entry in outcome.contest.entries) == 1
    assert no_list_holds_what_its_user_has(outcome, split)


COMPILED = """
import sys
from numba.core.dispatcher import Dispatcher
from llpauc.search.auto.plan import scout, sized_recipes, variants
from llpauc.search.auto.trained import warm_up
from llpauc.recommend import Recommender
from tests.datasets import random_split

def kernels():
    modules = [module for name, module in list(sys.modules.items()) if name.startswith("llpauc")]
    found = {value for module in modules for value in vars(module).values()
             if isinstance(value, Dispatcher)}
    return {(kernel.py_func.__qualname__, signature)
            for kernel in found for signature in kernel.signatures}

warm_up()
before = kernels()
split = random_split(1)
candidates = [scout(split.train)]
for size, base in sized_recipes(split.train).items():
    candidates += variants(size, base, split.train, None)
for candidate in candidates:
    Recommender(**{**candidate.settings, "epochs": 2}).fit(split)
print(len(before), sorted(name for name, _ in kernels() - before))
"""


def test_no_candidate_compiles_within_the_budget():
    done = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    there, missing = done.stdout.split(maxsplit=1)
    assert int(there) > 10
    assert missing.strip() == "[]"


# --- who chooses ----------------------------------------------------------------------------------


def test_the_test_part_has_no_say(monkeypatch):
    """Other test events, as many of them: the same contest, to the last bit."""
    monkeypatch.setattr(running, "search", lambda contest: None)
    split = taste_split()
    rng = np.random.default_rng(3)
    moved = Interactions(
        split.test.users, rng.permutation(split.test.items), split.user_ids, split.item_ids
    )
    found = [
        running.run(Split(split.train, split.valid, test), ticking(1e6)).contest.entries
        for test in (split.test, moved)
    ]
    told = [[(e.candidate.name, e.valid, e.best_epoch) for e in entries] for entries in found]
    assert told[0] == told[1]


def test_the_winner_has_the_best_validation_figure_and_stands_first():
    outcome = running.run(taste_split(), ticking(30.0, 0.05))
    best = max(e.valid for e in outcome.contest.entries if e.valid is not None)
    assert outcome.finish.winner.valid == best
    names = [finalist.entry.candidate.model for finalist in outcome.finish.finalists]
    assert {"popularity", "itemknn", "ease"} <= set(names)
    assert outcome.finish.champion.entry is outcome.finish.winner


def test_test_figures_are_those_of_a_model_that_knows_all_before_the_test():
    split = taste_split()
    outcome = running.run(split, ticking(1e-6))
    popular = next(f for f in outcome.finish.finalists if f.entry.candidate.name == "popularity")
    seen = split.train.followed_by(split.valid)
    own = evaluate(Popularity.scorer_of(seen), Split(seen, None, split.test)).mean("ndcg@20")
    assert popular.result.mean("ndcg@20") == own


# --- figures --------------------------------------------------------------------------------------


def test_bootstrap_agrees_with_the_normal_interval():
    rng = np.random.default_rng(1)
    values = {"a": rng.random(4000), "b": rng.random(4000)}
    own, leads = measures.bootstrap(values, seed=0)
    for name, drawn in values.items():
        error = 1.96 * drawn.std() / np.sqrt(len(drawn))
        assert own[name].mean == pytest.approx(drawn.mean())
        assert own[name].low == pytest.approx(drawn.mean() - error, abs=0.15 * error)
        assert own[name].high == pytest.approx(drawn.mean() + error, abs=0.15 * error)
    gap = values["a"] - values["b"]
    error = 1.96 * gap.std() / np.sqrt(len(gap))
    assert leads["b"].high - leads["b"].low == pytest.approx(2 * error, rel=0.15)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=30), st.floats(0.01, 1))
@settings(max_examples=30, deadline=None)
def test_a_constant_lead_is_certain(values, more):
    drawn = np.array(values)
    _, leads = measures.bootstrap({"a": drawn + more, "b": drawn}, seed=0, resamples=50)
    assert (leads["b"].low, leads["b"].high) == pytest.approx((more, more))


@pytest.mark.parametrize("seed", range(3))
def test_activity_groups_part_the_users_and_their_means(seed):
    split = random_split(seed)
    result = evaluate(Popularity.scorer_of(split.train), split)
    groups = measures.by_activity({"popularity": result}, split, "ndcg@20")
    assert sum(group.users for group in groups) == len(result.users)
    total = sum(group.users * group.means["popularity"] for group in groups)
    assert total / len(result.users) == pytest.approx(result.mean("ndcg@20"))
    assert groups[0].name.startswith("no events")
    assert groups[0].users == (~result.warm).sum()


@pytest.mark.parametrize("seed", range(3))
def test_reach_as_a_naive_loop_finds_it(seed):
    split = random_split(seed)
    result = evaluate(Popularity.scorer_of(split.train), split)
    head = measures.head_of(split)
    found = measures.reach(result, split, head)
    listed, hits, asked = [], {True: 0, False: 0}, {True: 0, False: 0}
    for user, row in zip(result.users, result.items, strict=True):
        targets = set(split.test.items[split.test.users == user].tolist())
        own = [item for item in row.tolist() if item >= 0]
        listed += own
        for item in targets:
            asked[bool(head.items[item])] += 1
            hits[bool(head.items[item])] += item in own
    assert head.items.sum() == 9  # a tenth of the items
    assert found.coverage == len(set(listed)) / split.n_items
    assert found.head_share == pytest.approx(np.mean([head.items[item] for item in listed]))
    assert found.head_found == pytest.approx(hits[True] / asked[True])
    assert found.tail_found == pytest.approx(hits[False] / asked[False])


def test_a_rival_that_is_better_on_the_test_is_named():
    split = taste_split()
    outcome = running.run(split, ticking(1e-6))
    rival = outcome.finish.finalists[0].entry.candidate.name
    flat = outcome.measures
    worse = {name: measures.Interval(-0.1, -0.2, -0.05) for name in flat.leads}
    told = measures.weaknesses(
        measures.Measures(flat.figures, worse, [], flat.head, flat.reach, flat.users, 0),
        rival, moving=True,
    )  # fmt: skip
    for name in flat.leads:
        assert any(f"{name} is clearly better" in line for line in told)
    assert any("Tastes move" in line for line in told)


# --- documents ------------------------------------------------------------------------------------


class Wellformed(HTMLParser):
    """Every tag is closed in its turn; nothing is fetched from elsewhere."""

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


def test_names_are_no_markup():
    hostile = "<script>alert(1)</script>|x\n# y"
    told = [
        document.Heading(hostile), document.Text(hostile), document.Bullets([hostile]),
        document.Table([hostile], [[hostile]]), document.Code("a < b"),
        document.Bars(hostile, {hostile: {hostile: (0.5, 0.4, 0.6)}}),
    ]  # fmt: skip
    assert "script" not in check_html(document.as_html(hostile, told))
    markdown = document.as_markdown(hostile, told)
    assert "<script" not in markdown
    assert "\n# y" not in markdown
    assert "\\|x" in markdown


# --- the command ----------------------------------------------------------------------------------


def test_from_a_file_to_lists(tmp_path, capsys):
    data = timed_events()
    path, out = write_events(data, tmp_path / "events.csv"), tmp_path / "out"
    assert main(["auto", str(path), "--budget", "12s", "--out", str(out), "-k", "5"]) == 0
    told = capsys.readouterr()
    assert "popularity" in told.out
    assert "report.html" in told.err
    assert {file.name for file in out.iterdir()} == {
        "run", "recommendations.parquet", "report.html", "report.md", "config.toml"
    }  # fmt: skip
    run = Recommender.load(out / "run")
    rows = pq.read_table(out / "recommendations.parquet").to_pylist()
    users = list(dict.fromkeys(row["user"] for row in rows))
    assert sorted(users) == sorted(data.user_ids)
    ids, _ = run.recommend(users, k=5)
    lists = {user: [r["item"] for r in rows if r["user"] == user] for user in users}
    assert [lists[user] for user in users] == ids.tolist()
    has = set(outside_pairs(data))
    assert not any((row["user"], row["item"]) in has for row in rows)
    seen = check_html((out / "report.html").read_text(encoding="utf-8"))
    assert {"table", "svg", "h2"} <= seen
    markdown = (out / "report.md").read_text(encoding="utf-8")
    for heading in ("How good it is", "For whom", "Where it is weak", "What was tried", "Next"):
        assert f"## {heading}" in markdown
    again = ["train", str(path), "--config", str(out / "config.toml"), "--out", str(tmp_path / "n")]
    assert main(again) == 0
    assert Recommender.load(tmp_path / "n").model == run.model


@pytest.mark.parametrize("text", ["a,x\na,y\nb,x\nb,z\nc,x\n", "a,x\nb,y\n"])
def test_a_handful_of_events_gets_popularity(text, tmp_path, capsys):
    path = tmp_path / "few.csv"
    path.write_text("user,item\n" + text)
    assert main(["auto", str(path), "--budget", "9s", "--out", str(tmp_path / "out")]) == 0
    assert "too few events" in capsys.readouterr().out
    assert Recommender.load(tmp_path / "out" / "run").model == "popularity"
    check_html((tmp_path / "out" / "report.html").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ("a,x\na,y\n", [], "only one user"),
        ("", [], "empty"),
        ("a,x\nb,y\n", ["--budget", "soon"], "90s, 20m or 2h"),
        ("a,x\nb,y\n", ["--how", "temporal"], "needs a time"),
    ],
)
def test_what_cannot_be_used_is_said_in_a_line(text, options, said, tmp_path, capsys):
    path = tmp_path / "bad.csv"
    path.write_text("user,item\n" + text if text else "")
    assert main(["auto", str(path), "--out", str(tmp_path / "out"), *options]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("llpauc: error:")
    assert said in last
    assert not (tmp_path / "out").exists()


def test_a_folder_of_somebody_else_is_left_alone(tmp_path, capsys):
    path = write_events(timed_events(), tmp_path / "events.csv")
    (tmp_path / "out" / "run").mkdir(parents=True)
    (tmp_path / "out" / "run" / "mine.txt").write_text("mine")
    assert main(["auto", str(path), "--out", str(tmp_path / "out")]) == 2
    assert "is not a run folder" in capsys.readouterr().err


def test_baselines_have_a_reason():
    for model in ("popularity", "recent_popularity", "itemknn", "ease"):
        assert baseline(model).why
