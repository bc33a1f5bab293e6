"""The paper's tables: every loss with both backbones, next to the published values.

Popularity and EASE, which the paper leaves out, are added. Two more tables need no training: the
data sets, and the time of a training step of every loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from llpauc.losses import LOSSES
from llpauc.report.document import bullet_list
from llpauc.research import datasets, plots, trainings
from llpauc.research.cells import Cell, Result, Study
from llpauc.research.paper import PAPER, PUBLISHED, PublishedValue
from llpauc.research.report_files import MeanSd, Report, Row, rows_table, setting_text, short
from llpauc.research.trainings import GROUPS, PROTOCOL, Setting, training_cells

TITLES: dict[str, str] = PAPER["titles"]
# Extra rows, which are not ranked: LLPAUC with the alpha and beta that the paper prints, and with
# the stopping rule of the authors' program.
PUBLISHED_SETTING, AUTHORS_RULE = EXTRA = ("llpauc-published", "llpauc-recall@50")
METRICS = ("recall@20", "ndcg@20")
TOLERANCE = 0.006  # a mean farther than this from the published one is reported


@dataclass(frozen=True)
class TableRow:
    """A method on a data set, over all seeds; the backbone of a model without training is "-"."""

    data: str
    backbone: str
    method: str
    setting: Setting
    results: Sequence[Result]
    published: PublishedValue | None

    def mean(self, metric: str, group: str = "all users") -> MeanSd:
        return trainings.seed_mean(self.results, metric, group)

    def pair(self, group: str = "all users") -> str:
        return " / ".join(str(self.mean(metric, group)) for metric in METRICS)


def compare_losses(name: str, study: Study) -> Report:
    """Train and measure every method of a declared table, next to the published values."""
    table = PAPER["tables"][name]
    losses = {f"{f}-{v}": some for f in table["families"] for v, some in table["losses"].items()}
    rows, parts = [], []
    panels: dict[str, dict[str, dict[str, MeanSd]]] = {}
    published: dict[str, dict[str, float]] = {}
    untrained: dict[str, dict[str, float]] = {}
    present = study.require(list(losses))
    for data in present:
        of_data = _rows(name, study, data, losses[data], table["backbones"])
        parts += [f"## {data}", methods_table(of_data), bullet_list(remarks(of_data))]
        rows += of_data
        titled = {
            backbone: {TITLES[row.method]: row for row in of_data if row.backbone == backbone}
            for backbone in ("-", *table["backbones"])
        }
        lines = {title: row.mean("recall@20").mean for title, row in titled.pop("-").items()}
        for backbone, of_panel in titled.items():
            panel = f"{data}, {backbone}"
            panels[panel] = {"ours": {t: row.mean("recall@20") for t, row in of_panel.items()}}
            published[panel] = {t: r.published.recall for t, r in of_panel.items() if r.published}
            untrained[panel] = lines
    absent = [data for data in losses if data not in present]
    if absent:
        parts.append(
            f"Not run: {', '.join(absent)} (the raw files are missing; `llpauc reproduce"
            " table-datasets` lists them)."
        )
    title = f"{PAPER['reports'][name]['title']}: Recall@20, all users, the paper's protocol"
    figure = plots.bars(panels, "Recall@20", title, published=published, lines=untrained)
    seeds = ", ".join(map(str, study.seeds))
    return Report.of(name, parts, [_csv_row(row) for row in rows], figure, seeds=seeds, **PROTOCOL)


def _rows(
    table: str, study: Study, data: str, losses: Sequence[str], backbones: Sequence[str]
) -> list[TableRow]:
    # Settings: chosen on validation, and LLPAUC's published one where there is one.
    settings = trainings.choose_settings(study, data, losses)
    ease = settings.pop("ease")
    alpha_beta = trainings.published_alpha_beta(data)
    if alpha_beta is not None:
        settings |= {PUBLISHED_SETTING: alpha_beta, AUTHORS_RULE: alpha_beta}
    # Cells: one per untrained model, one per seed of a trained one.
    cells = {
        ("-", "popularity"): [trainings.baseline(data, "popularity")],
        ("-", "ease"): [trainings.baseline(data, "ease", **ease)],
    }
    for backbone, (method, setting) in product(backbones, settings.items()):
        loss = "llpauc" if method in EXTRA else method
        rule: Setting = {"valid_metric": "recall@50"} if method == AUTHORS_RULE else {}
        if (backbone, method) != ("lightgcn", AUTHORS_RULE):
            seeds = training_cells(study, data, loss, backbone, **setting, **rule)
            cells[backbone, method] = seeds
    settings |= {"popularity": {}, "ease": ease}
    return [
        TableRow(data, b, m, settings[m], results, PUBLISHED.get((table, data, b, m)))
        for (b, m), results in study.grouped_results(cells).items()
    ]


def methods_table(rows: Sequence[TableRow]) -> str:
    """A Markdown table; the best ranked row of each backbone is bold."""
    backbones = {row.backbone for row in rows if row.backbone != "-"}
    best = [max(_ranked(rows, b), key=lambda row: row.mean("recall@20").mean) for b in backbones]
    lines = []
    for row in rows:
        pairs = {group: row.pair(group) for group in GROUPS}
        if row in best:
            pairs["all users"] = f"**{pairs['all users']}**"
        means = [] if row.published is None else [row.published[:2], row.published[2:]]
        lines.append(
            {"backbone": row.backbone, "loss": TITLES[row.method]}
            | {"setting": setting_text(row.setting) or "-"}
            | pairs
            | {"the paper, all users": " / ".join(str(MeanSd(*mean)) for mean in means) or "-"}
        )
    return rows_table(lines)


def _ranked(rows: Sequence[TableRow], backbone: str) -> list[TableRow]:
    """The rows that are compared: one per loss."""
    return [row for row in rows if row.backbone == backbone and row.method not in EXTRA]


def remarks(rows: Sequence[TableRow]) -> list[str]:
    """What the numbers of a data set show, in words."""
    lines = []
    for backbone in dict.fromkeys(row.backbone for row in rows if row.backbone != "-"):
        ranked = _ranked(rows, backbone)
        for metric in METRICS:
            order = sorted(ranked, key=lambda row: -row.mean(metric).mean)
            place = next(i for i, row in enumerate(order, 1) if row.method == "llpauc")
            other, text = (order[0], "the best is") if place > 1 else (order[1], "the next is")
            lines.append(
                f"{backbone}, {metric}: LLPAUC is number {place} of {len(order)}; {text}"
                f" {TITLES[other.method]} with {other.mean(metric)} against"
                f" {order[place - 1].mean(metric)}."
            )
        lines += [
            f"{backbone}: {TITLES[row.method]} ({setting_text(row.setting)}): {row.pair()}."
            for row in rows
            if (row.backbone, row.method) == (backbone, PUBLISHED_SETTING)
        ]
        for row in ranked:
            value = row.published.recall if row.published else row.mean("recall@20").mean
            gap = row.mean("recall@20").mean - value
            if abs(gap) > TOLERANCE:
                lines.append(
                    f"{backbone}, {TITLES[row.method]}: Recall@20 is {short(abs(gap))}"
                    f" {'above' if gap > 0 else 'below'} the published {short(value)}."
                )
    popularity = {row.method: row for row in rows}["popularity"].mean("recall@20")
    gap = popularity.mean - max(row.mean("recall@20").mean for row in rows if row.backbone != "-")
    lines.append(
        f"Popularity reaches {popularity}, {short(abs(gap))} {'above' if gap > 0 else 'below'}"
        " the best trained row of the paper's protocol."
    )
    return lines


def _csv_row(row: TableRow) -> Row:
    line: Row = {"data": row.data, "backbone": row.backbone, "method": row.method}
    line |= {"setting": setting_text(row.setting), "seeds": len(row.results)}
    for group in GROUPS:
        for metric in METRICS:
            value = row.mean(metric, group)
            line[f"{metric} {group}"] = f"{value.mean:.6f}"
            line[f"{metric} {group} sd"] = "" if value.sd is None else f"{value.sd:.6f}"
    line["published recall@20"] = "" if row.published is None else row.published.recall
    line["published ndcg@20"] = "" if row.published is None else row.published.ndcg
    return line


def dataset_table(study: Study) -> Report:
    """The paper's table of data sets, and what it leaves out."""
    rows: list[Row] = []
    cold: dict[str, float] = {}
    for name in study.require(datasets.PAPER_DATASETS):
        counts = datasets.statistics(study.split(name))
        cold[name] = 100 * counts["cold test users"]
        sizes = PAPER["sizes"].get(name)
        duplicates = [f"{part} {n}" for part, n in counts["duplicates"].items() if n]
        rows.append(
            {"data": name}
            | {column: counts[column] for column in ("users", "items", "interactions")}
            | {
                "sparsity": f"{counts['sparsity']:.2%}",
                "the paper": "{:,} / {:,} / {:,} / {:.2%}".format(*sizes) if sizes else "-",
                "test users": counts["test users"],
                "of them cold": f"{counts['cold test users']:.1%}",
                "duplicates": ", ".join(duplicates) or "none",
            }
            | {column: counts[column] for column in ("test pairs also in train", "also in valid")}
        )
    parts = [rows_table(rows)]
    absent = [
        datasets.missing_message(name, study.data).replace(f"{study.data}/", "")
        for name in datasets.PAPER_DATASETS
        if name not in study.available
    ]
    if absent:
        parts.append(bullet_list([line.split("; available")[0] for line in absent]))
    figure = _sorted_bars(cold, "test users without a training event, %", "Cold users")
    return Report.of("table-datasets", parts, rows, figure)


def step_time_table(study: Study) -> Report:
    """Time of one training step of every loss, in turns within one process."""
    data = study.require(datasets.PAPER_DATASETS)[0]
    shape = {k: PROTOCOL[k] for k in ("dimensions", "batch_size", "negatives", "sampler")}
    rounds = {"batches": 20, "rounds": 3} if study.quick else {"batches": 100, "rounds": 9}
    options = {"losses": ",".join(LOSSES), "seed": study.seeds[0], **rounds, **shape}
    seconds = study.result(Cell.of(trainings.run_step_time, data, **options))
    rows: list[Row] = [
        {
            "loss": name,
            "milliseconds a step": f"{1e3 * value:.3f}",
            "to BPR": f"{value / seconds['bpr']:.2f}",
        }
        for name, value in sorted(seconds.items(), key=lambda pair: pair[1])
    ]
    times = {name: 1e3 * value for name, value in seconds.items()}
    figure = _sorted_bars(times, "milliseconds a step", "Time of a training step, by loss")
    return Report.of("table-complexity", [rows_table(rows)], rows, figure, data=data, **shape)


def _sorted_bars(values: Mapping[str, float], x_label: str, title: str) -> Any:
    ordered = sorted(values.items(), key=lambda pair: pair[1])
    bars = {name: MeanSd(value, None) for name, value in ordered}
    texts = [f"{value:.2f}" for _, value in ordered]
    return plots.bars({"": {"": bars}}, x_label, title, texts={"": texts})
