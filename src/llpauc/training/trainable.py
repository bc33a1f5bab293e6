"""What a model must offer to be trained by `llpauc.training.fit`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from llpauc.data.interactions import Interactions
from llpauc.distributed import ProcessGroup
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
    | `user_range` | the users whose vectors this process holds; None for all |
    """

    name: str
    options: Any
    n_users: int
    n_items: int

    @property
    def user_range(self) -> slice | None:
        return None

    @property
    @abstractmethod
    def scale(self) -> float:
        """Factor between the product of two rows and the score."""

    @abstractmethod
    def scores(self, users: Tensor, items: Tensor) -> Tensor:
        """Differentiable scores of (B,) users with (B,), (B, N) or, shared by all, (1, M) items."""

    @abstractmethod
    def scorer(self) -> Scorer:
        """Scores for evaluation, of the users in `user_range`."""

    @abstractmethod
    def cpu_tables(
        self, train: Interactions, options: TrainingOptions, processes: ProcessGroup
    ) -> TrainingTables:
        """The parameters as tables that `CpuEngine` trains; the memory is shared.

        Where `user_range` is None, every process has whole tables, and the engine applies the
        gradients of all processes to them.
        """

    def local_parameters(self) -> dict[str, Tensor]:
        """The parameters by name, without gradients; of a sharded one, the rows of this process."""
        return {name: value.detach() for name, value in self.named_parameters()}

    def init_item_bias(self, values: npt.NDArray[np.float64]) -> None:
        """Set an item bias that is still zero to (n_items,) `values`; a model may have none."""
