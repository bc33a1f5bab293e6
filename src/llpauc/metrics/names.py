"""Metrics by name: `recall@20`, `auc`, `llpauc(0.7,0.1)`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from llpauc.errors import InputError, check_fraction, unknown
from llpauc.metrics.topk import TOPK_METRICS

PARTIAL_AUC_FRACTIONS: dict[str, tuple[str, ...]] = {
    "auc": (),
    "opauc": ("beta",),
    "llpauc": ("alpha", "beta"),
}
_RANK_DIGITS = 9
METRIC_NAMES: tuple[str, ...] = (
    *(f"{family}@K" for family in TOPK_METRICS),
    *(
        f"{family}({','.join(fractions).upper()})" if fractions else family
        for family, fractions in PARTIAL_AUC_FRACTIONS.items()
    ),
)


@dataclass(frozen=True)
class Metric:
    """One metric with its parameters.

    Args:
        family: a key of `TOPK_METRICS`, or "auc", "opauc", "llpauc".
        k: ranks that count; None for the partial AUCs.
        alpha: fraction of the best positives in (0, 1]; None for top-K metrics.
        beta: fraction of the best negatives in (0, 1]; None for top-K metrics.

    AUC and OPAUC have alpha = 1 (and beta = 1), so all three are LLPAUC(alpha, beta).
    """

    family: str
    k: int | None = None
    alpha: float | None = None
    beta: float | None = None

    @property
    def name(self) -> str:
        """The canonical name; `parse_metric` reads it back."""
        if self.k is not None:
            return f"{self.family}@{self.k}"
        fractions = [getattr(self, name) for name in PARTIAL_AUC_FRACTIONS[self.family]]
        inside = ",".join(repr(fraction).removesuffix(".0") for fraction in fractions)
        return f"{self.family}({inside})" if fractions else self.family


def parse_metric(name: str) -> Metric:
    """The metric of a name; case and spaces are ignored.

    >>> parse_metric("NDCG@20")
    Metric(family='ndcg', k=20, alpha=None, beta=None)
    >>> parse_metric("llpauc(0.7, 0.1)")
    Metric(family='llpauc', k=None, alpha=0.7, beta=0.1)
    >>> parse_metric("opauc(0.1)").alpha, parse_metric("auc").name
    (1.0, 'auc')
    """
    form = re.fullmatch(r"([a-z]+)(?:@(.*)|\((.*)\))?", re.sub(r"\s", "", name).lower())
    if form is None:
        raise unknown("metric", name, METRIC_NAMES)
    family, rank, inside = form.groups()
    if family in TOPK_METRICS and inside is None:
        if rank is None:
            raise InputError(f"metric {name!r} needs a rank, as in {family}@20")
        if not re.fullmatch(r"0*[1-9][0-9]*", rank):
            raise InputError(
                f"the rank in {name!r} must be a whole number of at least 1, as in {family}@20"
            )
        if len(rank) > _RANK_DIGITS:
            raise InputError(f"the rank in {name!r} has more than {_RANK_DIGITS} digits")
        return Metric(family, k=int(rank))
    if family in PARTIAL_AUC_FRACTIONS and rank is None:
        expected = PARTIAL_AUC_FRACTIONS[family]
        given = inside.split(",") if inside else []
        if len(given) != len(expected):
            need = f"{family}({','.join(expected)})" if expected else family
            raise InputError(f"metric {name!r} must be written {need}, each fraction in (0, 1]")
        fractions = {"alpha": 1.0, "beta": 1.0}
        for parameter, text in zip(expected, given, strict=True):
            try:
                value = float(text)
            except ValueError:
                raise InputError(
                    f"{parameter} of {name!r} must be a number, got {text!r}"
                ) from None
            fractions[parameter] = check_fraction(f"{parameter} of {name!r}", value)
        return Metric(family, alpha=fractions["alpha"], beta=fractions["beta"])
    raise unknown("metric", name, METRIC_NAMES)


def split_names(text: str) -> list[str]:
    """Split names at commas, except inside brackets as in `llpauc(0.7,0.1)`.

    >>> split_names("recall@20, llpauc(0.7,0.1),auc")
    ['recall@20', 'llpauc(0.7,0.1)', 'auc']
    """
    return [name.strip() for name in re.split(r",(?![^(]*\))", text)]
