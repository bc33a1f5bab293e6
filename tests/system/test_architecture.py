"""The import direction between and inside packages, and what no module may do."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src" / "llpauc"

# Packages from left to right; those in one tuple do not import each other.
ORDER = [
    ("errors", "runtime", "progress"),
    ("options", "distributed", "metrics"),
    ("storage",),
    ("data",),
    ("losses",),
    ("evaluation",),
    ("training",),
    ("models",),
    ("recommend",),
    ("report",),
    ("search", "serving", "research"),
    ("cli",),
]
PLACE = {package: level for level, packages in enumerate(ORDER) for package in packages}
UNSAFE = {("torch", "load"), ("os", "system"), ("os", "popen")}
FORBIDDEN = {"pickle", "cPickle", "dill", "shelve", "marshal", "subprocess"}


class _WithoutTypeChecking(ast.NodeTransformer):
    """Removes `if TYPE_CHECKING:` blocks, which are not executed."""

    def visit_If(self, node: ast.If) -> ast.AST | None:
        return None if getattr(node.test, "id", "") == "TYPE_CHECKING" else node


def imports(path: Path) -> set[str]:
    names: set[str] = set()
    tree = _WithoutTypeChecking().visit(ast.parse(path.read_text(encoding="utf-8")))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return names


MODULES = sorted(p for p in SOURCE.rglob("*.py") if p.name not in ("__main__.py",))


# Import direction violations that are still to be removed; the list may only shrink.
KNOWN: set[tuple[str, str]] = set()


def package_of(path: Path) -> str | None:
    first = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    return None if first == "__init__" else first


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_follow_package_order(path):
    package = package_of(path)
    if package is None:
        return
    assert package in PLACE, f"{package} has no place in ORDER"
    for name in imports(path):
        parts = name.split(".")
        if parts[0] != "llpauc" or len(parts) < 2 or parts[1] not in PLACE:
            continue
        other = parts[1]
        if (package, other) in KNOWN:
            continue
        assert other == package or PLACE[other] < PLACE[package], f"{package} imports {other}"


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_imports_inside_packages_have_no_cycles():
    modules = {module_name(path): path for path in MODULES}
    graph = {
        name: {other for other in imports(path) if other in modules and other != name}
        for name, path in modules.items()
        if path.name != "__init__.py"
    }
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join((*trail[trail.index(name) :], name))
        if name in done or name not in graph:
            return
        for other in sorted(graph[name]):
            visit(other, (*trail, name))
        done.add(name)

    for name in sorted(graph):
        visit(name, ())


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_modules_never_execute_data(path):
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


def test_architecture_page_lists_every_package_in_order():
    page = (SOURCE.parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(named) == sorted(PLACE)
    assert [PLACE[name] for name in named] == sorted(PLACE[name] for name in named)


def walk(heading: str) -> list[str]:
    page = (SOURCE.parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = page.split(f"## {heading}\n")[1].split("\n## ")[0]
    return list(dict.fromkeys(re.findall(r"`(\w+/\w+\.py)`", section)))


@pytest.mark.parametrize(
    ("heading", "limit"), [("The path of an event", 25), ("The path of a request", 5)]
)
def test_architecture_page_paths_name_existing_files(heading, limit):
    files = walk(heading)
    assert 3 < len(files) <= limit
    assert [file for file in files if not (SOURCE / file).exists()] == []


def test_architecture_page_lines_are_up_to_date():
    """Each number in the table is within a tenth of the lines of the packages in its row."""
    page = (SOURCE.parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
    for row in (line for line in page.splitlines() if line.startswith("| `")):
        names, number, _ = (cell.strip() for cell in row.strip("|").split("|", 2))
        packages = re.findall(r"`(\w+)`", names)
        if not number.replace(",", "").isdigit():
            continue
        lines = sum(len(p.read_text().splitlines()) for p in MODULES if package_of(p) in packages)
        assert abs(lines - int(number.replace(",", ""))) <= max(20, lines / 10), (packages, lines)
