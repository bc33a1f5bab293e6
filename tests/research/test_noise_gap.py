"""What noise costs: the gap by hand, honest choices, and remarks that follow the numbers."""

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
from llpauc.research import collection, noise_gap
from llpauc.research import lab as lab_module
from llpauc.research.lab import Lab
from llpauc.research.noise_gap import ALPHAS, LOSSES, METHODS, Line, run_gap
from tests.datasets import random_split, real, taste_split


def with_noise(clean: Split, seed: int = 0) -> Split:
    """The same test part; half of the training events are replaced by random ones, some new."""
    rng = np.random.default_rng(seed)
    train = clean.train
    users, items = (
        [*ids.ids(rows)]
        for ids, rows in ((train.user_ids, train.users), (train.item_ids, train.items))
    )
    kept = rng.permutation(len(users))[: len(users) // 2]
    new = len(users) - len(kept)
    noisy_users = [f"u{u}" for u in rng.integers(0, 60, new)]
    noisy_items = [f"i{i}" for i in rng.integers(0, 50, new)]
    mixed = Interactions.of(
        [*(users[at] for at in kept), *noisy_users], [*(items[at] for at in kept), *noisy_items]
    )
    return Split.of(mixed, clean.valid, clean.test)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Both pairs, made up: Adressa with cold users, MovieLens without."""
    folder = tmp_path_factory.mktemp("data")
    for name, noisy, cold in (("adressa", "noise", True), ("ml-1m", "noisy", False)):
        kind = "inter" if name == "adressa" else "tsv"
        clean = taste_split(3, cold=cold)
        write_split(clean, folder / f"{name}_clean", kind)
        write_split(with_noise(clean), folder / f"{name}_{noisy}", kind)
    return folder


def small(settings):
    """The same grid, trained for a moment."""
    moment = {"epochs": 2, "dimensions": 4, "negatives": 5, "batch_size": 64}
    return [{**setting, **(moment if "loss" in setting else {})} for setting in settings]


def trained_for_a_moment(patch):
    patch.setattr(noise_gap, "METHODS", {n: small(some) for n, some in METHODS.items()})
    patch.setattr(noise_gap, "_OF_LLPAUC", small(noise_gap._OF_LLPAUC))


@pytest.fixture(scope="module")
def made(data, tmp_path_factory):
    """The report of Adressa, two seeds, the whole grid, and every cell that was asked for."""
    lab = Lab(data, tmp_path_factory.mktemp("out"), seeds=(1, 2))
    asked = []
    with pytest.MonkeyPatch.context() as patch:
        real_run = lab_module.run
        patch.setattr(lab_module, "run", lambda cell, d: asked.append(cell) or real_run(cell, d))
        patch.setattr(noise_gap, "PAIRS", ("adressa",))
        trained_for_a_moment(patch)
        report = noise_gap.noise_gap(lab)
    return lab, report, asked


# --- the gap --------------------------------------------------------------------------------------


def a_line(method, clean, noise, valid=0.5, pair="adressa"):
    def results(values):
        return [
            {"valid": valid, "test": {"all": {"recall@20": v, "ndcg@20": v / 2}}} for v in values
        ]

    return Line(
        pair, method, {"clean": {}, "noise": {}}, {"clean": results(clean), "noise": results(noise)}
    )


def test_what_is_lost_goes_seed_by_seed():
    line = a_line("BPR", [0.4, 0.5], [0.3, 0.45])
    assert line.lost("recall@20").mean == pytest.approx((0.1 + 0.05) / 2)
    assert line.lost("recall@20").sd == pytest.approx(abs(0.1 - 0.05) / np.sqrt(2))
    assert line.share_lost("recall@20").mean == pytest.approx((0.25 + 0.1) / 2)
    assert line.lost("ndcg@20").mean == pytest.approx((0.1 + 0.05) / 4)
    assert line.values("clean", "recall@20", "warm") == [0.4, 0.5]  # nobody is cold


def all_lines(**over):
    """Every loss loses a tenth, but for those given as (clean, noise, validation)."""
    names = ["popularity", *LOSSES, *(f"LLPAUC, alpha {a:g}" for a in ALPHAS)]
    lines = []
    for name in names:
        clean, noise, valid = over.get(name, (0.2, 0.18, 0.5))
        lines.append(a_line(name, [clean, clean + 0.002], [noise, noise + 0.002], valid))
    return lines


def test_remarks_follow_the_numbers():
    said = noise_gap.remarks(
        all_lines(SL=(0.3, 0.24, 0.9), RCE=(0.1, 0.099, 0.1), LLPAUC=(0.2, 0.17, 0.4))
    )
    assert (
        "Recall@20 after noise training: SL is best of the losses (.2410 ± .0014), .0600 above"
        in (said[0])
    )
    assert "RCE loses least" in said[1]
    assert f"LLPAUC is number {len(LOSSES) - 1} of {len(LOSSES)}" in said[1]
    assert "no bound on TPR differs" in said[2]
    assert said[-1].startswith("Noisy validation would pick SL")
    best = noise_gap.remarks(all_lines(LLPAUC=(0.2, 0.199, 0.6), popularity=(0.3, 0.3, 0)))
    assert "LLPAUC is best of the losses" in best[0]
    assert "below popularity" in best[0]
    assert "LLPAUC loses least" in best[1]
    assert f"number 1 of {len(LOSSES)}" in best[1]


def test_alpha_is_said_to_help_only_beyond_the_spread_of_the_seeds():
    lines = all_lines(
        **{"LLPAUC, alpha 0.7": (0.2, 0.195, 0.5), "LLPAUC, alpha 0.5": (0.2, 0.15, 0.5)}
    )
    said = noise_gap._about_alpha(lines, "recall@20")
    assert "loses less than alpha 1 by more than the seeds' spread: 0.7;" in said
    assert "loses more than alpha 1 by more than the seeds' spread: 0.5." in said
    assert "Best after noise training: alpha 0.7" in said


def test_the_verdict_averages_over_pairs():
    names = list(LOSSES)
    lines = [a_line(name, [0.2], [0.1], pair="one") for name in names]
    lines += [a_line(name, [0.2], [0.2 if name == "SL" else 0.1], pair="two") for name in names]
    lost, left, *_ = noise_gap._verdict(lines)
    assert "SL 25.0%, " in lost
    assert "BPR 50.0%" in lost
    assert "SL 100.0%, " in left
    assert "BPR 75.0%" in left


# --- honest cells ---------------------------------------------------------------------------------


def test_every_setting_is_a_recommender_with_the_default_for_cold_users():
    for name, settings in {**METHODS, "LLPAUC": noise_gap._OF_LLPAUC}.items():
        assert 1 <= len(settings) <= 4, name
        for setting in settings:
            made = Recommender(**setting)
            if "loss" in setting:
                assert made.plan().embedding.cold == "mean", name
        if name in LOSSES:  # everybody may choose the rate, the recipe's aside: it has one
            rates = [noise_gap.RECIPE["lr"]] if "recipe" in name else noise_gap.RATES
            assert {setting["lr"] for setting in settings} == set(rates)


def test_a_cell_learns_from_train_alone_and_masks_what_was_seen():
    split = random_split(1)
    found = run_gap(lambda name: split, "d", seed=1, model="popularity")
    by_hand = evaluate(Popularity(split.train), split, metrics=list(noise_gap.METRICS)).summary()
    assert found["test"]["all"] == by_hand["all"]
    assert found["valid"] == evaluate(
        Popularity(split.train), split, on="valid", metrics=["ndcg@20"]
    ).mean("ndcg@20")


def test_the_test_part_has_no_say_in_training_or_validation():
    split = random_split(1)
    other = replace(split, test=split.test.take(np.arange(len(split.test)) % 2 == 0))
    given = {"model": "mf", "loss": "bpr", "dimensions": 4, "epochs": 3, "negatives": 5, "seed": 1}
    one, two = (run_gap(lambda name, s=s: s, "d", **given) for s in (split, other))
    assert one["valid"] == two["valid"]
    assert one["epochs"] == two["epochs"]
    assert one["test"] != two["test"]


@pytest.mark.parametrize("variant", noise_gap.VARIANTS)
def test_each_side_chooses_by_its_own_validation_with_the_first_seed(made, variant):
    lab, report, asked = made
    own = [cell for cell in asked if cell.data == f"adressa-{variant}"]
    valid = {cell: result["valid"] for cell, result in lab.results(own).items()}
    llpauc = [
        c
        for c in own
        if dict(c.options).get("loss") == "llpauc" and "score" not in c.spec["options"]
    ]
    tried = [c for c in llpauc if c["alpha"] == noise_gap.MIDDLE and c["seed"] == 1]
    assert {(c["beta"], c["lr"]) for c in tried} == {
        (beta, rate) for beta in noise_gap.BETAS for rate in noise_gap.RATES
    }
    best = max(tried, key=valid.__getitem__)
    # Of the other alphas and seeds none but the chosen beta and rate is trained.
    others = [c for c in llpauc if c not in tried]
    assert {(c["beta"], c["lr"]) for c in others} == {(best["beta"], best["lr"])}
    assert {(c["alpha"], c["seed"]) for c in others} == {
        (alpha, seed) for alpha in ALPHAS for seed in (1, 2)
    } - {(noise_gap.MIDDLE, 1)}
    alphas = [c for c in [*others, best] if c["seed"] == 1]
    alpha = max(alphas, key=valid.__getitem__)["alpha"]
    (row,) = rows_of(report, data="adressa", method="LLPAUC", users="all", metric="ndcg@20")
    assert row[f"chosen {variant}"].startswith(f"alpha {alpha:g}, beta {best['beta']:g}")


def rows_of(report, **wanted):
    return [r for r in report.rows if all(r[name] == value for name, value in wanted.items())]


# --- the report -----------------------------------------------------------------------------------


def test_rows_hold_what_the_cells_hold(made):
    lab, report, asked = made
    results = lab.results(asked)
    kept = {  # the chosen rate is the one that the second seed was trained with
        variant: {
            c["lr"]
            for c in asked
            if (c.data, dict(c.options).get("loss"), c["seed"]) == (f"adressa-{variant}", "bpr", 2)
        }
        for variant in noise_gap.VARIANTS
    }
    values = {
        variant: [
            results[c]["test"]["warm"]["recall@20"]
            for c in sorted(set(asked), key=lambda c: c["seed"])
            if c.data == f"adressa-{variant}"
            and dict(c.options).get("loss") == "bpr"
            and c["lr"] in kept[variant]
        ]
        for variant in noise_gap.VARIANTS
    }
    assert [len(some) for some in values.values()] == [2, 2]
    (row,) = rows_of(report, data="adressa", method="BPR", users="warm", metric="recall@20")
    assert float(row["clean"]) == pytest.approx(np.mean(values["clean"]), abs=1e-6)
    lost = np.subtract(values["clean"], values["noise"])
    assert float(row["lost"]) == pytest.approx(lost.mean(), abs=1e-6)
    assert float(row["lost sd"]) == pytest.approx(lost.std(ddof=1), abs=1e-6)
    assert len(report.rows) == 4 * (len(METHODS) + 1 + len(ALPHAS))
    assert report.markdown.count("Users with a training event only") == 1


def test_noise_costs_something_where_half_the_events_are_random(made):
    _, report, _ = made
    lost = [
        float(row["lost"])
        for row in report.rows
        if row["method"] == "EASE" and row["metric"] == "ndcg@20"
    ]
    assert min(lost) > 0


def test_the_command_makes_text_table_and_picture_of_the_pair_that_is_there(data, tmp_path, capsys):
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
    assert "Users with a training event only" not in text  # there is nobody else
    assert str(tmp_path) not in text
    assert (tmp_path / "out" / "table-noise-gap.png").read_bytes().startswith(b"\x89PNG")
    with (tmp_path / "out" / "table-noise-gap.csv").open(newline="") as file:
        assert {row["method"] for row in csv.DictReader(file)} >= {*METHODS, *LOSSES}
    (alone / "ml-1m_noisy").unlink()
    assert main([*words, str(alone)]) == 2
    told = capsys.readouterr().err.strip().splitlines()
    assert "adressa-clean" in told[-1]


def test_half_a_pair_is_no_pair(data, tmp_path):
    (tmp_path / "adressa_clean").symlink_to(data / "adressa_clean")
    with pytest.raises(InputError, match="adressa-noise"):
        noise_gap.noise_gap(Lab(tmp_path, tmp_path / "out", quick=True))


# --- the real pair --------------------------------------------------------------------------------


def test_both_movielens_have_one_test_part_but_for_the_numbers_of_the_items():
    """Users keep their ids. Which users have an item in test tells the item, whatever its id."""
    folder = real("ml-1m_noisy").parent
    seen = []
    for variant in noise_gap.VARIANTS:
        test = collection.load(f"ml-1m-{variant}", folder).test
        users_of = defaultdict(set)
        users, items = test.user_ids.ids(test.users), test.item_ids.ids(test.items)
        for user, item in zip(users, items, strict=True):
            users_of[item].add(user)
        seen.append(Counter(map(frozenset, users_of.values())))
    assert seen[0] == seen[1]
    assert sum(len(users) * n for users, n in seen[0].items()) == 57_532
