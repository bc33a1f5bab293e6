"""Training: one loop, two engines."""

from llpauc.training.engine import Diverged
from llpauc.training.loop import Epoch, FitOptions, History, check_feasible, fit

__all__ = ["Diverged", "Epoch", "FitOptions", "History", "check_feasible", "fit"]
