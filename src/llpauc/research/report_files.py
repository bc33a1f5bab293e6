"""A report of a study: Markdown text, CSV rows, a figure, and the command that made it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from llpauc.report.document import markdown_table
from llpauc.research.paper import PAPER
from llpauc.storage.atomic import csv_text, write_text
from llpauc.storage.environment import git_commit
from llpauc.storage.figure_files import save

Row = dict[str, Any]


@dataclass(frozen=True)
class Report:
    """One table or figure of a study."""

    name: str  # of the target and of the files
    title: str
    parts: Sequence[str]  # Markdown paragraphs and tables
    rows: Sequence[Row]  # the same numbers for the CSV file; all with the same keys
    figure: Any = None  # of matplotlib
    caption: str = ""

    @staticmethod
    def of(
        name: str, parts: Sequence[str], rows: Sequence[Row], figure: Any = None, **values: Any
    ) -> Report:
        """A report whose text is declared in `paper.toml`, with `values` for its placeholders."""
        declared = PAPER["reports"][name]
        declared = {**PAPER["reports"].get(declared.get("like"), {}), **declared}
        parts = [declared["text"].strip().format(**values), *parts]
        return Report(name, declared["title"], parts, rows, figure, declared["caption"])

    @property
    def markdown(self) -> str:
        image = [f"![{self.caption}]({self.name}.png)"] if self.figure is not None else []
        return "\n\n".join([f"# {self.title}", *image, *self.parts]) + "\n"


def write_report(report: Report, folder: Path, command: str) -> list[Path]:
    """Write NAME.md, NAME.csv and NAME.png; the text names the command."""
    folder.mkdir(parents=True, exist_ok=True)
    commit = git_commit()
    source = f"llpauc {version('llpauc')}" + (f", commit {commit[:10]}" if commit else "")
    texts = {
        "md": f"{report.markdown}\nMade by `{command}` with {source}, {date.today()}.\n",
        "csv": csv_text(report.rows, list(report.rows[0])),
    }
    for suffix, text in texts.items():
        write_text(folder / f"{report.name}.{suffix}", text)
    paths = [folder / f"{report.name}.{suffix}" for suffix in texts]
    if report.figure is not None:
        paths.append(save(report.figure, folder / f"{report.name}.png"))
    return paths


def rows_table(rows: Sequence[Row]) -> str:
    """A Markdown table of rows with the same keys.

    >>> print(rows_table([{"data": "yelp", "users": 45542}]))
    | data | users |
    |---|---|
    | yelp | 45,542 |
    """
    cells = [[f"{v:,}" if isinstance(v, int) else str(v) for v in row.values()] for row in rows]
    return markdown_table(list(rows[0]), cells)


@dataclass(frozen=True)
class MeanSd:
    """Mean and sample standard deviation over seeds; None as deviation of a single value.

    >>> print(MeanSd.of([0.2, 0.22, 0.24]))
    .2200 ± .0200
    """

    mean: float
    sd: float | None

    @staticmethod
    def of(values: Sequence[float]) -> MeanSd:
        sd = float(np.std(values, ddof=1)) if len(values) > 1 else None
        return MeanSd(float(np.mean(values)), sd)

    def __str__(self) -> str:
        return short(self.mean) + ("" if not self.sd else f" ± {short(self.sd)}")


def short(value: float) -> str:
    """
    >>> short(0.2166), short(1.5), short(-0.01)
    ('.2166', '1.5000', '-.0100')
    """
    return f"{value:.4f}".replace("0.", ".", 1) if abs(value) < 1 else f"{value:.4f}"


def setting_text(setting: Mapping[str, Any]) -> str:
    """
    >>> setting_text({"alpha": 0.7, "hardest": 5})
    'alpha 0.7, hardest 5'
    """
    return ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in setting.items())
