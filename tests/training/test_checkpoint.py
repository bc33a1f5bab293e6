"""Checkpoints: an interrupted and resumed training gives the same bits as an uninterrupted one."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import os
import random
import resource
import shutil
import signal
from contextlib import contextmanager, suppress

import numpy as np
import pytest
from safetensors.numpy import load_file

from llpauc.cli import main
from llpauc.data.interactions import fingerprint as data_fingerprint
from llpauc.errors import InputError
from llpauc.losses import make_loss
from llpauc.recommend import Recommender
from llpauc.training import CheckpointSettings, Diverged, TrainingOptions, fit, open_checkpoints
from llpauc.training.checkpoint import Checkpoint
from llpauc.training.engine import CpuEngine, TorchEngine
from tests.datasets import new_network, random_split
from tests.system.faults.runs import FaultPoint, fingerprint, start, wait_for, words, write_events

SPLIT = random_split(21, n_users=60, n_items=300, events=500)  # more items than a batch has pairs
PARAMETERS = {"llpauc": {"alpha": 0.7, "beta": 0.3}, "tce": {"ramp_steps": 100}}
BATCH = 32
PER_EPOCH = -(-len(SPLIT.train) // BATCH)


@dataclasses.dataclass(frozen=True)
class Case:
    model: str = "mf"
    loss: str = "llpauc"
    sampler: str = "uniform"
    score: str = "dot"
    item_bias: bool = False
    options: dict = dataclasses.field(default_factory=dict)
    fit: dict = dataclasses.field(default_factory=dict)
    split: object = SPLIT

    def train(self, checkpoint=None):
        """The weights, the loss's variables and the history after training."""
        usual_model = {"dimensions": 6, "score": self.score, "init_scale": 0.1}
        model = new_network(
            self.model, self.split.train, 5, item_bias=self.item_bias, **usual_model, **self.options
        )
        loss = make_loss(self.loss, **PARAMETERS.get(self.loss, {}))
        usual = {"epochs": 3, "batch_size": BATCH, "negatives": 7, "lr": 0.02, "seed": 3}
        history = fit(
            model, loss, self.split, TrainingOptions(sampler=self.sampler, **{**usual, **self.fit}),
            checkpoint=checkpoint,
        )  # fmt: skip
        return model, loss, history


def without_times(history):
    return [dataclasses.replace(epoch, seconds=0.0) for epoch in history.epochs]


def outcome(model, loss, history):
    """Everything that must be equal; bytes, so that -0.0 and 0.0 differ."""
    tensors = {**dict(model.named_parameters()), **loss.state_dict()}
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode() + tensors[name].detach().numpy().tobytes())
    return digest.hexdigest(), without_times(history), history.best_epoch, history.stopped


def stop_at(monkeypatch, step, engine=CpuEngine, number=lambda batch: batch.step + 1):
    """A signal in the middle of the given step, counted from 1 over all of a training's steps."""
    original = engine.step

    def stepping(self, batch):
        if number(batch) == step:
            signal.raise_signal(signal.SIGTERM)
        return original(self, batch)

    monkeypatch.setattr(engine, "step", stepping)


def interrupted_and_resumed(case, folder, steps, monkeypatch):
    """Train with a stop in each of these steps, and a new model and loss after each."""
    engine = CpuEngine if case.fit.get("device", "cpu") == "cpu" else TorchEngine
    for step in steps:
        with monkeypatch.context() as patch:
            stop_at(patch, step, engine)
            history = case.train(CheckpointSettings(folder, if_exists="resume"))[2]
        assert (history.stopped, history.signal) == ("interrupted", signal.SIGTERM)
    return case.train(CheckpointSettings(folder, if_exists="resume"))


class Abandoned(Exception):
    pass


@contextmanager
def abandoned(settings):
    """Open a checkpoint folder and leave it as kill -9 would: nothing is removed."""
    with suppress(Abandoned), open_checkpoints(settings) as folder:
        yield folder
        raise Abandoned


CASES = {
    "mf-llpauc": Case(),
    "mf-llpauc-cosine-bias": Case(score="cosine", item_bias=True),
    "mf-bpr-popularity-decay": Case(loss="bpr", sampler="popularity", fit={"weight_decay": 0.01}),
    "mf-bpr-shared": Case(loss="bpr", sampler="shared"),
    "mf-llpauc-all": Case(sampler="all-items", score="cosine"),
    "mf-tce-uniform-with-positives": Case(loss="tce", sampler="uniform-with-positives"),
    "mf-sl_at_k": Case(loss="sl_at_k", score="cosine", fit={"epochs": 7, "patience": 99}),
    "mf-bpr-in-batch-no-validation": Case(
        loss="bpr", sampler="in-batch", split=dataclasses.replace(SPLIT, valid=None)
    ),
    "fism-llpauc": Case(model="fism"),
    "fism-bce-cosine-shared": Case(model="fism", loss="bce", sampler="shared", score="cosine"),
    "lightgcn-llpauc": Case(model="lightgcn"),
    "lightgcn-bpr-share": Case(model="lightgcn", loss="bpr", options={"propagation_interval": 4}),
    "lightgcn-llpauc-share-cosine-all": Case(
        model="lightgcn", score="cosine", sampler="all-items", options={"propagation_interval": 5}
    ),
    "mf-llpauc-many-pairs": Case(fit={"negatives": 40}),
    "mf-llpauc-half-life": Case(fit={"half_life": 100.0}),
    "torch-llpauc": Case(fit={"device": "cpu:0"}),
}


@pytest.mark.parametrize("name", CASES)
def test_fit_interrupted_and_resumed_gives_the_same_bits(name, tmp_path, monkeypatch):
    """In the first step, in mid-epoch, twice in one epoch, in the last batch of an epoch, and in
    the first of the next."""
    case = CASES[name]
    steps = (1, PER_EPOCH // 2, PER_EPOCH // 2 + 2, PER_EPOCH, PER_EPOCH + 1, 2 * PER_EPOCH + 3)
    uninterrupted = outcome(*case.train())
    assert (
        outcome(*interrupted_and_resumed(case, tmp_path / "c", steps, monkeypatch)) == uninterrupted
    )
    assert not (tmp_path / "c").exists()  # training is over


def test_fit_resumed_keeps_best_weights_and_patience(tmp_path, monkeypatch):
    case = Case(fit={"epochs": 60, "lr": 0.05, "patience": 3})
    uninterrupted = case.train()
    best = uninterrupted[2].best_epoch
    assert uninterrupted[2].stopped == "patience"  # so the best weights are not the last ones
    steps = [(best + after) * PER_EPOCH + 2 for after in (0, 1)]
    resumed = interrupted_and_resumed(case, tmp_path / "c", steps, monkeypatch)
    assert outcome(*resumed) == outcome(*uninterrupted)


def test_fit_resumes_after_a_kill_from_timed_checkpoints(tmp_path):
    """A checkpoint after every batch; the folder is left as kill -9 would."""
    case = Case(fit={"epochs": 2})
    uninterrupted = outcome(*case.train())
    with abandoned(CheckpointSettings(tmp_path / "c", every=1e-9)) as folder:
        assert outcome(*case.train(folder)) == uninterrupted
        names = sorted(path.name for path in (tmp_path / "c").iterdir())
    assert names == [f"{PER_EPOCH * 2 + 1:06d}", f"{PER_EPOCH * 2 + 2:06d}", "lock"]
    for _ in range(2):  # from the end, and from the last batch
        assert (
            outcome(*case.train(opened_again(tmp_path / "c", tmp_path / "copy"))) == uninterrupted
        )
        shutil.rmtree(tmp_path / "c" / names[1], ignore_errors=True)


def opened_again(folder, copy):
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy)
    return CheckpointSettings(copy, if_exists="resume")


def test_checkpoint_stores_rows_without_settling_them(tmp_path, monkeypatch):
    """Settling rows at a checkpoint would change the bits of the result."""
    case = CASES["mf-llpauc"]
    uninterrupted = outcome(*case.train())

    def settled(self):
        self.settle()
        return state(self)

    state = CpuEngine.state
    monkeypatch.setattr(CpuEngine, "state", settled)
    assert (
        outcome(*interrupted_and_resumed(case, tmp_path / "c", (5,), monkeypatch)) != uninterrupted
    )


def test_fit_signal_during_validation_keeps_the_validated_epoch(tmp_path, monkeypatch):
    case = Case(fit={"epochs": 4})
    uninterrupted = outcome(*case.train())
    original = fit.__globals__["validation_metrics"]

    def validate(*arguments):
        signal.raise_signal(signal.SIGINT)
        return original(*arguments)

    with monkeypatch.context() as patch:
        patch.setitem(fit.__globals__, "validation_metrics", validate)
        for epoch in (1, 2):
            history = case.train(CheckpointSettings(tmp_path / "c", if_exists="resume"))[2]
            assert (history.signal, len(history.epochs)) == (signal.SIGINT, epoch)
            assert history.epochs[-1].valid
    assert (
        outcome(*case.train(CheckpointSettings(tmp_path / "c", if_exists="resume")))
        == uninterrupted
    )


@pytest.mark.parametrize("model", ["mf", "lightgcn"])
def test_recommender_refit_resumes_in_either_stage(model, tmp_path, monkeypatch):
    def train(checkpoint=None):
        epochs_seen = []
        made = Recommender(
            model=model, refit=True, dimensions=6, epochs=3, batch_size=BATCH, negatives=7, lr=0.02
        ).fit(SPLIT, checkpoint=checkpoint, on_epoch=epochs_seen.append)
        assert tuple(epochs_seen) == made.history.epochs
        vectors = b"".join(table.tobytes() for table in made.fitted.tensors().values())
        return hashlib.sha256(vectors).hexdigest(), without_times(made.history), made.history

    uninterrupted = train()
    in_the_first = PER_EPOCH + 2
    for step, epochs in ((in_the_first, 2), (3 * PER_EPOCH - in_the_first + 5, 4)):
        with monkeypatch.context() as patch:
            steps = itertools.count(1)  # of this process, in both trainings
            stop_at(patch, step, number=lambda batch, steps=steps: next(steps))
            history = train(CheckpointSettings(tmp_path / "c", if_exists="resume"))[2]
        assert (history.signal, len(history.epochs)) == (signal.SIGTERM, epochs)
    assert train(CheckpointSettings(tmp_path / "c", if_exists="resume"))[:2] == uninterrupted[:2]


SHORT = Case(fit={"epochs": 1})


# --- existing checkpoints -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two_checkpoints(tmp_path_factory):
    """A folder with two checkpoints of SHORT, and one of another training."""
    folders = []
    for case, name in ((SHORT, "c"), (Case(loss="bpr", fit={"epochs": 1}), "other")):
        path = tmp_path_factory.mktemp("checkpoints") / name
        with abandoned(CheckpointSettings(path, every=1e-9)) as folder:
            case.train(folder)
        folders.append(path)
    return folders


@pytest.fixture
def existing(two_checkpoints, tmp_path):
    shutil.copytree(two_checkpoints[0], tmp_path / "c")
    return tmp_path / "c"


def test_load_newest_refuses_an_existing_checkpoint_by_default(existing):
    with pytest.raises(
        InputError, match=r"checkpoint of this training \(training, epoch 2, .*--resume.*--re"
    ):
        SHORT.train(CheckpointSettings(existing))
    assert outcome(*SHORT.train(CheckpointSettings(existing, if_exists="restart"))) == outcome(
        *SHORT.train()
    )


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (
            Case(fit={"epochs": 1, "lr": 0.01}),
            r"another training: lr was 0.02, is 0.01; use the same settings",
        ),
        (Case(loss="bpr", fit={"epochs": 1}), r"loss was 'LLPAUCLoss', is 'BPRLoss'"),
        (
            dataclasses.replace(SHORT, split=random_split(22, 60, 300, 500)),
            r"the training and validation events differ",
        ),
        (
            dataclasses.replace(SHORT, split=dataclasses.replace(SPLIT, valid=None)),
            r"the validation events differ",
        ),
    ],
)
@pytest.mark.parametrize("if_exists", ["resume", "refuse"])
def test_load_newest_of_another_training_names_the_difference(existing, case, message, if_exists):
    with pytest.raises(InputError, match=message) as refused:
        case.train(CheckpointSettings(existing, if_exists=if_exists))
    assert "\n" not in str(refused.value)
    assert "--restart" in str(refused.value)


def test_fingerprint_depends_on_ids_and_parts():
    ids = dataclasses.replace(SPLIT.train.user_ids, text=SPLIT.train.item_ids.text)
    same = random_split(21, 60, 300, 500)
    assert data_fingerprint(SPLIT.train, SPLIT.valid) == data_fingerprint(same.train, same.valid)
    train = SPLIT.train.take(np.flatnonzero(SPLIT.train.users < len(ids)))
    other = dataclasses.replace(train, user_ids=ids)
    assert data_fingerprint(train) != data_fingerprint(other)
    assert data_fingerprint(train, None, train) != data_fingerprint(train, train)


def test_load_newest_resume_without_checkpoint_starts_from_the_beginning(tmp_path, log_messages):
    uninterrupted = outcome(*SHORT.train())
    resumed = SHORT.train(CheckpointSettings(tmp_path / "c", if_exists="resume"))
    assert outcome(*resumed) == uninterrupted
    assert log_messages == [
        f"no checkpoint in {tmp_path / 'c'}: training starts from the beginning"
    ]


def test_open_checkpoints_refuses_a_folder_in_use(tmp_path):
    refused = pytest.raises(InputError, match="in use by another training")
    with open_checkpoints(CheckpointSettings(tmp_path / "c")), refused:
        SHORT.train(CheckpointSettings(tmp_path / "c"))
    SHORT.train(CheckpointSettings(tmp_path / "c"))
    assert not (tmp_path / "c").exists()


def test_open_checkpoints_removes_a_finished_folder_where_it_was_opened(tmp_path):
    with open_checkpoints(CheckpointSettings(tmp_path / "c", every=1e-9)) as folder:
        SHORT.train(folder)
        assert folder.newest.is_dir()
    assert not (tmp_path / "c").exists()
    with abandoned(CheckpointSettings(tmp_path / "c", every=1e-9)) as folder:  # saving failed
        SHORT.train(folder)
    assert folder.newest.is_dir()
    with open_checkpoints(CheckpointSettings(tmp_path / "c", if_exists="resume")) as folder:
        pass  # no training has finished
    assert (tmp_path / "c").is_dir()


# --- damage ---------------------------------------------------------------------------------------


def newest(folder):
    return max((path for path in folder.iterdir() if path.name != "lock"), key=lambda p: p.name)


def flip(path, bit):
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def truncate(fraction):
    return lambda path, other: os.truncate(path, int(path.stat().st_size * fraction))


DAMAGE = {
    **{f"truncated to {part:.0%}": truncate(part) for part in (0, 0.01, 0.5, 0.99)},
    "deleted": lambda path, other: path.unlink(),
    "of another training": lambda path, other: shutil.copy(other / path.name, path),
}


@pytest.fixture
def load_newest(log_messages):
    """Load the newest checkpoint of a folder; returns it and the messages logged meanwhile."""

    def load(path):
        log_messages.clear()
        with open_checkpoints(CheckpointSettings(path, if_exists="resume")) as folder:
            folder._check_same_training = lambda saved: None
            return folder.load_newest({}, SPLIT), list(log_messages)

    return load


FILES = ("manifest.json", "meta.json", "tensors.safetensors")


@pytest.mark.parametrize("how", DAMAGE)
def test_load_newest_names_a_damaged_file_and_uses_the_previous_checkpoint(
    how, existing, two_checkpoints, load_newest
):
    whole = load_newest(existing)[0]
    last, other = newest(existing), newest(two_checkpoints[1])
    before = existing / f"{int(last.name) - 1:06d}"
    for name in FILES:
        data = (last / name).read_bytes()
        DAMAGE[how](last / name, other)
        loaded, messages = load_newest(existing)
        assert loaded.meta["progress"]["step"] <= whole.meta["progress"]["step"]
        assert len(messages) == 2, messages
        if (
            name != "manifest.json" or how != "of another training"
        ):  # that one does not fit the others
            assert str(last / name) in messages[0] or str(last) in messages[0]
        assert f"the previous checkpoint is complete: {before}" in messages[0]
        assert f"resuming from {before}" in messages[1]
        (last / name).write_bytes(data)
    assert load_newest(existing)[1] == [
        f"resuming from {last}: training, epoch 2, step {PER_EPOCH}"
    ]


def test_load_newest_detects_every_flipped_bit(existing, load_newest):
    """200 flips, spread evenly over the files."""
    rng, last = random.Random(5), newest(existing)
    for place in range(200):
        path = last / FILES[place % len(FILES)]
        bit = rng.randrange(8 * path.stat().st_size)
        flip(path, bit)
        messages = load_newest(existing)[1]
        assert "the previous checkpoint is complete" in messages[0], (path, bit)
        flip(path, bit)


def test_save_keeps_the_checkpoint_resumed_from_not_a_damaged_newer_one(existing):
    """The newest two by number would be the damaged one and the next."""
    last = newest(existing)
    (last / "meta.json").unlink()
    before = existing / f"{int(last.name) - 1:06d}"
    with abandoned(CheckpointSettings(existing, if_exists="resume", every=1e-9)) as folder:
        resumed = SHORT.train(folder)
        names = {path.name for path in existing.iterdir()}
    assert outcome(*resumed) == outcome(*SHORT.train())
    assert names == {"lock", before.name, f"{int(last.name) + 1:06d}"}


def test_load_newest_refuses_if_all_checkpoints_are_damaged(existing):
    for path in existing.glob("*/tensors.safetensors"):
        flip(path, 8 * 1000)
    with pytest.raises(InputError, match=r"tensors.safetensors.*SHA-256.*--restart") as refused:
        SHORT.train(CheckpointSettings(existing, if_exists="resume"))
    assert "\n" not in str(refused.value)
    assert outcome(*SHORT.train(CheckpointSettings(existing, if_exists="restart"))) == outcome(
        *SHORT.train()
    )


def test_fit_refuses_a_checkpoint_of_other_shapes(existing):
    from llpauc.storage import run_folder

    last = newest(existing)
    held = run_folder.load(last)
    tensors = {name: array[:1] if array.ndim else array for name, array in held.tensors.items()}
    run_folder.save(dataclasses.replace(held, tensors=tensors), last)
    with pytest.raises(InputError, match="does not fit this training: "):
        SHORT.train(CheckpointSettings(existing, if_exists="resume"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, -5) for name in ("epoch", "step", "batches", "examples", "waited")),
        ("step", 10**30),
        ("batches", 10**9),
        ("epoch", "x"),
        ("waited", None),
        ("loss", "x"),
        ("epochs", "x"),
        ("optimizer/users.count", -5),
        ("optimizer/items.done", -5),
    ],
)
def test_fit_refuses_a_checkpoint_with_an_impossible_position(existing, name, value):
    """In a checkpoint whose manifest is right."""
    from llpauc.storage import run_folder

    last = newest(existing)
    held = run_folder.load(last)
    if name in held.tensors:
        tensors = {**held.tensors, name: np.full_like(held.tensors[name], value)}
        held = dataclasses.replace(held, tensors=tensors)
    else:
        progress = {**held.meta["progress"], name: value}
        held = dataclasses.replace(held, meta={**held.meta, "progress": progress})
    run_folder.save(held, last)
    with pytest.raises(InputError, match="does not fit this training: "):
        SHORT.train(CheckpointSettings(existing, if_exists="resume"))


# --- failures -------------------------------------------------------------------------------------


def test_fit_diverged_leaves_checkpoints_of_finite_values(tmp_path):
    settings = CheckpointSettings(tmp_path / "c", every=1e-9)
    with abandoned(settings) as folder, pytest.raises(Diverged):
        Case(loss="bpr", fit={"lr": 1e30}).train(folder)
    paths = sorted((tmp_path / "c").glob("*/tensors.safetensors"))
    assert paths
    for path in paths:
        assert all(np.isfinite(array).all() for array in load_file(path).values())


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_save_refuses_values_that_are_not_finite(value, tmp_path, log_messages):
    with abandoned(CheckpointSettings(tmp_path / "c")) as folder:
        assert folder.save(Checkpoint({"weights": {"w": np.ones(3, np.float32)}}))
        for _ in range(2):
            broken = np.array([1, value, 2], np.float32)
            assert not folder.save(Checkpoint({"weights": {"w": broken}}))
    assert [path.name for path in (tmp_path / "c").glob("0*")] == ["000001"]
    last = tmp_path / "c" / "000001"
    message = "no checkpoint written (weights/w is not finite); training continues, the last one is"
    assert log_messages == [f"{message} {last}"]


def test_save_on_a_full_disk_does_not_stop_training(tmp_path, log_messages):
    """RLIMIT_FSIZE stands for the disk: writing ends in the middle of a file."""
    uninterrupted = outcome(*SHORT.train())
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with abandoned(CheckpointSettings(tmp_path / "c", every=1e-9)) as folder:
        SHORT.train(folder)
        names = sorted(path.name for path in (tmp_path / "c").iterdir())
    settings = CheckpointSettings(tmp_path / "c", every=1e-9, if_exists="resume")
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with abandoned(CheckpointSettings(tmp_path / "d", every=1e-9)) as folder:
            assert outcome(*SHORT.train(folder)) == uninterrupted
        with abandoned(settings) as folder:
            resumed = SHORT.train(folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert outcome(*resumed) == outcome(*SHORT.train())
    assert [line for line in log_messages if "no checkpoint written" in line] == log_messages[:1]
    assert "File too large" in log_messages[0]
    assert "training continues, there is none so far" in log_messages[0]
    assert not (tmp_path / "d").exists()
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == names  # nothing temporary


def test_open_checkpoints_folder_that_cannot_be_created_does_not_stop_training(
    tmp_path, log_messages
):
    (tmp_path / "loop").symlink_to("loop")  # root may write anywhere, but not here
    resumed = SHORT.train(CheckpointSettings(tmp_path / "loop" / "c"))
    assert outcome(*resumed) == outcome(*SHORT.train())
    assert len(log_messages) == 1
    assert "training continues without" in log_messages[0]


@pytest.mark.parametrize("options", [{"every": -1.0}, {"every": float("nan")}, {"if_exists": "go"}])
def test_checkpoint_settings_out_of_range_are_refused(options, tmp_path):
    with pytest.raises(InputError):
        CheckpointSettings(tmp_path, **options)


# --- processes ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def training(tmp_path_factory):
    """Events, and the result of an uninterrupted training."""
    folder = tmp_path_factory.mktemp("training")
    events = write_events(folder / "events.csv")
    assert main(words(events, folder / "whole", *MORE)) == 0
    assert not (folder / "whole.checkpoint").exists()
    return events, fingerprint(folder / "whole")


MORE = ("--epochs", "8", "--checkpoint-every", "0.001s")  # at about every batch, on any machine


def resumed(training, out, *more):
    assert main(words(training[0], out, *more, "--resume")) == 0
    assert not out.with_name(f"{out.name}.checkpoint").exists()
    return fingerprint(out)


@pytest.mark.slow
@pytest.mark.parametrize(
    "point",
    [
        FaultPoint("fsync", "before", 2 + 6 * 3),  # in the write of the fourth checkpoint
        FaultPoint("rename", "before", 3),
        FaultPoint("rename", "after", 3),
    ],
    ids=str,
)
def test_train_killed_at_a_fault_point_resumes_to_the_same_bits(point, training, tmp_path, capfd):
    out = tmp_path / "run"
    with start(words(training[0], out, *MORE), point) as process:
        process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not out.exists()
    assert main(words(training[0], out, *MORE)) == 2
    refused = capfd.readouterr().err.splitlines()[-1]
    assert "--resume" in refused
    assert "--restart" in refused
    assert resumed(training, out, *MORE) == training[1]
    assert f"resuming from {out}.checkpoint/0000" in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_train_signal_saves_a_run_and_a_checkpoint(number, code, training, tmp_path, capfd):
    """Without timed checkpoints: the only one is of the interrupted step."""
    out, more = tmp_path / "run", ("--epochs", "4000", "--checkpoint-every", "0")
    with start(words(training[0], out, *more)) as process:
        wait_for(process, "epoch   2")
        assert main(words(training[0], out, *more)) == 2  # while the other is at work
        assert "is in use: another command writes to it" in capfd.readouterr().err
        process.send_signal(number)
        err = process.communicate(timeout=60)[1]
    assert process.returncode == code
    assert "to continue" in err
    assert "with --resume" in err
    assert "Traceback" not in err
    Recommender.load(out)  # the best weights so far
    with open_checkpoints(CheckpointSettings(f"{out}.checkpoint", if_exists="resume")) as folder:
        (path,) = folder.path.glob("0*")
        step = read_step(path)
    last = json.loads((out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    assert -(-last["examples"] // 32) == step - (last["number"] - 1) * -(-648 // 32)


def read_step(path):
    return json.loads((path / "meta.json").read_text())["progress"]["step"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--checkpoint-every", "5"], "--checkpoint-every must be a time such as 30s, 5m or 2h"),
        (["--resume", "--restart"], "give one of them"),
    ],
)
def test_train_checkpoint_options_that_conflict_are_refused(more, message, tmp_path, capfd):
    assert main(["train", "nothing.csv", "--out", str(tmp_path / "run"), *more]) == 2
    assert message in capfd.readouterr().err


def test_train_restart_deletes_the_checkpoint(training, tmp_path, monkeypatch, capfd):
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        stop_at(patch, 30)
        with pytest.raises(SystemExit) as ended:
            main(words(training[0], out, *MORE))
    assert ended.value.code == 143
    assert main(words(training[0], out, *MORE, "--lr", "0.5", "--resume")) == 2
    assert "lr was 0.001, is 0.5" in capfd.readouterr().err
    assert main(words(training[0], out, *MORE, "--restart")) == 0
    assert fingerprint(out) == training[1]
    assert not (tmp_path / "run.checkpoint").exists()
