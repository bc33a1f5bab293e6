"""Every loss recovers a block-structured matrix in the loop of examples/plain_torch_loop.py."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from llpauc.losses import LOSSES, LLPAUCLoss, make_loss

PATH = Path(__file__).resolve().parents[2] / "examples" / "plain_torch_loop.py"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("plain_torch_loop", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


EXAMPLE = load()


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads cost more than they bring at this size, and much more on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_plain_torch_loop_untrained_scores_do_not_recover_the_blocks() -> None:
    likes, hidden = EXAMPLE.block_matrix()
    fraction = EXAMPLE.recovered(
        EXAMPLE.train(make_loss("bpr"), likes & ~hidden, steps=0), likes, hidden
    )
    assert 0.4 < fraction < 0.6


@pytest.mark.parametrize("name", LOSSES)
def test_plain_torch_loop_every_loss_recovers_the_blocks(name: str) -> None:
    likes, hidden = EXAMPLE.block_matrix()
    loss = make_loss(name, **EXAMPLE.PARAMS.get(name, {}))
    scores = EXAMPLE.train(loss, likes & ~hidden)
    assert EXAMPLE.recovered(scores, likes, hidden) > 0.9


def test_plain_torch_loop_hard_selection_recovers_less() -> None:
    likes, hidden = EXAMPLE.block_matrix()
    scores = EXAMPLE.train(LLPAUCLoss(0.7, 0.3, solver="exact"), likes & ~hidden)
    assert EXAMPLE.recovered(scores, likes, hidden) > 0.7


def test_plain_torch_loop_train_is_short() -> None:
    lines = inspect.getsource(EXAMPLE.train).splitlines()
    code = [line for line in lines if line.strip() and not line.strip().startswith(('"""', "#"))]
    assert len(code) <= 25
