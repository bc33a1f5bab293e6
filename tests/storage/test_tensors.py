"""Reading safetensors without a copy, against the library that wrote them."""

from __future__ import annotations

import numpy as np
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from llpauc.storage.tensors import read_tensors

DTYPES = ["bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64",
          "float16", "float32", "float64"]  # fmt: skip


@given(
    shapes=st.lists(st.lists(st.integers(0, 4), max_size=3), max_size=5),
    dtypes=st.lists(st.sampled_from(DTYPES), min_size=5, max_size=5),
    seed=st.integers(0, 1000),
)
@settings(max_examples=100, deadline=None)
def test_our_reader_reads_what_the_library_writes(shapes, dtypes, seed):
    rng = np.random.default_rng(seed)
    arrays = {
        f"x{i}": rng.integers(0, 2, shape).astype(dtypes[i]) for i, shape in enumerate(shapes)
    }
    found = read_tensors(safetensors.numpy.save(arrays))
    assert set(found) == set(arrays)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        assert np.array_equal(found[name], array)
        assert found[name].shape == array.shape


@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_our_reader_takes_no_header_that_the_library_refuses(data):
    arrays = {"a": np.arange(6, dtype=np.float32), "b": np.arange(4, dtype=np.int64)}
    whole = bytearray(safetensors.numpy.save(arrays))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(whole) - 1))
        whole[place] = data.draw(st.integers(0, 255))
    end = data.draw(st.integers(0, len(whole))) if data.draw(st.booleans()) else len(whole)
    cut = bytes(whole[:end])
    try:
        found = read_tensors(cut)
    except ValueError:  # JSON and UTF-8 errors are such
        return
    expected = safetensors.numpy.load(cut)
    assert set(found) == set(expected)
    for name, array in expected.items():
        assert found[name].tobytes() == array.tobytes()
