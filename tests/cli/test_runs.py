"""The settings and environment stored in a run, and `llpauc runs`."""

from __future__ import annotations

import dataclasses
import getpass
import hashlib
import inspect
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import safetensors.numpy

from llpauc import cli
from llpauc.cli.train import train
from llpauc.cli.training_options import ModelOptions
from llpauc.losses import LOSSES
from llpauc.models.registry import MODELS
from llpauc.recommend import Recommender
from llpauc.recommend.parameters import config_toml
from llpauc.storage import run_folder
from llpauc.storage.environment import command, environment, git_commit
from llpauc.storage.run_folder import SavedRun
from tests.datasets import random_split

SPLIT = random_split(5, n_users=14, n_items=17, events=160)
ARTIFACTS = Path(__file__).parents[1] / "artifacts"
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module", autouse=True)
def no_fsync():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@dataclasses.dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """Calls `llpauc` with the given words, in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run_command(*words: object) -> Outcome:
        capsys.readouterr()
        try:
            code = cli.main([str(word) for word in words])
        except SystemExit as exit_error:
            code = exit_error.code
        output = capsys.readouterr()
        assert "Traceback" not in output.err
        return Outcome(code, output.out, output.err)

    return run_command


def fake(
    folder: Path,
    *,
    valid: float | None = None,
    test: object = None,
    seconds: float = 1.0,
    when: str = "2026-01-02T03:04:05+00:00",
    config: str = 'model = "mf"\nloss = "bpr"\nepochs = 2\nlr = 0.1\n',
    extra: dict | None = None,
    **meta: object,
) -> Path:
    """A run folder that was not trained."""
    epochs = [
        {"number": 1, "seconds": seconds / 2, "valid": {}, "best": False},
        {"number": 2, "seconds": seconds / 2, "best": valid is not None,
         "valid": {} if valid is None else {"ndcg@20": valid}},
    ]  # fmt: skip
    files = {
        "metrics.jsonl": "".join(json.dumps(epoch) + "\n" for epoch in epochs),
        "config.toml": config,
        "environment.json": json.dumps({"llpauc": "0.1.0", "time": when}),
    }
    ids = pa.array([1, 2])
    meta = {"params": {"model": "mf"}, "data": "somewhere/films.csv", "test": test, **meta}
    files |= extra or {}
    artifact = SavedRun({"x": np.zeros(100)}, ids, ids, meta, files)
    return run_folder.save(artifact, folder)


# --- config.toml ---------------------------------------------------------------------------------

QUICK = {"epochs": 2, "dimensions": 5, "negatives": 4, "batch_size": 32, "init_scale": 0.3}
SETTINGS = {
    "llpauc": {"alpha": 0.6, "beta": 0.2, "gap_penalty": 0.5, **QUICK},
    "lightgcn-bpr": {"model": "lightgcn", "loss": "bpr", "layers": 1, **QUICK},
    "cosine": {"score": "cosine", "item_bias": True, "seed": 7, "refit": True, **QUICK},
    "sl": {"loss": "sl", **QUICK},
    "psl": {"loss": "psl", "surrogate": "atan", "temperature": 0.3, "hold_out": 0.2, **QUICK},
    "grid": {"lr": np.float64(0.25), **QUICK, "epochs": np.int64(1)},
    "itemknn-neighbours": {"model": "itemknn", "neighbours": 4},
    **{name: {"model": name, **(QUICK if entry.trained else {})} for name, entry in MODELS.items()},
}


@pytest.fixture
def events(tmp_path) -> Path:
    path = tmp_path / "events.csv"
    data = SPLIT.train
    pairs = zip(data.user_ids.arrow(data.users), data.item_ids.arrow(data.items), strict=True)
    path.write_text("user,item\n" + "".join(f"{u},{i}\n" for u, i in pairs), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", SETTINGS)
def test_train_config_of_a_run_trains_the_same_run_again(name, call, events):
    """`Recommender` with the settings and `llpauc train` with the saved config agree."""
    Recommender(recipe="none", **SETTINGS[name]).fit(events).save("first")
    result = call("train", events, "--config", "first/config.toml", "--out", "second")
    assert result.code == 0, result.err
    for file in ("tensors.safetensors", "config.toml", "users.parquet", "items.parquet"):
        assert Path("first", file).read_bytes() == Path("second", file).read_bytes(), file


@pytest.mark.parametrize("loss", LOSSES)
def test_config_toml_has_every_setting_as_an_option(loss):
    """Each is a key of the config or of loss_options, with the same value."""
    recommender = Recommender(recipe="none", loss=loss)
    plan = dataclasses.asdict(recommender.plan())
    config = tomllib.loads(config_toml(recommender.get_params()))
    options = {field.name for field in dataclasses.fields(ModelOptions)}
    of_train = {"seed", "hold_out", "how", "refit", "recipe"}
    assert set(config) <= options | of_train
    assert of_train <= set(inspect.signature(train).parameters)
    rest = dict(pair.split("=") for pair in config.pop("loss_options").split(","))
    expected = {**plan["model_options"], **plan["training"], "model": "mf", "loss": loss}
    expected |= {p.name: p.default for p in inspect.signature(LOSSES[loss]).parameters.values()
               if p.default is not inspect.Parameter.empty}  # fmt: skip
    expected |= plan["loss_parameters"] | {"hold_out": 0.1, "how": "auto", "refit": False}
    expected["recipe"] = "none"
    stored = {**config, **rest}
    assert set(stored) == {name for name, value in expected.items() if value is not None}
    assert all(str(stored[name]) == str(expected[name]) for name in stored)


def test_train_config_with_former_names(call, events):
    """Names that earlier versions wrote, and options of other models that they ignored."""
    Path("former.toml").write_text(
        'model = "itemsum"\nstart = "spectral"\ncold = "random"\nlayers = 2\nshare = 1\n'
        'sampler = "all"\nepochs = 1\ndimensions = 4\nloss_options = "solver=rows"\n',
        encoding="utf-8",
    )
    trained = call("train", events, "--config", "former.toml", "--out", "run")
    assert trained.code == 0, trained.err
    options = Recommender.load("run").plan().model_options
    assert (options.init, options.cold_users) == ("spectral", "random")


# --- environment.json ----------------------------------------------------------------------------


def test_environment_json_has_versions_and_no_personal_data(tmp_path, monkeypatch):
    home, host = str(Path.home()), socket.gethostname()
    folder = tmp_path / "ann" / "here"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    words = [f"{home}/bin/llpauc", "train", f"{home}/x.csv", f"--out={folder}/a/run", "../ann/y",
             "--mlflow", f"http://ann:secret@{host}/db", "~ann/z", "--metrics=recall@20",
             "sub/in.csv", "C:\\Users\\ann\\w.csv"]  # fmt: skip
    monkeypatch.setattr(sys, "argv", words)
    Recommender(model="popularity").fit(SPLIT).save("run")
    text = Path("run/environment.json").read_text(encoding="utf-8")
    stored = json.loads(text)
    assert stored["command"] == [
        "llpauc", "train", "x.csv", "--out=a/run", "y", "--mlflow", "http://...", "z",
        "--metrics=recall@20", "sub/in.csv", "w.csv"
    ]  # fmt: skip
    for secret in (home, str(tmp_path), "ann", "secret", f"@{host}", f"/{getpass.getuser()}"):
        assert secret not in text
    assert stored["python"] == ".".join(map(str, sys.version_info[:3]))
    assert stored["packages"]["numpy"] == np.__version__
    assert stored["packages"]["torch"] == sys.modules["torch"].__version__
    assert stored["threads"]["torch"] == sys.modules["torch"].get_num_threads()
    assert abs(time.time() - run_folder.summarize("run").written) < 60
    assert stored["time"].endswith("+00:00")
    assert 1 <= stored["cpu"]["cores"] <= os.cpu_count()
    assert set(stored) == {"llpauc", "git_commit", "python", "packages", "platform", "cpu",
                         "threads", "time", "command"}  # fmt: skip


def test_command_and_environment_without_arguments():
    assert command([]) == []
    assert command([""]) == [""]
    assert json.dumps(environment())


@pytest.mark.skipif(not (ROOT / ".git").exists() or not shutil.which("git"), reason="no checkout")
def test_git_commit_equals_git_rev_parse():
    process = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True
    )
    if process.returncode:
        pytest.skip("git does not trust this checkout")
    assert git_commit(ROOT / "src" / "llpauc") == process.stdout.strip()


def test_git_commit_of_detached_packed_and_worktree_checkouts(tmp_path):
    package, git = tmp_path / "src" / "llpauc", tmp_path / ".git"
    package.mkdir(parents=True)
    one, two = "a" * 40, "b" * 40
    assert git_commit(package) is None
    git.mkdir()
    assert git_commit(package) is None
    (git / "HEAD").write_text(f"{one}\n")  # detached
    assert git_commit(package) == one
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    assert git_commit(package) is None
    (git / "packed-refs").write_text(f"# pack\n{one} refs/heads/main2\n{two} refs/heads/main\n")
    assert git_commit(package) == two
    (git / "refs" / "heads").mkdir(parents=True)
    (git / "refs" / "heads" / "main").write_text(f"{one}\n")
    assert git_commit(package) == one
    (git / "HEAD").write_bytes(b"\xff\xfe")
    assert git_commit(package) is None
    (git / "HEAD").write_text("ref: ../../../etc/hostname\n")
    assert git_commit(package) is None
    other = tmp_path / "tree"
    (other / "src" / "llpauc").mkdir(parents=True)
    (git / "worktrees" / "tree").mkdir(parents=True)
    (git / "worktrees" / "tree" / "HEAD").write_text("ref: refs/heads/main\n")
    (git / "worktrees" / "tree" / "commondir").write_text("../..\n")
    (other / ".git").write_text("gitdir: ../.git/worktrees/tree\n")
    assert git_commit(other / "src" / "llpauc") == one
    installed = tmp_path / ".venv" / "lib" / "llpauc"  # below another project's .git
    installed.mkdir(parents=True)
    assert git_commit(installed) is None


# --- llpauc runs ---------------------------------------------------------------------------------


def test_runs_lists_runs_two_levels_deep_with_their_values(call):
    fake(Path("all/one"), valid=0.5, test={"mf": {"all": {"users": 9, "ndcg@20": 0.25}}}, seconds=8)
    fake(Path("all/group/two"), valid=0.75, when="2026-02-02T03:04:05+00:00")
    fake(Path("all/a/b/too-deep"))
    Path("all/app").mkdir()
    Path("all/app/manifest.json").write_text('{"name": "an app"}')
    Path("all/link").symlink_to("one")
    fake(Path("all/.hidden"))
    result = call("runs", "all", "--json")
    assert (result.code, result.err) == (0, "")
    listing = json.loads(result.out)
    assert [run["name"] for run in listing["runs"]] == ["all/group/two", "all/one"]  # newest first
    assert listing["broken"] == []
    one = listing["runs"][1]
    size = sum(f.stat().st_size for f in Path("all/one").iterdir() if f.name != "manifest.json")
    settings = {"model": "mf", "loss": "bpr", "epochs": 2, "lr": 0.1}
    assert one == {
        "name": "all/one", "date": "2026-01-02T03:04:05+00:00", "model": "mf", "loss": "bpr",
        "data": "films.csv", "valid": {"ndcg@20": 0.5}, "test": {"ndcg@20": 0.25},
        "best_epoch": 2, "epochs": 2, "seconds": 8.0, "size": size, "settings": settings,
        "environment": {"llpauc": "0.1.0"},
    }  # fmt: skip
    table = call("runs", "all").out
    for word in ("all/one", "2026-01-02 03:04", "bpr", "films.csv", "0.2500", "0.7500", "8.0"):
        assert word in table
    assert "\x1b" not in table
    twice = json.loads(call("runs", "all/one", "all", "--json").out)["runs"]
    assert [run["name"] for run in twice] == ["all/group/two", "all/one"]


@pytest.mark.parametrize(
    ("by", "order"),
    [
        ("valid ndcg@20", "bac"), ("test ndcg@20", "cab"), ("ndcg@20", "cab"),
        ("recall@20", "bac"), ("seconds", "cab"), ("date", "acb"), ("epochs", "abc"),
    ],
)  # fmt: skip
def test_runs_sort(by, order, call):
    recall = {"all": {"recall@20": 0.5}}
    fake(Path("r/a"), valid=0.2, test={"all": {"ndcg@20": 0.1}}, seconds=5,
         when="2026-03-01T00:00:00+00:00")  # fmt: skip
    fake(Path("r/b"), valid=0.3, test=recall, seconds=9, when="2026-01-01T00:00:00+00:00")
    fake(Path("r/c"), valid=None, test={"ndcg@20": 0.9}, seconds=1,
         when="2026-02-01T00:00:00+02:00")  # fmt: skip
    result = call("runs", "r", "--sort", by, "--json")
    assert "".join(run["name"][-1] for run in json.loads(result.out)["runs"]) == order


def test_runs_sort_by_an_unknown_metric_lists_the_choices(call):
    fake(Path("r/a"), valid=0.2)
    result = call("runs", "r", "--sort", "mrr@7")
    assert (result.code, result.out) == (2, "")
    assert "no run has 'mrr@7'; sort by one of: valid ndcg@20, date, epochs, seconds, size" \
        in result.err  # fmt: skip


@pytest.mark.parametrize("folder", ["nowhere", "empty", "file"])
def test_runs_folder_without_runs_is_a_one_line_error(folder, call):
    Path("empty").mkdir()
    Path("file").write_text("x")
    result = call("runs", folder)
    assert result.code == 2
    assert folder in result.err
    assert result.err.count("\n") == 1


def test_runs_lists_runs_of_every_format(call):
    listing = json.loads(call("runs", ARTIFACTS, "--json", "--verify").out)
    assert listing["broken"] == []
    by_name = {Path(run["name"]).parent.name: run for run in listing["runs"]}
    assert set(by_name) == {folder.name for folder in ARTIFACTS.glob("format-*")}
    for name, run in by_name.items():
        assert run["model"] == name.split("-")[-1]
        assert run["test"] == {"ndcg@20": 0.25}
        assert run["epochs"] == (0 if "ease" in name else 3)
        assert run["loss"] == {"mf": "llpauc", "lightgcn": "bpr", "ease": None}[run["model"]]


def test_runs_shows_the_metric_of_auto_as_validation(call):
    fake(Path("r/a"), extra={"metrics.jsonl": ""}, params={"model": "ease"})
    meta = run_folder.load("r/a").meta
    ids = pa.array([1])
    run_folder.save(SavedRun({}, ids, ids, meta | {"valid": 0.17}, {}), "r/a")
    (run,) = json.loads(call("runs", "r", "--json").out)["runs"]
    assert run["valid"] == {"ndcg@20": 0.17}


def test_runs_compare_shows_differences(call):
    fake(Path("a"), valid=0.5, test={"all": {"ndcg@20": 0.25}}, seconds=4)
    fake(Path("b"), valid=0.75, test={"all": {"ndcg@20": 0.125}}, seconds=6,
         config='model = "mf"\nloss = "llpauc"\nepochs = 2\nlr = 0.1\nalpha = 0.7\n')  # fmt: skip
    listing = json.loads(call("runs", "a", "b", "--compare", "--json").out)
    assert listing["runs"] == ["a", "b"]
    assert listing["settings"] == {"loss": ["bpr", "llpauc"], "alpha": [None, 0.7]}
    assert listing["environment"] == {}
    assert listing["metrics"]["valid ndcg@20"] == [0.5, 0.75]
    assert listing["differences"]["valid ndcg@20"] == [0.25]
    assert listing["differences"]["test ndcg@20"] == [-0.125]
    assert listing["differences"]["seconds"] == [2.0]
    result = call("runs", "a", "b", "--compare").out
    for word in ("Settings that differ", "alpha", "b - a", "-0.1250", "llpauc"):
        assert word in result
    assert "lr" not in result.split("Metrics")[0]


def test_runs_compare_needs_two_runs(call):
    fake(Path("a"))
    fake(Path("b"))
    Path("b/meta.json").unlink()
    for words in (["a"], ["a", "b"]):
        result = call("runs", *words, "--compare")
        assert result.code == 2
        assert "needs two runs" in result.err
    assert "b/meta.json: is missing" in result.err


def damage(run: Path, how: str) -> None:
    def cut(name):
        (run / name).write_bytes((run / name).read_bytes()[:-1])

    {
        "no manifest": lambda: (run / "manifest.json").unlink(),
        "no weights": lambda: (run / "tensors.safetensors").unlink(),
        "short weights": lambda: cut("tensors.safetensors"),
        "short manifest": lambda: (run / "manifest.json").write_bytes(b'{"files'),
        "short meta": lambda: cut("meta.json"),
        "one more": lambda: (run / "more").touch(),
        "linked": lambda: ((run / "meta.json").unlink(), (run / "meta.json").symlink_to("x")),
        "pipe": lambda: ((run / "meta.json").unlink(), os.mkfifo(run / "meta.json")),
        "huge": lambda: (run / "manifest.json").write_bytes(b" " * 2_000_000),
    }[how]()


@pytest.mark.parametrize("how", ["no manifest", "no weights", "short weights", "short manifest",
                                 "short meta", "one more", "linked", "pipe", "huge"])  # fmt: skip
def test_runs_lists_a_broken_run_with_its_reason(how, call):
    fake(Path("r/good"))
    damage(fake(Path("r/bad")), how)
    for words, code in (([], 0), (["--verify"], 1)):
        result = call("runs", "r", "--json", *words)
        assert (result.code, result.err) == (code, "")
        listing = json.loads(result.out)
        assert [run["name"] for run in listing["runs"]] == ["r/good"]
        assert [row["run"] for row in listing["broken"]] == ["r/bad"]
        assert listing["broken"][0]["reason"].startswith("r/bad")
    table = call("runs", "r").out
    assert "Broken: 1" in table
    assert listing["broken"][0]["reason"] in table
    alone = call("runs", "r/bad")  # the only run may be broken
    assert alone.code == 0
    assert "Broken: 1" in alone.out


ODD_EXTRA = {
    "no JSON": {"metrics.jsonl": "{"},
    "deep": {"metrics.jsonl": "[" * 100_000},
    "a list": {"metrics.jsonl": "[1]\n"},
    "no TOML": {"config.toml": "= ="},
    "text": {"environment.json": '"x"'},
}


@pytest.mark.parametrize("name", ODD_EXTRA)
def test_runs_reports_unreadable_files_as_the_reason(name, call):
    fake(Path("r/bad"), extra=ODD_EXTRA[name])
    (row,) = json.loads(call("runs", "r", "--json").out)["broken"]
    assert f"r/bad/{next(iter(ODD_EXTRA[name]))}: cannot be read" in row["reason"]
    assert "\n" not in row["reason"]


@pytest.mark.parametrize(
    "meta",
    [
        {"data": 3}, {"data": ""}, {"data": "a\nb\x1b[31m"}, {"test": [1]}, {"test": {"mf": 3}},
        {"test": {"all": {"x": "y", "z": None, "n": float("nan"), "big": 10**400}}},
        {"valid": "x"}, {"valid": float("inf")},
        {"params": {"model": "\x1b]0;gone\x07" + "m" * 500}},
    ],
)  # fmt: skip
def test_runs_omits_or_escapes_invalid_values(meta, call):
    environment = {"environment.json": json.dumps({"time": meta.get("data"), "cpu": 3})}
    fake(Path("r/odd"), extra=environment, **{"data": None, **meta})
    listing = json.loads(call("runs", "r", "--json").out)
    assert len(listing["runs"]) == 1
    table = call("runs", "r").out
    assert "\x1b" not in table
    assert len(table.splitlines()) == 6
    fake(Path("r/other"))
    assert call("runs", "r", "--compare").code == 0


@pytest.mark.parametrize("params", [None, 3, {}, {"model": 3}])
def test_runs_reports_missing_params_as_the_reason(params, call):
    fake(Path("r/bad"), params=params)
    (row,) = json.loads(call("runs", "r", "--json").out)["broken"]
    assert "meta.json has no params" in row["reason"]


def test_runs_verify_detects_changed_weights(call):
    path = fake(Path("r/bad")) / "tensors.safetensors"
    data = bytearray(path.read_bytes())
    data[-3] ^= 4
    path.write_bytes(data)
    assert json.loads(call("runs", "r", "--json").out)["broken"] == []
    result = call("runs", "r", "--json", "--verify")
    assert result.code == 1
    assert "its SHA-256 is not the manifest's" in json.loads(result.out)["broken"][0]["reason"]


def test_runs_does_not_read_weights_without_verify(call, monkeypatch):
    first = fake(Path("r/0"))
    for n in range(1, 200):
        shutil.copytree(first, f"r/{n}")
    read = hashlib.file_digest
    monkeypatch.setattr(hashlib, "file_digest", lambda *_: pytest.fail("weights read"))
    monkeypatch.setattr(safetensors.numpy, "load", lambda *_: pytest.fail("weights read"))
    assert len(json.loads(call("runs", "r", "--json").out)["runs"]) == 200
    monkeypatch.setattr(hashlib, "file_digest", read)
    assert call("runs", "r", "--verify").code == 0


def test_runs_does_not_import_torch():
    """`llpauc runs` starts fast."""
    code = (
        f"import sys; from llpauc import cli; cli.main(['runs', {str(ARTIFACTS)!r}]);"
        "sys.exit('torch' in sys.modules)"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert "format-1-mf" in process.stdout


def test_runs_does_not_list_a_checkpoint_as_broken(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fake(Path("all/one"), valid=0.5)
    shutil.copytree("all/one", "all/two.checkpoint/000001")
    code = cli.main(["runs", "all", "--verify", "--json"])
    out, err = capsys.readouterr()
    assert not code
    assert [run["name"] for run in json.loads(out)["runs"]] == ["all/one"]
    assert "two.checkpoint: a checkpoint; `llpauc train --resume` continues from it" in err
