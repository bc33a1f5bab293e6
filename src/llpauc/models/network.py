"""The trainable part of a model with vectors: its parameters, and the vectors made from them.

    score(u, i) = <p_u, q_i> + bias_i                               dot
    score(u, i) = <p_u, q_i> / (|p_u| |q_i| temperature) + bias_i   cosine

The models differ in how p_u and q_i follow from the parameters:

| model | p_u | q_i |
|---|---|---|
| mf | a row of the user table | a row of the item table |
| lightgcn | mean over layers of the propagated rows | likewise |
| fism | sum of the history's rows / sqrt(its length) | a row of the item table |
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from llpauc.data.interactions import Interactions
from llpauc.distributed import current_process_group
from llpauc.evaluation.scorer import FactorScorer, Scores
from llpauc.models.spectral import graph_weights, spectral_rows
from llpauc.training.options import TrainingOptions
from llpauc.training.tables import AdamTable, TrainingTables
from llpauc.training.trainable import Trainable


class EmbeddingNetwork(Trainable):
    """Two tables of parameters, and the user and item vectors made from them.

    Args:
        train: the events; mf needs their ids only, the others the histories.
        options: an instance of the model's `Options`.
        seed: of the initial vectors.
    """

    name = ""
    warm: Tensor

    def __init__(self, train: Interactions, options: Any, seed: int) -> None:
        super().__init__()
        self.options = options
        self.n_users, self.n_items = train.n_users, train.n_items
        self.has_bias = bool(getattr(options, "item_bias", False))
        warm = torch.from_numpy(np.diff(train.positives.indptr) > 0)
        self.register_buffer("warm", warm, persistent=False)
        generator = torch.Generator().manual_seed(seed)
        self.user_table = self._initial_table(self._user_table_size(), generator)
        self.item_table = self._initial_table(self.n_items, generator, bias=self.has_bias)
        # Of several processes the first one computes them, and training sends them to the others.
        if options.init == "spectral" and current_process_group().is_first:
            users, items = spectral_rows(graph_weights(train), options.dimensions, seed)
            self._add_spectral_rows(torch.from_numpy(users), torch.from_numpy(items))

    def _user_table_size(self) -> int:
        return self.n_users

    def _initial_table(
        self, n: int, generator: torch.Generator, bias: bool = False
    ) -> nn.Parameter:
        width = self.options.dimensions
        table = torch.zeros(n, width + bias)
        table[:, :width].normal_(0.0, self.options.init_scale, generator=generator)
        return nn.Parameter(table)

    @torch.no_grad()
    def _add_spectral_rows(self, users: Tensor, items: Tensor) -> None:
        self.user_table.add_(users)
        self.item_table[:, : self.options.dimensions].add_(items)

    @property
    def cosine(self) -> bool:
        return bool(self.options.score == "cosine")

    @property
    def scale(self) -> float:
        return float(1 / self.options.temperature) if self.cosine else 1.0

    def base_rows(self) -> tuple[Tensor, Tensor]:
        """(n_users, d) and (n_items, d [+ 1]) rows before normalisation; differentiable."""
        return self.user_table, self.item_table

    def rows(self) -> tuple[Tensor, Tensor]:
        """The rows whose product times `scale`, plus the bias, is the score; differentiable."""
        users, items = self.base_rows()
        width = self.options.dimensions
        if self.cosine:
            bias = items[:, width:]
            users = nn.functional.normalize(users, dim=1)
            items = torch.cat([nn.functional.normalize(items[:, :width], dim=1), bias], dim=1)
        return users, items

    def scores(self, users: Tensor, items: Tensor) -> Tensor:
        user_rows, item_rows = self.rows()
        width = self.options.dimensions
        p, q = user_rows[users], item_rows[items]
        if items.dim() == 1:
            product = (p * q[:, :width]).sum(-1)
        elif items.shape[0] == 1 and len(users) != 1:
            product = p @ q[0, :, :width].T
        else:
            product = torch.einsum("bd,bnd->bn", p, q[..., :width])
        product = product * self.scale
        return product + q[..., width] if self.has_bias else product

    @torch.no_grad()
    def vectors(self) -> tuple[Scores, Scores]:
        """(n_users, d') and (n_items, d') float32 vectors whose inner product is the score.

        They include the scale, the bias and the vector of cold users.
        """
        users, items = (rows.detach().float().cpu() for rows in self.rows())
        width = self.options.dimensions
        users = users * self.scale
        if self.options.cold_users == "mean" and self.warm.any() and not self.warm.all():
            warm = self.warm.cpu()
            # In double precision: the mean of a million rows should not depend on their order.
            mean = users[warm].double().mean(0).float()
            users = torch.where(warm[:, None], users, mean)
        if items.shape[1] > width:
            users = torch.cat([users, torch.ones(len(users), 1)], dim=1)
        return users.numpy(), items.numpy()

    def scorer(self) -> FactorScorer:
        return FactorScorer(*self.vectors())

    def adam_tables(
        self, options: TrainingOptions, user_cosine: bool, item_cosine: bool
    ) -> tuple[AdamTable, AdamTable]:
        """The parameters as NumPy arrays with their Adam state.

        Args:
            options: of the training.
            user_cosine, item_cosine: whether rows of the table are read at unit length; rows that
                are summed or propagated first are normalised afterwards.
        """
        users, items = self.user_table.detach().numpy(), self.item_table.detach().numpy()
        width = self.options.dimensions
        return (
            AdamTable(users, options, width, user_cosine),
            AdamTable(items, options, width, item_cosine),
        )

    def cpu_tables(self, train: Interactions, options: TrainingOptions) -> TrainingTables:
        return TrainingTables(*self.adam_tables(options, self.cosine, self.cosine))

    @torch.no_grad()
    def init_item_bias(self, values: npt.NDArray[np.float64]) -> None:
        if self.has_bias:
            bias = self.item_table[:, self.options.dimensions]
            if not bias.any():
                bias.copy_(torch.from_numpy(values))


def sparse_tensor(matrix: Any) -> Tensor:
    """A scipy CSR matrix as a torch CSR tensor."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch calls its CSR tensors a beta
        return torch.sparse_csr_tensor(
            torch.from_numpy(matrix.indptr.astype(np.int64)),
            torch.from_numpy(matrix.indices.astype(np.int64)),
            torch.from_numpy(matrix.data),
            size=matrix.shape,
            check_invariants=True,
        )
