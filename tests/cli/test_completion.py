"""`llpauc completion`: the shells themselves are asked what they would offer."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from llpauc.cli import COMMANDS, main
from llpauc.cli.parser import Group
from llpauc.losses import LOSSES

Ask = Callable[[str], list[str]]
Scripts = Callable[[str], Path]


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Scripts:
    folder = tmp_path_factory.mktemp("completion")

    def script(shell: str) -> Path:
        path = folder / f"llpauc.{shell}"
        with path.open("w", encoding="utf-8") as file:
            before, sys.stdout = sys.stdout, file
            try:
                assert main(["completion", shell]) == 0
            finally:
                sys.stdout = before
        return path

    return script


BASH = """
set -u
source "$1"
COMP_WORDS=("${@:2}")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
COMPREPLY=()
_llpauc
printf '%s\\n' "${COMPREPLY[@]+"${COMPREPLY[@]}"}"
"""


@pytest.fixture(scope="module")
def bash(scripts: Scripts) -> Ask:
    """What bash offers at the end of a line; a = is a word of its own to it."""
    script = scripts("bash")

    def ask(line: str) -> list[str]:
        words = line.replace("=", " = ").split(" ")
        said = subprocess.run(
            ["bash", "-c", BASH, "bash", script, *words], capture_output=True, text=True, check=True
        )
        assert said.stderr == ""
        return said.stdout.split()

    return ask


def test_commands_and_those_below(bash: Ask) -> None:
    assert bash("llpauc ") == list(COMMANDS.commands)
    assert {"recommend", "report", "reproduce"} <= set(bash("llpauc re"))
    assert "train" not in bash("llpauc re")
    below = COMMANDS.commands["data"]
    assert isinstance(below, Group)
    assert bash("llpauc data ") == list(below.commands)
    assert bash("llpauc data s") == ["split"]
    assert bash("llpauc --v") == ["--version"]


def test_options_of_the_command_alone(bash: Ask) -> None:
    assert bash("llpauc train events.csv --lo") == ["--loss", "--loss-options"]
    assert bash("llpauc serve run --lo") == []
    assert bash("llpauc recommend run -k 5 --a") == ["--allow", "--approximate"]
    assert {"--help", "--config", "--print-config", "--bad-rows"} <= set(bash("llpauc train -"))
    assert bash("llpauc data split --k") == ["--k-core"]


def test_choices(bash: Ask) -> None:
    assert bash("llpauc train events.csv --loss ") == list(LOSSES)
    assert bash("llpauc train events.csv --loss=sl") == ["sl", "sl_at_k"]
    assert bash("llpauc train events.csv --loss=") == list(LOSSES)
    assert bash("llpauc train --score c") == ["cosine"]
    assert bash("llpauc evaluate parts --mask ") == ["seen", "train", "paper", "none"]
    assert bash("llpauc evaluate parts --models e") == ["ease"]
    assert bash("llpauc tune parts --models ") == ["mf", "lightgcn", "itemsum"]
    assert bash("llpauc completion ") == ["bash", "zsh", "fish"]
    assert bash("llpauc reproduce table-l") == ["table-ltr"]


def test_where_a_file_belongs_bash_is_left_to_itself(bash: Ask) -> None:
    """Nothing offered, `-o default`: bash completes names of files."""
    assert bash("llpauc train ") == []
    assert bash("llpauc train events.csv --out ") == []
    assert bash("llpauc reproduce table1 --data ") == []


def test_a_command_s_name_is_no_command_behind_an_option(bash: Ask) -> None:
    """A run folder may be called `train`."""
    assert bash("llpauc recommend train --a") == ["--allow", "--approximate"]


def test_every_option_of_every_command_is_offered(
    bash: Ask, capsys: pytest.CaptureFixture[str]
) -> None:
    """The oracle is the help that argparse prints."""
    for path in (["train"], ["evaluate"], ["data", "noise"], ["leaderboard"]):
        with pytest.raises(SystemExit):
            main([*path, "--help"])
        told = capsys.readouterr().out.splitlines()
        starts = [line.split()[0].rstrip(",") for line in told if line.startswith("  -")]
        assert len(starts) > 8
        assert set(starts) <= set(bash(f"llpauc {' '.join(path)} -"))


def test_a_tab_takes_no_python(scripts: Scripts) -> None:
    """Nothing but bash's own commands can be found; the processor's time, others share it."""
    before = os.times()
    said = subprocess.run(
        [shutil.which("bash") or "bash", "-c", BASH, "bash", scripts("bash"),
         "llpauc", "train", "--lo"],
        check=True, capture_output=True, text=True, env={"PATH": "/nowhere"},
    )  # fmt: skip
    after = os.times()
    assert said.stdout.split() == ["--loss", "--loss-options"]
    spent = after.children_user + after.children_system
    assert spent - before.children_user - before.children_system < 0.3


def test_the_words_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash", "--json"]) == 0
    places = {tuple(place["path"]): place for place in json.loads(capsys.readouterr().out)}
    (loss,) = (o for o in places["llpauc", "train"]["options"] if o["words"] == ["--loss"])
    assert loss["choices"] == list(LOSSES)


def test_fish(scripts: Scripts, tmp_path: Path) -> None:
    if shutil.which("fish") is None:
        pytest.skip("no fish on this machine")
    home = {**os.environ, "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}

    def ask(line: str) -> list[str]:
        command = f"source {scripts('fish')}; complete -C '{line}'"
        said = subprocess.run(
            ["fish", "--no-config", "-c", command],
            capture_output=True, text=True, check=True, env=home,
        )  # fmt: skip
        return [row.split("\t")[0] for row in said.stdout.splitlines()]

    assert sorted(ask("llpauc ")) == sorted(COMMANDS.commands)
    assert ask("llpauc data s") == ["split"]
    assert sorted(ask("llpauc train events.csv --los")) == ["--loss", "--loss-options"]
    assert ask("llpauc train events.csv --loss sl_") == ["sl_at_k"]
    assert ask("llpauc completion z") == ["zsh"]


ZSH = """
source "$1"
ask() {
    emulate -L sh
    COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
    _llpauc
    printf '%s\\n' "${COMPREPLY[@]}"
}
ask "${@:2}"
"""


def test_zsh(scripts: Scripts) -> None:
    """Through `bashcompinit`; zsh itself leaves out what does not begin as the word does."""
    if shutil.which("zsh") is None:
        pytest.skip("no zsh on this machine")
    words = ["llpauc", "train", "events.csv", "--loss", ""]
    said = subprocess.run(
        ["zsh", "-c", ZSH, "zsh", scripts("zsh"), *words],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert said.stdout.split() == list(LOSSES)
