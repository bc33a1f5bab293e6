"""Everything `llpauc reproduce` can make, and every kind of cell that it is made of, by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from llpauc.research import leaderboard, noise_gap
from llpauc.research.cells import Result
from llpauc.research.lab import Lab
from llpauc.research.paper import around, facts, figures, runners
from llpauc.research.paper.tables import PLANS, comparison
from llpauc.research.report import Report

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
    "figure-around-model": around.around_model,
    "table-noise-gap": noise_gap.noise_gap,
}

RUNNERS: dict[str, Callable[..., Result]] = {
    "train": runners.run_train,
    "baseline": runners.run_baseline,
    "step-time": runners.run_step_time,
    "noise-loss": runners.run_noise_loss,
    "roc": runners.run_roc,
    "around": around.run_around,
    "recommender": leaderboard.run_recommender,
    "noise-gap": noise_gap.run_gap,
}
