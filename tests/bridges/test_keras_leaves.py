"""Batches with tensors of other frameworks, in what each of Keras' backends reads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")

import asyncfeed as af  # noqa: E402


def batches(*leaves: Any) -> Any:
    return af.items(lambda: iter([leaves] * 2))


def test_tensors_of_torch_pass_through_to_torch() -> None:
    """They are not converted, which one with a gradient or on a device could not be."""
    torch = pytest.importorskip("torch")
    x = torch.ones(3, 2, requires_grad=True)
    got = list(batches(x, np.ones((3, 1), np.float32)).to_keras().get_torch_dataloader())
    assert got[0][0] is x
    assert isinstance(got[0][1], torch.Tensor)


def test_jax_gets_arrays_of_tensors() -> None:
    """Of torch's and TensorFlow's; text and numbers stay."""
    torch = pytest.importorskip("torch")
    data = batches(torch.ones(3, 2), tf.ones((3, 1)), 7).to_keras()
    x, y, number = next(iter(data.get_jax_iterator()))
    assert (type(x), type(y), number) == (np.ndarray, np.ndarray, 7)
    assert (x.dtype, y.shape) == (np.float32, (3, 1))
    data.close()


def test_a_signature_may_be_given() -> None:
    """Where nothing else says the shapes, as of an empty source."""
    signature = tf.TensorSpec((None, 5)), tf.TensorSpec((None, 1))
    dataset = af.items([]).to_keras(output_signature=signature).get_tf_dataset()
    assert dataset.element_spec == signature
    assert list(dataset) == []


def shape(*lengths: int, **options: Any) -> Any:
    data = af.items(lambda: iter([np.ones((4, length), np.float32) for length in lengths])).to_keras(**options)
    found = data.get_tf_dataset().element_spec.shape.as_list()
    data.close()
    return found


def test_an_axis_holds_where_the_first_two_batches_agree() -> None:
    """One that differs stays open; a batch alone is all there is."""
    assert shape(5, 5) == [None, 5]
    assert shape(5, 6) == [None, None]
    assert shape(5) == [None, 5]


def test_padded_axes_stay_open() -> None:
    """Two batches may have the same longest sample by chance."""
    ragged = af.items([np.ones(5, np.float32)] * 8).batch(2).pad()
    data = ragged.to_keras()
    assert data.get_tf_dataset().element_spec.shape.as_list() == [None, None]
    data.close()


def test_a_second_batch_that_fails_is_an_error_at_its_place() -> None:
    """Looking at it takes nothing away."""

    def bad() -> Any:
        yield np.ones((4, 5), np.float32)
        raise ValueError("the second")

    data = af.items(bad).to_keras()
    iterator = iter(data.get_tf_dataset())
    assert next(iterator).shape == (4, 5)
    with pytest.raises(tf.errors.OpError, match="the second"):
        next(iterator)
