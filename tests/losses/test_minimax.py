"""The minimax step: gradient ascent on the maximised variables, and projection."""

from __future__ import annotations

import copy

import pytest
import torch

from llpauc.errors import InputError
from llpauc.losses import (
    LOSSES,
    BPRLoss,
    LLPAUCLoss,
    Variables,
    attach,
    exact_saddle,
    make_loss,
    minimax_optimizer,
    minimax_parameter_groups,
)

PARAMS = {"llpauc": {"alpha": 0.7, "beta": 0.1}, "opauc": {"beta": 0.1}}


def frozen_scores(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    pos = torch.randn(64, generator=generator)
    return pos, torch.randn(64, 20, generator=generator) - 3.0


def settle(loss: LLPAUCLoss, optimizer: torch.optim.Optimizer, steps: int = 1500) -> None:
    pos, neg = frozen_scores()
    rates = [group["lr"] for group in optimizer.param_groups]
    for step in range(steps):
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * (1.0 - step / steps)
        optimizer.zero_grad()
        loss(pos, neg).backward()
        optimizer.step()
        loss.project_()


def gap_has_settled(loss: LLPAUCLoss) -> bool:
    a, b, gap, _, _ = (variable.item() for variable in loss.variables)
    return abs(gap - (b - a)) < 0.01


def test_minimax_on_fixed_scores_the_gap_converges_to_b_minus_a() -> None:
    loss = LLPAUCLoss(0.75, 0.1)
    settle(loss, torch.optim.Adam(minimax_parameter_groups([], loss, lr=0.01)[1:]))
    assert gap_has_settled(loss)
    assert -0.6 < loss.gap.item() < -0.3
    values = loss.diagnose(*frozen_scores()).values
    assert values["pos_fraction"] == pytest.approx(0.75, abs=0.01)
    assert values["neg_fraction"] == pytest.approx(0.1, abs=0.01)


def test_minimax_descent_on_the_gap_does_not_converge() -> None:
    """A common error: all five variables in one group, none maximised."""
    loss = LLPAUCLoss(0.75, 0.1)
    settle(loss, torch.optim.Adam(loss.parameters(), lr=0.02))
    assert not gap_has_settled(loss)
    assert loss.gap.item() in (1.0, pytest.approx(-loss.pos_center.item(), abs=1e-6))


def test_minimax_with_high_sharpness_reaches_the_exact_saddle() -> None:
    loss = LLPAUCLoss(0.75, 0.1, sharpness=100.0)
    settle(loss, torch.optim.SGD(minimax_parameter_groups([], loss, lr=0.05)[1:]), steps=4000)
    saddle = exact_saddle(*frozen_scores(), alpha=0.75, beta=0.1)
    assert loss(*frozen_scores()).item() == pytest.approx(saddle.value.item(), abs=0.01)
    for name, actual, expected_value in zip(
        Variables._fields, loss.variables, saddle.variables, strict=True
    ):
        assert actual.item() == pytest.approx(expected_value.item(), abs=0.02), name


def test_minimax_gap_penalty_shrinks_the_gap() -> None:
    loss = LLPAUCLoss(0.75, 0.1, gap_penalty=3.0)
    settle(loss, torch.optim.Adam(minimax_parameter_groups([], loss, lr=0.01)[1:]))
    a, b, gap, _, _ = (variable.item() for variable in loss.variables)
    assert gap == pytest.approx((b - a) / 4.0, abs=0.01)


@pytest.mark.parametrize("beta", [0.1, 0.01])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_minimax_at_high_scores_neg_threshold_rate_stops_the_cycle(
    kind: type[torch.optim.Optimizer], beta: float
) -> None:
    """Negatives with a mean f of 0.69: with the paper's rates the gap goes up to its bound 1 and
    back; with a fast threshold it stays at the saddle."""
    generator = torch.Generator().manual_seed(0)
    pos = 2.0 + torch.randn(64, generator=generator)
    neg = 1.0 + torch.randn(64, 50, generator=generator)
    for rate, is_stable in ((2.0, False), (20.0, True)):
        loss = LLPAUCLoss(0.7, beta, neg_threshold_rate=rate)
        optimizer = minimax_optimizer(kind, [torch.nn.Parameter(torch.zeros(1))], loss, lr=0.01)
        gaps = []
        for _ in range(3000):
            optimizer.zero_grad()
            loss(pos, neg).backward()
            optimizer.step()
            gaps.append(loss.gap.item())
        last = gaps[2000:]
        if is_stable:
            assert max(last) - min(last) < 0.01
            assert gap_has_settled(loss)
        else:
            assert max(last) - min(last) > 0.9


def test_project_gap_beyond_its_bound_recovers() -> None:
    """Projection leaves a live gradient; clipping in the forward pass would have killed it."""
    for pushed in (7.0, -7.0):
        loss = LLPAUCLoss(0.75, 0.1)
        optimizer = torch.optim.Adam(minimax_parameter_groups([], loss, lr=0.01)[1:])
        with torch.no_grad():
            loss.gap.fill_(pushed)
        loss.project_()
        lowest = max(-loss.pos_center.item(), loss.neg_center.item() - 1.0)
        assert loss.gap.item() == (1.0 if pushed > 0 else lowest)
        settle(loss, optimizer)
        assert gap_has_settled(loss)


def test_project_brings_every_variable_into_its_domain() -> None:
    loss = LLPAUCLoss(0.75, 0.1)
    for value, expected in ((-9.0, [0.0, 0.0, 0.0, -1.0, 0.0]), (9.0, [1.0, 1.0, 1.0, 4.0, 5.0])):
        with torch.no_grad():
            for parameter in loss.parameters():
                parameter.fill_(value)
        loss.project_()
        # at a = b = 0 the gap's domain is [max(-0, 0 - 1), 1]
        assert [variable.item() for variable in loss.variables] == expected
    with torch.no_grad():
        loss.pos_center.fill_(0.8)
        loss.neg_center.fill_(0.4)
        loss.gap.fill_(-2.0)
    loss.project_()
    assert loss.gap.item() == pytest.approx(-0.6)  # max(-0.8, 0.4 - 1)


def test_minimax_optimizer_first_step_has_the_right_direction() -> None:
    loss = LLPAUCLoss(0.75, 0.1)
    with torch.no_grad():
        loss.pos_center.fill_(0.5)
        loss.neg_center.fill_(0.5)
    pos, neg = frozen_scores()
    model = torch.nn.Parameter(pos.clone())
    optimizer = minimax_optimizer(torch.optim.SGD, [model], loss, lr=1e-3)
    before = {name: p.item() for name, p in loss.named_parameters()}
    loss(model, neg).backward()
    score_grads = {name: p.grad.item() for name, p in loss.named_parameters()}
    optimizer.step()
    for name, parameter in loss.named_parameters():
        up = name in ("gap", "pos_threshold")
        rate = 1e-3 if name.endswith("center") else 2e-3
        moved = parameter.item() - before[name]
        assert moved == pytest.approx(rate * score_grads[name] * (1 if up else -1), rel=1e-3), name


@pytest.mark.parametrize("name", LOSSES)
def test_minimax_parameter_groups_of_every_loss(name: str) -> None:
    loss = make_loss(name, **PARAMS.get(name, {}))
    model = [torch.nn.Parameter(torch.zeros(3))]
    groups = minimax_parameter_groups(model, loss, lr=0.1, weight_decay=0.5)
    assert groups[0] == {"params": model, "lr": 0.1, "weight_decay": 0.5, "maximize": False}
    assert all(group["weight_decay"] == 0.0 for group in groups[1:])
    members = [id(p) for group in groups[1:] for p in group["params"]]
    assert sorted(members) == sorted(id(p) for p in loss.parameters())
    maximised = [p for group in groups if group["maximize"] for p in group["params"]]
    assert [id(p) for p in maximised] == [id(p) for p in loss.ascent_parameters()]


@pytest.mark.parametrize(
    "kind",
    [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad, torch.optim.RMSprop,
     torch.optim.NAdam, torch.optim.RAdam, torch.optim.Adamax, torch.optim.Adadelta],
)  # fmt: skip
def test_minimax_optimizer_ascends_and_projects_with_any_class(
    kind: type[torch.optim.Optimizer],
) -> None:
    loss = LLPAUCLoss(0.75, 0.1)
    pos, neg = frozen_scores()
    model = torch.nn.Parameter(pos.clone())
    optimizer = minimax_optimizer(kind, [model], loss, lr=0.5)
    loss(model, neg).backward()
    upward = {"gap": loss.gap.grad.item() > 0, "pos_threshold": loss.pos_threshold.grad.item() > 0}
    before = {"gap": loss.gap.item(), "pos_threshold": loss.pos_threshold.item()}
    optimizer.step()
    for name, up in upward.items():
        assert (getattr(loss, name).item() > before[name]) == up, name
    assert 0.0 <= loss.pos_center.item() <= 1.0


def test_attach_wrong_optimizer_raises() -> None:
    loss = LLPAUCLoss(0.75, 0.1)
    with pytest.raises(InputError, match="gap is in a group without maximize=True"):
        attach(loss, torch.optim.Adam(loss.parameters(), lr=0.1))
    with pytest.raises(InputError, match="pos_center is in no group"):
        attach(loss, torch.optim.Adam(loss.ascent_parameters(), lr=0.1))
    with pytest.raises(InputError, match="pos_center is in a group without maximize=False"):
        attach(loss, torch.optim.Adam(loss.parameters(), lr=0.1, maximize=True))
    with pytest.raises(InputError, match="LBFGS cannot maximise"):
        attach(loss, torch.optim.LBFGS(loss.parameters()))
    with pytest.raises(InputError, match="lr must be above 0, got 0"):
        minimax_parameter_groups([], loss, lr=0)


def test_attach_handle_removes_it_and_losses_without_variables_work() -> None:
    loss = LLPAUCLoss(0.75, 0.1)
    optimizer = torch.optim.SGD(minimax_parameter_groups([], loss, lr=100.0)[1:])
    handle = attach(loss, optimizer)
    handle.remove()
    loss(*frozen_scores()).backward()
    optimizer.step()
    assert not 0.0 <= loss.neg_threshold.item() <= 5.0  # not projected
    model = torch.nn.Parameter(torch.zeros(3))
    plain = minimax_optimizer(torch.optim.LBFGS, [model], BPRLoss(), lr=0.1)
    assert [len(group["params"]) for group in plain.param_groups] == [1]


def test_llpauc_loss_exact_solver_has_no_variables() -> None:
    loss = LLPAUCLoss(0.75, 0.1, solver="exact")
    assert loss.ascent_parameters() == loss.descent_parameters() == []
    loss.project_()
    assert loss.state_dict() == {}


def test_minimax_optimizer_resumed_gives_the_same_bits() -> None:
    pos, neg = frozen_scores()

    def fresh() -> tuple[LLPAUCLoss, torch.nn.Parameter, torch.optim.Optimizer]:
        loss, model = LLPAUCLoss(0.75, 0.1), torch.nn.Parameter(pos.clone())
        return loss, model, minimax_optimizer(torch.optim.Adam, [model], loss, lr=0.05)

    def run(parts, steps: int) -> None:
        loss, model, optimizer = parts
        for _ in range(steps):
            optimizer.zero_grad()
            loss(model, neg).backward()
            optimizer.step()

    whole = fresh()
    run(whole, 20)
    first = fresh()
    run(first, 11)
    saved = copy.deepcopy((first[0].state_dict(), first[1].data, first[2].state_dict()))
    second = fresh()
    second[0].load_state_dict(saved[0])
    second[1].data.copy_(saved[1])
    second[2].load_state_dict(saved[2])
    run(second, 9)
    assert torch.equal(second[1], whole[1])
    for actual, expected_value in zip(second[0].variables, whole[0].variables, strict=True):
        assert torch.equal(actual, expected_value)
