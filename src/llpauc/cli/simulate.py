"""`llpauc simulate`: the paper's Monte-Carlo study."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge, Gt, Lt

from llpauc.cli.console import command_name, log, print_json, progress, show_table
from llpauc.cli.data_options import Seed
from llpauc.cli.system import check_folder
from llpauc.options import Count

if TYPE_CHECKING:
    from llpauc.research.simulation_report import Summary


def simulate(
    positives: Count = 1000,
    negatives: Count = 50_000,
    rankings: Annotated[int, Ge(2)] = 10_000,
    k: str = "20,50,100,200,500,1000",
    alphas: str = "0.001:1:25",
    betas: str = "0.0001:1:33",
    scorer_auc: Annotated[float, Gt(0.5), Lt(1)] | None = None,
    seed: Seed = 0,
    threads: Count | None = None,
    out: str | None = None,
    json: bool = False,
) -> None:
    """Draw random rankings and measure which areas follow Recall@K.

    The correlation of LLPAUC(alpha, beta) with Recall@K, Precision@K and NDCG@K over the rankings,
    on a grid of alpha and beta; OPAUC and AUC are its edge and its corner. The same for the two-way
    (upper-left) area, and how often each metric orders two rankings differently from Recall@K.

    Args:
        positives: positives of each ranking
        negatives: negatives of each ranking
        rankings: number of rankings drawn
        k: list lengths, separated by commas
        alphas: fractions of best positives, LOW:HIGH:COUNT (logarithmic) or A,B,C; 1 is added
        betas: fractions of best negatives, in the same form
        scorer_auc: draw the rankings of a scorer with this AUC, for example 0.95, and normal
            scores; by default all rankings are equally likely
        seed: the same seed gives the same result
        threads: maximum number of threads; does not change the result
        out: folder for simulation.png (heat maps), simulation.csv (the grid) and simulation.md
        json: print the results as JSON
    """
    from llpauc.errors import InputError
    from llpauc.research import simulation
    from llpauc.research.simulation_report import as_json, describe, summarize, tables

    try:
        ks = tuple(sorted({int(word) for word in k.split(",")}))
    except ValueError as error:
        raise InputError(f"-k: {k!r} is not a list of whole numbers such as 20,50,100") from error
    design = simulation.Design(
        positives,
        negatives,
        rankings,
        ks,
        simulation.parse_grid(alphas, "alphas"),
        simulation.parse_grid(betas, "betas"),
        scorer_auc,
        seed,
    )
    if out is not None:
        check_folder(out, replaced=False)
    with progress("loading the kernels (compiled at the first call)"):
        loading = simulation.warm_up()
    with progress("simulating"):
        summary = summarize(simulation.simulate(design, threads=threads))
    if json:
        print_json(as_json(summary))
    else:
        print(describe(summary.simulation))
        for table in tables(summary):
            show_table(*table)
        print("\n".join(["Claims:", *(f"  - {claim}" for claim in summary.claims)]))
    seconds = summary.simulation.seconds
    log.info(f"simulated in {seconds:.2f} s, after {loading:.2f} s for the kernels")
    if out is not None:
        options = {"positives": positives, "negatives": negatives, "rankings": rankings, "k": k}
        options |= {"alphas": alphas, "betas": betas, "scorer_auc": scorer_auc, "seed": seed}
        _write(summary, out, _command(options))
    elif not json:
        log.info(f"for heat maps and the whole grid: {command_name()} simulate --out simulation")


def _write(summary: Summary, out: str, command: str) -> None:
    from pathlib import Path

    from llpauc.report.document import bullet_list, markdown_table
    from llpauc.research.plots import simulation_figure
    from llpauc.research.report_files import Report, write_report
    from llpauc.research.simulation_report import describe, grid_rows, tables

    parts = ["**Claims**", bullet_list(list(map(str, summary.claims)))]
    for title, columns, rows in tables(summary):
        parts += [f"**{title}**", markdown_table(columns, rows)]
    csv_rows, design = grid_rows(summary.simulation), describe(summary.simulation)
    report = Report.of("simulation", parts, csv_rows, simulation_figure(summary), design=design)
    for path in write_report(report, Path(out), command):
        log.info(f"wrote {path}")


def _command(options: dict[str, Any]) -> str:
    """The command that gives the same result, with the options that differ from the default."""
    defaults = inspect.signature(simulate).parameters
    words = [
        f"--{name.replace('_', '-')} {value}"
        for name, value in options.items()
        if value != defaults[name].default
    ]
    return " ".join(["llpauc simulate", *words])
