"""Interactions: ids, readers, splits, filters, and data larger than memory.

Nothing is imported before it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from llpauc.options import lazy_exports

if TYPE_CHECKING:
    from llpauc.data.demo import demo_data
    from llpauc.data.filters import k_core, rated_at_least
    from llpauc.data.formats import FORMATS
    from llpauc.data.ids import IdMap, Indices
    from llpauc.data.inspection import Inspection, inspect
    from llpauc.data.interactions import Interactions, Split
    from llpauc.data.noise import clean_and_noise, write_pair
    from llpauc.data.out_of_core import prepare
    from llpauc.data.prepared import open_prepared
    from llpauc.data.readers import Reading, load, read_interactions, read_split
    from llpauc.data.recency import age_weights, choose_recency
    from llpauc.data.sources import Format, ReadOptions, Source
    from llpauc.data.splits import (
        SPLITS,
        hold_out,
        split,
        split_leave_k_out,
        split_random,
        split_random_per_user,
        split_temporal,
    )
    from llpauc.data.writers import write_split

__all__ = [
    "FORMATS",
    "Format",
    "IdMap",
    "Indices",
    "Inspection",
    "Interactions",
    "ReadOptions",
    "Reading",
    "SPLITS",
    "Source",
    "Split",
    "age_weights",
    "choose_recency",
    "clean_and_noise",
    "demo_data",
    "hold_out",
    "inspect",
    "k_core",
    "load",
    "open_prepared",
    "prepare",
    "rated_at_least",
    "read_interactions",
    "read_split",
    "split",
    "split_leave_k_out",
    "split_random",
    "split_random_per_user",
    "split_temporal",
    "write_pair",
    "write_split",
]

_MODULES = {
    "demo": ["demo_data"],
    "filters": ["k_core", "rated_at_least"],
    "formats": ["FORMATS"],
    "ids": ["IdMap", "Indices"],
    "inspection": ["Inspection", "inspect"],
    "interactions": ["Interactions", "Split"],
    "noise": ["clean_and_noise", "write_pair"],
    "out_of_core": ["prepare"],
    "prepared": ["open_prepared"],
    "readers": ["Reading", "load", "read_interactions", "read_split"],
    "recency": ["age_weights", "choose_recency"],
    "sources": ["Format", "ReadOptions", "Source"],
    "splits": ["SPLITS", "hold_out", *(name for name in __all__ if name.startswith("split"))],
    "writers": ["write_split"],
}
__getattr__ = lazy_exports(
    __name__, {name: module for module, names in _MODULES.items() for name in names}
)
