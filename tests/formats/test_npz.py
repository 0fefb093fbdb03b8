"""`.npz`: named arrays, bounded in what they unpack to."""

from __future__ import annotations

import os
import pickle
import struct
import tracemalloc
import zipfile
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncfeed.errors import Corrupt, PipelineError
from asyncfeed.formats.npz import npz
from asyncfeed.reading.file import Bytes, File

FILE = File("a.npz")
X = np.arange(6, dtype="f4").reshape(2, 3)
Y = np.array(7)


def saved(compressed: bool = False, **arrays: Any) -> Bytes:
    out = BytesIO()
    (np.savez_compressed if compressed else np.savez)(out, **arrays)
    return np.frombuffer(bytearray(out.getvalue()), np.uint8)


def zipped(method: int, **members: bytes) -> Bytes:
    out = BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, contents in members.items():
            archive.writestr(name.replace("_npy", ".npy"), contents)
    return np.frombuffer(bytearray(out.getvalue()), np.uint8)


def of_npy(array: Any, allow_pickle: bool = False) -> bytes:
    out = BytesIO()
    np.save(out, array, allow_pickle=allow_pickle)
    return out.getvalue()


@pytest.mark.parametrize("compressed", [False, True])
def test_all_arrays_come_back_writable_in_the_order_of_the_archive(compressed: bool) -> None:
    sample = npz.decode(saved(compressed, x=X, y=Y), FILE)
    assert list(sample) == ["x", "y"]
    np.testing.assert_array_equal(sample["x"], X)
    np.testing.assert_array_equal(sample["y"], Y)
    assert all(array.flags.writeable for array in sample.values())


def test_keys_choose_arrays_and_their_order() -> None:
    sample = npz(keys=["y", "x"]).decode(saved(x=X, y=Y, z=X), FILE)
    assert list(sample) == ["y", "x"]


def test_large_arrays_come_back_whole() -> None:
    large = np.arange(700_000, dtype="i4")
    np.testing.assert_array_equal(npz.decode(saved(True, x=large), FILE)["x"], large)


def test_an_archive_without_arrays_is_an_empty_dict() -> None:
    assert npz.decode(saved(), FILE) == {}


def test_the_decoder_is_a_value() -> None:
    assert repr(npz) == "npz"
    assert repr(npz(keys=["x"], max_bytes=5)) == "npz(keys=('x',), max_bytes=5)"
    assert npz(keys=["x"]) == npz(keys=("x",)) != npz
    assert pickle.loads(pickle.dumps(npz(keys=["x"]))) == npz(keys=["x"])


@pytest.mark.parametrize(
    ("wrong", "fix"),
    [
        ({"keys": "xy"}, r"write keys=\('xy',\)"),
        ({"keys": ()}, "names of arrays"),
        ({"keys": [3]}, "names of arrays"),
        ({"max_bytes": 0}, "at least 1"),
        ({"max_bytes": True}, "whole number"),
    ],
)
def test_a_wrong_configuration_is_refused(wrong: dict[str, Any], fix: str) -> None:
    with pytest.raises(PipelineError, match=fix):
        npz(**wrong)


# What is not to be read


def test_a_missing_array_is_corrupt_and_names_those_there_are() -> None:
    with pytest.raises(Corrupt, match=r"a\.npz holds no array 'z'; it has x, y"):
        npz(keys=["z"]).decode(saved(x=X, y=Y), FILE)


def test_a_member_that_is_no_array_is_corrupt() -> None:
    buffer = zipped(zipfile.ZIP_STORED, x_npy=of_npy(X), readme=b"hello")
    with pytest.raises(Corrupt, match="holds 'readme', which is no array"):
        npz.decode(buffer, FILE)
    assert list(npz(keys=["x"]).decode(buffer, FILE)) == ["x"]


def test_a_broken_member_is_corrupt_and_named() -> None:
    with pytest.raises(Corrupt, match=r"^a\.npz\[x\.npy\] is not an \.npy file"):
        npz.decode(zipped(zipfile.ZIP_STORED, x_npy=b"x" * 200), FILE)


@pytest.mark.parametrize("contents", [b"", b"PK", b"not a zip file" * 10])
def test_a_file_that_is_no_archive_is_corrupt(contents: bytes) -> None:
    with pytest.raises(Corrupt, match=r"a\.npz is not a readable \.npz file"):
        npz.decode(np.frombuffer(contents, np.uint8), FILE)


def test_a_wrong_checksum_is_corrupt() -> None:
    buffer = saved(x=X)
    buffer[buffer.tobytes().index(X.tobytes()) + 5] ^= 1
    with pytest.raises(Corrupt, match="Bad CRC-32"):
        npz.decode(buffer, FILE)


@given(at=st.integers(0, 10_000), value=st.integers(0, 255), compressed=st.booleans())
def test_a_broken_byte_gives_arrays_or_corrupt(at: int, value: int, compressed: bool) -> None:
    buffer = saved(compressed, x=X, y=Y)
    buffer[at % len(buffer)] = value
    with suppress(Corrupt):
        npz.decode(buffer, FILE)


@given(cut=st.integers(0, 10_000))
def test_an_archive_cut_short_is_corrupt(cut: int) -> None:
    buffer = saved(x=X, y=Y)
    with pytest.raises(Corrupt, match=r"a\.npz"):
        npz.decode(buffer[: cut % len(buffer)], FILE)


def test_an_archive_that_unpacks_to_more_than_is_allowed_is_corrupt() -> None:
    buffer = saved(True, x=np.zeros(1000), y=np.zeros(10))
    with pytest.raises(Corrupt, match=r"unpacks to 8336 bytes, more than the 4000 allowed: .*max_bytes=8336"):
        npz(max_bytes=4000).decode(buffer, FILE)
    assert len(npz(keys=["y"], max_bytes=4000).decode(buffer, FILE)["y"]) == 10


def test_a_bomb_is_refused_before_it_is_unpacked() -> None:
    buffer = saved(True, x=np.zeros(25_000_000, np.uint8))
    assert len(buffer) < 30_000
    tracemalloc.start()
    try:
        with pytest.raises(Corrupt, match="unpacks to 25000128 bytes"):
            npz(max_bytes=1 << 20).decode(buffer, FILE)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("claimed", [1000, 500_000])
def test_a_bomb_that_lies_about_its_size_is_unpacked_no_further_than_it_claims(claimed: int) -> None:
    buffer = saved(True, x=np.zeros(25_000_000, np.uint8))
    honest = struct.pack("<I", 25_000_128)
    contents = buffer.tobytes().replace(honest, struct.pack("<I", claimed))
    tracemalloc.start()
    try:
        with pytest.raises(Corrupt, match=r"a\.npz"):
            npz(max_bytes=1 << 20).decode(np.frombuffer(contents, np.uint8), FILE)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_a_member_that_is_shorter_than_it_claims_is_corrupt() -> None:
    buffer = saved(True, x=X)
    contents = buffer.tobytes().replace(struct.pack("<I", 152), struct.pack("<I", 5000))
    with pytest.raises(Corrupt, match=r"a\.npz"):
        npz.decode(np.frombuffer(contents, np.uint8), FILE)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_ways_of_compression_without_a_bound_are_refused(method: int) -> None:
    with pytest.raises(Corrupt, match="in a way numpy does not use"):
        npz.decode(zipped(method, x_npy=of_npy(X)), FILE)


class Canary:
    """Leaves a directory behind when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return os.mkdir, (str(self.path),)


def test_objects_are_refused_and_never_unpickled(tmp_path: Path) -> None:
    canary = tmp_path / "hatched"
    member = of_npy(np.array([Canary(canary)], dtype=object), allow_pickle=True)
    with pytest.raises(Corrupt, match="never unpickled"):
        npz.decode(zipped(zipfile.ZIP_STORED, x_npy=member), FILE)
    assert not canary.exists()
