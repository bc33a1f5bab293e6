"""Matrix factorisation whose rows are divided among processes, for tables too large for one.

The tables are DTensors of torch (`Shard(0)`): each process has a run of rows, its share by
`ProcessGroup.bounds`. They start with the very numbers that one process would have drawn.
"""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from llpauc.data.interactions import Indices, Interactions
from llpauc.distributed import ProcessGroup
from llpauc.errors import InputError
from llpauc.evaluation.scorer import FactorScorer, Scores
from llpauc.models.embedding import MF, EmbeddingOptions
from llpauc.training.options import TrainingOptions
from llpauc.training.tables import ShardedTables
from llpauc.training.trainable import TrainingTables

_AT_ONCE = 1 << 16  # rows drawn at a time; torch draws the same in blocks of 16 numbers


class ShardScorer(FactorScorer):
    """Scores of the users from row `first` on, as many as there are vectors."""

    def __init__(self, user_vectors: Scores, item_vectors: Scores, first: int) -> None:
        super().__init__(user_vectors, item_vectors)
        self._first = first

    def scores_into(self, users: Indices, out: Scores) -> None:
        super().scores_into(users - self._first, out)


class ShardedMF(MF):
    """MF of which this process has a share.

    Args:
        train, options, seed: as for every embedding model.
        processes: the processes that share it; alone, the share is the whole.
    """

    def __init__(
        self, train: Interactions, options: EmbeddingOptions, seed: int, processes: ProcessGroup
    ) -> None:
        if options.start != "random":
            raise InputError(
                f"start={options.start!r} needs the whole table in one process; with shard, use"
                " start='random'"
            )
        self.processes = processes
        super().__init__(train, options, seed)

    def _start(self, n: int, generator: torch.Generator, bias: bool = False) -> nn.Parameter:
        width, mine = self.options.dimensions, self.processes.slice_of(n)
        share = torch.empty(mine.stop - mine.start, width + bias)
        begin = 0
        while begin < n:
            end = begin + _AT_ONCE if n - begin >= 2 * _AT_ONCE else n
            drawn = torch.zeros(end - begin, width + bias)
            drawn[:, :width].normal_(0.0, self.options.init_scale, generator=generator)
            low, high = max(begin, mine.start), min(end, mine.stop)
            if low < high:
                share[low - mine.start : high - mine.start] = drawn[low - begin : high - begin]
            begin = end
        return nn.Parameter(self._divided(share, n))

    def _divided(self, share: Tensor, n: int) -> Tensor:
        if self.processes.world_size == 1:
            return share
        mesh = init_device_mesh("cpu", (self.processes.world_size,))
        shape = torch.Size((n, share.shape[1]))
        return DTensor.from_local(
            share, mesh, [Shard(0)], run_check=False, shape=shape, stride=(share.shape[1], 1)
        )

    def local_parameters(self) -> dict[str, Tensor]:
        return {name: local(value.detach()) for name, value in self.named_parameters()}

    def cpu_tables(
        self, train: Interactions, options: TrainingOptions, processes: ProcessGroup
    ) -> TrainingTables:
        tables = self.adam_tables(options, self.cosine, self.cosine)
        return ShardedTables(*tables, self.n_users, self.n_items, processes)

    def _local_items(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return values[self.processes.slice_of(self.n_items)]

    def base_rows(self) -> tuple[Tensor, Tensor]:
        return local(self.user_table), local(self.item_table)

    @property
    def user_range(self) -> slice:
        return self.processes.slice_of(self.n_users)

    def _warm_rows(self) -> Tensor:
        return self.warm[self.user_range]

    def _mean_user(self, warm: Tensor) -> Tensor:
        *total, n = self.processes.sum([*warm.double().sum(0).tolist(), float(len(warm))])
        return (torch.tensor(total, dtype=torch.float64) / n).float()

    def scorer(self) -> FactorScorer:
        """ProcessGroup this process's users, over all items."""
        users, items = super().vectors()
        return ShardScorer(users, self.processes.gather(items), self.user_range.start)

    def vectors(self) -> tuple[Scores, Scores]:
        """The whole tables on the first process; none of their rows on the others."""
        users, items = (
            share[:0] if whole is None else whole
            for share in super().vectors()
            for whole in [self.processes.gather_to_first(share)]
        )
        return users, items


def local(tensor: Tensor) -> Tensor:
    """This process's share of a divided tensor; a whole one as it is."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
