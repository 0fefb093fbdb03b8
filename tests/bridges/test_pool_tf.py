"""TensorFlow reads the memory of batches in place: none may be used again while it has a tensor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncfeed as af
from asyncfeed.bridges.tf_layout import Layout
from asyncfeed.stacking.pool import LEAST, Pool

tf = pytest.importorskip("tensorflow")

SIZE = LEAST // 4
BATCH = 2 * LEAST


def place(array: Any) -> int:
    return int(np.asarray(memoryview(array)).__array_interface__["data"][0])


@pytest.fixture
def batches(tmp_path: Path) -> af.Pipeline[Any]:
    for number in range(48):
        np.save(tmp_path / f"{number:02}.npy", np.full(LEAST // 8, number, np.float32))
    return af.files(f"{tmp_path}/*.npy").repeat(4).load(af.npy).batch(4)


def rows(number: int) -> list[float]:
    return [(4 * number + row) % 48 for row in range(4)]


@pytest.mark.parametrize("way", ["tensors", "constant", "convert", "slice"])
def test_memory_is_not_given_out_while_a_tensor_shows_it(way: str) -> None:
    """The zero-copy tensors of the bridge, and those that TensorFlow makes itself."""
    pool = Pool()
    array = pool.empty((SIZE,), np.dtype("f4"))
    array[:] = 1
    before = place(array)
    if way == "constant":
        tensor = tf.constant(array)
    elif way == "convert":
        tensor = tf.convert_to_tensor(array)
    else:
        (tensor,) = Layout(tf.TensorSpec([None], tf.float32)).tensors(array)
        assert place(tensor) == before, "a copy, so this shows nothing"
        if way == "slice":
            tensor = tf.identity(tensor)[5:]
    del array
    others = [pool.empty((SIZE,), np.dtype("f4")) for _ in range(3)]
    for other in others:
        other[:] = 2
    assert tf.reduce_all(tensor == 1)


def test_tensors_that_are_kept_stay_as_they_were(batches: af.Pipeline[Any]) -> None:
    """Each fourth batch of a dataset is kept, while the memory of the others goes round."""
    kept = []
    places = set()
    for number, tensor in enumerate(batches.to_tf(memory_limit=8 * BATCH)):
        assert tensor[:, -1].numpy().tolist() == rows(number)
        places.add(place(tensor))
        if number % 4 == 0:
            kept.append((number, tensor))
    assert len(kept) == 12
    assert len(places) < 48, "no memory was used twice, so this shows nothing"
    for number, tensor in kept:
        expected = np.repeat(np.array(rows(number), np.float32)[:, None], LEAST // 8, axis=1)
        np.testing.assert_array_equal(tensor.numpy(), expected, err_msg=f"batch {number}")


def test_batches_in_queues_of_tensorflow_stay_as_they_were(batches: af.Pipeline[Any]) -> None:
    """A shuffle buffer and a prefetch of tf.data hold many while ours goes on."""
    dataset = batches.to_tf(memory_limit=8 * BATCH).shuffle(16, seed=1).prefetch(4)
    seen = sorted(tuple(tensor[:, 0].numpy()) + tuple(tensor[:, -1].numpy()) for tensor in dataset)
    assert seen == sorted(tuple(2 * rows(number)) for number in range(48))
