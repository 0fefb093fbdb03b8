"""What crosses as a copy: arrays that do not start where TensorFlow could use their memory."""

from __future__ import annotations

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import asyncfeed as af  # noqa: E402
from asyncfeed.bridges.tf_layout import LARGE, Layout  # noqa: E402


def unaligned(number: int, dtype: str) -> np.ndarray:
    """Return an array of 1 MB that starts 16 bytes beyond a multiple of 64."""
    room = np.empty((1 << 20) + 128, np.uint8)
    begin = -room.ctypes.data % 64 + 16
    array = room[begin : begin + (1 << 20)].view(dtype).reshape(16, -1)
    array[:] = number % 100
    array[:, 0] = range(16)
    return array


@pytest.mark.parametrize("dtype", ["i1", "u2", "f2", "f4", "f8", ">f4", "c8"])
def test_large_arrays_that_are_not_aligned_are_the_same_in_tensorflow(dtype: str) -> None:
    items = [unaligned(number, dtype) for number in range(40)]
    assert items[0].nbytes >= LARGE
    for item, tensor in zip(items, af.items(items).to_tf(), strict=True):
        np.testing.assert_array_equal(tensor.numpy(), item)


def test_arrays_that_are_not_contiguous_or_not_writable_are_the_same_in_tensorflow() -> None:
    array = unaligned(1, "f4")
    fixed = array.copy()
    fixed.flags.writeable = False
    for item in (array.T, array[:, ::2], np.asfortranarray(array), fixed):
        for tensor in af.items([item] * 3).to_tf():
            np.testing.assert_array_equal(tensor.numpy(), item)


def test_a_copy_that_is_held_is_never_written_again() -> None:
    layout = Layout(tf.TensorSpec([16, None], tf.float32))
    held = []
    for number in range(60):
        array = unaligned(number, "f4")
        (tensor,) = layout.tensors(array)
        array[:] = -1  # nor does it show what it was copied from
        if number % 3 == 0:
            held.append((number, tensor))
        del tensor
    for number, tensor in held:
        np.testing.assert_array_equal(tensor.numpy()[:, 1:], np.float32(number))
