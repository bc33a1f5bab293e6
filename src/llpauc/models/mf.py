"""Matrix factorisation: a vector for each user and each item."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from llpauc.data.ids import Indices
from llpauc.data.interactions import Interactions
from llpauc.distributed import ProcessGroup, current_process_group
from llpauc.errors import InputError
from llpauc.evaluation.scorer import FactorScorer, Scores
from llpauc.models.embedding import EmbeddingModel
from llpauc.models.network import EmbeddingNetwork
from llpauc.models.registry import BiasedEmbeddingOptions
from llpauc.training.options import TrainingOptions
from llpauc.training.tables import ShardedTables, TrainingTables

_ROWS_PER_DRAW = 1 << 16  # torch draws the same numbers in blocks of any multiple of 16


class MFNetwork(EmbeddingNetwork):
    """p_u and q_i are rows of the two tables."""

    name = "mf"


class ShardedMFNetwork(MFNetwork):
    """MF whose rows are divided among processes, for tables too large for one.

    The tables are DTensors of torch (`Shard(0)`): each process holds the range of rows that
    `ProcessGroup.bounds` assigns to it. The initial values are those of a single process.

    Args:
        train, options, seed: see `EmbeddingNetwork`.
        processes: the processes; a single one holds all rows.
    """

    def __init__(
        self, train: Interactions, options: Any, seed: int, processes: ProcessGroup
    ) -> None:
        if options.init != "random":
            raise InputError(
                f"init={options.init!r} needs the whole table in one process; with shard, use"
                " init='random'"
            )
        self.processes = processes
        super().__init__(train, options, seed)

    def _initial_table(
        self, n: int, generator: torch.Generator, bias: bool = False
    ) -> nn.Parameter:
        width, local_range = self.options.dimensions, self.processes.slice_of(n)
        shard = torch.empty(local_range.stop - local_range.start, width + bias)
        begin = 0
        while begin < n:
            end = begin + _ROWS_PER_DRAW if n - begin >= 2 * _ROWS_PER_DRAW else n
            drawn = torch.zeros(end - begin, width + bias)
            drawn[:, :width].normal_(0.0, self.options.init_scale, generator=generator)
            low, high = max(begin, local_range.start), min(end, local_range.stop)
            if low < high:
                first = local_range.start
                shard[low - first : high - first] = drawn[low - begin : high - begin]
            begin = end
        if self.processes.world_size == 1:
            return nn.Parameter(shard)
        mesh = init_device_mesh("cpu", (self.processes.world_size,))
        shape = torch.Size((n, shard.shape[1]))
        table = DTensor.from_local(
            shard, mesh, [Shard(0)], run_check=False, shape=shape, stride=(shard.shape[1], 1)
        )
        return nn.Parameter(table)

    def local_parameters(self) -> dict[str, Tensor]:
        return {name: _local(value.detach()) for name, value in self.named_parameters()}

    def cpu_tables(
        self, train: Interactions, options: TrainingOptions, processes: ProcessGroup
    ) -> TrainingTables:
        tables = self.adam_tables(options, self.cosine, self.cosine)
        return ShardedTables(*tables, self.n_users, self.n_items, processes)

    def _local_items(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return values[self.processes.slice_of(self.n_items)]

    def base_rows(self) -> tuple[Tensor, Tensor]:
        return _local(self.user_table), _local(self.item_table)

    @property
    def user_range(self) -> slice:
        return self.processes.slice_of(self.n_users)

    def _local_warm(self) -> Tensor:
        return self.warm[self.user_range]

    def _mean_user(self, warm: Tensor) -> Tensor:
        *total, n = self.processes.sum([*warm.double().sum(0).tolist(), float(len(warm))])
        return (torch.tensor(total, dtype=torch.float64) / n).float()

    def scorer(self) -> FactorScorer:
        """Scores of this process's users for all items."""
        users, items = super().vectors()
        return _ShardScorer(users, self.processes.gather(items), self.user_range.start)

    def vectors(self) -> tuple[Scores, Scores]:
        """The whole tables on the first process, empty tables on the others."""
        users, items = (
            shard[:0] if whole is None else whole
            for shard in super().vectors()
            for whole in [self.processes.gather_to_first(shard)]
        )
        return users, items


class _ShardScorer(FactorScorer):
    """Scores of the users from index `first` on, as many as there are vectors."""

    def __init__(self, user_vectors: Scores, item_vectors: Scores, first: int) -> None:
        super().__init__(user_vectors, item_vectors)
        self._first = first

    def scores_into(self, users: Indices, out: Scores) -> None:
        super().scores_into(users - self._first, out)


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


class MF(EmbeddingModel):
    """Matrix factorisation. See `llpauc.models.network` for its score."""

    name = "mf"
    Options = BiasedEmbeddingOptions
    Network = MFNetwork

    def new_network(self, train: Interactions, options: TrainingOptions) -> EmbeddingNetwork:
        if options.shard:
            return ShardedMFNetwork(train, self.options, options.seed, current_process_group())
        return super().new_network(train, options)
