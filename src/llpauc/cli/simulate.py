"""`llpauc simulate`: the paper's Monte-Carlo study."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge, Gt, Lt

from llpauc.cli.console import command_name, log, print_json, progress, show_table
from llpauc.cli.data_options import Seed
from llpauc.cli.outputs import check_folder
from llpauc.options import Count

if TYPE_CHECKING:
    from llpauc.research.simulation.report import Summary

AboveChance = Annotated[float, Gt(0.5), Lt(1)]
Several = Annotated[int, Ge(2)]


def simulate(
    positives: Count = 1000,
    negatives: Count = 50_000,
    rankings: Several = 10_000,
    k: str = "20,50,100,200,500,1000",
    alphas: str = "0.001:1:25",
    betas: str = "0.0001:1:33",
    around: AboveChance | None = None,
    seed: Seed = 0,
    threads: Count | None = None,
    out: str | None = None,
    json: bool = False,
) -> None:
    """Draw random rankings and see which areas follow Recall@K.

    The correlation of LLPAUC(alpha, beta) with Recall@K, Precision@K and NDCG@K over the rankings,
    on a grid of alpha and beta; OPAUC and AUC are its edge and its corner. Beside it the two-way
    (upper-left) area, and how often each metric orders two rankings the other way than Recall@K.

    Args:
        positives: positives of each ranking
        negatives: negatives of each ranking
        rankings: how many are drawn
        k: lengths of list, separated by commas
        alphas: shares of best positives, LOW:HIGH:COUNT (by their logarithm) or A,B,C; 1 is added
        betas: shares of best negatives, likewise
        around: draw the rankings of a scorer with this AUC, for example 0.95, whose scores are
            normal; all rankings are equally likely unless given
        seed: same seed, same result
        threads: most threads; does not change the result
        out: folder for simulation.png (heat maps), simulation.csv (the grid) and simulation.md
        json: print the results as JSON
    """
    from llpauc.errors import InputError
    from llpauc.research.simulation import simulate as simulation
    from llpauc.research.simulation.report import as_json, summarise

    try:
        ks = tuple(sorted({int(word) for word in k.split(",")}))
    except ValueError as error:
        raise InputError(f"-k: {k!r} is no list of whole numbers such as 20,50,100") from error
    design = simulation.Design(
        positives, negatives, rankings, ks, simulation.parse_grid(alphas, "alphas"),
        simulation.parse_grid(betas, "betas"), around, seed,
    )  # fmt: skip
    if out is not None:
        check_folder(out)
    with progress("loading the kernels (compiled at the first call)"):
        loading = simulation.warm_up()
    with progress("simulating"):
        summary = summarise(simulation.simulate(design, threads=threads))
    if json:
        print_json(as_json(summary))
    else:
        _show(summary)
    log.info(f"simulated in {summary.study.seconds:.2f} s, after {loading:.2f} s for the kernels")
    if out is not None:
        given = {
            "positives": positives, "negatives": negatives, "rankings": rankings, "k": k,
            "alphas": alphas, "betas": betas, "around": around, "seed": seed,
        }  # fmt: skip
        _write(summary, out, _command(given))
    elif not json:
        log.info(f"for heat maps and the whole grid: {command_name()} simulate --out simulation")


def _show(summary: Summary) -> None:
    from llpauc.research.simulation.report import setting, tables, told

    print(setting(summary.study))
    for table in tables(summary):
        show_table(table.title, table.columns, table.rows)
    print("What holds here:")
    for verdict in summary.verdicts:
        print(f"  - {told(verdict)}")


def _write(summary: Summary, out: str, command: str) -> None:
    from pathlib import Path

    from llpauc.research.plots.simulation import heat_maps
    from llpauc.research.report import Report, bullet_list, markdown_table, write_report
    from llpauc.research.simulation.report import grid_rows, panels, setting, tables, told

    study = summary.study
    said = bullet_list([told(verdict) for verdict in summary.verdicts])
    parts = [f"{setting(study)}.", "**What holds here**", said]
    for table in tables(summary):
        parts += [f"**{table.title}**", markdown_table(table.columns, table.rows)]
    design = study.design
    figure = heat_maps(panels(summary), design.alphas, design.betas, setting(study))
    report = Report(
        "simulation", "Which areas follow Recall@K", parts, grid_rows(study), figure,
        "Correlation of LLPAUC(alpha, beta) with Recall@K over random rankings",
    )  # fmt: skip
    for path in write_report(report, Path(out), command):
        log.info(f"wrote {path}")


def _command(given: dict[str, Any]) -> str:
    """What to say to get the same again: the options that are not the usual ones."""
    usual = inspect.signature(simulate).parameters
    words = [f"--{name} {value}" for name, value in given.items() if value != usual[name].default]
    return " ".join(["llpauc simulate", *words])
