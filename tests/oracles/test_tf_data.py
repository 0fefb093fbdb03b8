"""The stages that tf.data has, too, do what tf.data does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import asyncfeed as af

pytestmark = pytest.mark.tensorflow

few = settings(max_examples=25, suppress_health_check=list(HealthCheck))
lengths = st.lists(st.integers(0, 12), min_size=1, max_size=25)


@pytest.fixture(scope="module")
def tf() -> Any:
    return pytest.importorskip("tensorflow")


def same(ours: list[Any], theirs: list[Any]) -> None:
    assert len(ours) == len(theirs)
    for one, another in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one, another)


@few
@given(
    n=st.integers(0, 20),
    stages=st.lists(
        st.one_of(
            st.tuples(st.sampled_from(["take", "skip"]), st.integers(0, 12)),
            st.tuples(st.just("repeat"), st.integers(1, 3)),
        ),
        max_size=4,
    ),
    size=st.integers(1, 5),
    drop=st.booleans(),
    before=st.booleans(),
)
def test_order_and_batches(
    tf: Any, n: int, stages: list[tuple[str, int]], size: int, drop: bool, before: bool
) -> None:
    """`take`, `skip`, `repeat` and `batch` in any order, before and after each other."""
    ours, theirs = af.items(range(n)), tf.data.Dataset.range(n)
    if before:
        ours, theirs = ours.batch(size, drop_remainder=drop), theirs.batch(size, drop_remainder=drop)
    for method, count in stages:
        ours, theirs = getattr(ours, method)(count), getattr(theirs, method)(count)
    if not before:
        ours, theirs = ours.batch(size, drop_remainder=drop), theirs.batch(size, drop_remainder=drop)
    same(list(ours), [np.asarray(each) for each in theirs])


def ragged(tf: Any, sizes: list[int]) -> tuple[list[np.ndarray], Any]:
    arrays = [np.full((size, 2), number + 1, np.float32) for number, size in enumerate(sizes)]
    return arrays, tf.data.Dataset.from_generator(
        lambda: iter(arrays), output_signature=tf.TensorSpec((None, 2), tf.float32)
    )


@few
@given(
    sizes=lengths, size=st.integers(1, 5), value=st.sampled_from([0.0, -1.0]), to=st.sampled_from([None, 12, 15])
)
def test_pad_after_batch_is_padded_batch(
    tf: Any, sizes: list[int], size: int, value: float, to: int | None
) -> None:
    """Padded to the longest of the batch, or to a fixed length."""
    arrays, dataset = ragged(tf, sizes)
    theirs = dataset.padded_batch(size, padded_shapes=(to, 2), padding_values=value)
    same(list(af.items(arrays).batch(size).pad(value=value, to=to)), [np.asarray(each) for each in theirs])


@few
@given(sizes=lengths, size=st.integers(1, 4), drop=st.booleans())
def test_bucket_is_bucket_by_sequence_length(tf: Any, sizes: list[int], size: int, drop: bool) -> None:
    """The same batches, in the same order."""
    arrays, dataset = ragged(tf, sizes)
    theirs = dataset.bucket_by_sequence_length(
        lambda x: tf.shape(x)[0], bucket_boundaries=[4, 8], bucket_batch_sizes=[size] * 3, drop_remainder=drop
    )
    ours = af.items(arrays).bucket(boundaries=[4, 8], size=size, drop_remainder=drop).pad()
    same(list(ours), [np.asarray(each) for each in theirs])


@few
@given(a=st.integers(0, 10), b=st.integers(0, 10), times=st.integers(1, 2))
def test_zip_and_concat(tf: Any, a: int, b: int, times: int) -> None:
    """`zip` stops at the shortest, where it is told to; `concat` is `concatenate`."""
    ours = af.zip(af.items(range(a)).repeat(times), af.items(range(b)), strict=False).map(sum).repeat(2)
    theirs = tf.data.Dataset.zip(tf.data.Dataset.range(a).repeat(times), tf.data.Dataset.range(b)).repeat(2)
    same(list(ours), [int(x + y) for x, y in theirs])
    ours = af.concat(af.items(range(a)), af.items(range(b)).repeat(times)).repeat(2)
    theirs = tf.data.Dataset.range(a).concatenate(tf.data.Dataset.range(b).repeat(times)).repeat(2)
    same(list(ours), [int(x) for x in theirs])


@few
@given(n=st.integers(0, 20), size=st.integers(1, 5), stride=st.integers(1, 5), drop=st.booleans())
def test_window_is_window_and_batch(tf: Any, n: int, size: int, stride: int, drop: bool) -> None:
    """Their `shift` is our `stride`."""
    theirs = tf.data.Dataset.range(n).window(size, shift=stride, drop_remainder=drop)
    theirs = theirs.flat_map(lambda window: window.batch(size))
    ours = af.items(range(n)).window(size, stride=stride, drop_remainder=drop)
    same(list(ours), [np.asarray(each) for each in theirs])


@few
@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=3), stop=st.sampled_from(["first", "all"]),
    by_number=st.booleans(), times=st.integers(1, 2),
)  # fmt: skip
def test_mix_is_choose_from_datasets(tf: Any, sizes: list[int], stop: str, by_number: bool, times: int) -> None:
    """With the same draws: the first of all that an input without end would give, and again in each epoch."""
    starts = [100 * which for which in range(len(sizes))]
    ranges = [range(start, start + size) for start, size in zip(starts, sizes, strict=True)]
    draws = list(af.mix(*(af.items([which]).repeat() for which in range(len(sizes))), seed=5).take(300))
    inputs = [af.items(each) if by_number else af.items(lambda each=each: iter(each)) for each in ranges]
    theirs = tf.data.Dataset.choose_from_datasets(
        [tf.data.Dataset.range(each.start, each.stop) for each in ranges],
        tf.data.Dataset.from_tensor_slices(np.array(draws, np.int64)),
        stop_on_empty_dataset=stop == "first",
    )
    expected = [int(each) for each in theirs.repeat(times)]
    ours = af.mix(*inputs, seed=5, stop=stop)
    if stop == "first" or len(sizes) == 1:
        assert list(ours.repeat(times) if expected else ours) == expected
    else:  # theirs skips a draw of an input that has ended, ours draws from the others with the same number
        assert sorted(ours.repeat(times) if expected else ours) == sorted(expected)


@few
@given(
    counts=st.lists(st.integers(0, 6), max_size=8), cycle=st.integers(1, 4), block=st.integers(1, 3),
    times=st.integers(1, 2), lazy=st.booleans(),
)  # fmt: skip
def test_interleave_is_interleave(
    tf: Any, counts: list[int], cycle: int, block: int, times: int, lazy: bool
) -> None:
    """The same order, also where inputs are empty or end at different times, and again in each epoch."""
    theirs = tf.data.Dataset.from_tensor_slices(np.array(counts, np.int64)).enumerate()
    theirs = theirs.interleave(
        lambda number, count: tf.data.Dataset.range(100 * number, 100 * number + count),
        cycle_length=cycle, block_length=block, num_parallel_calls=None,
    ).repeat(times)  # fmt: skip

    def elements(pair: tuple[int, int]) -> Any:
        made = range(100 * pair[0], 100 * pair[0] + pair[1])
        return (each for each in made) if lazy else list(made)

    ours = af.items(counts).enumerate().interleave(elements, cycle=cycle, block=block)
    same(list(ours.repeat(times) if any(counts) else ours), [int(each) for each in theirs])


def test_a_shuffle_buffer_displaces_as_tf_data_does(tf: Any) -> None:
    """No item comes earlier than the buffer allows, and every item comes once."""
    n, buffer = 500, 32
    ours = list(af.items(range(n)).shuffle(seed=3, buffer=buffer))
    theirs = [int(x) for x in tf.data.Dataset.range(n).shuffle(buffer, seed=3)]
    for order in (ours, theirs):
        assert sorted(order) == list(range(n))
        assert all(item <= place + buffer - 1 for place, item in enumerate(order))
    # As random as theirs: the mean displacement is that of the same process.
    displacement = [np.mean([abs(item - place) for place, item in enumerate(order)]) for order in (ours, theirs)]
    assert 0.5 < displacement[0] / displacement[1] < 2
