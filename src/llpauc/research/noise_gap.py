"""How much each loss loses from clean to noise training, and which loses least.

A pair of data sets has one test part. Clean trains and validates on good events alone, noise on a
draw from good and bad ones together. The gap is the test figure after clean training less the one
after noise training. Each side chooses its setting on its own validation part: who has noisy data
has noisy validation data too.

Cold users get the mean user's vector and every seen item is masked, as `Recommender` and `evaluate`
do it unless told otherwise; the paper's own protocol is in `llpauc.research.paper`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llpauc.evaluation.full_ranking import evaluate
from llpauc.research.cells import Cell, Result
from llpauc.research.lab import Lab
from llpauc.research.paper import datasets
from llpauc.research.paper.runners import Splits, fit_recommender
from llpauc.research.paper.settings import Setting
from llpauc.research.plots.noise import clean_against_noise
from llpauc.research.report import Report, Row, bullet_list, markdown_table, setting_text
from llpauc.research.spread import Spread, short

PAIRS = ("adressa", "ml-1m")
VARIANTS = ("clean", "noise")
METRICS = {"recall@20": "Recall@20", "ndcg@20": "NDCG@20"}
CHOSEN_BY = "ndcg@20"
ALPHAS = (1.0, 0.9, 0.7, 0.5)
MIDDLE = 0.7  # the alpha at which beta and rate are chosen, for all alphas
BETAS = (0.1, 0.3)
RATES = (0.02, 0.005)

SHARED: Setting = {
    "model": "mf", "dimensions": 64, "batch_size": 2048, "negatives": 50,
    "valid_metric": CHOSEN_BY, "epochs": 15, "patience": 3,
}  # fmt: skip
# As in the recipe `settled`: what is recommended where the events are not known to be noisy.
RECIPE: Setting = {
    **SHARED, "score": "cosine", "start": "spectral", "sampler": "shared", "negatives": 1024,
    "lr": 0.003,
}  # fmt: skip


def _grid(loss: str, *own: Setting) -> list[Setting]:
    """Every setting of a loss's own parameters at every rate."""
    return [{**SHARED, "loss": loss, "lr": rate, **some} for rate in RATES for some in own or ({},)]


METHODS: dict[str, list[Setting]] = {
    "popularity": [{"model": "popularity"}],
    "EASE": [{"model": "ease", "regularization": weight} for weight in (500.0, 2000.0)],
    "BPR": _grid("bpr"),
    "BCE": _grid("bce"),
    "SL": _grid("sl", {"temperature": 0.1}, {"temperature": 0.2}),
    "TCE": _grid("tce", {"max_dropped": 0.2}),
    "RCE": _grid("rce", {"power": 0.2}, {"power": 0.5}),
    "LLPAUC, cosine": _grid(
        "llpauc", {"alpha": MIDDLE, "beta": 0.3, "score": "cosine", "temperature": 0.25}
    ),
    "SL, recipe": [{**RECIPE, "loss": "sl", "temperature": t} for t in (0.1, 0.2)],
    "LLPAUC, recipe": [
        {
            **RECIPE,
            "loss": "llpauc",
            "solver": "per-user",
            "beta": 0.1,
            "temperature": 0.3,
            "alpha": a,
        }
        for a in ALPHAS
    ],
}
_OF_LLPAUC = _grid("llpauc", *[{"alpha": MIDDLE, "beta": beta} for beta in BETAS])
# Which of these loses least is the question. LLPAUC without a word more chooses its alpha too.
LOSSES = (*[name for name, some in METHODS.items() if "loss" in some[0]], "LLPAUC")


def _of_alpha(alpha: float) -> str:
    return f"LLPAUC, alpha {alpha:g}"


def run_gap(splits: Splits, data: str, *, seed: int, **given: Any) -> Result:
    """Fit a recommender on train; its figures on validation, which choose, and on test."""
    split, begun = splits(data), time.perf_counter()
    recommender = fit_recommender(split, seed, given)
    history = recommender.history
    seconds, scorer = time.perf_counter() - begun, recommender.scorer()
    return {
        "valid": evaluate(scorer, split, on="valid", metrics=[CHOSEN_BY]).mean(CHOSEN_BY),
        "test": evaluate(scorer, split, metrics=list(METRICS)).summary(),
        "epochs": None if history is None else history.best_epoch,
        "seconds": seconds,
    }


@dataclass(frozen=True)
class Line:
    """One method on both sides of a pair.

    Args:
        pair: a name of `PAIRS`.
        method: a name of `METHODS`.
        settings: variant -> what its validation chose.
        results: variant -> one a seed, in the order of the seeds.
    """

    pair: str
    method: str
    settings: Mapping[str, Setting]
    results: Mapping[str, Sequence[Result]]

    def values(self, variant: str, metric: str, group: str = "all") -> list[float]:
        """One a seed; where nobody is cold, warm users are all users."""
        found = [result["test"] for result in self.results[variant]]
        return [test.get(group, test["all"])[metric] for test in found]

    def spread(self, variant: str, metric: str, group: str = "all") -> Spread:
        return Spread.of(self.values(variant, metric, group))

    def lost(self, metric: str, group: str = "all") -> Spread:
        """Clean less noise, seed by seed."""
        both = [self.values(variant, metric, group) for variant in VARIANTS]
        return Spread.of([clean - noise for clean, noise in zip(*both, strict=True)])

    def share_lost(self, metric: str, group: str = "all") -> Spread:
        """What is lost, as a share of the clean figure."""
        both = [self.values(variant, metric, group) for variant in VARIANTS]
        pairs = zip(*both, strict=True)
        return Spread.of([(clean - noise) / clean if clean else 0.0 for clean, noise in pairs])

    def validates(self, variant: str) -> float:
        return Spread.of([result["valid"] for result in self.results[variant]]).mean


def noise_gap(lab: Lab) -> Report:
    """Every loss, popularity and EASE, clean against noise."""
    pairs = datasets.both_sides(PAIRS, lab.every, lab.data)
    lines = [line for pair in pairs for line in _lines(pair, lab)]
    parts = [_protocol(lab)]
    for pair in pairs:
        own = [line for line in lines if line.pair == pair]
        parts += [f"## {pair}", _sizes(pair, lab), _table(own, "all"), bullet_list(remarks(own))]
        if any("cold" in result["test"] for result in own[0].results["clean"]):
            parts += ["Users with a training event only:", _table(own, "warm")]
    parts += ["## Both sides of the question", bullet_list(_verdict(lines))]
    panels = {
        pair: {
            line.method: (
                line.spread("clean", CHOSEN_BY),
                line.spread("noise", CHOSEN_BY),
                line.share_lost(CHOSEN_BY).mean,
            )
            for line in lines
            if line.pair == pair
        }
        for pair in pairs
    }
    title = "Clean against noise training (beside: what noise changes)"
    figure = clean_against_noise(panels, f"{METRICS[CHOSEN_BY]}, all users", title)
    caption = f"{METRICS[CHOSEN_BY]} of every loss after clean and after noise training"
    rows = [row for line in lines for row in _rows(line)]
    return Report("table-noise-gap", "What noise costs", parts, rows, figure, caption)


def _lines(pair: str, lab: Lab) -> list[Line]:
    chosen = {variant: _choose(lab, f"{pair}-{variant}") for variant in VARIANTS}
    cells = {
        (variant, name): [
            _cell(f"{pair}-{variant}", setting, seed)
            for seed in (lab.seeds if "loss" in setting else lab.seeds[:1])
        ]
        for variant in VARIANTS
        for name, setting in chosen[variant].items()
    }
    results = lab.results([cell for some in cells.values() for cell in some])
    return [
        Line(
            pair,
            name,
            {variant: chosen[variant][name] for variant in VARIANTS},
            {variant: [results[cell] for cell in cells[variant, name]] for variant in VARIANTS},
        )
        for name in chosen["clean"]
    ]


def _choose(lab: Lab, data: str) -> dict[str, Setting]:
    """Each method's setting by validation with the first seed; LLPAUC for every alpha as well."""

    def best(asked: Mapping[str, Sequence[Setting]]) -> dict[str, Setting]:
        some = {name: settings[:1] if lab.quick else settings for name, settings in asked.items()}
        return lab.best(
            {
                name: [(setting, [_cell(data, setting, lab.seeds[0])]) for setting in settings]
                for name, settings in some.items()
            }
        )

    chosen = best({**METHODS, "LLPAUC": _OF_LLPAUC})
    ours = chosen.pop("LLPAUC")
    by_alpha = {_of_alpha(alpha): {**ours, "alpha": alpha} for alpha in ALPHAS}
    return {**chosen, **best({"LLPAUC": list(by_alpha.values())}), **by_alpha}


def _cell(data: str, setting: Setting, seed: int) -> Cell:
    return Cell.of("noise-gap", data, seed=seed, **setting)


def _told(setting: Setting) -> str:
    """What a method could choose, in words."""
    shown = ("alpha", "beta", "temperature", "max_dropped", "power", "regularization", "lr")
    return setting_text({name: setting[name] for name in shown if name in setting}) or "-"


def _table(lines: Sequence[Line], group: str) -> str:
    header = ["method", "chosen, clean", "chosen, noise"]
    for metric in METRICS.values():
        header += [f"{metric} clean", "noise", "lost", "lost, %"]
    rows = []
    for line in lines:
        row = [line.method, *[_told(line.settings[variant]) for variant in VARIANTS]]
        for metric in METRICS:
            row += [str(line.spread(variant, metric, group)) for variant in VARIANTS]
            row += [str(line.lost(metric, group)), _percent(line.share_lost(metric, group))]
        rows.append(row)
    return markdown_table(header, rows)


def _percent(share: Spread) -> str:
    return f"{100 * share.mean:.1f}" + ("" if not share.sd else f" ± {100 * share.sd:.1f}")


def _rows(line: Line) -> list[Row]:
    return [
        {
            "data": line.pair, "method": line.method, "users": group, "metric": metric,
            "seeds": len(line.results["clean"]),
            **{f"chosen {variant}": _told(line.settings[variant]) for variant in VARIANTS},
            **{
                name: f"{value:.6f}"
                for kind, found in (
                    ("clean", line.spread("clean", metric, group)),
                    ("noise", line.spread("noise", metric, group)),
                    ("lost", line.lost(metric, group)),
                    ("share lost", line.share_lost(metric, group)),
                )
                for name, value in ((kind, found.mean), (f"{kind} sd", found.sd or 0.0))
            },
        }
        for group in ("all", "warm")
        for metric in METRICS
    ]  # fmt: skip


def remarks(lines: Sequence[Line]) -> list[str]:
    """What the numbers of one pair say, in words."""
    said = []
    losses = [line for line in lines if line.method in LOSSES]
    popular = next(line for line in lines if line.method == "popularity")
    for metric, shown in METRICS.items():
        best = max(losses, key=lambda line: line.spread("noise", metric).mean)
        gap = best.spread("noise", metric).mean - popular.spread("noise", metric).mean
        said.append(
            f"{shown} after noise training: {best.method} is best of the losses"
            f" ({best.spread('noise', metric)}), {short(abs(gap))}"
            f" {'above' if gap > 0 else 'below'} popularity."
        )
        order = sorted(losses, key=lambda line: line.share_lost(metric).mean)
        place = next(i for i, line in enumerate(order, 1) if line.method == "LLPAUC")
        least, ours = order[0], order[place - 1]
        said.append(
            f"{shown}: {least.method} loses least ({_percent(least.share_lost(metric))} %); LLPAUC"
            f" is number {place} of {len(order)} ({_percent(ours.share_lost(metric))} %);"
            f" popularity, which fits nothing, loses {_percent(popular.share_lost(metric))} %."
        )
        said.append(_about_alpha(lines, metric))
    usable = max(losses, key=lambda line: line.validates("noise"))
    said.append(
        f"Noisy validation would pick {usable.method} ({_told(usable.settings['noise'])})"
        f" of the losses: {_both(usable, 'noise')} on test."
    )
    return said


def _both(line: Line, variant: str) -> str:
    return " / ".join(str(line.spread(variant, metric)) for metric in METRICS)


def _about_alpha(lines: Sequence[Line], metric: str) -> str:
    """Whether a bound on TPR is worth more under noise than it is on clean data."""
    own = {a: next(x for x in lines if x.method == _of_alpha(a)) for a in ALPHAS}
    lost = {alpha: line.share_lost(metric) for alpha, line in own.items()}
    told = ", ".join(f"alpha {alpha:g} {_percent(share)}" for alpha, share in lost.items())
    whole = lost[1.0]
    less = [alpha for alpha, share in lost.items() if alpha < 1 and _below(share, whole)]
    more = [alpha for alpha, share in lost.items() if alpha < 1 and _below(whole, share)]
    words = [
        f"{verb} than alpha 1 by more than the seeds' spread: {', '.join(f'{a:g}' for a in some)}"
        for verb, some in (("loses less", less), ("loses more", more))
        if some
    ] or ["no bound on TPR differs from alpha 1 by more than the seeds' spread"]
    if whole.sd is None:
        words = ["a single seed does not tell a difference from chance"]
    best = max(own, key=lambda alpha: own[alpha].spread("noise", metric).mean)
    return (
        f"{METRICS[metric]}, LLPAUC, lost in %: {told}; {'; '.join(words)}. Best after noise"
        f" training: alpha {best:g} ({own[best].spread('noise', metric)}; alpha 1"
        f" {own[1.0].spread('noise', metric)})."
    )


def _below(one: Spread, other: Spread) -> bool:
    """Whether a mean is lower by more than both standard deviations together."""
    return other.mean - one.mean > (one.sd or 0.0) + (other.sd or 0.0)


def _verdict(lines: Sequence[Line]) -> list[str]:
    """Over all pairs: what is lost on average, and where LLPAUC stands."""
    pairs = list(dict.fromkeys(line.pair for line in lines))
    said = []
    for metric, shown in METRICS.items():
        lost, left = {}, {}
        for name in LOSSES:
            own = [line for line in lines if line.method == name]
            lost[name] = sum(line.share_lost(metric).mean for line in own) / len(own)
            left[name] = sum(
                line.spread("noise", metric).mean
                / max(x.spread("noise", metric).mean for x in lines if x.pair == line.pair)
                for line in own
            ) / len(own)
        order = sorted(lost, key=lambda name: lost[name])
        told = ", ".join(f"{name} {lost[name]:.1%}" for name in order)
        said.append(f"{shown}, mean share lost over {', '.join(pairs)}: {told}.")
        order = sorted(left, key=lambda name: -left[name])
        told = ", ".join(f"{name} {left[name]:.1%}" for name in order)
        said.append(
            f"{shown} after noise training, as a share of the best row of the pair: {told}."
        )
    return said


def _protocol(lab: Lab) -> str:
    seeds = ", ".join(map(str, lab.seeds))
    return (
        "Clean training sees good events alone, noise training a draw from good and bad ones; the"
        " test events are the same (Adressa: the same pairs; MovieLens-1M: the same users, the"
        " items numbered anew). What is lost is the clean figure less the noise figure, seed by"
        " seed. It is the price of the whole change: fewer good events, bad ones among them, a"
        " noisy validation part to choose on, and a larger catalogue to rank. A method that learns"
        " little has little to lose: read what is lost beside what is left.\n\n"
        f"MF, {SHARED['dimensions']} dimensions, batch {SHARED['batch_size']:,}, Adam at"
        f" {' or '.join(f'{rate:g}' for rate in RATES)}, {SHARED['negatives']} negatives, at most"
        f" {SHARED['epochs']} epochs; SL and *LLPAUC, cosine* score by cosine, the rest by dot"
        " product. The rows *recipe* train as the recipe `settled` does: cosine, spectral start,"
        f" {RECIPE['negatives']:,} negatives shared by the batch, LLPAUC with a threshold of each"
        f" row, Adam at {RECIPE['lr']:g}. {METRICS[CHOSEN_BY]}"
        " on each side's own validation part stops, and chooses the setting (first seed). Users"
        " without a training event get the mean user's vector; seen items are masked. Mean ±"
        f" standard deviation of seeds {seeds}. LLPAUC's beta and rate are chosen at alpha"
        f" {MIDDLE:g} and serve every alpha, so that the rows *LLPAUC, alpha x* of one side differ"
        " in nothing else; *LLPAUC* is the one of them that validates best."
    )


def _sizes(pair: str, lab: Lab) -> str:
    clean, noise = (lab.split(f"{pair}-{variant}") for variant in VARIANTS)
    changes = [
        f"{what} {before:,} → {after:,}"
        for what, before, after in (
            ("users", clean.n_users, noise.n_users),
            ("items", clean.n_items, noise.n_items),
            *[(f"{part} events", len(clean.parts[part]), len(noise.parts[part]))
              for part in clean.parts],
        )
    ]  # fmt: skip
    return f"Clean → noise: {', '.join(changes)}."
