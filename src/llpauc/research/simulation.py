"""The Monte-Carlo study: how closely LLPAUC(alpha, beta) follows Recall@K over random rankings.

n+ positives and n- negatives are ranked at random many times. Over these rankings, Pearson's
correlation of each area with each top-K metric is computed for a whole grid of (alpha, beta). The
edge alpha = 1 is OPAUC(beta); its corner beta = 1 is AUC.

Recall@K and Precision@K are one count divided by n+ and by K: their correlations are the same.

Reference: Shi et al., Lower-Left Partial AUC, WWW 2024, section "Empirical Analysis".
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

import numba
import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from llpauc.errors import InputError, check_at_least, check_fraction
from llpauc.metrics import selected_count
from llpauc.research import simulation_kernels as kernels

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]

AREAS = ("llpauc", "two-way")
TARGETS = ("recall", "ndcg")

_BLOCK = 2**18  # values measured at once; their number determines the last bits
_MAX_ITEMS = 2**31
_MAX_CORRELATIONS = 200_000  # 200 MB of sums
_PAIRED_RANKINGS = 4_000  # rankings that are compared in pairs,
_NEIGHBOURS = 20  # each with this many of the following ones


def log_grid(low: float, high: float, count: int, name: str = "grid") -> tuple[float, ...]:
    """`count` fractions from low to high, equally spaced on a logarithmic scale.

    >>> log_grid(0.01, 1, 3)
    (0.01, 0.1, 1.0)
    """
    if not 0.0 < low < high <= 1.0:
        raise InputError(f"{name} must have 0 < low < high <= 1, got {low!r} to {high!r}")
    count = check_at_least(f"number of points of {name}", count, 2)
    return tuple(float(f"{fraction:.12g}") for fraction in np.geomspace(low, high, count))


def parse_grid(text: str, name: str) -> tuple[float, ...]:
    """Fractions from "LOW:HIGH:COUNT", spaced logarithmically, or from "A,B,C".

    1 is added where it is missing: that edge is OPAUC and AUC.

    >>> parse_grid("0.01:1:3", "alphas"), parse_grid("0.5, 0.1", "alphas")
    ((0.01, 0.1, 1.0), (0.1, 0.5, 1.0))
    """
    words = text.split(":")
    try:
        if len(words) == 3:
            fractions = log_grid(float(words[0]), float(words[1]), int(words[2]), name)
        else:
            fractions = tuple(float(word) for word in text.split(","))
    except InputError:
        raise
    except ValueError as error:
        raise InputError(
            f"{name}: {text!r} is neither LOW:HIGH:COUNT nor fractions separated by commas"
        ) from error
    return tuple(sorted({*fractions, 1.0}))


@dataclass(frozen=True)
class Design:
    """What is drawn and measured; the defaults are the paper's.

    Args:
        positives, negatives: n+ and n-, of each ranking.
        rankings: how many are drawn.
        ks: list lengths, ascending.
        alphas, betas: fractions in (0, 1], ascending, the last one 1.
        scorer_auc: draw the rankings of a scorer with this AUC, in (0.5, 1): negatives score
            N(0, 1), positives N(shift, 1). None: every ranking is equally likely.
        seed: the same seed gives the same bits.
    """

    positives: int = 1000
    negatives: int = 50_000
    rankings: int = 10_000
    ks: tuple[int, ...] = (20, 50, 100, 200, 500, 1000)
    alphas: tuple[float, ...] = log_grid(1e-3, 1, 25)
    betas: tuple[float, ...] = log_grid(1e-4, 1, 33)
    scorer_auc: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("positives", 1), ("negatives", 1), ("rankings", 2), ("seed", 0)):
            check_at_least(name, getattr(self, name), least)
        if self.seed >= 2**64:
            raise InputError(f"seed must be below 2^64, got {self.seed}")
        if self.n_items > _MAX_ITEMS:
            raise InputError(f"positives + negatives must be at most 2^31, got {self.n_items:,}")
        if not self.ks:
            raise InputError("no K given; try 20,50,100")
        for k in self.ks:
            if check_at_least("K", k, 1) > self.n_items:
                raise InputError(f"K = {k:,} is larger than a ranking of {self.n_items:,} items")
        if list(self.ks) != sorted(set(self.ks)):
            raise InputError(f"K must be ascending, got {', '.join(map(str, self.ks))}")
        for name, fractions in (("alphas", self.alphas), ("betas", self.betas)):
            for fraction in fractions:
                check_fraction(name, fraction)
            if not fractions or list(fractions) != sorted({*fractions, 1.0}):
                values = ", ".join(map(str, fractions))
                raise InputError(f"{name} must be ascending and end at 1, got {values}")
        if self.scorer_auc is not None and not 0.5 < self.scorer_auc < 1.0:
            raise InputError(
                f"scorer_auc must be above 0.5 and below 1, got {self.scorer_auc!r}; "
                "omit it for rankings that are all equally likely"
            )
        if self.n_cells * len(self.ks) > _MAX_CORRELATIONS:
            raise InputError(
                f"{len(self.alphas)} alphas x {len(self.betas)} betas x {len(self.ks)} K are too "
                f"many; the product must be at most {_MAX_CORRELATIONS:,}"
            )

    @property
    def n_items(self) -> int:
        return self.positives + self.negatives

    @property
    def n_cells(self) -> int:
        """Size of the (alpha, beta) grid."""
        return len(self.alphas) * len(self.betas)

    @property
    def shift(self) -> float:
        """Distance of the mean scores of positives and negatives that gives `scorer_auc`."""
        auc = self.scorer_auc
        return 0.0 if auc is None else math.sqrt(2) * NormalDist().inv_cdf(auc)

    @cached_property
    def k_pos(self) -> Counts:
        return np.array([selected_count(alpha, self.positives) for alpha in self.alphas])

    @cached_property
    def k_neg(self) -> Counts:
        return np.array([selected_count(beta, self.negatives) for beta in self.betas])

    @cached_property
    def gain(self) -> Floats:
        """What a hit at each rank adds to DCG."""
        gain: Floats = 1.0 / np.log2(np.arange(self.ks[-1]) + 2.0)
        return gain

    @cached_property
    def grid(self) -> tuple[Counts, Counts, Counts, Floats]:
        """What the kernels measure."""
        return self.k_pos, self.k_neg, np.array(self.ks), self.gain

    @cached_property
    def scale(self) -> Floats:
        """Factors that turn the kernels' counts into metrics, one per column."""
        pairs = np.full(len(AREAS) * self.n_cells, float(self.positives * self.negatives))
        best = [self.gain[: min(k, self.positives)].sum() for k in self.ks]
        return 1.0 / np.concatenate((pairs, np.full(len(self.ks), float(self.positives)), best))

    def column(self, metric: str, *, k: int = 0, alpha: int = 0, beta: int = 0) -> int:
        """Column of a metric in the kernels' output; k, alpha, beta are indices."""
        if metric in AREAS:
            return AREAS.index(metric) * self.n_cells + beta * len(self.alphas) + alpha
        return len(AREAS) * self.n_cells + TARGETS.index(metric) * len(self.ks) + k


@dataclass(frozen=True)
class Simulation:
    """The result of `simulate`."""

    design: Design
    correlations: Mapping[tuple[str, str], Floats]
    """(area, target) -> (ks, alphas, betas), NaN where one of the two is constant."""
    means: Mapping[str, Floats]  # target -> (ks,), its mean over the rankings
    auc: float  # mean over the rankings
    seconds: float  # without compilation


def simulate(design: Design, *, threads: int | None = None) -> Simulation:
    """Draw, measure, correlate, in at most `threads` threads; the result does not depend on it."""
    started = time.perf_counter()
    areas, targets = len(AREAS) * design.n_cells, len(TARGETS) * len(design.ks)
    columns = np.arange(areas + targets)
    # Deviations from one ranking's values: near the means, and exactly 0 for a constant metric.
    center = _counts(design, 1, columns)[0]
    total, square = np.zeros((2, len(columns)))
    product = np.zeros((targets, areas))
    step = max(1, _BLOCK // len(columns))
    with _thread_limit(threads):
        for first in range(0, design.rankings, step):
            values = _counts(design, min(step, design.rankings - first), columns, first) - center
            total += values.sum(axis=0)
            square += np.square(values).sum(axis=0)
            product += values[:, areas:].T @ values[:, :areas]
    # Pearson's correlation from the moments.
    mean = total / design.rankings
    deviation = np.sqrt(np.maximum(0.0, square - total * mean))
    covariance = product - total[areas:, None] * mean[:areas]
    norm = deviation[areas:, None] * deviation[:areas]
    grid = np.full(norm.shape, np.nan)
    np.divide(covariance, norm, out=grid, where=norm > 0.0)
    shape = (len(TARGETS), len(design.ks), len(AREAS), len(design.betas), len(design.alphas))
    by_target = np.clip(grid, -1.0, 1.0).reshape(shape)
    means = (center + mean) * design.scale
    return Simulation(
        design,
        {
            (area, target): by_target[t, :, a].transpose(0, 2, 1)
            for a, area in enumerate(AREAS)
            for t, target in enumerate(TARGETS)
        },
        dict(zip(TARGETS, means[areas:].reshape(len(TARGETS), -1), strict=True)),
        float(means[design.n_cells - 1]),
        time.perf_counter() - started,
    )


def warm_up() -> float:
    """Compile the kernels or load them from the cache; the seconds this took."""
    started = time.perf_counter()
    simulate(Design(1, 1, 2, (1,), (1.0,), (1.0,)))
    return time.perf_counter() - started


def metric_values(design: Design, rankings: int, columns: npt.ArrayLike) -> Floats:
    """The metrics of the first rankings: (rankings, columns), see `Design.column`."""
    indices = np.asarray(columns, dtype=np.int64)
    return _counts(design, rankings, indices) * design.scale[indices]


def _counts(design: Design, rankings: int, columns: Counts, first: int = 0) -> Floats:
    out = np.empty((rankings, len(columns)))
    sizes = (design.positives, design.negatives, design.shift)
    kernels.measure_each(np.uint64(design.seed), first, *sizes, design.grid, columns, out)
    return out


def negatives_above(design: Design, rankings: int) -> Counts:
    """(rankings, n+) negatives above each positive, best positive first, of the first rankings."""
    out = np.empty((rankings, design.positives), np.int64)
    for ranking, above in enumerate(out):
        kernels.draw(np.uint64(design.seed), ranking, design.negatives, design.shift, above)
    return out


@contextmanager
def _thread_limit(limit: int | None) -> Iterator[None]:
    before = numba.get_num_threads()
    if limit is not None:
        numba.set_num_threads(min(check_at_least("threads", limit, 1), before))
    try:
        with threadpool_limits(1, "blas"):  # the number of threads must not change the last bits
            yield
    finally:
        numba.set_num_threads(before)


@dataclass(frozen=True)
class Inversions:
    """How often a metric orders two rankings differently from Recall@K.

    Pairs with equal Recall@K are left out. A pair that is tied in the metric counts half, so that a
    random order reaches 0.5.
    """

    k: int
    tied: float  # fraction of pairs with equal Recall@K
    fractions: Mapping[str, float]  # metric -> fraction of the other pairs
    pairs: int  # ties included


def count_inversions(design: Design, metrics: Mapping[int, Mapping[str, int]]) -> list[Inversions]:
    """Compare each of the first rankings with the twenty that follow it.

    `metrics` maps the index of K in `design.ks` to name -> column, see `Design.column`.
    """
    rankings = min(_PAIRED_RANKINGS, design.rankings)
    recall = {at: design.column("recall", k=at) for at in metrics}
    columns = sorted({*recall.values(), *(c for named in metrics.values() for c in named.values())})
    measured = _counts(design, rankings, np.array(columns)).T
    order = {column: _pair_order(row) for column, row in zip(columns, measured, strict=True)}
    results = []
    for at, named in metrics.items():
        target = order[recall[at]]
        decided = target != 0
        fractions = {
            name: float(np.mean(0.5 - 0.5 * (order[column] * target)[decided]))
            if decided.any()
            else math.nan
            for name, column in named.items()
        }
        tied = float(1.0 - decided.mean())
        results.append(Inversions(design.ks[at], tied, fractions, target.size))
    return results


def _pair_order(values: Floats) -> npt.NDArray[np.int8]:
    """For each pair of rankings 1, 0 or -1: the first is better, equal, worse."""
    steps = range(1, min(_NEIGHBOURS, len(values) - 1) + 1)
    return np.concatenate([np.sign(values[:-s] - values[s:]) for s in steps]).astype(np.int8)


def opauc_in_theory(design: Design, k: int) -> Floats:
    """Correlation of OPAUC(beta) with Recall@k for every beta, all rankings equally likely.

    Both are sums over the positives of a weight that depends on the rank: 1 for the first k ranks,
    and a line that falls to 0 where k- negatives have been passed, n k- / n- ranks down. Over all
    sets of ranks, two such sums correlate as the weights do over the ranks. For Recall@k and AUC
    this is exact; below beta = 1 it replaces the number of negatives above a rank by its mean. With
    many items the best line ends at 1.5 k and reaches 2 sqrt(2) / 3 = 0.943, whatever k.
    """
    if design.scorer_auc is not None:
        raise InputError("the theory requires that all rankings are equally likely, no scorer_auc")
    ranks = np.arange(design.n_items)
    hit = np.where(ranks < k, 1.0, 0.0)
    if k == design.n_items:
        return np.full(len(design.betas), np.nan)
    reach = design.k_neg * (design.n_items / design.negatives)
    return np.array([np.corrcoef(hit, np.maximum(0.0, end - ranks))[0, 1] for end in reach])
