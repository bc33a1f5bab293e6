"""The paper's figures: each runs its cells, draws, and describes the numbers in words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from llpauc.metrics import llpauc_score
from llpauc.recommend.recipes import PAPER_GRID
from llpauc.report.document import bullet_list
from llpauc.research import plots
from llpauc.research.cells import Cell, Study
from llpauc.research.datasets import VARIANTS
from llpauc.research.report_files import MeanSd, Report, Row, rows_table, short
from llpauc.research.tables import TITLES
from llpauc.research.trainings import (
    ALPHA_BETA,
    GROUPS,
    PROTOCOL,
    Setting,
    published_alpha_beta,
    run_noise_loss,
    run_perturbed_models,
    run_roc,
    seed_mean,
    training_cells,
)

Floats = npt.NDArray[np.float64]

FAMILIES = ("adressa", "ml-100k", "yelp", "amazon-book")


def ablation(study: Study) -> Report:
    """AUC, OPAUC and LLPAUC, clean and noise: what each bound adds."""
    names = study.require(("adressa-clean", "adressa-noise"))
    alpha, beta = (ALPHA_BETA["adressa"][name] for name in ("alpha", "beta"))
    losses: dict[str, Setting] = {
        "AUC": {},
        "OPAUC": {"beta": beta},
        "LLPAUC": {"alpha": alpha, "beta": beta},
    }
    cells = {
        (data, name): training_cells(study, data, name.lower(), **setting)
        for data in names
        for name, setting in losses.items()
    }
    rows: list[Row] = []
    lines: list[Row] = []
    bars: dict[str, dict[str, MeanSd]] = {data: {} for data in names}
    for (data, name), results in study.grouped_results(cells).items():
        bars[data][name] = seed_mean(results, "recall@20")
        for group in GROUPS:
            row = {"data": data, "optimised": name, "users": group}
            recall, ndcg = (seed_mean(results, m, group) for m in ("recall@20", "ndcg@20"))
            lines.append(row | {"Recall@20": recall, "NDCG@20": ndcg})
            rows += [row | {"metric": "recall@20"} | _columns(recall)]
            rows += [row | {"metric": "ndcg@20"} | _columns(ndcg)]
    remarks = []
    for data, means in bars.items():
        order = sorted(means, key=lambda name: -means[name].mean)
        ordered = " > ".join(f"{name} {means[name]}" for name in order)
        remarks.append(f"{data}, Recall@20 of all users: {ordered}")
    if len(names) > 1:
        clean, noise = bars.values()
        remarks += [
            f"{name} loses {1 - noise[name].mean / clean[name].mean:.1%} from clean to noise."
            for name in losses
        ]
    figure = plots.bars(
        {data: {"": means} for data, means in bars.items()},
        "Recall@20, all users (axis cut)",
        "What the bounds add",
        texts={data: [f"{m.mean:.4f}" for m in means.values()] for data, means in bars.items()},
        left=0.9 * min(mean.mean for means in bars.values() for mean in means.values()),
    )
    parts = [rows_table(lines), bullet_list(remarks)]
    values = {"alpha": alpha, "beta": beta, "n_seeds": len(study.seeds)}
    return Report.of("figure-ablation", parts, rows, figure, **values)


def alpha_beta_grid(study: Study) -> Report:
    """Normalized Recall@20, @50, @100 over the grid of alpha and beta."""
    (data,) = study.require(("adressa-clean",))
    alphas = [*PAPER_GRID["alpha"], 1.0][:: 3 if study.quick else 1]
    betas = [*PAPER_GRID["beta"], 1.0][:: 4 if study.quick else 1]
    results = study.grouped_results(
        {
            (a, b): training_cells(study, data, "llpauc", alpha=a, beta=b)
            for a in alphas
            for b in betas
        }
    )
    maps: dict[str, Floats] = {}
    rows: list[Row] = []
    remarks = []
    for metric in ("recall@20", "recall@50", "recall@100"):
        means = np.array([[seed_mean(results[a, b], metric).mean for b in betas] for a in alphas])
        low, high = float(means.min()), float(means.max())
        normalized = (means - low) / max(high - low, 1e-12)
        i, j = np.unravel_index(int(means.argmax()), means.shape)
        name = metric.capitalize()
        maps[f"{name}: {low:.4f} to {high:.4f}"] = normalized
        opauc = means[-1]
        remarks.append(
            f"{name}: best {high:.4f} at alpha {alphas[i]:g}, beta {betas[j]:g}; the edge of OPAUC"
            f" (alpha 1) reaches {opauc.max():.4f} at beta {betas[int(opauc.argmax())]:g}, AUC"
            f" {opauc[-1]:.4f}; worst {low:.4f}."
        )
        for (i, j), mean in np.ndenumerate(means):
            row: Row = {"alpha": alphas[i], "beta": betas[j], "metric": metric}
            row |= {"mean": f"{mean:.6f}", "normalised": f"{normalized[i, j]:.4f}"}
            rows.append(row | {"seeds": len(study.seeds)})
    figure = plots.heat_maps(maps, alphas, betas, f"Normalized Recall@K on {data}")
    values = {"data": data, "n_seeds": len(study.seeds)}
    return Report.of("figure-hyper", [bullet_list(remarks)], rows, figure, **values)


def robustness(study: Study) -> Report:
    """Recall@20 over alpha at a fixed beta, clean against noise."""
    families = study.require_pairs(FAMILIES)
    alphas = (0.3, 0.7, 1.0) if study.quick else (0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
    betas = {f: ALPHA_BETA.get(f, {"beta": 0.1})["beta"] for f in families}
    results = study.grouped_results(
        {
            (f, v, a): training_cells(study, f"{f}-{v}", "llpauc", alpha=a, beta=betas[f])
            for f in families
            for v in VARIANTS
            for a in alphas
        }
    )
    panels: dict[str, dict[str, tuple[Sequence[float], Sequence[MeanSd]]]] = {}
    rows: list[Row] = []
    remarks = []
    for family, beta in betas.items():
        panel = panels[f"{family}, beta {beta:g}"] = {}
        for variant in VARIANTS:
            by_alpha = {a: results[family, variant, a] for a in alphas}
            means = {a: seed_mean(some, "recall@20") for a, some in by_alpha.items()}
            panel[variant] = (alphas, list(means.values()))
            best = max(alphas, key=lambda a: means[a].mean)
            by_valid = max(alphas, key=lambda a: np.mean([r["valid"] for r in by_alpha[a]]))
            remarks.append(
                f"{family}, {variant}: best at alpha {best:g} ({means[best]}); alpha 1"
                f" (OPAUC) {means[1.0]}; validation would choose alpha {by_valid:g}."
            )
            for a, some in by_alpha.items():
                warm = seed_mean(some, "recall@20", "warm users")
                row: Row = {"data": f"{family}-{variant}", "alpha": a, "beta": beta}
                row |= _columns(means[a], "recall@20")
                rows.append(row | {"warm recall@20": f"{warm.mean:.6f}"})
    figure = plots.curves(panels, "alpha", "Recall@20, all users", "Clean against noise")
    values = {"n_seeds": len(study.seeds)}
    return Report.of("figure-robustness", [bullet_list(remarks)], rows, figure, **values)


def convergence(study: Study) -> Report:
    """Validation Recall@20 after every epoch."""
    (data,) = study.require(("adressa-clean",))
    epochs = 5 if study.quick else 25
    limits: Setting = {"test": False, "epochs": epochs, "patience": epochs}
    settings = {"llpauc": ALPHA_BETA["adressa"], "bpr": {}, "bce": {}, "sce": {}}
    results = study.grouped_results(
        {loss: training_cells(study, data, loss, **s, **limits) for loss, s in settings.items()}
    )
    x = range(1, epochs + 1)
    lines = {
        TITLES[loss]: (x, _means_over_seeds([result["curve"] for result in some]))
        for loss, some in results.items()
    }
    remarks = []
    for name, (_, values) in lines.items():
        means = [value.mean for value in values]
        top = max(means)
        near = next(epoch for epoch, mean in zip(x, means, strict=True) if mean >= 0.98 * top)
        remarks.append(
            f"{name}: best {top:.4f} in epoch {means.index(top) + 1}, within 2 % of it from epoch"
            f" {near}; {means[-1]:.4f} after {epochs} epochs."
        )
    rows: list[Row] = [
        {"loss": name, "epoch": epoch, **_columns(value, "valid recall@20")}
        for name, (_, values) in lines.items()
        for epoch, value in zip(x, values, strict=True)
    ]
    figure = plots.curves({data: lines}, "epoch", "validation Recall@20", "Convergence")
    batches = -(-len(study.split(data).train) // int(PROTOCOL["batch_size"]))
    values_of_text = {"data": data, "n_seeds": len(study.seeds), "batches": batches}
    return Report.of("figure-convergence", [bullet_list(remarks)], rows, figure, **values_of_text)


def noise_loss(study: Study) -> Report:
    """The mean BPR loss of noisy and of clean training events while BPR trains."""
    options = {k: PROTOCOL[k] for k in ("dimensions", "lr", "batch_size", "negatives", "sampler")}
    options |= {"loss": "bpr", "epochs": 3 if study.quick else 20}
    cells = {}
    for family in study.require_pairs(FAMILIES):
        base = Cell.of(run_noise_loss, f"{family}-noise", clean=f"{family}-clean", **options)
        cells[family] = [base.replace(seed=seed) for seed in study.seeds]
    panels: dict[str, plots.Curves] = {}
    rows: list[Row] = []
    remarks = []
    for family, results in study.grouped_results(cells).items():
        x = results[0]["iterations"]
        noisy, clean = (
            _means_over_seeds([r[kind] for r in results]) for kind in ("noisy", "clean")
        )
        heading = f"{family}: {results[0]['noisy_fraction']:.0%} of the training events noisy"
        panels[heading] = {"noisy": (x, noisy), "clean": (x, clean)}
        gaps = [n.mean - c.mean for n, c in zip(noisy, clean, strict=True)]
        remarks.append(
            f"{family}: noisy events have the higher mean loss after"
            f" {sum(gap > 0 for gap in gaps[1:])} of {options['epochs']} epochs; the gap is"
            f" {short(gaps[1])} after the first, {short(max(gaps))} at most, {short(gaps[-1])} at"
            " the end."
        )
        for iteration, n, c in zip(x, noisy, clean, strict=True):
            row: Row = {"data": f"{family}-noise", "iteration": iteration}
            rows.append(row | {"noisy": f"{n.mean:.6f}", "clean": f"{c.mean:.6f}"})
    title = "Noisy events are harder to fit"
    figure = plots.curves(panels, "iteration", "mean BPR loss of training events", title)
    return Report.of("figure-noise-loss", [bullet_list(remarks)], rows, figure)


def roc(study: Study) -> Report:
    """The ROC curve of a user, with the region that LLPAUC measures."""
    (data,) = study.require(("adressa-clean",))
    setting = {**PROTOCOL, "cold_users": "mean", **ALPHA_BETA["adressa"]}
    alpha, beta = setting["alpha"], setting["beta"]
    options = {"model": "mf", "loss": "llpauc", "seed": study.seeds[0], **setting}
    curve = study.result(Cell.of(run_roc, data, **options))
    # The curve and its areas, from the ranks of the user's items.
    labels = np.zeros(curve["items"], bool)
    labels[curve["hits"]] = True
    tpr, fpr = (np.cumsum([0, *some]) / some.sum() for some in (labels, ~labels))
    scores = -np.arange(len(labels), dtype=float)
    fractions = {"AUC": (1.0, 1.0), f"OPAUC({beta:g})": (1.0, beta)}
    fractions[f"LLPAUC({alpha:g}, {beta:g})"] = (alpha, beta)
    areas = ", ".join(
        f"{name} = {float(llpauc_score(labels[None], scores[None], alpha=a, beta=b)):.4f}"
        for name, (a, b) in fractions.items()
    )
    rows = [{"fpr": f"{x:.6f}", "tpr": f"{y:.6f}"} for x, y in zip(fpr, tpr, strict=True)]
    title = f"User {curve['user']} of {data}\n{areas.replace(' =', '')}"
    figure = plots.roc_curve(fpr, tpr, alpha, beta, title)
    values = {"user": curve["user"], "data": data, "hits": len(curve["hits"])}
    values |= {"items": len(labels), "areas": areas, "largest": alpha * beta}
    return Report.of("figure-roc", [], rows, figure, **values)


def around_model(study: Study) -> Report:
    """Correlation of metrics with Recall@20 over models near a trained one.

    The paper draws rankings at random. In practice, models near a good one are compared, by a mean
    over users with few positives each. So a model is trained, noise of growing strength is added to
    its vectors, and the means over users of each metric and of Recall@20 are compared.
    """
    alphas, betas = (0.1, 0.3, 0.5, 0.7, 0.9, 1.0), (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
    metrics = ["recall@20", "ndcg@20", *[_llpauc(a, b) for a in alphas for b in betas]]
    options = {name: value for name, value in PROTOCOL.items() if name != "cold_users"}
    options |= {"models": 20 if study.quick else 200, "max_noise": 2.0, "max_users": 2000}
    options |= {"loss": "llpauc", "metrics": ";".join(metrics), "seed": study.seeds[0]}
    fallback = {"alpha": 0.7, "beta": 0.1}
    cells = {}
    for data in study.require(("adressa-clean", "ml-100k-clean")):
        setting = {**options, **(published_alpha_beta(data) or fallback)}
        cells[data] = [Cell.of(run_perturbed_models, data, **setting)]
    maps: dict[str, Floats] = {}
    rows: list[Row] = []
    lines: list[Row] = []
    remarks = []
    for data, (result,) in study.grouped_results(cells).items():
        means = np.array(result["means"])
        recall = means[:, 0]
        agreement = {
            name: (correlation(column, recall), inverted(column, recall))
            for name, column in zip(metrics, means.T, strict=True)
        }
        grid = np.array([[agreement[_llpauc(a, b)][0] for b in betas] for a in alphas])
        maps[data] = grid
        i, j = np.unravel_index(int(np.nanargmax(grid)), grid.shape)
        best_beta = betas[int(np.nanargmax(grid[-1]))]
        shown = {
            "AUC": _llpauc(1.0, 1.0),
            f"OPAUC({best_beta:g})": _llpauc(1.0, best_beta),
            f"LLPAUC({alphas[i]:g}, {betas[j]:g})": _llpauc(alphas[i], betas[j]),
            "NDCG@20": "ndcg@20",
        }
        for title, name in shown.items():
            line = {"data": data, "metric": title}
            line |= {"correlation with Recall@20": f"{agreement[name][0]:.3f}"}
            lines.append(line | {"pairs ordered differently": f"{agreement[name][1]:.1%}"})
        best_alpha = alphas[int(np.nanargmax(grid[:, -1]))]
        remarks.append(
            f"{data}: at beta 1 the best alpha ({best_alpha:g}) gives {np.nanmax(grid[:, -1]):.3f},"
            f" AUC {grid[-1, -1]:.3f}; {result['users']:,} users, Recall@20 from"
            f" {recall.min():.4f} to {recall.max():.4f}."
        )
        rows += [
            {"data": data, "metric": name, "correlation": f"{c:.6f}", "inverted": f"{i:.6f}"}
            for name, (c, i) in agreement.items()
        ]
    parts = [rows_table(lines), bullet_list(remarks)]
    title = "Correlation with Recall@20 over models around a trained one"
    figure = plots.heat_maps(maps, alphas, betas, title, "correlation")
    return Report.of("figure-around-model", parts, rows, figure, models=options["models"])


def _llpauc(alpha: float, beta: float) -> str:
    return f"llpauc({alpha:g},{beta:g})"


def correlation(one: Floats, other: Floats) -> float:
    """Pearson's; NaN where one is constant."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.corrcoef(one, other)[0, 1])


def inverted(one: Floats, other: Floats) -> float:
    """Fraction of pairs that `one` orders differently from `other`; a tie in `one` counts half."""
    first, second = np.triu_indices(len(one), 1)
    signs, target = np.sign(one[first] - one[second]), np.sign(other[first] - other[second])
    decided = target != 0
    return float(np.mean((1 - target[decided] * signs[decided]) / 2))


def _means_over_seeds(curves: Sequence[Sequence[float]]) -> list[MeanSd]:
    """Of curves, one per seed, the mean at each point."""
    return [MeanSd.of(values) for values in zip(*curves, strict=True)]


def _columns(value: MeanSd, name: str = "mean") -> Row:
    return {name: f"{value.mean:.6f}", "sd": f"{value.sd or 0:.6f}"}
