"""Recommender: lists against a full sort, parameters, fitting, saving, recipes."""

from __future__ import annotations

import csv
import dataclasses
import json
from contextlib import contextmanager
from warnings import catch_warnings

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from scipy import sparse
from sklearn.base import clone

from llpauc.data.ids import IdMap
from llpauc.data.interactions import Interactions, Split
from llpauc.data.recency import choose_recency, recent_counts
from llpauc.errors import InputError
from llpauc.evaluation import evaluate
from llpauc.losses import LOSSES, make_loss
from llpauc.models.fold_in import HistoryMap, learn_history_map
from llpauc.models.registry import MODELS, trained_models
from llpauc.recommend import Recommender
from llpauc.recommend.fitted import ids_or_none
from llpauc.recommend.lists import Recommendations, write_lists
from llpauc.recommend.parameters import current_names, plan
from llpauc.recommend.recipes import RECIPES, recipe, with_model
from llpauc.recommend.sources import as_split
from llpauc.training import Diverged
from llpauc.training import fit as fit_model
from llpauc.training.engine import CpuEngine
from tests.datasets import new_network, random_split, score_table

SPLIT = random_split(8, n_users=30, n_items=24, events=500)
TRAIN = SPLIT.train
HAVE = TRAIN.matrix.toarray() > 0
COLD = ~HAVE.any(axis=1)
USERS, ITEMS = list(TRAIN.user_ids), list(TRAIN.item_ids)
QUICK = {"epochs": 3, "dimensions": 6, "negatives": 5, "batch_size": 32, "lr": 0.02, "seed": 4}
CASES = {
    "mf": QUICK,
    "mf-cosine": QUICK | {"score": "cosine"},
    "mf-bias": QUICK | {"item_bias": True, "loss": "bpr"},
    "mf-random": QUICK | {"cold_users": "random"},
    "lightgcn": QUICK | {"layers": 3},
    "lightgcn-cosine": QUICK | {"loss": "sl"},
    "fism": QUICK,
    "fism-cosine": QUICK | {"score": "cosine", "temperature": 0.5},
    "fism-bias": QUICK | {"item_bias": True, "loss": "bce"},
    "fism-cosine-bias": QUICK | {"item_bias": True, "score": "cosine"},
    "popularity": {},
    "itemknn": {"neighbours": 5},
    "ease": {"regularization": 10.0},
}
EMBEDDING = [name for name in CASES if name.split("-")[0] in trained_models()]


def fit(name: str, data=TRAIN, **more) -> Recommender:
    return Recommender(recipe="none", model=name.split("-")[0], **CASES[name] | more).fit(data)


@pytest.fixture(scope="module")
def fitted() -> dict[str, Recommender]:
    return {name: fit(name) for name in CASES}


def sorted_out(scores: np.ndarray, hidden: np.ndarray, k: int) -> tuple[list, np.ndarray]:
    """A full sort: by score down, then by item row up; None and -inf behind the last item."""
    ids, best = [], np.full((len(scores), k), -np.inf, np.float32)
    for row, (values, gone) in enumerate(zip(scores, hidden, strict=True)):
        order = [i for i in np.lexsort((np.arange(len(values)), -values)) if not gone[i]][:k]
        ids.append([ITEMS[i] for i in order] + [None] * (k - len(order)))
        best[row, : len(order)] = values[order]
    return ids, best


# --- lists ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("exclude_seen", [True, False])
@pytest.mark.parametrize("k", [1, 7, len(ITEMS), len(ITEMS) + 9])
@pytest.mark.parametrize("name", CASES)
def test_recommend_is_a_full_sort(name, k, exclude_seen, fitted):
    scores = score_table(fitted[name].scorer(), len(USERS))
    hidden = HAVE if exclude_seen else np.zeros_like(HAVE)
    ids, best = sorted_out(scores, hidden, k)
    got_ids, got_scores = fitted[name].recommend(USERS, k, exclude_seen=exclude_seen)
    assert got_ids.tolist() == ids
    np.testing.assert_array_equal(got_scores, best)
    assert got_ids.shape == got_scores.shape == (len(USERS), k)


@pytest.mark.parametrize("name", CASES)
def test_recommend_single_user_equals_batch_bit_for_bit(name, fitted):
    ids, scores = fitted[name].recommend(USERS, 5)
    for row, user in enumerate(USERS[:8]):
        one_ids, one_scores = fitted[name].recommend([user], 5)
        assert one_ids[0].tolist() == ids[row].tolist()
        assert one_scores[0].tobytes() == scores[row].tobytes()


@pytest.mark.parametrize("name", EMBEDDING)
def test_network_scorer_equals_training_scores(name, fitted):
    """The vectors multiply to `EmbeddingNetwork.scores`, which the losses use."""
    model = fitted[name].plan().new_network(TRAIN)
    rows = np.flatnonzero(~COLD)
    users = torch.from_numpy(rows)
    trained = model.scores(users, torch.arange(len(ITEMS))[None, :]).detach().numpy()
    ranked = score_table(model.scorer(), len(USERS))[rows]
    np.testing.assert_allclose(ranked, trained, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_recommend_unknown_user_equals_user_without_history(name, fitted):
    assert COLD.any()
    cold = USERS[int(np.flatnonzero(COLD)[0])]
    ids, scores = fitted[name].recommend([cold, "unknown", USERS[0], 123], 6)
    assert ids[1].tolist() == ids[3].tolist()
    np.testing.assert_array_equal(scores[1], scores[3])
    assert ids[2].tolist() == fitted[name].recommend([USERS[0]], 6)[0][0].tolist()
    new_ids, new_scores = fitted[name].fold_in([], 6)  # a user of whom nothing is known
    assert new_ids.tolist() == ids[1].tolist()
    np.testing.assert_array_equal(new_scores, scores[1])
    if "random" not in name:
        np.testing.assert_allclose(scores[0], scores[1], rtol=1e-4, atol=1e-6)
        assert len(set(ids[0]) & set(ids[1])) >= 5  # all but a tie at the end


def test_recommend_unknown_user_gets_mean_user_or_popularity(fitted):
    tables = fitted["mf"].scorer()
    mean = tables.user_vectors[~COLD].mean(axis=0)
    _, best = sorted_out((mean @ tables.item_vectors.T)[None], np.zeros((1, len(ITEMS)), bool), 5)
    np.testing.assert_allclose(fitted["mf"].recommend(["?"], 5)[1], best, rtol=1e-4, atol=1e-7)
    counts = HAVE.sum(axis=0).astype(np.float32)
    for name in ("popularity", "itemknn", "ease"):
        ids, best = sorted_out(counts[None], np.zeros((1, len(ITEMS)), bool), 5)
        assert fitted[name].recommend(["?"], 5)[0].tolist() == ids
        np.testing.assert_array_equal(fitted[name].recommend(["?"], 5)[1], best)


def test_recommend_no_users_returns_empty_lists(fitted):
    ids, scores = fitted["mf"].recommend([], 3)
    assert ids.shape == scores.shape == (0, 3)


@pytest.mark.parametrize("name", ["mf", "popularity"])
def test_recommend_and_fold_in_allow_and_deny_items(name, fitted):
    recommender, allow, deny = fitted[name], ITEMS[3:15], np.array(ITEMS[7:20])
    k = len(ITEMS)
    for options, kept in (
        ({"allow": allow}, set(allow)),
        ({"deny": deny}, set(ITEMS) - set(deny)),
        ({"allow": allow, "deny": deny}, set(ITEMS[3:7])),
    ):
        for ask in (
            lambda **more: recommender.recommend(["new"], k, **more),
            lambda **more: recommender.fold_in(ITEMS[:2], k, exclude_seen=False, **more),
        ):
            with catch_warnings(action="ignore"):
                (ids, scores), (whole, _) = ask(**options), ask()
            assert [i for i in ids.ravel() if i is not None] == [
                i for i in whole.ravel() if i in kept
            ]
            assert np.isneginf(scores.ravel()[len(kept) :]).all()
    with pytest.raises(InputError, match="unknown item ids: typo"):
        recommender.recommend(USERS[:1], allow=["typo", ITEMS[0]])
    with pytest.raises(InputError, match="no item is left to recommend"):
        recommender.fold_in(ITEMS[:1], allow=[])


def test_recommend_warns_of_unknown_users(fitted):
    with pytest.warns(UserWarning, match="unknown user ids.*: typo, 7$") as caught:
        fitted["mf"].recommend([USERS[0], "typo", "7"], k=2)
    assert caught[0].filename == __file__
    with catch_warnings(action="error"):
        fitted["mf"].recommend(USERS, k=2)


def test_recommend_user_with_all_items_gets_none():
    pairs = [("all", i) for i in range(5)] + [("some", 0), ("some", 3)]
    data = Interactions.of([u for u, _ in pairs], [i for _, i in pairs])
    for model in MODELS:
        params = QUICK if MODELS[model].trained else {}
        recommender = Recommender(recipe="none", model=model, **params).fit(data)
        ids, scores = recommender.recommend(["all", "some"], 4)
        assert ids[0].tolist() == [None] * 4
        assert np.isneginf(scores[0]).all()
        assert set(ids[1]) == {1, 2, 4, None}
        assert np.isneginf(scores[1]).tolist() == [False, False, False, True]
        assert recommender.fold_in(range(5), 2)[0].tolist() == [None, None]
        lists = Recommendations(["all", "some"], ids, scores)
        assert lists.count == 3
        assert lists.table()["user"].to_pylist() == ["some"] * 3


# --- new users -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith(("fism", "item"))])
def test_fold_in_known_history_equals_that_users_scores(name):
    recommender = fit(name, hold_out=0.0) if "knn" not in name else fit(name)
    scores = score_table(recommender.scorer(), len(USERS))
    for row in np.flatnonzero(~COLD):
        history = [ITEMS[i] for i in np.flatnonzero(HAVE[row])]
        ids, got = recommender.fold_in(history, len(ITEMS), exclude_seen=False)
        order = TRAIN.item_ids.indices(ids)
        np.testing.assert_allclose(got, scores[row][order], rtol=2e-5, atol=2e-6)
        ids, _ = recommender.fold_in(history[::-1] + history, len(ITEMS))  # in any order, twice
        left = [i for i in ids if i is not None]
        assert sorted(left) == sorted(set(ITEMS) - set(history))


@pytest.mark.parametrize("name", CASES)
def test_fold_in_is_a_full_sort(name, fitted):
    recommender = fitted[name]
    history = np.zeros((1, len(ITEMS)), np.float32)
    history[0, [1, 4, 9]] = 1
    scores = recommender.fitted.model.scores_of(sparse.csr_matrix(np.repeat(history, 2, 0)))[:1]
    for k in (1, 5, len(ITEMS) + 4):
        for exclude_seen in (True, False):
            hidden = history > 0 if exclude_seen else np.zeros_like(history, bool)
            ids, best = sorted_out(scores, hidden, k)
            got = recommender.fold_in([ITEMS[i] for i in (1, 4, 9)], k, exclude_seen=exclude_seen)
            assert got[0].shape == got[1].shape == (k,)
            np.testing.assert_allclose(got[1], best[0], rtol=1e-5, atol=1e-6)
            if name != "itemknn":  # whose scores have many ties: the sums' last bits decide
                assert got[0].tolist() == ids[0]


def test_learn_history_map_equals_ridge_regression():
    rng = np.random.default_rng(0)
    a = rng.random((50, 20)) < 0.25
    a[3] = False
    a[:, 7] = False  # an item without users
    users = rng.standard_normal((50, 6)).astype(np.float32) + 2
    users[:, -1] = 1.0  # what a model with item biases has: no variance, no residual
    items = rng.standard_normal((20, 6)).astype(np.float32)
    got = learn_history_map(sparse.csr_matrix(a.astype(np.float32)), users, items)

    warm = a.any(axis=1)
    base = users[warm].astype(np.float64).mean(axis=0)
    scaled = a / np.sqrt(np.maximum(a.sum(axis=1, keepdims=True), 1))
    rows = np.linalg.solve(scaled.T @ scaled + 0.3 * np.eye(20), scaled.T @ (users - base))
    np.testing.assert_allclose(got.base, base, rtol=1e-6)
    np.testing.assert_allclose(got.history_rows, rows, atol=1e-5)
    assert not got.history_rows[7].any()
    assert not got.history_rows[:, -1].any()
    vectors = base + scaled[warm] @ rows
    histories = sparse.csr_matrix(a[warm].astype(np.float32))
    np.testing.assert_allclose(got.vectors_of(histories), vectors, atol=1e-5)
    np.testing.assert_allclose(got.scores_of(histories), vectors @ items.T, atol=1e-4)


def test_history_map_cosine_and_bias_by_hand():
    rows = np.array([[3.0, 0.0], [0.0, 4.0], [1.0, 1.0]], np.float32)
    items = np.array([[1.0, 0.0, 0.5], [0.0, 1.0, -0.5], [0.6, 0.8, 0.0]], np.float32)
    map_ = HistoryMap(rows, np.zeros(2, np.float32), items, length=2.0)
    history = sparse.csr_matrix(np.array([[1, 1, 0], [1, 0, 0]], np.float32))
    # (3, 4) / sqrt 2 has direction (.6, .8); brought to length 2 that is (1.2, 1.6)
    np.testing.assert_allclose(map_.vectors_of(history), [[1.2, 1.6, 1], [2, 0, 1]], rtol=1e-6)
    expected = [[1.2 + 0.5, 1.6 - 0.5, 1.2 * 0.6 + 1.6 * 0.8], [2.5, -0.5, 1.2]]
    np.testing.assert_allclose(map_.scores_of(history), expected, rtol=1e-6)


def test_fold_in_and_similar_items_find_the_block():
    """Two blocks of items: a new user with items of one is recommended the rest of that block."""
    pairs = [(f"u{b}-{u}", f"i{b}-{i}") for b in range(2) for u in range(12) for i in range(8)
             if (u + i) % 4]  # fmt: skip
    data = Interactions.of([u for u, _ in pairs], [i for _, i in pairs])
    for model in MODELS:
        if model in ("popularity", "recent_popularity"):
            continue
        longer = QUICK | {"epochs": 20, "loss": "bpr", "hold_out": 0.0, "dimensions": 4}
        params = longer if MODELS[model].trained else {}
        recommender = Recommender(recipe="none", model=model, **params).fit(data)
        ids, _ = recommender.fold_in(["i1-0", "i1-3", "i1-5"], 5)
        assert all(i.startswith("i1-") for i in ids), model
        ids, _ = recommender.similar_items("i0-2", 7)
        assert all(i.startswith("i0-") for i in ids), model


@pytest.mark.parametrize("name", CASES)
def test_similar_items_by_cosine_or_fold_in(name, fitted):
    recommender = fitted[name]
    ids, scores = recommender.similar_items(ITEMS[3], len(ITEMS) + 2)
    assert ids.shape == scores.shape == (len(ITEMS) + 2,)
    assert sorted(ids[:-3]) == sorted(set(ITEMS) - {ITEMS[3]})
    assert ids[-3:].tolist() == [None] * 3
    if name in EMBEDDING:
        vectors = recommender.scorer().item_vectors[:, :6].astype(np.float64)  # without the bias
        like = vectors @ vectors[3] / np.linalg.norm(vectors, axis=1) / np.linalg.norm(vectors[3])
        np.testing.assert_allclose(scores[:-3], np.sort(np.delete(like, 3))[::-1], atol=1e-5)
        np.testing.assert_allclose(scores[:-3], like[TRAIN.item_ids.indices(ids[:-3])], atol=1e-5)
    else:
        alone = recommender.fold_in([ITEMS[3]], len(ITEMS) + 2)
        assert ids.tolist() == alone[0].tolist()


@pytest.mark.parametrize("ask", [lambda r, i: r.fold_in([ITEMS[0], *i]),
                                 lambda r, i: r.similar_items(i[0])])  # fmt: skip
def test_fold_in_and_similar_items_unknown_items_are_named(ask, fitted):
    for recommender in fitted.values():
        with pytest.raises(InputError, match="unknown item ids: ghost"):
            ask(recommender, ["ghost"])


def test_recommend_and_fold_in_refuse_a_single_text():
    """Its characters would pass for ids where ids are that short."""
    data = Interactions.of(list("abcab"), list("xyzyx"))
    recommender = Recommender(model="popularity").fit(data)
    for ask in (recommender.recommend, recommender.fold_in):
        with pytest.raises(InputError, match="expected a list of ids, got the single value 'xy'"):
            ask("xy")


@pytest.mark.parametrize("k", [0, -1, 2.5, True])
def test_recommend_fold_in_similar_items_refuse_bad_k(k, fitted):
    recommender = fitted["mf"]
    for ask in (
        lambda: recommender.recommend(USERS, k),
        lambda: recommender.fold_in(ITEMS[:1], k),
        lambda: recommender.similar_items(ITEMS[0], k),
    ):
        with pytest.raises(InputError, match="k must be a whole number of at least 1, got"):
            ask()


# --- data of every kind --------------------------------------------------------------------------


EVENTS = [(f"u{u}", f"i{i}") for u, i in zip(TRAIN.users, TRAIN.items, strict=True)]


def as_file(folder, ending):
    frame = pl.DataFrame(EVENTS, schema=["user", "item"], orient="row")
    path = folder / f"events{ending}"
    if ending == ".parquet":
        frame.write_parquet(path)
    else:
        frame.write_csv(path, separator="," if ending == ".csv" else "\t")
    return path


SOURCES = {
    "csv": lambda folder: as_file(folder, ".csv"),
    "tsv as text": lambda folder: str(as_file(folder, ".tsv")),
    "parquet": lambda folder: as_file(folder, ".parquet"),
    "pandas": lambda _: pd.DataFrame(EVENTS, columns=["user", "item"]),
    "polars": lambda _: pl.DataFrame(EVENTS, schema=["user", "item"], orient="row"),
    "arrow": lambda _: pa.table({"user": [u for u, _ in EVENTS], "item": [i for _, i in EVENTS]}),
    "interactions": lambda _: Interactions.of(*zip(*EVENTS, strict=True)),
    "split": lambda _: Split(Interactions.of(*zip(*EVENTS, strict=True))),
}


@pytest.mark.parametrize("name", ["mf", "ease"])
def test_fit_same_events_from_any_source_give_the_same_lists(name, tmp_path):
    answers = {
        source: fit(name, make(tmp_path)).recommend(["u1", "u7"], 5)
        for source, make in SOURCES.items()
    }
    ids, scores = answers["interactions"]
    for source, (other_ids, other_scores) in answers.items():
        assert other_ids.tolist() == ids.tolist(), source
        assert other_scores.tobytes() == scores.tobytes(), source


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, pa.table, "csv"])
def test_fit_takes_column_names_of_frames_and_files(make, tmp_path):
    users, items = TRAIN.user_ids.ids(TRAIN.users), TRAIN.item_ids.ids(TRAIN.items)
    table = {"note": items[::-1], "at": np.arange(len(users)), "who": users, "what": items}
    data = tmp_path / "events.csv"
    if make == "csv":
        pd.DataFrame(table).to_csv(data, index=False)
    else:
        data = make(table)
    with pytest.raises(InputError, match="give user= and item= by name or position"):
        Recommender(model="popularity").fit(data)
    named = Recommender(model="popularity").fit(data, user="who", item="what", timestamp="at")
    assert (
        named.recommend(USERS, k=3)[0].tolist()
        == fit("popularity").recommend(USERS, k=3)[0].tolist()
    )
    by_time = Recommender(recipe="none", **QUICK).fit(data, user="who", item="what", timestamp="at")
    assert (
        by_time.require_fitted().held_out["valid"].nnz == named.require_fitted().histories.nnz // 10
    )
    for unnamed in (TRAIN, Split(TRAIN), TRAIN.matrix):
        with pytest.raises(InputError, match="no named columns"):
            Recommender(model="popularity").fit(unnamed, user="who")


@pytest.mark.parametrize("make", [sparse.csr_matrix, sparse.csr_array, sparse.coo_matrix])
def test_fit_sparse_matrix_uses_row_and_column_numbers_as_ids(make):
    ids, scores = fit("ease", make(HAVE.astype(np.float64))).recommend([2, 5], 4)
    plain_ids, plain_scores = fit("ease").recommend([USERS[2], USERS[5]], 4)
    assert ids.dtype.kind == "i"
    assert [[ITEMS[i] for i in row] for row in ids] == plain_ids.tolist()
    np.testing.assert_allclose(scores, plain_scores, rtol=1e-5)


def test_as_split_reads_a_folder_of_parts(tmp_path):
    for part, events in (("train", EVENTS), ("valid", EVENTS[:20]), ("test", EVENTS[20:40])):
        lines = ["user\titem", *(f"{u}\t{i}" for u, i in events)]
        (tmp_path / f"{part}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    split = as_split(tmp_path)
    assert list(split.parts) == ["train", "valid", "test"]
    recommender = fit("mf", tmp_path)
    assert all(epoch.valid for epoch in recommender.history.epochs)


@pytest.mark.parametrize("data", [[("u", "i")], 3, None, {"user": ["a"], "item": ["b"]}])
def test_fit_refuses_unsupported_data(data):
    with pytest.raises(
        InputError, match=r"cannot read interactions from a .*; give a path, a pand"
    ):
        Recommender(model="popularity").fit(data)


def test_fit_integer_ids_stay_integers(tmp_path):
    frame = pd.DataFrame({"user": [5, 5, 9, 9, 2**40], "item": [-1, 7, 7, 8, 8]})
    recommender = Recommender(model="popularity").fit(frame)
    for asked in (recommender, Recommender.load(recommender.save(tmp_path / "run"))):
        ids, _ = asked.recommend([5, 2**40, "9"], 1)
        assert ids.dtype == np.int64
        assert ids.tolist() == [[8], [7], [-1]]
        ids, _ = asked.recommend([5], 3)
        assert ids.tolist() == [[8, None, None]]
        assert type(ids[0, 0]) is int


def test_fit_accepts_separate_validation_events(tmp_path):
    valid = pd.DataFrame({"user": ["u1", "u2", "late"], "item": ["i3", "new", "i1"]})
    recommender = Recommender(recipe="none", **QUICK).fit(TRAIN, valid)
    assert all("ndcg@20" in epoch.valid for epoch in recommender.history.epochs)
    fitted = recommender.fitted
    assert fitted.user_ids.indices(["late"])[0] == len(USERS)
    assert fitted.item_ids.indices(["new"])[0] == len(ITEMS)
    split = as_split(SPLIT, valid)  # the events given win over those of the split
    assert len(split.valid) == 3
    assert len(split.train) == len(TRAIN)


# --- holding out ---------------------------------------------------------------------------------


def test_fit_hold_out_chooses_the_epoch_and_is_not_recommended():
    recommender = fit("mf", hold_out=0.4)
    assert all(epoch.valid for epoch in recommender.history.epochs)
    held = len(TRAIN) - TRAIN.duplicates - recommender.history.epochs[0].examples
    assert 0.3 * TRAIN.matrix.nnz < held < 0.5 * TRAIN.matrix.nnz
    # Held-out items are part of the histories, and are not recommended.
    ids, _ = recommender.recommend(USERS, len(ITEMS))
    for row, have in zip(ids, HAVE, strict=True):
        assert {i for i in row if i is not None} == {i for i, has in zip(ITEMS, have, strict=True)
                                                     if not has}  # fmt: skip


def test_fit_refit_trains_on_all_events_for_the_chosen_epochs():
    chosen = fit("mf", SPLIT)
    again = fit("mf", SPLIT, refit=True)
    best, whole = chosen.history.best_epoch, SPLIT.train.followed_by(SPLIT.valid)
    assert [e.examples for e in again.history.epochs[len(chosen.history.epochs) :]] == [
        len(whole)
    ] * best
    straight = fit("mf", Split(whole), hold_out=0.0, epochs=best)
    for one, other in zip(again.recommend(USERS, 5), straight.recommend(USERS, 5), strict=True):
        assert (one == other).all()
    popular = fit("popularity", SPLIT, refit=True).scorer()
    assert (
        popular.scores.tolist()
        == np.bincount(whole.matrix.indices, minlength=whole.n_items).tolist()
    )


def test_fit_hold_out_zero_or_valid_given_holds_nothing_out():
    assert fit("mf", hold_out=0.0).history.epochs[0].examples == len(TRAIN)
    assert not fit("mf", hold_out=0.0).history.epochs[0].valid
    assert fit("mf", SPLIT).history.epochs[0].examples == len(TRAIN)
    assert fit("mf", SPLIT).history.epochs[0].valid
    lonely = Interactions.of(list("abc"), list("xyz"))  # one event each: nothing to spare
    history = fit("mf", lonely).history
    assert history.epochs[0].examples == 3
    assert not history.epochs[0].valid


def test_fit_ignores_the_test_part():
    one, other = (fit("mf", Split(TRAIN, SPLIT.valid, test)) for test in (SPLIT.test, None))
    assert one.recommend(USERS, 9)[1].tobytes() == other.recommend(USERS, 9)[1].tobytes()


def test_fit_same_seed_same_lists_other_seed_other_lists():
    scores = [fit("fism", seed=seed).recommend(USERS, 5)[1].tobytes() for seed in (4, 4, 5)]
    assert scores[0] == scores[1] != scores[2]


@pytest.mark.parametrize("shape", [(3, 40), (40, 3)])
def test_network_tables_have_different_initial_values(shape):
    """Both are drawn from one random stream; once, fism restarted it and the tables shared rows."""
    rng = np.random.default_rng(0)
    users, items = np.divmod(np.arange(shape[0] * shape[1]), shape[1])
    keep = rng.random(len(users)) < 0.9
    ids = IdMap.of(np.arange(shape[0])), IdMap.of(np.arange(shape[1]))
    data = Interactions(users[keep], items[keep], *ids)
    for name in trained_models():
        model = new_network(name, data, 0, dimensions=16)
        tables = [p.detach().numpy() for p in model.parameters()]
        assert len(np.unique(np.vstack(tables), axis=0)) == sum(map(len, tables))
        assert len(model.user_table) == (shape[1] if name == "fism" else shape[0])


# --- parameters ----------------------------------------------------------------------------------


def test_get_params_and_set_params_round_trip():
    recommender = Recommender("fism", "bpr", recipe="none", hold_out=0.2, epochs=3, dimensions=7)
    params = {"model": "fism", "loss": "bpr", "recipe": "none", "hold_out": 0.2, "how": "auto",
              "refit": False, "epochs": 3, "dimensions": 7}  # fmt: skip
    assert recommender.get_params() == recommender.get_params(deep=False) == params
    assert eval(repr(recommender)).get_params() == params
    assert recommender.set_params(epochs=5, hold_out=0.0) is recommender
    assert recommender.get_params() == params | {"epochs": 5, "hold_out": 0.0}
    assert recommender.set_params().get_params()["epochs"] == 5


def test_recommender_can_be_cloned_by_scikit_learn():
    recommender = Recommender("mf", "llpauc", recipe="none", alpha=0.3, epochs=4).fit(TRAIN)
    copy = clone(recommender)
    assert copy is not recommender
    assert copy.get_params() == recommender.get_params()
    assert copy.fitted is None
    copy.set_params(alpha=0.5)
    assert recommender.get_params()["alpha"] == 0.3


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"model": "mff"}, "unknown model 'mff'; choose one of: mf, lightgcn, fism, popularity"),
        ({"loss": "llpac"}, "unknown loss 'llpac'; choose one of: llpauc, opauc"),
        ({"dimension": 8}, r"no parameter dimension; the loss llpauc has: alpha, .*dimensions"),
        ({"loss": "bpr", "alpha": 0.5}, "no parameter alpha; the loss bpr has: none; the model"),
        ({"loss": "bpr", "args": 1}, "no parameter args"),
        ({"regularization": 3.0}, "no parameter regularization"),
        ({"layers": 3}, "no parameter layers"),
        ({"model": "lightgcn", "item_bias": True}, "no parameter item_bias"),
        ({"model": "ease", "alpha": 0.5}, "ease has no parameter alpha; it has: regularization"),
        ({"model": "popularity", "x": 1, "y": 2}, "popularity has no parameter x, y; it has: none"),
        ({"model": "ease", "loss": "bpr"}, "ease has no loss, got loss='bpr'; leave it out, or"),
        ({"alpha": 1.1}, r"alpha must be in \(0, 1\], got 1.1"),
        ({"dimensions": 0}, "dimensions must be at least 1, got 0"),
        ({"score": "euclid"}, "unknown score 'euclid'; choose one of: dot, cosine"),
        ({"temperature": 0.0}, "temperature must be above 0, got 0.0"),
        ({"cold_users": "hot"}, "unknown cold_users 'hot'; choose one of: mean, random"),
        ({"hold_out": 1.0}, r"hold_out must be in \[0, 1\), got 1.0"),
        ({"hold_out": float("nan")}, "hold_out must be in"),
        ({"epochs": 0}, "epochs must be"),
        ({"sampler": "best"}, "unknown sampler 'best'"),
    ],
)  # fmt: skip
def test_set_params_refuses_bad_parameters_and_changes_nothing(params, message):
    with pytest.raises(InputError, match=message):
        Recommender(recipe="none", **params)
    recommender = Recommender(recipe="none", hold_out=0.05)
    before = recommender.get_params()
    with pytest.raises(InputError, match=message):
        recommender.set_params(**params)
    assert recommender.get_params() == before


def test_plan_none_means_not_given():
    ours = Recommender(recipe="none", alpha=None, dimensions=None, epochs=None).plan()
    assert ours == Recommender(recipe="none").plan()
    assert ours.loss_parameters == {"alpha": 0.7, "beta": 0.1}
    given = Recommender("ease", regularization=None).fit(TRAIN).recommend(USERS, 3)[1]
    assert given.tobytes() == Recommender("ease").fit(TRAIN).recommend(USERS, 3)[1].tobytes()


@pytest.mark.parametrize(
    ("loss", "given", "score", "of_model", "of_loss"),
    [
        ("llpauc", {}, "dot", 1.0, None),
        ("llpauc", {"score": "cosine"}, "cosine", 0.2, None),
        ("llpauc", {"score": "cosine", "temperature": 0.25}, "cosine", 0.25, None),
        ("bpr", {"score": "cosine"}, "cosine", 0.2, None),
        ("sl", {}, "cosine", 1.0, 0.2),
        ("sl", {"temperature": 0.1}, "cosine", 1.0, 0.1),
        ("psl", {"temperature": 0.3}, "cosine", 1.0, 0.3),
        ("sl_at_k", {"temperature": 0.3}, "cosine", 1.0, 0.3),
        ("sl", {"temperature": 0.1, "score": "dot"}, "dot", 1.0, 0.1),
        ("bsl", {"temperature": 0.5}, "cosine", 0.5, None),
        ("ccl", {}, "cosine", 1.0, None),
        ("ccl", {"temperature": 0.5}, "cosine", 0.5, None),
    ],
)
def test_plan_temperature_goes_to_loss_or_model(loss, given, score, of_model, of_loss):
    made = plan("mf", loss, given)
    options = made.model_options
    assert (options.score, options.temperature) == (score, of_model)
    assert getattr(made.make_loss(), "temperature", None) == of_loss


@pytest.mark.parametrize("loss", LOSSES)
def test_plan_every_loss_has_its_default_score(loss):
    made = Recommender(recipe="none", loss=loss).plan()
    assert made.model_options.score == LOSSES[loss].score
    assert type(made.make_loss()) is LOSSES[loss]


# --- fitted or not -------------------------------------------------------------------------------


def test_require_fitted_raises_before_fit(tmp_path):
    recommender = Recommender(recipe="none")
    for ask in (
        lambda: recommender.recommend(["a"]),
        lambda: recommender.fold_in(["a"]),
        lambda: recommender.similar_items("a"),
        lambda: recommender.scorer(),
        lambda: recommender.save(tmp_path / "run"),
    ):
        with pytest.raises(InputError, match=r"not fitted yet; call fit\(data\) first"):
            ask()
    assert not (tmp_path / "run").exists()


def test_fit_refused_leaves_the_previous_fit(monkeypatch):
    recommender = fit("mf")
    before = recommender.recommend(USERS, 5)[1].tobytes()
    nothing = TRAIN.take(np.zeros(len(TRAIN), bool))
    with pytest.raises(InputError, match="there are no training events"):
        recommender.fit(nothing)
    monkeypatch.setattr("llpauc.training.loop.available_memory", lambda: 1000)
    with pytest.raises(InputError, match="training needs about"):
        recommender.fit(TRAIN)
    assert recommender.recommend(USERS, 5)[1].tobytes() == before
    assert recommender.history is not None
    with pytest.raises(InputError, match="there are no training events"):
        Recommender(recipe="none").fit(nothing)


def test_fit_diverged_has_the_last_good_weights(tmp_path):
    recommender = Recommender(recipe="none", **QUICK | {"lr": 1e30, "loss": "bpr"})
    with pytest.raises(Diverged, match=r"epoch 1, batch \d+"):
        recommender.fit(TRAIN)
    assert np.isfinite(recommender.scorer().user_vectors).all()

    def stumble(epoch):
        if epoch.number == 2:
            raise Diverged("as if")

    recommender = Recommender(recipe="none", **QUICK)
    with pytest.raises(Diverged, match="as if"):
        recommender.fit(TRAIN, on_epoch=stumble)
    _, scores = recommender.recommend(USERS, 3)
    assert np.isfinite(scores).all()
    again = Recommender.load(recommender.save(tmp_path / "run"))
    assert again.recommend(USERS, 3)[1].tobytes() == scores.tobytes()


def test_fit_diverged_refit_keeps_the_validated_model(monkeypatch):
    step, epochs = CpuEngine.step, []

    def broken(self, batch):
        if epochs and batch.step == 0:
            raise Diverged("as if")
        return step(self, batch)

    monkeypatch.setattr(CpuEngine, "step", broken)
    whole = Recommender(recipe="none", **QUICK).fit(TRAIN)
    refitted = Recommender(recipe="none", **QUICK, refit=True)
    with pytest.raises(Diverged, match="as if"):
        refitted.fit(TRAIN, on_epoch=epochs.append)
    np.testing.assert_array_equal(refitted.scorer().user_vectors, whole.scorer().user_vectors)


def test_fit_input_error_of_a_loss_is_not_diverged(monkeypatch):
    def refuse(self, *args, **options):
        raise InputError("no such setting")

    monkeypatch.setattr(make_loss("bpr").__class__, "value_and_grads", refuse)
    with pytest.raises(InputError, match="no such setting"):
        Recommender(recipe="none", **QUICK | {"loss": "bpr"}).fit(TRAIN)


def test_fit_empty_validation_part_is_ignored():
    empty = Split(TRAIN, TRAIN.take(np.zeros(len(TRAIN), bool)))
    with_none, without = (
        Recommender(recipe="none", **QUICK).fit(TRAIN),
        Recommender(recipe="none", **QUICK).fit(empty),
    )
    assert without.history.validated
    np.testing.assert_array_equal(with_none.scorer().user_vectors, without.scorer().user_vectors)


def test_fit_half_life_needs_all_timestamps_or_none():
    timed = dataclasses.replace(TRAIN, timestamps=np.arange(len(TRAIN), dtype=float))
    some = dataclasses.replace(timed, timestamps=np.where(np.arange(len(TRAIN)) % 2, np.nan, 1.0))
    for data in (some, Split(timed, TRAIN)):
        with pytest.raises(InputError, match="half_life needs a timestamp for every event"):
            Recommender(recipe="none", **QUICK, half_life=5.0).fit(data)
    mixed = TRAIN.stored_shuffled(matrix=TRAIN.matrix)
    for model in ("mf", "recent_popularity"):
        with pytest.raises(InputError, match="stored in random order"):
            Recommender(model, recipe="none", half_life=5.0).fit(mixed)
    assert not choose_recency([mixed]).has_drift


def test_recommender_refuses_fractional_counts_and_large_seeds():
    for name, value in (("batch_size", 64.0), ("dimensions", 8.0), ("seed", 1.0)):
        with pytest.raises(InputError, match=f"{name} must be a whole number"):
            Recommender(recipe="none", **{name: value})
    with pytest.raises(InputError, match=r"seed must be in \[0, 9223372036854775807\]"):
        Recommender(recipe="none", seed=2**63)


def test_fit_again_replaces_the_history(tmp_path):
    recommender = Recommender(recipe="none", epochs=2, negatives=4).fit(TRAIN)
    assert len(recommender.history.epochs) == 2
    recommender = recommender.set_params(epochs=3).fit(TRAIN)
    assert len(recommender.history.epochs) == 3
    baseline = Recommender("popularity")
    baseline.history = recommender.history  # as if it had been mf before
    assert baseline.fit(TRAIN).history is None


# --- saved = in memory ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_load_saved_recommender_gives_the_same_bits(name, fitted, tmp_path):
    made = fitted[name]
    loaded = Recommender.load(made.save(tmp_path / "run"))
    assert loaded.get_params() == made.fitted_params
    asked = [*USERS, "unknown"]
    for ask in (
        lambda r: r.recommend(asked, len(ITEMS) + 1),
        lambda r: r.recommend(asked, 4, exclude_seen=False),
        lambda r: r.fold_in(ITEMS[2:6], 9),
        lambda r: r.fold_in([], 9),
        lambda r: r.similar_items(ITEMS[5], 9),
    ):
        (ids, scores), (other_ids, other_scores) = ask(made), ask(loaded)
        assert ids.tolist() == other_ids.tolist()
        assert scores.tobytes() == other_scores.tobytes()


def test_save_writes_the_parameters_of_fit(tmp_path):
    recommender = fit("mf", item_bias=True)
    similar = recommender.similar_items(ITEMS[0], 5)[0].tolist()
    recommender.set_params(epochs=99, item_bias=False)
    assert recommender.similar_items(ITEMS[0], 5)[0].tolist() == similar
    loaded = Recommender.load(recommender.save(tmp_path / "run"))
    assert loaded.get_params()["epochs"] == 3
    assert loaded.similar_items(ITEMS[0], 5)[0].tolist() == similar


def test_save_accepts_numpy_parameters(tmp_path):
    grid = {"epochs": np.int64(1), "alpha": np.float64(0.5), "lr": np.float32(0.25)}
    loaded = Recommender.load(Recommender(recipe="none", **grid).fit(TRAIN).save(tmp_path / "run"))
    params = loaded.get_params()
    assert (params["epochs"], params["alpha"], params["lr"]) == (1, 0.5, 0.25)


def test_save_writes_one_line_per_epoch(tmp_path):
    recommender = fit("mf")
    run = recommender.save(tmp_path / "run")
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    seconds = json.loads((run / "timings.json").read_text(encoding="utf-8"))["seconds"]
    assert [
        {**json.loads(line), "seconds": took} for line, took in zip(lines, seconds, strict=True)
    ] == [dataclasses.asdict(epoch) for epoch in recommender.history.epochs]


# --- lists as files ------------------------------------------------------------------------------


ODD = ["plain", "a,b", "tab\there", 'say "hi"', "007", "ø", "line\nline", " space "]


def odd_lists() -> Recommendations:
    ids = IdMap.of(ODD)
    rows = np.array([[0, 1, 2], [3, 4, -1], [5, 6, 7]], np.int32)
    scores = np.array([[3, 2, 1], [0.1, -5e-8, -np.inf], [9, 1e30, 0]], np.float32)
    return Recommendations(["u,1", "007", "ø"], ids_or_none(ids, rows), scores)


EXPECTED = [
    ("u,1", "plain", 1, 3.0), ("u,1", "a,b", 2, 2.0), ("u,1", "tab\there", 3, 1.0),
    ("007", 'say "hi"', 1, 0.1), ("007", "007", 2, -5e-8),
    ("ø", "ø", 1, 9.0), ("ø", "line\nline", 2, 1e30), ("ø", " space ", 3, 0.0),
]  # fmt: skip


def check(rows: list[tuple]) -> None:
    assert [(u, i, int(r)) for u, i, r, _ in rows] == [(u, i, r) for u, i, r, _ in EXPECTED]
    # Not one bit of a score is lost on the way through text.
    assert [np.float32(s) for *_, s in rows] == [np.float32(s) for *_, s in EXPECTED]


@pytest.mark.parametrize(("name", "delimiter"), [("r.tsv", "\t"), ("r.csv", ","), ("r.CSV", ",")])
def test_write_lists_as_text(name, delimiter, tmp_path):
    write_lists(odd_lists(), tmp_path / "new" / name)
    with (tmp_path / "new" / name).open(encoding="utf-8", newline="") as file:
        head, *rows = csv.reader(file, delimiter=delimiter)
    assert head == ["user", "item", "rank", "score"]
    check([tuple(row) for row in rows])
    assert [p.name for p in (tmp_path / "new").iterdir()] == [name]


def test_write_lists_as_parquet(tmp_path):
    write_lists(odd_lists(), str(tmp_path / "r.parquet"))
    table = pq.read_table(tmp_path / "r.parquet")
    assert table.column_names == ["user", "item", "rank", "score"]
    assert table.schema.field("score").type == pa.float32()
    check([tuple(row.values()) for row in table.to_pylist()])


def test_list_rows_other_shapes():
    lists = odd_lists()
    assert lists.count == len(EXPECTED)
    assert [(d["user"], [i["item"] for i in d["items"]]) for d in lists.as_dicts()] == [
        ("u,1", ODD[:3]), ("007", ODD[3:5]), ("ø", ODD[5:])
    ]  # fmt: skip
    assert json.loads(json.dumps(lists.as_dicts())) == lists.as_dicts()
    assert lists.rows()[:2] == [["u,1", "plain", 1, 3.0], ["u,1", "a,b", 2, 2.0]]


@pytest.mark.parametrize("top", [2**40, 2**64 - 1])
@pytest.mark.parametrize("k", [1, 3])
def test_write_lists_integer_ids_stay_integers(top, k, tmp_path):
    data = Interactions.of([1, 1, top, top], [7, top, 7, 8])
    recommender = Recommender("popularity").fit(data)
    users = list(recommender.fitted.user_ids)
    write_lists(Recommendations(users, *recommender.recommend(users, k)), tmp_path / "r.parquet")
    table = pq.read_table(tmp_path / "r.parquet")
    assert table["user"].to_pylist() == [1, top]
    assert table["item"].to_pylist() == [8, top]
    wide = pa.uint64() if top >= 2**63 else pa.int64()
    assert table.schema.field("user").type == table.schema.field("item").type == wide


def test_write_lists_without_recommendations_is_an_empty_table(tmp_path):
    recommender = Recommender("popularity").fit(Interactions.of(["a"], ["x"]))
    write_lists(Recommendations(["a"], *recommender.recommend(["a"], 2)), tmp_path / "r.tsv")
    assert (tmp_path / "r.tsv").read_text(encoding="utf-8") == "user\titem\trank\tscore\n"


@pytest.mark.parametrize("name", ["r.json", "r", "r.xlsx.gz"])
def test_write_lists_unknown_suffix_is_refused(name, tmp_path):
    with pytest.raises(InputError, match=r"unknown format .* choose one of: .tsv, .csv, .par"):
        write_lists(odd_lists(), tmp_path / "sub" / name)
    assert not list(tmp_path.iterdir())


def test_scorer_for_other_id_maps(tmp_path):
    """Data read again in another order, with users and items that the run does not know."""
    recommender = fit("mf")
    fitted = recommender.fitted
    users = IdMap.of([*list(fitted.user_ids)[::-1], "unknown"])
    items = IdMap.of(["nothing", *list(fitted.item_ids)[::-1]])
    seen = fitted.scorer_for(users, items)
    got = score_table(seen, len(users))
    expected = score_table(fitted.scorer, len(fitted.user_ids))
    np.testing.assert_array_equal(got[:-1, 1:], expected[::-1, ::-1])
    np.testing.assert_array_equal(got[-1, 1:], fitted.fallback[::-1])
    assert (got[:, 0] < expected.min()).all()
    assert fitted.scorer_for(fitted.user_ids, fitted.item_ids) is fitted.scorer


def test_evaluate_accepts_a_recommender():
    recommender, metrics = fit("mf"), ["auc", "ndcg@20"]
    expected = evaluate(recommender.scorer(), SPLIT, metrics=metrics).summary()
    assert evaluate(recommender, SPLIT, metrics=metrics).summary() == expected
    # The same events with other indices
    users, items = (IdMap.of(list(ids)[::-1]) for ids in (SPLIT.user_ids, SPLIT.item_ids))
    parts = {name: part.remap(users, items) for name, part in SPLIT.parts.items()}
    again = evaluate(recommender, Split(**parts), metrics=metrics).summary()
    assert again["all"] == pytest.approx(expected["all"])
    with pytest.raises(InputError, match="not fitted yet"):
        evaluate(Recommender(recipe="none"), SPLIT)


def test_fit_shows_a_progress_bar_without_callbacks(monkeypatch):
    shown = []

    @contextmanager
    def bar(what, total=None):
        shown.append((what, total))
        yield lambda examples: None

    monkeypatch.setattr("llpauc.recommend.recommender.progress", bar)
    fit("mf", hold_out=0.0)
    fit("ease")
    Recommender(recipe="none", **QUICK).fit(TRAIN, on_epoch=lambda epoch: None)
    assert shown == [("fitting mf", 3 * len(TRAIN)), ("fitting ease", None)]


# --- recent popularity and recipes ---------------------------------------------------------------


def test_recent_popularity_chooses_half_life_on_validation():
    rng = np.random.default_rng(3)
    days = np.repeat(np.arange(60), 60)
    items = rng.integers(0, 4, len(days)) + 4 * (days // 6)  # every six days other news
    data = Interactions.of(
        [f"u{n}" for n in range(len(days))], [f"i{i}" for i in items], timestamps=days * 86400.0
    )
    parts = [data.take(days < 45), data.take((days >= 45) & (days < 52)), data.take(days >= 52)]
    split = Split(*parts)
    only_train = Recommender(model="recent_popularity").fit(split)
    everything = Recommender(model="recent_popularity", refit=True).fit(split)
    chosen = everything.fitted_params
    assert chosen["by"] == "time"
    assert chosen["half_life"] < 15 * 86400
    assert only_train.fitted_params["half_life"] == chosen["half_life"]
    for fitted, known in ((only_train, parts[:1]), (everything, parts[:2])):
        counts = recent_counts(known, chosen["half_life"], "time")
        np.testing.assert_array_equal(fitted.scorer().scores, counts)


def test_recipes_are_recommender_parameters_by_shape_of_the_data():
    small = Interactions.of(["a"] * 5, range(5))
    large = Interactions.of(["a"] * 5000, range(5000))
    for make in RECIPES.values():
        Recommender(recipe="none", **make(small, None))
    assert recipe("auto", small)["sampler"] == "all-items"
    assert recipe("auto", large)["sampler"] == "shared"
    assert recipe("auto", large)["beta"] == pytest.approx(800 / 5000)


def test_recipe_moving_starts_at_recent_popularity():
    """Every day has other items: nothing of last week is read today."""
    rng = np.random.default_rng(0)
    days = np.repeat(np.arange(20), 300)
    items = days * 5 + rng.integers(0, 15, len(days))
    events = Interactions.of(range(len(days)), items.tolist(), timestamps=(days * 86_400).tolist())
    assert recipe("auto", events)["blend"].startswith("recent_popularity,")
    chosen = recipe("single", events)
    assert chosen["model"] == "mf"
    assert chosen["item_bias"]
    assert chosen["half_life"] < 4 * 86_400
    split = Split(events)
    made = Recommender(recipe="none", **chosen).plan()
    model = made.new_network(events)
    fit_model(model, made.make_loss(), split, made.training_options(epochs=1, lr=1e-9))
    bias = model.item_table[:, -1].detach().numpy()
    counts = [sum(0.5 ** ((19 - day) * 86_400 / chosen["half_life"]) for day, item in
                  zip(days, items, strict=True) if item == events.item_ids.ids([row])[0])
              for row in range(events.n_items)]  # fmt: skip
    np.testing.assert_allclose(bias, np.log(np.array(counts) + 0.05), atol=1e-4)


@pytest.mark.parametrize("model", trained_models())
def test_with_model_recipe_fits_every_trained_model(model):
    small = Interactions.of(["a"] * 5, range(5))
    for name in ("settled", "paper"):
        made = Recommender(recipe="none", **with_model(recipe(name, small), model))
        assert made.plan().model_options.init == recipe(name, small).get("init", "random")


def test_current_names_renames_former_names_and_drops_ignored_options():
    former = {"model": "itemsum", "start": "spectral", "cold": "random", "share": 2, "layers": 3}
    assert current_names(former) == {"model": "fism", "init": "spectral", "cold_users": "random"}
    assert current_names({"model": "lightgcn", "share": 2, "item_bias": False}) == {
        "model": "lightgcn",
        "propagation_interval": 2,
    }
    assert current_names({"model": "recent", "half_life": 5.0}) == {
        "model": "recent_popularity",
        "half_life": 5.0,
    }


def test_load_run_with_former_names(tmp_path, monkeypatch):
    made = fit("fism", init="spectral", cold_users="random")
    former = {"fism": "itemsum", "init": "start", "cold_users": "cold"}
    params = {former.get(name, name): value for name, value in made.fitted_params.items()}
    monkeypatch.setattr("llpauc.recommend.recommender.config_toml", lambda *_: "")
    made.fitted_params = params | {"model": "itemsum", "layers": 2}
    again = Recommender.load(made.save(tmp_path / "run"))
    assert (again.model, again.parameters["init"]) == ("fism", "spectral")
    np.testing.assert_array_equal(again.recommend(USERS, 5)[1], made.recommend(USERS, 5)[1])
    again.update(Interactions.of(["new"], [ITEMS[0]]), epochs=1)
    assert again.save(tmp_path / "updated").exists()
