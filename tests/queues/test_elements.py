"""What may be an element, what is refused and how, and what a batch looks like."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from asyncfeed.queues import FIFOQueue, PaddingFIFOQueue, PriorityQueue, QueueBase, RandomShuffleQueue
from asyncfeed.queues.elements import STRING, as_dtypes, as_shapes


class TensorFlowDType:
    as_numpy_dtype = np.float32


class TensorFlowShape:
    rank = 2

    def as_list(self) -> list[int | None]:
        return [None, 3]


@pytest.mark.parametrize(
    ("given_dtype", "meant"),
    [
        ("float", np.float32),
        (float, np.float32),
        ("double", np.float64),
        ("half", np.float16),
        ("bfloat16", "bfloat16"),
        (np.int64, np.int64),
        (np.dtype("uint8"), np.uint8),
        (bool, np.bool_),
        ("string", object),
        (str, object),
        (bytes, object),
        (object, object),
        ("S5", object),
        (TensorFlowDType(), np.float32),
    ],
)
def test_dtypes_mean_what_they_mean_to_tensorflow(given_dtype: Any, meant: Any) -> None:
    pytest.importorskip("ml_dtypes")  # which gives NumPy the name bfloat16
    assert as_dtypes(given_dtype) == as_dtypes([given_dtype]) == [np.dtype(meant)]


@pytest.mark.parametrize(
    ("shapes", "meant"),
    [
        (None, None),
        ((), [()]),
        ([], [()]),
        ([()], [()]),
        ((3,), [(3,)]),
        ([3, 4], [(3, 4)]),
        ([[3], [4, 5]], [(3,), (4, 5)]),
        ([(None, 40)], [(None, 40)]),
        (TensorFlowShape(), [(None, 3)]),
        ([TensorFlowShape(), ()], [(None, 3), ()]),
    ],
)
def test_one_shape_or_a_list_of_them(shapes: Any, meant: Any) -> None:
    assert as_shapes(shapes) == meant


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: FIFOQueue(0, "int32"), ValueError, "capacity 0"),
        (lambda: FIFOQueue(1.5, "int32"), TypeError, "integer"),
        (lambda: FIFOQueue(1, []), ValueError, "at least one dtype"),
        (lambda: FIFOQueue(1, [None]), TypeError, "a dtype is None"),
        (lambda: FIFOQueue(1, ["int32", "int32"], [()]), ValueError, "a shape for each of the 2"),
        (lambda: FIFOQueue(1, "int32", [(None,)]), ValueError, "PaddingFIFOQueue"),
        (lambda: FIFOQueue(1, "int32", [None, ()]), ValueError, "unknown"),
        (lambda: FIFOQueue(1, "int32", "shape"), TypeError, "list with a shape for each"),
        (lambda: FIFOQueue(1, "int32", names=["a", "b"]), ValueError, "a name for each of the 1"),
        (lambda: PaddingFIFOQueue(1, "int32", None), ValueError, "list with a shape for each"),
        (lambda: PaddingFIFOQueue(1, "int32", (None,)), ValueError, "list with a shape for each"),
        (lambda: RandomShuffleQueue(2, 2, "int32"), ValueError, "less than the capacity"),
        (lambda: RandomShuffleQueue(2, -1, "int32"), ValueError, "at least 0 and less than"),
        (lambda: PriorityQueue(2, "int32", names=["value"]), ValueError, "a name for each of the 2"),
    ],
)
def test_wrong_arguments_are_refused(make: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        make()


def test_a_queue_says_what_it_is() -> None:
    queue = FIFOQueue(3, ["float", "string"], [(2,), ()], names=["x", "y"], name="samples")
    assert queue.dtypes == [np.float32, object]
    assert queue.shapes == [(2,), ()]
    assert queue.names == ["x", "y"]
    assert repr(queue) == "FIFOQueue('samples')"
    assert queue.name == "samples"
    assert queue  # also while it is empty
    assert len(queue) == queue.size() == 0
    assert RandomShuffleQueue(-1, 100, "int32").shapes is None
    assert PriorityQueue(1, ["int32"], names=["p", "v"]).dtypes == [np.int64, np.int32]
    assert PriorityQueue(1, [], []).shapes == [()]


TWO = {"dtypes": ["int32", "float32"], "shapes": [(), (2,)]}


@pytest.mark.parametrize(
    ("arguments", "value", "error", "says"),
    [
        (TWO, 1, ValueError, "1 components were given and 2 are needed"),
        (TWO, (1, [1, 2], 3), ValueError, "3 components were given"),
        (TWO, {"a": 1}, ValueError, "has no names"),
        (TWO, (1, [1, 2, 3]), ValueError, r"component 1 must have shape \(2,\), not \(3,\)"),
        (TWO, (1, 2.0), ValueError, r"component 1 must have shape \(2,\), not \(\)"),
        (TWO, (1.5, [1, 2]), TypeError, "component 0 must be int32, not float64: 1.5"),
        (TWO, (2**40, [1, 2]), ValueError, "component 0: 1099511627776 does not fit int32"),
        (TWO, (np.array(2**40), [1, 2]), ValueError, "does not fit int32"),
        (TWO, (1, [1j, 0]), TypeError, "component 1 must be float32, not complex128"),
        (TWO, ("1", [1, 2]), TypeError, "component 0 must be int32"),
        ({"dtypes": "uint8"}, -1, ValueError, "does not fit uint8"),
        ({"dtypes": "string"}, 1, TypeError, "component 0 must be bytes or str, not int: 1"),
        ({"dtypes": "int32", "names": "x"}, 1, ValueError, r"enqueue a dict with the keys \['x'\]"),
        ({"dtypes": "int32", "names": "x"}, {"y": 1}, ValueError, r"the keys \['y'\] are not"),
        ({"dtypes": "int32", "names": "x"}, {"x": 1.5}, TypeError, "component 'x' must be int32"),
    ],
)
def test_what_is_no_element_is_refused_by_name(
    arguments: dict[str, Any], value: Any, error: type[Exception], says: str
) -> None:
    queue = FIFOQueue(10, **arguments)
    with pytest.raises(error, match=says):
        queue.enqueue_nowait(value)
    assert queue.size() == 0


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ((1, [[1, 2]]), "component 0 is a scalar"),
        (([1, 2], [[1, 2]]), r"the lengths \[2, 1\]"),
        (([1], [[1, 2, 3]]), r"component 1 must have shape \(2,\)"),
    ],
)
def test_what_is_no_batch_is_refused(value: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        FIFOQueue(10, **TWO).enqueue_many_nowait(value)


@pytest.mark.parametrize("priority", [[1], 1.0, None])
def test_a_priority_is_an_integer_scalar(priority: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="component 0"):
        PriorityQueue(3, "int32").enqueue_nowait((priority, 1))


def test_arrays_of_the_right_dtype_are_handed_on() -> None:
    queue = FIFOQueue(10, "float32")
    array = np.ones((2, 3), np.float32)
    queue.enqueue_nowait(array)
    assert queue.dequeue_nowait() is array
    queue.enqueue_many_nowait(array)
    assert np.shares_memory(queue.dequeue_nowait(), array)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [("float32", 2), ("float32", np.float64(2)), ("int32", np.int64(2)), ("uint8", 2), ("bfloat16", 2.0)],
)
def test_what_fits_is_cast(dtype: str, value: Any) -> None:
    pytest.importorskip("ml_dtypes")
    queue = FIFOQueue(1, dtype, [()])
    queue.enqueue_nowait(value)
    found = queue.dequeue_nowait()
    assert found.dtype == np.dtype(dtype)
    assert float(found) == 2


def test_strings_are_bytes() -> None:
    queue = PaddingFIFOQueue(5, "string", [(None,)])
    queue.enqueue_nowait([["é", b"\0x\0"]])
    queue.enqueue_nowait([np.array(["a"])])
    queue.enqueue_nowait([np.array([], object)])
    assert queue.dequeue_many_nowait(3).tolist() == [["é".encode(), b"\0x\0"], [b"a", b""], [b"", b""]]


def test_names_make_dicts() -> None:
    queue = FIFOQueue(5, **TWO, names=["n", "xy"])
    queue.enqueue_many_nowait({"n": [1, 2], "xy": [[1, 2], [3, 4]]})
    element = queue.dequeue_nowait()
    assert list(element) == ["n", "xy"]
    assert element["xy"].tolist() == [1, 2]
    batch = queue.dequeue_many_nowait(1)
    assert {name: array.tolist() for name, array in batch.items()} == {"n": [2], "xy": [[3, 4]]}


@pytest.mark.parametrize(
    "queue", [FIFOQueue(1, **TWO), RandomShuffleQueue(1, 0, **TWO)], ids=lambda queue: type(queue).__name__
)
def test_a_batch_of_none_is_empty_and_never_waits(queue: QueueBase) -> None:
    queue.close_nowait()
    numbers, vectors = queue.dequeue_many_nowait(0)
    assert (numbers.shape, vectors.shape) == ((0,), (0, 2))
    assert (numbers.dtype, vectors.dtype) == (np.int32, np.float32)
    queue.enqueue_many_nowait((np.empty(0, np.int32), np.empty((0, 2), np.float32)))


def test_an_unknown_size_of_no_elements_is_zero() -> None:
    assert PaddingFIFOQueue(1, "int32", [(None, 3)]).dequeue_up_to_nowait(0).shape == (0, 0, 3)


@pytest.mark.parametrize("method", ["dequeue_many_nowait", "dequeue_up_to_nowait"])
def test_batches_need_shapes_and_a_number(method: str) -> None:
    queue = FIFOQueue(3, "int32")
    queue.enqueue_nowait(1)
    with pytest.raises(ValueError, match="pass `shapes` to the constructor"):
        getattr(queue, method)(0)
    with pytest.raises(ValueError, match="at least 0, not -1"):
        getattr(FIFOQueue(3, "int32", [()]), method)(-1)
    with pytest.raises(TypeError):
        getattr(FIFOQueue(3, "int32", [()]), method)(1.5)


@given(
    dtype=st.sampled_from(["int16", "float64", "bool", "string", "complex64"]),
    shape=hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
    count=st.integers(1, 4),
    data=st.data(),
)
def test_a_batch_is_its_elements_stacked(
    dtype: str, shape: tuple[int, ...], count: int, data: st.DataObject
) -> None:
    (made,) = as_dtypes(dtype)
    strings = made is STRING
    kinds = st.binary(max_size=3) if strings else None
    arrays = [data.draw(hnp.arrays(made, shape, elements=kinds, fill=st.nothing())) for _ in range(count)]
    expected = np.stack(arrays)
    queue = FIFOQueue(-1, dtype, [shape])
    queue.enqueue_many_nowait([expected])
    batch = queue.dequeue_many_nowait(count)
    assert (batch.dtype, batch.shape) == (made, expected.shape)
    assert batch.tolist() == expected.tolist() if strings else batch.tobytes() == expected.tobytes()


def test_empty_slices_are_elements_too() -> None:
    queue = PaddingFIFOQueue(-1, "int32", [(None,)])
    queue.enqueue_many_nowait([np.empty((2, 0), np.int32)])
    queue.enqueue_nowait([[5]])
    assert queue.dequeue_many_nowait(3).tolist() == [[0], [0], [5]]


@given(
    arrays=st.lists(
        hnp.arrays(np.int16, hnp.array_shapes(min_dims=3, max_dims=3, min_side=0, max_side=3)), min_size=1
    )
)
def test_padding_keeps_every_element_in_its_corner(arrays: list[np.ndarray]) -> None:
    queue = PaddingFIFOQueue(-1, "int16", [(None, None, None)])
    for array in arrays:
        queue.enqueue_nowait(array)
    batch = queue.dequeue_many_nowait(len(arrays))
    assert batch.shape == (len(arrays), *np.max([array.shape for array in arrays], axis=0))
    for row, array in zip(batch, arrays, strict=True):
        corner = tuple(map(slice, array.shape))
        np.testing.assert_array_equal(row[corner], array)
        assert np.count_nonzero(row) == np.count_nonzero(array)
