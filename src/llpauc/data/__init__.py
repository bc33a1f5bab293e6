"""Events: reading, ids, splits, filters, out-of-core sets."""
