"""How much each loss loses from clean to noise training, and which loses least.

A pair of data sets has one test part. Clean trains and validates on good events only, noise on a
sample of good and bad ones. The gap is the test metric after clean training minus the one after
noise training. Each side chooses its setting on its own validation part, since noisy data come
with noisy validation data.

Cold users get the mean of the users' vectors and every seen item is masked, the defaults of
`Recommender` and `evaluate`; `llpauc.research.tables` follows the paper's protocol.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from llpauc.report.document import bullet_list, markdown_table
from llpauc.research import plots
from llpauc.research.cells import Result, Study
from llpauc.research.datasets import VARIANTS
from llpauc.research.paper import PAPER, expand
from llpauc.research.report_files import MeanSd, Report, Row, setting_text, short
from llpauc.research.trainings import Setting, seed_values, seeded_cells

METRICS = {"recall@20": "Recall@20", "ndcg@20": "NDCG@20"}
PLOTTED = "ndcg@20"
ALPHAS: list[float] = PAPER["noise"]["alphas"]
_BASES: dict[str, Setting] = PAPER["noise"]["bases"]
METHODS: dict[str, list[Setting]] = {
    name: expand({**_BASES[method["base"]], **{k: v for k, v in method.items() if k != "base"}})
    for name, method in PAPER["noise"]["methods"].items()
}
# The study asks which of these loses least. "LLPAUC" chooses its alpha too.
LOSSES = [name for name, settings in METHODS.items() if "loss" in settings[0]]


def _with_alpha(alpha: float) -> str:
    return f"LLPAUC, alpha {alpha:g}"


@dataclass(frozen=True)
class Comparison:
    """One method on both sides of a pair."""

    pair: str  # such as adressa
    method: str  # a name of `METHODS`, or LLPAUC with a fixed alpha
    settings: Mapping[str, Setting]  # variant -> what its validation chose
    results: Mapping[str, Sequence[Result]]  # variant -> one per seed

    def values(self, variant: str, metric: str, group: str = "all") -> list[float]:
        return seed_values(self.results[variant], metric, group)

    def mean(self, variant: str, metric: str, group: str = "all") -> MeanSd:
        return MeanSd.of(self.values(variant, metric, group))

    def lost(self, metric: str, group: str = "all") -> MeanSd:
        """Clean minus noise, seed by seed."""
        pairs = zip(*(self.values(v, metric, group) for v in VARIANTS), strict=True)
        return MeanSd.of([clean - noise for clean, noise in pairs])

    def fraction_lost(self, metric: str, group: str = "all") -> MeanSd:
        """The same as a fraction of the clean value."""
        pairs = zip(*(self.values(v, metric, group) for v in VARIANTS), strict=True)
        return MeanSd.of([(clean - noise) / clean if clean else 0.0 for clean, noise in pairs])


def noise_gap(study: Study) -> Report:
    """Every loss, popularity and EASE, clean against noise."""
    pairs = study.require_pairs(PAPER["noise"]["pairs"])
    by_pair = {pair: compare(pair, study) for pair in pairs}
    parts = []
    for pair, methods in by_pair.items():
        parts += [f"## {pair}", _sizes(pair, study), _table(methods), bullet_list(remarks(methods))]
        if any("cold" in result["test"] for result in methods[0].results["clean"]):
            parts += ["Users with a training event only:", _table(methods, "warm")]
    every = [method for methods in by_pair.values() for method in methods]
    parts += ["## Over all pairs", bullet_list(averages(every))]
    panels = {
        pair: {f"{v} training": {m.method: m.mean(v, PLOTTED) for m in some} for v in VARIANTS}
        for pair, some in by_pair.items()
    }
    changes = {
        pair: [f"{-m.fraction_lost(PLOTTED).mean:+.1%}" for m in methods]
        for pair, methods in by_pair.items()
    }
    title = "Clean and noise training, with the change caused by noise"
    figure = plots.bars(panels, f"{METRICS[PLOTTED]}, all users", title, texts=changes)
    rows = [row for method in every for row in _csv_rows(method)]
    seeds = ", ".join(map(str, study.seeds))
    return Report.of("table-noise-gap", parts, rows, figure, seeds=seeds)


def compare(pair: str, study: Study) -> list[Comparison]:
    """Choose the settings of every method on both sides, and run all seeds."""
    chosen = {variant: _choose(study, f"{pair}-{variant}") for variant in VARIANTS}
    results = study.grouped_results(
        {
            (variant, name): seeded_cells(study, f"{pair}-{variant}", setting)
            for variant in VARIANTS
            for name, setting in chosen[variant].items()
        }
    )
    return [
        Comparison(
            pair,
            name,
            {v: chosen[v][name] for v in VARIANTS},
            {v: results[v, name] for v in VARIANTS},
        )
        for name in chosen["clean"]
    ]


def _choose(study: Study, data: str) -> dict[str, Setting]:
    """Each method's setting by validation with the first seed; LLPAUC for every alpha as well."""

    def best(methods: Mapping[str, Sequence[Setting]]) -> dict[str, Setting]:
        return study.choose_best(
            {
                name: [
                    (setting, seeded_cells(study, data, setting)[:1])
                    for setting in (settings[:1] if study.quick else settings)
                ]
                for name, settings in methods.items()
            }
        )

    chosen = best(METHODS)
    llpauc = chosen.pop("LLPAUC")
    by_alpha = {_with_alpha(alpha): {**llpauc, "alpha": alpha} for alpha in ALPHAS}
    return {**chosen, **best({"LLPAUC": list(by_alpha.values())}), **by_alpha}


def _setting(setting: Setting) -> str:
    """What a method could choose, in words."""
    shown = ("alpha", "beta", "temperature", "max_dropped", "power", "regularization", "lr")
    return setting_text({name: setting[name] for name in shown if name in setting}) or "-"


def _table(methods: Sequence[Comparison], group: str = "all") -> str:
    header = ["method", "chosen, clean", "chosen, noise"]
    for title in METRICS.values():
        header += [f"{title} clean", "noise", "lost", "lost, %"]
    lines = []
    for m in methods:
        line = [m.method, *(_setting(m.settings[variant]) for variant in VARIANTS)]
        for metric in METRICS:
            line += [str(m.mean(variant, metric, group)) for variant in VARIANTS]
            line += [str(m.lost(metric, group)), _percent(m.fraction_lost(metric, group))]
        lines.append(line)
    return markdown_table(header, lines)


def _percent(fraction: MeanSd) -> str:
    return f"{100 * fraction.mean:.1f}" + ("" if not fraction.sd else f" ± {100 * fraction.sd:.1f}")


def _csv_rows(m: Comparison) -> list[Row]:
    rows = []
    for group in ("all", "warm"):
        for metric in METRICS:
            row: Row = {"data": m.pair, "method": m.method, "users": group, "metric": metric}
            row["seeds"] = len(m.results["clean"])
            row |= {f"chosen {variant}": _setting(m.settings[variant]) for variant in VARIANTS}
            means = {variant: m.mean(variant, metric, group) for variant in VARIANTS}
            means["lost"] = m.lost(metric, group)
            means["fraction lost"] = m.fraction_lost(metric, group)
            for name, mean in means.items():
                row |= {name: f"{mean.mean:.6f}", f"{name} sd": f"{mean.sd or 0.0:.6f}"}
            rows.append(row)
    return rows


def remarks(methods: Sequence[Comparison]) -> list[str]:
    """What the numbers of one pair show, in words."""
    lines = []
    losses = [m for m in methods if m.method in LOSSES]
    popularity = {m.method: m for m in methods}["popularity"]
    for metric, title in METRICS.items():
        best = max(losses, key=lambda m: m.mean("noise", metric).mean)
        gap = best.mean("noise", metric).mean - popularity.mean("noise", metric).mean
        lines.append(
            f"{title} after noise training: {best.method} is the best of the losses"
            f" ({best.mean('noise', metric)}), {short(abs(gap))}"
            f" {'above' if gap > 0 else 'below'} popularity."
        )
        order = sorted(losses, key=lambda m: m.fraction_lost(metric).mean)
        place = next(i for i, m in enumerate(order, 1) if m.method == "LLPAUC")
        least, ours, simple = (
            _percent(m.fraction_lost(metric)) for m in (order[0], order[place - 1], popularity)
        )
        lines.append(
            f"{title}: {order[0].method} loses least ({least} %); LLPAUC is number {place} of"
            f" {len(order)} ({ours} %); popularity, which fits nothing, loses {simple} %."
        )
        lines.append(alpha_remark(methods, metric))
    usable = max(losses, key=lambda m: fmean(r["valid"] for r in m.results["noise"]))
    values = " / ".join(str(usable.mean("noise", metric)) for metric in METRICS)
    lines.append(
        f"Noisy validation would choose {usable.method} ({_setting(usable.settings['noise'])})"
        f" of the losses: {values} on test."
    )
    return lines


def alpha_remark(methods: Sequence[Comparison], metric: str) -> str:
    """Whether a bound on TPR is worth more under noise than on clean data."""
    by_alpha = {a: next(m for m in methods if m.method == _with_alpha(a)) for a in ALPHAS}
    lost = {alpha: m.fraction_lost(metric) for alpha, m in by_alpha.items()}
    unbounded = lost[1.0]
    if unbounded.sd is None:
        words = ["a single seed does not separate a difference from chance"]
    else:
        less = [alpha for alpha, fraction in lost.items() if _clearly_below(fraction, unbounded)]
        more = [alpha for alpha, fraction in lost.items() if _clearly_below(unbounded, fraction)]
        words = [
            f"{verb} than alpha 1 by more than the deviation of the seeds:"
            f" {', '.join(f'{alpha:g}' for alpha in alphas)}"
            for verb, alphas in (("loses less", less), ("loses more", more))
            if alphas
        ] or ["no bound on TPR differs from alpha 1 by more than the deviation of the seeds"]
    best = max(by_alpha, key=lambda alpha: by_alpha[alpha].mean("noise", metric).mean)
    percents = ", ".join(f"alpha {a:g} {_percent(fraction)}" for a, fraction in lost.items())
    return (
        f"{METRICS[metric]}, LLPAUC, lost in %: {percents}; {'; '.join(words)}. Best after noise"
        f" training: alpha {best:g} ({by_alpha[best].mean('noise', metric)}; alpha 1"
        f" {by_alpha[1.0].mean('noise', metric)})."
    )


def _clearly_below(one: MeanSd, other: MeanSd) -> bool:
    """Whether a mean is lower by more than the sum of both standard deviations."""
    return other.mean - one.mean > (one.sd or 0.0) + (other.sd or 0.0)


def averages(methods: Sequence[Comparison]) -> list[str]:
    """Over all pairs: the mean fraction lost, and the value after noise training."""
    pairs = list(dict.fromkeys(m.pair for m in methods))
    lines = []
    for metric, title in METRICS.items():
        best = {
            pair: max(m.mean("noise", metric).mean for m in methods if m.pair == pair)
            for pair in pairs
        }
        lost, left = {}, {}
        for name in LOSSES:
            some = [m for m in methods if m.method == name]
            lost[name] = fmean(m.fraction_lost(metric).mean for m in some)
            left[name] = fmean(m.mean("noise", metric).mean / best[m.pair] for m in some)
        order = ", ".join(f"{name} {lost[name]:.1%}" for name in sorted(lost, key=lost.__getitem__))
        lines.append(f"{title}, mean fraction lost over {', '.join(pairs)}: {order}.")
        order = ", ".join(f"{n} {left[n]:.1%}" for n in sorted(left, key=lambda n: -left[n]))
        lines.append(
            f"{title} after noise training, as a fraction of the best row of the pair: {order}."
        )
    return lines


def _sizes(pair: str, study: Study) -> str:
    clean, noise = (study.split(f"{pair}-{variant}") for variant in VARIANTS)
    counts = [
        {"users": split.n_users, "items": split.n_items}
        | {f"{part} events": len(split.parts[part]) for part in clean.parts}
        for split in (clean, noise)
    ]
    changes = [f"{what} {counts[0][what]:,} → {counts[1][what]:,}" for what in counts[0]]
    return f"Clean → noise: {', '.join(changes)}."
