"""The noise study: the gap, choices on validation, and remarks that describe the numbers."""

from __future__ import annotations

import csv
from collections import Counter, defaultdict
from dataclasses import replace

import numpy as np
import pytest

from llpauc.cli import main
from llpauc.data.interactions import Interactions, Split
from llpauc.data.writers import write_split
from llpauc.errors import InputError
from llpauc.evaluation.full_ranking import evaluate
from llpauc.models import Popularity
from llpauc.recommend import Recommender
from llpauc.research import cells as cells_module
from llpauc.research import datasets, noise_study, trainings
from llpauc.research.cells import Study
from llpauc.research.datasets import VARIANTS
from llpauc.research.noise_study import ALPHAS, LOSSES, METHODS, Comparison
from llpauc.research.paper import PAPER
from llpauc.research.trainings import run_recommender
from tests.datasets import random_split, real, taste_split


def with_noise(clean: Split, seed: int = 0) -> Split:
    """The same test part; half of the training events are replaced by random ones, some new."""
    rng = np.random.default_rng(seed)
    train = clean.train
    users, items = (
        [*ids.ids(rows)]
        for ids, rows in ((train.user_ids, train.users), (train.item_ids, train.items))
    )
    clean_events = rng.permutation(len(users))[: len(users) // 2]
    new = len(users) - len(clean_events)
    noisy_users = [f"u{u}" for u in rng.integers(0, 60, new)]
    noisy_items = [f"i{i}" for i in rng.integers(0, 50, new)]
    mixed = Interactions.of(
        [*(users[at] for at in clean_events), *noisy_users],
        [*(items[at] for at in clean_events), *noisy_items],
    )
    return Split.of(mixed, clean.valid, clean.test)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Both pairs, generated: Adressa with cold users, MovieLens without."""
    folder = tmp_path_factory.mktemp("data")
    for name, noisy, cold in (("adressa", "noise", True), ("ml-1m", "noisy", False)):
        kind = "inter" if name == "adressa" else "tsv"
        clean = taste_split(3, cold=cold)
        write_split(clean, folder / f"{name}_clean", kind)
        write_split(with_noise(clean), folder / f"{name}_{noisy}", kind)
    return folder


def small(settings):
    """The same grid with tiny models."""
    tiny = {"epochs": 2, "dimensions": 4, "negatives": 5, "batch_size": 64}
    return [{**setting, **(tiny if "loss" in setting else {})} for setting in settings]


def use_tiny_models(patch):
    patch.setattr(noise_study, "METHODS", {n: small(some) for n, some in METHODS.items()})


@pytest.fixture(scope="module")
def made(data, tmp_path_factory):
    """The report of Adressa, two seeds, the whole grid, and every requested cell."""
    study = Study(data, tmp_path_factory.mktemp("out"), seeds=(1, 2))
    requested = []
    with pytest.MonkeyPatch.context() as patch:
        real_run = cells_module.run_cell
        patch.setattr(
            cells_module, "run_cell", lambda cell, d: requested.append(cell) or real_run(cell, d)
        )
        patch.setitem(PAPER["noise"], "pairs", ["adressa"])
        use_tiny_models(patch)
        report = noise_study.noise_gap(study)
    return study, report, requested


# --- the gap --------------------------------------------------------------------------------------


def make_comparison(method, clean, noise, valid=0.5, pair="adressa"):
    def results(values):
        return [
            {"valid": valid, "test": {"all": {"recall@20": v, "ndcg@20": v / 2}}} for v in values
        ]

    return Comparison(
        pair, method, {"clean": {}, "noise": {}}, {"clean": results(clean), "noise": results(noise)}
    )


def test_comparison_lost_is_computed_per_seed():
    line = make_comparison("BPR", [0.4, 0.5], [0.3, 0.45])
    assert line.lost("recall@20").mean == pytest.approx((0.1 + 0.05) / 2)
    assert line.lost("recall@20").sd == pytest.approx(abs(0.1 - 0.05) / np.sqrt(2))
    assert line.fraction_lost("recall@20").mean == pytest.approx((0.25 + 0.1) / 2)
    assert line.lost("ndcg@20").mean == pytest.approx((0.1 + 0.05) / 4)
    assert line.values("clean", "recall@20", "warm") == [0.4, 0.5]  # no cold users


def all_methods(**over):
    """Every loss loses a tenth, except those given as (clean, noise, validation)."""
    names = ["popularity", *LOSSES, *(f"LLPAUC, alpha {a:g}" for a in ALPHAS)]
    methods = []
    for name in names:
        clean, noise, valid = over.get(name, (0.2, 0.18, 0.5))
        methods.append(make_comparison(name, [clean, clean + 0.002], [noise, noise + 0.002], valid))
    return methods


def test_remarks_describe_the_numbers():
    text = noise_study.remarks(
        all_methods(SL=(0.3, 0.24, 0.9), RCE=(0.1, 0.099, 0.1), LLPAUC=(0.2, 0.17, 0.4))
    )
    assert (
        "Recall@20 after noise training: SL is the best of the losses (.2410 ± .0014), .0600 above"
        in (text[0])
    )
    assert "RCE loses least" in text[1]
    assert f"LLPAUC is number {len(LOSSES) - 1} of {len(LOSSES)}" in text[1]
    assert "no bound on TPR differs" in text[2]
    assert text[-1].startswith("Noisy validation would choose SL")
    best = noise_study.remarks(all_methods(LLPAUC=(0.2, 0.199, 0.6), popularity=(0.3, 0.3, 0)))
    assert "LLPAUC is the best of the losses" in best[0]
    assert "below popularity" in best[0]
    assert "LLPAUC loses least" in best[1]
    assert f"number 1 of {len(LOSSES)}" in best[1]


def test_alpha_remark_only_reports_differences_beyond_the_deviation():
    lines = all_methods(
        **{"LLPAUC, alpha 0.7": (0.2, 0.195, 0.5), "LLPAUC, alpha 0.5": (0.2, 0.15, 0.5)}
    )
    text = noise_study.alpha_remark(lines, "recall@20")
    assert "loses less than alpha 1 by more than the deviation of the seeds: 0.7;" in text
    assert "loses more than alpha 1 by more than the deviation of the seeds: 0.5." in text
    assert "Best after noise training: alpha 0.7" in text


def test_averages_are_means_over_pairs():
    names = list(LOSSES)
    lines = [make_comparison(name, [0.2], [0.1], pair="one") for name in names]
    lines += [
        make_comparison(name, [0.2], [0.2 if name == "SL" else 0.1], pair="two") for name in names
    ]
    lost, left, *_ = noise_study.averages(lines)
    assert "SL 25.0%, " in lost
    assert "BPR 50.0%" in lost
    assert "SL 100.0%, " in left
    assert "BPR 75.0%" in left


# --- cells ----------------------------------------------------------------------------------------


def test_methods_are_valid_recommenders_with_default_cold_users():
    for name, settings in METHODS.items():
        assert 1 <= len(settings) <= 4, name
        for setting in settings:
            made = Recommender(recipe="none", **setting)
            if "loss" in setting:
                assert made.plan().model_options.cold_users == "mean", name
        if name in LOSSES:  # every loss chooses the learning rate, except that the recipe has one
            rates = [0.003] if "recipe" in name else (0.02, 0.005)
            assert {setting["lr"] for setting in settings} == set(rates)


def test_run_recommender_learns_from_train_and_masks_seen_items():
    split = random_split(1)
    found = run_recommender(lambda name: split, "d", seed=1, test=True, model="popularity")
    by_hand = evaluate(
        Popularity.scorer_of(split.train), split, metrics=trainings.METRICS
    ).summary()
    assert found["test"]["all"] == by_hand["all"]
    assert found["valid"] == evaluate(
        Popularity.scorer_of(split.train), split, on="valid", metrics=["ndcg@20"]
    ).mean("ndcg@20")


def test_run_recommender_test_part_does_not_change_training_or_validation():
    split = random_split(1)
    other = replace(split, test=split.test.take(np.arange(len(split.test)) % 2 == 0))
    options = {"model": "mf", "loss": "bpr", "dimensions": 4, "epochs": 3, "negatives": 5}
    options["seed"] = 1
    one, two = (
        run_recommender(lambda name, s=s: s, "d", test=True, **options) for s in (split, other)
    )
    assert one["valid"] == two["valid"]
    assert one["best_epoch"] == two["best_epoch"]
    assert one["test"] != two["test"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_noise_gap_each_side_chooses_on_its_validation_part_with_the_first_seed(made, variant):
    study, report, requested = made
    of_variant = [cell for cell in requested if cell.data == f"adressa-{variant}"]
    valid = {cell: result["valid"] for cell, result in study.results(of_variant).items()}
    llpauc = [
        c
        for c in of_variant
        if dict(c.options).get("loss") == "llpauc" and "score" not in c.spec["options"]
    ]
    tried = [c for c in llpauc if c["alpha"] == 0.7 and c["seed"] == 1]
    assert {(c["beta"], c["lr"]) for c in tried} == {
        (beta, rate) for beta in (0.1, 0.3) for rate in (0.02, 0.005)
    }
    best = max(tried, key=valid.__getitem__)
    # Other alphas and seeds are trained with the chosen beta and learning rate only.
    others = [c for c in llpauc if c not in tried]
    assert {(c["beta"], c["lr"]) for c in others} == {(best["beta"], best["lr"])}
    assert {(c["alpha"], c["seed"]) for c in others} == {
        (alpha, seed) for alpha in ALPHAS for seed in (1, 2)
    } - {(0.7, 1)}
    alphas = [c for c in [*others, best] if c["seed"] == 1]
    alpha = max(alphas, key=valid.__getitem__)["alpha"]
    (row,) = rows_of(report, data="adressa", method="LLPAUC", users="all", metric="ndcg@20")
    assert row[f"chosen {variant}"].startswith(f"alpha {alpha:g}, beta {best['beta']:g}")


def rows_of(report, **columns):
    return [r for r in report.rows if all(r[name] == value for name, value in columns.items())]


# --- the report -----------------------------------------------------------------------------------


def test_noise_gap_rows_equal_the_cells(made):
    study, report, requested = made
    results = study.results(requested)
    chosen_rates = {  # the chosen rate is the one that the second seed was trained with
        variant: {
            c["lr"]
            for c in requested
            if (c.data, dict(c.options).get("loss"), c["seed"]) == (f"adressa-{variant}", "bpr", 2)
        }
        for variant in VARIANTS
    }
    values = {
        variant: [
            results[c]["test"]["warm"]["recall@20"]
            for c in sorted(set(requested), key=lambda c: c["seed"])
            if c.data == f"adressa-{variant}"
            and dict(c.options).get("loss") == "bpr"
            and c["lr"] in chosen_rates[variant]
        ]
        for variant in VARIANTS
    }
    assert [len(some) for some in values.values()] == [2, 2]
    (row,) = rows_of(report, data="adressa", method="BPR", users="warm", metric="recall@20")
    assert float(row["clean"]) == pytest.approx(np.mean(values["clean"]), abs=1e-6)
    lost = np.subtract(values["clean"], values["noise"])
    assert float(row["lost"]) == pytest.approx(lost.mean(), abs=1e-6)
    assert float(row["lost sd"]) == pytest.approx(lost.std(ddof=1), abs=1e-6)
    assert len(report.rows) == 4 * (len(METHODS) + len(ALPHAS))
    assert report.markdown.count("Users with a training event only") == 1


def test_noise_gap_is_positive_where_half_the_events_are_random(made):
    _, report, _ = made
    lost = [
        float(row["lost"])
        for row in report.rows
        if row["method"] == "EASE" and row["metric"] == "ndcg@20"
    ]
    assert min(lost) > 0


def test_reproduce_command_noise_gap_of_the_available_pair(data, tmp_path, capsys):
    alone = tmp_path / "data"
    alone.mkdir()
    for name in ("ml-1m_clean", "ml-1m_noisy"):
        (alone / name).symlink_to(data / name)
    words = ["reproduce", "table-noise-gap", "--out", str(tmp_path / "out"), "--quick",
             "--workers", "1", "--data"]  # fmt: skip
    assert main([*words, str(alone)]) == 0, capsys.readouterr().err
    text = (tmp_path / "out" / "table-noise-gap.md").read_text()
    assert "## ml-1m" in text
    assert "## adressa" not in text
    assert "Users with a training event only" not in text  # no cold users
    assert str(tmp_path) not in text
    assert (tmp_path / "out" / "table-noise-gap.png").read_bytes().startswith(b"\x89PNG")
    with (tmp_path / "out" / "table-noise-gap.csv").open(newline="") as file:
        assert {row["method"] for row in csv.DictReader(file)} >= {*METHODS, *LOSSES}
    (alone / "ml-1m_noisy").unlink()
    assert main([*words, str(alone)]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert "adressa-clean" in lines[-1]


def test_noise_gap_incomplete_pair_raises(data, tmp_path):
    (tmp_path / "adressa_clean").symlink_to(data / "adressa_clean")
    with pytest.raises(InputError, match="adressa-noise"):
        noise_study.noise_gap(Study(tmp_path, tmp_path / "out", quick=True))


# --- the real pair --------------------------------------------------------------------------------


def test_load_both_movielens_variants_have_the_same_test_part_except_item_ids():
    """User ids are the same. The users with an item in test identify it, whatever its id."""
    folder = real("ml-1m_noisy").parent
    seen = []
    for variant in VARIANTS:
        test = datasets.load(f"ml-1m-{variant}", folder).test
        users_of = defaultdict(set)
        users, items = test.user_ids.ids(test.users), test.item_ids.ids(test.items)
        for user, item in zip(users, items, strict=True):
            users_of[item].add(user)
        seen.append(Counter(map(frozenset, users_of.values())))
    assert seen[0] == seen[1]
    assert sum(len(users) * n for users, n in seen[0].items()) == 57_532
