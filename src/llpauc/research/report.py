"""What a study hands over: a text, a table for machines, a picture; and where it came from."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

from llpauc.report.document import bullet_list as bullet_list
from llpauc.report.document import markdown_table as markdown_table
from llpauc.research import plots
from llpauc.storage.atomic import atomic_write
from llpauc.storage.environment import git_commit

Row = dict[str, Any]


@dataclass(frozen=True)
class Report:
    """One table or figure of a study.

    Args:
        name: the target's, and the files' name.
        title: the heading.
        parts: Markdown paragraphs and tables, in order.
        rows: the same numbers for machines; all with the same keys.
        figure: a matplotlib figure, or None.
        caption: says what the figure shows.
    """

    name: str
    title: str
    parts: Sequence[str]
    rows: Sequence[Row]
    figure: Any = None
    caption: str = ""

    @property
    def markdown(self) -> str:
        picture = [f"![{self.caption}]({self.name}.png)"] if self.figure is not None else []
        return "\n\n".join([f"# {self.title}", *picture, *self.parts]) + "\n"


def write_report(report: Report, folder: Path, source: str) -> list[Path]:
    """NAME.md, NAME.csv and NAME.png; `source` says by what command."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{report.name}.md", folder / f"{report.name}.csv"]
    if report.figure is not None:
        paths.append(plots.save(report.figure, folder / f"{report.name}.png"))
    commit = git_commit()
    told = f", commit {commit[:10]}" if commit else ""
    made = f"Made by `{source}` with llpauc {version('llpauc')}{told}, {date.today()}."
    _write(paths[0], f"{report.markdown}\n{made}\n")
    text = io.StringIO()
    writer = csv.DictWriter(text, list(report.rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(report.rows)
    _write(paths[1], text.getvalue())
    return paths


def _write(path: Path, text: str) -> None:
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def setting_text(setting: Mapping[str, Any]) -> str:
    """
    >>> setting_text({"alpha": 0.7, "hardest": 5})
    'alpha 0.7, hardest 5'
    """
    return ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in setting.items())
