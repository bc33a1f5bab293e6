"""Full-ranking evaluation: several metrics in one pass, one value per user.

Conventions, recorded in every result:

- Candidates are all items of the split, except those masked by a named policy (`MASKS`). Where
  events have types, the policy masks only pairs with an event of the types that are left out of the
  lists, and only relevant types are targets (`llpauc.data.EventRules`).
- A user without an event in the evaluated part has no value, and is counted.
- A target that is masked (because it is also in train) cannot be ranked, but counts in the
  denominator of Recall and NDCG. The AUC family is defined on candidates, and ignores it.
- Warm users have at least one training event, cold users none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet
from scipy import sparse

from llpauc.data.ids import IdMap, Indices
from llpauc.data.interactions import Part, Split, pairs_before, without
from llpauc.data.writers import write_delimited
from llpauc.distributed import SINGLE_PROCESS, ProcessGroup
from llpauc.errors import InputError, choose
from llpauc.evaluation.ranking import rank
from llpauc.evaluation.scorer import HasScorer, Scorer
from llpauc.metrics import TOPK_METRICS, parse_metric, partial_auc_from_counts
from llpauc.storage.atomic import atomic_write

Values = npt.NDArray[np.float64]

DEFAULT_METRICS = ("recall@20", "ndcg@20")


class Mask(NamedTuple):
    """Which items are not recommended to a user.

    Args:
        description: for tables and help texts.
        matrix: split, evaluated part -> CSR users x items of the masked pairs.
    """

    description: str
    matrix: Callable[[Split, Part], Any]


MASKS: dict[str, Mask] = {
    "seen": Mask("items of train, and of valid when testing", pairs_before),
    "train": Mask("items of train only", lambda split, on: split.train.excluded),
    "paper": Mask(
        "as seen, but an item that is also a target stays (as in the reference program)",
        lambda split, on: without(pairs_before(split, on), split.parts[on].targets),
    ),
    "none": Mask("nothing", lambda split, on: sparse.csr_matrix(split.train.matrix.shape)),
}


@dataclass(frozen=True)
class Evaluation:
    """One value per user for every metric; `summary()` has the means.

    Args:
        users: indices of the users evaluated, (n,).
        user_ids: the split's id map.
        warm: (n,) whether the user has a training event.
        n_targets: (n,) distinct items of the user in the evaluated part.
        values: metric name -> (n,) values; NaN where a user has none (AUC without a negative).
        n_without_targets: users of the split without a target, who have no value.
        mask: a name of `MASKS`.
        on: the evaluated part.
        items, scores: (n, K) the ranked lists, K the largest of any metric.
    """

    users: Indices
    user_ids: IdMap
    warm: npt.NDArray[np.bool_]
    n_targets: npt.NDArray[np.int64]
    values: Mapping[str, Values]
    n_without_targets: int
    mask: str
    on: Part
    items: Indices
    scores: npt.NDArray[np.float32]

    def groups(self) -> dict[str, npt.NDArray[np.bool_]]:
        return {"all": np.ones_like(self.warm), "warm": self.warm, "cold": ~self.warm}

    def mean(self, metric: str, group: str = "all") -> float:
        """Mean over the users of a group that have a value; NaN for an empty group."""
        values = choose(self.values, metric, "metric")[choose(self.groups(), group, "group")]
        values = values[~np.isnan(values)]
        return float(values.mean()) if len(values) else float("nan")

    def summary(self) -> dict[str, dict[str, float]]:
        """Group -> {"users": count, metric: mean, ...}; only "all" where no user is cold."""
        return {
            group: {
                "users": int(members.sum()),
                **{metric: self.mean(metric, group) for metric in self.values},
            }
            for group, members in self.groups().items()
            if members.any() and (group == "all" or not self.warm.all())
        }

    def table(self) -> Any:
        """An Arrow table with one row per user: id, warm, targets and every metric."""
        return pa.table(
            {
                "user_id": self.user_ids.arrow(self.users),
                "warm": self.warm,
                "targets": self.n_targets,
                **self.values,
            }
        )


def evaluate(
    scorer: Scorer | HasScorer,
    split: Split,
    *,
    on: Part = "test",
    metrics: Sequence[str] = DEFAULT_METRICS,
    mask: str = "seen",
    ties: Literal["strict", "half"] = "strict",
    memory_mb: float = 1024,
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
    processes: ProcessGroup = SINGLE_PROCESS,
) -> Evaluation:
    """Rank all items for every user of `on`, and compute the metrics.

    Args:
        scorer: a fitted `Recommender`, or the scorer of a model over the ids of the split.
        split: the evaluated part and those before it.
        on: "test" or "valid".
        metrics: names such as "recall@20", "ndcg@20", "auc", "opauc(0.1)", "llpauc(0.7,0.1)".
        mask: a name of `MASKS`.
        ties: how the AUC family counts a positive and a negative of equal score.
        memory_mb, threads, progress: as in `llpauc.evaluation.ranking.rank`; they do not change
        the result.
        processes: processes that divide the users; each returns the whole result.
    """
    if on not in split.parts:
        raise InputError(f"the data have no {on} part; parts: {', '.join(split.parts)}")
    if isinstance(scorer, HasScorer):
        scorer = scorer.scorer_for(split.user_ids, split.item_ids)
    if scorer.n_items != split.n_items:
        raise InputError(f"the model knows {scorer.n_items} items, the data have {split.n_items}")
    parsed = [parse_metric(name) for name in metrics]
    if not parsed:
        raise InputError("no metric given; try recall@20")
    masked_pairs = choose(MASKS, mask, "mask").matrix

    targets = split.parts[on].targets
    users = np.flatnonzero(np.diff(targets.indptr)).astype(np.int32)
    if not len(users):
        relevant = split.parts[on].rules.relevant
        reason = "empty" if relevant is None else f"without an event of type {relevant}"
        raise InputError(f"the {on} part is {reason}: nothing to evaluate")
    all_users, users = users, users[processes.slice_of(len(users))]
    targets, masked = targets[users], masked_pairs(split, on)[users]
    needs_counts = any(metric.k is None for metric in parsed)
    ranking = rank(
        scorer,
        users,
        max((metric.k for metric in parsed if metric.k), default=1),
        masked=masked,
        positives=without(targets, masked) if needs_counts else None,
        memory_mb=memory_mb,
        threads=threads,
        progress=progress,
    )
    n_targets = np.diff(targets.indptr).astype(np.int64)
    hits = _hits(ranking.items, targets)
    values: dict[str, Values] = {}
    for metric in parsed:
        if metric.k is not None:
            values[metric.name] = TOPK_METRICS[metric.family](hits, n_targets, metric.k)
        else:
            assert ranking.counts is not None  # since needs_counts
            values[metric.name] = partial_auc_from_counts(
                ranking.counts, alpha=metric.alpha or 1.0, beta=metric.beta or 1.0, ties=ties
            )
    return Evaluation(
        users=all_users,
        user_ids=split.user_ids,
        warm=np.diff(split.train.positives.indptr)[all_users] > 0,
        n_targets=processes.gather(n_targets),
        values={name: processes.gather(of_users) for name, of_users in values.items()},
        n_without_targets=split.n_users - len(all_users),
        mask=mask,
        on=on,
        items=processes.gather(ranking.items),
        scores=processes.gather(ranking.scores),
    )


def _hits(items: Indices, targets: Any) -> npt.NDArray[np.bool_]:
    """(n, k) whether each ranked item is a target, by binary search in sorted pair codes."""
    n, k = items.shape
    width = targets.shape[1] + 1
    rows = np.repeat(np.arange(n, dtype=np.int64), np.diff(targets.indptr))
    pairs = rows * width + targets.indices
    ranked = np.arange(n, dtype=np.int64)[:, None] * width + items
    ranked[items < 0] = -1
    position = np.searchsorted(pairs, ranked.ravel())
    hits: npt.NDArray[np.bool_] = pairs[np.minimum(position, len(pairs) - 1)] == ranked.ravel()
    return hits.reshape(n, k)


def write_per_user(results: Mapping[str, Evaluation], path: str | Path) -> None:
    """Write a Parquet file with one row per model and user."""
    tables = [
        result.table().add_column(0, "model", pa.array([name] * len(result.users)))
        for name, result in results.items()
    ]
    with atomic_write(Path(path)) as temporary:
        pyarrow.parquet.write_table(pa.concat_tables(tables), temporary)


def write_lists(results: Mapping[str, Evaluation], item_ids: IdMap, path: str | Path) -> None:
    """Write the ranked lists with ids, tab-separated: [model,] user, item, rank, score."""
    tables = []
    for name, result in results.items():
        filled = result.items >= 0
        users = np.broadcast_to(result.users[:, None], filled.shape)[filled]
        ranks = np.broadcast_to(np.arange(1, filled.shape[1] + 1), filled.shape)[filled]
        columns = {
            "model": pa.array([name] * len(users)),
            "user": result.user_ids.arrow(users),
            "item": item_ids.arrow(result.items[filled]),
            "rank": ranks,
            "score": result.scores[filled],
        }
        if len(results) == 1:
            del columns["model"]
        tables.append(pa.table(columns))
    with atomic_write(Path(path)) as temporary:
        write_delimited(pa.concat_tables(tables), temporary, "\t")
