"""Identifiers and prose use the glossary of docs/architecture.md."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = sorted((ROOT / "src").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

# Words that may not be a part of an identifier, such as `told` in `told_users`.
BANNED_IN_IDENTIFIERS = set(
    re.findall(
        r"\w+",
        """
        told tell tells telling own there room rooms wish wishes gate hear heard say says said
        beside glance luck mend mended anew outside seal seals parting people somebody nobody
        everybody itemsum slopes whoever
        """,
    )
)
EXTERNAL = {"tell"}  # attributes of other libraries: Optuna's `Study.tell`
# Words that may not occur in messages, docstrings, comments and pages.
BANNED_IN_PROSE = re.compile(
    r"\b(anew|mend(s|ed|ing)?|said aloud|unless given|beside|nobody|somebody|everybody|told)\b",
    re.IGNORECASE,
)
# Models and losses are looked up in their registries and never tested by name or class.
NAME_TESTS = re.compile(
    r"""(==|!=|\bin\b)\s*["'](mf|lightgcn|fism|ease|itemknn|popularity|recent_popularity)["']"""
    r"""|\bin BASELINES\b"""
    r"""|isinstance\([^)]*,\s*(ShardedMF|MF|LightGCN|FISM|EASE|ItemKNN|SLAtKLoss)\b"""
)


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def identifiers(tree: ast.AST) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and node.attr not in EXTERNAL:
            names.add(node.attr)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.alias):
            names.add(node.asname or node.name.split(".")[-1])
    return names


def words(identifier: str) -> set[str]:
    """The words of a snake_case or CamelCase identifier, in lower case."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", identifier)}


def test_words_splits_identifiers():
    assert words("told_users") == {"told", "users"}
    assert words("LostRankError") == {"lost", "rank", "error"}
    assert words("_stderr") == {"stderr"}


@pytest.mark.parametrize("path", [*SOURCE, *TESTS], ids=name)
def test_identifiers_contain_no_banned_word(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    banned = {i for i in identifiers(tree) if words(i) & BANNED_IN_IDENTIFIERS}
    assert not banned, f"{name(path)}: {sorted(banned)}"


@pytest.mark.parametrize("path", [*SOURCE, *PAGES], ids=name)
def test_prose_contains_no_banned_word(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    banned = [
        f"{n}: {line.strip()}" for n, line in enumerate(lines, 1) if BANNED_IN_PROSE.search(line)
    ]
    assert not banned, f"{name(path)}:\n" + "\n".join(banned)


@pytest.mark.parametrize("path", SOURCE, ids=name)
def test_models_and_losses_are_not_tested_by_name(path):
    if path.name == "registry.py":
        return
    text = path.read_text(encoding="utf-8")
    assert not NAME_TESTS.search(text), f"{name(path)}: {NAME_TESTS.search(text)}"
