"""Several processes train the same model as one process."""

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
from tests import processes as launched
from tests.system.faults.processes import kill_processes, write_events

EMBEDDINGS, METRICS = 1e-5, 1e-4


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    out = tmp_path_factory.mktemp("single") / "single.npz"
    launched.all_cases(out)
    return launched.load(out)


@pytest.fixture(scope="module", params=[2, 3])
def several_processes(request, tmp_path_factory):
    out = tmp_path_factory.mktemp("several_processes") / "several_processes.npz"
    ran = launched.torchrun(request.param, "all_cases", str(out))
    assert ran.returncode == 0, ran.stderr[-3000:]
    return launched.load(out)


@pytest.mark.parametrize("name", launched.CASES)
def test_fit_several_processes_equal_one(name, single, several_processes):
    one, several = single[name], several_processes[name]
    # The vectors of the users are divided by the temperature.
    scale = 1 / launched.CASES[name].model_options.get("temperature", 1.0)
    for table in ("users", "items"):
        np.testing.assert_allclose(several[table], one[table], atol=scale * EMBEDDINGS, rtol=0)
    for metric in ("valid", "test"):
        np.testing.assert_allclose(several[metric], one[metric], atol=METRICS, rtol=0)
    np.testing.assert_allclose(several["loss"], one["loss"], rtol=1e-4)
    np.testing.assert_allclose(several["variables"], one["variables"], atol=EMBEDDINGS)
    assert (several["lists"] == one["lists"]).mean() > 0.99


@pytest.mark.parametrize("name", [n for n, case in launched.CASES.items() if "llpauc" in case.loss])
def test_fit_variables_of_the_loss_have_the_same_bits_in_all_processes(name, several_processes):
    assert not several_processes[name]["variables range"].any()


def test_torch_engine_two_processes_equal_one(tmp_path):
    launched.plain_torch(tmp_path / "one.npz")
    ran = launched.torchrun(2, "plain_torch", str(tmp_path / "two.npz"))
    assert ran.returncode == 0, ran.stderr[-3000:]
    one, two = launched.load(tmp_path / "one.npz"), launched.load(tmp_path / "two.npz")
    for name, arrays in one.items():
        for key, value in arrays.items():
            np.testing.assert_allclose(two[name][key], value, atol=EMBEDDINGS, err_msg=name)


@pytest.mark.parametrize(("writers", "readers"), [(2, 1), (1, 2)])
def test_fit_resumes_with_another_number_of_processes(tmp_path, writers, readers):
    for action, processes in (("stop_early", writers), ("resume", readers)):
        if processes == 1:
            launched.ACTIONS[action](tmp_path)
        else:
            ran = launched.torchrun(processes, action, str(tmp_path))
            assert ran.returncode == 0, ran.stderr[-3000:]
        if action == "stop_early":
            for name in launched.RESUMED:
                assert list((tmp_path / name.replace(" ", "-")).glob("0*")), "no checkpoint"
    resumed = launched.load(tmp_path / "resumed.npz")
    for name in launched.RESUMED:
        whole = launched.train(launched.CASES[name], SINGLE_PROCESS, launched.events(), 5)
        for table in ("users", "items"):
            np.testing.assert_allclose(resumed[name][table], whole[table], atol=4 * EMBEDDINGS)
        np.testing.assert_allclose(resumed[name]["test"], whole["test"], atol=METRICS)


def test_fit_refuses_different_events_in_processes(tmp_path):
    ran = launched.torchrun(2, "unequal_events", str(tmp_path))
    assert ran.returncode != 0
    assert "the events of process 1 differ from those of process 0" in ran.stderr


def test_barrier_process_that_does_not_answer_raises_lost_process_error(tmp_path):
    begun = time.monotonic()
    ran = launched.torchrun(2, "not_answering", str(tmp_path), WATCHDOG="5")
    assert ran.returncode != 0
    assert "another process has ended or does not answer" in ran.stderr
    assert time.monotonic() - begun < 45


def test_train_killed_process_is_restarted_with_the_same_result(tmp_path):
    (recovery,) = kill_processes(tmp_path, kills=1)
    assert recovery < 60


def test_train_missing_file_in_one_process_is_reported_by_the_first(tmp_path):
    write_events(tmp_path / "events.csv", 200)
    ran = launched.torchrun(2, "missing_file", str(tmp_path))
    assert ran.returncode != 0
    errors = [line for line in ran.stderr.splitlines() if line.startswith("llpauc: error")]
    assert len(errors) == 1
    assert errors[0].startswith("llpauc: error: process 1: events.csv: cannot be read")


@pytest.mark.parametrize("shard", ["", "--shard"])
def test_train_full_disk_continues_without_checkpoints(tmp_path, shard):
    """Files are limited to 64 KB: a checkpoint is larger, a line of metrics smaller."""
    write_events(tmp_path / "events.csv", 20_000)
    ran = launched.torchrun(2, "small_files", str(tmp_path), *filter(None, [shard]))
    assert ran.stderr.count("no checkpoint written") == 1
    assert "File too large" in ran.stderr
    assert "epoch   2" in ran.stderr


@given(st.integers(0, 50), st.integers(1, 7))
def test_bounds_equal_torch_chunk(n, size):
    import torch

    bounds = ProcessGroup(0, size).bounds(n)
    chunks = [len(c) for c in torch.arange(n).chunk(size)] if n else []
    assert [b - a for a, b in pairwise(bounds)][: len(chunks)] == chunks
    assert sum(chunks) == bounds[-1] == n


@pytest.mark.parametrize("name", SAMPLERS)
@given(seed=st.integers(0, 99), step=st.integers(0, 99), cut=st.integers(0, 20))
def test_sampler_draws_of_parts_equal_the_draw_of_the_batch(name, seed, step, cut):
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


def test_single_process_methods_return_their_input():
    array = np.arange(3)
    assert SINGLE_PROCESS.gather(array) is array
    assert SINGLE_PROCESS.gather_to_first(array) is array
    assert SINGLE_PROCESS.sum([1.5, 2.0]) == [1.5, 2.0]
    assert SINGLE_PROCESS.gather_texts("x") == ["x"]
    assert SINGLE_PROCESS.slice_of(5) == slice(0, 5)
    SINGLE_PROCESS.check_equal("the events", {"a": 1})
    SINGLE_PROCESS.barrier()
