"""Faults, the quick tests: kills, full and read-only disks, NaN, clocks, degenerate data.

The documentation lists what is guaranteed for each; `make faults` runs the long tests.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from llpauc.cli import main, system
from llpauc.data.interactions import Interactions, Split
from llpauc.errors import InputError
from llpauc.losses import make_loss
from llpauc.recommend import Recommender
from llpauc.storage import run_folder
from llpauc.storage.atomic import temporary_folder
from llpauc.training import (
    SAMPLERS,
    CheckpointSettings,
    Diverged,
    TrainingOptions,
    fit,
    open_checkpoints,
)
from llpauc.training.checkpoint import Checkpoint
from llpauc.training.engine import CpuEngine
from tests.datasets import ROOT, mounted, new_network, random_split
from tests.system.faults.runs import cpu_seconds, fingerprint, start, wait_for, words, write_events
from tests.system.faults.saves import make_run

PATIENCE = 120  # seconds, for a machine with much else to do


def seed_of(folder: Path) -> int:
    """The seed of the run in `folder`; loading checks every file."""
    found = run_folder.load(folder)
    np.testing.assert_array_equal(
        found.tensors["vectors"], make_run(found.meta["seed"]).tensors["vectors"]
    )
    return int(found.meta["seed"])


# --- kill -9 while a run is saved -----------------------------------------------------------------

# The function, before or after its n-th call, and whether the new run is in place by then.
POINTS = [
    ("safetensors.save_file", "before", 1, False),
    ("safetensors.save_file", "after", 1, False),
    ("pq.write_table", "after", 1, False),
    ("Path.write_text", "after", 2, False),  # the manifest exists, nothing is flushed
    ("os.fsync", "before", 3, False),
    ("atomic._exchange", "before", 1, False),
    ("atomic._exchange", "after", 1, True),
    ("shutil.rmtree", "before", 1, True),
]
NEW = [("os.rename", "before", 1, False), ("os.rename", "after", 1, True)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("point", "exists"),
    [*((point, True) for point in POINTS), *((point, False) for point in NEW)],
    ids=str,
)
def test_save_killed_leaves_the_old_run_or_the_new_one(point, exists, tmp_path):
    """The next save removes what the killed one left."""
    place, when, nth, in_place = point
    if exists:
        run_folder.save(make_run(0), tmp_path / "run")
    words = [
        sys.executable,
        "-m",
        "tests.system.faults.saves",
        place,
        when,
        str(nth),
        tmp_path / "run",
    ]
    process = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
    assert process.returncode == -signal.SIGKILL, process.stderr
    if in_place or exists:
        assert seed_of(tmp_path / "run") == (1 if in_place else 0)
    else:
        assert not (tmp_path / "run").exists()
    left = [path.name for path in tmp_path.iterdir() if path.name != "run"]
    assert all(name.startswith(".run.") for name in left)
    assert left or place == "os.rename"
    run_folder.save(make_run(2), tmp_path / "run")
    assert seed_of(tmp_path / "run") == 2
    assert os.listdir(tmp_path) == ["run"]


def test_temporary_folder_of_a_running_process_is_not_removed(tmp_path):
    """Nor are folders with similar names."""
    others = [".run.old", ".run.0123456789ab.old", ".run.XYZ456789abc", "run.0123456789ab"]
    for name in others:
        (tmp_path / name).mkdir()
    with temporary_folder(tmp_path / "run") as work:
        (work / "half").write_text("written")
        run_folder.save(make_run(1), tmp_path / "run")
        assert (work / "half").read_text() == "written"
    assert sorted(os.listdir(tmp_path)) == sorted([*others, "run"])


def test_save_from_many_threads_leaves_one_whole_run(tmp_path):
    trouble: list[BaseException] = []

    def write(seed: int) -> None:
        try:
            for _ in range(10):
                run_folder.save(make_run(seed), tmp_path / "run")
                assert seed_of(tmp_path / "run") in range(4)
        except BaseException as error:
            trouble.append(error)

    writers = [threading.Thread(target=write, args=(seed,)) for seed in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert not trouble
    assert os.listdir(tmp_path) == ["run"]


# --- signals --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_train_stops_within_five_seconds_of_a_signal_and_resumes_to_the_same_bits(
    number, code, tmp_path, capfd
):
    events = write_events(tmp_path / "events.csv")
    more = ("--epochs", "40", "--checkpoint-every", "0")
    out = tmp_path / "run"
    with start(words(events, out, *more)) as process:
        wait_for(process, "epoch   2")
        process.send_signal(number)
        before = cpu_seconds(process)
        stderr = process.stderr.read()
        # CPU time, as the machine may be busy.
        assert cpu_seconds(process, over=True) - before < 5
    assert process.returncode == code, stderr
    assert len(list((tmp_path / "run.checkpoint").glob("0*"))) == 1
    assert main(words(events, out, *more, "--resume")) == 0
    assert "resuming from" in capfd.readouterr().err
    assert main(words(events, tmp_path / "whole", *more)) == 0
    assert fingerprint(out) == fingerprint(tmp_path / "whole")
    assert sorted(os.listdir(tmp_path)) == ["events.csv", "run", "whole"]


# --- disks ----------------------------------------------------------------------------------------


def remount(folder: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", str(folder)], check=True)


LARGE = ("--dimensions", "512", "--epochs", "1", "--negatives", "2")  # a run of 1.1 MB


def last_line(capfd) -> str:
    stderr = capfd.readouterr().err
    assert "Traceback" not in stderr
    return str(stderr.splitlines()[-1])


def test_train_on_a_full_disk_keeps_the_existing_run(tmp_path, capfd, monkeypatch):
    events = write_events(tmp_path / "events.csv", users=400, items=150)
    with mounted(tmp_path / "disk") as disk:
        Recommender(model="popularity").fit(random_split(1).train).save(disk / "run")
        before = (disk / "run" / "manifest.json").read_bytes()
        for shown, code in ((0, 2), (10**9, 1)):  # noticed before the training, or at its end
            if shown:
                usage = shutil.disk_usage(disk)._replace(free=shown)
                monkeypatch.setattr(system.shutil, "disk_usage", lambda path, usage=usage: usage)
            assert (
                main(["train", "--recipe=none", str(events), "--out", str(disk / "run"), *LARGE])
                == code
            )
            output = capfd.readouterr().err
            line = output.splitlines()[-1]
            assert f"bytes are free in {disk}" in line
            assert ("epoch" in output) == (code == 1)
        assert f"{disk / 'run'}: cannot be written: No space left on device: " in line
        assert (disk / "run" / "manifest.json").read_bytes() == before
        Recommender.load(disk / "run")
        assert os.listdir(disk) == ["run"]


def test_checkpoint_save_on_a_full_and_then_a_read_only_disk(tmp_path, log_messages):
    """The previous checkpoint stays complete, no temporary file is left, one message each."""
    small, large = ({"w": {"x": np.ones(n, np.float32)}} for n in (50_000, 400_000))
    with mounted(tmp_path / "disk") as disk:
        with open_checkpoints(CheckpointSettings(disk / "c")) as folder:
            assert folder.save(Checkpoint(small, {"n": 1}))
            for _ in range(2):
                assert not folder.save(Checkpoint(large))
                assert sorted(os.listdir(disk / "c")) == ["000001", "lock"]
            assert folder.save(Checkpoint(small, {"n": 2}))
        assert len(log_messages) == 1
        assert "No space left on device" in log_messages[0]
        remount(disk, "ro")
        with open_checkpoints(CheckpointSettings(disk / "c")) as folder:
            assert folder is None
        assert "Read-only file system" in log_messages[1]
        assert "training continues without" in log_messages[1]
        with (
            pytest.raises(InputError, match=r"cannot resume from .*Read-only file system"),
            open_checkpoints(CheckpointSettings(disk / "c", if_exists="resume")),
        ):
            pass
        found = [run_folder.load(disk / "c" / name).meta["n"] for name in ("000001", "000002")]
        assert found == [1, 2]


def test_commands_refuse_a_read_only_disk_before_the_work(tmp_path, capfd):
    events = write_events(tmp_path / "events.csv")
    with mounted(tmp_path / "disk") as disk:
        run = Recommender(model="popularity").fit(random_split(1).train).save(disk / "run")
        remount(disk, "ro")
        for words in (
            ["train", "--recipe=none", events, "--out", run],
            ["recommend", run, "--out", disk / "lists.csv"],
            ["data", "split", events, disk / "parts"],
            ["report", run, "--out", disk / "report.html"],
        ):
            assert main([str(word) for word in words]) == 2, words
            assert f"{disk} is read-only for you; choose another place" in last_line(capfd).replace(
                str(run), str(disk)
            )
        assert main(["recommend", str(run), "--users", "u1", "--json"]) == 0  # reading works
        assert os.listdir(disk) == ["run"]


# --- numbers --------------------------------------------------------------------------------------

SPLIT = random_split(21, n_users=60, n_items=200, events=600)


def a_loss(name: str):
    return make_loss(name, **({"alpha": 0.7, "beta": 0.3} if name == "llpauc" else {}))


def trained(loss, folder, *, model="mf", **options):
    made = new_network(model, SPLIT.train, 5, dimensions=6, init_scale=0.1)
    training_options = TrainingOptions(
        **{"epochs": 3, "batch_size": 32, "negatives": 7, "lr": 0.02, **options}
    )
    with open_checkpoints(CheckpointSettings(folder, every=1e-9)) as checkpoints:
        try:
            return made, fit(made, loss, SPLIT, training_options, checkpoint=checkpoints), None
        except Diverged as error:
            return made, None, str(error)


def all_finite(folder: Path) -> int:
    """The number of checkpoints; each is complete and finite."""
    found = [run_folder.load(path) for path in folder.glob("0*")]
    for one in found:
        for values in one.tensors.values():
            assert values.dtype.kind != "f" or np.isfinite(values).all()
    return len(found)


@pytest.mark.parametrize("what", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("loss", ["llpauc", "bpr", "sl", "bce"])
@pytest.mark.parametrize("model", ["mf", "lightgcn"])
def test_fit_stops_at_the_step_of_a_score_that_is_not_finite(
    model, loss, what, tmp_path, monkeypatch
):
    step = CpuEngine.step

    def poisoned(self, batch):
        if batch.step == 6:  # the seventh
            self.model.user_table.data[batch.users[0]] = what
        return step(self, batch)

    monkeypatch.setattr(CpuEngine, "step", poisoned)
    made, history, error = trained(a_loss(loss), tmp_path / "c", model=model)
    assert history is None
    assert "training diverged in epoch 1, batch 7: " in error
    assert "scores are NaN or infinite" in error or "the loss is " in error
    assert "\n" not in error
    assert all_finite(tmp_path / "c") == 2
    for values in made.parameters():
        assert values.isfinite().all()


@pytest.mark.parametrize("loss", ["llpauc", "bpr", "sl", "bce", "softmax_v"])
def test_fit_learning_rate_of_a_million_raises_or_stays_finite(loss, tmp_path):
    made, history, error = trained(a_loss(loss), tmp_path / "c", lr=1e6, epochs=20)
    if error is not None:
        assert "learning rate (1e+06) is too high" in error
        assert all_finite(tmp_path / "c")
    else:
        assert all(math.isfinite(epoch.loss) for epoch in history.epochs)
    for values in made.parameters():
        assert values.isfinite().all()


@pytest.mark.parametrize("alpha", [1e-6, 1.0])
@pytest.mark.parametrize("beta", [1e-6, 1.0])
@pytest.mark.parametrize("model", ["mf", "lightgcn"])
def test_fit_llpauc_alpha_beta_of_a_millionth_stays_finite(model, alpha, beta, tmp_path):
    loss = make_loss("llpauc", alpha=alpha, beta=beta)
    made, history, error = trained(loss, tmp_path / "c", model=model)
    assert error is None
    assert all(math.isfinite(epoch.loss) for epoch in history.epochs)
    assert all(math.isfinite(value) for epoch in history.epochs for value in epoch.valid.values())
    for values in made.parameters():
        assert values.isfinite().all()


# --- clocks ---------------------------------------------------------------------------------------

JUMPING = """
import itertools, sys, time
real, jumps = time.time, itertools.cycle([10 * 365 * 86400, -50 * 365 * 86400, 0])
time.time = lambda: real() + next(jumps)
time.time_ns = lambda: int(time.time() * 1e9)
from llpauc.cli import main
from llpauc.errors import InputError
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_train_with_a_jumping_clock_gives_the_same_bits(tmp_path):
    events = write_events(tmp_path / "events.csv")
    more = ("--epochs", "4")
    assert main(words(events, tmp_path / "whole", *more)) == 0
    arguments = [str(word) for word in words(events, tmp_path / "run", *more)]
    process = subprocess.run(
        [sys.executable, "-c", JUMPING, *arguments],
        capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    assert fingerprint(tmp_path / "run") == fingerprint(tmp_path / "whole")
    assert sorted(os.listdir(tmp_path)) == ["events.csv", "run", "whole"]


@pytest.mark.slow
def test_tune_with_a_jumping_clock_runs_every_trial(tmp_path):
    events, out = write_events(tmp_path / "events.csv"), tmp_path / "tuned"
    words = ["tune", str(events), "--trials", "2", "--budget", "10m", "--epochs", "1", "--json"]
    process = subprocess.run(
        [sys.executable, "-c", JUMPING, *words, "--out", str(out)],
        capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    assert len(json.loads(process.stdout)["trials"]) == 2


def test_runs_lists_runs_of_any_date(tmp_path, capfd):
    for name, moment in (("future", 4e9), ("past", 0), ("before", -1e9)):
        Recommender(model="popularity").fit(random_split(1).train).save(tmp_path / name)
        os.utime(tmp_path / name, (moment, moment))
    assert main(["runs", str(tmp_path), "--json"]) == 0
    listed = json.loads(capfd.readouterr().out)["runs"]
    assert {Path(run["name"]).name for run in listed} == {"future", "past", "before"}
    assert main(["runs", str(tmp_path)]) == 0


# --- degenerate data -----------------------------------------------------------------------------


def table(*pairs: tuple[object, object]) -> str:
    return "user,item\n" + "".join(f"{user},{item}\n" for user, item in pairs)


MANY = [(user, item) for user in range(20) for item in range(12) if (user + item) % 3]
# The file or the parts, and the exit code.
DEGENERATE: dict[str, tuple[str | dict[str, str], int]] = {
    "empty": ("", 2),
    "only a header": (table(), 2),
    "one event": (table((1, 2)), 2),
    "one user": (table(*((1, item) for item in range(9))), 2),
    "one item": (table(*((user, 1) for user in range(9))), 2),
    "all duplicates": (table(*[(1, 2)] * 50), 2),
    "all users have all items": (table(*((u, i) for u in range(9) for i in range(4))), 0),
    "one user has all items": (table(*MANY, *((99, item) for item in range(12))), 0),
    "K above the items": (table(*((user, (user + i) % 3) for user in range(9) for i in (0, 1))), 0),
    "unknown test users": ({"train": table(*MANY), "test": table((777, 1), (778, 2))}, 0),
    "unknown test items": ({"train": table(*MANY), "test": table((1, 777), (2, 778))}, 2),
    "an empty test part": ({"train": table(*MANY), "test": table()}, 2),
    "test events are train events": ({"train": table(*MANY), "test": table(*MANY)}, 0),
}


def no_nan(value) -> bool:
    if isinstance(value, dict):
        return all(no_nan(v) for v in value.values())
    if isinstance(value, list):
        return all(no_nan(v) for v in value)
    return not isinstance(value, float) or math.isfinite(value)


@pytest.mark.parametrize("model", ["mf", "lightgcn", "popularity", "itemknn", "ease"])
@pytest.mark.parametrize("title", DEGENERATE)
def test_train_degenerate_data_gives_a_result_or_one_line(title, model, tmp_path, capfd):
    content, code = DEGENERATE[title]
    data = tmp_path / "data"
    data.mkdir()
    for name, text in (content if isinstance(content, dict) else {"events": content}).items():
        (data / f"{name}.csv").write_text(text)
    options = ["--epochs", "2", "--dimensions", "4"] if model in ("mf", "lightgcn") else []
    begun = time.monotonic()
    words = [
        "train",
        "--recipe=none",
        data,
        "--model",
        model,
        "--out",
        tmp_path / "run",
        "--json",
        *options,
    ]
    assert main([str(word) for word in words]) == code
    output = capfd.readouterr()
    if code:
        assert len(output.err.splitlines()[-1]) < 400
        assert "Traceback" not in output.err
    else:
        assert no_nan(json.loads(output.out))
        assert main(["recommend", str(tmp_path / "run"), "-k", "50", "--json"]) == 0
        lists = json.loads(capfd.readouterr().out)
        assert lists
        assert no_nan(lists)
    assert time.monotonic() - begun < 10


def test_fit_every_sampler_ends_if_users_have_all_items():
    """Such users have no negatives."""
    pairs = [(u, i) for u in range(6) for i in range(5)]
    data = Interactions.of(*map(list, zip(*pairs, strict=True)))
    begun = time.monotonic()
    for sampler in SAMPLERS:
        model = new_network("mf", data, 0, dimensions=4)
        options = TrainingOptions(epochs=2, batch_size=7, negatives=9, sampler=sampler)
        fit(model, a_loss("llpauc"), Split(data), options)
        for values in model.parameters():
            assert values.isfinite().all()
    assert time.monotonic() - begun < 30


# --- memory ---------------------------------------------------------------------------------------


def test_arrow_memory_error_is_not_reported_as_a_damaged_file(tmp_path, monkeypatch, capfd):
    """ArrowMemoryError is an ArrowException, as errors of damaged files are."""

    def no_memory(*_, **__):
        raise pa.ArrowMemoryError("malloc of size 64 failed")

    events = tmp_path / "events.parquet"
    pq.write_table(pa.table({"user": [1, 2], "item": [3, 4]}), events)
    run = Recommender(model="popularity").fit(random_split(1).train).save(tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(pq.ParquetFile, "iter_batches", no_memory)
        assert main(["evaluate", str(events)]) == 1
        assert last_line(capfd).endswith("error: out of memory: malloc of size 64 failed")
    with monkeypatch.context() as patch:
        patch.setattr(pq.ParquetFile, "read", no_memory)
        assert main(["recommend", str(run)]) == 1
        assert last_line(capfd).endswith("error: out of memory: malloc of size 64 failed")


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("prlimit"), reason="no prlimit here")
@pytest.mark.parametrize("command", ["recommend", "evaluate", "report", "serve"])
def test_commands_name_the_bytes_if_the_memory_limit_is_too_small(command, tmp_path):
    """Before libraries are loaded, which could end or block the process."""
    run = Recommender(model="popularity").fit(random_split(1).train).save(tmp_path / "run")
    for megabytes in (400, 1000):
        process = subprocess.run(
            ["prlimit", f"--as={megabytes << 20}", sys.executable, "-m", "llpauc", command, run],
            capture_output=True, text=True, timeout=PATIENCE,
        )  # fmt: skip
        assert process.returncode == 2
        (line,) = process.stderr.splitlines()
        assert f"bytes, the limit on this process's memory leaves {megabytes << 20:,}" in line
