"""Decoders called with bytes that were fetched elsewhere, and what they say of bytes that are wrong."""

from __future__ import annotations

import io
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncfeed as af
from asyncfeed.errors import Corrupt


def npy(array: np.ndarray) -> bytes:
    """Return an array as numpy saves it."""
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def npz(**arrays: np.ndarray) -> bytes:
    """Return arrays as numpy saves them."""
    out = io.BytesIO()
    np.savez_compressed(out, **arrays)
    return out.getvalue()


ARRAY = np.arange(6, dtype=np.float32).reshape(2, 3)
KINDS = [bytes, bytearray, memoryview, lambda data: np.frombuffer(data, np.uint8), lambda data: gap(data)]


def gap(data: bytes) -> memoryview:
    """Return the bytes as a view that takes every second one of its memory."""
    wide = bytearray(2 * len(data))
    wide[::2] = data
    return memoryview(wide)[::2]


@pytest.mark.parametrize("kind", KINDS)
def test_a_decoder_is_called_with_bytes_of_every_kind(kind: Any) -> None:
    """It returns the sample, which is the caller's own."""
    data = kind(npy(ARRAY))
    found = af.npy(data)
    assert found.dtype == ARRAY.dtype
    assert found.tolist() == ARRAY.tolist()
    found[:] = 0
    assert af.npy(data).tolist() == ARRAY.tolist()
    assert af.raw("<f4", (-1, 3))(kind(ARRAY.tobytes())).tolist() == ARRAY.tolist()
    assert af.npz(kind(npz(a=ARRAY, b=ARRAY)))["b"].tolist() == ARRAY.tolist()
    assert list(af.npz(keys=["b"])(kind(npz(a=ARRAY, b=ARRAY)))) == ["b"]
    assert af.text(kind(b"h\xc3\xa9")) == "hé"
    assert af.text(encoding="latin-1")(kind(b"h\xe9")) == "hé"
    assert af.json(kind(b'{"a": [1]}')) == {"a": [1]}


def test_decoders_are_functions_for_map() -> None:
    """Whoever fetches by himself decodes on the pipeline's threads."""
    train = af.items([npy(ARRAY), npy(ARRAY + 1)]).map(af.npy).batch(2)
    assert [batch[:, 0, 0].tolist() for batch in train] == [[0, 1]]


def test_decoders_are_still_configured_by_name() -> None:
    """A call with options makes a decoder; the bytes come without a name."""
    assert af.npz(keys=["a"]) == af.npz(keys=("a",)) != af.npz
    assert af.text(encoding="utf-8") == af.text
    assert pickle.loads(pickle.dumps(af.npz(max_bytes=7))) == af.npz(max_bytes=7)


@pytest.mark.parametrize("decoder", [af.npy, af.npz, af.json, af.text, af.raw("u1")])
def test_what_is_no_bytes_is_refused(decoder: Any) -> None:
    """A path is not opened, nor a file: the line to write is named."""
    with pytest.raises(TypeError, match=r"takes the bytes of a file, not a File: write files\(...\).load"):
        decoder(af.File("a.npy"))
    with pytest.raises(
        TypeError, match=r"bytearray or memoryview\), not str; to read files write files\(...\).load"
    ):
        decoder("a.npy")


def test_bytes_that_are_wrong_are_named_as_bytes() -> None:
    """There is no file to name."""
    with pytest.raises(Corrupt, match="<bytes> is empty, where an .npy file was expected"):
        af.npy(b"")


@pytest.mark.parametrize("data", [b"\0" * 8, bytearray(8), memoryview(bytes(8)), np.zeros(8), af.File("secret")])
def test_raw_with_the_bytes_in_the_place_of_the_dtype_is_refused(data: Any) -> None:
    """The dtype comes first."""
    with pytest.raises(af.PipelineError, match=r"raw: the dtype comes first.*raw\('float32'\)\(data\)"):
        af.raw(data)


SECRET = "hunter2-hunter2"


@pytest.mark.parametrize("decoder", [af.npy, af.npz, af.json, af.text, af.raw("u4", (2,)), af.npz(keys=["a"])])
@pytest.mark.parametrize(
    "data",
    [
        SECRET.encode(),
        f'{{"a": {SECRET}}}'.encode(),
        f'{{"a": "{SECRET}'.encode(),
        f'"{SECRET}"\n"{SECRET}"'.encode(),
        f'{{"a": "\\q{SECRET}"}}'.encode(),
        SECRET.encode() + b"\xff",
        b"\x93NUMPY\1\0\x14\0" + SECRET.encode() + b"     ",
        b"\x93NUMPY\1\0\x20\0{'descr': '" + SECRET.encode() + b"'}      ",
        b"\x93NUMPY\1\0\x38\0" + f"{{'descr': '{SECRET}', 'shape': (), 'fortran_order': 1}}".ljust(56).encode(),
        b"PK\3\4" + SECRET.encode(),
    ],
)
def test_no_message_shows_what_is_in_a_file(decoder: Any, data: bytes) -> None:
    """It may be a secret, and messages go into logs: the cause's message, too."""
    try:
        decoder(data)
    except Corrupt as error:
        seen: BaseException | None = error
        while seen is not None:
            assert SECRET[:6] not in str(seen)
            seen = seen.__cause__


def test_json_lines_are_recognised(tmp_path: Path) -> None:
    """With the line to write, which works."""
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n{"a": 2}\n')
    files = af.files(path)
    with pytest.raises(Corrupt, match=r"rows.jsonl is not one JSON document: .* line 2.*flat_map\(json_lines\)"):
        list(files.load(af.json))
    assert list(files.flat_map(af.json_lines)) == [{"a": 1}, {"a": 2}]
    with pytest.raises(Corrupt, match="is not JSON: Extra data at line 1 column 3"):
        af.json(b"1 2")


@pytest.mark.parametrize(
    ("start", "kind"),
    [
        (npz(a=ARRAY), r"a zip archive: for .npz files write load\(npz\)"),
        (b"\x89PNG\r\n\x1a\n" + bytes(99), "a PNG image"),
        (b"<!DOCTYPE html><html></html>", "a web page"),
        (pickle.dumps(list(range(99))), "a pickle, which is never read"),
    ],
)
def test_a_well_known_kind_of_file_is_named(start: bytes, kind: str) -> None:
    """Rather than its bytes."""
    with pytest.raises(Corrupt, match=f"<bytes> is not an .npy file but {kind}"):
        af.npy(start)


@pytest.mark.parametrize(
    ("decoder", "fix"),
    [
        (af.raw, r"load: raw makes a decoder of a dtype: write load\(raw\('float32'\)\)"),
        (np.load, r"numpy.load does not take: write load\(npy\), or load\(npz\)"),
        (np.fromfile, r"numpy.fromfile does not take: write load\(raw\('float32'\)\)"),
        (
            np.loadtxt,
            r"does not take: write map\(lambda file: loadtxt\(file.path\)\), or load\(lambda data: loadtxt",
        ),
        (json.load, r"json.load does not take: write load\(json\)"),
        (open, r"open does not take: write load\(text\)"),
        (pickle.load, "does not take: write"),
        (af.lines, r"flat_map\(fn\)"),
    ],
)
def test_a_function_that_takes_no_bytes_is_refused_at_the_line(tmp_path: Path, decoder: Any, fix: str) -> None:
    """Called with the bytes it would take them for a path, and show them in its error."""
    path = tmp_path / "a.bin"
    path.write_bytes(b"x")
    with pytest.raises(af.PipelineError, match=fix):
        af.files(path).load(decoder)


def test_functions_of_bytes_are_still_decoders(tmp_path: Path) -> None:
    """Python's and numpy's, too."""
    path = tmp_path / "a.bin"
    path.write_bytes(b"12")
    assert list(af.files(path).load(json.loads)) == [12]
    assert list(af.files(path).load(len)) == [2]
    assert [array.tolist() for array in af.files(path).load(lambda data: np.frombuffer(data, "u1"))] == [[49, 50]]
