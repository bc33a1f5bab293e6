"""Rankings around a trained model: which metric follows Recall@K where it matters.

The paper draws rankings at random. What is compared in practice are models near a good one, by a
mean over users with few positives each. So: train a model, shake its vectors by more and less, and
see over these models which metric's mean follows Recall@K's.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from llpauc.data.interactions import Split
from llpauc.errors import InputError
from llpauc.evaluation.full_ranking import evaluate
from llpauc.evaluation.scorer import FactorScorer
from llpauc.research.cells import Cell, Result
from llpauc.research.lab import Lab
from llpauc.research.paper import datasets
from llpauc.research.paper.runners import Splits, train_once
from llpauc.research.paper.settings import PAPER, printed_setting
from llpauc.research.plots import paper as pictures
from llpauc.research.report import Report, Row, bullet_list, markdown_table

ALPHAS = (0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
BETAS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
K = 20
USERS = 2000


def run_around(
    splits: Splits, data: str, *, loss: str, models: int, strongest: float, seed: int, **given: Any
) -> Result:
    """Means over test users of Recall@K, NDCG@K and LLPAUC on a grid, of each shaken model.

    Args:
        strongest: the most noise, in units of the vectors' own root mean square; model i of n
            gets i/n of it.
    """
    split = splits(data)
    trained = train_once(split, "mf", loss, {**given, "seed": seed})
    users, items = trained.vectors()
    asked = _some_warm_users(split, seed)
    names = [f"recall@{K}", f"ndcg@{K}", *[_name(a, b) for a in ALPHAS for b in BETAS]]
    rng = np.random.default_rng(seed)
    sizes = [float(np.sqrt(np.mean(table**2))) for table in (users, items)]
    rows = []
    for model in range(1, models + 1):
        noise = strongest * model / models
        shaken = FactorScorer(
            *[
                table + np.float32(noise * size) * rng.standard_normal(table.shape, np.float32)
                for table, size in zip((users, items), sizes, strict=True)
            ]
        )
        found = evaluate(shaken, asked, metrics=names)
        rows.append([found.mean(name) for name in found.values])
    return {"names": names, "means": rows, "users": len(np.unique(asked.parts["test"].users))}


def _name(alpha: float, beta: float) -> str:
    return f"llpauc({alpha:g},{beta:g})"


def _some_warm_users(split: Split, seed: int) -> Split:
    """The split with the test events of at most USERS users who have training events."""
    if split.test is None:
        raise InputError("rankings around a model need a test part")
    warm = np.diff(split.train.matrix.indptr) > 0
    there = np.unique(split.test.users[warm[split.test.users]])
    some = np.random.default_rng(seed).permutation(there)[:USERS]
    return dataclasses.replace(split, test=split.test.take(np.isin(split.test.users, some)))


def around_model(lab: Lab) -> Report:
    """Correlation with Recall@20 over shaken models, on a grid of alpha and beta."""
    sets = [name for name in ("adressa-clean", "ml-100k-clean") if name in lab.available]
    if not sets:
        raise InputError(datasets.missing("adressa-clean", lab.data))
    options = {k: v for k, v in PAPER.items() if k != "cold"}
    cells = {
        data: Cell.of(
            "around", data, loss="llpauc", models=20 if lab.quick else 200, strongest=2.0,
            seed=lab.seeds[0], **options, **(printed_setting(data) or {"alpha": 0.7, "beta": 0.1}),
        )
        for data in sets
    }  # fmt: skip
    results = lab.results(list(cells.values()))
    maps: dict[str, npt.NDArray[np.float64]] = {}
    rows: list[Row] = []
    remarks, table = [], []
    for data, cell in cells.items():
        found = results[cell]
        names, means = found["names"], np.array(found["means"])
        target = means[:, 0]
        follows = {
            name: (_correlation(means[:, at], target), _inverted(means[:, at], target))
            for at, name in enumerate(names)
        }
        grid = np.array([[follows[_name(a, b)][0] for b in BETAS] for a in ALPHAS])
        maps[data] = grid
        best = np.unravel_index(int(np.nanargmax(grid)), grid.shape)
        named = {
            "AUC": _name(1.0, 1.0),
            f"OPAUC({BETAS[int(np.nanargmax(grid[-1]))]:g})": _name(
                1.0, BETAS[int(np.nanargmax(grid[-1]))]
            ),
            f"LLPAUC({ALPHAS[best[0]]:g}, {BETAS[best[1]]:g})": _name(
                ALPHAS[best[0]], BETAS[best[1]]
            ),
            f"NDCG@{K}": f"ndcg@{K}",
        }
        table += [
            [data, shown, f"{follows[name][0]:.3f}", f"{follows[name][1]:.1%}"]
            for shown, name in named.items()
        ]
        forgiving = ALPHAS[int(np.nanargmax(grid[:, -1]))]
        remarks.append(
            f"{data}: at beta 1 the best alpha ({forgiving:g}) gives {np.nanmax(grid[:, -1]):.3f}"
            f" where AUC has {grid[-1, -1]:.3f}; {found['users']:,} users, Recall@{K} from"
            f" {target.min():.4f} to {target.max():.4f}."
        )
        rows += [
            {"data": data, "metric": name, "correlation": f"{c:.6f}", "inverted": f"{i:.6f}"}
            for name, (c, i) in follows.items()
        ]
    said = (
        f"A trained MF with LLPAUC, {len(results[cells[sets[0]]]['means'])} times with noise on its"
        " vectors (from nearly none to twice their size). Over these models: Pearson's correlation"
        f" of each metric's mean over users with that of Recall@{K}, and the share of pairs of"
        " models that the metric orders the other way."
    )
    header = ["data", "metric", f"correlation with Recall@{K}", "pairs ordered otherwise"]
    figure = pictures.heat_maps(
        maps, ALPHAS, BETAS, f"Correlation with Recall@{K} over models around a trained one",
        "correlation",
    )  # fmt: skip
    return Report("figure-around-model", "Metrics around a trained model",
                  [said, markdown_table(header, table), bullet_list(remarks)], rows, figure,
                  "Correlation of LLPAUC with Recall@20 over shaken models")  # fmt: skip


def _correlation(one: Any, other: Any) -> float:
    """Pearson's; NaN where one does not vary."""
    apart = (one - one.mean(), other - other.mean())
    scale = float(np.sqrt((apart[0] ** 2).sum() * (apart[1] ** 2).sum()))
    return float((apart[0] * apart[1]).sum()) / scale if scale > 0 else float("nan")


def _inverted(one: Any, other: Any) -> float:
    """The share of pairs that `one` orders the other way than `other`; a tie in `one` is half."""
    first, second = np.triu_indices(len(one), 1)
    wanted, found = np.sign(other[first] - other[second]), np.sign(one[first] - one[second])
    counts = wanted != 0
    return float(np.mean((1 - wanted[counts] * found[counts]) / 2))
