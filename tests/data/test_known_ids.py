"""Ids of one table that do not meet those of another are refused, with the likely cause."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from llpauc.cli import main
from llpauc.data.interactions import Interactions, Split
from llpauc.data.known_ids import check_parts
from llpauc.errors import InputError

TRAIN = [(user, item) for user in range(1, 41) for item in range(100 + user % 7, 130, 3)]
TEST = [(user, item) for user in range(1, 41) for item in range(101 + user % 7, 130, 9)]


def as_text(pairs: list[tuple[int, int]]) -> list[tuple[str, str]]:
    return [(str(user), str(item)) for user, item in pairs]


def events(pairs: list[tuple[str, str]]) -> Interactions:
    return Interactions.of([user for user, _ in pairs], [item for _, item in pairs])


def split_of(test: list[tuple[str, str]]) -> Split:
    return Split.of(events(as_text(TRAIN)), test=events(test))


CHANGES: dict[str, tuple[Callable[[str], str], str]] = {
    "decimal": (lambda id: f"{id}.0", "ids written as decimal numbers: '1.0', in train '1'"),
    "zeros": (lambda id: id.zfill(8), "leading zeros: '00000001', in train '1'"),
    "space": (lambda id: f" {id}", "spaces around the ids: ' 1', in train '1'"),
    "quotes": (lambda id: f'"{id}"', """quotes around the ids: '"1"', in train '1'"""),
    "both": (lambda id: f" 00{id}.0", "leading zeros: ' 001.0', in train '1'"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_check_parts_refuses_ids_that_are_written_in_another_way(change: str) -> None:
    altered, cause = CHANGES[change]
    test = as_text(TEST)
    with pytest.raises(InputError, match="test: only 0 of 40 users are in train") as caught:
        check_parts(split_of([(altered(user), item) for user, item in test]))
    assert cause in str(caught.value)
    with pytest.raises(InputError, match=r"test: only 0 of \d+ items are in train"):
        check_parts(split_of([(user, altered(item)) for user, item in test]))


def test_check_parts_refuses_exchanged_columns() -> None:
    with pytest.raises(InputError, match="users and items are exchanged"):
        check_parts(split_of([(item, user) for user, item in as_text(TEST)]))


def test_check_parts_refuses_unknown_items_and_warns_about_unknown_users() -> None:
    test = as_text(TEST)
    with pytest.raises(InputError, match="not the files of one data set"):
        check_parts(split_of([(user, f"new{item}") for user, item in test]))
    counts, warning = check_parts(split_of([(f"new{user}", item) for user, item in test]))
    assert counts.startswith("test: 0 of 40 users and ")
    assert "get the list of a user without history" in warning


def test_check_parts_counts_known_ids_and_repeated_events() -> None:
    test = [*as_text(TRAIN)[:3], ("new", "101"), ("1", "newer")]
    counts, repeated = check_parts(split_of(test))
    assert counts == "test: 1 of 2 users and 3 of 4 items are in train"
    assert repeated.startswith("test: 3 of 5 events are in train too")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with train and test files, and a run of the train part."""
    monkeypatch.chdir(tmp_path)
    rng = random.Random(0)
    Path("d").mkdir()
    for name, size in (("train", 10), ("test", 4)):
        rows = [f"{u},{i}" for u in range(1, 41) for i in rng.sample(range(100, 130), size)]
        Path(f"d/{name}.csv").write_text("\n".join(["user,item", *rows, ""]))
    assert main(["train", "d/train.csv", "--out", "r", "--model", "popularity"]) == 0
    return tmp_path


def altered_test() -> None:
    lines = Path("d/test.csv").read_text().splitlines()[1:]
    changed = [line.replace(",", ".0,") for line in lines]
    Path("d/test.csv").write_text("\n".join(["user,item", *changed, ""]))


@pytest.mark.parametrize(
    "words",
    [
        ["evaluate", "d", "--models", "popularity"],
        ["train", "--recipe=none", "d", "--out", "x", "--epochs", "1"],
        ["tune", "d", "--out", "x", "--trials", "1"],
        ["auto", "d", "--out", "x", "--budget", "1s"],
        ["update", "r", "d/test.csv"],
    ],
)
def test_commands_refuse_ids_that_do_not_meet(
    folder: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    altered_test()
    before = (folder / "r" / "manifest.json").read_bytes()
    assert main(words) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert "only 0 of 40 users are in" in last
    assert "ids written as decimal numbers: '1.0'" in last
    assert not (folder / "x").exists()
    assert (folder / "r" / "manifest.json").read_bytes() == before
    assert main(["data", "inspect", "d"]) == 0  # shows what is wrong


def test_evaluate_command_refuses_a_run_with_other_ids(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["evaluate", "d", "--models", "popularity", "--runs", "r"]
    assert main(words) == 0
    output = capsys.readouterr().err
    assert "test: 40 of 40 users and 30 of 30 items are in train" in output
    assert "test: 40 of 40 users and 30 of 30 items are in r" in output
    for name in ("train", "test"):
        path = Path(f"d/{name}.csv")
        lines = path.read_text().splitlines()
        path.write_text("\n".join([lines[0], *(line.zfill(9) for line in lines[1:]), ""]))
    assert main(words) == 2
    assert "are in r: leading zeros: " in capsys.readouterr().err.splitlines()[-1]


def test_update_command_accepts_a_new_user_whose_id_is_similar(folder: Path) -> None:
    Path("new.csv").write_text("user,item\n007,101\n")
    assert main(["update", "r", "new.csv"]) == 0
