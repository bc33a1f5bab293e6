"""One epoch of MF on Adressa-sized data against the textbook PyTorch loop, written out below.

The textbook loop is what the reference program does: nn.Embedding, NumPy sampling, autograd, dense
torch.optim.Adam. Both engines have the same semantics: 165,004 positives, batch 128, 100 uniform
negatives each, 64 dimensions, dense Adam at 1e-3. It is timed on a part of an epoch (its batches
all cost the same) and scaled up; ours runs whole epochs. Rounds are interleaved, medians count.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from llpauc.data.ids import IdMap
from llpauc.data.interactions import Interactions
from llpauc.losses import Loss, make_loss
from llpauc.losses.minimax import minimax_optimizer
from llpauc.models.mf import MFNetwork
from llpauc.models.registry import BiasedEmbeddingOptions
from llpauc.training.batches import batches
from llpauc.training.engine import CpuEngine
from llpauc.training.options import TrainingOptions
from llpauc.training.samplers import make_sampler

N_USERS, N_ITEMS, EVENTS, BATCH, NEGATIVES, WIDTH = 87_416, 2_221, 165_004, 128, 100, 64
# Forward, gradient of the users, gradient of the items: two operations per number each.
FLOPS = EVENTS * (NEGATIVES + 1) * WIDTH * 2 * 3
PARAMETERS: dict[str, dict[str, float]] = {"llpauc": {"alpha": 0.7, "beta": 0.1}}
GOALS = {"llpauc": 60.0, "bpr": 20.0, "bce": 20.0, "sce": 20.0, "sl": 20.0}


def adressa_like() -> Interactions:
    """As many users, items and events as Adressa's training set, with a long tail."""
    rng = np.random.default_rng(0)
    users = rng.integers(0, N_USERS, EVENTS)
    items = (N_ITEMS * rng.random(EVENTS) ** 6).astype(np.int32)
    return Interactions(users, items, IdMap.of(range(N_USERS)), IdMap.of(range(N_ITEMS)))


def loss_of(name: str) -> Loss:
    return make_loss(name, **PARAMETERS.get(name, {}))


class Textbook:
    """nn.Embedding, NumPy sampling, autograd, dense Adam."""

    def __init__(self, train: Interactions, loss: Loss) -> None:
        self.train, self.loss = train, loss
        self.users = nn.Embedding(train.n_users, WIDTH)
        self.items = nn.Embedding(train.n_items, WIDTH)
        for table in (self.users, self.items):
            nn.init.normal_(table.weight, std=0.01)
        params = [*self.users.parameters(), *self.items.parameters()]
        self.optimizer = minimax_optimizer(torch.optim.Adam, params, loss, lr=1e-3)
        self.rng = np.random.default_rng(0)

    def batches(self, n: int) -> None:
        cosine = self.loss.score == "cosine"
        for _ in range(n):
            rows = self.rng.integers(0, len(self.train), BATCH)
            negatives = self.rng.integers(0, self.train.n_items, (BATCH, NEGATIVES))
            u = self.users(torch.from_numpy(self.train.users[rows]).long())
            i = self.items(torch.from_numpy(self.train.items[rows]).long())
            j = self.items(torch.from_numpy(negatives))
            if cosine:
                u, i, j = (nn.functional.normalize(x, dim=-1) for x in (u, i, j))
            value = self.loss((u * i).sum(-1), (u[:, None] * j).sum(-1))
            self.optimizer.zero_grad()
            value.backward()
            self.optimizer.step()


class Ours:
    """The library's engine."""

    def __init__(self, train: Interactions, loss: Loss, sampler: str, n: int, batch: int) -> None:
        self.train, self.batch, self.step = train, batch, 0
        model = MFNetwork(train, BiasedEmbeddingOptions(dimensions=WIDTH, score=loss.score), 0)
        self.engine = CpuEngine(
            model, loss, make_sampler(sampler, train, n, 0), train, TrainingOptions(lr=1e-3)
        )

    def epoch(self) -> None:
        order = np.random.default_rng(self.step).permutation(len(self.train))
        for batch in batches(self.engine, self.train, order, self.batch, self.step):
            self.engine.step(batch)
            self.step += 1
        self.engine.settle()


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def run(quick: bool) -> dict[str, dict[str, object]]:
    train = adressa_like()
    n_batches = -(-EVENTS // BATCH)
    part, rounds = (10, 3) if quick else (40, 5)
    results: dict[str, dict[str, object]] = {}
    for name, goal in GOALS.items():
        textbook, ours = (
            Textbook(train, loss_of(name)),
            Ours(train, loss_of(name), "uniform", NEGATIVES, BATCH),
        )
        textbook.batches(3)
        ours.epoch()
        times: dict[str, list[float]] = {"textbook": [], "ours": []}
        for _ in range(rounds):
            times["textbook"].append(seconds(lambda t=textbook: t.batches(part)) / part * n_batches)
            times["ours"].append(seconds(ours.epoch))
        epoch = {who: statistics.median(epoch_seconds) for who, epoch_seconds in times.items()}
        results[f"epoch_mf_{name}"] = {
            "ratio": epoch["textbook"] / epoch["ours"],
            "goal": goal,
            "seconds": epoch["ours"],
            "textbook seconds": epoch["textbook"],
            "examples/s": EVENTS / epoch["ours"],
            "GFLOP/s": FLOPS / epoch["ours"] / 1e9,
            "fraction of the floor of 0.2 s": 0.2 / epoch["ours"],
        }
    results |= shared_pairs(train, float(str(results["epoch_mf_llpauc"]["seconds"])), quick)
    results |= against_implicit(train, float(str(results["epoch_mf_bpr"]["seconds"])), rounds)
    return results


def shared_pairs(train: Interactions, sampled: float, quick: bool) -> dict[str, dict[str, object]]:
    """Positive-negative pairs a second with shared and with all items, against sampled ones."""
    results: dict[str, dict[str, object]] = {}
    per_second = EVENTS * NEGATIVES / sampled
    for sampler, n, batch in (("shared", 1024, 1024), ("all-items", 1, 1024)):
        ours = Ours(train, loss_of("llpauc"), sampler, n, batch)
        ours.epoch()
        epoch_seconds = statistics.median(seconds(ours.epoch) for _ in range(1 if quick else 3))
        pairs = EVENTS * (n if sampler == "shared" else train.n_items) / epoch_seconds
        results[f"pairs_{sampler}"] = {
            "ratio": pairs / per_second,
            "goal": 10.0,
            "pairs/s": pairs,
            "sampled pairs/s": per_second,
            "seconds an epoch": epoch_seconds,
        }
    return results


def against_implicit(train: Interactions, ours: float, rounds: int) -> dict[str, dict[str, object]]:
    """Pairs a second against implicit's BPR, which takes one negative a positive (Hogwild SGD)."""
    try:
        from implicit.bpr import BayesianPersonalizedRanking
    except ImportError:
        return {}
    matrix = train.matrix
    model = BayesianPersonalizedRanking(factors=WIDTH, iterations=10, num_threads=0)
    model.fit(matrix, show_progress=False)
    epoch_seconds = statistics.median(
        seconds(lambda: model.fit(matrix, show_progress=False)) / 10 for _ in range(rounds)
    )
    theirs = matrix.nnz / epoch_seconds
    return {
        "pairs_bpr_against_implicit": {
            "ratio": EVENTS * NEGATIVES / ours / theirs,
            "goal": 1.0,
            "pairs/s": EVENTS * NEGATIVES / ours,
            "implicit pairs/s": theirs,
        }
    }


if __name__ == "__main__":
    json.dump(run("--quick" in sys.argv), sys.stdout, indent=2)
