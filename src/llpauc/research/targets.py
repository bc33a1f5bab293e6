"""The targets of `llpauc reproduce`; a target is imported when it is run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from llpauc.options import Registry

if TYPE_CHECKING:
    from llpauc.research.cells import Study
    from llpauc.research.report_files import Report

Target = Callable[["Study"], "Report"]


def _loss_table(name: str, study: Study) -> Report:
    from llpauc.research.tables import compare_losses

    return compare_losses(name, study)


TARGETS: Registry[Target] = Registry(
    "target",
    {
        **{
            name: partial(_loss_table, name)
            for name in ("table1", "table2", "table-ml100k", "table-ltr")
        },
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
