"""`llpauc auto`: from a raw file to the best lists that fit a budget of time, and a report.

Baselines first, then trained candidates, all judged on validation; the test part is read once, at
the end; the winner is fitted on everything.
"""

from __future__ import annotations

from pathlib import Path

from llpauc.recommend.lists import ListRequest, write_recommendations
from llpauc.report.document import as_html, as_markdown
from llpauc.search.auto.plan import Budget
from llpauc.search.auto.report import Facts, blocks, headline
from llpauc.search.auto.running import Outcome, run
from llpauc.storage.atomic import atomic_write

__all__ = ["Budget", "Facts", "Outcome", "deliver", "headline", "run", "write_report"]


def deliver(outcome: Outcome, folder: Path, *, k: int, data: str) -> int:
    """FOLDER/run and FOLDER/recommendations.parquet; how many rows of recommendations.

    Args:
        outcome: of `run`.
        folder: made where it is not there.
        k: length of the lists.
        data: where the events came from, for the run's meta.json.
    """
    folder.mkdir(parents=True, exist_ok=True)
    known = {}
    if outcome.finish is not None:
        champion = outcome.finish.champion
        known = {"valid": champion.entry.valid, "test": champion.result.summary()}
    outcome.delivered.save(folder / "run", data=data, **known)
    path = folder / "recommendations.parquet"
    return write_recommendations(outcome.delivered.require_fitted(), path, ListRequest(k)).rows


def write_report(facts: Facts, folder: Path) -> None:
    """FOLDER/report.html, report.md and config.toml."""
    told, title = blocks(facts), f"Recommendations for {facts.path}"
    texts = {
        "config.toml": facts.config,
        "report.md": as_markdown(title, told),
        "report.html": as_html(title, told),
    }
    for name, text in texts.items():
        with atomic_write(folder / name) as temporary:
            temporary.write_text(text, encoding="utf-8")
