"""Everything `llpauc reproduce` can make, by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from llpauc.experiments import facts, figures
from llpauc.experiments.lab import Lab
from llpauc.experiments.report import Report
from llpauc.experiments.tables import PLANS, comparison

TARGETS: dict[str, Callable[[Lab], Report]] = {
    **{plan.name: partial(comparison, plan) for plan in PLANS},
    "table-complexity": facts.complexity,
    "table-datasets": facts.data_sets,
    "figure-ablation": figures.ablation,
    "figure-hyper": figures.hyper,
    "figure-robustness": figures.robustness,
    "figure-convergence": figures.convergence,
    "figure-noise-loss": figures.noise_loss,
    "figure-roc": figures.roc,
}
