"""Made-up files for the readers, for `--config` and for run folders, and what must hold of each.

Whatever the bytes, there is a result or one line; never a traceback. tests/system/test_fuzz.py
tries some
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


def try_many(check, strategy, examples: int) -> Outcomes:
    """Run `check` on so many examples; how often each outcome came."""
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


def one_line(error: Exception) -> str:
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
    """A good file with some bytes changed, cut out or put in."""
    data = bytearray(draw(st.sampled_from(_good_files())))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(len(data) - 1, 0)))
        what = draw(st.sampled_from(["flip", "cut", "put", "end"]))
        if what == "flip" and data:
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif what == "cut":
            del data[at : at + draw(st.integers(1, 30))]
        elif what == "put":
            data[at:at] = draw(st.binary(max_size=8))
        else:
            del data[at:]
    return bytes(data)


TABLES = st.tuples(
    st.lists(_PIECES, max_size=14).map(b"".join) | st.binary(max_size=200) | _damaged(),
    _NAMES | st.just("e"),
    st.just({}) | st.just({"bad_rows": "skip"}) | _OPTIONS,
)


def check_table(example) -> str:
    """Read, or refused in a line; nothing is left beside it; no row is lost without a word."""
    content, name, options = example
    with tempfile.TemporaryDirectory(dir=_quick_disk()) as folder:
        path = Path(folder) / name
        path.write_bytes(content)
        try:
            reading = read_interactions(path, **options)
        except InputError as error:
            return one_line(error)
        finally:
            assert [left.name for left in Path(folder).iterdir()] == [name]
        assert path.read_bytes() == content
    events = reading.interactions
    if reading.format != "adjacency":  # which counts lines
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
    """Written by us, read by us; what is text stays text, and nobody becomes somebody else."""
    pairs, format = example
    users, items = (list(column) for column in zip(*pairs, strict=True))
    with tempfile.TemporaryDirectory(dir=_quick_disk()) as place:
        write_split(Split(Interactions.of(users, items)), Path(place) / "parts", format)
        back = read_split(Path(place) / "parts").train
    assert list(back.user_ids.ids(back.users)) == users
    assert list(back.item_ids.ids(back.items)) == items
    return "same"


# --- configs --------------------------------------------------------------------------------------

_KEYS = st.sampled_from(
    ["model", "loss", "alpha", "beta", "lr", "epochs", "dimensions", "negatives", "batch_size",
     "sampler", "seed", "hold_out", "refit", "metrics", "device", "score", "item_bias", "recipe",
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
    folder = _place()
    pairs = [(u, i) for u in range(12) for i in range(9) if (u * 7 + i * 3) % 4]
    text = "user,item\n" + "".join(f"u{u},i{i}\n" for u, i in pairs)
    (folder / "events.csv").write_text(text)
    return folder


def check_config(content: bytes) -> str:
    """A dry run of `llpauc train` with this config: exit 0, or 2 and one line; nothing written."""
    folder = _events()
    config = folder / "config.toml"
    config.write_bytes(content)
    said, out = io.StringIO(), io.StringIO()
    words = ["train", str(folder / "events.csv"), "--config", str(config)]
    words += ["--out", str(folder / "run"), "--dry-run"]
    with redirect_stderr(said), redirect_stdout(out):
        try:
            code = main(words)
        except SystemExit as left:
            code = int(left.code or 0)
    assert code in (0, 2), (code, said.getvalue())
    if code:
        assert "error: " in said.getvalue().splitlines()[-1], said.getvalue()
    assert "Traceback" not in said.getvalue()
    assert {path.name for path in folder.iterdir()} == {"events.csv", "config.toml"}
    return "taken" if code == 0 else "refused"


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
    st.booleans(),  # with a manifest that fits, as somebody hostile would write it
)


@cache
def _whole_run() -> Path:
    folder = _place() / "run"
    tensors = {"x": np.arange(12, dtype=np.float32), "y": np.zeros((2, 3), np.int64)}
    ids = pa.array(["a", "b"])
    run_folder.save(SavedRun(tensors, ids, ids, {"n": 1}, {"notes.txt": "x"}), folder)
    return folder


def check_run(example) -> str:
    """Loaded as it was, or refused in a line."""
    name, how, at, data, value, forged = example
    with tempfile.TemporaryDirectory(dir=_quick_disk()) as place:
        run = Path(shutil.copytree(_whole_run(), Path(place) / "run"))
        whole = (run / name).read_bytes()
        changed = bytearray(whole)
        if how == "flip":
            changed[at % len(changed)] ^= 1 << at % 8
        elif how == "cut":
            del changed[at % len(changed) :]
        elif how == "bytes":
            changed[at % len(changed) : at % len(changed) + len(data)] = data
        elif how == "json":
            changed = bytearray(json.dumps(value).encode())
        (run / name).write_bytes(changed)
        if how in ("entry", "format") or (forged and name != "manifest.json"):
            manifest = json.loads((_whole_run() / "manifest.json").read_text())
            if how == "entry":
                manifest["files"][name] = value
            elif how == "format":
                manifest["format"] = value
            else:
                manifest["files"][name] = {
                    "sha256": hashlib.sha256(changed).hexdigest(), "bytes": len(changed)
                }  # fmt: skip
            del manifest["sha256"]
            seal = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
            (run / "manifest.json").write_text(json.dumps({**manifest, "sha256": seal}))
        try:
            run_folder.load(run)
        except InputError as error:
            return one_line(error)
        finally:
            assert [left.name for left in Path(place).iterdir()] == ["run"]
        # What was loaded is what was saved, or what somebody says was.
        assert bytes(changed) == whole or forged
        return "loaded"


_PLACES: list[tempfile.TemporaryDirectory[str]] = []  # removed when the process ends


def _place() -> Path:
    _PLACES.append(tempfile.TemporaryDirectory(dir=_quick_disk(), prefix="llpauc-fuzz-"))
    return Path(_PLACES[-1].name)


def _quick_disk() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


CHECKS = {
    "tables": (check_table, TABLES),
    "configs": (check_config, CONFIGS),
    "runs": (check_run, RUNS),
}
