"""What TensorFlow and Keras do wrong, and that ours does not: the table in `docs/tensorflow.md`.

Should one of theirs be mended, its test fails, and the document can be shorter.
"""

from __future__ import annotations

import gc
import threading
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")

import asyncfeed as af  # noqa: E402
from asyncfeed.stacking.aligned import aligned_empty  # noqa: E402

v1 = tf.compat.v1
X = np.arange(20, dtype=np.float32).reshape(20, 1)


def generated(values: Any, dtype: Any, shape: Any = ()) -> list[Any]:
    dataset = tf.data.Dataset.from_generator(lambda: iter(values), output_signature=tf.TensorSpec(shape, dtype))
    return [value.numpy().tolist() for value in dataset]


def model() -> Any:
    made = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    made.compile(keras.optimizers.SGD(1e-3), "mse")
    return made


# -- tf.data


@pytest.mark.parametrize(("value", "dtype", "kept"), [(300, tf.uint8, 44), (5.7, tf.int64, 5)])
def test_a_value_that_does_not_fit_is_cast_there_and_refused_here(value: Any, dtype: Any, kept: int) -> None:
    assert generated([np.array(value)], dtype) == [kept]
    dataset = af.items([np.array(value)]).to_tf(output_signature=tf.TensorSpec((), dtype))
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"the signature says {dtype.name}"):
        list(dataset)


def test_an_exception_is_a_text_there_and_an_object_here() -> None:
    def bad() -> Iterator[int]:
        yield 1
        raise OSError("disk on fire")

    with pytest.raises(tf.errors.UnknownError, match="disk on fire") as caught:
        list(tf.data.Dataset.from_generator(bad, output_signature=tf.TensorSpec((), tf.int64)))
    assert caught.value.__cause__ is None
    feeds: list[af.Feed[Any]] = []
    with pytest.raises(tf.errors.OpError, match="disk on fire"):
        list(af.items(bad).to_tf(on_open=feeds.append))
    assert isinstance(feeds[0].failure.error, OSError)  # type: ignore[union-attr]


def test_what_can_be_read_once_is_an_empty_epoch_there_and_an_error_here() -> None:
    once = iter(range(3))
    theirs = tf.data.Dataset.from_generator(lambda: once, output_signature=tf.TensorSpec((), tf.int64))
    assert [len(list(theirs)) for _ in range(2)] == [3, 0]
    ours = af.items(iter(range(3))).to_tf()
    assert len(list(ours)) == 3
    with pytest.raises(tf.errors.OpError, match="drawn from by an earlier run"):
        list(ours)


def test_the_length_is_unknown_there_and_known_here() -> None:
    theirs = tf.data.Dataset.from_generator(lambda: range(3), output_signature=tf.TensorSpec((), tf.int64))
    assert theirs.cardinality() == tf.data.UNKNOWN_CARDINALITY
    assert af.items(range(3)).to_tf().cardinality() == 3


class Kept:
    """Something that a function holds."""


def test_a_function_is_kept_for_ever_there_and_let_go_here() -> None:
    def theirs() -> weakref.ref[Kept]:
        held = Kept()
        dataset = tf.data.Dataset.from_generator(
            lambda: [int(held is None)], output_signature=tf.TensorSpec((), tf.int64)
        )
        assert len(list(dataset)) == 1
        return weakref.ref(held)

    def ours(**options: Any) -> weakref.ref[Kept]:
        held = Kept()
        assert len(list(af.items(lambda: [int(held is None)]).to_tf(**options))) == 1
        return weakref.ref(held)

    references = theirs(), ours(), ours(via="from_generator")
    gc.collect()
    assert [reference() is None for reference in references] == [False, True, True]


def test_a_buffer_that_is_used_again_changes_what_was_delivered_there_and_not_here() -> None:
    buffer = aligned_empty((4,), np.dtype(np.int64))

    def reused() -> Iterator[Any]:
        for number in range(3):
            buffer[:] = number
            yield buffer

    dataset = tf.data.Dataset.from_generator(reused, output_signature=tf.TensorSpec((4,), tf.int64))
    assert [batch.numpy()[0] for batch in list(dataset)] == [2, 2, 2]
    pipeline = af.arrays(np.arange(12).reshape(12)).batch(4)  # its batches come from a pool of buffers
    assert [batch.numpy()[0] for batch in list(pipeline.to_tf())] == [0, 4, 8]


# -- Keras


class Reads(keras.utils.PyDataset):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.of: list[int] = []

    def __len__(self) -> int:
        return 5

    def __getitem__(self, number: int) -> Any:
        self.of.append(number)
        return X[4 * number : 4 * number + 4], X[4 * number : 4 * number + 4]


def test_the_first_batches_are_read_once_more_there_and_not_here() -> None:
    theirs, ours = Reads(), Reads()
    model().fit(theirs, verbose=0)
    model().fit(af.items(ours).to_keras(), verbose=0)
    assert sorted(theirs.of) == [0, 0, 1, 1, 2, 3, 4]
    assert sorted(ours.of) == [0, 1, 2, 3, 4]


def test_an_iterator_with_a_lock_is_refused_there_and_shared_here() -> None:
    batches = [(X[:4], X[:4])] * 3
    with pytest.raises(ValueError, match="Unrecognized data type"):
        model().fit(af.threadsafe(iter(batches)), verbose=0)
    history = model().fit(af.items(af.threadsafe(iter(batches))).to_keras(), verbose=0)
    assert len(history.epoch) == 1


def test_class_weights_are_refused_or_ignored_there_and_taken_here() -> None:
    """A weight of nought leaves nothing to learn."""
    weights = {0: 0.0}
    zeros = np.zeros((20, 1), np.float32)
    train = af.arrays(X, zeros).batch(5)
    with pytest.raises(ValueError, match="`class_weight` is not supported"):
        model().fit((batch for batch in train), class_weight=weights, verbose=0)
    for data, options, ignored in (
        (train.to_keras(), {"class_weight": weights}, True),
        (train.to_keras(class_weight=weights), {}, False),
    ):
        loss = model().fit(data, verbose=0, **options).history["loss"][0]
        assert (loss > 0) is ignored


def test_an_epoch_of_known_length_ends_without_a_warning_of_keras() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.filterwarnings("ignore", ".*`shuffle=True` was passed")
        model().fit(af.arrays(X, X).batch(8).to_keras(), epochs=2, verbose=0)


# -- TensorFlow 1


def test_slices_of_unequal_length_are_taken_there_and_refused_here() -> None:
    with tf.Graph().as_default():
        assert len(v1.train.slice_input_producer([np.zeros(5), np.zeros(4)])) == 2
    with pytest.raises(af.PipelineError, match="has 4 rows"):
        af.arrays(np.zeros(5), np.zeros(4))


def test_epochs_that_nobody_initialised_look_like_the_end_of_the_data_there() -> None:
    with tf.Graph().as_default(), v1.Session() as sess:
        (number,) = v1.train.slice_input_producer([np.arange(5)], num_epochs=2)
        coord = tf.train.Coordinator()
        threads = v1.train.start_queue_runners(sess, coord)
        with pytest.raises(tf.errors.OutOfRangeError):
            sess.run(number)
        coord.request_stop()
        with pytest.raises(tf.errors.NotFoundError):
            coord.join(threads)


def drawn_by_threads(shared: Any) -> list[BaseException | None]:
    """Return how each of four threads ended that draw from one iterator."""
    ends: list[BaseException | None] = []

    def draw() -> None:
        try:
            for _ in shared:
                pass
            ends.append(None)
        except OSError as error:
            ends.append(error)

    threads = [threading.Thread(target=draw) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ends


class Locked:
    """What the seeds wrap a generator in."""

    def __init__(self, iterator: Iterator[Any]) -> None:
        self.iterator, self.lock = iterator, threading.Lock()

    def __iter__(self) -> Locked:
        return self

    def __next__(self) -> Any:
        with self.lock:
            return next(self.iterator)


def test_one_thread_sees_an_exception_there_and_all_of_them_here() -> None:
    def fails() -> Iterator[int]:
        yield from range(9)
        raise OSError("disk on fire")

    assert sum(end is not None for end in drawn_by_threads(Locked(fails()))) == 1
    assert sum(end is not None for end in drawn_by_threads(af.threadsafe(fails()))) == 4
