"""Interactions: ids, readers, splits, filters, and data larger than memory.

Nothing is imported before it is used.
"""

from typing import TYPE_CHECKING

from llpauc.options import lazy_exports

if TYPE_CHECKING:
    from llpauc.data.catalogue import *
    from llpauc.data.demo import *
    from llpauc.data.filters import *
    from llpauc.data.formats import *
    from llpauc.data.ids import *
    from llpauc.data.inspection import *
    from llpauc.data.interactions import *
    from llpauc.data.noise import *
    from llpauc.data.out_of_core import *
    from llpauc.data.prepared import *
    from llpauc.data.readers import *
    from llpauc.data.recency import *
    from llpauc.data.sources import *
    from llpauc.data.splits import (  # not *: the module imports another `inspect`
        SPLITS,
        hold_out,
        split,
        split_auto,
        split_leave_k_out,
        split_random,
        split_random_per_user,
        split_temporal,
    )
    from llpauc.data.writers import *

_NAMES = {
    "catalogue": "Catalogue read_catalogue",
    "demo": "demo_data",
    "filters": "Filters clean k_core rated_at_least",
    "formats": "FORMATS",
    "ids": "IdMap Indices",
    "inspection": "Inspection inspect",
    "interactions": "EventRules Interactions Split",
    "noise": "clean_and_noise write_pair",
    "out_of_core": "prepare",
    "prepared": "open_prepared",
    "readers": "Reading load read_interactions read_split",
    "recency": "age_weights choose_recency",
    "sources": "Format ReadOptions Source",
    "splits": "SPLITS hold_out split split_auto split_leave_k_out split_random"
    " split_random_per_user split_temporal",
    "writers": "write_split",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [*_MODULES]
__getattr__ = lazy_exports(__name__, _MODULES)
