"""Several processes that train one model, each on its users and one block of the items."""

from __future__ import annotations

import numpy as np
import pytest

from llpauc.distributed import ProcessGroup
from llpauc.errors import InputError
from llpauc.losses import make_loss
from llpauc.models.registry import MODELS
from llpauc.training.options import TrainingOptions
from llpauc.training.partition import Partition, check_partition
from llpauc.training.row_adam import zero_table
from llpauc.training.tables import AdamTable
from tests import processes as launched


@pytest.fixture(scope="module", params=[2, 3])
def several(request, tmp_path_factory):
    out = tmp_path_factory.mktemp("several") / "several.npz"
    ran = launched.torchrun(request.param, "all_cases", str(out))
    assert ran.returncode == 0, ran.stderr[-3000:]
    return launched.load(out)


@pytest.fixture(scope="module")
def single():
    return {name: launched.train(case) for name, case in launched.CASES.items()}


def test_fit_several_processes_have_the_quality_of_one(several, single):
    """Within three standard errors of the difference, or 0.03, for every case."""
    for name in several.keys() & single.keys():
        one = single[name]
        difference = several[name]["test"] - one["test"]
        error = difference.std() / len(difference) ** 0.5
        assert abs(difference.mean()) < max(3 * error, 0.03), name
        assert one["test"].mean() > 0.15, name  # one list for all users has 0.06


def test_fit_same_seed_and_processes_give_the_same_bits(several):
    first = next(iter(launched.CASES))
    for name in ("again", "resumed"):
        for key, array in several[first].items():
            np.testing.assert_array_equal(several[name][key], array, err_msg=f"{name} {key}")


def test_fit_every_process_has_the_same_model_and_uses_each_event_once(several):
    n = len(launched.events().train)
    for name, arrays in several.items():
        assert arrays["range"] == 0, name
        assert abs(arrays["examples"] - n).max() <= 4, name  # numbers of drawn events are rounded


def test_fit_refuses_what_several_processes_cannot_train(tmp_path):
    ran = launched.torchrun(2, "refused", str(tmp_path))
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert ran.stdout.splitlines() == [
        "lightgcn is trained by one process, since its vectors depend on the rows of other users"
        " and items; leave out torchrun, or use model mf",
        "the events of process 1 differ from those of process 0; give every process the same"
        " command and the same files",
        "2 processes are too many for 2 users and 2 items; use at most 1",
    ]


def test_check_partition_refuses_other_devices():
    train = launched.events().train
    model = MODELS["mf"].load().Network(train, MODELS["mf"].Options(dimensions=4), 0)
    with pytest.raises(InputError, match="several processes train on CPUs, not on 'meta'"):
        check_partition(model, train, TrainingOptions(device="meta"), 2)


@pytest.mark.parametrize("size", [2, 3])
def test_partition_trains_each_user_with_each_item_once_per_epoch(size):
    train = launched.events().train
    options = TrainingOptions(batch_size=97)
    seen, balance = [], []
    for index in range(size):
        model = MODELS["mf"].load().Network(train, MODELS["mf"].Options(dimensions=4), 0)
        group = _Counting(index, size)
        weights = np.arange(len(train), dtype=np.float32)
        partition = Partition(model, make_loss("bpr"), train, options, None, group, weights)
        partition.begin_epoch(1, 0)
        held = []
        while partition.round < partition.rounds:
            _, events, order = partition.open_round(1, 0)
            assert sorted(order) == list(range(len(events)))
            users, items = events.user_ids.ids(events.users), events.item_ids.ids(events.items)
            seen += zip(users.tolist(), items.tolist(), events.weights.tolist(), strict=True)
            held.append(set(events.item_ids.ids(range(events.n_items)).tolist()))
            partition.close_round()
        balance.append(len(seen) - sum(balance))
        assert len(set.union(*held)) == sum(map(len, held)) == train.n_items
    users, items = train.user_ids.ids(train.users), train.item_ids.ids(train.items)
    assert sorted(seen) == sorted(
        zip(users.tolist(), items.tolist(), weights.tolist(), strict=True)
    )
    assert max(balance) < 1.1 * min(balance)


class _Counting(ProcessGroup):
    """A process that sends its blocks to nobody and receives zeros."""

    def rotate(self, outgoing, incoming):
        incoming[:] = 0
        return lambda: None


def test_adam_table_interval_counts_steps_without_gradient():
    """Three steps at once, of which the last has a gradient, as three steps one by one."""
    rng = np.random.default_rng(0)
    start = rng.normal(size=(5, 4)).astype(np.float32)
    options = TrainingOptions(lr=0.01)
    tables = []
    for interval in (1, 3):
        table = zero_table(start.shape)
        table[:] = start
        tables.append(AdamTable(table, options, 4, interval=interval))
    one, three = tables
    nothing = np.zeros((0, 4), np.float32)
    for _ in range(200):
        rows = np.sort(rng.choice(5, 3, replace=False)).astype(np.int32)
        gradients = rng.normal(size=(3, 4)).astype(np.float32)
        for _ in range(2):
            one.apply(rows[:0], nothing)
        for table in tables:
            table.prepare(rows)
            table.apply(rows, gradients.copy())
    for table in tables:
        table.settle()
    assert one.count == three.count
    np.testing.assert_allclose(three.table, one.table, atol=1e-6)
    np.testing.assert_allclose(three.mean, one.mean, atol=1e-6)
