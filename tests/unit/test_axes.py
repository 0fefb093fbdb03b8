"""Which axes are left open: decided from the description alone, without TensorFlow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import asyncfeed as af
from asyncfeed.axes import open_shape
from asyncfeed.stages.bucket import Bucket
from asyncfeed.stages.together import axes_of

IMAGES = af.items([np.zeros((8, 6))] * 10)
ROWS = af.arrays(np.zeros((10, 8, 6)))


def bucket(size: int | tuple[int, ...], *, drop_remainder: bool = False) -> af.Pipeline[Any]:
    return af.Pipeline(IMAGES.source, (Bucket((5,), size, drop_remainder=drop_remainder),))


def double(x: Any) -> Any:  # noqa: ANN401
    return x


@pytest.mark.parametrize(
    ("pipeline", "shape", "expected"),
    [
        # Items that are no batches have been compared with nothing.
        (IMAGES, (8, 6), (None, None)),
        (IMAGES.map(double), (8, 6), (None, None)),
        (ROWS, (8, 6), (8, 6)),
        (af.items(np.zeros((10, 8))), (8,), (8,)),
        (ROWS.shuffle().take(3).repeat(2).prefetch(2), (8, 6), (8, 6)),
        (ROWS.map(double), (8, 6), (None, None)),
        (ROWS.batch(4).unbatch(), (8, 6), (None, None)),
        (IMAGES.pad(to=(9, None)), (9, 6), (9, None)),
        (af.items(range(3)), (), ()),
        # A batch may be smaller at the end, unless that is dropped or there is no end.
        (IMAGES.batch(4), (4, 8, 6), (None, 8, 6)),
        (IMAGES.batch(4), (4,), (None,)),
        (IMAGES.batch(4, drop_remainder=True), (4, 8, 6), (4, 8, 6)),
        (IMAGES.repeat().batch(4), (4, 8, 6), (4, 8, 6)),
        (IMAGES.batch(4).repeat(), (4, 8, 6), (None, 8, 6)),
        (IMAGES.repeat(3).batch(4), (4, 8, 6), (None, 8, 6)),
        # A batch of one says nothing of the next.
        (IMAGES.batch(1), (1, 8, 6), (None, None, None)),
        (ROWS.batch(1, drop_remainder=True), (1, 8, 6), (1, 8, 6)),
        # Rows of batches have been compared as those of the batches were.
        (IMAGES.batch(4).rebatch(3), (3, 8, 6), (None, 8, 6)),
        (IMAGES.batch(4).rebatch(3, drop_remainder=True), (3, 8, 6), (3, 8, 6)),
        (IMAGES.rebatch(3, drop_remainder=True), (3, 6), (3, None)),
        # Packing.
        (IMAGES.pack(8), (8, 6), (8, None)),
        (IMAGES.pack(8).batch(4, drop_remainder=True), (4, 8, 6), (4, 8, 6)),
        (IMAGES.scan(lambda state, x: (state, x), 0), (8, 6), (None, None)),
        # Padding.
        (IMAGES.batch(4).pad(), (4, 8, 6), (None, None, None)),
        (IMAGES.batch(4).pad(to=8), (4, 8, 6), (None, 8, None)),
        (IMAGES.batch(4, drop_remainder=True).pad(to=(8, 6)), (4, 8, 6), (4, 8, 6)),
        (IMAGES.batch(4).pad(multiple_of=8), (4, 8, 6), (None, None, None)),
        (IMAGES.batch(4).pad(lengths=True), (4,), (None,)),
        # Buckets.
        (bucket(2), (2, 8, 6), (None, None, None)),
        (bucket(2, drop_remainder=True).pad(), (2, 8, 6), (2, None, None)),
        (bucket((2, 3), drop_remainder=True), (2, 8, 6), (None, None, None)),
        # A function that makes the batches.
        (ROWS.batch(4, drop_remainder=True, collate=np.stack), (4, 8, 6), (None, None, None)),
        (IMAGES.bucket(boundaries=[9], size=2, collate=np.stack), (2, 8, 6), (None, None, None)),
        # A function of batches.
        (IMAGES.batch(4).map(double), (4, 8, 6), (None, 8, 6)),
        (IMAGES.batch(4).pad(to=(8, 6)).map(double), (4, 8, 6), (None, None, None)),
        # Batches of batches, and several inputs.
        (IMAGES.batch(4).batch(2), (2, 4, 8, 6), (None, None, 8, 6)),
        (af.zip(IMAGES.batch(4, drop_remainder=True), ROWS.batch(4), strict=False), (4, 8), (None, 8)),
        (af.zip(ROWS, ROWS).map(double), (8,), (None,)),
        (af.concat(ROWS, ROWS), (8, 6), (None, None)),
    ],
    ids=str,
)
def test_the_axes_that_may_vary_are_open(
    pipeline: af.Pipeline[Any], shape: tuple[int, ...], expected: tuple[int | None, ...]
) -> None:
    assert open_shape(axes_of(pipeline.source, pipeline.stages), shape) == expected
