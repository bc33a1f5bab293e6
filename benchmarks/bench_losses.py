"""Forward and backward of LLPAUC against BPR and BCE, and the cost of the two solvers.

    python benchmarks/bench_losses.py [--quick]

BPR and BCE are the library's functions without input checks, softplus and a mean; LLPAUC is the
module with its checks and five variables. All take turns in one process, scores as leaves in
float32, two threads.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numba
import torch
from torch import Tensor

from llpauc.losses import (
    LLPAUCLoss,
    attach,
    bce_loss,
    bpr_loss,
    exact_saddle,
    llpauc_objective,
    minimax_parameter_groups,
)

GOAL = 1.5
GROWTH_GOAL = 1.2  # of the cost of an entry, from any size to any larger one
SIZES = [(batch, n) for batch in (128, 1024, 8192) for n in (100, 1000)]
THREADS = 2


def step_of(value: Callable[[], Tensor], leaves: list[Tensor]) -> Callable[[], None]:
    def step() -> None:
        for leaf in leaves:
            leaf.grad = None
        value().backward()

    return step


def microseconds(
    steps: dict[str, Callable[[], Any]], rounds: int, seconds: float
) -> dict[str, list[float]]:
    """Times of each, sorted; taken in turns, so that other load affects all equally."""
    repeats = {}
    for name, step in steps.items():
        step()  # compile, allocate
        start = time.perf_counter()
        step()
        repeats[name] = max(1, int(seconds / (time.perf_counter() - start)))
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            start = time.perf_counter()
            for _ in range(repeats[name]):
                step()
            times[name].append((time.perf_counter() - start) / repeats[name] * 1e6)
    return {name: sorted(values) for name, values in times.items()}


def at_size(batch: int, n: int, rounds: int, seconds: float) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(batch + n)
    pos = torch.randn(batch, generator=generator).requires_grad_()
    neg = (torch.randn(batch, n, generator=generator) - 1.0).requires_grad_()
    llpauc, exact = LLPAUCLoss(0.7, 0.1), LLPAUCLoss(0.7, 0.1, solver="exact")
    variables = list(llpauc.parameters())
    plain_pos, plain_neg = pos.detach(), neg.detach()
    times = microseconds(
        {
            "bpr": step_of(lambda: bpr_loss(pos, neg), [pos, neg]),
            "bce": step_of(lambda: bce_loss(pos, neg), [pos, neg]),
            "llpauc": step_of(lambda: llpauc(pos, neg), [pos, neg, *variables]),
            "exact": step_of(lambda: exact(pos, neg), [pos, neg]),
            "autograd": step_of(
                lambda: llpauc_objective(pos, neg, llpauc.variables, llpauc.settings),
                [pos, neg, *variables],
            ),
            "without_autograd": lambda: llpauc.value_and_grads(plain_pos, plain_neg),
        },
        rounds,
        seconds,
    )
    micros = {name: statistics.median(values) for name, values in times.items()}
    best = {name: values[0] for name, values in times.items()}
    return {
        "ratio": round(micros["llpauc"] / micros["bpr"], 3),
        "goal": GOAL,
        "smaller is better": True,
        "ratio_of_best": round(best["llpauc"] / best["bpr"], 3),
        "ratio_to_bce": round(micros["llpauc"] / micros["bce"], 3),
        "ratio_exact_to_bpr": round(micros["exact"] / micros["bpr"], 3),
        "ratio_autograd_to_bpr": round(micros["autograd"] / micros["bpr"], 3),
        "best_ns_per_entry": round(best["llpauc"] * 1e3 / (batch * n), 3),
        "bpr_best_ns_per_entry": round(best["bpr"] * 1e3 / (batch * n), 3),
        "median_microseconds": {name: round(value, 1) for name, value in micros.items()},
    }


def saddle_gap(sharpness: float, steps: int, seed: int = 0) -> dict[str, float]:
    """How far from the exact saddle value SGDA's variables end on frozen scores of one batch."""
    generator = torch.Generator().manual_seed(seed)
    pos = torch.randn(128, generator=generator)
    neg = torch.randn(128, 100, generator=generator) - 1.0
    loss = LLPAUCLoss(0.75, 0.1, sharpness=sharpness)  # 96 positives and 1280 negatives exactly
    optimizer = torch.optim.SGD(minimax_parameter_groups([], loss, lr=0.05)[1:])
    attach(loss, optimizer)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(pos, neg).backward()
        optimizer.step()
    saddle = exact_saddle(pos, neg, alpha=0.75, beta=0.1)
    diagnosis = loss.diagnose(pos, neg).values
    return {
        "sharpness": sharpness,
        "value": round(loss(pos, neg).item(), 4),
        "saddle_value": round(saddle.value.item(), 4),
        "gap": round(loss.gap.item(), 4),
        "saddle_gap": round(saddle.variables.gap.item(), 4),
        "pos_fraction": round(diagnosis["pos_fraction"], 3),
        "neg_fraction": round(diagnosis["neg_fraction"], 3),
    }


def growth(costs: list[float]) -> float:
    """The largest factor by which a cost exceeds that of a smaller size; at most 1 is flat."""
    return round(max(later / min(costs[: i + 1]) for i, later in enumerate(costs[1:])), 3)


def size_name(batch: int, n: int) -> str:
    return f"llpauc_over_bpr_B{batch}_N{n}"


def run(quick: bool) -> dict[str, dict[str, Any]]:
    """One entry per size, one for growth, one for each sharpness of the solver comparison."""
    before = torch.get_num_threads(), numba.get_num_threads()
    torch.set_num_threads(THREADS)
    numba.set_num_threads(min(THREADS, before[1]))
    try:
        rounds, seconds = (15, 0.004) if quick else (75, 0.004)
        results = {size_name(b, n): at_size(b, n, rounds, seconds) for b, n in SIZES}
    finally:
        torch.set_num_threads(before[0])
        numba.set_num_threads(before[1])
    by_size = sorted(SIZES, key=lambda size: size[0] * size[1])
    costs = [results[size_name(b, n)]["best_ns_per_entry"] for b, n in by_size]
    rival = [results[size_name(b, n)]["bpr_best_ns_per_entry"] for b, n in by_size]
    results["llpauc_cost_growth"] = {
        "ratio": growth(costs),
        "goal": GROWTH_GOAL,
        "smaller is better": True,
        "bpr_ratio": growth(rival),
        "best_ns_per_entry": costs,
    }
    steps = 2000 if quick else 10_000
    for sharpness in (5.0, 20.0, 100.0):
        result = saddle_gap(sharpness, steps)
        bias = abs(result["value"] - result["saddle_value"])
        results[f"saddle_bias_sharpness_{sharpness:g}"] = {
            "ratio": bias,
            "goal": None,
            "smaller is better": True,
            **result,
        }
    return results


if __name__ == "__main__":
    print(json.dumps(run("--quick" in sys.argv), indent=2))
