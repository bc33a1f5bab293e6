"""The paper's tables and figures: cells that are kept, found, and checked; honest choices."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time
import zlib

import numpy as np
import pytest

from llpauc.cli import main
from llpauc.data.interactions import Interactions, Split
from llpauc.data.writers import write_split
from llpauc.errors import InputError
from llpauc.losses import LOSSES, make_loss
from llpauc.research import lab as lab_module
from llpauc.research.cells import Cell, digest
from llpauc.research.lab import Lab
from llpauc.research.paper import around, tables
from llpauc.research.paper.published import Figure
from llpauc.research.paper.runners import _noisy_events, run_baseline, run_noise_loss, run_train
from llpauc.research.paper.settings import GRIDS, PAPER, printed_setting
from llpauc.research.paper.targets import TARGETS
from llpauc.research.paper.training_cells import baseline, choose_settings, spread, training
from llpauc.research.report import Report, markdown_table, write_report
from llpauc.research.spread import Spread
from llpauc.research.store import Store
from tests.datasets import taste_split


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A data folder with Adressa's files, made up."""
    folder = tmp_path_factory.mktemp("data")
    write_split(taste_split(1, cold=True), folder / "adressa_clean", "inter")
    write_split(taste_split(2, cold=True), folder / "adressa_noise", "inter")
    return folder


def a_lab(data, out, **given):
    return Lab(data, out, **{"seeds": (1, 2), "quick": True, **given})


# --- cells and their files ------------------------------------------------------------------------


def test_a_cell_is_its_contents_and_not_the_order_they_were_given_in():
    one, other = Cell.of("train", "d", a=1, b="x"), Cell.of("train", "d", b="x", a=1)
    assert one == other
    assert digest(one.spec) == digest(other.spec)
    assert one.but(a=2) != one
    assert one.but(a=2)["a"] == 2


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "cells", {"d": "events"})


def test_a_result_comes_back_as_it_was_put(store):
    cell = Cell.of("train", "d", seed=1)
    assert store.get(cell) is None
    store.put(cell, {"valid": 0.1 + 0.2, "curve": [None, 1e-300]})
    assert store.get(cell) == {"valid": 0.1 + 0.2, "curve": [None, 1e-300]}
    assert store.get(cell.but(seed=2)) is None


def test_other_data_are_other_cells(store, tmp_path):
    cell = Cell.of("train", "d", seed=1)
    store.put(cell, {"valid": 1.0})
    assert Store(tmp_path / "cells", {"d": "other events"}).get(cell) is None


def test_every_truncation_and_every_edit_of_a_result_is_found(store):
    cell = Cell.of("train", "d", seed=1)
    store.put(cell, {"valid": 0.25, "test": {"all": 0.5}})
    path = store.path(cell)
    whole = path.read_bytes()
    for length in range(len(whole) - 1):  # the last byte is the line's end
        path.write_bytes(whole[:length])
        assert store.broken(cell), f"{length} bytes of {len(whole)} were taken for whole"
    for before, after in ((b"0.25", b"0.26"), (b'"seed": 1', b'"seed": 3'), (b"0.5", b"0.5e0 ")):
        assert before in whole
        path.write_bytes(whole.replace(before, after))
        same_value = json.loads(path.read_bytes()) == json.loads(whole)
        assert store.broken(cell) != same_value
    path.write_bytes(whole)
    assert not store.broken(cell)


def test_a_broken_cell_is_run_again_and_nothing_else(data, tmp_path, monkeypatch):
    warned: list[str] = []
    lab = a_lab(data, tmp_path, warn=warned.append)
    cells = [baseline("adressa-clean", "popularity"), baseline("adressa-clean", "itemknn")]
    first = lab.results(cells)
    ran: list[Cell] = []
    real = lab_module.run
    monkeypatch.setattr(lab_module, "run", lambda cell, data: ran.append(cell) or real(cell, data))
    assert lab.results(cells) == first
    assert ran == []
    broken = next((tmp_path / "cells").glob("*.json"))
    broken.write_text(broken.read_text().replace("0.", "1.", 1))
    again = lab.results(cells)
    assert len(ran) == 1
    assert {c: r["test"] for c, r in again.items()} == {c: r["test"] for c, r in first.items()}
    assert str(broken) in warned[0]
    assert "run again" in warned[0]


def test_workers_give_what_one_process_gives(data, tmp_path):
    cells = [training("adressa-clean", "llpauc", seed, alpha=0.7, beta=0.3) for seed in (1, 2, 3)]
    alone = a_lab(data, tmp_path / "a").results(cells)
    together = a_lab(data, tmp_path / "b", workers=2).results(cells)
    for cell in cells:
        for result in (alone[cell], together[cell]):
            result.pop("seconds")
        assert alone[cell] == together[cell]


# --- honest choices -------------------------------------------------------------------------------


def test_a_setting_is_chosen_by_validation_alone(data, tmp_path, monkeypatch):
    """The first seed names four finalists, the mean over the seeds the one."""
    asked: list[Cell] = []

    def figure(cell):  # any number that differs from cell to cell
        return zlib.crc32(repr(cell).encode()) / 2**32

    def run(cell, data):
        asked.append(cell)
        return {"valid": figure(cell)}

    monkeypatch.setattr(lab_module, "run", run)
    lab = dataclasses.replace(a_lab(data, tmp_path, quick=False), seeds=(1, 2, 3))
    chosen = choose_settings(lab, "adressa-clean", ("dns", "bpr", "opauc"))
    assert not any(cell["test"] for cell in asked)
    assert chosen["bpr"] == {}
    of = {
        loss: [[training("adressa-clean", loss, seed, test=False, **s) for seed in lab.seeds]
               for s in GRIDS[loss]]
        for loss in ("dns", "opauc")
    }  # fmt: skip
    final = sorted(of["opauc"], key=lambda cells: figure(cells[0]))[-4:]
    for loss, candidates in (("dns", of["dns"]), ("opauc", final)):
        best = max(candidates, key=lambda cells: np.mean([figure(cell) for cell in cells]))
        assert best == [
            training("adressa-clean", loss, s, test=False, **chosen[loss]) for s in lab.seeds
        ]
    assert len(asked) == len(set(asked)) == 3 * len(GRIDS["dns"]) + len(GRIDS["opauc"]) + 2 * 4


def test_a_training_measured_on_the_test_is_not_run_again_for_validation(data, tmp_path):
    lab = a_lab(data, tmp_path)
    whole = training("adressa-clean", "bpr", 1, epochs=1)
    told = lab.result(whole)
    again = dataclasses.replace(lab, tell=lambda progress: pytest.fail("run again"))
    assert again.result(whole.but(test=False)) == told


def test_every_grid_is_of_a_loss_that_takes_it():
    for loss, settings in GRIDS.items():
        assert settings
        for setting in settings:
            make_loss(loss, **setting)
    assert set(tables.CLEAN + tables.NOISE + tables.LEARNING_TO_RANK) <= set(GRIDS) <= set(LOSSES)
    assert {s["beta"] for s in GRIDS["llpauc"]} == {s["beta"] for s in GRIDS["opauc"]}
    assert printed_setting("adressa-noise") == {"alpha": 0.7, "beta": 0.1}
    assert printed_setting("ml-100k-clean") is None


def test_a_trained_cell_reads_cold_users_both_ways(data):
    split = taste_split(1, cold=True)
    result = run_train(
        lambda name: split, "d", model="mf", loss="bpr", test=True,
        **{**PAPER, "epochs": 3, "seed": 1},
    )  # fmt: skip
    paper, ours = result["test"]["random"], result["test"]["mean"]
    assert paper["warm"] == ours["warm"]
    assert paper["cold"] != ours["cold"]
    assert result["valid"] == max(result["curve"])
    assert result["curve"][result["best_epoch"] - 1] == result["valid"]


def test_a_spread_is_the_sample_deviation():
    found = Spread.of([0.1, 0.2, 0.4])
    assert found.mean == pytest.approx(0.7 / 3)
    assert found.sd == pytest.approx(np.sqrt(sum((v - 0.7 / 3) ** 2 for v in (0.1, 0.2, 0.4)) / 2))
    assert Spread.of([0.1]).sd is None


def test_warm_figures_are_those_of_all_where_nobody_is_cold():
    result = {"test": {"random": {"all": {"recall@20": 0.5}}}}
    assert spread([result], "recall@20", "warm users").mean == 0.5


# --- what the table says --------------------------------------------------------------------------


def a_line(method, recall, printed=None, backbone="mf"):
    figures = {"all": {"recall@20": recall, "ndcg@20": recall / 2}}
    result = {"test": {"random": figures, "mean": figures}}
    figure = None if printed is None else Figure(printed, 0.001, printed / 2, 0.001)
    return tables.Line("d", backbone, method, {}, [result], figure)


def test_remarks_follow_the_numbers():
    popular = a_line("popularity", 0.30, backbone="-")
    first = tables._remarks([popular, a_line("bpr", 0.2, 0.1), a_line("llpauc", 0.25, 0.251)])
    assert (
        "mf, recall@20: LLPAUC is number 1 of 2; next comes BPR with .2000 against .2500." in first
    )
    assert "mf, BPR: Recall@20 is .1000 above the printed .1000." in first
    assert not any(line.startswith("mf, LLPAUC: Recall") for line in first)
    assert "Popularity reaches .3000, .0500 above" in first[-1]
    second = tables._remarks([popular, a_line("bpr", 0.4), a_line("llpauc", 0.25)])
    assert "LLPAUC is number 2 of 2; the best is BPR with .4000 against .2500." in second[0]
    assert ".1000 below the best" in second[-1]


def test_the_authors_stopping_rule_is_shown_and_does_not_compete():
    lines = [a_line("bpr", 0.2), a_line("llpauc", 0.25), a_line(tables.AUTHORS_RULE, 0.3),
             a_line(tables.PRINTED, 0.4)]  # fmt: skip
    assert tables._best(lines, "mf").method == "llpauc"
    text = tables._table(lines)
    assert "stopped on Recall@50" in text
    assert text.count("**") == 2


def test_markdown_and_csv_hold_the_same_numbers(tmp_path):
    report = Report("t", "T", [markdown_table(["a"], [["1"]])], [{"a": 1, "b": "x, y"}])
    write_report(report, tmp_path, "llpauc reproduce t")
    with (tmp_path / "t.csv").open(newline="") as file:
        assert list(csv.DictReader(file)) == [{"a": "1", "b": "x, y"}]
    assert "llpauc reproduce t" in (tmp_path / "t.md").read_text()


# --- noisy events ---------------------------------------------------------------------------------


def test_noisy_events_are_those_the_clean_set_has_not():
    clean = Split.of(
        Interactions.of(["a", "b"], ["x", "y"]), Interactions.of(["a"], ["z"]),
        Interactions.of(["b"], ["x"]),
    )  # fmt: skip
    noisy = Interactions.of(["a", "c", "b", "a", "b", "b"], ["x", "x", "y", "z", "new", "z"])
    assert _noisy_events(noisy, clean).tolist() == [False, True, False, False, True, True]


def test_noise_loss_starts_equal_and_tells_noise_apart():
    """Before training all scores are near zero: log 2 for everybody. Noise against the blocks is
    then harder to fit than what follows them."""
    clean = taste_split(3, cold=True)
    rng = np.random.default_rng(0)
    users = [f"u{u}" for u in range(60) for _ in range(3)]
    items = [f"i{(u % 2 == 0) * 20 + rng.integers(0, 20)}" for u in range(60) for _ in range(3)]
    train = clean.train
    ids = (train.user_ids.ids(train.users), train.item_ids.ids(train.items))
    noisy = Split.of(Interactions.of([*ids[0], *users], [*ids[1], *items]), clean.valid, clean.test)
    sets = {"clean": clean, "noisy": noisy}
    found = run_noise_loss(
        sets.__getitem__, "noisy", clean="clean", loss="bpr", epochs=30, seed=1, lr=0.01,
        batch_size=64, negatives=20,
    )  # fmt: skip
    assert found["noisy"][0] == pytest.approx(np.log(2), abs=1e-3)
    assert found["clean"][0] == pytest.approx(np.log(2), abs=1e-3)
    # In the end both are learnt by heart; on the way noise lags behind.
    assert max(n / c for n, c in zip(found["noisy"], found["clean"], strict=True)) > 1.5
    assert found["iterations"][1] == -(-len(noisy.train) // 64)


def test_noise_loss_refuses_a_pair_without_noise():
    clean = taste_split(3, cold=True)
    with pytest.raises(InputError, match="do not tell"):
        run_noise_loss(lambda name: clean, "d", clean="d", loss="bpr", epochs=1, seed=1)


def test_baselines_are_measured_on_validation_too():
    split = taste_split(1, cold=True)
    result = run_baseline(
        lambda name: split, "d", model="popularity", test=False, metric="recall@20"
    )
    assert 0 < result["valid"] <= 1
    assert "test" not in result


# --- the command ----------------------------------------------------------------------------------


@pytest.mark.parametrize("target", sorted(set(TARGETS) - {"table-ml100k"}))
def test_every_target_makes_text_table_and_picture(target, data, tmp_path, capsys):
    code = main(
        ["reproduce", target, "--data", str(data), "--out", str(tmp_path), "--quick",
         "--workers", "1"]
    )  # fmt: skip
    assert code == 0, capsys.readouterr().err
    text = (tmp_path / f"{target}.md").read_text()
    assert f"![{''}" in text
    assert "nan" not in text
    assert (tmp_path / f"{target}.png").read_bytes().startswith(b"\x89PNG")
    with (tmp_path / f"{target}.csv").open(newline="") as file:
        assert list(csv.DictReader(file))
    assert not [p for p in tmp_path.rglob(".*") if p.is_file()]  # nothing half-written


def test_a_missing_data_set_is_named_with_where_to_get_it(data, tmp_path, capsys):
    assert main(["reproduce", "table-ml100k", "--data", str(data), "--out", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert "u.data" in told
    assert "grouplens" in told.lower()
    assert "adressa-clean" in told  # what can be run now
    assert len(told.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["table9"], "table1"),
        (["table1", "--data", "nowhere"], "nowhere"),
        (["table1", "--seeds", "one"], "whole numbers"),
        (["table1", "--workers", "0"], "workers"),
    ],
)
def test_bad_requests_are_one_line(words, said, data, tmp_path, capsys):
    given = ["reproduce", *words, "--out", str(tmp_path / "out")]
    if "--data" not in words:
        given += ["--data", str(data)]
    try:
        code = main(given)
    except SystemExit as leaving:
        code = leaving.code
    told = capsys.readouterr().err.strip()
    assert code == 2
    assert said in told
    assert len(told.splitlines()) == 1


def _start(data, out):
    words = [
        "reproduce",
        "table1",
        "--data",
        str(data),
        "--out",
        str(out),
        "--workers",
        "2",
        "--quick",
    ]
    return subprocess.Popen(
        [sys.executable, "-m", "llpauc", *words, "--seeds", "1,2"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        env={**os.environ, "OMP_WAIT_POLICY": "PASSIVE"},
    )  # fmt: skip


@pytest.mark.slow
def test_killed_three_times_it_ends_with_the_table_of_an_undisturbed_run(data, tmp_path):
    whole = _start(data, tmp_path / "out")
    assert whole.wait(300) == 0
    made = {p.name: p.read_bytes() for p in (tmp_path / "out").glob("table1.*")}
    (tmp_path / "out").rename(tmp_path / "whole")
    rng, done = random.Random(5), 0
    for _ in range(3):
        running = _start(data, tmp_path / "out")
        cells = tmp_path / "out" / "cells"
        wanted = done + rng.randint(1, 12)
        while running.poll() is None and len(list(cells.glob("[!.]*.json"))) < wanted:
            time.sleep(0.02)
        time.sleep(rng.random() * 0.3)
        running.send_signal(signal.SIGKILL)
        running.wait()
        done = len(list(cells.glob("[!.]*.json")))
        kept = {p.name: p.stat().st_mtime_ns for p in cells.glob("[!.]*.json")}
    assert kept
    assert _start(data, tmp_path / "out").wait(300) == 0
    assert {p.name: p.read_bytes() for p in (tmp_path / "out").glob("table1.*")} == made
    after = {p.name: p.stat().st_mtime_ns for p in cells.glob("[!.]*.json")}
    assert {name: after[name] for name in kept} == kept  # nothing was run twice


# --- around a model -------------------------------------------------------------------------------


def test_inversions_and_correlation_by_hand():
    target = np.array([1.0, 2.0, 3.0, 3.0])
    assert around._inverted(target, target) == 0
    assert around._inverted(-target, target) == 1
    assert around._inverted(np.zeros(4), target) == 0.5
    # Of the five pairs that the target orders, one (2 against 3) is the other way.
    assert around._inverted(np.array([1.0, 5.0, 4.0, 6.0]), target) == pytest.approx(1 / 5)
    other = np.array([1.0, 5.0, 4.0, 6.0])
    assert around._correlation(other, target) == pytest.approx(np.corrcoef(other, target)[0, 1])
    assert np.isnan(around._correlation(np.zeros(4), target))
