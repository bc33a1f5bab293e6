"""The page in chromium, driven by Playwright: served on loopback, and as a file."""

from __future__ import annotations

import math
import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import uvicorn

from llpauc.cli import main
from llpauc.data.catalogue import read_catalogue
from llpauc.data.interactions import Interactions, Split
from llpauc.metrics import auc_score, llpauc_score, opauc_score
from llpauc.metrics.pair_counts import PairCounts
from llpauc.metrics.partial_auc import partial_auc_from_counts, selected_count
from llpauc.recommend import Recommender
from llpauc.report.document import render_page
from llpauc.serving import ServingState, make_app
from llpauc.serving.server import listen
from tests.datasets import score_table

KEY = "k" * 20
TIMEOUT = 60  # seconds, for a busy machine
HTML_ID = "</script><img src=x onerror=window.hacked=1>"
ALPHA, BETA = 0.5, 0.2  # of the run; the page starts with them


@pytest.fixture(scope="module")
def browser() -> Iterator:
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        message = "no chromium: apt-get install chromium, or run .ci/run"
        if os.environ.get("CI") or os.environ.get("LLPAUC_CI"):
            pytest.fail(message)
        pytest.skip(message)
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield started
        started.close()


def events() -> Split:
    """60 users with two tastes, 80 items; some users have test events, some validation events, some
    neither, and one id is HTML."""
    rng = np.random.default_rng(3)
    parts: dict[str, list[tuple[str, str]]] = {"train": [], "valid": [], "test": []}
    for user in range(60):
        items = rng.permutation(np.arange(40) + (user % 2) * 40)[:24]
        for n, item in enumerate(items):
            part = "test" if n < 7 else "valid" if n < 12 else "train"
            if user % 5 == 1 and part == "test":
                continue
            if user % 5 == 2 and part != "train":
                continue
            parts[part].append((HTML_ID if user == 59 else f"user {user}", f"i{item}"))
    made = [Interactions.of(*map(list, zip(*rows, strict=True))) for rows in parts.values()]
    return Split.of(*made)


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Path]:
    root, split = tmp_path_factory.mktemp("browser"), events()
    options = {"epochs": 4, "dimensions": 8, "lr": 0.02, "seed": 1, "alpha": ALPHA, "beta": BETA}
    made = {
        "mf": Recommender(recipe="none", **options).fit(split).save(root / "mf", data="films.csv"),
        "popular": Recommender(model="popularity").fit(split).save(root / "popular"),
    }
    items = root / "items.csv"
    items.write_text(f"item,title\ni1,{HTML_ID}\ni2,The Second\n", encoding="utf-8")
    trials = root / "tuning"
    trials.mkdir()
    lines = [f"{n},{n / 50},complete,{a},{b}" for n, (a, b) in enumerate([(0.3, 0.1), (0.9, 0.4)])]
    (trials / "trials.csv").write_text("\n".join(["trial,value,state,alpha,beta", *lines]) + "\n")
    return made | {"items": items, "tuning": trials}


@contextmanager
def served(run: Path, key: str | None = None, titles=None) -> Iterator[str]:
    """The server in a thread of this process, on a free port of the loopback address."""
    catalogue = None
    if titles is not None:
        table = pa.table({"item": list(titles), "title": list(titles.values())})
        catalogue = read_catalogue(table)
    app = make_app(ServingState(run, catalogue), key)
    with listen("127.0.0.1", 0, key) as listener:
        server = uvicorn.Server(uvicorn.Config(app, lifespan="on", ws="none", log_level="error"))
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        try:
            until = time.monotonic() + TIMEOUT
            while not server.started:
                assert time.monotonic() < until, "the server did not start"
                time.sleep(0.02)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(TIMEOUT)


@contextmanager
def opened(browser, url: str, allowed: tuple[str, ...] = (), **options) -> Iterator:
    """A page that must log no error and send requests only to the server of `url`."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, **options)
    page = context.new_page()
    page.set_default_timeout(1000 * TIMEOUT)
    errors: list[str] = []
    requests: list[str] = []
    page.on("console", lambda m: errors.append(m.text) if m.type in ("error", "warning") else 0)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(url)
    yield page
    home = url if url.startswith("file:") else url.rstrip("/") + "/"
    assert all(one.startswith((home, "data:")) for one in requests), requests
    assert all(any(word in error for word in allowed) for error in errors), errors
    assert page.evaluate("window.hacked") is None
    context.close()


def pick(page, user: str) -> None:
    """With the keyboard: type, move down the list, press Enter."""
    page.focus("#search")
    page.keyboard.press("Control+A")
    page.keyboard.type(user)
    page.get_by_role("option", name=user, exact=True).wait_for()
    # The list of the last character, not one of an earlier prefix that is about to be replaced.
    page.wait_for_function(
        "user => [...document.querySelectorAll('#matches [role=option]')]"
        ".every(option => option.textContent.includes(user))",
        arg=user,
    )
    ids = page.locator("#matches [role=option]").all_text_contents()
    for _ in range(ids.index(user) + 1):
        page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.locator("#user-status", has_text=f"User {user}:").wait_for()


def shown(page, name: str) -> tuple[float, float]:
    """A metric and its fraction of the maximum; the text is the metric with five digits."""
    value, normalized, text = page.eval_on_selector(
        f"#{name}", "node => [node.dataset.value, node.dataset.normalized, node.textContent]"
    )
    assert text == f"{float(value):.5f}"
    return float(value), float(normalized)


def expected(run: Path, user: str, alpha: float, beta: float) -> dict[str, tuple[float, float]]:
    """From the scores and the events, with `llpauc.metrics`."""
    fitted = Recommender.load(run).fitted
    assert fitted is not None
    split = events()
    row = int(fitted.user_ids.indices([user])[0])
    mine = int(split.user_ids.indices([user])[0])
    assert fitted.item_ids == split.item_ids
    parts = {name: set(part.matrix[mine].indices.tolist()) for name, part in split.parts.items()}
    if parts["test"]:
        positives, masked = parts["test"], parts["train"] | parts["valid"]
    elif parts["valid"]:
        positives, masked = parts["valid"], parts["train"]
    else:
        positives, masked = parts["train"], set()
    candidates = [item for item in range(split.n_items) if item not in masked]
    scores = score_table(fitted.scorer, len(fitted.user_ids))[row, candidates]
    truth = [int(item in positives) for item in candidates]
    return {
        "llpauc": (
            llpauc_score(truth, scores, alpha=alpha, beta=beta),
            llpauc_score(truth, scores, alpha=alpha, beta=beta, normalize=True),
        ),
        "opauc": (
            opauc_score(truth, scores, beta=beta),
            opauc_score(truth, scores, beta=beta, normalize=True),
        ),
        "auc": (auc_score(truth, scores), auc_score(truth, scores)),
    }


def check_metrics(page, run: Path, user: str, alpha: float, beta: float) -> float:
    for name, value in expected(run, user, alpha, beta).items():
        assert shown(page, name) == value
    return shown(page, "llpauc")[0]


def move_sliders(page, run: Path, user: str) -> None:
    """With the keyboard; every step updates the page."""
    values = [check_metrics(page, run, user, ALPHA, BETA)]
    page.focus("#beta-slider")
    for _ in range(25):
        page.keyboard.press("ArrowRight")
    beta = float(page.input_value("#beta"))
    assert beta == float(f"{10 ** (math.log10(BETA) + 0.5):.2g}")
    values.append(check_metrics(page, run, user, ALPHA, beta))
    page.focus("#alpha-slider")
    for _ in range(20):
        page.keyboard.press("ArrowRight")
    alpha = float(page.input_value("#alpha"))
    assert alpha == 0.7
    values.append(check_metrics(page, run, user, alpha, beta))
    page.fill("#alpha", "1")
    page.fill("#beta", "1")
    assert check_metrics(page, run, user, 1, 1) == shown(page, "auc")[0]
    assert len(set(values)) == 3
    page.fill("#beta", "2")
    assert "beta must be above 0" in page.text_content("#fraction-error")
    check_metrics(page, run, user, 1, 1)
    page.fill("#beta", str(BETA))
    page.fill("#alpha", str(ALPHA))
    assert page.text_content("#fraction-error") == ""


def check_widths(page) -> None:
    for width in (360, 768, 1280):
        page.set_viewport_size({"width": width, "height": 740})
        page.wait_for_timeout(100)
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_page_partial_auc_equals_metrics_exactly(browser, tmp_path):
    """Random users, ties, and fractions that select exactly K of n."""
    rng = np.random.default_rng(0)
    cases = []
    for _ in range(500):
        n_pos, n_neg = int(rng.integers(1, 40)), int(rng.integers(1, 2000))
        ranks = np.sort(rng.integers(0, n_neg + 1, n_pos))
        alpha, beta = (
            int(rng.integers(1, n + 1)) / n if rng.random() < 0.5 else 1 - rng.random()
            for n in (n_pos, n_neg)
        )
        cases.append((ranks, n_neg, alpha, beta))
    file = tmp_path / "page.html"
    file.write_bytes(
        render_page({"runs": [], "users": [], "views": [], "items": [], "tuning": None})
    )
    context = browser.new_context()
    page = context.new_page()
    page.goto(file.as_uri())
    results = page.evaluate(
        "cases => cases.map(one => Object.values(llpauc.partialAuc(...one)))",
        [(ranks.tolist(), n_neg, alpha, beta) for ranks, n_neg, alpha, beta in cases],
    )
    context.close()
    for (ranks, n_neg, alpha, beta), (value, normalized, maximum, k_pos, k_neg) in zip(
        cases, results, strict=True
    ):
        above = ranks.astype(np.int32)
        counts = PairCounts(
            above, np.zeros_like(above), np.array([0, len(ranks)]), np.array([n_neg])
        )
        for normalize, computed in ((False, value), (True, normalized)):
            (metric,) = partial_auc_from_counts(counts, alpha=alpha, beta=beta, normalize=normalize)
            assert computed == metric
        assert k_pos == selected_count(alpha, len(ranks))
        assert k_neg == selected_count(beta, n_neg)
        assert maximum == k_pos * k_neg / (len(ranks) * n_neg)


def test_served_page_shows_metrics_and_lists_of_a_user(browser, runs):
    titles = {"i2": "The Second", "i1": HTML_ID}
    with served(runs["mf"], titles=titles) as url, opened(browser, url) as page:
        pick(page, "user 10")
        assert "7 test events" in page.text_content("#basis")
        move_sliders(page, runs["mf"], "user 10")
        ids, _ = Recommender.load(runs["mf"]).recommend(["user 10"], 20)
        titles = {"i1": HTML_ID, "i2": "The Second"}
        for item, text in zip(ids[0], page.locator("#top li").all_text_contents(), strict=True):
            assert titles.get(item, item) in text
        pick(page, "user 6")
        assert "5 validation events" in page.text_content("#basis")
        check_metrics(page, runs["mf"], "user 6", ALPHA, BETA)
        pick(page, "user 7")
        assert "Too optimistic: the model was trained on these items" in page.text_content("#basis")
        assert page.is_hidden("#held-out-card")
        check_metrics(page, runs["mf"], "user 7", ALPHA, BETA)
        pick(page, HTML_ID)
        check_metrics(page, runs["mf"], HTML_ID, ALPHA, BETA)
        assert page.locator("#roc path.first").count() == 1
        assert page.locator("#curves path.curve").count() == 1
        check_widths(page)


def test_served_page_reports_unknown_user_and_stopped_server(browser, runs):
    allowed = ("404", "ERR_CONNECTION_REFUSED")
    with served(runs["popular"]) as url:
        stack = opened(browser, url, allowed)
        page = stack.__enter__()
        page.wait_for_selector("#top li")
        page.fill("#search", "unknown")
        page.keyboard.press("Enter")
        page.wait_for_selector("#problem:not([hidden])")
        assert "unknown user: 'unknown'" in page.text_content("#problem")
        assert "No training curve" in page.text_content("#training-note")
        pick(page, "user 3")
        assert page.is_hidden("#problem")
    page.fill("#search", "user 4")
    page.keyboard.press("Enter")
    page.wait_for_selector("#problem:not([hidden])")
    assert "does not respond" in page.text_content("#problem")
    stack.__exit__(None, None, None)


def test_served_page_asks_for_the_key_and_does_not_store_it(browser, runs):
    with served(runs["mf"], KEY) as url, opened(browser, url, ("401",)) as page:
        page.wait_for_selector("#key-form:not([hidden])")
        assert page.is_hidden("#user")
        page.fill("#key", "wrong" * 4)
        page.keyboard.press("Enter")
        page.locator("#problem", has_text="rejected this key").wait_for()
        page.fill("#key", KEY)
        page.keyboard.press("Enter")
        page.wait_for_selector("#top li")
        pick(page, "user 10")
        assert page.evaluate("localStorage.length + sessionStorage.length") == 0
        assert page.evaluate("document.cookie") == ""
        assert KEY not in page.content()


def test_report_page_shows_runs_tuning_and_hostile_ids(browser, runs, tmp_path):
    out = tmp_path / "report.html"
    words = [str(runs["mf"]), str(runs["popular"]), "--out", str(out)]
    extras = ["--items", str(runs["items"]), "--tuning", str(runs["tuning"])]
    assert main(["report", *words, *extras]) == 0
    with opened(browser, out.as_uri(), color_scheme="dark") as page:
        pick(page, "user 10")
        move_sliders(page, runs["mf"], "user 10")
        rows = page.locator("#by-run-table tbody tr").all_text_contents()
        assert len(rows) == 2
        for name, text in zip(("mf", "popular"), rows, strict=True):
            value = expected(runs[name], "user 10", ALPHA, BETA)["llpauc"][0]
            assert text.startswith(name)
            assert f"{value:.5f}" in text
        page.select_option("#run", "1")
        check_metrics(page, runs["popular"], "user 10", ALPHA, BETA)
        assert page.locator("#map .cell").count() == 4
        assert "trial 1: 0.0200 at alpha 0.9 and beta 0.4" in page.text_content("#tuning-note")
        assert page.locator("#runs-table thead th").all_text_contents() == ["", "mf", "popular"]
        assert HTML_ID in page.evaluate("JSON.parse(data.textContent).users")
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
        page.emulate_media(color_scheme="light")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark
        check_widths(page)
        page.keyboard.press("Tab")
        outline = "getComputedStyle(document.activeElement).outlineStyle"
        assert page.evaluate(outline) == "solid"


def test_report_page_mean_is_over_users_with_held_out_events(browser, runs, tmp_path):
    out = tmp_path / "report.html"
    both = [str(runs["mf"]), str(runs["popular"])]
    assert main(["report", *both, "--out", str(out), "--users", "user 10,user 6,user 7"]) == 0
    with opened(browser, out.as_uri()) as page:
        page.wait_for_selector("#by-run-table tbody tr")
        mean = page.locator("#by-run-table tbody tr").first.locator("td").last.text_content()
    held = [expected(runs["mf"], user, ALPHA, BETA)["llpauc"][0] for user in ("user 10", "user 6")]
    assert mean == f"{sum(held) / 2:.5f}"
