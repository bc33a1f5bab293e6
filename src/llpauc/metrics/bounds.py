"""Bounds on Recall@K and Precision@K of a user from a partial AUC of the same user.

Symbols, per user:

| paper | here | meaning |
|---|---|---|
| n+, n- | `n_pos`, `n_neg` | positives and negatives |
| K | `k` | length of the list |
| - | C, `count` | pairs won: n+ n- LLPAUC(K/n+, K/n-), or n+ n- OPAUC(K/n-); an integer |
| - | P, `positives` | positives that C counts: min(K, n+) for LLPAUC, n+ for OPAUC |
| - | i | positives in the top K: Recall@K = i/n+, Precision@K = i/K |

**Proof.** Given i, C is smallest when the top K is K-i negatives, then i positives, and every other
positive is last; largest when the i positives come first and the P-i others directly after the top
K. With n- >= K this gives

    i^2 <= C <= i (K + P - i)

and since swapping two neighbours changes C by at most 1, every C in between occurs. So i is at
least the smallest whole number whose right side reaches C, and at most floor(sqrt(C)); both ends
occur for every possible C ("tight"). Where n- < K, with d = K - n- the same argument gives
i (i - d) <= C <= i (K + P - i) - P d, used here too.

**Departs from the paper.** Theorem 1 requires n+ > K, rare in real data. The bounds above do not:
where n+ <= K, alpha is clipped to 1 (P = n+) and LLPAUC is OPAUC. Theorem 2, that LLPAUC's bounds
are always tighter than OPAUC's, is false as printed for the lower bound: see `recall_bounds`.

**Ties.** C counts a tied pair as lost, so it describes the list with tied negatives first.
The lower bounds hold for every way to break ties, the upper bounds for that one.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from llpauc.errors import InputError, check_at_least, choose

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
Form = Literal["tight", "printed", "unrounded"]

# n+ n- LLPAUC is a whole number up to the rounding of one division and one product.
_TOLERANCE = 1e-6


class Bounds(NamedTuple):
    """Lower and upper bound; floats for one user, arrays for several."""

    lower: float | Floats
    upper: float | Floats


def recall_bounds(
    llpauc: npt.ArrayLike | None = None,
    opauc: npt.ArrayLike | None = None,
    *,
    n_pos: npt.ArrayLike,
    n_neg: npt.ArrayLike,
    k: int,
    form: Form = "tight",
) -> Bounds:
    """Bounds on Recall@K from LLPAUC(K/n+, K/n-), from OPAUC(K/n-), or the better of both.

    From LLPAUC (Theorem 1), with C = n+ n- LLPAUC:

        tight     ceil(K - sqrt(K^2 - C)) / n+   <= Recall@K <= floor(sqrt(C)) / n+
        printed   floor(K - sqrt(K^2 - C)) / n+  <= Recall@K <= ceil(sqrt(C)) / n+

    From OPAUC, with C = n+ n- OPAUC and S = n+ + K:

        tight     ceil((S - sqrt(S^2 - 4 C)) / 2) / n+  <= Recall@K <= min(K, floor(sqrt(C))) / n+
        printed   floor((S - sqrt(S^2 - 4 C)) / 2) / n+ <= Recall@K <= ceil(sqrt(C)) / n+

    From both: the larger lower bound and the smaller upper bound. LLPAUC's bounds are usually
    tighter, its upper bound always. **Departs from the paper**, whose Theorem 2 states that they
    always are: with n+ = n- = 6 and K = 4, 17 of the 924 rankings have an OPAUC lower bound above
    LLPAUC's before rounding, 2 of them also in the tight form. One is `-++++++-----` (best rank
    first): LLPAUC 12/36 gives at least 2 hits, OPAUC 18/36 at least 3, and there are 3.

    Args:
        llpauc: the raw area (not normalised, ties "strict") of one user or of each user, never a
            mean, at alpha = min(1, K/n+), beta = min(1, K/n-). NaN (no value) gives NaN.
        opauc: likewise, at beta = min(1, K/n-).
        n_pos: positives of the user, >= 1; a number or one for each user.
        n_neg: negatives, likewise.
        k: length of the list, >= 1.
        form: "tight" is the best possible and holds for every n+ and n-; "printed" is the paper's,
            rounded the other way: weaker, and valid for n- >= K only; "unrounded" is the paper's
            G_lower and G_higher (H_lower and H_higher for OPAUC) before rounding.

    Reference: Theorem 1, Eqs. (8) and (10); appendix, proof of Theorem 2.

    >>> recall_bounds(10 / 36, n_pos=6, n_neg=6, k=4)  # 2 or 3 of the 6
    Bounds(lower=0.3333333333333333, upper=0.5)
    >>> recall_bounds(10 / 36, n_pos=6, n_neg=6, k=4, form="printed")
    Bounds(lower=0.16666666666666666, upper=0.6666666666666666)
    >>> recall_bounds(12 / 36, n_pos=6, n_neg=6, k=4).lower
    0.3333333333333333
    >>> recall_bounds(12 / 36, opauc=18 / 36, n_pos=6, n_neg=6, k=4).lower
    0.5
    """
    return _bounds(llpauc, opauc, n_pos, n_neg, k, form, n_pos)


def precision_bounds(
    llpauc: npt.ArrayLike | None = None,
    opauc: npt.ArrayLike | None = None,
    *,
    n_pos: npt.ArrayLike,
    n_neg: npt.ArrayLike,
    k: int,
    form: Form = "tight",
) -> Bounds:
    """Bounds on Precision@K; arguments as in `recall_bounds`.

    Reference: Theorem 1, Eqs. (9) and (10).

    >>> precision_bounds(10 / 36, n_pos=6, n_neg=6, k=4)
    Bounds(lower=0.5, upper=0.75)
    """
    return _bounds(llpauc, opauc, n_pos, n_neg, k, form, k)


def _bounds(
    llpauc: npt.ArrayLike | None,
    opauc: npt.ArrayLike | None,
    n_pos: npt.ArrayLike,
    n_neg: npt.ArrayLike,
    k: int,
    form: Form,
    denominator: npt.ArrayLike,
) -> Bounds:
    areas = {"llpauc": llpauc, "opauc": opauc}
    hits = [_hits(a, kind, n_pos, n_neg, k, form) for kind, a in areas.items() if a is not None]
    if not hits:
        raise InputError("give llpauc, opauc or both")
    lower = np.maximum.reduce([least for least, _ in hits])
    upper = np.minimum.reduce([most for _, most in hits])
    below = np.where(np.isnan(lower), 1, denominator)
    if lower.ndim == 0:
        return Bounds(float(lower / below), float(upper / below))
    return Bounds(lower / below, upper / below)


def _hits(
    area: npt.ArrayLike, kind: str, n_pos: npt.ArrayLike, n_neg: npt.ArrayLike, k: int, form: Form
) -> tuple[Floats, Floats]:
    """Least and most positives in the top K; NaN where the area is NaN."""
    check_at_least("k", k, 1)
    choose(dict.fromkeys(get_args(Form)), form, "form")
    areas, raw_pos, raw_neg = np.broadcast_arrays(np.asarray(area, np.float64), n_pos, n_neg)
    known = ~np.isnan(areas)
    pos = _at_least_one("n_pos", np.where(known, raw_pos, k))
    neg = _at_least_one("n_neg", np.where(known, raw_neg, k))
    if form != "tight" and np.any(neg < k):
        raise InputError(
            f"the printed bounds need n_neg >= k, got n_neg {neg.min()} with k {k}; use form "
            f"'tight', which does not"
        )
    length = np.minimum(k, pos + neg)  # no list is longer than the catalogue
    lack = np.maximum(0, length - neg)
    reachable = np.minimum(length, pos)
    most_won = (reachable if kind == "llpauc" else pos) * np.minimum(k, neg)
    count = _whole(kind, areas, pos * neg, most_won, known)
    # The paper's formula has K positives, also where there are fewer.
    counted = reachable if form == "tight" else length
    if kind == "opauc":
        counted = pos
    # Where i (length + counted - i) - counted lack = count, and where i (i - lack) = count. These
    # can be rounded directly: IEEE's sqrt is correctly rounded, so below 2^53 (lists of up to 10^7
    # items) the root of a whole number is never on the wrong side of a whole number.
    total = length + counted
    least = (total - np.sqrt(total * total - 4 * (count + counted * lack))) / 2
    most = (lack + np.sqrt(lack * lack + 4 * count)) / 2
    if form == "tight":
        least, most = np.maximum(np.ceil(least), lack), np.minimum(np.floor(most), reachable)
    elif form == "printed":
        least, most = np.floor(least), np.ceil(most)
    return np.where(known, least, np.nan), np.where(known, most, np.nan)


def _at_least_one(name: str, given: npt.NDArray[Any]) -> Counts:
    whole: Counts = given.astype(np.int64)
    wrong = (whole != given) | (whole < 1)
    if wrong.any():
        raise InputError(
            f"{name} must be a whole number of at least 1, got {given[wrong][0]}; give NaN as the "
            f"area of a user who has none"
        )
    return whole


def _whole(
    kind: str, areas: Floats, pairs: Counts, most: Counts, known: npt.NDArray[np.bool_]
) -> Counts:
    won = np.where(known, areas, 0.0) * pairs
    count = np.rint(won)
    wrong = np.abs(won - count) > _TOLERANCE * np.maximum(1.0, count)
    if wrong.any():
        raise InputError(
            f"{kind} {areas[wrong][0]} times {pairs[wrong][0]} pairs is not a whole number; "
            f"give the raw strict area of one user, not a mean, a half-tie or a normalised value"
        )
    wrong = (count < 0) | (count > most)
    if wrong.any():
        raise InputError(
            f"{kind} {areas[wrong][0]} is outside [0, {(most / pairs)[wrong][0]:.6g}], "
            f"its range at alpha = k/n_pos, beta = k/n_neg; compute it at these fractions"
        )
    return count.astype(np.int64)
