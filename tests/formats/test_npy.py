"""`.npy`: what numpy writes comes back, and nothing else does."""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_np
from numpy.lib import format as npy_format

from asyncfeed.errors import Corrupt, StoreError
from asyncfeed.formats.base import Header
from asyncfeed.formats.npy import npy, parse_header
from asyncfeed.reading.file import Bytes, File

FILE = File("a.npy")


def saved(array: Any, version: tuple[int, int] | None = None, allow_pickle: bool = False) -> Bytes:
    out = BytesIO()
    npy_format.write_array(out, np.asanyarray(array), version=version, allow_pickle=allow_pickle)
    return np.frombuffer(bytearray(out.getvalue()), np.uint8)


def made(header: str, body: bytes = b"", version: int = 1) -> Bytes:
    """Return a file with this header, whatever it says."""
    text = header.encode("utf-8") + b"\n"
    length = len(text).to_bytes(2 if version == 1 else 4, "little")
    return np.frombuffer(bytearray(b"\x93NUMPY" + bytes([version, 0]) + length + text + body), np.uint8)


DTYPES = st.one_of(
    st_np.boolean_dtypes(),
    st_np.integer_dtypes(endianness="?"),
    st_np.unsigned_integer_dtypes(endianness="?"),
    st_np.floating_dtypes(endianness="?"),
    st_np.complex_number_dtypes(endianness="?"),
    st_np.datetime64_dtypes(endianness="?"),
    st_np.byte_string_dtypes(min_len=1),
    st_np.unicode_string_dtypes(endianness="?", min_len=1),
    st_np.array_dtypes(),
)


@pytest.mark.filterwarnings("ignore:Stored array in format")  # numpy's advice when it writes versions 2 and 3
@given(
    array=st_np.arrays(DTYPES, st_np.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)),
    fortran=st.booleans(),
    version=st.sampled_from([None, (1, 0), (2, 0), (3, 0)]),
)
def test_what_numpy_saves_comes_back_as_numpy_loads_it(
    array: np.ndarray[Any, Any], fortran: bool, version: tuple[int, int] | None
) -> None:
    if fortran:
        array = np.asfortranarray(array)
    try:
        buffer = saved(array, version)
    except UnicodeEncodeError:
        reject()  # names of fields that only version 3 can hold
    got = npy.decode(buffer, FILE)
    expected = np.load(BytesIO(buffer.tobytes()), allow_pickle=False)
    assert got.dtype == expected.dtype
    assert got.dtype.byteorder == expected.dtype.byteorder
    assert got.shape == expected.shape
    assert got.flags.f_contiguous == expected.flags.f_contiguous
    assert got.tobytes() == expected.tobytes()


def test_the_array_is_a_writable_view_of_the_buffer() -> None:
    buffer = saved(np.arange(6, dtype="f4").reshape(2, 3))
    array = npy.decode(buffer, FILE)
    assert np.shares_memory(array, buffer)
    array[1, 2] = 50
    assert npy.decode(buffer, FILE)[1, 2] == 50


def test_byte_order_is_kept() -> None:
    array = npy.decode(saved(np.array([1, 2], ">i4")), FILE)
    assert array.dtype == np.dtype(">i4")
    assert array.tolist() == [1, 2]


def test_structured_arrays_with_names_beyond_latin_1_are_version_3() -> None:
    array = np.array([(1, 2.5)], dtype=[("größe ☃", "i4"), ("w\\x", "f8")])
    buffer = saved(array, (3, 0))
    assert buffer[6] == 3
    assert npy.decode(buffer, FILE).dtype == array.dtype


def test_the_decoder_is_a_value() -> None:
    assert repr(npy) == "npy"
    assert pickle.loads(pickle.dumps(npy)) == npy


# The header


def test_a_header_says_what_follows_it() -> None:
    buffer = saved(np.zeros((2, 3), "f4", order="F"))
    assert parse_header(buffer[:128], FILE) == Header((2, 3), np.dtype("f4"), True, 128, 24)


def test_a_header_seen_before_is_not_parsed_again() -> None:
    buffer = saved(np.zeros((3, 41), "f4"))
    assert parse_header(buffer, FILE) is parse_header(buffer.copy(), File("b.npy"))


def test_a_bad_header_names_the_file_each_time() -> None:
    buffer = made("{'descr': '<f4'}")
    for name in ("a.npy", "b.npy"):
        with pytest.raises(Corrupt, match=rf"^{name} has a broken \.npy header"):
            npy.decode(buffer, File(name))


# What is not an .npy file


def test_an_empty_file_is_corrupt() -> None:
    with pytest.raises(Corrupt, match=r"a\.npy is empty"):
        npy.decode(np.empty(0, np.uint8), FILE)


@pytest.mark.parametrize("contents", [b"x", b"\x89PNG\r\n\x1a\n" + b"x" * 200, b"\x00" * 500, b"\xff" * 500])
def test_another_kind_of_file_is_corrupt(contents: bytes) -> None:
    with pytest.raises(Corrupt, match=r"a\.npy is not an \.npy file"):
        npy.decode(np.frombuffer(contents, np.uint8), FILE)


@given(cut=st.integers(0, 151))
def test_a_file_cut_short_anywhere_is_corrupt(cut: int) -> None:
    buffer = saved(np.arange(6, dtype="f4"))
    assert len(buffer) == 152
    with pytest.raises(Corrupt, match=r"a\.npy .*(empty|cut short)"):
        npy.decode(buffer[:cut], FILE)


def test_a_file_with_more_than_one_array_is_corrupt() -> None:
    twice = np.concatenate([saved(np.arange(3)), saved(np.arange(3))])
    with pytest.raises(Corrupt, match=r"24 bytes for shape \(3,\) of int64, and 176 follow .*one array per file"):
        npy.decode(twice, FILE)


def test_an_unknown_version_is_corrupt() -> None:
    buffer = saved(np.arange(3))
    buffer[6:8] = 4, 0
    buffer[10:12] = 0, 0
    with pytest.raises(Corrupt, match=r"version 4\.0, which is not known"):
        npy.decode(buffer, FILE)


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-3,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3.0,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': 3}",
        "{'descr': '<f4', 'fortran_order': 'yes', 'shape': (3,)}",
        "{'descr': '<f4', 'fortran_order': False}",
        "{'descr': 'nonsense', 'fortran_order': False, 'shape': (3,)}",
        "{'descr': __import__('os').getcwd(), 'fortran_order': False, 'shape': (3,)}",
        "(" * 5000,
        "",
        "\x00",
        "[]",
    ],
)
def test_a_header_that_describes_no_array_is_corrupt(header: str) -> None:
    with pytest.raises(Corrupt, match=r"^a\.npy has a broken \.npy header"):
        npy.decode(made(header, b"x" * 12), FILE)


@pytest.mark.parametrize(
    "header",
    [
        "secret",
        "{'secret': 1}",
        "{'descr': 'secret', 'fortran_order': False, 'shape': (3,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': 'secret'}",
    ],
)
def test_the_error_of_a_header_does_not_show_its_text(header: str) -> None:
    """Its cause does not show it, either."""
    with pytest.raises(Corrupt, match="broken") as caught:
        npy.decode(made(header), FILE)
    assert "secret" not in "".join(traceback.format_exception(caught.value))


def test_a_header_that_is_too_long_is_corrupt_and_not_evaluated() -> None:
    with pytest.raises(Corrupt, match="numpy reads at most"):
        npy.decode(made("{" + " " * 20_000 + "}"), FILE)
    with pytest.raises(Corrupt, match="numpy reads at most"):
        npy.decode(made("{" + " " * 100_000 + "}", version=2), FILE)


@pytest.mark.parametrize(
    "shape",
    ["(1000000000000,)", "(4611686018427387904, 4)", "(10000000000000000000000000,)", f"({2**62}, {2**62})"],
)
def test_a_header_that_claims_more_than_there_is_allocates_nothing(shape: str) -> None:
    with pytest.raises(Corrupt, match="the file is cut short"):
        npy.decode(made(f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}", b"x" * 12), FILE)


@pytest.mark.parametrize("shape", [(0, 10**30), (0,) * 100, (2**62, 2**62, 0)])
def test_an_empty_array_that_numpy_cannot_hold_is_corrupt(shape: tuple[int, ...]) -> None:
    with pytest.raises(Corrupt, match="makes no array"):
        npy.decode(made(f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}"), FILE)


@given(at=st.integers(0, 151), value=st.integers(0, 255))
def test_a_broken_byte_gives_an_array_or_corrupt(at: int, value: int) -> None:
    buffer = saved(np.arange(6, dtype="f4"))
    buffer[at] = value
    with suppress(Corrupt):
        assert npy.decode(buffer, FILE).nbytes == 24


# Pickles


class Canary:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return os.mkdir, (str(self.path),)


def test_objects_are_refused_and_never_unpickled(tmp_path: Path) -> None:
    canary = tmp_path / "hatched"
    buffer = saved(np.array([Canary(canary)], dtype=object), allow_pickle=True)
    before = set(sys.modules)
    with pytest.raises(
        Corrupt, match=r"a\.npy holds Python objects .*never unpickled: save it with a plain dtype"
    ):
        npy.decode(buffer, FILE)
    assert not canary.exists()
    assert set(sys.modules) == before
    np.load(BytesIO(buffer.tobytes()), allow_pickle=True)
    assert canary.exists()  # it would have


def test_objects_within_a_structure_are_refused() -> None:
    array = np.array([(1, "x")], dtype=[("a", "i4"), ("b", object)])
    with pytest.raises(StoreError, match="never unpickled"):
        npy.decode(saved(array, allow_pickle=True), FILE)
