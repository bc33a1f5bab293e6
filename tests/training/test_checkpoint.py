"""Checkpoints: a training that was broken off and one that was not end in the same bits."""

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

import numpy as np
import pytest
from safetensors.numpy import load_file

from llpauc.cli import main
from llpauc.errors import InputError
from llpauc.losses import make_loss
from llpauc.models.embedding import EMBEDDING_MODELS, EmbeddingOptions
from llpauc.recommend import Recommender
from llpauc.training import Checkpointing, Diverged, TrainingOptions, fit
from llpauc.training.checkpoint import Snapshot, fingerprints, opened
from llpauc.training.engine import CpuEngine, TorchEngine
from tests.datasets import random_split
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
    fit: dict = dataclasses.field(default_factory=dict)
    split: object = SPLIT

    def train(self, checkpoint=None):
        """The weights, the loss's variables and the history after training."""
        options = EmbeddingOptions(
            dimensions=6, score=self.score, item_bias=self.item_bias, init_scale=0.1
        )
        model = EMBEDDING_MODELS[self.model](self.split.train, options, 5)
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
    """All that must not differ; bytes, so that -0.0 and 0.0 do."""
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


def broken_off(case, folder, steps, monkeypatch):
    """Trained with a stop in each of these steps, and a fresh model and loss after each."""
    engine = CpuEngine if case.fit.get("device", "cpu") == "cpu" else TorchEngine
    for step in steps:
        with monkeypatch.context() as patch:
            stop_at(patch, step, engine)
            history = case.train(quiet(folder, if_there="resume"))[2]
        assert (history.stopped, history.signal) == ("interrupted", signal.SIGTERM)
    return case.train(quiet(folder, if_there="resume"))


def quiet(folder, **options):
    return Checkpointing(folder, **{"tell": lambda line: None, **options})


CASES = {
    "mf-llpauc": Case(),
    "mf-llpauc-cosine-bias": Case(score="cosine", item_bias=True),
    "mf-bpr-popularity-decay": Case(loss="bpr", sampler="popularity", fit={"weight_decay": 0.01}),
    "mf-bpr-shared": Case(loss="bpr", sampler="shared"),
    "mf-llpauc-all": Case(sampler="all", score="cosine"),
    "mf-tce-uniform-all": Case(loss="tce", sampler="uniform-all"),
    "mf-sl_at_k": Case(loss="sl_at_k", score="cosine", fit={"epochs": 7, "patience": 99}),
    "mf-bpr-in-batch-no-validation": Case(
        loss="bpr", sampler="in-batch", split=dataclasses.replace(SPLIT, valid=None)
    ),
    "itemsum-llpauc": Case(model="itemsum"),
    "itemsum-bce-cosine-shared": Case(
        model="itemsum", loss="bce", sampler="shared", score="cosine"
    ),
    "lightgcn-llpauc": Case(model="lightgcn"),
    "lightgcn-bpr-share": Case(model="lightgcn", loss="bpr", fit={"share": 4}),
    "lightgcn-llpauc-share-cosine-all": Case(
        model="lightgcn", score="cosine", sampler="all", fit={"share": 5}
    ),
    "mf-llpauc-many-pairs": Case(fit={"negatives": 40}),
    "mf-llpauc-half-life": Case(fit={"half_life": 100.0}),
    "torch-llpauc": Case(fit={"device": "cpu:0"}),
}


@pytest.mark.parametrize("name", CASES)
def test_broken_off_and_resumed_is_bit_for_bit_the_unbroken_training(name, tmp_path, monkeypatch):
    """In the first step, in mid-epoch, twice in one epoch, in the last batch of an epoch, and in
    the first of the next."""
    case = CASES[name]
    steps = (1, PER_EPOCH // 2, PER_EPOCH // 2 + 2, PER_EPOCH, PER_EPOCH + 1, 2 * PER_EPOCH + 3)
    unbroken = outcome(*case.train())
    assert outcome(*broken_off(case, tmp_path / "c", steps, monkeypatch)) == unbroken
    assert not (tmp_path / "c").exists()  # training is over


def test_the_best_weights_and_the_patience_spent_are_kept(tmp_path, monkeypatch):
    case = Case(fit={"epochs": 60, "lr": 0.05, "patience": 3})
    unbroken = case.train()
    best = unbroken[2].best_epoch
    assert unbroken[2].stopped == "patience"  # so the best weights are not the last ones
    steps = [(best + after) * PER_EPOCH + 2 for after in (0, 1)]
    found = broken_off(case, tmp_path / "c", steps, monkeypatch)
    assert outcome(*found) == outcome(*unbroken)


def test_checkpoints_by_the_clock_change_nothing_and_the_last_of_them_leads_on(tmp_path):
    """One after every batch. The training is not stopped but abandoned, as kill -9 does it."""
    case = Case(fit={"epochs": 2})
    unbroken = outcome(*case.train())
    with opened(quiet(tmp_path / "c", every=1e-9)) as kept:
        assert outcome(*case.train(kept)) == unbroken
        there = sorted(path.name for path in (tmp_path / "c").iterdir())
    assert there == [f"{PER_EPOCH * 2 + 1:06d}", f"{PER_EPOCH * 2 + 2:06d}", "lock"]
    for _ in range(2):  # from the end, and from the last batch
        assert outcome(*case.train(opened_again(tmp_path / "c", tmp_path / "copy"))) == unbroken
        shutil.rmtree(tmp_path / "c" / there[1], ignore_errors=True)


def opened_again(folder, copy):
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy)
    return quiet(copy, if_there="resume")


def test_rows_that_lag_behind_are_written_as_they_are(tmp_path, monkeypatch):
    """Indices do lag, and to bring them up to date at a checkpoint would end in other bits."""
    case = CASES["mf-llpauc"]
    unbroken = outcome(*case.train())

    def settled(self):
        self.settle()
        return state(self)

    state = CpuEngine.state
    monkeypatch.setattr(CpuEngine, "state", settled)
    assert outcome(*broken_off(case, tmp_path / "c", (5,), monkeypatch)) != unbroken


def test_a_signal_during_validation_keeps_the_validated_epoch(tmp_path, monkeypatch):
    case = Case(fit={"epochs": 4})
    unbroken = outcome(*case.train())
    original = fit.__globals__["validate"]

    def validate(*arguments):
        signal.raise_signal(signal.SIGINT)
        return original(*arguments)

    with monkeypatch.context() as patch:
        patch.setitem(fit.__globals__, "validate", validate)
        for epoch in (1, 2):
            history = case.train(quiet(tmp_path / "c", if_there="resume"))[2]
            assert (history.signal, len(history.epochs)) == (signal.SIGINT, epoch)
            assert history.epochs[-1].valid
    assert outcome(*case.train(quiet(tmp_path / "c", if_there="resume"))) == unbroken


@pytest.mark.parametrize("model", ["mf", "lightgcn"])
def test_a_refit_goes_on_in_whichever_training_it_was(model, tmp_path, monkeypatch):
    def train(checkpoint=None):
        heard = []
        made = Recommender(
            model=model, refit=True, dimensions=6, epochs=3, batch_size=BATCH, negatives=7, lr=0.02
        ).fit(SPLIT, checkpoint=checkpoint, on_epoch=heard.append)
        assert tuple(heard) == made.history.epochs
        vectors = b"".join(table.tobytes() for table in made.fitted.tensors().values())
        return hashlib.sha256(vectors).hexdigest(), without_times(made.history), made.history

    unbroken = train()
    in_the_first = PER_EPOCH + 2
    for step, epochs in ((in_the_first, 2), (3 * PER_EPOCH - in_the_first + 5, 4)):
        with monkeypatch.context() as patch:
            steps = itertools.count(1)  # of this process, in both trainings
            stop_at(patch, step, number=lambda batch, steps=steps: next(steps))
            history = train(quiet(tmp_path / "c", if_there="resume"))[2]
        assert (history.signal, len(history.epochs)) == (signal.SIGTERM, epochs)
    assert train(quiet(tmp_path / "c", if_there="resume"))[:2] == unbroken[:2]


SHORT = Case(fit={"epochs": 1})


# --- what is there already ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two_checkpoints(tmp_path_factory):
    """A folder with two checkpoints of SHORT, and one of another training."""
    folders = []
    for case, name in ((SHORT, "c"), (Case(loss="bpr", fit={"epochs": 1}), "other")):
        folder = tmp_path_factory.mktemp("checkpoints") / name
        with opened(quiet(folder, every=1e-9)) as kept:
            case.train(kept)
        folders.append(folder)
    return folders


@pytest.fixture
def there(two_checkpoints, tmp_path):
    shutil.copytree(two_checkpoints[0], tmp_path / "c")
    return tmp_path / "c"


def test_one_that_is_there_is_neither_resumed_nor_replaced_unasked(there):
    with pytest.raises(
        InputError, match=r"this very training \(training, epoch 2, .*--resume.*--re"
    ):
        SHORT.train(quiet(there))
    assert outcome(*SHORT.train(quiet(there, if_there="restart"))) == outcome(*SHORT.train())


@pytest.mark.parametrize(
    ("case", "said"),
    [
        (
            Case(fit={"epochs": 1, "lr": 0.01}),
            r"another training: lr is 0.02 there and 0.01 here; give what",
        ),
        (Case(loss="bpr", fit={"epochs": 1}), r"loss is 'LLPAUCLoss' there and 'BPRLoss' here"),
        (
            dataclasses.replace(SHORT, split=random_split(22, 60, 300, 500)),
            r"the training and validation events are oth",
        ),
        (
            dataclasses.replace(SHORT, split=dataclasses.replace(SPLIT, valid=None)),
            r"the validation events are others",
        ),
    ],
)
@pytest.mark.parametrize("if_there", ["resume", "refuse"])
def test_one_of_another_training_is_refused_by_what_differs(there, case, said, if_there):
    with pytest.raises(InputError, match=said) as refused:
        case.train(quiet(there, if_there=if_there))
    assert "\n" not in str(refused.value)
    assert "--restart" in str(refused.value)


def test_the_same_events_of_other_people_are_other_events():
    ids = dataclasses.replace(SPLIT.train.user_ids, text=SPLIT.train.item_ids.text)
    assert fingerprints(SPLIT) == fingerprints(random_split(21, 60, 300, 500))
    train = SPLIT.train.take(np.flatnonzero(SPLIT.train.users < len(ids)))
    other = dataclasses.replace(train, user_ids=ids)
    split = dataclasses.replace(SPLIT, train=train, valid=None, test=None)
    renamed = dataclasses.replace(split, train=other)
    assert fingerprints(split) != fingerprints(renamed)


def test_to_resume_where_there_is_nothing_is_to_begin(tmp_path):
    told = []
    unbroken = outcome(*SHORT.train())
    found = SHORT.train(quiet(tmp_path / "c", if_there="resume", tell=told.append))
    assert outcome(*found) == unbroken
    assert told == [f"no checkpoint in {tmp_path / 'c'}: training begins at the beginning"]


def test_a_folder_in_use_is_refused_and_free_again_after(tmp_path):
    refused = pytest.raises(InputError, match="in use by another training")
    with opened(quiet(tmp_path / "c")), refused:
        SHORT.train(quiet(tmp_path / "c"))
    SHORT.train(quiet(tmp_path / "c"))
    assert not (tmp_path / "c").exists()


# --- damage ---------------------------------------------------------------------------------------


def newest(folder):
    return max((path for path in folder.iterdir() if path.name != "lock"), key=lambda p: p.name)


def flip(path, bit):
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def truncate(share):
    return lambda path, other: os.truncate(path, int(path.stat().st_size * share))


DAMAGE = {
    **{f"truncated to {share:.0%}": truncate(share) for share in (0, 0.01, 0.5, 0.99)},
    "deleted": lambda path, other: path.unlink(),
    "another's": lambda path, other: shutil.copy(other / path.name, path),
}


def find(folder):
    """What a resume would go on from, and what is told on the way."""
    told = []
    with opened(Checkpointing(folder, if_there="resume", tell=told.append)) as kept:
        model = EMBEDDING_MODELS["mf"](SPLIT.train, EmbeddingOptions(dimensions=6), 5)
        settings = fit.__globals__["settings"](model, make_loss("bpr"), TrainingOptions())
        kept._check_same = lambda theirs: None
        return kept.find(settings, SPLIT), told


FILES = ("manifest.json", "meta.json", "tensors.safetensors")


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_file_is_named_and_the_checkpoint_before_is_used(how, there, two_checkpoints):
    whole = find(there)[0]
    last, other = newest(there), newest(two_checkpoints[1])
    before = there / f"{int(last.name) - 1:06d}"
    for name in FILES:
        kept = (last / name).read_bytes()
        DAMAGE[how](last / name, other)
        found, told = find(there)
        assert found.meta["progress"]["step"] <= whole.meta["progress"]["step"]
        assert len(told) == 2, told
        if name != "manifest.json" or how != "another's":  # that one does not fit the others
            assert str(last / name) in told[0] or str(last) in told[0]
        assert f"the checkpoint before it is whole: {before}" in told[0]
        assert f"going on from {before}" in told[1]
        (last / name).write_bytes(kept)
    assert find(there)[1] == [f"going on from {last}: training, epoch 2, step {PER_EPOCH}"]


def test_every_flipped_bit_is_found(there):
    """Files in proportion to their bytes, but each of them at least now and then."""
    rng, last = random.Random(5), newest(there)
    for place in range(200):
        path = last / FILES[place % len(FILES)]
        bit = rng.randrange(8 * path.stat().st_size)
        flip(path, bit)
        told = find(there)[1]
        assert "the checkpoint before it is whole" in told[0], (path, bit)
        flip(path, bit)


def test_the_one_resumed_from_outlives_a_damaged_one(there):
    """Keeping the newest two by number would keep the damaged one and drop the good one."""
    last = newest(there)
    (last / "meta.json").unlink()
    before = there / f"{int(last.name) - 1:06d}"
    with opened(quiet(there, if_there="resume", every=1e-9)) as kept:
        found = SHORT.train(kept)
        names = {path.name for path in there.iterdir()}
    assert outcome(*found) == outcome(*SHORT.train())
    assert names == {"lock", before.name, f"{int(last.name) + 1:06d}"}


def test_where_all_are_damaged_nothing_is_loaded(there):
    for path in there.glob("*/tensors.safetensors"):
        flip(path, 8 * 1000)
    with pytest.raises(InputError, match=r"tensors.safetensors.*SHA-256.*--restart") as refused:
        SHORT.train(quiet(there, if_there="resume"))
    assert "\n" not in str(refused.value)
    assert outcome(*SHORT.train(quiet(there, if_there="restart"))) == outcome(*SHORT.train())


def test_a_checkpoint_that_does_not_fit_is_refused(there):
    """Sound files of another shape: only by somebody's hand."""
    from llpauc.storage import run_folder

    last = newest(there)
    held = run_folder.load(last)
    tensors = {name: array[:1] if array.ndim else array for name, array in held.tensors.items()}
    run_folder.save(dataclasses.replace(held, tensors=tensors), last)
    with pytest.raises(InputError, match="does not fit this training: "):
        SHORT.train(quiet(there, if_there="resume"))


# --- trouble --------------------------------------------------------------------------------------


def test_what_diverges_leaves_a_checkpoint_of_finite_values(tmp_path):
    told = []
    wanted = Checkpointing(tmp_path / "c", every=1e-9, tell=told.append)
    with opened(wanted) as kept, pytest.raises(Diverged):
        Case(loss="bpr", fit={"lr": 1e30}).train(kept)
    there = sorted((tmp_path / "c").glob("*/tensors.safetensors"))
    assert there
    for path in there:
        assert all(np.isfinite(array).all() for array in load_file(path).values())


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_not_written(value, tmp_path):
    told = []
    with opened(Checkpointing(tmp_path / "c", tell=told.append)) as kept:
        assert kept.save(Snapshot({"weights": {"w": np.ones(3, np.float32)}}))
        for _ in range(2):
            broken = np.array([1, value, 2], np.float32)
            assert not kept.save(Snapshot({"weights": {"w": broken}}))
    assert [path.name for path in (tmp_path / "c").glob("0*")] == ["000001"]
    last = tmp_path / "c" / "000001"
    said = "no checkpoint written (w of weights is not finite); training goes on, the last one is"
    assert told == [f"{said} {last}"]


def test_a_full_disk_costs_the_checkpoint_and_not_the_training(tmp_path):
    """RLIMIT_FSIZE stands for the disk: writing ends in the middle of a file."""
    told = []
    unbroken = outcome(*SHORT.train())
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with opened(Checkpointing(tmp_path / "c", every=1e-9, tell=told.append)) as kept:
        SHORT.train(kept)
        there = sorted(path.name for path in (tmp_path / "c").iterdir())
    wanted = Checkpointing(tmp_path / "c", every=1e-9, if_there="resume", tell=told.append)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with opened(dataclasses.replace(wanted, if_there="restart", folder=tmp_path / "d")) as kept:
            assert outcome(*SHORT.train(kept)) == unbroken
        with opened(wanted) as kept:
            found = SHORT.train(kept)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert outcome(*found) == outcome(*SHORT.train())
    assert [line for line in told if "no checkpoint written" in line] == told[:1]
    assert "File too large" in told[0]
    assert "training goes on, there is none so far" in told[0]
    assert not (tmp_path / "d").exists()
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == there  # nothing half-written


def test_a_folder_that_cannot_be_made_costs_the_checkpoints_and_not_the_training(tmp_path):
    (tmp_path / "loop").symlink_to("loop")  # root may write anywhere, but not here
    told = []
    found = SHORT.train(Checkpointing(tmp_path / "loop" / "c", tell=told.append))
    assert outcome(*found) == outcome(*SHORT.train())
    assert len(told) == 1
    assert "training goes on without" in told[0]


@pytest.mark.parametrize("options", [{"every": -1.0}, {"every": float("nan")}, {"if_there": "go"}])
def test_bad_options(options, tmp_path):
    with pytest.raises(InputError):
        Checkpointing(tmp_path, **options)


# --- processes ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def training(tmp_path_factory):
    """Events, and what an unbroken training makes of them."""
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
def test_killed_at_a_fault_point_it_goes_on_to_the_same_bits(point, training, tmp_path, capfd):
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
    assert f"going on from {out}.checkpoint/0000" in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_a_run_a_checkpoint_and_the_way_on(number, code, training, tmp_path, capfd):
    """Without checkpoints by the clock: the one of the very step is all there is."""
    out, more = tmp_path / "run", ("--epochs", "4000", "--checkpoint-every", "0")
    with start(words(training[0], out, *more)) as process:
        wait_for(process, "epoch   2")
        assert main(words(training[0], out, *more)) == 2  # while the other is at work
        assert "in use by another training" in capfd.readouterr().err
        process.send_signal(number)
        said = process.communicate(timeout=60)[1]
    assert process.returncode == code
    assert "to go on" in said
    assert "with --resume" in said
    assert "Traceback" not in said
    Recommender.load(out)  # the best weights so far
    with opened(quiet(f"{out}.checkpoint", if_there="resume")) as kept:
        (path,) = kept.folder.glob("0*")
        step = read_step(path)
    last = json.loads((out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    assert -(-last["examples"] // 32) == step - (last["number"] - 1) * -(-648 // 32)


def read_step(path):
    return json.loads((path / "meta.json").read_text())["progress"]["step"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--checkpoint-every", "5"], "--checkpoint-every wants a time such as 30s, 5m or 2h"),
        (["--resume", "--restart"], "give one of them"),
    ],
)
def test_options_that_make_no_sense(more, said, tmp_path, capfd):
    assert main(["train", "nothing.csv", "--out", str(tmp_path / "run"), *more]) == 2
    assert said in capfd.readouterr().err


def test_begun_anew_from_the_command_line(training, tmp_path, monkeypatch, capfd):
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        stop_at(patch, 30)
        with pytest.raises(SystemExit) as ended:
            main(words(training[0], out, *MORE))
    assert ended.value.code == 143
    assert main(words(training[0], out, *MORE, "--lr", "0.5", "--resume")) == 2
    assert "lr is 0.001 there and 0.5 here" in capfd.readouterr().err
    assert main(words(training[0], out, *MORE, "--restart")) == 0
    assert fingerprint(out) == training[1]
    assert not (tmp_path / "run.checkpoint").exists()
