"""The targets of `llpauc reproduce`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from llpauc.options import Registry
from llpauc.research import figures, noise_study, tables
from llpauc.research.cells import Study
from llpauc.research.paper import PAPER
from llpauc.research.report_files import Report

Target = Callable[[Study], Report]

TARGETS: Registry[Target] = Registry(
    "target",
    {
        **{name: partial(tables.compare_losses, name) for name in PAPER["tables"]},
        "table-complexity": tables.step_time_table,
        "table-datasets": tables.dataset_table,
        "figure-ablation": figures.ablation,
        "figure-hyper": figures.alpha_beta_grid,
        "figure-robustness": figures.robustness,
        "figure-convergence": figures.convergence,
        "figure-noise-loss": figures.noise_loss,
        "figure-roc": figures.roc,
        "figure-around-model": figures.around_model,
        "table-noise-gap": noise_study.noise_gap,
    },
)
