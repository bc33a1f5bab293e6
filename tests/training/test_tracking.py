"""Trackers: recorded values are read back with the trackers' own libraries."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import resource
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import api_pb2
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
from tensorboard.util.tensor_util import make_ndarray

from llpauc import Recommender
from llpauc.cli import main
from llpauc.data.interactions import Interactions
from llpauc.data.splits import split_random_per_user
from llpauc.errors import InputError
from llpauc.evaluation.full_ranking import evaluate
from llpauc.training import Diverged, Epoch, History
from llpauc.training.tracking import TRACKERS, tracking

STOPPED = "stopped/text_summary"  # SummaryWriter's tag of the text "stopped"
LLPAUC = Path(sys.executable).with_name("llpauc")
PARAMS = {"model": "mf", "loss": "llpauc", "alpha": 0.7, "epochs": 3, "item_bias": True}


def pairs(users: int, items: int, each: int) -> list[tuple[str, str]]:
    draw = random.Random(0)
    return [(f"u{u}", f"i{i}") for u in range(users) for i in draw.sample(range(items), each)]


@pytest.fixture(scope="module")
def split():
    data = Interactions.of(*zip(*pairs(40, 30, 12), strict=True))
    return split_random_per_user(data, valid=0.2, test=0.2, seed=0)


@pytest.fixture(scope="module")
def database(tmp_path_factory) -> str:
    """Created once: MLflow takes seconds for its tables."""
    uri = f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/new/folder/mlflow.db"
    with tracking({"mlflow": uri}, {}):
        pass
    return uri


@pytest.fixture
def events(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    lines = [f"{user},{item}\n" for user, item in pairs(40, 30, 12)]
    path = tmp_path / "events.csv"
    path.write_text("".join(["user,item\n", *lines]))
    return path


def mlflow_client(uri: str):
    # Imported here: opening a tracker has turned off MLflow's telemetry and messages.
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=uri)


def last_run(uri: str):
    client = mlflow_client(uri)
    experiment = client.get_experiment_by_name("llpauc")
    return client.search_runs([experiment.experiment_id], order_by=["start_time DESC"])[0]


def board(folder: Path) -> EventAccumulator:
    (place,) = folder.iterdir()
    read = EventAccumulator(str(place))
    read.Reload()
    return read


def expected(history: History) -> dict[str, list[tuple[int, float]]]:
    """Name -> (epoch, value) as expected in TensorBoard, from the history."""
    wanted: dict[str, list[tuple[int, float]]] = {}
    for epoch in history.epochs:
        rate = epoch.examples / epoch.seconds
        flat = [("train/loss", epoch.loss), ("train/seconds", epoch.seconds),
                ("train/examples_per_second", rate)]  # fmt: skip
        flat += [(f"valid/{name}", value) for name, value in epoch.valid.items()]
        flat += [(f"diagnostics/{name}", value) for name, value in epoch.diagnostics.items()]
        for name, value in flat:
            wanted.setdefault(name, []).append((epoch.number, value))
    return wanted


def test_tracking_records_every_value_of_the_history(split, tmp_path, database):
    recommender = Recommender(recipe="none", epochs=3, valid_every=2, seed=1, lr=0.01)
    params = recommender.get_params()
    with tracking({"tensorboard": str(tmp_path), "mlflow": database}, params) as tracked:
        recommender.fit(split, on_epoch=tracked.epoch)
        summary = evaluate(recommender.scorer(), split, metrics=["recall@5"]).summary()
        tracked.end(recommender.history, summary)
    history = recommender.history
    wanted = expected(history)
    assert [step for step, _ in wanted["valid/ndcg@20"]] == [2]
    assert "diagnostics/hard_llpauc" in wanted
    wanted["test/recall@5"] = [(history.best_epoch, summary["all"]["recall@5"])]

    read = board(tmp_path)
    assert set(read.Tags()["scalars"]) == set(wanted)
    for name, points in wanted.items():
        found = [(event.step, event.value) for event in read.Scalars(name)]
        assert [step for step, _ in found] == [step for step, _ in points]
        np.testing.assert_allclose(
            [value for _, value in found], [value for _, value in points], rtol=1e-6
        )
    (stopped,) = read.Tensors(STOPPED)
    assert make_ndarray(stopped.tensor_proto).item() == b"epochs"

    run = last_run(database)
    assert run.info.status == "FINISHED"
    assert run.data.tags["stopped"] == "epochs"
    assert run.data.params == {key: str(value) for key, value in params.items()}
    assert run.data.metrics["best_epoch"] == history.best_epoch == 2
    names = {name: name.replace("@", "_at_") for name in wanted}
    assert set(run.data.metrics) == {*names.values(), "best_epoch"}
    client = mlflow_client(database)
    for name, points in wanted.items():
        logged = client.get_metric_history(run.info.run_id, names[name])
        assert [(metric.step, metric.value) for metric in logged] == points


def hparams(read: EventAccumulator, tag: str) -> HParamsPluginData:
    return HParamsPluginData.FromString(read.PluginTagToContent("hparams")[tag])


def test_tensorboard_tracker_records_hyperparameters_with_their_types(tmp_path):
    with tracking({"tensorboard": str(tmp_path)}, {**PARAMS, "layers": None}):
        pass
    params = hparams(board(tmp_path), "_hparams_/session_start_info").session_start_info.hparams
    assert params["alpha"].number_value == 0.7
    assert params["loss"].string_value == "llpauc"
    assert params["item_bias"].bool_value is True
    assert set(params) == set(PARAMS)


def test_tensorboard_tracker_uses_one_folder_per_run(tmp_path):
    for _ in range(2):
        with tracking({"tensorboard": str(tmp_path)}, PARAMS):
            pass
    assert len(list(tmp_path.iterdir())) == 2
    assert all(place.name.startswith("mf-llpauc-") for place in tmp_path.iterdir())


def ended(stopped: str) -> History:
    epoch = Epoch(1, 0.5, 0.1, 10)
    return History((epoch,), 1, 0.0, stopped)


@pytest.mark.parametrize(
    ("history", "error", "stopped", "status"),
    [
        (ended("patience"), None, "patience", "FINISHED"),
        (ended("interrupted"), None, "interrupted", "KILLED"),
        (ended("interrupted"), SystemExit(130), "interrupted", "KILLED"),
        (None, KeyboardInterrupt(), "interrupted", "KILLED"),
        (None, Diverged("NaN"), "diverged", "FAILED"),
        (None, MemoryError(), "failed", "FAILED"),
        (ended("epochs"), OSError(28, "No space left"), "failed", "FAILED"),
        (None, None, "done", "FINISHED"),
    ],
)
def test_tracking_records_how_the_run_ended(tmp_path, database, history, error, stopped, status):
    def run():
        with tracking({"tensorboard": str(tmp_path), "mlflow": database}, PARAMS) as tracked:
            if history is not None:
                tracked.end(history)
            if error is not None:
                raise error

    if error is None:
        run()
    else:
        with pytest.raises(type(error)):
            run()
    run_info = last_run(database)
    assert (run_info.info.status, run_info.data.tags["stopped"]) == (status, stopped)
    read = board(tmp_path)
    assert make_ndarray(read.Tensors(STOPPED)[0].tensor_proto).item().decode() == stopped
    end = hparams(read, "_hparams_/session_end_info").session_end_info
    wanted = api_pb2.STATUS_SUCCESS if status == "FINISHED" else api_pb2.STATUS_FAILURE
    assert end.status == wanted


# --- before training ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TRACKERS)
def test_check_trackers_refuses_a_tracker_that_is_not_installed(events, capsys, monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)  # import and find_spec take it for missing
    assert main(["train", "--recipe=none", str(events), f"--{name}", "place"]) == 2
    stderr = capsys.readouterr().err
    assert stderr == f"llpauc: error: {name} is not installed; pip install 'llpauc[{name}]'\n"
    assert [path.name for path in Path().iterdir()] == ["events.csv"]


@pytest.mark.parametrize(
    ("name", "place", "message"),
    [
        ("tensorboard", "events.csv", "events.csv is no folder"),
        ("tensorboard", "", "tensorboard is given an empty place"),
        ("tensorboard", "run", "the run folder run is written as a whole"),
        ("mlflow", "sqlite:///run/mlflow.db", "the run folder run is written as a whole"),
        ("mlflow", "sqlite:///events.csv", "file is not a database"),
        ("mlflow", "sqlite:///events.csv/mlflow.db", "events.csv: File exists"),
        ("mlflow", "http://127.0.0.1:9", "Connection refused"),
        ("mlflow", "ftp://host", "unsupported URI"),
        ("mlflow", "mysql://ann:secret@host/db", "'mysql://***@host/db'"),
    ],
)
def test_train_refuses_an_unusable_tracking_place_before_training(
    events, capsys, monkeypatch, name, place, message
):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    assert (
        main(
            [
                "train",
                "--recipe=none",
                str(events),
                "--epochs",
                "1",
                "--out",
                "run",
                f"--{name}",
                place,
            ]
        )
        == 2
    )
    stderr = capsys.readouterr().err
    last = stderr.splitlines()[-1]
    assert last.startswith("llpauc: error: ")
    assert message in last
    assert "secret" not in stderr
    assert "epoch " not in stderr
    assert "Traceback" not in stderr
    assert [path.name for path in Path().iterdir()] == ["events.csv"]


def test_tracking_refuses_an_unknown_tracker():
    with pytest.raises(InputError, match="unknown tracker 'wandb'; choose one of: tensorboard"):
        tracking({"wandb": "x"}, {}).__enter__()


def test_tracking_closes_the_first_tracker_if_the_second_is_refused(tmp_path, database):
    (tmp_path / "file").write_text("mine")
    with (
        pytest.raises(InputError, match="tensorboard cannot use"),
        tracking({"mlflow": database, "tensorboard": str(tmp_path / "file")}, PARAMS),
    ):
        pass
    assert last_run(database).info.status == "FAILED"


def test_train_dry_run_tracks_nothing(events):
    words = ["--dry-run", "--tensorboard", "boards", "--mlflow", "sqlite:///mlflow.db"]
    assert main(["train", "--recipe=none", str(events), *words]) == 0
    assert [path.name for path in Path().iterdir()] == ["events.csv"]


# --- in the middle of training --------------------------------------------------------------------


def test_tracking_tensorboard_on_a_full_disk_does_not_stop_training(split, tmp_path, log_messages):
    """RLIMIT_FSIZE acts as the full disk."""
    recommender = Recommender(recipe="none", epochs=4, seed=1)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with tracking({"tensorboard": str(tmp_path)}, PARAMS) as tracked:

            def on_epoch(epoch: Epoch) -> None:
                if epoch.number == 2:
                    (file,) = tmp_path.glob("*/*")
                    limit = file.stat().st_size
                    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limits[1]))
                tracked.epoch(epoch)

            recommender.fit(split, on_epoch=on_epoch)
            tracked.end(recommender.history)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    (line,) = log_messages
    assert "tensorboard failed: File too large" in line
    assert [event.step for event in board(tmp_path).Scalars("train/loss")] == [1]
    alone = Recommender(recipe="none", epochs=4, seed=1).fit(split)
    assert [e.loss for e in recommender.history.epochs] == [e.loss for e in alone.history.epochs]


def test_tracking_mlflow_database_that_breaks_does_not_stop_training(
    split, tmp_path, database, log_messages
):
    path = tmp_path / "copy.db"
    path.write_bytes(Path(database.removeprefix("sqlite:///")).read_bytes())
    recommender = Recommender(recipe="none", epochs=3, seed=1)
    with tracking({"mlflow": f"sqlite:///{path}"}, PARAMS) as tracked:

        def on_epoch(epoch: Epoch) -> None:
            if epoch.number == 2:
                with sqlite3.connect(path) as broken:
                    broken.execute("DROP TABLE metrics")
            tracked.epoch(epoch)

        recommender.fit(split, on_epoch=on_epoch)
        tracked.end(recommender.history)
    assert len(recommender.history.epochs) == 3
    (line,) = log_messages
    assert "mlflow failed" in line
    assert "no such table: metrics" in line
    assert "\n" not in line
    with sqlite3.connect(path) as left:  # as far as it can be, the run there is closed
        newest = "SELECT status FROM runs ORDER BY start_time DESC LIMIT 1"
        assert left.execute(newest).fetchone() == ("FINISHED",)


class Breaking:
    """A tracker that fails in one method."""

    def __init__(self, where: str, place: str) -> None:
        self.where, self.place = where, Path(place)

    def log(self, values, step) -> None:
        self.write(f"epoch {step}")
        if self.where == "epoch":
            raise RuntimeError("server gone\nand more")

    def close(self, stopped, best_epoch, test) -> None:
        self.write(f"close {stopped}")
        if self.where == "close":
            raise RuntimeError("server gone")

    def write(self, line: str) -> None:
        with self.place.open("a") as file:
            file.write(line + "\n")


@pytest.mark.parametrize(
    ("where", "calls", "message"),
    [
        (
            "epoch",
            ["epoch 1", "close epochs"],
            "later epochs are not tracked there",
        ),
        (
            "close",
            ["epoch 1", "epoch 2", "close epochs"],
            "the end of the run is not tracked there",
        ),
    ],
)
def test_train_prints_one_message_for_a_tracker_that_fails(
    events, capsys, monkeypatch, where, calls, message
):
    monkeypatch.setitem(TRACKERS, "mlflow", lambda place, params, name: Breaking(where, place))
    words = ["--epochs", "2", "--out", "run", "--mlflow", "calls.txt"]
    assert main(["train", "--recipe=none", str(events), *words]) == 0
    assert Path("calls.txt").read_text().splitlines() == calls
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "server gone" in line]
    assert line.startswith("mlflow failed: server gone; ")
    assert message in line
    assert len(Path("run/metrics.jsonl").read_text().splitlines()) == 2


def test_tracking_logs_a_tracker_that_fails(tmp_path, monkeypatch, log_messages):
    place = str(tmp_path / "calls.txt")
    monkeypatch.setitem(TRACKERS, "mlflow", lambda place, params, name: Breaking("epoch", place))
    with tracking({"mlflow": place}, {}) as tracked:
        tracked.epoch(Epoch(1, 0.5, 0.1, 10))
    assert log_messages[0].startswith("mlflow failed: server gone; later epochs")


# --- the command ----------------------------------------------------------------------------------


def test_train_tracks_all_settings_and_the_test_metrics(events, database, capsys):
    assert main(["data", "split", str(events), "parts"]) == 0
    words = ["--epochs", "2", "--alpha", "0.6", "--tensorboard", "boards", "--mlflow", database]
    capsys.readouterr()
    assert main(["train", "--recipe=none", "parts", *words, "--out", "run", "--json"]) == 0
    measured = json.loads(capsys.readouterr().out)["test"]["mf"]["all"]
    run = last_run(database)
    assert run.data.metrics["test/ndcg_at_20"] == measured["ndcg@20"]
    params = run.data.params
    assert (params["alpha"], params["beta"], params["lr"]) == ("0.6", "0.1", "0.001")
    assert (params["model"], params["epochs"], params["dimensions"]) == ("mf", "2", "64")
    (found,) = board(Path("boards")).Scalars("test/recall@20")
    assert found.value == pytest.approx(measured["recall@20"])
    history = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    losses = [event.value for event in board(Path("boards")).Scalars("train/loss")]
    assert losses == pytest.approx([epoch["loss"] for epoch in history])


def test_train_tracks_a_model_without_epochs(events, database):
    assert main(["data", "split", str(events), "parts"]) == 0
    assert main(["train", "parts", "--model", "ease", "--out", "run", "--mlflow", database]) == 0
    run = last_run(database)
    assert run.data.params == {"model": "ease"}
    assert set(run.data.metrics) == {"test/recall_at_20", "test/ndcg_at_20"}
    assert (run.info.status, run.data.tags["stopped"]) == ("FINISHED", "done")


def test_train_that_diverges_is_tracked_as_failed(events, database):
    words = ["--lr", "1e30", "--epochs", "2", "--out", "run", "--mlflow", database]
    assert main(["train", "--recipe=none", str(events), *words]) == 1
    run = last_run(database)
    assert (run.info.status, run.data.tags["stopped"]) == ("FAILED", "diverged")


@pytest.mark.slow
def test_train_interrupted_is_tracked_as_killed(events, database):
    words = [LLPAUC, "train", "--recipe=none", events, "--epochs", "100000", "--patience", "100000",
             "--out", "run", "--tensorboard", "boards", "--mlflow", database]  # fmt: skip
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as training:
        try:
            for line in training.stderr:
                if line.startswith("epoch   2"):
                    break
            training.send_signal(signal.SIGINT)
            training.communicate(timeout=60)
        finally:
            training.kill()
    assert training.returncode == 130
    run = last_run(database)
    assert (run.info.status, run.data.tags["stopped"]) == ("KILLED", "interrupted")
    lines = Path("run/metrics.jsonl").read_text().splitlines()
    read = board(Path("boards"))
    assert len(read.Scalars("train/loss")) == len(lines)
    assert make_ndarray(read.Tensors(STOPPED)[0].tensor_proto).item() == b"interrupted"


QUIET = """
import sys
def refuse(event, details):
    if event in ("socket.connect", "socket.getaddrinfo"):
        print("network:", details)
        raise OSError("no network in this test")
sys.addaudithook(refuse)
from llpauc.cli import main
code = main(sys.argv[1:])
assert {"mlflow", "tensorboard"} <= set(sys.modules), "the trackers have run"
sys.exit(code)
"""


@pytest.mark.slow
def test_trackers_print_nothing_and_use_no_network(events):
    testing = ("CI", "GITHUB_ACTIONS", "PYTEST_CURRENT_TEST")  # where MLflow is silent by itself
    quiet = {k: v for k, v in os.environ.items() if k not in testing and "MLFLOW" not in k}

    # A new database: its tables are what MLflow has most to say about.
    words = ["train", "--recipe=none", str(events), "--epochs", "1", "--out", "run", "--json",
             "--tensorboard", "boards", "--mlflow", "sqlite:///mlflow.db"]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", QUIET, *words], env=quiet, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    json.loads(done.stdout)  # all of it
    lines = done.stderr.splitlines()
    known = (
        "validation events",
        "events.csv: ",
        "Recommender(",
        "epoch ",
        "no test part",
        "next: ",
        str(events),
    )
    assert [line for line in lines if not line.startswith(known)] == []


def test_import_llpauc_imports_no_tracker():
    script = (
        "import sys, llpauc, llpauc.cli, llpauc.recommend.recommender, llpauc.training.tracking;"
        "print(sorted({'mlflow', 'tensorboard', 'sqlalchemy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "[]\n"


def test_recommender_save_writes_the_history_as_json_lines(split, tmp_path):
    recommender = Recommender(recipe="none", epochs=3, valid_every=2, seed=1).fit(split)
    recommender.save(tmp_path / "run")
    lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    epochs = [dataclasses.asdict(epoch) for epoch in recommender.history.epochs]
    seconds = [epoch.pop("seconds") for epoch in epochs]
    assert [json.loads(line) for line in lines] == epochs
    assert json.loads((tmp_path / "run/timings.json").read_text()) == {"seconds": seconds}
