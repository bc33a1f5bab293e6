"""One fingerprint of events, to detect that a checkpoint, a study or a result is of other data."""

from __future__ import annotations

import hashlib

import numpy as np
import pyarrow as pa

from llpauc.data.interactions import Interactions


def fingerprint(*parts: Interactions | None) -> str:
    """SHA-256 of users, items, timestamps and ids of the parts, in order; None is no part.

    >>> train = Interactions.of(["ann", "bob"], [1, 2])
    >>> fingerprint(train) == fingerprint(Interactions.of(["ann", "bob"], [1, 2]))
    True
    >>> fingerprint(train) == fingerprint(train, train)
    False
    """
    digest = hashlib.sha256()
    for position, part in enumerate(parts):
        if part is None:
            continue
        if position:
            digest.update(b"part %d" % position)
        for column in (part.users, part.items, part.timestamps):
            if column is not None:
                digest.update(np.ascontiguousarray(column).data)
        for ids in (part.user_ids, part.item_ids):
            digest.update(pa.record_batch([ids.arrow()], ["id"]).serialize())
    return digest.hexdigest()
