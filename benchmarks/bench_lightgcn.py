"""One LightGCN step against the textbook one: torch.sparse COO, autograd, dense Adam.

Adressa's size, 2 layers, 64 dimensions, LLPAUC, batch 2048. Two ratios: the whole step with 100
negatives a positive, and the propagation alone, forward and backward.
"""

from __future__ import annotations

import json
import sys

import numpy as np
import torch
from torch import nn

from benchmarks.bench_epoch import EVENTS, WIDTH, adressa_like, loss_of
from benchmarks.timing import interleaved
from llpauc.data.interactions import Interactions
from llpauc.losses.minimax import minimax_optimizer
from llpauc.models.lightgcn import LightGCNNetwork, LightGCNTables
from llpauc.models.registry import LightGCNOptions
from llpauc.models.spectral import graph_weights
from llpauc.training.engine import CpuEngine
from llpauc.training.options import TrainingOptions
from llpauc.training.samplers import make_sampler

BATCH, NEGATIVES, LAYERS = 2048, 100, 2


class Textbook:
    """The adjacency of users and items as one COO matrix, as most implementations have it."""

    def __init__(self, train: Interactions) -> None:
        weights = graph_weights(train).tocoo()
        n = train.n_users + train.n_items
        rows = np.concatenate([weights.row, weights.col + train.n_users])
        columns = np.concatenate([weights.col + train.n_users, weights.row])
        self.graph = torch.sparse_coo_tensor(
            np.stack([rows, columns]),
            np.concatenate([weights.data] * 2),
            (n, n),
            check_invariants=True,
        ).coalesce()
        self.train = train
        self.table = nn.Parameter(torch.randn(n, WIDTH) * 0.01)
        self.loss = loss_of("llpauc")
        self.optimizer = minimax_optimizer(torch.optim.Adam, [self.table], self.loss, lr=1e-3)
        self.rng = np.random.default_rng(0)

    def rows(self) -> torch.Tensor:
        layer, total = self.table, self.table
        for _ in range(LAYERS):
            layer = torch.sparse.mm(self.graph, layer)
            total = total + layer
        return total / (1 + LAYERS)

    def propagation(self) -> None:
        self.table.grad = None
        self.rows().sum().backward()

    def step(self) -> None:
        some = self.rng.integers(0, len(self.train), BATCH)
        negatives = self.rng.integers(0, self.train.n_items, (BATCH, NEGATIVES))
        rows, shift = self.rows(), self.train.n_users
        u = rows[torch.from_numpy(self.train.users[some]).long()]
        i = rows[torch.from_numpy(self.train.items[some]).long() + shift]
        j = rows[torch.from_numpy(negatives) + shift]
        value = self.loss((u * i).sum(-1), (u[:, None] * j).sum(-1))
        self.optimizer.zero_grad()
        value.backward()
        self.optimizer.step()


class Ours:
    def __init__(self, train: Interactions) -> None:
        self.train = train
        model = LightGCNNetwork(train, LightGCNOptions(dimensions=WIDTH, layers=LAYERS), 0)
        sampler = make_sampler("uniform", train, NEGATIVES, 0)
        self.engine = CpuEngine(model, loss_of("llpauc"), sampler, train, TrainingOptions())
        self.rng, self.count = np.random.default_rng(0), 0
        back = self.engine.tables
        assert isinstance(back, LightGCNTables)
        self.start = [back.user_rows.copy(), back.item_rows.copy()]
        self.out = [np.empty_like(table) for table in self.start]
        self.back = back

    def propagation(self) -> None:
        self.back._propagate(self.start, self.out)  # forward,
        self.back._propagate(self.out, self.start)  # backward: the operator is symmetric

    def step(self) -> None:
        some = self.rng.integers(0, len(self.train), BATCH)
        users, items = self.train.users[some], self.train.items[some]
        self.engine.step(self.engine.prepare(self.count, users, items))
        self.count += 1


def run(quick: bool) -> dict[str, dict[str, object]]:
    train = adressa_like()
    textbook, ours = Textbook(train), Ours(train)
    rounds = 3 if quick else 9
    results: dict[str, dict[str, object]] = {}
    for what in ("step", "propagation"):
        taken = interleaved(
            {"textbook": getattr(textbook, what), "ours": getattr(ours, what)}, rounds
        )
        results[f"lightgcn_{what}"] = {
            "ratio": taken["textbook"] / taken["ours"],
            "goal": 5.0,
            "ms": 1e3 * taken["ours"],
            "textbook ms": 1e3 * taken["textbook"],
        }
    results["lightgcn_step"]["seconds an epoch"] = (
        float(str(results["lightgcn_step"]["ms"])) / 1e3 * EVENTS / BATCH
    )
    return results


if __name__ == "__main__":
    json.dump(run("--quick" in sys.argv), sys.stdout, indent=2)
