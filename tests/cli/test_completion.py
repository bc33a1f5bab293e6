"""`llpauc completion`: the shell itself is asked what it would offer."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from llpauc.cli import COMMANDS, main
from llpauc.cli.parser import Group, Parser

Complete = Callable[[str], list[str]]

BASH = """
source "$1"
COMP_WORDS=("${@:2}")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_shtab_llpauc
printf '%s\\n' "${COMPREPLY[@]+"${COMPREPLY[@]}"}"
"""


@pytest.fixture
def script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[[str], Path]:
    def write(shell: str) -> Path:
        assert main(["completion", shell]) == 0
        path = tmp_path / f"llpauc.{shell}"
        path.write_text(capsys.readouterr().out, encoding="utf-8")
        return path

    return write


@pytest.fixture
def bash(script: Callable[[str], Path]) -> Complete:
    path = script("bash")

    def complete(line: str) -> list[str]:
        result = subprocess.run(
            [shutil.which("bash") or "bash", "-c", BASH, "bash", path, *line.split(" ")],
            capture_output=True,
            text=True,
            check=True,
            env={"PATH": "/nonexistent"},  # completion starts no program, and no Python
        )
        assert result.stderr == ""
        return result.stdout.split()

    return complete


def test_completion_bash_offers_commands(bash: Complete) -> None:
    assert set(bash("llpauc ")) >= set(COMMANDS.commands)
    assert {"recommend", "report", "reproduce"} <= set(bash("llpauc re"))
    assert "train" not in bash("llpauc re")
    assert bash("llpauc data s") == ["split"]


def test_completion_bash_offers_options_and_choices_of_the_command(bash: Complete) -> None:
    offered = {"--loss", "--loss-options", "--log-weights"}
    assert set(bash("llpauc train events.csv --lo")) == offered
    assert bash("llpauc serve run --lo") == []
    assert bash("llpauc train events.csv --score c") == ["cosine"]
    assert bash("llpauc evaluate parts --mask ") == ["seen", "train", "paper", "none"]


def test_completion_bash_offers_every_option_of_every_command(bash: Complete) -> None:
    for name, command in COMMANDS.commands.items():
        if not isinstance(command, Group):
            flags = Parser(command, name)._option_string_actions
            assert set(bash(f"llpauc {name} -")) == set(flags)


def test_completion_json_holds_the_script(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "zsh", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["shell"] == "zsh"
    assert "#compdef llpauc" in result["script"]


def test_completion_fish_offers_commands(script: Callable[[str], Path], tmp_path: Path) -> None:
    if shutil.which("fish") is None:
        pytest.skip("fish is not installed")
    home = {**os.environ, "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    command = f"source {script('fish')}; complete -C 'llpauc data s'"
    result = subprocess.run(
        ["fish", "--no-config", "-c", command],
        capture_output=True,
        text=True,
        check=True,
        env=home,
    )
    assert [line.split("\t")[0] for line in result.stdout.splitlines()] == ["split"]
