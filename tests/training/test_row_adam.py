"""AdamTable compared with the dense Adam of torch: rare updates, long gaps, weight decay."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from llpauc.errors import InputError
from llpauc.training.options import TrainingOptions
from llpauc.training.row_adam import ScalarAdam
from llpauc.training.tables import AdamTable


def gradients(rng, n, width, step, scale):
    """Gradients of some rows; row r has one about every r+1 steps."""
    rows = np.flatnonzero(rng.random(n) < 1 / (1 + np.arange(n)))
    if step == 0:
        rows = np.arange(n)
    return rows.astype(np.int32), (scale * rng.standard_normal((len(rows), width))).astype(
        np.float32
    )


@pytest.mark.parametrize(
    ("steps", "scale"),
    [(500, 1.0), (500, 1e-7), (2000, 1e-4)],  # eps = 1e-8 matters at 1e-7
)
def test_adam_table_equals_dense_adam(scale, steps):
    rng = np.random.default_rng(3)
    n, width, lr = 300, 5, 1e-2
    start = rng.standard_normal((n, width)).astype(np.float32)
    rows_adam = AdamTable(start.copy(), TrainingOptions(lr=lr), start.shape[1])
    dense = torch.nn.Parameter(torch.tensor(start, dtype=torch.float64))
    optimizer = torch.optim.Adam([dense], lr=lr)
    for step in range(steps):
        rows, score_grads = gradients(rng, n, width, step, scale)
        rows_adam.prepare(rows)
        rows_adam.apply(rows, score_grads)
        dense.grad = torch.zeros_like(dense)
        dense.grad[torch.tensor(rows).long()] = torch.tensor(score_grads, dtype=torch.float64)
        optimizer.step()
    rows_adam.settle()
    moved = np.abs(dense.detach().numpy() - start).max()
    assert moved > 10 * lr  # the weights have moved
    # Weights near 1 in float32 round by 6e-8 a step; a lazy Adam would be off by about lr.
    np.testing.assert_allclose(rows_adam.table, dense.detach().numpy(), atol=lr * 2e-3, rtol=0)


def test_adam_table_differs_from_lazy_adam():
    """Without the replay the same rows end several learning rates away."""
    rng = np.random.default_rng(3)
    n, width, lr = 300, 5, 1e-2
    start = rng.standard_normal((n, width)).astype(np.float32)
    replayed, lazy = (
        AdamTable(start.copy(), TrainingOptions(lr=lr), start.shape[1]) for _ in range(2)
    )
    for step in range(500):
        rows, score_grads = gradients(rng, n, width, step, 1.0)
        for adam, catch_up in ((replayed, True), (lazy, False)):
            if catch_up:
                adam.prepare(rows)
            adam.apply(rows, score_grads)
    replayed.settle()
    assert np.abs(replayed.table - lazy.table).max() > lr


@pytest.mark.parametrize("since", [1, 10, 127, 128, 300, 5000, 60_000])
@pytest.mark.parametrize("missed", [1, 2, 50, 200, 1000])
def test_adam_table_settle_equals_single_steps(since, missed):
    """The closed form equals the sum in double precision, from any step and for any gap."""
    lr, b1, b2, eps = 1e-3, 0.9, 0.999, 1e-8
    rng = np.random.default_rng(since)
    mean = rng.standard_normal((40, 1)).astype(np.float32)
    square = (10.0 ** rng.uniform(-18, 0, (40, 1))).astype(np.float32)
    adam = AdamTable(np.zeros((40, 1), np.float32), TrainingOptions(lr=lr), 1)
    adam.mean[:], adam.square[:], adam.done[:] = mean * np.sqrt(square), square, since
    adam.count = since + missed
    m, v, w = adam.mean.astype(float), square.astype(float), np.zeros((40, 1))
    for t in range(1, missed + 1):
        m, v = b1 * m, b2 * v
        s = since + t
        w -= lr / (1 - b1**s) * m / (np.sqrt(v) / np.sqrt(1 - b2**s) + eps)
    adam.settle()
    np.testing.assert_allclose(adam.table, w, rtol=3e-5, atol=1e-9)
    np.testing.assert_allclose(adam.mean, m, rtol=1e-4, atol=1e-30)
    np.testing.assert_allclose(adam.square, v, rtol=1e-4)


def test_adam_table_weight_decay_equals_torch_on_rows_of_the_batch():
    rng = np.random.default_rng(0)
    start = rng.standard_normal((6, 4)).astype(np.float32)
    adam = AdamTable(start.copy(), TrainingOptions(lr=0.01, weight_decay=0.1), start.shape[1])
    dense = torch.nn.Parameter(torch.tensor(start[:3]))
    optimizer = torch.optim.Adam([dense], lr=0.01, weight_decay=0.1)
    rows = np.arange(3, dtype=np.int32)
    for _ in range(30):
        score_grads = rng.standard_normal((3, 4)).astype(np.float32)
        adam.apply(rows, score_grads)
        dense.grad = torch.tensor(score_grads)
        optimizer.step()
    np.testing.assert_allclose(adam.table[:3], dense.detach().numpy(), rtol=2e-5)
    np.testing.assert_array_equal(adam.table[3:], start[3:])


def test_adam_table_load_state_continues_with_the_same_bits():
    rng = np.random.default_rng(1)
    one, two = (AdamTable(np.ones((5, 3), np.float32), TrainingOptions(), 3) for _ in range(2))
    score_grads = rng.standard_normal((5, 3)).astype(np.float32)
    rows = np.arange(5, dtype=np.int32)
    one.apply(rows, score_grads)
    two.load_state({name: value.copy() for name, value in one.state().items()})
    two.table[:] = one.table
    for adam in (one, two):
        adam.prepare(rows[:2])
        adam.apply(rows[:2], score_grads[:2])
    assert one.table.tobytes() == two.table.tobytes()


def test_scalar_adam_equals_torch_for_descent_and_ascent():
    values = [0.3, -1.0, 2.0]
    ours = [torch.nn.Parameter(torch.tensor(v)) for v in values]
    theirs = [torch.nn.Parameter(torch.tensor(v, dtype=torch.float64)) for v in values]
    rates = [1.0, 2.0, -2.0]
    adam = ScalarAdam(list(zip(ours, rates, strict=True)), lr=0.05)
    optimizer = torch.optim.Adam(
        [{"params": [p], "lr": 0.05 * abs(r), "maximize": r < 0}
         for p, r in zip(theirs, rates, strict=True)]
    )  # fmt: skip
    rng = np.random.default_rng(2)
    for _ in range(200):
        for p, q, slope in zip(ours, theirs, rng.standard_normal(3), strict=True):
            p.grad = torch.tensor(slope, dtype=torch.float32)
            q.grad = p.grad.double()
        adam.step()
        optimizer.step()
    for p, q in zip(ours, theirs, strict=True):
        assert p.item() == pytest.approx(q.item(), abs=1e-5)
    assert ours[2].item() != pytest.approx(2.0, abs=0.01)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": 0.0}, "lr must be above 0, got 0.0"),
        ({"lr": float("inf")}, "lr must be above 0, got inf"),
        ({"weight_decay": -1.0}, "weight_decay must be at least 0, got -1.0"),
    ],
)
def test_training_options_of_adam_out_of_range(options, message):
    with pytest.raises(InputError, match=message):
        TrainingOptions(**options)
