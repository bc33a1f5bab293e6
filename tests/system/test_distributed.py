"""Several processes train the model that one would have trained."""

from __future__ import annotations

import time
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llpauc.data.interactions import Interactions
from llpauc.distributed import SINGLE_PROCESS, ProcessGroup
from llpauc.training.options import SAMPLERS
from llpauc.training.samplers import make_sampler
from tests import processes as many
from tests.system.faults.processes import kill_ranks, write_events

EMBEDDINGS, METRICS = 1e-5, 1e-4


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    out = tmp_path_factory.mktemp("alone") / "alone.npz"
    many.all_cases(out)
    return many.load(out)


@pytest.fixture(scope="module", params=[2, 3])
def together(request, tmp_path_factory):
    out = tmp_path_factory.mktemp("together") / "together.npz"
    ran = many.torchrun(request.param, "all_cases", str(out))
    assert ran.returncode == 0, ran.stderr[-3000:]
    return many.load(out)


@pytest.mark.parametrize("name", many.CASES)
def test_several_processes_end_where_one_does(name, alone, together):
    one, several = alone[name], together[name]
    scale = 1 / many.CASES[name].of_model.get("temperature", 1.0)  # it is in the users' vectors
    for table in ("users", "items"):
        np.testing.assert_allclose(several[table], one[table], atol=scale * EMBEDDINGS, rtol=0)
    for figure in ("valid", "test"):
        np.testing.assert_allclose(several[figure], one[figure], atol=METRICS, rtol=0)
    np.testing.assert_allclose(several["loss"], one["loss"], rtol=1e-4)
    np.testing.assert_allclose(several["variables"], one["variables"], atol=EMBEDDINGS)
    assert (several["lists"] == one["lists"]).mean() > 0.99


@pytest.mark.parametrize("name", [n for n, case in many.CASES.items() if "llpauc" in case.loss])
def test_minimax_variables_have_the_same_bits_on_all_ranks(name, together):
    assert not together[name]["variables apart"].any()


def test_the_plain_torch_engine_does_likewise(tmp_path):
    many.plain_torch(tmp_path / "one.npz")
    ran = many.torchrun(2, "plain_torch", str(tmp_path / "two.npz"))
    assert ran.returncode == 0, ran.stderr[-3000:]
    one, two = many.load(tmp_path / "one.npz"), many.load(tmp_path / "two.npz")
    for name, found in one.items():
        for key, value in found.items():
            np.testing.assert_allclose(two[name][key], value, atol=EMBEDDINGS, err_msg=name)


@pytest.mark.parametrize(("writers", "readers"), [(2, 1), (1, 2)])
def test_a_checkpoint_is_resumed_by_another_number_of_processes(tmp_path, writers, readers):
    for action, processes in (("half", writers), ("rest", readers)):
        if processes == 1:
            many.ACTIONS[action](tmp_path)
        else:
            ran = many.torchrun(processes, action, str(tmp_path))
            assert ran.returncode == 0, ran.stderr[-3000:]
        if action == "half":
            for name in many.RESUMED:
                assert list((tmp_path / name.replace(" ", "-")).glob("0*")), "no checkpoint"
    resumed = many.load(tmp_path / "resumed.npz")
    for name in many.RESUMED:
        whole = many.train(many.CASES[name], SINGLE_PROCESS, many.events(), 5)
        for table in ("users", "items"):
            np.testing.assert_allclose(resumed[name][table], whole[table], atol=4 * EMBEDDINGS)
        np.testing.assert_allclose(resumed[name]["test"], whole["test"], atol=METRICS)


def test_unequal_data_are_refused_everywhere(tmp_path):
    ran = many.torchrun(2, "unequal", str(tmp_path))
    assert ran.returncode != 0
    assert "the events of process 1 differ from those of process 0" in ran.stderr


def test_a_rank_that_does_not_answer_is_given_up(tmp_path):
    begun = time.monotonic()
    ran = many.torchrun(2, "asleep", str(tmp_path), WATCHDOG="5")
    assert ran.returncode != 0
    assert "another process has ended or does not answer" in ran.stderr
    assert time.monotonic() - begun < 45


def test_a_killed_rank_is_replaced_and_training_ends_the_same(tmp_path):
    (recovery,) = kill_ranks(tmp_path, kills=1)
    assert recovery < 60


def test_a_node_without_the_file_is_told_on_the_first_rank(tmp_path):
    write_events(tmp_path / "events.csv", 200)
    ran = many.torchrun(2, "elsewhere", str(tmp_path))
    assert ran.returncode != 0
    told = [line for line in ran.stderr.splitlines() if line.startswith("llpauc: error")]
    assert len(told) == 1
    assert told[0].startswith("llpauc: error: process 1: events.csv: cannot be read")


@pytest.mark.parametrize("shard", ["", "--shard"])
def test_a_full_disk_stops_no_training(tmp_path, shard):
    """Files of this job may have 64 KB: a checkpoint has more, a line of metrics less."""
    write_events(tmp_path / "events.csv", 20_000)
    ran = many.torchrun(2, "small_files", str(tmp_path), *filter(None, [shard]))
    assert ran.stderr.count("no checkpoint written") == 1
    assert "File too large" in ran.stderr
    assert "epoch   2" in ran.stderr


@given(st.integers(0, 50), st.integers(1, 7))
def test_shares_are_what_torch_chunk_makes_of_it(n, size):
    import torch

    bounds = ProcessGroup(0, size).bounds(n)
    chunks = [len(c) for c in torch.arange(n).chunk(size)] if n else []
    assert [b - a for a, b in pairwise(bounds)][: len(chunks)] == chunks
    assert sum(chunks) == bounds[-1] == n


@pytest.mark.parametrize("name", SAMPLERS)
@given(seed=st.integers(0, 99), step=st.integers(0, 99), cut=st.integers(0, 20))
def test_shares_of_a_draw_are_the_draw(name, seed, step, cut):
    rng = np.random.default_rng(seed)
    events = Interactions.of(rng.integers(0, 9, 60).tolist(), rng.integers(0, 11, 60).tolist())
    sampler = make_sampler(name, events, 6, seed)
    rows = rng.integers(0, len(events), 20)
    users, positives = events.users[rows], events.items[rows]
    whole = sampler.draw(step, users, positives)
    parts = [sampler.draw(step, users, positives, slice(*ab)) for ab in ((0, cut), (cut, 20))]
    if not sampler.is_shared:
        np.testing.assert_array_equal(np.concatenate([p.items for p in parts]), whole.items)
    else:
        assert all(np.array_equal(p.items, whole.items) for p in parts)
        np.testing.assert_array_equal(np.concatenate([p.mask for p in parts]), whole.mask)


def test_alone_everything_is_answered_at_once():
    array = np.arange(3)
    assert SINGLE_PROCESS.gather(array) is array
    assert SINGLE_PROCESS.gather_to_first(array) is array
    assert SINGLE_PROCESS.sum([1.5, 2.0]) == [1.5, 2.0]
    assert SINGLE_PROCESS.gather_texts("x") == ["x"]
    assert SINGLE_PROCESS.slice_of(5) == slice(0, 5)
    SINGLE_PROCESS.check_equal("the events", {"a": 1})
    SINGLE_PROCESS.barrier()
