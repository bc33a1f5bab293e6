"""Run folders: round trips, damaged files, malicious files, and failures while writing."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import pickle
import resource
import shutil
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from llpauc import cli
from llpauc.data.ids import IdMap
from llpauc.errors import InputError
from llpauc.recommend import Recommender
from llpauc.storage import atomic, manifest, run_folder
from llpauc.storage.run_folder import SavedRun
from tests.datasets import mounted, random_split

TRAIN = random_split(5, n_users=14, n_items=17, events=160).train
QUICK = {"epochs": 2, "dimensions": 5, "negatives": 4, "batch_size": 32, "init_scale": 0.3}
RUNS = {
    "mf": QUICK,
    "mf-cosine-bias": QUICK | {"score": "cosine", "item_bias": True},
    "lightgcn": QUICK | {"loss": "bpr"},
    "fism": QUICK | {"loss": "bce", "item_bias": True},
    "fism-cosine": QUICK | {"loss": "sl"},
    "popularity": {},
    "itemknn": {"neighbours": 4},
    "ease": {"regularization": 20.0},
}
FILES = ("tensors.safetensors", "users.parquet", "items.parquet", "meta.json", "metrics.jsonl")
ALL_FILES = (*FILES, "manifest.json")
ONE_ID = pa.array([1])
FRACTIONS = (0.0, 0.01, 0.5, 0.99)
STORED_RUNS = sorted((Path(__file__).parents[1] / "artifacts").glob("format-*"))


def make_run(seed: int = 0) -> SavedRun:
    rng = np.random.default_rng(seed)
    return SavedRun(
        {
            "vectors": rng.standard_normal((6, 4)).astype(np.float32),
            "starts": rng.integers(0, 9, 7),
        },
        pa.array([f"user-{seed}-{u}" for u in range(6)]),
        pa.array(np.arange(9) + 100 * seed),
        {"seed": seed, "note": "ø"},
        {"metrics.jsonl": f'{{"epoch": {seed}}}\n'},
    )


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def same(one: SavedRun, other: SavedRun) -> bool:
    """Bit for bit; NaN is NaN."""

    def bits(a: SavedRun) -> dict:
        return {k: (v.dtype.str, v.shape, v.tobytes()) for k, v in a.tensors.items()}

    return bits(one) == bits(other) and (
        (one.user_ids, one.item_ids, dict(one.meta), dict(one.extra))
        == (other.user_ids, other.item_ids, dict(other.meta), dict(other.extra))
    )


def refusal(folder: Path, load=run_folder.load) -> str:
    """The one-line message with which loading is refused, within a second."""
    begun = time.perf_counter()
    with pytest.raises(InputError) as caught:
        load(folder)
    assert time.perf_counter() - begun < 1
    assert "\n" not in str(caught.value)
    return str(caught.value)


def read_manifest(folder: Path) -> dict:
    return json.loads((folder / "manifest.json").read_text(encoding="utf-8"))


def write_manifest(folder: Path, manifest: dict) -> None:
    """With the checksum that belongs to it."""
    entries = {key: value for key, value in manifest.items() if key != "sha256"}
    checksum = hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()
    text = json.dumps({**entries, "sha256": checksum})
    (folder / "manifest.json").write_text(text, encoding="utf-8")


def forge(folder: Path, **new: bytes) -> None:
    """Replace files and adapt the manifest, as an attacker would."""
    manifest = read_manifest(folder)
    for name, data in new.items():
        (folder / name).write_bytes(data)
        manifest["files"][name] = {
            "sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)
        }  # fmt: skip
    write_manifest(folder, manifest)


def flip(path: Path, byte: int, bit: int) -> None:
    """Flip a bit in place, which is faster than writing the file again."""
    with path.open("r+b") as file:
        file.seek(byte)
        (value,) = file.read(1)
        file.seek(byte)
        file.write(bytes([value ^ 1 << bit]))


FSYNC = os.fsync


@pytest.fixture(scope="module", autouse=True)
def no_fsync():
    """fsync takes most of the time; that it is called is tested below."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    """Runs to copy from."""
    folder = tmp_path_factory.mktemp("saved")
    run_folder.save(make_run(), folder / "plain")
    for model in ("mf", "ease", "itemknn"):
        Recommender(recipe="none", model=model, **RUNS[model]).fit(TRAIN).save(folder / model)
    return folder


@pytest.fixture
def run(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved / "plain", tmp_path / "run"))


# --- signatures ----------------------------------------------------------------------------------

SIGNING_KEY = "k" * 32


def test_sign_keeps_the_run_and_load_accepts_only_its_key(run):
    before = content(run)
    for _ in range(2):  # a second signature replaces the first
        run_folder.sign(run, SIGNING_KEY)
        after = content(run)
        assert {name for name in after if after[name] != before[name]} == {"manifest.json"}
        assert SIGNING_KEY.encode() not in after["manifest.json"]
        for key in (SIGNING_KEY, None):
            assert same(run_folder.load(run, signing_key=key), make_run())
        with pytest.raises(InputError, match="its signature does not match the key"):
            run_folder.load(run, signing_key=SIGNING_KEY[:-1])


def test_sign_is_the_hmac_of_the_manifest(run):
    run_folder.sign(run, SIGNING_KEY)
    manifest = read_manifest(run)
    found = manifest.pop("signature")
    del manifest["sha256"]
    text = b"llpauc signature 1\n" + json.dumps(manifest, sort_keys=True).encode()
    assert found == hmac.digest(SIGNING_KEY.encode(), text, "sha256").hex()


@pytest.mark.parametrize("name", ALL_FILES)
def test_load_with_a_key_refuses_a_forged_file_of_a_signed_run(name, run):
    """Checksums alone accept it."""
    run_folder.sign(run, SIGNING_KEY)
    other = run_folder.save(make_run(1), run.with_name("other"))
    if name != "manifest.json":
        forge(run, **{name: (other / name).read_bytes()})
    else:
        manifest = read_manifest(run)
        del manifest["signature"]
        write_manifest(run, manifest)
    run_folder.load(run)
    with pytest.raises(InputError, match=r"it is not signed|its signature does not match"):
        run_folder.load(run, signing_key=SIGNING_KEY)


@pytest.mark.parametrize("value", [None, 3, [], "", "\ud800", "0" * 64])
def test_load_with_a_key_refuses_a_signature_of_any_type(value, run):
    write_manifest(run, {**read_manifest(run), "signature": value})
    with pytest.raises(InputError, match="its signature does not match"):
        run_folder.load(run, signing_key=SIGNING_KEY)


def test_sign_refuses_a_damaged_run(run):
    flip(run / "tensors.safetensors", 100, 0)
    before = content(run)
    with pytest.raises(InputError, match=r"tensors\.safetensors: its SHA-256"):
        run_folder.sign(run, SIGNING_KEY)
    assert content(run) == before


def test_sign_runs_of_every_format(tmp_path):
    for folder in STORED_RUNS:
        copy = Path(shutil.copytree(folder / "run", tmp_path / folder.name))
        run_folder.sign(copy, SIGNING_KEY)
        run_folder.load(copy, signing_key=SIGNING_KEY)


def test_sign_command_signs_and_verifies_without_printing_the_key(run, tmp_path, capsys):
    (tmp_path / "key").write_text(SIGNING_KEY + "\n")
    words = ["sign", str(run), "--key-file", str(tmp_path / "key")]
    assert cli.main([*words, "--verify"]) == 2
    assert cli.main(words) == 0
    assert cli.main([*words, "--verify"]) == 0
    (tmp_path / "key").write_text("other" * 9)
    assert cli.main([*words, "--verify"]) == 2
    assert cli.main(["sign", str(run)]) == 2
    assert cli.main(["serve", str(run), "--key-file", str(tmp_path / "key")]) == 2
    output = "".join(capsys.readouterr())
    assert "give --key-file, or set LLPAUC_SIGNING_KEY" in output
    assert "give --require-signature too" in output
    assert SIGNING_KEY not in output
    assert "other" * 9 not in output


# --- round trips ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RUNS)
def test_save_and_load_every_model_bit_for_bit(name, tmp_path):
    made = Recommender(recipe="none", model=name.split("-")[0], **RUNS[name]).fit(TRAIN)
    made.save(tmp_path / "run", data="events.csv")
    read = run_folder.load(tmp_path / "run")
    tensors = made.fitted.tensors()
    assert set(read.tensors) == set(tensors)
    for key, value in tensors.items():
        assert read.tensors[key].dtype == value.dtype
        assert read.tensors[key].shape == value.shape
        assert read.tensors[key].tobytes() == np.ascontiguousarray(value).tobytes()
    assert (read.user_ids, read.item_ids) == (TRAIN.user_ids.arrow(), TRAIN.item_ids.arrow())
    assert read.meta == {"params": made.fitted_params, "data": "events.csv"}
    epochs = [json.loads(line) for line in read.extra["metrics.jsonl"].splitlines()]
    assert [e["number"] for e in epochs] == ([1, 2] if RUNS[name].get("epochs") else [])
    back = Recommender.load(tmp_path / "run")
    assert back.get_params() == made.fitted_params
    back.save(tmp_path / "again", data="events.csv")
    for file in ("tensors.safetensors", "users.parquet", "items.parquet", "meta.json"):
        assert (tmp_path / "again" / file).read_bytes() == (tmp_path / "run" / file).read_bytes()


def test_save_same_run_gives_the_same_bytes(tmp_path):
    folders = [run_folder.save(make_run(3), tmp_path / name) for name in ("a", "b")]
    assert content(folders[0]) == content(folders[1])
    assert set(content(folders[0])) == set(ALL_FILES)


@pytest.mark.parametrize(
    "ids",
    [
        [-5, 0, 7, 2**63 - 1],
        [0, 2**63 + 5, 2**64 - 1],
        [2**64 + 7, 7],  # too large for any integer type: text
        ["007", "7", "1.0", "1", "NaN", "null", " ", "a\tb", 'say "hi"', "line\nline", "\x00"],
        ["ø", "e\u0301", "\u00e9", "日本", "🎬", "\u202eabc", "x" * 10_000],
        ["only"],
    ],
    ids=["int64", "uint64", "huge", "lookalikes", "unicode", "one"],
)
def test_save_and_load_keeps_ids_and_their_type(ids, tmp_path):
    map_ = IdMap.of(ids)
    run_folder.save(SavedRun({}, map_.arrow(), map_.arrow(), {}, {}), tmp_path / "run")
    back = run_folder.load(tmp_path / "run")
    assert back.user_ids == back.item_ids == map_.arrow()
    expected = [str(i) for i in ids] if map_.kind == "string" else ids
    assert back.user_ids.to_pylist() == expected
    assert IdMap.of(back.user_ids) == map_


@settings(max_examples=40, deadline=None)
@given(
    st.one_of(
        st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), min_size=1),
        st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1),
        st.lists(st.integers(0, 2**64 - 1), min_size=1),
    )
)
def test_save_and_load_any_ids(ids):
    map_ = IdMap.of(ids)
    with tempfile.TemporaryDirectory() as folder:
        run_folder.save(SavedRun({}, map_.arrow(), ONE_ID, {}, {}), Path(folder) / "run")
        assert IdMap.of(run_folder.load(Path(folder) / "run").user_ids) == map_


def test_save_and_load_arrays_of_every_shape_order_and_type(tmp_path):
    nans = np.array([0x7FC00001, 0xFFC00002, 0x80000000, 1], np.uint32).view(np.float32)
    tensors = {
        "empty": np.zeros((0, 3), np.float32),
        "nothing": np.zeros(0, np.float32),
        "scalar": np.array(3.5),
        "backwards": np.asfortranarray(np.arange(12, dtype=np.float32).reshape(3, 4)),
        "every other": np.arange(10, dtype=np.int64)[::2],
        "odd bits": nans,
        "int32": np.array([-1, 2**31 - 1], np.int32),
        "bool": np.array([True, False]),
    }
    artifact = SavedRun(tensors, ONE_ID, ONE_ID, {}, {})
    run_folder.save(artifact, tmp_path / "run")
    back = run_folder.load(tmp_path / "run")
    for name, value in tensors.items():
        assert back.tensors[name].shape == value.shape
        assert back.tensors[name].tobytes() == value.tobytes()
    # Kernels are compiled for writable arrays.
    assert all(value.flags.writeable for value in back.tensors.values())


def test_save_stores_numpy_numbers_and_paths_as_json(tmp_path):
    meta = {"epochs": np.int64(3), "lr": np.float32(0.5), "on": np.True_, "data": Path("a/b.csv")}
    run_folder.save(SavedRun({}, ONE_ID, ONE_ID, meta, {}), tmp_path / "run")
    assert run_folder.load(tmp_path / "run").meta == {
        "epochs": 3, "lr": 0.5, "on": True, "data": os.path.join("a", "b.csv")
    }  # fmt: skip


@pytest.mark.parametrize("name", ["id=5", "a b", "ø", "-x", "%20", "s3:x", "x" * 200])
def test_save_any_folder_name(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_folder.save(make_run(), name)
    assert same(run_folder.load(name), make_run())


def test_save_into_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    run_folder.save(make_run(), ".")
    assert same(run_folder.load(tmp_path / "here"), make_run())
    assert os.listdir(tmp_path) == ["here"]


# --- damaged files --------------------------------------------------------------------------------


@pytest.mark.parametrize("fraction", FRACTIONS)
@pytest.mark.parametrize("name", ALL_FILES)
def test_load_names_a_truncated_file(name, fraction, run):
    data = (run / name).read_bytes()
    (run / name).write_bytes(data[: int(fraction * len(data))])
    message = refusal(run)
    assert name in message
    assert "damaged" in message


def test_load_detects_200_bit_flips(saved, tmp_path):
    run = Path(shutil.copytree(saved / "mf", tmp_path / "run"))
    whole = content(run)
    places = [(name, byte) for name, data in whole.items() for byte in range(len(data))]
    rng = np.random.default_rng(0)
    detected, hit = 0, set()
    for place, bit in zip(rng.integers(0, len(places), 200), rng.integers(0, 8, 200), strict=True):
        name, byte = places[place]
        flip(run / name, byte, int(bit))
        message = refusal(run, Recommender.load)
        detected += name in message
        hit.add(name)
        flip(run / name, byte, int(bit))
    assert detected == 200
    assert {"tensors.safetensors", "users.parquet", "manifest.json", "config.toml"} <= hit
    assert content(run) == whole
    Recommender.load(run)


def test_load_detects_every_bit_flip_in_the_manifest(run):
    path = run / "manifest.json"
    unnoticed = []
    for place in range(8 * path.stat().st_size):
        flip(path, *divmod(place, 8))
        try:
            run_folder.load(run)
            unnoticed.append(place)
        except InputError as error:
            if "manifest.json" not in str(error):
                unnoticed.append(place)
        flip(path, *divmod(place, 8))
    assert not unnoticed
    assert same(run_folder.load(run), make_run())


def test_load_detects_bit_flips_in_a_format_1_manifest(tmp_path):
    """It has no checksum of its own."""
    stored = next(folder for folder in STORED_RUNS if folder.name.startswith("format-1-"))
    run = Path(shutil.copytree(stored / "run", tmp_path / "run"))
    path = run / "manifest.json"
    for place in range(0, 8 * path.stat().st_size, 7):
        flip(path, *divmod(place, 8))
        refusal(run)
        flip(path, *divmod(place, 8))
    run_folder.load(run)


@pytest.mark.parametrize("name", ALL_FILES)
def test_load_names_a_deleted_file(name, run):
    (run / name).unlink()
    assert name in refusal(run)


@pytest.mark.parametrize("name", ALL_FILES)
def test_load_refuses_a_file_of_another_run(name, run, tmp_path):
    other = run_folder.save(make_run(1), tmp_path / "other")
    (run / name).write_bytes((other / name).read_bytes())
    message = refusal(run)
    assert name in message or name == "manifest.json"  # which is sound, and the others do not match
    assert "the file is damaged" in message


def test_load_refuses_two_exchanged_files(run):
    os.rename(run / "users.parquet", run / "moved")
    os.rename(run / "items.parquet", run / "users.parquet")
    os.rename(run / "moved", run / "items.parquet")
    assert ".parquet" in refusal(run)


@pytest.mark.parametrize("make", [Path.touch, Path.mkdir])
@pytest.mark.parametrize("name", ["notes.txt", "tensors.safetensors.bak", "a\nb", "\udcff"])
def test_load_and_save_name_a_file_that_is_not_in_the_manifest(name, make, run):
    make(run / name)
    assert f"holds {name!r}, which is not in the manifest; move it away" in refusal(run)
    with pytest.raises(InputError, match="would be lost; move it away or choose another folder"):
        run_folder.save(make_run(1), run)
    assert name in os.listdir(run)


def test_load_ignores_hidden_files_and_save_refuses_them(run):
    (run / ".DS_Store").write_bytes(b"x")
    assert same(run_folder.load(run), make_run())
    with pytest.raises(InputError, match=r"holds \.DS_Store, which its manifest does not list"):
        run_folder.save(make_run(1), run)


@pytest.mark.parametrize("name", FILES)
def test_summarize_detects_missing_and_short_files(name, run):
    seen = run_folder.summarize(run)
    assert (seen.meta, seen.extra) == (make_run().meta, make_run().extra)
    assert seen.size == sum((run / file).stat().st_size for file in FILES)
    data = (run / name).read_bytes()
    (run / name).write_bytes(data[:-1])
    assert name in refusal(run, run_folder.summarize)
    (run / name).unlink()
    assert name in refusal(run, run_folder.summarize)
    (run / name).write_bytes(data)
    flip(run / name, len(data) // 2, 3)
    assert name in refusal(run, lambda folder: run_folder.summarize(folder, verify=True))
    if name.endswith((".safetensors", ".parquet")):  # not read, which is what makes it quick
        run_folder.summarize(run)


# --- formats -------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", STORED_RUNS, ids=lambda folder: folder.name)
def test_load_stored_run_gives_the_expected_recommendations(folder):
    expected = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
    recommender = Recommender.load(folder / "run")
    items, scores = recommender.recommend(expected["users"], k=len(expected["items"][0]))
    assert items.tolist() == expected["items"]
    np.testing.assert_allclose(scores, expected["scores"], rtol=1e-5, atol=1e-5)
    has = expected["fold_in"]
    items, scores = recommender.fold_in(has["has"], k=len(has["items"]))
    assert items.tolist() == has["items"]
    np.testing.assert_allclose(scores, has["scores"], rtol=1e-5, atol=1e-5)


def test_stored_runs_cover_every_format():
    models = {folder.name: json.loads((folder / "run" / "manifest.json").read_text())["format"]
              for folder in STORED_RUNS}  # fmt: skip
    assert models == {
        f"format-{format}-{model}": format
        for format in run_folder.RUN_FOLDER.formats
        for model in ("mf", "lightgcn", "ease")
    }


def test_load_of_something_else_names_the_reason(tmp_path):
    (tmp_path / "file").write_text("x", encoding="utf-8")
    (tmp_path / "empty").mkdir()
    messages = {
        "file": "is not a run folder: it is a file; check the path",
        "empty": "is not a run folder: it has no manifest.json; check the path",
        "nowhere": "is not a run folder: it does not exist; check the path",
    }
    for name, words in messages.items():
        assert refusal(tmp_path / name).endswith(words)


# --- malicious files ------------------------------------------------------------------------------


class Canary:
    """Unpickling it writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (Path.write_text, (self.path, "executed"))


@pytest.mark.parametrize("name", FILES)
def test_load_never_executes_a_pickle(name, run, tmp_path):
    canary = tmp_path / "canary"
    data = pickle.dumps(Canary(canary))
    pickle.loads(data)
    assert canary.exists()  # the pickle works
    canary.unlink()
    forge(run, **{name: data})
    for load in (run_folder.load, Recommender.load):
        message = refusal(run, load)
        assert name in message
        assert "cannot be read" in message
    assert not canary.exists()


def header(entries: dict, length: int | None = None, body: bytes = b"") -> bytes:
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + body


HOSTILE_TENSORS = {
    "empty": b"",
    "header of 2^62": header({}, 2**62),
    "header of 2^64 - 1": header({}, 2**64 - 1),
    "10 GB claimed": header(
        {"x": {"dtype": "F32", "shape": [2_500_000_000], "data_offsets": [0, 10**10]}}, body=b"1234"
    ),
    "10 GB in 4 bytes": header(
        {"x": {"dtype": "F32", "shape": [2_500_000_000], "data_offsets": [0, 4]}}, body=b"1234"
    ),
    "overlapping": header(
        {
            "x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
            "y": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]},
        },
        body=bytes(12),
    ),
    "overflowing shape": header(
        {"x": {"dtype": "F32", "shape": [2**63, 2**63], "data_offsets": [0, 4]}}, body=bytes(4)
    ),
    "unknown type": header(
        {"x": {"dtype": "OBJECT", "shape": [1], "data_offsets": [0, 8]}}, body=bytes(8)
    ),
    "type NumPy lacks": header(
        {"x": {"dtype": "F8_E4M3", "shape": [1], "data_offsets": [0, 1]}}, body=bytes(1)
    ),
    "deep header": struct.pack("<Q", 100_000) + b"[" * 100_000,
}


@pytest.mark.parametrize("name", HOSTILE_TENSORS)
def test_load_refuses_hostile_tensors_at_once(name, run):
    forge(run, **{"tensors.safetensors": HOSTILE_TENSORS[name]})
    assert "tensors.safetensors" in refusal(run)


def parquet(table: pa.Table, **options) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **options)
    return sink.getvalue().to_pybytes()


GOOD_IDS = parquet(pa.table({"id": [f"user-{i}" for i in range(500)]}))


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("users.parquet", b"PAR1"),
        ("users.parquet", GOOD_IDS[:-20] + bytes(20)),
        ("users.parquet", GOOD_IDS[:40] + bytes(100) + GOOD_IDS[140:]),  # a page, not the footer
        ("users.parquet", parquet(pa.table({"name": ["a"]}))),
        ("items.parquet", parquet(pa.table({"id": [0.5]}))),
        ("items.parquet", parquet(pa.table({"id": ["a", None]}))),
        ("items.parquet", parquet(pa.table({"id": [["a"]]}))),
        ("meta.json", b"[" * 200_000),
        ("meta.json", b'{"a":' * 200_000),
        ("meta.json", b"[1, 2]"),
        ("meta.json", b"\xff\xfe"),
        ("metrics.jsonl", b"\xff\xfe"),
    ],
)
def test_load_refuses_forged_files_that_match_the_manifest(name, data, run):
    forge(run, **{name: data})
    message = refusal(run)
    assert name in message
    assert "cannot be read" in message


@pytest.mark.parametrize(
    ("ids", "options"),
    [
        (["x" * 1000] * 10**6, {}),
        ([f"{'x' * 1000}{n}" for n in range(10**5)], {"compression": "zstd"}),
        (
            [f"{'x' * 1000}{n}" for n in range(10**5)],
            {"use_dictionary": False, "column_encoding": "DELTA_BYTE_ARRAY"},
        ),
        ([0] * 10**7, {}),
    ],
    ids=["dictionary", "zstd", "shared prefixes", "integers"],
)
def test_load_refuses_small_files_with_many_bytes_of_ids(ids, options, run):
    """A file of 200 KB took 2.6 GB."""
    data = parquet(pa.table({"id": ids}), **options)
    assert len(data) < 600_000
    forge(run, **{"users.parquet": data})
    before = pa.default_memory_pool().bytes_allocated()
    peak = pa.default_memory_pool().max_memory()
    assert "users.parquet: cannot be read" in refusal(run)
    assert pa.default_memory_pool().max_memory() - max(peak, before) < 50_000_000


BAD_NAMES = (
    "../secret", "run/../../secret", "{absolute}", "a/b", "", ".", "..", "..\\secret", ".hidden",
    "a\0b", "x" * 300, "\ud800", "tensors.safetensors/", "a\nb",
)  # fmt: skip


@pytest.mark.parametrize("name", BAD_NAMES)
def test_load_refuses_names_that_lead_out_of_the_folder(name, run, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("42", encoding="utf-8")
    manifest = read_manifest(run)
    manifest["files"][name.format(absolute=secret)] = {
        "sha256": hashlib.sha256(b"42").hexdigest(), "bytes": 2
    }  # fmt: skip
    write_manifest(run, manifest)
    assert "is not a plain file name" in refusal(run)


@pytest.mark.parametrize("name", ALL_FILES)
def test_load_refuses_links(name, run, tmp_path):
    (run / name).rename(tmp_path / "elsewhere")
    (run / name).symlink_to(tmp_path / "elsewhere")
    assert name in refusal(run)


@pytest.mark.parametrize("name", ALL_FILES)
@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_load_refuses_folders_and_pipes_without_waiting(name, make, run):
    (run / name).unlink()
    make(run / name)
    assert name in refusal(run)


def test_load_follows_a_link_to_the_run_folder(run, tmp_path):
    (tmp_path / "latest").symlink_to(run)
    assert same(run_folder.load(tmp_path / "latest"), make_run())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "is not JSON"),
        (b"{", "is not JSON"),
        (b"\x80\x04.", "is not JSON"),
        (b"[" * 500_000, "is not JSON"),
        (b'{"a":' * 150_000, "is not JSON"),
        (b" " * (1 << 20) + b"{}", "is larger than a manifest can be"),
        (b"[]", "is not the manifest of a run folder"),
        (b"3", "is not the manifest of a run folder"),
        (b"{}", "is not the manifest of a run folder"),
        (b'{"kind": "other", "format": 1, "files": {}}', "is not the manifest of a run folder"),
        (b'{"kind": "llpauc run"}', "has format None, this version reads 1, 2"),
        (b'{"kind": "llpauc run", "format": 3, "files": {}}',
         "has format 3, this version reads 1, 2; update llpauc, a newer version wrote it"),
        (b'{"kind": "llpauc run", "format": "1", "files": {}}', "has format '1'"),
        (b'{"kind": "llpauc run", "format": true, "files": {}}', "has format True"),
        (b'{"kind": "llpauc run", "format": [' + b"9," * 9999 + b"9]}", "has format [9, 9, "),
        (b'{"kind": "llpauc run", "format": 2, "files": {}}', "does not match its own SHA-256"),
        (b'{"kind": "llpauc run", "format": 2, "files": {}, "sha256": null}', "its own SHA-256"),
        (b'{"kind": "llpauc run", "format": 1, "files": {}, "sha256": "x"}', "its own SHA-256"),
        (b'{"kind": "llpauc run", "format": 2, "sha256": "", "files": {"a": '
         + b'{"a":' * 900 + b"1" + b"}" * 901 + b"}", "its own SHA-256"),
        (b'{"kind": "llpauc run", "format": 1}', "lists no files"),
        (b'{"kind": "llpauc run", "format": 1, "files": ["meta.json"]}', "lists no files"),
        (b'{"kind": "llpauc run", "format": 1, "files": {"meta.json": 3}}', "lists no files"),
        (b'{"kind": "llpauc run", "format": 1, "files": {}}',
         "does not list items.parquet, meta.json, tensors.safetensors, users.parquet"),
    ],
)  # fmt: skip
def test_load_refuses_bad_manifests(text, message, run):
    (run / "manifest.json").write_bytes(text)
    assert message in refusal(run)


@pytest.mark.parametrize("value", [None, 3, [], {}, "", True, "A" * 64])
@pytest.mark.parametrize("key", ["sha256", "bytes"])
def test_load_refuses_manifest_entries_of_the_wrong_type(key, value, run):
    manifest = read_manifest(run)
    manifest["files"]["meta.json"][key] = value
    write_manifest(run, manifest)
    assert "meta.json" in refusal(run)
    del manifest["files"]["meta.json"][key]
    write_manifest(run, manifest)
    assert "meta.json" in refusal(run)


@pytest.mark.parametrize(
    "params",
    [
        None, [], {"model": "os.system"}, {"model": "mf", "self": 1}, {"model": ["mf"]},
        {"model": "mf", "hold_out": "x"}, {"model": "mf", "temperature": "x"},
        {"model": "mf", "loss": "llpauc", "__class__": "x"}, {"model": "mf", "dimensions": 0},
    ],
)  # fmt: skip
def test_recommender_load_refuses_forged_parameters(params, saved, tmp_path):
    run = Path(shutil.copytree(saved / "mf", tmp_path / "run"))
    forge(run, **{"meta.json": json.dumps({"params": params}).encode()})
    assert "run: " in refusal(run, Recommender.load)


def without(name):
    return lambda tensors: tensors.pop(name)


def put(name, value):
    return lambda tensors: tensors.__setitem__(name, value)


@pytest.mark.parametrize(
    ("model", "change"),
    [
        ("mf", without("fallback")),
        ("mf", without("item_vectors")),
        ("mf", without("history_rows")),
        ("mf", put("fallback", np.zeros(3, np.float32))),
        ("mf", put("user_vectors", np.zeros((3, 5), np.float32))),
        ("mf", put("user_vectors", np.zeros(14, np.float32))),
        ("mf", put("user_vectors", np.zeros((14, 4), np.float32))),
        ("mf", put("history_rows", np.zeros((3, 5), np.float32))),
        ("mf", put("history_rows", np.zeros((17, 3), np.float32))),
        ("mf", put("histories.columns", np.full(3, 10**6, np.int32))),
        ("mf", put("histories.starts", np.arange(15))),
        ("mf", put("histories.starts", np.arange(15) * -1)),
        ("mf", put("histories.starts", np.zeros(0, np.int64))),
        ("mf", put("histories.starts", np.zeros((15, 1), np.int64))),
        ("ease", put("item_weights", np.zeros((3, 3), np.float32))),
        ("itemknn", put("neighbours.starts", np.zeros(3, np.int64))),
        ("itemknn", without("neighbours.values")),
    ],
)
def test_recommender_load_refuses_arrays_that_do_not_fit_together(model, change, saved, tmp_path):
    run = Path(shutil.copytree(saved / model, tmp_path / "run"))
    tensors = dict(run_folder.load(run).tensors)
    change(tensors)
    safetensors.numpy.save_file(tensors, tmp_path / "forged")
    forge(run, **{"tensors.safetensors": (tmp_path / "forged").read_bytes()})
    message = refusal(run, Recommender.load)
    assert "the saved arrays do not fit together" in message
    assert str(run) in message


# --- writing -------------------------------------------------------------------------------------


def test_save_replaces_an_existing_run(tmp_path):
    target = tmp_path / "runs" / "best"
    first = make_run(0)
    first = SavedRun(*list(first.__dict__.values())[:4], {"old.txt": "old"})
    run_folder.save(first, target)
    run_folder.save(make_run(1), target)
    assert same(run_folder.load(target), make_run(1))
    assert set(content(target)) == set(ALL_FILES)
    assert os.listdir(tmp_path) == ["runs"]
    assert os.listdir(tmp_path / "runs") == ["best"]


def test_save_replaces_a_run_of_another_format(run):
    manifest = read_manifest(run)
    write_manifest(run, manifest | {"format": 99})
    run_folder.save(make_run(1), run)
    assert same(run_folder.load(run), make_run(1))


def test_save_into_an_empty_folder(tmp_path):
    (tmp_path / "run").mkdir()
    run_folder.save(make_run(), tmp_path / "run")
    assert same(run_folder.load(tmp_path / "run"), make_run())


@pytest.mark.parametrize(
    "files",
    [
        {"thesis.tex": b"years"},
        {"manifest.json": b'{"name": "my web app", "icons": []}', "index.html": b"<p>"},
        {"manifest.json": b"not JSON", "thesis.tex": b"years"},
        {".git": b"x"},
    ],
)
def test_save_refuses_a_folder_with_other_files(files, tmp_path):
    target = tmp_path / "precious"
    target.mkdir()
    for name, data in files.items():
        (target / name).write_bytes(data)
    with pytest.raises(InputError, match="precious is not empty and is not a run folder; ch"):
        run_folder.save(make_run(), target)
    assert content(target) == files
    assert os.listdir(tmp_path) == ["precious"]


def test_save_refuses_a_folder_name_that_is_not_utf8(tmp_path):
    with pytest.raises(InputError, match="is not UTF-8; choose another name"):
        run_folder.save(make_run(), tmp_path / "bad\udcff")
    assert os.listdir(tmp_path) == []


def test_save_refuses_a_file(tmp_path):
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(InputError, match="file is not a folder; choose another name"):
        run_folder.save(make_run(), tmp_path / "file")
    assert content(tmp_path) == {"file": b"x"}


def test_save_replaces_the_target_of_a_link(run, tmp_path):
    (tmp_path / "latest").symlink_to("run")
    run_folder.save(make_run(1), tmp_path / "latest")
    assert (tmp_path / "latest").is_symlink()
    assert same(run_folder.load(run), make_run(1))
    assert sorted(os.listdir(tmp_path)) == ["latest", "run"]


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_save_respects_the_umask(mask, tmp_path):
    before = os.umask(mask)
    try:
        run_folder.save(make_run(), tmp_path / "run")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o777 & ~mask


def nth(function, n, error):
    """`function` with its n-th call (from 1) failing; with n < 0 the call after |n| ones and on."""
    calls = 0

    def wrapped(*args, **keywords):
        nonlocal calls
        calls += 1
        if calls == n or (n < 0 and calls > -n):
            raise error
        return function(*args, **keywords)

    return wrapped


# Every system or library call of `save`, at its first, second, ... call. The last fsync is that of
# the parent folder, after the new run has been renamed.
FAILURES = [
    ("Path.mkdir", 2),
    ("safetensors.save_file", 1),
    ("pq.write_table", 1),
    ("pq.write_table", 2),
    *[("Path.write_text", n) for n in (1, 2, 3)],
    ("manifest.file_checksum", 3),
    *[("os.fsync", n) for n in range(1, 9)],
]
IN_PLACE = {
    "new": [("os.rename", 1)],
    "exchanged": [("atomic._exchange", 1)],
    "renamed": [("os.rename", 1), ("os.rename", 2)],
}


@pytest.fixture
def without_exchange(monkeypatch):
    """A system that cannot exchange two folders."""
    monkeypatch.setattr(atomic, "_exchange", lambda one, other: False)


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()],
                         ids=["full disk", "ctrl-c"])  # fmt: skip
@pytest.mark.parametrize(
    ("place", "n", "way"),
    [(place, n, way) for way, calls in IN_PLACE.items() for place, n in (*FAILURES, *calls)],
)
def test_save_failing_at_any_call_keeps_the_old_run(
    place, n, way, error, saved, tmp_path, monkeypatch
):
    target = tmp_path / "run"
    if way != "new":
        shutil.copytree(saved / "plain", target)
    if way == "renamed":
        monkeypatch.setattr(atomic, "_exchange", lambda one, other: False)
    before = content(tmp_path)
    module, _, name = place.rpartition(".")
    owner = {
        "Path": Path,
        "pq": pq,
        "os": os,
        "safetensors": safetensors.numpy,
        "manifest": manifest,
        "atomic": atomic,
    }[module]
    monkeypatch.setattr(owner, name, nth(getattr(owner, name), n, error))
    with pytest.raises(type(error)) as caught:
        run_folder.save(make_run(1), target)
    monkeypatch.undo()
    if isinstance(error, OSError):  # the message names the run
        assert caught.value.filename == str(target)
        assert "No space left on device: " in caught.value.strerror
    if name == "fsync" and n == 8:
        assert same(run_folder.load(target), make_run(1))
    else:
        assert content(tmp_path) == before
    assert os.listdir(tmp_path) == (["run"] if target.exists() else [])


@pytest.mark.parametrize("way", IN_PLACE)
def test_save_makes_only_the_calls_that_are_tested_to_fail(way, tmp_path, monkeypatch):
    """A new call needs an entry in FAILURES."""
    counts: dict[str, int] = {}

    def counted(owner, name):
        function = getattr(owner, name)

        def wrapped(*args, **keywords):
            counts[name] = counts.get(name, 0) + 1
            return function(*args, **keywords)

        monkeypatch.setattr(owner, name, wrapped)

    if way != "new":
        run_folder.save(make_run(0), tmp_path / "run")
    if way == "renamed":
        monkeypatch.setattr(atomic, "_exchange", lambda one, other: False)
    for owner, name in ((os, "fsync"), (os, "rename"), (Path, "write_text"), (pq, "write_table"),
                        (atomic, "_exchange")):  # fmt: skip
        counted(owner, name)
    run_folder.save(make_run(1), tmp_path / "run")
    in_place = {"new": {"rename": 1}, "exchanged": {"_exchange": 1},
                "renamed": {"_exchange": 1, "rename": 2}}[way]  # fmt: skip
    assert counts == {"fsync": 8, "write_text": 3, "write_table": 2, **in_place}


@pytest.mark.usefixtures("without_exchange")
def test_replace_folder_keeps_the_old_run_if_it_cannot_be_renamed_back(tmp_path, monkeypatch):
    run_folder.save(make_run(0), tmp_path / "run")
    monkeypatch.setattr(os, "rename", nth(os.rename, -1, OSError(5, "Input/output error")))
    with pytest.raises(OSError, match="Input/output"):
        run_folder.save(make_run(1), tmp_path / "run")
    monkeypatch.undo()
    (left,) = tmp_path.iterdir()
    assert same(run_folder.load(left), make_run(0))


@pytest.mark.parametrize("code", [38, 22, 95])  # ENOSYS, EINVAL, EOPNOTSUPP: what kernels say
def test_replace_folder_renames_twice_if_exchange_is_not_supported(code, run, monkeypatch):
    class Library:
        def __init__(self, *_, **__):
            pass

        @staticmethod
        def renameat2(*_):
            return -1

    monkeypatch.setattr(atomic.ctypes, "CDLL", Library)
    monkeypatch.setattr(atomic.ctypes, "get_errno", lambda: code)
    run_folder.save(make_run(1), run)
    monkeypatch.setattr(atomic.ctypes, "get_errno", lambda: 5)
    with pytest.raises(OSError, match="Input/output error"):
        run_folder.save(make_run(0), run)
    del Library.renameat2
    run_folder.save(make_run(2), run)
    monkeypatch.undo()
    assert same(run_folder.load(run), make_run(2))


LARGE = SavedRun({"x": np.zeros(1_000_000, np.float32)}, ONE_ID, ONE_ID, {}, {})
MANY = SavedRun({}, pa.array([f"{n}" * 9 for n in range(200_000)]), ONE_ID, {}, {})
LONG = SavedRun({}, ONE_ID, ONE_ID, {}, {"notes.txt": "x" * 2_000_000})


@pytest.mark.parametrize("large", [LARGE, MANY, LONG], ids=["tensors", "ids", "text"])
def test_save_beyond_the_file_size_limit_keeps_the_old_run(large, run, tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        with pytest.raises(OSError, match=r"cannot be written: File too large: '.*/run'"):
            run_folder.save(large, run)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert same(run_folder.load(run), make_run())
    assert os.listdir(tmp_path) == ["run"]


@pytest.mark.parametrize("large", [LARGE, MANY, LONG], ids=["tensors", "ids", "text"])
def test_save_on_a_full_disk_keeps_the_old_run_and_names_the_disk(large, saved, tmp_path):
    with mounted(tmp_path / "disk") as disk:
        shutil.copytree(saved / "plain", disk / "run")
        for name in ("run", "new"):
            with pytest.raises(OSError, match="No space left on device") as caught:
                run_folder.save(large, disk / name)
            message = caught.value.strerror
            assert caught.value.filename == str(disk / name)
            assert message.startswith("cannot be written: No space left on device: ")
            assert message.endswith(f" bytes are free in {disk}")
            assert os.listdir(disk) == ["run"]
        assert same(run_folder.load(disk / "run"), make_run())
        run_folder.save(make_run(1), disk / "run")  # small enough
        assert same(run_folder.load(disk / "run"), make_run(1))


@contextmanager
def as_another_user():
    """Root may write everywhere, so run as another user."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def test_save_into_a_read_only_folder_keeps_the_old_run(saved):
    with (
        tempfile.TemporaryDirectory() as place
    ):  # pytest's folders are not readable for other users
        folder = Path(place)
        shutil.copytree(saved / "plain", folder / "run")
        folder.chmod(0o555)
        with as_another_user():
            for name in ("run", "new", "new/below"):
                with pytest.raises(OSError, match="cannot be written: Permission denied") as caught:
                    run_folder.save(make_run(1), folder / name)
                assert caught.value.filename == str(folder / name)
            assert same(run_folder.load(folder / "run"), make_run())
        assert os.listdir(folder) == ["run"]
        folder.chmod(0o755)


def test_load_without_permission_names_the_file(run):
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        folder = Path(shutil.copytree(run, Path(place) / "run"))
        (folder / "meta.json").chmod(0)
        with as_another_user():
            assert refusal(folder).endswith("meta.json: cannot be read: Permission denied")
        (folder / "manifest.json").chmod(0)
        with as_another_user():
            assert "manifest.json (Permission denied)" in refusal(folder)
        folder.chmod(0)
        with as_another_user():
            assert refusal(folder).endswith("run: cannot be read: Permission denied")
        folder.chmod(0o755)


@pytest.mark.parametrize(
    ("extra", "meta", "message"),
    [
        ({"../x": ""}, {}, "is not a plain file name"),
        ({"a/b": ""}, {}, "is not a plain file name"),
        ({"meta.json": ""}, {}, "meta.json is a reserved file name"),
        ({"manifest.json": ""}, {}, "manifest.json is a reserved file name"),
        ({}, {"data": {1, 2}}, r"a run cannot store \{1, 2\}"),
        ({}, {"data": np.zeros(2)}, "a run cannot store array"),
    ],
)
def test_save_refuses_values_and_names_it_cannot_store(extra, meta, message, run, tmp_path):
    with pytest.raises(InputError, match=message):
        run_folder.save(SavedRun({}, ONE_ID, ONE_ID, meta, extra), run)
    assert same(run_folder.load(run), make_run())
    assert os.listdir(tmp_path) == ["run"]


def test_save_flushes_files_before_the_rename_and_the_parent_after(tmp_path, monkeypatch):
    events: list[str] = []
    rename = os.rename

    def noted_fsync(handle):
        events.append(Path(os.readlink(f"/proc/self/fd/{handle}")).name)
        FSYNC(handle)

    def noted_rename(source, target):
        events.append("rename")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "rename", noted_rename)
    run_folder.save(make_run(), tmp_path / "run")
    at = events.index("rename")
    assert set(ALL_FILES) == set(events[: at - 1])
    assert events[at - 1].startswith(".run.")
    assert events[at + 1 :] == [tmp_path.name]


def test_load_parses_the_verified_bytes(run, monkeypatch):
    """A run that is replaced while it is loaded."""
    load = safetensors.numpy.load

    def replaced_meanwhile(data):
        run_folder.save(make_run(1), run)
        return load(data)

    monkeypatch.setattr(safetensors.numpy, "load", replaced_meanwhile)
    assert same(run_folder.load(run), make_run(0))
    monkeypatch.undo()
    assert same(run_folder.load(run), make_run(1))


def replacing(run: Path, times: int, watch) -> None:
    """Call `watch` repeatedly while two runs replace each other."""
    runs = [make_run(1), make_run(0)]
    trouble: list[BaseException] = []
    done = threading.Event()

    def write():
        try:
            for n in range(times):
                run_folder.save(runs[n % 2], run)
                time.sleep(2e-2)
        except BaseException as error:
            trouble.append(error)
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        while not done.is_set():
            watch()
            time.sleep(1e-4)  # give the writer a chance to run
    finally:
        writer.join()
    assert not trouble


def slowed(function, before: float = 0.0, after: float = 0.0):
    """Call `function` with pauses, so that other threads run in between."""

    def wrapped(*args, **keywords):
        time.sleep(before)
        result = function(*args, **keywords)
        time.sleep(after)
        return result

    return wrapped


def test_load_during_save_sees_one_whole_run(run, monkeypatch):
    """100 times; a missing folder or file fails the test."""
    runs = [make_run(0), make_run(1)]
    loaded = [0, 0]
    monkeypatch.setattr(manifest, "_open_plain", slowed(manifest._open_plain, before=2e-4))

    def watch():
        os.stat(run)
        seen = run_folder.load(run)
        (which,) = [n for n, one in enumerate(runs) if same(seen, one)]
        loaded[which] += 1
        assert run_folder.summarize(run).meta in [one.meta for one in runs]

    replacing(run, 100, watch)
    assert min(loaded) > 3


LOOK = """
import os, sys
looks = 0
print("looking", flush=True)
while not os.path.exists(sys.argv[2]):
    os.stat(sys.argv[1])
    looks += 1
print(looks)
"""


def test_save_keeps_the_folder_present_at_every_moment(run, tmp_path, monkeypatch):
    """Another process checks all the time; it fails if the folder is missing once."""
    monkeypatch.setattr(os, "rename", slowed(os.rename, after=2e-3))
    words = [sys.executable, "-S", "-c", LOOK, str(run), str(tmp_path / "done")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as look:
        try:
            assert look.stdout.readline() == "looking\n"
            for n in range(100):
                run_folder.save(make_run(n % 2), run)
        finally:
            (tmp_path / "done").touch()
        out, err = look.communicate(timeout=60)
    assert (look.returncode, err) == (0, "")
    assert int(out) > 1000


@pytest.mark.usefixtures("without_exchange")
def test_load_during_save_without_exchange_sees_no_mixture(run):
    runs = [make_run(0), make_run(1)]
    loaded, messages = 0, set()

    def watch():
        nonlocal loaded
        try:
            seen = run_folder.load(run)
        except InputError as error:  # in the moment between two renames
            messages.add(str(error))
            return
        loaded += 1
        assert any(same(seen, one) for one in runs)

    replacing(run, 30, watch)
    assert loaded
    assert all("is not a run folder" in text or "is missing" in text for text in messages)


def test_load_gives_up_on_a_run_that_is_replaced_all_the_time(run, monkeypatch):
    tries = 0

    def always(source, handle):
        nonlocal tries
        tries += 1
        return True

    (run / "meta.json").unlink()
    monkeypatch.setattr(manifest, "_is_replaced", always)
    assert "meta.json: is missing" in refusal(run)
    assert 1 < tries < 100


# --- configs -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "lr: !!python/object/apply:os.system ['touch {canary}']",
        "!!python/object/apply:pathlib.Path.touch [{canary}]",
        "model = '!!python/object/apply:os.system [touch {canary}]'",
        "model = \"__import__('os').system('touch {canary}')\"",
        "[model]\nclass_path = 'os.system'\ninit_args = {{command = 'touch {canary}'}}",
        "[class_path]\nos = 'system'",
        'lr = "$(touch {canary})"',
        "loss_options = \"rho=__import__('os').system('touch {canary}')\"",
    ],
)
def test_train_config_never_creates_objects(text, tmp_path, capsys):
    canary, config = tmp_path / "canary", tmp_path / "config.toml"
    config.write_text(text.format(canary=canary), encoding="utf-8")
    events = tmp_path / "events.csv"
    events.write_text("user,item\na,x\nb,y\na,y\n", encoding="utf-8")
    try:
        code = cli.main(
            [
                "train",
                "--recipe=none",
                str(events),
                "--config",
                str(config),
                "--out",
                str(tmp_path / "r"),
            ]
        )
    except SystemExit as left:
        code = left.code
    message = capsys.readouterr().err
    assert code == 2
    assert "error:" in message.splitlines()[-1]
    assert "Traceback" not in message
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.toml", "events.csv"]
