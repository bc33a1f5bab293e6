"""The training loop: both engines compared, every model with every loss, and errors."""

from __future__ import annotations

import itertools
import math
import threading
from contextlib import closing

import numba
import numpy as np
import pytest
import torch

from llpauc.data.ids import IdMap
from llpauc.data.interactions import Interactions, Split
from llpauc.errors import InputError
from llpauc.evaluation.full_ranking import evaluate
from llpauc.losses import LOSSES, LLPAUCLoss, OPAUCLoss, make_loss
from llpauc.models.registry import trained_models
from llpauc.training import SAMPLERS, Diverged, TrainingOptions, check_feasible, fit
from llpauc.training.batches import Indexer, batches
from llpauc.training.engine import CpuEngine, TorchEngine
from llpauc.training.samplers import make_sampler
from tests.datasets import new_network, random_split

SPLIT = random_split(21, n_users=40, n_items=30, events=700)
PARAMETERS = {
    "llpauc": {"alpha": 0.7, "beta": 0.3},
    "opauc": {"beta": 0.3},
    "dns": {"hardest": 5},
    "tce": {"ramp_steps": 100},
}


def loss_named(name):
    loss = make_loss(name, **PARAMETERS.get(name, {}))
    seen = torch.from_numpy(SPLIT.train.matrix.toarray() != 0)
    loss.begin_epoch(1, lambda function: function(torch.zeros(seen.shape), seen))
    return loss


def trained(engine_of, model_name, loss_name, sampler_name, options, steps=25):
    model = new_network(model_name, SPLIT.train, 5, **options)
    loss = loss_named(loss_name)
    sampler = make_sampler(sampler_name, SPLIT.train, 7, seed=3)
    engine = engine_of(model, loss, sampler)
    rng = np.random.default_rng(0)
    values = []
    for step in range(steps):
        if step == steps // 2:  # as between two epochs
            engine.settle()
            engine.set_lr(0.004)
        rows = rng.permutation(len(SPLIT.train))[:24]
        users, items = SPLIT.train.users[rows], SPLIT.train.items[rows]
        values.append(engine.step(engine.prepare(step, users, items)))
    engine.settle()
    return values, *model.vectors(), dict(loss.named_parameters())


CASES = [
    *itertools.product(["mf", "lightgcn", "fism"], ["llpauc", "bpr"], ["uniform", "all-items"],
                       ["dot", "cosine"], [False]),
    ("mf", "llpauc", "uniform", "dot", True),
    ("mf", "sce", "shared", "cosine", True),
    ("fism", "bce", "in-batch", "dot", True),
    ("mf", "sl", "popularity", "cosine", False),
    ("mf", "tce", "uniform-with-positives", "dot", False),
    ("mf", "sl_at_k", "shared", "cosine", False),
    ("mf", "adap_tau", "shared", "cosine", False),
]  # fmt: skip


@pytest.mark.parametrize(("model", "loss", "sampler", "score", "bias"), CASES)
def test_cpu_engine_equals_torch_engine(model, loss, sampler, score, bias):
    if model == "lightgcn" and bias:
        return
    options = {
        "dimensions": 6,
        "score": score,
        "temperature": 0.3 if score == "cosine" else 1.0,
        "item_bias": bias,
        "init_scale": 0.3,
    }
    adam = TrainingOptions(lr=0.01)
    kernels = trained(
        lambda m, f, s: CpuEngine(m, f, s, SPLIT.train, adam), model, loss, sampler, options
    )
    plain = trained(lambda m, f, s: TorchEngine(m, f, s, adam), model, loss, sampler, options)
    np.testing.assert_allclose(kernels[0], plain[0], atol=2e-4)
    for ours, theirs in zip(kernels[1:3], plain[1:3], strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-3)
    for name, value in kernels[3].items():
        assert value.item() == pytest.approx(plain[3][name].item(), abs=1e-3), name


@pytest.mark.parametrize("loss", [OPAUCLoss(0.1), LLPAUCLoss(0.7, 1.0)])
def test_torch_engine_state_without_moments_of_an_unused_threshold(loss):
    """A fraction of 1 selects all rows: torch then has no moments for its threshold."""
    loss.sharpness = math.inf  # past the kernel, as on a GPU
    sampler = make_sampler("uniform", SPLIT.train, 5, 0)
    model = new_network("mf", SPLIT.train, 1, dimensions=4)
    engine, other = (TorchEngine(model, loss, sampler, TrainingOptions(lr=0.01)) for _ in range(2))
    rows = np.arange(24)
    engine.step(engine.prepare(0, SPLIT.train.users[rows], SPLIT.train.items[rows]))
    other.load_state(engine.state())
    for name, value in engine.state().items():
        np.testing.assert_array_equal(other.state()[name], value)


def test_check_feasible_counts_in_batch_negatives():
    options = TrainingOptions(batch_size=10_000_000, sampler="in-batch", negatives=1)
    one = np.zeros(1, np.int32)
    many = Interactions(one, one, IdMap.of(["a"]), IdMap.of(range(10**6)))
    with pytest.raises(InputError, match=r"training needs about [\d.]+ GB"):
        check_feasible(many, 8, options)


def test_cpu_engine_weight_decay_changes_rows_of_the_batch_only():
    """Also in a batch with more pairs than items."""
    model = new_network("mf", SPLIT.train, 1, dimensions=4)
    before = model.item_table.detach().clone()
    sampler = make_sampler("uniform", SPLIT.train, 60, seed=3)
    adam = TrainingOptions(lr=0.01, weight_decay=0.1)
    engine = CpuEngine(model, loss_named("bpr"), sampler, SPLIT.train, adam)
    users, items = SPLIT.train.users[:1], SPLIT.train.items[:1]
    engine.step(engine.prepare(0, users, items))
    engine.settle()
    drawn = np.union1d(sampler.draw(0, users, items).items.ravel(), items)
    absent = np.setdiff1d(np.arange(SPLIT.n_items), drawn)
    assert len(absent)
    assert torch.equal(model.item_table[absent], before[absent])
    assert not torch.equal(model.item_table[drawn], before[drawn])


@pytest.mark.parametrize("every_item", [True, False])
def test_indexer_equals_numpy(every_item):
    rng = np.random.default_rng(4)
    users, positives = rng.integers(0, 9, (2, 12), dtype=np.int32)
    negatives = rng.integers(0, 30, (12, 5), dtype=np.int32)
    index = Indexer(9, 30, every_item)(users, positives, negatives)
    assert sorted(index.users) == sorted(set(users.tolist()))
    np.testing.assert_array_equal(index.users[index.user_slots], users)
    drawn = np.column_stack([positives, negatives])
    assert sorted(index.items) == (list(range(30)) if every_item else np.unique(drawn).tolist())
    np.testing.assert_array_equal(index.items[index.positive_slots], positives)
    slot_of = np.argsort(index.items)  # items are a permutation of 0..n-1 or a part of them
    slots = slot_of[np.searchsorted(index.items[slot_of], drawn)]
    order = np.argsort(slots.ravel(), kind="stable")
    np.testing.assert_array_equal(index.pairs.row_of, order // 6)
    np.testing.assert_array_equal(np.argsort(order), index.pairs.place_of.ravel())
    counts = np.bincount(slots.ravel(), minlength=len(index.items))
    np.testing.assert_array_equal(index.pairs.ends, np.cumsum(counts))


class Maker:
    """Returns the numbers of a batch; records the calls and their threads."""

    def __init__(self, helpers, fails_at=None):
        self.helpers, self.fails_at = helpers, fails_at
        self.made, self.threads = [], set()

    def prepare(self, step, users, positives, weights=None):
        self.threads.add(threading.current_thread())
        self.made.append(step)
        if step == self.fails_at:
            raise InputError("failing")
        return step, users.tolist(), positives.tolist()


@pytest.mark.parametrize("size", [7, 64, 5000])
def test_batches_with_helpers_equal_batches_without(size):
    order = np.random.default_rng(0).permutation(len(SPLIT.train))
    on_demand = list(batches(Maker(0), SPLIT.train, order, size, 10))
    assert [step for step, *_ in on_demand] == list(range(10, 10 + -(-len(order) // size)))
    for part, expected in ((1, SPLIT.train.users[order]), (2, SPLIT.train.items[order])):
        assert [row for batch in on_demand for row in batch[part]] == expected.tolist()
    for helpers in (1, 3):
        maker = Maker(helpers)
        assert list(batches(maker, SPLIT.train, order, size, 10)) == on_demand
        assert threading.current_thread() not in maker.threads


def test_batches_helpers_are_bounded_and_end_with_the_generator():
    """With enough events for helpers without a limit to prepare too many batches."""
    many = np.zeros(50 * 1024, np.int64)
    for ends in ("early", "failing"):
        maker = Maker(2, fails_at=40 if ends == "failing" else None)
        made = batches(maker, SPLIT.train, many, 64, 0)
        with closing(made):
            if ends == "early":
                for step, *_ in made:
                    assert max(maker.made) - step <= 1024 // 64 * (1 + maker.helpers)
                    if step == 20:
                        break
            else:
                with pytest.raises(InputError, match="failing"):
                    list(made)
        assert not any(thread.is_alive() for thread in maker.threads)


def blocks(n_blocks=4, users=20, items=10, fraction=0.7, seed=0):
    """Users of a block have items of that block only; a fraction of them is held out."""
    rng = np.random.default_rng(seed)
    pairs = [(f"u{b}-{u}", f"i{b}-{i}")
             for b in range(n_blocks) for u in range(users) for i in range(items)]  # fmt: skip
    data = Interactions.of([u for u, _ in pairs], [i for _, i in pairs])
    in_train = rng.random(len(data)) < fraction
    in_train[::items] = True  # no user is cold
    return Split(data.take(in_train), None, data.take(~in_train))


BLOCKS = blocks()


@pytest.mark.parametrize("model_name", trained_models())
@pytest.mark.parametrize("loss_name", list(LOSSES))
def test_fit_every_model_and_loss_recovers_a_block_structure(model_name, loss_name):
    loss = make_loss(loss_name, **PARAMETERS.get(loss_name, {}))
    options = {"dimensions": 8, "score": loss.score, "init_scale": 0.1}
    model = new_network(model_name, BLOCKS.train, 1, **options)
    fit(
        model,
        loss,
        BLOCKS,
        TrainingOptions(epochs=40, batch_size=64, negatives=12, lr=0.01, seed=1),
    )
    recall = evaluate(model.scorer(), BLOCKS, metrics=["recall@10"]).mean("recall@10")
    random_recall = evaluate(
        new_network(model_name, BLOCKS.train, 2, **options).scorer(), BLOCKS,
        metrics=["recall@10"],
    ).mean("recall@10")  # fmt: skip
    assert recall > 0.8  # of the held-out third of each block; random vectors reach 0.3
    assert model_name != "mf" or random_recall < 0.5


def run(seed=1, epochs=2, **options):
    model = new_network("mf", SPLIT.train, seed, dimensions=8)
    history = fit(
        model, make_loss("llpauc", alpha=0.7, beta=0.3), SPLIT,
        TrainingOptions(epochs=epochs, batch_size=32, negatives=10, seed=seed, **options),
    )  # fmt: skip
    return model, history


def test_fit_bits_depend_on_the_seed_and_not_on_threads():
    before = numba.get_num_threads()
    tables = []
    try:
        for threads in (before, 1, before):
            numba.set_num_threads(threads)
            tables.append([p.detach().numpy().tobytes() for p in run()[0].parameters()])
    finally:
        numba.set_num_threads(before)
    assert tables[0] == tables[1] == tables[2]
    assert tables[0] != [p.detach().numpy().tobytes() for p in run(seed=2)[0].parameters()]


def test_fit_returns_the_best_epoch_and_stops_by_patience():
    model, history = run(epochs=60, lr=0.05, patience=3)
    values = [epoch.valid["ndcg@20"] for epoch in history.epochs]
    assert history.stopped == "patience"
    assert history.best_epoch == int(np.argmax(values)) + 1
    assert len(values) == history.best_epoch + 3
    again = evaluate(model.scorer(), SPLIT, on="valid").mean("ndcg@20")
    assert again == pytest.approx(max(values), abs=1e-12)
    assert [epoch.best for epoch in history.epochs].count(True) >= 1


def test_fit_epochs_have_diagnostics_of_the_loss():
    _, history = run()
    diagnostics = history.epochs[-1].diagnostics
    assert {"hard_llpauc", "pos_fraction", "neg_fraction", "gap"} <= set(diagnostics)
    assert 0 <= diagnostics["hard_llpauc"] <= 1
    assert history.epochs[-1].examples == len(SPLIT.train)


def test_fit_diverged_names_epoch_batch_and_cause_and_restores_weights():
    model = new_network("mf", SPLIT.train, 1, dimensions=8)
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(Diverged, match=r"epoch 1, batch \d+: .*learning rate \(1e\+30\) is too hi"):
        fit(model, make_loss("bpr"), SPLIT, TrainingOptions(lr=1e30, batch_size=32, negatives=5))
    for now, then in zip(model.parameters(), before, strict=True):
        assert torch.equal(now, then)


def test_fit_user_with_every_item_and_fewer_items_than_negatives():
    data = Interactions.of(["all"] * 4 + ["one", "two"], ["a", "b", "c", "d", "a", "b"])
    for sampler in SAMPLERS:
        model = new_network("mf", data, 0, dimensions=4)
        options = TrainingOptions(epochs=3, batch_size=4, negatives=50, sampler=sampler)
        history = fit(model, make_loss("llpauc", alpha=0.7, beta=0.5), Split(data), options)
        assert np.isfinite(history.epochs[-1].loss)
        assert np.isfinite(model.vectors()[0]).all()


def test_vectors_of_cold_users_are_the_mean_or_random():
    cold = ~np.isin(np.arange(SPLIT.n_users), SPLIT.train.users)
    assert cold.any()
    for way in ("mean", "random"):
        model = new_network("mf", SPLIT.train, 1, dimensions=8, cold_users=way)
        users, _ = model.vectors()
        if way == "mean":
            mean = users[~cold].mean(axis=0)
            np.testing.assert_allclose(users[cold], np.tile(mean, (cold.sum(), 1)), atol=1e-6)
        else:
            np.testing.assert_array_equal(users[cold], model.user_table.detach()[cold])


def test_fit_refuses_more_memory_than_available(monkeypatch):
    monkeypatch.setattr("llpauc.training.loop.available_memory", lambda: 1000)
    with pytest.raises(InputError, match=r"training needs about .* lower dimensions"):
        run()


def test_fit_lightgcn_propagation_interval_above_1():
    options = {"dimensions": 8, "init_scale": 0.1, "propagation_interval": 3}
    model = new_network("lightgcn", BLOCKS.train, 1, **options)
    fit(model, make_loss("bpr"), BLOCKS,
        TrainingOptions(epochs=40, batch_size=32, negatives=12, lr=0.02))  # fmt: skip
    assert evaluate(model.scorer(), BLOCKS, metrics=["recall@10"]).mean("recall@10") > 0.9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"sampler": "unifrm"}, "unknown sampler 'unifrm'"),
        ({"valid_metric": "recall"}, "metric 'recall' needs a rank"),
    ],
)
def test_training_options_out_of_range(options, message):
    with pytest.raises(InputError, match=message):
        TrainingOptions(**options)


# --- age -----------------------------------------------------------------------------------------


def test_fit_half_life_draws_events_by_their_age_weight():
    """A loss that counts: the fraction of each event is proportional to 0.5^(age / half_life)."""
    users = np.arange(4)
    train = Interactions.of(users, users, timestamps=[0.0, 10.0, 20.0, 30.0])
    train = train.take(np.repeat(users, 500))
    model = new_network("mf", train, 1, dimensions=2)
    seen: list[int] = []

    class Counting(LOSSES["bpr"]):
        def value_and_grads(self, pos, neg, mask=None, *, context=None):
            seen.extend(context.users.tolist())
            return super().value_and_grads(pos, neg, mask, context=context)

        needs = frozenset({"users"})

    options = TrainingOptions(epochs=4, batch_size=64, negatives=2, half_life=10.0, seed=2)
    fit(model, Counting(), Split(train), options)
    fractions = np.bincount(seen, minlength=4) / len(seen)
    np.testing.assert_allclose(fractions, np.array([1, 2, 4, 8]) / 15, atol=0.02)
    assert len(seen) == 4 * len(train)


@pytest.mark.parametrize("half_life", [0.0, -1.0, float("nan"), float("inf")])
def test_training_options_half_life_out_of_range(half_life):
    with pytest.raises(InputError, match="half_life must be above 0"):
        TrainingOptions(half_life=half_life)
