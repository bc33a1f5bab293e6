"""New events for a fitted model: which users, items and pairs are new."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from llpauc.data.interactions import Interactions, pair_codes
from llpauc.errors import InputError
from llpauc.models.base import NewEvents
from llpauc.recommend.fitted import Fitted, extended

EPOCHS = 5  # docs/how-to/new-events.md has the measurements


def new_events(fitted: Fitted, events: Interactions) -> NewEvents:
    """Separate known from new pairs; where events have weights, all of them are new. Ids are
    extended by those of the events."""
    events = events.compact()
    user_ids = extended(fitted.user_ids, events.user_ids)
    item_ids = extended(fitted.item_ids, events.item_ids)
    pairs = fitted.histories.tocoo()
    old = Interactions(pairs.row, pairs.col, user_ids, item_ids)
    given = events.remap(user_ids, item_ids)
    if given.weights is None and (fitted.types is not None or (pairs.data != 1).any()):
        raise InputError(
            "the events of this run have weights, and the new ones have none; read them with the"
            " same columns (--weight, --event-type; weight= and event_type= in Python)"
        )
    if given.weights is None:
        first = np.sort(np.unique(_codes(given), return_index=True)[1])
        given = given.take(first)
        new = given.take(~np.isin(_codes(given), _codes(old)))
    else:  # events of known pairs add to their weights
        new = replace(given, rules=fitted.rules)
        old = replace(old, weights=pairs.data, types=fitted.types, rules=fitted.rules)
    return NewEvents(
        old,
        new,
        np.setdiff1d(new.users, old.users).astype(np.int32),
        np.setdiff1d(new.items, old.items).astype(np.int32),
    )


def _codes(events: Interactions) -> npt.NDArray[np.int64]:
    return pair_codes(events.users, events.items, events.n_items)


def check_no_half_life(params: Mapping[str, Any]) -> None:
    """Refuse a run that weights its events by age, because a run folder holds no times."""
    half_life = params.get("half_life")
    if half_life is not None and np.isfinite(half_life):
        raise InputError(
            f"this {params['model']} run weights events by age (half_life {half_life:g}), and a run"
            " folder holds no times; train again on all events (llpauc train)"
        )
