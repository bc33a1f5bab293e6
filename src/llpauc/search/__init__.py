"""Search for settings: `tune` runs an Optuna study, `auto` works within a time budget."""

from llpauc.search.auto_search import AutoResult, auto
from llpauc.search.space import plan_grid, plan_space
from llpauc.search.trials import Budget, parse_budget
from llpauc.search.tuning import TuneResult, Tuning, tune

__all__ = [
    "AutoResult",
    "Budget",
    "TuneResult",
    "Tuning",
    "auto",
    "parse_budget",
    "plan_grid",
    "plan_space",
    "tune",
]
