"""Cells of the paper's protocol, and the choice of a loss's setting on validation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llpauc.research.cells import Cell, Result
from llpauc.research.lab import Lab
from llpauc.research.paper.settings import BACKBONES, EASE_GRID, GRIDS, PAPER, Setting
from llpauc.research.spread import Spread

METRIC = PAPER["valid_metric"]
GROUPS = {  # heading -> (reading of cold users, group of users)
    "all users": ("random", "all"),
    "warm users": ("random", "warm"),
    "all users, cold ones by the mean vector": ("mean", "all"),
}


def training(
    data: str, loss: str, seed: int, backbone: str = "mf", *, test: bool = True, **setting: Any
) -> Cell:
    """A cell of the paper's protocol; `setting` goes over it."""
    options = {**PAPER, **BACKBONES[backbone], **setting}
    return Cell.of("train", data, loss=loss, seed=seed, test=test, **options)


def baseline(data: str, model: str, *, test: bool = True, **setting: Any) -> Cell:
    return Cell.of("baseline", data, model=model, test=test, metric=METRIC, **setting)


def choose_settings(lab: Lab, data: str, losses: Sequence[str]) -> dict[str, Setting]:
    """Each loss's best setting by validation with MF, on average over the seeds."""
    grids = {loss: GRIDS[loss] for loss in losses}
    if lab.quick:
        grids = {loss: [settings[len(settings) // 2]] for loss, settings in grids.items()}
    return lab.best(
        {
            loss: [
                (setting, [training(data, loss, s, test=False, **setting) for s in lab.seeds])
                for setting in settings
            ]
            for loss, settings in grids.items()
        },
    )


def choose_ease(lab: Lab, data: str) -> Setting:
    cells = [(setting, [baseline(data, "ease", test=False, **setting)]) for setting in EASE_GRID]
    return lab.best({"ease": cells})["ease"]


def spread(results: Sequence[Result], metric: str, group: str = "all users") -> Spread:
    """A test metric over the seeds; for data without cold users warm is all."""
    cold, users = GROUPS[group]
    return Spread.of([r["test"][cold].get(users, r["test"][cold]["all"])[metric] for r in results])
