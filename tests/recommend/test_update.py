"""New events: known ids keep what they had, new ones get a start, training goes on."""

from __future__ import annotations

import copy
import json
import os
import signal
from dataclasses import replace

import numpy as np
import pytest

from llpauc.cli import main
from llpauc.cli import train as command
from llpauc.data.ids import IdMap
from llpauc.data.interactions import Interactions, Split
from llpauc.errors import InputError
from llpauc.evaluation.full_ranking import evaluate
from llpauc.recommend import Recommender
from llpauc.recommend.update import new_events
from llpauc.storage import run_folder
from llpauc.training import Diverged
from tests.datasets import score_table

QUICK = {
    "epochs": 15, "dimensions": 6, "negatives": 8, "batch_size": 32, "lr": 0.05, "seed": 4,
    "hold_out": 0.0,
}  # fmt: skip
CASES = {
    "mf": QUICK,
    "mf-cosine": QUICK | {"score": "cosine"},
    "mf-bias": QUICK | {"item_bias": True, "loss": "bpr"},
    "mf-cosine-bias": QUICK | {"item_bias": True, "score": "cosine"},
    "mf-spectral": QUICK | {"init": "spectral"},
    "mf-held-out": QUICK | {"hold_out": 0.2},
    "lightgcn": QUICK | {"layers": 2},
    "lightgcn-cosine": QUICK | {"layers": 3, "loss": "sl"},
    "fism": QUICK,
    "fism-cosine": QUICK | {"score": "cosine"},
}
BASELINES = {"popularity": {}, "itemknn": {"neighbours": 5}, "ease": {"regularization": 10.0}}


def blocks(n_users: int = 60, n_items: int = 40, each: int = 12, seed: int = 1) -> Interactions:
    """Two tastes: even users take from one half of the items, odd ones from the other."""
    rng = np.random.default_rng(seed)
    half = n_items // 2
    pairs = [
        (f"u{user}", f"i{item}")
        for user in range(n_users)
        for item in rng.permutation(half)[:each] + (user % 2) * half
    ]
    return Interactions.of(*map(list, zip(*pairs, strict=True)))


def old_and_new() -> tuple[Interactions, Interactions]:
    """Half of the users' last events are new; u50.. and items 18, 19, 38, 39 are all new."""
    data = blocks()
    user = np.array([int(user[1:]) for user in data.user_ids.ids(data.users)])
    item = data.item_ids.ids(data.items)
    late = (user >= 50) | np.isin(item, ["i18", "i19", "i38", "i39"])
    late |= (np.arange(len(data)) % 12 >= 9) & (user % 4 < 2)
    order = np.random.default_rng(0).permutation(np.flatnonzero(late))
    return data.take(~late).compact(), data.take(order).compact()  # known ids in another order


OLD, NEW = old_and_new()


def made(name: str, **more) -> Recommender:
    settings = {**CASES, **BASELINES}[name] | more
    return Recommender(recipe="none", model=name.split("-")[0], **settings).fit(OLD)


@pytest.fixture(scope="module")
def fits() -> dict[str, Recommender]:
    return {name: made(name) for name in (*CASES, *BASELINES)}


@pytest.fixture
def fitted(fits, request) -> Recommender:
    return copy.copy(fits[request.param])


each = pytest.mark.parametrize("fitted", [*CASES, *BASELINES], indirect=True)
each_trained = pytest.mark.parametrize("fitted", list(CASES), indirect=True)


def table(recommender: Recommender) -> np.ndarray:
    return score_table(recommender.scorer(), len(recommender.fitted.user_ids))


# --- who is known, who is new --------------------------------------------------------------------


@each
def test_update_serves_all_known_and_new_ids(fitted):
    before = fitted.fitted
    came = fitted.update(NEW, epochs=1)
    after = fitted.fitted
    assert list(after.user_ids)[: len(before.user_ids)] == list(before.user_ids)
    assert list(after.item_ids)[: len(before.item_ids)] == list(before.item_ids)
    fresh_users = set(NEW.user_ids) - set(OLD.user_ids)
    fresh_items = set(NEW.item_ids) - set(OLD.item_ids)
    assert fresh_users == set(after.user_ids.ids(came.new_users)) == {
        f"u{n}" for n in range(50, 60)
    }  # fmt: skip
    assert fresh_items == set(after.item_ids.ids(came.new_items)) == {
        "i18", "i19", "i38", "i39"
    }  # fmt: skip
    ids, scores = fitted.recommend(list(after.user_ids), k=28)
    assert np.isfinite(scores).all()
    have = {u: set() for u in after.user_ids}
    for data in (OLD, NEW):
        for u, i in zip(data.user_ids.ids(data.users), data.item_ids.ids(data.items), strict=True):
            have[u].add(i)
    for user, row in zip(after.user_ids, ids, strict=True):
        assert set(row) == set(after.item_ids) - have[user]  # 40 items, 12 of them theirs
    got, worth = fitted.fold_in(["i18"], k=3)
    assert len(set(got)) == 3
    assert np.isfinite(worth).all()


def test_new_events_ignores_known_and_repeated_pairs(fits):
    """Repeated and known pairs are passed over; ids without an event are not taken in."""
    more = Interactions.of(["u0", "u0", "x", "x"], ["i18", "i18", "new", "i0"])
    known = OLD.take(np.arange(5))
    both = Split.of(more, known).train.followed_by(Split.of(more, known).valid)
    wide = Interactions(
        both.users, both.items, both.user_ids.union([IdMap.of(["unknown"])]), both.item_ids
    )
    came = new_events(fits["mf"].fitted, wide)
    pairs = zip(
        came.new.user_ids.ids(came.new.users), came.new.item_ids.ids(came.new.items),
        strict=True,
    )  # fmt: skip
    assert sorted(pairs) == [("u0", "i18"), ("x", "i0"), ("x", "new")]
    assert "unknown" not in set(came.new.user_ids)
    assert len(came.old) == len(OLD)


@pytest.mark.parametrize(("more", "kind"), [("3", "int64"), ("03", "string"), ("z", "string")])
def test_update_integer_ids_stay_integers_where_possible(more, kind):
    old = Interactions.of(np.array([1, 1, 2, 2]), np.array([5, 6, 5, 7]))
    run = Recommender(model="popularity").fit(old)
    run.update(Interactions.of([more, "1"], ["7", "7"]))
    assert run.fitted.user_ids.kind == kind
    assert run.fitted.item_ids.kind == "int64"


# --- zero epochs: nothing known moves ------------------------------------------------------------


@each_trained
def test_update_zero_epochs_leaves_known_scores_bit_for_bit(fitted):
    before, n_users, n_items = table(fitted), len(OLD.user_ids), len(OLD.item_ids)
    vectors = fitted.fitted.scorer
    fitted.update(NEW, epochs=0)
    after = fitted.fitted.scorer
    assert fitted.history is None
    assert np.array_equal(after.user_vectors[:n_users], vectors.user_vectors)
    assert np.array_equal(after.item_vectors[:n_items], vectors.item_vectors)
    assert np.array_equal(table(fitted)[:n_users, :n_items], before)


@pytest.mark.parametrize("fitted", ["mf", "mf-bias", "lightgcn"], indirect=True)
def test_update_new_user_starts_folded_in(fitted):
    has = ["i0", "i3", "i5"]
    expected, scores = fitted.fold_in(has, k=10)
    fitted.update(Interactions.of(["x"] * 3, has), epochs=0)
    ids, worth = fitted.recommend(["x"], k=10)
    assert list(ids[0]) == list(expected)
    np.testing.assert_allclose(worth[0], scores, rtol=1e-4, atol=1e-5)


@each_trained
def test_update_new_users_and_items_start_in_their_block(fitted):
    """Before any training: a new item scores higher with the users of its block, and so do the
    items of a new user's half."""
    fitted.update(NEW, epochs=0)
    scores, ids = table(fitted), fitted.fitted
    users = np.array([int(u[1:]) % 2 for u in ids.user_ids])
    items = np.array([int(i[1:]) // 20 for i in ids.item_ids])
    for item in ("i18", "i19", "i38", "i39"):
        row = ids.item_ids.indices([item])[0]
        same_block = users == items[row]
        assert scores[same_block, row].mean() > scores[~same_block, row].mean(), item
    for user in range(50, 60):
        row = ids.user_ids.indices([f"u{user}"])[0]
        same_block = items == users[row]
        assert scores[row, same_block].mean() > scores[row, ~same_block].mean(), user


@pytest.mark.parametrize("name", ["mf", "mf-cosine", "fism"])
def test_update_new_users_with_only_new_items_start_at_the_mean(name):
    """New users with new items alone: served, and not put before everything else."""
    run = made(name)
    mean = run.fitted.scorer.item_vectors.mean(axis=0)
    run.update(Interactions.of(["x", "x", "y"], ["n1", "n2", "n1"]), epochs=0)
    row = run.fitted.item_ids.indices(["n1"])[0]
    start_row = run.fitted.scorer.item_vectors[row]
    cosine = start_row @ mean / np.linalg.norm(start_row) / np.linalg.norm(mean)
    assert cosine == pytest.approx(1, abs=1e-4)
    assert np.isfinite(run.recommend(["x"], k=5)[1]).all()


@pytest.mark.parametrize("name", ["mf", "mf-cosine", "mf-bias"])
def test_update_item_of_only_new_users_starts_as_the_mean_item(name):
    """Nobody known has it: it starts as the mean item, however popular what its users have is."""
    run = made(name)
    mean = run.fitted.scorer.item_vectors.mean(axis=0)
    top = run.fitted.item_ids.ids(np.argsort(-run.fitted.fallback)[:3])
    run.update(Interactions.of(["x"] * 4, [*top, "n"]), epochs=0)
    got = run.fitted.scorer.item_vectors[run.fitted.item_ids.indices(["n"])[0]]
    np.testing.assert_allclose(got, mean, rtol=1e-4, atol=1e-5)


def test_update_fism_new_item_starts_among_its_neighbours():
    run = made("fism")
    rows, ids = run.fitted.model.vectors.history_map.history_rows, run.fitted.item_ids
    x, y = rows[ids.indices(["i0", "i1"])], rows[ids.indices(["i4"])]
    run.update(
        Interactions.of(["x", "x", "x", "y", "y", "z"], ["i0", "i1", "n", "i4", "n", "n"]), epochs=0
    )
    got = run.fitted.model.vectors.history_map.history_rows[run.fitted.item_ids.indices(["n"])[0]]
    np.testing.assert_allclose(got, (x.mean(axis=0) + y[0]) / 2, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["mf", "mf-cosine", "mf-cosine-bias", "mf-spectral", "lightgcn"])
def test_resumed_network_scores_as_the_extended_vectors(fits, name):
    """What is handed to the training loop scores as the extended model does; where rows have length
    1 in training, a new item's do so up to a factor."""
    run = fits[name]
    came, model = new_events(run.fitted, NEW), run.fitted.model
    extended, _ = model.extend(came)
    vectors = extended.vectors
    network = model.resumed_network(came, vectors.user_vectors, vectors.item_vectors)
    users, items = network.vectors()
    got, wanted = users @ items.T, vectors.user_vectors @ vectors.item_vectors.T
    known = len(OLD.item_ids)
    assert np.abs(got - wanted)[:, :known].max() < 0.01 * np.abs(wanted).max()
    if not run.parameters.get("item_bias"):
        for item in came.new_items:
            assert np.corrcoef(got[:, item], wanted[:, item])[0, 1] > 0.999


# --- training goes on ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mf", "mf-cosine", "lightgcn-cosine", "fism"])
def test_update_is_not_worse_than_the_old_model(name):
    full = blocks(each=18)
    keep = np.random.default_rng(3).choice(3, len(full), p=[0.4, 0.4, 0.2])
    old, new, test = (full.take(keep == part) for part in range(3))
    run = Recommender(recipe="none", model=name.split("-")[0], **CASES[name]).fit(old)
    split = Split.of(old.followed_by(new), None, test)

    def ndcg() -> float:
        scorer = run.fitted.scorer_for(split.user_ids, split.item_ids)
        return evaluate(scorer, split, metrics=["ndcg@5"]).mean("ndcg@5")

    stale = ndcg()
    came = run.update(new, epochs=5)
    assert len(came.new) == len(new)
    assert ndcg() >= stale
    assert len(run.history.epochs) == 5


@each_trained
def test_update_same_seed_same_bits(fitted):
    again, other = copy.copy(fitted), copy.copy(fitted)
    fitted.update(NEW, epochs=2)
    again.update(NEW, epochs=2)
    other.update(NEW, epochs=2, seed=99)
    assert np.array_equal(table(fitted), table(again))
    assert not np.array_equal(table(fitted), table(other))


@each
def test_update_after_load_equals_load_after_update(fitted, tmp_path):
    loaded = Recommender.load(fitted.save(tmp_path / "old"))
    fitted.update(NEW, epochs=2)
    loaded.update(NEW, epochs=2)
    again = Recommender.load(fitted.save(tmp_path / "new"))
    for which, other in {"updated after loading": loaded, "loaded after updating": again}.items():
        assert other.fitted_params == fitted.fitted_params
        assert np.array_equal(table(other), table(fitted)), which
        assert np.array_equal(other.fitted.fallback, fitted.fitted.fallback)
        assert other.fold_in(["i18", "i0"], k=5)[0].tolist() == (
            fitted.fold_in(["i18", "i0"], k=5)[0].tolist()
        )


@pytest.mark.parametrize("fitted", list(BASELINES), indirect=True)
def test_update_refits_models_without_training_on_all_events(fitted):
    fitted.update(NEW)
    whole = Recommender(**fitted.get_params()).fit(blocks())
    users, items = list(fitted.fitted.user_ids), list(fitted.fitted.item_ids)
    rows = np.ix_(whole.fitted.user_ids.indices(users), whole.fitted.item_ids.indices(items))
    np.testing.assert_allclose(table(fitted), table(whole)[rows], rtol=1e-4, atol=1e-5)


def test_update_can_follow_an_update():
    run, halves = made("mf"), [NEW.take(np.arange(len(NEW)) % 2 == part) for part in range(2)]
    came = [run.update(half, epochs=1) for half in halves]
    assert sum(len(c.new) for c in came) == len(NEW)
    assert run.fitted.histories.nnz == len(OLD) + len(NEW)


def test_update_diverged_leaves_the_model_unchanged():
    run = made("mf", loss="bce")
    before = run.fitted
    with pytest.raises(Diverged):
        run.update(NEW, lr=1e30)
    assert run.fitted is before


@pytest.mark.parametrize("model", ["mf", "recent_popularity"])
def test_update_refuses_runs_with_a_half_life(model):
    settings = {"half_life": 50.0} | (QUICK if model == "mf" else {})
    run = Recommender(recipe="none", model=model, **settings).fit(OLD)
    with pytest.raises(InputError, match="half_life 50"):
        run.update(NEW)


def test_update_refuses_bad_values():
    with pytest.raises(InputError, match="not fitted"):
        Recommender(recipe="none", **QUICK).update(NEW)
    run = made("mf")
    for wrong in ({"epochs": -1}, {"lr": 0.0}, {"weight_decay": -1.0}):
        with pytest.raises(InputError, match=next(iter(wrong))):
            run.update(NEW, **wrong)


# --- the command ---------------------------------------------------------------------------------


def csv(data: Interactions, path) -> str:
    lines = [
        f"{u},{i}\n"
        for u, i in zip(data.user_ids.ids(data.users), data.item_ids.ids(data.items), strict=True)
    ]
    path.write_text("user,item\n" + "".join(lines))
    return str(path)


@pytest.fixture
def run(fits, tmp_path) -> str:
    return str(fits["mf"].save(tmp_path / "run", data="old.csv", test={"ndcg@20": 0.5}))


def files(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_update_command_replaces_the_run(run, fits, tmp_path, capsys):
    events = csv(NEW, tmp_path / "new.csv")
    assert main(["update", run, events, "--epochs", "2", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["new pairs"], printed["new users"], printed["new items"]) == (len(NEW), 10, 4)
    memory = copy.copy(fits["mf"])
    memory.update(events, epochs=2)
    assert np.array_equal(table(Recommender.load(run)), table(memory))
    meta = json.loads((tmp_path / "run" / "meta.json").read_text())
    assert meta["updates"][0]["events"] == events
    assert meta["data"] == "old.csv"
    assert "test" not in meta  # the figures were another model's


def test_update_command_out_writes_another_folder(run, tmp_path, capsys):
    before = files(tmp_path / "run")
    out = str(tmp_path / "next")
    assert main(["update", run, csv(NEW, tmp_path / "new.csv"), "--out", out, "--epochs=0"]) == 0
    assert files(tmp_path / "run") == before
    assert "u55" in set(Recommender.load(out).fitted.user_ids)
    assert main(["recommend", out, "--users", "u55"]) == 0


def test_update_command_without_new_pairs_changes_nothing(run, tmp_path, capsys):
    before = files(tmp_path / "run")
    events = csv(OLD.take(np.arange(7)), tmp_path / "known.csv")
    assert main(["update", run, events]) == 0
    assert "nothing new" in capsys.readouterr().err
    assert files(tmp_path / "run") == before
    out = tmp_path / "next"  # where an older run must not stay
    assert main(["update", run, events, "--out", str(out)]) == 0
    users = sorted(OLD.user_ids)
    expected, written = (Recommender.load(r).recommend(users) for r in (run, out))
    assert written[0].tolist() == expected[0].tolist()
    assert written[1].tobytes() == expected[1].tobytes()


def test_update_command_takes_a_single_event(run, tmp_path):
    (tmp_path / "one.csv").write_text("user,item\nzoe,i0\n")
    assert main(["update", run, str(tmp_path / "one.csv"), "--epochs", "1"]) == 0
    assert "zoe" in set(Recommender.load(run).fitted.user_ids)


def test_update_command_interrupted_saves_another_folder(run, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(command, "_log_epoch", lambda epoch: os.kill(os.getpid(), signal.SIGINT))
    before = files(tmp_path / "run")
    with pytest.raises(SystemExit) as stop:
        main(["update", run, csv(NEW, tmp_path / "new.csv"), "--epochs", "50"])
    assert stop.value.code == 130
    assert files(tmp_path / "run") == before
    kept = Recommender.load(tmp_path / "run-interrupted")
    assert "u55" in set(kept.fitted.user_ids)
    meta = json.loads((tmp_path / "run-interrupted" / "meta.json").read_text())
    assert meta["updates"][0]["epochs"] < 5


@pytest.fixture
def rated(tmp_path) -> str:
    rows = [f"u{u};i{i};{1 + (u + i) % 5}\n" for u in range(30) for i in range(u % 3, 20, 2)]
    (tmp_path / "rated.csv").write_text("who;what;stars\n" + "".join(rows))
    names = ["--user", "who", "--item", "what", "--rating", "stars"]
    run = str(tmp_path / "rated")
    words = [*names, "--min-rating", "4", "--epochs", "2", "--out", run]
    assert main(["train", "--recipe=none", str(tmp_path / "rated.csv"), *words]) == 0
    return run


def test_train_command_config_of_a_run_includes_how_the_data_were_read(rated, tmp_path):
    events, again = f"{rated}.csv", str(tmp_path / "again")
    assert (
        main(["train", "--recipe=none", events, "--config", f"{rated}/config.toml", "--out", again])
        == 0
    )
    for name in ("tensors.safetensors", "metrics.jsonl", "config.toml"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "rated" / name).read_bytes()
    meta = json.loads((tmp_path / "again" / "meta.json").read_text())
    assert meta["reading"] == {"user": "who", "item": "what", "rating": "stars", "min_rating": 4.0}
    other = str(tmp_path / "other")
    names = ["--user", "who", "--item", "what"]
    assert main(["train", "--recipe=none", events, *names, "--epochs", "2", "--out", other]) == 0
    others = json.loads((tmp_path / "other" / "meta.json").read_text())
    assert others["digests"]["train"] != meta["digests"]["train"]


def test_update_command_reads_events_as_the_run_did(rated, tmp_path, capsys):
    (tmp_path / "new.csv").write_text("who;what;stars\nbob;i1;1\nbob;i2;5\neve;i3;2\n")
    assert main(["update", rated, str(tmp_path / "new.csv"), "--json"]) == 0
    output = capsys.readouterr()
    assert json.loads(output.out)["new pairs"] == 1
    assert "run: --item what --min-rating 4.0 --rating stars --user who" in output.err
    assert "eve" not in set(Recommender.load(rated).fitted.user_ids)
    (tmp_path / "next.csv").write_text("who;what;stars\nzoe;i1;2\n")
    words = ["--min-rating", "2"]  # an option that is given overrides that of the run
    assert main(["update", rated, str(tmp_path / "next.csv"), *words]) == 0
    assert "zoe" in set(Recommender.load(rated).fitted.user_ids)
    config = (tmp_path / "rated" / "config.toml").read_text()
    assert "min_rating = 4.0" in config


@pytest.mark.parametrize(
    "reading", [{"min_rating": "4"}, {"colour": "x"}, {"user": 3}, {"min_rating": True}, [1]]
)
def test_update_command_refuses_forged_reading_options(fits, tmp_path, capsys, reading):
    if isinstance(reading, list):
        fits["mf"].save(tmp_path / "run")
        saved = run_folder.load(tmp_path / "run")
        forged = replace(saved, meta={**saved.meta, "reading": reading})
        run_folder.save(replace(forged, extra={}), tmp_path / "run")
    else:
        fits["mf"].save(tmp_path / "run", reading=reading)
    (tmp_path / "one.csv").write_text("user,item\nzoe,i0\n")
    assert main(["update", str(tmp_path / "run"), str(tmp_path / "one.csv")]) == 2
    assert "meta.json of the run: reading" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["{no}", "{new}"], "is not a run folder"),
        (["{run}", "{empty}"], "empty"),
        (["{run}", "{new}", "--user", "colour"], "colour"),
        (["{run}", "{missing}"], "missing.csv"),
        (["{run}", "{new}", "--out", "{new}"], "no folder"),
        (["{run}", "{new}", "--epochs", "-1"], "epochs"),
    ],
)
def test_update_command_bad_input_prints_one_line(run, tmp_path, capsys, words, message):
    (tmp_path / "empty.csv").write_text("")
    places = {
        "run": run, "no": str(tmp_path / "no"), "new": csv(NEW, tmp_path / "new.csv"),
        "empty": str(tmp_path / "empty.csv"), "missing": str(tmp_path / "missing.csv"),
    }  # fmt: skip
    before = files(tmp_path / "run")
    try:
        code = main(["update", *[word.format(**places) for word in words]])
    except SystemExit as stop:
        code = stop.code
    lines = capsys.readouterr().err.strip().splitlines()
    assert code == 2
    assert message in lines[-1]
    assert sum("error" in line for line in lines) == 1
    assert files(tmp_path / "run") == before


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mf-cosine", "fism"])
def test_update_bits_do_not_depend_on_array_addresses(name, fits):
    """Indices of six numbers: arrays that were neighbours in memory gave other bits, 1 run in
    200."""
    rng, kept, found = np.random.default_rng(1), [], set()
    for _ in range(300):
        junk = [np.empty(n, np.float32) for n in rng.integers(1, 400, rng.integers(1, 20))]
        kept = [*kept[-300:], junk[0]]  # the heap looks different each time
        again = copy.copy(fits[name])
        again.update(NEW, epochs=2)
        found.add(table(again).tobytes())
    assert len(found) == 1
