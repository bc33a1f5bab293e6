"""Checks of the documentation: its code runs, its lists are complete, its site builds.

Every code block of README.md and docs/ is run, page by page, in a folder of small generated data,
unless a comment before it gives a reason (tests/system/doc_blocks.py describes these comments). To
see what a page prints: pytest tests/system/test_docs.py -k serve.md -s
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from importlib import import_module
from pathlib import Path

import pytest
import yaml
from docs.reference.generate import pages as generated_pages

from llpauc.losses import LOSSES
from llpauc.serving.app import router
from tests.datasets import ROOT
from tests.system.doc_blocks import NO_CODE, Block, blocks
from tests.system.doc_runner import CLIENT, send_request

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
BLOCKS = {page: blocks(page) for page in PAGES}
GENERATED = generated_pages()
PUBLIC = ("data", "losses", "metrics", "evaluation", "models", "training", "recommend")
MAX_SKIP_REASONS = 20  # a page-wide reason counts once

Outcome = tuple[int, str]
Run = Callable[..., Outcome]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def runs(block: Block) -> bool:
    return block.kind in ("python", "bash") and block.skip_reason is None


# --- the blocks -----------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_blocks_have_a_language(page: Path) -> None:
    """A block without a language would not be run, and no reason would be given."""
    for block in BLOCKS[page]:
        assert block.kind in ("python", "bash", *NO_CODE), f"{block.where}: {block.kind!r}"
        assert block.code.strip(), f"{block.where}: empty"
        if block.kind == "toml":
            tomllib.loads(block.text)


def test_skipped_blocks_are_few_and_have_reasons() -> None:
    skipped = [block for page in PAGES for block in BLOCKS[page] if block.skip_reason is not None]
    for block in skipped:
        print(f"{name(block.page)}:{block.line}: {block.text.splitlines()[0]}: {block.skip_reason}")
    assert all(len(block.skip_reason or "") > 9 for block in skipped)
    reasons = {(block.page, block.skip_reason) for block in skipped}
    assert len(reasons) <= MAX_SKIP_REASONS
    assert sum(runs(block) for page in PAGES for block in BLOCKS[page]) > 3 * len(reasons)


def test_blocks_parses_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# Page\n\nText.\n\n    llpauc runs .    # indented\n\n    F = a formula\n\n"
        "<!-- not run: it takes an hour -->\n\n```bash\nllpauc auto x\n```\n\n"
        "<!-- in the test: 10m = 5s; 20 = 2 -->\n```sh\nllpauc auto y --budget 10m -k 20\n```\n"
        "```\nwhat is this\n```\n```python\n>>> 1\n1\n```\n"
        "<!-- not run on this page, `make`: slow -->\n\n```bash\nmake it\n```\n",
        encoding="utf-8",
    )
    parsed = blocks(page)
    assert [(b.kind, b.code, b.skip_reason) for b in parsed] == [
        ("bash", "llpauc runs .    # indented", None),
        ("bash", "llpauc auto x", "it takes an hour"),
        ("bash", "llpauc auto y --budget 5s -k 2", None),
        ("", "what is this", None),
        ("python", ">>> 1\n1", None),
        ("bash", "make it", "slow"),
    ]
    assert [b.line for b in parsed[:2]] == [5, 12]


# --- running --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Runs a page or a script in a new folder; returns its exit code and output."""
    folder = tmp_path_factory.mktemp("docs")
    socket_path, bin_folder = str(folder / "socket"), folder / "bin"
    bin_folder.mkdir()
    client = bin_folder / "llpauc"
    client.write_text(
        CLIENT.format(python=sys.executable, socket_path=socket_path), encoding="utf-8"
    )
    client.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{bin_folder}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
        "OMP_NUM_THREADS": "1",
        "NUMBA_NUM_THREADS": "1",
        "MPLBACKEND": "agg",
        "PIP_NO_INDEX": "1",  # nothing is downloaded
        "COLUMNS": "100",
    }
    environment.pop("LLPAUC_API_KEY", None)
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.system.doc_runner", socket_path], cwd=ROOT, env=environment
    )
    scratch = folder / "scratch"

    def run_one(**request: str) -> Outcome:
        copy = folder / re.sub(r"\W", "_", str(sorted(request.values())))
        shutil.copytree(scratch, copy)
        for shared in ("examples", "benchmarks", "tests"):
            (copy / shared).symlink_to(ROOT / shared)
        return send_request(socket_path, folder=str(copy), environment=environment, **request)

    try:
        while not Path(socket_path).exists():
            assert process.poll() is None, "the runner has exited"
            time.sleep(0.05)
        script = str(ROOT / "tests" / "system" / "doc_scratch.py")
        code, output = send_request(
            socket_path, folder=str(folder), environment=environment, script=script
        )
        assert code == 0, output
        yield run_one
    finally:
        process.terminate()
        process.wait(60)


@pytest.fixture(scope="module")
def outcomes(run: Run, request: pytest.FixtureRequest) -> Iterator[dict[Path, Future[Outcome]]]:
    """Of the selected pages and examples; two run at a time."""
    selected: dict[Path, str] = {}
    for item in request.session.items:
        if item.path == request.path and hasattr(item, "callspec"):
            params = item.callspec.params
            selected |= {params[kind]: kind for kind in ("runnable", "script") if kind in params}
    with ThreadPoolExecutor(2) as pool:
        yield {
            path: pool.submit(run, **{"page" if kind == "runnable" else "script": str(path)})
            for path, kind in selected.items()
        }


@pytest.mark.slow
@pytest.mark.parametrize("runnable", [p for p in PAGES if any(map(runs, BLOCKS[p]))], ids=name)
def test_page_code_runs(runnable: Path, outcomes: dict[Path, Future[Outcome]]) -> None:
    code, output = outcomes[runnable].result()
    print(output)
    assert code == 0
    ran = Counter(re.findall(r"^--- (\S+:\d+)$", output, re.MULTILINE))
    assert ran == Counter(block.where for block in BLOCKS[runnable] if runs(block))


@pytest.mark.slow
@pytest.mark.parametrize("script", EXAMPLES, ids=name)
def test_example_runs(script: Path, outcomes: dict[Path, Future[Outcome]]) -> None:
    code, output = outcomes[script].result()
    print(output)
    assert code == 0
    assert output.strip()


def test_run_page_reports_failing_blocks(run: Run, tmp_path: Path) -> None:
    for number, (text, message) in enumerate(
        [
            ("```python\nx = 1\n```\n```python\nassert x == 2\n```\n", "AssertionError"),
            ("```python\n>>> 1 + 1\n3\n```\n", "differs from the page"),
            ("```bash\nllpauc recommend nowhere\n```\n", "exit code 2"),
            ("```bash\nfalse\ntrue\n```\n", "exit code 1"),
        ]
    ):
        page = tmp_path / f"{number}.md"
        page.write_text(text, encoding="utf-8")
        code, output = run(page=str(page))
        assert code == 1
        assert message in output, output


# --- lists and links ------------------------------------------------------------------------------


def test_losses_page_lists_the_registry() -> None:
    page = (ROOT / "docs" / "explanation" / "losses.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| (dot|cosine) \|", page, re.MULTILINE))
    assert rows == {name: kind.score for name, kind in LOSSES.items()}


def test_serve_page_lists_every_route() -> None:
    page = (ROOT / "docs" / "how-to" / "serve.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| `([A-Z]+ /\S*)` \|", page, re.MULTILINE))
    routes = [route for route in router.routes if route.include_in_schema]
    assert {f"{method} {route.path_format}" for route in routes for method in route.methods} == (
        listed - {"GET /", "GET /openapi.json"}
    )


@pytest.mark.parametrize("path", list(GENERATED), ids=name)
def test_reference_generate_page_is_current(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == GENERATED[path], (
        "run python -m docs.reference.generate"
    )


def test_readme_links_exist() -> None:
    for page in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        targets = re.findall(r"\]\(([^)#]+)[^)]*\)", text)
        for target in targets:
            assert target.startswith("https://") or (ROOT / target).exists(), f"{page}: {target}"
    assert len(targets) > 1


def test_citation_cff_names_the_project_and_the_paper() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert cited["title"] == project["name"]
    assert "version" not in cited  # pyproject.toml holds the only version number
    assert cited["license"] == project["license"] == "MIT"
    assert cited["preferred-citation"]["title"] in " ".join(
        (ROOT / "README.md").read_text(encoding="utf-8").split()
    )


# --- the site -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    result = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    assert "WARNING" not in result.stdout + result.stderr
    return folder


@pytest.mark.slow
def test_site_loads_nothing_from_other_hosts(site: Path) -> None:
    """Pages can be read without a network: scripts, styles, fonts and images are local."""
    pages = list(site.rglob("*.html"))
    assert len(pages) > len(PAGES) - 2
    loads = re.compile(
        r"<(?:script|img|iframe|source|audio|video)\b[^>]*?\bsrc=[\"']?((?:https?:)?//[^\"' >]+)"
        r"|<link\b(?=[^>]*\brel=[\"']?(?:stylesheet|preconnect|preload|icon|dns-prefetch|modulepreload))"
        r"[^>]*?\bhref=[\"']?((?:https?:)?//[^\"' >]+)"
    )
    assert loads.search("<link rel=stylesheet href=https://fonts.example/css>")
    for page in pages:
        assert not loads.search(page.read_text(encoding="utf-8")), page
    for style in site.rglob("*.css"):
        text = style.read_text(encoding="utf-8")
        assert not re.search(r"(?:url\(|@import\s+)[\"']?(?:https?:)?//", text), style


@pytest.mark.slow
def test_reference_contains_docstrings(site: Path) -> None:
    """Public names appear with their docstrings."""
    text = "".join(page.read_text(encoding="utf-8") for page in site.glob("reference/**/*.html"))
    public = [
        f"{package}.{exported}"
        for package in PUBLIC
        for exported in import_module(f"llpauc.{package}").__all__
    ]
    missing = [
        public_name
        for public_name in ("recommend.Recommender.fold_in", *public)
        if f'id="llpauc.{public_name}"' not in text
    ]
    assert not missing
    assert "The best k items of each user" in text
