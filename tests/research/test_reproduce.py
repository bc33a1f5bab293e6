"""The paper's tables and figures: cells, choices on validation, reports and the command."""

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
from llpauc.report.document import markdown_table
from llpauc.research import cells as cells_module
from llpauc.research import figures, tables
from llpauc.research.cells import Cell, CellStore, Study, digest
from llpauc.research.paper import PAPER, PublishedValue
from llpauc.research.report_files import MeanSd, Report, write_report
from llpauc.research.targets import TARGETS
from llpauc.research.trainings import (
    GRIDS,
    PROTOCOL,
    baseline,
    choose_settings,
    noisy_events,
    published_alpha_beta,
    run_noise_loss,
    run_recommender,
    run_training,
    seed_mean,
    training,
)
from tests.datasets import taste_split


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A data folder with generated files of Adressa."""
    folder = tmp_path_factory.mktemp("data")
    write_split(taste_split(1, cold=True), folder / "adressa_clean", "inter")
    write_split(taste_split(2, cold=True), folder / "adressa_noise", "inter")
    return folder


def small_study(data, out, **options):
    return Study(data, out, **{"seeds": (1, 2), "quick": True, **options})


# --- cells ----------------------------------------------------------------------------------------


def test_cell_equality_does_not_depend_on_the_order_of_options():
    one, other = Cell.of(run_training, "d", a=1, b="x"), Cell.of(run_training, "d", b="x", a=1)
    assert one == other
    assert digest(one.spec) == digest(other.spec)
    assert one.replace(a=2) != one
    assert one.replace(a=2)["a"] == 2


@pytest.fixture
def store(tmp_path):
    return CellStore(tmp_path / "cells", {"d": "events"})


def test_cell_store_get_returns_what_was_put(store):
    cell = Cell.of(run_training, "d", seed=1)
    assert store.get(cell) is None
    store.put(cell, {"valid": 0.1 + 0.2, "curve": [None, 1e-300]})
    assert store.get(cell) == {"valid": 0.1 + 0.2, "curve": [None, 1e-300]}
    assert store.get(cell.replace(seed=2)) is None


def test_cell_store_other_data_are_other_cells(store, tmp_path):
    cell = Cell.of(run_training, "d", seed=1)
    store.put(cell, {"valid": 1.0})
    assert CellStore(tmp_path / "cells", {"d": "other events"}).get(cell) is None


def test_cell_store_get_detects_every_truncation_and_edit(store):
    cell = Cell.of(run_training, "d", seed=1)
    store.put(cell, {"valid": 0.25, "test": {"all": 0.5}})
    path = store.path(cell)
    whole = path.read_bytes()
    for length in range(len(whole) - 1):  # the last byte is the newline
        path.write_bytes(whole[:length])
        assert store.get(cell) is None, f"{length} bytes of {len(whole)} were accepted"
    for before, after in ((b"0.25", b"0.26"), (b'"seed": 1', b'"seed": 3'), (b"0.5", b"0.5e0 ")):
        assert before in whole
        path.write_bytes(whole.replace(before, after))
        same_value = json.loads(path.read_bytes()) == json.loads(whole)
        assert (store.get(cell) is not None) == same_value
    path.write_bytes(whole)
    assert store.get(cell) is not None


def test_study_results_only_a_broken_cell_is_run_again(data, tmp_path, monkeypatch, caplog):
    study = small_study(data, tmp_path)
    cells = [baseline("adressa-clean", "popularity"), baseline("adressa-clean", "itemknn")]
    first = study.results(cells)
    ran: list[Cell] = []
    real = cells_module.run_cell
    monkeypatch.setattr(
        cells_module, "run_cell", lambda cell, data: ran.append(cell) or real(cell, data)
    )
    assert study.results(cells) == first
    assert ran == []
    broken = next((tmp_path / "cells").glob("*.json"))
    broken.write_text(broken.read_text().replace("0.", "1.", 1))
    again = study.results(cells)
    assert len(ran) == 1
    assert {c: r["test"] for c, r in again.items()} == {c: r["test"] for c, r in first.items()}
    assert str(broken) in caplog.messages[0]
    assert "run again" in caplog.messages[0]


def test_study_results_do_not_depend_on_workers(data, tmp_path):
    cells = [training("adressa-clean", "llpauc", seed, alpha=0.7, beta=0.3) for seed in (1, 2, 3)]
    alone = small_study(data, tmp_path / "a").results(cells)
    together = small_study(data, tmp_path / "b", workers=2).results(cells)
    for cell in cells:
        for result in (alone[cell], together[cell]):
            result.pop("seconds")
        assert alone[cell] == together[cell]


# --- choices on validation ------------------------------------------------------------------------


def test_choose_settings_uses_validation_only(data, tmp_path, monkeypatch):
    """The first seed selects four finalists, the mean over the seeds chooses among them."""
    requested: list[Cell] = []

    def valid_value(cell):  # any number that differs from cell to cell
        return zlib.crc32(repr(cell.spec).encode()) / 2**32

    def run(cell, data):
        requested.append(cell)
        return {"valid": valid_value(cell)}

    monkeypatch.setattr(cells_module, "run_cell", run)
    study = dataclasses.replace(small_study(data, tmp_path, quick=False), seeds=(1, 2, 3))
    chosen = choose_settings(study, "adressa-clean", ("dns", "bpr", "opauc"))
    assert not any(cell["test"] for cell in requested)
    assert chosen["bpr"] == {}
    of = {
        loss: [[training("adressa-clean", loss, seed, test=False, **s) for seed in study.seeds]
               for s in GRIDS[loss]]
        for loss in ("dns", "opauc")
    }  # fmt: skip
    final = sorted(of["opauc"], key=lambda cells: valid_value(cells[0]))[-4:]
    for loss, candidates in (("dns", of["dns"]), ("opauc", final)):
        best = max(candidates, key=lambda cells: np.mean([valid_value(cell) for cell in cells]))
        assert best == [
            training("adressa-clean", loss, s, test=False, **chosen[loss]) for s in study.seeds
        ]
    assert len(requested) == len(set(requested))
    counts = [3 * len(GRIDS["dns"]), len(GRIDS["opauc"]) + 2 * 4, len(GRIDS["ease"])]
    assert len(requested) == sum(counts)


def test_study_result_with_test_metrics_answers_cell_without_them(data, tmp_path):
    study = small_study(data, tmp_path)
    whole = training("adressa-clean", "bpr", 1, epochs=1)
    result = study.result(whole)
    again = dataclasses.replace(study, on_progress=lambda progress: pytest.fail("run again"))
    assert again.result(whole.replace(test=False)) == result


def test_grids_are_valid_options_of_their_loss():
    for loss, settings in GRIDS.items():
        assert settings
        for setting in settings if loss in LOSSES else ():
            make_loss(loss, **setting)
    tables = PAPER["tables"].values()
    compared = {loss for table in tables for losses in table["losses"].values() for loss in losses}
    assert compared <= set(GRIDS) <= {*LOSSES, "ease"}
    assert {s["beta"] for s in GRIDS["llpauc"]} == {s["beta"] for s in GRIDS["opauc"]}
    assert published_alpha_beta("adressa-noise") == {"alpha": 0.7, "beta": 0.1}
    assert published_alpha_beta("ml-100k-clean") is None


def test_run_training_measures_both_treatments_of_cold_users(data):
    split = taste_split(1, cold=True)
    result = run_training(
        lambda name: split, "d", model="mf", loss="bpr", test=True,
        **{**PROTOCOL, "epochs": 3, "seed": 1},
    )  # fmt: skip
    paper, ours = result["test"], result["test_mean_vector"]
    assert paper["warm"] == ours["warm"]
    assert paper["cold"] != ours["cold"]
    assert result["valid"] == max(result["curve"])
    assert result["curve"][result["best_epoch"] - 1] == result["valid"]


def test_mean_sd_is_the_sample_deviation():
    found = MeanSd.of([0.1, 0.2, 0.4])
    assert found.mean == pytest.approx(0.7 / 3)
    assert found.sd == pytest.approx(np.sqrt(sum((v - 0.7 / 3) ** 2 for v in (0.1, 0.2, 0.4)) / 2))
    assert MeanSd.of([0.1]).sd is None


def test_seed_mean_without_cold_users_warm_equals_all():
    result = {"test": {"all": {"recall@20": 0.5}}}
    assert seed_mean([result], "recall@20", "warm users").mean == 0.5


# --- tables ---------------------------------------------------------------------------------------


def make_row(method, recall, published=None, backbone="mf"):
    result = {"test": {"all": {"recall@20": recall, "ndcg@20": recall / 2}}}
    value = None if published is None else PublishedValue(published, 0.001, published / 2, 0.001)
    return tables.TableRow("d", backbone, method, {}, [result], value)


def test_remarks_describe_the_numbers():
    popular = make_row("popularity", 0.30, backbone="-")
    first = tables.remarks([popular, make_row("bpr", 0.2, 0.1), make_row("llpauc", 0.25, 0.251)])
    assert (
        "mf, recall@20: LLPAUC is number 1 of 2; the next is BPR with .2000 against .2500." in first
    )
    assert "mf, BPR: Recall@20 is .1000 above the published .1000." in first
    assert not any(line.startswith("mf, LLPAUC: Recall") for line in first)
    assert "Popularity reaches .3000, .0500 above" in first[-1]
    second = tables.remarks([popular, make_row("bpr", 0.4), make_row("llpauc", 0.25)])
    assert "LLPAUC is number 2 of 2; the best is BPR with .4000 against .2500." in second[0]
    assert ".1000 below the best" in second[-1]


def test_methods_table_extra_rows_are_shown_and_not_ranked():
    lines = [make_row("bpr", 0.2), make_row("llpauc", 0.25), make_row(tables.AUTHORS_RULE, 0.3),
             make_row(tables.PUBLISHED_SETTING, 0.4)]  # fmt: skip
    text = tables.methods_table(lines)
    (bold,) = [line for line in text.splitlines() if "**" in line]
    assert "| LLPAUC |" in bold
    assert "stopped on Recall@50" in text
    assert text.count("**") == 2


def test_write_report_markdown_and_csv(tmp_path):
    report = Report("t", "T", [markdown_table(["a"], [["1"]])], [{"a": 1, "b": "x, y"}])
    write_report(report, tmp_path, "llpauc reproduce t")
    with (tmp_path / "t.csv").open(newline="") as file:
        assert list(csv.DictReader(file)) == [{"a": "1", "b": "x, y"}]
    assert "llpauc reproduce t" in (tmp_path / "t.md").read_text()


# --- noisy events ---------------------------------------------------------------------------------


def test_noisy_events_are_absent_from_the_clean_set():
    clean = Split.of(
        Interactions.of(["a", "b"], ["x", "y"]), Interactions.of(["a"], ["z"]),
        Interactions.of(["b"], ["x"]),
    )  # fmt: skip
    noisy = Interactions.of(["a", "c", "b", "a", "b", "b"], ["x", "x", "y", "z", "new", "z"])
    assert noisy_events(noisy, clean).tolist() == [False, True, False, False, True, True]


def test_run_noise_loss_starts_equal_and_separates_noisy_events():
    """Before training all scores are near zero, so every loss is log 2. Noisy events contradict the
    blocks and are then harder to fit."""
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
    # At the end both are memorized; before that, the loss of noisy events is larger.
    assert max(n / c for n, c in zip(found["noisy"], found["clean"], strict=True)) > 1.5
    assert found["iterations"][1] == -(-len(noisy.train) // 64)


def test_run_noise_loss_without_noise_raises():
    clean = taste_split(3, cold=True)
    with pytest.raises(InputError, match="do not distinguish"):
        run_noise_loss(lambda name: clean, "d", clean="d", loss="bpr", epochs=1, seed=1)


def test_run_recommender_without_test_has_only_a_validation_value():
    split = taste_split(1, cold=True)
    result = run_recommender(
        lambda name: split, "d", model="popularity", seed=0, test=False, metric="recall@20"
    )
    assert 0 < result["valid"] <= 1
    assert "test" not in result


# --- the command ----------------------------------------------------------------------------------


@pytest.mark.parametrize("target", sorted(set(TARGETS) - {"table-ml100k"}))
def test_reproduce_command_writes_markdown_csv_and_png(target, data, tmp_path, capsys):
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


def test_reproduce_command_missing_data_names_file_and_source(data, tmp_path, capsys):
    assert main(["reproduce", "table-ml100k", "--data", str(data), "--out", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "u.data" in error
    assert "grouplens" in error.lower()
    assert "adressa-clean" in error  # what can be run now
    assert len(error.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["table9"], "table1"),
        (["table1", "--data", "nowhere"], "nowhere"),
        (["table1", "--seeds", "one"], "whole numbers"),
        (["table1", "--workers", "0"], "workers"),
    ],
)
def test_reproduce_command_invalid_option_exits_2(words, message, data, tmp_path, capsys):
    arguments = ["reproduce", *words, "--out", str(tmp_path / "out")]
    if "--data" not in words:
        arguments += ["--data", str(data)]
    try:
        code = main(arguments)
    except SystemExit as error:
        code = error.code
    error = capsys.readouterr().err.strip()
    assert code == 2
    assert message in error
    assert len(error.splitlines()) == 1


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
def test_reproduce_command_killed_three_times_gives_the_same_table(data, tmp_path):
    whole = _start(data, tmp_path / "out")
    assert whole.wait(300) == 0
    expected = {p.name: p.read_bytes() for p in (tmp_path / "out").glob("table1.*")}
    (tmp_path / "out").rename(tmp_path / "whole")
    rng, done = random.Random(5), 0
    for _ in range(3):
        running = _start(data, tmp_path / "out")
        cells = tmp_path / "out" / "cells"
        target = done + rng.randint(1, 12)
        while running.poll() is None and len(list(cells.glob("[!.]*.json"))) < target:
            time.sleep(0.02)
        time.sleep(rng.random() * 0.3)
        running.send_signal(signal.SIGKILL)
        running.wait()
        done = len(list(cells.glob("[!.]*.json")))
        saved = {p.name: p.stat().st_mtime_ns for p in cells.glob("[!.]*.json")}
    assert saved
    assert _start(data, tmp_path / "out").wait(300) == 0
    assert {p.name: p.read_bytes() for p in (tmp_path / "out").glob("table1.*")} == expected
    after = {p.name: p.stat().st_mtime_ns for p in cells.glob("[!.]*.json")}
    assert {name: after[name] for name in saved} == saved  # nothing was run twice


# --- models around a trained one ------------------------------------------------------------------


def test_inverted_and_correlation_small_examples():
    target = np.array([1.0, 2.0, 3.0, 3.0])
    assert figures.inverted(target, target) == 0
    assert figures.inverted(-target, target) == 1
    assert figures.inverted(np.zeros(4), target) == 0.5
    # Of the five pairs that the target orders, one (2 against 3) is inverted.
    assert figures.inverted(np.array([1.0, 5.0, 4.0, 6.0]), target) == pytest.approx(1 / 5)
    other = np.array([1.0, 5.0, 4.0, 6.0])
    assert figures.correlation(other, target) == pytest.approx(np.corrcoef(other, target)[0, 1])
    assert np.isnan(figures.correlation(np.zeros(4), target))
