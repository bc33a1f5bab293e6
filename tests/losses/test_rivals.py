"""Each rival loss against written arithmetic, and against a loop over Python numbers."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from llpauc.errors import InputError
from llpauc.losses import (
    LOSSES,
    Context,
    DNSLoss,
    Loss,
    SLAtKLoss,
    TCELoss,
    candidate_ranks,
    make_loss,
    top_k_quantiles,
)

log, exp, sqrt = math.log, math.exp, math.sqrt


def softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(exp(-abs(x)))


def sigmoid(x: float) -> float:
    return 1.0 / (1.0 + exp(-x)) if x >= 0 else exp(x) / (1.0 + exp(x))


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def gain(rank: float) -> float:
    return 1.0 / math.log2(1.0 + rank)


# --- the loop oracles: one row, its positive p and its negatives ns --------------------------


def ranks_of(p: float, ns: list[float]) -> tuple[int, list[int]]:
    """ProcessGroup in the sorted candidate list; the positive behind its ties, tied negatives
    alike."""
    order = sorted([(-n, 0) for n in ns] + [(-p, 1)])
    return 1 + order.index((-p, 1)), [1 + order.index((-n, 0)) for n in ns]


def weighted(p: float, ns: list[float], weight: Callable[[int, int], float]) -> float:
    ri, rjs = ranks_of(p, ns)
    return sum(weight(ri, rj) * softplus(n - p) for n, rj in zip(ns, rjs, strict=True))


def softmax_v(p: float, ns: list[float], rho: float) -> float:
    z = [softplus(n - p) for n in ns]
    m = mean(z)
    tau = sqrt(mean([(x - m) ** 2 for x in z]) / (2 * rho))
    if tau == 0.0:
        return m
    weights = [exp((x - max(z)) / tau) for x in z]
    return sum(w * x for w, x in zip(weights, z, strict=True)) / sum(weights)


def psl(p: float, ns: list[float], tau: float, g: Callable[[float], float]) -> float:
    return log(sum(max(g((n - p) / 2), 1e-4) ** (1 / tau) for n in ns))


def sl(p: float, ns: list[float], tau: float) -> float:
    return log(sum(exp((n - p) / tau) for n in ns))


Q, TAU_W = 0.1, 0.7  # the quantile of every user in these tests
TAUS = 0.2, 0.3  # the temperatures of Adap-tau, of all users and of each

ROWS: dict[str, tuple[dict[str, object], Callable[[float, list[float]], float]]] = {
    "bpr": ({}, lambda p, ns: mean([softplus(n - p) for n in ns])),
    "bce": ({}, lambda p, ns: mean([softplus(-p), *(softplus(n) for n in ns)])),
    "sce": ({}, lambda p, ns: log(1 + sum(exp(n - p) for n in ns))),
    "ccl": (
        {"margin": 0.2, "neg_weight": 3.0},
        lambda p, ns: max(0, 1 - p) + 3 * mean([max(0, n - 0.2) for n in ns]),
    ),
    "dns": (
        {"hardest": 2},
        lambda p, ns: mean([softplus(n - p) for n in sorted(ns, reverse=True)[:2]]),
    ),
    "softmax_v": ({"rho": 0.6}, lambda p, ns: softmax_v(p, ns, 0.6)),
    "rce": (
        {"power": 0.5},
        lambda p, ns: mean(
            [
                sqrt(sigmoid(p)) * softplus(-p),
                *(sqrt(1 - sigmoid(n)) * softplus(n) for n in ns),
            ]
        ),
    ),
    "lambdarank": ({}, lambda p, ns: weighted(p, ns, lambda i, j: abs(gain(i) - gain(j)))),
    "ndcg_loss1": ({}, lambda p, ns: weighted(p, ns, lambda i, j: gain(i))),
    "ndcg_loss2": (
        {},
        lambda p, ns: weighted(p, ns, lambda i, j: abs(gain(abs(i - j)) - gain(abs(i - j) + 1))),
    ),
    "arp_loss2": ({}, lambda p, ns: sum(softplus(n - p) for n in ns)),
    "sl": ({"temperature": 0.3}, lambda p, ns: sl(p, ns, 0.3)),
    "bsl": (
        {"pos_temperature": 0.5, "neg_temperature": 0.2},
        lambda p, ns: -p / 0.5 + 0.2 / 0.5 * log(sum(exp(n / 0.2) for n in ns)),
    ),
    "psl": ({"temperature": 0.4}, lambda p, ns: psl(p, ns, 0.4, lambda d: math.tanh(d) + 1)),
    "psl atan": (
        {"temperature": 0.4, "surrogate": "atan"},
        lambda p, ns: psl(p, ns, 0.4, lambda d: math.atan(d) + 1),
    ),
    "psl relu": (
        {"temperature": 0.4, "surrogate": "relu"},
        lambda p, ns: psl(p, ns, 0.4, lambda d: max(d + 1, 0)),
    ),
    "sl_at_k": (
        {"temperature": 0.3, "weight_temperature": TAU_W},
        lambda p, ns: sigmoid((p - Q) / TAU_W) * sl(p, ns, 0.3),
    ),
    "talos": (
        {"temperature": 0.3},
        lambda p, ns: log(
            sum(sigmoid(n - Q) ** (1 / 0.3) for n in ns) / sigmoid(p - Q) ** (1 / 0.3)
        ),
    ),
    "adap_tau": (
        {},
        lambda p, ns: log(sum(exp(n / TAUS[1]) for n in ns) / exp(p / TAUS[0])),
    ),
}
USER_VALUES = {"sl_at_k": Q, "talos": Q, "adap_tau": TAUS}


def made(name: str) -> Loss:
    loss = make_loss(name.split()[0], **ROWS[name][0])
    if name in USER_VALUES:
        loss.set_user_values(torch.tensor([USER_VALUES[name]] * 50, dtype=torch.float64))
    return loss


def test_losses_every_rival_has_an_oracle() -> None:
    assert {name.split()[0] for name in ROWS} | {"tce", "llpauc", "opauc", "auc"} == set(LOSSES), (
        "add a loop over Python numbers for the new loss to ROWS"
    )


numbers = st.floats(-3, 3).map(lambda x: round(x, 1))  # ties are common
one_row = st.tuples(numbers, st.lists(numbers, min_size=2, max_size=6))


@pytest.mark.parametrize("name", ROWS)
@given(rows=st.lists(one_row, min_size=1, max_size=4))
@settings(max_examples=25, deadline=None)
def test_loss_equals_a_python_loop_over_ragged_rows(
    name: str, rows: list[tuple[float, list[float]]]
) -> None:
    """Indices of different length, by mask; what is masked away is NaN."""
    widest = max(len(ns) for _, ns in rows)
    pos = torch.tensor([p for p, _ in rows], dtype=torch.float64)
    neg = torch.full((len(rows), widest), float("nan"), dtype=torch.float64)
    mask = torch.zeros(len(rows), widest, dtype=torch.bool)
    for row, (_, ns) in enumerate(rows):
        neg[row, : len(ns)] = torch.tensor(ns, dtype=torch.float64)
        mask[row, : len(ns)] = True
    value = made(name)(pos, neg, mask, context=Context(users=torch.arange(len(rows))))
    expected = mean([ROWS[name][1](p, ns) for p, ns in rows])
    assert value.item() == pytest.approx(expected, rel=1e-9, abs=1e-9)


# --- expected values as arithmetic ------------------------------------------------------------

POS, NEG = torch.tensor([1.0]), torch.tensor([[2.0, 0.0]])
DOWN, UP = log(1 + exp(1)), log(1 + exp(-1))  # softplus of the wrong pair and of the right one
F1, F2 = 1 / (1 + exp(-1)), 1 / (1 + exp(-2))  # sigmoid of the positive and of the first negative


@pytest.mark.parametrize(
    ("name", "params", "expected"),
    [
        ("bpr", {}, (DOWN + UP) / 2),
        ("bce", {}, (UP + log(1 + exp(2)) + log(2)) / 3),
        ("sce", {}, log(1 + exp(1) + exp(-1))),
        ("ccl", {"margin": 0.5, "neg_weight": 4.0}, 0 + 4 * (1.5 + 0) / 2),
        ("dns", {"hardest": 1}, DOWN),
        ("rce", {"power": 1.0}, (UP * F1 + log(1 + exp(2)) * (1 - F2) + log(2) / 2) / 3),
        # ranks_of: the negative 2.0 is first, the positive second, the negative 0.0 third
        ("lambdarank", {}, (1 - 1 / math.log2(3)) * DOWN + (1 / math.log2(3) - 0.5) * UP),
        ("ndcg_loss1", {}, (DOWN + UP) / math.log2(3)),
        ("ndcg_loss2", {}, (1 - 1 / math.log2(3)) * (DOWN + UP)),
        ("arp_loss2", {}, DOWN + UP),
        ("sl", {"temperature": 0.5}, log(exp(2) + exp(-2))),
        ("bsl", {"pos_temperature": 0.5, "neg_temperature": 1.0}, -2 + 2 * log(exp(2) + 1)),
        ("psl", {"temperature": 0.5}, log((math.tanh(0.5) + 1) ** 2 + (math.tanh(-0.5) + 1) ** 2)),
        ("psl", {"temperature": 0.5, "surrogate": "relu"}, log(1.5**2 + 0.5**2)),
        ("psl", {"temperature": 0.5, "surrogate": "relu", "divisor": 1.0}, log(2.0**2 + 1e-4**2)),
        ("psl", {"temperature": 1.0, "surrogate": "atan"}, log(2.0)),  # the atans cancel
    ],
)  # fmt: skip
def test_loss_equals_written_arithmetic(
    name: str, params: dict[str, object], expected: float
) -> None:
    assert make_loss(name, **params)(POS, NEG).item() == pytest.approx(expected, rel=1e-6)


def test_softmax_v_arithmetic() -> None:
    big, small = log(1 + exp(1)), log(1 + exp(-1))  # Z, one apart: Var = 1/4
    tau = sqrt(0.25 / (2 * 2.0))
    weight = 1 / (1 + exp(-(big - small) / tau))
    expected = weight * big + (1 - weight) * small
    assert make_loss("softmax_v", rho=2.0)(POS, NEG).item() == pytest.approx(expected, rel=1e-6)


def test_sl_at_k_arithmetic() -> None:
    loss = SLAtKLoss(temperature=0.5, weight_temperature=2.0)
    loss.set_user_values(torch.tensor([9.0, 3.0]))
    value = loss(POS, NEG, context=Context(users=torch.tensor([1])))
    assert value.item() == pytest.approx(1 / (1 + exp(1)) * log(exp(2) + exp(-2)), rel=1e-6)


def test_talos_arithmetic() -> None:
    loss = make_loss("talos", temperature=0.5)
    loss.set_user_values(torch.tensor([9.0, 1.0]))
    value = loss(POS, NEG, context=Context(users=torch.tensor([1])))
    above, below = 1 / (1 + exp(-1)), 1 / (1 + exp(1))
    assert value.item() == pytest.approx(log((above**2 + below**2) / 0.5**2), rel=1e-6)


def test_adap_tau_temperatures_equal_a_python_loop() -> None:
    """The Lambert function is checked by its definition, W exp(W) = x."""
    scores = [[0.9, 0.1, -0.3, 0.0, 0.2, 0.1], [0.5, 0.6, 0.0, 0.1, -0.9, 0.2], [0.3] * 6]
    seen = [[0], [0, 1], []]  # the last user has no positives
    loss = make_loss("adap_tau", user_scale=0.5, warm_up_epochs=1)
    positives = torch.zeros(3, 6, dtype=torch.bool)
    for user, items in enumerate(seen):
        positives[user, items] = True
    gaps = [0.7, (0.9 + 0.5 + 0.6) / 3 - mean([mean(scores[0]), mean(scores[1])])]
    losses = [
        log(sum(map(exp, scores[user]))) - mean([scores[user][i] for i in seen[user]])
        for user in (0, 1)
    ]
    for epoch, gap in zip((1, 6), gaps, strict=True):
        loss.begin_epoch(epoch, lambda function: function(torch.tensor(scores), positives))
        base, users = loss.user_values.T.tolist()
        # p is 3 of the 12 pairs of users with positives
        assert base == pytest.approx([gap / max(log(1 / (2 * 3 / 12)), gap)] * 3)
        assert users[2] == base[2]
        for user in (0, 1):
            w = log(users[user] / base[user])
            excess = (losses[user] - mean(losses)) / 0.5
            assert w * exp(w) == pytest.approx(max(excess, -exp(-1)), abs=1e-5)
        assert users[0] < base[0] < users[1]  # the second user has the higher loss


def test_tce_dropped_fraction_grows_with_the_step() -> None:
    pos = torch.tensor([2.0, -3.0, 1.0, -1.0])
    neg = torch.tensor([[0.5], [0.0], [-0.5], [1.0]])
    loss = TCELoss(max_dropped=0.5, ramp_steps=10)
    terms = [(softplus(-p), softplus(n)) for p, n in zip(pos.tolist(), neg[:, 0].tolist())]  # noqa: B905
    for step, dropped in ((0, []), (4, []), (5, [1]), (9, [1]), (10, [1, 3]), (99, [1, 3])):
        rows = [n if row in dropped else (p + n) / 2 for row, (p, n) in enumerate(terms)]
        value = loss(pos, neg, context=Context(step=step))
        assert value.item() == pytest.approx(mean(rows), rel=1e-6), step


def test_tce_dropped_count_is_guarded_against_rounding() -> None:
    loss = TCELoss(max_dropped=0.29, ramp_steps=1)
    pos = torch.linspace(-1, 1, 100, requires_grad=True)
    loss(pos, torch.zeros(100, 1), context=Context(step=1)).backward()
    assert int((pos.grad == 0).sum()) == 29  # 0.29 * 100 is 28.999999999999996


# --- gradients where weights are constants ----------------------------------------------------


def test_loss_weights_are_constants_to_the_gradient() -> None:
    """The gradient is that of the loss with its weights frozen where they are."""
    pos = torch.tensor([0.3, -0.2], dtype=torch.float64, requires_grad=True)
    neg = torch.tensor([[0.5, -1.0], [0.1, 0.4]], dtype=torch.float64, requires_grad=True)
    p, n = pos.detach(), neg.detach()
    z = torch.nn.functional.softplus
    tau = (z(n - p[:, None]).var(1, correction=0) / 2).sqrt()
    v = (z(n - p[:, None]) / tau[:, None]).softmax(1)
    frozen = {
        "softmax_v": (v * z(neg - pos[:, None])).sum(1).mean(),
        "rce": (
            (p.sigmoid() ** 0.2 * z(-pos) + ((1 - n.sigmoid()) ** 0.2 * z(neg)).sum(1)) / 3
        ).mean(),
    }
    for name, value in frozen.items():
        expected = torch.autograd.grad(value, [pos, neg], retain_graph=True)
        grads = torch.autograd.grad(make_loss(name)(pos, neg), [pos, neg])
        for actual, expected_value in zip(grads, expected, strict=True):
            torch.testing.assert_close(actual, expected_value)


# --- pieces -------------------------------------------------------------------------------------


def test_candidate_ranks_put_the_positive_after_its_ties() -> None:
    pos_rank, neg_rank = candidate_ranks(torch.zeros(1), torch.zeros(1, 3))
    assert pos_rank.item() == 4.0
    assert neg_rank.tolist() == [[1.0, 1.0, 1.0]]
    mask = torch.tensor([[True, False, True]])
    pos_rank, neg_rank = candidate_ranks(torch.zeros(1), torch.tensor([[1.0, 9.0, -1.0]]), mask)
    assert pos_rank.item() == 2.0
    assert neg_rank[mask].tolist() == [1.0, 3.0]


@pytest.mark.parametrize("name", ["lambdarank", "ndcg_loss1", "ndcg_loss2", "arp_loss2"])
def test_lambda_loss_equal_scores_have_a_gradient(name: str) -> None:
    pos = torch.zeros(2, requires_grad=True)
    make_loss(name)(pos, torch.zeros(2, 3)).backward()
    assert torch.all(pos.grad < 0)


def test_bsl_with_equal_temperatures_is_sl() -> None:
    bsl = make_loss("bsl", pos_temperature=0.3, neg_temperature=0.3)
    assert bsl(POS, NEG).item() == pytest.approx(make_loss("sl", temperature=0.3)(POS, NEG).item())


def test_dns_uses_all_negatives_of_a_short_row() -> None:
    mask = torch.tensor([[False, True]])
    assert DNSLoss(hardest=2)(POS, NEG, mask).item() == pytest.approx(softplus(-1.0))
    # a batch with fewer negatives than requested uses all
    assert DNSLoss(hardest=3)(POS, NEG).item() == DNSLoss(hardest=2)(POS, NEG).item()


def test_top_k_quantiles_and_user_values_are_checked() -> None:
    scores = torch.tensor([[3.0, 1.0, 2.0], [0.0, 0.5, -1.0]])
    assert top_k_quantiles(scores, k=2).tolist() == [2.0, 0.0]
    assert top_k_quantiles(scores, k=9).tolist() == [1.0, -1.0]
    loss = SLAtKLoss()
    context = Context(users=torch.tensor([1]))
    with pytest.raises(InputError, match="SLAtKLoss has no values of users; call begin_epoch"):
        loss(POS, NEG, context=context)
    loss.set_user_values(torch.zeros(1))
    with pytest.raises(InputError, match=r"context.users must be in \[0, 1\)"):
        loss(POS, NEG, context=context)
    with pytest.raises(InputError, match="values of users must be finite"):
        loss.set_user_values(torch.tensor([0.0, math.nan]))
    with pytest.raises(InputError, match="k must be a whole number of at least 1, got 0"):
        top_k_quantiles(scores, k=0)
    with pytest.raises(InputError, match=r"scores must be \(users, items\)"):
        top_k_quantiles(scores[0], k=1)


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("dns", {"hardest": 0}, "hardest must be at least 1, got 0"),
        ("softmax_v", {"rho": 0.0}, "rho must be above 0, got 0.0"),
        ("tce", {"max_dropped": 1.0}, r"max_dropped must be in \[0, 1\), got 1.0"),
        ("tce", {"ramp_steps": 0}, "ramp_steps must be at least 1, got 0"),
        ("rce", {"power": -1.0}, "power must be at least 0, got -1.0"),
        ("ccl", {"margin": 2.0}, r"margin must be in \[-1, 1\], got 2.0"),
        ("ccl", {"neg_weight": -1.0}, "neg_weight must be at least 0, got -1.0"),
        ("sl", {"temperature": float("nan")}, "temperature must be above 0, got nan"),
        ("bsl", {"neg_temperature": -1.0}, "neg_temperature must be above 0, got -1.0"),
        ("psl", {"surrogate": "exp"}, "unknown surrogate 'exp'; choose one of: tanh, atan, relu"),
        ("psl", {"divisor": 0.0}, "divisor must be above 0, got 0.0"),
        ("sl_at_k", {"weight_temperature": 0.0}, "weight_temperature must be above 0, got 0.0"),
    ],
)
def test_make_loss_bad_parameter_raises_with_its_range(
    name: str, params: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        make_loss(name, **params)
