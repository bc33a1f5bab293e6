"""Every test that docs/reliability.md names exists in the file it names."""

from __future__ import annotations

import re

import pytest

from tests.datasets import ROOT

PAGE = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")


def named_tests() -> list[tuple[str, str]]:
    """(file, test) in the order of the page; a test belongs to the last file named before it."""
    file, named = "", []
    for path, test in re.findall(r"`(tests/[\w/]+\.py)`|`(test_\w+)`", PAGE):
        file = path or file
        if test:
            named.append((file, test))
    return named


@pytest.mark.parametrize(("file", "test"), named_tests())
def test_reliability_page_names_existing_tests(file: str, test: str) -> None:
    text = (ROOT / file).read_text(encoding="utf-8")
    assert re.search(rf"^def {test}\(", text, re.MULTILINE), f"{file} has no {test}"


def test_reliability_page_names_existing_files() -> None:
    files = set(re.findall(r"`(tests/[\w/]+\.py)`", PAGE))
    assert files
    assert {file for file in files if not (ROOT / file).exists()} == set()


def test_reliability_page_every_promise_names_tests() -> None:
    promises = re.findall(r"^### \d+\. .+?(?=^##)", PAGE, re.MULTILINE | re.DOTALL)
    assert promises
    assert all("- **Tests.** `tests/" in promise for promise in promises)
