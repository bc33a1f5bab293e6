"""The targets of `llpauc reproduce`; a target is imported when it is run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from llpauc.options import Registry

if TYPE_CHECKING:
    from llpauc.research.cells import Study
    from llpauc.research.report_files import Report

Target = Callable[["Study"], "Report"]

TARGETS: Registry[Target] = Registry(
    "target",
    {
        "table1": "llpauc.research.tables:table1",
        "table2": "llpauc.research.tables:table2",
        "table-ml100k": "llpauc.research.tables:table_ml100k",
        "table-ltr": "llpauc.research.tables:table_ltr",
        "table-complexity": "llpauc.research.tables:step_time_table",
        "table-datasets": "llpauc.research.tables:dataset_table",
        "figure-ablation": "llpauc.research.figures:ablation",
        "figure-hyper": "llpauc.research.figures:alpha_beta_grid",
        "figure-robustness": "llpauc.research.figures:robustness",
        "figure-convergence": "llpauc.research.figures:convergence",
        "figure-noise-loss": "llpauc.research.figures:noise_loss",
        "figure-roc": "llpauc.research.figures:roc",
        "figure-around-model": "llpauc.research.figures:around_model",
        "table-noise-gap": "llpauc.research.noise_study:noise_gap",
    },
)
