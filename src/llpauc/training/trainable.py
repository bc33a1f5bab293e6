"""What a model must offer to be trained by `llpauc.training.fit`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from llpauc.data.interactions import Indices, Interactions
from llpauc.distributed import ProcessGroup
from llpauc.evaluation.scorer import Scorer
from llpauc.training.batches import Pairs
from llpauc.training.options import TrainingOptions

Table = npt.NDArray[np.float32]


@dataclass(frozen=True)
class PairGradients:
    """The gradient of the item rows, one entry per (user, item) pair, not yet summed by item.

    Args:
        pairs: the pairs of the batch, grouped by item.
        slopes: scale times d loss / d score of each pair, in the order of `pairs`.
        scale: factor between the product of two rows and the score.
        user_rows: the user rows that were read, one for each positive of the batch.
    """

    pairs: Pairs
    slopes: Table
    scale: float
    user_rows: Table


ItemGradients = Table | PairGradients


class TrainingTables(Protocol):
    """The parameters of a model as NumPy arrays, updated by Adam: what `CpuEngine` trains.

    A batch makes three calls. `prepare` brings the rows to be read up to date; the scores are
    computed from `user_rows` and `item_rows`; `apply` takes the gradients of the rows that were
    read. The arrays share memory with the parameters of the model.

    | attribute | meaning |
    |---|---|
    | `user_rows`, `item_rows` | the vectors to read; an item row may end with a bias |
    | `by_slot` | whether these hold the rows of the prepared batch only, in its order |
    | `uses_all_threads` | whether `prepare` and `apply` keep every thread busy |
    """

    @property
    def user_rows(self) -> Table: ...

    @property
    def item_rows(self) -> Table: ...

    @property
    def by_slot(self) -> bool: ...

    @property
    def uses_all_threads(self) -> bool: ...

    def prepare(self, users: Indices, items: Indices) -> None:
        """Bring these distinct rows up to date."""
        ...

    def apply(
        self, users: Indices, user_gradients: Table, items: Indices, item_gradients: ItemGradients
    ) -> None:
        """One optimizer step, with a gradient for each distinct user and item. Those of the items
        may still be by pair; `tables.summed_by_item` sums them."""
        ...

    def settle(self) -> None:
        """Bring every row up to date, before the model is evaluated or saved."""
        ...

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """The state of the optimizer, by name."""
        ...

    def load_state(self, state: dict[str, npt.NDArray[Any]]) -> None:
        """Continue from `state`, with the parameters as they were then."""
        ...


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
        """The parameters as tables that `CpuEngine` can train.

        Where `user_range` is None and there are several processes, the engine keeps the copies of
        all processes equal.
        """

    def local_parameters(self) -> dict[str, Tensor]:
        """The parameters by name, without gradients; of a sharded one, the rows of this process."""
        return {name: value.detach() for name, value in self.named_parameters()}

    def init_item_bias(self, values: npt.NDArray[np.float64]) -> None:
        """Set an item bias that is still zero to (n_items,) `values`; a model may have none."""
