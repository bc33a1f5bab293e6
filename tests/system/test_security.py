"""Files, requests and dependencies: the protections of docs/explanation/threat-model.md."""

from __future__ import annotations

import ast
import re
import sys
import textwrap
import tomllib
from importlib.metadata import metadata, packages_distributions, requires
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from packaging.requirements import Requirement

from llpauc.cli import main
from llpauc.errors import InputError
from llpauc.serving.limits import OPEN_PATHS
from llpauc.storage import run_folder
from llpauc.storage.run_folder import SavedRun
from tests.datasets import ROOT
from tests.server import KEY, check_refused, client_of, trained

SOURCE = ROOT / "src" / "llpauc"
MODULES = sorted(SOURCE.rglob("*.py"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

# --- unsafe code -------------------------------------------------------------------------

# Modules that execute what they read, or start programs.
BAD_MODULES = {
    "pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "shelve", "marshal", "copyreg",
    "subprocess", "_posixsubprocess", "pty", "code", "codeop", "runpy", "imp", "yaml", "xmlrpc",
    "zipfile", "tarfile", "zipimport", "telnetlib", "ftplib", "builtins",
}  # fmt: skip
BAD_CALLS = {"eval", "exec", "compile", "__import__", "execfile", "breakpoint", "input"}
# Names of these modules that may not be called, passed, imported or looked up.
BAD_NAMES = {
    "os": {"system", "popen", "fork", "forkpty", "startfile"} | {
        f"{start}{end}" for start in ("exec", "spawn") for end in
        ("l", "le", "lp", "lpe", "v", "ve", "vp", "vpe")
    } | {"posix_spawn", "posix_spawnp"},
    "torch": {"load", "save", "hub", "compile"},
    "numpy": {"load", "save", "loadtxt"},
    "np": {"load", "save", "loadtxt"},
    "asyncio": {"create_subprocess_exec", "create_subprocess_shell"},
    "pandas": {"read_pickle", "eval", "query"},
    "shutil": {"unpack_archive"},
    "tempfile": {"mktemp"},
}  # fmt: skip
BAD_WORDS = {"shell", "allow_pickle", "trust_remote_code", "weights_only"}
BUILT = ("import_module", "__builtins__", "__globals__", "__subclasses__", "__reduce__", "_posix")
# `Registry` and `lazy_exports` import modules by names that are constants in the source.
MAY_IMPORT_BY_NAME = {SOURCE / "options.py"}


class _WithoutTypeChecking(ast.NodeTransformer):
    """Removes `if TYPE_CHECKING:` blocks, which are not executed."""

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        is_typing = ast.unparse(node.test) == "TYPE_CHECKING"
        return node.orelse if is_typing else self.generic_visit(node)


def unsafe_code(text: str) -> list[str]:
    """The forbidden imports, names and calls of a module."""
    problems = []
    tree = _WithoutTypeChecking().visit(ast.parse(text))
    known = {name: name for name in BAD_NAMES}  # name in this module -> module
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] in BAD_MODULES:
                    problems.append(f"import {alias.name}")
                if alias.asname and alias.name.split(".")[0] in BAD_NAMES:
                    known[alias.asname] = alias.name.split(".")[0]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            root = (node.module or "").split(".")[0]
            if root in BAD_MODULES:
                problems.append(f"from {node.module}")
            bad = BAD_NAMES.get(root, set())
            problems += [
                f"from {root} import {a.name}" for a in node.names if a.name in (*bad, "*")
            ]
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in (*BAD_CALLS, *BUILT):
            problems.append(node.id)
        elif isinstance(node, ast.Attribute):
            if node.attr in BUILT:
                problems.append(node.attr)
            owner = node.value.id if isinstance(node.value, ast.Name) else None
            if owner in known and node.attr in BAD_NAMES[known[owner]]:
                problems.append(f"{owner}.{node.attr}")
        elif isinstance(node, ast.Call):
            problems += [
                k.arg
                for k in node.keywords
                if k.arg in BAD_WORDS and not (isinstance(k.value, ast.Name) and k.arg == "shell")
            ]
            name = node.func.id if isinstance(node.func, ast.Name) else None
            # Attributes of these modules may not be looked up by a computed name.
            if name in ("getattr", "setattr", "vars") and isinstance(node.args[0], ast.Name):
                owner = node.args[0].id
                if owner in known:
                    problems.append(f"{name}({owner}, ...)")
            if name == "globals":
                problems.append(name)
    return problems


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_unsafe_code_is_in_no_module(path):
    problems = unsafe_code(path.read_text(encoding="utf-8"))
    if path in MAY_IMPORT_BY_NAME:
        problems = [what for what in problems if what != "import_module"]
    assert not problems


@pytest.mark.parametrize(
    "text",
    [
        "import pickle", "import pickle as p", "from pickle import loads", "import os.path, dill",
        "from torch import load", "import torch as t\nt.load(x)", "load = torch.load", "eval(x)",
        "run = exec", "from os import system", "import os as o\no.system(x)", "os.popen(x)",
        "np.load(f, allow_pickle=True)", "import numpy\nnumpy.load(f)", "run(x, shell=True)",
        "getattr(os, 'sys' + 'tem')(x)", "import os as o\ngetattr(o, n)(x)",
        "__import__('os')", "import importlib\nimportlib.import_module(x)", "__builtins__['eval']",
        "from builtins import eval", "().__class__.__base__.__subclasses__()", "globals()['eval']",
        "import subprocess", "from subprocess import run", "compile(x, '', 'exec')",
        "asyncio.create_subprocess_shell(x)", "from os import *", "import yaml", "os.execvp(a, b)",
        "def f():\n    import pickle", "import tarfile", "shutil.unpack_archive(x)", "vars(os)",
    ],
)  # fmt: skip
def test_unsafe_code_detects_every_form(text):
    assert unsafe_code(text)


def test_unsafe_code_accepts_safe_code():
    assert not unsafe_code(
        textwrap.dedent(
            """
            import os, re, torch
            import numpy as np
            pattern = re.compile("x")
            torch.nn.functional.relu(x)
            os.rename(a, b)
            getattr(self, name)
            np.asarray(x)
            table.load(path)
            """
        )
    )


# --- run folders ----------------------------------------------------------------------------------


def test_save_and_load_refuse_links_and_paths(tmp_path):
    """A run consists of plain files; other names and links are refused."""
    ids = pa.array(["a"])
    for name in ("../out", "/tmp/out", "a/b", "..", ".hidden", "x\0y"):
        with pytest.raises(InputError, match="is not a plain file name"):
            run_folder.save(SavedRun({}, ids, ids, {}, {name: "x"}), tmp_path / "run")
    assert list(tmp_path.iterdir()) == []
    run_folder.save(SavedRun({}, ids, ids, {}, {"notes.txt": "x"}), tmp_path / "run")
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "run" / "notes.txt").unlink()
    (tmp_path / "run" / "notes.txt").symlink_to(tmp_path / "secret")
    with pytest.raises(InputError, match=r"notes\.txt: is missing \(or is a link\)"):
        run_folder.load(tmp_path / "run")
    run_folder.save(SavedRun({}, ids, ids, {}, {"notes.txt": "y"}), tmp_path / "run")
    assert (tmp_path / "secret").read_text() == "secret"
    assert not (tmp_path / "run" / "notes.txt").is_symlink()


def test_load_refuses_a_zip_file(tmp_path):
    import zipfile

    archive = tmp_path / "run"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("../outside", "x")
        file.writestr("manifest.json", "{}")
    with pytest.raises(InputError, match="is not a run folder"):
        run_folder.load(archive)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_save_does_not_follow_a_link_when_it_removes_temporary_folders(tmp_path):
    """After a killed save, only temporary folders are removed, not the target of a link."""
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis.tex").write_text("years")
    (tmp_path / ".run.0123456789ab").symlink_to(tmp_path / "precious")
    ids = pa.array(["a"])
    run_folder.save(SavedRun({"x": np.zeros(2)}, ids, ids, {}, {}), tmp_path / "run")
    assert (tmp_path / "precious" / "thesis.tex").read_text() == "years"


@pytest.mark.parametrize("formula", ["=cmd()", "+1+1", "-2+3", "@SUM(A1)", "\t=1", "=1,2"])
def test_recommend_writes_formulas_unchanged(formula, tmp_path):
    """Ids are written unchanged; see docs/explanation/threat-model.md."""
    events = tmp_path / "events.csv"
    quoted = f'"{formula}"'
    events.write_text(f"user,item\n{quoted},a\nu,{quoted}\nu,a\nv,b\n")
    run, lists = tmp_path / "run", tmp_path / "lists.csv"
    assert main(["train", str(events), "--model", "popularity", "--out", str(run)]) == 0
    assert main(["recommend", str(run), "--out", str(lists)]) == 0
    text = lists.read_text()
    assert formula in text
    assert f"'{formula}" not in text


# --- the server -----------------------------------------------------------------------------------


def test_make_app_routes_require_the_key_except_open_paths(tmp_path):
    """All routes, including those that are not in the OpenAPI."""
    folder = trained("popularity").save(tmp_path / "run")
    with client_of(folder, KEY) as client:
        routes = {
            (method, route.path)
            for route in client.app.routes
            for method in (getattr(route, "methods", None) or ())
        }
        assert {path for _, path in routes} >= {"/recommend", "/reload", "/page/users", "/metrics"}
        open_paths = set()
        for method, path in routes:
            answer = client.request(method, re.sub(r"\{[^}]*\}", "u1", path))
            if answer.status_code != 401:
                open_paths.add(path)
            elif method != "HEAD":
                check_refused(answer, 401, "X-API-Key")
    assert open_paths == set(OPEN_PATHS) == {"/", "/healthz", "/readyz"}


# --- dependencies ---------------------------------------------------------------------------------

EXTRAS = PROJECT["optional-dependencies"]
NEEDED = [Requirement(text) for text in PROJECT["dependencies"]]
OPTIONAL = [
    Requirement(text) for name in EXTRAS for text in EXTRAS[name] if not text.startswith("llpauc[")
]
# Packages that are imported here and installed by a declared dependency.
INDIRECT = {"pydantic-core": "pydantic", "starlette": "fastapi"}


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize("needed", [*NEEDED, *OPTIONAL], ids=str)
def test_pyproject_dependencies_have_lower_bounds(needed):
    assert any(bound.operator in (">=", "==", "~=") for bound in needed.specifier), needed


def test_pyproject_declares_every_imported_package():
    used = set()
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                used |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                used.add(node.module.split(".")[0])
    used -= set(sys.stdlib_module_names) | {"llpauc"}
    distributions = packages_distributions()
    declared = {plain(needed.name) for needed in [*NEEDED, *OPTIONAL]}
    for module in used:
        names = {plain(name) for name in distributions.get(module, [module])}
        if names & declared:
            continue
        assert names & set(INDIRECT), f"{module} is imported but not declared"
        (name,) = names & set(INDIRECT)
        required = {plain(Requirement(text).name) for text in requires(INDIRECT[name]) or []}
        assert name in required, f"{module} is imported but not installed by a dependency"
        assert INDIRECT[name] in declared


def test_constraints_pin_every_dependency():
    pins = {
        plain(Requirement(line).name): Requirement(line)
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if line.strip() and not line.startswith("#")
    }
    for needed in [*NEEDED, *OPTIONAL]:
        pin = pins[plain(needed.name)]
        (version,) = [bound.version for bound in pin.specifier if bound.operator == "=="]
        assert needed.specifier.contains(version, prereleases=True), f"{needed} against {pin}"


FREE = ("MIT", "BSD", "Apache", "PSF", "Python Software Foundation", "ISC", "MPL", "HPND", "Zlib")


@pytest.mark.parametrize("needed", NEEDED, ids=lambda needed: needed.name)
def test_dependencies_have_a_free_licence_that_is_listed(needed):
    package = metadata(needed.name)
    texts = [package.get("License-Expression") or "", (package.get("License") or "")[:200]]
    texts += [line for line in package.get_all("Classifier") or [] if line.startswith("License")]
    assert any(word in text for word in FREE for text in texts), texts
    page = (ROOT / "docs" / "explanation" / "threat-model.md").read_text()
    assert f"`{needed.name}`" in page, f"{needed.name} is not in the list of licences"


def test_security_md_explains_how_to_report():
    text = (ROOT / "SECURITY.md").read_text()
    assert "report" in text.lower()
    assert str(Path("docs") / "explanation" / "threat-model.md") in text
