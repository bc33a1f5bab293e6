"""`llpauc tune`: the search space, trials, workers, and the files it writes."""

from __future__ import annotations

import csv
import itertools
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.trial import TrialState
from scipy.stats import f_oneway, rankdata

from llpauc.cli import main
from llpauc.data.interactions import Interactions, Split, fingerprint
from llpauc.data.readers import read_interactions
from llpauc.data.writers import write_split
from llpauc.errors import InputError
from llpauc.losses import LOSSES, suggest_alpha_beta
from llpauc.models.registry import trained_models
from llpauc.options import LogRange, options_of
from llpauc.recommend import Recommender
from llpauc.recommend.parameters import plan
from llpauc.recommend.recipes import RECIPES, moving, settled
from llpauc.report.tuning import AlphaBeta, best_in_bins
from llpauc.search import space as spaces
from llpauc.search import study as studies
from llpauc.search import tuning as tunings
from llpauc.search.space import plan_grid, plan_space
from llpauc.search.trials import parse_budget
from llpauc.search.tuning import (
    TrialRecord,
    Tuning,
    run_study_trial,
    tune,
    validation_split,
)
from llpauc.search.tuning_report import as_rows, config_of, importances
from llpauc.training.interrupt import StopRequest
from tests.datasets import taste_split

ENVIRONMENT = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "1"}


SPLIT = taste_split()
VALIDATION = Split(SPLIT.train, SPLIT.valid)
SMALL = {"dimensions": (4, 8), "batch_size": (64,), "negatives": (5, 10)}


def a_tuning(storage, split=SPLIT, losses=("llpauc",), models=("mf",), **given) -> Tuning:
    recipe = RECIPES["auto"](split.train, split.valid)
    space, _ = plan_space(split, losses, models, "ndcg@20", recipe)
    space |= SMALL
    points = spaces.starting_points(space, suggest_alpha_beta(split.train), recipe)
    usual = {"trials": 5, "epochs": 2, "pruner": "none", "storage": str(storage)}
    return Tuning(space, points, **{**usual, **given})


@pytest.fixture
def cli(capsys):
    """Run the command line here: exit code, stdout, stderr."""

    def run(*words: object) -> tuple[int, str, str]:
        try:
            code = main([str(word) for word in words])
        except SystemExit as end:
            code = int(end.code or 0)
        return code, *capsys.readouterr()

    return run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("data") / "split"
    write_split(SPLIT, made)
    return made


@pytest.fixture(scope="module")
def space_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("space") / "space.toml"
    path.write_text("dimensions = [4, 8]\nbatch_size = 64\nnegatives = [5, 10]\n")
    return path


def records(out: Path) -> list[dict[str, str]]:
    with (out / "trials.csv").open() as file:
        return list(csv.DictReader(file))


# --- the budget -----------------------------------------------------------------------------------


@given(st.integers(1, 10_000), st.sampled_from([("s", 1), ("m", 60), ("h", 3600)]))
def test_parse_budget_takes_a_number_and_a_unit(number, unit):
    assert parse_budget(f"{number}{unit[0]}") == number * unit[1]
    assert parse_budget(f" {number} {unit[0].upper()} ") == number * unit[1]


@pytest.mark.parametrize("text", ["soon", "", "20", "m", "-5m", "0s", "1h30m", "nan s", "5 days"])
def test_parse_budget_invalid_text_raises(text):
    with pytest.raises(InputError, match="90s, 20m or 2h"):
        parse_budget(text)


# --- the space ------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("model", trained_models())
def test_default_space_contains_the_defaults_of_every_loss_and_model(loss, model):
    space = spaces.default_space(SPLIT.train, [loss], [model])
    spaces.check_space(space)
    found = plan(model, loss, spaces.without_names(spaces.default_point(space)))
    default = plan(model, loss, {})
    assert (found.model_options, found.training) == (default.model_options, default.training)
    assert repr(found.make_loss()) == repr(default.make_loss())


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from(list(LOSSES)))
def test_suggest_draws_points_that_can_be_trained(seed, loss):
    space = spaces.default_space(SPLIT.train, [loss, "llpauc"], ["mf", "lightgcn"])
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
    point = spaces.suggest(study.ask(), space)
    made = plan(
        point["model"], point["loss"], spaces.without_names(point)
    )  # raises for a combination that cannot be trained
    assert ("temperature" in point) == (
        "temperature" in options_of(LOSSES[point["loss"]]) or point.get("score") == "cosine"
    )
    assert ("negatives" in point) == (point["sampler"] != "all-items")
    assert ("layers" in point) == (point["model"] == "lightgcn")
    assert ("alpha" in point) == (point["loss"] == "llpauc")
    assert made.loss == point["loss"]


def test_default_space_alpha_and_beta_surround_the_suggestion():
    found = suggest_alpha_beta(SPLIT.train)
    space = spaces.default_space(SPLIT.train, ["llpauc"], ["mf"])
    for name, starts in (
        ("alpha", (found.alpha, 0.7)),
        ("beta", (found.beta, found.beta_measured, 0.1)),
    ):
        values = space[name]
        assert values.low <= min(starts) / 2.9
        assert values.high == pytest.approx(min(1, 3 * max(starts)))


def test_tune_starts_with_defaults_recipe_and_suggestion(tmp_path):
    tuning = a_tuning(tmp_path / "s.journal", trials=4)
    rows = {row.number: row for row in tune(SPLIT, tuning).records}
    records = {record["trial"]: record for record in as_rows(list(rows.values()))}
    found = suggest_alpha_beta(SPLIT.train)
    assert rows[0].starting_point == "defaults"
    assert (rows[0].params["alpha"], rows[0].params["beta"]) == (0.7, 0.1)
    assert rows[1].starting_point == "near the recipe"  # MF, and narrower
    assert (rows[1].params["init"], rows[1].params["solver"]) == ("spectral", "per-user")
    assert (records[1]["starting_point"], records[1]["init"]) == (
        rows[1].starting_point,
        "spectral",
    )
    for number, score in ((2, "dot"), (3, "cosine")):
        params = rows[number].params
        assert params["score"] == score
        assert (params["alpha"], params["beta"]) == (found.alpha, found.beta_measured)


@pytest.mark.parametrize("models", [("mf",), ("lightgcn", "mf"), ("fism",)])
@pytest.mark.parametrize("losses", [("llpauc",), ("sl",), ("bpr", "llpauc")])
@pytest.mark.parametrize("kind", ["settled", "moving"])
def test_plan_space_contains_the_recipe(kind, losses, models):
    made = {"settled": settled(SPLIT.train), "moving": moving(SPLIT.train, half_life=50.0)}
    expected = made[kind]
    points = plan_space(SPLIT, losses, models, "ndcg@20", expected)[1]
    whole = "llpauc" in losses and expected["model"] in models
    point = points["recipe" if whole else "near the recipe"]
    assert point["loss"] == ("llpauc" if "llpauc" in losses else losses[0])
    assert point["model"] == (expected["model"] if expected["model"] in models else models[0])
    others = {"loss", "model"} | ({"temperature"} if point["loss"] == "sl" else set())
    same = [n for n in point if n in expected and n not in others]
    assert {n: point[n] for n in same} == {n: expected[n] for n in same}
    specific = {"settled": {"init"}, "moving": {"half_life"}}[kind]
    assert specific | ({"alpha", "beta"} if point["loss"] == "llpauc" else set()) <= set(same)
    assert ("item_bias" in same) == (kind == "moving" and point["model"] != "lightgcn")
    assert ("solver" in same) == (kind == "settled" and point["loss"] == "llpauc")
    plan(point["model"], point["loss"], spaces.without_names(point))


def test_tune_command_makes_the_recipe_from_the_whole_file(tmp_path, cli):
    """A random hold-out hides how interests change, so the recipe is made from the whole file."""
    generator = np.random.default_rng(0)
    at = np.arange(6_000)
    items = at // 60 + generator.integers(0, 5, len(at))
    rows = zip(generator.integers(0, 300, len(at)), items, at, strict=True)
    path = tmp_path / "news.csv"
    path.write_text("user,item,timestamp\n" + "".join(f"{u},{i},{t}\n" for u, i, t in rows))
    code, printed, _ = cli(
        "tune", path, "--out", tmp_path / "t", "--trials", 2, "--epochs", 1, "--json"
    )
    assert code == 0
    trial = next(row for row in json.loads(printed)["trials"] if row["starting_point"] == "recipe")
    expected = RECIPES["single"](read_interactions(path).interactions, None)
    assert trial["half_life"] == expected["half_life"]
    assert trial["item_bias"] is True


def test_default_space_large_catalogue_has_no_all_items_sampler():
    train = Interactions.of(range(6000), range(6000))
    assert "all-items" not in spaces.default_space(train, ["llpauc"], ["mf"])["sampler"]
    assert "all-items" in spaces.default_space(SPLIT.train, ["llpauc"], ["mf"])["sampler"]


def test_read_space_changes_the_space(tmp_path):
    path = tmp_path / "space.toml"
    path.write_text('lr = 0.01\nlayers = [1, 4]\nsharpness = { low = 1, high = 10 }\nsolver="sgda"')
    space = spaces.read_space(path, spaces.default_space(SPLIT.train, ["llpauc"], ["lightgcn"]))
    spaces.check_space(space)
    assert space["lr"] == (0.01,)
    assert space["layers"] == (1, 4)
    assert space["sharpness"] == LogRange(1.0, 10.0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nonsense = 3", "nonsense"),
        ("lr = { low = 1 }", "low and high"),
        ("lr = { low = 0, high = 1 }", "0 < low"),
        ("dimensions = [0]", "dimensions must be"),
        ("beta = 1.5", "beta must be in"),
        ('sampler = "lucky"', "unknown sampler 'lucky'"),
        ("lr = []", "expected numbers or names"),
        ("seed = 3", "an option of the command"),
        ("lr = ", "is not valid TOML"),
    ],
)
def test_tune_command_invalid_space_is_one_line(cli, folder, tmp_path, text, expected):
    (tmp_path / "space.toml").write_text(text)
    space = tmp_path / "space.toml"
    code, _, err = cli("tune", folder, "--out", tmp_path / "o", "--trials", 1, "--space", space)
    assert code == 2
    assert expected in err.splitlines()[-1]


def test_tune_paper_grid_tries_every_cell_once(tmp_path):
    space, points = plan_grid("paper", ("llpauc",), ("mf",))
    expected = set(itertools.product(
        [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9], [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 0.7, 0.9]
    ))  # fmt: skip
    space |= {"dimensions": (2,), "batch_size": (512,), "negatives": (2,)}
    points = spaces.grid_points(space)
    tuning = Tuning(
        space, points, only_points=True, epochs=1, pruner="none", storage=str(tmp_path / "g")
    )
    result = tune(SPLIT, tuning)
    tried = [(row.params["alpha"], row.params["beta"]) for row in result.records]
    assert len(tried) == 72
    assert set(tried) == expected
    assert len(tune(SPLIT, tuning).records) == 72  # a second call finds nothing to do


# --- validation only ------------------------------------------------------------------------------


class Untouchable:
    """Events whose id maps may be compared, as a split does, and nothing else."""

    def __init__(self, like: Interactions) -> None:
        self.user_ids, self.item_ids = like.user_ids, like.item_ids

    def __getattr__(self, name):
        raise AssertionError(f"the test part's {name} was read")

    def __len__(self):
        raise AssertionError("the test part was counted")


def test_tune_never_reads_the_test_part(tmp_path):
    guarded = Split(SPLIT.train, SPLIT.valid, Untouchable(SPLIT.train))
    with pytest.raises(AssertionError, match="was read"):
        _ = guarded.test.users
    assert tune(guarded, a_tuning(tmp_path / "s.journal")).best is not None
    for valid in (SPLIT.valid, None):  # workers do not get it either
        whole = Split(SPLIT.train, valid, Untouchable(SPLIT.train))
        assert validation_split(whole, 0.2, 0).test is None


def test_tune_command_trials_do_not_depend_on_test_events(cli, tmp_path, space_file):
    """With the test items shuffled among the test users, every value is exactly the same."""
    found = []
    for name, test in (("one", SPLIT.test), ("two", _shuffled(SPLIT.test))):
        write_split(Split(SPLIT.train, SPLIT.valid, test), tmp_path / name)
        out = tmp_path / f"{name}-out"
        words = ("--trials", 4, "--epochs", 2, "--space", space_file)
        assert cli("tune", tmp_path / name, "--out", out, *words)[0] == 0
        found.append([{**row, "seconds": ""} for row in records(out)])
    assert found[0] == found[1]


def _shuffled(events: Interactions) -> Interactions:
    order = np.random.default_rng(0).permutation(len(events))
    return replace(events, items=events.items[order])


def test_validation_split_holds_out_as_the_recommender_does():
    alone = Split(SPLIT.train)
    held = validation_split(alone, 0.2, 3)
    options = {"dimensions": 4, "epochs": 2, "seed": 3, "negatives": 5}
    one = Recommender(recipe="none", hold_out=0.2, **options).fit(alone).history
    other = Recommender(recipe="none", **options).fit(held).history
    assert [epoch.valid for epoch in one.epochs] == [epoch.valid for epoch in other.epochs]


# --- one trial ------------------------------------------------------------------------------------


def _ask(pruner=None):
    study = optuna.create_study(direction="maximize", pruner=pruner or optuna.pruners.NopPruner())
    space = {"model": ("mf",), "loss": ("llpauc",), "dimensions": (4,), "negatives": (5,)}
    return study.ask(), space


FIXED = {"seed": 0, "epochs": 6, "patience": 6, "valid_metric": "ndcg@20", "device": "cpu"}
SAME = {"dimensions": 4, "negatives": 5, "seed": 0}


def test_run_study_trial_has_the_values_of_a_recommender():
    trial, space = _ask()
    result = run_study_trial(trial, VALIDATION, space, FIXED)
    history = Recommender(recipe="none", epochs=6, patience=6, **SAME).fit(SPLIT).history
    values = [epoch.valid["ndcg@20"] for epoch in history.epochs]
    assert (result.value, result.best_epoch) == (max(values), history.best_epoch)
    reported = trial.study.get_trials()[0].intermediate_values
    assert list(reported.values()) == values


class _AtEpoch(optuna.pruners.BasePruner):
    def __init__(self, epoch):
        self.epoch = epoch

    def prune(self, study, trial):
        return trial.last_step == self.epoch


def test_run_study_trial_pruned_restores_signal_handlers():
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    trial, space = _ask(_AtEpoch(2))
    result = run_study_trial(trial, VALIDATION, space, FIXED)
    assert (result.ended, len(result.curve)) == ("pruned", 2)
    assert before == {number: signal.getsignal(number) for number in before}


def test_run_study_trial_at_the_deadline_has_its_best_value_so_far():
    trial, space = _ask()
    result = run_study_trial(
        trial, Split(SPLIT.train, SPLIT.valid), space, FIXED, time.monotonic() - 1, True
    )
    history = Recommender(recipe="none", epochs=1, **SAME).fit(SPLIT).history
    assert (result.ended, len(result.curve)) == ("budget", 1)
    assert result.value == history.epochs[0].valid["ndcg@20"]


def test_run_study_trial_without_a_value_at_the_deadline_has_no_time(monkeypatch):
    """`on_batch` is called at most ten times a second, so every batch is made to last that long."""
    from llpauc.training import engine

    step = engine.CpuEngine.step
    monkeypatch.setattr(
        engine.CpuEngine, "step", lambda *given: (time.sleep(0.11), step(*given))[1]
    )
    trial, space = _ask()
    late = time.monotonic() - 1
    result = run_study_trial(
        trial, Split(SPLIT.train, SPLIT.valid), space, FIXED, late, needed=False
    )
    assert (result.ended, result.value) == ("no time", None)


@pytest.mark.parametrize(("tick", "whole"), [(0.0, 1), (1.0, 0)])
@pytest.mark.parametrize("epochs", [1, 6])
def test_run_study_trial_handles_a_stop_request_from_before_training(
    epochs, tick, whole, monkeypatch
):
    """The signal arrives while the sampler draws; `fit` handles only later ones.

    Training stops at the end of the epoch, or within it where batches take time.
    """
    clock = itertools.count(step=tick)
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    trial, space = _ask()
    stop = StopRequest(signal.SIGTERM)
    fixed = {**FIXED, "epochs": epochs}
    result = run_study_trial(trial, VALIDATION, space, fixed, stop=stop)
    assert (result.ended, len(result.curve), result.signal) == (
        "interrupted",
        whole,
        signal.SIGTERM,
    )


def test_tune_diverged_trials_do_not_end_the_study(tmp_path):
    tuning = a_tuning(tmp_path / "s.journal", trials=2)
    space = {**tuning.space, "lr": (1e30,), "score": ("dot",)}
    points = {
        "first": spaces.default_point(space),
        "second": spaces.default_point(space, alpha=0.5),
    }
    with pytest.raises(RuntimeError, match=r"no trial of 2 .* diverged") as raised:
        tune(SPLIT, replace(tuning, space=space, points=points))
    assert type(raised.value).__module__.startswith("llpauc.")  # one line, exit code 1


# --- resuming -------------------------------------------------------------------------------------


def _values(result):
    return [(row.number, row.params, row.value, row.ended) for row in result.records]


def test_tune_resumed_study_equals_an_uninterrupted_one(tmp_path):
    whole = tune(SPLIT, a_tuning(tmp_path / "a.journal", trials=14))
    tune(SPLIT, a_tuning(tmp_path / "b.journal", trials=6))
    later = tune(SPLIT, a_tuning(tmp_path / "b.journal", trials=14))
    assert _values(whole) == _values(later)
    assert len({str(row.params) for row in whole.records}) == 14  # nothing is tried twice


def test_tune_other_seed_draws_other_points(tmp_path):
    points = [
        str([row.params for row in tune(SPLIT, a_tuning(tmp_path / str(s), seed=s)).records])
        for s in (0, 1)
    ]
    assert points[0] != points[1]


def test_tune_study_with_other_settings_raises(tmp_path):
    place = tmp_path / "s.journal"
    tune(SPLIT, a_tuning(place, trials=1))
    with pytest.raises(InputError, match="was made with valid_metric"):
        tune(SPLIT, a_tuning(place, trials=2, metric="recall@5"))
    with pytest.raises(InputError, match="was made with data"):
        tune(taste_split(2), a_tuning(place, trials=2))
    optuna.create_study(storage=studies.open_storage(str(place)), study_name="theirs").add_trial(
        optuna.trial.create_trial(value=1.0)
    )
    with pytest.raises(InputError, match="not a study of llpauc"):
        tune(SPLIT, a_tuning(place, study="theirs"))


def _abandoned(tuning, worker, **more):
    """A trial that another process has started and not ended."""
    study = tuning.open(fingerprint(SPLIT.train, SPLIT.valid))
    trial = study.ask()
    spaces.suggest(trial, tuning.space)
    for name, value in {"worker": worker, **more}.items():
        trial.set_user_attr(name, value)
    return trial


def _ended_process() -> dict[str, object]:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    who = {
        "machine": studies.machine(),
        "pid": ended.pid,
        "started": studies.process_start(ended.pid),
    }
    assert who["started"] is not None
    ended.wait()
    return who


@pytest.mark.parametrize("storage", ["{}/s.journal", "sqlite:///{}/s.db"])
def test_tune_runs_the_trial_of_a_dead_process_again(tmp_path, storage):
    tuning = a_tuning(storage.format(tmp_path), trials=5)
    abandoned = _abandoned(tuning, _ended_process())
    rows = {row.number: row for row in tune(SPLIT, tuning).records}
    again = next(row for row in rows.values() if row.rerun_of == abandoned.number)
    assert rows[abandoned.number].state == "lost"
    assert again.is_complete
    assert again.params == abandoned.params
    assert sum(row.is_complete for row in rows.values()) == 5


def test_tune_leaves_the_trial_of_a_running_process(tmp_path):
    tuning = a_tuning(tmp_path / "s.journal", trials=4)
    abandoned = _abandoned(tuning, studies.current_worker())
    rows = {row.number: row for row in tune(SPLIT, tuning).records}
    assert rows[abandoned.number].state == "running"
    assert sum(row.is_complete for row in rows.values()) == 3  # the fourth is running elsewhere


def test_is_alive_distinguishes_processes_with_the_same_id():
    me = studies.current_worker()
    assert studies.is_alive(me)
    assert studies.is_alive({**me, "started": "1"}) is False
    assert studies.is_alive({**me, "machine": "elsewhere"}) is None
    assert studies.is_alive(None) is None


def test_tune_remote_trial_without_heartbeats_is_lost(tmp_path):
    tuning = a_tuning(tmp_path / "s.journal", trials=5, grace=0.5)
    far = {"machine": "elsewhere", "pid": 1, "started": "1"}
    abandoned = _abandoned(tuning, far, heartbeat=7)
    rows = {row.number: row for row in tune(SPLIT, tuning).records}  # waits for it at the end
    assert any(row.rerun_of == abandoned.number and row.is_complete for row in rows.values())


def test_lost_trials_remote_trial_with_heartbeats_is_alive(tmp_path):
    tuning = a_tuning(tmp_path / "s.journal", grace=0.05)
    trial = _abandoned(tuning, {"machine": "elsewhere", "pid": 1, "started": "1"})
    lost = studies.LostTrials(0.05)
    for beat in range(4):
        trial.set_user_attr("heartbeat", beat)
        time.sleep(0.03)
        assert not lost.find(trial.study.get_trials())
    assert not lost.uncertain(trial.study.get_trials())
    time.sleep(0.06)
    assert lost.find(trial.study.get_trials())


def test_requeue_gives_up_after_three_killed_workers(tmp_path):
    tuning = a_tuning(tmp_path / "s.journal")
    study = tuning.open(fingerprint(SPLIT.train, SPLIT.valid))
    study.enqueue_trial({"lr": 0.01}, user_attrs={"starting_point": "deadly"})
    for _ in range(3):
        number = study.ask().number
        assert studies.requeue(study, study.get_trials()[number])
        assert not studies.requeue(study, study.get_trials()[number])  # only once
    assert [t.state for t in study.get_trials()] == [TrialState.FAIL] * 3


def test_requeue_interrupted_trial_keeps_its_attempts(tmp_path):
    study = a_tuning(tmp_path / "s.journal").open(fingerprint(SPLIT.train, SPLIT.valid))
    study.enqueue_trial({"lr": 0.01}, user_attrs={"starting_point": "unlucky"})
    for _ in range(5):
        number = study.ask().number
        studies.requeue(study, study.get_trials()[number], killed=False)
    assert study.get_trials()[-1].state == TrialState.WAITING
    assert study.get_trials()[-1].user_attrs["starting_point"] == "unlucky"


def test_tune_suspended_worker_drops_its_trial(tmp_path, monkeypatch):
    """While the worker is suspended, another one ends its trial and queues it again."""
    tuning = a_tuning(tmp_path / "s.journal", trials=3)
    real, taken = tunings.run_study_trial, []

    def suspended(trial, *given):
        ended = real(trial, *given)
        if not taken:
            taken.append(trial.number)
            assert studies.requeue(trial.study, trial.study.get_trials()[trial.number])
        return ended

    monkeypatch.setattr(tunings, "run_study_trial", suspended)
    rows = {row.number: row for row in tune(SPLIT, tuning).records}
    assert rows[taken[0]].state == "lost"
    assert sum(row.is_complete for row in rows.values()) == 3


# --- many processes, signals, kills ---------------------------------------------------------------


def _command(folder, out, space_file, *words):
    given = ["--out", out, "--space", space_file, "--models", "mf", *words]
    return [sys.executable, "-m", "llpauc", "tune", *map(str, [folder, *given])]


def _wait_for(what, seconds=90):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := what():
            return found
        time.sleep(0.1)
    raise AssertionError("timeout")


def _running(storage: str) -> list[int]:
    """Ids of the processes that are running a trial."""
    if not Path(storage.removeprefix("sqlite:///")).exists():
        return []
    try:
        study = optuna.load_study(study_name="llpauc", storage=studies.open_storage(storage))
        trials = study.get_trials(states=(TrialState.RUNNING,))
    except (KeyError, InputError):
        return []
    return [t.user_attrs["worker"]["pid"] for t in trials if t.last_step]


LONG = ("--epochs", 100_000, "--patience", 100_000, "--pruner", "none")


@pytest.fixture
def one_start(tmp_path):
    """A space in which all starting points are the same, so that the queue has one trial."""
    path = tmp_path / "one.toml"
    fixed = 'score = "dot"\nalpha = 0.7\nbeta = 0.1\ndimensions = 4\nbatch_size = 64\n'
    fixed += 'solver = "sgda"\ninit = "random"\nsampler = "uniform"\nnegatives = 5\n'
    path.write_text(fixed + "lr = { low = 0.0001, high = 0.001 }\n")
    return path


@pytest.mark.slow
def test_tune_command_replaces_a_killed_worker_and_reruns_its_trial(folder, one_start, tmp_path):
    out, storage = tmp_path / "out", str(tmp_path / "s.journal")
    words = (*LONG, "--storage", storage, "--workers", 2, "--budget", "40s", "--trials", 2)
    begun = time.monotonic()
    command = _command(folder, out, one_start, *words)
    running = subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
    victim = _wait_for(lambda: _running(storage))[0]
    assert victim != running.pid
    os.kill(victim, signal.SIGKILL)
    _, err = running.communicate(timeout=200)
    assert running.returncode == 0, err
    assert time.monotonic() - begun < 120
    rows = records(out)
    (lost,) = [row for row in rows if row["state"] == "lost"]
    complete = [row for row in rows if row["state"] == "complete"]
    assert [row["ended"] for row in complete] == ["budget"] * 2  # as many as requested
    (again,) = [row for row in complete if row["rerun_of"] == lost["trial"]]
    assert again["lr"] == lost["lr"]


@pytest.mark.slow
def test_tune_command_killed_parent_ends_its_workers_and_can_resume(folder, one_start, tmp_path):
    out, storage = tmp_path / "out", str(tmp_path / "out" / "study.journal")
    command = _command(folder, out, one_start, *LONG, "--workers", 2, "--trials", 2)
    running = subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.DEVNULL)
    workers = _wait_for(lambda: _running(storage))
    running.kill()
    running.wait()
    _wait_for(lambda: all(studies.process_start(pid) is None for pid in workers), 20)
    words = (*LONG, "--trials", 2, "--budget", "2s")
    done = subprocess.run(
        _command(folder, out, one_start, *words), env=ENVIRONMENT, capture_output=True, text=True,
        check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = records(out)
    lost = {row["trial"] for row in rows if row["state"] == "lost"}
    assert lost
    assert lost & {row["rerun_of"] for row in rows if row["state"] == "complete"}


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_tune_command_ctrl_c_keeps_the_study_and_writes_the_report(
    folder, space_file, tmp_path, workers
):
    out = tmp_path / "out"
    words = (*LONG, "--workers", workers, "--budget", "1h")
    # A first trial that ends, so that there is something to report.
    first = (*LONG, "--budget", "1s")
    ended = subprocess.run(
        _command(folder, out, space_file, *first), env=ENVIRONMENT, capture_output=True, check=False
    )
    assert ended.returncode == 0
    before = records(out)
    running = subprocess.Popen(
        _command(folder, out, space_file, *words),
        env=ENVIRONMENT,
        stderr=subprocess.PIPE,
        text=True,
    )
    _wait_for(lambda: _running(str(out / "study.journal")))
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=90)
    assert running.returncode == 130, err
    assert "Traceback" not in err
    rows = records(out)
    complete = [(row["trial"], row["value"]) for row in rows if row["state"] == "complete"]
    assert complete == [(row["trial"], row["value"]) for row in before]
    assert "interrupted" in {row["ended"] for row in rows}
    assert not [row for row in rows if row["state"] == "running"]
    assert tomllib.loads((out / "best.toml").read_text())["model"] == "mf"


@pytest.mark.slow
def test_tune_command_two_workers_run_exactly_the_requested_trials(folder, space_file, tmp_path):
    done = subprocess.run(
        _command(folder, tmp_path, space_file, "--workers", 2, "--trials", 9, "--epochs", 1,
                 "--storage", f"sqlite:///{tmp_path}/s.db"),
        env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = records(tmp_path)
    assert len(rows) == 9
    assert sorted(int(row["trial"]) for row in rows) == sorted({int(row["trial"]) for row in rows})
    assert sum(line.startswith("trial ") for line in done.stderr.splitlines()) == 9


def test_is_surplus_of_two_last_trials_the_later_is_withdrawn(tmp_path):
    tuning = a_tuning(tmp_path / "s.journal", trials=1)
    study = tuning.open(fingerprint(SPLIT.train, SPLIT.valid))
    numbers = [study.ask().number for _ in range(2)]
    assert [tunings.is_surplus(study.get_trials(), number, tuning) for number in numbers] == [
        False,
        True,
    ]
    study.tell(numbers[0], state=TrialState.FAIL)  # a lost trial does not count
    assert not tunings.is_surplus(study.get_trials(), numbers[1], tuning)


def test_is_surplus_starting_point_queued_twice_is_run_once(tmp_path):
    tuning = a_tuning(tmp_path / "s.journal")
    study = tuning.open(fingerprint(SPLIT.train, SPLIT.valid))
    for _ in range(2):
        study.enqueue_trial({"lr": 0.01}, user_attrs={"starting_point": "defaults"})
    numbers = [study.ask().number for _ in range(2)]
    assert [tunings.is_surplus(study.get_trials(), number, tuning) for number in numbers] == [
        False,
        True,
    ]


# --- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["folder", "file"])
@pytest.mark.parametrize("loss", ["llpauc", "bsl,softmax_v"])
def test_tune_command_best_toml_trains_to_the_same_value(
    cli, folder, space_file, tmp_path, kind, loss
):
    data = folder
    if kind == "file":  # other column names, another hold-out and seed
        data = tmp_path / "events.csv"
        users, items = SPLIT.user_ids.ids(SPLIT.train.users), SPLIT.train.items
        lines = [f"{u};{i};x" for u, i in zip(users, items, strict=True)]
        data.write_text("\n".join(["who;what;why", *lines]) + "\n")
    options = [] if kind == "folder" else [
        "--user", "who", "--item", "what", "--hold-out", 0.3, "--seed", 7
    ]  # fmt: skip
    out, run = tmp_path / "out", tmp_path / "run"
    words = ("--trials", 7, "--epochs", 4, "--loss", loss, "--space", space_file, "--json")
    code, printed, _ = cli("tune", data, "--out", out, *words, *options)
    assert code == 0
    found = json.loads(printed)
    assert cli("train", data, "--out", run, "--config", out / "best.toml")[0] == 0
    epochs = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    best = max(epochs, key=lambda epoch: epoch["valid"]["ndcg@20"])
    assert best["valid"]["ndcg@20"] == found["best"]["value"]
    assert best["number"] == found["best"]["epoch"]
    assert found["best"]["value"] == max(t["value"] for t in found["trials"])


def test_config_of_trial_stopped_by_the_budget_has_its_epochs(tmp_path):
    tuning = a_tuning(tmp_path / "s")
    curve = (0.2, 0.3, 0.5, 0.4)
    cut = TrialRecord("budget", 0.5, 3, curve, number=0, state="complete", params={"lr": 0.1})
    assert config_of(cut, tuning)["epochs"] == 4
    assert config_of(replace(cut, ended="patience"), tuning)["epochs"] == tuning.epochs


def test_tune_command_report_lists_trials_best_first(cli, folder, space_file, tmp_path):
    words = ("--trials", 12, "--epochs", 2, "--space", space_file, "--models", "mf,fism")
    code, printed, err = cli("tune", folder, "--out", tmp_path, *words)
    assert code == 0
    assert "0." in printed
    assert sum(line.startswith("trial ") for line in err.splitlines()) == 12
    text = (tmp_path / "tuning.md").read_text()
    for name in ("alpha_beta.png", "importance.png"):
        assert f"({name})" in text
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    rows = records(tmp_path)
    complete = [float(row["value"]) for row in rows if row["state"] == "complete"]
    assert complete == sorted(complete, reverse=True)
    assert {row["model"] for row in rows} == {"mf", "fism"}
    assert f"--models mf,fism --trials 12 --space {space_file} --epochs 2`" in text
    assert f"trial {rows[0]['trial']}, the best | {complete[0]:.4f}" in text


def test_importances_are_one_way_anova_on_ranked_values():
    """From scipy's F: epsilon^2 = (F - 1)(k - 1) / (F (k - 1) + n - k)."""
    rng = np.random.default_rng(5)
    kinds = rng.choice(["a", "b", "c"], 60)
    values = rng.normal(size=60) + (kinds == "b")
    rows = [
        TrialRecord(
            "epochs", float(v), number=i, state="complete", params={"kind": str(k), "same": 1}
        )
        for i, (v, k) in enumerate(zip(values, kinds, strict=True))
    ]
    ranked = rankdata(values)
    f = f_oneway(*[ranked[kinds == kind] for kind in "abc"]).statistic
    found = importances(rows)
    assert found == {"kind": pytest.approx((f - 1) * 2 / (f * 2 + 60 - 3))}


def test_importances_detect_a_central_optimum_and_ignore_noise():
    rng = np.random.default_rng(6)
    middle, noise = rng.random(80), rng.random(80)
    rows = [
        TrialRecord(
            "epochs", -abs(m - 0.5), number=i, state="complete", params={"middle": m, "noise": n}
        )
        for i, (m, n) in enumerate(zip(middle, noise, strict=True))
    ]
    found = importances(rows)
    assert found["middle"] > 0.6
    assert found["noise"] < 0.2


fractions = st.floats(1e-4, 1.0)


@given(
    st.lists(
        st.tuples(fractions, fractions, st.floats(0, 1), st.booleans()), min_size=1, max_size=40
    )
)
def test_best_in_bins_agrees_with_a_naive_loop(given_trials):
    trials = [AlphaBeta(*values) for values in given_trials]
    alphas, betas, table = best_in_bins(trials)
    naive = np.full(table.shape, np.nan)
    for row, column in np.ndindex(*table.shape):
        inside = [
            t.value for t in trials
            if t.complete and alphas[row] <= t.alpha < alphas[row + 1]
            and betas[column] <= t.beta < betas[column + 1]
        ]  # fmt: skip
        if inside:
            naive[row, column] = max(inside)
    assert np.array_equal(naive, table, equal_nan=True)


# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--loss", "lucky"], "unknown loss 'lucky'"),
        (["--loss", "llpauc,"], "unknown loss ''"),
        (["--models", "ease"], "the model 'ease' is not trained"),
        (["--metric", "luck@20"], "luck@20"),
        (["--budget", "soon"], "'soon'"),
        (["--trials", "0"], "--trials"),
        (["--storage", "nowhere/s.journal"], "there is no folder"),
        (["--storage", "sqlite:///nowhere/s.db"], "there is no folder"),
        (["--storage", "luckysql://x/y"], "cannot be used"),
        (["--grid", "paper", "--loss", "bpr"], "no alpha, beta"),
        (["--device", "toaster"], "toaster"),
        (["--space", "nowhere.toml"], "cannot be read"),
    ],
)
def test_tune_command_bad_input_is_one_line(cli, folder, tmp_path, words, expected):
    code, out, err = cli("tune", folder, "--out", tmp_path / "out", *words)
    assert code == 2
    assert not out
    assert expected in err.splitlines()[-1]
    assert sum("error:" in line for line in err.splitlines()) == 1
    assert not (tmp_path / "out" / "study.journal").exists()


def _write_foreign_database(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("create table alembic_version (version_num text)")


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("s.journal", lambda path: path.write_text("user,item\nann,tea\n")),
        ("s.journal", lambda path: path.write_text("hello")),
        ("s.journal", lambda path: path.write_text('{"a": 1}\n')),
        ("s.journal", lambda path: path.write_bytes(b"\x00\xff\n\x00")),
        ("s.journal", lambda path: path.mkdir()),
        ("s.db", lambda path: path.write_text("no database at all, only text" * 100)),
        ("s.db", _write_foreign_database),
    ],
)
def test_tune_command_foreign_storage_is_refused_unchanged(cli, folder, tmp_path, name, make):
    path = tmp_path / name
    make(path)
    before = path.read_bytes() if path.is_file() else None
    storage = f"sqlite:///{path}" if name == "s.db" else path
    code, _, err = cli("tune", folder, "--out", tmp_path / "out", "--storage", storage)
    assert code == 2
    assert str(path) in err.splitlines()[-1]
    assert before == (path.read_bytes() if path.is_file() else None)


def test_tune_journal_with_a_truncated_line_raises(tmp_path):
    place = tmp_path / "s.journal"
    tune(SPLIT, a_tuning(place, trials=1))
    place.write_bytes(place.read_bytes()[:-3])
    with pytest.raises(InputError, match="cut off"):
        tune(SPLIT, a_tuning(place, trials=2))


def test_check_storage_hides_the_password():
    with pytest.raises(InputError) as raised:
        studies.check_storage("postgresql+nodriver://ann:secret@host/db")
    assert "secret" not in str(raised.value)


def test_tune_command_too_few_events_is_one_line(cli, tmp_path):
    path = tmp_path / "few.csv"
    path.write_text("user,item\nann,tea\nbob,milk\n")
    for words, expected in (((), "too few events"), (("--hold-out", 0), "hold_out is 0")):
        code, _, err = cli("tune", path, "--out", tmp_path / "out", "--trials", 1, *words)
        assert code == 2
        assert expected in err.splitlines()[-1]


def test_tune_command_without_optuna_names_the_extra(cli, folder, tmp_path, monkeypatch):
    monkeypatch.setattr(studies, "find_spec", lambda name: None)
    code, _, err = cli("tune", folder, "--out", tmp_path / "out")
    assert code == 2
    assert "llpauc[tune]" in err


def test_make_sampler_draws_depend_on_the_trial_number():
    """The same number and history give the same draw; another number gives another draw."""
    draws = []
    for number in (3, 3, 4):
        study = optuna.create_study(sampler=studies.make_sampler(0))
        for _ in range(number):
            study.add_trial(optuna.trial.create_trial(value=0.0))
        draws.append(study.ask().suggest_float("x", 0, 1))
    assert draws[0] == draws[1] != draws[2]


def test_open_storage_does_not_wait_for_a_killed_process(tmp_path, monkeypatch):
    """Also by a relative path: the lock of a process that was killed while it wrote is removed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(studies, "_LOCK_GRACE", 3)
    os.mkdir("out")
    storage = studies.open_storage("out/study.journal")
    optuna.create_study(study_name="one", storage=storage)
    assert storage._backend._lock.acquire()  # and never released
    writer = threading.Thread(
        target=lambda: optuna.create_study(
            study_name="two", storage=studies.open_storage("out/study.journal")
        ),
        daemon=True,
    )
    writer.start()
    writer.join(60)
    assert not writer.is_alive()
