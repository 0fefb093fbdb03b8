"""`raw`, `text` and `json`: files without structure of their own, and JSON documents."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncfeed.errors import Corrupt, PipelineError
from asyncfeed.formats.base import Decoder
from asyncfeed.formats.raw import raw
from asyncfeed.formats.text import json, text
from asyncfeed.reading.file import Bytes, File

FILE = File("a.bin")


def of(contents: bytes) -> Bytes:
    return np.frombuffer(bytearray(contents), np.uint8)


def test_a_decoder_must_say_how_it_decodes() -> None:
    with pytest.raises(NotImplementedError):
        Decoder[Any]().decode(of(b""), FILE)


# raw


def test_raw_is_a_writable_view() -> None:
    buffer = of(np.arange(6, dtype="<f4").tobytes())
    array = raw("<f4").decode(buffer, FILE)
    assert array.tolist() == [0, 1, 2, 3, 4, 5]
    assert np.shares_memory(array, buffer)
    assert array.flags.writeable


@pytest.mark.parametrize(
    ("shape", "expected"), [((2, 3), (2, 3)), ((-1, 2), (3, 2)), ((3, -1), (3, 2)), (None, (6,))]
)
def test_raw_takes_a_shape(shape: tuple[int, ...] | None, expected: tuple[int, ...]) -> None:
    assert raw("i2", shape).decode(of(bytes(12)), FILE).shape == expected


def test_raw_takes_one_number() -> None:
    assert raw("i4", ()).decode(of(b"\x07\0\0\0"), FILE) == 7


def test_raw_keeps_the_order_of_bytes() -> None:
    assert raw(">i4").decode(of(b"\0\0\0\x07"), FILE).tolist() == [7]


def test_an_empty_file_is_an_empty_array() -> None:
    assert raw("f4", (-1, 3)).decode(of(b""), FILE).shape == (0, 3)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (None, r"a\.bin has 10 bytes, which is no multiple of the 4 of one float32"),
        ((-1, 3), "no multiple of the 12 of one row of shape"),
        ((3,), r"a\.bin has 10 bytes, and shape \(3,\) of float32 takes 12"),
        ((2,), "takes 8"),
    ],
)
def test_a_file_that_does_not_fit_is_corrupt(shape: tuple[int, ...] | None, message: str) -> None:
    with pytest.raises(Corrupt, match=message):
        raw("f4", shape).decode(of(bytes(10)), FILE)


@pytest.mark.parametrize(
    ("dtype", "shape", "message"),
    [
        ("nonsense", None, "not a dtype"),
        (object, None, "no bytes of their own"),
        ("S0", None, "no bytes of their own"),
        ("f4", (-1, -1), "at most one of them -1"),
        ("f4", (0,), "at least 1"),
        ("f4", (2.0,), "at least 1"),
    ],
)
def test_a_wrong_configuration_of_raw_is_refused(dtype: Any, shape: Any, message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        raw(dtype, shape)


# text


@given(st.text())
def test_text_comes_back(contents: str) -> None:
    assert text.decode(of(contents.encode()), FILE) == contents


def test_text_takes_an_encoding() -> None:
    assert text(encoding="latin-1").decode(of(b"\xe9"), FILE) == "é"


def test_bytes_that_are_not_of_the_encoding_are_corrupt_and_located() -> None:
    with pytest.raises(Corrupt, match=r"a\.bin is not utf-8: byte 0xff at offset 3 .*text\(encoding=") as caught:
        text.decode(of(b"abc\xff"), FILE)
    assert isinstance(caught.value.__cause__, UnicodeDecodeError)


@pytest.mark.parametrize("encoding", ["klingon", "a\0b", 3])
def test_an_unknown_encoding_is_refused(encoding: Any) -> None:
    with pytest.raises(PipelineError, match="there is no encoding"):
        text(encoding=encoding)


# json


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=20))
def test_json_comes_back(document: Any) -> None:
    import json as standard

    assert json.decode(of(standard.dumps(document).encode()), FILE) == document


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (b"", r"a\.bin is not JSON: Expecting value"),
        (b'{"a": }', "line 1 column 7"),
        (b'"\xff"', r"a\.bin is not utf-8: byte 0xff at offset 1"),
        (b"[" * 100_000, "nested too deeply"),
        (b"1" * 100_000, r"a\.bin is not JSON"),
    ],
)
def test_what_is_no_json_is_corrupt(contents: bytes, message: str) -> None:
    with pytest.raises(Corrupt, match=message) as caught:
        json.decode(of(contents), FILE)
    assert caught.value.__cause__ is not None


def test_decoders_are_values() -> None:
    assert [repr(each) for each in (text, json, text(encoding="ascii"))] == [
        "text",
        "json",
        "text(encoding='ascii')",
    ]
    assert repr(raw("f4")) == "raw(dtype=dtype('float32'))"
    assert raw("f4", (2,)) == raw("<f4", [2]) != raw("f4")
    for each in (text, json, text(encoding="ascii"), raw("f4", (2,))):
        assert pickle.loads(pickle.dumps(each)) == each
