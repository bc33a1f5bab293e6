"""What is left of the time: Optuna looks around the best trained candidate."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from llpauc.search.auto.contest import Contest, spare
from llpauc.search.auto.plan import Candidate
from llpauc.search.auto.trained import begin
from llpauc.search.tuning.space import Range, Space, suggest

_FRUITLESS = 25  # trials in a row that find nothing better end the search


def around(settings: Mapping[str, Any]) -> Space:
    """What is searched: rates, shares, temperature and width about these settings."""
    dims, lr = settings["dimensions"], settings["lr"]
    space: Space = {
        "model": (settings["model"],),
        "loss": (settings["loss"],),
        "lr": Range(lr / 3, lr * 3),
        "weight_decay": (0.0, 1e-6, 1e-5, 1e-4),
        "dimensions": (dims // 2, dims),
    }
    if "temperature" in settings:  # of the cosine, or of the softmax
        space["temperature"] = Range(0.08, 0.5)
    if settings["loss"] == "llpauc":
        beta = settings["beta"]
        space |= {"alpha": Range(0.4, 1.0), "beta": Range(beta / 5, min(3 * beta, 1.0))}
    if settings["model"] == "lightgcn":
        space["layers"] = (1, 2, 3)
    if "half_life" in settings:
        age = settings["half_life"]
        space["half_life"] = Range(age / 4, age * 4)
    return space


def search(contest: Contest) -> None:
    """Trials until the time is used up, or none of many in a row was better."""
    leader = contest.best_trained
    if leader is None or spare(contest) <= 0:
        return
    if find_spec("optuna") is None:
        contest.left_out["search"] = "Optuna is not installed; pip install 'llpauc[tune]'"
        return
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=contest.seed, n_startup_trials=5)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    start = leader.candidate
    space = around(start.settings)
    fruitless, number = 0, 0
    while not contest.stop and fruitless < _FRUITLESS:
        trial = study.ask()
        number += 1
        settings = {**start.settings, **suggest(trial, space)}
        candidate = Candidate(f"search {number}", settings, f"Optuna, around {start.name}")
        before = contest.best_trained
        entry = begin(contest, candidate)
        if entry is None:
            return
        if entry.valid is None:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
        else:
            study.tell(trial, entry.valid)
        fruitless = 0 if contest.best_trained is not before else fruitless + 1
