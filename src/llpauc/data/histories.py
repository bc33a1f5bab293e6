"""The events before the part under test.

The parts of a split follow each other in time: train, valid, test. A model tested on one of them
may learn from the parts before it; their items are not recommended again.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any, Literal

from llpauc.data.interactions import Interactions, Split
from llpauc.errors import choose

History = Literal["train", "all"]
Part = Literal["valid", "test"]

HISTORIES: dict[str, str] = {
    "train": "the train part only, as in the paper",
    "all": "all events before the part under test: train, and valid when testing",
}


def before(split: Split, on: Part, history: History = "all") -> list[Interactions]:
    """The parts a model may learn from before it is tested on `on`, the oldest first."""
    choose(HISTORIES, history, "history")
    if history == "all" and on == "test" and split.valid is not None and len(split.valid):
        return [split.train, split.valid]
    return [split.train]


def join(parts: Sequence[Interactions]) -> Interactions:
    """The parts of a split as one table, one after another."""
    return reduce(Interactions.followed_by, parts)


def pairs_before(split: Split, on: Part) -> Any:
    """The user-item pairs before `on` as a CSR matrix; mapped parts are not copied.

    >>> train, valid = ([(0, 1)], [(0, 0)])
    >>> split = Split.of(*(Interactions.of(*zip(*part)) for part in (train, valid, valid)))
    >>> pairs_before(split, "test").nnz, pairs_before(split, "valid").nnz
    (2, 1)
    """
    return reduce(lambda one, other: one.maximum(other), [p.matrix for p in before(split, on)])


def without(pairs: Any, others: Any) -> Any:
    """The pairs of a CSR matrix that are not in another one.

    >>> from scipy.sparse import csr_matrix
    >>> without(csr_matrix([[1, 1]]), csr_matrix([[0, 1]])).toarray().tolist()
    [[1, 0]]
    """
    left = (pairs - pairs.multiply(others)).tocsr()
    left.eliminate_zeros()
    left.sort_indices()
    return left
