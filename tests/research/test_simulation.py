"""The simulation: every ranking against a naive implementation, correlations against NumPy."""

from __future__ import annotations

import csv
import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from llpauc import metrics
from llpauc.cli.parser import Group, call, find
from llpauc.cli.simulate import simulate as command
from llpauc.errors import InputError
from llpauc.research import simulation_kernels as kernels
from llpauc.research.plots import simulation_figure
from llpauc.research.simulation import (
    Design,
    count_inversions,
    log_grid,
    metric_values,
    negatives_above,
    opauc_in_theory,
    parse_grid,
    simulate,
)
from llpauc.research.simulation_report import check_claims, find_maxima, summarize
from llpauc.storage.figure_files import save

SMALL = (0.1, 0.25, 0.3, 0.5, 0.7, 1.0)
DESIGNS = [
    Design(10, 40, 60, (1, 3, 10, 50), SMALL, SMALL),
    Design(40, 10, 60, (1, 3, 10, 49), SMALL, SMALL, seed=3),  # positives are the majority
    Design(32, 32, 60, (5, 64), SMALL, SMALL, seed=5),  # one whole word of places
    Design(1, 1, 20, (1,), SMALL, SMALL, seed=1),
    Design(7, 300, 60, (1, 20), SMALL, SMALL, scorer_auc=0.8),
    Design(300, 7, 60, (1, 20), SMALL, SMALL, scorer_auc=0.99, seed=9),
]


def labels_of(above, n_neg) -> np.ndarray:
    """1 and 0 from the top of the list down."""
    labels = np.zeros(len(above) + n_neg, int)
    labels[np.asarray(above) + np.arange(len(above))] = 1
    return labels


def pairs_won(best_first, beta, keep) -> int:
    """Pairs in order between chosen positives and the best negatives, one by one."""
    positives = keep([place for place, label in enumerate(best_first) if label])
    negatives = [place for place, label in enumerate(best_first) if not label]
    negatives = negatives[: max(1, math.ceil(round(beta * len(negatives), 9)))]
    return sum(p < q for p in positives for q in negatives)


@pytest.mark.parametrize("design", DESIGNS, ids=str)
def test_metric_values_equal_naive_metrics(design):
    got = metric_values(design, design.rankings, np.arange(len(design.scale)))
    n_pos, n_neg = design.positives, design.negatives
    for ranking, above in enumerate(negatives_above(design, design.rankings)):
        labels = labels_of(above, n_neg)
        assert labels.sum() == n_pos
        scores = -np.arange(design.n_items, dtype=float)
        for (a, alpha), (b, beta) in itertools.product(
            enumerate(design.alphas), enumerate(design.betas)
        ):
            column = design.column("llpauc", alpha=a, beta=b)
            want = metrics.llpauc_score(labels, scores, alpha=alpha, beta=beta)
            assert abs(got[ranking, column] - want) < 1e-12
            if ranking < 5:  # slow: pair by pair
                count = max(1, math.ceil(round(alpha * n_pos, 9)))
                best = pairs_won(labels, beta, lambda places, n=count: places[:n])
                worst = pairs_won(labels, beta, lambda places, n=count: places[-n:])
                other = design.column("two-way", alpha=a, beta=b)
                assert abs(got[ranking, column] - best / (n_pos * n_neg)) < 1e-12
                assert abs(got[ranking, other] - worst / (n_pos * n_neg)) < 1e-12
        for at, k in enumerate(design.ks):
            for name, metric in (("recall", metrics.recall), ("ndcg", metrics.ndcg)):
                want = metric(labels[None], [n_pos], k)[0]
                assert abs(got[ranking, design.column(name, k=at)] - want) < 1e-12


@pytest.mark.parametrize("design", DESIGNS[:5], ids=str)
def test_simulate_correlations_equal_numpy(design):
    study = simulate(design)
    each = metric_values(design, design.rankings, np.arange(len(design.scale)))
    checked = 0
    for (area, target), grid in study.correlations.items():
        for k, a, b in np.ndindex(grid.shape):
            x = each[:, design.column(area, alpha=a, beta=b)]
            y = each[:, design.column(target, k=k)]
            if np.ptp(x) == 0 or np.ptp(y) == 0:
                assert np.isnan(grid[k, a, b])
            else:
                assert abs(grid[k, a, b] - np.corrcoef(x, y)[0, 1]) < 1e-10
                checked += 1
    assert checked > 0
    for at in range(len(design.ks)):
        mean = each[:, design.column("recall", k=at)].mean()
        assert study.means["recall"][at] == pytest.approx(mean, abs=1e-12)
    corner = design.column("llpauc", alpha=len(SMALL) - 1, beta=len(SMALL) - 1)
    assert study.auc == pytest.approx(each[:, corner].mean(), abs=1e-12)


def chi_square(seen, expected) -> float:
    """The chance of so uneven counts, if they are what is expected."""
    return float(stats.chi2.sf(((seen - expected) ** 2 / expected).sum(), len(seen) - 1))


@pytest.mark.parametrize("scorer_auc", [None, 0.5 + 1e-9])
@pytest.mark.parametrize(("n_pos", "n_neg"), [(3, 4), (4, 3)])
def test_negatives_above_every_set_of_places_is_equally_likely(n_pos, n_neg, scorer_auc):
    """Also for scores that are drawn from one and the same law: two ways to one distribution."""
    design = Design(n_pos, n_neg, 2, (1,), scorer_auc=scorer_auc, seed=11)
    above = negatives_above(design, 70_000)
    codes = (above + np.arange(n_pos)) @ (8 ** np.arange(n_pos))
    _, seen = np.unique(codes, return_counts=True)
    assert len(seen) == math.comb(7, 3)
    assert chi_square(seen, 70_000 / len(seen)) > 1e-3


def test_negatives_above_every_place_is_equally_likely_beyond_one_word():
    design = Design(30, 170, 2, (1,), seed=2)
    places = negatives_above(design, 20_000) + np.arange(30)
    seen = np.bincount(places.ravel(), minlength=200)
    assert len(seen) == 200
    # Draws of one ranking exclude one another, so the counts vary less than independent ones.
    assert chi_square(seen, 3_000.0) > 1e-3
    pairs = np.bincount(places[:, 0], minlength=200)[:20]  # the best place follows another law
    want = [math.comb(199 - p, 29) / math.comb(200, 30) * 20_000 for p in range(20)]
    assert chi_square(pairs, np.array(want)) > 1e-3


@pytest.mark.parametrize(
    ("n", "p"),
    [(1, 0.5), (20, 0.03), (1000, 0.008), (1000, 0.3), (50_000, 0.02), (400, 0.97), (30, 0.5)],
)
def test_draw_binomial_follows_the_binomial_distribution(n, p):
    state = np.array([12345], np.uint64)
    drawn = np.array([kernels.draw_binomial(state, n, p) for _ in range(20_000)])
    assert drawn.min() >= 0
    assert drawn.max() <= n
    edges = np.unique(stats.binom.ppf(np.linspace(0, 1, 21)[1:-1], n, p))
    fractions = np.diff(np.concatenate(([0.0], stats.binom.cdf(edges, n, p), [1.0])))
    seen = np.bincount(np.searchsorted(edges, drawn), minlength=len(fractions))
    likely = fractions > 1e-6
    assert chi_square(seen[likely], 20_000 * fractions[likely] / fractions[likely].sum()) > 1e-3


def test_draw_binomial_edge_cases():
    state = np.array([1], np.uint64)
    assert kernels.draw_binomial(state, 0, 0.3) == 0
    assert kernels.draw_binomial(state, 9, 0.0) == 0
    assert kernels.draw_binomial(state, 9, 1.0) == 9


def test_negatives_above_with_scorer_auc_follow_sorted_normal_scores():
    design = Design(12, 400, 2, (1,), scorer_auc=0.9, seed=4)
    ours = negatives_above(design, 4_000)
    rng = np.random.default_rng(8)
    positives = np.sort(design.shift + rng.standard_normal((4_000, 12)))[:, ::-1]
    negatives = np.sort(rng.standard_normal((4_000, 400)))
    naive = np.array(
        [400 - np.searchsorted(n, p) for n, p in zip(negatives, positives, strict=True)]
    )
    for place in (0, 3, 6, 11):
        assert stats.ks_2samp(ours[:, place], naive[:, place]).pvalue > 1e-3
    gaps = [np.diff(found, axis=1)[:, 5] for found in (ours, naive)]
    assert stats.ks_2samp(*gaps).pvalue > 1e-3
    auc = 1 - ours.mean() / 400
    assert abs(auc - 0.9) < 5 * (1 - ours.mean(axis=1) / 400).std() / math.sqrt(4_000)


@pytest.mark.parametrize("scorer_auc", [None, 0.7])
def test_simulate_bits_depend_on_seed_and_not_on_threads(scorer_auc):
    design = Design(50, 700, 333, (5, 50), SMALL, SMALL, scorer_auc)
    one, two = (simulate(design, threads=threads) for threads in (1, 2))
    other = simulate(Design(50, 700, 333, (5, 50), SMALL, SMALL, scorer_auc, seed=1))
    for key, grid in one.correlations.items():
        np.testing.assert_array_equal(grid, two.correlations[key])
        assert not np.array_equal(grid, other.correlations[key])


def test_negatives_above_first_rankings_do_not_depend_on_their_number():
    long, short = (negatives_above(Design(9, 90, 2, (1,)), rankings) for rankings in (50, 7))
    np.testing.assert_array_equal(long[:7], short)


@settings(max_examples=60, deadline=None)
@given(
    n_pos=st.integers(1, 40),
    n_neg=st.integers(1, 200),
    scorer_auc=st.none() | st.floats(0.51, 0.999),
    seed=st.integers(0, 2**64 - 1),
)
def test_metric_values_areas_grow_with_alpha_and_beta_up_to_auc(n_pos, n_neg, scorer_auc, seed):
    design = Design(n_pos, n_neg, 2, (1,), SMALL, SMALL, scorer_auc, seed)
    above = negatives_above(design, 3)
    assert (np.diff(above, axis=1) >= 0).all()
    assert above.min() >= 0
    assert above.max() <= n_neg
    shape = (3, 2, len(SMALL), len(SMALL))  # ranking, area, beta, alpha
    areas = metric_values(design, 3, np.arange(2 * design.n_cells)).reshape(shape)
    assert (np.diff(areas, axis=2) >= 0).all()
    assert (np.diff(areas, axis=3) >= 0).all()
    opauc, auc = areas[:, 0, :, -1], areas[:, 0, -1, -1]
    assert (areas[:, 0] <= opauc[..., None]).all()
    assert (opauc <= auc[:, None]).all()
    np.testing.assert_array_equal(areas[:, 1, :, -1], opauc)
    np.testing.assert_allclose(auc, 1 - above.mean(axis=1) / n_neg, atol=1e-12)


def test_metric_values_of_best_and_worst_positives_sum_to_opauc():
    design = Design(10, 60, 2, (1,), (0.3, 0.7, 1.0), SMALL)
    shape = (50, 2, len(SMALL), 3)
    areas = metric_values(design, 50, np.arange(2 * design.n_cells)).reshape(shape)
    np.testing.assert_allclose(areas[:, 0, :, 0] + areas[:, 1, :, 1], areas[:, 0, :, 2], atol=1e-12)


@pytest.fixture(scope="module")
def paper():
    """The size of the paper: it takes a tenth of a second."""
    return simulate(Design())


def test_find_maxima_of_the_papers_design(paper):
    found = {f.k: f for f in find_maxima(paper)}
    for f in found.values():
        assert f.llpauc.correlation > 0.93
        assert f.llpauc.correlation - f.opauc.correlation < 0.002
        assert f.llpauc.beta == f.opauc.beta
        # The theory says 1.5 K negatives; a step of the grid is a factor of 1.33.
        assert 1 / 1.34 < f.llpauc.beta * 50_000 / f.k / 1.5 < 1.34
    betas, alphas = (
        [getattr(f.llpauc, name) for f in found.values()] for name in ("beta", "alpha")
    )
    assert all(np.diff(betas) > 0)
    assert all(np.diff(alphas) > 0)
    tenth, one = found[1000].large_betas
    assert (tenth.beta, one.beta) == (0.1, 1.0)
    assert tenth.opauc == pytest.approx(0.69, abs=0.02)
    assert tenth.llpauc.correlation == pytest.approx(0.92, abs=0.015)
    assert one.opauc == found[1000].auc == pytest.approx(0.24, abs=0.03)
    assert one.llpauc.correlation == pytest.approx(0.92, abs=0.015)
    assert found[100].large_betas[0].opauc == pytest.approx(0.24, abs=0.03)
    assert found[100].large_betas[0].llpauc.correlation == pytest.approx(0.78, abs=0.02)
    assert found[20].large_betas[0].llpauc.correlation < 0.6  # too few positives in the top 20
    assert all(f.two_way.correlation < 0.3 for f in found.values())
    claims = check_claims(list(found.values()))
    assert [c.claim for c in claims if not c.holds] == [
        "at beta 1, LLPAUC with the best alpha keeps 90% of its maximum"
    ]


def test_opauc_in_theory_agrees_with_the_simulation(paper):
    design = paper.design
    n = design.n_items
    for at, k in enumerate(design.ks):
        theory = opauc_in_theory(design, k)
        assert theory[-1] == pytest.approx(math.sqrt(3 * k * (n - k) / (n * n - 1)), rel=1e-6)
        assert np.abs(theory - paper.correlations["llpauc", "recall"][at, -1]).max() < 0.04
    fine = Design(10, 100_000, 2, (200,), (1.0,), log_grid(0.001, 1, 500))
    theory = opauc_in_theory(fine, 200)
    assert theory.max() == pytest.approx(2 * math.sqrt(2) / 3, abs=1e-3)
    assert fine.betas[theory.argmax()] == pytest.approx(1.5 * 200 / 100_000, rel=0.05)
    assert np.isnan(opauc_in_theory(Design(2, 3, 2, (5,)), 5)).all()
    with pytest.raises(InputError, match="equally likely"):
        opauc_in_theory(Design(scorer_auc=0.9), 20)


def test_opauc_in_theory_is_exact_for_auc():
    """Against every set of places instead of a sample."""
    places = np.array(list(itertools.combinations(range(8), 3)))
    recall, auc = (places < 4).sum(axis=1), -places.sum(axis=1)
    theory = opauc_in_theory(Design(3, 5, 2, (4,), (1.0,), (1.0,)), 4)
    assert theory[-1] == pytest.approx(np.corrcoef(recall, auc)[0, 1], abs=1e-12)


def test_count_inversions_equals_a_loop_over_pairs():
    design = Design(6, 30, 90, (4, 12), SMALL, SMALL, seed=7)
    columns = {"AUC": design.column("llpauc", alpha=5, beta=5), "corner": 0}
    counted = count_inversions(design, {0: columns, 1: columns})
    for at, one in enumerate(counted):
        recall = metric_values(design, 90, [design.column("recall", k=at)])[:, 0]
        pairs = [(i, j) for i in range(90) for j in range(i + 1, min(90, i + 21))]
        decided = [(i, j) for i, j in pairs if recall[i] != recall[j]]
        assert one.k == design.ks[at]
        assert one.pairs == len(pairs)
        assert one.tied == pytest.approx(1 - len(decided) / len(pairs), abs=1e-12)
        for name, column in columns.items():
            x = metric_values(design, 90, [column])[:, 0]
            wrong = 0.0
            for i, j in decided:
                if x[i] == x[j]:
                    wrong += 0.5
                elif (x[i] > x[j]) != (recall[i] > recall[j]):
                    wrong += 1
            assert one.fractions[name] == pytest.approx(wrong / len(decided), abs=1e-12)


def test_summarize_constant_metric_has_no_correlation():
    summary = summarize(simulate(Design(3, 4, 50, (2, 7), SMALL, SMALL)))
    whole = summary.recall[1]
    assert whole.llpauc is None
    assert math.isnan(whole.auc)
    assert math.isnan(summary.inversions[1].fractions["AUC"])
    assert summary.recall[0].llpauc is not None
    assert summary.simulation.means["recall"][1] == 1.0
    assert check_claims([whole]) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"positives": 0}, "positives must be a whole number of at least 1, got 0"),
        ({"negatives": 0}, "negatives must be a whole number of at least 1, got 0"),
        ({"rankings": 1}, "rankings must be a whole number of at least 2, got 1"),
        ({"ks": (20, 60_000)}, "K = 60,000 is larger than a ranking of 51,000 items"),
        ({"ks": (0,)}, "K must be a whole number of at least 1, got 0"),
        ({"ks": ()}, "no K given"),
        ({"ks": (50, 20)}, "K must be ascending"),
        ({"alphas": (0.0, 1.0)}, r"alphas must be in \(0, 1\], got 0.0"),
        ({"betas": (0.5, 1.5)}, r"betas must be in \(0, 1\], got 1.5"),
        ({"betas": (0.5, 0.7)}, "betas must be ascending and end at 1"),
        ({"alphas": ()}, "alphas must be ascending and end at 1"),
        ({"scorer_auc": 0.5}, "scorer_auc must be above 0.5 and below 1, got 0.5"),
        ({"seed": 2**64}, "seed must be below 2"),
        ({"seed": -1}, "seed must be a whole number of at least 0"),
        ({"positives": 2**31}, "must be at most 2"),
        ({"alphas": log_grid(0.01, 1, 200), "betas": log_grid(0.01, 1, 200)}, "too many"),
    ],
)
def test_design_invalid_value_raises_one_line(options, message):
    with pytest.raises(InputError, match=message) as error:
        Design(**options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["", "x", "0.1:1", "0.1:1:x", "0:1:5", "0.5:0.1:5", "0.1:2:5"])
def test_parse_grid_invalid_text_raises_one_line(text):
    with pytest.raises(InputError, match="alphas"):
        parse_grid(text, "alphas")
    with pytest.raises(InputError, match="at least 2, got 1"):
        parse_grid("0.1:1:1", "alphas")


# --- the command ----------------------------------------------------------------------------------


def run(*words) -> None:
    found, parser, rest = find(Group("", {"simulate": command}), ["simulate", *words], "llpauc")
    call(found, parser.read(rest))


TINY = ["--positives", "20", "--negatives", "300", "--rankings", "200", "-k", "20,5,320",
        "--alphas", "0.05:1:6", "--betas", "0.01:1:7"]  # fmt: skip


def test_simulate_command_prints_tables_and_writes_files(tmp_path, capsys):
    run(*TINY, "--out", str(tmp_path / "new" / "study"))
    output = capsys.readouterr()
    assert "200 rankings of 20 positives and 300 negatives, all equally likely" in output.out
    assert "Claims:" in output.out
    last = next(line for line in output.out.splitlines() if line.startswith("│ 320"))
    assert set(last.split("│")[2].strip()) == {"-"}  # Recall@320 is always 1
    folder = tmp_path / "new" / "study"
    assert sorted(p.name for p in folder.iterdir()) == [
        "simulation.csv", "simulation.md", "simulation.png"
    ]  # fmt: skip
    assert (folder / "simulation.png").read_bytes().startswith(b"\x89PNG")
    text = (folder / "simulation.md").read_text()
    assert "| 20 |" in text
    assert "llpauc simulate --positives 20 --negatives 300 --rankings 200 --k 20,5,320" in text
    assert str(tmp_path) not in text
    rows = list(csv.DictReader((folder / "simulation.csv").open()))
    assert len(rows) == 2 * 2 * 3 * 6 * 7
    study = simulate(
        Design(20, 300, 200, (5, 20, 320), parse_grid("0.05:1:6", ""), parse_grid("0.01:1:7", ""))
    )
    expected = study.correlations["two-way", "ndcg"]
    got = [row for row in rows if (row["area"], row["target"]) == ("two-way", "ndcg@20")]
    for row, value in zip(got, expected[1].ravel(), strict=True):
        assert float(row["correlation"] or "nan") == pytest.approx(value, nan_ok=True, abs=0)


def test_simulate_command_json(capsys):
    run(*TINY, "--scorer-auc", "0.8", "--json")
    answer = json.loads(capsys.readouterr().out)
    assert answer["scorer_auc"] == 0.8
    assert [row["k"] for row in answer["recall"]] == [5, 20, 320]
    assert answer["recall"][2]["llpauc"] is None
    assert answer["recall"][0]["llpauc"]["correlation"] > answer["recall"][0]["auc"]
    assert abs(answer["mean_auc"] - 0.8) < 0.03
    assert {"AUC", "OPAUC", "LLPAUC", "NDCG@K"} <= set(answer["inversions"][0]["fractions"])
    assert 0.0 < answer["inversions"][0]["fractions"]["LLPAUC"] < 0.5


@pytest.mark.parametrize(
    "words",
    [
        ["--positives", "0"], ["--rankings", "1"], ["--scorer-auc", "0.4"], ["--threads", "0"],
        ["--seed", "-3"], ["--negatives", "many"],
    ],
)  # fmt: skip
def test_simulate_command_option_out_of_range_exits_2(words, capsys):
    with pytest.raises(SystemExit) as left:
        run(*words)
    assert left.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-k", "a,b"], "'a,b' is not a list of whole numbers"),
        (["-k", "60000"], "larger than a ranking of 51,000 items"),
        (["--alphas", "0:1:9"], "alphas must have 0 < low < high <= 1"),
        (["--betas", "1.5"], r"betas must be in \(0, 1\]"),
        (["--out", __file__], "is no folder"),
    ],
)
def test_simulate_command_invalid_input_raises(words, message):
    with pytest.raises(InputError, match=message):
        run(*words)


@pytest.mark.parametrize(
    "design",
    [
        Design(20, 300, 100, (5, 20, 100, 320), SMALL, SMALL),
        Design(20, 300, 100, (5,), (1.0,), (1.0,), scorer_auc=0.8),
        Design(3, 4, 10, (7,), SMALL, SMALL),
    ],
    ids=["four", "one cell", "undefined"],
)
def test_simulation_figure_marks_each_maximum(design, tmp_path):
    summary = summarize(simulate(design))
    figure = simulation_figure(summary)
    titles = {axis.get_title(): axis for axis in figure.get_axes()}
    for found in summary.recall:
        if found.llpauc is None:
            assert f"K = {found.k}: undefined" in titles
            continue
        axis = titles[f"K = {found.k}: maximum {found.llpauc.correlation:.3f}"]
        (star,) = (line for line in axis.get_lines() if line.get_marker() == "*")
        assert star.get_xydata().tolist() == [[found.llpauc.beta, found.llpauc.alpha]]
    assert save(figure, tmp_path / "study.png").stat().st_size > 10_000
