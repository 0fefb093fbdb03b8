"""`cache` behind `load`: samples are decoded once."""

from __future__ import annotations

import functools
import math
import pickle
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

import asyncfeed as af
from asyncfeed.reading.samples import pack, unpack
from asyncfeed.trees import same
from tests.reading.test_cache_folder import KINDS, forget
from tests.reading.versions import VersionStore, entries, left, npy, numbered, run

COUNT = 20
decoded: Counter[int] = Counter()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    decoded.clear()
    return tmp_path / "cache"


@pytest.fixture
def store() -> VersionStore:
    return VersionStore(numbered(COUNT))


def decode(data: bytes) -> Any:
    array = np.load(__import__("io").BytesIO(data))
    decoded[int(array[0])] += 1
    return {"x": array.astype(np.float32), "y": (int(array[0]), "text", b"bytes", None, 1.5)}


def test_a_sample_is_decoded_once(store: VersionStore, folder: Path) -> None:
    samples = af.items(store.files()).shuffle(seed=1).load(decode)
    expected = list(samples)
    decoded.clear()
    store.reads.clear()
    cached = samples.cache(folder, version="1")
    for did in ({"misses, now kept": COUNT}, {"hits": COUNT}, {"hits": COUNT}):
        items, counted = run(cached)
        assert same(items, expected)
        assert counted == did
    assert set(decoded.values()) == set(store.reads.values()) == {1}


def test_a_sample_from_the_cache_belongs_to_who_gets_it(store: VersionStore, folder: Path) -> None:
    cached = af.items(store.files()).load(af.npy).cache(folder)
    for _ in range(3):
        for number, sample in enumerate(cached):
            assert sample.flags.writeable
            assert sample.flags.aligned
            assert sample.tolist() == [number] * 10
            sample[:] = -1


def test_batches_are_those_without_a_cache(folder: Path) -> None:
    store = VersionStore({f"{number}.npy": npy(np.arange(number + 1)) for number in range(COUNT)})
    loaded = af.items(store.files()).load(af.npy)
    arranged = lambda pipeline: [  # noqa: E731
        list(each)
        for each in (
            pipeline.take(3).batch(1),
            pipeline.batch(4).pad(),
            pipeline.shuffle(buffer=5),
            pipeline.repeat(2),
        )
    ]
    for _ in range(2):
        assert same(arranged(loaded.cache(folder)), arranged(loaded))
    assert store.reads["0.npy"] > 0


def test_files_in_a_tree_are_kept_each_on_its_own(store: VersionStore, folder: Path) -> None:
    paths = sorted(store.contents)
    pairs = [(store.file(one), store.file(another)) for one, another in zip(paths, paths[1:], strict=False)]
    cached = af.items(pairs).load(af.npy, concurrency=1).cache(folder)
    items, did = run(cached)
    assert [(int(one[0]), int(another[0])) for one, another in items] == [(n, n + 1) for n in range(COUNT - 1)]
    assert did == {"misses, now kept": COUNT, "hits": COUNT - 2}


def test_a_failed_sample_is_named_or_left_out_and_not_kept(store: VersionStore, folder: Path) -> None:
    files = store.files()
    store.contents["003.npy"] = store.contents["003.npy"][:-1] + b""
    with pytest.raises(af.Corrupt) as caught:
        list(af.items(files).load(af.npy).cache(folder))
    assert "item 003.npy (ordinal 3 of epoch 0)" in caught.value.__notes__[-1]
    items, _ = run(af.items(files).load(af.npy, on_error="skip", skip_limit=1).cache(folder))
    assert [int(each[0]) for each in items] == [number for number in range(COUNT) if number != 3]
    assert len(entries(folder)) == COUNT - 1


def test_samples_of_another_decoder_or_version_are_others(store: VersionStore, folder: Path) -> None:
    files = af.items(store.files())
    assert run(files.load(af.raw("u1")).cache(folder))[1] == {"misses, now kept": COUNT}
    assert run(files.load(af.raw("i1")).cache(folder))[1] == {"misses, now kept": COUNT}
    assert run(files.load(af.raw("u1")).cache(folder))[1] == {"hits": COUNT}
    assert run(files.load(decode).cache(folder, version="1"))[1] == {"misses, now kept": COUNT}
    assert run(files.load(decode).cache(folder, version="2"))[1] == {"misses, now kept": COUNT}
    assert run(files.load(decode).cache(folder, version="1"))[1] == {"hits": COUNT}
    assert run(files.cache(folder).load(decode))[1] == {"misses, now kept": COUNT}, "a file is no sample"


def test_a_decoder_of_ones_own_needs_a_version(store: VersionStore, folder: Path) -> None:
    files = af.items(store.files())

    async def later(data: bytes) -> bytes:
        return data

    class Own(af.Decoder[int]):
        name = "own"

    for decoder in (decode, lambda data: data, functools.partial(decode), Own()):
        with pytest.raises(af.PipelineError, match=r'cache\(\.\.\., version="1"\)'):
            files.load(decoder).cache(folder)
        files.load(decoder).cache(folder, version="1")
    with pytest.raises(af.PipelineError, match="put it before load"):
        files.load(later).cache(folder, version="1")


def test_a_sample_of_something_else_says_so(store: VersionStore, folder: Path) -> None:
    cached = af.items(store.files()).load(lambda data: {1, 2}, concurrency=1).cache(folder, version="1")
    with pytest.raises(
        TypeError, match="not set: let the function before it return those, or put cache before load"
    ):
        list(cached)
    assert entries(folder) == []
    assert left(folder) == []


def test_files_without_a_version_are_decoded_each_time(folder: Path) -> None:
    store = VersionStore(numbered(3), identity=None)
    for _ in range(2):
        assert run(af.items(store.files()).load(af.npy).cache(folder))[1] == {"not kept, version unknown": 3}


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_sample_is_decoded_again(store: VersionStore, folder: Path, kind: str) -> None:
    cached = af.items(store.files()).load(af.npy).cache(folder)
    expected = run(cached)[0]
    for known in (True, False):
        if not known:
            forget(folder)
        KINDS[kind](entries(folder)[3])
        items, did = run(cached)
        assert same(items, expected)
        assert did == {"hits": COUNT - 1, "damaged, read again": 1, "misses, now kept": 1}


def test_the_description_is_a_value(store: VersionStore, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "a.npy").write_bytes(npy(np.arange(3)))
    cached = af.files(tmp_path / "a.npy").load(af.npy).cache(folder, max_bytes="2 MB").batch(1)
    assert f"load(npy).cache({str(folder)!r}, max_bytes='2 MB').batch(1)" in repr(cached)
    assert pickle.loads(pickle.dumps(cached)) == cached
    assert "load(npy).cache(" in cached.explain()
    assert len(cached) == 1


# The format

PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
DTYPES = (
    npst.scalar_dtypes()
    | npst.unicode_string_dtypes(max_len=3)
    | npst.byte_string_dtypes(max_len=3)
    | npst.datetime64_dtypes()
    | npst.array_dtypes(npst.scalar_dtypes(), max_size=3)
)
ARRAYS = DTYPES.flatmap(lambda dtype: npst.arrays(dtype, npst.array_shapes(min_dims=0, min_side=0, max_side=3)))
LEAVES = (
    PLAIN | ARRAYS | ARRAYS.map(np.transpose) | ARRAYS.filter(lambda array: array.size).map(lambda a: a.flat[0])
)
SAMPLES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text() | st.integers(), inner, max_size=3)
    ),
    max_leaves=8,
)


def identical(one: Any, another: Any) -> bool:
    """Return whether two samples have the same types and the same bits."""
    if type(one) is not type(another):
        return False
    if isinstance(one, np.ndarray | np.generic):
        if isinstance(one, np.ndarray) and one.flags.f_contiguous != another.flags.f_contiguous:
            return False
        return (one.dtype, one.shape, one.tobytes()) == (another.dtype, another.shape, another.tobytes())
    if isinstance(one, dict):
        return list(one) == list(another) and all(map(identical, one.values(), another.values()))
    if isinstance(one, list | tuple):
        return len(one) == len(another) and all(map(identical, one, another))
    return one == another or (isinstance(one, float) and math.isnan(one) and math.isnan(another))


def packed(sample: Any) -> Any:
    return np.frombuffer(b"".join(pack(sample)), np.uint8)


@given(SAMPLES)
def test_a_sample_comes_back_as_it_was(sample: Any) -> None:
    assert identical(unpack(packed(sample)), sample)


def test_an_array_with_gaps_comes_back_without_them() -> None:
    array = np.arange(24).reshape(4, 6)[::2, ::-2]
    assert np.array_equal(unpack(packed(array)), array)


class Pair(NamedTuple):
    x: int


class Kind(np.ndarray):  # type: ignore[type-arg]
    pass


@pytest.mark.parametrize(
    "thing",
    [
        {1}, object(), np.array([object()]), np.zeros(2, [("a", object)]), np.ma.zeros(3), np.arange(3).view(Kind),
        Pair(1), {(1, 2): 3}, 1j, bytearray(b"x"), type("Text", (str,), {})("x"),
    ],
    ids=lambda thing: type(thing).__name__,
)  # fmt: skip
def test_what_would_come_back_as_something_else_is_refused(thing: Any) -> None:
    with pytest.raises(TypeError, match="cache keeps arrays, numbers, text and bytes"):
        pack([thing])


def test_a_text_of_what_are_no_characters_is_an_error() -> None:
    """NumPy raises a `SystemError` for a code beyond those of Unicode."""
    held = packed([np.str_("a")]).copy()
    held[-held[::-1].tolist().index(ord("a")) - 1 :][:4] = 255
    with pytest.raises(ValueError, match="maximum character"):
        unpack(held)


@given(SAMPLES, st.data())
def test_bytes_that_are_no_sample_are_an_error_and_nothing_else(sample: Any, data: st.DataObject) -> None:
    """The checksum finds them before. Here whatever comes is a sample, or a `ValueError`."""
    held = packed(sample).copy()
    held[data.draw(st.integers(0, len(held) - 1))] = data.draw(st.integers(0, 255))
    stop = data.draw(st.integers(0, len(held)))
    for each in (held, held[:stop]):
        try:
            unpack(each)
        except ValueError:
            pass
