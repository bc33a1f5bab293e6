"""The Monte-Carlo study: how closely LLPAUC(alpha, beta) follows Recall@K over random rankings.

n+ positives and n- negatives are ranked at random many times. Over those rankings Pearson's
correlation of each area with each top-K metric is taken, for a grid of (alpha, beta) at once. The
edge alpha = 1 is OPAUC(beta), its corner beta = 1 is AUC.

Recall@K and Precision@K are one count divided by n+ and by K: their correlations are the same.

Reference: Shi et al., Lower-Left Partial AUC, WWW 2024, section "Empirical Analysis".
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

import numba
import numpy as np
import numpy.typing as npt

from llpauc.errors import InputError, check_at_least
from llpauc.metrics import selected_count
from llpauc.research.simulation import kernels

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]

AREAS = ("llpauc", "two-way")
TARGETS = ("recall", "ndcg")

_BLOCKS = 32  # of rankings, each added up by one thread; their number decides the last bits
_MOST_PLACES = 2**31
_MOST_CORRELATIONS = 200_000  # 200 MB of sums
_PAIRED = 4_000  # rankings that are compared with one another
_NEIGHBOURS = 20  # each with so many that follow it


def log_grid(low: float, high: float, count: int, name: str = "grid") -> tuple[float, ...]:
    """`count` shares from low to high in equal steps of their logarithm.

    >>> log_grid(0.01, 1, 3)
    (0.01, 0.1, 1.0)
    """
    if not 0.0 < low < high <= 1.0:
        raise InputError(f"{name} must have 0 < low < high <= 1, got {low!r} to {high!r}")
    count = check_at_least(f"number of points of {name}", count, 2)
    return tuple(float(f"{share:.12g}") for share in np.geomspace(low, high, count))


def parse_grid(text: str, name: str) -> tuple[float, ...]:
    """Shares from text: "LOW:HIGH:COUNT", spaced by their logarithm, or "A,B,C".

    1 is added where it is missing: that edge is OPAUC and AUC.

    >>> parse_grid("0.01:1:3", "alphas"), parse_grid("0.5, 0.1", "alphas")
    ((0.01, 0.1, 1.0), (0.1, 0.5, 1.0))
    """
    words = text.split(":")
    try:
        if len(words) == 3:
            shares = log_grid(float(words[0]), float(words[1]), int(words[2]), name)
        else:
            shares = tuple(float(word) for word in text.split(","))
    except InputError:
        raise
    except ValueError as error:
        raise InputError(
            f"{name}: {text!r} is neither LOW:HIGH:COUNT nor shares separated by commas"
        ) from error
    return tuple(sorted({*shares, 1.0}))


@dataclass(frozen=True)
class Design:
    """What is drawn and measured; the paper's numbers unless said otherwise.

    Args:
        positives, negatives: n+ and n-, of each ranking.
        rankings: how many are drawn.
        ks: lengths of list, upwards.
        alphas, betas: shares in (0, 1], upwards, the last one 1.
        around: None: every ranking equally likely. Else the AUC, above 0.5, of the scorer that
            ranks: negatives score N(0, 1), positives N(lead, 1).
        seed: same seed, same bits.
    """

    positives: int = 1000
    negatives: int = 50_000
    rankings: int = 10_000
    ks: tuple[int, ...] = (20, 50, 100, 200, 500, 1000)
    alphas: tuple[float, ...] = log_grid(1e-3, 1, 25)
    betas: tuple[float, ...] = log_grid(1e-4, 1, 33)
    around: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_at_least("positives", self.positives, 1)
        check_at_least("negatives", self.negatives, 1)
        check_at_least("rankings", self.rankings, 2)
        if check_at_least("seed", self.seed, 0) >= 2**64:
            raise InputError(f"seed must be below 2^64, got {self.seed}")
        if self.places > _MOST_PLACES:
            raise InputError(f"positives + negatives must be at most 2^31, got {self.places:,}")
        _check_ks(self.ks, self.places)
        for name in ("alphas", "betas"):
            _check_grid(name, getattr(self, name))
        if self.around is not None and not 0.5 < self.around < 1.0:
            raise InputError(
                f"around must be an AUC above 0.5 and below 1, got {self.around!r}; "
                "leave it out for rankings that are all equally likely"
            )
        if len(self.alphas) * len(self.betas) * len(self.ks) > _MOST_CORRELATIONS:
            raise InputError(
                f"{len(self.alphas)} alphas x {len(self.betas)} betas x {len(self.ks)} K are too "
                f"many; the product must be at most {_MOST_CORRELATIONS:,}"
            )

    @property
    def places(self) -> int:
        return self.positives + self.negatives

    @property
    def lead(self) -> float:
        """How far apart two normal scores are that give the AUC asked for."""
        return 0.0 if self.around is None else math.sqrt(2) * NormalDist().inv_cdf(self.around)

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
    def scale(self) -> Floats:
        """What turns the kernels' counts into metrics, one factor a column."""
        pairs = np.full(len(AREAS) * self.cells, float(self.positives * self.negatives))
        best = [self.gain[: min(k, self.positives)].sum() for k in self.ks]
        return 1.0 / np.concatenate((pairs, np.full(len(self.ks), float(self.positives)), best))

    @property
    def cells(self) -> int:
        return len(self.alphas) * len(self.betas)

    def column(self, metric: str, *, k: int = 0, alpha: int = 0, beta: int = 0) -> int:
        """Where a metric stands in the kernels' output; k, alpha, beta are places in the lists."""
        if metric in AREAS:
            return AREAS.index(metric) * self.cells + beta * len(self.alphas) + alpha
        return len(AREAS) * self.cells + TARGETS.index(metric) * len(self.ks) + k


def _check_ks(ks: Sequence[int], places: int) -> None:
    if not ks:
        raise InputError("no K given; try 20,50,100")
    for k in ks:
        check_at_least("K", k, 1)
        if k > places:
            raise InputError(f"K = {k:,} is beyond the {places:,} places of a ranking; lower it")
    if list(ks) != sorted(set(ks)):
        raise InputError(f"K must rise, each once, got {', '.join(map(str, ks))}")


def _check_grid(name: str, shares: Sequence[float]) -> None:
    for share in shares:
        if not 0.0 < share <= 1.0:
            raise InputError(f"{name} must be in (0, 1], got {share!r}")
    if list(shares) != sorted(set(shares)) or not shares or shares[-1] != 1.0:
        raise InputError(f"{name} must rise and end at 1, got {', '.join(map(str, shares))}")


@dataclass(frozen=True)
class Study:
    """What came out.

    Args:
        design: what was asked.
        correlations: (area, target) -> (ks, alphas, betas), NaN where one of the two is constant.
        means: target -> (ks,), its mean over the rankings.
        auc: mean AUC of the rankings.
        seconds: of the study itself; compiling is not in it.
    """

    design: Design
    correlations: Mapping[tuple[str, str], Floats]
    means: Mapping[str, Floats]
    auc: float
    seconds: float


def simulate(design: Design, *, threads: int | None = None) -> Study:
    """Draw, measure, correlate.

    Args:
        design: what to draw and measure.
        threads: at most this many; the result does not depend on it.
    """
    begun = time.perf_counter()
    areas, targets = len(AREAS) * design.cells, len(TARGETS) * len(design.ks)
    # Deviations from some ranking's values: near the means, and exactly 0 for a constant metric.
    centre = _counts(design, 1, np.arange(areas + targets))[0]
    sums, squares = np.zeros((2, _BLOCKS, areas + targets))
    products = np.zeros((_BLOCKS, targets, areas))
    with _threads(threads):
        kernels.add_moments(
            np.uint64(design.seed), design.rankings, design.positives, design.negatives,
            design.lead, design.k_pos, design.k_neg, np.array(design.ks), design.gain, centre,
            sums, squares, products,
        )  # fmt: skip
    total, square, product = (moments.sum(axis=0) for moments in (sums, squares, products))
    mean = total / design.rankings
    spread = np.sqrt(np.maximum(0.0, square - total * mean))
    shared = product - total[areas:, None] * mean[:areas]
    norm = spread[areas:, None] * spread[:areas]
    grid = np.full(norm.shape, np.nan)
    np.divide(shared, norm, out=grid, where=norm > 0.0)
    shape = (len(TARGETS), len(design.ks), len(AREAS), len(design.betas), len(design.alphas))
    by_target = np.clip(grid, -1.0, 1.0).reshape(shape)
    means = (centre + mean) * design.scale
    return Study(
        design,
        {
            (area, target): by_target[t, :, a].transpose(0, 2, 1)
            for a, area in enumerate(AREAS)
            for t, target in enumerate(TARGETS)
        },
        {
            target: means[areas + t * len(design.ks) :][: len(design.ks)]
            for t, target in enumerate(TARGETS)
        },
        float(means[design.cells - 1]),
        time.perf_counter() - begun,
    )


def warm_up() -> float:
    """Have the kernels compiled, or loaded from the cache; the seconds it took."""
    begun = time.perf_counter()
    simulate(Design(1, 1, 2, (1,), (1.0,), (1.0,)))
    return time.perf_counter() - begun


def values(design: Design, rankings: int, columns: npt.ArrayLike) -> Floats:
    """The metrics of the first rankings themselves: (rankings, columns), see `Design.column`."""
    chosen = np.asarray(columns, dtype=np.int64)
    return _counts(design, rankings, chosen) * design.scale[chosen]


def _counts(design: Design, rankings: int, columns: Counts) -> Floats:
    out = np.empty((rankings, len(columns)))
    kernels.measure_each(
        np.uint64(design.seed), design.positives, design.negatives, design.lead, design.k_pos,
        design.k_neg, np.array(design.ks), design.gain, columns, out,
    )  # fmt: skip
    return out


def negatives_above(design: Design, rankings: int) -> Counts:
    """(rankings, n+) negatives above each positive, best positive first, of the first rankings."""
    out = np.empty((rankings, design.positives), np.int64)
    kernels.draw_each(np.uint64(design.seed), design.negatives, design.lead, out)
    return out


@contextmanager
def _threads(most: int | None) -> Iterator[None]:
    before = numba.get_num_threads()
    if most is not None:
        numba.set_num_threads(min(check_at_least("threads", most, 1), before))
    try:
        yield
    finally:
        numba.set_num_threads(before)


@dataclass(frozen=True)
class Inversions:
    """How often a metric orders two rankings the other way than Recall@K does.

    Args:
        k: the K.
        tied: share of pairs of rankings with equal Recall@K; they are left out of all shares.
        shares: metric -> share of the other pairs that it orders the other way. A pair that the
            metric itself leaves tied counts half, so that 0.5 is what a coin would reach.
        pairs: how many were compared, ties included.
    """

    k: int
    tied: float
    shares: Mapping[str, float]
    pairs: int


def inversions(design: Design, metrics: Mapping[int, Mapping[str, int]]) -> list[Inversions]:
    """Compare each of the first rankings with the twenty that follow it.

    Args:
        design: what was drawn.
        metrics: place of K in `design.ks` -> name -> column of the metric, see `Design.column`.
    """
    rankings = min(_PAIRED, design.rankings)
    columns = {at: {"recall": design.column("recall", k=at), **own} for at, own in metrics.items()}
    asked = sorted({column for own in columns.values() for column in own.values()})
    found = dict(zip(asked, _counts(design, rankings, np.array(asked)).T, strict=True))
    results = []
    for at, own in columns.items():
        orders = {name: _orders(found[column]) for name, column in own.items()}
        wanted = orders.pop("recall")
        told = wanted != 0
        shares = {
            name: float(np.mean(0.5 - 0.5 * (order * wanted)[told])) if told.any() else math.nan
            for name, order in orders.items()
        }
        results.append(Inversions(design.ks[at], float(1.0 - told.mean()), shares, wanted.size))
    return results


def _orders(found: Floats) -> npt.NDArray[np.int8]:
    """For each pair of rankings 1, 0 or -1: the first is better, as good, worse."""
    steps = range(1, min(_NEIGHBOURS, len(found) - 1) + 1)
    return np.concatenate([np.sign(found[:-s] - found[s:]) for s in steps]).astype(np.int8)


def opauc_in_theory(design: Design, k: int) -> Floats:
    """Correlation of OPAUC(beta) with Recall@k for every beta, all rankings equally likely.

    Both are sums over the positives of a weight of their place: 1 in the first k places, and a line
    that falls to 0 where k- negatives have gone by, n k- / n- places down. Two such sums correlate,
    over all sets of places, as the weights do over the places. For Recall@k and for AUC this is
    exact; below beta = 1 it takes the number of negatives above a place for its mean. With many
    places the best line ends at 1.5 k and reaches 2 sqrt(2) / 3 = 0.943, whatever k.
    """
    if design.around is not None:
        raise InputError("the theory is for rankings that are all equally likely, without around")
    places = np.arange(design.places)
    hit = np.where(places < k, 1.0, 0.0)
    if k == design.places:
        return np.full(len(design.betas), np.nan)
    reach = design.k_neg * (design.places / design.negatives)
    return np.array([np.corrcoef(hit, np.maximum(0.0, end - places))[0, 1] for end in reach])
