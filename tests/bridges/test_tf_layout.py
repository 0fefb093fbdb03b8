"""Items as TensorFlow's tensors: structure, dtypes, what is shared and what is copied, what does not fit."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import asyncfeed as af  # noqa: E402
from asyncfeed.axes import Unknown  # noqa: E402
from asyncfeed.bridges.tf_layout import Layout, infer, shareable  # noqa: E402
from asyncfeed.stacking.aligned import aligned_empty  # noqa: E402


class Pair(NamedTuple):
    a: Any
    b: Any


@dataclass
class Point:
    x: Any
    y: Any


def aligned(*shape: int, dtype: str = "float32") -> np.ndarray[Any, Any]:
    array = aligned_empty(shape, np.dtype(dtype))
    array[...] = np.arange(array.size).reshape(shape)
    return array


def unaligned(count: int) -> np.ndarray[Any, Any]:
    return np.frombuffer(bytearray(4 * count + 64), np.uint8)[4 : 4 + 4 * count].view(np.float32)


def address(tensor: Any) -> int:  # noqa: ANN401
    return int(np.asarray(memoryview(tensor)).__array_interface__["data"][0])


def first(item: Any, **options: Any) -> Any:  # noqa: ANN401
    return next(iter(af.items([item]).to_tf(**options)))


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (3, tf.int64),
        (2.5, tf.float64),
        (True, tf.bool),
        (1j, tf.complex128),
        ("text", tf.string),
        (b"\x00\xff\x00", tf.string),
        (np.float32(2), tf.float32),
        (np.uint8(200), tf.uint8),
        (np.array(["a", "bé"]), tf.string),
        (np.array(["a", b"b"], object), tf.string),
        (np.array([], np.float16), tf.float16),
        (np.array([True, False]), tf.bool),
        (np.arange(3, dtype=">i4"), tf.int32),
        (np.arange(6.0)[::2], tf.float64),
        (np.zeros((), np.int16), tf.int16),
    ],
    ids=str,
)
@pytest.mark.parametrize("via", ["queue", "from_generator"])
def test_leaves(value: Any, dtype: Any, via: str) -> None:  # noqa: ANN401
    tensor = first(value, via=via)
    assert tensor.dtype == dtype
    got, expected = np.asarray(tensor.numpy()).tolist(), np.asarray(value).tolist()
    if dtype == tf.string:
        expected = tf.nest.map_structure(tf.compat.as_bytes, value.tolist() if np.ndim(value) else value)
        got = tensor.numpy().tolist() if np.ndim(value) else tensor.numpy()
    assert got == expected


@pytest.mark.parametrize("via", ["queue", "from_generator"])
def test_bfloat16(via: str) -> None:
    import ml_dtypes

    tensor = first(np.arange(4).astype(ml_dtypes.bfloat16), via=via)
    assert tensor.dtype == tf.bfloat16
    assert tf.cast(tensor, tf.int32).numpy().tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("via", ["queue", "from_generator"])
def test_trees_keep_their_structure_and_lists_become_tuples(via: str) -> None:
    item = {"z": [1, (2.5, "s")], "a": Pair(b=np.ones(2), a=np.zeros(3)), "m": OrderedDict(y=1, x=2)}
    got = first(item, via=via)
    assert sorted(got) == ["a", "m", "z"]
    assert [leaf.numpy() for leaf in (got["z"][0], got["z"][1][0], got["z"][1][1])] == [1, 2.5, b"s"]
    assert isinstance(got["z"], tuple)
    assert isinstance(got["a"], Pair)
    assert got["a"].a.shape == (3,)
    assert {key: int(value) for key, value in got["m"].items()} == {"y": 1, "x": 2}


def test_none_stays_none() -> None:
    assert first((1, None))[1] is None
    with pytest.raises(af.PipelineError, match="from_generator takes no None"):
        first((1, None), via="from_generator")


def test_a_mapping_becomes_a_dict() -> None:
    assert type(infer(defaultdict(int, a=1), Unknown())) is dict


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (Point(1, 2), r"make the Point a dict: .map\(dataclasses.asdict\)"),
        ({"k": object()}, r"leaf \['k'\] is object .*no tensor"),
        (np.array([object()]), "an item is object of shape"),
        ((1, np.datetime64("2020-01-01")), r"leaf \[1\] is datetime64"),
        ((None,), "no array, number or text"),
        ((), "no array, number or text"),
    ],
)
def test_what_is_no_tensor_is_refused_where_it_is_asked_for(item: Any, message: str) -> None:  # noqa: ANN401
    with pytest.raises(af.PipelineError, match=message):
        af.items([item]).to_tf()


def test_a_signature_must_be_of_tensor_specs() -> None:
    with pytest.raises(af.PipelineError, match=r"takes tf\.TensorSpec"):
        af.items([1]).to_tf(output_signature=tf.RaggedTensorSpec([None]))


@pytest.mark.parametrize(
    ("signature", "item", "message"),
    [
        (tf.TensorSpec([2], tf.float32), np.zeros(3, np.float32), r"float32 of shape \(3,\), but.*\(2,\)"),
        (tf.TensorSpec([None], tf.float32), np.zeros(3), r"float64 of shape \(3,\), but .* float32"),
        (tf.TensorSpec([None], tf.float32), np.zeros((2, 3), np.float32), r"shape \(2, 3\)"),
        (tf.TensorSpec([], tf.int64), 2.5, "float 2.5, which is not int64"),
        (tf.TensorSpec([], tf.int64), "2", "str '2', but the signature says int64"),
        (tf.TensorSpec([], tf.string), 2, "which is not string"),
        (tf.TensorSpec([None], tf.string), np.zeros(2), "float64"),
        ({"x": tf.TensorSpec([], tf.int64)}, {"y": 1}, r"an item is \{'y': \*\}, but the signature"),
        ((tf.TensorSpec([], tf.int64),) * 2, (1, 2, 3), r"\(\*, \*, \*\)"),
        ({"x": tf.TensorSpec([], tf.int64)}, {"x": None}, r"leaf \['x'\] is NoneType None, not int64"),
        ({"x": tf.TensorSpec([2], tf.int64)}, {"x": np.arange(3)}, r"leaf \['x'\] is int64 of shape \(3,\)"),
    ],
    ids=str,
)
def test_an_item_that_does_not_fit_says_what_was_expected(signature: Any, item: Any, message: str) -> None:  # noqa: ANN401
    with pytest.raises(ValueError, match=message):
        Layout(signature).tensors(item)


def test_from_generator_checks_what_it_is_given() -> None:
    with pytest.raises(ValueError, match=r"float64 of shape \(3,\), but the signature says float32"):
        Layout(tf.TensorSpec([None], tf.float32)).arranged(np.zeros(3))


def test_numbers_take_the_dtype_of_the_signature() -> None:
    (tensor,) = Layout(tf.TensorSpec([], tf.float32)).tensors(3)
    assert (tensor.dtype, tensor.numpy()) == (tf.float32, 3.0)


def test_an_unknown_rank_takes_any_shape() -> None:
    layout = Layout(tf.TensorSpec(None, tf.float32))
    assert [layout.tensors(aligned(*shape))[0].shape for shape in ((2,), (2, 3))] == [(2,), (2, 3)]


def test_tensors_pass() -> None:
    (tensor,) = Layout(tf.TensorSpec([2], tf.float32)).tensors(tf.constant([1.0, 2.0]))
    assert tensor.numpy().tolist() == [1, 2]


# -- memory


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8", "uint16", "int64", "complex64"])
def test_aligned_arrays_are_shared(dtype: str) -> None:
    array = aligned(4, 3, dtype=dtype)
    (tensor,) = Layout(tf.TensorSpec([4, 3], dtype)).tensors(array)
    assert address(tensor) == array.__array_interface__["data"][0]
    np.testing.assert_array_equal(tensor.numpy(), array)


@pytest.mark.parametrize(
    "array",
    [
        unaligned(16),
        aligned(4, 4)[:, ::2],
        aligned(4, 4).T,
        np.zeros((0, 4), np.float32),
        aligned(4).astype(">f4"),
        aligned(4) > 1,
        np.broadcast_to(aligned(4), (3, 4)),
    ],
    ids=["unaligned", "strided", "transposed", "empty", "big-endian", "bool", "read-only"],
)
def test_other_arrays_are_copied(array: np.ndarray[Any, Any]) -> None:
    assert not shareable(array)
    (tensor,) = Layout(tf.TensorSpec(array.shape, array.dtype.newbyteorder("="))).tensors(array)
    np.testing.assert_array_equal(tensor.numpy(), array)
    np.testing.assert_array_equal(tf.identity(tensor)[..., :1].numpy(), array[..., :1])


def test_batches_cross_without_a_copy() -> None:
    """The address that the pipeline filled is the address that TensorFlow reads."""
    addresses: list[int] = []

    def note(batch: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        addresses.append(batch.__array_interface__["data"][0])
        return batch

    rows = af.arrays(np.arange(4000, dtype=np.float32).reshape(40, 100))
    held = list(rows.batch(4).map(note, concurrency=1).to_tf())
    assert [address(tensor) for tensor in held] == addresses


def test_no_buffer_is_reused_while_tensorflow_holds_it() -> None:
    rows = np.random.default_rng(0).normal(size=(256, 500)).astype(np.float32)
    dataset = af.arrays(rows).batch(8).to_tf()
    held = [tensor for _ in range(5) for tensor in dataset]
    assert len({address(tensor) for tensor in held}) == len(held) == 160
    for epoch in range(5):
        np.testing.assert_array_equal(np.concatenate(held[epoch * 32 : epoch * 32 + 32]), rows)


def test_no_operation_writes_into_a_shared_array() -> None:
    """TensorFlow works in place where it owns the memory; this memory it does not own."""
    arrays = [aligned(1000) for _ in range(8)]
    dataset = af.items(arrays).to_tf().map(lambda x: tf.nn.relu(x * 2.0 + 1.0) * 3.0)
    sums = [float(tf.reduce_sum(tensor)) for tensor in dataset]
    assert len(set(sums)) == 1
    for array in arrays:
        np.testing.assert_array_equal(array, np.arange(1000, dtype=np.float32))
