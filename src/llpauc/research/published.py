"""The values printed in the paper's tables, to compare with ours.

The values are in `published.csv`. Its names: data sets as in `llpauc.research.datasets`, losses as
in `llpauc.losses.LOSSES` (`opauc` is the paper's PAUCI(OPAUC)), tables as the targets of `llpauc
reproduce`.

- Values are as printed, including unlikely ones: 0.00014 and 0.00016 as deviations (`table2`,
  softmax_v on Yelp; `table-ltr`, ARP-Loss2 on Yelp) look like misprints of 0.0014 and 0.0016.
- `table-ltr` names no backbone. Its LLPAUC rows are those of MF in `table1` and `table2`, so MF.
- PAUCI is in the clean MF table only, CCL in the clean ones, TCE and RCE in the noise ones.
- The counts of users and items include one padding row each: the files of Adressa have 87,416 and
  2,221. Adressa's sparsity of 99.89 % is truncated, not rounded (99.896 %).
- The paper prints no size of MovieLens-100k, and only an O() for the run time.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from llpauc.research.declarations import PAPER


class PublishedValue(NamedTuple):
    """Mean and standard deviation over three seeds of Recall@20 and NDCG@20."""

    recall: float
    recall_sd: float
    ndcg: float
    ndcg_sd: float


class Key(NamedTuple):
    """The place of a value in the paper."""

    table: str
    data: str
    backbone: str
    loss: str


class Sizes(NamedTuple):
    """A row of the table of data sets; sparsity as a fraction."""

    users: int
    items: int
    interactions: int
    sparsity: float


def _read() -> dict[Key, PublishedValue]:
    text = Path(__file__).with_suffix(".csv").read_text(encoding="utf-8")
    rows = list(csv.reader(text.splitlines()))[1:]
    return {Key(*row[:4]): PublishedValue(*map(float, row[4:])) for row in rows}


PUBLISHED: Mapping[Key, PublishedValue] = _read()

SIZES: Mapping[str, Sizes] = {name: Sizes(*sizes) for name, sizes in PAPER["sizes"].items()}


def published(table: str, data: str, backbone: str, loss: str) -> PublishedValue | None:
    """The printed value, or None where the paper's table has no such row.

    >>> published("table1", "adressa-clean", "mf", "llpauc")
    PublishedValue(recall=0.2166, recall_sd=0.0022, ndcg=0.1214, ndcg_sd=0.0009)
    >>> published("table1", "adressa-clean", "lightgcn", "opauc")
    """
    return PUBLISHED.get(Key(table, data, backbone, loss))
