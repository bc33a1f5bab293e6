"""Rules for lists: conditions on the catalogue, and at most some items of each group."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from llpauc.data.catalogue import Catalogue
from llpauc.data.ids import IdMap, Indices
from llpauc.errors import InputError, check_at_least
from llpauc.evaluation.scorer import Scores

Positions = npt.NDArray[np.int64]
_FIRST_WIDTH = 4  # times k items are ranked first; more only for users whose lists are too short


@dataclass(frozen=True, eq=False)
class GroupLimit:
    """At most `at_most` items of each group in a list.

    Args:
        at_most: in a list.
        groups: (n_items,) number of each item's group; an item of group -1 is not limited.
    """

    at_most: int
    groups: Positions

    def apply(
        self, rank: Callable[[Positions, int], tuple[Indices, Scores]], n: int, k: int
    ) -> tuple[Indices, Scores]:
        """(n, k) items and scores: the best lists that keep the limit.

        Lists are ranked wider than k where the limit removes items, so that a list is shorter than
        k only where no further item may be added.

        Args:
            rank: lists of some users without the limit, given their positions and the length.
            n: number of users.
            k: length of the lists.
        """
        items, scores = np.full((n, k), -1, np.int32), np.full((n, k), -np.inf, np.float32)
        left, width = np.arange(n), min(_FIRST_WIDTH * k, len(self.groups))
        while len(left):
            found, values = rank(left, width)
            place = np.cumsum(self._allowed(found), axis=1)
            row, column = np.nonzero((place <= k) & self._allowed(found))
            items[left[row], place[row, column] - 1] = found[row, column]
            scores[left[row], place[row, column] - 1] = values[row, column]
            more = (place[:, -1] < k) & (found[:, -1] >= 0) & (width < len(self.groups))
            left, width = left[more], min(_FIRST_WIDTH * width, len(self.groups))
        return items, scores

    def _allowed(self, items: Indices) -> npt.NDArray[np.bool_]:
        """Whether each item of each list is among the first `at_most` of its group."""
        groups = np.where(items >= 0, self.groups[items], -1)
        order = np.argsort(groups, axis=1, kind="stable")
        in_order = np.take_along_axis(groups, order, axis=1)
        places = np.broadcast_to(np.arange(items.shape[1]), items.shape)
        begins = np.ones(items.shape, bool)
        begins[:, 1:] = in_order[:, 1:] != in_order[:, :-1]
        in_group = places - np.maximum.accumulate(np.where(begins, places, 0), axis=1)
        kept = np.empty(items.shape, bool)
        np.put_along_axis(kept, order, (in_group < self.at_most) | (in_order < 0), axis=1)
        return kept & (items >= 0)


@dataclass(frozen=True)
class CatalogueRules:
    """Conditions on a catalogue for the items of a run.

    Args:
        catalogue: of the items; None where there is none.
        item_ids: of the run.
    """

    catalogue: Catalogue | None
    item_ids: IdMap

    @cached_property
    def _rows(self) -> Positions:
        """The row of each item of the run in the catalogue, -1 where it is missing."""
        return self._required().ids.indices(self.item_ids.text)

    def _required(self) -> Catalogue:
        if self.catalogue is None:
            raise InputError(
                "there is no catalogue for where and per; give one (--items FILE, items= in Python)"
            )
        return self.catalogue

    def allowed(self, where: str | None) -> Positions | None:
        """Indices of the items for which a condition is true; None without a condition.

        Items that are not in the catalogue are not allowed.
        """
        if where is None:
            return None
        chosen = np.zeros(len(self._required()) + 1, bool)  # the last stands for a missing item
        chosen[self._required().matching(where)] = True
        allowed = np.flatnonzero(chosen[self._rows])
        if not len(allowed):
            raise InputError(f"where {where!r:.100} is true for no item of the run")
        return allowed

    def limit(self, at_most: int | None, per: str | None) -> GroupLimit | None:
        """The limit on items with the same value of a column; None without one."""
        if at_most is None and per is None:
            return None
        if at_most is None or per is None:
            raise InputError("at_most and per belong together, such as at_most=3, per='category'")
        groups = np.append(self._required().groups(per), -1)
        return GroupLimit(check_at_least("at_most", at_most, 1), groups[self._rows])
