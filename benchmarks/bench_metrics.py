"""LLPAUC of every user of a Gowalla-size score matrix, against scikit-learn's AUC user by user.

Ours is timed from the score matrix to the per-user values, scikit-learn from one user's labels and
scores to one AUC, on users of the same chunk, in turns. Scores are drawn chunk by chunk, since the
whole matrix would have 4.9 GB.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import Any

import numba
import numpy as np
from scipy import sparse
from sklearn.metrics import roc_auc_score

from llpauc.metrics import auc_score, negatives_above, partial_auc_from_counts

GOAL = 50.0
N_USERS, N_ITEMS = 29_858, 40_988
CHUNK = 512
SKLEARN_USERS_PER_CHUNK = 3


def gowalla_like(rng: np.random.Generator, n_users: int) -> sparse.csr_array:
    """7 to 35 positives for most users, a long tail up to some hundreds."""
    counts = np.minimum(7 + rng.pareto(1.6, n_users) * 8, 800).astype(np.int64)
    items = [np.sort(rng.choice(N_ITEMS, count, replace=False)) for count in counts]
    indptr = np.concatenate(([0], np.cumsum(counts)))
    ones = np.ones(indptr[-1], np.float32)
    return sparse.csr_array((ones, np.concatenate(items), indptr), shape=(n_users, N_ITEMS))


def ours(scores: np.ndarray, positives: sparse.csr_array) -> np.ndarray:
    return partial_auc_from_counts(negatives_above(scores, positives), alpha=0.7, beta=0.1)


def seconds(function: Any, *arguments: Any) -> float:
    start = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - start


def run(quick: bool) -> dict[str, dict[str, Any]]:
    """Ratio of seconds per user, scikit-learn over ours; median over chunks."""
    rng = np.random.default_rng(0)
    positives = gowalla_like(rng, 4 * CHUNK if quick else N_USERS)
    warm = rng.random((CHUNK, N_ITEMS), dtype=np.float32)
    # Compiles, unless an earlier run left its kernels in Numba's cache.
    first_call = seconds(ours, warm, positives[:CHUNK])
    threads = numba.get_num_threads()
    fast, alone, slow = [], [], []
    total = 0.0
    for start in range(0, positives.shape[0], CHUNK):
        truth = positives[start : start + CHUNK]
        users = truth.shape[0]
        scores = warm[:users]
        rng.random(out=scores, dtype=np.float32)
        spent = seconds(ours, scores, truth)
        total += spent
        fast.append(spent / users)
        try:
            numba.set_num_threads(1)
            alone.append(seconds(ours, scores[:64], truth[:64]) / min(users, 64))
        finally:
            numba.set_num_threads(threads)
        for user in rng.choice(users, SKLEARN_USERS_PER_CHUNK, replace=False):
            labels = truth[[user]].toarray()[0]
            slow.append(seconds(roc_auc_score, labels, scores[user]))
            theirs = roc_auc_score(labels, scores[user])
            assert abs(theirs - auc_score(labels, scores[user], ties="half")) < 1e-9
    us, one, sklearn = (statistics.median(times) for times in (fast, alone, slow))
    return {
        "llpauc_metric_vs_sklearn_auc": {
            "ratio": sklearn / us,
            "goal": GOAL,
            "ratio_one_thread": sklearn / one,
            "threads": threads,
            "users": int(positives.shape[0]),
            "items": N_ITEMS,
            "positives": int(positives.nnz),
            "our_microseconds_a_user": us * 1e6,
            "sklearn_microseconds_a_user": sklearn * 1e6,
            "our_seconds_all_users": total,
            "first_call_seconds": first_call,
        }
    }


if __name__ == "__main__":
    print(json.dumps(run(quick="--quick" in sys.argv[1:]), indent=2))
