"""Search for settings: `tune` runs an Optuna study, `auto` works within a time budget."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llpauc.options import lazy_exports

if TYPE_CHECKING:
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

_PLACES = {
    "AutoResult": "auto_search",
    "auto": "auto_search",
    "Budget": "trials",
    "parse_budget": "trials",
    "plan_grid": "space",
    "plan_space": "space",
}
__getattr__ = lazy_exports(__name__, {name: _PLACES.get(name, "tuning") for name in __all__})
