"""Models made of vectors: a user's score for an item is a product of two rows.

The two tables a model hands out (`user_vectors`, `item_vectors`) are all that scoring, ranking and
serving know of it. Cosine or dot is a property of the model: it is trained and ranked by the same
score.

    score(u, i) = <p_u, q_i> + bias_i                           dot
    score(u, i) = <p_u, q_i> / (|p_u| |q_i| temperature) + bias_i   cosine

What p_u and q_i are is what the models differ in:

| model | p_u | q_i |
|---|---|---|
| mf | its own row | its own row |
| lightgcn | mean over layers of the propagated rows | likewise |
| itemsum | sum of the history's rows / sqrt(its length) | its own row |
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from llpauc.data.interactions import Interactions
from llpauc.distributed import ProcessGroup
from llpauc.errors import InputError, check_at_least, choose
from llpauc.evaluation.scorer import FactorScorer, Scores
from llpauc.models.backbones import (
    ItemSumTables,
    LightGCNTables,
    graph_weights,
    history_weights,
)
from llpauc.models.spectral import spectral_rows
from llpauc.training.options import TrainingOptions
from llpauc.training.tables import AdamTable, EmbeddingTables
from llpauc.training.trainable import Trainable, TrainingTables

ScoreKind = Literal["dot", "cosine"]
ColdUsers = Literal["mean", "random"]
Start = Literal["random", "spectral"]


@dataclass(frozen=True)
class EmbeddingOptions:
    """What every embedding model can be told.

    Args:
        dimensions: width of the vectors, at least 1.
        score: "dot" or "cosine".
        temperature: divides the cosine, above 0; small values give the sigmoid room.
        item_bias: one more number an item, added to its score; training starts it at the log of
            the item's popularity, of late where events have a half-life.
        init_scale: standard deviation of the starting vectors, above 0.
        start: "random", or "spectral": the leading singular vectors of who has what, with the
            random ones as a jitter (see `llpauc.models.spectral`); wants a lower rate.
        layers: of the graph (lightgcn), at least 1.
        cold: what a user without a training event gets: "mean", the mean user vector, ranks close
            to popularity; "random" keeps the untrained vector, as the paper does.
    """

    dimensions: int = 64
    score: ScoreKind = "dot"
    temperature: float = 1.0
    item_bias: bool = False
    init_scale: float = 0.01
    start: Start = "random"
    layers: int = 2
    cold: ColdUsers = "mean"

    def __post_init__(self) -> None:
        check_at_least("dimensions", self.dimensions, 1)
        check_at_least("layers", self.layers, 1)
        choose({"dot": 1, "cosine": 1}, self.score, "score")
        choose({"mean": 1, "random": 1}, self.cold, "treatment of cold users")
        choose({"random": 1, "spectral": 1}, self.start, "start")
        for name in ("temperature", "init_scale"):
            if not 0 < getattr(self, name) < float("inf"):
                raise InputError(f"{name} must be above 0, got {getattr(self, name)!r}")
        if self.score == "dot" and self.temperature != 1.0:
            raise InputError(
                f"temperature ({self.temperature!r}) divides a cosine; a dot product learns its"
                " own scale: set score='cosine' or leave temperature out"
            )


class EmbeddingModel(Trainable):
    """The parameters of a model and the way from them to the two tables.

    Args:
        train: the events; MF needs their ids alone, the others the graph of who has what.
        options: see `EmbeddingOptions`.
        seed: of the starting vectors.
    """

    name = "embedding"
    options: EmbeddingOptions
    warm: Tensor

    def __init__(self, train: Interactions, options: EmbeddingOptions, seed: int) -> None:
        super().__init__()
        self.options = options
        self.n_users, self.n_items = train.n_users, train.n_items
        self.register_buffer(
            "warm", torch.from_numpy(np.diff(train.matrix.indptr) > 0), persistent=False
        )
        generator = torch.Generator().manual_seed(seed)
        self.user_table = self._start(self._user_rows(), generator)
        self.item_table = self._start(self.n_items, generator, bias=options.item_bias)
        if options.start == "spectral":
            self._add_spectral_rows(train, seed)

    def _user_rows(self) -> int:
        """How many rows the table has that users are made of."""
        return self.n_users

    def _start(self, n: int, generator: torch.Generator, bias: bool = False) -> nn.Parameter:
        width = self.options.dimensions
        table = torch.zeros(n, width + bias)
        table[:, :width].normal_(0.0, self.options.init_scale, generator=generator)
        return nn.Parameter(table)

    @torch.no_grad()
    def _add_spectral_rows(self, train: Interactions, seed: int) -> None:
        width = self.options.dimensions
        users, items = map(torch.from_numpy, spectral_rows(graph_weights(train), width, seed))
        self.user_table.add_(items if self.name == "itemsum" else users)  # its h is of items
        self.item_table[:, :width].add_(items)

    @property
    def scale(self) -> float:
        """What the product of two rows is multiplied with to be the score."""
        return 1 / self.options.temperature if self.options.score == "cosine" else 1.0

    def base_rows(self) -> tuple[Tensor, Tensor]:
        """(n_users, d), (n_items, d [+ 1]): the rows before any normalisation."""
        return self.user_table, self.item_table

    def rows(self) -> tuple[Tensor, Tensor]:
        """The rows whose scaled product (plus bias) is the score; differentiable."""
        users, items = self.base_rows()
        width = self.options.dimensions
        if self.options.score == "cosine":
            bias = items[:, width:]
            users = nn.functional.normalize(users, dim=1)
            items = torch.cat([nn.functional.normalize(items[:, :width], dim=1), bias], dim=1)
        return users, items

    def scores(self, users: Tensor, items: Tensor) -> Tensor:
        """Scores of (B,) users with (B,), (B, N) or, shared by all, (M,) items given as (1, M)."""
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
        return product + q[..., width] if self.options.item_bias else product

    @torch.no_grad()
    def vectors(self) -> tuple[Scores, Scores]:
        """The two tables as they rank: scale, bias and the fallback for cold users inside.

        (n_users, d') and (n_items, d') float32, their inner product the score.
        """
        users, items = (rows.detach().float().cpu() for rows in self.rows())
        width = self.options.dimensions
        users = users * self.scale
        if self.options.cold == "mean" and self.warm.any() and not self.warm.all():
            warm = self._warm_rows()
            users = torch.where(warm[:, None], users, self._mean_user(users[warm]))
        if items.shape[1] > width:
            users = torch.cat([users, torch.ones(len(users), 1)], dim=1)
        return users.numpy(), items.numpy()

    def _warm_rows(self) -> Tensor:
        """Which of the rows that `rows` gives have a training event."""
        return self.warm.cpu()

    def _mean_user(self, warm: Tensor) -> Tensor:
        # In double precision: a mean over a million rows should not depend on their order.
        return warm.double().mean(0).float()

    def scorer(self) -> FactorScorer:
        return FactorScorer(*self.vectors())

    def adam_tables(
        self, options: TrainingOptions, user_cosine: bool, item_cosine: bool
    ) -> tuple[AdamTable, AdamTable]:
        """The parameters of this process as NumPy arrays with their Adam state.

        Args:
            options: of the training.
            user_cosine, item_cosine: whether rows of the table are read at unit length; rows that
                are summed or propagated first are normalised afterwards.
        """
        tables, width = self.local_parameters(), self.options.dimensions
        return (
            AdamTable(tables["user_table"].numpy(), width, user_cosine, options.adam),
            AdamTable(tables["item_table"].numpy(), width, item_cosine, options.adam),
        )

    @property
    def cosine(self) -> bool:
        return self.options.score == "cosine"

    def cpu_tables(
        self, train: Interactions, options: TrainingOptions, processes: ProcessGroup
    ) -> TrainingTables:
        return EmbeddingTables(*self.adam_tables(options, self.cosine, self.cosine))

    @torch.no_grad()
    def init_item_bias(self, values: npt.NDArray[np.float64]) -> None:
        if self.options.item_bias:
            bias = self.local_parameters()["item_table"][:, self.options.dimensions]
            if not bias.any():
                bias.copy_(torch.from_numpy(self._local_items(values)))

    def _local_items(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The entries of the items that this process holds."""
        return values


class MF(EmbeddingModel):
    """Matrix factorisation: every user and every item has a row of its own."""

    name = "mf"


class ItemSum(EmbeddingModel):
    """The user is the sum of the items they have: a new user needs no training.

    p_u = sum_{i in history} h_i / sqrt(|history|), with h a second item table.

    Reference: Kabbur et al., "FISM", KDD 2013, with the exponent 1/2 and the item itself not left
    out of its own history.
    """

    name = "itemsum"
    history: Tensor

    def __init__(self, train: Interactions, options: EmbeddingOptions, seed: int) -> None:
        super().__init__(train, options, seed)
        self.register_buffer("history", _sparse(history_weights(train)), persistent=False)

    def _user_rows(self) -> int:
        return self.n_items  # h

    def base_rows(self) -> tuple[Tensor, Tensor]:
        return self.history @ self.user_table, self.item_table

    def cpu_tables(
        self, train: Interactions, options: TrainingOptions, processes: ProcessGroup
    ) -> TrainingTables:
        return ItemSumTables(*self.adam_tables(options, False, self.cosine), history_weights(train))


class LightGCN(EmbeddingModel):
    """Indices smoothed over the graph of users and items: the mean of layers 0..L.

    E^(l+1) = D^-1/2 A D^-1/2 E^(l),   E = mean_l E^(l)

    Reference: He et al., "LightGCN", SIGIR 2020, eqs. (3), (4) with equal layer weights.
    """

    name = "lightgcn"
    to_users: Tensor
    to_items: Tensor

    def __init__(self, train: Interactions, options: EmbeddingOptions, seed: int) -> None:
        super().__init__(train, options, seed)
        if options.item_bias:
            raise InputError("lightgcn has no item bias; set item_bias to False")
        weights = graph_weights(train)
        self.register_buffer("to_users", _sparse(weights), persistent=False)
        self.register_buffer("to_items", _sparse(weights.T.tocsr()), persistent=False)

    def base_rows(self) -> tuple[Tensor, Tensor]:
        users: Tensor = self.user_table
        items: Tensor = self.item_table
        user_sum, item_sum = users, items
        for _ in range(self.options.layers):
            users, items = self.to_users @ items, self.to_items @ users
            user_sum, item_sum = user_sum + users, item_sum + items
        return user_sum / (1 + self.options.layers), item_sum / (1 + self.options.layers)

    def cpu_tables(
        self, train: Interactions, options: TrainingOptions, processes: ProcessGroup
    ) -> TrainingTables:
        return LightGCNTables(
            *self.adam_tables(options, False, False),
            to_users=graph_weights(train),
            layers=self.options.layers,
            cosine=self.cosine,
            interval=options.share,
        )


def _sparse(matrix: Any) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch calls its CSR tensors a beta
        return torch.sparse_csr_tensor(
            torch.from_numpy(matrix.indptr.astype(np.int64)),
            torch.from_numpy(matrix.indices.astype(np.int64)),
            torch.from_numpy(matrix.data),
            size=matrix.shape,
            check_invariants=True,
        )


EMBEDDING_MODELS: dict[str, Callable[[Interactions, EmbeddingOptions, int], EmbeddingModel]] = {
    "mf": MF,
    "lightgcn": LightGCN,
    "itemsum": ItemSum,
}
