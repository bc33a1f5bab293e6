"""The `Model` protocol: what every model offers.

A model has options, fits itself, scores known users and new users, extends itself with new events,
and saves and loads its arrays. `llpauc.models.registry.MODELS` lists the models.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt
from scipy import sparse

from llpauc.data.ids import Indices
from llpauc.data.interactions import Interactions, Split, before, join
from llpauc.data.splits import TooFewEvents
from llpauc.data.splits import hold_out as held_out_split
from llpauc.errors import InputError
from llpauc.evaluation.scorer import ByHistory, FactorScorer, Scorer, Scores
from llpauc.models.fold_in import HistoryMap

if TYPE_CHECKING:
    from llpauc.losses import Loss
    from llpauc.training import (
        CheckpointFolder,
        CheckpointSettings,
        Epoch,
        History,
        TrainingOptions,
    )
    from llpauc.training.trainable import Trainable

Arrays = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class FitData:
    """The events that a model is fitted on.

    Args:
        split: train, and perhaps valid, which chooses the epoch of a trained model.
        parts: the parts that the model knows in the end, the oldest first: train, or with `refit`
            train and valid. Events that were held out of train are part of it.
        refit: whether a trained model is trained again on all `parts`, for the chosen number of
            epochs.
    """

    split: Split
    parts: Sequence[Interactions]
    refit: bool = False

    @staticmethod
    def of(
        data: Split | Interactions,
        refit: bool = False,
        hold_out: float = 0.0,
        seed: int = 0,
        how: str = "auto",
    ) -> FitData:
        """The data of a split. Without a validation part, the fraction `hold_out` of the events
        becomes one, where there are enough events; see `llpauc.data.hold_out`."""
        split = data if isinstance(data, Split) else Split(data)
        parts = before(split, "test", "all" if refit else "train")
        if split.valid is None and hold_out:
            with suppress(TooFewEvents):  # train all epochs on all of them
                split = held_out_split(split, hold_out, seed, how)
        return FitData(split, parts, refit)

    @cached_property
    def all(self) -> Interactions:
        """The events of all `parts`."""
        return join(self.parts)


@dataclass(frozen=True)
class Training:
    """How to train a model in epochs. Models without training ignore it.

    Args:
        make_loss: makes the loss, with fresh variables.
        options: see `llpauc.training.TrainingOptions`.
        settings: every setting by name; a checkpoint with other settings is refused.
        on_batch, on_epoch, checkpoint: see `llpauc.training.fit`.
        on_chosen: called once validation has chosen the epoch, before a refit; the model is fitted
            then.
    """

    make_loss: Callable[[], Loss]
    options: TrainingOptions
    settings: Mapping[str, Any]
    on_batch: Callable[[int], None] | None = None
    on_epoch: Callable[[Epoch], None] | None = None
    checkpoint: CheckpointSettings | CheckpointFolder | None = None
    on_chosen: Callable[[], None] | None = None


@dataclass(frozen=True)
class FitResult:
    """How a fit went.

    Args:
        events: what the model was trained on.
        history: the epochs; None for models without training.
    """

    events: Interactions
    history: History | None = None


@dataclass(frozen=True)
class NewEvents:
    """The pairs of a run and new pairs, over common id maps; the ids of the run come first.

    Args:
        old: the pairs of the run.
        new: the pairs that the run does not have, each once; where events have weights, all new
            events.
        new_users, new_items: indices whose first event is among `new`.
    """

    old: Interactions
    new: Interactions
    new_users: Indices
    new_items: Indices

    @cached_property
    def all(self) -> Interactions:
        return self.old.followed_by(self.new)

    def __str__(self) -> str:
        return (
            f"{len(self.new):,} new pairs, {len(self.new_users):,} new users and"
            f" {len(self.new_items):,} new items, added to {len(self.old):,} known pairs"
        )


class Vectors(FactorScorer):
    """User and item vectors whose inner products are the scores, and a map for new users.

    Args:
        user_vectors: (n_users, d) float32.
        item_vectors: (n_items, d) float32.
        history_map: from a history to a user vector.
    """

    def __init__(self, user_vectors: Scores, item_vectors: Scores, history_map: HistoryMap) -> None:
        super().__init__(user_vectors, item_vectors)
        self.history_map = history_map


class Model(ABC):
    """A recommendation model.

    Class attributes: `name` (as in `MODELS`) and `Options`, the dataclass of its options.
    After `fit` or `load_arrays`, `fallback` holds (n_items,) scores for users without history, and
    `vectors` the vectors of a model that has any.

    Args:
        options: an instance of `Options`; by default one with its defaults.
    """

    name: ClassVar[str]
    Options: ClassVar[type[Any]]
    is_personal: ClassVar[bool] = True  # whether the scores depend on the user
    choosing_fits: ClassVar[int] = 0  # further fits, about, that choose the options by the data
    fallback: Scores
    vectors: Vectors | None = None
    boost: float = 0.0  # of items without events, see `llpauc.models.cold_items`

    def __init__(self, options: Any = None) -> None:
        self.options = self.Options() if options is None else options

    @abstractmethod
    def fit(self, data: FitData, training: Training | None = None) -> FitResult:
        """Learn from events. Options that are chosen by the data are set in `self.options`."""

    def new_network(self, train: Interactions, options: TrainingOptions) -> Trainable:
        """The trainable parameters with their initial values; only of models that are trained."""
        raise InputError(f"{self.name} is not trained in epochs")

    @classmethod
    def fit_cost(cls, train: Interactions) -> tuple[float, int]:
        """Estimated seconds and bytes of `fit`; 0 where they are small or not known in advance."""
        return 0.0, 0

    @abstractmethod
    def scores_of(self, histories: Any) -> Scores:
        """(n, n_items) scores of n new users, given their histories as a CSR matrix."""

    def scorer(self, histories: Any) -> Scorer:
        """The scorer of the known users; row u of the CSR matrix `histories` is user u's."""
        return ByHistory(self, histories, self.fallback)

    @property
    def n_items(self) -> int:
        return len(self.fallback)

    @property
    def description(self) -> str:
        """The fitted model in words."""
        return self.name

    @property
    def is_fitted(self) -> bool:
        """False before `fit`, and in all but the first of several processes."""
        return "fallback" in vars(self)

    @property
    def without_features(self) -> Model:
        """The model without the items that it scores by their features."""
        return self

    def item_units(self) -> Scores | None:
        """(n_items, d) item vectors at unit length, for similarities; None without vectors."""
        return None

    def extend(self, new: NewEvents, training: Training | None = None) -> tuple[Model, FitResult]:
        """A model that also knows new events, users and items; `self` stays as it is.

        Args:
            new: old and new events.
            training: how to train further. None gives new users and items a vector and trains
                nothing. Models without training are fitted again on all events.
        """
        model = type(self)(self.options)
        return model, model.fit(FitData.of(new.all))

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The arrays that are saved in a run folder, by name."""
        return {"fallback": self.fallback}

    def load_arrays(self, arrays: Arrays, n_users: int, n_items: int) -> None:
        """Take over saved arrays; KeyError or ValueError where they do not fit together."""
        self.fallback = arrays["fallback"]
        check_shape("fallback", self.fallback, (n_items,))

    @classmethod
    def scorer_of(cls, data: FitData | Split | Interactions, **options: Any) -> Scorer:
        """Fit a model without training, and return the scorer of its users.

        >>> from llpauc.models.popularity import Popularity
        >>> Popularity.scorer_of(Interactions.of(["a", "b", "a"], ["x", "x", "y"])).n_items
        2
        """
        model = cls(cls.Options(**options))
        data = data if isinstance(data, FitData) else FitData.of(data)
        return model.scorer(model.fit(data).events.positives)


def check_shape(name: str, array: npt.NDArray[Any], shape: tuple[int, ...]) -> None:
    """Raise ValueError where a saved array does not fit the id maps."""
    if array.shape != shape:
        raise ValueError(f"{name} is {array.shape}, expected {shape}")


def csr_arrays(name: str, matrix: Any) -> dict[str, npt.NDArray[Any]]:
    """A CSR matrix as arrays `name.starts`, `name.columns` and `name.values`."""
    return {
        f"{name}.starts": matrix.indptr.astype(np.int64),
        f"{name}.columns": matrix.indices.astype(np.int32),
        f"{name}.values": matrix.data.astype(np.float32),
    }


def csr_from_arrays(arrays: Arrays, name: str, shape: tuple[int, int]) -> Any:
    """The inverse of `csr_arrays`; ValueError where the arrays do not fit together."""
    values, columns, starts = (arrays[f"{name}.{part}"] for part in ("values", "columns", "starts"))
    # scipy ignores entries beyond the last start, and does not check starts that end below 1.
    if starts.ndim != 1 or starts[-1] != len(columns) or (np.diff(starts) < 0).any():
        raise ValueError(f"{name}.starts do not fit {len(columns)} columns")
    matrix = sparse.csr_matrix((values, columns, starts), shape=shape)
    matrix.check_format(full_check=True)
    return matrix
