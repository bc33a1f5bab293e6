"""Where a study lies: a journal file or an SQL database that many processes and machines share."""

from __future__ import annotations

import json
import os
import time
import warnings
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from llpauc.errors import InputError
from llpauc.training.tracking import masked, reason

if TYPE_CHECKING:
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler
    from optuna.storages import BaseStorage
    from optuna.study import Study

PRUNERS = ("median", "halving", "none")
_WARM_UP = 3  # the first epoch that may be a trial's last: rates and widths start unevenly fast
_HELD = 10  # seconds until the lock of somebody who was killed while writing is broken
_LOCKED = 60  # seconds to wait for another process's write to SQLite


def check_installed() -> None:
    if find_spec("optuna") is None:
        raise InputError("tuning needs Optuna, which is not installed; pip install 'llpauc[tune]'")


def check_place(place: str) -> None:
    """Refuse a storage that cannot be made, or that is something else, before it is touched."""
    if "://" in place:
        _check_database(place)
    else:
        _check_journal(Path(place))


def _check_folder(path: Path, place: str) -> None:
    if not path.absolute().parent.is_dir():
        folder = path.absolute().parent
        raise InputError(f"--storage {place}: there is no folder {folder}; make it first")
    if path.is_dir():
        raise InputError(f"--storage {place}: is a folder; name a file in it")


def _check_journal(path: Path) -> None:
    _check_folder(path, str(path))
    try:
        if not path.exists() or not path.stat().st_size:
            return
        with path.open("rb") as file:
            first = file.readline()
            ours = isinstance(entry := json.loads(first), dict) and "op_code" in entry
    except OSError as error:
        raise InputError(f"--storage {path}: cannot be read: {error.strerror}") from None
    except ValueError:
        ours = False
    if not ours:
        raise InputError(f"--storage {path}: holds something else than a study; name a new file")
    if not _ends_with_newline(path):
        time.sleep(1)  # somebody may be writing
        if not _ends_with_newline(path):
            raise InputError(f"--storage {path}: its last line is cut off; delete that line")


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read() == b"\n"


def _check_database(url: str) -> None:
    import sqlalchemy

    try:
        parsed = sqlalchemy.make_url(url)
        if parsed.get_backend_name() == "sqlite" and parsed.database:
            _check_folder(Path(parsed.database), url)
        engine = sqlalchemy.create_engine(parsed)
        try:
            tables = sqlalchemy.inspect(engine).get_table_names()
        finally:
            engine.dispose()
    except InputError:
        raise
    except Exception as error:  # of the database, or of its missing driver
        raise InputError(
            f"--storage {masked(url)}: cannot be used: {reason(error)};"
            " give FILE.journal or a database such as sqlite:///study.db"
        ) from None
    if tables and "studies" not in tables:
        raise InputError(
            f"--storage {masked(url)}: holds something else than studies; give it a database of"
            " its own"
        )


def open_storage(place: str) -> BaseStorage:
    """A journal file by its path, a database by its URL."""
    import optuna
    from optuna.storages import JournalStorage, RDBStorage
    from optuna.storages.journal import (
        JournalFileBackend,
        JournalFileOpenLock,
        JournalFileSymlinkLock,
    )

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    check_place(place)
    try:
        if "://" not in place:
            lock = JournalFileOpenLock if os.name == "nt" else JournalFileSymlinkLock
            return JournalStorage(JournalFileBackend(place, lock(place, _HELD)))
        waits = {"timeout": _LOCKED} if place.startswith("sqlite") else {}
        return RDBStorage(place, engine_kwargs={"connect_args": waits})
    except Exception as error:  # whatever a broken file makes of the library
        raise InputError(
            f"--storage {masked(place)}: cannot be used: {reason(error)}; name a new one"
        ) from None


def open_study(place: str, name: str, settings: Mapping[str, Any], seed: int, pruner: str) -> Study:
    """The study of that name, made where there is none; one of other settings is refused."""
    import optuna

    study = optuna.create_study(
        storage=open_storage(place),
        study_name=name,
        direction="maximize",
        load_if_exists=True,
        sampler=make_sampler(seed),
        pruner=make_pruner(pruner),
    )
    wanted = json.loads(json.dumps(settings))
    found = study.user_attrs.get("settings")
    if found is None:
        if study.get_trials(deepcopy=False):
            raise InputError(
                f"the study {name!r} in {masked(place)} is none of llpauc; give another --study"
            )
        study.set_user_attr("settings", wanted)
        return study
    for key in {**found, **wanted}:
        if found.get(key) != wanted.get(key):
            old, new = (_short(settings.get(key)) for settings in (found, wanted))
            raise InputError(
                f"the study {name!r} in {masked(place)} was made with {key} {old}, not {new};"
                " give another --out, --storage or --study for a new one"
            )
    return study


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def make_pruner(name: str) -> BasePruner:
    from optuna import pruners

    if name == "median":
        return pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=_WARM_UP)
    if name == "halving":
        return pruners.SuccessiveHalvingPruner(min_resource=_WARM_UP)
    return pruners.NopPruner()


def make_sampler(seed: int) -> BaseSampler:
    """TPE, whose draws are a function of the seed, the trial's number and the trials before it.

    One generator for the whole study would start again when the study is resumed, and be the same
    for every worker: trials would be drawn twice.
    """
    from optuna.exceptions import ExperimentalWarning
    from optuna.samplers import BaseSampler, TPESampler

    class ByNumber(BaseSampler):
        def before_trial(self, study: Any, trial: Any) -> None:
            mixed = int(np.random.SeedSequence([seed, trial.number]).generate_state(1)[0])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ExperimentalWarning)
                # group: parameters that are not in every trial are modelled too; constant_liar:
                # what other workers are trying counts as bad, so that nobody tries it twice.
                self.own = TPESampler(seed=mixed, multivariate=True, group=True, constant_liar=True)
            self.own.before_trial(study, trial)

        def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Any]:
            return self.own.infer_relative_search_space(study, trial)

        def sample_relative(self, study: Any, trial: Any, search_space: Any) -> dict[str, Any]:
            return self.own.sample_relative(study, trial, search_space)

        def sample_independent(
            self, study: Any, trial: Any, param_name: str, param_distribution: Any
        ) -> Any:
            return self.own.sample_independent(study, trial, param_name, param_distribution)

    return ByNumber()
