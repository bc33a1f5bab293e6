"""The wheel, built and used without a checkout.

The new environment has links to the installed dependencies, since installing torch again would take
minutes. llpauc itself comes from the wheel.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tests.datasets import ROOT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of the source, so that no other file of the checkout is included."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    compiled = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", source / "src", ignore=compiled)
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation",
         "--wheel-dir", out, source],
        check=True, cwd=out,
    )  # fmt: skip
    (path,) = out.glob("*.whl")
    return path


def test_requirements_lock_has_the_versions_of_constraints_with_hashes() -> None:
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8").lower().replace("_", "-")
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    locked = [line.split(" --hash=sha256:") for line in lines if not line.startswith("#")]
    missing = {line[0].replace("_", "-") for line in locked} - set(pinned.splitlines())
    assert not missing, "run make lock"
    assert all(len(digest) == 64 for _, digest in locked)


def test_wheel_contains_the_whole_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        packed = {name for name in opened.namelist() if name.startswith("llpauc/")}
        (licence,) = (name for name in opened.namelist() if name.endswith("LICENSE"))
        assert b"MIT" in opened.read(licence)
    source = ROOT / "src"
    files = [path for path in (source / "llpauc").rglob("*") if path.is_file()]
    expected = {str(path.relative_to(source)) for path in files if "__pycache__" not in path.parts}
    assert {"llpauc/py.typed", "llpauc/report/page.html", "llpauc/report/page.js"} <= expected
    assert packed == expected


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an environment with the wheel."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    process = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    site_packages = Path(process.stdout.strip())
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps",
         "--no-index", wheel],
        check=True, cwd=folder,
    )  # fmt: skip
    # Links to all packages except llpauc, which is installed in editable mode here.
    for place in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for path in Path(place).iterdir():
            if "llpauc" not in path.name.lower() and path.suffix != ".pth":
                (site_packages / path.name).symlink_to(path)
    return python.parent


def run(environment: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))}
    return subprocess.run(
        [environment / words[0], *words[1:]], cwd=folder, text=True, capture_output=True,
        check=False, env={**clean, "NUMBA_CACHE_DIR": str(folder / "numba")},
    )  # fmt: skip


def test_wheel_runs_without_the_checkout(environment: Path, tmp_path: Path) -> None:
    imported = run(environment, tmp_path, "python", "-c", "import llpauc; print(llpauc.__file__)")
    assert Path(imported.stdout.strip()).is_relative_to(environment.parent)
    result = run(environment, tmp_path, "llpauc", "--version")
    assert result.stderr == ""
    assert result.stdout.startswith("llpauc 0.")


def test_wheel_recommend_and_report(environment: Path, tmp_path: Path) -> None:
    saved = ROOT / "tests" / "artifacts" / "format-2-mf" / "run"
    run_folder = shutil.copytree(saved, tmp_path / "run")
    lists = run(environment, tmp_path, "llpauc", "recommend", "run", "-k", "2", "--json")
    assert lists.returncode == 0, lists.stderr
    assert json.loads(lists.stdout)
    # The files of the page are part of the package.
    page = run(environment, tmp_path, "llpauc", "report", str(run_folder), "--out", "report.html")
    assert page.returncode == 0, page.stderr
    assert (tmp_path / "report.html").stat().st_size > 10_000


@pytest.mark.skipif("LLPAUC_WHEEL_DEMO" not in os.environ, reason="a minute: `make wheel-test`")
def test_wheel_demo(environment: Path, tmp_path: Path) -> None:
    """All kernels are compiled, as after a first installation."""
    result = run(environment, tmp_path, "llpauc", "demo", "--json")
    assert result.returncode == 0, result.stderr
    metrics = json.loads(result.stdout)
    trained, popular = (metrics[name]["all"]["ndcg@20"] for name in ("MF + LLPAUC", "popularity"))
    assert trained > popular
