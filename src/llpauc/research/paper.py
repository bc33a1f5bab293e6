"""What the paper declares and prints: `paper.toml` and `published.csv`.

`paper.toml` has the data sets, grids, tables and texts of the reports. `published.csv` has the
values of the paper's tables, to compare with ours. Its names: data sets as in
`llpauc.research.datasets`, losses as in `llpauc.losses.LOSSES` (`opauc` is the paper's
PAUCI(OPAUC)), tables as the targets of `llpauc reproduce`.

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
import tomllib
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

_FOLDER = Path(__file__).parent

PAPER: dict[str, Any] = tomllib.loads((_FOLDER / "paper.toml").read_text(encoding="utf-8"))


class PublishedValue(NamedTuple):
    """Mean and standard deviation over three seeds of Recall@20 and NDCG@20."""

    recall: float
    recall_sd: float
    ndcg: float
    ndcg_sd: float


# (table, data set, backbone, loss) -> value.
PUBLISHED: Mapping[tuple[str, ...], PublishedValue] = {
    tuple(row[:4]): PublishedValue(*map(float, row[4:]))
    for row in csv.reader((_FOLDER / "published.csv").read_text(encoding="utf-8").splitlines()[1:])
}


def expand(grid: Mapping[str, Any]) -> list[dict[str, Any]]:
    """All combinations of the lists of a grid, the last list varying fastest.

    >>> expand({"alpha": [0.5, 1.0], "loss": "llpauc"})
    [{'alpha': 0.5, 'loss': 'llpauc'}, {'alpha': 1.0, 'loss': 'llpauc'}]
    """
    values = [value if isinstance(value, (list, tuple)) else [value] for value in grid.values()]
    return [dict(zip(grid, combination, strict=True)) for combination in product(*values)]
