"""What the simulation shows: maxima, the paper's claims, tables, CSV rows and JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from llpauc.research.simulation import (
    AREAS,
    Floats,
    Inversions,
    Simulation,
    count_inversions,
    opauc_in_theory,
)

LARGE_BETAS = (0.1, 1.0)  # far too large for every K of the paper's size
_CLOSE = 0.01  # correlations closer than this count as equal,
_CLEAR = 0.1  # and farther apart than this as clearly different
_MOST = 0.9  # of a maximum


@dataclass(frozen=True)
class Spot:
    """A cell of the grid, its correlation and its indices (alpha, beta)."""

    alpha: float
    beta: float
    correlation: float
    index: tuple[int, int]


@dataclass(frozen=True)
class LargeBeta:
    """The correlations at a beta that is far too large."""

    beta: float
    opauc: float  # of OPAUC(beta)
    llpauc: Spot | None  # with the best alpha for this beta
    large_alpha: float  # where alpha is ten times as large as that, at most 1


@dataclass(frozen=True)
class Finding:
    """The maxima for one K; None where no correlation is defined."""

    k: int
    llpauc: Spot | None  # at the smallest alpha where several are equal
    opauc: Spot | None  # on the edge alpha = 1
    auc: float
    large_betas: tuple[LargeBeta, ...]  # at `LARGE_BETAS`, or at the nearest betas of the grid
    two_way: Spot | None  # with alpha < 1; at alpha = 1 the two-way area is OPAUC


@dataclass(frozen=True)
class Claim:
    """A claim about the correlation with Recall@K, and whether it holds in the simulation."""

    claim: str
    holds: bool
    evidence: str

    def __str__(self) -> str:
        return f"{'holds' if self.holds else 'does not hold'}: {self.claim} ({self.evidence})"


Table = tuple[str, Sequence[str], Sequence[Sequence[str]]]  # title, columns, rows


@dataclass(frozen=True)
class Summary:
    simulation: Simulation
    recall: Sequence[Finding]
    ndcg: Sequence[Finding]
    inversions: Sequence[Inversions]
    claims: Sequence[Claim]


def summarize(simulation: Simulation) -> Summary:
    recall = find_maxima(simulation, "recall")
    inversions = _inversions_of_maxima(simulation, recall)
    ndcg = find_maxima(simulation, "ndcg")
    return Summary(simulation, recall, ndcg, inversions, check_claims(recall))


def find_maxima(simulation: Simulation, target: str = "recall") -> list[Finding]:
    """One finding per K, by the correlation with `target`."""
    alphas, betas = (np.array(grid) for grid in (simulation.design.alphas, simulation.design.betas))
    lower, two_way = (simulation.correlations[area, target] for area in AREAS)
    edge = (alphas == 1.0)[:, None]
    large = sorted({int(np.abs(np.log(betas / beta)).argmin()) for beta in LARGE_BETAS})

    def best(grid: Floats, allowed: npt.NDArray[np.bool_]) -> Spot | None:
        correlations = np.where(allowed, grid, np.nan)
        if np.isnan(correlations).all():
            return None
        a, b = divmod(int(np.nanargmax(correlations)), grid.shape[1])
        return Spot(float(alphas[a]), float(betas[b]), float(grid[a, b]), (a, b))

    def at_beta(grid: Floats, beta: int) -> LargeBeta:
        spot, large_alpha = best(grid, np.arange(len(betas)) == beta), math.nan
        if spot is not None:
            nearest = np.abs(np.log(alphas / min(1.0, 10 * spot.alpha))).argmin()
            large_alpha = float(grid[nearest, beta])
        return LargeBeta(float(betas[beta]), float(grid[-1, beta]), spot, large_alpha)

    return [
        Finding(
            k,
            best(grid, edge | ~edge),
            best(grid, edge),
            float(grid[-1, -1]),
            tuple(at_beta(grid, beta) for beta in large),
            best(two_way_grid, ~edge),
        )
        for k, grid, two_way_grid in zip(simulation.design.ks, lower, two_way, strict=True)
    ]


def _inversions_of_maxima(simulation: Simulation, findings: Sequence[Finding]) -> list[Inversions]:
    """Of AUC, NDCG@K, and OPAUC and LLPAUC at their best and at a large beta."""
    design = simulation.design
    last = len(design.alphas) - 1
    metrics = {}
    for at, finding in enumerate(findings):
        large = finding.large_betas[0]
        spots = {
            "AUC": (last, len(design.betas) - 1),
            "OPAUC": finding.opauc.index if finding.opauc else None,
            "LLPAUC": finding.llpauc.index if finding.llpauc else None,
            f"OPAUC at beta {large.beta:.2g}": (last, design.betas.index(large.beta)),
            f"LLPAUC at beta {large.beta:.2g}": large.llpauc.index if large.llpauc else None,
        }
        metrics[at] = {
            name: design.column("llpauc", alpha=index[0], beta=index[1])
            for name, index in spots.items()
            if index is not None
        }
        metrics[at]["NDCG@K"] = design.column("ndcg", k=at)
    return count_inversions(design, metrics)


def check_claims(findings: Sequence[Finding]) -> list[Claim]:
    """The claims about the correlation with Recall@K; K without a correlation are left out."""
    findings = [f for f in findings if f.llpauc is not None and f.opauc is not None]
    if not findings:
        return []
    claims: list[Claim] = []

    def add(claim: str, holds: bool, evidence: str) -> None:
        claims.append(Claim(claim, holds, evidence))

    def by_k(template: str, *columns: Sequence[float]) -> str:
        rows = zip(findings, *columns, strict=True)
        return ", ".join(f"K={f.k}: {template.format(*values)}" for f, *values in rows)

    def clearly_above(high: Sequence[float], low: Sequence[float]) -> bool:
        return all(a > b + _CLEAR for a, b in zip(high, low, strict=True))

    best = [f.llpauc for f in findings if f.llpauc]
    peaks = [spot.correlation for spot in best]
    evidence = f"{min(peaks):.3f} to {max(peaks):.3f}"
    add("LLPAUC's maximum is above 0.9 for every K", min(peaks) > 0.9, evidence)
    for name in ("beta", "alpha"):
        fractions = [float(getattr(spot, name)) for spot in best]
        if len(fractions) > 1:
            grows = fractions == sorted(fractions) and fractions[0] < fractions[-1]
            evidence = f"{name} {by_k('{:.2g}', fractions)}"
            add(f"the {name} of the maximum grows with K", grows, evidence)
    gain = max(f.llpauc.correlation - f.opauc.correlation for f in findings if f.llpauc and f.opauc)
    add(
        "at the best beta, the bound on TPR adds almost nothing: OPAUC's maximum is as high",
        gain < _CLOSE,
        f"LLPAUC's maximum is higher by {gain:.4f} at most",
    )
    for large in zip(*(f.large_betas for f in findings), strict=True):
        beta, opauc = f"at beta {large[0].beta:.2g}", [at.opauc for at in large]
        llpauc = [at.llpauc.correlation if at.llpauc else math.nan for at in large]
        add(
            f"{beta}, LLPAUC with the best alpha is clearly above"
            f" {'AUC' if large[0].beta == 1.0 else 'OPAUC'}",
            clearly_above(llpauc, opauc),
            by_k("{:.2f} against {:.2f}", llpauc, opauc),
        )
    # The last of the large betas.
    fractions = [value / peak for value, peak in zip(llpauc, peaks, strict=True)]
    claim = f"{beta}, LLPAUC with the best alpha keeps {_MOST:.0%} of its maximum"
    add(claim, min(fractions) >= _MOST, by_k("{:.0%}", fractions))
    large_alpha = [at.large_alpha for at in large]
    add(
        f"one of alpha and beta must be well chosen: {beta}, an alpha ten times too large is"
        " clearly worse",
        clearly_above(llpauc, large_alpha),
        by_k("{:.2f} to {:.2f}", llpauc, large_alpha),
    )
    two_way = [f.two_way.correlation for f in findings if f.two_way]
    if two_way:
        add(
            "the two-way (upper-left) area, alpha < 1, follows Recall@K clearly less than LLPAUC",
            clearly_above(peaks, two_way),
            by_k("{:.2f} against {:.2f}", two_way, peaks),
        )
    return claims


def describe(simulation: Simulation) -> str:
    """What was drawn, in one line."""
    design = simulation.design
    law = "all equally likely"
    if design.scorer_auc is not None:
        law = f"of a scorer with AUC {design.scorer_auc:g}"
    return (
        f"{design.rankings:,} rankings of {design.positives:,} positives and "
        f"{design.negatives:,} negatives, {law}; seed {design.seed}"
    )


def tables(summary: Summary) -> list[Table]:
    """The maxima, the correlations at large betas, and the inversions."""
    return [
        _maxima_table(
            "Correlation with Recall@K, and with Precision@K: the two are proportional",
            summary.recall,
        ),
        _maxima_table("Correlation with NDCG@K", summary.ndcg),
        _large_beta_table(summary.recall),
        _inversion_table(summary.inversions),
    ]


def _maxima_table(title: str, findings: Sequence[Finding]) -> Table:
    columns = ["K"]
    for area, place in (("LLPAUC", "(alpha, beta)"), ("OPAUC", "beta")):
        columns += [f"{area}'s best", f"at {place}"]
    columns += ["AUC", "two-way's best, alpha < 1", "at (alpha, beta)"]
    rows = [
        [
            f"{f.k:,}",
            *_spot(f.llpauc, "({0.alpha:.2g}, {0.beta:.2g})"),
            *_spot(f.opauc, "{0.beta:.2g}"),
            _number(f.auc),
            *_spot(f.two_way, "({0.alpha:.2g}, {0.beta:.2g})"),
        ]
        for f in findings
    ]
    return title, columns, rows


def _large_beta_table(findings: Sequence[Finding]) -> Table:
    columns, rows = ["K"], [[f"{f.k:,}"] for f in findings]
    for i, large in enumerate(findings[0].large_betas):
        beta, edge = f"beta {large.beta:.2g}", "AUC" if large.beta == 1.0 else "OPAUC"
        columns += [f"{beta}: {edge}", f"{beta}: LLPAUC", f"at its alpha, {beta}"]
        for row, f in zip(rows, findings, strict=True):
            at = f.large_betas[i]
            row += [_number(at.opauc), *_spot(at.llpauc, "{0.alpha:.2g}")]
    title = "Correlation with Recall@K where beta is too large, with the best alpha for it"
    return title, columns, rows


def _inversion_table(counted: Sequence[Inversions]) -> Table:
    names = list(dict.fromkeys(name for one in counted for name in one.fractions))
    title = (
        "Pairs of rankings that a metric orders differently from Recall@K (50 % is a random order;"
        " pairs tied in Recall@K are left out, pairs tied in the metric count half)"
    )
    rows = []
    for one in counted:
        percents = [*(one.fractions.get(name, math.nan) for name in names), one.tied]
        percent = ["-" if math.isnan(value) else f"{100 * value:.1f} %" for value in percents]
        rows.append([f"{one.k:,}", *percent, f"{one.pairs:,}"])
    return title, ["K", *names, "tied in Recall@K", "pairs"], rows


def _spot(spot: Spot | None, place: str) -> list[str]:
    return ["-", "-"] if spot is None else [_number(spot.correlation), place.format(spot)]


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3f}"


def grid_rows(simulation: Simulation) -> list[dict[str, Any]]:
    """Every correlation of the grid, one row each; empty where it is undefined."""
    design = simulation.design
    return [
        {
            "area": area,
            "target": f"{target}@{design.ks[at]}",
            "alpha": design.alphas[a],
            "beta": design.betas[b],
            "k_pos": int(design.k_pos[a]),
            "k_neg": int(design.k_neg[b]),
            "correlation": "" if math.isnan(value) else float(value),
        }
        for (area, target), grid in simulation.correlations.items()
        for (at, a, b), value in np.ndenumerate(grid)
    ]


def curves_along_beta(summary: Summary, at: int) -> dict[str, Floats]:
    """Name -> correlation with Recall@K at every beta, for the K with index `at`."""
    design = summary.simulation.design
    lower, two_way = (summary.simulation.correlations[area, "recall"][at] for area in AREAS)
    curves = {"LLPAUC, best alpha": _column_maxima(lower), "OPAUC": lower[-1]}
    if len(design.alphas) > 1:
        curves["two-way, best alpha < 1"] = _column_maxima(two_way[:-1])
    if design.scorer_auc is None:
        curves["OPAUC in theory"] = opauc_in_theory(design, design.ks[at])
    return curves


def _column_maxima(grid: Floats) -> Floats:
    """The largest value of each column, NaN where it has none."""
    maxima: Floats = np.where(np.isnan(grid), -np.inf, grid).max(axis=0)
    return np.where(np.isneginf(maxima), np.nan, maxima)


def as_json(summary: Summary) -> dict[str, Any]:
    """For programs: the design, maxima, inversions and claims; the grid is in the CSV file."""
    simulation = summary.simulation
    design = {k: v for k, v in asdict(simulation.design).items() if k != "ks"}
    result = {**design, "mean_auc": simulation.auc, "seconds": simulation.seconds}
    for target, findings in (("recall", summary.recall), ("ndcg", summary.ndcg)):
        means = zip(findings, simulation.means[target].tolist(), strict=True)
        result[target] = [{"mean": mean, **asdict(finding)} for finding, mean in means]
    result["inversions"] = [asdict(one) for one in summary.inversions]
    return {**result, "claims": [asdict(claim) for claim in summary.claims]}
