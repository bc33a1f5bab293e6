"""Adam where most rows have no gradient: dense results at sparse cost.

In dense Adam a row without a gradient still moves: its momentum decays and carries it along. Lazy
("sparse") variants leave that out and end elsewhere. `RowAdam` leaves it out only until the row is
next looked at, and then replays all missed steps at once.

With s steps done when the row was last up to date, t = 1..n the missed ones and x = sqrt(v):

    w <- w - m sum_t c_t / (d_t x + eps)      c_t = lr b1^t / (1 - b1^(s+t))
    m <- b1^n m,  v <- b2^n v                 d_t = b2^(t/2) / sqrt(1 - b2^(s+t))

The sum is a function of x that depends on the row only through s and n. While d_t still moves much
from step to step (the first `_EXACT_STEPS`) it is summed term by term; later the d_t that carry
weight lie close together, and a fourth-order expansion around their mean d gives, with
q = d x + eps and C_k = sum_t c_t (d_t - d)^k,

    sum = (C_0 + C_2 (x/q)^2 - C_3 (x/q)^3 + C_4 (x/q)^4) / q

so that a replay of any length costs about as much as one step. Terms beyond `_REPLAYED` steps are
below b1^160, about 5e-8 of the first.

| symbol | code |
|---|---|
| m, v | `mean`, `square` |
| b1, b2 | `decay_mean`, `decay_square` |
| s | `done[row]` |
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from numba import njit, prange

from llpauc.errors import InputError
from llpauc.interactions import Rows

Table = npt.NDArray[np.float32]

_EXACT_STEPS = 128
_REPLAYED = 160
_SETTLED = 40_000  # 0.999^40000 is nothing beside 1 in double precision
FAST_MATH = {"reassoc", "contract", "nsz", "arcp"}  # sums may be reordered; NaN stays NaN


@dataclass(frozen=True)
class AdamOptions:
    """Adam's usual numbers.

    Args:
        lr: learning rate, above 0.
        decay_mean, decay_square: b1 and b2, in [0, 1).
        eps: added to the root, above 0.
        weight_decay: pulls the rows of a batch (and only those) towards zero, at least 0. Rows
            outside the batch are left alone, as recommenders usually regularise.
    """

    lr: float = 1e-3
    decay_mean: float = 0.9
    decay_square: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        for name, held, least in (
            ("lr", self.lr > 0, "above 0"),
            ("decay_mean", 0 <= self.decay_mean < 1, "in [0, 1)"),
            ("decay_square", 0 <= self.decay_square < 1, "in [0, 1)"),
            ("eps", self.eps > 0, "above 0"),
            ("weight_decay", self.weight_decay >= 0, "at least 0"),
        ):
            if not (held and math.isfinite(getattr(self, name))):
                raise InputError(f"{name} must be {least}, got {getattr(self, name)!r}")


class RowAdam:
    """Adam on the rows of one table, which it changes in place.

    `catch_up(rows)` before rows are read, `step(rows, gradients)` with distinct rows after; `count`
    is the number of steps done, and `advance()` begins the next.
    """

    def __init__(self, table: Table, options: AdamOptions) -> None:
        self.table = table
        self.options = options
        self.mean = np.zeros_like(table)
        self.square = np.zeros_like(table)
        self.done = np.zeros(len(table), np.int64)
        self.count = 0
        self._tables: Any = _bias_tables(options)

    def advance(self) -> None:
        self.count += 1

    def catch_up(self, rows: Rows | None = None) -> None:
        """Replay what `rows` (all by default) have missed, up to the current step."""
        if rows is None:
            rows = np.arange(len(self.table), dtype=np.int32)
        o = self.options
        _catch_up(
            self.table, self.mean, self.square, self.done, rows, self.count, self._tables,
            o.lr, o.decay_mean, o.decay_square, o.eps,
        )  # fmt: skip

    def step(self, rows: Rows, gradients: Table) -> None:
        """Step `count` for distinct `rows` that have caught up to the step before."""
        o = self.options
        _step_rows(
            self.table, self.mean, self.square, self.done, rows, gradients, self.count,
            np.float32(o.lr / (1 - o.decay_mean**self.count)),
            np.float32(1 / math.sqrt(1 - o.decay_square**self.count)),
            np.float32(o.decay_mean), np.float32(o.decay_square), np.float32(o.eps),
            np.float32(o.weight_decay),
        )  # fmt: skip

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """All that a resumed run needs beside the table itself."""
        return {
            "mean": self.mean,
            "square": self.square,
            "done": self.done,
            "count": np.array(self.count),
        }

    def load_state(self, state: dict[str, npt.NDArray[Any]]) -> None:
        for name in ("mean", "square", "done"):
            getattr(self, name)[:] = state[name]
        self.count = int(state["count"])


def _bias_tables(options: AdamOptions) -> tuple[Any, ...]:
    """1/(1-b1^s), 1/sqrt(1-b2^s) for s = 0.._SETTLED + _REPLAYED, and b1^t, b2^(t/2) for t = 0..

    The tables go beyond _SETTLED so that a replay reads them in one run.
    """
    steps = np.arange(_SETTLED + _REPLAYED + 1, dtype=np.float64)
    steps[0] = 1.0  # never read: step numbers begin at 1
    missed = np.arange(_REPLAYED + 1, dtype=np.float64)
    return (
        1 / (1 - options.decay_mean**steps),
        1 / np.sqrt(1 - options.decay_square**steps),
        options.decay_mean**missed,
        options.decay_square ** (missed / 2),
    )


@njit(parallel=True, cache=True, fastmath=FAST_MATH)
def _catch_up(
    table, mean, square, done, rows, count, tables, lr, decay_mean, decay_square, eps,
):  # fmt: skip
    width = table.shape[1]
    mean_bias, square_bias, mean_power, root_power = tables
    log_decay_mean = math.log(max(decay_mean, 1e-300))
    log_decay_square = math.log(max(decay_square, 1e-300))
    for place in prange(len(rows)):
        row = rows[place]
        since = done[row]
        missed = count - since
        done[row] = count
        if missed <= 0 or since == 0:  # up to date, or never touched: no momentum to carry it
            continue
        terms = min(missed, _REPLAYED)
        since = min(since, _SETTLED)
        if since < _EXACT_STEPS:
            for k in range(width):
                root = math.sqrt(np.float64(square[row, k]))
                total = 0.0
                for t in range(1, terms + 1):
                    spread = root_power[t] * square_bias[since + t] * root + eps
                    total += mean_power[t] * mean_bias[since + t] / spread
                table[row, k] -= np.float32(lr * np.float64(mean[row, k]) * total)
        else:
            c0, d, c2, c3, c4 = _moments(
                since, terms, mean_bias, square_bias, mean_power, root_power
            )
            c0, c2, c3, c4 = (
                np.float32(lr * c0), np.float32(lr * c2), np.float32(lr * c3), np.float32(lr * c4)
            )  # fmt: skip
            d, small = np.float32(d), np.float32(eps)
            for k in range(width):
                root = np.sqrt(square[row, k])
                q = np.float32(1) / (d * root + small)
                p = root * q
                total = (c0 + p * p * (c2 - p * (c3 - p * c4))) * q
                table[row, k] -= mean[row, k] * total
        # By exp of a logarithm: a power with a whole exponent costs as much as the replay.
        left_mean = np.float32(math.exp(missed * log_decay_mean))
        left_square = np.float32(math.exp(missed * log_decay_square))
        for k in range(width):
            mean[row, k] *= left_mean
            square[row, k] *= left_square


@njit(cache=True, fastmath=FAST_MATH)
def _moments(since, terms, mean_bias, square_bias, mean_power, root_power):
    """C_0, the mean d, and the central moments C_2, C_3, C_4 of d_t under the weights c_t / lr."""
    # Raw moments about a point near the mean lose no digits and need one pass.
    middle = min(10, terms)
    near = root_power[middle] * square_bias[since + middle]
    r0 = r1 = r2 = r3 = r4 = 0.0
    for t in range(1, terms + 1):
        weight = mean_power[t] * mean_bias[since + t]
        apart = root_power[t] * square_bias[since + t] - near
        r0 += weight
        r1 += weight * apart
        r2 += weight * apart * apart
        r3 += weight * apart * apart * apart
        r4 += weight * apart * apart * apart * apart
    h = r1 / r0
    c2 = r2 - h * r1
    c3 = r3 - 3 * h * r2 + 2 * h * h * r1
    c4 = r4 - 4 * h * r3 + 6 * h * h * r2 - 3 * h * h * h * r1
    return r0, near + h, c2, c3, c4


@njit(parallel=True, cache=True, fastmath=FAST_MATH)
def _step_rows(
    table, mean, square, done, rows, gradients, count,
    rate, root_scale, decay_mean, decay_square, eps, weight_decay,
):  # fmt: skip
    width = table.shape[1]
    fresh_mean, fresh_square = np.float32(1) - decay_mean, np.float32(1) - decay_square
    for place in prange(len(rows)):
        row = rows[place]
        done[row] = count
        w, m, v, g = table[row], mean[row], square[row], gradients[place]
        for k in range(width):
            slope = g[k] + weight_decay * w[k]
            m[k] = decay_mean * m[k] + fresh_mean * slope
            v[k] = decay_square * v[k] + fresh_square * slope * slope
            w[k] -= rate * m[k] / (np.sqrt(v[k]) * root_scale + eps)


class ScalarAdam:
    """Adam for a loss's few variables, some of them climbing.

    torch.optim.Adam spends some 200 microseconds a step on five scalars, longer than the rest of a
    batch takes; plain floats, written through a view of the variables' own memory, spend ten.

    Args:
        variables: scalar parameters on the CPU with their rate multiplier; a negative one climbs.
        options: weight decay is not applied to a loss's variables.
    """

    def __init__(
        self, variables: Sequence[tuple[torch.nn.Parameter, float]], options: AdamOptions
    ) -> None:
        self.options = options
        self.count = 0
        self._slots = [
            (variable, variable.detach().numpy(), rate, [0.0, 0.0]) for variable, rate in variables
        ]

    def step(self) -> None:
        o = self.options
        self.count += 1
        mean_bias = 1 - o.decay_mean**self.count
        root_bias = math.sqrt(1 - o.decay_square**self.count)
        for variable, value, rate, moments in self._slots:
            if variable.grad is None:
                continue
            slope = variable.grad.item()
            moments[0] = o.decay_mean * moments[0] + (1 - o.decay_mean) * slope
            moments[1] = o.decay_square * moments[1] + (1 - o.decay_square) * slope * slope
            move = moments[0] / mean_bias / (math.sqrt(moments[1]) / root_bias + o.eps)
            value[()] -= o.lr * rate * move

    def state(self) -> npt.NDArray[np.float64]:
        """(1 + n, 2): the step count, then each variable's two moments."""
        return np.array([[self.count, 0.0], *[moments for *_, moments in self._slots]])

    def load_state(self, state: npt.NDArray[np.float64]) -> None:
        self.count = int(state[0, 0])
        for (*_, moments), saved in zip(self._slots, state[1:].tolist(), strict=True):
            moments[:] = saved
