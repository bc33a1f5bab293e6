"""Lists for many users: exact against rivals, approximate, and memory.

    python -m benchmarks.recommend [--quick] [NAME ...]     # exact, approximate, memory

`exact`: 100,000 items, 64 dimensions, k = 20, seen items left out. Rivals, interleaved in the same
run: NumPy (product in blocks, argpartition, sort), and `implicit`'s topk where it is installed.
All lists are checked to be the same. `approximate`: 600,000 items in groups, as in a real
catalogue. `memory`: 1,000,000 users x 200,000 items, all tables in memory, lists for a part of the
users, in a separate process.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy import sparse

from benchmarks.timing import interleaved
from llpauc.data.ids import IdMap
from llpauc.evaluation.scorer import FactorScorer
from llpauc.models import MF
from llpauc.models.fold_in import HistoryMap
from llpauc.recommend.fitted import Fitted
from llpauc.recommend.lists import ListRequest, ListUsers, write_recommendations

WIDTH, K, SEEN = 64, 20, 20
CAP_MB = 256
_ROUNDS = 5


def random_model(n_users: int, n_items: int, groups: int = 0) -> Fitted:
    rng = np.random.default_rng(0)
    users, items = (rng.standard_normal((n, WIDTH), dtype=np.float32) for n in (n_users, n_items))
    if groups:
        centres = 1.5 * rng.standard_normal((groups, WIDTH), dtype=np.float32)
        users += centres[rng.integers(0, groups, n_users)]
        items += centres[rng.integers(0, groups, n_items)]
    columns = rng.integers(0, n_items, n_users * SEEN).astype(np.int32)
    starts = np.arange(0, n_users * SEEN + 1, SEEN)
    ones = np.ones(len(columns), np.float32)
    has = sparse.csr_matrix((ones, columns, starts), shape=(n_users, n_items))
    has.sum_duplicates()
    has.data[:] = 1
    history_map = HistoryMap(items, np.zeros(WIDTH, np.float32), items)
    model = MF.from_vectors(users, items, history_map, items @ users.mean(axis=0))
    return Fitted(
        model,
        model.scorer(has),
        has,
        IdMap.of(np.arange(n_users)),
        IdMap.of(np.arange(n_items)),
    )


def numpy_lists(fitted: Fitted, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    scorer = fitted.scorer
    assert isinstance(scorer, FactorScorer)
    by_column, lists = np.ascontiguousarray(scorer.item_vectors.T), []
    for start in range(0, len(rows), 64):
        block = rows[start : start + 64]
        scores = scorer.user_vectors[block] @ by_column
        seen = fitted.histories[block]
        scores[np.repeat(np.arange(len(block)), np.diff(seen.indptr)), seen.indices] = -np.inf
        best = np.argpartition(scores, -K, axis=1)[:, -K:]
        order = np.argsort(-np.take_along_axis(scores, best, axis=1), axis=1)
        lists.append(np.take_along_axis(best, order, axis=1))
    return np.concatenate(lists)


def exact(quick: bool) -> None:
    n_items, n_users = (20_000, 500) if quick else (100_000, 1_000)
    fitted = random_model(n_users, n_items)
    scorer = fitted.scorer
    assert isinstance(scorer, FactorScorer)
    rows = np.arange(n_users)
    rivals = {
        "llpauc": lambda: fitted.rank_users(rows, K, True, memory_mb=CAP_MB)[0],
        "numpy": lambda: numpy_lists(fitted, rows),
    }
    try:
        from implicit.cpu.topk import topk

        items = np.ascontiguousarray(scorer.item_vectors)
        users = scorer.user_vectors[rows]
        rivals["implicit"] = lambda: topk(items, users, K, filter_query_items=fitted.histories)[0]
    except ImportError:
        print("implicit is not installed; pip install 'llpauc[bench]' installs it")
    with tempfile.TemporaryDirectory() as folder:
        rivals["llpauc, to Parquet"] = lambda: write_recommendations(
            fitted, Path(folder) / "lists.parquet", ListRequest(K, memory_mb=CAP_MB)
        )
        ours = rivals["llpauc"]()
        for name in ("numpy", "implicit"):
            if name in rivals:
                same = (np.asarray(rivals[name]()) == ours).mean()
                assert same > 0.9999, (
                    f"{name}: {same:.4%} of the entries agree"
                )  # except for rounding
        times = interleaved(rivals, _ROUNDS)
    print(f"{n_items:,} items, {WIDTH} dimensions, k = {K}, {n_users:,} users")
    for name, seconds in times.items():
        ratio = seconds / times["llpauc"]
        print(f"  {name:20} {n_users / seconds:8,.0f} users/s   llpauc is {ratio:.2f} x as fast")


def approximate(quick: bool) -> None:
    from llpauc.recommend.approximate import ApproximateRanker

    n_items, n_users = (60_000, 500) if quick else (600_000, 500)
    fitted = random_model(n_users, n_items, groups=2_000)
    started = time.perf_counter()
    ranker = ApproximateRanker(fitted, ListRequest(K))
    built = time.perf_counter() - started
    rows = np.arange(n_users)
    times = interleaved(
        {"exact": lambda: fitted.rank_users(rows, K, True), "approximate": lambda: ranker(rows)}, 3
    )
    recall, sample = ranker.measured_recall()
    print(f"{n_items:,} items in 2,000 groups, {WIDTH} dimensions, k = {K}; index in {built:.0f} s")
    print(
        f"  {ranker.searched_cells} of {ranker.cells} cells, recall {recall:.3f} of {sample} users"
    )
    for name, seconds in times.items():
        print(f"  {name:20} {n_users / seconds:8,.0f} users/s")


def one(n_users: int, n_items: int, n_lists: int) -> None:
    def megabytes(name: str) -> float:
        with open("/proc/self/status", encoding="ascii") as lines:
            return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024

    fitted = random_model(n_users, n_items)
    rows = np.linspace(0, n_users - 1, n_lists).astype(np.int64)
    users = ListUsers(rows, IdMap(fitted.user_ids.text.take(rows), fitted.user_ids.kind))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lists.parquet"
        first = ListUsers(rows[:64], users.ids)
        write_recommendations(fitted, path, ListRequest(K, memory_mb=CAP_MB), first)  # warm-up
        Path("/proc/self/clear_refs").write_text("5")  # reset the peak
        before = megabytes("VmRSS")
        started = time.perf_counter()
        written = write_recommendations(fitted, path, ListRequest(K, memory_mb=CAP_MB), users)
        seconds = time.perf_counter() - started
    peak = megabytes("VmHWM")
    tables = sum(array.nbytes for array in fitted.tensors().values()) / 2**20
    print(f"{n_users:,} users x {n_items:,} items x {WIDTH}: tables {tables:,.0f} MB")
    print(
        f"  lists for {written.users:,} users in blocks of {written.block:,},"
        f" {n_lists / seconds:,.0f} users/s"
    )
    print(f"  {peak - before:,.0f} MB above the {before:,.0f} MB before; {CAP_MB} allowed")
    print(f"  peak of the process, making the tables included: {_peak_mb():,.0f} MB")


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def memory(quick: bool) -> None:
    size = ("20000", "20000", "2000") if quick else ("1000000", "200000", "20000")
    command = [sys.executable, "-m", "benchmarks.recommend", "--one", *size]
    subprocess.run(command, check=True)


PARTS = {"exact": exact, "approximate": approximate, "memory": memory}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of: {', '.join(PARTS)}")
    parser.add_argument("--quick", action="store_true", help="smaller sizes")
    parser.add_argument("--one", type=int, nargs=3, metavar=("USERS", "ITEMS", "LISTS"))
    options = parser.parse_args()
    if options.one:
        one(*options.one)
        return 0
    unknown = set(options.names) - set(PARTS)
    if unknown:
        parser.error(f"unknown part {', '.join(unknown)}; choose from: {', '.join(PARTS)}")
    for name in options.names or PARTS:
        PARTS[name](options.quick)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
