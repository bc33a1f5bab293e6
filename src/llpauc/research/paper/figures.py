"""The paper's figures, made again; each reads its cells and draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from llpauc.errors import InputError
from llpauc.metrics import llpauc_score
from llpauc.research.cells import Cell
from llpauc.research.lab import Lab
from llpauc.research.paper import datasets
from llpauc.research.paper.settings import ALPHA_BETA, ALPHAS, BETAS, PAPER, Setting
from llpauc.research.paper.tables import NAMES
from llpauc.research.paper.training_cells import GROUPS, choose_settings, spread, training
from llpauc.research.plots import paper as pictures
from llpauc.research.report import Report, Row, bullet_list, markdown_table
from llpauc.research.spread import Spread, short

FAMILIES = ("adressa", "ml-100k", "yelp", "amazon-book")
CURVES = ("llpauc", "bpr", "bce", "sce")
CUTS = ("recall@20", "recall@50", "recall@100")


def ablation(lab: Lab) -> Report:
    """AUC, OPAUC and LLPAUC, clean and noise: what each bound adds."""
    sets = _sets(lab, "adressa", ("clean", "noise"))
    share = ALPHA_BETA["adressa"]
    losses: dict[str, tuple[str, Setting]] = {
        "AUC": ("auc", {}),
        "OPAUC": ("opauc", {"beta": share["beta"]}),
        "LLPAUC": ("llpauc", share),
    }
    cells = {
        (data, name): [training(data, loss, seed, **setting) for seed in lab.seeds]
        for data in sets
        for name, (loss, setting) in losses.items()
    }
    results = lab.results([cell for some in cells.values() for cell in some])
    rows: list[Row] = []
    bars: dict[str, dict[str, Spread]] = {data: {} for data in sets}
    remarks = []
    for (data, name), some in cells.items():
        found = [results[cell] for cell in some]
        bars[data][name] = spread(found, "recall@20")
        for group in GROUPS:
            for metric in ("recall@20", "ndcg@20"):
                value = spread(found, metric, group)
                rows.append(
                    {"data": data, "optimised": name, "users": group, "metric": metric,
                     "mean": f"{value.mean:.6f}", "sd": f"{value.sd or 0:.6f}"}
                )  # fmt: skip
    for data, own in bars.items():
        order = sorted(own, key=lambda name: -own[name].mean)
        remarks.append(f"{data}, Recall@20 of all users: " + " > ".join(
            f"{name} {own[name]}" for name in order))  # fmt: skip
    if len(sets) > 1:
        clean, noise = sets
        for name in losses:
            lost = 1 - bars[noise][name].mean / bars[clean][name].mean
            remarks.append(f"{name} loses {lost:.1%} from clean to noise.")
    table = markdown_table(
        ["data", "optimised", "users", "Recall@20", "NDCG@20"],
        [
            [data, name, group, *[str(spread([results[c] for c in some], metric, group))
                                  for metric in ("recall@20", "ndcg@20")]]
            for (data, name), some in cells.items()
            for group in GROUPS
        ],
    )  # fmt: skip
    lowest = 0.9 * min(s.mean for own in bars.values() for s in own.values())
    figure = pictures.bars(bars, "Recall@20, all users (axis cut)", "What the bounds add", lowest)
    said = (
        f"MF, the paper's protocol; OPAUC has LLPAUC's beta ({share['beta']}), LLPAUC alpha"
        f" {share['alpha']}: one loss with its bounds taken away one by one. Mean ± standard"
        f" deviation of {len(lab.seeds)} seeds."
    )
    parts = [said, table, bullet_list(remarks)]
    return Report("figure-ablation", "Ablation: AUC, OPAUC, LLPAUC", parts, rows, figure,
                  "Recall@20 of AUC, OPAUC, LLPAUC")  # fmt: skip


def hyper(lab: Lab) -> Report:
    """Normalised Recall@20, @50, @100 over the grid of alpha and beta."""
    (data,) = _sets(lab, "adressa", ("clean",))
    step_a, step_b = (3, 4) if lab.quick else (1, 1)
    alphas, betas = (*ALPHAS, 1.0)[::step_a], (*BETAS, 1.0)[::step_b]
    seeds = lab.seeds
    cells = {
        (a, b): [training(data, "llpauc", seed, alpha=a, beta=b) for seed in seeds]
        for a in alphas
        for b in betas
    }
    results = lab.results([cell for some in cells.values() for cell in some])
    maps, rows, remarks = {}, [], []
    for cut in CUTS:
        raw = np.array(
            [[spread([results[c] for c in cells[a, b]], cut).mean for b in betas] for a in alphas]
        )
        low, high = float(raw.min()), float(raw.max())
        i, j = np.unravel_index(int(raw.argmax()), raw.shape)
        name = cut.replace("recall", "Recall")
        maps[f"{name}: {low:.4f} to {high:.4f}"] = (raw - low) / max(high - low, 1e-12)
        auc, opauc = float(raw[-1, -1]), float(raw[-1].max())
        remarks.append(
            f"{name}: best {high:.4f} at alpha {alphas[i]:g}, beta {betas[j]:g}; the edge of OPAUC"
            f" (alpha 1) reaches {opauc:.4f} at beta {betas[int(raw[-1].argmax())]:g}, AUC"
            f" {auc:.4f}; worst {low:.4f}."
        )
        rows += [
            {"alpha": a, "beta": b, "metric": cut, "mean": f"{raw[x, y]:.6f}",
             "normalised": f"{(raw[x, y] - low) / max(high - low, 1e-12):.4f}", "seeds": len(seeds)}
            for x, a in enumerate(alphas) for y, b in enumerate(betas)
        ]  # fmt: skip
    figure = pictures.heat_maps(maps, alphas, betas, f"Normalised Recall@K on {data}")
    said = (
        f"MF on {data}, the paper's protocol, all users, mean of {len(seeds)} seed(s) a cell. These"
        " are test figures over the whole grid, as in the paper: they show the shape, and choose"
        " nothing."
    )
    return Report("figure-hyper", "Recall@K over alpha and beta", [said, bullet_list(remarks)],
                  rows, figure, "Recall@20, @50, @100 over alpha and beta")  # fmt: skip


def robustness(lab: Lab) -> Report:
    """Recall@20 over alpha at a fixed beta, clean against noise."""
    families = datasets.both_sides(FAMILIES, lab.available, lab.data)
    alphas = (0.3, 0.7, 1.0) if lab.quick else (0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
    panels: dict[str, dict[str, tuple[Sequence[float], Sequence[Spread]]]] = {}
    rows: list[Row] = []
    remarks = []
    for family in families:
        beta = ALPHA_BETA.get(family, {"beta": 0.1})["beta"]
        cells = {
            (variant, a): [training(f"{family}-{variant}", "llpauc", seed, alpha=a, beta=beta)
                           for seed in lab.seeds]
            for variant in ("clean", "noise") for a in alphas
        }  # fmt: skip
        results = lab.results([cell for some in cells.values() for cell in some])
        panel: dict[str, tuple[Sequence[float], Sequence[Spread]]] = {}
        for variant in ("clean", "noise"):
            found = [[results[c] for c in cells[variant, a]] for a in alphas]
            all_users = [spread(some, "recall@20") for some in found]
            panel[variant] = (alphas, all_users)
            best = max(range(len(alphas)), key=lambda x: all_users[x].mean)
            by_valid = max(
                range(len(alphas)), key=lambda x: np.mean([r["valid"] for r in found[x]])
            )
            remarks.append(
                f"{family}, {variant}: best at alpha {alphas[best]:g} ({all_users[best]}); alpha 1"
                f" (OPAUC) {all_users[-1]}; validation would choose alpha {alphas[by_valid]:g}."
            )
            rows += [
                {"data": f"{family}-{variant}", "alpha": a, "beta": beta,
                 "recall@20": f"{s.mean:.6f}", "sd": f"{s.sd or 0:.6f}",
                 "warm recall@20": f"{spread(some, 'recall@20', 'warm users').mean:.6f}"}
                for a, s, some in zip(alphas, all_users, found, strict=True)
            ]  # fmt: skip
        panels[f"{family}, beta {beta:g}"] = panel
    figure = pictures.curves(panels, "alpha", "Recall@20, all users", "Clean against noise")
    said = f"MF, the paper's protocol, mean and standard deviation of {len(lab.seeds)} seed(s)."
    return Report("figure-robustness", "Alpha, clean against noise", [said, bullet_list(remarks)],
                  rows, figure, "Recall@20 over alpha, clean and noise")  # fmt: skip


def convergence(lab: Lab) -> Report:
    """Validation Recall@20 after every epoch."""
    (data,) = _sets(lab, "adressa", ("clean",))
    epochs = 5 if lab.quick else 25
    rivals = choose_settings(lab, data, [loss for loss in CURVES if loss != "llpauc"])
    chosen = {"llpauc": ALPHA_BETA["adressa"], **rivals}
    cells = {
        loss: [
            training(data, loss, seed, test=False, **chosen[loss], epochs=epochs, patience=epochs)
            for seed in lab.seeds
        ]
        for loss in CURVES
    }
    results = lab.results([cell for some in cells.values() for cell in some])
    x = list(range(1, epochs + 1))
    lines: dict[str, tuple[Sequence[float], Sequence[Spread]]] = {
        NAMES[loss]: (x, [Spread.of(v) for v in zip(*[results[c]["curve"] for c in some],
                                                    strict=True)])
        for loss, some in cells.items()
    }  # fmt: skip
    remarks = []
    for name, (_, spreads) in lines.items():
        means = [s.mean for s in spreads]
        top = max(means)
        near = next(e for e, value in zip(x, means, strict=True) if value >= 0.98 * top)
        remarks.append(
            f"{name}: best {top:.4f} in epoch {means.index(top) + 1}, within 2 % of it from epoch"
            f" {near}; {means[-1]:.4f} after {epochs} epochs."
        )
    rows = [
        {"loss": name, "epoch": e, "valid recall@20": f"{s.mean:.6f}", "sd": f"{s.sd or 0:.6f}"}
        for name, (_, spreads) in lines.items() for e, s in zip(x, spreads, strict=True)
    ]  # fmt: skip
    figure = pictures.curves({data: lines}, "epoch", "validation Recall@20", "Convergence")
    said = (
        f"MF on {data}, {len(lab.seeds)} seeds, no early stopping. One epoch is"
        f" {-(-len(lab.split(data).train) // int(PAPER['batch_size'])):,} iterations."
    )
    return Report("figure-convergence", "Validation curves", [said, bullet_list(remarks)], rows,
                  figure, "Validation Recall@20 by epoch")  # fmt: skip


def noise_loss(lab: Lab) -> Report:
    """The mean BPR loss of noisy and of clean training events while BPR trains."""
    families = datasets.both_sides(FAMILIES, lab.available, lab.data)
    options = {k: PAPER[k] for k in ("dimensions", "lr", "batch_size", "negatives", "sampler")}
    epochs = 3 if lab.quick else 20
    cells = {
        f: [Cell.of("noise-loss", f"{f}-noise", clean=f"{f}-clean", loss="bpr", epochs=epochs,
                    seed=seed, **options) for seed in lab.seeds]
        for f in families
    }  # fmt: skip
    results = lab.results([cell for some in cells.values() for cell in some])
    panels: dict[str, Mapping[str, tuple[Sequence[float], Sequence[Spread]]]] = {}
    rows: list[Row] = []
    remarks = []
    for family, some in cells.items():
        found = [results[cell] for cell in some]
        x = found[0]["iterations"]
        lines = {
            kind: (x, [Spread.of(v) for v in zip(*[r[kind] for r in found], strict=True)])
            for kind in ("noisy", "clean")
        }
        panels[f"{family}: {found[0]['noisy_share']:.0%} of the training events noisy"] = lines
        gaps = [n.mean - c.mean for n, c in zip(lines["noisy"][1], lines["clean"][1], strict=True)]
        above = sum(gap > 0 for gap in gaps[1:])
        remarks.append(
            f"{family}: noisy events have the higher mean loss after {above} of {epochs} epochs;"
            f" the gap is {short(gaps[1])} after the first, {short(max(gaps))} at most,"
            f" {short(gaps[-1])} at the end."
        )
        rows += [
            {"data": f"{family}-noise", "iteration": at, "noisy": f"{n.mean:.6f}",
             "clean": f"{c.mean:.6f}"}
            for at, n, c in zip(x, lines["noisy"][1], lines["clean"][1], strict=True)
        ]  # fmt: skip
    figure = pictures.curves(
        panels, "iteration", "mean BPR loss of training events", "Noisy events are harder to fit"
    )
    said = (
        "MF with BPR under noise training. Up to 20,000 training events, each against the same 100"
        " items throughout. Noisy: in the noisy training set and in neither the clean training nor"
        " validation set."
    )
    return Report("figure-noise-loss", "The loss of noisy and of clean events",
                  [said, bullet_list(remarks)], rows, figure,
                  "Mean loss of noisy and clean events by iteration")  # fmt: skip


def roc(lab: Lab) -> Report:
    """A real user's ROC curve, with the region LLPAUC looks at."""
    (data,) = _sets(lab, "adressa", ("clean",))
    share = ALPHA_BETA["adressa"]
    setting = {**PAPER, "cold": "mean", **share}
    cell = Cell.of("roc", data, model="mf", loss="llpauc", seed=lab.seeds[0], **setting)
    found = lab.result(cell)
    n, hits = found["items"], np.array(found["hits"], int)
    labels = np.zeros(n, bool)
    labels[hits] = True
    tpr = np.concatenate([[0], np.cumsum(labels) / labels.sum()])
    fpr = np.concatenate([[0], np.cumsum(~labels) / (~labels).sum()])
    scores = -np.arange(n, dtype=float)
    alpha, beta = share["alpha"], share["beta"]
    areas = {
        name: float(llpauc_score(labels[None], scores[None], alpha=top, beta=right))
        for name, top, right in (
            ("AUC", 1.0, 1.0),
            (f"OPAUC({beta:g})", 1.0, beta),
            (f"LLPAUC({alpha:g}, {beta:g})", alpha, beta),
        )
    }
    rows: list[Row] = [
        {"fpr": f"{x:.6f}", "tpr": f"{y:.6f}"} for x, y in zip(fpr, tpr, strict=True)
    ]
    told = ", ".join(f"{name} = {value:.4f}" for name, value in areas.items())
    said = (
        f"User {found['user']} of {data}: the one with most test items among those with a training"
        f" event ({len(hits)} of {n:,} candidates). MF with LLPAUC. {told}. The areas are raw, as"
        f" in the paper: LLPAUC's greatest value is about {alpha * beta:g}."
    )
    figure = pictures.roc(fpr, tpr, alpha, beta, areas, f"User {found['user']} of {data}")
    return Report("figure-roc", "A user's ROC curve", [said], rows, figure,
                  "ROC curve with the lower left region shaded")  # fmt: skip


def _sets(lab: Lab, family: str, variants: Sequence[str]) -> list[str]:
    """The data sets of a family that are there; the first must be."""
    names = [f"{family}-{variant}" for variant in variants]
    there = [name for name in names if name in lab.available]
    if names[0] not in there:
        raise InputError(datasets.missing(names[0], lab.data))
    return there
