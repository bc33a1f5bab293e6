"""Experiment trackers: TensorBoard and MLflow record a training run.

    with tracking({"tensorboard": "boards"}, recommender.get_params()) as tracked:
        recommender.fit("events.csv", on_epoch=tracked.epoch)
        tracked.end(recommender.history)

A tracker that cannot be used is refused before training. A tracker that fails during training is
reported once and then ignored: training continues.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from llpauc.errors import InputError, choose
from llpauc.training import Diverged, Epoch, History

log = logging.getLogger(__name__)

EXPERIMENT = "llpauc"  # name of the MLflow experiment
_MAX_ERROR = 200  # characters of a tracker's error message
_DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
# Read by MLflow when it is imported or called; variables that are already set are left alone.
_MLFLOW_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",  # errors are raised as well, and logged here
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",  # instead of 7, which can take minutes
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",  # seconds, instead of 120
}


# Why a run stopped -> its status as MLflow names it; FINISHED for all others.
_STATUSES = {"interrupted": "KILLED", "diverged": "FAILED", "failed": "FAILED"}


class Tracker(Protocol):
    """Records the values of a run. Any method may raise."""

    def log(self, values: Mapping[str, float], step: int) -> None: ...

    def close(self, stopped: str, best_epoch: int, test: Mapping[str, float]) -> None: ...


class TensorBoardTracker:
    """Event files in a folder of their own below `folder`: `tensorboard --logdir FOLDER`."""

    def __init__(self, folder: str, params: Mapping[str, Any], name: str) -> None:
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(Path(folder) / name))
        plain = {k: v if isinstance(v, (bool, int, float)) else str(v) for k, v in params.items()}
        self._add_summary(hparams_pb(plain))

    def log(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()  # raises the error of the thread that writes

    def close(self, stopped: str, best_epoch: int, test: Mapping[str, float]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.hparams import api_pb2, metadata
        from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo

        status = api_pb2.STATUS_FAILURE if stopped in _STATUSES else api_pb2.STATUS_SUCCESS
        info = SessionEndInfo(status=status, end_time_secs=time.time())
        plugin_data = metadata.create_summary_metadata(HParamsPluginData(session_end_info=info))
        end = Summary.Value(
            tag=metadata.SESSION_END_INFO_TAG, metadata=plugin_data, tensor=metadata.NULL_TENSOR
        )
        try:
            self._add_summary(Summary(value=[end]))
            self._writer.add_text("stopped", stopped, best_epoch)
            self.log(test, best_epoch)
        finally:
            self._writer.close()

    def _add_summary(self, summary: Any) -> None:
        assert self._writer.file_writer is not None
        self._writer.file_writer.add_summary(summary)


class MLflowTracker:
    """A run in the experiment "llpauc" of an MLflow database or server."""

    def __init__(self, uri: str, params: Mapping[str, Any], name: str) -> None:
        for variable, value in _MLFLOW_ENVIRONMENT.items():
            os.environ.setdefault(variable, value)
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        self._metric = Metric
        if uri.startswith(_DATABASES):
            _check_database(uri)
        self._client = MlflowClient(tracking_uri=uri)
        existing = self._client.get_experiment_by_name(EXPERIMENT)
        id_ = existing.experiment_id if existing else self._client.create_experiment(EXPERIMENT)
        self._run = self._client.create_run(id_, run_name=name).info.run_id
        given = [Param(_mlflow_name(key), str(value)) for key, value in params.items()]
        self._client.log_batch(self._run, params=given)

    def log(self, values: Mapping[str, float], step: int) -> None:
        now = int(time.time() * 1000)
        metrics = [self._metric(_mlflow_name(k), float(v), now, step) for k, v in values.items()]
        self._client.log_batch(self._run, metrics=metrics, synchronous=True)

    def close(self, stopped: str, best_epoch: int, test: Mapping[str, float]) -> None:
        try:
            self.log({**({"best_epoch": best_epoch} if best_epoch else {}), **test}, best_epoch)
            self._client.set_tag(self._run, "stopped", stopped)
        finally:
            self._client.set_terminated(self._run, _STATUSES.get(stopped, "FINISHED"))


def _check_database(uri: str) -> None:
    """Connect once; MLflow would try ten times, for almost two minutes."""
    import sqlalchemy

    url = sqlalchemy.make_url(uri)
    if url.get_backend_name() == "sqlite" and url.database:
        Path(url.database).absolute().parent.mkdir(parents=True, exist_ok=True)
    engine = sqlalchemy.create_engine(url)
    try:
        sqlalchemy.inspect(engine).get_table_names()
    finally:
        engine.dispose()


def _mlflow_name(name: str) -> str:
    """A name in the characters that MLflow allows.

    >>> _mlflow_name("valid/ndcg@20 (warm)")
    'valid/ndcg_at_20_warm'
    """
    return re.sub(r"[^\w./-]+", "_", name.replace("@", "_at_"), flags=re.ASCII).strip("_")


TRACKERS: dict[str, Callable[[str, Mapping[str, Any], str], Tracker]] = {
    "tensorboard": TensorBoardTracker,
    "mlflow": MLflowTracker,
}
_REMEDIES = {
    "tensorboard": "choose a folder that can be written",
    "mlflow": "give a database such as sqlite:///mlflow.db, or a server's address",
}


class TrackedRun:
    """The trackers of a run; see `tracking`."""

    def __init__(self) -> None:
        self.trackers: dict[str, Tracker] = {}
        self._failed: set[str] = set()
        self._stopped, self._best_epoch, self._test = "done", 0, dict[str, float]()

    def epoch(self, epoch: Epoch) -> None:
        """Track an epoch; pass it to `fit` as `on_epoch`."""
        values = {
            "train/loss": epoch.loss,
            "train/seconds": epoch.seconds,
            "train/examples_per_second": epoch.examples / max(epoch.seconds, 1e-9),
            **{f"valid/{name}": value for name, value in epoch.valid.items()},
            **{f"diagnostics/{name}": value for name, value in epoch.diagnostics.items()},
        }
        for name in self.trackers.keys() - self._failed:
            with self._reported(name, "later epochs are not tracked there"):
                self.trackers[name].log(values, epoch.number)

    def end(
        self, history: History | None, test: Mapping[str, Mapping[str, float]] | None = None
    ) -> None:
        """Set the outcome.

        Args:
            history: of the recommender; None for a model without epochs.
            test: `Evaluation.summary()` of the test part.
        """
        self._test = {
            f"test/{metric}" if group == "all" else f"test/{metric} ({group})": value
            for group, metrics in (test or {}).items()
            for metric, value in metrics.items()
            if metric != "users"
        }
        if history is not None:
            self._stopped, self._best_epoch = history.stopped, history.best_epoch

    def failed(self, error: BaseException) -> None:
        """Set the outcome after an error; SystemExit is not an error."""
        if not isinstance(error, SystemExit):
            names = {Diverged: "diverged", KeyboardInterrupt: "interrupted"}
            self._stopped = names.get(type(error), "failed")

    def close(self) -> None:
        """Close all trackers, also those that failed: they may work again."""
        for name, tracker in self.trackers.items():
            with self._reported(name, "the end of the run is not tracked there"):
                tracker.close(self._stopped, self._best_epoch, self._test)

    @contextmanager
    def _reported(self, name: str, consequence: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if name not in self._failed:
                log.warning("%s failed: %s; %s", name, reason(error), consequence)
            self._failed.add(name)


@contextmanager
def tracking(places: Mapping[str, str], params: Mapping[str, Any]) -> Iterator[TrackedRun]:
    """Open trackers, and close them however the run ends.

    Args:
        places: name of a tracker in `TRACKERS` -> its folder or URI; may be empty.
        params: hyperparameters of the run, as from `Recommender.get_params`.

    Raises:
        InputError: if a tracker is not installed or its place cannot be used.
    """
    check_trackers(places)
    words = [str(params[key]) for key in ("model", "loss") if key in params]
    name = "-".join([*words, time.strftime("%Y%m%d-%H%M%S"), secrets.token_hex(3)])
    given = {key: value for key, value in params.items() if value is not None}
    tracked = TrackedRun()
    try:
        for kind, place in places.items():
            try:
                tracked.trackers[kind] = TRACKERS[kind](place, given, name)
            except Exception as error:  # of any library
                message = f"{kind} cannot use {place!r}: {reason(error)}; {_REMEDIES[kind]}"
                raise InputError(masked(message)) from None
        yield tracked
    except BaseException as error:
        tracked.failed(error)
        raise
    finally:
        tracked.close()


def check_trackers(places: Mapping[str, str], run_folder: str | None = None) -> None:
    """Refuse a tracker that is not installed (none is imported) or that writes into `run_folder`,
    which is replaced as a whole."""
    for name, place in places.items():
        choose(TRACKERS, name, "tracker")
        if not place:
            raise InputError(f"{name} is given an empty place; {_REMEDIES[name]}")
        if find_spec(name) is None:
            raise InputError(f"{name} is not installed; pip install 'llpauc[{name}]'")
        path = re.sub(r"^(sqlite:///|file:(//)?)", "", place)
        if run_folder is None or "://" in path:
            continue
        if Path(path).resolve().is_relative_to(Path(run_folder).resolve()):
            raise InputError(
                f"{name} cannot use {place!r}: the run folder {run_folder} is written as a whole;"
                " choose a place outside of it"
            )


def reason(error: Exception) -> str:
    """The message of the system or the database below `error`, else its first sentence."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return f"{cause.filename}: {cause.strerror}" if cause.filename else cause.strerror
        if isinstance(original := getattr(cause, "orig", None), Exception):  # below SQLAlchemy
            error = original
            break
        cause = cause.__cause__ or cause.__context__
    lines = str(error).strip().splitlines() or [type(error).__name__]
    sentence = re.split(r"\.\s+(?=[A-Z])", lines[0])[0]
    return masked(sentence if len(sentence) <= _MAX_ERROR else f"{sentence[:_MAX_ERROR]}...")


def masked(text: str) -> str:
    """The text without passwords of URIs.

    >>> masked("cannot use 'postgresql://ann:secret@host/db'")
    "cannot use 'postgresql://***@host/db'"
    """
    return re.sub(r"://[^@/\s]*@", "://***@", text)
