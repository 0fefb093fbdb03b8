"""`.safetensors`: as the library reads them, and headers that lie."""

from __future__ import annotations

import json
import pickle
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import asyncfeed as af
from asyncfeed.errors import Corrupt, PipelineError
from asyncfeed.formats.safetensors import safetensors
from asyncfeed.reading import Bytes, File, MemoryStore
from tests.formats.mutations import mutations

FILE = File("a.safetensors")
X = np.arange(6, dtype="f4").reshape(2, 3)
Y = np.array(7)


def file_of(header: Any, body: bytes = b"") -> Bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return np.frombuffer(bytearray(len(text).to_bytes(8, "little") + text + body), np.uint8)


def saved(**arrays: Any) -> Bytes:
    """Return a file as the library writes it, without the library."""
    header: dict[str, Any] = {"__metadata__": {"format": "np"}}
    body = b""
    for key, array in sorted(arrays.items(), key=lambda pair: -pair[1].dtype.itemsize):
        kind = {"f": "F", "i": "I", "u": "U", "b": "BOOL"}[array.dtype.kind]
        name = kind if kind == "BOOL" else f"{kind}{8 * array.dtype.itemsize}"
        header[key] = {"dtype": name, "shape": array.shape, "data_offsets": [len(body), len(body) + array.nbytes]}
        body += array.tobytes()
    return file_of(header, body)


ARRAYS = st.dictionaries(
    st.text(min_size=1, max_size=4).filter(lambda name: name != "__metadata__"),
    hnp.arrays(
        st.sampled_from(["?", "u1", "i1", "u2", "i2", "f2", "u4", "i4", "f4", "u8", "i8", "f8"]),
        hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
    ),
    max_size=4,
)


@settings(max_examples=100, deadline=None)
@given(ARRAYS)
def test_what_the_library_writes_comes_as_the_library_reads_it(arrays: dict[str, Any]) -> None:
    library = pytest.importorskip("safetensors.numpy")
    data = library.save({key: np.ascontiguousarray(each).reshape(each.shape) for key, each in arrays.items()})
    found, expected = af.safetensors(data), library.load(data)
    assert set(found) == set(expected)
    for key, array in expected.items():
        assert (found[key].dtype, found[key].shape) == (array.dtype, array.shape)
        assert found[key].tobytes() == array.tobytes()
        assert found[key].flags.writeable


def test_arrays_come_in_the_order_of_the_header_or_of_keys() -> None:
    assert list(af.safetensors(saved(x=X, y=Y).tobytes())) == ["y", "x"]
    found = af.safetensors(keys=["x", "y"]).decode(saved(x=X, y=Y, z=X), FILE)
    assert list(found) == ["x", "y"]
    np.testing.assert_array_equal(found["x"], X)
    assert found["y"] == 7


def test_bfloat16_and_float8_come_with_ml_dtypes(monkeypatch: pytest.MonkeyPatch) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    header = {
        "x": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]},
        "y": {"dtype": "F8_E4M3", "shape": [1], "data_offsets": [4, 5]},
    }
    data = file_of(header, np.array([1, -2], ml_dtypes.bfloat16).tobytes() + b"\x38")
    found = safetensors.decode(data, FILE)
    assert (found["x"].dtype, found["y"].dtype) == (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn)
    assert (found["x"].tolist(), found["y"].tolist()) == ([1, -2], [1])
    monkeypatch.setitem(__import__("sys").modules, "ml_dtypes", None)
    with pytest.raises(PipelineError, match=r"needs ml_dtypes.*pip install 'asyncfeed\[safetensors\]'"):
        safetensors.decode(data, FILE)


@pytest.mark.parametrize("keys", [None, ("x",), ("z", "x")])
def test_files_that_are_alike_are_read_straight_into_the_batch(tmp_path: Path, keys: Any) -> None:
    draw = np.random.default_rng(0)
    samples = [{"x": draw.random((2, 3)), "y": np.arange(3) + each, "z": np.array(each)} for each in range(7)]
    for number, sample in enumerate(samples):
        (tmp_path / f"{number}.safetensors").write_bytes(saved(**sample).tobytes())
    files = af.files(str(tmp_path / "*.safetensors"))
    with files.load(af.safetensors(keys=keys)).batch(3).open() as feed:
        batches = list(feed)
        assert not dict(feed.stats().slow_paths)
    for key in keys or ("x", "y", "z"):
        expected = np.stack([sample[key] for sample in samples])
        np.testing.assert_array_equal(np.concatenate([batch[key] for batch in batches]), expected)


def test_a_file_that_is_laid_out_differently_is_found_in_the_batch() -> None:
    """The slow path reads the batch, and gives the same error as without a batch."""
    store = MemoryStore({"a": saved(x=X).tobytes(), "b": saved(x=X, y=Y).tobytes()})
    with pytest.raises(ValueError, match="b"):
        list(af.items(store.files()).load(af.safetensors).batch(2))
    both = list(af.items(store.files()).load(af.safetensors(keys=["x"])).batch(2))
    np.testing.assert_array_equal(both[0]["x"], [X, X])


def entry(dtype: str = "F32", shape: Any = (1,), offsets: Any = (0, 4), **more: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets, **more}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is not a safetensors file"),
        (b"\1\0\0\0\0\0\0\0", "has a header of 1 bytes, and 0 follow"),
        (b"no safetensors file", "is not a safetensors file"),
        (file_of({"x": entry()}, bytes(4))[:20], "has a header of .* it is cut short"),
        (file_of(b"{\xff}"), "is not JSON"),
        (file_of(b'{"x": ' + b"[" * 100_000), "is not JSON"),
        (file_of(b'{"x": 1, "x": 1}'), "names an array twice"),
        (file_of({"x": 1}), "does not describe the array 'x' by data_offsets, dtype, shape"),
        (file_of({"x": entry(more=1)}, bytes(4)), "does not describe the array"),
        (file_of({"x": entry(dtype="F31")}, bytes(4)), "of dtype 'F31'"),
        (file_of({"x": entry(dtype=[])}, bytes(4)), "of dtype"),
        (file_of({"x": entry(shape=[-1])}, bytes(4)), "with shape"),
        (file_of({"x": entry(shape=[True])}, bytes(4)), "with shape"),
        (file_of({"x": entry(shape=[1] * 33)}, bytes(4)), "with shape"),
        (file_of({"x": entry(shape=[0, 2**62, 2**62], offsets=[0, 0])}), "with shape"),
        (file_of({"x": entry(shape=[2])}, bytes(4)), "has 4 bytes for the array 'x', which takes 8"),
        (file_of({"x": entry(offsets=[4, 0])}, bytes(4)), "has -4 bytes for the array"),
        (file_of({"x": entry(offsets=[0, 4.0])}, bytes(4)), "with shape"),
        (file_of({"x": entry(offsets=[4, 8])}, bytes(8)), "has the array 'x' at byte"),
        (file_of({"x": entry(), "y": entry(offsets=[2, 6])}, bytes(6)), "has the array 'y' at byte"),
        (file_of({"x": entry(), "y": entry()}, bytes(4)), "has the array 'y' at byte"),
        (file_of({"x": entry()}, bytes(3)), "the file is cut short"),
        (file_of({"x": entry()}, bytes(5)), "the file is longer"),
        (file_of({"x": entry(shape=[2**40], offsets=[0, 2**42])}, bytes(5)), "the file is cut short"),
    ],
)
@pytest.mark.parametrize("way", ["decode", "layout"])
def test_a_header_that_does_not_fit_is_corrupt(data: Any, message: str, way: str) -> None:
    buffer = np.frombuffer(bytearray(data), np.uint8) if isinstance(data, bytes) else data
    with pytest.raises(Corrupt, match=rf"^a\.safetensors .*{message}"):
        getattr(safetensors, way)(buffer, FILE)


def test_a_missing_array_is_corrupt_and_names_those_there_are() -> None:
    with pytest.raises(Corrupt, match=r"holds no array 'z'; it has y, x"):
        af.safetensors(keys=["z"]).decode(saved(x=X, y=Y), FILE)


def test_ten_thousand_mutations_give_arrays_that_lie_in_the_file_or_corrupt() -> None:
    data = saved(x=X, y=Y, z=np.arange(5, dtype="u1")).tobytes()
    for mutated in mutations(data, 10_000, bytes_of=b'0123456789[]{},:"'):
        buffer = np.frombuffer(bytearray(mutated), np.uint8)
        with suppress(Corrupt, PipelineError):
            found = safetensors.decode(buffer, FILE)
            assert sum(each.nbytes for each in found.values()) <= len(buffer)
            assert all(each.size == each.copy().size for each in found.values())


def test_it_is_a_value_and_refuses_what_means_nothing() -> None:
    assert pickle.loads(pickle.dumps(safetensors(keys=["x"]))) == safetensors(keys=("x",)) != safetensors
    assert repr(safetensors(keys=["x"])) == "safetensors(keys=('x',))"
    for wrong, message in {"x": r"write keys=\('x',\)", (): "names of arrays", (3,): "names of arrays"}.items():
        with pytest.raises(PipelineError, match=message):
            safetensors(keys=wrong)  # type: ignore[arg-type]
