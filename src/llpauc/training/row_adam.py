"""Adam where most rows have no gradient: dense results at sparse cost.

In dense Adam a row without a gradient still moves, by its decaying momentum. Lazy ("sparse")
variants of Adam omit this and give other results. Here it is postponed until the row is read
again; `catch_up` then replays all missed steps at once.

With s steps done when the row was last up to date, t = 1..n the missed steps and x = sqrt(v):

    w <- w - m sum_t c_t / (d_t x + eps)      c_t = lr b1^t / (1 - b1^(s+t))
    m <- b1^n m,  v <- b2^n v                 d_t = b2^(t/2) / sqrt(1 - b2^(s+t))

The sum is a function of x that depends on the row only through s and n. In the first `_EXACT_STEPS`
steps d_t changes much from step to step, and the terms are summed. Later the d_t with large c_t are
close together, and a fourth-order expansion around their mean d gives, with q = d x + eps and
C_k = sum_t c_t (d_t - d)^k,

    sum = (C_0 + C_2 (x/q)^2 - C_3 (x/q)^3 + C_4 (x/q)^4) / q

so that a replay of any length costs about as much as one step. Terms beyond `_REPLAYED` steps are
below b1^160, about 5e-8 of the first, and are dropped; the moments C_k of a full replay depend on s
only and are tabulated.

| symbol | code |
|---|---|
| m, v | `mean`, `square` |
| b1, b2, eps | `_B1`, `_B2`, `_EPS` |
| s | `done[row]` |
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from numba import njit, prange

from llpauc.data.ids import Indices

Table = npt.NDArray[np.float32]
Steps = npt.NDArray[np.int64]
Constants = tuple[np.float32, ...]

_B1, _B2, _EPS = 0.9, 0.999, 1e-8
_EXACT_STEPS = 128
_REPLAYED = 160
_SETTLED = 40_000  # 1 - 0.999^40000 is 1 in double precision
PADDING = 256  # float32 numbers around each array; see `empty_table`
FAST_MATH = {"reassoc", "contract", "nsz", "arcp"}  # sums may be reordered; NaN stays NaN


def catch_up(
    table: Table, mean: Table, square: Table, done: Steps, rows: Indices, count: int, lr: float
) -> int:
    """Replay the missed steps of `rows` up to step `count`; the number of rows that had any.

    Args:
        table: the parameters w.
        mean, square: the moments m and v.
        done: for each row, the step up to which it is up to date.
        rows: distinct rows.
        count: steps begun so far.
        lr: learning rate.
    """
    tables: Any = _bias_tables()
    replayed: int = _catch_up(table, mean, square, done, rows, count, tables, lr, _B1, _B2, _EPS)
    return replayed


def step_constants(count: int, lr: float, weight_decay: float) -> Constants:
    """The constants of step `count` for `step_rows` and `adam_row`, in float32."""
    rate, root_scale = lr / (1 - _B1**count), 1 / math.sqrt(1 - _B2**count)
    constants = rate, root_scale, _B1, _B2, 1 - _B1, 1 - _B2, _EPS, weight_decay
    return tuple(map(np.float32, constants))


def fill(into: npt.NDArray[Any], saved: npt.NDArray[Any]) -> None:
    """Copy a saved array into `into`; ValueError where shape or dtype differ."""
    if (saved.shape, saved.dtype) != (into.shape, into.dtype):
        raise ValueError(f"{saved.dtype} {saved.shape} in place of {into.dtype} {into.shape}")
    into[...] = saved


def empty_table(shape: tuple[int, ...]) -> Table:
    """An uninitialised array that begins at a cache line, as tensors of torch do and NumPy arrays
    do not: rows that cross cache lines take a third longer to read.

    Padding keeps it apart from other arrays: a compiled loop over two rows tests whether they are
    close together and then rounds differently, so the bits would depend on the allocator.
    """
    size = math.prod(shape)
    table: Table = torch.empty(size + 2 * PADDING)[PADDING : PADDING + size].view(shape).numpy()
    return table


def zero_table(shape: tuple[int, ...]) -> Table:
    """An `empty_table` filled with zeros."""
    table = empty_table(shape)
    table.fill(0)
    return table


@cache
def _bias_tables() -> tuple[Any, ...]:
    """1/(1-b1^s) and 1/sqrt(1-b2^s) for s up to _SETTLED + _REPLAYED, b1^t and b2^(t/2) for t up to
    _REPLAYED, and the moments of a full replay for s up to _SETTLED."""
    steps = np.arange(_SETTLED + _REPLAYED + 1, dtype=np.float64)
    steps[0] = 1.0  # not used: steps are counted from 1
    missed = np.arange(_REPLAYED + 1, dtype=np.float64)
    series = (
        1 / (1 - _B1**steps),
        1 / np.sqrt(1 - _B2**steps),
        _B1**missed,
        _B2 ** (missed / 2),
    )
    full = np.zeros((_SETTLED + 1, 5))
    _tabulate(full, *series)
    return *series, full


@njit(cache=True)
def _tabulate(full, mean_bias, square_bias, mean_power, root_power):
    for since in range(_EXACT_STEPS, len(full)):
        full[since] = _moments(since, _REPLAYED, mean_bias, square_bias, mean_power, root_power)


@njit(parallel=True, nogil=True, cache=True, fastmath=FAST_MATH, error_model="numpy")
def _catch_up(
    table, mean, square, done, rows, count, tables, lr, decay_mean, decay_square, eps,
):  # fmt: skip
    width = table.shape[1]
    mean_bias, square_bias, mean_power, root_power, full = tables
    log_decay_mean = math.log(max(decay_mean, 1e-300))
    log_decay_square = math.log(max(decay_square, 1e-300))
    small = np.float32(eps)
    replayed = 0
    for place in prange(len(rows)):
        row = rows[place]
        since = done[row]
        missed = count - since
        done[row] = count
        if missed <= 0 or since == 0:  # up to date, or without momentum
            continue
        replayed += 1
        terms = min(missed, _REPLAYED)
        since = min(since, _SETTLED)
        w, m, v = table[row], mean[row], square[row]
        if since < _EXACT_STEPS:
            total = np.zeros(width + 2 * PADDING, np.float32)[PADDING:-PADDING]
            for t in range(1, terms + 1):
                c = np.float32(lr * mean_power[t] * mean_bias[since + t])
                d = np.float32(root_power[t] * square_bias[since + t])
                for k in range(width):
                    total[k] += c / (d * np.sqrt(v[k]) + small)
            for k in range(width):
                w[k] -= m[k] * total[k]
        else:
            if terms == _REPLAYED:
                c0, d, c2, c3, c4 = full[since]
            else:
                c0, d, c2, c3, c4 = _moments(
                    since, terms, mean_bias, square_bias, mean_power, root_power
                )
            c0, c2, c3, c4 = (
                np.float32(lr * c0), np.float32(lr * c2), np.float32(lr * c3), np.float32(lr * c4)
            )  # fmt: skip
            d = np.float32(d)
            for k in range(width):
                root = np.sqrt(v[k])
                q = np.float32(1) / (d * root + small)
                p = root * q
                total = (c0 + p * p * (c2 - p * (c3 - p * c4))) * q
                w[k] -= m[k] * total
        # exp of a logarithm: a power with an integer exponent costs as much as the replay.
        left_mean = np.float32(math.exp(missed * log_decay_mean))
        left_square = np.float32(math.exp(missed * log_decay_square))
        for k in range(width):
            m[k] *= left_mean
            v[k] *= left_square
    return replayed


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


@njit(inline="always")
def adam_row(w, m, v, g, constants):
    """One step of one row; see `step_constants`."""
    rate, root_scale, decay_mean, decay_square, fresh_mean, fresh_square, eps, decay = constants
    for k in range(len(w)):
        slope = g[k] + decay * w[k]
        first = decay_mean * m[k] + fresh_mean * slope
        second = decay_square * v[k] + fresh_square * slope * slope
        m[k], v[k] = first, second
        w[k] -= rate * first / (np.sqrt(second) * root_scale + eps)


@njit(parallel=True, nogil=True, cache=True, fastmath=FAST_MATH, error_model="numpy")
def step_rows(table, mean, square, done, rows, gradients, count, constants):
    """Step `count` of distinct rows that are up to date with the step before."""
    for place in prange(len(rows)):
        row = rows[place]
        done[row] = count
        adam_row(table[row], mean[row], square[row], gradients[place], constants)


class ScalarAdam:
    """Adam for the few variables of a loss, of which some ascend.

    For five scalars, torch.optim.Adam takes 200 microseconds per step, longer than the rest of a
    batch; plain floats take ten.

    Args:
        variables: scalar parameters on the CPU with a factor of the learning rate; negative ones
            ascend.
        lr: learning rate.
        interval: how many steps one call of `step` stands for, all with the same gradient.
    """

    def __init__(
        self,
        variables: Sequence[tuple[torch.nn.Parameter, float]],
        lr: float,
        interval: int = 1,
    ) -> None:
        self._lr, self._interval, self.count = lr * interval, interval, 0
        self._slots = [
            (variable, variable.detach().numpy(), rate, [0.0, 0.0]) for variable, rate in variables
        ]

    def step(self) -> None:
        self.count += self._interval
        decay_mean, decay_square = _B1**self._interval, _B2**self._interval
        mean_bias = 1 - _B1**self.count
        root_bias = math.sqrt(1 - _B2**self.count)
        for variable, value, rate, moments in self._slots:
            if variable.grad is None:
                continue
            slope = variable.grad.item()
            moments[0] = decay_mean * moments[0] + (1 - decay_mean) * slope
            moments[1] = decay_square * moments[1] + (1 - decay_square) * slope * slope
            move = moments[0] / mean_bias / (math.sqrt(moments[1]) / root_bias + _EPS)
            value[()] -= self._lr * rate * move

    def state(self) -> npt.NDArray[np.float64]:
        """(1 + n, 2): the step count, then the two moments of each variable."""
        return np.array([[self.count, 0.0], *[moments for *_, moments in self._slots]])

    def load_state(self, state: npt.NDArray[np.float64]) -> None:
        self.count = int(state[0, 0])
        for (*_, moments), saved in zip(self._slots, state[1:].tolist(), strict=True):
            moments[:] = saved
