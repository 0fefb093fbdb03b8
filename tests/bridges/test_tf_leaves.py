"""Leaves that are no arrays of numpy's, on their way through a batch into TensorFlow."""

from __future__ import annotations

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import asyncfeed as af  # noqa: E402


def test_none_stays_none() -> None:
    """Where every sample has it, in the signature and in each element."""
    samples = [{"x": np.full(2, n, np.float32), "y": None, "z": (n, None)} for n in range(5)]
    dataset = af.items(samples).batch(2).to_tf()
    assert dataset.element_spec["y"] == tf.type_spec_from_value(None)
    found = list(dataset)
    assert [each["x"].numpy()[:, 0].tolist() for each in found] == [[0, 1], [2, 3], [4]]
    assert [(each["y"], each["z"][1]) for each in found] == [(None, None)] * 3


def test_tensors_of_tensorflow_are_batched() -> None:
    """With their dtype: numbers, bfloat16, text, and variables by their value."""
    samples = [
        (tf.ones(3, tf.bfloat16) * n, tf.constant(f"t{n}"), tf.Variable([n], dtype=tf.int16)) for n in range(4)
    ]
    batch = next(iter(af.items(samples).batch(4)))
    assert [each.dtype for each in batch] == [tf.bfloat16.as_numpy_dtype, object, np.int16]
    assert batch[1].tolist() == [b"t0", b"t1", b"t2", b"t3"]
    assert batch[2].tolist() == [[0], [1], [2], [3]]
    spec = af.items(samples).batch(4).to_tf().element_spec
    assert [each.dtype for each in spec] == [tf.bfloat16, tf.string, tf.int16]


def test_tensors_without_an_array_are_refused() -> None:
    """With the line to write."""
    ragged = tf.ragged.constant([[1], [2, 3]])
    with pytest.raises(ValueError, match=r"number 0 is a .*RaggedTensor, which makes no array"):
        list(af.items([ragged, ragged]).batch(2))


def test_ragged_text_is_padded_and_arrives() -> None:
    """As a tensor of strings, with nothing for what is missing."""
    words = [np.array(["a", "b"], object), np.array(["c"], object)]
    (batch,) = af.items(words).batch(2).pad().to_tf()
    assert batch.numpy().tolist() == [[b"a", b"b"], [b"c", b""]]
