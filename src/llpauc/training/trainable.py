"""What a model must offer to be trained by `llpauc.training.fit`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from llpauc.data.interactions import Interactions
from llpauc.evaluation.scorer import Scorer
from llpauc.training.options import TrainingOptions
from llpauc.training.tables import TrainingTables


class Trainable(nn.Module, ABC):
    """A model that `llpauc.training.fit` can train.

    | attribute | meaning |
    |---|---|
    | `name` | its name in `MODELS` |
    | `options` | a dataclass with at least `dimensions` |
    | `n_users`, `n_items` | number of users and items |
    | `is_partitionable` | whether each vector depends on one row of a table only |
    """

    name: str
    options: Any
    n_users: int
    n_items: int
    is_partitionable = False

    @property
    def cosine(self) -> bool:
        """Whether rows are read at unit length."""
        return False

    @property
    @abstractmethod
    def scale(self) -> float:
        """Factor between the product of two rows and the score."""

    @abstractmethod
    def scores(self, users: Tensor, items: Tensor) -> Tensor:
        """Differentiable scores of (B,) users with (B,), (B, N) or, shared by all, (1, M) items."""

    @abstractmethod
    def scorer(self) -> Scorer:
        """Scores for evaluation."""

    @abstractmethod
    def cpu_tables(self, train: Interactions, options: TrainingOptions) -> TrainingTables:
        """The parameters as tables that `CpuEngine` trains; the memory is shared."""

    def weights(self) -> dict[str, Tensor]:
        """The parameters by name, without gradients."""
        return {name: value.detach() for name, value in self.named_parameters()}

    def init_item_bias(self, values: npt.NDArray[np.float64]) -> None:
        """Set an item bias that is still zero to (n_items,) `values`; a model may have none."""
