"""Matrix factorisation: a vector for each user and each item."""

from __future__ import annotations

from llpauc.models.embedding import EmbeddingModel
from llpauc.models.network import EmbeddingNetwork
from llpauc.models.registry import BiasedEmbeddingOptions


class MFNetwork(EmbeddingNetwork):
    """p_u and q_i are rows of the two tables."""

    name = "mf"
    is_partitionable = True


class MF(EmbeddingModel):
    """Matrix factorisation. See `llpauc.models.network` for its score."""

    name = "mf"
    Options = BiasedEmbeddingOptions
    Network = MFNetwork
