"""Properties that every loss of the registry must have."""

from __future__ import annotations

import inspect
import itertools
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from llpauc import losses
from llpauc.errors import InputError
from llpauc.losses import LOSSES, Context, Loss, make_loss
from llpauc.options import options_of

PARAMS: dict[str, list[dict[str, object]]] = {
    "llpauc": [
        {"alpha": 0.6, "beta": 0.3},
        {"alpha": 0.6, "beta": 0.3, "solver": "exact"},
        {"alpha": 0.6, "beta": 0.3, "solver": "per-user"},
    ],
    "opauc": [{"beta": 0.3}],
    "dns": [{"hardest": 3}],
    "tce": [{"max_dropped": 0.5, "ramp_steps": 10}],
    "psl": [{}, {"surrogate": "atan"}, {"surrogate": "relu"}],
}
CASES = [(name, params) for name in LOSSES for params in PARAMS.get(name, [{}])]
IDS = ["-".join([name, *map(str, params.values())]) for name, params in CASES]
USER_VALUES = {
    "sl_at_k": torch.linspace(-0.5, 0.5, 50),
    "talos": torch.linspace(-0.5, 0.5, 50),
    "adap_tau": torch.stack([torch.full((50,), 0.2), torch.linspace(0.1, 0.5, 50)], 1),
}
COSINE = {"ccl", "sl", "bsl", "psl", *USER_VALUES}
# Their weights are constants to the gradient, unlike in finite differences; see test_rivals.
FROZEN = {"softmax_v", "rce"}

every_loss = pytest.mark.parametrize(("name", "params"), CASES, ids=IDS)


def ready(name: str, params: dict[str, object]) -> Loss:
    loss = make_loss(name, **params)
    if name in USER_VALUES:
        loss.set_user_values(USER_VALUES[name])
    return loss


def context(batch: int) -> Context:
    return Context(step=7, users=torch.arange(batch) * 3)


def batch(seed: int, rows: int = 6, n: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    pos = torch.rand(rows, generator=generator, dtype=torch.float64) * 1.6 - 0.8
    neg = torch.rand(rows, n, generator=generator, dtype=torch.float64) * 1.6 - 0.8
    return pos, neg


def value_and_grads(
    loss: Loss,
    pos: torch.Tensor,
    neg: torch.Tensor,
    mask: torch.Tensor | None = None,
    context: Context | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    pos, neg = pos.clone().requires_grad_(), neg.clone().requires_grad_()
    value = loss(pos, neg, mask, context=context)
    d_pos, d_neg = torch.autograd.grad(value, [pos, neg])
    return value.detach(), d_pos, d_neg


def test_losses_registry_declares_score_and_needs() -> None:
    assert {name for name, kind in LOSSES.items() if kind.score == "cosine"} == COSINE
    needs = {name: kind.needs for name, kind in LOSSES.items() if kind.needs}
    assert needs == {"tce": {"step"}, **{name: {"users"} for name in USER_VALUES}}
    assert all(issubclass(kind, Loss) and kind.__doc__ for kind in LOSSES.values())


@every_loss
def test_loss_forward_passes_gradcheck(name: str, params: dict[str, object]) -> None:
    if name in FROZEN:
        pytest.skip("weights are constants by definition")
    loss = ready(name, params)
    pos, neg = (x.requires_grad_() for x in batch(1))
    mask = torch.rand(6, 5, generator=torch.Generator().manual_seed(1)) < 0.7
    mask[:, 0] = True
    for keep in (None, mask):
        assert torch.autograd.gradcheck(
            lambda p, n, keep=keep: loss(p, n, keep, context=context(6)), [pos, neg]
        )


@pytest.mark.parametrize("name", ["llpauc", "opauc", "auc"])
def test_partial_auc_variables_pass_gradcheck(name: str) -> None:
    loss = ready(name, PARAMS.get(name, [{}])[0]).double()
    loss.gap.data.fill_(-0.3)
    pos, neg = batch(2)
    names = [name for name, _ in loss.named_parameters()]

    def value(*variables: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(
            loss, dict(zip(names, variables, strict=True)), (pos, neg)
        )

    # the module must read its variables on every call
    assert torch.autograd.gradcheck(value, [p.detach().requires_grad_() for p in loss.parameters()])


@every_loss
@given(seed=st.integers(0, 10_000))
@settings(max_examples=8, deadline=None)
def test_loss_forward_is_independent_of_the_order_of_negatives(name, params, seed) -> None:
    loss = ready(name, params)
    pos, neg = batch(seed)
    order = torch.stack(
        [torch.randperm(5, generator=torch.Generator().manual_seed(seed + r)) for r in range(6)]
    )
    value, d_pos, d_neg = value_and_grads(loss, pos, neg, context=context(6))
    permuted = value_and_grads(loss, pos, neg.gather(1, order), context=context(6))
    torch.testing.assert_close(permuted[0], value)
    torch.testing.assert_close(permuted[1], d_pos)
    torch.testing.assert_close(permuted[2], d_neg.gather(1, order))


@every_loss
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("junk", [0.0, 1e4, float("nan"), float("inf"), float("-inf")])
def test_loss_forward_masked_negative_equals_an_absent_one(name, params, dtype, junk) -> None:
    loss = ready(name, params)
    pos, neg = (x.to(dtype) for x in batch(3))
    value, d_pos, d_neg = value_and_grads(loss, pos, neg, context=context(6))
    # two more negatives in each row, at random positions, masked
    generator = torch.Generator().manual_seed(3)
    places = torch.stack([torch.randperm(7, generator=generator) for _ in range(6)])
    wide = torch.cat([neg, torch.full((6, 2), junk, dtype=dtype)], 1).gather(1, places)
    mask = places < 5
    result = value_and_grads(loss, pos, wide, mask, context=context(6))
    torch.testing.assert_close(result[0], value)
    torch.testing.assert_close(result[1], d_pos)
    assert torch.all(result[2][~mask] == 0)
    back = places.argsort(1)[:, :5]
    torch.testing.assert_close(result[2].gather(1, back), d_neg)


@every_loss
def test_loss_forward_all_true_mask_equals_no_mask(name: str, params: dict[str, object]) -> None:
    loss = ready(name, params)
    pos, neg = batch(4)
    plain = value_and_grads(loss, pos, neg, context=context(6))
    masked = value_and_grads(loss, pos, neg, torch.ones(6, 5, dtype=torch.bool), context(6))
    for actual, expected_value in zip(masked, plain, strict=True):
        torch.testing.assert_close(actual, expected_value)


@every_loss
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_loss_forward_row_without_pairs_contributes_nothing(name, params, dtype) -> None:
    loss = ready(name, params)
    pos, neg = (x.to(dtype) for x in batch(5))
    mask = torch.ones(6, 5, dtype=torch.bool)
    mask[2] = False
    mask[4, 1:3] = False
    rest = [0, 1, 3, 4, 5]
    users = torch.arange(6) * 3
    value, d_pos, d_neg = value_and_grads(loss, pos, neg, mask, Context(7, users))
    expected = value_and_grads(loss, pos[rest], neg[rest], mask[rest], Context(7, users[rest]))
    torch.testing.assert_close(value, expected[0])
    torch.testing.assert_close(d_pos[rest], expected[1])
    torch.testing.assert_close(d_neg[rest], expected[2])
    assert d_pos[2] == 0
    assert torch.all(d_neg[2] == 0)
    nothing = value_and_grads(loss, pos, neg, torch.zeros_like(mask), Context(7, users))
    assert all(torch.all(x == 0) for x in nothing)


@every_loss
def test_loss_forward_does_not_modify_its_inputs(name: str, params: dict[str, object]) -> None:
    loss = ready(name, params)
    for dtype in (torch.float32, torch.float64):
        pos, neg = (x.to(dtype) for x in batch(6))
        mask = torch.rand(6, 5, generator=torch.Generator().manual_seed(6)) < 0.8
        before = pos.clone(), neg.clone(), mask.clone()
        state = {k: v.clone() for k, v in loss.state_dict().items()}
        value_and_grads(loss, pos, neg, mask, context(6))
        loss.diagnose(pos, neg, mask, context=context(6))
        for now, then in zip((pos, neg, mask), before, strict=True):
            assert torch.equal(now, then)
        assert all(torch.equal(v, state[k]) for k, v in loss.state_dict().items())


@every_loss
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_loss_forward_huge_scores_give_finite_values_and_gradients(name, params, dtype) -> None:
    loss = ready(name, params)
    levels = (-1e4, 0.0, 1e4)
    for p, n, m in itertools.product(levels, levels, levels):
        pos = torch.tensor([p, 0.5, p], dtype=dtype)
        neg = torch.tensor([[n, m, 0.1], [m, n, n], [n, n, n]], dtype=dtype)
        for x in value_and_grads(loss, pos, neg, context=context(3)):
            assert torch.isfinite(x).all(), (p, n, m)


@every_loss
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_loss_forward_half_precision_is_computed_in_float32(name, params, dtype) -> None:
    loss = ready(name, params)
    pos, neg = (x.to(dtype) for x in batch(7))
    value, d_pos, d_neg = value_and_grads(loss, pos, neg, context=context(6))
    assert value.dtype == torch.float32
    assert d_pos.dtype == d_neg.dtype == dtype
    wide = value_and_grads(loss, pos.float(), neg.float(), context=context(6))
    assert torch.equal(value, wide[0])
    assert torch.equal(d_neg, wide[2].to(dtype))


@every_loss
def test_loss_forward_float32_agrees_with_float64(name: str, params: dict[str, object]) -> None:
    loss = ready(name, params)
    pos, neg = (x.float() for x in batch(8))
    narrow = value_and_grads(loss, pos, neg, context=context(6))
    wide = value_and_grads(loss, pos.double(), neg.double(), context=context(6))
    assert narrow[0].dtype == torch.float32
    assert wide[0].dtype == torch.float64
    for x, y in zip(narrow, wide, strict=True):
        torch.testing.assert_close(x.double(), y, rtol=3e-5, atol=1e-6)
    mixed = loss(pos, neg.double(), context=context(6))
    torch.testing.assert_close(mixed.detach(), wide[0])


@every_loss
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_value_and_grads_equals_autograd(name, params, dtype) -> None:
    pos, neg = (x.to(dtype) for x in batch(13))
    mask = torch.rand(6, 5, generator=torch.Generator().manual_seed(13)) < 0.7
    mask[3] = False
    loss, other = ready(name, params), ready(name, params)
    expected = value_and_grads(loss, pos, neg, mask, context(6))
    if list(loss.parameters()):
        loss(pos, neg, mask, context=context(6)).backward()
    value, d_pos, d_neg = other.value_and_grads(pos, neg, mask, context=context(6))
    assert value == pytest.approx(expected[0].item())
    torch.testing.assert_close(d_pos, expected[1])
    torch.testing.assert_close(d_neg, expected[2])
    for actual, expected_value in zip(other.parameters(), loss.parameters(), strict=True):
        zeros = torch.zeros_like(expected_value)  # an unused threshold has no gradient
        torch.testing.assert_close(
            actual.grad, zeros if expected_value.grad is None else expected_value.grad
        )


@every_loss
@given(seed=st.integers(0, 10_000))
@settings(max_examples=8, deadline=None)
def test_loss_gradients_raise_positives_and_lower_negatives(name, params, seed) -> None:
    _, d_pos, d_neg = value_and_grads(ready(name, params), *batch(seed), context=context(6))
    assert torch.all(d_neg >= 0)
    assert torch.any(d_neg > 0)
    if name != "sl_at_k":  # its weight depends on the positive's score, so d_pos may be positive
        assert torch.all(d_pos <= 0)
        assert torch.any(d_pos < 0)


@every_loss
def test_loss_state_dict_round_trip_and_to(name: str, params: dict[str, object]) -> None:
    loss = ready(name, params)
    with torch.no_grad():
        for k, parameter in enumerate(loss.parameters()):
            parameter.add_(0.1 * (k + 1))
    other = make_loss(name, **params)
    other.load_state_dict(loss.state_dict())
    pos, neg = batch(9)
    assert torch.equal(other(pos, neg, context=context(6)), loss(pos, neg, context=context(6)))
    moved = loss.to(torch.float64)
    assert all(p.dtype == torch.float64 for p in moved.parameters())
    assert all(b.dtype == torch.float64 for b in moved.buffers())
    expected_variables = {"llpauc": 5, "opauc": 5, "auc": 5}.get(name, 0)
    if "solver" in params:
        expected_variables = 0
    assert len(list(loss.parameters())) == expected_variables
    in_roles = [*loss.ascent_parameters(), *loss.descent_parameters()]
    assert {id(p) for p in in_roles} == {id(p) for p in loss.parameters()}
    if in_roles:
        assert set(loss.rate_factors()) <= {name for name, _ in loss.named_parameters()}


def test_loss_to_moves_the_variables() -> None:
    loss = make_loss("llpauc", alpha=0.5, beta=0.5).to("meta")
    assert all(p.device.type == "meta" for p in loss.parameters())


@every_loss
def test_diagnose_returns_value_meaning_and_auc(name: str, params: dict[str, object]) -> None:
    loss = ready(name, params)
    pos, neg = batch(10)
    mask = torch.ones(6, 5, dtype=torch.bool)
    mask[:, 4] = False
    result = loss.diagnose(pos, neg, mask, context=context(6))
    assert result.value == pytest.approx(loss(pos, neg, mask, context=context(6)).item())
    assert result.meaning
    assert result.values["auc"] == pytest.approx((pos[:, None] > neg[:, :4]).double().mean().item())
    empty = loss.diagnose(pos, neg, torch.zeros_like(mask), context=context(6))
    assert empty.value == 0.0


# --- errors -------------------------------------------------------------------------------------


def bad_batches() -> Iterator[tuple[str, tuple[object, ...], str]]:
    pos, neg = torch.zeros(2), torch.zeros(2, 3)
    yield "no negatives", (pos, torch.zeros(2, 0)), r"empty batch.*\(2, 0\)"
    yield "no rows", (torch.zeros(0), torch.zeros(0, 3)), r"empty batch.*\(0, 3\)"
    yield "rows differ", (torch.zeros(3), neg), r"got \(3,\) and \(2, 3\)"
    yield "column", (torch.zeros(2, 1), neg), r"got \(2, 1\) and \(2, 3\)"
    yield "flat", (pos, torch.zeros(2)), r"got \(2,\) and \(2,\)"
    yield "integers", (torch.zeros(2, dtype=torch.int64), neg), "floating point, got torch.int64"
    flat_mask, numbers = torch.ones(2, dtype=torch.bool), torch.ones(2, 3)
    yield "mask shape", (pos, neg, flat_mask), r"neg_mask must be bool \(2, 3\)"
    yield "mask type", (pos, neg, numbers), "neg_mask must be bool .* got torch.float32"


BAD = list(bad_batches())


@every_loss
@pytest.mark.parametrize(("what", "arguments", "message"), BAD, ids=[b[0] for b in BAD])
def test_loss_forward_bad_batch_raises_with_its_shapes(
    name, params, what, arguments, message
) -> None:
    with pytest.raises(InputError, match=message):
        ready(name, params)(*arguments, context=context(2))


@every_loss
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_loss_forward_counts_non_finite_scores_in_the_error(name, params, value, dtype) -> None:
    loss = ready(name, params)
    pos, neg = (x.to(dtype) for x in batch(11))
    neg[1, 2] = neg[4, 0] = value
    with pytest.raises(InputError, match=r"^2 of neg_scores are NaN or infinite"):
        loss(pos, neg, context=context(6))
    pos[3] = value
    with pytest.raises(InputError, match=r"^1 of pos_scores, 2 of neg_scores are NaN"):
        loss(pos, neg, context=context(6))


@every_loss
def test_loss_forward_accepts_scores_whose_sum_overflows(
    name: str, params: dict[str, object]
) -> None:
    pos = torch.full((6,), 3e38)
    loss = ready(name, params)
    if name in COSINE:
        pytest.skip("no cosine is that large")
    assert torch.isfinite(loss(pos, torch.zeros(6, 5), context=context(6)))


def test_loss_forward_missing_context_raises() -> None:
    pos, neg = batch(12)
    with pytest.raises(InputError, match=r"TCELoss needs context.step"):
        make_loss("tce")(pos, neg)
    with pytest.raises(InputError, match=r"SLAtKLoss needs context.users"):
        make_loss("sl_at_k")(pos, neg, context=Context(step=1))
    with pytest.raises(InputError, match=r"context.users must be \(6,\), got \(5,\)"):
        make_loss("sl_at_k")(pos, neg, context=Context(users=torch.arange(5)))
    with pytest.raises(InputError, match=r"context.step must be a whole number of at least 0"):
        make_loss("tce")(pos, neg, context=Context(step=-1))


def test_make_loss_unknown_name_or_parameter_lists_the_choices() -> None:
    with pytest.raises(InputError, match="unknown loss 'lpauc'; choose one of: llpauc, opauc, auc"):
        make_loss("lpauc")
    with pytest.raises(
        InputError, match="'llpauc' has no parameter gamma; it has: alpha, beta, sh"
    ):
        make_loss("llpauc", alpha=0.5, beta=0.5, gamma=1.0)
    with pytest.raises(InputError, match="'bpr' has no parameter tau; it has: none"):
        make_loss("bpr", tau=1.0)
    with pytest.raises(InputError, match="'llpauc' needs beta"):
        make_loss("llpauc", alpha=0.5)


@pytest.mark.parametrize("name", LOSSES)
def test_losses_parameters_are_annotated(name: str) -> None:
    kind = LOSSES[name]
    if kind.__init__ is not Loss.__init__:
        for parameter in inspect.signature(kind).parameters.values():
            assert parameter.annotation is not inspect.Parameter.empty


def test_losses_names_are_listed_without_importing_torch() -> None:
    code = (
        "import sys; from llpauc.losses import LOSSES; print(*LOSSES); assert 'torch' not in"
        " sys.modules; from llpauc.losses import BPRLoss; assert LOSSES['bpr'] is BPRLoss"
    )
    listed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert listed.stdout.split() == list(LOSSES), listed.stderr


def test_losses_exports_every_name_of_all() -> None:
    assert all(getattr(losses, name) is not None for name in losses.__all__)
    with pytest.raises(AttributeError, match="no attribute 'HingeLoss'"):
        losses.HingeLoss  # noqa: B018


def test_llpauc_loss_accepts_the_former_solver_name_of_saved_runs() -> None:
    assert make_loss("llpauc", alpha=0.5, beta=0.5, solver="rows").solver == "per-user"


def test_begin_epoch_refreshes_the_20th_score_of_each_user() -> None:
    scores = torch.stack([torch.arange(25.0), -torch.arange(25.0)])
    epochs: dict[str, list[int]] = {"sl_at_k": [], "talos": [], "bpr": []}
    for name, refreshed in epochs.items():
        loss = make_loss(name)
        for epoch in range(1, 12):

            def for_all_users(function, epoch=epoch, refreshed=refreshed):
                refreshed.append(epoch)
                return function(scores + epoch, scores > 3)

            loss.begin_epoch(epoch, for_all_users)
        if refreshed:
            assert loss.user_values.tolist() == [5.0 + refreshed[-1], refreshed[-1] - 19.0]
    assert epochs == {"sl_at_k": [1, 6, 11], "talos": [1, 6, 11], "bpr": []}


@every_loss
def test_losses_parameters_have_help_texts(name: str, params: dict[str, object]) -> None:
    for option in options_of(LOSSES[name]).values():
        assert option.help, option.name
