"""The paper's tables: every loss and both backbones, with what the paper left out beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from llpauc.errors import InputError
from llpauc.research.cells import Result
from llpauc.research.lab import Lab
from llpauc.research.paper import datasets
from llpauc.research.paper.published import Figure, published
from llpauc.research.paper.settings import PAPER, Setting, printed_setting
from llpauc.research.paper.training_cells import (
    GROUPS,
    baseline,
    choose_ease,
    choose_settings,
    spread,
    training,
)
from llpauc.research.plots import paper as pictures
from llpauc.research.report import Report, Row, bullet_list, markdown_table, setting_text
from llpauc.research.spread import Spread, short

CLEAN = ("bce", "bpr", "sce", "ccl", "dns", "softmax_v", "opauc", "llpauc")
NOISE = ("bce", "bpr", "sce", "tce", "rce", "dns", "softmax_v", "opauc", "llpauc")
MOVIELENS = ("bce", "bpr", "sce", "dns", "softmax_v", "llpauc")
LEARNING_TO_RANK = ("lambdarank", "ndcg_loss1", "ndcg_loss2", "arp_loss2", "llpauc")
# Indices beside those that compete: LLPAUC with the alpha and beta that the paper prints, where it
# prints them, and with the stopping rule of the authors' program.
PRINTED, AUTHORS_RULE = "llpauc-printed", "llpauc-recall@50"
NAMES = {
    "bce": "BCE", "bpr": "BPR", "sce": "SCE", "ccl": "CCL", "dns": "DNS(M, N)",
    "softmax_v": "Softmax_v(rho, N)", "opauc": "PAUCI (OPAUC)", "llpauc": "LLPAUC", "tce": "TCE",
    "rce": "RCE", "lambdarank": "LambdaRank", "ndcg_loss1": "NDCG-Loss1",
    "ndcg_loss2": "NDCG-Loss2", "arp_loss2": "ARP-Loss2", "popularity": "popularity",
    "ease": "EASE", "auc": "AUC", PRINTED: "LLPAUC, as printed",
    AUTHORS_RULE: "LLPAUC, stopped on Recall@50",
}  # fmt: skip
METRICS = ("recall@20", "ndcg@20")
BAND = 0.006  # a mean this far from the printed one is said to differ


@dataclass(frozen=True)
class Line:
    """One row of a table: a method on a data set, over all seeds."""

    data: str
    backbone: str  # "-" for models without training
    method: str
    setting: Setting
    results: Sequence[Result]
    printed: Figure | None

    def spread(self, metric: str, group: str = "all users") -> Spread:
        return spread(self.results, metric, group)


@dataclass(frozen=True)
class Plan:
    """What a table compares.

    Args:
        name: of the report, and of the published table.
        title: of the report.
        losses: data set variant -> losses.
        families: data sets the paper's table has.
        backbones: of the paper's table.
    """

    name: str
    title: str
    losses: Mapping[str, Sequence[str]]
    families: Sequence[str]
    backbones: Sequence[str] = ("mf", "lightgcn")


PLANS = [
    Plan("table1", "Table 1: clean training", {"clean": CLEAN},
         ("adressa", "yelp", "amazon-book")),
    Plan("table2", "Table 2: noise training", {"noise": NOISE},
         ("adressa", "yelp", "amazon-book")),
    Plan("table-ml100k", "MovieLens-100k, clean and noise",
         {"clean": MOVIELENS, "noise": MOVIELENS}, ("ml-100k",)),
    Plan("table-ltr", "Learning to rank against LLPAUC",
         {"clean": LEARNING_TO_RANK, "noise": LEARNING_TO_RANK}, ("adressa", "yelp"), ("mf",)),
]  # fmt: skip


def comparison(plan: Plan, lab: Lab) -> Report:
    """Train all, measure all, and say where it agrees with the print and where it does not."""
    wanted = [(f"{family}-{v}", losses) for family in plan.families
              for v, losses in plan.losses.items()]  # fmt: skip
    there = [(data, losses) for data, losses in wanted if data in lab.available]
    if not there:
        raise InputError(datasets.missing(wanted[0][0], lab.data))
    lines = [line for data, losses in there for line in _lines(plan, lab, data, losses)]
    absent = [data for data, _ in wanted if data not in lab.available]
    parts = [_protocol(lab)]
    for data, _ in there:
        own = [line for line in lines if line.data == data]
        parts += [f"## {data}", _table(own), bullet_list(_remarks(own))]
    if absent:
        parts.append(
            f"Not run: {', '.join(absent)} (the raw files are not there; `llpauc reproduce"
            f" table-datasets` says what is wanted)."
        )
    figure = pictures.compare_losses(
        {
            (line.data, line.backbone, NAMES[line.method]): (
                line.spread("recall@20"),
                line.printed.recall if line.printed else None,
            )
            for line in lines
        },
        f"{plan.title}: Recall@20, all users, the paper's protocol",
    )
    rows = [_row(line) for line in lines]
    caption = "Recall@20 of every loss beside the printed figure, popularity and EASE as lines"
    return Report(plan.name, plan.title, parts, rows, figure, caption)


def _lines(plan: Plan, lab: Lab, data: str, losses: Sequence[str]) -> list[Line]:
    chosen = choose_settings(lab, data, losses)
    printed, extra = printed_setting(data), []
    if printed is not None:
        chosen |= {PRINTED: printed, AUTHORS_RULE: {**printed, "valid_metric": "recall@50"}}
        extra = [PRINTED, AUTHORS_RULE]
    ease = choose_ease(lab, data)
    without = [baseline(data, "popularity"), baseline(data, "ease", **ease)]
    cells = {
        (backbone, method): [
            training(data, _loss(method), seed, backbone, **chosen[method]) for seed in lab.seeds
        ]
        for backbone in plan.backbones
        for method in (*losses, *extra)
        if (backbone, method) != ("lightgcn", AUTHORS_RULE)
    }
    results = lab.results([*without, *[cell for some in cells.values() for cell in some]])
    lines = [
        Line(data, "-", cell["model"], setting, [results[cell]], None)
        for cell, setting in zip(without, ({}, ease), strict=True)
    ]
    return lines + [
        Line(
            data,
            backbone,
            loss,
            {name: value for name, value in chosen[loss].items() if name != "valid_metric"},
            [results[cell] for cell in some],
            published(plan.name, data, backbone, loss),
        )
        for (backbone, loss), some in cells.items()
    ]


def _loss(method: str) -> str:
    return "llpauc" if method in (PRINTED, AUTHORS_RULE) else method


def _protocol(lab: Lab) -> str:
    seeds = ", ".join(map(str, lab.seeds))
    return (
        f"Recall@20 / NDCG@20 over all items, mean ± standard deviation of seeds {seeds}. The"
        " paper's protocol: 64 dimensions, Adam, 100 negatives from all items, batch"
        f" {PAPER['batch_size']} at rate 0.001 (LightGCN: 2,048 at 0.01, since a step costs the"
        " same), untrained vectors for users without a training event, a seen item left in the"
        " ranking where it is also a test item. Validation Recall@20 with patience"
        f" {PAPER['patience']} stops, and its mean over the seeds chooses the setting (with MF,"
        " for both backbones): for LLPAUC and OPAUC on the grids that the paper prints, whose"
        " first seed names four finalists. *Warm users* have a training event; the last column"
        " gives the others the mean user's vector. Popularity and EASE are not in the paper's"
        " table; they need no training and know no seeds."
    )


def _pair(line: Line, group: str) -> str:
    recall, ndcg = (line.spread(metric, group) for metric in METRICS)
    return f"{recall} / {ndcg}"


def _table(lines: Sequence[Line]) -> str:
    header = ["backbone", "loss", "setting", *GROUPS, "the paper, all users"]
    rows = []
    for line in lines:
        pairs = [_pair(line, group) for group in GROUPS]
        if line is _best(lines, line.backbone):
            pairs[0] = f"**{pairs[0]}**"
        printed = "-" if line.printed is None else _printed(line.printed)
        setting = setting_text(line.setting) or "-"
        rows.append([line.backbone, NAMES[line.method], setting, *pairs, printed])
    return markdown_table(header, rows)


def _printed(figure: Figure) -> str:
    recall, ndcg = Spread(figure.recall, figure.recall_sd), Spread(figure.ndcg, figure.ndcg_sd)
    return f"{recall} / {ndcg}"


def _best(lines: Sequence[Line], backbone: str) -> Line | None:
    own = _ranked(lines, backbone) if backbone != "-" else []
    return max(own, key=lambda line: line.spread("recall@20").mean) if own else None


def _ranked(lines: Sequence[Line], backbone: str) -> list[Line]:
    """The rows that compete: one a loss."""
    extra = (PRINTED, AUTHORS_RULE)
    return [line for line in lines if line.backbone == backbone and line.method not in extra]


def _remarks(lines: Sequence[Line]) -> list[str]:
    """What the numbers say, in words."""
    remarks = []
    popular = next(line for line in lines if line.method == "popularity")
    for backbone in dict.fromkeys(line.backbone for line in lines if line.backbone != "-"):
        own = _ranked(lines, backbone)
        for metric in METRICS:
            order = sorted(own, key=lambda line: -line.spread(metric).mean)
            place = next(i for i, line in enumerate(order, 1) if line.method == "llpauc")
            best = order[0] if place > 1 else order[1]
            remarks.append(
                f"{backbone}, {metric}: LLPAUC is number {place} of {len(order)};"
                f" {'the best is' if place > 1 else 'next comes'} {NAMES[best.method]} with"
                f" {best.spread(metric)} against {order[place - 1].spread(metric)}."
            )
        remarks += [
            f"{backbone}: {NAMES[PRINTED]} ({setting_text(line.setting)}):"
            f" {_pair(line, 'all users')}."
            for line in lines
            if (line.backbone, line.method) == (backbone, PRINTED)
        ]
        remarks += [
            f"{backbone}, {NAMES[line.method]}: {_difference(line)}."
            for line in own
            if _difference(line) is not None
        ]
    best_line = max((line for line in lines if line.backbone != "-"),
                    key=lambda line: line.spread("recall@20").mean)  # fmt: skip
    gap = popular.spread("recall@20").mean - best_line.spread("recall@20").mean
    verb = "above" if gap > 0 else "below"
    remarks.append(
        f"Popularity reaches {popular.spread('recall@20')}, {short(abs(gap))} {verb} the best"
        " trained row of the paper's protocol."
    )
    return remarks


def _difference(line: Line) -> str | None:
    if line.printed is None:
        return None
    gap = line.spread("recall@20").mean - line.printed.recall
    if abs(gap) <= BAND:
        return None
    way = "above" if gap > 0 else "below"
    return f"Recall@20 is {short(abs(gap))} {way} the printed {short(line.printed.recall)}"


def _row(line: Line) -> Row:
    row: Row = {
        "data": line.data, "backbone": line.backbone, "method": line.method,
        "setting": setting_text(line.setting), "seeds": len(line.results),
    }  # fmt: skip
    for group in GROUPS:
        for metric in METRICS:
            found = line.spread(metric, group)
            name = f"{metric} {group}"
            row[name] = f"{found.mean:.6f}"
            row[f"{name} sd"] = "" if found.sd is None else f"{found.sd:.6f}"
    row["printed recall@20"] = "" if line.printed is None else line.printed.recall
    row["printed ndcg@20"] = "" if line.printed is None else line.printed.ndcg
    return row
