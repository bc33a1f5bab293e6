"""What the simulation says: where the maxima lie, and which of the paper's claims hold in it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from llpauc.research.simulation.simulate import AREAS, Floats, Inversions, Study, inversions

FAR_BETAS = (0.1, 1.0)  # "far too large" for every K of the paper's size
_CLOSE = 0.01  # correlations nearer than this are called the same
_CLEARLY = 0.1  # and farther apart than this, clearly different
_MOST = 0.9  # of a maximum


@dataclass(frozen=True)
class Spot:
    """A cell of the grid.

    Args:
        alpha, beta: its shares.
        correlation: there.
        place: of alpha and of beta in their lists.
    """

    alpha: float
    beta: float
    correlation: float
    place: tuple[int, int]


@dataclass(frozen=True)
class Far:
    """What is left where beta is far too large.

    Args:
        beta: that beta.
        opauc: correlation of OPAUC(beta).
        llpauc: LLPAUC with the alpha that is best at this beta.
        loose: correlation where alpha is ten times as large as that, or 1.
    """

    beta: float
    opauc: float
    llpauc: Spot | None
    loose: float


@dataclass(frozen=True)
class Finding:
    """One K; None where nothing is defined.

    Args:
        k: the K.
        best: LLPAUC's maximum, with the smallest alpha where several are equal.
        opauc: OPAUC's maximum, on the edge alpha = 1.
        auc: correlation of AUC.
        far: what is left at each of `FAR_BETAS`, or where the grid comes nearest.
        two_way: maximum of the two-way area with alpha < 1; at alpha = 1 it is OPAUC.
    """

    k: int
    best: Spot | None
    opauc: Spot | None
    auc: float
    far: tuple[Far, ...]
    two_way: Spot | None


@dataclass(frozen=True)
class Verdict:
    claim: str
    holds: bool
    evidence: str


def findings(study: Study, target: str = "recall") -> list[Finding]:
    """One for each K, by the correlation with `target`."""
    design = study.design
    lower, two_way = (study.correlations[area, target] for area in AREAS)
    edge = np.arange(len(design.alphas)) == len(design.alphas) - 1
    every = np.ones_like(edge)
    at_far = {int(np.abs(np.log(np.array(design.betas) / far)).argmin()) for far in FAR_BETAS}
    return [
        Finding(
            k,
            _best(study, lower[at], every),
            _best(study, lower[at], edge),
            float(lower[at, -1, -1]),
            tuple(_far(study, lower[at], beta) for beta in sorted(at_far)),
            _best(study, two_way[at], ~edge),
        )
        for at, k in enumerate(design.ks)
    ]


def _best(
    study: Study, grid: Floats, rows: npt.NDArray[np.bool_], beta: int | None = None
) -> Spot | None:
    """The largest correlation in some rows (alphas), at one beta or at any."""
    allowed = np.where(rows[:, None], grid, np.nan)
    if beta is not None:
        allowed = np.where(np.arange(grid.shape[1]) == beta, allowed, np.nan)
    if np.isnan(allowed).all():
        return None
    a, b = divmod(int(np.nanargmax(allowed)), grid.shape[1])
    return Spot(study.design.alphas[a], study.design.betas[b], float(grid[a, b]), (a, b))


def _far(study: Study, grid: Floats, beta: int) -> Far:
    alphas = np.array(study.design.alphas)
    spot = _best(study, grid, np.ones(len(alphas), np.bool_), beta)
    loose = math.nan
    if spot is not None:
        loose = float(grid[np.abs(np.log(alphas / min(1.0, 10 * spot.alpha))).argmin(), beta])
    return Far(study.design.betas[beta], float(grid[-1, beta]), spot, loose)


def count_inversions(study: Study) -> list[Inversions]:
    """Against Recall@K: AUC, OPAUC and LLPAUC at their best and where beta is too large, NDCG@K."""
    design = study.design
    corner = Spot(1.0, 1.0, math.nan, (len(design.alphas) - 1, len(design.betas) - 1))
    wanted = {}
    for at, found in enumerate(findings(study)):
        far = found.far[0]
        edge = (corner.place[0], design.betas.index(far.beta))
        spots = {
            "AUC": corner,
            "OPAUC": found.opauc,
            "LLPAUC": found.best,
            f"OPAUC at beta {far.beta:.2g}": Spot(1.0, far.beta, far.opauc, edge),
            f"LLPAUC at beta {far.beta:.2g}": far.llpauc,
        }
        columns = {
            name: design.column("llpauc", alpha=spot.place[0], beta=spot.place[1])
            for name, spot in spots.items()
            if spot is not None
        }
        wanted[at] = {**columns, "NDCG@K": design.column("ndcg", k=at)}
    return inversions(design, wanted)


def verdicts(found: Sequence[Finding]) -> list[Verdict]:
    """The claims about the correlation with Recall@K, each with what was found.

    K without a defined correlation say nothing; without any, there is nothing to judge.
    """
    known = [f for f in found if f.best is not None and f.opauc is not None]
    return list(_judge(known)) if known else []


def _judge(found: Sequence[Finding]) -> Iterator[Verdict]:
    best = [f.best for f in found if f.best is not None]
    peaks = [spot.correlation for spot in best]
    yield Verdict(
        "LLPAUC's maximum is above 0.9 for every K",
        min(peaks) > 0.9,
        _span(peaks),
    )
    for name in ("beta", "alpha"):
        shares = [float(getattr(spot, name)) for spot in best]
        if len(shares) > 1:
            yield Verdict(
                f"it moves to smaller {name} as K falls",
                shares == sorted(shares) and shares[0] < shares[-1],
                f"{name} " + _by_k(found, [f"{share:.2g}" for share in shares]),
            )
    gains = [f.best.correlation - f.opauc.correlation for f in found if f.best and f.opauc]
    yield Verdict(
        "at the best beta the bound on TPR adds almost nothing: OPAUC's best is as good",
        max(gains) < _CLOSE,
        f"LLPAUC's maximum is higher by {max(gains):.4f} at most",
    )
    for place in range(len(found[0].far)):
        yield _forgives(found, [f.far[place] for f in found])
    yield _keeps_most(found, [f.far[-1] for f in found], peaks)
    yield _not_both(found, [f.far[-1] for f in found])
    other = [f for f in found if f.two_way is not None]
    if other:
        pairs = [(f.two_way.correlation, f.best.correlation) for f in other if f.two_way and f.best]
        yield Verdict(
            "the two-way (upper-left) area, alpha < 1, follows Recall@K clearly less than LLPAUC",
            all(mine < theirs - _CLEARLY for mine, theirs in pairs),
            _by_k(other, [f"{mine:.2f} against {theirs:.2f}" for mine, theirs in pairs]),
        )


def _forgives(found: Sequence[Finding], far: Sequence[Far]) -> Verdict:
    reached = _reached(far)
    called = "AUC" if far[0].beta == 1.0 else "OPAUC"
    return Verdict(
        f"at beta {far[0].beta:.2g} LLPAUC, its alpha right, stays clearly above {called}",
        all(mine > f.opauc + _CLEARLY for mine, f in zip(reached, far, strict=True)),
        _by_k(found, [f"{m:.2f} against {f.opauc:.2f}" for m, f in zip(reached, far, strict=True)]),
    )


def _keeps_most(found: Sequence[Finding], far: Sequence[Far], peaks: Sequence[float]) -> Verdict:
    kept = [mine / peak for mine, peak in zip(_reached(far), peaks, strict=True)]
    return Verdict(
        f"and keeps {_MOST:.0%} of its maximum there",
        all(share >= _MOST for share in kept),
        _by_k(found, [f"{share:.0%}" for share in kept]),
    )


def _not_both(found: Sequence[Finding], far: Sequence[Far]) -> Verdict:
    reached = _reached(far)
    return Verdict(
        f"one of alpha and beta must be right: at beta {far[0].beta:.2g} an alpha ten times too "
        "large costs it clearly",
        all(f.loose < mine - _CLEARLY for mine, f in zip(reached, far, strict=True)),
        _by_k(found, [f"{m:.2f} to {f.loose:.2f}" for m, f in zip(reached, far, strict=True)]),
    )


def _reached(far: Sequence[Far]) -> list[float]:
    return [math.nan if f.llpauc is None else f.llpauc.correlation for f in far]


def _span(values: Sequence[float]) -> str:
    return f"{min(values):.3f} to {max(values):.3f}"


def _by_k(found: Sequence[Finding], texts: Sequence[str]) -> str:
    return ", ".join(f"K={f.k}: {text}" for f, text in zip(found, texts, strict=True))
