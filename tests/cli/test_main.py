"""The command line: output, exit codes and one-line errors."""

from __future__ import annotations

import csv
import dataclasses
import gzip
import inspect
import json
import os
import pty
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import get_type_hints

import pyarrow.parquet
import pytest

from llpauc import progress
from llpauc.cli import COMMANDS, console, main
from llpauc.cli.parser import Group
from llpauc.cli.train import training_progress
from llpauc.data.demo import demo_data
from llpauc.data.formats import FORMATS
from llpauc.data.readers import read_interactions, read_split
from llpauc.data.splits import split_temporal
from llpauc.losses import LOSSES
from llpauc.metrics.names import METRIC_NAMES
from llpauc.models.registry import MODELS, untrained_models
from llpauc.recommend import Recommender
from llpauc.search.candidates import prepare
from llpauc.training import SAMPLERS, Diverged, Epoch
from llpauc.training.engine import CpuEngine
from tests.datasets import mounted

LLPAUC = Path(sys.executable).with_name("llpauc")
ENVIRONMENT = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "1"}

ODD_USERS = ["007", "7", "🎈", "-5", "ann,bob", 'q"uote', "s p", "18446744073709551616", "null",
             "NaN", "[/b]", "it's", "#1", "ø" * 60]  # fmt: skip
ODD_ITEMS = ["001", "1", "🍕", "x,y", '"z"', "-9", "None", "100%", "[red]x[/red]"]


@dataclasses.dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The error line: the last line of stderr, and the only error."""
        lines = self.err.splitlines()
        assert sum("error:" in line for line in lines) == 1, self.err
        assert "error:" in lines[-1]
        assert "Traceback" not in self.err
        return lines[-1]


@pytest.fixture
def run(capsys):
    def call(*words) -> Outcome:
        capsys.readouterr()
        try:
            code = main([str(word) for word in words])
        except SystemExit as exit_error:
            code = exit_error.code
        output = capsys.readouterr()
        return Outcome(code, output.out, output.err)

    return call


@pytest.fixture(autouse=True)
def work_folder(tmp_path, monkeypatch):
    """Every test runs in an empty folder, so that the files it writes can be listed."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def process(*words, **options) -> subprocess.CompletedProcess:
    return subprocess.run(
        [LLPAUC, *map(str, words)], capture_output=True, text=True, env=ENVIRONMENT, timeout=120,
        **options,
    )  # fmt: skip


def write_events(path: Path, users, items, seed: int = 0) -> Path:
    rng = random.Random(seed)
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["user", "item", "rating", "timestamp"])
        for user in users:
            for item in rng.sample(items, 12):
                rows.writerow([user, item, rng.randint(1, 5), 1_600_000_000 + rng.randrange(10**6)])
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("files")


@pytest.fixture(scope="module")
def events(files) -> Path:
    """A small file with unusual ids."""
    users = ODD_USERS + [f"u{n}" for n in range(26)]
    return write_events(files / "events.csv", users, ODD_ITEMS + [f"i{n}" for n in range(21)])


@pytest.fixture(scope="module")
def trained(files, events) -> Path:
    out = files / "trained"
    assert (
        main(
            [
                "train",
                "--recipe=none",
                str(events),
                "--out",
                str(out),
                "--epochs",
                "3",
                "--seed",
                "1",
            ]
        )
        == 0
    )
    return out


@pytest.fixture(scope="module")
def cold_folder(files) -> Path:
    """A pre-split folder: train and test have one user in common."""
    folder = files / "cold"
    folder.mkdir()
    (folder / "train.csv").write_text("user,item\na,x\na,y\nb,x\nb,z\nc,z\nc,y\n")
    (folder / "test.csv").write_text("user,item\na,z\nd,x\ne,y\n")
    return folder


def commands(group: Group = COMMANDS, path: tuple[str, ...] = ()):
    for name, command in group.commands.items():
        if isinstance(command, Group):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


def option_names(command) -> list[str]:
    """Names of the parameters; those of a dataclass are its fields."""
    hints = get_type_hints(command)
    names = []
    for name, parameter in inspect.signature(command).parameters.items():
        if dataclasses.is_dataclass(hints[name]):
            names += option_names(hints[name])
        else:
            needed = parameter.default is inspect.Parameter.empty
            names.append(name if needed else "--" + name.replace("_", "-"))
    return names


# --- help -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "command"), list(commands()), ids=[" ".join(path) for path, _ in commands()]
)
def test_help_of_a_command_lists_every_option(run, path, command):
    for flag in ("-h", "--help"):
        result = run(*path, flag)
        assert (result.code, result.err) == (0, "")
    assert result.out.startswith(f"usage: llpauc {' '.join(path)}")
    for name in [*option_names(command), "--config", "--print-config", "--json"]:
        row = [line for line in result.out.splitlines() if line.startswith(f"  {name}")
               or f", {name}" in line]  # fmt: skip
        assert row, f"{name} is not in the help"
    for internal_name in ("FieldInfo", "typing", "<class", "null", "Optional", "Annotated"):
        assert internal_name not in result.out
    assert max(len(line) for line in result.out.splitlines()) <= 100


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"], ["data"], ["data", "--help"]])
def test_help_of_a_group_lists_its_commands(run, words):
    result = run(*words)
    group = COMMANDS.commands["data"] if "data" in words else COMMANDS
    assert (result.code, result.err) == (0, "")
    for name in group.commands:
        assert f"\n  {name} " in result.out


def test_help_shows_defaults_and_choices(run):
    result = run("train", "--help").out
    assert "--score {dot,cosine}" in result
    assert "negatives [default: 0]" in " ".join(result.split())  # of the seed
    assert "[default: run]" in result
    assert "[default: False]" not in result


def test_help_lists_the_names_in_the_registries(run):
    train, evaluate = (" ".join(run(name, "--help").out.split()) for name in ("train", "evaluate"))
    for registry in (MODELS, LOSSES, SAMPLERS, FORMATS):
        assert all(name.replace("-", "") in train.replace("- ", "").replace("-", "")
                   for name in registry)  # fmt: skip
    names = evaluate[evaluate.index("any of recall") :].split(", separated")[0]
    assert names.removeprefix("any of ") == ", ".join(METRIC_NAMES)


@pytest.mark.parametrize("words", [["--help"], ["train", "--help"]])
def test_help_takes_less_than_half_a_second(words):
    """Best of five. On a busy machine the CPU time counts instead of the wall-clock time."""
    best = 1e9
    for _ in range(5):
        start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        result = process(*words)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        best = min(best, cpu, time.perf_counter() - start)
        assert result.stdout.startswith("usage: llpauc")
        if best < 0.5:
            return
    pytest.fail(f"{best:.2f} s at best")


def test_help_imports_nothing_heavy():
    heavy = {"torch", "numpy", "scipy", "numba", "pyarrow", "duckdb", "matplotlib", "safetensors"}
    result = subprocess.run(
        [sys.executable, "-c",
         "import sys; from llpauc.cli import main\n"
         "try: main(['train', '--help'])\n"
         "except SystemExit: print(sorted(sys.modules), file=sys.stderr)"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert not heavy & {name.strip("[]',\n") for name in result.stderr.split()}
    assert "rich" in result.stderr  # the list of modules was printed


def test_version_of_command_and_module_are_equal():
    calls = [[LLPAUC, "--version"], [sys.executable, "-m", "llpauc", "--version"]]
    results = [subprocess.run(words, capture_output=True, text=True, check=True) for words in calls]
    assert results[0].stdout == results[1].stdout
    assert results[0].stdout.startswith("llpauc 0.")


def test_python_m_llpauc_has_the_exit_codes_of_the_command():
    result = subprocess.run([sys.executable, "-m", "llpauc", "no"], capture_output=True, text=True)
    assert result.returncode == 2
    assert "unknown command 'no'; choose one of: data, auto, evaluate" in result.stderr


# --- bad files ------------------------------------------------------------------------------------


def late_text_rating() -> bytes:
    rows = "".join(f"u{n % 40},i{n % 31},{n % 5}\n" for n in range(3000))
    return f"user,item,rating\n{rows}u1,i1,four\n{rows}".encode()


def cut_gzip() -> bytes:
    whole = gzip.compress(random.Random(0).randbytes(4000).hex().encode())
    return whole[: len(whole) // 2]


BAD_FILES = {
    "empty.csv": (b"", ["empty"]),
    "header.csv": (b"user,item\n", ["no rows"]),
    "columns.csv": (b"who,rating,what\nann,5,x\nbob,3,y\n", ["which column is the user", "--user"]),
    "no_item.csv": (b"user,rating\nann,5\nbob,3\n", ["which column is the item", "user, rating"]),
    "empty_user.csv": (b"user,item\nann,x\n,y\nbob,x\n", ["line 3", "user id is empty"]),
    "empty_item.csv": (b"user,item\nann,x\nbob,\nbob,x\n", ["line 3", "item id is empty"]),
    "rating.csv": (late_text_rating(), ["line 3002", "'four' is not a number"]),
    "twice.csv": (b"user,item,item\na,b,c\nd,e,f\n", ["2 columns are called 'item'"]),
    "short.csv": (b"user,item\na,b\nc\nd,e\n", ["line 3", "column"]),
    "binary.csv": (bytes(range(256)) * 20, ["binary"]),
    "zeros.csv": (bytes(4000), ["binary"]),
    "cut.csv.gz": (cut_gzip(), ["gzip", "cut off or damaged"]),
    "not.parquet": (b"user,item\na,b\n", ["arquet"]),
    "one_column.csv": (b"user\nann\nbob\n", ["one column", "--delimiter"]),
    "latin.csv": ("user,item\nJosé,x\n".encode("latin-1"), ["line 2", "not UTF-8"]),
    "one_user.csv": (b"user,item\na,x\na,y\na,z\n", ["only one user, 'a'", "--user"]),
    "one_item.csv": (b"user,item\na,x\nb,x\nc,x\n", ["only one item, 'x'", "--item"]),
    "missing.csv": (None, ["No such file"]),
}  # fmt: skip


# `data inspect` accepts a file with one user or one item.
ENOUGH_FOR_INSPECT = ("one_user.csv", "one_item.csv")
READERS = ("data inspect", "evaluate", "train", "data split", "data noise")


@pytest.mark.parametrize(
    ("name", "command"),
    [(name, command) for name in BAD_FILES for command in READERS
     if command != "data inspect" or name not in ENOUGH_FOR_INSPECT],
)  # fmt: skip
def test_commands_report_a_bad_file_in_one_line_and_write_nothing(run, work_folder, name, command):
    content, messages = BAD_FILES[name]
    if content is not None:
        (work_folder / name).write_bytes(content)
    before = sorted(work_folder.rglob("*"))
    rest = {"data split": ["out"], "data noise": ["out", "3"]}.get(command, [])
    result = run(*command.split(), name, *rest)
    assert (result.code, result.out) == (2, "")
    assert name in result.error
    for part in messages:
        assert part in result.error
    assert sorted(work_folder.rglob("*")) == before


def test_data_inspect_lists_a_single_user_or_item_as_a_problem(run, work_folder):
    for name in ENOUGH_FOR_INSPECT:
        (work_folder / name).write_bytes(BAD_FILES[name][0])
        result = run("data", "inspect", name)
        assert result.code == 0
        assert f"only one {name[4:8]}" in result.out


def test_data_inspect_bad_rows_skip_counts_the_skipped_rows(run, work_folder):
    (work_folder / "rating.csv").write_bytes(late_text_rating())
    result = run("data", "inspect", "rating.csv", "--bad-rows", "skip", "--json")
    assert result.code == 0
    assert json.loads(result.out)["whole"]["interactions"] == 6000
    assert "1 of 6001 rows" in result.err.replace(",", "")


def test_data_inspect_delimiter_and_header_options(run, work_folder):
    (work_folder / "odd.txt").write_text("who~what\nann~x\nbob~y\nbob~x\n")
    columns = ["--user", "0", "--item", "1"]
    for header, count in (("yes", 3), ("no", 4)):
        result = run("data", "inspect", "odd.txt", "--format", "csv", "--delimiter", "~",
                   "--header", header, *columns, "--json")  # fmt: skip
        assert json.loads(result.out)["whole"]["interactions"] == count


# --- bad options ----------------------------------------------------------------------------------

BAD_OPTIONS = [
    (["bogus"], ["unknown command 'bogus'", "evaluate, train"]),
    (["data", "bogus"], ["unknown command 'bogus'", "inspect, clean, split, noise"]),
    (["--nope"], ["unknown command '--nope'"]),
    (["train"], ["required: path", "llpauc train --help"]),
    (["data", "split", "EVENTS"], ["required: out"]),
    (["data", "noise", "EVENTS", "out", "much"], ["threshold must be a number, got 'much'"]),
    (["train", "EVENTS", "--nope", "1"], ["unknown option --nope"]),
    (["train", "EVENTS", "--epoch", "1"], ["unknown option --epoch; did you mean --epochs?"]),
    (["train", "EVENTS", "more"], ["more"]),
    (["train", "EVENTS", "--alpha", "1.1"], ["--alpha must be in (0, 1], got 1.1"]),
    (["train", "EVENTS", "--alpha", "0"], ["--alpha must be in (0, 1], got 0"]),
    (["train", "EVENTS", "--beta", "x"], ["--beta must be in (0, 1], got 'x'"]),
    (["train", "EVENTS", "--beta", "nan"], ["--beta must be in (0, 1], got nan"]),
    (["train", "EVENTS", "--epochs", "0"], ["--epochs must be at least 1, got 0"]),
    (
        ["train", "EVENTS", "--epochs", "1.5"],
        ["--epochs must be a whole number at least 1, got '1.5'"],
    ),
    (["train", "EVENTS", "--lr", "-1"], ["--lr must be above 0, got -1"]),
    (["train", "EVENTS", "--seed", "-1"], ["--seed must be at least 0, got -1"]),
    (["train", "EVENTS", "--score", "sum"], ["unknown score 'sum'; choose one of: dot, cosine"]),
    (["train", "EVENTS", "--hold-out", "1"], ["--hold-out must be in [0, 1), got 1"]),
    (["train", "EVENTS", "--model", "mlp"], ["unknown model 'mlp'", "mf, lightgcn"]),
    (["train", "EVENTS", "--loss", "nonsense"], ["unknown loss 'nonsense'", "llpauc, opauc"]),
    (
        ["train", "EVENTS", "--sampler", "hard"],
        ["unknown sampler 'hard'", "uniform-with-positives"],
    ),
    (["train", "EVENTS", "--valid-metric", "f1@5"], ["unknown metric 'f1@5'", "ndcg@K"]),
    (["train", "EVENTS", "--metrics", "f1@5"], ["unknown metric 'f1@5'"]),
    (["train", "EVENTS", "--loss-options", "x"], ["--loss-options must be NAME=VALUE, got 'x'"]),
    (["train", "EVENTS", "--loss-options", "zeta=1"], ["no parameter zeta", "sharpness"]),
    (["train", "EVENTS", "--loss", "bpr", "--alpha", "0.5"], ["parameter alpha", "bpr has: none"]),
    (["train", "EVENTS", "--model", "ease", "--epochs", "2"], ["ease has no parameter epochs"]),
    (["train", "EVENTS", "--model", "ease", "--loss", "bpr"], ["ease has no loss", "loss='bpr'"]),
    (["train", "EVENTS", "--model", "ease", "--recipe", "paper"], ["ease has no recipe"]),
    (["train", "EVENTS", "--user", "who"], ["no column 'who'", "user, item, rating"]),
    (["train", "EVENTS", "--item", "17"], ["no column 17", "0 to 3"]),
    (["train", "EVENTS", "--format", "xml"], ["unknown format 'xml'", "csv, tsv"]),
    (
        ["train", "EVENTS", "--bad-rows", "fix"],
        ["unknown bad_rows 'fix'; choose one of: error, skip"],
    ),
    (["evaluate", "EVENTS", "--models", "mlp"], ["unknown model 'mlp'", "popularity"]),
    (["evaluate", "EVENTS", "--models", ""], ["unknown model ''"]),
    (["evaluate", "EVENTS", "--metrics", "f1@5"], ["unknown metric 'f1@5'"]),
    (["evaluate", "EVENTS", "--metrics", ""], ["unknown metric ''"]),
    (["evaluate", "EVENTS", "--metrics", "recall@0"], ["recall@0", "at least 1"]),
    (["evaluate", "EVENTS", "--metrics", "llpauc(1.1,0.1)"], ["alpha", "(0, 1]", "got 1.1"]),
    (["evaluate", "EVENTS", "--on", "train"], ["unknown on 'train'; choose one of: test, valid"]),
    (["evaluate", "EVENTS", "--mask", "all"], ["unknown mask 'all'; choose one of: seen"]),
    (["evaluate", "EVENTS", "--threads", "0"], ["--threads must be at least 1, got 0"]),
    (["evaluate", "EVENTS", "--memory-mb", "0"], ["--memory-mb must be above 0, got 0"]),
    (["evaluate", "EVENTS", "--test", "1"], ["--test must be in [0, 1), got 1"]),
    (["evaluate", "EVENTS", "--test", "0"], ["no test part"]),
    (["evaluate", "EVENTS", "--test", "0.6", "--valid", "0.5"], ["0.5 + 0.6"]),
    (["evaluate", "EVENTS", "--min-rating", "9"], ["no event is rated 9"]),
    (["evaluate", "EVENTS", "--k-core", "500"], ["500-core"]),
    (["data", "noise", "EVENTS", "out", "0"], ["no rating is below the threshold"]),
    (["data", "noise", "EVENTS", "out", "3", "--min-rating", "2"], ["--min-rating"]),
    (["data", "noise", "EVENTS", "out", "3", "--rating", "none"], ["needs ratings"]),
    (
        ["data", "split", "EVENTS", "out", "--write", "xlsx"],
        ["unknown write 'xlsx'; choose one of: tsv"],
    ),
    (
        ["data", "split", "EVENTS", "out", "--how", "luck"],
        ["unknown how 'luck'; choose one of: auto, temporal"],
    ),
    (["data", "split", "COLD", "out"], ["is split already into train, test; name one file"]),
    (["recommend", "RUN", "-k", "0"], ["--k must be at least 1, got 0"]),
    (["recommend", "RUN", "--history", "ghost"], ["--history names no item of the run", "'ghost'"]),
    (["evaluate", "RUN"], ["is a run, not data"]),
    (["data", "verify", "EVENTS"], ["is not prepared data: it is a file"]),
    (["trian"], ["unknown command 'trian'", "did you mean train?"]),
    (["data", "inspct"], ["unknown command 'inspct'", "did you mean inspect?"]),
    (["train", "EVENTS", "--model", "lightgnc"], ["did you mean lightgcn?"]),
    (["train", "EVENTS", "--loss", "llpac"], ["did you mean llpauc?"]),
    (["train", "EVENTS", "--metrics", "ndgc@20"], ["did you mean ndcg@K?"]),
    (["train", "EVENTS", "extra", "--epoch", "1"], ["did you mean --epochs?"]),
    (["recommend", "RUN", "--history", ","], ["--history ','", "give an id"]),
    (["recommend", "RUN", "--users", ""], ["--users ''", "give an id"]),
    (["recommend", "RUN", "--users", "7", "--history", "1"], ["give one of them"]),
    (["recommend", "RUN", "--users", "@nobody.txt"], ["nobody.txt", "No such file"]),
    (["recommend", "RUN", "--users", "@."], ["cannot be read"]),
    (["recommend", "RUN", "--out", "lists.xlsx"], ["lists.xlsx", ".tsv, .csv, .parquet"]),
    (["recommend", "EVENTS"], ["is not a run folder"]),
    (["recommend", "nowhere"], ["nowhere is not a run folder"]),
]


@pytest.mark.parametrize(
    ("words", "messages"), BAD_OPTIONS, ids=[" ".join(words) for words, _ in BAD_OPTIONS]
)
def test_main_reports_a_bad_option_in_one_line(
    run, work_folder, events, trained, cold_folder, words, messages
):
    places = {"EVENTS": events, "RUN": trained, "COLD": cold_folder}
    result = run(*[places.get(word, word) for word in words])
    assert (result.code, result.out) == (2, "")
    for part in messages:
        assert part in result.error
    for internal_name in ("FieldInfo", "typing.", "<class", "pydantic", "Subtypes"):
        assert internal_name not in result.error
    assert list(work_folder.iterdir()) == []


def test_commands_check_names_before_reading_the_file(run):
    """A typo is reported before a large file is read; here the file does not exist."""
    for words in (["evaluate", "no.csv", "--models", "mlp"], ["train", "no.csv", "--metrics", "x"],
                  ["evaluate", "no.csv", "--metrics", "x"], ["train", "no.csv", "--loss", "x"],
                  ["evaluate", "no.csv", "--plot", "x.xyz"]):  # fmt: skip
        assert "no.csv" not in run(*words).error


# --- config ---------------------------------------------------------------------------------------

CONFIGS = [
    ["data", "inspect", "EVENTS", "--user", "0", "--item", "1"],
    ["data", "split", "EVENTS", "out", "--how", "temporal", "--test", "0.3", "--write", "csv"],
    ["data", "noise", "EVENTS", "out", "3", "--seed", "5", "--json"],
    ["evaluate", "EVENTS", "--metrics", "recall@5,llpauc(0.7,0.1)", "--threads", "2"],
    ["train", "EVENTS", "--alpha", "0.5", "--epochs", "3", "--item-bias", "--score", "cosine"],
    ["recommend", "run", "--users", "null,🎈", "-k", "7", "--seen"],
    ["demo", "--out", 'odd "name" \\ here'],
]


@pytest.mark.parametrize("words", CONFIGS, ids=lambda words: words[0] + " " + words[1])
def test_print_config_output_is_accepted_by_config(run, work_folder, events, words):
    words = [str(events) if word == "EVENTS" else word for word in words]
    result = run(*words, "--print-config")
    assert (result.code, result.err) == (0, "")
    values = tomllib.loads(result.out)
    assert values["json"] is ("--json" in words)
    (work_folder / "all.toml").write_text(result.out, encoding="utf-8")
    command = words[: 2 if words[0] == "data" else 1]
    again = run(*command, "--config", "all.toml", "--print-config")
    assert again == result


def test_config_is_overridden_by_the_command_line_in_any_order(run, work_folder, events):
    (work_folder / "a.toml").write_text("alpha = 0.5\nseed = 3\nbatch_size = 64\n")
    (work_folder / "b.toml").write_text("seed = 4\n")
    shown = ["--dry-run", "--json"]
    plain = {"alpha": 0.5, "seed": 3, "batch_size": 64}
    for words, changed in [
        (["--config", "a.toml"], {}),
        (["--config=a.toml", "--alpha", "0.9"], {"alpha": 0.9}),
        (["--alpha", "0.9", "--config", "a.toml"], {"alpha": 0.9}),
        (["--seed=0", "--config", "a.toml"], {"seed": 0}),
        (["--config", "a.toml", "--config", "b.toml"], {"seed": 4}),
    ]:
        result = json.loads(run("train", "--recipe=none", events, *words, *shown).out)
        assert {name: result[name] for name in plain} == {**plain, **changed}


@pytest.mark.parametrize(
    ("content", "messages"),
    [
        (b"alhpa = 0.5\n", ["c.toml: unknown key 'alhpa'", "alpha, beta"]),
        (b"[train]\nalpha = 0.5\n", ["unknown key 'train'"]),
        (b"config = 'c.toml'\n", ["unknown key 'config'"]),
        (b"alpha = = 1\n", ["c.toml: is not valid TOML", "line 1"]),
        (b"\xff\xfe\x00\x8b", ["c.toml: is not UTF-8 text"]),
        (b"alpha = 1.1\n", ["--alpha must be in (0, 1], got 1.1"]),
        (b"epochs = 'three'\n", ["--epochs", "whole number", "'three'"]),
        (None, ["c.toml: cannot be read: No such file"]),
    ],
)
def test_config_errors_are_one_line(run, work_folder, events, content, messages):
    if content is not None:
        (work_folder / "c.toml").write_bytes(content)
    result = run("train", "--recipe=none", events, "--config", "c.toml")
    assert (result.code, result.out) == (2, "")
    for part in messages:
        assert part in result.error


# --- output --------------------------------------------------------------------------------------


def command_words(events, trained, folder):
    return {
        "inspect": ["data", "inspect", events, "--plot", folder / "tail.png"],
        "split": ["data", "split", events, folder / "split"],
        "noise": ["data", "noise", events, folder / "noise", "3"],
        "evaluate": ["evaluate", events, "--lists", folder / "l.tsv", "--plot", folder / "m.png"],
        "train": ["train", "--recipe=none", events, "--epochs", "1", "--out", folder / "run"],
        "dry run": ["train", "--recipe=none", events, "--dry-run"],
        "baseline": ["train", events, "--model", "ease", "--out", folder / "ease"],
        "recommend": ["recommend", trained, "-k", "3"],
        "users": ["recommend", trained, "--users", "007,ghost"],
        "file": ["recommend", trained, "--out", folder / "lists.csv"],
        "new user": ["recommend", trained, "--history", "001,🍕"],
    }


@pytest.mark.parametrize("name", command_words("", "", Path()))
def test_json_is_the_only_output_on_stdout(run, work_folder, events, trained, name):
    result = run(*command_words(events, trained, work_folder)[name], "--json")
    assert result.code == 0
    json.loads(result.out, parse_constant=pytest.fail)  # neither NaN nor Infinity
    assert "\x1b" not in result.out + result.err
    assert "━" not in result.out + result.err  # neither a table nor a progress bar
    text_result = run(*command_words(events, trained, work_folder)[name])
    assert text_result.code == 0
    with pytest.raises(json.JSONDecodeError):
        json.loads(text_result.out)


def test_demo_json(run):
    result = run("demo", "--json")
    assert result.code == 0
    results = json.loads(result.out)
    assert {"all", "warm", "cold"} == set(results["popularity"])
    assert results["default (LLPAUC)"]["all"]["recall@20"] > results["EASE"]["all"]["recall@20"]
    assert Path("demo/models.png").read_bytes().startswith(b"\x89PNG")
    assert "llpauc recommend demo/run" not in result.out
    page = run("report", "demo/run", "--items", "demo/titles.csv", "--users", "3", "--json")
    assert page.code == 0
    shown = Path("report.html").read_text(encoding="utf-8")
    assert sum(title in shown for title in demo_data().titles.values()) >= 20


def test_data_inspect_json_and_table_have_the_same_values(run, events):
    values = json.loads(run("data", "inspect", events, "--json").out)
    assert values["whole"]["users"] == 40
    assert values["whole"]["interactions"] == 480
    assert values["odd"] == []
    text_result = run("data", "inspect", events)
    rows = [[cell.strip() for cell in line.split("│")] for line in text_result.out.splitlines()]
    assert ["", "interactions", "480", ""] in rows
    assert ["", "events per user, median", "12", ""] in rows
    assert "Nothing unusual found." in text_result.out
    assert "rating = column 'rating' (detected)" in text_result.err


def test_evaluate_writes_per_user_values_and_lists_that_match_its_means(run, work_folder, events):
    result = run("evaluate", events, "--per-user", "p/users.parquet", "--lists", "p/lists.tsv",
               "--metrics", "recall@5, llpauc(0.7,0.1)", "--json")  # fmt: skip
    results = json.loads(result.out)["results"]
    assert set(results) == set(untrained_models())
    rows = pyarrow.parquet.read_table("p/users.parquet").to_pandas()
    for model, of_model in rows.groupby("model"):
        for metric in ("recall@5", "llpauc(0.7,0.1)"):
            mean = of_model[metric].mean()
            assert results[model]["all"][metric] == pytest.approx(mean, abs=1e-12)
    text_result = run("evaluate", events, "--metrics", "recall@5").out
    assert f"{results['popularity']['all']['recall@5']:.4f}" in text_result
    head, *lists = Path("p/lists.tsv").read_text(encoding="utf-8").splitlines()
    assert head == "model\tuser\titem\trank\tscore"
    assert len(lists) == len(rows) * 5


def test_evaluate_and_recommend_accept_k_above_the_number_of_items(run, events, trained):
    result = run("evaluate", events, "--metrics", "recall@5000,ndcg@5000", "--json")
    for metrics in json.loads(result.out)["results"].values():
        assert metrics["all"]["recall@5000"] == 1
    result = run("recommend", trained, "--users", "007", "-k", "1000000000000", "--json")
    (only,) = json.loads(result.out)
    assert len(only["items"]) == 30 - 12


def test_evaluate_inspect_and_train_report_cold_test_users(run, cold_folder):
    result = run("evaluate", cold_folder, "--models", "popularity", "--json")
    groups = json.loads(result.out)["results"]["popularity"]
    assert {group: values["users"] for group, values in groups.items()} == {
        "all": 3, "warm": 1, "cold": 2,
    }  # fmt: skip
    inspected = json.loads(run("data", "inspect", cold_folder, "--json").out)
    assert inspected["parts"]["test"]["cold users"] == pytest.approx(2 / 3)
    assert any("2 of 3 users (67%) have no training event" in odd for odd in inspected["odd"])
    trained = run("train", "--recipe=none", cold_folder, "--epochs", "2", "--json")
    assert json.loads(trained.out)["test"]["mf"]["cold"]["users"] == 2


def test_evaluate_skips_a_model_that_is_too_large_and_runs_the_others(run, events, monkeypatch):
    monkeypatch.setattr(sys.modules["llpauc.models.ease"], "_MAX_BYTES", 1)
    result = run("evaluate", events, "--json")
    assert result.code == 0
    assert set(json.loads(result.out)["results"]) == set(untrained_models()) - {"ease"}
    assert "without ease: EASE inverts" in result.err
    explicit = run("evaluate", events, "--models", "ease")
    assert explicit.code == 2
    assert "EASE inverts an items x items matrix: 30 items" in explicit.error


@pytest.mark.parametrize("kind", ["tsv", "csv", "parquet", "inter"])
def test_evaluate_reads_the_output_of_data_split_and_data_noise(run, work_folder, events, kind):
    counts = json.loads(run("data", "split", events, "s", "--write", kind, "--json").out)["parts"]
    assert sum(part["interactions"] for part in counts.values()) == 480
    inspected = json.loads(run("data", "inspect", "s", "--json").out)["parts"]
    for name, part in counts.items():
        assert {key: inspected[name][key] for key in part} == part
    assert run("data", "noise", events, "n", "3", "--write", kind).code == 0
    for folder in ("s", "n/clean", "n/noise"):
        result = run("evaluate", folder, "--models", "popularity", "--json")
        assert result.code == 0
        assert json.loads(result.out)["results"]["popularity"]["all"]["users"] > 10
    clean, noise = (json.loads(run("data", "inspect", f"n/{name}", "--json").out)["parts"]
                    for name in ("clean", "noise"))  # fmt: skip
    assert clean["test"] == {**noise["test"], **{k: clean["test"][k] for k in clean["test"]
                                                if k.startswith(("also", "cold"))}}  # fmt: skip
    assert clean["train"]["interactions"] == noise["train"]["interactions"]
    assert clean["train"]["rating, least"] >= 3 > noise["train"]["rating, least"]


def test_evaluate_train_and_auto_hold_out_the_same_events(run, events):
    def pairs(part, matrix=None):
        users, items = (part.matrix if matrix is None else matrix).nonzero()
        return set(zip(part.user_ids.ids(users), part.item_ids.ids(items), strict=True))

    expected = split_temporal(read_interactions(events).interactions)
    assert run("data", "split", events, "s", "--write", "csv").code == 0
    for name, part in read_split("s").parts.items():
        assert pairs(part) == pairs(expected.parts[name])
    words = ["--models", "popularity", "--metrics", "auc", "--json"]  # the order of ties is free
    of_file, of_folder = (json.loads(run("evaluate", x, *words).out) for x in (events, "s"))
    assert of_file["results"] == of_folder["results"]
    of_auto = prepare(read_interactions(events).interactions, seed=0).split
    assert {name: pairs(part) for name, part in of_auto.parts.items()} == {
        name: pairs(part) for name, part in expected.parts.items()
    }
    # `train` and `tune` have no test part: they hold out the last events for validation.
    held_out = split_temporal(read_interactions(events).interactions, valid=0.2, test=0.0).valid
    result = run("train", events, "--epochs", "1", "--hold-out", "0.2", "--recipe", "none")
    assert "validation events: one cut in time for all users: 20% for validation" in result.err
    assert "optimistic" not in result.err
    fitted = Recommender.load("run").require_fitted()
    assert pairs(fitted, fitted.held_out["valid"]) == pairs(held_out)


@pytest.mark.parametrize(
    "words",
    [
        ["data", "split", "EVENTS", "s"],
        ["evaluate", "EVENTS", "--models", "popularity"],
        ["train", "EVENTS", "--epochs", "1"],
        ["tune", "EVENTS", "--trials", "1", "--epochs", "1"],
    ],
    ids=lambda words: words[0],
)
def test_commands_warn_of_a_random_split_of_events_with_timestamps(run, events, words):
    words = [events if word == "EVENTS" else word for word in words]
    result = run(*words, "--how", "random_per_user")
    assert result.code == 0
    assert len([line for line in result.err.splitlines() if "values are optimistic" in line]) == 1


def test_data_split_preserves_ids_with_any_character(run, events):
    run("data", "split", events, "s", "--test", "0", "--valid", "0")
    with Path("s/train.tsv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    assert set(ODD_USERS) < {row["user"] for row in rows}
    assert set(ODD_ITEMS) < {row["item"] for row in rows}


# --- train, recommend -----------------------------------------------------------------------------


def history(events: Path) -> dict[str, set[str]]:
    seen: dict[str, set[str]] = {}
    with events.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            seen.setdefault(row["user"], set()).add(row["item"])
    return seen


def test_recommend_lists_have_the_ids_of_the_file(run, events, trained):
    seen = history(events)
    catalogue = set().union(*seen.values())
    result = run("recommend", trained, "-k", "18", "--json")
    lists = json.loads(result.out)
    assert [entry["user"] for entry in lists] == sorted(seen)
    for entry in lists:
        item_ids = [item["item"] for item in entry["items"]]
        assert set(item_ids) == catalogue - seen[entry["user"]]
        scores = [item["score"] for item in entry["items"]]
        assert scores == sorted(scores, reverse=True)
    ids, scores = Recommender.load(trained).recommend(["🎈"], k=18)
    (only,) = [entry for entry in lists if entry["user"] == "🎈"]
    assert [item["item"] for item in only["items"]] == ids[0].tolist()
    assert [item["score"] for item in only["items"]] == scores[0].tolist()
    with_seen = json.loads(run("recommend", trained, "--seen", "-k", "30", "--json").out)
    assert all(len(entry["items"]) == 30 for entry in with_seen)


@pytest.mark.parametrize("kind", ["tsv", "csv", "parquet"])
def test_recommend_out_file_equals_json_output(run, trained, kind):
    path = Path("new/folder") / f"lists.{kind}"
    result = run("recommend", trained, "-k", "5", "--out", path)
    assert result.out == ""
    assert f"wrote 200 recommendations for 40 users to {path}" in result.err
    if kind == "parquet":
        rows = pyarrow.parquet.read_table(path).to_pylist()
    else:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file, delimiter="\t" if kind == "tsv" else ","))
    lists = json.loads(run("recommend", trained, "-k", "5", "--json").out)
    expected = [(entry["user"], item["item"], str(rank))
                for entry in lists for rank, item in enumerate(entry["items"], 1)]  # fmt: skip
    assert [(row["user"], row["item"], str(row["rank"])) for row in rows] == expected
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_recommend_users_from_a_file_unknown_users_and_a_new_user(
    run, work_folder, events, trained
):
    Path("users.txt").write_bytes("ann,bob\r\n\n s p \n🎈\n".encode())
    result = run("recommend", trained, "--users", "@users.txt", "-k", "2", "--json")
    assert [entry["user"] for entry in json.loads(result.out)] == ["ann,bob", "s p", "🎈"]
    assert "unknown" not in result.err
    result = run("recommend", trained, "--users", "ghost,7", "-k", "2", "--json")
    ghost, seven = json.loads(result.out)
    assert "unknown users: 1" in result.err
    assert ghost["items"] != seven["items"]
    assert len(ghost["items"]) == 2
    result = run("recommend", trained, "--history", "001,🍕", "-k", "30", "--json")
    (new,) = json.loads(result.out)
    assert {item["item"] for item in new["items"]} == set().union(*history(events).values()) - {
        "001", "🍕",
    }  # fmt: skip


def test_recommend_table_shows_five_users_unless_users_are_named(run, trained):
    result = run("recommend", trained, "-k", "20")
    assert result.out.count("│ 007") == 18  # thirty films, twelve of them seen
    assert "the first 5 of 40 users; --out FILE or --json gives all" in result.err
    explicit = run("recommend", trained, "--users", ",".join(f"u{n}" for n in range(26)))
    assert explicit.out.count("\n│ u") == 26 * 18  # all users that were named
    assert "first" not in explicit.err


def test_recommend_parquet_preserves_integer_ids(run, work_folder):
    table = pyarrow.table({"user": [2**60 + n % 9 for n in range(80)], "item": [n % 7 - 3 for n in
                           range(80)]})  # fmt: skip
    pyarrow.parquet.write_table(table, "events.parquet")
    assert run("train", "events.parquet", "--model", "popularity", "--out", "run").code == 0
    assert run("recommend", "run", "--out", "lists.parquet", "--seen").code == 0
    lists = pyarrow.parquet.read_table("lists.parquet")
    assert (lists["user"].type, lists["item"].type) == (pyarrow.int64(), pyarrow.int64())
    assert set(lists["user"].to_pylist()) == set(table["user"].to_pylist())
    result = run("recommend", "run", "--users", str(2**60), "--seen", "--json")
    assert {item["item"] for item in json.loads(result.out)[0]["items"]} == set(range(-3, 4))


def test_train_same_seed_gives_the_same_run_and_replaces_the_old_run(run, events):
    words = ["train", "--recipe=none", events, "--epochs", "2", "--out", "run", "--json"]
    files = []
    for seed in (1, 1, 2):
        assert run(*words, "--seed", seed).code == 0
        files.append(Path("run/tensors.safetensors").read_bytes())
    assert files[0] == files[1] != files[2]
    assert [p.name for p in Path().iterdir()] == ["run"]
    lines = Path("run/metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["number"] for line in lines] == [1, 2]


def test_train_dry_run_writes_nothing(run, work_folder, events):
    result = run("train", "--recipe=none", events, "--dry-run", "--epochs", "3")
    assert (result.code, result.out) == (0, "")
    assert "480 events of 40 users and 30 items" in result.err
    assert "nothing trained, nothing written" in result.err
    assert list(work_folder.iterdir()) == []


def test_train_saves_test_metrics_with_the_run(run, events):
    run("data", "split", events, "split")
    result = run(
        "train", "--recipe=none", "split", "--epochs", "2", "--metrics", "recall@5,auc", "--json"
    )
    measured = json.loads(result.out)["test"]
    assert list(measured) == ["popularity", "mf"]
    assert set(measured["mf"]["all"]) == {"users", "recall@5", "auc"}
    assert json.loads(Path("run/meta.json").read_text())["test"] == measured


# --- errors --------------------------------------------------------------------------------------


def outputs(events, trained, place):
    return [
        ["data", "split", events, place], ["data", "noise", events, place, "3"],
        ["train", "--recipe=none", events, "--epochs", "1", "--out", place],
        ["train", "--recipe=none", events, "--epochs", "1", "--out", place, "--dry-run"],
        ["data", "inspect", events, "--plot", f"{place}/x.png"],
        ["evaluate", events, "--plot", f"{place}/x.png"],
        ["evaluate", events, "--per-user", f"{place}/x.parquet"],
        ["evaluate", events, "--lists", f"{place}/x.tsv"],
        ["recommend", trained, "--out", f"{place}/x.tsv"],
        ["demo", "--out", place],
        ["data", "prepare", events, "--out", place],
        ["update", trained, events, "--out", place],
        ["report", trained, "--out", f"{place}/x.html"],
        ["tune", events, "--out", place], ["auto", events, "--out", place],
        ["simulate", "--rankings", "20", "--out", place],
        ["leaderboard", "--data", "DATA", "--lists", place],
    ]  # fmt: skip


OUTPUTS = pytest.mark.parametrize("which", range(len(outputs("", "", ""))))


@OUTPUTS
def test_commands_check_the_output_path_before_the_work(
    run, work_folder, events, trained, monkeypatch, which
):
    Path("file").write_text("mine")
    result = run(*outputs(events, trained, "file/in/it")[which])
    assert (result.code, result.out) == (2, "")
    assert "cannot write file/in/it" in result.error
    assert "file is no folder" in result.error
    assert "read as csv" not in result.err
    assert Path("file").read_text() == "mine"

    locked = work_folder / "locked"
    locked.mkdir()
    locked.chmod(0o555)
    if os.geteuid() == 0:  # root may write to any folder
        real = os.access
        monkeypatch.setattr(os, "access", lambda path, *rest: path != locked and real(path, *rest))
    result = run(*outputs(events, trained, "locked/new")[which])
    assert (result.code, result.out) == (2, "")
    assert "read-only for you" in result.error
    assert list(locked.iterdir()) == []


@OUTPUTS
def test_commands_refuse_an_output_inside_a_run(run, work_folder, events, trained, which):
    """Its manifest does not list the new file, so that the run would be refused from then on."""
    before = sorted(os.listdir(trained))
    Path("link").symlink_to(trained)
    for place in (trained, "link"):
        result = run(*outputs(events, trained, f"{place}/new")[which])
        assert (result.code, result.out) == (2, "")
        assert f"cannot write into {trained}: its manifest.json lists all its files" in result.error
        assert sorted(os.listdir(trained)) == before


@OUTPUTS
def test_commands_notice_a_full_disk_before_the_work(run, work_folder, events, trained, which):
    with mounted(work_folder / "disk") as disk:
        (disk / "data").write_bytes(bytes(shutil.disk_usage(disk).free))
        result = run(*outputs(events, trained, f"{disk}/new")[which])
        assert (result.code, result.out) == (2, "")
        assert f"{disk}: No space left on device; choose another place" in result.error
        assert "read as csv" not in result.err
        assert os.listdir(disk) == ["data"]


@pytest.mark.parametrize("kind", ["user", "item"])
def test_train_warns_about_a_column_that_numbers_the_events(run, work_folder, events, kind):
    header, *rows = events.read_text().splitlines()
    numbered = [f"event_id,{header}", *(f"e{n},{row}" for n, row in enumerate(rows))]
    Path("numbered.csv").write_text("\n".join(numbered))
    words = ["train", "--recipe=none", "numbered.csv", "--dry-run"]
    assert "cannot be learned" not in run(*words).err
    message = run(*words, f"--{kind}", "event_id").err
    assert f"lists cannot be learned from {kind}s with one event; is another column" in message


def test_train_refuses_an_out_folder_with_other_files(run, work_folder, events):
    Path("mine").mkdir()
    Path("mine/diary.txt").write_text("dear diary")
    result = run("train", "--recipe=none", events, "--out", "mine")
    assert result.code == 2
    assert "mine is not empty and is not a run folder" in result.error
    assert "epoch" not in result.err  # refused before the training
    assert [p.name for p in Path("mine").iterdir()] == ["diary.txt"]


@pytest.mark.parametrize(
    "words",
    [
        ["data", "split", "s/train.tsv", "s"],
        ["data", "split", "s/train.tsv", "link"],
        ["data", "noise", "s/train.tsv", "s", "3"],
        ["data", "prepare", "s/train.tsv", "--out", "s"],
        ["evaluate", "s/train.tsv", "--models", "popularity", "--lists", "s/train.tsv"],
        ["evaluate", "s/train.tsv", "--models", "popularity", "--per-user", "link/train.tsv"],
        ["tune", "s/train.tsv", "--out", "s", "--trials", "1"],
        ["auto", "s/train.tsv", "--out", "s", "--budget", "1s"],
    ],
)
def test_commands_refuse_an_output_that_is_their_input(run, events, words):
    assert run("data", "split", events, "s").code == 0
    Path("link").symlink_to("s")
    before = {p.name: p.read_bytes() for p in Path("s").iterdir()}
    result = run(*words)
    assert result.code == 2
    assert "s/train.tsv is read from it; choose another place" in result.error
    assert {p.name: p.read_bytes() for p in Path("s").iterdir()} == before


@pytest.mark.parametrize(
    ("size", "words"),
    [
        ("40k", ["report", "RUN", "--out", "disk/r.html"]),
        ("12k", ["simulate", "--rankings", "20", "--out", "disk/s"]),
        ("8k", ["tune", "E", "--trials", "1", "--epochs", "1", "--out", "disk/t"]),
    ],
)
def test_commands_name_the_file_on_a_disk_that_becomes_full(
    run, work_folder, events, trained, size, words
):
    with mounted(work_folder / "disk", size):
        result = run(*({"RUN": trained, "E": events}.get(word, word) for word in words))
    assert result.code == 1
    assert f"{words[-1]}" in result.error
    assert "cannot be written: No space left on device" in result.error


def test_data_split_on_a_full_disk_leaves_no_partial_file(work_folder):
    events = write_events(work_folder / "many.csv", range(2000), range(300))
    result = process(
        "data", "split", events, "out", "--write", "parquet",
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)),
    )  # fmt: skip
    assert result.returncode == 1
    assert Outcome(1, result.stdout, result.stderr).error.endswith("File too large")
    assert sorted(path.name for path in work_folder.iterdir()) == ["many.csv"]


def test_train_divergence_in_the_first_epoch_saves_no_run(work_folder, events):
    result = process(
        "train", "--recipe=none", events, "--lr", "1e30", "--epochs", "2", "--out", "run"
    )
    assert result.returncode == 1
    message = Outcome(1, result.stdout, result.stderr).error
    assert "diverged in epoch 1" in message
    assert "learning rate (1e+30) is too high" in message
    assert not Path("run").exists()


def test_train_divergence_in_a_later_epoch_keeps_the_existing_run(
    run, work_folder, events, monkeypatch
):
    assert run("train", "--recipe=none", events, "--epochs", "1", "--out", "run").code == 0
    whole = Path("run/manifest.json").read_bytes()
    step = CpuEngine.step

    def broken(self, batch):
        if batch.step == 8:
            raise Diverged("as if")
        return step(self, batch)

    monkeypatch.setattr(CpuEngine, "step", broken)
    result = run(
        "train", "--recipe=none", events, "--epochs", "9", "--batch-size", "128", "--out", "run"
    )
    assert result.code == 1
    assert "diverged in epoch 3" in result.error
    assert "the model before the divergence is saved in run-diverged" in result.err
    assert Path("run/manifest.json").read_bytes() == whole
    assert Recommender.load("run-diverged").recommend(["007"], k=3)[0].shape == (1, 3)


def test_train_warns_of_low_ratings_and_min_rating_drops_them(run, work_folder):
    rows = "".join(f"u{u},i{(u + i) % 9},{1 + i % 5}\n" for u in range(9) for i in range(8))
    Path("rated.csv").write_text(f"user,item,rating\n{rows}", encoding="utf-8")
    result = run("train", "--recipe=none", "rated.csv", "--epochs", "1", "--dry-run", "--json")
    assert "36 of 72 events are rated below 3 (1 to 5) and count as positives" in result.err
    assert json.loads(result.out)["events"] == 72
    result = run(
        "train",
        "--recipe=none",
        "rated.csv",
        "--epochs",
        "1",
        "--min-rating",
        "3",
        "--dry-run",
        "--json",
    )
    assert json.loads(result.out)["events"] == 36
    assert "36 events rated below 3" in result.err
    assert "count as positives" not in result.err
    assert run("data", "split", "rated.csv", "parts").code == 0
    result = run("train", "--recipe=none", "parts", "--min-rating", "3", "--dry-run", "--json")
    assert 0 < json.loads(result.out)["events"] < 36
    assert "rated below" not in run("data", "noise", "rated.csv", "pair", "3").err


def test_recommend_ids_with_commas_and_unknown_items(run, work_folder):
    table = work_folder / "odd.csv"
    pairs = [("a,b", i) for i in range(6)] + [("c", i) for i in range(3, 9)]
    rows = "".join(f'"{user}",i{item}\n' for user, item in pairs)
    table.write_text(f"user,item\n{rows}", encoding="utf-8")
    assert run("train", "--recipe=none", table, "--epochs", "1", "--out", "odd").code == 0
    result = run("recommend", "odd", "--users", "a,b", "--json")
    assert {row["user"] for row in json.loads(result.out)} == {"a,b"}
    result = run("recommend", "odd", "--history", "i1,ghost", "-k", "3", "--json")
    assert result.code == 0
    assert "unknown items in --history: 1 of 2" in result.err


def test_evaluate_runs_without_a_common_user(run, work_folder, trained):
    table = work_folder / "others.csv"
    rows = "".join(f"new{user},thing{(user + i) % 9}\n" for user in range(9) for i in range(6))
    table.write_text(f"user,item\n{rows}", encoding="utf-8")
    result = run("evaluate", table, "--models", "popularity", "--runs", trained, "--json")
    assert result.code == 2
    assert "only 0 of 5 items are in" in result.error


def test_train_warns_if_the_model_is_below_popularity(run, events):
    assert run("data", "split", events, "parts", "--how", "random_per_user").code == 0
    result = run(
        "train", "--recipe=none", "parts", "--epochs", "1", "--lr", "1e-9", "--cold-users", "random"
    )
    assert "mf is below popularity in ndcg@20" in result.err


def test_train_recipe_accepts_another_loss_and_is_not_used_by_an_untrained_model(run, events):
    result = run("train", events, "--recipe", "settled", "--loss", "sl", "--dry-run", "--json")
    assert result.code == 0
    assert json.loads(result.out)["loss"] == "sl"
    assert "alpha" not in json.loads(result.out)
    result = run("train", events, "--recipe", "auto", "--model", "ease")
    assert result.code == 0
    assert Recommender.load("run").model == "ease"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_train_signal_saves_the_run(work_folder, number, code):
    events = write_events(work_folder / "many.csv", range(1500), range(300))
    words = [
        LLPAUC,
        "train",
        "--recipe=none",
        events,
        "--out",
        "run",
        "--epochs",
        "100000",
        "--patience",
        "100000",
    ]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
    ) as training:
        try:
            lines = []
            for line in training.stderr:
                lines.append(line)
                if line.startswith("epoch   2"):
                    break
            training.send_signal(number)
            out, err = training.communicate(timeout=60)
        finally:
            training.kill()
    assert training.returncode == code
    err = "".join(lines) + err
    assert "Traceback" not in err
    assert "\x1b" not in err  # no bar: stderr is a pipe
    assert "interrupted" in out
    assert sorted(p.name for p in work_folder.iterdir()) == ["many.csv", "run", "run.checkpoint"]
    ids, _ = Recommender.load("run").recommend(["0", "1"], k=5)
    assert ids.shape == (2, 5)


def test_train_interrupt_during_evaluation_keeps_the_run(run, events, monkeypatch):
    run("data", "split", events, "split")

    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("llpauc.evaluation.full_ranking.evaluate", interrupted)
    result = run("train", "--recipe=none", "split", "--epochs", "1")
    assert (result.code, result.out) == (130, "")
    assert result.err.splitlines()[-1] == "llpauc: interrupted"
    assert Recommender.load("run").recommend(["007"], k=2)[0].shape == (1, 2)


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (MemoryError("Unable to allocate 8 TiB"), 1, "out of memory: Unable to allocate 8 TiB"),
        (RuntimeError("[enforce fail] can't allocate memory: 9 bytes"), 1, "out of memory"),
        (OSError(28, "No space left on device", "there/x"), 1, "there/x: No space left on device"),
        (OSError(28, "No space left on device"), 1, "error: No space left on device"),
    ],
)
def test_main_reports_system_errors_in_one_line(run, events, monkeypatch, error, code, message):
    def fail(*arguments, **options):
        raise error

    monkeypatch.setattr("llpauc.data.inspection.inspect", fail)
    result = run("data", "inspect", events)
    assert result.code == code
    assert message in result.error


def test_main_unexpected_exception_is_raised(run, events, monkeypatch):
    def fail(*arguments, **options):
        raise RuntimeError("a bug")

    monkeypatch.setattr("llpauc.data.inspection.inspect", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        run("data", "inspect", events)


# --- terminals and pipes --------------------------------------------------------------------------


@pytest.mark.parametrize("words", [["--help"], ["train", "--help"], ["data", "inspect", "E"]])
def test_main_closed_stdout_exits_0(events, words):
    reading, writing = os.pipe()
    os.close(reading)
    words = [str(events) if word == "E" else word for word in words]
    result = subprocess.run([LLPAUC, *words], stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert result.returncode == 0
    assert "rror" not in result.stderr


def test_main_ascii_terminal_escapes_other_characters():
    script = (
        "from llpauc import runtime\n"
        "from llpauc.cli import console\n"
        "runtime.protect_streams()  # sets the error handler of the streams\n"
        "console.show_table('🎈', ['user'], [['🎈']])\n"
        "console.print_json({'user': '🎈'})\n"
    )
    plain = {**ENVIRONMENT, "PYTHONIOENCODING": "ascii"}
    words = [sys.executable, "-X", "utf8=0", "-c", script]
    result = subprocess.run(words, capture_output=True, env=plain, check=True).stdout.decode(
        "ascii"
    )
    lines = result.splitlines()
    *table, _, member, _ = lines[lines.index(r"\U0001f388") + 1 :]
    assert table[3].startswith(r"| \U0001f388")
    assert json.loads(f"{{{member}}}") == {"user": "🎈"}


def test_console_shows_ids_unchanged_and_complete(run, work_folder):
    long = "x" * 500
    items = ["[/b]", "[red]hot[/red]", long, ":smile:", "a[0]"]
    write_events(work_folder / "odd[b].csv", ["[/u]", "[bold]v"], items * 3)
    result = run("data", "inspect", "odd[b].csv")
    assert result.out.startswith("odd[b].csv\n")
    assert run("train", "odd[b].csv", "--model", "popularity", "--out", "run").code == 0
    result = run("recommend", "run", "--seen")
    assert result.code == 0
    for name in ["[/u]", "[bold]v", *items]:
        assert f"│ {name} " in result.out


def test_show_table_never_truncates(capsys):
    console.show_table("a title that is longer than all of it", ["name", "a"], [["x" * 300, 0.5]])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "a title that is longer than all of it"
    assert "x" * 300 in lines[4]
    assert "…" not in "".join(lines)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(1234567, "1,234,567"), (0.5, "0.5000"), (1234.56, "1,234.6"), (None, "-"), (True, "yes"),
     (float("nan"), "-"), ("text", "text")],
)  # fmt: skip
def test_cell_formats_values(value, shown):
    assert console.cell(value) == shown


def test_progress_appears_on_a_terminal_after_a_delay_and_is_erased():
    """On a pseudo-terminal; short work shows nothing."""
    script = (
        "import time, llpauc.progress; from llpauc.cli import console\n"
        "llpauc.progress._PROGRESS_AFTER = 0.1\n"
        "with console.progress('short', 10) as advance: advance(10)\n"
        "with console.progress('long [/b]', 10) as advance:\n"
        "    advance(3); time.sleep(0.5); advance(7)\n"
        "with console.progress('endless'): time.sleep(0.3)\n"
    )
    terminal, child_side = pty.openpty()
    words = [sys.executable, "-c", script]
    env = {**ENVIRONMENT, "TERM": "xterm", "COLUMNS": "100"}
    subprocess.run(words, stderr=child_side, stdout=subprocess.DEVNULL, check=True, env=env)
    os.close(child_side)
    shown = b""
    try:
        while piece := os.read(terminal, 65536):
            shown += piece
    except OSError:  # the other end of the terminal is closed
        pass
    os.close(terminal)
    text = shown.decode()
    assert "short" not in text
    assert "long [/b]" in text
    assert "3/10" in text
    assert "endless" in text
    assert text.rstrip().endswith("\x1b[2K")  # the last line is erased


def test_progress_prints_nothing_to_a_pipe(capsys, monkeypatch):
    monkeypatch.setattr(progress, "_PROGRESS_AFTER", 0.0)
    with console.progress("work", 10) as advance:
        advance(5)
        time.sleep(0.05)
    assert capsys.readouterr() == ("", "")


def test_training_progress_estimates_time_by_batches_then_by_the_first_epoch(capsys, monkeypatch):
    times = iter([105.0, 105.5, 106.0, 112.0, 114.0, 114.0])
    monkeypatch.setattr("llpauc.cli.train.perf_counter", lambda: next(times))
    console.install_log_handler()
    with training_progress("training", 11, 11 * 8000) as (on_batch, on_epoch):
        for examples in (3000, 500, 500, 4000):
            on_batch(examples)  # the first includes compilation and is not measured
        on_epoch(Epoch(1, 0.5, 7.0, 8000))
        on_epoch(Epoch(2, 0.5, 7.0, 8000))
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0][:7] for line in lines] == [
        "about 8",
        "epoch  ",
        "9.0 s f",
        "epoch  ",
    ]
    assert "about 88 s at most for 11 epochs" in lines[0]
    assert re.search(r"about 90 s at most for the other epochs, until \w+ \d\d:\d\d$", lines[2])


@pytest.mark.parametrize("device", ["foo", "cuda"])
def test_train_unavailable_device_is_a_one_line_error(run, events, device):
    result = run("train", "--recipe=none", events, "--epochs", "1", "--device", device)
    assert result.code == 2
    assert f"device {device!r} cannot be used here" in result.err


def test_train_refuses_a_model_larger_than_memory(run, events):
    result = run("train", "--recipe=none", events, "--dimensions", "1000000000000")
    assert result.code == 2
    assert "lower dimensions (1000000000000)" in result.err


def test_evaluate_runs_equals_the_test_metrics_of_train(run, events):
    run("data", "split", events, "split")
    trained = json.loads(run("train", "--recipe=none", "split", "--epochs", "2", "--json").out)[
        "test"
    ]["mf"]
    result = run("evaluate", "split", "--models", "popularity", "--runs", "run", "--json")
    results = json.loads(result.out)["results"]
    assert list(results) == ["popularity", "run"]
    assert results["run"] == trained


def test_evaluate_warns_of_a_run_trained_on_test_events(run, events):
    run("data", "split", events, "split")
    run("train", "--recipe=none", "split", "--epochs", "1", "--out", "honest")
    run("train", "--recipe=none", events, "--epochs", "1", "--out", "greedy")
    result = run("evaluate", "split", "--models", "popularity", "--runs", "honest,greedy")
    assert result.code == 0
    assert "greedy: was trained on" in result.err
    assert "metrics are too optimistic" in result.err
    assert "honest: was trained on" not in result.err
