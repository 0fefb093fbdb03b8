"""Slices, epochs and batches: 5 samples, 2 epochs, batches of 3, exactly as TensorFlow's queues printed them."""

from __future__ import annotations

import numpy as np

import asyncfeed as af

IMAGES = np.random.default_rng(0).random((5, 8, 8, 3), dtype=np.float32)
LABELS = np.arange(5, dtype=np.int32)


def test_batches_go_across_the_epoch_boundary_and_the_remainder_is_dropped() -> None:
    """[0 1 2] [3 4 0] [1 2 3]."""
    pipeline = af.arrays(IMAGES, LABELS).repeat(2).batch(3, drop_remainder=True)
    batches = list(pipeline)
    assert [labels.tolist() for _, labels in batches] == [[0, 1, 2], [3, 4, 0], [1, 2, 3]]
    assert all(images.shape == (3, 8, 8, 3) and labels.dtype == np.int32 for images, labels in batches)
    np.testing.assert_array_equal(batches[1][0], IMAGES[[3, 4, 0]])
    assert len(pipeline) == 3


def test_with_the_remainder_kept_the_tenth_sample_comes_too() -> None:
    """[4] at the end."""
    pipeline = af.arrays(IMAGES, LABELS).repeat(2).batch(3)
    assert [labels.tolist() for _, labels in pipeline] == [[0, 1, 2], [3, 4, 0], [1, 2, 3], [4]]
    assert len(pipeline) == 4
