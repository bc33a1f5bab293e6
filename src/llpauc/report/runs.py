"""A saved run as a page tells of it: what it is, how training went, what was measured."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llpauc.models.registry import MODELS
from llpauc.recommend import Recommender
from llpauc.recommend.fitted import Fitted
from llpauc.report.people import spread_users
from llpauc.storage import run_folder
from llpauc.storage.run_folder import finite_number

_SUGGESTED = 12  # users to begin with, where a person has not typed anything
_MOST_EPOCHS = 2000
_LONGEST = 200  # characters of a value that is told


@dataclass(frozen=True)
class PageRun:
    """A loaded run.

    Args:
        fitted: its arrays.
        facts: plain JSON, see `run_facts`.
    """

    fitted: Fitted
    facts: dict[str, Any]


def load_run(folder: str) -> PageRun:
    """Read a run folder; see `Recommender.load` for what is refused."""
    artifact = run_folder.load(folder)
    fitted = Recommender.of_artifact(artifact, folder).require_fitted()
    return PageRun(fitted, run_facts(artifact, fitted, Path(folder).resolve().name))


def run_facts(artifact: run_folder.SavedRun, fitted: Fitted, name: str) -> dict[str, Any]:
    """What a page says of a run. No path: a report is passed on, and a server tells of no folder.

    meta.json and metrics.jsonl are as somebody wrote them: what does not look as it should is left
    out.
    """
    params = artifact.meta.get("params")
    params = params if isinstance(params, Mapping) else {}
    model, updates = str(params.get("model", "")), artifact.meta.get("updates")
    trained = model not in MODELS or MODELS[model].trained
    hidden = {"model", "loss"} | (set() if trained else {"hold_out", "refit"})
    return {
        "name": name,
        "model": model,
        "loss": str(params.get("loss", "")) if trained else None,
        "parameters": {k: _told(v) for k, v in params.items() if k not in hidden and v is not None},
        "alpha": _share(params.get("alpha")),
        "beta": _share(params.get("beta")),
        "data": _file_name(artifact.meta.get("data")),
        "users": len(fitted.user_ids),
        "items": len(fitted.item_ids),
        "events": int(fitted.histories.nnz),
        "held_out": {part: int(pairs.nnz) for part, pairs in fitted.held_out.items()},
        "updates": len(updates) if isinstance(updates, list) else 0,
        "epochs": _epochs(artifact.extra.get("metrics.jsonl", "")),
        "test": _measured(artifact.meta.get("test"), model),
        "some_users": fitted.user_ids.text.take(spread_users(fitted, _SUGGESTED)).to_pylist(),
    }


def _epochs(lines: str) -> list[dict[str, Any]]:
    """Number, loss and validation figures of each epoch; a refit counts on from the last."""
    told: list[dict[str, Any]] = []
    for line in lines.splitlines()[:_MOST_EPOCHS]:
        try:
            epoch = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(epoch, dict):
            valid = epoch.get("valid")
            told.append(
                {
                    "number": len(told) + 1,
                    "loss": finite_number(epoch.get("loss")),
                    "valid": _figures(valid),
                    "best": epoch.get("best") is True,
                }
            )
    return told


def _measured(test: Any, model: str) -> dict[str, dict[str, float | None]]:
    """Model -> metric -> its mean over all test users."""
    if not isinstance(test, Mapping):
        return {}
    if "all" in test:  # `llpauc demo` keeps its own model's figures alone
        test = {model: test}
    return {
        str(name): _figures(groups["all"])
        for name, groups in test.items()
        if isinstance(groups, Mapping) and isinstance(groups.get("all"), Mapping)
    }


def _figures(values: Any) -> dict[str, float | None]:
    found = values if isinstance(values, Mapping) else {}
    return {str(name): finite_number(value) for name, value in found.items()}


def _share(value: Any) -> float | None:
    found = finite_number(value)
    return found if found is not None and 0 < found <= 1 else None


def _told(value: Any) -> str | float | bool | None:
    if isinstance(value, (bool, str)):
        return value[:_LONGEST] if isinstance(value, str) else value
    found = finite_number(value)
    return str(value)[:_LONGEST] if found is None else found


def _file_name(path: Any) -> str | None:
    return Path(path).name[:_LONGEST] if isinstance(path, str) else None
