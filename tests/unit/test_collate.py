"""Collate: samples to arrays, nothing guessed and nothing converted."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from asyncfeed.stacking.aligned import aligned_empty
from asyncfeed.stacking.collate import INLINE, collate
from asyncfeed.stages.collating import Collate
from asyncfeed.stages.pad import Pad
from asyncfeed.trees import flatten


class Pair(NamedTuple):
    """A named tuple, as users write them."""

    x: Any
    y: Any


@dataclass
class Sample:
    """A dataclass, as users write them."""

    x: Any
    y: Any


class Colour(IntEnum):
    """A number that is more than a number."""

    RED = 1


def name(member: int) -> str:
    """Name samples as a source of files would."""
    return f"s{member}.npy"


def check_memory(array: np.ndarray) -> None:
    """Assert that TensorFlow could take this array as it is."""
    assert array.flags.writeable
    assert array.flags.c_contiguous
    assert array.dtype.hasobject or array.__array_interface__["data"][0] % 64 == 0


dtypes = st.sampled_from(["?", "i1", "u8", "<f4", ">f8", "c8", "M8[s]", "m8[ns]", "S3", "U4", "i4,f8"])


@given(dtypes.map(np.dtype), hnp.array_shapes(min_dims=0, min_side=0), st.integers(1, 5), st.data())
def test_arrays_are_stacked_with_their_dtype(
    dtype: np.dtype, shape: tuple[int, ...], n: int, data: st.DataObject
) -> None:
    """As `np.stack` does, byte order, units and fields included, in aligned memory."""
    raw = data.draw(st.binary(min_size=64, max_size=64))
    size = int(np.prod(shape)) * dtype.itemsize
    samples = [np.frombuffer(np.resize(np.frombuffer(raw[i:] + raw[:i], "u1"), size) % 2, dtype) for i in range(n)]
    arrays = (
        [sample[: int(np.prod(shape))].reshape(shape) for sample in samples]
        if size
        else [np.zeros(shape, dtype)] * n
    )
    out = collate(arrays, name)
    assert out.dtype == dtype
    assert out.shape == (n, *shape)
    assert out.tobytes() == np.stack(arrays).astype(dtype).tobytes()
    check_memory(out)


@pytest.mark.parametrize(
    ("samples", "dtype"),
    [
        ([True, False], np.bool_),
        ([1, -(2**63)], np.int64),
        ([0.1, float("inf")], np.float64),
        ([1j, 2.0 + 0j], np.complex128),
        ([Colour.RED, Colour.RED], np.int64),
        ([Colour.RED, 2], np.int64),
        ([np.float32(1), np.float32(2)], np.float32),
        ([np.int16(1), np.int16(2)], np.int16),
        ([np.array(1, np.uint8), np.uint8(2)], np.uint8),
        ([1, np.int64(2)], np.int64),
        ([ml_dtypes.bfloat16(1), ml_dtypes.bfloat16(2)], ml_dtypes.bfloat16),
        ([np.datetime64(1, "s"), np.datetime64(2, "s")], "M8[s]"),
        (list(np.array([(1, 2.0), (3, 4.0)], "i4,f8")), "i4,f8"),
    ],
)
def test_numbers_become_an_array_of_their_own_dtype(samples: list[Any], dtype: Any) -> None:
    """Python's numbers become the 64-bit ones; numpy's keep theirs."""
    out = collate(samples, name)
    assert out.dtype == np.dtype(dtype)
    assert out.tolist() == [np.asarray(sample).item() for sample in samples]
    check_memory(out)


def test_numpy_text_of_several_widths_makes_a_batch_of_the_widest() -> None:
    """Nothing is cut off, whatever comes first; text and bytes are still not the same."""
    out = collate([np.array(["ab", "c"]), np.array(["abcd", ""]), np.array(["x", "y"])], name)
    assert (out.dtype, out.tolist()) == (np.dtype("U4"), [["ab", "c"], ["abcd", ""], ["x", "y"]])
    out = collate([np.array(b"ab"), np.array(b"abc")], name)
    assert (out.dtype, out.tolist()) == (np.dtype("S3"), [b"ab", b"abc"])
    out = collate([{"t": np.array(["ab"])}, {"t": np.array(["abc", "d"])}], name, Pad())["t"]
    assert (out.dtype, out.tolist()) == (np.dtype("U3"), [["ab", ""], ["abc", "d"]])
    with pytest.raises(ValueError, match="s0.npy has dtype <U2, s1.npy has dtype .S2"):
        collate([np.array(["ab"]), np.array([b"ab"])], name)


def test_extension_dtypes_are_kept() -> None:
    """A bfloat16 array is one afterwards."""
    out = collate([np.ones((2, 3), ml_dtypes.bfloat16)] * 4, name)
    assert out.dtype == ml_dtypes.bfloat16
    assert out.shape == (4, 2, 3)
    check_memory(out)


@pytest.mark.parametrize(
    "samples",
    [
        ["a", "bcd\0"],
        [b"a\0", b""],
        ["a", b"b"],
        [np.str_("ab"), np.str_("abc")],
    ],
)
def test_text_is_kept_as_it_is(samples: list[Any]) -> None:
    """In an array of objects, with nothing cut off and nothing looked into."""
    out = collate(samples, name)
    assert out.dtype == object
    assert out.shape == (len(samples),)
    assert all(a is b for a, b in zip(out, samples, strict=True))


def test_arrays_of_objects_are_stacked() -> None:
    """Also those without axes."""
    a, b = np.array(["x", None], object), np.array([[], {}], object)
    assert collate([a, b], name).tolist() == [["x", None], [[], {}]]
    assert collate([np.array({}, object), np.array("x", object)], name).tolist() == [{}, "x"]


@pytest.mark.parametrize(
    "make",
    [
        lambda x, y: (x, y),
        lambda x, y: [x, y],
        lambda x, y: {"x": x, "y": y},
        lambda x, y: {"y": y, "x": x},
        lambda x, y: {"only": (x, {"y": y})},
        Pair,
        Sample,
        lambda x, y: (x, "text", y, None),
        lambda x, y: ((x,), Sample([y], {})),
        lambda x, y: {"x": None, "y": (x, None)},
    ],
)
def test_samples_are_trees(make: Any) -> None:
    """The batch has the structure of a sample, whatever that is, and each leaf is stacked by itself."""
    samples = [make(np.full(3, i, np.float32), i) for i in range(4)]
    out = collate(samples, name)
    leaves, spec = flatten(out)
    assert spec == flatten(samples[0])[1]
    for number, leaf in enumerate(leaves):
        column = [flatten(sample)[0][number] for sample in samples]
        if leaf is None:
            assert set(column) == {None}
            continue
        assert leaf.tolist() == [x.tolist() if isinstance(x, np.ndarray) else x for x in column]
        check_memory(leaf)


def test_dicts_keep_the_order_of_the_first_sample() -> None:
    """The order in which the others were filled does not matter."""
    out = collate([{"b": 1, "a": 2.0}, {"a": 3.0, "b": 4}], name)
    assert list(out) == ["b", "a"]
    assert {key: value.tolist() for key, value in out.items()} == {"b": [1, 4], "a": [2.0, 3.0]}


@pytest.mark.parametrize("empty", [(), {}, []])
def test_a_sample_without_leaves_is_a_batch_without_leaves(empty: Any) -> None:
    """There is nothing to stack."""
    assert collate([empty, empty], name) == empty


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([1, 1, 2.0], r"s0.npy has dtype int64, s2.npy has dtype float64; convert one with .map\(\)"),
        ([1, True], r"s0.npy has dtype int64, s1.npy has dtype bool"),
        ([1, None], r"s1.npy is None \(s0.npy is not\), of which no batch can be made"),
        ([np.zeros(2), np.zeros(2, "f4")], r"s0.npy has dtype float64, s1.npy has dtype float32"),
        ([np.zeros(2, "<i4"), np.zeros(2, ">i4")], r"s0.npy has dtype int32, s1.npy has dtype >i4"),
        ([np.zeros(2), 0.5], r"s0.npy has \(2,\), s1.npy has \(\); add .pad\(value=...\) after the batch"),
        ([np.zeros((3, 40)), np.zeros((7, 40))], r"s0.npy has \(3, 40\), s1.npy has \(7, 40\); add .pad"),
        ([(0, np.zeros(3)), (0, np.zeros(4))], r"s0.npy at \[1\] has \(3,\), s1.npy at \[1\] has \(4,\)"),
        (
            [{"a": 1}, {"a": "x"}],
            r"s0.npy at \['a'\] has dtype int64, s1.npy at \['a'\] has an object of type str",
        ),
        ([1, 2**63], r"s1.npy is 9223372036854775808, more than int64 holds"),
        (
            [(1, 2), (1, 2, 3)],
            r"s0.npy is \(\*, \*\), s1.npy is \(\*, \*, \*\); give them one structure with .map\(\)",
        ),
        ([1, (1,)], r"s0.npy is a single value, s1.npy is \(\*,\)"),
        ([{"a": 1, "c": 1}, {"a": 1, "b": 1}], r"s0.npy is {'a': \*, 'c': \*}, s1.npy is {'a': \*, 'b': \*}"),
        ([(1, 2), [1, 2]], r"s0.npy is \(\*, \*\), s1.npy is \[\*, \*\]"),
        ([(1, (2,)), (1, [2])], r"s0.npy is \(\*, \(\*,\)\), s1.npy is \(\*, \[\*\]\)"),
        ([Sample(1, 2), Pair(1, 2)], r"s0.npy is .*Sample.*, s1.npy is Pair\(x=\*, y=\*\)"),
    ],
)
def test_samples_that_differ_are_named(samples: list[Any], message: str) -> None:
    """With what each of the two is, and what to do."""
    with pytest.raises(ValueError, match=message):
        collate(samples, name)


@given(hnp.array_shapes(min_side=0), st.sampled_from(["u1", "f8", "M8[D]", "U3", "i4,f8"]).map(np.dtype))
def test_aligned_memory_is_aligned_and_writable(shape: tuple[int, ...], dtype: np.dtype) -> None:
    """Of any shape and type."""
    out = aligned_empty(shape, dtype)
    assert out.shape == shape
    assert out.dtype == dtype
    check_memory(out)


class At:
    """A place that names its members."""

    epoch = 0
    ordinal = (4, 7)

    def name(self, member: int | None = None) -> str:
        return f"file{self.ordinal[member or 0]}"


def test_the_work_names_members_by_their_place() -> None:
    """The message of a failed batch names the files, not their numbers in the batch."""
    with pytest.raises(ValueError, match="file4 has dtype int64, file7 has dtype float64"):
        Collate()([1, 2.0], At())


def test_small_batches_are_for_the_loop_and_large_ones_for_a_thread() -> None:
    """What counts is what the batch needs, with its padding."""
    work = Collate().work()
    assert work.placed
    assert work.inline is not None
    assert work.cost is not None
    assert work.inline([1] * 32)
    assert work.cost([np.zeros(10)] * 3) == 240
    assert not work.inline([np.zeros(INLINE // 8)] * 2)
    padded = Collate(Pad(to=1_000_000))
    assert padded.size_of([np.zeros(1)] * 2) == 16_000_000
    assert not padded.fits([np.zeros(1)])
    assert Collate(Pad()).size_of([np.zeros(1), np.zeros(9)]) == 2 * 72
    assert Collate(Pad()).fits([np.zeros(1), np.zeros(9)])
