"""Other people's boards, where they are installed: TensorBoard and MLflow watch a training run.

    with tracking({"tensorboard": "boards"}, recommender.get_params()) as tracked:
        recommender.fit("events.csv", on_epoch=tracked.epoch)
        tracked.end(recommender.history)

What cannot be used is told before training. Once training runs nothing of a tracker can end it: one
that fails is told about once and then left alone.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from llpauc.errors import InputError, choose
from llpauc.training import Diverged, Epoch, History

log = logging.getLogger(__name__)

EXPERIMENT = "llpauc"  # MLflow's name for a set of runs


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Args:
        stopped: `History.stopped`; "done" where there are no epochs; "diverged" or "failed" where
            an error ended it.
        best_epoch: whose weights the model has; 0 where there are no epochs.
        test: metric -> value on the test part, where it was measured.
    """

    stopped: str
    best_epoch: int = 0
    test: Mapping[str, float] = field(default_factory=dict)

    @property
    def status(self) -> str:
        """The same in MLflow's words."""
        killed = {"interrupted": "KILLED", "diverged": "FAILED", "failed": "FAILED"}
        return killed.get(self.stopped, "FINISHED")


class Tracker(Protocol):
    """Where figures go while training runs. Any method may raise; training goes on."""

    def epoch(self, epoch: Epoch) -> None: ...

    def close(self, outcome: Outcome) -> None: ...


def scalars(epoch: Epoch) -> dict[str, float]:
    """What is tracked of an epoch, by name."""
    return {
        "train/loss": epoch.loss,
        "train/seconds": epoch.seconds,
        "train/examples_per_second": epoch.examples / max(epoch.seconds, 1e-9),
        **{f"valid/{name}": value for name, value in epoch.valid.items()},
        **{f"figures/{name}": value for name, value in epoch.figures.items()},
    }


class TensorBoardTracker:
    """Event files, each run's in a folder of its own below `folder`: `tensorboard --logdir FOLDER`.

    Records are written where they are made. TensorBoard's own writer has a thread for it, which
    keeps a full disk to itself.
    """

    def __init__(self, folder: str, params: Mapping[str, Any], name: str) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary = Event, Summary
        place = Path(folder) / name
        place.mkdir(parents=True)
        started = time.time()
        path = place / f"events.out.tfevents.{int(started)}.{os.getpid()}"
        self._records = RecordWriter(path.open("xb"))
        self._write(Event(wall_time=started, file_version="brain.Event:2"))
        plain = {k: v if isinstance(v, (bool, int, float)) else str(v) for k, v in params.items()}
        self._add(hparams_pb(plain), 0)

    def epoch(self, epoch: Epoch) -> None:
        self._scalars(scalars(epoch), epoch.number)

    def close(self, outcome: Outcome) -> None:
        from tensorboard.plugins.hparams import api_pb2, metadata
        from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo
        from tensorboard.plugins.text.summary_v2 import text_pb

        done = outcome.status == "FINISHED"
        status = api_pb2.STATUS_SUCCESS if done else api_pb2.STATUS_FAILURE
        ended = HParamsPluginData(
            session_end_info=SessionEndInfo(status=status, end_time_secs=time.time())
        )
        end = self._summary()
        end.value.add(
            tag=metadata.SESSION_END_INFO_TAG,
            metadata=metadata.create_summary_metadata(ended),
            tensor=metadata.NULL_TENSOR,
        )
        try:
            self._scalars(_measured(outcome), outcome.best_epoch)
            self._add(text_pb("stopped", outcome.stopped), outcome.best_epoch)
            self._add(end, outcome.best_epoch)
        finally:
            self._records.close()

    def _scalars(self, values: Mapping[str, float], step: int) -> None:
        summary = self._summary()
        for name, value in values.items():
            summary.value.add(tag=name, simple_value=value)
        self._add(summary, step)

    def _add(self, summary: Any, step: int) -> None:
        self._write(self._event(wall_time=time.time(), step=step, summary=summary))

    def _write(self, event: Any) -> None:
        self._records.write(event.SerializeToString())
        self._records.flush()


# Read by MLflow when it is imported or called. A value that is there already is somebody's choice.
_MLFLOW_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",  # an error is raised as well, and told in one line here
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",  # not 7: an epoch does not wait minutes for a server
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",  # seconds, not 120
}
_DATABASES = ("sqlite", "postgresql", "mysql", "mssql")


class MLflowTracker:
    """A run in the experiment "llpauc" of an MLflow database or server."""

    def __init__(self, uri: str, params: Mapping[str, Any], name: str) -> None:
        for variable, value in _MLFLOW_ENVIRONMENT.items():
            os.environ.setdefault(variable, value)
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        self._metric = Metric
        if uri.startswith(_DATABASES):
            _knock(uri)
        self._client = MlflowClient(tracking_uri=uri)
        found = self._client.get_experiment_by_name(EXPERIMENT)
        experiment = found.experiment_id if found else self._client.create_experiment(EXPERIMENT)
        self._run = self._client.create_run(experiment, run_name=name).info.run_id
        given = [Param(_mlflow_name(key), str(value)) for key, value in params.items()]
        self._client.log_batch(self._run, params=given)

    def epoch(self, epoch: Epoch) -> None:
        self._log(scalars(epoch), epoch.number)

    def close(self, outcome: Outcome) -> None:
        try:
            best = {"best_epoch": outcome.best_epoch} if outcome.best_epoch else {}
            self._log({**best, **_measured(outcome)}, outcome.best_epoch)
            self._client.set_tag(self._run, "stopped", outcome.stopped)
        finally:
            self._client.set_terminated(self._run, outcome.status)

    def _log(self, values: Mapping[str, float], step: int) -> None:
        now = int(time.time() * 1000)
        metrics = [self._metric(_mlflow_name(k), float(v), now, step) for k, v in values.items()]
        self._client.log_batch(self._run, metrics=metrics, synchronous=True)


TRACKERS: dict[str, Callable[[str, Mapping[str, Any], str], Tracker]] = {
    "tensorboard": TensorBoardTracker,
    "mlflow": MLflowTracker,
}


class Tracked:
    """The trackers of a run: hand `epoch` to fit, and say at the end how it went."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._trackers: dict[str, Tracker] = {}
        self._lost: set[str] = set()
        self._outcome = Outcome("done")

    def add(self, name: str, tracker: Tracker) -> None:
        self._trackers[name] = tracker

    def epoch(self, epoch: Epoch) -> None:
        """Track one epoch: what `on_epoch` wants."""
        for name, tracker in self._trackers.items():
            if name in self._lost:
                continue
            try:
                tracker.epoch(epoch)
            except Exception as error:
                self._lost.add(name)
                self._tell(
                    f"{name} failed: {reason(error)}; no further epoch is tracked there, training"
                    " goes on"
                )

    def end(
        self, history: History | None, test: Mapping[str, Mapping[str, float]] | None = None
    ) -> None:
        """Say how it went.

        Args:
            history: of the recommender; None for a model without epochs.
            test: `Evaluation.summary()` of the test part, where it was measured.
        """
        measured = {} if test is None else _by_metric(test)
        if history is None:
            self._outcome = Outcome("done", test=measured)
        else:
            self._outcome = Outcome(history.stopped, history.best_epoch, measured)

    def failed(self, error: BaseException) -> None:
        """Say that an error ended it; a SystemExit is none."""
        if isinstance(error, SystemExit):
            return
        names = {Diverged: "diverged", KeyboardInterrupt: "interrupted"}
        self._outcome = replace(self._outcome, stopped=names.get(type(error), "failed"))

    def close(self) -> None:
        for name, tracker in self._trackers.items():
            if name in self._lost:  # it may be back, and then the run there is not left open
                with suppress(Exception):
                    tracker.close(self._outcome)
                continue
            try:
                tracker.close(self._outcome)
            except Exception as error:
                self._tell(f"{name} failed: {reason(error)}; the end of the run is missing there")


def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=2)


@contextmanager
def tracking(
    places: Mapping[str, str], params: Mapping[str, Any], tell: Callable[[str], None] = log.warning
) -> Iterator[Tracked]:
    """Open trackers, and close them however the run ends.

    Args:
        places: name of a tracker in `TRACKERS` -> its folder or URI; may be empty.
        params: the run's hyperparameters, as `Recommender.get_params` has them.
        tell: gets one line about a tracker that fails in the middle; a warning unless given.

    Raises:
        InputError: where a tracker is not installed or its place cannot be used.
    """
    check_trackers(places)
    words = [str(params[key]) for key in ("model", "loss") if key in params]
    name = "-".join([*words, time.strftime("%Y%m%d-%H%M%S"), secrets.token_hex(3)])
    told = {key: value for key, value in params.items() if value is not None}
    tracked = Tracked(tell)
    try:
        for kind, place in places.items():  # where the second is refused, the first is closed
            tracked.add(kind, _open(kind, place, told, name))
        yield tracked
    except BaseException as error:
        tracked.failed(error)
        raise
    finally:
        tracked.close()


def check_trackers(places: Mapping[str, str], apart_from: str | None = None) -> None:
    """Refuse a tracker that is not installed (none is imported), or that writes into the folder
    `apart_from`, which a run is about to replace."""
    for name, place in places.items():
        choose(TRACKERS, name, "tracker")
        if not place:
            raise InputError(f"{name} is given an empty place; {_REMEDIES[name]}")
        if find_spec(name) is None:
            raise InputError(f"{name} is not installed; pip install 'llpauc[{name}]'")
        path = re.sub(r"^(sqlite:///|file:(//)?)", "", place)
        if apart_from is None or "://" in path:
            continue
        if Path(path).resolve().is_relative_to(Path(apart_from).resolve()):
            raise InputError(
                f"{name} cannot use {place!r}: the run folder {apart_from} is written as a whole;"
                " choose a place beside it"
            )


_REMEDIES = {
    "tensorboard": "choose a folder that can be written",
    "mlflow": "give a database such as sqlite:///mlflow.db, or a server's address",
}


def _open(kind: str, place: str, params: Mapping[str, Any], name: str) -> Tracker:
    try:
        return TRACKERS[kind](place, params, name)
    except Exception as error:  # of whatever library lies below
        why = f"{kind} cannot use {place!r}: {reason(error)}; {_REMEDIES[kind]}"
        raise InputError(masked(why)) from None


def _knock(uri: str) -> None:
    """Ask a database once whether it is there; MLflow asks ten times, for almost two minutes."""
    import sqlalchemy

    url = sqlalchemy.make_url(uri)
    if url.get_backend_name() == "sqlite" and url.database:
        Path(url.database).absolute().parent.mkdir(parents=True, exist_ok=True)
    engine = sqlalchemy.create_engine(url)
    try:
        sqlalchemy.inspect(engine).get_table_names()
    finally:
        engine.dispose()


def _by_metric(summary: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Means over all users by the metric's name; of a group, with the group in brackets."""
    return {
        metric if group == "all" else f"{metric} ({group})": value
        for group, figures in summary.items()
        for metric, value in figures.items()
        if metric != "users"
    }


def _measured(outcome: Outcome) -> dict[str, float]:
    return {f"test/{name}": value for name, value in outcome.test.items()}


def _mlflow_name(name: str) -> str:
    """MLflow's alphabet has neither @ nor brackets.

    >>> _mlflow_name("valid/ndcg@20 (warm)")
    'valid/ndcg_at_20_warm'
    """
    return re.sub(r"[^\w./-]+", "_", name.replace("@", "_at_"), flags=re.ASCII).strip("_")


def reason(error: Exception) -> str:
    """What the system or the database said, if it did, else the first sentence of the error; the
    libraries in between say more than a line holds."""
    link: BaseException | None = error
    while link is not None:
        if isinstance(link, OSError) and link.strerror:
            return link.strerror if link.filename is None else f"{link.filename}: {link.strerror}"
        if isinstance(said := getattr(link, "orig", None), Exception):  # below SQLAlchemy
            return _first_sentence(said)
        link = link.__cause__ or link.__context__
    return _first_sentence(error)


def _first_sentence(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    sentence = re.split(r"\.\s+(?=[A-Z])", lines[0])[0]
    return masked(sentence if len(sentence) <= _LONGEST else f"{sentence[:_LONGEST]}...")


_LONGEST = 200  # characters of other people's errors


def masked(text: str) -> str:
    """Without the password of a URI.

    >>> masked("cannot use 'postgresql://ann:secret@host/db'")
    "cannot use 'postgresql://***@host/db'"
    """
    return re.sub(r"://[^@/\s]*@", "://***@", text)
