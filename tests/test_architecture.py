"""Data flow one way: a module imports only from modules to its left."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src" / "llpauc"

# Rooms from left to right; those in one tuple stand side by side.
ORDER = [
    ("errors",),
    ("interactions",),
    ("ranks",),
    ("files",),
    ("artifacts",),
    ("prepared",),
    ("readers", "filters", "splits", "histories"),
    ("preparing",),
    ("noise", "demo"),
    ("sampling",),
    ("metrics",),
    ("recency",),
    ("inspection", "models"),
    ("losses",),
    ("environment",),
    ("optim",),
    ("ranking",),
    ("evaluation",),
    ("training",),
    ("tracking",),
    ("recommend",),
    ("plots",),
    ("page",),
    ("serving", "experiments"),
    ("cli",),
]
PLACE = {room: place for place, rooms in enumerate(ORDER) for room in rooms}
UNSAFE = {("torch", "load"), ("os", "system"), ("os", "popen")}
FORBIDDEN = {"pickle", "cPickle", "dill", "shelve", "marshal", "subprocess"}


def imports(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return names


MODULES = sorted(p for p in SOURCE.rglob("*.py") if p.name not in ("__main__.py",))


def room_of(path: Path) -> str | None:
    first = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    return None if first == "__init__" else first


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_to_the_left(path):
    room = room_of(path)
    if room is None:
        return
    assert room in PLACE, f"{room} has no place in the order: give it one"
    for name in imports(path):
        parts = name.split(".")
        if parts[0] != "llpauc" or len(parts) < 2 or parts[1] not in PLACE:
            continue
        other = parts[1]
        assert other == room or PLACE[other] < PLACE[room], f"{room} imports {other}"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_nothing_that_executes_data(path):
    """No pickle, no eval, no shell, no torch.load: a file is never a program."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert not {name.split(".")[0] for name in imports(path)} & FORBIDDEN
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = node.func
            name = called.id if isinstance(called, ast.Name) else getattr(called, "attr", "")
            assert not (isinstance(called, ast.Name) and name in ("eval", "exec", "compile"))
            assert not (
                isinstance(called, ast.Attribute)
                and isinstance(called.value, ast.Name)
                and (called.value.id, name) in UNSAFE
            )
            for keyword in node.keywords:
                true = isinstance(keyword.value, ast.Constant) and keyword.value.value is True
                assert not (keyword.arg in ("shell", "allow_pickle") and true)


def test_the_walk_names_every_room():
    walk = (SOURCE.parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in walk.splitlines() if line.startswith("| `")]
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(named) == sorted(PLACE)
    assert [PLACE[name] for name in named] == sorted(PLACE[name] for name in named)


def test_no_file_is_too_long():
    long = {str(p): n for p in MODULES if (n := len(p.read_text().splitlines())) > 400}
    assert not long
