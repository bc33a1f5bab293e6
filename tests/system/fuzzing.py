"""Generated files for the readers, for `--config` and for run folders, and checks of each.

Any bytes give a result or a one-line error, never a traceback. tests/system/test_fuzz.py runs some
hundreds of each, tests/system/faults/test_fuzz.py ten thousand.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shutil
import tempfile
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llpauc.cli import main
from llpauc.data.formats import FORMATS
from llpauc.data.interactions import Interactions, Split
from llpauc.data.readers import read_interactions, read_split
from llpauc.data.writers import write_split
from llpauc.errors import InputError
from llpauc.storage import run_folder
from llpauc.storage.run_folder import SavedRun

Outcomes = Counter[str]


def count_outcomes(check, strategy, examples: int) -> Outcomes:
    """Run `check` on the given number of examples, and count its outcomes."""
    outcomes: Outcomes = Counter()

    @settings(
        max_examples=examples, deadline=None, database=None, derandomize=True,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(strategy)
    def run(example) -> None:
        outcomes[check(example)] += 1

    run()
    return outcomes


def check_one_line(error: Exception) -> str:
    text = str(error)
    assert text
    assert "\n" not in text, text
    assert len(text) < 2000, len(text)
    return "refused"


# --- tables ---------------------------------------------------------------------------------------

_PIECES = st.sampled_from(
    [b"user,item\n", b"user\titem\n", b"1,2\n", b"a\tb\n", b'"', b'""', b",", b"\t", b"\n", b"\r\n",
     b"\r", b"\0", b"\xff", b"\xe9", b"\xef\xbb\xbf", b"::", b"|", b";", b" ", b"NaN", b"-1",
     b"1e999", b"2024-01-31", b"18446744073709551623", b"=cmd()", "👩‍👩‍👧".encode(), b"{", b"}",
     b'{"user": 1}\n', b'{"user": "a", "item": "b", "rating": 3}\n', b"[", b"PAR1", b"\x1f\x8b",
     b"PK\x03\x04", b"x" * 5000, b"user,item,rating,timestamp\n", b"1,2,3,4\n",
     b"1,2,x,2020-01-01\n", b"3,4,5\n", b"\\", b"'"]
)  # fmt: skip
_NAMES = st.sampled_from(
    ["e.csv", "e.tsv", "e.txt", "e.inter", "u.data", "ratings.dat", "e.parquet", "e.jsonl", "e",
     "e.csv.gz"]
)  # fmt: skip
_COLUMN = st.none() | st.sampled_from(["user", "item", "rating", "0", "1", "none", "", "é"]) | (
    st.integers(-2, 5)
)  # fmt: skip
_OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "user": _COLUMN,
        "item": _COLUMN,
        "rating": _COLUMN,
        "timestamp": _COLUMN,
        "format": st.sampled_from(list(FORMATS)),
        "header": st.booleans(),
        "delimiter": st.sampled_from([",", "\t", ";", "|", "::", " ", "tab", '"', "é", "\n", ""]),
        "bad_rows": st.sampled_from(["error", "skip"]),
    },
)


@cache
def _good_files() -> list[bytes]:
    rng = np.random.default_rng(0)
    rows = [(f"u{u}", f"i{i}", int(r)) for u, i, r in rng.integers(0, 9, (40, 3)).tolist()]
    text = "user,item,rating\n" + "".join(f"{u},{i},{r}\n" for u, i, r in rows)
    sink = io.BytesIO()
    users, items, ratings = (list(column) for column in zip(*rows, strict=True))
    pq.write_table(pa.table({"user": users, "item": items, "rating": ratings}), sink)
    lines = "".join(json.dumps({"user": u, "item": i, "stars": r}) + "\n" for u, i, r in rows)
    return [text.encode(), gzip.compress(text.encode(), mtime=0), sink.getvalue(), lines.encode()]


@st.composite
def _damaged(draw) -> bytes:
    """A valid file with some bytes changed, removed or inserted."""
    data = bytearray(draw(st.sampled_from(_good_files())))
    for _ in range(draw(st.integers(1, 4))):
        position = draw(st.integers(0, max(len(data) - 1, 0)))
        change = draw(st.sampled_from(["flip", "cut", "put", "end"]))
        if change == "flip" and data:
            data[position] ^= 1 << draw(st.integers(0, 7))
        elif change == "cut":
            del data[position : position + draw(st.integers(1, 30))]
        elif change == "put":
            data[position:position] = draw(st.binary(max_size=8))
        else:
            del data[position:]
    return bytes(data)


TABLES = st.tuples(
    st.lists(_PIECES, max_size=14).map(b"".join) | st.binary(max_size=200) | _damaged(),
    _NAMES | st.just("e"),
    st.just({}) | st.just({"bad_rows": "skip"}) | _OPTIONS,
)


def check_table(example) -> str:
    """Read, or refused in one line; no other file is written, and no row is dropped silently."""
    content, name, options = example
    with tempfile.TemporaryDirectory(dir=_memory_folder()) as folder:
        path = Path(folder) / name
        path.write_bytes(content)
        try:
            reading = read_interactions(path, **options)
        except InputError as error:
            return check_one_line(error)
        finally:
            assert [entry.name for entry in Path(folder).iterdir()] == [name]
        assert path.read_bytes() == content
    events = reading.interactions
    if reading.format != "adjacency":  # adjacency lists count lines
        assert reading.rows_read == len(events) > 0
    assert reading.rows_rejected == 0 or options["bad_rows"] == "skip"
    assert "" not in list(events.user_ids)
    for values in (events.ratings, events.timestamps):
        assert values is None or np.isfinite(values).all()
    return "read"


# --- ids ------------------------------------------------------------------------------------------

HOSTILE = [
    "NaN", "nan", "null", "None", "007", "7", "1.0", "1", "-1", str(2**64 + 7), "x" * 10_000, " ",
    " a", "a ", "\n", "\r\n", "a\rb", "\t", '"', '""', "'", ",", ";", "\\", "=cmd()", "\ufeff",
    "e\u0301", "\u00e9", "👩‍👩‍👧", "\u202eabc", "\u2028", "\x85", "-", "0", "--out", "../x", "%00",
    "<b>", "user", "item",
]  # fmt: skip
_IDS = st.sampled_from(HOSTILE) | st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=30
)
ID_TABLES = st.tuples(
    st.lists(st.tuples(_IDS, _IDS), min_size=1, max_size=6),
    st.sampled_from(["csv", "tsv", "parquet", "inter"]),
)


def check_ids(example) -> str:
    """Ids are unchanged after `write_split` and `read_split`."""
    pairs, format = example
    users, items = (list(column) for column in zip(*pairs, strict=True))
    with tempfile.TemporaryDirectory(dir=_memory_folder()) as folder_name:
        write_split(Split(Interactions.of(users, items)), Path(folder_name) / "parts", format)
        read = read_split(Path(folder_name) / "parts").train
    assert list(read.user_ids.ids(read.users)) == users
    assert list(read.item_ids.ids(read.items)) == items
    return "same"


# --- configs --------------------------------------------------------------------------------------

_KEYS = st.sampled_from(
    ["model", "loss", "alpha", "beta", "lr", "epochs", "dimensions", "negatives", "batch_size",
     "sampler", "seed", "hold_out", "how", "refit", "metrics", "device", "score", "item_bias",
     "recipe",
     "loss_options", "valid_metric", "patience", "propagation_interval", "init",
     "cold_users", "half_life", "json",
     "dry_run", "checkpoint_every", "resume", "bad_rows", "delimiter", "user", "header",
     "batch-size", "class_path", "init_args", "config", "help", "print_config",
     "__class__", "", "é", "path", "x"]
)  # fmt: skip
_SCALARS = (
    st.sampled_from(["mf", "lightgcn", "llpauc", "bpr", "cpu", "cosine", "all", "5m", "recall@20",
                     "os.system", "!!python/object", "$(id)", "{}", "null", "1", "a=b", "@x"])
    | st.text(max_size=12)
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.booleans()
)  # fmt: skip
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=3),
    max_leaves=6,
)


def as_toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {as_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(as_toml, value)) + "]"
    if isinstance(value, str):
        return json.dumps(value)
    return repr(value)


CONFIGS = (
    st.dictionaries(_KEYS, _SCALARS, max_size=4).map(
        lambda keys: "\n".join(f"{json.dumps(k)} = {as_toml(v)}" for k, v in keys.items()).encode()
    )
    | st.dictionaries(_KEYS, _VALUES, max_size=4).map(
        lambda keys: "\n".join(f"{json.dumps(k)} = {as_toml(v)}" for k, v in keys.items()).encode()
    )
    | st.binary(max_size=60)
    | st.text(st.sampled_from('a="[]{}.\n #1\\'), max_size=40).map(str.encode)
)


@cache
def _events() -> Path:
    folder = _temporary_folder()
    pairs = [(u, i) for u in range(12) for i in range(9) if (u * 7 + i * 3) % 4]
    text = "user,item\n" + "".join(f"u{u},i{i}\n" for u, i in pairs)
    (folder / "events.csv").write_text(text)
    return folder


def check_config(content: bytes) -> str:
    """A dry run of `llpauc train` with this config: exit 0, or 2 and one line; nothing written."""
    folder = _events()
    config = folder / "config.toml"
    config.write_bytes(content)
    stderr, out = io.StringIO(), io.StringIO()
    words = ["train", "--recipe=none", str(folder / "events.csv"), "--config", str(config)]
    words += ["--out", str(folder / "run"), "--dry-run"]
    with redirect_stderr(stderr), redirect_stdout(out):
        try:
            code = main(words)
        except SystemExit as error:
            code = int(error.code or 0)
    assert code in (0, 2), (code, stderr.getvalue())
    if code:
        assert "error: " in stderr.getvalue().splitlines()[-1], stderr.getvalue()
    assert "Traceback" not in stderr.getvalue()
    assert {path.name for path in folder.iterdir()} == {"events.csv", "config.toml"}
    return "accepted" if code == 0 else "refused"


# --- run folders ----------------------------------------------------------------------------------

FILES = ("manifest.json", "meta.json", "tensors.safetensors", "users.parquet", "notes.txt")
_WORDS = st.sampled_from([*FILES, "kind", "format", "files", "sha256", "bytes", "../x"])
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(_WORDS | st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
RUNS = st.tuples(
    st.sampled_from(FILES),
    st.sampled_from(["flip", "cut", "bytes", "json", "entry", "format"]),
    st.integers(0, 10**6),
    st.binary(max_size=60),
    _JSON,
    st.booleans(),  # whether the manifest is changed to match, as an attacker would do
)


@cache
def _saved_run() -> Path:
    folder = _temporary_folder() / "run"
    tensors = {"x": np.arange(12, dtype=np.float32), "y": np.zeros((2, 3), np.int64)}
    ids = pa.array(["a", "b"])
    run_folder.save(SavedRun(tensors, ids, ids, {"n": 1}, {"notes.txt": "x"}), folder)
    return folder


def check_run(example) -> str:
    """Loaded unchanged, or refused in one line."""
    name, how, position, data, value, manifest_matches = example
    with tempfile.TemporaryDirectory(dir=_memory_folder()) as folder_name:
        run = Path(shutil.copytree(_saved_run(), Path(folder_name) / "run"))
        original = (run / name).read_bytes()
        changed = bytearray(original)
        if how == "flip":
            changed[position % len(changed)] ^= 1 << position % 8
        elif how == "cut":
            del changed[position % len(changed) :]
        elif how == "bytes":
            changed[position % len(changed) : position % len(changed) + len(data)] = data
        elif how == "json":
            changed = bytearray(json.dumps(value).encode())
        (run / name).write_bytes(changed)
        if how in ("entry", "format") or (manifest_matches and name != "manifest.json"):
            manifest = json.loads((_saved_run() / "manifest.json").read_text())
            if how == "entry":
                manifest["files"][name] = value
            elif how == "format":
                manifest["format"] = value
            else:
                manifest["files"][name] = {
                    "sha256": hashlib.sha256(changed).hexdigest(), "bytes": len(changed)
                }  # fmt: skip
            del manifest["sha256"]
            checksum = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
            (run / "manifest.json").write_text(json.dumps({**manifest, "sha256": checksum}))
        try:
            run_folder.load(run)
        except InputError as error:
            return check_one_line(error)
        finally:
            assert [entry.name for entry in Path(folder_name).iterdir()] == ["run"]
        # The loaded run is the saved one, or one with a matching manifest.
        assert bytes(changed) == original or manifest_matches
        return "loaded"


_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []  # removed when the process ends


def _temporary_folder() -> Path:
    _FOLDERS.append(tempfile.TemporaryDirectory(dir=_memory_folder(), prefix="llpauc-fuzz-"))
    return Path(_FOLDERS[-1].name)


def _memory_folder() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


CHECKS = {
    "tables": (check_table, TABLES),
    "configs": (check_config, CONFIGS),
    "runs": (check_run, RUNS),
}
