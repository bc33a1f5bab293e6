"""The documentation is true as far as a machine can tell: its code runs, its site is whole.

Every block of README.md and docs/ is run, page by page, in a folder of small made-up data, or says
in a comment before it why it is not (tests/system/doc_blocks.py has the comments' form). To see
what a
page prints: pytest tests/system/test_docs.py -k serving -s
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
from pathlib import Path

import pytest
import yaml

from llpauc.losses import LOSSES
from tests.datasets import ROOT
from tests.system.doc_blocks import NO_CODE, Block, blocks
from tests.system.doc_runner import CLIENT, ask

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
BLOCKS = {page: blocks(page) for page in PAGES}
MOST_EXCUSES = 20  # a page-wide one counts once

Outcome = tuple[int, str]
Run = Callable[..., Outcome]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def runs(block: Block) -> bool:
    return block.kind in ("python", "bash") and block.excuse is None


# --- what the pages say of their blocks -----------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_block_says_what_it_is(page: Path) -> None:
    """A block without a kind would be neither run nor excused."""
    for block in BLOCKS[page]:
        assert block.kind in ("python", "bash", *NO_CODE), f"{block.where}: {block.kind!r}"
        assert block.code.strip(), f"{block.where}: empty"
        if block.kind == "toml":
            tomllib.loads(block.text)


def test_the_excused_are_few_and_have_reasons() -> None:
    excused = [block for page in PAGES for block in BLOCKS[page] if block.excuse is not None]
    for block in excused:
        print(f"{name(block.page)}:{block.line}: {block.text.splitlines()[0]}: {block.excuse}")
    assert all(len(block.excuse or "") > 9 for block in excused)
    reasons = {(block.page, block.excuse) for block in excused}
    assert len(reasons) <= MOST_EXCUSES
    assert sum(runs(block) for page in PAGES for block in BLOCKS[page]) > 3 * len(reasons)


def test_blocks_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# Page\n\nText.\n\n    llpauc runs .    # indented\n\n    F = a formula\n\n"
        "<!-- not run: it takes an hour -->\n\n```bash\nllpauc auto x\n```\n\n"
        "<!-- in the test: 10m = 5s; 20 = 2 -->\n```sh\nllpauc auto y --budget 10m -k 20\n```\n"
        "```\nwhat is this\n```\n```python\n>>> 1\n1\n```\n"
        "<!-- not run on this page, `make`: slow -->\n\n```bash\nmake it\n```\n",
        encoding="utf-8",
    )
    found = blocks(page)
    assert [(b.kind, b.code, b.excuse) for b in found] == [
        ("bash", "llpauc runs .    # indented", None),
        ("bash", "llpauc auto x", "it takes an hour"),
        ("bash", "llpauc auto y --budget 5s -k 2", None),
        ("", "what is this", None),
        ("python", ">>> 1\n1", None),
        ("bash", "make it", "slow"),
    ]
    assert [b.line for b in found[:2]] == [5, 12]


# --- running --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Run a page or a script in a folder of its own; exit code and what was printed."""
    folder = tmp_path_factory.mktemp("docs")
    place, bin_folder = str(folder / "link"), folder / "bin"
    bin_folder.mkdir()
    client = bin_folder / "llpauc"
    client.write_text(CLIENT.format(python=sys.executable, place=place), encoding="utf-8")
    client.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{bin_folder}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "NUMBA_NUM_THREADS": "1",
        "MPLBACKEND": "agg",
        "PIP_NO_INDEX": "1",  # what is installed is enough: nothing is fetched
        "COLUMNS": "100",
    }
    environment.pop("LLPAUC_API_KEY", None)
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.system.doc_runner", place], cwd=ROOT, env=environment
    )
    scratch = folder / "scratch"

    def one(**asked: str) -> Outcome:
        own = Path(
            shutil.copytree(scratch, folder / re.sub(r"\W", "_", str(sorted(asked.values()))))
        )
        for shared in ("examples", "benchmarks", "tests"):
            (own / shared).symlink_to(ROOT / shared)
        return ask(place, folder=str(own), environment=environment, **asked)

    try:
        while not Path(place).exists():
            assert process.poll() is None, "the runner has ended"
            time.sleep(0.05)
        maker = str(ROOT / "tests" / "system" / "doc_scratch.py")
        code, said = ask(place, folder=str(folder), environment=environment, script=maker)
        assert code == 0, said
        yield one
    finally:
        process.terminate()
        process.wait(60)


@pytest.fixture(scope="module")
def outcomes(run: Run, request: pytest.FixtureRequest) -> Iterator[dict[Path, Future[Outcome]]]:
    """Of the pages and examples that are asked for, two at a time."""
    wanted: dict[Path, str] = {}
    for item in request.session.items:
        if item.path == request.path and hasattr(item, "callspec"):
            params = item.callspec.params
            wanted |= {params[kind]: kind for kind in ("runnable", "script") if kind in params}
    with ThreadPoolExecutor(2) as pool:
        yield {
            path: pool.submit(run, **{"page" if kind == "runnable" else "script": str(path)})
            for path, kind in wanted.items()
        }


@pytest.mark.slow
@pytest.mark.parametrize("runnable", [p for p in PAGES if any(map(runs, BLOCKS[p]))], ids=name)
def test_the_code_of_the_page_runs(runnable: Path, outcomes: dict[Path, Future[Outcome]]) -> None:
    code, said = outcomes[runnable].result()
    print(said)
    assert code == 0
    ran = Counter(re.findall(r"^--- (\S+:\d+)$", said, re.MULTILINE))
    assert ran == Counter(block.where for block in BLOCKS[runnable] if runs(block))


@pytest.mark.slow
@pytest.mark.parametrize("script", EXAMPLES, ids=name)
def test_the_example_runs(script: Path, outcomes: dict[Path, Future[Outcome]]) -> None:
    code, said = outcomes[script].result()
    print(said)
    assert code == 0
    assert said.strip()


def test_a_page_that_fails_is_noticed(run: Run, tmp_path: Path) -> None:
    for number, (text, told) in enumerate(
        [
            ("```python\nx = 1\n```\n```python\nassert x == 2\n```\n", "AssertionError"),
            ("```python\n>>> 1 + 1\n3\n```\n", "not what the page says"),
            ("```bash\nllpauc recommend nowhere\n```\n", "exit code 2"),
            ("```bash\nfalse\ntrue\n```\n", "exit code 1"),
        ]
    ):
        page = tmp_path / f"{number}.md"
        page.write_text(text, encoding="utf-8")
        code, said = run(page=str(page))
        assert code == 1
        assert told in said, said


# --- what a page claims beside its code ---------------------------------------------------------


def test_the_table_of_losses_is_the_registry() -> None:
    page = (ROOT / "docs" / "explanation" / "losses.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| (dot|cosine) \|", page, re.MULTILINE))
    assert rows == {name: kind.score for name, kind in LOSSES.items()}


def test_links_of_the_readme_lead_somewhere() -> None:
    for page in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        targets = re.findall(r"\]\(([^)#]+)[^)]*\)", text)
        for target in targets:
            assert target.startswith("https://") or (ROOT / target).exists(), f"{page}: {target}"
    assert len(targets) > 1


def test_citation_names_this_project_and_the_paper() -> None:
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
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout + done.stderr
    return folder


@pytest.mark.slow
def test_the_site_asks_nobody_else(site: Path) -> None:
    """No script, style, font or picture of another host: a page can be read without a network."""
    pages = list(site.rglob("*.html"))
    assert len(pages) > len(PAGES) - 2
    loads = re.compile(
        r"<(?:script|img|iframe|source|audio|video)\b[^>]*?\bsrc=[\"']?((?:https?:)?//[^\"' >]+)"
        r"|<link\b(?=[^>]*\brel=[\"']?(?:stylesheet|preconnect|preload|icon|dns-prefetch|modulepreload))"
        r"[^>]*?\bhref=[\"']?((?:https?:)?//[^\"' >]+)"
    )
    assert loads.search("<link rel=stylesheet href=https://fonts.example/css>")  # it can be found
    for page in pages:
        assert not loads.search(page.read_text(encoding="utf-8")), page
    for style in site.rglob("*.css"):
        text = style.read_text(encoding="utf-8")
        assert not re.search(r"(?:url\(|@import\s+)[\"']?(?:https?:)?//", text), style


@pytest.mark.slow
def test_the_reference_has_the_docstrings(site: Path) -> None:
    """Names that people import, with what their docstrings say."""
    text = "".join(page.read_text(encoding="utf-8") for page in site.glob("reference/**/*.html"))
    for named in ("recommend.Recommender.fold_in", "losses.LLPAUCLoss", "metrics.llpauc_score",
                  "training.fit", "evaluation.evaluate", "readers.read_interactions"):  # fmt: skip
        assert f'id="llpauc.{named}"' in text, named
    assert "The best k items of each user" in text
