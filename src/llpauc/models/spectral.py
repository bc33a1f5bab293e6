"""Initial vectors from the leading singular vectors of the user-item matrix.

Training that starts from them already has the coarse structure of the data, and refines the order
at the top of the lists. LightGCN's propagation converges to the same subspace.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from llpauc.data.interactions import Interactions

Table = npt.NDArray[np.float32]

_OVERSAMPLED = 16  # further columns, which make the last requested ones converge sooner
_ROUNDS = 6


def graph_weights(train: Interactions) -> Any:
    """Users x items CSR: 1 / sqrt(degree of the user times degree of the item)."""
    weights = train.positives.copy()
    user_degrees = np.asarray(weights.sum(axis=1, dtype=float)).ravel()
    item_degrees = np.bincount(weights.indices, weights.data, minlength=train.n_items)
    degrees = np.repeat(user_degrees, np.diff(weights.indptr)) * item_degrees[weights.indices]
    weights.data = (weights.data / np.sqrt(degrees)).astype(np.float32)
    return weights


def singular_vectors(weights: Any, rank: int, seed: int) -> tuple[Table, Table, Table]:
    """The largest singular values of a sparse matrix and their vectors: (n, r), (r,), (m, r).

    Block power iteration. r is `rank`, or less where the matrix has fewer rows or columns.

    Reference: Halko et al., "Finding structure with randomness", SIAM Review 2011, algorithm 4.4.
    """
    n, m = weights.shape
    rank = min(rank, n, m)
    width = min(rank + _OVERSAMPLED, n, m)
    rng = np.random.default_rng(seed)
    right = rng.standard_normal((m, width), dtype=np.float32)
    transposed = weights.T.tocsr()
    left, _ = np.linalg.qr(weights @ right)
    for _ in range(_ROUNDS):
        right, _ = np.linalg.qr(transposed @ left)
        left, _ = np.linalg.qr(weights @ right)
    small, values, back = np.linalg.svd((transposed @ left).T, full_matrices=False)
    return (left @ small)[:, :rank], values[:rank], back[:rank].T


def spectral_rows(weights: Any, width: int, seed: int) -> tuple[Table, Table]:
    """User and item vectors whose products approximate `weights`, scaled to a mean norm of 1.

    Columns beyond the rank of the matrix are zero, as are the rows of users and items without
    events.
    """
    users, values, items = singular_vectors(weights, width, seed)
    root = np.sqrt(values)
    return _scaled(users * root, width), _scaled(items * root, width)


def _scaled(rows: Table, width: int) -> Table:
    norms = np.linalg.norm(rows, axis=1)
    mean = norms[norms > 0].mean() if norms.any() else 1.0
    out = np.zeros((len(rows), width), np.float32)
    out[:, : rows.shape[1]] = rows / mean
    return out
