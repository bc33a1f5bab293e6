"""The simulation's tables, for the screen and for Markdown, and its rows for machines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from llpauc.research.simulation.findings import (
    Finding,
    Spot,
    Verdict,
    count_inversions,
    findings,
    verdicts,
)
from llpauc.research.simulation.simulate import AREAS, Floats, Inversions, Study, opauc_in_theory

if TYPE_CHECKING:
    from llpauc.research.plots.simulation import Panel


@dataclass(frozen=True)
class Table:
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Summary:
    """All there is to say about a study."""

    study: Study
    recall: Sequence[Finding]
    ndcg: Sequence[Finding]
    inversions: Sequence[Inversions]
    verdicts: Sequence[Verdict]


def summarise(study: Study) -> Summary:
    recall = findings(study, "recall")
    return Summary(
        study, recall, findings(study, "ndcg"), count_inversions(study), verdicts(recall)
    )


def setting(study: Study) -> str:
    """What was drawn, in a line."""
    design = study.design
    law = "all equally likely"
    if design.around is not None:
        law = f"drawn around a scorer with AUC {design.around:g}"
    return (
        f"{design.rankings:,} rankings of {design.positives:,} positives and "
        f"{design.negatives:,} negatives, {law}; seed {design.seed}"
    )


def tables(summary: Summary) -> list[Table]:
    """Where the maxima are, what a beta too large costs, and inversions."""
    return [
        _maxima("Correlation with Recall@K, and with Precision@K: the two are proportional",
                summary.recall),
        _maxima("Correlation with NDCG@K", summary.ndcg),
        _too_large(summary.recall),
        _inversions(summary.inversions),
    ]  # fmt: skip


def _maxima(title: str, found: Sequence[Finding]) -> Table:
    return Table(
        title,
        ["K", "LLPAUC's best", "at (alpha, beta)", "OPAUC's best", "at beta", "AUC",
         "two-way's best, alpha < 1", "at (alpha, beta)"],
        [
            [f"{f.k:,}", *_spot(f.best), _spot(f.opauc)[0], _share(f.opauc, "beta"),
             _figure(f.auc), *_spot(f.two_way)]
            for f in found
        ],
    )  # fmt: skip


def _too_large(found: Sequence[Finding]) -> Table:
    columns, rows = ["K"], [[f"{f.k:,}"] for f in found]
    for place, far in enumerate(found[0].far):
        beta = f"beta {far.beta:.2g}"
        edge = "AUC" if far.beta == 1.0 else "OPAUC"
        columns += [f"{beta}: {edge}", f"{beta}: LLPAUC", f"at its alpha, {beta}"]
        for row, f in zip(rows, found, strict=True):
            spot = f.far[place].llpauc
            row += [_figure(f.far[place].opauc), _spot(spot)[0], _share(spot, "alpha")]
    return Table(
        "Correlation with Recall@K where beta is too large, alpha the best for it", columns, rows
    )


def _inversions(counted: Sequence[Inversions]) -> Table:
    names = list(dict.fromkeys(name for one in counted for name in one.shares))
    return Table(
        "Pairs of rankings that a metric orders the other way than Recall@K (50 % is a coin; "
        "pairs tied in Recall@K left out, tied in the metric count half)",
        ["K", *names, "tied in Recall@K", "pairs"],
        [
            [
                f"{one.k:,}",
                *[_percent(one.shares.get(name, math.nan)) for name in names],
                _percent(one.tied),
                f"{one.pairs:,}",
            ]
            for one in counted
        ],
    )


def _spot(spot: Spot | None) -> list[str]:
    if spot is None:
        return ["-", "-"]
    return [_figure(spot.correlation), f"({spot.alpha:.2g}, {spot.beta:.2g})"]


def _share(spot: Spot | None, name: Literal["alpha", "beta"]) -> str:
    return "-" if spot is None else f"{getattr(spot, name):.2g}"


def _figure(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3f}"


def _percent(share: float) -> str:
    return "-" if math.isnan(share) else f"{100 * share:.1f} %"


def told(verdict: Verdict) -> str:
    """A verdict in a line."""
    return f"{'holds' if verdict.holds else 'does not hold'}: {verdict.claim} ({verdict.evidence})"


def grid_rows(study: Study) -> list[dict[str, Any]]:
    """Every correlation of the grid, one row each; empty where it is undefined."""
    design = study.design
    return [
        {
            "area": area, "target": f"{target}@{k}", "alpha": alpha, "beta": beta,
            "k_pos": int(design.k_pos[a]), "k_neg": int(design.k_neg[b]),
            "correlation": "" if math.isnan(grid[at, a, b]) else float(grid[at, a, b]),
        }
        for (area, target), grid in study.correlations.items()
        for at, k in enumerate(design.ks)
        for a, alpha in enumerate(design.alphas)
        for b, beta in enumerate(design.betas)
    ]  # fmt: skip


def panels(summary: Summary) -> list[Panel]:
    """For the picture: each K's grid, its maximum, and the correlation along beta."""
    from llpauc.research.plots.simulation import Panel  # matplotlib, for those who want a picture

    study = summary.study
    lower, two_way = (study.correlations[area, "recall"] for area in AREAS)
    made = []
    for at, found in enumerate(summary.recall):
        curves = {"LLPAUC, best alpha": _highest(lower[at]), "OPAUC": lower[at, -1]}
        if len(study.design.alphas) > 1:
            curves["two-way, best alpha < 1"] = _highest(two_way[at, :-1])
        if study.design.around is None:
            curves["OPAUC in theory"] = opauc_in_theory(study.design, found.k)
        spot = found.best
        best = None if spot is None else (spot.alpha, spot.beta, spot.correlation)
        made.append(Panel(found.k, lower[at], best, curves))
    return made


def _highest(grid: Floats) -> Floats:
    """The largest value of each column, NaN where it has none."""
    highest: Floats = np.where(np.isnan(grid), -np.inf, grid).max(axis=0)
    return np.where(np.isneginf(highest), np.nan, highest)


def as_json(summary: Summary) -> dict[str, Any]:
    """For programs: what was asked, maxima, inversions and verdicts; the grid is in the CSV."""
    study, design = summary.study, summary.study.design
    return {
        "positives": design.positives, "negatives": design.negatives,
        "rankings": design.rankings, "around": design.around, "seed": design.seed,
        "alphas": design.alphas, "betas": design.betas,
        "mean auc": study.auc,
        "recall": list(map(_finding, summary.recall, study.means["recall"])),
        "ndcg": list(map(_finding, summary.ndcg, study.means["ndcg"])),
        "inversions": [vars(one) for one in summary.inversions],
        "verdicts": [vars(verdict) for verdict in summary.verdicts],
        "seconds": study.seconds,
    }  # fmt: skip


def _finding(found: Finding, mean: float) -> dict[str, Any]:
    return {
        "k": found.k,
        "mean": float(mean),
        "llpauc": _cell(found.best),
        "opauc": _cell(found.opauc),
        "auc": found.auc,
        "two-way": _cell(found.two_way),
        "beta too large": [
            {"beta": far.beta, "opauc": far.opauc, "llpauc": _cell(far.llpauc)} for far in found.far
        ],
    }


def _cell(spot: Spot | None) -> dict[str, float] | None:
    if spot is None:
        return None
    return {"alpha": spot.alpha, "beta": spot.beta, "correlation": spot.correlation}
