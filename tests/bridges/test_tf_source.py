"""`items` over a `tf.data.Dataset`."""

from __future__ import annotations

import pytest

import asyncfeed as af

tf = pytest.importorskip("tensorflow")


def test_a_dataset_is_a_stream_that_begins_again() -> None:
    dataset = tf.data.Dataset.from_tensor_slices({"x": [1.0, 2.0, 3.0], "text": ["a", "b", "c"]})
    batches = list(af.items(dataset).repeat(2).batch(3))
    assert [batch["x"].tolist() for batch in batches] == [[1, 2, 3]] * 2
    assert batches[0]["text"].tolist() == [b"a", b"b", b"c"]


def test_its_batches_become_tensors_of_torch() -> None:
    pytest.importorskip("torch")
    dataset = tf.data.Dataset.range(5).batch(2)
    assert [batch.tolist() for batch in af.items(dataset).to_torch()] == [[0, 1], [2, 3], [4]]
